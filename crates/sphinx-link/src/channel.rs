//! The channel of a half-duplex radio: who sends next, and when.

use crate::{
    Time,
    config::Radio,
    nanos,
    random::{Draws, Element},
};

/// The first backoff is less than so many slots; each collision doubles that, at most so many times (IEEE 802.11: at most 15 slots, later
/// 1023).
const SLOTS_FIRST: u64 = 16;
const DOUBLINGS_MAX: u32 = 6;
/// After so many collisions in a row the first side sends.
const COLLISIONS_MAX: u32 = 16;

/// The channel that both directions of a link share.
#[derive(Debug)]
pub(crate) struct Channel {
    radio: Radio,
    draws: Draws,
    /// Packets that have been sent.
    sent: u64,
}

/// Which direction may send on the radio, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The direction.
    pub(crate) direction: usize,
    /// The time before the first bit: turnarounds and backoffs of all hops together.
    pub(crate) wait: Time,
    /// How often the packet is sent.
    pub(crate) times: u32,
}

impl Channel {
    pub(crate) fn new(radio: Radio, seed: u64) -> Channel {
        Channel {
            radio,
            draws: Draws::new(seed, Element::Backoff),
            sent: 0,
        }
    }

    pub(crate) fn radio(&self) -> Radio {
        self.radio
    }

    /// The next packet is sent: one of the directions that have some, at least one of them.
    pub(crate) fn turn(&mut self, has: [bool; 2]) -> Turn {
        let draws = self.draws.within(self.sent);
        self.sent += 1;
        let (slot, turnaround) = (nanos(self.radio.slot), nanos(self.radio.turnaround));
        let slots = |index: u64, doublings: u32| {
            let range = SLOTS_FIRST << doublings.min(DOUBLINGS_MAX);
            draws.up_to(index, range - 1)
        };
        let (mut index, mut wait) = (0, 0);
        let mut draw = |doublings| {
            index += 1;
            slots(index, doublings)
        };
        let mut collisions = 0;
        let (direction, backoff) = loop {
            match has {
                [true, false] => break (0, draw(0)),
                [false, _] => break (1, draw(0)),
                [true, true] => {
                    let [left, right] = [draw(collisions), draw(collisions)];
                    if left != right || collisions == COLLISIONS_MAX {
                        break (usize::from(right < left), left.min(right));
                    }
                    // Beside the backoff, the slot in which both sides begin to send is lost.
                    wait += turnaround + (left + 1) * slot;
                    collisions += 1;
                }
            }
        };
        wait += turnaround + backoff * slot;
        for _ in 1..self.radio.hops {
            wait += turnaround + draw(0) * slot;
        }
        Turn {
            direction,
            wait,
            times: self.radio.hops,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn channel(hops: u32) -> Channel {
        let radio = Radio {
            turnaround: Duration::from_millis(1),
            slot: Duration::from_micros(100),
            hops,
        };
        Channel::new(radio, 1)
    }

    #[test]
    fn both_sides_have_as_many_turns() {
        let mut channel = channel(1);
        let turns: Vec<Turn> = (0..10_000).map(|_| channel.turn([true, true])).collect();
        let right = turns.iter().filter(|turn| turn.direction == 1).count();
        assert!((4800..=5200).contains(&right), "{right}");
        // One in sixteen tries is lost, and then the range is larger.
        let mean = turns.iter().map(|turn| turn.wait).sum::<Time>() / 10_000;
        assert!((1_500_000..1_700_000).contains(&mean), "{mean}");
    }

    #[test]
    fn nobody_waits_for_a_side_that_has_nothing() {
        for (has, direction) in [([true, false], 0), ([false, true], 1)] {
            for hops in [1, 3] {
                let mut channel = channel(hops);
                for _ in 0..1000 {
                    let turn = channel.turn(has);
                    assert_eq!((turn.direction, turn.times), (direction, hops));
                    let slots = turn.wait - u64::from(hops) * 1_000_000;
                    assert!(slots.is_multiple_of(100_000));
                    assert!(slots <= u64::from(hops) * 15 * 100_000);
                }
            }
        }
    }
}
