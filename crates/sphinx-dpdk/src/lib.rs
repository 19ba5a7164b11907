//! Packet input and output of an endpoint over DPDK, which has the card to itself.
//!
//! `DpdkIo` is a back end as `sphinx_net::udp::UdpIo` is, but the kernel has no part in it: the addresses of the port, and a gateway, are
//! given with it, and it asks and answers who is on the link itself. It polls, and sleeps longer the longer nothing comes.
//!
//! | room | holds |
//! | --- | --- |
//! | `config` | what is asked for, as people write it |
//! | `eal` | the library, once per process |
//! | `port` | packets in and out, a burst at a time; all that is `unsafe` |
//! | `link` | which way packets leave: addresses, gateway, neighbours |
//! | `io` | the back end |
//!
//! `shim.c` calls what is inline in DPDK's headers. Without the feature `dpdk` the crate is empty.

#![warn(missing_debug_implementations)]
#![cfg(feature = "dpdk")]

mod config;
mod eal;
mod error;
mod io;
mod link;
mod port;

pub use config::{Address, DpdkConfig};
pub use error::DpdkError;
pub use io::DpdkIo;
