//! IP packets as they come from a device or from the other end. Everything here is total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4::DestUnreachableHeader};
use sphinx_netdev::header::{ICMP, ICMP_V6, SYN, TCP};

/// Smallest MTU of IPv6, which every tunnel has.
pub(crate) const MTU_MIN: usize = 1280;

/// Type of an IPv6 fragment header.
const FRAGMENT: u8 = 44;
/// Kinds of TCP options: end of options, padding (NOP), largest segment (MSS).
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;

/// The ends of an IP packet whose length is what its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// The ends of a packet; `None` for what is no IP packet, or is cut off.
pub(crate) fn ends(packet: &[u8]) -> Option<Ends> {
    match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk::<20>()?;
            let (length, total) = (
                usize::from(header[0] & 15) * 4,
                usize::from(be16(header, 2)),
            );
            if length < 20 || total < length || total != packet.len() {
                return None;
            }
            let address =
                |at: usize| Some(Ipv4Addr::from(*header[at..].first_chunk::<4>()?).into());
            Some(Ends {
                source: address(12)?,
                destination: address(16)?,
            })
        }
        6 => {
            let header = packet.first_chunk::<40>()?;
            if 40 + usize::from(be16(header, 4)) != packet.len() {
                return None;
            }
            let address =
                |at: usize| Some(Ipv6Addr::from(*header[at..].first_chunk::<16>()?).into());
            Some(Ends {
                source: address(8)?,
                destination: address(24)?,
            })
        }
        _ => None,
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => u16::from_be_bytes([a, b]),
        _ => 0,
    }
}

/// Whether a packet is one of a series that nobody puts in order: a question or an answer of ping.
pub(crate) fn is_echo(packet: &[u8]) -> bool {
    match packet {
        [first, ..] if first >> 4 == 4 => {
            let transport = usize::from(first & 15) * 4;
            packet.get(9) == Some(&ICMP) && matches!(packet.get(transport), Some(0 | 8))
        }
        [first, ..] if first >> 4 == 6 => {
            packet.get(6) == Some(&ICMP_V6) && matches!(packet.get(40), Some(128 | 129))
        }
        _ => false,
    }
}

/// Whether a packet may not be fragmented on its way: its sender finds out what fits.
pub(crate) fn must_stay_whole(packet: &[u8]) -> bool {
    match packet {
        [first, ..] if first >> 4 == 4 => be16(packet, 6) & 0x4000 != 0,
        _ => true,
    }
}

/// What a router says to the sender of a packet that does not fit: its beginning, and what would fit. `None` if nothing may be said: about
/// errors of ICMP, later fragments, and to addresses that are none of one machine.
pub(crate) fn too_big(packet: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    match ends(packet)? {
        Ends {
            source: IpAddr::V4(source),
            destination: IpAddr::V4(destination),
        } => {
            let transport = usize::from(packet[0] & 15) * 4;
            let is_later = be16(packet, 6) & 0x1fff != 0;
            // No error is sent about an error of ICMP (RFC 1122, 3.2.2).
            let is_error =
                packet[9] == ICMP && !matches!(packet.get(transport), Some(0 | 8 | 13..=18));
            if is_later || is_error || !is_of_one(source.into()) {
                return None;
            }
            let what =
                Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
                    next_hop_mtu: mtu,
                });
            icmp_v4((destination, source), what, packet)
        }
        Ends {
            source: IpAddr::V6(source),
            destination: IpAddr::V6(destination),
        } => {
            let is_error = packet[6] == ICMP_V6 && packet.get(40).is_none_or(|kind| *kind < 128);
            let is_later = packet[6] == FRAGMENT && be16(packet, 42) & 0xfff8 != 0;
            // To multicast destinations it is allowed (RFC 4443, 2.4), but the answer needs a source.
            if is_error || is_later || !is_of_one(source.into()) || destination.is_multicast() {
                return None;
            }
            let what = Icmpv6Type::PacketTooBig { mtu: mtu.into() };
            icmp_v6((destination, source), what, packet)
        }
        _ => None,
    }
}

fn is_of_one(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// An error about a packet, which it quotes as much of as fits 576 bytes (RFC 1812, 4.3.2.3).
pub(crate) fn icmp_v4(
    (from, to): (Ipv4Addr, Ipv4Addr),
    what: Icmpv4Type,
    about: &[u8],
) -> Option<Vec<u8>> {
    let quoted = &about[..about.len().min(576 - 28)];
    let builder = PacketBuilder::ipv4(from.octets(), to.octets(), 64).icmpv4(what);
    let mut out = Vec::with_capacity(builder.size(quoted.len()));
    builder.write(&mut out, quoted).ok()?;
    Some(out)
}

/// The same, of as much as fits the smallest MTU (RFC 4443, 2.4).
pub(crate) fn icmp_v6(
    (from, to): (Ipv6Addr, Ipv6Addr),
    what: Icmpv6Type,
    about: &[u8],
) -> Option<Vec<u8>> {
    let quoted = &about[..about.len().min(MTU_MIN - 48)];
    let builder = PacketBuilder::ipv6(from.octets(), to.octets(), 64).icmpv6(what);
    let mut out = Vec::with_capacity(builder.size(quoted.len()));
    builder.write(&mut out, quoted).ok()?;
    Some(out)
}

/// Lowers the largest segment that a TCP connection is opened with to what fits. Other packets, and those that are not whole, stay as they are.
pub(crate) fn clamp_mss(packet: &mut [u8], mtu: usize) {
    let Some((transport, headers)) = tcp(packet) else {
        return;
    };
    let Some(segment) = packet.get_mut(transport..) else {
        return;
    };
    if segment.len() < 20 || segment[13] & SYN == 0 {
        return;
    }
    let most = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let end = (usize::from(segment[12] >> 4) * 4).min(segment.len());
    let mut at = 20;
    while at < end {
        match segment[at] {
            OPTION_END => return,
            OPTION_NOP => at += 1,
            kind => {
                let length = segment.get(at + 1).map_or(0, |length| usize::from(*length));
                if length < 2 || at + length > end {
                    return;
                }
                let old = be16(segment, at + 2);
                if kind == OPTION_MSS && length == 4 && old > most {
                    segment[at + 2..at + 4].copy_from_slice(&most.to_be_bytes());
                    let checksum = updated(be16(segment, 16), (old, most), at % 2 == 1);
                    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
                }
                at += length;
            }
        }
    }
}

/// Where TCP begins in a packet that holds its beginning, and the bytes of the IP and TCP headers without options.
pub(super) fn tcp(packet: &[u8]) -> Option<(usize, usize)> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 && packet[9] == TCP && be16(packet, 6) & 0x1fff == 0 => {
            Some(((usize::from(packet[0] & 15) * 4).max(20), 40))
        }
        // SYNs behind extension headers are not looked for.
        6 if packet.len() >= 40 && packet[6] == TCP => Some((40, 60)),
        _ => None,
    }
}

/// A checksum after a word has changed (RFC 1624), which may begin at an odd place.
pub(super) fn updated(checksum: u16, (old, new): (u16, u16), is_odd: bool) -> u16 {
    let place = |word: u16| u32::from(if is_odd { word.swap_bytes() } else { word });
    let mut sum = u32::from(!checksum) + (!place(old) & 0xffff) + place(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketHeaders, TcpHeader, TcpOptionElement, TransportHeader};

    use super::*;

    fn built(ipv4: bool, header: &TcpHeader, payload: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let payload = vec![7; payload];
        match ipv4 {
            true => PacketBuilder::ipv4([10, 9, 0, 2], [10, 9, 0, 1], 64)
                .tcp_header(header.clone())
                .write(&mut out, &payload),
            false => PacketBuilder::ipv6([1; 16], [2; 16], 64)
                .tcp_header(header.clone())
                .write(&mut out, &payload),
        }
        .expect("built");
        out
    }

    fn syn(options: &[TcpOptionElement]) -> TcpHeader {
        let mut header = TcpHeader::new(40_000, 80, 9, 1000);
        header.syn = true;
        header.set_options(options).expect("they fit");
        header
    }

    fn parsed(packet: &[u8]) -> (PacketHeaders<'_>, TcpHeader) {
        let headers = PacketHeaders::from_ip_slice(packet).expect("a packet");
        let Some(TransportHeader::Tcp(tcp)) = headers.transport.clone() else {
            panic!("no TCP in {packet:?}");
        };
        (headers, tcp)
    }

    #[test]
    fn the_largest_segment_is_clamped_and_the_checksum_holds() {
        use TcpOptionElement::{MaximumSegmentSize, Noop, WindowScale};
        for ipv4 in [true, false] {
            for options in [
                vec![MaximumSegmentSize(1460)],
                vec![Noop, MaximumSegmentSize(1460)],
                vec![WindowScale(7), MaximumSegmentSize(1460), Noop],
            ] {
                let mut packet = built(ipv4, &syn(&options), 0);
                clamp_mss(&mut packet, 1400);
                let (headers, tcp) = parsed(&packet);
                let mss = if ipv4 { 1360 } else { 1340 };
                let found: Vec<_> = tcp.options_iterator().filter_map(Result::ok).collect();
                assert!(found.contains(&MaximumSegmentSize(mss)), "{found:?}");
                let (ip, _) = (headers.net.expect("IP"), ());
                let sum = match ip {
                    etherparse::NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(&ip, &[]),
                    etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, &[]),
                    _ => panic!("no IP"),
                };
                assert_eq!(sum, Ok(tcp.checksum));
            }
        }
    }

    #[test]
    fn what_fits_and_what_is_no_syn_stays() {
        use TcpOptionElement::MaximumSegmentSize;
        let mut small = built(true, &syn(&[MaximumSegmentSize(500)]), 0);
        let mut later = syn(&[MaximumSegmentSize(1460)]);
        later.syn = false;
        let mut later = built(true, &later, 100);
        for packet in [&mut small, &mut later] {
            let before = packet.clone();
            clamp_mss(packet, 1400);
            assert_eq!(*packet, before);
        }
    }

    #[test]
    fn senders_hear_what_fits() {
        for ipv4 in [true, false] {
            let packet = built(ipv4, &TcpHeader::new(1, 2, 3, 4), 1350);
            let answer = too_big(&packet, 1300).expect("an answer");
            let (of, to) = (ends(&packet).expect("ends"), ends(&answer).expect("ends"));
            assert_eq!((of.source, of.destination), (to.destination, to.source));
            let headers = PacketHeaders::from_ip_slice(&answer).expect("a packet");
            let quoted = match headers.transport {
                Some(TransportHeader::Icmpv4(icmp)) => {
                    let Icmpv4Type::DestinationUnreachable(
                        DestUnreachableHeader::FragmentationNeeded { next_hop_mtu },
                    ) = icmp.icmp_type
                    else {
                        panic!("{icmp:?}");
                    };
                    assert_eq!(next_hop_mtu, 1300);
                    headers.payload.slice()
                }
                Some(TransportHeader::Icmpv6(icmp)) => {
                    assert_eq!(icmp.icmp_type, Icmpv6Type::PacketTooBig { mtu: 1300 });
                    headers.payload.slice()
                }
                other => panic!("{other:?}"),
            };
            assert!(packet.starts_with(quoted) && quoted.len() > 500);
            assert!(answer.len() <= MTU_MIN);
            // No answers to answers.
            assert_eq!(too_big(&answer, 100), None);
        }
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_no_packet() {
        for ipv4 in [true, false] {
            let packet = built(ipv4, &syn(&[]), 10);
            assert!(ends(&packet).is_some());
            for len in 0..packet.len() {
                assert_eq!(ends(&packet[..len]), None, "{len}");
            }
            assert_eq!(ends(&[&packet[..], &[0]].concat()), None);
        }
    }
}
