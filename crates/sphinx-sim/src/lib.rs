//! Two Sphinx sessions and a link in virtual time.
//!
//! A [`Scenario`] is everything that makes a run: the links of both directions, what the applications
//! at both ends do, the settings of the sessions, and a seed. [`Scenario::build`] joins two [`End`]s by two
//! `sphinx_link::Link`s into a [`Pair`], which jumps from event to event. An end is what ships, a
//! `sphinx_driver::Driver` with its queues and slicers, under an application that writes, reads and waits as
//! threads would. Coding is really done and every byte that arrives is compared, but takes no time, unless
//! the plan says how long jobs take: what comes out is what the protocol does, however fast the link and
//! however slow the machine. Every run repeats exactly. Packets are not sealed but carry a checksum
//! ([`Plain`]), unless [`Scenario::build_with`] gives them keys. Every time is one since the beginning of the run, where the clocks of
//! both ends have their origin.
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

mod app;
mod arrivals;
mod data;
mod end;
mod held;
mod late;
pub mod linux;
mod pair;
mod plain;
mod plan;
mod processor;
mod scenario;
mod shared;

pub use app::{Carried, Heard, Local, LocalSlicer, Say, Signal};
pub use data::Rng;
pub use end::End;
pub use held::{Held, Waits};
pub use late::Late;
pub use pair::{ADDRESSES, Pair, Tap, further_address};
pub use plain::Plain;
pub use plan::{Messages, Plan, ReadOrder, Reader, Ways, Write};
pub use processor::Processor;
pub use scenario::{Scenario, far, link};
pub use shared::Shared;

use sphinx_proto::Nanos;

/// Bytes of the IPv4 and UDP headers.
pub const IP_OVERHEAD: u16 = 28;

/// A millisecond.
pub const MS: Nanos = 1_000_000;
/// A second.
pub const SEC: Nanos = 1_000_000_000;
