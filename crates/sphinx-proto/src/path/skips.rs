//! Packet numbers that are left out, so that a peer that acknowledges what it cannot have is found out
//! (RFC 9000 §21.4, `docs/protocol.md` §4).

use std::collections::VecDeque;

use crate::PacketNumber;

use super::stock::Stock;

/// At most 2 to this power packets are between the beginning and the first number left out.
const FIRST_REACH: u32 = 7;
/// The power grows by one with every number, up to this.
const REACH_MAX: u32 = 16;
/// Numbers left out that the peer has not been told of. While there are more, none is added.
const SECRET_MAX: usize = 8;
/// No number is to be left out.
const NEVER: PacketNumber = PacketNumber::MAX;

/// The numbers left out in a packet number space.
#[derive(Debug)]
pub(super) struct Skips {
    /// The next one, or [`NEVER`] while it has not been drawn.
    next: PacketNumber,
    reach: u32,
    /// Those that no honest peer acknowledges, rising.
    secret: VecDeque<PacketNumber>,
}

impl Default for Skips {
    fn default() -> Self {
        Self {
            next: NEVER,
            reach: FIRST_REACH,
            secret: VecDeque::new(),
        }
    }
}

impl Skips {
    /// Decides on the next number, if that is possible and has not been done. No packet with number `next_pn` or above
    /// has been sent.
    pub(super) fn draw(&mut self, next_pn: PacketNumber, stock: &mut Stock) {
        if self.next != NEVER || self.secret.len() >= SECRET_MAX {
            return;
        }
        if let Some(random) = stock.take() {
            // The highest bits: 1 to 2^reach packets are sent before.
            let packets = 1 + (u64::from_be_bytes(random) >> (u64::BITS - self.reach));
            self.next = next_pn.saturating_add(packets);
        }
    }

    /// Whether no packet is to have this number; if so, it is left out.
    pub(super) fn leaves_out(&mut self, next_pn: PacketNumber) -> bool {
        if next_pn != self.next {
            return false;
        }
        self.next = NEVER;
        self.reach = (self.reach + 1).min(REACH_MAX);
        self.secret.push_back(next_pn);
        true
    }

    /// Whether `ranges`, largest first, hold a number that has been left out.
    pub(super) fn are_named_in(&self, ranges: &[(PacketNumber, PacketNumber)]) -> bool {
        self.secret.iter().any(|number| {
            let at = ranges.partition_point(|(low, _)| low > number);
            ranges.get(at).is_some_and(|(_, high)| high >= number)
        })
    }

    /// How many numbers have been left out between these two.
    pub(super) fn between(&self, low: PacketNumber, high: PacketNumber) -> u64 {
        self.secret
            .iter()
            .filter(|n| (low..high).contains(*n))
            .count() as u64
    }

    /// A number that is of no more use: every packet below it is forgotten (those below `settled` are), and the peer has
    /// acknowledged a later one without it. From now on the peer may be told.
    pub(super) fn poll_spent(
        &mut self,
        settled: PacketNumber,
        largest_acked: Option<PacketNumber>,
    ) -> Option<PacketNumber> {
        let spent = |n: &mut PacketNumber| {
            *n < settled && largest_acked.is_some_and(|largest| *n < largest)
        };
        self.secret.pop_front_if(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;

    /// Randomness that draws the shortest distance, or the longest.
    fn stock(byte: u8) -> Stock {
        let mut stock = Stock::default();
        while stock.wanted() > 0 {
            stock.add([byte; 8]);
        }
        stock
    }

    /// The numbers that are left out of the first `count`.
    fn left_out(byte: u8, count: u64) -> Vec<u64> {
        let (mut skips, mut all) = (Skips::default(), Vec::new());
        let mut next_pn = PacketNumber::ZERO;
        while next_pn.get() < count {
            skips.draw(next_pn, &mut stock(byte));
            // A packet.
            next_pn += 1;
            if skips.leaves_out(next_pn) {
                all.push(next_pn.get());
                next_pn += 1;
            }
            while skips.poll_spent(next_pn, Some(next_pn)).is_some() {}
        }
        all
    }

    #[test]
    fn distances_are_within_their_bounds_and_the_bounds_grow() {
        assert_eq!(left_out(0, 10), [1, 3, 5, 7, 9]);
        let far = left_out(0xff, 400_000);
        let distances: Vec<u64> = far.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert_eq!(far[0], 1 << 7);
        assert_eq!(distances[..3], [1 << 8, 1 << 9, 1 << 10]);
        assert!(distances[8..].iter().all(|distance| *distance == 1 << 16));
    }

    #[test]
    fn without_randomness_nothing_is_left_out_until_there_is_some() {
        let mut skips = Skips::default();
        skips.draw(pn(0), &mut Stock::default());
        assert!((0..1000).all(|n| !skips.leaves_out(pn(n))));
        skips.draw(pn(1000), &mut stock(0));
        assert!(!skips.leaves_out(pn(1000)) && skips.leaves_out(pn(1001)));
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_costs_bounded_memory() {
        let mut skips = Skips::default();
        for n in 0..1000 {
            skips.draw(pn(n), &mut stock(0));
            skips.leaves_out(pn(n));
        }
        assert_eq!(skips.secret.len(), SECRET_MAX);
    }

    #[test]
    fn named_numbers_are_found_and_spent_ones_forgotten() {
        let mut skips = Skips::default();
        skips.draw(pn(9), &mut stock(0));
        assert!(skips.leaves_out(pn(10)));
        let are_named = |skips: &Skips, ranges: &[(u64, u64)]| {
            let ranges = ranges.iter().map(|(low, high)| (pn(*low), pn(*high)));
            skips.are_named_in(&ranges.collect::<Vec<_>>())
        };
        for (ranges, named) in [
            (&[(11, 20), (0, 9)][..], false),
            (&[(11, 20)], false),
            (&[(0, 9)], false),
            (&[], false),
            (&[(10, 10)], true),
            (&[(30, 40), (8, 20), (0, 1)], true),
            (&[(30, 40), (8, 10)], true),
        ] {
            assert_eq!(are_named(&skips, ranges), named, "{ranges:?}");
        }
        assert_eq!(
            (skips.between(pn(9), pn(11)), skips.between(pn(11), pn(20))),
            (1, 0)
        );
        // Packets before it are not settled, or none behind it has arrived.
        for (settled, acked) in [(10, Some(12)), (13, Some(9)), (13, None)] {
            assert_eq!(skips.poll_spent(pn(settled), acked.map(pn)), None);
        }
        assert_eq!(skips.poll_spent(pn(11), Some(pn(12))), Some(pn(10)));
        assert!(!are_named(&skips, &[(10, 10)]));
    }
}
