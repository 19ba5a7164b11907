//! A session of generations in a bounded buffer against an authenticated peer that says anything.

use std::collections::BTreeMap;

use sphinx_fec::generation::{GENERATION_MAX, Generation};
use sphinx_fec::{Added, CodeId, RowMaker};
use sphinx_proto::wire::{
    Frame, FrameIter, Header, PacketKind, Sack, SymbolId, VARINT_MAX, Warning,
};
use sphinx_proto::{
    BlockId, Config, ConnectionIds, Event, Nanos, PacketMeta, PacketNumber, Placement, Received,
    Role, Room, Sc, Session, Slot, StreamId, StreamPart, Time, Urgency, symbol_cost,
};

use crate::Input;
use crate::session::{cid, place};

const MS: Nanos = 1_000_000;
const STEPS_MAX: u32 = 200;
/// Packets that leave at one point in time before the session counts as stuck.
const PACKETS_MAX: u32 = 100_000;

/// What a driver holds of what has arrived.
struct Mirror {
    session: Session,
    rows: RowMaker,
    generations: BTreeMap<BlockId, Generation<[u8; 0]>>,
    /// Costs of what is stored.
    stored: u64,
    lens: BTreeMap<BlockId, u16>,
    buffer: u64,
    next: BlockId,
    now: Time,
    packet_number: u64,
    slots: u32,
    /// The stream that it sends on.
    stream: StreamId,
}

/// Whatever arrives: what is stored stays within the buffer, each symbol that is stored is of use, what is in order is there and comes once, and
/// there is an end to what leaves.
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
    let role = input.pick(&[Role::Server, Role::Client]);
    let mut config = Config::new(role, place(0), ids);
    config.sc = Some(input.pick(&[Sc::Systematic, Sc::Rlnc, Sc::MinRtt, Sc::Ecf]));
    config.recv_window = input.pick(&[16 << 10, 700, 1 << 20]);
    config.peer_window = input.pick(&[16 << 10, 1 << 20, 0, VARINT_MAX]);
    config.initial_rtt = input.pick(&[10 * MS, MS / 10, 3000 * MS]);
    let mut mirror = Mirror {
        buffer: config.recv_window,
        session: Session::new(config, Time::ZERO),
        rows: RowMaker::new(),
        generations: BTreeMap::new(),
        stored: 0,
        lens: BTreeMap::new(),
        next: BlockId::ZERO,
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

impl Mirror {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..3 => self.symbol(input),
            3 => self.warning(input),
            4 => self.submit(input),
            5 => self.sack(input),
            6 => self.now += input.below(300) * MS + 1,
            _ => {
                let len = usize::from(input.byte());
                let body = input.take(len).to_vec();
                self.control(&body);
            }
        }
    }

    fn meta(&mut self, len: usize) -> PacketMeta {
        self.packet_number += 1;
        PacketMeta {
            now: self.now,
            received_at: self.now,
            packet_number: PacketNumber::new(self.packet_number),
            tuple: place(0),
            ecn: 0,
            datagram_len: len + 38,
        }
    }

    fn symbol(&mut self, input: &mut Input<'_>) {
        let block = self.next.get() + input.below(6);
        let n = input.pick(&[1, 2, 4, 16, 64, 65, 1024]);
        let len = usize::from(input.pick(&[4_u16, 100, 700, 1400]));
        let (code, row) = match input.byte() {
            0..0x90 => (CodeId::SOURCE, u32::from(input.byte()) % 70),
            0x90..0xf0 => (
                CodeId::Rlc.to_wire(),
                (u32::from(input.byte()) % 70) << 18 | u32::from(input.byte()),
            ),
            _ => (input.byte() & 7, input.number(3) as u32),
        };
        let meta = self.meta(len);
        let header = Header {
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: input.rarely(8),
            cid: cid(8),
            packet_number: meta.packet_number.truncated(),
            block: BlockId::new(block).truncated(),
            code,
            n,
            row,
        };
        let body = vec![7; len];
        let received = self.session.handle_packet(&meta, &header, &body);
        if let Received::Symbol(Placement::Generation {
            block,
            n,
            symbol_len,
            symbol,
        }) = received
        {
            self.store(block, n, symbol_len, symbol);
        } else {
            let is_nothing = matches!(
                received,
                Received::Nothing | Received::Symbol(Placement::Discard)
            );
            assert!(is_nothing, "{received:?}");
        }
        while let Some(in_order) = self.session.next_in_order() {
            assert_eq!(in_order.block, self.next, "in the order of their ids");
            let generation = self.generations.get_mut(&in_order.block);
            let generation = generation.expect("it has begun");
            let len = self.lens[&in_order.block];
            while generation.taken() < usize::from(in_order.upto) {
                generation.take().expect("in order");
                self.stored -= symbol_cost(len);
                // An application takes it at once.
                self.session.nothing_in_order(len);
            }
            if in_order.is_whole {
                assert!(generation.is_whole() && generation.held() == 0);
                self.generations.remove(&in_order.block);
                self.lens.remove(&in_order.block);
                self.next += 1;
            }
        }
    }

    fn store(&mut self, block: BlockId, n: u16, symbol_len: u16, symbol: SymbolId) {
        assert!(usize::from(n) <= GENERATION_MAX);
        let new = || Generation::new(usize::from(n)).expect("a size");
        let generation = self.generations.entry(block).or_insert_with(new);
        let added = match symbol {
            SymbolId::Source(index) => generation.add_source(usize::from(index), []),
            SymbolId::Repair(_, row) => generation.add_row(&mut self.rows, row, []),
        };
        assert_eq!(added, Added::Innovative);
        assert_eq!(*self.lens.entry(block).or_insert(symbol_len), symbol_len);
        self.stored += symbol_cost(symbol_len);
        assert!(self.stored <= self.buffer, "more than the buffer holds");
    }

    fn warning(&mut self, input: &mut Input<'_>) {
        let warning = Warning {
            block: BlockId::new(input.below(8)),
            first: input.any() & VARINT_MAX,
            deficit: input.any() & VARINT_MAX,
            free: input.any() & VARINT_MAX,
        };
        let mut body = Vec::new();
        Frame::Warning(warning).encode(&mut body);
        self.control(&body);
    }

    /// What has left has arrived, or some of it.
    fn sack(&mut self, input: &mut Input<'_>) {
        let Some(largest) = self.session.stats().packets_sent.checked_sub(1) else {
            return;
        };
        let first = input.below(largest + 1);
        let sack = Sack {
            sequence: self.packet_number,
            credit: input.any() & VARINT_MAX,
            ranges: vec![(PacketNumber::new(first), PacketNumber::new(largest))],
            ..Sack::default()
        };
        let mut body = Vec::new();
        Frame::Sack(sack).encode(&mut body);
        self.control(&body);
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let n = 1 + input.below(64) as u16;
        let shape = (n, input.pick(&[32, 64, 1100]));
        if self
            .session
            .room_for(self.stream, Urgency::default(), shape)
            != Room::Whole
        {
            return;
        }
        let mut parts = [StreamPart {
            stream: self.stream,
            bytes: u32::from(n) * u32::from(shape.1),
            end_of_stream: false,
            cost: 0,
        }];
        self.slots += 1;
        let how = (false, Urgency::default());
        self.session
            .submit(Slot(self.slots), shape, how, &mut parts);
    }

    fn control(&mut self, body: &[u8]) {
        // What an end is asked to forget of blocks is for the driver of other sessions.
        if FrameIter::new(body)
            .flatten()
            .any(|frame| matches!(frame, Frame::NewConnectionId { .. }))
        {
            return;
        }
        let meta = self.meta(body.len());
        let header = Header::control(cid(8), meta.packet_number, false);
        let received = self.session.handle_packet(&meta, &header, body);
        assert_eq!(received, Received::Nothing);
    }

    /// What a driver does after every input.
    fn settle(&mut self) {
        assert!(
            self.session.poll_job().is_none(),
            "generations need no jobs"
        );
        while let Some(event) = self.session.poll_event() {
            let is_complete = matches!(event, Event::BlockComplete { .. });
            assert!(!is_complete, "generations are given out in order");
        }
        if self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
        }
        for _ in 0..PACKETS_MAX {
            if self.session.poll_transmit(self.now).is_none() {
                return;
            }
        }
        panic!("there is no end to what leaves");
    }
}
