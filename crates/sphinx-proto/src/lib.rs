//! The Sphinx protocol as a deterministic state machine: no clock, no socket, no thread.
//!
//! [`Session`] is one end of an association: it takes packets that have opened, blocks to send and
//! the time, and gives packet descriptors, jobs and events. `docs/protocol.md` specifies the wire.
//!
//! | paper's name | here |
//! | --- | --- |
//! | Data Slicer, Data Assembler | whoever drives the session: blocks are handed over whole |
//! | Parameter Selector | `selector` |
//! | Monitor | [`Monitor`] |
//! | ICM: Symbol-SACK, Block-SACK, ReFEC | `receiver` (feedback), `sender::icm` (compensation) |
//! | Congestion Controller | [`cc`] |
//! | Encoder, Decoder | `sphinx-fec`, run by the driver as the descriptors and jobs say |

#![forbid(unsafe_code)]

mod arrivals;
mod block;
pub mod cc;
mod coding;
mod config;
mod ecn;
mod fragment;
mod ids;
mod monitor;
mod mtu;
mod pacer;
mod path;
mod ranges;
mod receiver;
mod rtt;
mod selector;
mod sender;
mod sent;
mod session;
mod shares;
mod types;
pub mod wire;

pub use cc::Nanos;
pub use config::{Config, ConnectionIds, Icm, PathMemory, Profile, Role};
pub use monitor::{Losses, Monitor};
pub use mtu::mtu_candidates;
pub use selector::EPSILON;
pub use session::{BASE_DATAGRAM, Session};
pub use types::{
    Content, CoveredBlock, Event, Job, PacketMeta, PartPlacement, Placement, Received, Room,
    STREAMS_MAX, SessionStats, Slot, Transmit, Tuple, block_cost,
};
