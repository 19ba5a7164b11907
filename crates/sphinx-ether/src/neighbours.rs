//! Who has an address on the link: ARP (RFC 826) for IPv4 and neighbour discovery (RFC 4861) for IPv6, for a card whose addresses the kernel does
//! not know. Only what an end needs: it asks, answers for its own addresses, announces them, and tells switches that it listens for questions (MLD, RFC 3810).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, EtherType, Ethernet2Header, IpNumber,
    Ipv6FlowLabel, Ipv6Header,
};

use crate::{ETHERNET_BYTES, IPV6_BYTES, Mac, add_bytes, checksum, pseudo_sum};

const EVERYBODY: Mac = [0xff; 6];
/// All hosts on the link, where there is no broadcast.
const ALL_NODES: (Ipv6Addr, Mac) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    [0x33, 0x33, 0, 0, 0, 1],
);
/// Address of reports about who listens to which multicast groups: all MLDv2 routers.
const LISTENER_REPORTS: (Ipv6Addr, Mac) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16),
    [0x33, 0x33, 0, 0, 0, 0x16],
);
const ICMPV6: u8 = IpNumber::IPV6_ICMP.0;
/// The header of options that each hop looks at, with the one that says so of messages about groups, and what fills it up.
const HOP_BY_HOP: u8 = 0;
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORT: u8 = 143;
/// A record of a group: to be heard of from all sources from now on.
const TO_EXCLUDE_NONE: [u8; 4] = [4, 0, 0, 0];
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement (RFC 4861 §4.4): it answers a solicitation, and its address replaces the one that was known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Options that hold an Ethernet address: the sender's in a solicitation, the target's in an advertisement.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Type, code, checksum, flags, target; options follow.
const TARGET_END: usize = 24;

/// What a frame says about neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An ARP request or a neighbour solicitation: somebody asks who has an address.
    Request {
        /// The address asked for.
        target: IpAddr,
        /// The sender. Its IP address is unspecified while it has none and probes whether `target` is free (RFC 4862 §5.4, RFC 5227).
        from: (IpAddr, Mac),
    },
    /// An ARP reply or a neighbour advertisement: somebody has an address.
    Reply {
        /// The address.
        ip: IpAddr,
        /// The Ethernet address of the host that has it.
        mac: Mac,
    },
    /// A multicast listener query (MLD): a router or switch asks which IPv6 groups anybody listens to.
    ListenerQuery,
}

/// Reads a frame; `None` if it is about something else, or malformed.
#[must_use]
pub fn read(frame: &[u8]) -> Option<Heard> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    match frame.get(12..ETHERNET_BYTES)? {
        [0x08, 0x06] => read_arp(packet),
        [0x86, 0xdd] => read_icmp(packet, *frame.get(6..)?.first_chunk()?),
        _ => None,
    }
}

fn read_arp(packet: &[u8]) -> Option<Heard> {
    let packet = ArpPacketSlice::from_slice(packet).ok()?;
    let packet = packet.to_packet().try_eth_ipv4().ok()?;
    let (from, mac) = (IpAddr::from(packet.sender_ipv4), packet.sender_mac);
    match packet.operation {
        ArpOperation::REQUEST => Some(Heard::Request {
            target: packet.target_ipv4.into(),
            from: (from, mac),
        }),
        ArpOperation::REPLY => Some(Heard::Reply { ip: from, mac }),
        _ => None,
    }
}

fn read_icmp(packet: &[u8], source: Mac) -> Option<Heard> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    let [_, _, _, _, l0, l1, next, hops, ..] = *header;
    let total = IPV6_BYTES + usize::from(u16::from_be_bytes([l0, l1]));
    let payload = packet.get(IPV6_BYTES..total)?;
    // Only who is on the link can send a packet that has made no hop, or is not to make any.
    let message = match (header[0] >> 4, next, hops) {
        (6, ICMPV6, 255) => payload,
        (6, HOP_BY_HOP, 1) if payload.starts_with(&ROUTER_ALERT[..2]) => {
            payload.get(ROUTER_ALERT.len()..)?
        }
        _ => return None,
    };
    let (from, to) = (address(&header[8..])?, address(&header[24..])?);
    let pseudo = pseudo_sum(from.into(), to.into(), ICMPV6, message.len());
    if checksum(add_bytes(pseudo, message)) != [0; 2] {
        return None;
    }
    match next {
        ICMPV6 => read_ndp((from, to), message, source),
        _ => (*message.first()? == LISTENER_QUERY).then_some(Heard::ListenerQuery),
    }
}

fn address(bytes: &[u8]) -> Option<Ipv6Addr> {
    let octets = bytes.first_chunk::<16>()?;
    Some(Ipv6Addr::from(*octets))
}

fn read_ndp((from, to): (Ipv6Addr, Ipv6Addr), message: &[u8], source: Mac) -> Option<Heard> {
    let target = address(message.get(8..TARGET_END)?)?;
    let mut options = message.get(TARGET_END..)?;
    let mut told = [None; 2];
    // Kind, length in units of eight bytes, value.
    while let [kind, units, ..] = *options {
        if units == 0 {
            return None;
        }
        let (option, rest) = options.split_at_checked(usize::from(units) * 8)?;
        options = rest;
        let mac = option.get(2..).and_then(<[u8]>::first_chunk).copied();
        match kind {
            SOURCE_ADDRESS => told[0] = mac,
            TARGET_ADDRESS => told[1] = mac,
            _ => {}
        }
    }
    match message {
        // RFC 4861 §7.1.1: who has no address yet tells nobody where it is, and asks those whose address may be this one.
        [SOLICITATION, 0, ..]
            if from.is_unspecified() && (told[0].is_some() || to != listeners(target).0) =>
        {
            None
        }
        [SOLICITATION, 0, ..] => Some(Heard::Request {
            target: target.into(),
            from: (from.into(), told[0].unwrap_or(source)),
        }),
        [ADVERTISEMENT, 0, ..] => Some(Heard::Reply {
            ip: target.into(),
            mac: told[1].unwrap_or(source),
        }),
        _ => None,
    }
}

/// A frame from `own` that asks who has `target`: an ARP request or a neighbour solicitation. `None` if they are of different families.
#[must_use]
pub fn request(own: (IpAddr, Mac), target: IpAddr) -> Option<Vec<u8>> {
    match (own.0, target) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            let operation = ArpOperation::REQUEST;
            Some(arp(operation, (from, own.1), (target, [0; 6]), EVERYBODY))
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let to = listeners(target);
            Some(ndp(SOLICITATION, 0, (from, own.1), to, target))
        }
        _ => None,
    }
}

/// The group to which those listen whose address ends like this one.
fn listeners(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = target.octets();
    let (high, low) = (0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low);
    (group, [0x33, 0x33, 0xff, a, b, c])
}

/// The reply to a request for `own` by `from`: to all hosts if the sender has no address yet (RFC 4862 §5.4.3). `None` if the two are
/// of different families.
#[must_use]
pub fn reply(own: (IpAddr, Mac), from: (IpAddr, Mac)) -> Option<Vec<u8>> {
    match (own.0, from.0) {
        (IpAddr::V4(ip), IpAddr::V4(to)) => {
            Some(arp(ArpOperation::REPLY, (ip, own.1), (to, from.1), from.1))
        }
        (IpAddr::V6(ip), IpAddr::V6(to)) => {
            let (flags, to) = match to.is_unspecified() {
                true => (OVERRIDE, ALL_NODES),
                false => (SOLICITED | OVERRIDE, (to, from.1)),
            };
            Some(ndp(ADVERTISEMENT, flags, (ip, own.1), to, ip))
        }
        _ => None,
    }
}

/// What tells all hosts on the link that `own` is here now, and that what they knew of it is old: an ARP announcement (RFC 5227 §2.3) or an
/// unsolicited advertisement (RFC 4861 §7.2.6).
#[must_use]
pub fn announcement(own: (IpAddr, Mac)) -> Option<Vec<u8>> {
    match own.0 {
        IpAddr::V4(_) => request(own, own.0),
        IpAddr::V6(_) => reply(own, (Ipv6Addr::UNSPECIFIED.into(), own.1)),
    }
}

fn arp(operation: ArpOperation, own: (Ipv4Addr, Mac), target: (Ipv4Addr, Mac), to: Mac) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: own.1,
        sender_ipv4: own.0.octets(),
        target_mac: target.1,
        target_ipv4: target.0.octets(),
    };
    let mut frame = ethernet(own.1, to, EtherType::ARP);
    frame.extend(packet.to_bytes());
    frame
}

fn ndp(
    kind: u8,
    flags: u8,
    own: (Ipv6Addr, Mac),
    to: (Ipv6Addr, Mac),
    target: Ipv6Addr,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    // Who has no address yet does not say where it is.
    if !own.0.is_unspecified() {
        let of = match kind {
            SOLICITATION => SOURCE_ADDRESS,
            _ => TARGET_ADDRESS,
        };
        message.extend([of, 1]);
        message.extend(own.1);
    }
    icmp(own, to, (ICMPV6, 255, &[]), message)
}

/// What tells switches to pass on the questions for these addresses to here, where they pass on only what somebody listens to; `None` if no address is of IPv6. It says
/// nothing of the sender, who may have no address for that (RFC 3810 §5.2.13).
#[must_use]
pub fn listener_report(addresses: impl Iterator<Item = IpAddr>, mac: Mac) -> Option<Vec<u8>> {
    let mut message = vec![LISTENER_REPORT, 0, 0, 0, 0, 0, 0, 0];
    let mut records: u16 = 0;
    for address in addresses {
        if let IpAddr::V6(address) = address {
            message.extend(TO_EXCLUDE_NONE);
            message.extend(listeners(address).0.octets());
            records += 1;
        }
    }
    message[6..8].copy_from_slice(&records.to_be_bytes());
    let own = (Ipv6Addr::UNSPECIFIED, mac);
    let frame = icmp(
        own,
        LISTENER_REPORTS,
        (HOP_BY_HOP, 1, &ROUTER_ALERT),
        message,
    );
    (records > 0).then_some(frame)
}

/// A frame with a message, whose checksum is written here, behind these options.
fn icmp(
    own: (Ipv6Addr, Mac),
    to: (Ipv6Addr, Mac),
    (next, hop_limit, options): (u8, u8, &[u8]),
    mut message: Vec<u8>,
) -> Vec<u8> {
    let pseudo = pseudo_sum(own.0.into(), to.0.into(), ICMPV6, message.len());
    let sum = checksum(add_bytes(pseudo, &message));
    message[2..4].copy_from_slice(&sum);
    let ip = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: (options.len() + message.len()) as u16,
        next_header: IpNumber(next),
        hop_limit,
        source: own.0.octets(),
        destination: to.0.octets(),
    };
    let mut frame = ethernet(own.1, to.1, EtherType::IPV6);
    frame.extend(ip.to_bytes());
    frame.extend(options);
    frame.extend(message);
    frame
}

fn ethernet(source: Mac, destination: Mac, ether_type: EtherType) -> Vec<u8> {
    let header = Ethernet2Header {
        source,
        destination,
        ether_type,
    };
    header.to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_understood() {
        let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        for (own, other) in [("192.0.2.1", "192.0.2.2"), ("fd00::1", "fd00::aabb:ccdd")] {
            let (own, other): (IpAddr, IpAddr) = (own.parse().unwrap(), other.parse().unwrap());
            let asked = request((own, here), other).unwrap();
            let from = (own, here);
            assert_eq!(
                read(&asked),
                Some(Heard::Request {
                    target: other,
                    from
                })
            );
            let answered = reply((other, there), from).unwrap();
            assert_eq!(
                read(&answered),
                Some(Heard::Reply {
                    ip: other,
                    mac: there
                })
            );
            assert_eq!(answered[..6], here);
            for frame in [&asked, &answered] {
                for len in 0..frame.len() {
                    assert_eq!(read(&frame[..len]), None, "{len}");
                }
            }
        }
        let v6: IpAddr = "fd00::1".parse().unwrap();
        assert!(request((v6, here), Ipv4Addr::LOCALHOST.into()).is_none());
    }

    /// RFC 4862: it has an address in mind, and asks whether somebody has it.
    #[test]
    fn who_has_no_address_is_told_whose_it_is() {
        let none = (IpAddr::from(Ipv6Addr::UNSPECIFIED), [2, 0, 0, 0, 0, 2]);
        let own: Ipv6Addr = "fd00::aabb:ccdd".parse().unwrap();
        let asked = request(none, own.into()).unwrap();
        let heard = Heard::Request {
            target: own.into(),
            from: none,
        };
        assert_eq!(read(&asked), Some(heard));
        let to_all = ndp(
            SOLICITATION,
            0,
            (Ipv6Addr::UNSPECIFIED, none.1),
            ALL_NODES,
            own,
        );
        assert_eq!(read(&to_all), None);
        // One that says where it is all the same. The checksum is that of an address whose words add up to as good as nothing.
        let mut told = request(("fffe::1".parse().unwrap(), none.1), own.into()).unwrap();
        assert!(read(&told).is_some());
        told[ETHERNET_BYTES + 8..ETHERNET_BYTES + 24].fill(0);
        assert_eq!(read(&told), None);

        let answered = reply((own.into(), [2; 6]), none).unwrap();
        let message = ETHERNET_BYTES + IPV6_BYTES;
        assert_eq!(answered[..6], ALL_NODES.1);
        assert_eq!(answered[message - 16..message], ALL_NODES.0.octets());
        assert_eq!(answered[message + 4], OVERRIDE);
        let heard = Heard::Reply {
            ip: own.into(),
            mac: [2; 6],
        };
        assert_eq!(read(&answered), Some(heard));
    }

    #[test]
    fn announcements_go_to_everybody() {
        let mac = [2, 0, 0, 0, 0, 1];
        let v4 = IpAddr::from([192, 0, 2, 1]);
        let frame = announcement((v4, mac)).unwrap();
        assert_eq!(frame[..6], EVERYBODY);
        let from = (v4, mac);
        assert_eq!(read(&frame), Some(Heard::Request { target: v4, from }));
        let v6 = "fd00::1".parse().unwrap();
        let frame = announcement((v6, mac)).unwrap();
        assert_eq!(frame[..6], ALL_NODES.1);
        assert_eq!(frame[ETHERNET_BYTES + IPV6_BYTES + 4], OVERRIDE);
        assert_eq!(read(&frame), Some(Heard::Reply { ip: v6, mac }));
    }

    #[test]
    fn switches_are_told_who_listens() {
        let mac = [2, 0, 0, 0, 0, 1];
        let own = ["192.0.2.1", "fd00::1", "fd00::aabb:ccdd"].map(|ip| ip.parse().unwrap());
        let frame = listener_report(own.into_iter(), mac).unwrap();
        assert_eq!(frame[..6], LISTENER_REPORTS.1);
        let header = &frame[ETHERNET_BYTES..][..IPV6_BYTES];
        assert_eq!(header[8..24], [0; 16]);
        assert_eq!(header[24..], LISTENER_REPORTS.0.octets());
        let message = &frame[ETHERNET_BYTES + IPV6_BYTES + ROUTER_ALERT.len()..];
        assert_eq!(message[4..8], [0, 0, 0, 2]);
        let groups = ["ff02::1:ff00:1", "ff02::1:ffbb:ccdd"];
        for (record, group) in message[8..].chunks(20).zip(groups) {
            let group: Ipv6Addr = group.parse().unwrap();
            assert_eq!(record, [&TO_EXCLUDE_NONE[..], &group.octets()].concat());
        }
        assert!(listener_report(own[..1].iter().copied(), mac).is_none());
    }

    #[test]
    fn switches_that_ask_are_heard() {
        let from = ("fe80::1".parse().unwrap(), [2; 6]);
        let mut query = vec![LISTENER_QUERY, 0, 0, 0, 39, 16, 0, 0];
        query.extend([0; 16]);
        query.extend([2, 125, 0, 0]);
        let of = |hops, kind| {
            let mut message = query.clone();
            message[0] = kind;
            read(&icmp(
                from,
                ALL_NODES,
                (HOP_BY_HOP, hops, &ROUTER_ALERT),
                message,
            ))
        };
        assert_eq!(of(1, LISTENER_QUERY), Some(Heard::ListenerQuery));
        assert_eq!(of(2, LISTENER_QUERY), None);
        assert_eq!(of(1, LISTENER_REPORT), None);
        // Questions for neighbours have no such options.
        assert_eq!(of(1, SOLICITATION), None);
    }

    /// Whoever is more than one hop away cannot say who is on the link.
    #[test]
    fn what_has_made_a_hop_is_not_believed() {
        let own: IpAddr = "fd00::1".parse().unwrap();
        let mut frame = request((own, [2; 6]), "fd00::2".parse().unwrap()).unwrap();
        frame[ETHERNET_BYTES + 7] = 254;
        assert_eq!(read(&frame), None);
    }
}
