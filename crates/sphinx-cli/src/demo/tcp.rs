//! The `perf` protocol over kernel TCP: each stream is a connection of its own.
//!
//! Stream `n` of either end uses connection `n`, which the client makes; each connection begins with
//! its number, because losses can let a later one be accepted first.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use sphinx_transport::{ErrorKind, Stats};

use crate::channel::{Channel, Incoming, Outgoing};
use crate::failure::{Failure, Outcome, fail};

/// A peer from which nothing has come for so long counts as gone.
const IDLE_TIME_MAX: Duration = Duration::from_secs(20);
/// The connection of the control messages: both directions carry something.
const CONTROL: u16 = 0;

#[derive(Clone)]
pub(super) struct TcpChannel(Arc<Inner>);

struct Inner {
    how: How,
    state: Mutex<State>,
    started: Instant,
}

enum How {
    Connect {
        to: SocketAddr,
        congestion_control: &'static str,
    },
    Accept(TcpListener),
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u16, TcpStream>,
    opened: u16,
    accepted: u16,
}

/// One direction of one connection.
pub(super) struct TcpEnd {
    stream: TcpStream,
    id: u16,
}

impl TcpChannel {
    pub(super) fn connect(to: SocketAddr, congestion_control: &'static str) -> Self {
        Self::new(How::Connect {
            to,
            congestion_control,
        })
    }

    pub(super) fn accept(listener: TcpListener) -> Self {
        Self::new(How::Accept(listener))
    }

    fn new(how: How) -> Self {
        Self(Arc::new(Inner {
            how,
            state: Mutex::default(),
            started: Instant::now(),
        }))
    }

    /// The next stream of one kind, on the connection of its number.
    fn next(&self, count: impl FnOnce(&mut State) -> &mut u16) -> Outcome<TcpEnd> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = count(&mut state);
        let id = *counter;
        *counter += 1;
        while !state.connections.contains_key(&id) {
            let (found, stream) = self
                .0
                .how
                .another(id, state.connections.get(&CONTROL))
                .map_err(broken)?;
            state.connections.insert(found, stream);
        }
        let stream = state.connections[&id].try_clone().map_err(broken)?;
        Ok(TcpEnd { stream, id })
    }
}

impl How {
    /// Makes connection `id`, or takes the next that comes. A peer that has ended the control
    /// connection makes no more.
    fn another(&self, id: u16, control: Option<&TcpStream>) -> io::Result<(u16, TcpStream)> {
        match self {
            Self::Connect {
                to,
                congestion_control,
            } => {
                let mut stream = TcpStream::connect_timeout(to, IDLE_TIME_MAX)?;
                sockopt::set_tcp_congestion(&stream, congestion_control)?;
                prepare(&stream)?;
                stream.write_all(&id.to_be_bytes())?;
                Ok((id, stream))
            }
            Self::Accept(listener) => {
                wait_for_connection(listener, control)?;
                let (mut stream, _) = listener.accept()?;
                prepare(&stream)?;
                let mut id = [0; 2];
                stream.read_exact(&mut id)?;
                Ok((u16::from_be_bytes(id), stream))
            }
        }
    }
}

fn wait_for_connection(listener: &TcpListener, control: Option<&TcpStream>) -> io::Result<()> {
    let Some(control) = control else {
        return Ok(());
    };
    loop {
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        poll(&mut ready, None)?;
        if ready[0].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        if control.peek(&mut [0])? == 0 {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // What has come is for a later call, and stays in the socket.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // The last segment of a block goes at once.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE_TIME_MAX))?;
    stream.set_write_timeout(Some(IDLE_TIME_MAX))
}

fn broken(error: io::Error) -> Failure {
    fail(ErrorKind::PeerLost, format!("TCP: {error}"))
}

impl Channel for TcpChannel {
    type Out = TcpEnd;
    type In = TcpEnd;

    fn open_uni(&self) -> Outcome<TcpEnd> {
        self.next(|state| &mut state.opened)
    }

    fn accept_uni(&self) -> Outcome<TcpEnd> {
        self.next(|state| &mut state.accepted)
    }

    fn stats(&self) -> Stats {
        let cc = match &self.0.how {
            How::Connect {
                congestion_control, ..
            } => congestion_control,
            How::Accept(_) => "",
        };
        Stats {
            elapsed: self.0.started.elapsed(),
            cc,
            codec: "none",
            profile: "tcp",
            io: "kernel",
            ..Stats::default()
        }
    }

    fn close(&self, _code: u64, _reason: &str) {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in state.connections.values() {
            // It fails if the peer has closed first.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// TCP closes without an error code.
    fn peer_code(&self) -> Option<u64> {
        None
    }
}

impl Outgoing for TcpEnd {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        self.stream.write_all(data).map_err(broken)
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        self.stream.shutdown(Shutdown::Write).map_err(broken)
    }

    /// The receiver answers the end of the data with the end of its own direction.
    fn wait_delivered(&mut self) -> Outcome<()> {
        if self.id != CONTROL {
            self.stream.read_to_end(&mut Vec::new()).map_err(broken)?;
        }
        Ok(())
    }
}

impl Incoming for TcpEnd {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        let read = self.stream.read(buf).map_err(broken)?;
        if read == 0 && !buf.is_empty() && self.id != CONTROL {
            // It takes effect once; at later calls the socket is shut down already.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::client::{Request, measure};
    use crate::perf::server::serve;
    use crate::perf::{Direction, Limit, Pacing};
    use crate::report::Progress;
    use std::net::Ipv4Addr;
    use std::thread;

    #[test]
    fn perf_runs_over_tcp() {
        for pacing in [None, Pacing::new(80_000_000, 10_000).ok()] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                serve(
                    &TcpChannel::accept(listener),
                    &Progress::default(),
                    |_, _| {},
                )
            });
            let request = Request {
                direction: Direction::Up,
                limit: Limit::Bytes(1_000_000),
                streams: 2,
                pacing,
            };
            let channel = TcpChannel::connect(address, "cubic");
            let client = measure(&channel, request, &Progress::default()).unwrap();
            assert_eq!(client.done.bytes, 1_000_000);
            assert_eq!(client.done.block_ms.is_some(), pacing.is_some());
            assert_eq!(server.join().unwrap().unwrap().done.bytes, 1_000_000);
        }
    }
}
