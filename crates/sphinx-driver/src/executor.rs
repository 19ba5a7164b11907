//! Where jobs on payload are done.

use sphinx_proto::Time;

use crate::work::{Task, TaskId};

/// A piece of work on payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Opening received packets.
    Open,
    /// Restoring a block's missing symbols.
    Decode,
    /// The same of a block that a sliding window waits for, in whose order things have to be done.
    DecodeForWindow,
    /// Encoding and sealing packets that leave.
    Seal,
}

/// Whom tasks on a block go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId(pub u16);

/// Does jobs elsewhere: on other cores, or later in a simulation; or leaves them to the driver.
///
/// Tasks come back in any order. What follows from them does not depend on it: packets leave in the order of their
/// numbers, and the core hears of those that have arrived in the order in which they did.
pub trait Executor {
    /// Whether jobs of this kind are done elsewhere. All others the driver does at once, in the buffers where the data is.
    fn takes(&self, kind: JobKind) -> bool;

    /// So many bytes of packets, at least, are worth handing over while nothing before them is elsewhere.
    fn bytes_min(&self) -> usize;

    /// Hands a task over to `owner` if its blocks have one, and to whom there is least to do otherwise: who has it.
    ///
    /// # Errors
    /// The task, if there is no room for it.
    fn hand_over(
        &mut self,
        now: Time,
        task: Task,
        owner: Option<WorkerId>,
    ) -> Result<WorkerId, Task>;

    /// A task that is done at `now`.
    fn take_done(&mut self, now: Time) -> Option<Task>;

    /// When the next task is done, if that is known beforehand: in simulations.
    fn next_done(&self) -> Option<Time>;

    /// A task of the kind [`JobKind::DecodeForWindow`] that so much waits for that it must end now; `None` if it is done already.
    fn recall(&mut self, id: TaskId) -> Option<Task>;
}

/// Everything is done at once, by the caller and in the buffers where the data is: nothing is copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inline;

impl Executor for Inline {
    #[inline]
    fn takes(&self, _kind: JobKind) -> bool {
        false
    }

    fn bytes_min(&self) -> usize {
        usize::MAX
    }

    fn hand_over(
        &mut self,
        _now: Time,
        task: Task,
        _owner: Option<WorkerId>,
    ) -> Result<WorkerId, Task> {
        Err(task)
    }

    fn take_done(&mut self, _now: Time) -> Option<Task> {
        None
    }

    fn next_done(&self) -> Option<Time> {
        None
    }

    fn recall(&mut self, _id: TaskId) -> Option<Task> {
        None
    }
}
