//! Blocks: what of them was sent and arrived, what they are owed, and which symbol goes next.

mod ahead;
mod assembly;
mod coding;
mod completion;
mod copied;
mod deadline;
mod icm;
mod incoming;
mod next;
mod protect;
mod restoring;
mod riding;
mod selector;
mod sliding;
mod store;
mod waiting;

use sphinx_fec::CodeId;

use crate::config::{Config, Icm, Profile};

pub(crate) use ahead::Ahead;
pub(crate) use assembly::{Assembly, Key};
pub(crate) use coding::{block_symbols, symbol_reserve};
pub(crate) use completion::Completion;
pub(crate) use deadline::Horizon;
pub(crate) use icm::Compensation;
pub(crate) use incoming::{Complete, RxBlocks, Shape, Taken};
pub(crate) use protect::{Idle, Protection, Tail};
pub use restoring::SYMBOL_STRIDE;
pub(crate) use restoring::{Covering, Restoring};
pub(crate) use riding::Rides;
pub use selector::EPSILON;
pub(crate) use sliding::{SlidingWindow, WindowChoice};
use store::Demands;
pub(crate) use store::{BlockStore, NewBlock, SymbolChoice, TxBlock};
pub(crate) use waiting::{Waiting, WaitingBlock};

/// How much is sent beyond the data, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Redundancy {
    pub(crate) profile: Profile,
    pub(crate) code: Option<CodeId>,
    pub(crate) icm: Icm,
    /// Block failure probability of what is protected ahead.
    pub(crate) epsilon: f64,
}

impl Redundancy {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            profile: config.profile,
            code: config.code,
            icm: config.icm,
            epsilon: config.epsilon,
        }
    }

    /// What the code asks of a block of n symbols.
    pub(crate) fn demands(&self, n: u16) -> Demands {
        Demands {
            surplus: coding::surplus(self.code, n),
            repeats_sources: coding::is_finite(self.code),
        }
    }

    fn is_peeling(&self) -> bool {
        coding::is_peeling(self.code)
    }
}
