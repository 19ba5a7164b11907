//! Connecting to what the other end has asked for: names are resolved here, and rules see the addresses that they have led to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::event::Events;
use crate::permit::{Permit, Transport, canonical};
use crate::relay::Local;
use crate::udp;
use crate::wire::{Refusal, Status, Target};

/// How long a target may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// How long the name service may take to answer.
const LOOKUP_TIME: Duration = Duration::from_secs(10);
/// Names that are asked for at a time, all together and for one client. Each occupies a thread, of which an event loop has 512.
const LOOKUPS_MAX: usize = 256;
const LOOKUPS_OF_ONE: usize = 16;
/// How long after one address the next is tried too (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried.
const ATTEMPTS_MAX: usize = 8;

/// Why a client is refused, as events and other ends are told.
pub(crate) const NO_RULE: &str = "no rule lets it through";

fn denied(target: &Target) -> Refusal {
    Refusal::new(Status::Denied, format!("{target}: {NO_RULE}"))
}

/// How a name is asked for.
type Ask = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The name service, for one client. Nobody can take a question back: it goes on, and counts, until it is answered, although its client may have gone
/// to others long since.
#[derive(Clone)]
pub(crate) struct Names {
    ask: Arc<Ask>,
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new(|name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }
}

impl Names {
    pub(crate) fn new(
        ask: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            ask: Arc::new(ask),
            all: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            own: Arc::new(Semaphore::new(LOOKUPS_OF_ONE)),
        }
    }

    /// The same for another client.
    pub(crate) fn for_another(&self) -> Self {
        Self {
            own: Arc::new(Semaphore::new(LOOKUPS_OF_ONE)),
            ..self.clone()
        }
    }

    async fn find(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // The client's own turn first: while it waits for that it holds no turn of all clients.
        let own = Arc::clone(&self.own).acquire_owned().await;
        let all = Arc::clone(&self.all).acquire_owned().await;
        let turns = (
            own.map_err(io::Error::other)?,
            all.map_err(io::Error::other)?,
        );
        let (ask, name) = (Arc::clone(&self.ask), name.to_owned());
        let asked = spawn_blocking(move || {
            let _turns = turns;
            ask(&name, port)
        });
        asked.await.map_err(io::Error::other)?
    }
}

/// The addresses of `target` that `permit` lets through (all, without one): at least one.
pub(crate) async fn resolve(
    names: &Names,
    target: &Target,
    transport: Transport,
    permit: Option<&Permit>,
) -> Result<Vec<SocketAddr>, Refusal> {
    let (name, found) = match target {
        Target::Ip(address) => (None, vec![*address]),
        Target::Name(name, port) => {
            if permit.is_some_and(|permit| !permit.lets_resolve(transport, name, *port)) {
                return Err(denied(target));
            }
            let found = timeout(LOOKUP_TIME, names.find(name, *port)).await;
            let no_name = |why: &str| Refusal::new(Status::NoName, format!("{name}: {why}"));
            let found = match found {
                Err(_) => return Err(no_name("the name service does not answer")),
                Ok(Err(_)) => return Err(no_name("the name has no address")),
                Ok(Ok(found)) => found,
            };
            if found.is_empty() {
                return Err(no_name("the name has no address"));
            }
            (Some(name.as_str()), found)
        }
        Target::Path(_) => {
            return Err(Refusal::new(Status::Unsupported, "a path is no address"));
        }
    };
    // The addresses that were checked are those that are connected to: asking again could give others.
    let mut allowed: Vec<SocketAddr> = found
        .into_iter()
        .map(|address| SocketAddr::new(canonical(address.ip()), address.port()))
        .filter(|address| permit.is_none_or(|permit| permit.lets_reach(transport, name, *address)))
        .collect();
    allowed.truncate(ATTEMPTS_MAX);
    match allowed.is_empty() {
        true => Err(denied(target)),
        false => Ok(allowed),
    }
}

/// Connects: the connection, and where it comes from.
pub(crate) async fn connect(
    (events, names): (&Events, &Names),
    target: &Target,
    permit: Option<&Permit>,
) -> Result<(Local, Option<SocketAddr>), Refusal> {
    if let Target::Path(path) = target {
        if permit.is_some_and(|permit| !permit.lets_reach_path(path)) {
            return Err(denied(target));
        }
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|error| refusal_of(events, target, &error))?;
        return Ok((Local::Unix(stream), None));
    }
    let addresses = resolve(names, target, Transport::Tcp, permit).await?;
    let connected = timeout(CONNECT_TIME, first_of(addresses)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = connected.map_err(|error| refusal_of(events, target, &error))?;
    // Nothing is gained by waiting for more (Nagle): what is written here is as large as it gets.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok();
    Ok((Local::Tcp(stream), local))
}

/// The first connection that comes about; each address begins a little after the one before it, or when that has failed.
async fn first_of(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut rest = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failed = None;
    if let Some(first) = rest.next() {
        attempts.spawn(TcpStream::connect(first));
    }
    loop {
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => {
                    failed.get_or_insert(error);
                }
                Some(Err(_)) => {}
                None => return Err(failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into())),
            },
            () = sleep(ATTEMPT_DELAY), if rest.len() > 0 => {}
        }
        if let Some(next) = rest.next() {
            attempts.spawn(TcpStream::connect(next));
        }
    }
}

/// A socket for the datagrams of one flow to one target, which hears nobody else.
pub(crate) async fn connect_udp(
    (events, names): (&Events, &Names),
    target: &Target,
    permit: Option<&Permit>,
) -> Result<UdpSocket, Refusal> {
    let addresses = resolve(names, target, Transport::Udp, permit).await?;
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let any: SocketAddr = match address.is_ipv4() {
            true => ([0; 4], 0).into(),
            false => ([0_u16; 8], 0).into(),
        };
        let connected = async {
            let socket = udp::bind(any).await?;
            socket.connect(address).await?;
            Ok(socket)
        };
        match connected.await {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(refusal_of(events, target, &failed))
}

/// What the system says of a target, as it is told to the other end. That there can be no more connections is told here too.
pub(crate) fn refusal_of(events: &Events, target: &Target, error: &io::Error) -> Refusal {
    use io::ErrorKind;
    if events.scarce_files(error) {
        let message = format!("{target}: no more files may be open there");
        return Refusal::new(Status::Limit, message);
    }
    let (status, why) = match error.kind() {
        ErrorKind::ConnectionRefused => (Status::Refused, "connection refused"),
        ErrorKind::NetworkUnreachable => (Status::NetworkUnreachable, "network unreachable"),
        ErrorKind::HostUnreachable => (Status::HostUnreachable, "host unreachable"),
        ErrorKind::TimedOut => (Status::TimedOut, "no answer"),
        ErrorKind::AddrInUse => (Status::InUse, "somebody listens there already"),
        ErrorKind::NotFound => (Status::Refused, "there is no such socket"),
        ErrorKind::PermissionDenied => (Status::Other, "no permission"),
        ErrorKind::AddrNotAvailable => (Status::Other, "not an address of that machine"),
        _ => (Status::Other, ""),
    };
    let message = match why {
        "" => format!("{target}: {error}"),
        why => format!("{target}: {why}"),
    };
    Refusal::new(status, message)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A name service that says nothing of names that end in `.silent` as long as this lives; others are those of this machine.
    pub(crate) struct Silence {
        pub(crate) names: Names,
        /// Questions so far.
        pub(crate) asked: Arc<AtomicUsize>,
        _ends: Sender<()>,
    }

    impl Silence {
        pub(crate) fn new() -> Self {
            let (ends, end) = channel();
            let (end, asked) = (Mutex::new(end), Arc::new(AtomicUsize::new(0)));
            let count = Arc::clone(&asked);
            let names = Names::new(move |name, port| {
                count.fetch_add(1, Ordering::Relaxed);
                if name.ends_with(".silent") {
                    let end = end.lock().unwrap_or_else(PoisonError::into_inner);
                    // Waits until the silence is dropped.
                    let _ = end.recv();
                }
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
            });
            Self {
                names,
                asked,
                _ends: ends,
            }
        }
    }

    fn permit(text: &str) -> Permit {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn rules_see_the_addresses_that_names_lead_to() {
        let names = Names::default();
        let localhost = Target::new("localhost", 80).unwrap();
        let found = resolve(&names, &localhost, Transport::Tcp, Some(&permit("tunnel"))).await;
        assert!(
            found
                .unwrap()
                .iter()
                .all(|address| address.ip().is_loopback())
        );
        // The name is let through, but not where it leads.
        let by_name = permit("tunnel:tcp:*:443,tunnel:tcp:10.0.0.0/8:80");
        let refused = resolve(&names, &localhost, Transport::Tcp, Some(&by_name)).await;
        assert_eq!(refused.unwrap_err().status, Status::Denied);
        // Numbers that only the name service takes for addresses.
        let odd = Target::new("2852039166", 80).unwrap();
        let refused = resolve(&names, &odd, Transport::Tcp, Some(&permit("tunnel"))).await;
        let status = refused.unwrap_err().status;
        assert!(
            matches!(status, Status::Denied | Status::NoName),
            "{status:?}"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_reached_is_told() {
        let (events, names) = (Events::new(drop), Names::default());
        let at = (&events, &names);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = Target::Ip(listener.local_addr().unwrap());
        drop(listener);
        assert_eq!(
            connect(at, &free, None).await.unwrap_err().status,
            Status::Refused
        );
        let path = Target::path("/nowhere/at/all").unwrap();
        assert_eq!(
            connect(at, &path, None).await.unwrap_err().status,
            Status::Refused
        );
        let refused = connect(at, &path, Some(&permit("tunnel"))).await;
        assert_eq!(refused.unwrap_err().status, Status::Denied);
    }
}
