//! Bulk transfers arrive whole.

use sphinx_link::Loss;

use crate::pair::{Scenario, SEC, link};

#[test]
fn clean() {
    let mut pair = Scenario::new(link(200, 10, Loss::None, 1)).bulk(5_000_000).build();
    assert!(pair.run_transfer(20 * SEC));
    println!("{:?} {:#?}", pair.now, pair.client().session.stats());
}

#[test]
fn six_percent() {
    let mut pair = Scenario::new(link(200, 10, Loss::Bernoulli(0.06), 1)).bulk(5_000_000).build();
    assert!(pair.run_transfer(20 * SEC));
    println!("{:?} {:#?}", pair.now, pair.client().session.stats());
}

#[test]
#[ignore]
fn trace() {
    let p: f64 = std::env::var("P").map_or(0.0, |v| v.parse().unwrap());
    let rtt: u64 = std::env::var("RTT").map_or(10, |v| v.parse().unwrap());
    let mut s = Scenario::new(link(200, rtt, if p > 0.0 { Loss::Bernoulli(p) } else { Loss::None }, 1)).bulk(50_000_000);
    if let Ok(f) = std::env::var("FIXED") { s.cc = sphinx_proto::cc::CcKind::Fixed(f.parse().unwrap()); }
    let mut pair = s.build();
    let mut at = 0;
    let done = pair.run_until(20 * SEC, |pair| {
        if pair.now >= at {
            at += std::env::var("STEP").map_or(100, |v| v.parse().unwrap()) * 1_000_000;
            let s = pair.client().session.stats();
            let c = pair.links[0].counters();
            println!("{:8.3} rate {:6.1} Mb cwnd {:8} rtt {:6.2} plr {:.3} queue {:8} drops {} spur {} pro {} rea {} src {} red {}", pair.now as f64 / 1e6, s.pacing_rate as f64 * 8e-6, s.cwnd, s.rtt as f64 / 1e6, s.plr, pair.links[0].queue_bytes(), c.dropped_queue, s.losses_spurious, s.repair_proactive, s.repair_reactive, s.source_sent, pair.server().session.stats().symbols_redundant);
        }
        pair.ends.iter().all(crate::end::End::all_delivered)
    });
    let c = pair.links[0].counters();
    println!("{done} goodput {:.3} overhead {:.4} of floor-target {:.4} queue mean {} {:?}", 50e6 * 8.0 / (pair.now as f64 / 1e9) / 200e6 / (1.0 - p), c.offered_bytes as f64 / 50e6 , c.offered_bytes as f64 / 50e6 * (1.0 - p), pair.mean_queue(), pair.client().session.stats());
}
