//! What a session is told at its beginning.

use sphinx_fec::CodeId;

use crate::Nanos;
use crate::blocks::EPSILON;
use crate::cc::{CcKind, Couple};
use crate::paper::Paper;
use crate::path::{EcnMode, mtu_candidates};
use crate::paths::{Bond, PathPolicy};
use crate::sc::Sc;
use crate::session::BASE_DATAGRAM;
use crate::types::{STREAMS_MAX, Tuple};
use crate::wire::ConnectionId;

/// Round-trip time, nanoseconds, that is assumed where the handshake has not measured one.
const INITIAL_RTT: Nanos = 100_000_000;
const IDLE_TIMEOUT: Nanos = 15_000_000_000;
/// Flow-control windows.
const WINDOW: u64 = 24 << 20;

/// Which end opened the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The end that connects: it opened the session.
    Client,
    /// The end that listens.
    Server,
}

impl Role {
    /// The role of the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What redundancy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Goodput: repair follows loss; only what ends a stream is protected ahead.
    Bulk,
    /// Completion time: whenever nothing more waits to be sent, what is on its way is protected so
    /// that it fails with a probability of at most [`Config::epsilon`].
    Latency,
}

/// When losses are compensated. How much is sent, rate control and the count of losses are the same in
/// all modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Icm {
    /// As soon as the packet log knows of a loss.
    #[default]
    Default,
    /// The paper's rule: when a SACK reports on more than two blocks and more than three symbols of the
    /// latest one, or a later block is complete, earlier blocks are compensated, each at most once
    /// per round trip.
    Paper,
    /// When a timer of the block runs out, as without ICM.
    Off,
}

/// What a session has learned about its path, for a later one between the same hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathMemory {
    /// Capacity, IP bytes per second.
    pub rate: u64,
    /// Smallest round trip.
    pub rtt: Nanos,
    /// Packet loss rate, 0–1.
    pub plr: f64,
    /// Largest UDP payload that got through.
    pub datagram_len: u16,
}

/// The connection ids of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionIds {
    /// Chosen by this end, for packets to it.
    pub local: ConnectionId,
    /// Chosen by the peer.
    pub peer: ConnectionId,
}

/// What a session is told at its beginning.
///
/// [`Config::new`] takes what only the handshake knows and gives everything else a default, to be changed by
/// assigning to the field. So another option is another field and its default, and no caller changes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The role of this end.
    pub role: Role,
    /// Connection id that the peer chose.
    pub peer_cid: ConnectionId,
    /// Connection id that this end chose.
    pub local_cid: ConnectionId,
    /// Where the handshake found the peer.
    pub tuple: Tuple,
    /// Redundancy; bulk by default.
    pub profile: Profile,
    /// Probability, 0–1, that a first flight protected ahead may still fail; [`EPSILON`] by default.
    pub epsilon: f64,
    /// Code of repair symbols, `rlc` by default; `None` sends no proactive repair (losses are still repaired).
    pub code: Option<CodeId>,
    /// When losses are compensated.
    pub icm: Icm,
    /// Small blocks of which a repair may ride in one packet of another block where few packets are on their way and some are lost
    /// (`docs/protocol.md` §5.5), 0–8; what is above counts as 8. 1 by default; 0 has repairs leave alone.
    pub bundle: u8,
    /// Rate control; BBR by default.
    pub cc: CcKind,
    /// Rate that is not to be exceeded whatever rate control allows, IP bytes per second, headers and repair included; none by default, and 0 counts as 1.
    pub limit: Option<u64>,
    /// Round-trip time of the handshake; 100 ms by default.
    pub initial_rtt: Nanos,
    /// Silence after which the peer counts as lost; 15 s by default.
    pub idle_timeout: Nanos,
    /// The peer's, as far as it has said: it is heard in time for the shorter one. Unknown by default.
    pub peer_idle_timeout: Option<Nanos>,
    /// An end that has nothing to say says it seldom: of a client, keep-alives are 22 s apart and only every third of them is to be answered, and a
    /// server sends none, so that a session at rest costs four packets a minute (`docs/protocol.md` §8). False by default.
    pub quiet: bool,
    /// The peer's application may leave a stream unread for as long as it likes; false by default: a session that waits for nothing else
    /// for the idle timeout counts as stalled.
    pub readers_may_pause: bool,
    /// Memory for received blocks, bytes (`docs/protocol.md` §7); 24 MiB by default.
    pub recv_window: u64,
    /// How much of it the peer may fill before [`Session::open_window`](crate::Session::open_window), bytes; all of it by default.
    pub recv_credit: u64,
    /// Streams of each kind that the peer may have open at a time; [`STREAMS_MAX`] by default.
    pub recv_streams: u64,
    /// Most memory for blocks on their way, bytes; 24 MiB by default. One block goes even so if nothing as urgent is on its way.
    pub send_window: u64,
    /// The peer's window at the start, bytes; 24 MiB by default.
    pub peer_window: u64,
    /// How much of that this end may fill before the peer grants more, bytes; all of it by default.
    pub peer_credit: u64,
    /// IP and UDP header bytes: 28 for IPv4, 48 for IPv6, by the peer's address.
    pub ip_overhead: u16,
    /// UDP payloads to probe for, rising; [`mtu_candidates`] by default.
    pub mtu_candidates: Vec<u16>,
    /// Largest UDP payload that the peer accepts; [`BASE_DATAGRAM`] by default.
    pub peer_datagram_max: u16,
    /// The paper's mode instead of profile, code, ICM and rate control, which are then of no effect, except that the rate of
    /// [`CcKind::Fixed`] is that at which the window's blocks are sent. Both ends must have the same; `None` by default.
    pub paper: Option<Paper>,
    /// How several paths are used where the receiver's buffer is bounded, instead of profile, code and ICM (`docs/protocol.md` §14). Both ends
    /// must have the same; `None` by default.
    pub sc: Option<Sc>,
    /// Paths that may be open at a time: the smaller of what both ends have announced (`docs/protocol.md` §10.4); 1 by default.
    pub paths_max: u8,
    /// What several paths are for, as the client has it: of a server, what the client has asked for. `None` by default: the peer does not
    /// know what that is.
    pub bond: Option<Bond>,
    /// What paths do that meet in one bottleneck; [`Couple::Auto`] by default, which is not for [`sc`](Self::sc). [`Couple::Lia`] and
    /// [`Couple::Olia`] are for controllers whose windows grow additively ([`CcKind::AimdEcn`]).
    pub couple: Couple,
    /// What packets of this end leave with of ECN; [`EcnMode::Auto`] by default.
    pub ecn: EcnMode,
    /// What the path of the handshake is to be used for.
    pub policy: PathPolicy,
    /// What an earlier session found out about the path. It may be wrong.
    pub memory: Option<PathMemory>,
}

impl Config {
    /// A session of this end with a peer that the handshake found at `tuple`.
    pub fn new(role: Role, tuple: Tuple, ids: ConnectionIds) -> Self {
        let ip_overhead = if tuple.remote.is_ipv4() { 28 } else { 48 };
        Self {
            role,
            peer_cid: ids.peer,
            local_cid: ids.local,
            tuple,
            profile: Profile::Bulk,
            epsilon: EPSILON,
            code: Some(CodeId::Rlc),
            icm: Icm::Default,
            bundle: 1,
            cc: CcKind::Bbr,
            limit: None,
            initial_rtt: INITIAL_RTT,
            idle_timeout: IDLE_TIMEOUT,
            peer_idle_timeout: None,
            quiet: false,
            readers_may_pause: false,
            recv_window: WINDOW,
            recv_credit: u64::MAX,
            recv_streams: STREAMS_MAX,
            send_window: WINDOW,
            peer_window: WINDOW,
            peer_credit: u64::MAX,
            ip_overhead,
            mtu_candidates: mtu_candidates(ip_overhead),
            peer_datagram_max: BASE_DATAGRAM,
            paper: None,
            sc: None,
            paths_max: 1,
            bond: None,
            couple: Couple::default(),
            ecn: EcnMode::default(),
            policy: PathPolicy::default(),
            memory: None,
        }
    }
}
