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
    Cell, Group, Run, RunError, Testbed,
    machine::Environment,
    peers::{self, PeerError},
    report::{JsonLines, table},
    runner::{self, Observer, Plan, Progress},
};

use self::args::{Arguments, Command};

/// Exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Peer(peer)) = &arguments.command {
        let more = |_, _: &_| Err(PeerError::Cannot("play this role"));
        return match peers::watch_standard_input() {
            Ok(()) if peers::run(peer, more) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
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
    let scenario = plan::scenario(arguments)?;
    if arguments.list {
        print!("{}", plan::names(&scenario));
        return Ok(ExitCode::SUCCESS);
    }
    // Both before any thread exists.
    let environment = Environment::detect();
    Testbed::prepare_process()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
    }
    if let Some(path) = &arguments.json {
        JsonLines::replace(path).with_context(|| format!("replacing {}", path.display()))?;
    }
    let mut tables = Tables(Progress::new(false));
    let file = arguments.json.as_deref();
    let results = runner::run(&scenario, file, environment, &stop, &mut tables)?;
    Ok(match results.interrupted {
        true => ExitCode::from(INTERRUPTED),
        false => ExitCode::SUCCESS,
    })
}

/// Progress, and a table after each cell.
struct Tables(Progress);

impl Observer for Tables {
    fn begin(&mut self, plan: &Plan<'_>) {
        self.0.begin(plan);
    }

    fn run(&mut self, cell: &Cell, contestant: &str, seed: u64) {
        self.0.run(cell, contestant, seed);
    }

    fn ended(
        &mut self,
        cell: &Cell,
        contestant: &str,
        result: &Result<Run, RunError>,
        is_last: bool,
    ) {
        self.0.ended(cell, contestant, result, is_last);
    }

    fn cell(&mut self, cell: &Cell, groups: &[Group]) {
        println!("{}", table(cell, groups));
    }
}
