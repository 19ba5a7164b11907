//! Delay that varies without a queue, in order, as radios deliver: it must not be taken for a queue.

use std::time::Duration;

use sphinx_link::{Depth, Jitter, Order};
use sphinx_sim::{SEC, Scenario, link};

use crate::random::number;
use crate::table::bernoulli;

/// Bytes of a transfer.
const BYTES: u64 = 50_000_000;

/// A link whose one-way delay is half of `rtt` ± `jitter`, milliseconds, both ways; the queue in its BDPs.
fn varying(mbit: u64, rtt: u64, jitter: u64, loss: f64, queue: f64, seed: u64) -> Scenario {
    Scenario::new(link(mbit, rtt, bernoulli(loss), seed)).on_links(|link| {
        link.queue = Depth::Bytes((mbit as f64 * 125.0 * rtt as f64 * queue) as u64);
        link.delay = Duration::from_micros(500 * rtt - 1000 * jitter);
        link.jitter = Jitter {
            max: Duration::from_millis(2 * jitter),
            order: Order::Kept,
        };
    })
}

/// Goodputs, Mbit/s, from the lowest.
fn goodputs(seeds: u64, scenario: impl Fn(u64) -> Scenario) -> Vec<(f64, u64)> {
    let mut goodputs: Vec<_> = (1..=seeds)
        .map(|seed| {
            let mut pair = scenario(seed).bulk(BYTES).build();
            assert!(pair.run_transfer(60 * SEC), "seed {seed}: not done");
            let (done_at, ..) = *pair.server().pieces_received().last().expect("blocks");
            (BYTES as f64 * 8e3 / done_at as f64, seed)
        })
        .collect();
    goodputs.sort_by(|a, b| a.0.total_cmp(&b.0));
    goodputs
}

/// Seeds of a test: some, and all twenty for `make sim`.
fn seeds() -> u64 {
    number("SPHINX_SIM_SEEDS").map_or(5, |_| 20)
}

/// All seeds but one reach `bound`, and that one nearly: of 360 other seeds one in 120 stays below on the first link, one in
/// 180 on the second.
fn check(goodputs: &[(f64, u64)], bound: f64) {
    assert!(goodputs[1].0 >= bound, "{goodputs:.1?}");
    assert!(goodputs[0].0 >= 0.9 * bound, "{goodputs:.1?}");
}

// The bounds are the medians of kernel BBR on the same links.

#[test]
fn eight_milliseconds_of_jitter_do_not_bring_the_rate_down() {
    let goodputs = goodputs(seeds(), |seed| varying(150, 24, 8, 0.02, 1.0, seed));
    check(&goodputs, 116.0);
}

#[test]
fn fifteen_milliseconds_of_jitter_do_not_bring_the_rate_down() {
    let goodputs = goodputs(seeds(), |seed| varying(100, 40, 15, 0.01, 1.0, seed));
    check(&goodputs, 75.0);
}

#[test]
#[ignore = "a table for people"]
fn table_of_jitter() {
    println!("goodput in Mbit/s over 20 seeds: lowest, median, highest");
    for queue in [0.5, 1.0, 4.0] {
        for (mbit, rtt, jitter, loss) in [(150, 24, 8, 0.02), (100, 40, 15, 0.01)] {
            let goodputs = goodputs(20, |seed| varying(mbit, rtt, jitter, loss, queue, seed));
            println!(
                "{mbit} Mbit/s, RTT {rtt} ms, ±{jitter} ms, loss {loss}, queue {queue} BDP: {:.1} {:.1} {:.1}",
                goodputs[0].0, goodputs[10].0, goodputs[19].0
            );
        }
    }
}
