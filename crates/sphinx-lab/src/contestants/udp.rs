//! Plain UDP.

use std::process::Command;

use super::Program;
use crate::{Contestant, Side, Task, Workload, peers::PeerTask};

/// Datagrams at a fixed rate, nothing repaired.
#[derive(Clone, Debug)]
pub struct Udp {
    name: String,
    program: Program,
    rate: u64,
}

impl Udp {
    /// `rate` is in bits per second at the IP layer.
    pub fn new(program: &Program, name: &str, rate: u64) -> Udp {
        Udp {
            name: name.to_owned(),
            program: program.clone(),
            rate,
        }
    }

    fn command(&self, peer: &str, task: &Task) -> Command {
        let mut peer_task = PeerTask::new(task, "none");
        peer_task.rate = Some(self.rate);
        let mut command = self.program.command(peer);
        command.arg(peer_task.to_argument());
        command
    }
}

impl Contestant for Udp {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        format!("UDP at {} Mbit/s, nothing repaired", self.rate as f64 / 1e6)
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn receiver(&self, task: &Task) -> Command {
        self.command("udp-receive", task)
    }

    fn sender(&self, task: &Task) -> Command {
        self.command("udp-send", task)
    }

    fn reporter(&self, _workload: &Workload) -> Side {
        Side::Receiver
    }

    fn keeps_limit(&self, _workload: &Workload) -> bool {
        true
    }
}
