//! Symbols that leave on several paths: lost when all their copies are, and here with the first of them.

use std::collections::BTreeMap;

use crate::wire::SymbolId;

/// What is known of the packets that carry copies of a symbol.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// Packets with it of which nothing is known yet.
    pending: u32,
    /// How often it has been sent since it was lost last, or for the first time, copies aside: so often it counts as in flight.
    in_flight: u32,
    has_arrived: bool,
}

/// The symbols of a block that left, or will leave, on several paths.
#[derive(Debug, Default)]
pub(super) struct Copied(BTreeMap<(u8, u32), Fate>);

impl Copied {
    /// One more copy of a symbol that leaves.
    pub(super) fn add(&mut self, symbol: SymbolId) {
        let fate = self.0.entry(symbol.to_wire()).or_insert(Fate {
            pending: 1,
            in_flight: 1,
            has_arrived: false,
        });
        fate.pending += 1;
    }

    /// A symbol leaves that may have left before; copies of it are [added](Self::add) then.
    pub(super) fn again(&mut self, symbol: SymbolId) {
        if let Some(fate) = self.0.get_mut(&symbol.to_wire()) {
            fate.pending += 1;
            fate.in_flight += 1;
        }
    }

    pub(super) fn has_arrived(&self, symbol: SymbolId) -> bool {
        let fate = self.0.get(&symbol.to_wire());
        fate.is_some_and(|fate| fate.has_arrived)
    }

    /// A packet with a symbol has arrived, `late` if it had been given up. Whether it is the first one, and how often the symbol is in flight no more: if never, it had
    /// been lost.
    pub(super) fn arrived(&mut self, symbol: SymbolId, late: bool) -> (bool, u32) {
        let Some(fate) = self.0.get_mut(&symbol.to_wire()) else {
            return (true, u32::from(!late));
        };
        let mut settled = std::mem::take(&mut fate.in_flight);
        if !late {
            match fate.pending.checked_sub(1) {
                Some(pending) => fate.pending = pending,
                // The packet left before copies were counted.
                None => settled += 1,
            }
        }
        (!std::mem::replace(&mut fate.has_arrived, true), settled)
    }

    /// A packet with a symbol is given up; how often the symbol is in flight no more: if ever, it is lost.
    pub(super) fn lost(&mut self, symbol: SymbolId) -> u32 {
        let Some(fate) = self.0.get_mut(&symbol.to_wire()) else {
            return 1;
        };
        let Some(pending) = fate.pending.checked_sub(1) else {
            // The packet left before copies were counted.
            return 1;
        };
        fate.pending = pending;
        match pending == 0 || fate.has_arrived {
            true => std::mem::take(&mut fate.in_flight),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOL: SymbolId = SymbolId::Source(7);

    fn two() -> Copied {
        let mut copied = Copied::default();
        copied.again(SYMBOL);
        copied.add(SYMBOL);
        copied
    }

    /// A symbol of which both copies have been given up.
    fn lost() -> Copied {
        let mut copied = two();
        assert_eq!((copied.lost(SYMBOL), copied.lost(SYMBOL)), (0, 1));
        copied
    }

    #[test]
    fn a_symbol_is_lost_when_all_its_copies_are() {
        let mut copied = lost();
        assert_eq!(copied.arrived(SYMBOL, true), (true, 0), "late");
        assert_eq!(copied.arrived(SYMBOL, true), (false, 0), "and its copy");
    }

    #[test]
    fn a_symbol_arrives_once() {
        let mut copied = two();
        assert_eq!(copied.arrived(SYMBOL, false), (true, 1));
        assert!(copied.has_arrived(SYMBOL));
        assert_eq!(copied.lost(SYMBOL), 0, "the other one is not missed");
        assert_eq!(copied.arrived(SYMBOL, true), (false, 0));
        let mut copied = two();
        assert_eq!(copied.lost(SYMBOL), 0);
        assert_eq!(copied.arrived(SYMBOL, true), (true, 1), "it was not lost");
        assert_eq!(copied.arrived(SYMBOL, false), (false, 0));
    }

    #[test]
    fn a_symbol_that_is_sent_again_is_lost_again_when_all_its_copies_are() {
        let mut copied = lost();
        for _ in 0..3 {
            copied.again(SYMBOL);
            copied.add(SYMBOL);
            assert_eq!((copied.lost(SYMBOL), copied.lost(SYMBOL)), (0, 1));
        }
        // The repetition leaves on one path only.
        copied.again(SYMBOL);
        assert_eq!(copied.lost(SYMBOL), 1);
        copied.again(SYMBOL);
        assert_eq!(copied.arrived(SYMBOL, false), (true, 1));
        // One that was given up is here while it is sent again.
        let mut copied = lost();
        copied.again(SYMBOL);
        copied.add(SYMBOL);
        assert_eq!(copied.arrived(SYMBOL, true), (true, 1));
        assert_eq!((copied.lost(SYMBOL), copied.lost(SYMBOL)), (0, 0));
    }

    #[test]
    fn a_symbol_may_be_sent_again_before_it_is_lost() {
        let again = || {
            let mut copied = two();
            copied.again(SYMBOL);
            copied.add(SYMBOL);
            copied
        };
        let mut copied = again();
        assert_eq!([(); 4].map(|()| copied.lost(SYMBOL)), [0, 0, 0, 2]);
        let mut copied = again();
        assert_eq!(copied.arrived(SYMBOL, false), (true, 2));
        assert_eq!([(); 3].map(|()| copied.lost(SYMBOL)), [0; 3]);
        // The first transmission leaves on one path only.
        let mut copied = Copied::default();
        copied.again(SYMBOL);
        copied.again(SYMBOL);
        copied.add(SYMBOL);
        assert_eq!([(); 3].map(|()| copied.lost(SYMBOL)), [0, 1, 1]);
    }

    #[test]
    fn others_are_as_before() {
        let mut copied = two();
        let other = SymbolId::Source(8);
        assert_eq!(copied.lost(other), 1);
        assert_eq!(copied.arrived(other, true), (true, 0));
        assert_eq!(copied.arrived(other, false), (true, 1));
    }
}
