//! Thin streams over kernel TCP with and without RDB (`sphx pep`): what is common to the experiments.

mod dpifl;
mod fairness;
mod loss;
mod today;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sphinx_codes::svg::{Series, Style};

pub(super) use self::{
    dpifl::{draw as dpifl, duration as dpifl_duration},
    fairness::{draw as fairness, duration as fairness_duration},
    loss::{draw as loss, duration as loss_duration},
    today::{SCENARIOS as TODAY_SCENARIOS, draw as today, duration as today_duration},
};
use super::{
    Studio,
    campaign::{Case, NoRun},
    claim::Sample,
    over_path::{Files, agent, carry, last, late_ms_max},
};
use crate::{
    path::{Carried, Delays, GroupReport, PathArgs},
    stats::{Measured, rank},
};

/// Where the groups listen that an agent helps.
const PORT: u16 = 7001;
/// Port at which the groups listen that no agent helps.
const PORT_ALONE: u16 = 7101;
/// Later than that, a packet has waited for the emulator instead of its link.
const LATE_MS: f64 = 10.0;
/// Runs of a case in which packets are that late: the last one counts, whatever it was.
const ATTEMPTS: usize = 3;

/// Groups of flows over a path, with an agent on the host that sends, or without.
#[derive(Clone, Debug)]
struct Thin {
    /// Path and messages, in a few words.
    cell: String,
    /// Who sends, in a few words.
    variant: String,
    seed: u64,
    /// Settings of the hop; the sender is at its right end.
    hop: String,
    /// See `sphx lab path --flows`.
    groups: Vec<String>,
    /// The options of its agent, for everything at [`PORT`].
    agent: Option<&'static str>,
    sysctl: Vec<&'static str>,
    time: Duration,
    /// Messages that are delivered within this time, in milliseconds, are in time.
    in_time_ms: f64,
}

/// A line of the file of results.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    cell: String,
    variant: String,
    seed: u64,
    groups: Vec<GroupRun>,
    agent: Option<AgentRun>,
    /// Offered to the path by the sending host.
    packets: u64,
    bytes: u64,
    /// Segments that the sending kernel has sent.
    segments_sent: u64,
    /// Retransmissions among these.
    segments_again: u64,
    /// Longest delay of a packet in the emulator beyond its due time, in milliseconds.
    late_ms_max: f64,
}

/// The result of a group.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct GroupRun {
    pub(super) name: String,
    pub(super) flows: usize,
    pub(super) messages: u64,
    pub(super) delivered: u64,
    /// Share of all messages that were due which came in time.
    pub(super) in_time: f64,
    pub(super) goodput_mbit_s: f64,
    /// Jain's index of its flows; not in the older files.
    pub(super) jain: Option<f64>,
    pub(super) delivery_ms: Spread,
    pub(super) one_way_ms: Spread,
    pub(super) ack_ms: Spread,
    pub(super) transit_ms: Spread,
}

/// The distribution of delays.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Spread {
    mean: f64,
    p999: f64,
    /// The 0th to the 100th percentile; nothing without any delay.
    percentiles: Vec<f64>,
}

/// What an agent has done.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct AgentRun {
    data_bytes: u64,
    thin: u64,
    bundled: u64,
    copied_bytes: u64,
    resent: u64,
    losses_repaired: u64,
    losses_unknown: u64,
    overloads: u64,
}

impl Spread {
    fn of(delays: &Delays) -> Spread {
        let rounded = |ms: f64| (ms * 100.0).round() / 100.0;
        let at = |share| delays.quantile(share).map(rounded);
        Spread {
            mean: rounded(delays.mean().unwrap_or(0.0)),
            p999: at(0.999).unwrap_or(0.0),
            percentiles: (0..=100).filter_map(|n| at(f64::from(n) / 100.0)).collect(),
        }
    }

    pub(super) fn percentile(&self, n: usize) -> Option<f64> {
        self.percentiles.get(n).copied()
    }
}

impl GroupRun {
    pub(super) fn of(group: GroupReport, in_time_ms: f64) -> GroupRun {
        GroupRun {
            flows: group.flows,
            messages: group.messages,
            delivered: group.delivered,
            in_time: group.delivery_ms.within(in_time_ms) as f64 / group.messages.max(1) as f64,
            goodput_mbit_s: group.goodput_mbit_s,
            jain: group.jain,
            delivery_ms: Spread::of(&group.delivery_ms),
            one_way_ms: Spread::of(&group.one_way_ms),
            ack_ms: Spread::of(&group.ack_ms),
            transit_ms: Spread::of(&group.transit_ms),
            name: group.name,
        }
    }

    /// What so many of 100 messages took at most, of all that were due: one that did not come took longer than all that did.
    pub(super) fn delivery(&self, n: usize) -> Option<Measured> {
        let came = &self.delivery_ms;
        if self.delivered >= self.messages {
            return came.percentile(n).map(Measured::Exactly);
        }
        // Percentiles on file are of the messages that came. The rank among all that were due gives a percentile of these, rounded down:
        // a lower bound.
        let rank = rank(self.messages, n as f64 / 100.0);
        let of_came = 100 * rank.min(self.delivered) / self.delivered.max(1);
        let least = came.percentile(usize::try_from(of_came).unwrap_or(100));
        Some(Measured::AtLeast(least.unwrap_or(0.0)))
    }
}

impl Run {
    fn group(&self, name: &str) -> Option<&GroupRun> {
        self.groups.iter().find(|group| group.name == name)
    }
}

impl Case for Thin {
    type Run = Run;

    fn row(&self) -> String {
        format!("{}, {}", self.cell, self.variant)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{:?}", self.time)
    }

    fn is_of(&self, run: &Run) -> bool {
        run.cell == self.cell && run.variant == self.variant && run.seed == self.seed
    }

    fn seeds_min(&self) -> Option<usize> {
        (self.variant == dpifl::VARIANT).then_some(dpifl::SEEDS_MAX as usize)
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Run, NoRun> {
        let mut run = self.run_once(studio)?;
        for _ in 1..ATTEMPTS {
            if run.late_ms_max <= LATE_MS {
                break;
            }
            run = self.run_once(studio)?;
        }
        Ok(run)
    }

    fn result(run: &Run) -> String {
        let groups = run.groups.iter().map(|group| match group.messages {
            0 => format!("{} {:.2} Mbit/s", group.name, group.goodput_mbit_s),
            _ => {
                let p99 = group.delivery_ms.percentile(99).unwrap_or(f64::NAN);
                let in_time = group.in_time * 100.0;
                format!("{} {in_time:.1} % in time, p99 {p99:.0} ms", group.name)
            }
        });
        groups.collect::<Vec<_>>().join("; ")
    }
}

impl Thin {
    fn run_once(&self, studio: &Studio<'_>) -> Result<Run, String> {
        let files = Files::new()?;
        let command = |options| {
            let more = format!("--agent {options} --port {PORT}");
            agent(&studio.programs.sphx, &more)
        };
        let args = PathArgs {
            hops: vec![String::new(), self.hop.clone()],
            middle: None,
            right: self.agent.map(command),
            upload: true,
            split: false,
            flows: self.groups.clone(),
            bytes: 1,
            time: self.time,
            cc: "cubic".to_owned(),
            no_sack: false,
            sysctl: self.sysctl.iter().map(ToString::to_string).collect(),
            seed: self.seed,
            interface_mtu: 1500,
            windows: false,
            log: None,
            json: true,
            quiet: true,
        };
        let ended = carry(studio, &files, args)?;
        let late_ms_max = late_ms_max(&ended.report);
        let Carried::Flows(flowed) = ended.report.carried else {
            return Err("no flows".to_owned());
        };
        let agent = match self.agent {
            Some(_) => {
                let done = last(&ended.right, "done").ok_or("the agent has told nothing")?;
                Some(serde_json::from_value(done).map_err(|error| error.to_string())?)
            }
            None => None,
        };
        let sent = &ended.report.hops[1].back.counters;
        let groups = flowed.groups.into_iter();
        Ok(Run {
            cell: self.cell.clone(),
            variant: self.variant.clone(),
            seed: self.seed,
            groups: groups
                .map(|group| GroupRun::of(group, self.in_time_ms))
                .collect(),
            agent,
            packets: sent.offered_packets,
            bytes: sent.offered_bytes,
            segments_sent: flowed.segments_sent,
            segments_again: flowed.segments_again,
            late_ms_max,
        })
    }
}

/// How long cases take, so many at once.
fn duration(cases: &[Thin], at_once: usize) -> Duration {
    // Connections, the rest of what was sent, and everything around it.
    let around = Duration::from_secs(3);
    let sum: Duration = cases.iter().map(|case| case.time + around).sum();
    sum / at_once as u32
}

/// One number of each run of a variant in a cell.
fn each<V: Into<Measured>>(
    runs: &[Run],
    (cell, variant): (&str, &str),
    pick: impl Fn(&Run) -> Option<V>,
) -> Sample {
    let wanted = |run: &&Run| run.cell == cell && run.variant == variant;
    let these = runs.iter().filter(wanted);
    Sample::of_seeds(these.filter_map(|run| Some((run.seed, pick(run)?))))
}

/// The median over the seeds of a variant in a cell.
fn of(runs: &[Run], place: (&str, &str), pick: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    each(runs, place, pick).median()
}

/// The distribution of a group's delays: medians of the seeds, percentile by percentile; share over milliseconds.
fn distribution(
    runs: &[Run],
    (cell, variant, group): (&str, &str, &str),
    name: &str,
    pick: fn(&GroupRun) -> &Spread,
) -> Series {
    let at = |n: usize| {
        let value = of(runs, (cell, variant), |run| {
            pick(run.group(group)?).percentile(n)
        });
        value.map(|ms| (ms, n as f64))
    };
    Series::new(name, Style::Plain, (0..=100).filter_map(at).collect())
}

/// How many seeds, and whether emulator and agents were in time.
fn conditions(runs: &[Run], file: &str, at_once: usize) -> String {
    let seeds: std::collections::BTreeSet<u64> = runs.iter().map(|run| run.seed).collect();
    let latest = runs.iter().map(|run| run.late_ms_max).fold(0.0, f64::max);
    let late = runs.iter().filter(|run| run.late_ms_max > LATE_MS).count();
    let overloads = runs.iter().filter_map(|run| run.agent);
    let overloaded = overloads.filter(|agent| agent.overloads > 0).count();
    let seeds = match seeds.len() {
        1 => "One seed".to_owned(),
        many => format!("Medians of {many} seeds, the same for all"),
    };
    format!(
        "{seeds}; {at_once} paths at once. The latest packet of the emulator was {latest:.1} ms late; in {late} of {} runs, each \
         repeated twice for that, one was more than {LATE_MS:.0} ms late. In {overloaded} runs the agent was too late, and only passed packets for a while. Every run: `{file}.ndjson`.",
        runs.len()
    )
}

/// Every group of every run, a line each.
fn csv(runs: &[Run]) -> String {
    let mut text = "cell,variant,seed,group,flows,messages,delivered,in_time,goodput_mbit_s,delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,\
                    delivery_p999_ms,one_way_p99_ms,ack_p99_ms,transit_mean_ms,packets,bytes,segments_again,thin,bundled,copied_bytes,\
                    repaired,unknown,segments_sent,late_ms_max\n"
        .to_owned();
    for run in runs {
        let agent = run.agent.unwrap_or_default();
        for group in &run.groups {
            let at = |spread: &Spread, n| {
                spread
                    .percentile(n)
                    .map_or(String::new(), |ms| format!("{ms:.2}"))
            };
            let delivery = &group.delivery_ms;
            let cells = [
                format!("\"{}\"", run.cell),
                format!("\"{}\"", run.variant),
                run.seed.to_string(),
                group.name.clone(),
                group.flows.to_string(),
                group.messages.to_string(),
                group.delivered.to_string(),
                format!("{:.4}", group.in_time),
                format!("{:.4}", group.goodput_mbit_s),
                at(delivery, 50),
                at(delivery, 90),
                at(delivery, 99),
                format!("{:.2}", delivery.p999),
                at(&group.one_way_ms, 99),
                at(&group.ack_ms, 99),
                format!("{:.2}", group.transit_ms.mean),
                run.packets.to_string(),
                run.bytes.to_string(),
                run.segments_again.to_string(),
                agent.thin.to_string(),
                agent.bundled.to_string(),
                agent.copied_bytes.to_string(),
                agent.losses_repaired.to_string(),
                agent.losses_unknown.to_string(),
                run.segments_sent.to_string(),
                format!("{:.2}", run.late_ms_max),
            ];
            text += &cells.join(",");
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sphinx_link::settings::LinkSettings;

    use super::*;

    #[test]
    fn messages_that_did_not_come_are_among_those_that_took_longest() {
        let group = |delivered| GroupRun {
            name: "x".to_owned(),
            flows: 1,
            messages: 1000,
            delivered,
            in_time: 0.5,
            goodput_mbit_s: 1.0,
            jain: None,
            delivery_ms: Spread {
                mean: 50.0,
                p999: 100.0,
                percentiles: (0..=100).map(f64::from).collect(),
            },
            one_way_ms: Spread::default(),
            ack_ms: Spread::default(),
            transit_ms: Spread::default(),
        };
        assert_eq!(group(1000).delivery(99), Some(Measured::Exactly(99.0)));
        // The 990th of 995 is beyond the 99th of 100 of them; of 900, it is none.
        assert_eq!(group(995).delivery(99), Some(Measured::AtLeast(99.0)));
        assert_eq!(group(900).delivery(99), Some(Measured::AtLeast(100.0)));
        assert_eq!(group(900).delivery(45), Some(Measured::AtLeast(50.0)));
    }

    fn check(cases: &[Thin]) {
        let names: BTreeSet<_> = cases.iter().map(|case| (case.row(), case.seed)).collect();
        assert_eq!(names.len(), cases.len());
        for case in cases {
            let mut settings = LinkSettings::default();
            for word in case.hop.split_whitespace() {
                settings.set_text(word).unwrap();
            }
            settings
                .configs(&|_| Err(std::io::ErrorKind::NotFound.into()))
                .unwrap();
            let groups = case.groups.join(" ");
            // What has an agent has something for it to do.
            let helped = groups.contains(&format!("port={PORT}"));
            assert!(helped || case.agent.is_none(), "{}", case.row());
        }
    }

    #[test]
    fn what_is_made_in_a_hurry_is_less_of_a_case() {
        for cases in [dpifl::cases, fairness::cases, loss::cases, today::cases] {
            let full = cases(false, 1);
            for case in cases(true, 1) {
                let same = full.iter().find(|it| it.row() == case.row());
                assert_ne!(same.unwrap().extent(), case.extent(), "{}", case.row());
            }
        }
    }

    #[test]
    fn every_case_can_be() {
        for (quick, seeds) in [(true, 1), (false, 2)] {
            for cases in [
                dpifl::cases(quick, seeds),
                fairness::cases(quick, seeds),
                loss::cases(quick, seeds),
                today::cases(quick, seeds),
            ] {
                check(&cases);
            }
        }
    }
}
