//! Packet agents that help TCP which nobody changes, over links that lose packets.
//!
//! An [`Agent`] sits in the path between fixed hosts and mobile ones, behind a lossy hop. It is sans-I/O:
//! packets, their direction and the time go in; packets come out, at once, later or never. Two laws hold
//! for all it does, and [`Laws`] checks them from outside:
//!
//! 1. No agent renumbers a stream or acknowledges what the receiver has not. So it may vanish between
//!    any two packets, and a connection goes on without it.
//! 2. What it does not fully understand passes verbatim, in order.
//!
//! # Driving it
//!
//! - **Input**: [`Agent::handle_packet`], [`Agent::handle_timeout`].
//! - **Output**: call [`Agent::poll_output`] after every input until it returns `None`. Then call
//!   `handle_timeout` at [`Agent::next_timeout`], or after further input.
//! - **Time** is nanoseconds from any origin, and should never go backwards; an earlier time counts as
//!   the latest one seen.
//!
//! In front of a thin link it drops acknowledgements that later ones make needless ([`acks`]). An agent of the machine that sends them lets fewer
//! go on where that one says that they wait ([`Agent::poll_mark`], [`Agent::handle_mark`]).
//!
//! Behind such a link it reconstructs them ([`returning`]), and beside a sender that does not pace its segments it does that
//! ([`Config::pace`]).
//!
//! In front of the receiver of uploads it lowers windows, so that they do not fill their senders' links ([`rsfc`]).
//!
//! Behind the sender of thin streams an agent repeats unacknowledged bytes instead ([`rdb`], [`Stage`]).
//!
//! Agents on both sides of the hop help uploads too: one reports what the hop has lost
//! ([`Agent::poll_report`]), the other one repairs it ([`Agent::handle_report`]). Agents of different hops hand flows to each
//! other ([`handoff`]).
//!
//! The same calls give the same packets. [`attach`] drives an agent with the traffic of a machine,
//! [`replay`] with a capture.

#![forbid(unsafe_code)]

pub mod acks;
mod agent;
pub mod attach;
mod channel;
mod config;
mod delay;
pub mod doctor;
pub mod eln;
mod flow;
pub mod guard;
pub mod handoff;
mod laws;
mod network;
mod numbers;
mod pace;
mod queue;
mod radio;
mod ranges;
pub mod rdb;
pub mod replay;
pub mod returning;
pub mod rsfc;
mod sealed;
mod segment;
mod sequence;
mod snoop;
mod stats;
mod status;
mod table;
mod tun;

pub use agent::{Agent, Cause, Output};
pub use config::{Config, Place, Side, Stage};
pub use flow::{Bypass, FlowKey};
pub use laws::Laws;
pub use network::{Match, Network, Unreadable};
pub use radio::Radio;
pub use sealed::Key;
pub use snoop::{Profile, Release};
pub use stats::{Counts, FlowReport};
pub use status::Status;

/// A point in time: nanoseconds from an origin that the caller chooses.
pub type Time = u64;

/// Nanoseconds of a millisecond.
const MS: Time = 1_000_000;
