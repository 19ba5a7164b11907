//! Headers of what is sent.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader,
};

use crate::{
    ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, Mac, Sums, UDP, UDP_BYTES, add_bytes, checksum,
    partial_checksum, pseudo_sum,
};

/// Hops that a packet may take.
const HOP_LIMIT: u8 = 64;
/// The longest headers.
const HEADERS_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;

/// The headers of datagrams from one address to another: all that is the same for each of them.
#[derive(Clone, Debug)]
pub struct Flow {
    headers: [u8; HEADERS_MAX],
    /// Bytes of `headers` in use.
    len: usize,
    local: IpAddr,
    remote: IpAddr,
    is_v4: bool,
}

impl Flow {
    /// Headers for datagrams that leave through the interface `macs.0`, towards the interface `macs.1`. Packets are not to be fragmented.
    /// `None` if the addresses are of different families.
    #[must_use]
    pub fn new(macs: (Mac, Mac), local: SocketAddr, remote: SocketAddr) -> Option<Self> {
        let mut headers = [0; HEADERS_MAX];
        let (ip_bytes, ether_type) = match (local.ip(), remote.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ip = Ipv4Header::new(0, HOP_LIMIT, IpNumber::UDP, from.octets(), to.octets());
                let mut ip = ip.ok()?;
                ip.dont_fragment = true;
                // What depends on the datagram is filled in with it.
                headers[ETHERNET_BYTES..][..IPV4_BYTES].copy_from_slice(&ip.to_bytes());
                (IPV4_BYTES, EtherType::IPV4)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ip = Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: 0,
                    next_header: IpNumber::UDP,
                    hop_limit: HOP_LIMIT,
                    source: from.octets(),
                    destination: to.octets(),
                };
                headers[ETHERNET_BYTES..][..IPV6_BYTES].copy_from_slice(&ip.to_bytes());
                (IPV6_BYTES, EtherType::IPV6)
            }
            _ => return None,
        };
        let ethernet = Ethernet2Header {
            source: macs.0,
            destination: macs.1,
            ether_type,
        };
        headers[..ETHERNET_BYTES].copy_from_slice(&ethernet.to_bytes());
        let udp = UdpHeader {
            source_port: local.port(),
            destination_port: remote.port(),
            length: 0,
            checksum: 0,
        };
        let at = ETHERNET_BYTES + ip_bytes;
        headers[at..at + UDP_BYTES].copy_from_slice(&udp.to_bytes());
        Some(Self {
            headers,
            len: at + UDP_BYTES,
            local: local.ip(),
            remote: remote.ip(),
            is_v4: ip_bytes == IPV4_BYTES,
        })
    }

    /// Bytes in front of a datagram.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.len
    }

    /// Writes the headers in front of the datagram that lies behind them in `frame`, to its end, and UDP's checksum, which is never 0. `ecn`:
    /// the two bits. A frame that is too short for the headers, or longer than IP allows, stays as it is.
    pub fn complete(&self, frame: &mut [u8], ecn: u8) {
        self.complete_for_card(frame, ecn, Sums::default());
    }

    /// The same for a card that computes these checksums. It finds 0 for IPv4's, and for UDP's the sum that it is to go on with, that of the addresses; it is told
    /// that this is UDP, of which it writes no 0 either.
    pub fn complete_for_card(&self, frame: &mut [u8], ecn: u8, left: Sums) {
        let ip_len = frame.len().saturating_sub(ETHERNET_BYTES);
        if frame.len() < self.len || ip_len > usize::from(u16::MAX) {
            return;
        }
        let udp_at = self.len - UDP_BYTES;
        let udp_len = frame.len() - udp_at;
        frame[..self.len].copy_from_slice(&self.headers[..self.len]);
        let ip = &mut frame[ETHERNET_BYTES..udp_at];
        if self.is_v4 {
            ip[1] = ecn & 3;
            ip[2..4].copy_from_slice(&(ip_len as u16).to_be_bytes());
            ip[10..12].fill(0);
            if !left.ipv4 {
                let sum = checksum(add_bytes(0, ip));
                ip[10..12].copy_from_slice(&sum);
            }
        } else {
            ip[1] = (ecn & 3) << 4;
            ip[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        }
        let udp = &mut frame[udp_at..];
        udp[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        let pseudo = pseudo_sum(self.local, self.remote, UDP, udp_len);
        let sum = if left.udp {
            partial_checksum(pseudo)
        } else {
            match checksum(add_bytes(pseudo, udp)) {
                // 0 would mean that there is none; in this arithmetic both are the same.
                [0, 0] => [0xff, 0xff],
                sum => sum,
            }
        };
        udp[6..8].copy_from_slice(&sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, Datagram, Rejected};
    use etherparse::checksum::u64_16bit_word;
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    fn ends(v4: bool) -> (SocketAddr, SocketAddr) {
        let ends = if v4 {
            ("192.0.2.1:4433", "198.51.100.7:9")
        } else {
            ("[2001:db8::1]:4433", "[2001:db8:1::7]:9")
        };
        (ends.0.parse().unwrap(), ends.1.parse().unwrap())
    }

    fn frame(v4: bool, ecn: u8, payload: &[u8]) -> Vec<u8> {
        let (local, remote) = ends(v4);
        let flow = Flow::new(MACS, local, remote).unwrap();
        let mut frame = vec![0xa5; flow.header_bytes()];
        frame.extend(payload);
        flow.complete(&mut frame, ecn);
        frame
    }

    #[test]
    fn addresses_of_two_families_make_no_flow() {
        assert!(Flow::new(MACS, ends(true).0, ends(false).1).is_none());
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_its_other_form() {
        // The sum of all words but the last is known; one payload of these makes it 0xffff.
        for v4 in [true, false] {
            let found = (0..=u16::MAX).any(|word| {
                let frame = frame(v4, 0, &word.to_be_bytes());
                let at = frame.len() - 2 - UDP_BYTES;
                let written = &frame[at + 6..at + 8];
                assert_ne!(written, [0, 0]);
                assert!(Datagram::read(&frame).is_ok());
                written == [0xff, 0xff]
            });
            assert!(found);
        }
    }

    /// What the kernel drops before a socket sees it.
    #[test]
    fn who_cannot_have_sent_it_is_known() {
        for (remote, local, is_possible) in [
            ("198.51.100.7:9", "192.0.2.1:4433", true),
            ("127.0.0.1:53", "192.0.2.1:4433", false),
            ("0.0.0.0:9", "192.0.2.1:4433", false),
            ("0.1.2.3:9", "192.0.2.1:4433", false),
            ("224.0.0.1:9", "192.0.2.1:4433", false),
            ("255.255.255.255:9", "192.0.2.1:4433", false),
            ("192.0.2.1:53", "192.0.2.1:4433", false),
            ("[2001:db8::7]:9", "[2001:db8::1]:4433", true),
            ("[fe80::7]:9", "[2001:db8::1]:4433", true),
            ("[::1]:53", "[2001:db8::1]:4433", false),
            ("[::]:9", "[2001:db8::1]:4433", false),
            ("[ff02::1]:9", "[2001:db8::1]:4433", false),
            ("[::ffff:127.0.0.1]:53", "[2001:db8::1]:4433", false),
            ("[::ffff:198.51.100.7]:9", "[2001:db8::1]:4433", false),
            ("[2001:db8::1]:53", "[2001:db8::1]:4433", false),
        ] {
            let flow = Flow::new(MACS, remote.parse().unwrap(), local.parse().unwrap()).unwrap();
            let mut frame = vec![0; flow.header_bytes()];
            frame.extend(b"hello");
            flow.complete(&mut frame, 0);
            let read = Datagram::read(&frame).unwrap();
            assert_eq!(read.is_of_a_host(), is_possible, "{remote}");
        }
    }

    #[test]
    fn frames_for_the_kernel_are_none_of_ours() {
        let good = frame(true, 0, b"hello");
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            Datagram::read(&frame)
        };
        assert_eq!(with(12, 0x81), Err(Rejected::Other));
        assert_eq!(with(14, 0x46), Err(Rejected::Other));
        assert_eq!(with(20, 0x20), Err(Rejected::Other));
        assert_eq!(with(23, 6), Err(Rejected::Other));
        assert_eq!(with(17, 200), Err(Rejected::Checksum));
        assert_eq!(with(good.len() - 1, 0), Err(Rejected::Checksum));
        assert_eq!(Datagram::read(&good[..40]), Err(Rejected::Malformed));
    }

    #[test]
    fn a_partial_checksum_is_known_and_none_is_for_ipv4() {
        for v4 in [true, false] {
            let mut frame = frame(v4, 0, b"hello");
            let at = frame.len() - 5 - UDP_BYTES + 6;
            let (local, remote) = ends(v4);
            let sum = partial_checksum(pseudo_sum(local.ip(), remote.ip(), UDP, 13));
            frame[at..at + 2].copy_from_slice(&sum);
            assert_eq!(Datagram::read(&frame).unwrap().checksum, Checksum::Partial);
            frame[at..at + 2].fill(0);
            let none = Datagram::read(&frame).map(|it| it.checksum);
            let expected = if v4 {
                Ok(Checksum::None)
            } else {
                Err(Rejected::Checksum)
            };
            assert_eq!(none, expected);
        }
    }

    /// What a card has found right is not looked at again; but none is none, and IPv6 must have one.
    #[test]
    fn what_a_card_has_found_is_believed() {
        let udp = Sums {
            udp: true,
            ..Sums::default()
        };
        let ipv4 = Sums {
            ipv4: true,
            ..Sums::default()
        };
        for v4 in [true, false] {
            let good = frame(v4, 0, b"hello");
            let mut damaged = good.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert_eq!(Datagram::read(&damaged), Err(Rejected::Checksum));
            let read = Datagram::read_from_card(&damaged, udp);
            assert_eq!(read.unwrap().checksum, Checksum::Right);
            let read = Datagram::read_from_card(&damaged, ipv4);
            assert_eq!(read, Err(Rejected::Checksum));
            let mut none = good.clone();
            let at = none.len() - 5 - UDP_BYTES + 6;
            none[at..at + 2].fill(0);
            let read = Datagram::read_from_card(&none, udp).map(|it| it.checksum);
            assert_eq!(read, Datagram::read(&none).map(|it| it.checksum));
        }
        // An identification, which means nothing here.
        let mut damaged = frame(true, 0, b"hello");
        damaged[ETHERNET_BYTES + 4] ^= 1;
        for (sums, is_read) in [(Sums::default(), false), (udp, false), (ipv4, true)] {
            assert_eq!(Datagram::read_from_card(&damaged, sums).is_ok(), is_read);
        }
    }

    proptest! {
        /// A card that adds up what is behind it, and complements, writes what is written without it.
        #[test]
        fn what_is_left_to_a_card_comes_to_the_same(
            v4: bool,
            ipv4: bool,
            udp: bool,
            payload in prop::collection::vec(any::<u8>(), 0..1600),
        ) {
            let (local, remote) = ends(v4);
            let flow = Flow::new(MACS, local, remote).unwrap();
            let mut left = vec![0xa5; flow.header_bytes()];
            left.extend(&payload);
            flow.complete_for_card(&mut left, 2, Sums { ipv4, udp });
            let at = flow.header_bytes() - UDP_BYTES;
            if ipv4 && v4 {
                prop_assert_eq!(&left[ETHERNET_BYTES + 10..][..2], [0, 0]);
                let sum = checksum(u64_16bit_word::add_slice(0, &left[ETHERNET_BYTES..at]));
                left[ETHERNET_BYTES + 10..][..2].copy_from_slice(&sum);
            }
            if udp {
                let sum = match checksum(u64_16bit_word::add_slice(0, &left[at..])) {
                    [0, 0] => [0xff, 0xff],
                    sum => sum,
                };
                left[at + 6..at + 8].copy_from_slice(&sum);
            }
            prop_assert_eq!(left, frame(v4, 2, &payload));
        }

        /// What is written is what another implementation writes, and reads.
        #[test]
        fn written_frames_are_right(
            v4: bool,
            ecn in 0_u8..4,
            payload in prop::collection::vec(any::<u8>(), 0..1600),
            padding in 0_usize..20,
        ) {
            let (local, remote) = ends(v4);
            let mut frame = frame(v4, ecn, &payload);
            {
                let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
                let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!() };
                prop_assert_eq!(udp.payload(), &payload[..]);
            }
            let builder = PacketBuilder::ethernet2(MACS.0, MACS.1);
            let mut expected = Vec::new();
            match (local.ip(), remote.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let mut ip = Ipv4Header::new(0, 64, IpNumber::UDP, from.octets(), to.octets()).unwrap();
                    ip.dont_fragment = true;
                    ip.ecn = ecn.try_into().unwrap();
                    builder.ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
                        .udp(local.port(), remote.port()).write(&mut expected, &payload).unwrap();
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    let ip = Ipv6Header { traffic_class: ecn, hop_limit: 64, source: from.octets(),
                        destination: to.octets(), ..Default::default() };
                    builder.ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
                        .udp(local.port(), remote.port()).write(&mut expected, &payload).unwrap();
                }
                _ => unreachable!(),
            }
            prop_assert_eq!(&frame, &expected);
            let end = frame.len();
            frame.extend(std::iter::repeat_n(0, padding));
            let read = Datagram::read(&frame).unwrap();
            prop_assert_eq!((read.local, read.remote, read.ecn), (remote, local, ecn));
            prop_assert_eq!(read.payload, end - payload.len()..end);
            prop_assert_eq!((read.source, read.checksum), (MACS.0, Checksum::Right));
        }
    }
}
