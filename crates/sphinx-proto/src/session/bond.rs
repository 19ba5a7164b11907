//! The bond: what several paths are for, and what the client says of each of its paths
//! (`docs/protocol.md` §10.5).

use std::num::NonZeroU64;

use super::{Life, Session};
use crate::blocks::SymbolChoice;
use crate::paths::{Bond, Lane, PATHS_MAX, PathPolicy};
use crate::scheduler::Next;
use crate::sender::Carriage;
use crate::types::{Event, PathNews};
use crate::wire::{Frame, PathStatus};
use crate::{Nanos, PathId, Role, Time};

/// Copies may wait for a path: as many as it sends in this time, nanoseconds, and at least so many.
/// When more wait, the path is too slow, and the oldest are dropped.
const COPIES_TIME: Nanos = 20_000_000;
const COPIES_MIN: u64 = 16;

/// State of the frames MAX_PATHS, BOND and PATH_STATUS.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The peer has sent MAX_PATHS, so that it knows BOND and PATH_STATUS.
    is_heard: bool,
    /// Number of the latest BOND sent or received.
    bond: Option<u64>,
    /// Number of the latest PATH_STATUS sent.
    status: u64,
}

impl Session {
    /// A server whose client asked for a bond in the handshake says with MAX_PATHS that it knows
    /// bonds.
    pub(super) fn answer_bond(&mut self) {
        if self.config.role == Role::Server && self.config.bond.is_some() {
            self.control_queue.push(&Frame::MaxPaths(PATHS_MAX as u8));
        }
    }

    /// What several paths are for from now on, in both directions if this is the client.
    pub fn set_bond(&mut self, bond: Bond) {
        self.paths.set_bond(bond);
        self.say_bond();
    }

    /// What several paths are for.
    pub fn bond(&self) -> Bond {
        self.paths.bond()
    }

    /// What the path is to be used for from now on, in both directions if this is the client. Whether it is open.
    pub fn set_path_policy(&mut self, path: PathId, policy: PathPolicy) -> bool {
        let is_open = self.paths.index(path).is_some();
        self.paths.set_policy(path, policy);
        if is_open {
            self.say_status(path);
        }
        is_open
    }

    fn speaks(&self) -> bool {
        let is_client = self.config.role == Role::Client;
        is_client && self.words.is_heard && matches!(self.life, Life::Open)
    }

    fn say_bond(&mut self) {
        if self.speaks() {
            let number = self.words.bond.map_or(0, |number| number + 1);
            self.words.bond = Some(number);
            let bond = self.paths.bond();
            self.control_queue
                .push_newest(&Frame::Bond { number, bond });
        }
    }

    /// Tells the server what the path is to be used for.
    pub(super) fn say_status(&mut self, path: PathId) {
        let Some(policy) = self.paths.policy(path).filter(|_| self.speaks()) else {
            return;
        };
        self.words.status += 1;
        self.control_queue.push(&Frame::PathStatus(PathStatus {
            path,
            number: self.words.status,
            role: policy.role,
            cost: policy.cost,
            limit: policy.limit.map_or(0, NonZeroU64::get),
        }));
    }

    // ---- what the peer says ------------------------------------------------------------------------

    pub(super) fn on_max_paths(&mut self, paths: u8) {
        self.paths.allow(paths);
        if std::mem::replace(&mut self.words.is_heard, true) {
            return;
        }
        if Some(self.paths.bond()) != self.config.bond {
            self.say_bond();
        }
        let paths: Vec<PathId> = self.paths.iter().map(Lane::id).collect();
        for path in paths {
            let policy = self.paths.policy(path);
            if path != PathId::FIRST || policy.is_some_and(|policy| policy != PathPolicy::default())
            {
                self.say_status(path);
            }
        }
    }

    /// BOND has arrived. `false`: it came from a server, and only clients may send it.
    pub(super) fn on_bond(&mut self, number: u64, bond: Bond) -> bool {
        if self.config.role == Role::Client {
            return false;
        }
        if self.words.bond.is_none_or(|known| number > known) {
            self.words.bond = Some(number);
            self.paths.set_bond(bond);
        }
        true
    }

    /// PATH_STATUS has arrived. `false`: it came from a server, or names a path that cannot be.
    pub(super) fn on_path_status(&mut self, status: &PathStatus) -> bool {
        self.config.role == Role::Server && self.paths.on_status(status)
    }

    // ---- copies -----------------------------------------------------------------------------------

    /// If paths are redundant, queues a copy of what leaves on this path for the others.
    pub(super) fn copy(&mut self, now: Time, at: usize, next: &Next) {
        let choice = match next {
            Next::Symbol(choice) | Next::Bundle(choice, _) => *choice,
            Next::Part(choice, part, _) if part.index == 0 => *choice,
            _ => return,
        };
        if choice.is_copy || !matches!(self.paths.bond(), Bond::Redundant { .. }) {
            return;
        }
        for other in self.paths.copies_to(at) {
            if self.sender.add_copy(&choice) {
                self.queue_copy(now, other, choice);
            }
        }
    }

    fn queue_copy(&mut self, now: Time, at: usize, choice: SymbolChoice) {
        let lane = self.paths.at_mut(at);
        let rate = lane.path.cc().pacing_rate();
        let bytes = u128::from(rate) * u128::from(COPIES_TIME) / 1_000_000_000;
        let most = bytes / u128::from(choice.symbol_len.max(1));
        let most = most.clamp(u128::from(COPIES_MIN), 1 << 16) as usize;
        let copy = SymbolChoice {
            is_copy: true,
            last_of_flight: false,
            ..choice
        };
        let dropped = lane.scheduler.queue_copy(copy, most);
        self.drop_copies(now, at, dropped);
    }

    /// Copies that will not leave on the path at this place.
    fn drop_copies(
        &mut self,
        now: Time,
        at: usize,
        copies: impl IntoIterator<Item = SymbolChoice>,
    ) {
        let lane = self.paths.at(at);
        let mut carriage = Carriage {
            path: lane.id(),
            horizon: lane.path.horizon(now),
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        for copy in copies {
            carriage.copy_lost(&copy, lane.path.monitor());
        }
    }

    /// The path at this place carries no copies from now on.
    pub(super) fn drop_all_copies(&mut self, now: Time, at: usize) {
        let copies = self.paths.at_mut(at).scheduler.take_copies();
        self.drop_copies(now, at, copies);
    }

    /// Drops the copies that wait on paths which carry no data any more.
    pub(super) fn look_at_copies(&mut self, now: Time) {
        for at in 0..self.paths.len() {
            let lane = self.paths.at(at);
            if lane.scheduler.has_copies() && !lane.is_chosen() && self.paths.others_work(at) {
                self.drop_all_copies(now, at);
            }
        }
    }

    // ---- budgets ----------------------------------------------------------------------------------

    /// Gives up paths whose budgets of bytes are spent. If no other path is left, the session ends.
    pub(super) fn look_at_budgets(&mut self, now: Time) {
        if !matches!(self.life, Life::Open) {
            return;
        }
        while let Some(id) = self.paths.spent() {
            let others = |lane: &Lane| lane.id() != id && lane.path.is_validated();
            if self.paths.iter().any(others) {
                self.drop_path(now, id, PathNews::Spent);
            } else {
                self.events.push_back(Event::OutOfBudget);
                return self.close(now, 6, "the budget of the last path is spent");
            }
        }
    }
}
