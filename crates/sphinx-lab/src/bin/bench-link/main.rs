//! `bench-link`: the comparison on the emulated link, by one command.

#![forbid(unsafe_code)]

mod args;
mod plan;

use std::{
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context, Result};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use sphinx_lab::{
    Cell, Contestant, Experiment, Group, RunError, Testbed,
    machine::Environment,
    peers,
    report::{JsonLines, table},
};

use self::{
    args::{Arguments, Command},
    plan::Plan,
};

/// Exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Peer { peer }) = &arguments.command {
        return match peers::watch_standard_input() {
            Ok(()) => peers::run(peer),
            Err(_) => ExitCode::FAILURE,
        };
    }
    match bench(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench-link: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> Result<ExitCode> {
    let plan = Plan::new(arguments)?;
    if arguments.list {
        print!("{}", plan.names());
        return Ok(ExitCode::SUCCESS);
    }
    // Both before any thread exists.
    let environment = Environment::detect();
    Testbed::prepare_process()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
    }
    let (contestants, skipped) = plan.contestants_that_run();
    let mut output = Output {
        json: match &arguments.json {
            Some(path) => Some(
                JsonLines::create(path).with_context(|| format!("writing {}", path.display()))?,
            ),
            None => None,
        },
    };
    let Environment {
        kernel, cpu, cores, ..
    } = &environment;
    println!("{cpu}, {cores} cores, Linux {kernel}");
    for (name, reason) in &skipped {
        println!("skipped: {name} ({reason})");
    }
    println!("{}\n", plan.expectation(contestants.len()));
    output.with(|json| json.environment(&environment, &contestants, &plan.seeds))?;
    for (name, reason) in &skipped {
        output.with(|json| json.skipped(name, reason))?;
    }
    for cell in &plan.cells {
        let finished = measure(cell, &contestants, &plan, &stop, &mut output)?;
        if !finished {
            return Ok(ExitCode::from(INTERRUPTED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures one cell and prints its table; false after an interruption.
fn measure(
    cell: &Cell,
    contestants: &[&dyn Contestant],
    plan: &Plan,
    stop: &AtomicBool,
    output: &mut Output,
) -> Result<bool> {
    let experiment = Experiment {
        limit: plan.limit(cell),
    };
    let mut groups: Vec<Group> = contestants
        .iter()
        .map(|one| Group::new(one.name()))
        .collect();
    let mut finished = true;
    'seeds: for &seed in &plan.seeds {
        // Side by side in time, so that a change of the machine meets all contestants.
        for (contestant, group) in contestants.iter().zip(&mut groups) {
            let name = contestant.name();
            eprint!("{} {name}, seed {seed}: ", cell.name);
            match experiment.run(cell, *contestant, seed, stop) {
                Ok(run) => {
                    let others = run.cpu.others.unwrap_or(f64::NAN);
                    eprintln!(
                        "{:.1} Mbit/s, {:?}, others {others:.2} cores, late {:.2} ms (p99)",
                        run.goodput_mbit_s, run.validity, run.lateness.p99_ms
                    );
                    output.with(|json| json.run(&run))?;
                    group.runs.push(run);
                }
                Err(RunError::Interrupted) => {
                    eprintln!("interrupted");
                    finished = false;
                    break 'seeds;
                }
                Err(error) => {
                    eprintln!("{error}");
                    let reason = error.to_string();
                    output.with(|json| json.failed(cell, name, seed, &reason))?;
                    group.failures.push(reason);
                }
            }
        }
    }
    for group in &groups {
        output.with(|json| json.medians(cell, group))?;
    }
    println!("{}", table(cell, &groups));
    Ok(finished)
}

/// The file for programs, if one is wanted.
struct Output {
    json: Option<JsonLines>,
}

impl Output {
    fn with(&mut self, write: impl FnOnce(&mut JsonLines) -> std::io::Result<()>) -> Result<()> {
        self.json
            .as_mut()
            .map_or(Ok(()), write)
            .context("writing the results")
    }
}
