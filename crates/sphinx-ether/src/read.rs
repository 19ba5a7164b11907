//! Reading frames that hold UDP datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use crate::{
    ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, Mac, Sums, UDP, UDP_BYTES, add_bytes, checksum,
    partial_checksum, pseudo_sum,
};

/// What a frame says that holds a whole UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Whose interface sent it.
    pub source: Mac,
    /// Where it comes from. An IPv6 address has no scope.
    pub remote: SocketAddr,
    /// Where it was sent to.
    pub local: SocketAddr,
    /// The two ECN bits.
    pub ecn: u8,
    /// Where the datagram is in the frame.
    pub payload: Range<usize>,
    /// What UDP's checksum says. One that is wrong is no datagram.
    pub checksum: Checksum,
}

/// What was found of UDP's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It fits.
    Right,
    /// There is none (IPv4 only).
    None,
    /// It covers the addresses only: the frame has not left this machine, and its sender left the rest to a card that
    /// there is none of.
    Partial,
}

/// Why a frame holds no datagram that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It is of another protocol, or has what the kernel sees to: options, extension headers, fragments, VLAN tags.
    Other,
    /// Its lengths contradict each other.
    Malformed,
    /// It was damaged on the way.
    Checksum,
}

impl Datagram {
    /// Whether a host on the network may have sent it. The kernel drops packets of others before a socket sees them: an answer would go to programs of this machine, who
    /// listen to nobody else, or to many. IPv4's addresses in IPv6's form are of no packet; who writes them seems to be somebody else.
    #[must_use]
    pub fn is_of_a_host(&self) -> bool {
        let ip = self.remote.ip();
        let is_possible = match ip {
            IpAddr::V4(ip) => ip.octets()[0] != 0 && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified() && ip.to_ipv4_mapped().is_none(),
        };
        is_possible && !ip.is_loopback() && !ip.is_multicast() && ip != self.local.ip()
    }

    /// Reads a frame, which may have padding at its end.
    ///
    /// # Errors
    ///
    /// [`Rejected`] says why it is none of ours.
    pub fn read(frame: &[u8]) -> Result<Self, Rejected> {
        Self::read_from_card(frame, Sums::default())
    }

    /// The same of a frame whose card has found these checksums right, which are not computed again. Of one that it has found wrong, or knows nothing of, they are:
    /// some cards take for wrong what is only left out.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn read_from_card(frame: &[u8], right: Sums) -> Result<Self, Rejected> {
        let source = *frame
            .get(6..)
            .and_then(<[u8]>::first_chunk)
            .ok_or(Rejected::Malformed)?;
        let kind = frame.get(12..ETHERNET_BYTES).ok_or(Rejected::Malformed)?;
        let packet = &frame[ETHERNET_BYTES..];
        match kind {
            [0x08, 0x00] => Self::read_v4(source, packet, right),
            [0x86, 0xdd] => Self::read_v6(source, packet, right),
            _ => Err(Rejected::Other),
        }
    }

    fn read_v4(source: Mac, packet: &[u8], right: Sums) -> Result<Self, Rejected> {
        let header: &[u8; IPV4_BYTES] = packet.first_chunk().ok_or(Rejected::Malformed)?;
        let [_, tos, l0, l1, _, _, f0, f1, _, protocol, ..] = *header;
        // More fragments, or not the first one.
        let is_fragment = f0 & 0x3f != 0 || f1 != 0;
        if header[0] != 0x45 || protocol != UDP || is_fragment {
            return Err(Rejected::Other);
        }
        if !right.ipv4 && checksum(add_bytes(0, header)) != [0; 2] {
            return Err(Rejected::Checksum);
        }
        let total = usize::from(u16::from_be_bytes([l0, l1]));
        let udp = packet.get(IPV4_BYTES..total).ok_or(Rejected::Malformed)?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let ips = (
            Ipv4Addr::new(a, b, c, d).into(),
            Ipv4Addr::new(e, f, g, h).into(),
        );
        let at = ETHERNET_BYTES + IPV4_BYTES;
        Self::read_udp(source, ips, tos & 3, (at, udp), right)
    }

    fn read_v6(source: Mac, packet: &[u8], right: Sums) -> Result<Self, Rejected> {
        let header: &[u8; IPV6_BYTES] = packet.first_chunk().ok_or(Rejected::Malformed)?;
        let [b0, b1, _, _, l0, l1, next, ..] = *header;
        if b0 >> 4 != 6 || next != UDP {
            return Err(Rejected::Other);
        }
        let total = IPV6_BYTES + usize::from(u16::from_be_bytes([l0, l1]));
        let udp = packet.get(IPV6_BYTES..total).ok_or(Rejected::Malformed)?;
        let address = |at: usize| -> IpAddr {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(octets).into()
        };
        // The traffic class is across two bytes.
        let ecn = b1 >> 4 & 3;
        let ips = (address(8), address(24));
        let at = ETHERNET_BYTES + IPV6_BYTES;
        Self::read_udp(source, ips, ecn, (at, udp), right)
    }

    fn read_udp(
        source: Mac,
        (from, to): (IpAddr, IpAddr),
        ecn: u8,
        (at, udp): (usize, &[u8]),
        right: Sums,
    ) -> Result<Self, Rejected> {
        let header: &[u8; UDP_BYTES] = udp.first_chunk().ok_or(Rejected::Malformed)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *header;
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        if len < UDP_BYTES {
            return Err(Rejected::Malformed);
        }
        let udp = udp.get(..len).ok_or(Rejected::Malformed)?;
        let pseudo = pseudo_sum(from, to, UDP, len);
        let found = match [c0, c1] {
            [0, 0] if from.is_ipv4() => Checksum::None,
            [0, 0] => return Err(Rejected::Checksum),
            _ if right.udp => Checksum::Right,
            _ if checksum(add_bytes(pseudo, udp)) == [0; 2] => Checksum::Right,
            written if partial_checksum(pseudo) == written => Checksum::Partial,
            _ => return Err(Rejected::Checksum),
        };
        Ok(Self {
            source,
            remote: SocketAddr::new(from, u16::from_be_bytes([s0, s1])),
            local: SocketAddr::new(to, u16::from_be_bytes([d0, d1])),
            ecn,
            payload: at + UDP_BYTES..at + len,
            checksum: found,
        })
    }
}
