//! How packets leave a bridge.
//!
//! The machine need not have an address there, nor a route to anybody: what the agent sends by itself leaves by the port by which the last packet
//! of its connection has left that way, between the Ethernet addresses from which the two hosts send. Until both are known, which
//! they are once the connection has begun, packets go on as they came.
//!
//! Any station may send packets in the name of another host, and a bridge forwards them. So a way is learned from packets only whose numbers nobody guesses: what is sent
//! again, and everything that waits here for the hop, would go to that station otherwise.

use std::{collections::HashMap, io, net::SocketAddr};

use sphinx_netdev::nfqueue::{FrameSender, Mac, Queued, Way};

use crate::segment::Segment;

/// When there are so many ways, those are forgotten that were not used since there were so many before.
const WAYS_MAX: usize = 16_384;

/// Source and destination of packets.
type Ends = (SocketAddr, SocketAddr);

/// By which port packets leave, and from which Ethernet address they come.
type Leaving = (u32, Mac);

/// What is known of a bridge, one port of which is the wireless interface.
#[derive(Debug)]
pub(super) struct Ports {
    wireless: u32,
    /// Ways of packets that have come lately, and ways that are forgotten when as many new ones are there.
    ways: [HashMap<Ends, Leaving>; 2],
    sender: FrameSender,
}

impl Ports {
    /// `wireless` is the number of the wireless interface, which is a port.
    pub(super) fn new(wireless: u32) -> Ports {
        Ports {
            wireless,
            ways: [HashMap::new(), HashMap::new()],
            sender: FrameSender::default(),
        }
    }

    /// Whether a packet came in by the wireless interface. `None` if it has no way that could be learned, or comes by another one.
    pub(super) fn is_incoming(&self, queued: &Queued<'_>) -> Option<bool> {
        let [from, to] = queued.ports.filter(|_| queued.link_source.is_some())?;
        // Rules go by the name of the interface, which may be another one's by now.
        let is_here = from == self.wireless || to == self.wireless;
        is_here.then_some(from == self.wireless)
    }

    /// Takes note of the way of a packet. Another way than is known is its connection's if `is_of_host`: if nobody else has sent it in the name of its host.
    pub(super) fn learn(&mut self, queued: &Queued<'_>, is_of_host: impl FnOnce() -> bool) {
        let leaving = queued.ports.map(|[_, to]| to).zip(queued.link_source);
        let (Some(leaving), Ok(ends)) = (leaving, Segment::ends(queued.packet)) else {
            return;
        };
        if self.ways[0].get(&ends) == Some(&leaving) {
            return;
        }
        if self.leaving(&ends) != Some(leaving) && !is_of_host() {
            return;
        }
        let [lately, before] = &mut self.ways;
        if lately.len() >= WAYS_MAX && !lately.contains_key(&ends) {
            *before = std::mem::take(lately);
        }
        lately.insert(ends, leaving);
    }

    /// Whether such a packet could be sent from here.
    pub(super) fn know_way_of(&self, packet: &[u8]) -> bool {
        Segment::ends(packet).is_ok_and(|ends| self.way(ends).is_some())
    }

    fn leaving(&self, ends: &Ends) -> Option<Leaving> {
        let mut known = self.ways.iter().filter_map(|ways| ways.get(ends));
        known.next().copied()
    }

    fn way(&self, (source, destination): Ends) -> Option<Way> {
        let (port, from) = self.leaving(&(source, destination))?;
        let (_, to) = self.leaving(&(destination, source))?;
        Some(Way {
            port,
            source: from,
            destination: to,
        })
    }

    /// Sends a packet the way that others took.
    pub(super) fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let way = Segment::ends(packet)
            .ok()
            .and_then(|ends| self.way(ends))
            .ok_or(io::ErrorKind::HostUnreachable)?;
        self.sender.send(&way, packet)
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const WIRELESS: u32 = 3;
    const WIRED: u32 = 4;
    const STATION: Mac = [2, 0, 0, 0, 0, 9];
    const ROUTER: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 66];

    /// From the station to the router, or back.
    fn packet(port: u16, is_up: bool) -> Vec<u8> {
        let (station, server) = (([10, 0, 0, 9], port), ([192, 0, 2, 1], 443));
        let (from, to) = match is_up {
            true => (station, server),
            false => (server, station),
        };
        let ip = PacketBuilder::ipv4(from.0, to.0, 64);
        let mut packet = Vec::new();
        let tcp = ip.tcp(from.1, to.1, 1, 1000);
        tcp.write(&mut packet, &[]).expect("a packet");
        packet
    }

    /// Whether it came in by the wireless interface.
    fn come(ports: &mut Ports, packet: &[u8], from: Mac, is_of_host: bool) -> Option<bool> {
        let way = match from {
            ROUTER => [WIRED, WIRELESS],
            _ => [WIRELESS, WIRED],
        };
        let queued = Queued {
            id: 1,
            hook: 2,
            packet,
            ports: Some(way),
            link_source: Some(from),
        };
        let is_incoming = ports.is_incoming(&queued);
        ports.learn(&queued, || is_of_host);
        is_incoming
    }

    fn to_station(ports: &Ports, port: u16) -> Option<Way> {
        Segment::ends(&packet(port, false))
            .ok()
            .and_then(|ends| ports.way(ends))
    }

    #[test]
    fn a_station_gets_nothing_that_is_for_another_one() {
        let (up, down) = (packet(1000, true), packet(1000, false));
        let mut ports = Ports::new(WIRELESS);
        let way = |destination| Way {
            port: WIRELESS,
            source: ROUTER,
            destination,
        };
        assert_eq!(come(&mut ports, &down, ROUTER, true), Some(false));
        // Before the station itself was heard, and afterwards.
        assert_eq!(come(&mut ports, &up, OTHER, false), Some(true));
        assert!(!ports.know_way_of(&down));
        come(&mut ports, &up, STATION, true);
        assert_eq!(to_station(&ports, 1000), Some(way(STATION)));
        come(&mut ports, &up, OTHER, false);
        assert_eq!(to_station(&ports, 1000), Some(way(STATION)));
        // Of another connection of the two hosts, nothing is known by that.
        assert_eq!(to_station(&ports, 1001), None);
        // A host may get another address.
        come(&mut ports, &up, OTHER, true);
        assert_eq!(to_station(&ports, 1000), Some(way(OTHER)));
        // What comes by other ports is none of this agent's business.
        let queued = Queued {
            id: 1,
            hook: 2,
            packet: &up,
            ports: Some([WIRED, WIRED + 1]),
            link_source: Some(STATION),
        };
        assert_eq!(ports.is_incoming(&queued), None);
    }

    #[test]
    fn ways_that_are_used_are_not_forgotten_for_others() {
        let mut ports = Ports::new(WIRELESS);
        let meet = |ports: &mut Ports, port: u16, is_of_host: bool| {
            come(ports, &packet(port, true), STATION, is_of_host);
            come(ports, &packet(port, false), ROUTER, is_of_host);
        };
        meet(&mut ports, 1, true);
        meet(&mut ports, 2, true);
        for port in 3..50_000 {
            meet(&mut ports, port, true);
            if port % 1000 == 0 {
                meet(&mut ports, 1, false);
                assert!(to_station(&ports, 1).is_some(), "{port}");
            }
        }
        assert!(to_station(&ports, 2).is_none());
        assert!(ports.ways.iter().all(|ways| ways.len() <= WAYS_MAX));
    }
}
