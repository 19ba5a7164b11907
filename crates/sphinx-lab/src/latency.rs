//! What runs say of times and of messages, also those that were cut off: what did not come before that took longer than all that did.

use serde::Serialize;
use serde_json::Value;

use crate::{
    BlockNumbers, Cell, Run, WebNumbers, Workload,
    numbers::messages_measured,
    stats::{Measured, rank},
};

/// Latencies of the blocks that were due behind the warm-up, or of the messages that came.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// Number of blocks or messages that came.
    pub count: u64,
    /// The mean.
    pub mean_ms: Measured,
    /// The median.
    pub p50_ms: Measured,
    /// The time that 99 of 100 blocks do not exceed.
    pub p99_ms: Measured,
    /// The longest latency.
    pub max_ms: Measured,
}

impl Latencies {
    /// The latencies of a run; `None` if nothing was measured.
    pub fn of(cell: &Cell, run: &Run) -> Option<Latencies> {
        match (&cell.workload, run.done.blocks) {
            (Workload::Blocks { .. }, _) if !run.done.complete => Latencies::cut_off(cell, run),
            // Messages that did not arrive are not among the latencies: they are counted elsewhere (`dropped_share`).
            (_, Some(blocks)) => Some(Latencies::all(&blocks)),
            (_, None) => None,
        }
    }

    fn all(blocks: &BlockNumbers) -> Latencies {
        let quantile =
            |value: Option<f64>| value.map_or(Measured::AtLeast(blocks.max_ms), Measured::Exactly);
        Latencies {
            count: blocks.count,
            mean_ms: blocks.mean_ms.into(),
            p50_ms: quantile(blocks.p50_ms),
            p99_ms: quantile(blocks.p99_ms),
            max_ms: blocks.max_ms.into(),
        }
    }

    /// Latencies of a run that was cut off. A missing block has waited at least from its time to the cut-off, so those that were due last
    /// have the smallest lower bound.
    fn cut_off(cell: &Cell, run: &Run) -> Option<Latencies> {
        let Workload::Blocks {
            count: all,
            bytes,
            interval,
        } = cell.workload
        else {
            return None;
        };
        let blocks = run.done.blocks;
        let due = cell.workload.due_after(cell.warmup())?;
        let came = came(cell, run, bytes).min(due);
        let missing = due.saturating_sub(came);
        let interval_ms = interval.as_secs_f64() * 1e3;
        let behind_ms = run.done.seconds * 1e3 - all as f64 * interval_ms;
        let waited_ms =
            |from_the_end: u64| (behind_ms + from_the_end as f64 * interval_ms).max(0.0);
        let most = |one: Option<f64>, other: f64| Measured::AtLeast(one.unwrap_or(0.0).max(other));
        let quantile = |share: f64, of_came: fn(&BlockNumbers) -> Option<f64>| {
            let rank = rank(due, share);
            match blocks.as_ref() {
                Some(blocks) if rank <= came => match (blocks.due, of_came(blocks)) {
                    (Some(_), Some(value)) => Measured::Exactly(value),
                    // This quantile is of the blocks that came alone: of all that were due, it is a lower bound.
                    (_, value) => most(value, 0.0),
                },
                None if rank <= came => most(None, 0.0),
                _ => {
                    let longer = due - rank;
                    let waited = waited_ms(missing.saturating_sub(longer + 1));
                    most(blocks.map(|blocks| blocks.max_ms), waited)
                }
            }
        };
        let mean_came = blocks.map_or(0.0, |blocks| blocks.mean_ms);
        let waited: f64 = (0..missing).map(waited_ms).sum();
        let mean = (mean_came * came as f64 + waited) / due.max(1) as f64;
        Some(Latencies {
            count: blocks.map_or(0, |blocks| blocks.count),
            mean_ms: Measured::AtLeast(mean.max(mean_came)),
            p50_ms: quantile(0.5, |blocks| blocks.p50_ms),
            p99_ms: quantile(0.99, |blocks| blocks.p99_ms),
            max_ms: most(
                blocks.map(|blocks| blocks.max_ms),
                waited_ms(missing.saturating_sub(1)),
            ),
        })
    }

    /// The median of each number over all runs.
    pub(crate) fn medians(all: &[Latencies]) -> Option<Latencies> {
        let over = |pick: fn(&Latencies) -> Measured| Measured::median(all.iter().map(pick));
        let count = over(|one| Measured::Exactly(one.count as f64))?;
        Some(Latencies {
            count: count.least() as u64,
            mean_ms: over(|one| one.mean_ms)?,
            p50_ms: over(|one| one.p50_ms)?,
            p99_ms: over(|one| one.p99_ms)?,
            max_ms: over(|one| one.max_ms)?,
        })
    }
}

/// Times of pages and their objects, as [`WebNumbers`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PageTimes {
    /// Number of whole pages.
    pub pages: u64,
    /// Mean time of a page.
    pub page_ms_mean: Measured,
    /// The median.
    pub page_ms_p50: Measured,
    /// The longest time of a page.
    pub page_ms_max: Measured,
    /// Median time of an object.
    pub object_ms_p50: Measured,
    /// The time that 99 of 100 objects do not exceed.
    pub object_ms_p99: Measured,
}

impl PageTimes {
    /// Page times of a run. If it was cut off, the page under way and those behind it would have taken longer than those that came.
    pub fn of(cell: &Cell, run: &Run) -> Option<PageTimes> {
        let Workload::Web(_) = cell.workload else {
            return None;
        };
        let web = run.done.web;
        if run.done.complete && web.is_none() {
            return None;
        }
        let known = |pick: fn(&WebNumbers) -> f64| {
            let value = web.as_ref().map_or(0.0, pick);
            match run.done.complete {
                true => Measured::Exactly(value),
                false => Measured::AtLeast(value),
            }
        };
        let pages = web.map_or(0, |web| web.pages);
        // In a run that was cut off, all pages that had begun took its whole time together: a lower bound for their mean.
        let begun_ms = match run.done.complete {
            true => 0.0,
            false => run.done.seconds * 1e3 / (pages + 1) as f64,
        };
        Some(PageTimes {
            pages,
            page_ms_mean: known(|web| web.page_ms_mean).map(|ms| ms.max(begun_ms)),
            page_ms_p50: known(|web| web.page_ms_p50),
            page_ms_max: known(|web| web.page_ms_max).map(|ms| ms.max(begun_ms)),
            object_ms_p50: known(|web| web.object_ms_p50),
            object_ms_p99: known(|web| web.object_ms_p99),
        })
    }

    /// The median of each number over all runs.
    pub(crate) fn medians(all: &[PageTimes]) -> Option<PageTimes> {
        let over = |pick: fn(&PageTimes) -> Measured| Measured::median(all.iter().map(pick));
        let pages = over(|one| Measured::Exactly(one.pages as f64))?;
        Some(PageTimes {
            pages: pages.least() as u64,
            page_ms_mean: over(|one| one.page_ms_mean)?,
            page_ms_p50: over(|one| one.page_ms_p50)?,
            page_ms_max: over(|one| one.page_ms_max)?,
            object_ms_p50: over(|one| one.object_ms_p50)?,
            object_ms_p99: over(|one| one.object_ms_p99)?,
        })
    }
}

/// The messages of a run that were due behind the warm-up, and how many of them did not come.
fn due_and_missing(cell: &Cell, run: &Run) -> Option<(u64, u64)> {
    let Workload::Live { bytes, .. } = cell.workload else {
        return None;
    };
    let done = &run.done;
    let due = cell.workload.due_after(cell.warmup())?;
    let told = |said: &Option<Value>| messages_measured(said.as_ref()?);
    if let Some(came) = told(&run.sender).or_else(|| told(&run.receiver)) {
        // `sphx perf` has a warm-up by the round trip that it measures; what it drops within that is counted as well.
        let missing = done.dropped.unwrap_or(0);
        return Some((came + missing, missing));
    }
    Some((due, due.saturating_sub(came(cell, run, bytes))))
}

/// How many blocks or messages of so many bytes came behind the warm-up, or may have: who was ended at the limit has told bytes only.
fn came(cell: &Cell, run: &Run, bytes: u64) -> u64 {
    match (run.done.blocks, run.is_silent(cell)) {
        (Some(blocks), _) => blocks.count,
        (None, true) => run.done.bytes / bytes.max(1),
        (None, false) => 0,
    }
}

/// Of the messages behind the warm-up, the share that was late or did not come.
pub(crate) fn late_share(cell: &Cell, run: &Run) -> Option<Measured> {
    let (due, missing) = due_and_missing(cell, run)?;
    let share = |messages: u64| messages as f64 / due.max(1) as f64;
    if run.is_silent(cell) {
        return Some(Measured::AtLeast(share(missing)));
    }
    let late = run.done.late?;
    // `late` includes what was dropped, in older files that of the warm-up as well: what is left came late.
    let late = late.saturating_sub(run.done.dropped.unwrap_or(0));
    Some(Measured::Exactly(share(late + missing)))
}

/// Of the messages behind the warm-up, the share that did not come.
pub(crate) fn dropped_share(cell: &Cell, run: &Run) -> Option<Measured> {
    let (due, missing) = due_and_missing(cell, run)?;
    let share = missing as f64 / due.max(1) as f64;
    match (run.is_silent(cell), run.done.dropped) {
        (true, _) => Some(Measured::AtLeast(share)),
        (false, dropped) => dropped.map(|_| Measured::Exactly(share)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Clock, LinkSpec, run::tests::example, web::Web};

    fn cell(workload: Workload) -> Cell {
        Cell {
            name: "test".into(),
            paths: Vec::new(),
            receive_buffer: None,
            link: LinkSpec::clean(Duration::from_millis(12)),
            workload,
            clock: Clock::Real,
        }
    }

    fn blocks() -> Cell {
        cell(Workload::Blocks {
            count: 300,
            bytes: 100_000,
            interval: Duration::from_millis(40),
        })
    }

    fn live() -> Cell {
        cell(Workload::Live {
            count: 103,
            bytes: 1000,
            interval: Duration::from_millis(40),
            deadline: Duration::from_millis(100),
        })
    }

    fn numbers(count: u64, due: Option<u64>, p99_ms: Option<f64>) -> BlockNumbers {
        BlockNumbers {
            count,
            due,
            mean_ms: 40.0,
            p50_ms: Some(30.0),
            p99_ms,
            max_ms: 77.0,
        }
    }

    /// Cut off two seconds after a schedule of twelve.
    fn cut_off(blocks: Option<BlockNumbers>, bytes: u64) -> Run {
        let mut run = example("x", 1);
        run.done.blocks = blocks;
        run.done.bytes = bytes;
        run.done.seconds = 14.0;
        run.done.complete = false;
        run
    }

    /// Those that did come say nothing of the others, in older files either: the third to last of 297 has waited 13 s.
    #[test]
    fn a_run_that_was_cut_off_is_not_that_of_what_came() {
        let old = cut_off(Some(numbers(8, None, Some(77.0))), 1_000_000);
        let new = cut_off(Some(numbers(8, Some(297), None)), 1_000_000);
        for run in [old, new] {
            let latencies = Latencies::of(&blocks(), &run).unwrap();
            assert_eq!(latencies.count, 8);
            assert_eq!(latencies.p99_ms, Measured::AtLeast(2000.0 + 286.0 * 40.0));
            assert_eq!(latencies.max_ms, Measured::AtLeast(2000.0 + 288.0 * 40.0));
            let mean = (8.0 * 40.0 + 289.0 * (2000.0 + 144.0 * 40.0)) / 297.0;
            assert!((latencies.mean_ms.least() - mean).abs() < 1e-6);
            assert_eq!(latencies.mean_ms.known(), None);
        }
    }

    #[test]
    fn a_quantile_of_what_came_is_one_of_all_only_if_it_is_of_as_many() {
        let exact = cut_off(Some(numbers(296, Some(297), Some(70.0))), 29_900_000);
        let latencies = Latencies::of(&blocks(), &exact).unwrap();
        assert_eq!(latencies.p99_ms, Measured::Exactly(70.0));
        let old = cut_off(Some(numbers(296, None, Some(70.0))), 29_900_000);
        let latencies = Latencies::of(&blocks(), &old).unwrap();
        assert_eq!(latencies.p99_ms, Measured::AtLeast(70.0));
        assert_eq!(latencies.max_ms, Measured::AtLeast(2000.0));
    }

    /// Two fifths of the bytes came: so many blocks at most.
    #[test]
    fn who_says_nothing_of_blocks_has_carried_bytes() {
        let run = cut_off(None, 12_000_000);
        let latencies = Latencies::of(&blocks(), &run).unwrap();
        assert_eq!(latencies.p50_ms, Measured::AtLeast(2000.0 + 28.0 * 40.0));
        assert!(run.is_silent(&blocks()));
        // And who has counted none has got none, for all the bytes.
        let mut none = cut_off(None, 28_000_000);
        none.done.late = Some(0);
        let latencies = Latencies::of(&blocks(), &none).unwrap();
        assert_eq!(latencies.p50_ms, Measured::AtLeast(2000.0 + 148.0 * 40.0));
        let mut whole = example("x", 1);
        whole.done.blocks = Some(numbers(297, Some(297), Some(70.0)));
        let latencies = Latencies::of(&blocks(), &whole).unwrap();
        assert_eq!(latencies.mean_ms, Measured::Exactly(40.0));
        assert!(!whole.is_silent(&blocks()));
    }

    /// 100 behind a warm-up of three, of which all are late.
    #[test]
    fn all_that_is_late_is_everything() {
        let mut run = example("x", 1);
        run.done.blocks = Some(numbers(100, Some(100), Some(70.0)));
        (run.done.late, run.done.dropped) = (Some(100), Some(0));
        assert_eq!(late_share(&live(), &run), Some(Measured::Exactly(1.0)));
        assert_eq!(dropped_share(&live(), &run), Some(Measured::Exactly(0.0)));
        // In older files one of the warm-up, which did not come, is among both.
        run.done.blocks = Some(numbers(99, None, Some(70.0)));
        (run.done.late, run.done.dropped) = (Some(101), Some(2));
        assert_eq!(late_share(&live(), &run), Some(Measured::Exactly(1.0)));
        assert_eq!(dropped_share(&live(), &run), Some(Measured::Exactly(0.01)));
        // The sender's `done` of `sphx perf` says how many messages were delivered.
        run.sender = Some(serde_json::json!({"messages_delivered": 101, "warmup_messages": 2}));
        (run.done.late, run.done.dropped) = (Some(100), Some(1));
        assert_eq!(late_share(&live(), &run), Some(Measured::Exactly(1.0)));
        run.sender = None;
        (run.done.late, run.done.dropped) = (None, None);
        run.done.blocks = None;
        run.done.complete = false;
        run.done.bytes = 25_000;
        assert_eq!(late_share(&live(), &run), Some(Measured::AtLeast(0.75)));
    }

    #[test]
    fn pages_that_did_not_come_took_the_rest_of_the_time() {
        let cell = cell(Workload::Web(Web {
            pages: 6,
            objects: 30,
            seed: 1,
        }));
        let none = cut_off(None, 0);
        let times = PageTimes::of(&cell, &none).unwrap();
        assert_eq!(
            (times.pages, times.page_ms_mean),
            (0, Measured::AtLeast(14_000.0))
        );
        let mut some = cut_off(None, 0);
        some.done.web = Some(WebNumbers {
            pages: 1,
            page_ms_mean: 2000.0,
            page_ms_p50: 2000.0,
            page_ms_max: 2000.0,
            object_ms_p50: 10.0,
            object_ms_p99: 20.0,
        });
        let times = PageTimes::of(&cell, &some).unwrap();
        assert_eq!(times.page_ms_mean, Measured::AtLeast(7000.0));
        some.done.complete = true;
        let times = PageTimes::of(&cell, &some).unwrap();
        assert_eq!(times.page_ms_mean, Measured::Exactly(2000.0));
    }
}
