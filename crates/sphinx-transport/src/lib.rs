//! Sphinx endpoints, sessions and streams: the engine, the QUIC control plane and the public API.

#![forbid(unsafe_code)]

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the engine is the user of this module")
)]
mod control;
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        unused_imports,
        reason = "the engine is the user of this module"
    )
)]
mod keys;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the engine is the user of this module")
)]
mod ticket;

pub use ticket::{Ticket, TicketError};
