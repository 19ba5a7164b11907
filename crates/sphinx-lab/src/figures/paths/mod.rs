//! Experiments with kernel TCP over paths of two hops, with and without help: what is common to them.

mod page;
mod run;
mod truth;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(super) use self::{
    page::{csv, goodput_table, late_paragraph, seeds_text, show, sweep, worst},
    truth::Truth,
};
use super::{
    Figure, Sheet, Studio,
    campaign::{self, NoRun},
    claim::Sample,
};
use crate::runner::ScenarioFailure;

const SEEDS: u64 = 10;
const SEEDS_QUICK: u64 = 3;
/// Hardly any run takes longer, whatever its limit.
const USUAL_MAX: Duration = Duration::from_secs(60);

/// Every path with every help under every sender, with some seeds.
pub(super) struct Experiment {
    pub(super) figure: Figure,
    /// Whether the mobile host sends.
    pub(super) upload: bool,
    pub(super) paths: &'static [Hops],
    pub(super) helps: &'static [Help],
    pub(super) senders: &'static [Sender],
    /// So many paths are measured at once. They have to leave a machine of two cores idle for most of the time.
    pub(super) at_once: usize,
}

/// A path, and what is transferred over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hops {
    /// The path's name; empty where an experiment has only one path.
    pub(super) name: &'static str,
    /// Its place on the horizontal axis; `None` if it is not drawn.
    pub(super) x: Option<f64>,
    pub(super) wired: &'static str,
    pub(super) wireless: &'static str,
    /// What else the wireless hop does, but for [`Middle::Free`].
    pub(super) errors: &'static str,
    pub(super) mtu: usize,
    pub(super) bytes: u64,
    /// When a run is cut off: only what has arrived by then counts.
    pub(super) limit: Duration,
}

/// A kind of help in the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Help {
    pub(super) name: &'static str,
    pub(super) middle: Middle,
}

impl Help {
    pub(super) const fn new(name: &'static str, middle: Middle) -> Help {
        Help { name, middle }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Middle {
    Nothing,
    /// No help, on a hop without errors: what could be reached.
    Free,
    /// A profile, and more options.
    Agent(&'static str, &'static str),
    /// Two agents, with reports of losses from one to the other.
    Eln,
    Split,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) name: &'static str,
    pub(super) congestion: &'static str,
    pub(super) sack: bool,
}

impl Sender {
    pub(super) const OLD: Sender = Sender::new("reno, no SACK", "reno", false);
    pub(super) const RENO: Sender = Sender::new("reno", "reno", true);
    pub(super) const CUBIC: Sender = Sender::new("cubic", "cubic", true);
    pub(super) const BBR: Sender = Sender::new("bbr", "bbr", true);

    const fn new(name: &'static str, congestion: &'static str, sack: bool) -> Sender {
        Sender {
            name,
            congestion,
            sack,
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Case {
    upload: bool,
    hops: Hops,
    help: Help,
    sender: Sender,
    seed: u64,
}

/// A line of the file of results.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Run {
    #[serde(default)]
    pub(super) path: String,
    pub(super) help: String,
    pub(super) sender: String,
    seed: u64,
    complete: bool,
    seconds: f64,
    pub(super) goodput_mbit_s: f64,
    pub(super) pause_ms_max: f64,
    pub(super) segments_sent: u64,
    pub(super) segments_again: u64,
    /// What queues have dropped of what the sender has sent: those of the hops, and the agent's.
    #[serde(default)]
    pub(super) queue_drops: Option<u64>,
    /// Payload for each byte that the wired and the wireless hop have carried towards the receiver.
    pub(super) useful: [f64; 2],
    /// Counters of the agent that repairs: packets repaired, and those repaired needlessly.
    pub(super) repaired: Option<u64>,
    pub(super) spurious: Option<u64>,
    held: Option<u64>,
    /// How often an agent was too late, and only passed packets for a while.
    #[serde(default)]
    pub(super) overloads: Option<u64>,
    /// What the base station has reported, beside what the hop has lost.
    #[serde(default)]
    pub(super) truth: Option<Truth>,
    /// Longest delay of a packet in the emulator beyond its due time, in milliseconds.
    late_ms_max: f64,
}

/// The runs of a help under a sender over a path.
pub(super) fn select<'a>(
    runs: &'a [Run],
    path: &str,
    help: &str,
    sender: &str,
) -> impl Iterator<Item = &'a Run> + Clone {
    let wanted = move |run: &&Run| run.path == path && run.help == help && run.sender == sender;
    runs.iter().filter(wanted)
}

impl Run {
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }
}

/// The goodput of each run in Mbit/s.
pub(super) fn goodputs(runs: &[Run], path: &str, help: &str, sender: &str) -> Sample {
    let these = select(runs, path, help, sender);
    Sample::of_seeds(these.map(|run| (run.seed, run.goodput_mbit_s)))
}

/// The median goodput in Mbit/s.
pub(super) fn goodput(runs: &[Run], path: &str, help: &str, sender: &str) -> Option<f64> {
    goodputs(runs, path, help, sender).median()
}

impl Experiment {
    /// How long it takes at most if nothing is on file; half of that is usual.
    pub(super) fn duration(&self, studio: &Studio<'_>) -> Duration {
        let limits: Duration = self
            .paths
            .iter()
            .map(|hops| hops.limit.min(USUAL_MAX))
            .sum();
        let runs = self.helps.len() * self.senders.len();
        limits * runs as u32 * seeds(studio) as u32 / self.at_once as u32
    }

    fn cases(&self, seeds: u64) -> Vec<Case> {
        let mut cases = Vec::new();
        for seed in 1..=seeds {
            for &hops in self.paths {
                for &help in self.helps {
                    cases.extend(self.senders.iter().map(|&sender| Case {
                        upload: self.upload,
                        hops,
                        help,
                        sender,
                        seed,
                    }));
                }
            }
        }
        cases
    }

    /// Runs what is not on file yet; none after an interruption.
    pub(super) fn measure(
        &self,
        studio: &Studio<'_>,
        sheet: &mut Sheet,
    ) -> Result<Option<Vec<Run>>, ScenarioFailure> {
        let cases = self.cases(seeds(studio));
        campaign::measure((&self.figure.name(), cases), self.at_once, studio, sheet)
    }
}

impl campaign::Case for Case {
    type Run = Run;

    fn row(&self) -> String {
        let words = [self.hops.name, self.help.name, self.sender.name];
        let words: Vec<&str> = words.into_iter().filter(|it| !it.is_empty()).collect();
        words.join(", ")
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{} bytes in {:?}", self.hops.bytes, self.hops.limit)
    }

    fn is_of(&self, run: &Run) -> bool {
        let is_path = run.path == self.hops.name && run.seed == self.seed;
        is_path && run.help == self.help.name && run.sender == self.sender.name
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Run, NoRun> {
        Ok(run::run(studio, self)?)
    }

    fn result(run: &Run) -> String {
        format!("{:.2} Mbit/s", run.goodput_mbit_s)
    }
}

pub(super) fn seeds(studio: &Studio<'_>) -> u64 {
    let usual = if studio.quick { SEEDS_QUICK } else { SEEDS };
    studio.seeds.unwrap_or(usual)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Whether all paths of an experiment can be, and no two of its runs have the same name.
    pub(in crate::figures) fn check(experiment: &Experiment) {
        for hops in experiment.paths {
            for hop in [
                hops.wired,
                hops.wireless,
                &format!("{} {}", hops.wireless, hops.errors),
            ] {
                let mut settings = sphinx_link::settings::LinkSettings::default();
                for word in hop.split_whitespace() {
                    settings.set_text(word).unwrap();
                }
                settings
                    .configs(&|_| Err(std::io::ErrorKind::NotFound.into()))
                    .unwrap();
            }
        }
        let cases = experiment.cases(2);
        let names = cases
            .iter()
            .map(|case| (case.hops.name, case.help.name, case.sender.name, case.seed));
        let names: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(names.len(), cases.len());
    }
}
