//! AVX2: 32 products at a time by two nibble look-ups (`vpshufb`).

use core::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, ssse3};
use crate::gf256::NIBBLES;

type Lane = __m256i;
type Prepared = Nibbles;
const LANE: usize = 32;
const WIDE: usize = 8;
const NARROW: [usize; 5] = [0, 0, 4, 2, 2];
const SET: usize = 8;
const STAGED: usize = 4;

/// The products of a coefficient with the sixteen low and the sixteen high
/// nibbles.
#[derive(Clone, Copy)]
struct Factor {
    low: Lane,
    high: Lane,
}

kernels!("avx2");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], is_xor: bool) {
    // SAFETY: the caller's promise; AVX2 includes SSSE3.
    unsafe { ssse3::combine(out, start, columns, terms, is_xor) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Lane {
    _mm256_setzero_si256()
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), lane) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor(a: Lane, b: Lane) -> Lane {
    _mm256_xor_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn factor(coefficient: u8) -> Factor {
    unpack(u32::from(coefficient))
}

/// A packed coefficient is its row in the table.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack(coefficient: u32) -> Factor {
    let table = NIBBLES[coefficient as usize & 255].as_ptr();
    // SAFETY: a row of the table has 32 bytes.
    let (low, high) = unsafe {
        (
            _mm_loadu_si128(table.cast()),
            _mm_loadu_si128(table.add(16).cast()),
        )
    };
    Factor {
        low: _mm256_broadcastsi128_si256(low),
        high: _mm256_broadcastsi128_si256(high),
    }
}

/// The two nibbles of every byte.
#[derive(Clone, Copy)]
struct Nibbles {
    low: Lane,
    high: Lane,
}

#[inline]
#[target_feature(enable = "avx2")]
fn prepare(bytes: Lane) -> Nibbles {
    let mask = _mm256_set1_epi8(15);
    Nibbles {
        low: _mm256_and_si256(bytes, mask),
        high: _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn mul_add(sum: Lane, bytes: Nibbles, factor: Factor) -> Lane {
    let low = _mm256_shuffle_epi8(factor.low, bytes.low);
    let high = _mm256_shuffle_epi8(factor.high, bytes.high);
    xor(sum, xor(low, high))
}
