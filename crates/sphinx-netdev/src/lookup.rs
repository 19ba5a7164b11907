//! What the kernel knows about interfaces, ways and neighbours, for programs that send past it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name};

use crate::netlink::{Message, ROUTE};
use crate::netns::context;
use crate::nfnetlink::Values;
use crate::tun::index_and_mtu;

/// Bytes in front of the attributes of an interface (`struct ifinfomsg`), and of a neighbour (`struct ndmsg`).
const LINK: usize = 16;
const NEIGHBOUR: usize = 12;
/// States of a neighbour whose address can be used: reachable, stale, delay, probe, no ARP, permanent.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// Not in libc for every target.
const IFLA_NUM_RX_QUEUES: u16 = 32;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index of the interface.
    pub index: u32,
    /// Its MTU: the largest packet, in IP bytes.
    pub mtu: usize,
    /// Its Ethernet address; `None` if it is not Ethernet.
    pub address: Option<[u8; 6]>,
    /// Whether it is turned on.
    pub is_up: bool,
    /// Queues for what arrives that it may have, at most; it may use fewer.
    pub queues_max: u32,
    /// What kind of virtual interface it is, such as `veth`; `None` for a card.
    pub kind: Option<String>,
    /// Whether it is a port of a bridge.
    pub is_port: bool,
}

/// The interface of this name in the calling thread's namespace.
///
/// # Errors
///
/// `NotFound` or `ENODEV` if there is no such interface.
pub fn interface(name: &str) -> io::Result<Interface> {
    found(name).map_err(|error| context(&format!("interface {name}"), error))
}

/// The same, with the error as the kernel says it.
pub(crate) fn found(name: &str) -> io::Result<Interface> {
    let (index, mtu) = index_and_mtu(name)?;
    let mut fixed = [0; LINK];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = Message::new(libc::RTM_GETLINK, 0, &fixed).ask()?;
    let type_of = answer.get(2..).and_then(<[u8]>::first_chunk::<2>);
    let is_ethernet = type_of.map(|it| u16::from_ne_bytes(*it)) == Some(libc::ARPHRD_ETHER);
    let flags = answer.get(8..).and_then(<[u8]>::first_chunk::<4>);
    let flags = flags.map_or(0, |it| u32::from_ne_bytes(*it));
    let attributes = answer.get(LINK..).unwrap_or(&[]);
    let find = |bytes, kind| Values(bytes).find(|it| it.0 == kind).map(|it| it.1);
    let address = find(attributes, libc::IFLA_ADDRESS).and_then(|it| it.try_into().ok());
    let queues = find(attributes, IFLA_NUM_RX_QUEUES).and_then(<[u8]>::first_chunk::<4>);
    let info = find(attributes, libc::IFLA_LINKINFO).unwrap_or(&[]);
    let kind = find(info, libc::IFLA_INFO_KIND);
    let kind = kind.and_then(|it| it.split(|byte| *byte == 0).next());
    let is_port = find(info, libc::IFLA_INFO_SLAVE_KIND) == Some(b"bridge\0");
    Ok(Interface {
        is_port,
        index: index.cast_unsigned(),
        mtu,
        address: address.filter(|_| is_ethernet),
        is_up: flags & libc::IFF_UP as u32 != 0,
        queues_max: queues.map_or(1, |it| u32::from_ne_bytes(*it)).max(1),
        kind: kind.map(|it| String::from_utf8_lossy(it).into_owned()),
    })
}

/// The name of the interface with this number in the calling thread's namespace.
///
/// # Errors
///
/// `ENODEV` if there is none.
pub fn name(index: u32) -> io::Result<String> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(index_to_name(&socket, index)?)
}

/// How packets for an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The number of the interface.
    pub interface: u32,
    /// Who on the link gets them: a router, or whom they are for.
    pub next: IpAddr,
    /// The address that they come from unless another one is chosen.
    pub source: Option<IpAddr>,
}

/// The way to an address from the calling thread's namespace; `None` if it is this machine's own, or one for many.
/// `source`: the address that packets come from. `interface`: where they have to leave, of an address that is one of a link only.
///
/// # Errors
///
/// Those of netlink: `NetworkUnreachable` if there is none.
pub fn way(to: IpAddr, source: Option<IpAddr>, interface: Option<u32>) -> io::Result<Option<Way>> {
    let mut fixed = [0; ROUTE];
    let bytes = octets(to);
    fixed[0] = family(to);
    fixed[1] = (bytes.len() * 8) as u8;
    let source = source.filter(|source| family(*source) == family(to));
    if source.is_some() {
        fixed[2] = fixed[1];
    }
    let mut message = Message::new(libc::RTM_GETROUTE, 0, &fixed).with(libc::RTA_DST, &bytes);
    if let Some(source) = source {
        message = message.with(libc::RTA_SRC, &octets(source));
    }
    if let Some(index) = interface {
        message = message.with(libc::RTA_OIF, &index.to_ne_bytes());
    }
    let answer = message.ask()?;
    Ok(way_in(to, &answer))
}

fn way_in(to: IpAddr, answer: &[u8]) -> Option<Way> {
    let kind = *answer.get(7)?;
    if kind != libc::RTN_UNICAST {
        return None;
    }
    let mut way = Way {
        interface: 0,
        next: to,
        source: None,
    };
    for (kind, value) in Values(answer.get(ROUTE..)?) {
        match kind {
            libc::RTA_OIF => way.interface = u32::from_ne_bytes(*value.first_chunk()?),
            libc::RTA_GATEWAY => way.next = address(value)?,
            // A gateway of the other family: the family, and the address.
            libc::RTA_VIA => way.next = address(value.get(2..)?)?,
            libc::RTA_PREFSRC => way.source = address(value),
            _ => {}
        }
    }
    (way.interface != 0).then_some(way)
}

/// A network that is reached without a router, or an address of this machine's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The name of the interface.
    pub interface: String,
    /// The first address, and the bits that are common.
    pub network: (IpAddr, u8),
}

/// The networks that the calling thread's namespace is in, for one family of addresses, and behind them its own addresses. What is for half of all
/// addresses or more is no network, but leads to everything.
///
/// # Errors
///
/// Those of netlink.
pub fn attached(is_v6: bool) -> io::Result<Vec<Attached>> {
    let mut fixed = [0; ROUTE];
    fixed[0] = if is_v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut found = Vec::new();
    Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &fixed).list(|body| {
        // A kernel without IPv6 tells of all that it has.
        if body.first() == fixed.first() {
            found.extend(attached_in(body));
        }
    })?;
    found.sort_by_key(|route| route.is_own);
    // An interface may have been removed since the list was made.
    let named = found.into_iter().filter_map(|route| {
        Some(Attached {
            interface: name(route.interface).ok()?,
            network: route.network,
        })
    });
    Ok(named.collect())
}

#[derive(Debug, PartialEq, Eq)]
struct AttachedRoute {
    /// Whether it is an address of this machine.
    is_own: bool,
    interface: u32,
    network: (IpAddr, u8),
}

/// A route without a router, or to this machine itself; `None` if it is another one.
fn attached_in(body: &[u8]) -> Option<AttachedRoute> {
    let (length, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
    let (mut table, mut interface, mut to) = (u32::from(table), 0, None);
    for (kind, value) in Values(body.get(ROUTE..)?) {
        match kind {
            libc::RTA_TABLE => table = u32::from_ne_bytes(*value.first_chunk()?),
            libc::RTA_OIF => interface = u32::from_ne_bytes(*value.first_chunk()?),
            libc::RTA_DST => to = address(value),
            libc::RTA_GATEWAY | libc::RTA_VIA => return None,
            _ => {}
        }
    }
    let is_own = match kind {
        libc::RTN_LOCAL if table == u32::from(libc::RT_TABLE_LOCAL) => true,
        libc::RTN_UNICAST if table == u32::from(libc::RT_TABLE_MAIN) => false,
        _ => return None,
    };
    (length > 1 && interface != 0).then_some(AttachedRoute {
        is_own,
        interface,
        network: (to?, length),
    })
}

/// The Ethernet address of a neighbour, as far as the kernel knows it.
///
/// # Errors
///
/// Those of netlink, but that there is no such neighbour.
pub fn neighbour(interface: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let mut fixed = [0; NEIGHBOUR];
    fixed[0] = family(ip);
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    let asked = Message::new(libc::RTM_GETNEIGH, 0, &fixed)
        .with(NDA_DST, &octets(ip))
        .ask();
    match asked {
        Ok(answer) => Ok(neighbour_in(&answer)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn neighbour_in(answer: &[u8]) -> Option<[u8; 6]> {
    let state = u16::from_ne_bytes(*answer.get(8..)?.first_chunk()?);
    let mut values = Values(answer.get(NEIGHBOUR..)?);
    let (_, value) = values.find(|it| it.0 == NDA_LLADDR)?;
    value.try_into().ok().filter(|_| state & USABLE != 0)
}

fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_an_interface_and_leads_nowhere() {
        let lo = interface("lo").unwrap();
        assert!(lo.index > 0 && lo.address.is_none());
        assert_eq!(name(lo.index).unwrap(), "lo");
        assert_eq!(way(Ipv4Addr::LOCALHOST.into(), None, None).unwrap(), None);
        assert_eq!(
            neighbour(lo.index, Ipv4Addr::new(127, 9, 9, 9).into()).unwrap(),
            None
        );
        assert!(interface("no-such-if").is_err());
    }

    #[test]
    fn networks_without_a_router_are_those_that_the_machine_is_in() {
        let route = |length: u8, table: u8, kind: u8, more: &[(u16, [u8; 4])]| {
            let mut body = vec![0; ROUTE];
            (body[1], body[4], body[7]) = (length, table, kind);
            let to = [
                (libc::RTA_DST, [10, 9, 0, 0]),
                (libc::RTA_OIF, [3, 0, 0, 0]),
            ];
            for (kind, value) in to.iter().chain(more) {
                body.extend(8_u16.to_ne_bytes());
                body.extend(kind.to_ne_bytes());
                body.extend(value);
            }
            body
        };
        let (main, local) = (libc::RT_TABLE_MAIN, libc::RT_TABLE_LOCAL);
        let found = |length, is_own| {
            Some(AttachedRoute {
                is_own,
                interface: 3,
                network: ([10, 9, 0, 0].into(), length),
            })
        };
        let network = route(16, main, libc::RTN_UNICAST, &[]);
        assert_eq!(attached_in(&network), found(16, false));
        let own = route(32, local, libc::RTN_LOCAL, &[]);
        assert_eq!(attached_in(&own), found(32, true));
        let elsewhere = 7749_u32.to_ne_bytes();
        for other in [
            route(
                16,
                main,
                libc::RTN_UNICAST,
                &[(libc::RTA_GATEWAY, [10, 0, 0, 1])],
            ),
            route(16, main, libc::RTN_UNICAST, &[(libc::RTA_TABLE, elsewhere)]),
            route(16, main, libc::RTN_BLACKHOLE, &[]),
            route(32, local, libc::RTN_BROADCAST, &[]),
            // Half of all addresses, as tunnels lead them into themselves.
            route(1, main, libc::RTN_UNICAST, &[]),
        ] {
            assert_eq!(attached_in(&other), None, "{other:?}");
        }
        for len in 0..network.len() {
            assert_eq!(attached_in(&network[..len]), None);
        }
    }

    #[test]
    fn answers_that_are_cut_off_say_nothing() {
        let to = Ipv4Addr::new(192, 0, 2, 1).into();
        let mut answer = vec![0; ROUTE];
        answer[7] = libc::RTN_UNICAST;
        for (kind, value) in [
            (libc::RTA_OIF, [3, 0, 0, 0]),
            (libc::RTA_GATEWAY, [10, 0, 0, 1]),
        ] {
            answer.extend(8_u16.to_ne_bytes());
            answer.extend(kind.to_ne_bytes());
            answer.extend(value);
        }
        let way = way_in(to, &answer).unwrap();
        assert_eq!(way.next, IpAddr::from([10, 0, 0, 1]));
        for len in 0..answer.len() {
            if let Some(way) = way_in(to, &answer[..len]) {
                assert_eq!(way.next, to);
            }
            neighbour_in(&answer[..len]);
        }
    }
}
