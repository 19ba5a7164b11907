//! Runs of many cases, some at once, each on file as soon as it is made.

use std::{
    fs::{self, File},
    io::{self, Write},
    sync::{Condvar, Mutex, PoisonError, atomic::Ordering},
    thread,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Sheet, Studio};
use crate::{machine::Made, runner::ScenarioFailure};

/// What is run once.
pub(super) trait Case: Sync + Send {
    /// What comes of it.
    type Run: Serialize + DeserializeOwned + Send;

    /// In a few words.
    fn name(&self) -> String;

    /// Whether a run is one of this case.
    fn is_of(&self, run: &Self::Run) -> bool;

    /// Of those that run at once, it takes the places of so many.
    fn places(&self) -> usize {
        1
    }

    /// Runs it; else, why that could not be.
    fn run(&self, studio: &Studio<'_>) -> Result<Self::Run, String>;

    /// What is said when it has been run.
    fn result(run: &Self::Run) -> String;
}

/// Runs the cases that are not on file yet, `at_once` at a time, in their order; returns these and those on file. None after an
/// interruption. The file is called `NAME.ndjson`.
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
    let runs: Vec<Line<C::Run>> = match fs::read_to_string(&path) {
        // A line that was cut off is measured again.
        Ok(text) => text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    let mut cases = cases;
    cases.retain(|case| !runs.iter().any(|line| case.is_of(&line.run)));
    // The first ones come last off the stack.
    cases.reverse();
    fs::create_dir_all(studio.directory).map_err(failed)?;
    let file = File::options().create(true).append(true).open(&path);
    let work = Mutex::new(Work {
        cases,
        runs,
        file: file.map_err(failed)?,
        missing: Vec::new(),
        free: at_once,
    });
    let freed = Condvar::new();
    let written = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(|| one_after_the_other(studio, at_once, &work, &freed)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            thread.join().unwrap_or_else(panicked)
        })
    });
    written.map_err(failed)?;
    let work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, reason) in work.missing {
        sheet.missing(name, reason);
    }
    for line in &work.runs {
        sheet.made(line.made.clone());
    }
    let runs = work.runs.into_iter().map(|line| line.run).collect();
    Ok((!studio.stop.load(Ordering::SeqCst)).then_some(runs))
}

fn one_after_the_other<C: Case>(
    studio: &Studio<'_>,
    at_once: usize,
    work: &Mutex<Work<C>>,
    freed: &Condvar,
) -> io::Result<()> {
    let lock = || work.lock().unwrap_or_else(PoisonError::into_inner);
    let places = |case: &C| case.places().min(at_once);
    loop {
        let has_no_room = |work: &mut Work<C>| {
            let next = work.cases.last();
            next.is_some_and(|case| places(case) > work.free)
        };
        let mut taken =
            (freed.wait_while(lock(), has_no_room)).unwrap_or_else(PoisonError::into_inner);
        // Whoever has waited for room may have been told to stop meanwhile.
        if studio.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let Some(case) = taken.cases.pop() else {
            return Ok(());
        };
        taken.free -= places(&case);
        drop(taken);
        let outcome = case.run(studio);
        lock().free += places(&case);
        freed.notify_all();
        if studio.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let name = case.name();
        match outcome {
            Ok(run) => {
                studio.progress.say(&format!("{name}: {}", C::result(&run)));
                let line = Line {
                    run,
                    made: studio.environment.made.clone(),
                };
                let mut text = serde_json::to_vec(&line)?;
                text.push(b'\n');
                let mut work = lock();
                work.file.write_all(&text)?;
                work.runs.push(line);
            }
            Err(reason) => {
                studio.progress.say(&format!("{name}: {reason}"));
                lock().missing.push((name, reason));
            }
        }
    }
}

/// A line of the file.
#[derive(Deserialize, Serialize)]
struct Line<R> {
    #[serde(flatten)]
    run: R,
    #[serde(default)]
    made: Made,
}

/// What the threads share.
struct Work<C: Case> {
    cases: Vec<C>,
    runs: Vec<Line<C::Run>>,
    file: File,
    /// Cases that could not be run, and why.
    missing: Vec<(String, String)>,
    /// So many more may run.
    free: usize,
}
