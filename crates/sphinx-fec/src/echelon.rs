//! Linear independence over GF(2^8), kept up one row at a time.

use alloc::vec::Vec;

use crate::engine::{Columns, Engine, REGISTER_MAX, Start, Term};
use crate::gf256;

/// A set of independent rows in reduced row echelon form: each row has a
/// pivot, a column where it is 1 and all other rows are 0.
///
/// Only the first `width` columns can hold pivots; further columns, if there
/// are any, are carried along: an inverse is computed that way, or payload is
/// decoded while it arrives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echelon {
    width: usize,
    carried: usize,
    stride: usize,
    rows: Vec<u8>,
    /// The pivot column of each row.
    pivots: Vec<u16>,
    terms: Vec<Term>,
    factors: Vec<u8>,
    copy: Vec<u8>,
}

impl Echelon {
    /// Removes all rows and sets the number of columns.
    pub(crate) fn reset(&mut self, width: usize, carried: usize) {
        self.width = width;
        self.carried = carried;
        self.stride = (width + carried)
            .next_multiple_of(REGISTER_MAX)
            .max(REGISTER_MAX);
        self.rows.clear();
        self.pivots.clear();
    }

    /// Number of rows.
    pub(crate) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Whether column `column` is the pivot of a row.
    pub(crate) fn row_of(&self, column: usize) -> Option<usize> {
        self.pivots.iter().position(|p| usize::from(*p) == column)
    }

    /// Each pivot column with the columns carried along in its row.
    pub(crate) fn solution(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let rows = self.rows.chunks_exact(self.stride.max(1));
        let carried = rows.map(|row| &row[self.width..self.width + self.carried]);
        self.pivots.iter().map(|p| usize::from(*p)).zip(carried)
    }

    /// Removes the rows that are zero in all columns but their pivot, handing
    /// out pivot column and what they carry.
    pub(crate) fn take_solved(&mut self, mut found: impl FnMut(usize, &[u8])) {
        for at in (0..self.pivots.len()).rev() {
            let pivot = usize::from(self.pivots[at]);
            let row = &self.rows[at * self.stride..][..self.stride];
            if is_zero(&row[..pivot]) && is_zero(&row[pivot + 1..self.width]) {
                found(pivot, &row[self.width..self.width + self.carried]);
                self.unsettle(at);
                self.rows.truncate(self.pivots.len() * self.stride);
            }
        }
    }

    /// Adds the row that `fill` writes into zeros. Says whether it was
    /// independent of the others; if not it is dropped.
    pub(crate) fn insert(&mut self, engine: Engine, fill: impl FnOnce(&mut [u8])) -> bool {
        let used = self.rows.len();
        self.rows.resize(used + self.stride, 0);
        let (others, row) = self.rows.split_at_mut(used);
        fill(&mut row[..self.width + self.carried]);
        // All other rows are zero at each other's pivots, so the factors can be
        // read off at once.
        self.terms.clear();
        let factors = self.pivots.iter().map(|pivot| row[usize::from(*pivot)]);
        let terms = factors.enumerate().filter(|(_, factor)| *factor != 0);
        self.terms.extend(terms.map(|(index, coefficient)| Term {
            index: index as u16,
            coefficient,
        }));
        if !self.terms.is_empty() {
            let columns = Columns {
                symbols: others,
                symbol_len: self.stride,
                first: 0,
            };
            engine.combine(row, Start::Accumulate, columns, &self.terms);
        }
        if self.settle_last(engine) {
            return true;
        }
        self.rows.truncate(used);
        false
    }

    /// Makes column `column` zero in all rows, as its symbol became known to be
    /// `value` (as many bytes as are carried, or none if nothing is).
    pub(crate) fn substitute(&mut self, engine: Engine, column: usize, value: &[u8]) {
        for row in self.rows.chunks_exact_mut(self.stride.max(1)) {
            let factor = core::mem::take(&mut row[column]);
            if factor != 0 && !value.is_empty() {
                let carried = &mut row[self.width..self.width + self.carried];
                engine.mul_add(carried, value, factor);
            }
        }
        let Some(at) = self.row_of(column) else {
            return;
        };
        // The row that lost its pivot becomes the last and gets a new one.
        self.unsettle(at);
        if !self.settle_last(engine) {
            self.rows.truncate(self.pivots.len() * self.stride);
        }
    }

    /// Gives column `column` up: removes what involves its symbol, at the price
    /// of at most one row.
    pub(crate) fn abandon(&mut self, engine: Engine, column: usize) {
        if let Some(at) = self.row_of(column) {
            self.unsettle(at);
            self.rows.truncate(self.pivots.len() * self.stride);
            return;
        }
        let mut rows = self.rows.chunks_exact(self.stride.max(1));
        let Some(at) = rows.position(|row| row[column] != 0) else {
            return;
        };
        self.unsettle(at);
        let used = self.pivots.len() * self.stride;
        let (others, row) = self.rows.split_at_mut(used);
        let inverse = gf256::inv(row[column]);
        for other in others.chunks_exact_mut(self.stride) {
            let factor = gf256::mul(other[column], inverse);
            if factor != 0 {
                engine.mul_add(other, row, factor);
            }
        }
        self.rows.truncate(used);
    }

    /// Makes row `at` the last and takes its pivot away.
    fn unsettle(&mut self, at: usize) {
        let last = self.pivots.len() - 1;
        self.pivots.swap_remove(at);
        if at < last {
            let (head, tail) = self.rows.split_at_mut(last * self.stride);
            head[at * self.stride..][..self.stride].swap_with_slice(&mut tail[..self.stride]);
        }
    }

    /// Finds a pivot for the last row, which has none yet and is zero at the
    /// others' pivots, and clears that column in the other rows.
    fn settle_last(&mut self, engine: Engine) -> bool {
        let used = self.pivots.len() * self.stride;
        let (others, row) = self.rows.split_at_mut(used);
        let Some(pivot) = row[..self.width].iter().position(|c| *c != 0) else {
            return false;
        };
        let factor = gf256::inv(row[pivot]);
        if factor != 1 {
            self.copy.clear();
            self.copy.extend_from_slice(row);
            row.fill(0);
            engine.mul_add(row, &self.copy, factor);
        }
        self.factors.clear();
        let factors = others.chunks_exact(self.stride).map(|other| other[pivot]);
        self.factors.extend(factors);
        if self.factors.iter().any(|factor| *factor != 0) {
            engine.add_multiples(others, row, &self.factors);
        }
        self.pivots.push(pivot as u16);
        true
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
