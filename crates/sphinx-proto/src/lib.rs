//! The Sphinx protocol as a deterministic state machine: no clock, no socket, no thread.
//!
//! [`Session`] is one end of an association: it takes packets that have opened, blocks to send and
//! the time, and gives packet descriptors, jobs and events. `docs/protocol.md` specifies the wire.
//!
//! | paper's name | here |
//! | --- | --- |
//! | Data Slicer, Data Assembler | whoever drives the session: blocks are handed over whole |
//! | Parameter Selector | `blocks::selector` |
//! | Monitor | [`Monitor`] |
//! | ICM: Symbol-SACK, Block-SACK, ReFEC | `path::acks`, `streams::incoming` (feedback), `blocks::icm` (compensation) |
//! | Congestion Controller | [`cc`] |
//! | Encoder, Decoder | `sphinx-fec`, run by the driver as the descriptors and jobs say |

#![forbid(unsafe_code)]

mod blocks;
pub mod cc;
mod config;
mod control_queue;
mod ids;
mod path;
mod ranges;
mod receiver;
mod sender;
mod session;
mod streams;
mod types;
pub mod wire;

pub use blocks::EPSILON;
pub use cc::Nanos;
pub use config::{Config, ConnectionIds, Icm, PathMemory, Profile, Role};
pub use path::{Losses, Monitor, mtu_candidates};
pub use session::{BASE_DATAGRAM, Session};
pub use types::{
    Content, CoveredBlock, Event, Job, PacketMeta, PartPlacement, Placement, Received, Room,
    STREAMS_MAX, SessionStats, Slot, Transmit, Tuple, block_cost,
};
