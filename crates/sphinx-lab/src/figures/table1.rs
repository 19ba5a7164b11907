//! Table 1 as numbers instead of adjectives: the runs of figures 9 and 10.

use super::{
    Check, Sheet, Studio, blocks,
    curves::{
        self, Pick, cpu_seconds_per_gb, csv, delivered_percent, machine_seconds_per_gb, mean_ms,
        p99_ms, sample, shown, wire_ratio,
    },
    goodput,
};
use crate::runner::{Results, ScenarioFailure};

const BULK: &str = "r10-l6";
const BLOCKS: &str = "blocks-r10-l6";

/// Contestants in the order of the paper's table, then those that it does not have.
const CONTESTANTS: [&str; 7] = [
    "tcp-cubic",
    "tcp-bbr",
    "udp",
    "sphinx-paper",
    "sphinx-lt",
    "sphinx-rs",
    "sphinx",
];

/// A column: what it is called, the cell that it is from, what to take, and how many decimal places.
const COLUMNS: [(&str, &str, Pick, usize); 7] = [
    ("delivered, %", BULK, delivered_percent, 1),
    ("goodput Mbit/s", BULK, curves::goodput, 1),
    ("IP bytes sent for a byte delivered", BULK, wire_ratio, 3),
    ("CPU s/GB, both ends", BULK, cpu_seconds_per_gb, 1),
    ("CPU s/GB, whole machine", BULK, machine_seconds_per_gb, 1),
    ("100 kB, mean ms", BLOCKS, mean_ms, 1),
    ("99th percentile", BLOCKS, p99_ms, 1),
];

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(bulk) = studio.run(goodput::SCENARIOS[0])? else {
        return Ok(false);
    };
    let Some(blocks) = studio.run(blocks::SCENARIOS[0])? else {
        return Ok(false);
    };
    let (bulk, blocks) = (only(bulk, BULK), only(blocks, BLOCKS));
    sheet.title(
        "Table 1: five axes, measured",
        "The paper compares by adjectives; these are numbers at 6 % loss, RTT 10 ms, 200 Mbit/s: a file as fast as possible, and 100 kB \
         every 40 ms for latency. They are of the runs of figures 9 and 10.",
    );
    sheet.note(&blocks);
    sheet.note(&bulk);
    let mut header = vec![String::new()];
    header.extend(COLUMNS.map(|(name, ..)| name.to_owned()));
    let of = |cell: &str, name: &str, pick: Pick| match cell {
        BULK => sample(&bulk, cell, name, pick),
        _ => sample(&blocks, cell, name, pick),
    };
    let rows = CONTESTANTS.map(|name| {
        let cells = COLUMNS.map(|(_, cell, pick, places)| shown(&of(cell, name, pick), places));
        [name.to_owned()].into_iter().chain(cells).collect()
    });
    sheet.summary(&header, &rows);
    sheet.data("", &csv(&bulk));
    sheet.data("blocks", &csv(&blocks));
    sheet.paragraph(
        "A transfer that is cut off has delivered what had arrived by then. UDP is sent at 190 Mbit/s and \
         repairs nothing, so that almost no block of 100 kB is ever whole. The kernel does TCP's \
         receiving inside the emulator's thread: compare the CPU time of TCP by the whole machine.",
    );
    sheet.check(Check::at_least(
        "Sphinx has at least 5 times the goodput of TCP CUBIC",
        &of(BULK, "sphinx", curves::goodput),
        5.0,
        &of(BULK, "tcp-cubic", curves::goodput),
    ));
    sheet.check(Check::at_least(
        "Sphinx is more efficient than the paper's code",
        &of(BULK, "sphinx-paper", wire_ratio),
        1.0,
        &of(BULK, "sphinx", wire_ratio),
    ));
    Ok(true)
}

/// Keeps one cell of the results, with the contestants that the table has.
fn only(mut results: Results, cell: &str) -> Results {
    results.cells.retain(|(one, _)| one.name == cell);
    for (_, groups) in &mut results.cells {
        groups.retain(|group| CONTESTANTS.contains(&group.contestant.as_str()));
    }
    results
}
