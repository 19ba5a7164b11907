//! The measurements of the project in virtual time: what the protocol does on the links of the
//! comparison, without the noise of a machine.
//!
//! ```text
//! cargo test -p sphinx-proto --release --test sim -- --ignored --nocapture table
//! ```

use sphinx_fec::CodeId;
use sphinx_link::{GilbertElliott, LinkConfig, Loss};
use sphinx_proto::cc::CcKind;
use sphinx_sim::{MS, Pair, SEC, Scenario, link};

use crate::icm::MODES;
use crate::random::number;

const MBIT: u64 = 200;
/// Seeds of a bulk row, unless `SPHINX_SIM_TABLE_SEEDS` says how many.
const SEEDS: u64 = 3;

pub(crate) fn bernoulli(p: f64) -> Loss {
    if p > 0.0 {
        Loss::Bernoulli(p)
    } else {
        Loss::None
    }
}

/// What a bulk transfer came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bulk {
    /// Goodput over what the link carries without the lost share.
    pub(crate) goodput: f64,
    /// IP bytes sent forward over payload, times the share that is not lost.
    pub(crate) overhead: f64,
    pub(crate) queue_drops: f64,
    pub(crate) queue_ms: f64,
}

/// Transfers `len` bytes over a link of `MBIT` that loses the share `p`.
pub(crate) fn bulk(scenario: &Scenario, len: u64, p: f64) -> Bulk {
    let mut pair = as_in_an_engine(scenario).bulk(len).build();
    assert!(pair.run_transfer(120 * SEC), "not done: {}", state(&pair));
    let (done_at, ..) = *pair.server().pieces_received().last().expect("blocks");
    let counters = pair.links[0].counters();
    let rate = MBIT as f64 * 1e6;
    Bulk {
        goodput: len as f64 * 8.0 / (done_at as f64 / 1e9) / rate / (1.0 - p),
        overhead: counters.offered_bytes as f64 / len as f64 * (1.0 - p),
        queue_drops: counters.dropped_queue as f64 / counters.offered_packets as f64,
        queue_ms: pair.mean_queue() as f64 * 8e3 / rate,
    }
}

/// Packets that arrive gather, at both ends.
fn as_in_an_engine(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.client.gathers = true;
    scenario.server.gathers = true;
    scenario
}

fn state(pair: &Pair) -> String {
    format!(
        "{:#?} {:?}",
        pair.client().session().stats(),
        pair.links[0].counters()
    )
}

/// Latencies of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) mean_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) second_rounds: f64,
    pub(crate) overhead: f64,
}

/// Hands over `count` messages of `len` bytes, one every `interval`.
pub(crate) fn blocks(
    scenario: &Scenario,
    len: u64,
    interval: u64,
    count: u64,
    warmup: u64,
) -> Blocks {
    let mut pair = as_in_an_engine(scenario)
        .blocks(len, interval, count)
        .build();
    assert!(
        pair.run_transfer(count * interval + 20 * SEC),
        "not done: {}",
        state(&pair)
    );
    let arrivals = pair.server().message_arrivals(len, count);
    let mut latencies: Vec<f64> = arrivals
        .iter()
        .enumerate()
        .map(|(i, at)| (at.expect("all have arrived") - i as u64 * interval) as f64 / 1e6)
        .skip(warmup as usize)
        .collect();
    latencies.sort_by(f64::total_cmp);
    let stats = pair.client().session().stats();
    Blocks {
        mean_ms: latencies.iter().sum::<f64>() / latencies.len() as f64,
        p99_ms: latencies[latencies.len() * 99 / 100],
        max_ms: latencies[latencies.len() - 1],
        second_rounds: stats.blocks_second_round as f64 / stats.blocks as f64,
        overhead: pair.links[0].counters().offered_bytes as f64 / (len * count) as f64,
    }
}

/// Whether the row is wanted: `SPHINX_SIM_ROWS` may name some, separated by semicolons.
pub(crate) fn is_wanted(name: &str) -> bool {
    std::env::var("SPHINX_SIM_ROWS")
        .ok()
        .is_none_or(|rows| rows.split(';').any(|row| name.contains(row)))
}

/// Prints the row of bulk transfers over several seeds.
fn print_bulk(name: &str, p: f64, len: u64, build: impl Fn(u64) -> Scenario) {
    if !is_wanted(name) {
        return;
    }
    let seeds = number("SPHINX_SIM_TABLE_SEEDS").unwrap_or(SEEDS);
    let mut runs: Vec<Bulk> = (1..=seeds).map(|seed| bulk(&build(seed), len, p)).collect();
    runs.sort_by(|a, b| a.goodput.total_cmp(&b.goodput));
    let median = runs[runs.len() / 2];
    println!(
        "{name:34} {:7.3} ({:.3}) {:9.4} {:7.2} % {:7.2} ms",
        median.goodput,
        runs[0].goodput,
        median.overhead,
        100.0 * median.queue_drops,
        median.queue_ms,
    );
}

/// Prints the row of 2000 blocks of 100 kB.
fn print_blocks(name: &str, scenario: &Scenario, interval: u64) {
    if !is_wanted(name) {
        return;
    }
    let b = blocks(scenario, 100_000, interval, 2000, 25);
    println!(
        "{name}: mean {:6.2} p99 {:6.2} max {:6.2}, second rounds {:.2} %, wire {:.3}",
        b.mean_ms,
        b.p99_ms,
        b.max_ms,
        100.0 * b.second_rounds,
        b.overhead
    );
}

fn with_return_loss(
    (forward, backward): (LinkConfig, LinkConfig),
    p: f64,
) -> (LinkConfig, LinkConfig) {
    let loss = bernoulli(p);
    (forward, LinkConfig { loss, ..backward })
}

#[test]
#[ignore = "a table for people"]
fn table() {
    println!("200 Mbit/s, queue 1 BDP, 50 MB, goodput / (rate * (1-p)): median (worst)");
    println!(
        "{:34} {:7} {:7} {:>9} {:>9} {:>10}",
        "link", "goodput", "(worst)", "wire*(1-p)", "drops", "queue"
    );
    for rtt in [10, 100] {
        for p in [0.0, 0.001, 0.01, 0.02, 0.06, 0.10, 0.20] {
            let name = format!("rtt {rtt} ms, loss {} %", 100.0 * p);
            print_bulk(&name, p, 50_000_000, |seed| {
                Scenario::new(link(MBIT, rtt, bernoulli(p), seed))
            });
        }
    }
    for p in [0.0, 0.01, 0.06] {
        let name = format!("rtt 100 ms, loss {} %, fixed 190", 100.0 * p);
        print_bulk(&name, p, 50_000_000, |seed| Scenario {
            cc: CcKind::Fixed(190_000_000 / 8),
            ..Scenario::new(link(MBIT, 100, bernoulli(p), seed))
        });
        let name = format!("rtt 100 ms, loss {} %, 250 MB", 100.0 * p);
        print_bulk(&name, p, 250_000_000, |seed| {
            Scenario::new(link(MBIT, 100, bernoulli(p), seed))
        });
    }
    let bursts = Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0));
    print_bulk(
        "rtt 50 ms, loss 5 % in bursts of 8",
        0.05,
        50_000_000,
        |seed| Scenario::new(link(MBIT, 50, bursts.clone(), seed)),
    );
    print_bulk(
        "rtt 80 ms, loss 3 %, return 30 %",
        0.03,
        50_000_000,
        |seed| Scenario::new(with_return_loss(link(MBIT, 80, bernoulli(0.03), seed), 0.3)),
    );
    for (rtt, p) in [(10, 0.06), (10, 0.20), (100, 0.06)] {
        for icm in MODES {
            let name = format!("rtt {rtt} ms, loss {} %, icm {icm:?}", 100.0 * p);
            print_bulk(&name, p, 50_000_000, |seed| Scenario {
                icm,
                ..Scenario::new(link(MBIT, rtt, bernoulli(p), seed))
            });
        }
    }
    println!();
    println!("100 kB blocks, rtt 10 ms: one-way milliseconds");
    for (mbit, interval) in [(20, 40 * MS), (100, 8 * MS)] {
        for p in [0.0, 0.01, 0.02, 0.06, 0.10, 0.20] {
            let scenario = Scenario::new(link(MBIT, 10, bernoulli(p), 1));
            let name = format!("{mbit:3} Mbit/s offered, loss {:4} %", 100.0 * p);
            print_blocks(&name, &scenario, interval);
        }
    }
    // Without proactive repair every loss needs ICM.
    for (rtt, interval) in [(10, 8 * MS), (10, 40 * MS), (40, 8 * MS)] {
        for (code, p) in [(Some(CodeId::Rlc), 0.06), (None, 0.06)] {
            for icm in MODES {
                let scenario = Scenario {
                    icm,
                    code,
                    ..Scenario::new(link(MBIT, rtt, bernoulli(p), 1))
                };
                let code = code.map_or("no code", |_| "rlc");
                let every = interval / MS;
                let name = format!("rtt {rtt} ms, every {every} ms, {code}, 6 %, icm {icm:?}");
                print_blocks(&name, &scenario, interval);
            }
        }
    }
}
