//! What the two ends of a measurement tell each other: small JSON messages, each behind its length.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::channel::{Incoming, Mode, Outgoing};
use crate::failure::{Outcome, protocol};
use crate::report::{BlockNumbers, Role};

/// Version of these messages.
pub(super) const VERSION: u32 = 2;
/// Longest message.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
pub(super) const STREAMS_MAX: u16 = 10_000;
/// Each has a thread, which waits for the time of its next block.
pub(crate) const PACED_STREAMS_MAX: u16 = 256;
/// Smallest block: it has to hold its own header.
pub(crate) const BLOCK_BYTES_MIN: u64 = 32;
pub(super) const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Longest message that is live or a datagram: the largest UDP payload over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: u64 = 65_507;
/// Each stream holds one block at a time: this much for all of them.
const BLOCKS_BYTES_MAX: u64 = 32 << 20;
/// Latencies of all blocks are kept, so that quantiles are exact.
pub(super) const BLOCKS_MAX: u64 = 1 << 20;

/// Who sends the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

impl Direction {
    /// Which end of the data the client is.
    pub(crate) fn client(self) -> Role {
        match self {
            Self::Up => Role::Sender,
            Self::Down => Role::Receiver,
        }
    }

    /// Which end of the data the server is.
    pub(crate) fn server(self) -> Role {
        match self {
            Self::Up => Role::Receiver,
            Self::Down => Role::Sender,
        }
    }
}

/// When the sender stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    Bytes(u64),
    Nanoseconds(u64),
}

/// One block of `block_bytes` every `interval_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pacing {
    pub(crate) block_bytes: u64,
    pub(crate) interval_ns: u64,
    /// The blocks are the messages of a thin or live stream, and are reported as such.
    pub(crate) messages: Option<Messages>,
}

/// What is expected of paced messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Messages {
    /// What carries them.
    pub(crate) mode: Mode,
    /// A message that takes longer than this is late; in nanoseconds.
    pub(crate) deadline_ns: Option<u64>,
}

impl Pacing {
    /// Whole blocks at `rate` bits per second.
    pub(crate) fn new(rate: u64, block_bytes: u64) -> Result<Self, String> {
        let interval = u128::from(block_bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        match u64::try_from(interval) {
            Ok(interval_ns @ 1..) => Self::every(interval_ns, block_bytes, None),
            _ => Err("these blocks at this rate make no sensible interval".to_owned()),
        }
    }

    /// One block or message every `interval_ns`, which is not 0.
    pub(crate) fn every(
        interval_ns: u64,
        block_bytes: u64,
        messages: Option<Messages>,
    ) -> Result<Self, String> {
        match block_bytes {
            BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX => Ok(Self {
                block_bytes,
                interval_ns,
                messages,
            }),
            _ => Err(format!(
                "blocks and messages have {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX} bytes, not {block_bytes}"
            )),
        }
    }

    /// The time after which a message is late; `None` if there is no deadline.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let deadline = self.messages.and_then(|messages| messages.deadline_ns);
        deadline.map(Duration::from_nanos)
    }

    /// What carries the blocks.
    pub(super) fn mode(&self) -> Mode {
        self.messages.map_or(Mode::Stream, |messages| messages.mode)
    }

    /// How many blocks the limit allows.
    pub(crate) fn blocks(&self, limit: Limit) -> Result<u64, String> {
        let blocks = match limit {
            Limit::Bytes(bytes) => bytes / self.block_bytes,
            Limit::Nanoseconds(time) => time / self.interval_ns,
        };
        match blocks.max(1) {
            blocks if blocks <= BLOCKS_MAX => Ok(blocks),
            blocks => Err(format!("{blocks} blocks are more than {BLOCKS_MAX}")),
        }
    }
}

/// The whole measurement, agreed by both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) direction: Direction,
    pub(super) limit: Limit,
    pub(super) streams: u16,
    pub(super) pacing: Option<Pacing>,
    /// Seed of the pattern of the data.
    pub(super) seed: u64,
    /// Blocks scheduled in the first so many nanoseconds are warm-up.
    pub(super) warmup_ns: u64,
}

impl Plan {
    /// Refuses plans of a peer that are out of bounds.
    pub(super) fn check(&self) -> Outcome<()> {
        let bounded = (1..=STREAMS_MAX).contains(&self.streams)
            && self.pacing.is_none_or(|pacing| {
                self.streams <= PACED_STREAMS_MAX
                    && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&pacing.block_bytes)
                    && pacing.block_bytes * u64::from(self.streams) <= BLOCKS_BYTES_MAX
                    && pacing.interval_ns > 0
                    && (pacing.mode() == Mode::Stream || self.streams == 1)
                    && (!pacing.mode().is_lossy() || pacing.block_bytes <= DATAGRAM_BYTES_MAX)
                    && pacing.blocks(self.limit).is_ok()
            });
        match bounded {
            true => Ok(()),
            false => Err(protocol("the peer asks for an impossible measurement")),
        }
    }

    /// Whether blocks may be missing in the end.
    pub(super) fn is_lossy(&self) -> bool {
        self.pacing.is_some_and(|pacing| pacing.mode().is_lossy())
    }

    /// How many messages were dropped, from the bytes that both ends have counted; `None` if none may be dropped.
    pub(super) fn dropped(&self, one: u64, other: u64) -> Option<u64> {
        let pacing = self.pacing.filter(|_| self.is_lossy())?;
        Some(one.abs_diff(other) / pacing.block_bytes.max(1))
    }

    /// The bytes that go over stream `index` when the limit is a number of bytes.
    pub(super) fn stream_bytes(&self, bytes: u64, index: u16) -> u64 {
        let streams = u64::from(self.streams);
        bytes / streams + u64::from(u64::from(index) < bytes % streams)
    }
}

/// Client to server, first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Opens the clock exchange; present exactly when blocks are paced.
    pub(super) clock: Option<ClockOffer>,
    pub(super) plan: Plan,
}

/// Server to client, first: it understands, and what it says later has a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) version: u32,
    /// Present exactly when blocks are paced.
    pub(super) clock: Option<ClockOffer>,
}

/// Half of the key for the proof that two ends read one clock, and the proof once the key is known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ClockOffer {
    pub(super) nonce: u64,
    pub(super) proof: Option<String>,
}

/// Client to server during the clock exchange.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClockStep {
    /// Answered with a [`Pong`].
    Ping,
    /// The result; data may follow.
    Start {
        proof: Option<String>,
        shared: bool,
        offset_ns: i64,
        warmup_ns: u64,
    },
}

/// The server's clock when a ping came and when its answer left.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pong {
    pub(super) received_ns: u64,
    pub(super) sent_ns: u64,
}

/// The numbers of one end for the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Bytes sent, or received and verified.
    pub(crate) bytes: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) blocks: Option<BlockNumbers>,
    /// The whole `done` of that end.
    pub(crate) done: Value,
}

impl Report {
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns)
    }
}

/// Writes one message and lets it go at once.
pub(super) fn put<T: Serialize>(out: &mut impl Outgoing, message: &T) -> Outcome<()> {
    let json = serde_json::to_vec(message)
        .map_err(|error| protocol(format!("a message cannot be written: {error}")))?;
    let length = u32::try_from(json.len()).map_err(|_| protocol("a message is too long"))?;
    let framed = [&length.to_be_bytes()[..], &json].concat();
    out.write_all(&framed)?;
    out.flush()
}

/// Reads one message.
pub(super) fn get<T: DeserializeOwned>(input: &mut impl Incoming) -> Outcome<T> {
    let mut length = [0; 4];
    read_exact(input, &mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(protocol("a message is too long"));
    }
    let mut json = vec![0; length];
    read_exact(input, &mut json)?;
    serde_json::from_slice(&json)
        .map_err(|error| protocol(format!("a message is not understood: {error}")))
}

/// Reads the end of a stream. Dropping it before would tell the sender to stop.
pub(super) fn expect_end(input: &mut impl Incoming) -> Outcome<()> {
    match input.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(protocol("more than a report")),
    }
}

fn read_exact(input: &mut impl Incoming, mut buffer: &mut [u8]) -> Outcome<()> {
    while !buffer.is_empty() {
        match input.read(buffer)? {
            0 => return Err(protocol("the stream ends inside a message")),
            n => buffer = &mut buffer[n..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Arrived;
    use crate::testing::Kept;
    use proptest::prelude::*;

    #[test]
    fn messages_cross() {
        let plan = Plan {
            direction: Direction::Up,
            limit: Limit::Bytes(50_000_000),
            streams: 3,
            pacing: Some(Pacing {
                block_bytes: 100_000,
                interval_ns: 40_000_000,
                messages: None,
            }),
            seed: u64::MAX,
            warmup_ns: 0,
        };
        let hello = Hello {
            version: VERSION,
            clock: Some(ClockOffer::default()),
            plan,
        };
        let mut kept = Kept::default();
        put(&mut kept, &hello).unwrap();
        put(&mut kept, &ClockStep::Ping).unwrap();
        let mut input = Arrived {
            bytes: &kept.0,
            piece: 7,
        };
        assert_eq!(get::<Hello>(&mut input).unwrap().plan, plan);
        assert!(matches!(get(&mut input), Ok(ClockStep::Ping)));
        assert!(get::<ClockStep>(&mut input).is_err());
        assert!(plan.check().is_ok());
        assert_eq!(
            (0..3).map(|n| plan.stream_bytes(11, n)).collect::<Vec<_>>(),
            [4, 4, 3]
        );
    }

    #[test]
    fn pacing() {
        let pacing = Pacing::new(20_000_000, 100_000).unwrap();
        assert_eq!(pacing.interval_ns, 40_000_000);
        assert_eq!(pacing.blocks(Limit::Nanoseconds(60_000_000_000)), Ok(1500));
        assert_eq!(pacing.blocks(Limit::Bytes(250_000)), Ok(2));
        assert_eq!(pacing.blocks(Limit::Bytes(1)), Ok(1));
        assert!(pacing.blocks(Limit::Bytes(u64::MAX)).is_err());
        assert!(Pacing::new(1_000_000, 10).is_err());
        assert!(Pacing::new(u64::MAX, 64).is_err());
    }

    proptest! {
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = get::<Hello>(&mut Arrived { bytes: &bytes, piece: 9 });
        }

        #[test]
        fn total_behind_the_length(json in "[{\\[\"a-z:,0-9}\\]]{0,80}") {
            let framed = [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat();
            let _ = get::<Hello>(&mut Arrived { bytes: &framed, piece: 9 });
            let _ = get::<Report>(&mut Arrived { bytes: &framed, piece: 9 });
        }
    }
}
