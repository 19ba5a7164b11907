//! The paper's Parameter Selector: degree and number of packets from what the receiver reports of losses.

use std::collections::VecDeque;

use sphinx_fec::params::srlt;

use super::settings::{Delta, Paper, share};
use crate::wire::LossReport;

/// Reports from which the mean and the deviation are computed.
const REPORTS: usize = 10;
/// What a peeled robust soliton code needs beyond n, on average, over n: (n, share), as measured for c = 0.1 and δ = 1.
const LT_NEED: [(f64, f64); 4] = [
    (32.0, 0.393),
    (100.0, 0.294),
    (256.0, 0.221),
    (1024.0, 0.131),
];

/// Degree D_h and number N of XOR packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redundant {
    /// Symbols of each packet.
    pub degree: u32,
    /// Number of packets.
    pub count: u32,
}

/// Degree and number for n symbols (or n missing ones), by equations 1 to 5 of the paper. The degree is at most ⌊n/2⌋, and at
/// least 1.
pub fn redundant(n: u16, p: f64, delta: f64, threshold: f64) -> Redundant {
    let n = usize::from(n);
    let degree = srlt::degree(p, delta, srlt::degree_cap(n));
    let count = srlt::packet_count(n, p, degree, threshold) as u32;
    Redundant { degree, count }
}

/// What is known of the losses.
#[derive(Debug)]
pub(super) struct Selector {
    settings: Paper,
    /// Losses and packets of the latest periods, oldest first, and which period was the last.
    reports: VecDeque<f64>,
    last: Option<u64>,
}

impl Selector {
    pub(super) fn new(settings: Paper) -> Self {
        Self {
            settings,
            reports: VecDeque::new(),
            last: None,
        }
    }

    /// A report; whether it is a new one.
    pub(super) fn on_report(&mut self, loss: LossReport) -> bool {
        if self.last.is_some_and(|last| loss.period <= last) {
            return false;
        }
        self.last = Some(loss.period);
        if self.reports.len() == REPORTS {
            self.reports.pop_front();
        }
        let lost = f64::from(loss.lost) / f64::from(loss.of);
        self.reports.push_back(lost);
        true
    }

    /// p: the mean of the reports.
    pub(super) fn plr(&self) -> f64 {
        match self.reports.len() {
            0 => share(self.settings.initial),
            count => self.reports.iter().sum::<f64>() / count as f64,
        }
    }

    /// δ: what is given, or the deviation of the reports.
    pub(super) fn delta(&self) -> f64 {
        match self.settings.delta {
            Delta::Share(given) => share(given),
            Delta::Measured => {
                let (mean, count) = (self.plr(), self.reports.len().max(1) as f64);
                let square = |report: &f64| (report - mean) * (report - mean);
                (self.reports.iter().map(square).sum::<f64>() / count).sqrt()
            }
        }
    }

    /// For n symbols, at present.
    pub(super) fn redundant(&self, n: u16) -> Redundant {
        let threshold = share(self.settings.threshold);
        redundant(n, self.plr(), self.delta(), threshold)
    }

    /// Packets of `lt` that m symbols of a block of n need on average, with losses.
    pub(super) fn lt(&self, n: u16, m: u16) -> u32 {
        let need = f64::from(m) * (1.0 + lt_need(n));
        (need / (1.0 - self.plr()).max(0.05)).ceil() as u32
    }

    /// Repairs of a code with a fixed share.
    pub(super) fn fixed(&self, n: u16) -> u32 {
        (f64::from(n) * share(self.settings.redundancy) - 1e-9).ceil() as u32
    }
}

fn lt_need(n: u16) -> f64 {
    let x = f64::from(n).clamp(LT_NEED[0].0, LT_NEED[3].0);
    let between = LT_NEED.windows(2).find(|pair| x <= pair[1].0);
    let [low, high] = between.map_or([LT_NEED[2], LT_NEED[3]], |pair| [pair[0], pair[1]]);
    let at = (x / low.0).ln() / (high.0 / low.0).ln();
    if n == 1 {
        0.0
    } else {
        low.1 + at * (high.1 - low.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let counts = [0.3, 0.5, 0.9].map(|t| redundant(100, 0.06, 0.0, t).count);
        assert_eq!(counts, [12, 15, 27]);
        let uncertain = redundant(100, 0.06, 0.021, 0.5);
        assert_eq!((uncertain.degree, uncertain.count), (12, 20));
        let missing = redundant(8, 0.06, 0.0, 0.5);
        assert_eq!((missing.degree, missing.count), (4, 2));
    }

    #[test]
    fn the_mean_and_the_deviation_are_those_of_the_latest_reports() {
        let mut selector = Selector::new(Paper {
            delta: Delta::Measured,
            ..Paper::default()
        });
        assert_eq!((selector.plr(), selector.delta()), (0.02, 0.0));
        for (period, lost) in [(0, 40), (1, 80)] {
            let report = LossReport {
                period,
                lost,
                of: 1000,
            };
            assert!(selector.on_report(report) && !selector.on_report(report));
        }
        assert!((selector.plr() - 0.06).abs() < 1e-12);
        assert!((selector.delta() - 0.02).abs() < 1e-12);
    }

    #[test]
    fn what_lt_needs() {
        let selector = Selector::new(Paper::default());
        assert_eq!(selector.lt(100, 100), 133);
        assert_eq!(selector.lt(1, 1), 2);
        assert!((lt_need(1024) - 0.131).abs() < 1e-12);
    }
}
