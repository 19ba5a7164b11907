//! QUIC by the quinn library.

use std::process::{Command, Stdio};

use super::Program;
use crate::{Contestant, Side, Task, Workload, peers::PeerTask};

/// The versions that this workspace was built with.
const LOCK: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));

/// A small QUIC program with one of quinn's congestion controls. Needs the feature `quinn`.
#[derive(Clone, Debug)]
pub struct Quinn {
    name: String,
    program: Program,
    congestion: String,
    datagrams: bool,
}

impl Quinn {
    /// `program` must have been built with the feature `quinn`.
    pub fn new(program: &Program, congestion: &str) -> Quinn {
        Quinn::with_name(program, &format!("quinn-{congestion}"), congestion)
    }

    /// A contestant with a name of its own, not `quinn-CONGESTION`.
    pub fn with_name(program: &Program, name: &str, congestion: &str) -> Quinn {
        Quinn {
            name: name.to_owned(),
            program: program.clone(),
            congestion: congestion.to_owned(),
            datagrams: false,
        }
    }

    /// Messages are datagrams, of which nothing is repaired, instead of streams.
    #[must_use]
    pub fn with_datagrams(self) -> Quinn {
        Quinn {
            datagrams: true,
            ..self
        }
    }

    fn command(&self, peer: &str, task: &Task) -> Command {
        let mut peer_task = PeerTask::new(task, &self.congestion);
        peer_task.datagrams = self.datagrams;
        let mut command = self.program.command(peer);
        command.arg(peer_task.to_argument());
        command
    }
}

impl Contestant for Quinn {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        let version = |name| version(LOCK, name).unwrap_or("unknown");
        format!(
            "quinn {}, quinn-proto {}, {}; windows 32 MB, socket buffers 16 MB, GSO, MTU discovery \
             to 1452, TLS 1.3 (aws-lc-rs, AES-128-GCM), 2 threads; {}",
            version("quinn"),
            version("quinn-proto"),
            self.congestion,
            match self.datagrams {
                true => "messages are datagrams",
                false => "a stream for each block",
            }
        )
    }

    fn is_of(&self, settings: &str) -> bool {
        // Older runs do not name the cipher, which was AES-256-GCM.
        settings.replace("(aws-lc-rs)", "(aws-lc-rs, AES-128-GCM)") == self.settings()
    }

    fn check(&self) -> Result<(), String> {
        let mut command = self.program.command("quic-check");
        command.arg(PeerTask::about(&self.congestion).to_argument());
        // It ends itself when its standard input does, so that has to stay open.
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let status = child.and_then(|mut child| {
            let _open = child.stdin.take();
            child.wait()
        });
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!(
                "no program with quinn's {} (make bench-link builds one)",
                self.congestion
            )),
        }
    }

    fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        match workload {
            Workload::Live { .. } => Ok(()),
            _ if !self.datagrams => Ok(()),
            _ => Err("datagrams carry messages".to_owned()),
        }
    }

    fn receiver(&self, task: &Task) -> Command {
        match task.workload {
            Workload::Video(_) | Workload::Web(_) => self.command("quic-client", task),
            _ => self.command("quic-receive", task),
        }
    }

    fn sender(&self, task: &Task) -> Command {
        match task.workload {
            Workload::Video(_) | Workload::Web(_) => self.command("quic-server", task),
            _ => self.command("quic-send", task),
        }
    }

    fn reporter(&self, _workload: &Workload) -> Side {
        Side::Receiver
    }

    fn keeps_limit(&self, _workload: &Workload) -> bool {
        true
    }
}

/// The version of a package in a lock file.
fn version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let mut lines = lock.lines();
    lines.find(|line| line.strip_prefix("name = ") == Some(&format!("\"{package}\"")))?;
    lines
        .next()?
        .strip_prefix("version = \"")?
        .strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        let lock = "[[package]]\nname = \"quinn-proto\"\nversion = \"0.11.19\"\n";
        assert_eq!(version(lock, "quinn-proto"), Some("0.11.19"));
        assert_eq!(version(lock, "quinn"), None);
        assert!(version(LOCK, "quinn").is_some());
    }
}
