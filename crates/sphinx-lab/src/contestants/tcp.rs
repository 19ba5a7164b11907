//! Kernel TCP.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use sphinx_link::front::TCP_PARAMETERS;

use crate::{
    Contestant, Side, Task,
    peers::{PeerTask, tcp::check_congestion},
};

/// Kernel TCP with one of the kernel's congestion controls.
#[derive(Clone, Debug)]
pub struct Tcp {
    name: String,
    program: PathBuf,
    congestion: String,
}

impl Tcp {
    /// `program` takes a [`Peer`](crate::peers::Peer) behind the word `peer`.
    pub fn new(program: &Path, congestion: &str) -> Tcp {
        Tcp {
            name: format!("tcp-{congestion}"),
            program: program.to_owned(),
            congestion: congestion.to_owned(),
        }
    }

    fn command(&self, peer: &str, task: &Task) -> Command {
        let mut command = Command::new(&self.program);
        let arguments = PeerTask::new(task, &self.congestion).to_arguments();
        command.args(["peer", peer]).args(arguments);
        command
    }
}

impl Contestant for Tcp {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        let parameters: Vec<_> = TCP_PARAMETERS
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        format!("kernel TCP, {}; {}", self.congestion, parameters.join(", "))
    }

    fn check(&self) -> Result<(), String> {
        check_congestion(&self.congestion).map_err(|error| error.to_string())
    }

    fn receiver(&self, task: &Task) -> Command {
        self.command("tcp-receive", task)
    }

    fn sender(&self, task: &Task) -> Command {
        self.command("tcp-send", task)
    }

    fn reporter(&self) -> Side {
        Side::Receiver
    }

    fn keeps_limit(&self) -> bool {
        true
    }
}
