//! What has gone over the lossy hop and is not acknowledged: whole packets, and what the mobile host has
//! said of them.

use std::collections::VecDeque;

use bytes::Bytes;

use super::moving::NEVER;
use crate::Time;

/// Memory that a cached packet takes besides its bytes.
const OVERHEAD_BYTES: usize = 192;
/// Packets for which there is always room once there was.
const CAPACITY_MIN: usize = 64;

/// A packet that may be lost.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) packet: Bytes,
    /// Position behind its last byte.
    pub(super) end: u64,
    /// When it last left for the hop, or will, as foretold; [`NEVER`] if it has not.
    pub(super) departed: Time,
    /// What it takes itself of the hop's time, where that is known; a repair's is part of `repairing`.
    pub(super) takes: Time,
    /// The value of [`Snoop::repairing`](super::Snoop) when `departed` was foretold.
    pub(super) repairing: Time,
    /// The segment's own timestamp (TSval), if it has one.
    pub(super) sent: Option<u32>,
    /// How often this agent has repaired it.
    pub(super) repairs: u32,
    /// Whether the sender has sent it again.
    pub(super) sender_repaired: bool,
}

impl Cached {
    /// The time at which the hop has taken all of the packet.
    pub(super) fn left(&self) -> Time {
        self.departed.saturating_add(self.takes)
    }
}

/// Packets with the positions of their first bytes, ascending; none overlaps another. Nearly all come to one end and leave from the other, so
/// that a queue is cheaper than a tree.
#[derive(Debug, Default)]
pub(super) struct Cache {
    packets: VecDeque<(u64, Cached)>,
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

    /// Puts a packet in, which overlaps no other but one of the same range: that one goes.
    pub(super) fn insert(&mut self, start: u64, cached: Cached) {
        self.bytes += Cache::cost(&cached.packet);
        let index = self.first_behind(start);
        match self.packets.get_mut(index) {
            Some((known_start, known)) if *known_start == start => {
                let old = std::mem::replace(known, cached);
                self.bytes -= Cache::cost(&old.packet);
            }
            Some(_) => self.packets.insert(index, (start, cached)),
            None => self.packets.push_back((start, cached)),
        }
    }

    /// The index of the first packet that ends behind a position.
    fn first_behind(&self, position: u64) -> usize {
        match (self.packets.front(), self.packets.back()) {
            (Some((_, first)), _) if first.end > position => 0,
            (_, Some((_, last))) if last.end <= position => self.packets.len(),
            // The one behind the first is asked for with every timer.
            _ if self.packets.get(1).is_some_and(|it| it.1.end > position) => 1,
            _ => self.packets.partition_point(|it| it.1.end <= position),
        }
    }

    /// The packet with the byte at a position.
    pub(super) fn at(&self, position: u64) -> Option<(u64, &Cached)> {
        let packet = self.packets.get(self.first_behind(position));
        let packet = packet.filter(|it| it.0 <= position);
        packet.map(|(start, cached)| (*start, cached))
    }

    /// The packet that is oldest in the stream.
    pub(super) fn first(&self) -> Option<&Cached> {
        self.packets.front().map(|it| &it.1)
    }

    /// Whether all cached packets end at or before a position.
    pub(super) fn ends_by(&self, position: u64) -> bool {
        self.packets.back().is_none_or(|it| it.1.end <= position)
    }

    pub(super) fn get_mut(&mut self, start: u64) -> Option<&mut Cached> {
        let index = self.first_behind(start);
        let found = self.packets.get_mut(index).filter(|it| it.0 == start);
        found.map(|(_, cached)| cached)
    }

    /// The packets that have a byte in a range, oldest first.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Cached)> {
        let packets = self.packets.range(self.first_behind(start)..);
        let packets = packets.take_while(move |it| it.0 < end);
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
        let mut first = self.first_behind(start);
        first += usize::from(self.packets.get(first).is_some_and(|it| it.0 < start));
        let behind = self.packets.range(first..);
        let within = behind.take_while(|it| it.1.end <= end).count();
        for (_, cached) in self.packets.drain(first..first + within) {
            self.bytes -= Cache::cost(&cached.packet);
        }
        self.fit();
    }

    /// Forgets what ends at or before a position; returns the last of it.
    pub(super) fn remove_below(&mut self, position: u64) -> Option<Cached> {
        let mut last = None;
        while let Some((_, cached)) = self.packets.pop_front_if(|it| it.1.end <= position) {
            self.bytes -= Cache::cost(&cached.packet);
            last = Some(cached);
        }
        self.fit();
        last
    }

    /// Gives back memory that is not counted any more.
    fn fit(&mut self) {
        let (len, capacity) = (self.packets.len(), self.packets.capacity());
        if capacity > CAPACITY_MIN && len < capacity / 4 {
            self.packets.shrink_to(CAPACITY_MIN.max(2 * len));
        }
    }

    /// All packets are as if they had never gone over the hop.
    pub(super) fn forget_departures(&mut self) {
        for (_, cached) in &mut self.packets {
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
            takes: 0,
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
        // What comes behind its place, and what comes again.
        for (start, end) in [(40, 50), (10, 20), (25, 40), (40, 50)] {
            cache.insert(start, cached(end));
        }
        assert!(cache.covers(25, 50) && !cache.covers(20, 25) && cache.get_mut(30).is_none());
        assert!(cache.get_mut(25).is_some_and(|it| it.end == 40));
        assert_eq!(cache.overlapping(15, 41).count(), 3);
        assert_eq!(cache.bytes(), 3 * (40 + OVERHEAD_BYTES));
        cache.insert(40, cached(50));
        cache.clear();
        assert_eq!(cache.bytes(), 0);
    }
}
