//! What has gone over the link at which time. The end of a short transfer is a large part of what its connection sends: goodbyes, and
//! what both ends tell each other of the measurement.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sphinx_netdev::usage::monotonic_ns;

use crate::{Testbed, Workload};

/// Largest transfer of which the end is watched, in bytes: with larger ones it makes no difference.
const SHORT_BYTES_MAX: u64 = 20_000_000;
/// Time between two looks at the counters.
pub(crate) const INTERVAL: Duration = Duration::from_millis(1);

/// IP bytes that were offered to the link, whatever became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Bytes that went towards the receiver.
    pub forward_bytes: u64,
    /// Bytes that went on the way back.
    pub back_bytes: u64,
}

/// Looks at the link's counters again and again.
pub(crate) struct Watch<'a> {
    testbed: &'a Testbed,
    seen: Vec<(u64, Carried)>,
}

impl Watch<'_> {
    /// A watch for short transfers; `None` for others.
    pub(crate) fn of<'a>(testbed: &'a Testbed, workload: &Workload) -> Option<Watch<'a>> {
        let is_short = matches!(workload, Workload::Bulk { bytes } if *bytes <= SHORT_BYTES_MAX);
        is_short.then(|| Watch {
            testbed,
            seen: vec![(0, Carried::default())],
        })
    }

    /// Reads the counters, and notes the time if they have changed.
    pub(crate) fn look(&mut self) {
        let at = monotonic_ns();
        let counters = self.testbed.counters();
        let now = Carried {
            forward_bytes: (counters.iter().map(|it| it.left_to_right.offered_bytes)).sum(),
            back_bytes: (counters.iter().map(|it| it.right_to_left.offered_bytes)).sum(),
        };
        if self.seen.last().is_none_or(|(_, seen)| *seen != now) {
            self.seen.push((at, now));
        }
    }

    /// What was offered between two times of the monotonic clock, in nanoseconds, to the precision of single looks.
    pub(crate) fn between(&self, began: u64, ended: u64) -> Carried {
        let at = |time| {
            let after = self.seen.partition_point(|(at, _)| *at <= time);
            self.seen[after.saturating_sub(1)].1
        };
        let (before, then) = (at(began), at(ended));
        Carried {
            forward_bytes: then.forward_bytes.saturating_sub(before.forward_bytes),
            back_bytes: then.back_bytes.saturating_sub(before.back_bytes),
        }
    }
}
