//! The engine: one thread that owns the socket, the control plane and all sessions of an endpoint
//! (the paper's distributor, with coding and sealing done inline).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sphinx_fec::{BlockDecoder, Encoder};
use sphinx_net::{
    BufferPool, Destination, Ecn, Interest, PacketIo, SendQueue, minimise_timer_slack,
};
use sphinx_proto::wire::{ConnectionId, is_data_plane};
use sphinx_proto::{Config, Nanos, Role, Session as Core, Tuple};

use crate::association::{Association, Origin, Workshop};
use crate::control::{
    ConnId, Control, Event, Failure, Params, Settings, random_bytes, random_cid,
};
use crate::endpoint::{Lobby, attempt_delay};
use crate::error::{Error, ErrorKind};
use crate::keys::{Opener, Sealer};
use crate::options::{Options, Service};
use crate::routes::{Routes, Source};
use crate::shared::{Session, Shared};
use crate::ticket::Ticket;

/// Memory for received blocks, and for blocks being sent, per session.
const WINDOW_BYTES: u64 = 24 << 20;
/// Idle memory that the buffer pool keeps.
const POOL_BYTES: usize = 16 << 20;
/// Bytes queued to the socket in one turn of the loop.
const TURN_BYTES: usize = 256 << 10;
/// Receive calls in one turn: feedback must not wait behind an endless stream of packets.
const TURN_RECEIVES: usize = 4;
/// Data packets held for a session whose proof is on its way.
const HELD_BYTES_MAX: usize = 256 << 10;
/// Connections that may hold packets at one time.
const HOLDING_MAX: usize = 64;
/// How long an engine that stops waits for its sessions to close.
const STOP_WAIT: Duration = Duration::from_millis(400);

/// What the endpoint is for.
pub(crate) enum Purpose {
    Listen,
    Connect { service: Service, ticket: Ticket, remotes: Vec<SocketAddr> },
}

/// A data packet that came before its session's keys.
struct Held {
    origin: Origin,
    datagram: Vec<u8>,
}

pub(crate) struct Engine<Io: PacketIo> {
    io: Io,
    control: Control,
    purpose: Purpose,
    options: Options,
    lobby: Arc<Lobby>,
    /// Zero of the engine's clock.
    base: Instant,
    associations: HashMap<ConnectionId, (ConnId, Association)>,
    held: HashMap<ConnectionId, Vec<Held>>,
    routes: Routes,
    workshop: Workshop,
    /// The client's attempts: next address, connections under way, the last failure.
    next_attempt: usize,
    attempts: Vec<ConnId>,
    connected: bool,
    failure: Option<Error>,
    stopping: Option<Instant>,
}

impl<Io: PacketIo> Engine<Io> {
    pub(crate) fn new(
        io: Io,
        control: Control,
        purpose: Purpose,
        options: Options,
        lobby: Arc<Lobby>,
    ) -> Self {
        let segments_max = io.capabilities().segments_max;
        Self {
            io,
            control,
            purpose,
            options,
            lobby,
            base: Instant::now(),
            associations: HashMap::new(),
            held: HashMap::new(),
            routes: Routes::default(),
            workshop: Workshop {
                pool: BufferPool::new(POOL_BYTES),
                encoder: Encoder::new(),
                decoder: BlockDecoder::new(),
                queue: SendQueue::with_capacity(2 * TURN_BYTES),
                symbol: Vec::new(),
                segments_max,
            },
            next_attempt: 0,
            attempts: Vec::new(),
            connected: false,
            failure: None,
            stopping: None,
        }
    }

    /// Until the application lets go of the endpoint, or its only session is over.
    pub(crate) fn run(&mut self) {
        // Without it timers are up to 50 µs late, which costs rate on short round trips.
        let _ = minimise_timer_slack();
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let error =
                        Error::new(ErrorKind::LocalIo, format!("the socket has failed: {error}"));
                    for (_, association) in self.associations.values_mut() {
                        association.end(error.clone());
                        association.finish(nanos_since(self.base, Instant::now()));
                    }
                    self.lobby.fail(error);
                    return;
                }
            }
        }
    }

    /// One turn of the loop; `false` when the engine's work is done.
    fn turn(&mut self) -> io::Result<bool> {
        for _ in 0..TURN_RECEIVES {
            if !self.receive()? {
                break;
            }
        }
        let clock = Instant::now();
        let now = nanos_since(self.base, clock);
        self.run_control(clock, now);
        let mut wake = self.connect_more(clock);
        self.stop(clock, now);

        let mut finished = Vec::new();
        for (cid, (_, association)) in &mut self.associations {
            let pause = association.service(now, clock);
            association.supply(random_bytes, || {
                let spare = random_cid();
                self.routes.add(spare, *cid);
                spare
            });
            for retired in association.take_retired() {
                self.routes.remove(retired);
            }
            association.transmit(now, TURN_BYTES, &mut self.workshop);
            if association.is_finished() {
                association.finish(now);
                finished.push(*cid);
                continue;
            }
            let timeout = association.poll_timeout().map(|at| Duration::from_nanos(at.saturating_sub(now)));
            wake = wake.into_iter().chain(pause).chain(timeout).min();
        }
        for cid in finished {
            self.routes.forget(cid);
            if let Some((id, _)) = self.associations.remove(&cid) {
                self.control.close(clock, id, 0, "");
            }
        }
        self.send_control(clock);

        let mut dropped = Vec::new();
        let all_sent = self.workshop.queue.flush(&mut self.io, &mut dropped)?;
        for (to, dropped) in &dropped {
            for (_, association) in self.associations.values_mut() {
                association.on_dropped(now, to, dropped);
            }
        }
        self.workshop.segments_max = self.io.capabilities().segments_max;
        if self.is_done(clock) {
            return Ok(false);
        }
        let control_wake = self.control.poll_timeout().map(|at| at.saturating_duration_since(clock));
        let stop_wake = self.stopping.map(|at| at.saturating_duration_since(clock));
        wake = wake.into_iter().chain(control_wake).chain(stop_wake).min();
        let interest = if all_sent { Interest::Read } else { Interest::ReadWrite };
        // Time has passed since `clock` was read.
        let elapsed = clock.elapsed();
        let timeout = wake.map(|wake| wake.saturating_sub(elapsed).as_nanos().min(u128::from(u64::MAX)) as u64);
        self.io.wait(interest, timeout)?;
        Ok(true)
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// One batch; whether there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        let count = self.io.recv()?;
        if count == 0 {
            return Ok(false);
        }
        let clock = Instant::now();
        let now = nanos_since(self.base, clock);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = wall.as_nanos().min(u128::from(u64::MAX)) as u64;
        for index in 0..count {
            let Some(mut received) = self.io.received(index) else { break };
            // The kernel's wall clock, carried over to ours; a step of the wall clock between the
            // two readings must not throw times far off.
            let age = received.timestamp_ns.map_or(0, |at| wall.saturating_sub(at)).min(100_000_000);
            let (remote, local_ip) = (received.remote, received.local_ip);
            let origin = Origin {
                received_at: now.saturating_sub(age),
                tuple: Tuple { remote, local_ip },
                ecn: received.ecn,
            };
            for datagram in received.segments() {
                if !is_data_plane(datagram) {
                    self.control.handle_datagram(clock, remote, local_ip, datagram);
                    continue;
                }
                let Some(cid) = ConnectionId::of_datagram(datagram) else { continue };
                let cid = self.routes.session_of(cid);
                if let Some((_, association)) = self.associations.get_mut(&cid) {
                    association.handle_datagram(now, origin, datagram, &mut self.workshop);
                } else if let Some(held) = self.held.get_mut(&cid) {
                    let bytes: usize = held.iter().map(|held| held.datagram.len()).sum();
                    if bytes + datagram.len() <= HELD_BYTES_MAX {
                        held.push(Held { origin, datagram: datagram.to_vec() });
                    }
                }
            }
        }
        Ok(count == self.io.capabilities().recv_batch_max)
    }

    // ---- the control plane -----------------------------------------------------------------------

    fn run_control(&mut self, clock: Instant, now: Nanos) {
        if self.control.poll_timeout().is_some_and(|at| at <= clock) {
            self.control.handle_timeout(clock);
        }
        while let Some(event) = self.control.poll_event() {
            match event {
                Event::Pending { local_cid, .. } => {
                    if self.held.len() < HOLDING_MAX {
                        self.held.insert(local_cid, Vec::new());
                    }
                }
                Event::Established { id, remote, local_ip, local_cid, peer, secret, direction, rtt } => {
                    if self.connected {
                        // Another address was faster.
                        self.control.close(clock, id, 0, "");
                        continue;
                    }
                    let keys = (secret.sealer(direction, 0), secret.opener(direction.reverse(), 0));
                    self.establish(now, id, (remote, local_ip), local_cid, &peer, keys, rtt);
                }
                Event::Failed { id, why } => self.control_failed(id, error_of(why)),
                Event::Closed { id, code, reason } => {
                    let kind = ErrorKind::of_close_code(code);
                    self.control_failed(id, Error::new(kind, format!("the peer refused: {reason}")));
                }
            }
        }
    }

    fn establish(
        &mut self,
        now: Nanos,
        id: ConnId,
        (remote, local_ip): (SocketAddr, Option<IpAddr>),
        local_cid: ConnectionId,
        peer: &Params,
        (sealer, opener): (Sealer, Opener),
        rtt: Duration,
    ) {
        let is_client = matches!(self.purpose, Purpose::Connect { .. });
        let (ip_overhead, mtu_candidates) = match remote {
            SocketAddr::V4(_) => (28, vec![1472, 8972]),
            SocketAddr::V6(_) => (48, vec![1452, 8952]),
        };
        let idle_timeout = self.options.idle_timeout.as_nanos().min(u128::from(u64::MAX / 2)) as Nanos;
        let config = Config {
            role: if is_client { Role::Client } else { Role::Server },
            peer_cid: peer.cid,
            local_cid,
            tuple: Tuple { remote, local_ip },
            profile: self.options.profile.core(),
            code: self.options.codec.core(),
            cc: self.options.cc.core(),
            initial_rtt: rtt.as_nanos().min(u128::from(u64::MAX)) as Nanos,
            idle_timeout,
            recv_window: WINDOW_BYTES,
            send_window: WINDOW_BYTES,
            peer_window: peer.receive_window,
            ip_overhead,
            mtu_candidates,
            peer_datagram_max: peer.max_udp_payload,
        };
        let core = Core::new(config, now);
        let shared = Arc::new(Shared::new(
            self.io.waker(),
            self.workshop.pool.clone(),
            remote,
            is_client,
            core.block_shape(),
        ));
        let session = Session::new(Arc::clone(&shared));
        let started = if is_client { 0 } else { now };
        let mut association = Association::new(
            core,
            sealer,
            opener,
            Source::new(is_client),
            shared,
            &self.options,
            started,
        );
        for mut held in self.held.remove(&local_cid).unwrap_or_default() {
            association.handle_datagram(now, held.origin, &mut held.datagram, &mut self.workshop);
        }
        self.associations.insert(local_cid, (id, association));
        self.lobby.arrive(session);
        if is_client {
            self.connected = true;
            for other in std::mem::take(&mut self.attempts) {
                if other != id {
                    self.control.close(Instant::now(), other, 0, "");
                }
            }
        }
    }

    fn control_failed(&mut self, id: ConnId, error: Error) {
        let established = self.associations.values_mut().find(|(conn, _)| *conn == id);
        if let Some((_, association)) = established {
            // QUIC only carries the handshake; losing it later is no loss. But a server that
            // finds the proof wrong says so only after the client has begun to send.
            if error.kind == ErrorKind::Authentication || error.kind == ErrorKind::Protocol {
                association.abandon(error);
            }
            return;
        }
        if self.attempts.contains(&id) {
            self.attempts.retain(|attempt| *attempt != id);
            // The clearest answer wins: being refused says more than not being answered.
            let clearer = self.failure.as_ref().is_none_or(|e| e.kind == ErrorKind::Unreachable);
            if clearer {
                self.failure = Some(error);
            }
        }
    }

    /// The client's next attempts; when to look again.
    fn connect_more(&mut self, clock: Instant) -> Option<Duration> {
        let Purpose::Connect { service, ticket, remotes } = &self.purpose else { return None };
        if self.connected {
            return None;
        }
        let elapsed = clock.saturating_duration_since(self.base);
        while let Some(remote) = remotes.get(self.next_attempt) {
            let due = attempt_delay(self.next_attempt);
            if elapsed < due && !self.attempts.is_empty() {
                break;
            }
            self.next_attempt += 1;
            let settings = settings(*service, &self.options);
            match self.control.connect(clock, *remote, ticket.pin(), ticket.secret(), &settings) {
                Ok(id) => self.attempts.push(id),
                Err(why) => self.failure = Some(error_of(why)),
            }
        }
        let timeout = self.options.connect_timeout;
        let hopeless = self.attempts.is_empty() && self.next_attempt >= remotes.len();
        if hopeless || elapsed >= timeout {
            let names = ticket.addresses().join(", ");
            let unanswered = || {
                Error::new(ErrorKind::Unreachable, format!("no answer from {names} within {timeout:?}"))
                    .with_hint("is the other end running, and does a firewall let UDP through?")
            };
            self.lobby.fail(self.failure.take().unwrap_or_else(unanswered));
            self.stopping.get_or_insert(clock);
            return None;
        }
        let next_try = (self.next_attempt < remotes.len()).then(|| attempt_delay(self.next_attempt));
        next_try.into_iter().chain([timeout]).min().map(|at| at.saturating_sub(elapsed))
    }

    fn send_control(&mut self, clock: Instant) {
        let mut buf = Vec::new();
        while let Some(transmit) = self.control.poll_transmit(clock, &mut buf) {
            let to = Destination {
                remote: transmit.remote,
                local_ip: transmit.local_ip,
                ecn: Ecn::NotEct,
            };
            self.workshop.queue.push(&to, buf.len(), self.workshop.segments_max).copy_from_slice(&buf);
        }
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Close all sessions once the application has let go of the endpoint.
    fn stop(&mut self, clock: Instant, now: Nanos) {
        if self.stopping.is_none() && self.lobby.stop.load(Ordering::Relaxed) {
            self.stopping = Some(clock + STOP_WAIT);
            for (_, association) in self.associations.values_mut() {
                association.close(now, 6, "the other end has stopped");
            }
        }
    }

    fn is_done(&self, clock: Instant) -> bool {
        let over = self.connected && self.associations.is_empty();
        let idle = self.associations.is_empty() && self.stopping.is_some();
        over || idle || self.stopping.is_some_and(|at| at <= clock)
    }
}

/// What an end says about itself in the handshake.
pub(crate) fn settings(service: Service, options: &Options) -> Settings {
    Settings {
        service: service.wire(),
        receive_window: WINDOW_BYTES,
        idle_timeout_ms: options.idle_timeout.as_millis().min(u128::from(u32::MAX)) as u64,
        max_udp_payload: u16::MAX - 8,
    }
}

fn nanos_since(base: Instant, clock: Instant) -> Nanos {
    clock.saturating_duration_since(base).as_nanos().min(u128::from(u64::MAX)) as Nanos
}

fn error_of(why: Failure) -> Error {
    let message = why.to_string();
    match why {
        Failure::Authentication(_) => Error::new(ErrorKind::Authentication, message)
            .with_hint("use the ticket that the other end printed when it was started"),
        Failure::Protocol(_) => Error::new(ErrorKind::Protocol, message),
        Failure::Timeout | Failure::Unreachable(_) => Error::new(ErrorKind::Unreachable, message),
    }
}
