//! Decoding: the missing source symbols of a block from its repairs.

use crate::bits;
use crate::code::{CodeId, Decoding, Error, Row, check_block_size, check_length};
use crate::echelon::Echelon;
use crate::encode::{tile_columns, tile_end};
use crate::engine::{Columns, Engine, Start, Term};
use crate::peeler::Peeler;
use crate::rows::RowMaker;

/// A received repair symbol.
#[derive(Clone, Copy, Debug)]
pub struct Repair<'a> {
    /// The code that made it.
    pub code: CodeId,
    /// Its row.
    pub row: Row,
    /// Its bytes, as many as a source symbol of the block has.
    pub symbol: &'a [u8],
}

/// Restores the missing symbols of blocks. Its memory grows to what the
/// largest block needed and is kept from block to block.
///
/// Elimination runs over the missing symbols only: first on coefficients,
/// which yields the inverse of a matrix with a row and a column per missing
/// symbol, then once over the payload.
#[derive(Debug)]
pub struct BlockDecoder {
    engine: Engine,
    rows: RowMaker,
    known: Vec<u64>,
    peeler: Peeler,
    /// Repairs to peel, in order, each with the symbol it restores.
    peeled: Vec<(u32, u16)>,
    /// The symbols left to elimination.
    columns: Vec<u16>,
    echelon: Echelon,
    /// The repairs that elimination uses.
    used: Vec<usize>,
    /// Their known terms, one repair after another, and where each ends.
    terms: Vec<Term>,
    ends: Vec<usize>,
    /// The rows of the inverse.
    inverse: Vec<Term>,
    /// One tile of the repairs less their known terms.
    residues: Vec<u8>,
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
            rows: RowMaker::new(),
            known: Vec::new(),
            peeler: Peeler::default(),
            peeled: Vec::new(),
            columns: Vec::new(),
            echelon: Echelon::default(),
            used: Vec::new(),
            terms: Vec::new(),
            ends: Vec::new(),
            inverse: Vec::new(),
            residues: Vec::new(),
            others: Vec::new(),
            restored: Vec::new(),
        }
    }

    /// Restores the missing symbols of a block in place and returns how many
    /// there were.
    ///
    /// `source` holds the `n` symbols of `symbol_len` bytes each, one after
    /// another; `have` is the bit map (see [`bits`]) of those that arrived.
    /// What lies in the places of the others does not matter. More repairs
    /// than needed do no harm, and rows that do not exist are passed over.
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
        check_block_size(n)?;
        check_length(n * symbol_len, source.len())?;
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
        self.plan_peeling(n, repairs);
        self.plan_elimination(n, repairs)?;
        self.peel(n, symbol_len, source, repairs);
        self.eliminate(symbol_len, n, source, repairs);
        Ok(missing)
    }

    fn plan_peeling(&mut self, n: usize, repairs: &[Repair<'_>]) {
        let Self {
            rows,
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
            let Ok(terms) = rows.terms(repair.code, n, repair.row) else {
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

    fn plan_elimination(&mut self, n: usize, repairs: &[Repair<'_>]) -> Result<(), Error> {
        self.columns.clear();
        let unknown = bits::absent(&self.known, n).map(|i| i as u16);
        self.columns.extend(unknown);
        self.used.clear();
        self.terms.clear();
        self.ends.clear();
        let width = self.columns.len();
        self.echelon.reset(width, width);
        for (id, repair) in repairs.iter().enumerate() {
            if self.used.len() == width {
                break;
            }
            if repair.code.decoding() != Decoding::Elimination {
                continue;
            }
            let Ok(terms) = self.rows.terms(repair.code, n, repair.row) else {
                continue;
            };
            let begin = self.terms.len();
            let is_independent = self.echelon.insert(self.engine, |row| {
                for term in terms {
                    match self.columns.binary_search(&term.index) {
                        Ok(column) => row[column] = term.coefficient,
                        Err(_) => self.terms.push(*term),
                    }
                }
                row[width + self.used.len()] = 1;
            });
            if is_independent {
                self.used.push(id);
                self.ends.push(self.terms.len());
            } else {
                self.terms.truncate(begin);
            }
        }
        let deficit = width - self.echelon.rank();
        if deficit > 0 {
            return Err(Error::NotDecodable { deficit });
        }
        Ok(())
    }

    fn peel(&mut self, n: usize, symbol_len: usize, source: &mut [u8], repairs: &[Repair<'_>]) {
        self.restored.resize(symbol_len, 0);
        for &(id, symbol) in &self.peeled {
            let repair = &repairs[id as usize];
            let Ok(terms) = self.rows.terms(repair.code, n, repair.row) else {
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

    fn eliminate(
        &mut self,
        symbol_len: usize,
        n: usize,
        source: &mut [u8],
        repairs: &[Repair<'_>],
    ) {
        let width = self.columns.len();
        self.inverse.clear();
        for (_, row) in self.echelon.solution() {
            let row = row.iter().enumerate();
            self.inverse.extend(row.map(|(index, &coefficient)| Term {
                index: index as u16,
                coefficient,
            }));
        }
        let tile = tile_columns(n);
        let mut first = 0;
        while width > 0 && first < symbol_len {
            let end = tile_end(first, tile, symbol_len);
            let len = end - first;
            self.residues.resize(width * len, 0);
            let columns = Columns {
                symbols: source,
                symbol_len,
                first,
            };
            let mut begin = 0;
            let residues = self.residues.chunks_exact_mut(len);
            for ((residue, &id), &row_end) in residues.zip(&self.used).zip(&self.ends) {
                residue.copy_from_slice(&repairs[id].symbol[first..end]);
                let terms = &self.terms[begin..row_end];
                self.engine
                    .combine(residue, Start::Accumulate, columns, terms);
                begin = row_end;
            }
            let columns = Columns {
                symbols: &self.residues,
                symbol_len: len,
                first: 0,
            };
            let inverse = self.inverse.chunks_exact(width);
            for ((column, _), terms) in self.echelon.solution().zip(inverse) {
                let at = usize::from(self.columns[column]) * symbol_len;
                let target = &mut source[at + first..at + end];
                self.engine.combine(target, Start::Zero, columns, terms);
            }
            first = end;
        }
    }
}
