//! Generations in a bounded buffer (`docs/protocol.md` §14).

use std::time::Duration;

use sphinx_link::{Blackout, LinkConfig};
use sphinx_proto::{PathId, Sc};
use sphinx_sim::{MS, Pair, Reader, Rng, SEC, Scenario, Write, link};

use crate::random::number;
use crate::table::bernoulli;

const SCHEMES: [Sc; 4] = [Sc::Systematic, Sc::Rlnc, Sc::MinRtt, Sc::Ecf];

/// Two paths of 10 Mbit/s that lose so much, and a buffer.
pub(crate) fn two(sc: Sc, rtts: [u64; 2], losses: [f64; 2], buffer: u64, seed: u64) -> Scenario {
    let way = |at: usize| link(10, rtts[at], bernoulli(losses[at]), 2 * seed + at as u64);
    let mut scenario = Scenario::new(way(0)).path(0, way(1));
    scenario.sc = Some(sc);
    scenario.recv_window = buffer;
    scenario.seed = seed;
    scenario
}

/// Bytes are exact, and never more is stored than the buffer holds: the simulator checks both.
#[test]
fn bytes_are_exact_and_the_buffer_holds() {
    for sc in SCHEMES {
        for (rtts, losses) in [
            ([20, 20], [0.0, 0.0]),
            ([20, 200], [0.01, 0.1]),
            ([200, 20], [0.3, 0.05]),
        ] {
            for kib in [16, 64, 256] {
                let scenario = two(sc, rtts, losses, kib << 10, kib);
                let mut pair = scenario.both_ways(600_000).build();
                pair.must_transfer(300 * SEC);
                println!("{sc:?} {rtts:?} {losses:?} {kib} KiB: {} ms", pair.now / MS);
            }
        }
    }
}

/// Several streams share the buffer, and what ends a message is a generation that is closed.
#[test]
fn streams_and_messages() {
    for sc in SCHEMES {
        let mut scenario = two(sc, [10, 60], [0.02, 0.05], 64 << 10, 5);
        for stream in 0..5 {
            for message in 0..40 {
                scenario.client.writes.push(Write {
                    at: message * 3 * MS,
                    stream,
                    len: 1 + 400 * (message * 7 % 11) * stream,
                    end_of_stream: message == 39,
                });
            }
        }
        scenario.client.writes.sort_by_key(|write| write.at);
        scenario.server.reader = Reader::InOrder;
        scenario.build().must_transfer(120 * SEC);
    }
}

/// What nobody reads fills the buffer, and nothing beyond it; then all of it is read.
#[test]
fn a_slow_reader() {
    for sc in [Sc::Systematic, Sc::MinRtt] {
        let mut scenario = two(sc, [20, 50], [0.05, 0.05], 64 << 10, 9).bulk(400_000);
        scenario.server.reader = Reader::Slow(100_000);
        let mut pair = scenario.build();
        pair.must_transfer(60 * SEC);
        let held = pair.server().rx_held_max;
        assert!(held > 48 << 10, "{held} bytes of the buffer were used");
    }
}

/// Every scheme works on one path too.
#[test]
fn one_path() {
    for sc in SCHEMES {
        let mut scenario = Scenario::new(link(10, 30, bernoulli(0.05), 3));
        scenario.sc = Some(sc);
        scenario.recv_window = 128 << 10;
        scenario.bulk(1_000_000).build().must_transfer(60 * SEC);
    }
}

/// A path that is cut, and one that is given up, cost time and nothing else; while one lives, data arrives.
#[test]
fn a_path_that_dies() {
    for sc in SCHEMES {
        for at in 0..2 {
            let mut scenario = two(sc, [20, 60], [0.01; 2], 128 << 10, 4).bulk(4_000_000);
            let blackout = Blackout {
                start: Duration::from_secs(1),
                end: Duration::from_secs(60),
            };
            let cut = |link: &mut LinkConfig| link.blackouts = vec![blackout];
            match at {
                0 => {
                    cut(&mut scenario.forward);
                    cut(&mut scenario.backward);
                }
                _ => {
                    let (_, forward, backward) = &mut scenario.further[0];
                    cut(forward);
                    cut(backward);
                }
            }
            let mut pair = scenario.build();
            pair.must_transfer(30 * SEC);
        }
        let mut pair = two(sc, [20, 60], [0.05; 2], 128 << 10, 4)
            .bulk(4_000_000)
            .build();
        pair.run_until(SEC, |_| false);
        let now = pair.now;
        assert!(pair.ends[0].abandon_path(now, PathId::FIRST));
        pair.must_transfer(30 * SEC);
    }
}

fn random_pair(seed: u64) -> Pair {
    let mut rng = Rng::new(seed ^ 0x7363_6d70);
    let way = |rng: &mut Rng| {
        let rate = rng.pick(&[1, 5, 20]);
        let rtt = rng.pick(&[2, 20, 60, 200]);
        let loss = bernoulli(rng.pick(&[0.0, 0.001, 0.02, 0.1, 0.3]));
        let (mut forward, mut backward) = link(rate, rtt, loss, rng.word());
        for link in [&mut forward, &mut backward] {
            if rng.chance(0.15) {
                let start = Duration::from_millis(rng.below(3000));
                let end = start + Duration::from_millis(rng.within(10, 5000));
                link.blackouts = vec![Blackout { start, end }];
            }
            if rng.chance(0.2) {
                link.duplication = 0.3;
            }
            link.mtu = Some(rng.pick(&[1280, 1500, 1500]));
        }
        (forward, backward)
    };
    let mut scenario = Scenario::new(way(&mut rng));
    scenario.seed = seed;
    scenario.sc = Some(rng.pick(&SCHEMES));
    scenario.idle_timeout = [30 * SEC; 2];
    scenario.recv_window = rng.pick(&[16 << 10, 40_000, 64 << 10, 512 << 10]);
    scenario.client.job_delay_max = rng.pick(&[0, 0, 3 * MS]);
    scenario.server.packet_delay_max = rng.pick(&[0, 0, MS]);
    scenario.server.reader = rng.pick(&[Reader::AnyOrder, Reader::InOrder]);
    for _ in 0..rng.below(4) {
        let at = rng.pick(&[0, 0, 100 * MS, SEC]);
        let (forward, backward) = way(&mut rng);
        scenario = scenario.path(at, (forward, backward));
    }
    let bytes = rng.within(1, 600_000);
    match rng.chance(0.5) {
        true => scenario.both_ways(bytes).build(),
        false => scenario.bulk(bytes).build(),
    }
}

/// Whatever the paths do, bytes arrive as they were sent and the buffer holds, as long as one of the paths carries something.
#[test]
fn generations_on_paths_of_any_kind() {
    let seeds = number("SPHINX_SC_SEEDS").unwrap_or(60);
    let first = number("SPHINX_SIM_FIRST").unwrap_or(0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut pair = random_pair(seed);
        pair.must_transfer(600 * SEC);
        println!("  {} ms", pair.now / MS);
    }
}
