//! One parameter after the other, each with its drawings and tables.

use sphinx_codes::svg::Chart;

use super::{
    Sheet, Studio,
    curves::{Pick, caveat, csv, curves, table},
};
use crate::{Cell, runner::ScenarioFailure};

/// What a scenario varies, and how that is shown.
pub(super) struct Sweep {
    pub(super) part: &'static str,
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) x_label: &'static str,
    pub(super) x: fn(&Cell) -> f64,
    pub(super) is_x_logarithmic: bool,
    pub(super) views: &'static [View],
}

/// A drawing of a sweep.
pub(super) struct View {
    /// Follows the name of the sweep in the name of the file, if there are several drawings.
    suffix: &'static str,
    y_label: &'static str,
    is_y_logarithmic: bool,
    places: usize,
    pick: Pick,
}

impl View {
    pub(super) const fn linear(y_label: &'static str, pick: Pick) -> View {
        View {
            suffix: "",
            y_label,
            is_y_logarithmic: false,
            places: 1,
            pick,
        }
    }

    pub(super) const fn logarithmic(y_label: &'static str, pick: Pick) -> View {
        View {
            is_y_logarithmic: true,
            ..View::linear(y_label, pick)
        }
    }

    /// One of several drawings of its sweep, with this suffix.
    pub(super) const fn part(self, suffix: &'static str) -> View {
        View { suffix, ..self }
    }

    /// The same with so many decimal places in tables.
    pub(super) const fn with_places(self, places: usize) -> View {
        View { places, ..self }
    }
}

impl Sweep {
    /// Measures a scenario and puts it on the page; false after an interruption.
    pub(super) fn draw(
        &self,
        scenario: (&str, &str),
        studio: &mut Studio<'_>,
        sheet: &mut Sheet,
    ) -> Result<bool, ScenarioFailure> {
        let Some(results) = studio.run(scenario)? else {
            return Ok(false);
        };
        sheet.note(&results);
        sheet.paragraph(&format!(
            "## {}\n\n{} {}",
            self.title,
            self.about,
            caveat([&results])
        ));
        for view in self.views {
            let series = curves(&results, &self.x, view.pick);
            sheet.chart(
                &format!("{}{}", self.part, view.suffix),
                &Chart {
                    title: self.title.to_owned(),
                    x_label: self.x_label.to_owned(),
                    y_label: view.y_label.to_owned(),
                    is_x_logarithmic: self.is_x_logarithmic,
                    is_y_logarithmic: view.is_y_logarithmic,
                    series,
                },
            );
            let column = |cell: &Cell| format!("{}", (self.x)(cell));
            let (mut header, rows) = table(&results, &column, view.places, view.pick);
            header[0] = format!("{} by {}", view.y_label, self.x_label);
            sheet.summary(&header, &rows);
        }
        sheet.data(self.part, &csv(&results));
        Ok(true)
    }
}
