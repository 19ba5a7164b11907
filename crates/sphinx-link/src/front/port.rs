//! The two kinds of interfaces that a link can join.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use sphinx_netdev::{ethernet::Ethernet, tun::Tun};

use super::pool::{Pool, PooledPacket};
use crate::ip;

/// What a frame says that it carries: its EtherType, with the version of such packets.
const CARRIED: [([u8; 2], u8); 2] = [([0x08, 0x00], 4), ([0x86, 0xdd], 6)];

/// An interface.
#[derive(Debug)]
pub(super) enum Port {
    /// It carries IP packets of the namespace that it was made in.
    Tun(Tun),
    /// It carries frames, which may be of other machines.
    Ethernet(Ethernet),
}

impl Port {
    /// Takes what has arrived next: one packet, or several that the kernel has joined. `NotFound` if the interface is gone.
    pub(super) fn receive(&mut self, pool: &Pool, into: &mut Vec<PooledPacket>) -> io::Result<()> {
        match self {
            Port::Tun(tun) => {
                let mut packet = pool.take();
                let length = tun.receive(packet.buffer())?;
                packet.set_length(length);
                into.push(packet);
                Ok(())
            }
            Port::Ethernet(interface) => {
                let mut too_long = false;
                interface.receive(|frame| match pool.copy(frame) {
                    Some(packet) => into.push(packet),
                    None => too_long = true,
                })?;
                match too_long {
                    true => Err(io::ErrorKind::InvalidData.into()),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether it has been turned off, and may be gone without a word.
    pub(super) fn is_off(&self) -> bool {
        match self {
            Port::Tun(_) => false,
            Port::Ethernet(interface) => interface.is_off(),
        }
    }

    pub(super) fn send(&self, packet: &PooledPacket) -> io::Result<()> {
        match self {
            Port::Tun(tun) => tun.send(packet.frame()),
            Port::Ethernet(interface) => interface.send(packet.frame()),
        }
    }

    /// Whether what has arrived here goes through the link: IP to a single host, but not that by which hosts on one wire find each
    /// other, which would fail with the link.
    pub(super) fn is_for_the_link(&self, packet: &PooledPacket) -> bool {
        let bytes = packet.bytes();
        match self {
            Port::Tun(_) => ip::goes_to_one(bytes),
            Port::Ethernet(_) => {
                let frame = packet.frame();
                let kind = frame.get(12..14).and_then(|it| it.try_into().ok());
                // The lowest bit of the first byte marks group and broadcast addresses.
                frame.first().is_some_and(|to| to & 1 == 0)
                    && kind
                        .zip(ip::version(bytes))
                        .is_some_and(|it| CARRIED.contains(&it))
                    && ip::goes_to_one(bytes)
                    && !ip::is_neighbour_discovery(bytes)
            }
        }
    }

    /// Whether what the link does not handle (ARP, packets to many) has to reach the other side
    /// nevertheless.
    pub(super) fn passes_all(&self) -> bool {
        matches!(self, Port::Ethernet(_))
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Port::Tun(tun) => tun.as_fd(),
            Port::Ethernet(interface) => interface.as_fd(),
        }
    }
}
