//! What is compared.

use std::{fmt, net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Beginning, Simulated, Workload};

/// One of the two processes of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Sends, at the left end of the link.
    Sender,
    /// Receives, at the right end.
    Receiver,
}

impl Side {
    /// The opposite side.
    pub fn other(self) -> Side {
        match self {
            Side::Sender => Side::Receiver,
            Side::Receiver => Side::Sender,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Sender => "sender",
            Side::Receiver => "receiver",
        })
    }
}

/// What the two processes of a contestant have to do.
#[derive(Clone, Debug)]
pub struct Task {
    /// Where the [listener](Workload::listener) listens.
    pub address: SocketAddr,
    /// Where the paths begin, if there are several.
    pub paths: Vec<Beginning>,
    /// What the receiver may hold, if that is bounded.
    pub receive_buffer: Option<u64>,
    /// The task that is to be carried.
    pub workload: Workload,
    /// The transfer is cut off after this time.
    pub limit: Duration,
    /// Blocks scheduled within this time after the first one are not measured.
    pub warmup: Duration,
    /// For the payload, and for whatever else should be the same in every repetition.
    pub seed: u64,
    /// An empty directory for this run: tickets, certificates.
    pub directory: PathBuf,
}

/// A transport with its settings: two programs.
///
/// Both write one JSON object per line to standard output, with a field `event`. The
/// [listener](Workload::listener) says `listening` when it is ready; then the other one is started.
/// The [`reporter`](Contestant::reporter) ends with `done`, whose fields [`Done`](crate::Done) reads; a process that fails says `error`
/// (`message`) or exits with a code that is not 0. Other lines are ignored, except the `bytes` of
/// `progress`.
///
/// An external program takes part by a wrapper that speaks so.
pub trait Contestant: fmt::Debug + Sync {
    /// Short and unique.
    fn name(&self) -> &str;

    /// Version and settings, for the record.
    fn settings(&self) -> String;

    /// Whether what was recorded with these settings is a run of this contestant, in whatever build.
    fn is_of(&self, settings: &str) -> bool {
        settings == self.settings()
    }

    /// Whether it can run on this system.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    fn check(&self) -> Result<(), String>;

    /// Whether it can carry such a workload.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        match workload {
            Workload::Bulk { .. } | Workload::Blocks { .. } | Workload::Live { .. } => Ok(()),
            Workload::Video(_) | Workload::Web(_) => Err("does not speak HTTP".to_owned()),
        }
    }

    /// How it runs in [virtual time](crate::Clock::Virtual).
    ///
    /// # Errors
    ///
    /// Why it does not, in words.
    fn in_virtual_time(&self) -> Result<Simulated, String> {
        Err("only Sphinx has a virtual time".to_owned())
    }

    /// Kernel parameters that both its namespaces need.
    fn parameters(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Whether it is the kernel's multipath TCP, which has to be told of the paths. All others do that themselves, or use the first path.
    fn is_mptcp(&self) -> bool {
        false
    }

    /// Whether its receiver can be [held to a buffer](Task::receive_buffer): it takes the bound itself, or receives by the kernel's TCP.
    fn can_be_bounded(&self) -> bool {
        false
    }

    /// What a sender does first, with the receiver that is measured later, if the two are to know each other then.
    fn meeting(&self, _task: &Task) -> Option<Command> {
        None
    }

    /// The receiver's command. After a [`meeting`](Self::meeting) it goes on, and is ended when the other one is done.
    fn receiver(&self, task: &Task) -> Command;

    /// The sender's command.
    fn sender(&self, task: &Task) -> Command;

    /// The side whose `done` counts as the result.
    fn reporter(&self, workload: &Workload) -> Side;

    /// Whether the reporter says `done` by itself when the limit has passed, with what had arrived
    /// by then. Otherwise both processes are killed at the limit, and the last `progress` counts.
    fn keeps_limit(&self, workload: &Workload) -> bool;
}
