//! The bytes of the protocol: records from sender to receiver, one verdict back.
//!
//! Numbers are big-endian. Parsing is total and bounded: every length is checked before anything is
//! allocated for it.

use crate::channel::{Incoming, Sink};
use crate::failure::{Failure, Outcome, fail, kind_of_peer_code, protocol};
use crate::files::paths::{PATH_BYTES_MAX, SafePath};

/// Opens the forward stream: name and version of the protocol.
pub(super) const MAGIC: &[u8; 8] = b"SPHXFIL\x01";

const DIRECTORY: u8 = 0x01;
const FILE: u8 = 0x02;
const SYMLINK: u8 = 0x03;
const DIRECTORY_END: u8 = 0x04;
const END: u8 = 0x05;
const DATA: u8 = 0x10;
const HOLE: u8 = 0x11;
const FILE_END: u8 = 0x12;

const VERDICT_OK: u8 = 0x01;
const VERDICT_FAILED: u8 = 0x02;

/// Longest message of a verdict.
const MESSAGE_BYTES_MAX: usize = 1024;
const NANOSECONDS_MAX: u32 = 999_999_999;

/// Permissions and modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Permission bits, 0o7777 at most.
    pub(crate) mode: u16,
    pub(crate) mtime_s: i64,
    pub(crate) mtime_ns: u32,
}

/// What comes between the files' data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Directory {
        path: SafePath,
    },
    File {
        path: SafePath,
        attributes: Attributes,
        size: u64,
    },
    Symlink {
        path: SafePath,
        attributes: Attributes,
        target: Vec<u8>,
    },
    DirectoryEnd {
        path: SafePath,
        attributes: Attributes,
    },
    End {
        entries: u64,
        bytes: u64,
    },
}

/// What comes inside a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data { bytes: u64 },
    Hole { bytes: u64 },
    End { digest: [u8; 32] },
}

/// Announced totals, for progress only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

pub(super) fn put_preamble(out: &mut Vec<u8>, totals: Totals) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&totals.entries.to_be_bytes());
    out.extend_from_slice(&totals.bytes.to_be_bytes());
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Directory { path } => {
            out.push(DIRECTORY);
            put_bytes(out, path.as_bytes());
        }
        Entry::File {
            path,
            attributes,
            size,
        } => {
            out.push(FILE);
            put_bytes(out, path.as_bytes());
            put_attributes(out, *attributes);
            out.extend_from_slice(&size.to_be_bytes());
        }
        Entry::Symlink {
            path,
            attributes,
            target,
        } => {
            out.push(SYMLINK);
            put_bytes(out, path.as_bytes());
            put_attributes(out, *attributes);
            put_bytes(out, target);
        }
        Entry::DirectoryEnd { path, attributes } => {
            out.push(DIRECTORY_END);
            put_bytes(out, path.as_bytes());
            put_attributes(out, *attributes);
        }
        Entry::End { entries, bytes } => {
            out.push(END);
            out.extend_from_slice(&entries.to_be_bytes());
            out.extend_from_slice(&bytes.to_be_bytes());
        }
    }
}

/// The header of a `DATA` record; its bytes follow.
pub(super) fn put_data(out: &mut Vec<u8>, bytes: u64) {
    out.push(DATA);
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub(super) fn put_hole(out: &mut Vec<u8>, bytes: u64) {
    out.push(HOLE);
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub(super) fn put_file_end(out: &mut Vec<u8>, digest: &[u8; 32]) {
    out.push(FILE_END);
    out.extend_from_slice(digest);
}

/// The receiver's last word.
pub(super) fn put_verdict(out: &mut Vec<u8>, verdict: Result<Totals, (u64, &str)>) {
    match verdict {
        Ok(totals) => {
            out.push(VERDICT_OK);
            out.extend_from_slice(&totals.entries.to_be_bytes());
            out.extend_from_slice(&totals.bytes.to_be_bytes());
        }
        Err((code, message)) => {
            out.push(VERDICT_FAILED);
            put_failure(out, code, message);
        }
    }
}

fn put_failure(out: &mut Vec<u8>, code: u64, message: &str) {
    out.push(u8::try_from(code).unwrap_or(u8::MAX));
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    put_bytes(out, &message.as_bytes()[..end]);
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

/// A stream from the peer, buffered.
pub(super) struct Reader<I> {
    input: I,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<I: Incoming> Reader<I> {
    pub(super) fn new(input: I, buffer_bytes: usize) -> Self {
        Self {
            input,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The bytes of a `DATA` record, each piece with its place in the record. Those of a long one come
    /// in the order in which they arrive, straight from where they were received.
    pub(super) fn data(&mut self, bytes: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let mut at = 0;
        // Short records are many, and their neighbours in the buffer already.
        while at < bytes && (self.start < self.end || bytes - at < self.buffer.len() as u64) {
            self.fill(1)?;
            let piece = usize::try_from(bytes - at).unwrap_or(usize::MAX);
            let piece = piece.min(self.end - self.start);
            sink(at, &self.buffer[self.start..][..piece])?;
            self.start += piece;
            at += piece as u64;
        }
        match at < bytes {
            true => {
                (self.input).read_unordered(bytes - at, &mut |place, data| sink(at + place, data))
            }
            false => Ok(()),
        }
    }

    pub(super) fn preamble(&mut self) -> Outcome<Totals> {
        if &self.array::<8>()? != MAGIC {
            return Err(protocol(
                "the peer does not speak this version of the file protocol",
            ));
        }
        self.totals()
    }

    pub(super) fn entry(&mut self) -> Outcome<Entry> {
        match self.u8()? {
            DIRECTORY => Ok(Entry::Directory { path: self.path()? }),
            FILE => Ok(Entry::File {
                path: self.path()?,
                attributes: self.attributes()?,
                size: self.u64()?,
            }),
            SYMLINK => Ok(Entry::Symlink {
                path: self.path()?,
                attributes: self.attributes()?,
                target: self.bytes(PATH_BYTES_MAX)?,
            }),
            DIRECTORY_END => Ok(Entry::DirectoryEnd {
                path: self.path()?,
                attributes: self.attributes()?,
            }),
            END => self
                .totals()
                .map(|Totals { entries, bytes }| Entry::End { entries, bytes }),
            other => Err(protocol(format!(
                "unknown record {other:#04x} from the sender"
            ))),
        }
    }

    pub(super) fn piece(&mut self) -> Outcome<Piece> {
        match self.u8()? {
            DATA => match self.u64()? {
                0 => Err(protocol("an empty piece of a file")),
                bytes => Ok(Piece::Data { bytes }),
            },
            HOLE => match self.u64()? {
                0 => Err(protocol("an empty hole in a file")),
                bytes => Ok(Piece::Hole { bytes }),
            },
            FILE_END => Ok(Piece::End {
                digest: self.array()?,
            }),
            other => Err(protocol(format!(
                "unknown record {other:#04x} inside a file"
            ))),
        }
    }

    /// The receiver's verdict, as the sender reads it.
    pub(super) fn verdict(&mut self) -> Outcome<Totals> {
        match self.u8()? {
            VERDICT_OK => self.totals(),
            VERDICT_FAILED => Err(self.peer_failure()?),
            other => Err(protocol(format!(
                "unknown verdict {other:#04x} from the receiver"
            ))),
        }
    }

    /// After the last record nothing may follow.
    pub(super) fn expect_end(&mut self) -> Outcome<()> {
        let mut byte = [0];
        match self.start < self.end || self.input.read(&mut byte)? > 0 {
            true => Err(protocol("bytes after the end of the transfer")),
            false => Ok(()),
        }
    }

    fn peer_failure(&mut self) -> Outcome<Failure> {
        let code = self.u8()?;
        let message = crate::text::printable(&self.bytes(MESSAGE_BYTES_MAX)?);
        Ok(fail(
            kind_of_peer_code(u64::from(code)),
            format!("at the other end: {message}"),
        ))
    }

    fn path(&mut self) -> Outcome<SafePath> {
        let bytes = self.bytes(PATH_BYTES_MAX)?;
        SafePath::new(bytes).map_err(|error| protocol(format!("a path is refused: {error}")))
    }

    fn attributes(&mut self) -> Outcome<Attributes> {
        let attributes = Attributes {
            mode: u16::from_be_bytes(self.array()?),
            mtime_s: i64::from_be_bytes(self.array()?),
            mtime_ns: u32::from_be_bytes(self.array()?),
        };
        match attributes.mode <= 0o7777 && attributes.mtime_ns <= NANOSECONDS_MAX {
            true => Ok(attributes),
            false => Err(protocol("impossible permissions or modification time")),
        }
    }

    fn totals(&mut self) -> Outcome<Totals> {
        Ok(Totals {
            entries: self.u64()?,
            bytes: self.u64()?,
        })
    }

    /// A length of two bytes, then as many bytes.
    fn bytes(&mut self, max: usize) -> Outcome<Vec<u8>> {
        let length = usize::from(u16::from_be_bytes(self.array()?));
        if length > max {
            return Err(protocol("a path or a message is too long"));
        }
        let mut bytes = vec![0; length];
        let mut at = 0;
        while at < length {
            let step = (length - at).min(self.buffer.len());
            self.fill(step)?;
            bytes[at..at + step].copy_from_slice(&self.buffer[self.start..self.start + step]);
            self.start += step;
            at += step;
        }
        Ok(bytes)
    }

    fn u8(&mut self) -> Outcome<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Outcome<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        self.fill(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        Ok(array)
    }

    /// Reads until `wanted` bytes (at most the whole buffer) are there.
    fn fill(&mut self, wanted: usize) -> Outcome<()> {
        if self.end - self.start >= wanted {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            match self.input.read(&mut self.buffer[self.end..])? {
                0 => return Err(protocol("the stream ends in the middle of the transfer")),
                n => self.end += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Arrived;
    use proptest::prelude::*;
    use sphinx_transport::ErrorKind;

    fn path(bytes: &[u8]) -> SafePath {
        SafePath::new(bytes.to_vec()).expect("a valid path")
    }

    fn reader(bytes: &[u8], piece: usize) -> Reader<Arrived<'_>> {
        Reader::new(Arrived { bytes, piece }, 64)
    }

    #[test]
    fn what_is_written_is_read() {
        let attributes = Attributes {
            mode: 0o4755,
            mtime_s: -5,
            mtime_ns: 999_999_999,
        };
        let entries = [
            Entry::Directory { path: path(b"a") },
            Entry::File {
                path: path(&[b'x'; 200]),
                attributes,
                size: u64::MAX,
            },
            Entry::Symlink {
                path: path(b"a/l"),
                attributes,
                target: b"caf\xe9".to_vec(),
            },
            Entry::DirectoryEnd {
                path: path(b"a"),
                attributes,
            },
            Entry::End {
                entries: 3,
                bytes: 7,
            },
        ];
        let mut bytes = Vec::new();
        put_preamble(
            &mut bytes,
            Totals {
                entries: 4,
                bytes: 9,
            },
        );
        entries
            .iter()
            .for_each(|entry| put_entry(&mut bytes, entry));
        let mut reader = reader(&bytes, 3);
        assert_eq!(
            reader.preamble().unwrap(),
            Totals {
                entries: 4,
                bytes: 9
            }
        );
        for entry in &entries {
            assert_eq!(&reader.entry().unwrap(), entry);
        }
        assert!(reader.expect_end().is_ok());
    }

    #[test]
    fn pieces() {
        let contents: Vec<u8> = (0..100).collect();
        let mut bytes = Vec::new();
        put_data(&mut bytes, 100);
        bytes.extend(&contents);
        put_hole(&mut bytes, 1 << 40);
        put_file_end(&mut bytes, &[9; 32]);
        for piece in [1, 9, 64, 200] {
            let mut reader = reader(&bytes, piece);
            assert_eq!(reader.piece().unwrap(), Piece::Data { bytes: 100 });
            let mut read = vec![0xff; 100];
            let mut store = |place, data: &[u8]| {
                read[place as usize..][..data.len()].copy_from_slice(data);
                Ok(())
            };
            reader.data(100, &mut store).unwrap();
            assert_eq!(read, contents);
            assert_eq!(reader.piece().unwrap(), Piece::Hole { bytes: 1 << 40 });
            assert_eq!(reader.piece().unwrap(), Piece::End { digest: [9; 32] });
        }
        let mut short = reader(&bytes[..50], 9);
        assert!(short.piece().is_ok() && short.data(100, &mut |_, _| Ok(())).is_err());
    }

    #[test]
    fn verdicts_carry_a_reason() {
        let mut bytes = Vec::new();
        put_verdict(&mut bytes, Err((9, "full \x1b[2J")));
        let failure = reader(&bytes, 9).verdict().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::RemoteIo);
        assert_eq!(failure.message, "at the other end: full \\u{1b}[2J");

        bytes.clear();
        put_verdict(&mut bytes, Err((10, &"é".repeat(600))));
        assert_eq!(
            reader(&bytes, 9).verdict().unwrap_err().kind,
            ErrorKind::Integrity
        );
        bytes.clear();
        put_verdict(
            &mut bytes,
            Ok(Totals {
                entries: 1,
                bytes: 2,
            }),
        );
        assert_eq!(
            reader(&bytes, 9).verdict().unwrap(),
            Totals {
                entries: 1,
                bytes: 2
            }
        );
    }

    #[test]
    fn refused() {
        let absolute = [&[FILE, 0, 4][..], b"/etc"].concat();
        for bytes in [
            &absolute[..],
            &[0x77],
            &[DIRECTORY, 0xff, 0xff],
            &[END, 0],
            &[],
        ] {
            assert_eq!(
                reader(bytes, 9).entry().unwrap_err().kind,
                ErrorKind::Protocol
            );
        }
        for bytes in [
            &[DATA, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[DATA, 1],
            &[HOLE, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(
                reader(bytes, 9).piece().unwrap_err().kind,
                ErrorKind::Protocol
            );
        }
        assert!(
            reader(b"SPHXFIL\x02----------------", 9)
                .preamble()
                .is_err()
        );
        assert!(reader(b"more", 9).expect_end().is_err());
    }

    proptest! {
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1_usize..40) {
            let _ = reader(&bytes, piece).preamble();
            let _ = reader(&bytes, piece).entry();
            let _ = reader(&bytes, piece).piece();
            let _ = reader(&bytes, piece).verdict();
        }
    }
}
