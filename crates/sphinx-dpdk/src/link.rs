//! Which way packets leave: addresses, gateway, neighbours. Without a socket or a clock.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_ether::neighbours::{self, Heard};
use sphinx_ether::{Flow, Mac};
use sphinx_net::{Destination, Waker};

use crate::config::Address;

/// How long an answer is good before it is asked for again; it is used until there is a new one.
const ANSWER_TTL: Duration = Duration::from_secs(30);
/// How long to wait for an answer before asking again.
const ASK_INTERVAL: Duration = Duration::from_millis(200);
/// The first and the last pause between two announcements; each is twice as long as the one before. A card's link may come up only some seconds after the card.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);
const ANNOUNCE_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Neighbours, and ends, that are remembered.
const NEIGHBOURS_MAX: usize = 1024;
const FLOWS_MAX: usize = 4096;

#[derive(Debug)]
struct Neighbour {
    mac: Option<Mac>,
    ask_at: Instant,
}

/// What the links of one port know of their neighbours together: an answer arrives at one of its queues, whoever has asked. The lock is
/// for making headers and for what is heard, not for each packet.
#[derive(Debug)]
pub(crate) struct Neighbours {
    known: Mutex<HashMap<IpAddr, Neighbour>>,
    /// How often one has become known, so that packets may leave that have waited; and whom to tell.
    learned: AtomicUsize,
    waiting: Vec<Waker>,
}

impl Neighbours {
    pub(crate) fn new(waiting: Vec<Waker>) -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            learned: AtomicUsize::new(0),
            waiting,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Neighbour>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Ethernet address of one, and whether to ask for it (again).
    fn look_up(&self, ip: IpAddr, now: Instant) -> (Option<Mac>, bool) {
        let mut known = self.lock();
        if known.len() >= NEIGHBOURS_MAX && !known.contains_key(&ip) {
            // Addresses that strangers have made up do not answer.
            known.retain(|_, neighbour| neighbour.mac.is_some());
            if known.len() >= NEIGHBOURS_MAX {
                known.clear();
            }
        }
        let neighbour = known.entry(ip).or_insert(Neighbour {
            mac: None,
            ask_at: now,
        });
        let is_due = now >= neighbour.ask_at;
        if is_due {
            neighbour.ask_at = now + ASK_INTERVAL;
        }
        (neighbour.mac, is_due)
    }

    /// Notes the Ethernet address of a neighbour, if it was asked for.
    fn learn(&self, ip: IpAddr, mac: Mac, now: Instant) {
        let was_unknown = match self.lock().get_mut(&ip) {
            None => return,
            Some(neighbour) => {
                neighbour.ask_at = now + ANSWER_TTL;
                neighbour.mac.replace(mac).is_none()
            }
        };
        if was_unknown {
            self.learned.fetch_add(1, Ordering::Release);
            for waker in &self.waiting {
                waker.wake();
            }
        }
    }
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
    neighbours: Arc<Neighbours>,
    /// How many neighbours had become known when it was last looked at.
    learned: usize,
    flows: HashMap<(SocketAddr, Option<IpAddr>), (Flow, Instant)>,
    /// When its addresses are announced next, and the pause behind that; `None` if they are not.
    announced: Option<(Instant, Duration)>,
    /// Frames to send: requests and replies.
    out: Vec<Vec<u8>>,
}

impl Link {
    pub(crate) fn new(
        mac: Mac,
        addresses: Vec<Address>,
        port: u16,
        neighbours: Arc<Neighbours>,
    ) -> Self {
        Self {
            mac,
            addresses,
            port,
            neighbours,
            learned: 0,
            flows: HashMap::new(),
            announced: None,
            out: Vec::new(),
        }
    }

    /// From now on its addresses are announced, a few times.
    pub(crate) fn begin_to_announce(&mut self, now: Instant) {
        self.announced = Some((now, ANNOUNCE_PAUSE));
    }

    /// When to [announce](Self::announce) its addresses next.
    pub(crate) fn announces_at(&self) -> Option<Instant> {
        self.announced.map(|(at, _)| at)
    }

    /// Tells all hosts on the link where its addresses are: they may know them at the card that had them before. Switches are told that questions for them are
    /// wanted here.
    pub(crate) fn announce(&mut self, now: Instant) {
        self.report_listening();
        let own = self.addresses.iter().map(|own| (own.ip, self.mac));
        self.out.extend(own.filter_map(neighbours::announcement));
        let again = self.announced;
        let again = again.filter(|(_, pause)| *pause <= ANNOUNCE_PAUSE_MAX);
        self.announced = again.map(|(_, pause)| (now + pause, 2 * pause));
    }

    fn report_listening(&mut self) {
        let own = self.addresses.iter().map(|own| own.ip);
        self.out.extend(neighbours::listener_report(own, self.mac));
    }

    /// IP addresses of this end.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|own| own.ip)
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
        self.flows.insert(ends, (flow.clone(), now + ASK_INTERVAL));
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
        let (mac, is_due) = self.neighbours.look_up(next, now);
        if is_due {
            self.out
                .extend(neighbours::request((source, self.mac), next));
        }
        mac
    }

    /// Takes in what a frame says of neighbours (ARP, neighbour discovery), and replies to requests for this end's addresses.
    pub(crate) fn hear(&mut self, frame: &[u8], now: Instant) {
        match neighbours::read(frame) {
            Some(Heard::Request { target, from }) => {
                // Whoever asks says where it is, if it has an address; who has moved to another card asks for its own (RFC 5227). But only what was
                // asked for is kept.
                if !from.0.is_unspecified() {
                    self.neighbours.learn(from.0, from.1, now);
                }
                if let Some(own) = self.addresses.iter().find(|own| own.ip == target) {
                    let reply = neighbours::reply((own.ip, self.mac), from);
                    self.out.extend(reply);
                }
            }
            Some(Heard::Reply { ip, mac }) => self.neighbours.learn(ip, mac, now),
            Some(Heard::ListenerQuery) => self.report_listening(),
            None => {}
        }
    }

    /// Whether a neighbour has become known since the last call, at whatever queue.
    pub(crate) fn has_news(&mut self) -> bool {
        let learned = self.neighbours.learned.load(Ordering::Acquire);
        std::mem::replace(&mut self.learned, learned) != learned
    }

    /// The headers of a packet that has waited, now that its neighbour is known.
    pub(crate) fn headers(&self, next: IpAddr, ends: (SocketAddr, SocketAddr)) -> Option<Flow> {
        let mac = self.neighbours.lock().get(&next)?.mac?;
        Flow::new((self.mac, mac), ends.0, ends.1)
    }

    /// Frames that are to be sent.
    pub(crate) fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use sphinx_net::Ecn;

    fn link(mac: Mac, addresses: Vec<Address>, port: u16) -> Link {
        Link::new(mac, addresses, port, Neighbours::new(Vec::new()))
    }

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
        let (mut here, mut there) = (link([2; 6], own, 7), link([4; 6], other, 9));
        for target in ["192.0.2.9:5", "[fd00::2]:9"] {
            let Way::Wait(next, ends) = here.way(&to(target), now) else {
                panic!()
            };
            // It is asked once for a while.
            assert!(matches!(here.way(&to(target), now), Way::Wait(..)));
            let [question] = &here.take_frames()[..] else {
                panic!()
            };
            there.hear(question, now);
            assert!(!there.has_news());
            let [answer] = &there.take_frames()[..] else {
                panic!()
            };
            here.hear(answer, now);
            assert!(here.has_news() && !here.has_news());
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

    /// Who looks for an address of its own hears whose it is, if it is ours, and becomes no neighbour by that.
    #[test]
    fn an_address_of_ours_is_not_free() {
        let now = Instant::now();
        let mut here = link([2; 6], vec!["fd00::1/64".parse().unwrap()], 7);
        let none: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        // As if packets were to go there.
        here.neighbours.look_up(none, now);
        for (target, answers) in [("fd00::1", 1), ("fd00::2", 0)] {
            let target: IpAddr = target.parse().unwrap();
            let asked = neighbours::request((none, [4; 6]), target).unwrap();
            here.hear(&asked, now);
            let frames = here.take_frames();
            assert_eq!(frames.len(), answers, "{target}");
            for frame in frames {
                // The answer goes to all hosts.
                assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
                let mac = [2; 6];
                let expected = Heard::Reply { ip: target, mac };
                assert_eq!(neighbours::read(&frame), Some(expected));
            }
        }
        assert!(!here.has_news());
    }

    #[test]
    fn nobody_is_believed_who_was_not_asked() {
        let now = Instant::now();
        let mut here = link([2; 6], vec!["10.0.0.1/24".parse().unwrap()], 7);
        let own = ("10.0.0.2".parse().unwrap(), [4; 6]);
        let unasked = neighbours::reply(own, ("10.0.0.1".parse().unwrap(), [2; 6])).unwrap();
        here.hear(&unasked, now);
        assert!(!here.has_news());
        assert!(matches!(here.way(&to("10.0.0.2:5"), now), Way::Wait(..)));
    }

    /// Who knew another card with an address learns of this one, and again in case the link was not up.
    #[test]
    fn addresses_are_announced_when_the_link_begins() {
        let start = Instant::now();
        let own = ["10.0.0.1/24", "fd00::1/64"].map(|own| own.parse().unwrap());
        let mut here = link([2; 6], own.to_vec(), 7);
        let others = ["10.0.0.2/24", "fd00::2/64"].map(|own| own.parse().unwrap());
        let mut there = link([4; 6], others.to_vec(), 9);
        assert_eq!(here.announces_at(), None);
        here.begin_to_announce(start);
        let mut announced = Vec::new();
        while let Some(now) = here.announces_at() {
            for peer in ["10.0.0.1:5", "[fd00::1]:5"] {
                there.way(&to(peer), now);
            }
            there.take_frames();
            here.announce(now);
            let frames = here.take_frames();
            // The third frame is for switches.
            assert_eq!(frames.len(), 3);
            frames.iter().for_each(|frame| there.hear(frame, now));
            for peer in ["10.0.0.1:5", "[fd00::1]:5"] {
                assert!(matches!(there.way(&to(peer), now), Way::Headers(_)));
            }
            assert!(there.take_frames().is_empty());
            announced.push((now - start).as_secs());
        }
        assert_eq!(announced, [0, 1, 3, 7]);
    }

    /// A neighbour's address may move to another card, which says so by a question for it that nobody needs to answer.
    #[test]
    fn who_has_moved_is_found_again() {
        let now = Instant::now();
        let own = vec!["10.0.0.1/24".parse().unwrap()];
        let mut here = link([2; 6], own, 7);
        let (peer, ip) = (to("10.0.0.2:5"), "10.0.0.2".parse().unwrap());
        assert!(matches!(here.way(&peer, now), Way::Wait(..)));
        assert_eq!(here.take_frames().len(), 1);
        for mac in [[4; 6], [6; 6]] {
            let moved = neighbours::request((ip, mac), ip).unwrap();
            here.hear(&moved, now);
            assert!(here.take_frames().is_empty());
            let Way::Headers(flow) = here.way(&peer, now + ASK_INTERVAL) else {
                panic!()
            };
            let mut frame = vec![0; flow.header_bytes()];
            flow.complete(&mut frame, 0);
            assert_eq!(frame[..6], mac);
            here.flows.clear();
        }
    }

    /// Packets to addresses that nobody has, as answers to strangers may be, take nothing from who is known.
    #[test]
    fn who_does_not_answer_is_forgotten_first() {
        let now = Instant::now();
        let own = vec!["10.0.0.1/8,gw=10.0.0.2".parse().unwrap()];
        let mut here = link([2; 6], own, 7);
        let far = to("192.0.2.1:5");
        assert!(matches!(here.way(&far, now), Way::Wait(..)));
        let gateway = ("10.0.0.2".parse().unwrap(), [4; 6]);
        let answer = neighbours::reply(gateway, ("10.0.0.1".parse().unwrap(), [2; 6])).unwrap();
        here.hear(&answer, now);
        for number in 0..2 * NEIGHBOURS_MAX as u32 {
            let ip = std::net::Ipv4Addr::from_bits(0x0a01_0000 + number);
            assert!(matches!(
                here.way(&to(&format!("{ip}:5")), now),
                Way::Wait(..)
            ));
            assert!(here.neighbours.lock().len() <= NEIGHBOURS_MAX);
        }
        // The way that was noted is old.
        let later = now + ASK_INTERVAL;
        assert!(matches!(here.way(&far, later), Way::Headers(_)));
    }

    /// What one queue asks for another one hears, and who waits is woken.
    #[test]
    fn links_of_one_port_know_the_same_neighbours() {
        let now = Instant::now();
        let waker = Waker::new().unwrap();
        let neighbours = Neighbours::new(vec![waker.clone()]);
        let [mut first, mut second] = [(); 2].map(|()| {
            let own = vec!["10.0.0.1/24".parse().unwrap()];
            Link::new([2; 6], own, 7, Arc::clone(&neighbours))
        });
        let Way::Wait(next, ends) = second.way(&to("10.0.0.2:5"), now) else {
            panic!()
        };
        let own = ("10.0.0.2".parse().unwrap(), [4; 6]);
        let answer = neighbours::reply(own, ("10.0.0.1".parse().unwrap(), [2; 6])).unwrap();
        first.hear(&answer, now);
        let woken = waker.wait(None, sphinx_net::Interest::Read, Some(0));
        assert!(woken.unwrap().woken);
        assert!(second.has_news() && second.headers(next, ends).is_some());
        // An answer that is known already is no news.
        first.hear(&answer, now);
        assert!(!second.has_news());
    }
}
