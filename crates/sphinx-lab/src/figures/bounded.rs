//! Several paths and a bounded receive buffer in virtual time: what bytes wait for, and what coding costs.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{self, Pick, place, sample, shown},
};
use crate::{
    BufferNumbers, Cell, Run,
    runner::{Results, ScenarioFailure},
    stats::Measured,
};

pub(super) const SCENARIOS: &[(&str, &str)] = &[scenario!("multipath-virtual")];

pub(super) const CHANGE_SCENARIOS: &[(&str, &str)] = &[scenario!("multipath-change")];

/// The receive buffers, in KiB.
const BUFFERS: [u64; 4] = [64, 128, 256, 512];
/// Sizes of the buffer, in KiB, for which the paper claims delays.
const CLAIMED: [u64; 2] = [256, 512];
/// The pairs of losses: the names of cells.
const LOSSES: [(&str, &str); 2] = [("low", "0.1 and 5 %"), ("high", "1 and 10 %")];
/// The contestant that all others are compared with.
const UNCODED: &str = "min-rtt";
/// Contestants that send in blocks.
const BLOCKS: [&str; 2] = ["sphinx", "best-path"];
/// The subject of two pages, and the contestants on all of them.
const PATHS: &str = "Two paths of 10 Mbit/s, round trips of 20 and 200 ms, in virtual time; one stream, read in order; 10 s, the start included.";
const WHO: &str = "`sphinx` is the default (`aggregate`), `best-path` Sphinx over the fast path alone, `sc` SC-MPTCP's scheme, `sc:rlnc` the \
                   same without originals, `min-rtt` and `ecf` schedulers without coding.";

fn of(run: &Run, value: fn(&BufferNumbers) -> f64) -> Option<Measured> {
    Some(value(run.done.buffer.as_ref()?).into())
}

fn mean_ms(_: &Cell, run: &Run) -> Option<Measured> {
    of(run, |buffer| buffer.mean_ms)
}

fn p99_ms(_: &Cell, run: &Run) -> Option<Measured> {
    of(run, |buffer| buffer.p99_ms)
}

/// Field operations for a byte delivered; `None` for contestants with blocks, whose codes do not count them.
fn operations(_: &Cell, run: &Run) -> Option<Measured> {
    let counts = !BLOCKS.contains(&run.contestant.as_str());
    counts.then(|| of(run, |buffer| buffer.field_operations))?
}

/// Warnings in a second.
fn warnings(_: &Cell, run: &Run) -> Option<Measured> {
    let warnings = of(run, |buffer| buffer.warnings as f64)?;
    Some(warnings.map(|it| it / run.done.seconds))
}

fn name(losses: &str, kib: u64) -> String {
    format!("{losses}-b{kib}")
}

/// A row per contestant, a column per buffer.
fn table(
    sheet: &mut Sheet,
    results: &Results,
    label: &str,
    places: usize,
    value: impl Fn(u64, &str) -> Sample,
) {
    let mut header = vec![label.to_owned()];
    header.extend(BUFFERS.map(|kib| format!("{kib} KiB")));
    let rows = results.contestants().map(|who| {
        let mut row = vec![who.to_owned()];
        row.extend(BUFFERS.map(|kib| shown(&value(kib, who), places)));
        row
    });
    sheet.summary(&header, &rows.collect::<Vec<_>>());
}

fn chart(
    results: &Results,
    (title, y_label): (String, &str),
    value: impl Fn(u64, &str) -> Sample,
) -> Chart {
    let series = results.contestants().map(|who| {
        let mut curve = Series::new(who, Style::Line, Vec::new());
        for kib in BUFFERS {
            place(&mut curve, kib as f64, &value(kib, who));
        }
        curve
    });
    Chart {
        title,
        x_label: "receive buffer (KiB)".to_owned(),
        y_label: y_label.to_owned(),
        is_x_logarithmic: true,
        is_y_logarithmic: false,
        series: series.collect(),
    }
}

/// A line per run.
fn csv(results: &Results) -> String {
    let mut csv = "cell,contestant,seed,goodput_mbit_s,buffer_ms_mean,buffer_ms_p99,field_operations,warnings,wire_ratio\n".to_owned();
    for (_, groups) in &results.cells {
        for run in groups.iter().flat_map(|group| &group.runs) {
            let Some(buffer) = run.done.buffer else {
                continue;
            };
            csv += &format!(
                "{},{},{},{:.4},{:.3},{:.3},{:.4},{},{:.4}\n",
                run.cell,
                run.contestant,
                run.seed,
                run.goodput_mbit_s,
                buffer.mean_ms,
                buffer.p99_ms,
                buffer.field_operations,
                buffer.warnings,
                run.wire_ratio(),
            );
        }
    }
    csv
}

pub(super) fn delay(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "What bytes wait for in a bounded receive buffer",
        &format!(
            "{PATHS} {WHO} Medians over the seeds. Buffer delay is the time from the arrival of a byte, or of a row that stands for one, to its being in order. Its mean \
             is what is held over what becomes ready in a second. The 99th percentile is that of bytes which become ready in the order of their \
             arrival: the least that it can be."
        ),
    );
    sheet.note(&results);
    let of =
        |losses: &str, kib, who: &str, pick: Pick| sample(&results, &name(losses, kib), who, pick);
    for (losses, percent) in LOSSES {
        let mean = |kib, who: &str| of(losses, kib, who, mean_ms);
        let title = format!("Losses of {percent}: mean buffer delay");
        sheet.chart(
            losses,
            &chart(&results, (title, "mean buffer delay (ms)"), mean),
        );
        let label = format!("losses {percent}: mean buffer delay (ms)");
        table(sheet, &results, &label, 1, mean);
        let label = format!("losses {percent}: of that of `{UNCODED}`");
        table(sheet, &results, &label, 2, |kib, who| {
            mean(kib, who).zip(&mean(kib, UNCODED), |one, uncoded| one / uncoded)
        });
        let label = format!("losses {percent}: 99 % of bytes (ms)");
        table(sheet, &results, &label, 0, |kib, who| {
            of(losses, kib, who, p99_ms)
        });
        let label = format!("losses {percent}: goodput (Mbit/s)");
        table(sheet, &results, &label, 2, |kib, who| {
            of(losses, kib, who, curves::goodput)
        });
    }
    sheet.data("", &csv(&results));
    // Who, in which buffers, and at most what share. The first is what the paper claims for its scheme.
    for (who, kibs, most) in [
        ("sc", &BUFFERS[..], 0.2),
        ("sc", &CLAIMED[..], 0.25),
        ("sphinx", &CLAIMED[..], 0.15),
    ] {
        let cells = LOSSES.iter().flat_map(|(losses, percent)| {
            let place = move |kib: &u64| (*losses, *percent, *kib);
            kibs.iter().map(place)
        });
        let places = cells.map(|(losses, percent, kib)| {
            let place = format!("{percent}, {kib} KiB");
            let [ours, uncoded] = [who, UNCODED].map(|who| of(losses, kib, who, mean_ms));
            (place, ours, uncoded)
        });
        let from = kibs[0];
        let claim = format!(
            "from {from} KiB on, bytes wait at most {most} times as long with `{who}` as with `{UNCODED}`"
        );
        sheet.check(Check::nowhere_above(&claim, most, places));
    }
    Ok(true)
}

pub(super) fn complexity(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "What coding costs in a bounded receive buffer",
        &format!(
            "{PATHS} {WHO} Medians over the seeds. Field operations are bytes multiplied and added over GF(2^8), at both ends. Those of blocks (`sphinx`, `best-path`) are not \
             counted, as their codes are other ones."
        ),
    );
    sheet.note(&results);
    let of =
        |losses: &str, kib, who: &str, pick: Pick| sample(&results, &name(losses, kib), who, pick);
    for (losses, percent) in LOSSES {
        let costs = |kib, who: &str| of(losses, kib, who, operations);
        let title = format!("Losses of {percent}: field operations for a byte delivered");
        let what = (title, "operations for a byte");
        sheet.chart(losses, &chart(&results, what, costs));
        for (label, places, pick) in [
            (
                "field operations for a byte delivered",
                2,
                operations as Pick,
            ),
            ("warnings in a second", 1, warnings),
            ("IP bytes sent for a byte delivered", 3, curves::wire_ratio),
            ("goodput (Mbit/s)", 2, curves::goodput),
        ] {
            let label = format!("losses {percent}: {label}");
            table(sheet, &results, &label, places, |kib, who| {
                of(losses, kib, who, pick)
            });
        }
    }
    sheet.data("", &csv(&results));
    let places = LOSSES.iter().flat_map(|(losses, percent)| {
        BUFFERS.map(|kib| {
            let [sc, rlnc] = ["sc", "sc:rlnc"].map(|who| of(losses, kib, who, operations));
            (format!("{percent}, {kib} KiB"), sc, rlnc)
        })
    });
    sheet.check(Check::nowhere_above(
        "`sc` takes at most 0.15 of the field operations of `sc:rlnc`",
        0.15,
        places,
    ));
    Ok(true)
}

/// Losses that do not change, and for which part of the time there are such where they do; and where they do.
const STEADY: [(&str, f64); 2] = [("steady-1-b512", 2.0 / 3.0), ("steady-15-b512", 1.0 / 3.0)];
const CHANGE: &str = "change-b512";

pub(super) fn change(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(CHANGE_SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Two unequal paths whose losses change",
        &format!(
            "Two paths of 10 Mbit/s, round trips of 20 and 200 ms, a receive buffer of 512 KiB, in virtual time; one stream, read in order; 30 s, \
             the start included. `change`: both paths lose 1 % for 10 s, 15 % for 10 s, and 1 % for 10 s. `steady-1` and `steady-15`: what \
             does not change. {WHO} Medians over the seeds."
        ),
    );
    sheet.note(&results);
    let column = |cell: &Cell| cell.name.clone();
    for (label, places, pick) in [
        ("goodput (Mbit/s)", 2, curves::goodput as Pick),
        ("mean buffer delay (ms)", 1, mean_ms),
        ("IP bytes sent for a byte delivered", 3, curves::wire_ratio),
        ("field operations for a byte delivered", 2, operations),
        ("warnings in a second", 1, warnings),
    ] {
        let (mut header, rows) = curves::table(&results, &column, places, pick);
        label.clone_into(&mut header[0]);
        sheet.summary(&header, &rows);
    }
    // Expected: what the runs with unchanging losses carried, each weighted by the part of the time that its losses take.
    let goodput = |cell: &str, who: &str| sample(&results, cell, who, curves::goodput);
    let expected = |who: &str| {
        let parts = STEADY.map(|(cell, part)| goodput(cell, who).map(|all| all * part));
        Sample::fold(parts, |low, high| low + high)
    };
    let header = [
        "",
        "goodput where losses change / that of the same losses, unchanged",
    ];
    let rows = results.contestants().map(|who| {
        let share = goodput(CHANGE, who).zip(&expected(who), |one, all| one / all);
        vec![who.to_owned(), curves::in_interval(&share, 3)]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    sheet.summary(&header.map(str::to_owned), &rows);
    sheet.data("", &csv(&results));
    let cells = || results.cells.iter().map(|(cell, _)| cell.name.clone());
    for who in ["sphinx", "sc"] {
        let places = [(CHANGE.to_owned(), goodput(CHANGE, who), expected(who))];
        let claim = format!(
            "`{who}`: where losses change, at least 0.95 of the goodput of the same losses, unchanged"
        );
        sheet.check(Check::everywhere(&claim, 0.95, places));
    }
    let places = cells().map(|cell| {
        let [ours, best] = ["sphinx", "best-path"].map(|who| goodput(&cell, who));
        (cell, ours, best)
    });
    sheet.check(Check::everywhere(
        "the default has at least 0.95 of the goodput of the best path with the same buffer",
        0.95,
        places,
    ));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contestants::Programs, figures::bundled};

    #[test]
    fn what_pages_tell_is_in_the_scenario() {
        let scenario = bundled(SCENARIOS[0].1, &Programs::for_tests(), false).unwrap();
        for kib in BUFFERS {
            for (losses, _) in LOSSES {
                let name = name(losses, kib);
                assert!(
                    scenario.cells.iter().any(|cell| cell.name == name),
                    "{name}"
                );
            }
        }
        let change = bundled(CHANGE_SCENARIOS[0].1, &Programs::for_tests(), false).unwrap();
        for name in STEADY.map(|(name, _)| name).into_iter().chain([CHANGE]) {
            assert!(change.cells.iter().any(|cell| cell.name == name), "{name}");
        }
        for who in ["sphinx", "best-path", "sc", "sc:rlnc", UNCODED] {
            for scenario in [&scenario, &change] {
                let mut all = scenario.contestants.iter();
                assert!(all.any(|one| one.name() == who), "{who}");
            }
        }
        // Whoever is claimed something of is there in a hurry, too.
        for ((_, text), claimed) in [
            (SCENARIOS[0], &["sphinx", "sc", "sc:rlnc", UNCODED][..]),
            (CHANGE_SCENARIOS[0], &["sphinx", "sc", "best-path"]),
        ] {
            let quick = bundled(text, &Programs::for_tests(), true).unwrap();
            for who in claimed {
                let mut all = quick.contestants.iter();
                assert!(all.any(|one| one.name() == *who), "{who}");
            }
        }
    }
}
