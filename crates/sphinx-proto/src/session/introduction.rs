//! A session that begins before the handshake is over (`docs/protocol.md` §3.1): what is assumed of the peer until it has spoken, and what
//! follows when it has.

use super::{Life, Session};
use crate::ids::PeerIds;
use crate::path::mtu_candidates;
use crate::sender::Carriage;
use crate::types::Tuple;
use crate::wire::ConnectionId;
use crate::{Nanos, PathId, Time};

/// What the peer has said of itself in the handshake of a session that had begun before.
#[derive(Debug, Clone, Copy)]
pub struct Introduction {
    /// Connection id that the peer chose.
    pub peer_cid: ConnectionId,
    /// Its window at the start, and how much of that this end may fill before the peer grants more, bytes: not less than this end was configured with.
    pub window: u64,
    /// See [`window`](Self::window).
    pub credit: u64,
    /// Silence after which it gives the session up, if it has said so.
    pub idle_timeout: Option<Nanos>,
    /// Largest UDP payload that it accepts.
    pub datagram_max: u16,
}

impl Session {
    /// The handshake is over, and the peer has taken what has come so far. It is asked for a packet, which shows that it knows that too. A server, which has
    /// heard its client from the first packet on, has no need of an introduction.
    pub fn confirm(&mut self, introduction: Option<&Introduction>) {
        if let Some(introduction) = introduction {
            self.meet(introduction);
        }
        if matches!(self.life, Life::Open) {
            self.paths.main_mut().scheduler.ping();
        }
    }

    /// The handshake is over, and the peer knows nothing of what has left so far: all of it is sent again, to `tuple`, where the handshake took
    /// `rtt`.
    pub fn begin_again(
        &mut self,
        now: Time,
        (tuple, rtt): (Tuple, Nanos),
        introduction: &Introduction,
    ) {
        let config = &mut self.config;
        (config.tuple, config.initial_rtt) = (tuple, rtt);
        config.peer_cid = introduction.peer_cid;
        config.peer_datagram_max = introduction.datagram_max;
        let ip_overhead = if tuple.remote.is_ipv4() { 28 } else { 48 };
        if config.ip_overhead != ip_overhead {
            config.ip_overhead = ip_overhead;
            config.mtu_candidates = mtu_candidates(ip_overhead);
        }
        self.meet(introduction);
        let Some(at) = self.paths.index(PathId::FIRST) else {
            return;
        };
        let lane = self.paths.at_mut(at);
        lane.peer_ids = PeerIds::new(introduction.peer_cid);
        let mut carriage = Carriage {
            path: lane.id(),
            horizon: lane.path.horizon(now),
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        lane.path.begin_again(&self.config, now, &mut carriage);
        (self.last_received, self.asked_at) = (now, None);
    }

    fn meet(&mut self, introduction: &Introduction) {
        self.config.peer_idle_timeout = introduction.idle_timeout;
        self.sender.meet(introduction.window, introduction.credit);
    }
}
