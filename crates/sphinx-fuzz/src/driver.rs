//! The driver that ships, against a peer that has the keys and says anything, under an application that
//! reads, writes and lets go as it likes, and with jobs that end late.
//!
//! What the core tells a driver is the business of [`session`](crate::session); here the oracles are outside:
//! the packets that leave and the streams in them, the data that is read, the memory that is held, and the time.
//!
//! Half of all peers do nothing forbidden. They are never accused, and everything they sent is accounted for.

mod peer;
mod sent;

use std::collections::{BTreeMap, BTreeSet};

use sphinx_driver::{
    BufferPool, Chunk, DATAGRAM_BYTES, Driver, EndReason, Executor, JobKind, Origin,
    PacketProtection, Piece, Queues, SendAs, Workshop,
};
use sphinx_fec::CodeId;
use sphinx_proto::wire::{
    BUNDLE_MAX, Blocks, ConnectionId, FlowKind, Fragment, Frame, HEADER_LEN, Header,
    MAX_SYMBOL_LEN, OVERHEAD, PacketKind, Rider, Sack, Streams, put_varint,
};
use sphinx_proto::{
    BlockId, Config, Nanos, PacketNumber, RepairMode, Role, Session, StreamId, Time, Urgency,
};
use sphinx_sim::{Late, Local, LocalSlicer, Plain, Rng};

use crate::Input;
use crate::session::{STREAMS, cid, config, numbered, place, without};
use peer::{Lies, Peer, data};
use sent::{Feedback, Wire};

const MS: Nanos = 1_000_000;

/// Steps of one input.
const STEPS_MAX: u32 = 300;
/// Turns at one point in time before the driver counts as stuck.
const TURNS_MAX: u32 = 300;
/// Points in time at which it may want to be woken while nothing comes in.
const WAKES_MAX: u32 = 20_000;
/// Streams that the application writes to at a time.
const WRITERS: usize = 8;
/// Datagrams of the peer that may come again.
const REPEATED_MAX: usize = 32;
/// Datagrams of the peer that arrive as one.
const JOINED_MAX: usize = 64;
/// Bytes of blocks that are kept for sliding windows, if a quarter of the window is not less.
const COPIES_MAX: u64 = 2 << 20;
/// Bytes that may wait for a block to be decoded where sliding windows are used.
const WAITING_MAX: u64 = 260 << 10;

/// A stream that the application reads.
#[derive(Default)]
struct Reading {
    /// Read so far, if in order; else what was read, by where it began.
    at: u64,
    pieces: BTreeMap<u64, u64>,
    in_any_order: bool,
    /// Where it ends.
    end: Option<u64>,
    /// A piece of which some has been read.
    chunk: Option<Chunk>,
}

/// A stream that the application writes to.
struct Writer {
    id: StreamId,
    slicer: LocalSlicer,
}

/// Datagrams that arrive as one, from where the first one came: each has `stride` bytes, but for the last one.
struct Joined {
    origin: Origin,
    stride: usize,
    bytes: Vec<u8>,
}

impl Joined {
    fn takes(&self, datagram: &[u8]) -> bool {
        let is_full = self.bytes.len().is_multiple_of(self.stride);
        is_full && datagram.len() <= self.stride && self.bytes.len() < JOINED_MAX * self.stride
    }
}

struct Victim {
    driver: Driver<Plain, Late>,
    queues: Queues<Local>,
    workshop: Workshop,
    wire: Wire,
    now: Time,
    peer: Peer,
    peer_role: Role,
    recv_window: u64,
    peer_window: u64,
    idle_timeout: Nanos,
    /// Of the peer's packets.
    next_number: u64,
    came: Vec<Vec<u8>>,
    /// What the peer sends in this step arrives as one, as far as it can.
    joins: bool,
    joined: Option<Joined>,
    /// Symbols of the peer that wait for a packet of another block.
    aboard: Vec<(Header, Vec<u8>)>,
    writers: Vec<Writer>,
    /// Streams that this end has opened, and those of the peer that it has accepted: of one direction, and of two.
    opened: [u64; 2],
    accepted: [u64; 2],
    readers: BTreeMap<StreamId, Reading>,
    /// Streams that the application reads no more.
    gone: BTreeSet<StreamId>,
    /// Streams that this end sends on, of which the peer has said that it has taken everything.
    taken: BTreeSet<StreamId>,
    /// Of each, how much it has said so far that it has taken.
    told: BTreeMap<StreamId, u64>,
    random: Rng,
    ids: Rng,
    /// Flows of live messages that the application has accepted.
    live: BTreeSet<u64>,
    opens_late: bool,
    has_ended: bool,
}

/// Runs one input.
pub fn hostile_peer(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut victim = Victim::new(input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        victim.step(input);
    }
    victim.account();
    victim.fall_silent();
}

impl Victim {
    fn new(input: &mut Input<'_>) -> Self {
        let config: Config = config(input);
        let seed = input.number(2);
        let delays = [0, 1, 2].map(|_| input.pick(&[0, 0, MS, 50 * MS]));
        let late = Late::new(seed, delays);
        let opens_late = late.takes(JobKind::Open);
        let (role, peer_role) = (config.role, config.role.other());
        let largest = MAX_SYMBOL_LEN + OVERHEAD;
        let len_max = largest.min(usize::from(config.peer_datagram_max));
        Self {
            wire: Wire::new(role, len_max, config.peer_window),
            peer: Peer::new(peer_role, Lies::of(seed)),
            peer_role,
            recv_window: config.recv_window,
            peer_window: config.peer_window,
            idle_timeout: config.idle_timeout,
            driver: Driver::new(
                Session::new(config, Time::ZERO),
                Plain::default(),
                late,
                role == Role::Client,
            ),
            queues: Queues::new(role, STREAMS),
            // What others left in the memory of blocks shows.
            workshop: Workshop::new(BufferPool::new(1 << 20)),
            now: Time::ZERO,
            next_number: 0,
            came: Vec::new(),
            joins: false,
            joined: None,
            aboard: Vec::new(),
            writers: Vec::new(),
            opened: [0; 2],
            accepted: [0; 2],
            readers: BTreeMap::new(),
            gone: BTreeSet::new(),
            taken: BTreeSet::new(),
            told: BTreeMap::new(),
            random: Rng::new(seed ^ 1),
            ids: Rng::new(seed ^ 2),
            live: BTreeSet::new(),
            opens_late,
            has_ended: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        self.joins = kind & 0x40 != 0;
        match kind & 0x0f {
            0..5 => self.symbol(input),
            5 | 6 => self.control(input),
            7 => self.again(input),
            8 | 9 => self.write(input),
            10 | 11 => self.read(input),
            12 => self.rare(input),
            _ => {
                let span = match input.byte() {
                    span @ 0..0xf0 => Nanos::from(span) * MS / 8,
                    _ => self.idle_timeout / 2,
                };
                self.wait(span);
            }
        }
        self.joins = false;
        self.deliver();
        // The engine may be busy elsewhere.
        if kind & 0x80 == 0 {
            self.settle();
        }
    }

    // ---- the peer -----------------------------------------------------------------------------

    fn packet(&mut self, input: &mut Input<'_>, mut header: Header, body: &[u8]) {
        let flags = input.byte();
        self.next_number += u64::from(flags & 3);
        let number = self.next_number;
        self.next_number += 1;
        header.packet_number = number as u32;
        header.last_of_flight = flags & 4 != 0;
        let mut datagram = vec![0; body.len() + OVERHEAD];
        datagram[HEADER_LEN..][..body.len()].copy_from_slice(body);
        let sealed = Plain::default().seal(&header, PacketNumber::new(number), &mut datagram);
        sealed.expect("any number is the first one");
        if self.came.len() < REPEATED_MAX {
            self.came.push(datagram.clone());
        }
        self.arrive(datagram, flags);
    }

    fn arrive(&mut self, datagram: Vec<u8>, flags: u8) {
        match &mut self.joined {
            Some(joined) if joined.takes(&datagram) => joined.bytes.extend(datagram),
            _ => {
                self.deliver();
                let from = if flags & 0xe0 == 0xe0 {
                    flags >> 3 & 3
                } else {
                    0
                };
                self.joined = Some(Joined {
                    origin: Origin {
                        received_at: self.now,
                        tuple: place(from),
                        ecn: flags >> 3 & 3,
                    },
                    stride: datagram.len(),
                    bytes: datagram,
                });
            }
        }
        if !self.joins {
            self.deliver();
        }
    }

    /// What has been joined arrives.
    fn deliver(&mut self) {
        let Some(mut joined) = self.joined.take() else {
            return;
        };
        let (bytes, stride) = (&mut joined.bytes, joined.stride);
        let most = bytes.len().div_ceil(stride) as u64;
        let before = self.driver.core().stats().packets_received;
        self.driver
            .handle_segments(self.now, joined.origin, (bytes, stride), &mut self.workshop);
        assert!(self.driver.core().stats().packets_received <= before + most);
        self.check_memory();
    }

    /// A packet comes again, or damaged: neither opens.
    fn again(&mut self, input: &mut Input<'_>) {
        let index = input.byte();
        let Some(mut datagram) = self.came.get(usize::from(index) % REPEATED_MAX).cloned() else {
            return;
        };
        let flags = input.byte();
        if flags & 1 != 0 {
            let bit = input.below(datagram.len() as u64 * 8) as usize;
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        let before = self.driver.core().stats().packets_received;
        self.arrive(datagram, flags);
        self.deliver();
        // Its first copy may be among the jobs that are not done yet.
        let opened = self.driver.core().stats().packets_received - before;
        assert!(opened == 0 || self.opens_late, "opened again");
    }

    /// One symbol of a block, or all of its source symbols.
    fn symbol(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        // Mostly one of the next blocks.
        let block = match input.byte() {
            near @ 0..0xe0 => self.wire.complete_base + u32::from(near & 7),
            0xe0..0xfe => input.below(32) as u32,
            _ if self.peer.lies.symbols => input.number(4) as u32,
            _ => 0,
        };
        if self.peer.lies.symbols && input.rarely(4) {
            return self.false_symbol(input, block);
        }
        let made = self.peer.block(block, input);
        let (n, len) = (made.n, usize::from(made.symbol_len));
        let mut header = Header {
            kind: PacketKind::Symbol,
            block,
            n,
            ..Header::control(cid(8), PacketNumber::ZERO, false)
        };
        match flags & 0x30 {
            0 | 0x10 => {
                let first = input.below(u64::from(n)) as u16;
                let last = if flags & 8 == 0 { first } else { n - 1 };
                let from = if flags & 8 == 0 { first } else { first / 8 };
                for index in from..=last {
                    header.row = u32::from(index);
                    let at = usize::from(index) * len;
                    let symbol = self.peer.blocks[&block].bytes[at..][..len].to_vec();
                    self.send_symbol(input, header, &symbol, flags);
                }
            }
            0x20 => {
                let code = input.pick(&[1, 2, 1, 2, 3, 4, 5]);
                let from = u32::from(input.byte());
                let count = 1 + input.below(if flags & 8 == 0 { 2 } else { u64::from(n) + 3 });
                let code = CodeId::from_wire(code).expect("a code");
                for row in from..from + count as u32 {
                    let Some((row, symbol)) = self.peer.repair(block, code, row) else {
                        continue;
                    };
                    (header.code, header.row) = (code.to_wire(), row.number());
                    self.send_symbol(input, header, &symbol, flags);
                }
            }
            _ => {
                header.code = CodeId::Window.to_wire();
                header.row = u32::from(input.byte());
                if let Some(body) = self.peer.window(block, header.row, input) {
                    self.packet(input, header, &body);
                }
            }
        }
    }

    /// A symbol whole, alone or with others, or in parts, of which one may be missing; or it waits for another one.
    fn send_symbol(&mut self, input: &mut Input<'_>, mut header: Header, symbol: &[u8], flags: u8) {
        let symbol_len = symbol.len() as u16;
        let count = 2 + (flags & 7) % 7;
        let parts = (0..count).map(|index| Fragment {
            symbol_len,
            index,
            count,
        });
        let parts: Vec<_> = parts.filter(|part| !part.range().is_empty()).collect();
        match flags & 0xc0 {
            0x40 => return self.bundle(input, header, symbol),
            0x80 if self.aboard.len() < usize::from(BUNDLE_MAX) => {
                return self.aboard.push((header, symbol.to_vec()));
            }
            0xc0 if parts.len() == usize::from(count) => {}
            _ => return self.packet(input, header, symbol),
        }
        header.kind = PacketKind::Fragment;
        let missing = input.byte();
        for part in parts {
            if part.index != missing {
                let body = [&part.encode()[..], &symbol[part.range()]].concat();
                self.packet(input, header, &body);
            }
        }
    }

    /// A symbol, and those that wait for one of a later block.
    fn bundle(&mut self, input: &mut Input<'_>, mut header: Header, symbol: &[u8]) {
        let waiting = std::mem::take(&mut self.aboard);
        let is_older = |(of, _): &(Header, Vec<u8>)| of.block < header.block;
        let (riders, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_older);
        self.aboard = waiting;
        let mut body = Vec::new();
        put_varint(&mut body, symbol.len() as u64);
        body.extend_from_slice(symbol);
        for (of, symbol) in &riders {
            let rider = Rider {
                distance: header.block - of.block,
                code: of.code,
                n: of.n,
                row: of.row,
                symbol_len: symbol.len() as u16,
            };
            rider.encode_prefix(&mut body);
            body.extend_from_slice(symbol);
        }
        if riders.is_empty() {
            return self.packet(input, header, symbol);
        }
        header.kind = PacketKind::Bundle;
        self.packet(input, header, &body);
    }

    /// A symbol of any shape, code, row and content.
    fn false_symbol(&mut self, input: &mut Input<'_>, block: u32) {
        (self.peer.has_lied, self.peer.has_forged) = (true, true);
        let (n, len) = match input.byte() {
            shape @ 0..0xc0 => ([1, 2, 3, 7, 20, 60][usize::from(shape & 7) % 6], 100),
            0xc0..0xf0 => (input.below(40) as u16 + 1, 20),
            _ => (input.below(1024) as u16 + 1, input.below(9100) as usize),
        };
        let header = Header {
            kind: PacketKind::Symbol,
            block,
            n,
            code: input.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 6, 63]),
            row: match input.byte() {
                row @ 0..0xc0 => u32::from(row),
                _ => input.number(3) as u32,
            },
            ..Header::control(cid(8), PacketNumber::ZERO, false)
        };
        let symbol = vec![input.byte(); len];
        let part = input.byte();
        let fragment = Fragment {
            symbol_len: len as u16,
            index: part & 7,
            count: 2 + (part >> 3 & 7) % 7,
        };
        if part < 0xc0 {
            return self.packet(input, header, &symbol);
        }
        if part >= 0xfa {
            let header = Header {
                kind: PacketKind::Bundle,
                ..header
            };
            let body = input.take(40);
            return self.packet(input, header, body);
        }
        let range = match fragment.index < fragment.count {
            true => fragment.range(),
            false => 0..0,
        };
        let header = Header {
            kind: PacketKind::Fragment,
            ..header
        };
        let body = [&fragment.encode()[..], &symbol[range]].concat();
        self.packet(input, header, &body);
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let header = Header::control(cid(8), PacketNumber::ZERO, false);
        let mut body = Vec::new();
        let mut lies = self.peer.lies.frames && input.rarely(2);
        match input.byte() {
            kind @ 0..0xa0 if lies => self.false_feedback(input, kind, &mut body),
            kind @ 0..0xa0 => self.feedback(input, kind, &mut body),
            0xe0..0xf8 if lies => {
                let len = usize::from(input.byte());
                body.extend_from_slice(input.take(len));
            }
            0xc0..0xfc => {
                lies = false;
                let data = input.number(8).to_be_bytes();
                Frame::PathChallenge(data).encode(&mut body);
            }
            0xa0..0xb0 => {
                lies = false;
                Frame::Ping.encode(&mut body);
            }
            0xb0..0xbc => {
                lies = false;
                let stream = self.peer.any_stream(input.below(24));
                let reset = self.peer.reset(stream, input.below(3), &self.wire.begun);
                Frame::Reset(reset).encode(&mut body);
            }
            0xbc..0xc0 => {
                lies = false;
                let (own, index) = (self.peer_role.other(), input.below(24));
                let stream = match index / 8 {
                    0 => StreamId::new(own, index),
                    1 => StreamId::bi(own, index - 8),
                    _ => StreamId::bi(self.peer_role, index - 16),
                };
                let code = input.any() >> 2;
                self.wire.reasons.entry(stream).or_default().insert(code);
                Frame::Stop { stream, code }.encode(&mut body);
            }
            _ => Frame::Close {
                code: input.any() >> 2,
                reason: "enough",
            }
            .encode(&mut body),
        }
        self.peer.has_lied |= lies;
        self.packet(input, header, &body);
    }

    /// What has arrived, and that all of it, or of some streams, has been taken.
    fn feedback(&mut self, input: &mut Input<'_>, kind: u8, body: &mut Vec<u8>) {
        let base = BlockId::new(u64::from(self.wire.base));
        let blocks = Blocks {
            base,
            complete: Vec::new(),
            deficits: match kind & 3 {
                0 => vec![(base + input.below(3), 1 + input.below(9) as u32)],
                _ => Vec::new(),
            },
        };
        Frame::Blocks(blocks).encode(body);
        let mask = if kind & 4 == 0 { 0xff } else { input.byte() };
        let got = self.wire.got.iter().map(|(stream, got)| (*stream, *got));
        let got = got.filter(|(stream, _)| mask >> (stream.index() & 7) & 1 == 1);
        let got: Vec<_> = got.take(60).collect();
        let cost: u64 = got.iter().map(|(_, got)| got.cost).sum();
        self.wire.allowed = self.wire.allowed.max(self.peer_window + cost);
        if kind & 8 == 0 {
            // What is known to be taken may be sent again, in whichever packets it was told.
            for (stream, got) in &got {
                let told = self.told.entry(*stream).or_default();
                *told = got.cost.max(*told);
            }
            let told: u64 = self.told.values().sum();
            self.wire.allowed = self.wire.allowed.max(self.peer_window + told);
            let ended = got.iter().filter(|(_, got)| got.has_ended());
            self.taken.extend(ended.map(|(stream, _)| *stream));
            for kind in self.sent_kinds() {
                let its = |(stream, _): &&(StreamId, _)| stream.to_wire() & 3 == u64::from(kind);
                let its: Vec<_> = got.iter().filter(its).copied().collect();
                Frame::Streams(taken_of(kind, &its)).encode(body);
            }
        }
        if let Some(newest) = self.wire.next.checked_sub(1) {
            let high = newest.saturating_sub(u64::from(kind >> 4 & 3));
            let low = high.saturating_sub(u64::from(input.byte()));
            let ranges = without(&[(low, high)], &self.wire.left_out);
            Frame::Sack(self.sack(self.peer_window + cost, &ranges)).encode(body);
        }
    }

    /// The kinds of the streams that this end sends on.
    fn sent_kinds(&self) -> [u8; 3] {
        let (own, peer) = (self.peer_role.other(), self.peer_role);
        let streams = [
            StreamId::new(own, 0),
            StreamId::bi(own, 0),
            StreamId::bi(peer, 0),
        ];
        streams.map(|stream| (stream.to_wire() & 3) as u8)
    }

    fn sack(&self, credit: u64, ranges: &[(u64, u64)]) -> Sack {
        Sack {
            sequence: 0,
            delay_us: 0,
            time_us: self.now.as_nanos() / 1000,
            ect: 0,
            ce: 0,
            credit,
            ranges: numbered(ranges),
        }
    }

    /// Feedback about what never happened.
    fn false_feedback(&mut self, input: &mut Input<'_>, kind: u8, body: &mut Vec<u8>) {
        let newest = self.wire.next.saturating_sub(1);
        let high = match kind & 7 {
            7 => input.any(),
            back => newest.saturating_sub(u64::from(back)),
        };
        let low = high.saturating_sub(u64::from(input.byte()));
        // Anything may be allowed by this, or by what has been taken.
        self.wire.allowed = u64::MAX;
        let credit = input.pick(&[1 << 20, 1 << 30, 0, 2000]);
        let mut ranges = vec![(low, high)];
        // To name a number that was left out ends the session: seldom.
        if !input.rarely(32) {
            ranges = without(&ranges, &self.wire.left_out);
        }
        Frame::Sack(self.sack(credit, &ranges)).encode(body);
        // A frame cannot name a block below its base.
        let base = input.below(6);
        let low = BlockId::new(base + 1 + input.below(4));
        let blocks = Blocks {
            base: BlockId::new(base),
            complete: match kind >> 3 & 3 {
                3 => vec![(low, low + input.any() / 4)],
                _ => Vec::new(),
            },
            deficits: vec![(BlockId::new(base + input.below(6)), input.below(40) as u32)],
        };
        Frame::Blocks(blocks).encode(body);
        let low = base + 1 + input.below(4);
        let streams = Streams {
            kind: match input.byte() {
                kind @ 0..0x10 => kind & 3,
                kind => self.sent_kinds()[usize::from(kind) % 3],
            },
            base,
            ended: vec![(low, low + input.below(9))],
            taken: vec![(base + input.below(6), input.any() >> 2)],
        };
        Frame::Streams(streams).encode(body);
    }

    // ---- the application ----------------------------------------------------------------------

    fn write(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        if self.queues.has_ended() {
            return;
        }
        let mut at = usize::from(flags & 7) % WRITERS;
        if at >= self.writers.len() {
            let (own, is_bi) = (self.peer_role.other(), flags & 8 != 0);
            let opened = &mut self.opened[usize::from(is_bi)];
            let (id, next) = match is_bi {
                true => (self.queues.open_bi(), StreamId::bi(own, *opened)),
                false => (self.queues.open_uni(), StreamId::new(own, *opened)),
            };
            let Some(id) = id else {
                assert!(*opened >= STREAMS);
                return;
            };
            assert_eq!(id, next);
            *opened += 1;
            if is_bi {
                self.readers.insert(id, Reading::default());
            }
            at = self.writers.len();
            self.begin_writing(id, at);
            self.queues.set_urgency(id, Urgency::new(flags >> 5));
        }
        let queues = &mut self.queues;
        let Writer { id, ref slicer } = self.writers[at];
        let is_finished = slicer.with(|slicer| slicer.is_finished());
        let is_stopped = queues.stopped(id).is_some();
        if flags >= 0xe0 || is_finished || is_stopped {
            // Whether the stream has an end or not.
            let code = u64::from(flags & 8);
            if code > 0 {
                queues.reset(id, code);
            }
            // What is still being cut goes nowhere, whether the slicer knows or not.
            if flags & 0x10 == 0 {
                slicer.with(|slicer| slicer.abandon());
            }
            let reasons = self.wire.reasons.entry(id).or_default();
            reasons.extend([0, code]);
            queues.stop_sending(id);
            self.writers.remove(at);
            return;
        }
        if !queues.has_room(id) {
            return;
        }
        let shape = self.driver.core().block_shape(queues.writers());
        let pool = self.workshop.pool();
        let (offset, finished) = self.wire.written.get_mut(&id).expect("it is open");
        let len = match input.byte() {
            small @ 0..0xc0 => u64::from(small),
            _ => input.below(9000),
        };
        let bytes = data(id, *offset..*offset + len);
        let written = slicer.with(|slicer| slicer.write(self.now, &bytes, shape, pool));
        *offset += written.len as u64;
        if written.begins {
            queues.watch(slicer.clone());
        }
        let piece = written.piece.or_else(|| match flags >> 4 {
            0..4 => slicer.with(|slicer| slicer.flush(pool)),
            4..8 => {
                *finished = true;
                queues.finish_sending(id);
                slicer.with(|slicer| slicer.finish(shape, pool))
            }
            _ => None,
        });
        let push = |piece: Piece| queues.push(piece);
        piece.into_iter().for_each(push);
    }

    /// The application writes to a stream from now on.
    fn begin_writing(&mut self, id: StreamId, at: usize) {
        self.wire.written.insert(id, (0, false));
        let slicer = LocalSlicer::new(id);
        self.writers.insert(at, Writer { id, slicer });
    }

    /// The application accepts all streams that there are, in the order of each kind.
    fn accept(&mut self, at: usize) {
        while let Some(id) = self.queues.accept_uni() {
            assert_eq!(id, StreamId::new(self.peer_role, self.accepted[0]));
            self.accepted[0] += 1;
            self.readers.insert(id, Reading::default());
        }
        while let Some(id) = self.queues.accept_bi() {
            assert_eq!(id, StreamId::bi(self.peer_role, self.accepted[1]));
            self.accepted[1] += 1;
            self.readers.insert(id, Reading::default());
            self.begin_writing(id, at.min(self.writers.len()));
        }
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        if flags & 0x10 == 0 {
            self.accept(usize::from(flags & 7));
            self.take_datagrams(flags & 1 != 0);
        }
        let nth = usize::from(flags & 7) % self.readers.len().max(1);
        let Some((&id, reading)) = self.readers.iter_mut().nth(nth) else {
            return;
        };
        if flags >= 0xe0 {
            let last = reading.chunk.take();
            self.readers.remove(&id);
            self.gone.insert(id);
            return self.queues.abandon(id, last, 0);
        }
        // As `read` does from then on, or as `read_unordered`.
        reading.in_any_order |= flags & 8 != 0;
        let most = if flags & 0x20 == 0 { usize::MAX } else { 1 };
        let part = if flags & 0x40 == 0 { 100 } else { 1 };
        self.read_from(id, most, part);
        if let Some(code) = self.queues.incoming(id).reset() {
            let is_said = self.peer.code_of(id) == Some(code);
            assert!(is_said || self.peer.has_lied, "given up by nobody");
            let reading = self.readers.remove(&id);
            self.gone.insert(id);
            self.queues
                .abandon(id, reading.and_then(|reading| reading.chunk), 0);
        }
    }

    /// Reads so many pieces of a stream, the last one only in part.
    fn read_from(&mut self, id: StreamId, most: usize, percent: usize) {
        let reading = self.readers.get_mut(&id).expect("it is read");
        for _ in 0..most {
            let incoming = self.queues.incoming(id);
            let chunk = reading.chunk.take().or_else(|| {
                let chunk = if reading.in_any_order {
                    incoming.take_before(u64::MAX)?
                } else {
                    incoming.take_in_order()?
                };
                assert!(reading.end.is_none_or(|_| reading.in_any_order));
                Some(chunk)
            });
            let Some(mut chunk) = chunk else { return };
            let (from, len) = (chunk.offset(), chunk.data().len());
            if !reading.in_any_order {
                assert_eq!(from, reading.at, "a gap");
            }
            let len = len - len * (100 - percent) / 100;
            let to = from + len as u64;
            if !self.peer.has_forged {
                assert_eq!(chunk.data()[..len], data(id, from..to), "other data");
            }
            reading.at += len as u64;
            let before = reading.pieces.range(..to.max(from + 1)).next_back();
            assert!(before.is_none_or(|(_, end)| *end <= from), "read again");
            assert!(reading.end.is_none_or(|end| to <= end), "behind the end");
            if len > 0 {
                reading.pieces.insert(from, to);
            }
            chunk.advance(len);
            if !chunk.data().is_empty() {
                reading.chunk = Some(chunk);
                return;
            }
            if chunk.end_of_stream() {
                assert_eq!(reading.end.replace(to), None, "it ends twice");
                let last = reading.pieces.last_key_value();
                assert!(last.is_none_or(|(_, end)| *end <= to), "behind the end");
            }
            self.queues.release(chunk.into_taken());
        }
    }

    /// What happens to a session once or now and then.
    fn rare(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x30 => self
                .driver
                .datagram_too_large(self.now, None, input.number(2) as usize),
            0x30..0x80 => {
                let (at, level) = (input.byte(), input.byte() & 7);
                if let Some(writer) = self.writers.get(usize::from(at) % WRITERS) {
                    self.queues.set_urgency(writer.id, Urgency::new(level));
                }
            }
            0x80..0xa0 => self.driver.local_address_lost(self.now),
            0xa0..0xc0 => self.driver.peer_refused(self.now),
            0xc0..0xe0 => self.datagrams(input),
            0xe0..0xfc => self.queues.close(input.any() >> 2, "done"),
            _ => self.driver.abandon(),
        }
    }

    // ---- datagrams ----------------------------------------------------------------------------

    /// The application sends some, and says how it wants those of the peer.
    fn datagrams(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let flow = u64::from(flags & 3);
        let kind = match flags >> 2 & 3 {
            0 | 1 => None,
            2 => Some(FlowKind::Ordered),
            _ => {
                self.queues.open_live();
                Some(FlowKind::Live)
            }
        };
        match flags >> 4 {
            0 => self.queues.end_live(flow),
            1 => self.queues.set_latency(flow, input.any() >> 2),
            2 => self.queues.set_on_time(flow, flags & 4 != 0),
            3 => self.queues.stop_live(flow),
            more => {
                for _ in 4..=more {
                    let len = match input.byte() {
                        len @ 0..0xf0 => usize::from(len),
                        _ => input.below(66_000) as usize,
                    };
                    let send_as = SendAs {
                        flow,
                        kind,
                        urgency: Urgency::new(input.byte() & 7),
                        life: input.pick(&[0, MS, 50 * MS, Nanos::MAX]),
                        repair: [RepairMode::None, RepairMode::InTime, RepairMode::Together]
                            [len % 3],
                    };
                    let data = sent::datagram(flow, len);
                    let pool = self.workshop.pool();
                    // It may be too long, or not wanted.
                    let _ = self.queues.send_datagram(self.now, &data, send_as, pool);
                }
            }
        }
    }

    /// The application takes those that have arrived.
    fn take_datagrams(&mut self, all: bool) {
        while let Some(len) = self.queues.next_datagram_len() {
            let taken = self.queues.next_datagram().expect("there is one");
            assert_eq!(taken.data().len(), len);
            if !all {
                break;
            }
        }
        self.live
            .extend(self.queues.accept_live().map(|(flow, _)| flow));
        for flow in &self.live {
            if let Some(len) = self.queues.next_live_len(*flow) {
                let taken = self.queues.next_live(*flow).expect("there is one");
                assert_eq!((taken.data().len(), taken.flow()), (len, *flow));
            }
            let missing = self.queues.take_missing(*flow);
            assert!(missing.iter().all(|range| range.start < range.end));
            self.queues.live_end(*flow);
        }
    }

    // ---- the engine ---------------------------------------------------------------------------

    fn check_memory(&self) {
        let held = self.driver.receiving_cost();
        assert!(held <= self.recv_window, "over the window");
        assert!(self.queues.datagram_bytes() <= DATAGRAM_BYTES);
        let kept = self.driver.window_bytes() as u64;
        let most = (self.recv_window / 4).min(COPIES_MAX) + WAITING_MAX;
        assert!(kept <= most, "too much is kept for sliding windows");
        for (id, _) in self.queues.arrived() {
            assert!(id.has_sender(self.peer_role));
            assert!(!self.gone.contains(&id), "heard of again");
        }
    }

    fn turn(&mut self) {
        self.driver.handle_timeout(self.now, &mut self.workshop);
        let pool = self.workshop.pool();
        self.driver.exchange(self.now, &mut self.queues, pool);
        let (random, ids) = (&mut self.random, &mut self.ids);
        let mut cid = || ConnectionId::new((ids.word() | 1).to_be_bytes()).expect("not zero");
        let spare = || (cid(), None);
        self.driver.supply(|| random.word().to_be_bytes(), spare);
        self.driver.take_retired();
        self.driver.take_path_changes();
        self.driver
            .transmit(self.now, usize::MAX, &mut self.workshop, &mut self.wire);
        self.wire.has_chance = self.peer.has_lied;
        self.wire.check();
        self.peer.named.clone_from(&self.wire.named);
        let are_gone = self.wire.stops.is_subset(&self.gone);
        assert!(are_gone, "a stream that is read is stopped");
        if let Some(end) = self.driver.poll_end() {
            assert!(!self.has_ended, "ended twice, then by {end:?}");
            let is_own = matches!(end, EndReason::CannotDecode(_) | EndReason::CannotSeal(_));
            let is_accused = matches!(end, EndReason::Violation(_));
            let is_right = !is_own && (!is_accused || self.peer.has_lied);
            assert!(is_right, "{end:?}");
            self.has_ended = true;
            self.queues.end();
        }
        self.queues.take_changed();
        self.check_memory();
    }

    /// Everything that is due now.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            let is_due = self.driver.poll_timeout().is_some_and(|at| at <= self.now);
            if !(self.queues.take_wanted() | is_due) {
                return;
            }
        }
        panic!("busy at {} ns", self.now.as_nanos());
    }

    /// Lets time pass as the driver asks for it.
    fn wait(&mut self, span: Nanos) {
        let until = self.now + span;
        for _ in 0..WAKES_MAX {
            self.settle();
            match self.driver.poll_timeout().filter(|at| *at <= until) {
                Some(at) => self.now = at,
                None => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("woken without end");
    }

    /// The peer asks for a complete report, until late jobs are done. `None` if the session ends.
    fn report(&mut self) -> Option<Feedback> {
        for round in 0..8 {
            if round == 4 {
                // Older answers may be on their way until now.
                self.wire.feedback = Feedback::default();
            }
            let mut body = Vec::new();
            Frame::Ping.encode(&mut body);
            let header = Header::control(cid(8), PacketNumber::ZERO, false);
            // The last one of its flight.
            self.packet(&mut Input::new(&[4]), header, &body);
            self.wait(40 * MS);
        }
        let is_over = self.has_ended || self.driver.is_finished();
        (!is_over).then(|| std::mem::take(&mut self.wire.feedback))
    }

    /// The application takes all that has arrived, and lets go of it: nothing of the window is in use but for blocks
    /// that lack symbols. Whatever an honest peer has sent is there.
    fn account(&mut self) {
        let Some(before) = self.report() else { return };
        let accept = &mut Input::new(&[0]);
        self.read(accept);
        for id in self.readers.keys().copied().collect::<Vec<_>>() {
            self.read_from(id, usize::MAX, 100);
        }
        let complete = complete(&before);
        if !self.peer.has_lied {
            let all: u64 = complete.iter().map(|id| self.bytes_of(*id)).sum();
            // They may have been complete before they were given up.
            let given_up = complete.iter().filter(|id| self.is_given_up(**id));
            let given_up: u64 = given_up.map(|id| self.bytes_of(*id)).sum();
            let received = self.driver.counters().bytes_received;
            assert!((all - given_up..=all).contains(&received));
            for (id, reading) in &self.readers {
                let readable = self.peer.readable(*id, &complete);
                let is_given_up = self.peer.code_of(*id).is_some();
                assert!(
                    reading.in_any_order || is_given_up || reading.at == readable,
                    "not all is read"
                );
            }
        }
        let arrived = self.queues.arrived().map(|(id, _)| id);
        let streams: BTreeSet<_> = arrived.chain(self.readers.keys().copied()).collect();
        for id in streams {
            let reading = self.readers.remove(&id);
            self.queues
                .abandon(id, reading.and_then(|reading| reading.chunk), 0);
            self.gone.insert(id);
        }
        let Some(after) = self.report() else { return };
        let open = after
            .blocks
            .as_ref()
            .map_or(&[][..], |blocks| &blocks.deficits);
        if open.is_empty() {
            assert_eq!(self.driver.receiving_cost(), 0, "not all is released");
        }
        if self.peer.has_lied {
            return;
        }
        let open = open
            .iter()
            .map(|(id, _)| self.peer.blocks[&id.truncated()].cost());
        assert!(self.driver.receiving_cost() <= open.sum());
        let sack = after.sack.as_ref().expect("an answer");
        let made = complete.iter().map(|id| &self.peer.blocks[&(*id as u32)]);
        let released: u64 = made.map(peer::Made::cost).sum();
        assert_eq!(sack.credit, self.recv_window + released, "not all is free");
        let (whole, resets) = (self.peer.whole_streams(&complete), self.peer.resets());
        // Of a stream with two directions that the peer has opened, it must have taken the answer too.
        let is_answered = |stream: &StreamId| {
            !stream.is_bi() || stream.opener() != self.peer_role || self.taken.contains(stream)
        };
        // Whether the application has ever heard of those that were given up is not known.
        assert!(after.ended.is_subset(&(&whole | &resets)));
        assert!(
            after.ended.iter().all(is_answered),
            "before the answer has ended"
        );
        let mut read = whole
            .difference(&resets)
            .filter(|stream| is_answered(stream));
        assert!(
            read.all(|stream| after.ended.contains(stream)),
            "an end that is not told"
        );
    }

    fn bytes_of(&self, block: u64) -> u64 {
        let segments = self.peer.blocks[&(block as u32)].segments.iter();
        segments.map(|segment| u64::from(segment.len)).sum()
    }

    fn is_given_up(&self, block: u64) -> bool {
        self.peer.given_up.contains(&(block as u32))
    }

    /// Nothing more comes: the session comes to its end by itself, and rests.
    fn fall_silent(&mut self) {
        let over = self.now + self.idle_timeout + 1000 * MS;
        for _ in 0..WAKES_MAX {
            self.settle();
            let Some(at) = self.driver.poll_timeout() else {
                break;
            };
            assert!(at <= over || self.driver.is_finished(), "goes on for ever");
            self.now = at;
        }
        assert!(self.driver.is_finished());
    }
}

/// What the peer says of streams of one kind of which it knows this, and has taken all.
fn taken_of(kind: u8, got: &[(StreamId, sent::Got)]) -> Streams {
    let is_ended = |(_, got): &&(StreamId, sent::Got)| got.has_ended();
    let mut ended: Vec<(u64, u64)> = Vec::new();
    let mut base = 0;
    for (stream, _) in got.iter().filter(is_ended) {
        let index = stream.index();
        match ended.last_mut() {
            _ if index == base => base += 1,
            Some(last) if last.1 + 1 == index => last.1 = index,
            _ => ended.push((index, index)),
        }
    }
    let taken = got
        .iter()
        .filter(|got| !is_ended(got) && got.0.index() >= base);
    Streams {
        kind,
        base,
        ended,
        taken: taken
            .map(|(stream, got)| (stream.index(), got.cost))
            .collect(),
    }
}

/// The peer's blocks that this feedback tells are complete.
fn complete(feedback: &Feedback) -> BTreeSet<u64> {
    let Some(blocks) = &feedback.blocks else {
        return BTreeSet::new();
    };
    let above = blocks.complete.iter();
    let above = above.flat_map(|(low, high)| low.until(*high + 1));
    let numbers = BlockId::ZERO.until(blocks.base).chain(above);
    numbers.map(BlockId::get).collect()
}
