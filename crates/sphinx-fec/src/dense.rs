//! Dense rows: those of [`rs`](crate::rs) and [`window`](crate::window), and the
//! spread-1 rows of [`rlc`](crate::rlc), each documented there.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row, check_block_size};
use crate::engine::Term;
use crate::gf256;
use crate::rng::SplitMix;

const WINDOW_SEED: u64 = 3 << 62;

/// Rows that `rs` has for a block of `n` symbols.
#[must_use]
pub(crate) fn cauchy_row_count(n: usize) -> usize {
    256_usize.saturating_sub(n)
}

/// Fills `terms` with a row of `rs`.
pub(crate) fn cauchy_terms(n: usize, row: Row, terms: &mut Vec<Term>) -> Result<(), Error> {
    check_block_size(n)?;
    if row.number() as usize >= cauchy_row_count(n) {
        let code = CodeId::Rs;
        return Err(Error::Row { code, n, row });
    }
    fill_cauchy(n, row.number() as u8, terms);
    Ok(())
}

/// A Cauchy row; `index + n` must not exceed 255.
pub(crate) fn fill_cauchy(n: usize, index: u8, terms: &mut Vec<Term>) {
    terms.clear();
    terms.extend((0..n).map(|j| Term {
        index: j as u16,
        coefficient: gf256::inv(index ^ (255 - j) as u8),
    }));
}

/// Fills `terms` with a row of `window` over a window of `n` symbols.
pub(crate) fn window_terms(n: usize, row: Row, terms: &mut Vec<Term>) -> Result<(), Error> {
    check_block_size(n)?;
    fill_window(n, row, terms);
    Ok(())
}

/// A row of `window`; `n` must be a possible number of symbols.
pub(crate) fn fill_window(n: usize, row: Row, terms: &mut Vec<Term>) {
    let draws = SplitMix::new(WINDOW_SEED | u64::from(row.number()));
    fill_random(n, draws, terms);
}

/// A row with random non-zero coefficients.
pub(crate) fn fill_random(n: usize, mut draws: SplitMix, terms: &mut Vec<Term>) {
    terms.clear();
    for first in (0..n).step_by(8) {
        let draw = draws.next();
        terms.extend((first..n.min(first + 8)).map(|index| Term {
            index: index as u16,
            coefficient: non_zero(draw >> (8 * (index - first))),
        }));
    }
}

/// The coefficient that the lowest byte of `bits` stands for.
pub(crate) fn non_zero(bits: u64) -> u8 {
    1 + ((bits & 0xff) * 255 / 256) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rs_has_256_symbols_in_all() {
        let mut terms = Vec::new();
        for n in [1, 100, 200, 255] {
            let last = Row::new(255 - n as u32).unwrap();
            assert_eq!(cauchy_terms(n, last, &mut terms), Ok(()));
            assert!(terms.iter().all(|term| term.coefficient != 0));
            let row = Row::new(256 - n as u32).unwrap();
            let code = CodeId::Rs;
            let refused = Err(Error::Row { code, n, row });
            assert_eq!(cauchy_terms(n, row, &mut terms), refused);
        }
        assert!(cauchy_terms(256, Row::new(0).unwrap(), &mut terms).is_err());
        assert!(cauchy_terms(0, Row::new(0).unwrap(), &mut terms).is_err());
    }

    /// The row numbers name the same coefficients for ever: a change here is a
    /// change of the wire format.
    #[test]
    fn window_rows_are_as_documented() {
        let mut terms = Vec::new();
        window_terms(10, Row::new(77).unwrap(), &mut terms).unwrap();
        let draws = SplitMix::new(3 << 62 | 77);
        for (j, term) in terms.iter().enumerate() {
            let byte = draws.at(j as u64 / 8).to_le_bytes()[j % 8];
            let coefficient = 1 + (u32::from(byte) * 255 / 256) as u8;
            assert_eq!(
                (usize::from(term.index), term.coefficient),
                (j, coefficient)
            );
        }
    }
}
