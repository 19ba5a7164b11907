//! Where a running link is found: a socket and a lock in a directory of the user's own.

use std::{
    env, fs,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{LinkError, LinkErrorKind};

/// The name of a link that is given none.
pub const NAME: &str = "link";
/// The variable by which commands inside a link know its socket.
pub const SOCKET: &str = "SPHX_LINK_SOCKET";

/// Longest name: the path of a Unix socket has at most 107 bytes.
const NAME_BYTES_MAX: usize = 32;

/// A name that this process alone uses, until it drops this or ends, however that happens.
#[derive(Debug)]
pub(super) struct Place {
    socket: PathBuf,
    lock_path: PathBuf,
    /// The lock file; held open so that the name stays locked.
    _lock: File,
}

/// Whether a link can have this name.
pub(super) fn check_name(name: &str) -> Result<(), LinkError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    match fits && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(LinkError::usage(format!(
            "'{}' cannot be a name: write 1 to {NAME_BYTES_MAX} letters, digits, '-' and '_'",
            name.escape_default()
        ))),
    }
}

/// The directory of the user's links. To be called before entering a user namespace, which changes
/// what the user seems to be.
pub fn directory() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir());
    let user = rustix::process::geteuid().as_raw();
    match runtime {
        Some(runtime) => runtime.join("sphx"),
        None if user == 0 && Path::new("/run").is_dir() => PathBuf::from("/run/sphx"),
        None => env::temp_dir().join(format!("sphx-{user}")),
    }
}

/// The socket of a running link.
pub(super) fn socket(name: &str) -> Result<PathBuf, LinkError> {
    check_name(name)?;
    Ok(directory().join(format!("{name}.sock")))
}

impl Place {
    /// Takes a name in a directory, which is created if need be.
    pub(super) fn claim(directory: &Path, name: &str) -> Result<Place, LinkError> {
        check_name(name)?;
        let refused = |error: &io::Error| {
            LinkError::io("use the directory", directory.to_string_lossy(), error)
        };
        create(directory).map_err(|error| refused(&error))?;
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = loop {
            let lock = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&lock_path)
                .map_err(|error| refused(&error))?;
            match lock.try_lock() {
                // The process that had the lock may have removed the file since it was opened: then this is a lock on no name.
                Ok(()) if is_at(&lock, &lock_path) => break lock,
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(LinkError::new(
                        LinkErrorKind::Local,
                        format!("a link named '{name}' is running"),
                        "give this one another name with --name, or end the other one",
                    ));
                }
                Err(fs::TryLockError::Error(error)) => return Err(refused(&error)),
            }
        };
        let socket = directory.join(format!("{name}.sock"));
        // Left by one that was killed: whoever has the lock owns the name.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&error)),
            _ => {}
        }
        Ok(Place {
            socket,
            lock_path,
            _lock: lock,
        })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock is held until after this.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Creates a directory that nobody else may enter, or makes sure that it is such a one.
fn create(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    let found = fs::symlink_metadata(directory)?;
    let own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    match own && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::other(
            "it belongs to somebody else or is open to others",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_process_has_a_name_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sphx");
        let first = Place::claim(&directory, "a").unwrap();
        fs::write(first.socket(), "stale").unwrap();
        let error = Place::claim(&directory, "a").unwrap_err();
        assert!(error.message.contains("'a' is running"), "{error}");
        assert!(error.hint.contains("--name"));
        let second = Place::claim(&directory, "b").unwrap();
        assert_ne!(first.socket(), second.socket());
        drop(first);
        assert!(!directory.join("a.sock").exists());
        // As if killed: files are there, the lock is not.
        fs::write(directory.join("a.sock"), "stale").unwrap();
        fs::write(directory.join("a.lock"), "").unwrap();
        let again = Place::claim(&directory, "a").unwrap();
        assert!(!again.socket().exists());
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Place::claim(&open, "a").unwrap_err();
        assert!(error.message.contains("open to others"), "{error}");
        fs::write(root.path().join("file"), "").unwrap();
        assert!(Place::claim(&root.path().join("file"), "a").is_err());
    }

    #[test]
    fn names() {
        for name in ["link", "a", "Sat_2-b"] {
            check_name(name).unwrap();
        }
        for name in ["", "../x", "a b", "ä", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
