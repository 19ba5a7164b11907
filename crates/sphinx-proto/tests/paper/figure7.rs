//! Figure 7 from sessions: what is sent ahead, what in all, and how many blocks need another round.

use sphinx_link::Loss;
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Delta, Paper, redundant};
use sphinx_sim::{SEC, Scenario, link};

/// Blocks of a run.
const BLOCKS: u64 = 800;

struct Row {
    ahead: f64,
    total: f64,
    again: f64,
}

fn measure(threshold: u32, delta: Delta, loss: u32, seed: u64) -> Row {
    let paper = Paper {
        threshold,
        delta,
        initial: loss,
        window: 64,
        ..Paper::default()
    };
    let rate = 100_000_000;
    let random = Loss::Bernoulli(f64::from(loss) / 1e6);
    let mut scenario = Scenario::new(link(100, 10, random, seed)).bulk(BLOCKS * 100_000);
    scenario.paper = Some(paper);
    scenario.cc = CcKind::Fixed(rate / 8 * 95 / 100);
    let mut pair = scenario.build();
    pair.must_transfer(600 * SEC);
    let stats = pair.client().session().stats();
    let (blocks, sources) = (stats.blocks as f64, stats.source_sent as f64);
    Row {
        ahead: stats.repair_proactive as f64 / sources * 100.0,
        total: (stats.repair_proactive + stats.repair_reactive) as f64 / sources,
        again: stats.blocks_second_round as f64 / blocks,
    }
}

#[test]
fn sessions_send_what_the_equations_say() {
    println!(
        "6 % loss, {BLOCKS} blocks of 100 symbols: T, delta, equations, ProFEC, in all (%), another round (%)"
    );
    for threshold in [300_000, 500_000, 900_000] {
        let t = f64::from(threshold) / 1e6;
        let says = f64::from(redundant(100, 0.06, 0.0, t).count);
        for delta in [Delta::Share(0), Delta::Measured] {
            let row = measure(threshold, delta, 60_000, 7);
            let (total, again) = (row.total * 100.0, row.again * 100.0);
            println!(
                "{t}: {delta:?} {says} {:.2} {total:.2} {again:.2}",
                row.ahead
            );
            if delta == Delta::Measured {
                continue;
            }
            assert!((row.ahead - says).abs() <= 1.0, "{t}: {}", row.ahead);
            // Fewer blocks ask again than 1 − T says, probably because the symbols of a packet are distinct, while the equations draw each
            // anew; one standard error is two points. The bounds are what was seen, with room: they notice changes.
            assert!(
                (-0.15..0.05).contains(&(row.again - (1.0 - t))),
                "{t}: {}",
                row.again
            );
            assert!(
                threshold > 500_000 || row.total <= 0.2,
                "{t}: {}",
                row.total
            );
        }
    }
}
