//! Instructions that a thread executes, as the processor counts them: for measurements.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use libc::{c_int, c_long};

// Kinds and numbers of linux/perf_event.h.
const TYPE_HARDWARE: u32 = 0;
const HARDWARE_INSTRUCTIONS: u64 = 1;
/// Flag bit: count all the time, or fail. A counter that shared its register with others would give an estimate.
const PINNED: u64 = 1 << 2;
/// Flag bits: leave out instructions of the kernel and of a hypervisor.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_CLOEXEC: u64 = 1 << 3;

/// The first version of the kernel's `perf_event_attr`, which all later ones understand.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

/// `PERF_ATTR_SIZE_VER0`: the kernel reads as many bytes.
const _: () = assert!(size_of::<Attributes>() == 64);

/// Counts the instructions of the thread that has opened it, without the kernel's.
#[derive(Debug)]
pub struct InstructionCounter(File);

impl InstructionCounter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// Where there is no counter, as in most virtual machines, or one that stands still (`Unsupported`), and where the
    /// system does not let this process use it (`kernel.perf_event_paranoid`, sandboxes).
    pub fn of_this_thread() -> io::Result<Self> {
        let counter = Self::open(TYPE_HARDWARE, HARDWARE_INSTRUCTIONS)?;
        // Two readings are some instructions apart. Some hypervisors take the call and count nothing.
        let first = counter.count()?;
        if counter.count()? == first {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(counter)
    }

    fn open(kind: u32, config: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            flags: PINNED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        let (this_thread, any_cpu, no_group): (c_long, c_long, c_long) = (0, -1, -1);
        // SAFETY: the layout is that of the call's first version, and `size` says so. The kernel only reads it, and only during the
        // call; the other arguments are numbers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                any_cpu,
                no_group,
                FLAG_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has returned a new descriptor, which nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as c_int) };
        Ok(Self(fd.into()))
    }

    /// Instructions since it was opened. Takes a system call, which is not counted.
    ///
    /// # Errors
    ///
    /// When the processor has no register left for it, from then on.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE_SOFTWARE: u32 = 1;
    const SOFTWARE_TASK_CLOCK: u64 = 1;

    fn grows(counter: io::Result<InstructionCounter>) {
        let counter = match counter {
            Ok(counter) => counter,
            Err(error) => {
                sphinx_testing::skipped!("no counter here ({error})");
                return;
            }
        };
        let before = counter.count().unwrap();
        (0..100_000).for_each(|n| {
            std::hint::black_box(n);
        });
        assert!(counter.count().unwrap() > before + 1000);
    }

    /// What every kernel can count says that the call is understood; what the processor counts is not everywhere.
    #[test]
    fn counters_count() {
        grows(InstructionCounter::open(TYPE_SOFTWARE, SOFTWARE_TASK_CLOCK));
        grows(InstructionCounter::of_this_thread());
    }
}
