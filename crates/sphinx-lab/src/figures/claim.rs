//! Claims, and what runs say of them.
//!
//! A claim is that one thing is at least, or at most, so many times another. Runs are compared in pairs of one seed, and a claim holds if
//! the 95 % interval of these ratios lies on its side as a whole: its end nearest to the claim decides.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    Run,
    stats::{Measured, Peaks, centre, interval, median, paired_ratio, peaks},
};

/// Pairs runs of different contestants: the link's seed, and the number of the run with it.
pub(super) type Pairing = (u64, u32);

/// A number of each run, or one that does not come from runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sample {
    /// One number for each run, by the seed and repetition that pair it with others.
    Runs(BTreeMap<Pairing, Measured>),
    /// A limit, or something that was computed.
    Exactly(f64),
}

impl Sample {
    /// A sample of these runs; runs without such a number are left out.
    pub(super) fn of_runs<V: Into<Measured>>(
        values: impl IntoIterator<Item = (Pairing, V)>,
    ) -> Sample {
        let values = values.into_iter().map(|(at, value)| (at, value.into()));
        Sample::Runs(
            values
                .filter(|(_, value)| !value.least().is_nan())
                .collect(),
        )
    }

    /// From one number for each seed.
    pub(super) fn of_seeds<V: Into<Measured>>(
        values: impl IntoIterator<Item = (u64, V)>,
    ) -> Sample {
        Sample::of_runs(values.into_iter().map(|(seed, value)| ((seed, 0), value)))
    }

    /// The median; numbers of which only a lower bound is known count as that.
    pub(super) fn median(&self) -> Option<f64> {
        median(self.values())
    }

    /// The numbers; of those that are not known, the lower bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        self.measured().into_iter().map(Measured::least).collect()
    }

    /// The numbers, known or lower bounds.
    pub(super) fn measured(&self) -> Vec<Measured> {
        match self {
            Sample::Runs(values) => values.values().copied().collect(),
            Sample::Exactly(value) => vec![Measured::Exactly(*value)],
        }
    }

    /// What is known of a number chosen by its rank, such as the median: only a lower bound, if one of unknown numbers may be in its place.
    pub(super) fn known(&self, value: f64) -> Measured {
        Measured::among(value, self.measured())
    }

    /// Whether any run was cut off before its number was known.
    fn is_cut_off(&self) -> bool {
        self.measured().iter().any(|one| one.known().is_none())
    }

    /// The 95 % interval of its middle; none if some numbers are not known.
    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        let is_known = !self.is_cut_off();
        is_known.then(|| interval(&self.values()))?
    }

    /// The two heaps that the numbers fall into, if they do.
    pub(super) fn peaks(&self) -> Option<Peaks> {
        peaks(&self.values())
    }

    /// Applies a function to each number. It has to be increasing, if there are lower bounds.
    pub(super) fn map(&self, with: impl Fn(f64) -> f64) -> Sample {
        match self {
            Sample::Runs(values) => {
                Sample::of_runs(values.iter().map(|(at, it)| (*at, it.map(&with))))
            }
            Sample::Exactly(value) => Sample::Exactly(with(*value)),
        }
    }

    /// Combines the numbers of each pair of runs. If either number is a lower bound, the result counts as one too: it is not known.
    pub(super) fn zip(&self, other: &Sample, with: impl Fn(f64, f64) -> f64) -> Sample {
        let of_runs =
            |values: &BTreeMap<Pairing, Measured>,
             pair: &dyn Fn(&Pairing, Measured) -> Option<Measured>| {
                let paired = values
                    .iter()
                    .filter_map(|(at, it)| Some((*at, pair(at, *it)?)));
                Sample::of_runs(paired)
            };
        let both = |one: Measured, two: Measured| {
            let value = with(one.least(), two.least());
            match (one.known(), two.known()) {
                (Some(_), Some(_)) => Measured::Exactly(value),
                _ => Measured::AtLeast(value),
            }
        };
        match (self, other) {
            (Sample::Exactly(one), Sample::Exactly(two)) => Sample::Exactly(with(*one, *two)),
            (Sample::Exactly(one), Sample::Runs(runs)) => {
                of_runs(runs, &|_, two| Some(both((*one).into(), two)))
            }
            (Sample::Runs(runs), Sample::Exactly(two)) => {
                of_runs(runs, &|_, one| Some(both(one, (*two).into())))
            }
            (Sample::Runs(runs), Sample::Runs(others)) => {
                of_runs(runs, &|at, one| Some(both(one, *others.get(at)?)))
            }
        }
    }

    /// Of the runs that all samples have, their numbers in one; nothing of no sample.
    pub(super) fn fold(
        samples: impl IntoIterator<Item = Sample>,
        with: impl Fn(f64, f64) -> f64,
    ) -> Sample {
        let all = samples.into_iter();
        let folded = all.reduce(|one, two| one.zip(&two, &with));
        folded.unwrap_or(Sample::Runs(BTreeMap::new()))
    }

    fn pairs(&self, other: &Sample) -> Pairs {
        let mut pairs = Vec::new();
        let lefts = self.zip(other, |left, _| left);
        let rights = self.zip(other, |_, right| right);
        match (lefts, rights) {
            (Sample::Runs(lefts), Sample::Runs(rights)) => {
                let least =
                    |values: BTreeMap<Pairing, Measured>| values.into_values().map(Measured::least);
                pairs.extend(least(lefts).zip(least(rights)));
                Pairs::Runs(pairs)
            }
            (left, right) => Pairs::Exactly(left.median(), right.median()),
        }
    }
}

enum Pairs {
    Runs(Vec<(f64, f64)>),
    Exactly(Option<f64>, Option<f64>),
}

/// A number of every run of some contestants.
pub(super) fn of_runs<'a>(
    runs: impl Iterator<Item = &'a Run>,
    pick: impl Fn(&Run) -> Option<Measured>,
) -> Sample {
    Sample::of_runs(runs.filter_map(|run| Some(((run.seed, run.repetition), pick(run)?))))
}

/// The verdict of runs on a claim, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// The interval lies on the claim's side of the limit.
    #[serde(rename = "holds")]
    Holds,
    /// The claim's limit is within its interval, or there is none, as of one run.
    #[serde(rename = "undecided")]
    Undecided,
    /// The runs that it needs are missing.
    #[serde(rename = "not measured")]
    NotMeasured,
    /// The interval lies on the other side of the limit.
    #[serde(rename = "does not hold")]
    Fails,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Undecided => "undecided",
            Verdict::NotMeasured => "not measured",
            Verdict::Fails => "does not hold",
        }
    }

    /// The verdict on a published sentence, in words.
    pub(super) fn of_a_sentence(self) -> &'static str {
        match self {
            Verdict::Holds => "reproduced",
            Verdict::Undecided => "undecided",
            Verdict::NotMeasured => "not measured",
            Verdict::Fails => "contradicted",
        }
    }

    /// Whether something is known to be on one side of a limit.
    fn of_limit(side: Side, limit: f64, interval: Option<(f64, f64)>) -> Verdict {
        let Some((low, high)) = interval else {
            return Verdict::Undecided;
        };
        let (near, far) = match side {
            Side::AtLeast => (low, high),
            Side::AtMost => (high, low),
        };
        if side.holds(near, limit) {
            Verdict::Holds
        } else if side.holds(far, limit) {
            Verdict::Undecided
        } else {
            Verdict::Fails
        }
    }
}

/// On which side of a limit something is claimed to be.
#[derive(Clone, Copy)]
enum Side {
    AtLeast,
    AtMost,
}

impl Side {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Side::AtLeast => value >= limit,
            Side::AtMost => value <= limit,
        }
    }

    /// How far a ratio is on this side of its limit.
    fn margin(self, ratio: f64, limit: f64) -> f64 {
        match self {
            Side::AtLeast => ratio / limit,
            Side::AtMost => limit / ratio,
        }
    }
}

/// A claim that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The claim, in words.
    pub claim: String,
    /// The numbers that it was compared with, in words.
    pub measured: String,
    /// The verdict of the runs.
    pub verdict: Verdict,
}

/// The result of one comparison.
struct Compared {
    verdict: Verdict,
    /// The result in words.
    text: String,
    /// How far the near end is on the claim's side of the limit, so that the worst of several is the lowest.
    margin: f64,
}

impl Check {
    /// Claims that `left` is at least `factor` times `right`.
    pub(super) fn at_least(claim: &str, left: &Sample, factor: f64, right: &Sample) -> Check {
        Check::one(claim, compare(left, (Side::AtLeast, factor), right))
    }

    /// Claims that `left` is at most `factor` times `right`.
    pub(super) fn at_most(claim: &str, left: &Sample, factor: f64, right: &Sample) -> Check {
        Check::one(claim, compare(left, (Side::AtMost, factor), right))
    }

    fn one(claim: &str, compared: Compared) -> Check {
        Check {
            claim: claim.to_owned(),
            measured: compared.text,
            verdict: compared.verdict,
        }
    }

    /// Claims that everywhere the first is at least `factor` times the second; tells of the worst place.
    pub(super) fn everywhere(
        claim: &str,
        factor: f64,
        places: impl IntoIterator<Item = (String, Sample, Sample)>,
    ) -> Check {
        Check::worst(claim, (Side::AtLeast, factor), places)
    }

    /// Claims that nowhere the first is above `factor` times the second; tells of the worst place.
    pub(super) fn nowhere_above(
        claim: &str,
        factor: f64,
        places: impl IntoIterator<Item = (String, Sample, Sample)>,
    ) -> Check {
        Check::worst(claim, (Side::AtMost, factor), places)
    }

    fn worst(
        claim: &str,
        limit: (Side, f64),
        places: impl IntoIterator<Item = (String, Sample, Sample)>,
    ) -> Check {
        let mut verdict = None::<Verdict>;
        let mut worst: Option<(f64, String)> = None;
        let (mut count, mut undecided) = (0, 0);
        for (place, left, right) in places {
            let one = compare(&left, limit, &right);
            verdict = Some(verdict.map_or(one.verdict, |so_far| so_far.max(one.verdict)));
            count += 1;
            undecided += usize::from(one.verdict == Verdict::Undecided);
            if worst
                .as_ref()
                .is_none_or(|(margin, _)| one.margin < *margin)
            {
                worst = Some((one.margin, format!("{place}: {}", one.text)));
            }
        }
        let worst = worst.map_or("–".to_owned(), |(_, text)| text);
        let undecided = match undecided {
            0 => String::new(),
            some => format!("; undecided in {some} of {count} places"),
        };
        Check {
            claim: claim.to_owned(),
            measured: format!("{worst}{undecided}"),
            verdict: verdict.unwrap_or(Verdict::NotMeasured),
        }
    }
}

/// Of numbers that are only known to be at least so much, some may be larger: then what is claimed to be smaller than something is not known to
/// be so, nor what is claimed to be larger not to be.
fn compare(left: &Sample, limit: (Side, f64), right: &Sample) -> Compared {
    let compared = compare_least(left, limit, right);
    let (smaller, larger) = match limit.0 {
        Side::AtLeast => (right, left),
        Side::AtMost => (left, right),
    };
    let verdict = match compared.verdict {
        Verdict::Holds if smaller.is_cut_off() => Verdict::Undecided,
        Verdict::Fails if larger.is_cut_off() => Verdict::Undecided,
        verdict => verdict,
    };
    Compared {
        verdict,
        ..compared
    }
}

fn compare_least(left: &Sample, (side, factor): (Side, f64), right: &Sample) -> Compared {
    let show = |sample: &Sample| match sample.median().map(|middle| sample.known(middle)) {
        Some(Measured::Exactly(value)) => number(value),
        Some(Measured::AtLeast(value)) => format!("> {}", number(value)),
        None => "–".to_owned(),
    };
    let sides = format!("{} against {}", show(left), show(right));
    let pairs = match left.pairs(right) {
        Pairs::Exactly(left, right) => {
            let verdict = match left.zip(right) {
                Some((left, right)) if side.holds(left, factor * right) => Verdict::Holds,
                Some(_) => Verdict::Fails,
                None => Verdict::NotMeasured,
            };
            let margin = left.zip(right).map_or(f64::NEG_INFINITY, |(left, right)| {
                side.margin(left / right, factor)
            });
            return Compared {
                verdict,
                text: sides,
                margin,
            };
        }
        Pairs::Runs(pairs) => pairs,
    };
    if pairs.is_empty() {
        return Compared {
            verdict: Verdict::NotMeasured,
            text: sides,
            margin: f64::NEG_INFINITY,
        };
    }
    let count = match pairs.len() {
        1 => "one pair".to_owned(),
        count => format!("{count} pairs"),
    };
    let between = |interval: Option<(f64, f64)>| match interval {
        Some((low, high)) => format!(" ({} to {}, {count})", number(low), number(high)),
        None => format!(" ({count})"),
    };
    if let Some(ratio) = paired_ratio(&pairs) {
        let near = match (side, ratio.interval) {
            (Side::AtLeast, Some((low, _))) => low,
            (Side::AtMost, Some((_, high))) => high,
            (_, None) => ratio.middle,
        };
        return Compared {
            verdict: Verdict::of_limit(side, factor, ratio.interval),
            text: format!(
                "{sides}: {} times{}",
                number(ratio.middle),
                between(ratio.interval)
            ),
            margin: side.margin(near, factor),
        };
    }
    // Values of zero or less have no ratio, so their difference is judged.
    let beyond = pairs.iter().map(|(left, right)| match side {
        Side::AtLeast => left - factor * right,
        Side::AtMost => factor * right - left,
    });
    let beyond: Vec<f64> = beyond.collect();
    let (middle, interval) = centre(&beyond).unwrap_or((f64::NAN, None));
    let word = match side {
        Side::AtLeast => "more",
        Side::AtMost => "less",
    };
    Compared {
        verdict: Verdict::of_limit(Side::AtLeast, 0.0, interval),
        text: format!(
            "{sides}: {} {word} than claimed{}",
            number(middle),
            between(interval)
        ),
        margin: interval.map_or(middle, |(low, _)| low),
    }
}

/// Shows a number with at least three digits; large numbers without decimal places.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        large if large >= 0.1 => format!("{value:.3}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        _ => format!("{value:.5}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(values: &[f64]) -> Sample {
        Sample::of_seeds((1..).zip(values.iter().copied()))
    }

    fn verdict(left: &Sample, factor: f64, right: &Sample) -> Verdict {
        Check::at_least("", left, factor, right).verdict
    }

    const TEN: [f64; 10] = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 10.3, 9.7, 10.1, 9.9];

    #[test]
    fn the_near_end_decides() {
        let (left, right) = (seeds(&TEN), Sample::Exactly(1.0));
        assert_eq!(verdict(&left, 9.0, &right), Verdict::Holds);
        // The median is above, its interval is not.
        assert_eq!(verdict(&left, 9.99, &right), Verdict::Undecided);
        assert_eq!(verdict(&left, 11.0, &right), Verdict::Fails);
        let check = Check::at_least("c", &left, 9.0, &right);
        assert!(check.measured.ends_with("10 pairs)"), "{}", check.measured);
    }

    #[test]
    fn what_is_at_most_so_much_is_shown_as_its_part_of_that() {
        let (ours, theirs) = (seeds(&TEN).map(|it| 0.5 * it), seeds(&TEN));
        let check = Check::at_most("", &ours, 0.6, &theirs);
        let shown = "5 against 10: 0.5 times (0.5 to 0.5, 10 pairs)";
        assert_eq!(
            (check.measured.as_str(), check.verdict),
            (shown, Verdict::Holds)
        );
        let verdict = |left: &Sample, limit: f64| {
            Check::at_most("", left, limit, &Sample::Exactly(1.0)).verdict
        };
        // The far end is below, the near one is not.
        assert_eq!(verdict(&seeds(&TEN), 10.01), Verdict::Undecided);
        assert_eq!(verdict(&seeds(&TEN), 9.0), Verdict::Fails);
        assert_eq!(verdict(&seeds(&TEN), 11.0), Verdict::Holds);
        assert_eq!(verdict(&Sample::Exactly(2.0), 2.0), Verdict::Holds);
        assert_eq!(verdict(&Sample::Exactly(2.1), 2.0), Verdict::Fails);
        // Nothing is at most anything, and has no ratio.
        let none = Check::at_most("", &seeds(&[0.0; 3]), 1.0, &Sample::Exactly(0.01));
        let shown = "0 against 0.01: 0.01 less than claimed (0.01 to 0.01, 3 pairs)";
        assert_eq!(
            (none.measured.as_str(), none.verdict),
            (shown, Verdict::Holds)
        );
    }

    #[test]
    fn one_run_decides_nothing() {
        assert_eq!(
            verdict(&seeds(&[500.0]), 5.0, &seeds(&[1.0])),
            Verdict::Undecided
        );
    }

    #[test]
    fn both_sides_have_to_be_measured() {
        assert_eq!(
            verdict(&seeds(&[]), 5.0, &seeds(&TEN)),
            Verdict::NotMeasured
        );
        let other_seeds = Sample::of_seeds([(100, 1.0), (101, 1.0)]);
        assert_eq!(
            verdict(&seeds(&TEN), 5.0, &other_seeds),
            Verdict::NotMeasured
        );
    }

    #[test]
    fn runs_are_compared_with_those_of_their_seed() {
        // Seeds differ by more than what is compared.
        let links: Vec<f64> = (1..=10).map(f64::from).collect();
        let better: Vec<f64> = links.iter().map(|it| it * 1.02).collect();
        assert_eq!(
            verdict(&seeds(&better), 1.01, &seeds(&links)),
            Verdict::Holds
        );
        let shuffled: Vec<f64> = better.iter().rev().copied().collect();
        assert_eq!(
            verdict(&seeds(&shuffled), 1.01, &seeds(&links)),
            Verdict::Undecided
        );
    }

    #[test]
    fn what_is_nothing_is_compared_by_differences() {
        let stalls = seeds(&[9.0, 11.0, 10.0]);
        let none = seeds(&[0.0, 0.0, 0.0]);
        assert_eq!(verdict(&stalls, 2.0, &none), Verdict::Holds);
        assert_eq!(verdict(&none, 1.0, &stalls), Verdict::Fails);
        assert_eq!(verdict(&none, 1.0, &none), Verdict::Holds);
    }

    /// Who is cut off took longer than is known: that is for a claim that it takes long, and never for one that it does not.
    #[test]
    fn what_was_cut_off_shows_nothing_to_be_short() {
        let mut cut = TEN.map(Measured::Exactly);
        cut[3] = Measured::AtLeast(10.2);
        let cut = Sample::of_seeds((1..).zip(cut));
        let limit = Sample::Exactly;
        assert_eq!(verdict(&limit(20.0), 1.0, &seeds(&TEN)), Verdict::Holds);
        assert_eq!(verdict(&limit(20.0), 1.0, &cut), Verdict::Undecided);
        assert_eq!(verdict(&limit(5.0), 1.0, &cut), Verdict::Fails);
        assert_eq!(verdict(&cut, 1.0, &limit(5.0)), Verdict::Holds);
        assert_eq!(verdict(&cut, 1.0, &limit(20.0)), Verdict::Undecided);
        let all = Sample::of_seeds((1..).zip(TEN.map(Measured::AtLeast)));
        let check = Check::at_least("", &all, 1.0, &limit(5.0));
        assert!(
            check.measured.starts_with("> 10 against 5:"),
            "{}",
            check.measured
        );
    }

    #[test]
    fn computed_numbers_need_no_interval() {
        let exactly = Sample::Exactly;
        assert_eq!(verdict(&exactly(3.0), 1.5, &exactly(2.0)), Verdict::Holds);
        assert_eq!(verdict(&exactly(2.9), 1.5, &exactly(2.0)), Verdict::Fails);
    }

    #[test]
    fn the_worst_place_counts() {
        let places = |factor| {
            let place = |name: &str, by: f64| {
                let sample = seeds(&TEN).map(|it| it * by);
                (name.to_owned(), sample, seeds(&TEN))
            };
            Check::everywhere(
                "",
                factor,
                [place("a", 1.5), place("b", 1.1), place("c", 1.3)],
            )
        };
        assert_eq!(places(1.0).verdict, Verdict::Holds);
        assert!(
            places(1.0).measured.starts_with("b: "),
            "{}",
            places(1.0).measured
        );
        assert_eq!(places(1.2).verdict, Verdict::Fails);
        let none = Check::everywhere("", 1.0, []);
        assert_eq!(none.verdict, Verdict::NotMeasured);
        let places = [0.5, 0.9, 0.7].map(|by| {
            let sample = seeds(&TEN).map(|it| it * by);
            (format!("{by}"), sample, seeds(&TEN))
        });
        let above = |limit| Check::nowhere_above("", limit, places.clone());
        assert_eq!(above(1.0).verdict, Verdict::Holds);
        assert_eq!(above(0.8).verdict, Verdict::Fails);
        let shown = above(0.8).measured;
        assert!(shown.starts_with("0.9: 9 against 10: 0.9 times"), "{shown}");
    }
}
