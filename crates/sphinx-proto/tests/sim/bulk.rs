//! Bulk transfers fill the link, whatever it loses, and waste little.

use sphinx_link::{GilbertElliott, Loss};
use sphinx_proto::Profile;
use sphinx_sim::{SEC, Scenario, link};

use crate::table::{bernoulli, bulk};

/// 10 MB with start-up at RTT 10 ms.
#[test]
fn fills_a_lossy_link() {
    for (p, wire) in [(0.0, 1.055), (0.01, 1.06), (0.06, 1.075), (0.2, 1.12)] {
        let scenario = Scenario::new(link(200, 10, bernoulli(p), 1));
        let result = bulk(&scenario, 10_000_000, p);
        assert!(result.goodput > 0.85, "loss {p}: {result:?}");
        assert!(result.overhead < wire, "loss {p}: {result:?}");
        assert!(result.queue_drops < 0.01, "loss {p}: {result:?}");
    }
}

#[test]
fn survives_any_loss_both_ways() {
    for p in [0.3, 0.45, 0.6] {
        let scenario = Scenario::new(link(50, 20, bernoulli(p), 7)).both_ways(1_000_000);
        let mut pair = scenario.on_links(|link| link.loss = bernoulli(p)).build();
        pair.must_transfer(30 * SEC);
    }
}

#[test]
fn survives_bursts() {
    let loss = Loss::GilbertElliott(GilbertElliott::bursts(0.1, 30.0));
    for profile in [Profile::Bulk, Profile::Latency] {
        let mut scenario = Scenario::new(link(50, 30, loss.clone(), 3)).both_ways(3_000_000);
        scenario.profile = profile;
        scenario.build().must_transfer(10 * SEC);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let scenario = Scenario::new(link(100, 20, bernoulli(0.1), 9)).both_ways(2_000_000);
        let mut pair = scenario.build();
        pair.must_transfer(10 * SEC);
        (
            pair.now,
            *pair.links[0].counters(),
            *pair.links[1].counters(),
        )
    };
    assert_eq!(run(), run());
}

/// Feedback shares each direction with the other's data.
#[test]
fn both_directions_at_once_fill_the_link() {
    for p in [0.0, 0.06] {
        let scenario = Scenario::new(link(200, 10, bernoulli(p), 2)).both_ways(10_000_000);
        let mut pair = scenario.on_links(|link| link.loss = bernoulli(p)).build();
        pair.must_transfer(2 * SEC);
        let goodput = 80e6 / (pair.now as f64 / 1e9) / 200e6 / (1.0 - p);
        assert!(goodput > 0.8, "loss {p}: {goodput}");
    }
}
