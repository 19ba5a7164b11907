//! What this process has used of the machine.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// User and system time of this process, all threads.
pub(crate) fn cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Nanoseconds of the monotonic clock, comparable between processes of one machine.
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(clock(ClockId::Monotonic).as_nanos()).unwrap_or(u64::MAX)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The most memory this process has had resident; `None` where the system does not say.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    vm_hwm(&fs::read_to_string("/proc/self/status").ok()?)
}

fn vm_hwm(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured() {
        assert_eq!(
            vm_hwm("Name:\tsphx\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n"),
            Some(12_641_280)
        );
        assert_eq!(vm_hwm("VmHWM:\tlots\n"), None);
        assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 100_000));
        let before = monotonic_ns();
        assert!(monotonic_ns() >= before);
    }
}
