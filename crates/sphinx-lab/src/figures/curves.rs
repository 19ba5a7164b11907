//! From results to curves, tables and CSV.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_codes::svg::{Series, Style};

use super::claim::{Sample, of_runs};
use crate::{
    Cell, Group, GroupNumbers, Latencies, PageTimes, Run, Validity,
    latency::{dropped_share, late_share},
    runner::Results,
    stats::{Measured, Peaks},
};

/// Bytes of the packets that the paper counts.
const PAPER_PACKET_BYTES: f64 = 1000.0;

/// Takes a number from a run; `None` if it has none.
pub(super) type Pick = fn(&Cell, &Run) -> Option<Measured>;

pub(super) fn goodput(_: &Cell, run: &Run) -> Option<Measured> {
    Some(run.goodput_mbit_s.into())
}

/// Goodput as a share of what a perfect transport without headers would have carried.
pub(super) fn share(cell: &Cell, run: &Run) -> Option<Measured> {
    Some((run.goodput_mbit_s * 1e6 / cell.reference_bits(run)).into())
}

pub(super) fn mean_ms(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(Latencies::of(cell, run)?.mean_ms)
}

pub(super) fn p99_ms(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(Latencies::of(cell, run)?.p99_ms)
}

pub(super) fn extra_percent(_: &Cell, run: &Run) -> Option<Measured> {
    Some(((run.wire_ratio() - 1.0) * 100.0).into())
}

pub(super) fn late_percent(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(late_share(cell, run)?.map(|share| share * 100.0))
}

pub(super) fn dropped_percent(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(dropped_share(cell, run)?.map(|share| share * 100.0))
}

pub(super) fn wire_ratio(_: &Cell, run: &Run) -> Option<Measured> {
    Some(run.wire_ratio().into())
}

/// IP bytes on the way back, feedback mostly, for a byte delivered.
pub(super) fn back_ratio(_: &Cell, run: &Run) -> Option<Measured> {
    let ratio = run.wire.back_bytes as f64 / run.done.bytes as f64;
    (run.done.bytes > 0).then_some(ratio.into())
}

pub(super) fn wait_p95_ms(_: &Cell, run: &Run) -> Option<Measured> {
    run.wire.wait_p95_ms.map(Into::into)
}

pub(super) fn packets_per_message(cell: &Cell, run: &Run) -> Option<Measured> {
    let bytes = cell.workload.block_bytes()? as f64;
    Some((run.wire.forward_packets as f64 * bytes / run.done.bytes as f64).into())
}

pub(super) fn page_ms(cell: &Cell, run: &Run) -> Option<Measured> {
    Some(PageTimes::of(cell, run)?.page_ms_mean)
}

pub(super) fn delivered_percent(cell: &Cell, run: &Run) -> Option<Measured> {
    Some((run.done.bytes as f64 / cell.workload.bytes().max(1) as f64 * 100.0).into())
}

pub(super) fn cpu_seconds_per_gb(_: &Cell, run: &Run) -> Option<Measured> {
    run.cpu_seconds_per_gb().map(Into::into)
}

pub(super) fn machine_seconds_per_gb(_: &Cell, run: &Run) -> Option<Measured> {
    run.machine_seconds_per_gb().map(Into::into)
}

/// What may be quoted of a group; nothing of one that only has starved runs.
pub(super) fn quotable(cell: &Cell, group: &Group) -> Option<GroupNumbers> {
    let numbers = group.numbers(cell)?;
    (numbers.validity != Validity::Starved).then_some(numbers)
}

/// The numbers of a contestant's runs in a cell, those left out that the emulator was starved in.
pub(super) fn sample(results: &Results, cell: &str, contestant: &str, pick: Pick) -> Sample {
    match results.group(cell, contestant) {
        Some((cell, group)) => of_group(cell, group, pick),
        None => Sample::Runs(BTreeMap::new()),
    }
}

fn of_group(cell: &Cell, group: &Group, pick: Pick) -> Sample {
    of_runs(group.used(), |run| pick(cell, run))
}

/// The numbers of a contestant's runs, which fall into two heaps at times: then there is no middle.
pub(super) fn shown(sample: &Sample, places: usize) -> String {
    match (sample.peaks(), sample.median()) {
        (Some(Peaks { medians, counts }), _) => {
            let [low, high] = medians.map(|value| sample.known(value));
            let [few, many] = counts;
            format!("{low:.places$} or {high:.places$} ({few} and {many} runs)")
        }
        (None, Some(value)) => format!("{:.places$}", sample.known(value)),
        (None, None) => "–".to_owned(),
    }
}

/// Loss towards the receiver in per cent.
pub(super) fn loss_percent(cell: &Cell) -> f64 {
    (cell.link.forward_loss() * 1e6).round() / 1e4
}

/// Shows the median with its interval.
pub(super) fn in_interval(sample: &Sample, places: usize) -> String {
    let middle = shown(sample, places);
    match (sample.peaks(), sample.interval()) {
        (None, Some((low, high))) => format!("{middle} ({low:.places$} to {high:.places$})"),
        _ => middle,
    }
}

/// One curve per contestant, through the medians of its runs; every run is drawn, and as crosses those left out, and those that were cut off
/// before their number was known, at what it is at least. Where runs fall into two heaps there is no median.
pub(super) fn curves(results: &Results, x: &dyn Fn(&Cell) -> f64, pick: Pick) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (cell, groups) in &results.cells {
        for group in groups {
            let at = x(cell);
            let curve = match all.iter().position(|one| one.name == group.contestant) {
                Some(known) => &mut all[known],
                None => {
                    all.push(Series::new(&group.contestant, Style::Line, Vec::new()));
                    all.last_mut().unwrap_or_else(|| unreachable!("just added"))
                }
            };
            let sample = of_group(cell, group, pick);
            place(curve, at, &sample);
            let left_out = group.left_out().filter_map(|run| pick(cell, run));
            curve
                .crosses
                .extend(left_out.map(|value| (at, value.least())));
        }
    }
    all.retain(|curve| !(curve.dots.is_empty() && curve.crosses.is_empty()));
    all
}

/// Adds a place to a curve.
pub(super) fn place(curve: &mut Series, at: f64, sample: &Sample) {
    for value in sample.measured() {
        match value {
            Measured::Exactly(value) => curve.dots.push((at, value)),
            Measured::AtLeast(value) => curve.crosses.push((at, value)),
        }
    }
    if let (None, Some(median)) = (sample.peaks(), sample.median()) {
        curve.points.push((at, median));
        if let Some((low, high)) = sample.interval() {
            curve.ranges.push((at, low, high));
        }
    }
}

/// A row per contestant, a column per cell.
pub(super) fn table(
    results: &Results,
    column: &dyn Fn(&Cell) -> String,
    places: usize,
    pick: Pick,
) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = vec![String::new()];
    header.extend(results.cells.iter().map(|(cell, _)| column(cell)));
    let mut rows: Vec<Vec<String>> = results
        .contestants()
        .map(|name| {
            let value = |cell: &Cell| shown(&sample(results, &cell.name, name, pick), places);
            let mut row = vec![name.to_owned()];
            row.extend(results.cells.iter().map(|(cell, _)| value(cell)));
            row
        })
        .collect();
    for (name, _) in &results.missing {
        let mut row = vec![name.clone()];
        row.resize(header.len(), "missing".to_owned());
        rows.push(row);
    }
    (header, rows)
}

const COLUMNS: &str = "cell,contestant,loss_percent,rtt_ms,rate_mbit_s,goodput_mbit_s,goodput_low,\
    goodput_high,packets_per_s,block_interval_ms,goodput_ratio,wire_ratio,queue_drop_share,wait_p95_ms,\
    cpu_seconds_per_gb,machine_seconds_per_gb,peak_rss_bytes,blocks,block_ms_mean,block_ms_mean_low,\
    block_ms_mean_high,block_ms_p50,block_ms_p99,block_ms_p99_low,block_ms_p99_high,block_ms_max,\
    messages_late_share,messages_dropped_share,packets_per_block,startup_seconds,stalls,stall_seconds,quality_mbit_s,page_ms_mean,page_ms_max,\
    object_ms_p99,runs,runs_used,runs_complete,validity,clock,\
    runs_left_out,seeds,commits\n";

/// Everything about every group, a line each.
pub(super) fn csv(results: &Results) -> String {
    let mut csv = COLUMNS.to_owned();
    let show = |value: Option<f64>| match value {
        Some(value) if value.is_finite() => format!("{}", (value * 1e4).round() / 1e4),
        _ => String::new(),
    };
    // A value of which only a lower bound is known is left empty.
    let known = |value: Option<Measured>| show(value.and_then(Measured::known));
    for (cell, groups) in &results.cells {
        for group in groups {
            let Some(numbers) = group.numbers(cell) else {
                continue;
            };
            let bytes_per_s = numbers.goodput_mbit_s * 1e6 / 8.0;
            let interval = |range: Option<(f64, f64)>| {
                [show(range.map(|it| it.0)), show(range.map(|it| it.1))]
            };
            let blocks = numbers.blocks;
            let (video, web) = (numbers.video.as_ref(), numbers.web.as_ref());
            let [low, high] = interval(numbers.goodput_interval);
            let [mean_low, mean_high] = interval(numbers.mean_ms_interval);
            let [p99_low, p99_high] = interval(numbers.p99_ms_interval);
            let fields = [
                cell.name.clone(),
                group.contestant.clone(),
                show(Some(loss_percent(cell))),
                show(Some(cell.link.rtt.as_secs_f64() * 1e3)),
                show(Some(cell.link.rate as f64 / 1e6)),
                show(Some(numbers.goodput_mbit_s)),
                low,
                high,
                show(Some((bytes_per_s / PAPER_PACKET_BYTES).round())),
                show(Some(1e5 / bytes_per_s * 1e3)),
                show(Some(numbers.goodput_ratio)),
                show(Some(numbers.wire_ratio)),
                show(Some(numbers.queue_drop_share)),
                show(numbers.wait_p95_ms),
                show(numbers.cpu_seconds_per_gb),
                show(numbers.machine_seconds_per_gb),
                show(numbers.peak_rss.map(|bytes| bytes as f64)),
                show(blocks.map(|blocks| blocks.count as f64)),
                known(blocks.map(|blocks| blocks.mean_ms)),
                mean_low,
                mean_high,
                known(blocks.map(|blocks| blocks.p50_ms)),
                known(blocks.map(|blocks| blocks.p99_ms)),
                p99_low,
                p99_high,
                known(blocks.map(|blocks| blocks.max_ms)),
                known(numbers.late_share),
                known(numbers.dropped_share),
                show(numbers.packets_per_block),
                show(video.and_then(|video| video.startup_seconds)),
                show(video.map(|video| video.stalls as f64)),
                show(video.map(|video| video.stall_seconds)),
                show(video.map(|video| video.mean_mbit_s)),
                known(web.map(|web| web.page_ms_mean)),
                known(web.map(|web| web.page_ms_max)),
                known(web.map(|web| web.object_ms_p99)),
                numbers.runs.to_string(),
                numbers.runs_used.to_string(),
                numbers.runs_complete.to_string(),
                format!("{:?}", numbers.validity).to_lowercase(),
                cell.clock.name().to_owned(),
                group.left_out().count().to_string(),
                listed(group.used().map(|run| run.seed.to_string())),
                listed(
                    group
                        .used()
                        .map(|run| run.made.commit.clone().unwrap_or_default()),
                ),
            ];
            csv += &fields.join(",");
            csv += "\n";
        }
    }
    csv
}

/// Different words, sorted, in one field of CSV.
fn listed(words: impl Iterator<Item = String>) -> String {
    let words: BTreeSet<String> = words.collect();
    Vec::from_iter(words).join(" ")
}

/// What readers must know about the machine before quoting.
pub(super) fn caveat<'a>(all: impl IntoIterator<Item = &'a Results>) -> String {
    let (mut rows, mut first, mut quiet) = (0, 0, 0);
    let (mut noisy, mut unknown, mut starved) = (0, 0, 0);
    // Runs at real-time priority do not wait for other programs, whatever those do.
    let comes_first = |run: &Run| run.made.real_time;
    let is_unknown = |run: &Run| run.cpu.is_none_or(|cpu| cpu.others.is_none());
    for (cell, groups) in all.into_iter().flat_map(|results| &results.cells) {
        for group in groups {
            let Some(numbers) = group.numbers(cell) else {
                continue;
            };
            rows += 1;
            let mut runs = group.used();
            let count = match numbers.validity {
                Validity::Noisy => &mut noisy,
                Validity::Starved => &mut starved,
                Validity::Valid if runs.any(|run| !comes_first(run) && is_unknown(run)) => {
                    &mut unknown
                }
                Validity::Valid if group.used().any(comes_first) => &mut first,
                Validity::Valid => &mut quiet,
            };
            *count += 1;
        }
    }
    if first == rows {
        return "Real traffic, at real-time priority: other programs had to wait.".to_owned();
    }
    if quiet == rows {
        return "Real traffic; the machine was quiet.".to_owned();
    }
    let mut text = "Real traffic.".to_owned();
    for (count, what) in [
        (
            first,
            "runs were at real-time priority: other programs had to wait",
        ),
        (quiet, "the machine was quiet"),
        (
            noisy,
            "other programs used the machine: the emulator was in time, but transports in user space were short of CPU time, and CPU \
             times are worthless",
        ),
        (
            unknown,
            "nothing is known of other programs, but that the emulator was in time",
        ),
        (starved, "the emulator was starved: those are left out"),
    ] {
        if count > 0 {
            text += &format!(" In {count} of {rows} rows {what}.");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{CellSet, machine::Environment, run::tests::example};

    /// A row of each of these runs.
    fn results(runs: Vec<Run>) -> Results {
        let cell = CellSet::Slice.cells(1, Duration::from_secs(1)).remove(0);
        let groups = runs.into_iter().map(|run| Group {
            runs: vec![run],
            ..Group::new("x")
        });
        Results {
            environment: Environment::default(),
            missing: Vec::new(),
            cells: vec![(cell, groups.collect())],
            interrupted: false,
        }
    }

    #[test]
    fn of_a_machine_that_nobody_watched_nothing_is_said() {
        let quiet = example("x", 1);
        let mut unwatched = quiet.clone();
        unwatched.cpu.as_mut().unwrap().others = None;
        let mut first = unwatched.clone();
        first.made.real_time = true;
        let mut noisy = quiet.clone();
        noisy.validity = Validity::Noisy;
        let said = |runs: &[&Run]| caveat([&results(runs.iter().copied().cloned().collect())]);
        assert_eq!(said(&[&quiet]), "Real traffic; the machine was quiet.");
        assert_eq!(
            said(&[&first]),
            "Real traffic, at real-time priority: other programs had to wait."
        );
        let some = said(&[&quiet, &unwatched]);
        let known = "Real traffic. In 1 of 2 rows the machine was quiet. In 1 of 2 rows nothing is known of other programs";
        assert!(some.starts_with(known), "{some}");
        let both = said(&[&noisy, &unwatched, &first]);
        for part in [
            "In 1 of 3 rows other programs used",
            "In 1 of 3 rows nothing",
        ] {
            assert!(both.contains(part), "{both}");
        }
        // The runs of all scenarios are counted together.
        let all = [results(vec![quiet.clone()]), results(vec![noisy])];
        let both = caveat(&all);
        assert!(both.contains("In 1 of 2 rows other programs"), "{both}");
    }
}
