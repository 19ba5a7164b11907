//! A rate that falls tenfold and rises again. What left at the old rate before anything could be known waits in the queue: nine round trips' worth,
//! in time at the new rate, whatever the sender does.

use std::time::Duration;

use sphinx_link::{Depth, Rate, RateStep};
use sphinx_sim::{MS, SEC, Scenario, link};

use crate::table::bernoulli;

const HIGH: u64 = 100;
const LOW: u64 = 10;
const DOWN: u64 = 3000;
const UP: u64 = 6000;

/// What became of a step.
struct Step {
    /// How long after the fall the queue was below 50 ms for good, ms, and its longest wait.
    settled_ms: u64,
    waited_ms: f64,
    /// Round trips after the rise until the link carried 80 % of its rate over a round trip.
    rose_rtts: f64,
    /// Most bytes in the queue in the second after the rise, in BDPs of the new rate.
    flood: f64,
}

fn step(rtt: u64, loss: f64, seed: u64) -> Step {
    let mut scenario = Scenario::new(link(HIGH, rtt, bernoulli(loss), seed)).bulk(400_000_000);
    let steps = [(0, HIGH), (DOWN, LOW), (UP, HIGH)].map(|(ms, mbit)| RateStep {
        at: Duration::from_millis(ms),
        bits_per_second: mbit * 1_000_000,
    });
    scenario.forward.rate = Rate::Steps {
        steps: steps.to_vec(),
        repeat: None,
    };
    // A queue as deep as those of cellular links.
    scenario.forward.queue = Depth::Bytes(2_000_000);
    let mut pair = scenario.build();
    pair.run_until(DOWN * MS, |_| false);
    let (mut last, mut most) = (DOWN * MS, 0.0_f64);
    let wait_ms = |bytes: u64, mbit: u64| bytes as f64 * 8e-3 / mbit as f64;
    pair.run_until(UP * MS, |pair| {
        let wait = wait_ms(pair.links[0].queue_bytes(), LOW);
        most = most.max(wait);
        if wait > 50.0 {
            last = pair.now;
        }
        false
    });
    let sent = |pair: &sphinx_sim::Pair| pair.links[0].counters().sent_bytes;
    let (mut rose_rtts, mut flood) = (f64::INFINITY, 0.0_f64);
    let quarter = rtt * MS / 4;
    let mut carried: Vec<u64> = vec![sent(&pair)];
    let bdp = (HIGH * 125 * rtt) as f64;
    for n in 1..=4 * 1000 / rtt {
        pair.run_until(UP * MS + n * quarter, |pair| {
            flood = flood.max(pair.links[0].queue_bytes() as f64 / bdp);
            false
        });
        carried.push(sent(&pair));
        let n = n as usize;
        if n >= 4 && (carried[n] - carried[n - 4]) as f64 >= 0.8 * bdp {
            rose_rtts = rose_rtts.min(n as f64 / 4.0);
        }
    }
    assert!(pair.now < 10 * SEC);
    Step {
        settled_ms: (last - DOWN * MS) / MS,
        waited_ms: most,
        rose_rtts,
        flood,
    }
}

#[test]
#[ignore = "a table for people"]
fn table_of_steps() {
    println!(
        "100 to 10 Mbit/s and back after 3 s, queue 2 MB: queue below 50 ms after, longest wait; 80 % carried after; most in the queue"
    );
    for rtt in [10, 20, 40, 80] {
        for loss in [0.0, 0.02] {
            for seed in 1..4 {
                let Step {
                    settled_ms,
                    waited_ms,
                    rose_rtts,
                    flood,
                } = step(rtt, loss, seed);
                println!(
                    "RTT {rtt} ms, loss {loss}: {settled_ms} ms, {waited_ms:.0} ms; {rose_rtts:.2} RTT, {flood:.2} BDP"
                );
            }
        }
    }
}
