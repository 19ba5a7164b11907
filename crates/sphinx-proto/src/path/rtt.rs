//! Round-trip time estimation (RFC 9002 §5).

use crate::Nanos;

use super::acks::SACK_DELAY_MAX;

/// Timer granularity.
const GRANULARITY: Nanos = 1_000_000;
/// A new packet is acknowledged within that, busy processors allowed for: longer delays are those of SACKs that are
/// repeated.
const DELAY_USUAL: Nanos = 2 * SACK_DELAY_MAX;

/// Smoothed round-trip time of one path.
#[derive(Debug, Clone)]
pub(crate) struct Rtt {
    latest: Nanos,
    min: Nanos,
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
            smoothed: initial,
            variance: initial / 4,
            sampled: false,
        }
    }

    /// `sample` includes the peer's reported `delay`.
    pub(crate) fn update(&mut self, sample: Nanos, delay: Nanos) {
        let sample = sample.max(1_000);
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

    pub(crate) fn smoothed(&self) -> Nanos {
        self.smoothed
    }

    /// How much it varies.
    pub(crate) fn variance(&self) -> Nanos {
        self.variance
    }

    pub(crate) fn min(&self) -> Nanos {
        self.min
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

    #[test]
    fn smooths_as_rfc_9002() {
        let mut rtt = Rtt::new(100_000_000);
        rtt.update(10_000_000, 0);
        assert_eq!((rtt.smoothed(), rtt.variance), (10_000_000, 2_500_000));
        rtt.update(18_000_000, 4_000_000);
        assert_eq!(rtt.smoothed(), (70_000_000 + 14_000_000) / 8);
        assert_eq!(rtt.variance, (7_500_000 + 4_000_000) / 4);
        assert_eq!(rtt.min(), 10_000_000);
        rtt.update(12_000_000, 5_000_000);
        assert_eq!(rtt.latest, 12_000_000, "it would undercut the minimum");
        rtt.update(5_000_000_000, 4_990_000_001);
        assert_eq!(
            rtt.latest, 10_000_000,
            "seconds are not taken for a round trip"
        );
    }
}
