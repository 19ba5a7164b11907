//! Runs that differ only in their seed.

use serde::Serialize;

use crate::{
    Cell, Latencies, PageTimes, Run, Validity, VideoNumbers,
    latency::{dropped_share, late_share},
    stats::{Measured, interval, median},
};

/// The runs of one contestant in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The contestant.
    pub contestant: String,
    /// What was measured, runs in which the emulator was starved included.
    pub runs: Vec<Run>,
    /// Why there are runs without a result.
    pub failures: Vec<String>,
}

/// Medians over the runs that may be quoted (over all, if none may).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupNumbers {
    /// Median goodput: payload megabits per second.
    pub goodput_mbit_s: f64,
    /// The interval of the goodput that [`interval`] gives.
    pub goodput_interval: Option<(f64, f64)>,
    /// (Largest − smallest) / median of the goodput.
    pub goodput_spread: f64,
    /// Goodput / (rate × (1 − loss)), where a rate that varies is what it was on average in each run's time; for blocks,
    /// goodput / offered rate.
    pub goodput_ratio: f64,
    /// Share of the task's bytes that arrived before the cut-off.
    pub delivered: f64,
    /// IP bytes sent forward per payload byte.
    pub wire_ratio: f64,
    /// The same × (1 − loss): what a perfect transport without headers holds at 1.
    pub wire_ratio_delivered: f64,
    /// Share of the sender's packets dropped at the queue.
    pub queue_drop_share: f64,
    /// How long 95 of 100 packets waited for the link at most, in milliseconds.
    pub wait_p95_ms: Option<f64>,
    /// CPU seconds of both processes per GB; none in virtual time.
    pub cpu_seconds_per_gb: Option<f64>,
    /// CPU seconds of the whole machine per GB.
    pub machine_seconds_per_gb: Option<f64>,
    /// The most memory that either process was seen to need, in bytes.
    pub peak_rss: Option<u64>,
    /// Medians of each run's latency statistics.
    pub blocks: Option<Latencies>,
    /// The interval of the runs' mean latencies, if all are known.
    pub mean_ms_interval: Option<(f64, f64)>,
    /// The interval of the runs' 99th percentiles, if all are known.
    pub p99_ms_interval: Option<(f64, f64)>,
    /// Share of messages that were late or missing, without the warm-up.
    pub late_share: Option<Measured>,
    /// Share of messages that did not come at all, without the warm-up.
    pub dropped_share: Option<Measured>,
    /// Packets sent forward per block or message delivered.
    pub packets_per_block: Option<f64>,
    /// Medians over the runs' videos; the buffer over time is that of the first.
    pub video: Option<VideoNumbers>,
    /// Medians over the runs' pages.
    pub web: Option<PageTimes>,
    /// Runs with everything delivered before the cut-off.
    pub runs_complete: usize,
    /// Runs that the medians are from.
    pub runs_used: usize,
    /// All runs with a result.
    pub runs: usize,
    /// Whether the runs used are valid, noisy or starved: the worst of them.
    pub validity: Validity,
}

impl Group {
    /// An empty group.
    pub fn new(contestant: &str) -> Group {
        Group {
            contestant: contestant.to_owned(),
            runs: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The runs that count.
    pub fn used(&self) -> impl Iterator<Item = &Run> {
        let runs = self.runs.iter();
        runs.filter(|run| run.validity != Validity::Starved)
    }

    /// The runs that do not count, as the emulator was starved.
    pub fn left_out(&self) -> impl Iterator<Item = &Run> {
        let runs = self.runs.iter();
        runs.filter(|run| run.validity == Validity::Starved)
    }

    /// The medians; none without a run.
    pub fn numbers(&self, cell: &Cell) -> Option<GroupNumbers> {
        // Best first, so that the first one's kind is the best there is.
        let kinds = [Validity::Valid, Validity::Noisy, Validity::Starved];
        let mut used: Vec<&Run> = self.used().collect();
        if used.is_empty() {
            used = self.runs.iter().collect();
        }
        let validity = kinds
            .into_iter()
            .rev()
            .find(|&kind| used.iter().any(|run| run.validity == kind))?;
        let over = |pick: &dyn Fn(&Run) -> f64| median(used.iter().map(|run| pick(run)));
        let goodput = over(&|run| run.goodput_mbit_s)?;
        let rates = || used.iter().map(|run| run.goodput_mbit_s);
        let spread = rates().fold(f64::MIN, f64::max) - rates().fold(f64::MAX, f64::min);
        let delivered = 1.0 - cell.link.forward_loss();
        let wire_ratio = over(&Run::wire_ratio)?;
        let latencies: Vec<Latencies> = used
            .iter()
            .filter_map(|run| Latencies::of(cell, run))
            .collect();
        let pages: Vec<PageTimes> = used
            .iter()
            .filter_map(|run| PageTimes::of(cell, run))
            .collect();
        Some(GroupNumbers {
            goodput_mbit_s: goodput,
            goodput_interval: interval(&rates().collect::<Vec<_>>()),
            goodput_spread: if goodput > 0.0 { spread / goodput } else { 0.0 },
            goodput_ratio: over(&|run| run.goodput_mbit_s * 1e6 / cell.reference_bits(run))?,
            delivered: over(&|run| run.done.bytes as f64)? / cell.workload.bytes().max(1) as f64,
            wire_ratio,
            wire_ratio_delivered: wire_ratio * delivered,
            queue_drop_share: over(&Run::queue_drop_share)?,
            wait_p95_ms: over(&|run| run.wire.wait_p95_ms.unwrap_or(f64::NAN)),
            cpu_seconds_per_gb: over(&|run| run.cpu_seconds_per_gb().unwrap_or(f64::NAN)),
            machine_seconds_per_gb: over(&|run| run.machine_seconds_per_gb().unwrap_or(f64::NAN)),
            peak_rss: used
                .iter()
                .flat_map(|run| [run.memory.sender, run.memory.receiver])
                .max()
                .flatten(),
            blocks: Latencies::medians(&latencies),
            mean_ms_interval: known_interval(&latencies, |one| one.mean_ms),
            p99_ms_interval: known_interval(&latencies, |one| one.p99_ms),
            late_share: Measured::median(used.iter().filter_map(|run| late_share(cell, run))),
            dropped_share: Measured::median(used.iter().filter_map(|run| dropped_share(cell, run))),
            packets_per_block: cell.workload.block_bytes().and_then(|bytes| {
                over(&|run| run.wire.forward_packets as f64 * bytes as f64 / run.done.bytes as f64)
            }),
            video: video(&used),
            web: PageTimes::medians(&pages),
            runs_complete: used.iter().filter(|run| run.done.complete).count(),
            runs_used: used.len(),
            runs: self.runs.len(),
            validity,
        })
    }
}

fn known_interval(runs: &[Latencies], pick: fn(&Latencies) -> Measured) -> Option<(f64, f64)> {
    let values: Option<Vec<f64>> = runs.iter().map(|one| pick(one).known()).collect();
    interval(&values?)
}

fn video(runs: &[&Run]) -> Option<VideoNumbers> {
    let all: Vec<&VideoNumbers> = runs
        .iter()
        .filter_map(|run| run.done.video.as_ref())
        .collect();
    let over = |pick: fn(&VideoNumbers) -> f64| median(all.iter().map(|one| pick(one)));
    Some(VideoNumbers {
        startup_seconds: over(|one| one.startup_seconds.unwrap_or(f64::NAN)),
        stalls: over(|one| one.stalls as f64)? as u64,
        stall_seconds: over(|one| one.stall_seconds)?,
        segments: over(|one| one.segments as f64)? as u64,
        mean_mbit_s: over(|one| one.mean_mbit_s)?,
        switches: over(|one| one.switches as f64)? as u64,
        levels: all.first()?.levels.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{BlockNumbers, cell::tests::cell, run::tests::example};

    fn group(goodputs: &[(f64, Validity)]) -> Group {
        let mut group = Group::new("x");
        for (&(goodput_mbit_s, validity), seed) in goodputs.iter().zip(1..) {
            group.runs.push(Run {
                goodput_mbit_s,
                validity,
                ..example("x", seed)
            });
        }
        group
    }

    #[test]
    fn medians_of_what_may_be_quoted() {
        let group = group(&[
            (150.0, Validity::Valid),
            (170.0, Validity::Noisy),
            (160.0, Validity::Valid),
            (10.0, Validity::Starved),
        ]);
        let numbers = group.numbers(&cell("r10-l6")).unwrap();
        assert_eq!(
            (numbers.goodput_mbit_s, numbers.validity),
            (160.0, Validity::Noisy)
        );
        assert_eq!(
            (numbers.runs_used, numbers.runs, numbers.runs_complete),
            (3, 4, 3)
        );
        assert!((numbers.goodput_spread - 0.125).abs() < 1e-9);
        assert!((numbers.goodput_ratio - 160.0 / 188.0).abs() < 1e-9);
        assert!((numbers.wire_ratio_delivered - 1.2 * 0.94).abs() < 1e-9);
    }

    #[test]
    fn a_run_is_compared_with_what_its_link_could_deliver() {
        let mut cell = cell("r10-l6");
        let settings = [("rate", "routes:10mbit-100mbit,15s,50ms-200ms")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        cell.link = (cell.link.with_settings(&settings.into(), &read)).unwrap();
        let mut group = Group::new("x");
        for seed in 1..=3 {
            let mut run = example("x", seed);
            run.done.seconds = 10.0;
            let offered = cell.link.rate_until(seed, Duration::from_secs(10));
            run.goodput_mbit_s = offered * 0.94 * 0.8 / 1e6;
            group.runs.push(run);
        }
        let numbers = group.numbers(&cell).unwrap();
        assert!((numbers.goodput_ratio - 0.8).abs() < 1e-9, "{numbers:?}");
    }

    #[test]
    fn starved_runs_alone_are_shown_as_such() {
        let group = group(&[(10.0, Validity::Starved)]);
        let numbers = group.numbers(&cell("r10-l6")).unwrap();
        assert_eq!(
            (numbers.runs_used, numbers.validity),
            (1, Validity::Starved)
        );
    }

    #[test]
    fn nothing_has_no_numbers() {
        assert_eq!(Group::new("x").numbers(&cell("r10-l6")), None);
    }

    #[test]
    fn blocks_are_compared_with_what_was_offered() {
        let mut group = group(&[(20.0, Validity::Valid)]);
        group.runs[0].done.blocks = Some(BlockNumbers {
            count: 600,
            due: Some(600),
            mean_ms: 9.5,
            p50_ms: Some(9.4),
            p99_ms: Some(10.0),
            max_ms: 11.0,
        });
        let cell = cell("blocks20-l6");
        let numbers = group.numbers(&cell).unwrap();
        assert!((numbers.goodput_ratio - 1.0).abs() < 1e-9);
        assert_eq!(numbers.blocks, Latencies::of(&cell, &group.runs[0]));
    }
}
