//! What leaves, and what is wrong about it.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_driver::{Outbox, PacketProtection};
use sphinx_fec::{CodeId, Encoder, Row};
use sphinx_proto::wire::{
    Blocks, Bundle, DATAGRAMS_MAX, Datagram, DatagramIter, Fragment, Frame, FrameIter, Header,
    PacketKind, Reset, Sack, Segment, SegmentIter, SymbolId, WindowSpan,
};
use sphinx_proto::{PacketNumber, Role, StreamId, StreamPart, Time, Tuple, block_cost, share_cost};
use sphinx_sim::Plain;

use super::peer::data;

/// A block may hold one segment, and another for each of so many bytes.
const SEGMENT_BYTES: usize = 256;
/// Repairs of a block that are kept until they can be computed.
const REPAIRS_MAX: usize = 8;

/// A block of which some has left.
struct Sent {
    n: u16,
    symbol_len: u16,
    bytes: Vec<u8>,
    missing: BTreeSet<u16>,
    /// Parts of symbols: row, count; of each the parts that are missing.
    parts: BTreeMap<(u16, u8), BTreeSet<u8>>,
    /// Repairs that have not been compared yet, and how many have been.
    repairs: Vec<(CodeId, Row, Vec<u8>)>,
    compared: usize,
}

impl Sent {
    fn cost(&self) -> u64 {
        block_cost(self.n, self.symbol_len)
    }
}

/// What the peer knows of a stream.
#[derive(Default, Clone, Copy)]
pub(super) struct Got {
    pub(super) next: u64,
    pub(super) cost: u64,
    has_end: bool,
    /// Cost of the whole stream, if it was given up.
    reset: Option<u64>,
}

impl Got {
    pub(super) fn has_ended(&self) -> bool {
        match self.reset {
            Some(cost) => self.cost == cost,
            None => self.has_end,
        }
    }
}

/// The last feedback, and all that it has said of streams that have ended.
#[derive(Default)]
pub(super) struct Feedback {
    pub(super) sack: Option<Sack>,
    pub(super) blocks: Option<Blocks>,
    /// Streams that any STREAMS frame has told have ended.
    pub(super) ended: BTreeSet<StreamId>,
}

pub(super) struct Wire {
    role: Role,
    peer: Plain,
    /// The next packet number.
    pub(super) next: u64,
    /// Numbers below that were left out.
    pub(super) left_out: BTreeSet<u64>,
    len_max: usize,
    sent: Vec<Vec<u8>>,
    blocks: BTreeMap<u32, Sent>,
    encoder: Encoder,
    /// What all blocks cost, and what the peer allows.
    opened: u64,
    pub(super) allowed: u64,
    /// Every block below has wholly been seen, and is in `got`.
    pub(super) base: u32,
    pub(super) got: BTreeMap<StreamId, Got>,
    /// Its streams with two directions that it has named: they may be answered.
    pub(super) named: BTreeSet<StreamId>,
    /// Streams that the application has opened, what it has written to them, and whether it has finished them.
    pub(super) written: BTreeMap<StreamId, (u64, bool)>,
    /// Why the streams that were given up were, for any of these reasons; the peer may have said others by chance.
    pub(super) reasons: BTreeMap<StreamId, BTreeSet<u64>>,
    pub(super) has_chance: bool,
    /// Blocks that were given up with their streams.
    given_up: BTreeSet<u32>,
    /// Streams that the peer was told to stop.
    pub(super) stops: BTreeSet<StreamId>,
    pub(super) feedback: Feedback,
    /// The peer's blocks below are complete, and these have begun to arrive.
    pub(super) complete_base: u32,
    pub(super) begun: BTreeSet<u32>,
}

impl Outbox for Wire {
    fn len_bytes(&self) -> usize {
        0
    }

    fn push(&mut self, _to: &Tuple, _ecn: u8, len: usize) -> &mut [u8] {
        assert!(len <= self.len_max, "too long");
        self.sent.push(vec![0xaa; len]);
        self.sent.last_mut().expect("just made")
    }
}

impl Wire {
    pub(super) fn new(role: Role, len_max: usize, window: u64) -> Self {
        Self {
            role,
            peer: Plain::default(),
            next: 0,
            left_out: BTreeSet::new(),
            len_max,
            sent: Vec::new(),
            blocks: BTreeMap::new(),
            encoder: Encoder::new(),
            opened: 0,
            allowed: window,
            base: 0,
            got: BTreeMap::new(),
            named: BTreeSet::new(),
            written: BTreeMap::new(),
            reasons: BTreeMap::new(),
            has_chance: false,
            given_up: BTreeSet::new(),
            stops: BTreeSet::new(),
            feedback: Feedback::default(),
            complete_base: 0,
            begun: BTreeSet::new(),
        }
    }

    /// Every packet has a number of its own, opens, and is one that an honest end sends.
    pub(super) fn check(&mut self) {
        for mut datagram in std::mem::take(&mut self.sent) {
            let header = self.peer.unprotect(&mut datagram).expect("a header");
            let number = self.next & !0xffff_ffff | u64::from(header.packet_number);
            assert!(number >= self.next, "a number is used again");
            // Numbers are left out one at a time.
            assert!(number <= self.next + 1, "more than one number is left out");
            self.left_out.extend(self.next..number);
            self.next = number + 1;
            let opened = self.peer.open(
                &header,
                PacketNumber::new(number),
                &mut datagram,
                Time::ZERO,
                0,
            );
            let body = &datagram[opened.expect("it is sealed")];
            match header.kind {
                PacketKind::Control => {
                    let is_probe = body.first() == Some(&1) && body[1..].iter().all(|b| *b == 0);
                    let frames = FrameIter::new(if is_probe { &body[..1] } else { body });
                    frames.for_each(|frame| self.frame(frame.expect("a frame of its own")));
                }
                PacketKind::Fragment => {
                    let (part, bytes) = Fragment::split(body).expect("a part of a symbol");
                    self.part(&header, part, bytes);
                }
                PacketKind::Symbol => self.symbol(&header, body),
                PacketKind::Bundle => {
                    for (header, at) in Bundle::split(&header, body).expect("a bundle") {
                        self.symbol(&header, &body[at]);
                    }
                }
            }
        }
    }

    fn frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Sack(sack) => self.feedback.sack = Some(sack),
            Frame::Blocks(blocks) => {
                self.complete_base = blocks.base.truncated();
                let deficits = blocks.deficits.iter().map(|(id, _)| id.truncated());
                self.begun.extend(deficits);
                self.feedback.blocks = Some(blocks);
            }
            Frame::Streams(streams) => {
                let of_kind = |index: u64| {
                    let id = index << 2 | u64::from(streams.kind);
                    StreamId::from_wire(id).expect("a stream that there can be")
                };
                assert!(of_kind(0).has_sender(self.role.other()));
                let ended = streams.ended.iter().flat_map(|(low, high)| *low..=*high);
                let ended = (0..streams.base).chain(ended).map(of_kind);
                self.feedback.ended.extend(ended);
            }
            Frame::Reset(reset) => self.reset(&reset),
            Frame::Gone(blocks) => {
                for (id, cost) in blocks {
                    let block = id.truncated();
                    let sent = self.blocks.get(&block);
                    assert!(sent.is_none_or(|sent| sent.cost() == cost));
                    // The block may have been whole before.
                    self.given_up.insert(block);
                }
            }
            Frame::Stop { stream, .. } => {
                self.name(stream);
                self.stops.insert(stream);
            }
            _ => {}
        }
    }

    /// The peer hears of a stream.
    fn name(&mut self, stream: StreamId) {
        if stream.is_bi() && stream.opener() == self.role {
            self.named.insert(stream);
        }
    }

    /// A stream is given up: nothing more leaves of blocks that it names.
    fn reset(&mut self, reset: &Reset) {
        self.name(reset.stream);
        let reasons = self.reasons.get(&reset.stream);
        let is_known = reasons.is_some_and(|reasons| reasons.contains(&reset.code));
        assert!(is_known || self.has_chance, "given up by nobody");
        let mut cost = 0;
        for &(id, block_cost) in &reset.blocks {
            let id = id.truncated();
            if id < self.base || !self.given_up.insert(id) {
                continue;
            }
            match self.blocks.remove(&id) {
                Some(sent) => assert_eq!(sent.cost(), block_cost),
                None => self.count(block_cost),
            }
            cost += block_cost;
        }
        let got = self.got.entry(reset.stream).or_default();
        got.cost += cost;
        assert!(got.cost <= reset.cost, "more of it than there is");
        let before = got.reset.replace(reset.cost);
        assert!(before.is_none_or(|before| before == reset.cost));
        self.take_whole();
    }

    /// A block of this cost begins.
    fn count(&mut self, cost: u64) {
        self.opened += cost;
        assert!(self.opened <= self.allowed, "more than the peer allows");
    }

    /// The block of a symbol: its cost counts, and every packet says the same of it.
    fn block(&mut self, header: &Header, symbol_len: u16) -> &mut Sent {
        let n = header.n;
        assert!(!self.given_up.contains(&header.block), "it was given up");
        if !self.blocks.contains_key(&header.block) {
            self.count(block_cost(n, symbol_len));
        }
        let len = usize::from(n) * usize::from(symbol_len);
        let sent = self.blocks.entry(header.block).or_insert_with(|| Sent {
            n,
            symbol_len,
            bytes: vec![0; len],
            missing: (0..n).collect(),
            parts: BTreeMap::new(),
            repairs: Vec::new(),
            compared: 0,
        });
        assert_eq!((sent.n, sent.symbol_len), (n, symbol_len));
        sent
    }

    fn symbol(&mut self, header: &Header, body: &[u8]) {
        if header.code == CodeId::Window.to_wire() {
            assert!(WindowSpan::split(body).is_some());
            return;
        }
        let is_known = header.block < self.base;
        let sent = self.block(header, body.len() as u16);
        match header.symbol().expect("a code") {
            SymbolId::Source(index) => {
                let at = usize::from(index) * body.len();
                sent.bytes[at..][..body.len()].copy_from_slice(body);
                sent.missing.remove(&index);
            }
            SymbolId::Repair(code, row) => {
                if sent.compared + sent.repairs.len() < REPAIRS_MAX {
                    sent.repairs.push((code, row, body.to_vec()));
                }
            }
        }
        if is_known {
            self.check_repairs(header.block);
        }
        self.take_whole();
    }

    /// The repairs of a block that has wholly been seen are what it makes them.
    fn check_repairs(&mut self, block: u32) {
        let sent = self.blocks.get_mut(&block).expect("it is known");
        let repairs = std::mem::take(&mut sent.repairs);
        sent.compared += repairs.len();
        let (n, len) = (usize::from(sent.n), usize::from(sent.symbol_len));
        // All rows of a transform cost as much as one.
        for same in repairs.chunk_by(|one, next| one.0 == next.0) {
            let rows: Vec<_> = same.iter().map(|(code, row, _)| (*code, *row)).collect();
            let mut symbols = vec![0; rows.len() * len];
            let encoder = &mut self.encoder;
            let encoded = encoder.encode_rows(n, len, &sent.bytes, &rows, &mut symbols);
            let sent = same.iter().flat_map(|(_, _, bytes)| bytes);
            assert!(encoded.is_ok() && symbols.iter().eq(sent), "a wrong repair");
        }
    }

    fn part(&mut self, header: &Header, part: Fragment, bytes: &[u8]) {
        let sent = self.block(header, part.symbol_len);
        let SymbolId::Source(index) = header.symbol().expect("a code") else {
            return;
        };
        let at = usize::from(index) * usize::from(part.symbol_len) + part.range().start;
        sent.bytes[at..][..bytes.len()].copy_from_slice(bytes);
        let parts = sent.parts.entry((index, part.count));
        let missing = parts.or_insert_with(|| (0..part.count).collect());
        missing.remove(&part.index);
        if missing.is_empty() {
            sent.missing.remove(&index);
        }
        self.take_whole();
    }

    /// Looks into the next blocks that have wholly been seen, in turn.
    fn take_whole(&mut self) {
        loop {
            if self.given_up.contains(&self.base) {
                self.base += 1;
                continue;
            }
            let is_whole = |sent: &Sent| sent.missing.is_empty();
            if !self.blocks.get(&self.base).is_some_and(is_whole) {
                return;
            }
            self.check_repairs(self.base);
            let sent = &self.blocks[&self.base];
            if let Some(datagrams) = DatagramIter::new(&sent.bytes) {
                let datagrams: Result<Vec<_>, _> = datagrams.collect();
                let datagrams = datagrams.expect("datagrams");
                assert!(datagrams.len() <= DATAGRAMS_MAX);
                let mut all = datagrams.iter();
                assert!(all.all(|(one, at)| is_datagram(one, &sent.bytes[at.clone()])));
                self.base += 1;
                continue;
            }
            let segments = SegmentIter::new(&sent.bytes).map(|s| s.expect("a segment"));
            let segments: Vec<_> = segments.collect();
            let most = 1 + sent.bytes.len() / SEGMENT_BYTES;
            assert!((1..=most).contains(&segments.len()), "too many pieces");
            let (mut end, mut parts) = (0, Vec::new());
            for (segment, at) in &segments {
                let is_known = |part: &StreamPart| part.stream == segment.stream;
                assert!(!parts.iter().any(is_known), "two pieces of a stream");
                parts.push(StreamPart {
                    stream: segment.stream,
                    bytes: (at.end - end) as u32,
                    end_of_stream: segment.end_of_stream,
                    cost: 0,
                });
                end = at.end;
                check(segment, &sent.bytes[at.clone()], &self.written);
                let got = self.got.entry(segment.stream).or_default();
                // What came before may have been given up.
                let is_next = got.next == segment.offset;
                assert!(!got.has_end && (is_next || got.reset.is_some()));
                got.next = segment.end();
                got.has_end = segment.end_of_stream;
            }
            let mut padding = sent.bytes[end..].iter();
            assert!(padding.all(|byte| *byte == 0), "others' data leaves");
            share_cost(sent.cost(), &mut parts);
            for part in parts {
                self.name(part.stream);
                let got = self.got.entry(part.stream).or_default();
                got.cost += part.cost;
                let all = got.reset.unwrap_or(u64::MAX);
                assert!(got.cost <= all, "more of it than there is");
            }
            self.base += 1;
        }
    }
}

/// What a datagram of so many bytes of a flow holds.
pub(super) fn datagram(flow: u64, len: usize) -> Vec<u8> {
    vec![(flow ^ len as u64) as u8; len]
}

/// A datagram holds what the application has sent.
fn is_datagram(one: &Datagram, bytes: &[u8]) -> bool {
    bytes == datagram(one.flow, one.len)
}

/// A segment holds what the application has written.
fn check(segment: &Segment, bytes: &[u8], written: &BTreeMap<StreamId, (u64, bool)>) {
    let known = written.get(&segment.stream);
    let (len, finished) = known.expect("a stream that was opened");
    assert!(segment.end() <= *len);
    assert!(!segment.end_of_stream || *finished && segment.end() == *len);
    let expected = data(segment.stream, segment.offset..segment.end());
    assert_eq!(bytes, expected, "other data");
}
