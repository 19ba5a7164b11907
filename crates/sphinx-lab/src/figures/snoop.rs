//! What agents in the path do for kernel TCP over a hop with bit errors: the experiment that Snoop was published with, on the
//! TCP of today.

use std::time::Duration;

use super::{
    Check, Figure, Sheet, Studio,
    paths::{
        self, Experiment, Help, Hops, Middle, Run, Sender, csv, goodput_table, late_paragraph,
        seeds_text, select, show,
    },
    sheet::markdown_table,
};
use crate::{runner::ScenarioFailure, stats::median};

/// Packets of 1400 bytes, as published.
pub(super) const MTU: usize = 1400;
pub(super) const WIRED: &str = "rate=10mbit rtt=96ms";
pub(super) const WIRELESS: &str = "rate=2mbit rtt=4ms queue=32kB";
pub(super) const RADIO: &str = " --radio-rate 1960kbit --radio-queue 32kB";
const FREE: &str = "no errors";
const NONE: &str = "none";

const HOPS: Hops = Hops {
    name: "",
    x: None,
    wired: WIRED,
    wireless: WIRELESS,
    errors: "loss=bytes:64KiB",
    mtu: MTU,
    bytes: 2_000_000,
    limit: Duration::from_secs(120),
};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figure: Figure::Snoop,
    upload: false,
    paths: &[HOPS],
    helps: &[
        Help::new(FREE, Middle::Free),
        Help::new(NONE, Middle::Nothing),
        Help::new("ll", Middle::Agent("ll", "")),
        Help::new("classic", Middle::Agent("classic", "")),
        Help::new("sack", Middle::Agent("sack", "")),
        Help::new("sack, own queue", Middle::Agent("sack", RADIO)),
        Help::new("split", Middle::Split),
    ],
    senders: &[Sender::OLD, Sender::RENO, Sender::CUBIC, Sender::BBR],
    // The links carry some hundred packets a second.
    at_once: 8,
};

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(runs) = EXPERIMENT.measure(studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "Snoop: kernel TCP over a hop with bit errors",
        &format!(
            "2 MB from a fixed to a mobile host, as in the experiments of Balakrishnan et al. (1995 to 1998): {WIRED} on the wired side, \
             then {WIRELESS} with {} in both directions, packets of {MTU} bytes. `sphx pep run` stands between the \
             hops: `ll` repairs, `classic` has the rules of the published simulator, `sack` are ours, with the queue of the hop \
             behind the agent, or in it (`{}`). `split` ends the connection there and begins another one: it acknowledges what has not arrived. \
             {}",
            HOPS.errors,
            RADIO.trim(),
            seeds_text(&EXPERIMENT, &runs)
        ),
    );
    late_paragraph(&runs, sheet);
    goodput_table(&EXPERIMENT, HOPS.name, &runs, sheet);
    details(&runs, sheet);
    published(&runs, sheet);
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

/// The median goodput in Mbit/s.
fn goodput(runs: &[Run], help: &str, sender: &str) -> Option<f64> {
    paths::goodput(runs, HOPS.name, help, sender)
}

fn details(runs: &[Run], sheet: &mut Sheet) {
    let header = [
        "",
        "",
        "sent again by the sender",
        "useful on the wired hop",
        "useful on the wireless hop",
        "longest pause, ms",
        "repaired",
        "of these spurious",
    ];
    let mut rows = Vec::new();
    for help in EXPERIMENT.helps {
        for sender in EXPERIMENT.senders {
            let these = select(runs, HOPS.name, help.name, sender.name);
            let of = |pick: fn(&Run) -> Option<f64>| median(these.clone().filter_map(pick));
            rows.push(vec![
                help.name.to_owned(),
                sender.name.to_owned(),
                show(of(|run| Some(run.segments_again as f64)), 0),
                show(of(|run| Some(run.useful[0])), 3),
                show(of(|run| Some(run.useful[1])), 3),
                show(of(|run| Some(run.pause_ms_max)), 0),
                show(of(|run| run.repaired.map(|count| count as f64)), 0),
                show(of(|run| run.spurious.map(|count| count as f64)), 0),
            ]);
        }
    }
    sheet.paragraph("## In detail");
    sheet.paragraph(&markdown_table(&header.map(str::to_owned), &rows));
}

fn published(runs: &[Run], sheet: &mut Sheet) {
    let old = Sender::OLD.name;
    let times = |help: &str| match (goodput(runs, help, old), goodput(runs, NONE, old)) {
        (Some(helped), Some(alone)) => format!("{:.1} times", helped / alone),
        _ => "–".to_owned(),
    };
    let pair = |help| format!("{} (Reno without SACK)", show(goodput(runs, help, old), 2));
    sheet.paragraph("## Published numbers");
    sheet.published(&[
        row(
            "WaveLAN, wide area: best possible",
            "1.30 Mbit/s",
            pair(FREE),
            "WaveLAN took 0.7 of its 2 Mbit/s for itself",
        ),
        row(
            "Reno",
            "0.28 Mbit/s",
            pair(NONE),
            "NewReno, F-RTO, an initial window of ten; more rate",
        ),
        row(
            "Snoop",
            "1.11 Mbit/s",
            pair("classic"),
            "the same rules, under another sender",
        ),
        row(
            "Snoop against Reno",
            "4 times",
            times("classic"),
            "as above",
        ),
        row(
            "`sack` against Reno",
            "–",
            times("sack, own queue"),
            "not published",
        ),
    ]);
}

pub(super) fn row(what: &str, published: &str, ours: String, why: &str) -> [String; 4] {
    [what.to_owned(), published.to_owned(), ours, why.to_owned()]
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    let of = |help, sender| paths::goodputs(runs, HOPS.name, help, sender);
    for sender in EXPERIMENT.senders {
        let name = sender.name;
        sheet.check(Check::at_least(
            &format!("{name}: `sack` with its own queue reaches 0.90 of the rate without errors"),
            &of("sack, own queue", name),
            0.9,
            &of(FREE, name),
        ));
        sheet.check(Check::at_least(
            &format!("{name}: `sack` costs nothing against no agent (0.98)"),
            &of("sack", name),
            0.98,
            &of(NONE, name),
        ));
    }
    let old = Sender::OLD.name;
    sheet.check(Check::at_least(
        "Reno without SACK: `sack` with its own queue is 1.8 times as fast as no agent",
        &of("sack, own queue", old),
        1.8,
        &of(NONE, old),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_can_be() {
        paths::tests::check(&EXPERIMENT);
    }
}
