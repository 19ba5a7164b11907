//! Delays and what they look like.

use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeMap};

/// Delays in milliseconds, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delays(Vec<f64>);

impl Delays {
    /// Number of delays.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of delays of at most `ms` milliseconds.
    pub fn within(&self, ms: f64) -> usize {
        self.0.partition_point(|it| *it <= ms)
    }

    /// The delay, in milliseconds, that this share (0 to 1) of all does not exceed, by nearest rank; none of nothing.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied()
    }

    /// Mean of the delays in milliseconds; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.0.iter().sum();
        (!self.0.is_empty()).then(|| sum / self.0.len() as f64)
    }
}

impl FromIterator<Duration> for Delays {
    fn from_iter<T: IntoIterator<Item = Duration>>(delays: T) -> Delays {
        let ms = |delay: Duration| delay.as_secs_f64() * 1e3;
        let mut delays: Vec<f64> = delays.into_iter().map(ms).collect();
        delays.sort_unstable_by(f64::total_cmp);
        Delays(delays)
    }
}

impl Serialize for Delays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shares = [
            ("p50", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
            ("p999", 0.999),
            ("max", 1.0),
        ];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &self.count())?;
        map.serialize_entry("mean", &self.mean())?;
        for (name, share) in shares {
            map.serialize_entry(name, &self.quantile(share))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks() {
        let delays: Delays = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(delays.quantile(0.5), Some(100.0));
        assert_eq!(delays.quantile(0.99), Some(198.0));
        assert_eq!(
            (delays.quantile(0.0), delays.quantile(1.0)),
            (Some(1.0), Some(200.0))
        );
        assert_eq!((delays.within(99.5), delays.within(1e9)), (99, 200));
        assert_eq!(delays.mean(), Some(100.5));
        let json = serde_json::to_value(&delays).unwrap();
        assert_eq!(
            (&json["count"], &json["p999"]),
            (&200.into(), &200.0.into())
        );
        let none = Delays::default();
        assert_eq!(
            (none.quantile(0.5), none.mean(), none.within(1.0)),
            (None, None, 0)
        );
    }
}
