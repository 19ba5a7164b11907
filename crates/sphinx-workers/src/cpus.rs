//! Processors.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that this thread may run on, ascending.
///
/// # Errors
/// When the system does not tell.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let cpus = 0..CpuSet::MAX_CPU;
    Ok(cpus.filter(|cpu| set.is_set(*cpu)).collect())
}

/// The calling thread runs on this processor only from now on.
///
/// # Errors
/// When there is no such processor, or it may not be used.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Workers that an endpoint begins with which may use so many processors and was not told a number.
///
/// All but one, which is the distributor's; but none where there are fewer than four. There the application and the kernel have the others:
/// a worker would only take turns with them, and handing over costs more than coding in place.
pub fn workers_for(usable_cpus: usize) -> usize {
    const FASTER_FROM: usize = 4;
    /// A distributor cannot keep more of them busy: it takes at least a quarter as long for a packet as a worker.
    const BUSY_MAX: usize = 4;
    match usable_cpus {
        FASTER_FROM.. => (usable_cpus - 1).min(BUSY_MAX),
        _ => 0,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_thread_is_pinned_to_a_processor_that_it_may_use() {
        let usable = usable_cpus().expect("Linux tells");
        let last = *usable.last().expect("this one runs");
        let pinned = std::thread::spawn(move || {
            pin(last).expect("usable");
            usable_cpus().expect("Linux tells")
        });
        assert_eq!(pinned.join().expect("no panic"), [last]);
        assert!(pin(usize::MAX).is_err());
        assert_eq!(usable_cpus().expect("Linux tells"), usable, "of others");
    }

    #[test]
    fn few_processors_have_no_workers() {
        let workers = [1, 2, 3, 4, 5, 64].map(workers_for);
        assert_eq!(workers, [0, 0, 0, 3, 4, 4]);
    }
}
