//! `srlt`: the semi-random LT code of the Sphinx paper (section 3.2).
//!
//! A repair symbol, there a ProFEC packet, is the XOR of `D_h` source symbols
//! drawn at random without replacement. The degree follows from the loss rate
//! so that a repair most likely meets at most one lost symbol; decoding is LT
//! peeling. How many to send and of which degree is computed by
//! [`params::srlt`](crate::params::srlt).
//!
//! # Example
//! What the paper sends for a block of 100 symbols at 6 % loss:
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use sphinx_fec::params::srlt as rule;
//! use sphinx_fec::{Encoder, CodeId, srlt};
//!
//! let (n, loss, symbol_len) = (100, 0.06, 1000);
//! let degree = rule::degree(loss, 0.0, rule::degree_cap(n));
//! let count = rule::packet_count(n, loss, degree, rule::PAPER_THRESHOLD);
//! assert_eq!((degree, count), (16, 15));
//!
//! let source = vec![1; n * symbol_len];
//! let rows: Vec<_> = (0..count as u32)
//!     .map(|seed| (CodeId::Srlt, srlt::row(degree, seed)))
//!     .collect();
//! let mut symbols = vec![0; count * symbol_len];
//! Encoder::new().encode_rows(n, symbol_len, &source, &rows, &mut symbols)?;
//! // Sixteen equal symbols add up to nothing.
//! assert!(symbols.iter().all(|byte| *byte == 0));
//! # }
//! # Ok::<(), sphinx_fec::Error>(())
//! ```
//!
//! # Rows
//! The 24-bit row number is `(degree − 1) << 15 | seed`: a degree from 1 to
//! 512, at most `n`, and a seed of 15 bits.
//!
//! # The numbers, exactly
//! The symbols are 0, 1 … n−1 at first. For i from 0 to degree−1, element i is
//! exchanged with element `i + floor(u · (n−i) / 2^32)`, where `u` is the upper
//! half of the next SplitMix64 draw from seed `2 << 62 | n << 40 | row`. The
//! first `degree` elements are the sample.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row, check_block_size};
use crate::engine::Term;
use crate::rng::SplitMix;

/// Largest degree a row can name.
pub const DEGREE_MAX: u32 = 512;

/// Seeds, and so rows, of one degree.
pub const SEED_COUNT: u32 = 1 << SEED_BITS;

const SEED_BITS: u32 = 15;
const SAMPLE_SEED: u64 = 2 << 62;

/// The row number for a degree (1 to [`DEGREE_MAX`]) and a seed (below
/// [`SEED_COUNT`]).
///
/// # Panics
/// If either is out of range.
#[must_use]
pub fn row(degree: u32, seed: u32) -> Row {
    assert!((1..=DEGREE_MAX).contains(&degree), "degree out of range");
    assert!(seed < SEED_COUNT, "seed out of range");
    Row::from_low_bits((degree - 1) << SEED_BITS | seed)
}

/// Degree and seed of a row.
#[must_use]
pub fn split(row: Row) -> (u32, u32) {
    let number = row.number();
    ((number >> SEED_BITS) + 1, number & (SEED_COUNT - 1))
}

/// Makes the terms of rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    sampler: Sampler,
}

impl Builder {
    /// Fills `terms` with the symbols of the row, all with coefficient 1.
    pub(crate) fn terms(&mut self, n: usize, row: Row, terms: &mut Vec<Term>) -> Result<(), Error> {
        check_block_size(n)?;
        let (degree, _) = split(row);
        let degree = degree as usize;
        if degree > n {
            let code = CodeId::Srlt;
            return Err(Error::Row { code, n, row });
        }
        let rng = SplitMix::new(SAMPLE_SEED | (n as u64) << 40 | u64::from(row.number()));
        self.sampler.sample(n, degree, rng, terms);
        Ok(())
    }
}

/// Draws symbols without replacement; holds the memory for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampler {
    /// 0, 1, 2 … between two samples.
    symbols: Vec<u16>,
    swaps: Vec<u16>,
}

impl Sampler {
    /// Fills `terms` with `degree` of the `n` symbols, with coefficient 1.
    pub(crate) fn sample(
        &mut self,
        n: usize,
        degree: usize,
        mut rng: SplitMix,
        terms: &mut Vec<Term>,
    ) {
        let made = self.symbols.len() as u16;
        self.symbols.extend(made..n.max(usize::from(made)) as u16);
        terms.clear();
        self.swaps.clear();
        for i in 0..degree {
            let j = i + rng.below((n - i) as u32) as usize;
            self.symbols.swap(i, j);
            self.swaps.push(j as u16);
            terms.push(Term {
                index: self.symbols[i],
                coefficient: 1,
            });
        }
        for (i, j) in self.swaps.iter().enumerate().rev() {
            self.symbols.swap(i, usize::from(*j));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize, row: Row) -> Vec<u16> {
        let mut terms = Vec::new();
        Builder::default().terms(n, row, &mut terms).unwrap();
        assert!(terms.iter().all(|term| term.coefficient == 1));
        terms.iter().map(|term| term.index).collect()
    }

    #[test]
    fn samples_are_distinct_and_of_the_degree() {
        for n in [1, 2, 16, 100, 4096] {
            for degree in [1, 2, 16, 512] {
                if degree as usize > n {
                    continue;
                }
                for seed in [0, 1, SEED_COUNT - 1] {
                    let mut sample = sample(n, row(degree, seed));
                    assert!(sample.iter().all(|i| usize::from(*i) < n));
                    sample.sort_unstable();
                    sample.dedup();
                    assert_eq!(sample.len(), degree as usize);
                }
            }
        }
    }

    #[test]
    fn a_degree_above_the_block_size_is_refused() {
        let row = row(17, 3);
        let result = Builder::default().terms(16, row, &mut Vec::new());
        let code = CodeId::Srlt;
        assert_eq!(result, Err(Error::Row { code, n: 16, row }));
    }

    #[test]
    fn rows_are_as_documented() {
        assert_eq!(row(16, 5).number(), 15 << 15 | 5);
        assert_eq!(split(row(16, 5)), (16, 5));
        assert_eq!(sample(10, row(4, 7)), [0, 2, 9, 4]);
    }
}
