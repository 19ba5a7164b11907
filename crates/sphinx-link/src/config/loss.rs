//! Which packets the channel loses.

use std::{sync::Arc, time::Duration};

use super::{TraceError, trace};

/// Which packets the channel loses. Indexes count the packets that have used the link, from 0, all
/// together or flow by flow ([`Flows`](crate::Flows)).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// No losses.
    #[default]
    None,
    /// Each with this probability (0 to 1), independently.
    Bernoulli(f64),
    /// In bursts.
    GilbertElliott(GilbertElliott),
    /// Errors of the channel, so many bytes from one to the next on average (at least 1), at exponentially
    /// distributed distances: a packet of n bytes is lost with probability 1 − e^(−n/mean).
    Bytes(u64),
    /// In good and bad periods that alternate in time.
    Periods(Periods),
    /// Exactly these indexes, in any order.
    Packets(Vec<u64>),
    /// As recorded on a real link.
    Trace(LossTrace),
}

impl Loss {
    /// Long-term share of lost packets; 0 for a list of packets. With [`Loss::Bytes`], of packets of 1500
    /// bytes; with [`Loss::Periods`], of packets at even distances.
    pub fn mean(&self) -> f64 {
        match self {
            Loss::None | Loss::Packets(_) => 0.0,
            Loss::Bernoulli(probability) => *probability,
            Loss::GilbertElliott(model) => model.mean_loss(),
            Loss::Bytes(mean) => per_byte(*mean, 1500),
            Loss::Periods(periods) => periods.mean_loss(),
            Loss::Trace(trace) => trace.mean_loss(),
        }
    }
}

/// Probability that an error hits one of so many bytes.
pub(crate) fn per_byte(mean: u64, bytes: usize) -> f64 {
    -(-(bytes as f64) / mean as f64).exp_m1()
}

/// A channel that is good for a while, then bad for a while, and so on, whatever is sent: a different loss
/// probability in each. All flows meet the same periods, which depend on the link's seed and begin with a good one.
///
/// They begin anew every 2^40 ns (18 minutes), so that any time can be reached in bounded work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Periods {
    /// How long good periods are.
    pub good: Span,
    /// How long bad periods are.
    pub bad: Span,
    /// Loss probability in good periods.
    pub loss_in_good: f64,
    /// Loss probability in bad periods.
    pub loss_in_bad: f64,
}

impl Periods {
    /// Long-term share of lost packets that are sent at even distances.
    pub fn mean_loss(&self) -> f64 {
        let (good, bad) = (self.good.mean_seconds(), self.bad.mean_seconds());
        (good * self.loss_in_good + bad * self.loss_in_bad) / (good + bad)
    }
}

/// Durations whose logarithm is uniform between those of two others; always the same where these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Shortest time, at least 1 ms.
    pub shortest: Duration,
    /// Longest time, not less than `shortest`, at most a minute.
    pub longest: Duration,
}

impl Span {
    /// The one that a uniform number from 0 to 1 stands for.
    pub(crate) fn at(&self, uniform: f64) -> Duration {
        self.shortest.mul_f64(self.ratio().powf(uniform))
    }

    fn ratio(&self) -> f64 {
        self.longest.as_secs_f64() / self.shortest.as_secs_f64()
    }

    fn mean_seconds(&self) -> f64 {
        match self.shortest == self.longest {
            true => self.shortest.as_secs_f64(),
            false => (self.longest - self.shortest).as_secs_f64() / self.ratio().ln(),
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
        shortest <= self.shortest && self.shortest <= self.longest && self.longest <= longest
    }
}

/// A recorded series of losses, one verdict per packet, which begins again at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossTrace {
    /// Whether each packet is lost; not empty.
    lost: Arc<[bool]>,
}

impl LossTrace {
    /// Reads a `0` for each packet that arrives and a `1` for each one that is lost. Spaces, line
    /// breaks and what follows a `#` are ignored.
    ///
    /// # Errors
    ///
    /// [`TraceError`], with the line.
    pub fn parse(text: &str) -> Result<LossTrace, TraceError> {
        let mut lost = Vec::new();
        for (line, content) in trace::lines(text) {
            for found in content.chars().filter(|letter| !letter.is_whitespace()) {
                lost.push(match found {
                    '0' => false,
                    '1' => true,
                    _ => return Err(TraceError::NotAVerdict { line, found }),
                });
            }
        }
        match lost.is_empty() {
            true => Err(TraceError::Empty),
            false => Ok(LossTrace { lost: lost.into() }),
        }
    }

    /// Number of packets after which it begins again.
    pub fn packets(&self) -> usize {
        self.lost.len()
    }

    /// Share of lost packets.
    pub fn mean_loss(&self) -> f64 {
        self.lost.iter().filter(|&&lost| lost).count() as f64 / self.packets() as f64
    }

    /// The verdict on the packet with this index.
    pub(crate) fn loses(&self, index: u64) -> bool {
        self.lost[(index % self.lost.len() as u64) as usize]
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_trace_is_read() {
        let trace = LossTrace::parse("0 0 1 # three\n\n10\n").unwrap();
        let verdicts: Vec<bool> = (0..7).map(|index| trace.loses(index)).collect();
        assert_eq!(verdicts, [false, false, true, true, false, false, false]);
        assert_eq!((trace.packets(), trace.mean_loss()), (5, 0.4));
    }

    #[test]
    fn a_bad_loss_trace_is_refused_with_its_line() {
        for (text, message) in [
            ("\n# 1\n", "it is empty"),
            (
                "0\n0102",
                "line 2: '2' is neither 0 (arrives) nor 1 (is lost)",
            ),
        ] {
            assert_eq!(LossTrace::parse(text).unwrap_err().to_string(), message);
        }
    }
}
