//! A path, what goes over it, and what the programs on its hosts say.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use super::Studio;
use crate::path::{self, Output, Outputs, PathArgs, Plan, Report};

/// Longer than that, no program may stand still: what it sends and reads late is taken for the path's doing, of which the emulator, that goes before others, says
/// nothing.
const STILL_MS_MAX: f64 = 1000.0;

/// How a run over a path ended.
pub(super) struct Ended {
    pub(super) report: Report,
    /// What the command on the host in the middle has said, and that on the right one.
    pub(super) middle: String,
    pub(super) right: String,
}

/// The files of a run; they disappear with this.
pub(super) struct Files(TempDir);

impl Files {
    pub(super) fn new() -> Result<Files, String> {
        TempDir::new().map(Files).map_err(told)
    }

    pub(super) fn of(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Makes a path, and does what is asked for; else, why that could not be.
pub(super) fn carry(studio: &Studio<'_>, files: &Files, args: PathArgs) -> Result<Ended, String> {
    let plan = Plan::new(args).map_err(|error| error.to_string())?;
    let mut init = Command::new(&studio.programs.sphx);
    init.args(["lab", "link", "__init"]);
    let output = |name| fs::File::create(files.of(name)).map(Output::File);
    let outputs = Outputs {
        middle: output("middle").map_err(told)?,
        right: output("right").map_err(told)?,
    };
    let mut notices = Vec::new();
    let report = path::run(&plan, init, outputs, studio.stop, &mut |text| {
        notices.push(text.to_owned());
    });
    let [middle, right] = ["middle", "right"].map(|name| fs::read_to_string(files.of(name)));
    let (middle, right) = (middle.map_err(told)?, right.map_err(told)?);
    let report = report.map_err(|error| {
        let own = last(&middle, "error").or_else(|| last(&right, "error"));
        match own {
            Some(own) => format!("{error}: {}", own["message"].as_str().unwrap_or("?")),
            None => error.to_string(),
        }
    })?;
    let report = report.ok_or("interrupted")?;
    see_still(report.still_ms_max)?;
    match notices.first() {
        // Without its agent, it would be another experiment.
        Some(notice) => Err(notice.clone()),
        None => Ok(Ended {
            report,
            middle,
            right,
        }),
    }
}

/// Refuses a run in which senders and receivers had no processor for so long.
fn see_still(ms: f64) -> Result<(), String> {
    match ms <= STILL_MS_MAX {
        true => Ok(()),
        false => Err(format!(
            "senders and receivers had no processor for {:.1} s",
            ms / 1e3
        )),
    }
}

/// The latest packet of the emulator, in milliseconds.
pub(super) fn late_ms_max(report: &Report) -> f64 {
    let late = report.hops.iter().map(|hop| hop.lateness.max_ms);
    late.fold(0.0, f64::max)
}

/// The command of an agent, with more options.
pub(super) fn agent(sphx: &Path, more: &str) -> String {
    // In quotes of the shell.
    let program = sphx.display().to_string().replace('\'', r"'\''");
    format!("exec '{program}' pep run --json --quiet {more} 2>/dev/null")
}

/// The last event of a kind that an agent has told.
pub(super) fn last(said: &str, kind: &str) -> Option<Value> {
    let events = said.lines().rev();
    let mut events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.find(|event| event["event"] == kind)
}

pub(super) fn told(error: io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_found_wherever_it_is() {
        let directory = TempDir::new().unwrap();
        let program = directory.path().join("it's a $(program)");
        sphinx_testing::write_program(&program, "echo \"$@\"").unwrap();
        let mut shell = Command::new("/bin/sh");
        let said = shell.args(["-c", &agent(&program, "--agent rdb")]).output();
        let said = String::from_utf8(said.unwrap().stdout).unwrap();
        assert_eq!(said, "pep run --json --quiet --agent rdb\n");
    }

    #[test]
    fn a_run_that_stood_still_is_none() {
        assert_eq!(see_still(51.2), Ok(()));
        let error = see_still(274_049.9).unwrap_err();
        assert_eq!(error, "senders and receivers had no processor for 274.0 s");
    }

    #[test]
    fn the_end_of_an_agent_is_found() {
        let said = "{\"event\":\"started\"}\nnoise\n{\"event\":\"done\",\"repaired\":5}\n";
        assert_eq!(last(said, "done").unwrap()["repaired"], 5);
        assert!(last(said, "error").is_none() && last("", "done").is_none());
    }
}
