//! The kernel's part of a [`Waker`](super::Waker): an event that is set or not, and a wait for it. In models of
//! threads it is a lock and a condition variable, of which loom knows when a thread waits and what ends that.

#[cfg(loom)]
pub(super) use model::Event;
#[cfg(not(loom))]
pub(super) use system::Event;

#[cfg(not(loom))]
mod system {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

    /// An eventfd.
    #[derive(Debug)]
    pub(in super::super) struct Event(OwnedFd);

    impl Event {
        pub(in super::super) fn new() -> io::Result<Self> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            Ok(Self(rustix::event::eventfd(0, flags)?))
        }

        /// Ends the wait that is under way, or the next one.
        pub(in super::super) fn set(&self) {
            // The only possible failure is a full counter, and then it is set anyway.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        pub(in super::super) fn empty(&self) {
            let mut count = [0; 8];
            // Fails when there is nothing to read, which is fine.
            let _ = rustix::io::read(&self.0, &mut count);
        }

        /// Waits for the event and for what is `wanted` of `packets`: whether the event is set, and what was found.
        /// A signal ends the wait with neither.
        pub(in super::super) fn poll(
            &self,
            packets: Option<BorrowedFd<'_>>,
            wanted: PollFlags,
            timeout_ns: Option<u64>,
        ) -> io::Result<(bool, PollFlags)> {
            let own = self.0.as_fd();
            let mut fds = [
                PollFd::from_borrowed_fd(own, PollFlags::IN),
                PollFd::from_borrowed_fd(packets.unwrap_or(own), wanted),
            ];
            let used = 1 + usize::from(packets.is_some());
            // 2^64 ns are 584 years: the conversion cannot fail, and no limit is the right answer if
            // it could.
            let timeout =
                timeout_ns.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
            match rustix::event::poll(&mut fds[..used], timeout.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok((false, PollFlags::empty())),
                Err(error) => return Err(error.into()),
            }
            Ok((fds[0].revents().intersects(PollFlags::IN), fds[1].revents()))
        }
    }
}

#[cfg(loom)]
mod model {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::PoisonError;

    use loom::sync::{Condvar, Mutex, MutexGuard};
    use rustix::event::PollFlags;

    /// What an eventfd does, without time and without other descriptors.
    #[derive(Debug)]
    pub(in super::super) struct Event {
        is_set: Mutex<bool>,
        changed: Condvar,
    }

    impl Event {
        pub(in super::super) fn new() -> io::Result<Self> {
            Ok(Self {
                is_set: Mutex::new(false),
                changed: Condvar::new(),
            })
        }

        fn lock(&self) -> MutexGuard<'_, bool> {
            self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(in super::super) fn set(&self) {
            *self.lock() = true;
            self.changed.notify_all();
        }

        pub(in super::super) fn empty(&self) {
            *self.lock() = false;
        }

        /// Waits until the event is set: nothing arrives in models, and a timeout would hide a ring that is lost.
        pub(in super::super) fn poll(
            &self,
            _packets: Option<BorrowedFd<'_>>,
            _wanted: PollFlags,
            _timeout_ns: Option<u64>,
        ) -> io::Result<(bool, PollFlags)> {
            let mut is_set = self.lock();
            while !*is_set {
                is_set = self
                    .changed
                    .wait(is_set)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            Ok((true, PollFlags::empty()))
        }
    }
}
