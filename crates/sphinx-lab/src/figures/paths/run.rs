//! One transfer over one path.

use std::{fs, io, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use super::{Case, Middle, Run, Truth};
use crate::{
    figures::Studio,
    path::{self, Output, Outputs, PathArgs, Plan},
};

/// Runs a case; else, why that could not be.
pub(super) fn run(studio: &Studio<'_>, upload: bool, case: &Case) -> Result<Run, String> {
    let told = |error: io::Error| error.to_string();
    let directory = TempDir::new().map_err(told)?;
    let files = Files(&directory);
    let hops = case.hops;
    let wireless = match case.help.middle {
        Middle::Free => hops.wireless.to_owned(),
        _ => format!("{} {}", hops.wireless, hops.errors),
    };
    let is_eln = matches!(case.help.middle, Middle::Eln);
    if is_eln {
        let key = Command::new(&studio.programs.sphx)
            .args(["pep", "key", "new"])
            .arg(files.of("key"))
            .status();
        let key = key.map_err(told)?;
        if !key.success() {
            return Err(format!("no key: {key}"));
        }
    }
    let (middle, right) = agents(&studio.programs.sphx, &files, case.help.middle);
    let plan = Plan::new(PathArgs {
        hops: vec![hops.wired.to_owned(), wireless],
        middle,
        right,
        upload,
        split: matches!(case.help.middle, Middle::Split),
        bytes: hops.bytes,
        time: hops.limit,
        cc: case.sender.congestion.to_owned(),
        no_sack: !case.sender.sack,
        seed: case.seed,
        interface_mtu: hops.mtu,
        log: is_eln.then(|| files.of("log")),
        json: true,
        quiet: true,
    });
    let plan = plan.map_err(|error| error.to_string())?;
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
    if let Some(notice) = notices.first() {
        // Without its agent, it would be another experiment.
        return Err(notice.clone());
    }
    let truth = match is_eln {
        true => Some(Truth::read(&files.of("log"), &middle).map_err(told)?),
        false => None,
    };
    let agents = [last(&middle, "done"), last(&right, "done")];
    let count = |agent: &Option<Value>, name: &str| agent.as_ref()?.get(name)?.as_u64();
    let repairs = &agents[usize::from(is_eln)];
    let overloads = agents.iter().filter_map(|agent| count(agent, "overloads"));
    let transfer = report.transfer;
    let useful = report.hops.each_ref().map(|hop| {
        let way = if upload { &hop.back } else { &hop.forward };
        transfer.bytes as f64 / way.counters.sent_bytes.max(1) as f64
    });
    let late = report.hops.iter().map(|hop| hop.lateness.max_ms);
    Ok(Run {
        path: hops.name.to_owned(),
        help: case.help.name.to_owned(),
        sender: case.sender.name.to_owned(),
        seed: case.seed,
        complete: transfer.complete,
        seconds: transfer.seconds,
        goodput_mbit_s: transfer.goodput_mbit_s,
        pause_ms_max: transfer.pause_ms_max,
        segments_sent: transfer.segments_sent,
        segments_again: transfer.segments_again,
        useful,
        repaired: count(repairs, "repaired"),
        spurious: count(repairs, "spurious"),
        held: count(repairs, "held"),
        overloads: repairs.as_ref().map(|_| overloads.sum()),
        truth,
        late_ms_max: late.fold(0.0, f64::max),
    })
}

/// Of one run.
struct Files<'a>(&'a TempDir);

impl Files<'_> {
    fn of(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }
}

/// The commands on the host in the middle and on the right one.
fn agents(program: &Path, files: &Files<'_>, middle: Middle) -> (Option<String>, Option<String>) {
    let agent = |more: &str| {
        let program = program.display();
        format!("exec '{program}' pep run --json --quiet {more} 2>/dev/null")
    };
    let eln = |interface: &str, place: &str| {
        let key = files.of("key");
        let key = key.display();
        agent(&format!(
            "--wireless {interface} --eln {place} --eln-key '{key}'"
        ))
    };
    match middle {
        Middle::Nothing | Middle::Free | Middle::Split => (None, None),
        Middle::Agent(profile, more) => {
            let more = format!("--wireless wireless --agent snoop:profile={profile}{more}");
            (Some(agent(&more)), None)
        }
        Middle::Eln => (Some(eln("wireless", "base")), Some(eln("right", "mobile"))),
    }
}

/// The last event of a kind that an agent has told.
fn last(said: &str, kind: &str) -> Option<Value> {
    let events = said.lines().rev();
    let mut events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.find(|event| event["event"] == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_agent_is_found() {
        let said = "{\"event\":\"started\"}\nnoise\n{\"event\":\"done\",\"repaired\":5}\n";
        assert_eq!(last(said, "done").unwrap()["repaired"], 5);
        assert!(last(said, "error").is_none() && last("", "done").is_none());
    }
}
