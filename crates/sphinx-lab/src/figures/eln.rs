//! What agents on both sides of a hop do for uploads, and whether what they report is right.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Check, Figure, Sheet, Studio,
    claim::Sample,
    paths::{
        Experiment, Help, Hops, Middle, Run, Sender, Truth, csv, goodput, goodputs, late_paragraph,
        seeds_text, show, sweep, worst,
    },
    sheet::markdown_table,
    snoop::{MTU, WIRED, WIRELESS, row},
};
use crate::runner::ScenarioFailure;

const NONE: &str = "none";
const ELN: &str = "eln";
const FAST: &str = "20 Mbit/s, 1 %";
const FAST_FREE: &str = "20 Mbit/s, no errors";
/// Least precision and least recall that the reports of the base station are to reach.
const RIGHT: f64 = 0.99;

const fn slow(name: &'static str, x: Option<f64>, errors: &'static str) -> Hops {
    Hops {
        name,
        x,
        wired: WIRED,
        wireless: WIRELESS,
        errors,
        mtu: MTU,
        bytes: 2_000_000,
        limit: Duration::from_secs(30),
    }
}

const fn fast(name: &'static str, errors: &'static str) -> Hops {
    Hops {
        name,
        x: None,
        wired: "rtt=96ms",
        wireless: "rate=20mbit rtt=4ms queue=50ms",
        errors,
        mtu: 1500,
        // More than the hop carries in that time.
        bytes: 1_000_000_000,
        limit: Duration::from_secs(12),
    }
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    figure: Figure::Eln,
    upload: true,
    paths: &[
        slow("8 KiB", Some(8.0), "loss=bytes:8KiB"),
        slow("32 KiB", Some(32.0), "loss=bytes:32KiB"),
        slow("128 KiB", Some(128.0), "loss=bytes:128KiB"),
        slow("no errors", None, ""),
        Hops {
            wired: "rate=10mbit rtt=46ms",
            ..slow("50 ms, 32 KiB", None, "loss=bytes:32KiB")
        },
        fast(FAST, "return.loss=1%"),
        fast(FAST_FREE, ""),
    ],
    helps: &[
        Help::new(NONE, Middle::Nothing),
        Help::new(ELN, Middle::Eln),
    ],
    senders: &[Sender::OLD, Sender::RENO, Sender::CUBIC, Sender::BBR],
    at_once: 4,
};

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(runs) = EXPERIMENT.measure(studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "ELN: uploads over a hop with errors",
        &format!(
            "From a mobile to a fixed host. `eln` is `sphx pep run --eln base` between the hops and `--eln mobile` on the mobile host. The first paths are \
             that of the figure `snoop` ({WIRED} on the wired side, {WIRELESS} on the other, packets of {MTU} bytes, 2 MB or what has arrived after 30 s), with \
             errors at these distances on average, in both directions; one has 50 instead of 100 ms. The last two are 100 ms long and carry 20 Mbit/s, \
             with a queue of 50 ms, without loss or with 1 % of loss towards the base station, for 12 s. {}",
            seeds_text(&EXPERIMENT, &runs)
        ),
    );
    late_paragraph(&runs, sheet);
    let x_label = "bytes between two errors, mean (KiB), 2 Mbit/s, 100 ms";
    sweep(&EXPERIMENT, x_label, &runs, sheet);
    reports(&runs, sheet);
    published(&runs, sheet);
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

/// What the base station has reported in these runs, beside the truth.
fn truth<'a>(runs: impl Iterator<Item = &'a Run>) -> Truth {
    let truths = runs.filter_map(|run| run.truth);
    truths.fold(Truth::default(), Truth::add)
}

fn reports(runs: &[Run], sheet: &mut Sheet) {
    let header = [
        "",
        "lost by the hop",
        "of these reported",
        "dropped by its queue",
        "of these reported",
        "reported, not missing",
        "precision",
        "recall",
        "recall apart from drops",
    ];
    let line = |name: &str, truth: Truth| {
        vec![
            name.to_owned(),
            truth.lost.to_string(),
            truth.reported.to_string(),
            truth.dropped.to_string(),
            truth.mistaken.to_string(),
            truth.invented.to_string(),
            show(truth.precision(), 4),
            show(truth.recall(), 4),
            show(truth.recall_apart(), 4),
        ]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for hops in EXPERIMENT.paths {
        let of = runs.iter().filter(|run| run.path == hops.name);
        rows.push(line(hops.name, truth(of)));
    }
    for sender in EXPERIMENT.senders {
        let of = runs.iter().filter(|run| run.sender == sender.name);
        rows.push(line(sender.name, truth(of)));
    }
    let in_time = runs.iter().filter(|run| run.overloads == Some(0));
    rows.push(line("agents in time", truth(in_time)));
    rows.push(line("all", truth(runs.iter())));
    sheet.paragraph("## What the base station has reported");
    sheet.paragraph(
        "The emulator's log says what became of each segment when it was sent first; the base station's agent says which sequence numbers it has reported as lost \
         by the hop. (The loss of what is sent again leaves no new hole.) Precision: of the segments that were reported, those that the hop has lost. \
         Recall: of those that the hop has lost, the ones that were reported; and the same without holes of which the queue has dropped a part: nobody sees \
         which part that is, and the sender has to slow down for it, so they are left to it. Sums of all seeds.",
    );
    sheet.paragraph(&markdown_table(&header.map(str::to_owned), &rows));
}

fn published(runs: &[Run], sheet: &mut Sheet) {
    let reno = Sender::RENO.name;
    let times = |path| {
        let pair = goodput(runs, path, ELN, reno).zip(goodput(runs, path, NONE, reno));
        show(pair.map(|(helped, alone)| helped / alone), 1)
    };
    sheet.paragraph("## Published numbers");
    sheet.published(&[row(
        "ELN against Reno (Balakrishnan and Katz, 1998; from memory, not checked)",
        "about 2 times at high error rates, little at low ones",
        format!(
            "{} times at 8 KiB, {} at 32, {} at 128 (Reno with SACK)",
            times("8 KiB"),
            times("32 KiB"),
            times("128 KiB")
        ),
        "theirs marks duplicate acknowledgements for a sender that was changed; ours repairs over the hop alone, and hides it",
    )]);
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    let cubic = Sender::CUBIC.name;
    // One value for each seed, of all its runs together.
    let of_seeds = |share: fn(&Truth) -> Option<f64>| {
        let seeds: BTreeSet<u64> = runs.iter().map(Run::seed).collect();
        let shares = seeds.into_iter().filter_map(|seed| {
            let these = runs.iter().filter(|run| run.seed() == seed);
            Some((seed, share(&truth(these))?))
        });
        Sample::of_seeds(shares)
    };
    type Share = fn(&Truth) -> Option<f64>;
    for (what, share) in [
        ("precision", Truth::precision as Share),
        ("recall", Truth::recall),
        ("recall apart from drops", Truth::recall_apart),
    ] {
        sheet.check(Check::at_least(
            &format!("the {what} of all reports is {RIGHT} at least"),
            &of_seeds(share),
            RIGHT,
            &Sample::Exactly(1.0),
        ));
    }
    sheet.check(Check::at_least(
        &format!("cubic, {FAST}: `eln` is 5 times as fast as no agent"),
        &goodputs(runs, FAST, ELN, cubic),
        5.0,
        &goodputs(runs, FAST, NONE, cubic),
    ));
    let claim = "`eln` costs nothing against no agent anywhere (0.98 in the worst cell)";
    sheet.check(worst(&EXPERIMENT, runs, claim, (ELN, 0.98, NONE)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::paths;

    #[test]
    fn every_path_can_be() {
        paths::tests::check(&EXPERIMENT);
    }
}
