//! The end that listens for the programs of its user, and stays up whatever becomes of the session.

mod remote;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sphinx_transport::asynchronous::{Session, connect};
use sphinx_transport::{Error, ErrorKind, Options, Service, Ticket, close_code};
use tokio::net::{TcpListener, UdpSocket, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::event::{Direction, Event, Events};
use crate::exchange;
use crate::forward::{Carried, Forward, Giving, Listen};
use crate::limits::Place;
use crate::live::{Link, Live};
use crate::proxy::{Credentials, Proxy};
use crate::relay::{Broken, First, Local, relay};
use crate::server::{ACCEPT_PAUSE, accept, bind};
use crate::tun::{self, TunPlan};
use crate::udp::{self, Listener};
use crate::wire::{Refusal, Request, Status, Target};
use remote::Remote;

/// Pause before an attempt to connect again: before the first one, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// How often this end looks whether it has other addresses while it has no session.
const ADDRESSES_TIME: Duration = Duration::from_millis(500);

/// What a client is to forward.
#[derive(Debug, Default)]
pub struct Plan {
    /// Forwards that listen at this end (`-L`).
    pub local: Vec<Forward>,
    /// Forwards that listen at the other end (`-R`).
    pub remote: Vec<Forward>,
    /// SOCKS5 and HTTP CONNECT (`-D`).
    pub proxies: Vec<SocketAddr>,
    /// What the programs that use them have to name.
    pub credentials: Option<Credentials>,
    /// IP packets (`--tun`).
    pub tun: Option<TunPlan>,
}

/// How a client is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// At once.
    Now,
    /// After what programs have sent through `--tun --split-tcp` and closed is delivered, unless that takes longer than 10 s.
    Delivered,
}

/// Why a client has ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no session, or none any more.
    #[error(transparent)]
    Session(#[from] Error),
    /// A listener here.
    #[error("{spec}: cannot listen on {at}: {source}")]
    Listen {
        /// The forward as it was written, with its option's letter.
        spec: String,
        /// Where it was to listen.
        at: String,
        /// Why it cannot listen.
        source: io::Error,
    },
    /// A listener at the other end, or what `-W` asked for.
    #[error("{spec}: {refusal}")]
    Refused {
        /// The forward as it was written, with its option's letter.
        spec: String,
        /// What the other end says.
        refusal: Refusal,
    },
    /// A network interface here.
    #[error("{what}: {source}")]
    Tun {
        /// What was done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Standard input or output.
    #[error("{0}")]
    Stdio(io::Error),
}

/// Forwards until `stop`, or until there is no point in trying to connect again.
///
/// # Errors
/// Why there is none; before that, that there is no first session, or that something cannot listen; at any time, that the interface of `--tun` is gone.
pub async fn forward(
    mut plan: Plan,
    ticket: &Ticket,
    options: &Options,
    events: &Events,
    stop: impl Future<Output = Stop>,
) -> Result<(), ClientError> {
    // Ports first: what fails at once is told before anything is connected.
    let listeners = listen(&plan).await?;
    let tun = plan.tun.take().map(|plan| tun::Client::open(plan, events));
    let tun = tun.transpose()?;
    let mut stop = std::pin::pin!(async {
        let failure = async {
            match &tun {
                Some(tun) => tun.failure().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            stop = stop => Ok(stop),
            error = failure => Err(error),
        }
    });
    let (current, link) = watch::channel(None);
    let link = Link::new(link);
    let remote = Remote::new(&plan, events);
    let mut tasks = JoinSet::new();
    let mut listeners = Some(listeners);
    let mut next = tokio::select! {
        session = connect(ticket, Service::Tunnel, options) => session?,
        ended = &mut stop => return ended.map(drop),
    };
    loop {
        let live = Live::new(next, true);
        let stats = live.session.as_blocking().stats();
        events.tell(Event::Connected {
            server: live.session.as_blocking().remote_addr(),
            rtt: stats.rtt,
        });
        let over = {
            let serving = remote.clone();
            let mut serving = std::pin::pin!(live.serve(move |live, asked| {
                let remote = serving.clone();
                async move { remote.serve(live, asked).await }
            }));
            let is_first = listeners.is_some();
            let ready = async {
                let held = remote.listen(&live, is_first).await?;
                // Later ones are asked for until that works: the addresses may be the lost session's for a while.
                let carried = match &tun {
                    Some(tun) if is_first => Some(tun.ask(&live, ticket).await?),
                    _ => None,
                };
                current.send_replace(Some(live.clone()));
                Ok::<_, ClientError>((held, carried))
            };
            let held = tokio::select! {
                held = ready => held,
                error = &mut serving => Err(error.into()),
                ended = &mut stop => {
                    close(&live.session, "done").await;
                    return ended.map(drop);
                }
            };
            match held {
                Ok((_held, carried)) => {
                    if let Some(listeners) = listeners.take() {
                        start(listeners, &plan, &link, events, &mut tasks);
                        if let Some(tun) = &tun {
                            tun.start(&link, &mut tasks);
                        }
                    }
                    let carrying = async {
                        match &tun {
                            Some(tun) => tun.carry(&live, ticket, carried).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        error = serving => error,
                        error = carrying => error,
                        ended = &mut stop => {
                            if let Some(tun) = &tun {
                                tun.end(matches!(ended, Ok(Stop::Delivered))).await;
                            }
                            close(&live.session, "done").await;
                            return ended.map(drop);
                        }
                    }
                }
                Err(error) if is_first => {
                    close(&live.session, "a forward is not possible").await;
                    return Err(error);
                }
                Err(ClientError::Session(error)) => error,
                Err(error) => return Err(error),
            }
        };
        current.send_replace(None);
        drop(live);
        next = tokio::select! {
            session = again(ticket, tun.as_deref(), options, events, over) => session?,
            ended = &mut stop => return ended.map(drop),
        };
    }
}

/// Carries standard input and output to one target.
///
/// # Errors
/// There is no session, the other end does not connect, or the connection breaks.
pub async fn stdio(
    target: Target,
    ticket: &Ticket,
    options: &Options,
    events: &Events,
    stop: impl Future<Output = ()>,
) -> Result<(), ClientError> {
    let spec = format!("-W {target}");
    let mut stop = std::pin::pin!(stop);
    let session = tokio::select! {
        session = connect(ticket, Service::Tunnel, options) => session?,
        () = &mut stop => return Ok(()),
    };
    let refused = |refusal| {
        let spec = spec.clone();
        ClientError::Refused { spec, refusal }
    };
    let mut flow = events.flow("tcp", target.to_string(), Direction::Out);
    let carried = async {
        let both = exchange::ask(&session, &Request::Connect(target)).await;
        let both = both.map_err(refused)?;
        let ended = relay(Local::Stdio, both, First::Reply, &flow.counts).await;
        ended.map_err(|broken| match broken {
            Broken::Refused(refusal) => refused(refusal),
            Broken::Local(error) => ClientError::Stdio(error),
            Broken::Remote(error) => refused(Refusal::new(Status::Other, error.to_string())),
        })
    };
    let ended = tokio::select! {
        ended = carried => ended,
        () = stop => Ok(()),
    };
    let ended = match (ended, session.as_blocking().closed()) {
        // Streams of a session that the server ended fail too, some of them before their request was sent.
        (Err(ClientError::Refused { .. }), Some(error)) => Err(error.into()),
        (ended, _) => ended,
    };
    flow.ended(ended.as_ref().map(|done| *done));
    close(&session, "done").await;
    ended
}

/// Has the server that `ticket` invites to add its key to those that it knows.
///
/// # Errors
/// There is no session, or the server refuses.
pub async fn join(ticket: &Ticket, options: &Options) -> Result<(), ClientError> {
    let session = connect(ticket, Service::Tunnel, options).await?;
    let joined = async {
        let (_send, mut recv) = exchange::ask(&session, &Request::Join).await?;
        exchange::reply(&mut recv).await
    };
    let joined = joined.await;
    let lost = session.as_blocking().closed();
    close(&session, "done").await;
    match (joined, lost) {
        (Ok(_), _) => Ok(()),
        (Err(_), Some(error)) => Err(error.into()),
        (Err(refusal), None) => Err(ClientError::Refused {
            spec: "join".to_owned(),
            refusal,
        }),
    }
}

/// Whether the server of `ticket` lets this client in.
pub async fn is_known(ticket: &Ticket, options: &Options) -> bool {
    let Ok(session) = connect(ticket, Service::Tunnel, options).await else {
        return false;
    };
    // A server refuses a client only after the client has begun to send, and answers those whom it knows.
    let asked = async {
        let (_send, mut recv) = exchange::ask(&session, &Request::Join).await?;
        exchange::reply(&mut recv).await
    };
    let _ = asked.await;
    let closed = session.as_blocking().closed();
    // A client that may do other things only is turned away as well, but with another code than one that is not known.
    let is_known = closed.is_none_or(|error| error.close_code() == Some(close_code::NOT_PERMITTED));
    close(&session, "done").await;
    is_known
}

async fn close(session: &Session, reason: &str) {
    session.close(close_code::DONE, reason).await;
}

/// Connects again, for as long as it may help.
async fn again(
    ticket: &Ticket,
    tun: Option<&tun::Client>,
    options: &Options,
    events: &Events,
    mut reason: Error,
) -> Result<Session, Error> {
    let mut pause = PAUSE.0;
    let mut attempt = 0;
    loop {
        let may_help = matches!(
            reason.kind(),
            ErrorKind::PeerLost
                | ErrorKind::Stalled
                | ErrorKind::Cancelled
                | ErrorKind::Unreachable
                | ErrorKind::LocalIo
                | ErrorKind::Other
        );
        if !may_help {
            return Err(reason);
        }
        attempt += 1;
        events.tell(Event::Reconnecting {
            reason: reason.to_string(),
            attempt,
            next: pause,
        });
        pause = match wait_for_network(pause).await {
            // Another network: what has failed before says nothing about it.
            true => PAUSE.0,
            false => (pause * 2).min(PAUSE.1),
        };
        let ticket = match tun {
            Some(tun) => tun.ticket(ticket).await,
            None => ticket.clone(),
        };
        match connect(&ticket, Service::Tunnel, options).await {
            Ok(session) => return Ok(session),
            Err(error) => reason = error,
        }
    }
}

/// Waits so long, or until this machine has an address that it has not now: whether it has.
async fn wait_for_network(time: Duration) -> bool {
    let addresses = || -> Vec<IpAddr> {
        let found = if_addrs::get_if_addrs().unwrap_or_default();
        found.iter().map(if_addrs::Interface::ip).collect()
    };
    let (before, end) = (addresses(), Instant::now() + time);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(left.min(ADDRESSES_TIME)).await;
        if addresses().iter().any(|ip| !before.contains(ip)) {
            return true;
        }
    }
}

/// Something that listens here.
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, RemovedPath),
    Udp(UdpSocket, Giving),
}

/// The file of a Unix socket, which is removed with it.
struct RemovedPath {
    path: PathBuf,
    /// Device and inode number of the file.
    file: (u64, u64),
}

impl RemovedPath {
    fn new(path: &Path) -> io::Result<Self> {
        let (path, file) = (path.to_owned(), file_at(path)?);
        Ok(Self { path, file })
    }
}

impl Drop for RemovedPath {
    fn drop(&mut self) {
        // Another process may have put another file there.
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Listeners of `-L`, and those of `-D`, in the order of the plan.
async fn listen(plan: &Plan) -> Result<(Vec<Listening>, Vec<TcpListener>), ClientError> {
    let mut forwards = Vec::new();
    for forward in &plan.local {
        let listening = listen_on(&forward.listen, forward.carried).await;
        forwards.push(listening.map_err(|source| ClientError::Listen {
            spec: format!("-L {}", forward.text),
            at: forward.listen.to_string(),
            source,
        })?);
    }
    let mut proxies = Vec::new();
    for at in &plan.proxies {
        proxies.push(bind(*at).await.map_err(|source| ClientError::Listen {
            spec: format!("-D {at}"),
            at: at.to_string(),
            source,
        })?);
    }
    Ok((forwards, proxies))
}

async fn listen_on(at: &Listen, carried: Carried) -> io::Result<Listening> {
    Ok(match (at, carried) {
        (Listen::Address(address), Carried::Stream) => Listening::Tcp(bind(*address).await?),
        (Listen::Address(address), Carried::Datagrams(giving)) => {
            Listening::Udp(udp::listen(*address).await?, giving)
        }
        (Listen::Path(path), _) => {
            let (listener, path) = bind_path(path)?;
            Listening::Unix(listener, path)
        }
    })
}

/// Listens on a path, which only this user may connect to. A socket that nobody listens on any more is replaced.
fn bind_path(path: &Path) -> io::Result<(UnixListener, RemovedPath)> {
    let bound = match std::os::unix::net::UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Other files refuse connections as well.
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                let kind = io::ErrorKind::AlreadyExists;
                return Err(io::Error::new(kind, "there is a file that is no socket"));
            }
            let reached = std::os::unix::net::UnixStream::connect(path);
            match reached {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                    std::os::unix::net::UnixListener::bind(path)?
                }
                _ => return Err(error),
            }
        }
        bound => bound?,
    };
    let removed = RemovedPath::new(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    bound.set_nonblocking(true)?;
    Ok((UnixListener::from_std(bound)?, removed))
}

/// Begins to serve what listens here, and tells where that is.
fn start(
    (forwards, proxies): (Vec<Listening>, Vec<TcpListener>),
    plan: &Plan,
    link: &Link,
    events: &Events,
    tasks: &mut JoinSet<()>,
) {
    for (listening, forward) in forwards.into_iter().zip(&plan.local) {
        let bound = match &listening {
            Listening::Tcp(listener) => shown(listener.local_addr()),
            Listening::Udp(socket, _) => shown(socket.local_addr()),
            Listening::Unix(_, removed) => removed.path.display().to_string(),
        };
        events.tell(Event::Forward {
            spec: format!("-L {}", forward.text),
            bound,
        });
        tasks.spawn(serve(
            listening,
            forward.target.clone(),
            link.clone(),
            events.clone(),
        ));
    }
    for (listener, at) in proxies.into_iter().zip(&plan.proxies) {
        events.tell(Event::Forward {
            spec: format!("-D {at}"),
            bound: shown(listener.local_addr()),
        });
        let proxy = Arc::new(Proxy {
            credentials: plan.credentials.clone(),
            events: events.clone(),
        });
        let link = link.clone();
        tasks.spawn(async move {
            let mut flows = JoinSet::new();
            loop {
                let stream = accept(&listener, &proxy.events).await;
                while flows.try_join_next().is_some() {}
                let (proxy, link) = (Arc::clone(&proxy), link.clone());
                flows.spawn(async move { proxy.serve(stream, &link).await });
            }
        });
    }
}

fn shown(address: io::Result<SocketAddr>) -> String {
    address.map_or_else(|error| error.to_string(), |address| address.to_string())
}

async fn serve(listening: Listening, target: Target, link: Link, events: Events) {
    let mut flows = JoinSet::new();
    let mut begin = |local: Local, proto: &'static str| {
        while flows.try_join_next().is_some() {}
        let (link, target, events) = (link.clone(), target.clone(), events.clone());
        flows.spawn(async move {
            let mut flow = events.flow(proto, target.to_string(), Direction::Out);
            let Some(live) = link.live().await else {
                return flow.ended(Err("there is no session"));
            };
            match exchange::ask(&live.session, &Request::Connect(target)).await {
                Ok(both) => {
                    let ended = relay(local, both, First::Reply, &flow.counts).await;
                    flow.ended(ended);
                }
                Err(refusal) => flow.ended(Err(refusal)),
            }
        });
    };
    match listening {
        Listening::Tcp(listener) => loop {
            let stream = accept(&listener, &events).await;
            let _ = stream.set_nodelay(true);
            begin(Local::Tcp(stream), "tcp");
        },
        Listening::Unix(listener, _path) => loop {
            match listener.accept().await {
                Ok((stream, _)) => begin(Local::Unix(stream), "unix"),
                Err(error) => {
                    events.scarce_files(&error);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        },
        Listening::Udp(socket, giving) => {
            let shown = target.to_string();
            let listener = Listener {
                socket: Arc::new(socket),
                giving,
                place: Box::new(|| Some(Place::default())),
                target: shown.clone(),
                request: Box::new(move |flow| Request::Udp {
                    flow,
                    giving,
                    target: target.clone(),
                }),
                events: events.clone(),
                throttle: Arc::default(),
            };
            if let Err(error) = listener.run(|| link.now()).await {
                events.tell(Event::Warning(format!("{shown}: {error}")));
            }
        }
    }
}
