//! The application protocol `perf`: measured streams in either direction, bulk or paced blocks.
//!
//! `docs/perf.md` specifies it.

mod bulk;
pub(crate) mod client;
mod clock;
mod control;
mod data;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod pattern;
mod samples;
pub(crate) mod server;
mod tasks;

#[cfg(test)]
mod tests;

pub(crate) use control::{
    BLOCK_BYTES_MIN, DATAGRAM_BYTES_MAX, Direction, Limit, Messages, PACED_STREAMS_MAX, Pacing,
    Report,
};

use std::time::Duration;

use sphinx_netdev::usage;

use crate::channel::{Channel, reason};
use crate::failure::{Outcome, close_code};
use crate::report::{Done, Role};
use clock::ClockOffset;
use control::Plan;
use data::{Received, Sent};

/// The first round trips of a paced run are reported apart: this many.
const WARMUP_ROUND_TRIPS: u32 = 10;

/// What one end has measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) done: Done,
    /// What the other end has measured.
    pub(crate) peer: Report,
}

/// Sends the plan's data on new streams; the numbers of this end.
fn send_data<C: Channel>(
    channel: &C,
    plan: &Plan,
    progress: &crate::report::Progress,
    cpu_before: Duration,
) -> Outcome<Done> {
    let Sent { bytes, stats } = data::send(channel, plan, progress)?;
    Ok(Done::new(
        Role::Sender,
        bytes,
        stats,
        usage::cpu_time().saturating_sub(cpu_before),
    ))
}

/// Receives the plan's data on the peer's next streams; the numbers of this end.
fn receive_data<C: Channel>(
    channel: &C,
    plan: &Plan,
    offset: ClockOffset,
    progress: &crate::report::Progress,
    cpu_before: Duration,
) -> Outcome<Done> {
    let Received {
        bytes,
        stats,
        blocks,
    } = data::receive(channel, plan, offset, progress)?;
    let cpu = usage::cpu_time().saturating_sub(cpu_before);
    let mut done = Done::new(Role::Receiver, bytes, stats, cpu);
    done.block_ms = blocks;
    Ok(done)
}

/// Tells the peer why this end gives up.
fn close_on_failure<C: Channel, T>(channel: &C, outcome: Outcome<T>) -> Outcome<T> {
    outcome.map_err(|failure| {
        let failure = reason(channel, failure);
        channel.close(close_code(failure.kind), &failure.message);
        failure
    })
}
