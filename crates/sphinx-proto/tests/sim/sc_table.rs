//! Two unequal paths and a bounded buffer: systematic coding beside what it is compared with (`docs/sc-multipath.md`).
//!
//! ```text
//! make sc-multipath
//! ```

use sphinx_proto::{Nanos, Sc};
use sphinx_sim::{Held, MS, Pair, Reader, SEC, Scenario, link};

use crate::random::number;
use crate::sc::two;
use crate::table::{bernoulli, is_wanted};

/// Rate of each path, Mbit/s, and round trips of the two, ms.
const MBIT: u64 = 10;
const RTTS: [u64; 2] = [20, 200];
const LOSSES: [[f64; 2]; 2] = [[0.001, 0.05], [0.01, 0.1]];
const BUFFERS_KIB: [u64; 4] = [64, 128, 256, 512];
const SEEDS: u64 = 5;
/// When the measurement begins, and how long it takes.
const WARM_UP: Nanos = 5 * SEC;
const SPAN: Nanos = 20 * SEC;
/// More bytes than the paths carry in that time.
const BYTES: u64 = 80_000_000;
/// A buffer that holds nobody up.
const AMPLE: u64 = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Scheme(Sc),
    /// The default mode on both paths.
    Aggregate,
    /// The default mode on one path, by its index.
    Alone(usize),
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Scheme(sc) => sc.name().to_owned(),
            Self::Aggregate => "aggregate (default)".to_owned(),
            Self::Alone(at) => format!("path {} alone", at + 1),
        }
    }
}

/// What a run came to.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    /// Bytes a second in order.
    goodput: f64,
    /// Mean time from the arrival of a byte, or of a row that stands for one, to its being in order, ms.
    delay_ms: f64,
    /// Bytes multiplied and added over GF(2^8), for each byte delivered.
    operations: f64,
    warnings: f64,
    /// IP bytes sent for each byte delivered.
    wire: f64,
}

fn scenario(way: Way, losses: [f64; 2], buffer: u64, seed: u64) -> Scenario {
    let mut scenario = match way {
        Way::Scheme(sc) => two(sc, RTTS, losses, buffer, seed),
        Way::Aggregate => two(Sc::Systematic, RTTS, losses, buffer, seed),
        Way::Alone(at) => {
            let loss = bernoulli(losses[at]);
            Scenario::new(link(MBIT, RTTS[at], loss, 2 * seed + at as u64))
        }
    };
    if !matches!(way, Way::Scheme(_)) {
        scenario.sc = None;
    }
    scenario.recv_window = buffer;
    scenario.server.reader = Reader::InOrder;
    scenario.bulk(BYTES)
}

fn measure(way: Way, losses: [f64; 2], buffer: u64, seed: u64) -> Run {
    let mut pair = scenario(way, losses, buffer, seed).build();
    pair.run_until(WARM_UP, |_| false);
    let counts = |pair: &Pair| {
        let [client, server] = [pair.client(), pair.server()];
        let operations = [client, server].map(|end| end.counters().field_operations);
        [
            server.bytes_received as f64,
            (operations[0] + operations[1]) as f64,
            server.session().stats().warnings_sent as f64,
            client.ip_bytes_sent as f64,
        ]
    };
    let before = counts(&pair);
    let mut held = Held::default();
    pair.run_until(WARM_UP + SPAN, |pair| {
        held.note(pair);
        false
    });
    let after = counts(&pair);
    let [bytes, operations, warnings, wire] =
        [0, 1, 2, 3].map(|index: usize| after[index] - before[index]);
    Run {
        goodput: bytes / (SPAN as f64 / 1e9),
        delay_ms: held.waits().mean_ms,
        operations: operations / bytes.max(1.0),
        warnings: warnings / (SPAN / SEC) as f64,
        wire: wire / bytes.max(1.0),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn median_of(runs: &[Run], value: impl Fn(&Run) -> f64) -> f64 {
    median(runs.iter().map(value).collect())
}

/// Goodput over that of the paths alone, summed, in a buffer that holds nobody up: of each seed, which is its paths' too.
#[test]
#[ignore = "a table for people"]
fn table() {
    let seeds = number("SPHINX_SIM_TABLE_SEEDS").unwrap_or(SEEDS);
    println!(
        "two paths of {MBIT} Mbit/s, {} and {} ms, BBR, one stream read in order: medians of {seeds} seeds (worst)",
        RTTS[0], RTTS[1]
    );
    println!(
        "optimal: the paths alone, summed, ample buffer; delay: mean time that bytes wait at the receiver for being in order;"
    );
    println!(
        "operations: bytes multiplied and added over GF(2^8), both ends, per byte delivered; wire: IP bytes sent per byte delivered"
    );
    for losses in LOSSES {
        let alone = |at: usize, buffer| -> Vec<f64> {
            let run = |seed| measure(Way::Alone(at), losses, buffer, seed).goodput;
            (1..=seeds).map(run).collect()
        };
        let ample = [alone(0, AMPLE), alone(1, AMPLE)];
        let optimal: Vec<f64> = (0..seeds as usize)
            .map(|seed| ample[0][seed] + ample[1][seed])
            .collect();
        println!();
        println!(
            "loss {} and {} %: optimal {:.2} Mbit/s ({:.2} + {:.2})",
            100.0 * losses[0],
            100.0 * losses[1],
            median(optimal.clone()) * 8e-6,
            median(ample[0].clone()) * 8e-6,
            median(ample[1].clone()) * 8e-6,
        );
        println!(
            "{:>7} {:21} {:>7} {:>7} {:>10} {:>7} {:>10} {:>6} {:>10}",
            "buffer",
            "mode",
            "optimal",
            "(worst)",
            "delay",
            "/ of mr",
            "operations",
            "wire",
            "warnings"
        );
        for kib in BUFFERS_KIB {
            let buffer = kib << 10;
            // The bound: what window and round trips allow, max Σxᵢ for Σxᵢ·RTTᵢ ≤ B.
            let fast = (buffer as f64 / (RTTS[0] * MS) as f64 * 1e9).min(median(ample[0].clone()));
            let left = buffer as f64 - fast * RTTS[0] as f64 / 1e3;
            let slow = (left / (RTTS[1] as f64 / 1e3)).min(median(ample[1].clone()));
            let bound = (fast + slow) / median(optimal.clone());
            println!("{kib:3} KiB {:21} {bound:7.3}", "(bound of the window)");
            let mut of_min_rtt = f64::NAN;
            for way in [
                Way::Scheme(Sc::MinRtt),
                Way::Scheme(Sc::Ecf),
                Way::Scheme(Sc::Rlnc),
                Way::Scheme(Sc::Systematic),
                Way::Aggregate,
                Way::Alone(0),
            ] {
                if !is_wanted(&format!("{kib} KiB {}", way.name())) {
                    continue;
                }
                let runs: Vec<Run> = (1..=seeds)
                    .map(|seed| measure(way, losses, buffer, seed))
                    .collect();
                let shares = runs.iter().zip(&optimal).map(|(run, of)| run.goodput / of);
                let shares: Vec<f64> = shares.collect();
                let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
                let delay = median_of(&runs, |run| run.delay_ms);
                if way == Way::Scheme(Sc::MinRtt) {
                    of_min_rtt = delay;
                }
                println!(
                    "{kib:3} KiB {:21} {:7.3} ({worst:.3}) {delay:7.2} ms {:7.2} {:10.3} {:6.3} {:8.1}/s",
                    way.name(),
                    median(shares),
                    delay / of_min_rtt,
                    median_of(&runs, |run| run.operations),
                    median_of(&runs, |run| run.wire),
                    median_of(&runs, |run| run.warnings),
                );
            }
        }
    }
}
