//! What the sessions of an endpoint may hold together.
//!
//! A session's window cannot be taken back once it has been announced, and nobody knows how many sessions there will be. So the
//! n-th one that there is at a time gets at most an n-th of an eighth of the budget: the first ones all that a fast path needs, however many come
//! later, and a thousand of them together not more than the budget. A session that nobody has accepted yet may fill a small part of its window.

use sphinx_proto::STREAMS_MAX;

/// Memory for received blocks, and for blocks being sent, per session.
const WINDOW_MAX: u64 = 24 << 20;
/// Less would let streams hold each other up (`docs/protocol.md` §7).
const WINDOW_MIN: u64 = 384 << 10;
/// The n-th session gets this part of the budget, divided by n …
const WINDOW_PART: u64 = 8;
/// … and of that, before it is accepted, so much: what a client sends in its first round trip …
const CREDIT_PART: u64 = 16;
/// … and at least so many bytes.
const CREDIT_MIN: u64 = 64 << 10;
/// Streams that the peer may have open for each window of this size, …
const STREAM_BYTES: u64 = WINDOW_MAX / STREAMS_MAX;
/// … and at least.
const STREAMS_MIN: u64 = 256;
/// What is kept of an open stream besides its data.
const STREAM_STATE: u64 = 512;
/// So much of a session's part is for what is kept of streams, in fractions of this.
const STATE_PART: u64 = 5;

/// What a session of this end may hold, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bytes.
    pub(crate) bytes: u64,
    /// Bytes received before somebody accepts it.
    pub(crate) credit: u64,
    /// Streams of each kind that the peer may have open.
    pub(crate) streams: u64,
}

impl Window {
    /// What the session may hold, state of streams included, bytes.
    pub(crate) fn cost(self) -> u64 {
        self.bytes + STREAM_STATE * self.streams
    }
}

/// What the sessions of an endpoint may hold together, bytes in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(u64);

impl Budget {
    /// Enough for one session at least.
    pub(crate) fn new(bytes: u64) -> Self {
        Self(bytes.max(WINDOW_MIN + STREAM_STATE * STREAMS_MIN))
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
            let bytes = bytes.max(WINDOW_MIN * 4 / 3);
            assert!(held <= bytes && unaccepted <= bytes / 4, "{unaccepted}");
            assert!(sessions as u64 >= (bytes / WINDOW_MIN / 3).clamp(1, 4096));
        }
        let window = Budget::new(1 << 30).window(0);
        assert_eq!((window.bytes, window.credit), (24 << 20, 8 << 20));
        assert_eq!(window.streams, STREAMS_MAX);
    }

    /// Those that are left when others end had as many before them as they have now, or more.
    #[test]
    fn who_comes_when_others_have_gone_takes_no_more_than_there_is() {
        let budget = Budget::new(1 << 30);
        for gone in [1, 7, 40, 300] {
            let mut windows: Vec<_> = (0..1024).map(|n| budget.window(n).cost()).collect();
            windows.drain(1..=gone);
            windows.extend((1024 - gone..1024).map(|n| budget.window(n).cost()));
            assert!(windows.iter().sum::<u64>() <= 1 << 30);
        }
    }
}
