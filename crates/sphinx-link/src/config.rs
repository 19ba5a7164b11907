//! The description of one direction of a link.

use std::time::Duration;

use thiserror::Error;

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
    /// Marks "congestion experienced" on ECN-capable packets that find more than this waiting.
    /// Others pass unmarked.
    pub mark: Option<Depth>,
    /// Packets lost by the channel, after they have used the link.
    pub loss: Loss,
    /// Times at which every packet that has just been sent is lost.
    pub blackouts: Vec<Blackout>,
    /// Bit errors.
    pub corruption: Corruption,
    /// Probability (0 to 1) that a packet is delivered twice. Copies are made behind the rate limit.
    pub duplication: f64,
    /// Propagation delay: the same for every packet.
    pub delay: Duration,
    /// Random delay on top.
    pub jitter: Jitter,
    /// Packets held back so that later ones overtake them.
    pub reorder: Reorder,
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
            mark: None,
            loss: Loss::None,
            blackouts: Vec::new(),
            corruption: Corruption::default(),
            duplication: 0.0,
            delay: Duration::ZERO,
            jitter: Jitter::default(),
            reorder: Reorder::default(),
            records: 0,
        }
    }
}

impl LinkConfig {
    /// Checks every field; [`Link::new`](crate::Link::new) does so too.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut probabilities = vec![
            ("corruption.probability", self.corruption.probability),
            ("duplication", self.duplication),
            ("reorder.probability", self.reorder.probability),
        ];
        match &self.loss {
            Loss::None | Loss::Packets(_) => {}
            Loss::Bernoulli(probability) => probabilities.push(("loss", *probability)),
            Loss::GilbertElliott(model) => probabilities.extend([
                ("loss.good_to_bad", model.good_to_bad),
                ("loss.bad_to_good", model.bad_to_good),
                ("loss.loss_in_good", model.loss_in_good),
                ("loss.loss_in_bad", model.loss_in_bad),
            ]),
        }
        for (field, value) in probabilities {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Probability { field, value });
            }
        }
        if self
            .blackouts
            .iter()
            .any(|blackout| blackout.start >= blackout.end)
        {
            return Err(ConfigError::EmptyBlackout);
        }
        self.rate.validate()
    }
}

/// Why a [`LinkConfig`] was refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A blackout does not end after it starts.
    #[error("a blackout must end after it starts")]
    EmptyBlackout,
    /// A probability is outside 0 to 1, or not a number.
    #[error("{field} must be between 0 and 1, not {value}")]
    Probability {
        /// The field of [`LinkConfig`].
        field: &'static str,
        /// What it was.
        value: f64,
    },
    /// Rate steps are missing, unordered, do not begin at 0, reach past their repetition, or repeat
    /// without ever sending anything.
    #[error("rate steps must begin at 0, ascend, end before they repeat and send something then")]
    RateSteps,
}

/// A rate in bits per second at the IP layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Packets leave at once; nothing ever waits in the queue.
    #[default]
    Unlimited,
    /// Always the same rate; 0 sends nothing.
    Constant(u64),
    /// A rate that changes at given times.
    Steps {
        /// Ascending in time, the first at 0; the last one stays.
        steps: Vec<RateStep>,
        /// Begins again at this time, for ever. Must lie behind the last step.
        repeat: Option<Duration>,
    },
}

impl Rate {
    fn validate(&self) -> Result<(), ConfigError> {
        let Rate::Steps { steps, repeat } = self else {
            return Ok(());
        };
        let begins_at_zero = steps.first().is_some_and(|step| step.at.is_zero());
        let ascends = steps.windows(2).all(|pair| pair[0].at < pair[1].at);
        let repeats = repeat.is_none_or(|repeat| {
            steps.last().is_some_and(|step| step.at < repeat)
                && steps.iter().any(|step| step.bits_per_second > 0)
        });
        if begins_at_zero && ascends && repeats {
            Ok(())
        } else {
            Err(ConfigError::RateSteps)
        }
    }
}

/// A rate from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStep {
    /// When it begins.
    pub at: Duration,
    /// Bits per second at the IP layer; 0 is a pause during which packets wait.
    pub bits_per_second: u64,
}

/// An amount of waiting packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// IP bytes.
    Bytes(u64),
    /// Packets.
    Packets(u64),
    /// What the link sends in this time at its present rate (during a pause: at the highest rate of
    /// its schedule).
    Time(Duration),
}

/// A token-bucket policer: no queue of its own, excess is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Bits per second at the IP layer.
    pub bits_per_second: u64,
    /// What may pass at once after a silence. Below the size of a packet, nothing ever passes.
    pub burst_bytes: usize,
}

/// Which packets the channel loses. Indexes count the packets that have used the link, from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability (0 to 1), independently.
    Bernoulli(f64),
    /// In bursts.
    GilbertElliott(GilbertElliott),
    /// Exactly these indexes, in any order.
    Packets(Vec<u64>),
}

/// A channel with two states and a loss probability in each. The state may change after every
/// packet; the first state is drawn with the long-term share of time of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability to go from the good to the bad state after a packet.
    pub good_to_bad: f64,
    /// Probability to go back after a packet; its inverse is the mean stay in the bad state.
    pub bad_to_good: f64,
    /// Loss probability in the good state.
    pub loss_in_good: f64,
    /// Loss probability in the bad state.
    pub loss_in_bad: f64,
}

impl GilbertElliott {
    /// Bursts in which everything is lost, and nothing between them: `mean_loss` of all packets
    /// (0 to below 1), `mean_burst` packets in a row (1 or more) on average.
    pub fn bursts(mean_loss: f64, mean_burst: f64) -> GilbertElliott {
        let bad_to_good = 1.0 / mean_burst;
        GilbertElliott {
            good_to_bad: bad_to_good * mean_loss / (1.0 - mean_loss),
            bad_to_good,
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
        }
    }

    /// Long-term share of lost packets.
    pub fn mean_loss(&self) -> f64 {
        let bad = self.time_in_bad();
        bad * self.loss_in_bad + (1.0 - bad) * self.loss_in_good
    }

    /// Long-term share of packets sent in the bad state.
    pub(crate) fn time_in_bad(&self) -> f64 {
        let changes = self.good_to_bad + self.bad_to_good;
        if changes > 0.0 {
            self.good_to_bad / changes
        } else {
            0.0
        }
    }
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

/// Holds single packets back so that later ones overtake them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reorder {
    /// Probability (0 to 1) that a packet is held back.
    pub probability: f64,
    /// How long, on top of all other delays.
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
