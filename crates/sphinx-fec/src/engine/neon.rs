//! NEON: 16 products at a time by two nibble look-ups (`tbl`).

use core::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};

use super::kernel::kernels;
use super::{Columns, RowSet, Start, Term, scalar};
use crate::gf256::NIBBLES;

type Lane = uint8x16_t;
type Prepared = Nibbles;
const LANE: usize = 16;
const WIDE: usize = 8;
const NARROW: [usize; 5] = [0, 0, 6, 4, 4];
const SET: usize = 8;
const STAGED: usize = 8;

/// The products of a coefficient with the sixteen low and the sixteen high
/// nibbles.
#[derive(Clone, Copy)]
struct Factor {
    low: Lane,
    high: Lane,
}

kernels!("neon");

/// # Safety
/// As for `combine`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn short(out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term], _is_xor: bool) {
    scalar::combine(out, start, columns, terms);
}

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> Lane {
    vdupq_n_u8(0)
}

/// # Safety
/// `LANE` bytes may be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(from: *const u8) -> Lane {
    // SAFETY: the caller's promise.
    unsafe { vld1q_u8(from) }
}

/// # Safety
/// `LANE` bytes may be written.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(to: *mut u8, lane: Lane) {
    // SAFETY: the caller's promise.
    unsafe { vst1q_u8(to, lane) }
}

#[inline]
#[target_feature(enable = "neon")]
fn xor(a: Lane, b: Lane) -> Lane {
    veorq_u8(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn factor(coefficient: u8) -> Factor {
    unpack(u32::from(coefficient))
}

/// A packed coefficient is its row in the table.
#[inline]
#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
fn prepare(bytes: Lane) -> Nibbles {
    Nibbles {
        low: vandq_u8(bytes, vdupq_n_u8(15)),
        high: vshrq_n_u8::<4>(bytes),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn mul_add(sum: Lane, bytes: Nibbles, factor: Factor) -> Lane {
    let low = vqtbl1q_u8(factor.low, bytes.low);
    let high = vqtbl1q_u8(factor.high, bytes.high);
    xor(sum, xor(low, high))
}
