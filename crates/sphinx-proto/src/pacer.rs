//! Spreads packets over time at the rate that rate control allows.

use crate::Nanos;

const SECOND: u64 = 1_000_000_000;
/// Longest burst in time at the pacing rate.
const QUANTUM: Nanos = 500_000;
/// Smallest burst: two full packets, so that one wake-up sends more than one packet.
const BURST_MIN: u64 = 3_000;
/// Largest burst: one segmented send.
const BURST_MAX: u64 = 64_000;

/// A token bucket whose tokens are IP bytes.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// May be negative: the last packet overdrew.
    tokens: i64,
    updated: Nanos,
}

impl Pacer {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            tokens: BURST_MIN as i64,
            updated: now,
        }
    }

    fn burst(rate: u64) -> u64 {
        (rate.saturating_mul(QUANTUM) / SECOND).clamp(BURST_MIN, BURST_MAX)
    }

    fn refill(&mut self, now: Nanos, rate: u64) {
        let elapsed = now.saturating_sub(self.updated);
        let earned = u128::from(elapsed) * u128::from(rate) / u128::from(SECOND);
        if earned > 0 {
            let burst = Self::burst(rate) as i64;
            self.tokens = self
                .tokens
                .saturating_add(earned.min(1 << 40) as i64)
                .min(burst);
            self.updated = now;
        }
    }

    /// Whether a packet may leave now.
    pub(crate) fn ready(&mut self, now: Nanos, rate: u64) -> bool {
        self.refill(now, rate);
        self.tokens > 0
    }

    /// A packet of `bytes` left.
    pub(crate) fn spent(&mut self, bytes: u64) {
        self.tokens -= bytes as i64;
    }

    /// When the next burst may leave: at half a bucket, so that wake-ups are few and bursts short.
    pub(crate) fn next(&self, rate: u64) -> Nanos {
        let wanted = (Self::burst(rate) / 2) as i64 - self.tokens;
        if wanted <= 0 {
            return self.updated;
        }
        let wait = u128::from(wanted as u64) * u128::from(SECOND) / u128::from(rate.max(1));
        // At any rate, however high, time must pass before tokens come.
        self.updated
            .saturating_add(wait.clamp(1, u128::from(SECOND)) as Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_burst_is_later_at_any_rate() {
        let mut pacer = Pacer::new(0);
        pacer.spent(9000);
        assert!(pacer.next(u64::MAX) > 0 && pacer.next(1) == SECOND);
    }

    #[test]
    fn long_run_rate_is_exact_and_bursts_are_short() {
        let rate = 25_000_000;
        let mut pacer = Pacer::new(0);
        let (mut now, mut sent) = (0, 0u64);
        while now < SECOND {
            let mut burst = 0;
            while pacer.ready(now, rate) {
                pacer.spent(1500);
                burst += 1500;
            }
            assert!(burst <= 12_500 + 1500);
            sent += burst;
            now = pacer.next(rate).max(now + 1);
        }
        assert!(sent.abs_diff(rate) < 20_000, "{sent}");
    }
}
