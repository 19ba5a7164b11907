//! The programs behind the contestants: small senders and receivers.
//!
//! Both ends get the same [`PeerTask`]. A transfer begins with a [`Preamble`] that says when the
//! sender started to connect, on the clock that all processes of a machine share; so the receiver
//! knows when to cut off, and measures everything. Where the receiver asks for what it gets, the ends
//! speak [`http`].

mod browser;
mod external;
pub mod http;
mod output;
mod pattern;
mod player;
#[cfg(feature = "quinn")]
pub mod quic;
mod relay;
pub mod socket;
mod tally;
pub mod tcp;
mod udp;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use sphinx_netdev::usage::monotonic_ns;
use thiserror::Error;

use crate::{Task, Workload};

pub use output::{listening, run, watch_standard_input};
pub use pattern::Pattern;
pub use tally::{Preamble, Received, Tally};

/// How long an end waits for the other one.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of a transfer, as a command line.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which end of what
    pub role: Role,
    /// A PeerTask as JSON
    #[arg(value_parser = PeerTask::parse)]
    pub task: PeerTask,
}

/// Which end of what transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Receive over kernel TCP
    TcpReceive,
    /// Send over kernel TCP
    TcpSend,
    /// Receive plain UDP
    UdpReceive,
    /// Send plain UDP
    UdpSend,
    /// Receive over TCP through a tunnel
    TunnelReceive,
    /// Send over TCP through a tunnel
    TunnelSend,
    /// Receive messages through a relay of datagrams
    RelayReceive,
    /// Send messages through a relay of datagrams
    RelaySend,
    /// Receive a file by another program
    FileReceive,
    /// Send a file by another program
    FileSend,
    /// Receive by iperf3
    IperfReceive,
    /// Send by iperf3
    IperfSend,
    /// Receive over QUIC
    QuicReceive,
    /// Send over QUIC
    QuicSend,
    /// Answer requests over QUIC
    QuicServer,
    /// Make them
    QuicClient,
    /// Succeed if there is QUIC with this congestion control
    QuicCheck,
    /// Answer requests over kernel TCP
    HttpServer,
    /// Make them
    HttpClient,
    /// Answer requests over the streams of a Sphinx session
    SphinxServer,
    /// Make them
    SphinxClient,
}

/// What both ends must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTask {
    /// Where the [listener](Workload::listener) listens.
    pub address: SocketAddr,
    /// What to carry.
    pub workload: Workload,
    /// The sender's congestion control.
    pub congestion: String,
    /// Whether TCP is multipath TCP.
    pub mptcp: bool,
    /// Whether messages over QUIC are datagrams instead of streams.
    #[serde(default)]
    pub datagrams: bool,
    /// Bits per second of plain UDP.
    pub rate: Option<u64>,
    /// The transfer is cut off after this time.
    pub limit: Duration,
    /// Blocks scheduled within this time after the first one are not measured.
    pub warmup: Duration,
    /// Seed of the payload.
    pub seed: u64,
    /// Where the listener leaves what the other end needs: a ticket, a certificate, files.
    pub directory: Option<PathBuf>,
    /// Options of `sphx` for the Sphinx ends, the command of another program.
    pub options: Vec<String>,
}

impl PeerTask {
    /// The part of a contestant's task that its programs must know.
    pub fn new(task: &Task, congestion: &str) -> PeerTask {
        PeerTask {
            address: task.address,
            workload: task.workload.clone(),
            limit: task.limit,
            warmup: task.warmup,
            seed: task.seed,
            directory: Some(task.directory.clone()),
            ..PeerTask::about(congestion)
        }
    }

    /// The question whether there is such a congestion control.
    pub fn about(congestion: &str) -> PeerTask {
        PeerTask {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            workload: Workload::Bulk { bytes: 0 },
            congestion: congestion.to_owned(),
            mptcp: false,
            datagrams: false,
            rate: None,
            limit: Duration::ZERO,
            warmup: Duration::ZERO,
            seed: 0,
            directory: None,
            options: Vec::new(),
        }
    }

    /// The argument that this is parsed from.
    pub fn to_argument(&self) -> String {
        // Numbers, text and durations can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn parse(text: &str) -> Result<PeerTask, String> {
        let task: PeerTask = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match &task.workload {
            Workload::Blocks { bytes, .. } | Workload::Live { bytes, .. }
                if !(Workload::BLOCK_BYTES_MIN..=1 << 30).contains(bytes) =>
            {
                Err(format!(
                    "a block of {bytes} bytes is too small or too large"
                ))
            }
            _ => Ok(task),
        }
    }

    /// Opens the receiver's account of a transfer.
    fn tally(&self, preamble: Preamble) -> Result<Tally, PeerError> {
        Tally::open(
            preamble,
            self.workload.clone(),
            self.limit,
            self.warmup,
            monotonic_ns(),
        )
    }
}

/// Why an end failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// This program has no such end, or the end cannot do this.
    #[error("cannot {0}")]
    Cannot(&'static str),
    /// The kernel or the library has no such congestion control.
    #[error("no congestion control '{0}'")]
    Congestion(String),
    /// What arrived is not what was sent.
    #[error("wrong payload at or behind byte {0}")]
    Corrupt(u64),
    /// The other end closed too early.
    #[error("the sender closed after {0} bytes")]
    Closed(u64),
    /// A number that only nonsense on the wire explains.
    #[error("impossible {0}")]
    Impossible(&'static str),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The system call, in words.
        what: &'static str,
        /// How it failed.
        error: std::io::Error,
    },
    /// A transport's library refused something.
    #[error("{what}: {reason}")]
    Refused {
        /// What was attempted.
        what: &'static str,
        /// The reason that the library gave.
        reason: String,
    },
}

/// Adds to an error what was tried.
pub(crate) fn tried<T>(what: &'static str, result: std::io::Result<T>) -> Result<T, PeerError> {
    result.map_err(|error| PeerError::System { what, error })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        peer: Peer,
    }

    pub(super) fn task(workload: Workload) -> PeerTask {
        let task = Task {
            address: "127.0.0.1:0".parse().unwrap(),
            paths: Vec::new(),
            receive_buffer: None,
            workload,
            limit: Duration::from_secs(20),
            warmup: Duration::from_millis(100),
            seed: 5,
            directory: PathBuf::new(),
        };
        PeerTask::new(&task, "reno")
    }

    fn blocks(bytes: u64) -> Workload {
        Workload::Blocks {
            count: 600,
            bytes,
            interval: Duration::from_millis(40),
        }
    }

    #[test]
    fn command_lines_come_back() {
        for workload in [Workload::Bulk { bytes: 50_000_000 }, blocks(100_000)] {
            let mut peer = task(workload);
            peer.directory = Some("/tmp/a directory".into());
            let argument = peer.to_argument();
            let line = Line::parse_from(["bench-link", "tcp-send", &argument]);
            assert_eq!((line.peer.role, line.peer.task), (Role::TcpSend, peer));
        }
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let parse = |bytes| PeerTask::parse(&task(blocks(bytes)).to_argument());
        assert!(parse(64).is_ok());
        assert!(parse(63).is_err());
        assert!(parse(u64::MAX).is_err());
        assert!(PeerTask::parse("{}").is_err());
    }
}
