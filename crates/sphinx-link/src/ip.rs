//! IP packets as bytes. All functions are total.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use crate::FlowKey;

/// The ECN codepoint "not ECN-capable transport".
pub(crate) const NOT_ECT: u8 = 0b00;
/// The ECN codepoint "congestion experienced".
pub(crate) const CE: u8 = 0b11;
/// "ECN-capable transport" of scalable flows (RFC 9331), and of all others.
pub(crate) const ECT_1: u8 = 0b01;
pub(crate) const ECT_0: u8 = 0b10;

/// Protocol numbers.
const ICMP: u8 = 1;
const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ICMP_V6: u8 = 58;

/// What hosts on one wire tell each other: solicitations and advertisements of routers and neighbours, and redirects (RFC 4861).
const NEIGHBOUR_DISCOVERY: RangeInclusive<u8> = 133..=137;

/// Type of an IPv6 fragment header.
const FRAGMENT: u8 = 44;
/// IPv6 extension headers that say their length: hop by hop, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Extension headers of one packet that are skipped at most.
const EXTENSIONS_MAX: usize = 8;

/// Flips one bit of a slice; positions behind its end change nothing.
pub(crate) fn flip(bytes: &mut [u8], bit: u64) {
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

/// What follows the fixed IP header; empty for anything that is not IP.
pub(crate) fn body(packet: &[u8]) -> &[u8] {
    let header = match packet.first().map(|byte| byte >> 4) {
        Some(4) => 20,
        Some(6) => 40,
        _ => packet.len(),
    };
    packet.get(header..).unwrap_or(&[])
}

/// Sets CE in an IP header and repairs the IPv4 header checksum (RFC 1624); false if the packet is
/// not ECN-capable or not IP.
pub fn mark_ce(packet: &mut [u8]) -> bool {
    let is_capable = ecn(packet) != NOT_ECT;
    if is_capable {
        set_ecn(packet, CE);
    }
    is_capable
}

/// The ECN field of an IP packet; 0 for anything that is not IP.
pub(crate) fn ecn(packet: &[u8]) -> u8 {
    match version(packet) {
        Some(4) => packet[1] & CE,
        Some(6) => (packet[1] >> 4) & CE,
        _ => NOT_ECT,
    }
}

/// Changes the ECN field, and the IPv4 header checksum with it; nothing if the packet is not IP.
pub(crate) fn set_ecn(packet: &mut [u8], ecn: u8) {
    let Some(version) = version(packet) else {
        return;
    };
    let ecn = ecn & CE;
    if version == 6 {
        packet[1] = packet[1] & !(CE << 4) | ecn << 4;
        return;
    }
    let old = u16::from_be_bytes([packet[0], packet[1]]);
    packet[1] = packet[1] & !CE | ecn;
    let new = u16::from_be_bytes([packet[0], packet[1]]);
    let checksum = u16::from_be_bytes([packet[10], packet[11]]);
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Whether an IP packet is addressed to a single host; false for anything that is not IP.
pub(crate) fn goes_to_one(packet: &[u8]) -> bool {
    match version(packet) {
        Some(4) => packet[16] < 224,
        Some(6) => packet[24] != 0xff,
        _ => false,
    }
}

/// Whether an IPv6 packet is one by which hosts on one wire find each other, as ARP does for IPv4. Most of the answers go to a single host.
pub(crate) fn is_neighbour_discovery(packet: &[u8]) -> bool {
    version(packet) == Some(6)
        && carried_v6(packet).is_some_and(|it| {
            let kind = it.transport.first();
            it.protocol == ICMP_V6 && kind.is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind))
        })
}

/// How long an IP packet says that it is, if that is all or a part of what is here: a frame may have been filled up behind it.
pub(crate) fn length(packet: &[u8]) -> Option<usize> {
    let field = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let length = match version(packet)? {
        4 => field(2),
        // 0 is also what packets that are too long for the field say.
        _ => match field(4) {
            0 => return None,
            payload => 40 + payload,
        },
    };
    (20..=packet.len()).contains(&length).then_some(length)
}

/// The version of an IP packet that has a whole header.
pub(crate) fn version(packet: &[u8]) -> Option<u8> {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 => Some(4),
        Some(6) if packet.len() >= 40 => Some(6),
        _ => None,
    }
}

/// The differentiated services codepoint; 0 for anything that is not IP.
pub(crate) fn dscp(packet: &[u8]) -> u8 {
    match *packet {
        [version, class, ..] if version >> 4 == 4 => class >> 2,
        [version, class, ..] if version >> 4 == 6 => (version & 15) << 2 | class >> 6,
        _ => 0,
    }
}

/// What an IP packet carries.
struct Carried<'a> {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    /// The transport header and what follows; empty in fragments behind the first.
    transport: &'a [u8],
}

/// The flow of an IP packet; ports are 0 in fragments behind the first.
pub(crate) fn flow(packet: &[u8]) -> FlowKey {
    let Some(carried) = carried(packet) else {
        return FlowKey::default();
    };
    let ports = match (carried.protocol, carried.transport) {
        (TCP | UDP, &[a, b, c, d, ..]) => [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])],
        _ => [0, 0],
    };
    FlowKey {
        protocol: carried.protocol,
        source: SocketAddr::new(carried.source, ports[0]),
        destination: SocketAddr::new(carried.destination, ports[1]),
    }
}

/// The sequence number of a TCP segment or of an ICMP echo.
pub(crate) fn sequence(packet: &[u8]) -> Option<u32> {
    let carried = carried(packet)?;
    match (carried.protocol, carried.transport) {
        (TCP, &[_, _, _, _, a, b, c, d, ..]) => Some(u32::from_be_bytes([a, b, c, d])),
        (ICMP, &[0 | 8, _, _, _, _, _, a, b, ..])
        | (ICMP_V6, &[128 | 129, _, _, _, _, _, a, b, ..]) => {
            Some(u32::from(u16::from_be_bytes([a, b])))
        }
        _ => None,
    }
}

/// Whether a TCP segment has ACK, no other flags but those of ECN, and no data.
pub(crate) fn is_pure_ack(packet: &[u8]) -> bool {
    const HEADER_BYTES: usize = 20;
    const ACK: u8 = 0x10;
    const ECN: u8 = 0xc0;
    let Some(carried) = carried(packet).filter(|it| it.protocol == TCP) else {
        return false;
    };
    let (Some(words), Some(flags)) = (carried.transport.get(12), carried.transport.get(13)) else {
        return false;
    };
    let header = usize::from(words >> 4) * 4;
    flags & !ECN == ACK && header >= HEADER_BYTES && carried.transport.len() == header
}

fn carried(packet: &[u8]) -> Option<Carried<'_>> {
    match packet.first()? >> 4 {
        4 => carried_v4(packet),
        6 => carried_v6(packet),
        _ => None,
    }
}

fn carried_v4(packet: &[u8]) -> Option<Carried<'_>> {
    let header = packet.first_chunk::<20>()?;
    let address = |at: usize| Some(Ipv4Addr::from(*header[at..].first_chunk::<4>()?).into());
    let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    let length = usize::from(header[0] & 15) * 4;
    let transport = packet.get(length.max(20)..).unwrap_or(&[]);
    Some(Carried {
        protocol: header[9],
        source: address(12)?,
        destination: address(16)?,
        transport: if is_later_fragment { &[] } else { transport },
    })
}

fn carried_v6(packet: &[u8]) -> Option<Carried<'_>> {
    let header = packet.first_chunk::<40>()?;
    let address = |at: usize| Some(Ipv6Addr::from(*header[at..].first_chunk::<16>()?).into());
    let (mut protocol, mut transport) = (header[6], &packet[40..]);
    for _ in 0..EXTENSIONS_MAX {
        transport = match *transport {
            [next, _, high, low, _, _, _, _, ref rest @ ..] if protocol == FRAGMENT => {
                protocol = next;
                let is_later = u16::from_be_bytes([high, low]) & 0xfff8 != 0;
                if is_later { &[] } else { rest }
            }
            [next, length, ..] if EXTENSIONS.contains(&protocol) => {
                protocol = next;
                let length = 8 * (usize::from(length) + 1);
                transport.get(length..).unwrap_or(&[])
            }
            _ => break,
        };
    }
    Some(Carried {
        protocol,
        source: address(8)?,
        destination: address(24)?,
        transport,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, fragment: u16, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x46; 24];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        packet.extend(transport);
        packet
    }

    fn v6(next: u8, rest: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[6], packet[23], packet[39]) = (0x60, next, 1, 2);
        packet.extend(rest.concat());
        packet
    }

    const PORTS: [u8; 8] = [0x9c, 0x40, 0, 80, 1, 2, 3, 4];

    #[test]
    fn flows_of_ipv4() {
        let key = flow(&v4(TCP, 0x4000, &PORTS));
        assert_eq!(key.protocol, 6);
        assert_eq!(key.source.to_string(), "10.77.0.1:40000");
        assert_eq!(key.destination.to_string(), "10.77.0.2:80");
        assert_eq!(flow(&v4(TCP, 0x2001, &PORTS)).source.port(), 0);
        assert_eq!(flow(&v4(ICMP, 0, &PORTS)).source.port(), 0);
        assert_eq!(flow(&v4(UDP, 0, &PORTS[..3])).source.port(), 0);
        for broken in [&[][..], &[0x45; 19], &[0x55; 40]] {
            assert_eq!(flow(broken), FlowKey::default());
        }
    }

    #[test]
    fn flows_of_ipv6_behind_extensions() {
        let options = [UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let first = [UDP, 0, 0, 1, 0, 0, 0, 7];
        let later = [UDP, 0, 0, 9, 0, 0, 0, 7];
        for (packet, port) in [
            (v6(UDP, &[&PORTS]), 80),
            (v6(0, &[&options, &PORTS]), 80),
            (v6(FRAGMENT, &[&first, &PORTS]), 80),
            (v6(FRAGMENT, &[&later, &PORTS]), 0),
            (v6(0, &[&options[..9]]), 0),
        ] {
            let key = flow(&packet);
            assert_eq!((key.protocol, key.destination.port()), (UDP, port));
            assert_eq!(key.destination.ip().to_string(), "::2");
        }
    }

    #[test]
    fn packets_to_one_host_to_many_and_between_neighbours() {
        assert!(goes_to_one(&v4(UDP, 0, &PORTS)));
        let mut group = v4(UDP, 0, &PORTS);
        group[16] = 224;
        assert!(!goes_to_one(&group));
        let mut all = v6(ICMP_V6, &[&[136; 24]]);
        assert!(goes_to_one(&all) && is_neighbour_discovery(&all));
        all[24] = 0xff;
        assert!(!goes_to_one(&all));
        let options = [ICMP_V6, 0, 0, 0, 0, 0, 0, 0];
        assert!(is_neighbour_discovery(&v6(0, &[&options, &[135; 24]])));
        for other in [
            v6(ICMP_V6, &[&[128; 8]]),
            v6(ICMP_V6, &[]),
            v6(UDP, &[&[135; 8]]),
            v4(ICMP_V6, 0, &[135; 24]),
        ] {
            assert!(!is_neighbour_discovery(&other));
        }
        for broken in [&[][..], &[0x45; 19], &[0x60; 39], &[0x42; 2]] {
            assert!(!goes_to_one(broken) && !is_neighbour_discovery(broken));
        }
    }

    #[test]
    fn a_packet_says_how_long_it_is() {
        let mut padded = v4(UDP, 0, &[0; 22]);
        padded[2..4].copy_from_slice(&[0, 40]);
        assert_eq!((padded.len(), length(&padded)), (46, Some(40)));
        for wrong in [0, 19, 47] {
            padded[3] = wrong;
            assert_eq!(length(&padded), None);
        }
        let mut padded = v6(UDP, &[&[0; 12]]);
        assert_eq!(length(&padded), None);
        padded[5] = 8;
        assert_eq!(length(&padded), Some(48));
        padded[5] = 13;
        assert_eq!(length(&padded), None);
        assert_eq!(length(&[0x45; 19]), None);
    }

    #[test]
    fn sequences() {
        assert_eq!(sequence(&v4(TCP, 0, &PORTS)), Some(0x0102_0304));
        assert_eq!(sequence(&v4(UDP, 0, &PORTS)), None);
        let echo = [8, 0, 0, 0, 0, 9, 1, 5];
        assert_eq!(sequence(&v4(ICMP, 0, &echo)), Some(0x0105));
        assert_eq!(sequence(&v6(ICMP_V6, &[&[128], &echo[1..]])), Some(0x0105));
        assert_eq!(sequence(&[]), None);
    }
}
