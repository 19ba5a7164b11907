//! The directories on the way down a tree, held open so that work per object does not grow with depth.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Directories held open at a time; those above are opened again on the way up.
const OPEN_MAX: usize = 32;

/// A stack of directories, each inside the one before.
pub(super) struct Descent {
    levels: Vec<Level>,
}

struct Level {
    directory: Option<Arc<OwnedFd>>,
    identity: Identity,
}

/// Which directory or file it is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(directory: &OwnedFd) -> Result<Self, Errno> {
        fs::fstat(directory).map(|stat| Self::of_stat(&stat))
    }

    pub(super) fn of_stat(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

impl Descent {
    pub(super) fn new() -> Self {
        Self { levels: Vec::new() }
    }

    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The innermost directory.
    pub(super) fn current(&self) -> Option<&Arc<OwnedFd>> {
        self.levels.last()?.directory.as_ref()
    }

    /// Enters `directory`, which lies in the innermost one.
    pub(super) fn push(&mut self, directory: OwnedFd) -> Result<(), Errno> {
        let identity = Identity::of(&directory)?;
        if let Some(above) = self.levels.len().checked_sub(OPEN_MAX) {
            self.levels[above].directory = None;
        }
        self.levels.push(Level {
            directory: Some(Arc::new(directory)),
            identity,
        });
        Ok(())
    }

    /// Leaves the innermost directory and returns it.
    ///
    /// The one above is opened through `..` where it is not open any more. If that is another
    /// directory now, because somebody has moved the inner one, it fails and the stack is of no
    /// further use.
    pub(super) fn pop(&mut self) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let Some(left) = self.levels.pop() else {
            return Ok(None);
        };
        let inner = left.directory.ok_or(Errno::STALE)?;
        if let Some(above) = self.levels.last_mut()
            && above.directory.is_none()
        {
            let opened = open_directory(&inner, b"..")?;
            if Identity::of(&opened)? != above.identity {
                return Err(Errno::STALE);
            }
            above.directory = Some(Arc::new(opened));
        }
        Ok(Some(inner))
    }
}

/// Opens a directory in another one, never through a link.
pub(super) fn open_directory(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(parent, name, flags, Mode::empty())
}

/// One's way through real directories, for links; see [`link_target`](super::paths::link_target).
pub(super) struct Wanderer {
    at: Arc<OwnedFd>,
    /// How many directories above `at` the current one is.
    ups: usize,
}

impl Wanderer {
    pub(super) fn new(start: Arc<OwnedFd>) -> Self {
        Self { at: start, ups: 0 }
    }

    pub(super) fn up(&mut self) {
        self.ups += 1;
    }

    /// Opens the current directory.
    pub(super) fn here(&mut self) -> Result<&Arc<OwnedFd>, Errno> {
        if self.ups > 0 {
            // The parents of a real directory are real directories: no link is followed.
            let path = "../".repeat(self.ups);
            self.at = Arc::new(open_directory(&self.at, path.as_bytes())?);
            self.ups = 0;
        }
        Ok(&self.at)
    }

    pub(super) fn enter(&mut self, name: &[u8]) -> Result<(), Errno> {
        let opened = open_directory(self.here()?, name)?;
        self.at = Arc::new(opened);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_tree_takes_few_descriptors_and_one_gets_back_up() {
        const DEPTH: usize = 100;
        let root = tempfile::tempdir().expect("a temporary directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut descent = Descent::new();
        let mut identities = Vec::new();
        descent
            .push(fs::open(root.path(), flags, Mode::empty()).unwrap())
            .unwrap();
        for _ in 0..DEPTH {
            let here = descent.current().unwrap();
            identities.push(Identity::of(here).unwrap());
            fs::mkdirat(here, "d", Mode::RWXU).unwrap();
            let inner = open_directory(here, b"d").unwrap();
            descent.push(inner).unwrap();
            let open = descent.levels.iter().filter(|l| l.directory.is_some());
            assert!(open.count() <= OPEN_MAX);
        }
        while let Some(expected) = identities.pop() {
            descent.pop().unwrap();
            assert_eq!(Identity::of(descent.current().unwrap()).unwrap(), expected);
        }
    }

    #[test]
    fn a_directory_that_was_moved_is_noticed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut descent = Descent::new();
        descent
            .push(fs::open(root.path(), flags, Mode::empty()).unwrap())
            .unwrap();
        let mut path = root.path().to_owned();
        for _ in 0..OPEN_MAX {
            path.push("d");
            std::fs::create_dir(&path).unwrap();
            let inner = open_directory(descent.current().unwrap(), b"d").unwrap();
            descent.push(inner).unwrap();
        }
        // Out of the outermost directory, which is not held open any more.
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        std::fs::rename(root.path().join("d"), elsewhere.path().join("d")).unwrap();
        let mut left = OPEN_MAX;
        while left > 1 {
            assert!(descent.pop().is_ok());
            left -= 1;
        }
        assert_eq!(descent.pop().err(), Some(Errno::STALE));
    }
}
