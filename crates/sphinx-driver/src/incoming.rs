//! What has arrived of a stream: the Data Assembler, and the pieces that wait for being read.

use std::collections::BTreeMap;

use sphinx_proto::StreamId;
use sphinx_proto::wire::Segment;

use crate::pool::PoolBuffer;

/// A piece of a stream that has arrived.
pub struct Chunk {
    stream: StreamId,
    memory: PoolBuffer,
    from: usize,
    to: usize,
    offset: u64,
    end_of_stream: bool,
    cost: u64,
}

/// What a piece that has been read cost in the window, for [`Queues::release`](crate::Queues::release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub(crate) stream: StreamId,
    pub(crate) cost: u64,
}

impl Chunk {
    /// Its data begins at `from` in `memory`; it costs `cost` in the window.
    pub(crate) fn new(memory: PoolBuffer, from: usize, segment: &Segment, cost: u64) -> Self {
        Self {
            stream: segment.stream,
            memory,
            from,
            to: from + segment.len as usize,
            offset: segment.offset,
            end_of_stream: segment.end_of_stream,
            cost,
        }
    }

    /// The data that has not been read.
    pub fn data(&self) -> &[u8] {
        &self.memory[self.from..self.to]
    }

    /// Place of its first byte in the stream.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the stream ends behind it.
    pub fn end_of_stream(&self) -> bool {
        self.end_of_stream
    }

    /// The first `len` bytes have been read.
    pub fn advance(&mut self, len: usize) {
        self.from += len;
        self.offset += len as u64;
    }

    /// Frees the memory.
    pub fn into_taken(self) -> Taken {
        Taken {
            stream: self.stream,
            cost: self.cost,
        }
    }
}

/// What of a stream has arrived and has not been read. `S` wakes whoever waits for more.
#[derive(Default)]
pub struct Incoming<S> {
    /// Pieces that have arrived, by offset.
    pub(crate) chunks: BTreeMap<u64, Chunk>,
    assembler: Assembler,
    /// Nobody reads the stream any more.
    pub(crate) abandoned: bool,
    /// The peer has given it up, for this reason.
    pub(crate) reset: Option<u64>,
    pub(crate) signal: S,
}

impl<S> Incoming<S> {
    /// The next piece in stream order.
    pub fn take_in_order(&mut self) -> Option<Chunk> {
        let (&first, _) = self.chunks.first_key_value()?;
        let is_next = first < self.assembler.next || self.assembler.is_whole();
        is_next.then(|| self.take_first())?
    }

    /// A piece that begins before the stream's byte `end`.
    pub fn take_before(&mut self, end: u64) -> Option<Chunk> {
        let (&first, _) = self.chunks.first_key_value()?;
        (first < end).then(|| self.take_first())?
    }

    fn take_first(&mut self) -> Option<Chunk> {
        let (_, first) = self.chunks.pop_first()?;
        if self.chunks.is_empty() {
            // An empty map keeps the memory of its last node: too much for ten thousand streams that say nothing.
            self.chunks = BTreeMap::new();
        }
        Some(first)
    }

    /// Why the peer has given the stream up before its end, if it has: nothing more is to be read of it.
    pub fn reset(&self) -> Option<u64> {
        self.reset
    }

    /// Whether everything up to the end has arrived.
    pub fn has_ended(&self) -> bool {
        self.assembler.is_whole()
    }

    /// A piece has arrived: whether its place can be right.
    pub(crate) fn add(&mut self, segment: &Segment) -> bool {
        self.assembler.add(segment)
    }

    /// Pieces that have arrived, taken or not, and for which earlier ones are missing.
    pub(crate) fn ahead(&self) -> usize {
        self.assembler.ahead.len()
    }

    /// Where they lie is of no use any more: how many they were.
    pub(crate) fn forget_ahead(&mut self) -> usize {
        std::mem::take(&mut self.assembler.ahead).len()
    }
}

/// Follows the order of one stream's pieces (the paper's Data Assembler). No two overlap.
#[derive(Debug, Default)]
struct Assembler {
    /// Everything before has arrived.
    next: u64,
    /// Pieces for which earlier ones are missing: where they begin and end.
    ahead: BTreeMap<u64, u64>,
    /// Where the stream ends, once that is known.
    end: Option<u64>,
}

impl Assembler {
    fn is_whole(&self) -> bool {
        self.end == Some(self.next)
    }

    fn add(&mut self, segment: &Segment) -> bool {
        let (from, to) = (segment.offset, segment.end());
        let before = self.ahead.range(..=from).next_back();
        let after = self.ahead.range(from..).next();
        let fits = from >= before.map_or(self.next, |(_, end)| *end)
            && after.is_none_or(|(begin, _)| *begin >= to)
            && self
                .end
                .is_none_or(|end| to <= end && !segment.end_of_stream);
        if !fits {
            return false;
        }
        if segment.end_of_stream {
            if self
                .ahead
                .last_key_value()
                .is_some_and(|(_, end)| *end > to)
            {
                return false;
            }
            self.end = Some(to);
        }
        if to > from {
            self.ahead.insert(from, to);
        }
        while let Some(end) = self.ahead.remove(&self.next) {
            self.next = end;
        }
        if self.ahead.is_empty() {
            // As for pieces: an empty map keeps memory.
            self.ahead = BTreeMap::new();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sphinx_proto::Role;

    use super::*;

    fn add(assembler: &mut Assembler, offset: u64, len: u32, end_of_stream: bool) -> bool {
        assembler.add(&Segment {
            stream: StreamId::new(Role::Client, 0),
            offset,
            len,
            end_of_stream,
        })
    }

    #[test]
    fn pieces_are_put_in_order() {
        let mut assembler = Assembler::default();
        assert!(add(&mut assembler, 10, 5, false));
        assert!(add(&mut assembler, 20, 0, true));
        assert_eq!((assembler.next, assembler.is_whole()), (0, false));
        assert!(add(&mut assembler, 0, 10, false));
        assert_eq!((assembler.next, assembler.is_whole()), (15, false));
        assert!(add(&mut assembler, 15, 5, false));
        assert_eq!((assembler.next, assembler.is_whole()), (20, true));
    }

    #[test]
    fn what_overlaps_or_lies_behind_the_end_is_out_of_place() {
        for (offset, len, ends) in [
            (5, 1, false),
            (8, 4, false),
            (12, 1, false),
            (9, 20, false),
            (14, 2, false),
            (0, 11, false),
            (3, 0, true),
        ] {
            let mut assembler = Assembler::default();
            assert!(add(&mut assembler, 0, 8, false) && add(&mut assembler, 10, 5, false));
            assert!(!add(&mut assembler, offset, len, ends), "{offset} {len}");
        }
        let mut assembler = Assembler::default();
        assert!(add(&mut assembler, 10, 0, true));
        assert!(!add(&mut assembler, 10, 0, true), "it ends twice");
        assert!(!add(&mut assembler, 8, 3, false));
        assert!(add(&mut assembler, 0, 10, false) && assembler.is_whole());
    }
}
