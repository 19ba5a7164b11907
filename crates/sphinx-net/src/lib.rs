//! Packet input and output of an endpoint, in batches.
//!
//! [`PacketIo`] is the one interface between the engine loop and the network: it receives whole
//! batches of buffers, sends whole batches of datagrams, waits, and counts. Its back ends are
//! [`udp::UdpIo`] over kernel UDP sockets, and [`MemoryIo`], which joins two ends without a
//! network, for tests.
//!
//! The other parts serve the same loop: [`SendQueue`] gathers datagrams into transmit
//! descriptors, [`Waker`] ends a wait from another thread and [`resolve()`] turns what a user typed
//! into addresses.
//!
//! The crate is for Linux.

mod counters;
mod io;
mod memory;
mod queue;
mod resolve;
pub mod udp;
mod wake;

pub use counters::{Counters, SendErrors};
pub use io::{
    Capabilities, DATAGRAM_BATCH_BYTES_MAX, DropReason, Dropped, Ecn, Interest, PacketIo, Ready,
    Received, Transmit,
};
pub use memory::MemoryIo;
pub use queue::{Destination, SendQueue};
pub use resolve::{Family, ResolveError, resolve};
pub use wake::{Waker, minimise_timer_slack};
