//! How sessions end, and what keeps idle ones alive.

use std::time::Duration;

use sphinx_driver::EndReason;
use sphinx_link::Blackout;
use sphinx_proto::Nanos;
use sphinx_sim::{MS, Pair, SEC, Scenario, link};

use crate::table::bernoulli;

#[test]
fn close_is_noticed_within_a_second_at_20_percent_loss() {
    for seed in 0..50 {
        let scenario = Scenario::new(link(100, 20, bernoulli(0.2), seed)).both_ways(50_000_000);
        let scenario = scenario.on_links(|link| link.loss = bernoulli(0.2));
        let mut pair = scenario.build();
        pair.run_until(500 * MS, |_| false);
        let now = pair.now;
        pair.ends[0].close(6, "stopped");
        let both = pair.run_until(now + SEC, |pair| {
            pair.ends.iter().all(|end| end.session().is_finished())
        });
        assert!(both, "seed {seed}");
        let stopped = EndReason::ClosedByPeer {
            code: 6,
            reason: "stopped".into(),
        };
        let events = &pair.server().events;
        assert!(
            matches!(&events[..], [(_, event)] if *event == stopped),
            "seed {seed}: {events:?}"
        );
    }
}

#[test]
fn both_close_at_once() {
    let mut pair = Scenario::new(link(100, 20, bernoulli(0.1), 1)).build();
    pair.run_until(100 * MS, |_| false);
    for end in &mut pair.ends {
        end.close(0, "");
    }
    assert!(pair.run_until(SEC, |pair| {
        pair.ends.iter().all(|end| end.session().is_finished())
    }));
}

#[test]
fn a_dead_peer_is_lost_after_the_idle_timeout() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.05), 2)).both_ways(50_000_000);
    scenario.idle_timeout = [5 * SEC; 2];
    let mut pair = scenario.build();
    pair.run_until(500 * MS, |_| false);
    pair.cut[1] = true;
    assert!(!pair.run_transfer(20 * SEC));
    let events = &pair.client().events;
    assert!(
        matches!(events[..], [(at, EndReason::PeerLost)] if at > 5 * SEC && at < 6 * SEC),
        "{events:?}"
    );
}

/// It lives, and hears what it is not heard to answer: one end that knows is enough.
#[test]
fn a_peer_that_is_not_heard_any_more_is_told_so() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.2), 5));
    scenario.idle_timeout = [5 * SEC; 2];
    scenario.backward.blackouts.push(Blackout {
        start: Duration::from_millis(500),
        end: Duration::from_secs(1000),
    });
    let mut pair = scenario.build();
    assert!(pair.run_until(20 * SEC, |pair| {
        pair.ends.iter().all(|end| end.session().is_finished())
    }));
    let told = EndReason::ClosedByPeer {
        code: 12,
        reason: "it heard nothing from this end for its idle timeout".into(),
    };
    let (client, server) = (&pair.client().events, &pair.server().events);
    let [(lost, EndReason::PeerLost)] = client[..] else {
        panic!("{client:?}");
    };
    assert!(
        matches!(&server[..], [(at, end)] if *end == told && *at < lost + 400 * MS),
        "{server:?}"
    );
}

/// Runs for `time`; meanwhile the client is told every `interval` that nobody listens at the server's address.
fn refused(pair: &mut Pair, time: Nanos, interval: Nanos) {
    let end = pair.now + time;
    while pair.now < end && !pair.client().session().is_finished() {
        let now = pair.now;
        pair.ends[0].peer_refused(now);
        pair.run_until(now + interval, |_| false);
    }
}

#[test]
fn a_peer_that_the_network_refuses_is_gone_within_five_seconds() {
    for (interval, idle) in [(10 * MS, false), (SEC, false), (500 * MS, true)] {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.05), 2));
        if !idle {
            scenario = scenario.both_ways(50_000_000);
        }
        let mut pair = scenario.build();
        pair.run_until(500 * MS, |_| false);
        pair.cut[1] = true;
        refused(&mut pair, 20 * SEC, interval);
        let events = &pair.client().events;
        assert!(
            matches!(events[..], [(at, EndReason::PeerGone)] if at > 3 * SEC && at < 5500 * MS),
            "{events:?}"
        );
    }
}

#[test]
fn refusals_of_a_peer_that_is_heard_change_nothing() {
    // Whoever forges them, for as long as they like.
    for seed in 0..10 {
        let scenario = Scenario::new(link(50, 100, bernoulli(0.3), seed)).bulk(10_000_000);
        let mut pair = scenario.on_links(|link| link.loss = bernoulli(0.3)).build();
        refused(&mut pair, 10 * SEC, 20 * MS);
        let events = &pair.client().events;
        assert!(events.is_empty(), "seed {seed}: {events:?}");
    }
}

#[test]
fn refusals_of_the_past_do_not_shorten_a_silence() {
    let mut pair = Scenario::new(link(100, 20, bernoulli(0.0), 4))
        .both_ways(50_000_000)
        .build();
    pair.run_until(300 * MS, |_| false);
    pair.cut[1] = true;
    refused(&mut pair, 1500 * MS, 100 * MS);
    let now = pair.now;
    pair.run_until(now + 8 * SEC, |_| false);
    pair.cut[1] = false;
    assert!(pair.run_transfer(now + 60 * SEC), "the session has ended");
    assert!(pair.client().events.is_empty());
}

#[test]
fn an_idle_session_stays_alive_at_little_cost() {
    let scenario = Scenario::new(link(100, 20, bernoulli(0.3), 3));
    let mut pair = scenario.on_links(|link| link.loss = bernoulli(0.3)).build();
    pair.run_until(60 * SEC, |_| false);
    for (end, link) in pair.ends.iter().zip(&pair.links) {
        assert!(end.events.is_empty(), "{:?}", end.events);
        assert!(
            link.counters().offered_packets < 150,
            "{:?}",
            link.counters()
        );
    }
}
