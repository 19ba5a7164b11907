//! The transfers that a receiver is in the middle of, by the name that their senders have for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sphinx_transport::Session;

use crate::failure::code;
use crate::files::{Announced, SourceId};

/// How long an older session of the same sender gets to let go of its files.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// The reason with which an older session of the same sender is closed.
pub(super) const COME_AGAIN: &str = "the same sender has come again";
/// Transfers that a person's consent is remembered of.
const ACCEPTED_MAX: usize = 1024;

/// Makes way for a sender that comes again: its session before may not know yet that nobody is there any more.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<SourceId, One>,
    number: u64,
    /// The totals that were accepted of each source, and that its rest may not exceed.
    accepted: BTreeMap<SourceId, Announced>,
}

struct One {
    /// Tells one that has been given up from the one after it.
    number: u64,
    session: Session,
    /// The same sender has come again, and this session ends for it.
    makes_way: bool,
}

/// A transfer under way; over when dropped.
pub(super) struct Turn {
    running: Running,
    source: SourceId,
    number: u64,
}

impl Running {
    /// Whether this is the rest of a transfer that was accepted, and no more than that.
    pub(super) fn is_accepted(&self, announced: Announced) -> bool {
        let before = announced
            .source
            .and_then(|source| self.lock().accepted.get(&source).copied());
        before.is_some_and(|before| {
            let fewer = match (announced.bytes, before.bytes) {
                (Some(now), Some(before)) => now <= before,
                (_, before) => before.is_none(),
            };
            fewer && announced.entries <= before.entries
        })
    }

    /// Begins a transfer, and ends the one that the same sender began before; nothing if it has no name.
    pub(super) fn begin(&self, announced: Announced, session: &Session) -> Option<Turn> {
        let source = announced.source?;
        let mut state = self.lock();
        if let Some(before) = state.sessions.get_mut(&source) {
            before.makes_way = true;
            before.session.close(code::CANCELLED, COME_AGAIN);
            let waited = (self.0.changed).wait_timeout_while(state, RELEASE_TIMEOUT, |state| {
                state.sessions.contains_key(&source)
            });
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.number += 1;
        let number = state.number;
        let one = One {
            number,
            session: session.clone(),
            makes_way: false,
        };
        state.sessions.insert(source, one);
        if state.accepted.len() < ACCEPTED_MAX {
            state.accepted.entry(source).or_insert(announced);
        }
        Some(Turn {
            running: self.clone(),
            source,
            number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Whether the session was closed for another one of the same sender, which goes on.
    pub(super) fn makes_way(&self) -> bool {
        let state = self.running.lock();
        let one = state.sessions.get(&self.source);
        one.is_some_and(|one| one.number == self.number && one.makes_way)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let sessions = &mut self.running.lock().sessions;
        if (sessions.get(&self.source)).is_some_and(|one| one.number == self.number) {
            sessions.remove(&self.source);
        }
        self.running.0.changed.notify_all();
    }
}
