//! Flows that share a queue: among ourselves, and beside those that fill it.

use super::kernel_bbr::KernelBbr;
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

/// Part of the goodput of a pair that ours gets beside another, which begins first or second.
fn beside(other: Box<dyn RateControl>, link: &Link, rate: f64, other_first: bool) -> f64 {
    let (first, second) = match other_first {
        true => (other, flow(CcKind::Bbr)),
        false => (flow(CcKind::Bbr), other),
    };
    let reports = World::new(link.clone())
        .add(first, App::Saturating, 0)
        .add(second, App::Saturating, 5 * SEC)
        .run(60 * SEC);
    let shares = shares(&reports, rate, (20 * SEC, 60 * SEC));
    shares[usize::from(other_first)] / (shares[0] + shares[1])
}

fn kernel_bbr() -> Box<dyn RateControl> {
    Box::new(KernelBbr::new())
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
        assert!(jains[2] > 0.95 && jains[1] > 0.8, "{name}");
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

/// Least, median and most of what ours gets in three runs, whose clocks differ.
fn parts_beside(other: fn() -> Box<dyn RateControl>, queue: f64, other_first: bool) -> [f64; 3] {
    let mut parts: Vec<f64> = (1..4)
        .map(|seed| {
            let link = Link {
                clock_noise: MS / 10,
                ..link(50.0, 40, queue, seed)
            };
            beside(other(), &link, 50.0, other_first)
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    [parts[0], parts[1], parts[2]]
}

/// The rate of ours grew a hundred times as fast as CUBIC's, which got what that left. Beside BBR, which fills the queue anew whenever it has emptied it, ours fell
/// until that queue had stood for three seconds.
#[test]
fn beside_those_who_do_not_yield_neither_starves() {
    let cubic = || flow(CcKind::Cubic);
    for (name, other) in [("CUBIC", cubic as fn() -> _), ("BBR", kernel_bbr)] {
        for queue in [1.0, 2.0, 4.0] {
            for other_first in [true, false] {
                let [least, median, most] = parts_beside(other, queue, other_first);
                assert!(
                    (0.2..0.75).contains(&median) && least > 0.1 && most < 0.95,
                    "{name}, {queue} BDP, there first: {other_first}: {least:.2}, {median:.2}, {most:.2}"
                );
            }
        }
    }
}

#[test]
#[ignore = "a table for people"]
fn table() {
    println!(
        "ours beside others, 50 Mbit/s, RTT 40 ms: part of the pair's goodput, least, median and most of three; the other first, second"
    );
    let cubic = || flow(CcKind::Cubic);
    for (name, other) in [("CUBIC", cubic as fn() -> _), ("BBR", kernel_bbr)] {
        for queue in [1.0, 2.0, 4.0] {
            let [first, second] = [true, false].map(|first| parts_beside(other, queue, first));
            println!("{name}, queue {queue} BDP: {first:.2?} {second:.2?}");
        }
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
