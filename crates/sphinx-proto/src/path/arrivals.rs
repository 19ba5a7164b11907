//! Which of the peer's packets have arrived: its losses as this end sees them.

use super::monitor::{Losses, Monitor};

/// Packets of a gap that are counted one by one. A longer gap is further than any estimate looks back, and
/// the work for one packet has to be bounded, whatever number it has.
const GAP_MAX: u64 = 4096;

/// Counts the numbers that are missing among the packets that arrive. A packet has one number and is sent
/// once, so a number that does not come is a packet that was lost, or is late.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    monitor: Monitor,
    /// One above the largest number that has arrived.
    next: u64,
}

impl Arrivals {
    /// A packet that has not arrived before.
    pub(crate) fn on_packet(&mut self, packet_number: u64) {
        if packet_number < self.next {
            // It counted as lost when it was overtaken.
            self.monitor.spurious();
            return;
        }
        let counted = (packet_number - self.next).min(GAP_MAX);
        for missing in packet_number - counted..packet_number {
            self.monitor.lost(missing);
        }
        self.monitor.acknowledged();
        self.next = packet_number.saturating_add(1);
    }

    /// `None` before the first packet.
    pub(crate) fn losses(&self) -> Option<Losses> {
        self.monitor.losses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(numbers: impl IntoIterator<Item = u64>) -> Losses {
        let mut arrivals = Arrivals::default();
        numbers.into_iter().for_each(|n| arrivals.on_packet(n));
        arrivals.losses().unwrap()
    }

    #[test]
    fn what_is_missing_is_lost() {
        assert_eq!(Arrivals::default().losses(), None);
        assert_eq!(after(0..1000).mean, 0.0);
        assert_eq!(after((0..1000).filter(|n| n % 10 != 0)).mean, 0.1);
        // The beginning counts too.
        assert_eq!(after([3]).mean, 0.75);
    }

    #[test]
    fn what_is_late_is_not_lost() {
        let swapped = (0..1000).map(|n| n ^ 7);
        let losses = after(swapped);
        assert_eq!((losses.mean, losses.recent), (0.0, 0.0));
    }

    #[test]
    fn bursts_are_seen() {
        let losses = after((0..8000).filter(|n| n % 160 >= 8));
        assert!((losses.burst - 8.0).abs() < 0.5, "{losses:?}");
    }

    #[test]
    fn any_number_is_taken_in_bounded_time() {
        let losses = after([u64::MAX, 0, u64::MAX / 2]);
        assert!((0.9..=1.0).contains(&losses.mean), "{losses:?}");
    }
}
