//! How fast packets leave.

use std::{sync::Arc, time::Duration};

use super::{ConfigError, TraceError, Varying, trace};
use crate::Time;

/// A rate at the IP layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rate {
    /// Packets leave at once; nothing ever waits in the queue.
    #[default]
    Unlimited,
    /// Always the same rate in bits per second; 0 sends nothing.
    Constant(u64),
    /// A rate that changes at given times.
    Steps {
        /// Ascending in time, the first at 0; the last one stays.
        steps: Vec<RateStep>,
        /// Begins again at this time, for ever. Must lie behind the last step.
        repeat: Option<Duration>,
    },
    /// Opportunities to send, as recorded on a real link.
    Trace(RateTrace),
    /// Changes at random.
    Varying(Varying),
}

impl Rate {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let (steps, repeat) = match self {
            Rate::Unlimited | Rate::Constant(_) | Rate::Trace(_) => return Ok(()),
            Rate::Varying(varying) => return varying.validate(),
            Rate::Steps { steps, repeat } => (steps, repeat),
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
    /// When the rate begins to hold.
    pub at: Duration,
    /// Bits per second at the IP layer; 0 is a pause during which packets wait.
    pub bits_per_second: u64,
}

/// A recorded series of opportunities to send 1500 bytes each, in the format of mahimahi (Netravali et
/// al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015, after Saturator, NSDI 2013).
///
/// Several small packets share an opportunity, a large one takes several. What the queue cannot fill
/// is lost. An opportunity serves packets that were there before it. Behind its last opportunity the
/// trace begins again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateTrace {
    /// (offset in the period, from above 0 up to the period, ascending; opportunities until then,
    /// those at this offset included)
    pub(crate) opportunities: Arc<[(Time, u64)]>,
}

impl RateTrace {
    /// Bytes per opportunity.
    pub const OPPORTUNITY_BYTES: usize = 1500;

    /// Reads one time in milliseconds per line, each an opportunity, none before the one above it.
    /// Empty lines and what follows a `#` are ignored.
    ///
    /// # Errors
    ///
    /// [`TraceError`], with the line.
    pub fn parse(text: &str) -> Result<RateTrace, TraceError> {
        let mut times = Vec::new();
        let mut latest = 0;
        for (line, content) in trace::lines(text) {
            let problem = || TraceError::NotATime {
                line,
                found: trace::excerpt(content),
            };
            let milliseconds: Time = content.parse().map_err(|_| problem())?;
            let time = milliseconds.checked_mul(1_000_000).ok_or_else(problem)?;
            if time < latest {
                return Err(TraceError::Backwards { line });
            }
            latest = time;
            times.push(time);
        }
        if latest == 0 {
            return Err(match times.is_empty() {
                true => TraceError::Empty,
                false => TraceError::NoDuration,
            });
        }
        Ok(RateTrace::new(&times, latest))
    }

    /// `times` ascend to `period`, which is not 0.
    fn new(times: &[Time], period: Time) -> RateTrace {
        // A period ends where the next one begins, so opportunities at time 0 are counted at the end of the period.
        let at_zero = times.iter().filter(|&&time| time == 0).count() as u64;
        let mut opportunities: Vec<(Time, u64)> = Vec::new();
        let mut count = 0;
        for &time in times.iter().filter(|&&time| time > 0) {
            count += 1;
            match opportunities.last_mut() {
                Some((last, total)) if *last == time => *total = count,
                _ => opportunities.push((time, count)),
            }
        }
        if let Some((last, total)) = opportunities.last_mut() {
            debug_assert_eq!(*last, period);
            *total += at_zero;
        }
        RateTrace {
            opportunities: opportunities.into(),
        }
    }

    /// Opportunities until (ascending) times up to `period`, which is not 0. There is at least one.
    pub(crate) fn from_totals(mut totals: Vec<(Time, u64)>, period: Time) -> RateTrace {
        let count = totals.last().map_or(0, |last| last.1).max(1);
        match totals.last_mut() {
            Some(last) if last.0 == period => last.1 = count,
            _ => totals.push((period, count)),
        }
        RateTrace {
            opportunities: totals.into(),
        }
    }

    /// After this time it begins again.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.opportunities.last().map_or(1, |last| last.0))
    }

    /// Bits per second in the long term.
    pub fn mean_bits_per_second(&self) -> u64 {
        let (period, count) = self.opportunities.last().copied().unwrap_or((1, 0));
        let bits = u128::from(count) * Self::OPPORTUNITY_BYTES as u128 * 8;
        u64::try_from(bits * 1_000_000_000 / u128::from(period)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read() {
        let trace = RateTrace::parse("# made by hand\n0\n\n 2\n2\n7 # the end\n").unwrap();
        assert_eq!(
            *trace.opportunities,
            [(2_000_000, 2), (7_000_000, 4)],
            "the one at 0 comes at the end of the period"
        );
        assert_eq!(trace.period(), Duration::from_millis(7));
        // 4 × 1500 bytes in 7 ms.
        assert_eq!(trace.mean_bits_per_second(), 6_857_142);
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        for (text, message) in [
            ("", "it is empty"),
            ("# nothing\n", "it is empty"),
            ("0\n0\n", "all its times are 0"),
            ("1\n2\nx\n", "line 3: 'x' is no time in whole milliseconds"),
            ("-1\n", "line 1: '-1' is no time in whole milliseconds"),
            ("1.5\n", "line 1: '1.5' is no time in whole milliseconds"),
            (
                "18446744073709551615\n",
                "line 1: '18446744073709551615' is no time in whole milliseconds",
            ),
            ("5\n\n4\n", "line 3: this time is before the one above it"),
        ] {
            let error = RateTrace::parse(text).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
