//! All engines against the definition.

use proptest::prelude::*;

use super::*;
use crate::gf256;

#[test]
fn the_scalar_engine_is_always_there() {
    assert_eq!(Engine::by_name("scalar"), Some(Engine::scalar()));
    assert_eq!(Engine::by_name("abacus"), None);
    assert!(Engine::available().any(|engine| engine == Engine::detect()));
}

#[test]
fn engines_that_are_not_tested_here_are_named() {
    for kind in KINDS.iter().filter(|kind| !kind.is_supported()) {
        sphinx_testing::skipped!("this processor has no {}", kind.name());
    }
}

#[test]
fn no_terms_leave_zero_or_the_start() {
    for engine in Engine::available() {
        let columns = Columns {
            symbols: &[],
            symbol_len: 4,
            first: 0,
        };
        let mut out = [7; 4];
        engine.combine(&mut out, Start::Accumulate, columns, &[]);
        assert_eq!(out, [7; 4]);
        engine.combine(&mut out, Start::Zero, columns, &[]);
        assert_eq!(out, [0; 4]);
    }
}

#[test]
#[should_panic(expected = "outside the symbols")]
fn a_term_behind_the_buffer_is_refused() {
    let columns = Columns {
        symbols: &[0; 11],
        symbol_len: 4,
        first: 0,
    };
    let term = Term {
        index: 2,
        coefficient: 1,
    };
    Engine::detect().combine(&mut [0; 4], Start::Zero, columns, &[term]);
}

/// Symbols of up to so many bytes; Miri takes a microsecond for each.
const LENGTH_MAX: usize = if cfg!(miri) { 40 } else { 700 };

/// Terms of a row at most.
const TERMS_MAX: usize = if cfg!(miri) { 4 } else { 30 };

proptest! {
    /// Any length (so any tail), any alignment of source and target, any
    /// coefficients, zero and one included.
    #[test]
    fn all_engines_agree_with_the_definition(
        seed: u64,
        symbol_len in 1..LENGTH_MAX,
        first in 0_usize..70,
        shift in 0_usize..64,
        accumulate: bool,
        xor_only: bool,
        coefficients in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let first = first.min(symbol_len - 1);
        let len = symbol_len - first;
        let mut state = seed;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let symbols: Vec<u8> = (0..coefficients.len() * symbol_len).map(|_| byte()).collect();
        let before: Vec<u8> = (0..len).map(|_| byte()).collect();
        let start = if accumulate { Start::Accumulate } else { Start::Zero };
        let terms: Vec<Term> = coefficients
            .iter()
            .enumerate()
            .map(|(i, c)| Term { index: i as u16, coefficient: if xor_only { 1 } else { *c } })
            .collect();
        let mut expected = if accumulate { before.clone() } else { vec![0; len] };
        for term in &terms {
            for (i, byte) in expected.iter_mut().enumerate() {
                let at = usize::from(term.index) * symbol_len + first + i;
                *byte ^= gf256::mul(term.coefficient, symbols[at]);
            }
        }
        for engine in Engine::available() {
            let mut memory = vec![0xaa; shift + len + 64];
            memory[shift..shift + len].copy_from_slice(&before);
            let columns = Columns { symbols: &symbols, symbol_len, first };
            engine.combine(&mut memory[shift..shift + len], start, columns, &terms);
            prop_assert_eq!(&memory[shift..shift + len], &expected[..], "{:?}", engine);
            prop_assert!(memory[..shift].iter().all(|b| *b == 0xaa));
            prop_assert!(memory[shift + len..].iter().all(|b| *b == 0xaa));
        }
    }

    /// Several rows at once give what each of them gives alone.
    #[test]
    fn rows_together_equal_rows_apart(
        seed: u64,
        symbol_len in 1..LENGTH_MAX,
        first in 0_usize..70,
        gap in 0_usize..9,
        accumulate: bool,
        symbols in prop::collection::vec(0_u16..12, 1..12),
        rows in 0_usize..11,
    ) {
        let first = first.min(symbol_len - 1);
        let len = symbol_len - first;
        let mut state = seed;
        let mut bytes = |len: usize| -> Vec<u8> {
            (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect()
        };
        let source = bytes(12 * symbol_len);
        let matrix = bytes(rows * symbols.len());
        let stride = len + gap;
        let before = bytes(rows * stride + first);
        let start = if accumulate { Start::Accumulate } else { Start::Zero };
        let columns = Columns { symbols: &source, symbol_len, first };
        let starts: Vec<usize> = (0..rows).map(|k| k * stride + first).collect();
        let mut expected = before.clone();
        for (k, row) in matrix.chunks(symbols.len()).enumerate() {
            let terms: Vec<Term> = symbols
                .iter()
                .zip(row)
                .map(|(&index, &coefficient)| Term { index, coefficient })
                .collect();
            let out = &mut expected[k * stride + first..][..len];
            Engine::scalar().combine(out, start, columns, &terms);
        }
        for engine in Engine::available() {
            let mut memory = before.clone();
            let targets = Targets { bytes: &mut memory, starts: &starts, len };
            engine.combine_rows(targets, start, columns, &symbols, &matrix);
            prop_assert_eq!(&memory, &expected, "{:?}", engine);
        }
    }

    /// A set of rows gives what each of them gives alone, staged or not, and
    /// without the terms that are not wanted.
    #[test]
    fn rows_of_a_set_equal_rows_apart(
        seed: u64,
        symbol_len in 1..LENGTH_MAX,
        first in 0_usize..70,
        accumulate: bool,
        rows in prop::collection::vec(
            prop::collection::vec((0_u16..12, prop_oneof![Just(1_u8), any::<u8>()]), 0..TERMS_MAX),
            0..6,
        ),
        unwanted in 0_u16..24,
    ) {
        let first = first.min(symbol_len - 1);
        let len = symbol_len - first;
        let mut state = seed;
        let mut bytes = |len: usize| -> Vec<u8> {
            (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect()
        };
        let source = bytes(12 * symbol_len);
        let stride = len + 3;
        let before = bytes(rows.len() * stride);
        let start = if accumulate { Start::Accumulate } else { Start::Zero };
        let columns = Columns { symbols: &source, symbol_len, first };
        let rows: Vec<Vec<Term>> = rows
            .iter()
            .map(|row| {
                let terms = row.iter();
                terms.map(|&(index, coefficient)| Term { index, coefficient }).collect()
            })
            .collect();
        let mut expected = before.clone();
        for (row, out) in rows.iter().zip(expected.chunks_mut(stride)) {
            let wanted = row.iter().copied().filter(|term| term.index != unwanted);
            let wanted: Vec<Term> = wanted.collect();
            Engine::scalar().combine(&mut out[..len], start, columns, &wanted);
        }
        for engine in Engine::available() {
            let mut set = RowSet::default();
            for (k, row) in rows.iter().enumerate() {
                set.push(engine, k * stride, row, |index| index != unwanted);
            }
            let mut memory = before.clone();
            set.combine(engine, &mut memory, len, start, columns);
            prop_assert_eq!(&memory, &expected, "{:?}", engine);
        }
    }

    /// Multiples of one symbol added to rows give what one addition after
    /// another gives.
    #[test]
    fn multiples_are_added_to_all_rows(
        seed: u64,
        registers in 1_usize..4,
        rows in 0_usize..9,
    ) {
        let mut state = seed;
        let mut bytes = |len: usize| -> Vec<u8> {
            (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect()
        };
        let symbol = bytes(registers * REGISTER_MAX);
        let factors = bytes(rows);
        let before = bytes(rows * symbol.len());
        let mut expected = before.clone();
        for (row, factor) in expected.chunks_mut(symbol.len()).zip(&factors) {
            Engine::scalar().mul_add(row, &symbol, *factor);
        }
        for engine in Engine::available() {
            let mut rows = before.clone();
            engine.add_multiples(&mut rows, &symbol, &factors);
            prop_assert_eq!(&rows, &expected, "{:?}", engine);
        }
    }
}
