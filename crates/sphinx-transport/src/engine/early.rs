//! Sessions that begin before their handshakes are over (`docs/protocol.md` §3.1).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sphinx_driver::Holding;
use sphinx_driver::keys::{Direction, EarlySecret, SessionSecret};
use sphinx_net::PacketIo;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Introduction, Nanos, PathId, Time};

use super::meeting::Start;
use super::{Engine, Purpose};
use crate::budget::Window;
use crate::control::{
    Beginning, ConnId, PROMISED_CREDIT, PROMISED_STREAMS, PROMISED_WINDOW, Params, Resumption,
};
use crate::error::{Error, close_code};

/// Sessions whose first packets have come before the datagram that says what opens them.
const OVERTAKEN_MAX: usize = 8;
/// How long these are held.
const OVERTAKEN_FOR: Nanos = 1_000_000_000;
/// The round trip of a path that nothing is known of.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);

/// A session of a client that has begun, and whose handshake is not over.
pub(super) struct Early {
    /// The attempt that it began with.
    id: ConnId,
    /// This end's connection id in it, and the server's.
    pub(super) cid: ConnectionId,
    peer_cid: ConnectionId,
    /// What the server said of itself before.
    server: Params,
}

/// Whether a handshake that is over is one of a session that had begun before.
pub(super) enum Met {
    /// There is none.
    Nothing,
    /// It is this one's.
    Session(ConnectionId),
    /// It is with another address than the one where the session is known.
    Elsewhere,
}

/// One that is to begin.
pub(super) struct Beginner {
    pub(super) remote: SocketAddr,
    pub(super) handshake: (ConnId, ConnectionId, Window),
    pub(super) secret: EarlySecret,
    pub(super) resumption: Box<Resumption>,
}

/// Sessions whose first packets have come before the datagram that says what opens them: their connection ids, and since when packets are held.
#[derive(Default)]
pub(super) struct Overtaken(VecDeque<(Time, ConnectionId)>);

impl Overtaken {
    /// Has packets with this id held for a moment, within limits.
    pub(super) fn begin(&mut self, now: Time, cid: ConnectionId, holding: &mut Holding) {
        let is_full = self.0.len() >= OVERTAKEN_MAX;
        let old = |(since, _): &mut (Time, ConnectionId)| is_old(now, *since);
        if is_full && let Some((_, old)) = self.0.pop_front_if(old) {
            holding.end(old);
        }
        if self.0.len() < OVERTAKEN_MAX {
            self.0.push_back((now, cid));
            holding.begin(cid, now);
        }
    }
}

fn is_old(now: Time, since: Time) -> bool {
    now.saturating_sub(since) > OVERTAKEN_FOR
}

impl<Io: PacketIo> Engine<Io> {
    /// The client's first attempt has begun, to a server that knows it.
    pub(super) fn begin_early(&mut self, now: Time, clock: Instant) {
        let Some(beginner) = self.attempts.take_beginner() else {
            return;
        };
        // What is behind it does not overtake it.
        self.send_control(clock);
        let Purpose::Connect { remotes, .. } = &self.purpose else {
            return;
        };
        let mut tried = remotes.iter();
        let remote = tried.find(|tried| tried.address == beginner.remote);
        let rtt = remote.and_then(|remote| remote.memory);
        let rtt = rtt.map_or(UNKNOWN_RTT, |memory| Duration::from_nanos(memory.rtt));
        let Resumption { cid, server, .. } = *beginner.resumption;
        let peer = Params {
            cid,
            receive_window: PROMISED_WINDOW,
            receive_credit: PROMISED_CREDIT,
            streams: PROMISED_STREAMS,
            ..server
        };
        let (id, local_cid, window) = beginner.handshake;
        let session = self.establish(
            now,
            Start {
                id,
                local_cid,
                place: (beginner.remote, None),
                window,
                peer: &peer,
                who: None,
                keys: beginner.secret.keys(Direction::ClientToServer),
                rtt,
                is_early: true,
            },
        );
        self.early = Some(Early {
            id,
            cid: local_cid,
            peer_cid: cid,
            server,
        });
        self.lobby.arrive(session);
    }

    /// A client begins with what an earlier session has agreed on.
    pub(super) fn receive_early(
        &mut self,
        now: Time,
        (id, local_cid): (ConnId, ConnectionId),
        place: (SocketAddr, Option<IpAddr>),
        (window, beginning): (Window, &Beginning),
    ) {
        if let Some(why) = self.no_room(window) {
            self.holding.end(local_cid);
            self.control.turn_away(id, why);
            return;
        }
        let since = self.holding.since(local_cid);
        if since.is_some_and(|since| is_old(now, since)) {
            self.holding.end(local_cid);
        }
        let start = Start {
            id,
            local_cid,
            place,
            window,
            peer: &beginning.peer,
            who: Some(beginning.who),
            keys: beginning.secret.keys(Direction::ServerToClient),
            rtt: UNKNOWN_RTT,
            is_early: true,
        };
        let session = self.establish(now, start);
        match self.options.early_data {
            true => self.lobby.arrive(session),
            false => {
                self.unproven.insert(local_cid, session);
            }
        }
    }

    /// Of a server: the handshake of such a session is over.
    pub(super) fn confirm_early(
        &mut self,
        now: Time,
        cid: ConnectionId,
        keys: (&SessionSecret, Direction),
    ) -> Met {
        let Some(member) = self.sessions.wake(cid) else {
            return Met::Nothing;
        };
        member
            .association
            .confirm(now, keys, None, &mut self.workshop);
        if let Some(session) = self.unproven.remove(&cid) {
            self.lobby.arrive(session);
        }
        Met::Session(cid)
    }

    /// Of a client: a handshake is over, and a session had begun before.
    pub(super) fn meet_early(
        &mut self,
        (now, clock): (Time, Instant),
        (id, local_cid, remote): (ConnId, ConnectionId, SocketAddr),
        peer: &Params,
        (secret, direction): (&SessionSecret, Direction),
        rtt: Duration,
    ) -> Met {
        let Some(early) = self.early.take() else {
            return Met::Nothing;
        };
        let Some(member) = self.sessions.wake(early.cid) else {
            return Met::Nothing;
        };
        let is_taken = id == early.id && peer.cid == early.peer_cid;
        if !is_taken && member.association.has_heard() {
            // Another address was faster, but where the session began it is known.
            self.control.close(clock, id, close_code::DONE, "");
            self.attempts.forget(id);
            self.early = Some(early);
            return Met::Elsewhere;
        }
        let introduction = Introduction {
            peer_cid: peer.cid,
            window: peer.receive_window,
            credit: peer.receive_credit,
            idle_timeout: peer.idle_timeout(),
            datagram_max: peer.max_udp_payload,
        };
        member.id = id;
        let association = &mut member.association;
        association.allow(peer);
        if is_taken {
            let keys = (secret, direction);
            association.confirm(now, keys, Some(&introduction), &mut self.workshop);
        } else if allows_what_was_assumed(peer, &early.server) {
            let rtt = rtt.as_nanos().min(u128::from(u64::MAX)) as Nanos;
            let keys = secret.keys(direction, PathId::FIRST);
            association.begin_again(now, (remote, rtt), &introduction, keys);
        } else {
            let why = "the server allows less than it did before: connect again";
            association.give_up(why);
        }
        association.expect_reset(peer);
        self.connections.insert(id, early.cid);
        if local_cid != early.cid {
            self.routes.add(local_cid, early.cid);
        }
        self.has_met = true;
        self.drop_attempts_but(id);
        Met::Session(early.cid)
    }

    /// Of a client: there will be no session, for this reason.
    pub(super) fn end_early(&mut self, error: &Error) {
        if let Some(early) = self.early.take()
            && let Some(member) = self.sessions.wake(early.cid)
        {
            member.association.refused(error.clone());
        }
    }

    /// A session is gone. If it had begun early and nobody wants it any more, nobody wants another one either.
    pub(super) fn forget_early(&mut self, clock: Instant, cid: ConnectionId) {
        self.unproven.remove(&cid);
        if self.early.take_if(|early| early.cid == cid).is_some() {
            self.has_met = true;
            for id in self.attempts.take_all() {
                let why = "the application let go of the session";
                self.control.close(clock, id, close_code::CANCELLED, why);
            }
        }
    }
}

/// Whether a server that has begun anew grants what the session has made use of.
fn allows_what_was_assumed(peer: &Params, before: &Params) -> bool {
    peer.receive_window >= PROMISED_WINDOW
        && peer.receive_credit >= PROMISED_CREDIT
        && peer.streams >= PROMISED_STREAMS
        && peer.datagram_max >= before.datagram_max
        && peer.paper.flatten().is_none()
        && peer.sc.flatten().is_none()
}
