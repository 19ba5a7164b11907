//! How far packets overtake each other, and hence when one counts as lost (RFC 9002 §6.1).

use crate::{Nanos, Time};

/// Later packets acknowledged before one counts as lost, until reordering is seen (RFC 9002).
const PACKET_THRESHOLD: u64 = 3;
/// The threshold never adapts beyond this; time decides then.
const PACKET_THRESHOLD_MAX: u64 = 1024;
/// So long after the last late packet the path counts as keeping the order again.
const REORDERING_MEMORY: Nanos = 10_000_000_000;

/// How far packets have been seen to overtake each other.
#[derive(Debug)]
pub(crate) struct Reordering {
    packet_threshold: u64,
    /// Longest time that a packet declared lost had been on its way.
    delay: Nanos,
    seen_at: Time,
}

impl Default for Reordering {
    fn default() -> Self {
        Self {
            packet_threshold: PACKET_THRESHOLD,
            delay: 0,
            seen_at: Time::ZERO,
        }
    }
}

impl Reordering {
    /// A packet was late, not lost: be more patient.
    pub(crate) fn note_late(&mut self, now: Time, overtaken_by: u64, delay: Nanos) {
        self.packet_threshold = self
            .packet_threshold
            .max(overtaken_by)
            .min(PACKET_THRESHOLD_MAX);
        self.delay = self.delay.max(delay);
        self.seen_at = now;
    }

    /// By how many packets one may be overtaken, and how long ago it may have left, until it counts as lost.
    /// `delay` is the latter while packets keep their order; reordering may double it.
    pub(crate) fn thresholds(&mut self, now: Time, delay: Nanos) -> (u64, Nanos) {
        if now.saturating_sub(self.seen_at) > REORDERING_MEMORY {
            *self = Self::default();
        }
        (self.packet_threshold, delay.max(self.delay.min(2 * delay)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn late_packets_make_it_patient_for_a_while() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.thresholds(time(50), 100), (3, 100));
        reordering.note_late(time(60), 11, 150);
        reordering.note_late(time(60), 1 << 40, 0);
        assert_eq!(reordering.thresholds(time(70), 100), (1024, 150));
        assert_eq!(reordering.thresholds(time(70), 60), (1024, 120));
        let later = time(61 + REORDERING_MEMORY);
        assert_eq!(reordering.thresholds(later, 100), (3, 100));
    }
}
