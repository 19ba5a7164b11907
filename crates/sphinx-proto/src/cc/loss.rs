//! Which losses the channel causes.
//!
//! Channel loss does not depend on the rate; congestion loss, also that of a policer without a
//! queue, does. So losses of packets sent at the estimated rate (*cruise*) are compared, cycle by
//! cycle, with losses of packets sent clearly below it (*low*). What they share is channel loss;
//! what cruise loses beyond that is our own doing.
//!
//! Where a policer is suspected, nobody waits for the end of a cycle: once a round the losses at the
//! estimate are compared with the known ones ([`ChannelLoss::sudden`]). An excess leads to a lower
//! estimate, which either makes it vanish or shows that the channel has become worse. All comparisons
//! allow for bursts, whose strength is measured from neighbouring groups of packets.

/// Packets after which the pooled counts are halved.
const POOL_MAX: f64 = 4000.0;
/// Packets that a ratio needs; with fewer it is rounded towards no loss.
const POOL_MIN: f64 = 100.0;
/// Packets per cycle and side that make a comparison.
const COMPARE_MIN: f64 = 24.0;
/// Packets of history, and step above it, that make losses at the full rate suspicious.
const HISTORY_MIN: f64 = 300.0;
const STEP_MIN: f64 = 0.015;
/// Weight that counts of earlier cycles keep in each new one.
const MEMORY: f64 = 0.85;

/// Smallest excess worth a reaction.
const EXCESS_MIN: f64 = 0.003;
/// Standard errors by which a difference between cycles must exceed chance.
const EXCESS_ERRORS: f64 = 2.0;
/// Packets per side, and standard errors, that show an excess within a cycle.
const SUDDEN_MIN: f64 = 96.0;
const SUDDEN_ERRORS: f64 = 2.5;
/// With fewer packets sent below the estimate nothing is known about the channel.
const UNSURE: f64 = 200.0;
/// Lower rates in a row that do not help before the channel is held to have become worse. (The first
/// excess may be too small: the bucket of a policer hid some.)
const TRIALS: u32 = 2;
/// Weight of one reading of the dispersion, and packets that make one.
const DISPERSION_GAIN: f64 = 1.0 / 32.0;
const DISPERSION_MIN: f64 = 96.0;

/// Rate relative to the estimate at which packets were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// At the estimated rate.
    Cruise,
    /// Clearly below the estimated rate.
    Low,
}

/// Packets, and those of them that were lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) packets: f64,
    pub(super) lost: f64,
}

impl Counts {
    pub(super) fn add(&mut self, packets: u64, lost: u64) {
        self.packets += packets as f64;
        self.lost += lost as f64;
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.packets *= by;
        self.lost *= by;
    }

    pub(super) fn ratio(&self) -> f64 {
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

/// Variance of losses over that of independent ones.
///
/// Neighbouring groups of packets are compared, so that a loss rate that changes is not taken for bursts.
#[derive(Debug, Default)]
pub(super) struct Dispersion {
    /// Of the losses in a few packets, less 1.
    excess: f64,
    /// By pace, the latest packets, and some before them.
    few: [(Counts, Counts); 2],
}

impl Dispersion {
    pub(super) fn note(&mut self, pace: Pace, packets: u64, lost: u64) {
        let (few, last) = &mut self.few[pace as usize];
        few.add(packets, lost);
        if few.packets < DISPERSION_MIN {
            return;
        }
        let now = std::mem::take(few);
        let before = std::mem::replace(last, now);
        if before.packets == 0.0 {
            return;
        }
        let mut both = now;
        both.packets += before.packets;
        both.lost += before.lost;
        let p = both.ratio();
        let variance = p * (1.0 - p) * (1.0 / now.packets + 1.0 / before.packets);
        if variance > 0.0 {
            let reading = (now.ratio() - before.ratio()).powi(2) / variance;
            self.excess += (reading - 1.0 - self.excess) * DISPERSION_GAIN;
        }
    }

    /// At least 1, which it is for independent losses.
    pub(super) fn burstiness(&self) -> f64 {
        1.0 + self.excess.max(0.0)
    }
}

/// Estimates the channel's loss rate and the loss that our own rate causes.
#[derive(Debug, Default)]
pub(super) struct ChannelLoss {
    pooled: Counts,
    /// Cruise packets that are pooled only if the cycle finds nothing wrong with them.
    held: Counts,
    cruise: Counts,
    low: Counts,
    difference: Difference,
    dispersion: Dispersion,
    /// Excess because of which a lower rate is being tried, and trials in a row that left it so.
    tried: f64,
    failed: u32,
}

/// What losses at the full rate mean within a cycle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sudden {
    /// Losses are not more than before.
    Nothing,
    /// This share of what is sent would not be lost at a lower rate.
    Excess(f64),
    /// The lower rate has changed nothing: the channel has become worse.
    Channel,
}

impl ChannelLoss {
    /// Packets settled while there was no queue. Where a policer is suspected, losses at the full
    /// rate are believed only after comparison.
    pub(super) fn on_settled(&mut self, pace: Pace, packets: u64, lost: u64, suspect: bool) {
        self.dispersion.note(pace, packets, lost);
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

    /// A lower rate is being tried.
    pub(super) fn is_trying(&self) -> bool {
        self.tried > 0.0
    }

    /// The rate is another one for other reasons: what it was before the trial is of no use.
    pub(super) fn end_trial(&mut self) {
        (self.tried, self.failed) = (0.0, 0);
    }

    /// To be asked once a round at the full rate where a policer is suspected. After an answer the
    /// counts at the full rate begin afresh.
    pub(super) fn sudden(&mut self) -> Sudden {
        let (cruise, known) = (self.cruise, self.pooled);
        if cruise.packets < SUDDEN_MIN || known.packets < SUDDEN_MIN {
            return Sudden::Nothing;
        }
        let p = known.ratio();
        let samples = 1.0 / cruise.packets + 1.0 / known.packets;
        let spread = p.max(1.0 / known.packets) * (1.0 - p) * samples;
        let error = (spread * self.burstiness()).sqrt();
        let excess = cruise.ratio() - p;
        if excess - SUDDEN_ERRORS * error < EXCESS_MIN {
            if excess < self.tried / 2.0 - error {
                self.end_trial();
            }
            return Sudden::Nothing;
        }
        self.cruise = Counts::default();
        self.held = Counts::default();
        if self.tried > 0.0 && excess > self.tried / 2.0 {
            self.failed += 1;
        }
        if self.failed >= TRIALS {
            self.end_trial();
            self.pooled = cruise;
            return Sudden::Channel;
        }
        self.tried = excess;
        Sudden::Excess(excess / (1.0 - p).max(0.1))
    }

    /// Packets at the full rate that lost no more than is known of the channel, 0 if they lost more. No rate loses less than the channel
    /// does, so that they tell of it, and what comes after them is compared afresh.
    pub(super) fn take_clean(&mut self) -> f64 {
        if self.cruise.packets < SUDDEN_MIN || self.cruise.ratio() > self.pooled.ratio() {
            return 0.0;
        }
        let held = std::mem::take(&mut self.held);
        self.pool(held.packets, held.lost);
        std::mem::take(&mut self.cruise).packets
    }

    fn pool(&mut self, packets: f64, lost: f64) {
        self.pooled.packets += packets;
        self.pooled.lost += lost;
        if self.pooled.packets > POOL_MAX {
            self.pooled.scale(POOL_MAX / 2.0 / self.pooled.packets);
        }
    }

    /// Whether too little has been seen for comparisons.
    pub(super) fn is_unsure(&self) -> bool {
        self.pooled.packets < UNSURE
    }

    /// Variance of losses relative to independent ones, at least 1.
    pub(super) fn burstiness(&self) -> f64 {
        self.dispersion.burstiness()
    }

    /// Relative standard error of a rate that is inferred from what arrives of `packets`.
    pub(super) fn rate_error(&self, packets: u64) -> f64 {
        let p = self.channel();
        let spread = p * (1.0 - p) / packets.max(1) as f64 * self.burstiness();
        spread.sqrt() / (1.0 - p)
    }

    /// The channel's loss rate, 0 to 1, if it has been measured.
    pub(super) fn known(&self) -> Option<f64> {
        (!self.is_unsure()).then(|| self.channel())
    }

    /// The channel's loss rate, 0 to 1.
    pub(super) fn channel(&self) -> f64 {
        (self.pooled.lost / self.pooled.packets.max(POOL_MIN)).clamp(0.0, 0.9)
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
        let samples = 1.0 / cruise.packets + 1.0 / low.packets;
        let binomial = p * (1.0 - p) * samples * self.burstiness();
        self.difference.add(cruise.ratio() - low.ratio(), binomial);
        let history = self.pooled;
        let step = cruise.ratio() - history.ratio();
        if suspect
            && history.packets >= HISTORY_MIN
            && step > STEP_MIN.max(history.chance(&cruise) * self.burstiness().sqrt())
        {
            // More is lost than before. If the channel had become worse, so would the losses at
            // the lower rate.
            if low.ratio() < history.ratio() + step / 2.0 {
                self.difference = Difference::default();
                return step / (1.0 - history.ratio()).max(0.1);
            }
        }
        if self.difference.lower_bound(EXCESS_ERRORS) < EXCESS_MIN {
            // What is neither proven nor refuted teaches nothing.
            if step <= history.chance(&cruise) / 3.0 {
                self.pool(held.packets, held.lost);
            }
            return 0.0;
        }
        let excess = self.difference.lower_bound(1.0);
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
