//! How the engine tells threads and tasks that there is news.
//!
//! Whoever waits looks at the state under its lock, finds nothing, and says so to the [`Signal`] before it lets go of that lock: a thread
//! with [`Signal::wait`], a task with [`Waiter::register`]. Whoever changes the state does so under the same lock and calls
//! [`Signal::notify`] afterwards. So nobody can miss a change: it was either seen, or comes after the waiting was noted.

#[cfg(all(test, loom))]
pub(crate) mod models;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// What threads and tasks wait for. Clones are the same signal.
#[derive(Clone, Default)]
pub(crate) struct Signal(Arc<State>);

#[derive(Default)]
struct State {
    threads: Condvar,
    waiting: Mutex<Waiting>,
}

/// Who waits. Its lock is taken last, and nobody else's code runs under it but a waker's `clone`.
#[derive(Default)]
struct Waiting {
    /// Threads that block. Telling a condition variable costs a system call even if nobody waits for it.
    threads: usize,
    /// Wakers of tasks by their keys, which grow.
    tasks: VecDeque<(u64, Waker)>,
    last_key: u64,
}

impl Waiting {
    fn place_of(&self, key: u64) -> Option<usize> {
        self.tasks.binary_search_by_key(&key, |(key, _)| *key).ok()
    }
}

impl Signal {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        let waiting = self.0.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all who wait. The state has been changed before, and its lock is free: a waker may do anything.
    pub(crate) fn notify(&self) {
        let mut waiting = self.waiting();
        let has_threads = waiting.threads > 0;
        let tasks = std::mem::take(&mut waiting.tasks);
        drop(waiting);
        if has_threads {
            self.0.threads.notify_all();
        }
        for (_, waker) in tasks {
            waker.wake();
        }
    }

    /// Blocks the thread until it is notified, or for no reason; `state` is free meanwhile.
    pub(crate) fn wait<'a, T>(&self, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting().threads += 1;
        let state = self.0.threads.wait(state);
        self.waiting().threads -= 1;
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, until `deadline` at the latest, if there is one; `None` once it has passed.
    pub(crate) fn wait_until<'a, T>(
        &self,
        state: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, T>> {
        let Some(deadline) = deadline else {
            return Some(self.wait(state));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        self.waiting().threads += 1;
        let waited = self.0.threads.wait_timeout(state, left);
        self.waiting().threads -= 1;
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// A place for one task among those that wait for a signal. Dropping it gives the place up, so that tasks which stop waiting
/// leave nothing behind.
pub(crate) struct Waiter {
    signal: Signal,
    /// Of the last registration, which the signal may have used up.
    key: Option<u64>,
}

impl Waiter {
    pub(crate) fn new(signal: &Signal) -> Self {
        let signal = signal.clone();
        Self { signal, key: None }
    }

    /// For threads that wait in the task's place.
    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    /// The next notification wakes the task, instead of the one that was registered here before. The state's lock is held.
    ///
    /// Returns the waker that is not needed any more, to be dropped once that lock is free: it may be all that is left of a task, and
    /// with it go streams and sessions, which need the lock.
    #[must_use]
    pub(crate) fn register(&mut self, waker: &Waker) -> Option<Waker> {
        let mut waiting = self.signal.waiting();
        let place = self.key.and_then(|key| waiting.place_of(key));
        if let Some((_, known)) = place.and_then(|place| waiting.tasks.get_mut(place)) {
            return (!known.will_wake(waker)).then(|| std::mem::replace(known, waker.clone()));
        }
        waiting.last_key += 1;
        let key = waiting.last_key;
        waiting.tasks.push_back((key, waker.clone()));
        self.key = Some(key);
        None
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(key) = self.key else {
            return;
        };
        let mut waiting = self.signal.waiting();
        let place = waiting.place_of(key);
        let unused = place.and_then(|place| waiting.tasks.remove(place));
        drop(waiting);
        drop(unused);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn task() -> (Arc<Count>, Waker) {
        let count = Arc::<Count>::default();
        (Arc::clone(&count), count.into())
    }

    #[test]
    fn a_task_is_woken_once_for_each_registration() {
        let signal = Signal::default();
        let (count, waker) = task();
        let mut waiter = Waiter::new(&signal);
        for round in 1..=3 {
            assert!(waiter.register(&waker).is_none());
            assert!(waiter.register(&waker).is_none());
            signal.notify();
            signal.notify();
            assert_eq!(count.0.load(Ordering::Relaxed), round);
        }
    }

    #[test]
    fn the_task_that_asked_last_is_woken() {
        let signal = Signal::default();
        let (first, second) = (task(), task());
        let mut waiter = Waiter::new(&signal);
        assert!(waiter.register(&first.1).is_none());
        assert!(waiter.register(&second.1).is_some());
        signal.notify();
        assert_eq!(first.0.0.load(Ordering::Relaxed), 0);
        assert_eq!(second.0.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn tasks_that_stop_waiting_leave_nothing_behind() {
        let signal = Signal::default();
        let (count, waker) = task();
        let mut waiters: Vec<Waiter> = (0..5).map(|_| Waiter::new(&signal)).collect();
        for waiter in &mut waiters {
            assert!(waiter.register(&waker).is_none());
        }
        waiters.remove(3);
        waiters.remove(0);
        assert_eq!(signal.waiting().tasks.len(), 3);
        signal.notify();
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
        // The count's own, and the waker here.
        assert_eq!(Arc::strong_count(&count), 2);
        // Their places are used up: there is nothing to give back.
        let mut other = Waiter::new(&signal);
        assert!(other.register(&waker).is_none());
        drop(waiters);
        assert_eq!(signal.waiting().tasks.len(), 1);
    }

    /// A waker may be all that keeps a task alive, and a task's destructor may need the signal.
    #[test]
    fn the_last_waker_of_a_task_may_take_what_waits_with_it() {
        struct Task {
            _holds: Mutex<Waiter>,
        }
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let signal = Signal::default();
        let other = task().1;
        for ends in [
            |_: Waiter| (),
            |mut waiter: Waiter| {
                waiter.signal.clone().notify();
                drop(waiter.register(Waker::noop()));
            },
        ] {
            let mut held = Waiter::new(&signal);
            assert!(held.register(&other).is_none());
            let waker = Waker::from(Arc::new(Task {
                _holds: Mutex::new(held),
            }));
            let mut waiter = Waiter::new(&signal);
            assert!(waiter.register(&waker).is_none());
            drop(waker);
            ends(waiter);
            assert!(signal.waiting().tasks.is_empty());
        }
    }
}
