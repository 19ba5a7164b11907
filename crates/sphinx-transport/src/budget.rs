//! What the sessions of an endpoint may hold together.
//!
//! Nobody knows how many sessions there will be, and a window shrinks only when the peer agrees. So
//! the n-th session at a time begins with at most 1/n of an eighth of the budget: nine hundred
//! sessions together begin with no more than the budget. A session that nobody has accepted yet may
//! fill a small part of its window. A window that limits how fast data is read grows, up to a fair
//! share of three quarters of the budget. The rest is for sessions that come while the others
//! shrink.

use sphinx_proto::STREAMS_MAX;

/// Memory for received blocks of a session at its beginning.
const WINDOW_MAX: u64 = 24 << 20;
/// All windows together may grow to this fraction of the budget. A window grows by at least itself
/// divided by `GROWTH_MIN`: less is not worth telling the peer.
const GROWTH_PARTS: (u64, u64) = (3, 4);
const GROWTH_MIN: u64 = 8;
/// What an endpoint may hold in each direction if no option says so: so many bytes, …
const DEFAULT_MAX: u64 = 256 << 20;
/// … and at most the machine's memory divided by this.
const DEFAULT_PART: u64 = 8;
/// Smallest window: with less, streams could block each other (`docs/protocol.md` §7).
const WINDOW_MIN: u64 = 384 << 10;
/// The n-th session gets the budget divided by this and by n …
const WINDOW_PART: u64 = 8;
/// … and before it is accepted may use that divided by this, which is what a client sends in its
/// first round trip …
const CREDIT_PART: u64 = 16;
/// … and at least so many bytes.
const CREDIT_MIN: u64 = 64 << 10;
/// The peer may have one stream of each kind open for so many bytes of the window, …
const STREAM_BYTES: u64 = WINDOW_MAX / STREAMS_MAX;
/// … and at least so many streams.
const STREAMS_MIN: u64 = 256;
/// State of an open stream besides its data, bytes.
const STREAM_STATE: u64 = 512;
/// Bytes of datagrams that have arrived and were not taken: the window divided by this, and at
/// least one of the longest, …
const DATAGRAM_PART: u64 = 16;
const DATAGRAM_MIN: u64 = 96 << 10;
/// … and with the largest first window, which only the first sessions have, so many bytes: what
/// arrives at 200 Mbit/s while an ordered flow waits for an answer to a loss over a round trip of
/// 100 ms.
const DATAGRAM_MAX: u64 = 5 << 20;
/// Of a session's share of the budget, the share divided by this is for state of streams and for
/// datagrams.
const STATE_PART: u64 = 4;

/// What a session of this end may hold, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Size of the window, bytes.
    pub(crate) bytes: u64,
    /// Bytes that the peer may send before the application accepts the session.
    pub(crate) credit: u64,
    /// Streams of each kind that the peer may have open.
    pub(crate) streams: u64,
}

impl Window {
    /// What the session may hold at most, with the state of streams and datagrams, bytes.
    pub(crate) fn cost(self) -> u64 {
        self.bytes + STREAM_STATE * self.streams + self.datagrams()
    }

    /// What datagrams that have arrived and were not taken may hold besides, bytes.
    pub(crate) fn datagrams(self) -> u64 {
        match self.bytes < WINDOW_MAX {
            true => (self.bytes / DATAGRAM_PART).max(DATAGRAM_MIN),
            false => DATAGRAM_MAX,
        }
    }
}

/// Whether a window that is too small may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// It grows to so many bytes.
    To(u64),
    /// The window may not grow.
    None,
    /// It may grow as soon as other sessions hold less.
    OthersHaveIt,
}

/// What an endpoint may hold in each direction if no option says so, bytes: 256 MiB, and at most an
/// eighth of the machine's memory.
pub(crate) fn default_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    DEFAULT_MAX.min(total / DEFAULT_PART)
}

/// What the sessions of an endpoint may hold together, bytes in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(u64);

impl Budget {
    /// A budget of so many bytes, but enough for one session at least.
    pub(crate) fn new(bytes: u64) -> Self {
        Self(bytes.max(WINDOW_MIN + STREAM_STATE * STREAMS_MIN + DATAGRAM_MIN))
    }

    /// The window of one more session where there are `others`.
    pub(crate) fn window(self, others: usize) -> Window {
        let part = self.0 / WINDOW_PART / (others as u64 + 1);
        let bytes = (part - part / STATE_PART).clamp(WINDOW_MIN, WINDOW_MAX);
        let credit = (part / CREDIT_PART).clamp(CREDIT_MIN, bytes);
        let streams = (bytes / STREAM_BYTES).clamp(STREAMS_MIN, STREAMS_MAX);
        Window {
            bytes,
            credit,
            streams,
        }
    }

    /// To how many bytes the window of each of so many sessions may grow.
    pub(crate) fn fair_share(self, sessions: usize) -> u64 {
        self.growth() / (sessions as u64).max(1)
    }

    /// To how many bytes all windows together may grow.
    fn growth(self) -> u64 {
        let (part, parts) = GROWTH_PARTS;
        self.0 / parts * part
    }

    /// Whether one of so many sessions, whose window has `window` bytes, may have a larger one, if
    /// it could use `wanted` bytes and all sessions hold `held` together.
    pub(crate) fn grow(self, window: u64, wanted: u64, sessions: usize, held: u64) -> Growth {
        let fair = wanted.min(self.fair_share(sessions));
        let least = window + window / GROWTH_MIN;
        let size = fair.min(window + self.growth().saturating_sub(held));
        if size >= least {
            Growth::To(size)
        } else if fair >= least {
            Growth::OthersHaveIt
        } else {
            Growth::None
        }
    }

    /// What one of so many sessions may have on its way, bytes.
    pub(crate) fn send_window(self, sessions: usize) -> u64 {
        (self.0 / (sessions as u64).max(1)).max(WINDOW_MIN)
    }

    /// Whether a session may have this window where others have `held` together.
    pub(crate) fn allows(self, window: Window, held: u64) -> bool {
        window.cost() <= self.0.saturating_sub(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGETS: [u64; 5] = [WINDOW_MIN, 20 << 20, 64 << 20, 1 << 30, 64 << 30];

    #[test]
    fn the_first_sessions_have_what_a_fast_path_needs_and_all_keep_within_the_budget() {
        for bytes in BUDGETS {
            let budget = Budget::new(bytes);
            let (mut held, mut unaccepted, mut sessions) = (0, 0, 0);
            while sessions < 4096 {
                let window = budget.window(sessions);
                if !budget.allows(window, held) {
                    break;
                }
                held += window.cost();
                unaccepted += window.credit;
                sessions += 1;
            }
            let bytes = bytes.max(WINDOW_MIN * 8 / 5);
            assert!(held <= bytes && unaccepted <= bytes / 4, "{unaccepted}");
            let least = bytes / WINDOW_MIN * 10 / 31;
            assert!(sessions as u64 >= least.clamp(1, 4096), "{sessions}");
        }
        let window = Budget::new(1 << 30).window(0);
        assert_eq!((window.bytes, window.credit), (24 << 20, 8 << 20));
        assert_eq!(window.streams, STREAMS_MAX);
    }

    #[test]
    fn windows_grow_to_fair_shares_and_leave_room() {
        let budget = Budget::new(256 << 20);
        let first = budget.window(0).bytes;
        let grown = budget.grow(first, 2 * first, 1, first);
        assert_eq!(grown, Growth::To(48 << 20));
        let (mut window, mut held) = (48 << 20, 48 << 20);
        while let Growth::To(size) = budget.grow(window, 2 * window, 1, held) {
            held += size - window;
            window = size;
        }
        assert_eq!(window, 192 << 20);
        // Another one comes: it may have as much, once the first one has given it back.
        let second = budget.window(1);
        assert!(budget.allows(second, held));
        let held = held + second.cost();
        let grown = budget.grow(second.bytes, 2 * second.bytes, 2, held);
        assert_eq!(grown, Growth::OthersHaveIt);
        assert_eq!(budget.fair_share(2), 96 << 20);
        let grown = budget.grow(second.bytes, 1 << 30, 2, (96 << 20) + second.cost());
        assert!(matches!(grown, Growth::To(size) if size > 80 << 20));
        assert_eq!(budget.grow(96 << 20, 1 << 30, 2, 0), Growth::None);
        // An endpoint that was given little stays with what there is.
        let small = Budget::new(4 << 20);
        assert_eq!(small.grow(WINDOW_MIN, 1 << 30, 1024, 4 << 20), Growth::None);
    }

    /// Those that are left when others end had as many before them as they have now, or more.
    #[test]
    fn who_comes_when_others_have_gone_takes_no_more_than_there_is() {
        let budget = Budget::new(1 << 30);
        for gone in [1, 7, 40, 300] {
            let mut windows: Vec<_> = (0..900).map(|n| budget.window(n).cost()).collect();
            windows.drain(1..=gone);
            windows.extend((900 - gone..900).map(|n| budget.window(n).cost()));
            assert!(windows.iter().sum::<u64>() <= 1 << 30);
        }
    }
}
