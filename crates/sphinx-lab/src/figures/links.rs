//! Links as people have them: goodput against what waits for the link.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    curves::{self, caveat, csv, sample, table},
};
use crate::{Cell, runner::ScenarioFailure};

pub(super) const SCENARIOS: &[(&str, &str)] = &[scenario!("links")];

/// The plot of the papers about cellular links: right and low is good.
pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Links as people have them",
        &format!(
            "A long transfer over links whose rate and delay vary (`sphx lab link --like KIND`, `docs/emulator.md` says where their \
             numbers come from; `jitter-…` and `reorder-…` are 100 Mbit/s, RTT 40 ms, with delays that vary by so many milliseconds \
             both ways), told nothing. Medians over the seeds, bars are 95 % intervals; one seed is the same course of rates, delays \
             and losses for all. What waits is measured by the emulator: from a packet's arrival at the link until its last bit has \
             left, pauses of the link included. {}",
            caveat(&results)
        ),
    );
    sheet.note(&results);
    for (cell, groups) in &results.cells {
        let series = groups.iter().filter_map(|group| {
            let numbers = curves::quotable(cell, group)?;
            let at = (numbers.wait_p95_ms?, numbers.goodput_mbit_s);
            let mut one = Series::new(&group.contestant, Style::Line, vec![at]);
            let interval = numbers.goodput_interval;
            one.ranges
                .extend(interval.map(|(low, high)| (at.0, low, high)));
            let runs = group.used();
            one.dots
                .extend(runs.filter_map(|run| Some((run.wire.wait_p95_ms?, run.goodput_mbit_s))));
            Some(one)
        });
        sheet.chart(
            &cell.name,
            &Chart {
                title: format!("{}: {}", cell.name, cell.link.description()),
                x_label: "95 % of packets waited at most (ms)".to_owned(),
                y_label: "goodput (Mbit/s)".to_owned(),
                is_x_logarithmic: true,
                is_y_logarithmic: false,
                series: series.collect(),
            },
        );
    }
    let column = |cell: &Cell| cell.name.clone();
    let (mut header, rows) = table(&results, &column, 1, curves::goodput);
    header[0] = "goodput (Mbit/s)".to_owned();
    sheet.summary(&header, &rows);
    let (mut header, rows) = table(&results, &column, 1, curves::wait_p95_ms);
    header[0] = "95 % waited at most (ms)".to_owned();
    sheet.summary(&header, &rows);
    let (mut header, rows) = table(&results, &column, 3, curves::wire_ratio);
    header[0] = "IP bytes sent for a byte delivered".to_owned();
    sheet.summary(&header, &rows);
    sheet.data("", &csv(&results));
    for name in ["wifi", "lte", "5g", "leo", "geo"] {
        let value = |contestant| sample(&results, name, contestant, curves::goodput);
        sheet.check(Check::at_least(
            &format!("{name}: Sphinx has at least 0.8 of the goodput of BBR"),
            &value("sphinx"),
            0.8,
            &value("tcp-bbr"),
        ));
    }
    Ok(true)
}
