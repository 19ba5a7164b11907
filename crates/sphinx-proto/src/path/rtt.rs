//! Round-trip time estimation (RFC 9002 §5).

use crate::cc::RotatingMin;
use crate::{Nanos, Time};

use super::acks::SACK_DELAY_MAX;

/// Timer granularity.
const GRANULARITY: Nanos = 1_000_000;
/// A new packet is acknowledged within that, busy processors allowed for: longer delays are those of SACKs that are
/// repeated.
const DELAY_USUAL: Nanos = 2 * SACK_DELAY_MAX;
/// A round trip that was the smallest so long ago, or up to twice that, may be one of another route.
const BASE_WINDOW: Nanos = 5_000_000_000;

/// Smoothed round-trip time of one path.
#[derive(Debug, Clone)]
pub(crate) struct Rtt {
    latest: Nanos,
    min: Nanos,
    /// Smallest sample of the latest seconds.
    base: RotatingMin,
    smoothed: Nanos,
    variance: Nanos,
    sampled: bool,
}

impl Rtt {
    /// Before the first sample, `initial` (from the handshake) stands in.
    pub(crate) fn new(initial: Nanos) -> Self {
        let initial = initial.max(1_000);
        Self {
            latest: initial,
            min: initial,
            base: RotatingMin::default(),
            smoothed: initial,
            variance: initial / 4,
            sampled: false,
        }
    }

    /// `sample` includes the peer's reported `delay`.
    pub(crate) fn update(&mut self, now: Time, sample: Nanos, delay: Nanos) {
        let sample = sample.max(1_000);
        self.base.update(now.as_nanos(), BASE_WINDOW, sample as i64);
        if !self.sampled {
            self.sampled = true;
            self.min = sample;
            self.latest = sample;
            self.smoothed = sample;
            // Half of what RFC 9002 assumes: probes are few, and the handshake was timed too.
            self.variance = sample / 4;
            return;
        }
        self.min = self.min.min(sample);
        // As RFC 9002, the whole sample is taken where without the delay it would fall below the minimum. But a SACK that
        // is repeated after a blackout reports a delay of seconds, and a microsecond would decide whether they count.
        let adjusted = if sample >= self.min.saturating_add(delay) || delay > DELAY_USUAL {
            sample.saturating_sub(delay).max(self.min)
        } else {
            sample
        };
        self.latest = adjusted;
        let deviation = self.smoothed.abs_diff(adjusted);
        self.variance = (3 * self.variance + deviation) / 4;
        self.smoothed = (7 * self.smoothed + adjusted) / 8;
    }

    /// A sample without the peer's `delay`, which [`update`](Self::update) has seen; none where that cannot be true: its clock was set, or it says
    /// anything.
    pub(crate) fn without_delay(&self, sample: Nanos, delay: Nanos) -> Option<Nanos> {
        let rest = sample.checked_sub(delay).filter(|rest| *rest > 0)?;
        (delay <= DELAY_USUAL || rest >= self.min / 2).then_some(rest)
    }

    pub(crate) fn smoothed(&self) -> Nanos {
        self.smoothed
    }

    /// How much the round-trip time varies, nanoseconds.
    pub(crate) fn variance(&self) -> Nanos {
        self.variance
    }

    /// Smallest round-trip time, nanoseconds.
    pub(crate) fn min(&self) -> Nanos {
        self.min
    }

    /// Smallest round-trip time of the latest seconds, nanoseconds.
    pub(crate) fn base(&self) -> Nanos {
        self.base.get().map_or(self.min, |base| base as Nanos)
    }

    /// How long after a packet a later one must have been acknowledged for it to count as lost.
    pub(crate) fn loss_delay(&self) -> Nanos {
        (self.latest.max(self.smoothed) * 9 / 8).max(GRANULARITY)
    }

    /// Probe timeout without backoff.
    pub(crate) fn pto(&self, max_ack_delay: Nanos) -> Nanos {
        self.smoothed + (4 * self.variance).max(GRANULARITY) + max_ack_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn smooths_as_rfc_9002() {
        let mut rtt = Rtt::new(100_000_000);
        let now = Time::ZERO;
        rtt.update(now, 10_000_000, 0);
        assert_eq!((rtt.smoothed(), rtt.variance), (10_000_000, 2_500_000));
        rtt.update(now, 18_000_000, 4_000_000);
        assert_eq!(rtt.smoothed(), (70_000_000 + 14_000_000) / 8);
        assert_eq!(rtt.variance, (7_500_000 + 4_000_000) / 4);
        assert_eq!(rtt.min(), 10_000_000);
        rtt.update(now, 12_000_000, 5_000_000);
        assert_eq!(rtt.latest, 12_000_000, "it would undercut the minimum");
        rtt.update(now, 5_000_000_000, 4_990_000_001);
        assert_eq!(
            rtt.latest, 10_000_000,
            "seconds are not taken for a round trip"
        );
    }

    #[test]
    fn a_longer_path_has_another_base() {
        let (ms, mut rtt) = (1_000_000, Rtt::new(20_000_000));
        let mut pass = |seconds: std::ops::Range<u64>, sample: Nanos| {
            for at in seconds {
                rtt.update(time(at * 1000 * ms), sample * ms, 0);
            }
            (rtt.base() / ms, rtt.min() / ms)
        };
        assert_eq!(pass(0..10, 20), (20, 20));
        assert_eq!(pass(10..15, 140), (20, 20));
        assert_eq!(pass(15..25, 140), (140, 20));
        assert_eq!(pass(25..26, 30), (30, 20));
    }

    /// A clock that is set by 100 ms in the meantime said so of a packet that had come just then. Rate control went on with a round trip of a
    /// nanosecond.
    #[test]
    fn delays_that_cannot_be_true_leave_no_sample() {
        let ms = 1_000_000;
        let mut rtt = Rtt::new(20 * ms);
        rtt.update(Time::ZERO, 20 * ms, 0);
        for (sample, delay, rest) in [
            (25, 5, Some(20)),
            (20, 5, Some(15)),
            (80, 60, Some(20)),
            (20, 20, None),
            (20, 100, None),
            (105, 100, None),
        ] {
            let found = rtt.without_delay(sample * ms, delay * ms);
            assert_eq!(found, rest.map(|rest: Nanos| rest * ms));
        }
    }
}
