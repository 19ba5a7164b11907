//! What repairs of sliding windows restore, worked out another way than the core does: sparse rows, of which none is given up
//! for want of room. So the core must not restore more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sphinx_fec::{CodeId, Row, RowMaker, bits, gf256};
use sphinx_proto::{CoveredBlock, PastBlock};

/// Low bits of a block's id, and the index of a symbol.
type Symbol = (u32, u16);

/// Rows over symbols that are not known, and the blocks that the core has kept.
#[derive(Default)]
pub(super) struct Windows {
    maker: RowMaker,
    /// By pivots, each of which no other row has, with coefficient 1.
    rows: BTreeMap<Symbol, BTreeMap<Symbol, u8>>,
    restored: VecDeque<Symbol>,
    ever_restored: BTreeSet<Symbol>,
    past: VecDeque<(u32, (u16, u16))>,
}

fn add_multiple(row: &mut BTreeMap<Symbol, u8>, other: &BTreeMap<Symbol, u8>, factor: u8) {
    for (symbol, coefficient) in other {
        let sum = row.entry(*symbol).or_insert(0);
        *sum ^= gf256::mul(*coefficient, factor);
        if *sum == 0 {
            row.remove(symbol);
        }
    }
}

impl Windows {
    /// The core keeps a repair.
    pub(super) fn add(&mut self, row: Row, covered: &[CoveredBlock]) {
        let count = covered.iter().map(|block| usize::from(block.count)).sum();
        let terms = self.maker.terms(CodeId::Window, count, row);
        let terms: Vec<_> = terms.expect("a row that exists").to_vec();
        let symbols = covered.iter().flat_map(|block| {
            let known = block.incomplete.as_ref().map(|block| &block.known);
            (0..block.count).map(move |index| {
                let is_known = known.is_none_or(|known| bits::contains(known, usize::from(index)));
                (!is_known).then_some((block.block.truncated(), index))
            })
        });
        let symbols: Vec<_> = symbols.collect();
        let mut sum = BTreeMap::new();
        for term in terms {
            if let Some(symbol) = symbols[usize::from(term.index)] {
                sum.insert(symbol, term.coefficient);
            }
        }
        assert!(!sum.is_empty(), "a repair that is of no use");
        // The core may have given up what is known here.
        sum.retain(|symbol, _| !self.ever_restored.contains(symbol));
        for (pivot, other) in &self.rows {
            if let Some(factor) = sum.get(pivot).copied() {
                add_multiple(&mut sum, other, factor);
            }
        }
        self.insert(sum);
        self.settle();
    }

    /// Inserts a row without the pivots of others.
    fn insert(&mut self, mut row: BTreeMap<Symbol, u8>) {
        let Some((pivot, coefficient)) = row.first_key_value().map(|(at, c)| (*at, *c)) else {
            return;
        };
        let inverse = gf256::inv(coefficient);
        row.values_mut().for_each(|c| *c = gf256::mul(*c, inverse));
        for other in self.rows.values_mut() {
            if let Some(factor) = other.get(&pivot).copied() {
                add_multiple(other, &row, factor);
            }
        }
        self.rows.insert(pivot, row);
    }

    /// A symbol is known.
    pub(super) fn learn(&mut self, block: u32, index: u16) {
        let symbol = (block, index);
        for row in self.rows.values_mut() {
            row.remove(&symbol);
        }
        if let Some(row) = self.rows.remove(&symbol) {
            self.insert(row);
        }
        self.settle();
    }

    fn settle(&mut self) {
        let solved = self.rows.iter().filter(|(_, row)| row.len() == 1);
        let solved: Vec<_> = solved.map(|(pivot, _)| *pivot).collect();
        for pivot in solved {
            self.rows.remove(&pivot);
            self.ever_restored.insert(pivot);
            self.restored.push_back(pivot);
        }
    }

    /// All of a block is known, and it is kept.
    pub(super) fn complete(&mut self, past: PastBlock, (n, symbol_len): (u16, u16)) {
        let block = past.block.truncated();
        (0..n).for_each(|index| self.learn(block, index));
        self.restored.retain(|(other, _)| *other != block);
        self.past.push_back((block, (n, symbol_len)));
        assert!(past.forget <= self.past.len(), "more than there is");
        self.past.drain(..past.forget);
    }

    /// Nothing more comes of a block: what rows say of its symbols is of no use, and what they say of others stays.
    pub(super) fn give_up(&mut self, block: u32) {
        let its = (block, 0)..=(block, u16::MAX);
        let one_of = |row: &BTreeMap<Symbol, u8>| row.range(its.clone()).next().map(|(at, _)| *at);
        let find = |(pivot, row): (&Symbol, &_)| Some((*pivot, one_of(row)?));
        while let Some((pivot, symbol)) = self.rows.iter().find_map(find) {
            // For each symbol one row goes, and the others that have it lose it.
            let row = self.rows.remove(&pivot).expect("just found");
            let inverse = gf256::inv(row[&symbol]);
            for other in self.rows.values_mut() {
                if let Some(factor) = other.get(&symbol).copied() {
                    add_multiple(other, &row, gf256::mul(factor, inverse));
                }
            }
        }
    }

    /// Whether such a block is kept.
    pub(super) fn keeps(&self, block: u32, shape: (u16, u16)) -> bool {
        self.past.contains(&(block, shape))
    }

    /// Bytes of the blocks that are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        let bytes = |(_, (n, len)): &(u32, (u16, u16))| u64::from(*n) * u64::from(*len);
        self.past.iter().map(bytes).sum()
    }

    /// Whether rows have restored this symbol.
    pub(super) fn has_restored(&self, block: u32, index: u16) -> bool {
        self.ever_restored.contains(&(block, index))
    }

    /// The next symbol that is restored, of an incomplete block.
    pub(super) fn next_restored(&mut self) -> Option<Symbol> {
        self.restored.pop_front()
    }
}
