//! Losses that come in bursts, and interleaving against them.
//!
//! The model is Gilbert's: the link is good or bad, packets are lost while it
//! is bad, and the losses of two packets `j` apart have correlation `λ^j` with
//! `λ = 1 − 1 / (B (1 − p))` for a mean burst of `B` packets. Packets of `d`
//! blocks sent in turn are `d` apart, and so each block sees such a link again,
//! with `λ^d`.

use alloc::{vec, vec::Vec};

use super::{clamp_loss, repair_for};

/// The correlation between the losses of neighbouring packets of a block, when
/// packets of `depth` blocks are sent in turn.
///
/// `burst` is the mean number of packets lost in a row; 1/(1 − p) is what
/// independent losses give, and less counts as that.
#[must_use]
pub fn burst_correlation(p: f64, burst: f64, depth: usize) -> f64 {
    let lambda = 1.0 - 1.0 / (burst * (1.0 - clamp_loss(p)));
    if lambda.is_nan() || lambda <= 0.0 {
        return 0.0;
    }
    lambda.powi(i32::try_from(depth.max(1)).unwrap_or(i32::MAX))
}

/// The probability that a block of `n` symbols sent with `repairs` repairs
/// cannot be decoded by an MDS code over a link with such bursts, exactly.
#[must_use]
pub fn burst_failure_probability(
    n: usize,
    repairs: usize,
    p: f64,
    burst: f64,
    depth: usize,
) -> f64 {
    let p = clamp_loss(p);
    let correlation = burst_correlation(p, burst, depth);
    if n == 0 || p == 0.0 {
        return 0.0;
    }
    let mut flight = Flight::none_sent(p, correlation);
    for _ in 0..n + repairs {
        flight.send();
    }
    flight.more_than(repairs).min(1.0)
}

/// The smallest number of repairs for which a block of `n` symbols fails with
/// at most probability `epsilon` over a link with such bursts, but no more than
/// `most`. Takes time that grows with the square of the packets.
#[must_use]
pub fn burst_repair_for(
    n: usize,
    p: f64,
    burst: f64,
    depth: usize,
    epsilon: f64,
    most: usize,
) -> usize {
    let correlation = burst_correlation(p, burst, depth);
    if correlation == 0.0 {
        return repair_for(n, p, epsilon).min(most);
    }
    let p = clamp_loss(p);
    if n == 0 || p == 0.0 {
        return 0;
    }
    let mut flight = Flight::none_sent(p, correlation);
    for _ in 0..n {
        flight.send();
    }
    let mut repairs = 0;
    while repairs < most && flight.more_than(repairs) > epsilon {
        flight.send();
        repairs += 1;
    }
    repairs
}

/// How many packets were lost so far, and whether the next one will be.
struct Flight {
    /// Probability that so many were lost and the next one will get through.
    good: Vec<f64>,
    /// … and the next one will be lost.
    bad: Vec<f64>,
    enter: f64,
    leave: f64,
}

impl Flight {
    fn none_sent(p: f64, correlation: f64) -> Self {
        Self {
            good: vec![1.0 - p],
            bad: vec![p],
            enter: p * (1.0 - correlation),
            leave: (1.0 - p) * (1.0 - correlation),
        }
    }

    fn send(&mut self) {
        self.good.push(0.0);
        self.bad.push(0.0);
        let mut lost = 0.0;
        for (good, bad) in self.good.iter_mut().zip(&mut self.bad) {
            // The states that lose this packet have one loss more.
            let losing = core::mem::replace(&mut lost, *bad);
            let through = *good;
            *good = through * (1.0 - self.enter) + losing * self.leave;
            *bad = through * self.enter + losing * (1.0 - self.leave);
        }
        // What is as unlikely as this is of no account, and slow to reckon with.
        let last = self.good.len() - 1;
        if self.good[last] + self.bad[last] < 1e-30 {
            self.good.pop();
            self.bad.pop();
        }
    }

    fn more_than(&self, count: usize) -> f64 {
        let above = |counts: &[f64]| counts.iter().skip(count + 1).sum::<f64>();
        above(&self.good) + above(&self.bad)
    }
}

/// The number of blocks to interleave: the smallest power of two, up to
/// `depth_max`, at which bursts cost a block of `n` symbols at most a quarter
/// more repairs (and one) than independent losses would, for a block failure
/// probability `epsilon`.
///
/// Every doubling doubles the time until a block is complete, so `depth_max` is
/// what the latency budget allows.
#[must_use]
pub fn interleave_depth(n: usize, p: f64, burst: f64, epsilon: f64, depth_max: usize) -> usize {
    let independent = repair_for(n, p, epsilon);
    let acceptable = independent + independent / 4 + 1;
    let mut depth = 1;
    while 2 * depth <= depth_max
        && burst_failure_probability(n, acceptable, p, burst, depth) > epsilon
    {
        depth *= 2;
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::failure_probability;

    #[test]
    fn independent_losses_are_not_interleaved() {
        assert_eq!(burst_correlation(0.06, 1.0, 1), 0.0);
        assert_eq!(burst_correlation(0.06, f64::NAN, 1), 0.0);
        assert_eq!(interleave_depth(100, 0.06, 1.0 / 0.94, 0.01, 64), 1);
        assert_eq!(interleave_depth(100, 0.0, 10.0, 0.01, 64), 1);
    }

    #[test]
    fn without_bursts_it_is_the_binomial() {
        for (n, r, p) in [(1, 0, 0.25), (100, 13, 0.06), (32, 9, 0.2)] {
            let exact = failure_probability(n, r, p);
            let bursts = burst_failure_probability(n, r, p, 1.0, 1);
            assert!((exact - bursts).abs() < 1e-12, "{exact} {bursts}");
        }
        assert_eq!(burst_repair_for(100, 0.06, 1.0, 1, 0.01, 200), 13);
        assert_eq!(burst_repair_for(100, 0.06, 1.0, 1, 0.01, 9), 9);
    }

    #[test]
    fn bursts_are_spread_as_far_as_allowed() {
        let depths = [1.5, 3.0, 10.0].map(|b| interleave_depth(100, 0.06, b, 0.01, 64));
        assert!(
            depths.is_sorted() && depths[1] >= 2 && depths[2] >= 8,
            "{depths:?}"
        );
        assert_eq!(interleave_depth(100, 0.06, 10.0, 0.01, 4), 4);
        assert_eq!(interleave_depth(100, 0.06, 10.0, 0.01, 0), 1);
    }

    /// Against simulated Gilbert losses: 25 and 51 repairs for bursts of three
    /// and ten, 13 and 18 with eight blocks interleaved.
    #[test]
    fn redundancy_for_bursts() {
        let repairs = |burst, depth| burst_repair_for(100, 0.06, burst, depth, 0.01, 200);
        let near = |found: usize, expected: usize, by| {
            assert!(found.abs_diff(expected) <= by, "{found} {expected}");
        };
        near(repairs(3.0, 1), 25, 2);
        near(repairs(10.0, 1), 51, 4);
        near(repairs(3.0, 8), 13, 1);
        near(repairs(10.0, 8), 18, 2);
        assert_eq!(burst_repair_for(100, 0.95, 1e300, 1, 0.01, 200), 200);
    }
}
