//! `sphx lab run`, `figure` and `report`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sphinx_lab::{
    Clock, Group, TestbedError,
    contestants::Programs,
    figures::{self, Figure, PAPER_SCALE_CORES, Studio, Verdict},
    machine::Environment,
    report::{examine, site, table},
    runner::{self, MISSING, Progress, Results, ScenarioFailure, minutes},
    scenario::Scenario,
};
use sphinx_transport::ErrorKind;

use super::Context;
use crate::args::experiments::{FigureArgs, ReportArgs, RunArgs, Scale, Which};
use crate::failure::{Failure, Outcome, PARTIAL, fail, fail_hint, local_io, usage};
use crate::report::Event;
use crate::signals::Registration;
use crate::text::printable;

/// Runs a scenario and prints a table for every cell. Returns the exit code.
pub(super) fn run(
    args: &RunArgs,
    namespaces: Option<Result<(), TestbedError>>,
    context: &Context,
) -> Outcome<u8> {
    let scenario = read(&args.scenario, args.quick)?;
    if scenario.clock() == Clock::Real {
        allowed(namespaces)?;
    }
    let file = (args.results.clone()).unwrap_or_else(|| results_of(&args.scenario));
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
    let failed = failed(&results).count();
    let code = exit_code(&results)?;
    context.reporter.event(
        Event::new("done")
            .with("results", file.display().to_string())
            .with("missing", pairs(&results.missing))
            .with("failed", failed),
    );
    context
        .reporter
        .note(&format!("Every run: {}", file.display()));
    if failed > 0 {
        context.reporter.note(&format!(
            "sphx: runs that failed: {failed}; the same command makes them again"
        ));
    }
    Ok(code)
}

/// The contestants of every cell.
fn groups(results: &Results) -> impl Iterator<Item = &Group> {
    results.cells.iter().flat_map(|(_, groups)| groups)
}

/// Why runs failed, and whose they were. What a contestant cannot carry is no failure: it is missing.
fn failed(results: &Results) -> impl Iterator<Item = (&str, &str)> {
    reasons(results).filter(|(_, reason)| !reason.starts_with(MISSING))
}

/// Why runs have no result.
fn reasons(results: &Results) -> impl Iterator<Item = (&str, &str)> {
    groups(results).flat_map(|group| {
        let reasons = group.failures.iter();
        reasons.map(move |reason| (group.contestant.as_str(), reason.as_str()))
    })
}

/// The exit code of a scenario of which at least one run has a result; otherwise why none has.
fn exit_code(results: &Results) -> Outcome<u8> {
    if groups(results).any(|group| !group.runs.is_empty()) {
        return Ok(match failed(results).next() {
            None => 0,
            Some(_) => PARTIAL,
        });
    }
    let missing = results.missing.iter();
    let missing = missing.map(|(name, reason)| (name.as_str(), reason.as_str()));
    // Failures of runs come first: they say more than contestants that could not run.
    let mut all = failed(results).chain(reasons(results)).chain(missing);
    Err(fail(
        ErrorKind::Other,
        match all.next() {
            Some((name, reason)) => format!("no run has a result: {name}: {reason}"),
            None => "no run has a result".to_owned(),
        },
    ))
}

/// Where the results of a scenario go by themselves: the whole of its name, which may have more points.
fn results_of(scenario: &Path) -> PathBuf {
    let mut name = scenario.file_stem().unwrap_or_default().to_owned();
    name.push(".ndjson");
    PathBuf::from(name)
}

fn read(path: &Path, quick: bool) -> Outcome<Scenario> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let text = fs::read_to_string(path).map_err(|error| local_io("read", &shown, error))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    Scenario::parse(&text, directory, &programs()?, quick).map_err(|error| {
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
pub(super) fn stop_flag(context: &Context) -> (Arc<AtomicBool>, Registration) {
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
        ScenarioFailure::Scenario(error) => usage(error.to_string()),
    }
}

/// Names and reasons as a JSON object.
fn pairs(missing: &[(String, String)]) -> serde_json::Value {
    let missing = missing.iter();
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
                    .with("clock", cell.clock.name())
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

/// Reproduces figures: says how long it takes, measures, draws, and checks what must hold.
pub(super) fn figure(
    args: &FigureArgs,
    namespaces: Option<Result<(), TestbedError>>,
    context: &Context,
) -> Outcome<()> {
    let figures = match args.scale {
        Some(scale) => vec![at_scale(args.figure, scale)?],
        None => chosen(args.figure, args.quick),
    };
    if args.seeds.is_some() {
        seeds_count(&figures)?;
    }
    let programs = programs()?;
    if figures.iter().any(|figure| figure.needs_link(&programs)) {
        allowed(namespaces)?;
    }
    let directory = match (&args.output_dir, args.quick) {
        (Some(directory), _) => directory.clone(),
        (None, false) => PathBuf::from("docs/results"),
        (None, true) => PathBuf::from("lab-quick"),
    };
    let (stop, _registration) = stop_flag(context);
    let environment = Environment::detect();
    if figures == [Figure::PaperScale] {
        enough(environment.cores)?;
    }
    let mut studio = Studio {
        programs: &programs,
        directory: &directory,
        quick: args.quick,
        seeds: args.seeds,
        recall: false,
        environment: &environment,
        stop: &stop,
        progress: Progress::new(args.output.quiet || args.output.json),
    };
    let (least, most) = studio.duration(&figures);
    let expectation = format!(
        "expected duration: {} to {} in all, if nothing is on file in {}",
        minutes(least),
        minutes(most),
        directory.display()
    );
    studio.progress.say(&expectation);
    let mut broken = Vec::new();
    for figure in figures {
        let outcome = studio.draw(figure).map_err(cannot_write)?;
        if outcome.interrupted {
            return Err(context.stop.failure());
        }
        broken.extend(show_figure(figure, &outcome, context));
    }
    match broken.first() {
        None => {
            let directory = directory.display().to_string();
            context
                .reporter
                .event(Event::new("done").with("directory", directory));
            Ok(())
        }
        Some(first) => Err(fail_hint(
            ErrorKind::Other,
            match broken.len() {
                1 => first.clone(),
                several => format!("{first}; and {} more", several - 1),
            },
            "a busy machine can be the reason: what the emulator was starved in is run again by the same command",
        )),
    }
}

/// Whether five pairs can be measured with so many processors.
fn enough(cores: usize) -> Outcome<()> {
    if cores >= PAPER_SCALE_CORES {
        return Ok(());
    }
    Err(fail_hint(
        ErrorKind::Other,
        format!(
            "five pairs at once take at least {PAPER_SCALE_CORES} processors; this process may use {cores}"
        ),
        "sphx lab figure 9 --scale model computes a model of them",
    ))
}

/// Whether a number of seeds changes anything of these figures.
fn seeds_count(figures: &[Figure]) -> Outcome<()> {
    match figures.iter().any(|figure| figure.has_seeds()) {
        true => Ok(()),
        false => Err(usage(
            "--seeds: the scenarios of this figure say their seeds themselves",
        )),
    }
}

fn at_scale(which: Which, scale: Scale) -> Outcome<Figure> {
    match (which, scale) {
        (Which::Nine, Scale::Paper) => Ok(Figure::PaperScale),
        (Which::Nine, Scale::Model) => Ok(Figure::ModelScale),
        _ => Err(usage("--scale goes with figure 9")),
    }
}

fn chosen(which: Which, quick: bool) -> Vec<Figure> {
    match which {
        Which::Seven => vec![Figure::Redundancy],
        Which::Eight => vec![Figure::CodingTime],
        Which::Nine => vec![Figure::Goodput],
        Which::Ten => vec![Figure::Blocks],
        Which::Eleven => vec![Figure::Video],
        Which::Table1 => vec![Figure::Table1],
        Which::Gap => vec![Figure::Gap],
        Which::Modes => vec![Figure::Modes],
        Which::Links => vec![Figure::Links],
        Which::Short => vec![Figure::Short],
        Which::Neighbours => vec![Figure::Neighbours],
        Which::Ablations => vec![Figure::Ablations],
        Which::Snoop => vec![Figure::Snoop],
        Which::SnoopBer => vec![Figure::SnoopBer],
        Which::SnoopDelay => vec![Figure::SnoopDelay],
        Which::SnoopWindow => vec![Figure::SnoopWindow],
        Which::SnoopWeb => vec![Figure::SnoopWeb],
        Which::Eln => vec![Figure::Eln],
        Which::Asymmetry => vec![Figure::Asymmetry],
        Which::LimitedTransmit => vec![Figure::LimitedTransmit],
        Which::Rsfc => vec![Figure::Rsfc],
        Which::RsfcWeb => vec![Figure::RsfcWeb],
        Which::RsfcAblation => vec![Figure::RsfcAblation],
        Which::RdbLoss => vec![Figure::RdbLoss],
        Which::RdbFairness => vec![Figure::RdbFairness],
        Which::RdbDpifl => vec![Figure::RdbDpifl],
        Which::RdbToday => vec![Figure::RdbToday],
        Which::MultipathBuffer => vec![Figure::MultipathBuffer],
        Which::MultipathFailover => vec![Figure::MultipathFailover],
        Which::MultipathToday => vec![Figure::MultipathToday],
        Which::MultipathDelay => vec![Figure::MultipathDelay],
        Which::MultipathComplexity => vec![Figure::MultipathComplexity],
        Which::MultipathChange => vec![Figure::MultipathChange],
        Which::MultipathFairness => vec![Figure::MultipathFairness],
        Which::All if quick => Figure::PAPER.to_vec(),
        // What needs a larger machine has to be asked for.
        Which::All => Figure::ALL
            .into_iter()
            .filter(|figure| *figure != Figure::PaperScale)
            .collect(),
    }
}

/// Prints a figure's table; what does not hold, and what it falls short of.
fn show_figure(figure: Figure, outcome: &figures::Outcome, context: &Context) -> Vec<String> {
    let reporter = &context.reporter;
    let files: Vec<String> = outcome
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let checks: Vec<serde_json::Value> = outcome
        .checks
        .iter()
        .map(|check| {
            serde_json::json!({
                "claim": check.claim,
                "measured": check.measured,
                "verdict": check.verdict,
            })
        })
        .collect();
    reporter.event(
        Event::new("figure")
            .with("figure", figure.argument())
            .with("files", files.clone())
            .with("missing", pairs(&outcome.missing))
            .with("checks", checks)
            .with("faults", outcome.faults.clone()),
    );
    if !reporter.json() {
        reporter.data(&format!(
            "{}\n{}",
            figure.name(),
            outcome.summary.trim_end()
        ));
        for check in &outcome.checks {
            let verdict = check.verdict.words();
            reporter.data(&format!("{verdict}: {} ({})", check.claim, check.measured));
        }
        for fault in &outcome.faults {
            reporter.data(&format!("falls short: {fault}"));
        }
        for (name, reason) in &outcome.missing {
            reporter.data(&format!("missing: {name} ({reason})"));
        }
        reporter.data(&format!("files: {}\n", files.join(" ")));
    }
    let checks = outcome.checks.iter();
    let broken = checks.filter(|check| check.verdict != Verdict::Holds);
    let broken = broken.map(|check| format!("{}: {}", check.verdict.words(), check.claim));
    broken.chain(outcome.faults.iter().cloned()).collect()
}

/// Renders the page.
pub(super) fn report(args: &ReportArgs, context: &Context) -> Outcome<()> {
    let shown = printable(args.directory.as_os_str().as_encoded_bytes());
    let (stop, _registration) = stop_flag(context);
    let examined =
        examine(&args.directory, &programs()?, args.redraw, &stop).map_err(cannot_write)?;
    if stop.load(Ordering::SeqCst) {
        return Err(context.stop.failure());
    }
    let (page, figures) =
        site(&args.directory).map_err(|error| local_io("render", &shown, error))?;
    let page = page.display().to_string();
    let names: Vec<&str> = figures.into_iter().map(Figure::argument).collect();
    let faults: Vec<String> = (examined.iter())
        .flat_map(|one| {
            one.faults
                .iter()
                .map(|fault| format!("{}: {fault}", one.figure.name()))
        })
        .collect();
    context.reporter.event(
        Event::new("done")
            .with("page", page.as_str())
            .with("figures", names)
            .with("faults", faults.clone()),
    );
    if !context.reporter.json() {
        for fault in &faults {
            context.reporter.data(&format!("falls short: {fault}"));
        }
        context.reporter.data(&page);
    }
    match faults.len() {
        0 => Ok(()),
        count => Err(fail_hint(
            ErrorKind::Other,
            format!("{count} faults in {shown}"),
            "sphx lab report --redraw writes pages from their runs; for the rest, run sphx lab figure again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_with_points_in_their_names_have_results_of_their_own() {
        let file = |scenario: &str| results_of(Path::new(scenario));
        assert_eq!(file("here/link.toml"), Path::new("link.ndjson"));
        assert_eq!(file("link.v1.toml"), Path::new("link.v1.ndjson"));
        assert_eq!(file("link.v2.toml"), Path::new("link.v2.ndjson"));
    }

    #[test]
    fn runs_that_fail_are_in_the_exit_code() {
        let text = "title = 'T'\nclock = 'virtual'\n[link]\nrate = '100mbit'\nrtt = '10ms'\n\
                    [workload]\nkind = 'bulk'\nbytes = '100kB'\n[[contestant]]\nkind = 'sphinx'\n";
        let programs = Programs::of_sphx(Path::new("/nowhere/sphx"));
        let scenario = Scenario::parse(text, Path::new(""), &programs, false).expect("a scenario");
        let (stop, mut progress) = (AtomicBool::new(false), Progress::new(true));
        let environment = Environment::detect();
        let run = runner::run(&scenario, None, environment, &stop, &mut progress);
        let mut results = run.expect("there is no file to write to");
        assert_eq!(exit_code(&results), Ok(0));
        let fail = |results: &mut Results, reason: &str| {
            results.cells[0].1[0].failures.push(reason.to_owned());
        };
        // A contestant that cannot carry the workload counts as missing, not as failed.
        fail(&mut results, &format!("{MISSING}does not speak HTTP"));
        assert_eq!(exit_code(&results), Ok(0));
        fail(&mut results, "the sender failed: no reason");
        assert_eq!(exit_code(&results), Ok(PARTIAL));
        assert_eq!(failed(&results).count(), 1);
        results.cells[0].1[0].runs.clear();
        let failure = exit_code(&results).expect_err("nothing was measured");
        let why = "no run has a result: sphinx: the sender failed: no reason";
        assert_eq!(
            (failure.kind, &failure.message[..]),
            (ErrorKind::Other, why)
        );
        results.cells.clear();
        let missing = ("tcp-bbr", "kernel TCP has no virtual time");
        results.missing = vec![(missing.0.to_owned(), missing.1.to_owned())];
        let failure = exit_code(&results).expect_err("nothing was measured");
        let why = "no run has a result: tcp-bbr: kernel TCP has no virtual time";
        assert_eq!(
            (failure.kind, &failure.message[..]),
            (ErrorKind::Other, why)
        );
    }

    #[test]
    fn seeds_that_nothing_heeds_are_refused() {
        for which in [Which::Nine, Which::Eight, Which::Table1, Which::Gap] {
            let refusal = seeds_count(&chosen(which, false)).expect_err("scenarios");
            assert_eq!(refusal.kind, ErrorKind::Usage);
        }
        for which in [Which::Seven, Which::Snoop, Which::RdbToday, Which::All] {
            assert!(seeds_count(&chosen(which, false)).is_ok(), "{which:?}");
        }
        assert!(seeds_count(&[Figure::ModelScale]).is_ok());
    }

    #[test]
    fn a_small_machine_is_refused() {
        assert!(enough(8).is_ok());
        let refusal = enough(7).expect_err("too few");
        assert_eq!(refusal.kind, ErrorKind::Other);
        assert!(at_scale(Which::Nine, Scale::Model).is_ok());
        let other = at_scale(Which::Ten, Scale::Paper).expect_err("figure 9 only");
        assert_eq!(other.kind, ErrorKind::Usage);
    }
}
