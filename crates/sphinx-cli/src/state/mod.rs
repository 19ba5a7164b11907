//! What receivers and servers keep between their starts, and what their users keep of them: keys, tickets, clients. Small text files
//! in a directory of its own, which people may edit and running servers watch.

#[cfg(feature = "tunnel")]
pub(crate) mod clients;
pub(crate) mod date;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod key;
pub(crate) mod line;
#[cfg(feature = "tunnel")]
pub(crate) mod servers;
pub(crate) mod tickets;
pub(crate) mod watch;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome, fail_hint, local_io};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// Longest file that is read: more than a hundred thousand clients.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Held by whoever changes something, for as long as that takes.
const LOCK: &str = "lock";
/// Lock that the receiver or server holds as long as it runs.
const RUNNING: &str = "running";

/// A directory of a receiver, a server, or a user.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

/// A lock of the state directory, released when dropped: that of changes, or that of the one process that runs with the directory.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it lets go")] File);

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// By its owner only.
    Secret,
    /// By anybody, but written by its owner only.
    Public,
}

impl StateDir {
    /// Opens `path`, or without one `$STATE_DIRECTORY` (as systemd sets it) or `name` among the user's state; makes it if it is missing.
    pub(crate) fn open(path: Option<&Path>, name: &str) -> Outcome<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => default_place(name)?,
        };
        let shown = show(&path);
        let failed = |error| local_io("use the state directory", &shown, error);
        (DirBuilder::new().recursive(true).mode(0o700))
            .create(&path)
            .map_err(failed)?;
        check(
            &path,
            &fs::metadata(&path).map_err(failed)?,
            Secrecy::Public,
        )?;
        Ok(Self(path))
    }

    /// The path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Its name, for people.
    pub(crate) fn shown(&self) -> String {
        show(&self.0)
    }

    /// Waits until nobody else changes anything.
    pub(crate) fn lock(&self) -> Outcome<Lock> {
        let path = self.file(LOCK);
        let locked = open_lock(&path).and_then(|file| {
            give_to_owner_of(&self.0, &file)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(Lock(file))
        });
        locked.map_err(|error| local_io("lock", &show(&path), error))
    }

    /// Only one receiver or server has a state directory at a time: two would count the same uses twice.
    pub(crate) fn run(&self) -> Outcome<Lock> {
        let path = self.file(RUNNING);
        let file = open_lock(&path).and_then(|file| {
            give_to_owner_of(&self.0, &file)?;
            Ok(file)
        });
        let file = file.map_err(|error| local_io("lock", &show(&path), error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(fail_hint(
                ErrorKind::LocalIo,
                format!("another receiver or server uses {}", self.shown()),
                "stop it, or give this one a directory of its own with --state DIR",
            )),
            Err(error) => Err(local_io("lock", &show(&path), error)),
        }
    }

    /// The text of a file; `None` if there is none.
    pub(crate) fn read(&self, name: &str, secrecy: Secrecy) -> Outcome<Option<Zeroizing<String>>> {
        read(&self.file(name), secrecy)
    }

    /// Replaces a file, whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> Outcome<()> {
        let path = self.file(name);
        let written = temporary(&path, text.as_bytes()).and_then(|file| {
            give_to_owner_of(&self.0, file.as_file())?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            // The name too is there after a crash.
            File::open(&self.0)?.sync_all()
        });
        written.map_err(|error| local_io("write", &show(&path), error))
    }
}

fn default_place(name: &str) -> Outcome<PathBuf> {
    let absolute = |variable| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    if let Some(given) = absolute("STATE_DIRECTORY") {
        return Ok(given);
    }
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let Some(state) = state else {
        return Err(fail_hint(
            ErrorKind::Usage,
            "there is no place to keep anything: neither $XDG_STATE_HOME nor $HOME is set",
            "name a directory with --state DIR",
        ));
    };
    Ok(state.join("sphinx").join(name))
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

/// Gives a file that root has written to the owner of the directory, so that a service can still use it.
pub(crate) fn give_to_owner_of(directory: &Path, file: &File) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let owner = fs::metadata(directory)?;
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

/// Replaces a file that anybody may read, whole or not at all. It stays whose it was and who may read it still may, as those who do are not
/// always its owner; where a link leads to it, the link stays.
#[cfg(feature = "tunnel")]
pub(crate) fn replace_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        _ => Some(fs::canonicalize(path)?),
    };
    let path = there.as_deref().unwrap_or(path);
    let file = temporary(path, bytes)?;
    match &there {
        Some(there) => keep_rights(&fs::metadata(there)?, file.as_file())?,
        None => {
            give_to_owner_of(directory_of(path), file.as_file())?;
            file.as_file()
                .set_permissions(fs::Permissions::from_mode(0o644))?;
        }
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The name too is there after a crash.
    File::open(directory_of(path))?.sync_all()
}

/// Makes a file that takes the place of another one belong to whom that belongs to, and readable by whom that is.
#[cfg(any(feature = "pep", feature = "tunnel"))]
pub(crate) fn keep_rights(before: &fs::Metadata, file: &File) -> io::Result<()> {
    match geteuid().is_root() {
        true => fchown(file, Some(before.uid()), Some(before.gid()))?,
        // Only root can give a file away. Others can set its group, if they are members of it.
        false => drop(fchown(file, None, Some(before.gid()))),
    }
    file.set_permissions(before.permissions())
}

/// Reads a file whose permissions are right.
pub(crate) fn read(path: &Path, secrecy: Secrecy) -> Outcome<Option<Zeroizing<String>>> {
    let shown = show(path);
    let failed = |error: io::Error| local_io("read", &shown, error);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    check(path, &metadata, secrecy)?;
    // Allocated once in full size: a string that grew would leave copies of secrets in freed memory.
    let room = metadata.len().min(FILE_BYTES_MAX) as usize + 1;
    let mut text = Zeroizing::new(String::with_capacity(room));
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(failed)? as u64;
    if read > FILE_BYTES_MAX {
        return Err(failed(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    Ok(Some(text))
}

/// Refuses what somebody else may have written, or a secret that somebody else can read.
pub(crate) fn check(path: &Path, metadata: &fs::Metadata, secrecy: Secrecy) -> Outcome<()> {
    let mode = metadata.permissions().mode();
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    let shown = show(path);
    let (wrong, right) = match secrecy {
        Secrecy::Secret if mode & 0o077 != 0 => ("others can read", "chmod 600"),
        Secrecy::Public if mode & 0o022 != 0 => ("others can write to", "chmod go-w"),
        _ if owner != own && owner != 0 && own != 0 => {
            let failure = format!("{shown} belongs to another user (uid {owner})");
            return Err(fail_hint(
                ErrorKind::LocalIo,
                failure,
                "chown it, or use another",
            ));
        }
        _ => return Ok(()),
    };
    Err(fail_hint(
        ErrorKind::LocalIo,
        format!("{wrong} {shown}"),
        format!("{right} {shown}, and make new ones if they may have"),
    ))
}

/// Makes a file that only its owner can read: whole, or not at all.
pub(crate) fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = temporary(path, bytes)?;
    give_to_owner_of(directory_of(path), file.as_file())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)
        .map(drop)
        .map_err(|error| error.error)
}

/// A file beside `path`, for its owner only, whatever the umask.
pub(crate) fn temporary(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut temporary = tempfile::Builder::new()
        .prefix(".sphx-ticket-")
        .suffix(".part")
        .tempfile_in(directory_of(path))?;
    temporary.write_all(bytes)?;
    Ok(temporary)
}

/// Where a file is.
pub(crate) fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// A path for people.
pub(crate) fn show(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

/// A line of a file that cannot be understood.
pub(crate) fn wrong_line(path: &Path, number: usize, why: &str) -> Failure {
    let failure = crate::failure::usage(format!("{}:{number}: {why}", show(path)));
    failure.with_hint("correct it, or put a # in front of it")
}
