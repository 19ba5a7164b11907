//! What things are given besides contents: permissions, times, and where a tree is synchronized owners and extended
//! attributes.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Gid, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::Target;
use crate::failure::{Failure, Outcome, fail_hint, protocol};
use crate::files::output::Refused;
use crate::files::owners::{Ids, Owner, Owners};
use crate::files::paths::Name;
use crate::files::wire::Attributes;
use crate::files::xattrs::Xattrs;
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// Attributes that the sender has told for what comes next.
#[derive(Default)]
pub(super) struct Likeness {
    owners: Owners,
    /// The owner; `None` if this end may not set owners, as it is not root.
    ids: Option<Ids>,
    xattrs: Xattrs,
    /// Paths that are in place without some attribute, and why, until the caller has taken them.
    complaints: Vec<(Vec<u8>, Failure)>,
}

impl Likeness {
    pub(super) fn has_no_xattrs(&self) -> bool {
        self.xattrs.is_empty()
    }

    /// Whether a file in a directory has the extended attributes that it is to have.
    pub(super) fn has_xattrs_of(&self, directory: &OwnedFd, name: &Name) -> bool {
        Xattrs::read_at(directory, name.as_bytes()).is_ok_and(|there| there == self.xattrs)
    }
}

impl Target {
    /// The owner of everything that comes from here on.
    pub(in crate::files) fn set_owner(&mut self, owner: &Owner) -> Outcome<()> {
        if !self.is_synchronized() {
            return Err(protocol("an owner where nothing is synchronized"));
        }
        if geteuid().is_root() {
            self.likeness.ids = Some(self.likeness.owners.ids(owner));
        }
        Ok(())
    }

    /// Extended attributes of the file or directory that is next to be complete.
    pub(in crate::files) fn set_xattrs(&mut self, xattrs: Xattrs) -> Outcome<()> {
        if !self.is_synchronized() {
            return Err(protocol(
                "extended attributes where nothing is synchronized",
            ));
        }
        self.likeness.xattrs = xattrs;
        Ok(())
    }

    /// Forgets extended attributes once what they belong to is complete.
    pub(in crate::files) fn forget_xattrs(&mut self) {
        self.likeness.xattrs = Xattrs::default();
    }

    /// What has been put in place without some attribute since the last call.
    pub(in crate::files) fn take_complaints(&mut self) -> Vec<(Vec<u8>, Failure)> {
        mem::take(&mut self.likeness.complaints)
    }

    /// Makes an open file or directory, which is at `path`, what it is to be.
    pub(super) fn apply(
        &mut self,
        path: &[u8],
        file: impl AsFd,
        attributes: Attributes,
    ) -> Result<(), Errno> {
        let owned = match self.likeness.ids {
            Some(Ids { uid, gid }) => {
                fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            }
            None => Ok(()),
        };
        let described = match self.is_synchronized() {
            true => self.likeness.xattrs.write(&file),
            false => Ok(()),
        };
        match (owned, described) {
            (Ok(()), Ok(())) => {}
            (Err(error), Ok(())) => self.complain(path, "owner", error),
            (Ok(()), Err(error)) => self.complain(path, "extended attributes", error),
            (Err(error), Err(_)) => {
                self.complain(path, "owner and its extended attributes", error);
            }
        }
        self.give_mode_and_times(file, attributes)
    }

    /// Notes that something is in place without some attribute, which not every file system keeps.
    fn complain(&mut self, path: &[u8], without: &str, error: Errno) {
        let why = std::io::Error::from(error);
        let shown = printable(path);
        let message = format!("{shown} is in place, but without its {without}: {why}");
        let hint = "the file system that it is on may keep none, or not these";
        let failure = fail_hint(ErrorKind::LocalIo, message, hint);
        self.likeness.complaints.push((path.to_vec(), failure));
    }

    /// Gives a file its mode and times; either one also where the other is refused.
    pub(super) fn give_mode_and_times(
        &self,
        file: impl AsFd,
        attributes: Attributes,
    ) -> Result<(), Errno> {
        let mode = fs::fchmod(&file, self.output.mode(attributes.mode));
        mode.and(fs::futimens(&file, &times(attributes)))
    }

    /// Makes the innermost directory, which has come to its end, what it is to be; false if it cannot be. Somebody else's
    /// may be written to and yet keep its attributes: what is in it has come all the same.
    pub(super) fn complete(
        &mut self,
        directory: &OwnedFd,
        attributes: Attributes,
    ) -> Outcome<bool> {
        let path = self.innermost();
        let applied = self.apply(&path, directory, attributes);
        self.settle_attributes(applied, directory, attributes)
    }

    /// What becomes of a directory that could not be given its attributes.
    pub(super) fn settle_attributes(
        &mut self,
        applied: Result<(), Errno>,
        directory: &OwnedFd,
        attributes: Attributes,
    ) -> Outcome<bool> {
        let Err(error) = applied else {
            return Ok(true);
        };
        if fs::fstat(directory).is_ok_and(|stat| self.is_like(&stat, attributes)) {
            return Ok(true);
        }
        let path = self.innermost();
        let shown = match self.path.is_empty() {
            true => self.output.shown.clone(),
            false => printable(&path),
        };
        let subject = format!("{shown}, which is in place");
        match Refused::system("give its attributes to", &subject, error) {
            Refused::Transfer(failure) => Err(failure),
            Refused::Entry(failure) => {
                let failure = match error {
                    Errno::PERM => failure.with_hint("only its owner and root may"),
                    _ => failure,
                };
                // Only the last complaint about each path is kept.
                let complaints = &mut self.likeness.complaints;
                complaints.retain(|(of, _)| *of != path);
                complaints.push((path, failure));
                Ok(false)
            }
        }
    }

    /// The path of the innermost directory, for people.
    fn innermost(&self) -> Vec<u8> {
        match self.path.is_empty() {
            true => self.own_path(),
            false => self.path.clone(),
        }
    }

    /// Takes its time from a file that may be replaced and is not what it passes for by its time, so that it will be; true if
    /// it did.
    pub(in crate::files) fn outdate(&self, name: &Name) -> bool {
        if !self.output.rules.overwrite {
            return false;
        }
        let times = Timestamps {
            last_access: special(fs::UTIME_OMIT),
            last_modification: special(fs::UTIME_NOW),
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        fs::utimensat(self.here(), name.as_bytes(), &times, flags).is_ok()
    }

    /// Whether a file has the permissions, the time and the owner that it is to have.
    pub(super) fn is_like(&self, stat: &Stat, attributes: Attributes) -> bool {
        stat.st_mode & 0o7777 == self.output.mode(attributes.mode).as_raw_mode()
            && has_time_of(stat, attributes)
            && (self.likeness.ids)
                .is_none_or(|ids| (ids.uid, ids.gid) == (stat.st_uid, stat.st_gid))
    }

    /// Gives a link its time and its owner.
    pub(super) fn describe_link(&mut self, parent: &OwnedFd, name: &Name, attributes: Attributes) {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if let Some(Ids { uid, gid }) = self.likeness.ids {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let owned = fs::chownat(parent, name.as_bytes(), Some(uid), Some(gid), flags);
            if let Err(error) = owned {
                self.complain(&self.path_of(name), "owner", error);
            }
        }
        // Best effort: some file systems keep no times for links.
        let _ = fs::utimensat(parent, name.as_bytes(), &times(attributes), flags);
    }
}

/// Whether what is there has the time of modification that it is to have.
fn has_time_of(stat: &Stat, attributes: Attributes) -> bool {
    stat.st_mtime == attributes.mtime_s
        && u32::try_from(stat.st_mtime_nsec) == Ok(attributes.mtime_ns)
}

/// Parts of a second that file systems count times in, in nanoseconds: FAT and old ext4, exFAT, UDF, NTFS and SMB, others.
const UNITS: [u32; 5] = [1_000_000_000, 10_000_000, 1_000, 100, 1];
/// What the kernel calls FAT, which keeps even seconds only.
const FAT: u16 = 0x4d44;

/// Whether what is there in a directory has the time of modification that it is to have, as finely as its file system keeps
/// times. How finely that is shows in what is there: it is a number of units, and nothing between.
pub(in crate::files) fn passes_by_time(
    directory: &OwnedFd,
    stat: &Stat,
    attributes: Attributes,
) -> bool {
    let Attributes {
        mtime_s, mtime_ns, ..
    } = attributes;
    let there = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let unit = UNITS.into_iter().find(|unit| there.is_multiple_of(*unit));
    let is_same_part = there == mtime_ns - mtime_ns % unit.unwrap_or(1);
    let is_on_fat =
        || fs::fstatfs(directory).is_ok_and(|found| found.f_type == fs::FsWord::from(FAT));
    let is_even = there == 0 && stat.st_mtime == mtime_s & !1;
    is_same_part && (stat.st_mtime == mtime_s || is_even && is_on_fat())
}

/// A time that the kernel knows, or lets be.
fn special(tv_nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec }
}

fn times(attributes: Attributes) -> Timestamps {
    Timestamps {
        last_access: special(fs::UTIME_NOW),
        last_modification: Timespec {
            tv_sec: attributes.mtime_s,
            tv_nsec: i64::from(attributes.mtime_ns),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn times_pass_as_finely_as_they_are_kept() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = fs::open(root.path(), flags, Mode::empty()).unwrap();
        let file = std::fs::File::create(root.path().join("f")).unwrap();
        let passes = |there: (u64, u32), wanted: (i64, u32)| {
            let there = SystemTime::UNIX_EPOCH + Duration::new(there.0, there.1);
            file.set_modified(there).unwrap();
            let attributes = Attributes {
                mode: 0,
                mtime_s: wanted.0,
                mtime_ns: wanted.1,
            };
            passes_by_time(&directory, &fs::fstat(&file).unwrap(), attributes)
        };
        for kept in [123_456_789, 123_456_700, 123_456_000, 120_000_000, 0] {
            assert!(passes((1000, kept), (1000, 123_456_789)), "{kept}");
            assert!(passes((1000, kept), (1000, kept)), "{kept}");
            assert!(!passes((1000, kept), (1001, 123_456_789)), "{kept}");
        }
        for other in [123_456_788, 123_456_600, 123_455_000, 110_000_000] {
            assert!(!passes((1000, other), (1000, 123_456_789)), "{other}");
        }
        // What is kept to the nanosecond passes for nothing else.
        assert!(!passes((1000, 123_456_789), (1000, 123_456_700)));
    }
}
