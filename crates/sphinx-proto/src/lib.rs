//! The Sphinx protocol as a deterministic state machine: no clock, no socket, no thread.
//!
//! [`Session`] is one end of an association: it takes packets that have opened, blocks to send and
//! the time, and gives packet descriptors, jobs and events. `docs/protocol.md` specifies the wire.
//!
//! Each state has one owner, with private fields and the few methods that keep its invariants:
//!
//! | module | owns |
//! | --- | --- |
//! | `path` | packet numbers, what was sent and what arrived; of the pair of addresses in use: round trip, losses, rate, MTU, marks, probes; candidates for other addresses |
//! | `blocks` | blocks on their way and what they are owed; blocks that arrive and their rank; codes, ICM, ProFEC |
//! | `streams` | life of streams; credit and shares of the window |
//! | `control_queue` | frames that must arrive |
//! | `scheduler` | nothing but what has begun to leave: it answers what the next packet carries |
//! | `admission` | the limits of what is on its way: whether another block may be handed over |
//! | `paper`, `sc` | what the modes of two papers choose and say instead |
//! | `sender`, `receiver` | the two halves, of the owners above |
//! | `session` | life and death of the session, and the way in and out |
//! | `numbers` | nothing: the types of numbers that name a packet, a block, a window, and must not be taken for each other |
//! | `time` | nothing: the type of points in time, which must not be taken for spans |
//!
//! | paper's name | here |
//! | --- | --- |
//! | Data Slicer, Data Assembler | whoever drives the session: blocks are handed over whole |
//! | Parameter Selector | `blocks::selector` |
//! | Monitor | `path::monitor` |
//! | ICM: Symbol-SACK, Block-SACK, ReFEC | `path::acks`, `blocks::completion` (feedback), `blocks::icm` (compensation) |
//! | Congestion Controller | [`cc`] |
//! | Encoder, Decoder | `sphinx-fec`, run by the driver as the descriptors and jobs say |

#![forbid(unsafe_code)]

mod admission;
mod blocks;
pub mod cc;
mod config;
mod control_queue;
mod demand;
mod ids;
mod jobs;
mod numbers;
mod paper;
mod path;
mod paths;
mod ranges;
mod receiver;
mod sc;
mod scheduler;
mod sender;
mod session;
mod streams;
mod time;
mod types;
pub mod wire;

pub use blocks::{EPSILON, SYMBOL_STRIDE};
pub use config::{Config, ConnectionIds, Icm, PathMemory, Profile, Role};
pub use numbers::{BlockId, CidSequence, JobId, PacketNumber, PathId, WindowNumber};
pub use paper::{Delta, Paper, Redundant, Resend, Triggers, redundant};
pub use path::{EcnMode, EcnUse, Losses, mtu_candidates};
pub use paths::{Bond, PATHS_MAX, PathPolicy, PathRole, PathState};
pub use sc::{InOrder, Sc, symbol_cost};
pub use session::{BASE_DATAGRAM, CLOSE_LOST, Introduction, Session};
pub use time::{Nanos, Time};
pub use types::{
    AbandonedBlock, BundledSymbol, Content, CoveredBlock, Decoding, Event, Incomplete, Job,
    Lifetime, PacketMeta, PartPlacement, PastBlock, PathNews, PathStats, Place, Placement,
    Received, RepairMode, RidingSymbol, Room, STREAMS_MAX, SessionStats, Slot, StreamId,
    StreamPart, Transmit, Tuple, Urgency, block_cost, share_cost,
};
