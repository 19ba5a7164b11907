//! What agents in the path do for kernel TCP, by the round-trip time of the whole path.

use std::time::Duration;

use super::{
    Check, Figure, Sheet, Studio,
    claim::Sample,
    paths::{
        Experiment, Help, Hops, Middle, Run, Sender, csv, goodputs, late_paragraph, seeds_text,
        select, sweep, worst,
    },
};
use crate::runner::ScenarioFailure;

const WIRELESS: &str = "rate=50mbit rtt=4ms queue=50ms";
const ERRORS: &str = "forward.loss=1%";
const RADIO: &str = " --radio-rate 49mbit --radio-queue 312kB";
const FREE: &str = "no errors";
const NONE: &str = "none";
const SACK: &str = "sack";
const OWN_QUEUE: &str = "sack, own queue";
const LONG: &str = "100 ms";
const LIMIT: Duration = Duration::from_secs(10);

const fn hops(name: &'static str, x: f64, wired: &'static str) -> Hops {
    Hops {
        name,
        x: Some(x),
        wired,
        wireless: WIRELESS,
        errors: ERRORS,
        mtu: 1500,
        // More than the hop carries in that time.
        bytes: 1_000_000_000,
        limit: LIMIT,
    }
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    figure: Figure::SnoopDelay,
    upload: false,
    paths: &[
        hops("20 ms", 20.0, "rtt=16ms"),
        hops("50 ms", 50.0, "rtt=46ms"),
        hops(LONG, 100.0, "rtt=96ms"),
        hops("200 ms", 200.0, "rtt=196ms"),
    ],
    helps: &[
        Help::new(FREE, Middle::Free),
        Help::new(NONE, Middle::Nothing),
        Help::new("ll", Middle::Agent("ll", "")),
        Help::new("classic", Middle::Agent("classic", "")),
        Help::new(SACK, Middle::Agent("sack", "")),
        Help::new(OWN_QUEUE, Middle::Agent("sack", RADIO)),
        Help::new("split", Middle::Split),
    ],
    senders: &[Sender::CUBIC, Sender::BBR],
    at_once: 2,
};

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(runs) = EXPERIMENT.measure(studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "Snoop by the length of the path",
        &format!(
            "What arrives within {} s, slow start included, from a fixed to a mobile host: a wired part without a bottleneck of 16 to 196 ms, then {WIRELESS} \
             with {ERRORS}. The round-trip times are those of the whole path. The contestants are those of the figure `snoop`, with `{}` for \
             the agent with its own queue. {}",
            LIMIT.as_secs(),
            RADIO.trim(),
            seeds_text(&EXPERIMENT, &runs)
        ),
    );
    late_paragraph(&runs, sheet);
    sweep(
        &EXPERIMENT,
        "round-trip time of the path (ms)",
        &runs,
        sheet,
    );
    sheet.paragraph(
        "There are no published numbers at these rates. For plain Snoop under senders with SACK, a loss against no agent was published (Vangala and \
         Labrador, 2003): that is the row `classic`.",
    );
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    let (cubic, bbr) = (Sender::CUBIC.name, Sender::BBR.name);
    let of = |help, sender| goodputs(runs, LONG, help, sender);
    for (factor, base, words) in [
        (10.0, NONE, "is 10 times as fast as no agent"),
        (0.85, FREE, "reaches 0.85 of the rate without errors"),
    ] {
        sheet.check(Check::at_least(
            &format!("cubic, {LONG}: `sack` with its own queue {words}"),
            &of(OWN_QUEUE, cubic),
            factor,
            &of(base, cubic),
        ));
    }
    sheet.check(Check::at_least(
        &format!("bbr, {LONG}: `sack` with its own queue costs nothing against no agent (0.98)"),
        &of(OWN_QUEUE, bbr),
        0.98,
        &of(NONE, bbr),
    ));
    sheet.check(sent_again(runs));
    sheet.check(repaired_here(runs));
    for help in [SACK, OWN_QUEUE] {
        let claim =
            format!("`{help}` costs nothing against no agent anywhere (0.98 in the worst cell)");
        sheet.check(worst(&EXPERIMENT, runs, &claim, (help, 0.98, NONE)));
    }
}

/// Claims that the sender hardly has to repair.
fn sent_again(runs: &[Run]) -> Check {
    let percent = |help| {
        let runs = select(runs, LONG, help, Sender::CUBIC.name);
        let share = |run: &Run| run.segments_again as f64 / run.segments_sent.max(1) as f64;
        Sample::of_seeds(runs.map(|run| (run.seed(), 100.0 * share(run))))
    };
    Check::at_least(
        &format!(
            "cubic, {LONG}: without agent the sender has to repair at least 10 times as much (% of segments) as with `sack` and its own queue"
        ),
        &percent(NONE),
        10.0,
        &percent(OWN_QUEUE),
    )
}

/// Claims that what is repaired goes over the hop alone. A queue that overflows is for the sender to notice: what that has dropped does not count.
fn repaired_here(runs: &[Run]) -> Check {
    let share = |run: &Run| {
        let here = run.repaired? as f64;
        let far = run.segments_again.saturating_sub(run.queue_drops?) as f64;
        Some((run.seed(), here / (here + far)))
    };
    let runs = select(runs, LONG, OWN_QUEUE, Sender::CUBIC.name);
    Check::at_least(
        &format!(
            "cubic, {LONG}: of what is sent again, 0.9 comes from `sack` with its own queue and 0.1 from the sender, without what queues have dropped"
        ),
        &Sample::of_seeds(runs.filter_map(share)),
        0.9,
        &Sample::Exactly(1.0),
    )
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
