//! Symbols that leave on several paths: lost when all their copies are, and here with the first of them.

use std::collections::BTreeMap;

use crate::wire::SymbolId;

/// What becomes of the copies of a symbol.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// Copies of which nothing is known yet.
    pending: u8,
    has_arrived: bool,
    /// All of them were given up.
    is_lost: bool,
}

/// The symbols of a block that left, or will leave, more than once.
#[derive(Debug, Default)]
pub(super) struct Copied(BTreeMap<(u8, u32), Fate>);

impl Copied {
    /// One more copy of a symbol that leaves.
    pub(super) fn add(&mut self, symbol: SymbolId) {
        let fate = self.0.entry(symbol.to_wire()).or_insert(Fate {
            pending: 1,
            has_arrived: false,
            is_lost: false,
        });
        fate.pending = fate.pending.saturating_add(1);
    }

    pub(super) fn has_arrived(&self, symbol: SymbolId) -> bool {
        let fate = self.0.get(&symbol.to_wire());
        fate.is_some_and(|fate| fate.has_arrived)
    }

    /// A copy has arrived, `late` if it had been given up. Whether the symbol had been; `None` if it was here before.
    pub(super) fn arrived(&mut self, symbol: SymbolId, late: bool) -> Option<bool> {
        let Some(fate) = self.0.get_mut(&symbol.to_wire()) else {
            return Some(late);
        };
        fate.pending = fate.pending.saturating_sub(u8::from(!late));
        if std::mem::replace(&mut fate.has_arrived, true) {
            return None;
        }
        Some(std::mem::replace(&mut fate.is_lost, false))
    }

    /// A copy is given up; whether the symbol is.
    pub(super) fn lost(&mut self, symbol: SymbolId) -> bool {
        let Some(fate) = self.0.get_mut(&symbol.to_wire()) else {
            return true;
        };
        fate.pending = fate.pending.saturating_sub(1);
        fate.is_lost = !fate.has_arrived && fate.pending == 0;
        fate.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOL: SymbolId = SymbolId::Source(7);

    fn two() -> Copied {
        let mut copied = Copied::default();
        copied.add(SYMBOL);
        copied
    }

    #[test]
    fn a_symbol_is_lost_when_all_its_copies_are() {
        let mut copied = two();
        assert!(!copied.lost(SYMBOL));
        assert!(copied.lost(SYMBOL));
        assert_eq!(copied.arrived(SYMBOL, true), Some(true), "late");
        assert_eq!(copied.arrived(SYMBOL, true), None, "and its copy");
    }

    #[test]
    fn a_symbol_arrives_once() {
        let mut copied = two();
        assert_eq!(copied.arrived(SYMBOL, false), Some(false));
        assert!(copied.has_arrived(SYMBOL));
        assert!(!copied.lost(SYMBOL), "the other one is not missed");
        assert_eq!(copied.arrived(SYMBOL, true), None);
        let mut copied = two();
        assert!(!copied.lost(SYMBOL));
        assert_eq!(copied.arrived(SYMBOL, true), Some(false), "it was not lost");
        assert_eq!(copied.arrived(SYMBOL, false), None);
    }

    #[test]
    fn others_are_as_before() {
        let mut copied = two();
        let other = SymbolId::Source(8);
        assert!(copied.lost(other));
        assert_eq!(copied.arrived(other, true), Some(true));
        assert_eq!(copied.arrived(other, false), Some(false));
    }
}
