//! What is special to a tree that is to become the same as another one.

use std::fs::File;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Target;
use super::attributes::passes_by_time;
use super::links::is_link_to;
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, protocol};
use crate::files::access::permit;
use crate::files::descent::open_directory;
use crate::files::output::Refused;
use crate::files::paths::Name;
use crate::files::wire::{Attributes, Change};
use crate::text::printable;
use sphinx_transport::ErrorKind;

impl Target {
    /// This name has come in the innermost directory.
    pub(in crate::files) fn note(&mut self, name: &Name) {
        if let Some(extraneous) = &mut self.extraneous {
            extraneous.came(name.as_bytes());
        }
    }

    /// What has been made and deleted since the last time.
    pub(in crate::files) fn take_changes(&mut self) -> Vec<(Change, Vec<u8>)> {
        std::mem::take(&mut self.changes)
    }

    pub(in crate::files) fn is_synchronized(&self) -> bool {
        self.output.sync.is_some()
    }

    /// The output directory, where something is to be said of all of it.
    pub(in crate::files) fn own_path(&self) -> Vec<u8> {
        b".".to_vec()
    }

    /// Whether nothing is changed.
    pub(in crate::files) fn is_trial(&self) -> bool {
        let sync = self.output.sync.as_ref();
        sync.is_some_and(|sync| sync.asked.dry_run)
    }

    /// Begins a directory.
    pub(super) fn enter_version(&mut self, name: &Name, mode: u16) -> Result<(), Refused> {
        let goes_into = (self.output.sync.as_ref()).is_some_and(|sync| sync.asked.contents);
        if self.depth() == 0 && goes_into {
            return self.enter_root(name);
        }
        self.check_name(name)?;
        self.check_expected(name, true)?;
        self.check_included(name, true)?;
        let (opened, is_new) = match self.imagined > 0 || self.output.missing {
            true => (None, true),
            false => self.open_version(name, mode)?,
        };
        let path = self.path_of(name);
        if is_new {
            self.changes.push((Change::Made, path.clone()));
        }
        match opened {
            Some(opened) => {
                self.note_placed(name);
                let pushed = self.descent.push(opened);
                pushed.map_err(|error| self.refused("use", name, error))?;
            }
            None => self.imagined += 1,
        }
        self.path = path;
        self.begun();
        Ok(())
    }

    fn enter_root(&mut self, name: &Name) -> Result<(), Refused> {
        if std::mem::replace(&mut self.root_begun, true) {
            return Err(Refused::Transfer(protocol("a second directory at the top")));
        }
        if self.output.missing {
            self.imagined += 1;
        } else {
            let root = open_directory(&self.output.root, b".");
            let pushed = root.and_then(|root| self.descent.push(root));
            pushed.map_err(|error| self.refused("use", name, error))?;
        }
        self.begun();
        Ok(())
    }

    fn begun(&mut self) {
        if let Some(extraneous) = &mut self.extraneous {
            extraneous.enter();
        }
    }

    /// The directory of this name, which is made unless this is a trial; and whether it was missing.
    fn open_version(
        &mut self,
        name: &Name,
        mode: u16,
    ) -> Result<(Option<std::os::fd::OwnedFd>, bool), Refused> {
        let parent = self.here();
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let there = fs::statat(&parent, name.as_bytes(), flags);
        let kind = there.map(|there| FileType::from_raw_mode(there.st_mode));
        match kind {
            Ok(FileType::Directory) => {
                let mut opened = open_directory(&parent, name.as_bytes());
                if !self.is_trial() && opened.as_ref().is_err_and(|error| *error == Errno::ACCESS) {
                    opened = permit(&parent, name.as_bytes(), Mode::RWXU)
                        .and_then(|_| open_directory(&parent, name.as_bytes()));
                }
                let opened = opened.map_err(|error| self.refused("enter", name, error))?;
                let stat = fs::fstat(&opened).map_err(|e| self.refused("use", name, e))?;
                if !self.is_trial() && stat.st_mode & 0o700 != 0o700 {
                    // The owner may write into it until the attributes of the sender's directory are set.
                    let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
                    fs::fchmod(&opened, mode).map_err(|e| self.refused("use", name, e))?;
                }
                return Ok((Some(opened), false));
            }
            Ok(FileType::RegularFile | FileType::Symlink) if self.is_trial() => {}
            Ok(FileType::RegularFile | FileType::Symlink) => {
                fs::unlinkat(&parent, name.as_bytes(), AtFlags::empty())
                    .map_err(|error| self.refused("replace", name, error))?;
            }
            Ok(_) => return Err(self.stays(name)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(self.refused("enter", name, error)),
        }
        if self.is_trial() {
            return Ok((None, true));
        }
        let mode = self.output.mode(mode) | Mode::RWXU;
        let made = fs::mkdirat(&parent, name.as_bytes(), mode)
            .and_then(|()| open_directory(&parent, name.as_bytes()));
        match made {
            Ok(opened) => Ok((Some(opened), true)),
            Err(error) => Err(self.refused("create", name, error)),
        }
    }

    /// Ends the innermost directory, which becomes what it is at the sender.
    pub(super) fn leave_version(&mut self, attributes: Attributes) -> Outcome<()> {
        let refused = |error| (self.output).failed("complete", &printable(&self.path), error);
        if self.imagined > 0 {
            self.imagined -= 1;
            if let Some(extraneous) = &mut self.extraneous {
                extraneous.leave(None, &self.path);
            }
        } else if let Some(directory) = self.descent.pop().map_err(refused)? {
            // Before the attributes are set, which may take the right to read it from its owner.
            if let Some(extraneous) = &mut self.extraneous {
                extraneous.leave(Some(&directory), &self.path);
            }
            let complete = self.is_trial() || self.complete(&directory, attributes)?;
            if self.descent.depth() == 0 && self.path.is_empty() {
                self.root_attributes = complete.then_some(attributes);
            }
        }
        let parent = self.path.iter().rposition(|byte| *byte == b'/');
        self.path.truncate(parent.unwrap_or(0));
        Ok(())
    }

    /// Nothing more comes: nothing of the transfer's own stays in the output directory.
    pub(in crate::files) fn finish(&mut self) -> Outcome<()> {
        drop(self.lock.take());
        if let Some(attributes) = self.root_attributes.take()
            && !self.is_trial()
        {
            let root = self.output.root.clone();
            let applied = self.give_mode_and_times(&root, attributes);
            self.settle_attributes(applied, &root, attributes)?;
        }
        Ok(())
    }

    /// Whether a link is as it is to be; if not, nothing is in its way.
    pub(super) fn has_link(
        &mut self,
        name: &Name,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<bool, Refused> {
        let path = self.path_of(name);
        if self.imagined == 0 && !self.output.missing {
            let parent = self.here();
            if is_link_to(&parent, name, target) {
                if !self.is_trial() {
                    self.describe_link(&parent, name, attributes);
                    self.note_placed(name);
                }
                return Ok(true);
            }
            self.make_way(name)?;
        }
        self.changes.push((Change::Made, path));
        Ok(self.is_trial())
    }

    /// Where a file or a link is to be, a directory goes: an empty one always, another one only where things are deleted.
    pub(in crate::files) fn make_way(&mut self, name: &Name) -> Result<(), Refused> {
        if self.imagined > 0 || self.output.missing {
            return Ok(());
        }
        let parent = self.here();
        let stat = fs::statat(&parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Directory) => {}
            Ok(FileType::RegularFile | FileType::Symlink) | Err(Errno::NOENT) => return Ok(()),
            Ok(_) => return Err(self.stays(name)),
            Err(error) => return Err(self.refused("replace", name, error)),
        }
        let path = self.path_of(name);
        let (Some(sync), Some(extraneous)) = (&self.output.sync, &self.extraneous) else {
            return Ok(());
        };
        let mut doomed = Vec::new();
        let all = extraneous.plan_one(&path, &mut doomed);
        let all = all.map_err(|error| self.refused("replace the directory", name, error))?;
        let is_empty = doomed.len() == 1;
        let most = sync.asked.max_delete.unwrap_or(u64::MAX);
        let fits = self.deleted + doomed.len() as u64 <= most;
        let allowed = all && fits && (is_empty || sync.asked.delete && !self.incomplete);
        if !allowed {
            let message = format!("{} is a directory, and not replaced", self.shown(name));
            let hint = "with --delete it goes, if what was to be read could be read, nothing in it is excluded, and \
                        --max-delete allows it";
            return Err(Refused::Entry(fail_hint(ErrorKind::LocalIo, message, hint)));
        }
        for doomed in doomed {
            if !sync.asked.dry_run {
                let deleted = extraneous.delete(&doomed);
                deleted.map_err(|error| self.refused("delete", name, error))?;
            }
            self.deleted += 1;
            self.changes.push((Change::Deleted, doomed.path));
        }
        Ok(())
    }

    fn stays(&self, name: &Name) -> Refused {
        let message = format!(
            "{} is neither file, directory nor link, and not replaced",
            self.shown(name)
        );
        Refused::Entry(fail(ErrorKind::LocalIo, message))
    }

    /// The file of this name is as it is to be; its attributes may not be. `read` is what it was when it was read, if it was.
    pub(in crate::files) fn keep(
        &mut self,
        name: &Name,
        size: u64,
        attributes: Attributes,
        read: Option<&Stat>,
    ) -> Result<(), Refused> {
        self.check_name(name)?;
        self.check_expected(name, false)?;
        self.check_included(name, false)?;
        if self.is_trial() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let parent = self.here();
        let stat = fs::statat(&parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|error| self.refused("use", name, error))?;
        let by_time = (self.output.sync.as_ref()).is_some_and(|sync| !sync.asked.checksum);
        let is_same = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && u64::try_from(stat.st_size) == Ok(size)
            && (!by_time || passes_by_time(&parent, &stat, attributes))
            && read.is_none_or(|before| has_not_changed(before, &stat));
        if !is_same {
            // Contents that somebody has written meanwhile must not get the sender's time: they would pass for the sender's file.
            let message = format!("{} has changed meanwhile", self.shown(name));
            let hint = "the same command again sends it";
            return Err(Refused::Entry(fail_hint(ErrorKind::LocalIo, message, hint)));
        }
        self.note_placed(name);
        let like_it = self.is_like(&stat, attributes);
        if like_it && self.likeness.has_xattrs_of(&parent, name) {
            return Ok(());
        }
        let open = || fs::openat(&parent, name.as_bytes(), flags, Mode::empty());
        let file = match open() {
            // The owner may not read the file, and need not: nothing of it has to change.
            Err(Errno::ACCESS) if like_it && self.likeness.has_no_xattrs() => return Ok(()),
            // Made readable for now: its permissions are set anyhow, next.
            Err(Errno::ACCESS) => permit(&parent, name.as_bytes(), Mode::RUSR).and_then(|_| open()),
            file => file,
        };
        let file = file.map_err(|error| self.refused("use", name, error))?;
        let path = self.path_of(name);
        let applied = self.apply(&path, &file, attributes);
        applied.map_err(|error| self.refused("use", name, error))
    }

    /// What is under this name now, to copy from.
    pub(in crate::files) fn version(&self, name: &Name) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = fs::openat(self.here(), name.as_bytes(), flags, Mode::empty()).ok()?;
        let stat = fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then(|| File::from(file))
    }

    /// Deletes what did not come, all of it or nothing; or says why not.
    pub(in crate::files) fn delete(&mut self) -> Result<(), Failure> {
        let Some(sync) = self.output.sync.clone().filter(|sync| sync.asked.delete) else {
            return Ok(());
        };
        let Some(extraneous) = &mut self.extraneous else {
            return Ok(());
        };
        let doomed = extraneous.plan().map_err(|error| {
            local_io(
                "read everything there is, so nothing is deleted in",
                &self.output.shown,
                error,
            )
        })?;
        if let Some(most) = sync.asked.max_delete
            && self.deleted + doomed.len() as u64 > most
        {
            return Err(fail_hint(
                ErrorKind::LocalIo,
                format!(
                    "nothing is deleted: it would be {} things, and {most} are allowed",
                    self.deleted + doomed.len() as u64
                ),
                "look at what it is with -n, and give a larger --max-delete",
            ));
        }
        let mut failed = None;
        for doomed in doomed {
            if !sync.asked.dry_run
                && let Err(error) = extraneous.delete(&doomed)
            {
                let failure = local_io("delete", &printable(&doomed.path), error);
                failed.get_or_insert(failure);
                continue;
            }
            self.deleted += 1;
            self.changes.push((Change::Deleted, doomed.path));
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Whether nobody else has written to a file since then. Of one with several names another one may have been given its time.
fn has_not_changed(before: &Stat, now: &Stat) -> bool {
    let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
    before.st_nlink > 1 || time(before) == time(now)
}
