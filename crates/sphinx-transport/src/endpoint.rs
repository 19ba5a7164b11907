//! Listening and connecting.

#[cfg(all(test, loom))]
mod models;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sphinx_driver::BufferPool;
use sphinx_net::udp::{Steering, UdpConfig, UdpIo};
use sphinx_net::{Family, PacketIo, Waker, resolve};
use sphinx_proto::{PATHS_MAX, Paper};
use sphinx_workers::usable_cpus;
use sphinx_xdp::{XdpConfig, XdpError, XdpIo};

use crate::access::{Access, AccessList, Guests, TicketSecret};
use crate::control::{Control, ResetKey, random_bytes};
use crate::engine::{Engine, Further, Purpose, Remote, settings};
use crate::error::{Error, ErrorKind};
use crate::memory::PathFile;
use crate::options::{Io, Options, Service};
use crate::paths::open_paths;
use crate::resumptions::ResumptionFile;
use crate::routing::IdMaker;
use crate::shards::{Place, SHARDS_MAX, Shard, options_of};
use crate::shared::Session;
use crate::signal::{Signal, Waiter};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::ticket::{Identity, ServerKey, Ticket, is_address};

/// Addresses of one ticket that are tried.
const ATTEMPTS_MAX: usize = 8;
/// How long after one address the next is tried too (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// What engine and application share about an endpoint.
pub(crate) struct Lobby {
    state: Mutex<LobbyState>,
    /// A session has arrived, or none will any more.
    changed: Signal,
    /// The application is gone: end all sessions.
    pub(crate) stop: AtomicBool,
    /// There was a session where only one is served.
    has_met: AtomicBool,
}

#[derive(Default)]
struct LobbyState {
    /// Sessions that nobody has accepted yet.
    arrived: VecDeque<Session>,
    /// Why a client was refused last.
    refused: Option<Error>,
    /// An engine cannot go on, or has ended.
    failed: Option<Error>,
    /// How many engines have ended.
    ended: usize,
    /// Wakes the engine of a client, once it has begun.
    engine: Option<Waker>,
}

impl Lobby {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Signal::default(),
            stop: AtomicBool::new(false),
            has_met: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, LobbyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn arrive(&self, session: Session) {
        self.lock().arrived.push_back(session);
        self.changed.notify();
    }

    /// Sessions that wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().arrived.len()
    }

    /// A client that knows the ticket was refused.
    pub(crate) fn refuse(&self, error: Error) {
        self.lock().refused = Some(error);
    }

    pub(crate) fn fail(&self, error: Error) {
        self.lock().failed.get_or_insert(error);
        self.changed.notify();
    }

    /// An engine has ended; why, if nothing else is known.
    pub(crate) fn end(&self, error: Error) {
        self.lock().ended += 1;
        self.fail(error);
    }

    /// Of an endpoint with one session in its life: it begins now, unless there was one.
    pub(crate) fn begin_only_session(&self) -> bool {
        !self.has_met.swap(true, Ordering::Relaxed)
    }

    /// The application has gone, and its engine is not waited for.
    fn leave(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // An engine that has not begun will see it in its first turn.
        let engine = self.lock().engine.take();
        if let Some(engine) = engine {
            engine.wake();
        }
    }

    /// The next session; `None` when `timeout` passes.
    fn next(&self, timeout: Option<Duration>) -> Result<Option<Session>, Error> {
        // One that is further away than clocks go never comes.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        loop {
            if let Some(next) = state.next() {
                drop(state);
                return next.map(|session| Some(accepted(session)));
            }
            match self.changed.wait_until(state, deadline) {
                Some(changed) => state = changed,
                None => return Ok(None),
            }
        }
    }

    /// The next session, for a task.
    fn poll_next(&self, waiter: &mut Waiter, cx: &Context<'_>) -> Poll<Result<Session, Error>> {
        self.poll_until(waiter, cx, LobbyState::next)
            .map_ok(accepted)
    }

    fn poll_until<T>(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        ready: impl FnOnce(&mut LobbyState) -> Option<T>,
    ) -> Poll<T> {
        let mut state = self.lock();
        if let Some(value) = ready(&mut state) {
            return Poll::Ready(value);
        }
        let unused = waiter.register(cx.waker());
        drop(state);
        drop(unused);
        Poll::Pending
    }
}

impl LobbyState {
    fn next(&mut self) -> Option<Result<Session, Error>> {
        let arrived = self.arrived.pop_front().map(Ok);
        arrived.or_else(|| self.failed.clone().map(Err))
    }
}

/// An application has it now. The lobby's lock is free.
fn accepted(session: Session) -> Session {
    session.accept();
    session
}

/// A listening endpoint, with a fresh identity or one that was [kept](Self::bind_with). Dropping it closes its sessions.
pub struct Server {
    lobby: Arc<Lobby>,
    engines: Vec<EngineOf>,
    local_addr: SocketAddr,
    own_addresses: Vec<IpAddr>,
    identity: Identity,
    guests: Guests,
}

/// What a server has of one of its engines.
struct EngineOf {
    waker: Waker,
    pool: BufferPool,
    /// The engine's thread, until its end has been waited for.
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Listens on `listen`; `[::]` takes IPv4 too. Sessions for another service are refused.
    ///
    /// # Errors
    /// [`ErrorKind::LocalIo`] when the address cannot be used, [`ErrorKind::Usage`] when the options cannot.
    pub fn bind(listen: SocketAddr, service: Service, options: &Options) -> Result<Self, Error> {
        Self::bind_with(listen, &[service], ServerKey::generate(), options)
    }

    /// The same with an identity that was kept, for several services: which of them a session is for, its client
    /// [says](Session::service).
    ///
    /// # Panics
    /// If there is no service.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_with(
        listen: SocketAddr,
        services: &[Service],
        ServerKey(identity): ServerKey,
        options: &Options,
    ) -> Result<Self, Error> {
        check_paper(options)?;
        match &options.io {
            Io::Udp if options.shards > 1 => {
                let (ios, shards) = open_shards(listen, None, options)?;
                Self::serve(of_shards(ios, shards), services, identity, options)
            }
            #[cfg(feature = "dpdk")]
            Io::Dpdk(config) if options.shards > 1 => {
                let (ios, shards) = open_queues(config, listen, options)?;
                Self::serve(of_shards(ios, shards), services, identity, options)
            }
            Io::Xdp(config) if options.shards > 1 => {
                let (sockets, shards) = open_shards(listen, Some("rss"), options)?;
                let ios = XdpIo::open_shards(config, sockets);
                let ios = ios.map_err(|error| no_xdp(config, error))?;
                Self::serve(of_shards(ios, shards), services, identity, options)
            }
            Io::Udp => {
                let io = open(listen)?;
                Self::serve(vec![(io, None)], services, identity, options)
            }
            Io::Xdp(config) => {
                let io = open_xdp(config, open(listen)?)?;
                Self::serve(vec![(io, None)], services, identity, options)
            }
            #[cfg(feature = "dpdk")]
            Io::Dpdk(config) => {
                let io = open_dpdk(config, listen)?;
                Self::serve(vec![(io, None)], services, identity, options)
            }
        }
    }

    /// Listens with these back ends, each of which has an engine.
    fn serve(
        ios: Vec<(impl PacketIo + 'static, Option<Shard>)>,
        services: &[Service],
        identity: Identity,
        options: &Options,
    ) -> Result<Self, Error> {
        check_cpus(options)?;
        let mut list = AccessList::new();
        list.add_ticket(identity.own_secret(), true);
        let (guests, lobby) = (Guests::new(list), Lobby::new());
        let count = ios.len();
        let (first, _) = ios.first().expect("there is an engine");
        let (local_addr, own_addresses) = (first.local_addr(), first.own_addresses());
        let mut engines = Vec::new();
        for (number, (io, mut shard)) in ios.into_iter().enumerate() {
            let listen = io.local_addr();
            let options = options_of(options, number, count);
            let ids = ids(&options, shard.as_ref().map(Shard::place));
            let settings = settings(services, &options, PATHS_MAX, None);
            let resets = ResetKey::new(&identity, options.server_id, listen);
            let control = Control::server(&identity, guests.clone(), settings, ids);
            let loads = shard.as_mut().and_then(Shard::take_loads);
            let control = control.with_resets(resets).with_loads(loads);
            let (purpose, lobby) = (Purpose::Listen, Arc::clone(&lobby));
            let waker = io.waker();
            let engine = Engine::new(io, control, purpose, options, lobby, shard);
            engines.push((waker, engine.map_err(no_workers)?));
        }
        let mut server = Self {
            lobby,
            engines: Vec::new(),
            local_addr,
            own_addresses,
            identity,
            guests,
        };
        for (waker, mut engine) in engines {
            let pool = engine.pool().clone();
            let thread = Some(spawn_thread(move || engine.run())?);
            let engine = EngineOf {
                waker,
                pool,
                thread,
            };
            server.engines.push(engine);
        }
        Ok(server)
    }

    /// Where the server listens; the port is never 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The addresses that it listens on where the kernel does not know them: those of a card that [DPDK](Io) has. None of any other server.
    pub fn own_addresses(&self) -> &[IpAddr] {
        &self.own_addresses
    }

    /// Bytes of the blocks that its sessions hold: received and not read, or written and not delivered.
    pub fn held_bytes(&self) -> usize {
        let pools = self.engines.iter().map(|engine| &engine.pool);
        pools.map(|pool| pool.stats().used_bytes).sum()
    }

    /// What a client needs to connect: the server's first ticket, which is good until [another list](Self::access) leaves it out.
    /// `advertise` are hosts or `host:port`; the local port is added where it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for names that are none, or too many.
    pub fn ticket(&self, advertise: &[String]) -> Result<Ticket, Error> {
        self.ticket_with(advertise, &self.identity.own_secret())
    }

    /// A ticket with this secret, which is good once it is on [the list](Self::access).
    ///
    /// # Errors
    /// Those of [`ticket`](Self::ticket).
    pub fn ticket_with(
        &self,
        advertise: &[String],
        secret: &TicketSecret,
    ) -> Result<Ticket, Error> {
        let port = self.local_addr.port();
        let addresses: Vec<String> = advertise.iter().map(|host| with_port(host, port)).collect();
        let ticket = self.identity.ticket_with(&addresses, secret);
        ticket.map_err(|error| {
            let why = format!("cannot advertise this: {error}");
            Error::new(ErrorKind::Usage, why).caused_by(error)
        })
    }

    /// Who may connect: at first who has [the first ticket](Self::ticket).
    pub fn access(&self) -> Access {
        let wakers = self.engines.iter().map(|engine| engine.waker.clone());
        Access::new(self.guests.clone(), wakers.collect())
    }

    /// Waits for the next authenticated session; `None` when `timeout` passes.
    ///
    /// # Errors
    /// When the socket has failed.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<Session>, Error> {
        self.lobby.next(timeout)
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::new(&self.lobby.changed)
    }

    pub(crate) fn poll_accept(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<Session, Error>> {
        self.lobby.poll_next(waiter, cx)
    }

    /// Closes the sessions, and does not wait until that is done.
    pub(crate) fn begin_stop(&mut self) {
        self.tell_to_stop();
        for engine in &mut self.engines {
            engine.thread = None;
        }
    }

    fn tell_to_stop(&self) {
        self.lobby.stop.store(true, Ordering::Relaxed);
        for engine in &self.engines {
            engine.waker.wake();
        }
    }

    /// Waits until all engines have ended.
    pub(crate) fn poll_stopped(&self, waiter: &mut Waiter, cx: &Context<'_>) -> Poll<()> {
        self.lobby.poll_until(waiter, cx, |state| {
            (state.ended == self.engines.len()).then_some(())
        })
    }

    /// Why a client that knows the ticket was refused since the last call, if one was:
    /// [`ErrorKind::Protocol`] for one that speaks another version of the protocol, [`ErrorKind::Cancelled`] for one that there was no room
    /// for. Whoever sees such a client's first packet can send it again, so this is for a note and ends nothing.
    pub fn take_refused(&self) -> Option<Error> {
        self.lobby.lock().refused.take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell_to_stop();
        for engine in &mut self.engines {
            if let Some(thread) = engine.thread.take() {
                // A panic of the engine has been printed by its thread.
                let _ = thread.join();
            }
        }
        self.guests.end_looking();
    }
}

/// Connects to the first address of the ticket that answers, and waits until the server has shown
/// that it is the ticket's.
///
/// # Errors
/// [`ErrorKind::Unreachable`] when nobody answers within the connect timeout or a name does not
/// resolve, [`ErrorKind::Authentication`] for a server that is not the ticket's, and for a ticket that the
/// server does not know,
/// [`ErrorKind::Protocol`] when the peer serves another purpose, or speaks another version of the protocol, [`ErrorKind::Usage`] when the options
/// cannot be used.
pub fn connect(ticket: &Ticket, service: Service, options: &Options) -> Result<Session, Error> {
    let lobby = Lobby::new();
    let run = client(ticket, service, options, &lobby)?;
    // The thread ends by itself when its session is over.
    spawn_thread(run)?;
    match lobby.next(None)? {
        Some(session) => Ok(session),
        None => Err(Error::new(ErrorKind::Other, "the engine has stopped")),
    }
}

/// What the thread of an engine does.
type Run = Box<dyn FnOnce() + Send>;

/// An engine that connects. Asks for names and looks into a file: it may take a while.
fn client(
    ticket: &Ticket,
    service: Service,
    options: &Options,
    lobby: &Arc<Lobby>,
) -> Result<Run, Error> {
    check_paper(options)?;
    if options.io != Io::Udp && !options.paths.is_empty() {
        let why = "several paths need the kernel's sockets: --path goes with --io udp only";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    let remotes = resolve_all(ticket, options.family)?;
    #[cfg(feature = "dpdk")]
    if let Io::Dpdk(config) = &options.io {
        let io = open_dpdk(config, (Ipv6Addr::UNSPECIFIED, 0).into())?;
        let purpose = purpose(ticket, service, options, (remotes, Vec::new()));
        return engine_of(io, purpose, options, lobby);
    }
    let (socket, remotes, further) = match &options.paths[..] {
        [] => {
            let (socket, remotes) = open_client(remotes)?;
            (socket, remotes, Vec::new())
        }
        paths => open_paths(paths, remotes)?,
    };
    let purpose = purpose(ticket, service, options, (remotes, further));
    match &options.io {
        Io::Xdp(config) => engine_of(open_xdp(config, socket)?, purpose, options, lobby),
        _ => engine_of(socket, purpose, options, lobby),
    }
}

/// What a client is for, with the peer's addresses and where paths but the first begin.
fn purpose(
    ticket: &Ticket,
    service: Service,
    options: &Options,
    (remotes, further): (Vec<SocketAddr>, Vec<Further>),
) -> Purpose {
    // Here, as the engine must not wait for a file.
    let paths = options.path_memory.clone().map(PathFile::new);
    let remotes = remotes.into_iter().map(|address| Remote {
        address,
        memory: paths.as_ref().and_then(|paths| paths.recall(address.ip())),
    });
    let resumptions = resumptions_of(ticket, options);
    Purpose::Connect {
        service,
        ticket: ticket.clone(),
        remotes: remotes.collect(),
        further,
        resumption: resumptions
            .as_ref()
            .and_then(ResumptionFile::take)
            .map(Box::new),
        resumptions: resumptions.map(Box::new),
    }
}

/// Where a client keeps what its sessions begin with before their handshakes are over, if they may. An attempt that is given up later than a session
/// would be that hears nothing has to wait for its handshake.
fn resumptions_of(ticket: &Ticket, options: &Options) -> Option<ResumptionFile> {
    let is_plain = options.paths.is_empty() && options.paper.is_none() && options.sc.is_none();
    let may = options.early_data && is_plain && options.connect_timeout <= options.idle_timeout;
    let paths = options.path_memory.as_ref().filter(|_| may)?;
    Some(ResumptionFile::beside(paths, ticket))
}

/// Back ends, each with its shard.
fn of_shards<Io>(ios: Vec<Io>, shards: Vec<Shard>) -> Vec<(Io, Option<Shard>)> {
    std::iter::zip(ios, shards.into_iter().map(Some)).collect()
}

/// The engine of a client with this back end.
fn engine_of(
    io: impl PacketIo + 'static,
    purpose: Purpose,
    options: &Options,
    lobby: &Arc<Lobby>,
) -> Result<Run, Error> {
    check_cpus(options)?;
    lobby.lock().engine = Some(io.waker());
    let (control, lobby) = (Control::client(ids(options, None)), Arc::clone(lobby));
    let engine = Engine::new(io, control, purpose, options.clone(), lobby, None);
    let mut engine = engine.map_err(no_workers)?;
    Ok(Box::new(move || engine.run()))
}

/// An interface whose packets go past the kernel, for the port of a socket.
fn open_xdp(config: &XdpConfig, socket: UdpIo) -> Result<XdpIo, Error> {
    XdpIo::open(config, socket).map_err(|error| no_xdp(config, error))
}

fn no_xdp(config: &XdpConfig, error: XdpError) -> Error {
    Error::new(ErrorKind::LocalIo, format!("--io xdp:{config}: {error}")).caused_by(error)
}

/// Whether the paper's mode, if it is asked for, is one that the other end takes.
fn check_paper(options: &Options) -> Result<(), Error> {
    let checked = options.paper.as_ref().map_or(Ok(()), Paper::check);
    checked.map_err(|why| Error::new(ErrorKind::Usage, format!("the paper's mode: {why}")))
}

/// Whether this process may use the processors that it is to be bound to.
fn check_cpus(options: &Options) -> Result<(), Error> {
    if options.cpus.is_empty() {
        return Ok(());
    }
    let usable = usable_cpus().map_err(no_workers)?;
    match options.cpus.iter().find(|cpu| !usable.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let usable: Vec<_> = usable.iter().map(usize::to_string).collect();
            let usable = usable.join(", ");
            let why = format!("there is no processor {cpu} for this process, only {usable}");
            Err(Error::new(ErrorKind::Usage, why))
        }
    }
}

fn no_workers(error: io::Error) -> Error {
    let why = format!("cannot start the threads that code: {error}");
    Error::new(ErrorKind::Other, why).caused_by(error)
}

/// A socket of a client without paths of its own, and those of the peer's addresses that it can reach.
fn open_client(remotes: Vec<SocketAddr>) -> Result<(UdpIo, Vec<SocketAddr>), Error> {
    let wants_v6 = remotes.iter().any(SocketAddr::is_ipv6);
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    match wants_v6.then(|| open((Ipv6Addr::UNSPECIFIED, 0).into())) {
        Some(Ok(io)) => Ok((io, remotes)),
        // No IPv6 on this host.
        Some(Err(error)) => {
            let remotes: Vec<_> = remotes.into_iter().filter(SocketAddr::is_ipv4).collect();
            match remotes.is_empty() {
                // Otherwise it would seem that nobody answers.
                true => Err(error),
                false => Ok((open(v4)?, remotes)),
            }
        }
        None => Ok((open(v4)?, remotes)),
    }
}

/// A card that DPDK has to itself.
#[cfg(feature = "dpdk")]
fn open_dpdk(
    config: &sphinx_dpdk::DpdkConfig,
    bind: SocketAddr,
) -> Result<sphinx_dpdk::DpdkIo, Error> {
    sphinx_dpdk::DpdkIo::open(config, bind).map_err(no_dpdk)
}

/// Queues of a card that DPDK has to itself, and the shards that are to have them.
#[cfg(feature = "dpdk")]
fn open_queues(
    config: &sphinx_dpdk::DpdkConfig,
    bind: SocketAddr,
    options: &Options,
) -> Result<(Vec<sphinx_dpdk::DpdkIo>, Vec<Shard>), Error> {
    let steering = Steering::new(random_bytes(), options.shards.min(SHARDS_MAX));
    let ios = sphinx_dpdk::DpdkIo::open_queues(config, bind, steering.shards()).map_err(no_dpdk)?;
    let wakers = ios.iter().map(PacketIo::waker).collect();
    Ok((ios, Shard::all(&steering, wakers, "rss")))
}

#[cfg(feature = "dpdk")]
fn no_dpdk(error: sphinx_dpdk::DpdkError) -> Error {
    Error::new(ErrorKind::LocalIo, format!("--io dpdk: {error}")).caused_by(error)
}

/// An attempt to connect for which no thread waits. Dropping it ends it.
pub(crate) struct Connecting {
    /// Until the session is there, which the engine then belongs to.
    lobby: Option<Arc<Lobby>>,
    waiter: Waiter,
}

impl Connecting {
    /// The thread that is going to be the engine's begins with what takes a while.
    pub(crate) fn begin(ticket: Ticket, service: Service, options: Options) -> Result<Self, Error> {
        let lobby = Lobby::new();
        let connecting = Self {
            waiter: Waiter::new(&lobby.changed),
            lobby: Some(Arc::clone(&lobby)),
        };
        spawn_thread(move || match client(&ticket, service, &options, &lobby) {
            Ok(run) => run(),
            Err(error) => lobby.fail(error),
        })?;
        Ok(connecting)
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Session, Error>> {
        let Some(lobby) = &self.lobby else {
            // Nobody asks again for what has been given.
            return Poll::Pending;
        };
        let polled = lobby.poll_next(&mut self.waiter, cx);
        if polled.is_ready() {
            self.lobby = None;
        }
        polled
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(lobby) = &self.lobby {
            lobby.leave();
        }
    }
}

/// When the n-th address is tried, counted from the first.
pub(crate) fn attempt_delay(n: usize) -> Duration {
    ATTEMPT_DELAY * n as u32
}

fn resolve_all(ticket: &Ticket, family: Family) -> Result<Vec<SocketAddr>, Error> {
    let mut remotes = Vec::new();
    let mut failure = None;
    for address in ticket.addresses() {
        match resolve(address, None, family) {
            Ok(found) => {
                for remote in found {
                    if !remotes.contains(&remote) {
                        remotes.push(remote);
                    }
                }
            }
            Err(error) => failure = Some(error),
        }
    }
    remotes.truncate(ATTEMPTS_MAX);
    match (remotes.is_empty(), failure) {
        (false, _) => Ok(remotes),
        (true, Some(error)) => {
            Err(Error::new(ErrorKind::Unreachable, error.to_string()).caused_by(error))
        }
        (true, None) => Err(Error::new(ErrorKind::Usage, "the ticket has no address")),
    }
}

fn open(bind: SocketAddr) -> Result<UdpIo, Error> {
    UdpIo::open(&UdpConfig::new(bind))
        .map_err(|error| Error::new(ErrorKind::LocalIo, error.to_string()).caused_by(error))
}

/// Sockets of one port, and the shards that are to have them. `past_the_kernel`: what spreads most packets over them, if the kernel does not.
fn open_shards(
    bind: SocketAddr,
    past_the_kernel: Option<&'static str>,
    options: &Options,
) -> Result<(Vec<UdpIo>, Vec<Shard>), Error> {
    let steering = Steering::new(random_bytes(), options.shards.min(SHARDS_MAX));
    let config = UdpConfig::new(bind);
    let (ios, steers) = UdpIo::open_shards(&config, &steering, options.shards_by_hash)
        .map_err(|error| Error::new(ErrorKind::LocalIo, error.to_string()).caused_by(error))?;
    let wakers = ios.iter().map(PacketIo::waker).collect();
    let steered_by = past_the_kernel.unwrap_or(if steers { "bpf" } else { "hash" });
    Ok((ios, Shard::all(&steering, wakers, steered_by)))
}

fn ids(options: &Options, place: Option<&Place>) -> IdMaker {
    IdMaker::new(
        options.routing_key.as_ref(),
        options.server_id,
        place.cloned(),
    )
}

/// The thread of an engine.
fn spawn_thread(run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name("sphinx-engine".to_owned())
        .spawn(run)
        .map_err(|error| Error::new(ErrorKind::Other, format!("cannot start a thread: {error}")))
}

/// Whether tickets can name this: a host, or host:port ([`Server::ticket`]).
pub fn can_advertise(host: &str) -> bool {
    is_address(&with_port(host, 1))
}

fn with_port(host: &str, port: u16) -> String {
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return SocketAddr::new(ip, port).to_string();
    }
    match host.rsplit_once(':') {
        Some((_, given)) if given.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use sphinx_proto::Paper;

    use super::{Lobby, Server, can_advertise, client, with_port};
    use crate::access::TicketSecret;
    use crate::error::ErrorKind;
    use crate::options::{Options, Service};
    use crate::ticket::ServerKey;

    #[test]
    fn a_mode_that_cannot_be_is_refused_before_anything_is_opened() {
        let paper = Paper {
            n: 0,
            ..Paper::default()
        };
        let options = Options {
            paper: Some(paper),
            ..Options::default()
        };
        let bound = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options);
        let error = bound.expect_err("a block has symbols");
        assert_eq!(error.kind(), ErrorKind::Usage);
        let (key, secret) = (ServerKey::generate(), TicketSecret::generate());
        let ticket = key.ticket(&["127.0.0.1:1".to_owned()], &secret);
        let ticket = ticket.expect("an address");
        let begun = client(&ticket, Service::Application, &options, &Lobby::new());
        let error = begun.err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::Usage));
    }

    #[test]
    fn what_tickets_can_name_is_known_before_there_is_one() {
        for host in ["a.example", "a.example:9", "10.0.0.1", "::1", "[::1]:9"] {
            assert!(can_advertise(host), "{host}");
        }
        for wrong in ["", "a b", "a:", "a:0", "[a]", "[::1%2]:9", "::1%lo"] {
            assert!(!can_advertise(wrong), "{wrong}");
        }
    }

    #[test]
    fn ports_are_added_where_missing() {
        for (given, expected) in [
            ("example.org", "example.org:7"),
            ("example.org:9", "example.org:9"),
            ("10.0.0.1", "10.0.0.1:7"),
            ("10.0.0.1:9", "10.0.0.1:9"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(with_port(given, 7), expected);
        }
    }
}
