//! The bytes of the protocol: records from sender to receiver, replies back. [`Reader`] reads them.
//!
//! Numbers are big-endian.
//!
//! [`Reader`]: super::reader::Reader

use super::paths::Name;

/// Opens the forward stream: name and version of the protocol.
pub(super) const MAGIC: &[u8; 8] = b"SPHXFIL\x02";

pub(super) const DIRECTORY: u8 = 0x01;
pub(super) const FILE: u8 = 0x02;
pub(super) const SYMLINK: u8 = 0x03;
pub(super) const DIRECTORY_END: u8 = 0x04;
pub(super) const END: u8 = 0x05;
pub(super) const STREAM: u8 = 0x06;
pub(super) const SKIPPED: u8 = 0x07;
pub(super) const DATA: u8 = 0x10;
pub(super) const HOLE: u8 = 0x11;
pub(super) const FILE_END: u8 = 0x12;
pub(super) const FILE_ABORT: u8 = 0x13;

pub(super) const REPLY_OK: u8 = 0x01;
pub(super) const REPLY_FAILED: u8 = 0x02;
pub(super) const REPLY_READY: u8 = 0x03;
pub(super) const REPLY_SKIPPED: u8 = 0x04;

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
    /// Something that the sender leaves out.
    Skipped {
        name: Name,
        reason: String,
    },
    End {
        entries: u64,
        bytes: u64,
    },
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
    /// The sender cannot give the rest: the file is left out.
    Abort {
        reason: String,
    },
}

/// Announced totals, for progress and for the question whether to receive at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) entries: u64,
    /// `None` if nobody knows.
    pub(crate) bytes: Option<u64>,
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
    /// Their sizes.
    pub(crate) bytes: u64,
    /// Those of them that were there before, with the same contents.
    pub(crate) files_present: u64,
    /// Entries left out at either end.
    pub(crate) skipped: u64,
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
    /// The last word.
    Done(Counts),
    /// The last word: it did not work.
    Failed { code: u8, message: String },
}

pub(super) fn put_preamble(out: &mut Vec<u8>, announced: Announced) {
    out.extend_from_slice(MAGIC);
    put_u64(out, announced.entries);
    put_u64(out, announced.bytes.unwrap_or(BYTES_UNKNOWN));
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
        } => {
            out.push(FILE);
            put_bytes(out, name.as_bytes());
            put_attributes(out, *attributes);
            put_u64(out, *size);
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
        Entry::Skipped { name, reason } => {
            out.push(SKIPPED);
            put_bytes(out, name.as_bytes());
            put_message(out, reason);
        }
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

/// As much of a message as may travel.
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
