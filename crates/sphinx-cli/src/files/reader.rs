//! Reads the bytes of the protocol. Parsing is total and bounded: every length is checked before
//! anything is allocated for it.

use super::chunks::{CHUNKS_MAX, Chunk, Chunks, MEAN_LOG2};
use super::digest::{CHECKPOINT_BYTES_MAX, Checkpoint};
use super::offers::{OFFER_MODE, OFFER_NANOSECONDS, OFFER_SOURCE, Offer, unzigzag};
use super::owners::{NAME_BYTES_MAX, Owner};
use super::paths::{COMPONENT_BYTES_MAX, Name, PATH_BYTES_MAX};
use super::source::{Seal, Sealed, SourceId};
use super::wire::{
    ASK, Announced, Attributes, BYTES_UNKNOWN, CHECKPOINT, COPY, Change, Counts, DATA, DELETE,
    DIRECTORY, DIRECTORY_END, END, Entry, FILE, FILE_ABORT, FILE_END, HARD_LINK, HOLE, KEPT, MAGIC,
    MESSAGE_BYTES_MAX, NANOSECONDS_MAX, OFFER, OWNER, Piece, REPLY_ANSWERED, REPLY_CHANGED,
    REPLY_CHUNKS, REPLY_DIGEST, REPLY_FAILED, REPLY_OK, REPLY_PART, REPLY_PRESENT, REPLY_READY,
    REPLY_SKIPPED, REUSE, Reply, SAME, SKIPPED, STREAM, SYMLINK, TRIAL, Totals, XATTRS,
};
use super::xattrs::Xattrs;
use crate::channel::{Incoming, Sink};
use crate::failure::{Outcome, protocol};
use crate::text::printable;

/// Longest path in a reply: the directories, and one name that did not fit.
const REPLY_PATH_BYTES_MAX: usize = PATH_BYTES_MAX + 1 + COMPONENT_BYTES_MAX;

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
        // Short records are read through the buffer, which holds their neighbours too; of a long one only what is buffered already.
        while at < bytes && (self.start < self.end || bytes - at < self.buffer.len() as u64) {
            at += self.some_data(at, bytes, sink)?;
        }
        match at < bytes {
            true => {
                (self.input).read_unordered(bytes - at, &mut |place, data| sink(at + place, data))
            }
            false => Ok(()),
        }
    }

    /// The bytes of a `DATA` record from the first to the last.
    pub(super) fn data_in_order(&mut self, bytes: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let mut at = 0;
        while at < bytes {
            at += self.some_data(at, bytes, sink)?;
        }
        Ok(())
    }

    /// What is in the buffer of a record of `bytes`, from `at` on.
    fn some_data(&mut self, at: u64, bytes: u64, sink: &mut Sink<'_>) -> Outcome<u64> {
        self.fill(1)?;
        let piece = usize::try_from(bytes - at).unwrap_or(usize::MAX);
        let piece = piece.min(self.end - self.start);
        sink(at, &self.buffer[self.start..][..piece])?;
        self.start += piece;
        Ok(piece as u64)
    }

    pub(super) fn preamble(&mut self) -> Outcome<Announced> {
        if &self.array::<8>()? != MAGIC {
            return Err(protocol(
                "the peer does not speak this version of the file protocol",
            ));
        }
        Ok(Announced {
            entries: self.u64()?,
            bytes: Some(self.u64()?).filter(|bytes| *bytes != BYTES_UNKNOWN),
            source: self.source()?,
        })
    }

    pub(super) fn entry(&mut self) -> Outcome<Entry> {
        match self.u8()? {
            DIRECTORY => Ok(Entry::Directory {
                name: self.name()?,
                mode: self.mode()?,
            }),
            FILE => Ok(Entry::File {
                name: self.name()?,
                attributes: self.attributes()?,
                size: self.u64()?,
                source: self.source()?,
            }),
            STREAM => Ok(Entry::Stream {
                name: self.name()?,
                attributes: self.attributes()?,
            }),
            SYMLINK => Ok(Entry::Symlink {
                name: self.name()?,
                attributes: self.attributes()?,
                target: self.bytes(PATH_BYTES_MAX)?,
            }),
            DIRECTORY_END => Ok(Entry::DirectoryEnd {
                attributes: self.attributes()?,
            }),
            HARD_LINK => Ok(Entry::HardLink {
                name: self.name()?,
                path: self.bytes(PATH_BYTES_MAX)?,
            }),
            OWNER => Ok(Entry::Owner(Owner {
                uid: u32::from_be_bytes(self.array()?),
                gid: u32::from_be_bytes(self.array()?),
                user: self.bytes(NAME_BYTES_MAX)?,
                group: self.bytes(NAME_BYTES_MAX)?,
            })),
            XATTRS => self.xattrs().map(Entry::Xattrs),
            SKIPPED => Ok(Entry::Skipped {
                name: self.name()?,
                reason: self.message()?,
            }),
            OFFER => self.offer().map(Entry::Offer),
            ASK => Ok(Entry::Ask),
            KEPT => Ok(Entry::Kept {
                first: self.u64()?,
                count: self.count()?,
            }),
            DELETE => Ok(Entry::Delete),
            END => Ok(Entry::End {
                entries: self.u64()?,
                bytes: self.u64()?,
            }),
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
            CHECKPOINT => Ok(Piece::Checkpoint { seal: self.seal()? }),
            REUSE => Ok(Piece::Reuse { until: self.u64()? }),
            SAME => Ok(Piece::Same),
            TRIAL => Ok(Piece::Trial),
            COPY => match (self.u64()?, self.u64()?) {
                (_, 0) => Err(protocol("an empty piece of a file")),
                (from, bytes) => Ok(Piece::Copy { from, bytes }),
            },
            FILE_ABORT => Ok(Piece::Abort {
                reason: self.message()?,
            }),
            other => Err(protocol(format!(
                "unknown record {other:#04x} inside a file"
            ))),
        }
    }

    /// What the receiver says, as the sender reads it.
    pub(super) fn reply(&mut self) -> Outcome<Reply> {
        match self.u8()? {
            REPLY_READY => Ok(Reply::Ready),
            REPLY_SKIPPED => Ok(Reply::Skipped {
                entry: self.u64()?,
                path: self.bytes(REPLY_PATH_BYTES_MAX)?,
                reason: self.message()?,
            }),
            REPLY_PART => Ok(Reply::Part {
                offer: self.u64()?,
                sealed: Sealed {
                    checkpoint: self.checkpoint()?,
                    seal: self.seal()?,
                },
            }),
            REPLY_PRESENT => Ok(Reply::Present {
                first: self.u64()?,
                count: self.count()?,
            }),
            REPLY_CHUNKS => Ok(Reply::Chunks {
                offer: self.u64()?,
                chunks: self.chunks()?,
            }),
            REPLY_DIGEST => Ok(Reply::Digest {
                offer: self.u64()?,
                digest: self.array()?,
            }),
            REPLY_CHANGED => Ok(Reply::Changed {
                change: match self.u8()? {
                    1 => Change::Made,
                    2 => Change::Deleted,
                    _ => return Err(protocol("an unknown change")),
                },
                path: self.bytes(REPLY_PATH_BYTES_MAX)?,
            }),
            REPLY_ANSWERED => Ok(Reply::Answered { offer: self.u64()? }),
            REPLY_OK => Ok(Reply::Done(Counts {
                totals: Totals {
                    entries: self.u64()?,
                    bytes: self.u64()?,
                },
                files: self.u64()?,
                bytes: self.u64()?,
                files_present: self.u64()?,
                skipped: self.u64()?,
            })),
            REPLY_FAILED => Ok(Reply::Failed {
                code: self.u8()?,
                message: self.message()?,
            }),
            other => Err(protocol(format!(
                "unknown reply {other:#04x} from the receiver"
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

    fn offer(&mut self) -> Outcome<Offer> {
        let flags = self.u8()?;
        if flags & !(OFFER_MODE | OFFER_NANOSECONDS | OFFER_SOURCE) != 0 {
            return Err(protocol("an offer tells what is not known"));
        }
        let shared = self.number()?;
        let length = self.number()?;
        let rest = self.sized(
            usize::try_from(length).unwrap_or(usize::MAX),
            PATH_BYTES_MAX,
        )?;
        let size = self.number()?;
        let later_s = unzigzag(self.number()?);
        let mtime_ns = match flags & OFFER_NANOSECONDS {
            0 => 0,
            _ => self.nanoseconds()?,
        };
        let mode = match flags & OFFER_MODE {
            0 => None,
            _ => Some(self.mode()?),
        };
        let source = match flags & OFFER_SOURCE {
            0 => None,
            _ => self.source()?,
        };
        // Each offer is written in one way only.
        if flags & OFFER_NANOSECONDS != 0 && mtime_ns == 0
            || flags & OFFER_SOURCE != 0 && source.is_none()
        {
            return Err(protocol("an offer tells nothing"));
        }
        Ok(Offer {
            shared,
            rest,
            size,
            later_s,
            mtime_ns,
            mode,
            source,
        })
    }

    fn name(&mut self) -> Outcome<Name> {
        let bytes = self.bytes(COMPONENT_BYTES_MAX)?;
        Name::new(bytes).map_err(|error| protocol(format!("a name is refused: {error}")))
    }

    fn message(&mut self) -> Outcome<String> {
        Ok(printable(&self.bytes(MESSAGE_BYTES_MAX)?))
    }

    fn mode(&mut self) -> Outcome<u16> {
        match u16::from_be_bytes(self.array()?) {
            mode @ 0..=0o7777 => Ok(mode),
            _ => Err(protocol("impossible permissions")),
        }
    }

    fn attributes(&mut self) -> Outcome<Attributes> {
        Ok(Attributes {
            mode: self.mode()?,
            mtime_s: i64::from_be_bytes(self.array()?),
            mtime_ns: self.nanoseconds()?,
        })
    }

    fn nanoseconds(&mut self) -> Outcome<u32> {
        match u32::from_be_bytes(self.array()?) {
            nanoseconds @ 0..=NANOSECONDS_MAX => Ok(nanoseconds),
            _ => Err(protocol("impossible modification time")),
        }
    }

    fn source(&mut self) -> Outcome<Option<SourceId>> {
        self.array().map(SourceId::from_bytes)
    }

    fn chunks(&mut self) -> Outcome<Chunks> {
        let mean_log2 = self.u8()?;
        let count = u32::from_be_bytes(self.array()?) as usize;
        if !MEAN_LOG2.contains(&mean_log2) || count > CHUNKS_MAX {
            return Err(protocol("an impossible list of chunks"));
        }
        // Memory is taken for what has come, not for what is announced.
        let mut list = Vec::new();
        for _ in 0..count {
            let bytes = u32::from_be_bytes(self.array()?);
            if bytes == 0 || bytes > 4 << mean_log2 {
                return Err(protocol("an impossible chunk"));
            }
            let hash = self.array()?;
            list.push(Chunk { bytes, hash });
        }
        Ok(Chunks { mean_log2, list })
    }

    fn xattrs(&mut self) -> Outcome<Xattrs> {
        let mut xattrs = Xattrs::default();
        for _ in 0..self.u8()? {
            let name = self.bytes(COMPONENT_BYTES_MAX)?;
            let value = self.bytes(usize::from(u16::MAX))?;
            (xattrs.add(name, value))
                .map_err(|error| protocol(format!("extended attributes are refused: {error}")))?;
        }
        Ok(xattrs)
    }

    fn seal(&mut self) -> Outcome<Seal> {
        self.array().map(Seal)
    }

    fn checkpoint(&mut self) -> Outcome<Checkpoint> {
        let bytes = self.bytes(CHECKPOINT_BYTES_MAX)?;
        Checkpoint::decode(&bytes).ok_or_else(|| protocol("an impossible checkpoint"))
    }

    /// A length of two bytes, then as many bytes.
    fn bytes(&mut self, max: usize) -> Outcome<Vec<u8>> {
        let length = usize::from(u16::from_be_bytes(self.array()?));
        self.sized(length, max)
    }

    /// So many bytes, if they may be that many.
    fn sized(&mut self, length: usize, max: usize) -> Outcome<Vec<u8>> {
        if length > max {
            return Err(protocol("a name or a message is too long"));
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

    /// How many there are of something, of which there is one at least.
    fn count(&mut self) -> Outcome<u32> {
        match u32::from_be_bytes(self.array()?) {
            0 => Err(protocol("a list of nothing")),
            count => Ok(count),
        }
    }

    /// A number of as many bytes as it needs, and no more.
    fn number(&mut self) -> Outcome<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left.
            let fits = bits << shift >> shift == bits;
            let is_shortest = byte > 0 || shift == 0;
            if !fits || !is_shortest {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(protocol("an impossible number"))
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
