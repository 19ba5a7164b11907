//! What workers would do, done by the thread that measures.

use std::collections::VecDeque;
use std::rc::Rc;

use sphinx_driver::{BufferPool, Executor, JobKind, Task, TaskId, WorkerId, Workshop};
use sphinx_proto::Time;

use crate::meter::{Meter, Stage};

/// Smallest job that is coded apart, bytes: the same as for workers.
const BYTES_MIN: usize = 16 << 10;

/// Who encodes and decodes: the driver in place, or, as with workers, a stage apart.
pub(crate) struct Coding(Option<Apart>);

/// Tasks, and the tools of a worker for them.
struct Apart {
    tasks: VecDeque<Task>,
    workshop: Workshop,
    meter: Rc<Meter>,
}

impl Coding {
    /// The driver codes in place.
    pub(crate) fn in_place() -> Self {
        Self(None)
    }

    /// Tasks are handed over and taken back, as with workers, and what they take is [`Stage::Work`].
    pub(crate) fn apart(pool: &BufferPool, meter: &Rc<Meter>) -> Self {
        Self(Some(Apart {
            tasks: VecDeque::new(),
            workshop: Workshop::new(pool.clone()),
            meter: Rc::clone(meter),
        }))
    }
}

impl Executor for Coding {
    fn takes(&self, kind: JobKind) -> bool {
        self.0.is_some() && kind != JobKind::DecodeForWindow
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
        let Some(apart) = &mut self.0 else {
            return Err(task);
        };
        apart.tasks.push_back(task);
        Ok(owner.unwrap_or(WorkerId(0)))
    }

    fn take_done(&mut self, _now: Time) -> Option<Task> {
        let apart = self.0.as_mut()?;
        let mut task = apart.tasks.pop_front()?;
        let workshop = &mut apart.workshop;
        apart.meter.measure(Stage::Work, || task.run(workshop));
        Some(task)
    }

    /// Tasks are done whenever they are asked for.
    fn next_done(&self) -> Option<Time> {
        None
    }

    fn recall(&mut self, _id: TaskId) -> Option<Task> {
        None
    }
}
