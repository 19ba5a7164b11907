//! GFNI with AVX2: 32 products at a time by one field multiplication.

use core::arch::x86_64::{
    __m256i, _mm256_gf2p8mul_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, avx2};

type Lane = __m256i;
type Prepared = Lane;
/// A coefficient in every byte.
type Factor = __m256i;
const LANE: usize = 32;
const WIDE: usize = 8;
const NARROW: [usize; 5] = [0, 0, 4, 3, 2];
const SET: usize = 8;
const STAGED: usize = 8;

kernels!("avx2,gfni");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], is_xor: bool) {
    // SAFETY: the caller's promise; AVX2 is among the features.
    unsafe { avx2::combine(out, start, columns, terms, is_xor) }
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn zero() -> Lane {
    _mm256_setzero_si256()
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), lane) }
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn xor(a: Lane, b: Lane) -> Lane {
    _mm256_xor_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn factor(coefficient: u8) -> Factor {
    _mm256_set1_epi8(coefficient.cast_signed())
}

/// A packed coefficient is in all four bytes: four bytes at a time are
/// broadcast on the way from memory, single ones by a further instruction.
#[inline]
#[target_feature(enable = "avx2,gfni")]
fn unpack(coefficient: u32) -> Factor {
    _mm256_set1_epi32(coefficient.cast_signed())
}

/// Nothing to prepare: the instruction takes bytes as they are.
#[inline]
#[target_feature(enable = "avx2,gfni")]
fn prepare(bytes: Lane) -> Lane {
    bytes
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn mul_add(sum: Lane, bytes: Lane, factor: Factor) -> Lane {
    xor(sum, _mm256_gf2p8mul_epi8(bytes, factor))
}
