//! How late the link's thread is.

use std::time::Duration;

use crate::Time;

/// Width of a bucket.
const BUCKET_NS: Time = 10_000;
/// Number of buckets; the last one holds everything beyond.
const BUCKETS: usize = 128;

/// How long after their due time packets were delivered. A busy machine shows here: a run with a
/// large value is worth less. Due is counted from when the thread has read a packet: what that has waited
/// in the kernel before is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    packets: u64,
    sum_ns: u64,
    max_ns: Time,
    buckets: [u64; BUCKETS],
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness {
            packets: 0,
            sum_ns: 0,
            max_ns: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl Lateness {
    pub(super) fn add(&mut self, late_ns: Time) {
        self.packets += 1;
        self.sum_ns = self.sum_ns.saturating_add(late_ns);
        self.max_ns = self.max_ns.max(late_ns);
        let bucket = usize::try_from(late_ns / BUCKET_NS).unwrap_or(BUCKETS);
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Packets measured.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The mean; zero without packets.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.packets).unwrap_or(0))
    }

    /// The largest lateness.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// What this share of all packets (0 to 1) does not exceed, rounded up to 10 µs; the maximum if
    /// that is beyond 1.27 ms.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.packets as f64 * share).ceil() as u64;
        let mut counted = 0;
        for (bucket, count) in (1..BUCKETS as u64).zip(self.buckets) {
            counted += count;
            if counted >= wanted {
                return Duration::from_nanos((bucket * BUCKET_NS).min(self.max_ns));
            }
        }
        self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_rounded_up() {
        let mut lateness = Lateness::default();
        assert_eq!(
            (lateness.mean(), lateness.quantile(0.5)),
            (Duration::ZERO, Duration::ZERO)
        );
        (0..99).for_each(|_| lateness.add(12_000));
        lateness.add(5_000_000);
        assert_eq!(lateness.quantile(0.5), Duration::from_micros(20));
        assert_eq!(lateness.quantile(0.99), Duration::from_micros(20));
        assert_eq!(lateness.quantile(1.0), Duration::from_millis(5));
        assert_eq!(lateness.max(), Duration::from_millis(5));
        assert_eq!(
            (lateness.packets(), lateness.mean()),
            (100, Duration::from_nanos(61_880))
        );
    }
}
