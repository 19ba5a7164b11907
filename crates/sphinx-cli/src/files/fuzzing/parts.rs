//! What is kept of a file, under any journal.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sphinx_fuzz::Input;

use super::names;
use crate::files::digest::{Checkpoint, ContentDigest, LEAF_BYTES};
use crate::files::journal::{SLOT_BYTES, Slot, Subject};
use crate::files::leftovers::partial_names;
use crate::files::source::{Seal, Sealed, SourceId};
use crate::files::temporary::{Temporary, look_for_part};

/// Bytes of the part that is there before the transfer.
pub(super) const THERE_BYTES: u64 = 2 * LEAF_BYTES;

/// How far the file `a` has come, whose part is in the directory before the transfer.
pub(super) fn there() -> Slot {
    static CHECKPOINT: OnceLock<Checkpoint> = OnceLock::new();
    let checkpoint = CHECKPOINT.get_or_init(|| {
        let mut digest = ContentDigest::default();
        digest.data(&vec![0; THERE_BYTES as usize]);
        digest.checkpoint().expect("between two leaves")
    });
    Slot {
        number: 1,
        subject: Subject {
            size: THERE_BYTES + 1,
            source: known(),
            inode: 0,
        },
        sealed: Sealed {
            checkpoint: checkpoint.clone(),
            seal: Seal([0; 32]),
        },
    }
}

/// What the file `a` is called by its sender.
pub(super) fn known() -> SourceId {
    SourceId::from_bytes([7; 16]).expect("not all zeros")
}

/// A part of the file `a`, all zeros, with a journal in which the inode is set right if it can be read.
pub(super) fn put_part(directory: &Path, journal: &[u8]) -> std::io::Result<()> {
    let (part, journal_name) = partial_names(b"a");
    let part = fs::File::create(directory.join(OsStr::from_bytes(&part)))?;
    part.set_len(THERE_BYTES)?;
    let mut journal = journal.to_vec();
    if let Some(mut slot) = Slot::newest(&journal) {
        slot.subject.inode = part.metadata()?.ino();
        journal = slot.encode();
    }
    fs::write(directory.join(OsStr::from_bytes(&journal_name)), journal)
}

/// The journal of a part, forged or torn: whatever it says, what is found is what it says in one whole slot.
pub fn journal(data: &[u8]) {
    if let Some(slot) = Slot::newest(data) {
        assert!(slot.sealed.checkpoint.offset() <= slot.subject.size);
        assert_eq!(Slot::decode(&slot.encode()), Some(slot));
    }
    let input = &mut Input::new(data);
    let (kind, at, bit) = (input.byte(), input.number(2), input.byte());
    // One that has a right checksum, and the same with a wrong bit.
    let encoded = [
        &input.any().to_be_bytes()[..],
        &input.any().to_be_bytes(),
        &[0; 32],
    ];
    let checkpoint = Checkpoint::decode(&[&encoded.concat(), input.take(usize::MAX)].concat());
    let mut slot = there();
    slot.sealed.checkpoint = checkpoint.unwrap_or(slot.sealed.checkpoint);
    slot.subject.size = match kind & 1 {
        0 => u64::MAX,
        _ => THERE_BYTES + 1,
    };
    let mut bytes = slot.encode();
    let fits = slot.sealed.checkpoint.offset() <= slot.subject.size;
    assert_eq!(Slot::decode(&bytes), fits.then(|| slot.clone()));
    bytes[at as usize % SLOT_BYTES] ^= 1 << (bit & 7);
    // A bit that changes behind the checksum has no effect; any other makes the slot invalid.
    let read = Slot::decode(&bytes);
    assert!(read.is_none_or(|read| read == slot));

    let directory = tempfile::tempdir().expect("a temporary directory");
    let written = match kind & 6 {
        0 => data.to_vec(),
        2 => [&slot.encode(), data].concat(),
        4 => [data, &slot.encode()].concat(),
        _ => bytes,
    };
    put_part(directory.path(), &written).expect("a writable temporary directory");
    let opened = fs::File::open(directory.path()).expect("it is there");
    let opened = Arc::new(OwnedFd::from(opened));
    let found = look_for_part(&opened, b"a", slot.subject.size, known());
    if let Some(found) = &found {
        assert!(found.checkpoint.offset() <= THERE_BYTES);
    }
    let temporary = Temporary::find_or_create(&opened, b"a", slot.subject.size, known());
    let mut temporary = temporary.expect("nobody else is at it");
    assert_eq!(temporary.take_there(), found);
    drop(temporary);
    // A part that cannot be used is removed, with its journal.
    let left = if found.is_some() { 2 } else { 0 };
    assert_eq!(names(directory.path()).len(), left);
}
