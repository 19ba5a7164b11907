//! Runs of many cases, some at once, each on file as soon as it is made.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError, atomic::Ordering},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Sheet, Studio};
use crate::{
    machine::{Environment, Made},
    runner::ScenarioFailure,
};

/// What is run once.
pub(super) trait Case: Sync + Send {
    /// What comes of it.
    type Run: Serialize + DeserializeOwned + Send;

    /// What it has in common with those that differ in their seed only, in a few words.
    fn row(&self) -> String;

    /// The seed of its path.
    fn seed(&self) -> u64;

    /// Whether a run is one of this case.
    fn is_of(&self, run: &Self::Run) -> bool;

    /// How many seeds there have to be, where that is not as everywhere.
    fn seeds_min(&self) -> Option<usize> {
        None
    }

    /// Of those that run at once, it takes the places of so many.
    fn places(&self) -> usize {
        1
    }

    /// Runs it; else, why that could not be.
    fn run(&self, studio: &Studio<'_>) -> Result<Self::Run, String>;

    /// What is said when it has been run.
    fn result(run: &Self::Run) -> String;
}

/// Runs the cases that are not on file yet, `at_once` at a time, in their order; returns these and those on file. Of several runs of a
/// case the last counts, and only one of the commit that is measured. None after an interruption. The file is called `NAME.ndjson`.
pub(super) fn measure<C: Case>(
    (name, cases): (&str, Vec<C>),
    at_once: usize,
    studio: &Studio<'_>,
    sheet: &mut Sheet,
) -> Result<Option<Vec<C::Run>>, ScenarioFailure> {
    let path = studio.directory.join(format!("{name}.ndjson"));
    let failed = |error| ScenarioFailure::File {
        path: path.clone(),
        error,
    };
    let on_file = Recorded::<C::Run>::read(&path).map_err(failed)?;
    let is_wanted = |made: &Made| studio.recall || made.commit == studio.environment.made.commit;
    let mut lines: Vec<Option<Line<C::Run>>> = Vec::new();
    lines.resize_with(cases.len(), || None);
    for line in on_file.lines {
        let case = cases.iter().position(|case| case.is_of(&line.run));
        if let Some(case) = case.filter(|_| is_wanted(&line.made)) {
            lines[case] = Some(line);
        }
    }
    if studio.recall {
        sheet.environment(on_file.environment);
    } else {
        sheet.environment(studio.environment.clone());
        let left: Vec<(usize, &C)> = (cases.iter().enumerate())
            .filter(|(at, _)| lines[*at].is_none())
            .collect();
        if !left.is_empty() {
            let measured = run(left, &path, at_once, studio).map_err(failed)?;
            for (at, line) in measured.lines {
                lines[at] = Some(line);
            }
            for (name, reason) in measured.missing {
                sheet.missing(name, reason);
            }
        }
    }
    let mut runs = Vec::new();
    for (case, line) in cases.iter().zip(lines) {
        let row = case.row();
        sheet.expect(&row, case.seeds_min());
        if let Some(line) = line {
            sheet.run(&row, (case.seed(), 0), line.made);
            runs.push(line.run);
        }
    }
    Ok((!studio.stop.load(Ordering::SeqCst)).then_some(runs))
}

/// What came of cases.
struct Measured<R> {
    /// With the numbers of their cases.
    lines: Vec<(usize, Line<R>)>,
    /// Cases that could not be run, and why.
    missing: Vec<(String, String)>,
}

/// Runs cases, and puts them on file.
fn run<C: Case>(
    cases: Vec<(usize, &C)>,
    path: &Path,
    at_once: usize,
    studio: &Studio<'_>,
) -> io::Result<Measured<C::Run>> {
    fs::create_dir_all(studio.directory)?;
    let mut file = File::options().create(true).append(true).open(path)?;
    let environment = EnvironmentLine {
        event: ENVIRONMENT.to_owned(),
        environment: studio.environment.clone(),
    };
    write_line(&mut file, &environment)?;
    let measured = Mutex::new(Measured {
        lines: Vec::new(),
        missing: Vec::new(),
    });
    let file = Mutex::new(file);
    let takes = |(_, case): &(usize, &C)| case.places();
    crate::at_once(cases, at_once, takes, studio.stop, |(at, case)| {
        let outcome = case.run(studio);
        if studio.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let lock = || measured.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{}, seed {}", case.row(), case.seed());
        match outcome {
            Ok(run) => {
                studio.progress.say(&format!("{name}: {}", C::result(&run)));
                let line = Line {
                    run,
                    made: studio.environment.made.clone(),
                };
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                write_line(&mut file, &line)?;
                lock().lines.push((at, line));
            }
            Err(reason) => {
                studio.progress.say(&format!("{name}: {reason}"));
                lock().missing.push((name, reason));
            }
        }
        Ok::<(), io::Error>(())
    })?;
    Ok(measured
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

fn write_line(file: &mut File, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// A line of the file.
#[derive(Deserialize, Serialize)]
struct Line<R> {
    #[serde(flatten)]
    run: R,
    #[serde(default)]
    made: Made,
}

const ENVIRONMENT: &str = "environment";

/// A line that says where the runs behind it were made.
#[derive(Deserialize, Serialize)]
struct EnvironmentLine {
    event: String,
    #[serde(flatten)]
    environment: Environment,
}

/// What is on file.
struct Recorded<R> {
    environment: Environment,
    lines: Vec<Line<R>>,
}

impl<R: DeserializeOwned> Recorded<R> {
    fn read(path: &Path) -> io::Result<Recorded<R>> {
        let mut recorded = Recorded {
            environment: Environment::default(),
            lines: Vec::new(),
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        for line in text.lines() {
            // A line that was cut off is measured again.
            if let Ok(mut line) = serde_json::from_str::<Line<R>>(line) {
                // Older runs do not tell it themselves.
                if line.made.commit.is_none() {
                    line.made = recorded.environment.made.clone();
                }
                recorded.lines.push(line);
            } else if let Ok(line) = serde_json::from_str::<EnvironmentLine>(line)
                && line.event == ENVIRONMENT
            {
                recorded.environment = line.environment;
            }
        }
        Ok(recorded)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_read_as_they_were_written() {
        // In decimals the shortest text of a number is the number again only if it is read exactly.
        let mut number = 1.0_f64;
        for _ in 0..10_000 {
            number = number * 1.000_7 + 1e-7;
            let text = serde_json::to_string(&number).unwrap();
            assert_eq!(
                serde_json::from_str::<f64>(&text).unwrap(),
                number,
                "{text}"
            );
        }
    }
}
