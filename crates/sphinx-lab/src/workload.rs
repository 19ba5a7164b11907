//! What a contestant has to carry.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Side, video::Video, web::Web};

/// A task for a transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workload {
    /// As many bytes as possible, from the start of the connection to the last byte received.
    Bulk {
        /// Bytes to transfer.
        bytes: u64,
    },
    /// Whole blocks at fixed times, whatever became of the earlier ones. Small blocks make a thin
    /// stream.
    Blocks {
        /// Number of blocks.
        count: u64,
        /// Bytes of one block, at least [`Workload::BLOCK_BYTES_MIN`].
        bytes: u64,
        /// Time from one block to the next.
        interval: Duration,
    },
    /// Messages at fixed times that are worth nothing after their deadline.
    Live {
        /// Number of messages.
        count: u64,
        /// Bytes of one message, at least [`Workload::BLOCK_BYTES_MIN`].
        bytes: u64,
        /// Time from one message to the next.
        interval: Duration,
        /// How long after its scheduled time a message is of use.
        deadline: Duration,
    },
    /// A player that fetches the segments of a video.
    Video(Video),
    /// A browser that fetches pages of many objects.
    Web(Web),
}

impl Workload {
    /// The smallest block: its number and its scheduled time travel inside, and `sphx perf` wants
    /// 64 bytes.
    pub const BLOCK_BYTES_MIN: u64 = 64;

    /// Payload bytes altogether, as far as they are known beforehand.
    pub fn bytes(&self) -> u64 {
        match self {
            Workload::Bulk { bytes } => *bytes,
            Workload::Blocks { count, bytes, .. } | Workload::Live { count, bytes, .. } => {
                count.saturating_mul(*bytes)
            }
            Workload::Video(_) => 0,
            Workload::Web(web) => web.bytes(),
        }
    }

    /// The time that the schedule takes; zero for what goes as fast as possible.
    pub fn schedule(&self) -> Duration {
        match self {
            Workload::Bulk { .. } | Workload::Web(_) => Duration::ZERO,
            Workload::Blocks {
                count, interval, ..
            }
            | Workload::Live {
                count, interval, ..
            } => interval.saturating_mul(u32::try_from(*count).unwrap_or(u32::MAX)),
            Workload::Video(video) => video.watch,
        }
    }

    /// Blocks or messages that are scheduled behind a warm-up, if there are any.
    pub fn due_after(&self, warmup: Duration) -> Option<u64> {
        let (Workload::Blocks {
            count, interval, ..
        }
        | Workload::Live {
            count, interval, ..
        }) = self
        else {
            return None;
        };
        let before = warmup.as_nanos().div_ceil(interval.as_nanos().max(1));
        Some(count.saturating_sub(u64::try_from(before).unwrap_or(u64::MAX)))
    }

    /// Offered bits per second; none for what goes as fast as possible.
    pub fn offered_bits(&self) -> Option<u64> {
        match self {
            Workload::Bulk { .. } | Workload::Video(_) | Workload::Web(_) => None,
            Workload::Blocks {
                bytes, interval, ..
            }
            | Workload::Live {
                bytes, interval, ..
            } => {
                let bits = u128::from(*bytes) * 8 * 1_000_000_000;
                u64::try_from(bits / interval.as_nanos().max(1)).ok()
            }
        }
    }

    /// Bytes of one block or message, if there are any.
    pub fn block_bytes(&self) -> Option<u64> {
        match self {
            Workload::Blocks { bytes, .. } | Workload::Live { bytes, .. } => Some(*bytes),
            Workload::Bulk { .. } | Workload::Video(_) | Workload::Web(_) => None,
        }
    }

    /// The end that waits for the other one: the receiver, unless it has to ask for what it gets.
    pub fn listener(&self) -> Side {
        match self {
            Workload::Bulk { .. } | Workload::Blocks { .. } | Workload::Live { .. } => {
                Side::Receiver
            }
            Workload::Video(_) | Workload::Web(_) => Side::Sender,
        }
    }

    /// The task in a few words.
    pub fn description(&self) -> String {
        let schedule = |count: u64, bytes: u64, interval: Duration, what: &str| {
            let every = interval.as_secs_f64() * 1e3;
            format!("{count} {what} of {}, one every {every} ms", size(bytes))
        };
        match self {
            Workload::Bulk { bytes } => format!("{} MB", *bytes as f64 / 1e6),
            Workload::Blocks {
                count,
                bytes,
                interval,
            } => schedule(*count, *bytes, *interval, "blocks"),
            Workload::Live {
                count,
                bytes,
                interval,
                deadline,
            } => format!(
                "{}, to be used within {} ms",
                schedule(*count, *bytes, *interval, "messages"),
                deadline.as_secs_f64() * 1e3
            ),
            Workload::Video(video) => video.description(),
            Workload::Web(web) => web.description(),
        }
    }
}

impl Workload {
    /// What [`description`](Workload::description) leaves out, although it makes another task.
    pub(crate) fn details(&self) -> Option<String> {
        match self {
            Workload::Bulk { .. } | Workload::Blocks { .. } | Workload::Live { .. } => None,
            Workload::Video(Video { seed, .. }) | Workload::Web(Web { seed, .. }) => {
                Some(format!("sizes of seed {seed}"))
            }
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        _ => format!("{} kB", bytes as f64 / 1e3),
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

    #[test]
    fn described() {
        let thin = Workload::Blocks {
            count: 100,
            bytes: 200,
            interval: Duration::from_micros(2500),
        };
        assert_eq!(thin.description(), "100 blocks of 200 B, one every 2.5 ms");
    }
}
