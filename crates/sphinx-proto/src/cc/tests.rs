//! Properties of the controllers over an emulated link.

use super::testflows::{App, Link, Report, World, mbit};
use super::{
    AckSummary, Arrival, CcKind, CcParams, MS, Nanos, PacketInfo, PacketNumber, PathMemory,
    RateControl, SEC,
};
use crate::time::time;

/// Length of the runs of the table.
const SECONDS: u64 = 20;

fn bbr() -> Box<dyn RateControl> {
    CcKind::Bbr.build(CcParams::default())
}

fn saturate(link: Link, seconds: u64) -> Report {
    World::new(link)
        .add(bbr(), App::Saturating, 0)
        .run(seconds * SEC)
        .remove(0)
}

fn blocks(link: Link, seconds: u64) -> Report {
    let app = App::Blocks {
        bytes: 100_000,
        every: 40 * MS,
    };
    World::new(link)
        .add(bbr(), app, 0)
        .run(seconds * SEC)
        .remove(0)
}

#[test]
fn random_loss_does_not_reduce_the_rate() {
    for (rate, rtt, seconds) in [
        (200.0, 10, 4),
        (200.0, 100, 8),
        (20.0, 50, 8),
        (50.0, 600, 30),
    ] {
        for loss in [0.0, 0.001, 0.01, 0.06, 0.1, 0.2, 0.3] {
            let from = 20 * rtt * MS;
            let r = saturate(Link::new(rate, rtt, loss), seconds);
            let bdp = mbit(rate) * rtt as f64 / 1000.0;
            let util = r.rate(from, seconds * SEC) / mbit(rate);
            assert!(util > 0.97, "{rate} Mbit/s, {rtt} ms, {loss}: {util}");
            assert!(r.drops(from, seconds * SEC) < 0.001, "{rate} {rtt} {loss}");
            let queue = r.mean_queue(from, seconds * SEC) / bdp;
            assert!(
                queue < 0.25,
                "{rate} {rtt} {loss}: standing queue of {queue} BDP"
            );
        }
    }
}

#[test]
fn start_up_is_fast_and_clean() {
    for loss in [0.0, 0.01, 0.06] {
        let r = saturate(Link::new(200.0, 10, loss), 1);
        // Full rate within 5 round trips: packets that leave the link from then on.
        let util = r.rate(50 * MS, 200 * MS) / mbit(200.0);
        assert!(util > 0.9, "10 ms, {loss}: {util}");
        assert_eq!(r.dropped, 0);
    }
    for loss in [0.0, 0.01, 0.06, 0.2] {
        let r = saturate(Link::new(200.0, 100, loss), 3);
        let lost_rtts = (mbit(200.0) - r.rate(0, 2 * SEC)) * 20.0 / mbit(200.0);
        assert!(
            lost_rtts < 4.0,
            "100 ms, {loss}: {lost_rtts} RTT of capacity lost"
        );
        assert!(r.drops(0, 2 * SEC) < 0.001);
    }
}

#[test]
fn a_block_each_40_ms_finds_the_rate() {
    for loss in [0.0, 0.06] {
        let r = blocks(Link::new(200.0, 10, loss), 10);
        // Ten blocks, and then for good.
        for estimate in &r.estimate[40..] {
            let ratio = estimate / mbit(200.0);
            assert!((0.9..1.1).contains(&ratio), "{loss}: {ratio}");
        }
        assert_eq!(r.dropped, 0);
    }
}

#[test]
fn capacity_steps_are_followed_within_ten_round_trips() {
    for rtt in [10, 50, 100] {
        for loss in [0.0, 0.06] {
            let (down, up) = (4 * SEC, 8 * SEC);
            let rates = vec![(0, mbit(200.0)), (down, mbit(50.0)), (up, mbit(200.0))];
            let r = saturate(
                Link {
                    rates,
                    ..Link::new(200.0, rtt, loss)
                },
                12,
            );
            let settled = 10 * rtt * MS;
            let estimate = |at: Nanos| r.estimate[(at / (10 * MS)) as usize] / mbit(50.0);
            assert!(
                (0.9..1.1).contains(&estimate(down + settled)),
                "{rtt} {loss}"
            );
            assert!(
                estimate(up + settled) > 3.6,
                "{rtt} {loss}: {}",
                estimate(up + settled)
            );
            let queue = r.mean_queue(down + settled, up) / (mbit(50.0) * rtt as f64 / 1000.0);
            assert!(queue < 0.5, "{rtt} {loss}: standing queue of {queue} BDP");
            assert!(
                r.rate(down + settled, up) / mbit(50.0) > 0.97,
                "{rtt} {loss}"
            );
        }
    }
}

#[test]
fn policers_are_not_flooded() {
    for loss in [0.0, 0.01, 0.06] {
        for bucket in [15_000.0, 30_000.0] {
            let link = Link {
                policer: Some((mbit(100.0), bucket)),
                ..Link::new(1000.0, 10, loss)
            };
            let r = saturate(link, 20);
            let drops = r.drops(0, 20 * SEC);
            assert!(drops < 0.03, "{loss} {bucket}: {drops} dropped");
            let util = r.rate(SEC, 20 * SEC) / mbit(100.0);
            assert!(util > 0.95, "{loss} {bucket}: {util}");
        }
    }
}

#[test]
fn shallow_queues_are_not_flooded() {
    for loss in [0.0, 0.06] {
        let link = Link {
            queue_bytes: 25_000.0,
            ..Link::new(200.0, 10, loss)
        };
        let r = saturate(link, 20);
        assert!(
            r.drops(0, 20 * SEC) < 0.015,
            "{loss}: {}",
            r.drops(0, 20 * SEC)
        );
        assert!(r.rate(SEC, 20 * SEC) / mbit(200.0) > 0.95);
    }
}

#[test]
fn marks_are_obeyed() {
    for threshold in [25_000.0, 62_500.0] {
        let link = Link {
            ce_threshold: Some(threshold),
            ..Link::new(200.0, 10, 0.01)
        };
        let r = saturate(link, 5);
        assert_eq!(r.dropped, 0);
        let used = r.rate(SEC, 5 * SEC) / mbit(200.0);
        assert!(used > 0.95, "{used}");
        assert!(r.mean_queue(SEC, 5 * SEC) < 62_500.0);
    }
}

/// So many packets leave, from this number on and so far apart.
fn sent(
    cc: &mut dyn RateControl,
    numbers: std::ops::Range<u64>,
    (from, apart): (Nanos, Nanos),
) -> Vec<PacketInfo> {
    let packet = |(n, number): (u64, u64)| PacketInfo {
        pn: PacketNumber::new(number),
        sent_at: time(from + n * apart),
        ip_bytes: 1500,
    };
    let packets: Vec<_> = (0..).zip(numbers).map(packet).collect();
    for (packet, count) in packets.iter().zip(1_u64..) {
        cc.on_sent(packet.sent_at, packet.pn, packet.ip_bytes, count * 1500);
    }
    packets
}

/// This packet has arrived, and these are lost, as is known a round trip of 100 ms after it left.
fn arrived(cc: &mut dyn RateControl, packet: PacketInfo, lost: &[PacketInfo], ce_marked: u64) {
    let rtt = 100 * MS;
    cc.on_ack(&AckSummary {
        now: packet.sent_at + rtt,
        acked: &[packet],
        lost,
        rtt_sample: Some(rtt),
        srtt: rtt,
        arrival: Some(Arrival {
            pn: packet.pn,
            received_at: packet.sent_at + rtt / 2,
        }),
        ce_marked,
        is_scalable: false,
        ecn_capable: true,
        bytes_in_flight: 0,
    });
}

/// What had arrived of a message was once divided by the time since the one before, so that its end left at ten packets a second.
#[test]
fn a_burst_of_losses_behind_a_pause_is_that_of_a_short_round() {
    let mut cc = bbr();
    for n in 0..3 {
        let packets = sent(&mut *cc, 30 * n..30 * (n + 1), (n * SEC, MS / 10));
        cc.on_app_limited(time(n * SEC + 3 * MS));
        for packet in packets {
            arrived(&mut *cc, packet, &[], 0);
        }
    }
    assert!(cc.is_starting());
    let packets = sent(&mut *cc, 90..190, (60 * SEC, MS / 10));
    cc.on_app_limited(time(60 * SEC + 10 * MS));
    arrived(&mut *cc, packets[90], &packets[..90], 0);
    let estimate = cc.bandwidth_estimate();
    assert!(estimate > 100_000, "{estimate}");
}

#[test]
fn lost_sacks_bursts_and_jitter_are_harmless() {
    let sacks = Link {
        sack_loss: 0.3,
        ..Link::new(200.0, 80, 0.03)
    };
    let bursts = Link {
        burst: 8.0,
        ..Link::new(200.0, 50, 0.05)
    };
    let jitter = Link {
        jitter: 2 * MS,
        ..Link::new(200.0, 20, 0.02)
    };
    for (name, link) in [("sacks", sacks), ("bursts", bursts), ("jitter", jitter)] {
        let r = saturate(link, 12);
        let util = r.rate(2 * SEC, 12 * SEC) / mbit(200.0);
        assert!(util > 0.93, "{name}: {util}");
    }
}

/// A flow that knew of jitter once reckoned with what it had sent, not with what arrived, and kept a rate of which half was lost.
#[test]
fn losses_where_the_delay_varies_lower_the_rate() {
    for seed in 1..4 {
        let link = Link {
            rates: vec![(0, mbit(100.0)), (3 * SEC, mbit(10.0))],
            rtt: 32 * MS,
            queue_bytes: mbit(100.0) * 0.004,
            jitter: 8 * MS,
            keeps_order: true,
            seed,
            ..Link::new(100.0, 40, 0.05)
        };
        let r = saturate(link, 12);
        let drops = r.drops(5 * SEC, 12 * SEC);
        assert!(drops < 0.1, "seed {seed}: {drops:.2}");
        assert!(r.rate(5 * SEC, 12 * SEC) / mbit(10.0) > 0.9);
    }
}

#[test]
fn a_longer_path_is_noticed() {
    let link = Link {
        rtt_step: Some((3 * SEC, 60 * MS)),
        ..Link::new(200.0, 20, 0.01)
    };
    let r = saturate(link, 10);
    assert!(r.rate(6 * SEC, 10 * SEC) / mbit(200.0) > 0.95);
}

#[test]
fn a_blackout_is_survived() {
    let link = Link {
        blackout: Some((SEC, 6 * SEC)),
        ..Link::new(200.0, 50, 0.06)
    };
    let r = saturate(link, 10);
    // Probes only while nothing comes back.
    assert!(r.rate(2 * SEC, 5 * SEC) < mbit(1.0));
    let back = r
        .carried
        .iter()
        .skip(600)
        .position(|&b| b as f64 > 0.9 * mbit(2.0));
    assert!(back.is_some_and(|ticks| ticks < 60), "{back:?}");
    assert!(r.rate(7 * SEC, 10 * SEC) / mbit(200.0) > 0.97);
}

#[test]
fn a_hint_saves_start_up_and_a_wrong_one_is_survived() {
    for (hinted, rate) in [(200.0, 200.0), (200.0, 20.0)] {
        let memory = PathMemory {
            rate: mbit(hinted) as u64,
            rtt: 100 * MS,
            plr: 0.01,
            datagram_len: 1472,
        };
        let cc = CcKind::Bbr.build(CcParams {
            memory: Some(memory),
            ..CcParams::default()
        });
        let r = World::new(Link::new(rate, 100, 0.01))
            .add(cc, App::Saturating, 0)
            .run(6 * SEC);
        let plain = saturate(Link::new(rate, 100, 0.01), 6);
        assert!(r[0].rate(0, SEC) > 0.99 * plain.rate(0, SEC), "{rate}");
        assert!(r[0].rate(3 * SEC, 6 * SEC) / mbit(rate) > 0.97, "{rate}");
    }
}

#[test]
fn two_flows_share() {
    for rtt in [10, 50] {
        let reports = World::new(Link::new(200.0, rtt, 0.01))
            .add(bbr(), App::Saturating, 0)
            .add(bbr(), App::Saturating, 2 * SEC)
            .run(20 * SEC);
        let rates: Vec<f64> = reports.iter().map(|r| r.rate(10 * SEC, 20 * SEC)).collect();
        assert!(rates.iter().sum::<f64>() / mbit(200.0) > 0.95, "{rates:?}");
        assert!(rates.iter().all(|r| *r > 0.2 * mbit(200.0)), "{rates:?}");
    }
}

#[test]
fn aimd_halves_on_marks_only() {
    let params = CcParams {
        block_packets: 20,
        ..CcParams::default()
    };
    let run = |link| {
        let cc = CcKind::AimdEcn.build(params);
        World::new(link)
            .add(cc, App::Saturating, 0)
            .run(10 * SEC)
            .remove(0)
    };
    // Marks: the queue stays bounded, and random loss does not matter.
    let marked = Link {
        ce_threshold: Some(125_000.0),
        ..Link::new(100.0, 20, 0.02)
    };
    let r = run(marked);
    assert_eq!(r.dropped, 0);
    assert!(r.rate(3 * SEC, 10 * SEC) / mbit(100.0) > 0.8);
    // Without ECN the same loss is taken for congestion.
    let r = run(Link::new(100.0, 20, 0.02));
    assert!(r.rate(3 * SEC, 10 * SEC) / mbit(100.0) < 0.6);
}

fn cubic(link: Link, seconds: u64) -> Report {
    let cc = CcKind::Cubic.build(CcParams::default());
    World::new(link)
        .add(cc, App::Saturating, 0)
        .run(seconds * SEC)
        .remove(0)
}

#[test]
fn cubic_fills_a_clean_link() {
    for (rate, rtt) in [(20.0, 20), (100.0, 20), (100.0, 100), (500.0, 40)] {
        let r = cubic(Link::new(rate, rtt, 0.0), 30);
        let used = r.rate(3 * SEC, 30 * SEC) / mbit(rate);
        assert!(used > 0.95, "{rate} Mbit/s, {rtt} ms: {used}");
        // Packets are dropped now and then, when the queue is full.
        assert!(
            r.drops(3 * SEC, 30 * SEC) < 0.001,
            "{rate} Mbit/s, {rtt} ms"
        );
    }
    // A long queue is seen to grow.
    let link = Link::new(100.0, 40, 0.0);
    let r = cubic(
        Link {
            queue_bytes: 8.0 * link.queue_bytes,
            ..link
        },
        3,
    );
    assert!(r.phases.contains_key("cautious-start"), "{:?}", r.phases);
}

/// RFC 9438, sections 5.1 and 4.3: with losses that do not depend on the rate, the larger of its two windows.
#[test]
fn cubic_takes_random_loss_for_congestion() {
    for (rtt, loss) in [
        (20, 0.01),
        (100, 0.01),
        (100, 0.001),
        (40, 0.0001),
        (200, 0.0001),
    ] {
        let (seconds, t) = (120, rtt as f64 / 1000.0);
        let r = cubic(Link::new(2000.0, rtt, loss), seconds);
        let cubic = (0.4_f64 * 3.7 / 1.2).powf(0.25) * t.powf(0.75) / f64::powf(loss, 0.75);
        let reno = (1.5 / loss).sqrt();
        let expected = cubic.max(reno) * 1500.0 / t;
        let ratio = r.rate(20 * SEC, seconds * SEC) / expected;
        assert!((0.7..1.4).contains(&ratio), "{rtt} ms, {loss}: {ratio}");
    }
}

fn scavenger() -> Box<dyn RateControl> {
    CcKind::Scavenger.build(CcParams::default())
}

fn scavenge(link: Link, seconds: u64) -> Report {
    World::new(link)
        .add(scavenger(), App::Saturating, 0)
        .run(seconds * SEC)
        .remove(0)
}

/// Mean queue in milliseconds of a link with one rate.
fn queue_ms(r: &Report, link: &Link, from: Nanos, until: Nanos) -> f64 {
    r.mean_queue(from, until) / link.rates[0].1 * 1000.0
}

#[test]
fn scavenger_fills_a_link_that_nobody_else_uses() {
    for (rate, rtt) in [
        (200.0, 10),
        (20.0, 20),
        (100.0, 40),
        (2.0, 50),
        (100.0, 100),
    ] {
        for loss in [0.0, 0.01, 0.06, 0.2] {
            let link = Link::new(rate, rtt, loss);
            let r = scavenge(link.clone(), 20);
            let (from, until) = ((40 * rtt * MS).max(SEC), 20 * SEC);
            let used = r.rate(from, until) / mbit(rate);
            let name = format!("{rate} Mbit/s, {rtt} ms, {loss}");
            assert!(used > 0.9, "{name}: {used}");
            assert!(r.drops(0, until) < 0.001, "{name}");
            let queue = queue_ms(&r, &link, 0, until);
            assert!(queue < 25.0, "{name}: {queue} ms");
        }
    }
}

/// What CUBIC gets beside a scavenger, in parts of what it gets alone.
fn left_to_cubic(link: &Link, (cubic_from, from): (Nanos, Nanos), until: Nanos) -> f64 {
    let cubic = || CcKind::Cubic.build(CcParams::default());
    let alone = World::new(link.clone())
        .add(cubic(), App::Saturating, cubic_from)
        .run(until);
    let beside = World::new(link.clone())
        .add(cubic(), App::Saturating, cubic_from)
        .add(scavenger(), App::Saturating, from)
        .run(until);
    let begun = cubic_from.max(from);
    beside[0].rate(begun, until) / alone[0].rate(begun, until)
}

#[test]
fn scavenger_leaves_cubic_its_rate() {
    for (rate, rtt) in [(20.0, 20), (50.0, 50), (100.0, 100)] {
        for queue in [1.0, 4.0] {
            for seed in 1..4 {
                let link = Link::new(rate, rtt, 0.0);
                let link = Link {
                    queue_bytes: queue * link.queue_bytes,
                    seed,
                    ..link
                };
                // The result holds whichever flow begins first.
                for order in [(5 * SEC, 0), (0, 5 * SEC)] {
                    let left = left_to_cubic(&link, order, 45 * SEC);
                    assert!(
                        left > 0.9,
                        "{rate} Mbit/s, {rtt} ms, queue {queue}, seed {seed}, {order:?}: {left}"
                    );
                }
            }
        }
    }
}

#[test]
fn scavenger_leaves_its_rate_to_cubic_that_meets_random_loss() {
    for (rtt, loss) in [(20, 0.01), (50, 0.001), (50, 0.01), (100, 0.01)] {
        let left = left_to_cubic(&Link::new(50.0, rtt, loss), (0, SEC), 60 * SEC);
        assert!(left > 0.85, "{rtt} ms, {loss}: {left}");
    }
}

#[test]
fn scavenger_takes_what_is_left() {
    let link = Link::new(50.0, 40, 0.01);
    let half = App::Blocks {
        bytes: 62_500,
        every: 20 * MS,
    };
    let r = World::new(link)
        .add(bbr(), half, 0)
        .add(scavenger(), App::Saturating, 0)
        .run(20 * SEC);
    let rates = [&r[0], &r[1]].map(|r| r.rate(3 * SEC, 20 * SEC) / mbit(50.0));
    assert!(rates[0] > 0.5, "{rates:?}");
    assert!(rates[1] > 0.25, "{rates:?}");
}

#[test]
fn scavengers_share() {
    for rtt in [20, 100] {
        let link = Link::new(50.0, rtt, 0.01);
        let r = World::new(link.clone())
            .add(scavenger(), App::Saturating, 0)
            .add(scavenger(), App::Saturating, 5 * SEC)
            .run(120 * SEC);
        let (from, until) = (60 * SEC, 120 * SEC);
        let rates = [&r[0], &r[1]].map(|r| r.rate(from, until) / mbit(50.0));
        assert!(rates[0] + rates[1] > 0.9, "{rtt} ms: {rates:?}");
        assert!(rates.iter().all(|rate| *rate > 0.2), "{rtt} ms: {rates:?}");
        let queue = queue_ms(&r[0], &link, from, until);
        assert!(queue < 25.0, "{rtt} ms: {queue} ms");
    }
}

#[test]
fn scavenger_floods_neither_policers_nor_short_queues() {
    for loss in [0.0, 0.01, 0.06] {
        let policed = Link {
            policer: Some((mbit(20.0), 30_000.0)),
            ..Link::new(1000.0, 20, loss)
        };
        let shallow = Link {
            queue_bytes: 6000.0,
            ..Link::new(20.0, 20, loss)
        };
        for (name, link) in [("policer", policed), ("short queue", shallow)] {
            let r = scavenge(link, 30);
            let drops = r.drops(0, 30 * SEC);
            // The more the channel loses, the less a policer stands out.
            let most = if loss < 0.05 { 0.08 } else { 0.25 };
            assert!(drops < most, "{name}, {loss}: {drops} dropped");
            let used = r.rate(2 * SEC, 30 * SEC) / mbit(20.0);
            assert!(used > 0.75, "{name}, {loss}: {used}");
        }
    }
}

#[test]
fn scavenger_obeys_marks_and_survives_blackouts() {
    let marked = Link {
        ce_threshold: Some(10_000.0),
        ..Link::new(100.0, 40, 0.01)
    };
    let r = scavenge(marked, 10);
    assert_eq!(r.dropped, 0);
    assert!(r.mean_queue(SEC, 10 * SEC) < 10_000.0);
    assert!(r.rate(SEC, 10 * SEC) / mbit(100.0) > 0.5);
    let dark = Link {
        blackout: Some((3 * SEC, 6 * SEC)),
        ..Link::new(50.0, 50, 0.06)
    };
    let r = scavenge(dark, 12);
    assert!(r.rate(4 * SEC, 5 * SEC) < mbit(1.0));
    assert!(r.rate(8 * SEC, 12 * SEC) / mbit(50.0) > 0.9);
}

#[test]
fn fixed_keeps_its_rate() {
    let cc = CcKind::Fixed(mbit(150.0) as u64).build(CcParams::default());
    let r = World::new(Link::new(200.0, 100, 0.2))
        .add(cc, App::Saturating, 0)
        .run(5 * SEC);
    let ratio = r[0].rate(SEC, 5 * SEC) / mbit(150.0);
    assert!((0.99..1.01).contains(&ratio), "{ratio}");
}

/// A row per link: utilisation, drops, queue, start-up.
#[test]
#[ignore = "prints a table"]
fn table() {
    println!("link | use of it, drops, mean queue in BDP; start-up: RTT of capacity lost, drops");
    for (rate, rtt) in [
        (200.0, 10),
        (200.0, 100),
        (20.0, 50),
        (2.0, 50),
        (200.0, 600),
        (1000.0, 10),
    ] {
        for loss in [0.0, 0.001, 0.01, 0.06, 0.1, 0.2, 0.3] {
            row(
                &format!("{rate:5} {rtt:4} {loss:5.3}"),
                Link::new(rate, rtt, loss),
            );
        }
    }
    row(
        "1/4 BDP queue 6 %",
        Link {
            queue_bytes: 62_500.0,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "1/10 BDP queue 0 %",
        Link {
            queue_bytes: 25_000.0,
            ..Link::new(200.0, 10, 0.0)
        },
    );
    row(
        "1/10 BDP queue 6 %",
        Link {
            queue_bytes: 25_000.0,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "4 BDP queue 6 %",
        Link {
            queue_bytes: 1e6,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "sack loss 30 %",
        Link {
            sack_loss: 0.3,
            ..Link::new(200.0, 80, 0.03)
        },
    );
    row(
        "bursts 5x8",
        Link {
            burst: 8.0,
            ..Link::new(200.0, 50, 0.05)
        },
    );
    row(
        "bursts 5x40",
        Link {
            burst: 40.0,
            ..Link::new(200.0, 50, 0.05)
        },
    );
    row(
        "jitter 2 ms",
        Link {
            jitter: 2 * MS,
            ..Link::new(200.0, 20, 0.02)
        },
    );
    row(
        "CE at 1/4 BDP",
        Link {
            ce_threshold: Some(62_500.0),
            ..Link::new(200.0, 10, 0.01)
        },
    );
    row(
        "CE at 1/10 BDP",
        Link {
            ce_threshold: Some(25_000.0),
            ..Link::new(200.0, 10, 0.01)
        },
    );
    row(
        "RTT 20->60",
        Link {
            rtt_step: Some((3 * SEC, 60 * MS)),
            ..Link::new(200.0, 20, 0.01)
        },
    );
    let rough = Link {
        quantum: 4 * MS,
        clock_noise: MS / 2,
        ..Link::new(200.0, 10, 0.06)
    };
    row("4 ms timers, 0.5 ms clock", rough.clone());
    row(
        "and 15 ms stalls",
        Link {
            stalls: Some((100 * MS, 15 * MS)),
            ..rough.clone()
        },
    );
    row(
        "rough, 100 ms",
        Link {
            rtt: 100 * MS,
            queue_bytes: 2.5e6,
            ..rough.clone()
        },
    );
    row(
        "rough, jitter 1 ms",
        Link {
            jitter: MS,
            ..rough
        },
    );
    for loss in [0.0, 0.01, 0.06, 0.2] {
        for (bucket, rtt) in [(15_000.0, 10), (60_000.0, 10), (60_000.0, 50)] {
            let policer = Some((mbit(100.0), bucket));
            let link = Link {
                policer,
                ..Link::new(1000.0, rtt, loss)
            };
            row(&format!("policer {loss} {bucket} rtt {rtt}"), link);
        }
    }
}

/// Shares of one link: against Reno (AIMD by one packet, loss as congestion), and three of a kind.
#[test]
#[ignore = "prints a table"]
fn shares() {
    println!("rtt queue/BDP | Reno, Bbr (Mbit/s) | three Bbr");
    let rate_of = |r: &Report, from, to| (r.rate(from * SEC, to * SEC) / mbit(1.0)) as u64;
    for rtt in [10, 50] {
        for queue in [0.5, 1.0, 4.0] {
            let link = Link::new(200.0, rtt, 0.0);
            let link = Link {
                queue_bytes: queue * link.queue_bytes,
                ..link
            };
            let params = CcParams {
                block_packets: 1,
                ..CcParams::default()
            };
            let mixed = World::new(link.clone())
                .add(CcKind::AimdEcn.build(params), App::Saturating, 0)
                .add(bbr(), App::Saturating, 30 * SEC)
                .run(90 * SEC);
            let alike = World::new(link)
                .add(bbr(), App::Saturating, 0)
                .add(bbr(), App::Saturating, 5 * SEC)
                .add(bbr(), App::Saturating, 10 * SEC)
                .run(40 * SEC);
            let mixed: Vec<_> = mixed.iter().map(|r| rate_of(r, 50, 90)).collect();
            let alike: Vec<_> = alike.iter().map(|r| rate_of(r, 20, 40)).collect();
            println!("{rtt:3} {queue:9} | {mixed:?} | {alike:?}");
        }
    }
}

/// What became of many of a kind that began one after another.
struct Crowd {
    /// Part of the link that was used.
    used: f64,
    /// Share of what was sent that the queue dropped.
    dropped: f64,
    /// Jain's index of fairness, and the smallest share, of the mean.
    jain: f64,
    least: f64,
    most: f64,
    /// Median queue, in BDPs.
    queue: f64,
}

/// `flows` that begin `apart` after each other; every second one `farther` away. What they do between two times.
fn crowd(
    link: Link,
    (flows, apart, farther): (u64, Nanos, Nanos),
    (from, until): (Nanos, Nanos),
) -> Crowd {
    let bdp = link.rates[0].1 * link.rtt as f64 / SEC as f64;
    let rate = link.rates[0].1;
    let reports = (0..flows)
        .fold(World::new(link), |world, flow| {
            world
                .add(bbr(), App::Saturating, flow * apart)
                .farther(flow % 2 * farther)
        })
        .run(until);
    let ticks = (from / (10 * MS)) as usize..(until / (10 * MS)) as usize;
    let sum = |per_10_ms: fn(&Report) -> &Vec<u64>| -> f64 {
        let of = |r: &Report| -> u64 { per_10_ms(r).iter().skip(ticks.start).sum() };
        reports.iter().map(of).sum::<u64>() as f64
    };
    let mut queues: Vec<f64> = ticks
        .clone()
        .map(|tick| {
            let found = reports.iter().filter_map(|r| r.queue.get(tick));
            let (bytes, packets) = found.fold((0.0, 0), |all, q| (all.0 + q.0, all.1 + q.1));
            bytes / packets.max(1) as f64
        })
        .collect();
    queues.sort_by(f64::total_cmp);
    let rates: Vec<f64> = reports.iter().map(|r| r.rate(from, until)).collect();
    let all: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    let of_mean = |rate: f64| rate * flows as f64 / all;
    Crowd {
        used: all / rate,
        dropped: sum(|r| &r.dropped_at) / sum(|r| &r.offered),
        jain: all * all / squares / flows as f64,
        least: of_mean(rates.iter().copied().fold(f64::INFINITY, f64::min)),
        most: of_mean(rates.iter().copied().fold(0.0, f64::max)),
        queue: queues[queues.len() / 2] / bdp,
    }
}

/// Shares stayed as they were once, since all fell and rose by the same part, and who came late got next to nothing. With fifty the queue stayed full,
/// and five packets of six were dropped.
#[test]
fn flows_that_marks_reach_become_equal() {
    for (flows, apart, loss) in [(10, 500, 0.0), (50, 100, 0.0), (50, 100, 0.02)] {
        let link = Link::new(200.0, 20, loss);
        let link = Link {
            ce_threshold: Some(link.queue_bytes / 4.0),
            ..link
        };
        let r = crowd(link, (flows, apart * MS, 0), (10 * SEC, 20 * SEC));
        assert!(r.jain > 0.9, "{flows}, {loss}: Jain's index {:.3}", r.jain);
        assert!(r.least > 0.5, "{flows}, {loss}: the least {:.2}", r.least);
        assert!(r.used > 0.95, "{flows}, {loss}: {:.3} of the link", r.used);
        assert!(r.dropped < 0.001, "{flows}, {loss}: {:.3}", r.dropped);
        assert!(r.queue < 0.3, "{flows}, {loss}: {:.2} BDPs", r.queue);
    }
}

/// Many of a kind that begin one after another: what the queue drops, and how they share.
#[test]
#[ignore = "prints a table"]
fn crowds() {
    println!(
        "Mbit/s, RTT µs, queue kB, loss, marks; flows, ms apart, ms farther | used, dropped, Jain, least and most of the mean, queue in BDPs"
    );
    let (near, far) = ((200, 20_000, 500), (1000, 20_000, 2500));
    let local = (1000, 1000, 4000);
    for (link, loss, is_marked, flows, apart, farther) in [
        (near, 0.0, false, 10, 500, 0),
        (near, 0.0, false, 50, 1, 0),
        (near, 0.0, false, 50, 100, 0),
        (near, 0.0, false, 200, 20, 0),
        (near, 0.02, false, 50, 100, 0),
        (near, 0.0, false, 10, 500, 60),
        (near, 0.0, false, 50, 100, 60),
        (near, 0.0, true, 10, 500, 0),
        (near, 0.0, true, 50, 100, 0),
        (near, 0.02, true, 50, 100, 0),
        (near, 0.0, true, 10, 500, 60),
        (near, 0.0, true, 50, 100, 60),
        (near, 0.0, true, 200, 20, 0),
        ((200, 20_000, 2000), 0.0, true, 50, 100, 0),
        ((200, 20_000, 2000), 0.0, false, 10, 500, 0),
        ((200, 20_000, 2000), 0.0, false, 50, 100, 0),
        ((200, 20_000, 125), 0.0, false, 50, 100, 0),
        (far, 0.0, false, 20, 1, 0),
        (far, 0.0, false, 50, 100, 0),
        (far, 0.0, false, 200, 20, 0),
        (far, 0.0, true, 50, 100, 0),
        (far, 0.0, true, 200, 20, 0),
        (local, 0.0, false, 50, 1, 0),
        (local, 0.0, false, 200, 20, 0),
    ] {
        let (rate, rtt_us, queue) = link;
        let queue_bytes = 1000.0 * f64::from(queue);
        let made = Link {
            rtt: 1000 * rtt_us,
            queue_bytes,
            ce_threshold: is_marked.then_some(queue_bytes / 4.0),
            ..Link::new(f64::from(rate), 1, loss)
        };
        let flows_of = (flows, apart * MS, farther * MS);
        let r = crowd(made, flows_of, (10 * SEC, 20 * SEC));
        println!(
            "{rate:4} {rtt_us:5} {queue:4} {loss:4} {is_marked:5}; {flows:3} {apart:3} {farther:2} | {:.2} {:.3} {:.2} {:.2} {:.2} {:.2}",
            r.used, r.dropped, r.jain, r.least, r.most, r.queue
        );
    }
}

fn row(name: &str, link: Link) {
    let rate = link.policer.map_or(link.rates[0].1, |p| p.0);
    let rtt = link.rtt;
    let r = saturate(link, SECONDS);
    let from = (20 * rtt).max(SEC);
    let bdp = rate * rtt as f64 / SEC as f64;
    let start = 20 * rtt;
    let missing = (rate - r.rate(0, start)) * start as f64 / SEC as f64 / bdp;
    println!(
        "{name:26} | {:5.3} {:5.2} % {:5.2} | {:5.2} {:5.2} %",
        r.rate(from, SECONDS * SEC) / rate,
        100.0 * r.drops(from, SECONDS * SEC),
        r.mean_queue(from, SECONDS * SEC) / bdp,
        missing,
        100.0 * r.drops(0, start),
    );
}
