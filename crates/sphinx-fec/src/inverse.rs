//! The inverse of a matrix over GF(2^8), by Gauss–Jordan elimination.

use alloc::vec::Vec;

use crate::engine::{Engine, REGISTER_MAX};
use crate::gf256;

/// A square matrix and then its inverse. Its memory is kept for the next.
#[derive(Debug, Default)]
pub(crate) struct Inverse {
    width: usize,
    /// A multiple of the longest register.
    stride: usize,
    /// Rows of the matrix, each followed by what becomes that of the inverse.
    rows: Vec<u8>,
    pivot: Vec<u8>,
    factors: Vec<u8>,
}

impl Inverse {
    /// Begins a matrix of `width` rows and columns.
    pub(crate) fn begin(&mut self, width: usize) {
        self.width = width;
        self.stride = (2 * width + 1).next_multiple_of(REGISTER_MAX);
        self.rows.clear();
        self.rows.resize(width * self.stride, 0);
    }

    /// Row `row` of the matrix, zero at first, with one column more than it
    /// has: what is written there makes no difference.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.rows[row * self.stride..][..=self.width]
    }

    /// Inverts the matrix, or says that it has no inverse.
    pub(crate) fn invert(&mut self, engine: Engine) -> bool {
        let Self { width, stride, .. } = *self;
        for (i, row) in self.rows.chunks_exact_mut(stride).enumerate() {
            row[width] = 0;
            row[width + i] ^= 1;
        }
        for column in 0..width {
            let rows = &self.rows;
            let at = |row: usize| rows[row * stride + column];
            let Some(found) = (column..width).find(|row| at(*row) != 0) else {
                return false;
            };
            let inverse = gf256::inv(at(found));
            self.factors.clear();
            self.factors
                .extend((0..width).map(|row| gf256::mul(at(row), inverse)));
            if found != column {
                let (head, tail) = self.rows.split_at_mut(found * stride);
                head[column * stride..][..stride].swap_with_slice(&mut tail[..stride]);
                self.factors.swap(found, column);
            }
            // The pivot row itself is to be multiplied with the inverse.
            self.factors[column] = inverse ^ 1;
            let row = column * stride..(column + 1) * stride;
            self.pivot.clear();
            self.pivot.extend_from_slice(&self.rows[row]);
            engine.add_multiples(&mut self.rows, &self.pivot, &self.factors);
        }
        true
    }

    /// The rows of the inverse.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let rows = self.rows.chunks_exact(self.stride.max(1));
        rows.map(|row| &row[self.width..2 * self.width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        let mut state = 1_u32;
        for width in [1, 2, 5, 14, 31, 32, 40] {
            if cfg!(miri) && width > 5 {
                break;
            }
            let mut inverse = Inverse::default();
            inverse.begin(width);
            let matrix: Vec<Vec<u8>> = (0..width)
                .map(|i| {
                    let row = inverse.row_mut(i);
                    for element in &mut *row {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        *element = if state >> 30 == 0 {
                            (state >> 16) as u8
                        } else {
                            0
                        };
                    }
                    row[(i + 1) % width] = 1;
                    row[..width].to_vec()
                })
                .collect();
            if !inverse.invert(Engine::detect()) {
                continue;
            }
            for (i, row) in matrix.iter().enumerate() {
                for j in 0..width {
                    let products = inverse.rows().zip(row).map(|(r, c)| gf256::mul(r[j], *c));
                    assert_eq!(products.fold(0, |a, b| a ^ b), u8::from(i == j));
                }
            }
        }
    }

    #[test]
    fn a_singular_matrix_has_none() {
        let mut inverse = Inverse::default();
        inverse.begin(3);
        for row in 0..3 {
            inverse
                .row_mut(row)
                .copy_from_slice(&[1, 2, row as u8 / 2, 9]);
        }
        assert!(!inverse.invert(Engine::scalar()));
        inverse.begin(0);
        assert!(inverse.invert(Engine::scalar()));
    }
}
