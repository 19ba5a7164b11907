//! `rs`: Reed–Solomon over GF(2^8) as a systematic Cauchy code, for at most 256
//! symbols in all.
//!
//! Any `n` symbols restore the block, always. The price is that every repair
//! costs work on every source symbol, and that there are at most `256 − n`
//! repairs.
//!
//! # Example
//! A block of four symbols survives the loss of any two of six packets:
//!
//! ```
//! use sphinx_fec::{BlockDecoder, Encoder, Repair, rs};
//!
//! let source = *b"four symbols"; // of three bytes each
//! let rows: Vec<_> = rs::first_flight(4, 2).collect();
//! let mut symbols = [0; 6];
//! Encoder::new().encode_rows(4, 3, &source, &rows, &mut symbols)?;
//!
//! // Symbols 0 and 2 are lost: bits 1 and 3 say what arrived.
//! let mut memory = *b"???r s???ols";
//! let repairs: Vec<_> = rows
//!     .iter()
//!     .zip(symbols.chunks(3))
//!     .map(|(&(code, row), symbol)| Repair { code, row, symbol })
//!     .collect();
//! BlockDecoder::new().decode(4, 3, &mut memory, &[0b1010], &repairs)?;
//! assert_eq!(memory, source);
//! # Ok::<(), sphinx_fec::Error>(())
//! ```
//!
//! # Rows
//! The 24-bit row number is the number of the repair, from 0 to `255 − n`. Row
//! `i` has coefficient `1 / (i + (255 − j))` for symbol `j`; the sum is the
//! field's, an XOR.

use crate::code::{CodeId, Row};
use crate::dense;

/// Repairs that a block of `n` symbols can have.
#[must_use]
pub fn repairs_max(n: usize) -> usize {
    dense::cauchy_row_count(n)
}

/// The row of a block's `i`-th repair; `None` behind the last.
#[must_use]
pub fn row(n: usize, i: usize) -> Option<Row> {
    (i < repairs_max(n)).then(|| Row::from_low_bits(i as u32))
}

/// The repair rows of a block's first flight, in order; fewer than asked for if
/// the code has no more.
pub fn first_flight(n: usize, repairs: usize) -> impl Iterator<Item = (CodeId, Row)> {
    (0..repairs).map_while(move |i| Some((CodeId::Rs, row(n, i)?)))
}
