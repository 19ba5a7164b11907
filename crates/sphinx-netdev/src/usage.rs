//! What processes have used of the machine.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, which all processes of one machine share.
pub fn monotonic_ns() -> u64 {
    u64::try_from(clock(ClockId::Monotonic).as_nanos()).unwrap_or(u64::MAX)
}

/// User and system time of this process so far, all threads.
pub fn cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

/// The most memory that this process has had resident, in bytes; `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    peak_rss_in("/proc/self/status")
}

/// The same of another process, of which nothing is known any more once it has ended.
pub fn peak_rss_bytes_of(pid: u32) -> Option<u64> {
    peak_rss_in(&format!("/proc/{pid}/status"))
}

fn peak_rss_in(path: &str) -> Option<u64> {
    vm_hwm(&fs::read_to_string(path).ok()?)
}

/// The high-water mark of resident memory in a process's status, in bytes.
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
    fn peak_memory() {
        assert_eq!(
            vm_hwm("Name:\tsphx\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n"),
            Some(12_641_280)
        );
        assert_eq!(vm_hwm("VmHWM:\tlots\n"), None);
        assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 100_000));
        assert!(peak_rss_bytes_of(std::process::id()) >= Some(100_000));
    }

    #[test]
    fn clocks_go_forward() {
        let before = (monotonic_ns(), cpu_time());
        assert!(monotonic_ns() >= before.0 && cpu_time() >= before.1);
    }
}
