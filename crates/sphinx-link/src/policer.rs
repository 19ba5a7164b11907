//! A token-bucket policer: excess packets are dropped at once, nothing waits.

use crate::{Time, config::Policer, rate::work};

/// The bucket. Tokens are counted in the units of [`work`], so that no rounding accumulates.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    bits_per_second: u64,
    capacity: u128,
    tokens: u128,
    filled_at: Time,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(policer: &Policer, now: Time) -> Bucket {
        let capacity = work(policer.burst_bytes);
        let bits_per_second = policer.bits_per_second;
        Bucket {
            bits_per_second,
            capacity,
            tokens: capacity,
            filled_at: now,
        }
    }

    /// Takes the packet's tokens and returns true, or returns false and takes none.
    pub(crate) fn admit(&mut self, now: Time, bytes: usize) -> bool {
        let earned = u128::from(self.bits_per_second) * u128::from(now - self.filled_at);
        self.tokens = self.tokens.saturating_add(earned).min(self.capacity);
        self.filled_at = now;
        let conforms = self.tokens >= work(bytes);
        if conforms {
            self.tokens -= work(bytes);
        }
        conforms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_and_no_time_is_too_large() {
        let policer = Policer {
            bits_per_second: u64::MAX,
            burst_bytes: 3000,
        };
        let mut bucket = Bucket::new(&policer, 0);
        assert!(bucket.admit(1, 1000) && bucket.admit(Time::MAX, 3000));
        assert!(!bucket.admit(Time::MAX, 1));
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let policer = Policer {
            bits_per_second: 8_000_000,
            burst_bytes: 3000,
        };
        let mut bucket = Bucket::new(&policer, 0);
        let burst: Vec<bool> = (0..4).map(|_| bucket.admit(0, 1000)).collect();
        assert_eq!(burst, [true, true, true, false]);
        assert!(!bucket.admit(999_999, 1000));
        assert!(bucket.admit(1_000_000, 1000));
        // A long silence earns no more than the burst.
        let later: Vec<bool> = (0..4).map(|_| bucket.admit(1_000_000_000, 1000)).collect();
        assert_eq!(later, [true, true, true, false]);
    }

    #[test]
    fn the_long_term_rate_is_exact() {
        let policer = Policer {
            bits_per_second: 7_000_000,
            burst_bytes: 1500,
        };
        let mut bucket = Bucket::new(&policer, 0);
        let passed = (0..70_000u64)
            .filter(|i| bucket.admit(i * 100_000, 1000))
            .count();
        // 7 s at 875 packets a second, and the bucket's content at the start.
        assert!((6125..=6126).contains(&passed), "{passed}");
    }
}
