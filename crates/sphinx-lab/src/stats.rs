//! Small statistics.

use std::fmt;

use serde::Serialize;

/// The median: the middle value, or the mean of the two in the middle. Not-a-numbers are left out.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Student's t for a two-sided probability of 5 %, by degrees of freedom from 1 on.
const STUDENT_T: [f64; 4] = [12.706, 4.303, 3.182, 2.776];

/// With more values the normal distribution is as good as exact counting, for which 0.5 to the power of their number becomes too small
/// for a float.
const COUNTED_MAX: usize = 1000;

/// A 95 % interval: of the mean by Student's t for 2 to 5 values, of the median by order statistics
/// for more. One value has none.
pub fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len();
    match count {
        0 | 1 => None,
        2..=5 => {
            let mean = sorted.iter().sum::<f64>() / count as f64;
            let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
            let error = (squares / (count - 1) as f64 / count as f64).sqrt();
            let reach = STUDENT_T[count - 2] * error;
            Some((mean - reach, mean + reach))
        }
        6..=COUNTED_MAX => {
            // The largest k for which fewer than k of the values are below the median with at most
            // 2.5 %.
            let (mut below, mut term, mut k) = (0.0, 0.5_f64.powi(count as i32), 0);
            while below + term <= 0.025 {
                below += term;
                term *= (count - k) as f64 / (k + 1) as f64;
                k += 1;
            }
            Some((sorted[k - 1], sorted[count - k]))
        }
        _ => {
            let (middle, deviation) = (count as f64 / 2.0, (count as f64).sqrt() / 2.0);
            let k = (middle + 0.5 - 1.96 * deviation) as usize;
            Some((sorted[k - 1], sorted[count - k]))
        }
    }
}

/// How many times one thing is another: the middle of the pairs, and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the pairs' ratios.
    pub middle: f64,
    /// The 95 % interval; `None` of one pair.
    pub interval: Option<(f64, f64)>,
}

/// With fewer values no sum of ranks is improbable enough for a 95 % interval.
const RANKED_MIN: usize = 6;
/// With more values the interval is that of their mean by Student's t, which serves as well then.
const RANKED_MAX: usize = 100;
/// Student's t for a two-sided probability of 5 % and [`RANKED_MAX`] degrees of freedom or more.
const STUDENT_T_MANY: f64 = 1.984;

/// What the first of each pair is of the second, by the logarithms of their ratios, so that half and twice are as far from one.
/// Nothing if there is no pair, or one that has no such ratio.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let logarithms: Option<Vec<f64>> = (pairs.iter())
        .map(|(left, right)| {
            let is_ratio = *left > 0.0 && *right > 0.0 && left.is_finite() && right.is_finite();
            is_ratio.then(|| (left / right).ln())
        })
        .collect();
    let (middle, interval) = centre(&logarithms?)?;
    Some(Ratio {
        middle: middle.exp(),
        interval: interval.map(|(low, high)| (low.exp(), high.exp())),
    })
}

/// The middle of values that scatter around one, and its 95 % interval: the mean and Student's t for 2 to 5 and for many, otherwise
/// the estimate of Hodges and Lehmann with the ranks of Wilcoxon, which a few values far from the others hardly move.
pub fn centre(values: &[f64]) -> Option<(f64, Option<(f64, f64)>)> {
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares = || {
        values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
    };
    let by_student = |t: f64| {
        let reach = t * (squares() / (count - 1) as f64 / count as f64).sqrt();
        Some((mean, Some((mean - reach, mean + reach))))
    };
    match count {
        0 => None,
        1 => Some((mean, None)),
        2..RANKED_MIN => by_student(STUDENT_T[count - 2]),
        RANKED_MIN..=RANKED_MAX => {
            let mut means: Vec<f64> = Vec::with_capacity(count * (count + 1) / 2);
            for (at, left) in values.iter().enumerate() {
                means.extend(
                    values[at..]
                        .iter()
                        .map(|right| f64::midpoint(*left, *right)),
                );
            }
            means.sort_unstable_by(f64::total_cmp);
            let aside = improbable_rank(count);
            let ends = (means[aside], means[means.len() - 1 - aside]);
            Some((median(means)?, Some(ends)))
        }
        _ => by_student(STUDENT_T_MANY),
    }
}

/// The largest number of means of pairs that may be left out at each end of an interval of 95 %. What the values scatter around is
/// outside of an end if so many means or fewer are beyond it: as many as the sum of the ranks of the positive ones of `count` values
/// around zero, which is not above this with 2.5 % at most.
fn improbable_rank(count: usize) -> usize {
    // `ways[sum]`: how many of the 2^count sets of ranks have this sum.
    let mut ways = vec![0.0; count * (count + 1) / 2 + 1];
    ways[0] = 1.0;
    for rank in 1..=count {
        for sum in (rank..ways.len()).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let all = 2_f64.powi(count as i32);
    // One set has the sum 0, which is improbable enough from [`RANKED_MIN`] values on.
    let (mut up_to, mut rank) = (ways[0], 0);
    while (up_to + ways[rank + 1]) / all <= 0.025 {
        rank += 1;
        up_to += ways[rank];
    }
    rank
}

/// Two heaps that values fall into, with nothing between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// The medians of the lower and of the upper one.
    pub medians: [f64; 2],
    /// Number of values in the lower and in the upper one.
    pub counts: [usize; 2],
}

/// Whether values, none of them negative, fall into two heaps, so that their median says nothing of either. With fewer than four, that
/// the largest is half as large again as the smallest is enough: nobody knows then.
pub fn peaks(values: &[f64]) -> Option<Peaks> {
    // Least gap between two heaps of values, as a part of the middle between them: smaller ones do not matter.
    const GAP_MIN: f64 = 0.2;
    const FEW: usize = 4;
    const FEW_GAP_MIN: f64 = 0.4;
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (least_of_a_heap, gap_min) = match sorted.len() {
        0 | 1 => return None,
        2..FEW => (1, FEW_GAP_MIN),
        count => (count.div_ceil(5).max(2), GAP_MIN),
    };
    let widest = (least_of_a_heap..=sorted.len() - least_of_a_heap).max_by(|left, right| {
        let gap = |at: usize| sorted[at] - sorted[at - 1];
        gap(*left).total_cmp(&gap(*right))
    })?;
    let (lower, upper) = sorted.split_at(widest);
    let (from, to) = (lower.last()?, upper.first()?);
    let width = |heap: &[f64]| heap[heap.len() - 1] - heap[0];
    let gap = to - from;
    let is_wide =
        gap > 2.0 * width(lower).max(width(upper)) && gap > gap_min * f64::midpoint(*from, *to);
    is_wide.then_some(Peaks {
        medians: [
            median(lower.iter().copied())?,
            median(upper.iter().copied())?,
        ],
        counts: [lower.len(), upper.len()],
    })
}

/// A number of a run, or the least that it can be, of a run that was cut off before it was known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(into = "Option<f64>")]
pub enum Measured {
    /// The number itself.
    Exactly(f64),
    /// A lower bound, where the number is not known; null in JSON.
    AtLeast(f64),
}

impl Measured {
    /// The number, or its lower bound.
    pub fn least(self) -> f64 {
        match self {
            Measured::Exactly(value) | Measured::AtLeast(value) => value,
        }
    }

    /// The number; `None` if only a lower bound is known.
    pub fn known(self) -> Option<f64> {
        match self {
            Measured::Exactly(value) => Some(value),
            Measured::AtLeast(_) => None,
        }
    }

    /// Applies a function that never decreases, so that a lower bound stays one.
    #[must_use]
    pub fn map(self, with: impl FnOnce(f64) -> f64) -> Measured {
        match self {
            Measured::Exactly(value) => Measured::Exactly(with(value)),
            Measured::AtLeast(value) => Measured::AtLeast(with(value)),
        }
    }

    /// What is known of one among such numbers, by its place: as those that are only known to be at least so much may be larger, it is
    /// not known either if one of them is before it.
    #[must_use]
    pub fn among(value: f64, all: impl IntoIterator<Item = Measured>) -> Measured {
        let may_be_larger =
            |one: Measured| matches!(one, Measured::AtLeast(least) if least <= value);
        match all.into_iter().any(may_be_larger) {
            true => Measured::AtLeast(value),
            false => Measured::Exactly(value),
        }
    }

    /// The median.
    pub fn median(values: impl IntoIterator<Item = Measured>) -> Option<Measured> {
        let values: Vec<Measured> = values.into_iter().collect();
        let middle = median(values.iter().map(|value| value.least()))?;
        Some(Measured::among(middle, values))
    }
}

impl From<f64> for Measured {
    fn from(value: f64) -> Measured {
        Measured::Exactly(value)
    }
}

impl From<Measured> for Option<f64> {
    fn from(value: Measured) -> Option<f64> {
        value.known()
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Measured::AtLeast(_) = self {
            f.write_str("> ")?;
        }
        self.least().fmt(f)
    }
}

/// What `share` of `due` values do not exceed, by nearest rank; `sorted` are the smallest of them. None if it is among the others.
pub(crate) fn quantile(sorted: &[f64], due: u64, share: f64) -> Option<f64> {
    let rank = rank(due, share);
    let index = usize::try_from(rank).ok()?.checked_sub(1)?;
    sorted.get(index).copied()
}

/// The rank of the quantile `share` among `due` values, counted from 1.
pub(crate) fn rank(due: u64, share: f64) -> u64 {
    ((due as f64 * share).ceil() as u64).clamp(1, due.max(1))
}

/// The distribution of a set of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Mean of the values.
    pub mean: f64,
    /// The median, by nearest rank.
    pub p50: f64,
    /// The value that 99 of 100 do not exceed.
    pub p99: f64,
    /// The largest value.
    pub max: f64,
}

impl Distribution {
    /// Describes values, in any order; nothing is said about none.
    pub fn of(values: &[f64]) -> Option<Distribution> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len() as u64;
        Some(Distribution {
            count,
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50: quantile(&sorted, count, 0.5)?,
            p99: quantile(&sorted, count, 0.99)?,
            max: *sorted.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn intervals() {
        assert_eq!(interval(&[1.0]), None);
        let (low, high) = interval(&[9.0, 10.0, 11.0]).unwrap();
        assert!((high - low - 2.0 * 4.303 / 3_f64.sqrt()).abs() < 1e-9);
        let six = [6.0, 1.0, 2.0, 5.0, 3.0, 4.0];
        assert_eq!(interval(&six), Some((1.0, 6.0)));
        let many: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(interval(&many), Some((40.0, 61.0)));
        // Up to 1000 values, ranks are counted; above, by the normal distribution.
        let of = |count| interval(&(1..=count).map(f64::from).collect::<Vec<_>>());
        assert_eq!(of(1000), Some((469.0, 532.0)));
        assert_eq!(of(1001), Some((469.0, 533.0)));
        assert_eq!(of(5000), Some((2431.0, 2570.0)));
    }

    #[test]
    fn ratios_of_pairs() {
        assert_eq!(paired_ratio(&[]), None);
        assert_eq!(paired_ratio(&[(1.0, 0.0)]), None);
        let one = paired_ratio(&[(3.0, 2.0)]).unwrap();
        assert!((one.middle - 1.5).abs() < 1e-12 && one.interval.is_none());
        // Of three, the mean of the logarithms and Student's t.
        let three = paired_ratio(&[(2.0, 1.0), (4.0, 1.0), (8.0, 1.0)]).unwrap();
        let reach = (4.303 * 2_f64.ln() / 3_f64.sqrt()).exp();
        let (low, high) = three.interval.unwrap();
        assert!((three.middle - 4.0).abs() < 1e-9);
        assert!((low - 4.0 / reach).abs() < 1e-6 && (high - 4.0 * reach).abs() < 1e-4);
    }

    /// The critical values of tables for Wilcoxon's signed ranks: sums up to these have a probability of 2.5 % at most.
    #[test]
    fn ranks_are_those_of_the_tables() {
        for (count, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (20, 52), (50, 434)] {
            assert_eq!(improbable_rank(count), critical, "{count}");
        }
    }

    /// Of all signs that values of different sizes may have, each as likely as any other: 95 of 100 intervals hold zero, and hardly more.
    #[test]
    fn intervals_by_ranks_hold_zero_as_often_as_they_say() {
        for count in RANKED_MIN..=12 {
            let all = 1_u32 << count;
            let size = |at: usize| 1.0 + 0.1 * at as f64 + 0.013 * (at * at) as f64;
            let holds = |signs: &u32| {
                let sign = |at: usize| if (signs >> at) & 1 == 1 { 1.0 } else { -1.0 };
                let values: Vec<f64> = (0..count).map(|at| sign(at) * size(at)).collect();
                let (low, high) = centre(&values).unwrap().1.unwrap();
                low <= 0.0 && 0.0 <= high
            };
            let held = (0..all).filter(holds).count();
            let share = held as f64 / f64::from(all);
            assert!((0.95..0.97).contains(&share), "{count}: {share}");
        }
    }

    #[test]
    fn one_odd_pair_moves_little() {
        let mut pairs: Vec<(f64, f64)> =
            (0..10).map(|at| (2.0 + f64::from(at) / 1e3, 1.0)).collect();
        pairs[9].0 = 50.0;
        let ratio = paired_ratio(&pairs).unwrap();
        let (low, high) = ratio.interval.unwrap();
        assert!(low > 1.99 && ratio.middle < 2.1 && high < 11.0, "{ratio:?}");
    }

    /// 95 of 100 intervals hold what they are about.
    #[test]
    fn intervals_hold_the_truth() {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for count in [3, 5, 6, 10, 30, 120] {
            let mut held = 0;
            for _ in 0..1000 {
                let values: Vec<f64> = (0..count)
                    .map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0)
                    .collect();
                let (low, high) = centre(&values).unwrap().1.unwrap();
                held += u32::from(low <= 0.0 && 0.0 <= high);
            }
            assert!((930..=990).contains(&held), "{count}: {held}");
        }
    }

    #[test]
    fn two_heaps_are_seen() {
        let both = peaks(&[83.0, 166.0, 84.0, 165.0, 167.0, 166.5, 82.0, 166.2]).unwrap();
        assert_eq!(both.counts, [3, 5]);
        assert_eq!(both.medians, [83.0, 166.2]);
        // One value apart is no heap, and neither are values that scatter.
        assert_eq!(peaks(&[83.0, 166.0, 165.0, 167.0, 166.5, 166.2]), None);
        assert_eq!(peaks(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 9.0]), None);
        assert_eq!(peaks(&[10.0, 10.1, 10.0, 11.0, 11.1]), None);
        // With two values it is not known whether there are two heaps.
        assert!(peaks(&[83.0, 166.0]).is_some() && peaks(&[160.0, 166.0]).is_none());
        assert_eq!(peaks(&[0.0, 0.0, 0.0]), None);
    }

    #[test]
    fn what_is_cut_off_is_known_only_to_be_at_least_so_much() {
        let exactly = Measured::Exactly;
        let median = |values: &[Measured]| Measured::median(values.iter().copied());
        assert_eq!(median(&[]), None);
        let known = [1.0, 2.0, 3.0].map(exactly);
        assert_eq!(median(&known), Some(exactly(2.0)));
        // A lower bound above the median does not change it, whatever the number is.
        let late = [exactly(1.0), exactly(2.0), Measured::AtLeast(3.0)];
        assert_eq!(median(&late), Some(exactly(2.0)));
        let early = [Measured::AtLeast(1.0), exactly(2.0), exactly(3.0)];
        let middle = median(&early).unwrap();
        assert_eq!(middle, Measured::AtLeast(2.0));
        assert_eq!(format!("{middle:.1}"), "> 2.0");
        assert_eq!(format!("{:.1}", exactly(2.0)), "2.0");
        let json = serde_json::to_value([middle, exactly(2.0)]).unwrap();
        assert_eq!(json, serde_json::json!([null, 2.0]));
    }

    #[test]
    fn quantiles_of_what_was_due() {
        let came = [1.0, 2.0, 3.0];
        assert_eq!(quantile(&came, 3, 0.99), Some(3.0));
        assert_eq!(quantile(&came, 6, 0.5), Some(3.0));
        assert_eq!(quantile(&came, 7, 0.5), None);
        assert_eq!(quantile(&[], 0, 0.5), None);
    }

    #[test]
    fn distributions() {
        assert_eq!(Distribution::of(&[]), None);
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let expected = Distribution {
            count: 200,
            mean: 100.5,
            p50: 100.0,
            p99: 198.0,
            max: 200.0,
        };
        assert_eq!(Distribution::of(&values), Some(expected));
        let one = Distribution::of(&[5.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (5.0, 5.0, 5.0));
    }
}
