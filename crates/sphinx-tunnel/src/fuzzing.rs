//! What the fuzz targets `tunnel`, `tun` and `split` run (`docs/fuzzing.md`).

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sphinx_fuzz::Input;
use sphinx_netdev::checksum::Sum;

use crate::forward::{self, Carried, Forward};
use crate::permit::{Permit, Transport};
use crate::proxy;
use crate::tun::fq_codel::FqCodel;
use crate::tun::segment::{Segment, Unreachable};
use crate::tun::split::table::{Connection, Id, Table, Verdict};
use crate::tun::{packet, settings::Settings};
use crate::wire::{HEADER_MAX, Reply, Request, Target};

/// Headers and replies, datagrams with addresses, what programs tell a proxy, and what people write.
///
/// # Panics
/// If something that was read is not written and read again as the same, or rules let through what they must not.
pub fn tunnel(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match choice % 7 {
        0 => {
            if let Ok(request) = Request::parse(rest) {
                let bytes = request.to_bytes();
                assert!(bytes.len() <= HEADER_MAX);
                assert_eq!(Request::parse(&bytes[2..]), Ok(request));
            }
        }
        1 => {
            if let Ok(reply) = Reply::parse(rest) {
                let bytes = reply.to_bytes();
                assert!(bytes.len() <= HEADER_MAX);
                assert!(Reply::parse(&bytes[2..]).is_ok());
            }
        }
        2 => {
            let mut after = rest;
            if let Ok(target) = Target::take(&mut after) {
                let mut again = Vec::new();
                target.put(&mut again);
                assert_eq!(again.len() + after.len(), rest.len());
                let shown = target.to_string();
                assert!(!shown.is_empty());
            }
            let _ = proxy::inward(rest);
            at_once(proxy::outward(rest));
        }
        3 => {
            if let Some(Ok((_, behind))) = proxy::connect_request(rest, None) {
                assert!(rest.ends_with(&behind));
            }
        }
        4 => {
            if let Ok(forward) = text.parse::<Forward>() {
                assert_eq!(forward.text, text);
                if let Carried::Datagrams(giving) = forward.carried {
                    assert!(giving.deadline.as_secs() <= 60);
                }
            }
            let _ = (forward::listen_address(&text), forward::target(&text));
        }
        5 => {
            if let Ok(permit) = text.parse::<Permit>()
                && !text.contains("169.254")
                && !text.contains(['/', '[', '0'])
            {
                // No rule that does not name it lets anybody to where clouds keep their keys.
                let metadata = ([169, 254, 169, 254], 80).into();
                assert!(!permit.lets_reach(Transport::Tcp, Some("a.example"), metadata));
            }
        }
        _ => {
            let program = || tokio::io::join(rest, tokio::io::sink());
            let _ = at_once(proxy::socks_request(program(), None));
            let known = "a:b".parse().expect("credentials");
            if at_once(proxy::socks_request(program(), Some(&known))).is_ok() {
                // User and password behind their lengths (RFC 1929).
                assert!(rest.windows(4).any(|it| it == [1, b'a', 1, b'b']));
            }
        }
    }
}

/// What comes of something that waits for nothing, as all of it is here.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// IP packets as a device or the other end gives them, and what a server says of addresses.
///
/// # Panics
/// If an answer to a packet is none to its sender, a packet changes its length or its ends, or the queue loses one or gives another.
pub fn tun(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    if choice % 2 == 1 {
        if let Ok(settings) = Settings::parse(rest) {
            let bytes = settings.to_bytes();
            assert_eq!(Settings::parse(&bytes[2..]), Ok(settings));
        }
        return;
    }
    let ends = packet::ends(rest);
    let mtu = usize::from(*choice) * 8;
    if let Some(answer) = packet::too_big(rest, mtu) {
        let (of, to) = (ends.expect("a packet"), packet::ends(&answer));
        let to = to.expect("an answer is a packet");
        assert_eq!((of.source, of.destination), (to.destination, to.source));
        assert!(answer.len() <= packet::MTU_MIN);
        assert_eq!(packet::too_big(&answer, mtu), None);
    }
    if let Some(segment) = Segment::of(rest) {
        turned(rest, &segment);
    }
    let _ = packet::must_stay_whole(rest);
    let mut clamped = rest.to_vec();
    packet::clamp_mss(&mut clamped, mtu);
    assert_eq!((clamped.len(), packet::ends(&clamped)), (rest.len(), ends));
    // Whatever it is, a queue gives it back, also under another of the same length, and marks it at most.
    let mut queue = FqCodel::new(1 << 20, 0);
    for _ in 0..2 {
        queue.push(0, clamped.clone());
    }
    let first = queue.pop(1).expect("it waits");
    assert_eq!(first.packet, clamped);
    for now in [200_000_000, u64::MAX] {
        queue.push(0, clamped.clone());
        let _ = queue.pop(now);
    }
}

/// A segment is turned round, and back, and answered.
fn turned(packet: &[u8], segment: &Segment) {
    let ports = |segment: &Segment| (segment.source.port(), segment.destination.port());
    let ips = |segment: &Segment| (segment.source.ip(), segment.destination.ip());
    let mut changed = packet.to_vec();
    segment.turn(&mut changed, (1, 65_535), true);
    let there = Segment::of(&changed).expect("a segment");
    assert_eq!(
        (ports(&there), ips(&there)),
        ((1, 65_535), (ips(segment).1, ips(segment).0))
    );
    // What was right is right, and what was wrong is wrong.
    assert_eq!(
        Sum::default().with(&changed).checksum(),
        Sum::default().with(packet).checksum()
    );
    there.turn(&mut changed, ports(segment), true);
    assert_eq!(Segment::of(&changed), Some(*segment));
    let answers = [
        segment.refused(),
        segment.unreachable(packet, Unreachable::Network),
        segment.unreachable(packet, Unreachable::Host),
    ];
    for answer in answers {
        let to = packet::ends(&answer.expect("an answer")).expect("a packet");
        assert_eq!((to.destination, to.source), ips(segment));
    }
}

/// An IPv4 or IPv6 packet of TCP with these flags.
fn segment((source, destination): (SocketAddr, SocketAddr), flags: u8) -> Vec<u8> {
    let mut packet = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let head = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            [&head[..], &from.octets(), &to.octets()].concat()
        }
        (from, to) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let head = [0x60, 0, 0, 0, 0, 20, 6, 64];
            [&head[..], &octets(from), &octets(to)].concat()
        }
    };
    packet.extend(source.port().to_be_bytes());
    packet.extend(destination.port().to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    packet
}

/// What programs send, what their kernel answers, what becomes of what was asked for, and time, in any order.
///
/// # Panics
/// If the table of connections contradicts itself, or a segment that goes back does not come from where an answer to it goes.
pub fn split(data: &[u8]) {
    const LISTENER: u16 = 9;
    let mut input = Input::new(data);
    let mut table: Table<u8> = Table::new(LISTENER);
    let mut now = Instant::now();
    let mut begun: Vec<(Connection, Id)> = Vec::new();
    let port = |input: &mut Input<'_>| input.pick(&[1, 2, LISTENER, 443, 65_535]);
    while !input.is_empty() {
        let choice = input.byte();
        let known = input.below(begun.len() as u64) as usize;
        let known = begun.get(known).copied();
        match (choice % 8, known) {
            (0..=3, _) => {
                let far: IpAddr = match input.below(3) {
                    2 => [7_u16; 8].into(),
                    last => [192, 0, 2, last as u8].into(),
                };
                let own: IpAddr = match far {
                    IpAddr::V4(_) => [10, 9, 0, 2].into(),
                    IpAddr::V6(_) => [8_u16; 8].into(),
                };
                let ends = (
                    SocketAddr::new(own, port(&mut input)),
                    SocketAddr::new(far, port(&mut input)),
                );
                let packet = segment(ends, input.byte());
                let heard = Segment::of(&packet).expect("a segment");
                match table.judge(&heard, now) {
                    Verdict::Begins(connection) => {
                        let id = table.begin(connection, packet, choice, now);
                        begun.extend(id.map(|id| (connection, id)));
                    }
                    Verdict::Back(source, destination) => {
                        let answer = segment(
                            (
                                SocketAddr::new(own, destination),
                                SocketAddr::new(far, source),
                            ),
                            0x10,
                        );
                        let answer = Segment::of(&answer).expect("a segment");
                        let back = Verdict::Back(ends.1.port(), ends.0.port());
                        assert_eq!(table.judge(&answer, now), back);
                    }
                    Verdict::Through | Verdict::Nowhere | Verdict::Unheard => {}
                }
            }
            (4, Some((connection, id))) => {
                if let Some(syn) = table.connected(&connection, id) {
                    let syn = Segment::of(&syn).expect("a segment");
                    assert_eq!(syn.destination.port(), LISTENER);
                    if choice >= 128 {
                        table.accepted(syn.source);
                        assert_eq!(table.accepted(syn.source), None);
                    }
                }
            }
            (5, Some((connection, id))) => {
                if choice >= 128 {
                    table.set_apart(connection.far, now);
                }
                let syn = table.refused(&connection, id);
                assert!(syn.is_none() || table.connected(&connection, id).is_none());
            }
            (6, Some((connection, id))) => table.over(&connection, id, now),
            _ => {
                now += Duration::from_secs(input.byte().into());
                table.sweep(now);
                if choice >= 128 {
                    table.renew();
                }
            }
        }
        table.check();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sphinx_fuzz::replay;

    use super::*;

    #[test]
    fn corpus() {
        replay("tunnel", tunnel);
        replay("tun", tun);
        replay("split", split);
    }

    proptest! {
        #[test]
        fn random(data in prop::collection::vec(any::<u8>(), 0..300)) {
            tunnel(&data);
            tun(&data);
        }

        #[test]
        fn random_connections(data in prop::collection::vec(any::<u8>(), 0..600)) {
            split(&data);
        }

        #[test]
        fn random_packets(choice in any::<u8>(), first in prop::sample::select(vec![0x45_u8, 0x46, 0x60]), rest in prop::collection::vec(any::<u8>(), 19..200), protocol in prop::sample::select(vec![1_u8, 6, 17, 44, 58])) {
            let mut packet = [&[choice, first][..], &rest].concat();
            let len = packet.len() - 1;
            match first {
                0x60 if len >= 40 => {
                    packet[5..7].copy_from_slice(&(len as u16 - 40).to_be_bytes());
                    packet[7] = protocol;
                }
                _ => {
                    packet[3..5].copy_from_slice(&(len as u16).to_be_bytes());
                    packet[10] = protocol;
                }
            }
            tun(&packet);
        }

        #[test]
        fn random_text(choice in 3..6_u8, text in "(tunnel:|listen:|tcp:|udp:|unix:|[a-z*.]{1,3}|[0-9]{1,5}|[:/\\[\\],=]|CONNECT |HTTP/1.1\r\n){1,12}") {
            tunnel(&[&[choice], text.as_bytes()].concat());
        }
    }
}
