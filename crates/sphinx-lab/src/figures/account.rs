//! Which runs a page is made of: their commits, their seeds, and those left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{Figure, claim::Pairing};
use crate::{
    Clock,
    machine::{CHANGED, Made},
};

/// Seeds that a row needs in the paper's figures, and over paths of two hops.
const SEEDS: usize = 10;
/// Seeds that a row needs where one parameter after the other is varied, and in virtual time.
const SEEDS_OTHERS: usize = 5;
/// Seeds that a row needs with `--quick`.
const SEEDS_QUICK: usize = 3;

/// Ends a fault that only measuring on a quieter machine can mend.
const STARVED: &str = ", as the emulator was starved";

/// How many seeds a row has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standard {
    Full,
    Others,
    Quick,
}

impl Standard {
    pub(super) fn of(figure: Figure, quick: bool) -> Standard {
        match (quick, figure) {
            (true, _) => Standard::Quick,
            (
                false,
                Figure::Modes
                | Figure::Links
                | Figure::Short
                | Figure::Neighbours
                | Figure::Ablations
                | Figure::MultipathBuffer
                | Figure::MultipathFailover
                | Figure::MultipathToday
                | Figure::MultipathChange
                | Figure::MultipathDelay
                | Figure::MultipathComplexity
                | Figure::MultipathFairness,
            ) => Standard::Others,
            (false, _) => Standard::Full,
        }
    }

    /// How many seeds rows of scenarios need, by their clock.
    pub(super) fn seeds_in(self, clock: Clock) -> usize {
        match clock {
            Clock::Virtual => self.seeds().min(SEEDS_OTHERS),
            Clock::Real => self.seeds(),
        }
    }

    pub(super) fn seeds(self) -> usize {
        match self {
            Standard::Full => SEEDS,
            Standard::Others => SEEDS_OTHERS,
            Standard::Quick => SEEDS_QUICK,
        }
    }
}

/// The runs of a page.
#[derive(Debug, Default)]
pub(super) struct Account {
    rows: BTreeMap<String, Row>,
}

/// The runs of one contestant, or whatever is compared, in one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    seeds: BTreeSet<Pairing>,
    made: BTreeSet<Made>,
    left_out: usize,
    /// Runs that count, but were cut off before they said anything of what is measured.
    silent: usize,
    failures: BTreeSet<String>,
    seeds_min: usize,
}

impl Account {
    /// A row that has to be there, with so many seeds.
    pub(super) fn expect(&mut self, row: &str, seeds_min: usize) {
        let row = self.rows.entry(row.to_owned()).or_default();
        row.seeds_min = row.seeds_min.max(seeds_min);
    }

    /// Counts a run of a row that is used.
    pub(super) fn run(&mut self, row: &str, run: Pairing, made: Made) {
        let row = self.rows.entry(row.to_owned()).or_default();
        row.seeds.insert(run);
        row.made.insert(made);
    }

    /// Counts a run of a row that is left out.
    pub(super) fn left_out(&mut self, row: &str) {
        self.rows.entry(row.to_owned()).or_default().left_out += 1;
    }

    /// A run of it that counts, and was cut off without a word about what is measured.
    pub(super) fn silent(&mut self, row: &str) {
        self.rows.entry(row.to_owned()).or_default().silent += 1;
    }

    /// Notes why a run of a row has no result.
    pub(super) fn failed(&mut self, row: &str, reason: &str) {
        let row = self.rows.entry(row.to_owned()).or_default();
        row.failures.insert(reason.to_owned());
    }

    fn made(&self) -> BTreeMap<&Made, usize> {
        let mut made = BTreeMap::new();
        for one in self.rows.values().flat_map(|row| &row.made) {
            *made.entry(one).or_default() += 1;
        }
        made
    }

    /// Every row with its commit, its seeds and what was left out; rows of one kind together.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let mut kinds: BTreeMap<&Row, Vec<&str>> = BTreeMap::new();
        for (name, row) in &self.rows {
            kinds.entry(row).or_default().push(name);
        }
        let most = kinds.values().map(Vec::len).max().unwrap_or(0);
        let mut table: Vec<Vec<String>> = Vec::new();
        for (row, names) in kinds {
            let who = match names.len() {
                count if count == self.rows.len() => "all".to_owned(),
                count if count == most && count > 3 => format!("{count} rows, all others"),
                _ => names.join("; "),
            };
            let made: Vec<String> = row.made.iter().map(conditions).collect();
            let failures = match row.failures.len() {
                0 => String::new(),
                _ => format!(
                    "; failed: {}",
                    Vec::from_iter(row.failures.iter().cloned()).join(", ")
                ),
            };
            let silent = match row.silent {
                0 => String::new(),
                runs => format!("; {runs} cut off without a number"),
            };
            table.push(vec![
                who,
                made.join("; "),
                seeds(&row.seeds),
                format!("{}{silent}{failures}", row.left_out),
            ]);
        }
        table.sort();
        table
    }

    /// What the runs fall short of, in words.
    pub(super) fn faults(&self, standard: Standard) -> Vec<String> {
        let mut faults = Vec::new();
        let made = self.made();
        let commits: BTreeSet<_> = made.keys().map(|made| &made.commit).collect();
        if commits.len() > 1 {
            let commits: Vec<String> = (made.iter())
                .map(|(made, rows)| format!("{} in {rows} rows", conditions(made)))
                .collect();
            faults.push(format!(
                "the runs are of several commits: {}",
                commits.join(", ")
            ));
        }
        // Quick figures are not to be quoted, so they may be made by a build with changes that are not committed.
        let is_changed =
            |commit: &Option<String>| commit.as_ref().is_none_or(|it| it.contains(CHANGED));
        if standard != Standard::Quick && commits.iter().copied().any(is_changed) {
            faults.push("what was measured is no commit of this repository".to_owned());
        }
        for (name, row) in self.rows.iter().filter(|(_, row)| row.silent > 0) {
            let (silent, runs) = (row.silent, row.seeds.len());
            faults.push(format!(
                "{silent} of {runs} runs cut off without a number: {name}"
            ));
        }
        // Key: how many seeds there are, how many are wanted, and whether the emulator is to blame.
        let mut few: BTreeMap<(usize, usize, bool), Vec<&str>> = BTreeMap::new();
        for (name, row) in &self.rows {
            let seeds: BTreeSet<u64> = row.seeds.iter().map(|run| run.0).collect();
            if seeds.len() < row.seeds_min.max(1) {
                let is_starved = row.left_out > 0 && row.failures.is_empty();
                let kind = (seeds.len(), row.seeds_min, is_starved);
                few.entry(kind).or_default().push(name);
            }
        }
        for ((seeds, least, is_starved), names) in few {
            let what = match seeds {
                0 => "not measured".to_owned(),
                1 => format!("1 seed instead of {least}"),
                _ => format!("{seeds} seeds instead of {least}"),
            };
            let why = if is_starved { STARVED } else { "" };
            faults.push(format!("{what}{why}: {}", some_of(&names)));
        }
        faults
    }
}

/// The first of many names.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 6;
    match names.len() {
        0..=SHOWN => names.join("; "),
        count => format!(
            "{}; and {} more rows",
            names[..SHOWN].join("; "),
            count - SHOWN
        ),
    }
}

/// Numbers, ranges of them together.
fn seeds(runs: &BTreeSet<Pairing>) -> String {
    let seeds: Vec<u64> = BTreeSet::from_iter(runs.iter().map(|run| run.0))
        .into_iter()
        .collect();
    let ranges = seeds.chunk_by(|one, next| one + 1 == *next);
    let ranges: Vec<String> = ranges
        .map(|range| match (range.first(), range.last()) {
            (Some(first), Some(last)) if first != last => format!("{first}–{last}"),
            (Some(only), _) => only.to_string(),
            _ => String::new(),
        })
        .collect();
    match ranges.is_empty() {
        true => "none".to_owned(),
        false => ranges.join(", "),
    }
}

/// How runs were made, in a few words.
pub(super) fn conditions(made: &Made) -> String {
    let mut words = made.commit.as_deref().unwrap_or("unknown").to_owned();
    if made.at_once > 1 {
        words += &format!(", up to {} at once", made.at_once);
    }
    if made.real_time {
        words += ", at real-time priority beside other programs";
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(commit: &str) -> Made {
        Made {
            commit: Some(commit.to_owned()),
            real_time: false,
            at_once: 1,
        }
    }

    fn account() -> Account {
        let mut account = Account::default();
        for row in ["a", "b"] {
            account.expect(row, 3);
            for seed in 1..=3 {
                account.run(row, (seed, 0), made("c1"));
            }
        }
        account
    }

    #[test]
    fn enough_runs_of_one_commit_are_no_fault() {
        let account = account();
        assert_eq!(account.faults(Standard::Full), Vec::<String>::new());
        assert_eq!(account.table(), [["all", "c1", "1–3", "0"]]);
    }

    #[test]
    fn a_row_of_another_commit_is_seen() {
        let mut account = account();
        account.run("b", (3, 0), made("c2"));
        assert_eq!(
            account.faults(Standard::Full),
            ["the runs are of several commits: c1 in 2 rows, c2 in 1 rows"]
        );
        let mut changed = Account::default();
        changed.run("a", (1, 0), made("c1+"));
        assert_eq!(changed.faults(Standard::Full).len(), 1);
        assert_eq!(changed.faults(Standard::Quick).len(), 0);
    }

    #[test]
    fn a_row_of_one_seed_is_seen() {
        let mut account = account();
        account.expect("c", 3);
        account.run("c", (7, 0), made("c1"));
        // A second run with the same seed does not count as a second seed.
        account.run("c", (7, 1), made("c1"));
        assert_eq!(account.faults(Standard::Full), ["1 seed instead of 3: c"]);
        assert_eq!(account.table()[1], ["c", "c1", "7", "0"]);
    }

    #[test]
    fn a_row_without_runs_is_seen() {
        let mut account = account();
        account.expect("c", 3);
        account.left_out("c");
        account.failed("d", "no link");
        assert_eq!(
            account.faults(Standard::Full),
            [
                "not measured: d",
                "not measured, as the emulator was starved: c"
            ]
        );
        assert_eq!(account.table()[1], ["c", "", "none", "1"]);
        assert_eq!(account.table()[2], ["d", "", "none", "0; failed: no link"]);
    }
}
