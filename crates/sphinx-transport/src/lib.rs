//! Sphinx endpoints, sessions and streams: the engine, the QUIC control plane and the public API.

#![forbid(unsafe_code)]
#![expect(missing_docs, unused_variables, clippy::unimplemented, reason = "signatures only, the engine replaces them")]

use std::net::SocketAddr;
use std::time::Duration;

/// Address-family preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Family { #[default] Any, V4, V6 }

/// What the parameter selector optimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile { #[default] Auto, Bulk, Latency }

/// Erasure code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec { #[default] Auto, Rlc, SemiRandomLt, None }

/// Rate control. Rates are IP bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cc { #[default] Auto, Bbr, AimdEcn, Fixed(u64) }

#[derive(Debug, Clone)]
pub struct Options {
    pub family: Family,
    pub profile: Profile,
    pub codec: Codec,
    pub cc: Cc,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
}
impl Default for Options { fn default() -> Self { unimplemented!() } }

/// What the session is for; both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service { Files, Perf }

/// Addresses (host:port strings), the server's certificate pin and the secret. Text form via
/// Display/FromStr: one token, `sphx1…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket { _private: () }
impl std::str::FromStr for Ticket { type Err = Error; fn from_str(s: &str) -> Result<Self, Error> { unimplemented!() } }
impl std::fmt::Display for Ticket { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { unimplemented!() } }
impl Ticket { pub fn addresses(&self) -> &[String] { unimplemented!() } }

/// Kinds of failure; each maps to one exit code of the CLI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    Other, Usage, Unreachable, Authentication, Protocol,
    /// nothing heard for the idle timeout
    PeerLost,
    /// the peer closed with a reason
    Cancelled,
    LocalIo, RemoteIo, Integrity,
    /// this end was asked to stop (Ctrl-C)
    Interrupted,
}

/// `message` says what happened, `hint` (maybe empty) what to do.
#[derive(Debug, Clone)]
pub struct Error { pub kind: ErrorKind, pub message: String, pub hint: String }
impl std::fmt::Display for Error { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.message) } }
impl std::error::Error for Error {}

/// A listening endpoint with a fresh identity (certificate and secret). One engine thread.
pub struct Server;
impl Server {
    /// Error kind LocalIo when the address is in use.
    pub fn bind(listen: SocketAddr, service: Service, options: &Options) -> Result<Server, Error> { unimplemented!() }
    pub fn local_addr(&self) -> SocketAddr { unimplemented!() }
    /// `advertise`: host[:port] strings; the local port is added where missing.
    pub fn ticket(&self, advertise: &[String]) -> Ticket { unimplemented!() }
    /// Blocks for the next authenticated session; `None` when `timeout` passes.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<Session>, Error> { unimplemented!() }
}

/// Blocks until the session is authenticated; tries the ticket's addresses in turn (happy eyeballs later).
pub fn connect(ticket: &Ticket, service: Service, options: &Options) -> Result<Session, Error> { unimplemented!() }

/// Cheap to clone; safe to use from several threads.
#[derive(Clone)]
pub struct Session;
impl Session {
    pub fn remote_addr(&self) -> SocketAddr { unimplemented!() }
    /// Opens the next stream towards the peer.
    pub fn open_stream(&self) -> Result<SendStream, Error> { unimplemented!() }
    /// Blocks for the next stream that the peer opens (in order of id).
    pub fn accept_stream(&self) -> Result<RecvStream, Error> { unimplemented!() }
    pub fn stats(&self) -> Stats { unimplemented!() }
    /// Sends CLOSE (sealed, repeated) and returns when the peer has answered or after ~0.3 s.
    /// `code` 0 = done, 6 = cancelled, 9 = local I/O error here (the peer reports remote I/O), 5 = protocol.
    /// Blocked calls of other threads return with an error.
    pub fn close(&self, code: u64, reason: &str) { unimplemented!() }
    /// Why the session ended, if it has.
    pub fn closed(&self) -> Option<Error> { unimplemented!() }
}

/// One direction of bytes, reliable, in order, flow-controlled. `Send`.
pub struct SendStream;
impl SendStream {
    /// Copies all of `data` into blocks; blocks while the window is full.
    pub fn write_all(&mut self, data: &[u8]) -> Result<(), Error> { unimplemented!() }
    /// Ends the current block now (otherwise within 1 ms): a message boundary for the latency profile.
    pub fn flush(&mut self) -> Result<(), Error> { unimplemented!() }
    /// Marks the end of the stream; returns at once.
    pub fn finish(&mut self) -> Result<(), Error> { unimplemented!() }
    /// Blocks until the peer's protocol has everything.
    pub fn wait_delivered(&mut self) -> Result<(), Error> { unimplemented!() }
}

pub struct RecvStream;
impl RecvStream {
    /// Blocks; 0 at the end of the stream.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> { unimplemented!() }
}

/// Snapshot; counters since the session began. Rates in IP bytes per second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// since the first handshake datagram was sent (or received)
    pub elapsed: Duration,
    pub wire_bytes_sent: u64,
    pub wire_packets_sent: u64,
    pub wire_bytes_received: u64,
    pub repair_proactive: u64,
    pub repair_reactive: u64,
    pub source_sent: u64,
    /// mean loss rate of first transmissions since the start, 0..1
    pub plr_mean: f64,
    /// current estimate of the loss rate, 0..1
    pub plr: f64,
    /// redundancy in force: proactive repair / source, 0..1
    pub redundancy: f64,
    pub rtt: Duration,
    pub min_rtt: Duration,
    pub pacing_rate: u64,
    pub blocks: u64,
    pub blocks_second_round: u64,
    pub invalid_datagrams: u64,
    pub replayed_datagrams: u64,
    /// data bytes the peer has confirmed / this end's application has been given
    pub bytes_delivered: u64,
    pub bytes_received: u64,
    pub symbol_bytes: u32,
    pub cc: &'static str,
    pub codec: &'static str,
    pub profile: &'static str,
    pub io: &'static str,
}
