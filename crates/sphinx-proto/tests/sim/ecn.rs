//! What becomes of ECN codepoints on paths, and what a session makes of it.

use std::time::Duration;

use sphinx_link::{Aqm, Depth, DualPi2, EcnRule};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{EcnMode, EcnUse, SessionStats};
use sphinx_sim::{MS, Pair, SEC, Scenario, link};

use crate::table::bernoulli;

/// A client that sends over a link with two queues.
fn scenario(mode: EcnMode, rule: EcnRule, loss: f64) -> Scenario {
    let mut scenario = Scenario::new(link(50, 20, bernoulli(loss), 3)).bulk(30_000_000);
    scenario.forward.aqm = Aqm::DualPi2(DualPi2::default());
    scenario.forward.queue = Depth::Time(Duration::from_millis(250));
    scenario.forward.ecn = rule;
    scenario.client.ecn = mode;
    scenario
}

fn stats(pair: &Pair) -> SessionStats {
    pair.client().session().stats()
}

fn transfer(scenario: Scenario) -> Pair {
    let mut pair = scenario.build();
    pair.must_transfer(30 * SEC);
    pair
}

#[test]
fn l4s_is_fast_and_waits_little() {
    for loss in [0.0, 0.01] {
        let pair = transfer(scenario(EcnMode::L4s, EcnRule::Keep, loss));
        let stats = stats(&pair);
        assert_eq!(stats.ecn, EcnUse::L4s);
        assert!(stats.packets_marked > 10, "{}", stats.packets_marked);
        // Some are lost behind the queue.
        let marked = pair.links[0].counters().marked;
        let heard = stats.packets_marked as f64 / marked as f64;
        assert!((0.97..=1.0).contains(&heard), "{loss}: {heard} of {marked}");
        // A packet has 0.24 ms on the link, and packets of start-up are among them.
        let p95 = pair.links[0].waits().quantile(0.95);
        assert!(p95 < 2 * MS, "{loss}: {p95} ns");
        let rate = 30e6 * 8.0 * SEC as f64 / pair.now as f64;
        assert!(
            rate > 0.85 * 50e6 * (1.0 - loss),
            "{loss}: {rate:.3e} bit/s"
        );
    }
}

#[test]
fn auto_is_classic() {
    let found = [EcnMode::Auto, EcnMode::Classic].map(|mode| {
        let pair = transfer(scenario(mode, EcnRule::Keep, 0.0));
        (stats(&pair).ecn, pair.now)
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].0, EcnUse::Classic);
}

#[test]
fn paths_that_spoil_codepoints_are_found_out() {
    for (mode, rule, expected) in [
        (EcnMode::L4s, EcnRule::Clear, EcnUse::Bleached),
        (EcnMode::Classic, EcnRule::Clear, EcnUse::Bleached),
        (EcnMode::L4s, EcnRule::Classic, EcnUse::Unproven),
        (EcnMode::L4s, EcnRule::Mark, EcnUse::Mangled),
        (EcnMode::Classic, EcnRule::Mark, EcnUse::Mangled),
        (EcnMode::L4s, EcnRule::Drop, EcnUse::Dropped),
        (EcnMode::Classic, EcnRule::Drop, EcnUse::Dropped),
        (EcnMode::Off, EcnRule::Drop, EcnUse::Off),
    ] {
        let pair = transfer(scenario(mode, rule, 0.0));
        assert_eq!(stats(&pair).ecn, expected, "{mode}, {rule:?}");
    }
}

#[test]
fn other_rate_control_has_no_scalable_response() {
    let mut scenario = scenario(EcnMode::L4s, EcnRule::Keep, 0.0);
    scenario.cc = CcKind::Cubic;
    assert_eq!(stats(&transfer(scenario)).ecn, EcnUse::Classic);
}
