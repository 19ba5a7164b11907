//! `sphx lab run`, `figure` and `report`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sphinx_lab::{
    TestbedError,
    contestants::Programs,
    machine::Environment,
    report::table,
    runner::{self, Progress, Results, ScenarioFailure},
    scenario::Scenario,
};
use sphinx_transport::ErrorKind;

use super::Context;
use crate::args::experiments::{FigureArgs, ReportArgs, RunArgs};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};
use crate::report::Event;
use crate::signals::Registration;
use crate::text::printable;

/// Runs a scenario and prints a table for every cell.
pub(super) fn run(
    args: &RunArgs,
    namespaces: Option<Result<(), TestbedError>>,
    context: &Context,
) -> Outcome<()> {
    let scenario = read(&args.scenario, args.quick)?;
    allowed(namespaces)?;
    let file = args.results.clone().unwrap_or_else(|| {
        let name = args.scenario.file_stem().unwrap_or_default();
        PathBuf::from(name).with_extension("ndjson")
    });
    let (stop, _registration) = stop_flag(context);
    let mut progress = Progress::new(args.output.quiet || args.output.json);
    let results = runner::run(
        &scenario,
        Some(&file),
        Environment::detect(),
        &stop,
        &mut progress,
    );
    drop(progress);
    let results = results.map_err(cannot_write)?;
    show(&results, context);
    if results.interrupted {
        return Err(context.stop.failure());
    }
    context.reporter.event(
        Event::new("done")
            .with("results", file.display().to_string())
            .with("missing", missing(&results)),
    );
    context
        .reporter
        .note(&format!("Every run: {}", file.display()));
    Ok(())
}

fn read(path: &Path, quick: bool) -> Outcome<Scenario> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let text = fs::read_to_string(path).map_err(|error| local_io("read", &shown, error))?;
    Scenario::parse(&text, &programs()?, quick).map_err(|error| {
        fail_hint(
            ErrorKind::Usage,
            format!("{shown}: {}", error.to_string().trim_end()),
            "docs/lab.md describes scenario files",
        )
    })
}

fn programs() -> Outcome<Programs> {
    let own = std::env::current_exe().map_err(|error| local_io("find", "this program", error))?;
    Ok(Programs::of_sphx(&own))
}

fn allowed(namespaces: Option<Result<(), TestbedError>>) -> Outcome<()> {
    match namespaces {
        Some(Err(error)) => Err(fail_hint(
            ErrorKind::Other,
            error.to_string(),
            "the lab needs root, or unprivileged user namespaces, and /dev/net/tun; sphx demo runs \
             without",
        )),
        _ => Ok(()),
    }
}

/// Becomes true when the user wants to stop, for as long as the registration lives.
fn stop_flag(context: &Context) -> (Arc<AtomicBool>, Registration) {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let registration = context
        .stop
        .on_stop(move || flag.store(true, Ordering::SeqCst));
    (stop, registration)
}

fn cannot_write(failure: ScenarioFailure) -> Failure {
    match failure {
        ScenarioFailure::File { path, error } => {
            local_io("write", &path.display().to_string(), error)
        }
    }
}

fn missing(results: &Results) -> serde_json::Value {
    let missing = results.missing.iter();
    missing
        .map(|(name, reason)| (name.clone(), serde_json::Value::from(reason.clone())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn show(results: &Results, context: &Context) {
    for (cell, groups) in &results.cells {
        if !context.reporter.json() {
            context.reporter.data(&table(cell, groups));
            continue;
        }
        for group in groups {
            let numbers = group.numbers(cell).and_then(|numbers| {
                // Numbers and text can always be written.
                serde_json::to_value(numbers).ok()
            });
            context.reporter.event(
                Event::new("medians")
                    .with("cell", cell.name.as_str())
                    .with("description", cell.description())
                    .with("contestant", group.contestant.as_str())
                    .with("numbers", numbers)
                    .with("failures", group.failures.clone()),
            );
        }
    }
    for (name, reason) in &results.missing {
        context
            .reporter
            .note(&format!("missing: {name} ({reason})"));
    }
}

/// Reproduces figures.
pub(super) fn figure(
    _args: &FigureArgs,
    _namespaces: Option<Result<(), TestbedError>>,
    _context: &Context,
) -> Outcome<()> {
    Err(usage("not built yet"))
}

/// Renders the page.
pub(super) fn report(_args: &ReportArgs, _context: &Context) -> Outcome<()> {
    Err(fail(ErrorKind::Usage, "not built yet"))
}
