//! Several sessions over one link.

use sphinx_link::{Datagram, Link, LinkConfig, Packet};
use sphinx_proto::Nanos;

use crate::end::End;
use crate::pair::further_address;
use crate::plain::Plain;
use crate::scenario::Scenario;

/// A datagram, and the place of its session.
struct Of(usize, Datagram);

impl Packet for Of {
    fn ip_len(&self) -> usize {
        self.1.ip_len()
    }

    fn ecn(&self) -> u8 {
        self.1.ecn()
    }

    fn set_ecn(&mut self, ecn: u8) {
        self.1.set_ecn(ecn);
    }

    fn corruptible_bits(&self) -> u64 {
        self.1.corruptible_bits()
    }

    fn flip_bit(&mut self, bit: u64) {
        self.1.flip_bit(bit);
    }

    fn duplicate(&self) -> Self {
        Self(self.0, self.1.duplicate())
    }
}

/// A path's own link, if it has one, and the common one that it leads to.
struct Way {
    own: Option<[Link<Datagram>; 2]>,
    common: usize,
}

/// Where the paths of several sessions meet.
///
/// In each session, index 0 is the client, which sends forward, and 1 the server. Forward, a packet takes the link of its path and then a common
/// one; back, it is the other way round.
pub struct Shared {
    /// The time.
    pub now: Nanos,
    /// The ends of each session.
    pub sessions: Vec<[End<Plain>; 2]>,
    /// Paths of each session.
    ways: Vec<Vec<Way>>,
    commons: Vec<[Link<Of>; 2]>,
}

impl Shared {
    /// The sessions of these scenarios over one link of both directions, and no other; their own links count for the round trip that they expect first.
    pub fn new(common: &(LinkConfig, LinkConfig), scenarios: &[Scenario]) -> Self {
        let sessions: Vec<(Scenario, Vec<usize>)> = { scenarios.iter() }
            .map(|one| (one.clone(), vec![0; 1 + one.further.len()]))
            .collect();
        let mut shared = Self::over(std::slice::from_ref(common), &sessions);
        for way in shared.ways.iter_mut().flatten() {
            way.own = None;
        }
        shared
    }

    /// Sessions each of whose paths leads over its own link to one of the common ones, given by its place.
    pub fn over(commons: &[(LinkConfig, LinkConfig)], sessions: &[(Scenario, Vec<usize>)]) -> Self {
        let ways = |(scenario, places): &(Scenario, Vec<usize>)| {
            let first = (&scenario.forward, &scenario.backward);
            let further = scenario
                .further
                .iter()
                .map(|(_, there, back)| (there, back));
            let links = [first].into_iter().chain(further);
            let ways = links.zip(places).map(|((there, back), common)| Way {
                own: Some([made(there), made(back)]),
                common: *common,
            });
            ways.collect()
        };
        Self {
            now: 0,
            sessions: { sessions.iter() }
                .map(|(scenario, _)| scenario.build().ends)
                .collect(),
            ways: sessions.iter().map(ways).collect(),
            commons: { commons.iter() }
                .map(|(there, back)| [made(there), made(back)])
                .collect(),
        }
    }

    /// Which path of its session a datagram of this end is on.
    fn path(&self, session: usize, side: usize, datagram: &Datagram) -> usize {
        let client = [datagram.source, datagram.destination][side];
        let further = 1..self.ways[session].len();
        let is_its = |path: &usize| further_address(path - 1) == client;
        further.into_iter().find(is_its).unwrap_or(0)
    }

    /// A datagram leaves an end.
    fn depart(&mut self, session: usize, side: usize, datagram: Datagram) {
        let path = self.path(session, side, &datagram);
        let way = &mut self.ways[session][path];
        match &mut way.own {
            Some(links) if side == 0 => links[0].enqueue(self.now, datagram),
            _ => self.commons[way.common][side].enqueue(self.now, Of(session, datagram)),
        }
    }

    /// What has come through a common link goes on.
    fn pass(&mut self, session: usize, side: usize, datagram: Datagram) {
        let path = self.path(session, side, &datagram);
        match &mut self.ways[session][path].own {
            Some(links) if side == 1 => links[1].enqueue(self.now, datagram),
            _ => self.sessions[session][1 - side].receive(self.now, datagram),
        }
    }

    /// Moves what has come through a link by now; whether anything had.
    fn carry(&mut self) -> bool {
        let mut moved = false;
        for (session, ways) in self.ways.iter_mut().enumerate() {
            for way in ways {
                let Some(links) = &mut way.own else { continue };
                while let Some(delivery) = links[0].poll(self.now) {
                    moved = true;
                    let packet = Of(session, delivery.packet);
                    self.commons[way.common][0].enqueue(self.now, packet);
                }
                while let Some(delivery) = links[1].poll(self.now) {
                    moved = true;
                    self.sessions[session][0].receive(self.now, delivery.packet);
                }
            }
        }
        for common in 0..self.commons.len() {
            for side in 0..2 {
                while let Some(delivery) = self.commons[common][side].poll(self.now) {
                    moved = true;
                    let Of(session, datagram) = delivery.packet;
                    self.pass(session, side, datagram);
                }
            }
        }
        moved
    }

    /// Bytes that wait forward in front of the common link at this place.
    pub fn queue_bytes(&self, common: usize) -> u64 {
        self.commons[common][0].queue_bytes()
    }

    /// Runs until this time.
    pub fn run_until(&mut self, limit: Nanos) {
        let mut out = Vec::new();
        loop {
            for session in 0..self.sessions.len() {
                for side in 0..2 {
                    self.sessions[session][side].drive(self.now, &mut out);
                    for datagram in out.drain(..) {
                        self.depart(session, side, datagram);
                    }
                }
            }
            let own = self.ways.iter().flatten();
            let own = own.filter_map(|way| way.own.as_ref()).flatten();
            let own = own.filter_map(Link::next_event);
            let commons = self.commons.iter().flatten().filter_map(Link::next_event);
            let ends = self.sessions.iter_mut().flatten();
            let next = ends.filter_map(End::next_event).chain(own).chain(commons);
            let Some(next) = next.min().filter(|next| *next <= limit) else {
                self.now = self.now.max(limit);
                return;
            };
            self.now = self.now.max(next);
            while self.carry() {}
        }
    }
}

fn made<P: Packet>(config: &LinkConfig) -> Link<P> {
    Link::new(config.clone()).expect("a valid link")
}
