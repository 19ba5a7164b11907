//! How many segments are lost in a row on the way to a host.

use super::ACTIVE_NS;
use crate::Time;

/// A longer run of lost segments counts as one of so many.
const RUN_MAX: u32 = 8;

/// The longest run that was seen twice within a minute: one alone says little.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    /// The length of that run in segments, and when it was seen last.
    usual: (u32, Time),
    /// Length of a longer run that was seen once, in segments, and when.
    once: (u32, Time),
}

impl Runs {
    /// Takes note that so many segments in a row were lost.
    pub(super) fn see(&mut self, now: Time, run: u32) {
        let run = run.min(RUN_MAX);
        if run < 2 {
            return;
        }
        let usual = self.usual(now);
        if run <= usual {
            // Only an equally long run keeps the usual one alive: shorter ones do not.
            if run == usual {
                self.usual.1 = now;
            }
            return;
        }
        let once = recent(self.once, now);
        if once > 0 {
            self.usual = (run.min(once), now);
        }
        self.once = (run, now);
    }

    /// Segments in a row that are to be expected to be lost; 0 where nothing is known.
    pub(super) fn usual(&self, now: Time) -> u32 {
        recent(self.usual, now)
    }
}

fn recent((run, at): (u32, Time), now: Time) -> u32 {
    match now.saturating_sub(at) < ACTIVE_NS {
        true => run,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_twice_is_usual_for_a_minute() {
        let mut runs = Runs::default();
        runs.see(0, 1);
        runs.see(1, 3);
        assert_eq!(runs.usual(1), 0);
        runs.see(2, 2);
        assert_eq!(runs.usual(2), 2);
        runs.see(3, 5);
        assert_eq!(runs.usual(3), 2);
        runs.see(4, 100);
        assert_eq!(runs.usual(4), 5);
        // A shorter run does not prolong the usual one.
        runs.see(ACTIVE_NS + 3, 2);
        assert_eq!(runs.usual(ACTIVE_NS + 3), 5);
        assert_eq!(runs.usual(ACTIVE_NS + 4), 0);
        runs.see(2 * ACTIVE_NS, 4);
        assert_eq!(runs.usual(2 * ACTIVE_NS), 0);
    }
}
