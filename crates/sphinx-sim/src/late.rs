//! Jobs on payload that are done late, or by many.

use std::collections::BTreeMap;

use sphinx_driver::{BufferPool, Executor, JobKind, Task, TaskId, WorkerId, Workshop};
use sphinx_proto::{Nanos, Time};

use crate::data::Rng;

/// Bytes of packets that are worth handing over to a crew.
const CREW_BYTES_MIN: usize = 1600;

/// Does jobs after seeded times, in whatever order these make; or leaves them to the driver.
pub struct Late {
    rng: Rng,
    /// How long at most opening takes, decoding and sealing; 0: they are left to the driver.
    max: [Nanos; 3],
    /// So many do all jobs, and have done them as soon as somebody asks, but in seeded order.
    crew: u16,
    /// By the time of their end and their place in the order, and how many there have been.
    tasks: BTreeMap<(Time, u64, u64), Task>,
    count: u64,
    /// The job with this number, counted from 0, panics.
    panics_at: Option<u64>,
    workshop: Workshop,
}

impl Late {
    /// Opening, decoding and sealing take so long at most, each; 0: they are done at once.
    pub fn new(seed: u64, max: [Nanos; 3]) -> Self {
        Self {
            rng: Rng::new(seed),
            max,
            crew: 0,
            tasks: BTreeMap::new(),
            count: 0,
            panics_at: None,
            workshop: Workshop::new(BufferPool::new(0)),
        }
    }

    /// So many workers take no time, but finish in any order, and now and then have no room for another job.
    pub fn crew(seed: u64, workers: u16) -> Self {
        Self {
            crew: workers,
            ..Self::new(seed, [0; 3])
        }
    }

    /// The job with this number, counted from 0, panics.
    pub fn panicking(self, at: Option<u64>) -> Self {
        Self {
            panics_at: at,
            ..self
        }
    }

    fn max(&self, kind: JobKind) -> Nanos {
        let [opening, decoding, sealing] = self.max;
        match kind {
            JobKind::Open => opening,
            JobKind::Decode | JobKind::DecodeForWindow => decoding,
            JobKind::Seal => sealing,
        }
    }
}

impl Executor for Late {
    fn takes(&self, kind: JobKind) -> bool {
        self.crew > 0 || self.max(kind) > 0
    }

    fn bytes_min(&self) -> usize {
        match self.crew {
            0 => 1,
            _ => CREW_BYTES_MIN,
        }
    }

    fn hand_over(
        &mut self,
        now: Time,
        task: Task,
        owner: Option<WorkerId>,
    ) -> Result<WorkerId, Task> {
        let (at, rank, worker) = match self.crew {
            0 => (now + self.rng.below(self.max(task.kind())), 0, 0),
            _ if self.rng.chance(0.1) => return Err(task),
            crew => (now, self.rng.word(), self.rng.below(crew.into()) as u16),
        };
        self.tasks.insert((at, rank, self.count), task);
        self.count += 1;
        let worker = owner.unwrap_or(WorkerId(worker));
        assert!(worker.0 < self.crew.max(1), "a worker that there is not");
        Ok(worker)
    }

    fn take_done(&mut self, now: Time) -> Option<Task> {
        let first = self.tasks.first_entry().filter(|task| task.key().0 <= now);
        let ((.., number), mut task) = first?.remove_entry();
        if self.panics_at != Some(number) {
            task.run(&mut self.workshop);
        }
        Some(task)
    }

    fn next_done(&self) -> Option<Time> {
        self.tasks.first_key_value().map(|((at, ..), _)| *at)
    }

    fn recall(&mut self, id: TaskId) -> Option<Task> {
        let mut tasks = self.tasks.iter();
        let key = tasks.find(|(_, task)| task.id() == id).map(|(key, _)| *key);
        self.tasks.remove(&key?)
    }
}
