//! Which addresses and connection ids a session uses.

use std::collections::HashMap;
use std::net::IpAddr;

use sphinx_proto::Tuple;
use sphinx_proto::wire::ConnectionId;

/// From which of this end's addresses a session sends.
///
/// A server answers from the address that its client knows. A client lets routing choose, so that it
/// keeps working when its address changes; so does a server whose address is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    is_client: bool,
    refused: bool,
}

impl Source {
    pub(crate) fn new(is_client: bool) -> Self {
        Self {
            is_client,
            refused: false,
        }
    }

    /// The source address of a datagram; `None`: routing chooses.
    pub(crate) fn address(&self, tuple: &Tuple) -> Option<IpAddr> {
        tuple.local_ip.filter(|_| !self.is_client && !self.refused)
    }

    /// The operating system did not send from the address.
    pub(crate) fn on_refused(&mut self) {
        self.refused = true;
    }

    /// The path has changed, and this end's address with it, perhaps.
    pub(crate) fn on_path_changed(&mut self) {
        self.refused = false;
    }
}

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

    #[test]
    fn only_a_server_insists_on_its_address_while_it_can() {
        let local = IpAddr::from([10, 0, 0, 1]);
        let tuple = Tuple {
            remote: ([10, 0, 0, 2], 1).into(),
            local_ip: Some(local),
        };
        assert_eq!(Source::new(true).address(&tuple), None);
        let mut source = Source::new(false);
        assert_eq!(source.address(&tuple), Some(local));
        source.on_refused();
        assert_eq!(source.address(&tuple), None);
        source.on_path_changed();
        assert_eq!(source.address(&tuple), Some(local));
    }
}
