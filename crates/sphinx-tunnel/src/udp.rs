//! Datagrams between sockets here and flows on a session.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;
use sphinx_net::udp::{Singles, can_be_by_icmp, tell_local_ip};
use sphinx_net::{Destination, Ecn};
use sphinx_transport::asynchronous::{RecvStream, SendStream};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::datagrams::{DATAGRAM_MAX, DatagramFlow, DatagramSender, OVERHEAD, TURN};
use crate::dial::{self, Names};
use crate::event::{Direction, Events, Flow};
use crate::exchange;
use crate::forward::Giving;
use crate::limits::{Count, Counted, Place, Throttle};
use crate::live::Live;
use crate::permit::{Permit, Transport, canonical};
use crate::proxy::Program;
use crate::relay::Counts;
use crate::wire::{Refusal, Request, Status, Target};

/// A flow ends when there was no datagram for so long.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// The flow of a source that never had an answer ends after this; one that had gives way to others then, if there are too many.
const QUIET_TIME: Duration = Duration::from_secs(30);
/// Sources that a listener keeps apart at a time.
const SOURCES_MAX: usize = 1024;
/// How long a flow that was refused is not asked for again.
const REFUSED_TIME: Duration = Duration::from_secs(5);
/// Targets that an association remembers.
const TARGETS_MAX: usize = 1024;
/// How long an association remembers a target.
const TARGET_TIME: Duration = Duration::from_secs(60);
/// Names that an association asks for at a time, and datagrams that wait for each.
const LOOKUPS_MAX: usize = 16;
/// Bytes of datagrams that wait for names, of all associations of a client.
const UNNAMED_BYTES_MAX: usize = 256 << 10;

/// What a socket keeps while this end is busy. A connection inside another tunnel sends hundreds of datagrams at once, and the system's
/// usual 208 KiB are 90 of them.
const SOCKET_BYTES: usize = 2 << 20;

/// A socket with room for what comes at once, as far as the system lets it have that.
///
/// # Errors
/// Those of binding it.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match UdpSocket::bind(address).await {
        // "All addresses" of a machine without IPv6.
        Err(_) if address == ([0_u16; 8], address.port()).into() => {
            UdpSocket::bind(SocketAddr::from(([0_u8; 4], address.port()))).await
        }
        bound => bound,
    }?;
    // A system may give more by itself.
    let has_room = sockopt::socket_recv_buffer_size(&socket).is_ok_and(|it| it >= SOCKET_BYTES);
    if !has_room && sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        // Without rights it gets what `net.core.rmem_max` allows.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    }
    Ok(socket)
}

/// The same for a [`Listener`]: of all addresses, it is told which one each datagram was sent to.
///
/// # Errors
/// Those of binding it.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bind(address).await?;
    if address.ip().to_canonical().is_unspecified() {
        tell_local_ip(socket.as_fd());
    }
    Ok(socket)
}

thread_local! {
    /// Where a datagram is between two sockets.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; DATAGRAM_MAX]);
    /// The same at a listener, which is also told the address that each datagram was sent to.
    static SINGLES: RefCell<Singles> = RefCell::new(Singles::new(DATAGRAM_MAX));
}

/// When there was a datagram last.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    last_ms: AtomicU64,
    is_answered: AtomicBool,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            is_answered: AtomicBool::new(true),
            ..Self::unanswered()
        }
    }

    /// Of a source that has yet to show that somebody wants what it sends.
    fn unanswered() -> Self {
        Self {
            began: Instant::now(),
            last_ms: AtomicU64::new(0),
            is_answered: AtomicBool::new(false),
        }
    }

    pub(crate) fn touch(&self) {
        let passed = self.began.elapsed().as_millis();
        self.last_ms.store(passed as u64, Ordering::Relaxed);
    }

    /// An answer has come: the source is wanted.
    fn answer(&self) {
        self.touch();
        self.is_answered.store(true, Ordering::Relaxed);
    }

    fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    fn last(&self) -> Instant {
        self.began + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    /// Waits until there was none for as long as a flow lasts without.
    pub(crate) async fn idle(&self) {
        loop {
            let time = match self.is_answered() {
                true => IDLE_TIME,
                false => QUIET_TIME,
            };
            let last = self.last();
            if last.elapsed() >= time {
                return;
            }
            sleep_until(last + time).await;
        }
    }
}

/// Waits until the other end closes the stream of a flow.
pub(crate) async fn closed(recv: &mut RecvStream) {
    let mut unknown = [0; 256];
    // What a later version may say there is of no use to this one.
    while recv.read(&mut unknown).await.is_ok_and(|bytes| bytes > 0) {}
}

/// Takes what has arrived at a socket; `each` gets a datagram and where it came from.
///
/// # Errors
/// The socket has failed. That a target refuses datagrams is no failure.
pub(crate) async fn take(
    socket: &UdpSocket,
    mut each: impl FnMut(&[u8], SocketAddr),
) -> io::Result<()> {
    socket.readable().await?;
    SCRATCH.with_borrow_mut(|scratch| {
        turn(|| {
            let (len, from) = socket.try_recv_from(scratch)?;
            each(&scratch[..len], from);
            Ok(())
        })
    })
}

/// The same at a [`Listener`]: `each` also gets the address of this machine that the datagram was sent to, if that is told.
async fn take_sent_to(
    socket: &UdpSocket,
    mut each: impl FnMut(&[u8], SocketAddr, Option<IpAddr>),
) -> io::Result<()> {
    socket.readable().await?;
    SINGLES.with_borrow_mut(|singles| {
        turn(|| {
            socket.try_io(Interest::READABLE, || {
                let got = singles.recv(socket.as_fd())?;
                each(got.payload, got.remote, got.local_ip);
                Ok(())
            })
        })
    })
}

/// Takes one datagram after the other, until there is none, or others have their turn.
fn turn(mut one: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..TURN {
        match one() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if can_be_by_icmp(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a datagram to whom the socket is connected with. One that cannot be sent is lost.
async fn send(socket: &UdpSocket, data: &[u8]) {
    let sent = socket.send(data).await;
    // What ICMP says of one before is told in the place of sending this one.
    if sent.is_err_and(|error| can_be_by_icmp(&error)) {
        let _ = socket.send(data).await;
    }
}

/// The far end of a flow with one target: until the other end closes it, or it is idle.
pub(crate) async fn carry(
    mut flow: DatagramFlow,
    socket: &UdpSocket,
    recv: &mut RecvStream,
    told: &mut Flow,
    throttle: &Throttle,
) {
    let (sender, activity) = (flow.sender(), Activity::new());
    let mut closing = std::pin::pin!(closed(recv));
    let ended = loop {
        tokio::select! {
            data = flow.recv() => {
                let Some(data) = data else { break Err("the session has ended") };
                activity.touch();
                if !throttle.passes(data.len()) {
                    continue;
                }
                told.counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                send(socket, &data).await;
            }
            taken = take(socket, |data, _| {
                told.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                sender.send(data);
            }) => {
                activity.touch();
                if taken.is_err() {
                    break Err("the socket has failed");
                }
            }
            () = &mut closing => break Ok(()),
            () = activity.idle() => break Ok(()),
        }
    };
    told.ended(ended);
}

/// A listener for datagrams, and what it needs to begin a flow for each new source.
pub(crate) struct Listener {
    pub(crate) socket: Arc<UdpSocket>,
    pub(crate) giving: Giving,
    /// A place for one more, if there is one.
    pub(crate) place: Box<dyn Fn() -> Option<Place> + Send + Sync>,
    /// Makes the request for a flow with this number.
    pub(crate) request: Box<dyn Fn(u64) -> Request + Send + Sync>,
    /// What events call the target of its flows.
    pub(crate) target: String,
    pub(crate) events: Events,
    /// Limits the rate of what comes from the other end.
    pub(crate) throttle: Arc<Throttle>,
}

struct Source {
    asking: Arc<Asking>,
    sender: DatagramSender,
    activity: Arc<Activity>,
    place: Held,
    counts: Arc<Counts>,
    /// Dropping it ends the flow.
    _kept: oneshot::Sender<()>,
}

/// The place of a source, until its flow is over or another source gets it.
#[derive(Clone)]
struct Held(Arc<Mutex<Option<Place>>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, Option<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// Carries datagrams of any number of sources, each in a flow of its own; `live` is the session to begin flows on, if there is one.
    ///
    /// # Errors
    /// The socket has failed.
    pub(crate) async fn run(&self, live: impl Fn() -> Option<Live>) -> io::Result<()> {
        let mut sources: HashMap<SocketAddr, Source> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            take_sent_to(&self.socket, |data, from, to| {
                let is_known = |source: &&Source| source.place.lock().is_some();
                if sources.get(&from).filter(is_known).is_none() {
                    while tasks.try_join_next().is_some() {}
                    sources.retain(|_, source| is_known(&&*source));
                    let Some(live) = live() else {
                        return;
                    };
                    let free = match sources.len() < SOURCES_MAX {
                        true => (self.place)(),
                        false => None,
                    };
                    let place = free.or_else(|| {
                        let activities = sources.iter().map(|(from, it)| (*from, &*it.activity));
                        let quiet = sources.remove(&gives_way(activities)?)?;
                        quiet.place.lock().take()
                    });
                    let Some(place) = place else {
                        return;
                    };
                    sources.insert(from, self.begin(live, (from, place), &mut tasks));
                }
                if let Some(source) = sources.get(&from) {
                    source.asking.has_sent_to(to);
                    source.activity.touch();
                    let sent = &source.counts.sent;
                    sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                    source.sender.send(data);
                }
            })
            .await?;
        }
    }

    fn begin(
        &self,
        live: Live,
        (from, place): (SocketAddr, Place),
        tasks: &mut JoinSet<()>,
    ) -> Source {
        let flow = live.datagrams.open(self.giving);
        let mut told = self.events.flow("udp", self.target.clone(), Direction::Out);
        let (kept, mut taken) = oneshot::channel();
        let asking = Arc::new(Asking::new(Arc::clone(&self.socket), from));
        let source = Source {
            asking: Arc::clone(&asking),
            sender: flow.sender(),
            activity: Arc::new(Activity::unanswered()),
            place: Held(Arc::new(Mutex::new(Some(place)))),
            counts: Arc::clone(&told.counts),
            _kept: kept,
        };
        let request = (self.request)(flow.number());
        let activity = Arc::clone(&source.activity);
        let (place, throttle) = (source.place.clone(), Arc::clone(&self.throttle));
        tasks.spawn(async move {
            let receiver = Receiver::Plain(&asking);
            let counts = Arc::clone(&told.counts);
            let about = (&*activity, &*counts, &*throttle);
            let ended = tokio::select! {
                ended = answers(&live, &request, flow, about, receiver) => ended,
                _ = &mut taken => return told.ended(Err("another source has its place")),
            };
            let is_refused = ended.is_err();
            told.ended(ended);
            drop(told);
            if is_refused {
                tokio::select! {
                    () = sleep(REFUSED_TIME) => {}
                    _ = taken => {}
                }
            }
            *place.lock() = None;
        });
        source
    }
}

/// Which of as many sources as may be gives way to another one: the quietest, of those that never had an answer if there are any.
fn gives_way<'a>(sources: impl Iterator<Item = (SocketAddr, &'a Activity)>) -> Option<SocketAddr> {
    let order = |it: &(SocketAddr, &Activity)| (it.1.is_answered(), it.1.last());
    let (source, activity) = sources.min_by_key(order)?;
    let may = !activity.is_answered() || activity.last().elapsed() >= QUIET_TIME;
    may.then_some(source)
}

/// A source, and the listener's socket: of several addresses of this machine, answers come from the one that it has asked.
pub(crate) struct Asking {
    socket: Arc<UdpSocket>,
    is_v6: bool,
    from: SocketAddr,
    to: Mutex<Option<IpAddr>>,
}

impl Asking {
    fn new(socket: Arc<UdpSocket>, from: SocketAddr) -> Self {
        Self {
            is_v6: socket.local_addr().is_ok_and(|own| own.is_ipv6()),
            socket,
            from,
            to: Mutex::new(None),
        }
    }

    fn to(&self) -> MutexGuard<'_, Option<IpAddr>> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is another datagram of it, to this address of this machine, if that is known.
    fn has_sent_to(&self, to: Option<IpAddr>) {
        // Nothing comes from an address of many; and which of a link's own, is for routing to say.
        let is_own = |to: &IpAddr| match to {
            IpAddr::V4(to) => !to.is_unspecified(),
            IpAddr::V6(to) => !to.is_multicast() && !to.is_unicast_link_local(),
        };
        *self.to() = to.filter(is_own);
    }

    async fn answer(&self, data: &[u8]) {
        let send = || {
            let to = Destination {
                remote: self.from,
                local_ip: *self.to(),
                ecn: Ecn::NotEct,
            };
            let socket = (self.socket.as_fd(), self.is_v6);
            SINGLES.with_borrow_mut(|singles| singles.send(socket, &to, data))
        };
        // One that cannot be sent is lost.
        let _ = self.socket.async_io(Interest::WRITABLE, send).await;
    }
}

/// Who gets what comes back.
pub(crate) enum Receiver<'a> {
    /// The source, from the listener's socket.
    Plain(&'a Asking),
    /// A program that has asked a proxy for it.
    Socks(&'a Program),
}

impl Receiver<'_> {
    async fn give(&self, data: &[u8]) {
        match self {
            Self::Plain(asking) => asking.answer(data).await,
            Self::Socks(program) => program.give(data).await,
        }
    }
}

/// The near end of a flow: asks for it, and gives on what comes back, no faster than `throttle` lets it, until it ends.
///
/// # Errors
/// The other end has refused it.
pub(crate) async fn answers(
    live: &Live,
    request: &Request,
    mut flow: DatagramFlow,
    (activity, counts, throttle): (&Activity, &Counts, &Throttle),
    receiver: Receiver<'_>,
) -> Result<(), Refusal> {
    // Until it is dropped the other end keeps the flow.
    let (_send, mut recv) = exchange::ask(&live.session, request).await?;
    let mut refused = None;
    {
        let mut closing = std::pin::pin!(async {
            match exchange::reply(&mut recv).await {
                Ok(_) => closed(&mut recv).await,
                Err(refusal) => refused = Some(refusal),
            }
        });
        loop {
            tokio::select! {
                data = flow.recv() => match data {
                    Some(data) => {
                        activity.answer();
                        if !throttle.passes(data.len()) {
                            continue;
                        }
                        counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                        receiver.give(&data).await;
                    }
                    None => break,
                },
                () = &mut closing => break,
                () = activity.idle() => break,
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

/// The far end of an association: one socket, datagrams to and from anybody whom the rules let through.
pub(crate) struct Association {
    socket: UdpSocket,
    permit: Option<Arc<Permit>>,
    names: Names,
    /// Until when a target is remembered, and its address; `None` if there is no way to it.
    known: HashMap<Target, (Instant, Option<SocketAddr>)>,
    /// Addresses that may answer because an allowed name has led to them, although no rule for addresses lets them through.
    spoken_to: HashSet<SocketAddr>,
    /// Datagrams that wait until the name of their target is resolved; they count in `unnamed`.
    waiting: HashMap<Target, VecDeque<(Vec<u8>, Counted)>>,
    unnamed: Count,
    lookups: JoinSet<(Target, Result<SocketAddr, Refusal>)>,
}

impl Association {
    /// `unnamed`: the bytes that wait for names, of all associations of the client.
    ///
    /// # Errors
    /// There is no socket.
    pub(crate) async fn new(
        permit: Option<Arc<Permit>>,
        names: Names,
        unnamed: Count,
    ) -> io::Result<Self> {
        // Both families where the machine has both.
        let socket = bind(SocketAddr::from(([0_u16; 8], 0))).await?;
        Ok(Self {
            socket,
            permit,
            names,
            known: HashMap::new(),
            spoken_to: HashSet::new(),
            waiting: HashMap::new(),
            unnamed,
            lookups: JoinSet::new(),
        })
    }

    /// Until the other end closes it, or it is idle. `denied` hears of targets that no rule lets through.
    pub(crate) async fn run(
        mut self,
        mut flow: DatagramFlow,
        (_send, mut recv): (SendStream, RecvStream),
        told: &mut Flow,
        denied: impl Fn(&Target),
        throttle: &Throttle,
    ) {
        let (sender, activity) = (flow.sender(), Activity::new());
        let mut closing = std::pin::pin!(closed(&mut recv));
        let ended = loop {
            tokio::select! {
                data = flow.recv() => {
                    let Some(data) = data else { break Err("the session has ended") };
                    activity.touch();
                    if !throttle.passes(data.len()) {
                        continue;
                    }
                    told.counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                    self.send(data, &denied).await;
                }
                Some(Ok((target, found))) = self.lookups.join_next() => {
                    self.found(target, found, &denied).await;
                }
                taken = take(&self.socket, |data, from| {
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    if may_answer(self.permit.as_deref(), &self.spoken_to, from) {
                        told.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                        sender.send(&addressed(&Target::Ip(from), data));
                    }
                }) => {
                    activity.touch();
                    if taken.is_err() {
                        break Err("the socket has failed");
                    }
                }
                () = &mut closing => break Ok(()),
                () = activity.idle() => break Ok(()),
            }
        };
        told.ended(ended);
    }

    async fn send(&mut self, data: Vec<u8>, denied: &impl Fn(&Target)) {
        let mut rest = &data[..];
        // A datagram without an address goes nowhere.
        let Ok(target) = Target::take(&mut rest) else {
            return;
        };
        let now = Instant::now();
        if let Some((until, place)) = self.known.get(&target)
            && now < *until
        {
            if let Some(address) = *place {
                self.send_to(rest, address).await;
            }
            return;
        }
        let (names, permit) = (self.names.clone(), self.permit.clone());
        // No question is asked for an address: it goes at once, and in order.
        if matches!(target, Target::Ip(_)) {
            let found = dial::resolve(&names, &target, Transport::Udp, permit.as_deref()).await;
            if let Some(address) = self.learn(target, found.map(|found| found[0]), denied) {
                self.send_to(rest, address).await;
            }
            return;
        }
        let queue = self.waiting.get_mut(&target);
        let has_room = match &queue {
            Some(queue) => queue.len() < LOOKUPS_MAX,
            None => self.lookups.len() < LOOKUPS_MAX,
        };
        let counted = match has_room {
            true => self.unnamed.add(data.len() + OVERHEAD, UNNAMED_BYTES_MAX),
            false => None,
        };
        let Some(counted) = counted else {
            return;
        };
        let waiting = (rest.to_vec(), counted);
        if let Some(queue) = queue {
            return queue.push_back(waiting);
        }
        self.waiting
            .insert(target.clone(), VecDeque::from([waiting]));
        self.lookups.spawn(async move {
            let found = dial::resolve(&names, &target, Transport::Udp, permit.as_deref()).await;
            (target, found.map(|found| found[0]))
        });
    }

    /// The name service has answered: what has waited for that goes.
    async fn found(
        &mut self,
        target: Target,
        found: Result<SocketAddr, Refusal>,
        denied: &impl Fn(&Target),
    ) {
        let queue = self.waiting.remove(&target).unwrap_or_default();
        if let Some(address) = self.learn(target, found, denied) {
            for (data, _counted) in queue {
                self.send_to(&data, address).await;
            }
        }
    }

    /// Remembers the address of a target, or that there is no way to it.
    fn learn(
        &mut self,
        target: Target,
        found: Result<SocketAddr, Refusal>,
        denied: &impl Fn(&Target),
    ) -> Option<SocketAddr> {
        if found
            .as_ref()
            .is_err_and(|refusal| refusal.status == Status::Denied)
        {
            denied(&target);
        }
        let now = Instant::now();
        if self.known.len() >= TARGETS_MAX {
            self.known.retain(|_, (until, _)| now < *until);
        }
        if self.known.len() >= TARGETS_MAX {
            self.known.clear();
        }
        let place = found.ok();
        if let (Some(address), Target::Name(..)) = (place, &target)
            && self.spoken_to.len() < TARGETS_MAX
        {
            self.spoken_to.insert(address);
        }
        self.known.insert(target, (now + TARGET_TIME, place));
        place
    }

    async fn send_to(&self, data: &[u8], address: SocketAddr) {
        let is_v6 = self.socket.local_addr().is_ok_and(|own| own.is_ipv6());
        let ip = match address.ip() {
            IpAddr::V4(ip) if is_v6 => ip.to_ipv6_mapped().into(),
            ip => ip,
        };
        // One that cannot be sent is lost.
        let _ = self
            .socket
            .send_to(data, SocketAddr::new(ip, address.port()))
            .await;
    }
}

fn may_answer(permit: Option<&Permit>, spoken_to: &HashSet<SocketAddr>, from: SocketAddr) -> bool {
    let from = SocketAddr::new(canonical(from.ip()), from.port());
    permit.is_none_or(|permit| permit.lets_reach(Transport::Udp, None, from))
        || spoken_to.contains(&from)
}

/// A datagram of an association: an address, and what goes there or comes from there.
pub(crate) fn addressed(target: &Target, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 24);
    target.put(&mut out);
    out.extend_from_slice(data);
    out
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use etherparse::icmpv4::{DestUnreachableHeader as Unreachable4, ParameterProblemHeader};
    use etherparse::icmpv6::DestUnreachableCode as Unreachable6;
    use etherparse::{Icmpv4Type, Icmpv6Type};
    use sphinx_netdev::netns::Namespace;
    use sphinx_netdev::tun::{Tun, TunConfig};
    use sphinx_testing::uninterrupted;
    use tokio::time::advance;

    use super::*;
    use crate::dial::tests::Silence;
    use crate::loopback::own_namespace;
    use crate::tun::packet::{ends, icmp_v4, icmp_v6};

    const OWN: (Ipv4Addr, Ipv6Addr) = (
        Ipv4Addr::new(10, 77, 0, 1),
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
    );
    const OTHER: (Ipv4Addr, Ipv6Addr) = (
        Ipv4Addr::new(10, 77, 0, 2),
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
    );

    #[derive(Debug, Clone)]
    enum Said {
        V4(Icmpv4Type),
        V6(Icmpv6Type),
    }

    /// Something is said about a datagram, and then it comes back all the same: that is taken.
    async fn comes_back(said: Said, namespace: &Namespace, tun: &Tun) {
        let (own, other): (IpAddr, IpAddr) = match said {
            Said::V4(_) => (OWN.0.into(), OTHER.0.into()),
            Said::V6(_) => (OWN.1.into(), OTHER.1.into()),
        };
        let socket = namespace.run(|| std::net::UdpSocket::bind((own, 0)));
        let socket = socket.and_then(|bound| bound).expect("a port");
        socket.connect((other, 4000)).expect("a way there");
        socket.set_nonblocking(true).expect("an option");
        let socket = UdpSocket::from_std(socket).expect("an event loop");
        socket.send(b"hello").await.expect("nothing was said yet");
        let mut buffer = [0; 2000];
        // Multicast reports of the kernel may come first.
        let packet = loop {
            let length = tun.receive(&mut buffer).expect("a packet");
            let ends = ends(&buffer[..length]);
            if ends.is_some_and(|ends| ends.destination == other) {
                break &mut buffer[..length];
            }
        };
        let answer = match said.clone() {
            Said::V4(what) => icmp_v4((OTHER.0, OWN.0), what, packet),
            Said::V6(what) => icmp_v6((OTHER.1, OWN.1), what, packet),
        };
        tun.send(&answer.expect("it fits")).expect("a device");
        // With its ends exchanged, the checksums stay right.
        let (source, address) = if own.is_ipv4() { (12, 4) } else { (8, 16) };
        let (left, right) = packet[source..].split_at_mut(address);
        left.swap_with_slice(&mut right[..address]);
        let (left, right) = packet[source + 2 * address..].split_at_mut(2);
        left.swap_with_slice(&mut right[..2]);
        tun.send(packet).expect("a device");
        let mut taken = 0;
        while taken == 0 {
            let took = take(&socket, |data, _| taken += usize::from(data == b"hello")).await;
            took.unwrap_or_else(|error| panic!("{said:?}: {error}"));
        }
    }

    #[tokio::test]
    async fn what_icmp_says_ends_no_flow() {
        let Some(namespace) = own_namespace() else {
            return;
        };
        let config = TunConfig {
            name: "tun".to_owned(),
            mtu: 1500,
            queue_packets: 100,
            addresses: vec![(OWN.0.into(), 24), (OWN.1.into(), 64)],
        };
        let tun = namespace.run(|| Tun::open(&config));
        let tun = tun.and_then(|opened| opened).expect("a device");
        let next_hop_mtu = 1300;
        for what in [
            Unreachable4::Host,
            Unreachable4::Port,
            Unreachable4::Protocol,
            Unreachable4::FragmentationNeeded { next_hop_mtu },
            Unreachable4::HostUnknown,
            Unreachable4::Isolated,
        ] {
            let said = Said::V4(Icmpv4Type::DestinationUnreachable(what));
            comes_back(said, &namespace, &tun).await;
        }
        let problem = ParameterProblemHeader::PointerIndicatesError(0);
        for said in [
            Said::V4(Icmpv4Type::ParameterProblem(problem)),
            Said::V6(Icmpv6Type::PacketTooBig { mtu: 1300 }),
            Said::V6(Icmpv6Type::DestinationUnreachable(Unreachable6::Prohibited)),
            Said::V6(Icmpv6Type::DestinationUnreachable(Unreachable6::Port)),
        ] {
            comes_back(said, &namespace, &tun).await;
        }
    }

    /// A program that comes back, and is asked again, hears that.
    #[tokio::test]
    async fn the_datagram_behind_one_that_was_refused_is_sent() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let [program, elsewhere] = [(); 2].map(|()| std::net::UdpSocket::bind(loopback).unwrap());
        let socket = bind(loopback).await.unwrap();
        socket.connect(program.local_addr().unwrap()).await.unwrap();
        // It takes nothing from this end: its port is closed to it.
        program.connect(elsewhere.local_addr().unwrap()).unwrap();
        send(&socket, b"lost").await;
        program.connect(socket.local_addr().unwrap()).unwrap();
        send(&socket, b"sent").await;
        let patience = Some(Duration::from_secs(10));
        program.set_read_timeout(patience).unwrap();
        let mut buffer = [0; 8];
        let length = uninterrupted(|| program.recv(&mut buffer)).unwrap();
        assert_eq!(&buffer[..length], b"sent");
    }

    /// Of all addresses of this machine, from the one that was asked: no program takes an answer from another one.
    #[tokio::test]
    async fn a_listener_on_all_addresses_answers_from_the_one_that_was_asked() {
        for (own, asks, asked) in [
            ("0.0.0.0", "127.0.0.1:0", "127.0.0.77"),
            ("::", "127.0.0.1:0", "127.0.0.77"),
            ("::", "[::1]:0", "::1"),
            ("127.0.0.77", "127.0.0.1:0", "127.0.0.77"),
        ] {
            let Ok(program) = std::net::UdpSocket::bind(asks) else {
                sphinx_testing::skipped!("no IPv6 here");
                continue;
            };
            let [own, asked] = [own, asked].map(|ip| ip.parse::<IpAddr>().unwrap());
            let socket = Arc::new(listen(SocketAddr::new(own, 0)).await.unwrap());
            let place = SocketAddr::new(asked, socket.local_addr().unwrap().port());
            program.connect(place).unwrap();
            let patience = Some(Duration::from_secs(10));
            program.set_read_timeout(patience).unwrap();
            program.send(b"hello").unwrap();
            let mut asking = None;
            while asking.is_none() {
                let took = take_sent_to(&socket, |data, from, to| {
                    assert_eq!(data, b"hello");
                    let source = Asking::new(Arc::clone(&socket), from);
                    source.has_sent_to(to);
                    asking = Some(source);
                });
                took.await.unwrap();
            }
            let asking = asking.expect("a source");
            assert_eq!(asking.from, program.local_addr().unwrap());
            let mut buffer = vec![0; DATAGRAM_MAX];
            for answer in [&b""[..], b"who?", &[7; DATAGRAM_MAX]] {
                asking.answer(answer).await;
                let length = uninterrupted(|| program.recv(&mut buffer)).unwrap();
                assert!(buffer[..length] == *answer, "{own}: {length} bytes");
            }
        }
    }

    #[tokio::test]
    async fn answers_do_not_come_from_addresses_of_many() {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let from = SocketAddr::from(([192, 0, 2, 1], 1));
        let asking = Asking::new(Arc::new(socket), from);
        for (to, is_own) in [
            ("192.0.2.7", true),
            ("2001:db8::7", true),
            ("0.0.0.0", false),
            ("ff02::1", false),
            ("fe80::7", false),
        ] {
            let to: IpAddr = to.parse().expect("an address");
            asking.has_sent_to(Some(to));
            assert_eq!(*asking.to(), Some(to).filter(|_| is_own), "{to}");
        }
    }

    #[tokio::test]
    async fn what_waits_for_names_is_little_for_all_associations_of_a_client() {
        const BYTES: usize = 30_000;
        let silence = Silence::new();
        let (names, unnamed, denied) = (&silence.names, Count::default(), |_: &Target| ());
        let mut associations = Vec::new();
        for _ in 0..3 {
            let association = Association::new(None, names.clone(), unnamed.clone()).await;
            associations.push(association.expect("a socket"));
        }
        for name in ["a.silent", "b.silent", "b.silent", "c.silent"] {
            let target = Target::new(name, 9).expect("a name");
            for association in &mut associations {
                let datagram = addressed(&target, &[0; BYTES]);
                association.send(datagram, &denied).await;
            }
        }
        let waiting = |associations: &[Association]| -> usize {
            let queues = associations.iter().flat_map(|it| it.waiting.values());
            queues.map(VecDeque::len).sum()
        };
        assert_eq!(waiting(&associations), UNNAMED_BYTES_MAX / BYTES);
        // What waits no more leaves its room.
        drop(silence);
        for association in &mut associations {
            while let Some(found) = association.lookups.join_next().await {
                let (target, found) = found.expect("no panic");
                association.found(target, found, &denied).await;
            }
        }
        assert_eq!(waiting(&associations), 0);
        assert!(unnamed.add(UNNAMED_BYTES_MAX, UNNAMED_BYTES_MAX).is_some());
    }

    #[tokio::test]
    async fn sockets_have_no_less_room_than_usual() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let room = |socket: &UdpSocket| sockopt::socket_recv_buffer_size(socket).unwrap();
        let (ours, usual) = (
            bind(any).await.unwrap(),
            UdpSocket::bind(any).await.unwrap(),
        );
        // How much more, the system decides.
        assert!(room(&ours) >= room(&usual));
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_never_answered_ends_sooner_and_gives_way_first() {
        let [older, newer, asking] = [1, 2, 3].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let [first, second] = [(); 2].map(|()| Activity::new());
        let third = Activity::unanswered();
        advance(QUIET_TIME / 2).await;
        second.touch();
        let answered = || [(newer, &second), (older, &first)].into_iter();
        assert_eq!(gives_way(answered()), None);
        advance(QUIET_TIME / 2).await;
        assert_eq!(gives_way(answered()), Some(older));
        third.touch();
        assert_eq!(
            gives_way(answered().chain([(asking, &third)])),
            Some(asking)
        );
        for (activity, least, most) in [
            (third, QUIET_TIME, IDLE_TIME),
            (second, IDLE_TIME, 2 * IDLE_TIME),
        ] {
            let began = Instant::now();
            activity.touch();
            activity.idle().await;
            assert!((least..most).contains(&began.elapsed()));
        }
    }
}
