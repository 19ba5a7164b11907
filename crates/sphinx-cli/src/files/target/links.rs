//! Symbolic links, which lead nowhere but into what is received.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::{MADE_AHEAD_MAX, Target};
use crate::failure::fail;
use crate::files::descent::{Identity, Wanderer};
use crate::files::leftovers::is_reserved;
use crate::files::output::Refused;
use crate::files::paths::{Name, Walker, link_target};
use crate::files::wire::Attributes;
use sphinx_transport::ErrorKind;

impl Target {
    /// Makes a symbolic link; one with the same target is as good.
    pub(in crate::files) fn make_link(
        &mut self,
        name: &Name,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), Refused> {
        self.check_name(name)?;
        self.check_expected(name, true)?;
        self.check_included(name, false)?;
        if self.output.sync.is_some() && self.has_link(name, target, attributes)? {
            return Ok(());
        }
        let parent = self.here();
        self.check_open(&parent, name)?;
        if self.closed && self.depth() > 0 {
            return match is_link_to(&parent, name, target) {
                true => Ok(()),
                false => Err(self.exists(name)),
            };
        }
        if self.output.sync.is_none() {
            self.judge_link(name, target)?;
        }
        let made = if self.output.rules.overwrite {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            if let Ok(there) = fs::statat(&parent, name.as_bytes(), flags) {
                self.check_replaceable(name, FileType::from_raw_mode(there.st_mode))?;
            }
            let temporary = self.temporary_name(name)?;
            fs::symlinkat(target, &parent, temporary.as_slice())
                .and_then(|()| {
                    fs::renameat(&parent, temporary.as_slice(), &parent, name.as_bytes())
                })
                .inspect_err(|_| {
                    // A failure to clean up is not reported: the one above is.
                    let _ = fs::unlinkat(&parent, temporary.as_slice(), AtFlags::empty());
                })
        } else {
            fs::symlinkat(target, &parent, name.as_bytes())
        };
        match made {
            Ok(()) => {}
            Err(Errno::EXIST) if is_link_to(&parent, name, target) => return Ok(()),
            Err(error) => return Err(self.refused("create", name, error)),
        }
        self.describe_link(&parent, name, attributes);
        self.note_placed(name);
        Ok(())
    }

    fn judge_link(&mut self, name: &Name, target: &[u8]) -> Result<(), Refused> {
        let mut walker = DirectoryMaker {
            wanderer: Wanderer::new(self.here()),
            made: &mut self.made_ahead,
        };
        link_target(self.descent.depth(), target, &mut walker).map_err(|error| {
            let shown = self.shown(name);
            Refused::Entry(fail(
                ErrorKind::LocalIo,
                format!("the link {shown} is refused: {error}"),
            ))
        })
    }
}

/// Follows a link's target, and makes the directories that it goes through if they are still to come.
struct DirectoryMaker<'a> {
    wanderer: Wanderer,
    made: &'a mut BTreeSet<Identity>,
}

impl DirectoryMaker<'_> {
    fn make(&mut self, name: &[u8]) -> Result<(), Errno> {
        if self.made.len() >= MADE_AHEAD_MAX || is_reserved(name) {
            return Err(Errno::NOENT);
        }
        fs::mkdirat(self.wanderer.here()?, name, Mode::RWXU)?;
        self.wanderer.enter(name)?;
        self.made.insert(Identity::of(self.wanderer.here()?)?);
        Ok(())
    }
}

impl Walker for DirectoryMaker<'_> {
    fn up(&mut self) {
        self.wanderer.up();
    }

    fn enter(&mut self, name: &[u8]) -> bool {
        match self.wanderer.enter(name) {
            Err(Errno::NOENT) => self.make(name).is_ok(),
            entered => entered.is_ok(),
        }
    }
}

pub(super) fn is_link_to(directory: &OwnedFd, name: &Name, target: &[u8]) -> bool {
    fs::readlinkat(directory, name.as_bytes(), Vec::new())
        .is_ok_and(|there| there.as_bytes() == target)
}
