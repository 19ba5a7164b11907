//! The page of a figure and its files.

use std::{collections::BTreeMap, fs, path::PathBuf};

use sphinx_codes::svg::{self, Chart};

use super::{Check, Figure, Outcome, Studio};
use crate::{
    Validity,
    machine::{Environment, Made},
    report::png,
    runner::{Results, ScenarioFailure},
};

/// A figure under construction.
pub(super) struct Sheet {
    name: String,
    argument: &'static str,
    directory: PathBuf,
    quick: bool,
    seeds: Option<u64>,
    environment: Environment,
    /// How many runs were made how.
    made: BTreeMap<Made, usize>,
    text: String,
    /// Of all runs so far.
    worst: Validity,
    outcome: Outcome,
}

impl Sheet {
    pub(super) fn new(figure: Figure, studio: &Studio<'_>) -> Sheet {
        Sheet {
            name: figure.name(),
            argument: figure.argument(),
            directory: studio.directory.to_owned(),
            quick: studio.quick,
            seeds: studio.seeds,
            environment: studio.environment.clone(),
            made: BTreeMap::new(),
            text: String::new(),
            worst: Validity::Valid,
            outcome: Outcome::default(),
        }
    }

    /// The heading and what it is about.
    pub(super) fn title(&mut self, title: &str, about: &str) {
        self.text += &format!("# {title}\n\n{about}\n\n");
    }

    /// A paragraph, or anything else in Markdown.
    pub(super) fn paragraph(&mut self, text: &str) {
        self.text += text.trim();
        self.text += "\n\n";
    }

    /// A table that is shown on the terminal as well.
    pub(super) fn summary(&mut self, header: &[String], rows: &[Vec<String>]) {
        let table = markdown_table(header, rows);
        self.outcome.summary += &table;
        self.outcome.summary += "\n";
        self.paragraph(&table);
    }

    /// A table of published numbers beside ours: what, published, ours, why.
    pub(super) fn published(&mut self, rows: &[[String; 4]]) {
        let header = ["", "published", "ours", "why they differ"].map(str::to_owned);
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
        self.paragraph(&markdown_table(&header, &rows));
    }

    /// Draws a chart as SVG and PNG and puts it on the page.
    pub(super) fn chart(&mut self, part: &str, chart: &Chart) -> Result<(), ScenarioFailure> {
        let name = match part {
            "" => self.name.clone(),
            _ => format!("{}-{part}", self.name),
        };
        let drawing = svg::render(chart);
        self.write(&format!("{name}.svg"), drawing.as_bytes())?;
        if let Some(pixels) = png(&drawing) {
            self.write(&format!("{name}.png"), &pixels)?;
        }
        self.paragraph(&format!("![{}]({name}.svg)", chart.title));
        Ok(())
    }

    /// Writes a file of data.
    pub(super) fn data(&mut self, part: &str, csv: &str) -> Result<(), ScenarioFailure> {
        let name = match part {
            "" => format!("{}.csv", self.name),
            _ => format!("{}-{part}.csv", self.name),
        };
        self.write(&name, csv.as_bytes())
    }

    /// Notes what is missing in the results, and whether the machine was up to them.
    pub(super) fn note(&mut self, results: &Results) {
        let groups = results.cells.iter().flat_map(|(_, groups)| groups);
        let runs = groups.flat_map(|group| &group.runs);
        for run in runs {
            self.worst = self.worst.max(run.validity);
            self.made(run.made.clone());
        }
        for missing in &results.missing {
            if !self.outcome.missing.contains(missing) {
                self.outcome.missing.push(missing.clone());
            }
        }
    }

    /// Notes how a run was made.
    pub(super) fn made(&mut self, made: Made) {
        *self.made.entry(made).or_default() += 1;
    }

    /// Notes what could not be measured, and why.
    pub(super) fn missing(&mut self, name: String, reason: String) {
        self.outcome.missing.push((name, reason));
    }

    /// Claims an ordering. One that does not hold is no evidence on a machine that others use, or that starves the emulator.
    pub(super) fn check(&mut self, mut check: Check) {
        let doubt = match self.worst {
            Validity::Valid => None,
            Validity::Noisy => Some("; other programs used the machine"),
            Validity::Starved => Some("; the emulator was starved in other runs"),
        };
        if let (Some(doubt), Some(false)) = (doubt, check.holds) {
            check.holds = None;
            check.measured += doubt;
        }
        self.outcome.checks.push(check);
    }

    /// Writes the page.
    pub(super) fn finish(mut self) -> Result<Outcome, ScenarioFailure> {
        let missing = std::mem::take(&mut self.outcome.missing);
        if !missing.is_empty() {
            let list: Vec<String> = missing
                .iter()
                .map(|(name, reason)| format!("- `{name}`: {reason}"))
                .collect();
            self.paragraph(&format!("Missing:\n\n{}", list.join("\n")));
        }
        self.outcome.missing = missing;
        if !self.outcome.checks.is_empty() {
            let rows: Vec<Vec<String>> = self
                .outcome
                .checks
                .iter()
                .map(|check| {
                    let holds = match check.holds {
                        Some(true) => "holds",
                        Some(false) => "does not hold",
                        None => "not measured",
                    };
                    vec![
                        check.claim.clone(),
                        check.measured.clone(),
                        holds.to_owned(),
                    ]
                })
                .collect();
            let header = ["checked", "measured", ""].map(str::to_owned);
            self.paragraph(&markdown_table(&header, &rows));
        }
        let Environment {
            kernel,
            cpu,
            cores,
            made,
        } = &self.environment;
        let made = match self.made.len() {
            0 => vec![conditions(made)],
            1 => self.made.keys().map(conditions).collect(),
            _ => {
                let runs =
                    |(made, runs): (&Made, &usize)| format!("{runs} runs{}", conditions(made));
                self.made.iter().map(runs).collect()
            }
        };
        let made = match made.as_slice() {
            [one] => one.clone(),
            several => format!("; {}", several.join("; ")),
        };
        let quick = if self.quick { " --quick" } else { "" };
        let seeds = self.seeds.map(|seeds| format!(" --seeds {seeds}"));
        let seeds = seeds.unwrap_or_default();
        let place = format!(
            "Measured on {cpu}, {cores} cores, Linux {kernel}{made}.\n\nReproduce this: \
             `sphx lab figure {}{quick}{seeds}`",
            self.argument
        );
        self.paragraph(&place);
        let text = std::mem::take(&mut self.text);
        let name = format!("{}.md", self.name);
        self.write(&name, format!("{}\n", text.trim_end()).as_bytes())?;
        Ok(self.outcome)
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), ScenarioFailure> {
        let path = self.directory.join(name);
        let written = fs::create_dir_all(&self.directory).and_then(|()| fs::write(&path, bytes));
        match written {
            Ok(()) => {
                self.outcome.files.push(path);
                Ok(())
            }
            Err(error) => Err(ScenarioFailure::File { path, error }),
        }
    }
}

/// How runs were made, behind what they were made on.
fn conditions(made: &Made) -> String {
    let commit = match &made.commit {
        Some(commit) => format!(", commit {commit}"),
        None => ", commit unknown".to_owned(),
    };
    let priority = match made.real_time {
        true => ", at real-time priority beside other programs",
        false => "",
    };
    commit + priority
}

/// A table in Markdown, aligned for people.
pub(super) fn markdown_table(header: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(header).chain(rows.iter().map(Vec::as_slice));
    let width = |column: usize| {
        let cells = all().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut table = line(header);
    table += &line(&dashes);
    for row in rows {
        table += &line(row);
    }
    table
}
