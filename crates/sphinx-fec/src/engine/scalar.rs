//! The engine without special instructions: the definition of the others.

use super::{Columns, RowSet, Start, Term};
use crate::gf256::NIBBLES;

pub(super) fn combine(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term]) {
    if start == Start::Zero {
        out.fill(0);
    }
    for term in terms {
        let at = usize::from(term.index) * columns.symbol_len + columns.first;
        let source = &columns.symbols[at..at + out.len()];
        add_multiple(out, source, term.coefficient);
    }
}

/// The same with symbols and coefficients apart.
pub(super) fn combine_row(
    out: &mut [u8],
    start: Start,
    columns: Columns<'_>,
    symbols: &[u16],
    row: &[u8],
) {
    if start == Start::Zero {
        out.fill(0);
    }
    for (index, coefficient) in symbols.iter().zip(row) {
        let at = usize::from(*index) * columns.symbol_len + columns.first;
        let source = &columns.symbols[at..at + out.len()];
        add_multiple(out, source, *coefficient);
    }
}

/// `row k += factors[k] · symbol`.
pub(super) fn add_multiples(rows: &mut [u8], symbol: &[u8], factors: &[u8]) {
    for (row, factor) in rows.chunks_exact_mut(symbol.len()).zip(factors) {
        add_multiple(row, symbol, *factor);
    }
}

/// All rows of a set.
pub(super) fn combine_set(
    out: &mut [u8],
    len: usize,
    start: Start,
    columns: Columns<'_>,
    set: &RowSet,
) {
    for row in set.rows() {
        let out = &mut out[row.target..row.target + len];
        if start == Start::Zero {
            out.fill(0);
        }
        for term in set.terms(row) {
            let at = usize::from(term.index) * columns.symbol_len + columns.first;
            let source = &columns.symbols[at..at + len];
            add_multiple(out, source, term.coefficient);
        }
    }
}

/// `out += coefficient · source`.
fn add_multiple(out: &mut [u8], source: &[u8], coefficient: u8) {
    match coefficient {
        0 => {}
        // The compiler turns this loop into vector code of its own.
        1 => out.iter_mut().zip(source).for_each(|(o, s)| *o ^= s),
        _ => {
            let (low, high) = NIBBLES[usize::from(coefficient)].split_at(16);
            for (o, s) in out.iter_mut().zip(source) {
                *o ^= low[usize::from(s & 15)] ^ high[usize::from(s >> 4)];
            }
        }
    }
}
