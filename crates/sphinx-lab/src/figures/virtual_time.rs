//! A figure's scenario in virtual time: links that no two processors carry.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Sheet, Studio,
    claim::Sample,
    curves::{self, Pick, csv, loss_percent, place},
};
use crate::{
    Cell, Clock,
    runner::{Results, ScenarioFailure},
};

/// The contestant that is drawn, and found in the real traffic as well.
const DRAWN: &str = "sphinx";

/// What is shown of a scenario.
pub(super) struct Shown {
    /// The scenario.
    pub(super) scenario: (&'static str, &'static str),
    /// Its title, in a few words.
    pub(super) title: &'static str,
    /// How it differs from the figure of real time.
    pub(super) about: &'static str,
    /// The values; the first are drawn.
    pub(super) values: &'static [(&'static str, Pick)],
    /// Digits behind the point.
    pub(super) places: usize,
}

/// Runs it, and draws it beside the real traffic on the same links; none after an interruption.
pub(super) fn draw(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
    shown: &Shown,
    real: &Results,
) -> Result<Option<Results>, ScenarioFailure> {
    let Some(results) = studio.run(shown.scenario)? else {
        return Ok(None);
    };
    sheet.paragraph(&format!(
        "## {}\n\n**{}.** {}",
        shown.title,
        capitalised(Clock::Virtual.label()),
        shown.about
    ));
    sheet.note(&results);
    let (y_label, drawn) = shown.values[0];
    sheet.chart(
        "virtual",
        &Chart {
            title: format!("{} ({})", shown.title, Clock::Virtual.label()),
            x_label: "rate of the link (Mbit/s)".to_owned(),
            y_label: y_label.to_owned(),
            is_x_logarithmic: true,
            is_y_logarithmic: false,
            series: series(&results, real, drawn),
        },
    );
    for (y_label, pick) in shown.values {
        let (header, rows) = table(&results, real, y_label, *pick, shown.places);
        sheet.summary(&header, &rows);
    }
    sheet.data("virtual", &csv(&results));
    Ok(Some(results))
}

/// A line for every loss rate, and marks where there was real traffic on the same link.
fn series(results: &Results, real: &Results, pick: Pick) -> Vec<Series> {
    let mut all = Vec::new();
    for (look, loss) in losses(results).into_iter().enumerate() {
        let cells = || with_loss(results, loss);
        let drawn = |name: &str, style, results| {
            let mut one = Series::new(name, style, Vec::new()).with_look(look);
            for cell in cells() {
                place(&mut one, megabits(cell), &value(results, cell, DRAWN, pick));
            }
            one
        };
        all.push(drawn(&format!("{loss} % loss"), Style::Line, results));
        let name = format!("{loss} %, {}", Clock::Real.label());
        let measured = drawn(&name, Style::Marks, real);
        if !measured.points.is_empty() {
            all.push(measured);
        }
    }
    all
}

/// A row per contestant and loss rate, a column per rate.
fn table(
    results: &Results,
    real: &Results,
    y_label: &str,
    pick: Pick,
    places: usize,
) -> (Vec<String>, Vec<Vec<String>>) {
    let mut rates: Vec<f64> = results
        .cells
        .iter()
        .map(|(cell, _)| megabits(cell))
        .collect();
    rates.dedup();
    let mut header = vec![y_label.to_owned()];
    header.extend(rates.iter().map(|rate| format!("{rate} Mbit/s")));
    let row = |name: String, from: &Results, contestant: &str, loss: f64| {
        let values = with_loss(results, loss).map(|cell| value(from, cell, contestant, pick));
        let mut row = vec![name];
        row.extend(values.map(|value| curves::shown(&value, places)));
        row
    };
    let mut rows = Vec::new();
    for contestant in results.contestants() {
        for loss in losses(results) {
            rows.push(row(
                format!("{contestant}, {loss} %"),
                results,
                contestant,
                loss,
            ));
            let measured = with_loss(results, loss)
                .any(|cell| value(real, cell, contestant, pick).median().is_some());
            if measured {
                let name = format!("{contestant}, {loss} %, {}", Clock::Real.label());
                rows.push(row(name, real, contestant, loss));
            }
        }
    }
    (header, rows)
}

/// The value of a contestant on the link of `cell`.
fn value(results: &Results, cell: &Cell, contestant: &str, pick: Pick) -> Sample {
    let cells = results.cells.iter().map(|(cell, _)| cell);
    let mut same = cells.filter(|one| one.link == cell.link);
    match same.next() {
        Some(cell) => curves::sample(results, &cell.name, contestant, pick),
        None => Sample::fold([], f64::max),
    }
}

pub(super) fn losses(results: &Results) -> Vec<f64> {
    let mut all: Vec<f64> = results
        .cells
        .iter()
        .map(|(cell, _)| loss_percent(cell))
        .collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

fn with_loss(results: &Results, loss: f64) -> impl Iterator<Item = &Cell> {
    let cells = results.cells.iter().map(|(cell, _)| cell);
    cells.filter(move |cell| loss_percent(cell) == loss)
}

fn megabits(cell: &Cell) -> f64 {
    cell.link.rate as f64 / 1e6
}

pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
