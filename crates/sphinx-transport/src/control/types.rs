//! What the control plane and the engine say to each other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sphinx_proto::wire::ConnectionId;

use super::early::Beginning;
use super::{Params, Service, Services};
use crate::access::Peer;
use crate::budget::{Budget, Window};
use sphinx_driver::keys::{Direction, EarlySecret, SessionSecret};

/// The least that what a session receives may be bounded to, bytes: into less no block may fit, and nothing would ever come.
const BOUND_MIN: u64 = 16 << 10;

/// A control connection; never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnId {
    pub(super) serial: u64,
    pub(super) handle: usize,
}

/// What this end says about itself in every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// What sessions are for.
    pub(crate) service: Service,
    /// Of a server: what else they may be for.
    pub(crate) services: Services,
    /// What sessions may hold together.
    pub(crate) budget: Budget,
    /// Paths of a session that may be open at a time, at least 1.
    pub(crate) paths_max: u8,
    /// Of a client: what it wants several paths to be for, if it may have several.
    pub(crate) bond: Option<sphinx_proto::Bond>,
    /// Silence after which this end gives a session up, milliseconds.
    pub(crate) idle_timeout_ms: u64,
    /// Largest UDP payload in bytes that this end accepts, 1200–65 527.
    pub(crate) max_udp_payload: u16,
    /// Generations in a bounded buffer, if this end wants them, and by which scheme.
    pub(crate) sc: Option<sphinx_proto::Sc>,
    /// The most that a session may hold of what it has received, bytes, if that is bounded.
    pub(crate) recv_window: Option<u64>,
    /// The paper's mode, if this end wants it.
    pub(crate) paper: Option<sphinx_proto::Paper>,
    /// Of a server: it keeps what later sessions may begin with, one of each.
    pub(crate) resumptions: bool,
}

impl Settings {
    /// Whether sessions may be for this.
    pub(super) fn serves(&self, service: Service) -> bool {
        self.service == service || self.services.has(service)
    }

    /// The window of one more session where there are `others`.
    pub(crate) fn window(&self, others: usize) -> Window {
        let window = self.budget.window(others);
        let bytes = self
            .recv_window
            .map_or(window.bytes, |most| most.max(BOUND_MIN).min(window.bytes));
        Window {
            bytes,
            credit: window.credit.min(bytes),
            ..window
        }
    }
}

/// A handshake that a client has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Its connection.
    pub(crate) id: ConnId,
    /// What data packets to this end are to carry.
    pub(crate) cid: ConnectionId,
    /// What this end may hold for the session.
    pub(crate) window: Window,
    /// Gives the keys of what may be sent at once.
    pub(crate) secret: Option<EarlySecret>,
}

/// Why a session did not come about, or was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// A wrong certificate or a wrong secret.
    #[error("{0}")]
    Authentication(String),
    /// The peer is not Sphinx, or of another version or service, or broken.
    #[error("{0}")]
    Protocol(String),
    /// The handshake took too long.
    #[error("the handshake took too long")]
    Timeout,
    /// The address is unusable, or the peer refuses or has forgotten the connection.
    #[error("{0}")]
    Unreachable(String),
}

/// What the engine is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// Server only, the first event of a connection: a client may soon send data packets to
    /// `local_cid`. They are to be held, within limits, until `Established`, or dropped at `Failed` or
    /// `Closed`; one of the three always follows.
    Pending {
        /// The connection.
        id: ConnId,
        /// What data packets of the session carry.
        local_cid: ConnectionId,
        /// Where the client is.
        place: (SocketAddr, Option<IpAddr>),
        /// What this end may hold for the session.
        window: Window,
        /// How it begins, if it does so at once.
        beginning: Option<Box<Beginning>>,
    },
    /// Data may flow. On the client the server has yet to check the proof: the first data packet
    /// that opens shows that it has; `Failed` with `Authentication` may still come instead.
    Established {
        /// The connection.
        id: ConnId,
        /// The peer's address.
        remote: SocketAddr,
        /// The address of this end that the peer sent to, where known.
        local_ip: Option<IpAddr>,
        /// What data packets to this end carry.
        local_cid: ConnectionId,
        /// What this end may hold for the session.
        window: Window,
        /// What the peer said about itself.
        peer: Box<Params>,
        /// Who the client is; at the server.
        who: Option<Peer>,
        /// Gives the keys of both directions.
        secret: SessionSecret,
        /// The direction in which this end sends.
        direction: Direction,
        /// What names what a later session may begin with.
        resumption: Option<ConnectionId>,
        /// Shortest round trip seen in the handshake; a repeated datagram can make it up to 15 ms
        /// too long.
        rtt: Duration,
    },
    /// The last event of a connection that has done its part: both ends have all that they need, and this one has let go of it. The session goes on
    /// without.
    Settled {
        /// The connection.
        id: ConnId,
        /// What it has sent and received.
        traffic: Traffic,
    },
    /// The last event of a connection that did not come about or was lost.
    Failed {
        /// The connection.
        id: ConnId,
        /// Why.
        why: Failure,
    },
    /// Server only: a client with a greeting was refused with its first packet, and no connection came about.
    Refused(Failure),
    /// The last event of a connection that the peer closed in peace.
    Closed {
        /// The connection.
        id: ConnId,
        /// The peer's close code, never 4 or 5.
        code: u64,
        /// The peer's words, at most 256 bytes, without control characters.
        reason: String,
    },
}

impl Event {
    pub(super) fn failed(id: ConnId, why: Failure) -> Self {
        Self::Failed { id, why }
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transmit {
    /// Destination.
    pub(crate) remote: SocketAddr,
    /// Source address; `None`: the system chooses.
    pub(crate) local_ip: Option<IpAddr>,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Datagrams that belong to no connection and begin none.
    pub(crate) ignored_datagrams: u64,
    /// Clients' attempts that came to nothing.
    pub(crate) failed_handshakes: u64,
    /// Copies sent.
    pub(crate) repeated_datagrams: u64,
    /// Datagrams not sent because of the limit for addresses not yet validated.
    pub(crate) withheld_datagrams: u64,
}

/// What one connection has sent and received, UDP payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes sent, copies included.
    pub(crate) bytes_sent: u64,
    /// Datagrams sent, copies included.
    pub(crate) datagrams_sent: u64,
    /// Bytes received.
    pub(crate) bytes_received: u64,
    /// Datagrams received.
    pub(crate) datagrams_received: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_at_least_what_a_block_needs() {
        let settings = |recv_window| Settings {
            service: Service::PERF,
            services: Services::default(),
            budget: Budget::new(8 << 20),
            paths_max: 1,
            bond: None,
            idle_timeout_ms: 15_000,
            max_udp_payload: 65_527,
            sc: None,
            recv_window,
            paper: None,
            resumptions: false,
        };
        let free = settings(None).window(0);
        for (bound, bytes) in [(0, BOUND_MIN), (100_000, 100_000), (u64::MAX, free.bytes)] {
            let window = settings(Some(bound)).window(0);
            assert_eq!(window.bytes, bytes);
            assert!(window.credit <= bytes);
        }
    }
}
