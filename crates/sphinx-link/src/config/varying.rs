//! Rates that vary at random, as those of shared and moving links do.

use std::time::Duration;

use super::{ConfigError, Span};

/// After this time the same rates come again.
pub(crate) const PERIOD: Duration = Duration::from_secs(120);
/// Rates above this are no links.
const RATE_MAX: u64 = 100_000_000_000;
/// The largest factor of a fade, packets of a turn, and time between grants or routes.
const FACTOR_MAX: f64 = 100.0;
const PACKETS_MAX: u32 = 4096;

/// A rate that varies at random: the link's seed says how. After two minutes the same comes again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Varying {
    /// A radio whose channel fades: the logarithm of the rate wanders around its mean (an Ornstein–Uhlenbeck
    /// process), in steps of a millisecond.
    Fading {
        /// Bits per second, half of the time more and half of the time less; 10 kbit/s to 100 Gbit/s.
        median: u64,
        /// A third of the time the rate is above the median times this, or below it divided by this; 1 to 100.
        factor: f64,
        /// Within this time the rate forgets what it was (the autocorrelation falls to 1/e); 1 ms to a minute.
        time: Duration,
        /// A scheduler lets the link send so often, all that has become possible since; 1 ms to a second.
        grant: Duration,
    },
    /// A medium that is shared by turns, such as Wi-Fi: so many packets go together, then others have it for a while.
    Turns {
        /// From one turn to the next.
        gap: Span,
        /// Packets of 1500 bytes (or as many bytes of smaller ones) in a turn; 1 to 4096.
        packets: u32,
    },
    /// A path by a satellite that is another one every so often, with another rate, after a pause in which packets wait.
    Routes {
        /// The slowest and the fastest rate, in bits per second, the logarithm uniform between them.
        rates: (u64, u64),
        /// How long each lasts, the pause before it included; 1 s to a minute.
        every: Duration,
        /// The pause, which is shorter than `every`.
        pause: Span,
    },
}

impl Varying {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let second = Duration::from_secs(1);
        let is_rate = |rate: &u64| (10_000..=RATE_MAX).contains(rate);
        let milliseconds =
            |time: &Duration, longest| (Duration::from_millis(1)..=longest).contains(time);
        let possible = match self {
            Varying::Fading {
                median,
                factor,
                time,
                grant,
            } => {
                is_rate(median)
                    && (1.0..=FACTOR_MAX).contains(factor)
                    && milliseconds(time, 60 * second)
                    && milliseconds(grant, second)
            }
            Varying::Turns { gap, packets } => {
                gap.is_possible() && (1..=PACKETS_MAX).contains(packets)
            }
            Varying::Routes {
                rates: (slowest, fastest),
                every,
                pause,
            } => {
                is_rate(slowest)
                    && is_rate(fastest)
                    && slowest <= fastest
                    && (second..=60 * second).contains(every)
                    && pause.is_possible()
                    && pause.longest < *every
            }
        };
        possible.then_some(()).ok_or(ConfigError::Varying)
    }
}
