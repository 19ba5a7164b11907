//! Maximum-likelihood decoding of sparse codes by inactivation.
//!
//! Peeling goes on when no repair with a single unknown is left: one symbol is
//! declared *inactive*, that is known under a name, and peeled symbols become
//! sums of known bytes and inactive symbols. Repairs that peeling did not need
//! then determine the few inactive symbols by elimination. The result is as
//! good as elimination over everything and costs little more than peeling.

use alloc::vec::Vec;

use crate::decode::Repair;
use crate::echelon::Echelon;
use crate::eliminate::Missing;
use crate::engine::{Columns, Engine, Start, Targets, Term};
use crate::gf256;
use crate::rows::RowMaker;

#[derive(Clone, Copy, Debug)]
struct RowState {
    /// Number of the repair among those received.
    id: u32,
    /// End of its entries; they start where those of the row before end.
    end: u32,
    /// Entries whose symbol is neither peeled nor inactive.
    active: u32,
    is_used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Active,
    /// Peeled, as number so and so in the order of peeling.
    Peeled(u32),
    /// Inactive, as number so and so among those.
    Inactive(u32),
}

/// One decoding; its memory is kept for the next.
#[derive(Debug, Default)]
pub(crate) struct Solver {
    missing: Missing,
    rows: Vec<RowState>,
    /// Unknown terms of all rows; the index is a column.
    entries: Vec<Term>,
    /// For each column its rows: `members[starts[c]..starts[c + 1]]`.
    starts: Vec<u32>,
    members: Vec<u32>,
    columns: Vec<Column>,
    /// Rows with one active entry.
    ready: Vec<u32>,
    /// Rows and the columns peeled by them.
    peeled: Vec<(u32, u16)>,
    inactive: Vec<u16>,
    /// Peeled columns as sums of inactive ones, `stride` bytes each.
    sums: Vec<u8>,
    echelon: Echelon,
    /// Rows that elimination uses.
    used: Vec<u32>,
    terms: Vec<Term>,
    residues: Vec<u8>,
    symbol: Vec<u8>,
    numbers: Vec<u16>,
    inverse: Vec<u8>,
}

impl Solver {
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
        self.collect(maker, n, repairs);
        self.peel();
        self.express(engine);
        self.determine(engine)
    }

    fn row(&self, row: u32) -> core::ops::Range<usize> {
        let row = row as usize;
        let start = if row == 0 { 0 } else { self.rows[row - 1].end };
        start as usize..self.rows[row].end as usize
    }

    fn members(&self, column: u16) -> core::ops::Range<usize> {
        let column = usize::from(column);
        self.starts[column] as usize..self.starts[column + 1] as usize
    }

    /// Lists the unknown terms of all repairs, and the rows of all columns.
    fn collect(&mut self, maker: &mut RowMaker, n: usize, repairs: &[Repair<'_>]) {
        let width = self.missing.symbols.len();
        self.rows.clear();
        self.entries.clear();
        self.starts.clear();
        self.starts.resize(width + 1, 0);
        for (id, repair) in repairs.iter().enumerate() {
            let Ok(terms) = maker.terms(repair.code, n, repair.row) else {
                continue;
            };
            let begin = self.entries.len();
            for term in terms {
                if let Some(column) = self.missing.column(term.index) {
                    self.starts[column + 1] += 1;
                    self.entries.push(Term {
                        index: column as u16,
                        coefficient: term.coefficient,
                    });
                }
            }
            self.rows.push(RowState {
                id: id as u32,
                end: self.entries.len() as u32,
                active: (self.entries.len() - begin) as u32,
                is_used: false,
            });
        }
        for column in 0..width {
            self.starts[column + 1] += self.starts[column];
        }
        self.members.clear();
        self.members.resize(self.entries.len(), 0);
        // Filling moves each start to the end of its range ...
        for row in 0..self.rows.len() as u32 {
            for at in self.row(row) {
                let start = &mut self.starts[usize::from(self.entries[at].index)];
                self.members[*start as usize] = row;
                *start += 1;
            }
        }
        // ... which is the start of the next.
        self.starts.copy_within(0..width, 1);
        self.starts[0] = 0;
    }

    /// Peels all columns, making some inactive.
    fn peel(&mut self) {
        let width = self.missing.symbols.len();
        self.columns.clear();
        self.columns.resize(width, Column::Active);
        self.peeled.clear();
        self.inactive.clear();
        self.ready.clear();
        let ready = self.rows.iter().enumerate().filter(|(_, r)| r.active == 1);
        self.ready.extend(ready.map(|(row, _)| row as u32));
        let mut next = 0;
        loop {
            while let Some(row) = self.ready.pop() {
                if self.rows[row as usize].active != 1 {
                    continue;
                }
                let mut columns = self.entries[self.row(row)].iter().map(|term| term.index);
                let is_active = |c: &u16| self.columns[usize::from(*c)] == Column::Active;
                let Some(column) = columns.find(is_active) else {
                    continue;
                };
                self.rows[row as usize].is_used = true;
                let number = self.peeled.len() as u32;
                self.peeled.push((row, column));
                self.retire(column, Column::Peeled(number));
            }
            while next < width && self.columns[next] != Column::Active {
                next += 1;
            }
            if next == width {
                return;
            }
            let column = self.choose().unwrap_or(next as u16);
            let number = self.inactive.len() as u32;
            self.inactive.push(column);
            self.retire(column, Column::Inactive(number));
        }
    }

    /// The column to make inactive: of those in a row with the fewest active
    /// entries, the one in the most rows. None if no row has any.
    fn choose(&self) -> Option<u16> {
        let rows = self.rows.iter().enumerate().filter(|(_, r)| r.active > 1);
        let (row, _) = rows.min_by_key(|(_, row)| row.active)?;
        self.entries[self.row(row as u32)]
            .iter()
            .map(|term| term.index)
            .filter(|column| self.columns[usize::from(*column)] == Column::Active)
            .max_by_key(|column| self.members(*column).len())
    }

    fn retire(&mut self, column: u16, state: Column) {
        self.columns[usize::from(column)] = state;
        for at in self.members(column) {
            let row = self.members[at];
            let active = &mut self.rows[row as usize].active;
            *active -= 1;
            if *active == 1 {
                self.ready.push(row);
            }
        }
    }

    fn stride(&self) -> usize {
        self.inactive.len().next_multiple_of(64)
    }

    /// Writes all peeled columns as sums of inactive ones.
    fn express(&mut self, engine: Engine) {
        let stride = self.stride();
        let mut sums = core::mem::take(&mut self.sums);
        sums.clear();
        sums.resize(self.peeled.len() * stride, 0);
        for (number, &(row, column)) in self.peeled.iter().enumerate() {
            let (before, sum) = sums.split_at_mut(number * stride);
            let sum = &mut sum[..stride];
            let own = self.entries[self.row(row)].iter();
            let own = own.filter(|term| term.index == column);
            let scale = own.map(|term| gf256::inv(term.coefficient)).next();
            let mut terms = core::mem::take(&mut self.terms);
            self.reduce(row, Some(column), scale.unwrap_or(1), sum, &mut terms);
            let columns = Columns {
                symbols: before,
                symbol_len: stride,
                first: 0,
            };
            engine.combine(sum, Start::Accumulate, columns, &terms);
            self.terms = terms;
        }
        self.sums = sums;
    }

    /// Writes the inactive entries of a row, times `scale`, into `out`, and
    /// lists its peeled ones but column `except` as terms over `sums`.
    fn reduce(
        &self,
        row: u32,
        except: Option<u16>,
        scale: u8,
        out: &mut [u8],
        terms: &mut Vec<Term>,
    ) {
        terms.clear();
        for entry in &self.entries[self.row(row)] {
            if Some(entry.index) == except {
                continue;
            }
            let coefficient = gf256::mul(scale, entry.coefficient);
            match self.columns[usize::from(entry.index)] {
                Column::Inactive(number) => out[number as usize] = coefficient,
                // Peeled symbols may be more than a term can name in a block
                // of any size, but blocks have at most 4096 symbols.
                Column::Peeled(number) => terms.push(Term {
                    index: number as u16,
                    coefficient,
                }),
                Column::Active => {}
            }
        }
    }

    /// Determines the inactive columns from the rows that peeling left over.
    fn determine(&mut self, engine: Engine) -> usize {
        let width = self.inactive.len();
        let stride = self.stride();
        self.used.clear();
        self.echelon.reset(width, width);
        let mut terms = core::mem::take(&mut self.terms);
        let mut echelon = core::mem::take(&mut self.echelon);
        for row in 0..self.rows.len() as u32 {
            if self.used.len() == width {
                break;
            }
            if self.rows[row as usize].is_used {
                continue;
            }
            let position = self.used.len();
            let is_independent = echelon.insert(engine, |out| {
                self.reduce(row, None, 1, out, &mut terms);
                let columns = Columns {
                    symbols: &self.sums,
                    symbol_len: stride,
                    first: 0,
                };
                engine.combine(&mut out[..width], Start::Accumulate, columns, &terms);
                out[width + position] = 1;
            });
            if is_independent {
                self.used.push(row);
            }
        }
        self.terms = terms;
        self.echelon = echelon;
        width - self.echelon.rank()
    }

    /// Restores what was planned.
    pub(crate) fn run(
        &mut self,
        engine: Engine,
        maker: &mut RowMaker,
        n: usize,
        symbol_len: usize,
        source: &mut [u8],
        repairs: &[Repair<'_>],
    ) {
        if symbol_len == 0 {
            return;
        }
        self.symbol.resize(symbol_len, 0);
        let payload = &mut Payload {
            engine,
            maker,
            n,
            symbol_len,
            source,
            repairs,
        };
        // With zeros for the inactive symbols first.
        for number in 0..self.peeled.len() {
            self.restore(payload, number, false);
        }
        let width = self.inactive.len();
        if width == 0 {
            return;
        }
        self.residues.resize(width * symbol_len, 0);
        let mut residues = core::mem::take(&mut self.residues);
        let mut terms = core::mem::take(&mut self.terms);
        for (row, residue) in self.used.iter().zip(residues.chunks_exact_mut(symbol_len)) {
            let id = self.rows[*row as usize].id as usize;
            residue.copy_from_slice(&repairs[id].symbol[..symbol_len]);
            payload.list_terms(id, 1, |symbol| self.is_inactive(symbol), &mut terms);
            payload.add(residue, &terms);
        }
        self.terms = terms;
        self.residues = residues;
        self.numbers.clear();
        self.numbers.extend(0..width as u16);
        for (column, row) in self.echelon.solution() {
            self.inverse.clear();
            self.inverse.extend_from_slice(row);
            let columns = Columns {
                symbols: &self.residues,
                symbol_len,
                first: 0,
            };
            let targets = Targets {
                bytes: &mut self.symbol,
                starts: &[0],
                len: symbol_len,
            };
            engine.combine_rows(targets, Start::Zero, columns, &self.numbers, &self.inverse);
            let column = usize::from(self.inactive[column]);
            payload.write(self.missing.symbols[column], &self.symbol);
        }
        // Then, where there is one, with their values.
        let stride = self.stride();
        for number in 0..self.peeled.len() {
            let sum = &self.sums[number * stride..][..stride];
            if sum.iter().any(|c| *c != 0) {
                self.restore(payload, number, true);
            }
        }
    }

    fn is_inactive(&self, symbol: u16) -> bool {
        let column = self.missing.column(symbol);
        column.is_some_and(|c| matches!(self.columns[c], Column::Inactive(_)))
    }

    /// Computes a peeled symbol from its row.
    fn restore(&mut self, payload: &mut Payload<'_>, number: usize, with_inactive: bool) {
        let (row, column) = self.peeled[number];
        let symbol = self.missing.symbols[usize::from(column)];
        let own = self.entries[self.row(row)].iter();
        let own = own.filter(|term| term.index == column);
        let scale = own.map(|term| gf256::inv(term.coefficient)).next();
        let scale = scale.unwrap_or(1);
        let id = self.rows[row as usize].id as usize;
        let mut terms = core::mem::take(&mut self.terms);
        let skip = |s: u16| s == symbol || (!with_inactive && self.is_inactive(s));
        payload.list_terms(id, scale, skip, &mut terms);
        self.terms = terms;
        self.symbol.fill(0);
        let repair = payload.repairs[id].symbol;
        payload.engine.mul_add(&mut self.symbol, repair, scale);
        payload.add(&mut self.symbol, &self.terms);
        payload.write(symbol, &self.symbol);
    }
}

/// The bytes of a block being decoded.
struct Payload<'a> {
    engine: Engine,
    maker: &'a mut RowMaker,
    n: usize,
    symbol_len: usize,
    source: &'a mut [u8],
    repairs: &'a [Repair<'a>],
}

impl Payload<'_> {
    /// Lists the terms of a repair times `scale`, without those to `skip`.
    fn list_terms(
        &mut self,
        id: usize,
        scale: u8,
        skip: impl Fn(u16) -> bool,
        terms: &mut Vec<Term>,
    ) {
        terms.clear();
        let repair = &self.repairs[id];
        // The plan left out rows that do not exist.
        if let Ok(all) = self.maker.terms(repair.code, self.n, repair.row) {
            let kept = all.iter().filter(|term| !skip(term.index));
            terms.extend(kept.map(|term| Term {
                index: term.index,
                coefficient: gf256::mul(scale, term.coefficient),
            }));
        }
    }

    /// Adds terms over the source symbols.
    fn add(&self, out: &mut [u8], terms: &[Term]) {
        let columns = Columns {
            symbols: self.source,
            symbol_len: self.symbol_len,
            first: 0,
        };
        self.engine.combine(out, Start::Accumulate, columns, terms);
    }

    fn write(&mut self, symbol: u16, bytes: &[u8]) {
        let at = usize::from(symbol) * self.symbol_len;
        self.source[at..at + self.symbol_len].copy_from_slice(bytes);
    }
}
