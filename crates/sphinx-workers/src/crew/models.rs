//! A distributor and its workers, in every order that their threads may come in.

use std::sync::atomic::AtomicUsize as Count;

use loom::sync::Notify;

use super::*;

/// A job that counts how often it was done and dropped.
struct Once {
    number: usize,
    done: Arc<[Count]>,
    dropped: Arc<[Count]>,
}

impl Job for Once {
    type Tools = ();

    fn size(&self) -> u64 {
        1
    }

    fn run(&mut self, (): &mut ()) {
        self.done[self.number].fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        self.dropped[self.number].fetch_add(1, Ordering::Relaxed);
    }
}

/// Jobs, and what has become of them.
struct Jobs {
    done: Arc<[Count]>,
    dropped: Arc<[Count]>,
}

impl Jobs {
    fn new(jobs: usize) -> Self {
        let counts = || (0..jobs).map(|_| Count::new(0)).collect();
        Self {
            done: counts(),
            dropped: counts(),
        }
    }

    fn job(&self, number: usize) -> Once {
        Once {
            number,
            done: Arc::clone(&self.done),
            dropped: Arc::clone(&self.dropped),
        }
    }

    fn counts(of: &[Count]) -> Vec<usize> {
        of.iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }
}

/// A crew, and what its workers ring.
fn crew(workers: usize) -> (Crew<Once>, Arc<Notify>) {
    let bell = Arc::new(Notify::new());
    let rings = Arc::clone(&bell);
    let crew = Crew::start(workers, &[], || (), move || rings.notify());
    (crew.expect("threads"), bell)
}

/// The next job that comes back; it sleeps until a worker rings.
fn next(member: &Member<Once>, bell: &Notify) -> usize {
    loop {
        if let Some(job) = member.take_done() {
            return job.number;
        }
        bell.wait();
    }
}

/// Neither a worker that is about to park nor a distributor that is about to wait misses anything.
#[test]
fn every_job_is_done_once_and_comes_back() {
    loom::model(|| {
        let jobs = Jobs::new(2);
        let (crew, bell) = crew(1);
        let member = crew.join(1);
        assert_eq!(member.hand_over(jobs.job(0), None).ok(), Some(0));
        assert_eq!(next(&member, &bell), 0);
        assert_eq!(member.hand_over(jobs.job(1), None).ok(), Some(0));
        assert_eq!(next(&member, &bell), 1);
        drop(crew);
        assert_eq!(Jobs::counts(&jobs.done), [1, 1]);
        assert_eq!(Jobs::counts(&jobs.dropped), [1, 1]);
    });
}

/// A session's jobs are with three workers. What is not back when it closes is dropped, once, and its endpoint's end waits for no other.
#[test]
fn a_session_that_closes_leaves_nothing_and_three_workers_end_with_their_crew() {
    let mut model = loom::model::Builder::new();
    // Four threads may come in more orders than anybody waits for.
    model.preemption_bound.get_or_insert(2);
    model.check(|| {
        let jobs = Jobs::new(3);
        let (crew, bell) = crew(3);
        let member = crew.join(1);
        for number in 0..3 {
            assert!(member.hand_over(jobs.job(number), Some(number)).is_ok());
        }
        next(&member, &bell);
        drop(member);
        drop(crew);
        let done = Jobs::counts(&jobs.done);
        assert!(done.iter().all(|times| *times <= 1), "{done:?}");
        assert_eq!(Jobs::counts(&jobs.dropped), [1; 3]);
    });
}
