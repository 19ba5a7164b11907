//! What a session is asked for.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[cfg(feature = "dpdk")]
use sphinx_dpdk::DpdkConfig;
use sphinx_fec::CodeId;
use sphinx_proto::{Bond, Config, Nanos, PathPolicy};
use sphinx_workers::{usable_cpus, workers_for};

pub use sphinx_net::Family;
pub use sphinx_proto::EcnMode;
pub use sphinx_proto::cc::{CcKind as Cc, Couple};
use sphinx_proto::{Paper, Sc};
use sphinx_xdp::XdpConfig;

use crate::budget::default_memory;
use crate::routing::RoutingKey;

/// What the parameter selector optimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Bulk, unless the application asks for latency.
    #[default]
    Auto,
    /// Goodput of large transfers.
    Bulk,
    /// Completion time of blocks and messages.
    Latency,
}

impl Profile {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bulk => "bulk",
            Self::Latency => "latency",
        }
    }

    pub(crate) fn core(self) -> sphinx_proto::Profile {
        match self {
            Self::Auto | Self::Bulk => sphinx_proto::Profile::Bulk,
            Self::Latency => sphinx_proto::Profile::Latency,
        }
    }
}

/// Erasure code of the repair symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Codec {
    /// The default code, `Rlc`.
    #[default]
    Auto,
    /// Systematic random linear code over GF(2^8).
    Rlc,
    /// Sliding window: repairs of the latest 128 symbols or more, across blocks, at an even rate.
    Window,
    /// Reed–Solomon over GF(2^8): blocks of at most 128 symbols, with as many repairs.
    Rs,
    /// Reed–Solomon over GF(2^16) by fast transforms: blocks of up to 1024 symbols.
    FftRs,
    /// The paper's semi-random LT code, with peeling.
    SemiRandomLt,
    /// The traditional, rateless LT code: no source symbols are sent, and receivers eliminate.
    Lt,
    /// No proactive repair; losses are still answered.
    None,
}

/// What they are called on the command line, and in [`CodeId`] those that are codes.
const CODECS: [(&str, Codec); 8] = [
    ("auto", Codec::Auto),
    ("rlc", Codec::Rlc),
    ("window", Codec::Window),
    ("rs", Codec::Rs),
    ("fft-rs", Codec::FftRs),
    ("srlt", Codec::SemiRandomLt),
    ("lt", Codec::Lt),
    ("none", Codec::None),
];

impl Codec {
    /// The codec with this name on the command line.
    pub fn by_name(name: &str) -> Option<Self> {
        let mut named = CODECS.iter();
        let (_, codec) = named.find(|(its, _)| *its == name)?;
        Some(*codec)
    }

    /// The names that [`by_name`](Self::by_name) knows, for people.
    pub fn expected() -> String {
        let names = CODECS.map(|(name, _)| name);
        let (last, others) = names.split_last().expect("there are some");
        format!("{} or {last}", others.join(", "))
    }

    /// Name on the command line; of the default, that of the code that it is.
    pub fn name(self) -> &'static str {
        let code = match self {
            Self::Auto => Self::Rlc,
            code => code,
        };
        let mut named = CODECS.iter();
        named
            .find(|(_, codec)| *codec == code)
            .map_or("", |(name, _)| name)
    }

    fn core(self) -> Option<CodeId> {
        CodeId::by_name(self.name())
    }
}

/// When losses are compensated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Icm {
    /// As soon as a packet counts as lost.
    #[default]
    Default,
    /// By the paper's block rule.
    Paper,
    /// Only by retransmission timers.
    Off,
}

impl Icm {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Paper => "paper",
            Self::Off => "off",
        }
    }

    fn core(self) -> sphinx_proto::Icm {
        match self {
            Self::Default => sphinx_proto::Icm::Default,
            Self::Paper => sphinx_proto::Icm::Paper,
            Self::Off => sphinx_proto::Icm::Off,
        }
    }
}

/// What a session is for: the connecting end says so, and the server has to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Service {
    /// Anything else, agreed outside.
    Application,
    /// `sphx send` and `sphx recv`.
    Files,
    /// `sphx perf`.
    Perf,
    /// `sphx tunnel` and `sphx server`.
    Tunnel,
}

impl Service {
    pub(crate) fn wire(self) -> crate::control::Service {
        match self {
            Self::Application => crate::control::Service::APPLICATION,
            Self::Files => crate::control::Service::FILES,
            Self::Perf => crate::control::Service::PERF,
            Self::Tunnel => crate::control::Service::TUNNEL,
        }
    }

    /// The service with this number; what this version does not serve itself is the application's.
    pub(crate) fn of_wire(service: crate::control::Service) -> Self {
        match service {
            crate::control::Service::FILES => Self::Files,
            crate::control::Service::PERF => Self::Perf,
            crate::control::Service::TUNNEL => Self::Tunnel,
            _ => Self::Application,
        }
    }
}

/// How packets get to the network and from there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Io {
    /// The kernel's UDP sockets.
    #[default]
    Udp,
    /// Past the kernel, at one interface (AF_XDP).
    Xdp(XdpConfig),
    /// A card that DPDK has to itself.
    #[cfg(feature = "dpdk")]
    Dpdk(DpdkConfig),
}

impl FromStr for Io {
    type Err = String;

    /// `udp`, `xdp:IF[:QUEUES][,copy|zerocopy][,native|generic]`, or `dpdk:EAL ARGS -- ADDRESS/LENGTH[,gw=ADDRESS] [mtu=BYTES]`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "udp" => Ok(Self::Udp),
            Some(("xdp", config)) => config.parse().map(Self::Xdp),
            #[cfg(feature = "dpdk")]
            Some(("dpdk", config)) => config.parse().map(Self::Dpdk),
            #[cfg(not(feature = "dpdk"))]
            Some(("dpdk", _)) => Err("dpdk is not part of this build: cargo build --release --features dpdk has it".to_owned()),
            _ if text == "xdp" => Err("expected xdp:IF, with the name of an interface: xdp:eth0".to_owned()),
            _ => Err("expected udp, xdp:IF[:QUEUES][,copy|zerocopy][,native|generic] or dpdk:EAL ARGS -- ADDRESS/LENGTH[,gw=ADDRESS] [mtu=BYTES]".to_owned()),
        }
    }
}

/// Where a path of a connecting end begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalPath {
    /// At this address. Routing decides through which interface its packets leave.
    Address(IpAddr),
    /// At this interface, and only there.
    Interface(String),
    /// At the interface to which routing sends what is for the other end when the path is opened, and only there from then on.
    Routed,
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => name.fmt(f),
            Self::Routed => f.write_str("by routing"),
        }
    }
}

/// A path of a connecting end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathOptions {
    /// Where the path begins.
    pub begin: LocalPath,
    /// Where it leads, `host:port`, unless that is where the ticket does. The server has to be the same.
    pub to: Option<String>,
    /// Role, cost and limits of the path.
    pub policy: PathPolicy,
}

impl From<LocalPath> for PathOptions {
    fn from(begin: LocalPath) -> Self {
        Self {
            begin,
            to: None,
            policy: PathPolicy::default(),
        }
    }
}

/// Most of [`Options::busy_poll`]: sleeping costs microseconds.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(10);

/// Settings of an endpoint and its sessions.
#[derive(Debug, Clone)]
pub struct Options {
    /// How packets get to the network and from there.
    pub io: Io,
    /// Address family to use where both are possible.
    pub family: Family,
    /// What redundancy is for.
    pub profile: Profile,
    /// Erasure code.
    pub codec: Codec,
    /// When losses are compensated.
    pub icm: Icm,
    /// Small blocks of which a repair may ride in one packet of another block, instead of leaving in a packet of its own, where few packets
    /// are on their way and some are lost: thin streams cost fewer bytes, and a repair is later by at most 25 ms. 0 to 8; what is above counts
    /// as 8. By default 1; 0 turns it off.
    pub bundle: u8,
    /// Share of blocks, 0–1, that may need a second round although they were protected ahead, by
    /// [`Profile::Latency`] or at the end of a stream.
    pub epsilon: f64,
    /// Rate control.
    pub cc: Cc,
    /// The mode of the paper, for comparison, instead of profile, codec and ICM (`docs/paper.md`). Of [`cc`](Self::cc) it takes the rate of
    /// [`Cc::Fixed`]; otherwise its own window adapts. A peer that does not know the mode is refused; one that does follows.
    pub paper: Option<Paper>,
    /// How several paths are used where the receiver's buffer is bounded ([`recv_window`](Self::recv_window)): systematic coding and what it is
    /// compared with, instead of profile, codec and ICM (`docs/sc-multipath.md`). Such sessions carry streams, no datagrams. A peer that does not
    /// know it is refused; one that does follows.
    pub sc: Option<Sc>,
    /// Most bytes that a session may hold of what it has received and its application has not read; what is below 16 KiB counts as 16 KiB. It does not grow then. None: as
    /// [`memory`](Self::memory) allows. Below 360 KiB, streams that nobody reads can hold up others.
    pub recv_window: Option<u64>,
    /// Most that a session sends, in IP bytes per second, headers and repair included, whatever rate control allows: for whoever shares
    /// the line or pays for it. 0 counts as 1.
    pub limit: Option<u64>,
    /// Of a connecting end: where its paths begin. The first one is that of the handshake, and the others are opened as soon as the
    /// session is there, if the other end knows how. None: one path, as routing has it.
    pub paths: Vec<PathOptions>,
    /// Of a connecting end with several paths: what they are for, in both directions if the other end knows the mode.
    pub bond: Bond,
    /// What paths do that meet in one bottleneck, of what this end sends; [`Couple::Lia`] and [`Couple::Olia`] with [`Cc::AimdEcn`] only.
    pub couple: Couple,
    /// How ECN is used in what this end sends. [`EcnMode::L4s`] is for [`Cc::Bbr`]: with others, and in the paper's mode, it is
    /// [`EcnMode::Classic`].
    pub ecn: EcnMode,
    /// How long to try to reach the peer.
    pub connect_timeout: Duration,
    /// Silence after which the peer counts as lost; and how long a session may have data to send of which
    /// nothing comes further.
    pub idle_timeout: Duration,
    /// A session at rest says little: four packets a minute in all if both ends have this, which keeps mappings of NATs that last 30 s. Who
    /// has nothing to send notices only after [`idle_timeout`](Self::idle_timeout) and a minute that the peer is gone, and data for an end that
    /// has moved may wait for 22 s until that is heard of. By default each end is heard every three seconds.
    pub quiet: bool,
    /// The peer's application may leave streams unread for as long as it likes, as people do who look at something: that nothing comes further
    /// because of them does not end the session. By default it does, after [`idle_timeout`](Self::idle_timeout).
    pub readers_may_pause: bool,
    /// File in which a connecting end remembers rate, round trip, loss and MTU of its paths for a day,
    /// so that the next session over the same path starts faster; `None` remembers nothing.
    /// [`path_memory_file`](crate::path_memory_file) is the usual place. With [`early_data`](Self::early_data) there is a second file beside it, of the same name
    /// and `.sessions` (`sessions` in the usual place), for its owner only: it holds what sessions begin with, secrets among it.
    pub path_memory: Option<PathBuf>,
    /// Sessions may begin before their handshakes are over, where the two ends have met before within a day (`docs/protocol.md` §3.1). *Of a connecting end* with
    /// [`path_memory`](Self::path_memory), a [`connect_timeout`](Self::connect_timeout) no longer than [`idle_timeout`](Self::idle_timeout), and neither
    /// [`paths`](Self::paths) nor a mode of its own: [`connect`](crate::connect) does not wait for
    /// the other end, and what the application writes at first leaves with the handshake; why there is no session after all is told by what it does with
    /// it. *Of a listening end*: an application is given such a session, and what has come, at once; else when the handshake has shown who the
    /// other end is. Whoever records such a beginning and keeps it from arriving can have it arrive later, once, within that day: so this is for what
    /// may come late or, since a connecting end tries again, twice. [`Session::wait_confirmed`](crate::Session::wait_confirmed) waits for the
    /// handshake. False by default.
    pub early_data: bool,
    /// Most bytes, in each direction, that the sessions of the endpoint may hold together: received and not read, or written and
    /// not delivered. The more sessions there are, the smaller are the windows of those that come; beyond it they are refused. A
    /// session that waits to be accepted holds a small part of its window. A window that is too small for its path grows as far as others leave
    /// memory, and shrinks when nothing is read any more. By default 256 MiB, and at most an eighth of the machine's memory.
    pub memory: u64,
    /// Threads that code, seal and open for the endpoint's sessions, beside the one that has them all, for each of its [`shards`](Self::shards): at most [`WORKERS_MAX`](crate::WORKERS_MAX). By default none;
    /// [`auto_workers`] says how many are likely to be faster.
    pub workers: usize,
    /// Processors that the endpoint's threads are bound to: its engine to the first one, or as many engines as it has to as many, its workers to the others in turn, or to their
    /// engine's if there are no more. None: they run where the system likes.
    pub cpus: Vec<usize>,
    /// For so long an engine that has nothing to do looks again and again before it sleeps: packets are seen some microseconds sooner, for all of a
    /// processor, and do not gather. At most [`BUSY_POLL_MAX`] counts. Zero, the default: it sleeps at once.
    pub busy_poll: Duration,
    /// Engines of a server, at least 1 and at most [`SHARDS_MAX`](crate::SHARDS_MAX): each has a socket of the same port, sessions, workers and
    /// its part of [`memory`](Self::memory). A session belongs to one of them, whatever addresses its packets come from. More than one need the kernel's sockets
    /// ([`Io::Udp`]), or as many queues of a card past the kernel. [`auto_shards`](crate::auto_shards) says how many fill the machine. A connecting end has one.
    pub shards: usize,
    /// Let the kernel spread packets over the shards by their addresses, as it does where it takes no program: for tests.
    pub shards_by_hash: bool,
    /// A server with one session in its life: others are refused as soon as there is one.
    pub once: bool,
    /// What connection ids of this end tell those who have the routing key: which of several servers behind one address it is.
    pub server_id: u16,
    /// The key that this end shares with what stands in front of it; without one, nobody can read its connection ids.
    pub routing_key: Option<RoutingKey>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            io: Io::default(),
            family: Family::default(),
            profile: Profile::Auto,
            codec: Codec::Auto,
            icm: Icm::Default,
            bundle: 1,
            epsilon: sphinx_proto::EPSILON,
            cc: Cc::default(),
            paper: None,
            sc: None,
            recv_window: None,
            limit: None,
            paths: Vec::new(),
            bond: Bond::Aggregate,
            couple: Couple::default(),
            ecn: EcnMode::default(),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(15),
            quiet: false,
            readers_may_pause: false,
            path_memory: None,
            early_data: false,
            memory: default_memory(),
            workers: 0,
            cpus: Vec::new(),
            busy_poll: Duration::ZERO,
            shards: 1,
            shards_by_hash: false,
            once: false,
            server_id: 0,
            routing_key: None,
        }
    }
}

/// How many workers are likely to be faster than none for an endpoint that is bound to these processors, or, without any, may use all that
/// this process may: all but the engine's, and at most four; none where there are fewer than four processors. `docs/line-rate.md` says why.
pub fn auto_workers(cpus: &[usize]) -> usize {
    workers_for(match cpus {
        [] => usable_cpus().map_or(1, |cpus| cpus.len()),
        cpus => cpus.len(),
    })
}

impl Options {
    /// Tells the core of a session what of it is asked for.
    pub(crate) fn configure(&self, config: &mut Config) {
        let idle_timeout = self.idle_timeout.as_nanos();
        config.profile = self.profile.core();
        config.code = self.codec.core();
        config.icm = self.icm.core();
        config.bundle = self.bundle;
        config.epsilon = self.epsilon;
        config.cc = self.cc;
        config.couple = self.couple;
        config.ecn = self.ecn;
        config.paper = self.paper;
        config.sc = self.sc;
        config.limit = self.limit;
        config.quiet = self.quiet;
        config.readers_may_pause = self.readers_may_pause;
        config.idle_timeout = idle_timeout.min(u128::from(u64::MAX / 2)) as Nanos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_that_the_command_line_understands() {
        for (name, codec) in CODECS {
            assert_eq!(Codec::by_name(name), Some(codec));
            let is_code = codec != Codec::None;
            assert_eq!(codec.core().is_some(), is_code, "{name}");
        }
        assert_eq!(Codec::Auto.name(), "rlc");
        assert_eq!(Codec::by_name("xor"), None);
        let expected = "auto, rlc, window, rs, fft-rs, srlt, lt or none";
        assert_eq!(Codec::expected(), expected);
    }
}
