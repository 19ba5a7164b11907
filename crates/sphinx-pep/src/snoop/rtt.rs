//! The round-trip time of the lossy hop.

use crate::{MS, Time};

/// Round-trip time before any has been measured (ns-2's).
const INITIAL_NS: Time = 100 * MS;
/// A packet is lost at the earliest so long after the usual time: RFC 6298's clock granularity. Hosts and
/// this machine are that late for want of a processor.
const MARGIN_MIN_NS: Time = 5 * MS;
/// The shortest round trip is the minimum of the last one to two periods of this length.
const BASE_WINDOW_NS: Time = 30_000 * MS;
/// A queue stands on the hop when all of the last samples are longer than the shortest by this.
const QUEUE_NS: Time = 20 * MS;
const SAMPLES: u32 = 8;

/// Smoothed as in RFC 6298, from packets that were sent once (Karn).
#[derive(Debug)]
pub(crate) struct Rtt {
    smoothed: Time,
    variation: Time,
    measured: bool,
    /// The shortest of this window and of the one before.
    base: [Time; 2],
    base_since: Time,
    /// How many samples in a row, the last ones, were longer than the shortest by [`QUEUE_NS`].
    long: u32,
    /// Repairs by time since the last sample. What is repaired gives none (Karn): where the hop has become slower than any timeout, all would be, for ever.
    backoff: u32,
}

impl Rtt {
    pub(crate) fn new() -> Rtt {
        Rtt {
            smoothed: INITIAL_NS,
            variation: INITIAL_NS / 2,
            measured: false,
            base: [Time::MAX; 2],
            base_since: 0,
            long: 0,
            backoff: 0,
        }
    }

    pub(crate) fn add(&mut self, now: Time, sample: Time) {
        self.backoff = 0;
        if self.measured {
            let error = self.smoothed.abs_diff(sample);
            self.variation = (3 * self.variation + error) / 4;
            self.smoothed = (7 * self.smoothed + sample) / 8;
        } else {
            (self.smoothed, self.variation) = (sample, sample / 2);
            self.measured = true;
        }
        if now - self.base_since.min(now) > BASE_WINDOW_NS {
            self.base = [sample, self.base[0]];
            self.base_since = now;
        }
        self.base[0] = self.base[0].min(sample);
        self.long = match sample.saturating_sub(self.base()) > QUEUE_NS {
            true => self.long.saturating_add(1),
            false => 0,
        };
    }

    /// Smoothed time and variation, if any was measured.
    pub(super) fn measured(&self) -> Option<(Time, Time)> {
        self.measured.then_some((self.smoothed, self.variation))
    }

    /// Sets a time that holds until one is measured.
    pub(super) fn guess(&mut self, smoothed: Time, variation: Time) {
        (self.smoothed, self.variation) = (smoothed, variation);
    }

    pub(super) fn smoothed(&self) -> Time {
        self.smoothed
    }

    /// The shortest of the last 30 to 60 s; 0 before any was measured.
    pub(crate) fn base(&self) -> Time {
        match self.measured {
            true => self.base[0].min(self.base[1]),
            false => 0,
        }
    }

    /// Something is repaired because its time was over.
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// How often the timeout is to be doubled.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// When a packet that was sent at time 0 counts as lost.
    pub(crate) fn timeout(&self) -> Time {
        self.smoothed + (4 * self.variation).max(MARGIN_MIN_NS)
    }

    /// Whether packets wait on the hop: what is lost now was probably dropped by a queue.
    pub(crate) fn queue_stands(&self) -> bool {
        self.long >= SAMPLES
    }

    /// Whether the last round trip was long enough to mean a queue.
    pub(super) fn is_long(&self) -> bool {
        self.long > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_queue_is_told_from_jitter() {
        let mut rtt = Rtt::new();
        rtt.add(0, 4 * MS);
        assert_eq!(rtt.timeout(), 12 * MS);
        for n in 0..40 {
            rtt.add(n * MS, if n % 5 == 0 { 4 * MS } else { 60 * MS });
        }
        assert!(!rtt.queue_stands());
        for n in 40..48 {
            rtt.add(n * MS, 25 * MS);
        }
        assert!(rtt.queue_stands());
        // A hand-off to a longer route is no queue for ever.
        for n in 0..200 {
            rtt.add(1000 * MS + n * 1000 * MS, 50 * MS);
        }
        assert!(!rtt.queue_stands());
        let mut constant = Rtt::new();
        (0..100).for_each(|n| constant.add(n, MS));
        assert_eq!(constant.timeout(), MS + MARGIN_MIN_NS);
    }
}
