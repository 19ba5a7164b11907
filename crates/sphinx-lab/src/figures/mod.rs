//! The paper's figures, and some of our own: the experiment, CSV, drawings and a page of text, by one
//! call each.
//!
//! Published numbers are those of the paper's text (IPCCC 2019, §4). Orderings that must hold on every
//! machine are [`Check`]s; absolute numbers never are.

/// A scenario of `crates/sphinx-lab/scenarios`: its name and its text.
macro_rules! scenario {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/scenarios/",
                $name,
                ".toml"
            )),
        )
    };
}

mod ablations;
mod account;
mod blocks;
mod bounded;
mod campaign;
mod claim;
mod codes;
mod curves;
mod eln;
mod fairness;
mod gap;
mod goodput;
mod links;
mod mixed;
mod modes;
mod multipath;
mod neighbours;
mod over_path;
mod paths;
mod profec;
mod rdb;
mod scale;
mod sheet;
mod short;
mod snoop;
mod snoop_ber;
mod snoop_delay;
mod snoop_window;
mod sweep;
mod table1;
mod video;
mod virtual_time;
mod wishes;

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use self::sheet::{Files, Sheet};
pub use self::{
    claim::{Check, Verdict},
    scale::CORES_MIN as PAPER_SCALE_CORES,
};
use crate::{
    Clock,
    contestants::Programs,
    machine::Environment,
    runner::{self, Progress, Results, ScenarioFailure},
    scenario::{Scenario, ScenarioError},
};

/// What can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Figure 7: redundancy against loss.
    Redundancy,
    /// Figure 8: coding time against symbol length.
    CodingTime,
    /// Figure 9: goodput against loss.
    Goodput,
    /// Figure 10: completion time of blocks against loss.
    Blocks,
    /// Figure 11: a player's buffer over time.
    Video,
    /// Table 1 as numbers.
    Table1,
    /// Figure 9 at the scale of the paper.
    PaperScale,
    /// A model of that, for machines that are too small.
    ModelScale,
    /// The paper's mode, one assumption at a time.
    Gap,
    /// What carries small messages.
    Modes,
    /// Links as people have them.
    Links,
    /// Transfers that are over before a path is known.
    Short,
    /// Flows that share a bottleneck.
    Neighbours,
    /// What other settings and mechanisms contribute.
    Ablations,
    /// What agents in the path do for kernel TCP.
    Snoop,
    /// Snoop against bit error rates.
    SnoopBer,
    /// Snoop against the delay of the wired part.
    SnoopDelay,
    /// Snoop: the sender's congestion window over time.
    SnoopWindow,
    /// Snoop: small objects over a hop with bad periods.
    SnoopWeb,
    /// What agents on both sides of a hop do for uploads.
    Eln,
    /// Transfers whose acknowledgements have a thin way.
    Asymmetry,
    /// What Limited Transmit is worth.
    LimitedTransmit,
    /// Uploads that do not fill their senders' links.
    Rsfc,
    /// RSFC: web pages beside an upload.
    RsfcWeb,
    /// RSFC: how long packets may wait in the queue.
    RsfcAblation,
    /// What RDB does for thin streams that lose every tenth packet.
    RdbLoss,
    /// RDB: thin streams beside greedy ones.
    RdbFairness,
    /// RDB: which streams count as thin.
    RdbDpifl,
    /// RDB over paths of today.
    RdbToday,
    /// Several paths and a bounded receive buffer.
    MultipathBuffer,
    /// Multipath: a path that falls silent.
    MultipathFailover,
    /// Several paths as people have them.
    MultipathToday,
    /// What bytes wait for in a bounded receive buffer.
    MultipathDelay,
    /// What coding over several paths costs.
    MultipathComplexity,
    /// Multipath: paths whose losses change.
    MultipathChange,
    /// Paths that meet in one bottleneck.
    MultipathFairness,
}

impl Figure {
    /// The figures of the paper.
    pub const PAPER: [Figure; 6] = [
        Figure::Table1,
        Figure::Redundancy,
        Figure::CodingTime,
        Figure::Goodput,
        Figure::Blocks,
        Figure::Video,
    ];

    /// All figures, in the order of the page.
    pub const ALL: [Figure; 36] = [
        Figure::Table1,
        Figure::Redundancy,
        Figure::CodingTime,
        Figure::Goodput,
        Figure::Blocks,
        Figure::Video,
        Figure::PaperScale,
        Figure::ModelScale,
        Figure::Gap,
        Figure::Modes,
        Figure::Links,
        Figure::Short,
        Figure::Neighbours,
        Figure::Ablations,
        Figure::Snoop,
        Figure::SnoopBer,
        Figure::SnoopDelay,
        Figure::SnoopWindow,
        Figure::SnoopWeb,
        Figure::Eln,
        Figure::Asymmetry,
        Figure::LimitedTransmit,
        Figure::Rsfc,
        Figure::RsfcWeb,
        Figure::RsfcAblation,
        Figure::RdbLoss,
        Figure::RdbFairness,
        Figure::RdbDpifl,
        Figure::RdbToday,
        Figure::MultipathBuffer,
        Figure::MultipathFailover,
        Figure::MultipathToday,
        Figure::MultipathDelay,
        Figure::MultipathComplexity,
        Figure::MultipathChange,
        Figure::MultipathFairness,
    ];

    /// The argument of `sphx lab figure`.
    pub fn argument(self) -> &'static str {
        match self {
            Figure::Redundancy => "7",
            Figure::CodingTime => "8",
            Figure::Goodput => "9",
            Figure::Blocks => "10",
            Figure::Video => "11",
            Figure::Table1 => "table1",
            Figure::PaperScale => "9 --scale paper",
            Figure::ModelScale => "9 --scale model",
            Figure::Gap => "gap",
            Figure::Modes => "modes",
            Figure::Links => "links",
            Figure::Short => "short",
            Figure::Neighbours => "neighbours",
            Figure::Ablations => "ablations",
            Figure::Snoop => "snoop",
            Figure::SnoopBer => "snoop-ber",
            Figure::SnoopDelay => "snoop-delay",
            Figure::SnoopWindow => "snoop-window",
            Figure::SnoopWeb => "snoop-web",
            Figure::Eln => "eln",
            Figure::Asymmetry => "asymmetry",
            Figure::LimitedTransmit => "limited-transmit",
            Figure::Rsfc => "rsfc",
            Figure::RsfcWeb => "rsfc-web",
            Figure::RsfcAblation => "rsfc-ablation",
            Figure::RdbLoss => "rdb-loss",
            Figure::RdbFairness => "rdb-fairness",
            Figure::RdbDpifl => "rdb-dpifl",
            Figure::RdbToday => "rdb-today",
            Figure::MultipathBuffer => "multipath-buffer",
            Figure::MultipathFailover => "multipath-failover",
            Figure::MultipathToday => "multipath-today",
            Figure::MultipathDelay => "multipath-delay",
            Figure::MultipathComplexity => "multipath-complexity",
            Figure::MultipathChange => "multipath-change",
            Figure::MultipathFairness => "multipath-fairness",
        }
    }

    /// The beginning of the names of the figure's files.
    pub fn name(self) -> String {
        let argument = self.argument();
        match self {
            Figure::PaperScale => "fig9-paper".to_owned(),
            Figure::ModelScale => "fig9-model".to_owned(),
            _ if argument.parse::<u32>().is_ok() => format!("fig{argument}"),
            _ => argument.to_owned(),
        }
    }

    /// Whether something is sent over a link for it, which takes namespaces: not for what is computed, or is in virtual time only.
    pub fn needs_link(self, programs: &Programs) -> bool {
        let is_real = |(_, text): &(&str, &str)| {
            bundled(text, programs, false).is_ok_and(|it| it.clock() == Clock::Real)
        };
        match self {
            Figure::Redundancy
            | Figure::CodingTime
            | Figure::ModelScale
            | Figure::MultipathFairness => false,
            _ => self.scenarios().is_empty() || self.scenarios().iter().any(is_real),
        }
    }

    /// Whether [`Studio::seeds`] changes anything: scenarios say their seeds themselves.
    pub fn has_seeds(self) -> bool {
        match self {
            Figure::CodingTime | Figure::Table1 => false,
            // Drawn from a scenario, and from runs with the seeds of the studio.
            Figure::RdbToday => true,
            _ => self.scenarios().is_empty(),
        }
    }

    /// The scenarios whose runs it is drawn from.
    pub(crate) fn sources(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Figure::Table1 => vec![goodput::SCENARIOS[0], blocks::SCENARIOS[0]],
            _ => self.scenarios().to_vec(),
        }
    }

    /// The scenarios whose runs the figure needs.
    pub(crate) fn scenarios(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // Table 1 has the runs of figures 9 and 10.
            Figure::Redundancy
            | Figure::CodingTime
            | Figure::Table1
            | Figure::PaperScale
            | Figure::ModelScale => &[],
            Figure::Goodput => goodput::SCENARIOS,
            Figure::Blocks => blocks::SCENARIOS,
            Figure::Video => video::SCENARIOS,
            Figure::Gap => gap::SCENARIOS,
            Figure::Modes => modes::SCENARIOS,
            Figure::Links => links::SCENARIOS,
            Figure::Short => short::SCENARIOS,
            Figure::Ablations => ablations::SCENARIOS,
            Figure::RdbToday => rdb::TODAY_SCENARIOS,
            Figure::MultipathBuffer => multipath::BUFFER_SCENARIOS,
            Figure::MultipathFailover => multipath::FAILOVER_SCENARIOS,
            Figure::MultipathToday => multipath::TODAY_SCENARIOS,
            Figure::MultipathDelay | Figure::MultipathComplexity => bounded::SCENARIOS,
            Figure::MultipathChange => bounded::CHANGE_SCENARIOS,
            Figure::Snoop
            | Figure::SnoopBer
            | Figure::SnoopDelay
            | Figure::SnoopWindow
            | Figure::SnoopWeb
            | Figure::Eln
            | Figure::Asymmetry
            | Figure::LimitedTransmit
            | Figure::Rsfc
            | Figure::RsfcWeb
            | Figure::RsfcAblation
            | Figure::RdbLoss
            | Figure::RdbFairness
            | Figure::RdbDpifl
            | Figure::Neighbours
            | Figure::MultipathFairness => &[],
        }
    }
}

/// What came of a figure.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The figure's claims, and what the runs say of each.
    pub checks: Vec<Check>,
    /// What the page falls short of, whatever it claims: rows that were not measured, runs of several commits, few seeds.
    pub faults: Vec<String>,
    /// The files that were written.
    pub files: Vec<PathBuf>,
    /// Contestants that cannot run here, with the reasons.
    pub missing: Vec<(String, String)>,
    /// The page's table, for the terminal.
    pub summary: String,
    /// Whether the user stopped it. Then nothing but results of runs was written.
    pub interrupted: bool,
}

/// What figures are made with, and where.
pub struct Studio<'a> {
    /// What the contestants are made of.
    pub programs: &'a Programs,
    /// The directory of the figures' files.
    pub directory: &'a Path,
    /// Whether there are fewer points and shorter runs.
    pub quick: bool,
    /// Seeds of each case over a path of two hops, instead of the usual number.
    pub seeds: Option<u64>,
    /// Nothing is run: figures are drawn from the runs that are on file.
    pub recall: bool,
    /// The machine on which it is measured.
    pub environment: &'a Environment,
    /// Becomes true when the user wants to stop.
    pub stop: &'a AtomicBool,
    /// Reports progress to people.
    pub progress: Progress,
}

impl Studio<'_> {
    /// How long figures take, at least and at most, if nothing is on file.
    pub fn duration(&self, figures: &[Figure]) -> (Duration, Duration) {
        let (mut least, mut most) = (Duration::ZERO, Duration::ZERO);
        for figure in figures {
            for (_, text) in figure.scenarios() {
                let Ok(scenario) = bundled(text, self.programs, self.quick) else {
                    continue;
                };
                let running = scenario
                    .contestants
                    .iter()
                    .filter(|one| scenario.check(one.as_ref()).is_ok());
                let cores = self.environment.cores;
                let (shorter, longer) = runner::duration(&scenario, running.count(), cores);
                least += shorter;
                most += longer;
            }
            let other = match figure {
                Figure::PaperScale => scale::duration(self.quick),
                Figure::Snoop => snoop::EXPERIMENT.duration(self),
                Figure::SnoopBer => snoop_ber::EXPERIMENT.duration(self),
                Figure::SnoopDelay => snoop_delay::EXPERIMENT.duration(self),
                Figure::SnoopWindow => snoop_window::duration(self),
                Figure::SnoopWeb => mixed::SNOOP_WEB.duration(self),
                Figure::Eln => eln::EXPERIMENT.duration(self),
                Figure::Asymmetry => mixed::ASYMMETRY.duration(self),
                Figure::LimitedTransmit => mixed::LIMITED_TRANSMIT.duration(self),
                Figure::Rsfc => mixed::RSFC.duration(self),
                Figure::RsfcWeb => mixed::RSFC_WEB.duration(self),
                Figure::RsfcAblation => mixed::RSFC_ABLATION.duration(self),
                Figure::RdbLoss => rdb::loss_duration(self),
                Figure::RdbFairness => rdb::fairness_duration(self),
                Figure::RdbDpifl => rdb::dpifl_duration(self),
                Figure::RdbToday => rdb::today_duration(self),
                Figure::Neighbours => neighbours::duration(self),
                _ => codes::duration(*figure, self.quick),
            };
            least += other / 2;
            most += other;
        }
        (least, most)
    }

    /// Makes a figure.
    ///
    /// # Errors
    ///
    /// [`ScenarioFailure`] if files cannot be written.
    pub fn draw(&mut self, figure: Figure) -> Result<Outcome, ScenarioFailure> {
        let (mut outcome, files) = self.make(figure)?;
        outcome.files = files.write(self.directory)?;
        Ok(outcome)
    }

    /// Whether a figure's page says what its runs on file do, and what it falls short of besides.
    ///
    /// # Errors
    ///
    /// [`ScenarioFailure`] if files cannot be read.
    pub fn examine(&mut self, figure: Figure) -> Result<Vec<String>, ScenarioFailure> {
        let (outcome, files) = self.make(figure)?;
        let mut faults = files.differences(self.directory)?;
        faults.extend(outcome.faults);
        Ok(faults)
    }

    fn make(&mut self, figure: Figure) -> Result<(Outcome, Files), ScenarioFailure> {
        let mut sheet = Sheet::new(figure, self);
        let finished = match figure {
            Figure::Redundancy | Figure::CodingTime => codes::draw(figure, self, &mut sheet)?,
            Figure::Goodput => goodput::draw(self, &mut sheet)?,
            Figure::Blocks => blocks::draw(self, &mut sheet)?,
            Figure::Video => video::draw(self, &mut sheet)?,
            Figure::Table1 => table1::draw(self, &mut sheet)?,
            Figure::PaperScale => scale::draw_real(self, &mut sheet)?,
            Figure::ModelScale => scale::draw_model(self, &mut sheet)?,
            Figure::Gap => gap::draw(self, &mut sheet)?,
            Figure::Modes => modes::draw(self, &mut sheet)?,
            Figure::Links => links::draw(self, &mut sheet)?,
            Figure::Short => short::draw(self, &mut sheet)?,
            Figure::Neighbours => neighbours::draw(self, &mut sheet)?,
            Figure::Ablations => ablations::draw(self, &mut sheet)?,
            Figure::Snoop => snoop::draw(self, &mut sheet)?,
            Figure::SnoopBer => snoop_ber::draw(self, &mut sheet)?,
            Figure::SnoopDelay => snoop_delay::draw(self, &mut sheet)?,
            Figure::SnoopWindow => snoop_window::draw(self, &mut sheet)?,
            Figure::SnoopWeb => mixed::SNOOP_WEB.draw(self, &mut sheet)?,
            Figure::Eln => eln::draw(self, &mut sheet)?,
            Figure::Asymmetry => mixed::ASYMMETRY.draw(self, &mut sheet)?,
            Figure::LimitedTransmit => mixed::LIMITED_TRANSMIT.draw(self, &mut sheet)?,
            Figure::Rsfc => mixed::RSFC.draw(self, &mut sheet)?,
            Figure::RsfcWeb => mixed::RSFC_WEB.draw(self, &mut sheet)?,
            Figure::RsfcAblation => mixed::RSFC_ABLATION.draw(self, &mut sheet)?,
            Figure::RdbLoss => rdb::loss(self, &mut sheet)?,
            Figure::RdbFairness => rdb::fairness(self, &mut sheet)?,
            Figure::RdbDpifl => rdb::dpifl(self, &mut sheet)?,
            Figure::RdbToday => rdb::today(self, &mut sheet)?,
            Figure::MultipathBuffer => multipath::buffer(self, &mut sheet)?,
            Figure::MultipathFailover => multipath::failover(self, &mut sheet)?,
            Figure::MultipathToday => multipath::today(self, &mut sheet)?,
            Figure::MultipathDelay => bounded::delay(self, &mut sheet)?,
            Figure::MultipathComplexity => bounded::complexity(self, &mut sheet)?,
            Figure::MultipathChange => bounded::change(self, &mut sheet)?,
            Figure::MultipathFairness => fairness::draw(self, &mut sheet)?,
        };
        Ok(match finished {
            true => sheet.finish(),
            false => {
                let interrupted = Outcome {
                    interrupted: true,
                    ..Outcome::default()
                };
                (interrupted, Files::default())
            }
        })
    }

    /// The results of a bundled scenario that are on file, if there are any.
    fn recalled(&self, (name, text): (&str, &str)) -> Result<Option<Results>, ScenarioFailure> {
        let scenario = bundled(text, self.programs, self.quick)?;
        let file = self.directory.join(format!("{name}.ndjson"));
        match file.exists() {
            true => runner::recall(&scenario, &file).map(Some),
            false => Ok(None),
        }
    }

    /// Runs a bundled scenario; its results are kept under its name. None after an interruption.
    fn run(&mut self, (name, text): (&str, &str)) -> Result<Option<Results>, ScenarioFailure> {
        let scenario = bundled(text, self.programs, self.quick)?;
        let file = self.directory.join(format!("{name}.ndjson"));
        if self.recall {
            return runner::recall(&scenario, &file).map(Some);
        }
        let results = runner::run(
            &scenario,
            Some(&file),
            self.environment.clone(),
            self.stop,
            &mut self.progress,
        )?;
        Ok((!results.interrupted).then_some(results))
    }
}

/// A scenario that is part of the program; it names no files.
fn bundled(text: &str, programs: &Programs, quick: bool) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new(""), programs, quick)
}

#[cfg(test)]
mod tests {
    use super::{account::Standard, *};

    #[test]
    fn bundled_scenarios_can_be_read() {
        let programs = Programs::for_tests();
        for figure in Figure::ALL {
            for (name, text) in figure.scenarios() {
                for quick in [false, true] {
                    let scenario = bundled(text, &programs, quick);
                    assert!(scenario.is_ok(), "{name}: {}", scenario.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn virtual_time_needs_no_link() {
        let programs = Programs::for_tests();
        let needs_none = Figure::ALL.into_iter();
        let needs_none: Vec<_> = needs_none
            .filter(|figure| !figure.needs_link(&programs))
            .map(Figure::argument)
            .collect();
        assert_eq!(
            needs_none,
            [
                "7",
                "8",
                "9 --scale model",
                "gap",
                "multipath-delay",
                "multipath-complexity",
                "multipath-change",
                "multipath-fairness"
            ]
        );
    }

    /// A scenario with fewer seeds would leave its page short of them whatever it measures.
    #[test]
    fn scenarios_have_the_seeds_that_their_pages_want() {
        let programs = Programs::for_tests();
        for figure in Figure::ALL {
            for (name, text) in figure.scenarios() {
                for quick in [false, true] {
                    let scenario = bundled(text, &programs, quick).unwrap();
                    let wanted = Standard::of(figure, quick).seeds_in(scenario.clock());
                    let seeds = scenario.seeds.len();
                    assert!(
                        seeds >= wanted,
                        "{name}, quick {quick}: {seeds} of {wanted}"
                    );
                }
            }
        }
    }
}
