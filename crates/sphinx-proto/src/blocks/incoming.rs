//! Blocks that arrive: their slots, and how much of them is known.

use std::collections::BTreeMap;
use std::ops::Range;

use sphinx_fec::{Added, CodeId, Row, RowMaker, Tracker, bits, srlt};

use crate::BlockId;
use crate::types::{Decoding, Slot, block_cost};
use crate::wire::SymbolId;

use super::coding;

/// Memory that a tracker takes for a symbol of a row that waits for peeling. All of them may take twice what the block
/// costs in the window, or tiny symbols with repairs of many members would take twenty times as much.
const MEMBER_BYTES: u64 = 8;
/// Repairs of a block that are looked at, beyond 2n. An honest sender's are of use but for a few; of somebody else
/// each may cost as much work as the block has coefficients.
const ROWS_SPARE: usize = 64;
/// Of those beyond, one in so many is: where most packets are lost, a flight that is protected ahead can have more rows, and
/// those that answer what it still lacks come last.
const LATE_ROWS: u32 = 16;
/// Repairs of a block that are kept for every one of its symbols in the paper's mode.
const PAPER_REPAIRS: u16 = 4;

/// Source symbols of a block, and bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
}

impl Shape {
    /// The block's cost in the flow-control window, bytes.
    pub(crate) fn cost(self) -> u64 {
        block_cost(self.n, self.symbol_len)
    }

    /// Bytes of its symbols.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.n) * u64::from(self.symbol_len)
    }
}

/// A block that lacks symbols.
#[derive(Debug)]
struct RxBlock {
    slot: Slot,
    shape: Shape,
    tracker: Tracker,
    /// Source symbols in the block's memory, as a bit map: not those that peeling could restore but has not.
    stored: Vec<u64>,
    /// Repair symbols kept. With one the block goes through the decoder, even if the last symbol
    /// to arrive was a source symbol.
    repairs: u16,
    /// They are those of a transform, which no others can be mixed with.
    is_transform: bool,
    /// Rows of peeling codes are eliminated like others: fewer of them are needed, and no more than n
    /// are kept.
    maximum_likelihood: bool,
    /// Names of the repairs that were looked at, sorted: code and row.
    looked_at: Vec<u32>,
    /// Repairs that came when enough had been looked at.
    late: u32,
    /// In the paper's mode only peeling counts, and a rateless code needs more repairs than there are symbols.
    is_paper: bool,
    /// Members of the rows kept for peeling.
    members: u64,
}

impl RxBlock {
    fn add_repair(&mut self, rows: &mut RowMaker, code: CodeId, row: Row) -> Added {
        // Peeling may want more; the missing symbols themselves will come.
        if self.repairs >= self.repairs_max() {
            return Added::Redundant;
        }
        let members = self.members_of(rows, code, row);
        if MEMBER_BYTES * (self.members + members) > 2 * self.shape.cost() {
            return Added::Redundant;
        }
        // A row that was of no use is of none later, and one that was has been taken.
        let name = u32::from(code.to_wire()) << 24 | row.number();
        let Err(at) = self.looked_at.binary_search(&name) else {
            return Added::Redundant;
        };
        if self.looked_at.len() < self.rows_looked_at_max() {
            self.looked_at.insert(at, name);
        } else {
            self.late = self.late.wrapping_add(1);
            if !self.late.is_multiple_of(LATE_ROWS) {
                return Added::Redundant;
            }
        }
        let added = self.add_new_repair(rows, code, row);
        if added == Added::Innovative {
            self.members += members;
        }
        added
    }

    /// Repairs that are kept.
    fn repairs_max(&self) -> u16 {
        match self.is_paper {
            true => PAPER_REPAIRS * self.shape.n.max(8),
            false => self.shape.n,
        }
    }

    fn rows_looked_at_max(&self) -> usize {
        let times = if self.is_paper { 2 * PAPER_REPAIRS } else { 2 };
        usize::from(times * self.shape.n) + ROWS_SPARE
    }

    /// Symbols that the tracker would have to remember of the row, one by one.
    fn members_of(&self, rows: &mut RowMaker, code: CodeId, row: Row) -> u64 {
        let n = self.shape.n;
        match code {
            _ if self.maximum_likelihood => 0,
            CodeId::Srlt => u64::from(srlt::split(row).0.min(u32::from(n))),
            // Also where a source symbol has come first, which no sender of these rows that means well sends.
            CodeId::Lt => rows
                .terms(code, usize::from(n), row)
                .map_or(0, |terms| terms.len() as u64),
            _ => 0,
        }
    }

    fn add_new_repair(&mut self, rows: &mut RowMaker, code: CodeId, row: Row) -> Added {
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

/// What a symbol did to its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: Slot,
    pub(crate) added: Added,
    /// Symbols that the block still lacks.
    pub(crate) lacking: u32,
}

/// A block that has all it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) slot: Slot,
    pub(crate) shape: Shape,
    /// How its missing symbols are to be computed; `None` if all are there.
    pub(crate) decoding: Option<Decoding>,
}

/// Blocks being received, by id, and the slots of these and of those whose parts have not been given to streams.
#[derive(Default)]
pub(crate) struct RxBlocks {
    blocks: BTreeMap<BlockId, RxBlock>,
    rows: RowMaker,
    /// What the block in each slot costs; `None`: it is free.
    slots: Vec<Option<Shape>>,
    free: Vec<Slot>,
    is_paper: bool,
}

impl RxBlocks {
    /// `is_paper`: in the paper's mode.
    pub(crate) fn new(is_paper: bool) -> Self {
        Self {
            is_paper,
            ..Self::default()
        }
    }

    /// Whether no block lacks symbols.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Slot and shape of a block that lacks symbols.
    pub(crate) fn get(&self, id: BlockId) -> Option<(Slot, Shape)> {
        let block = self.blocks.get(&id)?;
        Some((block.slot, block.shape))
    }

    /// Opens a block; `code` is that of its first symbol. `None` if there is no such shape.
    pub(crate) fn open(&mut self, id: BlockId, shape: Shape, code: Option<CodeId>) -> Option<Slot> {
        let tracker = Tracker::new(usize::from(shape.n)).ok()?;
        // Of a block of `lt` no source symbol is sent.
        let maximum_likelihood = coding::is_rateless(code) && !self.is_paper;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(self.slots.len() as u32 - 1)
        });
        self.slots[slot.0 as usize] = Some(shape);
        let block = RxBlock {
            slot,
            shape,
            tracker: if maximum_likelihood {
                tracker.maximum_likelihood()
            } else {
                tracker
            },
            stored: vec![0; bits::words(usize::from(shape.n))],
            repairs: 0,
            is_transform: false,
            maximum_likelihood,
            looked_at: Vec::new(),
            late: 0,
            is_paper: self.is_paper,
            members: 0,
        };
        self.blocks.insert(id, block);
        Some(slot)
    }

    /// An authenticated symbol of a block of this shape; `None`: it is not open.
    #[inline]
    pub(crate) fn add(&mut self, id: BlockId, shape: Shape, symbol: SymbolId) -> Option<Taken> {
        let block = self.blocks.get_mut(&id)?;
        if block.shape != shape {
            return None;
        }
        let added = match symbol {
            SymbolId::Source(index) => {
                let added = block.tracker.add_source(usize::from(index));
                if added == Added::Innovative {
                    bits::insert(&mut block.stored, usize::from(index));
                }
                added
            }
            SymbolId::Repair(code, row) => block.add_repair(&mut self.rows, code, row),
        };
        Some(Taken {
            slot: block.slot,
            added,
            lacking: block.tracker.deficit() as u32,
        })
    }

    /// Authenticated source symbols of a block of this shape, none of which is there; how many that were.
    #[inline]
    pub(crate) fn add_missing(&mut self, id: BlockId, shape: Shape, symbols: Range<u16>) -> u64 {
        if symbols.is_empty() {
            return 0;
        }
        let block = self
            .blocks
            .get_mut(&id)
            .filter(|block| block.shape == shape);
        let Some(block) = block else { return 0 };
        let mut added = 0;
        for index in symbols.map(usize::from) {
            if block.tracker.add_source(index) == Added::Innovative {
                bits::insert(&mut block.stored, index);
                added += 1;
            }
        }
        added
    }

    /// Whether repairs of an open block have arrived.
    pub(crate) fn has_repairs(&self, id: BlockId) -> bool {
        self.blocks.get(&id).is_some_and(|block| block.repairs > 0)
    }

    /// Symbols of an open block, and those that have arrived or been peeled, as a bit map.
    pub(crate) fn known(&self, id: BlockId) -> Option<(u16, &[u64])> {
        let block = self.blocks.get(&id)?;
        Some((block.shape.n, block.tracker.known()))
    }

    /// Working memory for rows.
    pub(crate) fn maker(&mut self) -> &mut RowMaker {
        &mut self.rows
    }

    /// A source symbol of an open block has been restored from elsewhere.
    pub(crate) fn restore(&mut self, id: BlockId, index: u16) {
        if let Some(block) = self.blocks.get_mut(&id)
            && block.tracker.add_source(usize::from(index)) != Added::Invalid
        {
            bits::insert(&mut block.stored, usize::from(index));
        }
    }

    /// Source symbols that are in an open block's memory, as a bit map.
    pub(crate) fn stored(&self, id: BlockId) -> Option<&[u64]> {
        Some(&self.blocks.get(&id)?.stored)
    }

    #[cfg(test)]
    fn rows_looked_at(&self, id: BlockId) -> usize {
        let block = self.blocks.get(&id);
        block.map_or(0, |block| block.looked_at.len())
    }

    /// The block, if it has all it needs by now; it is open no more.
    pub(crate) fn take_complete(&mut self, id: BlockId) -> Option<Complete> {
        let block = self.blocks.get(&id)?;
        if !block.tracker.is_decodable() {
            return None;
        }
        let block = self.blocks.remove(&id)?;
        Some(Complete {
            slot: block.slot,
            shape: block.shape,
            decoding: (block.repairs > 0).then_some(Decoding {
                maximum_likelihood: block.maximum_likelihood,
            }),
        })
    }

    /// The block will never be complete: its slot, to be [freed](Self::free).
    pub(crate) fn abandon(&mut self, id: BlockId) -> Option<Slot> {
        self.blocks.remove(&id).map(|block| block.slot)
    }

    /// Symbols that open blocks lack, by id, of those below `end`.
    pub(crate) fn deficits(&self, end: BlockId) -> impl Iterator<Item = (BlockId, u32)> + '_ {
        self.blocks
            .range(..end)
            .map(|(id, block)| (*id, block.tracker.deficit() as u32))
    }

    /// Symbols that a block lacks, while it is open.
    pub(crate) fn lacks(&self, id: BlockId) -> Option<u32> {
        Some(self.blocks.get(&id)?.tracker.deficit() as u32)
    }

    /// What a complete block held is elsewhere: its slot is free. `None` if it was free before.
    pub(crate) fn free(&mut self, slot: Slot) -> Option<Shape> {
        let shape = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.free.push(slot);
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use sphinx_fec::{rlc, srlt};

    use super::*;

    const ID: BlockId = BlockId::ZERO;

    /// An open block of which nothing has arrived.
    fn open(n: u16, symbol_len: u16) -> RxBlocks {
        let mut blocks = RxBlocks::default();
        let shape = Shape { n, symbol_len };
        assert!(blocks.open(ID, shape, None).is_some());
        blocks
    }

    fn add(blocks: &mut RxBlocks, id: BlockId, symbol: SymbolId) -> Added {
        let (_, shape) = blocks.get(id).expect("open");
        let taken = blocks.add(id, shape, symbol).expect("open");
        assert_eq!(blocks.lacks(id), Some(taken.lacking));
        taken.added
    }

    fn repair(blocks: &mut RxBlocks, code: CodeId, row: Row) -> Added {
        add(blocks, ID, SymbolId::Repair(code, row))
    }

    #[test]
    fn slots_of_blocks_that_are_elsewhere_are_used_again() {
        let mut blocks = RxBlocks::default();
        let shape = Shape {
            n: 1,
            symbol_len: 10,
        };
        for id in 0..100 {
            let slot = blocks.open(BlockId::new(id), shape, None);
            assert_eq!(slot, Some(Slot(0)));
            add(&mut blocks, BlockId::new(id), SymbolId::Source(0));
            assert!(blocks.take_complete(BlockId::new(id)).is_some());
            assert_eq!(blocks.free(Slot(0)), Some(shape));
            assert_eq!(blocks.free(Slot(0)), None);
        }
    }

    #[test]
    fn equal_sparse_rows_are_kept_once() {
        let mut blocks = open(32, 1000);
        let row = srlt::row(4, 1);
        assert_eq!(repair(&mut blocks, CodeId::Srlt, row), Added::Innovative);
        for _ in 0..100 {
            assert_eq!(repair(&mut blocks, CodeId::Srlt, row), Added::Redundant);
        }
        let other = srlt::row(4, 2);
        assert_eq!(repair(&mut blocks, CodeId::Srlt, other), Added::Innovative);
    }

    #[test]
    fn sparse_rows_take_no_more_than_twice_what_the_block_costs() {
        for (n, symbol_len, degree, least) in [
            (32, 1, 32, 4),
            (32, 1, 2, 32),
            (1024, 512, 512, 64),
            (100, 1160, 16, 100),
        ] {
            let mut blocks = open(n, symbol_len);
            let kept = (0..2000)
                .filter(|seed| {
                    let row = srlt::row(degree, *seed);
                    repair(&mut blocks, CodeId::Srlt, row) == Added::Innovative
                })
                .count() as u64;
            let bytes = kept * u64::from(degree) * 8;
            let cost = block_cost(n, symbol_len);
            assert!(bytes <= 2 * cost, "{bytes} bytes for {cost}, n = {n}");
            // What an honest sender sends of the code is taken all the same.
            assert!(kept >= least, "{kept} rows, n = {n}");
        }
    }

    /// A block of which one symbol is missing, and many rows have come that do not hold it.
    #[test]
    fn rows_that_come_late_are_looked_at_now_and_then() {
        let almost = || {
            let mut blocks = open(20, 20);
            for index in 1..20 {
                add(&mut blocks, ID, SymbolId::Source(index));
            }
            blocks
        };
        let mut blocks = almost();
        for index in 0..1000 {
            // Rows that hold one symbol each.
            let row = rlc::row(20, index);
            if repair(&mut almost(), CodeId::Rlc, row) != Added::Innovative {
                repair(&mut blocks, CodeId::Rlc, row);
            }
        }
        let mut dense = (0..LATE_ROWS).map(|index| rlc::row(1, 100 + index));
        assert!(dense.any(|row| repair(&mut blocks, CodeId::Rlc, row) == Added::Innovative));
    }

    #[test]
    fn a_row_is_looked_at_once() {
        let n = 64;
        let mut blocks = open(n, 1000);
        for index in 0..u32::from(n) - 1 {
            let row = rlc::row(1, index);
            assert_eq!(repair(&mut blocks, CodeId::Rlc, row), Added::Innovative);
        }
        // At rank n - 1 each further row would cost a pass over all others.
        for again in 0..10_000 {
            let row = rlc::row(1, again % (u32::from(n) - 1));
            assert_eq!(repair(&mut blocks, CodeId::Rlc, row), Added::Redundant);
        }
        assert_eq!(blocks.rows_looked_at(ID), usize::from(n) - 1);
        let last = rlc::row(1, 500);
        assert_eq!(repair(&mut blocks, CodeId::Rlc, last), Added::Innovative);
    }
}
