//! What the receiving half says: Symbol-SACK and Block-SACK.

use super::{Receiver, RxStream};
use crate::Nanos;
use crate::wire::{Blocks, Frame, Sack, varint_len};

/// What one SACK says, the following ones say again: so many in a row must be lost before packets
/// that arrived count as lost.
const SACK_REPEATS: usize = 8;
/// Packet-number ranges that a SACK has room for on top of these repetitions; they report packets
/// that were much delayed.
const SACK_RANGES_MIN: usize = 32;
/// Entries of a BLOCKS frame; no block is further than [`crate::wire::BLOCKS_AHEAD_MAX`] from the base, so
/// that each takes four bytes at most.
const COMPLETE_MAX: usize = 64;
const DEFICITS_MAX: usize = 32;
/// Bytes of a SACK without its further ranges, at most.
const SACK_FRAME_MIN: usize = 1 + 9 * 8;

impl Receiver {
    /// When a SACK is due.
    pub(crate) fn sack_timeout(&self) -> Option<Nanos> {
        self.largest?;
        self.sack_at.into_iter().chain(self.tail_at).min()
    }

    /// The last feedback is in a packet that is repeated until it is acknowledged: its credit counts as told.
    pub(crate) fn told_reliably(&mut self) {
        self.credit_told = self.credit();
    }

    /// The next feedback names every stream; where it has no room for all, the ones after it do.
    pub(crate) fn report_all(&mut self) {
        for stream in self.streams.values_mut() {
            stream.news = stream.news.max(1);
        }
    }

    /// Write SACK and BLOCKS frames into `out`, at most `room` bytes.
    ///
    /// Block-SACKs come first: the sender then does not compensate losses in blocks that are complete.
    pub(crate) fn write_feedback(&mut self, now: Nanos, room: usize, out: &mut Vec<u8>) {
        let Some((largest, received_at)) = self.largest else {
            return;
        };
        let end = out.len() + room;
        self.last_sack = Some(now);
        self.sack_at = None;
        self.tail_at = None;
        if self.tail_repeats > 0 {
            self.tail_at = Some(now + self.tail_delay);
            self.tail_repeats -= 1;
            self.tail_delay *= 2;
        }
        self.unacked = 0;
        self.write_blocks(out.len() + room / 2, out);
        let sack = Sack {
            sequence: self.sack_sequence,
            delay_us: now.saturating_sub(received_at) / 1000,
            time_us: received_at / 1000,
            ect: self.ect,
            ce: self.ce,
            credit: self.credit(),
            ranges: self.sack_ranges(end.saturating_sub(out.len() + SACK_FRAME_MIN)),
        };
        self.sack_sequence += 1;
        if self.told.len() == SACK_REPEATS {
            self.told.pop_front();
        }
        self.told.push_back(largest);
        Frame::Sack(sack).encode(out);
    }

    /// Frames of streams with news, in turn, while they fit before `limit`; one in any case.
    fn write_blocks(&mut self, limit: usize, out: &mut Vec<u8>) {
        let (turn, start) = (self.feedback_turn, out.len());
        for pass in [true, false] {
            let streams = self.streams.iter_mut();
            for (&id, stream) in streams.filter(|(id, _)| (**id >= turn) == pass) {
                if stream.news == 0 && stream.open.is_empty() {
                    continue;
                }
                let before = out.len();
                Frame::Blocks(blocks_frame(id, stream, self.flight_over)).encode(out);
                if before > start && out.len() > limit {
                    out.truncate(before);
                    return;
                }
                stream.news = stream.news.saturating_sub(1);
                stream.taken_told = stream.taken;
                self.feedback_turn = id.wrapping_add(1);
            }
        }
    }

    /// The largest packet numbers: what arrived since the last few SACKs, in at most `room` bytes.
    fn sack_ranges(&self, room: usize) -> Vec<(u64, u64)> {
        let floor = match self.told.front() {
            Some(oldest) if self.told.len() == SACK_REPEATS => *oldest,
            _ => 0,
        };
        let mut ranges = Vec::new();
        let mut room_left = room;
        let mut below = None;
        for (low, high) in self.received.iter().rev() {
            let gap = below.map_or(0, |below: u64| below - high - 2);
            let size = varint_len(gap) + varint_len(high - low);
            let enough = high < floor && ranges.len() >= SACK_RANGES_MIN;
            if !ranges.is_empty() && (enough || size > room_left) {
                break;
            }
            room_left = room_left.saturating_sub(size);
            ranges.push((low, high));
            below = Some(low);
        }
        ranges
    }
}

/// State of one stream; deficits are those of blocks whose flight has passed: all but the newest,
/// and that one too at the end of a flight.
fn blocks_frame(id: u16, stream: &RxStream, flight_over: bool) -> Blocks {
    let passed = if flight_over {
        stream.seen
    } else {
        stream.seen.saturating_sub(1)
    };
    Blocks {
        stream: id,
        base: stream.base,
        taken: stream.taken,
        complete: stream.complete.iter().take(COMPLETE_MAX).collect(),
        deficits: stream
            .open
            .range(..passed)
            .take(DEFICITS_MAX)
            .map(|(id, block)| (*id, block.tracker.deficit() as u32))
            .collect(),
    }
}
