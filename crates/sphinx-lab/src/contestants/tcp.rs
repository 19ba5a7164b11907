//! Kernel TCP.

use std::process::Command;

use sphinx_link::front::TCP_PARAMETERS;

use super::Program;
use crate::{
    Contestant, Side, Simulated, Task, Workload,
    peers::{PeerTask, socket::check_congestion},
};

/// Kernel TCP with one of the kernel's congestion controls.
#[derive(Clone, Debug)]
pub struct Tcp {
    name: String,
    program: Program,
    settings: TcpSettings,
}

/// How the kernel's TCP is to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// One of the kernel's congestion controls.
    pub congestion: String,
    /// Selective acknowledgements.
    pub sack: bool,
    /// Loss detection by time; without SACK there is none either.
    pub rack: bool,
    /// Multipath TCP, over all paths that there are.
    pub mptcp: bool,
}

impl TcpSettings {
    /// The kernel's defaults.
    pub fn new(congestion: &str) -> TcpSettings {
        TcpSettings {
            congestion: congestion.to_owned(),
            sack: true,
            rack: true,
            mptcp: false,
        }
    }
}

impl Tcp {
    /// With the kernel's defaults; the name is `tcp-CONGESTION`.
    pub fn new(program: &Program, congestion: &str) -> Tcp {
        let name = format!("tcp-{congestion}");
        Tcp::with_settings(program, &name, TcpSettings::new(congestion))
    }

    /// A contestant with this name and these settings.
    pub fn with_settings(program: &Program, name: &str, settings: TcpSettings) -> Tcp {
        Tcp {
            name: name.to_owned(),
            program: program.clone(),
            settings,
        }
    }

    fn command(&self, peer: &str, task: &Task) -> Command {
        let mut peer_task = PeerTask::new(task, &self.settings.congestion);
        peer_task.mptcp = self.settings.mptcp;
        let mut command = self.program.command(peer);
        command.arg(peer_task.to_argument());
        command
    }

    /// Kernel parameters that turn off what the settings do without, with their values.
    fn switches(&self) -> Vec<(String, String)> {
        let mut switches = Vec::new();
        if !self.settings.sack {
            switches.push(("net.ipv4.tcp_sack".to_owned(), "0".to_owned()));
        }
        if !self.settings.rack {
            switches.push(("net.ipv4.tcp_recovery".to_owned(), "0".to_owned()));
        }
        switches
    }
}

/// Whether it is one of the [`TCP_PARAMETERS`] that limit how much may be under way. The others change nothing for a first connection, so
/// that a kernel may lack them.
fn is_of_buffers(name: &str) -> bool {
    name.ends_with("mem")
}

impl Contestant for Tcp {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        let TcpSettings {
            congestion, mptcp, ..
        } = &self.settings;
        let parameters: Vec<_> = TCP_PARAMETERS
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .chain(
                self.switches()
                    .into_iter()
                    .map(|(name, value)| format!("{name} = {value}")),
            )
            .collect();
        let multipath = if *mptcp { "multipath " } else { "" };
        format!(
            "kernel {multipath}TCP, {congestion}; {}",
            parameters.join(", ")
        )
    }

    fn check(&self) -> Result<(), String> {
        check_congestion(&self.settings.congestion, self.settings.mptcp)
            .map_err(|error| error.to_string())
    }

    fn check_workload(&self, _workload: &Workload) -> Result<(), String> {
        Ok(())
    }

    fn in_virtual_time(&self) -> Result<Simulated, String> {
        Err("kernel TCP has no virtual time".to_owned())
    }

    fn parameters(&self) -> Vec<(String, String)> {
        let buffers = TCP_PARAMETERS
            .iter()
            .filter(|(name, _)| is_of_buffers(name))
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        buffers.chain(self.switches()).collect()
    }

    fn is_mptcp(&self) -> bool {
        self.settings.mptcp
    }

    fn can_be_bounded(&self) -> bool {
        true
    }

    fn receiver(&self, task: &Task) -> Command {
        match task.workload {
            Workload::Video(_) | Workload::Web(_) => self.command("http-client", task),
            _ => self.command("tcp-receive", task),
        }
    }

    fn sender(&self, task: &Task) -> Command {
        match task.workload {
            Workload::Video(_) | Workload::Web(_) => self.command("http-server", task),
            _ => self.command("tcp-send", task),
        }
    }

    fn reporter(&self, _workload: &Workload) -> Side {
        Side::Receiver
    }

    fn keeps_limit(&self, _workload: &Workload) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_runs_are_noted_for_has_to_be_set() {
        let program = Program::new("sphx".as_ref(), &[]);
        let settings = TcpSettings {
            sack: false,
            ..TcpSettings::new("reno")
        };
        let tcp = Tcp::with_settings(&program, "reno", settings);
        let parameters = tcp.parameters();
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "net.ipv4.tcp_rmem",
                "net.ipv4.tcp_wmem",
                "net.ipv4.tcp_sack"
            ]
        );
        for (name, value) in parameters {
            let words = format!("{name} = {value}");
            assert_eq!(tcp.settings().matches(&words).count(), 1, "{words}");
        }
    }
}
