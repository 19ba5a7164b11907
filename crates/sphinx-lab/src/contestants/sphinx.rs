//! Sphinx, by its own command.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Contestant, Side, Task, Workload, machine::output};

/// `sphx perf` with any options.
#[derive(Clone, Debug)]
pub struct Sphinx {
    name: String,
    program: PathBuf,
    options: Vec<String>,
}

impl Sphinx {
    /// `options` are added to the sender's command.
    pub fn new(program: &Path, name: &str, options: Vec<String>) -> Sphinx {
        Sphinx {
            name: name.to_owned(),
            program: program.to_owned(),
            options,
        }
    }

    fn command(&self, role: &str, task: &Task) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["perf", role, "--json", "--ticket-file"])
            .arg(task.directory.join("ticket"));
        command
    }
}

impl Contestant for Sphinx {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self) -> String {
        let version = output(Command::new(&self.program).arg("--version"));
        let version = version.unwrap_or_else(|| "sphx of unknown version".into());
        match self.options.as_slice() {
            [] => version,
            options => format!("{version}, {}", options.join(" ")),
        }
    }

    fn check(&self) -> Result<(), String> {
        match output(Command::new(&self.program).arg("--version")) {
            Some(_) => Ok(()),
            None => Err(format!("{} does not run", self.program.display())),
        }
    }

    fn receiver(&self, task: &Task) -> Command {
        let mut command = self.command("server", task);
        command
            .arg("--once")
            .arg("--listen")
            .arg(task.address.to_string());
        command
    }

    fn sender(&self, task: &Task) -> Command {
        let mut command = self.command("client", task);
        match &task.workload {
            Workload::Bulk { bytes } => {
                command.arg("--bytes").arg(bytes.to_string());
            }
            blocks @ Workload::Blocks { bytes, .. } => {
                let rate = blocks.offered_bits().unwrap_or_default();
                let micros = blocks.schedule().as_micros();
                command
                    .arg("--rate")
                    .arg(format!("{rate}bit"))
                    .arg("--block-size")
                    .arg(bytes.to_string())
                    .arg("--time")
                    .arg(format!("{micros}us"));
            }
        }
        command.args(&self.options);
        command
    }

    fn reporter(&self) -> Side {
        Side::Sender
    }

    fn keeps_limit(&self) -> bool {
        false
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
        let sphinx = Sphinx::new("sphx".as_ref(), "sphinx-fixed", options);
        let mut task = Task {
            address: "10.77.0.2:5201".parse().unwrap(),
            workload: Workload::Bulk { bytes: 50_000_000 },
            limit: Duration::from_secs(10),
            warmup: Duration::from_millis(100),
            seed: 1,
            directory: "/d".into(),
        };
        assert_eq!(
            line(&sphinx.receiver(&task)),
            "perf server --json --ticket-file /d/ticket --once --listen 10.77.0.2:5201"
        );
        assert_eq!(
            line(&sphinx.sender(&task)),
            "perf client --json --ticket-file /d/ticket --bytes 50000000 --cc fixed:190mbit"
        );
        task.workload = Workload::Blocks {
            count: 600,
            bytes: 100_000,
            interval: Duration::from_millis(40),
        };
        assert_eq!(
            line(&sphinx.sender(&task)),
            "perf client --json --ticket-file /d/ticket --rate 20000000bit --block-size 100000 \
             --time 24000000us --cc fixed:190mbit"
        );
    }

    #[test]
    fn a_missing_command_is_noticed() {
        let sphinx = Sphinx::new("/nowhere/sphx".as_ref(), "sphinx", Vec::new());
        assert_eq!(sphinx.check(), Err("/nowhere/sphx does not run".into()));
    }
}
