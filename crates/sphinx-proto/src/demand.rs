//! What the application wants to send and cannot: whether it waits for the peer's application, and for how long.

use crate::types::StreamId;
use crate::{Nanos, Time};

const MS: Nanos = 1_000_000;
/// A session of which nothing is confirmed, although nothing waits for being read, counts as stalled after so many
/// idle timeouts: repairs back off, and those of `--icm paper` and `off` come seldom.
const STALL_UNREPAIRED: Nanos = 4;
/// How long a stream is held up before the peer is asked for news, at least, and the longest time between such
/// questions.
const ASK_WAIT_MIN: Nanos = 20 * MS;
const ASK_WAIT_MAX: Nanos = 500 * MS;

/// Data that waits.
#[derive(Debug)]
pub(crate) struct Demand {
    /// Data waits outside for window or credit.
    backlog: bool,
    /// A stream of which data waits for the peer's application to read, when to ask next whether it has, and
    /// after what time again.
    held_up: Option<StreamId>,
    ask_at: Option<Time>,
    ask_wait: Nanos,
    /// When something to be sent was last confirmed or read at the other end, or began to wait; and whether it
    /// begins now.
    progress_at: Time,
    begins: bool,
    /// When a SACK last came.
    answered_at: Time,
}

impl Demand {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            backlog: false,
            held_up: None,
            ask_at: None,
            ask_wait: 0,
            progress_at: now,
            begins: false,
            answered_at: now,
        }
    }

    /// Whether data waits outside.
    pub(crate) fn backlog(&self) -> bool {
        self.backlog
    }

    /// The stream that waits for the peer's application, if one does.
    pub(crate) fn held_up(&self) -> Option<StreamId> {
        self.held_up
    }

    /// Data is handed over; `has_data`: there was some before.
    pub(crate) fn begins(&mut self, has_data: bool) {
        self.begins |= !has_data;
    }

    /// Whether more waits outside, and a stream of it that is held up.
    pub(crate) fn set(&mut self, backlog: bool, held_up: Option<StreamId>, has_data: bool) {
        self.begins |= backlog && !has_data;
        self.backlog = backlog;
        self.held_up = held_up;
        if held_up.is_none() {
            (self.ask_at, self.ask_wait) = (None, 0);
        }
    }

    /// Before anything is sent: whether something begins to wait now.
    pub(crate) fn note(&mut self, now: Time, pto: Nanos) {
        if std::mem::take(&mut self.begins) {
            self.progress_at = now;
        }
        if self.held_up.is_some() && self.ask_at.is_none() {
            self.ask_later(now, pto);
        }
    }

    /// When to ask the peer what has been read.
    pub(crate) fn ask_at(&self) -> Option<Time> {
        self.ask_at
    }

    /// The news that a stream has been read may be lost: ask for it, ever more seldom.
    pub(crate) fn ask_later(&mut self, now: Time, pto: Nanos) {
        let first = pto.max(ASK_WAIT_MIN);
        self.ask_wait = (2 * self.ask_wait).clamp(first, ASK_WAIT_MAX.max(first));
        self.ask_at = Some(now + self.ask_wait);
    }

    /// Something was confirmed or read.
    pub(crate) fn on_progress(&mut self, now: Time) {
        self.progress_at = now;
    }

    /// A SACK has come: what it does not tell has not happened.
    pub(crate) fn on_sack(&mut self, now: Time, keep_alive: Nanos) {
        let silent = now.saturating_sub(self.answered_at);
        if silent > keep_alive {
            self.progress_at += silent;
        }
        self.answered_at = now;
    }

    /// When a session with data to send counts as stalled. Time in which no feedback comes does not count:
    /// that is the path, or a lost peer.
    pub(crate) fn stall_timeout(
        &self,
        (idle_timeout, keep_alive): (Nanos, Nanos),
        has_data: bool,
    ) -> Option<Time> {
        // A path on which repairs are as seldom as that is slow; a reader who takes nothing has stopped.
        let times = if self.held_up.is_some() {
            1
        } else {
            STALL_UNREPAIRED
        };
        let at = self
            .progress_at
            .saturating_add(times.saturating_mul(idle_timeout));
        let answered = at <= self.answered_at + 2 * keep_alive;
        (has_data && answered && !self.begins).then_some(at)
    }
}
