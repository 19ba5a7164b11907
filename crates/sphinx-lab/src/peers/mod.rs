//! The programs behind the contestants: small senders and receivers.
//!
//! Both ends get the same [`PeerTask`]. The transfer begins with a [`Preamble`] that says when the
//! sender started to connect, on the clock that all processes of a machine share; so the receiver
//! knows when to cut off, and measures everything.

mod output;
mod pattern;
#[cfg(feature = "quinn")]
pub mod quic;
mod tally;
pub mod tcp;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use thiserror::Error;

use crate::{Task, Workload, machine::monotonic_ns};

pub use output::{run, watch_standard_input};
pub use pattern::Pattern;
pub use tally::{Preamble, Received, Tally};

/// How long an end waits for the other one.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a transfer, as a command line.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Peer {
    /// Receive over kernel TCP
    TcpReceive(PeerTask),
    /// Send over kernel TCP
    TcpSend(PeerTask),
    /// Receive over QUIC
    #[cfg(feature = "quinn")]
    QuicReceive(PeerTask),
    /// Send over QUIC
    #[cfg(feature = "quinn")]
    QuicSend(PeerTask),
}

/// What both ends must know.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct PeerTask {
    /// Where the receiver listens
    #[arg(long)]
    pub address: SocketAddr,
    /// The sender's congestion control
    #[arg(long)]
    pub congestion: String,
    /// Cut the transfer off after this many microseconds
    #[arg(long)]
    pub limit_us: u64,
    /// Do not measure blocks scheduled within this many microseconds after the first one
    #[arg(long)]
    pub warmup_us: u64,
    /// Seed of the payload
    #[arg(long)]
    pub seed: u64,
    /// Bytes altogether, or of one block
    #[arg(long)]
    pub bytes: u64,
    /// Send this many blocks instead of one piece
    #[arg(long, requires = "interval_us")]
    pub blocks: Option<u64>,
    /// Microseconds from one block to the next
    #[arg(long, requires = "blocks")]
    pub interval_us: Option<u64>,
    /// Where the QUIC receiver leaves its certificate
    #[arg(long)]
    pub certificate: Option<PathBuf>,
}

impl PeerTask {
    /// The part of a contestant's task that its programs must know.
    pub fn new(task: &Task, congestion: &str) -> PeerTask {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let (bytes, blocks, interval_us) = match task.workload {
            Workload::Bulk { bytes } => (bytes, None, None),
            Workload::Blocks {
                count,
                bytes,
                interval,
            } => (bytes, Some(count), Some(micros(interval))),
        };
        PeerTask {
            address: task.address,
            congestion: congestion.to_owned(),
            limit_us: micros(task.limit),
            warmup_us: micros(task.warmup),
            seed: task.seed,
            bytes,
            blocks,
            interval_us,
            certificate: None,
        }
    }

    /// The command line that this is parsed from.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = [
            ("--address", self.address.to_string()),
            ("--congestion", self.congestion.clone()),
            ("--limit-us", self.limit_us.to_string()),
            ("--warmup-us", self.warmup_us.to_string()),
            ("--seed", self.seed.to_string()),
            ("--bytes", self.bytes.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        let mut add = |name: &str, value: Option<String>| {
            arguments.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        };
        add("--blocks", self.blocks.map(|count| count.to_string()));
        add("--interval-us", self.interval_us.map(|us| us.to_string()));
        let certificate = self.certificate.as_ref();
        add(
            "--certificate",
            certificate.map(|path| path.display().to_string()),
        );
        arguments
    }

    /// What to carry.
    ///
    /// # Errors
    ///
    /// [`PeerError::BlockSize`].
    pub fn workload(&self) -> Result<Workload, PeerError> {
        let (Some(count), Some(interval_us)) = (self.blocks, self.interval_us) else {
            return Ok(Workload::Bulk { bytes: self.bytes });
        };
        if !(Workload::BLOCK_BYTES_MIN..=1 << 30).contains(&self.bytes) {
            return Err(PeerError::BlockSize(self.bytes));
        }
        Ok(Workload::Blocks {
            count,
            bytes: self.bytes,
            interval: Duration::from_micros(interval_us),
        })
    }

    /// Opens the receiver's account of a transfer.
    fn tally(&self, preamble: Preamble) -> Result<Tally, PeerError> {
        let warmup = Duration::from_micros(self.warmup_us);
        Tally::open(
            preamble,
            self.workload()?,
            self.limit(),
            warmup,
            monotonic_ns(),
        )
    }

    /// When to cut off.
    pub fn limit(&self) -> Duration {
        Duration::from_micros(self.limit_us)
    }
}

/// Why an end failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A block of this size cannot be measured.
    #[error("a block of {0} bytes is too small or too large")]
    BlockSize(u64),
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
        /// What was tried.
        what: &'static str,
        /// How it failed.
        error: std::io::Error,
    },
    /// The QUIC library refused something.
    #[cfg(feature = "quinn")]
    #[error("{what}: {reason}")]
    Quic {
        /// What was tried.
        what: &'static str,
        /// How it failed.
        reason: String,
    },
}

/// Says what was tried.
fn tried<T>(what: &'static str, result: std::io::Result<T>) -> Result<T, PeerError> {
    result.map_err(|error| PeerError::System { what, error })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        peer: Peer,
    }

    #[test]
    fn command_lines_come_back() {
        let bulk = Workload::Bulk { bytes: 50_000_000 };
        let blocks = Workload::Blocks {
            count: 600,
            bytes: 100_000,
            interval: Duration::from_millis(40),
        };
        for workload in [bulk, blocks] {
            let task = Task {
                address: "10.77.0.2:5201".parse().unwrap(),
                workload: workload.clone(),
                limit: Duration::from_millis(10_500),
                warmup: Duration::from_millis(100),
                seed: 3,
                directory: PathBuf::new(),
            };
            let mut peer = PeerTask::new(&task, "bbr");
            peer.certificate = Some("/tmp/a certificate".into());
            assert_eq!(peer.workload().unwrap(), workload);
            let mut line = vec!["bench-link".to_owned(), "tcp-send".to_owned()];
            line.extend(peer.to_arguments());
            assert_eq!(Line::parse_from(line).peer, Peer::TcpSend(peer));
        }
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let line = "x tcp-send --address 1.2.3.4:5 --congestion bbr --limit-us 1 --warmup-us 0 --seed 1 \
            --blocks 1 --interval-us 1 --bytes";
        let parse = |bytes: &str| {
            let line = line.split_whitespace().chain([bytes]);
            let Peer::TcpSend(task) = Line::parse_from(line).peer else {
                panic!("another peer");
            };
            task.workload()
        };
        assert!(parse("16").is_ok());
        assert!(parse("15").is_err());
        assert!(parse("18446744073709551615").is_err());
    }
}
