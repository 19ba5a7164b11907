//! How long packets that arrive may gather before anyone looks at them: to wake up for each costs more than the packets.

use crate::{Nanos, Time};

/// Packets may gather for this part of a round trip …
const RTT_PART: Nanos = 16;
/// … but no longer than this. Where they come fast enough, they may gather for so long whatever the round trip is.
const LONGEST: Nanos = 500_000;
const SHORTEST: Nanos = 120_000;
/// At most so many packets gather.
const PACKETS: u64 = 16;
/// And no more than this part of the packets that may wait for a SACK: else the sender would hear less.
const SACK_PART: u64 = 4;
/// A new gap between packets changes the estimate of their distance by this part of the difference.
const NEWS_PART: u64 = 16;

/// When the packets arrive that are to be acknowledged.
#[derive(Debug)]
pub(super) struct Gathering {
    latest: Option<Time>,
    /// Smoothed time between two packets, nanoseconds.
    interval: Nanos,
}

impl Default for Gathering {
    /// No packet has arrived, and none is expected soon.
    fn default() -> Self {
        Self {
            latest: None,
            interval: LONGEST,
        }
    }
}

impl Gathering {
    #[inline]
    pub(super) fn on_packet(&mut self, received_at: Time) {
        let latest = self.latest.replace(received_at);
        let Some(latest) = latest else { return };
        let gap = received_at.saturating_sub(latest).min(LONGEST);
        self.interval = (self.interval * (NEWS_PART - 1) + gap) / NEWS_PART;
    }

    /// So many more arrived at the same time as the latest one.
    pub(super) fn on_followers(&mut self, count: u64) {
        for _ in 0..count {
            self.interval = self.interval * (NEWS_PART - 1) / NEWS_PART;
        }
    }

    /// Until when packets may gather, if enough of them are expected by then for the wait to be worth it. `packets` may wait for a
    /// SACK. The block of which the latest was a symbol lacks so many `symbols`: it is not to be complete and wait.
    pub(super) fn until(
        &self,
        now: Time,
        rtt: Nanos,
        (packets, symbols): (u64, Option<u32>),
    ) -> Option<Time> {
        let longest = (rtt / RTT_PART).clamp(SHORTEST, LONGEST);
        let has_stopped = now.saturating_sub(self.latest?) > longest;
        let enough = self
            .interval
            .saturating_mul(PACKETS.min(packets / SACK_PART));
        if has_stopped || self.interval * 2 > longest || enough < SHORTEST {
            return None;
        }
        let complete = symbols.map_or(LONGEST, |n| self.interval.saturating_mul(u64::from(n)));
        Some(now + enough.min(longest).min(complete.max(SHORTEST)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    const US: Nanos = 1_000;
    const MS: Nanos = 1_000 * US;

    fn after(interval: Nanos) -> (Gathering, Time) {
        let mut gathering = Gathering::default();
        let mut now = time(MS);
        for _ in 0..200 {
            now += interval;
            gathering.on_packet(now);
        }
        (gathering, now)
    }

    fn wait(interval: Nanos, rtt: Nanos, symbols: Option<u32>) -> Option<Nanos> {
        let (gathering, now) = after(interval);
        let until = gathering.until(now, rtt, (64, symbols))?;
        Some(until.saturating_sub(now))
    }

    #[test]
    fn a_part_of_the_round_trip_and_as_many_packets_as_are_worth_a_wake_up() {
        assert_eq!(wait(60 * US, 4 * MS, None), Some(250 * US));
        assert_eq!(wait(60 * US, 100 * MS, None), Some(500 * US));
        assert_eq!(
            wait(20 * US, 100 * MS, None).map(|t| t / (100 * US)),
            Some(3)
        );
        assert_eq!(wait(20 * US, MS, None), Some(120 * US));
    }

    #[test]
    fn few_packets_and_very_many_are_not_waited_for() {
        assert_eq!(wait(600 * US, 100 * MS, None), None);
        assert_eq!(wait(100 * US, MS, None), None);
        assert_eq!(wait(US, 100 * MS, None), None);
        assert_eq!(
            Gathering::default().until(time(MS), 10 * MS, (64, None)),
            None
        );
    }

    #[test]
    fn nor_those_that_have_stopped() {
        let (gathering, now) = after(60 * US);
        assert!(
            gathering
                .until(now + 400 * US, 8 * MS, (64, None))
                .is_some()
        );
        assert!(
            gathering
                .until(now + 600 * US, 8 * MS, (64, None))
                .is_none()
        );
    }

    #[test]
    fn a_block_does_not_wait_for_long_when_it_is_complete() {
        assert_eq!(wait(60 * US, 16 * MS, Some(5)).map(|t| t / US), Some(300));
        assert_eq!(wait(60 * US, 16 * MS, Some(1)), Some(120 * US));
        assert_eq!(wait(60 * US, 8 * MS, Some(100)), Some(500 * US));
    }
}
