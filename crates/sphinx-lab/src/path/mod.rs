//! `sphx lab path`: three hosts in a row, two emulated hops between them, any program on the one in the middle and on the
//! right one, and a transfer by the kernel's TCP across all of it, or groups of flows.
//!
//! ```text
//! left ── wired hop ── middle ── wireless hop ── right
//! ```
//!
//! [`PathArgs`] is the command line, a [`Plan`] what it asks for, [`run()`] does it. Both hops are links of the
//! [`emulator`](crate::emulator), and tell what they have done to which packet.

mod args;
mod bed;
mod flows;
mod plan;
mod program;
mod run;
mod transfer;

pub use args::PathArgs;
pub use flows::{Delays, Flowed, Group, GroupReport, Work};
pub use plan::Plan;
pub use program::Output;
pub use run::{Carried, Outputs, Report, run};
pub use transfer::{Transfer, Transferred};
