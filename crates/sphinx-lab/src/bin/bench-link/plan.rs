//! What will be run, and how long that takes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use sphinx_lab::{Cell, CellSet, Contestant, Workload, contestants};

use super::args::Arguments;

/// Until a bulk transfer is cut off.
const BULK_LIMIT: Duration = Duration::from_secs(10);
/// How long after the last block its arrival is awaited.
const BLOCKS_LIMIT: Duration = Duration::from_secs(2);
/// Making and removing namespaces, starting and ending processes.
const AROUND_A_RUN: Duration = Duration::from_millis(300);

/// The chosen cells, contestants and seeds.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) cells: Vec<Cell>,
    pub(crate) seeds: Vec<u64>,
    contestants: Vec<Box<dyn Contestant>>,
    limit: Option<Duration>,
}

impl Plan {
    pub(crate) fn new(arguments: &Arguments) -> Result<Plan> {
        Ok(Plan {
            cells: choose_cells(arguments)?,
            seeds: arguments.seeds.clone(),
            contestants: choose_contestants(arguments)?,
            limit: arguments.limit,
        })
    }

    pub(crate) fn names(&self) -> String {
        let mut text = String::new();
        for contestant in &self.contestants {
            text += &format!("{:16} {}\n", contestant.name(), contestant.settings());
        }
        for cell in &self.cells {
            text += &format!("{:16} {}\n", cell.name, cell.description());
        }
        text
    }

    /// The contestants that can run here, and why the others cannot.
    pub(crate) fn contestants_that_run(&self) -> (Vec<&dyn Contestant>, Vec<(String, String)>) {
        let mut skipped = Vec::new();
        let mut running = Vec::new();
        for contestant in &self.contestants {
            match contestant.check() {
                Ok(()) => running.push(contestant.as_ref()),
                Err(reason) => skipped.push((contestant.name().to_owned(), reason)),
            }
        }
        (running, skipped)
    }

    /// The [`Experiment::limit`](sphinx_lab::Experiment::limit) of a cell.
    pub(crate) fn limit(&self, cell: &Cell) -> Duration {
        self.limit.unwrap_or(match cell.workload {
            Workload::Bulk { .. } => BULK_LIMIT.max(shortest(cell) * 4),
            Workload::Blocks { .. } => BLOCKS_LIMIT,
        })
    }

    /// How long everything takes.
    pub(crate) fn expectation(&self, contestants: usize) -> String {
        let repetitions = contestants * self.seeds.len();
        let times = u32::try_from(repetitions).unwrap_or(u32::MAX);
        let over = |time: &dyn Fn(&Cell) -> Duration| {
            let each = self.cells.iter().map(|cell| time(cell) + AROUND_A_RUN);
            each.sum::<Duration>().saturating_mul(times)
        };
        let least = over(&shortest);
        let most = over(&|cell| cell.workload.schedule() + self.limit(cell));
        format!(
            "{} runs; expected duration {} to {}, depending on how many transfers are cut off",
            repetitions * self.cells.len(),
            minutes(least),
            minutes(most)
        )
    }
}

/// What a perfect transport would need.
fn shortest(cell: &Cell) -> Duration {
    let bits = cell.workload.bytes() as f64 * 8.0;
    let transfer = Duration::from_secs_f64(bits / cell.link.rate as f64);
    transfer.max(cell.workload.schedule())
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

fn choose_cells(arguments: &Arguments) -> Result<Vec<Cell>> {
    let cells = |set: CellSet| set.cells(arguments.bytes, arguments.block_time);
    if arguments.cells.is_empty() {
        return Ok(cells(arguments.set));
    }
    let all = cells(CellSet::Full);
    let names = arguments.cells.iter();
    names
        .map(|name| {
            let cell = all.iter().find(|cell| cell.name == *name);
            cell.cloned()
                .with_context(|| format!("no cell '{name}'; --set full --list shows all"))
        })
        .collect()
}

fn choose_contestants(arguments: &Arguments) -> Result<Vec<Box<dyn Contestant>>> {
    let program = std::env::current_exe().context("this program's own path")?;
    let sphx = match &arguments.sphx {
        Some(path) => path.clone(),
        None => program.with_file_name("sphx"),
    };
    let mut all = contestants::all(&program, &sphx);
    for variant in &arguments.sphinx {
        let options = variant.options.clone();
        all.push(Box::new(contestants::Sphinx::new(
            &sphx,
            &variant.name,
            options,
        )));
    }
    let wanted = &arguments.contestants;
    for name in wanted {
        if !all.iter().any(|contestant| contestant.name() == name) {
            bail!("no contestant '{name}'; --list shows all");
        }
    }
    all.retain(|contestant| {
        wanted.is_empty() || wanted.iter().any(|name| name == contestant.name())
    });
    Ok(all)
}
