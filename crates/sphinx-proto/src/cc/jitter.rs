//! How far the delay of a path varies without any queue.
//!
//! A link sends the packets of its queue one after the other, however long the queue is. What holds packets back
//! behind it (a radio's turns and repetitions, a receiver that sleeps) lets them go together. So packets that
//! arrive closer together than the link could have sent them tell how long the first of them was held, and
//! nothing that a queue does looks like that.

use super::{MS, Nanos, Time, rate_of, time_for};

/// Shorter holds are the noise of clocks.
const HOLD_MIN: f64 = (MS / 2) as f64;
/// Share of what is remembered that is forgotten in each round trip.
const FORGET: f64 = 1.0 / 32.0;
/// The delay varies by so many times the longest hold seen of late: it also rises before it falls.
const SPREAD: f64 = 2.0;
/// The same for holds within one sample, whose rate is not known but from the sample itself.
const SAMPLE_SPREAD: f64 = 1.5;
/// Packets of one sample come earlier than evenly if they come faster than its mean rate by this.
const UNEVEN: f64 = 1.25;

/// How long a link holds packets back now and then.
#[derive(Debug, Default)]
pub(super) struct Jitter {
    /// By how much the latest packets in a row came too early, and the most of late; nanoseconds.
    early: f64,
    longest: f64,
}

impl Jitter {
    /// Packets sent within `sent` arrived within `received`; the link needs at least `least` for them.
    pub(super) fn on_arrivals(&mut self, sent: Nanos, least: Nanos, received: Nanos) {
        self.early = add(self.early, sent.min(least), received);
        self.longest = self.longest.max(self.early);
    }

    /// What follows has nothing to do with the packets before.
    pub(super) fn interrupt(&mut self) {
        self.early = 0.0;
    }

    /// A round trip has passed.
    pub(super) fn on_round(&mut self) {
        self.longest *= 1.0 - FORGET;
    }

    /// By how much the delays of two packets may differ without a queue; 0 where nothing is held back.
    pub(super) fn spread(&self) -> Nanos {
        spread(SPREAD, self.longest)
    }
}

/// The spread within one sample: `arrivals` are bytes delivered so far, and when.
pub(super) fn spread_within(arrivals: &[(u64, Time)]) -> Nanos {
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return 0;
    };
    let rate = rate_of((last.0 - first.0) as f64, last.1.saturating_sub(first.1));
    let (mut early, mut longest) = (0.0, 0.0_f64);
    for pair in arrivals.windows(2) {
        let least = time_for((pair[1].0 - pair[0].0) as f64, UNEVEN * rate);
        early = add(early, least, pair[1].1.saturating_sub(pair[0].1));
        longest = longest.max(early);
    }
    if rate > 0.0 {
        spread(SAMPLE_SPREAD, longest)
    } else {
        0
    }
}

fn spread(times: f64, longest: f64) -> Nanos {
    if longest < HOLD_MIN {
        0
    } else {
        (times * longest) as Nanos
    }
}

fn add(early: f64, least: Nanos, received: Nanos) -> f64 {
    (early + least as f64 - received as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn packets_that_are_let_go_together_show_how_long_they_were_held() {
        let mut jitter = Jitter::default();
        for round in 0..3 {
            // Held for 8 ms, then five arrivals at once.
            jitter.on_arrivals(MS, MS, 9 * MS);
            for _ in 0..5 {
                jitter.on_arrivals(MS, MS, 0);
            }
            assert_eq!(jitter.spread(), 10 * MS, "round {round}");
        }
        for _ in 0..100 {
            jitter.on_round();
        }
        assert!(jitter.spread() < MS / 2);
    }

    #[test]
    fn a_queue_that_fills_and_empties_shows_nothing() {
        let mut jitter = Jitter::default();
        for (sent, received) in [(MS, 2 * MS), (MS, MS), (2 * MS, MS), (4 * MS, MS)] {
            for _ in 0..50 {
                // The link does not deliver them in less than a millisecond.
                jitter.on_arrivals(sent, MS, received);
            }
        }
        assert_eq!(jitter.spread(), 0);
    }

    #[test]
    fn a_sample_shows_by_itself_whether_packets_came_evenly() {
        let even: Vec<_> = (0..20).map(|i| (1500 * i, time(i * MS))).collect();
        assert_eq!(spread_within(&even), 0);
        let clumps: Vec<_> = (0..20)
            .map(|i| (1500 * i, time(i / 10 * 19 * MS)))
            .collect();
        assert!(spread_within(&clumps) > 9 * MS);
        assert_eq!(spread_within(&[]), 0);
        assert_eq!(spread_within(&[(0, time(5)), (1500, time(5))]), 0);
    }
}
