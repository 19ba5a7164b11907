//! Several paths at once, on real sockets, beside one path alone and beside the kernel's multipath TCP.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{self, Pick, caveat, csv, place, sample, shown, table},
};
use crate::{
    Cell, Latencies, Run,
    runner::{Results, ScenarioFailure},
    stats::Measured,
};

pub(super) const BUFFER_SCENARIOS: &[(&str, &str)] =
    &[scenario!("multipath-buffer"), scenario!("multipath-alone")];
pub(super) const FAILOVER_SCENARIOS: &[(&str, &str)] = &[scenario!("multipath-failover")];
pub(super) const TODAY_SCENARIOS: &[(&str, &str)] = &[scenario!("multipath-today")];

/// The receive buffers of `multipath-buffer`, in KiB.
const BUFFERS: [u64; 4] = [64, 128, 256, 512];
/// Its pairs of losses: the names of cells, and those of each path alone.
const LOSSES: [(&str, &str, [&str; 2]); 2] = [
    ("low", "0.1 and 5 %", ["fast-r20-l0.1", "slow-r200-l5"]),
    ("high", "1 and 10 %", ["fast-r20-l1", "slow-r200-l10"]),
];
/// What every page says of the kernel's.
const MPTCP: &str = "`mptcp-…` is the kernel's multipath TCP (scheduler `default`, each path's congestion control for itself), told of the paths by \
                     `ip mptcp endpoint`; a run counts only if the kernel's counters prove that every path has been joined.";

pub(super) fn buffer(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(BUFFER_SCENARIOS[0])? else {
        return Ok(false);
    };
    let Some(alone) = studio.run(BUFFER_SCENARIOS[1])? else {
        return Ok(false);
    };
    sheet.title(
        "Two unequal paths and a bounded receive buffer",
        &format!(
            "Two paths of 10 Mbit/s, round trips of 20 and 200 ms, real sockets; one stream, read in order; what both paths carry in 4 s, \
             cut off after 6 s. The optimum is what the two paths carry alone, summed, by Sphinx with as much memory as it wants. \
             `sphinx` is the default (`aggregate`), `best-path` Sphinx over the fast path alone with the same buffer, `sc` SC-MPTCP's \
             scheme, `min-rtt` and `ecf` schedulers without coding. {MPTCP} Its receive buffer (`tcp_rmem`) is such that a receiver that \
             reads nothing holds about as many bytes as one of Sphinx. Medians over the seeds. {}",
            caveat([&results, &alone])
        ),
    );
    sheet.note(&results);
    sheet.note(&alone);
    let of = |losses: &str, kib: u64, name: &str| {
        sample(&results, &format!("{losses}-b{kib}"), name, curves::goodput)
    };
    let optimum = |paths: &[&str; 2]| {
        let alone = paths.map(|cell| sample(&alone, cell, "sphinx", curves::goodput));
        Sample::fold(alone, |fast, slow| fast + slow)
    };
    for (losses, percent, paths) in &LOSSES {
        let optimum = optimum(paths);
        let share = |kib, name: &str| of(losses, kib, name).zip(&optimum, |one, all| one / all);
        let series = results.contestants().map(|name| {
            let mut curve = Series::new(name, Style::Line, Vec::new());
            for kib in BUFFERS {
                place(&mut curve, kib as f64, &share(kib, name));
            }
            curve
        });
        sheet.chart(
            losses,
            &Chart {
                title: format!("Losses of {percent}: goodput by the receive buffer"),
                x_label: "receive buffer (KiB)".to_owned(),
                y_label: "goodput / optimum".to_owned(),
                is_x_logarithmic: true,
                is_y_logarithmic: false,
                series: series.collect(),
            },
        );
        let mut header = vec![format!("losses {percent}: goodput / optimum")];
        header.extend(BUFFERS.map(|kib| format!("{kib} KiB")));
        header.push("smallest for 0.9".to_owned());
        let rows = results.contestants().map(|name| {
            let mut row = vec![name.to_owned()];
            row.extend(BUFFERS.map(|kib| shown(&share(kib, name), 2)));
            let enough = |kib: &u64| share(*kib, name).median().is_some_and(|it| it >= 0.9);
            let smallest = BUFFERS.into_iter().find(enough);
            row.push(smallest.map_or("–".to_owned(), |kib| format!("{kib} KiB")));
            row
        });
        sheet.summary(&header, &rows.collect::<Vec<_>>());
        let optimum = shown(&optimum, 2);
        sheet.paragraph(&format!("The optimum there is {optimum} Mbit/s."));
    }
    sheet.data("", &csv(&results));
    sheet.data("alone", &csv(&alone));
    let everywhere = |name: &'static str| {
        let cells = LOSSES
            .iter()
            .flat_map(|loss| BUFFERS.map(|kib| (loss.0, kib)));
        cells.map(move |(losses, kib)| (format!("{losses}-b{kib}"), losses, kib, name))
    };
    sheet.check(Check::everywhere(
        "the default has at least 0.95 of the goodput of the best path with the same buffer",
        0.95,
        everywhere("best-path").map(|(place, losses, kib, name)| {
            (place, of(losses, kib, "sphinx"), of(losses, kib, name))
        }),
    ));
    for (who, kib, factor) in [
        ("sc", 256, 0.72),
        ("sc", 512, 0.92),
        ("sphinx", 256, 0.8),
        ("sphinx", 512, 0.93),
    ] {
        let places = LOSSES.iter().map(|(losses, percent, paths)| {
            let name = (*percent).to_owned();
            (name, of(losses, kib, who), optimum(paths))
        });
        let claim = format!("with {kib} KiB, `{who}` has at least {factor} of the optimum");
        sheet.check(Check::everywhere(&claim, factor, places));
    }
    for kernel in ["mptcp-cubic", "mptcp-bbr"] {
        let places = LOSSES.iter().map(|(losses, percent, _)| {
            let name = (*percent).to_owned();
            (name, of(losses, 256, "sphinx"), of(losses, 256, kernel))
        });
        let claim =
            format!("with 256 KiB, the default has at least 1.5 times the goodput of {kernel}");
        sheet.check(Check::everywhere(&claim, 1.5, places));
    }
    Ok(true)
}

/// Cells in which a path falls silent.
const CUTS: [&str; 2] = ["blocks-cut", "blocks-return"];

/// How much later than usual the latest block of a run was. Where even the usual one did not come, there is nothing to compare with.
fn gap_ms(cell: &Cell, run: &Run) -> Option<Measured> {
    let Latencies { max_ms, p50_ms, .. } = Latencies::of(cell, run)?;
    Some(match p50_ms {
        Measured::Exactly(usual) => max_ms.map(|latest| latest - usual),
        Measured::AtLeast(_) => Measured::AtLeast(0.0),
    })
}

fn p50_ms(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(Latencies::of(cell, run)?.p50_ms)
}

/// Of all bytes those that went over the second path, in percent.
fn second_percent(_: &Cell, run: &Run) -> Option<Measured> {
    let bytes = |at: usize| Some(run.paths.get(at)?.forward_bytes as f64);
    let (first, second) = (bytes(0)?, bytes(1)?);
    Some((100.0 * second / (first + second)).into())
}

pub(super) fn failover(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(FAILOVER_SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "A path falls silent and comes back",
        &format!(
            "Two paths of 40 Mbit/s, round trip 50 ms, real sockets, and 20 Mbit/s in blocks of 25 kB, one every 10 ms, for 7 s. The first \
             path, which is that of the handshake, and for `cheapest` the cheaper one, loses everything from 3 s on (`blocks-cut`), or for two \
             seconds (`blocks-return`), both ways; nobody is told. In `blocks-steady` it does not. {MPTCP} The gap is how much later the latest block was \
             than the median one: what a pause looks like to the one who waits. Where it comes back, a gap at its return counts too. \
             Medians over the seeds. {}",
            caveat([&results])
        ),
    );
    sheet.note(&results);
    let column = |cell: &Cell| cell.name.clone();
    for (label, places, pick) in [
        ("gap (ms)", 0, gap_ms as Pick),
        ("99 % of blocks within (ms)", 0, curves::p99_ms),
        ("median block (ms)", 1, p50_ms),
        ("delivered (%)", 1, curves::delivered_percent),
        ("IP bytes sent for a byte delivered", 2, curves::wire_ratio),
        ("of them over the second path (%)", 1, second_percent),
    ] {
        let (mut header, rows) = table(&results, &column, places, pick);
        label.clone_into(&mut header[0]);
        sheet.summary(&header, &rows);
    }
    sheet.data("", &csv(&results));
    let gap = |cell: &str, name: &str| sample(&results, cell, name, gap_ms);
    for (name, most) in [("sphinx", 110.0), ("backup", 110.0), ("redundant", 15.0)] {
        let places = CUTS.map(|cell| (cell.to_owned(), gap(cell, name), Sample::Exactly(most)));
        let claim = format!("`{name}`: the gap is at most {most} ms");
        sheet.check(Check::nowhere_above(&claim, 1.0, places));
    }
    sheet.check(Check::nowhere_above(
        "the gap of the default is at most half of the kernel's (cubic)",
        0.5,
        CUTS.map(|cell| {
            let (ours, kernel) = (gap(cell, "sphinx"), gap(cell, "mptcp-cubic"));
            (cell.to_owned(), ours, kernel)
        }),
    ));
    sheet.check(Check::at_most(
        "`cheapest`: at most 1 % of the bytes are dear while the cheap path suffices",
        &sample(&results, "blocks-steady", "cheapest", second_percent),
        1.0,
        &Sample::Exactly(1.0),
    ));
    Ok(true)
}

pub(super) fn today(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(TODAY_SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Paths as people have them, several at once",
        &format!(
            "Wi-Fi with 5G, 5G with satellites in low orbits, a DSL line of 16 Mbit/s with LTE, and three LTE modems: links of \
             `sphx lab link --like KIND` (`docs/emulator.md` says where their numbers come from), real sockets. A file that takes all \
             paths together 6 s if they give their mean rates; cut off after 10 s. `only-a` and `only-b` are Sphinx over the first and the \
             second path alone, `redundant` sends everything on all. {MPTCP} Medians over the seeds; one seed is the same course of rates \
             for all, and the same delays and losses for all that go over UDP. {}",
            caveat([&results])
        ),
    );
    sheet.note(&results);
    let column = |cell: &Cell| cell.name.clone();
    for (label, places, pick) in [
        ("goodput (Mbit/s)", 1, curves::goodput as Pick),
        ("95 % waited at most (ms)", 0, curves::wait_p95_ms),
        ("IP bytes sent for a byte delivered", 2, curves::wire_ratio),
        ("CPU s/GB, both ends", 1, curves::cpu_seconds_per_gb),
    ] {
        let (mut header, rows) = table(&results, &column, places, pick);
        label.clone_into(&mut header[0]);
        sheet.summary(&header, &rows);
    }
    paths_paragraph(&results, sheet);
    sheet.data("", &csv(&results));
    let goodput = |cell: &str, name: &str| sample(&results, cell, name, curves::goodput);
    let names: Vec<String> = (results.cells.iter())
        .map(|(cell, _)| cell.name.clone())
        .collect();
    let best = |cell: &str| {
        let alone = ["only-a", "only-b"].map(|name| goodput(cell, name));
        Sample::fold(alone, f64::max)
    };
    let against = |right: &dyn Fn(&str) -> Sample| {
        let place = |cell: &String| (cell.clone(), goodput(cell, "sphinx"), right(cell));
        names.iter().map(place).collect::<Vec<_>>()
    };
    sheet.check(Check::everywhere(
        "together, paths have at least 0.95 of the goodput of the better one alone",
        0.95,
        against(&best),
    ));
    let costs = |cell: &str, name: &str| sample(&results, cell, name, curves::cpu_seconds_per_gb);
    sheet.check(Check::nowhere_above(
        "a byte over all paths takes at most 1.1 times the processor time of one over the path that takes least",
        1.1,
        names.iter().map(|cell| {
            let alone = ["only-a", "only-b"].map(|name| costs(cell, name));
            let alone = Sample::fold(alone, f64::min);
            (cell.clone(), costs(cell, "sphinx"), alone)
        }),
    ));
    for kernel in ["mptcp-cubic", "mptcp-bbr"] {
        let claim = format!("Sphinx has at least the goodput of {kernel}");
        let places = against(&|cell| goodput(cell, kernel));
        sheet.check(Check::everywhere(&claim, 1.0, places));
    }
    Ok(true)
}

/// A paragraph that lists the cells with their links.
fn paths_paragraph(results: &Results, sheet: &mut Sheet) {
    let lines: Vec<String> = (results.cells.iter())
        .map(|(cell, _)| format!("- `{}`: {}", cell.name, cell.description()))
        .collect();
    sheet.paragraph(&lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contestants::Programs, figures::bundled};

    /// Whether a scenario has these cells and contestants, in a hurry too.
    fn check((name, text): (&str, &str), cells: &[String], contestants: &[&str]) {
        for quick in [false, true] {
            let scenario = bundled(text, &Programs::for_tests(), quick).unwrap();
            for cell in cells {
                let mut all = scenario.cells.iter();
                assert!(all.any(|one| one.name == *cell), "{name}: {cell}");
            }
            for contestant in contestants {
                let mut all = scenario.contestants.iter();
                let is_there = all.any(|one| one.name() == *contestant);
                assert!(is_there, "{name}, quick {quick}: {contestant}");
            }
        }
    }

    #[test]
    fn what_pages_tell_is_in_their_scenarios() {
        let bounded = LOSSES.iter();
        let bounded: Vec<String> = bounded
            .flat_map(|(losses, ..)| BUFFERS.map(|kib| format!("{losses}-b{kib}")))
            .collect();
        let alone: Vec<String> = (LOSSES.iter())
            .flat_map(|(.., paths)| paths.map(str::to_owned))
            .collect();
        // Only contestants that a claim is about are checked.
        let kernel = ["sphinx", "mptcp-cubic", "mptcp-bbr"];
        check(BUFFER_SCENARIOS[0], &bounded, &kernel);
        check(BUFFER_SCENARIOS[0], &[], &["best-path", "sc"]);
        check(BUFFER_SCENARIOS[1], &alone, &["sphinx"]);
        let mut cells = CUTS.map(str::to_owned).to_vec();
        cells.push("blocks-steady".to_owned());
        check(FAILOVER_SCENARIOS[0], &cells, &["sphinx", "mptcp-cubic"]);
        check(
            FAILOVER_SCENARIOS[0],
            &[],
            &["redundant", "backup", "cheapest"],
        );
        check(TODAY_SCENARIOS[0], &[], &kernel);
        check(TODAY_SCENARIOS[0], &[], &["only-a", "only-b"]);
    }
}
