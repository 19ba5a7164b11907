//! Whether the path carries ECN marks (RFC 9000 §13.4.2).

/// Packets acknowledged without any count of marked ones growing that show that marks are erased: more
/// than two SACKs that overtake each other can explain.
const UNMARKED_MAX: u64 = 64;

/// The peer's counts of ECN codepoints, which go on for all packets of a packet number space.
#[derive(Debug, Default)]
pub(crate) struct EcnCounts {
    ect: u64,
    ce: u64,
}

/// Whether addresses carry marks. Every packet leaves as ECT(0).
#[derive(Debug, Default)]
pub(crate) struct Ecn {
    seen: bool,
    unmarked: u64,
}

impl Ecn {
    /// The peer's counts in a SACK that acknowledges `acked` packets for the first time. How many more
    /// carried CE.
    pub(crate) fn on_sack(&mut self, counts: &mut EcnCounts, ect: u64, ce: u64, acked: u64) -> u64 {
        let marked = ce.saturating_sub(counts.ce);
        if marked > 0 || ect > counts.ect {
            self.seen = true;
            self.unmarked = 0;
        } else {
            self.unmarked = self.unmarked.saturating_add(acked);
        }
        counts.ect = counts.ect.max(ect);
        counts.ce = counts.ce.max(ce);
        marked
    }

    /// Whether the absence of marks means anything.
    pub(crate) fn is_capable(&self) -> bool {
        self.seen && self.unmarked <= UNMARKED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_trusted_while_they_arrive() {
        let mut counts = EcnCounts::default();
        let counts = &mut counts;
        let mut ecn = Ecn::default();
        assert!(!ecn.is_capable());
        assert_eq!(ecn.on_sack(counts, 10, 0, 10), 0);
        assert!(ecn.is_capable());
        assert_eq!(ecn.on_sack(counts, 15, 5, 10), 5);
        // An older SACK comes late.
        assert_eq!(ecn.on_sack(counts, 12, 2, 0), 0);
        assert!(ecn.is_capable());
        // A router begins to erase marks.
        assert_eq!(ecn.on_sack(counts, 15, 5, 100), 0);
        assert!(!ecn.is_capable());
        assert_eq!(ecn.on_sack(counts, 16, 5, 1), 0);
        assert!(ecn.is_capable());
        // At other addresses it begins anew, and the counts go on.
        let mut ecn = Ecn::default();
        assert_eq!(ecn.on_sack(counts, 17, 5, 1), 0);
        assert!(ecn.is_capable());
    }
}
