//! What a link carries.

use std::net::SocketAddr;

use crate::{FlowKey, ip};

/// Bytes of an IPv4 and a UDP header.
const UDP_OVERHEAD_V4: usize = 28;
/// Bytes of an IPv6 and a UDP header.
const UDP_OVERHEAD_V6: usize = 48;

/// A packet as a link sees it.
///
/// Implement it for a simulator's own packet type; [`Datagram`] and [`IpPacket`] serve most uses.
pub trait Packet: Sized {
    /// Length in bytes at the IP layer, headers included. Rates, queues and MTU count these bytes.
    fn ip_len(&self) -> usize;

    /// The ECN field: 0 not ECN-capable, 1 ECT(1), 2 ECT(0), 3 CE; 0 of what has none.
    fn ecn(&self) -> u8;

    /// Changes the ECN field of a packet that has one.
    fn set_ecn(&mut self, ecn: u8);

    /// Sets ECN "congestion experienced" and returns true; returns false, changing nothing, if the
    /// packet is not ECN-capable.
    fn mark_ce(&mut self) -> bool {
        let is_capable = self.ecn() != ip::NOT_ECT;
        if is_capable {
            self.set_ecn(ip::CE);
        }
        is_capable
    }

    /// Number of bits that corruption may flip. A packet with none is never corrupted.
    fn corruptible_bits(&self) -> u64;

    /// Flips one bit, `0 <= bit < corruptible_bits()`.
    fn flip_bit(&mut self, bit: u64);

    /// A second copy of the packet.
    fn duplicate(&self) -> Self;

    /// The flow that the packet belongs to. Without an implementation, all belong to one.
    fn flow(&self) -> FlowKey {
        FlowKey::default()
    }

    /// Its differentiated services codepoint (RFC 2474), 0 to 63.
    fn dscp(&self) -> u8 {
        0
    }

    /// Whether it is a TCP segment that acknowledges and says nothing else.
    fn is_pure_ack(&self) -> bool {
        false
    }

    /// What the packet's own protocol calls it, to find it again elsewhere: the sequence number of a
    /// TCP segment or of an ICMP echo.
    fn sequence(&self) -> Option<u32> {
        None
    }
}

/// A UDP datagram of a simulator: payload and addresses, with the headers only counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it; its address family decides the overhead (28 bytes for IPv4, 48 for IPv6).
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// The ECN field: 0 not ECN-capable, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// The UDP payload. Corruption flips bits here.
    pub payload: Vec<u8>,
}

impl Packet for Datagram {
    fn ip_len(&self) -> usize {
        let overhead = if self.source.is_ipv4() {
            UDP_OVERHEAD_V4
        } else {
            UDP_OVERHEAD_V6
        };
        self.payload.len() + overhead
    }

    fn ecn(&self) -> u8 {
        self.ecn & ip::CE
    }

    fn set_ecn(&mut self, ecn: u8) {
        self.ecn = ecn;
    }

    fn corruptible_bits(&self) -> u64 {
        self.payload.len() as u64 * 8
    }

    fn flip_bit(&mut self, bit: u64) {
        ip::flip(&mut self.payload, bit);
    }

    fn duplicate(&self) -> Datagram {
        self.clone()
    }

    fn flow(&self) -> FlowKey {
        FlowKey {
            protocol: ip::UDP,
            source: self.source,
            destination: self.destination,
        }
    }
}

/// A whole IPv4 or IPv6 packet. Corruption flips bits behind the fixed IP header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpPacket(
    /// The bytes, from the first of the IP header.
    pub Vec<u8>,
);

impl Packet for IpPacket {
    fn ip_len(&self) -> usize {
        self.0.len()
    }

    fn ecn(&self) -> u8 {
        ip::ecn(&self.0)
    }

    fn set_ecn(&mut self, ecn: u8) {
        ip::set_ecn(&mut self.0, ecn);
    }

    fn dscp(&self) -> u8 {
        ip::dscp(&self.0)
    }

    fn is_pure_ack(&self) -> bool {
        ip::is_pure_ack(&self.0)
    }

    fn corruptible_bits(&self) -> u64 {
        ip::body(&self.0).len() as u64 * 8
    }

    fn flip_bit(&mut self, bit: u64) {
        let start = self.0.len() - ip::body(&self.0).len();
        ip::flip(&mut self.0[start..], bit);
    }

    fn duplicate(&self) -> IpPacket {
        self.clone()
    }

    fn flow(&self) -> FlowKey {
        ip::flow(&self.0)
    }

    fn sequence(&self) -> Option<u32> {
        ip::sequence(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum_is_valid(header: &[u8]) -> bool {
        let mut sum: u32 = header
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum == 0xffff
    }

    fn ipv4_header(tos: u8) -> Vec<u8> {
        let mut header = vec![
            0x45, tos, 0, 28, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2,
        ];
        let sum: u32 = header
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        header.extend([0; 8]);
        header
    }

    #[test]
    fn ce_keeps_the_ipv4_checksum_valid() {
        for ecn in [1, 2, 3] {
            let mut packet = IpPacket(ipv4_header(0xb8 | ecn));
            assert!(checksum_is_valid(&packet.0[..20]));
            assert!(packet.mark_ce());
            assert_eq!(packet.0[1], 0xbb);
            assert!(checksum_is_valid(&packet.0[..20]));
        }
        let mut plain = IpPacket(ipv4_header(0));
        assert!(!plain.mark_ce());
        assert_eq!(plain.0, ipv4_header(0));
    }

    #[test]
    fn cleared_packets_are_not_ecn_capable_any_more() {
        let mut packet = IpPacket(ipv4_header(0xba));
        packet.set_ecn(ip::NOT_ECT);
        assert_eq!(packet.0, ipv4_header(0xb8));
        let mut packet = IpPacket(vec![0; 40]);
        (packet.0[0], packet.0[1]) = (0x6f, 0xff);
        packet.set_ecn(ip::NOT_ECT);
        assert_eq!((packet.0[0], packet.0[1]), (0x6f, 0xcf));
        for short in [vec![], vec![0x45; 19], vec![0x60; 39]] {
            let mut packet = IpPacket(short.clone());
            packet.set_ecn(ip::NOT_ECT);
            assert_eq!(packet.0, short);
        }
    }

    #[test]
    fn ce_in_ipv6_sits_in_the_traffic_class() {
        let mut packet = IpPacket(vec![0; 40]);
        packet.0[0] = 0x60;
        assert!(!packet.mark_ce());
        packet.0[1] = 0x25;
        assert!(packet.mark_ce());
        assert_eq!((packet.0[0], packet.0[1]), (0x60, 0x35));
    }

    #[test]
    fn the_dscp_is_read_from_both_versions() {
        assert_eq!(IpPacket(ipv4_header(0xb8 | 2)).dscp(), 46);
        // Traffic class 0xb8.
        assert_eq!(IpPacket(vec![0x6b, 0x80]).dscp(), 46);
        assert_eq!(IpPacket(vec![0x45]).dscp(), 0);
        assert_eq!(IpPacket(vec![]).dscp(), 0);
    }

    #[test]
    fn what_only_acknowledges_is_known() {
        let packet = |flags: u8, words: u8, payload: usize| {
            let mut packet = ipv4_header(0)[..20].to_vec();
            packet[9] = 6;
            let mut tcp = vec![0; usize::from(words) * 4];
            (tcp[12], tcp[13]) = (words << 4, flags);
            packet.extend(tcp);
            packet.resize(packet.len() + payload, 7);
            packet[3] = packet.len() as u8;
            IpPacket(packet)
        };
        assert!(packet(0x10, 5, 0).is_pure_ack() && packet(0x50, 8, 0).is_pure_ack());
        assert!(!packet(0x10, 8, 1).is_pure_ack() && !packet(0x18, 8, 0).is_pure_ack());
        for flags in [0x00, 0x11, 0x12, 0x14] {
            assert!(!packet(flags, 8, 0).is_pure_ack(), "{flags}");
        }
        assert!(!packet(0x10, 4, 0).is_pure_ack() && !IpPacket(ipv4_header(0)).is_pure_ack());
        assert!(!IpPacket(vec![]).is_pure_ack());
    }

    #[test]
    fn corruption_spares_the_ip_header() {
        let mut packet = IpPacket(ipv4_header(0));
        assert_eq!(packet.corruptible_bits(), 64);
        packet.flip_bit(9);
        assert_eq!(packet.0[..20], ipv4_header(0)[..20]);
        assert_eq!(packet.0[21], 2);
        assert_eq!(IpPacket(vec![0x45; 3]).corruptible_bits(), 0);
        assert_eq!(IpPacket(vec![]).corruptible_bits(), 0);
    }

    #[test]
    fn datagrams_count_their_headers() {
        let datagram = |address: &str| Datagram {
            source: address.parse().unwrap(),
            destination: address.parse().unwrap(),
            ecn: 2,
            payload: vec![0; 1000],
        };
        assert_eq!(datagram("10.0.0.1:1").ip_len(), 1028);
        assert_eq!(datagram("[::1]:1").ip_len(), 1048);
    }
}
