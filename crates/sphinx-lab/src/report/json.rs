//! One JSON object per line.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{Cell, Contestant, Group, Run, machine::Environment};

/// A file of results. Every line is written at once, so that what is there stays there when the
/// program is interrupted.
#[derive(Debug)]
pub struct JsonLines {
    file: File,
}

impl JsonLines {
    /// Creates the file.
    ///
    /// # Errors
    ///
    /// Those of creating a file.
    pub fn create(path: &Path) -> io::Result<JsonLines> {
        let file = File::create(path)?;
        Ok(JsonLines { file })
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
        seeds: &[u64],
    ) -> io::Result<()> {
        let settings: Value = contestants
            .iter()
            .map(|contestant| (contestant.name().to_owned(), json!(contestant.settings())))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let fields = json!({"contestants": settings, "seeds": seeds});
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
            "contestant": group.contestant,
        });
        self.write("medians", &numbers, fields)
    }

    fn write(&mut self, event: &str, object: &impl Serialize, extra: Value) -> io::Result<()> {
        let mut line = json!({"v": 1, "event": event});
        for part in [extra, serde_json::to_value(object)?] {
            if let (Value::Object(line), Value::Object(part)) = (&mut line, part) {
                line.extend(part);
            }
        }
        writeln!(self.file, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{CellSet, run::tests::example};

    #[test]
    fn lines_can_be_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.ndjson");
        let mut lines = JsonLines::create(&path).unwrap();
        let cell = &CellSet::Slice.cells(50_000_000, Duration::from_secs(1))[2];
        let environment = Environment::detect();
        let group = Group {
            runs: vec![example("x", 1)],
            ..Group::new("x")
        };
        lines.environment(&environment, &[], &[1, 2]).unwrap();
        lines.skipped("y", "not there").unwrap();
        lines.run(&group.runs[0]).unwrap();
        lines.failed(cell, "z", 1, "why").unwrap();
        lines.medians(cell, &group).unwrap();
        lines.medians(cell, &Group::new("z")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
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
