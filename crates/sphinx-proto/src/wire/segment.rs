//! What a block holds: pieces of streams (`docs/protocol.md` §5.1).

use std::ops::Range;

use crate::types::StreamId;

use super::{Reader, VARINT_MAX, WireError, put_varint, varint_len};

/// Type of padding, which fills the rest of the block.
const PADDING: u8 = 0;
const DATA: u8 = 1;
/// Data behind which the stream ends.
const DATA_AND_END: u8 = 2;
/// Bytes of the length, whose value is not known yet when a sender leaves room for it.
const LENGTH_LEN: usize = 4;
/// Largest value in [`LENGTH_LEN`] bytes.
const LENGTH_MAX: u32 = (1 << 30) - 1;

/// A piece of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The stream.
    pub stream: StreamId,
    /// Place of its first byte in the stream.
    pub offset: u64,
    /// Bytes, at most 2^30 − 1.
    pub len: u32,
    /// The stream ends behind it; only then it may be empty.
    pub end_of_stream: bool,
}

impl Segment {
    /// Bytes before the data of a segment that begins here.
    pub fn header_len(stream: StreamId, offset: u64) -> usize {
        1 + varint_len(stream.to_wire()) + varint_len(offset) + LENGTH_LEN
    }

    /// Appends what comes before the data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.end_of_stream {
            DATA_AND_END
        } else {
            DATA
        });
        put_varint(out, self.stream.to_wire());
        put_varint(out, self.offset);
        let len = self.len.min(LENGTH_MAX);
        out.extend_from_slice(&(0x8000_0000 | len).to_be_bytes());
    }

    /// The segment that begins here, and where its data does; not all of that need be here. `None`: all is padding.
    ///
    /// # Errors
    /// If there can be no such segment.
    pub fn begin(bytes: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let mut reader = Reader::new(bytes);
        let segment = begin(&mut reader)?;
        Ok(segment.map(|segment| (segment, bytes.len() - reader.len())))
    }

    /// Offset behind the last byte of the piece in the stream.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// The segments of a whole block, each with the place of its data there; ends after the first error.
#[derive(Debug, Clone)]
pub struct SegmentIter<'a> {
    block: &'a [u8],
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> SegmentIter<'a> {
    /// Over all bytes of a block, padding included.
    pub fn new(block: &'a [u8]) -> Self {
        Self {
            block,
            reader: Reader::new(block),
            failed: false,
        }
    }

    fn segment(&mut self) -> Result<Option<(Segment, Range<usize>)>, WireError> {
        let r = &mut self.reader;
        let Some(segment) = begin(r)? else {
            return Ok(None);
        };
        let data = r.take(segment.len as usize)?.len();
        let end = self.block.len() - r.len();
        Ok(Some((segment, end - data..end)))
    }
}

/// What comes before the data of a segment; `None`: the rest is padding.
fn begin(r: &mut Reader<'_>) -> Result<Option<Segment>, WireError> {
    let end_of_stream = match r.u8()? {
        PADDING => return Ok(None),
        DATA => false,
        DATA_AND_END => true,
        _ => return Err(WireError::Invalid("segment type")),
    };
    let stream = StreamId::from_wire(r.varint()?)?;
    let offset = r.varint()?;
    let len = r.varint()?;
    let Ok(data_len) = u32::try_from(len) else {
        return Err(WireError::Truncated);
    };
    let segment = Segment {
        stream,
        offset,
        len: data_len,
        end_of_stream,
    };
    if data_len == 0 && !end_of_stream {
        return Err(WireError::Invalid("empty segment"));
    }
    if segment.end() > VARINT_MAX {
        return Err(WireError::Invalid("segment offset"));
    }
    Ok(Some(segment))
}

impl Iterator for SegmentIter<'_> {
    type Item = Result<(Segment, Range<usize>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let segment = self.segment();
        self.failed = !matches!(segment, Ok(Some(_)));
        segment.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;
    use proptest::prelude::*;

    fn segments(block: &[u8]) -> Result<Vec<(Segment, Range<usize>)>, WireError> {
        SegmentIter::new(block).collect()
    }

    #[test]
    fn vector() {
        let first = Segment {
            stream: StreamId::new(Role::Client, 0),
            offset: 0,
            len: 3,
            end_of_stream: false,
        };
        let second = Segment {
            stream: StreamId::new(Role::Client, 20),
            offset: 70_000,
            len: 0,
            end_of_stream: true,
        };
        let mut block = Vec::new();
        first.encode(&mut block);
        assert_eq!(block.len(), Segment::header_len(first.stream, first.offset));
        block.extend_from_slice(b"abc");
        second.encode(&mut block);
        block.extend_from_slice(&[0, 0]);
        assert_eq!(
            block,
            [
                1, 2, 0, 0x80, 0, 0, 3, b'a', b'b', b'c', 2, 0x40, 82, 0x80, 1, 0x11, 0x70, 0x80,
                0, 0, 0, 0, 0
            ]
        );
        assert_eq!(segments(&block), Ok(vec![(first, 7..10), (second, 21..21)]));
    }

    #[test]
    fn what_is_malformed() {
        let invalid = |what| Err(WireError::Invalid(what));
        assert_eq!(segments(&[3, 2, 0, 1, 9]), invalid("segment type"));
        assert_eq!(segments(&[1, 2, 0, 0]), invalid("empty segment"));
        assert_eq!(segments(&[1, 2, 0, 2, 9]), Err(WireError::Truncated));
        let mut far = vec![1, 2];
        put_varint(&mut far, VARINT_MAX);
        far.extend_from_slice(&[1, 9]);
        assert_eq!(segments(&far), invalid("segment offset"));
        // A block need not have any padding, nor anything else.
        assert_eq!(segments(&[0, 9]), Ok(Vec::new()));
        assert_eq!(segments(&[]), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn parsing_is_total(block in prop::collection::vec(any::<u8>(), 0..200)) {
            for (segment, data) in SegmentIter::new(&block).flatten() {
                prop_assert_eq!(block[data].len(), segment.len as usize);
            }
        }
    }
}
