//! AVX2 with GFNI: 32 products by one instruction (`vgf2p8mulb`).

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8mul_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{Columns, Start, Term, scalar};

const LANE: usize = 32;

/// # Safety
/// The processor has AVX2 and GFNI, and for every term the bytes
/// `index * symbol_len + first ..` of length `out.len()` lie in the symbols.
#[target_feature(enable = "avx2,gfni")]
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
/// The processor has AVX2 and GFNI and `out` has at least `N * LANE` bytes.
#[inline]
#[target_feature(enable = "avx2,gfni")]
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
/// The processor has AVX2 and GFNI and `out` has at least `N * LANE` bytes.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn finish<const N: usize>(out: &mut [u8], sum: [__m256i; N]) {
    for (i, lane) in sum.into_iter().enumerate() {
        // SAFETY: within the N * LANE bytes the caller vouches for.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(i * LANE).cast(), lane) };
    }
}

/// Adds all terms over the columns `at .. at + N * LANE` of the stretch.
///
/// # Safety
/// The processor has AVX2 and GFNI, and these columns of every term's symbol lie in the
/// buffer.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn stretch<const N: usize>(
    mut sum: [__m256i; N],
    columns: Columns<'_>,
    at: usize,
    terms: &[Term],
    is_xor: bool,
) -> [__m256i; N] {
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
        let factor = _mm256_set1_epi8(term.coefficient.cast_signed());
        for (i, lane) in sum.iter_mut().enumerate() {
            // SAFETY: i < N, so within the bytes of the source.
            let bytes = unsafe { _mm256_loadu_si256(source.add(i * LANE).cast()) };
            let product = _mm256_gf2p8mul_epi8(bytes, factor);
            *lane = _mm256_xor_si256(*lane, product);
        }
    }
    sum
}
