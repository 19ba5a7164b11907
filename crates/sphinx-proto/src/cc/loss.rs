//! Which losses the channel causes.
//!
//! Channel loss does not depend on the rate; congestion loss, also that of a policer without a
//! queue, does. So losses of packets sent at the estimated rate (*cruise*) are compared, cycle by
//! cycle, with losses of packets sent clearly below it (*low*). What they share is channel loss;
//! what cruise loses beyond that is our own doing.

/// Packets after which the pooled counts are halved.
const POOL_MAX: f64 = 4000.0;
/// Packets that a ratio needs; with fewer it is rounded towards no loss.
const POOL_MIN: f64 = 100.0;
/// Packets per cycle and side that make a comparison.
const COMPARE_MIN: f64 = 24.0;
/// Packets of history, and step above it, that make losses at the full rate suspicious.
const HISTORY_MIN: f64 = 300.0;
const STEP_MIN: f64 = 0.015;
/// Weight that earlier cycles keep.
const MEMORY: f64 = 0.85;

/// Smallest excess worth a reaction.
const EXCESS_MIN: f64 = 0.003;

/// Rate relative to the estimate at which packets were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// At the estimate.
    Cruise,
    /// Clearly below it.
    Low,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: f64,
    lost: f64,
}

impl Counts {
    fn add(&mut self, packets: u64, lost: u64) {
        self.packets += packets as f64;
        self.lost += lost as f64;
    }

    fn scale(&mut self, by: f64) {
        self.packets *= by;
        self.lost *= by;
    }

    fn ratio(&self) -> f64 {
        if self.packets > 0.0 {
            self.lost / self.packets
        } else {
            0.0
        }
    }
}

impl Counts {
    /// Three standard errors of the difference between two ratios.
    fn chance(&self, other: &Self) -> f64 {
        let p = self.ratio();
        let samples = 1.0 / self.packets.max(1.0) + 1.0 / other.packets.max(1.0);
        3.0 * (p * (1.0 - p) * samples).sqrt()
    }
}

/// Running comparison of cruise and low losses.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    weight: f64,
    weight_squared: f64,
    sum: f64,
    sum_squared: f64,
    /// Variance that independent losses would give.
    binomial: f64,
}

impl Difference {
    fn add(&mut self, difference: f64, binomial: f64) {
        self.weight = self.weight * MEMORY + 1.0;
        self.weight_squared = self.weight_squared * MEMORY * MEMORY + 1.0;
        self.sum = self.sum * MEMORY + difference;
        self.sum_squared = self.sum_squared * MEMORY + difference * difference;
        self.binomial = self.binomial * MEMORY + binomial;
    }

    /// Mean less some standard errors: random differences seldom count, real ones almost fully, and
    /// bursts of losses widen the error by themselves.
    fn lower_bound(&self, errors: f64) -> f64 {
        if self.weight <= 0.0 {
            return 0.0;
        }
        let mean = self.sum / self.weight;
        let spread =
            (self.sum_squared / self.weight - mean * mean).max(self.binomial / self.weight);
        let samples = self.weight * self.weight / self.weight_squared.max(1.0);
        (mean - errors * (spread / samples).sqrt()).max(0.0)
    }
}

/// Estimates the channel's loss rate and the loss that our own rate causes.
#[derive(Debug, Default)]
pub(super) struct ChannelLoss {
    pooled: Counts,
    queued: Counts,
    /// Cruise packets that are pooled only if the cycle finds nothing wrong with them.
    held: Counts,
    cruise: Counts,
    low: Counts,
    difference: Difference,
}

impl ChannelLoss {
    /// Packets settled while there was a queue: better than nothing as long as none were without.
    pub(super) fn on_queued(&mut self, packets: u64, lost: u64) {
        if self.pooled.packets < POOL_MIN {
            self.queued.add(packets, lost);
        }
    }

    /// Packets settled while there was no queue. Where a policer is suspected, losses at the full
    /// rate are believed only after comparison.
    pub(super) fn on_settled(&mut self, pace: Pace, packets: u64, lost: u64, suspect: bool) {
        match pace {
            Pace::Cruise => self.cruise.add(packets, lost),
            Pace::Low => self.low.add(packets, lost),
        }
        if suspect && pace == Pace::Cruise {
            self.held.add(packets, lost);
        } else {
            self.pool(packets as f64, lost as f64);
        }
    }

    fn pool(&mut self, packets: f64, lost: f64) {
        self.pooled.packets += packets;
        self.pooled.lost += lost;
        if self.pooled.packets > POOL_MAX {
            self.pooled.scale(POOL_MAX / 2.0 / self.pooled.packets);
        }
    }

    /// The channel's loss rate, 0 to 1.
    pub(super) fn channel(&self) -> f64 {
        let mut counts = self.pooled;
        if counts.packets < POOL_MIN {
            counts.packets += self.queued.packets;
            counts.lost += self.queued.lost;
        }
        (counts.lost / counts.packets.max(POOL_MIN)).clamp(0.0, 0.9)
    }

    /// A cycle ends: returns the share of what was sent at the estimated rate that would not have
    /// been lost at a lower one, 0 if there is no evidence.
    pub(super) fn end_cycle(&mut self, suspect: bool) -> f64 {
        let (cruise, low) = (self.cruise, self.low);
        self.cruise = Counts::default();
        self.low = Counts::default();
        let held = std::mem::take(&mut self.held);
        if cruise.packets < COMPARE_MIN || low.packets < COMPARE_MIN {
            self.pool(held.packets, held.lost);
            return 0.0;
        }
        let mut both = cruise;
        both.add(low.packets as u64, low.lost as u64);
        let p = both.ratio();
        let binomial = p * (1.0 - p) * (1.0 / cruise.packets + 1.0 / low.packets);
        self.difference.add(cruise.ratio() - low.ratio(), binomial);
        let history = self.pooled;
        let step = cruise.ratio() - history.ratio();
        if suspect && history.packets >= HISTORY_MIN && step > STEP_MIN.max(history.chance(&cruise))
        {
            // More is lost than before. If the channel had become worse, so would the losses at
            // the lower rate.
            if low.ratio() < history.ratio() + step / 2.0 {
                self.difference = Difference::default();
                return step / (1.0 - history.ratio()).max(0.1);
            }
        }
        let excess = self.difference.lower_bound(if suspect { 0.5 } else { 1.0 });
        if excess < EXCESS_MIN {
            self.pool(held.packets, held.lost);
            return 0.0;
        }
        // The caller lowers its rate now, so that the comparison starts afresh.
        self.difference = Difference::default();
        self.pooled = low;
        excess / (1.0 - low.ratio()).max(0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lower_rates_lose_too_is_the_channel() {
        let mut loss = ChannelLoss::default();
        for _ in 0..10 {
            loss.on_settled(Pace::Cruise, 1000, 60, true);
            loss.on_settled(Pace::Low, 200, 12, true);
            assert_eq!(loss.end_cycle(true), 0.0);
        }
        assert!((loss.channel() - 0.06).abs() < 1e-6);
    }

    #[test]
    fn what_vanishes_at_a_lower_rate_is_ours() {
        let mut loss = ChannelLoss::default();
        loss.on_settled(Pace::Cruise, 1000, 300, true);
        loss.on_settled(Pace::Low, 200, 12, true);
        let excess = loss.end_cycle(true);
        // 30 % at the estimate and 6 % below it: the estimate is a quarter too high.
        assert!((0.2..0.26).contains(&excess), "{excess}");
        assert!((loss.channel() - 0.06).abs() < 1e-6);
    }

    #[test]
    fn bursts_widen_the_error() {
        let mut loss = ChannelLoss::default();
        let mut total = 0.0;
        for i in 0..40 {
            // Bursts hit cruise and low phases in turn.
            loss.on_settled(Pace::Cruise, 1000, if i % 2 == 0 { 90 } else { 30 }, false);
            loss.on_settled(Pace::Low, 200, if i % 2 == 0 { 6 } else { 18 }, false);
            total += loss.end_cycle(false);
        }
        assert!(total < 0.1, "{total}");
    }
}
