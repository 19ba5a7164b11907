//! How the two ends of an ssh connection meet over UDP: either may be the one that can be reached.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use sphinx_transport::{ErrorKind, Options, Server, Service, Session, Ticket, connect};

use super::address::candidates;
use super::messages::Carrier;
use super::pipe::{Message, Pipe};
use crate::addresses::{advertised, everywhere};
use crate::failure::{Failure, Outcome, code, fail, local_io, protocol};

/// The end that was started waits so long to be reached before it tries to reach the other one.
const REACHED_PATIENCE: Duration = Duration::from_millis(300);
/// How long the other end may take to see a session that one end has already.
const SESSION_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at whether the other end is there still.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// An endpoint that the other end may reach.
pub(crate) struct Endpoint {
    server: Server,
    ticket: Ticket,
}

impl Endpoint {
    /// Listens on the first of `ports` that is free. Where there is none, the other end may be reached.
    pub(crate) fn open(
        ports: impl Iterator<Item = u16>,
        reached: Option<IpAddr>,
        service: Service,
        options: &Options,
        (ipv4, ipv6): (bool, bool),
    ) -> Option<Self> {
        let options = Options {
            once: true,
            ..options.clone()
        };
        let bind = |address: SocketAddr| Server::bind(address, service, &options).ok();
        let server = ports
            .flat_map(|port| everywhere(port, ipv4, ipv6))
            .find_map(bind)?;
        let hosts = candidates(
            reached,
            advertised(server.local_addr(), server.own_addresses()),
        );
        let ticket = server.ticket(&hosts).ok()?;
        Some(Self { server, ticket })
    }

    pub(crate) fn ticket(&self) -> String {
        self.ticket.to_string()
    }
}

/// The way that the files take.
pub(crate) enum Met {
    Udp {
        session: Session,
        /// The endpoint of the session, which would end if this were dropped.
        _endpoint: Option<Box<Endpoint>>,
    },
    Ssh,
}

impl Met {
    /// The name that events have for it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Udp { .. } => "udp",
            Self::Ssh => "ssh",
        }
    }
}

/// A ticket of the other end, to be tried at `addresses` too, behind the first one of its own.
///
/// # Errors
/// The text is no ticket.
pub(crate) fn ticket_at(text: &str, addresses: &[IpAddr], first: bool) -> Outcome<Ticket> {
    let ticket: Ticket = text.trim().parse()?;
    let mut all: Vec<String> = ticket.addresses().to_vec();
    let port = all[0].rsplit(':').next().and_then(|port| port.parse().ok());
    let port: u16 = port.ok_or_else(|| protocol("a ticket without a port"))?;
    let more = addresses
        .iter()
        .map(|ip| SocketAddr::new(ip.to_canonical(), port).to_string());
    let more: Vec<String> = more.filter(|address| !all.contains(address)).collect();
    let at = if first { 0 } else { 1 };
    all.splice(at..at, more);
    Ok(ticket.at(&all)?)
}

/// The end that asks, on its way to the other one, which may not have said yet whether it can do what it is asked for.
pub(crate) struct Meeting {
    sender: mpsc::Sender<Found>,
    met: mpsc::Receiver<Found>,
}

impl Meeting {
    /// Tries to reach the other end, if it has a ticket, for `options.connect_timeout`.
    pub(crate) fn begin(
        ticket: Option<Ticket>,
        service: Service,
        options: &Options,
    ) -> Outcome<Self> {
        let (sender, met) = mpsc::channel();
        if let Some(ticket) = ticket {
            let (sender, options) = (sender.clone(), options.clone());
            spawn(move || {
                if let Ok(session) = connect(&ticket, service, &options) {
                    offer(&sender, session, None);
                }
            })?;
        }
        Ok(Self { sender, met })
    }
}

/// The end that asks, which tries for `patience` from now on: decides what the first is that works, and says so.
pub(crate) fn meet(
    pipe: &Pipe,
    endpoint: Option<Endpoint>,
    Meeting { sender, met }: Meeting,
    patience: Duration,
) -> Outcome<Met> {
    let until = Instant::now() + patience;
    if let Some(endpoint) = endpoint {
        spawn(move || {
            if let Ok(Some(session)) = endpoint.server.accept(Some(patience)) {
                offer(&sender, session, Some(Box::new(endpoint)));
            }
        })?;
    } else {
        drop(sender);
    }
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match met.recv_timeout(left.min(LOOK_INTERVAL)) {
            Ok((session, endpoint)) => {
                pipe.carrier(match endpoint {
                    None => Carrier::ToStarted,
                    Some(_) => Carrier::ToAsking,
                })?;
                return Ok(Met::Udp {
                    session,
                    _endpoint: endpoint,
                });
            }
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                // Without the other end there is nothing to wait for.
                if let Some(message) = pipe.message(Some(Duration::ZERO))? {
                    return Err(unexpected(message));
                }
            }
            Err(_) => {
                pipe.carrier(Carrier::Ssh)?;
                return Ok(Met::Ssh);
            }
        }
    }
}

/// The end that was started: does what the other one has decided.
pub(crate) fn meet_started(
    pipe: &Pipe,
    endpoint: Option<Endpoint>,
    ticket: Option<Ticket>,
    service: Service,
    options: &Options,
) -> Outcome<Met> {
    let (sender, met) = mpsc::channel();
    if let Some(ticket) = ticket {
        let options = options.clone();
        let is_reachable = endpoint.is_some();
        spawn(move || {
            if is_reachable {
                thread::sleep(REACHED_PATIENCE);
            }
            if let Ok(session) = connect(&ticket, service, &options) {
                offer(&sender, session, None);
            }
        })?;
    }
    let carrier = match pipe.message(None)? {
        Some(Message::Carrier(carrier)) => carrier,
        Some(message) => return Err(unexpected(message)),
        None => unreachable!("it is waited for"),
    };
    let gone = || fail(ErrorKind::PeerLost, "the session has not come");
    match carrier {
        Carrier::Ssh => Ok(Met::Ssh),
        Carrier::ToAsking => match met.recv_timeout(SESSION_PATIENCE) {
            Ok((session, _)) => Ok(Met::Udp {
                session,
                _endpoint: None,
            }),
            Err(_) => Err(gone()),
        },
        Carrier::ToStarted => {
            let endpoint =
                endpoint.ok_or_else(|| protocol("there is no endpoint to be reached"))?;
            match endpoint.server.accept(Some(SESSION_PATIENCE))? {
                Some(session) => Ok(Met::Udp {
                    session,
                    _endpoint: Some(Box::new(endpoint)),
                }),
                None => Err(gone()),
            }
        }
    }
}

type Found = (Session, Option<Box<Endpoint>>);

/// Hands a session over, if it is wanted still.
fn offer(sender: &mpsc::Sender<Found>, session: Session, endpoint: Option<Box<Endpoint>>) {
    if let Err(mpsc::SendError((session, _endpoint))) = sender.send((session, endpoint)) {
        session.close(code::CANCELLED, "there is another session");
    }
}

/// The failure for a message that does not belong here: the one that the other end reports, or a breach of the protocol.
pub(crate) fn unexpected(message: Message) -> Failure {
    match message {
        Message::Failed(failed) => failed.into(),
        _ => protocol("a message out of turn"),
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) -> Outcome<()> {
    let started = thread::Builder::new()
        .name("meeting".to_owned())
        .spawn(body);
    started
        .map(drop)
        .map_err(|error| local_io("start", "a thread", error))
}
