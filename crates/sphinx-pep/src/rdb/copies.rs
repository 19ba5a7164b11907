//! What the receiver may have got twice, and whose fault that is.

use std::collections::VecDeque;

use crate::ranges::Ranges;

/// How far behind an acknowledgement its D-SACK may be.
const HISTORY_BYTES: u64 = 1 << 20;
/// Most retransmissions of the sender that are remembered.
const RESENT_MAX: usize = 64;

/// A stream's bytes that went more than once.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Ranges that went as copies in front of other segments.
    bundled: Ranges,
    /// Ranges that the sender itself sent again; each explains one D-SACK.
    resent: VecDeque<(u64, u64)>,
}

impl Copies {
    pub(super) fn bundled(&mut self, start: u64, end: u64) {
        // The oldest are those that are not reported any more.
        self.bundled.add_and_forget(start, end);
    }

    pub(super) fn resent(&mut self, start: u64, end: u64) {
        if self.resent.len() == RESENT_MAX {
            self.resent.pop_front();
        }
        self.resent.push_back((start, end));
    }

    /// Whether the receiver got a range twice for a bundle, and not for what the sender has sent again.
    pub(super) fn explain(&mut self, start: u64, end: u64) -> bool {
        let exact = self.resent.iter().position(|it| *it == (start, end));
        // A part of what the sender has sent again is reported if the rest was news; or it is a bundle's copy, and the whole is reported too.
        if exact.is_none() && self.bundled.gaps(start, end).is_empty() {
            return true;
        }
        let within = |it: &(u64, u64)| it.0 <= start && end <= it.1;
        if let Some(index) = exact.or_else(|| self.resent.iter().position(within)) {
            self.resent.remove(index);
        }
        false
    }

    /// Forgets what is far behind an acknowledgement.
    pub(super) fn acknowledged(&mut self, position: u64) {
        let limit = position.saturating_sub(HISTORY_BYTES);
        self.bundled.remove_below(limit);
        while self.resent.front().is_some_and(|it| it.1 < limit) {
            self.resent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_senders_own_is_not_a_bundles() {
        let mut copies = Copies::default();
        copies.bundled(100, 200);
        copies.bundled(200, 300);
        assert!(copies.explain(100, 200) && copies.explain(100, 300));
        assert!(!copies.explain(50, 150) && !copies.explain(300, 400));
        copies.resent(100, 200);
        // One of the two copies was the sender's.
        assert!(!copies.explain(100, 200));
        assert!(copies.explain(100, 200));
        // The sender joined what was bundled with what was not: a part of it is a bundle's, the whole is not.
        copies.resent(200, 400);
        assert!(copies.explain(200, 300));
        assert!(!copies.explain(200, 400));
        copies.acknowledged(HISTORY_BYTES + 250);
        assert!(!copies.explain(200, 300) && copies.explain(250, 300));
    }

    /// The last message of each burst is carried by nobody, so that bundles do not join.
    #[test]
    fn many_bundles_apart_are_not_too_many() {
        let mut copies = Copies::default();
        for at in (0..300).map(|burst| burst * 200) {
            copies.bundled(at, at + 100);
            assert!(copies.explain(at, at + 100), "{at}");
            assert!(!copies.explain(at + 100, at + 200));
        }
    }
}
