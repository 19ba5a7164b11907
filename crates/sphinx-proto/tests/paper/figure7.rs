//! Figure 7 from sessions: what is sent ahead, what in all, and how many blocks need another round, against the equations and
//! against what the packets that they ask for give.

use sphinx_link::Loss;
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Delta, Paper, redundant};
use sphinx_sim::{SEC, Scenario, link};

/// Blocks of a run.
const BLOCKS: u64 = 800;

/// Share of blocks of 100 symbols that peeling does not finish at 6 % loss behind packets of the degree that the equations ask for and
/// `ahead` of them on the average, by drawing. (As p is measured, sessions send a little more than the equations for 6 %.)
fn needing_another(threshold: f64, ahead: f64) -> f64 {
    const DRAWN: usize = 20_000;
    let asked = redundant(100, 0.06, 0.0, threshold);
    let mut state = 1_u64;
    let mut below = move |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(5);
        ((state >> 33) * bound) >> 31
    };
    let unfinished = (0..DRAWN).filter(|_| {
        let mut lost: Vec<bool> = (0..100).map(|_| below(100) < 6).collect();
        let mut packets: Vec<Vec<usize>> = Vec::new();
        let above = (below(1 << 20) as f64) < ahead.fract() * f64::from(1 << 20);
        for _ in 0..ahead as usize + usize::from(above) {
            let mut symbols: Vec<usize> = (0..100).collect();
            for i in 0..asked.degree as usize {
                symbols.swap(i, i + below(100 - i as u64) as usize);
            }
            if below(100) >= 6 {
                packets.push(symbols[..asked.degree as usize].to_vec());
            }
        }
        let last = |packet: &Vec<usize>, lost: &[bool]| {
            let mut missing = packet.iter().copied().filter(|symbol| lost[*symbol]);
            missing.next().filter(|_| missing.next().is_none())
        };
        while let Some(symbol) = packets.iter().find_map(|packet| last(packet, &lost)) {
            lost[symbol] = false;
        }
        lost.contains(&true)
    });
    unfinished.count() as f64 / DRAWN as f64
}

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
            // What rows of distinct symbols give, each block others, over links that lose each packet by itself: one standard
            // error of the sessions is below two points.
            let (exactly, standard_error) = (needing_another(t, row.ahead), 0.0175);
            assert!(
                (row.again - exactly).abs() <= 2.5 * standard_error,
                "{t}: {} {exactly}",
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
