//! The description of one direction of a link.

pub(crate) mod loss;
mod queue;
mod radio;
mod rate;
mod trace;
mod varying;

use std::time::Duration;

use thiserror::Error;

use crate::{nanos, rate::Limiter};

pub(crate) use self::varying::PERIOD;
pub use self::{
    loss::{GilbertElliott, Loss, LossTrace, Periods, Span},
    queue::{Aqm, CoDel, Depth, DualPi2, Policer, Red, Signal},
    radio::Radio,
    rate::{Rate, RateStep, RateTrace},
    trace::TraceError,
    varying::Varying,
};

/// The largest DSCP (RFC 2474).
const DSCP_MAX: u8 = 63;
/// Most tries of a link for a packet, after the first one.
const TRIES_MAX: u32 = 1000;

/// One direction of a link. The default is a perfect one: no limit, no delay, no loss.
///
/// Times of schedules (`rate`, `blackouts`) count from the link's time 0.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Seed of every random decision. The same seed makes the same decisions for the same packet
    /// indexes, whenever the packets come. Give the two directions of a link different seeds.
    pub seed: u64,
    /// Largest packet in IP bytes; larger ones are dropped before the queue. `None`: no limit.
    pub mtu: Option<usize>,
    /// Drops what exceeds a token bucket, before the queue.
    pub policer: Option<Policer>,
    /// How fast packets leave the queue.
    pub rate: Rate,
    /// How much may wait for the link besides the packet being sent; a packet that would exceed it
    /// is dropped (drop-tail).
    pub queue: Depth,
    /// The DSCP (0 to 63) of packets that overtake all others that wait.
    pub priority: Option<u8>,
    /// What a TCP segment that only acknowledges counts for in the queue and on the link, in bytes: headers are compressed there. `None`: what it
    /// has.
    pub compressed_ack: Option<usize>,
    /// What becomes of ECN codepoints before the queue.
    pub ecn: EcnRule,
    /// Signals congestion before the queue is full.
    pub aqm: Aqm,
    /// Packets lost by the channel, after they have used the link.
    pub loss: Loss,
    /// Times at which every packet that has just been sent is lost.
    pub blackouts: Vec<Blackout>,
    /// The blackouts come again after this time, for ever. None may end behind it.
    pub blackouts_repeat: Option<Duration>,
    /// Bit errors.
    pub corruption: Corruption,
    /// Probability (0 to 1) that a packet is delivered twice. Copies are made behind the rate limit.
    pub duplication: f64,
    /// Propagation delay: the same for every packet.
    pub delay: Duration,
    /// Random delay on top.
    pub jitter: Jitter,
    /// Delay of what the link itself sends again.
    pub retries: Retries,
    /// Delay on top that is another one from time to time.
    pub shift: Option<Shift>,
    /// A link that sleeps when nobody uses it.
    pub wake: Option<Wake>,
    /// Both directions share one channel: both have to have the same ([`Pair`](crate::Pair)).
    pub radio: Option<Radio>,
    /// Packets held back so that later ones overtake them.
    pub reorder: Reorder,
    /// Whether the packets of all flows have one series of indexes, or each flow its own.
    pub flows: Flows,
    /// How many [`Record`](crate::Record)s the link keeps until they are taken; 0 turns them off.
    pub records: usize,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            seed: 0,
            mtu: None,
            policer: None,
            rate: Rate::Unlimited,
            queue: Depth::Packets(1000),
            priority: None,
            compressed_ack: None,
            ecn: EcnRule::default(),
            aqm: Aqm::None,
            loss: Loss::None,
            blackouts: Vec::new(),
            blackouts_repeat: None,
            corruption: Corruption::default(),
            duplication: 0.0,
            delay: Duration::ZERO,
            jitter: Jitter::default(),
            retries: Retries::default(),
            shift: None,
            wake: None,
            radio: None,
            reorder: Reorder::default(),
            flows: Flows::default(),
            records: 0,
        }
    }
}

impl LinkConfig {
    /// Bits per second of the rate in the long term; none if unlimited. Steps that do not repeat end with the last
    /// one for ever.
    pub fn mean_bits_per_second(&self) -> Option<u64> {
        Limiter::new(&self.rate, self.seed).mean()
    }

    /// Bits that the rate has room for from the start until this time; none if unlimited.
    pub fn bits_until(&self, time: Duration) -> Option<u64> {
        let limiter = Limiter::new(&self.rate, self.seed);
        let is_limited = limiter.mean().is_some();
        let bits = || limiter.served(0, nanos(time)) / 1_000_000_000;
        is_limited.then(|| u64::try_from(bits()).unwrap_or(u64::MAX))
    }

    /// Checks every field; [`Link::new`](crate::Link::new) does so too.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut probabilities = vec![
            ("corruption.probability", self.corruption.probability),
            ("duplication", self.duplication),
            ("reorder.probability", self.reorder.probability),
            ("retries.probability", self.retries.probability),
        ];
        match &self.loss {
            Loss::None | Loss::Packets(_) | Loss::Trace(_) => {}
            Loss::Bernoulli(probability) => probabilities.push(("loss", *probability)),
            Loss::Bytes(0) => return Err(ConfigError::LossBytes),
            Loss::Bytes(_) => {}
            Loss::Periods(periods)
                if ![periods.good, periods.bad].iter().all(Span::is_possible) =>
            {
                return Err(ConfigError::Periods);
            }
            Loss::Periods(periods) => probabilities.extend([
                ("loss.loss_in_good", periods.loss_in_good),
                ("loss.loss_in_bad", periods.loss_in_bad),
            ]),
            Loss::GilbertElliott(model) => probabilities.extend([
                ("loss.good_to_bad", model.good_to_bad),
                ("loss.bad_to_good", model.bad_to_good),
                ("loss.loss_in_good", model.loss_in_good),
                ("loss.loss_in_bad", model.loss_in_bad),
            ]),
        }
        if let Aqm::Red(red) = &self.aqm {
            probabilities.extend([
                ("aqm.probability", red.probability),
                ("aqm.weight", red.weight),
            ]);
        }
        for (field, value) in probabilities {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Probability { field, value });
            }
        }
        if self.priority.is_some_and(|dscp| dscp > DSCP_MAX) {
            return Err(ConfigError::Priority);
        }
        if self
            .blackouts
            .iter()
            .any(|blackout| blackout.start >= blackout.end)
        {
            return Err(ConfigError::EmptyBlackout);
        }
        if let Some(repeat) = self.blackouts_repeat
            && (repeat.is_zero() || self.blackouts.iter().any(|blackout| blackout.end > repeat))
        {
            return Err(ConfigError::BlackoutRepeat);
        }
        if self.retries.limit > TRIES_MAX {
            return Err(ConfigError::Retries);
        }
        if self.shift.is_some_and(|shift| shift.every.is_zero()) {
            return Err(ConfigError::Shift);
        }
        if let Some(radio) = &self.radio {
            radio.validate()?;
        }
        self.aqm.validate()?;
        self.rate.validate()
    }
}

/// Why a [`LinkConfig`] was refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Blackouts reach past their repetition, or repeat after no time.
    #[error("blackouts must end before they repeat")]
    BlackoutRepeat,
    /// Gains that are negative or too large, or changes that are too frequent.
    #[error("DualPI2 has gains from 0 to 1000, and changes every 1 ms at most")]
    DualPi2,
    /// A blackout does not end after it starts.
    #[error("a blackout must end after it starts")]
    EmptyBlackout,
    /// Errors at a mean distance of no bytes.
    #[error("errors must be at least 1 byte apart on average")]
    LossBytes,
    /// Periods are too short, too long, or the shortest ones are longer than the longest.
    #[error("periods must be between 1 ms and 60 s, the shorter time first")]
    Periods,
    /// A number that is no DSCP.
    #[error("a DSCP is a number from 0 to {DSCP_MAX}")]
    Priority,
    /// A probability is outside 0 to 1, or not a number.
    #[error("{field} must be between 0 and 1, not {value}")]
    Probability {
        /// The field of [`LinkConfig`].
        field: &'static str,
        /// The refused value.
        value: f64,
    },
    /// A radio with impossible times or hops.
    #[error("turnaround and slot of a radio are at most 1 s each, and it has 1 to 16 hops")]
    Radio,
    /// A radio of one direction, or another one than that with which a link began.
    #[error("a radio is one channel for both directions, and stays as it is")]
    RadioOfOne,
    /// Rate steps are missing, unordered, do not begin at 0, reach past their repetition, or repeat
    /// without ever sending anything.
    #[error("rate steps must begin at 0, ascend, end before they repeat and send something then")]
    RateSteps,
    /// A link that tries too often.
    #[error("at most {TRIES_MAX} tries")]
    Retries,
    /// A delay that changes after no time.
    #[error("a delay must stay the same for some time")]
    Shift,
    /// A rate that varies has rates, times or counts outside its bounds.
    #[error(
        "rates from 10 kbit/s to 100 Gbit/s, factors from 1 to 100, 1 to 4096 packets, times from 1 ms to a minute (of \
         grants: a second), the smaller one first, pauses shorter than their routes"
    )]
    Varying,
    /// The thresholds of RED are of different kinds, or the lower one is not below the upper one.
    #[error("RED needs two thresholds of the same kind, the lower one first")]
    RedThresholds,
}

/// A time without reception: a packet is lost when its last bit leaves within `start..end`. (For an
/// outage in which packets wait instead, use a rate step of 0.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blackout {
    /// The first moment.
    pub start: Duration,
    /// The first moment behind it.
    pub end: Duration,
}

/// What a path does with ECN codepoints. Packets that are not ECN-capable pass all of these unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnRule {
    /// Leaves ECN bits alone.
    #[default]
    Keep,
    /// It clears them, as some routers do that rewrite the whole octet.
    Clear,
    /// Changes ECT(1) to ECT(0).
    Classic,
    /// Marks all packets.
    Mark,
    /// It drops packets with one, as some firewalls do; they count among [`dropped_policer`](crate::Counters::dropped_policer).
    Drop,
}

/// What the index of a packet counts. Losses, corruption, duplication, jitter and reordering depend
/// on it and on the seed only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flows {
    /// All packets that have used the link.
    #[default]
    Together,
    /// The packets of the same flow ([`FlowKey`](crate::FlowKey)) that have used the link. So the
    /// same packets of each flow are lost however the flows are mixed. Flows are told apart by
    /// protocol, addresses and the lower of the two ports, and if these are the same, by the order in
    /// which they begin: ephemeral ports have no influence.
    Apart,
}

/// Bit errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Corruption {
    /// Probability (0 to 1) that a packet is corrupted.
    pub probability: f64,
    /// Bit flips in a corrupted packet, at random places, at least 1.
    pub bits: u32,
}

/// A random delay on top of the constant one, uniform between 0 and `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// The largest extra delay.
    pub max: Duration,
    /// Whether packets may overtake each other because of it.
    pub order: Order,
}

/// Whether a delay may change the order of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A packet is held until those before it have arrived.
    #[default]
    Kept,
    /// Packets arrive when their own delay has passed.
    Free,
}

/// A link layer that sends again what its channel loses (ARQ, HARQ): a packet is lost only after its last try. With
/// [`Order::Kept`] later ones wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Retries {
    /// Probability (0 to 1) that a try fails.
    pub probability: f64,
    /// What each further try takes.
    pub interval: Duration,
    /// Tries after the first one, at most 1000; a packet whose last one fails is lost.
    pub limit: u32,
}

/// A delay on top of the others, uniform between 0 and `max`, that stays the same for some time: routes that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// How long each shift lasts.
    pub every: Duration,
    /// The largest shift.
    pub max: Duration,
}

/// A link that sleeps while nothing is sent: what comes then waits until it has woken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// It sleeps after this time without a packet.
    pub idle: Duration,
    /// How long it takes to wake up.
    pub delay: Duration,
}

/// Holds single packets back so that later ones overtake them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reorder {
    /// Probability (0 to 1) that a packet is held back.
    pub probability: f64,
    /// How long the packet is held back, on top of all other delays.
    pub hold: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(times_ms: &[u64], rate: u64, repeat_ms: Option<u64>) -> LinkConfig {
        let steps = times_ms
            .iter()
            .map(|&ms| RateStep {
                at: Duration::from_millis(ms),
                bits_per_second: rate,
            })
            .collect();
        let repeat = repeat_ms.map(Duration::from_millis);
        LinkConfig {
            rate: Rate::Steps { steps, repeat },
            ..LinkConfig::default()
        }
    }

    #[test]
    fn impossible_schedules_are_refused() {
        assert_eq!(steps(&[0, 5], 1, Some(6)).validate(), Ok(()));
        assert_eq!(steps(&[0], 0, None).validate(), Ok(()));
        for refused in [
            steps(&[], 1, None),
            steps(&[1], 1, None),
            steps(&[0, 5, 5], 1, None),
            steps(&[0, 5], 1, Some(5)),
            steps(&[0, 5], 0, Some(6)),
        ] {
            assert_eq!(refused.validate(), Err(ConfigError::RateSteps));
        }
        let start = Duration::from_secs(1);
        let blackouts = vec![Blackout { start, end: start }];
        let config = LinkConfig {
            blackouts,
            ..LinkConfig::default()
        };
        assert_eq!(config.validate(), Err(ConfigError::EmptyBlackout));
    }

    #[test]
    fn rates_have_means() {
        let at = |ms, bits_per_second| RateStep {
            at: Duration::from_millis(ms),
            bits_per_second,
        };
        let steps = |repeat| Rate::Steps {
            steps: vec![at(0, 100), at(10, 300)],
            repeat,
        };
        let of = |rate| LinkConfig {
            rate,
            ..LinkConfig::default()
        };
        for (rate, mean) in [
            (Rate::Unlimited, None),
            (Rate::Constant(7), Some(7)),
            (steps(None), Some(300)),
            (steps(Some(Duration::from_millis(40))), Some(250)),
        ] {
            assert_eq!(of(rate).mean_bits_per_second(), mean);
        }
        let until = |rate, seconds| of(rate).bits_until(Duration::from_secs(seconds));
        assert_eq!(until(Rate::Unlimited, 5), None);
        assert_eq!(until(Rate::Constant(7), 5), Some(35));
        assert_eq!(until(steps(None), 5), Some(1498));
        assert_eq!(until(steps(Some(Duration::from_millis(40))), 5), Some(1250));
    }

    #[test]
    fn impossible_errors_periods_and_priorities_are_refused() {
        let span = |shortest, longest| Span {
            shortest: Duration::from_millis(shortest),
            longest: Duration::from_millis(longest),
        };
        let periods = |good, loss_in_bad| {
            let loss = Periods {
                good,
                bad: span(1, 2),
                loss_in_good: 0.0,
                loss_in_bad,
            };
            LinkConfig {
                loss: Loss::Periods(loss),
                ..LinkConfig::default()
            }
        };
        assert_eq!(periods(span(1, 60_000), 1.0).validate(), Ok(()));
        for impossible in [span(0, 5), span(5, 4), span(1, 60_001)] {
            let refused = periods(impossible, 1.0).validate();
            assert_eq!(refused, Err(ConfigError::Periods));
        }
        assert!(periods(span(1, 1), 1.1).validate().is_err());
        let loss = LinkConfig {
            loss: Loss::Bytes(0),
            ..LinkConfig::default()
        };
        assert_eq!(loss.validate(), Err(ConfigError::LossBytes));
        let priority = LinkConfig {
            priority: Some(64),
            ..LinkConfig::default()
        };
        assert_eq!(priority.validate(), Err(ConfigError::Priority));
    }

    #[test]
    fn impossible_probabilities_are_refused() {
        for value in [-0.1, 1.1, f64::NAN] {
            let config = LinkConfig {
                loss: Loss::Bernoulli(value),
                ..LinkConfig::default()
            };
            let error = config.validate().unwrap_err();
            assert!(
                matches!(error, ConfigError::Probability { field: "loss", .. }),
                "{error}"
            );
        }
        let burst_below_one = GilbertElliott::bursts(0.05, 0.5);
        let loss = Loss::GilbertElliott(burst_below_one);
        assert!(
            LinkConfig {
                loss,
                ..LinkConfig::default()
            }
            .validate()
            .is_err()
        );
    }
}
