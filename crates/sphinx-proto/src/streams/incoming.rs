//! Streams that the peer sends on: what of each the application has taken, and what the peer may send.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::config::Role;
use crate::ranges::Filling;
use crate::types::{STREAMS_MAX, StreamId, StreamPart};
use crate::wire::{Frame, MAX_TAKEN, Reset, Streams, varint_len};

use super::shares::{COMMON_SHARE, common_part};

/// SACKs that tell what the sender must hear of, so that all of them must be lost before it does not.
const NEWS_REPEATS: u8 = 3;
/// Ranges of ended streams in one frame.
const ENDED_MAX: usize = 32;
/// Bytes of a STREAMS frame besides its lists, and of a range of ended streams, at most where indices are near each
/// other.
const FRAME_LEN_MIN: usize = 16;
const RANGE_LEN: usize = 4;

/// What the peer is told that uses a stream which it may not send on.
pub(crate) const IMPOSSIBLE: &str = "a stream that cannot be";

/// What a RESET says of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resetting {
    /// It is given up, which the application must hear.
    Begins,
    /// The application knows, or reads no more of it; its blocks may be news.
    Goes,
    /// It has ended before, or all of it is here.
    Ended,
}

#[derive(Debug, Default)]
struct RecvStream {
    /// Costs of all its parts that are complete, of those that the application has taken, and of these told.
    received: u64,
    taken: u64,
    taken_told: u64,
    /// All of it is here, to its end.
    is_whole: bool,
    /// Its sender has given it up: why, and what all that it has handed over of it costs.
    reset: Option<(u64, u64)>,
    /// The application reads no more of it.
    is_let_go: bool,
    /// SACKs that will tell what has been taken.
    news: u8,
}

impl RecvStream {
    /// Whether nothing more comes, and everything has been taken.
    fn has_ended(&self) -> bool {
        let is_here = match self.reset {
            None => self.is_whole,
            Some((_, cost)) => self.is_let_go && self.received == cost,
        };
        is_here && self.taken == self.received
    }

    /// Whether more has come than its sender ever handed over.
    fn is_overfull(&self) -> bool {
        self.reset.is_some_and(|(_, cost)| self.received > cost)
    }
}

/// All streams that the peer sends on, and its credit.
#[derive(Debug)]
pub(crate) struct RecvStreams {
    opener: Role,
    /// Open ones, by index.
    open: BTreeMap<u64, RecvStream>,
    /// Indices of streams that have ended: all of them has been taken.
    ended: Filling,
    /// SACKs that will tell which streams have ended.
    ended_news: u8,
    /// Where the next STREAMS frame begins, where one has no room for all: among open streams, and ended ones.
    turn: u64,
    ended_turn: u64,
    window: u64,
    /// What of it the peer may fill.
    granted: u64,
    /// Costs of all blocks opened here, and of what the application has taken of them.
    opened: u64,
    released: u64,
    /// Credit in the last SACK with a PING.
    credit_told: u64,
    /// Streams that were given up and have ended, since they were last asked for.
    over: Vec<StreamId>,
}

impl RecvStreams {
    pub(crate) fn new(opener: Role, window: u64, credit: u64) -> Self {
        let granted = window.min(credit);
        Self {
            opener,
            open: BTreeMap::new(),
            ended: Filling::default(),
            ended_news: 0,
            turn: 0,
            ended_turn: 0,
            window,
            granted,
            opened: 0,
            released: 0,
            credit_told: granted,
            over: Vec::new(),
        }
    }

    /// Whether the window allows another block of this cost.
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        self.opened + cost <= self.credit()
    }

    /// A block has been opened.
    pub(crate) fn on_open(&mut self, cost: u64) {
        self.opened += cost;
    }

    /// A complete block holds nothing: what it cost is free again.
    pub(crate) fn on_empty(&mut self, cost: u64) {
        self.released += cost;
    }

    /// A stream that the peer may send on; opened if it is new.
    fn sendable(&mut self, stream: StreamId) -> Option<&mut RecvStream> {
        let index = stream.index();
        // An end opens its streams in turn: below the highest one all are open or have ended.
        let is_new =
            || !self.ended.contains(index) && index - self.ended.len_below(index) < STREAMS_MAX;
        let is_possible =
            stream.opener() == self.opener && (self.open.contains_key(&index) || is_new());
        is_possible.then(|| self.open.entry(index).or_default())
    }

    /// A part of a stream is here, in a block that is complete. `false`: the peer may not send on this stream, or not so
    /// much.
    pub(crate) fn on_received(&mut self, part: &StreamPart) -> bool {
        self.sendable(part.stream).is_some_and(|stream| {
            stream.received += part.cost;
            !stream.is_overfull()
        })
    }

    /// The peer has given a stream up. Whether that is news: not of a stream that has ended, or that is known to be given up.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(crate) fn on_reset(&mut self, reset: &Reset) -> Result<Resetting, &'static str> {
        if reset.stream.opener() == self.opener && self.ended.contains(reset.stream.index()) {
            return Ok(Resetting::Ended);
        }
        let stream = self.sendable(reset.stream).ok_or(IMPOSSIBLE)?;
        if stream.is_whole && stream.reset.is_none() {
            return Ok(Resetting::Ended);
        }
        let claimed = (reset.code, reset.cost);
        match stream.reset.replace(claimed) {
            None if stream.is_let_go => Ok(Resetting::Goes),
            None => Ok(Resetting::Begins),
            Some(known) if known == claimed => Ok(Resetting::Goes),
            Some(_) => Err("a stream reset in two ways"),
        }
    }

    /// A block of this cost that held a part of this stream alone will never be complete.
    pub(crate) fn on_abandoned(&mut self, stream: StreamId, cost: u64) {
        if let Some(stream) = self.open.get_mut(&stream.index()) {
            stream.received += cost;
        }
        self.on_taken(stream, cost);
    }

    /// All blocks that a RESET names are known to be abandoned. `false`: more has come than it says.
    pub(crate) fn after_reset(&mut self, stream: StreamId) -> bool {
        let is_overfull = |stream: &RecvStream| stream.is_overfull();
        let is_right = !self.open.get(&stream.index()).is_some_and(is_overfull);
        self.forget_ended(stream.index());
        is_right
    }

    /// The application reads no more of the stream. Whether more of it may come.
    pub(crate) fn let_go(&mut self, stream: StreamId) -> bool {
        let index = stream.index();
        let Some(stream) = self.open.get_mut(&index) else {
            return false;
        };
        stream.is_let_go = true;
        let is_coming = !stream.is_whole && stream.reset.is_none();
        self.forget_ended(index);
        is_coming
    }

    /// Streams that were given up and have ended, since the last call.
    pub(crate) fn take_over(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.over)
    }

    /// All of a stream is here, to its end.
    pub(crate) fn on_whole(&mut self, stream: StreamId) {
        if let Some(stream) = self.open.get_mut(&stream.index()) {
            stream.is_whole = true;
        }
        self.forget_ended(stream.index());
    }

    /// The application has taken a part of this cost. Whether the sender must be sure to hear of it, since it may be
    /// waiting for nothing else.
    pub(crate) fn on_taken(&mut self, stream: StreamId, cost: u64) -> bool {
        self.released += cost;
        let untold = self.credit() - self.credit_told;
        let left = self.credit_told.saturating_sub(self.opened);
        // With much of the window held by streams that are not read, the rest matters the more.
        let scarce = left < self.window / 8 && 3 * untold >= left;
        let mut urgent = left < self.window / 2 && untold >= self.window / 4 || scarce;
        let index = stream.index();
        let Some(stream) = self.open.get_mut(&index) else {
            return urgent;
        };
        stream.taken += cost;
        stream.news = stream.news.max(1);
        // The sender may be waiting for this stream's share of the window, as far as it knows.
        let held = stream.received - stream.taken_told;
        let in_use = self.opened - self.released;
        let free = common_part(self.window).saturating_sub(in_use);
        let share = COMMON_SHARE.saturating_mul(free);
        if 2 * held >= share && 4 * (stream.taken - stream.taken_told) >= held {
            stream.news = NEWS_REPEATS;
            urgent = true;
        }
        self.forget_ended(index);
        urgent
    }

    /// A stream of which everything has been taken has ended.
    fn forget_ended(&mut self, index: u64) {
        if !self.open.get(&index).is_some_and(RecvStream::has_ended) {
            return;
        }
        let stream = self.open.remove(&index);
        if stream.is_some_and(|stream| stream.reset.is_some()) {
            self.over.push(StreamId::new(self.opener, index));
        }
        self.ended.insert(index);
        self.ended_news = NEWS_REPEATS;
    }

    /// Sum of the costs of all blocks that the peer may ever open, as of now.
    pub(crate) fn credit(&self) -> u64 {
        self.released + self.granted
    }

    /// From now on the peer may fill the whole window. Whether it could not before.
    pub(crate) fn open_window(&mut self) -> bool {
        let before = std::mem::replace(&mut self.granted, self.window);
        before < self.window
    }

    /// The last feedback is in a packet that is repeated until it is acknowledged: its credit counts as told.
    pub(crate) fn told_reliably(&mut self) {
        self.credit_told = self.credit();
    }

    /// The next feedback names every stream; where it has no room for all, the ones after it do.
    pub(crate) fn report_all(&mut self) {
        for stream in self.open.values_mut() {
            stream.news = stream.news.max(1);
        }
        let has_any = self.ended.base() > 0 || self.ended.above().next().is_some();
        self.ended_news = self.ended_news.max(u8::from(has_any));
    }

    /// Writes STREAMS frames if there is anything to tell: up to `limit` bytes of `out`, but for one stream in any case.
    pub(crate) fn write(&mut self, limit: usize, out: &mut Vec<u8>) {
        let turn = self.turn;
        if self.ended_news == 0 && !self.has_news(0..u64::MAX) {
            return;
        }
        let room = limit.saturating_sub(out.len() + FRAME_LEN_MIN);
        let ended = self.ended_ranges(room);
        let room = room.saturating_sub(RANGE_LEN * ended.len());
        self.write_frame(ended, turn..u64::MAX, room, out);
        // Those before the first one follow, if there is room.
        let room = limit.saturating_sub(out.len() + FRAME_LEN_MIN);
        if self.turn == 0 && room > 0 && self.has_news(0..turn) {
            self.write_frame(Vec::new(), 0..turn, room, out);
        }
    }

    fn has_news(&self, indices: Range<u64>) -> bool {
        self.open.range(indices).any(|(_, stream)| stream.news > 0)
    }

    fn write_frame(
        &mut self,
        ended: Vec<(u64, u64)>,
        indices: Range<u64>,
        room: usize,
        out: &mut Vec<u8>,
    ) {
        let taken = self.taken_of(indices, room);
        let frame = Frame::Streams(Streams {
            kind: StreamId::new(self.opener, 0).kind(),
            base: self.ended.base(),
            ended,
            taken,
        });
        frame.encode(out);
    }

    /// The next ranges of ended streams.
    fn ended_ranges(&mut self, room: usize) -> Vec<(u64, u64)> {
        let most = ENDED_MAX.min(room / RANGE_LEN);
        let mut next = self
            .ended
            .above()
            .filter(|range| range.1 >= self.ended_turn);
        let ranges: Vec<_> = next.by_ref().take(most).collect();
        let is_all = next.next().is_none();
        self.ended_turn = match ranges.last() {
            Some((_, high)) if !is_all => high + 1,
            _ => 0,
        };
        if is_all {
            self.ended_news = self.ended_news.saturating_sub(1);
        }
        ranges
    }

    /// What has been taken of the next streams with news, of those with these indices. The turn is that of the first
    /// one for which there is no room, or of the lowest.
    fn taken_of(&mut self, indices: Range<u64>, room: usize) -> Vec<(u64, u64)> {
        let (mut next, mut len) = (self.ended.base(), 0);
        let mut taken = Vec::new();
        self.turn = 0;
        let streams = self.open.range_mut(indices);
        for (&index, stream) in streams.filter(|(_, stream)| stream.news > 0) {
            len += varint_len(index - next) + varint_len(stream.taken);
            if taken.len() == MAX_TAKEN || !taken.is_empty() && len > room {
                self.turn = index;
                break;
            }
            taken.push((index, stream.taken));
            stream.news -= 1;
            stream.taken_told = stream.taken;
            next = index + 1;
        }
        taken
    }
}
