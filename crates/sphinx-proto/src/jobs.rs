//! Work on payload that the driver does, and what is told once it is done.

use std::collections::VecDeque;

use crate::JobId;
use crate::types::{Decoding, Event, Job, PastBlock, Slot};

/// Jobs wanted, and those under way.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    wanted: VecDeque<Job>,
    pending: Vec<(JobId, Event)>,
    next: JobId,
}

impl Jobs {
    /// This is to be done with the block in this slot; `event` tells that it has been.
    pub(crate) fn push(
        &mut self,
        slot: Slot,
        decoding: Option<Decoding>,
        window: Option<PastBlock>,
        event: Event,
    ) {
        let id = self.next;
        self.next += 1;
        self.pending.push((id, event));
        self.wanted.push_back(Job {
            id,
            slot,
            decoding,
            window,
        });
    }

    pub(crate) fn poll(&mut self) -> Option<Job> {
        self.wanted.pop_front()
    }

    /// The job has been done; `None` if there is no such job.
    pub(crate) fn done(&mut self, id: JobId) -> Option<Event> {
        let at = self.pending.iter().position(|(job, _)| *job == id)?;
        Some(self.pending.swap_remove(at).1)
    }
}
