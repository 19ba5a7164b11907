//! SSSE3: 16 products at a time by two nibble look-ups (`pshufb`).

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128, _mm_shuffle_epi8,
    _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, scalar};
use crate::gf256::NIBBLES;

type Lane = __m128i;
type Prepared = Nibbles;
const LANE: usize = 16;
const WIDE: usize = 4;
const NARROW: [usize; 5] = [0, 0, 3, 2, 2];
const SET: usize = 4;
const STAGED: usize = 8;

/// The products of a coefficient with the sixteen low and the sixteen high
/// nibbles.
#[derive(Clone, Copy)]
struct Factor {
    low: Lane,
    high: Lane,
}

kernels!("ssse3");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], _is_xor: bool) {
    scalar::combine(out, start, columns, terms);
}

#[inline]
#[target_feature(enable = "ssse3")]
fn zero() -> Lane {
    _mm_setzero_si128()
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(from.cast()) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(to.cast(), lane) }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn xor(a: Lane, b: Lane) -> Lane {
    _mm_xor_si128(a, b)
}

#[inline]
#[target_feature(enable = "ssse3")]
fn factor(coefficient: u8) -> Factor {
    unpack(u32::from(coefficient))
}

/// A packed coefficient is its row in the table.
#[inline]
#[target_feature(enable = "ssse3")]
fn unpack(coefficient: u32) -> Factor {
    let table = NIBBLES[coefficient as usize & 255].as_ptr();
    // SAFETY: a row of the table has 32 bytes.
    let (low, high) = unsafe { (load(table), load(table.add(LANE))) };
    Factor { low, high }
}

/// The two nibbles of every byte.
#[derive(Clone, Copy)]
struct Nibbles {
    low: Lane,
    high: Lane,
}

#[inline]
#[target_feature(enable = "ssse3")]
fn prepare(bytes: Lane) -> Nibbles {
    let mask = _mm_set1_epi8(15);
    Nibbles {
        low: _mm_and_si128(bytes, mask),
        high: _mm_and_si128(_mm_srli_epi64::<4>(bytes), mask),
    }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn mul_add(sum: Lane, bytes: Nibbles, factor: Factor) -> Lane {
    let low = _mm_shuffle_epi8(factor.low, bytes.low);
    let high = _mm_shuffle_epi8(factor.high, bytes.high);
    xor(sum, xor(low, high))
}
