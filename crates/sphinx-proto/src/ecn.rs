//! Whether the path carries ECN marks (RFC 9000 §13.4.2).

/// Packets acknowledged without any count of marked ones growing that show that marks are erased: more
/// than two SACKs that overtake each other can explain.
const UNMARKED_MAX: u64 = 64;

/// Follows the peer's counts of ECN codepoints. Every packet leaves as ECT(0).
#[derive(Debug, Default)]
pub(crate) struct Ecn {
    ect: u64,
    ce: u64,
    seen: bool,
    unmarked: u64,
}

impl Ecn {
    /// The peer's counts in a SACK that acknowledges `acked` packets for the first time. How many more
    /// carried CE.
    pub(crate) fn on_sack(&mut self, ect: u64, ce: u64, acked: u64) -> u64 {
        let marked = ce.saturating_sub(self.ce);
        if marked > 0 || ect > self.ect {
            self.seen = true;
            self.unmarked = 0;
        } else {
            self.unmarked = self.unmarked.saturating_add(acked);
        }
        self.ect = self.ect.max(ect);
        self.ce = self.ce.max(ce);
        marked
    }

    /// Whether the absence of marks means anything.
    pub(crate) fn is_capable(&self) -> bool {
        self.seen && self.unmarked <= UNMARKED_MAX
    }

    /// From now on packets travel another way through the network.
    pub(crate) fn begin_path(&mut self) {
        self.seen = false;
        self.unmarked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_trusted_while_they_arrive() {
        let mut ecn = Ecn::default();
        assert!(!ecn.is_capable());
        assert_eq!(ecn.on_sack(10, 0, 10), 0);
        assert!(ecn.is_capable());
        assert_eq!(ecn.on_sack(15, 5, 10), 5);
        // An older SACK comes late.
        assert_eq!(ecn.on_sack(12, 2, 0), 0);
        assert!(ecn.is_capable());
        // A router begins to erase marks.
        assert_eq!(ecn.on_sack(15, 5, 100), 0);
        assert!(!ecn.is_capable());
        assert_eq!(ecn.on_sack(16, 5, 1), 0);
        assert!(ecn.is_capable());
        ecn.begin_path();
        assert!(!ecn.is_capable());
    }
}
