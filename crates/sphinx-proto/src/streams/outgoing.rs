//! Streams that this end sends on: what of each is on its way, and what of the peer's window is left for it.

use std::collections::BTreeMap;

use crate::config::Role;
use crate::ranges::Filling;
use crate::types::{StreamId, StreamPart};
use crate::wire::Streams;

use super::shares::Shares;

/// One open stream.
#[derive(Debug, Default)]
struct SendStream {
    /// Costs of all its parts of blocks, and of those that the peer's application has taken.
    opened: u64,
    taken: u64,
    /// Parts in blocks that are not complete.
    outstanding: u64,
    /// Nothing more will be handed over: its last part has been, or it is given up.
    finished: bool,
    is_given_up: bool,
    /// The peer has said that it has ended.
    is_over: bool,
}

impl SendStream {
    /// Cost of what the peer's application has not taken, as far as is known.
    fn held(&self) -> u64 {
        self.opened - self.taken
    }

    /// Nothing is to be heard of it any more.
    fn has_ended(&self) -> bool {
        self.finished && self.outstanding == 0 && self.is_over
    }
}

/// All streams that this end has open, and the peer's credit.
#[derive(Debug)]
pub(crate) struct SendStreams {
    opener: Role,
    /// By index.
    streams: BTreeMap<u64, SendStream>,
    shares: Shares,
    /// Sum of the costs of all blocks ever opened, and the largest that the peer allows.
    opened: u64,
    credit: u64,
    /// The peer's window, and what is known to be taken.
    window: u64,
    taken: u64,
    /// How often more credit, or more that has been taken, was heard of.
    news: u64,
    /// Indices of streams that have ended, and those that have since they were last asked for.
    over: Filling,
    ended: Vec<StreamId>,
}

impl SendStreams {
    pub(crate) fn new(opener: Role, window: u64, credit: u64) -> Self {
        Self {
            opener,
            streams: BTreeMap::new(),
            shares: Shares::new(window),
            opened: 0,
            credit: window.min(credit),
            window,
            taken: 0,
            news: 0,
            over: Filling::default(),
            ended: Vec::new(),
        }
    }

    /// Whether the peer's credit allows another block.
    pub(crate) fn has_credit(&self, cost: u64) -> bool {
        self.opened + cost <= self.credit
    }

    /// What of the window belongs to no stream alone and is free.
    pub(crate) fn common_left(&self) -> u64 {
        self.shares.common_left()
    }

    /// Cost of what the peer's application has not taken of the stream, as far as is known.
    pub(crate) fn held(&self, stream: StreamId) -> u64 {
        self.streams
            .get(&stream.index())
            .map_or(0, SendStream::held)
    }

    /// Largest cost of a further part of the stream that credit and its share of the window allow.
    pub(crate) fn most(&self, stream: StreamId) -> u64 {
        let credit = self.credit.saturating_sub(self.opened);
        self.shares.most(self.held(stream)).min(credit)
    }

    /// Whether credit and shares of the window allow these further parts, of different streams, together.
    pub(crate) fn have_room(&self, parts: &[StreamPart]) -> bool {
        let mut shares = self.shares;
        let fits = |part: &StreamPart| {
            let held = self.held(part.stream);
            let fits = part.cost <= shares.most(held);
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

    /// A block of these parts is on its way.
    pub(crate) fn open(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let stream = self.streams.entry(part.stream.index()).or_default();
            let held = stream.held();
            stream.opened += part.cost;
            stream.outstanding += 1;
            stream.finished |= part.end_of_stream;
            self.shares.changed(held, stream.held());
            self.opened += part.cost;
        }
    }

    /// The stream is given up; what has been handed over of it has cost so much. `None`: it has ended, or was given up before.
    pub(crate) fn reset(&mut self, stream: StreamId) -> Option<u64> {
        let index = stream.index();
        if self.over.contains(index) {
            return None;
        }
        let stream = self.streams.entry(index).or_default();
        let is_news = !std::mem::replace(&mut stream.is_given_up, true);
        stream.finished = true;
        let cost = stream.opened;
        self.forget_ended(index);
        is_news.then_some(cost)
    }

    /// The peer has a whole block, with a part of each of these streams.
    pub(crate) fn complete(&mut self, streams: &[StreamId]) {
        for stream in streams {
            if let Some(stream) = self.streams.get_mut(&stream.index()) {
                stream.outstanding -= 1;
            }
            self.forget_ended(stream.index());
        }
    }

    /// The peer allows blocks of so much cost in all.
    pub(crate) fn on_credit(&mut self, credit: u64) {
        self.news += u64::from(credit > self.credit);
        self.credit = self.credit.max(credit);
    }

    /// The peer's application has taken so much of the streams. `false`: of those that it opened itself.
    pub(crate) fn on_taken(&mut self, streams: &Streams) -> bool {
        if streams.kind != StreamId::new(self.opener, 0).kind() {
            return false;
        }
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        for (low, high) in below.into_iter().chain(streams.ended.iter().copied()) {
            let indices: Vec<u64> = self.streams.range(low..=high).map(|(i, _)| *i).collect();
            for index in indices {
                if let Some(stream) = self.streams.get_mut(&index) {
                    // Else more of it will come, whatever the peer says.
                    stream.is_over = stream.finished;
                }
                self.take(index, u64::MAX);
            }
        }
        for (index, taken) in &streams.taken {
            self.take(*index, *taken);
        }
        if self.taken > 0 {
            // A SACK that said so may have been lost. Before anything is taken, the window may not be open yet.
            self.credit = self.credit.max(self.window.saturating_add(self.taken));
        }
        true
    }

    fn take(&mut self, index: u64, taken: u64) {
        let Some(stream) = self.streams.get_mut(&index) else {
            return;
        };
        let (held, before) = (stream.held(), stream.taken);
        stream.taken = before.max(taken.min(stream.opened));
        self.shares.changed(held, stream.held());
        self.news += u64::from(stream.taken > before);
        self.taken += stream.taken - before;
        self.forget_ended(index);
    }

    fn forget_ended(&mut self, index: u64) {
        if self.streams.get(&index).is_some_and(SendStream::has_ended) {
            self.streams.remove(&index);
            self.over.insert(index);
            self.ended.push(StreamId::new(self.opener, index));
        }
    }

    /// Streams that have ended since the last call: all of each was taken.
    pub(crate) fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    /// Whether the peer has everything of the stream that was handed over.
    pub(crate) fn is_delivered(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream.index());
        stream.is_none_or(|stream| stream.outstanding == 0)
    }
}
