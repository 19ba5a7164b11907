//! Short transfers: when the last byte arrives, and what they cost.

use sphinx_sim::{MS, Pair, SEC, Scenario, link};

use crate::table::bernoulli;

/// A transfer of `len` bytes over a path that nothing is known of, run until both ends are silent: when the last byte arrived, ms, and
/// IP bytes there and back.
fn short(mbit: u64, rtt: u64, loss: f64, len: u64, seed: u64) -> (f64, [u64; 2]) {
    let mut scenario = Scenario::new(link(mbit, rtt, bernoulli(loss), seed)).bulk(len);
    scenario.client.gathers = true;
    scenario.server.gathers = true;
    let mut pair = scenario.build();
    assert!(pair.run_transfer(20 * SEC), "seed {seed}");
    let (done_at, ..) = *pair.server().pieces_received().last().expect("arrived");
    let until = pair.now + 5 * rtt * MS;
    pair.run_until(until, |_| false);
    let sent = |way: usize, pair: &Pair| pair.links[way].counters().offered_bytes;
    (done_at as f64 / 1e6, [sent(0, &pair), sent(1, &pair)])
}

/// The handshake, which is not simulated here, sends 2.6 kB more there and 1.3 kB back.
#[test]
fn ten_kilobytes_cost_little_more() {
    for rtt in [10, 40, 150] {
        let (at, [there, back]) = short(100, rtt, 0.0, 10_000, 1);
        assert!(at < rtt as f64 / 2.0 + 4.0, "RTT {rtt} ms: {at:.1} ms");
        assert!(
            there <= 14_000 && back <= 3_000,
            "RTT {rtt} ms: {there}, {back} bytes"
        );
    }
}

#[test]
#[ignore = "a table for people"]
fn table_of_short_transfers() {
    println!(
        "from the end of the handshake, 5 seeds: last byte at the receiver, median (worst); IP bytes there and back, median"
    );
    for (mbit, rtt, loss) in [
        (100, 40, 0.0),
        (100, 40, 0.02),
        (100, 150, 0.0),
        (100, 150, 0.02),
    ] {
        for len in [10_000, 100_000, 1_000_000, 10_000_000] {
            let mut runs: Vec<_> = (1..6)
                .map(|seed| short(mbit, rtt, loss, len, seed))
                .collect();
            runs.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (at, [there, back]) = runs[2];
            let rtts = |at: f64| at / rtt as f64;
            println!(
                "{mbit} Mbit/s, RTT {rtt} ms, loss {:.0} %, {len:8} bytes: {at:7.1} ms = {:5.2} RTT ({:5.2}), {there} and {back} bytes",
                100.0 * loss,
                rtts(at),
                rtts(runs[4].0),
            );
        }
    }
}
