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

/// What is counted of a pair: as `sphx lab figure neighbours` does, and when both have found their parts.
const FIRST_PART: (Nanos, Nanos) = (10 * SEC, 30 * SEC);
const REST: (Nanos, Nanos) = (20 * SEC, 60 * SEC);

/// Parts of the goodput of a pair that ours gets beside another, which begins first or second: [`FIRST_PART`] and [`REST`].
fn beside(other: Box<dyn RateControl>, link: &Link, rate: f64, other_first: bool) -> [f64; 2] {
    let (first, second) = match other_first {
        true => (other, flow(CcKind::Bbr)),
        false => (flow(CcKind::Bbr), other),
    };
    let reports = World::new(link.clone())
        .add(first, App::Saturating, 0)
        .add(second, App::Saturating, 5 * SEC)
        .run(60 * SEC);
    [FIRST_PART, REST].map(|window| {
        let shares = shares(&reports, rate, window);
        shares[usize::from(other_first)] / (shares[0] + shares[1])
    })
}

fn kernel_bbr() -> Box<dyn RateControl> {
    Box::new(KernelBbr::new())
}

/// Ten of ours, which begin one after the other; index of fairness and mean queue in BDPs.
fn ten(rate: f64, rtt: u64, queue: f64, lateness: Nanos, seed: u64) -> (f64, f64) {
    let link = Link {
        lateness,
        ..link(rate, rtt, queue, seed)
    };
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

/// So many of ours, which begin within two seconds: index of fairness, and the share of their packets that the queue drops.
fn crowd(many: u64, link: &Link, rate: f64) -> (f64, f64) {
    let link = Link {
        lateness: MS / 4,
        ..link.clone()
    };
    let mut world = World::new(link);
    for n in 0..many {
        world = world.add(flow(CcKind::Bbr), App::Saturating, n * 2 * SEC / many);
    }
    let reports = world.run(60 * SEC);
    let (from, until) = (20 * SEC, 60 * SEC);
    let drops: f64 = reports.iter().map(|it| it.drops(from, until)).sum();
    let shares = shares(&reports, rate, (from, until));
    (jain(&shares), drops / many as f64)
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
        let found = (1..6).map(|seed| ten(rate, rtt, queue, 0, seed));
        let (mut jains, mut waits): (Vec<_>, Vec<_>) = found.unzip();
        jains.sort_by(f64::total_cmp);
        waits.sort_by(f64::total_cmp);
        let name = format!("{rate} Mbit/s, {rtt} ms, {queue} BDP: {jains:.3?}, {waits:.2?} BDPs");
        assert!(jains[2] > 0.95 && jains[1] > 0.8, "{name}");
        assert!(waits[2] < 0.6, "{name}");
    }
}

/// Each fell by the same part whatever the queue dropped, and grew by the same rate whatever its part was: ten of 1 Mbit/s sent almost three times what the
/// link carried, hundred of half as much nine times.
#[test]
fn many_with_small_parts_flood_the_link_less() {
    for (many, rate, most) in [(10, 10.0, 0.2), (30, 50.0, 0.2), (100, 50.0, 0.65)] {
        let link = |seed| link(rate, 40, 1.0, seed);
        let found = (1..8).map(|seed| crowd(many, &link(seed), rate));
        let (mut jains, mut drops): (Vec<_>, Vec<_>) = found.unzip();
        jains.sort_by(f64::total_cmp);
        drops.sort_by(f64::total_cmp);
        let name = format!("{many} on {rate} Mbit/s: {jains:.3?}, {drops:.3?}");
        assert!(jains[3] > 0.75, "{name}");
        assert!(drops[3] < most && drops[6] < 1.5 * most, "{name}");
    }
}

/// One took what the other left, and its probes never told of anybody. (In one run of seven with one BDP they still do not within a minute.)
#[test]
fn near_and_far_become_equal() {
    for queue in [1.0, 2.0] {
        let ratios: Vec<_> = (1..5).map(|seed| near_and_far(50.0, queue, seed)).collect();
        let is_equal = |ratio: &&f64| (0.75..1.34).contains(*ratio);
        let equal = ratios.iter().filter(is_equal).count();
        assert!(equal >= 3, "{queue} BDP: {ratios:.2?}");
    }
}

/// Smallest, median and largest value of some runs.
#[derive(Clone, Copy, Debug)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self {
            least: all[0],
            median: all[all.len() / 2],
            most: all[all.len() - 1],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            least,
            median,
            most,
        } = self;
        write!(f, "{median:.2} ({least:.2} to {most:.2})")
    }
}

/// What ours gets in so many runs, whose clocks differ: [`FIRST_PART`] and [`REST`].
fn parts_beside(
    other: fn() -> Box<dyn RateControl>,
    (rate, rtt, queue): (f64, u64, f64),
    other_first: bool,
    seeds: u64,
) -> [Spread; 2] {
    let runs: Vec<[f64; 2]> = (1..=seeds)
        .map(|seed| {
            let link = Link {
                clock_noise: MS / 10,
                ..link(rate, rtt, queue, seed)
            };
            beside(other(), &link, rate, other_first)
        })
        .collect();
    [0, 1].map(|window| Spread::of(runs.iter().map(|run| run[window]).collect()))
}

/// The rate of ours grew a hundred times as fast as CUBIC's, which got what that left. Beside BBR, which fills the queue anew whenever it has emptied it, ours fell
/// until that queue had stood for three seconds.
#[test]
fn beside_those_who_do_not_yield_neither_starves() {
    let cubic = || flow(CcKind::Cubic);
    for (name, other) in [("CUBIC", cubic as fn() -> _), ("BBR", kernel_bbr)] {
        for queue in [1.0, 2.0, 4.0] {
            for other_first in [true, false] {
                let [_, part] = parts_beside(other, (50.0, 40, queue), other_first, 3);
                assert!(
                    (0.3..0.75).contains(&part.median) && part.least > 0.2 && part.most < 0.95,
                    "{name}, {queue} BDP, there first: {other_first}: {part}"
                );
            }
        }
    }
}

/// Runs for each row of a table.
fn seeds() -> u64 {
    let seeds = std::env::var("SPHINX_SIM_TABLE_SEEDS");
    seeds.ok().and_then(|it| it.parse().ok()).unwrap_or(8)
}

#[test]
#[ignore = "a table for people"]
fn table() {
    let seeds = seeds();
    println!("{seeds} seeds: median (least to most)");
    println!(
        "part of the pair's goodput beside one that is there first; and comes second: from 10 to 30 s, from 20 to 60 s"
    );
    let cubic = || flow(CcKind::Cubic);
    for (rate, rtt) in [(50.0, 40), (20.0, 40), (100.0, 100), (200.0, 20)] {
        for (name, other) in [("CUBIC", cubic as fn() -> _), ("BBR", kernel_bbr)] {
            for queue in [1.0, 2.0, 4.0] {
                let [first, second] = [true, false].map(|first| {
                    let [early, rest] = parts_beside(other, (rate, rtt, queue), first, seeds);
                    format!("{early}, {rest}")
                });
                println!(
                    "{rate} Mbit/s, RTT {rtt} ms, {name}, queue {queue} BDP: {first}; {second}"
                );
            }
        }
    }
    println!(
        "ten of ours, one more each second, wake-ups up to so much late: Jain's index, its mean, the queue in BDPs"
    );
    for (rate, rtt, queue, lateness) in [
        (50.0, 40, 1.0, 0),
        (50.0, 40, 1.0, MS),
        (50.0, 40, 4.0, MS),
        (20.0, 40, 1.0, MS),
        (100.0, 40, 1.0, MS),
        (100.0, 40, 4.0, MS),
    ] {
        let found = (1..=seeds).map(|seed| ten(rate, rtt, queue, lateness, seed));
        let (jains, waits): (Vec<_>, Vec<_>) = found.unzip();
        let mean = jains.iter().sum::<f64>() / seeds as f64;
        let (jain, wait) = (Spread::of(jains), Spread::of(waits));
        println!(
            "{rate} Mbit/s, RTT {rtt} ms, queue {queue} BDP, {} ms: {jain}, {mean:.3}, {wait}",
            lateness / MS
        );
    }
    println!("20 ms beside 80 ms, 50 Mbit/s: rate over rate");
    for queue in [1.0, 2.0, 4.0] {
        let found = (1..=seeds).map(|seed| near_and_far(50.0, queue, seed));
        println!(
            "queue {queue} BDP of 20 ms: {}",
            Spread::of(found.collect())
        );
    }
}

#[test]
#[ignore = "a table for people"]
fn table_of_crowds() {
    let seeds = seeds();
    println!("{seeds} seeds: median (least to most)");
    println!("many of ours: Jain's index, the share of packets that are dropped");
    for (many, rate, rtt, queue) in [
        (10, 10.0, 40, 1.0),
        (30, 50.0, 40, 1.0),
        (100, 50.0, 40, 1.0),
        (30, 200.0, 20, 1.0),
        (100, 200.0, 20, 1.0),
        (100, 500.0, 20, 1.0),
        (50, 50.0, 2, 10.0),
        (100, 500.0, 1, 20.0),
        (200, 500.0, 20, 1.0),
        (200, 200.0, 20, 1.0),
        (200, 100.0, 40, 1.0),
    ] {
        let found = (1..=seeds).map(|seed| crowd(many, &link(rate, rtt, queue, seed), rate));
        let (jains, drops): (Vec<_>, Vec<_>) = found.unzip();
        let (jain, drops) = (Spread::of(jains), Spread::of(drops));
        println!("{many}, {rate} Mbit/s, RTT {rtt} ms, queue {queue} BDP: {jain}, {drops}");
    }
}
