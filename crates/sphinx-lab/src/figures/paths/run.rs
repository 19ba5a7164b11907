//! One transfer over one path.

use std::{path::Path, process::Command};

use serde_json::Value;

use super::{Case, Middle, Run, Truth};
use crate::{
    figures::{
        Studio,
        over_path::{Files, agent, carry, last, late_ms_max, told},
    },
    path::{Carried, PathArgs},
};

/// Runs a case; an error says why there is no result.
pub(super) fn run(studio: &Studio<'_>, case: &Case) -> Result<Run, String> {
    let files = Files::new()?;
    let (hops, upload) = (case.hops, case.upload);
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
    let args = PathArgs {
        hops: vec![hops.wired.to_owned(), wireless],
        middle,
        right,
        upload,
        split: matches!(case.help.middle, Middle::Split),
        flows: Vec::new(),
        bytes: hops.bytes,
        time: hops.limit,
        cc: case.sender.congestion.to_owned(),
        no_sack: !case.sender.sack,
        sysctl: Vec::new(),
        seed: case.seed,
        interface_mtu: hops.mtu,
        windows: false,
        log: is_eln.then(|| files.of("log")),
        json: true,
        quiet: true,
    };
    let ended = carry(studio, &files, args)?;
    let truth = match is_eln {
        true => Some(Truth::read(&files.of("log"), &ended.middle).map_err(told)?),
        false => None,
    };
    let agents = [last(&ended.middle, "done"), last(&ended.right, "done")];
    let count = |agent: &Option<Value>, name: &str| agent.as_ref()?.get(name)?.as_u64();
    let repairs = &agents[usize::from(is_eln)];
    let overloads = agents.iter().filter_map(|agent| count(agent, "overloads"));
    let late_ms_max = late_ms_max(&ended.report);
    let Carried::Transfer(transfer) = ended.report.carried else {
        return Err("no transfer".to_owned());
    };
    let ways = ended.report.hops.each_ref().map(|hop| {
        let way = if upload { &hop.back } else { &hop.forward };
        way.counters
    });
    let dropped = ways.iter().map(|counters| counters.dropped_queue);
    let dropped = dropped.chain(count(&agents[0], "dropped_queue")).sum();
    let useful = ways.map(|counters| transfer.bytes as f64 / counters.sent_bytes.max(1) as f64);
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
        queue_drops: Some(dropped),
        useful,
        repaired: count(repairs, "repaired"),
        spurious: count(repairs, "spurious"),
        held: count(repairs, "held"),
        overloads: repairs.as_ref().map(|_| overloads.sum()),
        truth,
        late_ms_max,
    })
}

/// The commands on the host in the middle and on the right one.
fn agents(program: &Path, files: &Files, middle: Middle) -> (Option<String>, Option<String>) {
    let eln = |interface: &str, place: &str| {
        let key = files.of("key");
        let key = key.display();
        let more = format!("--wireless {interface} --eln {place} --eln-key '{key}'");
        agent(program, &more)
    };
    match middle {
        Middle::Nothing | Middle::Free | Middle::Split => (None, None),
        Middle::Agent(profile, more) => {
            let more = format!("--wireless wireless --agent snoop:profile={profile}{more}");
            (Some(agent(program, &more)), None)
        }
        Middle::Eln => (Some(eln("wireless", "base")), Some(eln("right", "mobile"))),
    }
}
