//! Bursts by how unevenly groups of packets lose.

use alloc::vec::Vec;

/// How many groups of equally many packets had how many losses.
///
/// Losses that come in bursts spread this distribution far beyond the
/// binomial, also where not everything is lost in a burst: then hardly any
/// packets are lost in a row, and a count of rows sees no bursts.
#[derive(Clone, Debug, Default)]
pub struct LossHistogram {
    /// Packets in a group.
    packets: usize,
    /// `groups[k]`: groups with `k` losses, up to the most that any has. Empty before the first one.
    groups: Vec<u32>,
}

impl LossHistogram {
    /// An empty histogram of groups of `packets` packets.
    #[must_use]
    pub fn new(packets: usize) -> Self {
        Self {
            packets,
            groups: Vec::new(),
        }
    }

    /// Counts a group with `losses` losses (all packets, if more).
    pub fn record(&mut self, losses: usize) {
        let losses = losses.min(self.packets);
        if self.groups.len() <= losses {
            self.groups.resize(losses + 1, 0);
        }
        let count = &mut self.groups[losses];
        *count = count.saturating_add(1);
    }

    /// Takes back a group with `losses` losses.
    pub fn forget(&mut self, losses: usize) {
        if let Some(count) = self.groups.get_mut(losses.min(self.packets)) {
            *count = count.saturating_sub(1);
        }
        while self.groups.len() > 1 && self.groups.last() == Some(&0) {
            self.groups.pop();
        }
    }

    /// Groups counted.
    #[must_use]
    pub fn group_count(&self) -> u64 {
        self.groups.iter().map(|count| u64::from(*count)).sum()
    }

    /// Mean losses of a group; 0 if nothing was counted.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum_of(|losses| losses) / self.group_count().max(1) as f64
    }

    /// Variance of the losses of a group; 0 before the second one.
    #[must_use]
    pub fn variance(&self) -> f64 {
        let mean = self.mean();
        let degrees = self.group_count().saturating_sub(1).max(1);
        self.sum_of(|losses| (losses - mean) * (losses - mean)) / degrees as f64
    }

    /// The loss rate; 0 if nothing was counted.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        self.mean() / self.packets.max(1) as f64
    }

    /// The mean burst of the link of Gilbert's model under which groups would
    /// lose as unevenly as these did; 1, as if losses were independent, unless
    /// that would be a strange chance (three standard deviations).
    ///
    /// If all is lost in a burst this is the mean number of packets lost in a
    /// row. If a share `s` is, it is about `s` times the length of a burst.
    #[must_use]
    pub fn burst(&self) -> f64 {
        let (p, groups) = (self.loss_rate(), self.group_count());
        let packets = self.packets as f64;
        let independent = packets * p * (1.0 - p);
        if groups < 2 || self.packets < 2 || independent <= 0.0 {
            return 1.0;
        }
        // Of independent losses its variance is 2 / groups however rare they are, as the mean is that of the same groups.
        let ratio = self.variance() / independent;
        if ratio <= 1.0 + 3.0 * (2.0 / groups as f64).sqrt() {
            return 1.0;
        }
        // Losses of packets j apart have correlation λ^j: the ratio grows with λ.
        let count = i32::try_from(self.packets).unwrap_or(i32::MAX);
        let ratio_for = |correlation: f64| {
            let rest = 1.0 - correlation;
            let ends = (1.0 - correlation.powi(count)) / (packets * rest);
            1.0 + 2.0 * correlation / rest * (1.0 - ends)
        };
        let (mut low, mut high) = (0.0, 0.999);
        for _ in 0..30 {
            let middle = (low + high) / 2.0;
            if ratio_for(middle) < ratio {
                low = middle;
            } else {
                high = middle;
            }
        }
        (1.0 / ((1.0 - low) * (1.0 - p))).max(1.0)
    }

    fn sum_of(&self, f: impl Fn(f64) -> f64) -> f64 {
        let groups = self.groups.iter().enumerate();
        groups
            .map(|(losses, count)| f(losses as f64) * f64::from(*count))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses of a link that is bad for `stay` packets on average, and loses
    /// the share `in_bad` then; `p` in the long run.
    fn lossy(p: f64, stay: f64, in_bad: f64, packets: usize) -> Vec<bool> {
        let mut state = 1_u64;
        let mut chance = move |probability: f64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(9);
            ((state >> 33) as f64) < probability * (1_u64 << 31) as f64
        };
        let bad_share = p / in_bad;
        let mut is_bad = false;
        let mut next = move || {
            let leave = 1.0 / stay;
            let change = if is_bad {
                leave
            } else {
                leave * bad_share / (1.0 - bad_share)
            };
            is_bad ^= chance(change);
            is_bad && chance(in_bad)
        };
        (0..packets).map(|_| next()).collect()
    }

    fn histogram(losses: &[bool]) -> LossHistogram {
        let mut histogram = LossHistogram::new(128);
        for group in losses.chunks_exact(128) {
            histogram.record(group.iter().filter(|lost| **lost).count());
        }
        histogram
    }

    /// Packets of a test (Miri: fewer).
    const PACKETS: usize = if cfg!(miri) { 20_000 } else { 2_000_000 };

    #[test]
    fn nothing_counted_is_nothing_known() {
        let histogram = LossHistogram::new(100);
        assert_eq!((histogram.loss_rate(), histogram.burst()), (0.0, 1.0));
        assert_eq!(LossHistogram::new(0).burst(), 1.0);
    }

    #[test]
    fn independent_losses_are_no_bursts() {
        // Good or bad at every packet anew.
        let histogram = histogram(&lossy(0.06, 2.0, 0.12, PACKETS));
        assert!((histogram.loss_rate() - 0.06).abs() < 0.01);
        assert_eq!(histogram.burst(), 1.0);
    }

    #[test]
    fn few_independent_losses_are_seldom_taken_for_bursts() {
        // 512 groups, as many as a path remembers, with a loss in every eighth.
        let (runs, packets) = if cfg!(miri) {
            (1, 1280)
        } else {
            (200, 512 * 128)
        };
        let losses = lossy(0.001, 2.0, 0.002, runs * packets);
        let taken = losses
            .chunks_exact(packets)
            .filter(|run| histogram(run).burst() > 1.0)
            .count();
        assert!(taken <= runs / 50, "{taken} of {runs}");
    }

    #[test]
    fn bursts_are_as_long_as_they_are() {
        for mean in [2.0, 4.0, 8.0, 16.0] {
            let found = histogram(&lossy(0.06, mean, 1.0, PACKETS)).burst();
            let near = if cfg!(miri) { 0.5 } else { 0.1 };
            assert!((found / mean - 1.0).abs() < near, "{mean}: {found}");
        }
    }

    #[test]
    fn bursts_are_seen_where_half_of_them_arrives() {
        let found = histogram(&lossy(0.06, 16.0, 0.5, PACKETS)).burst();
        assert!((4.0..=12.0).contains(&found), "{found}");
    }

    #[test]
    fn what_is_forgotten_was_never_there() {
        let mut histogram = LossHistogram::new(10);
        histogram.forget(3);
        histogram.record(99);
        assert_eq!(histogram.loss_rate(), 1.0);
        histogram.record(0);
        histogram.forget(99);
        assert_eq!((histogram.group_count(), histogram.loss_rate()), (1, 0.0));
        assert_eq!(histogram.variance(), 0.0);
    }
}
