//! The same endpoints, sessions and streams for tasks instead of threads: what blocks in the rest of this crate is an `async fn` here,
//! and beside it a function `poll_…` for whoever writes futures by hand or binds to another language. No runtime is needed, and any will do:
//! the engine's thread wakes tasks by their [`Waker`](std::task::Waker)s. With the feature `tokio`, streams are `tokio::io::AsyncRead` and
//! `tokio::io::AsyncWrite`:
//!
#![cfg_attr(feature = "tokio", doc = "```")]
#![cfg_attr(not(feature = "tokio"), doc = "```ignore")]
//! use sphinx_transport::asynchronous::{Server, connect};
//! use sphinx_transport::{Options, Service};
//! use tokio::io::AsyncReadExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::default();
//! let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
//! let ticket = server.as_blocking().ticket(&["127.0.0.1".to_owned()])?;
//!
//! let client = async {
//!     let session = connect(&ticket, Service::Application, &options).await?;
//!     let mut stream = session.open_uni().await?;
//!     stream.write_all(b"hello").await?;
//!     stream.wait_delivered().await?;
//!     session.close(0, "done").await;
//!     Ok::<_, sphinx_transport::Error>(())
//! };
//! let greeted = async {
//!     let session = server.accept().await?;
//!     let mut greeting = String::new();
//!     let mut stream = session.accept_uni().await?;
//!     stream.read_to_string(&mut greeting).await?;
//!     // Ends with the peer, which still wants to hear that everything has arrived.
//!     session.closed().await;
//!     Ok::<_, std::io::Error>(greeting)
//! };
//! let (client, greeting) = tokio::join!(client, greeted);
//! client?;
//! assert_eq!(greeting?, "hello");
//! server.shut_down().await;
//! # Ok(())
//! # }
//! ```
//!
//! **Threads.** There is one for each endpoint, the engine's, as there is without tasks; none for a stream or a task that waits.
//!
//! **Cancelling.** A future may be dropped at any time, as `select!` does. Each method says what has happened by then; bytes are never
//! lost, and what was begun is gone on with by calling the method again.
//!
//! **Both kinds of calls.** [`From`] makes these types of those that block, and, but for a server, those of these; who sends messages is made of a
//! stream of either kind, and becomes one again. One session may have both at once, at one end or
//! at both. A stream has one reader or writer at a time, thread or task. Of a value that several tasks poll in turn, a stream, a server or a
//! session, the one that polled last is woken; clones of a session are values of their own.
//!
//! **Sharing a thread.** A task that always finds data, or room for it, never has to wait: with the calls here it lets others run when it says so,
//! with tokio's traits when its budget is used up.
//!
//! **What may block.** Nothing but the file of [`Options::path_memory`], if there is one, which is written by whoever lets go of a connecting
//! session.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

mod datagram;
#[cfg(feature = "tokio")]
mod io;
mod message;
mod recv_stream;
mod send_stream;
mod session;
mod unordered;

pub use datagram::LiveReceiver;
pub use message::{MessageReceiver, MessageSender};
pub use recv_stream::RecvStream;
pub use send_stream::SendStream;
pub use session::Session;
pub use unordered::UnorderedReceiver;

use crate::endpoint::Connecting;
use crate::error::Error;
use crate::options::{Options, Service};
use crate::signal::Waiter;
use crate::ticket::Ticket;

/// Connects as [`connect`](crate::connect) does.
///
/// *Cancelling* ends the attempt. One that asks for an address' name at that moment ends when that is answered.
///
/// # Errors
/// Those of [`connect`](crate::connect).
pub async fn connect(
    ticket: &Ticket,
    service: Service,
    options: &Options,
) -> Result<Session, Error> {
    let mut connecting = Connecting::begin(ticket.clone(), service, options.clone())?;
    poll_fn(|cx| connecting.poll(cx)).await.map(Session::from)
}

/// A listening endpoint with a fresh identity: [`crate::Server`] for tasks. Dropping it closes its sessions and does not wait for that;
/// [`shut_down`](Self::shut_down) does.
pub struct Server {
    server: crate::Server,
    accepting: Waiter,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl From<crate::Server> for Server {
    fn from(server: crate::Server) -> Self {
        let accepting = server.waiter();
        Self { server, accepting }
    }
}

impl Server {
    /// Listens on `listen`, as [`crate::Server::bind`] does; that takes no time.
    ///
    /// # Errors
    /// [`ErrorKind::LocalIo`](crate::ErrorKind::LocalIo) when the address cannot be used.
    pub fn bind(listen: SocketAddr, service: Service, options: &Options) -> Result<Self, Error> {
        crate::Server::bind(listen, service, options).map(Self::from)
    }

    /// The same server, for what does not wait: its address, tickets, counters.
    pub fn as_blocking(&self) -> &crate::Server {
        &self.server
    }

    /// Waits for the next authenticated session.
    ///
    /// *Cancelling* takes nothing: a session that has arrived is the next call's.
    ///
    /// # Errors
    /// When the socket has failed.
    pub async fn accept(&self) -> Result<Session, Error> {
        let mut waiter = self.server.waiter();
        let accepted = poll_fn(|cx| self.server.poll_accept(&mut waiter, cx)).await;
        accepted.map(Session::from)
    }

    /// [`accept`](Self::accept), polled.
    ///
    /// # Errors
    /// When the socket has failed.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Session, Error>> {
        let accepted = self.server.poll_accept(&mut self.accepting, cx);
        accepted.map_ok(Session::from)
    }

    /// Closes the sessions, and waits until their peers have been told and the address is free.
    ///
    /// *Cancelling* does not take that back; peers are told all the same, as long as the process lives.
    pub async fn shut_down(mut self) {
        self.server.begin_stop();
        let Self { server, accepting } = &mut self;
        poll_fn(|cx| server.poll_stopped(accepting, cx)).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.server.begin_stop();
    }
}
