//! The sliding-window code over streams that are cut into blocks.
//!
//! A repair is a row of [`window`](crate::window) over symbols of several blocks, which lie in memory of
//! their own and may have symbols of different sizes: shorter ones count as padded with zeros. The
//! receiver names each symbol by a number of its choice, and restores symbols one by one into
//! whatever memory the blocks have. Who has no payload follows with a [`SpanTracker`] what a [`SpanDecoder`] can restore.
//!
//! ```
//! use sphinx_fec::span::{self, Covered, SpanBlock, SpanDecoder, SpanLimits};
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
//! let mut decoder = SpanDecoder::new(SpanLimits { unknown: 16, bytes: 1 << 10 })?;
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
    /// Bytes of each symbol.
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

/// Symbols of a covered block at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct CoveredSymbols<'a> {
    /// The number of the first one; the others follow.
    pub first: u64,
    /// Symbols covered.
    pub count: usize,
    /// Those that are known, as a bit map (see [`bits`]); `None` if all are.
    pub known: Option<&'a [u64]>,
}

/// A covered block at its receiver, with its symbols.
#[derive(Clone, Copy, Debug)]
pub struct Covered<'a> {
    /// Its memory; what lies in the places of unknown symbols does not matter.
    pub block: SpanBlock<'a>,
    /// The number of its first symbol; the others follow.
    pub first: u64,
    /// The symbols that are known, as a bit map (see [`bits`]); `None` if all are.
    pub known: Option<&'a [u64]>,
}

/// Symbols that are given up one by one for the sake of one row or of one block, each a pass over the rows. Where more room is needed, everything
/// is given up at once: else a peer could have the work of hundreds of passes done for each packet.
const GIVE_UP_MAX: usize = 32;

/// What the rows of a receiver may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLimits {
    /// Unknown symbols that rows wait for at a time.
    pub unknown: usize,
    /// Bytes. A row counts as its coefficients twice, as a tracker and a decoder have them, and the longest symbol
    /// that has been covered.
    pub bytes: usize,
}

/// Rows over unknown symbols. With the same limits, and told the same in the same order, two of them always wait for the
/// same symbols, whether they carry payload or not.
#[derive(Debug)]
struct Elimination {
    engine: Engine,
    limits: SpanLimits,
    has_payload: bool,
    /// Longest symbol covered so far, bytes.
    symbol_len: usize,
    /// The columns of unknown symbols, and those that nobody has.
    columns: BTreeMap<u64, u16>,
    free: Vec<u16>,
    /// The symbols of columns in use.
    symbols: Vec<u64>,
    echelon: Echelon,
}

impl Elimination {
    fn new(limits: SpanLimits, has_payload: bool) -> Result<Self, Error> {
        check_block_size(limits.unknown)?;
        let mut elimination = Self {
            engine: Engine::detect(),
            limits,
            has_payload,
            symbol_len: 0,
            columns: BTreeMap::new(),
            free: Vec::new(),
            symbols: vec![0; limits.unknown],
            echelon: Echelon::default(),
        };
        elimination.reset(0);
        Ok(elimination)
    }

    /// Gives everything up, for symbols of up to `symbol_len` bytes.
    fn reset(&mut self, symbol_len: usize) {
        let unknown = self.limits.unknown;
        self.symbol_len = symbol_len;
        self.columns.clear();
        self.free = (0..unknown as u16).rev().collect();
        let carried = if self.has_payload { symbol_len } else { 0 };
        self.echelon.reset(unknown, carried);
    }

    /// Whether a row over so many unknown symbols of at most `symbol_len` bytes can be of use at all. A longer symbol
    /// than any before has everything given up that waits.
    fn prepare(&mut self, unknown: usize, symbol_len: usize) -> bool {
        let is_possible = (1..=self.limits.unknown).contains(&unknown);
        if is_possible && symbol_len > self.symbol_len {
            self.reset(symbol_len);
        }
        is_possible
    }

    fn rows_max(&self) -> usize {
        self.limits.bytes / (2 * self.limits.unknown + self.symbol_len)
    }

    /// Inserts a row over unknown symbols that [`Self::prepare`] has found possible, with as much payload as is carried.
    /// Nothing changes if it says nothing new.
    fn insert(&mut self, unknown: &[(u64, u8)], payload: &[u8]) -> bool {
        let fresh = |columns: &BTreeMap<u64, u16>| {
            let missing = unknown
                .iter()
                .filter(|(symbol, _)| !columns.contains_key(symbol));
            missing.count()
        };
        for given_up in 0.. {
            if fresh(&self.columns) <= self.free.len() {
                break;
            }
            match given_up < GIVE_UP_MAX {
                true => self.give_up_oldest(),
                false => self.reset(self.symbol_len),
            }
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
        let capacity = self.limits.unknown;
        let is_new = self.echelon.insert(self.engine, |row| {
            for (symbol, coefficient) in unknown {
                if let Some(column) = columns.get(symbol) {
                    row[usize::from(*column)] = *coefficient;
                }
            }
            row[capacity..].copy_from_slice(payload);
        });
        while self.echelon.rank() > self.rows_max() {
            self.give_up_oldest();
        }
        is_new
    }

    fn give_up_oldest(&mut self) {
        if let Some((_, column)) = self.columns.pop_first() {
            self.echelon.abandon(self.engine, usize::from(column));
            self.free.push(column);
        }
    }

    /// Gives up the symbols from `first` to before `end`, or everything if these are many.
    fn give_up(&mut self, first: u64, end: u64) {
        if self.columns.range(first..end).count() > GIVE_UP_MAX {
            return self.reset(self.symbol_len);
        }
        for (_, column) in self.columns.extract_if(first..end, |_, _| true) {
            self.echelon.abandon(self.engine, usize::from(column));
            self.free.push(column);
        }
    }

    /// A symbol became known otherwise. Whether any row waits for it.
    fn learn(&mut self, symbol: u64, payload: &[u8]) -> bool {
        let Some(column) = self.columns.remove(&symbol) else {
            return false;
        };
        self.free.push(column);
        self.echelon
            .substitute(self.engine, usize::from(column), payload);
        true
    }

    /// Takes the symbols that the rows determine, with what is carried.
    fn take_solved(&mut self, mut found: impl FnMut(u64, &[u8])) {
        let Self {
            echelon,
            columns,
            free,
            symbols,
            ..
        } = self;
        echelon.take_solved(|column, value| {
            let symbol = symbols[column];
            columns.remove(&symbol);
            free.push(column as u16);
            found(symbol, value);
        });
    }

    fn unknown(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.columns.range(first..end).map(|(symbol, _)| *symbol)
    }
}

/// Knows from the names of received repairs which symbols they restore, without any payload.
///
/// A [`SpanDecoder`] with the same limits that is given every repair which was [`Innovative`](Added::Innovative) here, and
/// learns what was learned here, in the same order, restores the same symbols at the same moments.
///
/// Its memory is at most about `unknown²` bytes, and the work for one repair a pass over that.
#[derive(Debug)]
pub struct SpanTracker {
    elimination: Elimination,
    restored: VecDeque<u64>,
    unknown: Vec<(u64, u8)>,
}

impl SpanTracker {
    /// A tracker that knows of nothing yet.
    ///
    /// # Errors
    /// If the limit of unknown symbols is 0 or above [`SYMBOLS_MAX`](crate::SYMBOLS_MAX).
    pub fn new(limits: SpanLimits) -> Result<Self, Error> {
        Ok(Self {
            elimination: Elimination::new(limits, false)?,
            restored: VecDeque::new(),
            unknown: Vec::new(),
        })
    }

    /// Takes note of a repair of some blocks, the oldest first, with a symbol of `symbol_len` bytes. When it needs the room,
    /// the oldest unknown symbols are given up; all of them, if it needs much. One that is redundant changes nothing, and a decoder must not be given it.
    pub fn add_repair<'a>(
        &mut self,
        maker: &mut RowMaker,
        row: Row,
        blocks: impl Iterator<Item = CoveredSymbols<'a>> + Clone,
        symbol_len: usize,
    ) -> Added {
        let count = blocks.clone().map(|covered| covered.count).sum();
        let Ok(terms) = maker.terms(CodeId::Window, count, row) else {
            return Added::Invalid;
        };
        self.unknown.clear();
        let mut terms = terms.iter();
        for covered in blocks {
            for (i, term) in terms.by_ref().take(covered.count).enumerate() {
                if covered.is_unknown(i) {
                    self.unknown
                        .push((covered.first + i as u64, term.coefficient));
                }
            }
        }
        let is_possible = self.elimination.prepare(self.unknown.len(), symbol_len);
        if !is_possible || !self.elimination.insert(&self.unknown, &[]) {
            return Added::Redundant;
        }
        self.settle();
        Added::Innovative
    }

    /// Takes note of a symbol that became known otherwise.
    pub fn learn(&mut self, symbol: u64) {
        if self.elimination.learn(symbol, &[]) {
            self.settle();
        }
    }

    /// Gives up the symbols from `first` to before `end`, which nobody waits for any more. What repairs say of others stays, unless
    /// the work would be too much: then everything is given up.
    pub fn give_up(&mut self, first: u64, end: u64) {
        self.elimination.give_up(first, end);
    }

    /// The symbols from `first` to before `end` of which something is known but not enough.
    pub fn unknown(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.elimination.unknown(first, end)
    }

    /// The next symbol that was restored.
    pub fn next_restored(&mut self) -> Option<u64> {
        self.restored.pop_front()
    }

    fn settle(&mut self) {
        let restored = &mut self.restored;
        self.elimination
            .take_solved(|symbol, _| restored.push_back(symbol));
    }
}

impl CoveredSymbols<'_> {
    fn is_unknown(&self, i: usize) -> bool {
        self.known.is_some_and(|known| !bits::contains(known, i))
    }
}

/// Restores symbols from repairs that cover several blocks.
///
/// Its memory is at most about `unknown · (unknown + symbol_len)` bytes, and the work for one repair a
/// pass over that and over the symbols covered.
#[derive(Debug)]
pub struct SpanDecoder {
    elimination: Elimination,
    restored: VecDeque<(u64, Vec<u8>)>,
    padded: Vec<u8>,
    known_terms: Vec<Term>,
}

impl SpanDecoder {
    /// A decoder that knows of nothing yet.
    ///
    /// # Errors
    /// If the limit of unknown symbols is 0 or above [`SYMBOLS_MAX`](crate::SYMBOLS_MAX).
    pub fn new(limits: SpanLimits) -> Result<Self, Error> {
        Ok(Self {
            elimination: Elimination::new(limits, true)?,
            restored: VecDeque::new(),
            padded: Vec::new(),
            known_terms: Vec::new(),
        })
    }

    /// Takes in a repair of some blocks, the oldest first. When it needs the room, the oldest unknown
    /// symbols are given up, all of them if it needs much; a longer symbol than any before has all of them given up.
    pub fn add_repair(
        &mut self,
        maker: &mut RowMaker,
        row: Row,
        blocks: &[Covered<'_>],
        symbol: &[u8],
    ) -> Added {
        let is_possible = blocks.iter().all(|c| c.block.check(symbol.len()).is_ok());
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
        let mut unknown = Vec::new();
        let mut terms = terms.iter();
        for covered in blocks {
            let (block, symbols) = (&covered.block, covered.symbols());
            self.known_terms.clear();
            for (i, term) in terms.by_ref().take(block.count).enumerate() {
                if symbols.is_unknown(i) {
                    unknown.push((symbols.first + i as u64, term.coefficient));
                } else {
                    self.known_terms.push(Term {
                        index: i as u16,
                        coefficient: term.coefficient,
                    });
                }
            }
            let columns = Columns {
                symbols: block.symbols,
                symbol_len: block.symbol_len,
                first: 0,
            };
            let payload = &mut payload[..block.symbol_len];
            self.elimination
                .engine
                .combine(payload, Start::Accumulate, columns, &self.known_terms);
        }
        let is_possible = self.elimination.prepare(unknown.len(), symbol.len());
        payload.resize(self.elimination.symbol_len, 0);
        let is_new = is_possible && self.elimination.insert(&unknown, &payload);
        self.padded = payload;
        if !is_new {
            return Added::Redundant;
        }
        self.settle();
        Added::Innovative
    }

    /// Takes note of a symbol that became known otherwise.
    ///
    /// # Panics
    /// If it is longer than the repairs that cover it.
    pub fn learn(&mut self, symbol: u64, value: &[u8]) {
        if !self.elimination.columns.contains_key(&symbol) {
            return;
        }
        let symbol_len = self.elimination.symbol_len;
        assert!(value.len() <= symbol_len, "a longer symbol");
        self.padded.clear();
        self.padded.extend_from_slice(value);
        self.padded.resize(symbol_len, 0);
        if self.elimination.learn(symbol, &self.padded) {
            self.settle();
        }
    }

    /// Gives up the symbols from `first` to before `end`, which nobody waits for any more. What repairs say of others stays, unless
    /// the work would be too much: then everything is given up.
    pub fn give_up(&mut self, first: u64, end: u64) {
        self.elimination.give_up(first, end);
    }

    /// The symbols from `first` to before `end` of which something is known but not enough.
    pub fn unknown(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.elimination.unknown(first, end)
    }

    /// The next symbol that was restored, padded with zeros to the length of the longest symbol covered so far.
    pub fn next_restored(&mut self) -> Option<(u64, Vec<u8>)> {
        self.restored.pop_front()
    }

    fn settle(&mut self) {
        let restored = &mut self.restored;
        self.elimination
            .take_solved(|symbol, value| restored.push_back((symbol, value.to_vec())));
    }
}

impl<'a> Covered<'a> {
    fn symbols(&self) -> CoveredSymbols<'a> {
        CoveredSymbols {
            first: self.first,
            count: self.block.count,
            known: self.known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENS: [usize; 4] = [5, 8, 3, 8];
    const N: usize = 6;

    fn limits(unknown: usize) -> SpanLimits {
        let bytes = 1 << 10;
        SpanLimits { unknown, bytes }
    }

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
        let mut decoder = SpanDecoder::new(limits(8)).unwrap();
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
        let mut decoder = SpanDecoder::new(limits(3)).unwrap();
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

    /// Of two unknown symbols and two repairs one goes, and one repair with it.
    #[test]
    fn giving_up_a_symbol_takes_one_repair() {
        let mut tracker = SpanTracker::new(limits(8)).unwrap();
        let mut maker = RowMaker::new();
        for row in 0..2 {
            let covered = CoveredSymbols {
                first: 10,
                count: 3,
                known: Some(&[0]),
            };
            let row = Row::new(row).unwrap();
            tracker.add_repair(&mut maker, row, [covered].into_iter(), 8);
        }
        tracker.give_up(10, 11);
        assert!(tracker.unknown(0, 100).eq([11, 12]));
        tracker.learn(12);
        assert_eq!(tracker.next_restored(), Some(11));
        tracker.give_up(0, 100);
        assert_eq!(tracker.next_restored(), None);
    }

    /// One packet may have so much work done and no more.
    #[test]
    fn who_needs_much_room_has_everything_given_up() {
        let limits = SpanLimits {
            unknown: 100,
            bytes: 1 << 16,
        };
        let mut tracker = SpanTracker::new(limits).unwrap();
        let mut maker = RowMaker::new();
        let mut add = |tracker: &mut SpanTracker, first, count| {
            let covered = CoveredSymbols {
                first,
                count,
                known: Some(&[0; 2]),
            };
            let added = tracker.add_repair(&mut maker, Row::MAX, [covered].into_iter(), 8);
            assert_eq!(added, Added::Innovative);
        };
        add(&mut tracker, 0, 100);
        add(&mut tracker, 200, GIVE_UP_MAX);
        assert_eq!(tracker.unknown(0, 200).count(), 100 - GIVE_UP_MAX);
        add(&mut tracker, 300, GIVE_UP_MAX + 1);
        assert_eq!(tracker.unknown(0, 300).count(), 0);
        assert_eq!(tracker.unknown(300, 400).count(), GIVE_UP_MAX + 1);
    }

    #[test]
    fn impossible_repairs_are_invalid() {
        let mut maker = RowMaker::new();
        let mut decoder = SpanDecoder::new(limits(4)).unwrap();
        let covered = |count, symbol_len| Covered {
            block: SpanBlock {
                symbols: &[0; 8],
                symbol_len,
                count,
            },
            first: 0,
            known: None,
        };
        for (block, len) in [(covered(0, 8), 8), (covered(2, 8), 8), (covered(1, 8), 4)] {
            let added = decoder.add_repair(&mut maker, Row::MAX, &[block], &[0; 9][..len]);
            assert_eq!(added, Added::Invalid);
        }
        assert!(SpanDecoder::new(limits(0)).is_err() && SpanTracker::new(limits(0)).is_err());
    }

    /// Of any blocks, losses, rows and limits a decoder restores what the tracker says, when it says so, and rightly.
    #[test]
    fn a_decoder_restores_what_the_tracker_says() {
        for seed in 0..200 {
            let mut draws = crate::rng::SplitMix::new(seed);
            let mut below = |n: usize| (draws.next() % n as u64) as usize;
            let limits = SpanLimits {
                unknown: 1 + below(12),
                bytes: 10 + below(600),
            };
            let mut tracker = SpanTracker::new(limits).unwrap();
            let mut decoder = SpanDecoder::new(limits).unwrap();
            let mut maker = RowMaker::new();
            let lens: Vec<usize> = (0..20).map(|_| 1 + below(9)).collect();
            let of = |block: usize| -> Vec<u8> {
                let bytes = (0..N * lens[block]).map(|i| (i * 37 + block * 11) as u8 | 1);
                bytes.collect()
            };
            let source: Vec<_> = (0..lens.len()).map(of).collect();
            let mut known = vec![0_u64; lens.len()];
            for step in 0..300_usize {
                let newest = step / 20;
                if below(30) == 0 {
                    let oldest = (N * newest.saturating_sub(3 + below(4))) as u64;
                    tracker.give_up(oldest, oldest + N as u64);
                    decoder.give_up(oldest, oldest + N as u64);
                } else if below(3) > 0 {
                    let (b, i) = (newest.saturating_sub(below(6)), below(N));
                    known[b] |= 1 << i;
                    let (symbol, len) = ((N * b + i) as u64, lens[b]);
                    tracker.learn(symbol);
                    decoder.learn(symbol, &source[b][i * len..(i + 1) * len]);
                } else {
                    let row = Row::new(below(500) as u32).unwrap();
                    let covered: Vec<Covered<'_>> = (newest.saturating_sub(below(5))..=newest)
                        .map(|b| Covered {
                            block: SpanBlock {
                                symbols: &source[b],
                                symbol_len: lens[b],
                                count: N,
                            },
                            first: (N * b) as u64,
                            known: (known[b] != (1 << N) - 1).then_some(&known[b..=b]),
                        })
                        .collect();
                    let blocks: Vec<_> = covered.iter().map(|covered| covered.block).collect();
                    let longest = blocks.iter().map(|block| block.symbol_len).max();
                    let mut repair = vec![0; longest.unwrap()];
                    encode(&mut maker, row, &blocks, &mut repair).unwrap();
                    let symbols = covered.iter().map(Covered::symbols);
                    let added = tracker.add_repair(&mut maker, row, symbols, repair.len());
                    if added == Added::Innovative {
                        let decoded = decoder.add_repair(&mut maker, row, &covered, &repair);
                        assert_eq!(decoded, added);
                    }
                }
                let all = 0..u64::MAX;
                let waiting = tracker.unknown(all.start, all.end);
                assert!(waiting.eq(decoder.unknown(all.start, all.end)));
                assert!(tracker.elimination.columns.len() <= limits.unknown);
                let rows = decoder.elimination.echelon.rank();
                assert!(
                    rows * (2 * limits.unknown + decoder.elimination.symbol_len) <= limits.bytes
                );
                while let Some(symbol) = tracker.next_restored() {
                    let (restored, value) = decoder.next_restored().unwrap();
                    let (b, i) = (symbol as usize / N, symbol as usize % N);
                    assert_eq!(restored, symbol);
                    assert_eq!(value[..lens[b]], source[b][i * lens[b]..(i + 1) * lens[b]]);
                    known[b] |= 1 << i;
                }
                assert_eq!(decoder.next_restored(), None);
            }
        }
    }
}
