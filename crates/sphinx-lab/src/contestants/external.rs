//! Other people's programs, where they are installed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::Program;
use crate::{Contestant, Side, Task, Workload, machine::beginning, peers::PeerTask};

/// How a program takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// TCP goes through it; it has a server and a client.
    Tunnel,
    /// Datagrams go through it.
    Relay,
    /// It transfers one file.
    File,
    /// It is iperf3.
    Iperf,
}

/// Two commands and how to use them.
///
/// In the commands, `{host}`, `{port}`, `{address}` are where the receiver listens, `{local}` is where a tunnel's
/// or relay's sender listens and `{inner}` where its receiver connects or sends to, `{bytes}` is the size of the transfer,
/// `{file}` the file to send and `{directory}` a directory of the run; files received go to
/// `{directory}/inbox`.
#[derive(Clone, Debug)]
pub struct External {
    name: String,
    program: Program,
    adapter: Adapter,
    receiver: Vec<String>,
    sender: Vec<String>,
    build: OnceLock<String>,
}

/// Separates the settings from the hash of the program that follows.
const BUILD: &str = " (build ";

/// Programs that are known: how they take part, the receiver's command, the sender's.
const KNOWN: [(&str, Adapter, &str, &str); 4] = [
    (
        "iperf3",
        Adapter::Iperf,
        "iperf3 -s -1 -J -p {port}",
        "iperf3 -c {host} -p {port} -n {bytes} -C cubic",
    ),
    (
        "kcptun",
        Adapter::Tunnel,
        "kcptun-server -t {inner} -l :{port} --mode fast3 --crypt none --nocomp --mtu 1350 \
         --datashard 10 --parityshard 3 --sndwnd 1024 --rcvwnd 4096 --sockbuf 16777216 --smuxver 2 \
         --smuxbuf 33554432 --streambuf 16777216",
        "kcptun-client -r {address} -l {local} --mode fast3 --crypt none --nocomp --mtu 1350 \
         --datashard 10 --parityshard 3 --sndwnd 1024 --rcvwnd 4096 --sockbuf 16777216 --smuxver 2 \
         --smuxbuf 33554432 --streambuf 16777216",
    ),
    (
        "srt",
        Adapter::File,
        "srt-file-transmit srt://:{port}?fc=65536&rcvbuf=50331648 file://{directory}/inbox",
        "srt-file-transmit file://{file} srt://{address}?fc=65536&sndbuf=50331648",
    ),
    (
        "uftp",
        Adapter::File,
        "uftpd -d -D {directory}/inbox -B 8388608",
        "uftp -R 190000 -b 1400 -B 8388608 -M {host} {file}",
    ),
];

impl External {
    /// One of the known programs: `iperf3`, `kcptun`, `srt`, `uftp`.
    pub fn known(program: &Program, kind: &str, name: &str) -> Option<External> {
        let (_, adapter, receiver, sender) = KNOWN.iter().find(|known| known.0 == kind)?;
        Some(External::new(program, name, *adapter, receiver, sender))
    }

    /// Any program.
    pub fn new(
        program: &Program,
        name: &str,
        adapter: Adapter,
        receiver: &str,
        sender: &str,
    ) -> External {
        let words = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect();
        External {
            name: name.to_owned(),
            program: program.clone(),
            adapter,
            receiver: words(receiver),
            sender: words(sender),
            build: OnceLock::new(),
        }
    }

    /// The settings without the hash of the program.
    fn words(&self) -> String {
        let (receiver, sender) = (self.receiver.join(" "), self.sender.join(" "));
        format!("receiver: {receiver}; sender: {sender}")
    }

    /// The beginning of the hash of both programs, and of the files among their arguments, such as what an interpreter runs. What they start
    /// themselves is not known.
    fn build(&self) -> &str {
        let find = || {
            let mut hasher = blake3::Hasher::new();
            for words in [&self.receiver, &self.sender] {
                let program = words.first().and_then(|name| installed(name));
                let files = words.iter().skip(1).map(PathBuf::from);
                for file in program.into_iter().chain(files.filter(|it| it.is_file())) {
                    hasher.update(&fs::read(file).unwrap_or_default());
                }
            }
            beginning(hasher.finalize())
        };
        self.build.get_or_init(find)
    }

    fn command(&self, side: Side, task: &Task) -> Command {
        let (prefix, words) = match self.adapter {
            Adapter::Tunnel => ("tunnel", &self.receiver),
            Adapter::Relay => ("relay", &self.receiver),
            Adapter::File => ("file", &self.receiver),
            Adapter::Iperf => ("iperf", &self.receiver),
        };
        let (end, words) = match side {
            Side::Receiver => ("receive", words),
            Side::Sender => ("send", &self.sender),
        };
        let mut peer_task = PeerTask::new(task, "cubic");
        peer_task.options.clone_from(words);
        let mut command = self.program.command(&format!("{prefix}-{end}"));
        command.arg(peer_task.to_argument());
        command
    }
}

/// Where a program is, as whoever starts it finds it.
fn installed(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|it| it.is_file());
    }
    let directories = env::var_os("PATH")?;
    let mut places = env::split_paths(&directories).map(|directory: PathBuf| directory.join(name));
    places.find(|place: &PathBuf| Path::is_file(place))
}

impl Contestant for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        format!("{}{BUILD}{})", self.words(), self.build())
    }

    fn is_of(&self, settings: &str) -> bool {
        // Older runs do not tell the build.
        let words = settings.rsplit_once(BUILD);
        words.map_or(settings, |(words, _)| words) == self.words()
    }

    fn check(&self) -> Result<(), String> {
        for words in [&self.receiver, &self.sender] {
            let name = words.first().ok_or("an empty command")?;
            let started = Command::new(name)
                .arg("--version")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            match started {
                Ok(mut child) => {
                    // It could be started, so it is installed, whatever it answers.
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Err(_) => return Err(format!("{name} is not installed")),
            }
        }
        Ok(())
    }

    fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        match (workload, self.adapter) {
            (Workload::Live { .. }, Adapter::Relay) => Ok(()),
            (_, Adapter::Relay) => Err("a relay carries live messages only".to_owned()),
            (Workload::Bulk { .. }, _) => Ok(()),
            (Workload::Blocks { .. } | Workload::Live { .. }, Adapter::Tunnel) => Ok(()),
            _ => Err("the adapter does not do this".to_owned()),
        }
    }

    fn can_be_bounded(&self) -> bool {
        // Only iperf3: a tunnel has buffers of its own, which a bound on the TCP connection behind it does not limit.
        self.adapter == Adapter::Iperf
    }

    fn receiver(&self, task: &Task) -> Command {
        self.command(Side::Receiver, task)
    }

    fn sender(&self, task: &Task) -> Command {
        self.command(Side::Sender, task)
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
    fn what_is_not_installed_is_told_by_name() {
        let program = Program::new("sphx".as_ref(), &[]);
        let none = External::new(&program, "x", Adapter::Tunnel, "no-such-server a", "true");
        assert_eq!(none.check(), Err("no-such-server is not installed".into()));
        let there = External::new(&program, "x", Adapter::Tunnel, "true", "true");
        assert_eq!(there.check(), Ok(()));
        assert!(External::known(&program, "kcptun", "k").is_some());
        assert!(External::known(&program, "nothing", "k").is_none());
    }

    #[test]
    fn another_build_is_another_program_of_the_same_contestant() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("server.sh");
        let program = Program::new("sphx".as_ref(), &[]);
        let external = |text: &str| {
            fs::write(&script, text).unwrap();
            let receiver = format!("sh {} {{port}}", script.display());
            External::new(&program, "x", Adapter::Tunnel, &receiver, "true")
        };
        let settings = |text: &str| external(text).settings();
        let first = settings("exec one");
        assert!(first.starts_with("receiver: sh ") && first.contains("sender: true (build "));
        assert_eq!(settings("exec one"), first);
        assert_ne!(settings("exec two"), first);
        let now = external("exec two");
        assert!(now.is_of(&first) && now.is_of(&now.words()));
        assert!(!now.is_of("receiver: sh; sender: true"));
    }
}
