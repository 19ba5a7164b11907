//! The loops that all vector engines share.
//!
//! An engine file says what a register is (`Lane`, `LANE` bytes), what has to
//! be prepared for a coefficient (`Factor`), and the handful of operations on
//! them; [`kernels!`] turns that into the functions of an engine. They are
//! written once as a macro and not as generic functions, because instructions
//! beyond the baseline may only be inlined into functions that name the same
//! target features.
//!
//! A stretch of columns is cut into strips of a few registers. The last
//! register of the last strip may overlap the one before it instead of
//! reaching behind the end: both then hold the same bytes, as all registers of
//! a strip are read before any is written.

/// Defines `combine`, `combine_rows`, `add_multiples` and `combine_set` for the
/// engine of the surrounding module, to be compiled with the given target
/// features.
///
/// Expected in scope: `Lane`, `LANE`, `Factor`, `Prepared`; `WIDE`, `NARROW[k]`,
/// `SET` and `STAGED` (registers in a strip of one row, of `k` rows, and of a set
/// without and with a stage, from 2 to 8); `zero`, `load`, `store`, `xor`, `factor`
/// of a coefficient, `unpack` for one that was packed, `prepare` for source
/// bytes, `mul_add` for what that gives, and `short` for stretches below one
/// register.
macro_rules! kernels {
    ($features:literal) => {
        /// Computes `out = start + Σ coefficient · symbol`.
        ///
        /// # Safety
        /// The processor has the features of this module, and for every term
        /// the bytes `index * symbol_len + first ..` of length `out.len()` lie
        /// in the symbols; `is_xor` only if all coefficients are 1.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn combine(
            out: &mut [u8],
            start: Start,
            columns: Columns<'_>,
            terms: &[Term],
            is_xor: bool,
        ) {
            let len = out.len();
            if len < LANE {
                // SAFETY: the caller's promise, passed on.
                return unsafe { short(out, start, columns, terms, is_xor) };
            }
            let mut at = 0;
            for width in crate::engine::kernel::strips(len, LANE, WIDE) {
                // SAFETY: strips partition 0..len, each of at least LANE
                // bytes; the caller vouches for the sources of these columns.
                unsafe {
                    match width.div_ceil(LANE) {
                        1 => strip::<1>(out, at, width, start, columns, terms, is_xor),
                        2 => strip::<2>(out, at, width, start, columns, terms, is_xor),
                        3 => strip::<3>(out, at, width, start, columns, terms, is_xor),
                        4 => strip::<4>(out, at, width, start, columns, terms, is_xor),
                        5 => strip::<5>(out, at, width, start, columns, terms, is_xor),
                        6 => strip::<6>(out, at, width, start, columns, terms, is_xor),
                        7 => strip::<7>(out, at, width, start, columns, terms, is_xor),
                        _ => strip::<8>(out, at, width, start, columns, terms, is_xor),
                    }
                }
                at += width;
            }
        }

        /// One strip of `combine`: the columns `at .. at + width`.
        ///
        /// # Safety
        /// As for `combine`; the strip lies in `out`, and
        /// `(N − 1) · LANE < width ≤ N · LANE` with `width ≥ LANE`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn strip<const N: usize>(
            out: &mut [u8],
            at: usize,
            width: usize,
            start: Start,
            columns: Columns<'_>,
            terms: &[Term],
            is_xor: bool,
        ) {
            let last = width - LANE;
            // SAFETY: the strip lies in `out`.
            let target = unsafe { out.as_mut_ptr().add(at) };
            let mut sum = [zero(); N];
            if start == Start::Accumulate {
                // SAFETY: N registers of a strip of `width` bytes.
                sum = unsafe { load_lanes::<N>(target, last) };
            }
            for term in terms {
                let offset = usize::from(term.index) * columns.symbol_len + columns.first + at;
                // SAFETY: the caller vouches for `width` bytes from here.
                let source = unsafe { columns.symbols.as_ptr().add(offset) };
                if is_xor {
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let at = if i + 1 == N { last } else { i * LANE };
                        // SAFETY: within those `width` bytes.
                        *sum = xor(*sum, unsafe { load(source.add(at)) });
                    }
                    continue;
                }
                let factor = factor(term.coefficient);
                for (i, sum) in sum.iter_mut().enumerate() {
                    let at = if i + 1 == N { last } else { i * LANE };
                    // SAFETY: within those `width` bytes.
                    let bytes = prepare(unsafe { load(source.add(at)) });
                    *sum = mul_add(*sum, bytes, factor);
                }
            }
            // SAFETY: as for loading.
            unsafe { store_lanes(target, last, sum) };
        }

        /// Computes `K` sums over the same symbols at once:
        /// `start + Σ matrix[k][j] · symbol[symbols[j]]`, row `k` in the `len`
        /// bytes of `out` from `targets[k]`.
        ///
        /// # Safety
        /// The processor has the features of this module, `len ≥ LANE`, every
        /// row lies in `out`, every row of the matrix
        /// has an element for each of `symbols`, and their bytes
        /// `index * symbol_len + first ..` of length `len` lie in the symbols.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn combine_rows<const K: usize>(
            out: &mut [u8],
            targets: [usize; K],
            len: usize,
            start: Start,
            columns: Columns<'_>,
            symbols: &[u16],
            matrix: [&[u8]; K],
        ) {
            let mut at = 0;
            for width in crate::engine::kernel::strips(len, LANE, NARROW[K]) {
                let out = &mut out[at..];
                let stretch = Columns {
                    first: columns.first + at,
                    ..columns
                };
                // SAFETY: strips partition 0..len, each of at least LANE
                // bytes; the rest is the caller's promise.
                unsafe {
                    match width.div_ceil(LANE) {
                        1 => rows::<K, 1>(out, targets, width, start, stretch, symbols, matrix),
                        2 => rows::<K, 2>(out, targets, width, start, stretch, symbols, matrix),
                        3 => rows::<K, 3>(out, targets, width, start, stretch, symbols, matrix),
                        4 => rows::<K, 4>(out, targets, width, start, stretch, symbols, matrix),
                        5 => rows::<K, 5>(out, targets, width, start, stretch, symbols, matrix),
                        6 => rows::<K, 6>(out, targets, width, start, stretch, symbols, matrix),
                        7 => rows::<K, 7>(out, targets, width, start, stretch, symbols, matrix),
                        _ => rows::<K, 8>(out, targets, width, start, stretch, symbols, matrix),
                    }
                }
                at += width;
            }
        }

        /// One strip of `combine_rows`.
        ///
        /// # Safety
        /// As for `combine_rows` with `width` for `len`, and
        /// `(N − 1) · LANE < width ≤ N · LANE` with `width ≥ LANE`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn rows<const K: usize, const N: usize>(
            out: &mut [u8],
            targets: [usize; K],
            width: usize,
            start: Start,
            columns: Columns<'_>,
            symbols: &[u16],
            matrix: [&[u8]; K],
        ) {
            let last = width - LANE;
            let mut sums = [[zero(); N]; K];
            if start == Start::Accumulate {
                for (sum, target) in sums.iter_mut().zip(targets) {
                    // SAFETY: each row lies in `out`.
                    *sum = unsafe { load_lanes::<N>(out.as_ptr().add(target), last) };
                }
            }
            for (j, index) in symbols.iter().enumerate() {
                let offset = usize::from(*index) * columns.symbol_len + columns.first;
                // SAFETY: the caller vouches for `width` bytes from here.
                let bytes = unsafe { load_lanes::<N>(columns.symbols.as_ptr().add(offset), last) };
                let bytes = bytes.map(|bytes| prepare(bytes));
                for (sum, row) in sums.iter_mut().zip(matrix) {
                    // SAFETY: a row of the matrix has an element per symbol.
                    let factor = factor(unsafe { *row.get_unchecked(j) });
                    for (sum, bytes) in sum.iter_mut().zip(bytes) {
                        *sum = mul_add(*sum, bytes, factor);
                    }
                }
            }
            for (sum, target) in sums.into_iter().zip(targets) {
                // SAFETY: each row lies in `out`.
                unsafe { store_lanes(out.as_mut_ptr().add(target), last, sum) };
            }
        }

        /// Adds `factors[k] · symbol` to row `k` of those that lie one after
        /// another in `rows`.
        ///
        /// # Safety
        /// The processor has the features of this module, the symbol is made
        /// of whole registers, and `rows` is as long as that times the number
        /// of factors.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn add_multiples(rows: &mut [u8], symbol: &[u8], factors: &[u8]) {
            for at in (0..symbol.len()).step_by(LANE) {
                // SAFETY: a whole register of the symbol.
                let bytes = prepare(unsafe { load(symbol.as_ptr().add(at)) });
                for (k, coefficient) in factors.iter().enumerate() {
                    // SAFETY: the same register of a row.
                    unsafe {
                        let target = rows.as_mut_ptr().add(k * symbol.len() + at);
                        store(target, mul_add(load(target), bytes, factor(*coefficient)));
                    }
                }
            }
        }

        /// Computes all rows of a set: for each strip of columns one row after
        /// another, so that the strip of all symbols stays in the cache.
        ///
        /// With a `stage` the symbols of a strip are prepared once for all
        /// rows, where that takes time.
        ///
        /// # Safety
        /// The processor has the features of this module, `len ≥ LANE`, the
        /// `len` bytes from the target of every row lie in `out`, the bytes
        /// `index * symbol_len + first ..` of length `len` of every symbol up
        /// to the last of the set lie in the symbols, and `stage` has
        /// [`STAGE_BYTES`] for each of them, aligned to them.
        ///
        /// [`STAGE_BYTES`]: crate::engine::STAGE_BYTES
        #[target_feature(enable = $features)]
        pub(super) unsafe fn combine_set(
            out: &mut [u8],
            len: usize,
            start: Start,
            columns: Columns<'_>,
            set: &RowSet,
            stage: Option<*mut u8>,
        ) {
            const { assert!(STAGED * size_of::<Prepared>() <= crate::engine::STAGE_BYTES) }
            let most = if stage.is_some() { STAGED } else { SET };
            let mut at = 0;
            for width in crate::engine::kernel::strips(len, LANE, most) {
                let out = &mut out[at..];
                let stretch = Columns {
                    first: columns.first + at,
                    ..columns
                };
                // SAFETY: strips partition 0..len, each of at least LANE
                // bytes; the rest is the caller's promise.
                unsafe {
                    match width.div_ceil(LANE) {
                        1 => set_strip::<1>(out, width, start, stretch, set, stage),
                        2 => set_strip::<2>(out, width, start, stretch, set, stage),
                        3 => set_strip::<3>(out, width, start, stretch, set, stage),
                        4 => set_strip::<4>(out, width, start, stretch, set, stage),
                        5 => set_strip::<5>(out, width, start, stretch, set, stage),
                        6 => set_strip::<6>(out, width, start, stretch, set, stage),
                        7 => set_strip::<7>(out, width, start, stretch, set, stage),
                        _ => set_strip::<8>(out, width, start, stretch, set, stage),
                    }
                }
                at += width;
            }
        }

        /// One strip of `combine_set`.
        ///
        /// # Safety
        /// As for `combine_set` with `width` for `len`, and
        /// `(N − 1) · LANE < width ≤ N · LANE` with `width ≥ LANE`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn set_strip<const N: usize>(
            out: &mut [u8],
            width: usize,
            start: Start,
            columns: Columns<'_>,
            set: &RowSet,
            stage: Option<*mut u8>,
        ) {
            let last = width - LANE;
            let stride = columns.symbol_len;
            // SAFETY: if there are symbols, they have `width` bytes from here.
            let source = unsafe { columns.symbols.as_ptr().add(columns.first) };
            let stage = stage.map(|stage| stage.cast::<[Prepared; N]>());
            if let Some(stage) = stage {
                for index in 0..=usize::from(set.last()) {
                    // SAFETY: `width` bytes of each of these symbols may be
                    // read, and N prepared registers of each be written.
                    unsafe {
                        let bytes = load_lanes::<N>(source.add(index * stride), last);
                        *stage.add(index) = bytes.map(|bytes| prepare(bytes));
                    }
                }
            }
            for row in set.rows() {
                // SAFETY: the row lies in `out`.
                let target = unsafe { out.as_mut_ptr().add(row.target) };
                let mut sum = [zero(); N];
                if start == Start::Accumulate {
                    // SAFETY: N registers of a row of `width` bytes.
                    sum = unsafe { load_lanes::<N>(target, last) };
                }
                let terms = set.terms(row);
                if row.is_xor {
                    for term in terms {
                        // SAFETY: as for staging.
                        let bytes = unsafe {
                            load_lanes::<N>(source.add(usize::from(term.index) * stride), last)
                        };
                        for (sum, bytes) in sum.iter_mut().zip(bytes) {
                            *sum = xor(*sum, bytes);
                        }
                    }
                } else if let Some(stage) = stage {
                    for term in terms {
                        let factor = unpack(term.factor);
                        // SAFETY: all symbols of the set were staged.
                        let bytes = unsafe { &*stage.add(usize::from(term.index)) };
                        for (sum, bytes) in sum.iter_mut().zip(bytes) {
                            *sum = mul_add(*sum, *bytes, factor);
                        }
                    }
                } else {
                    for term in terms {
                        let factor = unpack(term.factor);
                        // SAFETY: as for staging.
                        let bytes = unsafe {
                            load_lanes::<N>(source.add(usize::from(term.index) * stride), last)
                        };
                        for (sum, bytes) in sum.iter_mut().zip(bytes) {
                            *sum = mul_add(*sum, prepare(bytes), factor);
                        }
                    }
                }
                // SAFETY: as for loading.
                unsafe { store_lanes(target, last, sum) };
            }
        }

        /// # Safety
        /// The processor has the features of this module, and the bytes of
        /// `N − 1` registers from `from` and of one from `from + last` may be
        /// read.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_lanes<const N: usize>(from: *const u8, last: usize) -> [Lane; N] {
            let mut lanes = [zero(); N];
            for (i, lane) in lanes.iter_mut().enumerate() {
                let at = if i + 1 == N { last } else { i * LANE };
                // SAFETY: the caller vouches for each of these registers.
                *lane = unsafe { load(from.add(at)) };
            }
            lanes
        }

        /// # Safety
        /// As for `load_lanes`, for writing.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store_lanes<const N: usize>(to: *mut u8, last: usize, lanes: [Lane; N]) {
            for (i, lane) in lanes.into_iter().enumerate() {
                let at = if i + 1 == N { last } else { i * LANE };
                // SAFETY: the caller vouches for each of these registers.
                unsafe { store(to.add(at), lane) };
            }
        }
    };
}

pub(super) use kernels;

/// Cuts `len` bytes, at least one register, into strips of about equal numbers
/// of whole registers, at most `most`; the last strip also takes the rest and
/// is never shorter than a register.
pub(super) fn strips(len: usize, lane: usize, most: usize) -> impl Iterator<Item = usize> {
    let mut lanes = len.div_ceil(lane);
    let mut strips = lanes.div_ceil(most);
    let mut rest = len;
    core::iter::from_fn(move || {
        if strips == 0 {
            return None;
        }
        // The larger strips come last, so that the last one is no shorter than
        // two registers whenever its last register is not a whole one.
        let take = lanes / strips;
        let width = if strips == 1 { rest } else { take * lane };
        lanes -= take;
        strips -= 1;
        rest -= width;
        Some(width)
    })
}

#[cfg(test)]
mod tests {
    use super::strips;

    #[test]
    fn strips_cover_everything_in_whole_registers() {
        for lane in [16, 32, 64] {
            for most in 2..=8 {
                for len in (lane..40 * lane).step_by(if cfg!(miri) { 97 } else { 1 }) {
                    let widths: Vec<usize> = strips(len, lane, most).collect();
                    assert_eq!(widths.iter().sum::<usize>(), len);
                    assert!(widths.iter().all(|w| *w >= lane && *w <= most * lane));
                    let (_, whole) = widths.split_last().unwrap();
                    assert!(whole.iter().all(|w| w % lane == 0));
                }
            }
        }
    }
}
