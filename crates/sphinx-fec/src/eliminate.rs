//! Elimination over the missing symbols of a block: first on coefficients,
//! which yields the inverse of a matrix with a row and a column per missing
//! symbol, then once over the payload.

use alloc::vec::Vec;

use crate::bits;
use crate::code::{CodeId, Decoding, Row};
use crate::decode::Repair;
use crate::echelon::Echelon;
use crate::engine::{Columns, Engine, Start, Targets};
use crate::plan::{Plan, tile_columns};
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
    /// The repairs that are used, and their rows.
    used: Vec<usize>,
    rows: Vec<(CodeId, Row)>,
    /// How to compute these rows from source symbols.
    plan: Plan,
    /// The inverse, one row after another, and the columns they restore.
    inverse: Vec<u8>,
    order: Vec<u16>,
    /// 0, 1, 2 …
    numbers: Vec<u16>,
    /// One tile of the repairs less their known terms, and of what they
    /// restore.
    residues: Vec<u8>,
    restored: Vec<u8>,
}

impl Elimination {
    /// Finds out how to restore all symbols that are not in `known`; the
    /// result is how many independent repairs are too few.
    pub(crate) fn plan(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        known: &[u64],
        repairs: &[Repair<'_>],
    ) -> usize {
        self.missing.number(known, n);
        self.used.clear();
        self.rows.clear();
        let width = self.missing.symbols.len();
        self.echelon.reset(width, width);
        for (id, repair) in repairs.iter().enumerate() {
            if self.used.len() == width {
                break;
            }
            if repair.code.decoding() != Decoding::Elimination {
                continue;
            }
            let Ok(terms) = maker.terms(repair.code, n, repair.row) else {
                continue;
            };
            let position = self.used.len();
            let is_independent = self.echelon.insert(engine, |row| {
                for term in terms {
                    if let Some(column) = self.missing.column(term.index) {
                        row[column] = term.coefficient;
                    }
                }
                row[width + position] = 1;
            });
            if is_independent {
                self.used.push(id);
                self.rows.push((repair.code, repair.row));
            }
        }
        let deficit = width - self.echelon.rank();
        if deficit == 0 {
            self.note_inverse(width);
            let rows = self.rows.iter().copied();
            let planned = self.plan.prepare(maker, n, rows);
            debug_assert!(planned.is_ok(), "these rows were made just now");
        }
        deficit
    }

    fn note_inverse(&mut self, width: usize) {
        self.inverse.clear();
        self.order.clear();
        for (column, row) in self.echelon.solution() {
            self.inverse.extend_from_slice(row);
            self.order.push(column as u16);
        }
        self.numbers.clear();
        self.numbers.extend(0..width as u16);
    }

    /// Restores what was planned. The places of missing symbols are made zero
    /// first, so that whole rows can be subtracted from the repairs: which
    /// symbols are missing differs from block to block, but the rows do not.
    pub(crate) fn run(
        &mut self,
        engine: Engine,
        n: usize,
        symbol_len: usize,
        source: &mut [u8],
        repairs: &[Repair<'_>],
    ) {
        let width = self.order.len();
        if self.missing.symbols.is_empty() {
            return;
        }
        for symbol in &self.missing.symbols {
            source[usize::from(*symbol) * symbol_len..][..symbol_len].fill(0);
        }
        let tile = tile_columns(n, symbol_len);
        for first in (0..symbol_len).step_by(tile) {
            let len = tile.min(symbol_len - first);
            self.residues.resize(width * len, 0);
            self.restored.resize(width * len, 0);
            let residues = self.residues.chunks_exact_mut(len);
            for (residue, id) in residues.zip(&self.used) {
                residue.copy_from_slice(&repairs[*id].symbol[first..first + len]);
            }
            let columns = Columns {
                symbols: source,
                symbol_len,
                first,
            };
            let mut targets = Targets {
                bytes: &mut self.residues,
                stride: len,
                first: 0,
                len,
            };
            self.plan
                .run(engine, &mut targets, Start::Accumulate, columns);
            let columns = Columns {
                symbols: &self.residues,
                symbol_len: len,
                first: 0,
            };
            let targets = Targets {
                bytes: &mut self.restored,
                stride: len,
                first: 0,
                len,
            };
            engine.combine_rows(targets, Start::Zero, columns, &self.numbers, &self.inverse);
            let restored = self.restored.chunks_exact(len);
            for (column, restored) in self.order.iter().zip(restored) {
                let symbol = self.missing.symbols[usize::from(*column)];
                let at = usize::from(symbol) * symbol_len + first;
                source[at..at + len].copy_from_slice(restored);
            }
        }
    }
}
