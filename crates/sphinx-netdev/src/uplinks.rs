//! Interfaces by which everything is reached: those with a default route in the main table, tunnels left out; and when they change.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink};

use crate::lookup::{interface, name};
use crate::netlink::{Message, ROUTE};
use crate::nfnetlink::Values;

/// Groups of messages: interfaces, and addresses and routes of both families.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32;
/// Groups that tell of changed rules, of both families.
const RULE_GROUPS: u32 =
    (1 << (libc::RTNLGRP_IPV4_RULE - 1)) | (1 << (libc::RTNLGRP_IPV6_RULE - 1));
/// Flags of a route that leads nowhere at present: its interface is gone, or has no carrier.
const NOWHERE: u32 = 1 | 16;
/// Bytes in front of the attributes of one of several next hops (`struct rtnexthop`): length, flags, weight, interface.
const HOP: usize = 8;
/// Kinds of interfaces whose packets leave by another one.
const TUNNELS: [&str; 16] = [
    "amt",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "ip6gre",
    "ip6tnl",
    "ipip",
    "ovpn",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "xfrm",
];

/// An interface with a default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Index of the interface.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The least metric of its default routes: routing prefers a smaller one.
    pub metric: u32,
}

/// The uplinks of the calling thread's namespace, for one family of addresses, in the order in which routing prefers them.
///
/// # Errors
///
/// Those of netlink.
pub fn uplinks(is_v6: bool) -> io::Result<Vec<Uplink>> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let mut fixed = [0; ROUTE];
    fixed[0] = family as u8;
    let mut found: Vec<(u32, u32)> = Vec::new();
    Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &fixed).list(|body| {
        // A kernel without IPv6 tells of all that it has.
        if body.first() != fixed.first() {
            return;
        }
        for (index, metric) in default_routes_in(body).into_iter().flatten() {
            match found.iter_mut().find(|known| known.0 == index) {
                Some(known) => known.1 = known.1.min(metric),
                None => found.push((index, metric)),
            }
        }
    })?;
    found.sort_by_key(|&(index, metric)| (metric, index));
    // An interface may have gone since it was listed.
    let uplinks = found.into_iter().filter_map(|(index, metric)| {
        let name = name(index).ok()?;
        let described = interface(&name).ok()?;
        let is_tunnel = (described.kind.as_deref()).is_some_and(|kind| TUNNELS.contains(&kind));
        (described.is_up && !is_tunnel).then_some(Uplink {
            index,
            name,
            metric,
        })
    });
    Ok(uplinks.collect())
}

/// The interfaces of a default route, with its metric; `None` if it is none, or leads nowhere.
fn default_routes_in(body: &[u8]) -> Option<Vec<(u32, u32)>> {
    let (length, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
    let flags = u32::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let mut table = u32::from(table);
    let (mut metric, mut interfaces) = (0, Vec::new());
    for (kind, value) in Values(body.get(ROUTE..)?) {
        let number = value.first_chunk().map(|it| u32::from_ne_bytes(*it));
        match kind {
            libc::RTA_TABLE => table = number?,
            libc::RTA_PRIORITY => metric = number?,
            libc::RTA_OIF if flags & NOWHERE == 0 => interfaces.push(number?),
            libc::RTA_MULTIPATH => interfaces.extend(next_hops(value)),
            _ => {}
        }
    }
    let is_default =
        length == 0 && kind == libc::RTN_UNICAST && table == u32::from(libc::RT_TABLE_MAIN);
    is_default.then(|| {
        interfaces
            .into_iter()
            .map(|index| (index, metric))
            .collect()
    })
}

/// The interfaces of several next hops that lead anywhere.
fn next_hops(bytes: &[u8]) -> Vec<u32> {
    let (mut bytes, mut interfaces) = (bytes, Vec::new());
    while let Some(hop) = bytes.first_chunk::<HOP>() {
        let [a, b, flags, _, index @ ..] = *hop;
        if u32::from(flags) & NOWHERE == 0 {
            interfaces.push(u32::from_ne_bytes(index));
        }
        let length = usize::from(u16::from_ne_bytes([a, b])).max(HOP);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    interfaces
}

/// Readable when interfaces, addresses or routes of a namespace may have changed.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Listens from now on, in the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Those of netlink.
    pub fn open() -> io::Result<Changes> {
        Changes::of(GROUPS)
    }

    /// Listens from now on, for changes of rules too.
    ///
    /// # Errors
    ///
    /// As [`open`](Changes::open).
    pub fn with_rules() -> io::Result<Changes> {
        Changes::of(GROUPS | RULE_GROUPS)
    }

    fn of(groups: u32) -> io::Result<Changes> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol `None` is 0, NETLINK_ROUTE.
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Changes(socket))
    }

    /// Takes what has been told so far, so that only what comes later is told of again.
    pub fn clear(&self) {
        let mut buffer = [0; 1 << 13];
        loop {
            match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                // More was told than there was room for: something has changed.
                Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes
    }

    fn route(length: u8, table: u8, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![
            libc::AF_INET as u8,
            length,
            0,
            0,
            table,
            0,
            0,
            libc::RTN_UNICAST,
        ];
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn default_routes_are_told_from_others() {
        let (main, local) = (libc::RT_TABLE_MAIN, libc::RT_TABLE_LOCAL);
        let via = |index: u32| attribute(libc::RTA_OIF, &index.to_ne_bytes());
        let metric = attribute(libc::RTA_PRIORITY, &600_u32.to_ne_bytes());
        let whole = route(0, main, 0, &[via(3), metric.clone()]);
        assert_eq!(default_routes_in(&whole), Some(vec![(3, 600)]));
        for cut in 0..whole.len() {
            default_routes_in(&whole[..cut]);
        }
        assert_eq!(default_routes_in(&route(24, main, 0, &[via(3)])), None);
        assert_eq!(default_routes_in(&route(0, local, 0, &[via(3)])), None);
        let elsewhere = attribute(libc::RTA_TABLE, &7749_u32.to_ne_bytes());
        assert_eq!(
            default_routes_in(&route(0, main, 0, &[via(3), elsewhere])),
            None
        );
        // Without a carrier.
        assert_eq!(
            default_routes_in(&route(0, main, 16, &[via(3)])),
            Some(vec![])
        );
        let hop = |flags, index: u32| [&[8, 0, flags, 0][..], &index.to_ne_bytes()].concat();
        let hops = attribute(
            libc::RTA_MULTIPATH,
            &[hop(0, 4), hop(16, 5), hop(0, 6)].concat(),
        );
        let several = route(0, main, 0, &[hops, metric]);
        assert_eq!(default_routes_in(&several), Some(vec![(4, 600), (6, 600)]));
        for cut in 0..several.len() {
            default_routes_in(&several[..cut]);
        }
    }
}
