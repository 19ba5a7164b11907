//! Files on their way to their names.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::journal::{self, Files, Journal, Slot, Subject};
use super::leftovers::{create_private, is_taken, lock, lock_file, open_plain, partial_names};
use super::source::{Sealed, SourceId};

/// A file of so many bytes is forced to stable storage before it gets its name: for one that large it costs little.
pub(super) const FORCED_BYTES_MIN: u64 = 4 << 20;

/// A file under a temporary name; removed when dropped before it has got its own, unless it is kept in part.
pub(super) struct Temporary {
    directory: Arc<OwnedFd>,
    name: Vec<u8>,
    file: File,
    partial: Option<Box<Partial>>,
    /// Whether its size was set without writing to its end.
    stretched: bool,
    named: bool,
}

/// State of a file that is kept if the transfer breaks off.
struct Partial {
    journal_name: Vec<u8>,
    journal: Journal,
    /// Held for as long as the part is written to.
    _locked: File,
    /// The checkpoint of the part that was there, until the sender goes on from it or begins anew.
    there: Option<Sealed>,
    /// Whether old data may lie where nothing has been written yet.
    stale: bool,
    /// Whether the part is to be removed instead of kept.
    discarded: bool,
}

impl Temporary {
    /// A temporary file that is not kept if the transfer breaks off.
    pub(super) fn create(directory: Arc<OwnedFd>, name: Vec<u8>) -> Result<Self, Errno> {
        let file = create_private(&directory, &name)?;
        Ok(Self {
            directory,
            name,
            file,
            partial: None,
            stretched: false,
            named: false,
        })
    }

    /// One that another transfer of the same source can go on with, if this one does not complete it; with what there
    /// is of it. Nothing if somebody else is at it, or where it is impossible.
    pub(super) fn find_or_create(
        directory: &Arc<OwnedFd>,
        name: &[u8],
        size: u64,
        source: SourceId,
    ) -> Option<Self> {
        let (part_name, journal_name) = partial_names(name);
        let journal = own_file(directory, &journal_name)?;
        let locked = lock(&journal);
        if locked.is_err() {
            // If nobody holds the lock, the file system has no locks: then no parts are kept, and an empty journal is removed.
            if !is_taken(locked) && Slot::newest(&journal::read(&journal)).is_none() {
                let _ = fs::unlinkat(directory, journal_name, AtFlags::empty());
            }
            return None;
        }
        // The other one may have completed the file between the two calls.
        if journal.metadata().ok()?.nlink() == 0 {
            return None;
        }
        let locked = journal.try_clone().ok()?;
        let names = (part_name, journal_name);
        let found = Self::adopt(directory, &names, journal, size, source);
        if found.is_none() && Slot::newest(&journal::read(&locked)).is_none() {
            // Nothing was begun that could be gone on with: part and journal are removed.
            if own_file(directory, &names.0).is_some() {
                let _ = fs::unlinkat(directory, names.0, AtFlags::empty());
            }
            let _ = fs::unlinkat(directory, names.1, AtFlags::empty());
        }
        found
    }

    /// Opens the part that belongs to a journal, which is locked.
    fn adopt(
        directory: &Arc<OwnedFd>,
        (part_name, journal_name): &(Vec<u8>, Vec<u8>),
        journal: File,
        size: u64,
        source: SourceId,
    ) -> Option<Self> {
        let part = own_file(directory, part_name)?;
        let subject = Subject {
            size,
            source,
            inode: part.metadata().ok()?.ino(),
        };
        let there = Slot::newest(&journal::read(&journal)).filter(|slot| {
            let end = slot.sealed.checkpoint.offset();
            slot.subject == subject && part.metadata().is_ok_and(|part| part.len() >= end)
        });
        let end = (there.as_ref()).map_or(0, |slot| slot.sealed.checkpoint.offset());
        // Data behind the last checkpoint may not have reached the disk, and a hole may have to be there.
        part.set_len(end).ok()?;
        if there.is_none() {
            journal::clear(&journal).ok()?;
        }
        let locked = journal.try_clone().ok()?;
        let files = Files {
            part: part.try_clone().ok()?,
            journal,
            directory: directory.clone(),
            subject,
            number: there.as_ref().map_or(0, |slot| slot.number.wrapping_add(1)),
            named: false,
        };
        Some(Self {
            directory: directory.clone(),
            name: part_name.clone(),
            file: part,
            partial: Some(Box::new(Partial {
                journal_name: journal_name.clone(),
                journal: Journal::new(files, there.is_some()),
                _locked: locked,
                stale: there.is_some(),
                there: there.map(|slot| slot.sealed),
                discarded: false,
            })),
            stretched: false,
            named: false,
        })
    }

    /// Writes at any place; what is never written becomes a hole, once
    /// [`set_size`](Self::set_size) has made one at the end real.
    pub(super) fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(partial) = &mut self.partial
            && partial.there.is_some()
        {
            let mut there = vec![0; data.len()];
            if self.file.read_exact_at(&mut there, offset).is_ok() && there == data {
                return Ok(());
            }
            // The part is not what the sender says it has sent before: from here on it is written anew.
            partial.there = None;
            partial.journal.forget()?;
        }
        self.file.write_all_at(data, offset)
    }

    /// Reads back what has been written.
    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    pub(super) fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.stretched = true;
        self.file.set_len(bytes)
    }

    /// Takes the checkpoint of the part that was there, to go on from it.
    pub(super) fn take_there(&mut self) -> Option<Sealed> {
        let partial = self.partial.as_mut()?;
        let there = partial.there.take()?;
        partial.stale = false;
        Some(there)
    }

    /// The part that was there is not used beyond its first `end` bytes: the rest is cut off.
    pub(super) fn forget_there(&mut self, end: u64) -> io::Result<()> {
        if let Some(partial) = &mut self.partial
            && std::mem::take(&mut partial.stale)
        {
            partial.there = None;
            partial.journal.forget()?;
            self.file.set_len(end)?;
        }
        Ok(())
    }

    /// What has been written before the checkpoint is worth keeping.
    pub(super) fn note(&mut self, sealed: Sealed) {
        if let Some(partial) = &mut self.partial {
            partial.journal.note(sealed);
        }
    }

    /// Marks the part: nothing of it is kept.
    pub(super) fn discard(&mut self) {
        if let Some(partial) = &mut self.partial {
            partial.discarded = true;
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Forces the data to stable storage where the file would else pass for a complete one after a crash of the machine:
    /// by then its name, its size and its time may have been stored, and what it is known by is size and time. The size
    /// of a small file that is written as it comes is stored behind its data.
    fn force(&mut self) -> io::Result<()> {
        if let Some(partial) = &mut self.partial {
            // The thread of the journal has forced most of the data to the disk already.
            partial.journal.abandon()?;
        } else if !self.stretched && self.file.metadata()?.len() < FORCED_BYTES_MIN {
            return Ok(());
        }
        self.file.sync_data()
    }

    /// Gives it its own name, by a function that takes directory and temporary name. If there is something of that name which
    /// stays, nothing of this is kept: what has come is all there is of it, and no transfer would go on with that.
    pub(super) fn rename(
        mut self,
        rename: impl FnOnce(&OwnedFd, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.force()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let renamed = rename(&self.directory, &self.name);
        if renamed == Err(Errno::EXIST) {
            self.discard();
        }
        renamed?;
        self.named = true;
        if let Some(partial) = &self.partial {
            partial.remove_journal(&self.directory);
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.named {
            return;
        }
        if let Some(partial) = &mut self.partial {
            if partial.journal.finish() && !partial.discarded {
                return;
            }
            partial.remove_journal(&self.directory);
        }
        // Nothing better can be done about a temporary that cannot be removed.
        let _ = fs::unlinkat(&self.directory, self.name.as_slice(), AtFlags::empty());
    }
}

impl Partial {
    fn remove_journal(&self, directory: &OwnedFd) {
        // Best effort: a journal that stays names the inode of its part, and says nothing about other files.
        let _ = fs::unlinkat(directory, self.journal_name.as_slice(), AtFlags::empty());
    }
}

/// What there is in a directory of a file of this source, unless somebody is at it.
pub(super) fn look_for_part(
    directory: &OwnedFd,
    name: &[u8],
    size: u64,
    source: SourceId,
) -> Option<Sealed> {
    let (part_name, journal_name) = partial_names(name);
    let part = fs::statat(directory, part_name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(part.st_mode) != FileType::RegularFile {
        return None;
    }
    let journal = open_plain(directory, &journal_name).ok()?;
    if !lock_file(&journal) {
        return None;
    }
    let slot = Slot::newest(&journal::read(&journal))?;
    let subject = Subject {
        size,
        source,
        inode: part.st_ino,
    };
    let end = i64::try_from(slot.sealed.checkpoint.offset()).ok()?;
    (slot.subject == subject && part.st_size >= end).then_some(slot.sealed)
}

/// Opens or creates a file that is this user's alone. What somebody else has put there, or is known by another name too, is
/// not touched.
fn own_file(directory: &OwnedFd, name: &[u8]) -> Option<File> {
    match create_private(directory, name) {
        Ok(file) => return Some(file),
        Err(Errno::EXIST) => {}
        Err(_) => return None,
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(directory, name, flags, Mode::empty()).ok()?;
    let stat = fs::fstat(&file).ok()?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_nlink == 1
        && stat.st_uid == geteuid().as_raw();
    is_own.then(|| File::from(file))
}
