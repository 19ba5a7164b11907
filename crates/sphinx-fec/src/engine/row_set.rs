//! Rows that are combined many times, looked through once.

use alloc::vec::Vec;

use super::{Columns, Engine, Start, Term};

/// A list of rows of terms. What [`Engine::combine`] finds out about the terms
/// of every call is found out when a row is added.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowSet {
    terms: Vec<Term>,
    rows: Vec<Facts>,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The terms of the row: from where those of the row before end.
    begin: usize,
    end: usize,
    /// The largest index among them.
    last: u16,
    is_xor: bool,
}

impl RowSet {
    pub(crate) fn clear(&mut self) {
        self.terms.clear();
        self.rows.clear();
    }

    /// Adds a row; its number is the count of those before it.
    pub(crate) fn push(&mut self, terms: impl Iterator<Item = Term>) {
        let begin = self.terms.len();
        self.terms.extend(terms);
        let row = &self.terms[begin..];
        self.rows.push(Facts {
            begin,
            end: self.terms.len(),
            last: row.iter().map(|term| term.index).max().unwrap_or(0),
            is_xor: row.iter().all(|term| term.coefficient == 1),
        });
    }

    /// [`Engine::combine`] with the terms of row `row`.
    ///
    /// # Panics
    /// If there is no such row, or the stretch of a term's symbol ends behind
    /// the buffer.
    pub(crate) fn combine(
        &self,
        engine: Engine,
        row: usize,
        out: &mut [u8],
        start: Start,
        columns: Columns<'_>,
    ) {
        let facts = self.rows[row];
        let terms = &self.terms[facts.begin..facts.end];
        if terms.is_empty() {
            if start == Start::Zero {
                out.fill(0);
            }
            return;
        }
        columns.check(facts.last, out.len());
        // SAFETY: the facts were taken from these very terms, and the stretch
        // of the last symbol was just checked.
        unsafe { engine.combine_checked(out, start, columns, terms, facts.is_xor) };
    }
}
