//! The page of a figure and its files.

use std::{collections::BTreeMap, fs, io, path::Path};

use sphinx_codes::svg::{self, Chart};

use super::{
    Check, Figure, Outcome, Studio,
    account::{Account, Standard},
    claim::Pairing,
};
use crate::{
    Cell, Group,
    machine::{Environment, Made},
    report::png,
    runner::{MISSING, Results, ScenarioFailure},
};

/// A figure under construction.
pub(super) struct Sheet {
    name: String,
    argument: &'static str,
    quick: bool,
    seeds: Option<u64>,
    standard: Standard,
    environment: Environment,
    /// The runs that it is made of.
    account: Account,
    text: String,
    files: Files,
    outcome: Outcome,
}

/// The files of a figure, by their names.
#[derive(Debug, Default)]
pub(super) struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Writes the files, and returns their paths.
    pub(super) fn write(
        &self,
        directory: &Path,
    ) -> Result<Vec<std::path::PathBuf>, ScenarioFailure> {
        let write = |(name, bytes): (&String, &Vec<u8>)| {
            let path = directory.join(name);
            let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, bytes));
            match written {
                Ok(()) => Ok(path),
                Err(error) => Err(ScenarioFailure::File { path, error }),
            }
        };
        self.0.iter().map(write).collect()
    }

    /// Where what is there says something else, in words. Pixels are made of drawings, which are compared.
    pub(super) fn differences(&self, directory: &Path) -> Result<Vec<String>, ScenarioFailure> {
        let mut differences = Vec::new();
        for (name, bytes) in self.0.iter().filter(|(name, _)| !name.ends_with(".png")) {
            let path = directory.join(name);
            match fs::read(&path) {
                Ok(there) if there == *bytes => {}
                Ok(there) => differences.push(difference(name, &there, bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    differences.push(format!("{name} is not there"));
                }
                Err(error) => return Err(ScenarioFailure::File { path, error }),
            }
        }
        Ok(differences)
    }
}

/// The first line of a file that is not what its runs say.
fn difference(name: &str, there: &[u8], right: &[u8]) -> String {
    let lines = |bytes: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(bytes);
        text.lines().map(str::to_owned).collect()
    };
    let (there, right) = (lines(there), lines(right));
    let same = there
        .iter()
        .zip(&right)
        .take_while(|(one, two)| one == two)
        .count();
    let alike = match (there.get(same), right.get(same)) {
        (Some(one), Some(two)) => (one.chars().zip(two.chars()))
            .take_while(|(one, two)| one == two)
            .count(),
        _ => 0,
    };
    // Lines of tables are long and may differ near their ends, so what is shown begins shortly before the difference.
    let before = alike.saturating_sub(20);
    let shown = |lines: &[String]| match lines.get(same) {
        Some(line) => {
            let part: String = line.chars().skip(before).take(120).collect();
            let cut = if before > 0 { "…" } else { "" };
            format!("'{cut}{part}'")
        }
        None => "nothing".to_owned(),
    };
    format!(
        "{name} is not what its runs say: line {} is {} instead of {}",
        same + 1,
        shown(&there),
        shown(&right)
    )
}

/// A sentence of the paper beside what we measure.
pub(super) struct Sentence<'a> {
    /// What the page says the figure is about.
    pub(super) about: &'a str,
    pub(super) published: &'a str,
    /// The verdict of our runs on it; `None` if it cannot be compared.
    pub(super) check: Option<Check>,
    /// What readers should know about it, whatever the verdict is.
    pub(super) remark: &'a str,
}

impl Sheet {
    pub(super) fn new(figure: Figure, studio: &Studio<'_>) -> Sheet {
        Sheet {
            name: figure.name(),
            argument: figure.argument(),
            quick: studio.quick,
            seeds: studio.seeds.filter(|_| figure.has_seeds()),
            standard: Standard::of(figure, studio.quick),
            environment: studio.environment.clone(),
            account: Account::default(),
            text: String::new(),
            files: Files::default(),
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

    /// What the paper says beside what our runs say of it.
    pub(super) fn sentences(&mut self, sentences: &[Sentence<'_>]) {
        let header = ["", "published", "here", "so it is", "remark"].map(str::to_owned);
        let rows: Vec<Vec<String>> = (sentences.iter())
            .map(|one| {
                let (measured, verdict) = match &one.check {
                    Some(check) => (check.measured.as_str(), check.verdict.of_a_sentence()),
                    None => ("–", "–"),
                };
                let words = [one.about, one.published, measured, verdict, one.remark];
                words.map(str::to_owned).to_vec()
            })
            .collect();
        self.summary(&header, &rows);
    }

    /// Draws a chart as SVG and PNG and puts it on the page.
    pub(super) fn chart(&mut self, part: &str, chart: &Chart) {
        let name = match part {
            "" => self.name.clone(),
            _ => format!("{}-{part}", self.name),
        };
        let drawing = svg::render(chart);
        if let Some(pixels) = png(&drawing) {
            self.write(&format!("{name}.png"), pixels);
        }
        self.write(&format!("{name}.svg"), drawing.into_bytes());
        self.paragraph(&format!("![{}]({name}.svg)", chart.title));
    }

    /// A file of data.
    pub(super) fn data(&mut self, part: &str, csv: &str) {
        let name = match part {
            "" => format!("{}.csv", self.name),
            _ => format!("{}-{part}.csv", self.name),
        };
        self.write(&name, csv.as_bytes().to_vec());
    }

    /// Notes which runs the results are of, and what is missing in them.
    pub(super) fn note(&mut self, results: &Results) {
        self.environment = results.environment.clone();
        for (cell, groups) in &results.cells {
            groups.iter().for_each(|group| self.note_group(cell, group));
        }
        for missing in &results.missing {
            if !self.outcome.missing.contains(missing) {
                self.outcome.missing.push(missing.clone());
            }
        }
    }

    /// Notes the runs of one contestant in one cell.
    pub(super) fn note_group(&mut self, cell: &Cell, group: &Group) {
        let seeds = self.standard.seeds_in(cell.clock);
        let is_missing = |reason: &String| reason.starts_with(MISSING);
        if group.runs.is_empty() && group.failures.iter().any(is_missing) {
            return;
        }
        let row = format!("{} in {}", group.contestant, cell.name);
        self.account.expect(&row, seeds);
        for run in group.used() {
            let pairing = (run.seed, run.repetition);
            self.account.run(&row, pairing, run.made.clone());
            if run.is_silent(cell) {
                self.account.silent(&row);
            }
        }
        group.left_out().for_each(|_| self.account.left_out(&row));
        for reason in &group.failures {
            self.account.failed(&row, reason);
        }
    }

    /// Notes where the runs that follow were made.
    pub(super) fn environment(&mut self, environment: Environment) {
        self.environment = environment;
    }

    /// Notes that there has to be a row, of as many seeds, or as every one.
    pub(super) fn expect(&mut self, row: &str, seeds_min: Option<usize>) {
        let seeds_min = seeds_min.unwrap_or(self.standard.seeds());
        self.account.expect(row, seeds_min);
    }

    /// Notes a run of a row.
    pub(super) fn run(&mut self, row: &str, run: Pairing, made: Made) {
        self.account.run(row, run, made);
    }

    /// Notes a run of a row that does not count, as the emulator was starved.
    pub(super) fn left_out(&mut self, row: &str) {
        self.account.left_out(row);
    }

    /// Notes why a run of a row has no result.
    pub(super) fn failed(&mut self, row: &str, reason: &str) {
        self.account.failed(row, reason);
    }

    /// Notes what could not be measured, and why.
    pub(super) fn missing(&mut self, name: String, reason: String) {
        self.outcome.missing.push((name, reason));
    }

    /// Claims something.
    pub(super) fn check(&mut self, check: Check) {
        self.outcome.checks.push(check);
    }

    /// Completes the page.
    pub(super) fn finish(mut self) -> (Outcome, Files) {
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
            let rows: Vec<Vec<String>> = (self.outcome.checks.iter())
                .map(|check| {
                    let verdict = check.verdict.words().to_owned();
                    vec![check.claim.clone(), check.measured.clone(), verdict]
                })
                .collect();
            self.paragraph(
                "Claims hold by the near end of the 95 % interval of ratios, each of two runs with one seed:",
            );
            let header = ["checked", "measured", ""].map(str::to_owned);
            self.paragraph(&markdown_table(&header, &rows));
        }
        let header = ["runs", "commit", "seeds", "left out"].map(str::to_owned);
        let table = self.account.table();
        if !table.is_empty() {
            self.paragraph(&markdown_table(&header, &table));
        }
        self.outcome.faults = self.account.faults(self.standard);
        if !self.outcome.faults.is_empty() {
            let list: Vec<String> = (self.outcome.faults.iter())
                .map(|fault| format!("- {fault}"))
                .collect();
            self.paragraph(&format!(
                "What this page falls short of:\n\n{}",
                list.join("\n")
            ));
        }
        let Environment {
            kernel, cpu, cores, ..
        } = self.environment.clone();
        if self.quick {
            self.paragraph("Made in a hurry: short runs, and few of them. Not for quoting.");
        }
        let quick = if self.quick { " --quick" } else { "" };
        let seeds = self.seeds.map(|seeds| format!(" --seeds {seeds}"));
        let seeds = seeds.unwrap_or_default();
        let place = format!(
            "Measured on {cpu}, {cores} cores, Linux {kernel}.\n\nReproduce this: \
             `sphx lab figure {}{quick}{seeds}`",
            self.argument
        );
        self.paragraph(&place);
        let text = std::mem::take(&mut self.text);
        let name = format!("{}.md", self.name);
        self.write(&name, format!("{}\n", text.trim_end()).into_bytes());
        (self.outcome, self.files)
    }

    fn write(&mut self, name: &str, bytes: Vec<u8>) {
        self.files.0.insert(name.to_owned(), bytes);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown_where_they_are() {
        let same = "0".repeat(500);
        let [there, right] = ["1,2", "1,3"].map(|end| format!("a\n{same}{end}\n"));
        let zeros = "0".repeat(18);
        assert_eq!(
            difference("x.csv", there.as_bytes(), right.as_bytes()),
            format!(
                "x.csv is not what its runs say: line 2 is '…{zeros}1,2' instead of '…{zeros}1,3'"
            )
        );
        assert_eq!(
            difference("x.csv", b"a\nb\n", b"a\n"),
            "x.csv is not what its runs say: line 2 is 'b' instead of nothing"
        );
    }
}
