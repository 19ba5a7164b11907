//! How sessions come about: the engine and the control plane.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sphinx_driver::keys::{Keys, SessionSecret};
use sphinx_net::{Destination, Ecn, PacketIo, PacketTx, TURN_BYTES};
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{
    Bond, Config, ConnectionIds, Nanos, PATHS_MAX, PathId, Role, Session as Core, Time, Tuple,
};

use super::early::{Beginner, Met};
use super::{Engine, Member, Purpose, Remote, SESSIONS_MAX, settings};
use crate::access::Peer;
use crate::association::Association;
use crate::budget::Window;
use crate::control::{ConnId, Event, Failure, Params, Resumption};
use crate::error::{Error, ErrorKind, close_code, closed_by_peer};
use crate::memory::PathFile;
use crate::options::Service;
use crate::shared::{Session, Shared};

/// What a session begins with.
pub(super) struct Start<'a> {
    pub(super) id: ConnId,
    /// This end's connection id.
    pub(super) local_cid: ConnectionId,
    /// Where the other end is, and this one where known.
    pub(super) place: (SocketAddr, Option<IpAddr>),
    /// What this end may hold.
    pub(super) window: Window,
    /// What the other end says of itself.
    pub(super) peer: &'a Params,
    /// Who the client is; at the server.
    pub(super) who: Option<Peer>,
    pub(super) keys: Keys,
    pub(super) rtt: Duration,
    /// Its handshake is not over.
    pub(super) is_early: bool,
}

impl<Io: PacketIo> Engine<Io> {
    pub(super) fn run_control(&mut self, clock: Instant, now: Time) {
        if self.control.poll_timeout().is_some_and(|at| at <= clock) {
            self.control.handle_timeout(clock);
        }
        while let Some(event) = self.control.poll_event() {
            match event {
                Event::Pending {
                    id,
                    local_cid,
                    place,
                    window,
                    beginning,
                } => {
                    self.connections.insert(id, local_cid);
                    match beginning {
                        None => self.holding.begin(local_cid, now),
                        Some(beginning) => {
                            let begins = (window, &*beginning);
                            self.receive_early(now, (id, local_cid), place, begins);
                        }
                    }
                }
                Event::Established {
                    id,
                    remote,
                    local_ip,
                    local_cid,
                    window,
                    peer,
                    who,
                    secret,
                    direction,
                    resumption,
                    rtt,
                } => {
                    let is_client = matches!(self.purpose, Purpose::Connect { .. });
                    if is_client && self.has_met {
                        // Another address was faster.
                        self.control.close(clock, id, close_code::DONE, "");
                        continue;
                    }
                    let keys = (&secret, direction);
                    let met = match is_client {
                        true => {
                            let (times, ends) = ((now, clock), (id, local_cid, remote));
                            self.meet_early(times, ends, &peer, keys, rtt)
                        }
                        false => self.confirm_early(now, local_cid, keys),
                    };
                    match met {
                        Met::Nothing => {}
                        Met::Session(cid) => {
                            self.agree(clock, cid, (who, &*peer, resumption), &secret);
                            continue;
                        }
                        Met::Elsewhere => continue,
                    }
                    if let Some(why) = self.no_room(window) {
                        self.holding.end(local_cid);
                        self.connections.remove(&id);
                        self.control.close(clock, id, close_code::CANCELLED, why);
                        continue;
                    }
                    let start = Start {
                        id,
                        local_cid,
                        place: (remote, local_ip),
                        window,
                        peer: &peer,
                        who,
                        keys: secret.keys(direction, PathId::FIRST),
                        rtt,
                        is_early: false,
                    };
                    let session = self.establish(now, start);
                    self.has_met = true;
                    self.connections.insert(id, local_cid);
                    self.agree(clock, local_cid, (who, &*peer, resumption), &secret);
                    self.lobby.arrive(session);
                    if is_client {
                        self.drop_attempts_but(id);
                    }
                }
                Event::Settled { id, traffic } => {
                    let cid = self.connections.remove(&id);
                    if let Some(member) = cid.and_then(|cid| self.sessions.wake(cid)) {
                        member.association.settled(traffic);
                    }
                }
                Event::Refused(why) => self.lobby.refuse(error_of(why)),
                Event::Failed { id, why } => self.control_failed(id, error_of(why), false),
                Event::Closed { id, code, reason } => {
                    self.control_failed(id, closed_by_peer(code, &reason), true);
                }
            }
        }
    }

    /// How many paths a session of a client may have: where they were chosen, more may come.
    fn own_paths_max(&self) -> usize {
        match self.options.paths[..] {
            [] => 1,
            _ => PATHS_MAX,
        }
    }

    /// What a client wants them to be for.
    fn own_bond(&self) -> Option<Bond> {
        (!self.options.paths.is_empty()).then_some(self.options.bond)
    }

    /// Why there is no room for another session, in words for who connects; with room, one is about to begin. Who runs the server, and could
    /// make room, is told more.
    pub(super) fn no_room(&mut self, window: Window) -> Option<&'static str> {
        let (sessions, waiting) = (self.sessions.len(), self.lobby.waiting());
        let has_memory = self.memory.allows(window);
        let (why, told) = if let Some(told) = too_many(sessions, waiting) {
            ("it has too many sessions", told)
        } else if !has_memory {
            let why = "its sessions leave no memory for another one";
            let told = format!("{sessions} sessions leave no memory for another one (--memory)");
            (why, told)
        } else if self.options.once && !self.lobby.begin_only_session() {
            return Some("it serves one session only, and there is or was another");
        } else {
            return None;
        };
        self.lobby.refuse(Error::new(ErrorKind::Cancelled, told));
        Some(why)
    }

    /// A later session may begin with what this one, which is known under `cid`, has agreed on.
    fn agree(
        &mut self,
        clock: Instant,
        cid: ConnectionId,
        (who, peer, resumption): (Option<Peer>, &Params, Option<ConnectionId>),
        secret: &SessionSecret,
    ) {
        let (Some(named), Some(member)) = (resumption, self.sessions.get(cid)) else {
            return;
        };
        match (&self.purpose, who) {
            (Purpose::Listen, Some(who)) => {
                self.control
                    .keep(clock, named, secret.resumption(named), who);
            }
            (Purpose::Connect { resumptions, .. }, _) => {
                if let Some(file) = resumptions {
                    let resumption = Resumption {
                        cid: named,
                        secret: secret.resumption(named),
                        // That is of this session's id.
                        server: Params {
                            reset_token: None,
                            ..*peer
                        },
                    };
                    member.association.will_keep(file, resumption);
                }
            }
            (Purpose::Listen, None) => {}
        }
    }

    /// Of a client: one of its attempts has led to a session.
    pub(super) fn drop_attempts_but(&mut self, id: ConnId) {
        for other in self.attempts.take_all() {
            if other != id {
                self.control
                    .close(Instant::now(), other, close_code::DONE, "");
            }
        }
    }

    /// A session begins. Nobody has been told of it.
    pub(super) fn establish(&mut self, now: Time, start: Start<'_>) -> Session {
        let (id, who, local_cid, window) = (start.id, start.who, start.local_cid, start.window);
        let config = self.negotiate(&start);
        let (association, session) = self.associate(now, config, start);
        let member = Member {
            id,
            who,
            association,
            cost: window.cost(),
            state: window.cost() - window.bytes,
        };
        self.register(now, local_cid, member);
        session
    }

    /// What a session is to be like: what both ends have said in the handshake, and what is known of the path.
    fn negotiate(&self, start: &Start<'_>) -> Config {
        let (peer, (remote, local_ip)) = (start.peer, start.place);
        let (role, own_paths_max, bond, memory) = match &self.purpose {
            Purpose::Connect { remotes, .. } => {
                let mut tried = remotes.iter();
                let tried = tried.find(|tried| tried.address == remote);
                let memory = tried.and_then(|tried| tried.memory);
                (Role::Client, self.own_paths_max(), self.own_bond(), memory)
            }
            Purpose::Listen => (Role::Server, PATHS_MAX, peer.bond, None),
        };
        let is_client = role == Role::Client;
        let ids = ConnectionIds {
            local: start.local_cid,
            peer: peer.cid,
        };
        let mut config = Config::new(role, Tuple { remote, local_ip }, ids);
        self.options.configure(&mut config);
        let theirs = (peer.paper.flatten(), peer.sc.flatten());
        // Should both want something, the client has its way.
        (config.paper, config.sc) = match is_client {
            true => (config.paper.or(theirs.0), config.sc.or(theirs.1)),
            false => (theirs.0.or(config.paper), theirs.1.or(config.sc)),
        };
        config.sc = config.sc.filter(|_| config.paper.is_none());
        config.initial_rtt = start.rtt.as_nanos().min(u128::from(u64::MAX)) as Nanos;
        config.recv_window = start.window.bytes;
        config.recv_credit = start.window.credit;
        config.recv_streams = start.window.streams;
        config.send_window = self.memory.send_window(self.sessions.len() + 1);
        config.peer_window = peer.receive_window;
        config.peer_credit = peer.receive_credit;
        config.peer_datagram_max = peer.max_udp_payload;
        config.peer_idle_timeout = peer.idle_timeout();
        config.paths_max = match config.paper {
            // The paper's mode knows one path.
            Some(_) => 1,
            None => own_paths_max.min(usize::from(peer.paths_max)) as u8,
        };
        config.bond = bond.filter(|_| config.paths_max > 1);
        if let Some(first) = self.options.paths.first().filter(|_| is_client) {
            config.policy = first.policy;
        }
        config.memory = memory;
        config
    }

    /// The driver of a session, which has taken the packets that came before, and the application's handle.
    fn associate(&mut self, now: Time, config: Config, start: Start<'_>) -> (Association, Session) {
        let Start {
            local_cid,
            place: (remote, _),
            window,
            peer,
            who,
            keys,
            is_early,
            ..
        } = start;
        let (service, further, path_memory) = match &self.purpose {
            Purpose::Connect {
                service, further, ..
            } => (*service, further.clone(), self.options.path_memory.clone()),
            // The client says which of those that are served it is to be.
            Purpose::Listen => (Service::of_wire(peer.service), Vec::new(), None),
        };
        let role = config.role;
        let is_client = role == Role::Client;
        // Generations carry streams only.
        let datagram_max = match config.sc {
            Some(_) => 0,
            None => usize::from(peer.datagram_max),
        };
        let core = Core::new(config, now);
        let waiting = self.holding.end(local_cid);
        // A client's first datagram left when its engine began.
        let started = match &waiting {
            Some(waiting) => waiting.since,
            None if is_client => Time::ZERO,
            None => now,
        };
        let shared = Shared::new(
            Arc::clone(&self.doorbell),
            local_cid,
            self.workshop.pool().clone(),
            remote,
            (role, peer.streams, datagram_max),
            self.base,
            started,
        );
        let datagrams = usize::try_from(window.datagrams()).unwrap_or(usize::MAX);
        shared.lock().queues.limit_datagrams(datagrams);
        let shared = Arc::new(
            shared
                .remembering(path_memory.map(PathFile::new))
                .of(who, service),
        );
        shared.set_shape(core.block_shape(1));
        let session = Session::new(Arc::clone(&shared));
        let keyed = (keys, self.coding(local_cid));
        let mut association =
            Association::new(core, keyed, is_client, shared, &self.options, self.counts());
        let bound = self.io.local_addr().ip();
        association.will_open((!bound.is_unspecified()).then_some(bound), further);
        if is_client {
            association.expect_reset(peer);
        }
        if is_early {
            association.begin_early(now, local_cid, &self.holding);
        }
        association.introduce();
        for mut held in waiting.into_iter().flat_map(|waiting| waiting.packets) {
            association.handle_datagram(now, held.origin, &mut held.datagram, &mut self.workshop);
        }
        (association, session)
    }

    /// The session is served from now on, and the others share the memory with it.
    fn register(&mut self, now: Time, cid: ConnectionId, member: Member) {
        self.memory.add(member.cost);
        self.sessions.insert(cid, member);
        self.share_memory(now);
    }

    /// A control connection is over; `by_peer`: because the peer closed it in peace.
    fn control_failed(&mut self, id: ConnId, error: Error, by_peer: bool) {
        if let Some(cid) = self.connections.remove(&id) {
            self.holding.end(cid);
            // Losing QUIC after the handshake is no loss. But a peer that closes it has no session
            // any more; a server that finds the proof wrong says so only after the client has begun
            // to send.
            let refused = matches!(
                error.kind(),
                ErrorKind::Authentication | ErrorKind::Protocol
            );
            if let Some(member) = self.sessions.wake(cid)
                && (by_peer || refused || member.association.is_early())
            {
                member.association.refused(error);
            }
            return;
        }
        self.attempts.fail(id, error);
    }

    /// The network says that nobody listens at `remote`. An attempt that goes on hearing that, and nothing
    /// else, is over.
    pub(super) fn attempt_refused(&mut self, clock: Instant, remote: SocketAddr) {
        let Some(id) = self.attempts.on_refused(clock, remote) else {
            return;
        };
        let traffic = self.control.traffic(id);
        if traffic.is_some_and(|traffic| traffic.datagrams_received > 0) {
            return;
        }
        self.control.close(clock, id, close_code::DONE, "");
        let message = format!("nobody listens at {remote}: the port is closed");
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = Error::new(ErrorKind::Unreachable, message).caused_by(refused);
        self.control_failed(id, error, false);
    }

    /// The client's next attempts; when to look again.
    pub(super) fn connect_more(&mut self, clock: Instant) -> Option<Duration> {
        // The first attempt has it.
        let mut resumption = match &mut self.purpose {
            Purpose::Connect { resumption, .. } => resumption.take(),
            Purpose::Listen => None,
        };
        let Purpose::Connect {
            service,
            ticket,
            remotes,
            ..
        } = &self.purpose
        else {
            return None;
        };
        if self.has_met {
            return None;
        }
        let elapsed = clock.saturating_duration_since(self.base);
        let mut beginner = None;
        while let Some(Remote { address, memory }) = self.attempts.next_due(remotes, elapsed) {
            let (paths, bond) = (self.own_paths_max(), self.own_bond());
            let settings = settings(&[*service], &self.options, paths, bond);
            let resumption = resumption.take();
            let begun =
                self.control
                    .connect(clock, *address, ticket, &settings, resumption.as_deref());
            match begun {
                Ok(begun) => {
                    let id = begun.id;
                    if let (Some(secret), Some(resumption)) = (begun.secret, resumption) {
                        beginner = Some(Beginner {
                            remote: *address,
                            handshake: (id, begun.cid, begun.window),
                            secret,
                            resumption,
                        });
                    }
                    if let Some(memory) = memory {
                        let rtt = Duration::from_nanos(memory.rtt);
                        self.control.remember(id, rtt, memory.plr);
                    }
                    self.attempts.begin(id, *address);
                }
                Err(why) => self.attempts.cannot_begin(error_of(why)),
            }
        }
        let timeout = self.options.connect_timeout;
        let hopeless = self.attempts.are_over(remotes);
        if hopeless || elapsed >= timeout {
            let names = ticket.addresses().join(", ");
            let unanswered = || {
                Error::new(
                    ErrorKind::Unreachable,
                    format!("no answer from {names} within {timeout:?}"),
                )
            };
            // That one address is refused says nothing about another that does not answer.
            let known = self.attempts.take_failure();
            let known = known.filter(|e| hopeless || e.kind() != ErrorKind::Unreachable);
            let error = known.unwrap_or_else(unanswered);
            self.end_early(&error);
            self.lobby.fail(error);
            self.stopping.get_or_insert(clock);
            return None;
        }
        self.attempts.will_begin(beginner);
        let next_try = self.attempts.next_delay(remotes);
        next_try
            .into_iter()
            .chain([timeout])
            .min()
            .map(|at| at.saturating_sub(elapsed))
    }

    pub(super) fn send_control(&mut self, clock: Instant) {
        let mut buf = Vec::new();
        // Where the socket takes nothing for a long time, more would only be memory.
        while self.io.tx().taken_bytes() < 2 * TURN_BYTES
            && let Some(transmit) = self.control.poll_transmit(clock, &mut buf)
        {
            let to = Destination {
                remote: transmit.remote,
                local_ip: transmit.local_ip,
                ecn: Ecn::NotEct,
            };
            // Without a frame it is lost, and QUIC sends it again.
            if let Some(frame) = self.io.tx().frame(&to, buf.len()) {
                frame.copy_from_slice(&buf);
            }
        }
    }
}

/// What to tell who runs a server of which an engine has so many sessions, and so many wait to be accepted; `None`: there may be more.
fn too_many(sessions: usize, waiting: usize) -> Option<String> {
    if waiting >= SESSIONS_MAX {
        return Some(format!("{waiting} sessions wait to be accepted already"));
    }
    (sessions >= SESSIONS_MAX).then(|| {
        format!("there are {sessions} sessions, the most of each of the --shards of a server")
    })
}

fn error_of(why: Failure) -> Error {
    let message = why.to_string();
    match why {
        Failure::Authentication(_) => Error::new(ErrorKind::Authentication, message),
        Failure::Protocol(_) => Error::new(ErrorKind::Protocol, message),
        Failure::Timeout | Failure::Unreachable(_) => Error::new(ErrorKind::Unreachable, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_a_server_is_told_how_many_are_too_many() {
        assert_eq!(too_many(SESSIONS_MAX - 1, SESSIONS_MAX - 1), None);
        let told = too_many(SESSIONS_MAX, 0).expect("as many as may be");
        assert!(told.contains("1024") && told.contains("--shards"), "{told}");
        let told = too_many(3, SESSIONS_MAX).expect("nobody accepts them");
        assert!(told.contains("1024") && told.contains("wait"), "{told}");
    }
}
