//! Beside others like us in a queue: each keeps a little of its own waiting there.
//!
//! What waits although our own part of the queue has just left belongs to others. All of them see the same delay there, so that it can tell
//! each how much is its due: the window follows the rule of FAST TCP (Jin, Wei and Low 2004, equation 4), by which so many bytes wait as are to
//! be *kept* there. A flow's rate is then what it keeps over the delay, which is the same for all, however long their paths are and whoever was first.
//!
//! For that everybody must know the path without a queue. So a flow *dips* for two round trips when it has come, and again when the
//! lowest queue that it remembers was seen long ago. The others see that one too, at the same time: from then on all dip together, and the queue is empty for a moment.
//!
//! Every hundred or two hundred rounds, no two at the same time, a flow takes its own part out and looks whether anything is left. If not, it goes
//! back to the cycle of a flow that is alone. A queue that stays however small the window becomes is that of senders who fill it, or the path has become
//! longer: that is a matter for the cycle too.

use super::super::{MS, Nanos, SEC, Time, bytes_in, rate_of, time_for};
use super::{Bbr, Phase, compete};

/// What a flow keeps waiting, as bytes for a rate of one byte per second. It grows with the root of the rate, so that slow flows have some
/// packets there and fast ones a delay that can be measured: 6 ms at 10 Mbit/s, 2 ms at 100.
const KEPT: f64 = 6.7;
const KEPT_PACKETS: f64 = 2.0;
/// Part of the way to the rule's window in each round trip: with half of it the queue swings.
const GAIN: f64 = 0.25;
/// Packets leave a little faster than the window turns over, so that it is the limit.
pub(super) const PACE: f64 = 1.05;
/// The window never falls below so many packets.
pub(super) const FEWEST_PACKETS: f64 = 3.0;
/// Rounds with hardly any queue before steps double, and by how much they grow at most: others have left.
const EMPTY_ROUNDS: u32 = 3;
const STEPS_MAX: f64 = 64.0;
/// Part of the delay that a flow would make by itself which shows others, and the least: packets of one flow wait for each other too.
const FOREIGN_PART: Nanos = 3;
const FOREIGN_MIN: Nanos = 6 * MS / 5;
/// Growth in a start-up that others who give way do not explain.
const GREW_MUCH: f64 = 1.5;
/// Window after a round that lost more than the channel does, by this share and so many standard errors.
const LOSS_FACTOR: f64 = 0.85;
const LOSS_STEP: f64 = 0.02;
const LOSS_ERRORS: f64 = 3.0;
/// A queue so many times as long as a flow would make at the rate that it came with, for so many rounds …
const UNYIELDING: Nanos = 4;
const UNYIELDING_ROUNDS: u32 = 20;
/// … or, where they did not before, these.
const AGAIN_UNYIELDING: Nanos = 2;
const AGAIN_ROUNDS: u32 = 8;
/// … is not shared for so long, and twice as long after each time, until it was shared for so many rounds.
const KNOWN_ROUNDS: u64 = 60;
const REFUSED: Nanos = 3 * SEC;
/// The lowest queue is looked for again after this time, or so many round trips.
const DIP_AFTER: Nanos = 5 * SEC;
const DIP_RTTS: Nanos = 100;
/// Part of what a flow keeps by which two lowest queues may differ.
const LOWEST_PART: Nanos = 4;
/// Rounds after which a flow that has come dips.
const FIRST_DIP: u64 = 3;
/// Rounds, up to twice as many, after which it looks whether there are others.
const LOOK_ROUNDS: u64 = 100;
/// How long a link counts as shared.
const LATELY: Nanos = 10 * SEC;

/// The queue that the packets of one round met, and what became of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    sum: Nanos,
    readings: u64,
    least: Option<Nanos>,
    acked: u64,
    lost: u64,
    /// The application did not fill the window.
    pub(super) is_app_limited: bool,
}

impl Round {
    /// A packet met this queue.
    pub(super) fn add(&mut self, queue: Nanos) {
        self.least = Some(self.least.map_or(queue, |least| least.min(queue)));
        self.sum += queue;
        self.readings += 1;
    }

    pub(super) fn count(&mut self, acked: usize, lost: usize) {
        self.acked += acked as u64;
        self.lost += lost as u64;
    }

    pub(super) fn loss(&self) -> f64 {
        self.lost as f64 / (self.acked + self.lost).max(1) as f64
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn packets(&self) -> u64 {
        self.acked + self.lost
    }

    /// Mean queue.
    pub(super) fn queue(&self) -> Option<Nanos> {
        (self.readings > 0).then(|| self.sum / self.readings)
    }
}

/// The window beside others.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Bytes.
    window: f64,
    /// How much larger steps are than usual, and rounds in a row with hardly any queue.
    steps: f64,
    empty: u32,
    /// Rate when the phase began, and the queue beyond which others do not yield.
    entered_at: (f64, Nanos),
    /// Rounds beyond it in which it has not become shorter, and what it was in the first of them.
    over: (u32, Nanos),
    /// Times in a row that they did not.
    refusals: u32,
    refused_at: Option<Time>,
    /// When it was in use last.
    used_at: Option<Time>,
    /// The window is kept over a dip.
    resumes: bool,
    /// Rounds after which it looks whether there are others.
    look_after: u64,
    has_dipped: bool,
    /// The lowest queue of late, and when it was that low last.
    lowest: Option<(Nanos, Time)>,
}

impl Share {
    /// Whether the link was shared a moment ago.
    pub(super) fn lately(&self, now: Time) -> bool {
        self.used_at
            .is_some_and(|at| now.saturating_sub(at) < LATELY)
    }

    /// It is shared now.
    pub(super) fn use_now(&mut self, now: Time) {
        self.used_at = Some(now);
    }
}

impl Bbr {
    /// Bytes that may be under way.
    pub(super) fn share_window(&self) -> u64 {
        self.share.window.max(FEWEST_PACKETS * self.packet_bytes) as u64
    }

    /// Bytes that a flow of this rate keeps waiting.
    fn kept(&self, rate: f64) -> f64 {
        let jitter = bytes_in(rate, self.sampler.jitter());
        (KEPT * rate.sqrt()).max(KEPT_PACKETS * self.packet_bytes) + jitter
    }

    /// Delay beyond which a queue is not ours alone.
    fn foreign(&self) -> Nanos {
        let kept = time_for(self.kept(self.bw), self.bw);
        (kept / FOREIGN_PART)
            .max(FOREIGN_MIN)
            .saturating_add(self.sampler.jitter())
            .saturating_add(time_for(2.0 * self.packet_bytes, self.bw))
    }

    /// Whether a start-up has found little more than the probe up before it.
    pub(super) fn has_grown_little(&self) -> bool {
        self.grew_from
            .is_some_and(|from| self.bw < GREW_MUCH * from)
    }

    /// Whether a round just after our own part of the queue has left it met one all the same.
    pub(super) fn is_beside_others(&self, now: Time) -> bool {
        let least = self.last_round.least.filter(|_| self.may_share(now));
        least.is_some_and(|queue| queue > self.foreign())
    }

    /// Whether nothing of late has shown that sharing does not work here.
    pub(super) fn may_share(&self, now: Time) -> bool {
        let refused_for = REFUSED << self.share.refusals.min(4);
        // Where the delay varies by itself it does not tell how long a queue is.
        self.sampler.jitter() == 0
            && self
                .share
                .refused_at
                .is_none_or(|at| now.saturating_sub(at) > refused_for)
    }

    /// Not for a while: the queue belongs to others who do not yield, or marks tell more than delay.
    pub(super) fn refuse_share(&mut self, now: Time) {
        self.share.refused_at = Some(now);
    }

    /// The latest packet met this queue.
    pub(super) fn note_queue(&mut self, now: Time, queue: Nanos) {
        let noise = time_for(self.kept(self.bw), self.bw) / LOWEST_PART;
        match self.share.lowest {
            Some((lowest, _)) if queue > lowest.saturating_add(noise) => {}
            Some((lowest, _)) => self.share.lowest = Some((lowest.min(queue), now)),
            None => self.share.lowest = Some((queue, now)),
        }
    }

    /// Loss of a round beyond the channel's that is taken for chance.
    pub(super) fn chance(&self, round: &Round) -> f64 {
        LOSS_ERRORS * self.loss.error(round.acked + round.lost)
    }

    /// The phase begins.
    pub(super) fn begin_share(&mut self) {
        let queue = self.last_round.queue().unwrap_or(0);
        self.share.steps = 1.0;
        if !std::mem::take(&mut self.share.resumes) {
            let wait = time_for(self.kept(self.bw), self.bw);
            self.share.window = bytes_in(self.bw, self.rtt().saturating_add(queue));
            let (part, times) = match self.competed {
                true => (1.0, AGAIN_UNYIELDING),
                false => (compete::PART, UNYIELDING),
            };
            self.share.entered_at = (part * self.bw, times * wait);
            self.share.over = (0, 0);
        }
        // Not when others do.
        self.share.look_after = LOOK_ROUNDS + self.sampler.last_pn().get() % LOOK_ROUNDS;
    }

    /// A round ended.
    pub(super) fn share_round(&mut self, now: Time) {
        let round = self.last_round;
        self.share.use_now(now);
        if self.sampler.jitter() > 0 {
            self.refuse_share(now);
            self.enter(Phase::Cruise, now);
            return;
        }
        let Some(queue) = round.queue() else { return };
        let (base, before) = (self.rtt(), self.share.window);
        let rtt = base.saturating_add(queue);
        let rate = rate_of(before, rtt);
        let kept = self.kept(rate);
        let wait = time_for(kept, rate);
        let has_lost = round.loss() > self.loss.channel() + self.chance(&round).max(LOSS_STEP);
        if has_lost && queue < wait / FOREIGN_PART {
            // Not by this queue: there is a policer.
            self.refuse_share(now);
            self.enter(Phase::Down, now);
            return;
        }
        let (entered, limit) = self.share.entered_at;
        if queue <= limit {
            self.share.over = (0, 0);
        } else if 4 * queue < 3 * self.share.over.1 || self.share.over.0 == 0 {
            // It has just come, or is being cleared.
            self.share.over = (1, queue);
        } else {
            self.share.over.0 += 1;
        }
        if self.share.over.0
            >= if self.share.refusals > 0 {
                AGAIN_ROUNDS
            } else {
                UNYIELDING_ROUNDS
            }
        {
            // However little is ours, the queue stays: it is of others who fill it, or the path has become longer.
            self.share.refusals += 1;
            self.compete(entered, REFUSED << self.share.refusals.min(4), now);
            return;
        }
        if self.rounds_in_phase() == KNOWN_ROUNDS {
            self.share.refusals = 0;
        }
        let is_empty = 2 * queue < wait;
        self.share.empty = if is_empty { self.share.empty + 1 } else { 0 };
        self.share.steps = if self.share.empty > EMPTY_ROUNDS {
            (2.0 * self.share.steps).min(STEPS_MAX)
        } else {
            1.0
        };
        let window = if has_lost {
            LOSS_FACTOR * before
        } else {
            let target = before * base as f64 / rtt as f64 + kept;
            let step = GAIN * self.share.steps * (target - before);
            // A window that is not used shows nothing.
            before
                + if round.is_app_limited {
                    step.min(0.0)
                } else {
                    step
                }
        };
        self.share.window = window.clamp(before / 2.0, 2.0 * before);
        self.bw = rate_of(self.share.window, rtt).max(1.0);
        let lowest_long_ago =
            |(_, at): (Nanos, Time)| now.saturating_sub(at) > DIP_AFTER.max(DIP_RTTS * base);
        let is_due = !self.share.has_dipped || self.share.lowest.is_some_and(lowest_long_ago);
        if is_due && self.rounds_in_phase() >= FIRST_DIP {
            self.dip(now);
        } else if self.rounds_in_phase() >= self.share.look_after {
            self.enter(Phase::Drain, now);
        }
    }

    /// Empties its part of the queue for a moment, so that everybody sees the path without it.
    pub(super) fn dip(&mut self, now: Time) {
        self.share.has_dipped = true;
        self.share.lowest = None;
        self.share.resumes = self.phase == Phase::Share;
        self.enter(Phase::ProbeRtt, now);
        self.dips = true;
    }
}
