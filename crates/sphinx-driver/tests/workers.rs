//! Jobs on payload that others do, in virtual time: nobody at the other end can tell.
//!
//! ```text
//! SPHINX_WORKERS_SEEDS=500 cargo test -p sphinx-driver --release --test workers
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sphinx_driver::keys::{Direction, Keys, SessionSecret};
use sphinx_driver::{EndReason, PacketProtection};
use sphinx_fec::CodeId;
use sphinx_link::{Jitter, LinkConfig, Loss, Order, Rate};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::{Frame, FrameIter, HEADER_LEN, Header, PacketKind, TAG_LEN};
use sphinx_proto::{Nanos, PacketNumber, PathId, Profile};
use sphinx_sim::{MS, Pair, Plain, Rng, SEC, Scenario};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 24;
/// Packets of an epoch, where there are real keys.
const EPOCH_PACKETS: u64 = 128;

/// Every datagram of either end, in the order in which they left; and when the transfer was over.
type Wire = (Vec<(usize, Vec<u8>)>, Nanos);

fn random(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed);
    // Where much leaves at once there are several runs of packets in a turn.
    let is_fast = rng.chance(0.4);
    let link = |rng: &mut Rng, seed| LinkConfig {
        seed,
        rate: match is_fast {
            true => Rate::Unlimited,
            false => Rate::Constant(rng.pick(&[20_000_000, 200_000_000])),
        },
        delay: Duration::from_millis(rng.pick(&[1, 5, 20])),
        loss: Loss::Bernoulli(rng.pick(&[0.0, 0.02, 0.1])),
        jitter: Jitter {
            max: Duration::from_millis(rng.pick(&[0, 3])),
            order: Order::Free,
        },
        duplication: rng.pick(&[0.0, 0.02]),
        ..LinkConfig::default()
    };
    let links = (link(rng, 2 * seed), link(rng, 2 * seed + 1));
    let bytes = 200_000 + rng.below(if is_fast { 4_000_000 } else { 600_000 });
    let mut scenario = Scenario::new(links).both_ways(bytes);
    scenario.seed = seed;
    scenario.profile = rng.pick(&[Profile::Bulk, Profile::Latency]);
    scenario.code = rng.pick(&[
        None,
        Some(CodeId::Rlc),
        Some(CodeId::Rs),
        Some(CodeId::FftRs),
        Some(CodeId::Window),
        Some(CodeId::Srlt),
        Some(CodeId::Lt),
    ]);
    scenario.cc = match is_fast {
        true => CcKind::Fixed(250_000_000),
        false => rng.pick(&[CcKind::default(), CcKind::Fixed(2_500_000)]),
    };
    scenario
}

fn run<P: PacketProtection>(
    scenario: &Scenario,
    workers: u16,
    protection: impl Fn() -> [P; 2],
) -> (Wire, Pair<P>) {
    let mut scenario = scenario.clone();
    scenario.client.workers = workers;
    scenario.server.workers = workers;
    let mut pair = scenario.build_with(protection());
    let sent = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&sent);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        let payload = datagram.payload.clone();
        seen.borrow_mut().push((side, payload));
        Vec::new()
    }));
    pair.must_transfer(120 * SEC);
    pair.tap = None;
    let sent = Rc::try_unwrap(sent).expect("the tap is gone").into_inner();
    ((sent, pair.now), pair)
}

fn keys() -> [Keys; 2] {
    [Direction::ClientToServer, Direction::ServerToClient].map(|direction| {
        let secret = SessionSecret::new(&[1; 32], &[2; 32]);
        let sealer = secret.sealer(direction, PathId::FIRST);
        Keys {
            sealer: sealer.with_epoch_packets(EPOCH_PACKETS),
            opener: secret.opener(direction.reverse(), PathId::FIRST),
            origin: None,
        }
    })
}

fn same(seed: u64, workers: u16, inline: &Wire, theirs: &Wire) {
    let (mine, theirs) = (&inline.0, &theirs.0);
    let differs = std::iter::zip(mine, theirs).position(|(mine, theirs)| mine != theirs);
    assert_eq!(differs, None, "seed {seed}, {workers} workers: the first");
    assert_eq!(mine.len(), theirs.len(), "seed {seed}, {workers} workers");
}

/// Whatever number of workers there is, and in whatever order they finish, the same bytes leave at the same times.
#[test]
fn the_wire_is_the_same_with_any_number_of_workers() {
    let seeds = std::env::var("SPHINX_WORKERS_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        let scenario = random(seed);
        let (inline, _) = run(&scenario, 0, <[Plain; 2]>::default);
        for workers in [1, 3] {
            let (theirs, _) = run(&scenario, workers, <[Plain; 2]>::default);
            assert_eq!(
                inline.1, theirs.1,
                "seed {seed}, {workers} workers: the end"
            );
            same(seed, workers, &inline, &theirs);
        }
    }
}

/// The same with real keys, whose epochs change while packets are elsewhere.
#[test]
fn the_wire_is_the_same_across_epochs() {
    for seed in 0..3 {
        // What an epoch takes is more than a round trip.
        let mut scenario = random(seed).on_links(|link| {
            link.delay = Duration::from_millis(2);
            link.rate = Rate::Unlimited;
        });
        scenario.cc = CcKind::Fixed(2_500_000);
        let (inline, pair) = run(&scenario, 0, keys);
        for end in &pair.ends {
            let keys = end.protection();
            assert!(keys.sealer.epoch() >= 2 && keys.opener.epoch() >= 2);
        }
        let (theirs, pair) = run(&scenario, 3, keys);
        same(seed, 3, &inline, &theirs);
        for end in &pair.ends {
            assert_eq!(end.counters().invalid, 0, "opened with another key");
        }
    }
}

/// A packet that waits to be sealed or opened was not lost.
#[test]
fn slow_workers_cause_no_loss() {
    const DELAY: Nanos = 4 * MS;
    for seed in 0..4 {
        let link = |seed| LinkConfig {
            seed,
            delay: Duration::from_millis(10),
            rate: Rate::Constant(50_000_000),
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((link(seed), link(seed + 9))).both_ways(3_000_000);
        scenario.seed = seed;
        scenario.cc = CcKind::Fixed(4_000_000);
        for plan in [&mut scenario.client, &mut scenario.server] {
            plan.packet_delay_max = DELAY;
            plan.job_delay_max = DELAY;
        }
        let mut pair = scenario.build();
        pair.must_transfer(30 * SEC);
        for end in &pair.ends {
            let stats = end.session().stats();
            assert_eq!(stats.repair_reactive, 0, "seed {seed}: taken for lost");
            let losses = stats.losses_sent.expect("packets were acknowledged");
            assert_eq!(losses.mean, 0.0, "seed {seed}");
        }
    }
}

/// Once as much is elsewhere as may be, nothing more leaves: whoever drives the session sleeps until some of it is back.
#[test]
fn who_waits_for_workers_sleeps() {
    for seed in 0..4 {
        let link = |seed| LinkConfig {
            seed,
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((link(seed), link(seed + 9))).bulk(4_000_000);
        scenario.seed = seed;
        scenario.cc = CcKind::Fixed(250_000_000);
        // So much would leave in this time as ten sessions may have elsewhere.
        scenario.client.packet_delay_max = 20 * MS;
        // An end that has something to do again and again at one point in time counts as stuck.
        scenario.build().must_transfer(30 * SEC);
    }
}

/// The peer hears when packets arrived, not when somebody had opened them.
#[test]
fn arrivals_are_told_as_they_were() {
    const WAY: Nanos = 10 * MS;
    let link = |seed| LinkConfig {
        seed,
        delay: Duration::from_nanos(WAY),
        ..LinkConfig::default()
    };
    let mut scenario = Scenario::new((link(1), link(2))).bulk(2_000_000);
    scenario.cc = CcKind::Fixed(4_000_000);
    scenario.server.packet_delay_max = 20 * MS;
    let mut pair = scenario.build();

    // Packets of the client that leave in this turn, and what the server said of arrivals, in microseconds.
    let leaving: Rc<RefCell<Vec<u32>>> = Rc::default();
    let told: Rc<RefCell<Vec<(PacketNumber, u64)>>> = Rc::default();
    let (leaves, tells) = (Rc::clone(&leaving), Rc::clone(&told));
    pair.tap = Some(Box::new(move |_, side, datagram| {
        let payload = &datagram.payload;
        let Some(header) = payload.first_chunk().and_then(Header::decode) else {
            return Vec::new();
        };
        if side == 0 {
            leaves.borrow_mut().push(header.packet_number);
        } else if header.kind == PacketKind::Control {
            for frame in FrameIter::new(&payload[HEADER_LEN..payload.len() - TAG_LEN]) {
                if let Ok(Frame::Sack(sack)) = frame {
                    tells.borrow_mut().push((sack.ranges[0].1, sack.time_us));
                }
            }
        }
        Vec::new()
    }));
    let mut arrivals = BTreeMap::new();
    pair.run_until(2 * SEC, |pair| {
        let arrive = pair.now + WAY;
        arrivals.extend(leaving.take().into_iter().map(|number| (number, arrive)));
        false
    });

    let told = told.take();
    assert!(told.len() > 20, "{} SACKs", told.len());
    for (number, time_us) in told {
        let arrived_us = arrivals[&number.truncated()] / 1000;
        assert_eq!(time_us, arrived_us, "{number:?}");
    }
}

/// It ends the session whose data it was, with code 1, and what was sent before is what arrives.
#[test]
fn a_worker_that_panics_ends_the_session() {
    for panics_at in [0, 3, 20] {
        let link = |seed| LinkConfig {
            seed,
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((link(1), link(2))).both_ways(10_000_000);
        scenario.cc = CcKind::Fixed(25_000_000);
        scenario.client.workers = 2;
        scenario.client.panics_at = Some(panics_at);
        let mut pair = scenario.build();
        pair.run_until(60 * SEC, |pair| {
            pair.ends.iter().all(|end| !end.events.is_empty())
        });
        let [client, server] = &pair.ends;
        let ends = [client, server].map(|end| end.events.first().map(|(_, end)| end.clone()));
        assert_eq!(ends[0], Some(EndReason::WorkerPanicked), "{panics_at}");
        let Some(EndReason::ClosedByPeer { code, .. }) = &ends[1] else {
            panic!("{panics_at}: {ends:?}");
        };
        assert_eq!(*code, 1);
    }
}

/// Bytes are sealed from their block and opened into it. Only a receiver with workers copies all of them: into its blocks, and into runs where they come
/// one by one, as here.
#[test]
fn copies_are_counted() {
    const BYTES: u64 = 2_000_000;
    // Repairs that are made together are copied, with which the first blocks are protected before anything is known of losses. So is the first symbol of
    // a block, as it makes the block's memory; and headers, of what goes into a run.
    for (workers, times) in [(0, [0.0..=0.06, 0.0..=0.02]), (3, [0.0..=0.06, 1.9..=2.1])] {
        let link = |seed| LinkConfig {
            seed,
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((link(1), link(2))).bulk(BYTES);
        scenario.cc = CcKind::Fixed(250_000_000);
        scenario.code = Some(CodeId::Rlc);
        let (_, pair) = run(&scenario, workers, <[Plain; 2]>::default);
        for (end, times) in std::iter::zip(&pair.ends, times) {
            let copied = end.counters().copied_bytes as f64 / BYTES as f64;
            assert!(times.contains(&copied), "{workers} workers: {copied:.4}");
        }
    }
}
