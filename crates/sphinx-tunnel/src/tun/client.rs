//! The end with an interface of its own, or with that of one program.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_netdev::lookup::interface;
use sphinx_netdev::split::SplitRoutes;
use sphinx_netdev::tcp::listen_on;
use sphinx_netdev::tun::{JoiningTun, Unfinished, add_address, bring_up, has_ipv6};
use sphinx_netdev::uplinks::Changes;
use sphinx_transport::asynchronous::{RecvStream, SendStream};
use sphinx_transport::{Error, Ticket};
use tokio::io::unix::AsyncFd;
use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::device::{Device, is_gone};
use super::outbox::Outbox;
use super::settings::Settings;
use super::split::{Split, Taken};
use super::{Prefix, contains, is_wide, packet};
use crate::client::ClientError;
use crate::event::{Direction, Event, Events, Flow};
use crate::exchange;
use crate::live::{Link, Live};
use crate::udp::closed;
use crate::wire::{Refusal, Request, Status};

/// How long names of the server may take before packets are led anywhere.
const NAMES_TIME: Duration = Duration::from_secs(3);
/// Addresses that a ticket has room for.
const ADDRESSES_MAX: usize = 16;
/// How often the server is asked again that has refused, most often for the sake of this client's last session.
const ASK_TIME: Duration = Duration::from_secs(5);
/// After the device has failed, until it is read again.
const READ_PAUSE: Duration = Duration::from_millis(200);
/// After a look for what leads into the tunnel, until the next one, however much changes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// After so many failures in a row to add what is missing, the tunnel ends. One failure may come of an interface that is turned off meanwhile.
const TRIES: u32 = 3;
/// How often it is told at most that something was missing.
const MISSING_TIME: Duration = Duration::from_secs(10);

/// What a client is to carry of IP packets.
#[derive(Debug)]
pub struct TunPlan {
    /// Name of the interface; `None`: one of ours.
    pub name: Option<String>,
    /// Its addresses, with the lengths of their prefixes; none: those that the server gives.
    pub addresses: Vec<Prefix>,
    /// Destinations that lead into it.
    pub routes: Vec<Prefix>,
    /// Destinations that do not lead into it although `routes` has them.
    pub excluded: Vec<Prefix>,
    /// The interface is that of a program.
    pub program: Option<ProgramDevice>,
    /// TCP is ended here; a program has to come with a listener then.
    pub split_tcp: bool,
}

/// The interface of a program in a namespace of its own, which waits for its addresses.
#[derive(Debug)]
pub struct ProgramDevice {
    /// The interface.
    pub device: JoiningTun,
    /// Gets [`Settings`].
    pub waiting: UnixStream,
    /// Hears what comes by the interface ([`listen_on`]), if TCP is to be ended here.
    pub listener: Option<TcpListener>,
}

/// The interface, and what it is for.
pub(crate) struct Client {
    plan: TunPlan,
    /// Declared before `device`, so that its routes are removed before the device is.
    state: Mutex<State>,
    device: Device,
    /// The interface is in this process's namespace, where others may change its routes.
    is_here: bool,
    split: Option<Arc<Split>>,
    events: Events,
    failing: UnboundedSender<ClientError>,
    failed: tokio::sync::Mutex<UnboundedReceiver<ClientError>>,
}

#[derive(Default)]
struct State {
    routes: Option<SplitRoutes>,
    addresses: Vec<Prefix>,
    outbox: Option<Arc<Outbox>>,
    /// The process that waits for the addresses, if the interface is that of a program.
    waiting: Option<UnixStream>,
}

/// What keeps packets coming: the stream, and the first of their flows.
pub(crate) struct Carried {
    streams: (SendStream, RecvStream),
    first: u64,
    outbox: Arc<Outbox>,
    flow: Flow,
}

fn failed(what: &str) -> impl Fn(io::Error) -> ClientError {
    let what = what.to_owned();
    move |source| ClientError::Tun {
        what: what.clone(),
        source,
    }
}

fn refused(refusal: Refusal) -> ClientError {
    ClientError::Refused {
        spec: "--tun".to_owned(),
        refusal,
    }
}

impl Client {
    /// Opens the interface, in an event loop.
    ///
    /// # Errors
    /// There is none: `PermissionDenied` without `CAP_NET_ADMIN`.
    pub(crate) fn open(mut plan: TunPlan, events: &Events) -> Result<Arc<Self>, ClientError> {
        let opened = match plan.program.take() {
            Some(program) => {
                // Only the stream and the listener are still of use.
                let opened = Device::new(program.device);
                opened.map(|device| (device, Some(program.waiting), program.listener))
            }
            None => Device::open(plan.name.as_deref()).map(|device| (device, None, None)),
        };
        let (device, waiting, listener) = opened.map_err(failed("--tun: opening a TUN device"))?;
        let split = if plan.split_tcp {
            let listener = listener.map_or_else(|| listen_on(device.name()), Ok);
            let split = listener.and_then(|listener| Split::new(listener, events));
            Some(Arc::new(split.map_err(failed("--split-tcp"))?))
        } else {
            None
        };
        let (failing, failed) = unbounded_channel();
        Ok(Arc::new(Self {
            device,
            plan,
            is_here: waiting.is_none(),
            state: Mutex::new(State {
                waiting,
                ..State::default()
            }),
            split,
            events: events.clone(),
            failing,
            failed: failed.into(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the device has, for the present session.
    pub(crate) fn start(self: &Arc<Self>, link: &Link, tasks: &mut JoinSet<()>) {
        let client = Arc::clone(self);
        tasks.spawn(async move {
            loop {
                let read = client
                    .device
                    .read_joined(|rest, packet| client.take(rest, packet));
                match read.await {
                    Ok(()) => {}
                    Err(error) if is_gone(&error) => {
                        return client.fail(io::Error::other("somebody has removed it"));
                    }
                    Err(_) => sleep(READ_PAUSE).await,
                }
            }
        });
        if self.is_here {
            tasks.spawn(Arc::clone(self).keep());
        }
        if let Some(split) = &self.split {
            tasks.spawn(Arc::clone(split).run(Arc::clone(self), link.clone()));
        }
    }

    /// Waits until the interface can carry nothing any more, and says why.
    pub(crate) async fn failure(&self) -> ClientError {
        match self.failed.lock().await.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    fn fail(&self, error: io::Error) {
        let what = format!(
            "--tun: nothing goes into the tunnel any more: {}",
            self.device.name()
        );
        // Whoever waits for it may have ended.
        let _ = self.failing.send(failed(&what)(error));
    }

    /// Adds what others remove of what leads into the tunnel: what is for the tunnel would go elsewhere, and nobody notice.
    async fn keep(self: Arc<Self>) {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for files that may change: this one is the socket's for as long as that lives"
        )]
        let changes = match Changes::with_rules().and_then(AsyncFd::new) {
            Ok(changes) => changes,
            Err(error) => return self.fail(error),
        };
        let (mut told, mut failures): (Option<Instant>, _) = (None, 0);
        loop {
            // What has changed before was not told.
            match self.restore() {
                Ok(false) => failures = 0,
                Ok(true) => {
                    failures = 0;
                    if told.is_none_or(|told| told.elapsed() >= MISSING_TIME) {
                        told = Some(Instant::now());
                        self.warn("somebody had removed rules, routes or addresses that lead into the tunnel: they are there again");
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == TRIES {
                        return self.fail(error);
                    }
                    sleep(LOOK_PAUSE).await;
                    continue;
                }
            }
            sleep(LOOK_PAUSE).await;
            match changes.readable().await {
                Ok(mut ready) => {
                    changes.get_ref().clear();
                    ready.clear_ready();
                }
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Whether anything was missing.
    fn restore(&self) -> io::Result<bool> {
        let name = self.device.name();
        let (mut any, has_routes, addresses) = {
            let state = self.state();
            let restored = match &state.routes {
                Some(routes) => routes.restore()?,
                None => turn_on(name)?,
            };
            (restored, state.routes.is_some(), state.addresses.clone())
        };
        let known = if_addrs::get_if_addrs()?;
        for (address, prefix) in addresses {
            let has = |it: &if_addrs::Interface| it.name == name && it.ip() == address;
            if known.iter().any(has) {
                continue;
            }
            match add_address(name, address, prefix) {
                Ok(()) => any = true,
                // Of a machine that has turned IPv6 off, nothing else was to go into the tunnel: what it has of IPv4 still does.
                Err(error) if !has_routes && error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }

    /// Connections that are ended here are reset; `delivers`: after those that their programs have closed are delivered.
    pub(crate) async fn end(&self, delivers: bool) {
        if let Some(split) = &self.split {
            split.end(delivers).await;
            // Their programs are told by what the kernel has just sent.
            while self
                .device
                .read_now(|rest, packet| self.take(rest, packet))
                .is_ok_and(|more| more)
            {}
        }
    }

    /// A packet of the device, or several that the kernel has joined. Those from an address that is not this end's go nowhere.
    fn take(&self, rest: Unfinished, packet: &mut [u8]) {
        let ends = packet::ends(packet);
        if !ends.is_some_and(|ends| self.state().has(ends.source)) {
            return;
        }
        let split = self.split.as_ref();
        let taken = split.map_or(Taken::Through, |split| split.take(rest, packet));
        match taken {
            Taken::Through => {
                rest.finish(packet, |packet| self.send(packet));
            }
            Taken::Back => self.device.write_back(rest, packet),
            Taken::Done => {}
        }
    }

    /// Sends a complete packet of this machine. Without a session it goes nowhere.
    pub(super) fn send(&self, packet: &[u8]) {
        let outbox = self.state().outbox.clone();
        if let Some(outbox) = outbox {
            outbox.push(packet, &self.device);
        }
    }

    /// Gives this machine a complete packet.
    pub(super) fn give(&self, packet: &[u8]) {
        self.device.write(packet);
    }

    /// Asks the other end to carry packets, and sets up the interface the first time.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        live: &Live,
        ticket: &Ticket,
    ) -> Result<Carried, ClientError> {
        let known = self.state().addresses.clone();
        let wanted = if known.is_empty() {
            &self.plan.addresses
        } else {
            &known
        };
        let addresses: Vec<IpAddr> = wanted.iter().map(|(address, _)| *address).collect();
        let flow = self
            .events
            .flow("tun", self.device.name().to_owned(), Direction::Out);
        let outbox = Arc::new(Outbox::new(Arc::clone(&flow.counts)));
        let arriving = (Arc::clone(self), Arc::clone(&outbox));
        let first = live.datagrams.open_packets(Arc::new(move |packet| {
            let (client, outbox) = &arriving;
            let ends = packet::ends(packet);
            let is_hidden = |split: &Arc<Split>| split.is_for_listener(packet);
            if ends.is_some_and(|ends| client.state().has(ends.destination))
                && !client.split.as_ref().is_some_and(is_hidden)
            {
                outbox.arrived(packet);
                client.device.write(packet);
            }
        }));
        let request = Request::Tun {
            flow: first,
            addresses,
        };
        let asked = exchange::ask(&live.session, &request).await;
        let (send, mut recv) = asked.map_err(refused)?;
        exchange::reply(&mut recv).await.map_err(refused)?;
        let settings = exchange::frame(&mut recv).await.map_err(refused)?;
        let settings = Settings::parse(&settings)
            .map_err(|error| refused(Refusal::new(Status::Unsupported, error.to_string())))?;
        match known.is_empty() {
            true => self.set_up(live, ticket, settings).await?,
            false => self.leave_out(servers(live)),
        }
        if let Some(split) = &self.split {
            split.renew();
        }
        self.state().outbox = Some(Arc::clone(&outbox));
        Ok(Carried {
            streams: (send, recv),
            first,
            outbox,
            flow,
        })
    }

    /// Carries packets until the session ends: why it has. What the other end does not carry, or no more, is asked for again.
    pub(crate) async fn carry(
        self: &Arc<Self>,
        live: &Live,
        ticket: &Ticket,
        mut carried: Option<Carried>,
    ) -> Error {
        loop {
            if let Some(Carried {
                mut streams,
                first,
                outbox,
                flow,
            }) = carried.take()
            {
                let ended = tokio::select! {
                    error = outbox.drain(&live.session, first) => Some(error),
                    () = closed(&mut streams.1) => None,
                };
                self.stop(live);
                let mut flow = flow;
                flow.ended(ended.as_ref().map_or(Ok(()), Err));
                drop(flow);
                if let Some(error) = ended {
                    return error;
                }
                self.warn("the server carries no more IP packets");
            }
            match self.ask(live, ticket).await {
                Ok(again) => carried = Some(again),
                Err(error) => {
                    self.stop(live);
                    self.warn(&error.to_string());
                    sleep(ASK_TIME).await;
                }
            }
        }
    }

    /// Nothing goes into the session, and nothing is taken from it.
    fn stop(&self, live: &Live) {
        self.state().outbox = None;
        live.datagrams.end_packets();
    }

    fn warn(&self, what: &str) {
        let message = format!("--tun: {what}");
        self.events.tell(Event::Warning(message));
    }

    async fn set_up(
        &self,
        live: &Live,
        ticket: &Ticket,
        settings: Settings,
    ) -> Result<(), ClientError> {
        let asked = &self.plan.addresses;
        let mut addresses = given(&settings.addresses, asked).map_err(refused)?;
        let waiting = self.state().waiting.take();
        if let Some(mut waiting) = waiting {
            let settings = Settings {
                addresses: addresses.clone(),
                nameservers: settings.nameservers,
            };
            let written = waiting.write_all(&settings.to_bytes());
            written.map_err(failed("--tun: setting up the program's interface"))?;
        } else {
            let mut excluded = self.plan.excluded.clone();
            let servers = servers(live);
            for &address in &addresses {
                check_network(address, asked.contains(&address), &servers)?;
            }
            excluded.extend(servers);
            // Names of the ticket are asked for while nothing leads into the tunnel yet.
            let places = places(ticket).await;
            excluded.extend(places.iter().map(|place| whole(place.ip())));
            addresses = self.take_addresses(addresses)?;
            if !self.plan.routes.is_empty() {
                let routes = SplitRoutes::new(self.device.name(), &self.plan.routes, &excluded);
                self.state().routes = Some(routes.map_err(failed("--route"))?);
            }
        }
        self.events.tell(Event::Tun {
            interface: self.device.name().to_owned(),
            addresses: addresses
                .iter()
                .map(|(address, prefix)| format!("{address}/{prefix}"))
                .collect(),
            commands: Vec::new(),
        });
        self.state().addresses = addresses;
        Ok(())
    }

    /// Gives the interface its addresses: those that it has then. A machine without IPv6 does without the one that the server gives unasked.
    fn take_addresses(&self, addresses: Vec<Prefix>) -> Result<Vec<Prefix>, ClientError> {
        let mut taken = Vec::new();
        let mut refused = None;
        for (address, prefix) in addresses {
            let is_asked = self.plan.addresses.iter().any(|asked| asked.0 == address);
            // Where other interfaces have IPv6, what is for this one would go past the tunnel.
            let may_lack = !is_asked && !has_ipv6();
            match add_address(self.device.name(), address, prefix) {
                Ok(()) => taken.push((address, prefix)),
                Err(error) if may_lack && error.kind() == io::ErrorKind::Unsupported => {
                    refused = Some(error);
                }
                Err(error) => {
                    let what = format!("--tun: giving the interface its address {address}");
                    return Err(failed(&what)(error));
                }
            }
        }
        match refused {
            Some(error) if taken.is_empty() => {
                Err(failed("--tun: giving the interface its address")(error))
            }
            Some(error) => {
                self.warn(&format!("{error}: IPv4 only goes into the tunnel"));
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    /// What the server is to be connected to with again: a ticket with the addresses that its names have now, which are left out of the tunnel
    /// first. Packets to new ones would go there, and no session be begun; and whoever asked again might be given others.
    pub(crate) async fn ticket(&self, ticket: &Ticket) -> Ticket {
        if self.state().routes.is_none() {
            return ticket.clone();
        }
        let places = places(ticket).await;
        self.leave_out(places.iter().map(|place| whole(place.ip())));
        let addresses = places.iter().map(SocketAddr::to_string);
        let addresses: Vec<_> = addresses.take(ADDRESSES_MAX).collect();
        // Without any, connecting tells what is the matter with the names.
        ticket.at(&addresses).unwrap_or_else(|_| ticket.clone())
    }

    /// The server's packets never go into the tunnel.
    fn leave_out(&self, servers: impl IntoIterator<Item = Prefix>) {
        let state = self.state();
        for server in servers {
            let excluded = state.routes.as_ref().map(|routes| routes.exclude(server));
            if let Some(Err(error)) = excluded {
                self.events.tell(Event::Warning(error.to_string()));
            }
        }
    }
}

impl State {
    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }
}

/// The addresses that the interface is to have of those that a server gives: what was asked for, or else one of each family. Who has asked for an
/// address has said what is on the same network too.
fn given(given: &[Prefix], asked: &[Prefix]) -> Result<Vec<Prefix>, Refusal> {
    let is_right = match given {
        _ if !asked.is_empty() => {
            let has = |asked: &Prefix| given.iter().any(|it| it.0 == asked.0);
            given.len() == asked.len() && asked.iter().all(has)
        }
        [one, other] => one.0.is_ipv4() != other.0.is_ipv4(),
        _ => given.len() == 1,
    };
    if !is_right {
        let message = "the server gives other addresses than were asked for";
        return Err(Refusal::new(Status::Unsupported, message));
    }
    let with_network = |&(address, prefix): &Prefix| {
        let wanted = asked.iter().find(|asked| asked.0 == address);
        (address, wanted.map_or(prefix, |asked| asked.1))
    };
    Ok(given.iter().map(with_network).collect())
}

/// Whether the network of an address may be that of an interface here. The kernel leads all of it there, whatever is said of routes: so no server gives
/// one that is not for its clients alone, and none is in one itself, as its own packets would go into the tunnel.
fn check_network(network: Prefix, is_asked: bool, servers: &[Prefix]) -> Result<(), ClientError> {
    let (address, prefix) = network;
    let why = match servers.iter().find(|server| contains(network, server.0)) {
        Some((server, _)) => format!(
            "the server is in that network, at {server}, and its own packets would go into the tunnel"
        ),
        None if !is_asked && is_wide(network) => {
            "that network is wider than a server may give; --route leads more into the tunnel"
                .to_owned()
        }
        None => return Ok(()),
    };
    Err(match is_asked {
        true => failed(&format!("--address {address}/{prefix}"))(io::Error::other(why)),
        false => {
            let message = format!("the server gives {address}/{prefix}: {why}");
            refused(Refusal::new(Status::Unsupported, message))
        }
    })
}

/// Turns an interface on. Whether it was off.
fn turn_on(name: &str) -> io::Result<bool> {
    // Of one that has another name now, or is in another namespace, whoever did that takes care. That it was removed shows in reading from it.
    let is_off = interface(name).is_ok_and(|found| !found.is_up);
    if is_off {
        bring_up(name)?;
    }
    Ok(is_off)
}

/// Where the server is, on all paths.
fn servers(live: &Live) -> Vec<Prefix> {
    let session = live.session.as_blocking();
    let mut all = vec![session.remote_addr().ip()];
    let paths = session.stats().paths;
    all.extend(paths.iter().flatten().map(|path| path.remote.ip()));
    all.into_iter().map(whole).collect()
}

/// Where a ticket leads, in its order.
async fn places(ticket: &Ticket) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for address in ticket.addresses() {
        let found = timeout(NAMES_TIME, lookup_host(address)).await;
        all.extend(found.ok().and_then(Result::ok).into_iter().flatten());
    }
    all
}

fn whole(address: IpAddr) -> Prefix {
    let address = address.to_canonical();
    (address, if address.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::super::parse_prefix;
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        let parsed = texts.iter().map(|text| parse_prefix(text));
        parsed.map(|prefix| prefix.expect("a prefix")).collect()
    }

    #[test]
    fn a_server_gives_what_was_asked_for_or_one_address_of_each_family() {
        let nothing: &[&str] = &[];
        for (of_server, asked, taken) in [
            (&["10.9.0.2/24"][..], nothing, &["10.9.0.2/24"][..]),
            (
                &["10.9.0.2/24", "fd09::2/64"],
                nothing,
                &["10.9.0.2/24", "fd09::2/64"],
            ),
            // What is on the same network says who has asked.
            (&["10.9.0.2/1"], &["10.9.0.2/30"], &["10.9.0.2/30"]),
            (
                &["fd09::2/64", "10.9.0.2/24"],
                &["10.9.0.2/16", "fd09::2/48"],
                &["fd09::2/48", "10.9.0.2/16"],
            ),
            // Other addresses are refused.
            (nothing, nothing, nothing),
            (&["10.9.0.2/24", "192.0.2.1/24"], nothing, nothing),
            (
                &["10.9.0.2/24", "fd09::2/64", "fd0a::2/64"],
                nothing,
                nothing,
            ),
            (&["192.0.2.1/24"], &["10.9.0.2/24"], nothing),
            (&["10.9.0.2/24", "fd09::2/64"], &["10.9.0.2/24"], nothing),
            (&["10.9.0.2/24"], &["10.9.0.2/24", "fd09::2/64"], nothing),
            (
                &["10.9.0.2/24", "10.9.0.2/24"],
                &["10.9.0.2/24", "fd09::2/64"],
                nothing,
            ),
        ] {
            let expected = Some(prefixes(taken)).filter(|taken| !taken.is_empty());
            let got = given(&prefixes(of_server), &prefixes(asked));
            assert_eq!(got.ok(), expected, "{of_server:?} {asked:?}");
        }
    }

    #[test]
    fn the_server_is_in_no_network_of_the_interface_and_gives_none_for_everything() {
        let servers = prefixes(&["192.0.2.7", "2001:db8::7"]);
        let check = |text: &str, is_asked| {
            let network = parse_prefix(text).expect("a prefix");
            check_network(network, is_asked, &servers)
        };
        for text in ["10.9.0.2/24", "10.9.0.2/8", "fd09::2/32", "192.0.2.9/29"] {
            for is_asked in [true, false] {
                assert!(check(text, is_asked).is_ok(), "{text}");
            }
        }
        // Only a client that has asked for so large a network gets it.
        for text in ["10.9.0.2/7", "fd09::2/16", "fd09::2/31"] {
            assert!(check(text, true).is_ok(), "{text}");
            let refused = check(text, false);
            assert!(
                matches!(&refused, Err(ClientError::Refused { .. })),
                "{text}: {refused:?}"
            );
        }
        for text in [
            "192.0.2.7",
            "192.0.2.1/24",
            "128.0.0.1/1",
            "0.0.0.1/0",
            "2001:db8::1/3",
            "2001:db8::1/64",
            "::1/0",
        ] {
            for is_asked in [true, false] {
                let refused = check(text, is_asked).expect_err("the server is there");
                let told = refused.to_string();
                assert!(told.contains("the server is in that network"), "{told}");
                // The server's mistake is one of the other end.
                let is_here = matches!(refused, ClientError::Tun { .. });
                assert_eq!(is_here, is_asked, "{text}");
            }
        }
    }
}
