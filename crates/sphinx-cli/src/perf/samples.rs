//! Latencies of blocks, all of them kept.

use super::Messages;
use crate::report::{BlockMs, BlockNumbers, Punctuality};

/// Resolution of a sample.
const UNIT_NS: u64 = 100;

/// Samples of one or more streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Latencies in units of 100 ns. Longer ones than fit, seven minutes, count as that.
    kept: Vec<u32>,
    warmup: u64,
    unsent: u64,
}

impl Samples {
    pub(super) fn add(&mut self, latency_ns: u64) {
        self.kept
            .push(u32::try_from(latency_ns / UNIT_NS).unwrap_or(u32::MAX));
    }

    pub(super) fn add_warmup(&mut self) {
        self.warmup += 1;
    }

    pub(super) fn add_unsent(&mut self, blocks: u64) {
        self.unsent += blocks;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.kept.extend(other.kept);
        self.warmup += other.warmup;
        self.unsent += other.unsent;
    }

    pub(super) fn numbers(mut self, messages: Option<Messages>) -> BlockNumbers {
        self.kept.sort_unstable();
        let late = |deadline_ns: u64| {
            let in_time = |units: &u32| u64::from(*units) * UNIT_NS <= deadline_ns;
            (self.kept.len() - self.kept.partition_point(in_time)) as u64
        };
        let ms = |units: f64| units * UNIT_NS as f64 / 1e6;
        let quantile = |permille: usize| {
            // The smallest sample that so many others do not exceed.
            let rank = (self.kept.len() * permille).div_ceil(1000).max(1);
            self.kept
                .get(rank - 1)
                .map_or(0.0, |units| ms(f64::from(*units)))
        };
        let sum: u64 = self.kept.iter().map(|units| u64::from(*units)).sum();
        BlockNumbers {
            count: self.kept.len() as u64,
            warmup: self.warmup,
            unsent: self.unsent,
            messages: messages.map(|messages| Punctuality {
                late: messages.deadline_ns.map(late),
            }),
            ms: (!self.kept.is_empty()).then(|| BlockMs {
                mean: ms(sum as f64 / self.kept.len() as f64),
                p50: quantile(500),
                p90: quantile(900),
                p99: quantile(990),
                max: quantile(1000),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Mode;

    #[test]
    fn quantiles_are_exact() {
        let mut samples = Samples::default();
        (1..=200_u64).rev().for_each(|n| samples.add(n * 1_000_000));
        let mut more = Samples::default();
        more.add_warmup();
        samples.merge(more);
        let messages = Messages {
            mode: Mode::Stream,
            deadline_ns: Some(150_000_000),
        };
        let numbers = samples.numbers(Some(messages));
        assert_eq!((numbers.count, numbers.warmup), (200, 1));
        let ms = BlockMs {
            mean: 100.5,
            p50: 100.0,
            p90: 180.0,
            p99: 198.0,
            max: 200.0,
        };
        assert_eq!(numbers.ms, Some(ms));
        assert_eq!(numbers.messages, Some(Punctuality { late: Some(50) }));
    }

    #[test]
    fn nothing_and_too_much() {
        assert_eq!(Samples::default().numbers(None).ms, None);
        let mut samples = Samples::default();
        samples.add(u64::MAX);
        assert!(samples.numbers(None).ms.unwrap().max > 400_000.0);
    }
}
