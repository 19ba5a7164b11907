//! Thin streams: repairs that ride in packets of other blocks instead of leaving alone (Redundant Data Bundling).
//!
//! A packet of a small message is mostly headers, and a repair ahead of loss that leaves in a packet of its own costs as much again. Where
//! messages follow each other at a steady pace the next one is soon there to take the repair along.

use crate::wire::Rider;
use crate::{Nanos, Time};

use super::store::TxBlock;

/// Flights closer than this count as one.
pub(super) const GAP_MIN: Nanos = 1_000_000;

/// A flight that is late by no more than so many times the time that was waited for it belongs to a pace all the same, if others were in time.
const LATE: Nanos = 2;

/// What may be had of packets that are still to come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rides {
    /// Blocks of which a repair may ride in one packet.
    pub(crate) most: u8,
    /// How long a repair waits for a packet.
    pub(crate) wait: Nanos,
    /// Bytes of a packet's body.
    pub(crate) room: usize,
}

impl Rides {
    /// Repairs of a block that may ride one after the other: as many as blocks may in one packet, so that each
    /// new packet of a stream whose blocks are all like this one has room for all that wait.
    pub(super) fn of_block(&self, block: &TxBlock) -> u32 {
        let symbol = usize::from(block.symbol_len);
        let space = self.room.saturating_sub(Rider::len_max(symbol));
        let fit = space / Rider::len_max(symbol);
        // A row of a larger block nearly fills a packet, so that it does not ride.
        let is_small = block.n == 1;
        let most = usize::from(self.most).min(fit);
        if is_small { most as u32 } else { 0 }
    }
}

/// How flights that are protected ahead follow each other.
#[derive(Debug)]
pub(super) struct Pace {
    latest: Option<Time>,
    /// Between the latest four, the latest first.
    gaps: [Nanos; 3],
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            latest: None,
            gaps: [Nanos::MAX; 3],
        }
    }
}

impl Pace {
    /// A flight ends.
    pub(super) fn note(&mut self, now: Time) {
        let gap = self
            .latest
            .map_or(Nanos::MAX, |latest| now.saturating_sub(latest));
        if gap >= GAP_MIN {
            self.gaps = [gap, self.gaps[0], self.gaps[1]];
            self.latest = Some(now);
        }
    }

    /// Whether another one can be expected within this time: two were there in time, or one of three was a little late, as threads are that share a
    /// processor.
    pub(super) fn is_within(&self, wait: Nanos) -> bool {
        let late = |gaps: &[Nanos]| gaps.iter().filter(|gap| **gap > wait).count();
        let most = LATE.saturating_mul(wait);
        late(&self.gaps[..2]) == 0
            || late(&self.gaps) == 1 && self.gaps.iter().all(|gap| *gap <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::store::Demands;
    use crate::blocks::{BlockStore, NewBlock};
    use crate::time::time;
    use crate::types::{Slot, Urgency};
    use crate::{BlockId, PathId};

    const MS: Nanos = 1_000_000;

    fn store(blocks: u64) -> BlockStore {
        let mut store = BlockStore::default();
        for _ in 0..blocks {
            let new = NewBlock {
                streams: Box::default(),
                slot: Slot(0),
                n: 1,
                symbol_len: 200,
                tail: true,
                urgency: Urgency::default(),
                lifetime: None,
            };
            store.push(new, Demands::default());
            store.take_source(PathId::FIRST);
        }
        store
    }

    fn any(_: BlockId, _: &TxBlock) -> bool {
        true
    }

    #[test]
    fn a_pace_is_steady_after_three_flights() {
        let mut pace = Pace::default();
        for at in [100, 120, 140] {
            assert!(!pace.is_within(25 * MS));
            pace.note(time(at * MS));
            // Flights at nearly the same time do not count for the pace.
            pace.note(time(at * MS + 1000));
        }
        assert!(pace.is_within(25 * MS) && !pace.is_within(19 * MS));
        // One that is a little late is forgiven, another one beside it is not, and a pause never.
        pace.note(time(166 * MS));
        assert!(pace.is_within(25 * MS));
        pace.note(time(192 * MS));
        assert!(!pace.is_within(25 * MS));
        for at in [200, 210, 220] {
            pace.note(time(at * MS));
        }
        assert!(pace.is_within(25 * MS));
        pace.note(time(271 * MS));
        assert!(!pace.is_within(25 * MS));
    }

    #[test]
    fn blocks_ride_as_often_as_packets_like_theirs_have_room() {
        let rides = |most, room| Rides {
            most,
            wait: 0,
            room,
        };
        let store = store(1);
        let block = store.get(BlockId::ZERO).expect("just made");
        assert_eq!(rides(1, 1162).of_block(block), 1);
        assert_eq!(rides(8, 1162).of_block(block), 4);
        assert_eq!(rides(8, 421).of_block(block), 0);
        assert_eq!(rides(8, 422).of_block(block), 1);
        assert_eq!(rides(0, 1162).of_block(block), 0);
    }

    #[test]
    fn a_repair_rides_with_a_later_block_or_leaves_alone() {
        let mut store = store(3);
        store.owe_rides(BlockId::ZERO, 2, time(30));
        store.owe_rides(BlockId::new(1), 1, time(40));
        assert!(!store.is_owing());
        assert_eq!(store.rides_until(), Some(time(30)));
        assert_eq!(
            store.take_ride(BlockId::ZERO, time(50), any),
            None,
            "its own packet"
        );
        // Each block once in a packet, the one that has waited longest first.
        assert_eq!(
            store.take_ride(BlockId::new(2), time(50), any),
            Some(BlockId::ZERO)
        );
        assert_eq!(
            store.take_ride(BlockId::new(2), time(60), |at, _| at > BlockId::new(1)),
            None
        );
        assert_eq!(store.rides_until(), Some(time(40)));
        store.end_rides(time(39));
        assert!(!store.is_owing());
        store.end_rides(time(50));
        assert_eq!(store.take_due(), Some((BlockId::ZERO, true)));
        assert_eq!(store.take_due(), Some((BlockId::new(1), true)));
        assert!(!store.is_owing() && store.rides_until().is_none());
    }

    #[test]
    fn what_has_arrived_does_not_ride() {
        let mut store = store(3);
        for sequence in 0..2 {
            store.owe_rides(BlockId::new(sequence), 1, time(30));
        }
        let block = store.get_mut(BlockId::ZERO).expect("on its way");
        block.arrived(crate::wire::SymbolId::Source(0), false);
        assert_eq!(
            store.take_ride(BlockId::new(2), time(50), any),
            Some(BlockId::new(1))
        );
        assert!(store.settle(BlockId::ZERO).is_some());
        assert_eq!(store.rides_until(), None);
        store.end_rides(time(30));
        assert!(!store.is_owing());
    }
}
