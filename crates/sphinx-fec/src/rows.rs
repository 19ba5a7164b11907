//! From the name of a repair symbol to its coefficients, for all codes.

use crate::code::{CodeId, Error, Row};
use crate::engine::Term;
use crate::{rlc, srlt};

/// Computes the coefficients of repair symbols.
///
/// Both ends compute them from `(code, n, row)` alone. The maker keeps its
/// memory from one row to the next and is quickest for rows in order.
#[derive(Debug, Default)]
pub struct RowMaker {
    rlc: rlc::Builder,
    srlt: srlt::Builder,
    terms: Vec<Term>,
}

impl RowMaker {
    /// A maker without any memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The terms of a row in a block of `n` symbols (1 to
    /// [`SYMBOLS_MAX`](crate::SYMBOLS_MAX)): distinct symbols with non-zero
    /// coefficients, in no particular order.
    ///
    /// # Errors
    /// For a block size out of range, or a row that the code does not have.
    pub fn terms(&mut self, code: CodeId, n: usize, row: Row) -> Result<&[Term], Error> {
        match code {
            CodeId::Rlc => self.rlc.terms(n, row, &mut self.terms)?,
            CodeId::Srlt => self.srlt.terms(n, row, &mut self.terms)?,
        }
        Ok(&self.terms)
    }
}
