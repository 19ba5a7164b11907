//! Which way packets leave: addresses, gateway, neighbours. Without a socket or a clock.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sphinx_ether::neighbours::{self, Heard};
use sphinx_ether::{Flow, Mac};
use sphinx_net::Destination;

use crate::config::Address;

/// How long an answer is good before it is asked for again; it is used until there is a new one.
const FRESH: Duration = Duration::from_secs(30);
/// How long to wait for an answer before asking again.
const AGAIN: Duration = Duration::from_millis(200);
/// Neighbours, and ends, that are remembered.
const NEIGHBOURS_MAX: usize = 1024;
const FLOWS_MAX: usize = 4096;

#[derive(Debug)]
struct Neighbour {
    mac: Option<Mac>,
    ask_at: Instant,
}

/// What becomes of a packet.
#[derive(Debug)]
pub(crate) enum Way {
    /// It leaves with these headers.
    Headers(Flow),
    /// It waits for this neighbour: who it is, and the packet's ends.
    Wait(IpAddr, (SocketAddr, SocketAddr)),
    /// There is no way.
    None,
}

/// An end of a link that has its own addresses.
#[derive(Debug)]
pub(crate) struct Link {
    mac: Mac,
    addresses: Vec<Address>,
    port: u16,
    neighbours: HashMap<IpAddr, Neighbour>,
    flows: HashMap<(SocketAddr, Option<IpAddr>), (Flow, Instant)>,
    /// Frames that ask or answer.
    out: Vec<Vec<u8>>,
}

impl Link {
    pub(crate) fn new(mac: Mac, addresses: Vec<Address>, port: u16) -> Self {
        Self {
            mac,
            addresses,
            port,
            neighbours: HashMap::new(),
            flows: HashMap::new(),
            out: Vec::new(),
        }
    }

    /// Whether packets to this address and port are for this end.
    pub(crate) fn is_own(&self, local: SocketAddr) -> bool {
        local.port() == self.port && self.addresses.iter().any(|own| own.ip == local.ip())
    }

    /// How a packet leaves.
    pub(crate) fn way(&mut self, to: &Destination, now: Instant) -> Way {
        let ends = (to.remote, to.local_ip);
        if let Some((flow, until)) = self.flows.get(&ends)
            && now < *until
        {
            return Way::Headers(flow.clone());
        }
        let remote = SocketAddr::new(to.remote.ip().to_canonical(), to.remote.port());
        let Some((source, next)) = self.route(remote.ip(), to.local_ip) else {
            return Way::None;
        };
        let local = SocketAddr::new(source, self.port);
        let Some(mac) = self.resolve(source, next, now) else {
            return Way::Wait(next, (local, remote));
        };
        let Some(flow) = Flow::new((self.mac, mac), local, remote) else {
            return Way::None;
        };
        if self.flows.len() >= FLOWS_MAX {
            self.flows.clear();
        }
        self.flows.insert(ends, (flow.clone(), now + AGAIN));
        Way::Headers(flow)
    }

    /// The address that a packet comes from, and who gets it.
    fn route(&self, remote: IpAddr, local: Option<IpAddr>) -> Option<(IpAddr, IpAddr)> {
        let usable = || {
            let mut own = self.addresses.iter();
            own.by_ref()
                .filter(move |own| {
                    own.ip.is_ipv4() == remote.is_ipv4()
                        && local.is_none_or(|local| local == own.ip)
                })
                .collect::<Vec<_>>()
        };
        let usable = usable();
        let near = usable.iter().find(|own| own.is_near(remote));
        let far = || usable.iter().find_map(|own| Some((own.ip, own.gateway?)));
        near.map(|own| (own.ip, remote)).or_else(far)
    }

    /// A neighbour's Ethernet address, which is asked for if need be.
    fn resolve(&mut self, source: IpAddr, next: IpAddr, now: Instant) -> Option<Mac> {
        if self.neighbours.len() >= NEIGHBOURS_MAX && !self.neighbours.contains_key(&next) {
            self.neighbours.clear();
        }
        let neighbour = self.neighbours.entry(next).or_insert(Neighbour {
            mac: None,
            ask_at: now,
        });
        if now >= neighbour.ask_at {
            neighbour.ask_at = now + AGAIN;
            self.out
                .extend(neighbours::question((source, self.mac), next));
        }
        neighbour.mac
    }

    /// Hears what a frame says of neighbours; of whom the Ethernet address has become known.
    pub(crate) fn hear(&mut self, frame: &[u8], now: Instant) -> Option<IpAddr> {
        match neighbours::read(frame)? {
            Heard::Question { target, from } => {
                let own = self.addresses.iter().find(|own| own.ip == target)?;
                self.out
                    .extend(neighbours::answer((own.ip, self.mac), from));
                // Who asks wants to talk; but only what was asked for is kept.
                self.learn(from.0, from.1, now)
            }
            Heard::Answer { ip, mac } => self.learn(ip, mac, now),
        }
    }

    fn learn(&mut self, ip: IpAddr, mac: Mac, now: Instant) -> Option<IpAddr> {
        let neighbour = self.neighbours.get_mut(&ip)?;
        neighbour.mac = Some(mac);
        neighbour.ask_at = now + FRESH;
        Some(ip)
    }

    /// The headers of a packet that has waited, now that its neighbour is known.
    pub(crate) fn headers(&self, next: IpAddr, ends: (SocketAddr, SocketAddr)) -> Option<Flow> {
        let mac = self.neighbours.get(&next)?.mac?;
        Flow::new((self.mac, mac), ends.0, ends.1)
    }

    /// Frames that are to be sent.
    pub(crate) fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sphinx_net::Ecn;

    fn to(text: &str) -> Destination {
        Destination {
            remote: text.parse().unwrap(),
            local_ip: None,
            ecn: Ecn::NotEct,
        }
    }

    /// One end asks, the other answers, and what is beyond goes to the gateway.
    #[test]
    fn neighbours_find_each_other() {
        let now = Instant::now();
        let own = vec![
            "10.0.0.1/24,gw=10.0.0.2".parse().unwrap(),
            "fd00::1/64".parse().unwrap(),
        ];
        let other = vec![
            "10.0.0.2/24".parse().unwrap(),
            "fd00::2/64".parse().unwrap(),
        ];
        let (mut here, mut there) = (Link::new([2; 6], own, 7), Link::new([4; 6], other, 9));
        for target in ["192.0.2.9:5", "[fd00::2]:9"] {
            let Way::Wait(next, ends) = here.way(&to(target), now) else {
                panic!()
            };
            // It is asked once for a while.
            assert!(matches!(here.way(&to(target), now), Way::Wait(..)));
            let [question] = &here.take_frames()[..] else {
                panic!()
            };
            assert_eq!(there.hear(question, now), None);
            let [answer] = &there.take_frames()[..] else {
                panic!()
            };
            assert_eq!(here.hear(answer, now), Some(next));
            assert!(here.headers(next, ends).is_some());
            assert!(matches!(here.way(&to(target), now), Way::Headers(_)));
            assert!(here.take_frames().is_empty());
        }
        assert!(matches!(here.way(&to("[fd01::1]:5"), now), Way::None));
        assert!(
            here.is_own("10.0.0.1:7".parse().unwrap())
                && !here.is_own("10.0.0.1:8".parse().unwrap())
        );
    }

    #[test]
    fn nobody_is_believed_who_was_not_asked() {
        let now = Instant::now();
        let mut here = Link::new([2; 6], vec!["10.0.0.1/24".parse().unwrap()], 7);
        let own = ("10.0.0.2".parse().unwrap(), [4; 6]);
        let unasked = neighbours::answer(own, ("10.0.0.1".parse().unwrap(), [2; 6])).unwrap();
        assert_eq!(here.hear(&unasked, now), None);
        assert!(matches!(here.way(&to("10.0.0.2:5"), now), Way::Wait(..)));
    }
}
