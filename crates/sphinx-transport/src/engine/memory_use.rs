//! What the sessions of an engine hold of its budget.

use sphinx_proto::{Nanos, Time};

use crate::association::Unclaimed;
use crate::budget::{Budget, Growth, Window};

/// Time between requests to shrink windows.
const SHARE_INTERVAL: Nanos = 10_000_000;

/// What the sessions of an engine hold of its budget for received data.
pub(super) struct MemoryUse {
    budget: Budget,
    /// Sum of what all sessions may hold, bytes.
    windows: u64,
    /// Data of sessions that ended before the application accepted them: it counts as well.
    unclaimed: Vec<Unclaimed>,
    /// A window could not grow because other sessions hold the memory.
    is_scarce: bool,
    /// When sessions were last asked to shrink their windows for that.
    shared_at: Time,
}

impl MemoryUse {
    /// Of an engine without sessions.
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            windows: 0,
            unclaimed: Vec::new(),
            is_scarce: false,
            shared_at: Time::ZERO,
        }
    }

    /// Bytes that sessions may hold, and those that ended before the application accepted them still do.
    fn held(&self) -> u64 {
        let unclaimed = self.unclaimed.iter().map(|its| its.bytes);
        self.windows + unclaimed.sum::<u64>()
    }

    /// Whether the budget has room for another session with this window.
    pub(super) fn allows(&mut self, window: Window) -> bool {
        self.unclaimed.retain(Unclaimed::waits);
        self.budget.allows(window, self.held())
    }

    /// What one of so many sessions may have on its way, bytes.
    pub(super) fn send_window(&self, sessions: usize) -> u64 {
        self.budget.send_window(sessions)
    }

    /// A session begins that may hold so many bytes.
    pub(super) fn add(&mut self, cost: u64) {
        self.windows += cost;
    }

    /// A session that was allowed to hold `cost` bytes may hold `new_cost` from now on.
    pub(super) fn change(&mut self, cost: u64, new_cost: u64) {
        self.windows = self.windows - cost + new_cost;
    }

    /// A session is over that was allowed to hold `cost` bytes; what it leaves to an application that may still accept it counts.
    pub(super) fn remove(&mut self, cost: u64, left: Option<Unclaimed>) {
        self.windows -= cost;
        self.unclaimed.extend(left);
    }

    /// The size to which one of so many sessions may have its window grow that could use `wanted` bytes, if it may.
    pub(super) fn grow(&mut self, window: u64, wanted: u64, sessions: usize) -> Option<u64> {
        let held = self.held();
        match self.budget.grow(window, wanted, sessions, held) {
            Growth::To(size) => Some(size),
            Growth::OthersHaveIt => {
                self.is_scarce = true;
                None
            }
            Growth::None => None,
        }
    }

    /// Whether a window could not grow since the last call because others hold the memory, and it is time to ask them for it.
    pub(super) fn take_scarce(&mut self, now: Time) -> bool {
        std::mem::take(&mut self.is_scarce) && now >= self.shared_at + SHARE_INTERVAL
    }

    /// The memory is shared anew among so many sessions: what each may hold of received data and what it may have on its way, bytes.
    pub(super) fn share(&mut self, now: Time, sessions: usize) -> (u64, u64) {
        self.shared_at = now;
        self.unclaimed.retain(Unclaimed::waits);
        let budget = self.budget;
        (budget.fair_share(sessions), budget.send_window(sessions))
    }
}
