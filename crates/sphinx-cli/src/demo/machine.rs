//! CPU time of the whole machine: interrupts and kernel threads work for a transport too.

use std::fs;
use std::time::Duration;

/// Fields of the first line of /proc/stat that are work: user, nice, system, irq, softirq. The
/// others are idle, waiting for disks, or taken by other virtual machines.
const WORK_FIELDS: [usize; 5] = [0, 1, 2, 5, 6];

pub(super) struct CpuMeter {
    ticks: Option<u64>,
}

impl CpuMeter {
    pub(super) fn start() -> Self {
        Self { ticks: now() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        let ticks = now()
            .zip(self.ticks)
            .map_or(0, |(now, then)| now.saturating_sub(then));
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64(ticks as f64 / per_second as f64)
    }
}

fn now() -> Option<u64> {
    work_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

fn work_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    WORK_FIELDS
        .iter()
        .map(|index| fields.get(*index).copied())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_and_idling_is_not() {
        let stat = "cpu  100 20 3 9999 8888 4 5 7777 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(work_ticks(stat), Some(132));
        assert_eq!(work_ticks("intr 5"), None);
        assert_eq!(work_ticks("cpu  1 2"), None);
        assert!(now().is_some());
    }
}
