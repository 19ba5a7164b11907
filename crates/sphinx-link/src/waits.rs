//! How long packets waited for a link.

use crate::Time;

/// Buckets for each doubling of a time.
const PARTS: u32 = 16;
/// Times below this are one bucket: a microsecond.
const SHORTEST_BITS: u32 = 10;
const BUCKETS: usize = ((Time::BITS - SHORTEST_BITS) * PARTS) as usize + 1;

/// How many packets waited how long, from their arrival until their last bit had left, to 1/16.
#[derive(Clone, Debug)]
pub struct Waits {
    counts: Box<[u64]>,
    total: u64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            counts: vec![0; BUCKETS].into(),
            total: 0,
        }
    }
}

impl Waits {
    pub(crate) fn note(&mut self, wait: Time) {
        self.counts[bucket(wait)] += 1;
        self.total += 1;
    }

    /// How long this share of the packets (0 to 1) waited at most, in nanoseconds, rounded up; 0 if there were none.
    pub fn quantile(&self, share: f64) -> Time {
        let wanted = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        });
        reached.map_or(0, end)
    }
}

fn bucket(wait: Time) -> usize {
    let octave = wait.checked_ilog2().unwrap_or(0);
    if octave < SHORTEST_BITS {
        return 0;
    }
    let part = (wait >> (octave - PARTS.ilog2())) as u32 % PARTS;
    ((octave - SHORTEST_BITS) * PARTS + part) as usize + 1
}

/// The longest time in a bucket.
fn end(bucket: usize) -> Time {
    let Some(bucket) = bucket.checked_sub(1) else {
        return (1 << SHORTEST_BITS) - 1;
    };
    let (octave, part) = (
        bucket as u32 / PARTS + SHORTEST_BITS,
        bucket as u64 % u64::from(PARTS),
    );
    let unit = 1u64 << (octave - PARTS.ilog2());
    ((u64::from(PARTS) + part) * unit).saturating_add(unit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_bucket_that_ends_next() {
        for wait in [
            0,
            1,
            1023,
            1024,
            1025,
            5_000_000,
            123_456_789,
            Time::MAX / 3,
            Time::MAX,
        ] {
            let found = end(bucket(wait));
            assert!(
                found >= wait && found - wait <= wait / 16 + 1023,
                "{wait}: {found}"
            );
        }
        assert_eq!(bucket(Time::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles() {
        let mut waits = Waits::default();
        assert_eq!(waits.quantile(0.95), 0);
        for ms in 1..=100 {
            waits.note(ms * 1_000_000);
        }
        let near = |share, ms: u64| {
            let found = waits.quantile(share);
            assert!(
                (ms * 1_000_000..=ms * 17 / 16 * 1_000_000 + 1_000_000).contains(&found),
                "{share}: {found}"
            );
        };
        near(0.5, 50);
        near(0.95, 95);
        near(1.0, 100);
    }
}
