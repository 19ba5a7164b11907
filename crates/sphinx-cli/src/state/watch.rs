//! Whether a file has changed, for those who act on that within a second.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often watched files are looked at.
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);
/// A file that was written so short a time ago may be written again without its times changing.
const RECENT: Duration = Duration::from_secs(2);

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    mode: u32,
}

/// One file.
pub(crate) struct Watched {
    path: PathBuf,
    seen: Option<Option<Stamp>>,
    /// The last look came so soon after a change that another may not show.
    is_recent: bool,
}

impl Watched {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            seen: None,
            is_recent: false,
        }
    }

    /// Whether it may have changed since the last call; so at the first.
    pub(crate) fn may_have_changed(&mut self) -> bool {
        let metadata = fs::metadata(&self.path).ok();
        let is_recent = metadata.as_ref().is_some_and(|metadata| {
            let modified = metadata.modified().ok();
            let age = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
            age.is_none_or(|age| age < RECENT)
        });
        let stamp = metadata.map(|metadata| Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            mode: metadata.mode(),
        });
        let was_recent = std::mem::replace(&mut self.is_recent, is_recent);
        self.seen.replace(stamp) != Some(stamp) || was_recent
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn changes_are_seen_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        let mut watched = Watched::new(&path);
        assert!(watched.may_have_changed() && !watched.may_have_changed());
        let old = |text: &str| {
            fs::write(&path, text).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - 2 * RECENT).unwrap();
        };
        old("one");
        assert!(watched.may_have_changed() && !watched.may_have_changed());
        old("two, longer");
        assert!(watched.may_have_changed() && !watched.may_have_changed());
        // Just written: looked at again, in case more was written at the same time.
        fs::write(&path, "three").unwrap();
        assert!(watched.may_have_changed() && watched.may_have_changed());
        fs::remove_file(&path).unwrap();
        assert!(watched.may_have_changed());
    }
}
