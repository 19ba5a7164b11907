//! AVX2: 32 products at a time by two nibble look-ups (`vpshufb`).

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{Columns, Start, Term, scalar};
use crate::gf256::NIBBLES;

const LANE: usize = 32;

/// # Safety
/// The processor has AVX2, and for every term the bytes
/// `index * symbol_len + first ..` of length `out.len()` lie in the symbols.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn combine(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term]) {
    let len = out.len();
    if len < LANE {
        return scalar::combine(out, start, columns, terms);
    }
    let is_xor = terms.iter().all(|term| term.coefficient == 1);
    // The last stretch is a whole register that may overlap the one before
    // it; what it starts from has to be read before that one is stored.
    let last = len - LANE;
    // SAFETY: LANE <= len, so LANE bytes from `last` lie in `out`; every
    // `stretch` call below covers columns within 0..len, whose source bytes
    // the caller vouches for.
    unsafe {
        let tail = begin::<1>(&out[last..], start);
        let mut at = 0;
        while at + 4 * LANE <= len {
            let sum = begin::<4>(&out[at..], start);
            let sum = stretch::<4>(sum, columns, at, terms, is_xor);
            finish(&mut out[at..], sum);
            at += 4 * LANE;
        }
        while at + LANE <= len {
            let sum = begin::<1>(&out[at..], start);
            let sum = stretch::<1>(sum, columns, at, terms, is_xor);
            finish(&mut out[at..], sum);
            at += LANE;
        }
        if at < len {
            let sum = stretch::<1>(tail, columns, last, terms, is_xor);
            finish(&mut out[last..], sum);
        }
    }
}

/// # Safety
/// The processor has AVX2 and `out` has at least `N * LANE` bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn begin<const N: usize>(out: &[u8], start: Start) -> [__m256i; N] {
    let mut sum = [_mm256_setzero_si256(); N];
    if start == Start::Accumulate {
        for (i, lane) in sum.iter_mut().enumerate() {
            // SAFETY: within the N * LANE bytes the caller vouches for.
            *lane = unsafe { _mm256_loadu_si256(out.as_ptr().add(i * LANE).cast()) };
        }
    }
    sum
}

/// # Safety
/// The processor has AVX2 and `out` has at least `N * LANE` bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn finish<const N: usize>(out: &mut [u8], sum: [__m256i; N]) {
    for (i, lane) in sum.into_iter().enumerate() {
        // SAFETY: within the N * LANE bytes the caller vouches for.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(i * LANE).cast(), lane) };
    }
}

/// Adds all terms over the columns `at .. at + N * LANE` of the stretch.
///
/// # Safety
/// The processor has AVX2, and these columns of every term's symbol lie in the
/// buffer.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stretch<const N: usize>(
    mut sum: [__m256i; N],
    columns: Columns<'_>,
    at: usize,
    terms: &[Term],
    is_xor: bool,
) -> [__m256i; N] {
    let mask = _mm256_set1_epi8(15);
    for term in terms {
        let offset = usize::from(term.index) * columns.symbol_len + columns.first + at;
        // SAFETY: the caller vouches for N * LANE bytes from this offset.
        let source = unsafe { columns.symbols.as_ptr().add(offset) };
        if is_xor {
            for (i, lane) in sum.iter_mut().enumerate() {
                // SAFETY: i < N, so within those bytes.
                let bytes = unsafe { _mm256_loadu_si256(source.add(i * LANE).cast()) };
                *lane = _mm256_xor_si256(*lane, bytes);
            }
            continue;
        }
        let table = NIBBLES[usize::from(term.coefficient)].as_ptr();
        // SAFETY: a row of the table has 32 bytes.
        let (low, high) = unsafe {
            (
                _mm_loadu_si128(table.cast()),
                _mm_loadu_si128(table.add(16).cast()),
            )
        };
        let low = _mm256_broadcastsi128_si256(low);
        let high = _mm256_broadcastsi128_si256(high);
        for (i, lane) in sum.iter_mut().enumerate() {
            // SAFETY: i < N, so within the bytes of the source.
            let bytes = unsafe { _mm256_loadu_si256(source.add(i * LANE).cast()) };
            let low_nibbles = _mm256_and_si256(bytes, mask);
            let high_nibbles = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask);
            let product = _mm256_xor_si256(
                _mm256_shuffle_epi8(low, low_nibbles),
                _mm256_shuffle_epi8(high, high_nibbles),
            );
            *lane = _mm256_xor_si256(*lane, product);
        }
    }
    sum
}
