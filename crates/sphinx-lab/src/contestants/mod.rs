//! The transports that are compared.

mod external;
mod quinn;
mod sphinx;
mod tcp;
mod udp;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::Contestant;

pub use external::{Adapter, External};
pub use quinn::Quinn;
pub use sphinx::Sphinx;
pub use tcp::{Tcp, TcpSettings};
pub use udp::Udp;

/// A command that runs the [peers](crate::peers).
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    words: Vec<String>,
}

impl Program {
    /// `path words… PEER ARGUMENTS…` runs a [`Peer`](crate::peers::Peer).
    pub fn new(path: &Path, words: &[&str]) -> Program {
        Program {
            path: path.to_owned(),
            words: words.iter().map(ToString::to_string).collect(),
        }
    }

    /// The command of one end.
    pub fn command(&self, peer: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.words).arg(peer);
        command
    }
}

/// The programs that contestants are made of.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The `sphx` command.
    pub sphx: PathBuf,
    /// What runs the peers, those that need QUIC excepted.
    pub peers: Program,
    /// What runs the peers that need QUIC; it need not exist.
    pub quinn: Program,
}

impl Programs {
    /// With `sphx` for everything but QUIC, and `bench-link` beside it for that.
    pub fn of_sphx(sphx: &Path) -> Programs {
        Programs {
            sphx: sphx.to_owned(),
            peers: Program::new(sphx, &["lab", "peer"]),
            quinn: Program::new(&sphx.with_file_name("bench-link"), &["peer"]),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Programs {
        Programs::of_sphx("/nowhere/sphx".as_ref())
    }
}

/// The transports of the standing comparison, in the order of the tables. `sphx` is the `sphx`
/// command; it need not exist.
pub fn all(program: &Program, sphx: &Path) -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(Tcp::new(program, "cubic")),
        Box::new(Tcp::new(program, "bbr")),
        Box::new(Quinn::new(program, "cubic")),
        Box::new(Quinn::new(program, "bbr")),
        Box::new(Sphinx::new(sphx, program, "sphinx", Vec::new())),
    ]
}
