//! What has gone over the lossy hop and is not acknowledged: whole packets, and what the mobile host has
//! said of them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::moving::NEVER;
use crate::Time;

/// What a cached packet takes besides its bytes.
const OVERHEAD_BYTES: usize = 192;

/// A packet that may be lost.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) packet: Bytes,
    /// Position behind its last byte.
    pub(super) end: u64,
    /// When it went, or will have gone, over the hop, last; `NEVER` if it has not.
    pub(super) departed: Time,
    /// What [`Snoop::repairing`](super::Snoop) was when that was known.
    pub(super) repairing: Time,
    /// Its timestamp.
    pub(super) sent: Option<u32>,
    /// How often it was sent again here.
    pub(super) repairs: u32,
    /// The sender has sent it again.
    pub(super) sender_repaired: bool,
}

/// Packets by the position of their first byte; none overlaps another.
#[derive(Debug, Default)]
pub(super) struct Cache {
    packets: BTreeMap<u64, Cached>,
    bytes: usize,
}

impl Cache {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What a packet would add to [`bytes`](Cache::bytes).
    pub(super) fn cost(packet: &Bytes) -> usize {
        packet.len() + OVERHEAD_BYTES
    }

    pub(super) fn insert(&mut self, start: u64, cached: Cached) {
        self.bytes += Cache::cost(&cached.packet);
        if let Some(old) = self.packets.insert(start, cached) {
            self.bytes -= Cache::cost(&old.packet);
        }
    }

    pub(super) fn get_mut(&mut self, start: u64) -> Option<&mut Cached> {
        self.packets.get_mut(&start)
    }

    /// The packets that have a byte in a range, oldest first.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Cached)> {
        let before = self.packets.range(..start).next_back();
        let first = before
            .filter(|(_, cached)| cached.end > start)
            .map_or(start, |(first, _)| *first);
        let packets = self.packets.range(first..end.max(first));
        packets.map(|(start, cached)| (*start, cached))
    }

    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.overlapping(start, end).next().is_some()
    }

    /// Whether every byte of a range is here.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        for (first, cached) in self.overlapping(start, end) {
            if first > at {
                return false;
            }
            at = cached.end;
        }
        at >= end
    }

    /// Forgets what lies within a range.
    pub(super) fn remove_within(&mut self, start: u64, end: u64) {
        let within = self.packets.range(start..end.max(start));
        let within = within.filter(|(_, cached)| cached.end <= end);
        let starts: Vec<u64> = within.map(|(start, _)| *start).collect();
        for start in starts {
            if let Some(cached) = self.packets.remove(&start) {
                self.bytes -= Cache::cost(&cached.packet);
            }
        }
    }

    /// Forgets what ends at or before a position; returns the last of it.
    pub(super) fn remove_below(&mut self, position: u64) -> Option<Cached> {
        let mut last = None;
        while let Some(entry) = self.packets.first_entry() {
            if entry.get().end > position {
                break;
            }
            let cached = entry.remove();
            self.bytes -= Cache::cost(&cached.packet);
            last = Some(cached);
        }
        last
    }

    /// All packets are as if they had never gone over the hop.
    pub(super) fn forget_departures(&mut self) {
        for cached in self.packets.values_mut() {
            cached.departed = NEVER;
            cached.repairs = cached.repairs.max(1);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Cache::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(end: u64) -> Cached {
        Cached {
            packet: Bytes::from_static(&[0; 40]),
            end,
            departed: 0,
            repairing: 0,
            sent: None,
            repairs: 0,
            sender_repaired: false,
        }
    }

    #[test]
    fn the_cache_knows_what_it_covers() {
        let mut cache = Cache::default();
        for start in [10, 20, 40] {
            cache.insert(start, cached(start + 10));
        }
        assert!(cache.covers(10, 30) && cache.covers(15, 16) && !cache.covers(15, 31));
        assert!(!cache.covers(5, 12) && cache.covers(45, 50) && !cache.covers(45, 51));
        assert!(cache.overlaps(29, 31) && !cache.overlaps(30, 40) && cache.overlaps(0, 100));
        assert_eq!(cache.bytes(), 3 * (40 + OVERHEAD_BYTES));
        cache.remove_within(5, 19);
        cache.remove_within(41, 50);
        assert_eq!(cache.bytes(), 3 * (40 + OVERHEAD_BYTES));
        assert_eq!(cache.remove_below(35).unwrap().end, 30);
        assert_eq!(cache.bytes(), 40 + OVERHEAD_BYTES);
        cache.remove_within(40, 50);
        assert_eq!(cache.bytes(), 0);
        cache.insert(40, cached(50));
        cache.clear();
        assert_eq!(cache.bytes(), 0);
    }
}
