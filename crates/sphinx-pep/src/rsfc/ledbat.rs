//! The window of an upload that yields to everything else (§6): rLEDBAT (RFC 9840) with LEDBAT++.

use super::{control::State, measure::Measure};
use crate::{MS, Time};

/// How long packets may wait unless [`Rsfc::target_ns`](super::Rsfc::target_ns) is set.
const TARGET_NS: Time = 60 * MS;
/// A shorter round trip counts as one of this length.
const ROUND_NS_MIN: Time = 10 * MS;
const SEGMENTS_MIN: u64 = 2;
const SEGMENTS_FIRST: u64 = 10;
/// The slowest growth: a segment in so many round trips.
const SLOWEST: u64 = 16;
/// A slowdown lasts so many round trips; the time to the next one is so many times as long as it and the way back up take.
const SLOW_ROUNDS: u32 = 2;
const BETWEEN: Time = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The window doubles in each round trip, up to this many bytes.
    Rising(u64),
    /// The window follows the queueing delay.
    Following,
    /// The window is so small that the shortest delay shows.
    Slow(u32),
}

/// Decides on the window of one upload.
#[derive(Debug)]
pub(super) struct Ledbat {
    mss: u64,
    phase: Phase,
    window: u64,
    /// The window, in bytes, to come back to after a slowdown.
    before: u64,
    next: Time,
    /// When the last slowdown began, and when the next one is due.
    began: Time,
    slowdown: Option<Time>,
    lost: bool,
}

impl Ledbat {
    pub(super) fn new(mss: u64) -> Ledbat {
        let mss = mss.max(1);
        Ledbat {
            mss,
            phase: Phase::Rising(u64::MAX),
            window: SEGMENTS_FIRST * mss,
            before: 0,
            next: 0,
            began: 0,
            slowdown: None,
            lost: false,
        }
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Slow(_) => State::Monitor,
            _ => State::Yield,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Takes note of a loss: data has come again.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Takes note of a packet that has come.
    pub(super) fn see(&mut self, now: Time, target: Option<Time>, measure: &Measure) {
        let (Some(waited), Some(base)) = (measure.waited(), measure.rtt_min()) else {
            return;
        };
        if now < self.next {
            return;
        }
        let target = target.unwrap_or(TARGET_NS);
        let round = measure.rtt().unwrap_or(base).max(ROUND_NS_MIN);
        self.next = now + round;
        let least = SEGMENTS_MIN * self.mss;
        match self.phase {
            Phase::Slow(0) => self.phase = Phase::Rising(self.before),
            Phase::Slow(left) => self.phase = Phase::Slow(left - 1),
            Phase::Rising(to) => {
                // A receiver whose sender does not fill the window learns nothing by a larger one.
                let used = 2 * measure.flight_max().max(least);
                self.window = (2 * self.window).min(to).min(used.max(self.window));
                if self.window >= to || 4 * waited > 3 * target || self.lost {
                    self.phase = Phase::Following;
                    let took = now.saturating_sub(self.began);
                    self.slowdown = Some(match to {
                        // The first time: soon, as the queue may have been there from the beginning.
                        u64::MAX => now + 2 * round,
                        _ => now + BETWEEN * took,
                    });
                }
            }
            Phase::Following if self.slowdown.is_some_and(|at| now >= at) => {
                self.phase = Phase::Slow(SLOW_ROUNDS - 1);
                (self.before, self.began) = (self.window.max(least), now);
                self.window = least;
            }
            Phase::Following if waited <= target => {
                // Slower than others on paths on which the target is much: LEDBAT++, 4.2.
                let slower = (2 * target).div_ceil(base.max(1)).clamp(1, SLOWEST);
                self.window += self.mss / slower;
            }
            Phase::Following => {
                let over = u128::from(waited - target) * u128::from(self.window);
                let over = u64::try_from(over / u128::from(target.max(1))).unwrap_or(u64::MAX);
                self.window -= over.min(self.window / 2);
            }
        }
        if std::mem::take(&mut self.lost) && !matches!(self.phase, Phase::Slow(_)) {
            self.window /= 2;
        }
        self.window = self.window.max(least);
    }
}
