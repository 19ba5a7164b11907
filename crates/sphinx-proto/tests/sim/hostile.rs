//! A peer with the right keys and bad intentions: whatever it says costs bounded memory and work.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sphinx_fec::{CodeId, Row, RowMaker, lt};
use sphinx_proto::wire::{
    Blocks, ConnectionId, Frame, Header, OVERHEAD, PacketKind, Sack, Streams, block_symbols_max,
};
use sphinx_proto::{
    BASE_DATAGRAM, BlockId, CidSequence, Config, ConnectionIds, Content, Event, Nanos, PacketMeta,
    PacketNumber, PathId, Placement, Profile, Received, Role, Session, Slot, StreamId, StreamPart,
    Time, Tuple, Urgency, block_cost,
};
use sphinx_sim::{MS, Rng, SEC};

const WINDOW: u64 = 4 << 20;

/// Where the attacker is.
const TUPLE: Tuple = Tuple {
    remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
    local_ip: None,
};

/// A server under attack, and what the attacker has seen of it.
struct Victim {
    session: Session,
    now: Time,
    next_pn: u64,
    packets_sent: u64,
    /// Number of the newest packet.
    newest: u64,
    symbols_sent: u64,
    /// What the driver gives the session, if it gives any.
    random: Option<Rng>,
    violation: Option<&'static str>,
    is_stalled: bool,
}

impl Victim {
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// One that is told something else at its beginning.
    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let ids = ConnectionIds {
            local: ConnectionId::new([8; 8]).expect("not zero"),
            peer: ConnectionId::new([9; 8]).expect("not zero"),
        };
        let mut config = Config::new(Role::Server, TUPLE, ids);
        config.profile = Profile::Latency;
        config.initial_rtt = 10 * MS;
        config.recv_window = WINDOW;
        config.send_window = WINDOW;
        config.peer_window = WINDOW;
        config.mtu_candidates = vec![1472];
        config.peer_datagram_max = 1472;
        change(&mut config);
        Self {
            session: Session::new(config, Time::ZERO),
            now: Time::ZERO,
            next_pn: 0,
            packets_sent: 0,
            newest: 0,
            symbols_sent: 0,
            random: None,
            violation: None,
            is_stalled: false,
        }
    }

    fn meta(&mut self, len: usize) -> PacketMeta {
        self.next_pn += 1;
        PacketMeta {
            now: self.now,
            received_at: self.now,
            packet_number: PacketNumber::new(self.next_pn),
            tuple: TUPLE,
            ecn: 0,
            datagram_len: len,
        }
    }

    fn control(&mut self, frames: &[Frame<'_>]) {
        let mut body = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut body));
        self.body(&body);
    }

    fn body(&mut self, body: &[u8]) {
        let meta = self.meta(body.len());
        self.control_body(&meta, body);
        self.drain();
    }

    fn control_body(&mut self, meta: &PacketMeta, body: &[u8]) {
        let cid = ConnectionId::new([8; 8]).expect("not zero");
        self.control_body_to(cid, meta, body);
    }

    /// The same in a packet with this connection id.
    fn control_body_to(&mut self, cid: ConnectionId, meta: &PacketMeta, body: &[u8]) {
        let header = Header::control(cid, meta.packet_number, false);
        let received = self.session.handle_packet(meta, &header, body);
        assert_eq!(received, Received::Nothing);
    }

    fn symbol(&mut self, block: u32, n: u16, code: u8, row: u32, len: usize) -> Placement {
        let meta = self.meta(len);
        let header = Header {
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: false,
            cid: ConnectionId::new([9; 8]).expect("not zero"),
            packet_number: meta.packet_number.truncated(),
            block,
            code,
            n,
            row,
        };
        let received = self.session.handle_packet(&meta, &header, &vec![0; len]);
        self.drain();
        match received {
            Received::Symbol(placement) => placement,
            _ => Placement::Discard,
        }
    }

    /// Runs everything that is due; an application that takes everything at once.
    fn drain(&mut self) {
        if self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
        }
        while let Some(job) = self.session.poll_job() {
            self.session.job_done(job.id);
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::BlockComplete { block, slot } => {
                    let mut parts = [part(Role::Client, block.get() % 7)];
                    let session = &mut self.session;
                    if session.block_unpacked(self.now, slot, &mut parts) {
                        session.taken(self.now, parts[0].stream, parts[0].cost);
                    }
                }
                Event::Violation(what) => self.violation = Some(what),
                Event::Stalled { .. } => self.is_stalled = true,
                _ => {}
            }
        }
        if let Some(random) = &mut self.random {
            for _ in 0..self.session.random_wanted() {
                self.session.add_random(random.word().to_be_bytes());
            }
        }
        while let Some(transmit) = self.session.poll_transmit(self.now) {
            self.packets_sent += 1;
            self.newest = transmit.packet_number.get();
            if !matches!(transmit.content, Content::Control(_)) {
                self.symbols_sent += 1;
            }
            assert!(transmit.body_len + OVERHEAD <= 1472);
        }
    }

    fn wait(&mut self, time: Nanos) {
        let until = self.now + time;
        while let Some(at) = self.session.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at) + 1;
            self.drain();
        }
        self.now = self.now.max(until);
        self.drain();
    }

    /// Hands a block over, if it may.
    fn submit(&mut self, slot: Slot, shape: (u16, u16), tail: bool) {
        let mut parts = [part(Role::Server, 0)];
        if self
            .session
            .can_submit(shape, Urgency::default(), &mut parts)
        {
            self.session
                .submit(slot, shape, (tail, Urgency::default()), &mut parts);
        }
    }

    fn submit_blocks(&mut self, count: u32, n: u16) {
        for i in 0..count {
            self.submit(Slot(i), (n, 1000), false);
        }
        self.wait(50 * MS);
    }
}

/// A piece of one of an end's streams.
fn part(opener: Role, index: u64) -> StreamPart {
    StreamPart {
        stream: StreamId::new(opener, index),
        bytes: 1000,
        end_of_stream: false,
        cost: 0,
    }
}

fn sack(low: u64, high: u64) -> Frame<'static> {
    Frame::Sack(Sack {
        sequence: 0,
        credit: u64::MAX,
        delay_us: u64::MAX,
        time_us: u64::MAX,
        ect: u64::MAX,
        ce: u64::MAX,
        ranges: vec![(PacketNumber::new(low), PacketNumber::new(high))],
    })
}

#[test]
fn acknowledging_what_was_never_sent_ends_the_session() {
    let mut victim = Victim::new();
    victim.submit_blocks(4, 20);
    victim.control(&[sack(0, 1 << 40)]);
    assert!(victim.session.poll_event().is_none());
    victim.wait(SEC);
    assert!(victim.session.is_finished());
}

#[test]
fn ignorable_frames_change_nothing() {
    let mut victim = Victim::new();
    victim.submit_blocks(1, 20);
    let newest = victim.packets_sent - 1;
    let mut body = vec![0x2a, 3, 1, 2, 3];
    sack(0, newest).encode(&mut body);
    body.extend([0x3f, 0]);
    victim.body(&body);
    assert_eq!(
        victim.session.largest_acked(PathId::FIRST),
        Some(PacketNumber::new(newest))
    );
    // They are not acknowledged for their own sake, as a PING is.
    victim.wait(SEC);
    let before = victim.packets_sent;
    victim.body(&[0x2a, 1, 7]);
    assert_eq!(victim.packets_sent, before);
    victim.body(&[0x2a, 1, 7, 1]);
    assert_eq!(victim.packets_sent, before + 1);
}

#[test]
fn other_unknown_frames_and_cut_ones_end_the_session() {
    for body in [&[0x1f, 0][..], &[0x40], &[0x2a], &[0x2a, 2, 7]] {
        let mut victim = Victim::new();
        victim.body(body);
        victim.wait(SEC);
        assert!(victim.session.is_finished(), "{body:?}");
    }
}

#[test]
fn paths_that_do_not_exist_end_the_session() {
    let path_sack = Frame::PathSack {
        path: PathId::new(1),
        sack: Sack {
            ranges: vec![(PacketNumber::ZERO, PacketNumber::ZERO)],
            ..Sack::default()
        },
    };
    let new_id = Frame::NewConnectionId {
        path: PathId::new(1),
        sequence: CidSequence::new(1),
        cid: ConnectionId::new([7; 8]).expect("not zero"),
    };
    for frame in [path_sack, new_id] {
        let mut victim = Victim::new();
        victim.submit_blocks(1, 20);
        victim.control(&[frame]);
        assert_eq!(victim.violation, Some("a path that does not exist"),);
        victim.wait(SEC);
        assert!(victim.session.is_finished());
    }
}

/// A receiver that acknowledges everything at once, whatever arrives, would have a sender flood the path, or whoever has
/// the address that the packets go to.
#[test]
fn acknowledging_what_has_not_arrived_ends_the_session() {
    for seed in 0..50 {
        let mut victim = Victim::new();
        victim.random = Some(Rng::new(seed));
        victim.submit_blocks(200, 20);
        while victim.violation.is_none() {
            let newest = victim.newest;
            victim.control(&[sack(0, newest)]);
            victim.wait(MS);
            assert!(victim.packets_sent < 500, "seed {seed}");
        }
        assert_eq!(victim.violation, Some("acknowledged a packet never sent"));
        let symbols = victim.symbols_sent;
        victim.wait(SEC);
        assert!(victim.session.is_finished() && victim.symbols_sent == symbols);
    }
}

/// Paths are opened and abandoned, again and again, and the peer acknowledges nothing: of each it would have to be told for ever.
#[test]
fn frames_that_are_never_acknowledged_end_the_session() {
    let mut victim = Victim::with(|config| config.paths_max = 8);
    victim.random = Some(Rng::new(1));
    let (mut given, mut ids) = (0_u64, BTreeMap::new());
    for path in (1..200_000).map(PathId::new) {
        while victim.session.connection_ids_wanted() > 0 {
            given += 1;
            let cid = (given | 1 << 63).to_be_bytes();
            let cid = ConnectionId::new(cid).expect("not zero");
            victim.session.add_connection_id(cid, None);
            ids.insert(victim.session.path_of_cid(cid), cid);
        }
        victim.control(&[Frame::NewConnectionId {
            path,
            sequence: CidSequence::ZERO,
            cid: ConnectionId::new([7; 8]).expect("not zero"),
        }]);
        let meta = victim.meta(BASE_DATAGRAM.into());
        let cid = ids.remove(&Some(path)).expect("given out");
        victim.control_body_to(cid, &meta, &[1]);
        victim.drain();
        let paths = victim.session.path_stats().len();
        victim.control(&[Frame::PathAbandon { path }]);
        if path.get() % 256 == 0 {
            victim.wait(MS);
        }
        if victim.is_stalled {
            break;
        }
        assert_eq!(paths, 2);
    }
    assert!(victim.is_stalled && victim.violation.is_none());
    victim.wait(SEC);
    assert!(victim.session.is_finished());
}

#[test]
fn absurd_deficits_cost_a_bounded_number_of_rows() {
    let mut victim = Victim::new();
    victim.submit_blocks(1, 20);
    for round in 0..20_000 {
        let pn = victim.packets_sent - 1;
        let blocks = Blocks {
            base: BlockId::ZERO,
            complete: Vec::new(),
            deficits: (0..64).map(|i| (BlockId::new(i), u32::MAX)).collect(),
        };
        victim.control(&[Frame::Blocks(blocks), sack(0, pn)]);
        victim.wait(MS * (round % 3));
    }
    assert!(victim.symbols_sent < 5000, "{}", victim.symbols_sent);
}

#[test]
fn completing_what_was_never_sent_frees_it_and_no_more() {
    let mut victim = Victim::new();
    for i in 0..20 {
        let mut parts = [part(Role::Server, 0)];
        victim.session.submit(
            Slot(i),
            (256, 1000),
            (false, Urgency::default()),
            &mut parts,
        );
    }
    let blocks = |base, complete| {
        Frame::Blocks(Blocks {
            base,
            complete,
            deficits: Vec::new(),
        })
    };
    victim.control(&[blocks(
        BlockId::ZERO,
        vec![
            (BlockId::new(3), BlockId::new(5)),
            (BlockId::new(7), BlockId::new(1 << 60)),
        ],
    )]);
    victim.control(&[blocks(BlockId::new(1 << 61), Vec::new())]);
    let stream = StreamId::new(Role::Server, 0);
    assert!(victim.session.stream_delivered(stream));
    victim.wait(SEC);
    assert_eq!(victim.session.stats().blocks, 20);
}

#[test]
fn blocks_without_end_stop_at_the_window() {
    let mut victim = Victim::new();
    let mut slots = std::collections::BTreeSet::new();
    for block in 0..100_000 {
        // Never complete: one symbol of two.
        if let Placement::Block { slot, .. } = victim.symbol(block, 2, 0, 0, 1) {
            slots.insert(slot);
        }
    }
    assert!(slots.len() as u64 <= WINDOW / 514);
    assert!(victim.session.stats().packets_refused > 80_000);
}

#[test]
fn repairs_of_large_blocks_of_tiny_symbols_are_bounded() {
    let mut victim = Victim::new();
    let mut coefficients = 0;
    for block in 0..500 {
        for row in 0..100 {
            for (code, n, len) in [(1, 32, 1), (2, 32, 1), (1, 1024, 512), (1, 1024, 511)] {
                let placement = victim.symbol(block, n, code, row << 12 | row, len);
                if let Placement::Block { n, .. } = placement {
                    coefficients += u64::from(n);
                }
            }
        }
    }
    assert!(coefficients <= 2 * WINDOW, "{coefficients} bytes");
}

/// Rows of `lt` wait to be peeled where a source symbol has come before them, and their seeds are the peer's choice.
#[test]
fn rows_that_wait_behind_a_source_symbol_are_bounded() {
    let mut victim = Victim::new();
    let (n, len) = (48_u16, 24);
    let mut maker = RowMaker::new();
    let mut degree = |row: Row| {
        let terms = maker.terms(CodeId::Lt, usize::from(n), row);
        terms.map_or(0, |terms| terms.len() as u64)
    };
    // With these constants a tenth of the rows have all symbols.
    let rows: Vec<(Row, u64)> = (0..1000)
        .map(|seed| lt::Shape::nearest(0.01, 0.01).row(seed))
        .map(|row| (row, degree(row)))
        .filter(|(_, degree)| *degree >= u64::from(n) / 2)
        .take(usize::from(n))
        .collect();
    assert_eq!(rows.len(), usize::from(n));
    let (mut blocks, mut members) = (0, 0);
    for block in 0..1000 {
        let first = victim.symbol(block, n, 0, 0, len);
        blocks += u64::from(matches!(first, Placement::Block { .. }));
        for (row, degree) in &rows {
            let placement = victim.symbol(block, n, CodeId::Lt.to_wire(), row.number(), len);
            if let Placement::Block { .. } = placement {
                members += degree;
            }
        }
    }
    assert_eq!(blocks, 1000);
    // Twice what the blocks cost, with eight bytes for each member.
    let cost = block_cost(n, len as u16);
    assert!(8 * members <= 2 * blocks * cost, "{members} members");
}

#[test]
fn transforms_out_of_proportion_are_refused() {
    let mut victim = Victim::new();
    let transform = CodeId::FftRs.to_wire();
    // 8 rows are the most for 2 symbols; symbols are even; there is no row 2 of 2.
    for (row, len) in [
        (4 << 16, 1000),
        (15 << 16, 1000),
        (1 << 16, 999),
        (1 << 16 | 2, 1000),
    ] {
        let placement = victim.symbol(row + len as u32, 2, transform, row, len);
        assert_eq!(placement, Placement::Discard);
    }
    assert_eq!(victim.session.stats().packets_refused, 4);
}

#[test]
fn transforms_and_other_repairs_are_not_mixed() {
    let (transform, rlc) = (CodeId::FftRs.to_wire(), CodeId::Rlc.to_wire());
    for (block, codes) in [[transform, rlc], [rlc, transform]].into_iter().enumerate() {
        let mut victim = Victim::new();
        let mut place = |code| {
            let row = u32::from(code == transform) << 16;
            victim.symbol(block as u32, 3, code, row, 1000)
        };
        assert!(matches!(place(codes[0]), Placement::Block { .. }));
        assert_eq!(place(codes[1]), Placement::Discard);
    }
}

#[test]
fn an_unknown_code_ends_the_session() {
    let mut victim = Victim::new();
    victim.symbol(0, 2, 63, 0, 1000);
    victim.wait(SEC);
    assert!(victim.session.is_finished());
}

#[test]
fn every_second_block_is_completed() {
    let mut victim = Victim::new();
    for block in 0..200_000 {
        victim.symbol(2 * block + 1, 1, 0, 0, 1);
    }
    assert!(victim.session.stats().packets_refused > 150_000);
}

#[test]
fn nothing_is_ever_acknowledged() {
    let mut victim = Victim::new();
    victim.submit_blocks(50, 100);
    for i in 0..200_000u32 {
        victim.symbol(i, 1, 0, 0, 1);
        victim.wait(100_000);
    }
    // Probes back off; SACKs keep their distance.
    assert!(victim.symbols_sent < 2000, "{}", victim.symbols_sent);
}

/// Random frames and symbols, half of them plausible.
#[test]
fn anything() {
    for seed in 0..60 {
        let rng = &mut Rng::new(seed);
        let mut victim = Victim::new();
        for _ in 0..2000 {
            let small = |rng: &mut Rng| {
                let bits = rng.below(62);
                rng.word() & ((1 << bits) - 1)
            };
            match rng.below(7) {
                0 => {
                    let high = rng.below(victim.packets_sent.max(1));
                    let low = high - small(rng).min(high);
                    victim.control(&[sack(low, high)]);
                }
                1 => {
                    let base = rng.below(40);
                    let low = base + 1 + small(rng) % 100;
                    let blocks = Blocks {
                        base: BlockId::new(base),
                        complete: vec![(BlockId::new(low), BlockId::new(low + small(rng) % 1000))],
                        deficits: vec![(BlockId::new(base + rng.below(30)), small(rng) as u32)],
                    };
                    let streams = Streams {
                        kind: if rng.chance(0.001) {
                            rng.below(4) as u8
                        } else {
                            3
                        },
                        base: rng.below(2),
                        ended: vec![(low, low + small(rng) % 10)],
                        taken: vec![(2, small(rng)), (3 + base, small(rng))],
                    };
                    victim.control(&[Frame::Blocks(blocks), Frame::Streams(streams)]);
                }
                2 => {
                    let body: Vec<u8> = (0..rng.below(60)).map(|_| rng.word() as u8 % 10).collect();
                    let meta = victim.meta(body.len());
                    if rng.chance(0.02) {
                        victim.control_body(&meta, &body);
                    }
                    victim.drain();
                }
                3 => victim.control(&[Frame::PathChallenge([1; 8]), Frame::Ping]),
                4 => {
                    let (n, shape) = (rng.pick(&[1, 2, 50, 1024]), rng.within(1, 1400) as u16);
                    let n = n.min(block_symbols_max(usize::from(shape)) as u16);
                    victim.submit(Slot(0), (n, shape), rng.chance(0.5));
                }
                _ => {
                    let block = small(rng) as u32;
                    let n = rng.pick(&[1, 1, 3, 60, 1024]);
                    let code = rng.below(4) as u8;
                    let row = small(rng) as u32 & 0xff_ffff;
                    victim.symbol(block, n, code, row, rng.within(0, 1400) as usize);
                }
            }
            victim.wait(rng.below(3 * MS));
        }
    }
}
