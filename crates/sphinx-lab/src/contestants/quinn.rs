//! QUIC by the quinn library.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Contestant, Side, Task, peers::PeerTask};

/// The versions that this workspace was built with.
const LOCK: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));

/// A small QUIC program with one of quinn's congestion controls. Needs the feature `quinn`.
#[derive(Clone, Debug)]
pub struct Quinn {
    name: String,
    program: PathBuf,
    congestion: String,
}

impl Quinn {
    /// `program` takes a [`Peer`](crate::peers::Peer) behind the word `peer`.
    pub fn new(program: &Path, congestion: &str) -> Quinn {
        Quinn {
            name: format!("quinn-{congestion}"),
            program: program.to_owned(),
            congestion: congestion.to_owned(),
        }
    }

    fn command(&self, peer: &str, task: &Task) -> Command {
        let mut command = Command::new(&self.program);
        let mut peer_task = PeerTask::new(task, &self.congestion);
        peer_task.certificate = Some(task.directory.join("certificate.der"));
        command.args(["peer", peer]).args(peer_task.to_arguments());
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
             to 1452, TLS 1.3 (aws-lc-rs), 2 threads",
            version("quinn"),
            version("quinn-proto"),
            self.congestion
        )
    }

    fn check(&self) -> Result<(), String> {
        #[cfg(feature = "quinn")]
        let result = crate::peers::quic::check_congestion(&self.congestion)
            .map_err(|error| error.to_string());
        #[cfg(not(feature = "quinn"))]
        let result = Err("built without the feature 'quinn'".to_owned());
        result
    }

    fn receiver(&self, task: &Task) -> Command {
        self.command("quic-receive", task)
    }

    fn sender(&self, task: &Task) -> Command {
        self.command("quic-send", task)
    }

    fn reporter(&self) -> Side {
        Side::Receiver
    }

    fn keeps_limit(&self) -> bool {
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
