//! The engine: one thread that owns the socket, the control plane and all sessions of an endpoint
//! (the paper's distributor, with coding and sealing done inline).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sphinx_fec::{BlockDecoder, Encoder, RowMaker};
use sphinx_net::{
    BufferPool, Destination, Dropped, Ecn, Interest, PacketIo, SendQueue, minimise_timer_slack,
};
use sphinx_proto::wire::{ConnectionId, is_data_plane};
use sphinx_proto::{Config, Nanos, Role, Session as Core, Tuple, mtu_candidates};

use crate::association::{Association, Origin, Workshop};
use crate::control::{ConnId, Control, Event, Failure, Params, Settings, random_bytes, random_cid};
use crate::endpoint::{Lobby, attempt_delay};
use crate::error::{Error, ErrorKind, closed_by_peer};
use crate::greetings::{Greetings, is_initial};
use crate::holding::Holding;
use crate::keys::{Opener, Sealer};
use crate::memory::PeerPaths;
use crate::options::{Options, Service};
use crate::routes::{Routes, Source};
use crate::sessions::Sessions;
use crate::shared::{Doorbell, Session, Shared};
use crate::ticket::Ticket;

/// Memory for received blocks, and for blocks being sent, per session.
const WINDOW_BYTES: u64 = 24 << 20;
/// Idle memory that the buffer pool keeps.
const POOL_BYTES: usize = 8 << 20;
/// Bytes queued to the socket in one turn of the loop.
const TURN_BYTES: usize = 256 << 10;
/// What one of several sessions may queue in one turn, at least.
const QUANTUM_MIN: usize = 16 << 10;
/// Receive calls in one turn: feedback must not wait behind an endless stream of packets.
const TURN_RECEIVES: usize = 4;
/// Sessions of one endpoint, and sessions that may wait to be accepted.
const SESSIONS_MAX: usize = 1024;
/// How long to wait at least for a socket that takes no more.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// How long an engine that stops waits for its sessions to close.
const STOP_WAIT: Duration = Duration::from_millis(400);
/// Packets that come one by one may gather for this long …
const GATHER: Duration = Duration::from_micros(120);
/// … when turns follow each other faster than this …
const QUICK_TURN: Duration = Duration::from_micros(300);
/// … and bring fewer buffers than this.
const GATHERED: usize = 8;

/// What the endpoint is for.
pub(crate) enum Purpose {
    Listen,
    Connect {
        service: Service,
        ticket: Ticket,
        remotes: Vec<SocketAddr>,
    },
}

/// A session and its control connection.
struct Member {
    id: ConnId,
    association: Association,
}

pub(crate) struct Engine<Io: PacketIo> {
    io: Io,
    control: Control,
    purpose: Purpose,
    options: Options,
    lobby: Arc<Lobby>,
    /// Zero of the engine's clock.
    base: Instant,
    sessions: Sessions<Member>,
    holding: Holding,
    /// Spare connection ids.
    routes: Routes,
    /// Sessions, and on a server handshakes under way, by control connection.
    connections: HashMap<ConnId, ConnectionId>,
    greetings: Greetings,
    /// Datagrams refused before the control plane saw them, and data packets of no session.
    strays: u64,
    doorbell: Arc<Doorbell>,
    /// Working memory: sessions whose applications have rung.
    rung: Vec<ConnectionId>,
    workshop: Workshop,
    /// The client's attempts: next address, connections under way, the last failure.
    next_attempt: usize,
    attempts: Vec<ConnId>,
    connected: bool,
    failure: Option<Error>,
    stopping: Option<Instant>,
    last_turn: Instant,
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
        let doorbell = Arc::new(Doorbell::new(io.waker()));
        Self {
            io,
            control,
            purpose,
            options,
            lobby,
            base: Instant::now(),
            sessions: Sessions::new(),
            holding: Holding::default(),
            routes: Routes::default(),
            connections: HashMap::new(),
            greetings: Greetings::default(),
            strays: 0,
            doorbell,
            rung: Vec::new(),
            workshop: Workshop {
                pool: BufferPool::new(POOL_BYTES),
                encoder: Encoder::new(),
                decoder: BlockDecoder::new(),
                thorough_decoder: BlockDecoder::new().maximum_likelihood(),
                rows: RowMaker::new(),
                queue: SendQueue::with_capacity(2 * TURN_BYTES),
                symbol: Vec::new(),
                segments_max,
            },
            next_attempt: 0,
            attempts: Vec::new(),
            connected: false,
            failure: None,
            stopping: None,
            last_turn: Instant::now(),
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
                    let error = Error::new(
                        ErrorKind::LocalIo,
                        format!("the socket has failed: {error}"),
                    );
                    for member in self.sessions.wake_all() {
                        member.association.end(error.clone());
                    }
                    self.lobby.fail(error);
                    return;
                }
            }
        }
    }

    /// One turn of the loop; `false` when the engine's work is done.
    fn turn(&mut self) -> io::Result<bool> {
        let mut received = 0;
        for _ in 0..TURN_RECEIVES {
            let (buffers, more) = self.receive()?;
            received += buffers;
            if !more {
                break;
            }
        }
        let clock = Instant::now();
        let now = nanos_since(self.base, clock);
        self.run_control(clock, now);
        let mut wake = self.connect_more(clock);
        self.stop(clock, now);
        self.doorbell.take(&mut self.rung);
        for cid in &self.rung {
            self.sessions.wake(*cid);
        }
        self.sessions.expire(now);
        self.serve(now, clock);
        self.send_control(clock);

        let mut dropped = Vec::new();
        let all_sent = self.workshop.queue.flush(&mut self.io, &mut dropped)?;
        self.note_dropped(now, &dropped);
        self.workshop.segments_max = self.io.capabilities().segments_max;
        if self.is_done(clock) {
            return Ok(false);
        }
        let control_wake = self
            .control
            .poll_timeout()
            .map(|at| at.saturating_duration_since(clock));
        let stop_wake = self.stopping.map(|at| at.saturating_duration_since(clock));
        let timer = self.sessions.next_timer();
        let timer_wake = timer.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let ready_wake = (self.sessions.ready() > 0).then_some(Duration::ZERO);
        let wakes = [control_wake, stop_wake, timer_wake, ready_wake];
        wake = wake.into_iter().chain(wakes.into_iter().flatten()).min();
        let interest = if all_sent {
            Interest::Read
        } else {
            // Sessions that are due cannot send before the socket takes something.
            wake = wake.map(|wake| wake.max(FULL_WAIT));
            Interest::ReadWrite
        };
        // Time has passed since `clock` was read.
        let elapsed = clock.elapsed();
        let timeout = wake.map(|wake| {
            wake.saturating_sub(elapsed)
                .as_nanos()
                .min(u128::from(u64::MAX)) as u64
        });
        self.gather(received, clock, timeout);
        self.io.wait(interest, timeout)?;
        Ok(true)
    }

    /// Lets packets gather that come one by one in quick succession: waking up for a packet costs
    /// more than the packet.
    fn gather(&mut self, received: usize, clock: Instant, timeout: Option<u64>) {
        let quick = clock.saturating_duration_since(self.last_turn) < QUICK_TURN;
        self.last_turn = clock;
        let idle = timeout.is_none_or(|ns| u128::from(ns) > 2 * GATHER.as_nanos());
        if quick && idle && (1..GATHERED).contains(&received) {
            std::thread::sleep(GATHER);
        }
    }

    /// Everything that the sessions with something to do want to do. Those that become ready
    /// meanwhile wait for the next turn.
    fn serve(&mut self, now: Nanos, clock: Instant) {
        let count = self.sessions.ready();
        let quantum = (TURN_BYTES / count.max(1)).max(QUANTUM_MIN);
        let strays = self.strays();
        for _ in 0..count {
            let Some((cid, Member { id, association })) = self.sessions.next() else {
                break;
            };
            association.service(now, clock, self.control.traffic(*id), strays);
            association.supply(random_bytes, || {
                let spare = random_cid();
                self.routes.add(spare, cid);
                spare
            });
            for retired in association.take_retired() {
                self.routes.remove(retired);
            }
            let limit = TURN_BYTES.min(self.workshop.queue.len_bytes() + quantum);
            association.transmit(now, limit, &mut self.workshop);
            if association.is_finished() {
                let (code, reason) = association.finish();
                self.control.close(clock, *id, code, &reason);
                self.connections.remove(id);
                self.sessions.remove(cid);
                self.routes.forget(cid);
            } else {
                let timeout = association.poll_timeout();
                self.sessions.set_timer(cid, timeout);
            }
        }
    }

    /// Tell sessions what the operating system did not send.
    fn note_dropped(&mut self, now: Nanos, dropped: &[(Destination, Dropped)]) {
        for (to, dropped) in dropped {
            self.sessions
                .wake_where(|member| member.association.on_dropped(now, to, dropped));
        }
    }

    /// Datagrams that belonged to nobody.
    fn strays(&self) -> u64 {
        self.strays + self.control.stats().ignored_datagrams
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// One batch; how many buffers it had, and whether there may be more.
    fn receive(&mut self) -> io::Result<(usize, bool)> {
        let count = self.io.recv()?;
        if count == 0 {
            return Ok((0, false));
        }
        let clock = Instant::now();
        let now = nanos_since(self.base, clock);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall = wall.as_nanos().min(u128::from(u64::MAX)) as u64;
        for index in 0..count {
            let Some(mut received) = self.io.received(index) else {
                break;
            };
            // The kernel's wall clock, carried over to ours; a step of the wall clock between the
            // two readings must not throw times far off.
            let age = received
                .timestamp_ns
                .map_or(0, |at| wall.saturating_sub(at))
                .min(100_000_000);
            let (remote, local_ip) = (received.remote, received.local_ip);
            let origin = Origin {
                received_at: now.saturating_sub(age),
                tuple: Tuple { remote, local_ip },
                ecn: received.ecn,
            };
            for datagram in received.segments() {
                if !is_data_plane(datagram) {
                    if is_initial(datagram) && !self.greetings.admit(now) {
                        self.strays += 1;
                        continue;
                    }
                    self.control
                        .handle_datagram(clock, remote, local_ip, datagram);
                    continue;
                }
                let Some(cid) = ConnectionId::of_datagram(datagram) else {
                    self.strays += 1;
                    continue;
                };
                let cid = self.routes.session_of(cid);
                if let Some(member) = self.sessions.wake(cid) {
                    member
                        .association
                        .handle_datagram(now, origin, datagram, &mut self.workshop);
                } else if !self.holding.hold(cid, origin, datagram) {
                    self.strays += 1;
                }
            }
        }
        Ok((count, count == self.io.capabilities().recv_batch_max))
    }

    // ---- the control plane -----------------------------------------------------------------------

    fn run_control(&mut self, clock: Instant, now: Nanos) {
        if self.control.poll_timeout().is_some_and(|at| at <= clock) {
            self.control.handle_timeout(clock);
        }
        while let Some(event) = self.control.poll_event() {
            match event {
                Event::Pending { id, local_cid } => {
                    self.connections.insert(id, local_cid);
                    self.holding.begin(local_cid, now);
                }
                Event::Established {
                    id,
                    remote,
                    local_ip,
                    local_cid,
                    peer,
                    secret,
                    direction,
                    rtt,
                } => {
                    if self.connected {
                        // Another address was faster.
                        self.control.close(clock, id, 0, "");
                        continue;
                    }
                    if self.sessions.len().max(self.lobby.waiting()) >= SESSIONS_MAX {
                        self.holding.end(local_cid);
                        self.connections.remove(&id);
                        self.control.close(clock, id, 6, "too many sessions");
                        continue;
                    }
                    let keys = (
                        secret.sealer(direction, 0),
                        secret.opener(direction.reverse(), 0),
                    );
                    self.establish(now, (id, local_cid), (remote, local_ip), &peer, keys, rtt);
                }
                Event::Failed { id, why } => self.control_failed(id, error_of(why), false),
                Event::Closed { id, code, reason } => {
                    self.control_failed(id, closed_by_peer(code, &reason), true);
                }
            }
        }
    }

    fn establish(
        &mut self,
        now: Nanos,
        (id, local_cid): (ConnId, ConnectionId),
        (remote, local_ip): (SocketAddr, Option<IpAddr>),
        peer: &Params,
        keys: (Sealer, Opener),
        rtt: Duration,
    ) {
        let is_client = matches!(self.purpose, Purpose::Connect { .. });
        let ip_overhead = if remote.is_ipv4() { 28 } else { 48 };
        let idle_timeout = self
            .options
            .idle_timeout
            .as_nanos()
            .min(u128::from(u64::MAX / 2)) as Nanos;
        let tuple = Tuple { remote, local_ip };
        let paths = match (&self.purpose, &self.options.path_memory) {
            (Purpose::Connect { ticket, .. }, Some(file)) => {
                Some(PeerPaths::new(file.clone(), *ticket.pin()))
            }
            _ => None,
        };
        let config = Config {
            role: if is_client {
                Role::Client
            } else {
                Role::Server
            },
            peer_cid: peer.cid,
            local_cid,
            tuple,
            profile: self.options.profile.core(),
            code: self.options.codec.core(),
            icm: self.options.icm.core(),
            cc: self.options.cc.core(),
            initial_rtt: rtt.as_nanos().min(u128::from(u64::MAX)) as Nanos,
            idle_timeout,
            recv_window: WINDOW_BYTES,
            send_window: WINDOW_BYTES,
            peer_window: peer.receive_window,
            ip_overhead,
            mtu_candidates: mtu_candidates(ip_overhead),
            peer_datagram_max: peer.max_udp_payload,
            memory: paths.as_ref().and_then(|paths| paths.recall(remote.ip())),
        };
        let core = Core::new(config, now);
        let waiting = self.holding.end(local_cid);
        // A client's first datagram left when its engine began.
        let started = waiting.as_ref().map_or(0, |waiting| waiting.since);
        let shared = Arc::new(Shared::new(
            Arc::clone(&self.doorbell),
            local_cid,
            self.workshop.pool.clone(),
            remote,
            is_client,
            core.block_shape(),
            self.base + Duration::from_nanos(started),
        ));
        let session = Session::new(Arc::clone(&shared));
        let mut association = Association::new(
            core,
            keys,
            (Source::new(is_client), paths),
            shared,
            &self.options,
            self.strays(),
        );
        for mut held in waiting.into_iter().flat_map(|waiting| waiting.packets) {
            association.handle_datagram(now, held.origin, &mut held.datagram, &mut self.workshop);
        }
        self.sessions.insert(local_cid, Member { id, association });
        self.connections.insert(id, local_cid);
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

    /// A control connection is over; `by_peer`: because the peer closed it in peace.
    fn control_failed(&mut self, id: ConnId, error: Error, by_peer: bool) {
        if let Some(cid) = self.connections.remove(&id) {
            self.holding.end(cid);
            // Losing QUIC after the handshake is no loss. But a peer that closes it has no session
            // any more; a server that finds the proof wrong says so only after the client has begun
            // to send.
            let refused = matches!(error.kind, ErrorKind::Authentication | ErrorKind::Protocol);
            if (by_peer || refused)
                && let Some(member) = self.sessions.wake(cid)
            {
                member.association.refused(error);
            }
            return;
        }
        if self.attempts.contains(&id) {
            self.attempts.retain(|attempt| *attempt != id);
            // The clearest answer wins: being refused says more than not being answered.
            let clearer = self
                .failure
                .as_ref()
                .is_none_or(|e| e.kind == ErrorKind::Unreachable);
            if clearer {
                self.failure = Some(error);
            }
        }
    }

    /// The client's next attempts; when to look again.
    fn connect_more(&mut self, clock: Instant) -> Option<Duration> {
        let Purpose::Connect {
            service,
            ticket,
            remotes,
        } = &self.purpose
        else {
            return None;
        };
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
            match self
                .control
                .connect(clock, *remote, ticket.pin(), ticket.secret(), &settings)
            {
                Ok(id) => self.attempts.push(id),
                Err(why) => {
                    self.failure.get_or_insert(error_of(why));
                }
            }
        }
        let timeout = self.options.connect_timeout;
        let hopeless = self.attempts.is_empty() && self.next_attempt >= remotes.len();
        if hopeless || elapsed >= timeout {
            let names = ticket.addresses().join(", ");
            let unanswered = || {
                Error::new(
                    ErrorKind::Unreachable,
                    format!("no answer from {names} within {timeout:?}"),
                )
                .with_hint("is the other end running, and does a firewall let UDP through?")
            };
            self.lobby
                .fail(self.failure.take().unwrap_or_else(unanswered));
            self.stopping.get_or_insert(clock);
            return None;
        }
        let next_try =
            (self.next_attempt < remotes.len()).then(|| attempt_delay(self.next_attempt));
        next_try
            .into_iter()
            .chain([timeout])
            .min()
            .map(|at| at.saturating_sub(elapsed))
    }

    fn send_control(&mut self, clock: Instant) {
        let mut buf = Vec::new();
        // Where the socket takes nothing for a long time, more would only be memory.
        while self.workshop.queue.len_bytes() < 2 * TURN_BYTES
            && let Some(transmit) = self.control.poll_transmit(clock, &mut buf)
        {
            let to = Destination {
                remote: transmit.remote,
                local_ip: transmit.local_ip,
                ecn: Ecn::NotEct,
            };
            self.workshop
                .queue
                .push(&to, buf.len(), self.workshop.segments_max)
                .copy_from_slice(&buf);
        }
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Close all sessions once the application has let go of the endpoint.
    fn stop(&mut self, clock: Instant, now: Nanos) {
        if self.stopping.is_none() && self.lobby.stop.load(Ordering::Relaxed) {
            self.stopping = Some(clock + STOP_WAIT);
            for member in self.sessions.wake_all() {
                member.association.stop(now);
            }
            for (id, cid) in &self.connections {
                if !self.sessions.contains(*cid) {
                    self.control
                        .close(clock, *id, 6, "the other end has stopped");
                }
            }
        }
    }

    fn is_done(&self, clock: Instant) -> bool {
        let over = self.connected && self.sessions.is_empty();
        let idle = self.sessions.is_empty() && self.stopping.is_some();
        over || idle || self.stopping.is_some_and(|at| at <= clock)
    }
}

impl<Io: PacketIo> Drop for Engine<Io> {
    /// However the engine ends, nobody waits for it any longer; sessions see to themselves.
    fn drop(&mut self) {
        self.lobby
            .fail(Error::new(ErrorKind::Other, "the engine has stopped"));
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
    clock
        .saturating_duration_since(base)
        .as_nanos()
        .min(u128::from(u64::MAX)) as Nanos
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
