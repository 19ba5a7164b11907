use crate::{BlockId, PathId};

use super::*;
use proptest::prelude::*;

fn new_block(n: u16, urgency: u8) -> NewBlock {
    NewBlock {
        urgency: Urgency::new(urgency),
        streams: Box::default(),
        slot: Slot(0),
        n,
        symbol_len: 10,
        tail: false,
        lifetime: None,
    }
}

proptest! {
    /// Whatever is done in whatever order, a block is among those owed if and only if rows of it are due, and the
    /// sums are those of the blocks.
    #[test]
    fn owed_means_due(steps in prop::collection::vec((0..7u8, 0..12u64, 0..3u32), 0..200)) {
        let mut store = BlockStore::default();
        for (step, sequence, rows) in steps {
            match step {
                0 => drop(store.push(new_block(rows as u16 + 1, sequence as u8), Demands::default())),
                1 => store.owe(BlockId::new(sequence), rows, false),
                2 => store.owe(BlockId::new(sequence), rows, true),
                3 => drop((store.take_due(), store.take_source(PathId::FIRST))),
                4 => store.forgive(BlockId::new(sequence)),
                5 => store.owe_nothing(BlockId::new(sequence)),
                _ => drop(store.settle(BlockId::new(sequence))),
            }
            let due = store.iter().filter(|(_, b)| b.due > 0).map(|(s, b)| (b.urgency, s));
            prop_assert_eq!(due.collect::<BTreeSet<_>>(), store.owed.clone());
            let unsent = store.iter().filter(|(_, b)| b.unsent() > 0).map(|(s, b)| (b.urgency, s));
            prop_assert_eq!(unsent.collect::<BTreeSet<_>>(), store.unsent.clone());
            let unsent = store.iter().map(|(_, b)| u64::from(b.unsent()) * 10).sum::<u64>();
            prop_assert_eq!(unsent, store.unsent_before(Urgency::LEAST));
            prop_assert_eq!(store.iter().map(|(_, b)| b.cost()).sum::<u64>(), store.open_cost());
            let more_urgent = store.iter().filter(|(_, b)| b.urgency <= Urgency::default());
            prop_assert_eq!(
                more_urgent.map(|(_, b)| b.cost()).sum::<u64>(),
                store.open_cost_before(Urgency::default())
            );
            prop_assert!(store.iter().all(|(_, b)| b.due_ahead <= b.due));
        }
    }
}
