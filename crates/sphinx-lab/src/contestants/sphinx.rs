//! Sphinx, by its own command.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde_json::Value;

use super::Program;
use crate::{
    Beginning, Contestant, Side, Simulated, Task, Workload,
    machine::{build, output},
    peers::PeerTask,
};

/// Exit code of `sphx` for a command line that it does not take.
const USAGE: i32 = 2;

/// What an earlier session carries: enough to know the path by.
const MEETING: Workload = Workload::Bulk { bytes: 10_000_000 };

/// Options that have `sphx perf client` send small messages.
const MESSAGES: [&str; 2] = ["--message-size=100B", "--interval=10ms"];

/// `sphx perf` with any options. Requests (video, web) go over the streams of a session between two
/// [peers](crate::peers), with the same options.
#[derive(Debug)]
pub struct Sphinx {
    name: String,
    sphx: PathBuf,
    program: Program,
    options: Vec<String>,
    knows_deadline: bool,
    /// Both ends have met, and remember what they may.
    is_known: bool,
    /// Of several paths the one that it uses; all, if none is named.
    only: Option<String>,
    version: OnceLock<Option<String>>,
}

impl Sphinx {
    /// `options` are added to the sender's command.
    pub fn new(sphx: &Path, program: &Program, name: &str, options: Vec<String>) -> Sphinx {
        Sphinx {
            name: name.to_owned(),
            sphx: sphx.to_owned(),
            program: program.clone(),
            options,
            knows_deadline: true,
            is_known: false,
            only: None,
            version: OnceLock::new(),
        }
    }

    /// It is not told how long messages are of use, so that its datagrams are not repaired. How many are late
    /// is then not known.
    #[must_use]
    pub fn without_deadline(self) -> Sphinx {
        Sphinx {
            knows_deadline: false,
            ..self
        }
    }

    /// Its ends have met over the same link just before: a session may begin with data, and knows the path.
    #[must_use]
    pub fn known(self) -> Sphinx {
        Sphinx {
            is_known: true,
            ..self
        }
    }

    /// Of several paths, it uses only the one of this name.
    #[must_use]
    pub fn over_path(self, name: String) -> Sphinx {
        Sphinx {
            only: Some(name),
            ..self
        }
    }

    /// The version and the beginning of the program's hash.
    fn version(&self) -> Option<&str> {
        let find = || {
            let version = output(Command::new(&self.sphx).arg("--version"))?;
            Some(format!("{version} (build {})", build(&self.sphx)?))
        };
        self.version.get_or_init(find).as_deref()
    }

    /// The settings without the version.
    fn words(&self) -> String {
        let mut words = self.options.clone();
        if !self.knows_deadline {
            words.push("(without --deadline)".to_owned());
        }
        if self.is_known {
            words.push("(both ends have met)".to_owned());
        }
        words.extend(self.only.iter().map(|name| format!("(over {name})")));
        words.join(" ")
    }

    /// Whether the options are about what carries messages.
    fn is_of_messages(&self) -> bool {
        let is_one = |option: &String| {
            let name = option.split('=').next().unwrap_or_default();
            ["--mode", "--bundle"].contains(&name)
        };
        self.options.iter().any(is_one)
    }

    /// Whether the options are about several paths, and need some.
    fn is_of_paths(&self) -> bool {
        self.options.iter().any(|it| it.starts_with("--bond"))
    }

    /// As a measured end, which watches its standard input: however the lab ends, none stays.
    fn perf(&self, role: &str, task: &Task) -> Command {
        let mut command = Command::new(&self.sphx);
        command
            .args(["__demo", "perf", role, "--json", "--ticket-file"])
            .arg(task.directory.join("ticket"));
        command
    }

    fn peer(&self, peer: &str, task: &Task) -> Command {
        let mut peer_task = PeerTask::new(task, "none");
        peer_task.options.clone_from(&self.options);
        let mut command = self.program.command(peer);
        command.arg(peer_task.to_argument());
        command
    }

    /// What `sphx` says about options that it does not take.
    fn refusal(&self, options: &[&str]) -> Result<(), String> {
        // A ticket file that does not exist ends the command before it does anything.
        let mut command = Command::new(&self.sphx);
        command
            .args([
                "perf",
                "client",
                "--json",
                "--ticket-file",
                "/dev/null/none",
            ])
            .args(options);
        if self.is_of_paths() {
            command.arg("--path=lo");
        }
        let ended = command.output().map_err(|error| error.to_string())?;
        if ended.status.code() != Some(USAGE) {
            return Ok(());
        }
        let said = ended.stdout.split(|byte| *byte == b'\n');
        let message = said
            .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
            .find_map(|event| Some(event["message"].as_str()?.to_owned()));
        Err(message.unwrap_or_else(|| "sphx does not take these options".to_owned()))
    }
}

impl Contestant for Sphinx {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        let version = self.version().unwrap_or("sphx of unknown version");
        match self.words().as_str() {
            "" => version.to_owned(),
            words => format!("{version}, {words}"),
        }
    }

    fn is_of(&self, settings: &str) -> bool {
        // The version comes first and has no comma. It may differ between runs of one contestant.
        let (_, words) = settings.split_once(", ").unwrap_or((settings, ""));
        words == self.words()
    }

    fn check(&self) -> Result<(), String> {
        if self.version().is_none() {
            return Err(format!("{} does not run", self.sphx.display()));
        }
        let schedule: &[&str] = match self.is_of_messages() {
            true => &MESSAGES,
            false => &[],
        };
        let options = self.options.iter().map(String::as_str);
        self.refusal(&schedule.iter().copied().chain(options).collect::<Vec<_>>())
    }

    fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        match workload {
            Workload::Live { .. } => {
                let options = self.options.iter().map(String::as_str);
                let schedule = MESSAGES.into_iter().chain(["--deadline=50ms"]);
                self.refusal(&schedule.chain(options).collect::<Vec<_>>())
            }
            _ if self.is_of_messages() => Err("these options are for messages".to_owned()),
            _ => Ok(()),
        }
    }

    fn in_virtual_time(&self) -> Result<Simulated, String> {
        if self.is_known {
            return Err("nobody has met before in virtual time".to_owned());
        }
        let simulated = Simulated::parse(&self.options)?;
        Ok(simulated.over_path(self.only.clone()))
    }

    fn can_be_bounded(&self) -> bool {
        true
    }

    fn receiver(&self, task: &Task) -> Command {
        if let Workload::Video(_) | Workload::Web(_) = task.workload {
            return self.peer("sphinx-client", task);
        }
        let mut command = self.perf("server", task);
        if !self.is_known {
            command.arg("--once");
        }
        command.arg("--listen").arg(task.address.to_string());
        if let Some(bytes) = task.receive_buffer {
            command.arg("--recv-window").arg(format!("{bytes}B"));
        }
        command
    }

    fn meeting(&self, task: &Task) -> Option<Command> {
        self.is_known.then(|| {
            let mut before = task.clone();
            before.workload = MEETING;
            self.sender(&before)
        })
    }

    fn sender(&self, task: &Task) -> Command {
        let workload = &task.workload;
        let micros = format!("{}us", workload.schedule().as_micros());
        let mut command = match workload {
            Workload::Video(_) | Workload::Web(_) => return self.peer("sphinx-server", task),
            _ => self.perf("client", task),
        };
        if self.is_known {
            command.env("XDG_CACHE_HOME", &task.directory);
        } else {
            // No cache of known paths: other contestants remember nothing either.
            command.arg("--no-cache");
        }
        match workload {
            Workload::Bulk { bytes } => command.arg("--bytes").arg(format!("{bytes}B")),
            Workload::Blocks { bytes, .. } => {
                let rate = workload.offered_bits().unwrap_or_default();
                command
                    .arg("--rate")
                    .arg(format!("{rate}bit"))
                    .arg("--block-size")
                    .arg(format!("{bytes}B"))
                    .args(["--time", &micros])
            }
            Workload::Live {
                bytes,
                interval,
                deadline,
                ..
            } => {
                if self.knows_deadline {
                    command.arg(format!("--deadline={}us", deadline.as_micros()));
                }
                command
                    .arg("--message-size")
                    .arg(format!("{bytes}B"))
                    .arg(format!("--interval={}us", interval.as_micros()))
                    .args(["--time", &micros])
            }
            Workload::Video(_) | Workload::Web(_) => &mut command,
        };
        let is_used = |path: &&Beginning| self.only.as_ref().is_none_or(|name| *name == path.name);
        for path in task.paths.iter().filter(is_used) {
            let Beginning {
                name,
                interface,
                cost,
                ..
            } = path;
            command
                .arg("--path")
                .arg(format!("{name}={interface},cost={cost}"));
        }
        command.args(&self.options);
        command
    }

    fn reporter(&self, workload: &Workload) -> Side {
        match workload {
            Workload::Video(_) | Workload::Web(_) => Side::Receiver,
            _ => Side::Sender,
        }
    }

    fn keeps_limit(&self, workload: &Workload) -> bool {
        matches!(workload, Workload::Video(_) | Workload::Web(_))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(command: &Command) -> String {
        let words = command.get_args().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn commands_follow_the_contract() {
        let options = vec!["--cc".to_owned(), "fixed:190mbit".to_owned()];
        let program = Program::new("sphx".as_ref(), &["lab", "peer"]);
        let sphinx = Sphinx::new("sphx".as_ref(), &program, "sphinx-fixed", options);
        let mut task = Task {
            address: "10.77.0.2:5201".parse().unwrap(),
            paths: Vec::new(),
            receive_buffer: None,
            workload: Workload::Bulk { bytes: 50_000_000 },
            limit: Duration::from_secs(10),
            warmup: Duration::from_millis(100),
            seed: 1,
            directory: "/d".into(),
        };
        assert_eq!(
            line(&sphinx.receiver(&task)),
            "__demo perf server --json --ticket-file /d/ticket --once --listen 10.77.0.2:5201"
        );
        assert_eq!(
            line(&sphinx.sender(&task)),
            "__demo perf client --json --ticket-file /d/ticket --no-cache --bytes 50000000B --cc fixed:190mbit"
        );
        task.workload = Workload::Blocks {
            count: 600,
            bytes: 100_000,
            interval: Duration::from_millis(40),
        };
        assert_eq!(
            line(&sphinx.sender(&task)),
            "__demo perf client --json --ticket-file /d/ticket --no-cache --rate 20000000bit --block-size 100000B \
             --time 24000000us --cc fixed:190mbit"
        );
    }

    #[test]
    fn ends_that_have_met_remember() {
        let program = Program::new("sphx".as_ref(), &["lab", "peer"]);
        let new = || Sphinx::new("sphx".as_ref(), &program, "sphinx", Vec::new());
        let task = Task {
            address: "10.77.0.2:5201".parse().unwrap(),
            paths: Vec::new(),
            receive_buffer: None,
            workload: Workload::Bulk { bytes: 1000 },
            limit: Duration::from_secs(10),
            warmup: Duration::from_millis(100),
            seed: 1,
            directory: "/d".into(),
        };
        assert!(new().meeting(&task).is_none());
        let known = new().known();
        assert!(!new().is_of(&known.settings()));
        let meeting = known.meeting(&task).unwrap();
        let of_client = "__demo perf client --json --ticket-file /d/ticket --bytes";
        assert_eq!(line(&meeting), format!("{of_client} 10000000B"));
        let sender = known.sender(&task);
        assert_eq!(line(&sender), format!("{of_client} 1000B"));
        for command in [meeting, sender] {
            let cache = command.get_envs().any(|(name, _)| name == "XDG_CACHE_HOME");
            assert!(cache);
        }
        assert!(!line(&known.receiver(&task)).contains("--once"));
    }

    #[test]
    fn paths_and_the_receive_buffer_are_told() {
        let program = Program::new("sphx".as_ref(), &["lab", "peer"]);
        let new = || Sphinx::new("sphx".as_ref(), &program, "sphinx", Vec::new());
        let path = |name: &str, interface: &str, cost| Beginning {
            name: name.to_owned(),
            interface: interface.to_owned(),
            address: [10, 77, 0, 1].into(),
            cost,
        };
        let task = Task {
            address: "10.77.0.2:5201".parse().unwrap(),
            paths: vec![path("wifi", "left", 0), path("lte", "left2", 5)],
            receive_buffer: Some(65_536),
            workload: Workload::Bulk { bytes: 1000 },
            limit: Duration::from_secs(10),
            warmup: Duration::from_millis(100),
            seed: 1,
            directory: "/d".into(),
        };
        let sender = line(&new().sender(&task));
        let paths = "--path wifi=left,cost=0 --path lte=left2,cost=5";
        assert!(sender.ends_with(paths), "{sender}");
        let only = new().over_path("lte".to_owned());
        let sender = line(&only.sender(&task));
        assert!(
            sender.ends_with("1000B --path lte=left2,cost=5"),
            "{sender}"
        );
        assert!(!new().is_of(&only.settings()));
        let receiver = line(&new().receiver(&task));
        assert!(receiver.ends_with("--recv-window 65536B"), "{receiver}");
    }

    #[test]
    fn a_missing_command_is_noticed() {
        let program = Program::new("/nowhere/sphx".as_ref(), &[]);
        let sphinx = Sphinx::new("/nowhere/sphx".as_ref(), &program, "sphinx", Vec::new());
        assert_eq!(sphinx.check(), Err("/nowhere/sphx does not run".into()));
    }
}
