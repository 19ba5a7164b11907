//! How to compute certain rows of blocks of a certain size.
//!
//! Rows that hold all symbols are computed several at a time, and so are sparse
//! ones where they can be: the rows of one round have no symbol in common, so
//! with two rounds every symbol belongs to one row of each, and the symbols
//! with the same two rows are added to both at once. A source byte is then
//! loaded, and for some engines prepared, half as often.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row};
use crate::engine::{Columns, Engine, RowSet, Start, Targets, Term};
use crate::rows::RowMaker;

/// Stands for "no row".
const NONE: u16 = u16::MAX;

/// Bytes of source symbols that should stay in the first-level cache while
/// several repairs are computed from them.
const CACHE_BYTES: usize = 44 << 10;

/// Columns in a tile of a block: so few that the tile of the whole block stays
/// in cache, about equally many in each tile, and whole registers of any
/// engine.
pub(crate) fn tile_columns(n: usize, symbol_len: usize) -> usize {
    let most = (CACHE_BYTES / n.max(1)).clamp(256, 2048);
    let tiles = symbol_len.div_ceil(most).max(1);
    symbol_len.div_ceil(tiles).next_multiple_of(64).max(64)
}

/// A plan, valid for any source symbols.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    n: usize,
    rows: Vec<(CodeId, Row)>,
    steps: Vec<Step>,
    sparse: RowSet,
    sparse_count: usize,
    /// The coefficients of the dense rows, one after another.
    matrix: Vec<u8>,
    /// 0, 1 … n−1: the symbols of a dense row.
    symbols: Vec<u16>,
    /// Symbols of all cells, and for each cell the coefficients in one row and
    /// then in the other.
    cell_symbols: Vec<u16>,
    cell_matrix: Vec<u8>,
    layers: [Layer; 2],
    /// Symbols with the two rows of the layers they are in, to be sorted.
    cells: Vec<(u32, u16)>,
}

/// Rows without common symbols.
#[derive(Debug, Default)]
struct Layer {
    /// The rows and their terms.
    rows: Vec<u16>,
    terms: Vec<Term>,
    ends: Vec<usize>,
    /// For each symbol the row that holds it, and with which coefficient.
    owners: Vec<(u16, u8)>,
}

impl Layer {
    fn reset(&mut self, n: usize) {
        self.rows.clear();
        self.terms.clear();
        self.ends.clear();
        self.owners.clear();
        self.owners.resize(n, (NONE, 0));
    }

    fn can_take(&self, terms: &[Term]) -> bool {
        let mut owners = terms.iter().map(|t| self.owners[usize::from(t.index)]);
        owners.all(|(row, _)| row == NONE)
    }

    fn take(&mut self, row: usize, terms: &[Term]) {
        for term in terms {
            self.owners[usize::from(term.index)] = (row as u16, term.coefficient);
        }
        self.rows.push(row as u16);
        self.terms.extend_from_slice(terms);
        self.ends.push(self.terms.len());
    }
}

/// One or more rows that are computed together.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Row `row`, which is number `sparse` of the sparse ones, from the start.
    Sparse { row: usize, sparse: usize },
    /// `count` rows from `row` on, each with all symbols, from the start.
    Dense {
        row: usize,
        count: usize,
        begin: usize,
    },
    /// Row `row` is begun.
    Begin { row: usize },
    /// Further terms for row `row`.
    More { row: usize, sparse: usize },
    /// Further terms for two rows, from the same symbols.
    Cell {
        rows: [usize; 2],
        begin: usize,
        end: usize,
    },
}

impl Plan {
    /// Plans these rows, unless the plan is for them already.
    pub(crate) fn prepare(
        &mut self,
        maker: &mut RowMaker,
        n: usize,
        rows: impl Iterator<Item = (CodeId, Row)> + Clone,
    ) -> Result<(), Error> {
        if self.n == n && rows.clone().eq(self.rows.iter().copied()) {
            return Ok(());
        }
        // Not for anything until the last row turned out to be possible.
        self.n = 0;
        self.rows.clear();
        self.steps.clear();
        self.sparse.clear();
        self.sparse_count = 0;
        self.matrix.clear();
        self.cell_symbols.clear();
        self.cell_matrix.clear();
        self.symbols.clear();
        self.symbols.extend(0..n as u16);
        for layer in &mut self.layers {
            layer.reset(n);
        }
        let mut filling = 0;
        for (row, (code, number)) in rows.enumerate() {
            self.rows.push((code, number));
            let terms = maker.terms(code, n, number)?;
            if terms.len() == n && terms.is_sorted_by_key(|term| term.index) {
                self.add_dense(row, n, terms.iter().map(|term| term.coefficient));
                continue;
            }
            if !self.layers[filling].can_take(terms) {
                filling += 1;
            }
            if filling == 2 {
                self.add_layers(n);
                filling = 0;
            }
            self.layers[filling].take(row, terms);
        }
        self.add_layers(n);
        self.n = n;
        Ok(())
    }

    fn add_dense(&mut self, row: usize, n: usize, coefficients: impl Iterator<Item = u8>) {
        let begin = self.matrix.len();
        self.matrix.extend(coefficients);
        match self.steps.last_mut() {
            Some(Step::Dense {
                row: first,
                count,
                begin,
            }) if *first + *count == row => {
                debug_assert_eq!(*begin + *count * n + n, self.matrix.len());
                *count += 1;
            }
            _ => self.steps.push(Step::Dense {
                row,
                count: 1,
                begin,
            }),
        }
    }

    fn add_sparse(&mut self, terms: impl Iterator<Item = Term>) -> usize {
        self.sparse.push(terms);
        self.sparse_count += 1;
        self.sparse_count - 1
    }

    /// Plans the rows of both layers and empties them.
    fn add_layers(&mut self, n: usize) {
        let [first, second] = core::mem::take(&mut self.layers);
        let pairs = first.rows.len() * second.rows.len();
        // Cells of a few symbols are not worth beginning their rows again.
        if pairs == 0 || n / pairs < 6 {
            for layer in [&first, &second] {
                let mut begin = 0;
                for (row, end) in layer.rows.iter().zip(&layer.ends) {
                    let sparse = self.add_sparse(layer.terms[begin..*end].iter().copied());
                    let row = usize::from(*row);
                    self.steps.push(Step::Sparse { row, sparse });
                    begin = *end;
                }
            }
        } else {
            self.add_cells(&first, &second);
        }
        self.layers = [first, second];
        for layer in &mut self.layers {
            layer.reset(n);
        }
    }

    fn add_cells(&mut self, first: &Layer, second: &Layer) {
        for row in first.rows.iter().chain(&second.rows) {
            let row = usize::from(*row);
            self.steps.push(Step::Begin { row });
        }
        self.cells.clear();
        let owners = first.owners.iter().zip(&second.owners).enumerate();
        self.cells.extend(
            owners.map(|(symbol, (a, b))| (u32::from(a.0) << 16 | u32::from(b.0), symbol as u16)),
        );
        self.cells.sort_unstable();
        let cells = core::mem::take(&mut self.cells);
        for cell in cells.chunk_by(|a, b| a.0 == b.0) {
            let rows = [cell[0].0 >> 16, cell[0].0 & 0xffff].map(|row| row as usize);
            let symbols = cell.iter().map(|(_, symbol)| *symbol);
            let none = usize::from(NONE);
            let single = match rows {
                [_, b] if b == none => first,
                [a, _] if a == none => second,
                _ => {
                    let begin = self.cell_symbols.len();
                    self.cell_symbols.extend(symbols.clone());
                    for layer in [first, second] {
                        let coefficient = |symbol| layer.owners[usize::from(symbol)].1;
                        self.cell_matrix.extend(symbols.clone().map(coefficient));
                    }
                    let end = self.cell_symbols.len();
                    self.steps.push(Step::Cell { rows, begin, end });
                    continue;
                }
            };
            let row = rows[0].min(rows[1]);
            if row == none {
                continue;
            }
            let sparse = self.add_sparse(symbols.map(|index| Term {
                index,
                coefficient: single.owners[usize::from(index)].1,
            }));
            self.steps.push(Step::More { row, sparse });
        }
        self.cells = cells;
    }

    /// Computes the columns of all rows that `targets` and `columns` name.
    pub(crate) fn run(
        &self,
        engine: Engine,
        targets: &mut Targets<'_>,
        start: Start,
        columns: Columns<'_>,
    ) {
        let Targets {
            stride, first, len, ..
        } = *targets;
        let at = |row: usize| row * stride + first;
        for step in &self.steps {
            match *step {
                Step::Sparse { row, sparse } => {
                    let stretch = &mut targets.bytes[at(row)..][..len];
                    self.sparse.combine(engine, sparse, stretch, start, columns);
                }
                Step::Dense { row, count, begin } => {
                    let targets = Targets {
                        bytes: &mut targets.bytes[row * stride..],
                        stride,
                        first,
                        len,
                    };
                    let matrix = &self.matrix[begin..begin + count * self.n];
                    engine.combine_rows(targets, start, columns, &self.symbols, matrix);
                }
                Step::Begin { row } => {
                    if start == Start::Zero {
                        targets.bytes[at(row)..][..len].fill(0);
                    }
                }
                Step::More { row, sparse } => {
                    let stretch = &mut targets.bytes[at(row)..][..len];
                    let start = Start::Accumulate;
                    self.sparse.combine(engine, sparse, stretch, start, columns);
                }
                Step::Cell { rows, begin, end } => {
                    let symbols = &self.cell_symbols[begin..end];
                    let matrix = &self.cell_matrix[2 * begin..2 * end];
                    let targets = Targets {
                        bytes: targets.bytes,
                        stride,
                        first,
                        len,
                    };
                    engine.add_to_pair(targets, rows, columns, symbols, matrix);
                }
            }
        }
    }
}
