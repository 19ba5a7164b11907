//! The control plane: authenticates the two ends, agrees on keys and exchanges parameters, over
//! QUIC (`docs/protocol.md` §1 and §2).
//!
//! QUIC is quinn-proto's; none of its types leave this module. Nothing here reads a socket or a
//! clock, but for the age of Retry tokens. See [`Control`] for how to drive it.

mod door;
mod early;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod greeting;
mod params;
mod repeat;
mod reset;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use bytes::BytesMut;
use quinn_proto::{
    ConnectError, ConnectionHandle, ConnectionId as QuicConnectionId, DatagramEvent, Endpoint,
    EndpointEvent, Incoming, ServerConfig,
};
use sphinx_driver::keys::{EarlySecret, SECRET_LEN};
use sphinx_proto::Tuple;
use sphinx_proto::wire::{ConnectionId, MAX_DATAGRAM, ResetToken};
use zeroize::Zeroizing;

use crate::access::{AccessList, DOOR_KEY_LEN, Guests, NO_RANDOMNESS, Peer};
use crate::budget::Window;
use crate::routing::IdMaker;
use crate::shards::Loads;
use crate::ticket::{Identity, Ticket};
use door::{Door, is_first_flight, token};
use early::Resumptions;
pub(crate) use early::{
    Beginning, LIFETIME, PROMISED_CREDIT, PROMISED_STREAMS, PROMISED_WINDOW, Resumption,
};
use greeting::{GREETING_LEN, greeting, is_greeting};
#[cfg(any(test, fuzzing))]
pub(crate) use params::MAX_PARAMS_LEN;
pub(crate) use params::{Params, Service, Services};
use repeat::Copies;
pub(crate) use reset::ResetKey;
use reset::Resets;
pub(crate) use session::AMPLIFICATION_LIMIT;
use session::{OTHER_VERSION, Session, Trust, is_other_version};
pub(crate) use types::{Begun, ConnId, Event, Failure, Settings, Stats, Traffic, Transmit};

/// Unfinished handshakes that a server keeps; beyond, the oldest is forgotten.
const MAX_HANDSHAKES: usize = 1024;
/// From this many unfinished handshakes on, new clients have to show first that they receive what
/// is sent to their address (RFC 9000 §8.1.2).
const RETRY_FROM_HANDSHAKES: usize = 256;
/// After this, a server gives an unfinished handshake up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Answers waiting that belong to no connection.
const MAX_RESPONSES: usize = 64;

struct Server {
    door_key: [u8; DOOR_KEY_LEN],
    guests: Guests,
    /// Which of their lists the engine has been told of.
    guests_told: u64,
    settings: Settings,
    /// Why nobody is let in any more.
    ending: Option<&'static str>,
    resumptions: Resumptions,
    /// Tells clients of sessions that are forgotten, if it does.
    resets: Option<Resets>,
    /// Of one of several shards: where new sessions are to be.
    loads: Option<Loads>,
}

/// All control connections of one UDP port, of a client, a server, or both.
///
/// Inputs are [`connect`], [`close`], [`handle_datagram`] and [`handle_timeout`]; outputs are
/// [`poll_transmit`], [`poll_event`] and [`poll_timeout`]. After every input, and when the time of
/// `poll_timeout` has come, call `handle_timeout` if it has come, then `poll_transmit` and
/// `poll_event` until they return `None`, then `poll_timeout`. Time never steps back.
///
/// [`connect`]: Self::connect
/// [`close`]: Self::close
/// [`handle_datagram`]: Self::handle_datagram
/// [`handle_timeout`]: Self::handle_timeout
/// [`poll_transmit`]: Self::poll_transmit
/// [`poll_event`]: Self::poll_event
/// [`poll_timeout`]: Self::poll_timeout
pub(crate) struct Control {
    endpoint: Endpoint,
    ids: IdMaker,
    door: Door,
    server: Option<Server>,
    /// In boxes: nodes of the map are half empty.
    sessions: BTreeMap<usize, Box<Session>>,
    /// Those that need no connection any more, until they are closed: they have their share of the memory.
    settled: BTreeSet<ConnId>,
    serial: u64,
    /// The server's unfinished handshakes, oldest first.
    handshakes: BTreeSet<ConnId>,
    timers: BTreeSet<(Instant, usize)>,
    dirty: VecDeque<usize>,
    copies: Copies,
    responses: VecDeque<(Transmit, Vec<u8>)>,
    events: VecDeque<Event>,
    stats: Stats,
}

impl Control {
    /// Connects only, with connection ids of this maker.
    pub(crate) fn client(ids: IdMaker) -> Self {
        Self::new(None, None, ids)
    }

    /// Accepts clients with tickets of the identity, and keys, that `guests` lists.
    pub(crate) fn server(
        identity: &Identity,
        guests: Guests,
        settings: Settings,
        ids: IdMaker,
    ) -> Self {
        let server = Server {
            door_key: *identity.door_key(),
            guests_told: guests.current().1,
            guests,
            settings,
            ending: None,
            resumptions: Resumptions::default(),
            resets: None,
            loads: None,
        };
        Self::new(Some(server), Some(tls::server_config(identity)), ids)
    }

    /// The same server, which tells clients of sessions that it knows nothing of.
    pub(crate) fn with_resets(mut self, key: ResetKey) -> Self {
        if let Some(server) = &mut self.server {
            server.resets = Some(Resets::new(key));
        }
        self
    }

    /// The same server, as one of several shards that have as many sessions each as chance and their ends allow.
    pub(crate) fn with_loads(mut self, loads: Option<Loads>) -> Self {
        if let Some(server) = &mut self.server {
            server.loads = loads;
        }
        self
    }

    /// Lets the other shards know how many sessions there are here.
    pub(crate) fn tell_load(&mut self) {
        let sessions = self.load();
        if let Some(loads) = self.server.as_mut().and_then(|it| it.loads.as_mut()) {
            loads.tell(sessions);
        }
    }

    /// Sessions, and handshakes that are not over.
    fn load(&self) -> usize {
        self.sessions.len() + self.settled.len()
    }

    /// Whether it accepts clients.
    pub(crate) fn is_server(&self) -> bool {
        self.server.is_some()
    }

    /// A connection id for data packets to this end.
    pub(crate) fn make_id(&mut self) -> ConnectionId {
        self.ids.make()
    }

    /// What this end shows of an id of its own if it has forgotten the session; what clients promise would be worth nothing.
    pub(crate) fn reset_token(&self, cid: ConnectionId) -> Option<ResetToken> {
        let resets = self.server.as_ref()?.resets.as_ref()?;
        Some(resets.token(cid))
    }

    fn new(server: Option<Server>, config: Option<ServerConfig>, ids: IdMaker) -> Self {
        Self {
            endpoint: Endpoint::new(
                Arc::new(tls::endpoint_config(ids.place().cloned())),
                config.map(Arc::new),
                false,
                None,
            ),
            ids,
            door: Door::default(),
            server,
            sessions: BTreeMap::new(),
            settled: BTreeSet::new(),
            serial: 0,
            handshakes: BTreeSet::new(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            copies: Copies::default(),
            responses: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Who may connect, if that has changed since the last call.
    pub(crate) fn take_new_guests(&mut self) -> Option<Arc<AccessList>> {
        let server = self.server.as_mut()?;
        let (list, changes) = server.guests.current();
        let is_new = std::mem::replace(&mut server.guests_told, changes) != changes;
        is_new.then_some(list)
    }

    /// Lets nobody in from now on: who begins a handshake hears this, with the code of what is cancelled, as soon as QUIC can tell it.
    pub(crate) fn end(&mut self, why: &'static str) {
        if let Some(server) = &mut self.server {
            server.ending = Some(why);
        }
    }

    /// Begins a handshake with the server of `ticket`, at `remote`. It goes on until an event or [`close`](Self::close): the caller
    /// bounds the time. With a `resumption` the server is asked to take data packets at once, which these keys protect, and which are to be sent behind the
    /// first datagram; this end's connection id for the answers comes with them.
    ///
    /// # Errors
    ///
    /// [`Failure::Unreachable`] when `remote` is not an address to send to.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        ticket: &Ticket,
        settings: &Settings,
        resumption: Option<&Resumption>,
    ) -> Result<Begun, Failure> {
        // Who connects wants the session.
        let window = settings.window(0);
        let window = Window {
            credit: window.bytes,
            ..window
        };
        let params = local_params(settings, window, self.ids.make());
        let greeting = greeting(ticket.door_key(), random_bytes());
        let early = resumption.map(|resumption| EarlySecret::new(&resumption.secret, &greeting));
        let token = resumption
            .zip(early.as_ref())
            .map(|(resumption, early)| early::token(resumption, early, &params));
        let (mut config, wrong_server) = tls::client_config(ticket.pin(), token);
        config.initial_dst_cid_provider(Arc::new(move || QuicConnectionId::new(&greeting)));
        let (handle, conn) = self
            .endpoint
            .connect(now, config, remote, tls::SERVER_NAME)
            .map_err(|error| match error {
                ConnectError::InvalidRemoteAddress(_) => {
                    Failure::Unreachable(format!("{remote} is not an address to connect to"))
                }
                other => Failure::Unreachable(other.to_string()),
            })?;
        let id = self.next_id(handle);
        let trust = Trust::Shows(Box::new(ticket.clone()), wrong_server);
        let session = Session::new(id, conn, remote, None, params, trust);
        self.sessions.insert(handle.0, Box::new(session));
        self.door.expect(remote);
        self.drive(handle.0, now);
        Ok(Begun {
            id,
            cid: params.cid,
            window,
            secret: early,
        })
    }

    /// Of a server: with this, `who` may begin a later session, once.
    pub(crate) fn keep(
        &mut self,
        now: Instant,
        cid: ConnectionId,
        secret: Zeroizing<[u8; SECRET_LEN]>,
        who: Peer,
    ) {
        if let Some(server) = &mut self.server {
            server.resumptions.keep(now, cid, secret, who);
        }
    }

    /// Whether a session may be about to begin whose data packets carry this id, or begins, and nobody has been told of it.
    pub(crate) fn expects(&self, now: Instant, cid: ConnectionId) -> bool {
        let begins = |event: &Event| matches!(event, Event::Pending { local_cid, beginning: Some(_), .. } if *local_cid == cid);
        let server = self.server.as_ref();
        server.is_some_and(|server| server.resumptions.expects(now, cid))
            || self.events.iter().any(begins)
    }

    /// There is no room for this client after all: it hears why once the handshake is over.
    pub(crate) fn turn_away(&mut self, id: ConnId, why: &'static str) {
        if let Some(session) = self.session(id) {
            session.turned_away = Some(why);
        }
    }

    /// What an earlier session learned about the path of a handshake that has just begun: round trip, and share of packets lost.
    pub(crate) fn remember(&mut self, id: ConnId, rtt: Duration, plr: f64) {
        if let Some(session) = self.session(id) {
            session.remember(rtt, plr);
        }
    }

    /// Ends a connection, in whatever state; no event follows. Unknown and ended ones are ignored. One that has done its part is over already:
    /// nothing is said to the peer.
    ///
    /// `code` is one of the close codes of §2, `reason` for people, cut at 256 bytes.
    pub(crate) fn close(&mut self, now: Instant, id: ConnId, code: u64, reason: &str) {
        if self.settled.remove(&id) {
            return;
        }
        if let Some(session) = self.session(id) {
            session.close(now, code, reason);
            self.drive(id.handle, now);
        }
    }

    /// A datagram that is not of the data plane has arrived from `remote` at `local_ip` (`None`
    /// where the system does not tell). Anything may come: what is not QUIC is counted and dropped.
    ///
    /// Returns the other shard of the server that is to have it, if it is of a client whose session is to be there.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        datagram: &[u8],
    ) -> Option<usize> {
        let key = self.server.as_ref().map(|server| &server.door_key);
        if !self.door.admits(now, remote, key, datagram) {
            self.stats.ignored_datagrams += 1;
            return None;
        }
        let elsewhere = self.door.shard_of(datagram);
        if elsewhere.is_some() {
            return elsewhere;
        }
        let mut response = Vec::new();
        let event = self.endpoint.handle(
            now,
            remote,
            local_ip,
            None,
            BytesMut::from(datagram),
            &mut response,
        );
        match event {
            None => self.stats.ignored_datagrams += 1,
            Some(DatagramEvent::Response(transmit)) => {
                self.stats.ignored_datagrams += 1;
                self.respond(transmit_of(&transmit), response);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                return self.accept(now, incoming, datagram);
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(session) = self.sessions.get_mut(&handle.0) {
                    session.received(datagram.len());
                    session.conn.handle_event(event);
                    if is_first_flight(datagram) {
                        let whose = (session.id, session.stage());
                        for datagram in session.answer_again() {
                            let at_once = std::iter::once(Duration::ZERO);
                            self.copies.make(now, whose, datagram, at_once);
                        }
                    }
                    self.drive(handle.0, now);
                }
            }
        }
        None
    }

    /// A data packet of `len` bytes has come of a session that is not known here, nor has its id been of one that is. If it is not one that begins or has
    /// just been refused, its sender is told: who has sent it because of a session with this server, before it was started again, knows what that
    /// means, and nobody else does. Nothing else changes.
    pub(crate) fn answer_stray(
        &mut self,
        now: Instant,
        Tuple { remote, local_ip }: Tuple,
        cid: ConnectionId,
        len: usize,
    ) {
        let resets = self.server.as_mut().and_then(|it| it.resets.as_mut());
        if !resets.is_some_and(|resets| resets.may_answer(now, len)) || self.expects(now, cid) {
            return;
        }
        let mut sessions = self.sessions.values();
        if sessions.any(|session| session.may_have_sent(cid, remote)) {
            return;
        }
        let resets = self.server.as_ref().and_then(|it| it.resets.as_ref());
        let answer = resets.map(|resets| resets.answer(cid).to_vec());
        if let Some(answer) = answer {
            self.respond(Transmit { remote, local_ip }, answer);
        }
    }

    /// Does what is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some((due, handle)) = self.timers.first().copied() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            let Some(session) = self.sessions.get_mut(&handle) else {
                continue;
            };
            session.timer = None;
            if session.deadline.is_some_and(|deadline| deadline <= now) && session.is_handshaking()
            {
                session.time_out(&mut self.events);
                self.forget(handle);
                continue;
            }
            session.conn.handle_timeout(now);
            self.drive(handle, now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) are
    /// to be called next, if nothing arrives before.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(due, _)| *due);
        [timer, self.copies.next_due()].into_iter().flatten().min()
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Puts the next datagram (at most 1200 bytes) to be sent at `now` into `buf` in place of what
    /// was there. Control datagrams carry no ECN mark.
    pub(crate) fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        buf.clear();
        if let Some((transmit, response)) = self.responses.pop_front() {
            *buf = response;
            return Some(transmit);
        }
        while let Some(copy) = self.copies.pop_due(now) {
            let Some(session) = self.session(copy.id) else {
                continue;
            };
            if session.stage() != copy.stage {
                continue;
            }
            if session.may_send(copy.datagram.len()) {
                let transmit = session.transmit();
                self.stats.repeated_datagrams += 1;
                buf.extend_from_slice(&copy.datagram);
                return Some(transmit);
            }
            self.stats.withheld_datagrams += 1;
        }
        while let Some(handle) = self.dirty.front().copied() {
            let Some(session) = self.sessions.get_mut(&handle) else {
                self.dirty.pop_front();
                continue;
            };
            buf.clear();
            if session.conn.poll_transmit(now, 1, buf).is_none() {
                session.dirty = false;
                self.dirty.pop_front();
                match session.is_settled() {
                    true => self.let_go(handle),
                    false => self.schedule(handle),
                }
                continue;
            }
            if !session.may_send(buf.len()) {
                self.stats.withheld_datagrams += 1;
                continue;
            }
            let datagram: Arc<[u8]> = buf.as_slice().into();
            if let Some(delays) = session.repetition(&datagram) {
                let whose = (session.id, session.stage());
                self.copies.make(now, whose, &datagram, delays);
            }
            return Some(session.transmit());
        }
        None
    }

    /// What a connection has sent and received; `None` once it is forgotten.
    pub(crate) fn traffic(&self, id: ConnId) -> Option<Traffic> {
        let session = self.sessions.get(&id.handle);
        session
            .filter(|session| session.id == id)
            .map(|session| session.traffic)
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// A client wants to begin; the shard where it is to, if that is another one.
    fn accept(&mut self, now: Instant, incoming: Incoming, datagram: &[u8]) -> Option<usize> {
        let load = self.load();
        let Some(server) = &self.server else {
            self.endpoint.ignore(incoming);
            return None;
        };
        let mut response = Vec::new();
        let greeting = <[u8; GREETING_LEN]>::try_from(&incoming.orig_dst_cid()[..]);
        let Some(greeting) = greeting
            .ok()
            .filter(|cid| is_greeting(&server.door_key, cid))
        else {
            // The client hears at once that its ticket is of no use here; nothing is kept.
            let transmit = self.endpoint.refuse(incoming, &mut response);
            self.respond(transmit_of(&transmit), response);
            self.stats.failed_handshakes += 1;
            return None;
        };
        if self.handshakes.len() >= RETRY_FROM_HANDSHAKES && incoming.may_retry() {
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut response) {
                self.respond(transmit_of(&transmit), response);
            }
            return None;
        }
        if !self.door.may_begin(greeting) {
            self.endpoint.ignore(incoming);
            self.stats.ignored_datagrams += 1;
            return None;
        }
        // What this shard has asked of a client in a Retry, or another one has placed here, stays here.
        let loads = server.loads.as_ref().filter(|_| incoming.may_retry());
        let head = greeting.first_chunk().copied();
        let elsewhere = |loads: &Loads| loads.place_elsewhere(head?, load);
        if let Some(shard) = loads.and_then(elsewhere) {
            self.door.begins_at(greeting, shard);
            self.endpoint.ignore(incoming);
            return Some(shard);
        }
        self.begin(now, incoming, datagram, greeting);
        None
    }

    /// A handshake begins.
    fn begin(
        &mut self,
        now: Instant,
        incoming: Incoming,
        datagram: &[u8],
        greeting: [u8; GREETING_LEN],
    ) {
        let load = self.load();
        let Some(server) = &mut self.server else {
            return;
        };
        let window = server.settings.window(load);
        let mut params = local_params(&server.settings, window, self.ids.make());
        params.resumption = server.settings.resumptions.then(|| self.ids.make());
        let trust = Trust::Asks(server.guests.clone(), server.door_key);
        let ending = server.ending;
        let mut response = Vec::new();
        let list = server.guests.current().0;
        let resumptions = &mut server.resumptions;
        let serves = |service| server.settings.serves(service);
        let beginning = token(datagram)
            .filter(|_| ending.is_none())
            .and_then(|token| resumptions.take(now, &greeting, token, (&list, serves)));
        // The client sees by the id that the server goes on with what it has sent.
        let beginning = beginning.map(|(cid, beginning)| {
            params.cid = cid;
            Box::new(beginning)
        });
        params.reset_token = server.resets.as_ref().map(|it| it.token(params.cid));
        if self.handshakes.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.handshakes.first().copied()
            && let Some(session) = self.sessions.get_mut(&oldest.handle)
        {
            session.time_out(&mut self.events);
            self.forget(oldest.handle);
        }
        let (remote, local_ip) = (incoming.remote_address(), incoming.local_ip());
        match self.endpoint.accept(incoming, now, &mut response, None) {
            Ok((handle, conn)) => {
                let id = self.next_id(handle);
                let mut session = Session::new(id, conn, remote, local_ip, params, trust);
                session.deadline = Some(now + HANDSHAKE_TIMEOUT);
                session.turned_away = ending;
                session.received(datagram.len());
                session.began = beginning.as_ref().map(|it| (it.peer, it.who));
                self.events.push_back(Event::Pending {
                    id,
                    local_cid: session.local_cid(),
                    place: (remote, local_ip),
                    window,
                    beginning,
                });
                self.sessions.insert(handle.0, Box::new(session));
                self.handshakes.insert(id);
                self.drive(handle.0, now);
            }
            Err(error) => {
                self.stats.failed_handshakes += 1;
                self.door.did_not_begin(greeting);
                if is_other_version(&error.cause) {
                    let why = Failure::Protocol(OTHER_VERSION.into());
                    self.events.push_back(Event::Refused(why));
                }
                if let Some(transmit) = error.response {
                    self.respond(transmit_of(&transmit), response);
                }
            }
        }
    }

    fn respond(&mut self, transmit: Transmit, datagram: Vec<u8>) {
        if self.responses.len() < MAX_RESPONSES {
            self.responses.push_back((transmit, datagram));
        }
    }

    /// Lets a connection, its endpoint and its session talk until they have no more to say, and
    /// marks it for `poll_transmit`.
    fn drive(&mut self, handle: usize, now: Instant) {
        let Some(session) = self.sessions.get_mut(&handle) else {
            return;
        };
        session.advance(now, &mut self.events);
        loop {
            while let Some(event) = session.conn.poll_endpoint_events() {
                let answer = self.endpoint.handle_event(ConnectionHandle(handle), event);
                if let Some(answer) = answer {
                    session.conn.handle_event(answer);
                }
            }
            let Some(event) = session.conn.poll() else {
                break;
            };
            session.handle(now, event, &mut self.events);
        }
        if !session.is_handshaking() && self.handshakes.remove(&session.id) && session.is_over() {
            self.stats.failed_handshakes += 1;
        }
        if session.conn.is_drained() {
            self.remove(handle);
            return;
        }
        if !session.dirty {
            session.dirty = true;
            self.dirty.push_back(handle);
        }
        self.schedule(handle);
    }

    /// Brings the list of timers up to date.
    fn schedule(&mut self, handle: usize) {
        let Some(session) = self.sessions.get_mut(&handle) else {
            return;
        };
        let deadline = session.deadline.filter(|_| session.is_handshaking());
        let timer = [session.conn.poll_timeout(), deadline]
            .into_iter()
            .flatten()
            .min();
        if timer != session.timer {
            if let Some(old) = session.timer {
                self.timers.remove(&(old, handle));
            }
            self.timers.extend(timer.map(|due| (due, handle)));
            session.timer = timer;
        }
    }

    /// Drops a handshake without a word to the peer.
    fn forget(&mut self, handle: usize) {
        self.stats.failed_handshakes += 1;
        self.drop_connection(handle);
    }

    /// Drops a connection that has done its part: what is left of the session needs nothing of it, and it is most of what one at rest would hold.
    fn let_go(&mut self, handle: usize) {
        if let Some(session) = self.drop_connection(handle) {
            let (id, traffic) = (session.id, session.traffic);
            self.settled.insert(id);
            self.events.push_back(Event::Settled { id, traffic });
        }
    }

    fn drop_connection(&mut self, handle: usize) -> Option<Box<Session>> {
        self.endpoint
            .handle_event(ConnectionHandle(handle), EndpointEvent::drained());
        self.remove(handle)
    }

    /// Drops what this end knows of a connection that the endpoint has dropped.
    fn remove(&mut self, handle: usize) -> Option<Box<Session>> {
        let session = self.sessions.remove(&handle)?;
        self.handshakes.remove(&session.id);
        if let Some(timer) = session.timer {
            self.timers.remove(&(timer, handle));
        }
        Some(session)
    }

    fn session(&mut self, id: ConnId) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&id.handle)?;
        (session.id == id).then_some(&mut **session)
    }

    fn next_id(&mut self, handle: ConnectionHandle) -> ConnId {
        self.serial += 1;
        ConnId {
            serial: self.serial,
            handle: handle.0,
        }
    }
}

/// Where QUIC wants an answer that belongs to no connection to go.
fn transmit_of(transmit: &quinn_proto::Transmit) -> Transmit {
    Transmit {
        remote: transmit.destination,
        local_ip: transmit.src_ip,
    }
}

fn local_params(settings: &Settings, window: Window, cid: ConnectionId) -> Params {
    Params {
        datagram_max: MAX_DATAGRAM as u16,
        cid,
        service: settings.service,
        services: settings.services,
        receive_window: window.bytes,
        receive_credit: window.credit,
        streams: window.streams,
        paths_max: settings.paths_max,
        bond: settings.bond,
        idle_timeout_ms: Some(settings.idle_timeout_ms),
        max_udp_payload: settings.max_udp_payload,
        // Whoever uses it may make this end keep four times as much of a block as the window counts: measurements are worth that.
        sc: Some(settings.sc),
        paper: (settings.serves(Service::PERF) || settings.paper.is_some())
            .then_some(settings.paper),
        resumption: None,
        credential: None,
        reset_token: None,
    }
}

/// `N` random bytes that nobody can guess.
///
/// # Panics
///
/// When the operating system gives no randomness.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect(NO_RANDOMNESS);
    bytes
}
