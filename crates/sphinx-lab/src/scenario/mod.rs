//! Scenario files: links × workloads × contestants × seeds, in TOML.
//!
//! `docs/lab.md` describes the format. Unknown keys are errors, and every error tells its line.

mod contestant;
mod link;
mod value;
mod workload;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde::Deserialize;
use sphinx_units as units;
use thiserror::Error;

use self::{contestant::ContestantTable, link::LinkTable, value::Values, workload::WorkloadTable};
use crate::{Cell, Clock, Contestant, Workload, contestants::Programs, toml_error::in_one_line};

/// What a bulk transfer has at least until it is cut off.
const BULK_LIMIT: Duration = Duration::from_secs(10);
/// How long after the end of a schedule the rest is awaited.
const SCHEDULE_LIMIT: Duration = Duration::from_secs(2);

/// An experiment.
#[derive(Debug)]
pub struct Scenario {
    /// The scenario's title.
    pub title: String,
    /// The purpose of the scenario, in a sentence or two.
    pub about: String,
    /// Links with workloads.
    pub cells: Vec<Cell>,
    /// Everything that is compared, whether or not it can run here.
    pub contestants: Vec<Box<dyn Contestant>>,
    /// The links' seeds.
    pub seeds: Vec<u64>,
    /// Runs with each seed.
    pub repetitions: u32,
    /// When transfers are cut off, if not after the usual time.
    pub limit: Option<Duration>,
}

/// Why a scenario cannot be run.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// The file does not follow the format.
    #[error("{0}")]
    Format(String),
    /// The settings contradict each other.
    #[error("{0}")]
    Sense(String),
}

/// A scenario file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    title: String,
    #[serde(default)]
    about: String,
    #[serde(default)]
    clock: Clock,
    #[serde(default = "one")]
    seeds: Vec<u64>,
    #[serde(default = "once")]
    repetitions: u32,
    limit: Option<value::Period>,
    link: Values<LinkTable>,
    workload: Values<WorkloadTable>,
    contestant: Vec<ContestantTable>,
    #[serde(default)]
    quick: Quick,
}

/// What is different when there is little time.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Quick {
    seeds: Option<Vec<u64>>,
    loss: Option<Values<value::Share>>,
    rtt: Option<Values<value::Time>>,
    rate: Option<Values<value::Rate>>,
    bytes: Option<value::Size>,
    time: Option<value::Period>,
    limit: Option<value::Period>,
    /// Contestants to leave out.
    #[serde(default)]
    without: Vec<String>,
}

fn one() -> Vec<u64> {
    vec![1]
}

fn once() -> u32 {
    1
}

impl Scenario {
    /// Reads a scenario; `quick` applies its section of that name. Traces that it names are looked for in
    /// `directory`.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`], with the line where the format is wrong.
    pub fn parse(
        text: &str,
        directory: &Path,
        programs: &Programs,
        quick: bool,
    ) -> Result<Scenario, ScenarioError> {
        let mut file: File = toml::from_str(text)
            .map_err(|error| ScenarioError::Format(in_one_line(text, &error)))?;
        let quickly = std::mem::take(&mut file.quick);
        let heeded = quickly.is_heeded(&file);
        if quick {
            file.hurry(quickly);
        }
        let mut cells = Vec::new();
        let read = |path: &str| fs::read_to_string(directory.join(path));
        let grounds = link::expand(&file.link.0, &read)?;
        for ground in &grounds {
            let (link_name, link) = (&ground.name, &ground.link);
            let workloads = workload::expand(&file.workload.0, link.rate)?;
            for (workload_name, workload) in &workloads {
                // Bulk is the usual workload: where it is the only one, names of cells leave it out.
                let plain = workloads.len() == 1 && workload_name == "bulk";
                cells.push(Cell {
                    name: match plain {
                        true => link_name.clone(),
                        false => format!("{workload_name}-{link_name}"),
                    },
                    link: link.clone(),
                    paths: ground.paths.clone(),
                    receive_buffer: ground.receive_buffer,
                    workload: workload.clone(),
                    clock: file.clock,
                });
            }
        }
        several_paths_make_sense(&cells, &file.contestant)?;
        let contestants: Vec<Box<dyn Contestant>> = file
            .contestant
            .into_iter()
            .map(|table| table.build(programs))
            .collect();
        let scenario = Scenario {
            title: file.title,
            about: file.about,
            cells,
            contestants,
            seeds: file.seeds,
            repetitions: file.repetitions,
            limit: file.limit.map(|time| time.0),
        };
        let scenario = scenario.checked()?;
        heeded.map(|()| scenario)
    }

    /// This, unless there is nothing to run, or something twice: runs on file are told apart by cell, contestant and seed.
    ///
    /// # Errors
    ///
    /// [`ScenarioError::Sense`].
    pub fn checked(self) -> Result<Scenario, ScenarioError> {
        let refuse = |text: String| Err(ScenarioError::Sense(text));
        unique("cell", self.cells.iter().map(|cell| cell.name.as_str()))?;
        unique("contestant", self.contestants.iter().map(|one| one.name()))?;
        let mut seeds = BTreeSet::new();
        if let Some(seed) = self.seeds.iter().find(|seed| !seeds.insert(**seed)) {
            return refuse(format!("there are two seeds {seed}"));
        }
        for (what, empty) in [
            ("cell", self.cells.is_empty()),
            ("contestant", self.contestants.is_empty()),
            ("seed", self.seeds.is_empty()),
            ("repetition", self.repetitions == 0),
        ] {
            if empty {
                return refuse(format!("there is no {what}"));
            }
        }
        Ok(self)
    }

    /// The time in which all its runs are made.
    pub fn clock(&self) -> Clock {
        let first = self.cells.first();
        first.map_or(Clock::default(), |cell| cell.clock)
    }

    /// Whether a contestant can run here, in the scenario's time.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    pub fn check(&self, contestant: &dyn Contestant) -> Result<(), String> {
        match self.clock() {
            Clock::Real => contestant.check(),
            Clock::Virtual => contestant.in_virtual_time().map(drop),
        }
    }

    /// The [`Experiment::limit`](crate::Experiment::limit) of a cell.
    pub fn limit(&self, cell: &Cell) -> Duration {
        self.limit.unwrap_or(match cell.workload {
            Workload::Bulk { .. } | Workload::Web(_) => BULK_LIMIT.max(shortest(cell) * 4),
            // A video ends with its time: nothing that comes later counts.
            Workload::Video(_) => Duration::ZERO,
            _ => SCHEDULE_LIMIT,
        })
    }

    /// How many runs there are, with as many contestants.
    pub fn runs(&self, contestants: usize) -> usize {
        contestants * self.cells.len() * self.seeds.len() * self.repetitions as usize
    }

    /// How long a run of a cell takes: at least and at most.
    pub(crate) fn duration(&self, cell: &Cell) -> (Duration, Duration) {
        let cut_off = cell.workload.schedule() + self.limit(cell);
        match cell.clock {
            Clock::Real => (
                shortest(cell).min(cut_off) + AROUND_A_RUN,
                cut_off + AROUND_A_RUN,
            ),
            Clock::Virtual => (
                simulation(cell, SIMULATED_PACKET),
                simulation(cell, SIMULATED_PACKET * 4),
            ),
        }
    }

    /// Payload that a run of a cell sends in a second on average, in bits, with a perfect transport that makes a connection first.
    pub(crate) fn load(&self, cell: &Cell) -> f64 {
        match &cell.workload {
            Workload::Bulk { bytes } => {
                let time = shortest(cell) + cell.link.rtt * 2;
                *bytes as f64 * 8.0 / time.as_secs_f64()
            }
            // These go as fast as they can from time to time.
            Workload::Video(_) | Workload::Web(_) => cell.link.rate as f64,
            Workload::Blocks { .. } | Workload::Live { .. } => {
                cell.workload.offered_bits().unwrap_or(cell.link.rate) as f64
            }
        }
    }
}

/// Making and removing namespaces, starting and ending processes.
const AROUND_A_RUN: Duration = Duration::from_millis(300);

/// What a packet costs a fast machine in virtual time, coding and comparing included.
const SIMULATED_PACKET: Duration = Duration::from_micros(5);

/// The time that a run in virtual time really takes.
fn simulation(cell: &Cell, packet: Duration) -> Duration {
    let packets = cell.workload.bytes() / 1400 + 1;
    packet.saturating_mul(u32::try_from(packets).unwrap_or(u32::MAX))
}

/// What a perfect transport would need.
fn shortest(cell: &Cell) -> Duration {
    let bits = cell.workload.bytes() as f64 * 8.0;
    let transfer = Duration::from_secs_f64(bits / cell.link.rate as f64);
    transfer.max(cell.workload.schedule())
}

/// What is asked for of several paths can be done.
fn several_paths_make_sense(
    cells: &[Cell],
    contestants: &[ContestantTable],
) -> Result<(), ScenarioError> {
    let refuse = |text: String| Err(ScenarioError::Sense(text));
    for cell in cells {
        let is_asked = matches!(cell.workload, Workload::Video(_) | Workload::Web(_));
        let is_special = !cell.paths.is_empty() || cell.receive_buffer.is_some();
        if is_special && is_asked {
            let text = "several paths and bounded buffers are for bulk, blocks and messages";
            return refuse(text.to_owned());
        }
        let has = |name: &str| cell.paths.iter().any(|path| path.name == name);
        let missing = contestants.iter().filter_map(ContestantTable::only_path);
        if let Some(name) = missing.into_iter().find(|name| !has(name)) {
            return refuse(format!("cell '{}' has no path '{name}'", cell.name));
        }
    }
    Ok(())
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), ScenarioError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let text = format!("there are two {what}s called '{name}'");
            return Err(ScenarioError::Sense(text));
        }
    }
    Ok(())
}

impl Quick {
    /// Refuses what would change nothing: what is measured would not be what is written.
    fn is_heeded(&self, file: &File) -> Result<(), ScenarioError> {
        let refuse = |text: String| Err(ScenarioError::Sense(text));
        let is_there = |name: &&String| file.contestant.iter().any(|one| one.name == **name);
        if let Some(name) = self.without.iter().find(|name| !is_there(name)) {
            return refuse(format!(
                "quick: there is no contestant '{name}' to leave out"
            ));
        }
        let (links, workloads) = (&file.link.0, &file.workload.0);
        let of_links = |has: fn(&LinkTable) -> bool| links.iter().any(has);
        let of_workloads = |has: fn(&WorkloadTable) -> bool| workloads.iter().any(has);
        for (key, is_given, is_heeded) in [
            ("loss", self.loss.is_some(), of_links(LinkTable::has_loss)),
            ("rtt", self.rtt.is_some(), of_links(LinkTable::has_rtt)),
            ("rate", self.rate.is_some(), of_links(LinkTable::has_rate)),
            (
                "bytes",
                self.bytes.is_some(),
                of_workloads(WorkloadTable::has_quick_bytes),
            ),
            (
                "time",
                self.time.is_some(),
                of_workloads(WorkloadTable::has_time),
            ),
        ] {
            let what = match key {
                "bytes" => "no bulk workload has 'bytes'",
                "time" => "no workload has a 'time'",
                _ => "no link (paths aside) says it itself",
            };
            if is_given && !is_heeded {
                return refuse(format!("quick: '{key}' would change nothing: {what}"));
            }
        }
        Ok(())
    }
}

impl File {
    fn hurry(&mut self, quick: Quick) {
        let Quick {
            seeds,
            loss,
            rtt,
            rate,
            bytes,
            time,
            limit,
            without,
        } = quick;
        self.seeds = seeds.unwrap_or_else(|| std::mem::take(&mut self.seeds));
        self.limit = limit.or(self.limit);
        for link in &mut self.link.0 {
            link.hurry(loss.as_ref(), rtt.as_ref(), rate.as_ref());
        }
        for workload in &mut self.workload.0 {
            workload.hurry(bytes, time);
        }
        self.contestant
            .retain(|contestant| !without.contains(&contestant.name));
    }
}

#[cfg(test)]
mod tests {
    use sphinx_link::Loss;

    use super::*;
    use crate::Experiment;
    use crate::runner::duration;

    const TEXT: &str = r#"
title = "T"
seeds = [1, 2]
limit = "5s"

[link]
rate = "200mbit"
rtt = "10ms"
loss = ["0%", "6%"]

[[workload]]
kind = "bulk"
bytes = "20MB"

[[contestant]]
kind = "tcp"
congestion = "cubic"

[[contestant]]
name = "paper"
kind = "sphinx"
options = "--codec srlt --icm paper"

[quick]
seeds = [7]
loss = "6%"
bytes = "1MB"
without = ["paper"]
"#;

    fn parse(text: &str, quick: bool) -> Result<Scenario, ScenarioError> {
        Scenario::parse(text, Path::new("."), &Programs::for_tests(), quick)
    }

    #[test]
    fn links_as_people_have_them_have_their_own_rate() {
        let old = "rate = \"200mbit\"\nrtt = \"10ms\"\nloss = [\"0%\", \"6%\"]\n";
        let link = |text: &str| {
            assert!(TEXT.contains(old));
            // It has no losses of its own that could be fewer.
            let quick = "\nloss = \"6%\"\n";
            parse(&TEXT.replace(old, text).replace(quick, "\n"), true)
        };
        let scenario = link("like = \"geo\"\nset = { rtt = \"580ms\" }\n").unwrap();
        let cell = &scenario.cells[0];
        assert_eq!(cell.name, "geo");
        assert_eq!(
            (cell.link.rate, cell.link.rtt.as_millis()),
            (50_000_000, 580)
        );
        for (wrong, words) in [
            ("", "needs `rate` and `rtt`, or `like`"),
            ("rate = \"1mbit\"\n", "needs `rate` and `rtt`, or `like`"),
            ("like = \"geo\"\nrtt = \"1ms\"\n", "change them with `set`"),
            ("like = \"dialup\"\n", "is none of wifi, lte"),
        ] {
            let error = link(wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn links_take_settings_of_the_emulator() {
        let link = "rtt = \"10ms\"\n";
        let set = |value: &str| TEXT.replace(link, &format!("{link}set = {value}\n"));
        let scenario = parse(&set("{ jitter = \"2ms\", aqm = \"codel\" }"), false).unwrap();
        let description = scenario.cells[0].link.description();
        assert!(
            description.ends_with("aqm=codel, jitter=2ms"),
            "{description}"
        );
        for (wrong, words) in [
            ("{ jitters = \"2ms\" }", "no setting 'jitters'"),
            (
                "{ rate = \"trace:no-such-file\" }",
                "cannot read no-such-file",
            ),
        ] {
            let error = parse(&set(wrong), false).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn bursts_are_possible() {
        let old = "loss = [\"0%\", \"6%\"]\n";
        let parse = |losses: &str, burst: &str| {
            assert!(TEXT.contains(old));
            let text = TEXT.replace(old, &format!("loss = {losses}\nburst = {burst}\n"));
            parse(&text, false)
        };
        for (losses, burst, words) in [
            ("\"6%\"", "nan", "1 or more"),
            ("\"6%\"", "-3", "1 or more"),
            ("\"6%\"", "0", "1 or more"),
            ("\"6%\"", "0.5", "1 or more"),
            ("\"6%\"", "inf", "1 or more"),
            (
                "[\"6%\", \"95%\"]",
                "8",
                "where 95 % are lost, `burst` is 19 or more",
            ),
            ("\"100%\"", "8", "leave out `burst`"),
        ] {
            let error = parse(losses, burst).unwrap_err().to_string();
            assert!(error.contains(words), "{losses} {burst}: {error}");
        }
        let scenario = parse("\"95%\"", "19").unwrap();
        let cell = &scenario.cells[0];
        assert_eq!(cell.name, "r10-l95x19");
        assert!((cell.link.forward_loss() - 0.95).abs() < 1e-9);
        // Bursts of one packet are losses by chance.
        let scenario = parse("\"95%\"", "1").unwrap();
        assert_eq!(scenario.cells[0].link.forward, Loss::Bernoulli(0.95));
    }

    #[test]
    fn links_and_workloads_make_cells() {
        let scenario = parse(TEXT, false).unwrap();
        let names: Vec<_> = scenario.cells.iter().map(|cell| &cell.name).collect();
        assert_eq!(names, ["r10-l0", "r10-l6"]);
        let names: Vec<_> = scenario.contestants.iter().map(|one| one.name()).collect();
        assert_eq!(names, ["tcp-cubic", "paper"]);
        assert_eq!((scenario.runs(2), scenario.seeds.len()), (8, 2));
        assert_eq!(scenario.limit(&scenario.cells[0]), Duration::from_secs(5));
        let (least, most) = duration(&scenario, 2, 1);
        assert!(least > Duration::from_secs(8) && most > Duration::from_secs(40));
        // A link of 200 Mbit/s has two processors for itself, and shares four with another one.
        assert_eq!(duration(&scenario, 2, 2), (least, most));
        assert_eq!(duration(&scenario, 2, 4), (least / 2, most / 2));
    }

    const PATHS: &str = r#"
title = "P"

[[link]]
name = "two"
receive-buffer = ["64KiB", "256KiB"]

[[link.path]]
name = "wifi"
rate = "30mbit"
rtt = "20ms"
set = { blackout = "3s-5s" }

[[link.path]]
name = "lte"
rate = "10mbit"
rtt = "60ms"
loss = "1%"
cost = 5

[workload]
kind = "bulk"
time = "1s"

[[contestant]]
kind = "sphinx"
path = "lte"

[[contestant]]
kind = "mptcp"
"#;

    #[test]
    fn several_paths_are_a_cell_by_what_the_receiver_may_hold() {
        let scenario = parse(PATHS, false).unwrap();
        let names: Vec<_> = scenario.cells.iter().map(|cell| &cell.name).collect();
        assert_eq!(names, ["two-b64", "two-b256"]);
        let cell = &scenario.cells[1];
        assert_eq!(cell.receive_buffer, Some(256 << 10));
        assert_eq!(
            (cell.link.rate, cell.workload.bytes()),
            (40_000_000, 5_000_000)
        );
        let paths: Vec<_> = (cell.paths.iter())
            .map(|path| (path.name.as_str(), path.link.rate, path.cost))
            .collect();
        assert_eq!(paths, [("wifi", 30_000_000, 0), ("lte", 10_000_000, 5)]);
        let description = cell.description();
        assert!(
            description.starts_with("2 paths (wifi: 30 Mbit/s, RTT 20 ms")
                && description.contains("blackout=3s-5s | lte:")
                && description.contains("cost 5), receive buffer 256 KiB; "),
            "{description}"
        );
    }

    #[test]
    fn who_cannot_be_held_to_a_buffer_is_missing() {
        let more = ["tcp", "iperf3", "quinn", "uftp", "udp\"\nrate = \"1mbit"]
            .map(|kind| format!("[[contestant]]\nkind = \"{kind}\"\n"));
        let scenario = parse(&(PATHS.to_owned() + &more.concat()), false).unwrap();
        let missing = scenario.contestants.iter().filter(|contestant| {
            let able = Experiment::check(&scenario.cells[0], contestant.as_ref());
            able == Err("its receive buffer cannot be bounded".to_owned())
        });
        let names: Vec<_> = missing.map(|contestant| contestant.name()).collect();
        assert_eq!(names, ["quinn-cubic", "uftp", "udp"]);
    }

    #[test]
    fn paths_that_make_no_sense_are_refused() {
        for (old, new, words) in [
            ("name = \"lte\"", "name = \"wifi\"", "a name of its own"),
            (
                "rate = \"10mbit\"",
                "rate = [\"1mbit\", \"2mbit\"]",
                "has one rate",
            ),
            ("name = \"two\"", "rtt = \"9ms\"", "says of each path"),
            ("name = \"two\"", "cost = 3", "only a path has"),
            (
                "cost = 5",
                "receive-buffer = \"64KiB\"",
                "neither 'path' nor",
            ),
            ("\"64KiB\"", "\"8KiB\"", "at least 16KiB"),
            ("path = \"lte\"", "path = \"5g\"", "has no path '5g'"),
            (
                "kind = \"mptcp\"",
                "kind = \"mptcp\"\npath = \"lte\"",
                "has no 'path'",
            ),
            (
                "kind = \"bulk\"\ntime = \"1s\"",
                "kind = \"web\"\npages = 1\nobjects = 1",
                "are for bulk",
            ),
        ] {
            assert!(PATHS.contains(old), "{old}");
            let error = parse(&PATHS.replacen(old, new, 1), false).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn quick_is_less_of_the_same() {
        let scenario = parse(TEXT, true).unwrap();
        assert_eq!((scenario.cells.len(), scenario.contestants.len()), (1, 1));
        assert_eq!(scenario.cells[0].workload.bytes(), 1_000_000);
        assert_eq!(scenario.seeds, [7]);
    }

    #[test]
    fn what_quick_would_not_heed_is_refused() {
        for (from, to, words) in [
            ("[\"paper\"]", "[\"papers\"]", "no contestant 'papers'"),
            (
                "loss = [\"0%\", \"6%\"]\n",
                "set = { loss = \"6%\" }\n",
                "'loss' would change nothing",
            ),
            (
                "bytes = \"20MB\"",
                "time = \"2s\"",
                "'bytes' would change nothing",
            ),
            (
                "bytes = \"1MB\"",
                "time = \"1s\"",
                "'time' would change nothing",
            ),
        ] {
            assert!(TEXT.contains(from), "{from}");
            // Whoever writes it hears of it, in whatever way it is run first.
            for quick in [false, true] {
                let error = parse(&TEXT.replace(from, to), quick).unwrap_err();
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    }

    #[test]
    fn numbers_need_their_unit_where_there_is_one() {
        let old = "loss = [\"0%\", \"6%\"]\n";
        for (new, names) in [
            ("loss = [0, 0.06]\n", "r10-l0 r10-l6"),
            ("loss = 0.02\n", "r10-l2"),
            ("loss = 0\n", "r10-l0"),
        ] {
            let scenario = parse(&TEXT.replace(old, new), false).unwrap();
            let cells = scenario.cells.iter();
            let found: Vec<_> = cells.map(|cell| cell.name.as_str()).collect();
            assert_eq!(found.join(" "), names);
        }
        for (from, to, words) in [
            (old, "loss = 6\n", "'6' has no unit: did you mean 6%?"),
            ("\"10ms\"", "10", "'10' has no unit: did you mean 10ms?"),
            ("\"200mbit\"", "[200]", "did you mean 200mbit?"),
            ("\"5s\"", "5", "did you mean 5s?"),
            ("\"200mbit\"", "true", "a value or a list"),
        ] {
            let error = parse(&TEXT.replacen(from, to, 1), false).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn time_is_real_unless_said() {
        assert_eq!(parse(TEXT, false).unwrap().clock(), Clock::Real);
        let text = format!("clock = \"virtual\"\n{TEXT}");
        let scenario = parse(&text, false).unwrap();
        assert_eq!(scenario.clock(), Clock::Virtual);
        let description = scenario.cells[0].description();
        assert!(description.contains("virtual time"), "{description}");
        assert!(parse(&text.replace("virtual", "fast"), false).is_err());
    }

    #[test]
    fn bulk_may_last_for_a_time() {
        let text = TEXT
            .replace("\"200mbit\"", "[\"8mbit\", \"80mbit\"]")
            .replace("bytes = \"20MB\"", "time = \"2s\"")
            .replace("bytes = \"1MB\"", "time = \"1s\"");
        let bytes = |quick| -> Vec<u64> {
            let scenario = parse(&text, quick).unwrap();
            scenario
                .cells
                .iter()
                .map(|cell| cell.workload.bytes())
                .collect()
        };
        assert_eq!(bytes(false), [2_000_000, 2_000_000, 20_000_000, 20_000_000]);
        assert_eq!(bytes(true), [1_000_000, 10_000_000]);
        let both = text.replace("time = \"2s\"", "time = \"2s\"\nbytes = \"1MB\"");
        assert!(
            parse(&both, false)
                .unwrap_err()
                .to_string()
                .contains("either")
        );
    }

    #[test]
    fn errors_tell_the_line() {
        for (wrong, right, line, words) in [
            (
                "lost = \"6%\"",
                "loss = [\"0%\", \"6%\"]",
                "line 9",
                "unknown field",
            ),
            ("rate = \"fast\"", "rate = \"200mbit\"", "line 7", "200mbit"),
            (
                "kind = \"sctp\"",
                "kind = \"tcp\"",
                "line 1",
                "unknown variant",
            ),
            ("bytes = \"20m B\"", "bytes = \"20MB\"", "line 1", "100kB"),
            ("loss = \"7\"\n", "loss = \"6%\"\n", "line 2", "7%"),
            (
                "rtt = \"10ms\"\nburst = 0",
                "rtt = \"10ms\"",
                "line 9",
                "1 or more",
            ),
        ] {
            assert!(TEXT.contains(right), "{right}");
            let error = parse(&TEXT.replace(right, wrong), false).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(line) && text.contains(words), "{text}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (from, to, words) in [
            (
                "name = \"paper\"",
                "name = \"tcp-cubic\"",
                "two contestants",
            ),
            ("[\"0%\", \"6%\"]", "[\"6%\", \"0.06\"]", "two cells"),
            ("seeds = [1, 2]", "seeds = []", "no seed"),
            ("seeds = [1, 2]", "seeds = [3, 1, 1]", "two seeds 1"),
        ] {
            let error = parse(&TEXT.replace(from, to), false).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
