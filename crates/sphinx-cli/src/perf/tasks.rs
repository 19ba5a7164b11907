//! Many streams on one thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::failure::Outcome;

/// Tasks that can go on, and the thread that runs them.
struct Ready {
    tasks: Mutex<VecDeque<usize>>,
    thread: Thread,
}

impl Ready {
    fn with<R>(&self, use_tasks: impl FnOnce(&mut VecDeque<usize>) -> R) -> R {
        // Nothing that is done with the queue can panic half-way.
        use_tasks(&mut self.tasks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The waker of one task.
struct Alarm {
    ready: Arc<Ready>,
    task: usize,
    is_queued: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.with(|tasks| tasks.push_back(self.task));
            self.ready.thread.unpark();
        }
    }
}

/// Runs tasks 0 to `count` on this thread until all are done: what each has given, in their order. `step` takes a task one step further:
/// not ready if its waker has to be waited for, ready with `None` if the next step can be taken at once, which is after those of all others that can.
///
/// # Errors
/// The first of a step; the other tasks are then not gone on with.
pub(super) fn run_all<T>(
    count: usize,
    mut step: impl FnMut(usize, &mut Context<'_>) -> Poll<Outcome<Option<T>>>,
) -> Outcome<Vec<T>> {
    let ready = Arc::new(Ready {
        tasks: Mutex::new((0..count).collect()),
        thread: thread::current(),
    });
    let alarms: Vec<Arc<Alarm>> = (0..count)
        .map(|task| {
            Arc::new(Alarm {
                ready: Arc::clone(&ready),
                task,
                is_queued: AtomicBool::new(true),
            })
        })
        .collect();
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let mut left = count;
    while left > 0 {
        let Some(task) = ready.with(VecDeque::pop_front) else {
            thread::park();
            continue;
        };
        // Cleared before the step: wake-ups until now are seen by this step, later ones queue the task again.
        alarms[task].is_queued.store(false, Ordering::Release);
        if results[task].is_some() {
            continue;
        }
        let waker = Waker::from(Arc::clone(&alarms[task]));
        match step(task, &mut Context::from_waker(&waker)) {
            Poll::Pending => {}
            Poll::Ready(Ok(None)) => waker.wake(),
            Poll::Ready(Ok(done)) => {
                results[task] = done;
                left -= 1;
            }
            Poll::Ready(Err(failure)) => return Err(failure),
        }
    }
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::usage;

    #[test]
    fn tasks_take_turns_and_wait_for_each_other() {
        // Each task waits until the one before it is done.
        let mut done = 0;
        let mut steps = [0; 5];
        let mut waiting: Vec<Option<Waker>> = vec![None; 6];
        let results = run_all(5, |task, cx| {
            steps[task] += 1;
            if task > done {
                waiting[task] = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if steps[task] < 3 {
                return Poll::Ready(Ok(None));
            }
            done += 1;
            if let Some(next) = waiting[done].take() {
                next.wake();
            }
            Poll::Ready(Ok(Some(task * 10)))
        });
        assert_eq!(results.unwrap(), [0, 10, 20, 30, 40]);
        assert!(
            run_all(0, |_, _| Poll::Ready(Ok(Some(()))))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn another_thread_may_wake_and_a_failure_ends_all() {
        let mut polled = 0;
        let failed: Outcome<Vec<()>> = run_all(3, |task, cx| {
            polled += 1;
            match (task, polled) {
                (1, 4..) => Poll::Ready(Err(usage("no more"))),
                (1, _) => {
                    let waker = cx.waker().clone();
                    thread::spawn(move || waker.wake());
                    Poll::Pending
                }
                _ => Poll::Pending,
            }
        });
        assert_eq!(failed.unwrap_err().message, "no more");
    }
}
