//! Which of the peer's blocks are complete, and what is told of them (Block-SACK).

use crate::BlockId;
use crate::ranges::Filling;
use crate::wire::{BLOCKS_AHEAD_MAX, Blocks};

use super::incoming::RxBlocks;

/// A complete block is told in so many SACKs, so that all of them must be lost before the sender does not
/// know of it.
const REPEATS: u8 = 3;
/// Entries of a BLOCKS frame; no block is further than [`BLOCKS_AHEAD_MAX`] from the base, so
/// that each takes four bytes at most.
const COMPLETE_MAX: usize = 64;
const DEFICITS_MAX: usize = 32;

/// What is known of the blocks that the peer sends, those that are complete included.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    complete: Filling<BlockId>,
    /// Highest block of which a symbol arrived, plus one.
    seen: BlockId,
    /// SACKs that will have a BLOCKS frame even if no block is open.
    news: u8,
}

impl Completion {
    /// Every block below is complete.
    pub(crate) fn base(&self) -> BlockId {
        self.complete.base()
    }

    /// Whether the block is complete, or was.
    pub(crate) fn is_complete(&self, id: BlockId) -> bool {
        self.complete.contains(id)
    }

    /// The base, and the complete blocks above it, as many as a frame takes.
    pub(crate) fn complete(&self) -> (BlockId, Vec<(BlockId, BlockId)>) {
        let above = self.complete.above().take(COMPLETE_MAX);
        (self.base(), above.collect())
    }

    /// Whether the block is not too far ahead to be opened.
    pub(crate) fn may_open(&self, id: BlockId) -> bool {
        id < self.base() + BLOCKS_AHEAD_MAX
    }

    /// A symbol of the block has arrived, or could.
    pub(crate) fn on_open(&mut self, id: BlockId) {
        self.seen = self.seen.max(id + 1);
    }

    /// The block has all it needs.
    pub(crate) fn on_complete(&mut self, id: BlockId) {
        self.complete.insert(id);
        self.repeat_news();
    }

    /// The peer has not heard that a block is complete.
    pub(crate) fn repeat_news(&mut self) {
        self.news = REPEATS;
    }

    /// The next feedback says which blocks are complete, although it may have been said.
    pub(crate) fn report(&mut self) {
        self.news = self.news.max(u8::from(self.seen > BlockId::ZERO));
    }

    /// What feedback says, if there is anything to say; deficits are those of blocks whose flight has passed: all but
    /// the newest, and that one too at the end of a flight.
    pub(crate) fn feedback(&mut self, blocks: &RxBlocks, flight_over: bool) -> Option<Blocks> {
        if self.news == 0 && blocks.is_empty() {
            return None;
        }
        self.news = self.news.saturating_sub(1);
        let passed = if flight_over {
            self.seen
        } else {
            BlockId::new(self.seen.get().saturating_sub(1))
        };
        Some(Blocks {
            base: self.base(),
            complete: self.complete.above().take(COMPLETE_MAX).collect(),
            deficits: blocks.deficits(passed).take(DEFICITS_MAX).collect(),
        })
    }
}
