//! Redundancy from the measured distribution of losses per block.

use super::{overdispersed_repair_for, repair_for};

/// How many groups of equally many packets had how many losses.
///
/// Losses that come in bursts spread this distribution far beyond the
/// binomial: with bursts of ten packets on average, 6 % loss needs four times
/// the redundancy that independent losses need. So redundancy is computed from
/// this histogram, not from the loss rate alone.
#[derive(Clone, Debug)]
pub struct LossHistogram {
    /// `groups[k]`: groups with `k` losses.
    groups: Vec<u64>,
}

impl LossHistogram {
    /// An empty histogram of groups of `packets` packets.
    #[must_use]
    pub fn new(packets: usize) -> Self {
        Self {
            groups: vec![0; packets + 1],
        }
    }

    /// Counts a group with `losses` losses (all packets, if more).
    pub fn record(&mut self, losses: usize) {
        let last = self.packets();
        let count = &mut self.groups[losses.min(last)];
        *count = count.saturating_add(1);
    }

    /// Packets in a group.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.groups.len() - 1
    }

    /// Groups counted.
    #[must_use]
    pub fn group_count(&self) -> u64 {
        self.groups.iter().fold(0, |sum, g| sum.saturating_add(*g))
    }

    /// The loss rate; 0 if nothing was counted.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        self.mean_losses() / self.packets().max(1) as f64
    }

    /// The correlation between the losses of two packets of a group, estimated
    /// by the variance: Var = N p (1 − p) (1 + (N − 1) ρ). Never negative.
    #[must_use]
    pub fn correlation(&self) -> f64 {
        let packets = self.packets() as f64;
        let groups = self.group_count() as f64;
        let p = self.loss_rate();
        let independent = packets * p * (1.0 - p);
        if groups < 2.0 || packets < 2.0 || independent <= 0.0 {
            return 0.0;
        }
        let mean = self.mean_losses();
        let squares = self.weighted_sum(|losses| (losses - mean).powi(2));
        let variance = squares / (groups - 1.0);
        ((variance / independent - 1.0) / (packets - 1.0)).clamp(0.0, 0.999)
    }

    /// The smallest number of repairs for which a block of `n` symbols fails
    /// with at most probability `epsilon` if losses stay distributed as counted:
    /// from a beta-binomial with the histogram's mean and variance.
    #[must_use]
    pub fn repair_for(&self, n: usize, epsilon: f64) -> usize {
        let (p, rho) = (self.loss_rate(), self.correlation());
        overdispersed_repair_for(n, p, rho, epsilon).max(repair_for(n, p, epsilon))
    }

    fn mean_losses(&self) -> f64 {
        let groups = self.group_count();
        if groups == 0 {
            return 0.0;
        }
        self.weighted_sum(|losses| losses) / groups as f64
    }

    fn weighted_sum(&self, f: impl Fn(f64) -> f64) -> f64 {
        let groups = self.groups.iter().enumerate();
        groups
            .map(|(losses, count)| f(losses as f64) * *count as f64)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counted_means_no_redundancy() {
        let histogram = LossHistogram::new(100);
        assert_eq!(histogram.loss_rate(), 0.0);
        assert_eq!(histogram.repair_for(100, 0.01), 0);
        assert_eq!(LossHistogram::new(0).repair_for(100, 0.01), 0);
    }

    #[test]
    fn binomial_losses_need_what_the_binomial_says() {
        let mut histogram = LossHistogram::new(100);
        // The binomial with p = 0.06, in 100 000 groups (Miri: 1000).
        let groups = if cfg!(miri) { 1e3 } else { 1e5 };
        let mut probability = 0.94_f64.powi(100);
        for losses in 0..=30 {
            for _ in 0..(probability * groups).round() as usize {
                histogram.record(losses);
            }
            probability *= (100 - losses) as f64 / (losses + 1) as f64 * 0.06 / 0.94;
        }
        assert!((histogram.loss_rate() - 0.06).abs() < 10.0 / groups);
        assert!(histogram.correlation() < 1e-3);
        assert_eq!(histogram.repair_for(100, 0.01), 13);
    }

    #[test]
    fn bursts_need_more() {
        let mut histogram = LossHistogram::new(100);
        for group in 0..1000 {
            histogram.record(if group % 10 == 0 { 60 } else { 0 });
        }
        assert!((histogram.loss_rate() - 0.06).abs() < 1e-12);
        assert!(histogram.correlation() > 0.3);
        assert!(histogram.repair_for(100, 0.01) > 60);
    }

    #[test]
    fn more_losses_than_packets_count_as_all() {
        let mut histogram = LossHistogram::new(10);
        histogram.record(99);
        assert_eq!(histogram.loss_rate(), 1.0);
    }
}
