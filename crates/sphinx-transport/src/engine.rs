//! The engine: one thread that owns the socket, the control plane and all sessions of an endpoint (the paper's distributor). It
//! codes, seals and opens itself, or has workers do it.

mod arriving;
mod attempts;
mod early;
mod meeting;
mod memory_use;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sphinx_driver::{BufferPool, Holding, POOL_BYTES, Task, Workshop};
use sphinx_net::{
    Destination, Dropped, Interest, PacketIo, PacketRx, PacketTx, TURN_BYTES, TURN_RECEIVES, Waker,
    minimise_timer_slack,
};
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Bond, Nanos, PATHS_MAX, PathMemory, PathPolicy, Time};
use sphinx_workers::{Coding, Crew, pin};

use crate::access::Peer;
use crate::association::{Association, EndpointCounts};
use crate::budget::Budget;
use crate::control::{ConnId, Control, Resumption, Settings, random_bytes};
use crate::endpoint::Lobby;
use crate::error::{Error, ErrorKind, close_code};
use crate::options::{BUSY_POLL_MAX, Options, Service};
use crate::resumptions::ResumptionFile;
use crate::routes::Routes;
use crate::sessions::Sessions;
use crate::shards::Shard;
use crate::shared::{Doorbell, Session};
use crate::stats::Load;
use crate::ticket::Ticket;
use attempts::Attempts;
use early::{Early, Overtaken};
use memory_use::MemoryUse;

/// What one of several sessions may queue in one turn, at least.
const QUANTUM_MIN: usize = 16 << 10;
/// Sessions of one engine, and sessions of an endpoint that may wait to be accepted.
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
/// A turn that takes longer than this was interrupted: what it has sent left late.
const LATE: Duration = Duration::from_millis(4);

/// What an engine that stops tells the other ends.
pub(crate) const STOPPED: &str = "the other end has stopped";

/// What the endpoint is for.
pub(crate) enum Purpose {
    Listen,
    Connect {
        service: Service,
        ticket: Ticket,
        remotes: Vec<Remote>,
        /// Paths but the first.
        further: Vec<Further>,
        /// What sessions are begun with before their handshakes are over, and what this one is.
        resumptions: Option<Box<ResumptionFile>>,
        resumption: Option<Box<Resumption>>,
    },
}

/// A path of a client that is to be opened once the session is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Further {
    /// Where it begins.
    pub(crate) local: IpAddr,
    /// Where it leads, unless that is where the first one does.
    pub(crate) remote: Option<SocketAddr>,
    /// What it is to be used for.
    pub(crate) policy: PathPolicy,
}

/// An address of the peer that is to be tried.
pub(crate) struct Remote {
    pub(crate) address: SocketAddr,
    /// What an earlier session learned about the path there.
    pub(crate) memory: Option<PathMemory>,
}

/// A session and its control connection.
struct Member {
    id: ConnId,
    /// Who the client is; a server's only.
    who: Option<Peer>,
    association: Association,
    /// Bytes that the session may hold: received data, state of streams, and datagrams ([`Window::cost`](crate::budget::Window::cost)).
    cost: u64,
    /// The part of that besides received data of streams.
    state: u64,
}

pub(crate) struct Engine<Io: PacketIo> {
    io: Io,
    waker: Waker,
    control: Control,
    purpose: Purpose,
    options: Options,
    lobby: Arc<Lobby>,
    /// Which of several engines behind a port it is.
    shard: Option<Shard>,
    /// Zero of the engine's clock.
    base: Instant,
    sessions: Sessions<Member>,
    holding: Holding,
    /// The session of every spare connection id.
    routes: Routes,
    memory: MemoryUse,
    /// There has been at least one session.
    has_met: bool,
    /// Sessions, and on a server handshakes under way, by control connection.
    connections: HashMap<ConnId, ConnectionId>,
    /// Data packets of no session.
    strays: u64,
    /// Datagrams that have come from other shards.
    handovers: u64,
    /// How often the engine has waited for the socket: not with a timeout of 0, which only looks.
    wakeups: u64,
    doorbell: Arc<Doorbell>,
    /// Working memory: sessions whose applications have rung.
    rung: Vec<ConnectionId>,
    workshop: Workshop,
    /// The workers, if there are any.
    crew: Option<Crew<Task>>,
    /// Working memory: connection ids of the sessions for which workers have finished a task.
    returned: Vec<u64>,
    /// A session with so many packets that workers have not opened that nothing is received until there are fewer.
    behind: Option<ConnectionId>,
    /// A client's handshakes under way, and the addresses that it has still to try.
    attempts: Attempts,
    /// At a client: the session that has begun before its handshake is over.
    early: Option<Early>,
    /// At a server: sessions that have begun so; the application gets each when its handshake is over.
    unproven: HashMap<ConnectionId, Session>,
    overtaken: Overtaken,
    stopping: Option<Instant>,
    last_turn: Instant,
    /// When something was last received; kept up only with busy polling.
    received_at: Instant,
    /// Until when received packets may gather before the next look, as the session that was served last in this turn says.
    gather_until: Option<Time>,
    /// The last field, so that it is dropped after the socket and all sessions.
    _ended: Ended,
}

/// Tells the lobby, when dropped, that the engine has ended, be it by a panic: whoever waits for that finds its address free.
struct Ended(Arc<Lobby>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0
            .end(Error::new(ErrorKind::Other, "the engine has stopped"));
    }
}

impl<Io: PacketIo> Engine<Io> {
    pub(crate) fn new(
        mut io: Io,
        control: Control,
        purpose: Purpose,
        options: Options,
        lobby: Arc<Lobby>,
        shard: Option<Shard>,
    ) -> io::Result<Self> {
        let waker = io.waker();
        if !options.busy_poll.is_zero() {
            io.expect_busy_polling(options.busy_poll.min(BUSY_POLL_MAX));
        }
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        let pool = BufferPool::new(POOL_BYTES);
        let crew = match options.workers {
            0 => None,
            workers => Some(start_crew(workers, &options.cpus, &pool, &waker)?),
        };
        Ok(Self {
            io,
            waker,
            control,
            purpose,
            memory: MemoryUse::new(Budget::new(options.memory)),
            options,
            _ended: Ended(Arc::clone(&lobby)),
            lobby,
            base: shard.as_ref().map_or_else(Instant::now, Shard::base),
            shard,
            sessions: Sessions::new(),
            holding: Holding::default(),
            routes: Routes::default(),
            has_met: false,
            connections: HashMap::new(),
            strays: 0,
            handovers: 0,
            wakeups: 0,
            doorbell,
            rung: Vec::new(),
            workshop: Workshop::new(pool),
            crew,
            returned: Vec::new(),
            behind: None,
            attempts: Attempts::default(),
            early: None,
            unproven: HashMap::new(),
            overtaken: Overtaken::default(),
            stopping: None,
            last_turn: Instant::now(),
            received_at: Instant::now(),
            gather_until: None,
        })
    }

    /// Where the memory of blocks comes from.
    pub(crate) fn pool(&self) -> &BufferPool {
        self.workshop.pool()
    }

    /// Until the application lets go of the endpoint, or its only session is over.
    pub(crate) fn run(&mut self) {
        // Without it timers are up to 50 µs late, which costs rate on short round trips.
        let _ = minimise_timer_slack();
        if let Some(cpu) = self.options.cpus.first() {
            // It was there when the options were looked at.
            let _ = pin(*cpu);
        }
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let why = format!("the socket has failed: {error}");
                    let error = Error::new(ErrorKind::LocalIo, why).caused_by(error);
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
            if self.behind.is_some() {
                break;
            }
            let (buffers, more) = self.receive()?;
            received += buffers;
            if !more {
                break;
            }
        }
        let (handed_over, more_handed_over) = match self.behind {
            None => self.take_handed_over(),
            Some(_) => (0, true),
        };
        received += handed_over;
        let clock = Instant::now();
        let now = time_since(self.base, clock);
        for remote in self.io.rx().take_refused() {
            self.note_refused(clock, now, remote);
            if let Some(shard) = &self.shard {
                shard.tell_refused(remote);
            }
        }
        self.run_control(clock, now);
        let mut wake = self.connect_more(clock);
        self.begin_early(now, clock);
        self.stop(clock, now);
        self.turn_out(now);
        self.doorbell.take(&mut self.rung);
        for cid in &self.rung {
            self.sessions.wake(*cid);
        }
        self.heed_workers();
        self.sessions.expire(now);
        self.serve(now, clock);
        // After sessions have come and gone in this turn, and before a client hears anything of it.
        self.control.tell_load();
        self.send_control(clock);

        let mut dropped = Vec::new();
        let all_sent = self.io.tx().flush(&mut dropped)?;
        if clock.elapsed() >= LATE {
            (self.sessions.all()).for_each(|member| member.association.left_late(now));
        }
        self.note_dropped(&dropped);
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
        let more = more_handed_over && self.behind.is_none();
        let ready_wake = (more || self.sessions.ready() > 0).then_some(Duration::ZERO);
        let wakes = [control_wake, stop_wake, timer_wake, ready_wake];
        wake = wake.into_iter().chain(wakes.into_iter().flatten()).min();
        let interest = if all_sent {
            Interest::Read
        } else {
            // Sessions that are due cannot send before the socket takes something.
            wake = wake.map(|wake| wake.max(FULL_WAIT));
            Interest::ReadWrite
        };
        if self.spins(received, clock) && all_sent {
            return Ok(true);
        }
        let gather = self.gather(received, clock, now, wake);
        // Where the time of arrival is not known it counts as that of looking, which is not to be late.
        let gather = gather.filter(|_| all_sent && self.io.capabilities().timestamps);
        // Time has passed since `clock` was read.
        let elapsed = clock.elapsed();
        let left = |wake: Duration| {
            let left = wake.saturating_sub(elapsed).as_nanos();
            left.min(u128::from(u64::MAX)) as u64
        };
        let timeout = gather.or(wake).map(left);
        self.wakeups += u64::from(timeout != Some(0));
        match gather {
            None if self.behind.is_none() => self.io.wait(interest, timeout)?,
            _ => self.waker.wait(None, interest, timeout)?,
        };
        Ok(true)
    }

    /// Whether to look again at once: something was received a moment ago, and whoever asked for busy polling has more processors than time.
    fn spins(&mut self, received: usize, clock: Instant) -> bool {
        let time = self.options.busy_poll.min(BUSY_POLL_MAX);
        if time.is_zero() {
            return false;
        }
        if received > 0 {
            self.received_at = clock;
        }
        clock.saturating_duration_since(self.received_at) < time
    }

    /// Sessions for which workers have done something have something to do.
    fn heed_workers(&mut self) {
        let Some(crew) = &self.crew else {
            return;
        };
        crew.collect(&mut self.returned);
        for key in self.returned.drain(..) {
            if let Some(cid) = ConnectionId::new(key.to_be_bytes()) {
                self.sessions.wake(cid);
            }
        }
    }

    /// Who codes for a session.
    fn coding(&self, cid: ConnectionId) -> Coding {
        let crew = self.crew.as_ref();
        crew.map_or(Coding::Inline, |crew| {
            Coding::Workers(crew.join(u64::from_be_bytes(cid.bytes())))
        })
    }

    /// How long to let packets gather and only listen to the doorbell: waking up for a packet costs more than the packet.
    /// `wake`: when there is something to do.
    fn gather(
        &mut self,
        received: usize,
        clock: Instant,
        now: Time,
        wake: Option<Duration>,
    ) -> Option<Duration> {
        let quick = clock.saturating_duration_since(self.last_turn) < QUICK_TURN;
        self.last_turn = clock;
        let gather = match self.gather_until.take() {
            Some(until) if self.sessions.len() == 1 => {
                Duration::from_nanos(until.saturating_sub(now))
            }
            // One session's packets are not to wait until it suits another, but for a moment.
            _ if quick && (1..GATHERED).contains(&received) => GATHER,
            _ => return None,
        };
        let gather = wake.map_or(gather, |wake| gather.min(wake));
        (gather >= GATHER / 2).then_some(gather)
    }

    /// Everything that the sessions with something to do want to do. Those that become ready
    /// meanwhile wait for the next turn.
    fn serve(&mut self, now: Time, clock: Instant) {
        let count = self.sessions.ready();
        let quantum = (TURN_BYTES / count.max(1)).max(QUANTUM_MIN);
        let endpoint = self.counts();
        let sessions = self.sessions.len();
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let Some((cid, member)) = self.sessions.next() else {
                break;
            };
            let Member {
                id,
                association,
                cost,
                state,
                ..
            } = member;
            let traffic = self.control.traffic(*id);
            association.service(now, clock, traffic, endpoint, &mut self.workshop);
            for wish in association.take_path_wishes() {
                let io = &mut self.io;
                association.follow(now, wish, |local, device| io.attach(local, device));
            }
            left.append(&mut association.take_left());
            if association.is_full() {
                self.behind = Some(cid);
            } else {
                self.behind.take_if(|behind| *behind == cid);
            }
            association.supply(random_bytes, || {
                let spare = self.control.make_id();
                self.routes.add(spare, cid);
                (spare, self.control.reset_token(spare))
            });
            for retired in association.take_retired() {
                self.routes.remove(retired);
            }
            let (window, wanted, _) = association.window();
            // A bound stays as it is.
            let wanted = wanted.filter(|_| self.options.recv_window.is_none());
            if let Some(wanted) = wanted
                && let Some(size) = self.memory.grow(window, wanted, sessions)
            {
                association.set_window(now, size);
            }
            let (_, _, held) = association.window();
            self.memory.change(*cost, held + *state);
            *cost = held + *state;
            // Telling threads the news may have taken a while, and packets carry the time at which they leave.
            let now = time_since(self.base, Instant::now());
            let tx = self.io.tx();
            let limit = TURN_BYTES.min(tx.taken_bytes() + quantum);
            association.transmit(now, limit, &mut self.workshop, tx);
            self.gather_until = association.gather_until(now);
            if association.is_finished() {
                let (code, reason) = association.finish();
                self.control.close(clock, *id, code, &reason);
                self.connections.remove(id);
                self.memory.remove(*cost, association.unclaimed());
                self.sessions.remove(cid);
                gone.push(cid);
                self.routes.forget(cid);
                self.behind.take_if(|behind| *behind == cid);
            } else {
                let timeout = association.poll_timeout();
                self.sessions.set_timer(cid, timeout);
            }
        }
        for cid in gone {
            self.forget_early(clock, cid);
        }
        for local in left {
            // Packets of other sessions may leave there too.
            let mut members = self.sessions.all();
            if !members.any(|member| member.association.begins_at(local)) {
                self.io.detach(local);
            }
        }
        if self.memory.take_scarce(now) || self.sessions.len() != sessions {
            self.share_memory(now);
        }
    }

    /// There are more sessions or fewer, or one of them needs what others hold: windows that have grown beyond a fair share shrink to it.
    fn share_memory(&mut self, now: Time) {
        let (fair, send_window) = self.memory.share(now, self.sessions.len());
        self.sessions.wake_where(|member| {
            member.association.set_send_window(send_window);
            member.association.shrink_window(now, fair)
        });
    }

    /// Tell sessions what the operating system did not send.
    fn note_dropped(&mut self, dropped: &[(Destination, Dropped)]) {
        let now = time_since(self.base, Instant::now());
        for (to, dropped) in dropped {
            self.sessions
                .wake_where(|member| member.association.on_dropped(now, to, dropped));
        }
    }

    /// The network says that nobody listens at `remote`.
    fn note_refused(&mut self, clock: Instant, now: Time, remote: SocketAddr) {
        self.sessions
            .wake_where(|member| member.association.on_refused(now, remote));
        self.attempt_refused(clock, remote);
    }

    /// What has been counted for all sessions.
    fn counts(&self) -> EndpointCounts {
        let io = self.io.counters();
        EndpointCounts {
            strays: self.strays + self.control.stats().ignored_datagrams,
            load: Load {
                wakeups: self.wakeups,
                receives: io.recv_calls,
                datagrams_received: io.recv_datagrams,
                sends: io.send_calls,
                datagrams_sent: io.send_datagrams,
                gso_downgrades: io.gso_downgrades,
                kernel_datagrams: io.kernel_datagrams,
                handovers: self.handovers,
                shards: self.shard.as_ref().map_or(1, Shard::count),
                shard: self.shard.as_ref().map_or(0, |it| it.place().shard()),
                steering: self.shard.as_ref().map(Shard::steering),
                workers: self.crew.as_ref().map_or(0, Crew::workers),
                busy: Duration::from_nanos(self.crew.as_ref().map_or(0, Crew::busy_ns)),
            },
            io: self.io.name(),
        }
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Close all sessions once the application has let go of the endpoint.
    fn stop(&mut self, clock: Instant, now: Time) {
        if self.stopping.is_none() && self.lobby.stop.load(Ordering::Relaxed) {
            self.stopping = Some(clock + STOP_WAIT);
            self.control.end(STOPPED);
            for member in self.sessions.wake_all() {
                member.association.stop(now);
            }
            for (id, cid) in &self.connections {
                if !self.sessions.contains(*cid) {
                    self.control
                        .close(clock, *id, close_code::CANCELLED, STOPPED);
                }
            }
        }
    }

    /// Ends the sessions of those who may not connect any more.
    fn turn_out(&mut self, now: Time) {
        let Some(list) = self.control.take_new_guests() else {
            return;
        };
        self.sessions.wake_where(|member| {
            let is_out = member.who.is_some_and(|who| !list.keeps(&who));
            if is_out {
                member.association.turn_out(now);
            }
            is_out
        });
    }

    fn is_done(&self, clock: Instant) -> bool {
        let is_client = matches!(self.purpose, Purpose::Connect { .. });
        let over = is_client && self.has_met && self.sessions.is_empty();
        let idle = self.sessions.is_empty() && self.stopping.is_some();
        over || idle || self.stopping.is_some_and(|at| at <= clock)
    }
}

impl<Io: PacketIo> Drop for Engine<Io> {
    /// Sessions see to themselves. Shards end together: a server that serves some of its clients looks as if it worked.
    fn drop(&mut self) {
        if let Some(shard) = &self.shard {
            self.lobby.stop.store(true, Ordering::Relaxed);
            shard.wake_others();
        }
    }
}

/// Workers of an endpoint, bound to the processors behind its engine's.
fn start_crew(
    workers: usize,
    cpus: &[usize],
    pool: &BufferPool,
    waker: &Waker,
) -> io::Result<Crew<Task>> {
    let theirs = match cpus {
        [_, theirs @ ..] if !theirs.is_empty() => theirs,
        only => only,
    };
    let (pool, waker) = (pool.clone(), waker.clone());
    let tools = move || Workshop::new(pool.clone());
    Crew::start(workers, theirs, tools, move || waker.wake())
}

/// What an end says about itself in the handshake; a server may have several services, there is one at least.
pub(crate) fn settings(
    services: &[Service],
    options: &Options,
    paths: usize,
    bond: Option<Bond>,
) -> Settings {
    let (first, others) = services.split_first().expect("sessions are for something");
    Settings {
        resumptions: hands_out_resumptions(options),
        sc: options.sc,
        recv_window: options.recv_window,
        paper: options.paper,
        paths_max: paths.clamp(1, PATHS_MAX) as u8,
        bond,
        service: first.wire(),
        services: others.iter().map(|service| service.wire()).collect(),
        budget: Budget::new(options.memory),
        idle_timeout_ms: options.idle_timeout.as_millis().min(u128::from(u32::MAX)) as u64,
        max_udp_payload: u16::MAX - 8,
    }
}

/// Whether a server with these options keeps what later sessions may begin with at once: one whose shards know nothing of each other's, that has one session in
/// its life, or that grants less than everybody who comes so may use at once, does not.
fn hands_out_resumptions(options: &Options) -> bool {
    let is_plain = options.paper.is_none() && options.sc.is_none();
    is_plain && options.shards <= 1 && !options.once && options.recv_window.is_none()
}

/// The sessions' time, whose origin is `base`.
fn time_since(base: Instant, clock: Instant) -> Time {
    let span = clock.saturating_duration_since(base).as_nanos();
    Time::from_nanos(span.min(u128::from(u64::MAX)) as Nanos)
}
