//! What is there and did not come, and how it goes.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::access::{LetIn, open_own};
use super::descent::{Descent, Identity, open_directory};
use super::leftovers::{is_reserved, names};
use super::paths::{PATH_BYTES_MAX, below};
use super::sync::Sync;
use super::target::folded;

/// Permissions that are needed to list a directory and to open what is in it.
const READ: Mode = Mode::RUSR.union(Mode::XUSR);

/// Keeps account of what comes, so that the rest is known in the end.
pub(super) struct Extraneous {
    root: Arc<OwnedFd>,
    sync: Arc<Sync>,
    /// The names that have come in each directory that is begun and not ended.
    came: Vec<BTreeSet<Vec<u8>>>,
    /// What did not come, by its path below the root.
    found: Vec<Vec<u8>>,
    /// Why nothing of what did not come may be deleted.
    failed: Option<Errno>,
}

/// Something to be deleted, behind what is in it.
pub(super) struct Doomed {
    pub(super) path: Vec<u8>,
    directory: bool,
}

impl Extraneous {
    pub(super) fn new(root: Arc<OwnedFd>, sync: Arc<Sync>) -> Self {
        Self {
            root,
            sync,
            came: Vec::new(),
            found: Vec::new(),
            failed: None,
        }
    }

    pub(super) fn enter(&mut self) {
        self.came.push(BTreeSet::new());
    }

    /// Notes that an object of this name has come in the innermost directory, even if it was refused.
    pub(super) fn came(&mut self, name: &[u8]) {
        if let Some(names) = self.came.last_mut().filter(|_| self.sync.asked.delete) {
            names.insert(name.to_vec());
        }
    }

    /// The innermost directory ends, which is at `path`; nothing is known of one that does not exist.
    pub(super) fn leave(&mut self, directory: Option<&OwnedFd>, path: &[u8]) {
        let mut came = self.came.pop().unwrap_or_default();
        let Some(directory) = directory.filter(|_| self.sync.asked.delete) else {
            return;
        };
        let mut there = match names(directory) {
            Ok(there) => there,
            Err(error) => {
                self.failed = Some(error);
                return;
            }
        };
        there.retain(|name| !came.remove(name) && !is_reserved(name));
        if there.is_empty() {
            return;
        }
        // Where the file system folds case, what has come may be listed in another spelling: compared by inode, it is the same. Some in user space give each
        // spelling an inode of its own.
        let identity = |name: &Vec<u8>| {
            let there = fs::statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
            there.ok().map(|there| Identity::of_stat(&there))
        };
        let unlisted = came
            .iter()
            .filter_map(|name| Some((identity(name)?, folded(name))));
        let (inodes, spellings): (BTreeSet<_>, BTreeSet<_>) = unlisted.unzip();
        there.retain(|name| {
            let is_other = || identity(name).is_none_or(|it| !inodes.contains(&it));
            inodes.is_empty() || (is_other() && !spellings.contains(&folded(name)))
        });
        there.sort_unstable();
        for name in there {
            let path = below(path, &name);
            if !self
                .sync
                .filter
                .excludes(&path, is_directory(directory, &name))
            {
                self.found.push(path);
            }
        }
    }

    /// Everything that is to go, each directory behind its contents.
    pub(super) fn plan(&mut self) -> Result<Vec<Doomed>, Errno> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut doomed = Vec::new();
        for path in std::mem::take(&mut self.found) {
            self.plan_one(&path, &mut doomed)?;
        }
        Ok(doomed)
    }

    /// The same for what is in the way of something that comes.
    pub(super) fn plan_one(&self, path: &[u8], doomed: &mut Vec<Doomed>) -> Result<bool, Errno> {
        let parent = self.parent(path, READ)?;
        let mut descent = Descent::new();
        let directory = parent.directory.try_clone();
        descent.push(directory.map_err(|_| Errno::MFILE)?)?;
        self.plan_below(&mut descent, parent.name, path, doomed)
    }

    /// Plans the deletion of an object and of what is in it; whether all of it is to go.
    fn plan_below(
        &self,
        descent: &mut Descent,
        name: &[u8],
        path: &[u8],
        doomed: &mut Vec<Doomed>,
    ) -> Result<bool, Errno> {
        let here = descent.current().ok_or(Errno::STALE)?;
        let directory = is_directory(here, name);
        if self.sync.filter.excludes(path, directory) {
            return Ok(false);
        }
        let mut all = true;
        if directory {
            // Paths have a maximum length, so nothing deeper can be named, and deleted.
            if path.len() > PATH_BYTES_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            let (inner, _let_in) = self.open(here, name, READ)?;
            let mut there = names(&inner)?;
            there.sort_unstable();
            descent.push(inner)?;
            for name in there {
                all &= self.plan_below(descent, &name, &below(path, &name), doomed)?;
            }
            descent.pop()?;
        }
        if all {
            let path = path.to_vec();
            doomed.push(Doomed { path, directory });
        }
        Ok(all)
    }

    /// Deletes something. The directory that it was in keeps its times.
    pub(super) fn delete(&self, doomed: &Doomed) -> Result<(), Errno> {
        let parent = self.parent(&doomed.path, Mode::RWXU)?;
        let directory = &parent.directory;
        let flags = match doomed.directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        let before = fs::fstat(directory)?;
        match fs::unlinkat(directory, parent.name, flags) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        }
        let time = |tv_sec, nanoseconds| Timespec {
            tv_sec,
            tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
        };
        let times = Timestamps {
            last_access: time(before.st_atime, before.st_atime_nsec),
            last_modification: time(before.st_mtime, before.st_mtime_nsec),
        };
        // This fails if the directory is somebody else's. The deletion has been done, so that is no error.
        let _ = fs::futimens(directory, &times);
        Ok(())
    }

    /// The directory of a path, reached through no link, and the last name. If it is this user's own, its owner has what
    /// is `needed` there.
    fn parent<'p>(&self, path: &'p [u8], needed: Mode) -> Result<Parent<'p>, Errno> {
        let mut components = path.split(|byte| *byte == b'/');
        let mut parent = Parent {
            name: components.next_back().unwrap_or(path),
            directory: self.root.clone(),
            _let_in: None,
        };
        let mut components = components.peekable();
        while let Some(component) = components.next() {
            let needed = match components.peek() {
                Some(_) => READ,
                None => needed,
            };
            let (opened, let_in) = self.open(&parent.directory, component, needed)?;
            parent.directory = Arc::new(opened);
            parent._let_in = let_in;
        }
        Ok(parent)
    }

    /// Opens a directory in another one, and lets its owner in, if nothing else may change.
    fn open(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        needed: Mode,
    ) -> Result<(OwnedFd, Option<LetIn>), Errno> {
        match self.sync.asked.dry_run {
            true => open_directory(parent, name).map(|opened| (opened, None)),
            false => open_own(parent, name, needed),
        }
    }
}

/// A directory, and its own name in the one above.
struct Parent<'p> {
    directory: Arc<OwnedFd>,
    name: &'p [u8],
    _let_in: Option<LetIn>,
}

fn is_directory(parent: &OwnedFd, name: &[u8]) -> bool {
    let stat = fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;
    use crate::files::SyncRequest;

    /// On a file system that folds names a name may lead to an entry that is spelled otherwise, as paths may here.
    #[test]
    fn what_has_come_under_another_spelling_is_not_extraneous() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for name in ["Foo", "bar", "other"] {
            std::fs::write(root.path().join(name), b"").unwrap();
        }
        std::fs::create_dir(root.path().join("Dir")).unwrap();
        // A second name of the same file counts as a file of its own.
        std::fs::hard_link(root.path().join("bar"), root.path().join("link")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = Arc::new(fs::open(root.path(), flags, Mode::empty()).unwrap());
        let asked = SyncRequest {
            delete: true,
            ..SyncRequest::default()
        };
        let sync = Arc::new(Sync::new(asked).unwrap());
        let mut extraneous = Extraneous::new(directory.clone(), sync);
        extraneous.enter();
        for name in ["./Foo", "./Dir", "bar", "gone"] {
            extraneous.came(name.as_bytes());
        }
        extraneous.leave(Some(&directory), b"");
        assert_eq!(extraneous.found, [b"link".to_vec(), b"other".to_vec()]);
    }
}
