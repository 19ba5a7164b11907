//! Generations that arrive: the memory of their symbols, and what of them is in order.
//!
//! The core says which symbols are of use and how far they may be given out; here is what they hold. A symbol has memory of its own, which goes
//! to the application as it is.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::generation::Generation;
use sphinx_fec::{Added, RowMaker};
use sphinx_proto::wire::{Segment, SymbolId};
use sphinx_proto::{BlockId, InOrder};

use crate::pool::PoolBuffer;

/// A symbol in order.
pub(crate) struct Ready {
    pub(crate) memory: PoolBuffer,
    /// Index of the symbol among the `n` of its generation.
    pub(crate) index: usize,
    pub(crate) n: usize,
}

/// The segment that the symbols of the present generation continue.
pub(crate) struct Reading {
    /// The rest of the segment, which is to come.
    pub(crate) rest: Segment,
    /// Its last piece, if symbols of padding follow: these cost what they cost with it.
    pub(crate) last: Option<(PoolBuffer, usize, Segment)>,
    /// What the symbols have cost of which nothing has been given out.
    pub(crate) cost: u64,
}

/// Generations being received.
#[derive(Default)]
pub(crate) struct Generations {
    open: BTreeMap<BlockId, Generation<PoolBuffer>>,
    rows: RowMaker,
    ready: VecDeque<Ready>,
    pub(crate) reading: Option<Reading>,
    /// Bytes that were multiplied and added.
    operations: u64,
}

impl Generations {
    /// Stores a symbol; whether it was of use, as the core has found.
    pub(crate) fn store(
        &mut self,
        (block, n): (BlockId, u16),
        symbol: SymbolId,
        memory: PoolBuffer,
    ) -> bool {
        let generation = match self.open.entry(block) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => match Generation::new(usize::from(n)) {
                Ok(new) => place.insert(new),
                Err(_) => return false,
            },
        };
        let (before, len) = (generation.operations(), memory.len());
        let added = match symbol {
            SymbolId::Source(index) => generation.add_source(usize::from(index), memory),
            SymbolId::Repair(_, row) => generation.add_row(&mut self.rows, row, memory),
        };
        self.operations += (generation.operations() - before) * len as u64;
        added == Added::Innovative
    }

    /// What may be given out; whether it was there.
    pub(crate) fn release(&mut self, in_order: &InOrder) -> bool {
        let Some(generation) = self.open.get_mut(&in_order.block) else {
            return false;
        };
        while generation.taken() < usize::from(in_order.upto) {
            let (index, n) = (generation.taken(), generation.len());
            let Some(memory) = generation.take() else {
                return false;
            };
            self.ready.push_back(Ready { memory, index, n });
        }
        if in_order.is_whole {
            self.open.remove(&in_order.block);
        }
        true
    }

    /// The next symbol in order.
    pub(crate) fn next(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Bytes that were multiplied and added.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }
}
