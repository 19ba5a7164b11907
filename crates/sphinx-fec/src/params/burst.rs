//! Losses that come in bursts, and interleaving against them.
//!
//! The model is Gilbert's: the link is good or bad, packets are lost while it
//! is bad, and the losses of two packets `j` apart have correlation `λ^j` with
//! `λ = 1 − 1 / (B (1 − p))` for a mean burst of `B` packets.

use super::{clamp_loss, overdispersed_repair_for, repair_for};

/// The mean correlation between the losses of two packets of a block of
/// `packets`, when packets of `depth` blocks are sent in turn: the `rho` of
/// [`overdispersed_repair_for`].
///
/// `burst` is the mean number of packets lost in a row; 1/(1 − p) is what
/// independent losses give, and less counts as that.
#[must_use]
pub fn burst_correlation(packets: usize, p: f64, burst: f64, depth: usize) -> f64 {
    let lambda = 1.0 - 1.0 / (burst * (1.0 - clamp_loss(p)));
    if packets < 2 || lambda.is_nan() || lambda <= 0.0 {
        return 0.0;
    }
    let step = lambda.powi(i32::try_from(depth.max(1)).unwrap_or(i32::MAX));
    let (mut sum, mut power) = (0.0, 1.0);
    for distance in 1..packets {
        power *= step;
        sum += (packets - distance) as f64 * power;
        if power < 1e-12 {
            break;
        }
    }
    let pairs = packets as f64 * (packets - 1) as f64 / 2.0;
    (sum / pairs).clamp(0.0, 0.999)
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
    while 2 * depth <= depth_max {
        let rho = burst_correlation(n + independent, p, burst, depth);
        if overdispersed_repair_for(n, p, rho, epsilon) <= acceptable {
            break;
        }
        depth *= 2;
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn independent_losses_are_not_interleaved() {
        assert_eq!(burst_correlation(100, 0.06, 1.0, 1), 0.0);
        assert_eq!(burst_correlation(100, 0.06, f64::NAN, 1), 0.0);
        assert_eq!(interleave_depth(100, 0.06, 1.0 / 0.94, 0.01, 64), 1);
        assert_eq!(interleave_depth(100, 0.0, 10.0, 0.01, 64), 1);
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

    /// Redundancy for bursts of ten on average, from simulated Gilbert losses:
    /// about 51 repairs, and about 18 with eight blocks interleaved.
    #[test]
    fn redundancy_for_bursts() {
        let repairs = |depth| {
            let rho = burst_correlation(118, 0.06, 10.0, depth);
            overdispersed_repair_for(100, 0.06, rho, 0.01)
        };
        assert!((40..=65).contains(&repairs(1)), "{}", repairs(1));
        assert!((16..=20).contains(&repairs(8)), "{}", repairs(8));
    }
}
