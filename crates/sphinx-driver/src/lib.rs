//! The core driven: everything between a `sphinx_proto::Session`, which never touches payload, and those
//! who own sockets, threads and clocks.
//!
//! The application writes into a [`Slicer`], which cuts pieces; [`Queues`] hold them until the session's
//! window lets them go. A [`Driver`] makes blocks of them, encodes and seals what the core decides to
//! send, opens what arrives, decodes, and puts complete blocks where the application takes them.
//!
//! Time is an argument, and nothing here waits: the transport, the simulator and the fuzzers run this same
//! code. They differ in three parameters:
//!
//! * [`PacketProtection`]: [`keys::Keys`] in the product;
//! * [`Executor`], which does jobs on payload in other threads, or later in a simulation; with [`Inline`] the driver does them at once;
//! * [`Application`], by which a driver reaches the application: locks and condition variables between
//!   threads, plain cells in a simulation.
//!
//! | room | holds |
//! | --- | --- |
//! | `driver` | one session: packets in and out, blocks, events |
//! | `queues`, `outgoing`, `incoming` | what application and driver leave for each other |
//! | `slicer` | the open piece of a stream that is being written |
//! | `blocks`, `window` | the memory that the core's slots name; the sliding window |
//! | `executor`, `protection`, `outbox` | what the surroundings supply |
//! | `work` | jobs on payload as values, for other threads |
//! | `datagrams` | datagrams and live messages that wait, at either end |
//! | `messages` | what streams of messages, and messages that are streams, have brought |
//! | `holding` | packets that come before their session's keys |
//! | `keys` | key schedule, sealing, opening, replay window |
//! | `pool` | memory for blocks |

#![forbid(unsafe_code)]

mod blocks;
mod datagrams;
mod driver;
mod executor;
mod generations;
mod holding;
mod incoming;
pub mod keys;
mod messages;
mod outbox;
mod outgoing;
mod pool;
mod protection;
mod queues;
mod slicer;
mod window;
mod work;

pub use datagrams::{Arrived, DatagramCounts, LiveEnd, Refusal, SendAs};
pub use driver::{Counters, Driver, EndReason, Origin, Workshop};
pub use executor::{Executor, Inline, JobKind, WorkerId};
pub use holding::{Held, Holding, Waiting};
pub use incoming::{Chunk, Incoming, Taken};
pub use messages::{Gatherer, MAX_MESSAGE, MessageError, MessageReader, prefix_of};
pub use outbox::Outbox;
pub use outgoing::{Piece, StreamEnd};
pub use pool::{BufferPool, POOL_BYTES, PoolBuffer, PoolStats};
pub use protection::{OpenPacket, PacketProtection, SealPacket};
pub use queues::{Application, DATAGRAM_BYTES, Queues, READY_PER_STREAM, SharedSlicer};
pub use slicer::{PAUSE, Slicer, Watch, Written};
pub use work::{Task, TaskId};
