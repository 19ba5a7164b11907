//! Degree and number of ProFEC packets of the semi-random LT code, as in
//! section 3.2 of the Sphinx paper. Equation numbers are the paper's.

use crate::srlt::DEGREE_MAX;

use super::{REPAIRS_MAX, clamp_loss};

/// T of the paper operating point; the paper only says "a high value", and its
/// figures fit about one half.
pub const PAPER_THRESHOLD: f64 = 0.5;

/// The smallest T that is told apart: what covers with less probability cannot
/// be computed exactly (see [`coverage_probability`]).
pub const THRESHOLD_MIN: f64 = 0.3;

/// What rounding may add to or take from a quotient that should be whole.
const ROUNDING: f64 = 1e-9;

/// The largest sensible degree for `n` symbols, ⌊n/2⌋ but at least 1 and at
/// most [`DEGREE_MAX`].
///
/// The paper has no such cap. Without it, loss rates up to 1/n make every
/// ProFEC packet the same XOR of all symbols, and two losses are never
/// repaired.
#[must_use]
pub fn degree_cap(n: usize) -> u32 {
    (n / 2).clamp(1, DEGREE_MAX as usize) as u32
}

/// Equation 1: D_h = ⌊1 / (p + δ)⌋, the degree at which a packet is expected to
/// meet at most one lost symbol; from 1 to `cap` (see [`degree_cap`]).
///
/// `p` is the mean loss rate and `delta` its standard deviation.
#[must_use]
pub fn degree(p: f64, delta: f64, cap: u32) -> u32 {
    let loss = clamp_loss(p) + delta.max(0.0);
    let degree = (1.0 / loss + ROUNDING).floor();
    (degree.min(f64::from(cap.max(1))) as u32).max(1)
}

/// The lost originals to expect, q = n p, rounded up.
#[must_use]
pub fn expected_losses(n: usize, p: f64) -> usize {
    (n as f64 * clamp_loss(p) - ROUNDING).ceil().max(0.0) as usize
}

/// Equation 4: the probability that `samples` random symbols out of `n`,
/// drawn with replacement, contain all of `q` lost ones:
/// Σ (−1)^j C(q, j) (1 − j/n)^samples.
///
/// Exact to about 1e-14 where it is above 0.3; below, cancellation takes
/// digits, and the result is only good enough to tell that it is small.
#[must_use]
pub fn coverage_probability(n: usize, q: usize, samples: usize) -> f64 {
    if q > n || q > samples {
        return if q == 0 { 1.0 } else { 0.0 };
    }
    let mut term = 1.0;
    let mut sum = 1.0;
    for j in 1..=q {
        // (1 − j/n)^k = (1 − (j−1)/n)^k · (1 − 1/(n−j+1))^k
        let shrink = (samples as f64 * (-1.0 / (n - j + 1) as f64).ln_1p()).exp();
        term *= -((q - j + 1) as f64) / j as f64 * shrink;
        sum += term;
        if term.abs() < 1e-17 {
            break;
        }
    }
    sum.clamp(0.0, 1.0)
}

/// k*: the smallest number of samples that contain all of `q` lost symbols out
/// of `n` with more than probability `threshold` (T, below 1; less than
/// [`THRESHOLD_MIN`] counts as that).
#[must_use]
pub fn sample_count(n: usize, q: usize, threshold: f64) -> usize {
    if q == 0 {
        return 0;
    }
    if n <= 1 {
        return 1;
    }
    let q = q.min(n);
    let threshold = threshold.clamp(THRESHOLD_MIN, 1.0 - ROUNDING);
    // Coverage events are negatively associated, so this is a lower bound, and
    // the answer is at most a few steps above it.
    let each = threshold.powf(1.0 / q as f64);
    let bound = (-each).ln_1p() / (-1.0 / n as f64).ln_1p();
    let mut samples = q.max(bound.ceil() as usize);
    while coverage_probability(n, q, samples) <= threshold {
        samples += 1;
    }
    samples
}

/// Equation 5: N_pro = ⌈k* / (D_h (1 − p))⌉, the ProFEC packets whose samples
/// number k* after losses. `threshold` as for [`sample_count`].
#[must_use]
pub fn packet_count(n: usize, p: f64, degree: u32, threshold: f64) -> usize {
    let samples = sample_count(n, expected_losses(n, p), threshold);
    let packets = samples as f64 / (f64::from(degree.max(1)) * (1.0 - clamp_loss(p)));
    ((packets - ROUNDING).ceil() as usize).min(REPAIRS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binomial coefficients and powers are small enough here for i128.
    fn choose(n: u32, k: u32) -> i128 {
        (0..k).fold(1, |c, i| c * i128::from(n - i) / i128::from(i + 1))
    }

    /// Stirling numbers of the second kind.
    fn stirling(l: u32, q: u32) -> i128 {
        match (l, q) {
            (0, 0) => 1,
            (_, 0) | (0, _) => 0,
            _ => i128::from(q) * stirling(l - 1, q) + stirling(l - 1, q - 1),
        }
    }

    #[test]
    fn closed_form_equals_the_papers_sum_exactly() {
        let samples_max = if cfg!(miri) { 8 } else { 16 };
        for n in [3_u32, 7, 12] {
            for q in 1..=n.min(4) {
                for k in q..=samples_max {
                    // All counts out of n^k equally likely samples.
                    let by_equation_4: i128 = (q..=k)
                        .map(|l| {
                            let hit = stirling(l, q) * (1..=i128::from(q)).product::<i128>();
                            choose(k, l) * i128::from(n - q).pow(k - l) * hit
                        })
                        .sum();
                    let by_inclusion_exclusion: i128 = (0..=q)
                        .map(|j| {
                            let sign = if j % 2 == 0 { 1 } else { -1 };
                            sign * choose(q, j) * i128::from(n - j).pow(k)
                        })
                        .sum();
                    assert_eq!(by_equation_4, by_inclusion_exclusion);
                    let exact = by_equation_4 as f64 / i128::from(n).pow(k) as f64;
                    let ours = coverage_probability(n as usize, q as usize, k as usize);
                    let tolerance = if exact > 0.3 { 1e-14 } else { 1e-10 };
                    assert!(
                        (ours - exact).abs() < tolerance,
                        "{n} {q} {k}: {ours} {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn sample_counts_for_a_hundred_symbols() {
        let table = [
            (1, [69, 230, 459]),
            (2, [123, 296, 527]),
            (4, [184, 364, 596]),
            (6, [222, 404, 637]),
            (10, [270, 454, 687]),
            (20, [338, 523, 756]),
        ];
        for (q, expected) in table {
            assert_eq!(
                [0.5, 0.9, 0.99].map(|t| sample_count(100, q, t)),
                expected,
                "{q}"
            );
        }
    }

    #[test]
    fn k_star_is_the_smallest() {
        let sizes: &[usize] = if cfg!(miri) {
            &[10]
        } else {
            &[10, 100, 1024, 4096]
        };
        for &n in sizes {
            for q in [1, 2, n / 10, n / 4] {
                for threshold in [0.3, 0.5, 0.9, 0.99] {
                    let samples = sample_count(n, q, threshold);
                    assert!(coverage_probability(n, q, samples) > threshold);
                    assert!(coverage_probability(n, q, samples - 1) <= threshold);
                }
            }
        }
    }

    /// Redundancy of the paper's scheme in per cent at n = 100, with its own
    /// cap of n on the degree.
    #[test]
    fn packet_counts_for_a_hundred_symbols() {
        let rates = [0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1];
        let counts = |t| rates.map(|p| packet_count(100, p, degree(p, 0.0, 100), t));
        assert_eq!(counts(0.5), [1, 1, 3, 5, 8, 11, 15, 23, 30]);
        assert_eq!(counts(0.9), [3, 3, 7, 11, 16, 21, 27, 40, 51]);
        assert_eq!(counts(0.99), [5, 5, 11, 18, 25, 33, 43, 61, 77]);
    }

    #[test]
    fn degrees() {
        assert_eq!(degree_cap(100), 50);
        assert_eq!(degree_cap(1), 1);
        assert_eq!(degree_cap(4096), DEGREE_MAX);
        assert_eq!(degree(0.06, 0.0, degree_cap(100)), 16);
        assert_eq!(degree(0.06, 0.024, degree_cap(100)), 11);
        assert_eq!(degree(0.04, 0.01, degree_cap(100)), 20);
        assert_eq!(degree(0.001, 0.0, degree_cap(100)), 50);
        assert_eq!(degree(0.0, 0.0, degree_cap(100)), 50);
        assert_eq!(degree(1.0, 0.5, degree_cap(100)), 1);
    }

    #[test]
    fn no_loss_needs_no_packets() {
        assert_eq!(packet_count(100, 0.0, 50, 0.99), 0);
        assert_eq!(packet_count(1, 1.0, 1, 0.99), 20);
    }
}
