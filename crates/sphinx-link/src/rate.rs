//! Serialisation: when the last bit of a packet has left, at a rate that may change over time.

use crate::{
    Time,
    config::{Rate, RateStep, RateTrace},
    nanos,
    varying::Course,
};

/// Work of one byte, in bits times 10^9: at a rate of r bit/s, every nanosecond does r units.
const UNITS_PER_BYTE: u128 = 8_000_000_000;

/// The work of sending a packet.
pub(crate) fn work(bytes: usize) -> u128 {
    bytes as u128 * UNITS_PER_BYTE
}

/// A rate with its schedule resolved to nanoseconds. Every answer takes time logarithmic in the
/// length of the schedule, however often that repeats.
#[derive(Clone, Debug)]
pub(crate) enum Limiter {
    Unlimited,
    Steps(Steps),
    Trace(RateTrace),
}

impl Limiter {
    /// `rate` must have passed validation. The seed is of a rate that varies.
    pub(crate) fn new(rate: &Rate, seed: u64) -> Limiter {
        let resolve = |step: &RateStep| (nanos(step.at), step.bits_per_second);
        match rate {
            Rate::Unlimited => Limiter::Unlimited,
            Rate::Constant(bits_per_second) => {
                Limiter::Steps(Steps::new([(0, *bits_per_second)], None))
            }
            Rate::Steps { steps, repeat } => {
                Limiter::Steps(Steps::new(steps.iter().map(resolve), repeat.map(nanos)))
            }
            Rate::Trace(trace) => Limiter::Trace(trace.clone()),
            Rate::Varying(varying) => match Course::new(varying, seed) {
                Course::Trace(trace) => Limiter::Trace(trace),
                Course::Steps(steps, period) => {
                    Limiter::Steps(Steps::new(steps.iter().map(resolve), Some(nanos(period))))
                }
            },
        }
    }

    /// The rate that turns time into bytes for queue limits: the present one, during a pause the
    /// highest of the schedule, and the mean of a trace. `None` if there is no limit.
    pub(crate) fn reference(&self, now: Time) -> Option<u64> {
        match self {
            Limiter::Unlimited => None,
            Limiter::Steps(steps) => Some(steps.reference(now)),
            Limiter::Trace(trace) => Some(trace.mean_bits_per_second()),
        }
    }

    /// Bits per second in the long term; none if there is no limit. Steps that do not repeat end with the last one
    /// for ever.
    pub(crate) fn mean(&self) -> Option<u64> {
        match self {
            Limiter::Unlimited => None,
            Limiter::Steps(steps) => Some(steps.mean()),
            Limiter::Trace(trace) => Some(trace.mean_bits_per_second()),
        }
    }

    /// The time at which `work` units are done when they begin at `start`, where `spare` units are
    /// left over from the work that ended then; and the units that are left over this time.
    /// `Time::MAX` if that is never.
    pub(crate) fn finish(&self, start: Time, work: u128, spare: u128) -> (Time, u128) {
        match self {
            Limiter::Unlimited => (start, 0),
            _ if work <= spare => (start, spare - work),
            Limiter::Steps(steps) => steps.finish(start, work - spare),
            Limiter::Trace(trace) => finish_trace(trace, start, work - spare),
        }
    }

    /// When something can be sent from `at` on: later where the schedule pauses then, and `Time::MAX` where it does so for good.
    pub(crate) fn end_of_pause(&self, at: Time) -> Time {
        match self {
            Limiter::Steps(steps) => steps.end_of_pause(at),
            Limiter::Unlimited | Limiter::Trace(_) => at,
        }
    }

    /// The units of work done between two times, `start` itself excluded.
    pub(crate) fn served(&self, start: Time, end: Time) -> u128 {
        match self {
            Limiter::Unlimited => 0,
            Limiter::Steps(steps) => steps.done(end) - steps.done(start),
            Limiter::Trace(trace) => trace_done(trace, end) - trace_done(trace, start),
        }
    }
}

/// A rate that is constant for some time each.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The first begins at 0.
    steps: Vec<Step>,
    period: Option<Period>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    from: Time,
    bits_per_second: u64,
    /// Units done since the beginning of the schedule.
    before: u128,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    length: Time,
    /// Units done in it, more than 0.
    work: u128,
}

impl Step {
    fn done(&self, offset: Time) -> u128 {
        self.before + u128::from(self.bits_per_second) * u128::from(offset - self.from)
    }
}

impl Steps {
    /// (from, bits per second): ascending, the first at 0.
    fn new(rates: impl IntoIterator<Item = (Time, u64)>, repeat: Option<Time>) -> Steps {
        let mut steps: Vec<Step> = Vec::new();
        for (from, bits_per_second) in rates {
            steps.push(Step {
                from,
                bits_per_second,
                before: steps.last().map_or(0, |last| last.done(from)),
            });
        }
        let period = repeat.map(|length| Period {
            length,
            work: steps.last().map_or(0, |last| last.done(length)),
        });
        Steps { steps, period }
    }

    /// Splits a time into full periods and an offset.
    fn split(&self, time: Time) -> (Time, Time) {
        match self.period {
            Some(period) => (time / period.length, time % period.length),
            None => (0, time),
        }
    }

    fn at(&self, offset: Time) -> Step {
        let next = self.steps.partition_point(|step| step.from <= offset);
        self.steps[next - 1]
    }

    fn reference(&self, now: Time) -> u64 {
        match self.at(self.split(now).1).bits_per_second {
            0 => {
                let rates = self.steps.iter().map(|step| step.bits_per_second);
                rates.max().unwrap_or(0)
            }
            rate => rate,
        }
    }

    fn end_of_pause(&self, at: Time) -> Time {
        match self.at(self.split(at).1).bits_per_second {
            // The first unit of work after a pause is done one nanosecond after its end.
            0 => match self.finish(at, 1).0 {
                Time::MAX => Time::MAX,
                end => end - 1,
            },
            _ => at,
        }
    }

    fn mean(&self) -> u64 {
        let last = self.steps.last().map_or(0, |last| last.bits_per_second);
        self.period.map_or(last, |period| {
            let rate = (period.work + u128::from(period.length) / 2) / u128::from(period.length);
            u64::try_from(rate).unwrap_or(u64::MAX)
        })
    }

    /// The units of work done from 0 on.
    fn done(&self, time: Time) -> u128 {
        let (periods, offset) = self.split(time);
        let work = self.period.map_or(0, |period| period.work);
        u128::from(periods) * work + self.at(offset).done(offset)
    }

    fn finish(&self, start: Time, work: u128) -> (Time, u128) {
        let (periods, offset) = self.split(start);
        // Counted from the beginning of the present period; more than 0.
        let target = self.at(offset).done(offset).saturating_add(work);
        let (more, target) = match self.period {
            Some(period) => ((target - 1) / period.work, (target - 1) % period.work + 1),
            None => (0, target),
        };
        let next = self.steps.partition_point(|step| step.before < target);
        let step = self.steps[next - 1];
        let rate = u128::from(step.bits_per_second);
        if rate == 0 {
            // Only the last step, which stays for ever, can be meant with rate 0: otherwise the next step, with as much work before it, would be.
            return (Time::MAX, 0);
        }
        let needed = target - step.before;
        let span = needed.div_ceil(rate);
        let length = self.period.map_or(0, |period| period.length);
        let end = (u128::from(periods).saturating_add(more))
            .saturating_mul(u128::from(length))
            .saturating_add(u128::from(step.from))
            .saturating_add(span);
        match Time::try_from(end) {
            Ok(end) => (end, span * rate - needed),
            Err(_) => (Time::MAX, 0),
        }
    }
}

/// The units that opportunities up to `time` could do.
fn trace_done(trace: &RateTrace, time: Time) -> u128 {
    let opportunities = &trace.opportunities;
    let (period, count) = *opportunities.last().unwrap_or(&(1, 0));
    let passed = opportunities.partition_point(|&(at, _)| at <= time % period);
    let within = passed
        .checked_sub(1)
        .map_or(0, |last| opportunities[last].1);
    opportunity_work(u128::from(time / period) * u128::from(count) + u128::from(within))
}

/// Only opportunities after `start` count.
fn finish_trace(trace: &RateTrace, start: Time, work: u128) -> (Time, u128) {
    let opportunities = &trace.opportunities;
    let (period, count) = *opportunities.last().unwrap_or(&(1, 0));
    let target = trace_done(trace, start) + work;
    let wanted = target.div_ceil(opportunity_work(1));
    let (periods, within) = match wanted.checked_sub(1) {
        Some(last) => (
            last / u128::from(count.max(1)),
            last % u128::from(count.max(1)) + 1,
        ),
        None => (0, 0),
    };
    let next = opportunities.partition_point(|&(_, until)| u128::from(until) < within);
    let (at, until) = opportunities[next.min(opportunities.len() - 1)];
    let end = periods
        .saturating_mul(u128::from(period))
        .saturating_add(u128::from(at));
    // All opportunities at this time are there at once.
    let offered = opportunity_work(periods * u128::from(count) + u128::from(until));
    match Time::try_from(end) {
        Ok(end) => (end, offered - target),
        Err(_) => (Time::MAX, 0),
    }
}

fn opportunity_work(count: u128) -> u128 {
    count * work(RateTrace::OPPORTUNITY_BYTES)
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
        let limiter = Limiter::new(&Rate::Constant(7_000_000), 0);
        let (mut now, mut spare) = (0, 0);
        for _ in 0..7 {
            (now, spare) = limiter.finish(now, work(1500), spare);
        }
        assert_eq!((now, spare), (12_000_000, 0));
    }

    #[test]
    fn a_packet_spans_rate_steps_and_pauses() {
        let rate = Rate::Steps {
            steps: vec![step(0, 8_000_000), step(1, 0), step(5, 4_000_000)],
            repeat: None,
        };
        let limiter = Limiter::new(&rate, 0);
        // 1000 bytes in the first millisecond, then a pause, then 500 bytes per millisecond.
        assert_eq!(limiter.finish(0, work(1500), 0), (6_000_000, 0));
        assert_eq!(limiter.served(0, 6_000_000), work(1500));
        assert_eq!(limiter.finish(2_000_000, work(500), 0), (6_000_000, 0));
        assert_eq!(limiter.reference(2_000_000), Some(8_000_000));
    }

    #[test]
    fn a_schedule_repeats() {
        let rate = Rate::Steps {
            steps: vec![step(0, 8_000_000), step(1, 0)],
            repeat: Some(Duration::from_millis(2)),
        };
        let limiter = Limiter::new(&rate, 0);
        assert_eq!(limiter.finish(0, work(2500), 0), (4_500_000, 0));
        assert_eq!(limiter.served(1_000_000, 5_000_000), work(2000));
    }

    #[test]
    fn a_final_pause_never_ends() {
        let limiter = Limiter::new(&Rate::Constant(0), 0);
        assert_eq!(limiter.finish(5, work(1), 0).0, Time::MAX);
    }

    #[test]
    fn a_schedule_that_repeats_all_the_time_is_no_work() {
        // 1 bit/s in one of two nanoseconds: a packet takes 6000 thousand million repetitions.
        let rate = Rate::Steps {
            steps: vec![
                step(0, 1),
                RateStep {
                    at: Duration::from_nanos(1),
                    bits_per_second: 0,
                },
            ],
            repeat: Some(Duration::from_nanos(2)),
        };
        let limiter = Limiter::new(&rate, 0);
        let end = 2 * 12_000 * 1_000_000_000 - 1;
        assert_eq!(limiter.finish(0, work(1500), 0), (end, 0));
        assert_eq!(limiter.served(0, end), work(1500));
        assert_eq!(limiter.served(0, Time::MAX), u128::from(Time::MAX / 2) + 1);
    }

    #[test]
    fn nothing_overflows() {
        for rate in [1, u64::MAX] {
            let steps = Rate::Steps {
                steps: vec![step(0, rate)],
                repeat: Some(Duration::from_nanos(u64::MAX)),
            };
            for limiter in [
                Limiter::new(&steps, 0),
                Limiter::new(&Rate::Constant(rate), 0),
            ] {
                for start in [0, 1, Time::MAX - 1, Time::MAX] {
                    let (end, _) = limiter.finish(start, work(usize::MAX), 5);
                    assert!(end >= start);
                    limiter.served(start, Time::MAX);
                }
            }
        }
    }

    #[test]
    fn what_is_left_over_may_be_more_than_a_packet() {
        // 10^13 bit/s do 1250 bytes in a nanosecond.
        let limiter = Limiter::new(&Rate::Constant(10_000_000_000_000), 0);
        let (mut now, mut spare) = (0, 0);
        for _ in 0..25 {
            (now, spare) = limiter.finish(now, work(100), spare);
        }
        assert_eq!((now, spare), (2, 0));
    }

    fn trace(text: &str) -> Limiter {
        Limiter::new(&Rate::Trace(RateTrace::parse(text).unwrap()), 0)
    }

    #[test]
    fn opportunities_of_a_trace() {
        const MS: Time = 1_000_000;
        // Two at 2 ms, one at 5 ms, and again after 5 ms.
        let limiter = trace("2\n2\n5\n");
        assert_eq!(limiter.finish(0, work(1500), 0), (2 * MS, work(1500)));
        assert_eq!(limiter.finish(0, work(3000), 0), (2 * MS, 0));
        assert_eq!(limiter.finish(0, work(3001), 0), (5 * MS, work(1499)));
        assert_eq!(limiter.finish(0, work(40), 0), (2 * MS, work(2960)));
        // What is left over at one time serves what waits, and no packet that comes then.
        assert_eq!(
            limiter.finish(2 * MS, work(2000), work(2960)),
            (2 * MS, work(960))
        );
        assert_eq!(limiter.finish(2 * MS, work(1), 0), (5 * MS, work(1499)));
        assert_eq!(limiter.finish(5 * MS, work(1), 0), (7 * MS, work(2999)));
        // A million periods later.
        let later = 5_000_000 * MS;
        assert_eq!(limiter.finish(later, work(4500), 0), (later + 5 * MS, 0));
        assert_eq!(limiter.served(later, later + 4 * MS), work(3000));
        assert_eq!(limiter.reference(0), Some(7_200_000));
    }

    #[test]
    fn a_trace_carries_exactly_its_opportunities() {
        let limiter = trace("0\n1\n1\n4\n");
        let (mut now, mut spare, mut sent) = (0, 0, 0);
        while now <= 4_000_000_000 {
            (now, spare) = limiter.finish(now, work(500), spare);
            sent += u64::from(now <= 4_000_000_000);
        }
        assert_eq!(sent, 1000 * 4 * 3);
    }
}
