//! Links with workloads, and the cells of the standing comparison.

use std::{str::FromStr, time::Duration};

use sphinx_link::{GilbertElliott, Loss};

use crate::{Clock, LinkSpec, PathSpec, Run, Workload, experiment::WARMUP_ROUND_TRIPS, several};

/// A link and what to carry over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Short and unique: `r10-l6` is an RTT of 10 ms and 6 % loss.
    pub name: String,
    /// The link; where there are several paths, what they are together.
    pub link: LinkSpec,
    /// Several paths, if there is more than one; the first is the one for those who know only one.
    pub paths: Vec<PathSpec>,
    /// What the receiver may hold, if that is bounded.
    pub receive_buffer: Option<u64>,
    /// The task.
    pub workload: Workload,
    /// Whether the task is done in real or in virtual time.
    pub clock: Clock,
}

impl Cell {
    /// Everything about the cell in one line.
    pub fn description(&self) -> String {
        let mut link = match &self.paths[..] {
            [] => self.link.description(),
            paths => several::description(paths),
        };
        if let Some(bytes) = self.receive_buffer {
            link += &format!(", receive buffer {} KiB", bytes as f64 / 1024.0);
        }
        let workload = self.workload.description();
        match self.clock {
            Clock::Real => format!("{link}; {workload}"),
            Clock::Virtual => format!("{link}; {workload} ({})", self.clock.label()),
        }
    }
}

impl Cell {
    /// What makes it another cell than one of the same [description](Cell::description): what that leaves out or rounds. Empty where
    /// there is nothing of that kind.
    pub fn details(&self) -> String {
        let of_paths = self.paths.iter().flat_map(|path| {
            let details = path.link.details().into_iter();
            details.map(|detail| format!("{}: {detail}", path.name))
        });
        let mut details: Vec<String> = match &self.paths[..] {
            [] => self.link.details(),
            _ => of_paths.collect(),
        };
        details.extend(self.workload.details());
        details.join(", ")
    }

    /// Blocks that are scheduled within this time after the first one are not measured.
    pub(crate) fn warmup(&self) -> Duration {
        self.link.rtt * WARMUP_ROUND_TRIPS
    }

    /// What a perfect transport without headers would have carried in a run, in bits per second: all that the link delivers in
    /// its time, or what is offered.
    pub fn reference_bits(&self, run: &Run) -> f64 {
        if let Some(offered) = self.workload.offered_bits() {
            return offered as f64;
        }
        let time = Duration::try_from_secs_f64(run.done.seconds).unwrap_or_default();
        let delivers = |link: &LinkSpec, seed| {
            let share = 1.0 - link.forward_loss();
            link.rate_until(seed, time) * share
        };
        match &self.paths[..] {
            [] => delivers(&self.link, run.seed),
            paths => (paths.iter().enumerate())
                .map(|(index, path)| delivers(&path.link, several::seed_of(index, run.seed)))
                .sum(),
        }
    }
}

/// A named choice of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellSet {
    /// Bulk at RTT 10 ms and 0, 1 and 6 % loss; blocks at 6 %.
    Slice,
    /// Every link that is claimed: more loss rates, long paths, bursts, lossy return paths, and
    /// blocks at two rates.
    Full,
}

impl FromStr for CellSet {
    type Err = String;

    fn from_str(text: &str) -> Result<CellSet, String> {
        match text {
            "slice" => Ok(CellSet::Slice),
            "full" => Ok(CellSet::Full),
            _ => Err(format!("'{text}' is neither 'slice' nor 'full'")),
        }
    }
}

impl CellSet {
    /// The cells, with bulk transfers of `bytes` and blocks offered for about `block_time`.
    pub fn cells(self, bytes: u64, block_time: Duration) -> Vec<Cell> {
        let ms = Duration::from_millis;
        let bulk = |link| (link, Workload::Bulk { bytes });
        let (losses_r10, losses_r100, blocks): (&[f64], &[f64], &[(u64, f64)]) = match self {
            CellSet::Slice => (&[0.0, 1.0, 6.0], &[], &[(20, 6.0)]),
            CellSet::Full => (
                &[0.0, 0.1, 1.0, 2.0, 6.0, 10.0, 20.0],
                &[0.0, 1.0, 6.0],
                &[(20, 0.0), (20, 2.0), (20, 6.0), (100, 6.0)],
            ),
        };
        let mut cells = Vec::new();
        let mut add = |name: String, (link, workload)| {
            cells.push(Cell {
                name,
                link,
                paths: Vec::new(),
                receive_buffer: None,
                workload,
                clock: Clock::Real,
            });
        };
        for &percent in losses_r10 {
            add(format!("r10-l{percent}"), bulk(lossy(ms(10), percent)));
        }
        for &percent in losses_r100 {
            add(format!("r100-l{percent}"), bulk(lossy(ms(100), percent)));
        }
        if self == CellSet::Full {
            let bursts = LinkSpec {
                forward: Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0)),
                ..LinkSpec::clean(ms(50))
            };
            add("r50-burst5x8".into(), bulk(bursts));
            let thin_return = LinkSpec {
                back: Loss::Bernoulli(0.3),
                ..lossy(ms(80), 3.0)
            };
            add("r80-l3-back30".into(), bulk(thin_return));
        }
        for &(megabit, percent) in blocks {
            let bytes = 100_000;
            let interval = Duration::from_micros(bytes * 8 / megabit);
            let count = block_time.as_nanos() / interval.as_nanos();
            let workload = Workload::Blocks {
                count: u64::try_from(count).unwrap_or(u64::MAX).max(1),
                bytes,
                interval,
            };
            add(
                format!("blocks{megabit}-l{percent}"),
                (lossy(ms(10), percent), workload),
            );
        }
        cells
    }
}

fn lossy(rtt: Duration, percent: f64) -> LinkSpec {
    let forward = match percent {
        0.0 => Loss::None,
        _ => Loss::Bernoulli(percent / 100.0),
    };
    LinkSpec {
        forward,
        ..LinkSpec::clean(rtt)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A cell of the small set by its name: 50 Mbit/s, 24 s.
    pub(crate) fn cell(name: &str) -> Cell {
        let cells = CellSet::Slice.cells(50_000_000, Duration::from_secs(24));
        cells.into_iter().find(|cell| cell.name == name).unwrap()
    }

    #[test]
    fn the_small_set_is_part_of_the_full_one() {
        let set = |set: CellSet| set.cells(50_000_000, Duration::from_secs(24));
        let full = set(CellSet::Full);
        for cell in set(CellSet::Slice) {
            assert!(full.contains(&cell), "{}", cell.name);
        }
        let names: BTreeSet<_> = full.iter().map(|cell| &cell.name).collect();
        assert_eq!(names.len(), full.len());
        assert!(names.contains(&"r10-l0.1".to_owned()), "{names:?}");
    }

    #[test]
    fn every_cell_is_a_possible_link() {
        for cell in CellSet::Full.cells(1, Duration::from_secs(1)) {
            let front = cell.link.front(1);
            assert_eq!(front.left_to_right.validate(), Ok(()), "{}", cell.name);
            assert_eq!(front.right_to_left.validate(), Ok(()), "{}", cell.name);
            assert_ne!(front.left_to_right.seed, front.right_to_left.seed);
        }
    }

    #[test]
    fn described() {
        let cells = CellSet::Full.cells(50_000_000, Duration::from_secs(24));
        let describe = |name| {
            let cell: &Cell = cells.iter().find(|cell| cell.name == name).unwrap();
            cell.description()
        };
        assert_eq!(describe("r10-l6"), "200 Mbit/s, RTT 10 ms, 6 % loss; 50 MB");
        assert_eq!(
            describe("blocks20-l6"),
            "200 Mbit/s, RTT 10 ms, 6 % loss; 600 blocks of 100 kB, one every 40 ms"
        );
        assert!(describe("r50-burst5x8").contains("5.000 % loss in bursts of 8"));
        assert!(describe("r80-l3-back30").contains("30 % on the way back"));
    }
}
