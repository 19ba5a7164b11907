//! Blocks that arrive: their slots, and how much of them is known.

use std::collections::BTreeMap;

use sphinx_fec::{Added, CodeId, Row, RowMaker, Tracker};

use crate::types::{Slot, block_cost};
use crate::wire::SymbolId;

use super::coding;

/// Source symbols of a block, and bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
}

impl Shape {
    /// What the block costs in the window.
    pub(crate) fn cost(self) -> u64 {
        block_cost(self.n, self.symbol_len)
    }
}

/// A block that lacks symbols.
#[derive(Debug)]
struct RxBlock {
    slot: Slot,
    shape: Shape,
    tracker: Tracker,
    /// Repair symbols kept. With one the block goes through the decoder, even if the last symbol
    /// to arrive was a source symbol.
    repairs: u16,
    /// They are those of a transform, which no others can be mixed with.
    is_transform: bool,
    /// Rows of peeling codes are eliminated like others: fewer of them are needed, and no more than n
    /// are kept.
    maximum_likelihood: bool,
}

impl RxBlock {
    fn add_repair(&mut self, rows: &mut RowMaker, code: CodeId, row: Row) -> Added {
        // Peeling may want more; the missing symbols themselves will come.
        if self.repairs >= self.shape.n {
            return Added::Redundant;
        }
        let Shape { n, symbol_len } = self.shape;
        let is_transform = coding::is_transform(code);
        if is_transform && !coding::is_transform_possible(n, symbol_len, row) {
            return Added::Invalid;
        }
        if self.repairs > 0 && is_transform != self.is_transform {
            return Added::Redundant;
        }
        let added = self.tracker.add_repair(rows, code, row);
        if added == Added::Innovative {
            self.repairs += 1;
            self.is_transform = is_transform;
        }
        added
    }
}

/// A block that has all it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) slot: Slot,
    /// How its missing symbols are to be computed; `None` if all are there.
    pub(crate) decoding: Option<Decoding>,
}

/// How a block is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoding {
    /// By elimination over all repairs together, whatever their codes.
    pub(crate) maximum_likelihood: bool,
}

/// What a block in memory costs, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) stream: u16,
    pub(crate) cost: u64,
}

/// Blocks being received, by stream and id, and the slots of these and of those that the application has not taken.
#[derive(Default)]
pub(crate) struct RxBlocks {
    blocks: BTreeMap<(u16, u64), RxBlock>,
    rows: RowMaker,
    /// `None`: the slot is free.
    slots: Vec<Option<Held>>,
    free: Vec<Slot>,
}

impl RxBlocks {
    /// Whether no block lacks symbols.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether a block of the stream lacks symbols.
    pub(crate) fn has_open(&self, stream: u16) -> bool {
        let mut blocks = self.blocks.range((stream, 0)..=(stream, u64::MAX));
        blocks.next().is_some()
    }

    /// Slot and shape of a block that lacks symbols.
    pub(crate) fn get(&self, stream: u16, id: u64) -> Option<(Slot, Shape)> {
        let block = self.blocks.get(&(stream, id))?;
        Some((block.slot, block.shape))
    }

    /// Opens a block; `code` is that of its first symbol. `None` if there is no such shape.
    pub(crate) fn open(
        &mut self,
        (stream, id): (u16, u64),
        shape: Shape,
        code: Option<CodeId>,
    ) -> Option<Slot> {
        let tracker = Tracker::new(usize::from(shape.n)).ok()?;
        // Of a block of `lt` no source symbol is sent.
        let maximum_likelihood = coding::is_rateless(code);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(self.slots.len() as u32 - 1)
        });
        let cost = shape.cost();
        self.slots[slot.0 as usize] = Some(Held { stream, cost });
        let block = RxBlock {
            slot,
            shape,
            tracker: if maximum_likelihood {
                tracker.maximum_likelihood()
            } else {
                tracker
            },
            repairs: 0,
            is_transform: false,
            maximum_likelihood,
        };
        self.blocks.insert((stream, id), block);
        Some(slot)
    }

    /// An authenticated symbol of an open block.
    pub(crate) fn add(&mut self, stream: u16, id: u64, symbol: SymbolId) -> Added {
        let Some(block) = self.blocks.get_mut(&(stream, id)) else {
            return Added::Redundant;
        };
        match symbol {
            SymbolId::Source(index) => block.tracker.add_source(usize::from(index)),
            SymbolId::Repair(code, row) => block.add_repair(&mut self.rows, code, row),
        }
    }

    /// The block, if it has all it needs by now; it is open no more.
    pub(crate) fn take_complete(&mut self, stream: u16, id: u64) -> Option<Complete> {
        let block = self.blocks.get(&(stream, id))?;
        if !block.tracker.is_decodable() {
            return None;
        }
        let block = self.blocks.remove(&(stream, id))?;
        Some(Complete {
            slot: block.slot,
            decoding: (block.repairs > 0).then_some(Decoding {
                maximum_likelihood: block.maximum_likelihood,
            }),
        })
    }

    /// Symbols that the stream's open blocks lack, by id, of those below `end`.
    pub(crate) fn deficits(&self, stream: u16, end: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.blocks
            .range((stream, 0)..(stream, end))
            .map(|((_, id), block)| (*id, block.tracker.deficit() as u32))
    }

    /// The application has taken a block: its slot is free. `None` if it was free before.
    pub(crate) fn release(&mut self, slot: Slot) -> Option<Held> {
        let held = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.free.push(slot);
        Some(held)
    }
}
