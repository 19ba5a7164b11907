//! Table 1 as numbers instead of adjectives.

use super::{
    Check, Sheet, Studio,
    curves::{caveat, csv, quotable},
};
use crate::{
    GroupNumbers,
    runner::{Results, ScenarioFailure},
};

pub(super) const SCENARIOS: &[(&str, &str)] =
    &[("table1", include_str!("../../scenarios/table1.toml"))];

const BULK: &str = "bulk-r10-l6";
const BLOCKS: &str = "blocks-r10-l6";

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Table 1: five axes, measured",
        &format!(
            "The paper compares by adjectives; these are numbers at 6 % loss, RTT 10 ms, 200 Mbit/s: a \
             file as fast as possible, and 100 kB every 40 ms for latency. {}",
            caveat(&results)
        ),
    );
    sheet.note(&results);
    let header = [
        "",
        "delivered",
        "goodput Mbit/s",
        "payload / bytes on the wire",
        "CPU s/GB, both ends",
        "CPU s/GB, whole machine",
        "100 kB, mean ms",
        "99th percentile",
    ];
    let names: Vec<&str> = match results.cells.first() {
        None => Vec::new(),
        Some((_, groups)) => groups.iter().map(|one| one.contestant.as_str()).collect(),
    };
    let mut rows: Vec<Vec<String>> = names.iter().map(|name| row(&results, name)).collect();
    for (name, _) in &results.missing {
        let mut row = vec![name.clone()];
        row.resize(header.len(), "missing".to_owned());
        rows.push(row);
    }
    sheet.summary(&header.map(str::to_owned), &rows);
    sheet.data("", &csv(&results))?;
    sheet.paragraph(
        "A transfer that is cut off has delivered what had arrived by then. UDP is sent at 190 Mbit/s and \
         repairs nothing, so that almost no block of 100 kB is ever whole. The kernel does TCP's \
         receiving inside the emulator's thread: compare the CPU time of TCP by the whole machine.",
    );
    let of =
        |cell, name, pick: fn(&GroupNumbers) -> f64| Some(pick(&numbers(&results, cell, name)?));
    let goodput = |numbers: &GroupNumbers| numbers.goodput_mbit_s;
    sheet.check(Check::at_least(
        "Sphinx has at least 5 times the goodput of TCP CUBIC",
        of(BULK, "sphinx", goodput),
        5.0,
        of(BULK, "tcp-cubic", goodput),
    ));
    sheet.check(Check::at_least(
        "Sphinx is more efficient than the paper's code",
        of(BULK, "sphinx-paper", |numbers| numbers.wire_ratio),
        1.0,
        of(BULK, "sphinx", |numbers| numbers.wire_ratio),
    ));
    Ok(true)
}

fn numbers(results: &Results, cell: &str, contestant: &str) -> Option<GroupNumbers> {
    let (cell, group) = results.group(cell, contestant)?;
    quotable(cell, group)
}

fn row(results: &Results, name: &str) -> Vec<String> {
    let bulk = numbers(results, BULK, name);
    let blocks = numbers(results, BLOCKS, name).and_then(|numbers| numbers.blocks);
    let show = |value: Option<f64>, places: usize| match value {
        Some(value) if value.is_finite() => format!("{value:.places$}"),
        _ => "–".to_owned(),
    };
    let from = |pick: fn(&GroupNumbers) -> f64| bulk.as_ref().map(pick);
    let delivered = from(|numbers| numbers.delivered * 100.0);
    vec![
        name.to_owned(),
        delivered.map_or("–".to_owned(), |percent| format!("{percent:.1} %")),
        show(from(|numbers| numbers.goodput_mbit_s), 1),
        show(from(|numbers| 1.0 / numbers.wire_ratio), 3),
        show(
            bulk.as_ref().and_then(|numbers| numbers.cpu_seconds_per_gb),
            1,
        ),
        show(
            bulk.as_ref()
                .and_then(|numbers| numbers.machine_seconds_per_gb),
            1,
        ),
        show(blocks.map(|blocks| blocks.mean_ms), 1),
        show(blocks.map(|blocks| blocks.p99_ms), 1),
    ]
}
