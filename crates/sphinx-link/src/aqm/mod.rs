//! Active queue management: who gets a signal of congestion.

mod codel;
mod dualpi2;
mod red;

pub use codel::{CoDelState, Verdict};
pub(crate) use dualpi2::{Band, DualPi2State, Heads, Leaving};
pub(crate) use red::RedState;

use crate::config::{Aqm, Depth, Signal};

/// The management under way.
#[derive(Clone, Debug)]
pub(crate) enum AqmState {
    None,
    /// Decides about packets that leave the queue.
    CoDel(CoDelState, Signal),
    /// Decides about packets that come, by the average of what waits, in the unit of `Depth`.
    Red(RedState, Signal),
    /// Decides about packets that come, by what waits.
    Step(Depth, Signal),
    /// Has two queues, and decides about packets that leave them.
    DualPi2(DualPi2State),
}

impl AqmState {
    /// `aqm` must have passed validation.
    pub(crate) fn new(aqm: &Aqm, seed: u64) -> AqmState {
        match aqm {
            Aqm::None => AqmState::None,
            Aqm::CoDel(codel) => AqmState::CoDel(CoDelState::new(codel), codel.signal),
            Aqm::Red(red) => {
                let (min, max) = (number(red.min), number(red.max));
                AqmState::Red(RedState::new(red, min, max, seed), red.signal)
            }
            Aqm::Step { threshold, signal } => AqmState::Step(*threshold, *signal),
            Aqm::DualPi2(dual) => AqmState::DualPi2(DualPi2State::new(dual, seed)),
        }
    }
}

/// A depth in its own unit: bytes, packets or nanoseconds.
fn number(depth: Depth) -> f64 {
    match depth {
        Depth::Bytes(count) | Depth::Packets(count) => count as f64,
        Depth::Time(span) => span.as_nanos() as f64,
    }
}
