//! Controlled delay, RFC 8289.

use crate::{Time, config::CoDel, nanos};

/// A queue that has dropped recently goes on where it was if congestion comes back within so many
/// intervals (section 5.5: `now - drop_next_ < 16 * INTERVAL`).
const MEMORY_INTERVALS: u64 = 16;

/// The state of section 5.1 of RFC 8289, for whoever has a queue.
#[derive(Clone, Debug)]
pub struct CoDelState {
    target: Time,
    interval: Time,
    /// When packets will have waited longer than the target for a whole interval; `None` while they do not.
    first_above: Option<Time>,
    /// Whether it is in the dropping state, and when the next signal is due there.
    dropping: bool,
    drop_next: Time,
    /// Signals in the dropping state. It begins with 1 or, soon after the last time, with about as many as there were then.
    count: u64,
    /// What `count` began with when the dropping state was last entered.
    last_count: u64,
}

/// What is to be done with a packet at the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet goes on as it is.
    Pass,
    /// The packet is marked or dropped.
    Signal,
}

impl CoDelState {
    /// A queue without congestion. What the signal is like is the caller's business.
    pub fn new(settings: &CoDel) -> CoDelState {
        CoDelState {
            target: nanos(settings.target),
            interval: nanos(settings.interval),
            first_above: None,
            dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Changes target and interval; the state goes on.
    pub fn set(&mut self, settings: &CoDel) {
        (self.target, self.interval) = (nanos(settings.target), nanos(settings.interval));
    }

    /// Judges the packet that leaves the queue at `now` after waiting for `sojourn`. `is_last` says
    /// that less than a full packet waits behind it. A dropped packet is followed by a question about
    /// the next one at the same time. (Sections 5.5 and 5.6, one packet at a time.)
    pub fn leaving(&mut self, now: Time, sojourn: Time, is_last: bool) -> Verdict {
        let may_signal = self.has_been_late(now, sojourn, is_last);
        if self.dropping {
            if !may_signal {
                self.dropping = false;
                return Verdict::Pass;
            }
            if now < self.drop_next {
                return Verdict::Pass;
            }
            self.count += 1;
            self.drop_next = self.after(self.drop_next);
            return Verdict::Signal;
        }
        if !may_signal {
            return Verdict::Pass;
        }
        self.dropping = true;
        let more = self.count - self.last_count;
        let memory = self.interval.saturating_mul(MEMORY_INTERVALS);
        let is_recent = now.saturating_sub(self.drop_next) < memory;
        self.count = if more > 1 && is_recent { more } else { 1 };
        self.drop_next = self.after(now);
        self.last_count = self.count;
        Verdict::Signal
    }

    /// Tells that a packet has found the queue empty.
    pub fn idle(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    fn has_been_late(&mut self, now: Time, sojourn: Time, is_last: bool) -> bool {
        if sojourn < self.target || is_last {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            Some(late) => now >= late,
            None => {
                self.first_above = Some(now.saturating_add(self.interval));
                false
            }
        }
    }

    /// The control law: `interval` / √`count` later.
    fn after(&self, time: Time) -> Time {
        let interval = u128::from(self.interval);
        let step = (interval * interval / u128::from(self.count)).isqrt();
        time.saturating_add(step as Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = 1_000_000;

    /// Times in ms of signals when a packet that has waited for `sojourn` leaves every millisecond.
    fn signals(state: &mut CoDelState, from: Time, to: Time, sojourn: Time) -> Vec<Time> {
        (from..to)
            .filter(|ms| state.leaving(ms * MS, sojourn, false) == Verdict::Signal)
            .collect()
    }

    #[test]
    fn signals_follow_the_control_law() {
        let mut state = CoDelState::new(&CoDel::default());
        assert_eq!(signals(&mut state, 0, 50, 5 * MS - 1), []);
        // After an interval, then after 100 ms / √1, / √2, / √3, …
        assert_eq!(
            signals(&mut state, 50, 500, 5 * MS),
            [150, 250, 321, 379, 429, 474]
        );
        // Good again, and bad again: it begins with a higher rate.
        assert_eq!(signals(&mut state, 500, 501, 0), []);
        let again = signals(&mut state, 501, 700, 5 * MS);
        assert_eq!(again[..3], [601, 646, 687]);
    }

    #[test]
    fn the_last_packet_is_never_dropped() {
        let mut state = CoDelState::new(&CoDel::default());
        signals(&mut state, 0, 100, 50 * MS);
        assert_eq!(state.leaving(100 * MS, 50 * MS, true), Verdict::Pass);
        assert_eq!(signals(&mut state, 100, 200, 50 * MS), []);
    }

    #[test]
    fn no_times_are_too_small_or_too_large() {
        for span in [0, u64::MAX] {
            let mut state = CoDelState::new(&CoDel {
                target: std::time::Duration::ZERO,
                interval: std::time::Duration::from_nanos(span),
                ..CoDel::default()
            });
            for now in [0, 1, Time::MAX] {
                state.leaving(now, 0, false);
            }
        }
    }
}
