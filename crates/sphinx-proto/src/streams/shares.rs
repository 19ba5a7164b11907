//! How the streams share the peer's window (`docs/protocol.md` §7).
//!
//! A part of the window belongs to every stream that there may be, alone. The rest is common, and of that a
//! stream takes at most [`COMMON_SHARE`] times what it leaves. So a stream that the peer's application reads can
//! always go on, however much of the window others fill that are not read.

use crate::types::STREAMS_MAX;

/// Of the common part, a stream may hold so many times as much as is left: one stream alone all but a ninth.
pub(crate) const COMMON_SHARE: u64 = 8;
/// What belongs to a stream alone: this part of the window …
const OWN_PART: u64 = 8 * STREAMS_MAX;
/// … and enough for a block, if that leaves half of the window.
const OWN_BYTES_MIN: u64 = 576;

/// What belongs to every stream alone.
fn own_part(window: u64) -> u64 {
    let half = window / (2 * STREAMS_MAX);
    (window / OWN_PART).max(OWN_BYTES_MIN.min(half))
}

/// What belongs to none.
pub(crate) fn common_part(window: u64) -> u64 {
    window - STREAMS_MAX * own_part(window)
}

/// The window as its sender divides it; all costs as [`block_cost`](crate::block_cost) counts them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    /// What belongs to every stream alone.
    own: u64,
    common: u64,
    /// Taken of the common part.
    used: u64,
}

impl Shares {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            own: own_part(window),
            common: common_part(window),
            used: 0,
        }
    }

    /// What a stream held is `before`, and is `after` from now on.
    pub(crate) fn changed(&mut self, before: u64, after: u64) {
        self.used -= before.saturating_sub(self.own);
        self.used += after.saturating_sub(self.own);
    }

    /// What is left of the common part.
    pub(crate) fn common_left(&self) -> u64 {
        self.common.saturating_sub(self.used)
    }

    /// Largest cost of a further block of a stream that holds `held`.
    pub(crate) fn most(&self, held: u64) -> u64 {
        let own_left = self.own.saturating_sub(held);
        let beyond = held.saturating_sub(self.own);
        let free = self.common_left().saturating_add(beyond);
        // At most COMMON_SHARE of COMMON_SHARE + 1 parts; in this order it cannot overflow.
        let share = free - free.div_ceil(COMMON_SHARE + 1);
        own_left + share.saturating_sub(beyond)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the others hold, a stream of which nothing is held can open a block, and all together
        /// keep within the window.
        #[test]
        fn every_stream_can_go_on(
            window in 380_000..100_000_000u64,
            steps in prop::collection::vec((0..STREAMS_MAX as usize, any::<bool>(), 0..2_000_000u64), 1..400),
        ) {
            let mut shares = Shares::new(window);
            let mut held = vec![0; STREAMS_MAX as usize];
            for (stream, reads, cost) in steps {
                let before = held[stream];
                held[stream] = if reads { before / 2 } else { before + cost.min(shares.most(before)) };
                shares.changed(before, held[stream]);
                prop_assert!(held.iter().sum::<u64>() <= window);
                for _ in held.iter().filter(|held| **held == 0) {
                    prop_assert!(shares.most(0) >= OWN_BYTES_MIN);
                }
            }
            // All at once.
            for held in held.iter_mut().filter(|held| **held == 0) {
                *held = shares.most(0).min(OWN_BYTES_MIN);
                shares.changed(0, *held);
                prop_assert_eq!(*held, OWN_BYTES_MIN);
            }
            prop_assert!(held.iter().sum::<u64>() <= window);
        }
    }

    #[test]
    fn one_stream_alone_has_most_of_the_window() {
        for window in [700, 1 << 16, 4 << 20, 24 << 20, u64::MAX >> 2] {
            let most = Shares::new(window).most(0);
            let part = most as f64 / window as f64;
            let least = if window < 2 << 20 { 0.4 } else { 0.75 };
            assert!((least..0.9).contains(&part), "{part} of {window}");
        }
    }
}
