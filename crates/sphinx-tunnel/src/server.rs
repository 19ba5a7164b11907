//! The end that connects to what its clients ask for.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sphinx_transport::asynchronous::{SendStream, Session};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::dial;
use crate::event::{Direction, Event, Events};
use crate::exchange::{self, Asked};
use crate::live::Live;
use crate::permit::Permit;
use crate::relay::{First, Local, relay};
use crate::tun::{self, Hub};
use crate::udp::{self, Association, Listener};
use crate::wire::{Refusal, Request, Status, Target};

/// What one client may have at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Streams: connections, flows of datagrams, listeners.
    pub streams: usize,
    /// Connections to one target that has not answered yet: more are refused, so that one that never does holds up only itself.
    pub pending_per_target: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 4096,
            pending_per_target: 256,
        }
    }
}

/// What a server does for its clients.
#[derive(Debug)]
pub struct Server {
    permit: Arc<Permit>,
    limits: Limits,
    events: Events,
    tun: Option<Hub>,
}

/// One client.
struct Client {
    name: String,
    server: Arc<Server>,
    streams: Semaphore,
    pending: Mutex<HashMap<Target, usize>>,
}

impl Server {
    /// A server that lets clients do what `permit` says.
    pub fn new(permit: Permit, limits: Limits, events: Events) -> Self {
        Self {
            permit: Arc::new(permit),
            limits,
            events,
            tun: None,
        }
    }

    /// The same, with an interface for clients that may send IP packets.
    #[must_use]
    pub fn with_tun(self, hub: Hub) -> Self {
        let tun = Some(hub);
        Self { tun, ..self }
    }

    /// Serves one client until its session ends.
    pub async fn serve(self: Arc<Self>, session: Session) {
        let (events, address) = (self.events.clone(), session.as_blocking().remote_addr());
        let client = Arc::new(Client {
            name: address.to_string(),
            streams: Semaphore::new(self.limits.streams),
            pending: Mutex::default(),
            server: self,
        });
        let told = |gone| {
            let client = address;
            events.tell(Event::Client { client, gone });
        };
        told(None);
        let live = Live::new(session, false);
        let serve = move |live, asked| Arc::clone(&client).serve(live, asked);
        let why = live.serve(serve).await;
        told(Some(why.to_string()));
    }
}

impl Client {
    async fn serve(self: Arc<Self>, live: Live, asked: Asked) {
        let Asked {
            request,
            mut send,
            recv,
        } = asked;
        let Ok(_permit) = self.streams.try_acquire() else {
            let many = Refusal::new(Status::Limit, "too many streams at a time");
            return exchange::refuse(&mut send, &many).await;
        };
        let events = &self.server.events;
        let served = match request {
            Request::Connect(target) => {
                let connected = tokio::select! {
                    connected = self.connect(&target) => connected,
                    // Nobody waits for it any more.
                    _ = send.stopped() => return,
                };
                match connected {
                    Ok((local, from)) => {
                        let proto = match local {
                            Local::Unix(_) => "unix",
                            _ => "tcp",
                        };
                        let mut flow = events.flow(proto, target.to_string(), Direction::In);
                        if exchange::accept(&mut send, from).await.is_ok() {
                            let ended = relay(local, (send, recv), First::Data, &flow.counts).await;
                            flow.ended(ended);
                        }
                        return;
                    }
                    Err(refusal) => Err((target.to_string(), refusal)),
                }
            }
            Request::Udp {
                flow,
                deadline,
                target,
            } => {
                let entered = live.datagrams.enter(flow, deadline);
                match (
                    entered,
                    dial::connect_udp(&target, Some(&self.server.permit)).await,
                ) {
                    (Ok(flow), Ok(socket)) => {
                        let mut told = events.flow("udp", target.to_string(), Direction::In);
                        if exchange::accept(&mut send, socket.local_addr().ok())
                            .await
                            .is_ok()
                        {
                            let mut recv = recv;
                            udp::carry(flow, &socket, &mut recv, &mut told).await;
                        }
                        return;
                    }
                    (Err(_), _) => Err((target.to_string(), taken())),
                    (_, Err(refusal)) => Err((target.to_string(), refusal)),
                }
            }
            Request::Associate { flow, deadline } => {
                let entered = live.datagrams.enter(flow, deadline);
                match (
                    entered,
                    Association::new(Some(Arc::clone(&self.server.permit))).await,
                ) {
                    (Ok(flow), Ok(association)) => {
                        let mut told = events.flow("udp", "any".to_owned(), Direction::In);
                        if exchange::accept(&mut send, None).await.is_ok() {
                            let denied = |target: &Target| self.denied(target.to_string());
                            association.run(flow, (send, recv), &mut told, denied).await;
                        }
                        return;
                    }
                    (Err(_), _) => Err(("any".to_owned(), taken())),
                    (_, Err(error)) => Err((
                        "any".to_owned(),
                        Refusal::new(Status::Other, error.to_string()),
                    )),
                }
            }
            Request::Listen { listener, at } => {
                let recv = &mut { recv };
                tokio::select! {
                    served = self.listen(&live, &mut send, listener, &at) => served,
                    () = udp::closed(recv) => return,
                }
                .map_err(|refusal| (at.to_string(), refusal))
            }
            Request::ListenUdp {
                listener,
                deadline,
                at,
            } => {
                let recv = &mut { recv };
                tokio::select! {
                    served = self.listen_udp(&live, &mut send, (listener, deadline), &at) => served,
                    () = udp::closed(recv) => return,
                }
                .map_err(|refusal| (at.to_string(), refusal))
            }
            Request::Tun { flow, addresses } => {
                let carried = match &self.server.tun {
                    Some(hub) if self.server.permit.lets_tun() => {
                        let (mut recv, asked) = (recv, (flow, &addresses[..]));
                        let mut flow = events.flow("tun", self.name.clone(), Direction::In);
                        let both = (&mut send, &mut recv);
                        let served = tun::serve(hub, &live, asked, both, &mut flow).await;
                        if let Err(refusal) = &served {
                            flow.ended(Err(refusal));
                        }
                        served
                    }
                    _ => Err(Refusal::new(
                        Status::Denied,
                        format!("IP packets: {}", dial::NO_RULE),
                    )),
                };
                carried.map_err(|refusal| ("tun".to_owned(), refusal))
            }
            Request::Accepted { .. } | Request::AcceptedUdp { .. } => {
                let none = Refusal::new(Status::Unsupported, "this server asked for no listener");
                Err(("listener".to_owned(), none))
            }
        };
        if let Err((target, refusal)) = served {
            if refusal.status == Status::Denied {
                self.denied(target);
            }
            exchange::refuse(&mut send, &refusal).await;
        }
    }

    fn denied(&self, target: String) {
        self.server.events.tell(Event::Denied {
            client: self.name.clone(),
            target,
            rule: dial::NO_RULE,
        });
    }

    /// Connects, if not too many wait for the same target.
    async fn connect(&self, target: &Target) -> Result<(Local, Option<SocketAddr>), Refusal> {
        let _turn = self.pending(target)?;
        dial::connect(target, Some(&self.server.permit)).await
    }

    fn pending(&self, target: &Target) -> Result<Pending<'_>, Refusal> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = pending.entry(target.clone()).or_default();
        if *waiting >= self.server.limits.pending_per_target {
            let message = format!("{target}: {waiting} connections wait for an answer already");
            return Err(Refusal::new(Status::Limit, message));
        }
        *waiting += 1;
        let target = target.clone();
        Ok(Pending {
            client: self,
            target,
        })
    }

    /// Where a client may have this end listen.
    fn place(&self, at: &Target) -> Result<SocketAddr, Refusal> {
        match at {
            Target::Ip(address) if self.server.permit.lets_listen(*address) => Ok(*address),
            Target::Ip(_) => Err(Refusal::new(
                Status::Denied,
                format!("listening on {at}: {}", dial::NO_RULE),
            )),
            _ => Err(Refusal::new(
                Status::Unsupported,
                "listeners have addresses",
            )),
        }
    }

    /// Listens, and opens a stream for each connection, until the session ends.
    async fn listen(
        &self,
        live: &Live,
        send: &mut SendStream,
        listener: u32,
        at: &Target,
    ) -> Result<(), Refusal> {
        let bound = bind(self.place(at)?).await;
        let socket = bound.map_err(|error| dial::refusal_of(at, &error))?;
        exchange::accept(send, socket.local_addr().ok()).await?;
        let mut tasks = JoinSet::new();
        let request = Request::Accepted { listener };
        loop {
            let stream = accept(&socket).await;
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= self.server.limits.streams {
                continue;
            }
            let _ = stream.set_nodelay(true);
            let (live, request) = (live.clone(), request.clone());
            let mut flow = self
                .server
                .events
                .flow("tcp", at.to_string(), Direction::Out);
            tasks.spawn(async move {
                match exchange::ask(&live.session, &request).await {
                    Ok(both) => {
                        let ended =
                            relay(Local::Tcp(stream), both, First::Reply, &flow.counts).await;
                        flow.ended(ended);
                    }
                    Err(refusal) => flow.ended(Err(refusal)),
                }
            });
        }
    }

    async fn listen_udp(
        &self,
        live: &Live,
        send: &mut SendStream,
        (listener, deadline): (u32, Duration),
        at: &Target,
    ) -> Result<(), Refusal> {
        let bound = UdpSocket::bind(self.place(at)?).await;
        let socket = bound.map_err(|error| dial::refusal_of(at, &error))?;
        exchange::accept(send, socket.local_addr().ok()).await?;
        let listening = Listener {
            socket: Arc::new(socket),
            deadline,
            request: Box::new(move |flow| Request::AcceptedUdp { listener, flow }),
            target: at.to_string(),
            events: self.server.events.clone(),
        };
        let ended = listening.run(|| Some(live.clone())).await;
        ended.map_err(|error| dial::refusal_of(at, &error))
    }
}

fn taken() -> Refusal {
    Refusal::new(Status::Other, "the number of the flow is not free")
}

/// A connection that waits for its target.
struct Pending<'a> {
    client: &'a Client,
    target: Target,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let pending = self.client.pending.lock();
        let mut pending = pending.unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = pending.get_mut(&self.target) {
            *waiting -= 1;
            if *waiting == 0 {
                pending.remove(&self.target);
            }
        }
    }
}

pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        // "All addresses" of a machine without IPv6.
        Err(_) if address == ([0_u16; 8], address.port()).into() => {
            TcpListener::bind(SocketAddr::from(([0_u8; 4], address.port()))).await
        }
        bound => bound,
    }
}

/// The next connection, however many fail: one that has gone again, or more than the process may have.
pub(crate) async fn accept(listener: &TcpListener) -> tokio::net::TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Until files may have been closed.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
