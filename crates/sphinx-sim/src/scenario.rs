//! Everything that makes a run, and the usual settings of it.

use std::time::Duration;

use sphinx_driver::PacketProtection;
use sphinx_fec::CodeId;
use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_proto::cc::{CcKind, Couple};
use sphinx_proto::{
    Bond, EPSILON, Icm, Nanos, Paper, PathMemory, PathPolicy, Profile, STREAMS_MAX, Sc,
};

use crate::SEC;
use crate::pair::Pair;
use crate::plain::Plain;
use crate::plan::{Plan, Write};
use crate::processor::Processor;

/// Everything that makes a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Of the bytes and of everything random at the ends.
    pub seed: u64,
    /// From the client to the server.
    pub forward: LinkConfig,
    /// The way back.
    pub backward: LinkConfig,
    /// Further paths from the client to the same server: when the client opens each, its way there and its way back.
    pub further: Vec<(Nanos, LinkConfig, LinkConfig)>,
    /// What several paths are for.
    pub bond: Bond,
    /// What the paths are to be used for, from the first on; others as usual.
    pub policies: Vec<PathPolicy>,
    /// When the client wants another mode, and which; in the order of time.
    pub bonds: Vec<(Nanos, Bond)>,
    /// What the client does.
    pub client: Plan,
    /// What the server does.
    pub server: Plan,
    /// Redundancy of both ends.
    pub profile: Profile,
    /// Their code; without one, nothing is repaired ahead of loss.
    pub code: Option<CodeId>,
    /// When both ends compensate losses.
    pub icm: Icm,
    /// Small blocks of which a repair may ride in one packet.
    pub bundle: u8,
    /// Share of first flights that may fail where they are protected ahead.
    pub epsilon: f64,
    /// Rate control of both ends.
    pub cc: CcKind,
    /// What their paths do that meet in one bottleneck.
    pub couple: Couple,
    /// The paper's mode at both ends, instead of profile, code and ICM.
    pub paper: Option<Paper>,
    /// Generations in a bounded buffer at both ends, likewise.
    pub sc: Option<Sc>,
    /// Bytes that an end may receive ahead of its reader.
    pub recv_window: u64,
    /// The most that this may grow to where it holds up what is read.
    pub window_max: u64,
    /// When the server changes its window whatever it holds, and to how many bytes.
    pub windows: Vec<(Nanos, u64)>,
    /// Until when nobody has accepted the session at the server, and how much the server receives until then.
    pub accepted: Option<(Nanos, u64)>,
    /// Bytes that an end may have under way.
    pub send_window: u64,
    /// Streams of each kind that an end may have open at a time.
    pub streams_max: u64,
    /// Silence after which the peer counts as lost, at the client and at the server.
    pub idle_timeout: [Nanos; 2],
    /// Whether the client, and the server, say little at rest.
    pub quiet: [bool; 2],
    /// Whether applications may leave streams unread for ever.
    pub readers_may_pause: bool,
    /// What both ends remember about the path.
    pub memory: Option<PathMemory>,
    /// What packets take of the client's processor, and of the server's.
    pub processors: [Processor; 2],
}

/// Both directions of the link of the measurements: `mbit` at the IP layer, a queue of one
/// bandwidth-delay product, MTU 1500; loss forward only, behind the limiter.
pub fn link(mbit: u64, rtt_ms: u64, loss: Loss, seed: u64) -> (LinkConfig, LinkConfig) {
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

/// Both directions of a way that adds to the round trip, and nothing else.
pub fn far(rtt_ms: u64) -> (LinkConfig, LinkConfig) {
    let way = LinkConfig {
        mtu: Some(1500),
        rate: Rate::Constant(1_000_000_000),
        queue: Depth::Bytes(1 << 24),
        delay: Duration::from_micros(rtt_ms * 500),
        ..LinkConfig::default()
    };
    (way.clone(), way)
}

impl Scenario {
    /// Default settings on a link.
    pub fn new((forward, backward): (LinkConfig, LinkConfig)) -> Self {
        Self {
            seed: forward.seed,
            forward,
            backward,
            further: Vec::new(),
            bond: Bond::Aggregate,
            policies: Vec::new(),
            bonds: Vec::new(),
            client: Plan::default(),
            server: Plan::default(),
            profile: Profile::Bulk,
            code: Some(CodeId::Rlc),
            icm: Icm::Default,
            bundle: 1,
            epsilon: EPSILON,
            cc: CcKind::Bbr,
            couple: Couple::default(),
            paper: None,
            sc: None,
            recv_window: 32 << 20,
            window_max: 0,
            windows: Vec::new(),
            accepted: None,
            send_window: 32 << 20,
            streams_max: STREAMS_MAX,
            idle_timeout: [15 * SEC; 2],
            quiet: [false; 2],
            readers_may_pause: false,
            memory: None,
            processors: [Processor::default(); 2],
        }
    }

    /// Both ends send `len` bytes on a stream of their own.
    pub fn both_ways(mut self, len: u64) -> Self {
        self.server.writes.push(Write {
            at: 0,
            stream: 0,
            len,
            end_of_stream: true,
        });
        self.bulk(len)
    }

    /// Applies a change to both directions of the link.
    pub fn on_links(mut self, change: impl Fn(&mut LinkConfig)) -> Self {
        change(&mut self.forward);
        change(&mut self.backward);
        self
    }

    /// The client opens another path at this time, over a link of its own.
    pub fn path(mut self, at: Nanos, (forward, backward): (LinkConfig, LinkConfig)) -> Self {
        self.further.push((at, forward, backward));
        self
    }

    /// The client sends this many bytes on stream 0.
    pub fn bulk(mut self, len: u64) -> Self {
        self.client.writes.push(Write {
            at: 0,
            stream: 0,
            len,
            end_of_stream: true,
        });
        self
    }

    /// The client hands over a block of `len` bytes every `interval`, `count` times.
    pub fn blocks(mut self, len: u64, interval: Nanos, count: u64) -> Self {
        self.profile = Profile::Latency;
        self.client.writes.extend((0..count).map(|i| Write {
            at: i * interval,
            stream: 0,
            len,
            end_of_stream: i + 1 == count,
        }));
        self
    }

    /// The two ends and their links, at time 0.
    pub fn build(&self) -> Pair {
        self.build_with(<[Plain; 2]>::default())
    }

    /// The same with another packet protection, the client's first.
    pub fn build_with<P: PacketProtection>(&self, protection: [P; 2]) -> Pair<P> {
        Pair::new(self, protection)
    }
}
