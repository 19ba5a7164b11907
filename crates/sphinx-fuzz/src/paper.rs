//! A session in the mode of the paper against an authenticated peer that says anything.

use std::collections::BTreeMap;

use sphinx_fec::CodeId;
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::{
    BlockSack, Frame, Header, LossReport, NamedBlock, PacketKind, PaperCounts, SymbolSack,
    VARINT_MAX,
};
use sphinx_proto::{
    BlockId, Config, ConnectionIds, Delta, Nanos, PacketMeta, PacketNumber, Paper, Placement,
    Received, Resend, Role, Room, Session, Slot, StreamId, StreamPart, Time, Triggers, Urgency,
};

use crate::Input;
use crate::session::{cid, place};

const MS: Nanos = 1_000_000;
const STEPS_MAX: u32 = 200;
/// Packets that leave at one point in time, and looks at a timer that is due, before the session counts as stuck.
const PACKETS_MAX: u32 = 100_000;
const TIMERS_MAX: u32 = 100;

/// What a driver knows of the session.
struct Mirror {
    session: Session,
    /// The peer says nothing that ends a session: it is false in what it says of blocks.
    is_tame: bool,
    /// Bytes of the blocks that have begun to arrive.
    received: BTreeMap<Slot, u64>,
    recv_window: u64,
    now: Time,
    packet_number: u64,
    /// Blocks that it sends, and on what.
    slots: u32,
    stream: StreamId,
}

/// Settings that both ends may have agreed on.
fn settings(input: &mut Input<'_>) -> Paper {
    let paper = Paper {
        code: input.pick(&[CodeId::Srlt, CodeId::Lt, CodeId::Rs, CodeId::FftRs]),
        n: input.pick(&[100, 8, 2, 20, 64]),
        symbol: input.pick(&[1000, 100, 1162]),
        threshold: input.pick(&[500_000, 300_000, 990_000]),
        delta: input.pick(&[Delta::Share(0), Delta::Measured, Delta::Share(500_000)]),
        period: input.pick(&[1000, 50]),
        icm: Triggers {
            block: !input.rarely(4),
            symbol: !input.rarely(4),
        },
        resend: input.pick(&[Resend::Missing, Resend::Block]),
        part: input.pick(&[1_000_000, 500_000]),
        window: input.pick(&[16, 1, 4096]),
        initial: input.pick(&[20_000, 0, 500_000]),
        ..Paper::default()
    };
    assert_eq!(paper.check(), Ok(()), "both ends would refuse it");
    paper
}

/// Whatever arrives: what arrives fits the window, there is an end to what leaves, and no timer is due for ever.
///
/// # Panics
///
/// If not.
pub fn hostile_peer(data: &[u8]) {
    let mut input = Input::new(data);
    let input = &mut input;
    let ids = ConnectionIds {
        local: cid(8),
        peer: cid(9),
    };
    let is_tame = input.clone().byte() & 0xc0 != 0;
    let role = input.pick(&[Role::Client, Role::Server]);
    let mut config = Config::new(role, place(0), ids);
    config.paper = Some(settings(input));
    config.cc = input.pick(&[CcKind::Fixed(20_000_000), CcKind::AimdEcn]);
    config.recv_window = input.pick(&[4 << 20, 1 << 20]);
    config.peer_window = input.pick(&[4 << 20, 0, VARINT_MAX]);
    config.initial_rtt = input.pick(&[10 * MS, MS / 10, 3000 * MS]);
    let mut mirror = Mirror {
        recv_window: config.recv_window,
        session: Session::new(config, Time::ZERO),
        is_tame,
        received: BTreeMap::new(),
        now: Time::ZERO,
        packet_number: 0,
        slots: 0,
        stream: StreamId::new(role, 0),
    };
    let mut steps = 0;
    while !input.is_empty() && steps < STEPS_MAX {
        steps += 1;
        mirror.step(input);
        mirror.settle();
    }
}

/// Any block; mostly one of the first.
fn block(input: &mut Input<'_>) -> u64 {
    match input.rarely(32) {
        true => input.any() & VARINT_MAX,
        false => input.below(24),
    }
}

impl Mirror {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.submit(),
            2 => self.symbol(input),
            3 => self.blocks(input),
            4 | 5 => self.symbols(input),
            6 => self.now += input.below(300) * MS + 1,
            _ if self.is_tame => self.symbols(input),
            _ => {
                let len = usize::from(input.byte());
                let body = input.take(len).to_vec();
                self.control(&body);
            }
        }
    }

    fn meta(&mut self, len: usize, ecn: u8) -> PacketMeta {
        // Now and then one packet number is missing, or several are.
        self.packet_number += 1 + u64::from(ecn >> 2);
        PacketMeta {
            now: self.now,
            received_at: self.now,
            packet_number: PacketNumber::new(self.packet_number),
            tuple: place(0),
            ecn: ecn & 3,
            datagram_len: len + 38,
        }
    }

    fn submit(&mut self) {
        let shape = self.session.block_shape(1);
        let room = (self.session).room_for(self.stream, Urgency::default(), shape);
        if room != Room::Whole {
            return;
        }
        let mut parts = [StreamPart {
            stream: self.stream,
            bytes: u32::from(shape.0) * u32::from(shape.1) - 32,
            end_of_stream: false,
            cost: 0,
        }];
        self.slots += 1;
        let how = (false, Urgency::default());
        self.session
            .submit(Slot(self.slots), shape, how, &mut parts);
    }

    fn symbol(&mut self, input: &mut Input<'_>) {
        let (own, own_len) = self.session.block_shape(1);
        let (n, len) = match self.is_tame {
            true => (own, own_len),
            false => (
                input.pick(&[own, own, own, 1, 7, 1024]),
                input.pick(&[own_len, 100, 1]),
            ),
        };
        let len = usize::from(len);
        let (code, row) = match input.byte() {
            kind if kind < 0x90 || self.is_tame => {
                (CodeId::SOURCE, u32::from(input.byte()) % u32::from(n))
            }
            _ => (input.byte() & 7, input.number(3) as u32),
        };
        let meta = self.meta(len, input.byte());
        let header = Header {
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: input.rarely(8),
            cid: cid(8),
            packet_number: meta.packet_number.truncated(),
            block: BlockId::new(block(input)).truncated(),
            code,
            n,
            row,
        };
        let received = self.session.handle_packet(&meta, &header, &vec![7; len]);
        let Received::Symbol(placement) = received else {
            return;
        };
        if let Placement::Block {
            slot,
            n,
            symbol_len,
            ..
        } = placement
        {
            let bytes = u64::from(n) * u64::from(symbol_len);
            self.received.insert(slot, bytes);
            let all: u64 = self.received.values().sum();
            assert!(all <= self.recv_window, "more than the window allows");
        }
    }

    fn counts(input: &mut Input<'_>) -> PaperCounts {
        PaperCounts {
            ect: input.any() & VARINT_MAX,
            ce: input.any() & VARINT_MAX,
            credit: input.pick(&[4 << 20, 0, VARINT_MAX]),
        }
    }

    fn blocks(&mut self, input: &mut Input<'_>) {
        let counts = Self::counts(input);
        let loss = input.rarely(2).then(|| {
            let of = 1 + input.number(2) as u32;
            LossReport {
                period: input.any() & (VARINT_MAX >> 1),
                lost: input.number(2) as u32 % (of + 1),
                of,
            }
        });
        let base = block(input);
        let first = base + 1 + input.below(8);
        let range = (BlockId::new(first), BlockId::new(first + input.below(8)));
        let sack = BlockSack {
            counts,
            loss,
            base: BlockId::new(base),
            decoded: match input.rarely(2) && range.1.get() <= VARINT_MAX {
                true => vec![range],
                false => Vec::new(),
            },
        };
        self.say(&Frame::PaperBlocks(sack));
    }

    fn symbols(&mut self, input: &mut Input<'_>) {
        let (own, _) = self.session.block_shape(1);
        let mut named = |block| {
            let n = input.pick(&[own, own, own, 1, 1024]);
            let mut recovered = vec![input.byte(); usize::from(n).div_ceil(8)];
            if let (Some(last), 1..) = (recovered.last_mut(), n % 8) {
                *last &= (1 << (n % 8)) - 1;
            }
            NamedBlock {
                block: BlockId::new(block),
                n,
                recovered,
            }
        };
        let mut unrecovered = vec![named(0), named(1), named(3)];
        let mut latest = named(0);
        let at = block(input);
        latest.block = BlockId::new(at);
        let upto = at - input.below(at.min(255) + 1);
        unrecovered.retain(|named| named.block.get() < upto);
        unrecovered.truncate(input.below(4) as usize);
        let sack = SymbolSack {
            counts: Self::counts(input),
            latest,
            upto: BlockId::new(upto),
            unrecovered,
        };
        self.say(&Frame::PaperSymbols(sack));
    }

    fn say(&mut self, frame: &Frame<'_>) {
        let mut body = Vec::new();
        frame.encode(&mut body);
        self.control(&body);
    }

    fn control(&mut self, body: &[u8]) {
        let meta = self.meta(body.len(), 0);
        let header = Header::control(cid(8), meta.packet_number, false);
        self.session.handle_packet(&meta, &header, body);
    }

    /// What a driver does after every input.
    fn settle(&mut self) {
        while let Some(job) = self.session.poll_job() {
            self.session.job_done(job.id);
        }
        while self.session.poll_event().is_some() {}
        let mut left = PACKETS_MAX;
        while self.session.poll_transmit(self.now).is_some() {
            left -= 1;
            assert!(left > 0, "there is no end to what leaves");
        }
        let mut looks = 0;
        while self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
            while self.session.poll_transmit(self.now).is_some() {
                left -= 1;
                assert!(left > 0, "there is no end to what leaves");
            }
            looks += 1;
            assert!(looks < TIMERS_MAX, "a timer is due for ever");
        }
    }
}
