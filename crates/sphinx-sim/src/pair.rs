//! Two ends and the links between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sphinx_driver::PacketProtection;
use sphinx_link::{Datagram, Link};
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Config, ConnectionIds, Nanos, Role, Tuple};

use crate::MS;
use crate::end::End;
use crate::plain::Plain;
use crate::processor::Busy;
use crate::scenario::Scenario;

/// Where client and server are at the beginning.
pub const ADDRESSES: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 2000)];

/// Where the client is on its further path with this index.
pub fn further_address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, index as u8, 1], 1000))
}

/// Rounds at one point in time after which the ends count as stuck in a loop.
const SPIN_MAX: u32 = 1000;
/// Given the time, the sending end and its datagram, datagrams to send ahead of it.
pub type Tap = Box<dyn FnMut(Nanos, usize, &Datagram) -> Vec<Datagram>>;

/// A running simulation. Index 0 is the client and what it sends, 1 the server.
pub struct Pair<P = Plain> {
    /// The time.
    pub now: Nanos,
    /// The ends.
    pub ends: [End<P>; 2],
    /// The two directions.
    pub links: [Link<Datagram>; 2],
    /// The two directions of each further path.
    pub further: Vec<[Link<Datagram>; 2]>,
    /// The processors of the two ends.
    busy: [Busy; 2],
    /// Ends that no longer exist.
    pub cut: [bool; 2],
    /// Sees every datagram of an end before the link does, and adds others that overtake it.
    pub tap: Option<Tap>,
    /// UDP payload bytes that arrived where nobody is.
    pub astray: BTreeMap<SocketAddr, u64>,
    queue_samples: u64,
    queue_sum: u64,
    next_queue_sample: Nanos,
    /// Milliseconds between lines of a trace of the client, from `SPHINX_SIM_TRACE`.
    trace_ms: Option<u64>,
}

impl<P: PacketProtection> Pair<P> {
    pub(crate) fn new(scenario: &Scenario, protection: [P; 2]) -> Self {
        let rtt = (scenario.forward.delay + scenario.backward.delay).as_nanos() as Nanos;
        let addresses = ADDRESSES.map(SocketAddr::from);
        let cid = |id| ConnectionId::new([id; 8]).expect("not zero");
        let config = |role, peer: u8, local: u8| {
            let tuple = Tuple {
                remote: addresses[usize::from(peer) - 1],
                local_ip: None,
            };
            let ids = ConnectionIds {
                local: cid(local),
                peer: cid(peer),
            };
            let mut config = Config::new(role, tuple, ids);
            config.profile = scenario.profile;
            config.code = scenario.code;
            config.icm = scenario.icm;
            config.bundle = scenario.bundle;
            config.epsilon = scenario.epsilon;
            config.cc = scenario.cc;
            config.couple = scenario.couple;
            config.ecn =
                [&scenario.client, &scenario.server][usize::from(role == Role::Server)].ecn;
            config.paper = scenario.paper;
            config.sc = scenario.sc;
            config.initial_rtt = rtt;
            let end = usize::from(role == Role::Server);
            config.idle_timeout = scenario.idle_timeout[end];
            config.peer_idle_timeout = Some(scenario.idle_timeout[1 - end]);
            config.quiet = scenario.quiet[end];
            config.readers_may_pause = scenario.readers_may_pause;
            config.recv_window = scenario.recv_window;
            config.recv_streams = scenario.streams_max;
            config.send_window = scenario.send_window;
            config.peer_window = scenario.recv_window;
            config.peer_datagram_max = 9040;
            config.memory = scenario.memory;
            if !scenario.further.is_empty() {
                config.paths_max = 8;
                config.bond = Some(scenario.bond);
            }
            if let (Role::Client, Some(policy)) = (role, scenario.policies.first()) {
                config.policy = *policy;
            }
            let credit = scenario.accepted.map_or(u64::MAX, |(_, credit)| credit);
            match role {
                Role::Server => config.recv_credit = credit,
                Role::Client => config.peer_credit = credit,
            }
            config
        };
        let (client_seed, server_seed) = (scenario.seed << 1, (scenario.seed << 1) + 1);
        let [client_protection, server_protection] = protection;
        let client = End::new(
            config(Role::Client, 2, 1),
            client_protection,
            addresses[0],
            (&scenario.client, scenario.window_max),
            client_seed,
            (server_seed, &scenario.server),
        );
        let mut client = client;
        for (index, (at, ..)) in scenario.further.iter().enumerate() {
            let policy = scenario.policies.get(index + 1).copied();
            let place = (further_address(index), addresses[1]);
            client.will_open(*at, place, policy.unwrap_or_default());
        }
        client.bonds = scenario.bonds.iter().copied().collect();
        let mut server = End::new(
            config(Role::Server, 1, 2),
            server_protection,
            addresses[1],
            (&scenario.server, scenario.window_max),
            server_seed,
            (client_seed, &scenario.client),
        );
        server.windows = scenario.windows.iter().copied().collect();
        server.accepted_at = scenario.accepted.map(|(at, _)| at);
        Self {
            now: 0,
            ends: [client, server],
            links: [&scenario.forward, &scenario.backward]
                .map(|config| Link::new(config.clone()).expect("a valid link")),
            further: { scenario.further.iter() }
                .map(|(_, forward, backward)| {
                    [forward, backward]
                        .map(|config| Link::new(config.clone()).expect("a valid link"))
                })
                .collect(),
            busy: scenario.processors.map(Busy::new),
            cut: [false; 2],
            tap: None,
            astray: BTreeMap::new(),
            queue_samples: 0,
            queue_sum: 0,
            next_queue_sample: 0,
            trace_ms: std::env::var("SPHINX_SIM_TRACE")
                .ok()
                .and_then(|ms| ms.parse().ok()),
        }
    }

    /// The end that connects.
    pub fn client(&self) -> &End<P> {
        &self.ends[0]
    }

    /// The end that listens.
    pub fn server(&self) -> &End<P> {
        &self.ends[1]
    }

    /// Runs until `done`, or nothing more can happen, or `limit`; whether it was `done`.
    pub fn run_until(&mut self, limit: Nanos, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let mut out = Vec::new();
        let (mut spins, mut spinning_at) = (0, 0);
        loop {
            for side in 0..2 {
                if self.cut[side] {
                    continue;
                }
                self.drive(side, &mut out);
            }
            if done(self) {
                return true;
            }
            let mut next = Nanos::MAX;
            for side in 0..2 {
                if !self.cut[side] {
                    let wanted = self.ends[side].next_event();
                    next = next.min(self.busy[side].next_event(wanted).unwrap_or(Nanos::MAX));
                }
                let further = self.further.iter().map(|links| &links[side]);
                for link in further.chain([&self.links[side]]) {
                    next = next.min(link.next_event().unwrap_or(Nanos::MAX));
                }
            }
            if next > limit {
                self.now = self.now.max(limit);
                return false;
            }
            self.now = self.now.max(next);
            if self.now == spinning_at {
                spins += 1;
                assert!(spins < SPIN_MAX, "stuck in a loop at {} ns", self.now);
            } else {
                (spins, spinning_at) = (0, self.now);
            }
            self.sample_queue();
            for side in 0..2 {
                while let Some(datagram) = self.next_delivery(side) {
                    let end = &self.ends[1 - side];
                    if !end.is_at(datagram.destination) {
                        let bytes = self.astray.entry(datagram.destination).or_default();
                        *bytes += datagram.payload.len() as u64;
                    } else if self.busy[1 - side].is_limited() {
                        self.busy[1 - side].arrive(datagram);
                    } else if !self.cut[1 - side] {
                        self.ends[1 - side].receive(self.now, datagram);
                    }
                }
            }
        }
    }

    /// What an end has to do, as far as its processor has time for it.
    fn drive(&mut self, side: usize, out: &mut Vec<Datagram>) {
        while let Some(datagram) = self.busy[side].left(self.now) {
            self.depart(side, datagram);
        }
        if !self.busy[side].is_free(self.now) {
            return;
        }
        while let Some(datagram) = self.busy[side].take(self.now) {
            self.ends[side].receive(self.now, datagram);
        }
        self.ends[side].drive(self.now, out);
        for datagram in out.drain(..) {
            match self.busy[side].is_limited() {
                true => self.busy[side].send(self.now, datagram),
                false => self.depart(side, datagram),
            }
        }
    }

    fn depart(&mut self, side: usize, datagram: Datagram) {
        let taps = self.tap.iter_mut();
        for extra in taps.flat_map(|tap| tap(self.now, side, &datagram)) {
            self.links[side].enqueue(self.now, extra);
        }
        let now = self.now;
        self.way(side, &datagram).enqueue(now, datagram);
    }

    /// How long an end's processor has worked, and datagrams that arrived while its socket was full.
    pub fn worked(&self, side: usize) -> (Nanos, u64) {
        (self.busy[side].worked, self.busy[side].dropped)
    }

    /// The link that a datagram of this end takes.
    fn way(&mut self, side: usize, datagram: &Datagram) -> &mut Link<Datagram> {
        let client = [datagram.source, datagram.destination][side];
        let mut places = 0..self.further.len();
        match places.find(|index| further_address(*index) == client) {
            Some(index) => &mut self.further[index][side],
            None => &mut self.links[side],
        }
    }

    /// What arrives of this end now.
    fn next_delivery(&mut self, side: usize) -> Option<Datagram> {
        let further = self.further.iter_mut().map(|links| &mut links[side]);
        let mut links = [&mut self.links[side]].into_iter().chain(further);
        links.find_map(|link| link.poll(self.now).map(|delivery| delivery.packet))
    }

    fn sample_queue(&mut self) {
        while self.next_queue_sample <= self.now {
            self.next_queue_sample += MS;
            self.queue_samples += 1;
            self.queue_sum += self.links[0].queue_bytes();
            if self
                .trace_ms
                .is_some_and(|ms| self.queue_samples.is_multiple_of(ms.max(1)))
            {
                self.trace();
            }
        }
    }

    fn trace(&self) {
        let (s, link) = (self.client().session().stats(), &self.links[0]);
        println!(
            "{:8} ms: {:6.1} Mbit/s, cwnd {:7}, rtt {:6.2} ms, plr {:.3}, sent {} + {} + {}, delivered {}, \
             queue {:7}, drops {} + {}, redundant {}, spurious {}",
            self.queue_samples,
            s.pacing_rate as f64 * 8e-6,
            s.cwnd,
            s.rtt as f64 * 1e-6,
            s.plr,
            s.source_sent,
            s.repair_proactive,
            s.repair_reactive,
            s.block_bytes_delivered,
            link.queue_bytes(),
            link.counters().dropped_queue,
            link.counters().dropped_policer,
            self.server().session().stats().symbols_redundant,
            s.losses_spurious,
        );
    }

    /// Mean bytes waiting in the forward queue.
    pub fn mean_queue(&self) -> u64 {
        self.queue_sum / self.queue_samples.max(1)
    }

    /// Runs until both ends know that everything they sent has arrived; whether they do.
    pub fn run_transfer(&mut self, limit: Nanos) -> bool {
        let is_done = |end: &End<P>| end.all_delivered() && end.has_said_all();
        self.run_until(limit, |pair| pair.ends.iter().all(is_done))
    }

    /// Runs a transfer that must arrive within `limit`, and checks what must hold afterwards.
    ///
    /// # Panics
    ///
    /// If it does not, or an invariant is broken.
    pub fn must_transfer(&mut self, limit: Nanos) {
        // The peer may still be decoding when this end knows that it has enough, and its application reading.
        let read = |pair: &mut Self| {
            (0..2).all(|side| {
                let (end, peer) = (&pair.ends[side], &pair.ends[1 - side]);
                let has_given_up = |index| end.given_up().any(|(id, _)| id.index() == index);
                let is_over = |(index, len)| {
                    peer.leaves_unread(index)
                        || peer.stream_read(index) == Some(len)
                        || peer.has_stopped(index)
                        || has_given_up(index) && peer.stream_given_up(index)
                };
                let stops = end.streams().any(|(index, _)| peer.has_stopped(index));
                let gives_up = stops || end.given_up().next().is_some();
                // Of datagrams that did not arrive the peer hears later, and what else was in the blocks of a stream comes later.
                let is_left = (end.has_said_any() || gives_up) && peer.rx_held() > 0;
                let may_be_left = end.streams().any(|(id, _)| peer.leaves_unread(id));
                (gives_up || end.bytes_written() == peer.bytes_received)
                    && end.streams().all(is_over)
                    && (!is_left || may_be_left)
            })
        };
        if !self.run_transfer(limit) || !self.run_until(limit, read) {
            self.explain("not done");
        }
        for (end, peer) in [(0, 1), (1, 0)].map(|(a, b)| (&self.ends[a], &self.ends[b])) {
            let stats = end.session().stats();
            let leaving = stats.ip_bytes_sent - end.ip_bytes_sent;
            assert!(leaving == 0 || end.seals_later(), "sent without a trace");
            assert_eq!(
                stats.packets_refused, 0,
                "an honest peer keeps to the limits"
            );
            let (received, sent) = (stats.packets_received, peer.session().stats().packets_sent);
            assert!(received <= sent, "a packet opened twice");
            assert_eq!(end.tx_held(), 0, "memory of blocks that have arrived");
            let all_read = peer.streams().all(|(id, _)| !end.leaves_unread(id));
            assert!(
                end.rx_held() == 0 || !all_read,
                "memory of blocks that have been read"
            );
            for (index, len) in end.streams() {
                let read = peer.stream_read(index);
                let is_whole = end.has_finished(index) && read == Some(len);
                assert!(is_whole || read.is_none(), "half a stream looks whole");
            }
            assert!(end.events.is_empty(), "{:?}", end.events);
        }
    }

    fn explain(&self, what: &str) {
        for (end, link) in self.ends.iter().zip(&self.links) {
            println!("{:?}", end.session().stats());
            for path in end.session().path_stats() {
                println!("{path:?}");
            }
            println!("{:?}", link.counters());
            println!(
                "written {} received {}",
                end.bytes_written(),
                end.bytes_received
            );
            println!("{:?}", end.events);
            end.explain();
        }
        panic!("{what} at {} ms", self.now / MS);
    }
}
