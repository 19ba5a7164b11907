//! When, by this end's clock, a peer's live messages were handed over.

use sphinx_proto::Time;

/// The fastest message of so long tells the distance between the clocks, half as long ago at least: so drift is followed.
const SPAN_US: i64 = 10_000_000;

/// Follows the peer's clock by what arrives.
///
/// The distance between two clocks cannot be told from the time on the way. So a message counts as handed over when it would have been
/// if the fastest of late had taken no time at all.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Latest time of the peer, with the bits that its messages do not carry.
    latest: Option<i64>,
    /// Smallest distance in the present span, and in the one before.
    smallest: Option<i64>,
    before: Option<i64>,
    span_from: i64,
}

impl Clock {
    /// A message with this time arrives now: when it was handed over.
    pub(crate) fn arrived(&mut self, now: Time, time: u32) -> Time {
        let now = (now.as_nanos() / 1000) as i64;
        let sent = match self.latest {
            None => i64::from(time),
            // The nearest to the latest one.
            Some(latest) => latest + i64::from(time.wrapping_sub(latest as u32) as i32),
        };
        self.latest = self.latest.max(Some(sent));
        let distance = now - sent;
        let age = now - self.span_from;
        if self.smallest.is_none() || age >= SPAN_US {
            // Behind a long pause it says nothing any more: clocks drift, and the bits of a time come round.
            self.before = self.smallest.filter(|_| age < 2 * SPAN_US);
            self.smallest = Some(distance);
            self.span_from = now;
        }
        let smallest = self.smallest.map_or(distance, |known| known.min(distance));
        self.smallest = Some(smallest);
        let fastest = self.before.map_or(smallest, |before| before.min(smallest));
        Time::from_nanos(((sent + fastest).max(0) as u64).saturating_mul(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many microseconds after the origin.
    fn us(us: u64) -> Time {
        Time::from_nanos(1000 * us)
    }

    #[test]
    fn the_fastest_message_is_the_measure() {
        let mut clock = Clock::default();
        // The peer's clock is 5 s behind; the first message takes 3 ms longer than the second one.
        assert_eq!(clock.arrived(us(6_003_000), 1_000_000), us(6_003_000));
        assert_eq!(clock.arrived(us(6_010_000), 1_010_000), us(6_010_000));
        assert_eq!(clock.arrived(us(6_033_000), 1_020_000), us(6_020_000));
    }

    #[test]
    fn time_goes_on_where_its_bits_end() {
        let mut clock = Clock::default();
        let first = clock.arrived(us(1_000_000), u32::MAX - 499);
        let second = clock.arrived(us(1_001_000), 500);
        assert_eq!(second - first, 1_000_000);
        // An older one, which was repaired.
        let third = clock.arrived(us(1_002_000), u32::MAX - 99);
        assert_eq!(third - first, 400_000);
    }

    /// A peer whose clock is slow by 100 ppm: what was the fastest message 20 s ago is not the measure any more.
    #[test]
    fn drift_is_followed() {
        let mut clock = Clock::default();
        for ms in 0..60_000_u64 {
            let now = 1_000_000 + ms * 1000;
            let sent = ms * 1000 - ms * 1000 / 10_000;
            let at = clock.arrived(us(now), sent as u32);
            let error = us(now) - at;
            assert!(error <= 2_000_000, "{error} ns after {ms} ms");
        }
    }

    /// In a minute two clocks drift apart by milliseconds, and in half an hour by more than a message is of use; behind 36 minutes the bits that it carries
    /// may be those of another round.
    #[test]
    fn what_was_fast_before_a_pause_is_no_measure_behind_it() {
        for minutes in [1, 30, 40, 60, 90, 600_u64] {
            let mut clock = Clock::default();
            let (start, pause) = (1_000_000, minutes * 60_000_000);
            assert_eq!(clock.arrived(us(start), 0), us(start));
            for later in [0, 20_000, 5_000_000] {
                let now = start + pause + later;
                let sent = pause - pause / 10_000 + later;
                let at = clock.arrived(us(now), sent as u32);
                assert_eq!(at, us(now), "{later} us behind {minutes} minutes");
            }
        }
    }
}
