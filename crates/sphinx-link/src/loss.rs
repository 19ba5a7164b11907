//! Loss processes: which packets a channel loses, by packet index only.

use crate::{
    config::Loss,
    random::{Draws, Element},
};

/// A loss process, the same for all flows.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    loss: Loss,
}

/// The state of the process for one series of packets. Gilbert–Elliott only: whether the channel is in
/// the bad state; unknown before the first packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channel {
    bad: Option<bool>,
}

impl LossProcess {
    /// `loss` must have passed validation.
    pub(crate) fn new(loss: &Loss) -> LossProcess {
        let mut loss = loss.clone();
        if let Loss::Packets(indexes) = &mut loss {
            indexes.sort_unstable();
        }
        LossProcess { loss }
    }

    /// Whether the packet with this index is lost. To be asked once per packet, in order of
    /// transmission.
    pub(crate) fn loses(&self, channel: &mut Channel, seed: u64, index: u64) -> bool {
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
            Loss::Packets(indexes) => indexes.binary_search(&index).is_ok(),
            Loss::Trace(trace) => trace.loses(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GilbertElliott;

    fn pattern(loss: &Loss, seed: u64, count: u64) -> Vec<bool> {
        let process = LossProcess::new(loss);
        let mut channel = Channel::default();
        (0..count)
            .map(|index| process.loses(&mut channel, seed, index))
            .collect()
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
