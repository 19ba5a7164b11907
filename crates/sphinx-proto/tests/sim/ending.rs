//! How sessions end, and what keeps idle ones alive.

use sphinx_proto::Event;
use sphinx_sim::{MS, SEC, Scenario, link};

use crate::table::bernoulli;

#[test]
fn close_is_noticed_within_a_second_at_20_percent_loss() {
    for seed in 0..50 {
        let scenario = Scenario::new(link(100, 20, bernoulli(0.2), seed)).both_ways(50_000_000);
        let scenario = scenario.on_links(|link| link.loss = bernoulli(0.2));
        let mut pair = scenario.build();
        pair.run_until(500 * MS, |_| false);
        let now = pair.now;
        pair.ends[0].session.close(now, 6, "stopped");
        let both = pair.run_until(now + SEC, |pair| {
            pair.ends.iter().all(|end| end.session.is_finished())
        });
        assert!(both, "seed {seed}");
        let stopped = Event::Closed {
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
        end.session.close(100 * MS, 0, "");
    }
    assert!(pair.run_until(SEC, |pair| {
        pair.ends.iter().all(|end| end.session.is_finished())
    }));
}

#[test]
fn a_dead_peer_is_lost_after_the_idle_timeout() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.05), 2)).both_ways(50_000_000);
    scenario.idle_timeout = 5 * SEC;
    let mut pair = scenario.build();
    pair.run_until(500 * MS, |_| false);
    pair.cut[1] = true;
    assert!(!pair.run_transfer(20 * SEC));
    let events = &pair.client().events;
    assert!(
        matches!(events[..], [(at, Event::PeerLost)] if at > 5 * SEC && at < 6 * SEC),
        "{events:?}"
    );
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
