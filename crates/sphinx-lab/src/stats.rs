//! Small statistics.

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
        _ => {
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
    }
}

/// What a set of values looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The median, by nearest rank.
    pub p50: f64,
    /// 99 of 100 are not larger.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Distribution {
    /// Describes values, in any order; nothing is said about none.
    pub fn of(values: &[f64]) -> Option<Distribution> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted[rank.clamp(1, sorted.len()) - 1]
        };
        let max = *sorted.last()?;
        Some(Distribution {
            count: sorted.len() as u64,
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50: rank(0.5),
            p99: rank(0.99),
            max,
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
