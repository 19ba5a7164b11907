//! The window that an upload gets (§3).

use serde::Serialize;

use super::{TARGET_NS_MIN, measure::Measure};
use crate::{MS, Time};

/// After so many round trips in which a queue seems to stand although the window was cut, it is doubted that there is one.
const STAY: u32 = 4;
/// The most round trips until that is doubted again, where there was one.
const STAY_MAX: u32 = 64;
/// The window grows by this part, at least, to see whether there is a queue: less is lost in what rates vary.
const GROWN: f64 = 0.25;
/// The window, in segments, with which a queue drains.
const MONITOR_SEGMENTS: u64 = 4;
/// So often the link is idle for a moment, where its queue has been cut: with the window of FAST a segment always waits, and would count as part of the way.
const LULL_NS: Time = 20_000 * MS;
/// For that, the window is so many segments smaller: the two beyond what the rate needs, and one.
const LULL_SEGMENTS: u64 = 3;
/// The smallest window, in segments: with less, a receiver that acknowledges every other segment would wait for the second one, and a sender without
/// a window asks for one by a timer.
const SEGMENTS_MIN: u64 = 2;
/// A lull in which the way was shorter by so much has not shown all of it.
const FALLEN_NS: Time = 5 * MS;
/// A shorter round trip counts as one of this length.
const ROUND_NS_MIN: Time = 10 * MS;

/// What is done about an upload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is done yet: the upload's packets have not waited.
    #[default]
    Open,
    /// Its window grows by a segment in each round trip.
    Slow,
    /// Its packets wait: it has the window that its rate needs without that.
    Fast,
    /// Its window is smaller than its rate needs, for a round trip: a queue that never quite ends does so, and shows what the way takes.
    Lull,
    /// They seem to wait a little, whatever the window is: it grows, to see whether the rate does.
    Probe,
    /// They seem to wait long, whatever the window is: it is so small that nothing can wait, to see what the way takes.
    Monitor,
    /// Its window follows what its packets wait, so that it yields to everything else ([`Mode::Rledbat`](super::Mode::Rledbat)).
    Yield,
}

/// Decides on the window of one upload.
#[derive(Debug)]
pub(super) struct Control {
    mss: u64,
    state: State,
    window: u64,
    /// Bytes that the window is larger because answers wait on their way back too.
    more: u64,
    /// When the state is looked at next, and when the next lull is due.
    next: Time,
    lull: Time,
    /// Looks since the state began, and after how many the minimum is doubted.
    rounds: u32,
    stay: u32,
    /// Rate (bytes per second), window (bytes) and waiting time as they were when the state began.
    rate: u64,
    before: u64,
    waited: Time,
}

impl Control {
    pub(super) fn new(mss: u64) -> Control {
        Control {
            mss: mss.max(1),
            state: State::Open,
            window: 0,
            more: 0,
            next: 0,
            lull: 0,
            rounds: 0,
            stay: STAY,
            rate: 0,
            before: 0,
            waited: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The window in bytes; `None` if there is no bound.
    pub(super) fn window(&self) -> Option<u64> {
        match self.state {
            State::Open => None,
            // Nothing may wait in this state, neither packets nor answers.
            State::Monitor => Some(self.window),
            _ => Some(self.window.saturating_add(self.more)),
        }
    }

    /// A packet has come; `rate` is what the upload has, and `link` what it may have, in bytes per second.
    pub(super) fn see(
        &mut self,
        now: Time,
        target: Option<Time>,
        (rate, link): (u64, u64),
        measure: &mut Measure,
    ) {
        let (Some(waited), Some(rtt_min)) = (measure.waited(), measure.rtt_min()) else {
            return;
        };
        if rate == 0 {
            return;
        }
        let target = target.unwrap_or(rtt_min.max(TARGET_NS_MIN));
        let round = measure.rtt().unwrap_or(rtt_min).max(ROUND_NS_MIN);
        let is_due = now >= self.next;
        self.more = flight(link, measure.longer());
        match self.state {
            State::Open | State::Slow if waited > target => {
                self.enter(State::Fast, now, round, rate, waited);
                self.window = self.needed(link, rtt_min);
            }
            State::Open | State::Yield => {}
            _ if !is_due => {}
            State::Slow => {
                self.window += self.mss;
                self.next = now + round;
                let is_same = waited.abs_diff(self.waited) <= target / 8;
                if self.has_gained(rate, waited, target) {
                    measure.rebase();
                    self.enter(State::Slow, now, round, rate, 0);
                } else if !is_same || self.grown() > 2.0 * GROWN {
                    self.enter(State::Slow, now, round, rate, waited);
                }
            }
            State::Lull => {
                // Nothing is known of what the way takes for as long as each lull shows a shorter one.
                self.lull = match measure.fallen() > FALLEN_NS {
                    true => now,
                    false => now + LULL_NS,
                };
                self.window = self.needed(link, rtt_min);
                self.enter(State::Slow, now, round, rate, waited);
            }
            State::Fast => self.stay(now, target, (rate, link), measure, (waited, rtt_min, round)),
            State::Probe => {
                // By more than in SLOW: a large one takes long otherwise.
                self.window += self.mss.max(self.before / 10);
                self.next = now + round;
                if self.grown() >= GROWN {
                    self.judge(now, target, (rate, link), measure, (waited, rtt_min, round));
                }
            }
            State::Monitor => {
                // What was shortest while nothing could wait is what the way takes.
                self.stay = match measure.risen() > target / 4 {
                    true => STAY,
                    false => (2 * self.stay).min(STAY_MAX),
                };
                self.window = self.needed(self.rate, rtt_min);
                self.enter(State::Slow, now, round, self.rate, waited);
            }
        }
        if self.state == State::Fast {
            measure.hold(now);
        }
    }

    /// §3 FAST: the window is what the rate needs, for as long as packets wait.
    fn stay(
        &mut self,
        now: Time,
        target: Time,
        (rate, link): (u64, u64),
        measure: &mut Measure,
        (waited, rtt_min, round): (Time, Time, Time),
    ) {
        self.rounds += 1;
        self.next = now + round;
        if waited <= target {
            self.stay = STAY;
            if now < self.lull {
                return self.enter(State::Slow, now, round, rate, waited);
            }
            self.enter(State::Lull, now, round, rate, waited);
            let window = self.needed(link, rtt_min);
            let less = window.saturating_sub(LULL_SEGMENTS * self.mss);
            self.window = less.max(SEGMENTS_MIN * self.mss);
            return measure.watch();
        }
        if self.rounds <= self.stay {
            self.window = self.needed(link, rtt_min);
            return;
        }
        if waited > 2 * target || 2 * rate < self.rate {
            let before = self.rate.max(rate);
            self.enter(State::Monitor, now, round, before, waited);
            // What is in flight comes first, then what shows what the way takes.
            self.next = now + 2 * round;
            self.window = MONITOR_SEGMENTS * self.mss;
            measure.forget();
        } else {
            self.enter(State::Probe, now, round, rate, waited);
        }
    }

    /// §3: the window has grown. If the rate has too, and packets wait no longer, they have not waited at all.
    fn judge(
        &mut self,
        now: Time,
        target: Time,
        (rate, link): (u64, u64),
        measure: &mut Measure,
        (waited, rtt_min, round): (Time, Time, Time),
    ) {
        if self.has_gained(rate, waited, target) {
            measure.rebase();
            return self.enter(State::Slow, now, round, rate, 0);
        }
        self.stay = (2 * self.stay).min(STAY_MAX);
        self.enter(State::Fast, now, round, rate, waited);
        self.window = self.needed(link, rtt_min);
    }

    /// Whether the rate has grown with the window, and what seems to wait does so as long as before.
    fn has_gained(&self, rate: u64, waited: Time, target: Time) -> bool {
        let faster = rate as f64 / self.rate.max(1) as f64 - 1.0;
        let is_same = waited.abs_diff(self.waited) <= target / 8;
        let grown = self.grown();
        waited > target / 4 && is_same && grown >= GROWN && faster >= grown / 2.0
    }

    /// The part by which the window has grown since the state began.
    fn grown(&self) -> f64 {
        self.window as f64 / self.before.max(1) as f64 - 1.0
    }

    fn enter(&mut self, state: State, now: Time, round: Time, rate: u64, waited: Time) {
        self.state = state;
        self.rounds = 0;
        self.next = now + round;
        (self.rate, self.waited, self.before) = (rate, waited, self.window);
    }

    /// What a rate needs in flight where nothing waits: whole segments, as senders send no others, one more that is on the link, as the shortest round trip
    /// is that of a short packet, and one for which a receiver waits that acknowledges every other one.
    fn needed(&self, rate: u64, rtt_min: Time) -> u64 {
        let segments = flight(rate, rtt_min).div_ceil(self.mss) + 2;
        segments * self.mss
    }
}

/// What comes at a rate, in bytes per second, in so long.
fn flight(rate: u64, time: Time) -> u64 {
    let bytes = u128::from(rate) * u128::from(time) / 1_000_000_000;
    u64::try_from(bytes)
        .unwrap_or(u64::MAX / 4)
        .min(u64::MAX / 4)
}
