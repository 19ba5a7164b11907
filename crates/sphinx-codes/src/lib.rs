//! What the erasure codes of `sphinx-fec` cost and achieve.
//!
//! * [`plan`]: what each code would send for a loss rate, and how often that
//!   would not suffice;
//! * [`simulate`]: seeded Monte-Carlo runs over independent and bursty losses;
//! * [`mod@bench`]: coding speed on one core, beside other crates with the cargo
//!   feature `peers`;
//! * [`figures`]: the paper's figures 7 and 8 as CSV and SVG;
//! * [`cli`]: all of these as the subcommand `codes`.
//!
//! All functions return plain structs; nothing here is needed to use the codes.

#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod figures;
pub mod loss;
#[cfg(feature = "peers")]
mod peers;
pub mod plan;
pub mod simulate;
pub mod svg;
