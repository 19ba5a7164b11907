//! A seeded link emulator: sans-I/O elements in virtual time, and a front end on TUN devices.
//!
//! A [`Link`] is one direction of a link. It has no clock and no randomness but its seed: time is an
//! argument, and the same seed makes the same decisions for the same packet indexes, whenever the
//! packets come. That makes it the middle of a protocol simulator; the front end drives the same
//! type with real packets and a real clock.
//!
//! # A simulation
//!
//! Ten packets over a link of 12 Mbit/s (1 ms for 1500 bytes) with 5 ms of delay that loses the
//! third:
//!
//! ```
//! use std::time::Duration;
//! use sphinx_link::{IpPacket, Link, LinkConfig, Loss, Rate};
//!
//! let mut link = Link::new(LinkConfig {
//!     rate: Rate::Constant(12_000_000),
//!     delay: Duration::from_millis(5),
//!     loss: Loss::Packets(vec![2]),
//!     ..LinkConfig::default()
//! })?;
//! for _ in 0..10 {
//!     link.enqueue(0, IpPacket(vec![0; 1500]));
//! }
//! let mut arrivals_ms = Vec::new();
//! while let Some(now) = link.next_event() {
//!     while let Some(delivery) = link.poll(now) {
//!         arrivals_ms.push(delivery.at / 1_000_000);
//!     }
//! }
//! assert_eq!(arrivals_ms, [6, 7, 9, 10, 11, 12, 13, 14, 15]);
//! assert_eq!(link.counters().dropped_loss, 1);
//! # Ok::<(), sphinx_link::ConfigError>(())
//! ```
//!
//! Use two links with different seeds for the two directions, or a [`Pair`] where these share a channel, and [`Datagram`] (or your own
//! [`Packet`]) for what they carry.

#![forbid(unsafe_code)]

pub mod front;
pub mod settings;

mod aqm;
mod channel;
mod config;
mod flow;
mod ip;
mod link;
mod loss;
mod packet;
mod pair;
mod policer;
mod random;
mod rate;
mod record;
mod varying;
mod waits;

use std::time::Duration;

pub use aqm::{CoDelState, Verdict};
pub use config::{
    Aqm, Blackout, CoDel, ConfigError, Corruption, Depth, DualPi2, EcnRule, Flows, GilbertElliott,
    Jitter, LinkConfig, Loss, LossTrace, Order, Periods, Policer, Radio, Rate, RateStep, RateTrace,
    Red, Reorder, Retries, Shift, Signal, Span, TraceError, Varying, Wake,
};
pub use flow::FlowKey;
pub use ip::mark_ce;
pub use link::{Delivery, Link};
pub use packet::{Datagram, IpPacket, Packet};
pub use pair::Pair;
pub use record::{Counters, Event, Record};
pub use waits::Waits;

/// A point in time: nanoseconds from an origin that the caller chooses.
pub type Time = u64;

/// A span of time in nanoseconds, at most `Time::MAX` (584 years).
fn nanos(span: Duration) -> Time {
    Time::try_from(span.as_nanos()).unwrap_or(Time::MAX)
}
