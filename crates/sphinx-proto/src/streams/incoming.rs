//! Streams that the peer sends on: what of each the application has taken, and what the peer may send.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::config::Role;
use crate::ranges::Filling;
use crate::types::{StreamId, StreamPart};
use crate::wire::{Frame, MAX_TAKEN, Reset, Streams, varint_len};
use crate::{Time, WindowNumber};

use super::Key;
use super::shares::likely_share;
use super::window::RecvWindow;

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
    /// This is news: the application is to hear that the stream is given up.
    Begins,
    /// The application knows, or does not read the stream any more; the frame may still name blocks that will not come.
    Goes,
    /// Nothing follows from it: the stream had ended, or all of it has arrived.
    Ended,
}

#[derive(Debug, Default)]
struct RecvStream {
    /// Cost of all complete parts of the stream.
    received: u64,
    /// Cost of the parts that the application has read.
    taken: u64,
    /// How much of `taken` the peer has been told.
    taken_told: u64,
    /// The whole stream is here, to its end.
    is_whole: bool,
    /// Its sender has given it up: why, and what all that it has handed over of it costs. In a box: few streams end so.
    reset: Option<Box<(u64, u64)>>,
    /// The application reads no more of the stream.
    is_let_go: bool,
    /// This end has an answer to send on it, of which its opener has not taken everything.
    answers: bool,
    /// How many SACKs are still to tell what has been taken.
    news: u8,
}

impl RecvStream {
    /// Whether nothing more comes, and everything has been taken.
    fn is_over(&self) -> bool {
        let is_here = match self.reset.as_deref() {
            None => self.is_whole,
            Some((_, cost)) => self.is_let_go && self.received == *cost,
        };
        is_here && self.taken == self.received
    }

    /// Whether more has come than its sender ever handed over.
    fn is_overfull(&self) -> bool {
        let claimed = self.reset.as_deref();
        claimed.is_some_and(|(_, cost)| self.received > *cost)
    }
}

/// Streams of one kind that have ended: all of them has been taken, and of the answer too if there is one.
#[derive(Debug, Default)]
struct Ended {
    indices: Filling<u64>,
    /// How many SACKs are still to tell which streams have ended.
    news: u8,
    /// Where the next STREAMS frame begins, where one has no room for all.
    turn: u64,
}

/// All streams that the peer sends on, and its credit.
#[derive(Debug)]
pub(crate) struct RecvStreams {
    /// This end, and how many streams of a kind the peer may have open at a time.
    end: Role,
    open_max: u64,
    /// How many streams with two directions the peer may know of those that this end has opened.
    begun: u64,
    open: BTreeMap<Key, RecvStream>,
    /// Most streams that were open at a time.
    peak: u64,
    ended: [Ended; StreamId::KINDS as usize],
    /// Open streams of which there is something to tell.
    news: BTreeSet<Key>,
    /// Where the next STREAMS frame begins, where one has no room for all.
    turn: Key,
    window: RecvWindow,
    /// Streams that were given up and have ended, since they were last asked for.
    over: Vec<StreamId>,
}

impl RecvStreams {
    pub(crate) fn new(end: Role, open_max: u64, window: RecvWindow) -> Self {
        Self {
            end,
            open_max,
            begun: 0,
            open: BTreeMap::new(),
            peak: 0,
            ended: Default::default(),
            news: BTreeSet::new(),
            turn: Key { kind: 0, index: 0 },
            window,
            over: Vec::new(),
        }
    }

    /// The peer hears of a stream that this end has opened: it may answer, if the stream has two directions.
    pub(crate) fn begin(&mut self, stream: StreamId) {
        if stream.is_bi() && stream.opener() == self.end {
            self.begun = self.begun.max(stream.index() + 1);
        }
    }

    /// Most streams that were open at a time.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// How much may be here and not taken.
    pub(crate) fn window(&self) -> &RecvWindow {
        &self.window
    }

    /// Whether the window allows another block of this cost.
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        self.window.has_room(cost)
    }

    /// A block has been opened.
    pub(crate) fn on_open(&mut self, cost: u64) {
        self.window.on_open(cost);
    }

    /// A complete block holds nothing: what it cost is free again.
    pub(crate) fn on_empty(&mut self, cost: u64) {
        self.window.release(cost);
    }

    /// A stream that the peer may send on; opened if it is new.
    fn sendable(&mut self, stream: StreamId) -> Option<&mut RecvStream> {
        let key = Key::from(stream);
        if !self.open.contains_key(&key) {
            if !self.may_begin(stream) {
                return None;
            }
            let answers = stream.is_bi() && stream.opener() != self.end;
            let new = RecvStream {
                answers,
                ..RecvStream::default()
            };
            self.open.insert(key, new);
            self.peak = self.peak.max(self.open.len() as u64);
        }
        self.open.get_mut(&key)
    }

    fn may_begin(&self, stream: StreamId) -> bool {
        let key = Key::from(stream);
        let ended = &self.ended[key.at()].indices;
        if ended.contains(key.index) {
            return false;
        }
        match stream.opener() == self.end {
            true => stream.is_bi() && key.index < self.begun,
            // An end opens its streams in turn: below the highest one all are open or have ended.
            false => key.index - ended.len_below(key.index) < self.open_max,
        }
    }

    /// The peer wants no more of the answer on a stream that it has opened, of which this end may hear for the first time.
    /// `false`: there can be no such stream.
    pub(crate) fn on_stopped(&mut self, stream: StreamId) -> bool {
        let ended = &self.ended[Key::from(stream).at()].indices;
        stream.opener() == self.end
            || ended.contains(stream.index())
            || stream.is_bi() && self.sendable(stream).is_some()
    }

    /// A part of a stream is here, in a block that is complete. `false`: the peer may not send on this stream, or not so
    /// much.
    pub(crate) fn on_received(&mut self, part: &StreamPart) -> bool {
        self.sendable(part.stream).is_some_and(|stream| {
            // Of one that is over, the answer may still be on its way.
            let was_over = stream.is_over();
            stream.received += part.cost;
            !was_over && !stream.is_overfull()
        })
    }

    /// The peer has given a stream up. Whether that is news: not of a stream that has ended, or that is known to be given up.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(crate) fn on_reset(&mut self, reset: &Reset) -> Result<Resetting, &'static str> {
        let key = Key::from(reset.stream);
        if self.ended[key.at()].indices.contains(key.index) {
            return Ok(Resetting::Ended);
        }
        let stream = self.sendable(reset.stream).ok_or(IMPOSSIBLE)?;
        if stream.is_whole && stream.reset.is_none() {
            return Ok(Resetting::Ended);
        }
        let claimed = (reset.code, reset.cost);
        match stream.reset.replace(Box::new(claimed)) {
            None if stream.is_let_go => Ok(Resetting::Goes),
            None => Ok(Resetting::Begins),
            Some(known) if *known == claimed => Ok(Resetting::Goes),
            Some(_) => Err("a stream reset in two ways"),
        }
    }

    /// A block of this cost that held a part of this stream alone will never be complete. `false`: there was no more of it, since
    /// the stream has ended.
    pub(crate) fn on_abandoned(&mut self, stream: StreamId, cost: u64) -> bool {
        let Some(open) = self.open.get_mut(&stream.into()) else {
            return false;
        };
        open.received += cost;
        self.window.release(cost);
        self.release(stream, cost);
        true
    }

    /// All blocks that a RESET names are known to be abandoned. `false`: more has come than it says.
    pub(crate) fn after_reset(&mut self, stream: StreamId) -> bool {
        let is_overfull = |stream: &RecvStream| stream.is_overfull();
        let key = Key::from(stream);
        let is_right = !self.open.get(&key).is_some_and(is_overfull);
        self.forget_ended(key);
        is_right
    }

    /// The application reads no more of the stream. Whether more of it may come.
    pub(crate) fn let_go(&mut self, stream: StreamId) -> bool {
        // The peer may hear of a stream first by being told that its answer is not wanted.
        self.begin(stream);
        let Some(state) = self.sendable(stream) else {
            return false;
        };
        state.is_let_go = true;
        let is_coming = !state.is_whole && state.reset.is_none();
        self.forget_ended(stream.into());
        is_coming
    }

    /// The peer has taken all of the answer on a stream that it has opened.
    pub(crate) fn on_answer_over(&mut self, stream: StreamId) {
        let key = Key::from(stream);
        if let Some(stream) = self.open.get_mut(&key) {
            stream.answers = false;
        }
        self.forget_ended(key);
    }

    /// Streams that were given up and have ended, since the last call.
    pub(crate) fn take_over(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.over)
    }

    /// All of a stream is here, to its end.
    pub(crate) fn on_whole(&mut self, stream: StreamId) {
        let key = Key::from(stream);
        if let Some(stream) = self.open.get_mut(&key) {
            stream.is_whole = true;
        }
        self.forget_ended(key);
    }

    /// The application has taken a part of this cost. Whether the sender must be sure to hear of it, since it may be
    /// waiting for nothing else.
    pub(crate) fn on_taken(&mut self, now: Time, stream: StreamId, cost: u64) -> bool {
        let is_urgent = self.window.on_taken(now, cost);
        self.release(stream, cost) || is_urgent
    }

    /// A part of this cost has been taken, or never will be here. Whether the sender may be waiting for this stream's share.
    fn release(&mut self, stream: StreamId, cost: u64) -> bool {
        let (key, holders) = (Key::from(stream), self.open.len() as u64);
        let Some(stream) = self.open.get_mut(&key) else {
            return false;
        };
        stream.taken += cost;
        stream.news = stream.news.max(1);
        self.news.insert(key);
        // The sender may be waiting for this stream's share of the window, as far as it knows.
        let held = stream.received - stream.taken_told;
        let (window, free) = (self.window.size(), self.window.free());
        let share = likely_share(window, free, holders, stream.taken_told);
        let is_urgent = 2 * held >= share && 4 * (stream.taken - stream.taken_told) >= held;
        if is_urgent {
            stream.news = NEWS_REPEATS;
        }
        self.forget_ended(key);
        is_urgent
    }

    /// A stream of which everything has been taken has ended.
    fn forget_ended(&mut self, key: Key) {
        let has_ended = |stream: &RecvStream| stream.is_over() && !stream.answers;
        if !self.open.get(&key).is_some_and(has_ended) {
            return;
        }
        let stream = self.open.remove(&key);
        self.news.remove(&key);
        if stream.is_some_and(|stream| stream.reset.is_some()) {
            self.over.push(key.stream());
        }
        let ended = &mut self.ended[key.at()];
        ended.indices.insert(key.index);
        ended.news = NEWS_REPEATS;
    }

    /// From now on the peer may fill the whole window. Whether it could not before.
    pub(crate) fn open_window(&mut self) -> bool {
        self.window.open()
    }

    /// The window has another size: its number, which the peer is to be told.
    pub(crate) fn resize_window(&mut self, size: u64) -> Option<WindowNumber> {
        self.window.resize(size)
    }

    /// The window with this number has held the peer up.
    pub(crate) fn on_held(&mut self, number: WindowNumber) {
        self.window.on_held(number);
    }

    /// The peer keeps within this credit since the window with this number is smaller. `false`: that cannot be.
    pub(crate) fn on_shrunk(&mut self, number: WindowNumber, credit: u64) -> bool {
        self.window.on_shrunk(number, credit)
    }

    /// When a window that has grown is to be as at the beginning again, and what that was.
    pub(crate) fn window_idle(&self) -> Option<(Time, u64)> {
        Some((self.window.idle_at()?, self.window.initial()))
    }

    /// The last feedback is in a packet that is repeated until it is acknowledged: its credit counts as told.
    pub(crate) fn told_reliably(&mut self) {
        self.window.told_reliably();
    }

    /// The next feedback names every stream; where it has no room for all, the ones after it do.
    pub(crate) fn report_all(&mut self) {
        for (key, stream) in &mut self.open {
            // Of the others nothing has been taken that the peer does not know.
            if stream.taken > 0 {
                stream.news = stream.news.max(1);
                self.news.insert(*key);
            }
        }
        for ended in &mut self.ended {
            let has_any = ended.indices.base() > 0 || ended.indices.above().next().is_some();
            ended.news = ended.news.max(u8::from(has_any));
        }
    }

    /// Writes STREAMS frames if there is anything to tell: up to `limit` bytes of `out`, but for one stream in any case.
    pub(crate) fn write(&mut self, limit: usize, out: &mut Vec<u8>) {
        // To the peer anything taken means that all of the window is granted. What it gives up counts as taken; it hears of that later.
        if !self.window.is_open() {
            return;
        }
        let Key { kind, index } = self.turn;
        let begun = out.len();
        let others =
            (1..StreamId::KINDS).map(|after| ((kind + after) % StreamId::KINDS, 0..u64::MAX));
        let spans = [(kind, index..u64::MAX)].into_iter().chain(others);
        for (kind, indices) in spans.chain([(kind, 0..index)]) {
            let first = Key {
                kind,
                index: indices.start,
            };
            let tells_ended = indices.end == u64::MAX && self.ended[first.at()].news > 0;
            if !tells_ended && !self.has_news(kind, &indices) {
                continue;
            }
            let room = limit.saturating_sub(out.len() + FRAME_LEN_MIN);
            if room == 0 && out.len() > begun {
                self.turn = first;
                return;
            }
            let ended = match tells_ended {
                true => self.ended[first.at()].next_ranges(room),
                false => Vec::new(),
            };
            let room = room.saturating_sub(RANGE_LEN * ended.len());
            let (taken, is_all) = self.taken_of(kind, indices, room);
            Frame::Streams(Streams {
                kind,
                base: self.ended[first.at()].indices.base(),
                ended,
                taken,
            })
            .encode(out);
            if !is_all {
                return;
            }
        }
        self.turn.index = 0;
    }

    fn has_news(&self, kind: u8, indices: &Range<u64>) -> bool {
        self.news_of(kind, indices).next().is_some()
    }

    fn news_of(&self, kind: u8, indices: &Range<u64>) -> impl Iterator<Item = Key> {
        let key = |index| Key { kind, index };
        self.news
            .range(key(indices.start)..key(indices.end))
            .copied()
    }

    /// What has been taken of the next streams with news, of those with these indices, and whether these are all. If not, the next
    /// one has its turn.
    fn taken_of(&mut self, kind: u8, indices: Range<u64>, room: usize) -> (Vec<(u64, u64)>, bool) {
        let at = usize::from(kind);
        let (mut next, mut len) = (self.ended[at].indices.base(), 0);
        let mut taken = Vec::new();
        let with_news: Vec<Key> = self.news_of(kind, &indices).take(MAX_TAKEN + 1).collect();
        for key in with_news {
            let Some(stream) = self.open.get_mut(&key) else {
                continue;
            };
            len += varint_len(key.index - next) + varint_len(stream.taken);
            if taken.len() == MAX_TAKEN || !taken.is_empty() && len > room {
                self.turn = key;
                return (taken, false);
            }
            taken.push((key.index, stream.taken));
            stream.news -= 1;
            stream.taken_told = stream.taken;
            if stream.news == 0 {
                self.news.remove(&key);
            }
            next = key.index + 1;
        }
        (taken, true)
    }
}

impl Ended {
    /// The next ranges to be told.
    fn next_ranges(&mut self, room: usize) -> Vec<(u64, u64)> {
        let most = ENDED_MAX.min(room / RANGE_LEN);
        let mut next = self.indices.above().filter(|range| range.1 >= self.turn);
        let ranges: Vec<_> = next.by_ref().take(most).collect();
        let is_all = next.next().is_none();
        self.turn = match ranges.last() {
            Some((_, high)) if !is_all => high + 1,
            _ => 0,
        };
        if is_all {
            self.news = self.news.saturating_sub(1);
        }
        ranges
    }
}
