//! When a worker is started, and when it is killed.
//!
//! A dead agent blocks nothing, but one that is alive and does not serve does: the kernel goes on leading
//! packets to it. So a second process, which packets do not pass, listens for the worker's signs of life, and is told by the kernel when it
//! has been stopped.

use crate::{MS, Time, attach::ALIVE_NS};

/// A worker that was silent for so long is killed. It gives a sign of life every 50 ms.
const SILENCE_NS_MAX: Time = 250 * MS;
/// What a worker may take before its first one: it opens devices, and makes rules.
const START_NS_MAX: Time = 10_000 * MS;
/// The guard asks at least so often. What it is late itself is not held against the worker: the whole
/// machine may have stood still.
const STEP_NS: Time = ALIVE_NS;
/// Between the end of a worker and the next one: doubled from end to end.
const BACKOFF_NS: [Time; 2] = [100 * MS, 10_000 * MS];
/// A worker that served for so long has ended for a reason of its own.
const SERVED_NS: Time = 30_000 * MS;

/// What the guard is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a worker, and tell with [`Guard::started`].
    Start,
    /// Kill the worker: it is silent, or stopped. [`Guard::ended`] tells when it is gone.
    Kill,
}

/// Watches over a worker; sans-I/O. Time is nanoseconds from any origin.
#[derive(Debug)]
pub struct Guard {
    now: Time,
    worker: Worker,
    backoff: Time,
}

#[derive(Clone, Copy, Debug)]
enum Worker {
    /// There is no worker; the next one is to be started at this time.
    Due(Time),
    Started(Time),
    Serving {
        since: Time,
        heard: Time,
    },
    /// The worker has been stopped (SIGSTOP) and is to be killed.
    Stopped,
    /// The worker was killed and has not ended yet.
    Dying,
}

impl Guard {
    /// A guard that wants to start a worker at once.
    pub fn new(now: Time) -> Guard {
        Guard {
            now,
            worker: Worker::Due(now),
            backoff: BACKOFF_NS[0],
        }
    }

    /// What is to be done now. To be called at [`next_timeout`](Guard::next_timeout) and after every
    /// other call, until it returns `None`.
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        let own = now.saturating_sub(self.now).saturating_sub(2 * STEP_NS);
        self.now = self.now.max(now);
        match &mut self.worker {
            Worker::Due(at) if *at <= self.now => Some(Action::Start),
            Worker::Due(_) | Worker::Dying => None,
            Worker::Stopped => {
                self.worker = Worker::Dying;
                Some(Action::Kill)
            }
            Worker::Started(heard) | Worker::Serving { heard, .. } => {
                *heard += own;
                if self.silence_ends() > self.now {
                    return None;
                }
                self.worker = Worker::Dying;
                Some(Action::Kill)
            }
        }
    }

    /// When [`poll`](Guard::poll) is to be called next.
    pub fn next_timeout(&self) -> Time {
        match self.worker {
            Worker::Due(at) => at,
            Worker::Stopped => self.now,
            _ => self.silence_ends().min(self.now + STEP_NS),
        }
    }

    /// A worker has been started.
    pub fn started(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.worker = Worker::Started(self.now);
    }

    /// The worker gave a sign of life.
    pub fn heard(&mut self, now: Time) {
        self.now = self.now.max(now);
        match &mut self.worker {
            Worker::Serving { heard, .. } => *heard = self.now,
            Worker::Started(_) => {
                let (since, heard) = (self.now, self.now);
                self.worker = Worker::Serving { since, heard };
            }
            Worker::Due(_) | Worker::Stopped | Worker::Dying => {}
        }
    }

    /// Somebody has stopped the worker. Its silence need not be waited for: a sender times out 200 ms after the first packet that is not served, and the
    /// second time 400 ms later, so that connections would wait for the latter.
    pub fn stopped(&mut self) {
        if matches!(self.worker, Worker::Started(_) | Worker::Serving { .. }) {
            self.worker = Worker::Stopped;
        }
    }

    /// The worker has ended; returns the time until the next one is started.
    pub fn ended(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        if let Worker::Serving { since, .. } = self.worker
            && self.now - since >= SERVED_NS
        {
            self.backoff = BACKOFF_NS[0];
        }
        let pause = self.backoff;
        self.backoff = (2 * pause).min(BACKOFF_NS[1]);
        self.worker = Worker::Due(self.now + pause);
        pause
    }

    fn silence_ends(&self) -> Time {
        match self.worker {
            Worker::Started(since) => since + START_NS_MAX,
            Worker::Serving { heard, .. } => heard + SILENCE_NS_MAX,
            Worker::Due(_) | Worker::Stopped | Worker::Dying => Time::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets time pass in the guard's own steps; returns what it does, and when.
    fn pass(guard: &mut Guard, from: Time, to: Time) -> Vec<(Time, Action)> {
        let mut actions = Vec::new();
        let mut now = from;
        while now <= to {
            actions.extend(guard.poll(now).map(|action| (now, action)));
            assert!(actions.len() < 10, "{actions:?}");
            now = guard.next_timeout().max(now + 1);
        }
        actions
    }

    fn serving() -> Guard {
        let mut guard = Guard::new(0);
        assert_eq!(guard.poll(0), Some(Action::Start));
        guard.started(0);
        guard.heard(10 * MS);
        guard
    }

    #[test]
    fn a_silent_worker_is_killed_once_and_followed_by_another() {
        let mut guard = serving();
        for n in 1..100 {
            guard.heard(n * 50 * MS);
            assert_eq!(guard.poll(n * 50 * MS), None);
        }
        let last = 99 * 50 * MS;
        let actions = pass(&mut guard, last, last + 2000 * MS);
        assert_eq!(actions, [(last + 250 * MS, Action::Kill)]);
        // A sign of life that was under way changes nothing.
        guard.heard(last + 2001 * MS);
        assert_eq!(guard.ended(last + 2002 * MS), 100 * MS);
        let actions = pass(&mut guard, last + 2002 * MS, last + 2102 * MS);
        assert_eq!(actions, [(last + 2102 * MS, Action::Start)]);
    }

    #[test]
    fn a_worker_that_was_stopped_is_killed_at_once_and_followed_by_another() {
        let mut guard = serving();
        guard.stopped();
        assert_eq!(guard.next_timeout(), 10 * MS);
        assert_eq!(guard.poll(11 * MS), Some(Action::Kill));
        // The same again, and a sign of life that was under way, change nothing.
        guard.stopped();
        guard.heard(12 * MS);
        assert_eq!(pass(&mut guard, 12 * MS, 20 * MS), []);
        assert_eq!(guard.ended(20 * MS), 100 * MS);
        guard.stopped();
        let actions = pass(&mut guard, 20 * MS, 120 * MS);
        assert_eq!(actions, [(120 * MS, Action::Start)]);
    }

    #[test]
    fn a_worker_may_take_its_time_to_start() {
        let mut guard = Guard::new(0);
        assert_eq!(guard.poll(0), Some(Action::Start));
        guard.started(0);
        assert_eq!(pass(&mut guard, 0, 9_999 * MS), []);
        let actions = pass(&mut guard, 10_000 * MS, 11_000 * MS);
        assert_eq!(actions, [(10_000 * MS, Action::Kill)]);
    }

    #[test]
    fn workers_that_end_soon_are_started_more_and_more_seldom() {
        let mut guard = Guard::new(0);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..9 {
            assert_eq!(guard.poll(now), Some(Action::Start));
            guard.started(now);
            guard.heard(now + MS);
            let pause = guard.ended(now + 2 * MS);
            pauses.push(pause / MS);
            now += 2 * MS + pause;
        }
        assert_eq!(
            pauses,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        // One that has served for long is not blamed for the others.
        assert_eq!(guard.poll(now), Some(Action::Start));
        guard.started(now);
        guard.heard(now);
        for n in 0..600 {
            guard.heard(now + n * 50 * MS);
            assert_eq!(guard.poll(now + n * 50 * MS), None);
        }
        assert_eq!(guard.ended(now + 30_000 * MS), 100 * MS);
    }

    #[test]
    fn a_machine_that_stood_still_is_not_the_workers_fault() {
        let mut guard = serving();
        assert_eq!(guard.poll(20 * MS), None);
        // The machine stood still for a minute: neither the worker nor the guard ran.
        let late = 60_000 * MS;
        assert_eq!(guard.poll(late), None);
        assert_eq!(pass(&mut guard, late, late + 100 * MS), []);
        guard.heard(late + 100 * MS);
        assert_eq!(pass(&mut guard, late + 100 * MS, late + 340 * MS), []);
        let actions = pass(&mut guard, late + 350 * MS, late + 500 * MS);
        assert_eq!(actions, [(late + 350 * MS, Action::Kill)]);
    }
}
