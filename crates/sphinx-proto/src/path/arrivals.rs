//! Which of the peer's packets have arrived: its losses as this end sees them.

use crate::PacketNumber;

use super::monitor::{Losses, Monitor};

/// Packets of a gap that are counted one by one. A longer gap is further than any estimate looks back, and
/// the work for one packet has to be bounded, whatever number it has.
const GAP_MAX: u64 = 4096;

/// Counts the numbers that are missing among the packets that arrive. A packet has one number and is sent
/// once, so a number that does not come is a packet that was lost, or is late, or the peer has left it out and will say so.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    monitor: Monitor,
    /// One above the largest number that has arrived.
    next: PacketNumber,
    /// The last number that the peer has said that it left out. It says so in their order.
    skipped: Option<PacketNumber>,
}

impl Arrivals {
    /// A packet that has not arrived before.
    #[inline]
    pub(crate) fn on_packet(&mut self, packet_number: PacketNumber) {
        if packet_number < self.next {
            // The packet counted as lost when later ones overtook it.
            self.monitor.spurious();
            return;
        }
        let counted = (packet_number - self.next).min(GAP_MAX);
        for distance in (1..=counted).rev() {
            self.monitor.lost(packet_number - distance);
        }
        self.monitor.acknowledged();
        self.next = packet_number.saturating_add(1);
    }

    /// So many packets right behind the one above all others.
    pub(crate) fn on_followers(&mut self, count: u64) {
        self.monitor.acknowledged_in_a_row(count);
        self.next = self.next.saturating_add(count);
    }

    /// The peer says that no packet has this number, which has not arrived; whether that is news. `alone`: its neighbours
    /// have.
    pub(crate) fn on_skipped(&mut self, packet_number: PacketNumber, alone: bool) -> bool {
        let is_news = packet_number < self.next && self.skipped.is_none_or(|n| n < packet_number);
        if is_news {
            self.skipped = Some(packet_number);
            self.monitor.never_sent(alone);
        }
        is_news
    }

    /// Losses among the packets so far; `None` before the first packet.
    pub(crate) fn losses(&self) -> Option<Losses> {
        self.monitor.losses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;

    fn after(numbers: impl IntoIterator<Item = u64>) -> Losses {
        let mut arrivals = Arrivals::default();
        numbers.into_iter().for_each(|n| arrivals.on_packet(pn(n)));
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
    fn what_was_left_out_is_not_lost() {
        // Of 1000 packets every tenth is lost, and behind each hundredth a number is left out.
        let mut arrivals = Arrivals::default();
        for n in 0..1010 {
            if n % 101 != 100 && n % 10 != 5 {
                arrivals.on_packet(pn(n));
            }
        }
        for _ in 0..2 {
            // Left-out numbers are told twice, but count once.
            for skipped in (0..1000).filter(|n| n % 101 == 100) {
                arrivals.on_skipped(pn(skipped), skipped % 10 != 4 && skipped % 10 != 6);
            }
        }
        assert!(!arrivals.on_skipped(pn(1010), true), "that may still come");
        let lost = (0..1009).filter(|n| n % 101 != 100 && n % 10 == 5).count();
        let losses = arrivals.losses().unwrap();
        assert_eq!(losses.mean, lost as f64 / 1000.0);
        assert_eq!(losses.burst, 1.0);
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
