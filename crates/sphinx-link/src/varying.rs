//! What a rate that varies at random does within its period.

use std::time::Duration;

use crate::{
    Time,
    config::{PERIOD, RateStep, RateTrace, Span, Varying},
    nanos,
    random::{Draws, Element},
};

const MS: Time = 1_000_000;
/// Uniform numbers whose sum, less six, is as good as a normal one.
const UNIFORMS: u64 = 12;

/// The opportunities of a [`Varying::Fading`] or [`Varying::Turns`], the steps of [`Varying::Routes`].
pub(crate) enum Course {
    Trace(RateTrace),
    /// Steps of the rate, which begin anew after the given time.
    Steps(Vec<RateStep>, Duration),
}

impl Course {
    /// `varying` must have passed validation.
    pub(crate) fn new(varying: &Varying, seed: u64) -> Course {
        let draws = Draws::new(seed, Element::Rate);
        match *varying {
            Varying::Fading {
                median,
                factor,
                time,
                grant,
            } => Course::Trace(fading(draws, median, factor.ln(), time, grant)),
            Varying::Turns { gap, packets } => Course::Trace(turns(draws, gap, packets)),
            Varying::Routes {
                rates,
                every,
                pause,
            } => {
                let (steps, period) = routes(draws, rates, every, pause);
                Course::Steps(steps, period)
            }
        }
    }
}

fn fading(draws: Draws, median: u64, deviation: f64, time: Duration, grant: Duration) -> RateTrace {
    let steps = nanos(PERIOD) / MS;
    let grant = (nanos(grant) / MS).max(1);
    let kept = (-1.0 / (time.as_secs_f64() * 1e3)).exp();
    let fresh = (1.0 - kept * kept).sqrt();
    let normal = |index: u64| -> f64 {
        let sum: f64 = (0..UNIFORMS)
            .map(|n| draws.uniform(UNIFORMS * index + n))
            .sum();
        sum - UNIFORMS as f64 / 2.0
    };
    let (mut level, mut packets) = (normal(0), 0.0);
    let mut opportunities = Vec::new();
    for step in 1..=steps {
        level = kept * level + fresh * normal(step);
        let rate = median as f64 * (deviation * level).exp();
        packets += rate / 8e3 / RateTrace::OPPORTUNITY_BYTES as f64;
        if step % grant == 0 {
            opportunities.push((step * MS, packets as u64));
        }
    }
    RateTrace::from_totals(opportunities, nanos(PERIOD))
}

fn turns(draws: Draws, gap: Span, packets: u32) -> RateTrace {
    let (mut at, mut opportunities) = (0, Vec::new());
    loop {
        let count = opportunities.len() as u64;
        at += nanos(gap.at(draws.uniform(count)));
        if at > nanos(PERIOD) {
            return RateTrace::from_totals(opportunities, nanos(PERIOD));
        }
        opportunities.push((at, (count + 1) * u64::from(packets)));
    }
}

fn routes(
    draws: Draws,
    (slowest, fastest): (u64, u64),
    every: Duration,
    pause: Span,
) -> (Vec<RateStep>, Duration) {
    let mut steps = Vec::new();
    let mut at = Duration::ZERO;
    while at + every <= PERIOD.max(every) {
        let count = steps.len() as u64;
        let ratio = fastest as f64 / slowest as f64;
        let rate = slowest as f64 * ratio.powf(draws.uniform(count));
        steps.push(RateStep {
            at,
            bits_per_second: 0,
        });
        steps.push(RateStep {
            at: at + pause.at(draws.uniform(count + 1)),
            bits_per_second: rate as u64,
        });
        at += every;
    }
    // The first step has the rate of the first route: nothing pauses before it.
    if let [first, second, ..] = &mut steps[..] {
        first.bits_per_second = second.bits_per_second;
    }
    (steps, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn trace(varying: Varying, seed: u64) -> RateTrace {
        match Course::new(&varying, seed) {
            Course::Trace(trace) => trace,
            Course::Steps(..) => panic!("no trace"),
        }
    }

    fn span(shortest: u64, longest: u64) -> Span {
        Span {
            shortest: ms(shortest),
            longest: ms(longest),
        }
    }

    /// Packets of each second.
    fn seconds(trace: &RateTrace) -> Vec<u64> {
        let until = |second: u64| {
            let opportunities = &trace.opportunities;
            let next = opportunities.partition_point(|&(at, _)| at <= second * 1_000_000_000);
            next.checked_sub(1).map_or(0, |last| opportunities[last].1)
        };
        (0..120)
            .map(|second| until(second + 1) - until(second))
            .collect()
    }

    #[test]
    fn a_fading_rate_has_its_median_and_spread() {
        let fading = |factor, seed| {
            let time = ms(100);
            seconds(&trace(
                Varying::Fading {
                    median: 12_000_000,
                    factor,
                    time,
                    grant: ms(1),
                },
                seed,
            ))
        };
        // 12 Mbit/s are 1000 packets a second.
        assert!(
            fading(1.0, 1)
                .iter()
                .all(|&count| (999..=1001).contains(&count))
        );
        let mut counts: Vec<u64> = (1..=20).flat_map(|seed| fading(3.0, seed)).collect();
        counts.sort_unstable();
        let (low, median, high) = (
            counts[counts.len() / 10],
            counts[counts.len() / 2],
            counts[counts.len() * 9 / 10],
        );
        // A second holds ten correlation times: its mean is that of the distribution, exp(ln(3)²/2) = 1.83 medians.
        assert!((1300..2100).contains(&median), "{median}");
        assert!(
            low < median * 3 / 4 && high > median * 5 / 4,
            "{low} {high}"
        );
        assert_ne!(fading(3.0, 1), fading(3.0, 2));
        assert_eq!(fading(3.0, 1), fading(3.0, 1));
    }

    #[test]
    fn grants_gather_what_became_possible() {
        let varying = Varying::Fading {
            median: 12_000_000,
            factor: 1.0,
            time: ms(100),
            grant: ms(10),
        };
        let trace = trace(varying, 3);
        let first: Vec<_> = trace.opportunities[..3].to_vec();
        let rounded = |count: u64| matches!(count % 10, 9 | 0);
        assert_eq!(
            first.iter().map(|&(at, _)| at / MS).collect::<Vec<_>>(),
            [10, 20, 30]
        );
        assert!(first.iter().all(|&(_, count)| rounded(count)), "{first:?}");
        assert_eq!(trace.period(), PERIOD);
    }

    #[test]
    fn turns_come_at_their_distances() {
        let trace = trace(
            Varying::Turns {
                gap: span(1, 8),
                packets: 28,
            },
            5,
        );
        let times: Vec<Time> = trace.opportunities.iter().map(|&(at, _)| at).collect();
        let gaps: Vec<Time> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (inner, _) = gaps.split_at(gaps.len() - 1);
        assert!(inner.iter().all(|gap| (MS..=8 * MS).contains(gap)));
        // 28 packets of 1500 bytes in 7/ln 8 ms on average.
        let mean = trace.mean_bits_per_second() as f64 / 1e6;
        assert!((97.0..103.0).contains(&mean), "{mean}");
    }

    #[test]
    fn routes_change_after_a_pause() {
        let varying = Varying::Routes {
            rates: (20_000_000, 200_000_000),
            every: Duration::from_secs(15),
            pause: span(50, 200),
        };
        let Course::Steps(steps, period) = Course::new(&varying, 2) else {
            panic!("steps")
        };
        assert_eq!((steps.len(), period.as_secs()), (16, 120));
        assert!(steps[0].bits_per_second > 0, "the first route is there");
        for pair in steps[2..].chunks(2) {
            let pause = pair[1].at - pair[0].at;
            assert_eq!((pair[0].bits_per_second, pair[0].at.as_secs() % 15), (0, 0));
            assert!((ms(50)..=ms(200)).contains(&pause), "{pause:?}");
            assert!((20_000_000..=200_000_000).contains(&pair[1].bits_per_second));
        }
    }

    #[test]
    fn routes_that_do_not_divide_the_period_are_as_long_as_the_others() {
        for seconds in [41, 50, 130] {
            let varying = Varying::Routes {
                rates: (20_000_000, 200_000_000),
                every: Duration::from_secs(seconds),
                pause: span(50, 200),
            };
            let Course::Steps(_, period) = Course::new(&varying, 2) else {
                panic!("steps")
            };
            assert_eq!(period.as_secs(), (120 / seconds).max(1) * seconds);
        }
    }
}
