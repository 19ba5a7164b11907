//! Runs of many cases, some at once, each on file as soon as it is made.

use std::{
    fmt, io,
    path::Path,
    sync::{Mutex, PoisonError, atomic::Ordering},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Sheet, Studio};
use crate::{
    machine::{Environment, Made},
    report::{JsonLines, recorded_with, something_else},
    runner::ScenarioFailure,
};

/// A case: what one run is made of.
pub(super) trait Case: Sync + Send {
    /// The result of one run.
    type Run: Serialize + DeserializeOwned + Send;

    /// The name of its row: what cases have in common that differ only in their seed.
    fn row(&self) -> String;

    /// The seed of its path.
    fn seed(&self) -> u64;

    /// How much is run, its time or its bytes, in a few words: less with `--quick`.
    fn extent(&self) -> String;

    /// Whether a run is one of this case, whatever its extent.
    fn is_of(&self, run: &Self::Run) -> bool;

    /// How many seeds its row needs, if not as many as other rows.
    fn seeds_min(&self) -> Option<usize> {
        None
    }

    /// How many of the places for runs at the same time it takes.
    fn places(&self) -> usize {
        1
    }

    /// Runs the case; an error says why there is no run.
    fn run(&self, studio: &Studio<'_>) -> Result<Self::Run, NoRun>;

    /// The line that is printed when it has been run.
    fn result(run: &Self::Run) -> String;
}

/// Why there is no run of a case.
#[derive(Debug)]
pub(super) enum NoRun {
    /// The emulator was starved, so that the link was another one.
    Starved,
    /// Anything else, in words.
    Failed(String),
}

impl From<String> for NoRun {
    fn from(reason: String) -> NoRun {
        NoRun::Failed(reason)
    }
}

impl From<&str> for NoRun {
    fn from(reason: &str) -> NoRun {
        NoRun::Failed(reason.to_owned())
    }
}

impl fmt::Display for NoRun {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            NoRun::Starved => "the emulator was starved",
            NoRun::Failed(reason) => reason,
        })
    }
}

/// Runs the cases that are not on file yet, `at_once` at a time, in their order; returns these and those on file. Of several runs of a
/// case the last counts, and only one of the commit and of the extent that is measured. None after an interruption. The file is called `NAME.ndjson`.
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
    let (file, on_file) = match studio.recall {
        true => (None, Recorded::read(&path).map_err(failed)?),
        false => {
            let opened = JsonLines::open_with(&path, Recorded::of_lines).map_err(failed)?;
            (Some(opened.0), opened.1)
        }
    };
    let is_wanted = |line: &Line<C::Run>| {
        // Older runs do not say how long they were: they are believed to be what their page says.
        let says_all = line.made.commit == studio.environment.made.commit && line.extent.is_some();
        studio.recall || says_all
    };
    let mut known: Vec<Known<C::Run>> = cases.iter().map(|_| Known::default()).collect();
    for line in on_file.lines {
        let case = cases.iter().position(|case| line.is_of(case));
        if let Some(case) = case.filter(|_| is_wanted(&line)) {
            known[case].hear(line.told.came(), line.made);
        }
    }
    let left: Vec<(usize, &C)> = (cases.iter().enumerate())
        .filter(|(case, _)| known[*case].run.is_none())
        .collect();
    // If nothing is measured now, the environment is that of the runs on file.
    let mut measured_on = on_file.environment;
    if let Some(file) = file
        && !left.is_empty()
    {
        measured_on = studio.environment.clone();
        for (case, came, made) in run(left, file, at_once, studio).map_err(failed)? {
            known[case].hear(came, made);
        }
    }
    sheet.environment(measured_on);
    let mut runs = Vec::new();
    for (case, known) in cases.iter().zip(known) {
        let row = case.row();
        sheet.expect(&row, case.seeds_min());
        (0..known.starved).for_each(|_| sheet.left_out(&row));
        if let Some((run, made)) = known.run {
            sheet.run(&row, (case.seed(), 0), made);
            runs.push(run);
        } else if let Some(reason) = known.failed {
            sheet.failed(&row, &reason);
            sheet.missing(name_of(case), reason);
        }
    }
    Ok((!studio.stop.load(Ordering::SeqCst)).then_some(runs))
}

fn name_of(case: &impl Case) -> String {
    format!("{}, seed {}", case.row(), case.seed())
}

/// The runs of a case on file, and those that failed.
struct Known<R> {
    commit: Option<String>,
    run: Option<(R, Made)>,
    /// How many runs did not count because the emulator was starved.
    starved: usize,
    /// Why the last attempt gave no run.
    failed: Option<String>,
}

impl<R> Default for Known<R> {
    fn default() -> Known<R> {
        Known {
            commit: None,
            run: None,
            starved: 0,
            failed: None,
        }
    }
}

impl<R> Known<R> {
    /// Takes what came of it. What came of it at another commit before is of the past.
    fn hear(&mut self, came: Result<R, NoRun>, made: Made) {
        if self.commit != made.commit {
            *self = Known {
                commit: made.commit.clone(),
                ..Known::default()
            };
        }
        match came {
            Ok(run) => self.run = Some((run, made)),
            Err(NoRun::Starved) => self.starved += 1,
            Err(NoRun::Failed(reason)) => self.failed = Some(reason),
        }
    }
}

/// The number of a case, what came of it, and under which conditions.
type Came<R> = (usize, Result<R, NoRun>, Made);

/// Runs cases, and puts on file what comes of them.
fn run<C: Case>(
    cases: Vec<(usize, &C)>,
    mut file: JsonLines,
    at_once: usize,
    studio: &Studio<'_>,
) -> io::Result<Vec<Came<C::Run>>> {
    file.write(ENVIRONMENT, studio.environment, json!({}))?;
    let heard = Mutex::new((file, Vec::new()));
    let takes = |(_, case): &(usize, &C)| case.places();
    crate::at_once(cases, at_once, takes, studio.stop, |(number, case)| {
        let came = case.run(studio);
        if studio.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let said = match &came {
            Ok(run) => C::result(run),
            Err(why) => why.to_string(),
        };
        studio.progress.say(&format!("{}: {said}", name_of(case)));
        let made = Made {
            at_once: at_once / case.places().clamp(1, at_once),
            ..studio.environment.made.clone()
        };
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, all) = &mut *heard;
        write_line(file, case, &came, &made)?;
        all.push((number, came, made));
        Ok::<(), io::Error>(())
    })?;
    let (_, all) = heard.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(all)
}

const ENVIRONMENT: &str = "environment";
const RUN: &str = "run";
const STARVED: &str = "starved";
const FAILED: &str = "failed";

fn write_line<C: Case>(
    file: &mut JsonLines,
    case: &C,
    came: &Result<C::Run, NoRun>,
    made: &Made,
) -> io::Result<()> {
    let how = json!({"extent": case.extent(), "made": made});
    let without = |reason| Without {
        row: case.row(),
        seed: case.seed(),
        reason,
    };
    match came {
        Ok(run) => file.write(RUN, run, how),
        Err(NoRun::Starved) => file.write(STARVED, &without(None), how),
        Err(NoRun::Failed(reason)) => file.write(FAILED, &without(Some(reason.clone())), how),
    }
}

/// A line of the file.
struct Line<R> {
    told: Told<R>,
    extent: Option<String>,
    made: Made,
}

/// What a line of the file says of a case.
enum Told<R> {
    Run(R),
    Without(Without),
}

impl<R> Told<R> {
    fn came(self) -> Result<R, NoRun> {
        match self {
            Told::Run(run) => Ok(run),
            Told::Without(without) => Err(match without.reason {
                None => NoRun::Starved,
                Some(reason) => NoRun::Failed(reason),
            }),
        }
    }
}

/// A case without a run.
#[derive(Deserialize, Serialize)]
struct Without {
    row: String,
    seed: u64,
    /// Why it failed; `None` if the emulator was starved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl<R> Line<R> {
    fn is_of(&self, case: &impl Case<Run = R>) -> bool {
        let is_case = match &self.told {
            Told::Run(run) => case.is_of(run),
            Told::Without(without) => without.seed == case.seed() && without.row == case.row(),
        };
        let is_extent = |extent: &String| *extent == case.extent();
        is_case && self.extent.as_ref().is_none_or(is_extent)
    }
}

/// The runs on file.
struct Recorded<R> {
    environment: Environment,
    lines: Vec<Line<R>>,
}

impl<R: DeserializeOwned> Recorded<R> {
    /// Reads a file of runs; empty if there is none.
    fn read(path: &Path) -> io::Result<Recorded<R>> {
        match recorded_with(path, Recorded::of_lines) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Recorded::of_lines(b""),
            read => read,
        }
    }

    /// Reads the lines of a file; an error if the file is of something else.
    fn of_lines(text: &[u8]) -> io::Result<Recorded<R>> {
        let mut recorded = Recorded {
            environment: Environment::default(),
            lines: Vec::new(),
        };
        for line in text.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let line: Value = serde_json::from_slice(line).map_err(|_| something_else())?;
            let kind = line["event"].as_str();
            let told = match kind {
                Some(ENVIRONMENT) => {
                    recorded.environment = Environment::deserialize(&line).unwrap_or_default();
                    None
                }
                Some(STARVED | FAILED) => Without::deserialize(&line).ok().map(Told::Without),
                // Older runs do not say that they are any.
                Some(RUN) | None => R::deserialize(&line).ok().map(Told::Run),
                Some(_) => None,
            };
            let made = &line["made"];
            let is_ours = kind.is_some() || made.is_object() || told.is_some();
            if !is_ours {
                return Err(something_else());
            }
            // A run of another version of the format is measured again.
            recorded.lines.extend(told.map(|told| Line {
                told,
                extent: line["extent"].as_str().map(str::to_owned),
                // Older lines do not say how the run was made: the file's environment does.
                made: Made::deserialize(made).unwrap_or_else(|_| recorded.environment.made.clone()),
            }));
        }
        Ok(recorded)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::PathBuf,
        sync::atomic::{AtomicBool, AtomicUsize},
    };

    use tempfile::TempDir;

    use super::*;
    use crate::{
        contestants::Programs,
        figures::{Figure, Outcome, sheet::Files},
        runner::Progress,
    };

    const NAME: &str = "throws";

    /// How a run of the test's case ends.
    #[derive(Clone, Copy)]
    enum Fate {
        Falls,
        Starves,
        Breaks,
    }

    struct Throw<'a> {
        seed: u64,
        places: usize,
        /// Depth in which a stone may fall; it is part of the case.
        depth: u64,
        fate: Fate,
        /// How many runs have been made.
        thrown: &'a AtomicUsize,
    }

    #[derive(Deserialize, Serialize)]
    struct Fell {
        stone: u64,
    }

    impl Case for Throw<'_> {
        type Run = Fell;

        fn row(&self) -> String {
            "stones".to_owned()
        }

        fn seed(&self) -> u64 {
            self.seed
        }

        fn extent(&self) -> String {
            format!("{} m", self.depth)
        }

        fn is_of(&self, run: &Fell) -> bool {
            run.stone == self.seed
        }

        fn seeds_min(&self) -> Option<usize> {
            Some(3)
        }

        fn places(&self) -> usize {
            self.places
        }

        fn run(&self, _: &Studio<'_>) -> Result<Fell, NoRun> {
            self.thrown.fetch_add(1, Ordering::SeqCst);
            match self.fate {
                Fate::Falls => Ok(Fell { stone: self.seed }),
                Fate::Starves => Err(NoRun::Starved),
                Fate::Breaks => Err("it broke".into()),
            }
        }

        fn result(_: &Fell) -> String {
            "fell".to_owned()
        }
    }

    /// The file and the counter of a test.
    struct Field {
        directory: TempDir,
        environment: Environment,
        thrown: AtomicUsize,
        depth: u64,
        places: usize,
        at_once: usize,
    }

    impl Field {
        fn new() -> Field {
            Field {
                directory: tempfile::tempdir().unwrap(),
                environment: Environment {
                    kernel: "6".to_owned(),
                    cpu: "a processor".to_owned(),
                    cores: 2,
                    made: Made {
                        commit: Some("0123456789ab".to_owned()),
                        ..Made::default()
                    },
                },
                thrown: AtomicUsize::new(0),
                depth: 10,
                places: 1,
                at_once: 1,
            }
        }

        fn file(&self) -> PathBuf {
            self.directory.path().join(format!("{NAME}.ndjson"))
        }

        /// Throws stones of these fates, or only looks at those that were thrown.
        fn make(&self, fates: &[Fate], recall: bool) -> Result<(Outcome, Files), ScenarioFailure> {
            let stop = AtomicBool::new(false);
            let nowhere = Environment::default();
            let studio = Studio {
                programs: &Programs::for_tests(),
                directory: self.directory.path(),
                quick: false,
                seeds: None,
                recall,
                environment: if recall { &nowhere } else { &self.environment },
                stop: &stop,
                progress: Progress::new(true),
            };
            let cases = (1..).zip(fates).map(|(seed, fate)| Throw {
                seed,
                places: self.places,
                depth: self.depth,
                fate: *fate,
                thrown: &self.thrown,
            });
            let mut sheet = Sheet::new(Figure::Neighbours, &studio);
            measure((NAME, cases.collect()), self.at_once, &studio, &mut sheet)?
                .expect("nobody stops it");
            Ok(sheet.finish())
        }

        /// What a page shows that was drawn when the stones were thrown; it is the same when it is drawn once more.
        fn draw(&self, fates: &[Fate]) -> String {
            let (_, files) = self.make(fates, false).unwrap();
            files.write(self.directory.path()).unwrap();
            let (_, again) = self.make(fates, true).unwrap();
            let differences = again.differences(self.directory.path()).unwrap();
            assert_eq!(differences, Vec::<String>::new());
            fs::read_to_string(self.directory.path().join("neighbours.md")).unwrap()
        }

        fn error(&self) -> io::ErrorKind {
            match self.make(&[Fate::Falls], false) {
                Err(ScenarioFailure::File { error, .. }) => error.kind(),
                other => panic!("{:?}", other.map(|(outcome, _)| outcome)),
            }
        }
    }

    #[test]
    fn what_has_no_run_is_told_by_the_file_too() {
        use Fate::{Breaks, Falls, Starves};
        let field = Field::new();
        let page = field.draw(&[Falls, Breaks, Starves]);
        assert!(page.contains("| 1     | 1; failed: it broke |"), "{page}");
        assert!(page.contains("- `stones, seed 2`: it broke"), "{page}");
        // What was starved is made again and still told of; what has failed is forgotten once there is a run.
        let page = field.draw(&[Falls, Falls, Starves]);
        assert!(page.contains("| 1–2   | 2        |"), "{page}");
        assert!(page.contains("as the emulator was starved"), "{page}");
        let page = field.draw(&[Falls, Falls, Falls]);
        assert!(page.contains("| 1–3   | 2        |"), "{page}");
        assert!(!page.contains("falls short"), "{page}");
        assert_eq!(field.thrown.load(Ordering::SeqCst), 3 + 2 + 1);
    }

    #[test]
    fn what_happened_at_another_commit_is_of_the_past() {
        let mut field = Field::new();
        field.draw(&[Fate::Breaks, Fate::Starves]);
        field.environment.made.commit = Some("ba9876543210".to_owned());
        let page = field.draw(&[Fate::Falls, Fate::Falls]);
        assert!(page.contains("| ba9876543210 | 1–2   | 0 "), "{page}");
    }

    #[test]
    fn runs_of_another_extent_are_not_those_of_a_case() {
        let mut field = Field::new();
        field.depth = 1;
        field.draw(&[Fate::Falls, Fate::Starves, Fate::Breaks]);
        field.depth = 10;
        let page = field.draw(&[Fate::Falls; 3]);
        assert!(page.contains("| 1–3   | 0 "), "{page}");
        assert_eq!(field.thrown.load(Ordering::SeqCst), 6);
        // The runs that do not count now are not lost: they need not be made again.
        field.depth = 1;
        field.draw(&[Fate::Falls]);
        assert_eq!(field.thrown.load(Ordering::SeqCst), 6);
    }

    #[test]
    fn the_page_names_the_machine_of_the_runs() {
        let mut field = Field::new();
        field.draw(&[Fate::Falls]);
        field.environment.cpu = "another one".to_owned();
        let page = field.draw(&[Fate::Falls]);
        assert!(page.contains("Measured on a processor"), "{page}");
    }

    #[test]
    fn runs_that_share_the_machine_say_so() {
        for (places, said) in [
            (1, ", up to 4 at once"),
            (2, ", up to 2 at once"),
            (4, ""),
            (9, ""),
        ] {
            let field = Field {
                places,
                at_once: 4,
                ..Field::new()
            };
            let page = field.draw(&[Fate::Falls]);
            assert!(page.contains(&format!("| 0123456789ab{said} |")), "{page}");
        }
    }

    #[test]
    fn half_a_line_is_cut_off_and_the_rest_is_kept() {
        let field = Field::new();
        field.draw(&[Fate::Falls]);
        let whole = fs::read_to_string(field.file()).unwrap();
        let run = whole.lines().last().unwrap().to_owned();
        for half in [1, run.len() / 2, run.len()] {
            fs::write(field.file(), format!("{whole}{}", &run[..half])).unwrap();
            let page = field.draw(&[Fate::Falls, Fate::Falls]);
            assert!(page.contains("| 1–2 "), "{page}");
            let text = fs::read_to_string(field.file()).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 4);
            assert!(lines[2].contains("environment"), "{text}");
        }
    }

    #[test]
    fn a_file_of_something_else_stays_as_it_is() {
        let field = Field::new();
        field.draw(&[Fate::Falls]);
        let ours = fs::read_to_string(field.file()).unwrap();
        for text in [
            "a letter\n",
            "a letter",
            r#"{"v":1,"a":2}"#,
            "[1]",
            "{\"a\":1}\n",
        ] {
            for text in [text.to_owned(), format!("{ours}{text}")] {
                fs::write(field.file(), &text).unwrap();
                assert_eq!(field.error(), io::ErrorKind::InvalidData, "{text}");
                assert_eq!(fs::read_to_string(field.file()).unwrap(), text);
            }
        }
    }

    #[test]
    fn one_call_at_a_time_writes_to_a_file() {
        let field = Field::new();
        let (file, _) = JsonLines::open(&field.file()).unwrap();
        assert_eq!(field.error(), io::ErrorKind::ResourceBusy);
        // A call that only reads the file may do so meanwhile.
        field.make(&[Fate::Falls], true).unwrap();
        drop(file);
        field.draw(&[Fate::Falls]);
    }

    #[test]
    fn older_runs_are_of_the_environment_before_them_and_count_where_nothing_is_run() {
        let mut field = Field::new();
        let text = "{\"event\":\"environment\",\"kernel\":\"6\",\"cpu\":\"old\",\"cores\":1,\"commit\":\"c0\"}\n{\"stone\":1}\n";
        fs::write(field.file(), text).unwrap();
        let (_, files) = field.make(&[Fate::Falls], true).unwrap();
        files.write(field.directory.path()).unwrap();
        let page = fs::read_to_string(field.directory.path().join("neighbours.md")).unwrap();
        assert!(page.contains("| c0     | 1     |"), "{page}");
        assert!(page.contains("Measured on old"), "{page}");
        field.environment.made.commit = Some("c0".to_owned());
        field.draw(&[Fate::Falls]);
        assert_eq!(field.thrown.load(Ordering::SeqCst), 1);
    }

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
