//! Blocks that are handed over before the peer has room for them: what a slow path takes has to be found behind what faster ones
//! will have sent by the time it arrives.

use std::collections::VecDeque;

use crate::types::{StreamId, StreamPart};

use super::store::NewBlock;

/// A block that has no number and no place in the peer's window yet.
#[derive(Debug)]
pub(crate) struct WaitingBlock {
    pub(crate) new: NewBlock,
    pub(crate) part: StreamPart,
    /// Later parts of its stream have left: until it is there they lie in the peer's window.
    pub(crate) is_awaited: bool,
}

impl WaitingBlock {
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.new.n) * u64::from(self.new.symbol_len)
    }
}

/// Such blocks, in the order in which they are to leave: the most urgent first.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    blocks: VecDeque<WaitingBlock>,
    bytes: u64,
    cost: u64,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WaitingBlock> {
        self.blocks.iter()
    }

    pub(crate) fn push(&mut self, block: WaitingBlock) {
        self.bytes += block.bytes();
        self.cost += block.part.cost;
        let urgency = block.new.urgency;
        let at = self.blocks.partition_point(|b| b.new.urgency <= urgency);
        self.blocks.insert(at, block);
    }

    /// Takes the block at this place, before others of its stream perhaps.
    pub(crate) fn take(&mut self, at: usize) -> Option<WaitingBlock> {
        let stream = self.blocks.get(at)?.part.stream;
        for block in self.blocks.iter_mut().take(at) {
            block.is_awaited |= block.part.stream == stream;
        }
        let block = self.blocks.remove(at)?;
        self.bytes -= block.bytes();
        self.cost -= block.part.cost;
        Some(block)
    }

    /// Takes the blocks of a stream that is given up.
    pub(crate) fn take_stream(&mut self, stream: StreamId) -> Vec<WaitingBlock> {
        let is_of = |block: &WaitingBlock| block.part.stream == stream;
        let all = std::mem::take(&mut self.blocks).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(is_of);
        self.blocks = kept.into();
        for block in &gone {
            self.bytes -= block.bytes();
            self.cost -= block.part.cost;
        }
        gone
    }

    /// Cost of all waiting blocks in the flow-control window, bytes.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Cost of the waiting blocks of one stream, bytes.
    pub(crate) fn cost_of(&self, stream: StreamId) -> u64 {
        let of = self.blocks.iter().filter(|b| b.part.stream == stream);
        of.map(|block| block.part.cost).sum()
    }

    /// Whether no block of another stream waits.
    pub(crate) fn are_only_of(&self, stream: StreamId) -> bool {
        self.blocks.iter().all(|block| block.part.stream == stream)
    }

    /// Bytes of source symbols.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
