//! `lt`: the traditional LT code (Luby, FOCS 2002) with the robust soliton
//! distribution, for comparison.
//!
//! A row is the XOR of `d` symbols drawn without replacement, with `d` from the
//! robust soliton distribution. There is no end of rows, and source symbols
//! need not be sent at all: that is how the published comparisons use it.
//!
//! # Example
//! A block from repairs alone, as many as it takes:
//!
//! ```
//! use sphinx_fec::{BlockReceiver, CodeId, Encoder, Repair, SymbolDecoder, lt};
//!
//! let (n, symbol_len) = (50, 8);
//! let source: Vec<u8> = (0..n * symbol_len).map(|i| i as u8).collect();
//! let shape = lt::Shape::nearest(0.1, 1.0);
//! let mut encoder = Encoder::new();
//! let mut receiver = BlockReceiver::new(0, n, symbol_len)?;
//! let mut memory = vec![0; n * symbol_len];
//! let mut sent = 0;
//! while receiver.deficit() > 0 {
//!     let (code, row) = (CodeId::Lt, shape.row(sent));
//!     let mut symbol = [0; 8];
//!     encoder.encode(code, n, symbol_len, &source, row, &mut symbol)?;
//!     sent += 1;
//!     receiver.add_repair(&mut memory, 0, n, Repair { code, row, symbol: &symbol });
//! }
//! assert!(memory == source && sent >= 50);
//! # Ok::<(), sphinx_fec::Error>(())
//! ```
//!
//! # Rows
//! The 24-bit row number is `shape << 18 | seed`, where `shape` is
//! `8 · i + k` for the constants `c =` [`C_VALUES`]`[i]` and
//! `δ =` [`DELTA_VALUES`]`[k]`, and the seed has 18 bits.
//!
//! # The numbers, exactly
//! With `R = c · ln(n/δ) · √n` (at least 1, at most n) and `M = ⌊n/R⌋`, degree
//! `d` has weight `ρ(d) + τ(d)`: `ρ(1) = 1/n`, `ρ(d) = 1/(d(d−1))`;
//! `τ(d) = R/(d·n)` for `d < M`, `τ(M) = R · ln(R/δ) / n` (nothing if that is
//! negative). The weights divided by their sum are added up from degree 1 and
//! rounded down to multiples of 2^−24. The degree is the first whose sum
//! exceeds the highest 24 bits of the first `SplitMix64` draw from seed
//! `1 << 62 | n << 40 | row`. The symbols follow from the further draws as for
//! [`srlt`](crate::srlt).

use alloc::vec::Vec;

use crate::code::{Error, Row, check_block_size};
use crate::engine::Term;
use crate::math;
use crate::rng::SplitMix;
use crate::srlt::Sampler;

/// Values of the constant c that a row can name.
pub const C_VALUES: [f64; 8] = [0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5];

/// Values of the constant δ that a row can name.
pub const DELTA_VALUES: [f64; 8] = [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0];

/// Seeds, and so rows, of one shape.
pub const SEED_COUNT: u32 = 1 << SEED_BITS;

const SEED_BITS: u32 = 18;
const SEED: u64 = 1 << 62;

/// The constants c and δ of a robust soliton distribution, from the lists that
/// a row can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(u32);

impl Default for Shape {
    /// c = 0.1 and δ = 1, the best of the list for blocks of 100 symbols.
    fn default() -> Self {
        Self(4 * 8 + 7)
    }
}

impl Shape {
    /// The shape with the listed values next to `c` and `delta`.
    #[must_use]
    pub fn nearest(c: f64, delta: f64) -> Self {
        let nearest = |values: &[f64; 8], wanted: f64| {
            let distance = |value: f64| {
                if value < wanted {
                    wanted - value
                } else {
                    value - wanted
                }
            };
            (1..8).fold(0, |best, i| {
                if distance(values[i]) < distance(values[best]) {
                    i
                } else {
                    best
                }
            })
        };
        Self(nearest(&C_VALUES, c) as u32 * 8 + nearest(&DELTA_VALUES, delta) as u32)
    }

    /// The shape that a row names.
    #[must_use]
    pub fn of(row: Row) -> Self {
        Self(row.number() >> SEED_BITS)
    }

    /// The constant c.
    #[must_use]
    pub fn c(self) -> f64 {
        C_VALUES[self.0 as usize / 8]
    }

    /// The constant δ.
    #[must_use]
    pub fn delta(self) -> f64 {
        DELTA_VALUES[self.0 as usize % 8]
    }

    /// The row number for this shape and a seed; seeds repeat after
    /// [`SEED_COUNT`].
    #[must_use]
    pub fn row(self, seed: u32) -> Row {
        Row::from_low_bits(self.0 << SEED_BITS | seed & (SEED_COUNT - 1))
    }
}

/// Makes the terms of rows, remembering the last distribution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    /// Block size and shape that `sums` is for.
    made_for: Option<(usize, Shape)>,
    /// `sums[d − 1]`: the probability of degrees up to d, in units of 2^−24.
    sums: Vec<u32>,
    weights: Vec<f64>,
    sampler: Sampler,
}

impl Builder {
    /// Fills `terms` with the symbols of the row, all with coefficient 1.
    pub(crate) fn terms(&mut self, n: usize, row: Row, terms: &mut Vec<Term>) -> Result<(), Error> {
        check_block_size(n)?;
        let shape = Shape::of(row);
        if self.made_for != Some((n, shape)) {
            self.distribute(n, shape);
            self.made_for = Some((n, shape));
        }
        let mut rng = SplitMix::new(SEED | (n as u64) << 40 | u64::from(row.number()));
        let draw = (rng.next() >> 40) as u32;
        let degree = 1 + self.sums.partition_point(|sum| *sum <= draw);
        self.sampler.sample(n, degree.min(n), rng, terms);
        Ok(())
    }

    fn distribute(&mut self, n: usize, shape: Shape) {
        let size = n as f64;
        let (c, delta) = (shape.c(), shape.delta());
        let ripple = (c * math::ln(size / delta) * math::sqrt(size)).clamp(1.0, size);
        let spike = (size / ripple) as usize;
        let robust = |d: usize| {
            if d < spike {
                ripple / (d as f64 * size)
            } else if d == spike {
                (ripple * math::ln(ripple / delta) / size).max(0.0)
            } else {
                0.0
            }
        };
        self.weights.clear();
        self.weights.extend((1..=n).map(|d| {
            let degree = d as f64;
            let ideal = if d == 1 {
                1.0 / size
            } else {
                1.0 / (degree * (degree - 1.0))
            };
            ideal + robust(d)
        }));
        let total: f64 = self.weights.iter().sum();
        let mut sum = 0.0;
        self.sums.clear();
        self.sums.extend(self.weights.iter().map(|weight| {
            sum += weight;
            (sum / total * f64::from(1 << 24)) as u32
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_names() {
        let shape = Shape::default();
        assert_eq!((shape.c(), shape.delta()), (0.1, 1.0));
        assert_eq!(Shape::nearest(0.09, 0.99), shape);
        assert_eq!(Shape::nearest(-1.0, 7.0), Shape(7));
        assert_eq!(Shape::of(shape.row(5)), shape);
        assert_eq!(shape.row(5).number(), 39 << 18 | 5);
    }

    #[test]
    fn degrees_follow_the_distribution() {
        let mut builder = Builder::default();
        let mut terms = Vec::new();
        let (n, rows) = (100, if cfg!(miri) { 200 } else { 20_000 });
        let mut of_degree = [0_u32; 101];
        for seed in 0..rows {
            let row = Shape::default().row(seed);
            builder.terms(n, row, &mut terms).unwrap();
            assert!(terms.iter().all(|term| term.coefficient == 1));
            of_degree[terms.len()] += 1;
        }
        assert_eq!(of_degree[0], 0);
        let mut before = 0;
        for (degree, count) in of_degree.into_iter().enumerate().skip(1) {
            let sum = builder.sums[degree - 1];
            let expected = f64::from(sum - before) / f64::from(1 << 24) * f64::from(rows);
            let difference = (f64::from(count) - expected).abs();
            assert!(
                difference < 6.0 + 5.0 * expected.sqrt(),
                "{degree}: {count}"
            );
            before = sum;
        }
    }

    #[test]
    fn every_row_exists_for_every_block_size() {
        let mut builder = Builder::default();
        let mut terms = Vec::new();
        let step = if cfg!(miri) { 7_777_777 } else { 777_777 };
        for n in [1, 2, 3, 10, 100, 4096] {
            for number in (0..1 << 24).step_by(step) {
                let row = Row::new(number).unwrap();
                builder.terms(n, row, &mut terms).unwrap();
                assert!(!terms.is_empty() && terms.len() <= n);
                assert!(terms.iter().all(|term| usize::from(term.index) < n));
            }
        }
    }

    #[test]
    fn rows_are_as_documented() {
        let mut terms = Vec::new();
        let row = Shape::default().row(4);
        Builder::default().terms(10, row, &mut terms).unwrap();
        let symbols: Vec<u16> = terms.iter().map(|term| term.index).collect();
        assert_eq!(symbols, [3, 4, 5]);
    }
}
