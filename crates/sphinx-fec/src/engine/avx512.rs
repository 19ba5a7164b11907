//! AVX-512 without GFNI: 64 products at a time by two nibble look-ups
//! (`vpshufb`), added up by one instruction with three operands.

use core::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_loadu_si512,
    _mm512_set1_epi8, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, avx2};
use crate::gf256::NIBBLES;

type Lane = __m512i;
type Prepared = Nibbles;
const LANE: usize = 64;
const WIDE: usize = 8;
// Of 32 registers: the sums, two for each register of the source, and a factor.
const NARROW: [usize; 5] = [0, 0, 6, 5, 4];
const SET: usize = 8;
const STAGED: usize = 2;

/// The products of a coefficient with the sixteen low and the sixteen high
/// nibbles.
#[derive(Clone, Copy)]
struct Factor {
    low: Lane,
    high: Lane,
}

kernels!("avx512f,avx512bw");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], is_xor: bool) {
    // SAFETY: the caller's promise; AVX-512 includes AVX2.
    unsafe { avx2::combine(out, start, columns, terms, is_xor) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn zero() -> Lane {
    _mm512_setzero_si512()
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(from.cast()) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_si512(to.cast(), lane) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor(a: Lane, b: Lane) -> Lane {
    _mm512_xor_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn factor(coefficient: u8) -> Factor {
    unpack(u32::from(coefficient))
}

/// A packed coefficient is its row in the table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
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
        low: _mm512_broadcast_i32x4(low),
        high: _mm512_broadcast_i32x4(high),
    }
}

/// The two nibbles of every byte.
#[derive(Clone, Copy)]
struct Nibbles {
    low: Lane,
    high: Lane,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn prepare(bytes: Lane) -> Nibbles {
    let mask = _mm512_set1_epi8(15);
    Nibbles {
        low: _mm512_and_si512(bytes, mask),
        high: _mm512_and_si512(_mm512_srli_epi64::<4>(bytes), mask),
    }
}

/// The truth table of an XOR of three.
const XOR_OF_THREE: i32 = 0x96;

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn mul_add(sum: Lane, bytes: Nibbles, factor: Factor) -> Lane {
    let low = _mm512_shuffle_epi8(factor.low, bytes.low);
    let high = _mm512_shuffle_epi8(factor.high, bytes.high);
    _mm512_ternarylogic_epi64::<XOR_OF_THREE>(sum, low, high)
}
