//! ICM: when losses are compensated.

use crate::BlockId;

use super::*;
use crate::blocks::TxBlock;
use crate::cc::CcKind;
use crate::config::{ConnectionIds, Icm, Role};
use crate::path::Carried;
use crate::types::{RepairMode, Tuple, block_cost};
use crate::wire::{ConnectionId, Sack};

const MS: Nanos = 1_000_000;
const RTT: Nanos = 10 * MS;

/// A sender of blocks of ten symbols, and the packets that the peer has.
struct Bench {
    sender: Sender,
    control: ControlQueue,
    path: Path,
    now: Time,
    /// With the time of sending.
    arrived: Vec<(PacketNumber, Time)>,
    repairs: Vec<(Time, BlockId, bool)>,
}

impl Bench {
    fn new(icm: Icm, code: CodeId, blocks: u32) -> Self {
        let tuple = Tuple {
            remote: ([10, 0, 0, 1], 1).into(),
            local_ip: None,
        };
        let cid = ConnectionId::new([1; 8]).expect("not zero");
        let ids = ConnectionIds {
            local: cid,
            peer: cid,
        };
        let mut config = Config::new(Role::Client, tuple, ids);
        config.code = Some(code);
        config.icm = icm;
        config.cc = CcKind::Fixed(10_000_000);
        config.initial_rtt = RTT;
        config.peer_window = 1 << 30;
        let mut sender = Sender::new(&config);
        let part = StreamPart {
            stream: StreamId::new(Role::Client, 0),
            bytes: 10_000,
            end_of_stream: false,
            cost: block_cost(10, 1000),
        };
        for slot in 0..blocks {
            sender.submit(
                Slot(slot),
                (10, 1000),
                (false, Urgency::default()),
                &[part],
                false,
            );
        }
        Self {
            sender,
            control: ControlQueue::default(),
            path: Path::new(&config, Time::ZERO),
            now: Time::ZERO,
            arrived: Vec::new(),
            repairs: Vec::new(),
        }
    }

    fn parts(&mut self) -> (&mut Path, Carriage<'_>) {
        let carriage = Carriage {
            path: crate::path::PATH,
            horizon: self.path.horizon(self.now),
            sender: &mut self.sender,
            control: &mut self.control,
        };
        (&mut self.path, carriage)
    }

    /// Sends a packet every 100 µs; those in `lost` (counted from here) do not arrive.
    fn send(&mut self, count: u64, lost: &[u64]) {
        for index in 0..count {
            let Some(choice) = self.sender.next_symbol(self.now, &self.path) else {
                return;
            };
            if choice.round > 0 {
                let original = choice.symbol.source().is_some();
                self.repairs.push((self.now, choice.sequence, original));
            }
            if !lost.contains(&index) {
                self.arrived.push((self.path.next_pn(), self.now));
            }
            self.sender.note_sent(self.now, &choice);
            let carried = Carried::Symbol {
                block: choice.sequence,
                round: choice.round,
                symbol: choice.symbol,
            };
            self.path.record(self.now, 1100, carried);
            self.now += MS / 10;
        }
    }

    /// The peer reports everything that arrived so far.
    fn sack(&mut self) {
        self.report(self.now);
    }

    /// The peer reports what was sent until then and arrived.
    fn report(&mut self, until: Time) {
        let known = self.arrived.iter().filter(|(_, sent_at)| *sent_at <= until);
        let ranges = known.rev().map(|(pn, _)| (*pn, *pn)).collect();
        let sack = Sack {
            time_us: self.now.as_nanos() / 1000,
            ranges,
            ..Sack::default()
        };
        let now = self.now;
        let (path, mut carriage) = self.parts();
        assert!(path.on_sack(now, &sack, &mut carriage));
        self.sender.on_feedback(now, &self.path);
    }

    fn timeout(&self) -> Option<Time> {
        self.sender.timeout(&self.path, Company::default())
    }

    fn on_timeout(&mut self) -> u32 {
        let now = self.now;
        let (path, mut carriage) = self.parts();
        carriage.on_timeout(path, now, Company::default())
    }

    fn block_deadline(&self) -> Option<Time> {
        let wait = self.path.probe_wait();
        let sender = &self.sender;
        sender
            .compensation
            .deadline(&sender.blocks, sender.redundancy, wait)
    }

    fn due(&self, sequence: BlockId) -> u32 {
        self.sender.blocks.get(sequence).map_or(0, TxBlock::due)
    }
}

#[test]
fn default_compensates_what_is_lost_at_once() {
    let mut bench = Bench::new(Icm::Default, CodeId::Rlc, 4);
    bench.send(6, &[1]);
    bench.now += RTT;
    bench.sack();
    assert!(bench.due(BlockId::ZERO) > 0);
}

#[test]
fn paper_waits_for_more_than_two_blocks_and_three_symbols() {
    let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 8);
    bench.send(10, &[1, 4]);
    bench.send(10, &[2]);
    bench.now += RTT;
    bench.sack();
    assert_eq!(
        (bench.due(BlockId::ZERO), bench.due(BlockId::new(1))),
        (0, 0),
        "two blocks"
    );
    bench.send(3, &[]);
    bench.sack();
    assert_eq!(
        (bench.due(BlockId::ZERO), bench.due(BlockId::new(1))),
        (0, 0),
        "three symbols"
    );
    bench.send(1, &[]);
    bench.sack();
    assert!(bench.due(BlockId::ZERO) >= 2 && bench.due(BlockId::new(1)) >= 1);
    // Lost originals go first, the rest is repair.
    bench.send(6, &[]);
    let kinds: Vec<_> = bench.repairs.iter().map(|r| (r.1, r.2)).collect();
    assert_eq!(kinds[..2], [(BlockId::ZERO, true); 2]);
    assert!(kinds.contains(&(BlockId::new(1), true)), "{kinds:?}");
}

#[test]
fn paper_is_damped_to_once_per_round_trip() {
    let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 40);
    bench.send(10, &[1]);
    bench.send(10, &[1]);
    bench.send(4, &[]);
    bench.now += RTT;
    bench.sack();
    let first = bench.now;
    assert_eq!(
        (bench.due(BlockId::ZERO), bench.due(BlockId::new(1))),
        (1, 1)
    );
    // Both compensations are lost, and later packets tell so before a round trip is over.
    bench.send(2, &[0, 1]);
    bench.send(20, &[]);
    bench.sack();
    assert_eq!(
        (bench.due(BlockId::ZERO), bench.due(BlockId::new(1))),
        (0, 0)
    );
    while bench.now < first + 2 * RTT && bench.due(BlockId::ZERO) == 0 {
        bench.send(1, &[]);
        bench.sack();
    }
    assert!(bench.due(BlockId::ZERO) > 0);
    let waited = bench.now - first;
    assert!(waited >= bench.path.rtt().smoothed(), "{waited}");
}

#[test]
fn paper_hears_of_a_missing_block_from_a_later_one() {
    let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 8);
    bench.send(10, &[1]);
    bench.send(10, &[]);
    bench.now += RTT;
    bench.sack();
    assert_eq!(bench.due(BlockId::ZERO), 0);
    let blocks = Blocks {
        complete: vec![(BlockId::new(1), BlockId::new(1))],
        ..Blocks::default()
    };
    bench.sender.on_blocks(&blocks, &mut Vec::new());
    bench.sack();
    assert_eq!(bench.due(BlockId::ZERO), 1);
}

/// However often the peer says which blocks it has, and in whatever ranges.
#[test]
fn that_blocks_are_complete_is_heard_once_of_each() {
    let mut bench = Bench::new(Icm::Default, CodeId::Rlc, 100);
    bench.send(1000, &[]);
    let mut hears = |base: u64, complete: &[(u64, u64)]| {
        let complete = complete.iter();
        let blocks = Blocks {
            base: BlockId::new(base),
            complete: complete
                .map(|(low, high)| (BlockId::new(*low), BlockId::new(*high)))
                .collect(),
            ..Blocks::default()
        };
        let mut delivered = Vec::new();
        bench.sender.on_blocks(&blocks, &mut delivered);
        let told: Vec<_> = bench.sender.told.iter().collect();
        let told: Vec<_> = told
            .iter()
            .map(|(low, high)| (low.get(), high.get()))
            .collect();
        (delivered.len(), told)
    };
    assert_eq!(hears(0, &[(2, 3), (5, 60)]), (58, vec![(2, 3), (5, 60)]));
    assert_eq!(hears(0, &[(2, 3), (5, 60)]), (0, vec![(2, 3), (5, 60)]));
    assert_eq!(hears(0, &[(2, 70), (90, 1 << 40)]).0, 21);
    assert_eq!(hears(80, &[(85, 200)]), (16, vec![(85, 99)]));
    assert_eq!(hears(1 << 40, &[]), (5, vec![]));
    assert!(bench.sender.blocks.is_empty());
}

#[test]
fn paper_finds_tails_by_the_probe_timer() {
    let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 1);
    bench.send(10, &[1, 2, 3, 4]);
    bench.now += RTT;
    bench.sack();
    assert_eq!(bench.due(BlockId::ZERO), 0);
    bench.now = bench.timeout().expect("a probe");
    assert!(bench.on_timeout() > 0);
    assert!(bench.due(BlockId::ZERO) >= 4);
}

#[test]
fn off_waits_for_the_timer_of_the_block() {
    for code in [CodeId::Rlc, CodeId::Srlt] {
        let mut bench = Bench::new(Icm::Off, code, 200);
        bench.send(3, &[1]);
        while bench
            .sender
            .blocks
            .get(BlockId::ZERO)
            .is_some_and(|b| !b.is_sent())
        {
            bench.send(1, &[]);
        }
        let sent = bench
            .sender
            .blocks
            .get(BlockId::ZERO)
            .map_or(Time::ZERO, |block| block.last_sent());
        let timer = loop {
            assert_eq!(bench.due(BlockId::ZERO), 0, "{code:?}");
            bench.send(1, &[]);
            bench.report(bench.now.earlier_by(RTT));
            match bench.block_deadline() {
                Some(at) if at <= bench.now => break at,
                _ => {}
            }
        };
        assert!(timer > sent + RTT, "{code:?}");
        assert_eq!(bench.due(BlockId::ZERO), 0, "{code:?}");
        bench.on_timeout();
        assert!(bench.due(BlockId::ZERO) > 0, "{code:?}");
    }
}

#[test]
fn a_late_symbol_takes_its_repair_back() {
    for icm in [Icm::Default, Icm::Paper] {
        let mut bench = Bench::new(icm, CodeId::Rlc, 3);
        bench.send(24, &[2]);
        bench.now += RTT;
        bench.sack();
        let due = bench.due(BlockId::ZERO);
        assert!(due > 0, "{icm:?}");
        bench.arrived.insert(2, (PacketNumber::new(2), Time::ZERO));
        bench.sack();
        assert_eq!(bench.due(BlockId::ZERO), due - 1, "{icm:?}");
    }
}

/// The end of a flight of datagrams is heard of before the time of the repairs that they share is over, and none of these has arrived.
#[test]
fn a_loss_that_shares_repairs_is_answered_before_a_probe_is_due() {
    const LOST: u64 = 8;
    let mut bench = Bench::new(Icm::Default, CodeId::Rlc, 0);
    for slot in 0..16 {
        let lifetime = Lifetime {
            until: Time::ZERO + 1_000 * MS,
            repair: RepairMode::Together,
        };
        let urgency = Urgency::default();
        (bench.sender).submit_datagrams(Slot(slot), (1, 1000), urgency, lifetime);
    }
    bench.send(16, &[LOST]);
    bench.now += RTT - 2 * MS;
    bench.sack();
    // The flow has paused meanwhile.
    bench.on_timeout();
    assert_eq!(bench.due(BlockId::new(LOST)), 0);
    let probe = bench.path.probe_deadline(true).expect("blocks wait");
    bench.now = bench.timeout().expect("the loss waits");
    assert!(bench.now < probe);
    bench.on_timeout();
    assert!(bench.due(BlockId::new(LOST)) > 0);
}
