//! The sliding-window code over streams that are cut into blocks.
//!
//! A repair is a row of [`window`](crate::window) over symbols of several blocks, which lie in memory of
//! their own and may have symbols of different sizes: shorter ones count as padded with zeros. The
//! receiver names each symbol by a number of its choice, and restores symbols one by one into
//! whatever memory the blocks have.
//!
//! ```
//! use sphinx_fec::span::{self, Covered, SpanBlock, SpanDecoder};
//! use sphinx_fec::{Row, RowMaker};
//!
//! // Two blocks, of 3 and of 2 symbols.
//! let (old, new) = (*b"aabbcc", *b"dddeee");
//! let (mut maker, row) = (RowMaker::new(), Row::new(7).unwrap());
//! let blocks = [
//!     SpanBlock { symbols: &old, symbol_len: 2, count: 3 },
//!     SpanBlock { symbols: &new, symbol_len: 3, count: 2 },
//! ];
//! let mut repair = [0; 3];
//! span::encode(&mut maker, row, &blocks, &mut repair)?;
//!
//! // Symbol 1 of the first block is lost.
//! let mut decoder = SpanDecoder::new(16, 3)?;
//! let covered = [
//!     Covered { block: blocks[0], first: 100, known: Some(&[0b101]) },
//!     Covered { block: blocks[1], first: 200, known: None },
//! ];
//! decoder.add_repair(&mut maker, row, &covered, &repair);
//! assert_eq!(decoder.next_restored(), Some((101, b"bb\0".to_vec())));
//! # Ok::<(), sphinx_fec::Error>(())
//! ```

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use crate::bits;
use crate::code::{CodeId, Error, Row, check_block_size, check_length};
use crate::echelon::Echelon;
use crate::engine::{Columns, Engine, Start, Term};
use crate::rows::RowMaker;
use crate::tracker::Added;

/// A block, or its beginning, that a repair covers.
#[derive(Clone, Copy, Debug)]
pub struct SpanBlock<'a> {
    /// The block's symbols, one after another.
    pub symbols: &'a [u8],
    /// Bytes of each.
    pub symbol_len: usize,
    /// Symbols covered, from the first.
    pub count: usize,
}

impl SpanBlock<'_> {
    fn check(&self, longest: usize) -> Result<(), Error> {
        check_length(self.symbol_len.min(longest), self.symbol_len)?;
        let covered = self.count.saturating_mul(self.symbol_len);
        check_length(covered, self.symbols.len().min(covered))
    }
}

/// Computes a repair of some blocks, the oldest first, into `out`, which is as long as their longest
/// symbol.
///
/// # Errors
/// If the blocks have no symbol or more than [`SYMBOLS_MAX`](crate::SYMBOLS_MAX), or a block or `out` is
/// too short.
pub fn encode(
    maker: &mut RowMaker,
    row: Row,
    blocks: &[SpanBlock<'_>],
    out: &mut [u8],
) -> Result<(), Error> {
    let engine = Engine::detect();
    for block in blocks {
        block.check(out.len())?;
    }
    let count = blocks.iter().map(|block| block.count).sum();
    let mut terms = maker.terms(CodeId::Window, count, row)?.to_vec();
    out.fill(0);
    let mut rest = &mut terms[..];
    let mut first = 0;
    for block in blocks {
        let (terms, later) = rest.split_at_mut(block.count);
        rest = later;
        for term in &mut *terms {
            term.index -= first;
        }
        first += block.count as u16;
        let columns = Columns {
            symbols: block.symbols,
            symbol_len: block.symbol_len,
            first: 0,
        };
        engine.combine(
            &mut out[..block.symbol_len],
            Start::Accumulate,
            columns,
            terms,
        );
    }
    Ok(())
}

/// A covered block at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct Covered<'a> {
    /// Its memory; what lies in the places of unknown symbols does not matter.
    pub block: SpanBlock<'a>,
    /// The number of its first symbol; the others follow.
    pub first: u64,
    /// The symbols that are known, as a bit map (see [`bits`]); `None` if all are.
    pub known: Option<&'a [u64]>,
}

/// Restores symbols from repairs that cover several blocks.
///
/// Its memory is at most about `capacity · (capacity + symbol_len)` bytes, and the work for one repair a
/// pass over that and over the symbols covered.
#[derive(Debug)]
pub struct SpanDecoder {
    engine: Engine,
    symbol_len: usize,
    /// The columns of unknown symbols, and those that nobody has.
    columns: BTreeMap<u64, u16>,
    free: Vec<u16>,
    /// The symbols of columns in use.
    symbols: Vec<u64>,
    echelon: Echelon,
    restored: VecDeque<(u64, Vec<u8>)>,
    padded: Vec<u8>,
    known_terms: Vec<Term>,
}

impl SpanDecoder {
    /// A decoder for at most `capacity` unknown symbols at a time, of at most `symbol_len` bytes.
    ///
    /// # Errors
    /// If `capacity` is 0 or above [`SYMBOLS_MAX`](crate::SYMBOLS_MAX).
    pub fn new(capacity: usize, symbol_len: usize) -> Result<Self, Error> {
        check_block_size(capacity)?;
        let mut echelon = Echelon::default();
        echelon.reset(capacity, symbol_len);
        Ok(Self {
            engine: Engine::detect(),
            symbol_len,
            columns: BTreeMap::new(),
            free: (0..capacity as u16).rev().collect(),
            symbols: vec![0; capacity],
            echelon,
            restored: VecDeque::new(),
            padded: Vec::new(),
            known_terms: Vec::new(),
        })
    }

    /// Longest symbol, bytes.
    #[must_use]
    pub fn symbol_len(&self) -> usize {
        self.symbol_len
    }

    /// Takes in a repair of some blocks, the oldest first. When it needs the room, the oldest unknown
    /// symbols are given up.
    pub fn add_repair(
        &mut self,
        maker: &mut RowMaker,
        row: Row,
        blocks: &[Covered<'_>],
        symbol: &[u8],
    ) -> Added {
        let is_possible = symbol.len() <= self.symbol_len
            && blocks.iter().all(|c| c.block.check(symbol.len()).is_ok());
        let count = blocks.iter().map(|covered| covered.block.count).sum();
        let Ok(terms) = maker.terms(CodeId::Window, count, row) else {
            return Added::Invalid;
        };
        if !is_possible {
            return Added::Invalid;
        }
        let mut payload = core::mem::take(&mut self.padded);
        payload.clear();
        payload.extend_from_slice(symbol);
        payload.resize(self.symbol_len, 0);
        let mut unknown = Vec::new();
        let mut terms = terms.iter();
        for Covered {
            block,
            first,
            known,
        } in blocks
        {
            self.known_terms.clear();
            for (i, term) in terms.by_ref().take(block.count).enumerate() {
                if known.is_none_or(|known| bits::contains(known, i)) {
                    self.known_terms.push(Term {
                        index: i as u16,
                        coefficient: term.coefficient,
                    });
                } else {
                    unknown.push((first + i as u64, term.coefficient));
                }
            }
            let columns = Columns {
                symbols: block.symbols,
                symbol_len: block.symbol_len,
                first: 0,
            };
            let payload = &mut payload[..block.symbol_len];
            self.engine
                .combine(payload, Start::Accumulate, columns, &self.known_terms);
        }
        let is_new = self.insert(&unknown, &payload);
        self.padded = payload;
        if is_new {
            Added::Innovative
        } else {
            Added::Redundant
        }
    }

    /// Inserts a row over unknown symbols.
    fn insert(&mut self, unknown: &[(u64, u8)], payload: &[u8]) -> bool {
        let capacity = self.symbols.len();
        if unknown.is_empty() || unknown.len() > capacity {
            return false;
        }
        let fresh = |columns: &BTreeMap<u64, u16>| {
            let missing = unknown
                .iter()
                .filter(|(symbol, _)| !columns.contains_key(symbol));
            missing.count()
        };
        while fresh(&self.columns) > self.free.len() {
            let Some((_, column)) = self.columns.pop_first() else {
                return false;
            };
            self.echelon.abandon(self.engine, usize::from(column));
            self.free.push(column);
        }
        for (symbol, _) in unknown {
            if let Some(column) = (!self.columns.contains_key(symbol))
                .then(|| self.free.pop())
                .flatten()
            {
                self.columns.insert(*symbol, column);
                self.symbols[usize::from(column)] = *symbol;
            }
        }
        let columns = &self.columns;
        let is_new = self.echelon.insert(self.engine, |row| {
            for (symbol, coefficient) in unknown {
                if let Some(column) = columns.get(symbol) {
                    row[usize::from(*column)] = *coefficient;
                }
            }
            row[capacity..].copy_from_slice(payload);
        });
        self.settle();
        is_new
    }

    /// Takes note of a symbol that became known otherwise.
    ///
    /// # Panics
    /// If it is longer than the decoder's symbols.
    pub fn learn(&mut self, symbol: u64, value: &[u8]) {
        let Some(column) = self.columns.remove(&symbol) else {
            return;
        };
        self.free.push(column);
        self.padded.clear();
        self.padded.extend_from_slice(value);
        assert!(value.len() <= self.symbol_len, "a longer symbol");
        self.padded.resize(self.symbol_len, 0);
        self.echelon
            .substitute(self.engine, usize::from(column), &self.padded);
        self.settle();
    }

    /// The symbols from `first` to before `end` of which something is known but not enough.
    pub fn unknown(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.columns.range(first..end).map(|(symbol, _)| *symbol)
    }

    /// The next symbol that was restored, padded with zeros to the length of the decoder's symbols.
    pub fn next_restored(&mut self) -> Option<(u64, Vec<u8>)> {
        self.restored.pop_front()
    }

    fn settle(&mut self) {
        let Self {
            echelon,
            columns,
            free,
            symbols,
            restored,
            ..
        } = self;
        echelon.take_solved(|column, value| {
            let symbol = symbols[column];
            columns.remove(&symbol);
            free.push(column as u16);
            restored.push_back((symbol, value.to_vec()));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENS: [usize; 4] = [5, 8, 3, 8];
    const N: usize = 6;

    fn blocks() -> Vec<Vec<u8>> {
        let fill =
            |(b, len): (usize, &usize)| (0..N * len).map(|i| (i * 37 + b * 11) as u8).collect();
        LENS.iter().enumerate().map(fill).collect()
    }

    fn of(symbols: &[u8], b: usize, count: usize) -> SpanBlock<'_> {
        SpanBlock {
            symbols,
            symbol_len: LENS[b],
            count,
        }
    }

    /// Losses in all blocks come back as soon as there are as many repairs.
    #[test]
    fn restores_over_blocks_of_different_symbols() {
        let source = blocks();
        let lost = [(0, 1), (1, 0), (1, 5), (2, 2), (3, 3)];
        let known: Vec<u64> = (0..4)
            .map(|b| {
                (0..N)
                    .filter(|i| !lost.contains(&(b, *i)))
                    .fold(0, |k, i| k | 1 << i)
            })
            .collect();
        let mut memory = source.clone();
        for (b, i) in lost {
            memory[b][i * LENS[b]..(i + 1) * LENS[b]].fill(0xee);
        }
        let mut maker = RowMaker::new();
        let mut decoder = SpanDecoder::new(8, 8).unwrap();
        for row in 0..5 {
            assert_eq!(decoder.next_restored(), None);
            let row = Row::new(row).unwrap();
            let sent: Vec<_> = (0..4)
                .map(|b| of(&source[b], b, if b == 3 { 4 } else { N }))
                .collect();
            let mut repair = [0; 8];
            encode(&mut maker, row, &sent, &mut repair).unwrap();
            let covered: Vec<_> = (0..4)
                .map(|b| Covered {
                    block: of(&memory[b], b, sent[b].count),
                    first: 100 * b as u64,
                    known: Some(&known[b..=b]),
                })
                .collect();
            let added = decoder.add_repair(&mut maker, row, &covered, &repair);
            assert_eq!(added, Added::Innovative);
        }
        let mut restored: Vec<_> = core::iter::from_fn(|| decoder.next_restored()).collect();
        restored.sort();
        for ((b, i), (symbol, value)) in lost.into_iter().zip(restored) {
            assert_eq!(symbol, 100 * b as u64 + i as u64);
            assert_eq!(value[..LENS[b]], source[b][i * LENS[b]..(i + 1) * LENS[b]]);
        }
        assert_eq!(decoder.unknown(0, u64::MAX).count(), 0);
    }

    #[test]
    fn what_arrives_late_helps_and_what_is_too_old_is_given_up() {
        let source = blocks();
        let mut maker = RowMaker::new();
        let mut decoder = SpanDecoder::new(3, 8).unwrap();
        let add = |decoder: &mut SpanDecoder, maker: &mut RowMaker, first, row| {
            let row = Row::new(row).unwrap();
            let mut repair = [0; 8];
            encode(maker, row, &[of(&source[1], 1, 2)], &mut repair).unwrap();
            let covered = Covered {
                block: of(&source[1], 1, 2),
                first,
                known: Some(&[0]),
            };
            decoder.add_repair(maker, row, &[covered], &repair)
        };
        add(&mut decoder, &mut maker, 10, 0);
        decoder.learn(10, &source[1][..8]);
        assert_eq!(
            decoder.next_restored(),
            Some((11, source[1][8..16].to_vec()))
        );
        // Of four symbols in two rows only three have room.
        add(&mut decoder, &mut maker, 20, 1);
        add(&mut decoder, &mut maker, 30, 2);
        let left: Vec<u64> = decoder.unknown(0, 100).collect();
        assert!(left.len() <= 3 && left.contains(&31), "{left:?}");
        decoder.learn(31, &source[1][8..16]);
        assert_eq!(decoder.next_restored(), Some((30, source[1][..8].to_vec())));
    }

    #[test]
    fn impossible_repairs_are_invalid() {
        let mut maker = RowMaker::new();
        let mut decoder = SpanDecoder::new(4, 8).unwrap();
        let covered = |count, symbol_len| Covered {
            block: SpanBlock {
                symbols: &[0; 8],
                symbol_len,
                count,
            },
            first: 0,
            known: None,
        };
        for (block, len) in [
            (covered(0, 8), 8),
            (covered(2, 8), 8),
            (covered(1, 8), 4),
            (covered(1, 8), 9),
        ] {
            let added = decoder.add_repair(&mut maker, Row::MAX, &[block], &[0; 9][..len]);
            assert_eq!(added, Added::Invalid);
        }
        assert!(SpanDecoder::new(0, 1).is_err());
    }
}
