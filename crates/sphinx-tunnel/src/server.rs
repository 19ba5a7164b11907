//! The end that connects to what its clients ask for.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sphinx_transport::asynchronous::{RecvStream, SendStream, Session};
use sphinx_transport::close_code;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::datagrams::DatagramFlow;
use crate::dial::{self, Names};
use crate::event::{Direction, Event, Events};
use crate::exchange::{self, Asked};
use crate::forward::Giving;
use crate::grant::{Grant, Granted, Limits};
use crate::limits::{Count, Counted, Place, Places, Throttle};
use crate::live::Live;
use crate::relay::{First, Local, relay_within};
use crate::tun::{self, Hub};
use crate::udp::{self, Association, Listener};
use crate::wire::{Refusal, Request, Status, Target};

/// What a server does for its clients.
#[derive(Debug)]
pub struct Server {
    events: Events,
    tun: Option<Hub>,
    names: Names,
}

/// One client's session.
struct Client {
    granted: Granted,
    server: Arc<Server>,
    places: Places,
    names: Names,
    /// Bytes of datagrams that wait until names of targets are resolved.
    unnamed: Count,
    waiting: Count,
    pending: Mutex<HashMap<Target, usize>>,
    /// Limits the rate of what comes from the client.
    throttle: Arc<Throttle>,
}

impl Server {
    /// A server that tells `events` what happens.
    pub fn new(events: Events) -> Self {
        Self {
            events,
            tun: None,
            names: Names::default(),
        }
    }

    /// The same, with an interface for clients that may send IP packets.
    #[must_use]
    pub fn with_tun(self, hub: Hub) -> Self {
        let tun = Some(hub);
        Self { tun, ..self }
    }

    /// Serves one client until its session ends; it may do what is granted.
    pub async fn serve(self: Arc<Self>, session: Session, granted: Granted) {
        let (events, address) = (self.events.clone(), session.as_blocking().remote_addr());
        let grant = granted.now();
        let Limits { rate, memory, .. } = *grant.limits();
        let name = grant.name().to_owned();
        if !grant.permit().lets_tunnel() && grant.enrol().is_none() {
            return self.refuse(&session, &granted, TUNNEL).await;
        }
        session.as_blocking().set_limit(rate);
        session.as_blocking().set_memory(memory);
        let client = Arc::new(Client {
            granted,
            places: Places::default(),
            names: self.names.for_another(),
            unnamed: Count::default(),
            waiting: Count::default(),
            pending: Mutex::default(),
            throttle: Arc::new(Throttle::new(rate)),
            server: self,
        });
        let told = |gone| events.tell_of_client(address, &name, gone);
        told(None);
        let live = Live::new(session, false);
        let serve = move |live, asked| Arc::clone(&client).serve(live, asked);
        let why = live.serve(serve).await;
        told(Some(why.to_string()));
    }

    /// Tells that a client has come which something else serves, and, when that is over, why it has gone.
    pub async fn watch(&self, session: &Session, granted: &Granted) {
        let address = session.as_blocking().remote_addr();
        let name = granted.now().name().to_owned();
        self.events.tell_of_client(address, &name, None);
        let why = session.closed().await.to_string();
        self.events.tell_of_client(address, &name, Some(why));
    }

    /// Ends the session of a client that no rule lets do `what`, and tells so.
    pub async fn refuse(&self, session: &Session, granted: &Granted, what: &str) {
        self.events.tell(Event::Denied {
            client: granted.now().name().to_owned(),
            target: what.to_owned(),
            rule: dial::NO_RULE,
        });
        let why = format!("{what}: {}", dial::NO_RULE);
        session.close(close_code::NOT_PERMITTED, &why).await;
    }
}

/// What a refusal names for a client that may do nothing of what tunnels are for.
const TUNNEL: &str = "tunnel";

impl Client {
    /// Does what a stream of the client asks for, until that is over, or answers why it does not.
    async fn serve(self: Arc<Self>, live: Live, asked: Asked) {
        let Asked {
            request,
            mut send,
            recv,
        } = asked;
        let grant = self.granted.now();
        let is_flow = matches!(request, Request::Udp { .. } | Request::Associate { .. });
        let _place = match self.place(is_flow) {
            Ok(place) => place,
            Err(many) => return exchange::refuse(&mut send, &many).await,
        };
        let events = &self.server.events;
        let served = match request {
            Request::Connect(target) => {
                let connected = tokio::select! {
                    connected = self.connect(&grant, &target) => connected,
                    // Nobody waits for it any more.
                    _ = send.stopped() => return,
                };
                match connected {
                    Ok(connected) => return self.relay(&target, (send, recv), connected).await,
                    Err(refusal) => Err((target.to_string(), refusal)),
                }
            }
            Request::Udp {
                flow,
                giving,
                target,
            } => {
                let entered = live.datagrams.enter(flow, giving);
                let connecting =
                    dial::connect_udp((events, &self.names), &target, Some(grant.permit()));
                let connected = tokio::select! {
                    connected = connecting => connected,
                    // Nobody waits for it any more.
                    _ = send.stopped() => return,
                };
                match (entered, connected) {
                    (Ok(flow), Ok(socket)) => {
                        return self.udp(&target, &mut send, recv, flow, socket).await;
                    }
                    (Err(_), _) => Err((target.to_string(), taken())),
                    (_, Err(refusal)) => Err((target.to_string(), refusal)),
                }
            }
            Request::Associate { flow, giving } => {
                let entered = live.datagrams.enter(flow, giving);
                let permit = Some(Arc::clone(grant.permit()));
                let association =
                    Association::new(permit, self.names.clone(), self.unnamed.clone()).await;
                match (entered, association) {
                    (Ok(flow), Ok(association)) => {
                        return self.associate((send, recv), flow, association).await;
                    }
                    (Err(_), _) => Err(("any".to_owned(), taken())),
                    (_, Err(error)) => {
                        events.scarce_files(&error);
                        let refusal = Refusal::new(Status::Other, error.to_string());
                        Err(("any".to_owned(), refusal))
                    }
                }
            }
            Request::Listen { listener, at } => {
                let recv = &mut { recv };
                tokio::select! {
                    served = self.listen(&grant, &live, &mut send, listener, &at) => served,
                    () = udp::closed(recv) => return,
                }
                .map_err(|refusal| (at.to_string(), refusal))
            }
            Request::ListenUdp {
                listener,
                giving,
                at,
            } => {
                let recv = &mut { recv };
                tokio::select! {
                    served = self.listen_udp(&grant, &live, &mut send, (listener, giving), &at) => served,
                    () = udp::closed(recv) => return,
                }
                .map_err(|refusal| (at.to_string(), refusal))
            }
            Request::Tun { flow, addresses } => {
                let served = match &self.server.tun {
                    Some(hub) if grant.permit().lets_tun() => {
                        let asked = (flow, &addresses[..], grant.address());
                        self.packets(&grant, hub, &live, asked, (&mut send, recv))
                            .await
                    }
                    _ => Err(Refusal::new(
                        Status::Denied,
                        format!("IP packets: {}", dial::NO_RULE),
                    )),
                };
                served.map_err(|refusal| ("tun".to_owned(), refusal))
            }
            Request::Join => {
                let joined = self.join(&grant, &mut send).await;
                joined.map_err(|refusal| ("join".to_owned(), refusal))
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

    /// Answers that `target` is connected, and carries bytes both ways until the connection is over.
    async fn relay(
        &self,
        target: &Target,
        (mut send, recv): (SendStream, RecvStream),
        (local, from): (Local, Option<SocketAddr>),
    ) {
        let proto = match local {
            Local::Unix(_) => "unix",
            _ => "tcp",
        };
        let events = &self.server.events;
        let mut flow = events.flow(proto, target.to_string(), Direction::In);
        if exchange::accept(&mut send, from).await.is_ok() {
            let (both, counts) = ((send, recv), &flow.counts);
            let ended = relay_within(local, both, First::Data, counts, &self.throttle).await;
            flow.ended(ended);
        }
    }

    /// Answers that there is a socket, and exchanges datagrams with `target` until the client closes the stream.
    async fn udp(
        &self,
        target: &Target,
        send: &mut SendStream,
        recv: RecvStream,
        flow: DatagramFlow,
        socket: UdpSocket,
    ) {
        let events = &self.server.events;
        let mut told = events.flow("udp", target.to_string(), Direction::In);
        let from = socket.local_addr().ok();
        if exchange::accept(send, from).await.is_ok() {
            let mut recv = recv;
            udp::carry(flow, &socket, &mut recv, &mut told, &self.throttle).await;
        }
    }

    /// Answers that there is a socket, and exchanges datagrams with any target that rules let through until the client closes the stream.
    async fn associate(
        &self,
        (mut send, recv): (SendStream, RecvStream),
        flow: DatagramFlow,
        association: Association,
    ) {
        let events = &self.server.events;
        let mut told = events.flow("udp", "any".to_owned(), Direction::In);
        if exchange::accept(&mut send, None).await.is_ok() {
            let denied = |target: &Target| self.denied(target.to_string());
            let (both, throttle) = ((send, recv), &self.throttle);
            association
                .run(flow, both, &mut told, denied, throttle)
                .await;
        }
    }

    /// Exchanges IP packets with the interface until the client closes the stream. `asked`: the number of its first flow, the addresses that it
    /// would have, and the one that its rules give it.
    async fn packets(
        &self,
        grant: &Grant,
        hub: &Hub,
        live: &Live,
        asked: (u64, &[IpAddr], Option<IpAddr>),
        (send, mut recv): (&mut SendStream, RecvStream),
    ) -> Result<(), Refusal> {
        let events = &self.server.events;
        let mut flow = events.flow("tun", grant.name().to_owned(), Direction::In);
        let served = tun::serve(hub, live, asked, (send, &mut recv), &mut flow).await;
        if let Err(refusal) = &served {
            flow.ended(Err(refusal));
        }
        served
    }

    /// Lets whoever has come with an invitation join, and answers so.
    ///
    /// # Errors
    /// It may not, and has no answer yet.
    async fn join(&self, grant: &Grant, send: &mut SendStream) -> Result<(), Refusal> {
        let Some(enrol) = grant.enrol() else {
            // A client that has joined already may ask whether it has: that no rule was in the way is nothing to report.
            let why = "an invitation is needed to join";
            exchange::refuse(send, &Refusal::new(Status::Denied, why)).await;
            return Ok(());
        };
        // Enrolling writes to a file, which may block.
        let joined = tokio::task::spawn_blocking(move || enrol()).await;
        if let Err(why) = joined.unwrap_or_else(|error| Err(error.to_string())) {
            return Err(Refusal::new(Status::Denied, why));
        }
        if exchange::accept(send, None).await.is_ok() {
            let _ = send.finish().await;
            let _ = send.wait_delivered().await;
        }
        Ok(())
    }

    fn denied(&self, target: String) {
        self.server.events.tell(Event::Denied {
            client: self.granted.now().name().to_owned(),
            target,
            rule: dial::NO_RULE,
        });
    }

    /// Connects, if not too many wait for the same target.
    async fn connect(
        &self,
        grant: &Grant,
        target: &Target,
    ) -> Result<(Local, Option<SocketAddr>), Refusal> {
        let _turn = self.pending(grant, target)?;
        let at = (&self.server.events, &self.names);
        dial::connect(at, target, Some(grant.permit())).await
    }

    fn pending(&self, grant: &Grant, target: &Target) -> Result<Pending<'_>, Refusal> {
        const MANY: &str = "too many connections wait for an answer already";
        let limits = grant.limits();
        let refusal = |message: String| {
            self.limited(grant, "pending", MANY);
            Refusal::new(Status::Limit, message)
        };
        let Some(counted) = self.waiting.enter(limits.pending) else {
            return Err(refusal(format!("{target}: {MANY}")));
        };
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = pending.entry(target.clone()).or_default();
        if *waiting >= limits.pending.div_ceil(2) {
            let message = format!("{target}: {waiting} connections wait for an answer already");
            return Err(refusal(message));
        }
        *waiting += 1;
        let target = target.clone();
        Ok(Pending {
            client: self,
            target,
            _counted: counted,
        })
    }

    /// A place for one more stream, whoever begins it.
    fn place(&self, is_flow: bool) -> Result<Place, Refusal> {
        let grant = self.granted.now();
        let place = self.places.enter(grant.limits(), is_flow);
        place.map_err(|many| {
            let message = format!("too many {many} at a time");
            self.limited(&grant, many, &message);
            Refusal::new(Status::Limit, message)
        })
    }

    /// Tells that a limit of the client is in the way: this setting of its line says it, or the flag for those that have none.
    fn limited(&self, grant: &Grant, setting: &str, message: &str) {
        let what = format!("{}: {message}", grant.name());
        let remedy = format!("{setting}=N of its line, or --{setting}-per-client, allows more");
        self.server.events.scarce(&what, &remedy);
    }

    /// Where a client may have this end listen.
    fn listens_at(grant: &Grant, at: &Target) -> Result<SocketAddr, Refusal> {
        match at {
            Target::Ip(address) if grant.permit().lets_listen(*address) => Ok(*address),
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
        self: &Arc<Self>,
        grant: &Grant,
        live: &Live,
        send: &mut SendStream,
        listener: u32,
        at: &Target,
    ) -> Result<(), Refusal> {
        let bound = bind(Self::listens_at(grant, at)?).await;
        let events = &self.server.events;
        let socket = bound.map_err(|error| dial::refusal_of(events, at, &error))?;
        exchange::accept(send, socket.local_addr().ok()).await?;
        let mut tasks = JoinSet::new();
        let request = Request::Accepted { listener };
        loop {
            let stream = accept(&socket, events).await;
            while tasks.try_join_next().is_some() {}
            let Ok(place) = self.place(false) else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            let (live, request, client) = (live.clone(), request.clone(), Arc::clone(self));
            let mut flow = events.flow("tcp", at.to_string(), Direction::Out);
            tasks.spawn(async move {
                let _place = place;
                match exchange::ask(&live.session, &request).await {
                    Ok(both) => {
                        let ended = relay_within(
                            Local::Tcp(stream),
                            both,
                            First::Reply,
                            &flow.counts,
                            &client.throttle,
                        )
                        .await;
                        flow.ended(ended);
                    }
                    Err(refusal) => flow.ended(Err(refusal)),
                }
            });
        }
    }

    async fn listen_udp(
        self: &Arc<Self>,
        grant: &Grant,
        live: &Live,
        send: &mut SendStream,
        (listener, giving): (u32, Giving),
        at: &Target,
    ) -> Result<(), Refusal> {
        let bound = udp::listen(Self::listens_at(grant, at)?).await;
        let events = &self.server.events;
        let socket = bound.map_err(|error| dial::refusal_of(events, at, &error))?;
        exchange::accept(send, socket.local_addr().ok()).await?;
        let (client, throttle) = (Arc::clone(self), Arc::clone(&self.throttle));
        let listening = Listener {
            socket: Arc::new(socket),
            giving,
            // Without a place for one more, another source of this listener gives way.
            place: Box::new(move || {
                let limits = *client.granted.now().limits();
                client.places.enter(&limits, true).ok()
            }),
            request: Box::new(move |flow| Request::AcceptedUdp { listener, flow }),
            target: at.to_string(),
            events: events.clone(),
            throttle,
        };
        let ended = listening.run(|| Some(live.clone())).await;
        ended.map_err(|error| dial::refusal_of(events, at, &error))
    }
}

fn taken() -> Refusal {
    Refusal::new(Status::Other, "the number of the flow is not free")
}

/// A connection that waits for its target.
struct Pending<'a> {
    client: &'a Client,
    target: Target,
    _counted: Counted,
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
pub(crate) async fn accept(listener: &TcpListener, events: &Events) -> tokio::net::TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                events.scarce_files(&error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// How long to wait after a failure, until files may have been closed.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
