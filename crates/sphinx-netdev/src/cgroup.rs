//! Control groups (version 2): which processes a program and what it starts are.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{netns::context, nfqueue::Cgroup};

/// The file with the processes of a group.
const PROCESSES: &str = "cgroup.procs";

/// Where control groups of version 2 are mounted.
///
/// # Errors
///
/// `Unsupported` if they are not.
pub fn root() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    mount_of(&mounts).ok_or_else(|| {
        let message = "control groups of version 2 are not mounted";
        io::Error::new(io::ErrorKind::Unsupported, message)
    })
}

/// Lines have the mount point as their fifth word, and the kind of file system behind a dash.
fn mount_of(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let is_meant = kind.split(' ').next() == Some("cgroup2");
        is_meant.then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

impl Cgroup {
    /// The group with this directory, or with this path below [`root`].
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none.
    pub fn at(path: &Path) -> io::Result<Cgroup> {
        let root = root()?;
        let below = path.strip_prefix(&root).unwrap_or(path);
        let below = below.strip_prefix("/").unwrap_or(below);
        let directory = root.join(below);
        // Other directories have no such file.
        let found = fs::metadata(directory.join(PROCESSES)).and_then(|_| fs::metadata(&directory));
        let found = found
            .map_err(|error| context(&format!("control group {}", directory.display()), error))?;
        Ok(Cgroup {
            id: found.ino(),
            level: below.components().count() as u32,
        })
    }
}

/// A group of its own for this process and what it starts, as long as this lives.
#[derive(Debug)]
pub struct OwnGroup {
    path: PathBuf,
    before: PathBuf,
}

impl OwnGroup {
    /// Makes a group `PREFIX-PID` below that of this process. It is empty until [`enter`](OwnGroup::enter) is called. Empty ones with the
    /// same prefix, of processes that were killed, are removed.
    ///
    /// # Errors
    ///
    /// `Unsupported` without control groups of version 2; `PermissionDenied` without rights to them.
    pub fn new(prefix: &str) -> io::Result<OwnGroup> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let before = root()?.join(own.unwrap_or_default());
        remove_left(&before, prefix)?;
        let path = before.join(format!("{prefix}-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| context(&format!("control group {}", path.display()), error))?;
        Ok(OwnGroup { path, before })
    }

    /// The directory of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves this process there; what it starts from then on is there too.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join(PROCESSES), "0")
    }

    /// Moves this process back and removes the group.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if processes are left there.
    pub fn leave(&self) -> io::Result<()> {
        fs::write(self.before.join(PROCESSES), "0")?;
        fs::remove_dir(&self.path)
    }
}

/// Removes groups of processes that have gone, as far as nobody is in them.
fn remove_left(directory: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.strip_prefix('-'));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        // A group with this process's number is of a process that had the number before: that of this one is not made yet.
        if pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists() {
            // A program that was started there may still run.
            let _ = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        // `leave` may have removed the group already.
        let _ = self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - tmpfs tmpfs ro\n\
                      40 30 0:35 / /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw\n";
        let expected = PathBuf::from("/sys/fs/cgroup/unified");
        assert_eq!(mount_of(mounts), Some(expected));
        assert_eq!(mount_of("30 24 0:26 / /proc rw - proc proc rw"), None);
    }

    #[test]
    fn groups_are_found() {
        let Ok(root) = root() else {
            return sphinx_testing::skipped!("no control groups of version 2");
        };
        let whole = Cgroup::at(&root).expect("the root");
        assert_eq!(
            (whole.level, Cgroup::at(Path::new("/")).ok()),
            (0, Some(whole))
        );
        let error = Cgroup::at(Path::new("/no/such/group")).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        match OwnGroup::new("sphx-test") {
            Ok(group) => {
                let left = group.path().with_file_name("sphx-test-4294967295");
                fs::create_dir(&left).expect("a group");
                let at = Cgroup::at(group.path()).expect("it is there");
                assert!(at.level >= 1 && at.id != whole.id);
                fs::remove_dir(group.path()).expect("it is empty");
                // It was left by a process with a number that there cannot be.
                let again = OwnGroup::new("sphx-test").expect("a group");
                assert!(!left.exists());
                // Nor is one in the way that a process with our number has left.
                let own = OwnGroup::new("sphx-test").expect("a group");
                drop((again, own));
            }
            Err(error) => sphinx_testing::skipped!("{error}"),
        }
    }
}
