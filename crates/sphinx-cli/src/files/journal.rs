//! How far a file that is not complete has safely come, and the state of its digest there.
//!
//! Two slots are written in turn, each with a checksum: one that is torn leaves the other. Before a slot
//! says that data is there, the data has been forced to stable storage; a thread does that beside the transfer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::fs::fsync;
use rustix::io::Errno;

use super::digest::{CHECKPOINT_BYTES_MAX, Checkpoint};
use super::source::{SOURCE_ID_BYTES, Seal, Sealed, SourceId};

const MAGIC: &[u8; 8] = b"SPHXJNL\x01";
pub(super) const SLOT_BYTES: usize = 2048;
const SLOTS: u64 = 2;
pub(super) const JOURNAL_BYTES: usize = SLOT_BYTES * SLOTS as usize;
const CHECKSUM_BYTES: usize = 32;
const FIXED_BYTES: usize = MAGIC.len() + 8 + 8 + SOURCE_ID_BYTES + 8 + 32 + 2 + CHECKSUM_BYTES;

const _: () = assert!(FIXED_BYTES + CHECKPOINT_BYTES_MAX <= SLOT_BYTES);

/// Which file it is that is kept in part. A journal about another file is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// Size of the whole file, in bytes.
    pub(super) size: u64,
    pub(super) source: SourceId,
    /// The part's inode: a copy of a journal beside a copy of a part proves nothing.
    pub(super) inode: u64,
}

/// What a slot says. `number` tells which of two is newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u64,
    pub(super) subject: Subject,
    pub(super) sealed: Sealed,
}

impl Slot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let checkpoint = self.sealed.checkpoint.encode();
        let length = u16::try_from(checkpoint.len()).expect("checkpoints are short");
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.subject.size.to_be_bytes());
        bytes.extend_from_slice(&SourceId::bytes(Some(self.subject.source)));
        bytes.extend_from_slice(&self.subject.inode.to_be_bytes());
        bytes.extend_from_slice(&self.sealed.seal.0);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&checkpoint);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes.resize(SLOT_BYTES, 0);
        bytes
    }

    /// `None` if the slot is torn, empty or impossible.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (number, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (inode, rest) = rest.split_first_chunk()?;
        let (seal, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (checkpoint, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        let (checksum, rest) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
        let summed = &bytes[..bytes.len() - rest.len() - CHECKSUM_BYTES];
        let slot = Self {
            number: u64::from_be_bytes(*number),
            subject: Subject {
                size: u64::from_be_bytes(*size),
                source: SourceId::from_bytes(*source)?,
                inode: u64::from_be_bytes(*inode),
            },
            sealed: Sealed {
                checkpoint: Checkpoint::decode(checkpoint)?,
                seal: Seal(*seal),
            },
        };
        let is_whole = blake3::hash(summed) == *checksum;
        (is_whole && slot.sealed.checkpoint.offset() <= slot.subject.size).then_some(slot)
    }

    /// The newest valid slot of a journal.
    pub(super) fn newest(journal: &[u8]) -> Option<Self> {
        let slots = journal.chunks(SLOT_BYTES).take(SLOTS as usize);
        slots
            .filter_map(Self::decode)
            .max_by_key(|slot| slot.number)
    }
}

/// Reads what there is of a journal.
pub(super) fn read(journal: &File) -> Vec<u8> {
    let mut bytes = vec![0; JOURNAL_BYTES];
    let mut end = 0;
    while end < bytes.len() {
        match journal.read_at(&mut bytes[end..], end as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => end += n,
        }
    }
    bytes.truncate(end);
    bytes
}

/// Forgets what a journal said, and makes sure that there is room on the disk for what it will say.
pub(super) fn clear(journal: &File) -> io::Result<()> {
    let vouches = Slot::newest(&read(journal)).is_some();
    journal.set_len(0)?;
    journal.write_all_at(&[0; JOURNAL_BYTES], 0)?;
    match vouches {
        // Before anything else is written to the part: after a crash of the machine it would be vouched for.
        true => journal.sync_data(),
        false => Ok(()),
    }
}

/// Writes a journal as the file grows.
pub(super) struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What the thread will work on; `None` once it runs.
    files: Option<Files>,
}

pub(super) struct Files {
    pub(super) part: File,
    pub(super) journal: File,
    pub(super) directory: Arc<OwnedFd>,
    pub(super) subject: Subject,
    /// The next slot's number.
    pub(super) number: u64,
    /// Whether the names of part and journal are in stable storage.
    pub(super) named: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest checkpoint that has not been written; older ones are of no interest.
    next: Option<Sealed>,
    ended: bool,
    /// Whether the journal holds a checkpoint.
    written: bool,
    failed: Option<io::Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    /// `written`: whether the journal holds a checkpoint already.
    pub(super) fn new(files: Files, written: bool) -> Self {
        let shared = Arc::new(Shared::default());
        shared.lock().written = written;
        Self {
            shared,
            thread: None,
            files: Some(files),
        }
    }

    /// Everything before the checkpoint has been written to the part; it will be said when it is safe.
    pub(super) fn note(&mut self, sealed: Sealed) {
        self.shared.lock().next = Some(sealed);
        self.shared.changed.notify_all();
        let Some(files) = self.files.take() else {
            return;
        };
        let shared = self.shared.clone();
        let started = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || run(files, &shared));
        // Without the thread there is no journal, and the file comes all the same.
        self.thread = started.ok();
    }

    /// Takes back the checkpoints that the journal has recorded so far.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        if let Some(files) = &self.files {
            clear(&files.journal)?;
            self.shared.lock().written = false;
        }
        Ok(())
    }

    /// Writes the checkpoint that waits, if any; returns whether the journal holds one.
    pub(super) fn finish(&mut self) -> bool {
        self.stop();
        self.shared.lock().written
    }

    /// Ends without writing what is left.
    ///
    /// # Errors
    /// Data could not be forced to stable storage.
    pub(super) fn abandon(&mut self) -> io::Result<()> {
        self.shared.lock().next = None;
        self.stop();
        match self.shared.lock().failed.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn stop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there leaves what was written before.
            let _ = thread.join();
        }
    }
}

fn run(mut files: Files, shared: &Shared) {
    loop {
        let state = shared.lock();
        let waited =
            (shared.changed).wait_while(state, |state| state.next.is_none() && !state.ended);
        let Some(sealed) = waited.unwrap_or_else(PoisonError::into_inner).next.take() else {
            return;
        };
        let written = files.write(sealed);
        let mut state = shared.lock();
        match written {
            Ok(()) => state.written = true,
            Err(error) => {
                state.failed = Some(error);
                return;
            }
        }
    }
}

impl Files {
    fn write(&mut self, sealed: Sealed) -> io::Result<()> {
        self.part.sync_data()?;
        let slot = Slot {
            number: self.number,
            subject: self.subject,
            sealed,
        };
        let place = self.number % SLOTS * SLOT_BYTES as u64;
        self.journal.write_all_at(&slot.encode(), place)?;
        self.journal.sync_data()?;
        if !self.named {
            // Both names may be new. Some file systems (AFS, shared folders of virtual machines) cannot force directories, and
            // a file that is whole must not fail for that: the worst is that a crash of the machine costs the part.
            match fsync(&self.directory) {
                Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
            self.named = true;
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}
