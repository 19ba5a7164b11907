//! Two Sphinx sessions and a link in virtual time.
//!
//! A [`Scenario`] is everything that makes a run: the links of both directions, what the applications
//! at both ends do, the settings of the sessions, and a seed. [`Scenario::build`] joins two [`End`]s,
//! each a `sphinx_proto::Session` with the smallest driver that moves real bytes, by two
//! `sphinx_link::Link`s into a [`Pair`], which jumps from event to event. Coding is really done and
//! every byte that arrives is compared, but takes no time: what comes out is what the protocol does,
//! however fast the link and however slow the machine. Every run repeats exactly.
//!
//! ```
//! use sphinx_link::Loss;
//! use sphinx_sim::{SEC, Scenario, link};
//!
//! // 1 MB over 100 Mbit/s, a round trip of 20 ms and 6 % loss.
//! let scenario = Scenario::new(link(100, 20, Loss::Bernoulli(0.06), 1)).bulk(1_000_000);
//! let mut pair = scenario.build();
//! pair.must_transfer(SEC);
//! assert_eq!(pair.server().bytes_received, 1_000_000);
//! ```
//!
//! `SPHINX_SIM_TRACE=MS` prints the client's state every so many milliseconds.

#![forbid(unsafe_code)]

mod data;
mod datagram;
mod end;
mod pair;
mod plan;
mod scenario;

pub use data::Rng;
pub use datagram::{Datagram, IP_OVERHEAD};
pub use end::End;
pub use pair::{ADDRESSES, Pair, Tap};
pub use plan::{Plan, Reader, Write};
pub use scenario::{Scenario, link};

use sphinx_proto::Nanos;

/// A millisecond.
pub const MS: Nanos = 1_000_000;
/// A second.
pub const SEC: Nanos = 1_000_000_000;
