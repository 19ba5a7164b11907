//! What links that are not of constant rate and delay are to give, and what they give: one line for each goal, in virtual time. The handshake,
//! which is not simulated here, is counted as one round trip where times begin with it.
//!
//! ```text
//! cargo test -p sphinx-proto --release --test sim -- --ignored --nocapture table_of_goals
//! ```

use std::time::Duration;

use sphinx_link::{Depth, Jitter, LinkConfig, Order};
use sphinx_proto::PathMemory;
use sphinx_sim::{MS, Pair, SEC, Scenario, link};

use crate::table::bernoulli;

const SEEDS: u64 = 5;

/// Median, and the worst value.
fn of(mut values: Vec<f64>, worst: fn(f64, f64) -> f64) -> (f64, f64) {
    let end = values.iter().copied().reduce(worst).expect("some seeds");
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], end)
}

fn print(goal: &str, value: String, is_met: bool) {
    println!(
        "{goal:64} {value:34} {}",
        if is_met { "met" } else { "MISSED" }
    );
}

/// Time of the last byte at the receiver, from the end of the handshake, ns.
fn last_byte(scenario: Scenario, len: u64) -> (f64, Pair) {
    let mut scenario = scenario.bulk(len);
    scenario.client.gathers = true;
    scenario.server.gathers = true;
    let mut pair = scenario.build();
    assert!(pair.run_transfer(120 * SEC), "not done");
    let (at, ..) = *pair.server().pieces_received().last().expect("arrived");
    (at as f64, pair)
}

/// Part of what a link of 100 Mbit/s carries that 50 MB have, with a round trip of `rtt` ms on average, and delays that vary by `jitter` ms to either side.
fn over_jitter(rtt: u64, (jitter, order): (u64, Order), loss: f64, seed: u64) -> f64 {
    let vary = |link: &mut LinkConfig| {
        link.queue = Depth::Bytes(100 * 125 * rtt);
        link.delay = Duration::from_millis(rtt / 2 - jitter);
        link.jitter = Jitter {
            max: Duration::from_millis(2 * jitter),
            order,
        };
    };
    let scenario = Scenario::new(link(100, rtt, bernoulli(loss), seed)).on_links(vary);
    let (at, _) = last_byte(scenario, 50_000_000);
    50e6 * 8e9 / at / 100e6 / (1.0 - loss)
}

fn jitter() {
    for (name, rtt, order, jitter) in [
        ("±5 ms kept", 40, Order::Kept, 5),
        ("±15 ms kept", 40, Order::Kept, 15),
        ("±30 ms kept, RTT 60", 60, Order::Kept, 30),
        ("10 ms free", 40, Order::Free, 5),
    ] {
        for loss in [0.0, 0.01] {
            let goodput = |seed| over_jitter(rtt, (jitter, order), loss, seed);
            let (median, worst) = of((1..=SEEDS).map(goodput).collect(), f64::min);
            print(
                &format!("jitter {name}, loss {loss}: >= 0.88, worst >= 0.80 of C(1-p)"),
                format!("{median:.3} ({worst:.3})"),
                median >= 0.88 && worst >= 0.80,
            );
        }
    }
}

fn short() {
    let run = |rtt: u64, loss: f64, len: u64, memory: Option<PathMemory>| {
        let runs: Vec<_> = (1..=SEEDS)
            .map(|seed| {
                let mut scenario = Scenario::new(link(100, rtt, bernoulli(loss), seed));
                scenario.memory = memory;
                let (at, mut pair) = last_byte(scenario, len);
                let until = pair.now + 5 * rtt * MS;
                pair.run_until(until, |_| false);
                let sent = |way: usize| pair.links[way].counters().offered_bytes as f64;
                (at / 1e6 + rtt as f64, sent(0), sent(1))
            })
            .collect();
        let each = |of: fn(&(f64, f64, f64)) -> f64| runs.iter().map(of).collect::<Vec<_>>();
        (
            of(each(|run| run.0), f64::max),
            of(each(|run| run.1), f64::max).0 + 2600.0,
            of(each(|run| run.2), f64::max).0 + 1300.0,
        )
    };
    let serialisation = |len: u64| len as f64 * 8.0 / 100e3;
    for rtt in [40, 150] {
        let ((median, worst), there, back) = run(rtt, 0.0, 10_000, None);
        print(
            &format!("10 kB, RTT {rtt}: <= 1.5 RTT + 4 ms, 17 kB there, 7 kB back"),
            format!(
                "{median:.1} ms ({worst:.1}), {:.1} and {:.1} kB",
                there / 1e3,
                back / 1e3
            ),
            median <= 1.5 * rtt as f64 + 4.0 && there <= 17e3 && back <= 7e3,
        );
    }
    for loss in [0.0, 0.02] {
        let memory = PathMemory {
            rate: 12_500_000,
            rtt: 40 * MS,
            plr: loss,
            datagram_len: 1472,
        };
        for (name, memory, rtts) in [
            ("first contact", None, 2.2),
            ("known path", Some(memory), 1.6),
        ] {
            let ((median, worst), ..) = run(40, loss, 100_000, memory);
            print(
                &format!("100 kB, RTT 40, loss {loss}, {name}: <= {rtts} RTT + serialisation"),
                format!("{median:.1} ms ({worst:.1})"),
                median <= rtts * 40.0 + serialisation(100_000),
            );
        }
    }
    for (len, limit) in [(1_000_000, f64::INFINITY), (10_000_000, 1300.0)] {
        let ((median, worst), ..) = run(150, 0.02, len, None);
        print(
            &format!("{} MB, RTT 150, loss 0.02: <= {limit} ms", len / 1_000_000),
            format!("{median:.0} ms ({worst:.0})"),
            median <= limit,
        );
    }
}

fn far() {
    let goodput = |seed| {
        let (at, _) = last_byte(
            Scenario::new(link(50, 600, bernoulli(0.01), seed)),
            30_000_000,
        );
        30e6 * 8e3 / (at + 600e6)
    };
    let (median, worst) = of((1..=SEEDS).map(goodput).collect(), f64::min);
    print(
        "30 MB, 600 ms, 50 Mbit/s, loss 0.01: >= 36 Mbit/s",
        format!("{median:.1} Mbit/s ({worst:.1})"),
        median >= 36.0,
    );
}

/// Mbit/s over a link of 1 Mbit/s with a queue of four packets.
fn over_slow_link(seed: u64) -> f64 {
    let (mut forward, backward) = link(1, 50, bernoulli(0.0), seed);
    forward.queue = Depth::Packets(4);
    let mut pair = Scenario::new((forward, backward)).bulk(40_000_000).build();
    pair.run_until(10 * SEC, |_| false);
    let pieces = pair.server().pieces_received().iter();
    pieces.map(|(.., bytes)| f64::from(*bytes)).sum::<f64>() * 8.0 / 10e6
}

fn slow() {
    let (median, worst) = of((1..=SEEDS).map(over_slow_link).collect(), f64::min);
    print(
        "1 Mbit/s, RTT 50, four packets of queue: >= 0.85",
        format!("{median:.3} ({worst:.3})"),
        median >= 0.85,
    );
}

/// Once a flow is taken for one of several it is slow for seconds.
#[test]
fn a_flow_alone_is_not_taken_for_one_of_several() {
    let (_, worst) = of((1..=SEEDS).map(over_slow_link).collect(), f64::min);
    assert!(worst > 0.83, "1 Mbit/s, four packets of queue: {worst:.3}");
    for (rtt, jitter, least) in [(40, 15, (0.86, 0.72)), (60, 30, (0.75, 0.6))] {
        for loss in [0.0, 0.01] {
            let goodput = |seed| over_jitter(rtt, (jitter, Order::Kept), loss, seed);
            let (median, worst) = of((1..=12).map(goodput).collect(), f64::min);
            let name = format!("±{jitter} ms, loss {loss}: {median:.3} ({worst:.3})");
            assert!(median > least.0 && worst > least.1, "{name}");
        }
    }
}

#[test]
#[ignore = "a table for people"]
fn table_of_goals() {
    println!("{SEEDS} seeds, median (worst)");
    jitter();
    short();
    far();
    slow();
}
