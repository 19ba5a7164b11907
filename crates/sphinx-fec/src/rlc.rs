//! `rlc`: a systematic random linear code over GF(2^8), the default.
//!
//! The source symbols are sent as they are; a repair symbol is a sum of
//! multiples of some of them. Any set of repairs with full rank over the
//! missing symbols restores them.
//!
//! # Example
//! Repairs ahead of loss, and further ones for a receiver that lacks two:
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use sphinx_fec::{Added, CodeId, RowMaker, Tracker, rlc};
//!
//! // For 6 % loss, none of it in bursts, and one failure in a hundred.
//! let (n, planned) = (100, 13);
//! let spread = rlc::spread_for(n, planned, 0.06, 1.0, 0.01);
//! let mut tracker = Tracker::new(n)?;
//! (15..n).for_each(|i| {
//!     tracker.add_source(i);
//! });
//! let mut maker = RowMaker::new();
//! for (code, row) in rlc::first_flight(spread, planned) {
//!     assert_eq!(tracker.add_repair(&mut maker, code, row), Added::Innovative);
//! }
//! assert_eq!(tracker.deficit(), 2);
//! for i in planned..planned + 2 {
//!     let row = rlc::repair_row(spread, planned, i);
//!     tracker.add_repair(&mut maker, CodeId::Rlc, row);
//! }
//! assert!(tracker.is_decodable());
//! # }
//! # Ok::<(), sphinx_fec::Error>(())
//! ```
//!
//! # Rows
//! The 24-bit row number is `(spread − 1) << 18 | index`: a **spread** from 1
//! to 64 and an index from 0. Neither depends on how many repairs will be sent
//! in the end, so a sender may add rows at any time.
//!
//! * **Spread 1** rows are dense. While `index + n ≤ 255` they are Cauchy rows
//!   with coefficient `1 / (index + (255 − j))` for symbol `j` (the sum is the
//!   field's, an XOR), and so any of them with any source symbols are an MDS
//!   code: `n` received symbols always suffice. Later dense rows have random
//!   non-zero coefficients, for which `n` suffice with probability 0.996.
//! * **Spread m > 1** rows come in rounds of `m`, which together hold every
//!   symbol exactly once: row `index` of round `index / m` takes the part
//!   number `index mod m` of a pseudo-random permutation of the symbols, with
//!   random non-zero coefficients. They cost `1/m` of a dense row. When each
//!   symbol is in enough rows (`R/m`, the coverage) they lose next to nothing
//!   against an MDS code: the more is lost the more rows that takes, as a lost
//!   symbol cannot be restored if all its rows are lost too. `spread_for` has
//!   the rule.
//!
//! # The numbers, exactly
//! All draws are from SplitMix64. For spread m > 1 the round's permutation
//! starts as 0, 1 … n−1; then for i from n−1 down to 1 element i is exchanged
//! with element `floor(u · (i+1) / 2^32)`, where `u` is the upper half of the
//! next draw from seed `n << 40 | (m−1) << 32 | round`. Part k are the elements
//! `floor(k·n/m) .. floor((k+1)·n/m)` (with m reduced to n if it is larger).
//! The coefficient of symbol `j` in a row is `1 + floor(b · 255 / 256)`, where
//! `b` is byte `j mod 8`, lowest first, of draw number `j / 8`, counted from 0,
//! from seed `1 << 63 | row`.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row, check_block_size};
use crate::dense;
use crate::engine::Term;
use crate::rng::SplitMix;
#[cfg(feature = "std")]
use crate::{math, params};

/// Largest spread, and so the sparsest row: 1/64 of the symbols.
pub const SPREAD_MAX: u32 = 64;

/// Rows of one spread.
pub const INDEX_COUNT: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 18;
const COEFFICIENT_SEED: u64 = 1 << 63;

/// The row number for a spread (1 to [`SPREAD_MAX`]) and an index (below
/// [`INDEX_COUNT`]).
///
/// # Panics
/// If either is out of range.
#[must_use]
pub fn row(spread: u32, index: u32) -> Row {
    assert!((1..=SPREAD_MAX).contains(&spread), "spread out of range");
    assert!(index < INDEX_COUNT, "row index out of range");
    Row::from_low_bits((spread - 1) << INDEX_BITS | index)
}

/// Spread and index of a row.
#[must_use]
pub fn split(row: Row) -> (u32, u32) {
    let number = row.number();
    ((number >> INDEX_BITS) + 1, number & (INDEX_COUNT - 1))
}

/// Share of the failures that are accepted which symbols whose rows are all
/// lost may add to them.
#[cfg(feature = "std")]
const STRANDED_SHARE: f64 = 0.25;

/// The largest spread at which `repairs` rows for `n` symbols do what an MDS
/// code does, where the share `p` of packets is lost, `burst` in a row on
/// average (1: independently), and a block may fail with probability
/// `epsilon`.
///
/// Every symbol is in at least `0.6 + 1.45 ln(repairs)` of the rows, so that
/// those that arrive are of full rank (fitted to Monte-Carlo runs over n ≥ 100
/// and loss rates from 1 % to 20 %), and in so many that in at most `epsilon/4`
/// blocks there is a lost symbol all of whose rows are lost too.
///
/// Rows sent later, for a receiver that reported a deficit, should be dense.
#[cfg(feature = "std")]
#[must_use]
pub fn spread_for(n: usize, repairs: usize, p: f64, burst: f64, epsilon: f64) -> u32 {
    if repairs < 2 {
        return 1;
    }
    let coverage = 0.6 + 1.45 * math::ln(repairs as f64);
    let sparsest = (repairs as f64 / coverage).min(n as f64) as u32;
    let stranded = |spread| stranded(n, repairs, p, burst, spread);
    // Where all rows are lost dense ones would not do either.
    let most = stranded(1) + STRANDED_SHARE * epsilon;
    let spreads = (2..=sparsest.min(SPREAD_MAX)).rev();
    { spreads }
        .find(|spread| stranded(*spread) <= most)
        .unwrap_or(1)
}

/// How many symbols of a block are lost with all their rows, on average.
#[cfg(feature = "std")]
fn stranded(n: usize, repairs: usize, p: f64, burst: f64, spread: u32) -> f64 {
    let p = params::clamp_loss(p);
    let parts = spread as usize;
    // One row in each round, and in the last one, which is not whole, some have none.
    let (rounds, rest) = (repairs / parts, repairs % parts);
    let again = p + (1.0 - p) * params::burst_correlation(p, burst, parts);
    let all_rounds = p * again.powi(i32::try_from(rounds).unwrap_or(i32::MAX) - 1);
    let in_last = rest as f64 / parts as f64;
    n as f64 * p * all_rounds * (1.0 - in_last * (1.0 - again))
}

/// Makes the terms of rows, remembering the last permutation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    permutation: Vec<u16>,
    /// Seed of the present permutation.
    seed: Option<u64>,
}

impl Builder {
    /// Fills `terms` with the symbols of the row and their coefficients.
    pub(crate) fn terms(&mut self, n: usize, row: Row, terms: &mut Vec<Term>) -> Result<(), Error> {
        check_block_size(n)?;
        terms.clear();
        let (spread, index) = split(row);
        if spread > 1 {
            let parts = (spread as usize).min(n);
            let round = index as usize / parts;
            let part = index as usize % parts;
            self.permute(n, spread, round);
            let symbols = &self.permutation[part * n / parts..(part + 1) * n / parts];
            let draws = SplitMix::new(COEFFICIENT_SEED | u64::from(row.number()));
            terms.extend(symbols.iter().map(|&index| Term {
                index,
                coefficient: random_coefficient(draws, index),
            }));
        } else if index as usize + n < 256 {
            dense::fill_cauchy(n, index as u8, terms);
        } else {
            let draws = SplitMix::new(COEFFICIENT_SEED | u64::from(row.number()));
            dense::fill_random(n, draws, terms);
        }
        Ok(())
    }

    fn permute(&mut self, n: usize, spread: u32, round: usize) {
        let seed = (n as u64) << 40 | u64::from(spread - 1) << 32 | round as u64;
        if self.seed == Some(seed) {
            return;
        }
        self.seed = Some(seed);
        self.permutation.clear();
        self.permutation.extend(0..n as u16);
        let mut rng = SplitMix::new(seed);
        for i in (1..n).rev() {
            let j = rng.below(i as u32 + 1) as usize;
            self.permutation.swap(i, j);
        }
    }
}

fn random_coefficient(draws: SplitMix, symbol: u16) -> u8 {
    dense::non_zero(draws.at(u64::from(symbol / 8)) >> (8 * (symbol % 8)))
}

/// The repair rows of a block's first flight, in order: `repairs` rows of this
/// spread.
pub fn first_flight(spread: u32, repairs: usize) -> impl Iterator<Item = (CodeId, Row)> {
    (0..repairs).map(move |i| (CodeId::Rlc, repair_row(spread, repairs, i)))
}

/// The row of a block's `i`-th repair when `planned` repairs make up its first
/// flight: rows of that flight's spread while `i < planned`, then dense ones
/// that were not used before.
///
/// After [`INDEX_COUNT`] rows of a spread they repeat.
///
/// # Panics
/// If the spread is not from 1 to [`SPREAD_MAX`].
#[must_use]
pub fn repair_row(spread: u32, planned: usize, i: usize) -> Row {
    let (spread, index) = if i < planned || spread == 1 {
        (spread, i)
    } else {
        (1, i - planned)
    };
    row(spread, index as u32 % INDEX_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256;

    fn terms(n: usize, row: Row) -> Vec<Term> {
        let mut terms = Vec::new();
        Builder::default().terms(n, row, &mut terms).unwrap();
        terms
    }

    #[test]
    fn row_numbers_split_into_spread_and_index() {
        assert_eq!(row(1, 0).number(), 0);
        assert_eq!(row(3, 5).number(), 2 << 18 | 5);
        assert_eq!(
            split(row(SPREAD_MAX, INDEX_COUNT - 1)),
            (SPREAD_MAX, INDEX_COUNT - 1)
        );
        assert_eq!(row(SPREAD_MAX, INDEX_COUNT - 1), Row::MAX);
    }

    #[test]
    fn repairs_after_the_first_flight_are_fresh_and_dense() {
        for (spread, planned) in [(1, 0), (1, 4), (3, 13), (12, 86)] {
            let rows: Vec<Row> = (0..300).map(|i| repair_row(spread, planned, i)).collect();
            assert!(rows[planned..].iter().all(|row| split(*row).0 == 1));
            let mut distinct = rows.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), rows.len());
            let flight: Vec<_> = first_flight(spread, planned).map(|(_, row)| row).collect();
            assert_eq!(flight, rows[..planned]);
        }
    }

    /// What sessions use, by loss rate: the coverage decides up to 10 %, and
    /// symbols that are lost with all their rows from 20 % on.
    #[cfg(feature = "std")]
    #[test]
    fn the_more_is_lost_the_denser_rows_are() {
        let epsilon = 0.002;
        let spread = |n, p, burst| {
            let repairs = params::burst_repair_for(n, p, burst, 1, epsilon, 10 * n);
            spread_for(n, repairs, p, burst, epsilon)
        };
        let rates = [0.01, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5];
        assert_eq!(rates.map(|p| spread(100, p, 1.0)), [1, 3, 4, 6, 7, 8, 8]);
        assert_eq!(spread(256, 0.1, 1.0), 7);
        // 18 and 27 of them would cover every symbol often enough.
        assert_eq!((spread(100, 0.3, 8.0), spread(100, 0.5, 8.0)), (13, 13));
        // Fewer failures are accepted, so fewer may be added.
        let few = [1e-2, 1e-4, 1e-8].map(|epsilon| spread_for(100, 43, 0.2, 1.0, epsilon));
        assert_eq!(few, [7, 4, 3]);
        for strange in [f64::NAN, -1.0, 0.0, 1.0, 1e300] {
            for (p, burst) in [(strange, 1.0), (0.5, strange), (strange, strange)] {
                let spread = spread_for(100, 50, p, burst, strange);
                assert!((1..=SPREAD_MAX).contains(&spread));
            }
        }
        assert_eq!(
            [0, 1, 6].map(|repairs| spread_for(100, repairs, 0.01, 1.0, 0.1)),
            [1; 3]
        );
    }

    #[test]
    fn a_round_holds_every_symbol_once() {
        let large = if cfg!(miri) { 65 } else { 4096 };
        for (n, spread) in [(100, 3), (7, 7), (5, 64), (large, 64), (1, 2)] {
            let parts = (spread as usize).min(n) as u32;
            for round in 0..3 {
                let mut seen: Vec<u16> = (0..parts)
                    .flat_map(|part| terms(n, row(spread, round * parts + part)))
                    .map(|term| term.index)
                    .collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..n as u16).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn coefficients_are_never_zero() {
        for number in [0, 155, 156, 157, 300, 1 << 18, 5 << 18 | 77, 0xff_ffff] {
            for n in [1, 2, 99, 100, 101, 255, 256, 257, 1024] {
                let terms = terms(n, Row::new(number).unwrap());
                assert!(!terms.is_empty());
                assert!(terms.iter().all(|term| term.coefficient != 0));
            }
        }
    }

    /// The row numbers name the same coefficients for ever: a change here is a
    /// change of the wire format.
    #[test]
    fn rows_are_as_documented() {
        let cauchy: Vec<u8> = terms(3, row(1, 1)).iter().map(|t| t.coefficient).collect();
        assert_eq!(cauchy, [gf256::inv(254), gf256::inv(255), gf256::inv(252)]);
        let sparse: Vec<(u16, u8)> = terms(10, row(3, 4))
            .iter()
            .map(|term| (term.index, term.coefficient))
            .collect();
        assert_eq!(sparse, [(0, 188), (6, 84), (7, 223)]);
        let dense: Vec<u8> = terms(10, row(1, 1000))
            .iter()
            .map(|t| t.coefficient)
            .collect();
        assert_eq!(dense, [122, 141, 95, 150, 51, 50, 253, 199, 143, 231]);
    }
}
