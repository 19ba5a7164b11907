//! When, by this end's clock, a peer's live messages were handed over.

use sphinx_proto::Nanos;

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
    pub(crate) fn arrived(&mut self, now: Nanos, time: u32) -> Nanos {
        let now = (now / 1000) as i64;
        let sent = match self.latest {
            None => i64::from(time),
            // The nearest to the latest one.
            Some(latest) => latest + i64::from(time.wrapping_sub(latest as u32) as i32),
        };
        self.latest = self.latest.max(Some(sent));
        let distance = now - sent;
        if self.smallest.is_none() || now - self.span_from >= SPAN_US {
            self.before = self.smallest;
            self.smallest = Some(distance);
            self.span_from = now;
        }
        let smallest = self.smallest.map_or(distance, |known| known.min(distance));
        self.smallest = Some(smallest);
        let fastest = self.before.map_or(smallest, |before| before.min(smallest));
        ((sent + fastest).max(0) as Nanos).saturating_mul(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Nanos = 1000;

    #[test]
    fn the_fastest_message_is_the_measure() {
        let mut clock = Clock::default();
        // The peer's clock is 5 s behind; the first message takes 3 ms longer than the second one.
        assert_eq!(clock.arrived(6_003_000 * US, 1_000_000), 6_003_000 * US);
        assert_eq!(clock.arrived(6_010_000 * US, 1_010_000), 6_010_000 * US);
        assert_eq!(clock.arrived(6_033_000 * US, 1_020_000), 6_020_000 * US);
    }

    #[test]
    fn time_goes_on_where_its_bits_end() {
        let mut clock = Clock::default();
        let first = clock.arrived(1_000_000 * US, u32::MAX - 499);
        let second = clock.arrived(1_001_000 * US, 500);
        assert_eq!(second - first, 1000 * US);
        // An older one, which was repaired.
        let third = clock.arrived(1_002_000 * US, u32::MAX - 99);
        assert_eq!(third - first, 400 * US);
    }

    /// A peer whose clock is slow by 100 ppm: what was the fastest message 20 s ago is not the measure any more.
    #[test]
    fn drift_is_followed() {
        let mut clock = Clock::default();
        for ms in 0..60_000_u64 {
            let now = 1_000_000 + ms * 1000;
            let sent = ms * 1000 - ms * 1000 / 10_000;
            let at = clock.arrived(now * US, sent as u32);
            let error = now * US - at;
            assert!(error <= 2_000 * US, "{error} ns after {ms} ms");
        }
    }
}
