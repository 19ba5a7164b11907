//! From the name of a repair symbol to its coefficients, for all codes.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row};
use crate::engine::Term;
use crate::{dense, lt, rlc, srlt};

/// Terms remembered at most; then the maker starts to remember afresh.
const TERMS_MAX: usize = 1 << 17;

/// Rows remembered at most.
const ENTRIES: usize = 512;

/// Computes the coefficients of repair symbols.
///
/// Both ends compute them from `(code, n, row)` alone. The maker remembers
/// rows, about half a megabyte of them: senders use the same ones in block
/// after block.
#[derive(Clone, Debug, Default)]
pub struct RowMaker {
    rlc: rlc::Builder,
    srlt: srlt::Builder,
    lt: lt::Builder,
    /// The remembered terms, one row after another.
    terms: Vec<Term>,
    /// Where to find them, in a place that depends on the name.
    entries: Vec<Entry>,
    fresh: Vec<Term>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Block size, code and row; 0 in an empty entry, as no block has 0
    /// symbols.
    name: u64,
    start: u32,
    len: u32,
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
    /// For a block size out of range, or a row that the code does not have
    /// (codes that are not made of such rows have none at all).
    pub fn terms(&mut self, code: CodeId, n: usize, row: Row) -> Result<&[Term], Error> {
        let name = (n as u64) << 32 | u64::from(code.to_wire()) << 24 | u64::from(row.number());
        if self.entries.is_empty() {
            self.entries.resize(ENTRIES, Entry::default());
        }
        let hash = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let entry = &mut self.entries[hash as usize % ENTRIES];
        if entry.name == name {
            return Ok(&self.terms[entry.start as usize..][..entry.len as usize]);
        }
        match code {
            CodeId::Rlc => self.rlc.terms(n, row, &mut self.fresh)?,
            CodeId::Srlt => self.srlt.terms(n, row, &mut self.fresh)?,
            CodeId::Lt => self.lt.terms(n, row, &mut self.fresh)?,
            CodeId::Rs => dense::cauchy_terms(n, row, &mut self.fresh)?,
            CodeId::Window => dense::window_terms(n, row, &mut self.fresh)?,
            CodeId::FftRs => return Err(Error::Row { code, n, row }),
        }
        let len = self.fresh.len();
        if self.terms.len() + len > TERMS_MAX {
            self.terms.clear();
            self.entries.fill(Entry::default());
        }
        let start = self.terms.len();
        self.terms.extend_from_slice(&self.fresh);
        self.entries[hash as usize % ENTRIES] = Entry {
            name,
            start: start as u32,
            len: len as u32,
        };
        Ok(&self.terms[start..])
    }
}
