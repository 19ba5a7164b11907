//! Spreads packets over time at the rate that rate control allows.

use crate::{Nanos, Time};

const SECOND: u64 = 1_000_000_000;
/// Longest burst in time at the pacing rate.
const QUANTUM: Nanos = 500_000;
/// Smallest burst: two full packets, so that one wake-up sends more than one packet.
const BURST_MIN: u64 = 3_000;
/// What a driver that came late may send at once besides, in time at the pacing rate: a scheduler's
/// delay is not to cost the link's time.
const CATCH_UP: Nanos = 2_000_000;
/// Largest burst of a driver that comes in time: one segmented send.
const BURST_MAX: u64 = 64_000;
/// Timers may be so late each time: at high rates more than [`BURST_MAX`] could have left meanwhile, and what cannot be made
/// up for is lost to the link.
const LATE: Nanos = 250_000;
/// At most what 40 Gbit/s carry in that time, whatever rate a peer makes this end believe.
const LATE_BYTES_MAX: u64 = 1_250_000;

/// A token bucket whose tokens are IP bytes.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// May be negative: the last packet overdrew.
    tokens: i64,
    updated: Time,
    /// There was nothing to send: what was not used is not made up for.
    resting: bool,
}

impl Pacer {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            tokens: BURST_MIN as i64,
            updated: now,
            resting: true,
        }
    }

    fn burst(rate: u64) -> u64 {
        (rate.saturating_mul(QUANTUM) / SECOND).clamp(BURST_MIN, BURST_MAX)
    }

    fn refill(&mut self, now: Time, rate: impl FnOnce() -> u64) {
        let elapsed = now.saturating_sub(self.updated);
        if elapsed == 0 {
            // So it is behind the first packet of a turn: the division below is a dear one.
            return;
        }
        let rate = rate();
        let earned = u128::from(elapsed) * u128::from(rate) / u128::from(SECOND);
        if earned > 0 {
            let burst = Self::burst(rate);
            let catch_up = if self.resting {
                0
            } else {
                rate.saturating_mul(CATCH_UP) / SECOND
            };
            let late = (rate.saturating_mul(LATE) / SECOND).min(LATE_BYTES_MAX);
            let most = burst.saturating_add(late).max(BURST_MAX);
            let limit = burst.saturating_add(catch_up).min(most);
            self.tokens = self
                .tokens
                .saturating_add(earned.min(1 << 40) as i64)
                .min(limit as i64);
            self.updated = now;
        }
    }

    /// Whether a packet may leave now.
    pub(crate) fn ready(&mut self, now: Time, rate: impl FnOnce() -> u64) -> bool {
        self.refill(now, rate);
        self.tokens > 0
    }

    /// There is nothing to send: pacing rests.
    pub(crate) fn rest(&mut self) {
        self.resting = true;
    }

    /// A packet of `bytes` left.
    pub(crate) fn spent(&mut self, bytes: u64) {
        self.resting = false;
        self.tokens -= bytes as i64;
    }

    /// When the next burst may leave: half a bucket, or of the `patient` a whole one, so that wake-ups are few; of the
    /// smallest, which has two packets, never more than half.
    pub(crate) fn next(&self, rate: u64, patient: bool) -> Time {
        let wanted = match Self::burst(rate) {
            burst if patient && burst > BURST_MIN => burst,
            burst => burst / 2,
        };
        let wanted = wanted as i64 - self.tokens;
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
    use crate::time::time;

    #[test]
    fn the_next_burst_is_later_at_any_rate() {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spent(9000);
        assert!(pacer.next(u64::MAX, true) > Time::ZERO && pacer.next(1, true) == time(SECOND));
    }

    #[test]
    fn long_run_rate_is_exact_and_bursts_are_short() {
        let rate = 25_000_000;
        let mut pacer = Pacer::new(Time::ZERO);
        let (mut now, mut sent) = (Time::ZERO, 0u64);
        while now < time(SECOND) {
            let mut burst = 0;
            while pacer.ready(now, || rate) {
                pacer.spent(1500);
                burst += 1500;
            }
            assert!(burst <= 12_500 + 1500);
            sent += burst;
            now = pacer.next(rate, true).max(now + 1);
        }
        assert!(sent.abs_diff(rate) < 20_000, "{sent}");
    }

    #[test]
    fn a_late_driver_catches_up_and_a_resting_sender_does_not() {
        let rate = 25_000_000;
        let burst = |pacer: &mut Pacer, now| {
            let mut bytes = 0;
            while pacer.ready(time(now), || rate) {
                pacer.spent(1500);
                bytes += 1500;
            }
            bytes
        };
        let mut pacer = Pacer::new(Time::ZERO);
        burst(&mut pacer, 0);
        assert!((49_000..54_000).contains(&burst(&mut pacer, 2_000_000)));
        assert!(burst(&mut pacer, 100_000_000) < 65_500);
        pacer.rest();
        assert!(burst(&mut pacer, 200_000_000) < 14_500);
    }

    #[test]
    fn late_timers_do_not_limit_the_rate() {
        for rate in [125_000_000, 1_250_000_000, 5_000_000_000] {
            let mut pacer = Pacer::new(Time::ZERO);
            let (mut now, mut sent) = (Time::ZERO, 0u64);
            while now < time(SECOND) {
                while pacer.ready(now, || rate) {
                    pacer.spent(1500);
                    sent += 1500;
                }
                now = pacer.next(rate, true).max(now) + LATE;
            }
            assert!(sent >= rate / 100 * 99, "{sent} of {rate}");
        }
    }

    #[test]
    fn a_burst_has_an_end_at_any_rate() {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spent(3001);
        let mut sent = 0;
        while pacer.ready(time(SECOND), || u64::MAX) {
            pacer.spent(1500);
            sent += 1500;
        }
        assert!(sent < BURST_MAX + LATE_BYTES_MAX + 1500, "{sent}");
    }
}
