//! A link between interfaces that are made for it in namespaces that exist: for paths of several hops.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sphinx_netdev::{
    netns::Namespace,
    tun::{MTU_MAX, Tun, TunConfig},
};

use super::{FrontError, LinkThread, Observer, port::Port, thread::Guests};
use crate::LinkConfig;

/// An interface to be made.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// The namespace in which the interface is made.
    pub namespace: &'a Namespace,
    /// Its name, 1 to 15 bytes; there must be none of this name yet.
    pub name: &'a str,
    /// Its IPv4 address and the length of its prefix.
    pub ipv4: (Ipv4Addr, u8),
    /// Its IPv6 address and the length of its prefix, where the kernel has IPv6.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// Its MTU in bytes.
    pub mtu: usize,
    /// Packets that the kernel may keep while the link's thread is busy.
    pub queue_packets: u32,
}

impl Interface<'_> {
    pub(super) fn open(&self) -> io::Result<Tun> {
        let ipv4 = (IpAddr::V4(self.ipv4.0), self.ipv4.1);
        let ipv6 = self.ipv6.map(|(address, prefix)| (address.into(), prefix));
        let config = TunConfig {
            name: self.name.to_owned(),
            mtu: self.mtu,
            queue_packets: self.queue_packets,
            addresses: [ipv4].into_iter().chain(ipv6).collect(),
        };
        self.namespace.run(|| Tun::open(&config))?
    }
}

/// Joins two interfaces, which are made for it and disappear with it. `links` are from left to right and back.
///
/// # Errors
///
/// See [`FrontError`]. Nothing remains of what had been created.
pub fn between(
    [left, right]: [&Interface<'_>; 2],
    links: [LinkConfig; 2],
    observer: Option<Box<dyn Observer>>,
) -> Result<LinkThread, FrontError> {
    let mtu = left.mtu.max(right.mtu);
    if mtu > MTU_MAX {
        return Err(FrontError::Mtu(mtu));
    }
    let ports = [left.open()?, right.open()?].map(Port::Tun);
    LinkThread::start(ports, links, 0, mtu, Guests::seeing(observer))
}
