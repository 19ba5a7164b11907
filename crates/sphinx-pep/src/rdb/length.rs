//! How long a packet the path carries (section 2 of `docs/rdb.md`).

use crate::{MS, Time};

/// A payload of this length fits almost every path.
const SAFE_BYTES: usize = 1200;
/// And a payload of this length, with all headers, every path that there is (RFC 791: 576 bytes).
const NARROW_BYTES: usize = 500;
/// So often in a row longer bundles were lost and shorter segments arrived: the path is too narrow.
const VANISHED_MAX: u32 = 3;
/// So long that is believed (RFC 1191, section 6.3).
const NARROW_NS: Time = 600_000 * MS;

/// What has arrived of a flow, and what has not.
#[derive(Debug, Default)]
pub(super) struct Length {
    /// The longest payload that has arrived.
    arrived: usize,
    /// The path was found to be narrow then.
    narrow: Option<Time>,
    row: Row,
}

/// Bundles that were lost since the last one arrived that was as long.
#[derive(Debug, Default)]
struct Row {
    /// How often something shorter arrived after one.
    times: u32,
    /// The shortest of them; 0 if there is none.
    shortest: usize,
    /// The longest payload that has arrived since.
    arrived: usize,
    /// Nothing has arrived since the last one.
    open: bool,
}

impl Length {
    /// The longest payload that a bundle may have.
    pub(super) fn longest(&self, now: Time) -> usize {
        match self.narrow {
            Some(since) if now.saturating_sub(since) < NARROW_NS => self.arrived,
            _ => SAFE_BYTES.max(self.arrived),
        }
    }

    /// The sender has sent again what a bundle of this length had.
    pub(super) fn lost(&mut self, bytes: usize) {
        let row = &mut self.row;
        row.open = true;
        if row.shortest == 0 || bytes < row.shortest {
            row.shortest = bytes;
        }
    }

    /// A payload of this length has arrived.
    pub(super) fn arrived(&mut self, now: Time, bytes: usize) {
        self.arrived = self.arrived.max(bytes);
        let row = &mut self.row;
        if row.shortest == 0 || bytes >= row.shortest {
            self.row = Row::default();
            return;
        }
        row.arrived = row.arrived.max(bytes);
        if std::mem::take(&mut row.open) {
            row.times += 1;
        }
        if row.times >= VANISHED_MAX {
            // Also if the path was wider once. Shorter ones than these may be lost for another reason than their length.
            let fits = match row.shortest > NARROW_BYTES {
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
        // What arrives by itself fits.
        length.arrived(MS, 600);
        assert_eq!(length.longest(MS), 600);
        assert_eq!(length.longest(NARROW_NS), SAFE_BYTES);
        // Where not even that arrives, nothing is known but what does.
        (0..3).for_each(|_| {
            length.lost(450);
            length.arrived(MS, 400);
        });
        assert_eq!(length.longest(MS), 400);
    }

    #[test]
    fn losses_of_all_lengths_make_no_path_narrow() {
        let mut length = Length::default();
        for _ in 0..10 {
            vanish(&mut length, 2);
            length.arrived(0, 1000);
        }
        // A long interruption is one loss.
        (0..100).for_each(|_| length.lost(1000));
        length.arrived(0, 100);
        assert_eq!(length.longest(0), SAFE_BYTES);
    }
}
