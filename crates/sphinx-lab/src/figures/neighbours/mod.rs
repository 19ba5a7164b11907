//! Who shares a bottleneck with whom, and how.

mod run;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::run::{Bottleneck, Window, carry};
use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    curves::{in_interval, shown},
};
use crate::{
    Contestant,
    contestants::{Quinn, Sphinx, Tcp},
    runner::ScenarioFailure,
};

const RATE: u64 = 50_000_000;
const RTT: Duration = Duration::from_millis(40);
const SEEDS: u64 = 3;
const OURS: &str = "sphinx";
const COMPARED: [&str; 4] = [OURS, "tcp-bbr", "tcp-cubic", "quinn-bbr"];
const OTHERS: [&str; 2] = ["tcp-cubic", "tcp-bbr"];
/// The second of a pair comes so much later, and each of ten after the one before.
const LATER: Duration = Duration::from_secs(5);
const LATE_COMER: Duration = Duration::from_secs(1);
const CROWD: usize = 10;

/// In which time a pair and ten flows are counted; below, the same with `--quick`.
const PAIR: Window = window(10, 30);
const TEN: Window = window(20, 40);
const PAIR_QUICK: Window = window(8, 14);
const TEN_QUICK: Window = window(11, 16);

const fn window(from: u64, until: u64) -> Window {
    Window {
        from: Duration::from_secs(from),
        until: Duration::from_secs(until),
    }
}

/// In which time a pair is counted, and ten of a kind.
fn windows(quick: bool) -> (Window, Window) {
    match quick {
        true => (PAIR_QUICK, TEN_QUICK),
        false => (PAIR, TEN),
    }
}

/// A queue: its name, its length in bandwidth-delay products, and who manages it.
type Queue = (&'static str, f64, Option<&'static str>);
const QUEUES: [Queue; 4] = [
    ("1 BDP", 1.0, None),
    ("2 BDP", 2.0, None),
    ("4 BDP", 4.0, None),
    ("CoDel", 4.0, Some("codel")),
];

/// Which flows share the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// The contestant and another one; and whether the other one was there before.
    Pair(&'static str, bool),
    /// The contestant comes to ten flows of another kind.
    ToTen(&'static str),
    /// Ten of a kind, one after the other.
    Ten,
}

impl Meeting {
    fn name(self) -> String {
        match self {
            Meeting::Pair(other, true) => format!("{other} first"),
            Meeting::Pair(other, false) => format!("{other} second"),
            Meeting::ToTen(other) => format!("ten {other} first"),
            Meeting::Ten => "ten of a kind".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Met {
    queue: Queue,
    meeting: Meeting,
    name: &'static str,
    seed: u64,
    quick: bool,
}

/// The result of one run.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Share {
    queue: String,
    meeting: String,
    contestant: String,
    seed: u64,
    /// Goodput of each flow; those of the contestant come first.
    goodput_mbit_s: Vec<f64>,
    /// Median of the queue over time, in bandwidth-delay products.
    queue_bdp: f64,
    /// Share of the packets that the queue dropped.
    dropped: f64,
    late_p99_ms: f64,
}

/// Picks one number of a run.
type Pick = fn(&Share) -> f64;

impl Share {
    fn sum(&self) -> f64 {
        self.goodput_mbit_s.iter().sum()
    }

    /// The contestant's part of all goodput.
    fn part(&self) -> f64 {
        self.goodput_mbit_s.first().copied().unwrap_or(0.0) / self.sum().max(1e-9)
    }

    /// Jain's index of fairness: 1 where all have the same.
    fn jain(&self) -> f64 {
        let squares: f64 = self.goodput_mbit_s.iter().map(|it| it * it).sum();
        self.sum().powi(2) / squares.max(1e-9) / self.goodput_mbit_s.len().max(1) as f64
    }
}

fn contestant(studio: &Studio<'_>, name: &str) -> Box<dyn Contestant> {
    let programs = studio.programs;
    match name {
        OURS => Box::new(Sphinx::new(
            &programs.sphx,
            &programs.peers,
            OURS,
            Vec::new(),
        )),
        "quinn-bbr" => Box::new(Quinn::new(&programs.quinn, "bbr")),
        tcp => Box::new(Tcp::new(&programs.peers, tcp.trim_start_matches("tcp-"))),
    }
}

impl Met {
    /// The part of the run in which goodput is counted.
    fn window(&self) -> Window {
        let (pair, ten) = windows(self.quick);
        match self.meeting {
            Meeting::Ten => ten,
            _ => pair,
        }
    }
}

impl Case for Met {
    type Run = Share;

    fn row(&self) -> String {
        format!("{}, {}, {}", self.name, self.meeting.name(), self.queue.0)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{:?} to {:?}", self.window().from, self.window().until)
    }

    fn is_of(&self, run: &Share) -> bool {
        let names = [&run.queue, &run.meeting, &run.contestant].map(String::as_str);
        names == [self.queue.0, &self.meeting.name(), self.name] && run.seed == self.seed
    }

    fn seeds_min(&self) -> Option<usize> {
        Some(SEEDS as usize)
    }

    /// Twenty processes are more than two, and those in user space more than the kernel's.
    fn places(&self) -> usize {
        match self.meeting {
            Meeting::Pair(..) => 1,
            Meeting::ToTen(_) => 2,
            Meeting::Ten => 4,
        }
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Share, NoRun> {
        let one = contestant(studio, self.name);
        one.check()?;
        let other = match self.meeting {
            Meeting::Pair(other, _) | Meeting::ToTen(other) => contestant(studio, other),
            Meeting::Ten => contestant(studio, self.name),
        };
        other.check()?;
        let (one, other) = (one.as_ref(), other.as_ref());
        let soon = Duration::ZERO;
        // In the order in which they begin.
        let flows: Vec<(&dyn Contestant, Duration)> = match self.meeting {
            Meeting::Pair(_, true) => vec![(other, soon), (one, LATER)],
            Meeting::Pair(_, false) => vec![(one, soon), (other, LATER)],
            Meeting::ToTen(_) => {
                let mut flows = vec![(other, soon); CROWD];
                flows.push((one, LATER));
                flows
            }
            Meeting::Ten => (0..CROWD as u32)
                .map(|number| (one, number * LATE_COMER))
                .collect(),
        };
        let bottleneck = Bottleneck {
            rate: RATE,
            rtt: RTT,
            queue: self.queue.1,
            aqm: self.queue.2,
        };
        let carried = carry(studio, &bottleneck, &flows, self.window(), self.seed)?;
        let mut goodput_mbit_s = carried.goodput_mbit_s;
        if matches!(self.meeting, Meeting::Pair(_, true) | Meeting::ToTen(_)) {
            goodput_mbit_s.rotate_right(1);
        }
        Ok(Share {
            queue: self.queue.0.to_owned(),
            meeting: self.meeting.name(),
            contestant: self.name.to_owned(),
            seed: self.seed,
            goodput_mbit_s,
            queue_bdp: carried.queue,
            dropped: carried.dropped,
            late_p99_ms: carried.late_p99_ms,
        })
    }

    fn result(run: &Share) -> String {
        let jain = run.jain();
        format!(
            "{:.2} of {:.1} Mbit/s, Jain {jain:.2}",
            run.part(),
            run.sum()
        )
    }
}

/// Every pair, one beside ten, and ten of a kind; of these, two of the pairs and ten of a kind.
fn meetings(quick: bool) -> Vec<(Queue, Meeting)> {
    let mut all = Vec::new();
    for queue in QUEUES {
        for other in OTHERS {
            all.extend([true, false].map(|first| (queue, Meeting::Pair(other, first))));
        }
    }
    all.extend(OTHERS.map(|other| (QUEUES[0], Meeting::ToTen(other))));
    all.push((QUEUES[0], Meeting::Ten));
    all.retain(|(queue, meeting)| {
        let is_of_few = matches!(meeting, Meeting::Pair("tcp-cubic", _) | Meeting::Ten);
        !quick || (queue.0 == QUEUES[0].0 && is_of_few)
    });
    all
}

fn cases(quick: bool, seeds: u64) -> Vec<Met> {
    let mut cases = Vec::new();
    for seed in 1..=seeds {
        for (queue, meeting) in meetings(quick) {
            cases.extend(COMPARED.map(|name| Met {
                queue,
                meeting,
                name,
                seed,
                quick,
            }));
        }
    }
    cases
}

/// How long all of it takes.
pub(super) fn duration(studio: &Studio<'_>) -> Duration {
    let seeds = studio.seeds.unwrap_or(SEEDS);
    let of = |case: &Met| case.window().until * case.places() as u32;
    let all: Duration = cases(studio.quick, seeds).iter().map(of).sum();
    all / at_once(studio) as u32
}

/// As many places as runs of 50 Mbit/s may have.
fn at_once(studio: &Studio<'_>) -> usize {
    (2 * studio.environment.cores).max(2)
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let cases = cases(studio.quick, studio.seeds.unwrap_or(SEEDS));
    let at_once = at_once(studio);
    let Some(runs) = campaign::measure(("neighbours", cases), at_once, studio, sheet)? else {
        return Ok(false);
    };
    let (pair, ten) = windows(studio.quick);
    sheet.title(
        "Neighbours",
        &format!(
            "Transfers that share a bottleneck of {} Mbit/s with a round trip of {} ms: each one beside a flow of kernel TCP that begins {} s before or after it, \
             beside ten, and ten of a kind of which one more begins each second. Payload at the receivers, from {} to {} s after the first (ten of a kind: from {} to \
             {} s). Drop-tail queues in bandwidth-delay products, and CoDel. Medians of the seeds.",
            RATE / 1_000_000,
            RTT.as_millis(),
            LATER.as_secs(),
            pair.from.as_secs(),
            pair.until.as_secs(),
            ten.from.as_secs(),
            ten.until.as_secs(),
        ),
    );
    let of = |queue: &str, meeting: Meeting, name: &str, pick: Pick| {
        let meeting = meeting.name();
        let is_it = |run: &&Share| {
            [&run.queue, &run.meeting, &run.contestant].map(String::as_str)
                == [queue, meeting.as_str(), name]
        };
        Sample::of_seeds(runs.iter().filter(is_it).map(|run| (run.seed, pick(run))))
    };
    let views: [(&str, Pick); 4] = [
        ("part of all goodput", Share::part),
        ("Mbit/s of all", Share::sum),
        ("queue in the middle, BDPs", |run| run.queue_bdp),
        ("dropped, per cent", |run| 100.0 * run.dropped),
    ];
    let (tens, beside): (Vec<_>, Vec<_>) =
        (meetings(studio.quick).into_iter()).partition(|(_, meeting)| *meeting == Meeting::Ten);
    for (what, pick) in views {
        let mut header = vec![what.to_owned()];
        header.extend(COMPARED.map(str::to_owned));
        let rows = beside.iter().map(|(queue, meeting)| {
            let mut row = vec![format!("{}, {}", meeting.name(), queue.0)];
            row.extend(COMPARED.map(|name| shown(&of(queue.0, *meeting, name, pick), 2)));
            row
        });
        sheet.summary(&header, &rows.collect::<Vec<_>>());
    }
    let mut header = vec!["ten of a kind".to_owned()];
    header.extend(COMPARED.map(str::to_owned));
    let ten_views = [("Jain's index", Share::jain as Pick)];
    let rows = tens.iter().flat_map(|(queue, meeting)| {
        (ten_views.iter().chain(&views[1..])).map(|(what, pick)| {
            let mut row = vec![(*what).to_owned()];
            row.extend(COMPARED.map(|name| in_interval(&of(queue.0, *meeting, name, *pick), 2)));
            row
        })
    });
    sheet.summary(&header, &rows.collect::<Vec<_>>());
    let pairs = beside.iter().filter(|it| matches!(it.1, Meeting::Pair(..)));
    let places: Vec<_> = pairs
        .filter(|(queue, _)| queue.2.is_none())
        .map(|(queue, meeting)| {
            let part = of(queue.0, *meeting, OURS, Share::part);
            (format!("{}, {}", meeting.name(), queue.0), part)
        })
        .collect();
    sheet.check(Check::everywhere(
        "Sphinx gets at least 0.35 of a pair's goodput",
        0.35,
        (places.iter().cloned()).map(|(place, part)| (place, part, Sample::Exactly(1.0))),
    ));
    sheet.check(Check::everywhere(
        "Sphinx leaves its neighbour at least 0.35",
        0.35,
        (places.into_iter())
            .map(|(place, part)| (place, part.map(|part| 1.0 - part), Sample::Exactly(1.0))),
    ));
    let ten = |pick| of(QUEUES[0].0, Meeting::Ten, OURS, pick);
    sheet.check(Check::at_least(
        "ten of Sphinx: Jain's index of at least 0.95",
        &ten(Share::jain),
        0.95,
        &Sample::Exactly(1.0),
    ));
    sheet.check(Check::at_most(
        "ten of Sphinx: the queue in the middle of the time is at most 0.5 BDP",
        &ten(|run| run.queue_bdp),
        0.5,
        &Sample::Exactly(1.0),
    ));
    sheet.data("", &csv(&runs));
    Ok(true)
}

fn csv(runs: &[Share]) -> String {
    let mut csv =
        "queue,meeting,contestant,seed,part,all_mbit_s,jain,queue_bdp,dropped\n".to_owned();
    for run in runs {
        csv += &format!(
            "{},{},{},{},{:.4},{:.3},{:.4},{:.3},{:.5}\n",
            run.queue,
            run.meeting,
            run.contestant,
            run.seed,
            run.part(),
            run.sum(),
            run.jain(),
            run.queue_bdp,
            run.dropped
        );
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_one_of_its_own() {
        let cases = cases(false, SEEDS);
        let mut rows: Vec<_> = cases.iter().map(|case| (case.row(), case.seed)).collect();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), cases.len());
        assert_eq!(cases.len(), 4 * (16 + 2 + 1) * SEEDS as usize);
    }

    #[test]
    fn what_is_made_in_a_hurry_is_less_of_a_case() {
        let full = cases(false, 1);
        for case in cases(true, 1) {
            let same = full.iter().find(|it| it.row() == case.row());
            assert_ne!(same.unwrap().extent(), case.extent(), "{}", case.row());
        }
    }

    #[test]
    fn parts_and_the_index_are_of_all_flows() {
        let share = Share {
            queue: String::new(),
            meeting: String::new(),
            contestant: String::new(),
            seed: 1,
            goodput_mbit_s: vec![30.0, 10.0],
            queue_bdp: 0.0,
            dropped: 0.0,
            late_p99_ms: 0.0,
        };
        assert_eq!((share.part(), share.jain()), (0.75, 0.8));
    }
}
