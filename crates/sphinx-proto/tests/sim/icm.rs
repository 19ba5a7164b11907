//! When losses are compensated: every mode delivers, and repair is not wasted on reordering.

use std::time::Duration;

use sphinx_fec::CodeId;
use sphinx_link::{GilbertElliott, Jitter, Loss, Order, Reorder};
use sphinx_proto::{Icm, Profile};
use sphinx_sim::{MS, SEC, Scenario, link};

use crate::table::{bernoulli, blocks, bulk};

pub(crate) const MODES: [Icm; 3] = [Icm::Default, Icm::Paper, Icm::Off];

fn with_mode(icm: Icm, scenario: Scenario) -> Scenario {
    Scenario { icm, ..scenario }
}

#[test]
fn every_mode_delivers() {
    let bursts = Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0));
    for icm in MODES {
        for loss in [
            bernoulli(0.0),
            bernoulli(0.06),
            bernoulli(0.2),
            bursts.clone(),
        ] {
            for profile in [Profile::Bulk, Profile::Latency] {
                for code in [Some(CodeId::Rlc), Some(CodeId::Srlt), None] {
                    let mut scenario = Scenario::new(link(100, 20, loss.clone(), 1));
                    scenario.profile = profile;
                    scenario.code = code;
                    let mut pair = with_mode(icm, scenario).both_ways(2_000_000).build();
                    pair.must_transfer(10 * SEC);
                }
            }
        }
    }
}

#[test]
fn every_mode_survives_lost_feedback() {
    for icm in MODES {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.06), 2)).bulk(5_000_000);
        scenario.backward.loss = bernoulli(0.3);
        with_mode(icm, scenario).build().must_transfer(10 * SEC);
        let scenario = Scenario::new(link(50, 20, bernoulli(0.45), 3)).both_ways(500_000);
        let scenario = scenario.on_links(|link| link.loss = bernoulli(0.45));
        with_mode(icm, scenario).build().must_transfer(30 * SEC);
    }
}

/// Blocks that are followed by none that would tell of their losses.
#[test]
fn every_mode_repairs_isolated_blocks() {
    for icm in MODES {
        let mut scenario = Scenario::new(link(200, 10, bernoulli(0.2), 4));
        // Without proactive repair most blocks need a second round.
        scenario.code = None;
        let result = blocks(&with_mode(icm, scenario), 100_000, 100 * MS, 200, 20);
        assert!(result.second_rounds > 0.9, "{icm:?}: {result:?}");
        assert!(result.mean_ms < 60.0, "{icm:?}: {result:?}");
    }
}

/// Nothing finds losses sooner than their packets do.
#[test]
fn the_default_mode_is_the_quickest() {
    let mean = |icm| {
        let mut scenario = Scenario::new(link(200, 40, bernoulli(0.06), 5));
        scenario.code = None;
        blocks(&with_mode(icm, scenario), 100_000, 20 * MS, 500, 50).mean_ms
    };
    let [default, paper, off] = MODES.map(mean);
    assert!(default < paper && default < off, "{default} {paper} {off}");
}

#[test]
fn bulk_fills_the_link_in_every_mode() {
    for icm in MODES {
        let scenario = with_mode(icm, Scenario::new(link(200, 10, bernoulli(0.06), 6)));
        let result = bulk(&scenario, 10_000_000, 0.06);
        assert!(result.goodput > 0.75, "{icm:?}: {result:?}");
        assert!(result.overhead < 1.09, "{icm:?}: {result:?}");
    }
}

/// Nothing is lost: what is repaired all the same is wasted.
#[test]
fn reordering_alone_wastes_little() {
    let held = |probability, ms| {
        let hold = Duration::from_millis(ms);
        let reorder = Reorder { probability, hold };
        (reorder, Jitter::default())
    };
    let shuffled = |ms| {
        let max = Duration::from_millis(ms);
        let order = Order::Free;
        (Reorder::default(), Jitter { max, order })
    };
    for (reorder, jitter) in [
        held(0.05, 2),
        held(0.01, 8),
        held(0.2, 3),
        shuffled(1),
        shuffled(4),
    ] {
        let mut scenario = Scenario::new(link(100, 20, Loss::None, 7)).bulk(20_000_000);
        scenario.forward.reorder = reorder;
        scenario.forward.jitter = jitter;
        let mut pair = scenario.build();
        pair.must_transfer(10 * SEC);
        let stats = pair.client().session().stats();
        let dropped = pair.links[0].counters().dropped_queue;
        let wasted = stats.repair_reactive as f64 / stats.source_sent as f64;
        println!(
            "{reorder:?} {jitter:?}: wasted {wasted:.4}, spurious {}, dropped {dropped}",
            stats.losses_spurious
        );
        assert!(wasted < 0.01, "{reorder:?} {jitter:?}: {wasted}");
    }
}
