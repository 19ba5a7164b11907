//! How much of what the peer sends may be here and not taken, and how that grows and shrinks (`docs/protocol.md` §7).
//!
//! The window grows where three things come together: the peer says that it holds it up, an eighth of it was taken within a round trip, and
//! whoever owns the memory grants it. The second is what a peer cannot feign: it is the application here that reads.

use crate::{Nanos, Time, WindowNumber};

const MS: Nanos = 1_000_000;
/// Such a part of a window that is taken within the smallest round trip is the path's pace (one with a queue would make any pace quick enough); a
/// reader who takes longer is slow himself, and would fill any window. It is looked at in halves. Less is taken in a round trip than the path
/// carries, as blocks wait for repair and the rate of a start-up grows meanwhile.
const PART: u64 = 8;
/// Half of a part takes so long at least. A reader who gets no processor for a while finds a full window then, and takes it at the pace of his memory:
/// longer than the eight times a millisecond that this may take where the round trip counts as one, and nothing beside those of paths that need more.
const HALF_MIN: Nanos = 10 * MS;
/// A window that has grown is given back after so long without anything being taken.
const IDLE: Nanos = 10_000 * MS;

/// A point of a measurement: how much the application had read in all at a time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Time,
    released: u64,
}

/// The window for received blocks, and the credit that follows from it.
#[derive(Debug)]
pub(crate) struct RecvWindow {
    /// Its size at the beginning of the session, bytes.
    initial: u64,
    /// Present size of the window, bytes.
    size: u64,
    /// Rises with every change of size.
    number: WindowNumber,
    /// The part of it that the peer may fill: less than all until the application wants what the peer sends.
    granted: u64,
    /// Cost of all blocks of which something has arrived.
    opened: u64,
    /// Cost of what the application has read of them.
    released: u64,
    /// Credit in the last SACK that was sent reliably, with a PING.
    credit_told: u64,
    /// What the peer could fill when it was last told that the window has shrunk, if it may not have heard of it.
    shrinking_from: Option<u64>,
    /// The credit that the peer says it keeps to since the window has shrunk.
    kept: u64,
    /// The present size has held the peer up.
    is_short: bool,
    /// When the last two halves of a part of the window had been read: the one before, and the latest.
    earlier: Option<Mark>,
    latest: Mark,
    /// How long the application took to read the last whole part.
    part_took: Option<Nanos>,
    taken_at: Time,
}

impl RecvWindow {
    /// A window of so many bytes, of which the peer may fill so many for now.
    pub(crate) fn new(size: u64, credit: u64, now: Time) -> Self {
        let granted = size.min(credit);
        Self {
            initial: size,
            size,
            number: WindowNumber::ZERO,
            granted,
            opened: 0,
            released: 0,
            credit_told: granted,
            shrinking_from: None,
            kept: 0,
            is_short: false,
            earlier: None,
            latest: Mark {
                at: now,
                released: 0,
            },
            part_took: None,
            taken_at: now,
        }
    }

    /// Size of the window, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Sum of the costs of all blocks that the peer may ever open, as it is told.
    pub(crate) fn credit(&self) -> u64 {
        self.released + self.granted
    }

    /// That sum as the peer may know it: it may still go by a larger window.
    fn limit(&self) -> u64 {
        let fillable = self.shrinking_from.unwrap_or(self.granted);
        self.kept.max(self.released + fillable)
    }

    /// The most that may be held: more than the window until a peer that goes by a larger one has heard and what it sent is taken.
    pub(crate) fn cost(&self) -> u64 {
        self.size.max(self.limit() - self.released)
    }

    /// What is free of the window.
    pub(crate) fn free(&self) -> u64 {
        self.size.saturating_sub(self.opened - self.released)
    }

    /// Whether the window allows another block of this cost.
    pub(super) fn has_room(&self, cost: u64) -> bool {
        self.opened + cost <= self.limit()
    }

    /// A block has been opened.
    pub(super) fn on_open(&mut self, cost: u64) {
        self.opened += cost;
    }

    /// So much is free again that held nothing for the application.
    pub(super) fn release(&mut self, cost: u64) {
        self.released += cost;
    }

    /// The application has taken so much. Whether the peer must be sure to hear of it, since it may be waiting for credit.
    pub(super) fn on_taken(&mut self, now: Time, cost: u64) -> bool {
        self.released += cost;
        self.taken_at = now;
        let part = (self.size / PART).max(1);
        let (latest, released) = (self.latest, self.released);
        let taken = released - latest.released;
        if taken >= part / 2 && now.saturating_sub(latest.at) >= HALF_MIN {
            let from = if taken >= part {
                Some(latest)
            } else {
                self.earlier
            };
            self.part_took = from.map(|from| {
                let parts = ((released - from.released) / part).max(1);
                now.saturating_sub(from.at) / parts
            });
            (self.earlier, self.latest) = (Some(latest), Mark { at: now, released });
        }
        let untold = self.credit().saturating_sub(self.credit_told);
        let left = self.credit_told.saturating_sub(self.opened);
        // With much of the window held by streams that are not read, the rest matters the more.
        let scarce = left < self.size / 8 && 3 * untold >= left;
        left < self.size / 2 && untold >= self.size / 4 || scarce
    }

    /// What the last SACK told is in a packet that is repeated until it is acknowledged.
    pub(super) fn told_reliably(&mut self) {
        self.credit_told = self.credit();
    }

    /// From now on the peer may fill the whole window. Whether it could not before.
    pub(super) fn open(&mut self) -> bool {
        let before = std::mem::replace(&mut self.granted, self.size);
        before < self.size
    }

    /// Whether the peer may fill the whole window.
    pub(super) fn is_open(&self) -> bool {
        self.granted == self.size
    }

    /// The window with this number has held the peer up.
    pub(super) fn on_held(&mut self, number: WindowNumber) {
        self.is_short |= number == self.number;
    }

    /// The window that the path could use, if it is more than there is.
    pub(crate) fn wanted(&self, rtt: Nanos) -> Option<u64> {
        let pace = |took: Nanos| took <= rtt.max(MS);
        let is_wanted = self.is_short
            && self.shrinking_from.is_none()
            && self.is_open()
            && self.part_took.is_some_and(pace);
        is_wanted.then(|| self.size.saturating_mul(2))
    }

    /// When the window is to be given back if nothing is taken before.
    pub(super) fn idle_at(&self) -> Option<Time> {
        let has_grown = self.size > self.initial && self.shrinking_from.is_none();
        has_grown.then(|| self.taken_at.saturating_add(IDLE))
    }

    /// The size at the beginning.
    pub(crate) fn initial(&self) -> u64 {
        self.initial
    }

    /// The window has another size from now on: the number that the peer is to be told, if it is to be told. It cannot shrink again before the
    /// peer has agreed.
    pub(super) fn resize(&mut self, size: u64) -> Option<WindowNumber> {
        if self.shrinking_from.is_some() || size == self.size {
            return None;
        }
        if size < self.size {
            self.shrinking_from = Some(self.granted);
        }
        self.granted = if self.granted == self.size {
            size
        } else {
            self.granted.min(size)
        };
        self.size = size;
        self.number += 1;
        self.is_short = false;
        self.part_took = None;
        Some(self.number)
    }

    /// The peer has heard that the window has shrunk, and opens nothing beyond this credit until it is told more. `false`: it never had so
    /// much, or has used more.
    pub(super) fn on_shrunk(&mut self, number: WindowNumber, credit: u64) -> bool {
        // Another one says nothing: it has been heard before.
        if self.shrinking_from.is_none() || number != self.number {
            return true;
        }
        // What it says may be late: it goes on with what it has been told since.
        let is_possible = credit <= self.limit() && self.opened <= credit.max(self.credit());
        if is_possible {
            self.kept = credit;
            self.shrinking_from = None;
        }
        is_possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    const RTT: Nanos = 100 * MS;

    fn fill_and_take(window: &mut RecvWindow, now: Nanos, cost: u64) {
        assert!(window.has_room(cost));
        window.on_open(cost);
        window.on_taken(time(now), cost);
    }

    #[test]
    fn it_grows_for_a_path_and_not_for_a_slow_reader() {
        for (took, grows) in [(RTT / 2, true), (RTT, true), (RTT + 2 * MS, false)] {
            for parts in [1, 2] {
                let mut window = RecvWindow::new(1600, u64::MAX, Time::ZERO);
                window.on_held(WindowNumber::ZERO);
                for part in 1..=parts {
                    assert_eq!(window.wanted(took), None, "less than an eighth");
                    fill_and_take(&mut window, part * took / parts, 200 / parts);
                }
                assert_eq!(window.wanted(RTT), grows.then_some(3200));
                // Who goes on so slowly has an eighth of the time for each half of one.
                fill_and_take(&mut window, 3 * took, 100);
                assert_eq!(window.wanted(RTT), None);
            }
        }
    }

    /// A reader who got no processor for a while takes all that waits at once, in a millisecond or two an eighth.
    #[test]
    fn what_is_taken_in_a_burst_is_not_the_pace_of_a_near_path() {
        let mut window = RecvWindow::new(2400, u64::MAX, Time::ZERO);
        window.on_held(WindowNumber::ZERO);
        let mut now = 0;
        for _ in 0..10 {
            now += 30 * MS;
            for _ in 0..8 {
                now += MS;
                fill_and_take(&mut window, now, 300);
                assert_eq!(window.wanted(MS / 10), None);
            }
        }
        // A path that carries an eighth in a millisecond, and goes on with that.
        for _ in 0..30 {
            now += MS;
            fill_and_take(&mut window, now, 300);
        }
        assert_eq!(window.wanted(MS / 10), Some(4800));
    }

    #[test]
    fn it_grows_only_where_it_held_up() {
        let mut window = RecvWindow::new(1000, 600, Time::ZERO);
        fill_and_take(&mut window, RTT, 500);
        assert_eq!(window.wanted(RTT), None);
        window.on_held(WindowNumber::new(1));
        assert_eq!(window.wanted(RTT), None, "there is no such window");
        window.on_held(WindowNumber::ZERO);
        assert_eq!(window.wanted(RTT), None, "not all of it may be used");
        assert!(window.open() && !window.open());
        assert_eq!(window.wanted(RTT), Some(2000));
        assert_eq!(window.resize(2000), Some(WindowNumber::new(1)));
        assert_eq!((window.credit(), window.cost()), (2500, 2000));
        // What held the peer up and what was read says nothing about a window of another size.
        assert_eq!(window.wanted(RTT), None);
        window.on_held(WindowNumber::ZERO);
        fill_and_take(&mut window, 2 * RTT, 1000);
        assert_eq!(window.wanted(RTT), None);
        window.on_held(WindowNumber::new(1));
        assert_eq!(window.wanted(RTT), Some(4000));
    }

    #[test]
    fn what_has_been_promised_is_kept_until_the_peer_lets_go_of_it() {
        let mut window = RecvWindow::new(4000, u64::MAX, Time::ZERO);
        window.on_open(1000);
        assert_eq!(window.resize(2000), Some(WindowNumber::new(1)));
        assert_eq!(window.resize(8000), None, "the peer has not answered");
        assert_eq!((window.credit(), window.cost()), (2000, 4000));
        assert!(window.has_room(3000) && !window.has_room(3001));
        window.on_open(500);
        assert!(
            window.on_shrunk(WindowNumber::ZERO, 1),
            "an answer to another one"
        );
        window.on_open(1000);
        assert!(
            !window.on_shrunk(WindowNumber::new(1), 2499)
                && !window.on_shrunk(WindowNumber::new(1), 4001)
        );
        assert!(window.on_shrunk(WindowNumber::new(1), 3500));
        assert_eq!(window.cost(), 3500);
        assert!(
            window.on_shrunk(WindowNumber::new(1), 2499),
            "it comes again, later"
        );
        window.on_taken(time(RTT), 2500);
        assert_eq!((window.credit(), window.cost()), (4500, 2000));
        assert!(window.has_room(2000) && !window.has_room(2001));
        assert_eq!(window.resize(8000), Some(WindowNumber::new(2)));
        assert_eq!(window.credit(), 10_500);
    }

    /// More has been told, and used, before the answer comes.
    #[test]
    fn the_answer_may_be_late() {
        let mut window = RecvWindow::new(4000, u64::MAX, Time::ZERO);
        window.on_open(1000);
        window.resize(2000);
        window.on_taken(time(RTT), 1000);
        window.on_open(1500);
        assert!(window.on_shrunk(WindowNumber::new(1), 2000));
        assert_eq!((window.credit(), window.cost()), (3000, 2000));
    }

    #[test]
    fn one_that_nobody_reads_any_more_is_given_back() {
        let mut window = RecvWindow::new(1000, u64::MAX, Time::ZERO);
        assert_eq!(window.idle_at(), None);
        window.resize(4000);
        fill_and_take(&mut window, 5 * RTT, 100);
        assert_eq!(window.idle_at(), Some(time(5 * RTT + IDLE)));
        window.resize(window.initial());
        assert_eq!(window.idle_at(), None);
    }
}
