//! TCP segments: whose they are, turned round, refused. Everything here is total.

use std::net::{IpAddr, SocketAddr};

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};
use sphinx_netdev::header::{ACK, FIN, RST, SYN};

use super::packet::{self, be16, icmp_v4, icmp_v6};

/// TTL, or hop limit, of packets in the name of routers and of hosts that refuse.
const HOPS: u8 = 64;

/// What a TCP packet says of its connection. It is whole: no fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    flags: u8,
    /// Where the TCP header begins in the packet.
    transport: usize,
    /// The sequence number behind this segment.
    next: u32,
}

/// Why there is no way to where a connection was to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Network,
    Host,
}

impl Segment {
    /// The segment that a packet holds; `None` for everything else.
    pub(crate) fn of(packet: &[u8]) -> Option<Self> {
        let ends = packet::ends(packet)?;
        let (transport, _) = packet::tcp(packet)?;
        let is_fragment = ends.source.is_ipv4() && be16(packet, 6) & 0x3fff != 0;
        let header = packet.get(transport..)?.first_chunk::<20>()?;
        let length = usize::from(header[12] >> 4) * 4;
        let payload = packet.len().checked_sub(transport + length)?;
        if is_fragment || length < 20 {
            return None;
        }
        let flags = header[13];
        let takes = [SYN, FIN].iter().filter(|flag| flags & **flag != 0);
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let next = sequence.wrapping_add(payload as u32 + takes.count() as u32);
        Some(Self {
            source: SocketAddr::new(ends.source, be16(header, 0)),
            destination: SocketAddr::new(ends.destination, be16(header, 2)),
            flags,
            transport,
            next,
        })
    }

    /// Whether the segment asks for a connection (SYN).
    pub(crate) fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Whether the segment grants a connection (SYN and ACK).
    pub(crate) fn grants(&self) -> bool {
        self.flags & (SYN | ACK | RST) == SYN | ACK
    }

    /// Whether the segment refuses or breaks a connection (RST).
    pub(crate) fn resets(&self) -> bool {
        self.flags & RST != 0
    }

    /// Has its packet go from the destination to the source, with these ports. What a checksum says of addresses stays as it is: their sum is the same.
    pub(crate) fn turn(
        &self,
        packet: &mut [u8],
        (source, destination): (u16, u16),
        has_checksum: bool,
    ) {
        let (addresses, len) = match self.source.ip() {
            IpAddr::V4(_) => (12, 4),
            IpAddr::V6(_) => (8, 16),
        };
        let (first, second) = packet[addresses..addresses + 2 * len].split_at_mut(len);
        first.swap_with_slice(second);
        let header = &mut packet[self.transport..];
        for (at, port) in [(0, source), (2, destination)] {
            if has_checksum {
                let checksum = packet::updated(be16(header, 16), (be16(header, at), port), false);
                header[16..18].copy_from_slice(&checksum.to_be_bytes());
            }
            header[at..at + 2].copy_from_slice(&port.to_be_bytes());
        }
    }

    /// What a host without a listener says to it (RFC 9293, 3.10.7.1).
    pub(crate) fn refused(&self) -> Option<Vec<u8>> {
        let (from, to) = (self.destination, self.source);
        let mut out = Vec::new();
        let written = match (from.ip(), to.ip()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                PacketBuilder::ipv4(own.octets(), other.octets(), HOPS)
                    .tcp(from.port(), to.port(), 0, 0)
                    .rst()
                    .ack(self.next)
                    .write(&mut out, &[])
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                PacketBuilder::ipv6(own.octets(), other.octets(), HOPS)
                    .tcp(from.port(), to.port(), 0, 0)
                    .rst()
                    .ack(self.next)
                    .write(&mut out, &[])
            }
            _ => return None,
        };
        written.ok().map(|()| out)
    }

    /// What a router says to it that has no way there; `packet` is its own.
    pub(crate) fn unreachable(&self, packet: &[u8], what: Unreachable) -> Option<Vec<u8>> {
        match (self.destination.ip(), self.source.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let what = Icmpv4Type::DestinationUnreachable(match what {
                    Unreachable::Network => DestUnreachableHeader::Network,
                    Unreachable::Host => DestUnreachableHeader::Host,
                });
                icmp_v4((from, to), what, packet)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let what = Icmpv6Type::DestinationUnreachable(match what {
                    Unreachable::Network => DestUnreachableCode::NoRoute,
                    Unreachable::Host => DestUnreachableCode::Address,
                });
                icmp_v6((from, to), what, packet)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetHeaders, PacketHeaders, TcpHeader, TransportHeader};

    use super::*;

    fn built(ipv4: bool, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match ipv4 {
            true => PacketBuilder::ipv4([10, 9, 0, 2], [192, 0, 2, 1], 64)
                .tcp_header(header.clone())
                .write(&mut out, payload),
            false => PacketBuilder::ipv6([1; 16], [2; 16], 64)
                .tcp_header(header.clone())
                .write(&mut out, payload),
        }
        .expect("built");
        out
    }

    fn syn() -> TcpHeader {
        let mut header = TcpHeader::new(40_000, 443, u32::MAX, 1000);
        header.syn = true;
        header
    }

    /// Its TCP header, once all checksums are right.
    fn checked(packet: &[u8]) -> TcpHeader {
        let headers = PacketHeaders::from_ip_slice(packet).expect("a packet");
        let Some(TransportHeader::Tcp(tcp)) = headers.transport else {
            panic!("no TCP in {packet:?}");
        };
        let payload = headers.payload.slice();
        let sum = match headers.net.expect("IP") {
            NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
                tcp.calc_checksum_ipv4(&ip, payload)
            }
            NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, payload),
            NetHeaders::Arp(_) => panic!("no IP"),
        };
        assert_eq!(sum, Ok(tcp.checksum));
        tcp
    }

    #[test]
    fn a_segment_is_turned_round_and_its_checksums_hold() {
        for ipv4 in [true, false] {
            let mut packet = built(ipv4, &syn(), b"early");
            let before = Segment::of(&packet).expect("a segment");
            assert!(before.opens() && !before.grants() && !before.resets());
            before.turn(&mut packet, (7, 65_535), true);
            let tcp = checked(&packet);
            assert_eq!((tcp.source_port, tcp.destination_port), (7, 65_535));
            let after = Segment::of(&packet).expect("a segment");
            let ips = |segment: Segment| (segment.source.ip(), segment.destination.ip());
            assert_eq!((ips(before).1, ips(before).0), ips(after));
        }
    }

    #[test]
    fn a_checksum_of_addresses_alone_stays() {
        let mut packet = built(true, &syn(), b"");
        let sum = packet[36..38].to_vec();
        let segment = Segment::of(&packet).expect("a segment");
        segment.turn(&mut packet, (1, 2), false);
        assert_eq!(packet[36..38], sum);
    }

    #[test]
    fn refusals_go_back_to_who_has_asked() {
        for ipv4 in [true, false] {
            let packet = built(ipv4, &syn(), b"early");
            let segment = Segment::of(&packet).expect("a segment");
            let reset = segment.refused().expect("a reset");
            let tcp = checked(&reset);
            // The largest number, the SYN and five bytes.
            assert!(tcp.rst && tcp.ack && tcp.acknowledgment_number == 5);
            let answer = Segment::of(&reset).expect("a segment");
            assert_eq!(
                (answer.source, answer.destination),
                (segment.destination, segment.source)
            );
            for what in [Unreachable::Network, Unreachable::Host] {
                let answer = segment.unreachable(&packet, what).expect("an answer");
                let ends = packet::ends(&answer).expect("ends");
                assert_eq!(ends.source, segment.destination.ip());
                let headers = PacketHeaders::from_ip_slice(&answer).expect("a packet");
                assert_eq!(headers.payload.slice(), packet);
            }
        }
    }

    #[test]
    fn fragments_and_what_is_cut_off_are_none() {
        let mut packet = built(true, &syn(), b"early");
        for len in 0..packet.len() {
            assert_eq!(Segment::of(&packet[..len]), None);
        }
        packet[6] = 0x20;
        assert_eq!(Segment::of(&packet), None);
        let mut other = built(false, &syn(), b"");
        // A header that is said to be longer than the packet.
        other[52] = 0xf0;
        assert_eq!(Segment::of(&other), None);
    }
}
