//! Encoding: repair symbols from a block of source symbols.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row, check_block, check_length};
use crate::engine::{Engine, Start};
use crate::fft_rs;
use crate::plan::Plan;
use crate::rows::RowMaker;

/// Computes repair symbols. Keeps its memory between calls, and what it found
/// out about the rows of the last call: the same rows of the next block cost
/// nothing but arithmetic.
#[derive(Debug)]
pub struct Encoder {
    engine: Engine,
    maker: RowMaker,
    plan: Plan,
    /// Block size, symbol length and rows that `plan` is for.
    made_for: Option<(usize, usize)>,
    rows: Vec<(CodeId, Row)>,
    fft: fft_rs::Coder,
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
            made_for: None,
            rows: Vec::new(),
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
        check_length(n.saturating_mul(symbol_len), source.len())?;
        check_length(rows.len().saturating_mul(symbol_len), out.len())?;
        if code == CodeId::FftRs {
            return self.fft.encode(n, symbol_len, source, rows, out);
        }
        self.prepare(n, symbol_len, rows)?;
        self.plan
            .run(self.engine, out, Start::Zero, source, symbol_len);
        Ok(())
    }

    /// Plans these rows, unless the plan is for them already.
    fn prepare(
        &mut self,
        n: usize,
        symbol_len: usize,
        rows: &[(CodeId, Row)],
    ) -> Result<(), Error> {
        if self.made_for == Some((n, symbol_len)) && self.rows == rows {
            return Ok(());
        }
        // Not for anything until the last row turned out to be possible.
        self.made_for = None;
        self.plan.begin(n, |_| true);
        for (i, &(code, row)) in rows.iter().enumerate() {
            let terms = self.maker.terms(code, n, row)?;
            let start = i * symbol_len;
            self.plan.push(self.engine, n, start, terms, |_| true);
        }
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.made_for = Some((n, symbol_len));
        Ok(())
    }
}
