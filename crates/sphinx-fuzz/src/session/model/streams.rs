//! What a driver may rely on about streams: who may send on one, what it costs, and when it is over.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_proto::wire::{Reset, Sack, Streams};
use sphinx_proto::{BlockId, PacketNumber, Role, StreamId, StreamPart, WindowNumber};

use crate::Input;
use crate::session::STREAMS;

/// SACKs by which every piece of news has been told: each has room for some of all the streams.
const TOLD_BY: u32 = 48;
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

/// The kind of a stream: its opener, and whether it has one direction.
fn kind(stream: StreamId) -> u64 {
    stream.to_wire() & 3
}

/// The stream of this kind with this index.
fn of_kind(kind: u64, index: u64) -> StreamId {
    let index = index.min(StreamId::INDEX_MAX);
    StreamId::from_wire(index << 2 | kind).expect("a varint")
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

/// A stream that the peer sends on and that is open.
#[derive(Default)]
struct RxStream {
    received: u64,
    taken: u64,
    /// What the last STREAMS frame with it said, and SACKs since something else is true.
    told: u64,
    untold: u32,
    /// Whether its last part is here, and whether all of it is.
    has_end: bool,
    is_whole: bool,
    is_abandoned: bool,
    /// The peer has given it up: why, and what all of it costs; and whether that has been told.
    reset: Option<(u64, u64)>,
    is_reset_told: bool,
    /// The peer has opened it and has not taken all of the answer.
    awaits_answer: bool,
}

impl RxStream {
    /// Whether nothing more of it comes, and everything has been taken.
    fn is_over(&self) -> bool {
        let is_here = match self.reset {
            Some((_, cost)) => self.is_abandoned && self.received == cost,
            None => self.is_whole,
        };
        is_here && self.taken == self.received
    }

    fn has_ended(&self) -> bool {
        self.is_over() && !self.awaits_answer
    }

    /// Whether a further cost fits what a RESET has said of the whole.
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

/// Streams that the peer sends on: its own, and answers on those of this end with two directions.
pub(super) struct RxStreams {
    end: Role,
    /// How many streams with two directions this end has begun, as far as the peer may know.
    begun: u64,
    open: BTreeMap<StreamId, RxStream>,
    /// Those that have ended, with the SACKs that did not tell of it yet; `None` once one has.
    ended: BTreeMap<StreamId, Option<u32>>,
    /// Those that were given up and have ended, and the session is about to say so.
    over: BTreeSet<StreamId>,
    /// Those that the application has let go of before all of them had come.
    stopped: BTreeSet<StreamId>,
    held: Vec<Held>,
    /// The peer sends nothing that cannot be.
    is_tame: bool,
}

impl RxStreams {
    pub(super) fn new(end: Role, is_tame: bool) -> Self {
        Self {
            end,
            is_tame,
            begun: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            over: BTreeSet::new(),
            stopped: BTreeSet::new(),
            held: Vec::new(),
        }
    }

    /// This end names a stream to the peer: if it is one of its own with two directions, the peer may answer, and on those
    /// before it.
    pub(super) fn begin(&mut self, stream: StreamId) {
        if stream.is_bi() && stream.opener() == self.end {
            self.begun = self.begun.max(stream.index() + 1);
        }
    }

    /// Whether the peer may send on the stream: it has not ended, and at most [`STREAMS`] of its kind up to it have not; or this
    /// end has begun it, and it has two directions.
    pub(super) fn may_be(&self, stream: StreamId) -> bool {
        let is_kind = |other: &&StreamId| kind(**other) == kind(stream);
        let ended = || self.ended.range(..stream).map(|(stream, _)| stream);
        let ended_before = || ended().filter(is_kind).count() as u64;
        let has_turn = match stream.opener() == self.end {
            true => stream.index() < self.begun,
            false => stream.index() - ended_before() < STREAMS,
        };
        stream.has_sender(self.end.other()) && !self.ended.contains_key(&stream) && has_turn
    }

    /// The stream, which begins if it is new.
    fn stream(&mut self, stream: StreamId) -> &mut RxStream {
        let awaits_answer = stream.is_bi() && stream.opener() != self.end;
        self.open.entry(stream).or_insert_with(|| RxStream {
            awaits_answer,
            ..RxStream::default()
        })
    }

    pub(super) fn are_possible(&self, parts: &[StreamPart]) -> bool {
        let may_grow = |part: &StreamPart| {
            let open = self.open.get(&part.stream);
            // One block may hold several parts of a stream.
            let its = parts.iter().filter(|other| other.stream == part.stream);
            let cost = its.map(|part| part.cost).sum();
            open.is_none_or(|open| !open.is_over() && open.may_grow(cost))
        };
        let is_possible = |part: &StreamPart| self.may_be(part.stream) && may_grow(part);
        parts.iter().all(is_possible)
    }

    pub(super) fn has_ended(&self, stream: StreamId) -> bool {
        self.ended.contains_key(&stream)
    }

    /// The peer wants no more of what this end sends on the stream. Whether there can be such a stream.
    pub(super) fn heard_stop(&mut self, stream: StreamId) -> bool {
        let is_new = stream.opener() != self.end && !self.ended.contains_key(&stream);
        if is_new && stream.is_bi() && self.may_be(stream) {
            self.stream(stream);
            return true;
        }
        stream.has_sender(self.end) && !is_new
    }

    /// The peer has taken all of the answer on a stream that it has opened.
    pub(super) fn answer_over(&mut self, stream: StreamId) {
        if stream.opener() != self.end {
            let open = self.open.get_mut(&stream);
            open.expect("it is open until then").awaits_answer = false;
            self.forget_ended(stream);
        }
    }

    /// Streams of the peer that may be answered.
    pub(super) fn answerable(&self) -> impl Iterator<Item = StreamId> {
        let open = self.open.iter().filter(|(_, stream)| stream.awaits_answer);
        open.map(|(stream, _)| *stream)
    }

    /// Whether all of an open stream is here.
    pub(super) fn is_here(&self, stream: StreamId) -> bool {
        let open = self.open.get(&stream);
        open.is_some_and(|open| open.is_whole && open.reset.is_none())
    }

    /// What has been received of a stream, or was given up, costs so much.
    pub(super) fn received_of(&self, stream: StreamId) -> u64 {
        self.open.get(&stream).map_or(0, |open| open.received)
    }

    /// What the peer has said as it gave the stream up.
    pub(super) fn reset_of(&self, stream: StreamId) -> Option<(u64, u64)> {
        self.open.get(&stream)?.reset
    }

    /// The peer gives a stream up. Whether it has not done so in another way.
    pub(super) fn reset(&mut self, reset: &Reset) -> bool {
        let open = self.stream(reset.stream);
        let said = (reset.code, reset.cost);
        // An application that reads no more of the stream is not told.
        open.is_reset_told |= open.reset.is_none() && open.is_abandoned;
        *open.reset.get_or_insert(said) == said
    }

    /// A block of this stream alone is given up.
    pub(super) fn given_up(&mut self, stream: StreamId, cost: u64) {
        let open = self.open.get_mut(&stream).expect("it is open");
        open.received += cost;
        open.taken += cost;
    }

    /// Whether there is not more of the stream than its RESET says.
    pub(super) fn after_reset(&mut self, stream: StreamId) -> bool {
        let may_be = self.open[&stream].may_grow(0);
        self.forget_ended(stream);
        may_be
    }

    pub(super) fn told_reset(&mut self, stream: StreamId, code: u64) {
        let Some(open) = self.open.get_mut(&stream) else {
            // The application has let go of it meanwhile.
            return assert!(self.over.contains(&stream));
        };
        assert_eq!(open.reset.map(|(code, _)| code), Some(code));
        assert!(
            !std::mem::replace(&mut open.is_reset_told, true),
            "told twice"
        );
    }

    pub(super) fn told_over(&mut self, stream: StreamId) {
        assert!(self.over.remove(&stream), "it is not over");
    }

    pub(super) fn told_stop(&self, stream: StreamId) {
        assert!(self.stopped.contains(&stream), "it is read");
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
                let known = self.open.get(&stream);
                let ends = !self.is_tame || known.is_none_or(|stream| !stream.has_end);
                (stream, ends && flags & 0x18 == 0x18)
            })
            // An honest peer would have to know what the part costs.
            .filter(|(stream, _)| !self.is_tame || self.reset_of(*stream).is_none())
            .collect();
        divide(input, bytes as u32, &streams)
    }

    /// Mostly one of the first streams of some kind that have not ended.
    pub(super) fn any_stream(&self, input: &mut Input<'_>, flags: u8) -> StreamId {
        let (own, peer) = (self.end, self.end.other());
        let uni = kind(StreamId::new(peer, 0));
        let bi = kind(StreamId::bi(peer, 0));
        let answer = kind(StreamId::bi(own, 0));
        let is_whole = |stream| self.open.get(&stream).is_some_and(|open| open.is_whole);
        let is_live = |stream: &StreamId| {
            !(self.ended.contains_key(stream) || self.is_tame && is_whole(*stream))
        };
        let streams = |kind| (0..).map(move |index| of_kind(kind, index));
        let nth = usize::from(flags & 7);
        let live = |kind| streams(kind).filter(is_live).nth(nth).expect("without end");
        match flags {
            0..0x40 | 0xc0..0xf0 => live(uni),
            0x40..0x80 => live(bi),
            0x80..0xc0 => {
                let begun: Vec<_> = streams(answer).take(self.begun as usize).collect();
                let begun: Vec<_> = begun.into_iter().filter(is_live).collect();
                match begun.len() {
                    0 => live(bi),
                    len => begun[nth % len],
                }
            }
            // As far ahead as may be.
            0xf0.. if self.is_tame => {
                let kind = [uni, bi][nth & 1];
                let mut open = streams(kind).filter(|stream| !self.ended.contains_key(stream));
                let far = open.nth(STREAMS as usize - 1 - nth);
                far.filter(is_live).unwrap_or_else(|| live(kind))
            }
            // About as far ahead as may be, and beyond.
            0xf0..0xf8 => {
                let open = streams([uni, bi][nth & 1]);
                let mut open = open.filter(|stream| !self.ended.contains_key(stream));
                let ahead = STREAMS - 2 + input.below(4);
                open.nth(ahead as usize).expect("without end")
            }
            0xf8..0xfb => of_kind(answer, (self.begun + input.below(3)).saturating_sub(1)),
            0xfb..0xfe => of_kind([uni, bi, answer][nth % 3], input.below(8)),
            _ => StreamId::new(own, input.below(8)),
        }
    }

    /// A block of these parts has been unpacked.
    pub(super) fn received(&mut self, parts: &[StreamPart]) {
        for part in parts {
            self.stream(part.stream).received += part.cost;
        }
        let opened = |is_bi| {
            let opened = self.open.keys().filter(|id| id.opener() != self.end);
            opened.filter(|id| id.is_bi() == is_bi).count() as u64
        };
        let most = opened(true).max(opened(false));
        assert!(most <= STREAMS, "too many streams");
    }

    /// Puts a part where it belongs. Whether it lies where the last one was missing is the input's business.
    pub(super) fn arrived(&mut self, input: &mut Input<'_>, part: &StreamPart) -> Arrival {
        let stream = self.open.get_mut(&part.stream).expect("it is open");
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
        self.forget_ended(stream);
    }

    pub(super) fn taken(&mut self, part: Held) {
        let open = self.open.get_mut(&part.stream);
        open.expect("it is open").taken += part.cost;
        self.forget_ended(part.stream);
    }

    fn forget_ended(&mut self, stream: StreamId) {
        if !self.open.get(&stream).is_some_and(RxStream::has_ended) {
            return;
        }
        if let Some(open) = self.open.remove(&stream) {
            if open.reset.is_some() {
                self.over.insert(stream);
            }
            let before = self.ended.insert(stream, Some(0));
            assert!(before.is_none(), "it has ended before");
        }
    }

    /// A part that the application takes now.
    pub(super) fn next_taken(&mut self, input: &mut Input<'_>) -> Option<Held> {
        let at = input.below(self.held.len() as u64) as usize;
        (!self.held.is_empty()).then(|| self.held.swap_remove(at))
    }

    /// A stream that the application may let go of: one that is open, or of its own with two directions, below `opened`.
    pub(super) fn to_abandon(&self, input: &mut Input<'_>, opened: u64) -> Option<StreamId> {
        let own = (0..opened).map(|index| StreamId::bi(self.end, index));
        let silent = own
            .filter(|stream| !self.open.contains_key(stream) && !self.ended.contains_key(stream));
        let streams: Vec<_> = self.open.keys().copied().chain(silent).collect();
        (!streams.is_empty()).then(|| streams[input.below(streams.len() as u64) as usize])
    }

    /// The application lets go of a stream: its parts are to be taken.
    pub(super) fn abandon(&mut self, stream: StreamId) -> Vec<Held> {
        self.begin(stream);
        let open = self.stream(stream);
        open.is_abandoned = true;
        if !open.is_whole && open.reset.is_none() {
            self.stopped.insert(stream);
        }
        self.forget_ended(stream);
        let is_its = |held: &mut Held| held.stream == stream;
        self.held.extract_if(.., is_its).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.held)
    }

    /// What a STREAMS frame of the session says is so.
    pub(super) fn told(&mut self, streams: &Streams) {
        let kind = u64::from(streams.kind);
        assert!(of_kind(kind, 0).has_sender(self.end.other()));
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        for (low, high) in below.into_iter().chain(streams.ended.iter().copied()) {
            assert!(high - low < 1 << 20);
            for index in low..=high {
                let ended = self.ended.get_mut(&of_kind(kind, index));
                *ended.expect("it has not ended") = None;
            }
        }
        for &(index, taken) in &streams.taken {
            let stream = self.open.get_mut(&of_kind(kind, index));
            let stream = stream.expect("it is not open");
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

/// A stream that this end sends on.
#[derive(Default)]
struct TxStream {
    opened: u64,
    taken: u64,
    outstanding: u32,
    is_finished: bool,
    /// The peer has said that the stream has ended.
    is_over: bool,
    /// The application has given it up: why, and blocks of it alone with their costs.
    reset: Option<(u64, BTreeMap<BlockId, u64>)>,
}

impl TxStream {
    fn held(&self) -> u64 {
        self.opened - self.taken
    }

    fn has_ended(&self) -> bool {
        self.is_finished && self.outstanding == 0 && self.is_over
    }
}

/// Streams that this end sends on: its own, and answers on those of the peer with two directions.
pub(super) struct TxStreams {
    role: Role,
    /// The peer's; its number; and the numbers of those that have shrunk, each with the most credit to be kept within.
    window: u64,
    window_number: WindowNumber,
    shrunk: BTreeMap<WindowNumber, u64>,
    credit: u64,
    /// The packet since which the peer's credit counts.
    credit_from: PacketNumber,
    opened: u64,
    taken: u64,
    open: BTreeMap<StreamId, TxStream>,
    ended: BTreeSet<StreamId>,
    /// Its own streams that may be written to, and how many it has opened: of one direction, and of two.
    writing: Vec<StreamId>,
    next: [u64; 2],
    is_tame: bool,
}

impl TxStreams {
    pub(super) fn new(role: Role, window: u64, is_tame: bool) -> Self {
        let half = WRITING as u64 / 2;
        let pairs = (0..half).map(|index| [StreamId::new(role, index), StreamId::bi(role, index)]);
        Self {
            role,
            is_tame,
            window,
            window_number: WindowNumber::ZERO,
            shrunk: BTreeMap::new(),
            credit: window,
            credit_from: PacketNumber::ZERO,
            opened: 0,
            taken: 0,
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            writing: pairs.flatten().collect(),
            next: [half; 2],
        }
    }

    /// How many streams with two directions this end has opened.
    pub(super) fn opened_bi(&self) -> u64 {
        self.next[1]
    }

    /// One of the streams that have been opened, or of those that may be answered.
    pub(super) fn any(
        &self,
        input: &mut Input<'_>,
        answers: impl Iterator<Item = StreamId>,
    ) -> StreamId {
        let writing = self.writing.iter().copied();
        let writing: Vec<_> = writing.chain(answers).collect();
        match input.byte() {
            at @ 0..0xc0 if !writing.is_empty() => writing[usize::from(at) % writing.len()],
            at if at & 1 == 0 => StreamId::new(self.role, input.below(self.next[0])),
            _ => StreamId::bi(self.role, input.below(self.next[1])),
        }
    }

    /// The application gives a stream up, of which these blocks are on their way. Whether it can.
    pub(super) fn reset(
        &mut self,
        stream: StreamId,
        code: u64,
        blocks: &BTreeMap<BlockId, u64>,
    ) -> bool {
        if self.ended.contains(&stream) {
            return false;
        }
        let known = self.open.entry(stream).or_default();
        if known.reset.is_some() {
            return false;
        }
        known.reset = Some((code, blocks.clone()));
        if !known.is_finished {
            known.is_finished = true;
            self.replace(stream);
        }
        true
    }

    /// A stream has no writer any more; another one of its kind may be opened.
    fn replace(&mut self, stream: StreamId) {
        self.writing.retain(|writing| *writing != stream);
        if stream.opener() != self.role {
            return;
        }
        let is_kind = |other: &&StreamId| kind(**other) == kind(stream);
        let ended = self.ended.iter().filter(is_kind).count() as u64;
        let next = &mut self.next[usize::from(stream.is_bi())];
        // As many may be open as a driver opens.
        if *next - ended < STREAMS {
            self.writing.push(of_kind(kind(stream), *next));
            *next += 1;
        }
    }

    /// Whether the application may write to the stream, as far as this end has not finished it.
    pub(super) fn is_writable(&self, stream: StreamId) -> bool {
        let is_finished = self.open.get(&stream).is_some_and(|open| open.is_finished);
        !is_finished && !self.ended.contains(&stream)
    }

    pub(super) fn has_ended(&self, stream: StreamId) -> bool {
        self.ended.contains(&stream)
    }

    /// A block of this stream alone is given up.
    pub(super) fn abandoned(&mut self, stream: StreamId, block: BlockId) {
        let stream = self.open.get_mut(&stream).expect("it is open");
        let reset = stream.reset.as_ref().expect("it is given up");
        assert!(reset.1.contains_key(&block), "another one");
        stream.outstanding -= 1;
    }

    /// A RESET of the session says what is so.
    pub(super) fn told_reset(&self, reset: &Reset) {
        assert!(reset.stream.has_sender(self.role));
        let Some(stream) = self.open.get(&reset.stream) else {
            assert!(self.ended.contains(&reset.stream));
            return;
        };
        let (code, blocks) = stream.reset.as_ref().expect("it is given up");
        assert_eq!((reset.code, reset.cost), (*code, stream.opened));
        let is_right = |(id, cost): &(BlockId, u64)| blocks.get(id) == Some(cost);
        assert!(reset.blocks.iter().all(is_right), "others are given up");
    }

    /// Parts of different streams for a block of so many bytes: streams of its own, answers, or both.
    pub(super) fn parts(
        &self,
        input: &mut Input<'_>,
        (first, kind): (u8, u8),
        answers: Vec<StreamId>,
        bytes: usize,
    ) -> Vec<StreamPart> {
        let count = match kind {
            0..0xb0 => 1,
            count => 2 + usize::from(count) % (WRITING - 1),
        };
        let finishes = if input.rarely(6) { input.byte() } else { 0 };
        let (mut writing, mut others) = (self.writing.clone(), answers);
        if kind & 8 != 0 {
            std::mem::swap(&mut writing, &mut others);
        }
        writing.append(&mut others);
        let streams: Vec<_> = (0..count.min(writing.len()))
            .map(|i| (usize::from(first) + i) % writing.len())
            .map(|at| (writing[at], finishes >> (at & 7) & 1 == 1))
            .collect();
        divide(input, bytes as u32, &streams)
    }

    /// Whether nothing of the stream waits for being taken.
    pub(super) fn is_free(&self, stream: StreamId) -> bool {
        let stream = self.open.get(&stream);
        stream.is_none_or(|stream| stream.held() == 0)
    }

    pub(super) fn is_delivered(&self, stream: StreamId) -> bool {
        let stream = self.open.get(&stream);
        stream.is_none_or(|stream| stream.outstanding == 0)
    }

    /// A block of these parts has been handed over: the peer's credit and its window allow that.
    pub(super) fn submitted(&mut self, parts: &[StreamPart]) {
        for part in parts {
            let stream = self.open.entry(part.stream).or_default();
            assert!(!stream.is_finished && !self.ended.contains(&part.stream));
            stream.opened += part.cost;
            stream.outstanding += 1;
            self.opened += part.cost;
            if part.end_of_stream {
                stream.is_finished = true;
                self.replace(part.stream);
            }
        }
        assert!(self.opened <= self.allowed(), "more than the peer allows");
        let held: u64 = self.open.values().map(TxStream::held).sum();
        assert!(held <= self.window, "over the peer's window");
    }

    /// A block of datagrams has been handed over.
    pub(super) fn submitted_datagrams(&mut self, cost: u64) {
        self.opened += cost;
        assert!(self.opened <= self.allowed(), "more than the peer allows");
    }

    /// The peer has a block with a part of each of these.
    pub(super) fn delivered(&mut self, streams: &[StreamId]) {
        for stream in streams {
            let stream = self.open.get_mut(stream).expect("it is open");
            stream.outstanding -= 1;
        }
    }

    /// All of a stream has been taken; `is_over`: the session has ended before.
    pub(super) fn ended(&mut self, stream: StreamId, is_over: bool) {
        assert!(stream.has_sender(self.role));
        let known = self.open.remove(&stream).expect("it is open");
        // A packet that ends the session does not tell which blocks it completed before.
        let is_delivered = known.outstanding == 0 || is_over;
        assert!(known.is_finished && known.is_over && known.held() == 0 && is_delivered);
        assert!(self.ended.insert(stream), "it ends twice");
    }

    /// Checks that the end of every ended stream has been told.
    pub(super) fn check_ended(&self) {
        let mut open = self.open.values();
        assert!(!open.any(TxStream::has_ended), "an end that is not told");
    }

    /// The largest sum of costs that the peer has allowed: as soon as anything of a stream has been taken, at least the window.
    fn allowed(&self) -> u64 {
        match self.taken {
            0 => self.credit,
            taken => self.credit.max(self.window.saturating_add(taken)),
        }
    }

    /// What may still be handed over, as far as the peer's credit goes.
    pub(super) fn credit_left(&self) -> u64 {
        self.allowed().saturating_sub(self.opened)
    }

    /// Credit in a SACK, which counts if that acknowledges anything.
    pub(super) fn heard_credit(&mut self, packet_number: PacketNumber, sack: &Sack) {
        if packet_number >= self.credit_from && !sack.ranges.is_empty() {
            self.credit = self.credit.max(sack.credit);
        }
    }

    pub(super) fn window_number(&self) -> WindowNumber {
        self.window_number
    }

    /// The peer's window has been larger than it is, so more may be held than it has room for.
    pub(super) fn has_shrunk(&self) -> bool {
        !self.shrunk.is_empty()
    }

    /// The peer has another window.
    pub(super) fn heard_window(
        &mut self,
        packet_number: PacketNumber,
        number: WindowNumber,
        size: u64,
    ) {
        if number <= self.window_number {
            return;
        }
        if size <= self.window || number > self.window_number + 1 {
            let kept = self.opened.max(self.taken.saturating_add(size));
            self.credit = self.allowed().min(kept);
            self.credit_from = packet_number;
            self.shrunk.insert(number, self.credit);
        }
        (self.window_number, self.window) = (number, size);
    }

    /// The session says that this window holds it up.
    pub(super) fn told_held(&self, number: WindowNumber) {
        assert!(number <= self.window_number);
    }

    /// The session says that it keeps within this credit.
    pub(super) fn told_shrunk(&self, number: WindowNumber, credit: u64) {
        let most = self.shrunk.get(&number).expect("it has shrunk");
        assert!(credit <= *most, "more than it may");
    }

    /// The peer says what has been taken.
    pub(super) fn heard(&mut self, streams: &Streams) {
        let below = streams.base.checked_sub(1).map(|high| (0, high));
        let ranges: Vec<_> = below.into_iter().chain(streams.ended.clone()).collect();
        let has_ended = |index: u64| {
            ranges
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&index))
        };
        let its_kind = u64::from(streams.kind);
        for (id, stream) in self
            .open
            .iter_mut()
            .filter(|(id, _)| kind(**id) == its_kind)
        {
            let told = streams.taken.iter().filter(|told| told.0 == id.index());
            let most = told.map(|told| told.1).max().unwrap_or(0);
            let has_ended = has_ended(id.index());
            let told = if has_ended { u64::MAX } else { most };
            stream.is_over |= stream.is_finished && has_ended;
            let before = stream.taken;
            stream.taken = before.max(told.min(stream.opened));
            self.taken += stream.taken - before;
        }
    }

    /// What the peer says has been taken, now and then truly.
    pub(super) fn streams(&self, input: &mut Input<'_>) -> Streams {
        let flags = input.byte();
        let kind = match flags & 0x0f {
            0..7 => kind(StreamId::new(self.role, 0)),
            7..11 => kind(StreamId::bi(self.role, 0)),
            11..15 => kind(StreamId::bi(self.role.other(), 0)),
            _ if self.is_tame => kind(StreamId::new(self.role, 0)),
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
            let open = self.open.get(&of_kind(kind, index));
            let opened = open.map_or(0, |stream| stream.opened);
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
