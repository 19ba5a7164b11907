//! Tables, drawings and data.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{Design, LATE_MS, Run, Spread, What};
use crate::figures::{
    Sheet,
    curves::{in_interval, place},
};

pub(super) fn write(design: &Design, runs: &[Run], sheet: &mut Sheet) {
    let about = format!("{} {}", design.about, conditions(design, runs));
    sheet.title(design.title, &about);
    for cell in design.cells {
        // Not every cell has messages, or several flows.
        let has_numbers = |column: &usize| {
            let column = &design.columns[*column];
            let mut these = runs.iter().filter(|run| run.cell == cell.name);
            these.any(|run| run.number(column).is_some())
        };
        let columns: Vec<usize> = (0..design.columns.len()).filter(has_numbers).collect();
        let mut header = vec![cell.name.to_owned()];
        let labels = columns
            .iter()
            .map(|it| design.columns[*it].label.to_owned());
        header.extend(labels);
        let rows = design.variants.iter().map(|variant| {
            let mut row = vec![variant.name.to_owned()];
            let at = |column: &usize| (cell.name, variant.name, *column);
            row.extend(columns.iter().map(|it| number(design, runs, at(it))));
            row
        });
        sheet.summary(&header, &rows.collect::<Vec<_>>());
    }
    if !design.remark.is_empty() {
        sheet.paragraph(design.remark);
    }
    chart(design, runs, sheet);
    for claim in design.claims {
        sheet.check(design.check(runs, claim));
    }
    sheet.data("", &csv(runs));
}

/// A median and its interval.
fn number(design: &Design, runs: &[Run], at: (&'static str, &'static str, usize)) -> String {
    let places = match design.columns[at.2].what {
        What::Goodput | What::Again | What::Jain => 2,
        What::Delivery(_) | What::Waiting(..) | What::Transit(_) | What::Delivered => 0,
    };
    in_interval(&design.numbers(runs, at), places)
}

/// The first number of each variant, cell by cell.
fn chart(design: &Design, runs: &[Run], sheet: &mut Sheet) {
    let series = design.variants.iter().map(|variant| {
        let mut series = Series::new(variant.name, Style::Line, Vec::new());
        for (index, cell) in design.cells.iter().enumerate() {
            let sample = design.numbers(runs, (cell.name, variant.name, 0));
            place(&mut series, index as f64 + 1.0, &sample);
        }
        series
    });
    let names = design.cells.iter().enumerate();
    let names: Vec<String> = names
        .map(|(index, cell)| format!("{}: {}", index + 1, cell.name))
        .collect();
    sheet.paragraph(&format!("In the drawing, {}.", names.join("; ")));
    let chart = Chart {
        title: design.title.to_owned(),
        x_label: "path (see the text)".to_owned(),
        y_label: design.columns[0].label.to_owned(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: series.collect(),
    };
    sheet.chart("", &chart);
}

/// How many seeds, and whether the emulator was in time.
fn conditions(design: &Design, runs: &[Run]) -> String {
    let latest = runs.iter().map(|run| run.late_ms_max).fold(0.0, f64::max);
    let late = runs.iter().filter(|run| run.late_ms_max > LATE_MS).count();
    let places = design.cells.iter().map(|cell| cell.places).max();
    let fast = match design.at_once / places.unwrap_or(1) {
        fewer if fewer < design.at_once => format!(", {fewer} where they are fast"),
        _ => String::new(),
    };
    format!(
        "{}; {} paths at once{fast}. The latest packet of the emulator was {latest:.1} ms late; in {late} of {} runs one was more than \
         {LATE_MS:.0} ms late. Every run: `{}.ndjson`.",
        seeds(design, runs),
        design.at_once,
        runs.len(),
        design.name
    )
}

/// How many seeds each variant has; a cell that was measured later may have fewer.
fn seeds(design: &Design, runs: &[Run]) -> String {
    let of = |cell: &super::Cell| {
        let counts = design.variants.iter().map(|variant| {
            let these = runs.iter();
            let is_it = |run: &&Run| run.cell == cell.name && run.variant == variant.name;
            these.filter(is_it).count()
        });
        counts.min().unwrap_or(0)
    };
    let mut cells: std::collections::BTreeMap<usize, Vec<&str>> = Default::default();
    for cell in design.cells {
        cells.entry(of(cell)).or_default().push(cell.name);
    }
    let most = cells.pop_last().map_or(0, |it| it.0);
    let mut text = match most {
        1 => "One seed".to_owned(),
        many => format!("Medians of {many} seeds, the same for all"),
    };
    for (fewer, names) in cells.into_iter().rev() {
        text += &format!("; {fewer} of: {}", names.join("; "));
    }
    text
}

/// Every group of every run, a line each.
fn csv(runs: &[Run]) -> String {
    let mut text = "cell,variant,seed,group,flows,messages,delivered,goodput_mbit_s,delivery_p50_ms,delivery_p95_ms,transit_p50_ms,\
                    transit_p95_ms,segments_sent,segments_again,late_ms_max,jain\n"
        .to_owned();
    for run in runs {
        for group in &run.groups {
            let at = |spread: &Spread, n| {
                let ms = spread.percentile(n);
                ms.map_or(String::new(), |ms| format!("{ms:.2}"))
            };
            text += &format!(
                "\"{}\",\"{}\",{},{},{},{},{},{:.4},{},{},{},{},{},{},{:.2},{}\n",
                run.cell,
                run.variant,
                run.seed,
                group.name,
                group.flows,
                group.messages,
                group.delivered,
                group.goodput_mbit_s,
                at(&group.delivery_ms, 50),
                at(&group.delivery_ms, 95),
                at(&group.transit_ms, 50),
                at(&group.transit_ms, 95),
                run.segments_sent,
                run.segments_again,
                run.late_ms_max,
                group
                    .jain
                    .map_or(String::new(), |jain| format!("{jain:.4}")),
            );
        }
    }
    text
}
