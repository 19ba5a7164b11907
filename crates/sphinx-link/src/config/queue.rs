//! What may wait, and what is done about waiting.

use std::time::Duration;

use super::ConfigError;

/// Largest gain of [`DualPi2`], and shortest time between its changes.
const GAIN_MAX: f64 = 1000.0;
const TUPDATE_MIN: Duration = Duration::from_millis(1);

/// An amount of waiting packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// So many IP bytes.
    Bytes(u64),
    /// So many packets.
    Packets(u64),
    /// What the link sends in this time at its present rate (during a pause: at the highest rate of
    /// its schedule).
    Time(Duration),
}

/// Active queue management: signals congestion before the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Aqm {
    /// No queue management.
    #[default]
    None,
    /// Signals when packets have waited too long for too long.
    CoDel(CoDel),
    /// Signals at random, more often the longer the queue is on average.
    Red(Red),
    /// Signals on every packet that finds more than this waiting.
    Step {
        /// What may wait without a signal.
        threshold: Depth,
        /// How congestion is signalled.
        signal: Signal,
    },
    /// Two queues, of which scalable flows find one short, coupled so that all flows have like shares.
    DualPi2(DualPi2),
}

impl Aqm {
    /// Marks every ECN-capable packet that finds more than this waiting; others pass unmarked.
    pub fn mark_above(threshold: Depth) -> Aqm {
        Aqm::Step {
            threshold,
            signal: Signal::MarkOnly,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if let Aqm::DualPi2(dual) = self {
            return dual.validate();
        }
        let Aqm::Red(red) = self else {
            return Ok(());
        };
        let ascends = match (red.min, red.max) {
            (Depth::Bytes(min), Depth::Bytes(max)) => min < max,
            (Depth::Packets(min), Depth::Packets(max)) => min < max,
            (Depth::Time(min), Depth::Time(max)) => min < max,
            _ => false,
        };
        match ascends {
            true => Ok(()),
            false => Err(ConfigError::RedThresholds),
        }
    }
}

/// Controlled delay (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// The waiting time that is acceptable for long.
    pub target: Duration,
    /// How long it may be exceeded: somewhat more than a usual round trip.
    pub interval: Duration,
    /// How congestion is signalled.
    pub signal: Signal,
}

impl Default for CoDel {
    /// 5 ms and 100 ms, dropping: sections 3.2 and 4.4 of the RFC.
    fn default() -> CoDel {
        CoDel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            signal: Signal::Drop,
        }
    }
}

/// Random early detection (Floyd and Jacobson 1993, "gentle": the probability goes on rising to 1
/// between `max` and twice `max`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Up to this average there is no signal.
    pub min: Depth,
    /// At this average the probability is `probability`. Of the same kind as `min`, and more.
    pub max: Depth,
    /// The probability (0 to 1) at `max`.
    pub probability: f64,
    /// Weight (0 to 1) of a new packet in the moving average.
    pub weight: f64,
    /// How congestion is signalled.
    pub signal: Signal,
}

impl Red {
    /// With a probability of 0.1 at `max`, a weight of 0.002, and drops.
    pub fn new(min: Depth, max: Depth) -> Red {
        Red {
            min,
            max,
            probability: 0.1,
            weight: 0.002,
            signal: Signal::Drop,
        }
    }
}

/// The coupled queues of RFC 9332: ECT(1) and CE wait in the one of low latency, all others in the classic one. Classic packets that are
/// not ECN-capable are dropped where others are marked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DualPi2 {
    /// The classic queue's delay that is acceptable for long.
    pub target: Duration,
    /// From this delay on, the queue of low latency marks all that does not wait alone.
    pub step: Duration,
    /// How often the base probability changes.
    pub tupdate: Duration,
    /// Gain of what the delay is above the target, 1/s, at least 0.
    pub alpha: f64,
    /// Gain of what the delay has grown by, 1/s, at least 0.
    pub beta: f64,
    /// k: how many times the base probability that of marks of low latency is, at least 0.
    pub coupling: f64,
}

impl Default for DualPi2 {
    /// Target 15 ms, a step at 1 ms, every 16 ms, gains for round trips up to 100 ms, k = 2 (appendix A.1 of the RFC).
    fn default() -> DualPi2 {
        DualPi2 {
            target: Duration::from_millis(15),
            step: Duration::from_millis(1),
            tupdate: Duration::from_millis(16),
            alpha: 0.16,
            beta: 3.2,
            coupling: 2.0,
        }
    }
}

impl DualPi2 {
    fn validate(&self) -> Result<(), ConfigError> {
        let gains = [self.alpha, self.beta, self.coupling];
        let can_be = |gain: &f64| (0.0..=GAIN_MAX).contains(gain);
        match gains.iter().all(can_be) && self.tupdate >= TUPDATE_MIN {
            true => Ok(()),
            false => Err(ConfigError::DualPi2),
        }
    }
}

/// How a queue signals congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signal {
    /// Drops the packet.
    #[default]
    Drop,
    /// Marks it "congestion experienced" if it is ECN-capable, drops it otherwise (RFC 3168).
    Mark,
    /// Marks it if it is ECN-capable, and lets it pass otherwise.
    MarkOnly,
}

/// A token-bucket policer: no queue of its own, excess is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Bits per second at the IP layer.
    pub bits_per_second: u64,
    /// What may pass at once after a silence. Below the size of a packet, nothing ever passes.
    pub burst_bytes: usize,
}
