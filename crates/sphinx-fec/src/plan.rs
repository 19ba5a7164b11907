//! How to compute certain rows from the symbols of a block.
//!
//! Sparse rows are computed one after another for a few columns at a time.
//! Rows that hold all symbols are computed several at a time, which loads a
//! source byte once for all of them; for engines that have to prepare source
//! bytes that is worth less than preparing them once for every row.

use alloc::vec::Vec;

use crate::engine::{Columns, Engine, RowSet, Start, Targets, Term};

/// Bytes of source symbols that should stay in the first-level cache while
/// several repairs are computed from them.
const CACHE_BYTES: usize = 44 << 10;

/// Columns in a tile of a block: so few that the tile of the whole block stays
/// in cache, about equally many in each tile, and whole registers of any
/// engine.
fn tile_columns(n: usize, symbol_len: usize) -> usize {
    let most = (CACHE_BYTES / n.max(1)).clamp(256, 2048);
    let tiles = symbol_len.div_ceil(most).max(1);
    symbol_len.div_ceil(tiles).next_multiple_of(64).max(64)
}

/// Rows over the same block, computed together, and where each is written.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    sparse: RowSet,
    /// Symbols of the dense rows.
    symbols: Vec<u16>,
    /// Their coefficients, one row after another, and where they begin.
    matrix: Vec<u8>,
    starts: Vec<usize>,
}

impl Plan {
    /// Begins a plan for rows over those of `n` symbols that `is_wanted`: the
    /// others count as zero.
    pub(crate) fn begin(&mut self, n: usize, is_wanted: impl Fn(u16) -> bool) {
        self.sparse.clear();
        self.symbols.clear();
        self.symbols.extend((0..n as u16).filter(|i| is_wanted(*i)));
        self.matrix.clear();
        self.starts.clear();
    }

    /// Adds a row with the same engine, `n` and `is_wanted` as the others. It
    /// will be written to the bytes from `start`.
    pub(crate) fn push(
        &mut self,
        engine: Engine,
        n: usize,
        start: usize,
        terms: &[Term],
        is_wanted: impl Fn(u16) -> bool,
    ) {
        let is_dense = terms.len() == n && terms.is_sorted_by_key(|term| term.index);
        if is_dense && engine.combines_rows_best() {
            let symbols = self.symbols.iter();
            let coefficients = symbols.map(|i| terms[usize::from(*i)].coefficient);
            self.matrix.extend(coefficients);
            self.starts.push(start);
        } else {
            self.sparse.push(engine, start, terms, is_wanted);
        }
    }

    /// Computes the rows from symbols of `symbol_len` bytes.
    pub(crate) fn run(
        &mut self,
        engine: Engine,
        out: &mut [u8],
        start: Start,
        symbols: &[u8],
        symbol_len: usize,
    ) {
        let columns = Columns {
            symbols,
            symbol_len,
            first: 0,
        };
        self.sparse.combine(engine, out, symbol_len, start, columns);
        if self.starts.is_empty() {
            return;
        }
        let tile = tile_columns(self.symbols.len(), symbol_len);
        for first in (0..symbol_len).step_by(tile) {
            let targets = Targets {
                bytes: &mut out[first..],
                starts: &self.starts,
                len: tile.min(symbol_len - first),
            };
            let columns = Columns { first, ..columns };
            engine.combine_rows(targets, start, columns, &self.symbols, &self.matrix);
        }
    }
}
