//! Elimination over the missing symbols of a block: first on coefficients,
//! which yields the inverse of a matrix with a row and a column per missing
//! symbol, then once over the payload.

use alloc::vec::Vec;

use crate::bits;
use crate::code::Decoding;
use crate::decode::Repair;
use crate::echelon::Echelon;
use crate::encode::tile_columns;
use crate::engine::{Columns, Engine, RowSet, Start, Targets, Term};
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
    /// The repairs that are used, with what they are computed less: known
    /// terms, a row of `sparse`, or of `matrix` if they hold all known symbols.
    used: Vec<Used>,
    sparse: RowSet,
    sparse_count: usize,
    /// Known terms of one repair.
    terms: Vec<Term>,
    /// Coefficients of known symbols in dense repairs.
    matrix: Vec<u8>,
    /// The known symbols.
    known: Vec<u16>,
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

#[derive(Clone, Copy, Debug)]
struct Used {
    id: usize,
    known: Known,
}

/// Where the known part of a repair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Sparse { number: usize },
    Matrix { begin: usize },
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
        self.sparse.clear();
        self.sparse_count = 0;
        self.matrix.clear();
        self.known.clear();
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
            self.terms.clear();
            let position = self.used.len();
            let is_independent = self.echelon.insert(engine, |row| {
                for term in terms {
                    match self.missing.column(term.index) {
                        Some(column) => row[column] = term.coefficient,
                        None => self.terms.push(*term),
                    }
                }
                row[width + position] = 1;
            });
            if is_independent {
                let known = self.note_known(n);
                self.used.push(Used { id, known });
            }
        }
        let deficit = width - self.echelon.rank();
        if deficit == 0 {
            self.note_inverse(width);
        }
        deficit
    }

    /// Moves the known terms of a repair to the matrix, if they are all known
    /// symbols in order, else to the sparse rows.
    fn note_known(&mut self, n: usize) -> Known {
        let all = n - self.missing.symbols.len();
        let terms = self.terms.iter();
        if terms.len() < all || all == 0 || !terms.is_sorted_by_key(|term| term.index) {
            let number = self.sparse_count;
            self.sparse.push(self.terms.iter().copied());
            self.sparse_count += 1;
            return Known::Sparse { number };
        }
        if self.known.is_empty() {
            self.known.extend(self.terms.iter().map(|t| t.index));
        }
        let begin = self.matrix.len();
        let row = self.terms.iter().map(|term| term.coefficient);
        self.matrix.extend(row);
        Known::Matrix { begin }
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

    /// Restores what was planned.
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
        let tile = tile_columns(n, symbol_len);
        for first in (0..symbol_len).step_by(tile.max(1)) {
            let len = tile.min(symbol_len - first);
            self.residues.resize(width * len, 0);
            self.restored.resize(width * len, 0);
            let columns = Columns {
                symbols: source,
                symbol_len,
                first,
            };
            self.subtract_known(engine, columns, len, repairs);
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

    /// Computes `len` columns of the repairs less their known terms.
    fn subtract_known(
        &mut self,
        engine: Engine,
        columns: Columns<'_>,
        len: usize,
        repairs: &[Repair<'_>],
    ) {
        let all = self.known.len();
        let mut i = 0;
        while i < self.used.len() {
            let Used { id, known } = self.used[i];
            let residue = &mut self.residues[i * len..];
            let bytes = &repairs[id].symbol[columns.first..columns.first + len];
            residue[..len].copy_from_slice(bytes);
            match known {
                Known::Sparse { number } => {
                    let residue = &mut residue[..len];
                    self.sparse
                        .combine(engine, number, residue, Start::Accumulate, columns);
                    i += 1;
                }
                Known::Matrix { begin } => {
                    let dense = self.used[i..]
                        .iter()
                        .take_while(|used| matches!(used.known, Known::Matrix { .. }));
                    let mut count = 0;
                    for (used, residue) in dense.zip(residue.chunks_exact_mut(len)) {
                        let symbol = repairs[used.id].symbol;
                        residue.copy_from_slice(&symbol[columns.first..columns.first + len]);
                        count += 1;
                    }
                    let targets = Targets {
                        bytes: residue,
                        stride: len,
                        first: 0,
                        len,
                    };
                    let matrix = &self.matrix[begin..begin + count * all];
                    engine.combine_rows(targets, Start::Accumulate, columns, &self.known, matrix);
                    i += count;
                }
            }
        }
    }
}
