//! What links do besides losing packets.

use std::time::Duration;

use sphinx_driver::EndReason;
use sphinx_link::{Blackout, Corruption, Jitter, Order, Rate, RateStep, Reorder};
use sphinx_sim::{MS, Pair, SEC, Scenario, Write, link};

use crate::table::bernoulli;

fn lossy(seed: u64) -> Scenario {
    Scenario::new(link(100, 20, bernoulli(0.03), seed))
}

#[test]
fn reordering() {
    for (probability, hold_ms) in [(0.05, 1), (0.2, 3), (0.01, 50), (0.5, 20)] {
        let scenario = lossy(1).both_ways(3_000_000).on_links(|link| {
            link.reorder = Reorder {
                probability,
                hold: Duration::from_millis(hold_ms),
            };
        });
        scenario.build().must_transfer(10 * SEC);
    }
}

#[test]
fn jitter_that_shuffles_everything() {
    let scenario = lossy(2).both_ways(3_000_000).on_links(|link| {
        link.jitter = Jitter {
            max: Duration::from_millis(15),
            order: Order::Free,
        };
    });
    scenario.build().must_transfer(10 * SEC);
}

#[test]
fn duplication() {
    let scenario = lossy(3).both_ways(3_000_000);
    let mut pair = scenario.on_links(|link| link.duplication = 0.5).build();
    pair.must_transfer(10 * SEC);
}

#[test]
fn corruption() {
    let scenario = lossy(4).both_ways(3_000_000).on_links(|link| {
        link.corruption = Corruption {
            probability: 0.1,
            bits: 3,
        };
    });
    scenario.build().must_transfer(10 * SEC);
}

#[test]
fn a_return_path_that_loses_much() {
    let mut scenario = lossy(5).bulk(5_000_000);
    scenario.backward.loss = bernoulli(0.3);
    scenario.build().must_transfer(10 * SEC);
}

#[test]
fn five_dark_seconds() {
    let scenario = lossy(6).both_ways(20_000_000).on_links(|link| {
        link.blackouts.push(Blackout {
            start: Duration::from_millis(500),
            end: Duration::from_millis(5500),
        });
    });
    let mut pair = scenario.build();
    pair.must_transfer(12 * SEC);
    // Probing resumes at least twice a second.
    assert!(pair.now < 8500 * MS, "{} ms", pair.now / MS);
}

/// Nothing is on its way when the path goes dark, nor while it is.
#[test]
fn a_dark_path_is_no_loss_while_nothing_is_sent() {
    let mut scenario = lossy(9).bulk(10_000).on_links(|link| {
        link.blackouts.push(Blackout {
            start: Duration::from_secs(1),
            end: Duration::from_secs(13),
        });
    });
    scenario.server.writes = vec![Write {
        at: 13 * SEC,
        stream: 0,
        len: 10_000,
        end_of_stream: true,
    }];
    let mut pair = scenario.build();
    pair.must_transfer(16 * SEC);
    assert!(pair.now > 13 * SEC);
}

/// A path that says nothing is probed, a few times at first and twice a second in the end, not sent to at the old rate.
#[test]
fn a_dark_path_is_probed_with_few_packets() {
    let scenario = lossy(10).bulk(50_000_000).on_links(|link| {
        link.blackouts.push(Blackout {
            start: Duration::from_secs(1),
            end: Duration::from_secs(1000),
        });
    });
    let mut pair = scenario.build();
    // By then the window has been filled.
    pair.run_until(2 * SEC, |_| false);
    let offered = |pair: &Pair| pair.links[0].counters().offered_packets;
    let before = offered(&pair);
    pair.run_until(12 * SEC, |_| false);
    let probes = offered(&pair) - before;
    assert!((10..100).contains(&probes), "{probes} in ten seconds");
}

#[test]
fn darkness_for_good() {
    let scenario = lossy(7).both_ways(20_000_000).on_links(|link| {
        link.blackouts.push(Blackout {
            start: Duration::from_millis(500),
            end: Duration::from_secs(1000),
        });
    });
    let mut pair = scenario.build();
    assert!(!pair.run_transfer(60 * SEC));
    for end in &pair.ends {
        assert!(
            matches!(end.events[..], [(at, EndReason::PeerLost)] if at > 15 * SEC && at < 16 * SEC)
        );
        assert!(end.session().is_finished());
    }
}

#[test]
fn small_mtu() {
    let scenario = lossy(8).both_ways(3_000_000);
    let mut pair = scenario.on_links(|link| link.mtu = Some(1280)).build();
    pair.must_transfer(10 * SEC);
    assert_eq!(pair.client().session().stats().symbol_len, 1162);
}

#[test]
fn large_mtu() {
    let scenario = lossy(9).both_ways(3_000_000);
    let mut pair = scenario.on_links(|link| link.mtu = Some(9000)).build();
    pair.must_transfer(10 * SEC);
    assert_eq!(pair.client().session().stats().symbol_len, 8934);
}

#[test]
fn the_rate_changes() {
    let step = |ms: u64, mbit: u64| RateStep {
        at: Duration::from_millis(ms),
        bits_per_second: mbit * 1_000_000,
    };
    let mut scenario = lossy(10).bulk(40_000_000);
    scenario.forward.rate = Rate::Steps {
        steps: vec![step(0, 200), step(700, 20), step(1700, 0), step(2000, 200)],
        repeat: None,
    };
    let mut pair = scenario.build();
    pair.must_transfer(12 * SEC);
    assert!(pair.now < 5 * SEC, "{} ms", pair.now / MS);
}

#[test]
fn far_away() {
    let scenario = Scenario::new(link(50, 600, bernoulli(0.05), 13)).both_ways(3_000_000);
    let mut pair = scenario.build();
    pair.must_transfer(60 * SEC);
    assert!(pair.now < 12 * SEC, "{} ms", pair.now / MS);
}

#[test]
fn decoding_that_takes_its_time() {
    let mut scenario = lossy(14).both_ways(3_000_000);
    scenario.client.job_delay_max = 30 * MS;
    scenario.server.job_delay_max = 30 * MS;
    scenario.build().must_transfer(10 * SEC);
}
