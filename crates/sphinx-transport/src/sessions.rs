//! The sessions of an engine: found by connection id, served in turn. A turn of the engine costs
//! what the sessions with something to do cost, not what all of them would.

use std::collections::{BTreeSet, HashMap, VecDeque};

use sphinx_proto::Time;
use sphinx_proto::wire::ConnectionId;

/// Sessions of type `T` with the order in which they are to be served.
pub(crate) struct Sessions<T> {
    /// In boxes: the table has places that nobody takes.
    entries: HashMap<ConnectionId, Box<Entry<T>>>,
    /// Those with something to do, first come, first served.
    ready: VecDeque<ConnectionId>,
    timers: BTreeSet<(Time, ConnectionId)>,
}

struct Entry<T> {
    session: T,
    /// Whether the session is in `ready`.
    is_ready: bool,
    /// The entry in `timers`.
    timer: Option<Time>,
}

impl<T> Sessions<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn contains(&self, cid: ConnectionId) -> bool {
        self.entries.contains_key(&cid)
    }

    pub(crate) fn get(&self, cid: ConnectionId) -> Option<&T> {
        self.entries.get(&cid).map(|entry| &entry.session)
    }

    /// Adds a session, which is ready.
    pub(crate) fn insert(&mut self, cid: ConnectionId, session: T) {
        let entry = Entry {
            session,
            is_ready: false,
            timer: None,
        };
        self.entries.insert(cid, Box::new(entry));
        self.wake(cid);
    }

    pub(crate) fn remove(&mut self, cid: ConnectionId) -> Option<T> {
        self.set_timer(cid, None);
        self.entries.remove(&cid).map(|entry| entry.session)
    }

    /// The session gets something to do: it becomes ready.
    pub(crate) fn wake(&mut self, cid: ConnectionId) -> Option<&mut T> {
        let entry = self.entries.get_mut(&cid)?;
        if !std::mem::replace(&mut entry.is_ready, true) {
            self.ready.push_back(cid);
        }
        Some(&mut entry.session)
    }

    /// All sessions; they become ready.
    pub(crate) fn wake_all(&mut self) -> impl Iterator<Item = &mut T> {
        let ready = &mut self.ready;
        self.entries.iter_mut().map(|(cid, entry)| {
            if !std::mem::replace(&mut entry.is_ready, true) {
                ready.push_back(*cid);
            }
            &mut entry.session
        })
    }

    /// All sessions; none becomes ready.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut().map(|entry| &mut entry.session)
    }

    /// Those for which `condition` holds become ready.
    pub(crate) fn wake_where(&mut self, mut condition: impl FnMut(&mut T) -> bool) {
        for (cid, entry) in &mut self.entries {
            if condition(&mut entry.session) && !std::mem::replace(&mut entry.is_ready, true) {
                self.ready.push_back(*cid);
            }
        }
    }

    /// Those whose time has come become ready.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some((at, cid)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            if let Some(entry) = self.entries.get_mut(&cid) {
                entry.timer = None;
            }
            self.wake(cid);
        }
    }

    /// Number of sessions that are ready.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next one that is ready.
    pub(crate) fn next(&mut self) -> Option<(ConnectionId, &mut T)> {
        while let Some(cid) = self.ready.pop_front() {
            if self.entries.contains_key(&cid) {
                return self.entries.get_mut(&cid).map(|entry| {
                    entry.is_ready = false;
                    (cid, &mut entry.session)
                });
            }
        }
        None
    }

    /// When the session is to become ready if nothing happens before.
    pub(crate) fn set_timer(&mut self, cid: ConnectionId, at: Option<Time>) {
        let Some(entry) = self.entries.get_mut(&cid) else {
            return;
        };
        if entry.timer != at {
            if let Some(old) = entry.timer {
                self.timers.remove(&(old, cid));
            }
            self.timers.extend(at.map(|at| (at, cid)));
            entry.timer = at;
        }
    }

    /// When the next session becomes ready by its timer.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cid(n: u8) -> ConnectionId {
        ConnectionId::new([n; 8]).expect("not zero")
    }

    fn served(sessions: &mut Sessions<u8>) -> Vec<u8> {
        std::iter::from_fn(|| sessions.next().map(|(_, session)| *session)).collect()
    }

    #[test]
    fn sessions_are_served_once_and_in_the_order_in_which_they_became_ready() {
        let mut sessions = Sessions::new();
        for n in 1..=3 {
            sessions.insert(cid(n), n);
        }
        assert_eq!(served(&mut sessions), [1, 2, 3]);
        for n in [3, 1, 3, 3] {
            sessions.wake(cid(n));
        }
        assert_eq!(sessions.ready(), 2);
        assert_eq!(served(&mut sessions), [3, 1]);
        assert_eq!(sessions.wake_all().count(), 3);
        assert_eq!(served(&mut sessions).len(), 3);
    }

    #[test]
    fn timers_move_and_expire_in_order() {
        let mut sessions = Sessions::new();
        for n in 1..=3 {
            sessions.insert(cid(n), n);
        }
        served(&mut sessions);
        sessions.set_timer(cid(1), Some(Time::from_nanos(30)));
        sessions.set_timer(cid(2), Some(Time::from_nanos(10)));
        sessions.set_timer(cid(3), Some(Time::from_nanos(5)));
        sessions.set_timer(cid(3), Some(Time::from_nanos(20)));
        assert_eq!(sessions.next_timer(), Some(Time::from_nanos(10)));
        sessions.expire(Time::from_nanos(20));
        assert_eq!(served(&mut sessions), [2, 3]);
        sessions.set_timer(cid(1), None);
        assert_eq!(sessions.next_timer(), None);
    }

    #[test]
    fn a_session_that_is_gone_is_neither_served_nor_timed() {
        let mut sessions = Sessions::new();
        sessions.insert(cid(1), 1);
        sessions.set_timer(cid(1), Some(Time::from_nanos(5)));
        assert_eq!(sessions.remove(cid(1)), Some(1));
        assert_eq!(sessions.next_timer(), None);
        assert!(sessions.wake(cid(1)).is_none());
        assert!(sessions.next().is_none());
        assert!(sessions.is_empty() && !sessions.contains(cid(1)));
    }
}
