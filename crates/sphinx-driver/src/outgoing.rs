//! Sliced blocks that wait for the window, by stream.

use std::collections::{BTreeMap, VecDeque};

use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::pool::{BufferPool, PoolBuffer};

/// A sliced block, ready to be sent.
pub struct ReadyBlock {
    pub(crate) stream: u16,
    /// From `start` on: room for the preamble, then data.
    memory: PoolBuffer,
    start: usize,
    pub(crate) preamble: Preamble,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    /// The application ends a message or the stream here.
    pub(crate) tail: bool,
}

/// The shape of a block of so many bytes, with symbols of at most this size.
pub(crate) fn shape(bytes: usize, symbol_len_max: u16) -> (u16, u16) {
    let n = bytes.div_ceil(usize::from(symbol_len_max));
    // Some codes need an even size; the largest one is even.
    let symbol_len = bytes.div_ceil(n).next_multiple_of(2);
    (n as u16, symbol_len.min(usize::from(symbol_len_max)) as u16)
}

impl ReadyBlock {
    /// Its data lies in `memory`, behind room for the preamble.
    pub(crate) fn new(
        stream: u16,
        memory: PoolBuffer,
        preamble: Preamble,
        (n, symbol_len): (u16, u16),
        tail: bool,
    ) -> Self {
        Self {
            stream,
            memory,
            start: 0,
            preamble,
            n,
            symbol_len,
            tail,
        }
    }

    /// The stream's last block.
    pub(crate) fn is_last(&self) -> bool {
        self.preamble.end_of_stream
    }

    /// Bytes of preamble and data.
    fn filled(&self) -> usize {
        PREAMBLE_LEN + self.preamble.len as usize
    }

    /// Memory of `n × symbol_len` bytes: preamble, data, padding.
    pub(crate) fn into_memory(self) -> PoolBuffer {
        let (filled, start) = (self.filled(), self.start);
        let len = usize::from(self.n) * usize::from(self.symbol_len);
        let mut memory = self.memory;
        if start > 0 {
            memory.copy_within(start..start + filled, 0);
        }
        memory[..PREAMBLE_LEN].copy_from_slice(&self.preamble.encode());
        memory[filled..len].fill(0);
        memory.resize(len);
        memory
    }

    /// Cuts off the first data, as much as a block of this shape holds, which is less than all.
    fn split(&mut self, (n, symbol_len): (u16, u16), pool: &BufferPool) -> Self {
        let len = usize::from(n) * usize::from(symbol_len);
        let data_len = len - PREAMBLE_LEN;
        debug_assert!(data_len < self.preamble.len as usize);
        let mut memory = pool.take(len);
        memory.copy_from_slice(&self.memory[self.start..][..len]);
        let first = Self {
            stream: self.stream,
            memory,
            start: 0,
            preamble: Preamble {
                len: data_len as u32,
                end_of_stream: false,
                ..self.preamble
            },
            n,
            symbol_len,
            tail: false,
        };
        // The preamble of the rest takes the place of data that has gone.
        self.start += data_len;
        self.preamble.offset += data_len as u64;
        self.preamble.len -= data_len as u32;
        (self.n, self.symbol_len) = shape(self.filled(), self.symbol_len);
        first
    }
}

/// How far the end of a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The application has finished the stream; its last block is queued.
    Queued,
    /// The core has the last block.
    Submitted,
    /// The peer has every block.
    Delivered,
}

/// One stream.
#[derive(Default)]
pub(crate) struct OutgoingStream<S> {
    blocks: VecDeque<ReadyBlock>,
    pub(crate) end: Option<StreamEnd>,
    /// Tells that a block has left, or that the stream's end has come further.
    pub(crate) signal: S,
}

/// Blocks that wait for the window. Streams take turns, a block each.
#[derive(Default)]
pub(crate) struct Outgoing<S> {
    streams: BTreeMap<u16, OutgoingStream<S>>,
    /// Streams with blocks, the next one first.
    turns: VecDeque<u16>,
    /// Those with blocks that have no turn.
    held_up: VecDeque<u16>,
}

/// What becomes of a stream's turn.
pub(crate) enum Turn {
    /// The block leaves.
    Take,
    /// A block of this shape leaves with the first data.
    TakePart(u16, u16),
    /// The stream has no turn before [`Outgoing::release`]; the next one has.
    HeldUp,
    /// Nobody has a turn now.
    Stop,
}

impl<S: Clone + Default> Outgoing<S> {
    /// A stream, which begins if it is new.
    pub(crate) fn stream(&mut self, stream: u16) -> &mut OutgoingStream<S> {
        self.streams.entry(stream).or_default()
    }

    /// How far the stream's end has come.
    pub(crate) fn end(&self, stream: u16) -> Option<StreamEnd> {
        self.streams.get(&stream)?.end
    }

    /// What tells the news of every stream.
    pub(crate) fn signals(&self) -> impl Iterator<Item = S> {
        self.streams.values().map(|stream| stream.signal.clone())
    }

    /// Blocks of the stream.
    pub(crate) fn queued(&self, stream: u16) -> usize {
        self.streams
            .get(&stream)
            .map_or(0, |stream| stream.blocks.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.held_up.is_empty()
    }

    pub(crate) fn push(&mut self, block: ReadyBlock) {
        let stream = self.streams.entry(block.stream).or_default();
        if stream.blocks.is_empty() {
            self.turns.push_back(block.stream);
        }
        stream.blocks.push_back(block);
    }

    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.held_up.clear();
        for stream in self.streams.values_mut() {
            stream.blocks.clear();
        }
    }

    /// The next block for which `decide` says so.
    pub(crate) fn next(
        &mut self,
        pool: &BufferPool,
        mut decide: impl FnMut(&ReadyBlock) -> Turn,
    ) -> Option<ReadyBlock> {
        while let Some(id) = self.turns.pop_front() {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let Some(first) = stream.blocks.front_mut() else {
                continue;
            };
            let block = match decide(first) {
                Turn::Take => stream.blocks.pop_front(),
                Turn::TakePart(n, symbol_len) => Some(first.split((n, symbol_len), pool)),
                Turn::HeldUp => {
                    self.held_up.push_back(id);
                    continue;
                }
                Turn::Stop => {
                    self.turns.push_front(id);
                    return None;
                }
            };
            if !stream.blocks.is_empty() {
                self.turns.push_back(id);
            }
            return block;
        }
        None
    }

    /// The stream that has been held up for longest.
    pub(crate) fn held_up(&self) -> Option<u16> {
        self.held_up.front().copied()
    }

    /// Those that were held up have their turns before the others.
    pub(crate) fn release(&mut self) {
        self.held_up.append(&mut self.turns);
        std::mem::swap(&mut self.turns, &mut self.held_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever parts a block leaves in, their preambles and data are those of the whole.
    #[test]
    fn a_block_leaves_in_parts() {
        let pool = BufferPool::new(0);
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        let (n, symbol_len) = shape(PREAMBLE_LEN + data.len(), 100);
        let mut memory = pool.take(usize::from(n) * usize::from(symbol_len));
        // Somebody else's data, which is not to leave as padding.
        memory.fill(0xff);
        memory[PREAMBLE_LEN..][..data.len()].copy_from_slice(&data);
        let preamble = Preamble {
            offset: 5000,
            len: data.len() as u32,
            end_of_stream: true,
        };
        let mut rest = ReadyBlock {
            stream: 0,
            memory,
            start: 0,
            preamble,
            n,
            symbol_len,
            tail: true,
        };
        let mut parts = vec![
            rest.split((3, 100), &pool),
            rest.split((1, 64), &pool),
            rest.split((1, 98), &pool),
        ];
        assert!(parts.iter().all(|part| !part.tail && !part.is_last()));
        assert!(rest.tail && rest.is_last());
        parts.push(rest);
        let mut got = Vec::new();
        for part in parts {
            let (n, symbol_len) = (part.n, part.symbol_len);
            let memory = part.into_memory();
            assert_eq!(memory.len(), usize::from(n) * usize::from(symbol_len));
            let preamble = Preamble::decode(&memory).expect("a preamble");
            assert_eq!(preamble.offset, 5000 + got.len() as u64);
            let (data, padding) = memory[PREAMBLE_LEN..].split_at(preamble.len as usize);
            assert!(padding.iter().all(|byte| *byte == 0));
            got.extend_from_slice(data);
        }
        assert_eq!(got, data);
    }
}
