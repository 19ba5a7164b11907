//! Sphinx endpoints, sessions and streams: the engine, the QUIC control plane and the public API.
//!
//! One end [binds](Server::bind) and hands out a [`Ticket`]; the other [`connect`]s with it. Both then have a
//! [`Session`], and streams of bytes that are reliable, in order and flow-controlled:
//!
//! ```
//! use sphinx_transport::{Options, Server, Service, connect};
//!
//! # fn main() -> Result<(), sphinx_transport::Error> {
//! let options = Options::default();
//! let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
//! let ticket = server.ticket(&["127.0.0.1".to_owned()])?;
//!
//! let client = std::thread::spawn(move || {
//!     let session = connect(&ticket, Service::Application, &options)?;
//!     let mut stream = session.open_uni()?;
//!     stream.write_all(b"hello")?;
//!     stream.wait_delivered()?;
//!     session.close(0, "done");
//!     Ok::<_, sphinx_transport::Error>(())
//! });
//!
//! let session = server.accept(None)?.expect("waits without limit");
//! let mut stream = session.accept_uni()?;
//! let mut greeting = [0; 5];
//! let mut filled = 0;
//! while filled < greeting.len() {
//!     filled += stream.read(&mut greeting[filled..])?;
//! }
//! assert_eq!(&greeting, b"hello");
//! client.join().expect("the client does not panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! Those are calls that block, for threads. [`asynchronous`] has the same for tasks.
//!
//! | room | holds |
//! | --- | --- |
//! | `endpoint` | listening and connecting |
//! | `engine` | the thread that owns socket, control plane and sessions |
//! | `sessions` | which session is served when |
//! | `shards` | several engines behind one port |
//! | `association` | one session inside the engine: its driver, its errors and statistics |
//! | `budget` | what all sessions may hold together, and each of them |
//! | `shared` | queues between the application and the engine |
//! | `signal` | how the engine tells threads and tasks that there is news |
//! | `send_stream`, `recv_stream` | the application's ends of streams |
//! | `datagram` | datagrams and live messages |
//! | `message` | messages on streams |
//! | `asynchronous` | the same sessions and streams for tasks |
//! | `control` | QUIC: handshake, identity, parameters; a limit on what strangers cost |
//! | `memory` | what earlier sessions learned about paths |
//! | `resumptions` | what earlier sessions have agreed on for later ones |
//! | `routing` | connection ids that a load balancer can read |
//! | `ticket` | what a client must know |
//! | `access` | who may connect: tickets with secrets of their own, keys of clients |

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod access;
mod association;
pub mod asynchronous;
mod budget;
mod control;
mod datagram;
mod endpoint;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod memory;
mod message;
mod options;
mod paths;
mod recv_stream;
mod resumptions;
mod routes;
mod routing;
mod send_stream;
mod sessions;
mod shards;
mod shared;
mod signal;
mod stats;
mod sync;
mod ticket;
mod unordered;

pub use access::{
    Access, AccessList, ClientKey, KeyError, Peer, PublicKey, TicketId, TicketSecret,
};
pub use datagram::{
    DatagramInfo, DatagramOptions, LiveInfo, LiveOptions, LiveReceiver, LiveSender,
};
pub use endpoint::{Server, can_advertise, connect};
pub use error::{Error, ErrorKind, close_code};
pub use memory::path_memory_file;
pub use message::{MessageReceiver, MessageSender};
pub use options::{
    BUSY_POLL_MAX, Cc, Codec, Couple, EcnMode, Family, Icm, Io, LocalPath, Options, PathOptions,
    Profile, Service, auto_workers,
};
pub use recv_stream::RecvStream;
pub use routing::{ROUTING_KEY_LEN, Route, RoutingKey};
pub use send_stream::SendStream;
pub use shards::{SHARDS_MAX, auto_shards};
pub use shared::Session;
#[cfg(feature = "dpdk")]
pub use sphinx_dpdk::{DpdkConfig, DpdkError};
pub use sphinx_driver::{DatagramCounts, MAX_MESSAGE};
pub use sphinx_net::ResolveError;
pub use sphinx_proto::wire::BUNDLE_MAX;
pub use sphinx_proto::{
    Bond, Losses, PATHS_MAX, Paper, PathNews, PathPolicy, PathRole, Sc, Urgency, cc,
};
pub use sphinx_workers::WORKERS_MAX;
pub use sphinx_xdp::{XdpConfig, XdpError};
pub use stats::{EarlyData, Load, PathEvent, PathFigures, Stats};
pub use ticket::{ServerKey, Ticket, TicketError};
pub use unordered::UnorderedReceiver;
