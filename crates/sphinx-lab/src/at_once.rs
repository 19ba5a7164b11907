//! Jobs in their order, some at once.

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Runs jobs in their order, as many at once as the `places` that each takes allow; one that takes more than there are has them all.
/// Nothing is begun any more once `stop` is true or a job has failed.
///
/// # Errors
///
/// The error of the failed job that comes first in the order of jobs.
pub(crate) fn at_once<J: Send, E: Send>(
    jobs: Vec<J>,
    places: usize,
    takes: impl Fn(&J) -> usize + Sync,
    stop: &AtomicBool,
    run: impl Fn(J) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let most = places.min(jobs.len());
    let queue = Queue {
        state: Mutex::new(State {
            jobs: jobs.into(),
            free: places,
            failed: false,
        }),
        changed: Condvar::new(),
    };
    let takes = |job: &J| takes(job).clamp(1, places);
    let one_after_the_other = || {
        while let Some((job, taken)) = queue.next(&takes, stop) {
            let outcome = run(job);
            queue.give_back(taken, outcome.is_err());
            outcome?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..most)
            .map(|_| scope.spawn(one_after_the_other))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // All are waited for, whatever has failed.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The jobs that have not begun.
struct Queue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Places that no running job takes.
    free: usize,
    failed: bool,
}

impl<J> Queue<J> {
    /// The next job, once there is room for it, with the places that it has got.
    fn next(&self, takes: &impl Fn(&J) -> usize, stop: &AtomicBool) -> Option<(J, usize)> {
        let has_no_room = |state: &mut State<J>| {
            let next = state.jobs.front();
            !state.failed && next.is_some_and(|job| takes(job) > state.free)
        };
        let locked = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state =
            (self.changed.wait_while(locked, has_no_room)).unwrap_or_else(PoisonError::into_inner);
        // Whoever has waited for room may have been told to stop meanwhile.
        if state.failed || stop.load(Ordering::SeqCst) {
            return None;
        }
        let job = state.jobs.pop_front()?;
        let taken = takes(&job);
        state.free -= taken;
        Some((job, taken))
    }

    fn give_back(&self, taken: usize, failed: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += taken;
        state.failed |= failed;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn no_more_at_once_than_there_are_places_for() {
        let (used, most, done) = (
            AtomicUsize::new(0),
            AtomicUsize::new(0),
            Mutex::new(Vec::new()),
        );
        let jobs: Vec<usize> = (0..40).map(|number| number % 7).collect();
        let run = |job: usize| {
            let places = job.clamp(1, 5);
            let now = used.fetch_add(places, Ordering::SeqCst) + places;
            most.fetch_max(now, Ordering::SeqCst);
            thread::yield_now();
            used.fetch_sub(places, Ordering::SeqCst);
            done.lock().unwrap().push(job);
            Ok::<(), ()>(())
        };
        let all = at_once(jobs.clone(), 5, |job| *job, &AtomicBool::new(false), run);
        assert_eq!(all, Ok(()));
        assert!(most.into_inner() <= 5);
        let (mut done, mut jobs) = (done.into_inner().unwrap(), jobs);
        done.sort_unstable();
        jobs.sort_unstable();
        assert_eq!(done, jobs);
    }

    #[test]
    fn those_that_fit_run_at_once() {
        // Would wait for ever if they came one after the other.
        let together = Barrier::new(3);
        let run = |_| {
            together.wait();
            Ok::<(), ()>(())
        };
        let all = at_once(vec![(); 6], 3, |()| 1, &AtomicBool::new(false), run);
        assert_eq!(all, Ok(()));
    }

    #[test]
    fn nothing_begins_after_a_failure_or_a_stop() {
        let begun = AtomicUsize::new(0);
        let run = |job: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            match job {
                2 => Err(job),
                _ => Ok(()),
            }
        };
        let go_on = AtomicBool::new(false);
        let failed = at_once((0..10).collect(), 1, |_| 1, &go_on, run);
        assert_eq!(failed, Err(2));
        assert_eq!(begun.swap(0, Ordering::SeqCst), 3);

        let stop = AtomicBool::new(false);
        let run = |job: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            stop.store(job == 4, Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        assert_eq!(at_once((0..10).collect(), 1, |_| 1, &stop, run), Ok(()));
        assert_eq!(begun.into_inner(), 5);
    }
}
