//! IP packets sent by the ports of a bridge.

use std::{collections::HashMap, io};

use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType},
};

use crate::ethernet::{HEADER_BYTES, bind_to_send};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Ports of which a socket is kept.
const PORTS_MAX: usize = 64;

/// How a packet leaves a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The number of the port's interface.
    pub port: u32,
    /// Where the frame seems to come from.
    pub source: Mac,
    /// Ethernet address that the frame goes to.
    pub destination: Mac,
}

/// Sends IP packets by ports of a bridge, past the bridge and the packet filter.
#[derive(Debug, Default)]
pub struct FrameSender {
    sockets: HashMap<u32, OwnedFd>,
    frame: Vec<u8>,
}

impl FrameSender {
    /// Sends a packet in an Ethernet frame, in the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// A port that is off or gone, or whose queue is full; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn send(&mut self, way: &Way, packet: &[u8]) -> io::Result<()> {
        if !self.sockets.contains_key(&way.port) {
            if self.sockets.len() >= PORTS_MAX
                && let Some(port) = self.sockets.keys().next().copied()
            {
                self.sockets.remove(&port);
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // Without a protocol nothing ever comes in by it.
            let socket =
                rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
            bind_to_send(&socket, way.port.cast_signed())?;
            // Without that right the usual size has to do.
            let _ = super::make_room(&socket);
            self.sockets.insert(way.port, socket);
        }
        let protocol: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
            Some(4) => [0x08, 0x00],
            Some(6) => [0x86, 0xdd],
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.frame.clear();
        self.frame.reserve(HEADER_BYTES + packet.len());
        self.frame.extend(way.destination);
        self.frame.extend(way.source);
        self.frame.extend(protocol);
        self.frame.extend(packet);
        let sent = rustix::net::send(&self.sockets[&way.port], &self.frame, SendFlags::empty());
        // A port that was removed does not come back to its socket. Of any other trouble it recovers; and to close it takes the kernel many
        // milliseconds, in which the caller does nothing else.
        if sent == Err(Errno::NXIO) {
            self.sockets.remove(&way.port);
        }
        Ok(sent.map(drop)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_refuses_costs_no_socket() {
        let loopback = Way {
            port: 1,
            source: [0; 6],
            destination: [0; 6],
        };
        // Longer than any packet that the port takes.
        let mut packet = vec![0; 1 << 17];
        packet[0] = 0x45;
        let mut sender = FrameSender::default();
        let error = sender.send(&loopback, &packet).expect_err("too long");
        if error.kind() == io::ErrorKind::PermissionDenied {
            return sphinx_testing::skipped!("needs CAP_NET_RAW");
        }
        assert_eq!(sender.sockets.len(), 1, "{error}");
    }
}
