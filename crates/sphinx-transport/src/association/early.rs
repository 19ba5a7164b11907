//! A session that begins before its handshake is over (`docs/protocol.md` §3.1).

use std::net::SocketAddr;

use sphinx_driver::keys::{Direction, Keys, SessionSecret};
use sphinx_driver::{Holding, Origin, Workshop};
use sphinx_net::PacketTx;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Introduction, Nanos, Time, Tuple};

use super::{Association, Frames};
use crate::control::{AMPLIFICATION_LIMIT, Params, Resumption};
use crate::memory::unix_now;
use crate::resumptions::ResumptionFile;
use crate::stats::EarlyData;

/// IP bytes of the largest packet that leaves before the path is known.
const PACKET_MAX: u64 = 1500;

/// How far a session is with its handshake.
pub(super) enum Phase {
    /// The handshake is over, and both ends know.
    Certain,
    /// The handshake is under way, and the session uses early keys. Packets sealed with the handshake's keys are held until those are there.
    Early {
        /// This end's connection id.
        cid: ConnectionId,
        held: Box<Holding>,
    },
    /// At a client: the handshake is over here, and it is not known whether it is at the server.
    Confirmed,
}

impl Association {
    /// The session begins before its handshake is over, with early keys; `cid` is this end's connection id. Packets that it holds count towards the
    /// limits of the endpoint's `holding`.
    pub(crate) fn begin_early(&mut self, now: Time, cid: ConnectionId, holding: &Holding) {
        let mut held = holding.beside();
        held.begin(cid, now);
        self.driver.be_provisional();
        self.phase = Phase::Early {
            cid,
            held: Box::new(held),
        };
        self.stats_names.early_data = EarlyData::Pending;
        self.shared.lock().is_confirmed = false;
    }

    /// Keeps a resumption for a later session; it is written to the file when the application drops this one.
    pub(crate) fn will_keep(&self, file: &ResumptionFile, resumption: Resumption) {
        let now = unix_now();
        self.shared.lock().resumption = Some((file.clone(), resumption, now));
    }

    /// Whether the session has begun before its handshake was over, and that is still so.
    pub(crate) fn is_early(&self) -> bool {
        matches!(self.phase, Phase::Early { .. })
    }

    /// Whether any packet of the peer has been authenticated.
    pub(crate) fn has_heard(&self) -> bool {
        self.driver.core().stats().packets_received > 0
    }

    /// Holds a packet that is sealed with the handshake's keys before these are there. Returns whether it was one; without room it
    /// is dropped all the same.
    pub(super) fn holds(&mut self, origin: Origin, datagram: &[u8]) -> bool {
        let Phase::Early { cid, held } = &mut self.phase else {
            return false;
        };
        let opener = &self.driver.protection().opener;
        opener.phase_of(datagram) == Some(true) && held.hold(*cid, origin, datagram)
    }

    /// With the end of the handshake the server has said what it allows: the application may use all of that, where less was assumed before.
    pub(crate) fn allow(&self, server: &Params) {
        let mut inner = self.shared.lock();
        inner.queues.set_open_max(server.streams);
        inner.datagram_max = usize::from(server.datagram_max);
    }

    /// The handshake is over, and the other end goes on with what it has heard so far. `introduction`: what a server says of itself.
    pub(crate) fn confirm(
        &mut self,
        now: Time,
        (secret, direction): (&SessionSecret, Direction),
        introduction: Option<&Introduction>,
        workshop: &mut Workshop,
    ) {
        self.note_early(EarlyData::Accepted);
        let phase = match self.is_client {
            true => Phase::Confirmed,
            false => Phase::Certain,
        };
        self.tell_confirmed();
        let before = std::mem::replace(&mut self.phase, phase);
        self.driver
            .confirm(introduction, |keys| keys.confirm(secret, direction));
        if !self.is_client {
            self.driver.be_certain();
        }
        let Phase::Early { cid, mut held } = before else {
            return;
        };
        let waiting = held.end(cid);
        for mut held in waiting.into_iter().flat_map(|waiting| waiting.packets) {
            self.driver
                .handle_datagram(now, held.origin, &mut held.datagram, workshop);
        }
    }

    /// The handshake is over, and the server, at `remote`, knows nothing of what has left so far.
    pub(crate) fn begin_again(
        &mut self,
        now: Time,
        (remote, rtt): (SocketAddr, Nanos),
        introduction: &Introduction,
        keys: Keys,
    ) {
        self.note_early(EarlyData::Refused);
        self.phase = Phase::Certain;
        self.tell_confirmed();
        let tuple = Tuple {
            remote,
            local_ip: None,
        };
        self.driver
            .begin_again(now, (tuple, rtt), introduction, keys);
        self.shared.set_remote(remote);
    }

    fn note_early(&mut self, what: EarlyData) {
        let core = self.driver.core().stats();
        self.stats_names.early_data = what;
        self.stats_names.early_bytes = match self.is_client {
            true => core.ip_bytes_sent,
            false => core.ip_bytes_received,
        };
    }

    /// The application may know that the handshake is over, before anybody is given the session.
    fn tell_confirmed(&self) {
        let mut inner = self.shared.lock();
        inner.is_confirmed = true;
        self.publish(&mut inner);
        self.shared.notify(inner);
    }

    /// A client that has heard its server with the handshake's keys knows that what the server confirms is of this session.
    pub(super) fn look_for_certainty(&mut self) {
        if matches!(self.phase, Phase::Confirmed) && self.driver.protection().opener.epoch() > 0 {
            self.driver.be_certain();
            self.phase = Phase::Certain;
        }
    }

    /// IP bytes that may leave, if that is limited: a client's address has not shown yet that somebody is there.
    pub(super) fn allowance(&self) -> Option<u64> {
        if self.is_client || !self.is_early() {
            return None;
        }
        let core = self.driver.core().stats();
        let most = AMPLIFICATION_LIMIT.saturating_mul(core.ip_bytes_received);
        Some(most.saturating_sub(core.ip_bytes_sent))
    }

    /// Whether not even one packet may leave.
    pub(super) fn is_silent(&self) -> bool {
        self.allowance().is_some_and(|left| left < PACKET_MAX)
    }

    /// Seals what may leave within the allowance, packet by packet.
    pub(super) fn transmit_little<Tx: PacketTx>(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut Frames<'_, Tx>,
    ) {
        while !self.is_silent() {
            let before = out.tx.taken_bytes();
            if before >= limit {
                return;
            }
            self.driver.transmit(now, before + 1, workshop, out);
            if out.tx.taken_bytes() == before {
                return;
            }
        }
    }
}
