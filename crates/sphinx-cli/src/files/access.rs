//! What is this user's own and keeps its owner out: permissions that mean something at another machine are given here too.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::descent::open_directory;

/// Lets the owner into a directory for as long as it lives.
pub(super) struct LetIn {
    directory: OwnedFd,
    /// Permissions to restore when this is dropped.
    before: Mode,
}

impl LetIn {
    /// `None` if the owner has the permissions that are `needed` already, or is somebody else.
    fn new(directory: &OwnedFd, needed: Mode) -> Result<Option<Self>, Errno> {
        let stat = fs::fstat(directory)?;
        let before = Mode::from_raw_mode(stat.st_mode & 0o7777);
        if before.contains(needed) || stat.st_uid != geteuid().as_raw() {
            return Ok(None);
        }
        let let_in = Self::until_dropped(directory, before)?;
        fs::fchmod(directory, before | needed)?;
        Ok(Some(let_in))
    }

    fn until_dropped(directory: &OwnedFd, before: Mode) -> Result<Self, Errno> {
        let directory = directory.try_clone().map_err(|_| Errno::MFILE)?;
        Ok(Self { directory, before })
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        // Best effort: if this fails, the directory keeps the permissions that it was given for the transfer.
        let _ = fs::fchmod(&self.directory, self.before);
    }
}

/// Opens a directory in another one, never through a link. If it is this user's own, its owner has what is `needed` there for
/// as long as what comes with it lives.
pub(super) fn open_own(
    parent: &OwnedFd,
    name: &[u8],
    needed: Mode,
) -> Result<(OwnedFd, Option<LetIn>), Errno> {
    match open_directory(parent, name) {
        Ok(opened) => {
            let let_in = LetIn::new(&opened, needed)?;
            Ok((opened, let_in))
        }
        Err(Errno::ACCESS) => {
            let before = permit(parent, name, needed)?;
            let opened = open_directory(parent, name)?;
            let let_in = LetIn::until_dropped(&opened, before)?;
            Ok((opened, Some(let_in)))
        }
        Err(error) => Err(error),
    }
}

/// Gives the owner of what has a name more permissions, and says what they were. No link is followed, whatever takes the
/// name's place meanwhile.
///
/// # Errors
/// `ACCESS`: it is somebody else's.
pub(super) fn permit(directory: &OwnedFd, name: &[u8], more: Mode) -> Result<Mode, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = fs::openat(directory, name, flags, Mode::empty())?;
    let stat = fs::fstat(&there)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    let before = Mode::from_raw_mode(stat.st_mode & 0o7777);
    // `fchmod` refuses a descriptor of `O_PATH`. Its name below /proc leads to this very file, whatever its directory has meanwhile.
    let path = format!("/proc/self/fd/{}", there.as_raw_fd());
    fs::chmod(path, before | more).map_err(|_| Errno::ACCESS)?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn mode(path: &Path) -> u32 {
        let metadata = std::fs::symlink_metadata(path).expect("it is there");
        metadata.permissions().mode() & 0o7777
    }

    #[test]
    fn an_owner_is_let_in_and_kept_out_again() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("d");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let parent = fs::open(root.path(), flags, Mode::empty()).unwrap();
        std::fs::create_dir(&path).unwrap();
        for before in [0o555, 0o400, 0o1000, 0, 0o700] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(before)).unwrap();
            let (opened, let_in) = open_own(&parent, b"d", Mode::RWXU).unwrap();
            assert_eq!(mode(&path), before | 0o700);
            fs::mkdirat(&opened, "inner", Mode::RWXU).unwrap();
            fs::unlinkat(&opened, "inner", fs::AtFlags::REMOVEDIR).unwrap();
            drop(let_in);
            assert_eq!(mode(&path), before);
        }
        // Permissions that already suffice are not changed.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o555)).unwrap();
        let (_opened, let_in) = open_own(&parent, b"d", Mode::RUSR | Mode::XUSR).unwrap();
        assert!(let_in.is_none() && mode(&path) == 0o555);
    }

    #[test]
    fn a_link_leads_to_no_permissions() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("f");
        std::fs::write(&path, b"x").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        symlink("f", root.path().join("link")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let parent = fs::open(root.path(), flags, Mode::empty()).unwrap();
        assert!(permit(&parent, b"link", Mode::RUSR).is_err());
        assert_eq!(mode(&path), 0);
        assert_eq!(permit(&parent, b"f", Mode::RUSR), Ok(Mode::empty()));
        assert_eq!(mode(&path), 0o400);
    }
}
