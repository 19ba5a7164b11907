//! Ending a wait from another thread, and precise timeouts.

mod event;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;
use rustix::event::PollFlags;
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

use crate::{Interest, Ready};
use event::Event;

/// Ends [`PacketIo::wait`](crate::PacketIo::wait) from any thread.
///
/// A ring is never lost: when no wait is in progress, the next one returns at once. Rings are not
/// counted, and what a thread wrote before [`wake`](Self::wake) is visible to the engine after the
/// wait that reports it.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    event: Event,
    /// True from a ring until the engine has seen it; saves the system call of further rings.
    ringing: AtomicBool,
}

impl Waker {
    /// A new waker that is not ringing. Back ends make their own; users get a clone of it.
    ///
    /// # Errors
    ///
    /// When the process or the system is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let event = Event::new()?;
        let ringing = AtomicBool::new(false);
        Ok(Self {
            shared: Arc::new(Shared { event, ringing }),
        })
    }

    /// Rings. It never blocks, and costs no system call when it rings already.
    pub fn wake(&self) {
        if !self.shared.ringing.swap(true, Ordering::AcqRel) {
            self.shared.event.set();
        }
    }

    /// Waits for this waker and for `packets`, the descriptor packets arrive on, if there is one.
    /// This is how a back end does [`PacketIo::wait`](crate::PacketIo::wait); the contract is the
    /// same.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to poll, for want of memory for instance.
    pub fn wait(
        &self,
        packets: Option<BorrowedFd<'_>>,
        interest: Interest,
        timeout_ns: Option<u64>,
    ) -> io::Result<Ready> {
        let wanted = match interest {
            Interest::Read => PollFlags::IN,
            Interest::ReadWrite => PollFlags::IN | PollFlags::OUT,
        };
        let (is_set, found) = self.shared.event.poll(packets, wanted, timeout_ns)?;
        Ok(Ready {
            errors: found.intersects(PollFlags::ERR),
            // A pending socket error is fetched by receiving.
            readable: found.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP),
            writable: found.intersects(PollFlags::OUT),
            woken: is_set && self.clear(),
        })
    }

    /// Stops the ringing and says whether there was any.
    ///
    /// The order matters: the event is emptied before the flag is cleared. A ring in between finds
    /// the flag set, writes nothing, and is covered by the `true` returned here.
    fn clear(&self) -> bool {
        self.shared.event.empty();
        self.shared.ringing.swap(false, Ordering::AcqRel)
    }
}

/// Lets waits of the calling thread end as close to their timeout as the kernel can: within
/// about 1 ns of slack instead of the usual 50 µs. Call it once on the engine thread.
///
/// # Errors
///
/// When the kernel refuses (a sandbox may).
pub fn minimise_timer_slack() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN))?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_kept_and_reported_once() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.clone().wake();
        let ready = waker.wait(None, Interest::Read, None).unwrap();
        assert_eq!(
            ready,
            Ready {
                woken: true,
                ..Ready::default()
            }
        );
        let ready = waker.wait(None, Interest::Read, Some(0)).unwrap();
        assert_eq!(ready, Ready::default());
    }

    #[test]
    fn no_ring_is_lost_between_threads() {
        const ROUNDS: u64 = 20_000;
        let waker = Waker::new().unwrap();
        let value = Arc::new(AtomicU64::new(0));
        let writer = std::thread::spawn({
            let (waker, value) = (waker.clone(), Arc::clone(&value));
            move || {
                for round in 1..=ROUNDS {
                    value.store(round, Ordering::Relaxed);
                    waker.wake();
                }
            }
        });
        // A lost ring would leave the last value unseen and this loop in a wait that times out.
        while value.load(Ordering::Relaxed) < ROUNDS {
            let ready = waker
                .wait(None, Interest::Read, Some(10_000_000_000))
                .unwrap();
            assert!(ready.woken);
        }
        writer.join().unwrap();
    }

    #[test]
    fn timeouts_are_not_early() {
        minimise_timer_slack().unwrap();
        let waker = Waker::new().unwrap();
        let start = Instant::now();
        let ready = waker.wait(None, Interest::Read, Some(2_000_000)).unwrap();
        assert_eq!(ready, Ready::default());
        assert!(start.elapsed() >= Duration::from_millis(2));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    /// Waits until `seen` says so. The model's waits have no timeout: a ring that is lost is a deadlock.
    fn wait_until(waker: &Waker, seen: impl Fn() -> bool) {
        while !seen() {
            let ready = waker.wait(None, Interest::Read, None).unwrap();
            assert!(ready.woken);
        }
    }

    #[test]
    fn no_ring_is_lost_and_what_came_before_it_is_visible() {
        loom::model(|| {
            let waker = Waker::new().unwrap();
            let left = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            for ringer in 0..2 {
                let (waker, left) = (waker.clone(), Arc::clone(&left));
                thread::spawn(move || {
                    left[ringer].store(1, Ordering::Relaxed);
                    waker.wake();
                });
            }
            wait_until(&waker, || {
                left.iter().all(|value| value.load(Ordering::Relaxed) == 1)
            });
        });
    }

    #[test]
    fn a_thread_may_ring_again_and_again() {
        loom::model(|| {
            let waker = Waker::new().unwrap();
            let left = Arc::new(AtomicU32::new(0));
            thread::spawn({
                let (waker, left) = (waker.clone(), Arc::clone(&left));
                move || {
                    for value in 1..=3 {
                        left.store(value, Ordering::Relaxed);
                        waker.wake();
                    }
                }
            });
            wait_until(&waker, || left.load(Ordering::Relaxed) == 3);
        });
    }
}
