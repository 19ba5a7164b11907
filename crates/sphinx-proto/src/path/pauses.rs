//! How far apart packets leave.

use crate::{Nanos, Time};

/// The longest pause between two packets lately: loss of one shows when a later one arrives.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// The longest since then, and the longest of the span before.
    since: Time,
    longest: Nanos,
    before: Nanos,
}

impl Pauses {
    /// A packet leaves; the one before did at `latest`. What is older than two `span`s is forgotten.
    pub(super) fn note(&mut self, now: Time, latest: Time, span: Nanos) {
        if now.saturating_sub(self.since) >= span {
            self.before = self.longest;
            self.longest = 0;
            self.since = now;
        }
        self.longest = self.longest.max(now.saturating_sub(latest));
    }

    /// The longest pause so far, nanoseconds.
    pub(super) fn longest(&self) -> Nanos {
        self.longest.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn a_pause_is_forgotten_after_two_spans() {
        let mut pauses = Pauses::default();
        let mut latest = Time::ZERO;
        for now in [10, 20, 50, 60, 70, 110, 120].map(time) {
            pauses.note(now, latest, 50);
            latest = now;
        }
        assert_eq!(pauses.longest(), 40);
        for now in (130..=230).step_by(10) {
            pauses.note(time(now), time(now - 10), 50);
        }
        assert_eq!(pauses.longest(), 10);
    }
}
