//! Worker threads that encode, seal, open and decode for the drivers of one endpoint (the paper's workers).
//!
//! The thread that runs the drivers, the distributor, hands tasks over through a bounded ring for each worker, and takes them back, done,
//! through another one. A descriptor is two words; the task behind it is a run of packets or a block. Nothing
//! spins: a worker without tasks is parked, and each task that comes back wakes the distributor. When a ring is full the distributor
//! does the task itself, so that nothing queues without bound and it has no time to make more.
//!
//! | room | holds |
//! | --- | --- |
//! | `crew` | the threads and their rings |
//! | `coding` | [`Coding`], through which a session's driver reaches them |
//! | `cpus` | which processors there are, and being bound to one |
//! | `sync` | threads and rings, or those of loom and shuttle |

#![forbid(unsafe_code)]

mod coding;
mod cpus;
mod crew;
mod sync;

pub use coding::Coding;
pub use cpus::{pin, usable_cpus, workers_for};
pub use crew::{Crew, Job, Member, WORKERS_MAX};
