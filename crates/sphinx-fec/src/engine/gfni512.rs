//! GFNI with AVX-512: 64 products at a time by one field multiplication.

use core::arch::x86_64::{
    __m512i, _mm512_gf2p8mul_epi8, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, gfni};

type Lane = __m512i;
type Prepared = Lane;
/// A coefficient in every byte.
type Factor = __m512i;
const LANE: usize = 64;
const WIDE: usize = 8;
const NARROW: [usize; 5] = [0, 0, 8, 6, 5];
const SET: usize = 4;
const STAGED: usize = 4;

kernels!("avx512f,avx512bw,gfni");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], is_xor: bool) {
    // SAFETY: the caller's promise; AVX-512 includes AVX2, and GFNI is among
    // the features.
    unsafe { gfni::combine(out, start, columns, terms, is_xor) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn zero() -> Lane {
    _mm512_setzero_si512()
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(from.cast()) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_si512(to.cast(), lane) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn xor(a: Lane, b: Lane) -> Lane {
    _mm512_xor_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn factor(coefficient: u8) -> Factor {
    _mm512_set1_epi8(coefficient.cast_signed())
}

/// A packed coefficient is in all four bytes: four bytes at a time are
/// broadcast on the way from memory, single ones by a further instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn unpack(coefficient: u32) -> Factor {
    _mm512_set1_epi32(coefficient.cast_signed())
}

/// Nothing to prepare: the instruction takes bytes as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn prepare(bytes: Lane) -> Lane {
    bytes
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn mul_add(sum: Lane, bytes: Lane, factor: Factor) -> Lane {
    xor(sum, _mm512_gf2p8mul_epi8(bytes, factor))
}
