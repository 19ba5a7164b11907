//! The sender's way through what it sends: what is in it, and in which order it goes.
//!
//! Below what the user has named, everything is opened by its name in its open directory, without
//! following links: what is sent is what was found, also when somebody changes the tree meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::descent::{Descent, Wanderer, open_directory};
use super::leftovers::names;
use super::owners::Ids;
use super::paths::{Name, PATH_BYTES_MAX, PathError, Walker, below, link_target};
use super::roots::{Root, Source, shown};
use super::sync::Sync;
use super::wire::Attributes;
use super::xattrs::Xattrs;
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// Something to send, in the order of sending: a directory, its contents, its end.
#[derive(Debug)]
pub(super) enum Step {
    Directory {
        name: Name,
        mode: u16,
    },
    DirectoryEnd {
        attributes: Attributes,
        ids: Ids,
        /// Extended attributes; they are read where a tree is synchronized.
        xattrs: Xattrs,
    },
    File {
        name: Name,
        /// `None` when things are only counted, and where a tree is synchronized: most files are left alone there.
        file: Option<File>,
        stat: Stat,
    },
    Stream {
        name: Name,
        /// `None` when things are only counted.
        input: Option<File>,
        attributes: Attributes,
    },
    Symlink {
        name: Name,
        attributes: Attributes,
        ids: Ids,
        target: Vec<u8>,
    },
    /// The walk ends: nothing that follows could succeed.
    Failed(Failure),
    /// An entry that is left out.
    Skipped {
        name: Name,
        failure: Failure,
        /// It could not be read, so what it is, or what is in it, is not known.
        unread: bool,
    },
}

/// Walks the roots in order, each directory sorted by name. Memory grows with the names of the
/// directories on the way down, not with the tree.
pub(super) struct Walk<'a> {
    roots: std::slice::Iter<'a, Root>,
    /// Where the root is on this machine, for messages.
    source: PathBuf,
    root: Option<Arc<OwnedFd>>,
    descent: Descent,
    open: Vec<OpenDirectory>,
    /// The path of the innermost directory, from the root's name on.
    path: Vec<u8>,
    counting: bool,
    /// How the present root is synchronized, if it is.
    sync: Option<Arc<Sync>>,
}

struct OpenDirectory {
    attributes: Attributes,
    ids: Ids,
    xattrs: Xattrs,
    /// Names still to come, last first.
    names: Vec<Vec<u8>>,
}

impl<'a> Walk<'a> {
    /// A walk that opens files, to send their contents.
    pub(super) fn new(roots: &'a [Root]) -> Self {
        Self {
            roots: roots.iter(),
            source: PathBuf::new(),
            root: None,
            descent: Descent::new(),
            open: Vec::new(),
            path: Vec::new(),
            counting: false,
            sync: None,
        }
    }

    /// To count what is found: files are not opened.
    pub(super) fn to_count(roots: &'a [Root]) -> Self {
        Self {
            counting: true,
            ..Self::new(roots)
        }
    }

    /// The path at the other end of an object in the innermost directory.
    pub(super) fn path_of(&self, name: &Name) -> Vec<u8> {
        below(&self.path, name.as_bytes())
    }

    /// Where an object in the innermost directory is on this machine, for messages.
    pub(super) fn source_of(&self, name: &Name) -> String {
        if self.open.is_empty() {
            return shown(&self.source);
        }
        let below = match self.goes_into() {
            true if self.path.is_empty() => Vec::new(),
            true => [b"/", &self.path[..]].concat(),
            false => {
                let below = self.path.iter().position(|byte| *byte == b'/');
                below.map_or(Vec::new(), |at| self.path[at..].to_vec())
            }
        };
        let source = self.source.as_os_str().as_encoded_bytes();
        let source = source.strip_suffix(b"/").unwrap_or(source);
        printable(&[source, &below, b"/", name.as_bytes()].concat())
    }

    /// Opens the file of which [`next`](Self::next) has told last.
    pub(super) fn open(&self, name: &Name) -> io::Result<(Stat, File)> {
        let parent = self.descent.current().ok_or(Errno::NOENT)?;
        let (stat, file) = open(parent, name)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((stat, File::from(file))),
            _ => Err(io::Error::other("it changed while it was being sent")),
        }
    }

    /// The extended attributes of the file of which [`next`](Self::next) has told last.
    pub(super) fn xattrs_of(&self, name: &Name) -> io::Result<Xattrs> {
        let parent = self.descent.current().ok_or(Errno::NOENT)?;
        Xattrs::read_at(parent, name.as_bytes())
    }

    /// Leaves out what is still to come in an open directory (0 is the outermost).
    pub(super) fn leave_out(&mut self, depth: usize) {
        for directory in self.open.iter_mut().skip(depth) {
            directory.names = Vec::new();
        }
    }

    /// The next thing to send; nothing after the last.
    pub(super) fn next(&mut self) -> Outcome<Option<Step>> {
        loop {
            let Some(directory) = self.open.last_mut() else {
                let root = self.roots.find(|root| !root.is_excluded());
                return Ok(root.map(|root| self.begin(root)));
            };
            let Some(name) = directory.names.pop() else {
                return self.leave().map(Some);
            };
            let name = Name::new(name)
                .map_err(|error| fail(ErrorKind::LocalIo, format!("a name is refused: {error}")))?;
            if !self.is_excluded(&name) {
                return Ok(Some(self.found(name)));
            }
        }
    }

    /// Whether what lies in the innermost directory is filtered out.
    fn is_excluded(&self, name: &Name) -> bool {
        let (Some(sync), Some(parent)) = (&self.sync, self.descent.current()) else {
            return false;
        };
        if sync.filter.is_empty() {
            return false;
        }
        let stat = fs::statat(parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_directory = kind == Ok(FileType::Directory);
        sync.filter.excludes(&self.path_of(name), is_directory)
    }

    /// What the user has named. A link there is meant for what it points to.
    fn begin(&mut self, root: &Root) -> Step {
        let name = root.name.clone();
        self.sync = root.sync.clone();
        let Source::Path(path) = &root.source else {
            self.source = PathBuf::from("standard input");
            let input = match self.counting {
                true => Ok(None),
                false => io::stdin().as_fd().try_clone_to_owned().map(Some),
            };
            return match input {
                Ok(input) => stream(name, input.map(File::from)),
                Err(error) => self.skip_io(name, "read", error),
            };
        };
        self.source = path.clone();
        let opened = fs::stat(path).and_then(|stat| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let kind = FileType::from_raw_mode(stat.st_mode);
            match kind {
                FileType::Directory => {
                    let directory = fs::open(path, flags | OFlags::DIRECTORY, Mode::empty())?;
                    Ok((kind, fs::fstat(&directory)?, Some(directory)))
                }
                _ if self.counting => Ok((kind, stat, None)),
                _ => {
                    let file = fs::open(path, flags, Mode::empty())?;
                    Ok((kind, fs::fstat(&file)?, Some(file)))
                }
            }
        });
        match opened {
            Ok((FileType::Directory, stat, Some(directory))) => self.enter(name, directory, &stat),
            Ok((FileType::Fifo, _, input)) => stream(name, input.map(File::from)),
            Ok((_, stat, file)) => self.file(name, file, stat),
            Err(error) => self.skip_io(name, "read", error),
        }
    }

    /// What lies in the innermost directory.
    fn found(&mut self, name: Name) -> Step {
        let Some(parent) = self.descent.current().cloned() else {
            return self.skip_io(name, "read", Errno::NOENT);
        };
        if self.path.len() + 1 + name.as_bytes().len() > PATH_BYTES_MAX {
            return self.skip(name, PathError::TooLong.to_string());
        }
        let stat = match fs::statat(&parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return self.skip_io(name, "read", error),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if self.counting || self.sync.is_some() => {
                self.file(name, None, stat)
            }
            FileType::RegularFile => match open(&parent, &name) {
                Ok((stat, file)) => self.file(name, Some(file), stat),
                Err(error) => self.skip_io(name, "read", error),
            },
            FileType::Directory => match open_directory(&parent, name.as_bytes())
                .and_then(|directory| Ok((fs::fstat(&directory)?, directory)))
            {
                Ok((stat, directory)) => self.enter(name, directory, &stat),
                Err(error) => self.skip_io(name, "read the directory", error),
            },
            FileType::Symlink => self.link(name, &parent, &stat),
            _ => self.skip(name, "it is neither file, directory nor link".to_owned()),
        }
    }

    fn file(&self, name: Name, file: Option<OwnedFd>, stat: Stat) -> Step {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Step::File {
                name,
                file: file.map(File::from),
                stat,
            },
            _ => self.skip(name, "it changed while it was being sent".to_owned()),
        }
    }

    fn enter(&mut self, name: Name, directory: OwnedFd, stat: &Stat) -> Step {
        let xattrs = match &self.sync {
            Some(_) if !self.counting => Xattrs::read(&directory),
            _ => Ok(Xattrs::default()),
        };
        let xattrs = match xattrs {
            Ok(xattrs) => xattrs,
            Err(error) => return self.skip_io(name, "read the directory", error),
        };
        let entered = names(&directory).and_then(|mut names| {
            names.sort_unstable_by(|a, b| b.cmp(a));
            if self.open.is_empty() {
                self.root = Some(Arc::new(directory.try_clone().map_err(|_| Errno::MFILE)?));
            }
            self.descent.push(directory)?;
            Ok(names)
        });
        let names = match entered {
            Ok(names) => names,
            Err(error) => return self.skip_io(name, "read the directory", error),
        };
        if !(self.open.is_empty() && self.goes_into()) {
            self.path = self.path_of(&name);
        }
        let attributes = attributes(stat);
        self.open.push(OpenDirectory {
            attributes,
            ids: ids(stat),
            xattrs,
            names,
        });
        Step::Directory {
            name,
            mode: attributes.mode,
        }
    }

    /// Whether the contents of the root go into another directory: its name is in no path then.
    fn goes_into(&self) -> bool {
        self.sync.as_ref().is_some_and(|sync| sync.asked.contents)
    }

    /// Ends the innermost directory.
    fn leave(&mut self) -> Outcome<Step> {
        self.descent.pop().map_err(|_| {
            fail_hint(
                ErrorKind::LocalIo,
                format!("{} changed while it was being sent", shown(&self.source)),
                "send it again when nothing writes to it",
            )
        })?;
        let parent = self.path.iter().rposition(|byte| *byte == b'/');
        self.path.truncate(parent.unwrap_or(0));
        let directory = self
            .open
            .pop()
            .expect("there is one for each of the descent");
        Ok(Step::DirectoryEnd {
            attributes: directory.attributes,
            ids: directory.ids,
            xattrs: directory.xattrs,
        })
    }

    /// A link that leads out of what is sent, by its text or in fact, is left out.
    fn link(&mut self, name: Name, parent: &Arc<OwnedFd>, stat: &Stat) -> Step {
        let target = match fs::readlinkat(parent, name.as_bytes(), Vec::new()) {
            Ok(target) => target.into_bytes(),
            Err(error) => return self.skip_io(name, "read the link", error),
        };
        if self.sync.is_some() {
            return Step::Symlink {
                name,
                attributes: attributes(stat),
                ids: ids(stat),
                target,
            };
        }
        let mut walker = Reader(Wanderer::new(parent.clone()));
        let judged = link_target(self.descent.depth(), &target, &mut walker);
        let judged = match judged {
            Ok(()) if self.leads_out(&target) => Err(PathError::Escapes),
            judged => judged,
        };
        match judged {
            Ok(()) => Step::Symlink {
                name,
                attributes: attributes(stat),
                ids: ids(stat),
                target,
            },
            Err(error) => {
                let reason = format!("the link points to {}: {error}", printable(&target));
                self.skip(name, reason)
            }
        }
    }

    /// Whether a target in the innermost directory is reached through a link that leads out. Kernels
    /// that cannot tell leave it to the text.
    fn leads_out(&self, target: &[u8]) -> bool {
        let Some(root) = &self.root else {
            return false;
        };
        let below = self.path.iter().position(|byte| *byte == b'/');
        let below = below.map_or(&b"."[..], |at| &self.path[at + 1..]);
        let path = [below, b"/", target].concat();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH);
        opened.err() == Some(Errno::XDEV)
    }

    fn skip_io(&self, name: Name, what: &str, error: impl Into<io::Error>) -> Step {
        let error = error.into();
        let code = error.raw_os_error();
        let failure = local_io(what, &self.source_of(&name), error);
        let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        match exhausted
            .iter()
            .any(|errno| code == Some(errno.raw_os_error()))
        {
            true => Step::Failed(failure),
            false => Step::Skipped {
                name,
                failure,
                unread: true,
            },
        }
    }

    fn skip(&self, name: Name, reason: String) -> Step {
        let message = format!("cannot send {}: {reason}", self.source_of(&name));
        let failure = fail(ErrorKind::LocalIo, message);
        Step::Skipped {
            name,
            failure,
            unread: false,
        }
    }
}

/// Opens what lay there as a file: it may have been exchanged meanwhile, for a link, or for a pipe without a writer.
fn open(parent: &OwnedFd, name: &Name) -> Result<(Stat, OwnedFd), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(parent, name.as_bytes(), flags, Mode::empty())?;
    Ok((fs::fstat(&file)?, file))
}

/// Walks through the source tree to find out where a link leads.
struct Reader(Wanderer);

impl Walker for Reader {
    fn up(&mut self) {
        self.0.up();
    }

    fn enter(&mut self, name: &[u8]) -> bool {
        self.0.enter(name).is_ok()
    }
}

fn stream(name: Name, input: Option<File>) -> Step {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Step::Stream {
        name,
        input,
        attributes: Attributes {
            mode: 0o666,
            mtime_s: i64::try_from(since.as_secs()).unwrap_or(0),
            mtime_ns: since.subsec_nanos(),
        },
    }
}

pub(super) fn ids(stat: &Stat) -> Ids {
    Ids {
        uid: stat.st_uid,
        gid: stat.st_gid,
    }
}

pub(super) fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        // The mask leaves twelve bits.
        mode: (stat.st_mode & 0o7777) as u16,
        mtime_s: stat.st_mtime,
        mtime_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    }
}
