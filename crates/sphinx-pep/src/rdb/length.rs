//! How long a packet the path carries (section 2 of `docs/rdb.md`).

use crate::{MS, Time};

/// A payload of this length fits almost every path.
const SAFE_BYTES: usize = 1200;
/// And a payload of this length, with all headers, every path that there is (RFC 791: 576 bytes).
const NARROW_BYTES: usize = 500;
/// So often in a row longer bundles were lost and shorter segments arrived: the path is too narrow.
const VANISHED_MAX: usize = 3;
/// A path counts as narrow for so long (RFC 1191, section 6.3).
const NARROW_NS: Time = 600_000 * MS;

/// What has arrived of a flow, and what has not.
#[derive(Debug, Default)]
pub(super) struct Length {
    /// The longest payload that has arrived.
    arrived: usize,
    /// When the path was found to be narrow, if it was.
    narrow: Option<Time>,
    row: Row,
}

/// Bundles that were lost, and shorter segments that have arrived behind them.
#[derive(Debug, Default)]
struct Row {
    /// Payload lengths in bytes: the longest lost one before each arrival. Nothing as long has arrived since.
    lost: Vec<usize>,
    /// The longest payload that was lost since the last arrival; 0 if none was.
    open: usize,
    /// The longest payload that has arrived since the first of them was lost.
    arrived: usize,
}

impl Length {
    /// The longest payload that a bundle may have at present, in bytes.
    pub(super) fn longest(&self, now: Time) -> usize {
        match self.narrow {
            Some(since) if now.saturating_sub(since) < NARROW_NS => self.arrived,
            _ => SAFE_BYTES.max(self.arrived),
        }
    }

    /// The sender has sent again what a bundle of this length had. It may do so without need.
    pub(super) fn lost(&mut self, bytes: usize) {
        // Nearly every path carries these; where they have arrived once, they are lost for another reason.
        if bytes > NARROW_BYTES.min(self.arrived) {
            self.row.open = self.row.open.max(bytes);
        }
    }

    /// A payload of this length has arrived.
    pub(super) fn arrived(&mut self, now: Time, bytes: usize) {
        self.arrived = self.arrived.max(bytes);
        let row = &mut self.row;
        let open = std::mem::take(&mut row.open);
        row.arrived = row.arrived.max(bytes);
        // What is as short as something that arrives was not too long.
        row.lost.retain(|lost| *lost > bytes);
        if row.lost.is_empty() {
            row.arrived = bytes;
        }
        if open > row.arrived {
            row.lost.push(open);
        }
        if row.lost.len() >= VANISHED_MAX {
            // Also if the path was wider once. Shorter ones than these may be lost for another reason than their length.
            let shortest = row.lost.iter().copied().min().unwrap_or(0);
            let fits = match shortest > NARROW_BYTES {
                true => row.arrived.max(NARROW_BYTES),
                false => row.arrived,
            };
            (self.arrived, self.narrow) = (fits, Some(now));
            self.row = Row::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vanish(length: &mut Length, times: usize) {
        for _ in 0..times {
            length.lost(1000);
            length.lost(1100);
            length.arrived(0, 300);
            length.arrived(0, 400);
        }
    }

    #[test]
    fn a_path_may_become_narrower() {
        let mut length = Length::default();
        length.arrived(0, 1300);
        assert_eq!(length.longest(0), 1300);
        vanish(&mut length, 2);
        assert_eq!(length.longest(0), 1300);
        vanish(&mut length, 1);
        assert_eq!(length.longest(0), NARROW_BYTES);
        // A length that arrives by itself is used.
        length.arrived(MS, 600);
        assert_eq!(length.longest(MS), 600);
        assert_eq!(length.longest(NARROW_NS), SAFE_BYTES);
        // Where not even that arrives, nothing is known but what does.
        let mut length = Length::default();
        (0..3).for_each(|_| {
            length.lost(450);
            length.arrived(MS, 400);
        });
        assert_eq!(length.longest(MS), 400);
    }

    /// A sender that has timed out sends everything again, also what has arrived.
    #[test]
    fn what_is_sent_again_without_need_hides_nothing() {
        let mut length = Length::default();
        for _ in 0..3 {
            [1000, 300].into_iter().for_each(|bytes| length.lost(bytes));
            [200, 600]
                .into_iter()
                .for_each(|bytes| length.arrived(0, bytes));
        }
        assert_eq!(length.longest(0), 600);
    }

    #[test]
    fn short_bundles_are_lost_for_other_reasons() {
        let mut length = Length::default();
        length.arrived(0, 200);
        for _ in 0..10 {
            length.lost(200);
            length.arrived(0, 100);
        }
        assert_eq!(length.longest(0), SAFE_BYTES);
    }

    #[test]
    fn losses_of_all_lengths_make_no_path_narrow() {
        let mut length = Length::default();
        for _ in 0..10 {
            vanish(&mut length, 2);
            length.arrived(0, 1100);
        }
        // Many losses in one long interruption count as one.
        (0..100).for_each(|_| length.lost(1000));
        length.arrived(0, 100);
        assert_eq!(length.longest(0), SAFE_BYTES);
    }
}
