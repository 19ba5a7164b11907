//! Which connection ids a session uses.

use std::collections::{HashMap, VecDeque};

use sphinx_proto::wire::ConnectionId;

/// Ids that sessions have let go of last which are remembered as that.
const LEFT_MAX: usize = 64;

/// Finds the session of a spare connection id.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    sessions: HashMap<ConnectionId, ConnectionId>,
    /// Nobody's any more, of sessions that may go on, oldest first.
    left: VecDeque<ConnectionId>,
}

impl Routes {
    /// The id under which the session is known that packets with `cid` belong to.
    pub(crate) fn session_of(&self, cid: ConnectionId) -> ConnectionId {
        self.sessions.get(&cid).copied().unwrap_or(cid)
    }

    /// The id `spare` belongs to `session` from now on.
    pub(crate) fn add(&mut self, spare: ConnectionId, session: ConnectionId) {
        self.sessions.insert(spare, session);
    }

    /// `spare` is nobody's any more.
    pub(crate) fn remove(&mut self, spare: ConnectionId) {
        self.sessions.remove(&spare);
        if self.left.len() == LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back(spare);
    }

    /// Whether a session has let go of this id a short time ago: packets that carry it may be on their way.
    pub(crate) fn has_left(&self, cid: ConnectionId) -> bool {
        self.left.contains(&cid)
    }

    /// The session is over.
    pub(crate) fn forget(&mut self, session: ConnectionId) {
        self.sessions.retain(|_, of| *of != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cid(n: u8) -> ConnectionId {
        ConnectionId::new([n; 8]).expect("not zero")
    }

    #[test]
    fn spare_ids_lead_to_their_session() {
        let mut routes = Routes::default();
        routes.add(cid(2), cid(1));
        routes.add(cid(3), cid(1));
        routes.add(cid(5), cid(4));
        assert_eq!(routes.session_of(cid(2)), cid(1));
        assert_eq!(routes.session_of(cid(9)), cid(9));
        routes.remove(cid(2));
        assert_eq!(routes.session_of(cid(2)), cid(2));
        assert!(routes.has_left(cid(2)) && !routes.has_left(cid(3)));
        routes.forget(cid(1));
        assert_eq!(
            (routes.session_of(cid(3)), routes.session_of(cid(5))),
            (cid(3), cid(4))
        );
    }

    #[test]
    fn the_latest_that_have_left_are_remembered() {
        let mut routes = Routes::default();
        (1..=100).for_each(|n| routes.remove(cid(n)));
        let left = (1..=100).filter(|n| routes.has_left(cid(*n)));
        assert!(left.eq(37..=100));
    }
}
