//! Files that have several names.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::Target;
use crate::failure::{fail_hint, protocol};
use crate::files::descent::{Identity, open_directory};
use crate::files::leftovers::is_reserved;
use crate::files::output::Refused;
use crate::files::paths::Name;
use crate::files::sync::Sync;
use crate::files::wire::Change;
use crate::text::printable;
use sphinx_transport::ErrorKind;

impl Target {
    /// Gives the file at `path`, which has come, one more name.
    pub(in crate::files) fn make_hard_link(
        &mut self,
        name: &Name,
        path: &[u8],
    ) -> Result<(), Refused> {
        if !self.is_synchronized() {
            let failure = protocol("another name of a file where nothing is synchronized");
            return Err(Refused::Transfer(failure));
        }
        self.check_name(name)?;
        self.check_expected(name, true)?;
        self.check_included(name, false)?;
        self.check_can_have_come(path)?;
        let first = self.find_file(path)?;
        let is_there = self.imagined == 0 && !self.output.missing;
        if is_there
            && !self.replaced.contains(path)
            && let Some((_, _, first)) = &first
        {
            let there = fs::statat(self.here(), name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
            let is_it = |there: Stat| Identity::of_stat(&there) == Identity::of_stat(first);
            if there.is_ok_and(is_it) {
                return Ok(());
            }
        }
        self.make_way(name)?;
        let change = (Change::Made, self.path_of(name));
        if self.is_trial() {
            self.changes.push(change);
            return Ok(());
        }
        let Some((directory, first, _)) = first else {
            let message = format!(
                "{} is left out: it is another name of {}, which is not there",
                self.shown(name),
                printable(path)
            );
            let hint = "the same command again sends it";
            return Err(Refused::Entry(fail_hint(ErrorKind::LocalIo, message, hint)));
        };
        let parent = self.here();
        let temporary = self.temporary_name(name)?;
        let flags = AtFlags::empty();
        fs::linkat(
            &directory,
            first.as_bytes(),
            &parent,
            temporary.as_slice(),
            flags,
        )
        .and_then(|()| fs::renameat(&parent, temporary.as_slice(), &parent, name.as_bytes()))
        .map_err(|error| {
            // A failure to clean up is not reported: the one before it is.
            let _ = fs::unlinkat(&parent, temporary.as_slice(), flags);
            self.refused("create", name, error)
        })?;
        self.changes.push(change);
        Ok(())
    }

    /// A file that was not asked for, beside what was or left out of it, gets no name in it: with that it could be given
    /// other permissions, and be read.
    fn check_can_have_come(&self, path: &[u8]) -> Result<(), Refused> {
        let is_left_out = |sync: &Arc<Sync>| {
            let end = path.iter().rposition(|byte| *byte == b'/');
            end.is_some_and(|end| sync.filter.leaves_out(&path[..end]))
                || sync.filter.excludes(path, false)
        };
        match self.output.expects(path) && !self.output.sync.as_ref().is_some_and(is_left_out) {
            true => Ok(()),
            false => Err(Refused::Transfer(protocol(
                "another name of a file that was not asked for",
            ))),
        }
    }

    /// A file would come under this name, in a trial. Its other names would have to come again.
    pub(in crate::files) fn would_come(&mut self, name: &Name) -> Result<(), Refused> {
        self.check_included(name, false)?;
        if self.imagined == 0 && !self.output.missing {
            let there = fs::statat(self.here(), name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|there| there.st_nlink > 1) {
                self.replaced.insert(self.path_of(name));
            }
        }
        self.make_way(name)
    }

    /// The file at a path below the output directory, if there is one: its directory, its name and what it is.
    fn find_file(&self, path: &[u8]) -> Result<Option<(Arc<OwnedFd>, Name, Stat)>, Refused> {
        let mut directory = self.output.root.clone();
        let mut components = path.split(|byte| *byte == b'/').peekable();
        while let Some(component) = components.next() {
            let name = Name::new(component)
                .ok()
                .filter(|name| !is_reserved(name.as_bytes()));
            let name = name.ok_or_else(|| {
                Refused::Transfer(protocol("a file cannot have a name that is told"))
            })?;
            if self.output.missing {
                return Ok(None);
            }
            let refused = |error| match error {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(None),
                error => Err(Refused::system("find", &printable(path), error)),
            };
            if components.peek().is_some() {
                match open_directory(&directory, name.as_bytes()) {
                    Ok(opened) => directory = Arc::new(opened),
                    Err(error) => return refused(error),
                }
                continue;
            }
            return match fs::statat(&directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                    Ok(is_file.then_some((directory, name, stat)))
                }
                Err(error) => refused(error),
            };
        }
        Ok(None)
    }
}
