//! What a contestant has to carry.

use std::time::Duration;

/// A task for a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// As many bytes as possible, from the start of the connection to the last byte received.
    Bulk {
        /// How many.
        bytes: u64,
    },
    /// Whole blocks at fixed times, whatever became of the earlier ones.
    Blocks {
        /// How many.
        count: u64,
        /// Bytes of one block, at least [`Workload::BLOCK_BYTES_MIN`].
        bytes: u64,
        /// From one block to the next.
        interval: Duration,
    },
}

impl Workload {
    /// The smallest block: its number and its scheduled time travel inside.
    pub const BLOCK_BYTES_MIN: u64 = 16;

    /// Payload bytes altogether.
    pub fn bytes(&self) -> u64 {
        match self {
            Workload::Bulk { bytes } => *bytes,
            Workload::Blocks { count, bytes, .. } => count.saturating_mul(*bytes),
        }
    }

    /// The time that the schedule takes; zero for bulk.
    pub fn schedule(&self) -> Duration {
        match self {
            Workload::Bulk { .. } => Duration::ZERO,
            Workload::Blocks {
                count, interval, ..
            } => interval.saturating_mul(u32::try_from(*count).unwrap_or(u32::MAX)),
        }
    }

    /// Offered bits per second; none for bulk.
    pub fn offered_bits(&self) -> Option<u64> {
        match self {
            Workload::Bulk { .. } => None,
            Workload::Blocks {
                bytes, interval, ..
            } => {
                let bits = u128::from(*bytes) * 8 * 1_000_000_000;
                u64::try_from(bits / interval.as_nanos().max(1)).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_offer_a_rate() {
        let blocks = Workload::Blocks {
            count: 600,
            bytes: 100_000,
            interval: Duration::from_millis(40),
        };
        assert_eq!(blocks.offered_bits(), Some(20_000_000));
        assert_eq!(blocks.bytes(), 60_000_000);
        assert_eq!(blocks.schedule(), Duration::from_secs(24));
        assert_eq!(Workload::Bulk { bytes: 7 }.bytes(), 7);
    }
}
