//! How many blocks may be on their way.

use crate::wire::PaperCounts;
use crate::{Nanos, Time};

/// Largest window, in blocks: more are of no use to anybody.
const BLOCKS_MAX: u32 = 1 << 14;

/// The window, in blocks.
#[derive(Debug)]
pub(super) struct Window {
    blocks: u32,
    /// It grows by one in each round trip and is halved by congestion; else it stays as it is.
    adapts: bool,
    grown: Option<Time>,
    halved: Option<Time>,
    ce: u64,
}

impl Window {
    pub(super) fn new(blocks: u16, adapts: bool) -> Self {
        Self {
            blocks: u32::from(blocks),
            adapts,
            grown: None,
            halved: None,
            ce: 0,
        }
    }

    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Feedback has come. `lossy`: with a new report, whether it tells of losses. These are congestion where no packet was ever seen with an
    /// ECN codepoint; there the window does not grow either before the next report, which may be many round trips away.
    pub(super) fn on_feedback(
        &mut self,
        now: Time,
        rtt: Nanos,
        counts: PaperCounts,
        lossy: Option<bool>,
    ) {
        let knows_marks = counts.ect + counts.ce > 0;
        if !self.adapts || !knows_marks && lossy.is_none() {
            return;
        }
        let marked = counts.ce > self.ce;
        self.ce = self.ce.max(counts.ce);
        let over = |since: Option<Time>| since.is_none_or(|since| now >= since + rtt);
        if (marked || !knows_marks && lossy == Some(true)) && over(self.halved) {
            self.blocks = (self.blocks / 2).max(1);
            self.halved = Some(now);
            self.grown = Some(now);
            return;
        }
        let began = *self.grown.get_or_insert(now);
        if over(Some(began)) {
            self.blocks = (self.blocks + 1).min(BLOCKS_MAX);
            self.grown = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    const RTT: Nanos = 10_000_000;

    #[test]
    fn additive_increase_and_multiplicative_decrease() {
        let at = |ms: u64| time(ms * 1_000_000);
        let seen = |ect, ce| PaperCounts { ect, ce, credit: 0 };
        let mut window = Window::new(8, true);
        for ms in 0..=30 {
            window.on_feedback(at(ms), RTT, seen(ms + 1, 0), Some(true));
        }
        assert_eq!(window.blocks(), 11);
        window.on_feedback(at(31), RTT, seen(31, 1), None);
        window.on_feedback(at(32), RTT, seen(31, 2), None);
        assert_eq!(window.blocks(), 5);
        // Nothing marks there: reports of losses are all that there is.
        for ms in 42..80 {
            window.on_feedback(at(ms), RTT, seen(0, 0), None);
        }
        assert_eq!(window.blocks(), 5);
        window.on_feedback(at(80), RTT, seen(0, 0), Some(true));
        assert_eq!(window.blocks(), 2);
        window.on_feedback(at(90), RTT, seen(0, 0), Some(false));
        assert_eq!(window.blocks(), 3);
        let mut fixed = Window::new(8, false);
        fixed.on_feedback(at(50), RTT, seen(0, 9), Some(true));
        assert_eq!(fixed.blocks(), 8);
    }
}
