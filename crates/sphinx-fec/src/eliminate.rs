//! Elimination over the missing symbols of a block: first on coefficients,
//! which yields the inverse of a matrix with a row and a column per missing
//! symbol, then once over the payload.

use alloc::vec::Vec;

use crate::bits;
use crate::code::Decoding;
use crate::decode::Repair;
use crate::echelon::Echelon;
use crate::engine::{Engine, Start, Term};
use crate::inverse::Inverse;
use crate::plan::Plan;
use crate::rows::RowMaker;

/// Stands for "not missing".
pub(crate) const NONE: u16 = u16::MAX;

/// Numbers the missing symbols of a block.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// The missing symbols, in order: the columns of the elimination.
    pub(crate) symbols: Vec<u16>,
    /// The column of every symbol of the block, or [`NONE`].
    pub(crate) columns: Vec<u16>,
}

impl Missing {
    /// Numbers those of `n` symbols that are not in `known`.
    pub(crate) fn number(&mut self, known: &[u64], n: usize) {
        self.symbols.clear();
        self.symbols
            .extend(bits::absent(known, n).map(|i| i as u16));
        self.columns.clear();
        self.columns.resize(n, NONE);
        for (column, symbol) in self.symbols.iter().enumerate() {
            self.columns[usize::from(*symbol)] = column as u16;
        }
    }

    /// The column of a symbol if it is missing.
    pub(crate) fn column(&self, symbol: u16) -> Option<usize> {
        let column = self.columns[usize::from(symbol)];
        (column != NONE).then_some(usize::from(column))
    }
}

/// One elimination; its memory is kept for the next.
#[derive(Debug, Default)]
pub(crate) struct Elimination {
    missing: Missing,
    echelon: Echelon,
    inverse: Inverse,
    /// The repairs that are used.
    used: Vec<usize>,
    /// How to subtract the known symbols from them, and how to compute the
    /// missing symbols from what remains.
    residue_plan: Plan,
    inverse_plan: Plan,
    residues: Vec<u8>,
    terms: Vec<Term>,
}

impl Elimination {
    /// Finds out how to restore all symbols that are not in `known`; the
    /// result is how many independent repairs are too few.
    pub(crate) fn plan(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        symbol_len: usize,
        known: &[u64],
        repairs: &[Repair<'_>],
    ) -> usize {
        self.missing.number(known, n);
        let width = self.missing.symbols.len();
        self.used.clear();
        let all = repairs.iter().enumerate();
        let all = all.filter(|(_, repair)| is_row(maker, n, repair));
        self.used.extend(all.map(|(id, _)| id).take(width));
        // The first repairs will mostly be independent.
        if self.used.len() < width || !self.invert(engine, maker, n, repairs) {
            let rank = self.select(engine, maker, n, repairs);
            if rank < width {
                return width - rank;
            }
            let is_inverted = self.invert(engine, maker, n, repairs);
            debug_assert!(is_inverted, "the rows are independent");
        }
        self.plan_payload(engine, maker, n, symbol_len, repairs);
        0
    }

    /// Inverts the matrix that takes missing symbols to the used repairs, if
    /// it has an inverse.
    fn invert(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        repairs: &[Repair<'_>],
    ) -> bool {
        let width = self.missing.symbols.len();
        self.inverse.begin(width);
        for (position, id) in self.used.iter().enumerate() {
            let row = self.inverse.row_mut(position);
            let repair = &repairs[*id];
            for term in maker.terms(repair.code, n, repair.row).unwrap_or_default() {
                // The column behind the last takes what belongs to known
                // symbols: to tell them apart would be branches that go either
                // way.
                let column = self.missing.columns[usize::from(term.index)];
                row[usize::from(column).min(width)] = term.coefficient;
            }
        }
        self.inverse.invert(engine)
    }

    /// Picks repairs that are independent, up to as many as are needed, and
    /// says how many there are.
    fn select(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        repairs: &[Repair<'_>],
    ) -> usize {
        let width = self.missing.symbols.len();
        self.used.clear();
        self.echelon.reset(width, 0);
        for (id, repair) in repairs.iter().enumerate() {
            if self.used.len() == width {
                break;
            }
            if !is_row(maker, n, repair) {
                continue;
            }
            let terms = maker.terms(repair.code, n, repair.row).unwrap_or_default();
            let is_independent = self.echelon.insert(engine, |row| {
                for term in terms {
                    if let Some(column) = self.missing.column(term.index) {
                        row[column] = term.coefficient;
                    }
                }
            });
            if is_independent {
                self.used.push(id);
            }
        }
        self.echelon.rank()
    }

    fn plan_payload(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        symbol_len: usize,
        repairs: &[Repair<'_>],
    ) {
        let columns = &self.missing.columns;
        let is_known = |i| columns[usize::from(i)] == NONE;
        self.residue_plan.begin(n, is_known);
        for (position, id) in self.used.iter().enumerate() {
            let repair = &repairs[*id];
            let terms = maker.terms(repair.code, n, repair.row).unwrap_or_default();
            let start = position * symbol_len;
            self.residue_plan.push(engine, n, start, terms, is_known);
        }
        let width = self.missing.symbols.len();
        self.inverse_plan.begin(width, |_| true);
        for (symbol, row) in self.missing.symbols.iter().zip(self.inverse.rows()) {
            let coefficients = row.iter().zip(0..);
            self.terms.clear();
            self.terms
                .extend(coefficients.map(|(&coefficient, index)| Term { index, coefficient }));
            let start = usize::from(*symbol) * symbol_len;
            self.inverse_plan
                .push(engine, width, start, &self.terms, |_| true);
        }
    }

    /// Restores what was planned.
    pub(crate) fn run(
        &mut self,
        engine: Engine,
        symbol_len: usize,
        source: &mut [u8],
        repairs: &[Repair<'_>],
    ) {
        self.residues.clear();
        for id in &self.used {
            self.residues.extend_from_slice(repairs[*id].symbol);
        }
        let residues = &mut self.residues;
        self.residue_plan
            .run(engine, residues, Start::Accumulate, source, symbol_len);
        self.inverse_plan
            .run(engine, source, Start::Zero, residues, symbol_len);
    }
}

/// Whether a repair is one to eliminate with.
fn is_row(maker: &mut RowMaker, n: usize, repair: &Repair<'_>) -> bool {
    repair.code.decoding() == Decoding::Elimination
        && maker.terms(repair.code, n, repair.row).is_ok()
}
