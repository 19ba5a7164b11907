//! Parameter mathematics: how many repairs, of which kind, for which loss.
//!
//! Pure functions. Loss rates are probabilities from 0 to 1; values outside
//! are clamped, and rates above [`LOSS_MAX`] count as that: no redundancy helps
//! a link that loses everything. Counts saturate at [`REPAIRS_MAX`].

mod burst;
mod histogram;
pub mod srlt;

pub use burst::{burst_correlation, burst_failure_probability, burst_repair_for, interleave_depth};
pub use histogram::LossHistogram;

/// The largest loss rate the functions here tell apart.
pub const LOSS_MAX: f64 = 0.95;

/// The largest number of repairs the functions here return.
pub const REPAIRS_MAX: usize = 1 << 17;

/// The erasure bound: repairs per source symbol without which no code of any
/// kind can make up for loss rate `p`, p / (1 − p).
#[must_use]
pub fn erasure_bound(p: f64) -> f64 {
    let p = clamp_loss(p);
    p / (1.0 - p)
}

/// P_fail(n, R, p): the probability that a block of `n` symbols sent with
/// `repairs` repairs cannot be decoded by an MDS code when each packet is lost
/// independently with probability `p`: P(Bin(n + R, p) > R).
#[must_use]
pub fn failure_probability(n: usize, repairs: usize, p: f64) -> f64 {
    let p = clamp_loss(p);
    let packets = n + repairs;
    if n == 0 || p == 0.0 {
        return 0.0;
    }
    let losses = Losses { packets, p };
    // Sum whichever tail is the lighter one, so that a small result is exact.
    let mean = packets as f64 * p;
    if repairs as f64 >= mean {
        let mut total = 0.0;
        let mut term = losses.ln_probability(repairs + 1).exp();
        for count in repairs + 1..=packets {
            total += term;
            let ratio = losses.ratio(count);
            if ratio < 1.0 && term < total * 1e-17 {
                break;
            }
            term *= ratio;
        }
        total.min(1.0)
    } else {
        let mut total = 0.0;
        let mut term = losses.ln_probability(repairs).exp();
        for count in (0..=repairs).rev() {
            total += term;
            if count > 0 {
                term /= losses.ratio(count - 1);
            }
        }
        (1.0 - total).clamp(0.0, 1.0)
    }
}

/// The smallest number of repairs for which a block of `n` symbols fails with
/// at most probability `epsilon`: min R with P(Bin(n + R, p) > R) ≤ ε.
#[must_use]
pub fn repair_for(n: usize, p: f64, epsilon: f64) -> usize {
    smallest(|repairs| failure_probability(n, repairs, p) <= epsilon)
}

/// The number of fresh symbols to send so that at least `deficit` of them
/// arrive with 99 % probability: min r with P(Bin(r, 1 − p) ≥ deficit) ≥ 0.99.
#[must_use]
pub fn reactive(deficit: usize, p: f64) -> usize {
    deficit + repair_for(deficit, p, 0.01)
}

pub(crate) fn clamp_loss(p: f64) -> f64 {
    // A rate that is not a number counts as no loss.
    if p > 0.0 { p.min(LOSS_MAX) } else { 0.0 }
}

/// The smallest number up to [`REPAIRS_MAX`] that `suffices`, for a condition
/// that stays true once it is.
fn smallest(suffices: impl Fn(usize) -> bool) -> usize {
    if suffices(0) {
        return 0;
    }
    let mut too_few = 0;
    let mut enough = 1;
    while !suffices(enough) {
        if enough >= REPAIRS_MAX {
            return REPAIRS_MAX;
        }
        too_few = enough;
        enough *= 2;
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if suffices(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    enough
}

/// The binomial distribution of the number of losses among some packets.
struct Losses {
    packets: usize,
    p: f64,
}

impl Losses {
    /// P(count + 1) / P(count).
    fn ratio(&self, count: usize) -> f64 {
        if count >= self.packets {
            return 0.0;
        }
        let rest = (self.packets - count) as f64;
        rest / (count + 1) as f64 * self.p / (1.0 - self.p)
    }

    fn ln_probability(&self, count: usize) -> f64 {
        let none = self.packets as f64 * (-self.p).ln_1p();
        none + (0..count).map(|i| self.ratio(i).ln()).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases_by_hand() {
        assert!((failure_probability(1, 0, 0.25) - 0.25).abs() < 1e-14);
        assert!((failure_probability(1, 1, 0.25) - 0.0625).abs() < 1e-14);
        // Three packets, at most one may be lost: 1 − 0.75³ − 3·0.25·0.75².
        let expected = 1.0 - 0.421875 - 0.421875;
        assert!((failure_probability(2, 1, 0.25) - expected).abs() < 1e-14);
        assert_eq!(failure_probability(0, 0, 0.5), 0.0);
        assert_eq!(failure_probability(100, 3, 0.0), 0.0);
        assert_eq!(failure_probability(100, 3, f64::NAN), 0.0);
    }

    #[test]
    fn small_probabilities_keep_their_precision() {
        // One packet of three must get through: p³ exactly.
        let p = 1e-4;
        assert!((failure_probability(1, 2, p) / p.powi(3) - 1.0).abs() < 1e-12);
    }

    /// Redundancy of MDS codes at block failure 10 %, 1 % and 0.1 %, in repairs
    /// for n = 100.
    #[test]
    fn repairs_for_a_hundred_symbols() {
        let table = [
            (0.005, [1, 3, 4]),
            (0.01, [2, 4, 5]),
            (0.02, [4, 6, 8]),
            (0.04, [7, 10, 12]),
            (0.06, [10, 13, 16]),
            (0.10, [16, 20, 24]),
            (0.20, [32, 39, 44]),
        ];
        for (p, expected) in table {
            assert_eq!(
                [0.1, 0.01, 0.001].map(|eps| repair_for(100, p, eps)),
                expected,
                "{p}"
            );
        }
    }

    #[test]
    fn reactive_rounds() {
        let counts = |p| [1, 2, 3, 4, 6, 8].map(|m| reactive(m, p));
        assert_eq!(counts(0.06), [2, 4, 5, 6, 8, 11]);
        assert_eq!(counts(0.02), [2, 3, 4, 5, 7, 10]);
        assert_eq!([1, 2, 4, 8].map(|m| reactive(m, 0.2)), [3, 5, 9, 15]);
        assert_eq!(reactive(0, 0.2), 0);
    }

    #[test]
    fn hopeless_links_get_a_finite_answer() {
        // The searches look at a hundred thousand repairs and more.
        let n = if cfg!(miri) { 1 } else { 4096 };
        assert_eq!(repair_for(n, 1.0, 0.002), repair_for(n, LOSS_MAX, 0.002));
        if !cfg!(miri) {
            assert_eq!(repair_for(n, 0.5, -1.0), REPAIRS_MAX);
        }
        assert_eq!(repair_for(0, 0.5, 0.01), 0);
    }

    #[test]
    fn probabilities_of_a_distribution_sum_to_one() {
        let losses = Losses {
            packets: 60,
            p: 0.1,
        };
        let total: f64 = (0..=60).map(|i| losses.ln_probability(i).exp()).sum();
        assert!((total - 1.0).abs() < 1e-12, "{total}");
    }
}
