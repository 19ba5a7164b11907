//! Packet input and output of an endpoint, in batches.
//!
//! [`PacketIo`] is the one interface between the engine loop and the network: one half
//! ([`PacketRx`]) receives whole batches of buffers, the other ([`PacketTx`]) lends frames that are written and sent in
//! batches. All buffers are the back end's, so that nothing is copied on the way. Its back ends here are
//! [`udp::UdpIo`] over kernel UDP sockets, and [`MemoryIo`], which joins two ends without a
//! network, for tests and measurements; those that bypass the kernel are crates of their own.
//!
//! The other parts serve the same loop: [`Waker`] ends a wait from another thread and [`resolve()`] turns what a user typed
//! into addresses. [`InstructionCounter`] is for measurements of all that.
//!
//! The crate is for Linux.

mod counters;
mod instructions;
mod io;
mod memory;
mod queue;
mod resolve;
pub mod udp;
mod wake;

pub use counters::{Counters, SendErrors};
pub use instructions::InstructionCounter;
pub use io::{
    Capabilities, Destination, DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx, PacketTx,
    Ready, Received, TURN_BYTES, TURN_RECEIVES, Written,
};
pub use memory::MemoryIo;
pub use resolve::{Family, ResolveError, resolve};
pub use wake::{Waker, minimise_timer_slack};
