//! Streams that this end sends on: what of each is on its way, and what of the peer's window is left for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Role;
use crate::ranges::Filling;
use crate::types::{StreamId, StreamPart};
use crate::wire::Streams;
use crate::{PacketNumber, WindowNumber};

use super::Key;
use super::shares::Shares;

/// One open stream.
#[derive(Debug, Default)]
struct SendStream {
    /// Cost of all its parts of blocks so far.
    opened: u64,
    /// Cost of those that the peer's application has read, as far as the peer has said.
    taken: u64,
    /// Parts in blocks that are not complete.
    outstanding: u64,
    /// Nothing more will be handed over: its last part has been, or it is given up.
    finished: bool,
    is_given_up: bool,
    /// The peer has said that the stream has ended.
    is_over: bool,
    /// It is among those [awaited](SendStreams::awaited).
    is_awaited: bool,
}

impl SendStream {
    /// The peer's next reports on the stream matter: adds it to those awaited.
    fn await_among(&mut self, key: Key, awaited: &mut BTreeSet<Key>) {
        if !std::mem::replace(&mut self.is_awaited, true) {
            awaited.insert(key);
        }
    }

    /// Cost of what the peer's application has not taken, as far as is known.
    fn held(&self) -> u64 {
        self.opened - self.taken
    }

    /// Whether nothing more is to be heard of the stream.
    fn has_ended(&self) -> bool {
        self.finished && self.outstanding == 0 && self.is_over
    }
}

/// All streams that this end sends on, and the peer's credit.
#[derive(Debug)]
pub(crate) struct SendStreams {
    end: Role,
    streams: BTreeMap<Key, SendStream>,
    /// Those of which it would be news that they have ended. Others are not looked at: a packet has room for hundreds of frames which say that of all.
    awaited: BTreeSet<Key>,
    /// Most that were open at a time.
    peak: u64,
    shares: Shares,
    /// Sum of the costs of all blocks that have ever been on their way.
    opened: u64,
    /// The largest value of `opened` that the peer allows.
    credit: u64,
    /// The peer's window, bytes, and its number.
    window: u64,
    window_number: WindowNumber,
    /// Sum of the costs that the peer's application has read, as far as the peer has said.
    taken: u64,
    /// Credit in packets before this one does not count: the peer has shrunk its window since.
    credit_from: PacketNumber,
    /// The window that the peer has been told, or is to be told, to be too small.
    held_told: Option<WindowNumber>,
    /// How often more credit, or more that has been taken, was heard of.
    news: u64,
    /// Indices of streams that have ended, of each kind, and those that have since they were last asked for.
    over: [Filling<u64>; StreamId::KINDS as usize],
    ended: Vec<StreamId>,
    /// Finished streams of which the peer has everything, since they were last asked for.
    delivered: Vec<StreamId>,
}

impl SendStreams {
    pub(crate) fn new(end: Role, window: u64, credit: u64) -> Self {
        Self {
            end,
            streams: BTreeMap::new(),
            awaited: BTreeSet::new(),
            peak: 0,
            shares: Shares::new(window),
            opened: 0,
            credit: window.min(credit),
            window,
            window_number: WindowNumber::ZERO,
            taken: 0,
            credit_from: PacketNumber::ZERO,
            held_told: None,
            news: 0,
            over: Default::default(),
            ended: Vec::new(),
            delivered: Vec::new(),
        }
    }

    /// Most streams that were open at a time.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Whether the peer's credit allows another block.
    pub(crate) fn has_credit(&self, cost: u64) -> bool {
        self.opened + cost <= self.credit
    }

    /// Sum of the costs that this end may reach.
    pub(crate) fn credit(&self) -> u64 {
        self.credit
    }

    /// How much more may be opened, bytes.
    pub(crate) fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.opened)
    }

    /// The peer's window, bytes.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// The window keeps this end from using the path: its number, if the peer has not been told.
    pub(crate) fn note_held(&mut self) -> Option<WindowNumber> {
        let number = self.window_number;
        (self.held_told.replace(number) != Some(number)).then_some(number)
    }

    /// In this packet the peer says that its window has another size. The credit that this end keeps within, if that is to be
    /// told: the window has shrunk.
    pub(crate) fn on_window(
        &mut self,
        packet_number: PacketNumber,
        number: WindowNumber,
        window: u64,
    ) -> Option<u64> {
        if number <= self.window_number {
            return None;
        }
        // It may have grown and shrunk again since the last one.
        let has_shrunk = window <= self.window || number > self.window_number + 1;
        (self.window_number, self.window) = (number, window);
        let held = self.streams.values().map(SendStream::held);
        self.shares
            .set_window(window, self.streams.len() as u64, held);
        self.news += 1;
        let kept = has_shrunk.then(|| {
            self.credit_from = packet_number;
            let kept = self.opened.max(self.taken.saturating_add(window));
            self.credit = self.credit.min(kept);
            self.credit
        });
        // The shares are those of this window: without the credit for it one stream could use up what belongs to another.
        self.follow_taken();
        kept
    }

    /// Where anything has been taken, credit is at least the window and the sum of that. A SACK that said so may have been lost, or
    /// may be older than the window. Before anything is taken, the window may not be open yet.
    fn follow_taken(&mut self) {
        if self.taken > 0 {
            self.credit = self.credit.max(self.window.saturating_add(self.taken));
        }
    }

    /// The peer's first window is known now, of which less was assumed.
    pub(crate) fn meet(&mut self, window: u64, credit: u64) {
        if self.window_number == WindowNumber::ZERO {
            self.window = window;
            let held = self.streams.values().map(SendStream::held);
            self.shares
                .set_window(window, self.streams.len() as u64, held);
        }
        self.credit = self.credit.max(window.min(credit));
        self.news += 1;
        self.follow_taken();
    }

    /// What of the window belongs to no stream alone and is free.
    pub(crate) fn common_left(&self) -> u64 {
        self.shares.common_left()
    }

    /// Whether there is one stream at most, and no datagrams: no block has to leave room for others.
    pub(crate) fn is_one(&self) -> bool {
        self.shares.is_one()
    }

    /// Streams of which the peer's application has not taken everything, as far as is known.
    pub(crate) fn holders(&self) -> u64 {
        self.shares.holders()
    }

    /// Cost of what the peer's application has not taken of the stream, as far as is known.
    pub(crate) fn held(&self, stream: StreamId) -> u64 {
        self.held_and_taken(stream).0
    }

    fn held_and_taken(&self, stream: StreamId) -> (u64, u64) {
        let stream = self.streams.get(&stream.into());
        stream.map_or((0, 0), |stream| (stream.held(), stream.taken))
    }

    /// Largest cost of a further part of the stream that credit and its share of the window allow.
    pub(crate) fn most(&self, stream: StreamId) -> u64 {
        let credit = self.credit.saturating_sub(self.opened);
        let (held, taken) = self.held_and_taken(stream);
        self.shares.most(held, taken).min(credit)
    }

    /// Largest cost of a further part of the stream that its share of the window allows, if it held so much more.
    pub(crate) fn share_left(&self, stream: StreamId, more: u64) -> u64 {
        let (held, taken) = self.held_and_taken(stream);
        self.shares.most(held + more, taken)
    }

    /// Whether credit and shares of the window allow these further parts, of different streams, together.
    pub(crate) fn have_room(&self, parts: &[StreamPart]) -> bool {
        let mut shares = self.shares;
        let fits = |part: &StreamPart| {
            let (held, taken) = self.held_and_taken(part.stream);
            let fits = part.cost <= shares.most(held, taken);
            shares.changed(held, held + part.cost);
            fits
        };
        let cost = parts.iter().map(|part| part.cost).sum();
        self.has_credit(cost) && parts.iter().all(fits)
    }

    /// Changes when a stream may have more of the window than before.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    /// A block of these parts has been handed over.
    pub(crate) fn hand_over(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let key = Key::from(part.stream);
            let stream = self.streams.entry(key).or_default();
            stream.outstanding += 1;
            stream.finished |= part.end_of_stream;
            stream.await_among(key, &mut self.awaited);
        }
        self.note_open();
    }

    /// A block of these parts, which has been handed over, is on its way.
    pub(crate) fn open(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let key = Key::from(part.stream);
            let stream = self.streams.entry(key).or_default();
            stream.await_among(key, &mut self.awaited);
            let held = stream.held();
            stream.opened += part.cost;
            self.shares.changed(held, stream.held());
            self.opened += part.cost;
        }
    }

    /// A block of datagrams is on its way, which are of no stream.
    pub(crate) fn open_datagrams(&mut self, cost: u64) {
        self.opened += cost;
        self.shares.datagrams_changed(0, cost);
    }

    /// The peer has datagrams of this cost, or will never have them.
    pub(crate) fn close_datagrams(&mut self, cost: u64) {
        self.shares.datagrams_changed(cost, 0);
    }

    /// Whether credit and what streams leave of the window allow a block of datagrams.
    pub(crate) fn have_room_for_datagrams(&self, cost: u64) -> bool {
        self.has_credit(cost) && self.shares.have_room_for_datagrams(cost)
    }

    /// Perhaps more or fewer streams are open.
    fn note_open(&mut self) {
        let (open, held) = (self.streams.len() as u64, self.streams.values());
        self.peak = self.peak.max(open);
        self.shares.set_open(open, held.map(SendStream::held));
    }

    /// The stream is given up; what has been handed over of it has cost so much. `None`: it has ended, or was given up before.
    pub(crate) fn reset(&mut self, stream: StreamId) -> Option<u64> {
        let key = Key::from(stream);
        if self.has_ended(stream) {
            return None;
        }
        let stream = self.streams.entry(key).or_default();
        let is_news = !std::mem::replace(&mut stream.is_given_up, true);
        stream.finished = true;
        stream.await_among(key, &mut self.awaited);
        let cost = stream.opened;
        self.forget_ended(key);
        is_news.then_some(cost)
    }

    /// The peer has a whole block, with a part of each of these streams.
    pub(crate) fn complete(&mut self, streams: &[StreamId]) {
        for stream in streams {
            let key = Key::from(*stream);
            if let Some(state) = self.streams.get_mut(&key) {
                state.outstanding -= 1;
                if state.outstanding == 0 && state.finished {
                    self.delivered.push(*stream);
                }
            }
            self.forget_ended(key);
        }
    }

    /// In this packet the peer allows blocks of so much cost in all.
    pub(crate) fn on_credit(&mut self, packet_number: PacketNumber, credit: u64) {
        if packet_number < self.credit_from {
            return;
        }
        self.news += u64::from(credit > self.credit);
        self.credit = self.credit.max(credit);
    }

    /// The peer's application has taken so much of the streams. `false`: of those that this end does not send on.
    pub(crate) fn on_taken(&mut self, streams: &Streams) -> bool {
        let key = |index| Key {
            kind: streams.kind,
            index,
        };
        if !key(0).stream().has_sender(self.end) {
            return false;
        }
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        for (low, high) in below.into_iter().chain(streams.ended.iter().copied()) {
            let range = self.awaited.range(key(low)..=key(high));
            let ended: Vec<Key> = range.copied().collect();
            for key in ended {
                self.awaited.remove(&key);
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.is_awaited = false;
                    // Else more of it will come, whatever the peer says.
                    stream.is_over = stream.finished;
                }
                self.take(key, u64::MAX);
            }
        }
        for (index, taken) in &streams.taken {
            self.take(key(*index), *taken);
        }
        self.follow_taken();
        true
    }

    fn take(&mut self, key: Key, taken: u64) {
        let Some(stream) = self.streams.get_mut(&key) else {
            return;
        };
        let (held, before) = (stream.held(), stream.taken);
        stream.taken = before.max(taken.min(stream.opened));
        self.shares.changed(held, stream.held());
        self.news += u64::from(stream.taken > before);
        self.taken += stream.taken - before;
        self.forget_ended(key);
    }

    fn forget_ended(&mut self, key: Key) {
        if self.streams.get(&key).is_some_and(SendStream::has_ended) {
            self.streams.remove(&key);
            self.awaited.remove(&key);
            self.over[key.at()].insert(key.index);
            self.ended.push(key.stream());
            self.note_open();
        }
    }

    /// Whether nothing is to be heard of the stream any more: all of it was taken.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        let key = Key::from(stream);
        self.over[key.at()].contains(key.index)
    }

    /// Streams that have ended since the last call: all of each was taken.
    pub(crate) fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    /// Whether the peer has everything of the stream that was handed over.
    pub(crate) fn is_delivered(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream.into());
        stream.is_none_or(|stream| stream.outstanding == 0)
    }

    /// Streams with nothing more to come of which no block is on its way any more, since the last call: the peer has everything of those that were not given up.
    pub(crate) fn take_delivered(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: u64 = 700;

    fn stream(index: u64) -> StreamId {
        StreamId::new(Role::Client, index)
    }

    fn submit(streams: &mut SendStreams, index: u64, end_of_stream: bool) {
        let part = StreamPart {
            stream: stream(index),
            bytes: 100,
            end_of_stream,
            cost: COST,
        };
        streams.hand_over(&[part]);
        streams.open(&[part]);
    }

    /// The peer says that all streams have ended.
    fn hear_of_all(streams: &mut SendStreams) {
        let all = Streams {
            kind: stream(0).kind(),
            base: 1 << 20,
            ended: Vec::new(),
            taken: Vec::new(),
        };
        assert!(streams.on_taken(&all));
    }

    #[test]
    fn that_streams_have_ended_is_heard_once_of_each() {
        let mut streams = SendStreams::new(Role::Client, 24 << 20, 24 << 20);
        // Every second stream is finished.
        (0..1000).for_each(|index| submit(&mut streams, index, index % 2 == 0));
        assert_eq!(streams.awaited.len(), 1000);
        hear_of_all(&mut streams);
        assert!(streams.awaited.is_empty() && streams.take_ended().is_empty());
        assert!((0..1000).all(|index| streams.held(stream(index)) == 0));
        hear_of_all(&mut streams);
        // A stream that goes on is awaited again.
        submit(&mut streams, 7, true);
        let awaited: Vec<Key> = streams.awaited.iter().copied().collect();
        assert_eq!(awaited, [Key::from(stream(7))]);
        assert_eq!(streams.held(stream(7)), COST);
        streams.complete(&[stream(7), stream(7)]);
        assert!(streams.take_ended().is_empty());
        hear_of_all(&mut streams);
        assert_eq!(streams.take_ended(), [stream(7)]);
        // Of one that was said to have ended before, nothing more need be said.
        streams.complete(&[stream(8), stream(9)]);
        assert_eq!(streams.take_ended(), [stream(8)]);
        assert_eq!(streams.reset(stream(9)), Some(COST));
        assert_eq!(streams.awaited.len(), 1);
        hear_of_all(&mut streams);
        assert_eq!(streams.take_ended(), [stream(9)]);
        assert!(streams.awaited.is_empty());
    }

    #[test]
    fn that_a_stream_is_delivered_is_told_once() {
        let mut streams = SendStreams::new(Role::Client, 24 << 20, 24 << 20);
        submit(&mut streams, 0, false);
        streams.complete(&[stream(0)]);
        assert!(streams.is_delivered(stream(0)) && streams.take_delivered().is_empty());
        submit(&mut streams, 0, false);
        submit(&mut streams, 0, true);
        submit(&mut streams, 1, true);
        // The last part comes first.
        streams.complete(&[stream(0), stream(1)]);
        assert_eq!(streams.take_delivered(), [stream(1)]);
        streams.complete(&[stream(0)]);
        assert_eq!(streams.take_delivered(), [stream(0)]);
        assert!(streams.take_delivered().is_empty());
    }
}
