//! Paths with round trips that differ, and windows that are small for them.

use sphinx_link::LinkConfig;
use sphinx_proto::{Nanos, Urgency};
use sphinx_sim::{MS, Pair, Reader, Rng, SEC, Scenario, Write, link};

use crate::random::number;
use crate::several::two;
use crate::table::bernoulli;

const RATE: u64 = 10;
const RTTS: [u64; 2] = [20, 200];
const LOSSES: [[f64; 2]; 2] = [[0.001, 0.05], [0.01, 0.1]];
const SEEDS: u64 = 3;
const WARM_UP: Nanos = 5 * SEC;
const SPAN: Nanos = 10 * SEC;

/// Mbit/s in order, behind the start, of a reader who leaves so much to the sender.
fn in_order(mut scenario: Scenario, window: u64) -> f64 {
    scenario.recv_window = window;
    scenario.server.reader = Reader::InOrder;
    let mut pair = scenario.bulk(80_000_000).build();
    pair.run_until(WARM_UP, |_| false);
    let before = pair.server().bytes_received;
    pair.run_until(WARM_UP + SPAN, |_| false);
    (pair.server().bytes_received - before) as f64 * 8e3 / SPAN as f64
}

fn alone(at: usize, losses: [f64; 2], seed: u64) -> Scenario {
    Scenario::new(link(
        RATE,
        RTTS[at],
        bernoulli(losses[at]),
        seed + at as u64,
    ))
}

/// Never slower than the best path alone with that window, and where it holds what paths carry in a round trip, nearly as fast as both.
#[test]
fn a_small_window_is_used_by_both_paths() {
    for losses in LOSSES {
        for seed in 1..=SEEDS {
            let ample = |at| in_order(alone(at, losses, seed), 32 << 20);
            let both = ample(0) + ample(1);
            for (kib, of_both) in [(64, 0.0), (128, 0.0), (256, 0.68), (512, 0.86)] {
                let best = in_order(alone(0, losses, seed), kib << 10);
                let bonded = in_order(two([RATE; 2], RTTS, losses, seed), kib << 10);
                println!(
                    "{losses:?} {kib} KiB: {:.3} of the best, {:.3} of both",
                    bonded / best,
                    bonded / both
                );
                assert!(bonded > 0.95 * best && bonded > of_both * both);
            }
        }
    }
}

/// Two to four paths that have little in common, a small window, and streams of which some are not read, some are given up and some are more
/// urgent: those that are read arrive.
fn random_streams(seed: u64) -> (Scenario, Vec<u64>) {
    let mut rng = Rng::new(seed ^ 0x756e_6576);
    let way = |rng: &mut Rng| -> (LinkConfig, LinkConfig) {
        let rate = rng.pick(&[2, 10, 50]);
        let rtt = rng.pick(&[4, 20, 100, 400]);
        let loss = bernoulli(rng.pick(&[0.0, 0.01, 0.1]));
        link(rate, rtt, loss, rng.word())
    };
    let mut scenario = Scenario::new(way(&mut rng));
    for _ in 0..rng.within(1, 3) {
        let at = rng.pick(&[0, 0, 200 * MS]);
        let further = way(&mut rng);
        scenario = scenario.path(at, further);
    }
    scenario.seed = seed;
    scenario.recv_window = rng.pick(&[384, 512, 1024]) << 10;
    scenario.readers_may_pause = true;
    scenario.idle_timeout = [60 * SEC; 2];
    scenario.server.reader = rng.pick(&[Reader::InOrder, Reader::AnyOrder]);
    let streams = rng.within(1, 6);
    let mut wanted = Vec::new();
    for stream in 0..streams {
        let messages = rng.within(1, 30);
        for message in 0..messages {
            scenario.client.writes.push(Write {
                at: rng.below(20) * MS + message * 10 * MS,
                stream,
                len: rng.pick(&[100, 3000, 40_000, 200_000]),
                end_of_stream: message + 1 == messages,
            });
        }
        if rng.chance(0.3) {
            scenario.client.urgencies.insert(stream, Urgency::new(1));
        }
        match rng.below(6) {
            0 => drop(scenario.server.unread.insert(stream)),
            1 => scenario.client.resets.push((rng.below(1000) * MS, stream)),
            _ => wanted.push(stream),
        }
    }
    scenario.client.writes.sort_by_key(|write| write.at);
    scenario.client.resets.sort_by_key(|reset| reset.0);
    (scenario, wanted)
}

#[test]
fn streams_over_uneven_paths() {
    let seeds = number("SPHINX_PATHS_SEEDS").unwrap_or(60);
    let first = number("SPHINX_SIM_FIRST").unwrap_or(0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let (scenario, wanted) = random_streams(seed);
        let mut pair = scenario.build();
        let have_ended = |pair: &mut Pair| wanted.iter().all(|s| pair.ends[1].stream_ended(*s));
        assert!(pair.run_until(600 * SEC, have_ended), "{wanted:?}");
        println!("  {} ms", pair.now / MS);
    }
}
