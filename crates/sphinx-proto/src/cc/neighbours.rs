//! Flows that share a queue: among ourselves, and beside those that fill it.

use super::testflows::{App, Link, PACKET, Report, World, mbit};
use super::{CcKind, CcParams, MS, Nanos, RateControl, SEC};

fn flow(kind: CcKind) -> Box<dyn RateControl> {
    kind.build(CcParams::default())
}

fn link(rate: f64, rtt: u64, queue: f64, seed: u64) -> Link {
    let link = Link::new(rate, rtt, 0.0);
    Link {
        queue_bytes: queue * link.queue_bytes,
        seed,
        ..link
    }
}

/// Rates in shares of the link.
fn shares(reports: &[Report], rate: f64, (from, until): (Nanos, Nanos)) -> Vec<f64> {
    let share = |report: &Report| report.rate(from, until) / mbit(rate);
    reports.iter().map(share).collect()
}

/// Jain's index of fairness: 1 where all are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Part of the goodput of a pair that `kind` gets beside CUBIC, which begins first or second.
fn beside_cubic(kind: CcKind, link: &Link, rate: f64, cubic_first: bool) -> f64 {
    let (first, second) = match cubic_first {
        true => (CcKind::Cubic, kind),
        false => (kind, CcKind::Cubic),
    };
    let reports = World::new(link.clone())
        .add(flow(first), App::Saturating, 0)
        .add(flow(second), App::Saturating, 5 * SEC)
        .run(60 * SEC);
    let shares = shares(&reports, rate, (20 * SEC, 60 * SEC));
    shares[usize::from(cubic_first)] / (shares[0] + shares[1])
}

/// Ten of ours, which begin one after the other; index of fairness and mean queue in BDPs.
fn ten(rate: f64, rtt: u64, queue: f64, seed: u64) -> (f64, f64) {
    let link = link(rate, rtt, queue, seed);
    let mut world = World::new(link);
    for n in 0..10 {
        world = world.add(flow(CcKind::Bbr), App::Saturating, n * SEC);
    }
    let reports = world.run(60 * SEC);
    let shares = shares(&reports, rate, (30 * SEC, 60 * SEC));
    let bdp = mbit(rate) * rtt as f64 / 1e3;
    (
        jain(&shares),
        reports[0].mean_queue(30 * SEC, 60 * SEC) / bdp,
    )
}

/// Ours at 20 ms beside ours at 80 ms, rates over each other.
fn near_and_far(rate: f64, queue: f64, seed: u64) -> f64 {
    let link = link(rate, 20, queue, seed);
    let reports = World::new(link)
        .add(flow(CcKind::Bbr), App::Saturating, 0)
        .add(flow(CcKind::Bbr), App::Saturating, 5 * SEC)
        .farther(60 * MS)
        .run(60 * SEC);
    let shares = shares(&reports, rate, (20 * SEC, 60 * SEC));
    shares[0] / shares[1]
}

/// The queue is full when they come, so that they never see a round trip without it, and lose most of their first flights. One of them
/// took all of that for the channel's once, and had 309 MB on their way at 49 Gbit/s. (Losses that flows cause each other still look like the
/// channel's to all of them: together they send almost four times what the link carries.)
#[test]
fn late_comers_do_not_believe_in_a_far_faster_link() {
    let mut world = World::new(link(100.0, 20, 1.0, 1));
    for n in 0..10 {
        world = world.add(flow(CcKind::Bbr), App::Saturating, n * SEC);
    }
    let reports = world.run(20 * SEC);
    let carried = mbit(100.0) * 20.0 / f64::from(PACKET);
    let sent: u64 = reports.iter().map(|report| report.sent).sum();
    assert!((sent as f64) < 5.0 * carried, "{sent} packets");
}

/// Losses made arrivals uneven, which counted as jitter, and with jitter no round of a start-up was flat: half a minute of start-up that lost nine
/// packets of ten, and 11 times what the link carries on its way.
#[test]
fn start_ups_that_lose_most_end() {
    let mut world = World::new(link(20.0, 40, 1.0, 1));
    for n in 0..10 {
        world = world.add(flow(CcKind::Bbr), App::Saturating, n * SEC);
    }
    let reports = world.run(40 * SEC);
    let carried = mbit(20.0) * 40.0 / f64::from(PACKET);
    let sent: u64 = reports.iter().map(|report| report.sent).sum();
    assert!((sent as f64) < 8.0 * carried, "{sent} packets");
}

/// Each took the queue that the others kept full for a channel that loses, and together they sent five times what the link carries. One that
/// comes late is not down with the others at once.
#[test]
fn ten_that_begin_one_after_the_other_become_equal() {
    for (rate, rtt, queue) in [(100.0, 20, 1.0), (100.0, 40, 1.0), (50.0, 40, 1.0)] {
        let found = (1..6).map(|seed| ten(rate, rtt, queue, seed));
        let (mut jains, mut waits): (Vec<_>, Vec<_>) = found.unzip();
        jains.sort_by(f64::total_cmp);
        waits.sort_by(f64::total_cmp);
        let name = format!("{rate} Mbit/s, {rtt} ms, {queue} BDP: {jains:.3?}, {waits:.2?} BDPs");
        assert!(jains[2] > 0.95 && jains[1] > 0.85, "{name}");
        assert!(waits[2] < 0.6, "{name}");
    }
}

/// One took what the other left, and its probes never told of anybody.
#[test]
fn near_and_far_become_equal() {
    for queue in [1.0, 2.0] {
        for seed in 1..5 {
            let ratio = near_and_far(50.0, queue, seed);
            assert!(
                (0.75..1.34).contains(&ratio),
                "{queue} BDP, seed {seed}: {ratio:.2}"
            );
        }
    }
}

#[test]
fn beside_cubic_neither_starves() {
    for seed in 1..4 {
        for cubic_first in [true, false] {
            let link = link(50.0, 40, 1.0, seed);
            let part = beside_cubic(CcKind::Bbr, &link, 50.0, cubic_first);
            assert!(
                (0.35..0.65).contains(&part),
                "seed {seed}, {cubic_first}: {part:.2}"
            );
        }
    }
}

#[test]
#[ignore = "a table for people"]
fn table() {
    println!(
        "bbr beside CUBIC, 50 Mbit/s, RTT 40 ms: part of the pair's goodput, seeds 1 to 3; CUBIC first, CUBIC second"
    );
    for queue in [1.0, 2.0, 4.0] {
        let parts = |cubic_first| -> Vec<String> {
            (1..4)
                .map(|seed| {
                    beside_cubic(CcKind::Bbr, &link(50.0, 40, queue, seed), 50.0, cubic_first)
                })
                .map(|part| format!("{part:.2}"))
                .collect()
        };
        println!("queue {queue} BDP: {:?} {:?}", parts(true), parts(false));
    }
    println!("ten of ours, one more each second: Jain's index, mean queue in BDPs");
    for (rate, rtt, queue) in [
        (100.0, 20, 1.0),
        (100.0, 40, 1.0),
        (100.0, 40, 2.0),
        (100.0, 40, 4.0),
        (50.0, 40, 1.0),
        (50.0, 40, 4.0),
        (20.0, 40, 1.0),
    ] {
        let found: Vec<_> = (1..4)
            .map(|seed| ten(rate, rtt, queue, seed))
            .map(|(jain, queue)| format!("{jain:.3} {queue:.2}"))
            .collect();
        println!("{rate} Mbit/s, RTT {rtt} ms, queue {queue} BDP: {found:?}");
    }
    println!("20 ms beside 80 ms, 50 Mbit/s: rate over rate");
    for queue in [1.0, 2.0, 4.0] {
        let found: Vec<_> = (1..4)
            .map(|seed| format!("{:.2}", near_and_far(50.0, queue, seed)))
            .collect();
        println!("queue {queue} BDP of 20 ms: {found:?}");
    }
}
