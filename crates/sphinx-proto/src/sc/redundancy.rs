//! How many repair rows leave ahead of a generation's source symbols.

use crate::{Nanos, Time};

/// Weight of the latest round trip in the smoothed loss rate of a path.
const GAIN: f64 = 1.0 / 8.0;
/// Bound of the loss rate: redundancy for more would be without limit, and the path is of no use.
const RATE_MAX: f64 = 0.9;

/// The loss rate of a path: of each round trip, smoothed.
#[derive(Debug, Default)]
pub(super) struct LossRate {
    rate: Option<f64>,
    since: Option<Time>,
    arrived: u32,
    lost: u32,
}

impl LossRate {
    /// A packet was acknowledged or counts as lost.
    pub(super) fn note(&mut self, (now, rtt): (Time, Nanos), is_lost: bool) {
        match is_lost {
            true => self.lost += 1,
            false => self.arrived += 1,
        }
        let since = *self.since.get_or_insert(now);
        if now >= since.saturating_add(rtt) {
            let of = f64::from(self.lost + self.arrived);
            let share = f64::from(self.lost) / of;
            let before = self.rate.unwrap_or(share);
            self.rate = Some(before + GAIN * (share - before));
            (self.arrived, self.lost) = (0, 0);
            self.since = Some(now);
        }
    }

    /// A packet that counted as lost was only late.
    pub(super) fn take_back(&mut self) {
        // The rate of earlier round trips is not corrected.
        if let Some(lost) = self.lost.checked_sub(1) {
            self.lost = lost;
            self.arrived += 1;
        }
    }

    /// A loss rate that is known from the beginning.
    #[cfg(test)]
    pub(super) fn known(rate: f64) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate.unwrap_or(0.0).min(RATE_MAX)
    }
}

/// Rows ahead of generations: the whole part of what is due, and the rest of it with the next one.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    carry: f64,
}

impl Ahead {
    /// Rows ahead of a generation of n, of which the share p is lost: ⌊n·p/(1−p) + carry⌋, at most half of n.
    pub(super) fn rows(&mut self, n: u16, p: f64) -> u16 {
        let due = f64::from(n) * p / (1.0 - p) + self.carry;
        self.carry = due.fract();
        (due as u16).min(n / 2)
    }
}

/// Rows of which m arrive on the average, where the share p is lost.
pub(super) fn to_deliver(m: u32, p: f64) -> u32 {
    (f64::from(m) / (1.0 - p.min(RATE_MAX)) - 1e-9).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Σr stays within 1 of Σ n·p/(1−p).
    #[test]
    fn the_carry_makes_up_for_fractions() {
        for p in [0.0, 0.001, 0.013, 0.05, 0.1, 0.3] {
            let mut ahead = Ahead::default();
            let (mut rows, mut due) = (0.0, 0.0);
            for step in 0..2000_u32 {
                let n = 1 + (step * 37 % 64) as u16;
                // Half of a small generation can be less than its share.
                if f64::from(n / 2) < f64::from(n) * p / (1.0 - p) + 1.0 {
                    continue;
                }
                rows += f64::from(ahead.rows(n, p));
                due += f64::from(n) * p / (1.0 - p);
                assert!(
                    (rows - due).abs() <= 1.0 + 1e-9,
                    "{p} {step}: {rows} for {due}"
                );
            }
        }
        assert_eq!(Ahead::default().rows(4, 0.9), 2);
        assert_eq!(Ahead::default().rows(1, 0.9), 0);
    }

    #[test]
    fn what_was_only_late_is_no_loss() {
        let at = |ms: u64| crate::time::time(ms * 1_000_000);
        let rtt = 10_000_000;
        let mut losses = LossRate::default();
        for ms in 0..100 {
            let is_late = ms % 10 != 0;
            losses.note((at(ms), rtt), is_late);
            if is_late {
                losses.take_back();
            }
        }
        assert_eq!(losses.rate(), 0.0);
        losses.take_back();
        losses.note((at(100), rtt), true);
        assert_eq!(losses.rate(), 0.1 / 8.0, "none is taken back twice");
    }

    #[test]
    fn a_round_trip_counts_an_eighth() {
        let at = |ms: u64| crate::time::time(ms * 1_000_000);
        let rtt = 10_000_000;
        let mut losses = LossRate::default();
        assert_eq!(losses.rate(), 0.0);
        losses.note((at(0), rtt), true);
        losses.note((at(10), rtt), false);
        assert_eq!(losses.rate(), 0.5);
        losses.note((at(15), rtt), true);
        assert_eq!(losses.rate(), 0.5, "the round trip is not over");
        losses.note((at(20), rtt), true);
        assert_eq!(losses.rate(), 0.5 + 0.5 / 8.0);
        assert_eq!(to_deliver(9, 0.1), 10);
        assert_eq!(to_deliver(1, 0.0), 1);
        assert_eq!(to_deliver(1, 1.0), 10);
    }
}
