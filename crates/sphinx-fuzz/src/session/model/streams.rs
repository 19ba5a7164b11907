//! What a driver may rely on about streams: who may send on one, what it costs, and when it is over.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_proto::wire::{Reset, Streams};
use sphinx_proto::{Role, StreamId, StreamPart};

use crate::Input;
use crate::session::STREAMS;

/// SACKs by which every piece of news has been told: each has room for some of all the streams.
const TOLD_BY: u32 = 16;
/// Bytes of the smallest segment.
const SEGMENT_MIN: u32 = 4;
/// A driver takes one segment of a block, and another for each of so many bytes.
const SEGMENT_BYTES: u32 = 256;
/// Streams that the driver writes to at a time.
const WRITING: usize = 8;

/// The costs of the parts are their shares of the block's, by bytes, and together all of it.
pub(super) fn check_shares(cost: u64, parts: &[StreamPart]) {
    let bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
    let sum: u64 = parts.iter().map(|part| part.cost).sum();
    assert!(parts.is_empty() || sum == cost, "{sum} of {cost}");
    for part in parts {
        let exact = u128::from(cost) * u128::from(part.bytes);
        let rounded = u128::from(part.cost) * u128::from(bytes);
        assert!(exact.abs_diff(rounded) < u128::from(bytes), "not its share");
    }
}

/// Divides so many bytes among parts of these streams, as far as there are enough.
fn divide(input: &mut Input<'_>, bytes: u32, streams: &[(StreamId, bool)]) -> Vec<StreamPart> {
    let mut left = bytes;
    let mut parts = Vec::new();
    for &(stream, end_of_stream) in streams {
        if left < SEGMENT_MIN || parts.len() > (bytes / SEGMENT_BYTES) as usize {
            break;
        }
        let spare = u64::from(left - SEGMENT_MIN) + 1;
        let bytes = match input.byte() {
            // An equal share, for its sake the last bytes are padding.
            0..0xc0 => SEGMENT_MIN + (left - SEGMENT_MIN) / streams.len() as u32,
            0xc0..0xe0 => left,
            _ => SEGMENT_MIN + input.below(spare) as u32,
        };
        left -= bytes;
        parts.push(StreamPart {
            stream,
            bytes,
            end_of_stream,
            cost: 0,
        });
    }
    parts
}

// ---- receiving ----------------------------------------------------------------------------------

/// A stream of the peer that is open.
#[derive(Default)]
struct RxStream {
    received: u64,
    taken: u64,
    /// What the last STREAMS frame with it said, and SACKs since something else is true.
    told: u64,
    untold: u32,
    /// Its last part is here; all of it is.
    has_end: bool,
    is_whole: bool,
    is_abandoned: bool,
    /// The peer has given it up: why, and what all of it costs; and whether that has been told.
    reset: Option<(u64, u64)>,
    is_reset_told: bool,
}

impl RxStream {
    fn has_ended(&self) -> bool {
        let is_here = match self.reset {
            Some((_, cost)) => self.is_abandoned && self.received == cost,
            None => self.is_whole,
        };
        is_here && self.taken == self.received
    }

    /// Whether it may cost so much more.
    fn may_grow(&self, cost: u64) -> bool {
        self.reset
            .is_none_or(|(_, most)| self.received + cost <= most)
    }
}

/// A part that the application has not taken.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) stream: StreamId,
    pub(super) cost: u64,
}

/// What happens to a part as it is unpacked.
pub(super) enum Arrival {
    /// It is kept, or belongs to a stream that nobody reads and is taken at once. With `whole` all of its stream is here.
    Kept {
        whole: bool,
    },
    Abandoned {
        whole: bool,
    },
    /// It lies behind the end of its stream.
    OutOfPlace,
}

/// Streams of the peer.
pub(super) struct RxStreams {
    opener: Role,
    open: BTreeMap<u64, RxStream>,
    /// Those that have ended, with the SACKs that did not tell of it yet; `None` once one has.
    ended: BTreeMap<u64, Option<u32>>,
    /// Those that were given up and have ended, and the session is about to say so.
    over: BTreeSet<u64>,
    /// Those that the application has let go of.
    stopped: BTreeSet<u64>,
    held: Vec<Held>,
    /// The peer sends nothing that cannot be.
    is_tame: bool,
}

impl RxStreams {
    pub(super) fn new(opener: Role, is_tame: bool) -> Self {
        Self {
            opener,
            is_tame,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            over: BTreeSet::new(),
            stopped: BTreeSet::new(),
            held: Vec::new(),
        }
    }

    /// Whether the peer may send on the stream: it has not ended, and at most [`STREAMS`] up to it have not.
    pub(super) fn may_be(&self, stream: StreamId) -> bool {
        let index = stream.index();
        let ended_before = self.ended.range(..index).count() as u64;
        stream.opener() == self.opener
            && !self.ended.contains_key(&index)
            && index - ended_before < STREAMS
    }

    pub(super) fn are_possible(&self, parts: &[StreamPart]) -> bool {
        let may_grow = |part: &StreamPart| {
            let open = self.open.get(&part.stream.index());
            // One block may hold several parts of a stream.
            let its = parts.iter().filter(|other| other.stream == part.stream);
            open.is_none_or(|open| open.may_grow(its.map(|part| part.cost).sum()))
        };
        let is_possible = |part: &StreamPart| self.may_be(part.stream) && may_grow(part);
        parts.iter().all(is_possible)
    }

    pub(super) fn has_ended(&self, stream: StreamId) -> bool {
        stream.opener() == self.opener && self.ended.contains_key(&stream.index())
    }

    /// Whether all of an open stream is here.
    pub(super) fn is_here(&self, stream: StreamId) -> bool {
        let open = self.open.get(&stream.index());
        open.is_some_and(|open| open.is_whole && open.reset.is_none())
    }

    /// What has been received of a stream, or was given up, costs so much.
    pub(super) fn received_of(&self, stream: StreamId) -> u64 {
        self.open
            .get(&stream.index())
            .map_or(0, |open| open.received)
    }

    /// What the peer has said as it gave the stream up.
    pub(super) fn reset_of(&self, stream: StreamId) -> Option<(u64, u64)> {
        self.open.get(&stream.index())?.reset
    }

    /// The peer gives a stream up. Whether it has not done so in another way.
    pub(super) fn reset(&mut self, reset: &Reset) -> bool {
        let open = self.open.entry(reset.stream.index()).or_default();
        let said = (reset.code, reset.cost);
        // Who reads no more of it is not told.
        open.is_reset_told |= open.reset.is_none() && open.is_abandoned;
        *open.reset.get_or_insert(said) == said
    }

    /// A block of this stream alone is given up.
    pub(super) fn given_up(&mut self, stream: StreamId, cost: u64) {
        let open = self.open.get_mut(&stream.index()).expect("it is open");
        open.received += cost;
        open.taken += cost;
    }

    /// Whether there is not more of the stream than its RESET says.
    pub(super) fn after_reset(&mut self, stream: StreamId) -> bool {
        let may_be = self.open[&stream.index()].may_grow(0);
        self.forget_ended(stream.index());
        may_be
    }

    pub(super) fn told_reset(&mut self, stream: StreamId, code: u64) {
        let Some(open) = self.open.get_mut(&stream.index()) else {
            // The application has let go of it meanwhile.
            return assert!(self.over.contains(&stream.index()));
        };
        assert_eq!(open.reset.map(|(code, _)| code), Some(code));
        assert!(
            !std::mem::replace(&mut open.is_reset_told, true),
            "told twice"
        );
    }

    pub(super) fn told_over(&mut self, stream: StreamId) {
        assert!(self.over.remove(&stream.index()), "it is not over");
    }

    pub(super) fn told_stop(&self, stream: StreamId) {
        assert!(self.stopped.contains(&stream.index()), "it is read");
    }

    /// The session has no more to say now.
    pub(super) fn check_told(&self) {
        assert!(self.over.is_empty(), "an end that is not told");
        let is_told = |open: &RxStream| open.reset.is_none() || open.is_reset_told;
        assert!(self.open.values().all(is_told), "a reset that is not told");
    }

    /// What a block of so many bytes holds.
    pub(super) fn parts(&self, input: &mut Input<'_>, bytes: usize) -> Vec<StreamPart> {
        let count = match input.byte() {
            0..0xa0 => 1,
            count @ 0xa0..0xf8 => 2 + count % 7,
            _ => 0,
        };
        let streams: Vec<_> = (0..count)
            .map(|_| {
                let flags = input.byte();
                let stream = self.any_stream(input, flags);
                let known = self.open.get(&stream.index());
                let ends = !self.is_tame || known.is_none_or(|stream| !stream.has_end);
                (stream, ends && flags & 0x18 == 0x18)
            })
            // An honest peer would have to know what the part costs.
            .filter(|(stream, _)| !self.is_tame || self.reset_of(*stream).is_none())
            .collect();
        divide(input, bytes as u32, &streams)
    }

    /// Mostly one of the first streams that have not ended.
    pub(super) fn any_stream(&self, input: &mut Input<'_>, flags: u8) -> StreamId {
        let is_whole = |index: &u64| self.open.get(index).is_some_and(|stream| stream.is_whole);
        let is_live =
            |index: &u64| !(self.ended.contains_key(index) || self.is_tame && is_whole(index));
        let live = || (0..).filter(is_live).nth(usize::from(flags & 7));
        let index = match flags {
            0..0xf0 => live().expect("without end"),
            // As far ahead as may be.
            0xf0.. if self.is_tame => {
                let mut open = (0..).filter(|index| !self.ended.contains_key(index));
                let far = open.nth(STREAMS as usize - 1 - usize::from(flags & 7));
                far.filter(is_live).or_else(live).expect("without end")
            }
            0xf0..0xf8 => input.below(STREAMS + 8),
            0xf8..0xfe => return StreamId::new(self.opener, input.below(8)),
            _ => return StreamId::new(self.opener.other(), input.below(8)),
        };
        StreamId::new(self.opener, index)
    }

    /// A block of these parts has been unpacked.
    pub(super) fn received(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let stream = self.open.entry(part.stream.index()).or_default();
            stream.received += part.cost;
        }
        assert!(self.open.len() as u64 <= STREAMS, "too many streams");
    }

    /// Puts a part where it belongs. Whether it lies where the last one was missing is the input's business.
    pub(super) fn arrived(&mut self, input: &mut Input<'_>, part: &StreamPart) -> Arrival {
        let stream = self.open.get_mut(&part.stream.index()).expect("it is open");
        if stream.is_whole || stream.has_end && part.end_of_stream {
            return Arrival::OutOfPlace;
        }
        stream.has_end |= part.end_of_stream;
        stream.is_whole = stream.has_end && !input.rarely(3);
        let whole = stream.is_whole;
        if stream.is_abandoned || stream.reset.is_some() {
            return Arrival::Abandoned { whole };
        }
        let (stream, cost) = (part.stream, part.cost);
        self.held.push(Held { stream, cost });
        Arrival::Kept { whole }
    }

    /// All of a stream has been said to be here.
    pub(super) fn is_whole(&mut self, stream: StreamId) {
        self.forget_ended(stream.index());
    }

    pub(super) fn taken(&mut self, part: Held) {
        let index = part.stream.index();
        self.open.get_mut(&index).expect("it is open").taken += part.cost;
        self.forget_ended(index);
    }

    pub(super) fn forget_ended(&mut self, index: u64) {
        if !self.open.get(&index).is_some_and(RxStream::has_ended) {
            return;
        }
        if let Some(stream) = self.open.remove(&index) {
            if stream.reset.is_some() {
                self.over.insert(index);
            }
            let before = self.ended.insert(index, Some(0));
            assert!(before.is_none(), "it has ended before");
        }
    }

    /// A part that the application takes now.
    pub(super) fn next_taken(&mut self, input: &mut Input<'_>) -> Option<Held> {
        let at = input.below(self.held.len() as u64) as usize;
        (!self.held.is_empty()).then(|| self.held.swap_remove(at))
    }

    /// The application lets go of a stream: its parts are to be taken.
    pub(super) fn abandon(&mut self, input: &mut Input<'_>) -> Option<(StreamId, Vec<Held>)> {
        let at = input.below(self.open.len() as u64) as usize;
        let (&index, stream) = self.open.iter_mut().nth(at)?;
        stream.is_abandoned = true;
        self.stopped.insert(index);
        let is_its = |held: &mut Held| held.stream.index() == index;
        let parts = self.held.extract_if(.., is_its).collect();
        Some((StreamId::new(self.opener, index), parts))
    }

    pub(super) fn take_all(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.held)
    }

    /// What a STREAMS frame of the session says is so.
    pub(super) fn told(&mut self, streams: &Streams) {
        let peer = StreamId::new(self.opener, 0).to_wire() & 3;
        assert_eq!(u64::from(streams.kind), peer);
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        for (low, high) in below.into_iter().chain(streams.ended.iter().copied()) {
            assert!(high - low < 1 << 20);
            for index in low..=high {
                let ended = self.ended.get_mut(&index);
                *ended.expect("it has not ended") = None;
            }
        }
        for &(index, taken) in &streams.taken {
            let stream = self.open.get_mut(&index).expect("it is not open");
            assert_eq!(taken, stream.taken);
            (stream.told, stream.untold) = (taken, 0);
        }
    }

    /// Feedback has left: nothing waits for ever to be told.
    pub(super) fn feedback_left(&mut self) {
        for untold in self.ended.values_mut().flatten() {
            *untold += 1;
            assert!(*untold <= TOLD_BY, "an end is not told");
        }
        for stream in self.open.values_mut() {
            stream.untold += u32::from(stream.taken > stream.told);
            assert!(stream.untold <= TOLD_BY, "what was taken is not told");
        }
    }
}

// ---- sending ------------------------------------------------------------------------------------

/// A stream that this end has opened.
#[derive(Default)]
struct TxStream {
    opened: u64,
    taken: u64,
    outstanding: u32,
    is_finished: bool,
    /// The peer has said that it has ended.
    is_over: bool,
    /// The application has given it up: why, and blocks of it alone with their costs.
    reset: Option<(u64, BTreeMap<u64, u64>)>,
}

impl TxStream {
    fn held(&self) -> u64 {
        self.opened - self.taken
    }

    fn has_ended(&self) -> bool {
        self.is_finished && self.outstanding == 0 && self.is_over
    }
}

/// Streams of this end.
pub(super) struct TxStreams {
    role: Role,
    /// The peer's.
    window: u64,
    credit: u64,
    opened: u64,
    taken: u64,
    open: BTreeMap<u64, TxStream>,
    ended: BTreeSet<u64>,
    /// Streams that may be written to, and the next one to be opened.
    writing: Vec<u64>,
    next: u64,
    is_tame: bool,
}

impl TxStreams {
    pub(super) fn new(role: Role, window: u64, is_tame: bool) -> Self {
        Self {
            role,
            is_tame,
            window,
            credit: window,
            opened: 0,
            taken: 0,
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            writing: (0..WRITING as u64).collect(),
            next: WRITING as u64,
        }
    }

    pub(super) fn id(&self, index: u64) -> StreamId {
        StreamId::new(self.role, index)
    }

    /// One of the streams that have been opened, or that will be next.
    pub(super) fn any(&self, input: &mut Input<'_>) -> StreamId {
        match input.byte() {
            at @ 0..0xc0 if !self.writing.is_empty() => {
                self.id(self.writing[usize::from(at) % self.writing.len()])
            }
            _ => self.id(input.below(self.next)),
        }
    }

    /// The application gives a stream up, of which these blocks are on their way. Whether it can.
    pub(super) fn reset(
        &mut self,
        stream: StreamId,
        code: u64,
        blocks: &BTreeMap<u64, u64>,
    ) -> bool {
        let index = stream.index();
        if self.ended.contains(&index) {
            return false;
        }
        let known = self.open.entry(index).or_default();
        if known.reset.is_some() {
            return false;
        }
        known.reset = Some((code, blocks.clone()));
        if !known.is_finished {
            known.is_finished = true;
            self.replace(index);
        }
        true
    }

    /// A stream has no writer any more; another one may be opened.
    fn replace(&mut self, index: u64) {
        self.writing.retain(|writing| *writing != index);
        // As many may be open as a driver opens.
        if self.next - (self.ended.len() as u64) < STREAMS {
            self.writing.push(self.next);
            self.next += 1;
        }
    }

    /// A block of this stream alone is given up.
    pub(super) fn abandoned(&mut self, stream: StreamId, block: u64) {
        let stream = self.open.get_mut(&stream.index()).expect("it is open");
        let reset = stream.reset.as_ref().expect("it is given up");
        assert!(reset.1.contains_key(&block), "another one");
        stream.outstanding -= 1;
    }

    /// A RESET of the session says what is so.
    pub(super) fn told_reset(&self, reset: &Reset) {
        assert_eq!(reset.stream.opener(), self.role);
        let Some(stream) = self.open.get(&reset.stream.index()) else {
            assert!(self.ended.contains(&reset.stream.index()));
            return;
        };
        let (code, blocks) = stream.reset.as_ref().expect("it is given up");
        assert_eq!((reset.code, reset.cost), (*code, stream.opened));
        let is_right = |(id, cost): &(u64, u64)| blocks.get(id) == Some(cost);
        assert!(reset.blocks.iter().all(is_right), "others are given up");
    }

    /// Parts of different streams for a block of so many bytes.
    pub(super) fn parts(&self, input: &mut Input<'_>, first: u8, bytes: usize) -> Vec<StreamPart> {
        let count = match input.byte() {
            0..0xb0 => 1,
            count => 2 + usize::from(count) % (WRITING - 1),
        };
        let finishes = if input.rarely(6) { input.byte() } else { 0 };
        let streams: Vec<_> = (0..count.min(self.writing.len()))
            .map(|i| (usize::from(first) + i) % self.writing.len())
            .map(|at| (self.id(self.writing[at]), finishes >> at & 1 == 1))
            .collect();
        divide(input, bytes as u32, &streams)
    }

    /// Whether nothing of the stream waits for being taken.
    pub(super) fn is_free(&self, stream: StreamId) -> bool {
        let stream = self.open.get(&stream.index());
        stream.is_none_or(|stream| stream.held() == 0)
    }

    pub(super) fn is_delivered(&self, stream: StreamId) -> bool {
        let stream = self.open.get(&stream.index());
        stream.is_none_or(|stream| stream.outstanding == 0)
    }

    /// A block of these parts has been handed over: the peer's credit and its window allow that.
    pub(super) fn submitted(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let index = part.stream.index();
            let stream = self.open.entry(index).or_default();
            assert!(!stream.is_finished && !self.ended.contains(&index));
            stream.opened += part.cost;
            stream.outstanding += 1;
            self.opened += part.cost;
            if part.end_of_stream {
                stream.is_finished = true;
                self.replace(index);
            }
        }
        let allowed = self.credit.max(self.window.saturating_add(self.taken));
        assert!(self.opened <= allowed, "more than the peer allows");
        let held: u64 = self.open.values().map(TxStream::held).sum();
        assert!(held <= self.window, "over the peer's window");
    }

    /// The peer has a block with a part of each of these.
    pub(super) fn delivered(&mut self, streams: &[StreamId]) {
        for stream in streams {
            let stream = self.open.get_mut(&stream.index()).expect("it is open");
            stream.outstanding -= 1;
        }
    }

    /// All of a stream has been taken; `is_over`: the session has ended before.
    pub(super) fn ended(&mut self, stream: StreamId, is_over: bool) {
        assert_eq!(stream.opener(), self.role);
        let index = stream.index();
        let known = self.open.remove(&index).expect("it is open");
        // A packet that ends the session does not tell which blocks it completed before.
        let is_delivered = known.outstanding == 0 || is_over;
        assert!(known.is_finished && known.is_over && known.held() == 0 && is_delivered);
        assert!(self.ended.insert(index), "it ends twice");
    }

    /// All that has ended has been told.
    pub(super) fn check_ended(&self) {
        let mut open = self.open.values();
        assert!(!open.any(TxStream::has_ended), "an end that is not told");
    }

    pub(super) fn heard_credit(&mut self, credit: u64) {
        self.credit = self.credit.max(credit);
    }

    /// The peer says what has been taken.
    pub(super) fn heard(&mut self, streams: &Streams) {
        if u64::from(streams.kind) != self.id(0).to_wire() & 3 {
            return;
        }
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        let ranges: Vec<_> = below.into_iter().chain(streams.ended.clone()).collect();
        let has_ended = |index: u64| {
            ranges
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&index))
        };
        for (index, stream) in &mut self.open {
            let told = streams.taken.iter().filter(|told| told.0 == *index);
            let most = told.map(|told| told.1).max().unwrap_or(0);
            let told = if has_ended(*index) { u64::MAX } else { most };
            stream.is_over |= stream.is_finished && has_ended(*index);
            let before = stream.taken;
            stream.taken = before.max(told.min(stream.opened));
            self.taken += stream.taken - before;
        }
    }

    /// What the peer says has been taken, now and then truly.
    pub(super) fn streams(&self, input: &mut Input<'_>) -> Streams {
        let flags = input.byte();
        let kind = match flags & 0x0f {
            _ if self.is_tame => self.id(0).to_wire() & 3,
            0..15 => self.id(0).to_wire() & 3,
            _ => input.below(4),
        };
        let base = match flags >> 4 & 3 {
            0 | 1 => 0,
            2 => input.below(12),
            _ => input.any() >> 2,
        };
        let mut ended = Vec::new();
        let mut next = base;
        for _ in 0..flags >> 6 {
            let low = next.saturating_add(1 + input.below(4));
            let high = low.saturating_add(match input.byte() {
                len @ 0..0xf0 => u64::from(len & 3),
                _ => input.any() >> 2,
            });
            if high >= sphinx_proto::wire::VARINT_MAX {
                break;
            }
            ended.push((low, high));
            next = high + 1;
        }
        let mut taken = Vec::new();
        let mut next = base;
        for _ in 0..input.below(9) {
            let index = next + input.below(3);
            let opened = self.open.get(&index).map_or(0, |stream| stream.opened);
            let cost = match input.byte() {
                0..0x80 => opened,
                part @ 0x80..0xf0 => opened * u64::from(part - 0x80) / 0x70,
                _ => input.any() >> 2,
            };
            taken.push((index, cost));
            next = index + 1;
        }
        Streams {
            kind: kind as u8,
            base,
            ended,
            taken,
        }
    }
}
