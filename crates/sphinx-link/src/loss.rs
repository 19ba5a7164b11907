//! Loss processes: which packets a channel loses, by packet index only, but for periods in time.

use crate::{
    Time,
    config::{Loss, Periods, loss::per_byte},
    nanos,
    random::{Draws, Element},
};

/// A loss process, the same for all flows.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    loss: Loss,
    turns: Turns,
}

/// A packet that has used the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// Seed and index within its flow.
    pub(crate) seed: u64,
    pub(crate) index: u64,
    /// When its last bit left. Never earlier than that of the one before.
    pub(crate) at: Time,
    pub(crate) bytes: usize,
}

/// Where a channel is that is good and bad by turns.
#[derive(Clone, Copy, Debug)]
struct Turns {
    seed: u64,
    /// Periods so far.
    count: u64,
    bad: bool,
    end: Time,
}

/// Periods begin anew where a time has other bits from this one on.
const EPOCH_BITS: u32 = 40;

impl Turns {
    fn new(seed: u64) -> Turns {
        Turns {
            seed,
            count: 0,
            bad: true,
            end: 0,
        }
    }

    /// Whether the channel is bad at a time that is not before the last one.
    fn are_bad(&mut self, periods: &Periods, at: Time) -> bool {
        let epoch = at >> EPOCH_BITS;
        let begin = epoch << EPOCH_BITS;
        // Periods end with their epoch: the first one of the next epoch begins with it.
        if self.end <= begin {
            self.count = begin;
            (self.bad, self.end) = (true, begin);
        }
        let last = begin | ((1 << EPOCH_BITS) - 1);
        while self.end <= at && self.end < Time::MAX {
            self.bad = !self.bad;
            let span = if self.bad { periods.bad } else { periods.good };
            let uniform = Draws::new(self.seed, Element::Period).uniform(self.count);
            let end = self.end.saturating_add(nanos(span.at(uniform)).max(1));
            self.end = end.min(last.saturating_add(1));
            self.count += 1;
        }
        self.bad
    }
}

/// The state of the process for one series of packets. Gilbert–Elliott only: whether the channel is in
/// the bad state; unknown before the first packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channel {
    bad: Option<bool>,
}

impl LossProcess {
    /// `loss` must have passed validation.
    pub(crate) fn new(loss: &Loss, seed: u64) -> LossProcess {
        let mut loss = loss.clone();
        if let Loss::Packets(indexes) = &mut loss {
            indexes.sort_unstable();
        }
        let turns = Turns::new(seed);
        LossProcess { loss, turns }
    }

    /// Whether a packet is lost. To be asked once per packet, in order of transmission.
    pub(crate) fn loses(&mut self, channel: &mut Channel, packet: Leaving) -> bool {
        let Leaving { seed, index, .. } = packet;
        let chance = |element, probability| Draws::new(seed, element).chance(index, probability);
        match &self.loss {
            Loss::None => false,
            Loss::Bernoulli(probability) => chance(Element::Loss, *probability),
            Loss::GilbertElliott(model) => {
                let bad = channel
                    .bad
                    .unwrap_or_else(|| chance(Element::LossStart, model.time_in_bad()));
                let (loss, leave) = if bad {
                    (model.loss_in_bad, model.bad_to_good)
                } else {
                    (model.loss_in_good, model.good_to_bad)
                };
                channel.bad = Some(bad ^ chance(Element::LossState, leave));
                chance(Element::Loss, loss)
            }
            Loss::Bytes(mean) => chance(Element::Loss, per_byte(*mean, packet.bytes)),
            Loss::Periods(periods) => {
                let loss = match self.turns.are_bad(periods, packet.at) {
                    true => periods.loss_in_bad,
                    false => periods.loss_in_good,
                };
                chance(Element::Loss, loss)
            }
            Loss::Packets(indexes) => indexes.binary_search(&index).is_ok(),
            Loss::Trace(trace) => trace.loses(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{GilbertElliott, Span};

    const MS: Time = 1_000_000;

    /// Of packets of so many bytes, one every millisecond.
    fn pattern_of(loss: &Loss, seed: u64, count: u64, bytes: usize) -> Vec<bool> {
        let mut process = LossProcess::new(loss, seed);
        let mut channel = Channel::default();
        (0..count)
            .map(|index| {
                let at = index * MS;
                let packet = Leaving {
                    seed,
                    index,
                    at,
                    bytes,
                };
                process.loses(&mut channel, packet)
            })
            .collect()
    }

    fn pattern(loss: &Loss, seed: u64, count: u64) -> Vec<bool> {
        pattern_of(loss, seed, count, 1500)
    }

    fn bursts(pattern: &[bool]) -> (f64, f64) {
        let lost = pattern.iter().filter(|&&lost| lost).count();
        let starts = pattern
            .windows(2)
            .filter(|pair| !pair[0] && pair[1])
            .count();
        (
            lost as f64 / pattern.len() as f64,
            lost as f64 / starts as f64,
        )
    }

    #[test]
    fn bernoulli_is_within_binomial_bounds() {
        for (seed, probability) in [(1, 0.001), (2, 0.06), (3, 0.5), (4, 0.97)] {
            let count = 200_000;
            let lost = pattern(&Loss::Bernoulli(probability), seed, count);
            let lost = lost.iter().filter(|&&lost| lost).count() as f64;
            let deviation = (count as f64 * probability * (1.0 - probability)).sqrt();
            assert!((lost - count as f64 * probability).abs() < 4.0 * deviation);
        }
        assert!(!pattern(&Loss::Bernoulli(0.0), 1, 10_000).contains(&true));
        assert!(!pattern(&Loss::Bernoulli(1.0), 1, 10_000).contains(&false));
    }

    #[test]
    fn gilbert_elliott_has_the_asked_mean_and_burst() {
        let model = GilbertElliott::bursts(0.05, 8.0);
        for seed in 0..4 {
            let (loss, burst) = bursts(&pattern(&Loss::GilbertElliott(model), seed, 1_000_000));
            assert!((loss - 0.05).abs() < 0.005, "loss {loss}");
            assert!((burst - 8.0).abs() < 0.5, "burst {burst}");
        }
        assert!((model.mean_loss() - 0.05).abs() < 1e-12);
    }

    #[test]
    fn gilbert_elliott_starts_in_its_stationary_state() {
        let loss = Loss::GilbertElliott(GilbertElliott::bursts(0.3, 50.0));
        let first = (0..10_000)
            .filter(|&seed| pattern(&loss, seed, 1)[0])
            .count();
        assert!((2800..3200).contains(&first), "{first}");
    }

    #[test]
    fn gilbert_elliott_may_lose_in_both_states() {
        let model = GilbertElliott {
            good_to_bad: 0.01,
            bad_to_good: 0.1,
            loss_in_good: 0.02,
            loss_in_bad: 0.5,
        };
        let (loss, _) = bursts(&pattern(&Loss::GilbertElliott(model), 9, 1_000_000));
        assert!((loss - model.mean_loss()).abs() < 0.003, "{loss}");
    }

    #[test]
    fn errors_per_byte_hit_long_packets_more_often() {
        let loss = Loss::Bytes(65_536);
        for bytes in [40, 576, 1440] {
            let count = 400_000;
            let lost = pattern_of(&loss, 3, count, bytes);
            let lost = lost.iter().filter(|&&lost| lost).count() as f64;
            let probability = 1.0 - (-(bytes as f64) / 65_536.0).exp();
            let deviation = (count as f64 * probability * (1.0 - probability)).sqrt();
            assert!((lost - count as f64 * probability).abs() < 4.0 * deviation);
        }
        assert!((loss.mean() - 0.022_63).abs() < 1e-5);
    }

    fn span(shortest: u64, longest: u64) -> Span {
        Span {
            shortest: Duration::from_millis(shortest),
            longest: Duration::from_millis(longest),
        }
    }

    #[test]
    fn periods_are_of_time_and_the_same_for_every_flow() {
        let strict = Loss::Periods(Periods {
            good: span(5, 5),
            bad: span(2, 2),
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
        });
        let lost = pattern(&strict, 1, 14);
        let indexes: Vec<usize> = (0..14).filter(|&index| lost[index]).collect();
        assert_eq!(indexes, [5, 6, 12, 13]);
        assert!((strict.mean() - 2.0 / 7.0).abs() < 1e-12);
        // After a long silence, and at the end of time.
        let mut process = LossProcess::new(&strict, 1);
        for at in [1 << 40, (1 << 40) + 5 * MS, u64::MAX] {
            let packet = Leaving {
                seed: 9,
                index: 0,
                at,
                bytes: 1,
            };
            let lost = process.loses(&mut Channel::default(), packet);
            assert_eq!(lost, (at % (1 << 40)) / MS % 7 >= 5, "{at}");
        }
        // It does not matter who has looked before.
        let uneven = Loss::Periods(Periods {
            good: span(10, 1000),
            bad: span(1, 100),
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
        });
        let [mut busy, mut silent] = [1, 1].map(|seed| LossProcess::new(&uneven, seed));
        let loses = |process: &mut LossProcess, at| {
            let packet = Leaving {
                seed: 9,
                index: 0,
                at,
                bytes: 1,
            };
            process.loses(&mut Channel::default(), packet)
        };
        loses(&mut busy, (1 << 40) - 1);
        for n in 0..10_000 {
            let at = (1 << 40) + n * MS;
            assert_eq!(loses(&mut busy, at), loses(&mut silent, at), "{n}");
        }
        let random = Periods {
            good: span(10, 1000),
            bad: span(1, 100),
            loss_in_good: 0.0,
            loss_in_bad: 0.8,
        };
        let (mean, burst) = bursts(&pattern(&Loss::Periods(random), 4, 1_000_000));
        assert!((mean - random.mean_loss()).abs() < 0.01, "{mean}");
        assert!(burst > 3.0, "{burst}");
    }

    #[test]
    fn listed_packets_are_lost_in_any_order_of_the_list() {
        let lost = pattern(&Loss::Packets(vec![7, 0, 3]), 1, 10);
        let indexes: Vec<usize> = (0..10).filter(|&index| lost[index]).collect();
        assert_eq!(indexes, [0, 3, 7]);
    }

    #[test]
    fn a_trace_is_repeated() {
        let trace = crate::LossTrace::parse("011").unwrap();
        let lost = pattern(&Loss::Trace(trace), 1, 7);
        assert_eq!(lost, [false, true, true, false, true, true, false]);
    }

    #[test]
    fn equal_seeds_agree_and_others_do_not() {
        let loss = Loss::Bernoulli(0.1);
        assert_eq!(pattern(&loss, 5, 1000), pattern(&loss, 5, 1000));
        assert_ne!(pattern(&loss, 5, 1000), pattern(&loss, 6, 1000));
    }
}
