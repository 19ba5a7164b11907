//! One session of the core against a peer that has the keys and says anything, and a driver that
//! does its part in any order.
//!
//! A model beside the session follows what its driver may rely on: whose memory every slot is,
//! which packet numbers came and went, what is complete, what streams cost and when they end, and that time
//! always moves on.

mod model;

use std::collections::BTreeSet;

use sphinx_fec::CodeId;
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::{
    BUNDLE_MAX, Blocks, Bundle, ConnectionId, Fragment, Frame, FrameIter, Header, OVERHEAD,
    PacketKind, PathStatus, ResetToken, Rider, Sack, VARINT_MAX, WindowSpan, block_symbols_max,
    put_varint,
};
use sphinx_proto::{
    BlockId, Bond, CidSequence, Config, ConnectionIds, Icm, Nanos, PacketMeta, PacketNumber,
    PathId, PathMemory, PathRole, Profile, Received, Role, Session, StreamId, Time, Tuple,
};

use crate::Input;
use model::Model;

const MS: Nanos = 1_000_000;
/// Streams of each kind that the peer may have open.
pub(crate) const STREAMS: u64 = 320;
const SEC: Nanos = 1_000 * MS;

/// Steps of one input.
const STEPS_MAX: u32 = 300;
/// Turns of the driver at one point in time before the session counts as stuck.
const SPIN_MAX: u32 = 100;
const CONTROLLERS: [CcKind; 6] = [
    CcKind::Bbr,
    CcKind::AimdEcn,
    CcKind::Fixed(2_000_000),
    CcKind::Fixed(1000),
    CcKind::Cubic,
    CcKind::Scavenger,
];
/// Points in time at which a session may want to be woken while nothing comes in.
const WAKES_MAX: u32 = 20_000;
/// Frames with feedback that a packet may have (`docs/protocol.md` §11).
const FEEDBACK_MAX: usize = 16;

/// The session, its driver and the attacker.
struct Victim {
    session: Session,
    model: Model,
    now: Time,
    idle_timeout: Nanos,
    /// The peer says nothing that breaks the protocol: sessions live longer, and end for other reasons.
    is_tame: bool,
}

pub(crate) fn cid(n: u8) -> ConnectionId {
    ConnectionId::new([n.max(1); 8]).expect("not zero")
}

/// One of the places where the peer may be; 0 is the first.
pub(crate) fn place(n: u8) -> Tuple {
    let hosts: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 0, 0, 1], [10, 0, 0, 2]];
    let locals = [None, Some([10, 0, 1, 1].into()), Some([10, 0, 1, 2].into())];
    Tuple {
        remote: (hosts[usize::from(n % 3)], u16::from(n)).into(),
        local_ip: locals[usize::from(n / 3 % 3)],
    }
}

/// The ranges, largest first, without some numbers.
pub(crate) fn without(ranges: &[(u64, u64)], numbers: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    for &(low, high) in ranges {
        let mut end = Some(high);
        for &number in numbers.range(low..=high).rev() {
            parts.extend(end.filter(|end| *end > number).map(|end| (number + 1, end)));
            end = number.checked_sub(1).filter(|below| *below >= low);
        }
        parts.extend(end.map(|end| (low, end)));
    }
    parts
}

/// The ranges as a SACK has them.
pub(crate) fn numbered(ranges: &[(u64, u64)]) -> Vec<(PacketNumber, PacketNumber)> {
    let numbered = |(low, high): &_| (PacketNumber::new(*low), PacketNumber::new(*high));
    ranges.iter().map(numbered).collect()
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
    victim.fall_silent();
}

/// Sizes of windows; the last one only the peer's.
const WINDOWS: [u64; 5] = [4 << 20, 1 << 16, 700, 1 << 20, VARINT_MAX];

/// Settings of a session.
pub(crate) fn config(input: &mut Input<'_>) -> Config {
    let ip_overhead = input.pick(&[28, 48]);
    let role = input.pick(&[Role::Server, Role::Client]);
    let ids = ConnectionIds {
        local: cid(8),
        peer: cid(9),
    };
    let mut config = Config::new(role, place(0), ids);
    config.ip_overhead = ip_overhead;
    config.mtu_candidates = sphinx_proto::mtu_candidates(ip_overhead);
    config.profile = input.pick(&[Profile::Latency, Profile::Bulk]);
    config.code = input.pick(&[
        Some(CodeId::Rlc),
        Some(CodeId::Srlt),
        None,
        Some(CodeId::Rs),
        Some(CodeId::FftRs),
        Some(CodeId::Lt),
        Some(CodeId::Window),
    ]);
    config.cc = input.pick(&CONTROLLERS);
    config.initial_rtt = input.pick(&[10 * MS, 0, 3 * SEC, MS / 10]);
    config.idle_timeout = input.pick(&[SEC, 100 * MS, 15 * SEC]);
    config.recv_streams = STREAMS;
    config.recv_window = input.pick(&WINDOWS[..4]);
    config.send_window = input.pick(&WINDOWS[..4]);
    // What the peer says of itself in the handshake.
    config.peer_window = input.pick(&WINDOWS);
    config.peer_datagram_max = input.pick(&[1472, 1200, 9040, 65_527]);
    config.icm = input.pick(&[Icm::Default, Icm::Paper, Icm::Off]);
    // From a byte that says more.
    let also = input.clone().byte() >> 5;
    config.bundle = [1, 8, 2, 0][usize::from(also & 3)];
    config.memory = (also & 4 != 0).then_some(PathMemory {
        rate: 1_000_000,
        rtt: 50 * MS,
        plr: 0.1,
        datagram_len: 1200,
    });
    config
}

impl Victim {
    fn new(input: &mut Input<'_>) -> Self {
        let is_tame = input.clone().byte() & 0x80 != 0;
        let config = config(input);
        Self {
            is_tame,
            model: Model::new(&config, is_tame),
            idle_timeout: config.idle_timeout,
            session: Session::new(config, Time::ZERO),
            now: Time::ZERO,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        match kind & 0x0f {
            0..4 => self.symbol(input),
            4 | 5 => {
                let sack = self.sack(input);
                self.control(input, &[sack]);
            }
            6 => {
                let blocks = Self::blocks(input);
                let streams = self.model.streams(input);
                let frames = [Frame::Streams(streams), Frame::Blocks(blocks)];
                // One of the two frames, or both.
                let only = [&frames[..], &frames[1..], &frames[..1]][usize::from(kind >> 4) % 3];
                self.control(input, only);
            }
            7 => {
                let (blocks, sack) = (Self::blocks(input), self.sack(input));
                let mut frames = vec![Frame::Blocks(blocks), sack];
                if kind & 0x40 != 0 {
                    frames.insert(1, Frame::Streams(self.model.streams(input)));
                }
                self.control(input, &frames);
            }
            8 => self.path(input),
            9 | 10 => self.submit(input),
            11 => self.model.finish_job(&mut self.session, input),
            12 => self.model.take(&mut self.session, self.now, input),
            13 => self.rare(input),
            14 => self.wait(input),
            _ => {
                let span = self.span(input);
                self.now += span;
                self.handle_timeout(self.now);
            }
        }
        // The driver may be late: other input comes first.
        if kind & 0x80 == 0 {
            self.settle();
        }
    }

    /// A length of time, seldom a long one.
    fn span(&self, input: &mut Input<'_>) -> Nanos {
        match input.byte() {
            kind @ 0..0x80 => Nanos::from(kind) * MS / 10,
            kind @ 0x80..0xf0 => Nanos::from(kind - 0x7f) * MS,
            0xf0..0xfe => input.number(2),
            _ => self.idle_timeout / 2,
        }
    }

    fn meta(&mut self, input: &mut Input<'_>, flags: u8, body_len: usize) -> PacketMeta {
        let odd = flags & 0x10 != 0;
        let tuple = if odd {
            place(input.byte() & 0xf)
        } else {
            self.session.tuple()
        };
        let datagram_len = body_len + OVERHEAD;
        self.model.came(tuple, datagram_len);
        PacketMeta {
            now: self.now,
            received_at: self.now.earlier_by(Nanos::from(flags >> 3 & 1) * MS),
            packet_number: PacketNumber::new(self.model.packet_number(input, odd)),
            tuple,
            ecn: flags & 3,
            datagram_len,
        }
    }

    /// The id and the mark that a packet with these flags carries.
    fn control_header(&mut self, input: &mut Input<'_>, flags: u8, meta: &PacketMeta) -> Header {
        let odd = flags & 0x10 != 0;
        let cid = self.model.own_id(if odd { input.byte() } else { 0 });
        Header {
            last_of_flight: flags & 4 != 0,
            ..Header::control(cid, meta.packet_number, false)
        }
    }

    fn symbol(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let block = match (input.byte(), flags >> 6) {
            (group @ 0..0xf0, 0..3) => 8 * u32::from(group & 3) + input.below(8) as u32,
            (_, 0..3) => input.number(2) as u32,
            _ => input.any() as u32,
        };
        // Mostly the shape that other symbols of the block have.
        let (n, len) = match input.byte() {
            shape @ 0..0xc0 => ([1, 2, 3, 7, 20, 60][usize::from(shape & 7) % 6], 1000),
            0xc0..0xe0 => (input.below(40) as u16 + 1, 20),
            0xe0..0xf0 => (input.below(1024) as u16 + 1, input.below(9100) as usize),
            _ => (1024, 512),
        };
        let code = match flags & 0x20 {
            0 => CodeId::SOURCE,
            _ if self.is_tame => input.pick(&[1, 2, 3, 4, 5, 6]),
            _ => input.pick(&[1, 2, 1, 2, 3, 4, 5, 6, 63]),
        };
        let row = match input.byte() {
            row @ 0..0xc0 => u32::from(row),
            _ => input.number(3) as u32,
        };
        let part = match input.byte() {
            0xfa.. if len > 0 => {
                return self.bundle(input, flags, (block, code, n, row), len as u16);
            }
            0..0xc0 => None,
            part if len == 0 => Some((part & 7, 0)),
            part => Some((part & 7, 2 + (part >> 3 & 7) % 7)),
        };
        let fragment = part.map(|(index, count)| Fragment {
            symbol_len: len as u16,
            index,
            count,
        });
        // What the driver does not take for a fragment does not come here.
        let fragment = fragment.filter(|f| f.index < f.count && !f.range().is_empty());
        if part.is_some() != fragment.is_some() {
            return;
        }
        // Now and then all of a block at once.
        let rows = match flags & 0x28 {
            8 if self.is_tame && fragment.is_none() => 0..u32::from(n),
            _ => row..row + 1,
        };
        for row in rows {
            self.one_symbol(input, flags, (block, code, n, row), len, fragment);
        }
    }

    fn one_symbol(
        &mut self,
        input: &mut Input<'_>,
        flags: u8,
        (block, code, n, row): (u32, u8, u16, u32),
        len: usize,
        fragment: Option<Fragment>,
    ) {
        let meta = self.meta(input, flags, fragment.map_or(len, |f| f.range().len() + 3));
        let header = Header {
            kind: fragment.map_or(PacketKind::Symbol, |_| PacketKind::Fragment),
            block,
            code,
            n,
            row,
            ..self.control_header(input, flags, &meta)
        };
        self.model.sees(block);
        if code == CodeId::Window.to_wire() && fragment.is_none() {
            return self.window(input, meta, &header, len as u16);
        }
        let mut body = fragment.map_or(Vec::new(), |part| part.encode().to_vec());
        body.resize(
            body.len() + fragment.map_or(len, |part| part.range().len()),
            0,
        );
        match (self.session.handle_packet(&meta, &header, &body), fragment) {
            (Received::Symbol(placement), None) => self.model.place(placement, &header, len),
            (Received::Part(part), Some(fragment)) => {
                self.model.place_part(part, &header, fragment);
            }
            (received, _) => assert_eq!(received, Received::Nothing),
        }
        self.model.take_jobs(&mut self.session);
    }

    /// A symbol, and behind it some of other blocks.
    fn bundle(
        &mut self,
        input: &mut Input<'_>,
        flags: u8,
        (block, code, n, row): (u32, u8, u16, u32),
        len: u16,
    ) {
        let mut body = Vec::new();
        put_varint(&mut body, u64::from(len));
        body.resize(body.len() + usize::from(len), 0);
        self.model.sees(block);
        for _ in 0..1 + input.below(u64::from(BUNDLE_MAX)) {
            let shape = input.byte();
            let rider = Rider {
                distance: 1 + u32::from(shape & 7),
                code: match shape & 0x18 {
                    0 | 8 => CodeId::SOURCE,
                    _ => input.below(7) as u8,
                },
                n: [1, 1, 2, n][usize::from(shape >> 5 & 3)],
                row: u32::from(input.byte()),
                symbol_len: if shape & 0x80 == 0 { 1000 } else { len },
            };
            rider.encode_prefix(&mut body);
            body.resize(body.len() + usize::from(rider.symbol_len), 0);
            self.model.sees(block.wrapping_sub(rider.distance));
        }
        if !self.is_tame && input.rarely(8) {
            // Something is missing, or too much.
            let end = input.below(2 * body.len() as u64) as usize;
            body.resize(end, input.byte());
        }
        let meta = self.meta(input, flags, body.len());
        let header = Header {
            kind: PacketKind::Bundle,
            block,
            code,
            n,
            row,
            ..self.control_header(input, flags, &meta)
        };
        let expected = Bundle::split(&header, &body);
        let is_open = self.model.is_going_on(&mut self.session);
        match self.session.handle_packet(&meta, &header, &body) {
            Received::Bundle(symbols) => {
                assert!(is_open);
                let heard = symbols.iter().map(|s| (s.header, s.at.clone()));
                assert_eq!(Ok(heard.collect()), expected);
                for symbol in symbols {
                    let placement = self.session.handle_bundled(self.now, &symbol);
                    self.model.place(placement, &symbol.header, symbol.at.len());
                    self.model.take_jobs(&mut self.session);
                }
            }
            received => {
                assert_eq!(received, Received::Nothing);
                if is_open {
                    assert!(expected.is_err(), "nothing is wrong with it");
                    self.model.is_accused(&mut self.session);
                }
            }
        }
    }

    /// A repair that covers several blocks.
    fn window(
        &mut self,
        input: &mut Input<'_>,
        meta: PacketMeta,
        header: &Header,
        symbol_len: u16,
    ) {
        let upto = 1 + input.below(u64::from(header.n)) as u16;
        let Some(mut span) = WindowSpan::new(upto, header.n, symbol_len) else {
            return;
        };
        for _ in 0..input.below(6) {
            let (skipped, n, symbol_len) = match input.byte() {
                0..0xc0 => (0, header.n, symbol_len),
                other @ 0xc0..0xf0 => (0, u16::from(other & 7) + 1, 20 * u16::from(other >> 3)),
                other => (other & 7, header.n, symbol_len),
            };
            span.extend(skipped, n, symbol_len, usize::MAX);
        }
        for covered in span.blocks() {
            self.model
                .sees(header.block.wrapping_sub(covered.back as u32));
        }
        let mut body = span.encode();
        body.resize(span.body_len(), 0);
        match self.session.handle_packet(&meta, header, &body) {
            Received::Window { row, covered, .. } => self.model.cover(row, &covered),
            received => assert_eq!(received, Received::Nothing),
        }
        self.model.take_jobs(&mut self.session);
    }

    fn sack(&self, input: &mut Input<'_>) -> Frame<'static> {
        let flags = input.byte();
        let sent = self.model.next_number();
        if self.is_tame && sent == 0 {
            return Frame::Ping;
        }
        let newest = sent.saturating_sub(1);
        let mut high = match flags & 7 {
            0..4 => newest,
            _ if self.is_tame => newest.saturating_sub(input.below(64)),
            4..7 => newest.saturating_sub(input.below(64)),
            // More than was sent, now and then.
            _ => input.any(),
        };
        let mut ranges = Vec::new();
        for _ in 0..1 + (flags >> 3 & 3) {
            let low = match input.byte() {
                0xff => 0,
                len => high.saturating_sub(u64::from(len)),
            };
            ranges.push((low, high));
            let Some(below) = low.checked_sub(2 + input.below(4)) else {
                break;
            };
            high = below;
        }
        // To name a number that was left out ends the session: seldom.
        if self.is_tame || !input.rarely(32) {
            ranges = without(&ranges, self.model.left_out());
        }
        let odd = flags & 0xe0;
        let field = |input: &mut Input<'_>, mask: u8, honest: u64| {
            if odd & mask == 0 { honest } else { input.any() }
        };
        Frame::Sack(Sack {
            sequence: 0,
            delay_us: field(input, 0x20, 0),
            time_us: field(input, 0x20, self.now.as_nanos() / 1000),
            ect: field(input, 0x40, 0),
            ce: field(input, 0x40, 0),
            credit: field(input, 0x80, 1 << 20),
            ranges: numbered(&ranges),
        })
    }

    fn blocks(input: &mut Input<'_>) -> Blocks {
        let shape = input.byte();
        let base = match shape >> 3 & 3 {
            0..3 => u64::from(8 * (shape & 3)) + input.below(8),
            _ => input.any() >> 2,
        };
        let mut next = base;
        let mut complete = Vec::new();
        for _ in 0..shape >> 5 & 3 {
            let low = next.saturating_add(1 + input.below(4));
            let high = low.saturating_add(match input.byte() {
                len @ 0..0xf0 => u64::from(len & 7),
                _ => input.any() >> 2,
            });
            if high >= VARINT_MAX {
                break;
            }
            complete.push((BlockId::new(low), BlockId::new(high)));
            next = high + 1;
        }
        let deficits = match shape >> 7 {
            0 => Vec::new(),
            _ => (0..input.below(5))
                .map(|_| (BlockId::new(base + input.below(6)), input.any() as u32))
                .collect(),
        };
        Blocks {
            base: BlockId::new(base),
            complete,
            deficits,
        }
    }

    /// Challenges, answers, connection ids and the like.
    fn path(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x04 => self.control(input, &[Frame::Ping]),
            0x04..0x08 => {
                let frame = self.model.window_frame(input, &WINDOWS);
                self.control(input, &[frame]);
            }
            0x08..0x14 => {
                let reset = self.model.reset(input);
                self.control(input, &[Frame::Reset(reset)]);
            }
            0x14..0x16 => {
                let blocks = self.model.blocks_to_give_up(input);
                self.control(input, &[Frame::Gone(blocks.into_iter().collect())]);
            }
            0x16..0x18 => {
                let stream = self.model.stopped(input);
                let code = input.any() >> 2;
                self.control(input, &[Frame::Stop { stream, code }]);
            }
            0x18..0x20 => {
                let packet_number = PacketNumber::new(self.model.missing(input.byte()));
                let frame = Frame::Skipped {
                    path: PathId::FIRST,
                    packet_number,
                };
                self.control(input, &[frame]);
            }
            0x20..0x60 => {
                let data = input.number(8).to_be_bytes();
                self.control(input, &[Frame::PathChallenge(data), Frame::Padding]);
            }
            0x60..0xb0 => {
                let data = self.model.challenge(input.byte());
                self.control(input, &[Frame::PathResponse(data)]);
            }
            0xe8..0xf0 => {
                let path = PathId::new(input.number(4) as u32 | 1);
                match self.sack(input) {
                    Frame::Sack(sack) if !self.is_tame => {
                        self.control(input, &[Frame::PathSack { path, sack }]);
                    }
                    frame => self.control(input, &[frame]),
                }
            }
            0xf0..0xf4 => {
                let frame = bond_frame(input);
                // What they are for only clients say, and that to servers.
                let is_theirs =
                    matches!(frame, Frame::MaxPaths(_)) || self.model.role() == Role::Server;
                if is_theirs || !self.is_tame {
                    self.control(input, &[frame]);
                }
            }
            0xb0..0xe8 => {
                let (sequence, cid) = (CidSequence::new(input.any()), cid(input.byte()));
                let frame = Frame::NewConnectionId {
                    path: PathId::FIRST,
                    sequence,
                    cid,
                };
                let token = Frame::ResetToken {
                    path: PathId::FIRST,
                    sequence,
                    token: ResetToken::new([cid.bytes()[0]; ResetToken::LEN]),
                };
                self.control(input, &[frame, token]);
            }
            _ => {
                let len = usize::from(input.byte());
                let body = if self.is_tame {
                    &[0, 1]
                } else {
                    input.take(len)
                };
                self.body(input, body);
            }
        }
    }

    /// What happens to a session once or now and then.
    fn rare(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x40 => {
                let stream = StreamId::new(Role::Client, 0);
                let held_up = input.rarely(4).then_some(stream);
                self.session.set_backlog(input.rarely(2), held_up);
            }
            0x40..0x80 => self.model.give_up(&mut self.session, input),
            0x80..0xa0 => {
                let size = input.number(2) as usize;
                self.session.datagram_too_large(self.now, None, size);
            }
            0xa0..0xb0 => self.session.local_address_lost(self.now),
            0xb0..0xb4 => self.session.set_cc(self.now, input.pick(&CONTROLLERS)),
            0xb4..0xb8 => {
                let limit = input.pick(&[None, Some(0), Some(10_000), Some(u64::MAX)]);
                self.session.set_limit(limit);
            }
            0xb8..0xc0 => {
                let size = input.pick(&WINDOWS[..4]);
                self.model.resize_window(&mut self.session, self.now, size);
            }
            _ if self.is_tame => {}
            0xc0..0xe0 => {
                let code = input.any();
                let reason = "enough";
                self.control(input, &[Frame::Close { code, reason }]);
            }
            0xe0..0xfe => {
                let code = input.any();
                self.model.closes();
                self.session.close(self.now, code, "done");
            }
            _ => {
                self.model.closes();
                self.session.abandon();
            }
        }
    }

    fn control(&mut self, input: &mut Input<'_>, frames: &[Frame<'_>]) {
        let mut body = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut body));
        self.body(input, &body);
    }

    fn body(&mut self, input: &mut Input<'_>, body: &[u8]) {
        let flags = input.byte();
        let meta = self.meta(input, flags, body.len());
        let frames = || FrameIter::new(body).flatten();
        // Before all of them: what one of them asks for is done when the whole packet is handed over.
        let needs_end = |frame| {
            matches!(
                frame,
                Frame::Reset(_) | Frame::Stop { .. } | Frame::Gone(_) | Frame::Shrunk { .. }
            )
        };
        if frames().any(needs_end) {
            self.model.is_going_on(&mut self.session);
        }
        let mut is_possible = true;
        let mut feedback = 0;
        for frame in frames() {
            feedback += usize::from(frame.is_feedback());
            if frame.is_feedback() && feedback > FEEDBACK_MAX {
                continue;
            }
            let packet = (meta.tuple, meta.packet_number);
            is_possible &= self.model.said(packet, &frame);
        }
        let header = self.control_header(input, flags, &meta);
        let received = self.session.handle_packet(&meta, &header, body);
        match received {
            Received::Abandoned(blocks) => self.model.abandon(blocks),
            received => assert_eq!(received, Received::Nothing),
        }
        if !is_possible {
            self.model.check_accused(&mut self.session);
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let symbol_len = match shape & 3 {
            0..3 => self.session.block_shape(1).1,
            _ => 1 + input.below(u64::from(self.session.block_shape(1).1)) as u16,
        };
        let n = match shape >> 2 & 3 {
            0..3 => 1 + input.below(32),
            _ => 1 + input.below(block_symbols_max(usize::from(symbol_len)) as u64),
        };
        let (n, tail) = (n as u16, shape & 0x10 != 0);
        let first = shape >> 5;
        if tail && first >= 6 {
            let shape = (n, symbol_len);
            return self
                .model
                .submit_datagrams(&mut self.session, self.now, input, shape);
        }
        self.model
            .submit(&mut self.session, input, first, (n, symbol_len), tail);
    }

    /// Lets time pass as the session asks for it.
    fn wait(&mut self, input: &mut Input<'_>) {
        let until = self.now + self.span(input);
        let mut wakes = 0;
        loop {
            self.settle();
            let Some(at) = self.session.poll_timeout().filter(|at| *at <= until) else {
                break;
            };
            self.now = at;
            wakes += 1;
            assert!(wakes < WAKES_MAX, "woken without end");
        }
        self.now = until;
    }

    fn handle_timeout(&mut self, now: Time) {
        self.session.handle_timeout(now);
        self.model.note_time(&self.session);
    }

    /// Does everything that is due now.
    fn settle(&mut self) {
        for _ in 0..SPIN_MAX {
            self.model.drain(&mut self.session, self.now);
            match self.session.poll_timeout() {
                Some(at) if at <= self.now => self.handle_timeout(self.now),
                _ => return,
            }
        }
        panic!("busy at {} ns", self.now.as_nanos());
    }

    /// Nothing more comes: the session must come to its end by itself, and rest.
    fn fall_silent(&mut self) {
        self.settle();
        self.model.release_all(&mut self.session, self.now);
        let over = self.now + self.idle_timeout + SEC;
        let mut wakes = 0;
        loop {
            self.settle();
            let Some(at) = self.session.poll_timeout() else {
                break;
            };
            assert!(at <= over, "goes on for ever");
            self.now = at;
            wakes += 1;
            assert!(wakes < WAKES_MAX, "woken without end");
        }
        assert!(self.session.is_finished());
        self.handle_timeout(self.now + SEC);
        self.model.drain(&mut self.session, self.now + SEC);
        assert_eq!(self.session.poll_timeout(), None);
    }
}

/// A frame about several paths; of a session that has one it changes nothing.
fn bond_frame(input: &mut Input<'_>) -> Frame<'static> {
    let number = input.any();
    match input.byte() % 3 {
        0 => Frame::PathStatus(PathStatus {
            path: PathId::FIRST,
            number,
            role: match input.byte() & 1 {
                0 => PathRole::Primary,
                _ => PathRole::Backup,
            },
            cost: input.any() as u32,
            // As fast as may be, or fast enough for the model's time.
            limit: [0, 1 << 30][usize::from(input.byte() & 1)],
        }),
        1 => Frame::MaxPaths(input.byte().max(1)),
        _ => Frame::Bond {
            number,
            bond: [
                Bond::Aggregate,
                Bond::Redundant { copies: 2 },
                Bond::Backup,
                Bond::Cheapest,
            ][usize::from(input.byte() & 3)],
        },
    }
}
