//! What a driver keeps, and what it may rely on.

mod streams;
mod window;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sphinx_fec::{BlockDecoder, CodeId, Repair, Row, bits};
use sphinx_proto::wire::{
    BLOCKS_AHEAD_MAX, Blocks, Bundle, ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, Frame,
    FrameIter, Header, MAX_RESET_BLOCKS, MAX_SYMBOL_LEN, OVERHEAD, PacketKind, Reset, ResetToken,
    Sack, Streams, SymbolId, VARINT_MAX, block_symbols_max,
};
use sphinx_proto::{
    AbandonedBlock, BlockId, Config, Content, CoveredBlock, Event, Job, Lifetime, PacketNumber,
    PartPlacement, Placement, RepairMode, RidingSymbol, Role, Room, Session, Slot, StreamId,
    StreamPart, Time, Transmit, Tuple, Urgency, block_cost,
};

use sphinx_sim::Rng;

use crate::Input;
use crate::session::STREAMS;
use streams::{Arrival, Held, RxStreams, TxStreams, check_shares};
use window::RxWindow;
use windows::Windows;

/// Packets that may leave at one point in time: the pacer's largest burst of the smallest packets, and
/// as much again.
const BURST_MAX: u32 = 41_000;
/// Connection ids of one end at a time.
const OWN_IDS_MAX: usize = 9;
/// Symbols being put together at a time.
const PLACES_MAX: u8 = 64;
/// Bytes sent to an address that may be a victim's, per byte that came from there.
const AMPLIFICATION: usize = 3;
/// Largest block that is decoded in the model as well.
const DECODED_MAX: usize = 64;
/// A block is cut down to one symbol of so many bytes, if the window has room for no more.
const CUT_SYMBOL_MIN: u16 = 64;
/// In a window of at least so many bytes every stream can have a block, whatever the others hold.
const FAIR_WINDOW_MIN: u64 = 576 * 2 * STREAMS;

/// A block being received.
struct RxBlock {
    /// Low bits of the block's id.
    block: u32,
    n: u16,
    symbol_len: u16,
    have: Vec<u64>,
    repairs: Vec<(CodeId, Row)>,
    state: RxState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RxState {
    Open,
    Decoding,
    Decoded,
    /// It is to be unpacked.
    Complete,
}

/// A block being sent.
struct TxBlock {
    id: BlockId,
    n: u16,
    symbol_len: u16,
    /// Streams of which the block has a part.
    streams: Vec<StreamId>,
    /// Repairs that have been sent: code, row, and of which part.
    repairs: BTreeSet<(u8, u32, u8)>,
    urgency: Urgency,
    /// Source symbols that have not left.
    unsent: Range<u16>,
}

/// A symbol being put together.
struct Unfinished {
    header: Header,
    symbol_len: u16,
    count: u8,
    parts: BTreeSet<u8>,
}

/// An address of the peer, or of somebody who is not.
struct Place {
    tuple: Tuple,
    is_valid: bool,
    received: usize,
    sent: usize,
    /// Challenges sent there, and answers that came from there.
    challenges: Vec<[u8; 8]>,
    answers: Vec<[u8; 8]>,
}

pub(super) struct Model {
    config: Config,
    decoder: BlockDecoder,
    thorough_decoder: BlockDecoder,
    /// Numbers of the peer's packets so far.
    received: BTreeSet<u64>,
    places: Vec<Place>,
    random: Rng,
    /// Connection ids of this end, and those that the peer has offered.
    own_ids: Vec<ConnectionId>,
    own_id_next: u64,
    peer_ids: Vec<ConnectionId>,
    unfinished: BTreeMap<u8, Unfinished>,
    rx: BTreeMap<Slot, RxBlock>,
    /// What blocks and parts cost that have not been taken, and what all cost that have been.
    rx_held: u64,
    released: u64,
    rx_window: RxWindow,
    rx_streams: RxStreams,
    /// A block held what cannot be.
    was_impossible: bool,
    /// Memory of blocks that the peer has given up: the session is about to say so.
    given_up: BTreeSet<Slot>,
    /// Those of them that the session has named and that the driver has yet to forget.
    abandoned: Vec<AbandonedBlock>,
    /// Blocks of which something has come, by low bits.
    seen: BTreeSet<u32>,
    jobs: Vec<Job>,
    windows: Windows,
    /// Blocks that the driver has been told of, by full id.
    complete: BTreeSet<BlockId>,
    /// Blocks that have all they need, by low bits; and those that the core took for such before it said so.
    whole: BTreeSet<u32>,
    presumed: Vec<u32>,
    /// Blocks of datagrams that have been given up, and what each cost.
    gone: BTreeMap<BlockId, u64>,
    /// Datagrams have been handed over, for which others wait as they come.
    has_datagrams: bool,
    tx: BTreeMap<Slot, TxBlock>,
    tx_held: u64,
    tx_streams: TxStreams,
    slots: u32,
    next_id: BlockId,
    /// One above the largest number of a packet sent, and the numbers below that no packet has.
    next_number: u64,
    left_out: BTreeSet<u64>,
    /// Numbers that the peer has said that it left out.
    skipped: BTreeSet<u64>,
    /// The driver has closed the session, or let go of it.
    is_closed: bool,
    /// The peer says nothing that breaks the protocol.
    is_tame: bool,
    /// Says how the session ended.
    end: Option<Event>,
}

/// A body without what fills the packet up behind a PING, which is most of what a session sends while
/// it looks for the path MTU.
fn without_padding(body: &[u8]) -> &[u8] {
    const ZEROS: [u8; MAX_SYMBOL_LEN] = [0; MAX_SYMBOL_LEN];
    match body.split_first() {
        Some((1, rest)) if ZEROS.starts_with(rest) => &body[..1],
        _ => body,
    }
}

impl Place {
    fn new(tuple: Tuple, is_valid: bool) -> Self {
        Self {
            tuple,
            is_valid,
            received: 0,
            sent: 0,
            challenges: Vec::new(),
            answers: Vec::new(),
        }
    }
}

impl Model {
    pub(super) fn new(config: &Config, is_tame: bool) -> Self {
        Self {
            config: config.clone(),
            decoder: BlockDecoder::new(),
            thorough_decoder: BlockDecoder::new().maximum_likelihood(),
            received: BTreeSet::new(),
            places: vec![Place::new(config.tuple, true)],
            random: Rng::new(0),
            own_ids: vec![config.local_cid],
            own_id_next: 1 << 32,
            peer_ids: vec![config.peer_cid],
            unfinished: BTreeMap::new(),
            rx: BTreeMap::new(),
            rx_held: 0,
            released: 0,
            rx_window: RxWindow::new(config.recv_window),
            rx_streams: RxStreams::new(config.role, is_tame),
            was_impossible: false,
            given_up: BTreeSet::new(),
            abandoned: Vec::new(),
            seen: BTreeSet::new(),
            jobs: Vec::new(),
            windows: Windows::default(),
            complete: BTreeSet::new(),
            whole: BTreeSet::new(),
            presumed: Vec::new(),
            gone: BTreeMap::new(),
            has_datagrams: false,
            tx: BTreeMap::new(),
            tx_held: 0,
            tx_streams: TxStreams::new(config.role, config.peer_window, is_tame),
            slots: 0,
            next_id: BlockId::ZERO,
            next_number: 0,
            left_out: BTreeSet::new(),
            skipped: BTreeSet::new(),
            is_closed: false,
            is_tame,
            end: None,
        }
    }

    // ---- the peer's packets -------------------------------------------------------------------

    /// A number that no packet had before: the next one, or any that the replay window lets pass.
    pub(super) fn packet_number(&mut self, input: &mut Input<'_>, odd: bool) -> u64 {
        let next = self.received.last().map_or(0, |last| last + 1);
        let mut number = match odd.then(|| input.byte()) {
            None => next,
            Some(back @ 0..0x80) => next.saturating_sub(u64::from(back)),
            Some(gap @ 0x80..0xf0) => next + u64::from(gap - 0x80),
            Some(_) => next + input.number(4) / 2,
        };
        while !self.received.insert(number) {
            number += 1;
        }
        number
    }

    /// One above the largest number of a packet sent.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Numbers that the session has left out.
    pub(super) fn left_out(&self) -> &BTreeSet<u64> {
        &self.left_out
    }

    /// Something of a block comes.
    pub(super) fn sees(&mut self, block: u32) {
        self.seen.insert(block);
    }

    /// A number that the peer may have left out, about so far below its newest packet.
    pub(super) fn missing(&self, back: u8) -> u64 {
        let newest = self.received.last().copied().unwrap_or(0);
        let from = newest.saturating_sub(u64::from(back));
        (from..=newest)
            .find(|n| !self.received.contains(n))
            .unwrap_or(from)
    }

    /// Whether this end is client or server.
    pub(super) fn role(&self) -> Role {
        self.config.role
    }

    // ---- paths --------------------------------------------------------------------------------

    fn place_at(&mut self, tuple: Tuple) -> &mut Place {
        let at = self.places.iter().position(|place| place.tuple == tuple);
        let at = at.unwrap_or_else(|| {
            self.places.push(Place::new(tuple, false));
            self.places.len() - 1
        });
        &mut self.places[at]
    }

    /// A datagram came from there.
    pub(super) fn came(&mut self, tuple: Tuple, len: usize) {
        self.place_at(tuple).received += len;
    }

    /// One of the ids that packets to this end may carry.
    pub(super) fn own_id(&self, index: u8) -> ConnectionId {
        self.own_ids[usize::from(index) % self.own_ids.len()]
    }

    /// A challenge that was sent, or one that never was.
    pub(super) fn challenge(&self, index: u8) -> [u8; 8] {
        let mut sent = self.places.iter().flat_map(|place| &place.challenges);
        sent.nth(usize::from(index & 0x1f))
            .copied()
            .unwrap_or([0xee; 8])
    }

    fn is_open(&self) -> bool {
        !self.is_closed && !self.was_impossible && self.end.is_none()
    }

    /// The peer's frames that the model must know of. Whether there can be such a frame, as far as the model says. Whether the session goes on
    /// has to be known for RESET, STOP, GONE and SHRUNK ([`is_going_on`](Model::is_going_on)).
    pub(super) fn said(
        &mut self,
        (from, packet_number): (Tuple, PacketNumber),
        frame: &Frame<'_>,
    ) -> bool {
        match frame {
            Frame::Reset(_) | Frame::Stop { .. } | Frame::Gone(_) => {
                let is_possible = !self.is_open()
                    || match frame {
                        Frame::Reset(reset) => self.heard_reset(reset),
                        Frame::Stop { stream, .. } => self.rx_streams.heard_stop(*stream),
                        Frame::Gone(blocks) => self.heard_gone(blocks),
                        _ => true,
                    };
                self.was_impossible |= !is_possible;
                return is_possible;
            }
            Frame::PathResponse(data) => self.place_at(from).answers.push(*data),
            Frame::NewConnectionId { cid, .. } => self.peer_ids.push(*cid),
            Frame::Skipped { packet_number, .. } => {
                self.skipped.insert(packet_number.get());
            }
            Frame::Sack(sack) => self.tx_streams.heard_credit(packet_number, sack),
            Frame::Window { number, size } => {
                self.tx_streams.heard_window(packet_number, *number, *size);
            }
            Frame::Shrunk { number, credit } => {
                let sums = (self.released + self.rx_held, self.released);
                // Nobody is accused in a session that has ended.
                let is_possible =
                    self.rx_window.heard_shrunk(*number, *credit, sums) || !self.is_open();
                self.was_impossible |= !is_possible;
                return is_possible;
            }
            Frame::Streams(streams) => self.tx_streams.heard(streams),
            _ => {}
        }
        true
    }

    /// Whether the session takes what the peer sends.
    pub(super) fn is_going_on(&mut self, session: &mut Session) -> bool {
        self.events(session);
        self.is_open()
    }

    /// The peer has just sent what cannot be.
    pub(super) fn is_accused(&mut self, session: &mut Session) {
        self.was_impossible = true;
        self.check_accused(session);
    }

    /// The peer has just said what cannot be: the session says so.
    pub(super) fn check_accused(&mut self, session: &mut Session) {
        self.events(session);
        assert!(matches!(self.end, Some(Event::Violation(_))), "it goes on");
    }

    /// The peer gives a stream up. Whether it may, in this way.
    fn heard_reset(&mut self, reset: &Reset) -> bool {
        if !self.rx_streams.may_be(reset.stream) {
            // News of an ended stream may come late.
            return self.rx_streams.has_ended(reset.stream);
        }
        if self.rx_streams.is_here(reset.stream) {
            return true;
        }
        if !self.rx_streams.reset(reset) {
            return false;
        }
        for block in &reset.blocks {
            match self.heard_given_up(*block) {
                Some(true) => self.rx_streams.given_up(reset.stream, block.1),
                Some(false) => {}
                None => return false,
            }
        }
        self.rx_streams.after_reset(reset.stream)
    }

    /// The peer gives up blocks of datagrams. Whether it may.
    fn heard_gone(&mut self, blocks: &[(BlockId, u64)]) -> bool {
        let mut blocks = blocks.iter();
        blocks.all(|block| self.heard_given_up(*block).is_some())
    }

    /// Nothing more comes of a block, which costs so much. Whether that is news; `None`: it cannot be.
    fn heard_given_up(&mut self, (id, cost): (BlockId, u64)) -> Option<bool> {
        let low = id.truncated();
        if self.whole.contains(&low) && id.get() == u64::from(low) {
            return Some(false);
        }
        match self
            .rx
            .iter()
            .find(|(_, rx)| u64::from(rx.block) == id.get())
        {
            Some((_, rx)) if block_cost(rx.n, rx.symbol_len) != cost => return None,
            Some((slot, _)) => {
                self.given_up.insert(*slot);
                self.windows.give_up(low);
                self.free(cost);
            }
            None => {
                let base = (0..).find(|id| !self.whole.contains(id)).expect("not all");
                let is_near = id.get() < u64::from(base) + BLOCKS_AHEAD_MAX;
                if !is_near || self.rx_held + cost > self.rx_room() {
                    return None;
                }
                self.released += cost;
            }
        }
        self.whole.insert(low);
        Some(true)
    }

    /// Blocks that the peer gives up and what each costs, mostly as it may.
    pub(super) fn blocks_to_give_up(&self, input: &mut Input<'_>) -> BTreeMap<BlockId, u64> {
        let mut blocks = BTreeMap::new();
        let cost_of = |id: BlockId| {
            let mut known = self
                .rx
                .values()
                .filter(|rx| u64::from(rx.block) == id.get());
            known.next().map(|rx| block_cost(rx.n, rx.symbol_len))
        };
        for _ in 0..input.below(4) {
            let id = BlockId::new(input.below(32));
            let cost = cost_of(id).unwrap_or_else(|| block_cost(1, 1) + input.below(40));
            let lies = !self.is_tame && input.rarely(16);
            blocks.insert(id, if lies { input.any() >> 2 } else { cost });
        }
        if !self.is_tame {
            return blocks;
        }
        // A tame peer keeps within the window.
        let is_open = |id: &BlockId| !self.whole.contains(&id.truncated());
        let is_clear =
            |id: &BlockId| cost_of(*id).is_some() || !self.seen.contains(&id.truncated());
        blocks.retain(|id, _| !is_open(id) || is_clear(id));
        let is_unseen = |id: &BlockId| is_open(id) && cost_of(*id).is_none();
        let unseen = blocks.iter().filter(|(id, _)| is_unseen(id));
        let unseen: u64 = unseen.map(|(_, cost)| *cost).sum();
        // A block may be open of which no symbol was of use.
        let is_hidden = self
            .seen
            .iter()
            .any(|low| is_unseen(&BlockId::new(u64::from(*low))));
        if is_hidden || self.rx_held + unseen > self.rx_room() {
            blocks.retain(|id, _| !is_unseen(id));
        }
        blocks
    }

    /// A stream that the peer gives up, mostly as it may.
    pub(super) fn reset(&self, input: &mut Input<'_>) -> Reset {
        let flags = input.byte();
        let stream = self.rx_streams.any_stream(input, flags);
        let is_open = |id: &BlockId| !self.whole.contains(&id.truncated());
        let mut blocks = match flags & 0x20 {
            0 => self.blocks_to_give_up(input),
            _ => BTreeMap::new(),
        };
        if self.is_tame && self.rx_streams.reset_of(stream).is_some() {
            // What a tame peer has said of the stream stays true.
            blocks.retain(|id, _| !is_open(id));
        }
        let new = blocks.iter().filter(|(id, _)| is_open(id));
        let new = new.fold(0_u64, |sum, (_, cost)| sum.saturating_add(*cost));
        let cost = self.rx_streams.received_of(stream).saturating_add(new);
        // Blocks of the stream may still be to come.
        let more = if input.rarely(4) {
            input.below(3000)
        } else {
            0
        };
        let said = (input.below(3), cost.saturating_add(more));
        let (mut code, mut cost) = self.rx_streams.reset_of(stream).unwrap_or(said);
        if !self.is_tame && input.rarely(16) {
            (code, cost) = (input.any() >> 2, input.any() >> 2);
        }
        Reset {
            stream,
            code,
            cost: cost.min(VARINT_MAX),
            blocks: blocks.into_iter().take(MAX_RESET_BLOCKS).collect(),
        }
    }

    /// A stream that this end sends on and the peer stops.
    pub(super) fn stopped(&self, input: &mut Input<'_>) -> StreamId {
        let (own, peer) = (self.config.role, self.config.role.other());
        match input.byte() {
            index @ 0..0x60 => StreamId::new(own, u64::from(index)),
            index @ 0x60..0xa0 => StreamId::bi(own, u64::from(index - 0x60)),
            index @ 0xa0..0xf0 => StreamId::bi(peer, u64::from(index - 0xa0) / 4),
            _ if self.is_tame => StreamId::new(own, input.any() >> 4),
            0xf0..0xf8 => StreamId::bi(peer, STREAMS - 4 + input.below(8)),
            index => StreamId::new(peer, u64::from(index)),
        }
    }

    /// The application gives one of its streams up.
    pub(super) fn give_up(&mut self, session: &mut Session, input: &mut Input<'_>) {
        self.events(session);
        let stream = self.tx_streams.any(input, self.rx_streams.answerable());
        let code = input.any();
        let is_open = self.is_open();
        let mut blocks = BTreeMap::new();
        if self.config.code != Some(CodeId::Window) {
            let alone = self.tx.values().filter(|tx| tx.streams == [stream]);
            blocks.extend(alone.map(|tx| (tx.id, block_cost(tx.n, tx.symbol_len))));
        }
        session.reset_stream(stream, code);
        if is_open {
            self.rx_streams.begin(stream);
        }
        if is_open && self.tx_streams.reset(stream, code.min(VARINT_MAX), &blocks) {
            self.events(session);
            let is_left = |tx: &TxBlock| blocks.contains_key(&tx.id);
            assert!(!self.tx.values().any(is_left), "not given up");
        }
    }

    /// What the peer may say of this end's streams.
    pub(super) fn streams(&self, input: &mut Input<'_>) -> Streams {
        self.tx_streams.streams(input)
    }

    /// The driver closes the session, or lets go of it.
    pub(super) fn closes(&mut self) {
        self.is_closed = true;
    }

    /// Gives the session the random numbers that it wants.
    fn supply(&mut self, session: &mut Session) {
        for _ in 0..session.random_wanted() {
            session.add_random(self.random.word().to_be_bytes());
        }
        for _ in 0..session.connection_ids_wanted() {
            self.own_id_next += 1 << 32;
            let id = ConnectionId::new(self.own_id_next.to_be_bytes()).expect("not zero");
            let token = ResetToken::new([self.random.word() as u8; ResetToken::LEN]);
            session.add_connection_id(id, Some(token));
            self.own_ids.push(id);
            assert!(self.own_ids.len() <= OWN_IDS_MAX);
        }
    }

    // ---- receiving ------------------------------------------------------------------------------

    /// The block under way in this slot, which is made if the slot was free.
    fn open(&mut self, slot: Slot, block: u32, (n, symbol_len): (u16, u16)) -> &mut RxBlock {
        let cost = block_cost(n, symbol_len);
        assert!(!self.given_up.contains(&slot), "not forgotten yet");
        if !self.rx.contains_key(&slot) {
            self.rx_held += cost;
            assert!(self.rx_held <= self.rx_room(), "over the window");
            // Slots of unpacked blocks are used again.
            assert!(u64::from(slot.0) <= self.rx_window.largest() / block_cost(1, 1));
            let others = self.rx.values().all(|rx| rx.block != block);
            assert!(others && !self.whole.contains(&block), "in two slots");
            let base = (0..).find(|id| !self.whole.contains(id)).expect("not all");
            assert!(u64::from(block) < u64::from(base) + BLOCKS_AHEAD_MAX);
        }
        let rx = self.rx.entry(slot).or_insert_with(|| RxBlock {
            block,
            n,
            symbol_len,
            have: vec![0; bits::words(usize::from(n))],
            repairs: Vec::new(),
            state: RxState::Open,
        });
        assert_eq!((rx.block, rx.n, rx.symbol_len), (block, n, symbol_len));
        assert_eq!(rx.state, RxState::Open);
        rx
    }

    /// Where the session wants a symbol.
    pub(super) fn place(&mut self, placement: Placement, header: &Header, len: usize) {
        let (slot, n, symbol_len) = match placement {
            Placement::Discard => return,
            Placement::Generation { .. } => panic!("there are no generations"),
            Placement::Block {
                slot,
                n,
                symbol_len,
                ..
            } => (slot, n, symbol_len),
        };
        assert_eq!((n, usize::from(symbol_len)), (header.n, len));
        assert!(usize::from(n) <= block_symbols_max(len) && (1..=MAX_SYMBOL_LEN).contains(&len));
        let rx = self.open(slot, header.block, (n, symbol_len));
        match placement {
            Placement::Block {
                symbol: SymbolId::Source(index),
                ..
            } => {
                assert!(index < n && header.code == CodeId::SOURCE);
                // The core gives up rows that the model keeps.
                let is_new = !bits::contains(&rx.have, usize::from(index));
                bits::insert(&mut rx.have, usize::from(index));
                let is_restored = self.windows.has_restored(header.block, index);
                assert!(is_new || is_restored, "twice");
                self.windows.learn(header.block, index);
                self.take_restored();
            }
            Placement::Block {
                symbol: SymbolId::Repair(code, row),
                ..
            } => {
                assert_eq!((code.to_wire(), row.number()), (header.code, header.row));
                rx.repairs.push((code, row));
                assert!(rx.repairs.len() <= usize::from(n), "more than are needed");
            }
            Placement::Discard | Placement::Generation { .. } => {}
        }
    }

    /// The session keeps a repair of a window.
    pub(super) fn cover(&mut self, row: Row, covered: &[CoveredBlock]) {
        assert!(covered.windows(2).all(|pair| pair[0].block < pair[1].block));
        for block in covered {
            let (n, symbol_len) = (block.n, block.symbol_len);
            assert!((1..=n).contains(&block.count));
            assert!(usize::from(n) <= block_symbols_max(usize::from(symbol_len)));
            match &block.incomplete {
                Some(incomplete) => {
                    let id = block.block.truncated();
                    let rx = self.open(incomplete.slot, id, (n, symbol_len));
                    let mut known =
                        (0..usize::from(n)).filter(|i| bits::contains(&incomplete.known, *i));
                    assert!(known.all(|i| bits::contains(&rx.have, i)), "not there");
                }
                None => {
                    self.presumed.push(block.block.truncated());
                    let is_kept = self.windows.keeps(block.block.truncated(), (n, symbol_len));
                    assert!(is_kept, "a block that is not kept");
                }
            }
        }
        self.windows.add(row, covered);
        self.take_restored();
    }

    /// What rows of windows have restored is there.
    fn take_restored(&mut self) {
        while let Some((block, index)) = self.windows.next_restored() {
            let rx = self.rx.values_mut().find(|rx| rx.block == block);
            let rx = rx.expect("only incomplete blocks are unknown");
            bits::insert(&mut rx.have, usize::from(index));
        }
    }

    /// Where the session wants a part of a symbol.
    pub(super) fn place_part(&mut self, to: PartPlacement, header: &Header, part: Fragment) {
        assert!(to.place < PLACES_MAX && to.symbol_len == part.symbol_len);
        assert_eq!(to.offset, part.range().start);
        assert!(part.range().end <= usize::from(to.symbol_len));
        let same = |u: &Unfinished| {
            (u.symbol_len, u.count) == (part.symbol_len, part.count)
                && (u.header.block, u.header.code, u.header.row)
                    == (header.block, header.code, header.row)
        };
        if self.unfinished.get(&to.place).is_none_or(|u| !same(u)) {
            assert!(!self.unfinished.values().any(same), "in two places");
            let begun = Unfinished {
                header: *header,
                symbol_len: part.symbol_len,
                count: part.count,
                parts: BTreeSet::new(),
            };
            self.unfinished.insert(to.place, begun);
        }
        let unfinished = self.unfinished.get_mut(&to.place).expect("just made");
        assert!(unfinished.parts.insert(part.index), "twice");
        let is_whole = unfinished.parts.len() == usize::from(part.count);
        assert_eq!(to.whole.is_some(), is_whole);
        if let Some(placement) = to.whole {
            self.unfinished.remove(&to.place);
            self.place(placement, header, usize::from(part.symbol_len));
        }
    }

    /// Takes the jobs that the session has; they are done later, in any order but for those of windows.
    pub(super) fn take_jobs(&mut self, session: &mut Session) {
        while let Some(job) = session.poll_job() {
            let rx = self.rx.get_mut(&job.slot).expect("a slot in use");
            assert_eq!(rx.state, RxState::Open);
            assert!(job.decoding.is_some() || job.window.is_some(), "no work");
            assert_eq!(job.decoding.is_some(), !rx.repairs.is_empty());
            rx.state = RxState::Decoding;
            let (block, shape) = (rx.block, (rx.n, rx.symbol_len));
            self.whole.insert(block);
            assert!(self.jobs.iter().all(|known| known.id != job.id));
            self.jobs.push(job);
            if let Some(past) = job.window {
                assert_eq!(past.block.truncated(), block);
                self.windows.complete(past, shape);
                self.take_restored();
                let bytes = self.windows.kept_bytes();
                assert!(bytes <= self.config.recv_window / 4, "too much is kept");
            }
        }
    }

    /// Does one of the jobs.
    pub(super) fn finish_job(&mut self, session: &mut Session, input: &mut Input<'_>) {
        if !self.jobs.is_empty() {
            let at = input.below(self.jobs.len() as u64) as usize;
            let at = match self.jobs[at].window {
                // Jobs with rows of windows are done in their order.
                Some(_) => self.jobs.iter().position(|job| job.window.is_some()),
                None => Some(at),
            };
            let job = self.jobs.remove(at.expect("there is one"));
            self.do_job(session, job);
        }
    }

    fn do_job(&mut self, session: &mut Session, job: Job) {
        let rx = self.rx.get_mut(&job.slot).expect("a slot in use");
        let n = usize::from(rx.n);
        if job.decoding.is_none() {
            assert_eq!(
                bits::absent(&rx.have, n).next(),
                None,
                "a symbol is missing"
            );
        } else if n <= DECODED_MAX {
            // Whether a block decodes does not depend on what its symbols hold.
            let repairs: Vec<Repair<'_>> = rx
                .repairs
                .iter()
                .map(|&(code, row)| Repair {
                    code,
                    row,
                    symbol: &[0; 2],
                })
                .collect();
            let mut memory = [0; 2 * DECODED_MAX];
            let decoder = if job.decoding.is_some_and(|how| how.maximum_likelihood) {
                &mut self.thorough_decoder
            } else {
                &mut self.decoder
            };
            decoder
                .decode(n, 2, &mut memory[..2 * n], &rx.have, &repairs)
                .expect("the core asks only when it can be done");
        }
        rx.state = RxState::Decoded;
        session.job_done(job.id);
    }

    /// The driver unpacks a block, or the application takes a part of a stream, or lets go of one.
    pub(super) fn take(&mut self, session: &mut Session, now: Time, input: &mut Input<'_>) {
        let complete = self.complete_slots();
        match input.byte() {
            0..0x90 if !complete.is_empty() => {
                let slot = input.pick(&complete);
                self.unpack(session, now, slot, input);
            }
            0xf0.. => {
                let code = input.any();
                let opened = self.tx_streams.opened_bi();
                let Some(stream) = self.rx_streams.to_abandon(input, opened) else {
                    return;
                };
                session.stop_stream(stream, code);
                let parts = self.rx_streams.abandon(stream);
                for held in parts {
                    self.take_part(session, now, held);
                }
            }
            _ => {
                if let Some(held) = self.rx_streams.next_taken(input) {
                    self.take_part(session, now, held);
                }
            }
        }
    }

    fn complete_slots(&self) -> Vec<Slot> {
        let complete =
            |(slot, rx): (&Slot, &RxBlock)| (rx.state == RxState::Complete).then_some(*slot);
        self.rx.iter().filter_map(complete).collect()
    }

    /// Tells the session what a complete block holds. Its slot is free from then on.
    fn unpack(&mut self, session: &mut Session, now: Time, slot: Slot, input: &mut Input<'_>) {
        self.events(session);
        let rx = self.rx.remove(&slot).expect("a slot in use");
        let (cost, bytes) = (
            block_cost(rx.n, rx.symbol_len),
            usize::from(rx.n) * usize::from(rx.symbol_len),
        );
        let mut parts = self.rx_streams.parts(input, bytes);
        let is_possible = session.block_unpacked(now, slot, &mut parts);
        check_shares(cost, &parts);
        // After one block that cannot be, the core may have heard of some of its parts.
        assert!(self.was_impossible || is_possible == self.rx_streams.are_possible(&parts));
        if !is_possible {
            self.was_impossible = true;
            assert!(
                !session.can_submit((1, 1), Urgency::default(), &mut []),
                "it goes on"
            );
            return;
        }
        assert_eq!(session.poll_event(), None);
        if parts.is_empty() {
            self.free(cost);
        }
        self.rx_streams.received(&parts);
        for part in &parts {
            let (stream, cost) = (part.stream, part.cost);
            let (whole, is_abandoned) = match self.rx_streams.arrived(input, part) {
                Arrival::Kept { whole } => (whole, false),
                Arrival::Abandoned { whole } => (whole, true),
                Arrival::OutOfPlace => {
                    assert!(!self.is_tame || parts.len() > 1);
                    self.closes();
                    return session.close(now, 5, "data out of place");
                }
            };
            if whole {
                session.stream_whole(stream);
                self.rx_streams.is_whole(stream);
            }
            if is_abandoned {
                self.take_part(session, now, Held { stream, cost });
            }
        }
    }

    fn take_part(&mut self, session: &mut Session, now: Time, held: Held) {
        session.taken(now, held.stream, held.cost);
        self.rx_streams.taken(held);
        self.free(held.cost);
    }

    fn free(&mut self, cost: u64) {
        self.rx_held -= cost;
        self.released += cost;
    }

    /// What all that is held may cost.
    fn rx_room(&self) -> u64 {
        self.rx_window.limit(self.released) - self.released
    }

    /// There is memory for a window of this size.
    pub(super) fn resize_window(&mut self, session: &mut Session, now: Time, size: u64) {
        self.events(session);
        session.set_recv_window(now, size);
        let changes = self.is_open() && !self.rx_window.is_shrinking();
        assert!(!changes || session.recv_window() == size);
        if session.recv_window() != self.rx_window.size() {
            self.rx_window.resize(size);
        }
    }

    /// Time has passed: a window that nobody uses may be what it was at the beginning.
    pub(super) fn note_time(&mut self, session: &Session) {
        let size = session.recv_window();
        if size != self.rx_window.size() {
            assert_eq!(size, self.rx_window.first());
            self.rx_window.resize(size);
        }
    }

    /// A frame about windows, mostly one that may be.
    pub(super) fn window_frame(&mut self, input: &mut Input<'_>, sizes: &[u64]) -> Frame<'static> {
        let flags = input.byte();
        let numbers = self.rx_window.numbers();
        let number = numbers[usize::from(flags >> 7)];
        match flags & 7 {
            0 => Frame::Held { number },
            1..5 => Frame::Window {
                number: self.tx_streams.window_number() + u64::from(flags >> 3 & 3),
                size: input.pick(sizes),
            },
            _ => {
                let limit = self.rx_window.limit(self.released);
                let most = limit.saturating_sub(self.released + self.rx_held);
                let credit = match flags & 0x30 {
                    0x30 if !self.is_tame => input.any() >> 2,
                    // Blocks may be open of which no symbol was of use.
                    _ if self.is_tame => limit,
                    _ => limit - input.below(most + 1),
                };
                Frame::Shrunk { number, credit }
            }
        }
    }

    /// Does all jobs, unpacks all blocks and takes all that they hold.
    pub(super) fn release_all(&mut self, session: &mut Session, now: Time) {
        for job in std::mem::take(&mut self.jobs) {
            self.do_job(session, job);
        }
        self.events(session);
        for slot in self.complete_slots() {
            self.unpack(session, now, slot, &mut Input::new(&[]));
        }
        for held in self.rx_streams.take_all() {
            self.take_part(session, now, held);
        }
        assert!(self.rx.values().all(|rx| rx.state == RxState::Open));
        let open = self.rx.values();
        let open: u64 = open.map(|rx| block_cost(rx.n, rx.symbol_len)).sum();
        assert!(self.is_closed || self.was_impossible || self.rx_held == open);
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Hands a block over, if the session says that it may be.
    pub(super) fn submit(
        &mut self,
        session: &mut Session,
        input: &mut Input<'_>,
        first: u8,
        shape: (u16, u16),
        tail: bool,
    ) {
        // A driver hears of room before it uses it.
        self.events(session);
        let bytes = usize::from(shape.0) * usize::from(shape.1);
        let kind = input.byte();
        let answers = self.rx_streams.answerable();
        let answers = answers.filter(|stream| self.tx_streams.is_writable(*stream));
        let answers = answers.collect();
        let mut parts = self.tx_streams.parts(input, (first, kind), answers, bytes);
        let urgency = Urgency::new(kind & 7);
        let may = session.can_submit(shape, urgency, &mut parts);
        check_shares(block_cost(shape.0, shape.1), &parts);
        if let [part] = parts[..] {
            match session.room_for(part.stream, urgency, shape) {
                Room::Whole => assert!(may),
                Room::Part(n, symbol_len) => {
                    assert!(!may && (1..=shape.0).contains(&n));
                    assert!((1..=shape.1).contains(&symbol_len) && (n, symbol_len) != shape);
                    let end_of_stream = false;
                    let bytes = u32::from(n) * u32::from(symbol_len);
                    let part = StreamPart {
                        end_of_stream,
                        bytes,
                        ..part
                    };
                    assert!(session.can_submit((n, symbol_len), urgency, &mut [part]));
                    self.hand_over(session, (n, symbol_len), (false, urgency), vec![part], None);
                }
                Room::Later => assert!(!may),
                Room::HeldUp => {
                    let is_free = self.tx_streams.is_free(part.stream);
                    // Until a window has been granted, streams share what has been of it as they come. A session that
                    // has ended may not have heard all of what its last packet grants.
                    let least = block_cost(1, shape.1.min(CUT_SYMBOL_MIN));
                    let is_granted = self.is_open() && self.tx_streams.credit_left() >= least;
                    let is_fair = self.config.peer_window >= FAIR_WINDOW_MIN
                        && !self.tx_streams.has_shrunk()
                        && !self.has_datagrams;
                    assert!(!(may || is_free && is_fair && is_granted));
                }
            }
        }
        if may && !parts.is_empty() {
            self.hand_over(session, shape, (tail, urgency), parts, None);
        }
    }

    /// Hands a block of datagrams over, if the session says that it may be.
    pub(super) fn submit_datagrams(
        &mut self,
        session: &mut Session,
        now: Time,
        input: &mut Input<'_>,
        shape: (u16, u16),
    ) {
        self.events(session);
        let kind = input.byte();
        let urgency = Urgency::new(kind & 7);
        let life = input.pick(&[0, 1_000_000, 100_000_000, u64::MAX]);
        let lifetime = Lifetime {
            until: now.saturating_add(life),
            repair: match kind & 24 {
                0 | 16 => RepairMode::None,
                8 => RepairMode::InTime,
                _ => RepairMode::Together,
            },
        };
        if session.can_submit_datagrams(shape, urgency) {
            self.hand_over(session, shape, (false, urgency), Vec::new(), Some(lifetime));
        }
    }

    fn hand_over(
        &mut self,
        session: &mut Session,
        (n, symbol_len): (u16, u16),
        (tail, urgency): (bool, Urgency),
        mut parts: Vec<StreamPart>,
        lifetime: Option<Lifetime>,
    ) {
        // Slots of delivered blocks are used again.
        let slot = (0..=self.slots)
            .map(Slot)
            .find(|s| !self.tx.contains_key(s));
        let slot = slot.expect("one more than there are");
        self.slots = self.slots.max(slot.0 + 1);
        match lifetime {
            Some(lifetime) => {
                session.submit_datagrams(slot, (n, symbol_len), urgency, lifetime);
                self.has_datagrams = true;
                self.tx_streams
                    .submitted_datagrams(block_cost(n, symbol_len));
            }
            None => {
                session.submit(slot, (n, symbol_len), (tail, urgency), &mut parts);
                check_shares(block_cost(n, symbol_len), &parts);
                self.tx_streams.submitted(&parts);
            }
        }
        for part in &parts {
            self.rx_streams.begin(part.stream);
        }
        let streams = parts.iter().map(|part| part.stream);
        let block = TxBlock {
            id: self.next_id,
            n,
            symbol_len,
            streams: streams.collect(),
            repairs: BTreeSet::new(),
            urgency,
            unsent: 0..n,
        };
        self.next_id += 1;
        let is_ahead = |tx: &TxBlock| tx.urgency <= urgency;
        let is_first = !self.tx.values().any(is_ahead);
        for stream in &block.streams {
            assert!(!session.stream_delivered(*stream));
        }
        self.tx.insert(slot, block);
        self.tx_held += block_cost(n, symbol_len);
        // What is less urgent does not keep a block waiting for ever.
        assert!(is_first || self.tx_held <= self.config.send_window);
    }

    // ---- outputs ------------------------------------------------------------------------------

    /// Takes everything that the session has for its driver, except jobs to do.
    pub(super) fn drain(&mut self, session: &mut Session, now: Time) {
        self.take_jobs(session);
        self.events(session);
        self.supply(session);
        let mut burst = 0;
        while let Some(transmit) = session.poll_transmit(now) {
            self.sent(&transmit);
            burst += 1;
            assert!(burst < BURST_MAX, "sends without end");
        }
    }

    /// The session has given up blocks of the peer's.
    pub(super) fn abandon(&mut self, blocks: Vec<AbandonedBlock>) {
        for AbandonedBlock { block, slot } in &blocks {
            assert_eq!(self.rx[slot].block, block.truncated());
        }
        self.abandoned.extend(blocks);
    }

    fn events(&mut self, session: &mut Session) {
        for AbandonedBlock { slot, .. } in self.abandoned.drain(..) {
            assert!(self.given_up.remove(&slot), "not given up");
            self.rx.remove(&slot).expect("a slot in use");
            session.block_forgotten(slot);
        }
        while let Some(event) = session.poll_event() {
            match event {
                // The peer does not know how to have several.
                Event::Path(..) => panic!("a path without leave"),
                Event::BlockComplete { block, slot } => self.block_complete(block, slot),
                Event::BlockDelivered { slot } => {
                    let tx = self.tx.remove(&slot).expect("a slot in use");
                    self.tx_held -= block_cost(tx.n, tx.symbol_len);
                    self.tx_streams.delivered(&tx.streams);
                    for stream in tx.streams {
                        let is_delivered = self.tx_streams.is_delivered(stream);
                        // More events may follow.
                        assert!(!is_delivered || session.stream_delivered(stream));
                    }
                }
                Event::BlockAbandoned { slot } => {
                    let tx = self.tx.remove(&slot).expect("a slot in use");
                    self.tx_held -= block_cost(tx.n, tx.symbol_len);
                    match tx.streams[..] {
                        [stream] => self.tx_streams.abandoned(stream, tx.id),
                        [] => {
                            self.gone.insert(tx.id, block_cost(tx.n, tx.symbol_len));
                        }
                        _ => panic!("others' data is in it"),
                    }
                }
                Event::Flow(_) => {}
                Event::StreamReset { stream, code } => self.rx_streams.told_reset(stream, code),
                // Half of a RESET that cannot be may have been followed.
                Event::StreamOver(_) if self.was_impossible => {}
                Event::StreamOver(stream) => self.rx_streams.told_over(stream),
                Event::StreamStopped { stream, .. } => {
                    assert!(stream.has_sender(self.config.role));
                    assert!(!self.tx_streams.has_ended(stream), "of what is over");
                }
                Event::StreamEnded(stream) => {
                    let is_over = self.is_closed || self.end.is_some();
                    self.tx_streams.ended(stream, is_over);
                    self.rx_streams.answer_over(stream);
                }
                Event::PathChanged(tuple) => {
                    let place = self.place_at(tuple);
                    let mut answers = place.answers.iter();
                    assert!(answers.any(|answer| place.challenges.contains(answer)));
                    place.is_valid = true;
                }
                Event::ConnectionIdRetired(cid) => {
                    let at = self.own_ids.iter().position(|id| *id == cid);
                    self.own_ids.swap_remove(at.expect("one of this end's"));
                    assert_ne!(cid, self.config.local_cid, "the first one is never retired");
                }
                Event::Closed { .. }
                | Event::OutOfBudget
                | Event::PeerLost
                | Event::PeerGone
                | Event::Stalled { .. }
                | Event::Violation(_) => {
                    let before = self.end.replace(event);
                    assert!(before.is_none(), "ended twice, first by {before:?}");
                    let is_violation = matches!(self.end, Some(Event::Violation(_)));
                    assert!(!(is_violation && self.is_tame), "{:?}", self.end);
                    self.was_impossible |= is_violation;
                }
            }
        }
        // A packet that ends the session does nothing else.
        if !self.is_closed && self.end.is_none() {
            self.tx_streams.check_ended();
            if !self.was_impossible {
                self.rx_streams.check_told();
            }
        }
        for block in self.presumed.drain(..) {
            assert!(self.whole.contains(&block), "not complete");
        }
    }

    fn block_complete(&mut self, block: BlockId, slot: Slot) {
        let rx = self.rx.get_mut(&slot).expect("a slot in use");
        assert_eq!(u64::from(rx.block), block.get());
        let n = usize::from(rx.n);
        match rx.state {
            RxState::Open => {
                assert!(rx.repairs.is_empty(), "not decoded");
                assert_eq!(bits::absent(&rx.have, n).count(), 0, "not whole");
                self.whole.insert(rx.block);
            }
            state => assert_eq!(state, RxState::Decoded),
        }
        rx.state = RxState::Complete;
        assert!(self.complete.insert(block), "complete twice");
    }

    fn sent(&mut self, transmit: &Transmit) {
        let header = &transmit.header;
        let number = transmit.packet_number.get();
        let left_out = self.next_number..number;
        assert!(number >= self.next_number, "used before");
        assert!(left_out.clone().count() <= 1, "more than one left out");
        self.left_out.extend(left_out);
        assert_eq!(header.packet_number, number as u32);
        assert!(self.peer_ids.contains(&header.cid));
        assert_eq!(Header::decode(&header.encode()).as_ref(), Some(header));
        self.next_number = number + 1;
        let datagram_max =
            usize::from(self.config.peer_datagram_max).min(MAX_SYMBOL_LEN + OVERHEAD);
        let datagram_len = transmit.body_len + OVERHEAD;
        assert!(datagram_len <= datagram_max, "too long");
        match &transmit.content {
            Content::Symbol { slot, symbol, .. } => {
                let body_len = self.sent_symbol((*slot, *symbol), transmit);
                assert_eq!(transmit.body_len, body_len);
                assert_ne!(header.kind, PacketKind::Bundle);
            }
            Content::Bundle {
                slot,
                symbol,
                riders,
            } => {
                assert!(header.kind == PacketKind::Bundle && transmit.fragment.is_none());
                assert!((1..=usize::from(self.config.bundle)).contains(&riders.len()));
                let main_len = self.sent_symbol((*slot, *symbol), transmit);
                let mut blocks = BTreeSet::new();
                for riding in riders {
                    self.rides(riding, header.block);
                    assert!(blocks.insert(riding.rider.distance), "twice in a packet");
                }
                let prefixes = riders.iter().map(|riding| &riding.rider);
                let body_len = Bundle::body_len(main_len as u16, prefixes);
                assert_eq!(transmit.body_len, body_len);
            }
            Content::Window { span, slots, row } => {
                assert_eq!(
                    (header.code, header.row),
                    (CodeId::Window.to_wire(), row.number())
                );
                assert!(transmit.body_len == span.body_len() && transmit.fragment.is_none());
                for (slot, block) in slots.iter().rev().zip(span.blocks()) {
                    let tx = self.tx.get(slot).expect("a block on its way");
                    assert_eq!((tx.id + block.back).truncated(), header.block);
                    assert_eq!((tx.n, tx.symbol_len), (block.n, block.symbol_len));
                }
                assert_eq!(slots.len(), span.blocks().count());
            }
            Content::Control(body) => {
                assert_eq!(body.len(), transmit.body_len);
                assert!(transmit.fragment.is_none() && header.kind == PacketKind::Control);
                for frame in FrameIter::new(without_padding(body)) {
                    match frame.expect("an honest frame") {
                        Frame::Sack(sack) => self.told_sack(&sack),
                        Frame::Blocks(blocks) => self.told_blocks(&blocks),
                        Frame::Streams(streams) if !self.was_impossible => {
                            self.rx_streams.told(&streams);
                        }
                        Frame::PathChallenge(data) => {
                            self.place_at(transmit.to).challenges.push(data);
                        }
                        Frame::Reset(reset) => self.tx_streams.told_reset(&reset),
                        Frame::Gone(blocks) => {
                            let mut blocks = blocks.iter();
                            assert!(blocks.all(|(id, cost)| self.gone.get(id) == Some(cost)));
                        }
                        Frame::Stop { stream, .. } => self.rx_streams.told_stop(stream),
                        Frame::Held { number } => self.tx_streams.told_held(number),
                        Frame::Window { number, size } => self.rx_window.told(number, size),
                        Frame::Shrunk { number, credit } => {
                            self.tx_streams.told_shrunk(number, credit);
                        }
                        _ => {}
                    }
                }
            }
        }
        let is_control = matches!(transmit.content, Content::Control(_));
        let place = self.place_at(transmit.to);
        place.sent += datagram_len;
        if !place.is_valid {
            assert!(is_control, "data for an address that nobody has proved");
            assert!(place.sent <= AMPLIFICATION * place.received, "amplified");
        }
    }

    /// A symbol leaves, or a part of it: bytes of it, with its prefix if it has one.
    fn sent_symbol(&mut self, (slot, symbol): (Slot, SymbolId), transmit: &Transmit) -> usize {
        let header = &transmit.header;
        let body_len = self.tx_block(slot, transmit);
        assert_eq!((header.code, header.row), symbol.to_wire());
        self.check_urgency(slot, transmit);
        let tx = self.tx.get_mut(&slot).expect("a slot in use");
        match symbol {
            SymbolId::Source(index) => {
                assert!(index < tx.n);
                if index == tx.unsent.start {
                    tx.unsent.start += 1;
                }
            }
            SymbolId::Repair(..) => {
                let part = transmit.fragment.map_or(0, |part| part.index);
                let is_new = tx.repairs.insert((header.code, header.row, part));
                assert!(is_new, "a row that the peer has, or that is on its way");
            }
        }
        body_len
    }

    /// A repair rides in the packet of a later block.
    fn rides(&mut self, riding: &RidingSymbol, main: u32) {
        let rider = &riding.rider;
        let tx = self.tx.get_mut(&riding.slot).expect("a slot in use");
        assert_eq!(tx.id.get(), u64::from(main) - u64::from(rider.distance));
        assert_eq!((tx.n, tx.symbol_len), (rider.n, rider.symbol_len));
        let is_rateless = self.config.code == Some(CodeId::Lt);
        assert!(
            is_rateless || tx.unsent.is_empty(),
            "before its own symbols"
        );
        assert_eq!((rider.code, rider.row), riding.symbol.to_wire());
        let is_new = tx.repairs.insert((rider.code, rider.row, 0));
        let is_original = riding.symbol.source().is_some();
        assert!(is_new || is_original, "a row that the peer has");
    }

    /// Nothing that is more urgent waits to be sent for the first time. (What is owed of repair the model does not know, nor
    /// what is first where rows go in the place of source symbols.)
    fn check_urgency(&self, slot: Slot, transmit: &Transmit) {
        let has_begun = transmit.fragment.is_some_and(|part| part.index > 0);
        if has_begun || self.config.code == Some(CodeId::Lt) {
            return;
        }
        let urgency = self.tx[&slot].urgency;
        let waits = |tx: &TxBlock| tx.urgency < urgency && !tx.unsent.is_empty();
        assert!(!self.tx.values().any(waits), "before what is more urgent");
    }

    /// A symbol's block is still kept for it: bytes of the symbol, or of its part and the prefix.
    fn tx_block(&self, slot: Slot, transmit: &Transmit) -> usize {
        let tx = self.tx.get(&slot).expect("a slot in use");
        let header = &transmit.header;
        assert_eq!(u64::from(header.block), tx.id.get());
        assert_eq!(header.n, tx.n);
        match transmit.fragment {
            None => usize::from(tx.symbol_len),
            Some(part) => {
                assert_eq!(part.symbol_len, tx.symbol_len);
                assert!((2..=8).contains(&part.count) && part.index < part.count);
                FRAGMENT_PREFIX_LEN + part.range().len()
            }
        }
    }

    /// Acknowledges what came and nothing else, and allows what the window does.
    fn told_sack(&mut self, sack: &Sack) {
        for (low, high) in sack
            .ranges
            .iter()
            .map(|(low, high)| (low.get(), high.get()))
        {
            let came = self.received.range(low..=high).count();
            let skipped = self.skipped.range(low..=high);
            let skipped = skipped.filter(|n| !self.received.contains(n)).count();
            assert_eq!((came + skipped) as u64, high - low + 1, "never came");
        }
        if !self.was_impossible {
            assert_eq!(sack.credit, self.released + self.rx_window.size());
            self.rx_streams.feedback_left();
        }
    }

    fn told_blocks(&self, blocks: &Blocks) {
        // Some of what is impossible may have been heeded.
        if self.was_impossible {
            return;
        }
        let is_whole = |id: BlockId| self.whole.contains(&id.truncated());
        assert!(BlockId::ZERO.until(blocks.base).all(is_whole));
        for &(low, high) in &blocks.complete {
            assert!(low.until(high + 1).all(is_whole));
        }
        for &(id, deficit) in &blocks.deficits {
            assert!((1..=1024).contains(&deficit) && !is_whole(id));
        }
    }
}
