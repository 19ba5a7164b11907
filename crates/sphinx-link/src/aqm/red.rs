//! Random early detection: S. Floyd, V. Jacobson, "Random Early Detection Gateways for Congestion
//! Avoidance", IEEE/ACM Transactions on Networking 1(4), 1993; with the "gentle" slope.

use crate::{
    Time,
    config::Red,
    random::{Draws, Element},
};

/// The state of the paper's figure 2.
#[derive(Clone, Debug)]
pub(crate) struct RedState {
    draws: Draws,
    min: f64,
    max: f64,
    probability: f64,
    weight: f64,
    average: f64,
    /// Packets since the last signal, the present one included.
    since: u64,
}

impl RedState {
    /// `min` and `max` of the settings as numbers of the same unit as later the queue's length.
    pub(crate) fn new(settings: &Red, min: f64, max: f64, seed: u64) -> RedState {
        RedState {
            draws: Draws::new(seed, Element::Red),
            min,
            max,
            probability: settings.probability,
            weight: settings.weight,
            average: 0.0,
            since: 0,
        }
    }

    /// A packet comes and finds this much waiting.
    pub(crate) fn arrival(&mut self, waiting: f64) {
        self.average += self.weight * (waiting - self.average);
    }

    /// A packet comes to an idle link, which could have sent `packets` small ones meanwhile.
    pub(crate) fn arrival_after_silence(&mut self, packets: Time) {
        let (mut decay, mut factor, mut power) = (1.0, 1.0 - self.weight, packets);
        // By squaring: the same on every machine, unlike `powf`.
        while power > 0 {
            if power & 1 == 1 {
                decay *= factor;
            }
            factor *= factor;
            power >>= 1;
        }
        self.average *= decay;
    }

    /// Whether the packet with this index, which has arrived, carries a signal.
    pub(crate) fn signals(&mut self, index: u64) -> bool {
        let below_max = (self.average - self.min) / (self.max - self.min);
        let above_max = (self.average - self.max) / self.max;
        let probability = if self.average < self.min {
            self.since = 0;
            return false;
        } else if self.average < self.max {
            self.probability * below_max
        } else {
            self.probability + (1.0 - self.probability) * above_max
        };
        self.since += 1;
        // Spreads the signals evenly: section 7 of the paper.
        let spread = 1.0 - (self.since - 1) as f64 * probability;
        let signals = spread <= probability || self.draws.chance(index, probability / spread);
        if signals {
            self.since = 0;
        }
        signals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Depth;

    fn red(probability: f64, weight: f64) -> RedState {
        let settings = Red {
            probability,
            weight,
            ..Red::new(Depth::Packets(10), Depth::Packets(30))
        };
        RedState::new(&settings, 10.0, 30.0, 1)
    }

    /// The share of packets with a signal while so much waits.
    fn share(waiting: f64) -> f64 {
        let mut state = red(0.1, 1.0);
        let count = 100_000;
        let signals = (0..count).filter(|&index| {
            state.arrival(waiting);
            state.signals(index)
        });
        signals.count() as f64 / count as f64
    }

    #[test]
    fn signals_rise_with_the_average() {
        assert_eq!(share(9.9), 0.0);
        // The spread makes gaps uniform between 1 and 1/p: a mean of (1 + 1/p)/2.
        for (waiting, probability) in [(20.0, 0.05), (29.9999, 0.1), (45.0, 0.55)] {
            let (got, wanted) = (share(waiting), 2.0 / (1.0 + 1.0 / probability));
            assert!(
                (got / wanted - 1.0).abs() < 0.05,
                "{waiting}: {got} {wanted}"
            );
        }
        assert_eq!(share(60.0), 1.0);
    }

    #[test]
    fn the_average_follows_slowly_and_forgets_in_silence() {
        let mut state = red(0.1, 0.01);
        (0..100).for_each(|_| state.arrival(100.0));
        assert!((state.average - 63.4).abs() < 0.1, "{}", state.average);
        state.arrival_after_silence(69);
        assert!((state.average - 31.7).abs() < 0.1, "{}", state.average);
        state.arrival_after_silence(Time::MAX);
        assert_eq!(state.average, 0.0);
    }
}
