//! Streams that the peer sends on: which of their blocks are complete, and what the peer may send.

use std::collections::BTreeMap;

use crate::blocks::RxBlocks;
use crate::ranges::RangeSet;
use crate::types::STREAMS_MAX;
use crate::wire::{BLOCKS_AHEAD_MAX, Blocks, Frame};

use super::shares::{COMMON_SHARE, common_part};

/// A complete block is told in so many SACKs, so that all of them must be lost before the sender does not
/// know of it.
const BLOCKS_REPEATS: u8 = 3;
/// Entries of a BLOCKS frame; no block is further than [`BLOCKS_AHEAD_MAX`] from the base, so
/// that each takes four bytes at most.
const COMPLETE_MAX: usize = 64;
const DEFICITS_MAX: usize = 32;

#[derive(Debug, Default)]
struct RecvStream {
    /// Every block below is complete.
    base: u64,
    complete: RangeSet,
    /// Highest block of which a symbol arrived, plus one.
    seen: u64,
    /// SACKs that will have a BLOCKS frame even if nothing is open.
    news: u8,
    /// Costs of all blocks opened, of those the application has taken, and of these told.
    opened: u64,
    taken: u64,
    taken_told: u64,
}

/// All streams that the peer sends on, and its credit.
#[derive(Debug)]
pub(crate) struct RecvStreams {
    /// Lowest bit of their ids.
    parity: u16,
    streams: BTreeMap<u16, RecvStream>,
    /// The stream whose turn it is in the next BLOCKS frame.
    turn: u16,
    window: u64,
    /// Costs of all blocks opened here, and of those the application has taken.
    opened: u64,
    released: u64,
    /// Credit in the last SACK with a PING.
    credit_told: u64,
}

impl RecvStreams {
    pub(crate) fn new(parity: u16, window: u64) -> Self {
        Self {
            parity,
            streams: BTreeMap::new(),
            turn: 0,
            window,
            opened: 0,
            released: 0,
            credit_told: window,
        }
    }

    /// Whether the peer may send on this stream, which exists from then on.
    pub(crate) fn accept(&mut self, stream: u16) -> bool {
        let is_possible = stream & 1 == self.parity
            && (self.streams.contains_key(&stream) || (self.streams.len() as u64) < STREAMS_MAX);
        if is_possible {
            self.streams.entry(stream).or_default();
        }
        is_possible
    }

    /// Every block of the stream below is complete.
    pub(crate) fn base(&self, stream: u16) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.base)
    }

    /// Whether the block is complete, or was.
    pub(crate) fn is_complete(&self, stream: u16, id: u64) -> bool {
        let is_complete = |stream: &RecvStream| id < stream.base || stream.complete.contains(id);
        self.streams.get(&stream).is_some_and(is_complete)
    }

    /// Whether window and limits allow another block of this cost.
    pub(crate) fn may_open(&self, stream: u16, id: u64, cost: u64) -> bool {
        self.opened + cost <= self.credit() && id < self.base(stream) + BLOCKS_AHEAD_MAX
    }

    /// A block has been opened.
    pub(crate) fn on_open(&mut self, stream: u16, id: u64, cost: u64) {
        self.opened += cost;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.opened += cost;
            stream.seen = stream.seen.max(id + 1);
        }
    }

    /// The block has all it needs.
    pub(crate) fn on_complete(&mut self, stream: u16, id: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        stream.complete.insert_one(id);
        let lowest = stream.complete.iter().next();
        if let Some((low, high)) = lowest
            && low <= stream.base
        {
            stream.base = high + 1;
            stream.complete.remove_below(stream.base);
        }
        stream.news = BLOCKS_REPEATS;
    }

    /// A symbol came for a block that needs none: the peer has not heard that it is complete.
    pub(crate) fn repeat_news(&mut self, stream: u16) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.news = BLOCKS_REPEATS;
        }
    }

    /// The application has taken a complete block of this cost. Whether the sender must be sure to hear of it,
    /// since it may be waiting for nothing else.
    pub(crate) fn on_taken(&mut self, stream: u16, cost: u64) -> bool {
        self.released += cost;
        let untold = self.credit() - self.credit_told;
        let left = self.credit_told.saturating_sub(self.opened);
        // With much of the window held by streams that are not read, the rest matters the more.
        let scarce = left < self.window / 8 && 3 * untold >= left;
        let mut urgent = left < self.window / 2 && untold >= self.window / 4 || scarce;
        let Some(stream) = self.streams.get_mut(&stream) else {
            return urgent;
        };
        stream.taken += cost;
        stream.news = stream.news.max(1);
        // The sender may be waiting for this stream's share of the window, as far as it knows.
        let held = stream.opened - stream.taken_told;
        let in_use = self.opened - self.released;
        let free = common_part(self.window).saturating_sub(in_use);
        let share = COMMON_SHARE.saturating_mul(free);
        if 2 * held >= share && 4 * (stream.taken - stream.taken_told) >= held {
            stream.news = BLOCKS_REPEATS;
            urgent = true;
        }
        urgent
    }

    /// Sum of the costs of all blocks that the peer may ever open, as of now.
    pub(crate) fn credit(&self) -> u64 {
        self.released + self.window
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

    /// Writes BLOCKS frames of streams with news, in turn, while they fit before `limit`; one in any case.
    /// `flight_over`: even the newest block lacks what has not arrived.
    pub(crate) fn write(
        &mut self,
        blocks: &RxBlocks,
        flight_over: bool,
        limit: usize,
        out: &mut Vec<u8>,
    ) {
        let (turn, start) = (self.turn, out.len());
        for pass in [true, false] {
            let streams = self.streams.iter_mut();
            for (&id, stream) in streams.filter(|(id, _)| (**id >= turn) == pass) {
                if stream.news == 0 && !blocks.has_open(id) {
                    continue;
                }
                let before = out.len();
                Frame::Blocks(stream.report(id, blocks, flight_over)).encode(out);
                if before > start && out.len() > limit {
                    out.truncate(before);
                    return;
                }
                stream.news = stream.news.saturating_sub(1);
                stream.taken_told = stream.taken;
                self.turn = id.wrapping_add(1);
            }
        }
    }
}

impl RecvStream {
    /// Its state; deficits are those of blocks whose flight has passed: all but the newest,
    /// and that one too at the end of a flight.
    fn report(&self, id: u16, blocks: &RxBlocks, flight_over: bool) -> Blocks {
        let passed = if flight_over {
            self.seen
        } else {
            self.seen.saturating_sub(1)
        };
        Blocks {
            stream: id,
            base: self.base,
            taken: self.taken,
            complete: self.complete.iter().take(COMPLETE_MAX).collect(),
            deficits: blocks.deficits(id, passed).take(DEFICITS_MAX).collect(),
        }
    }
}
