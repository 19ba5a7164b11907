//! Where a receiver puts things, and what it lets a peer do there.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::descent::open_directory;
use super::leftovers::{Found, TransferLock, Unfinished, names, sweep};
use super::roots::no_directory;
use super::source::SourceId;
use super::sync::Sync;
use crate::failure::{Failure, Outcome, fail_hint, local_io};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// Permission bits a peer may set: no set-user-id, set-group-id or sticky bit.
const MODE_MASK: u16 = 0o777;
/// The beginning of the names of directories that a receiver makes for transfers; a number follows.
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
    /// Give permissions that the umask would take away.
    pub(crate) exact_modes: bool,
    /// Most bytes of one transfer.
    pub(crate) max_bytes: Option<u64>,
    /// Most entries of one transfer.
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

/// What a sender has been asked for: nothing else comes in.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) names: BTreeSet<Vec<u8>>,
    /// Whether the expected names may be directories.
    pub(crate) directories: bool,
}

/// An open output directory.
#[derive(Clone)]
pub(crate) struct OutputDir {
    pub(super) root: Arc<OwnedFd>,
    pub(super) rules: Rules,
    /// Permission bits that no object gets.
    umask: u16,
    /// The names that may come at the top; `None` allows any.
    pub(super) expected: Option<Arc<Expected>>,
    /// The request of a synchronization, if it is one.
    pub(super) sync: Option<Arc<Sync>>,
    /// The directory does not exist and is not made (a dry run): `root` must not be looked into.
    pub(super) missing: bool,
    /// The directory's name, as it is shown to people.
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
            umask: if rules.exact_modes { 0 } else { umask() },
            expected: None,
            sync: None,
            missing: false,
            shown,
        })
    }

    /// The directory `path`, or for a trial what would be there, to be synchronized.
    pub(crate) fn synchronized(path: &Path, partial: bool, sync: Arc<Sync>) -> Outcome<Self> {
        let rules = Rules {
            overwrite: true,
            merge: true,
            allow_dotfiles: true,
            partial,
            exact_modes: true,
            ..Rules::default()
        };
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let refused = |error| local_io("use the directory", &shown, error);
        // As with rsync, the parent directory has to exist.
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => path,
        };
        if let Err(error) = parent.metadata() {
            return Err(refused(error).with_hint("make the directory that it is to be in first"));
        }
        if let Some(shown) = no_directory(path) {
            return Err(fail_hint(
                ErrorKind::Usage,
                format!("{shown} is no directory, and nothing else becomes the same as one"),
                "name the directory that is to become the same as SRC, or the one that SRC is to be in",
            ));
        }
        if !sync.asked.dry_run {
            if sync.asked.contents {
                let_in(path);
            }
            let output = Self::open(path, rules)?;
            return Ok(Self {
                sync: Some(sync),
                ..output
            });
        }
        let missing = match path.metadata() {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(refused(error)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = fs::open(if missing { parent } else { path }, flags, Mode::empty());
        Ok(Self {
            root: Arc::new(opened.map_err(|error| refused(error.into()))?),
            rules,
            umask: 0,
            expected: None,
            sync: Some(sync),
            missing,
            shown,
        })
    }

    /// Whether somebody has removed the directory, so that nothing can be made in it any more.
    fn is_gone(&self) -> bool {
        fs::fstat(&self.root).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Why nothing in here can be made any more, if that is what an error says.
    pub(super) fn gone(&self, error: Errno) -> Option<Failure> {
        // `cp` and `sync` open the directory anew with each command; a receiver that keeps running has the removed one open.
        let is_copy = self.expected.is_some() || self.sync.is_some();
        let hint = match is_copy {
            true => "make it again, then run the same command",
            false => "start the receiving end again",
        };
        (error == Errno::NOENT && self.is_gone()).then(|| {
            fail_hint(
                ErrorKind::LocalIo,
                format!("the directory {} was removed meanwhile", self.shown),
                hint,
            )
        })
    }

    /// A failure of the system that ends a transfer into here.
    pub(super) fn failed(&self, what: &str, path: &str, error: Errno) -> Failure {
        (self.gone(error)).unwrap_or_else(|| local_io(what, path, error))
    }

    /// The same for a sender that has been asked for something.
    pub(crate) fn expecting(self, expected: Expected) -> Self {
        Self {
            expected: Some(Arc::new(expected)),
            ..self
        }
    }

    /// Whether something at this path below the directory can be of what was asked for.
    pub(super) fn expects(&self, path: &[u8]) -> bool {
        let goes_into = (self.sync.as_ref()).is_some_and(|sync| sync.asked.contents);
        let outermost = path.split(|byte| *byte == b'/').next().unwrap_or(path);
        let is_named = |expected: &Arc<Expected>| expected.names.contains(outermost);
        goes_into || self.expected.as_ref().is_none_or(is_named)
    }

    /// The directory of a transfer: that of the same sender's which is not complete, or else the first of `received-1`,
    /// `received-2`, … that does not exist.
    pub(super) fn own(&self, source: Option<SourceId>) -> Outcome<Own> {
        let source = source.filter(|_| self.rules.partial);
        if let Some(found) = source.and_then(|source| self.find_own(source)) {
            return Ok(found);
        }
        let refused = |error| self.failed("make a directory in", &self.shown, error);
        for number in 1_u32.. {
            let name = format!("{OWN_NAME}{number}");
            let mode = Mode::RWXU | Mode::RWXG | Mode::RWXO;
            match fs::mkdirat(&self.root, name.as_str(), mode) {
                Ok(()) => {
                    let opened = open_directory(&self.root, name.as_bytes());
                    let root = Arc::new(opened.map_err(refused)?);
                    let mark = source.map(|source| Unfinished::create_for(&root, source));
                    return Ok(Own {
                        mark: (mark.transpose())
                            .map_err(|error| local_io("make a directory in", &self.shown, error))?,
                        output: self.inside(root, name),
                    });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Err(refused(Errno::EXIST))
    }

    fn find_own(&self, source: SourceId) -> Option<Own> {
        for name in names(&self.root).ok()? {
            let name = String::from_utf8(name).unwrap_or_default();
            let number = name.strip_prefix(OWN_NAME).map(str::parse::<u32>);
            let Some(Ok(_)) = number else {
                continue;
            };
            let Ok(root) = open_directory(&self.root, name.as_bytes()).map(Arc::new) else {
                continue;
            };
            if let Found::Unfinished(mark) = Unfinished::find(&root)
                && mark.is_for(source)
            {
                sweep(&root);
                return Some(Own {
                    output: self.inside(root, name),
                    mark: Some(mark),
                });
            }
        }
        None
    }

    fn inside(&self, root: Arc<OwnedFd>, shown: String) -> Self {
        Self {
            root,
            shown,
            ..self.clone()
        }
    }

    /// Ends what [`own`](Self::own) has begun. A directory with nothing in it goes.
    pub(super) fn end_own(&self, own: Own, complete: bool) {
        let Own { output, mark } = own;
        let is_empty = || {
            let marks = usize::from(mark.is_some());
            names(&output.root).is_ok_and(|names| names.len() == marks)
        };
        if (complete || is_empty())
            && let Some(mark) = mark
        {
            // Best effort: a mark that stays has the same transfer go on in this directory, where the files are found complete.
            let _ = mark.finish();
        }
        let _ = fs::unlinkat(&self.root, output.shown.as_str(), AtFlags::REMOVEDIR);
    }

    /// The permissions an object gets.
    pub(super) fn mode(&self, asked: u16) -> Mode {
        Mode::from_raw_mode(u32::from(asked & MODE_MASK & !self.umask))
    }
}

/// A directory of a transfer's own.
pub(super) struct Own {
    pub(super) output: OutputDir,
    /// The mark of a directory that is not complete; `None` once it is.
    mark: Option<Unfinished>,
}

/// Why something is refused: one entry of a transfer, or all that follows.
pub(super) enum Refused {
    /// This entry only; later ones may succeed.
    Entry(Failure),
    /// The rest of the transfer: whatever follows would fail, too.
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

    /// The same, where it need not be one of the system.
    pub(super) fn io(what: &str, path: &str, error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(error) => Self::system(what, path, error),
            None => Self::Transfer(local_io(what, path, error)),
        }
    }
}

/// Lets the owner into a directory that is there, if that is this user: as others it is ours to write into, until its
/// attributes come.
fn let_in(path: &Path) {
    if let Ok(there) = path.metadata()
        && there.is_dir()
        && there.uid() == geteuid().as_raw()
        && there.mode() & 0o700 != 0o700
    {
        // Best effort: if this fails, the first attempt to write there reports it.
        let _ = std::fs::set_permissions(path, Permissions::from_mode(there.mode() | 0o700));
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
