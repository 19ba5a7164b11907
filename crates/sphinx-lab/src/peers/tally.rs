//! What a receiver keeps account of.

use std::{collections::HashSet, time::Duration};

use super::{Pattern, PeerError};
use crate::{BlockNumbers, Workload};

/// Between two words about what has arrived, in nanoseconds.
const TOLD_NS: u64 = 500_000_000;

/// Where what is lost stays lost: for so long behind the time of the last block a receiver waits for what
/// is still under way.
const SILENCE: Duration = Duration::from_millis(300);

/// The first bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// When the sender began to connect: nanoseconds of the shared monotonic clock.
    pub start_ns: u64,
    /// When the first block is scheduled; for bulk the same as `start_ns`.
    pub schedule_ns: u64,
}

impl Preamble {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// To the wire.
    pub fn to_bytes(self) -> [u8; Preamble::BYTES] {
        pair(self.start_ns, self.schedule_ns)
    }

    /// From the wire.
    pub fn from_bytes(bytes: [u8; Preamble::BYTES]) -> Preamble {
        let (start_ns, schedule_ns) = unpair(bytes);
        Preamble {
            start_ns,
            schedule_ns,
        }
    }
}

/// A block as it is sent: its number and its scheduled time in place of the pattern's first bytes.
pub(super) fn write_block(
    block: &mut Vec<u8>,
    (number, scheduled_ns): (u64, u64),
    bytes: u64,
    pattern: &Pattern,
) {
    block.clear();
    block.extend(block_head(number, scheduled_ns));
    while (block.len() as u64) < bytes {
        let offset = block.len() as u64;
        block.extend_from_slice(pattern.piece(offset, bytes - offset));
    }
}

/// The first bytes of a block that is of `bytes`, all of them as they were sent.
pub(super) fn checked_head(
    block: &[u8],
    bytes: u64,
    pattern: &Pattern,
) -> Result<[u8; 16], PeerError> {
    let (head, rest) = block.split_first_chunk().ok_or(PeerError::Corrupt(0))?;
    match block.len() as u64 == bytes && pattern.matches(head.len() as u64, rest) {
        true => Ok(*head),
        false => Err(PeerError::Corrupt(0)),
    }
}

/// When the schedule began in which the block with this head is, one every `interval`.
pub(super) fn schedule_of(head: [u8; 16], interval: Duration) -> u64 {
    let (number, scheduled_ns) = unpair(head);
    let after = u128::from(number) * interval.as_nanos();
    scheduled_ns.saturating_sub(u64::try_from(after).unwrap_or(u64::MAX))
}

/// The number of the block with this head.
pub(super) fn number_of(head: [u8; 16]) -> u64 {
    unpair(head).0
}

/// The number of a block and its scheduled time.
pub(super) fn block_head(number: u64, scheduled_ns: u64) -> [u8; 16] {
    pair(number, scheduled_ns)
}

fn pair(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) | (u128::from(second) << 64)).to_le_bytes()
}

fn unpair(bytes: [u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(bytes);
    (both as u64, (both >> 64) as u64)
}

/// The account of a receiver.
#[derive(Clone, Debug)]
pub struct Tally {
    start_ns: u64,
    schedule_ns: u64,
    deadline_ns: u64,
    warmup: Duration,
    workload: Workload,
    bytes: u64,
    last_ns: u64,
    told_ns: u64,
    /// Numbers of whole blocks, those that came after the cut-off included.
    whole: HashSet<u64>,
    blocks: u64,
    /// Blocks after their deadline, warm-up left out, as in the latencies.
    late: u64,
    latencies_ms: Vec<f64>,
}

impl Tally {
    /// Opens the account of a transfer.
    ///
    /// # Errors
    ///
    /// [`PeerError::Impossible`] if the sender's clock cannot be this machine's.
    pub fn open(
        preamble: Preamble,
        workload: Workload,
        limit: Duration,
        warmup: Duration,
        now_ns: u64,
    ) -> Result<Tally, PeerError> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        if preamble.start_ns > now_ns || preamble.schedule_ns < preamble.start_ns {
            return Err(PeerError::Impossible("start of the transfer"));
        }
        Ok(Tally {
            start_ns: preamble.start_ns,
            schedule_ns: preamble.schedule_ns,
            deadline_ns: preamble.start_ns.saturating_add(limit_ns),
            warmup,
            workload,
            bytes: 0,
            last_ns: preamble.start_ns,
            told_ns: preamble.start_ns,
            whole: HashSet::new(),
            blocks: 0,
            late: 0,
            latencies_ms: Vec::new(),
        })
    }

    /// Time left until the cut-off; none if it has come.
    pub fn left(&self, now_ns: u64) -> Option<Duration> {
        let left = self.deadline_ns.checked_sub(now_ns)?;
        (left > 0).then(|| Duration::from_nanos(left))
    }

    /// Until when more may come once something of the block with this number has, where what is lost stays lost: its successors are due one
    /// by one, and the link may be silent meanwhile. At most until the cut-off.
    pub fn may_come_until(&self, number: u64, now_ns: u64) -> u64 {
        let (later, interval, deadline) = match self.workload {
            Workload::Blocks {
                count, interval, ..
            } => (count.saturating_sub(number), interval, Duration::ZERO),
            Workload::Live {
                count,
                interval,
                deadline,
                ..
            } => (count.saturating_sub(number), interval, deadline),
            _ => (0, Duration::ZERO, Duration::ZERO),
        };
        let more = u128::from(later) * interval.as_nanos() + (deadline + SILENCE).as_nanos();
        let until = u64::try_from(u128::from(now_ns) + more).unwrap_or(u64::MAX);
        until.min(self.deadline_ns)
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        self.bytes >= self.workload.bytes()
    }

    /// Bytes have arrived in order. What comes after the cut-off does not count.
    pub fn add(&mut self, bytes: u64, now_ns: u64) {
        if now_ns <= self.deadline_ns {
            self.bytes += bytes;
            self.last_ns = now_ns;
        }
    }

    /// Now and then: the bytes that have arrived, for those who watch.
    pub fn news(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.told_ns) < TOLD_NS {
            return None;
        }
        self.told_ns = now_ns;
        Some(self.bytes)
    }

    /// Whether the block with this head has been whole before.
    pub fn has_block(&self, head: [u8; 16]) -> bool {
        self.whole.contains(&number_of(head))
    }

    /// A block is whole; `head` is its beginning. (Its bytes are added apart.)
    ///
    /// # Errors
    ///
    /// [`PeerError::Impossible`] if there is no such block, it comes from the future, or it has come before.
    pub fn add_block(&mut self, head: [u8; 16], now_ns: u64) -> Result<(), PeerError> {
        let (count, interval, deadline) = match self.workload {
            Workload::Blocks {
                count, interval, ..
            } => (count, interval, Duration::MAX),
            Workload::Live {
                count,
                interval,
                deadline,
                ..
            } => (count, interval, deadline),
            _ => return Err(PeerError::Impossible("block")),
        };
        let (number, scheduled_ns) = unpair(head);
        let after = u128::from(number) * interval.as_nanos();
        let expected = u128::from(self.schedule_ns) + after;
        if number >= count || u128::from(scheduled_ns) != expected {
            return Err(PeerError::Impossible("number of a block"));
        }
        let late = now_ns
            .checked_sub(scheduled_ns)
            .ok_or(PeerError::Impossible("time of a block"))?;
        if !self.whole.insert(number) {
            return Err(PeerError::Impossible("second copy of a block"));
        }
        if now_ns <= self.deadline_ns {
            self.blocks += 1;
            if after >= self.warmup.as_nanos() {
                self.late += u64::from(u128::from(late) > deadline.as_nanos());
                self.latencies_ms.push(late as f64 * 1e-6);
            }
        }
        Ok(())
    }

    /// Closes the account of a transfer that may end without being complete: its end is the last byte
    /// that came.
    pub fn close_at_last(self) -> Received {
        let (seconds, end_ns) = (self.seconds_until(self.last_ns), self.last_ns);
        Received {
            seconds,
            end_ns: Some(end_ns),
            ..self.close()
        }
    }

    fn seconds_until(&self, end_ns: u64) -> f64 {
        (end_ns - self.start_ns) as f64 * 1e-9
    }

    /// Closes the account.
    pub fn close(self) -> Received {
        let complete = self.is_complete();
        let end_ns = if complete {
            self.last_ns
        } else {
            self.deadline_ns
        };
        let came = self.latencies_ms.len() as u64;
        let due = self.workload.due_after(self.warmup).unwrap_or(came);
        // Messages that did not arrive are counted as dropped; all other numbers are about those that came.
        let (dropped, due) = match self.workload {
            Workload::Live { .. } => (Some(due.saturating_sub(came)), came),
            _ => (None, due),
        };
        Received {
            bytes: self.bytes,
            seconds: self.seconds_until(end_ns),
            end_ns: Some(end_ns),
            complete,
            blocks: self.blocks,
            late: self.late,
            dropped,
            block_ms: BlockNumbers::of(&self.latencies_ms, due),
            socket_bytes: None,
        }
    }
}

/// What a receiver measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    /// Payload bytes, all of them checked.
    pub bytes: u64,
    /// From the start of the connection to the last byte, or to the cut-off.
    pub seconds: f64,
    /// When that was, if it is known: nanoseconds of the shared monotonic clock.
    pub end_ns: Option<u64>,
    /// Whether everything arrived.
    pub complete: bool,
    /// Whole blocks.
    pub blocks: u64,
    /// Those that came behind their deadline, without the warm-up.
    pub late: u64,
    /// Messages that did not come before the cut-off, if they had a deadline, without the warm-up.
    pub dropped: Option<u64>,
    /// Their latencies from the scheduled time, without the warm-up.
    pub block_ms: Option<BlockNumbers>,
    /// What the system lets the socket keep of what arrives, where it was asked for more than usual.
    pub socket_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn blocks() -> Tally {
        let preamble = Preamble {
            start_ns: 5 * MS,
            schedule_ns: 20 * MS,
        };
        assert_eq!(Preamble::from_bytes(preamble.to_bytes()), preamble);
        let workload = Workload::Blocks {
            count: 4,
            bytes: 1000,
            interval: Duration::from_millis(40),
        };
        let limit = Duration::from_millis(200);
        let warmup = Duration::from_millis(100);
        Tally::open(preamble, workload, limit, warmup, 6 * MS).unwrap()
    }

    #[test]
    fn blocks_are_timed_from_their_schedule() {
        let mut tally = blocks();
        for number in 0..4 {
            let scheduled = (20 + 40 * number) * MS;
            let now = scheduled + (9 + number) * MS;
            tally.add(1000, now);
            tally.add_block(block_head(number, scheduled), now).unwrap();
        }
        assert!(tally.is_complete());
        let received = tally.close();
        assert_eq!(
            (received.blocks, received.bytes, received.complete),
            (4, 4000, true)
        );
        // The first three are scheduled within the first 100 ms.
        let block_ms = received.block_ms.unwrap();
        assert_eq!(block_ms.count, 1);
        assert!((block_ms.mean_ms - 12.0).abs() < 1e-9);
        assert!((received.seconds - 0.147).abs() < 1e-9);
    }

    #[test]
    fn the_cut_off_is_where_the_account_ends() {
        let mut tally = blocks();
        tally.add(500, 100 * MS);
        assert_eq!(tally.left(204 * MS), Some(Duration::from_millis(1)));
        assert_eq!(tally.left(205 * MS), None);
        tally.add(500, 206 * MS);
        tally.add_block(block_head(0, 20 * MS), 206 * MS).unwrap();
        let received = tally.close();
        assert_eq!(
            (received.blocks, received.bytes, received.complete),
            (0, 500, false)
        );
        assert!((received.seconds - 0.2).abs() < 1e-9);
    }

    /// A sender that stalls: eight blocks within 77 ms, and nothing more of 300.
    #[test]
    fn what_did_not_come_took_longer_than_all_that_did() {
        let preamble = Preamble {
            start_ns: 0,
            schedule_ns: 0,
        };
        let workload = Workload::Blocks {
            count: 300,
            bytes: 1000,
            interval: Duration::from_millis(40),
        };
        let limit = Duration::from_secs(14);
        let mut tally = Tally::open(preamble, workload, limit, Duration::ZERO, 0).unwrap();
        for number in 0..8 {
            let due = 40 * number * MS;
            let now = due + (70 + number) * MS;
            tally.add(1000, now);
            tally.add_block(block_head(number, due), now).unwrap();
        }
        let block_ms = tally.close().block_ms.unwrap();
        assert_eq!((block_ms.count, block_ms.due), (8, Some(300)));
        assert_eq!((block_ms.p50_ms, block_ms.p99_ms), (None, None));
        assert!((block_ms.max_ms - 77.0).abs() < 1e-9);
    }

    /// Four messages behind a warm-up of two: one in time, two late, one that does not come.
    #[test]
    fn messages_of_the_warm_up_are_neither_late_nor_dropped() {
        let preamble = Preamble {
            start_ns: 0,
            schedule_ns: 0,
        };
        let workload = Workload::Live {
            count: 6,
            bytes: 1000,
            interval: Duration::from_millis(10),
            deadline: Duration::from_millis(5),
        };
        let (limit, warmup) = (Duration::from_secs(1), Duration::from_millis(20));
        let mut tally = Tally::open(preamble, workload, limit, warmup, 0).unwrap();
        for (number, late) in [(1, 9), (2, 4), (3, 6), (5, 7)] {
            let due = 10 * number * MS;
            tally.add(1000, due + late * MS);
            let head = block_head(number, due);
            tally.add_block(head, due + late * MS).unwrap();
        }
        let received = tally.close_at_last();
        assert_eq!((received.late, received.dropped), (2, Some(1)));
        let block_ms = received.block_ms.unwrap();
        assert_eq!((block_ms.count, block_ms.p99_ms), (3, Some(7.0)));
    }

    #[test]
    fn silence_is_no_end_while_more_is_due() {
        let tally = Tally {
            deadline_ns: 1000 * MS,
            ..blocks()
        };
        // Four blocks, one every 40 ms.
        assert_eq!(tally.may_come_until(2, 100 * MS), 480 * MS);
        assert_eq!(tally.may_come_until(3, 900 * MS), 1000 * MS);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut tally = blocks();
        assert!(tally.add_block(block_head(4, 180 * MS), 200 * MS).is_err());
        assert!(tally.add_block(block_head(1, 61 * MS), 200 * MS).is_err());
        assert!(tally.add_block(block_head(1, 60 * MS), 59 * MS).is_err());
        let (first, second) = (block_head(0, 20 * MS), block_head(1, 60 * MS));
        tally.add_block(first, 70 * MS).unwrap();
        assert!(tally.has_block(first) && !tally.has_block(second));
        assert!(tally.add_block(first, 71 * MS).is_err());
        assert!(
            tally
                .add_block(block_head(u64::MAX, u64::MAX), u64::MAX)
                .is_err()
        );
        let from_the_future = Preamble {
            start_ns: 2,
            schedule_ns: 2,
        };
        let bulk = Workload::Bulk { bytes: 1 };
        assert!(Tally::open(from_the_future, bulk, Duration::MAX, Duration::ZERO, 1).is_err());
    }
}
