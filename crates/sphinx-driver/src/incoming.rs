//! What has arrived of a stream: the Data Assembler, and the blocks that wait for being read.

use std::collections::BTreeMap;

use sphinx_proto::Slot;
use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::pool::PoolBuffer;

/// Data of one block.
pub struct Chunk {
    memory: PoolBuffer,
    slot: Slot,
    from: usize,
    to: usize,
    offset: u64,
    end_of_stream: bool,
}

impl Chunk {
    pub(crate) fn new(memory: PoolBuffer, slot: Slot, preamble: Preamble) -> Self {
        Self {
            memory,
            slot,
            from: PREAMBLE_LEN,
            to: PREAMBLE_LEN + preamble.len as usize,
            offset: preamble.offset,
            end_of_stream: preamble.end_of_stream,
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

    /// Frees the memory; the slot is for [`Queues::release`](crate::Queues::release).
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// What of a stream has arrived and has not been read. `S` wakes whoever waits for more.
#[derive(Default)]
pub struct Incoming<S> {
    /// Complete blocks by number.
    pub(crate) blocks: BTreeMap<u64, Chunk>,
    /// Every block below has arrived.
    next_block: u64,
    /// The stream's last block is one of them.
    ended: bool,
    /// Nobody reads the stream any more.
    pub(crate) abandoned: bool,
    pub(crate) signal: S,
}

impl<S> Incoming<S> {
    /// The next block in stream order.
    pub fn take_in_order(&mut self) -> Option<Chunk> {
        let first = self.blocks.first_entry()?;
        (*first.key() < self.next_block).then(|| first.remove())
    }

    /// A block that begins before the stream's byte `end`.
    pub fn take_before(&mut self, end: u64) -> Option<Chunk> {
        let first = self.blocks.first_entry()?;
        (first.get().offset < end).then(|| first.remove())
    }

    /// Whether everything up to the end has arrived.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Follows the order of one stream's blocks (the paper's Data Assembler).
#[derive(Default)]
pub(crate) struct Assembler {
    next_offset: u64,
    /// What the preambles of complete blocks say for which earlier ones are missing, by number.
    ahead: BTreeMap<u64, Preamble>,
}

impl Assembler {
    /// A block is complete: whether its place in the stream can be right. No two blocks overlap.
    pub(crate) fn add<S>(
        &mut self,
        block: u64,
        preamble: Preamble,
        incoming: &mut Incoming<S>,
    ) -> bool {
        let end = |p: &Preamble| p.offset.saturating_add(u64::from(p.len));
        let before = self.ahead.range(..block).next_back();
        let after = self.ahead.range(block..).next();
        let fits = preamble.offset >= before.map_or(self.next_offset, |(_, p)| end(p))
            && after.is_none_or(|(_, p)| p.offset >= end(&preamble));
        self.ahead.insert(block, preamble);
        while let Some(next) = self.ahead.remove(&incoming.next_block) {
            if next.offset != self.next_offset || incoming.ended {
                return false;
            }
            incoming.next_block += 1;
            incoming.ended = next.end_of_stream;
            self.next_offset = end(&next);
        }
        fits
    }
}
