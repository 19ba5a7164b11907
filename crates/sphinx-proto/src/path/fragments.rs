//! Symbols that no longer fit the path leave in several packets (`docs/protocol.md` §10.1).

use std::collections::BTreeMap;

use crate::PacketNumber;
use crate::wire::{FRAGMENT_PREFIX_LEN, FRAGMENTS_MAX, OVERHEAD};

/// Fragments that a symbol of `symbol_len` bytes needs in UDP payloads of `datagram_max` bytes; 1 if it
/// fits whole.
pub(crate) fn fragments_for(symbol_len: u16, datagram_max: u16) -> u8 {
    let room = usize::from(datagram_max).saturating_sub(OVERHEAD).max(1);
    let len = usize::from(symbol_len);
    if len <= room {
        return 1;
    }
    let room = room.saturating_sub(FRAGMENT_PREFIX_LEN).max(1);
    len.div_ceil(room).min(usize::from(FRAGMENTS_MAX)) as u8
}

/// What the sender knows of symbols in flight in fragments, by the number of the first packet.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<PacketNumber, Group>);

#[derive(Debug)]
struct Group {
    /// Fragments not acknowledged.
    left: u8,
    /// The symbol has been given up.
    lost: bool,
    /// Number of the last packet so far.
    last: PacketNumber,
}

/// What an acknowledgement or a loss of a fragment means for its symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing yet, or nothing new.
    Nothing,
    /// The symbol has arrived.
    Arrived,
    /// The symbol has arrived, although it was given up.
    ArrivedLate,
    /// The symbol is lost.
    Lost,
}

impl Groups {
    /// Packet `pn` carries one of `count` fragments; `first` carried the first one.
    pub(crate) fn sent(&mut self, first: PacketNumber, pn: PacketNumber, count: u8) {
        let group = self.0.entry(first).or_insert(Group {
            left: count,
            lost: false,
            last: pn,
        });
        group.last = pn;
    }

    pub(crate) fn acked(&mut self, first: PacketNumber) -> Meaning {
        let Some(group) = self.0.get_mut(&first) else {
            return Meaning::Nothing;
        };
        group.left = group.left.saturating_sub(1);
        if group.left > 0 {
            return Meaning::Nothing;
        }
        let lost = group.lost;
        self.0.remove(&first);
        if lost {
            Meaning::ArrivedLate
        } else {
            Meaning::Arrived
        }
    }

    pub(crate) fn lost(&mut self, first: PacketNumber) -> Meaning {
        match self.0.get_mut(&first) {
            Some(group) if !group.lost => {
                group.lost = true;
                Meaning::Lost
            }
            _ => Meaning::Nothing,
        }
    }

    /// Packets below `pn` are forgotten. The newest symbol may still be leaving.
    pub(crate) fn forget_below(&mut self, pn: PacketNumber) {
        while self.0.len() > 1
            && let Some(entry) = self.0.first_entry()
            && entry.get().last < pn
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;

    #[test]
    fn counts() {
        for (symbol, datagram, count) in [
            (1162, 1200, 1),
            (1163, 1200, 2),
            (1434, 1200, 2),
            (1434, 1472, 1),
            (8932, 1472, 7),
            (9000, 1200, 8),
        ] {
            assert_eq!(
                fragments_for(symbol, datagram),
                count,
                "{symbol} in {datagram}"
            );
            let longest = symbol.div_ceil(u16::from(count));
            assert!(
                usize::from(longest) + OVERHEAD + FRAGMENT_PREFIX_LEN <= usize::from(datagram)
                    || count == 1
            );
        }
    }

    #[test]
    fn a_symbol_is_lost_once_and_arrives_once() {
        let mut groups = Groups::default();
        groups.sent(pn(10), pn(10), 2);
        groups.sent(pn(10), pn(11), 2);
        assert_eq!(groups.acked(pn(10)), Meaning::Nothing);
        assert_eq!(groups.acked(pn(10)), Meaning::Arrived);
        assert_eq!(groups.acked(pn(10)), Meaning::Nothing);
        groups.sent(pn(12), pn(12), 2);
        assert_eq!(groups.lost(pn(12)), Meaning::Lost);
        assert_eq!(groups.lost(pn(12)), Meaning::Nothing);
        assert_eq!(groups.acked(pn(12)), Meaning::Nothing);
        assert_eq!(groups.acked(pn(12)), Meaning::ArrivedLate);
        groups.sent(pn(14), pn(14), 2);
        groups.sent(pn(14), pn(17), 2);
        groups.forget_below(pn(17));
        assert_eq!(groups.lost(pn(14)), Meaning::Lost);
        groups.sent(pn(20), pn(20), 2);
        groups.forget_below(pn(18));
        assert_eq!(groups.acked(pn(14)), Meaning::Nothing);
    }
}
