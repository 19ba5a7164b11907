//! Which connection ids a session uses.

use std::collections::HashMap;

use sphinx_proto::wire::ConnectionId;

/// Finds the session of a spare connection id.
#[derive(Debug, Default)]
pub(crate) struct Routes(HashMap<ConnectionId, ConnectionId>);

impl Routes {
    /// The id under which the session is known that packets with `cid` belong to.
    pub(crate) fn session_of(&self, cid: ConnectionId) -> ConnectionId {
        self.0.get(&cid).copied().unwrap_or(cid)
    }

    /// `spare` is `session`'s from now on.
    pub(crate) fn add(&mut self, spare: ConnectionId, session: ConnectionId) {
        self.0.insert(spare, session);
    }

    /// `spare` is nobody's any more.
    pub(crate) fn remove(&mut self, spare: ConnectionId) {
        self.0.remove(&spare);
    }

    /// The session is over.
    pub(crate) fn forget(&mut self, session: ConnectionId) {
        self.0.retain(|_, of| *of != session);
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
        routes.forget(cid(1));
        assert_eq!(
            (routes.session_of(cid(3)), routes.session_of(cid(5))),
            (cid(3), cid(4))
        );
    }
}
