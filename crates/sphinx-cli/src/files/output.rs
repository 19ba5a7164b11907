//! Where a receiver puts things, and what it lets a peer do there.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::descent::open_directory;
use super::leftovers::{TransferLock, sweep};
use crate::failure::{Failure, Outcome, local_io};
use crate::text::printable;

/// Permission bits a peer may set: no set-user-id, set-group-id or sticky bit.
const MODE_MASK: u16 = 0o777;
/// What the directories are called that a receiver makes for transfers, before their number.
const OWN_NAME: &str = "received-";

/// What a peer may do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Replace files and links that exist.
    pub(crate) overwrite: bool,
    /// Put things into directories that exist.
    pub(crate) merge: bool,
    /// Use names at the top that begin with a dot.
    pub(crate) allow_dotfiles: bool,
    /// Keep files that are not complete, for another transfer to go on with.
    pub(crate) partial: bool,
    /// In one transfer.
    pub(crate) max_bytes: Option<u64>,
    /// In one transfer.
    pub(crate) max_entries: Option<u64>,
}

/// Where transfers go.
#[derive(Clone)]
pub(crate) enum Destination {
    /// All of them into one directory.
    Directory(OutputDir),
    /// Each into a new directory inside this one.
    OwnDirectories(OutputDir),
    /// The contents of one file to standard output.
    Stdout(Rules),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(output) => f.write_str(&output.shown),
            Self::OwnDirectories(_) => f.write_str("a new directory"),
            Self::Stdout(_) => f.write_str("standard output"),
        }
    }
}

/// An open output directory.
#[derive(Clone)]
pub(crate) struct OutputDir {
    pub(super) root: Arc<OwnedFd>,
    pub(super) rules: Rules,
    /// Permission bits that no object gets.
    umask: u16,
    /// Its name, for people.
    pub(super) shown: String,
}

impl OutputDir {
    /// Opens `path`, making it if it is missing, removes what killed receivers have left there, and
    /// makes sure that files can be created in it.
    pub(crate) fn open(path: &Path, rules: Rules) -> Outcome<Self> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let refused = |error| local_io("write to the output directory", &shown, error);
        std::fs::create_dir_all(path).map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|e| refused(e.into()))?;
        let root = Arc::new(root);
        sweep(&root);
        TransferLock::create(&root).map_err(|e| refused(e.into()))?;
        Ok(Self {
            root,
            rules,
            umask: umask(),
            shown,
        })
    }

    /// Makes the first of `received-1`, `received-2`, … that does not exist.
    pub(super) fn make_own(&self) -> Outcome<Self> {
        let refused = |error: Errno| local_io("make a directory in", &self.shown, error);
        for number in 1_u32.. {
            let name = format!("{OWN_NAME}{number}");
            match fs::mkdirat(
                &self.root,
                name.as_str(),
                Mode::RWXU | Mode::RWXG | Mode::RWXO,
            ) {
                Ok(()) => {
                    let root = open_directory(&self.root, name.as_bytes()).map_err(refused)?;
                    return Ok(Self {
                        root: Arc::new(root),
                        rules: self.rules,
                        umask: self.umask,
                        shown: name,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Err(refused(Errno::EXIST))
    }

    /// Removes a directory that [`make_own`](Self::make_own) made, if there is nothing in it.
    pub(super) fn remove_own_if_empty(&self, own: &Self) {
        let _ = fs::unlinkat(&self.root, own.shown.as_str(), AtFlags::REMOVEDIR);
    }

    /// The permissions an object gets.
    pub(super) fn mode(&self, asked: u16) -> Mode {
        Mode::from_raw_mode(u32::from(asked & MODE_MASK & !self.umask))
    }
}

/// What a peer may not do: one thing of a transfer, or the rest of it.
pub(super) enum Refused {
    /// This entry; others may do better.
    Entry(Failure),
    /// Nothing that follows could do better.
    Transfer(Failure),
}

impl Refused {
    /// A failure of the system.
    pub(super) fn system(what: &str, path: &str, error: Errno) -> Self {
        let failure = local_io(what, path, error);
        match error {
            Errno::NOSPC
            | Errno::DQUOT
            | Errno::ROFS
            | Errno::IO
            | Errno::STALE
            | Errno::NFILE
            | Errno::MFILE
            | Errno::NOMEM => Self::Transfer(failure),
            _ => Self::Entry(failure),
        }
    }
}

/// The bits that this process's new files never get. Asking the kernel directly would change them for
/// a moment, for every thread.
fn umask() -> u16 {
    const USUAL: u16 = 0o022;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok())
        .unwrap_or(USUAL)
}
