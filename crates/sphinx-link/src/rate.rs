//! Serialisation: when the last bit of a packet has left, at a rate that may change over time.

use crate::{Time, config::Rate, nanos};

/// Work of one byte, in bits times 10^9: at a rate of r bit/s, every nanosecond does r units.
const UNITS_PER_BYTE: u128 = 8_000_000_000;

/// A rate with its schedule resolved to nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    /// (from, bit/s), the first at 0, ascending; empty for an unlimited link.
    steps: Vec<(Time, u64)>,
    /// Length of one repetition, or `Time::MAX`.
    period: Time,
}

impl Limiter {
    /// `rate` must have passed validation.
    pub(crate) fn new(rate: &Rate) -> Limiter {
        match rate {
            Rate::Unlimited => Limiter {
                steps: Vec::new(),
                period: Time::MAX,
            },
            Rate::Constant(bits_per_second) => Limiter {
                steps: vec![(0, *bits_per_second)],
                period: Time::MAX,
            },
            Rate::Steps { steps, repeat } => Limiter {
                steps: steps
                    .iter()
                    .map(|step| (nanos(step.at), step.bits_per_second))
                    .collect(),
                period: repeat.map_or(Time::MAX, nanos),
            },
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.steps.is_empty()
    }

    /// The rate at `now` and the time at which it changes next.
    fn segment(&self, now: Time) -> (u64, Time) {
        let offset = now % self.period;
        let next = self.steps.partition_point(|&(from, _)| from <= offset);
        let rate = next
            .checked_sub(1)
            .map_or(0, |current| self.steps[current].1);
        let end = self.steps.get(next).map_or(self.period, |&(from, _)| from);
        (
            rate,
            if end == Time::MAX {
                Time::MAX
            } else {
                (now - offset).saturating_add(end)
            },
        )
    }

    /// The rate that turns time into bytes for queue limits: the present one, or during a pause the
    /// highest of the schedule.
    pub(crate) fn reference(&self, now: Time) -> u64 {
        match self.segment(now).0 {
            0 => self.steps.iter().map(|&(_, rate)| rate).max().unwrap_or(0),
            rate => rate,
        }
    }

    /// The time at which `work` units are done when they begin at `start`, and the units that this
    /// last nanosecond had to spare. `Time::MAX` if that is never.
    pub(crate) fn finish(&self, start: Time, mut work: u128) -> (Time, u128) {
        if self.is_unlimited() {
            return (start, 0);
        }
        let mut now = start;
        loop {
            let (rate, until) = self.segment(now);
            let capacity = u128::from(rate) * u128::from(until - now);
            if capacity >= work && rate > 0 {
                let needed = work.div_ceil(u128::from(rate));
                return (now + needed as u64, needed * u128::from(rate) - work);
            }
            if until == Time::MAX {
                return (Time::MAX, 0);
            }
            work -= capacity;
            now = until;
        }
    }

    /// The units of work done between two times.
    pub(crate) fn served(&self, start: Time, end: Time) -> u128 {
        let mut now = start;
        let mut work = 0;
        while now < end {
            let (rate, until) = self.segment(now);
            let until = until.min(end);
            work += u128::from(rate) * u128::from(until - now);
            now = until;
        }
        work
    }
}

/// The work of sending a packet.
pub(crate) fn work(bytes: usize) -> u128 {
    bytes as u128 * UNITS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::RateStep;

    fn step(ms: u64, bits_per_second: u64) -> RateStep {
        RateStep {
            at: Duration::from_millis(ms),
            bits_per_second,
        }
    }

    #[test]
    fn constant_rate_carries_the_fraction() {
        // 1500 bytes at 7 Mbit/s last 1714285.714... ns.
        let limiter = Limiter::new(&Rate::Constant(7_000_000));
        let (mut now, mut spare) = (0, 0);
        for _ in 0..7 {
            (now, spare) = limiter.finish(now, work(1500) - spare);
        }
        assert_eq!((now, spare), (12_000_000, 0));
    }

    #[test]
    fn a_packet_spans_rate_steps_and_pauses() {
        let rate = Rate::Steps {
            steps: vec![step(0, 8_000_000), step(1, 0), step(5, 4_000_000)],
            repeat: None,
        };
        let limiter = Limiter::new(&rate);
        // 1000 bytes in the first millisecond, then a pause, then 500 bytes per millisecond.
        assert_eq!(limiter.finish(0, work(1500)), (6_000_000, 0));
        assert_eq!(limiter.served(0, 6_000_000), work(1500));
        assert_eq!(limiter.finish(2_000_000, work(500)), (6_000_000, 0));
        assert_eq!(limiter.reference(2_000_000), 8_000_000);
    }

    #[test]
    fn a_schedule_repeats() {
        let rate = Rate::Steps {
            steps: vec![step(0, 8_000_000), step(1, 0)],
            repeat: Some(Duration::from_millis(2)),
        };
        let limiter = Limiter::new(&rate);
        assert_eq!(limiter.finish(0, work(2500)), (4_500_000, 0));
        assert_eq!(limiter.served(1_000_000, 5_000_000), work(2000));
    }

    #[test]
    fn a_final_pause_never_ends() {
        let limiter = Limiter::new(&Rate::Constant(0));
        assert_eq!(limiter.finish(5, work(1)).0, Time::MAX);
    }
}
