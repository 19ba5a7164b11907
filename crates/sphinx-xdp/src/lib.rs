//! Packet input and output of an endpoint over AF_XDP, past the kernel's network stack.
//!
//! [`XdpIo`] is a back end as [`UdpIo`](sphinx_net::udp::UdpIo) is, and is opened around one: an ordinary UDP socket that is bound. An
//! XDP program at the interface takes the packets of that socket's port before the kernel has seen them, and they appear in memory that this
//! process and the kernel share; what is sent is written there, headers and all. The program lets everything else pass, and
//! goes with the process.
//!
//! The socket keeps the port, hears what ICMP says, and carries what frames do not: packets to and from other interfaces, fragments, the first
//! packets to an address whose neighbour is not known yet, and what arrives at a queue that is not ours. So nothing is lost by choosing AF_XDP; it is only
//! slower there, and counted ([`Counters::kernel_datagrams`](sphinx_net::Counters::kernel_datagrams)).
//!
//! | room | holds |
//! | --- | --- |
//! | `config` | what is asked for, as people write it |
//! | `io` | the back end |
//! | `flows` | which packets may leave as frames, and their headers |
//! | `queue` | a queue of the interface: its socket, memory and rings |
//! | `ring`, `umem` | rings and memory that are shared with the kernel |
//! | `program`, `bpf` | the XDP program, and how it is loaded |
//!
//! The crate is for Linux.

#![warn(missing_debug_implementations)]

mod bpf;
mod config;
mod error;
mod flows;
mod io;
mod program;
mod queue;
mod ring;
mod umem;

pub use config::{Attach, Queues, Transfer, XdpConfig};
pub use error::XdpError;
pub use io::XdpIo;
