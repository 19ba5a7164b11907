//! Flows of several kinds at once over paths of two hops, with and without agents (`sphx pep`): what is common to these experiments.

mod asymmetry;
mod limited_transmit;
mod page;
mod rsfc;
mod snoop_web;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(super) use self::{
    asymmetry::DESIGN as ASYMMETRY,
    limited_transmit::DESIGN as LIMITED_TRANSMIT,
    rsfc::{ABLATION as RSFC_ABLATION, DESIGN as RSFC, WEB as RSFC_WEB},
    snoop_web::DESIGN as SNOOP_WEB,
};
use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    over_path::{Files, agent, carry, late_ms_max, told},
    paths::seeds,
    rdb::{GroupRun, Spread},
};
use crate::{
    path::{Carried, PathArgs},
    runner::ScenarioFailure,
    stats::Measured,
};

/// Later than that, a packet has waited for the emulator instead of its link.
const LATE_MS: f64 = 10.0;
/// How long flows run with `--quick`.
const QUICK: Duration = Duration::from_secs(4);

/// An experiment: each cell with each variant.
pub(super) struct Design {
    pub(super) name: &'static str,
    title: &'static str,
    about: &'static str,
    cells: &'static [Cell],
    variants: &'static [Variant],
    columns: &'static [Column],
    /// Claims that must hold in all cells: in words, and that the first number is at least so many times the second.
    claims: &'static [(&'static str, At, f64, At)],
    /// Text of the page: what was published, and what readers should know of the numbers.
    remark: &'static str,
    time: Duration,
    /// So many paths are measured at once. They have to leave a machine of two cores idle for most of the time.
    at_once: usize,
}

/// A number: of a column, in a cell, for a variant.
type At = (&'static str, &'static str, usize);

/// A path and what goes over it.
#[derive(Debug)]
struct Cell {
    name: &'static str,
    wired: &'static str,
    wireless: &'static str,
    /// Rate that replaces `RATE` in the options of agents.
    agent_rate: &'static str,
    /// Whether the right host sends.
    upload: bool,
    /// See `sphx lab path --flows`.
    groups: &'static [&'static str],
    congestion: &'static str,
    sysctl: &'static [&'static str],
    /// How many of the places for runs at the same time it takes: fast links take more.
    places: usize,
}

/// A variant: the agents that help.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    /// The options of the agent on the host in the middle, and on the right one.
    middle: Option<&'static str>,
    right: Option<&'static str>,
    /// Further settings of the wireless hop.
    wireless: &'static str,
    /// Congestion control in the place of the cell's; `None` keeps that.
    congestion: Option<&'static str>,
}

impl Variant {
    const fn none(name: &'static str) -> Variant {
        Variant {
            name,
            middle: None,
            right: None,
            wireless: "",
            congestion: None,
        }
    }

    const fn middle(name: &'static str, agent: &'static str) -> Variant {
        Variant {
            middle: Some(agent),
            ..Variant::none(name)
        }
    }
}

/// A number of a group that the page shows.
struct Column {
    label: &'static str,
    group: &'static str,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Goodput,
    /// Percentiles of what messages take, from program to program.
    Delivery(usize),
    /// The same without so many milliseconds, the delay of the path itself.
    Waiting(usize, f64),
    /// Percentiles of the time that packets with data take on the path, of those that were sent only once.
    Transit(usize),
    /// Messages that have arrived.
    Delivered,
    /// Jain's index of what the group's flows have carried, if there are several.
    Jain,
    /// Retransmitted segments among those that the host has sent, in percent.
    Again,
}

/// One run.
#[derive(Clone, Copy)]
struct Mixed {
    cell: &'static Cell,
    variant: &'static Variant,
    time: Duration,
    seed: u64,
}

/// A line of the file of results.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    cell: String,
    variant: String,
    seed: u64,
    groups: Vec<GroupRun>,
    segments_sent: u64,
    segments_again: u64,
    /// Longest delay of a packet in the emulator beyond its due time, in milliseconds.
    late_ms_max: f64,
}

impl Run {
    fn number(&self, column: &Column) -> Option<Measured> {
        let group = self.groups.iter().find(|it| it.name == column.group)?;
        let known = match column.what {
            What::Goodput => Some(group.goodput_mbit_s),
            What::Delivery(n) => return group.delivery(n),
            What::Waiting(n, way) => return Some(group.delivery(n)?.map(|ms| ms - way)),
            What::Transit(n) => group.transit_ms.percentile(n),
            What::Delivered => Some(group.delivered as f64),
            What::Jain => group.jain.filter(|_| group.flows > 1),
            What::Again => {
                Some(100.0 * self.segments_again as f64 / self.segments_sent.max(1) as f64)
            }
        };
        known.map(Measured::Exactly)
    }
}

impl Design {
    fn cases(&self, studio: &Studio<'_>) -> Vec<Mixed> {
        let time = if studio.quick { QUICK } else { self.time };
        let mut cases = Vec::new();
        for seed in 1..=seeds(studio) {
            for cell in self.cells {
                cases.extend(self.variants.iter().map(|variant| Mixed {
                    cell,
                    variant,
                    time,
                    seed,
                }));
            }
        }
        cases
    }

    /// How long it takes at most if nothing is on file.
    pub(super) fn duration(&self, studio: &Studio<'_>) -> Duration {
        let around = Duration::from_secs(4);
        let sum: Duration = (self.cases(studio).iter())
            .map(|case| (case.time + around) * case.places() as u32)
            .sum();
        sum / self.at_once as u32
    }

    pub(super) fn draw(
        &self,
        studio: &mut Studio<'_>,
        sheet: &mut Sheet,
    ) -> Result<bool, ScenarioFailure> {
        let cases = self.cases(studio);
        let runs = campaign::measure((self.name, cases), self.at_once, studio, sheet)?;
        let Some(runs) = runs else {
            return Ok(false);
        };
        page::write(self, &runs, sheet);
        Ok(true)
    }

    /// The number of a column for each run of a cell with a variant.
    fn numbers(&self, runs: &[Run], (cell, variant, column): At) -> Sample {
        let column = &self.columns[column];
        let these = runs
            .iter()
            .filter(|run| run.cell == cell && run.variant == variant);
        Sample::of_seeds(these.filter_map(|run| Some((run.seed, run.number(column)?))))
    }

    fn check(&self, runs: &[Run], (claim, left, factor, right): &(&str, At, f64, At)) -> Check {
        let of = |at: &At| self.numbers(runs, *at);
        Check::at_least(claim, &of(left), *factor, &of(right))
    }
}

impl Case for Mixed {
    type Run = Run;

    fn row(&self) -> String {
        format!("{}, {}", self.cell.name, self.variant.name)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn places(&self) -> usize {
        self.cell.places
    }

    fn extent(&self) -> String {
        format!("{:?}", self.time)
    }

    fn is_of(&self, run: &Run) -> bool {
        let is_cell = run.cell == self.cell.name && run.variant == self.variant.name;
        is_cell && run.seed == self.seed
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Run, NoRun> {
        let (cell, variant) = (self.cell, self.variant);
        let files = Files::new()?;
        let wireless = with_traces(&files, format!("{} {}", cell.wireless, variant.wireless))?;
        let command = |interface: &str, options: &str| {
            let options = options.replace("RATE", cell.agent_rate);
            let more = format!("--wireless {interface} {options}");
            agent(&studio.programs.sphx, &more)
        };
        let args = PathArgs {
            hops: vec![cell.wired.to_owned(), wireless],
            middle: variant.middle.map(|it| command("wireless", it)),
            right: variant.right.map(|it| command("right", it)),
            upload: cell.upload,
            split: false,
            flows: cell.groups.iter().map(ToString::to_string).collect(),
            bytes: 1,
            time: self.time,
            cc: variant.congestion.unwrap_or(cell.congestion).to_owned(),
            no_sack: false,
            sysctl: cell.sysctl.iter().map(ToString::to_string).collect(),
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
            return Err("no flows".into());
        };
        Ok(Run {
            cell: cell.name.to_owned(),
            variant: variant.name.to_owned(),
            seed: self.seed,
            groups: (flowed.groups.into_iter())
                .map(|group| GroupRun::of(group, f64::INFINITY))
                .collect(),
            segments_sent: flowed.segments_sent,
            segments_again: flowed.segments_again,
            late_ms_max,
        })
    }

    fn result(run: &Run) -> String {
        let groups = run.groups.iter().map(|group| match group.messages {
            0 => format!("{} {:.2} Mbit/s", group.name, group.goodput_mbit_s),
            _ => {
                let p50 = group.delivery_ms.percentile(50).unwrap_or(f64::NAN);
                format!("{} {p50:.0} ms", group.name)
            }
        });
        groups.collect::<Vec<_>>().join("; ")
    }
}

/// Traces that are part of this program, by the names that settings have for them.
const TRACES: [(&str, &str); 2] = [
    (
        "lte.down",
        include_str!("../../../../../docs/examples/lte.down"),
    ),
    (
        "lte.up",
        include_str!("../../../../../docs/examples/lte.up"),
    ),
];

/// Settings with the files of their traces.
fn with_traces(files: &Files, mut settings: String) -> Result<String, String> {
    for (name, content) in TRACES {
        let known = format!("trace:{name}");
        if settings.contains(&known) {
            let file = files.of(name);
            std::fs::write(&file, content).map_err(told)?;
            settings = settings.replace(&known, &format!("trace:{}", file.display()));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use sphinx_link::settings::LinkSettings;

    use super::*;

    /// A stream that starves is not the quickest one.
    #[test]
    fn messages_that_did_not_come_are_among_those_that_took_longest() {
        let run = |delivered: u64| -> Run {
            let none = json!({"mean": 0.0, "p999": 0.0, "percentiles": []});
            let delivery: Vec<u64> = (0..=100).collect();
            let group = json!({
                "name": "pings", "flows": 1, "messages": 200, "delivered": delivered, "in_time": 0.0, "goodput_mbit_s": 0.0,
                "jain": null, "delivery_ms": {"mean": 50.0, "p999": 100.0, "percentiles": delivery},
                "one_way_ms": none, "ack_ms": none, "transit_ms": none,
            });
            let run = json!({
                "cell": "c", "variant": "v", "seed": 1, "groups": [group], "segments_sent": 1, "segments_again": 0,
                "late_ms_max": 0.0,
            });
            serde_json::from_value(run).unwrap()
        };
        let number = |delivered, what| {
            let column = Column {
                label: "",
                group: "pings",
                what,
            };
            run(delivered).number(&column).unwrap()
        };
        let waiting = What::Waiting(95, 10.0);
        assert_eq!(number(200, waiting), Measured::Exactly(85.0));
        assert_eq!(number(23, waiting), Measured::AtLeast(90.0));
        assert_eq!(number(23, What::Delivery(95)), Measured::AtLeast(100.0));
        assert_eq!(number(23, What::Delivered), Measured::Exactly(23.0));
    }

    #[test]
    fn every_path_can_be_and_every_number_is_there() {
        for design in [
            &ASYMMETRY,
            &LIMITED_TRANSMIT,
            &RSFC,
            &RSFC_WEB,
            &RSFC_ABLATION,
            &SNOOP_WEB,
        ] {
            for cell in design.cells {
                for variant in design.variants {
                    let wireless = format!("{} {}", cell.wireless, variant.wireless);
                    for hop in [cell.wired, &wireless] {
                        let mut settings = LinkSettings::default();
                        for word in hop.split_whitespace() {
                            settings.set_text(word).unwrap();
                        }
                        let traces = |path: &str| {
                            let known = TRACES.iter().find(|(name, _)| *name == path);
                            Ok(known.expect(path).1.to_owned())
                        };
                        settings.configs(&traces).unwrap();
                    }
                }
                assert!((1..=design.at_once).contains(&cell.places));
            }
            assert_ne!(design.time, QUICK);
            let has = |cell: &Cell, column: &Column| {
                let name = format!("name={} ", column.group);
                cell.groups.iter().any(|group| group.contains(&name))
            };
            for column in design.columns {
                assert!(design.cells.iter().any(|cell| has(cell, column)));
            }
            let names = |list: Vec<&'static str>| list.into_iter().collect::<BTreeSet<_>>();
            let cells = names(design.cells.iter().map(|it| it.name).collect());
            let variants = names(design.variants.iter().map(|it| it.name).collect());
            assert_eq!(cells.len(), design.cells.len());
            assert_eq!(variants.len(), design.variants.len());
            let claims = design.claims.iter().flat_map(|it| [it.1, it.3]);
            for (cell, variant, column) in claims {
                assert!(
                    cells.contains(cell) && variants.contains(variant),
                    "{cell}, {variant}"
                );
                let named = design.cells.iter().find(|it| it.name == cell);
                assert!(has(named.unwrap(), &design.columns[column]), "{cell}");
            }
        }
    }
}
