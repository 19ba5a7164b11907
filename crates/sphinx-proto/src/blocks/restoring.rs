//! Which source symbols the repairs of sliding windows restore. The coefficients alone say that, as
//! they say a block's rank; no payload is needed.
//!
//! The driver has the payload. It keeps the same rows and blocks as are kept here and treats them
//! in the same order, so that it can restore what this says at any later time.

use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::span::{CoveredSymbols, SpanLimits, SpanTracker};
use sphinx_fec::{Added, Row, RowMaker};

use crate::BlockId;
use crate::types::PastBlock;
use crate::wire::MAX_BLOCK_SYMBOLS;

use super::incoming::Shape;

/// Source symbols that are missing and that the rows kept may cover, at most.
const UNKNOWN_MAX: usize = 512;
/// Complete blocks that are kept because repairs may still cover them, at most.
const PAST_MAX: usize = 1024;
/// Bytes of those blocks, and of the rows as well: each at most `RESTORING_BYTES_MAX`, and at most the window
/// for received blocks divided by `SHARE`.
const RESTORING_BYTES_MAX: u64 = 2 << 20;
const SHARE: u64 = 4;
/// Sliding windows number the source symbols of all blocks in one sequence: symbol `i` of block `b` has the number
/// `SYMBOL_STRIDE · b + i`, whatever size the blocks have. Core and driver must number them alike.
pub const SYMBOL_STRIDE: u64 = MAX_BLOCK_SYMBOLS as u64;

/// A block of which a repair covers the first `count` symbols.
pub(crate) struct Covering<'a> {
    pub(crate) block: BlockId,
    pub(crate) count: u16,
    /// Which of its source symbols are here, as a bit map; `None`: it is complete.
    pub(crate) known: Option<&'a [u64]>,
}

/// What the repairs of sliding windows that have arrived are worth.
pub(crate) struct Restoring {
    bytes_max: u64,
    /// The rows; `None` until the first repair arrives, so that sessions without sliding windows
    /// keep nothing.
    tracker: Option<SpanTracker>,
    /// Complete blocks that repairs may still cover, in the order of their completion; below, their
    /// shapes by id and the sum of their bytes.
    past: VecDeque<BlockId>,
    shapes: BTreeMap<BlockId, Shape>,
    past_bytes: u64,
}

impl Restoring {
    /// For a session with this window for received blocks.
    pub(crate) fn new(recv_window: u64) -> Self {
        Self {
            bytes_max: (recv_window / SHARE).min(RESTORING_BYTES_MAX),
            tracker: None,
            past: VecDeque::new(),
            shapes: BTreeMap::new(),
            past_bytes: 0,
        }
    }

    /// How many missing symbols the rows may cover, and how many bytes they may take.
    pub(crate) fn limits(&self) -> SpanLimits {
        SpanLimits {
            unknown: UNKNOWN_MAX,
            bytes: self.bytes_max as usize,
        }
    }

    /// The peer sends repairs of windows: blocks that become complete are remembered from now on.
    pub(crate) fn begin(&mut self) {
        if self.tracker.is_none() {
            self.tracker = SpanTracker::new(self.limits()).ok();
        }
    }

    /// Whether the peer sends repairs of windows.
    pub(crate) fn has_begun(&self) -> bool {
        self.tracker.is_some()
    }

    /// Whether this complete block is remembered.
    pub(crate) fn remembers(&self, block: BlockId, shape: Shape) -> bool {
        self.shapes.get(&block) == Some(&shape)
    }

    /// A repair of these blocks, oldest first: those that are complete must be remembered. `maker` is working memory.
    pub(crate) fn add<'a>(
        &mut self,
        maker: &mut RowMaker,
        row: Row,
        covered: impl Iterator<Item = Covering<'a>> + Clone,
        symbol_len: usize,
    ) -> Added {
        let Some(tracker) = &mut self.tracker else {
            return Added::Redundant;
        };
        let symbols = covered.map(|covering| CoveredSymbols {
            first: SYMBOL_STRIDE * covering.block.get(),
            count: usize::from(covering.count),
            known: covering.known,
        });
        tracker.add_repair(maker, row, symbols, symbol_len)
    }

    /// A source symbol has arrived.
    pub(crate) fn learn(&mut self, block: BlockId, index: u16) {
        if let Some(tracker) = &mut self.tracker {
            tracker.learn(SYMBOL_STRIDE * block.get() + u64::from(index));
        }
    }

    /// A block will never be complete.
    pub(crate) fn give_up(&mut self, block: BlockId) {
        if let Some(tracker) = &mut self.tracker {
            let first = SYMBOL_STRIDE * block.get();
            tracker.give_up(first, first + SYMBOL_STRIDE);
        }
    }

    /// All of a block is here or can be decoded. Returns what the driver is to keep and to forget
    /// in step with this, if the peer sends repairs of windows.
    pub(crate) fn complete(&mut self, block: BlockId, shape: Shape) -> Option<PastBlock> {
        let tracker = self.tracker.as_mut()?;
        let first = SYMBOL_STRIDE * block.get();
        let unknown: Vec<u64> = tracker.unknown(first, first + SYMBOL_STRIDE).collect();
        unknown.into_iter().for_each(|symbol| tracker.learn(symbol));
        self.past.push_back(block);
        self.shapes.insert(block, shape);
        self.past_bytes += shape.bytes();
        let before = self.past.len();
        while self.past.len() > PAST_MAX || self.past_bytes > self.bytes_max {
            let Some(oldest) = self.past.pop_front() else {
                break;
            };
            let shape = self.shapes.remove(&oldest);
            self.past_bytes -= shape.map_or(0, Shape::bytes);
        }
        let forget = before - self.past.len();
        Some(PastBlock { block, forget })
    }

    /// The next source symbol that repairs have restored: its block, which is incomplete, and its index there.
    pub(crate) fn next_restored(&mut self) -> Option<(BlockId, u16)> {
        let symbol = self.tracker.as_mut()?.next_restored()?;
        Some((
            BlockId::new(symbol / SYMBOL_STRIDE),
            (symbol % SYMBOL_STRIDE) as u16,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_known_until_there_are_too_many() {
        let shape = |symbol_len| Shape { n: 3, symbol_len };
        let mut restoring = Restoring::new(24 << 20);
        let complete = |restoring: &mut Restoring, id| {
            let past = restoring.complete(BlockId::new(id), shape(100));
            past.map(|past| past.forget)
        };
        let knows = |restoring: &Restoring, id, symbol_len| {
            restoring.remembers(BlockId::new(id), shape(symbol_len))
        };
        assert_eq!(complete(&mut restoring, 1), None, "nobody would cover it");
        restoring.begin();
        for id in [7, 4, 9] {
            assert_eq!(complete(&mut restoring, id), Some(0));
        }
        for id in 0..12 {
            assert_eq!(knows(&restoring, id, 100), [7, 4, 9].contains(&id), "{id}");
            assert!(!knows(&restoring, id, 98));
        }
        let last = 20 + PAST_MAX as u64;
        for id in 20..last {
            complete(&mut restoring, id);
        }
        // In the order in which they became whole.
        assert!([7, 4, 9].iter().all(|id| !knows(&restoring, *id, 100)));
        assert!((20..last).all(|id| knows(&restoring, id, 100)));
        assert_eq!(complete(&mut restoring, 8), Some(1));
        assert!(!knows(&restoring, 20, 100) && knows(&restoring, 21, 100));
        assert_eq!(restoring.shapes.len(), PAST_MAX);
    }
}
