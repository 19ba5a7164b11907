//! How a session's driver reaches the workers.

use sphinx_driver::{Executor, JobKind, Task, TaskId, WorkerId, Workshop};
use sphinx_proto::Time;

use crate::crew::{Job, Member};

/// Bytes of packets that are worth waking a worker up for, if it has nothing else to do: some microseconds' work.
const BYTES_MIN: usize = 16 << 10;

impl Job for Task {
    type Tools = Workshop;

    fn size(&self) -> u64 {
        self.bytes() as u64
    }

    fn run(&mut self, tools: &mut Workshop) {
        Task::run(self, tools);
    }
}

/// Who codes for a session.
pub enum Coding {
    /// Its driver, in place.
    Inline,
    /// Workers; the driver does what is too little for them.
    Workers(Member<Task>),
}

impl Coding {
    fn workers(&self) -> Option<&Member<Task>> {
        match self {
            Self::Inline => None,
            Self::Workers(workers) => Some(workers),
        }
    }
}

impl Executor for Coding {
    #[inline]
    fn takes(&self, kind: JobKind) -> bool {
        // A sliding window waits for its blocks: they are decoded at once.
        self.workers().is_some() && kind != JobKind::DecodeForWindow
    }

    fn bytes_min(&self) -> usize {
        BYTES_MIN
    }

    fn hand_over(
        &mut self,
        _now: Time,
        task: Task,
        owner: Option<WorkerId>,
    ) -> Result<WorkerId, Task> {
        let Some(workers) = self.workers() else {
            return Err(task);
        };
        let owner = owner.map(|owner| usize::from(owner.0));
        let worker = workers.hand_over(task, owner)?;
        Ok(WorkerId(worker as u16))
    }

    fn take_done(&mut self, _now: Time) -> Option<Task> {
        self.workers()?.take_done()
    }

    /// Workers wake whoever runs the driver.
    fn next_done(&self) -> Option<Time> {
        None
    }

    fn recall(&mut self, _id: TaskId) -> Option<Task> {
        None
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
