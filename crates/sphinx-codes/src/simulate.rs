//! Seeded Monte-Carlo runs: which blocks decode, and when symbols arrive.

use std::ops::RangeInclusive;

use sphinx_fec::{
    CodeId, Delivery, Repair, Row, RowMaker, SymbolDecoder, Tracker, WindowDecoder, WindowEncoder,
    lt, params, rlc, srlt,
};

use crate::loss::{Channel, Loss};

/// Which repairs a block gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rows {
    /// Those of an MDS code: any `n` symbols suffice. `rs` and `fft-rs`.
    Mds,
    /// First-flight rows of `rlc`.
    Rlc,
    /// `srlt` rows of this degree.
    Srlt {
        /// Symbols in each row.
        degree: u32,
    },
    /// `lt` rows instead of source symbols.
    Lt {
        /// Constants of the distribution.
        shape: lt::Shape,
    },
}

/// A block and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Source symbols.
    pub n: usize,
    /// Repairs; packets beyond `n` for `lt`.
    pub repairs: usize,
    /// Losses, of source symbols and repairs alike.
    pub loss: Loss,
    /// Decode what all repairs together determine, instead of peeling.
    pub maximum_likelihood: bool,
}

/// How many blocks failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks simulated.
    pub blocks: usize,
    /// Blocks that were not decodable after their first flight.
    pub failed: usize,
    /// Those among them that an MDS code would have restored.
    pub beyond_mds: usize,
    /// Packets sent and lost.
    pub sent: usize,
    /// Packets lost.
    pub lost: usize,
}

impl Outcome {
    /// Share of blocks that failed.
    #[must_use]
    pub fn failure(&self) -> f64 {
        self.failed as f64 / self.blocks.max(1) as f64
    }
}

/// Spread of the rows of `rlc` where as many failures are accepted as an MDS
/// code would have.
fn spread(scenario: &Scenario) -> u32 {
    let Scenario {
        n, repairs, loss, ..
    } = *scenario;
    let epsilon = mds_failure(scenario);
    rlc::spread_for(n, repairs, loss.rate(), loss.mean_burst(), epsilon)
}

/// The share of blocks that an MDS code fails with, exactly.
fn mds_failure(scenario: &Scenario) -> f64 {
    let Scenario {
        n, repairs, loss, ..
    } = *scenario;
    params::burst_failure_probability(n, repairs, loss.rate(), loss.mean_burst(), 1)
}

/// Sends blocks one after another over one channel.
#[must_use]
pub fn blocks(rows: Rows, scenario: &Scenario, count: usize, seed: u64) -> Outcome {
    blocks_while(rows, scenario, count, seed, |_| true)
}

/// The same as long as what came of them so far `is_open`.
fn blocks_while(
    rows: Rows,
    scenario: &Scenario,
    count: usize,
    seed: u64,
    is_open: impl Fn(&Outcome) -> bool,
) -> Outcome {
    let Scenario { n, repairs, .. } = *scenario;
    let mut channel = Channel::new(scenario.loss, seed);
    let mut maker = RowMaker::new();
    let mut outcome = Outcome::default();
    let mut next_seed = 0;
    let spread = match rows {
        Rows::Rlc => spread(scenario),
        _ => 1,
    };
    for _ in 0..count {
        let mut block = Block::new(rows, scenario, spread);
        for i in 0..n + repairs {
            let row = block.packet(i, &mut next_seed);
            outcome.sent += 1;
            if channel.loses_next() {
                outcome.lost += 1;
            } else {
                block.receive(&mut maker, i, row);
            }
        }
        outcome.blocks += 1;
        if !block.is_decodable() {
            outcome.failed += 1;
            outcome.beyond_mds += usize::from(block.received >= n);
        }
        if !is_open(&outcome) {
            break;
        }
    }
    outcome
}

/// The smallest of these numbers of repairs that is known to suffice: with it
/// at most a share `epsilon` of blocks fails. `None` if there is none, or none
/// that simulations of `packets` packets for each number can tell.
///
/// What an MDS code fails with is computed, and what these rows add to that is
/// simulated. A number counts as enough only if no more than `epsilon` is
/// within what chance explains, as the first one that was lucky would be taken
/// otherwise.
#[must_use]
pub fn repairs_for(
    rows: Rows,
    scenario: &Scenario,
    epsilon: f64,
    mut numbers: RangeInclusive<usize>,
    packets: usize,
    seed: u64,
) -> Option<usize> {
    numbers.find(|repairs| {
        let scenario = Scenario {
            repairs: *repairs,
            ..*scenario
        };
        let count = packets / (scenario.n + repairs);
        let most = (epsilon - mds_failure(&scenario)) * count as f64;
        let is_enough = |outcome: &Outcome| count_at_most(outcome.beyond_mds) <= most;
        let nothing = Outcome::default();
        is_enough(&nothing) && is_enough(&blocks_while(rows, &scenario, count, seed, is_enough))
    })
}

/// How many there are on average at most, where so many were counted: of more
/// than that, so few would come in one of forty cases or less (by Poisson's
/// distribution it is 3.7 for none, 18.4 for ten and 121.6 for a hundred).
fn count_at_most(counted: usize) -> f64 {
    let counted = counted as f64;
    counted + 2.0 + 2.0 * (counted + 1.0).sqrt()
}

/// A block at the receiver.
struct Block {
    rows: Rows,
    n: usize,
    planned: usize,
    /// Spread of the rows of `rlc`.
    spread: u32,
    received: usize,
    tracker: Option<Tracker>,
}

impl Block {
    fn new(rows: Rows, scenario: &Scenario, spread: u32) -> Self {
        let tracker = || {
            let tracker = Tracker::new(scenario.n).ok()?;
            Some(if scenario.maximum_likelihood {
                tracker.maximum_likelihood()
            } else {
                tracker
            })
        };
        Self {
            rows,
            n: scenario.n,
            planned: scenario.repairs,
            spread,
            received: 0,
            tracker: if rows == Rows::Mds { None } else { tracker() },
        }
    }

    /// What packet `i` is; `None` for a source symbol, or where it makes no
    /// difference.
    fn packet(&self, i: usize, next_seed: &mut u32) -> Option<(CodeId, Row)> {
        let is_source = i < self.n;
        match self.rows {
            Rows::Lt { shape } => {
                *next_seed += 1;
                Some((CodeId::Lt, shape.row(*next_seed)))
            }
            _ if is_source => None,
            Rows::Mds => None,
            Rows::Rlc => {
                let row = rlc::repair_row(self.spread, self.planned, i - self.n);
                Some((CodeId::Rlc, row))
            }
            Rows::Srlt { degree } => {
                *next_seed += 1;
                let row = srlt::row(degree, *next_seed % srlt::SEED_COUNT);
                Some((CodeId::Srlt, row))
            }
        }
    }

    fn receive(&mut self, maker: &mut RowMaker, i: usize, row: Option<(CodeId, Row)>) {
        self.received += 1;
        let Some(tracker) = &mut self.tracker else {
            return;
        };
        match row {
            None => tracker.add_source(i),
            Some((code, row)) => tracker.add_repair(maker, code, row),
        };
    }

    fn is_decodable(&self) -> bool {
        match &self.tracker {
            None => self.received >= self.n,
            Some(tracker) => tracker.is_decodable(),
        }
    }
}

/// Packets that a rateless code had to send for each of some blocks.
#[derive(Clone, Debug)]
pub struct Needed {
    /// Packets that each decoded block needed, sorted.
    packets: Vec<usize>,
    /// Blocks that were given up.
    given_up: usize,
}

impl Needed {
    /// The mean of the blocks that were decoded.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.packets.iter().sum::<usize>() as f64 / self.packets.len().max(1) as f64
    }

    /// What this share of all blocks did with; `None` if more were given up.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<usize> {
        let last = (self.packets.len() + self.given_up).checked_sub(1)?;
        let at = (share * last as f64).ceil() as usize;
        self.packets.get(at.min(last)).copied()
    }

    /// Blocks that were not decoded after a hundred times their symbols, and a
    /// thousand packets more.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.given_up
    }
}

/// Sends `lt` packets for each block until it is decoded, lost ones included.
#[must_use]
pub fn rateless(
    shape: lt::Shape,
    n: usize,
    loss: Loss,
    maximum_likelihood: bool,
    count: usize,
    seed: u64,
) -> Needed {
    let mut channel = Channel::new(loss, seed);
    let mut maker = RowMaker::new();
    let scenario = Scenario {
        n,
        repairs: 0,
        loss,
        maximum_likelihood,
    };
    let mut next_seed = 0;
    let mut send = || {
        let mut block = Block::new(Rows::Lt { shape }, &scenario, 1);
        for sent in 1..=100 * n + 1000 {
            let row = block.packet(sent, &mut next_seed);
            if channel.loses_next() {
                continue;
            }
            block.receive(&mut maker, sent, row);
            if block.is_decodable() {
                return Some(sent);
            }
        }
        None
    };
    let mut packets: Vec<usize> = (0..count).filter_map(|_| send()).collect();
    packets.sort_unstable();
    Needed {
        given_up: count - packets.len(),
        packets,
    }
}

/// Windows that the decoder looks back over: what left the sender's window can
/// still be restored, as later repairs remove what it is mixed with.
const CAPACITY: usize = 8;

/// What a stream over the sliding window experienced. Delays are from sending
/// to delivery in order, in packets sent meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Source symbols sent.
    pub symbols: usize,
    /// Source symbols never delivered.
    pub lost: usize,
    /// Repairs sent.
    pub repairs: usize,
    /// The mean delay.
    pub delay_mean: f64,
    /// The median.
    pub delay_p50: usize,
    /// What 90 % do not exceed.
    pub delay_p90: usize,
    /// What 99 % do not exceed.
    pub delay_p99: usize,
}

/// Sends a stream through the sliding-window code, with genuine elimination
/// but symbols of no bytes.
///
/// # Panics
/// If `window` is 0 or above [`sphinx_fec::SYMBOLS_MAX`] / 8.
#[must_use]
pub fn window(window: usize, redundancy: f64, loss: Loss, symbols: usize, seed: u64) -> Stream {
    let mut channel = Channel::new(loss, seed);
    let mut encoder = WindowEncoder::new(window, redundancy, 0).expect("a possible window");
    let mut decoder = WindowDecoder::new(CAPACITY * window, 0).expect("a possible capacity");
    let mut sent_at = Vec::with_capacity(symbols);
    let mut delays = Vec::with_capacity(symbols);
    let (mut slot, mut repairs) = (0_usize, 0);
    // The symbols of the last window may still be outstanding at the end.
    for _ in 0..symbols + CAPACITY * window {
        sent_at.push(slot);
        let number = encoder.push(&[]);
        if !channel.loses_next() {
            decoder.add_source(&mut [], number);
        }
        loop {
            while let Some(delivery) = decoder.next_in_order() {
                match delivery {
                    Delivery::Symbol { symbol, .. } if (symbol as usize) < symbols => {
                        delays.push(slot - sent_at[symbol as usize]);
                    }
                    // What is sent behind them only shows what becomes of the last ones.
                    Delivery::Symbol { .. } | Delivery::Lost { .. } => {}
                }
            }
            slot += 1;
            let Some((first, count, row)) = encoder.next_repair(&mut []) else {
                break;
            };
            repairs += 1;
            if !channel.loses_next() {
                let code = CodeId::Window;
                let symbol = &[];
                decoder.add_repair(&mut [], first, count, Repair { code, row, symbol });
            }
        }
    }
    // The decoder tells of those that are too old once newer ones arrive: of a burst that lasts to the end it tells nothing.
    let lost = symbols - delays.len();
    let mean = delays.iter().sum::<usize>() as f64 / delays.len().max(1) as f64;
    delays.sort_unstable();
    let quantile = |share: f64| {
        let at = (share * delays.len() as f64) as usize;
        delays
            .get(at.min(delays.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    Stream {
        symbols,
        lost,
        repairs,
        delay_mean: mean,
        delay_p50: quantile(0.5),
        delay_p90: quantile(0.9),
        delay_p99: quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEPENDENT: Loss = Loss::Independent { rate: 0.06 };

    fn scenario(n: usize, repairs: usize) -> Scenario {
        Scenario {
            n,
            repairs,
            loss: INDEPENDENT,
            maximum_likelihood: false,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_outcome() {
        let run = |seed| blocks(Rows::Rlc, &scenario(50, 5), 200, seed);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn rlc_needs_what_mds_codes_need() {
        let mds = blocks(Rows::Mds, &scenario(100, 13), 4000, 3);
        let rlc = blocks(Rows::Rlc, &scenario(100, 13), 4000, 3);
        assert!(mds.failure() < 0.012, "{mds:?}");
        assert!(rlc.failed <= mds.failed + 12, "{rlc:?} {mds:?}");
    }

    /// As many repairs as sessions send for one failure in five hundred; rows of so few symbols that all of a lost one were
    /// often lost too made it a fifth of all blocks at 50 %.
    #[test]
    fn sparse_rows_hardly_add_to_the_failures_of_heavy_losses() {
        let (epsilon, count) = (0.002, 5000);
        for (n, rate, burst) in [
            (16, 0.3, 1.0),
            (32, 0.5, 1.0),
            (100, 0.2, 1.0),
            (100, 0.3, 1.0),
            (100, 0.4, 1.0),
            (100, 0.5, 1.0),
            (256, 0.5, 1.0),
            (32, 0.3, 8.0),
            (100, 0.5, 8.0),
        ] {
            let repairs = params::burst_repair_for(n, rate, burst, 1, epsilon, 100 * n);
            let scenario = Scenario {
                loss: Loss::new(rate, Some(burst)),
                ..scenario(n, repairs)
            };
            let rlc = blocks(Rows::Rlc, &scenario, count, 7);
            let mds = blocks(Rows::Mds, &scenario, count, 7);
            // What chance adds in four standard deviations, to a quarter of the failures that are accepted.
            let most = epsilon / 4.0 * count as f64;
            let more = (rlc.failed - mds.failed) as f64;
            assert!(
                more <= most + 4.0 * most.sqrt(),
                "{n} {rate} {burst}: {rlc:?} {mds:?}"
            );
        }
    }

    #[test]
    fn the_paper_code_beats_lt() {
        // The paper operating point: 15 % and about half of the blocks.
        let srlt = blocks(Rows::Srlt { degree: 16 }, &scenario(100, 15), 1000, 5);
        assert!((0.4..0.58).contains(&srlt.failure()), "{srlt:?}");
        let needed = rateless(lt::Shape::default(), 100, INDEPENDENT, false, 300, 5);
        assert!(needed.mean() > 129.0, "{}", needed.mean());
        let likelier = rateless(lt::Shape::default(), 100, INDEPENDENT, true, 100, 5);
        assert!(likelier.mean() < needed.mean());
        assert!(likelier.quantile(0.5) <= likelier.quantile(0.9));
        assert_eq!(likelier.given_up(), 0);
    }

    /// A burst that is longer than what is sent for a block leaves it undecoded, and those after it.
    #[test]
    fn blocks_that_are_given_up_are_not_decoded() {
        let loss = Loss::new(0.95, Some(20_000.0));
        let needed = rateless(lt::Shape::default(), 10, loss, false, 2000, 5);
        let given_up = needed.given_up();
        assert!((60..700).contains(&given_up), "{given_up}");
        let decoded = 1.0 - given_up as f64 / 2000.0;
        assert!(needed.quantile(0.9 * decoded).is_some());
        assert_eq!(needed.quantile(1.0), None);
    }

    #[test]
    fn repairs_that_suffice_do_so_with_other_seeds() {
        // Rows of one symbol each: one of four symbols is lost with all its rows in 0.8 · 0.8^R of the blocks.
        let rows = Rows::Srlt { degree: 1 };
        let scenario = Scenario {
            loss: Loss::Independent { rate: 0.2 },
            maximum_likelihood: true,
            ..scenario(4, 0)
        };
        let epsilon = 0.002;
        let found = |most| repairs_for(rows, &scenario, epsilon, 6..=most, 2_000_000, 1);
        // Sixteen leave more than ten times as many.
        assert_eq!(found(16), None);
        let repairs = found(60).expect("there are enough rows");
        assert!((27..=30).contains(&repairs), "{repairs}");
        let outcome = |repairs| {
            let scenario = Scenario {
                repairs,
                ..scenario
            };
            blocks(rows, &scenario, 100_000, 99)
        };
        assert!(outcome(repairs).failure() <= epsilon);
        assert!(outcome(16).failure() > 10.0 * epsilon);
        // Too few packets to tell.
        let few = repairs_for(rows, &scenario, epsilon, 6..=60, 20_000, 1);
        assert_eq!(few, None);
    }

    #[test]
    fn what_a_burst_takes_that_does_not_end_is_lost() {
        // The link is good or bad from the first packet to the last one, as good as always.
        let loss = Loss::new(0.5, Some(1e6));
        let streams = (0..20).map(|seed| window(10, 0.5, loss, 1000, seed));
        let lost: Vec<usize> = streams.map(|stream| stream.lost).collect();
        assert!(lost.contains(&0) && lost.contains(&1000), "{lost:?}");
    }

    #[test]
    fn a_window_delivers_soon() {
        let stream = window(100, 0.12, INDEPENDENT, 20_000, 7);
        assert_eq!(stream.lost, 0);
        assert!(stream.delay_mean < 9.0, "{stream:?}");
        assert_eq!(stream.delay_p50, 0);
    }
}
