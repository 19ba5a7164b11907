//! Streams that this end sends on: which blocks each has on its way, and what of the peer's window is left for it.

use std::collections::{BTreeMap, VecDeque};

use crate::wire::Blocks;

use super::shares::Shares;

/// One stream's blocks by id.
#[derive(Debug, Default)]
struct SendStream {
    next_id: u64,
    /// Sequences of blocks from `first_id` up, complete ones included until they leave the front.
    sequences: VecDeque<u64>,
    first_id: u64,
    /// Costs of all blocks, and of those that the peer's application has taken.
    opened: u64,
    taken: u64,
}

impl SendStream {
    /// Cost of all blocks that the peer's application has not taken, as far as is known.
    fn held(&self) -> u64 {
        self.opened - self.taken
    }

    fn sequence(&self, id: u64) -> Option<u64> {
        let at = usize::try_from(id.checked_sub(self.first_id)?).ok()?;
        self.sequences.get(at).copied()
    }
}

/// All streams that this end sends on, and the peer's credit.
#[derive(Debug)]
pub(crate) struct SendStreams {
    streams: BTreeMap<u16, SendStream>,
    shares: Shares,
    /// Sum of the costs of all blocks ever opened, and the largest that the peer allows.
    opened: u64,
    credit: u64,
    /// The peer's window, and the cost of all blocks known to be taken.
    window: u64,
    taken: u64,
    /// How often more credit, or more that has been taken, was heard of.
    news: u64,
}

impl SendStreams {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            streams: BTreeMap::new(),
            shares: Shares::new(window),
            opened: 0,
            credit: window,
            window,
            taken: 0,
            news: 0,
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

    /// Cost of the stream's blocks that the peer's application has not taken, as far as is known.
    pub(crate) fn held(&self, stream: u16) -> u64 {
        self.streams.get(&stream).map_or(0, SendStream::held)
    }

    /// Largest cost of a further block of the stream that credit and its share of the window allow.
    pub(crate) fn most(&self, stream: u16) -> u64 {
        let credit = self.credit.saturating_sub(self.opened);
        self.shares.most(self.held(stream)).min(credit)
    }

    /// Changes when a stream may have more of the window than before.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    /// Opens the stream's next block, of this cost and with this sequence; its id.
    pub(crate) fn open(&mut self, stream: u16, sequence: u64, cost: u64) -> u64 {
        let stream = self.streams.entry(stream).or_default();
        let id = stream.next_id;
        stream.next_id += 1;
        stream.sequences.push_back(sequence);
        let held = stream.held();
        stream.opened += cost;
        self.shares.changed(held, stream.held());
        self.opened += cost;
        id
    }

    /// The peer allows blocks of so much cost in all.
    pub(crate) fn on_credit(&mut self, credit: u64) {
        self.news += u64::from(credit > self.credit);
        self.credit = self.credit.max(credit);
    }

    /// Block-SACK: what has been taken. `false` for a stream that this end never sent on.
    pub(crate) fn on_taken(&mut self, blocks: &Blocks) -> bool {
        let Some(stream) = self.streams.get_mut(&blocks.stream) else {
            return false;
        };
        let (held, taken) = (stream.held(), stream.taken);
        stream.taken = taken.max(blocks.taken.min(stream.opened));
        self.shares.changed(held, stream.held());
        self.news += u64::from(stream.taken > taken);
        // A SACK that said so may have been lost.
        self.taken += stream.taken - taken;
        self.credit = self.credit.max(self.window.saturating_add(self.taken));
        true
    }

    /// Ids of the stream's oldest block that is kept, and of its next one.
    pub(crate) fn ids(&self, stream: u16) -> (u64, u64) {
        let ids = |stream: &SendStream| (stream.first_id, stream.next_id);
        self.streams.get(&stream).map_or((0, 0), ids)
    }

    /// The sequence of a block.
    pub(crate) fn sequence(&self, stream: u16, id: u64) -> Option<u64> {
        self.streams.get(&stream)?.sequence(id)
    }

    /// Forgets the stream's oldest blocks while they are complete.
    pub(crate) fn forget_complete(&mut self, stream: u16, is_complete: impl Fn(u64) -> bool) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        while stream.sequences.front().is_some_and(|s| is_complete(*s)) {
            stream.sequences.pop_front();
            stream.first_id += 1;
        }
    }

    /// Whether the peer has every block of the stream.
    pub(crate) fn is_delivered(&self, stream: u16) -> bool {
        self.streams
            .get(&stream)
            .is_none_or(|s| s.sequences.is_empty())
    }
}
