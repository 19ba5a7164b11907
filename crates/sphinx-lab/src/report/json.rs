//! One JSON object per line.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Cell, Contestant, Group, Run, machine::Environment, scenario::Scenario};

/// How every line begins.
const START: &[u8] = br#"{"v":1,"event":""#;

/// A file of results. Every line is written at once, so that what is there stays there when the
/// program is interrupted. While there is this, nobody else goes on with the file.
#[derive(Debug)]
pub struct JsonLines {
    file: File,
}

impl JsonLines {
    /// Opens the file to go on with it, and returns what it tells; creates it if need be. Half
    /// a line at the end, which an interruption leaves, is cut off.
    ///
    /// # Errors
    ///
    /// Those of opening, reading and truncating a file; `InvalidData` for a file of something else, `ResourceBusy` for one that another
    /// run writes to.
    pub fn open(path: &Path) -> io::Result<(JsonLines, Recorded)> {
        JsonLines::open_with(path, recorded_in)
    }

    /// Opens the file to begin anew: what it tells is gone.
    ///
    /// # Errors
    ///
    /// Those of [`JsonLines::open`]; then it is as it was.
    pub fn replace(path: &Path) -> io::Result<JsonLines> {
        let (lines, _) = JsonLines::open(path)?;
        lines.file.set_len(0)?;
        Ok(lines)
    }

    /// As [`JsonLines::open`] with other lines, which `read` understands, or refuses.
    pub(crate) fn open_with<R>(
        path: &Path,
        read: impl FnOnce(&[u8]) -> io::Result<R>,
    ) -> io::Result<(JsonLines, R)> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        if !file.metadata()?.is_file() {
            let what = "results need a file that can be read again";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {
                let what =
                    "another run writes its results there; wait for it, or name another file";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
            }
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let (lines, rest) = halves(&text);
        let recorded = read(lines)?;
        if !rest.is_empty() {
            if !rest.starts_with(START) && !START.starts_with(rest) {
                return Err(something_else());
            }
            file.set_len(lines.len() as u64)?;
        }
        Ok((JsonLines { file }, recorded))
    }

    /// Where and with what the runs are made.
    ///
    /// # Errors
    ///
    /// Those of writing to the file, here and below.
    pub fn environment(
        &mut self,
        environment: &Environment,
        contestants: &[&dyn Contestant],
        scenario: &Scenario,
    ) -> io::Result<()> {
        let settings: Value = contestants
            .iter()
            .map(|contestant| (contestant.name().to_owned(), json!(contestant.settings())))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let fields = json!({
            "title": scenario.title,
            "clock": scenario.clock(),
            "contestants": settings,
            "seeds": scenario.seeds,
            "repetitions": scenario.repetitions,
        });
        self.write("environment", environment, fields)
    }

    /// A contestant that cannot run here.
    ///
    /// # Errors
    ///
    /// Those of writing to the file.
    pub fn skipped(&mut self, contestant: &str, reason: &str) -> io::Result<()> {
        self.write(
            "skipped",
            &json!({"contestant": contestant, "reason": reason}),
            json!({}),
        )
    }

    /// One run.
    ///
    /// # Errors
    ///
    /// Those of writing to the file.
    pub fn run(&mut self, run: &Run) -> io::Result<()> {
        self.write("run", run, json!({}))
    }

    /// A run without a result.
    ///
    /// # Errors
    ///
    /// Those of writing to the file.
    pub fn failed(
        &mut self,
        cell: &Cell,
        contestant: &str,
        seed: u64,
        reason: &str,
    ) -> io::Result<()> {
        let fields =
            json!({"cell": cell.name, "contestant": contestant, "seed": seed, "reason": reason});
        self.write("failed", &fields, json!({}))
    }

    /// The medians of one contestant in one cell.
    ///
    /// # Errors
    ///
    /// Those of writing to the file.
    pub fn medians(&mut self, cell: &Cell, group: &Group) -> io::Result<()> {
        let Some(numbers) = group.numbers(cell) else {
            return Ok(());
        };
        let fields = json!({
            "cell": cell.name,
            "description": cell.description(),
            "clock": cell.clock,
            "contestant": group.contestant,
        });
        self.write("medians", &numbers, fields)
    }

    /// A line of a kind.
    pub(crate) fn write(
        &mut self,
        event: &str,
        object: &impl Serialize,
        extra: Value,
    ) -> io::Result<()> {
        let mut line = json!({"v": 1, "event": event});
        for part in [extra, serde_json::to_value(object)?] {
            if let (Value::Object(line), Value::Object(part)) = (&mut line, part) {
                line.extend(part);
            }
        }
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes())
    }
}

impl Drop for JsonLines {
    /// Not only by closing: a program that is started at this moment has the file a little longer.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// What a file of results tells; half a line at its end is nothing.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Where the last runs were made.
    pub environment: Environment,
    /// Contestants that could not run there then, and why.
    pub missing: Vec<(String, String)>,
    /// All runs, in their order.
    pub runs: Vec<Run>,
    /// Runs without a result, in their order.
    pub failures: Vec<Failure>,
}

/// A run without a result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Failure {
    /// The cell.
    pub cell: String,
    /// The contestant.
    pub contestant: String,
    /// The link's seed.
    pub seed: u64,
    /// Why there is none.
    pub reason: String,
}

/// Reads a file of results.
///
/// # Errors
///
/// Those of reading; `InvalidData` for a file of something else.
pub fn recorded(path: &Path) -> io::Result<Recorded> {
    recorded_with(path, recorded_in)
}

/// Reads a file of other lines, as [`JsonLines::open_with`] does.
pub(crate) fn recorded_with<R>(
    path: &Path,
    read: impl FnOnce(&[u8]) -> io::Result<R>,
) -> io::Result<R> {
    read(halves(&fs::read(path)?).0)
}

/// Whole lines, and what comes behind them.
fn halves(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    text.split_at(end.map_or(0, |last| last + 1))
}

pub(crate) fn something_else() -> io::Error {
    let what = "there is a file of something else under this name";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn recorded_in(text: &[u8]) -> io::Result<Recorded> {
    let mut recorded = Recorded::default();
    for line in text.split(|byte| *byte == b'\n') {
        if line.is_empty() {
            continue;
        }
        let event: Value = serde_json::from_slice(line)
            .ok()
            .filter(|event: &Value| event["event"].is_string())
            .ok_or_else(something_else)?;
        match event["event"].as_str() {
            Some("environment") => {
                recorded.missing.clear();
                recorded.environment = Environment::deserialize(event).unwrap_or_default();
            }
            Some("skipped") => {
                let word = |name| event[name].as_str().unwrap_or_default().to_owned();
                recorded.missing.push((word("contestant"), word("reason")));
            }
            // A run that another version has written, and that cannot be read, is passed over.
            Some("run") => {
                // Older runs do not tell it themselves.
                let is_told = event.get("made").is_some();
                recorded
                    .runs
                    .extend(Run::deserialize(event).ok().map(|mut run| {
                        if !is_told {
                            run.made = recorded.environment.made.clone();
                        }
                        run
                    }));
            }
            Some("failed") => recorded.failures.extend(Failure::deserialize(event).ok()),
            _ => {}
        }
    }
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{CellSet, run::tests::example};

    fn scenario() -> Scenario {
        Scenario {
            title: "T".into(),
            about: String::new(),
            cells: Vec::new(),
            contestants: Vec::new(),
            seeds: vec![1, 2],
            repetitions: 1,
            limit: None,
        }
    }

    #[test]
    fn half_a_line_is_cut_off_and_the_rest_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/results.ndjson");
        let (mut lines, none) = JsonLines::open(&path).unwrap();
        assert!(none.runs.is_empty());
        lines.run(&example("x", 1)).unwrap();
        drop(lines);
        let whole = fs::read_to_string(&path).unwrap();
        // Also where hardly anything of it has come, or all but its end.
        for half in [1, START.len() + 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, format!("{whole}{}", &whole[..half])).unwrap();
            let (mut lines, recorded) = JsonLines::open(&path).unwrap();
            assert_eq!(recorded.runs, [example("x", 1)]);
            lines.run(&example("x", 2)).unwrap();
            drop(lines);
            assert_eq!(JsonLines::open(&path).unwrap().1.runs.len(), 2);
        }
    }

    #[test]
    fn a_file_of_something_else_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.ndjson");
        let mut lines = JsonLines::open(&path).unwrap().0;
        lines.skipped("y", "not there").unwrap();
        drop(lines);
        let ours = fs::read_to_string(&path).unwrap();
        for text in ["a letter\n", "a letter", r#"{"v":1,"a":2}"#, "[1]"] {
            for text in [text.to_owned(), format!("{ours}{text}")] {
                fs::write(&path, &text).unwrap();
                let error = JsonLines::open(&path).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}");
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
        }
    }

    #[test]
    fn only_results_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.ndjson");
        let mut lines = JsonLines::replace(&path).unwrap();
        lines.run(&example("x", 1)).unwrap();
        // Another run writes there.
        assert!(JsonLines::replace(&path).is_err());
        assert_eq!(recorded(&path).unwrap().runs.len(), 1);
        drop(lines);
        let mut lines = JsonLines::replace(&path).unwrap();
        lines.run(&example("x", 2)).unwrap();
        assert_eq!(recorded(&path).unwrap().runs, [example("x", 2)]);
        drop(lines);
        fs::write(&path, "a letter").unwrap();
        let error = JsonLines::replace(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    }

    #[test]
    fn one_run_at_a_time_writes_to_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.ndjson");
        let mut lines = JsonLines::open(&path).unwrap().0;
        let error = JsonLines::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        lines.skipped("y", "not there").unwrap();
        // Those who only read it may.
        assert_eq!(recorded(&path).unwrap().missing.len(), 1);
        drop(lines);
        assert!(JsonLines::open(&path).is_ok());
    }

    #[test]
    fn lines_can_be_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.ndjson");
        let mut lines = JsonLines::open(&path).unwrap().0;
        let cell = &CellSet::Slice.cells(50_000_000, Duration::from_secs(1))[2];
        let environment = Environment::detect();
        let group = Group {
            runs: vec![example("x", 1)],
            ..Group::new("x")
        };
        lines.environment(&environment, &[], &scenario()).unwrap();
        lines.skipped("y", "not there").unwrap();
        lines.run(&group.runs[0]).unwrap();
        lines.failed(cell, "z", 1, "why").unwrap();
        lines.medians(cell, &group).unwrap();
        lines.medians(cell, &Group::new("z")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let events: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let names: Vec<_> = events
            .iter()
            .map(|event| event["event"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["environment", "skipped", "run", "failed", "medians"]
        );
        assert_eq!(events[0]["seeds"], json!([1, 2]));
        assert_eq!(events[2]["bytes"], 50_000_000);
        assert_eq!(events[2]["wire"]["queue_drops"], 400);
        assert_eq!(events[2]["validity"], "valid");
        assert_eq!(events[4]["goodput_mbit_s"], 150.0);
    }
}
