//! Decoding: the missing source symbols of a block from its repairs.

use alloc::vec::Vec;

use crate::bits;
use crate::code::{CodeId, Decoding, Error, Row, check_block, check_length};
use crate::eliminate::Elimination;
use crate::engine::{Columns, Engine, Start, Term};
use crate::fft_rs;
use crate::ml::Solver;
use crate::peeler::Peeler;
use crate::rows::RowMaker;

/// A received repair symbol.
#[derive(Clone, Copy, Debug)]
pub struct Repair<'a> {
    /// The code that made it.
    pub code: CodeId,
    /// Row of the repair.
    pub row: Row,
    /// Its bytes, as many as a source symbol of the block has.
    pub symbol: &'a [u8],
}

/// Restores the missing symbols of blocks. Its memory grows to what the
/// largest block needed and is kept from block to block.
///
/// Repairs of peeling codes are peeled, then elimination restores the rest
/// from the others; with [`Self::maximum_likelihood`] all repairs together
/// restore whatever they determine.
#[derive(Debug)]
pub struct BlockDecoder {
    engine: Engine,
    is_maximum_likelihood: bool,
    maker: RowMaker,
    known: Vec<u64>,
    peeler: Peeler,
    /// Repairs to peel, in order, each with the symbol it restores.
    peeled: Vec<(u32, u16)>,
    elimination: Elimination,
    solver: Solver,
    fft: fft_rs::Coder,
    missing: Vec<u16>,
    /// The terms of a peeled repair but the one it restores.
    others: Vec<Term>,
    /// A symbol being peeled.
    restored: Vec<u8>,
}

impl Default for BlockDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockDecoder {
    /// A decoder on the engine of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::with_engine(Engine::detect())
    }

    /// A decoder on a certain engine.
    #[must_use]
    pub fn with_engine(engine: Engine) -> Self {
        Self {
            engine,
            is_maximum_likelihood: false,
            maker: RowMaker::new(),
            known: Vec::new(),
            peeler: Peeler::default(),
            peeled: Vec::new(),
            elimination: Elimination::default(),
            solver: Solver::default(),
            fft: fft_rs::Coder::default(),
            missing: Vec::new(),
            others: Vec::new(),
            restored: Vec::new(),
        }
    }

    /// Makes the decoder restore what all repairs together determine, those of
    /// peeling codes too: fewer of them are needed, for more work.
    #[must_use]
    pub fn maximum_likelihood(mut self) -> Self {
        self.is_maximum_likelihood = true;
        self
    }

    /// Restores the missing symbols of a block in place and returns how many
    /// there were.
    ///
    /// `source` holds the `n` symbols of `symbol_len` bytes each, one after
    /// another; `have` is the bit map (see [`bits`]) of those that arrived.
    /// What lies in the places of the others does not matter. More repairs
    /// than needed do no harm, and rows that do not exist are passed over.
    /// If there are repairs of [`fft_rs`], only those are used.
    ///
    /// # Errors
    /// For impossible sizes, and if the repairs do not determine all missing
    /// symbols; `source` is then unchanged.
    pub fn decode(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &mut [u8],
        have: &[u64],
        repairs: &[Repair<'_>],
    ) -> Result<usize, Error> {
        let is_fft = repairs.iter().any(|repair| repair.code == CodeId::FftRs);
        check_block(if is_fft { CodeId::FftRs } else { CodeId::Rlc }, n)?;
        check_length(n.saturating_mul(symbol_len), source.len())?;
        for repair in repairs {
            check_length(symbol_len, repair.symbol.len())?;
        }
        let missing = bits::absent(have, n).count();
        if missing == 0 {
            return Ok(0);
        }
        self.known.clear();
        self.known
            .extend_from_slice(&have[..have.len().min(bits::words(n))]);
        self.known.resize(bits::words(n), 0);
        let Self { engine, maker, .. } = self;
        if is_fft {
            self.missing.clear();
            self.missing.extend(bits::absent(have, n).map(|i| i as u16));
            self.fft
                .decode(n, symbol_len, source, &self.missing, repairs)?;
        } else if self.is_maximum_likelihood {
            let deficit = self.solver.plan(*engine, maker, n, &self.known, repairs);
            check_deficit(deficit)?;
            self.solver
                .run(*engine, maker, n, symbol_len, source, repairs);
        } else {
            self.plan_peeling(n, repairs);
            let Self { engine, maker, .. } = self;
            let elimination = &mut self.elimination;
            let deficit = elimination.plan(*engine, maker, n, symbol_len, &self.known, repairs);
            check_deficit(deficit)?;
            self.peel(n, symbol_len, source, repairs);
            self.elimination
                .run(self.engine, symbol_len, source, repairs);
        }
        Ok(missing)
    }

    fn plan_peeling(&mut self, n: usize, repairs: &[Repair<'_>]) {
        let Self {
            maker,
            known,
            peeler,
            peeled,
            ..
        } = self;
        peeler.clear();
        peeled.clear();
        for (id, repair) in repairs.iter().enumerate() {
            if repair.code.decoding() != Decoding::Peeling {
                continue;
            }
            let Ok(terms) = maker.terms(repair.code, n, repair.row) else {
                continue;
            };
            let mut unknown = terms
                .iter()
                .map(|term| term.index)
                .filter(|i| !bits::contains(known, usize::from(*i)));
            let Some(first) = unknown.next() else {
                continue;
            };
            if let Some(second) = unknown.next() {
                let members = [first, second].into_iter().chain(unknown);
                peeler.add(id as u32, members);
                continue;
            }
            let mut note = |id, symbol: u16| {
                let is_new = !bits::contains(known, usize::from(symbol));
                if is_new {
                    bits::insert(known, usize::from(symbol));
                    peeled.push((id, symbol));
                }
                is_new
            };
            note(id as u32, first);
            peeler.learn(first, note);
        }
    }

    fn peel(&mut self, n: usize, symbol_len: usize, source: &mut [u8], repairs: &[Repair<'_>]) {
        self.restored.resize(symbol_len, 0);
        for &(id, symbol) in &self.peeled {
            let repair = &repairs[id as usize];
            let Ok(terms) = self.maker.terms(repair.code, n, repair.row) else {
                continue;
            };
            self.others.clear();
            let others = terms.iter().filter(|term| term.index != symbol);
            self.others.extend(others);
            self.restored.copy_from_slice(repair.symbol);
            let columns = Columns {
                symbols: source,
                symbol_len,
                first: 0,
            };
            let restored = &mut self.restored;
            self.engine
                .combine(restored, Start::Accumulate, columns, &self.others);
            let at = usize::from(symbol) * symbol_len;
            source[at..at + symbol_len].copy_from_slice(restored);
        }
    }
}

fn check_deficit(deficit: usize) -> Result<(), Error> {
    if deficit == 0 {
        Ok(())
    } else {
        Err(Error::NotDecodable { deficit })
    }
}
