//! Packet erasure codes, their arithmetic, and the mathematics that choose
//! their parameters.
//!
//! A **block** is `n` source symbols of equal length, one after another in
//! memory that belongs to the caller. The symbols are sent as they are,
//! followed by **repair** symbols, each a sum of multiples of source symbols in
//! GF(2^8). A repair is named by a [`CodeId`] and a [`Row`], 30 bits in all;
//! both ends compute its coefficients from these and `n`. Rows do not depend on
//! how many of them are sent, so further ones can follow at any time.
//!
//! | code | rows | decoding | symbols needed for `n` |
//! | --- | --- | --- | --- |
//! | [`rlc`] | sparse or dense, random or Cauchy coefficients | elimination of the missing symbols | `n`, rarely one more |
//! | [`rs`] | Cauchy, at most `256 − n` | the same | `n` |
//! | [`window`] | dense over the latest symbols of a stream | elimination, in order as soon as the rank allows | as many as were lost |
//! | [`fft_rs`] | Reed–Solomon over GF(2^16), for up to 32 768 symbols; cargo feature `fft-rs` | transforms | `n` |
//! | [`srlt`] | XOR of a few random symbols (the Sphinx paper's code) | peeling, or maximum likelihood | see `params::srlt` |
//! | [`lt`] | XOR of symbols, robust soliton degrees; rateless | peeling, or maximum likelihood | 1.1 to 1.3 `n` |
//!
//! [`generation`] is for blocks of which the repairs are sent *first*, and which are given out in order before they are whole.
//!
//! Each module explains its rows and has an example.
//!
//! [`Encoder`] makes the repairs of all block codes and [`BlockDecoder`] and
//! [`BlockReceiver`] use them; [`WindowEncoder`] and [`WindowDecoder`] are for
//! streams, and [`span`] for streams in blocks. [`SymbolDecoder`] is what the receiving ends have in common.
//!
//! # Example
//! Protect a block against 6 % loss so that it fails in at most 1 % of the
//! cases, lose three symbols, and restore them:
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use sphinx_fec::{Added, BlockDecoder, Encoder, Repair, RowMaker, Tracker, params, rlc};
//!
//! let (n, symbol_len) = (100, 1200);
//! let source: Vec<u8> = (0..n * symbol_len).map(|i| (i * i >> 4) as u8).collect();
//!
//! // The sender.
//! let repairs = params::repair_for(n, 0.06, 0.01);
//! assert_eq!(repairs, 13);
//! let spread = rlc::spread_for(n, repairs, 0.06, 1.0, 0.01);
//! let rows: Vec<_> = rlc::first_flight(spread, repairs).collect();
//! let mut symbols = vec![0; repairs * symbol_len];
//! Encoder::new().encode_rows(n, symbol_len, &source, &rows, &mut symbols)?;
//!
//! // The receiver: bookkeeping without payload ...
//! let mut tracker = Tracker::new(n)?;
//! let mut memory = source.clone();
//! for i in 0..n {
//!     if [7, 8, 93].contains(&i) {
//!         memory[i * symbol_len..(i + 1) * symbol_len].fill(0);
//!     } else {
//!         tracker.add_source(i);
//!     }
//! }
//! assert_eq!(tracker.deficit(), 3);
//! let mut maker = RowMaker::new();
//! let mut received = Vec::new();
//! for (&(code, row), symbol) in rows.iter().zip(symbols.chunks(symbol_len)) {
//!     if tracker.add_repair(&mut maker, code, row) == Added::Innovative {
//!         received.push(Repair { code, row, symbol });
//!     }
//! }
//! assert!(tracker.is_decodable());
//!
//! // ... and the payload once it is worth it.
//! let mut decoder = BlockDecoder::new();
//! let restored = decoder.decode(n, symbol_len, &mut memory, tracker.received(), &received)?;
//! assert_eq!(restored, 3);
//! assert_eq!(memory, source);
//! # }
//! # Ok::<(), sphinx_fec::Error>(())
//! ```
//!
//! [`SymbolDecoder`] is the other way to receive: symbols go in one at a time
//! and the restored ones come out as soon as they can be had.
//!
//! # Engines
//! The arithmetic runs on the best [`Engine`] that the processor has; the
//! environment variable `SPHINX_FEC_ENGINE` forces one by name. All engines
//! compute the same bytes.
//!
//! The x86-64 engines are tested wherever the processor has them; the NEON
//! engine is tested under emulation (`make test-neon`), and its speed has not been
//! measured. Miri runs the scalar engine (`make miri`).
//!
//! # Without the standard library
//! With `default-features = false` the crate needs only `alloc`. Engines are
//! then those that the build's target features name, and `params` and
//! `rlc::spread_for` are left out.
//!
//! # Hostile input
//! Rows and symbol numbers may come from a network: no value makes a
//! [`Tracker`] or a [`BlockDecoder`] panic or grow without bound.

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

pub mod bits;
mod code;
mod decode;
mod dense;
mod echelon;
mod eliminate;
mod encode;
pub mod engine;
pub mod fft_rs;
pub mod generation;
pub mod gf256;
mod incremental;
mod inverse;
pub mod lt;
mod math;
mod ml;
#[cfg(feature = "std")]
pub mod params;
mod peeler;
mod plan;
pub mod rlc;
mod rng;
mod rows;
pub mod rs;
pub mod span;
pub mod srlt;
mod tracker;
pub mod window;

pub use code::{CodeId, Decoding, Error, Row, SYMBOLS_MAX};
pub use decode::{BlockDecoder, Repair};
pub use encode::Encoder;
pub use engine::{Engine, Term};
pub use incremental::{BlockReceiver, SymbolDecoder};
pub use rows::RowMaker;
pub use tracker::{Added, Tracker};
pub use window::{Delivery, WindowDecoder, WindowEncoder};
