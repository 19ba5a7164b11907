//! What has gone over the lossy hop and is not acknowledged: whole packets, and what the mobile host has
//! said of them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::moving::NEVER;
use crate::Time;

/// What a cached packet takes besides its bytes.
const OVERHEAD_BYTES: usize = 192;
/// Ranges that are remembered; a receiver reports its newest ones first, so those left out come again.
const RANGES_MAX: usize = 128;

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

/// Disjoint ranges of positions, ascending.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// The end of the last one.
    pub(super) fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.1)
    }

    /// Adds a range; false if it was there already.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        match self.0.get(first..last) {
            Some([]) | None => {
                if self.0.len() < RANGES_MAX {
                    self.0.insert(first, (start, end));
                    return true;
                }
                false
            }
            Some(touched) => {
                let joined = (
                    touched[0].0.min(start),
                    touched[touched.len() - 1].1.max(end),
                );
                let is_new = touched != [joined];
                self.0.splice(first..last, [joined]);
                is_new
            }
        }
    }

    /// The parts of a range that are not here, ascending.
    pub(super) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut at) = (Vec::new(), start);
        let first = self.0.partition_point(|range| range.1 <= start);
        for &(from, to) in &self.0[first..] {
            if from >= end {
                break;
            }
            if at < from {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    pub(super) fn remove_below(&mut self, position: u64) {
        self.0.retain_mut(|range| {
            range.0 = range.0.max(position);
            range.0 < range.1
        });
    }

    pub(super) fn contains(&self, position: u64) -> bool {
        let next = self.0.partition_point(|range| range.1 <= position);
        self.0.get(next).is_some_and(|range| range.0 <= position)
    }

    /// Bytes in ranges behind a position.
    pub(super) fn bytes_behind(&self, position: u64) -> u64 {
        let behind = |range: &(u64, u64)| range.1.saturating_sub(range.0.max(position));
        self.0.iter().map(behind).sum()
    }

    /// What is missing between `start` and the last range.
    pub(super) fn holes(&self, start: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = start;
        self.0.iter().filter_map(move |range| {
            let hole = (at, range.0);
            at = at.max(range.1);
            (hole.0 < hole.1).then_some(hole)
        })
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
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
    fn ranges_are_joined_and_holes_are_between_them() {
        let mut ranges = Ranges::default();
        assert!(ranges.add(30, 40) && ranges.add(10, 20) && !ranges.add(12, 18));
        assert_eq!(ranges.holes(5).collect::<Vec<_>>(), [(5, 10), (20, 30)]);
        assert_eq!((ranges.bytes_behind(15), ranges.end()), (15, Some(40)));
        assert!(ranges.contains(10) && !ranges.contains(20) && ranges.contains(39));
        assert_eq!(ranges.gaps(5, 45), [(5, 10), (20, 30), (40, 45)]);
        assert_eq!(ranges.gaps(20, 30), [(20, 30)]);
        assert_eq!(
            (ranges.gaps(12, 20), ranges.gaps(15, 22)),
            (vec![], vec![(20, 22)])
        );
        assert!(ranges.add(20, 30));
        assert_eq!(ranges.holes(5).collect::<Vec<_>>(), [(5, 10)]);
        ranges.remove_below(35);
        assert_eq!(ranges.0, [(35, 40)]);
        for n in 0..1000 {
            ranges.add(100 + 2 * n, 101 + 2 * n);
        }
        assert_eq!(ranges.0.len(), RANGES_MAX);
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
