//! Losses that come in bursts: blocks whose first flight fails, and what is sent ahead, against the
//! least with which a flight fails no more often.
//!
//! ```text
//! cargo test -p sphinx-proto --release --test sim -- --ignored --nocapture bursts::table
//! ```

use sphinx_fec::params::burst_repair_for;
use sphinx_link::{GilbertElliott, Loss};
use sphinx_sim::{MS, SEC, Scenario, link};

use crate::random::number;

/// Packets of a recorded channel, after which it begins again.
const RECORDED: usize = 4_000_000;

/// How a link loses packets.
#[derive(Clone, Copy)]
struct Bursts {
    /// Share of packets lost.
    p: f64,
    /// Mean number of packets in a burst.
    stay: f64,
    /// Share of a burst that is lost.
    share: f64,
}

impl Bursts {
    fn loss(self) -> Loss {
        if self.stay <= 1.0 {
            return Loss::Bernoulli(self.p);
        }
        let model = GilbertElliott {
            loss_in_bad: self.share,
            ..GilbertElliott::bursts(self.p / self.share, self.stay)
        };
        Loss::GilbertElliott(model)
    }

    /// The smallest R for which a flight of n + R packets has more than R losses with at most
    /// probability ε: exactly where all of a burst is lost, else of a long series.
    fn least(self, n: u64, epsilon: f64) -> u64 {
        let n = n as usize;
        if self.share == 1.0 || self.stay <= 1.0 {
            let stay = self.stay.max(1.0 / (1.0 - self.p));
            return burst_repair_for(n, self.p, stay, 1, epsilon, 3 * n) as u64;
        }
        let lost = self.series();
        let mut before = vec![0_u32];
        before.extend(lost.iter().scan(0, |sum, lost| {
            *sum += u32::from(*lost);
            Some(*sum)
        }));
        let fails = |repairs: usize| {
            let starts = (0..before.len() - n - repairs).step_by(31);
            let all = starts.len() as f64;
            let more = |at: &usize| (before[at + n + repairs] - before[*at]) as usize > repairs;
            starts.filter(more).count() as f64 / all
        };
        (0..3 * n)
            .find(|repairs| fails(*repairs) <= epsilon)
            .unwrap_or(3 * n) as u64
    }

    fn series(self) -> Vec<bool> {
        let mut state = 7_u64;
        let mut chance = move |probability: f64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(9);
            ((state >> 33) as f64) < probability * (1_u64 << 31) as f64
        };
        let bad = self.p / self.share;
        let (leave, mut is_bad) = (1.0 / self.stay, false);
        (0..RECORDED)
            .map(|_| {
                is_bad ^= chance(if is_bad {
                    leave
                } else {
                    leave * bad / (1.0 - bad)
                });
                is_bad && chance(self.share)
            })
            .collect()
    }
}

struct Outcome {
    /// Share of blocks that needed a second round.
    second_rounds: f64,
    /// Repairs sent ahead of a block, on average.
    repairs: f64,
    /// Symbols of a block.
    symbols: u64,
}

/// Blocks of 100 kB, one each 40 ms, over 200 Mbit/s and 10 ms; those that are counted come behind
/// others, from which the sender has learnt.
fn measure(bursts: Bursts, epsilon: f64, blocks: u64, seed: u64) -> Outcome {
    const LEARN: u64 = 500;
    let mut scenario = Scenario::new(link(200, 10, bursts.loss(), seed));
    scenario.epsilon = epsilon;
    let interval = 40 * MS;
    let count = LEARN + blocks;
    let mut pair = scenario.blocks(100_000, interval, count).build();
    pair.run_until(LEARN * interval - interval / 2, |_| false);
    let before = pair.client().session().stats();
    pair.must_transfer(count * interval + 20 * SEC);
    let after = pair.client().session().stats();
    let blocks = after.blocks - before.blocks;
    let again = after.blocks_second_round - before.blocks_second_round;
    Outcome {
        second_rounds: again as f64 / blocks as f64,
        repairs: (after.repair_proactive - before.repair_proactive) as f64 / blocks as f64,
        symbols: (after.source_sent - before.source_sent) / blocks,
    }
}

#[test]
fn first_flights_fail_no_more_often_than_they_may() {
    let epsilon = 0.02;
    for (p, stay, share) in [(0.06, 8.0, 1.0), (0.06, 8.0, 0.5), (0.1, 16.0, 1.0)] {
        let bursts = Bursts { p, stay, share };
        let outcome = measure(bursts, epsilon, 1200, 3);
        let failed = outcome.second_rounds / epsilon;
        let n = outcome.symbols;
        let bytes = (n as f64 + outcome.repairs) / (n + bursts.least(n, epsilon)) as f64;
        println!("{p} {stay} {share}: {failed:.2} of epsilon, {bytes:.3} of the bytes");
        assert!(failed <= 1.5, "{p} {stay} {share}: {failed}");
        assert!(bytes <= 1.05, "{p} {stay} {share}: {bytes}");
    }
}

#[test]
#[ignore = "a table for people"]
fn table() {
    let blocks = number("SPHINX_SIM_BLOCKS").unwrap_or(20_000);
    let epsilon = 0.002;
    println!(
        "share lost in bursts, loss, mean burst: second rounds over epsilon, repairs, least repairs, bytes over least"
    );
    for share in [1.0, 0.5] {
        for p in [0.02, 0.06, 0.1] {
            for stay in [1.0, 2.0, 4.0, 8.0, 16.0] {
                let bursts = Bursts { p, stay, share };
                let outcome = measure(bursts, epsilon, blocks, 1);
                let n = outcome.symbols;
                let least = bursts.least(n, epsilon);
                println!(
                    "{share} {p} {stay}: {:.2} {:.1} {least} {:.3}",
                    outcome.second_rounds / epsilon,
                    outcome.repairs,
                    (n as f64 + outcome.repairs) / (n + least) as f64,
                );
            }
        }
    }
}
