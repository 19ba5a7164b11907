//! Rows that are combined many times, looked through once.

use alloc::vec::Vec;

use super::{Columns, Engine, STAGE_BYTES, Start, Term};

/// Rows of terms over the same symbols, each with the place it is written to:
/// what [`Engine::combine`] finds out about its terms in every call is found
/// out when a row is added.
#[derive(Debug, Default)]
pub(crate) struct RowSet {
    terms: Vec<PackedTerm>,
    rows: Vec<RowFacts>,
    /// The largest index of all terms, left out or not.
    last: u16,
    /// Terms that need a multiplication.
    product_count: usize,
    stage: Vec<Aligned>,
}

/// A term with its coefficient as the kernels of an engine want it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PackedTerm {
    pub(super) factor: u32,
    pub(super) index: u16,
    pub(super) coefficient: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RowFacts {
    /// The terms of the row.
    begin: usize,
    end: usize,
    /// Where the row's bytes begin in the output.
    pub(super) target: usize,
    /// Whether all coefficients are 1.
    pub(super) is_xor: bool,
}

/// A piece of the stage.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Aligned(#[expect(dead_code, reason = "only its memory is used")] [u8; 64]);

impl RowSet {
    pub(crate) fn clear(&mut self) {
        self.terms.clear();
        self.rows.clear();
        self.last = 0;
        self.product_count = 0;
    }

    /// Adds a row that is written to the bytes from `target`, for an engine
    /// that is then used for all rows. Terms whose symbol `is_wanted` is not
    /// are left out.
    pub(crate) fn push(
        &mut self,
        engine: Engine,
        target: usize,
        terms: &[Term],
        is_wanted: impl Fn(u16) -> bool,
    ) {
        let begin = self.terms.len();
        let all = begin + terms.len();
        self.terms.resize(all, PackedTerm::default());
        let room = &mut self.terms[begin..];
        let (mut count, mut last, mut is_xor) = (0, self.last, true);
        let packing = engine.packing();
        for &Term { index, coefficient } in terms {
            // Without a branch: nobody could predict it.
            room[count] = PackedTerm {
                factor: u32::from(coefficient) * packing,
                index,
                coefficient,
            };
            count += usize::from(is_wanted(index));
            is_xor &= coefficient == 1;
            last = last.max(index);
        }
        self.last = last;
        let end = begin + count;
        self.terms.truncate(end);
        if !is_xor {
            self.product_count += end - begin;
        }
        self.rows.push(RowFacts {
            begin,
            end,
            target,
            is_xor,
        });
    }

    pub(super) fn last(&self) -> u16 {
        self.last
    }

    pub(super) fn rows(&self) -> &[RowFacts] {
        &self.rows
    }

    pub(super) fn terms(&self, row: &RowFacts) -> &[PackedTerm] {
        &self.terms[row.begin..row.end]
    }

    /// Computes the first `len` bytes of all rows: `start + Σ coefficient ·
    /// symbol` over the columns from `columns.first`.
    ///
    /// # Panics
    /// If a row ends behind `out`, or a symbol behind the buffer.
    pub(crate) fn combine(
        &mut self,
        engine: Engine,
        out: &mut [u8],
        len: usize,
        start: Start,
        columns: Columns<'_>,
    ) {
        let Some(target) = self.rows.iter().map(|row| row.target).max() else {
            return;
        };
        let end = target.checked_add(len);
        assert!(end.is_some_and(|end| end <= out.len()), "a row outside");
        if self.terms.is_empty() {
            if start == Start::Zero {
                let rows = self.rows.iter();
                rows.for_each(|row| out[row.target..row.target + len].fill(0));
            }
            return;
        }
        columns.check(self.last, len);
        if len < engine.0.lane() {
            self.combine_short(engine, out, len, start, columns);
            return;
        }
        // Preparing the symbols pays when each is used a few times.
        let symbols = usize::from(self.last) + 1;
        let stage = (engine.0.has_stage() && self.product_count > 3 * symbols).then(|| {
            let pieces = symbols * STAGE_BYTES / size_of::<Aligned>();
            if self.stage.len() < pieces {
                self.stage.resize(pieces, Aligned([0; 64]));
            }
            self.stage.as_mut_ptr().cast::<u8>()
        });
        // SAFETY: rows lie in `out` and symbols in their buffer, as was just
        // checked; the stage is as large and aligned as it has to be, and only
        // this set, which is exclusively borrowed, knows of it.
        unsafe { engine.combine_set(out, len, start, columns, self, stage) };
    }

    fn combine_short(
        &self,
        engine: Engine,
        out: &mut [u8],
        len: usize,
        start: Start,
        columns: Columns<'_>,
    ) {
        for row in &self.rows {
            let out = &mut out[row.target..row.target + len];
            if start == Start::Zero {
                out.fill(0);
            }
            let mut batch = [Term::default(); 64];
            for terms in self.terms(row).chunks(batch.len()) {
                for (term, packed) in batch.iter_mut().zip(terms) {
                    *term = Term {
                        index: packed.index,
                        coefficient: packed.coefficient,
                    };
                }
                engine.combine(out, Start::Accumulate, columns, &batch[..terms.len()]);
            }
        }
    }
}
