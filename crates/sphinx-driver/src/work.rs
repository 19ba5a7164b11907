//! Jobs on payload as values, for whoever does them in other threads.

mod opening;
mod sealing;

use std::sync::Arc;

use sphinx_fec::Error;
use sphinx_proto::{Job, PathId};

use crate::blocks::RxBlock;
use crate::driver::Workshop;
use crate::executor::JobKind;
use crate::protection::{OpenPacket, SealPacket};

pub(crate) use opening::{OpenRun, Opening};
pub(crate) use sealing::{Body, GONE, SealRun, body_of};

/// Packets of one run at most.
pub(crate) const RUN_PACKETS_MAX: usize = 64;
/// Bytes of one run at most, unless it is a single packet.
pub(crate) const RUN_BYTES_MAX: usize = 64 << 10;

/// Number of a task among those of its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u64);

/// A job with everything that it needs. Whoever has it [runs](Self::run) it once and gives it back.
pub struct Task {
    pub(crate) id: TaskId,
    pub(crate) work: Work,
    pub(crate) outcome: Outcome,
}

/// What has come of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing yet; or somebody has begun and not come to an end, since something panicked.
    None,
    Done,
    /// A fault of this end.
    Failed(Fault),
}

/// Why a job was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Decoding(Error),
    Sealing(String),
}

/// Finished runs, kept so that their memory is used again.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they come and go in their boxes")]
pub(crate) struct Spare {
    opening: Vec<Box<OpenRun>>,
    /// Memory of those, and of buffers that were received.
    memory: Vec<Vec<u8>>,
    sealing: Vec<Box<SealRun>>,
}

impl Spare {
    /// Runs of each kind that are kept at most.
    const MAX: usize = 16;

    pub(crate) fn keep_opening(&mut self, mut run: Box<OpenRun>) {
        self.keep_memory(run.take_memory());
        if self.opening.len() < Self::MAX {
            self.opening.push(run);
        }
    }

    pub(crate) fn keep_sealing(&mut self, mut run: Box<SealRun>) {
        if self.sealing.len() < Self::MAX {
            run.clear();
            self.sealing.push(run);
        }
    }

    /// Memory for datagrams that arrive, of whatever content.
    pub(crate) fn memory(&mut self) -> Vec<u8> {
        let spare = self.memory.pop();
        spare.unwrap_or_else(|| vec![0; RUN_BYTES_MAX])
    }

    pub(crate) fn keep_memory(&mut self, memory: Vec<u8>) {
        if self.memory.len() < Self::MAX {
            self.memory.push(memory);
        }
    }

    /// An empty run, without memory.
    pub(crate) fn opening(
        &mut self,
        path: PathId,
        epoch: u64,
        key: Arc<dyn OpenPacket>,
    ) -> Box<OpenRun> {
        match self.opening.pop() {
            Some(mut run) => {
                run.begin_again(path, epoch, key);
                run
            }
            None => Box::new(OpenRun::new(path, epoch, key)),
        }
    }

    /// An empty run.
    pub(crate) fn sealing(
        &mut self,
        path: PathId,
        epoch: u64,
        key: Arc<dyn SealPacket>,
    ) -> Box<SealRun> {
        match self.sealing.pop() {
            Some(mut run) => {
                run.begin_again(path, epoch, key);
                run
            }
            None => Box::new(SealRun::new(path, epoch, key)),
        }
    }
}

/// What there is to do. Boxed, as it goes through rings of small descriptors.
pub(crate) enum Work {
    Decode(Box<DecodeJob>),
    Open(Box<OpenRun>),
    Seal(Box<SealRun>),
}

/// A block that is being decoded.
pub(crate) struct DecodeJob {
    pub(crate) job: Job,
    pub(crate) block: RxBlock,
}

impl Task {
    pub(crate) fn new(id: TaskId, work: Work) -> Self {
        Self {
            id,
            work,
            outcome: Outcome::None,
        }
    }

    /// Number of the task among those of its driver.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// What kind of job it is.
    pub fn kind(&self) -> JobKind {
        match &self.work {
            Work::Decode(job) => job.kind(),
            Work::Open(_) => JobKind::Open,
            Work::Seal(_) => JobKind::Seal,
        }
    }

    /// About how much there is to do, bytes.
    pub fn bytes(&self) -> usize {
        match &self.work {
            Work::Decode(job) => job.block.bytes(),
            Work::Open(run) => run.bytes(),
            Work::Seal(run) => run.bytes(),
        }
    }

    /// Does the job. Should it panic, giving the task back all the same tells its driver, which ends the session.
    pub fn run(&mut self, workshop: &mut Workshop) {
        let failed = match &mut self.work {
            Work::Decode(job) => job.run(workshop).err().map(Fault::Decoding),
            Work::Open(run) => {
                run.run();
                None
            }
            Work::Seal(run) => run.run(workshop).err().map(Fault::Sealing),
        };
        self.outcome = failed.map_or(Outcome::Done, Outcome::Failed);
    }
}

impl DecodeJob {
    pub(crate) fn kind(&self) -> JobKind {
        match self.job.window {
            Some(_) => JobKind::DecodeForWindow,
            None => JobKind::Decode,
        }
    }

    pub(crate) fn run(&mut self, workshop: &mut Workshop) -> Result<(), Error> {
        let decoder = match self.job.decoding {
            Some(decoding) if decoding.maximum_likelihood => &mut workshop.thorough_decoder,
            _ => &mut workshop.decoder,
        };
        self.block.decode(decoder)
    }
}
