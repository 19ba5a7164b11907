//! Encoding: repair symbols from a block of source symbols.

use crate::code::{CodeId, Error, Row, check_block_size, check_length};
use crate::engine::{Columns, Engine, Start, Term};
use crate::rows::RowMaker;

/// Bytes of source symbols that should stay in the first-level cache while
/// several repairs are computed from them.
const CACHE_BYTES: usize = 32 << 10;

/// Columns in a tile of a block of `n` symbols: so many that the tile of the
/// whole block stays in cache, in whole registers of any engine.
pub(crate) fn tile_columns(n: usize) -> usize {
    (CACHE_BYTES / n).next_multiple_of(128).clamp(256, 2048)
}

/// Computes repair symbols. Keeps its memory between calls.
#[derive(Debug)]
pub struct Encoder {
    engine: Engine,
    rows: RowMaker,
    /// The terms of all rows of a batch, one after another.
    terms: Vec<Term>,
    /// Where the terms of each row end.
    ends: Vec<usize>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder on the engine of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::with_engine(Engine::detect())
    }

    /// An encoder on a certain engine.
    #[must_use]
    pub fn with_engine(engine: Engine) -> Self {
        Self {
            engine,
            rows: RowMaker::new(),
            terms: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Computes one repair symbol into `out`.
    ///
    /// `source` holds the `n` symbols of `symbol_len` bytes each, one after
    /// another; a short last symbol is padded by the caller (with zeros, by
    /// convention).
    ///
    /// # Errors
    /// For impossible block sizes, rows and buffer lengths; `out` is then
    /// untouched.
    pub fn encode(
        &mut self,
        code: CodeId,
        n: usize,
        symbol_len: usize,
        source: &[u8],
        row: Row,
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.encode_rows(n, symbol_len, source, &[(code, row)], out)
    }

    /// Computes many repair symbols of one block, into `out` one after
    /// another. Cheaper than one call for each, since the source passes
    /// through the cache once.
    ///
    /// # Errors
    /// As for [`Self::encode`]; no repair is computed if any row is
    /// impossible.
    pub fn encode_rows(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &[u8],
        rows: &[(CodeId, Row)],
        out: &mut [u8],
    ) -> Result<(), Error> {
        check_block_size(n)?;
        check_length(n * symbol_len, source.len())?;
        check_length(rows.len() * symbol_len, out.len())?;
        self.terms.clear();
        self.ends.clear();
        for &(code, row) in rows {
            self.terms.extend_from_slice(self.rows.terms(code, n, row)?);
            self.ends.push(self.terms.len());
        }
        let mut columns = Columns {
            symbols: source,
            symbol_len,
            first: 0,
        };
        let tile = tile_columns(n);
        while columns.first < symbol_len {
            let end = tile_end(columns.first, tile, symbol_len);
            let mut begin = 0;
            for (repair, &row_end) in out.chunks_exact_mut(symbol_len).zip(&self.ends) {
                let terms = &self.terms[begin..row_end];
                let stretch = &mut repair[columns.first..end];
                self.engine.combine(stretch, Start::Zero, columns, terms);
                begin = row_end;
            }
            columns.first = end;
        }
        Ok(())
    }
}

/// The end of the tile that starts at column `first`; a remainder too small
/// for a register joins the last tile.
pub(crate) fn tile_end(first: usize, tile: usize, symbol_len: usize) -> usize {
    if symbol_len - first < tile + 64 {
        symbol_len
    } else {
        first + tile
    }
}
