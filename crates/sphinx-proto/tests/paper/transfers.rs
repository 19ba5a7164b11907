//! Whole transfers in the paper's mode, over drivers and a link.

use std::time::Duration;

use sphinx_fec::CodeId;
use sphinx_link::{Aqm, Depth, EcnRule, Loss};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{EcnMode, Paper, Resend, Triggers};
use sphinx_sim::{MS, SEC, Scenario, link};

const LEN: u64 = 3_000_000;

fn scenario(paper: Paper, loss: f64, seed: u64) -> Scenario {
    let loss = Loss::Bernoulli(loss);
    let mut scenario = Scenario::new(link(100, 10, loss, seed)).bulk(LEN);
    scenario.paper = Some(paper);
    scenario.cc = CcKind::Fixed(100_000_000 / 8 * 95 / 100);
    scenario
}

#[test]
fn every_code_arrives() {
    for code in [CodeId::Srlt, CodeId::Lt, CodeId::Rs, CodeId::FftRs] {
        for loss in [0.0, 0.06, 0.2] {
            let paper = Paper {
                code,
                ..Paper::default()
            };
            let mut pair = scenario(paper, loss, 1).build();
            pair.must_transfer(60 * SEC);
            let stats = pair.client().session().stats();
            println!("{code:?} {loss} {} ms {stats:?}", pair.now / MS);
        }
    }
}

#[test]
fn what_icm_can_be_arrives() {
    for (block, symbol) in [(false, false), (true, false), (false, true)] {
        for resend in [Resend::Missing, Resend::Block] {
            let paper = Paper {
                icm: Triggers { block, symbol },
                resend,
                timer_us: 50_000,
                ..Paper::default()
            };
            scenario(paper, 0.06, 2).build().must_transfer(60 * SEC);
        }
    }
}

#[test]
fn half_of_all_feedback_may_be_lost() {
    for seed in 0..4 {
        let mut scenario = scenario(Paper::default(), 0.06, seed);
        scenario.backward.loss = Loss::Bernoulli(0.5);
        scenario.build().must_transfer(60 * SEC);
    }
}

#[test]
fn the_window_adapts() {
    let mut scenario = scenario(Paper::default(), 0.02, 3);
    scenario.cc = CcKind::AimdEcn;
    scenario.client.ecn = EcnMode::Classic;
    scenario.server.ecn = EcnMode::Classic;
    scenario.build().must_transfer(60 * SEC);
}

/// A round trip of 1 ms and a queue of twenty: what is compensated once in each round trip of an empty path would go twenty times
/// before the first answer.
#[test]
fn a_long_queue_is_not_flooded() {
    for (code, clear_ecn, loss) in [
        (CodeId::Srlt, false, 0.0),
        (CodeId::Srlt, false, 0.06),
        (CodeId::Srlt, true, 0.0),
        (CodeId::Srlt, true, 0.06),
        (CodeId::Rs, true, 0.06),
        (CodeId::Lt, true, 0.06),
    ] {
        let (mut forward, mut backward) = link(200, 1, Loss::Bernoulli(loss), 1);
        forward.queue = Depth::Time(Duration::from_millis(20));
        forward.aqm = Aqm::mark_above(Depth::Time(Duration::from_millis(10)));
        if clear_ecn {
            (forward.ecn, backward.ecn) = (EcnRule::Clear, EcnRule::Clear);
        }
        let mut scenario = Scenario::new((forward, backward)).bulk(4 * LEN);
        scenario.paper = Some(Paper {
            code,
            ..Paper::default()
        });
        scenario.cc = CcKind::AimdEcn;
        (scenario.client.ecn, scenario.server.ecn) = (EcnMode::Classic, EcnMode::Classic);
        let mut pair = scenario.build();
        pair.must_transfer(60 * SEC);
        let sent = pair.links[0].counters().offered_bytes;
        println!(
            "{code:?}, cleared: {clear_ecn}, {loss}: {} ms, {:.2}",
            pair.now / MS,
            sent as f64 / (4.0 * LEN as f64)
        );
        assert!(sent < 3 * 4 * LEN, "{sent}");
    }
}
