//! Linear independence over GF(2^8), kept up one row at a time.

use crate::engine::Engine;
use crate::gf256;

/// A set of independent rows in reduced row echelon form: each row has a
/// pivot, a column where it is 1 and all other rows are 0.
///
/// Only the first `width` columns can hold pivots; further columns, if there
/// are any, are carried along (an inverse is computed that way).
#[derive(Clone, Debug, Default)]
pub(crate) struct Echelon {
    width: usize,
    stride: usize,
    rows: Vec<u8>,
    /// The pivot column of each row.
    pivots: Vec<u16>,
}

impl Echelon {
    /// Removes all rows and sets the number of columns.
    pub(crate) fn reset(&mut self, width: usize, carried: usize) {
        self.width = width;
        self.stride = width + carried;
        self.rows.clear();
        self.pivots.clear();
    }

    /// Number of rows.
    pub(crate) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Each pivot column with the columns carried along in its row.
    pub(crate) fn solution(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let rows = self.rows.chunks_exact(self.stride.max(1));
        let carried = rows.map(|row| &row[self.width..]);
        self.pivots.iter().map(|p| usize::from(*p)).zip(carried)
    }

    /// Adds the row that `fill` writes into zeros. Says whether it was
    /// independent of the others; if not it is dropped.
    pub(crate) fn insert(&mut self, engine: Engine, fill: impl FnOnce(&mut [u8])) -> bool {
        let used = self.rows.len();
        self.rows.resize(used + self.stride, 0);
        let (others, row) = self.rows.split_at_mut(used);
        fill(row);
        for (other, &pivot) in others.chunks_exact(self.stride.max(1)).zip(&self.pivots) {
            let factor = row[usize::from(pivot)];
            if factor != 0 {
                engine.mul_add(row, other, factor);
            }
        }
        if self.settle_last(engine) {
            return true;
        }
        self.rows.truncate(used);
        false
    }

    /// Makes column `column` zero in all rows, as its symbol became known.
    pub(crate) fn remove_column(&mut self, engine: Engine, column: usize) {
        for row in self.rows.chunks_exact_mut(self.stride.max(1)) {
            row[column] = 0;
        }
        let Some(at) = self.pivots.iter().position(|p| usize::from(*p) == column) else {
            return;
        };
        // The row that lost its pivot becomes the last and gets a new one.
        let last = self.pivots.len() - 1;
        self.pivots.swap_remove(at);
        if at < last {
            let (head, tail) = self.rows.split_at_mut(last * self.stride);
            head[at * self.stride..][..self.stride].swap_with_slice(tail);
        }
        if !self.settle_last(engine) {
            self.rows.truncate(last * self.stride);
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
        row.iter_mut().for_each(|c| *c = gf256::mul(*c, factor));
        for other in others.chunks_exact_mut(self.stride) {
            let factor = other[pivot];
            if factor != 0 {
                engine.mul_add(other, row, factor);
            }
        }
        self.pivots.push(pivot as u16);
        true
    }
}
