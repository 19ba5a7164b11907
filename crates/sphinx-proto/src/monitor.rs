//! The Monitor: the packet loss rate and how it varies.

use std::collections::VecDeque;

/// Packets per bucket.
const BUCKET: u32 = 128;
/// Buckets kept: the estimate rests on the last 4096 packets.
const BUCKETS: usize = 32;
/// Assumed before anything is known: two losses in a hundred packets.
const PRIOR_PACKETS: f64 = 100.0;
const PRIOR_PLR: f64 = 0.02;
/// After so many packets without loss the path counts as clean.
const CLEAN: u64 = 3000;

/// Estimates the packet loss rate (PLR) from packets found acknowledged or lost.
#[derive(Debug, Clone, Default)]
pub struct Monitor {
    /// Losses in full buckets, oldest first.
    buckets: VecDeque<u32>,
    current: (u32, u32),
    packets_total: u64,
    path_packets: u64,
    lost_total: u64,
    since_loss: u64,
    /// PLR of an earlier session, where one is known.
    remembered: Option<f64>,
}

impl Monitor {
    /// A Monitor that begins with the PLR, 0–1, of an earlier session on the same path.
    pub(crate) fn remembering(plr: Option<f64>) -> Self {
        Self {
            remembered: plr.map(|plr| plr.clamp(0.0, 0.9)),
            ..Self::default()
        }
    }

    /// One packet was acknowledged or lost.
    pub fn packet(&mut self, lost: bool) {
        self.packets_total += 1;
        self.path_packets += 1;
        self.since_loss += 1;
        self.current.0 += 1;
        if lost {
            self.lost_total += 1;
            self.since_loss = 0;
            self.current.1 += 1;
        }
        if self.current.0 >= BUCKET {
            if self.buckets.len() == BUCKETS {
                self.buckets.pop_front();
            }
            self.buckets.push_back(self.current.1);
            self.current = (0, 0);
        }
    }

    /// A packet counted as lost had only been late.
    pub fn spurious(&mut self) {
        self.lost_total = self.lost_total.saturating_sub(1);
        if self.current.1 > 0 {
            self.current.1 -= 1;
        } else if let Some(bucket) = self.buckets.iter_mut().rev().find(|b| **b > 0) {
            *bucket -= 1;
        }
    }

    /// Packets travel another way from now on: only the mean since the start remembers the old one.
    pub(crate) fn begin_path(&mut self) {
        self.buckets.clear();
        self.current = (0, 0);
        self.since_loss = 0;
        self.path_packets = 0;
        self.remembered = None;
    }

    /// Estimated PLR, 0–1: the mean of the last 4096 packets, pulled towards 2 %, or what is
    /// remembered, while fewer than about a hundred are known; 0 once 3000 packets in a row arrived.
    pub fn plr(&self) -> f64 {
        if self.since_loss >= CLEAN {
            return 0.0;
        }
        let packets = f64::from(BUCKET) * self.buckets.len() as f64 + f64::from(self.current.0);
        let lost = f64::from(self.buckets.iter().sum::<u32>() + self.current.1);
        if packets >= 1000.0 {
            lost / packets
        } else {
            let prior = self.remembered.unwrap_or(PRIOR_PLR);
            (lost + PRIOR_PACKETS * prior) / (packets + PRIOR_PACKETS)
        }
    }

    /// Standard deviation of the PLR over buckets of 128 packets (the paper's δ), 0–1.
    pub fn deviation(&self) -> f64 {
        if self.buckets.len() < 2 {
            return 0.0;
        }
        let rates = self
            .buckets
            .iter()
            .map(|lost| f64::from(*lost) / f64::from(BUCKET));
        let mean = rates.clone().sum::<f64>() / self.buckets.len() as f64;
        let squares = rates.map(|r| (r - mean).powi(2)).sum::<f64>();
        (squares / (self.buckets.len() - 1) as f64).sqrt()
    }

    /// Mean PLR since the session began, 0–1.
    pub fn plr_mean(&self) -> f64 {
        if self.packets_total == 0 {
            0.0
        } else {
            self.lost_total as f64 / self.packets_total as f64
        }
    }

    /// Whether so little is known that the estimate is mostly a guess.
    pub fn is_cold(&self) -> bool {
        self.path_packets < 1000 && self.remembered.is_none()
    }

    /// PLR of the path as far as it is worth remembering, 0–1.
    pub(crate) fn worth_remembering(&self) -> Option<f64> {
        (self.path_packets >= 1000).then(|| self.plr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_careful_and_becomes_exact() {
        let mut monitor = Monitor::default();
        assert!(monitor.plr() > 0.0 && monitor.is_cold());
        for i in 0..10_000 {
            monitor.packet(i % 16 == 0);
        }
        assert!((monitor.plr() - 0.0625).abs() < 0.001);
        assert!((monitor.plr_mean() - 0.0625).abs() < 1e-9);
        assert!(monitor.deviation() < 0.01);
        for _ in 0..2900 {
            monitor.packet(false);
        }
        assert!(monitor.plr() > 0.0);
        for _ in 0..3000 {
            monitor.packet(false);
        }
        assert_eq!(monitor.plr(), 0.0);
    }

    #[test]
    fn what_is_remembered_is_a_beginning() {
        let mut monitor = Monitor::remembering(Some(0.06));
        assert!(!monitor.is_cold() && monitor.worth_remembering().is_none());
        assert!((monitor.plr() - 0.06).abs() < 1e-9);
        for _ in 0..900 {
            monitor.packet(false);
        }
        assert!(monitor.plr() < 0.01);
        monitor.begin_path();
        assert!(monitor.is_cold());
    }

    #[test]
    fn spurious_losses_are_taken_back() {
        let mut monitor = Monitor::default();
        for _ in 0..500 {
            monitor.packet(true);
            monitor.spurious();
        }
        assert_eq!(monitor.plr_mean(), 0.0);
    }
}
