//! Runs a whole scenario: contestants in turn, those that leave room for each other at once; resumable, with everything on record.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{self, SendError, Sender},
    },
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use thiserror::Error;

use crate::{
    Cell, Clock, Contestant, Experiment, Group, Run, RunError, Validity, at_once,
    machine::{Environment, Made},
    report::{Failure, JsonLines, Recorded, recorded},
    scenario::{Scenario, ScenarioError},
};

/// How often a run is repeated at once because the emulator was starved.
const STARVED_AGAIN: u32 = 2;
/// At most one in so many of all runs is repeated: on a machine that is busy throughout, repeating does not help.
const STARVED_AGAIN_ONE_IN: usize = 4;

/// What the processors of the machine are divided into; a run takes as many as its traffic needs.
const PLACES_OF_A_PROCESSOR: usize = 2;
/// Payload that a place carries, in bits per second.
const PLACE_BITS: f64 = 50e6;

/// Stands before the reason why a contestant has no runs in a cell: it cannot carry what is asked for.
pub const MISSING: &str = "missing: ";

/// The results of a scenario.
#[derive(Debug)]
pub struct Results {
    /// The machine on which it was measured.
    pub environment: Environment,
    /// Contestants that cannot run here, and why.
    pub missing: Vec<(String, String)>,
    /// Every cell with its groups, in the order of the scenario.
    pub cells: Vec<(Cell, Vec<Group>)>,
    /// Whether the user stopped the scenario.
    pub interrupted: bool,
}

impl Results {
    /// The group of a contestant in a cell.
    pub fn group(&self, cell: &str, contestant: &str) -> Option<(&Cell, &Group)> {
        let (cell, groups) = self.cells.iter().find(|(one, _)| one.name == cell)?;
        let group = groups.iter().find(|group| group.contestant == contestant)?;
        Some((cell, group))
    }

    /// The contestants that can run here, in the order of the scenario.
    pub fn contestants(&self) -> impl Iterator<Item = &str> {
        let first = self.cells.first();
        let groups = first.into_iter().flat_map(|(_, groups)| groups);
        groups.map(|group| group.contestant.as_str())
    }
}

/// Why there are no results.
#[derive(Debug, Error)]
pub enum ScenarioFailure {
    /// There is no such experiment.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The file of results cannot be read or written.
    #[error("cannot write {path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Is told of the runs of a scenario as they go.
pub trait Observer {
    /// What is going to happen: how many runs there are, how many of them exist already, and what is
    /// missing.
    fn begin(&mut self, plan: &Plan<'_>);
    /// A run begins.
    fn run(&mut self, cell: &Cell, contestant: &str, seed: u64);
    /// A run has ended, or cannot begin. Unless `is_last`, it is repeated at once.
    fn ended(
        &mut self,
        cell: &Cell,
        contestant: &str,
        result: &Result<Run, RunError>,
        is_last: bool,
    );
    /// All runs of a cell have ended.
    fn cell(&mut self, cell: &Cell, groups: &[Group]);
}

/// What an observer is told first.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The experiment.
    pub scenario: &'a Scenario,
    /// Where it is measured.
    pub environment: &'a Environment,
    /// Contestants that run.
    pub contestants: usize,
    /// Contestants that cannot run here, and why.
    pub missing: &'a [(String, String)],
    /// Runs with a usable result on file.
    pub on_file: usize,
}

impl Plan<'_> {
    /// How much there is to do and how long it takes, in words.
    pub fn expectation(&self) -> String {
        let all = self.scenario.runs(self.contestants);
        let left = all.saturating_sub(self.on_file);
        let share = left as f64 / all.max(1) as f64;
        let (least, most) = duration(self.scenario, self.contestants, self.environment.cores);
        let done = match self.on_file {
            0 => String::new(),
            some => format!(" ({some} more are on file)"),
        };
        format!(
            "{left} runs{done}; expected duration {} to {}, depending on how many are cut off",
            minutes(least.mul_f64(share)),
            minutes(most.mul_f64(share))
        )
    }
}

/// A length of time for people.
pub fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

/// Runs a scenario; with a `file`, results are kept there, and what is there already (the same
/// contestant with the same settings on the same link) is not run again.
///
/// [`Testbed::prepare_process`](crate::Testbed::prepare_process) has to be called before.
///
/// # Errors
///
/// [`ScenarioFailure`]. A contestant that fails is part of the results.
pub fn run(
    scenario: &Scenario,
    file: Option<&Path>,
    environment: Environment,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Results, ScenarioFailure> {
    let mut record = Record::open(file, &environment.made)?;
    let mut running: Vec<&dyn Contestant> = Vec::new();
    let mut missing = Vec::new();
    for contestant in &scenario.contestants {
        match scenario.check(contestant.as_ref()) {
            Ok(()) => running.push(contestant.as_ref()),
            Err(reason) => missing.push((contestant.name().to_owned(), reason)),
        }
    }
    let on_file = jobs(scenario, &running)
        .filter(|job| record.has(job))
        .count();
    observer.begin(&Plan {
        scenario,
        environment: &environment,
        contestants: running.len(),
        missing: &missing,
        on_file,
    });
    let mut measured_on = environment.clone();
    if jobs(scenario, &running).count() > on_file {
        record.write(|lines| lines.environment(&environment, &running, scenario))?;
        for (name, reason) in &missing {
            record.write(|lines| lines.skipped(name, reason))?;
        }
    } else if record.lines.is_some() {
        measured_on = record.environment.clone();
    }
    let mut runner = Runner {
        scenario,
        cells: (scenario.cells.iter())
            .map(|_| CellRuns {
                groups: running.iter().map(|one| Group::new(one.name())).collect(),
                left: 0,
            })
            .collect(),
        record,
        observer,
    };
    let wanted = runner.recall(jobs(scenario, &running))?;
    let workers = Workers {
        scenario,
        made: environment.made.clone(),
        places: environment.cores * PLACES_OF_A_PROCESSOR,
        repeats: AtomicUsize::new(wanted.len().div_ceil(STARVED_AGAIN_ONE_IN)),
        stop,
    };
    let (said, heard) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| workers.run(wanted, said));
        // If this ends early, the workers find the channel closed and stop.
        heard.into_iter().try_for_each(|said| runner.hear(said))
    })?;
    let interrupted = runner.cells.iter().any(|cell| cell.left > 0);
    let has_runs = |runs: &CellRuns| runs.groups.iter().any(|group| !group.runs.is_empty());
    let cells = scenario.cells.iter().zip(runner.cells);
    let cells = cells.filter(|(_, runs)| !interrupted || has_runs(runs));
    Ok(Results {
        environment: measured_on,
        missing,
        cells: cells
            .map(|(cell, runs)| (cell.clone(), runs.groups))
            .collect(),
        interrupted,
    })
}

/// How long all runs of a scenario take on a machine of so many processors: at least and at most, for as many contestants.
pub fn duration(scenario: &Scenario, contestants: usize, cores: usize) -> (Duration, Duration) {
    let share = |cell: &Cell| {
        let places = (cores * PLACES_OF_A_PROCESSOR).max(1);
        takes(scenario, cell).min(places) as f64 / places as f64
    };
    let times = scenario.runs(contestants) / scenario.cells.len().max(1);
    let sum = |(least, most), cell: &Cell| {
        let runs = times as f64 * share(cell);
        let of_a_run = scenario.duration(cell);
        let (its_least, its_most) = (of_a_run.0.mul_f64(runs), of_a_run.1.mul_f64(runs));
        (least + its_least, most + its_most)
    };
    scenario.cells.iter().fold(Default::default(), sum)
}

/// The places that a run of a cell takes.
fn takes(scenario: &Scenario, cell: &Cell) -> usize {
    match cell.clock {
        Clock::Virtual => PLACES_OF_A_PROCESSOR,
        Clock::Real => ((scenario.load(cell) / PLACE_BITS).ceil() as usize).max(1),
    }
}

/// The results of a scenario as they are on file; nothing is run. Of several runs of one kind the last counts, and the starved ones
/// before it are left out. What the file says of missing contestants and of the machine is believed.
///
/// # Errors
///
/// [`ScenarioFailure::File`] if there is no such file, or it is one of something else.
pub fn recall(scenario: &Scenario, file: &Path) -> Result<Results, ScenarioFailure> {
    let failed = |error| ScenarioFailure::File {
        path: file.to_owned(),
        error,
    };
    let Recorded {
        environment,
        missing,
        runs,
        failures,
    } = recorded(file).map_err(failed)?;
    let running: Vec<&dyn Contestant> = (scenario.contestants.iter())
        .map(AsRef::as_ref)
        .filter(|contestant| !missing.iter().any(|(one, _)| one == contestant.name()))
        .collect();
    let cells = scenario.cells.iter().map(|cell| {
        let (description, details) = (cell.description(), cell.details());
        let limit = scenario.limit(cell);
        let groups = running.iter().map(|contestant| {
            let name = contestant.name();
            let mut group = Group::new(name);
            for (seed, repetition) in rounds(scenario) {
                let is_one = |run: &&Run| {
                    // Older runs do not tell the details.
                    let is_cell = run.cell == cell.name
                        && run.description == description
                        && (run.details.is_empty() || run.details == details);
                    let is_round = run.seed == seed && run.repetition == repetition;
                    // A contestant whose options have changed since shares only its name with those runs.
                    let is_contestant = run.contestant == name && contestant.is_of(&run.settings);
                    // Older runs do not tell when they would have been cut off.
                    let is_whole = run.limit_seconds.is_none() || run.is_within(cell, limit);
                    is_cell && is_round && is_contestant && is_whole
                };
                let found = || runs.iter().filter(is_one);
                // What was measured at another commit, or by another build of it, is of the past.
                let Some(last) = found().next_back() else {
                    let is_one = |failure: &&Failure| {
                        let is_group = failure.cell == cell.name && failure.contestant == name;
                        is_group && failure.seed == seed
                    };
                    let failure = failures.iter().rfind(is_one);
                    group.failures.extend(failure.map(|it| it.reason.clone()));
                    continue;
                };
                let now = found().filter(|run| {
                    run.made.commit == last.made.commit && run.settings == last.settings
                });
                let starved = now.clone().filter(|run| run.validity == Validity::Starved);
                let counting = now.filter(|run| run.validity != Validity::Starved);
                group.runs.extend(starved.cloned());
                group.runs.extend(counting.last().cloned());
            }
            group
        });
        (cell.clone(), groups.collect())
    });
    Ok(Results {
        environment,
        cells: cells.collect(),
        missing,
        interrupted: false,
    })
}

/// A scenario under way: what is there of it, and who is told.
struct Runner<'a> {
    scenario: &'a Scenario,
    cells: Vec<CellRuns>,
    record: Record,
    observer: &'a mut dyn Observer,
}

/// The runs of a cell so far.
struct CellRuns {
    /// The groups of the contestants that run, one for each.
    groups: Vec<Group>,
    /// Runs that are wanted and have not ended.
    left: usize,
}

impl Runner<'_> {
    /// Takes what is on file, and returns the jobs that are left.
    fn recall<'j>(
        &mut self,
        jobs: impl Iterator<Item = Job<'j>>,
    ) -> Result<Vec<Job<'j>>, ScenarioFailure> {
        let mut wanted = Vec::new();
        for job in jobs {
            let runs = &mut self.cells[job.cell_at];
            let group = &mut runs.groups[job.contestant_at];
            let (starved, last) = self.record.take(&job);
            // Starved runs of earlier calls are kept, so that they are reported as when pages are drawn from the file.
            group.runs.extend(starved);
            if let Some(run) = last {
                group.runs.push(run);
            } else if let Err(reason) = Experiment::check(job.cell, job.contestant) {
                let missing = format!("{MISSING}{reason}");
                let (name, seed) = (job.contestant.name(), job.seed);
                self.record
                    .write(|lines| lines.failed(job.cell, name, seed, &missing))?;
                group.failures.push(missing);
                let result = Err(RunError::Missing(reason));
                self.observer.ended(job.cell, name, &result, true);
            } else {
                runs.left += 1;
                wanted.push(job);
            }
        }
        for (cell, runs) in self.scenario.cells.iter().zip(&self.cells) {
            if runs.left == 0 {
                self.observer.cell(cell, &runs.groups);
            }
        }
        Ok(wanted)
    }

    /// Puts on file what a run has come to, and tells the observer.
    fn hear(&mut self, said: Said<'_>) -> Result<(), ScenarioFailure> {
        let (job, result, is_last) = match said {
            Said::Begins(job) => {
                let name = job.contestant.name();
                self.observer.run(job.cell, name, job.seed);
                return Ok(());
            }
            Said::Ended {
                job,
                result,
                is_last,
            } => (job, *result, is_last),
        };
        let (cell, name, seed) = (job.cell, job.contestant.name(), job.seed);
        self.observer.ended(cell, name, &result, is_last);
        let runs = &mut self.cells[job.cell_at];
        let group = &mut runs.groups[job.contestant_at];
        match result {
            Ok(run) => {
                self.record.write(|lines| lines.run(&run))?;
                group.runs.push(run);
            }
            Err(RunError::Interrupted) => return Ok(()),
            Err(error) => {
                let reason = error.to_string();
                self.record
                    .write(|lines| lines.failed(cell, name, seed, &reason))?;
                group.failures.push(reason);
            }
        }
        runs.left -= usize::from(is_last);
        if runs.left > 0 {
            return Ok(());
        }
        for group in &mut runs.groups {
            // Runs at the same time end in any order. They are put into the order of rounds, as figures drawn from the file have them.
            let rounds: Vec<_> = rounds(self.scenario).collect();
            let round = |run: &Run| {
                rounds
                    .iter()
                    .position(|it| *it == (run.seed, run.repetition))
            };
            group.runs.sort_by_key(round);
            self.record.write(|lines| lines.medians(cell, group))?;
        }
        self.observer.cell(cell, &runs.groups);
        Ok(())
    }
}

/// What the workers report of their runs.
enum Said<'a> {
    Begins(Job<'a>),
    Ended {
        job: Job<'a>,
        result: Box<Result<Run, RunError>>,
        /// False if the run was starved and is repeated at once.
        is_last: bool,
    },
}

/// The threads that run jobs.
struct Workers<'a> {
    scenario: &'a Scenario,
    made: Made,
    /// Places for jobs at the same time, in all.
    places: usize,
    /// Starved runs that may still be repeated.
    repeats: AtomicUsize,
    stop: &'a AtomicBool,
}

impl Workers<'_> {
    /// Runs jobs until there are none, the user stops them, or nobody listens.
    fn run<'j>(&self, jobs: Vec<Job<'j>>, said: Sender<Said<'j>>) {
        let takes = |job: &Job<'_>| takes(self.scenario, job.cell);
        let run = |job| self.job(job, &said);
        // Fails only if nobody listens any more, who then knows why.
        let _ = at_once(jobs, self.places, takes, self.stop, run);
    }

    /// One run, repeated if it is starved.
    fn job<'j>(&self, job: Job<'j>, said: &Sender<Said<'j>>) -> Result<(), SendError<Said<'j>>> {
        let takes = takes(self.scenario, job.cell).min(self.places);
        let experiment = Experiment {
            limit: job.limit,
            made: Made {
                at_once: self.places / takes,
                ..self.made.clone()
            },
        };
        for attempt in 0..=STARVED_AGAIN {
            said.send(Said::Begins(job))?;
            let mut result = experiment.run(job.cell, job.contestant, job.seed, self.stop);
            if let Ok(run) = &mut result {
                run.repetition = job.repetition;
            }
            let is_starved = matches!(&result, Ok(run) if run.validity == Validity::Starved);
            let is_last = !is_starved || attempt == STARVED_AGAIN || !self.may_repeat();
            said.send(Said::Ended {
                job,
                result: Box::new(result),
                is_last,
            })?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn may_repeat(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        self.repeats.fetch_update(order, order, one_less).is_ok()
    }
}

/// One run that is wanted.
#[derive(Clone, Copy)]
struct Job<'a> {
    cell: &'a Cell,
    contestant: &'a dyn Contestant,
    seed: u64,
    repetition: u32,
    /// The run is cut off after this time.
    limit: Duration,
    /// Which of the cells, and of the contestants that run.
    cell_at: usize,
    contestant_at: usize,
}

type Key = (String, String, String, String, u64, u32);

impl Job<'_> {
    /// What runs of it on file have in common, whatever their limit.
    fn key(&self) -> Key {
        let name = format!("{} {}", self.cell.name, self.contestant.name());
        (
            name,
            self.cell.description(),
            self.cell.details(),
            self.contestant.settings(),
            self.seed,
            self.repetition,
        )
    }
}

fn rounds(scenario: &Scenario) -> impl Iterator<Item = (u64, u32)> + '_ {
    let seeds = scenario.seeds.iter();
    seeds.flat_map(|seed| (0..scenario.repetitions).map(|repetition| (*seed, repetition)))
}

fn jobs<'a>(
    scenario: &'a Scenario,
    running: &'a [&'a dyn Contestant],
) -> impl Iterator<Item = Job<'a>> {
    let cells = scenario.cells.iter().enumerate();
    cells.flat_map(move |(cell_at, cell)| {
        rounds(scenario).flat_map(move |(seed, repetition)| {
            let running = running.iter().enumerate();
            running.map(move |(contestant_at, contestant)| Job {
                cell,
                contestant: *contestant,
                seed,
                repetition,
                limit: scenario.limit(cell),
                cell_at,
                contestant_at,
            })
        })
    })
}

/// The file of results, if there is one, and what it had.
struct Record {
    path: PathBuf,
    /// The environment in which its runs were made.
    environment: Environment,
    lines: Option<JsonLines>,
    runs: HashMap<Key, Vec<Run>>,
}

impl Record {
    /// What counts of it are runs of the same commit.
    fn open(file: Option<&Path>, made: &Made) -> Result<Record, ScenarioFailure> {
        let Some(path) = file else {
            return Ok(Record {
                path: PathBuf::new(),
                environment: Environment::default(),
                lines: None,
                runs: HashMap::new(),
            });
        };
        let opened = JsonLines::open(path).map_err(|error| ScenarioFailure::File {
            path: path.to_owned(),
            error,
        })?;
        let (lines, recorded) = opened;
        let mut runs = HashMap::<_, Vec<_>>::new();
        for run in recorded.runs {
            if run.made.commit != made.commit {
                continue;
            }
            let name = format!("{} {}", run.cell, run.contestant);
            let (description, details) = (run.description.clone(), run.details.clone());
            let settings = run.settings.clone();
            let key = (
                name,
                description,
                details,
                settings,
                run.seed,
                run.repetition,
            );
            runs.entry(key).or_default().push(run);
        }
        Ok(Record {
            path: path.to_owned(),
            environment: recorded.environment,
            runs,
            lines: Some(lines),
        })
    }

    /// Whether a usable result of a job is on file.
    fn has(&self, job: &Job<'_>) -> bool {
        let mut runs = self.runs.get(&job.key()).into_iter().flatten();
        runs.any(|run| run.is_within(job.cell, job.limit) && run.validity != Validity::Starved)
    }

    /// The runs of a job that are starved, and the last one that is not.
    fn take(&mut self, job: &Job<'_>) -> (Vec<Run>, Option<Run>) {
        let mut runs = self.runs.remove(&job.key()).unwrap_or_default();
        // Leaves out runs with another time limit: they were cut off and would not be now, or the other way round.
        runs.retain(|run| run.is_within(job.cell, job.limit));
        let (starved, mut others): (Vec<_>, Vec<_>) =
            (runs.into_iter()).partition(|run| run.validity == Validity::Starved);
        (starved, others.pop())
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut JsonLines) -> io::Result<()>,
    ) -> Result<(), ScenarioFailure> {
        let written = self.lines.as_mut().map_or(Ok(()), write);
        written.map_err(|error| ScenarioFailure::File {
            path: self.path.clone(),
            error,
        })
    }
}

/// Progress on standard error: a bar on a terminal, a line per run elsewhere.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
}

impl Progress {
    /// Nothing at all if `quiet`.
    pub fn new(quiet: bool) -> Progress {
        let terminal = io::IsTerminal::is_terminal(&io::stderr());
        Progress {
            bar: (terminal && !quiet).then(ProgressBar::hidden),
            lines: !terminal && !quiet,
        }
    }

    /// A line for people.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None if self.lines => eprintln!("{text}"),
            None => {}
        }
    }
}

impl Observer for Progress {
    fn begin(&mut self, plan: &Plan<'_>) {
        let Environment {
            kernel, cpu, cores, ..
        } = plan.environment;
        self.say(&format!(
            "{}\n{cpu}, {cores} cores, Linux {kernel}",
            plan.scenario.title
        ));
        for (name, reason) in plan.missing {
            self.say(&format!("missing: {name} ({reason})"));
        }
        self.say(&plan.expectation());
        if let Some(bar) = &mut self.bar {
            let runs = plan.scenario.runs(plan.contestants) - plan.on_file;
            *bar = ProgressBar::with_draw_target(Some(runs as u64), ProgressDrawTarget::stderr());
            let template = "{bar:30} {pos}/{len} {elapsed} {msg}";
            // The template is right; without it the bar only looks different.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        }
    }

    fn run(&mut self, cell: &Cell, contestant: &str, seed: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} {contestant}, seed {seed}", cell.name));
        }
    }

    fn ended(
        &mut self,
        cell: &Cell,
        contestant: &str,
        result: &Result<Run, RunError>,
        is_last: bool,
    ) {
        let name = &cell.name;
        match result {
            Ok(run) => {
                if self.lines {
                    let machine = match run.cpu {
                        None => cell.clock.label().to_owned(),
                        Some(cpu) => {
                            let others = cpu.others.map(|it| format!(", others {it:.2} cores"));
                            format!(
                                "{:?}{}, late {:.2} ms (p99)",
                                run.validity,
                                others.unwrap_or_default(),
                                run.lateness.p99_ms
                            )
                        }
                    };
                    self.say(&format!(
                        "{name} {contestant}, seed {}: {:.1} Mbit/s, {machine}",
                        run.seed, run.goodput_mbit_s
                    ));
                }
            }
            // What a contestant cannot carry is in the table, once for all seeds.
            Err(RunError::Missing(_)) => {}
            Err(error) => self.say(&format!("{name} {contestant}: {error}")),
        }
        if let Some(bar) = &self.bar {
            bar.inc(u64::from(is_last));
        }
    }

    fn cell(&mut self, _cell: &Cell, _groups: &[Group]) {}
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CellSet, run::tests::example};

    #[test]
    fn a_run_that_is_repeated_counts_once() {
        let mut progress = Progress {
            bar: Some(ProgressBar::hidden()),
            lines: false,
        };
        let cells = CellSet::Slice.cells(50_000_000, Duration::from_secs(24));
        let starved = Ok(example("x", 1));
        for is_last in [false, false, true] {
            progress.ended(&cells[0], "x", &starved, is_last);
        }
        // The bar waits for those that cannot run, too.
        let missing = Err(RunError::Missing("does not speak HTTP".to_owned()));
        progress.ended(&cells[0], "y", &missing, true);
        let bar = progress.bar.as_ref().expect("it has one");
        assert_eq!(bar.position(), 2);
    }
}
