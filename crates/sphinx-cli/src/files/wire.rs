//! The bytes of the protocol: records from sender to receiver, replies back. [`Reader`] reads them.
//!
//! Numbers are big-endian.
//!
//! [`Reader`]: super::reader::Reader

use super::chunks::Chunks;
use super::offers::Offer;
use super::owners::Owner;
use super::paths::Name;
use super::source::{Seal, Sealed, SourceId};
use super::xattrs::Xattrs;

/// Opens the forward stream: name and version of the protocol.
pub(super) const MAGIC: &[u8; 8] = b"SPHXFIL\x06";

pub(super) const DIRECTORY: u8 = 0x01;
pub(super) const FILE: u8 = 0x02;
pub(super) const SYMLINK: u8 = 0x03;
pub(super) const DIRECTORY_END: u8 = 0x04;
pub(super) const END: u8 = 0x05;
pub(super) const STREAM: u8 = 0x06;
pub(super) const SKIPPED: u8 = 0x07;
pub(super) const OFFER: u8 = 0x08;
pub(super) const ASK: u8 = 0x09;
pub(super) const DELETE: u8 = 0x0a;
pub(super) const OWNER: u8 = 0x0b;
pub(super) const XATTRS: u8 = 0x0c;
pub(super) const HARD_LINK: u8 = 0x0d;
pub(super) const KEPT: u8 = 0x0e;
pub(super) const DATA: u8 = 0x10;
pub(super) const HOLE: u8 = 0x11;
pub(super) const FILE_END: u8 = 0x12;
pub(super) const FILE_ABORT: u8 = 0x13;
pub(super) const CHECKPOINT: u8 = 0x14;
pub(super) const REUSE: u8 = 0x15;
pub(super) const SAME: u8 = 0x16;
pub(super) const TRIAL: u8 = 0x18;
pub(super) const COPY: u8 = 0x19;

pub(super) const REPLY_OK: u8 = 0x01;
pub(super) const REPLY_FAILED: u8 = 0x02;
pub(super) const REPLY_READY: u8 = 0x03;
pub(super) const REPLY_SKIPPED: u8 = 0x04;
pub(super) const REPLY_PART: u8 = 0x05;
pub(super) const REPLY_PRESENT: u8 = 0x06;
pub(super) const REPLY_ANSWERED: u8 = 0x07;
pub(super) const REPLY_CHUNKS: u8 = 0x08;
pub(super) const REPLY_DIGEST: u8 = 0x09;
pub(super) const REPLY_CHANGED: u8 = 0x0a;

/// In FAILED, beside the codes that sessions are closed with: more was asked for than is allowed.
pub(super) const VERDICT_REFUSED: u8 = 11;

/// Longest message or reason.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024;
pub(super) const NANOSECONDS_MAX: u32 = 999_999_999;
/// Announced as the number of bytes when nobody knows it.
pub(super) const BYTES_UNKNOWN: u64 = u64::MAX;

/// Permissions and modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Permission bits, 0o7777 at most.
    pub(crate) mode: u16,
    pub(crate) mtime_s: i64,
    pub(crate) mtime_ns: u32,
}

/// What comes between the files' data. Names are those of objects in the directory that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Opens a directory; `mode` is what it will have.
    Directory {
        name: Name,
        mode: u16,
    },
    /// Closes the directory opened last.
    DirectoryEnd {
        attributes: Attributes,
    },
    File {
        name: Name,
        attributes: Attributes,
        size: u64,
        /// The file's id, if a part of it is worth keeping.
        source: Option<SourceId>,
    },
    /// A file whose size shows only at its end.
    Stream {
        name: Name,
        attributes: Attributes,
    },
    Symlink {
        name: Name,
        attributes: Attributes,
        target: Vec<u8>,
    },
    /// Another name of a file that has come; where that is, below the output directory.
    HardLink {
        name: Name,
        path: Vec<u8>,
    },
    /// Something that the sender leaves out.
    Skipped {
        name: Name,
        reason: String,
    },
    /// The owner of everything that comes from here on, and of every directory that ends.
    Owner(Owner),
    /// Extended attributes of the next file, or of the directory that ends next if that is before.
    Xattrs(Xattrs),
    /// A file that will come, wherever it is: the receiver may have it.
    Offer(Offer),
    /// The receiver says what it has of what was offered up to here.
    Ask,
    /// Files in the directory that is open, offered one after the other, which are as the receiver has said.
    Kept {
        /// The number of the offer of the first of these files.
        first: u64,
        count: u32,
    },
    /// Everything has been read: what did not come may go, where that was asked for.
    Delete,
    End {
        entries: u64,
        bytes: u64,
    },
}

impl Entry {
    /// The name of the object that comes, if the entry brings one.
    pub(super) fn name(&self) -> Option<&Name> {
        match self {
            Self::Directory { name, .. }
            | Self::File { name, .. }
            | Self::Stream { name, .. }
            | Self::Symlink { name, .. }
            | Self::HardLink { name, .. }
            | Self::Skipped { name, .. } => Some(name),
            Self::DirectoryEnd { .. }
            | Self::Owner(_)
            | Self::Xattrs(_)
            | Self::Offer(_)
            | Self::Ask
            | Self::Kept { .. }
            | Self::Delete
            | Self::End { .. } => None,
        }
    }

    /// Whether it is one of the entries that both ends number; those of [`Kept`](Self::Kept) are several.
    pub(super) fn counts(&self) -> bool {
        !matches!(
            self,
            Self::DirectoryEnd { .. }
                | Self::Owner(_)
                | Self::Xattrs(_)
                | Self::Offer(_)
                | Self::Ask
                | Self::Kept { .. }
                | Self::Delete
                | Self::End { .. }
        )
    }
}

/// What comes inside a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data {
        bytes: u64,
    },
    Hole {
        bytes: u64,
    },
    End {
        digest: [u8; 32],
    },
    /// What has come of the file so far may be kept; with this seal it can be offered to the sender again.
    Checkpoint {
        seal: Seal,
    },
    /// Everything up to here is what the receiver has said to have.
    Reuse {
        until: u64,
    },
    /// The rest does not come: the receiver has said to have the whole file.
    Same,
    /// The file would be sent, if this were no trial. The last piece.
    Trial,
    /// These bytes are copied from the receiver's version of the file.
    Copy {
        from: u64,
        bytes: u64,
    },
    /// The sender cannot give the rest: the file is left out.
    Abort {
        reason: String,
    },
}

/// Announced totals, for progress and for the question whether to receive at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) entries: u64,
    /// `None` if the size is not known.
    pub(crate) bytes: Option<u64>,
    /// What the sender calls all of it.
    pub(crate) source: Option<SourceId>,
}

/// What both ends count, from the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Directories, files, streams and links, those left out included.
    pub(crate) entries: u64,
    /// Sizes of the files that came to their end.
    pub(crate) bytes: u64,
}

/// How a transfer went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) totals: Totals,
    /// Files in place.
    pub(crate) files: u64,
    /// Bytes of the files in place.
    pub(crate) bytes: u64,
    /// Those of them that were there before, with the same contents.
    pub(crate) files_present: u64,
    /// Entries left out at either end.
    pub(crate) skipped: u64,
}

/// Changes at the receiver that are reported beside the files that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A directory or a link was made.
    Made,
    Deleted,
}

/// What the receiver says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The transfer is welcome.
    Ready,
    /// The receiver leaves out the entry of this number (the first is 1).
    Skipped {
        entry: u64,
        path: Vec<u8>,
        reason: String,
    },
    /// There is a part of the offer of this number (the first is 1).
    Part { offer: u64, sealed: Sealed },
    /// There are files like these offers, one after the other, by their sizes and times.
    Present { first: u64, count: u32 },
    /// The chunks of another version of the offer of this number.
    Chunks { offer: u64, chunks: Chunks },
    /// BLAKE3 of a file of the size of the offer of this number.
    Digest { offer: u64, digest: [u8; 32] },
    /// Something that was made or deleted at the receiver.
    Changed { change: Change, path: Vec<u8> },
    /// Everything has been said about the offers up to this one.
    Answered { offer: u64 },
    /// The last word.
    Done(Counts),
    /// The last word: it did not work.
    Failed { code: u8, message: String },
}

pub(super) fn put_preamble(out: &mut Vec<u8>, announced: Announced) {
    out.extend_from_slice(MAGIC);
    put_u64(out, announced.entries);
    put_u64(out, announced.bytes.unwrap_or(BYTES_UNKNOWN));
    out.extend_from_slice(&SourceId::bytes(announced.source));
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Directory { name, mode } => {
            out.push(DIRECTORY);
            put_bytes(out, name.as_bytes());
            out.extend_from_slice(&mode.to_be_bytes());
        }
        Entry::DirectoryEnd { attributes } => {
            out.push(DIRECTORY_END);
            put_attributes(out, *attributes);
        }
        Entry::File {
            name,
            attributes,
            size,
            source,
        } => {
            out.push(FILE);
            put_bytes(out, name.as_bytes());
            put_attributes(out, *attributes);
            put_u64(out, *size);
            out.extend_from_slice(&SourceId::bytes(*source));
        }
        Entry::Stream { name, attributes } => {
            out.push(STREAM);
            put_bytes(out, name.as_bytes());
            put_attributes(out, *attributes);
        }
        Entry::Symlink {
            name,
            attributes,
            target,
        } => {
            out.push(SYMLINK);
            put_bytes(out, name.as_bytes());
            put_attributes(out, *attributes);
            put_bytes(out, target);
        }
        Entry::HardLink { name, path } => {
            out.push(HARD_LINK);
            put_bytes(out, name.as_bytes());
            put_bytes(out, path);
        }
        Entry::Owner(owner) => {
            out.push(OWNER);
            out.extend_from_slice(&owner.uid.to_be_bytes());
            out.extend_from_slice(&owner.gid.to_be_bytes());
            put_bytes(out, &owner.user);
            put_bytes(out, &owner.group);
        }
        Entry::Xattrs(xattrs) => {
            out.push(XATTRS);
            out.push(xattrs.len() as u8);
            for (name, value) in xattrs.iter() {
                put_bytes(out, name);
                put_bytes(out, value);
            }
        }
        Entry::Skipped { name, reason } => {
            out.push(SKIPPED);
            put_bytes(out, name.as_bytes());
            put_message(out, reason);
        }
        Entry::Offer(offer) => {
            out.push(OFFER);
            offer.put(out);
        }
        Entry::Ask => out.push(ASK),
        Entry::Kept { first, count } => {
            out.push(KEPT);
            put_u64(out, *first);
            out.extend_from_slice(&count.to_be_bytes());
        }
        Entry::Delete => out.push(DELETE),
        Entry::End { entries, bytes } => {
            out.push(END);
            put_u64(out, *entries);
            put_u64(out, *bytes);
        }
    }
}

/// A piece; the bytes of `Data` follow it.
pub(super) fn put_piece(out: &mut Vec<u8>, piece: &Piece) {
    match piece {
        Piece::Data { bytes } => {
            out.push(DATA);
            put_u64(out, *bytes);
        }
        Piece::Hole { bytes } => {
            out.push(HOLE);
            put_u64(out, *bytes);
        }
        Piece::End { digest } => {
            out.push(FILE_END);
            out.extend_from_slice(digest);
        }
        Piece::Checkpoint { seal } => {
            out.push(CHECKPOINT);
            out.extend_from_slice(&seal.0);
        }
        Piece::Reuse { until } => {
            out.push(REUSE);
            put_u64(out, *until);
        }
        Piece::Same => out.push(SAME),
        Piece::Trial => out.push(TRIAL),
        Piece::Copy { from, bytes } => {
            out.push(COPY);
            put_u64(out, *from);
            put_u64(out, *bytes);
        }
        Piece::Abort { reason } => {
            out.push(FILE_ABORT);
            put_message(out, reason);
        }
    }
}

pub(super) fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Ready => out.push(REPLY_READY),
        Reply::Skipped {
            entry,
            path,
            reason,
        } => {
            out.push(REPLY_SKIPPED);
            put_u64(out, *entry);
            put_bytes(out, path);
            put_message(out, reason);
        }
        Reply::Part { offer, sealed } => {
            out.push(REPLY_PART);
            put_u64(out, *offer);
            put_bytes(out, &sealed.checkpoint.encode());
            out.extend_from_slice(&sealed.seal.0);
        }
        Reply::Present { first, count } => {
            out.push(REPLY_PRESENT);
            put_u64(out, *first);
            out.extend_from_slice(&count.to_be_bytes());
        }
        Reply::Chunks { offer, chunks } => {
            out.push(REPLY_CHUNKS);
            put_u64(out, *offer);
            out.push(chunks.mean_log2);
            // The count fits: there are far fewer than 2^32 chunks.
            out.extend_from_slice(&(chunks.list.len() as u32).to_be_bytes());
            for chunk in &chunks.list {
                out.extend_from_slice(&chunk.bytes.to_be_bytes());
                out.extend_from_slice(&chunk.hash);
            }
        }
        Reply::Digest { offer, digest } => {
            out.push(REPLY_DIGEST);
            put_u64(out, *offer);
            out.extend_from_slice(digest);
        }
        Reply::Changed { change, path } => {
            out.push(REPLY_CHANGED);
            out.push(match change {
                Change::Made => 1,
                Change::Deleted => 2,
            });
            put_bytes(out, path);
        }
        Reply::Answered { offer } => {
            out.push(REPLY_ANSWERED);
            put_u64(out, *offer);
        }
        Reply::Done(counts) => {
            out.push(REPLY_OK);
            put_u64(out, counts.totals.entries);
            put_u64(out, counts.totals.bytes);
            put_u64(out, counts.files);
            put_u64(out, counts.bytes);
            put_u64(out, counts.files_present);
            put_u64(out, counts.skipped);
        }
        Reply::Failed { code, message } => {
            out.push(REPLY_FAILED);
            out.push(*code);
            put_message(out, message);
        }
    }
}

/// Writes a message, cut off at its maximum length.
fn put_message(out: &mut Vec<u8>, message: &str) {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    put_bytes(out, &message.as_bytes()[..end]);
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Every byte string here is shorter than 2^16 by construction.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("paths and messages are bounded");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_attributes(out: &mut Vec<u8>, attributes: Attributes) {
    out.extend_from_slice(&attributes.mode.to_be_bytes());
    out.extend_from_slice(&attributes.mtime_s.to_be_bytes());
    out.extend_from_slice(&attributes.mtime_ns.to_be_bytes());
}
