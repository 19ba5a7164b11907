//! Generations: a small block of which the repairs come *first*, and of which symbols leave, in order, before all of it is there.
//!
//! A repair that has arrived before the originals is *folded*: each original is subtracted from it as it arrives, and so need not be
//! kept for it. What a receiver holds is therefore never more than what it has not given out yet: rows and symbols together are
//! the rank less what was [taken](Generation::take).
//!
//! # Rows
//! A row of a generation of n symbols (at most 64) is `first << 18 | index`: the dense row `index` of [`rlc`] over all n, of
//! which the symbols before `first` are left out. So any rows of different index, `index + n ≤ 255`, whatever each leaves out, restore as many
//! missing symbols as they are, if none of these is left out by any (every square part of a Cauchy matrix is regular).
//!
//! # Example
//! ```
//! use sphinx_fec::{Added, RowMaker, generation::{self, Generation}};
//!
//! let (n, len) = (4, 3);
//! let source: Vec<u8> = (1..=12).collect();
//! let mut maker = RowMaker::new();
//! let row = generation::row(0, 0);
//! let mut symbol = vec![0; len];
//! generation::encode(&mut maker, row, len, &source, &mut symbol)?;
//!
//! let mut generation = Generation::new(n)?;
//! assert_eq!(generation.add_row(&mut maker, row, symbol), Added::Innovative);
//! assert_eq!(generation.add_source(0, source[..3].to_vec()), Added::Innovative);
//! // In order, and not kept: the row knows of it.
//! assert_eq!(generation.take(), Some(source[..3].to_vec()));
//! assert_eq!(generation.add_source(2, source[6..9].to_vec()), Added::Innovative);
//! assert_eq!(generation.take(), None);
//! assert_eq!(generation.add_source(3, source[9..].to_vec()), Added::Innovative);
//! assert!(generation.is_whole());
//! assert_eq!(generation.take(), Some(source[3..6].to_vec()));
//! # Ok::<(), sphinx_fec::Error>(())
//! ```

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row};
use crate::engine::{Engine, Term};
use crate::rows::RowMaker;
use crate::tracker::Added;
use crate::{gf256, rlc};

/// Symbols of a generation at most.
pub const GENERATION_MAX: usize = 64;

/// The row with this index over the symbols from `first` on.
///
/// # Panics
/// If `first` is not below [`GENERATION_MAX`], or the index not below [`rlc::INDEX_COUNT`].
#[must_use]
pub fn row(first: usize, index: u32) -> Row {
    rlc::row(first as u32 + 1, index)
}

/// The first symbol that a row covers, and its index.
#[must_use]
pub fn split(row: Row) -> (usize, u32) {
    let (first, index) = rlc::split(row);
    (first as usize - 1, index)
}

/// The terms of a row over n symbols.
fn terms(maker: &mut RowMaker, n: usize, row: Row) -> Result<impl Iterator<Item = &Term>, Error> {
    let (first, index) = split(row);
    if first >= n {
        let code = CodeId::Rlc;
        return Err(Error::Row { code, n, row });
    }
    let all = maker.terms(CodeId::Rlc, n, rlc::row(1, index))?;
    Ok(all
        .iter()
        .filter(move |term| usize::from(term.index) >= first))
}

/// Computes a row over symbols of `len` bytes, one after another; how many of them were multiplied and added.
///
/// # Errors
/// If there is no such row.
///
/// # Panics
/// If `out` has not `len` bytes.
pub fn encode(
    maker: &mut RowMaker,
    row: Row,
    len: usize,
    source: &[u8],
    out: &mut [u8],
) -> Result<u64, Error> {
    let n = source.len() / len.max(1);
    let engine = Engine::detect();
    out.fill(0);
    let mut operations = 0;
    for term in terms(maker, n, row)? {
        let symbol = &source[usize::from(term.index) * len..][..len];
        engine.mul_add(out, symbol, term.coefficient);
        operations += 1;
    }
    Ok(operations)
}

/// A row that has been received, less the symbols that are known.
#[derive(Debug, Clone)]
struct Folded<M> {
    /// The highest symbol in it, with the factor 1; in no other row.
    pivot: usize,
    factors: [u8; GENERATION_MAX],
    symbol: M,
}

/// A generation that is received: `M` holds a symbol. With symbols of no bytes it only follows the rank.
#[derive(Debug, Clone)]
pub struct Generation<M> {
    engine: Engine,
    n: usize,
    /// Symbols below have been taken.
    taken: usize,
    /// Symbols that are known and have not been taken.
    known: Vec<Option<M>>,
    known_count: usize,
    rows: Vec<Folded<M>>,
    operations: u64,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Generation<M> {
    /// One of n symbols of which nothing is known.
    ///
    /// # Errors
    /// For none, or more than [`GENERATION_MAX`].
    pub fn new(n: usize) -> Result<Self, Error> {
        if !(1..=GENERATION_MAX).contains(&n) {
            return Err(Error::BlockSize { n });
        }
        let mut known = Vec::new();
        known.resize_with(n, || None);
        Ok(Self {
            engine: Engine::detect(),
            n,
            taken: 0,
            known,
            known_count: 0,
            rows: Vec::new(),
            operations: 0,
        })
    }

    /// Number of symbols of the generation.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether nothing of the generation is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rank() == 0
    }

    /// How many symbols have been taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Symbols and rows that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.known_count + self.rows.len()
    }

    /// Independent symbols that have arrived.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.taken + self.held()
    }

    /// Whether all of it is known, or was.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.rank() == self.n
    }

    /// Whether this symbol is known, or was.
    #[must_use]
    pub fn knows(&self, index: usize) -> bool {
        index < self.taken || self.known.get(index).is_some_and(Option::is_some)
    }

    /// Symbols that were multiplied and added so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// An original has arrived.
    pub fn add_source(&mut self, index: usize, symbol: M) -> Added {
        if index >= self.n {
            return Added::Invalid;
        }
        if self.knows(index) {
            return Added::Redundant;
        }
        let mut pivotless = None;
        for (at, row) in self.rows.iter_mut().enumerate() {
            let factor = core::mem::take(&mut row.factors[index]);
            if factor != 0 {
                let out = row.symbol.as_mut();
                add(self.engine, out, symbol.as_ref(), factor);
                self.operations += 1;
            }
            if row.pivot == index {
                pivotless = Some(at);
            }
        }
        self.learn(index, symbol);
        if let Some(at) = pivotless {
            let row = self.rows.swap_remove(at);
            self.insert(row);
        }
        self.solve();
        Added::Innovative
    }

    /// A row has arrived. It is of no use if it covers a symbol that was taken: that is there no more to be subtracted.
    pub fn add_row(&mut self, maker: &mut RowMaker, row: Row, symbol: M) -> Added {
        let mut new = Folded {
            pivot: 0,
            factors: [0; GENERATION_MAX],
            symbol,
        };
        let Ok(terms) = terms(maker, self.n, row) else {
            return Added::Invalid;
        };
        for term in terms {
            new.factors[usize::from(term.index)] = term.coefficient;
        }
        if split(row).0 < self.taken {
            return Added::Redundant;
        }
        for (index, known) in self.known.iter().enumerate() {
            let Some(known) = known else { continue };
            let factor = core::mem::take(&mut new.factors[index]);
            if factor != 0 {
                let out = new.symbol.as_mut();
                add(self.engine, out, known.as_ref(), factor);
                self.operations += 1;
            }
        }
        for row in &self.rows {
            let factor = new.factors[row.pivot];
            self.operations += subtract(self.engine, &mut new, row, factor);
        }
        if !self.insert(new) {
            return Added::Redundant;
        }
        self.solve();
        Added::Innovative
    }

    /// The next symbol in order, if it is known. It is not kept.
    pub fn take(&mut self) -> Option<M> {
        let symbol = self.known.get_mut(self.taken)?.take()?;
        self.taken += 1;
        self.known_count -= 1;
        Some(symbol)
    }

    fn learn(&mut self, index: usize, symbol: M) {
        self.known[index] = Some(symbol);
        self.known_count += 1;
    }

    /// Takes in a row that is zero at the pivots of the others; `false` if it is zero everywhere.
    fn insert(&mut self, mut new: Folded<M>) -> bool {
        let Some(pivot) = new.factors.iter().rposition(|factor| *factor != 0) else {
            return false;
        };
        new.pivot = pivot;
        let scale = gf256::inv(new.factors[pivot]);
        if scale != 1 {
            for factor in &mut new.factors {
                *factor = gf256::mul(*factor, scale);
            }
            let copy = new.symbol.as_ref().to_vec();
            add(self.engine, new.symbol.as_mut(), &copy, scale ^ 1);
            self.operations += 1;
        }
        for row in &mut self.rows {
            let factor = row.factors[pivot];
            self.operations += subtract(self.engine, row, &new, factor);
        }
        self.rows.push(new);
        true
    }

    /// Rows of one symbol are that symbol.
    fn solve(&mut self) {
        let is_solved = |row: &Folded<M>| row.factors[..row.pivot].iter().all(|f| *f == 0);
        while let Some(at) = self.rows.iter().position(is_solved) {
            let row = self.rows.swap_remove(at);
            self.learn(row.pivot, row.symbol);
        }
    }
}

/// Adds so many times a symbol. Where only the rank is followed, symbols have no bytes.
fn add(engine: Engine, out: &mut [u8], symbol: &[u8], factor: u8) {
    if !out.is_empty() {
        engine.mul_add(out, symbol, factor);
    }
}

/// Takes so many times `other` from `row`; how many symbols were multiplied.
fn subtract<M: AsRef<[u8]> + AsMut<[u8]>>(
    engine: Engine,
    row: &mut Folded<M>,
    other: &Folded<M>,
    factor: u8,
) -> u64 {
    if factor == 0 {
        return 0;
    }
    for (to, from) in row.factors.iter_mut().zip(&other.factors) {
        *to ^= gf256::mul(*from, factor);
    }
    add(engine, row.symbol.as_mut(), other.symbol.as_ref(), factor);
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix;

    fn source(n: usize, len: usize) -> Vec<u8> {
        (0..n * len).map(|i| (i * 7 + i / 5 + 1) as u8).collect()
    }

    /// Whatever arrives in whatever order: held is the rank less what was taken, symbols come out as they were and in order, and
    /// as many rows as symbols are missing restore them.
    #[test]
    fn any_order_of_arrival() {
        let len = 5;
        let mut draws = SplitMix::new(9);
        for n in [1, 2, 3, 7, 16, 64] {
            let source = source(n, len);
            for _ in 0..if cfg!(miri) { 2 } else { 60 } {
                let mut maker = RowMaker::new();
                let mut generation = Generation::new(n).expect("a size");
                let mut given = Vec::new();
                let mut next_row = 0;
                let eager = draws.next().is_multiple_of(2);
                while !generation.is_whole() {
                    let before = generation.rank();
                    let draw = draws.next();
                    let added = if draw.is_multiple_of(5) {
                        let row = row(generation.taken(), next_row);
                        next_row += 1;
                        let mut symbol = vec![0; len];
                        encode(&mut maker, row, len, &source, &mut symbol).expect("a row");
                        let added = generation.add_row(&mut maker, row, symbol);
                        assert_eq!(added, Added::Innovative, "Cauchy rows are independent");
                        added
                    } else {
                        let index = (draw >> 8) as usize % n;
                        let symbol = source[index * len..][..len].to_vec();
                        generation.add_source(index, symbol)
                    };
                    let news = usize::from(added == Added::Innovative);
                    assert_eq!(generation.rank(), before + news);
                    while eager && let Some(symbol) = generation.take() {
                        given.extend(symbol);
                    }
                    assert_eq!(generation.held(), generation.rank() - generation.taken());
                }
                while let Some(symbol) = generation.take() {
                    given.extend(symbol);
                }
                assert_eq!(given, source, "{n}");
                assert_eq!(generation.held(), 0);
            }
        }
    }

    #[test]
    fn rows_over_what_was_taken_are_of_no_use() {
        let source = source(3, 2);
        let mut maker = RowMaker::new();
        let mut generation = Generation::new(3).expect("a size");
        generation.add_source(0, source[..2].to_vec());
        assert!(generation.take().is_some());
        let mut symbol = vec![0; 2];
        let all = row(0, 4);
        encode(&mut maker, all, 2, &source, &mut symbol).expect("a row");
        let added = generation.add_row(&mut maker, all, symbol.clone());
        assert_eq!(added, Added::Redundant);
        let rest = row(1, 4);
        encode(&mut maker, rest, 2, &source, &mut symbol).expect("a row");
        let added = generation.add_row(&mut maker, rest, symbol.clone());
        assert_eq!(added, Added::Innovative);
        assert_eq!(
            generation.add_row(&mut maker, rest, symbol),
            Added::Redundant
        );
        let beyond = row(3, 0);
        let added = generation.add_row(&mut maker, beyond, vec![0; 2]);
        assert_eq!(added, Added::Invalid);
    }

    #[test]
    fn names_of_rows() {
        for (first, index) in [(0, 0), (63, 1), (5, rlc::INDEX_COUNT - 1)] {
            assert_eq!(split(row(first, index)), (first, index));
        }
        assert!(Generation::<Vec<u8>>::new(0).is_err());
        assert!(Generation::<Vec<u8>>::new(65).is_err());
    }
}
