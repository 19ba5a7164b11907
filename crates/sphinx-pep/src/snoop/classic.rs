//! The rules of the published simulator (ns-2 2.35, §1.1 of the rules), in packets of real TCP.
//!
//! Not copied: a threshold counter shared by all flows, a "full" flag that is never cleared, and a
//! smoothed round-trip time of which the newest sample is seven eighths.

use super::{Context, Snoop};
use crate::{MS, Release, Time, segment::Segment};

/// Shortest time-out ("tick"), in nanoseconds.
const TICK_NS: Time = 100 * MS;
/// Duplicate acknowledgements that pass before the hole is repaired.
const THRESHOLD: u64 = 1;
/// Most repairs of one packet.
const REPAIRS_MAX: u32 = 10;

/// Counts of the present hole; they begin anew with each acknowledgement of more.
#[derive(Debug, Default)]
pub(super) struct Classic {
    /// Duplicate acknowledgements of the present hole.
    pub(super) duplicates: u64,
    /// How many more duplicates the packets behind the repaired one will cause, once it was repaired.
    expected: Option<u64>,
    /// Packets in the cache when that was counted, and those that came later.
    packets: u64,
}

impl Classic {
    pub(super) fn cached(&mut self) {
        self.packets += 1;
    }
}

impl Snoop {
    pub(super) fn classic_acknowledgment(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
        position: u64,
    ) {
        if position > self.acknowledged {
            self.advance(context, position);
            let rest = self.cache.overlapping(position, self.highest).count();
            self.classic = Classic {
                packets: rest as u64,
                ..Classic::default()
            };
            self.see(segment);
            return context.pass(segment);
        }
        let plain = segment.payload == 0 && !segment.fin && segment.ecn == self.ecn;
        let is_duplicate =
            plain && segment.window == self.window && self.highest > self.acknowledged;
        self.see(segment);
        if !is_duplicate || self.suppresses(context).is_none() {
            return context.pass(segment);
        }
        // Dropped: whoever sends it will say the same again.
        context.counts.held += 1;
    }

    /// A duplicate acknowledgement: repairs the hole, or not; `None` if the sender is to hear of it.
    fn suppresses(&mut self, context: &mut Context<'_>) -> Option<()> {
        let Some((start, cached)) = self.cache.at(self.acknowledged) else {
            // (a) Lost before it came here: the sender's.
            context.counts.release(Release::NotCached);
            return None;
        };
        let (repairs, sender_repaired) = (cached.repairs, cached.sender_repaired);
        self.classic.duplicates += 1;
        match self.classic.expected {
            // (b)
            None if self.classic.duplicates <= THRESHOLD => None,
            None if sender_repaired => {
                context.counts.release(Release::SenderRepaired);
                None
            }
            None => {
                let expected = self.classic.packets.saturating_sub(THRESHOLD + 1);
                self.classic.expected = Some(expected);
                if repairs == 0 {
                    self.send_again(context, start);
                }
                Some(())
            }
            // (c)
            Some(expected @ 1..) => {
                self.classic.expected = Some(expected - 1);
                Some(())
            }
            // (d) More than were expected: the repair was lost too, or the count was wrong.
            Some(0) if repairs < 2 => {
                self.send_again(context, start);
                Some(())
            }
            Some(0) => {
                context.counts.release(Release::Limit);
                None
            }
        }
    }

    /// The timer of the oldest packet.
    pub(super) fn classic_timer(&self) -> Option<(u64, Time)> {
        let (start, cached) = self.cache.at(self.acknowledged)?;
        let timeout = self.rtt.timeout().max(TICK_NS) + self.overtaken(cached);
        (cached.repairs < REPAIRS_MAX).then(|| (start, cached.left().saturating_add(timeout)))
    }
}
