//! Systematic coding over unequal paths with a bounded receive buffer, and what it is compared with (`docs/protocol.md` §14,
//! `docs/sc-multipath.md`).
//!
//! | part | what it does |
//! | --- | --- |
//! | `settings` | the schemes, and the parameter of the handshake |
//! | `redundancy` | how many rows go ahead of a generation, from the losses of the paths |
//! | `sender` | which symbol goes next, on which path; what losses and WARNINGs bring about |
//! | `receiver` | the rank of generations, what may be given out in order, when to warn |
//!
//! A generation is a block of the session. Rate control, packet logs, paths and streams are those of every session.

mod receiver;
mod redundancy;
mod sender;
mod settings;

pub use receiver::InOrder;
pub(crate) use receiver::{Inbound, Rtts, ScReceiver};
pub(crate) use sender::{Kind, LaneView, ScSender};
pub use settings::Sc;

use crate::types::StreamPart;

/// Charged to the receive buffer for every symbol besides its bytes: coefficients and state.
pub(crate) const SYMBOL_OVERHEAD: u64 = 64;

/// What a symbol of a generation costs in the receive buffer, bytes.
pub fn symbol_cost(symbol_len: u16) -> u64 {
    u64::from(symbol_len) + SYMBOL_OVERHEAD
}

/// What a generation costs in the receive buffer, bytes.
pub(crate) fn generation_cost((n, symbol_len): (u16, u16)) -> u64 {
    u64::from(n) * symbol_cost(symbol_len)
}

/// Divides what a generation costs among its parts, by their bytes.
pub(crate) fn share_cost(shape: (u16, u16), parts: &mut [StreamPart]) {
    crate::types::share_cost(generation_cost(shape), parts);
}
