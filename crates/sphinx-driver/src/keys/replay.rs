//! The replay window of one path (`docs/protocol.md` §4).

use sphinx_proto::PacketNumber;

/// Packet numbers that the window spans.
const REPLAY_WINDOW: u64 = 1 << 16;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;

/// What the window knows about a packet number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Not seen.
    New,
    /// Seen before.
    Replay,
    /// So far below the largest that the window no longer knows.
    Late,
}

/// Remembers which of the last 2^16 packet numbers have been opened: a bitmap used as a ring.
#[derive(Default)]
pub struct ReplayWindow {
    /// One above the largest number committed.
    next: PacketNumber,
    /// As far as any bit was ever set, at most [`WORDS`]: servers have many sessions that see a few packets.
    bits: Vec<u64>,
}

impl ReplayWindow {
    /// One above the largest number committed: what packet numbers are expanded against.
    #[inline]
    pub fn expected(&self) -> PacketNumber {
        self.next
    }

    /// Whether `packet_number` may be opened; changes nothing.
    #[inline]
    pub fn check(&self, packet_number: PacketNumber) -> Arrival {
        if packet_number >= self.next {
            Arrival::New
        } else if self.next - packet_number > REPLAY_WINDOW {
            Arrival::Late
        } else if self.is_set(packet_number.get()) {
            Arrival::Replay
        } else {
            Arrival::New
        }
    }

    /// Remembers `packet_number`; to be called only after the packet has opened. Numbers below the
    /// window and [`PacketNumber::MAX`] are ignored.
    #[inline]
    pub fn commit(&mut self, packet_number: PacketNumber) {
        if packet_number >= self.next {
            if packet_number == PacketNumber::MAX {
                return;
            }
            let next = packet_number.get() + 1;
            // Its own bit is set below.
            if packet_number > self.next {
                let from = next.saturating_sub(REPLAY_WINDOW);
                self.clear(self.next.get().max(from), next);
            }
            self.next = PacketNumber::new(next);
        } else if self.next - packet_number > REPLAY_WINDOW {
            return;
        }
        let word = word(packet_number.get());
        if word >= self.bits.len() {
            self.bits.resize((word + 1).next_power_of_two(), 0);
        }
        self.bits[word] |= bit(packet_number.get());
    }

    fn is_set(&self, number: u64) -> bool {
        let bits = self.bits.get(word(number)).copied().unwrap_or(0);
        bits & bit(number) != 0
    }

    /// Forgets `from..to`, whole words at a time.
    fn clear(&mut self, from: u64, to: u64) {
        let mut number = from;
        while number < to {
            let is_whole = number.is_multiple_of(64) && to - number >= 64;
            let (bits, numbers) = if is_whole {
                (u64::MAX, 64)
            } else {
                (bit(number), 1)
            };
            if let Some(word) = self.bits.get_mut(word(number)) {
                *word &= !bits;
            }
            number += numbers;
        }
    }
}

fn word(number: u64) -> usize {
    (number / 64) as usize % WORDS
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The definition, with unlimited memory.
    #[derive(Default)]
    struct Naive(BTreeSet<u64>);

    impl Naive {
        fn check(&self, n: u64) -> Arrival {
            let late = self.0.last().is_some_and(|last| n + REPLAY_WINDOW <= *last);
            match (late, self.0.contains(&n)) {
                (true, _) => Arrival::Late,
                (false, true) => Arrival::Replay,
                (false, false) => Arrival::New,
            }
        }
    }

    #[test]
    fn edges() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.check(PacketNumber::new(0)), Arrival::New);
        window.commit(PacketNumber::new(0));
        assert_eq!(window.check(PacketNumber::new(0)), Arrival::Replay);
        window.commit(PacketNumber::new(REPLAY_WINDOW - 1));
        assert_eq!(window.check(PacketNumber::new(0)), Arrival::Replay);
        window.commit(PacketNumber::new(REPLAY_WINDOW));
        assert_eq!(window.check(PacketNumber::new(0)), Arrival::Late);
        assert_eq!(window.check(PacketNumber::new(1)), Arrival::New);
        window.commit(PacketNumber::new(1 << 40));
        assert_eq!(window.check(PacketNumber::new((1 << 40) - 1)), Arrival::New);
        assert_eq!(
            window.check(PacketNumber::new(REPLAY_WINDOW)),
            Arrival::Late
        );
        window.commit(PacketNumber::new(u64::MAX));
        assert_eq!(window.expected(), PacketNumber::new((1 << 40) + 1));
    }

    proptest! {
        /// Steps jump around the window's edges, both ways and by multiples of a word.
        #[test]
        fn agrees_with_a_set(
            steps in prop::collection::vec(
                prop_oneof![
                    4 => -200i64..200,
                    1 => (-1100i64..1100).prop_map(|n| n * 64),
                    1 => -70_000i64..70_000,
                ],
                1..400,
            ),
        ) {
            let (mut window, mut naive) = (ReplayWindow::default(), Naive::default());
            let mut number = 100_000u64;
            for step in steps {
                number = number.saturating_add_signed(step);
                let arrival = window.check(PacketNumber::new(number));
                prop_assert_eq!(arrival, naive.check(number));
                if arrival == Arrival::New {
                    window.commit(PacketNumber::new(number));
                    naive.0.insert(number);
                    prop_assert_eq!(window.check(PacketNumber::new(number)), Arrival::Replay);
                }
            }
        }
    }
}
