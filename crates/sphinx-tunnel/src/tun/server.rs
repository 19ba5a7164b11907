//! The end with one interface for all clients.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sphinx_netdev::lookup::{Attached, attached};
use sphinx_netdev::tun::add_address;
use sphinx_transport::Peer;
use sphinx_transport::asynchronous::{RecvStream, SendStream, Session};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::device::{Device, is_gone};
use super::outbox::Outbox;
use super::settings::Settings;
use super::{Prefix, contains, first_of, is_wide, overlap, packet};
use crate::event::{Event, Events, Flow};
use crate::exchange;
use crate::live::Live;
use crate::permit::is_ordinary;
use crate::udp::closed;
use crate::wire::{Refusal, Status};

/// A session that has been silent for so long gives up its addresses to whoever asks for them: most often the same client, which has lost it. One
/// that lives is heard every 22 s.
const SILENCE: Duration = Duration::from_secs(25);
/// Addresses that are tried for a client that asks for none.
const TRIES_MAX: u128 = 1 << 16;
/// Where resolvers are written down, the better source first: behind a resolver of this machine alone are those that it asks.
const RESOLVERS: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];
const NAMESERVERS_MAX: usize = 3;
/// After the device has failed, until it is read again.
const READ_PAUSE: Duration = Duration::from_millis(200);
/// How often it is tried to have an interface again that somebody has removed.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// Addresses for clients; the server has the first one behind the network's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool(Prefix);

impl std::str::FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = super::parse_prefix(text)?;
        let (first, longest) = (
            first_of((address, prefix)),
            if address.is_ipv4() { 30 } else { 126 },
        );
        if prefix > longest || is_wide((first, prefix)) || !is_ordinary(first) {
            return Err(format!(
                "'{text}' is no network for clients: expected one like 10.9.0.0/24, with room for some, and no wider than /8, or /32 of IPv6"
            ));
        }
        Ok(Self((first, prefix)))
    }
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.0.0, self.0.1)
    }
}

/// Networks that are proposed where another one is taken.
const PROPOSED: [Prefix; 6] = [
    (IpAddr::V4(Ipv4Addr::new(10, 9, 0, 0)), 24),
    (IpAddr::V4(Ipv4Addr::new(10, 213, 0, 0)), 24),
    (IpAddr::V4(Ipv4Addr::new(172, 29, 0, 0)), 24),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 213, 0)), 24),
    (IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 0)), 64),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd21, 0x3a9c, 0, 0, 0, 0, 0, 0)),
        64,
    ),
];

/// A network for clients that this machine is in already: their addresses would hide those of others there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pool}: this machine is in {network}/{length} already, by {interface}, and clients would hide who is there"
)]
pub struct PoolTaken {
    pool: Pool,
    network: IpAddr,
    length: u8,
    interface: String,
    /// A network that this machine is not in, to be proposed instead, if one is found.
    pub free: Option<Pool>,
}

impl Pool {
    /// Whether this machine is in none of its networks, as far as the kernel says that.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self) -> Result<(), PoolTaken> {
        let known = attached(self.0.0.is_ipv6()).unwrap_or_default();
        let taken_by = |pool: Prefix| {
            let overlaps = |known: &&Attached| overlap(pool, known.network);
            known.iter().find(overlaps)
        };
        let Some(taken) = taken_by(self.0) else {
            return Ok(());
        };
        let mut proposed = PROPOSED.into_iter().map(Self);
        let free = proposed.find(|pool| self.is_like(pool) && taken_by(pool.0).is_none());
        Err(PoolTaken {
            pool: *self,
            network: taken.network.0,
            length: taken.network.1,
            interface: taken.interface.clone(),
            free,
        })
    }

    /// Whether both are of one family.
    pub fn is_like(&self, other: &Self) -> bool {
        self.0.0.is_ipv4() == other.0.0.is_ipv4()
    }

    /// The address of this machine in it: the first one.
    fn own(&self) -> IpAddr {
        self.address(1)
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.0.0 {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(number as u32)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(number)).into(),
        }
    }

    /// Whether a client may have an address: neither this machine's nor the network's own or its broadcast address.
    fn has(&self, address: IpAddr) -> bool {
        // Of an address of the other family the prefix says nothing.
        if !contains(self.0, address) {
            return false;
        }
        let is_broadcast = match address {
            IpAddr::V4(ip) => ip.to_bits() | (u32::MAX << (32 - self.0.1)) == u32::MAX,
            IpAddr::V6(_) => false,
        };
        address != self.own() && address != self.0.0 && !is_broadcast
    }

    /// Those for clients, in their order, as many as are tried.
    fn all(&self) -> impl Iterator<Item = IpAddr> {
        let (most, bits) = match self.0.0 {
            IpAddr::V4(_) => (32, self.0.1),
            IpAddr::V6(_) => (128, self.0.1),
        };
        let count = 1_u128
            .checked_shl(most - u32::from(bits))
            .unwrap_or(TRIES_MAX);
        let pool = *self;
        let all = (2..count.min(TRIES_MAX)).map(move |number| pool.address(number));
        all.filter(move |address| pool.has(*address))
    }
}

/// Addresses that belong to clients of their own, connected or not. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Reserved(Arc<Mutex<HashSet<IpAddr>>>);

impl Reserved {
    /// From now on it is these, for what begins from now on.
    pub fn set(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        *self.lock() = addresses.into_iter().collect();
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, address: IpAddr) -> bool {
        self.lock().contains(&address)
    }
}

/// One interface and the clients behind it. Packets go to whom their destination belongs.
pub struct Hub {
    inner: Arc<Inner>,
    _reading: JoinSet<()>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

struct Inner {
    /// Replaced by another one if somebody removes the interface.
    device: Mutex<Arc<Device>>,
    clients: Clients,
    events: Events,
}

/// The clients of a server, and their addresses.
struct Clients {
    pools: Vec<Pool>,
    reserved: Reserved,
    members: Mutex<HashMap<IpAddr, Member>>,
}

/// A client that has an address.
struct Member {
    session: Session,
    outbox: Arc<Outbox>,
}

impl Hub {
    /// Opens an interface with the servers' addresses of these pools, in an event loop, and tells of it. `reserved`: what only clients get to whom it belongs.
    ///
    /// # Errors
    /// There is none: `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn open(pools: &[Pool], reserved: &Reserved, events: &Events) -> io::Result<Self> {
        let device = open(None, pools)?;
        let addresses = pools.iter();
        events.tell(Event::Tun {
            interface: device.name().to_owned(),
            addresses: addresses
                .map(|pool| format!("{}/{}", pool.own(), pool.0.1))
                .collect(),
            commands: commands(device.name(), pools),
        });
        let inner = Arc::new(Inner {
            device: Mutex::new(Arc::new(device)),
            clients: Clients::new(pools, reserved),
            events: events.clone(),
        });
        let mut reading = JoinSet::new();
        let reader = Arc::clone(&inner);
        reading.spawn(async move {
            loop {
                let device = reader.device();
                match device.read(|packet| reader.route(packet, &device)).await {
                    Ok(()) => {}
                    Err(error) if is_gone(&error) => reader.open_again(device.name()).await,
                    Err(_) => sleep(READ_PAUSE).await,
                }
            }
        });
        Ok(Self {
            inner,
            _reading: reading,
        })
    }
}

/// An interface with the server's addresses of these pools, in an event loop.
fn open(name: Option<&str>, pools: &[Pool]) -> io::Result<Device> {
    let device = Device::open(name)?;
    for pool in pools {
        add_address(device.name(), pool.own(), pool.0.1)?;
    }
    Ok(device)
}

/// What somebody has to run for packets of clients to go further than to this machine. That is for the machine's owner to decide.
fn commands(interface: &str, pools: &[Pool]) -> Vec<String> {
    let mut commands = Vec::new();
    for pool in pools {
        let (net, prefix) = pool.0;
        let (parameter, ip) = match net {
            IpAddr::V4(_) => ("net.ipv4.ip_forward", "ip"),
            IpAddr::V6(_) => ("net.ipv6.conf.all.forwarding", "ip6"),
        };
        let path = format!("/proc/sys/{}", parameter.replace('.', "/"));
        let is_on = fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
        if !is_on {
            commands.push(format!("sysctl -w {parameter}=1"));
        }
        if commands.iter().all(|command| !command.starts_with("nft")) {
            commands.push(
                "nft 'add table inet sphx; add chain inet sphx nat { type nat hook postrouting priority srcnat; }'"
                    .to_owned(),
            );
        }
        commands.push(format!(
            "nft 'add rule inet sphx nat {ip} saddr {net}/{prefix} oifname != \"{interface}\" masquerade'"
        ));
    }
    commands
}

impl Inner {
    fn device(&self) -> Arc<Device> {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&device)
    }

    /// Opens the interface again that somebody has removed: rules of the packet filter have its name.
    async fn open_again(&self, name: &str) {
        let warn = |what: &str| {
            let message = format!("--tun-pool: somebody has removed the interface {name}: {what}");
            self.events.tell(Event::Warning(message));
        };
        let mut is_told = false;
        loop {
            match open(Some(name), &self.clients.pools) {
                Ok(device) => {
                    *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(device);
                    return warn("there is another one in its place");
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        warn(&format!(
                            "clients' packets go nowhere until there is another one: {error}"
                        ));
                    }
                    sleep(OPEN_PAUSE).await;
                }
            }
        }
    }

    /// Takes a packet of the device to whom it belongs.
    fn route(&self, packet: &[u8], device: &Device) {
        let Some(ends) = packet::ends(packet) else {
            return;
        };
        if let Some(outbox) = self.clients.outbox(ends.destination) {
            outbox.push(packet, device);
        }
    }
}

impl Clients {
    fn new(pools: &[Pool], reserved: &Reserved) -> Self {
        Self {
            pools: pools.to_vec(),
            reserved: reserved.clone(),
            members: Mutex::default(),
        }
    }

    fn members(&self) -> MutexGuard<'_, HashMap<IpAddr, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self, address: IpAddr) -> Option<Arc<Outbox>> {
        let members = self.members();
        let member = members.get(&address);
        member.map(|member| Arc::clone(&member.outbox))
    }

    /// Gives addresses to a client. Whoever has one of them and does not keep it is served no more.
    fn assign(
        &self,
        (asked, own): (&[IpAddr], Option<IpAddr>),
        session: &Session,
        outbox: &Arc<Outbox>,
        keeps: impl Fn(&Session) -> bool,
    ) -> Result<Vec<Prefix>, Refusal> {
        let mut members = self.members();
        let is_free = |address| !members.contains_key(&address);
        let given = choose((&self.pools, &self.reserved), asked, own, is_free)?;
        for (address, _) in &given {
            let taken = members.get(address);
            if taken.is_some_and(|member| keeps(&member.session)) {
                let message = format!("another session has {address}");
                return Err(Refusal::new(Status::InUse, message));
            }
        }
        for (address, _) in &given {
            let member = Member {
                session: session.clone(),
                outbox: Arc::clone(outbox),
            };
            if let Some(before) = members.insert(*address, member) {
                before.outbox.end();
            }
        }
        Ok(given)
    }

    /// Takes addresses back, as far as nobody else has got them.
    fn take_back(&self, addresses: &[Prefix], outbox: &Arc<Outbox>) {
        let mut members = self.members();
        for (address, _) in addresses {
            let is_own = |member: &Member| Arc::ptr_eq(&member.outbox, outbox);
            if members.get(address).is_some_and(is_own) {
                members.remove(address);
            }
        }
    }
}

/// Whether a session keeps an address that another one asks for.
fn keeps(holder: &Session, asking: &Session) -> bool {
    let [held, asked] = [holder, asking].map(|session| session.as_blocking().stats());
    // Where a client's sessions are two programs, both alive, the older one does not take it back.
    let is_replaced = is_of_same_client(holder, asking) && asked.elapsed < held.elapsed;
    !is_replaced && held.silence < SILENCE
}

/// Whether a client with these addresses may send a packet: from one of its own, while it has them, and not to where no rule leads by accident.
fn lets_in(packet: &[u8], own: &[Prefix], outbox: &Outbox) -> bool {
    let is_own = |ends: &packet::Ends| own.iter().any(|(address, _)| *address == ends.source);
    let ends = packet::ends(packet).filter(is_own);
    ends.is_some_and(|ends| is_ordinary(ends.destination)) && !outbox.is_over()
}

/// Whether both are of the client with one key: it knows best which of them it still has. Many may have the same ticket.
fn is_of_same_client(one: &Session, other: &Session) -> bool {
    let key = |session: &Session| match session.as_blocking().peer() {
        Some(Peer::Key(key)) => Some(key),
        _ => None,
    };
    key(one).is_some_and(|own| key(other) == Some(own))
}

/// Which addresses a client is to have: those that it asks for, or one of each pool. `own` is the one that belongs to it.
fn choose(
    (pools, reserved): (&[Pool], &Reserved),
    asked: &[IpAddr],
    own: Option<IpAddr>,
    is_free: impl Fn(IpAddr) -> bool,
) -> Result<Vec<Prefix>, Refusal> {
    let pool_of = |address: IpAddr| {
        let pool = pools.iter().find(|pool| pool.has(address));
        let message = format!("{address} is no address for clients of this server");
        pool.ok_or(Refusal::new(Status::Denied, message))
    };
    let mut chosen: Vec<Prefix> = Vec::new();
    let has_family = |chosen: &[Prefix], address: IpAddr| {
        chosen.iter().any(|it| it.0.is_ipv4() == address.is_ipv4())
    };
    for &address in asked {
        if has_family(&chosen, address) {
            let message = "a client has one address of each family";
            return Err(Refusal::new(Status::Limit, message));
        }
        let pool = pool_of(address)?;
        match own.filter(|own| own.is_ipv4() == address.is_ipv4()) {
            Some(own) if own != address => {
                let message = format!("this client's address is {own}");
                return Err(Refusal::new(Status::Denied, message));
            }
            None if reserved.has(address) => {
                let message = format!("{address} belongs to another client");
                return Err(Refusal::new(Status::Denied, message));
            }
            _ => chosen.push((address, pool.0.1)),
        }
    }
    if !asked.is_empty() {
        return Ok(chosen);
    }
    if let Some(own) = own {
        chosen.push((own, pool_of(own)?.0.1));
    }
    for pool in pools {
        if has_family(&chosen, pool.0.0) {
            continue;
        }
        let mut free = pool.all();
        let free = free.find(|address| is_free(*address) && !reserved.has(*address));
        let many = || Refusal::new(Status::Limit, "there is no address left for a client");
        chosen.push((free.ok_or_else(many)?, pool.0.1));
    }
    Ok(chosen)
}

/// Carries IP packets of one client, for as long as it wants that.
///
/// # Errors
/// Why not.
pub(crate) async fn serve(
    hub: &Hub,
    live: &Live,
    (first, asked, own): (u64, &[IpAddr], Option<IpAddr>),
    (send, recv): (&mut SendStream, &mut RecvStream),
    flow: &mut Flow,
) -> Result<(), Refusal> {
    let inner = &hub.inner;
    let outbox = Arc::new(Outbox::new(Arc::clone(&flow.counts)));
    let keeps = |holder: &Session| keeps(holder, &live.session);
    let assigned = inner
        .clients
        .assign((asked, own), &live.session, &outbox, keeps);
    let held = Held {
        inner,
        addresses: assigned?,
        outbox: Arc::clone(&outbox),
    };
    let (arriving, own) = (Arc::clone(inner), held.addresses.clone());
    let clamping = Arc::clone(&outbox);
    let arrived = move |packet: &mut [u8]| {
        if lets_in(packet, &own, &clamping) {
            clamping.arrived(packet);
            arriving.device().write(packet);
        }
    };
    let Ok(_entered) = live.datagrams.enter_packets(first, Arc::new(arrived)) else {
        let message = "IP packets are carried already, or the numbers of their flows are not free";
        return Err(Refusal::new(Status::Unsupported, message));
    };
    let settings = Settings {
        addresses: held.addresses.clone(),
        nameservers: nameservers(),
    };
    exchange::accept(send, None).await?;
    exchange::write(send, &settings.to_bytes()).await?;
    let ended = tokio::select! {
        error = outbox.drain(&live.session, first) => Err(error.to_string()),
        () = closed(recv) => Ok(()),
        // The end of its stream tells the client, which asks again.
        () = outbox.over() => Err("another session has its address".to_owned()),
    };
    flow.ended(ended);
    Ok(())
}

/// What a client has while it is served.
struct Held<'a> {
    inner: &'a Inner,
    addresses: Vec<Prefix>,
    outbox: Arc<Outbox>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.inner.clients.take_back(&self.addresses, &self.outbox);
    }
}

/// Where this machine asks for names, as far as that can be reached from elsewhere.
fn nameservers() -> Vec<IpAddr> {
    let read = |path: &&str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        Some(resolvers(&text)).filter(|found| !found.is_empty())
    };
    RESOLVERS.iter().find_map(read).unwrap_or_default()
}

fn resolvers(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    let addresses = lines.filter_map(|word| word.parse::<IpAddr>().ok());
    let usable = addresses.filter(|address| is_ordinary(*address));
    usable.take(NAMESERVERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use sphinx_netdev::tun::{Tun, TunConfig};

    use super::*;
    use crate::loopback::{Loopback, own_namespace};

    #[tokio::test]
    async fn who_loses_its_address_is_told_and_sends_no_more_from_it() {
        let loopback = Loopback::new();
        let (_one, first) = &loopback.session().await;
        let (_other, second) = &loopback.session().await;
        let pool = "10.9.0.0/24".parse().expect("a pool");
        let clients = Clients::new(&[pool], &Reserved::default());
        let [before, after] = [(); 2].map(|()| Arc::new(Outbox::new(Arc::default())));
        let address = IpAddr::from([10, 9, 0, 5]);
        let assign = |session: &Session, outbox: &Arc<Outbox>, keeps: &dyn Fn(&Session) -> bool| {
            clients.assign((&[address], None), session, outbox, keeps)
        };
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv4([10, 9, 0, 5], [10, 9, 0, 1], 64).udp(1, 2);
        builder.write(&mut packet, b"hello").expect("built");

        let given = assign(first, &before, &|_| true).expect("it is free");
        // A client that is still heard keeps its address.
        let refused = assign(second, &after, &|holder| keeps(holder, second));
        assert_eq!(refused.map_err(|it| it.status), Err(Status::InUse));
        assert!(lets_in(&packet, &given, &before) && !before.is_over());
        // As if it had been silent for long.
        let taken = assign(second, &after, &|_| false).expect("it is not kept");
        before.over().await;
        assert!(!lets_in(&packet, &given, &before));
        assert!(lets_in(&packet, &taken, &after));
        // Nor does its end take away what it has no more.
        clients.take_back(&given, &before);
        let has = clients.outbox(address);
        assert!(has.is_some_and(|outbox| Arc::ptr_eq(&outbox, &after)));
    }

    #[test]
    fn pools_have_room_and_an_address_of_the_server() {
        let pool: Pool = "10.9.0.77/24".parse().expect("a pool");
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(pool.own(), ip("10.9.0.1"));
        for (address, has) in [
            ("10.9.0.0", false),
            ("10.9.0.1", false),
            ("10.9.0.2", true),
            ("10.9.0.254", true),
            ("10.9.0.255", false),
            ("10.9.1.2", false),
            ("::2", false),
        ] {
            assert_eq!(pool.has(ip(address)), has, "{address}");
        }
        assert_eq!(pool.all().count(), 253);
        let pool: Pool = "fd09::/64".parse().expect("a pool");
        assert_eq!(pool.all().next(), Some(ip("fd09::2")));
        let pool: Pool = "fd09::/0".parse().unwrap_or(pool);
        assert!(pool.all().count() < 1 << 16);
        for text in [
            "10.9.0.0/31",
            "10.9.0.0",
            "::/127",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "128.0.0.0/1",
            "2001:db8::/3",
            "fd09::/16",
        ] {
            assert!(text.parse::<Pool>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_that_the_machine_is_in_is_not_given_to_clients() {
        let Some(namespace) = own_namespace() else {
            return;
        };
        let config = TunConfig {
            name: "lan".to_owned(),
            mtu: 1500,
            queue_packets: 100,
            addresses: vec![
                ([10, 9, 7, 1].into(), 16),
                ([0xfd09, 0, 0, 0, 0, 0, 0, 1].into(), 64),
            ],
        };
        let tun = namespace.run(|| Tun::open(&config));
        let _tun = tun.and_then(|opened| opened).expect("a device");
        let check = |text: &str| {
            let pool: Pool = text.parse().expect("a pool");
            namespace.run(|| pool.check()).expect("a thread")
        };
        for (text, network, free) in [
            ("10.9.0.0/24", "10.9.0.0/16", "10.213.0.0/24"),
            ("10.0.0.0/8", "10.9.0.0/16", "10.213.0.0/24"),
            ("fd09::/112", "fd09::/64", "fd21:3a9c::/64"),
        ] {
            let taken = check(text).expect_err("it is taken");
            let told = taken.to_string();
            assert!(told.contains(network) && told.contains("by lan"), "{told}");
            assert_eq!(
                taken.free.map(|free| free.to_string()).as_deref(),
                Some(free)
            );
        }
        for text in ["10.10.0.0/24", "10.213.0.0/24", "fd09:0:0:1::/64"] {
            assert_eq!(check(text), Ok(()));
        }
    }

    #[test]
    fn addresses_that_belong_to_somebody_are_nobody_elses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let [own, others] = ["10.9.0.2", "10.9.0.3"].map(ip);
        let pools = ["10.9.0.0/24", "fd09::/64"].map(|text| text.parse().expect("a pool"));
        let reserved = Reserved::default();
        reserved.set([own, others]);
        let choose = |asked: &[IpAddr], own| choose((&pools, &reserved), asked, own, |_| true);
        let of = |chosen: Result<Vec<Prefix>, Refusal>| {
            let all = chosen.map(|all| all.into_iter().map(|it| it.0).collect::<Vec<_>>());
            all.map_err(|refusal| refusal.status)
        };
        // Without asking: its own, or the first that belongs to nobody.
        assert_eq!(of(choose(&[], Some(own))), Ok(vec![own, ip("fd09::2")]));
        assert_eq!(
            of(choose(&[], None)),
            Ok(vec![ip("10.9.0.4"), ip("fd09::2")])
        );
        assert_eq!(of(choose(&[own], Some(own))), Ok(vec![own]));
        assert_eq!(
            of(choose(&[ip("fd09::7")], Some(own))),
            Ok(vec![ip("fd09::7")])
        );
        for (asked, own) in [
            (others, Some(own)),
            (others, None),
            (ip("10.9.0.9"), Some(own)),
            (ip("10.8.0.9"), None),
        ] {
            assert_eq!(of(choose(&[asked], own)), Err(Status::Denied), "{asked}");
        }
        let elsewhere = ip("10.8.0.2");
        assert_eq!(of(choose(&[], Some(elsewhere))), Err(Status::Denied));
        assert_eq!(
            of(choose(&[ip("10.9.0.8"), ip("10.9.0.9")], None)),
            Err(Status::Limit)
        );
    }

    #[test]
    fn resolvers_of_the_machine_alone_are_not_told() {
        let text = "# nameserver 9.9.9.9\nnameserver 127.0.0.53\nsearch corp\nnameserver 192.0.2.53\n\
                    nameserver fe80::1%eth0\nnameserver 2001:db8::53 \nnameserver\n";
        let expected: [IpAddr; 2] = [
            [192, 0, 2, 53].into(),
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53].into(),
        ];
        assert_eq!(resolvers(text), expected);
    }
}
