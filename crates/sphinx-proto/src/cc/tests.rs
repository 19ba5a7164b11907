//! Properties of the controllers over the test link.

use super::testlink::{App, Link, Report, World, mbit};
use super::{CcKind, CcParams, MS, Nanos, SEC, build};

fn bbr() -> Box<dyn super::RateControl> {
    build(CcKind::Bbr, CcParams::default())
}

fn saturate(link: Link, seconds: u64) -> Report {
    World::new(link).add(bbr(), App::Saturating, 0).run(seconds * SEC).remove(0)
}

/// A row per link: utilisation, drops, queue, start-up.
#[test]
#[ignore = "prints a table"]
fn table() {
    println!("rate  rtt   loss |  util   drops  queue/BDP  lost capacity at start (RTT)");
    for (rate, rtt) in [(200.0, 10), (200.0, 100), (20.0, 50), (200.0, 600), (1000.0, 10)] {
        for loss in [0.0, 0.001, 0.01, 0.06, 0.1, 0.2, 0.3] {
            let report = saturate(Link::new(rate, rtt, loss), 12);
            print_row(&format!("{rate:5} {rtt:4} {loss:5.3}"), &report, mbit(rate), rtt * MS);
        }
    }
}

fn print_row(name: &str, r: &Report, rate: f64, rtt: Nanos) {
    let from = (20 * rtt).max(SEC);
    let bdp = rate * rtt as f64 / SEC as f64;
    // The pipe cannot fill before half a round trip.
    let start = 20 * rtt;
    let missing = (rate - r.rate(0, start)) * start as f64 / SEC as f64 / bdp;
    println!(
        "{name} | {:6.3} {:6.3}% {:6.2} {:6.2}  startup drops {:5.2}% {:?}",
        r.rate(from, 12 * SEC) / rate,
        100.0 * r.drops(from, 12 * SEC),
        r.mean_queue(from, 12 * SEC) / bdp,
        missing,
        100.0 * r.drops(0, start),
        r.phases,
    );
}
