//! Two ends and the links between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use sphinx_fec::CodeId;
use sphinx_link::{Depth, Link, LinkConfig, Loss, Rate};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Config, Icm, Nanos, PathMemory, Profile, Role, Tuple};

use crate::end::{Datagram, End, IP_OVERHEAD, Plan, Write};

pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const SEC: Nanos = 1_000_000_000;

/// Where client and server are at the beginning.
pub(crate) const ADDRESSES: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 2000)];

/// Rounds at one point in time after which the ends count as stuck in a loop.
const SPIN_MAX: u32 = 1000;

/// Everything that makes a run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// From the client to the server.
    pub(crate) forward: LinkConfig,
    pub(crate) backward: LinkConfig,
    pub(crate) client: Plan,
    pub(crate) server: Plan,
    pub(crate) profile: Profile,
    pub(crate) code: Option<CodeId>,
    pub(crate) icm: Icm,
    pub(crate) cc: CcKind,
    pub(crate) recv_window: u64,
    pub(crate) send_window: u64,
    pub(crate) idle_timeout: Nanos,
    /// What both ends remember about the path.
    pub(crate) memory: Option<PathMemory>,
}

/// Both directions of the link of the measurements: `mbit` at the IP layer, a queue of one
/// bandwidth-delay product, MTU 1500; loss forward only, behind the limiter.
pub(crate) fn link(mbit: u64, rtt_ms: u64, loss: Loss, seed: u64) -> (LinkConfig, LinkConfig) {
    let rate = mbit * 1_000_000;
    let forward = LinkConfig {
        seed,
        mtu: Some(1500),
        rate: Rate::Constant(rate),
        queue: Depth::Bytes((rate / 8 * rtt_ms / 1000).max(6000)),
        loss,
        delay: Duration::from_micros(rtt_ms * 500),
        ..LinkConfig::default()
    };
    let backward = LinkConfig {
        seed: seed ^ 0xb,
        loss: Loss::None,
        ..forward.clone()
    };
    (forward, backward)
}

impl Scenario {
    /// Default settings on a link.
    pub(crate) fn new((forward, backward): (LinkConfig, LinkConfig)) -> Self {
        Self {
            seed: forward.seed,
            forward,
            backward,
            client: Plan::default(),
            server: Plan::default(),
            profile: Profile::Bulk,
            code: Some(CodeId::Rlc),
            icm: Icm::Default,
            cc: CcKind::Bbr,
            recv_window: 32 << 20,
            send_window: 32 << 20,
            idle_timeout: 15 * SEC,
            memory: None,
        }
    }

    /// Both ends send `len` bytes on a stream of their own.
    pub(crate) fn both_ways(mut self, len: u64) -> Self {
        self.server.writes.push(Write {
            at: 0,
            stream: 1,
            len,
            end_of_stream: true,
        });
        self.bulk(len)
    }

    /// Applies a change to both directions of the link.
    pub(crate) fn on_links(mut self, change: impl Fn(&mut LinkConfig)) -> Self {
        change(&mut self.forward);
        change(&mut self.backward);
        self
    }

    /// The client sends this many bytes on stream 0.
    pub(crate) fn bulk(mut self, len: u64) -> Self {
        self.client.writes.push(Write {
            at: 0,
            stream: 0,
            len,
            end_of_stream: true,
        });
        self
    }

    /// The client hands over a block of `len` bytes every `interval`, `count` times.
    pub(crate) fn blocks(mut self, len: u64, interval: Nanos, count: u64) -> Self {
        self.profile = Profile::Latency;
        self.client.writes.extend((0..count).map(|i| Write {
            at: i * interval,
            stream: 0,
            len,
            end_of_stream: i + 1 == count,
        }));
        self
    }

    pub(crate) fn build(&self) -> Pair {
        let rtt = (self.forward.delay + self.backward.delay).as_nanos() as Nanos;
        let addresses = ADDRESSES.map(SocketAddr::from);
        let config = |role, peer: u8, local: u8| Config {
            role,
            peer_cid: ConnectionId::new([peer; 8]).expect("not zero"),
            local_cid: ConnectionId::new([local; 8]).expect("not zero"),
            tuple: Tuple {
                remote: addresses[usize::from(peer) - 1],
                local_ip: None,
            },
            profile: self.profile,
            code: self.code,
            icm: self.icm,
            cc: self.cc,
            initial_rtt: rtt,
            idle_timeout: self.idle_timeout,
            recv_window: self.recv_window,
            send_window: self.send_window,
            peer_window: self.recv_window,
            ip_overhead: IP_OVERHEAD,
            mtu_candidates: sphinx_proto::mtu_candidates(IP_OVERHEAD),
            peer_datagram_max: 9040,
            memory: self.memory,
        };
        let (client_seed, server_seed) = (self.seed << 1, (self.seed << 1) + 1);
        let client = End::new(
            config(Role::Client, 2, 1),
            addresses[0],
            self.client.clone(),
            client_seed,
            server_seed,
        );
        let server = End::new(
            config(Role::Server, 1, 2),
            addresses[1],
            self.server.clone(),
            server_seed,
            client_seed,
        );
        Pair {
            now: 0,
            ends: [client, server],
            links: [&self.forward, &self.backward]
                .map(|config| Link::new(config.clone()).expect("a valid link")),
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
}

/// Given the sending end and its datagram, datagrams to send ahead of it.
pub(crate) type Tap = Box<dyn FnMut(usize, &Datagram) -> Vec<Datagram>>;

/// A running simulation. Index 0 is the client and what it sends, 1 the server.
pub(crate) struct Pair {
    pub(crate) now: Nanos,
    pub(crate) ends: [End; 2],
    pub(crate) links: [Link<Datagram>; 2],
    /// Ends that no longer exist.
    pub(crate) cut: [bool; 2],
    /// Sees every datagram of an end before the link does, and adds others that overtake it.
    pub(crate) tap: Option<Tap>,
    /// UDP payload bytes that arrived where nobody is.
    pub(crate) astray: BTreeMap<SocketAddr, u64>,
    queue_samples: u64,
    queue_sum: u64,
    next_queue_sample: Nanos,
    /// Milliseconds between lines of a trace of the client, from `SPHINX_SIM_TRACE`.
    trace_ms: Option<u64>,
}

impl Pair {
    pub(crate) fn client(&self) -> &End {
        &self.ends[0]
    }

    pub(crate) fn server(&self) -> &End {
        &self.ends[1]
    }

    /// Runs until `done`, or nothing more can happen, or `limit`; whether it was `done`.
    pub(crate) fn run_until(
        &mut self,
        limit: Nanos,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let mut out = Vec::new();
        let (mut spins, mut spinning_at) = (0, 0);
        loop {
            for side in 0..2 {
                if self.cut[side] {
                    continue;
                }
                self.ends[side].drive(self.now, &mut out);
                for datagram in out.drain(..) {
                    for extra in self.tap.iter_mut().flat_map(|tap| tap(side, &datagram)) {
                        self.links[side].enqueue(self.now, extra);
                    }
                    self.links[side].enqueue(self.now, datagram);
                }
            }
            if done(self) {
                return true;
            }
            let mut next = Nanos::MAX;
            for side in 0..2 {
                if !self.cut[side] {
                    next = next.min(self.ends[side].next_event().unwrap_or(Nanos::MAX));
                }
                next = next.min(self.links[side].next_event().unwrap_or(Nanos::MAX));
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
                while let Some(delivery) = self.links[side].poll(self.now) {
                    if delivery.packet.to != self.ends[1 - side].address {
                        let bytes = self.astray.entry(delivery.packet.to).or_default();
                        *bytes += delivery.packet.len() as u64;
                    } else if !self.cut[1 - side] {
                        self.ends[1 - side].receive(self.now, &delivery.packet);
                    }
                }
            }
        }
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
        let (s, link) = (self.client().session.stats(), &self.links[0]);
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
            self.server().session.stats().symbols_redundant,
            s.losses_spurious,
        );
    }

    /// Mean bytes waiting in the forward queue.
    pub(crate) fn mean_queue(&self) -> u64 {
        self.queue_sum / self.queue_samples.max(1)
    }

    /// Runs until both ends know that everything they sent has arrived; whether they do.
    pub(crate) fn run_transfer(&mut self, limit: Nanos) -> bool {
        self.run_until(limit, |pair| pair.ends.iter().all(End::all_delivered))
    }

    /// Runs a transfer that must arrive within `limit`, and checks what must hold afterwards.
    pub(crate) fn must_transfer(&mut self, limit: Nanos) {
        // The peer may still be decoding when this end knows that it has enough.
        let arrived = |pair: &mut Self| {
            (0..2).all(|side| {
                let (end, peer) = (&pair.ends[side], &pair.ends[1 - side]);
                end.bytes_written() == peer.bytes_received
                    && end.streams().all(|stream| peer.stream_ended(stream))
            })
        };
        if !self.run_transfer(limit) || !self.run_until(limit, arrived) {
            self.explain("not done");
        }
        for end in &self.ends {
            let stats = end.session.stats();
            assert_eq!(stats.ip_bytes_sent, end.ip_bytes_sent);
            assert_eq!(
                stats.packets_refused, 0,
                "an honest peer keeps to the limits"
            );
            assert_eq!(end.tx_slots_in_use(), 0);
            assert!(end.events.is_empty(), "{:?}", end.events);
        }
    }

    fn explain(&self, what: &str) {
        for (end, link) in self.ends.iter().zip(&self.links) {
            println!("{:?}", end.session.stats());
            println!("{:?}", link.counters());
            println!(
                "written {} received {}",
                end.bytes_written(),
                end.bytes_received
            );
            println!("{:?}", end.events);
        }
        panic!("{what} at {} ms", self.now / MS);
    }
}
