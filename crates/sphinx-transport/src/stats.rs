//! What a session has done.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sphinx_driver::DatagramCounts;
use sphinx_proto::{Bond, Losses, PATHS_MAX, PathNews, PathPolicy};

/// A snapshot of one path.
#[derive(Debug, Clone, Copy)]
pub struct PathFigures {
    /// The path: 0 is that of the handshake.
    pub id: u32,
    /// Which of the paths of this end's options it is.
    pub option: Option<usize>,
    /// Where it begins, if that is known.
    pub local: Option<IpAddr>,
    /// Where the peer is.
    pub remote: SocketAddr,
    /// What it is doing: `validating`, `working`, `resting`, `standby` or `suspect`.
    pub state: &'static str,
    /// Why it carries no data, if it does not.
    pub reason: Option<&'static str>,
    /// What it is to be used for.
    pub policy: PathPolicy,
    /// Data-plane IP bytes sent on it.
    pub wire_bytes_sent: u64,
    /// Data-plane IP bytes received on it.
    pub wire_bytes_received: u64,
    /// Data-plane packets sent on it.
    pub wire_packets_sent: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub min_rtt: Duration,
    /// Loss rate, 0–1.
    pub plr: f64,
    /// Pacing rate, IP bytes per second.
    pub pacing_rate: u64,
}

/// Something has become of a path.
#[derive(Debug, Clone, Copy)]
pub struct PathEvent {
    /// When, since the first handshake datagram.
    pub elapsed: Duration,
    /// The path.
    pub id: u32,
    /// Which of the paths of this end's options it is.
    pub option: Option<usize>,
    /// Local address of the path, if that is known.
    pub local: Option<IpAddr>,
    /// What has become of the path.
    pub news: PathNews,
}

/// Whether a session began before its handshake was over ([`Options::early_data`](crate::Options::early_data)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EarlyData {
    /// The session began after its handshake.
    #[default]
    None,
    /// The session began early, and the handshake is not over.
    Pending,
    /// It began early, and the connecting end knows, or the listening end has heard, that nothing has to be sent again for that.
    Accepted,
    /// It began early, and the listening end knew nothing of it: what had been sent was sent again.
    Refused,
}

impl EarlyData {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pending => "pending",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
        }
    }
}

/// A snapshot of one session's counters and estimates. Rates are IP bytes per second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// Since the first handshake datagram was sent, or received.
    pub elapsed: Duration,
    /// Time since the last packet of the peer that could be opened.
    pub silence: Duration,
    /// Since the first packet left that wants an answer, after the last one of the peer; zero if there is none.
    pub unanswered: Duration,
    /// Whether the session is over.
    pub has_ended: bool,
    /// IP bytes sent, both planes.
    pub wire_bytes_sent: u64,
    /// IP packets sent, both planes.
    pub wire_packets_sent: u64,
    /// IP bytes received, both planes.
    pub wire_bytes_received: u64,
    /// Repair symbols sent before loss was seen.
    pub repair_proactive: u64,
    /// Repair symbols sent after loss was seen.
    pub repair_reactive: u64,
    /// Source symbols sent.
    pub source_sent: u64,
    /// Bytes of the symbols sent before loss was seen.
    pub repair_proactive_bytes: u64,
    /// Bytes of the symbols sent after loss was seen.
    pub repair_reactive_bytes: u64,
    /// Packets in which repairs rode beside other symbols (`Options::bundle`).
    pub bundles: u64,
    /// Bytes of these repairs, which are among those sent before loss was seen.
    pub bundled_bytes: u64,
    /// Losses of what this end sends, as the peer's acknowledgements show them; `None` before any does.
    pub losses_sent: Option<Losses>,
    /// Losses of what the peer sends, as gaps in its packet numbers show them; `None` before any packet.
    pub losses_received: Option<Losses>,
    /// Loss rate, 0–1, that redundancy is chosen for: assumed or remembered while few packets are known.
    pub plr: f64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub min_rtt: Duration,
    /// Pacing rate of this end.
    pub pacing_rate: u64,
    /// What is in use of ECN for what this end sends on the first path (`EcnUse::name`).
    pub ecn: &'static str,
    /// Packets that the peer has received there with ECN-CE.
    pub packets_marked: u64,
    /// Congestion window, IP bytes.
    pub cwnd: u64,
    /// This end's window for what it receives, bytes: it grows and shrinks.
    pub recv_window: u64,
    /// The peer's window, bytes.
    pub peer_window: u64,
    /// How long data of this end waited for nothing but the peer's window.
    pub window_limited: Duration,
    /// Most streams that were open at a time in one direction.
    pub streams_peak: u64,
    /// Blocks sent.
    pub blocks: u64,
    /// Blocks that needed repair after a loss.
    pub blocks_second_round: u64,
    /// Datagrams that did not open or broke a limit, and those that reached this endpoint during the
    /// session and belonged to nobody.
    pub invalid_datagrams: u64,
    /// Datagrams that had been received before.
    pub replayed_datagrams: u64,
    /// What became of what was sent, or came, before the handshake was over.
    pub early_data: EarlyData,
    /// IP bytes of the packets that this end had sent by then, if it is the one that connected, or else of those that it had received; 0 before.
    pub early_bytes: u64,
    /// Data bytes that the peer has confirmed.
    pub bytes_delivered: u64,
    /// Data bytes given to this end's application.
    pub bytes_received: u64,
    /// What became of datagrams and live messages.
    pub datagrams: DatagramCounts,
    /// Largest symbol on the present path MTU, bytes.
    pub symbol_bytes: u32,
    /// WARNINGs that this end sent, as a generation was about to hold everything up. Only with [`Options::sc`](crate::Options::sc).
    pub warnings_sent: u64,
    /// WARNINGs that this end was sent and answered.
    pub warnings_received: u64,
    /// Bytes multiplied and added over GF(2^8) for generations at this end.
    pub field_operations: u64,
    /// Bytes that this end's engine and workers have copied in memory on their way, in both directions: into blocks and frames, and with workers
    /// into runs and out of them. Not what the application writes and reads, nor what the kernel copies.
    pub copied_bytes: u64,
    /// What several paths are for.
    pub bond: Bond,
    /// The open paths, by id.
    pub paths: [Option<PathFigures>; PATHS_MAX],
    /// When losses are compensated.
    pub icm: &'static str,
    /// Rate control.
    pub cc: &'static str,
    /// Erasure code.
    pub codec: &'static str,
    /// Profile.
    pub profile: &'static str,
    /// Packet back end: `udp`, or how the one was opened that bypasses the kernel.
    pub io: &'static str,
    /// What the endpoint, or the shard of it that has the session, has asked of the machine since the session began, for all its sessions.
    pub load: Load,
}

/// What an endpoint asks of the machine to move packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Times that the engine waited for packets, its application or a timer.
    pub wakeups: u64,
    /// Receive system calls, those that found nothing included.
    pub receives: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Send system calls.
    pub sends: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Times that segmentation offload was given up.
    pub gso_downgrades: u64,
    /// Datagrams, received and sent, that went by the kernel's socket although the back end bypasses it.
    pub kernel_datagrams: u64,
    /// Workers that code for this engine.
    pub workers: usize,
    /// Engines behind the port ([`Options::shards`](crate::Options::shards)), of which one has the session. All other figures are of this one.
    pub shards: usize,
    /// Number of this engine among them, from 0.
    pub shard: usize,
    /// What decides at which of them a datagram arrives: `bpf`, its connection id; `hash`, its addresses. None if there is one.
    pub steering: Option<&'static str>,
    /// Datagrams that arrived at another one and were handed over.
    pub handovers: u64,
    /// Time for which the workers were busy, all together.
    pub busy: Duration,
}

impl Load {
    /// System calls for packets: waits, receives, sends.
    pub fn syscalls(&self) -> u64 {
        self.wakeups + self.receives + self.sends
    }

    /// What there has been since it was `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let Self {
            wakeups,
            receives,
            datagrams_received,
            sends,
            datagrams_sent,
            gso_downgrades,
            kernel_datagrams,
            handovers,
            workers: _,
            shards: _,
            shard: _,
            steering: _,
            busy,
        } = *earlier;
        Self {
            wakeups: self.wakeups - wakeups,
            receives: self.receives - receives,
            datagrams_received: self.datagrams_received - datagrams_received,
            sends: self.sends - sends,
            datagrams_sent: self.datagrams_sent - datagrams_sent,
            gso_downgrades: self.gso_downgrades - gso_downgrades,
            kernel_datagrams: self.kernel_datagrams - kernel_datagrams,
            handovers: self.handovers - handovers,
            workers: self.workers,
            shards: self.shards,
            shard: self.shard,
            steering: self.steering,
            busy: self.busy.saturating_sub(busy),
        }
    }
}
