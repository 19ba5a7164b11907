//! Symbols that arrive in several packets are put together (`docs/protocol.md` §10.1).

use std::collections::VecDeque;

use crate::BlockId;
use crate::wire::MAX_SYMBOL_LEN;

/// Symbols that a receiver puts together at one time: at most so many, …
const UNFINISHED_MAX: u64 = 64;
/// … and no more than, were they as long as can be, would take this part of its window, which does not count them, …
const WINDOW_PART: u64 = 16;
/// … but at least so many in any case.
const UNFINISHED_MIN: u64 = 8;

/// Which transmission of which symbol a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) block: BlockId,
    pub(crate) code: u8,
    pub(crate) row: u32,
    pub(crate) symbol_len: u16,
    pub(crate) count: u8,
}

#[derive(Debug)]
struct Unfinished {
    key: Key,
    place: u8,
    have: u16,
}

/// Symbols being put together at the receiver.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Oldest first, and how many there may be.
    unfinished: VecDeque<Unfinished>,
    most: usize,
    /// Places in use, by bit.
    used: u64,
}

impl Assembly {
    /// That of a receiver with a window of so many bytes.
    pub(crate) fn new(window: u64) -> Self {
        let most = window / WINDOW_PART / MAX_SYMBOL_LEN as u64;
        Self {
            unfinished: VecDeque::new(),
            most: most.clamp(UNFINISHED_MIN, UNFINISHED_MAX) as usize,
            used: 0,
        }
    }

    /// Note a fragment: the place where its symbol is put together, and whether it is whole now, in which
    /// case the place is free again. `None` for one that was there.
    pub(crate) fn add(&mut self, key: Key, index: u8) -> Option<(u8, bool)> {
        let found = self.unfinished.iter().rposition(|u| u.key == key);
        let at = found.unwrap_or_else(|| {
            let place = self.free_place();
            let have = 0;
            self.unfinished.push_back(Unfinished { key, place, have });
            self.unfinished.len() - 1
        });
        let unfinished = &mut self.unfinished[at];
        let bit = 1u16 << (index & 15);
        if unfinished.have & bit != 0 {
            return None;
        }
        unfinished.have |= bit;
        let (place, whole) = (
            unfinished.place,
            unfinished.have.count_ones() == u32::from(key.count),
        );
        if whole {
            self.unfinished.remove(at);
            self.used &= !(1 << place);
        }
        Some((place, whole))
    }

    fn free_place(&mut self) -> u8 {
        if self.unfinished.len() == self.most
            && let Some(oldest) = self.unfinished.pop_front()
        {
            self.used &= !(1 << oldest.place);
        }
        let place = self.used.trailing_ones() as u8;
        self.used |= 1 << place;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(row: u32) -> Key {
        Key {
            block: BlockId::ZERO,
            code: 1,
            row,
            symbol_len: 1432,
            count: 2,
        }
    }

    #[test]
    fn fragments_come_in_any_order() {
        let mut assembly = Assembly::new(24 << 20);
        assert_eq!(assembly.add(key(1), 1), Some((0, false)));
        assert_eq!(assembly.add(key(2), 0), Some((1, false)));
        assert_eq!(assembly.add(key(1), 1), None);
        assert_eq!(assembly.add(key(1), 0), Some((0, true)));
        assert_eq!(assembly.add(key(3), 0), Some((0, false)));
        assert_eq!(assembly.add(key(2), 1), Some((1, true)));
    }

    #[test]
    fn the_oldest_symbol_makes_room() {
        for (window, most) in [(24 << 20, 64), (4 << 20, 29), (384 << 10, 8)] {
            let mut assembly = Assembly::new(window);
            for row in 0..1000 {
                let (place, whole) = assembly.add(key(row), 0).expect("new");
                assert!(usize::from(place) < most && !whole);
            }
            assert_eq!(assembly.unfinished.len(), most);
            assert!(assembly.add(key(999), 1).is_some_and(|(_, whole)| whole));
            assert!(assembly.add(key(0), 1).is_some_and(|(_, whole)| !whole));
        }
    }
}
