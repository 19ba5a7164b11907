//! The tree that a receiver makes: the only place where a peer's bytes and names meet the file system.
//!
//! Every object is reached from the open output directory one component at a time, each opened as a
//! directory without following links, and then by its name in that open directory. So no name a peer
//! invents, no link it sends and no link that was there before leads outside, also when somebody
//! changes the tree meanwhile; and work per object does not grow with depth.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::descent::{Descent, Identity, open_directory};
use super::extraneous::Extraneous;
use super::leftovers::{Found, TransferLock, Unfinished, is_reserved};
use super::output::{OutputDir, Refused};
use super::paths::{Name, PATH_BYTES_MAX, PathError, below};
use super::source::SourceId;
use super::sync::Sync;
use super::temporary::Temporary;
use super::wire::{Attributes, Change};
use crate::failure::{Outcome, fail, fail_hint, local_io};
use crate::text::printable;
use sphinx_transport::ErrorKind;

mod attributes;
mod folding;
mod hard_links;
mod links;
mod version;

use attributes::Likeness;
pub(super) use attributes::passes_by_time;
use folding::Placed;
pub(super) use folding::folded;

/// Directories that links may ask for before their records come.
const MADE_AHEAD_MAX: usize = 1024;

/// Makes objects below an output directory.
pub(super) struct Target {
    output: OutputDir,
    /// The directories begun and not ended, without the output directory.
    descent: Descent,
    /// Whether each of them is the transfer's own and not its user's.
    own: Vec<bool>,
    /// The path of the innermost one below the output directory.
    path: Vec<u8>,
    /// The transfer's lock; `None` until the first temporary file.
    lock: Option<TransferLock>,
    /// The mark of the outermost one, if that is the transfer's own.
    unfinished: Option<Unfinished>,
    /// Whether something in the outermost directory was left out.
    incomplete: bool,
    /// The outermost one was complete before, and nothing may be put into it: what comes can only be what is
    /// there already.
    closed: bool,
    /// Directories made because a link goes through them.
    made_ahead: BTreeSet<Identity>,
    /// In a synchronization: what the receiver has and the sender has not.
    extraneous: Option<Extraneous>,
    /// Directories begun and not ended that do not exist, in a trial: inside those of the descent.
    imagined: usize,
    /// The output directory itself has come.
    root_begun: bool,
    /// How many things have been deleted, or would have been.
    deleted: u64,
    /// Attributes of the output directory itself. They are set again in the end: removing the lock changes its times.
    root_attributes: Option<Attributes>,
    /// What has been made and deleted, until the caller has taken it.
    changes: Vec<(Change, Vec<u8>)>,
    likeness: Likeness,
    /// In a trial: paths of files with several hard links that would be replaced.
    replaced: BTreeSet<Vec<u8>>,
    /// What has been put into each of the open directories, the output directory first.
    placed: Vec<Placed>,
}

/// Where the contents of a file go.
pub(super) enum Place {
    /// There is nothing of this name, or it may be replaced.
    New(Temporary),
    /// There is a file that must not be replaced; perhaps it has these contents.
    Existing(File),
}

impl Target {
    pub(super) fn new(output: OutputDir) -> Self {
        let sync = output.sync.clone();
        let root = output.root.clone();
        Self {
            output,
            extraneous: sync.map(|sync| Extraneous::new(root, sync)),
            imagined: 0,
            root_begun: false,
            deleted: 0,
            root_attributes: None,
            changes: Vec::new(),
            likeness: Likeness::default(),
            replaced: BTreeSet::new(),
            placed: Vec::new(),
            descent: Descent::new(),
            own: Vec::new(),
            path: Vec::new(),
            lock: None,
            unfinished: None,
            incomplete: false,
            closed: false,
            made_ahead: BTreeSet::new(),
        }
    }

    /// How many directories are begun and not ended.
    pub(super) fn depth(&self) -> usize {
        self.descent.depth() + self.imagined
    }

    /// The path of an object in the innermost directory.
    pub(super) fn path_of(&self, name: &Name) -> Vec<u8> {
        below(&self.path, name.as_bytes())
    }

    /// Whether the innermost directory is at this path.
    pub(super) fn is_in(&self, path: &[u8]) -> bool {
        self.path == path
    }

    /// Something in the innermost directory is left out.
    pub(super) fn leave_out(&mut self) {
        self.incomplete = true;
    }

    /// Begins a directory.
    pub(super) fn enter(&mut self, name: &Name, mode: u16) -> Result<(), Refused> {
        if self.output.sync.is_some() {
            return self.enter_version(name, mode);
        }
        self.check_name(name)?;
        self.check_expected(name, true)?;
        let parent = self.here();
        self.check_open(&parent, name)?;
        // The owner may write into it until it is complete. Its other permissions are final from the beginning: after a
        // transfer that fails, those whom it is for can use what has come.
        let mode = self.output.mode(mode) | Mode::RWXU;
        let made = match fs::mkdirat(&parent, name.as_bytes(), mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(self.refused("create", name, error)),
        };
        let opened = open_directory(&parent, name.as_bytes());
        let opened = opened.map_err(|error| self.refused("enter", name, error))?;
        let own = match self.depth() {
            0 => self.begin_outermost(name, &opened, made)?,
            _ => {
                let identity = Identity::of(&opened);
                let identity = identity.map_err(|error| self.refused("use", name, error))?;
                made || self.unfinished.is_some() || self.made_ahead.remove(&identity)
            }
        };
        self.note_placed(name);
        (self.descent.push(opened)).map_err(|error| self.refused("use", name, error))?;
        self.own.push(own);
        self.path = self.path_of(name);
        Ok(())
    }

    /// Whether a directory at the top is the transfer's own.
    fn begin_outermost(
        &mut self,
        name: &Name,
        opened: &OwnedFd,
        made: bool,
    ) -> Result<bool, Refused> {
        (self.incomplete, self.closed) = (false, false);
        let directory = opened.try_clone().map(Arc::new);
        let directory = directory
            .map_err(|error| Refused::Transfer(local_io("use", &self.shown(name), error)))?;
        if made {
            let mark = Unfinished::create(&directory).inspect_err(|_| {
                // A directory without its mark is of no use, and is removed again.
                let _ = fs::unlinkat(&self.output.root, name.as_bytes(), AtFlags::REMOVEDIR);
            });
            return match mark {
                Ok(mark) => {
                    self.unfinished = Some(mark);
                    Ok(true)
                }
                Err(Errno::AGAIN) => Err(self.in_use(name)),
                Err(error) => Err(self.refused("create", name, error)),
            };
        }
        match Unfinished::find(&directory) {
            Found::Unfinished(mark) => {
                self.unfinished = Some(mark);
                Ok(true)
            }
            Found::InUse => Err(self.in_use(name)),
            Found::Nothing => {
                self.closed = !self.output.rules.merge;
                Ok(false)
            }
        }
    }

    fn in_use(&self, name: &Name) -> Refused {
        Refused::Entry(fail_hint(
            ErrorKind::LocalIo,
            format!("{} is being received from another sender", self.shown(name)),
            "try again when that is over; a sender that was killed counts until its session is given up",
        ))
    }

    /// Refuses to add something to a directory that was complete before.
    fn check_open(&self, parent: &OwnedFd, name: &Name) -> Result<(), Refused> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.depth() == 0 || !self.closed || fs::statat(parent, name.as_bytes(), flags).is_ok() {
            return Ok(());
        }
        let shown = self.shown(name);
        let top = shown.split('/').next().unwrap_or_default();
        Err(Refused::Entry(fail_hint(
            ErrorKind::LocalIo,
            format!("{shown} is not added: {top} exists already"),
            "receive with --merge to put things into directories that exist",
        )))
    }

    /// Ends the innermost directory. One that is the transfer's own gets its permissions and
    /// modification time; one that was there before keeps what its owner gave it.
    pub(super) fn leave(&mut self, attributes: Attributes) -> Outcome<()> {
        if self.output.sync.is_some() {
            return self.leave_version(attributes);
        }
        let refused = |error| (self.output).failed("complete", &printable(&self.path), error);
        let (Some(directory), Some(own)) = (self.descent.pop().map_err(refused)?, self.own.pop())
        else {
            return Ok(());
        };
        if self.descent.depth() == 0
            && let Some(mark) = self.unfinished.take()
            && !self.incomplete
        {
            // Removing the mark changes the time of the directory, so it comes before the attributes.
            mark.finish().map_err(refused)?;
        }
        if own && !self.complete(&directory, attributes)? {
            self.leave_out();
        }
        let parent = self.path.iter().rposition(|byte| *byte == b'/');
        self.path.truncate(parent.unwrap_or(0));
        Ok(())
    }

    /// A place for the contents of a file. `size` is `None` if the sender does not know it yet; with `source` a part
    /// of them is worth keeping, and what there is of it is gone on with.
    pub(super) fn create(
        &mut self,
        name: &Name,
        size: Option<u64>,
        source: Option<SourceId>,
    ) -> Result<Place, Refused> {
        self.check_name(name)?;
        self.check_expected(name, false)?;
        self.check_included(name, false)?;
        let parent = self.here();
        self.check_open(&parent, name)?;
        let closed = self.closed && self.depth() > 0;
        if self.output.sync.is_some() {
            self.make_way(name)?;
        }
        match fs::statat(&parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(_) => {}
            Ok(there) if self.output.rules.overwrite && !closed => {
                self.check_replaceable(name, FileType::from_raw_mode(there.st_mode))?;
            }
            Ok(there) => {
                let file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
                let fits = size.is_none_or(|size| i64::try_from(size) == Ok(there.st_size));
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let opened = (file && fits)
                    .then(|| fs::openat(&parent, name.as_bytes(), flags, Mode::empty()));
                return match opened {
                    Some(Ok(file)) => Ok(Place::Existing(File::from(file))),
                    _ => Err(self.refused("create", name, Errno::EXIST)),
                };
            }
        }
        // Also of a file that can be gone on with, the next receiver has to find what nothing is known of.
        let temporary = self.temporary_name(name)?;
        if self.output.rules.partial
            && let (Some(size), Some(source)) = (size, source)
            && let Some(found) = Temporary::find_or_create(&parent, name.as_bytes(), size, source)
        {
            return Ok(Place::New(found));
        }
        let created = Temporary::create(parent, temporary);
        (created.map(Place::New)).map_err(|error| self.refused("create", name, error))
    }

    /// A file of this name and size in the innermost directory.
    pub(super) fn existing(&self, name: &Name, size: u64) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = fs::openat(self.here(), name.as_bytes(), flags, Mode::empty()).ok()?;
        let stat = fs::fstat(&file).ok()?;
        let is_like_it = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && i64::try_from(size) == Ok(stat.st_size);
        is_like_it.then(|| File::from(file))
    }

    /// Gives a complete, verified temporary file its attributes and its name.
    pub(super) fn commit(
        &mut self,
        name: &Name,
        temporary: Temporary,
        attributes: Attributes,
    ) -> Result<(), Refused> {
        let path = self.path_of(name);
        let applied = self.apply(&path, temporary.file(), attributes);
        let renamed = applied.and_then(|()| {
            temporary.rename(|directory, from| match self.output.rules.overwrite {
                true => fs::renameat(directory, from, directory, name.as_bytes()),
                false => rename_new(directory, from, name.as_bytes()),
            })
        });
        match renamed {
            Ok(()) => {
                self.note_placed(name);
                Ok(())
            }
            Err(Errno::EXIST) => Err(Refused::Entry(fail_hint(
                ErrorKind::LocalIo,
                format!("{} has come from elsewhere meanwhile", self.shown(name)),
                "the same command again compares it",
            ))),
            Err(NO_WAY) => Err(self.has_no_way(name)),
            Err(error) => Err(self.refused("create", name, error)),
        }
    }

    /// The refusal where the file system cannot rename without replacing. It ends the transfer, as it would hold for every file that follows.
    fn has_no_way(&self, name: &Name) -> Refused {
        Refused::Transfer(fail_hint(
            ErrorKind::LocalIo,
            format!(
                "cannot create {} and be sure to replace nothing: the file system of {} has neither RENAME_NOREPLACE nor hard links",
                self.shown(name),
                self.output.shown
            ),
            "receive with --overwrite, or into a directory of another file system",
        ))
    }

    /// What is said of a file that must not be replaced.
    pub(super) fn exists(&self, name: &Name) -> Refused {
        self.refused("create", name, Errno::EXIST)
    }

    /// The innermost directory that exists.
    pub(super) fn here(&self) -> Arc<OwnedFd> {
        (self.descent.current()).map_or_else(|| self.output.root.clone(), Arc::clone)
    }

    pub(super) fn shown(&self, name: &Name) -> String {
        printable(&self.path_of(name))
    }

    /// Names that a peer may not use, whatever is there, and those that have been used.
    pub(super) fn check_name(&mut self, name: &Name) -> Result<(), Refused> {
        let refuse = |why: &str, hint: &str| {
            let message = format!("{} is refused: {why}", self.shown(name));
            Err(Refused::Entry(fail_hint(ErrorKind::LocalIo, message, hint)))
        };
        if is_reserved(name.as_bytes()) {
            return refuse("the name is one of an unfinished transfer", "");
        }
        if self.depth() == 0
            && name.as_bytes().starts_with(b".")
            && !self.output.rules.allow_dotfiles
        {
            return refuse(
                "its name begins with a dot",
                "receive with --allow-dotfiles if you want it",
            );
        }
        match self.path.len() + 1 + name.as_bytes().len() > PATH_BYTES_MAX {
            true => refuse(&PathError::TooLong.to_string(), ""),
            false => self.check_unfolded(name),
        }
    }

    /// Files and links are replaced; a directory has more than one thing to lose, and a device or a pipe is somebody else's.
    fn check_replaceable(&self, name: &Name, there: FileType) -> Result<(), Refused> {
        let message = match there {
            FileType::RegularFile | FileType::Symlink => return Ok(()),
            FileType::Directory => {
                return Err(self.refused("replace the directory", name, Errno::ISDIR));
            }
            _ => format!(
                "{} is neither file nor link, and not replaced",
                self.shown(name)
            ),
        };
        Err(Refused::Entry(fail(ErrorKind::LocalIo, message)))
    }

    /// Whoever was asked for something sends nothing else; a directory or a link only where directories were asked for.
    pub(super) fn check_expected(&self, name: &Name, is_more: bool) -> Result<(), Refused> {
        let goes_into = |sync: &Arc<Sync>| sync.asked.contents;
        if self.depth() == 0 && self.output.sync.as_ref().is_some_and(goes_into) {
            let message = format!("{} is refused: it is no directory", self.shown(name));
            return Err(Refused::Entry(fail(ErrorKind::LocalIo, message)));
        }
        let Some(expected) = self.output.expected.as_ref().filter(|_| self.depth() == 0) else {
            return Ok(());
        };
        let why = match expected.names.contains(name.as_bytes()) {
            true if is_more && !expected.directories => "it is no file",
            true => return Ok(()),
            false => "nobody has asked for it",
        };
        let message = format!("{} is refused: {why}", self.shown(name));
        Err(Refused::Entry(fail(ErrorKind::LocalIo, message)))
    }

    /// What both ends leave out does not come, whatever a sender makes of its rules.
    pub(super) fn check_included(&self, name: &Name, directory: bool) -> Result<(), Refused> {
        let Some(sync) = &self.output.sync else {
            return Ok(());
        };
        if sync.filter.is_empty() || !sync.filter.excludes(&self.path_of(name), directory) {
            return Ok(());
        }
        let message = format!("{} is refused: it is excluded", self.shown(name));
        Err(Refused::Entry(fail(ErrorKind::LocalIo, message)))
    }

    /// A temporary name in the innermost directory, once it is known where to look for it.
    fn temporary_name(&mut self, name: &Name) -> Result<Vec<u8>, Refused> {
        let what = "write to the output directory";
        let shown = &self.output.shown;
        if self.lock.is_none() {
            let lock = TransferLock::create(&self.output.root);
            let refused = |error| Refused::Transfer(self.output.failed(what, shown, error));
            self.lock = Some(lock.map_err(refused)?);
        }
        let lock = self.lock.as_mut().expect("it was just made");
        (lock.set_directory(&self.path))
            .map_err(|error| Refused::Transfer(local_io(what, shown, error)))?;
        Ok(lock.temporary_name(name.as_bytes()))
    }

    pub(super) fn refused(&self, what: &str, name: &Name, error: Errno) -> Refused {
        let shown = self.shown(name);
        if let Some(failure) = self.output.gone(error) {
            return Refused::Transfer(failure);
        }
        match error {
            Errno::EXIST => Refused::Entry(fail_hint(
                ErrorKind::LocalIo,
                format!("{shown} exists already with other contents"),
                self.what_replaces(&shown),
            )),
            Errno::LOOP | Errno::NOTDIR => Refused::Entry(fail_hint(
                ErrorKind::LocalIo,
                format!("cannot {what} {shown}: what is there is no directory"),
                "symbolic links in the output directory are not followed",
            )),
            error => Refused::system(what, &shown, error),
        }
    }

    /// What lets a file be replaced that is there.
    fn what_replaces(&self, shown: &str) -> String {
        let top = shown.split('/').next().unwrap_or_default();
        let is_closed = self.closed && self.depth() > 0;
        match (is_closed, self.output.rules.overwrite) {
            (false, _) => "receive with --overwrite to replace files".to_owned(),
            (true, false) => {
                format!(
                    "receive with --overwrite and --merge to replace files in {top}, which was there before"
                )
            }
            (true, true) => {
                format!(
                    "receive with --merge too to replace files in {top}, which was there before"
                )
            }
        }
    }
}

/// The error of [`rename_new`] where the file system supports neither of its two ways. None of its system calls returns this one.
const NO_WAY: Errno = Errno::NOTUNIQ;

/// Renames without ever replacing anything.
fn rename_new(directory: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let renamed = fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE);
    or_link(renamed, || {
        fs::linkat(directory, from, directory, to, AtFlags::empty())?;
        fs::unlinkat(directory, from, AtFlags::empty())
    })
}

/// The second way, if the file system does not have the first: a hard link fails on an existing name everywhere.
fn or_link(
    renamed: Result<(), Errno>,
    link: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match renamed {
        Err(Errno::INVAL | Errno::NOSYS) => match link() {
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => Err(NO_WAY),
            linked => linked,
        },
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Rules;

    #[test]
    fn what_only_replaces_is_told_with_what_to_do() {
        let no_link = || Err(Errno::PERM);
        for lacking in [Errno::INVAL, Errno::NOSYS] {
            assert_eq!(or_link(Err(lacking), no_link), Err(NO_WAY));
            assert_eq!(or_link(Err(lacking), || Ok(())), Ok(()));
            // There is something of that name.
            assert_eq!(
                or_link(Err(lacking), || Err(Errno::EXIST)),
                Err(Errno::EXIST)
            );
        }
        // Where the first way is there, nothing is lacking.
        for renamed in [Ok(()), Err(Errno::EXIST), Err(Errno::PERM)] {
            assert_eq!(or_link(renamed, no_link), renamed);
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = OutputDir::open(directory.path(), Rules::default());
        let target = Target::new(output.expect("a directory"));
        let name = Name::new(b"film.mkv").expect("a name");
        let Refused::Transfer(failure) = target.has_no_way(&name) else {
            panic!("no other file could be put there");
        };
        assert_eq!(failure.kind, ErrorKind::LocalIo);
        assert!(failure.message.contains("film.mkv"), "{failure}");
        assert!(failure.hint.contains("--overwrite"), "{}", failure.hint);
    }
}
