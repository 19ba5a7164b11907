//! How the streams share the peer's window (`docs/protocol.md` §7).
//!
//! A part of the window belongs to every stream that is open or may soon be, alone. The rest is common, and of that a
//! stream takes at most [`COMMON_SHARE`] times what it leaves: the more streams hold something, the less, until something of it is known
//! to have been read. So a stream that the peer's application reads can always go on, however much of the window others
//! fill that are not read.

use crate::types::STREAMS_MAX;

/// Of the common part, a stream may hold so many times as much as is left: one stream alone all but a ninth.
const COMMON_SHARE: u64 = 8;
/// With so many holders or more, one that nobody has read from yet gets a ninth of what is left.
const HOLDERS_MAX: u64 = COMMON_SHARE * COMMON_SHARE;
/// Where several streams hold something, this part of what is common is left for those that are read; these may also take this part of
/// what belongs to streams that hold nothing, for they give it back soon.
const READ_PART: u64 = 4;
/// A stream that is read may hold so many times what is known to have been read of it: twice a round trip doubles it.
const EARNED: u64 = 2;
/// Streams that have parts of their own from the start, where these are this part of the window at most; of a smaller one fewer have, as not
/// more of it is to lie idle for streams that may never be opened.
const STREAMS_MIN: u64 = 320;
const STREAMS_LEAST: u64 = 4;
const LEAST_PART: u64 = 24;
/// Streams that have parts of their own for each that is open, so that there is room for more when the others have filled the window.
const STREAMS_AHEAD: u64 = 4;
/// All parts that belong to streams alone, where there are so many: this part of the window …
const OWN_PART: u64 = 8;
/// … and each enough for the smallest block that is made ([`Room::Part`](crate::Room::Part)), if that leaves half of the window.
const OWN_BYTES_MIN: u64 = 576;

/// How many streams have a part of their own where so many are open: not more than can have a block each in half of the window.
fn provided(open: u64, window: u64) -> u64 {
    let least = window / (LEAST_PART * OWN_BYTES_MIN);
    let least = least.clamp(STREAMS_LEAST, STREAMS_MIN);
    let wanted = (open * STREAMS_AHEAD).div_ceil(least);
    let most = STREAMS_MAX.min(window / (2 * OWN_BYTES_MIN)).max(least);
    (least * wanted.next_power_of_two()).min(most)
}

/// The window as its sender divides it; all costs as [`block_cost`](crate::block_cost) counts them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    window: u64,
    /// Streams that have a part of the window of their own.
    provided: u64,
    /// Streams that hold something.
    holders: u64,
    /// One stream is open at most, and there have been no datagrams.
    is_one: bool,
    /// The part of the window that each of the `provided` streams has for itself.
    own: u64,
    /// The rest of the window.
    common: u64,
    /// What streams and datagrams hold of the whole window.
    held: u64,
    /// What streams and datagrams hold of the common part.
    used: u64,
    /// What datagrams hold, all of it of the common part.
    datagrams: u64,
    /// There have been datagrams in this session.
    has_had_datagrams: bool,
}

impl Shares {
    /// The shares of a window of `window` bytes of which nothing is held.
    pub(crate) fn new(window: u64) -> Self {
        let mut shares = Self {
            window,
            provided: 0,
            holders: 0,
            is_one: true,
            own: 0,
            common: 0,
            held: 0,
            used: 0,
            datagrams: 0,
            has_had_datagrams: false,
        };
        shares.divide(provided(0, window), std::iter::empty());
        shares
    }

    /// `open` streams are open, and `held` gives what each of them holds. Divides the window anew if their number has changed much.
    pub(crate) fn set_open(&mut self, open: u64, held: impl Iterator<Item = u64>) {
        self.is_one = open <= 1 && !self.has_had_datagrams;
        let wanted = provided(open, self.window);
        // Dividing costs a walk over all streams: streams that come and go must not cause it again and again.
        if wanted > self.provided || wanted < self.provided / 2 {
            self.divide(wanted, held);
        }
    }

    /// The window has a new size, bytes; `open` streams are open, and `held` gives what each of them holds.
    pub(crate) fn set_window(&mut self, window: u64, open: u64, held: impl Iterator<Item = u64>) {
        self.window = window;
        self.divide(provided(open, window), held);
    }

    fn divide(&mut self, provided: u64, held: impl Iterator<Item = u64>) {
        let half = self.window / (2 * provided);
        self.provided = provided;
        let part = self.window / (OWN_PART * provided.max(STREAMS_MIN));
        self.own = part.max(OWN_BYTES_MIN.min(half));
        self.common = self.window - provided * self.own;
        (self.holders, self.held, self.used) = (0, self.datagrams, self.datagrams);
        for held in held {
            self.changed(0, held);
        }
    }

    /// What one stream holds has changed from `before` to `after`.
    pub(crate) fn changed(&mut self, before: u64, after: u64) {
        self.holders -= u64::from(before > 0);
        self.holders += u64::from(after > 0);
        self.held = self.held - before + after;
        self.used -= before.saturating_sub(self.own);
        self.used += after.saturating_sub(self.own);
    }

    /// What datagrams held is `before`, and is `after` from now on. They belong to no stream, and have only what is common.
    pub(crate) fn datagrams_changed(&mut self, before: u64, after: u64) {
        self.has_had_datagrams = true;
        self.is_one = false;
        for sum in [&mut self.datagrams, &mut self.held, &mut self.used] {
            *sum = *sum - before + after;
        }
    }

    /// Whether a block of datagrams of this cost may have a part of the window: the only one in any case.
    pub(crate) fn have_room_for_datagrams(&self, cost: u64) -> bool {
        self.datagrams == 0 || cost <= self.common_left()
    }

    /// Whether there is one stream at most, to which is lent what it leaves to others.
    pub(crate) fn is_one(&self) -> bool {
        self.is_one && self.holders <= 1
    }

    /// Streams that hold something.
    pub(crate) fn holders(&self) -> u64 {
        self.holders
    }

    /// What is left of the common part.
    pub(crate) fn common_left(&self) -> u64 {
        self.common.saturating_sub(self.used)
    }

    /// Largest cost of a further block of a stream that holds `held`, and of which `taken` is known to have been taken so far.
    pub(crate) fn most(&self, held: u64, taken: u64) -> u64 {
        let own_left = self.own.saturating_sub(held);
        let beyond = held.saturating_sub(self.own);
        let free = self.common_left().saturating_add(beyond);
        let holders = (self.holders + u64::from(held == 0)).clamp(1, HOLDERS_MAX);
        let for_read = if holders > 1 {
            self.common / READ_PART
        } else {
            0
        };
        let unread = share(free.saturating_sub(for_read), COMMON_SHARE + holders);
        let idle = self.window.saturating_sub(self.held) / READ_PART;
        // What one leaves to others is lent to it while there are none and it is read.
        let parts = match self.is_one && holders == 1 {
            true => COMMON_SHARE,
            false => COMMON_SHARE + 1,
        };
        let free = free.max(idle.saturating_add(beyond));
        let read = share(free, parts).min(EARNED.saturating_mul(taken));
        let most = own_left + unread.max(read).saturating_sub(beyond);
        // More may be held than a window that has shrunk has room for.
        most.min(self.window.saturating_sub(self.held))
    }
}

/// About what a sender lets a stream hold, as the receiver sees it: `free` of the window, so many open streams, and `taken` of this one
/// of which the sender knows.
pub(crate) fn likely_share(window: u64, free: u64, open: u64, taken: u64) -> u64 {
    let for_read = if open > 1 { window / READ_PART } else { 0 };
    let open = open.clamp(1, HOLDERS_MAX);
    let unread = share(free.saturating_sub(for_read), COMMON_SHARE + open);
    unread.max(share(free, COMMON_SHARE + 1).min(EARNED.saturating_mul(taken)))
}

/// [`COMMON_SHARE`] of `parts` parts of `free`.
fn share(free: u64, parts: u64) -> u64 {
    (u128::from(free) * u128::from(COMMON_SHARE) / u128::from(parts)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Streams that hold something, each with what has been taken of it.
    struct Holding {
        shares: Shares,
        streams: Vec<(u64, u64)>,
    }

    impl Holding {
        fn of(window: u64, open: usize) -> Self {
            let mut shares = Shares::new(window);
            shares.set_open(open as u64, std::iter::empty());
            Self {
                shares,
                streams: vec![(0, 0); open],
            }
        }

        fn most(&self, stream: usize) -> u64 {
            let (held, taken) = self.streams[stream];
            self.shares.most(held, taken)
        }

        fn hold(&mut self, stream: usize, cost: u64) {
            let held = &mut self.streams[stream].0;
            self.shares.changed(*held, *held + cost);
            *held += cost;
        }

        fn take(&mut self, stream: usize, cost: u64) {
            let (held, taken) = &mut self.streams[stream];
            self.shares.changed(*held, *held - cost);
            *held -= cost;
            *taken += cost;
        }

        fn held(&self) -> u64 {
            self.streams.iter().map(|(held, _)| held).sum()
        }
    }

    proptest! {
        /// Whatever the others hold, a stream of which nothing is held can open a block, and all together
        /// keep within the window.
        #[test]
        fn every_stream_can_go_on(
            window in 370_000..100_000_000u64,
            open in 1..=STREAMS_MIN as usize,
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0..2_000_000u64), 1..400),
        ) {
            let mut all = Holding::of(window, open);
            for (stream, reads, cost) in steps {
                let stream = stream.index(open);
                match reads {
                    true => all.take(stream, all.streams[stream].0 / 2),
                    false => all.hold(stream, cost.min(all.most(stream))),
                }
                prop_assert!(all.held() <= window);
            }
            for stream in 0..open {
                if all.streams[stream].0 == 0 {
                    prop_assert!(all.most(stream) >= OWN_BYTES_MIN);
                    all.hold(stream, OWN_BYTES_MIN);
                }
            }
            prop_assert!(all.held() <= window);
        }
    }

    #[test]
    fn one_stream_alone_has_most_of_the_window() {
        for window in [700, 1 << 16, 4 << 20, 24 << 20, u64::MAX >> 2] {
            let most = Shares::new(window).most(0, 0);
            let part = most as f64 / window as f64;
            let least = if window < 4 << 20 { 0.4 } else { 0.75 };
            assert!((least..0.9).contains(&part), "{part} of {window}");
        }
    }

    /// While it is read; and the others have what is theirs.
    #[test]
    fn one_stream_that_is_read_has_all_but_what_belongs_to_others() {
        for window in [1 << 18, 1 << 19, 4 << 20, 24 << 20] {
            let mut all = Holding::of(window, 1);
            let unread = all.most(0);
            all.hold(0, unread);
            all.take(0, unread);
            let most = all.most(0);
            let part = most as f64 / window as f64;
            assert!(most > unread && part > 0.87, "{part} of {window}");
            assert!(window > 1 << 19 || part > 0.95, "{part} of {window}");
            all.hold(0, most);
            assert!(all.shares.most(0, 0) >= OWN_BYTES_MIN);
            // From the second stream on, it has to leave something again.
            all.shares.set_open(2, [most, 0].into_iter());
            all.take(0, most / 16);
            assert_eq!(all.most(0), 0);
            let mut all = Holding::of(window, 1);
            all.shares.datagrams_changed(0, 0);
            all.take(0, 0);
            assert_eq!(all.shares.most(0, window), unread);
        }
    }

    /// 255 streams fill the window and are not read. Another one, that is, soon has a good part of it.
    #[test]
    fn a_stream_that_is_read_earns_its_share() {
        let window = 1 << 20;
        let mut all = Holding::of(window, 256);
        for _ in 0..100 {
            for stream in 0..255 {
                all.hold(stream, all.most(stream).min(3000));
            }
        }
        assert!(all.held() > window / 2);
        let mut rounds = 0;
        while all.most(255) < window / 16 {
            let cost = all.most(255);
            all.hold(255, cost);
            all.take(255, cost);
            rounds += 1;
            assert!(rounds <= 6, "{rounds}");
        }
    }

    /// Where ten thousand streams are open, each has room for a block, and one of them for much of the window.
    #[test]
    fn ten_thousand_streams_do_not_take_all_from_one() {
        let all = Holding::of(24 << 20, 10_000);
        assert!(all.shares.own >= OWN_BYTES_MIN);
        assert!(all.most(0) > 10 << 20);
    }
}
