//! Packets that leave as ECT(1) through queues of low latency, alone and beside others.

use sphinx_link::{Aqm, CoDel, DualPi2, Signal};

use super::prague::Prague;
use super::testflows::{App, ECT_0, ECT_1, Link, PACKET, Report, World, mbit};
use super::{CcKind, CcParams, MS, Nanos, RateControl, SEC, time_for};

fn of(kind: CcKind) -> Box<dyn RateControl> {
    kind.build(CcParams::default())
}

fn dual(rate: f64, rtt: u64, loss: f64, seed: u64) -> Link {
    Link {
        aqm: Aqm::DualPi2(DualPi2::default()),
        queue_bytes: mbit(rate) / 4.0,
        // Real timers are late; without that, paced flows keep step for ever.
        lateness: MS / 4,
        seed,
        ..Link::new(rate, rtt, loss)
    }
}

/// How long this share of the packets that left between two times had waited at most, without their own time on the link, in ms.
fn waited(report: &Report, rate: f64, share: f64, (from, until): (Nanos, Nanos)) -> f64 {
    let own = time_for(f64::from(PACKET), mbit(rate));
    let mut waits: Vec<Nanos> = { report.inside.iter() }
        .filter(|(left, _)| (from..until).contains(left))
        .map(|(_, inside)| inside.saturating_sub(own))
        .collect();
    waits.sort_unstable();
    let Some(last) = waits.len().checked_sub(1) else {
        return 0.0;
    };
    waits[(last as f64 * share) as usize] as f64 / MS as f64
}

/// Part of the link that one flow uses, and how long its packets wait, p50 and p99 in ms.
fn alone(rate: f64, rtt: u64, loss: f64, seed: u64) -> (f64, f64, f64) {
    let span = (2 * SEC, 20 * SEC);
    let r = World::new(dual(rate, rtt, loss, seed))
        .add(of(CcKind::Bbr), App::Saturating, 0)
        .leaving_as(ECT_1)
        .run(span.1);
    let used = r[0].rate(span.0, span.1) / mbit(rate);
    let [p50, p99] = [0.5, 0.99].map(|share| waited(&r[0], rate, share, span));
    (used, p50, p99)
}

/// The flow that shares the link.
#[derive(Clone, Copy, Debug)]
enum Other {
    Ours,
    Prague,
    Cubic,
}

impl Other {
    fn made(self) -> (Box<dyn RateControl>, u8) {
        match self {
            Self::Ours => (of(CcKind::Bbr), ECT_1),
            Self::Prague => (Box::new(Prague::new()), ECT_1),
            Self::Cubic => (of(CcKind::Cubic), ECT_0),
        }
    }
}

/// Part that a flow of ours has of what both have beside another one, and part of the link that both use.
fn beside(other: Other, link: Link, ours_first: bool) -> (f64, f64) {
    let (rate, span) = (link.rates[0].1, (20 * SEC, 60 * SEC));
    let later = 2 * SEC + 7 * link.seed * MS;
    let (ours_at, other_at) = match ours_first {
        true => (0, later),
        false => (later, 0),
    };
    let (other, ecn) = other.made();
    let r = World::new(link)
        .add(of(CcKind::Bbr), App::Saturating, ours_at)
        .leaving_as(ECT_1)
        .add(other, App::Saturating, other_at)
        .leaving_as(ecn)
        .run(span.1);
    let [ours, others] = [&r[0], &r[1]].map(|r| r.rate(span.0, span.1));
    (ours / (ours + others), (ours + others) / rate)
}

const RATES: [f64; 3] = [10.0, 50.0, 200.0];
const RTTS: [u64; 4] = [5, 10, 20, 40];

#[test]
fn one_flow_keeps_the_queue_short_and_the_link_busy() {
    for rate in RATES {
        for rtt in RTTS {
            for loss in [0.0, 0.01] {
                let (used, _, p99) = alone(rate, rtt, loss, 1);
                let name = format!("{rate} Mbit/s, {rtt} ms, {loss}");
                assert!(used > 0.93, "{name}: {used:.3} of the link");
                assert!(p99 < 2.0, "{name}: p99 {p99:.2} ms");
            }
        }
    }
}

#[test]
fn shares_are_alike_among_ours_beside_prague_and_beside_cubic() {
    for (other, shares) in [
        // Jain's index is 0.95 where one of two has 0.385.
        (Other::Ours, 0.4..0.6),
        (Other::Prague, 0.4..0.6),
        (Other::Cubic, 0.35..0.65),
    ] {
        for (rate, rtt) in [(10.0, 10), (50.0, 5), (50.0, 40), (200.0, 20)] {
            for ours_first in [true, false] {
                let (share, used) = beside(other, dual(rate, rtt, 0.0, 2), ours_first);
                let name = format!("{other:?}, {rate} Mbit/s, {rtt} ms, first: {ours_first}");
                assert!(shares.contains(&share), "{name}: {share:.2}");
                assert!(used > 0.93, "{name}: {used:.2} of the link");
            }
        }
    }
}

fn codel() -> Aqm {
    Aqm::CoDel(CoDel {
        signal: Signal::Mark,
        ..CoDel::default()
    })
}

/// A single queue that marks all alike: as an ECT(1) flow has no right to more than one of ECT(0), nor one to it.
#[test]
fn a_classic_queue_is_recognised() {
    for (rate, rtt) in [(20.0, 10), (100.0, 40)] {
        let link = Link {
            aqm: codel(),
            ..dual(rate, rtt, 0.0, 1)
        };
        let scalable = beside(Other::Cubic, link.clone(), true).0;
        let r = World::new(link)
            .add(of(CcKind::Bbr), App::Saturating, 0)
            .add(of(CcKind::Cubic), App::Saturating, 2 * SEC)
            .run(60 * SEC);
        let [ours, cubic] = [&r[0], &r[1]].map(|r| r.rate(20 * SEC, 60 * SEC));
        let classic = ours / (ours + cubic);
        assert!(
            scalable < classic + 0.1,
            "{rate} Mbit/s, {rtt} ms: {scalable:.2} instead of {classic:.2}"
        );
    }
}

/// A flow that would respond to marks, and meets none.
#[test]
fn a_queue_without_marks_is_kept_short_too() {
    let link = Link {
        aqm: Aqm::None,
        ..dual(50.0, 20, 0.0, 1)
    };
    let r = World::new(link)
        .add(of(CcKind::Bbr), App::Saturating, 0)
        .leaving_as(ECT_1)
        .run(20 * SEC);
    let span = (2 * SEC, 20 * SEC);
    assert!(r[0].rate(span.0, span.1) > mbit(48.0));
    assert!(waited(&r[0], 50.0, 0.5, span) < 5.0);
}

#[test]
#[ignore = "prints tables"]
fn table() {
    let seeds = 1..4;
    println!(
        "one flow through DualPI2, seeds 1 to 3: least part of the rate, longest p50 and p99 of the wait in ms"
    );
    for rate in RATES {
        for rtt in RTTS {
            let cells = [0.0, 0.01].map(|loss| {
                let all: Vec<_> = seeds
                    .clone()
                    .map(|seed| alone(rate, rtt, loss, seed))
                    .collect();
                let least = all.iter().fold(1.0_f64, |least, it| least.min(it.0));
                let [p50, p99] = [0, 1].map(|n| {
                    let wait = |it: &(f64, f64, f64)| if n == 0 { it.1 } else { it.2 };
                    all.iter().map(wait).fold(0.0, f64::max)
                });
                format!("{least:.3} {p50:.2} {p99:.2}")
            });
            println!(
                "{rate:3} Mbit/s {rtt:2} ms: 0 %: {}; 1 %: {}",
                cells[0], cells[1]
            );
        }
    }
    println!("least and most of ours, first and second, seeds 1 to 3: beside ours, Prague, CUBIC");
    for rate in RATES {
        for rtt in RTTS {
            let cells = [Other::Ours, Other::Prague, Other::Cubic].map(|other| {
                let all = seeds.clone().flat_map(|seed| {
                    [true, false].map(|first| beside(other, dual(rate, rtt, 0.0, seed), first).0)
                });
                let (least, most) =
                    all.fold((1.0_f64, 0.0_f64), |(a, b), it| (a.min(it), b.max(it)));
                format!("{least:.2} {most:.2}")
            });
            println!("{rate:3} Mbit/s {rtt:2} ms: {}", cells.join("; "));
        }
    }
    println!("the same beside CUBIC in CoDel with marks, as ECT(1)");
    for rate in [20.0, 100.0] {
        for rtt in [10, 40] {
            let link = Link {
                aqm: codel(),
                ..dual(rate, rtt, 0.0, 1)
            };
            let both = [true, false].map(|first| beside(Other::Cubic, link.clone(), first).0);
            println!("{rate:3} Mbit/s {rtt:2} ms: {both:.2?}");
        }
    }
}
