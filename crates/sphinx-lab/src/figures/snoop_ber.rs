//! What agents in the path do for kernel TCP, by the rate of bit errors.

use std::time::Duration;

use super::{
    Check, Figure, Sheet, Studio,
    paths::{
        Experiment, Help, Hops, Middle, Run, Sender, csv, goodput, goodputs, late_paragraph,
        seeds_text, show, sweep, worst,
    },
    snoop::{MTU, RADIO, WIRED, WIRELESS, row},
};
use crate::runner::ScenarioFailure;

const NONE: &str = "none";
const CLASSIC: &str = "classic";
const SACK: &str = "sack";
const OWN_QUEUE: &str = "sack, own queue";
/// Where the published orders are looked for: in the middle of the published range.
const TYPICAL: &str = "32 KiB";
const MANY: &str = "8 KiB";
const FEW: &str = "320 KiB";

const fn hops(name: &'static str, x: Option<f64>, errors: &'static str) -> Hops {
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

pub(super) const EXPERIMENT: Experiment = Experiment {
    figure: Figure::SnoopBer,
    upload: false,
    paths: &[
        hops("2 KiB", Some(2.0), "loss=bytes:2KiB"),
        hops(MANY, Some(8.0), "loss=bytes:8KiB"),
        hops(TYPICAL, Some(32.0), "loss=bytes:32KiB"),
        hops("128 KiB", Some(128.0), "loss=bytes:128KiB"),
        hops(FEW, Some(320.0), "loss=bytes:320KiB"),
        hops("no errors", None, ""),
    ],
    helps: &[
        Help::new(NONE, Middle::Nothing),
        Help::new(CLASSIC, Middle::Agent("classic", "")),
        Help::new(SACK, Middle::Agent("sack", "")),
        Help::new(OWN_QUEUE, Middle::Agent("sack", RADIO)),
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
        "Snoop by the rate of errors",
        &format!(
            "The path and the contestants of the figure `snoop` ({WIRED}, then {WIRELESS}, packets of {MTU} bytes), with errors at these \
             distances on average (`loss=bytes:…`, in both directions): of packets of {MTU} bytes, 50 % are lost at 2 KiB, 16 % at 8, \
             4.2 % at 32, 1.1 % at 128 and 0.4 % at 320 KiB. 2 MB, or what has arrived after 30 s. {}",
            seeds_text(&EXPERIMENT, &runs)
        ),
    );
    late_paragraph(&runs, sheet);
    let x_label = "bytes between two errors, mean (KiB)";
    sweep(&EXPERIMENT, x_label, &runs, sheet);
    published(&runs, sheet);
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

fn published(runs: &[Run], sheet: &mut Sheet) {
    let (old, reno) = (Sender::OLD.name, Sender::RENO.name);
    let at = |path, help, sender| goodput(runs, path, help, sender);
    let times = |path| {
        let pair = at(path, CLASSIC, old).zip(at(path, NONE, old));
        show(pair.map(|(helped, alone)| helped / alone), 1)
    };
    let order = [
        ("Snoop+SACK", at(TYPICAL, CLASSIC, reno)),
        ("Snoop", at(TYPICAL, CLASSIC, old)),
        ("SACK", at(TYPICAL, NONE, reno)),
        ("SPLIT", at(TYPICAL, "split", old)),
        ("Reno", at(TYPICAL, NONE, old)),
    ];
    let order = order.map(|(name, rate)| format!("{name} {}", show(rate, 2)));
    let local = "published in the local area, with the coarse timers of 1995; ours over 100 ms";
    sheet.paragraph("## Published numbers");
    sheet.published(&[
        row(
            "order at typical error rates",
            "Snoop+SACK ≥ Snoop > SACK > SPLIT > Reno",
            format!("{} Mbit/s at {TYPICAL}", order.join(", ")),
            local,
        ),
        row(
            "Snoop against Reno, few errors (one in 2.5 Mbit)",
            "no difference",
            format!("{} times at {FEW}", times(FEW)),
            local,
        ),
        row(
            "Snoop against Reno, more errors",
            "1 to 20 times, growing",
            format!(
                "{} times at {TYPICAL}, {} at {MANY}",
                times(TYPICAL),
                times(MANY)
            ),
            local,
        ),
    ]);
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    let old = Sender::OLD.name;
    for path in [MANY, TYPICAL] {
        sheet.check(Check::at_least(
            &format!("Reno without SACK, {path}: `classic` is faster than no agent"),
            &goodputs(runs, path, CLASSIC, old),
            1.0,
            &goodputs(runs, path, NONE, old),
        ));
    }
    for help in [SACK, OWN_QUEUE] {
        let claim =
            format!("`{help}` costs nothing against no agent anywhere (0.98 in the worst cell)");
        sheet.check(worst(&EXPERIMENT, runs, &claim, (help, 0.98, NONE)));
    }
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
