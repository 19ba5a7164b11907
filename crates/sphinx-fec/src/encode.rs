//! Encoding: repair symbols from a block of source symbols.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row, check_block, check_length};
use crate::engine::{Columns, Engine, RowSet, Start, Targets};
use crate::fft_rs;
use crate::rows::RowMaker;

/// Bytes of source symbols that should stay in the first-level cache while
/// several repairs are computed from them.
const CACHE_BYTES: usize = 32 << 10;

/// Columns in a tile of a block: so few that the tile of the whole block stays
/// in cache, about equally many in each tile, and whole registers of any
/// engine.
pub(crate) fn tile_columns(n: usize, symbol_len: usize) -> usize {
    let most = (CACHE_BYTES / n.max(1)).clamp(256, 2048);
    let tiles = symbol_len.div_ceil(most).max(1);
    symbol_len.div_ceil(tiles).next_multiple_of(64).max(64)
}

/// Computes repair symbols. Keeps its memory between calls, and what it found
/// out about the rows of the last call: the same rows of the next block cost
/// nothing but arithmetic.
#[derive(Debug)]
pub struct Encoder {
    engine: Engine,
    maker: RowMaker,
    plan: Plan,
    fft: fft_rs::Coder,
}

/// How to compute certain rows of blocks of a certain size.
#[derive(Debug, Default)]
struct Plan {
    n: usize,
    rows: Vec<(CodeId, Row)>,
    steps: Vec<Step>,
    /// The sparse rows.
    sparse: RowSet,
    /// The coefficients of the dense rows, one after another.
    matrix: Vec<u8>,
    /// 0, 1 … n−1: the symbols of a dense row.
    symbols: Vec<u16>,
}

/// One or more rows that are computed together.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Row `row`, which is number `sparse` of the sparse ones.
    Sparse { row: usize, sparse: usize },
    /// `count` rows from `row` on, each with all symbols.
    Dense {
        row: usize,
        count: usize,
        begin: usize,
    },
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
            maker: RowMaker::new(),
            plan: Plan::default(),
            fft: fft_rs::Coder::default(),
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
    /// impossible. Rows of [`fft_rs`] cannot be mixed with others.
    pub fn encode_rows(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &[u8],
        rows: &[(CodeId, Row)],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let code = rows.first().map_or(CodeId::Rlc, |(code, _)| *code);
        check_block(code, n)?;
        check_length(n * symbol_len, source.len())?;
        check_length(rows.len() * symbol_len, out.len())?;
        if code == CodeId::FftRs {
            return self.fft.encode(n, symbol_len, source, rows, out);
        }
        self.plan.prepare(&mut self.maker, n, rows)?;
        let tile = tile_columns(n, symbol_len);
        for first in (0..symbol_len).step_by(tile) {
            let columns = Columns {
                symbols: source,
                symbol_len,
                first,
            };
            let len = tile.min(symbol_len - first);
            self.plan.run(self.engine, columns, len, out);
        }
        Ok(())
    }
}

impl Plan {
    /// Plans these rows, unless the plan is for them already.
    fn prepare(
        &mut self,
        maker: &mut RowMaker,
        n: usize,
        rows: &[(CodeId, Row)],
    ) -> Result<(), Error> {
        if self.n == n && self.rows == rows {
            return Ok(());
        }
        // Not for anything until the last row turned out to be possible.
        self.n = 0;
        self.rows.clear();
        self.steps.clear();
        self.sparse.clear();
        let mut sparse = 0;
        self.matrix.clear();
        self.symbols.clear();
        self.symbols.extend(0..n as u16);
        for (row, &(code, number)) in rows.iter().enumerate() {
            let terms = maker.terms(code, n, number)?;
            let is_dense = terms.len() == n && terms.is_sorted_by_key(|term| term.index);
            if !is_dense {
                self.sparse.push(terms.iter().copied());
                self.steps.push(Step::Sparse { row, sparse });
                sparse += 1;
                continue;
            }
            let begin = self.matrix.len();
            self.matrix.extend(terms.iter().map(|t| t.coefficient));
            if let Some(Step::Dense { count, .. }) = self.steps.last_mut() {
                *count += 1;
            } else {
                let count = 1;
                self.steps.push(Step::Dense { row, count, begin });
            }
        }
        self.n = n;
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    /// Computes `len` columns of all rows.
    fn run(&self, engine: Engine, columns: Columns<'_>, len: usize, out: &mut [u8]) {
        let Columns {
            symbol_len, first, ..
        } = columns;
        for step in &self.steps {
            match *step {
                Step::Sparse { row, sparse } => {
                    let stretch = &mut out[row * symbol_len + first..][..len];
                    let rows = &self.sparse;
                    rows.combine(engine, sparse, stretch, Start::Zero, columns);
                }
                Step::Dense { row, count, begin } => {
                    let targets = Targets {
                        bytes: &mut out[row * symbol_len..],
                        stride: symbol_len,
                        first,
                        len,
                    };
                    let matrix = &self.matrix[begin..begin + count * self.n];
                    engine.combine_rows(targets, Start::Zero, columns, &self.symbols, matrix);
                }
            }
        }
    }
}
