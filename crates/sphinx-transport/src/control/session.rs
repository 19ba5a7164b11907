//! One QUIC connection of the control plane: exchanges proof and parameters.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, Dir, Event as QuicEvent, ReadError, StreamEvent, StreamId,
    TransportErrorCode, VarInt,
};
use sphinx_proto::wire::{ConnectionId, MAX_REASON_LEN};
use zeroize::Zeroizing;

use super::params::{Credential, MAX_PARAMS_LEN, Params};
use super::repeat::{Known, Stage};
use super::{ConnId, Event, Failure, Service, Traffic, Transmit};
use crate::access::{DOOR_KEY_LEN, Guests, Peer, is_signed_by};
use crate::budget::Window;
use crate::error::close_code;
use crate::ticket::{Ticket, joined};
use sphinx_driver::keys::{Direction, SECRET_LEN, SessionSecret};

/// Longest message on a stream: proof and parameters.
pub(super) const MAX_MESSAGE_LEN: usize = SECRET_LEN + MAX_PARAMS_LEN;
const EXPORTER_LABEL: &[u8] = b"EXPORTER-sphinx/2";
/// Datagrams of one connection that are repeated; a handshake has about four.
const MAX_REPEATED: u32 = 32;
/// Datagrams with CONNECTION_CLOSE that are repeated. QUIC answers every late packet with one.
const MAX_REPEATED_CLOSES: u32 = 2;
/// Smaller datagrams hold acknowledgements only.
const MIN_REPEATED_LEN: usize = 64;
/// Times that a server answers a repeated first flight with its own again. A client sends no more copies of its own accord.
const MAX_ANSWERED_AGAIN: u32 = 4;
/// Bytes that an end may send to an address that has not been validated, per byte received from it (RFC 9000 §8.1).
pub(crate) const AMPLIFICATION_LIMIT: u64 = 3;
/// TLS alert no_application_protocol (RFC 7301 §3.2): the ends have no version in common.
const NO_APPLICATION_PROTOCOL: u8 = 120;
pub(super) const OTHER_VERSION: &str = "the other end speaks another version of the protocol (this \
                                        program: version 2); use the same release on both ends";

/// How an end authenticates itself or its peer.
pub(super) enum Trust {
    /// A client: its ticket, and the flag that the certificate verifier sets when the server is not the ticket's.
    Shows(Box<Ticket>, Arc<AtomicBool>),
    /// A server: the clients that it admits, and the door key that all its tickets have in common.
    Asks(Guests, [u8; DOOR_KEY_LEN]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Handshaking,
    Established,
    /// The connection is over, and the engine knows: it has been told, or has ended it itself.
    Over,
}

pub(super) struct Session {
    pub(super) id: ConnId,
    pub(super) conn: Connection,
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    /// When an unfinished handshake is given up; the server's only.
    pub(super) deadline: Option<Instant>,
    /// When the connection's timer in the endpoint's list runs out; `None` if there is none.
    pub(super) timer: Option<Instant>,
    /// In the endpoint's list of connections to poll.
    pub(super) dirty: bool,
    connects: bool,
    local: Params,
    trust: Trust,
    state: State,
    /// The TLS exporter's secret, from which the data plane's keys are derived; `None` until the TLS handshake is complete.
    exporter: Option<Zeroizing<[u8; SECRET_LEN]>>,
    /// The stream on which this end sends its message (proof and parameters).
    pub(super) outgoing: Option<StreamId>,
    /// The peer has acknowledged our message.
    delivered: bool,
    incoming: Option<StreamId>,
    message: Vec<u8>,
    message_complete: bool,
    /// The peer has shown that it receives what is sent to its address.
    address_validated: bool,
    pub(super) traffic: Traffic,
    repeats_left: u32,
    known: Known,
    /// At a server: the datagrams of its first flight, as long as the client may not have them.
    flight: Vec<Arc<[u8]>>,
    /// How often they may still be sent again because the client has repeated its own.
    answers_left: u32,
    /// This end has found a reason to end the connection.
    closing: bool,
    /// At a server, if the session began before the handshake was over: what the client said of itself then, and who it was.
    pub(super) began: Option<(Params, Peer)>,
    /// At a server: why the client is not admitted whoever it is, if that is so: this end stops, or has no room.
    pub(super) turned_away: Option<&'static str>,
}

/// The session must end, with this close code and these words for the peer.
struct Fault {
    why: Failure,
    code: u64,
    reason: String,
}

impl Fault {
    /// A client with some ticket of this server, or with one that was revoked.
    fn stranger() -> Self {
        Self {
            why: Failure::Authentication("a client has no ticket or key that is known".into()),
            code: close_code::AUTHENTICATION,
            reason: "this ticket or key is not known there, or was revoked or used up".into(),
        }
    }

    /// A client that comes when nobody is let in any more.
    fn turned_away(why: &str) -> Self {
        Self {
            why: Failure::Unreachable(why.into()),
            code: close_code::CANCELLED,
            reason: why.into(),
        }
    }

    fn protocol(message: impl Into<String>) -> Self {
        let reason = message.into();
        Self {
            why: Failure::Protocol(reason.clone()),
            code: close_code::PROTOCOL,
            reason,
        }
    }
}

impl Session {
    pub(super) fn new(
        id: ConnId,
        conn: Connection,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        local: Params,
        trust: Trust,
    ) -> Self {
        let connects = conn.side().is_client();
        Self {
            id,
            conn,
            remote,
            local_ip,
            deadline: None,
            timer: None,
            dirty: false,
            connects,
            local,
            trust,
            state: State::Handshaking,
            exporter: None,
            outgoing: None,
            delivered: false,
            incoming: None,
            message: Vec::new(),
            message_complete: false,
            address_validated: connects,
            traffic: Traffic::default(),
            repeats_left: MAX_REPEATED,
            known: Known::default(),
            flight: Vec::new(),
            answers_left: MAX_ANSWERED_AGAIN,
            closing: false,
            began: None,
            turned_away: None,
        }
    }

    /// What an earlier session has learned about the path.
    pub(super) fn remember(&mut self, rtt: Duration, plr: f64) {
        let rtt = Some(rtt);
        self.known = Known { rtt, plr };
    }

    pub(super) fn local_cid(&self) -> ConnectionId {
        self.local.cid
    }

    /// Whether a data packet that says so, or one from there, may be of its session, although nobody knows that: it is about to begin, or has just been refused.
    pub(super) fn may_have_sent(&self, cid: ConnectionId, remote: SocketAddr) -> bool {
        self.local.cid == cid || self.is_handshaking() && self.remote == remote
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.state == State::Handshaking
    }

    /// Whether the engine need not hear of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    pub(super) fn transmit(&self) -> Transmit {
        Transmit {
            remote: self.remote,
            local_ip: self.local_ip,
        }
    }

    /// A datagram of this connection has arrived.
    pub(super) fn received(&mut self, bytes: usize) {
        self.traffic.bytes_received += bytes as u64;
        self.traffic.datagrams_received += 1;
    }

    /// Whether the peer has shown that it receives what is sent to its address.
    #[cfg(test)]
    pub(super) fn is_validated(&self) -> bool {
        self.address_validated
    }

    /// Whether `bytes` more may be sent to the peer's address now; if so, counts them.
    pub(super) fn may_send(&mut self, bytes: usize) -> bool {
        let sent = self.traffic.bytes_sent + bytes as u64;
        let limit = AMPLIFICATION_LIMIT * self.traffic.bytes_received;
        let allowed = self.address_validated || sent <= limit;
        if allowed {
            self.traffic.bytes_sent = sent;
            self.traffic.datagrams_sent += 1;
        }
        allowed
    }

    /// Whether both ends have what the other one has said, and nothing is under way that would be repeated or acknowledged.
    pub(super) fn is_settled(&mut self) -> bool {
        self.stage() == Stage::Settled && self.conn.poll_timeout().is_none()
    }

    /// How far the connection is.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            _ if self.closing => Stage::Closing,
            _ if self.conn.is_closed() => Stage::Closed,
            _ if self.conn.is_handshaking() => Stage::Handshake,
            State::Established if self.delivered => Stage::Settled,
            _ => Stage::Messages,
        }
    }

    /// When `datagram`, now being sent, is to be sent again: until the handshake is over in both directions, and when it
    /// says that the connection is.
    pub(super) fn repetition(
        &mut self,
        datagram: &Arc<[u8]>,
    ) -> Option<impl Iterator<Item = Duration> + use<>> {
        let stage = self.stage();
        let repeats = match stage {
            Stage::Handshake | Stage::Messages => datagram.len() >= MIN_REPEATED_LEN,
            Stage::Closing => true,
            Stage::Settled | Stage::Closed => false,
        } && self.repeats_left > 0;
        if !repeats {
            return None;
        }
        self.repeats_left -= 1;
        if stage == Stage::Handshake && !self.connects {
            self.flight.push(datagram.clone());
        }
        if stage == Stage::Messages && self.known.rtt.is_none() {
            self.known.rtt = Some(self.conn.min_rtt());
        }
        Some(self.known.delays(stage != Stage::Closing))
    }

    /// The client has sent its first flight again: it knows of losses, or the answer is late. What to send again at once.
    pub(super) fn answer_again(&mut self) -> &[Arc<[u8]>] {
        if self.stage() != Stage::Handshake || self.answers_left == 0 {
            self.flight.clear();
        }
        self.answers_left = self.answers_left.saturating_sub(1);
        &self.flight
    }

    /// Ends the connection without an event.
    pub(super) fn close(&mut self, now: Instant, code: u64, reason: &str) {
        self.state = State::Over;
        self.begin_closing();
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        let reason = Bytes::copy_from_slice(cut(reason).as_bytes());
        self.conn.close(now, code, reason);
    }

    /// Ends the handshake that has taken too long.
    pub(super) fn time_out(&mut self, events: &mut impl Extend<Event>) {
        self.over(events, Event::failed(self.id, Failure::Timeout));
    }

    /// Reacts to what the connection has to tell.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        event: QuicEvent,
        events: &mut impl Extend<Event>,
    ) {
        match event {
            QuicEvent::Connected => self.address_validated = true,
            QuicEvent::ConnectionLost { reason } => {
                if matches!(reason, ConnectionError::TransportError(_)) {
                    self.begin_closing();
                }
                if let Some(event) = self.ending(reason) {
                    self.over(events, event);
                }
            }
            QuicEvent::Stream(StreamEvent::Finished { id }) if Some(id) == self.outgoing => {
                self.delivered = true;
            }
            _ => {}
        }
        self.advance(now, events);
    }

    /// Goes on with the handshake as far as possible.
    pub(super) fn advance(&mut self, now: Instant, events: &mut impl Extend<Event>) {
        if self.conn.is_closed() {
            return;
        }
        match self.try_advance() {
            Ok(None) => {}
            Ok(Some(established)) => events.extend([established]),
            Err(fault) => {
                self.over(events, Event::failed(self.id, fault.why));
                self.close(now, fault.code, &fault.reason);
            }
        }
    }

    fn try_advance(&mut self) -> Result<Option<Event>, Fault> {
        let connected = !self.conn.is_handshaking();
        if connected && self.exporter.is_none() && self.is_handshaking() {
            self.exporter = Some(self.export()?);
        }
        if let Some(why) = self.turned_away {
            // Said in the handshake, it would reach the client without its code; and a client that heard the server's message would take itself for let in.
            return match connected {
                true => Err(Fault::turned_away(why)),
                false => Ok(None),
            };
        }
        // The server speaks as soon as QUIC lets it, the client when it can prove something.
        if self.outgoing.is_none() && (connected || !self.connects) {
            self.send_message(connected)?;
        }
        if connected {
            self.read_message()?;
        }
        if self.message_complete && self.is_handshaking() {
            return self.establish().map(Some);
        }
        Ok(None)
    }

    fn export(&self) -> Result<Zeroizing<[u8; SECRET_LEN]>, Fault> {
        let mut exporter = Zeroizing::new([0; SECRET_LEN]);
        self.conn
            .crypto_session()
            .export_keying_material(exporter.as_mut_slice(), EXPORTER_LABEL, b"")
            .map_err(|_| Fault::protocol("TLS gives no key material"))?;
        Ok(exporter)
    }

    /// Proof (the client's only) and parameters. `required`: QUIC has no reason to say "later".
    fn send_message(&mut self, required: bool) -> Result<(), Fault> {
        let Some(id) = self.conn.streams().open(Dir::Uni) else {
            return if required {
                Err(Fault::protocol("the other end accepts no stream"))
            } else {
                Ok(())
            };
        };
        self.outgoing = Some(id);
        let mut message = Vec::with_capacity(MAX_MESSAGE_LEN);
        let mut local = self.local;
        if let (Trust::Shows(ticket, _), Some(exporter)) = (&self.trust, &self.exporter) {
            let proof = SessionSecret::new(ticket.secret(), exporter).proof();
            message.extend_from_slice(proof.as_slice());
            local.credential = credential(ticket, &proof);
        }
        message.extend_from_slice(&local.encode());
        let mut stream = self.conn.send_stream(id);
        let written = stream.write(&message).ok();
        if written != Some(message.len()) || stream.finish().is_err() {
            return Err(Fault::protocol(
                "the other end's stream window is too small",
            ));
        }
        Ok(())
    }

    fn read_message(&mut self) -> Result<(), Fault> {
        const EXTRA: &str = "the other end opened a second stream";
        if self.incoming.is_none() {
            self.incoming = self.conn.streams().accept(Dir::Uni);
        } else if self.conn.streams().accept(Dir::Uni).is_some() {
            return Err(Fault::protocol(EXTRA));
        }
        let Some(id) = self.incoming.filter(|_| !self.message_complete) else {
            return Ok(());
        };
        let limit = MAX_PARAMS_LEN + if self.connects { 0 } else { SECRET_LEN };
        let mut stream = self.conn.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            return Err(Fault::protocol("the other end's stream cannot be read"));
        };
        let result = loop {
            match chunks.next(limit + 1) {
                Ok(Some(chunk)) if self.message.len() + chunk.bytes.len() > limit => {
                    break Err(Fault::protocol("the other end's parameters are too long"));
                }
                Ok(Some(chunk)) => self.message.extend_from_slice(&chunk.bytes),
                Ok(None) => {
                    self.message_complete = true;
                    break Ok(());
                }
                Err(ReadError::Blocked) => break Ok(()),
                Err(ReadError::Reset(_)) => {
                    break Err(Fault::protocol("the other end reset its stream"));
                }
            }
        };
        // The connection is polled for datagrams after every call in any case.
        let _ = chunks.finalize();
        result
    }

    /// The peer's message is complete: checks it.
    fn establish(&mut self) -> Result<Event, Fault> {
        let mut message = self.message.as_slice();
        let Some(exporter) = self.exporter.take() else {
            return Err(Fault::protocol("parameters before the handshake's end"));
        };
        let decode = |message: &[u8]| {
            let decoded = Params::decode(message);
            decoded.map_err(|error| Fault::protocol(format!("the other end's parameters: {error}")))
        };
        let (secret, who, peer) = match &self.trust {
            Trust::Shows(ticket, _) => {
                let secret = SessionSecret::new(ticket.secret(), &exporter);
                (secret, None, decode(message)?)
            }
            Trust::Asks(guests, door_key) => {
                let (proof, rest) = message.split_first_chunk().ok_or_else(Fault::stranger)?;
                message = rest;
                let peer = decode(message)?;
                let found = identify(peer.credential.as_ref(), proof, guests, door_key, &exporter);
                let (secret, who) = found.ok_or_else(Fault::stranger)?;
                if let Some((said, was)) = &self.began {
                    let peer = Params {
                        credential: None,
                        ..peer
                    };
                    if who != *was {
                        return Err(Fault::stranger());
                    }
                    if peer != *said {
                        return Err(Fault::protocol("other parameters than before"));
                    }
                }
                (secret, Some(who), peer)
            }
        };
        let (ours, theirs) = (self.local.service, peer.service);
        let served = match self.connects {
            true => peer.serves(ours),
            false => self.local.serves(theirs),
        };
        if !served {
            // Each end is told in its own terms.
            let message = |ours: Service, theirs: Service, connects: bool| {
                format!(
                    "the other end is {}, not {}",
                    theirs.role(!connects),
                    ours.role(!connects)
                )
            };
            return Err(Fault {
                why: Failure::Protocol(message(ours, theirs, self.connects)),
                code: close_code::PROTOCOL,
                reason: message(theirs, ours, !self.connects),
            });
        }
        // The client says what the session is for.
        let service = if self.connects { ours } else { theirs };
        if self.local.paper.flatten().is_some() && !peer.follows_paper(service) {
            return Err(Fault::protocol(match peer.paper {
                None => "the other end does not know the paper's mode: it is of an older version",
                Some(_) => "the other end knows the paper's mode for measurements only",
            }));
        }
        // Nobody is made to work so who has not said that he would.
        let follows = self.local.follows_paper(service);
        let peer = Params {
            paper: peer.paper.filter(|_| follows),
            ..peer
        };
        if self.local.sc.flatten().is_some() && peer.sc.is_none() {
            return Err(Fault::protocol(
                "the other end knows neither sc, sc:rlnc, min-rtt nor ecf: it is of an older version",
            ));
        }
        self.state = State::Established;
        self.message = Vec::new();
        let resumption = match self.connects {
            true => peer.resumption,
            false => self.local.resumption,
        };
        Ok(Event::Established {
            id: self.id,
            remote: self.remote,
            local_ip: self.local_ip,
            local_cid: self.local.cid,
            window: Window {
                bytes: self.local.receive_window,
                credit: self.local.receive_credit,
                streams: self.local.streams,
            },
            peer: Box::new(peer),
            who,
            secret,
            direction: if self.connects {
                Direction::ClientToServer
            } else {
                Direction::ServerToClient
            },
            resumption,
            rtt: self.conn.min_rtt(),
        })
    }

    /// What the loss of the connection means for the engine.
    fn ending(&self, error: ConnectionError) -> Option<Event> {
        let why = match error {
            ConnectionError::LocallyClosed => return None,
            ConnectionError::ApplicationClosed(close) => {
                let reason = printable(&close.reason);
                match close.error_code.into_inner() {
                    close_code::AUTHENTICATION => Failure::Authentication(reason),
                    close_code::PROTOCOL => Failure::Protocol(reason),
                    code => {
                        return Some(Event::Closed {
                            id: self.id,
                            code,
                            reason,
                        });
                    }
                }
            }
            _ if self.is_wrong_server() => Failure::Authentication(format!(
                "the server at {} is not the one that made the ticket",
                self.remote
            )),
            ConnectionError::TimedOut => Failure::Timeout,
            ConnectionError::Reset => {
                Failure::Unreachable("the other end no longer knows this connection".into())
            }
            ConnectionError::CidsExhausted => {
                Failure::Unreachable("no more connections are possible here".into())
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                Failure::Authentication(format!(
                    "the other end at {} does not know this ticket",
                    self.remote
                ))
            }
            ConnectionError::VersionMismatch => {
                Failure::Protocol("the other end speaks another version of QUIC".into())
            }
            error if is_other_version(&error) => Failure::Protocol(OTHER_VERSION.into()),
            ConnectionError::ConnectionClosed(_) | ConnectionError::TransportError(_) => {
                Failure::Protocol(printable(error.to_string().as_bytes()))
            }
        };
        Some(Event::failed(self.id, why))
    }

    fn is_wrong_server(&self) -> bool {
        matches!(&self.trust, Trust::Shows(_, wrong) if wrong.load(Ordering::Relaxed))
    }

    fn begin_closing(&mut self) {
        self.closing = true;
        self.repeats_left = MAX_REPEATED_CLOSES;
    }

    /// Tells the engine once.
    fn over(&mut self, events: &mut impl Extend<Event>, event: Event) {
        if self.state != State::Over {
            self.state = State::Over;
            events.extend([event]);
        }
    }
}

/// What a client says of itself in the session with this proof.
fn credential(ticket: &Ticket, proof: &[u8; SECRET_LEN]) -> Option<Credential> {
    let ticket_id = ticket.own_secret().map(|secret| secret.id());
    let signed = ticket.key().map(|key| (key.public_key(), key.sign(proof)));
    match (ticket_id, signed) {
        (Some(id), None) => Some(Credential::Ticket(id)),
        (None, Some((key, signature))) => Some(Credential::Key(key, signature)),
        (Some(id), Some((key, signature))) => Some(Credential::Both(id, key, signature)),
        (None, None) => None,
    }
}

/// Who a client is, and what the keys of its session are made of; `None` if it may not come, or is not who it says.
pub(super) fn identify(
    credential: Option<&Credential>,
    proof: &[u8; SECRET_LEN],
    guests: &Guests,
    door_key: &[u8; DOOR_KEY_LEN],
    exporter: &[u8; SECRET_LEN],
) -> Option<(SessionSecret, Peer)> {
    let (who, signed) = match credential? {
        Credential::Ticket(id) => (Peer::Ticket(*id), None),
        Credential::Key(key, signature) => (Peer::Key(*key), Some((key, signature))),
        Credential::Both(id, key, signature) => (Peer::Both(*id, *key), Some((key, signature))),
    };
    let mut list = guests.current().0;
    if !list.admits(&who) {
        // Who was invited a moment ago need not have been told of yet.
        list = guests.looked_after();
    }
    if !list.admits(&who) {
        return None;
    }
    let own = who.ticket().and_then(|id| list.secret_of(&id));
    let secret = SessionSecret::new(&joined(door_key, own), exporter);
    let is_signed = signed.is_none_or(|(key, signature)| is_signed_by(key, proof, signature));
    (secret.verify_proof(proof) && is_signed).then_some((secret, who))
}

/// Whether one end has found that the other speaks none of its versions.
pub(super) fn is_other_version(error: &ConnectionError) -> bool {
    let code = match error {
        ConnectionError::ConnectionClosed(close) => close.error_code,
        ConnectionError::TransportError(error) => error.code,
        _ => return false,
    };
    code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL)
}

/// Words of the peer, fit for a terminal.
fn printable(words: &[u8]) -> String {
    let words = &words[..words.len().min(MAX_REASON_LEN)];
    String::from_utf8_lossy(words)
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// As much of a reason as is sent, ending with a whole character.
fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON_LEN)]
}
