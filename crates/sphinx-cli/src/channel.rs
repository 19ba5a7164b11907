//! What the application protocols need of a session.
//!
//! The real thing is [`sphinx_transport::Session`]; tests join two ends with pipes in memory.

mod messages;
#[cfg(feature = "tunnel")]
mod metered;
mod tasks;

use std::time::Duration;

use messages::{DatagramIn, DatagramOut, LiveOut};
pub(crate) use messages::{MessageIn, MessageOut, Mode, OnStream};
#[cfg(feature = "tunnel")]
pub(crate) use metered::Metered;
use sphinx_transport::{ErrorKind, RecvStream, SendStream, Session, Stats, asynchronous};
use tasks::Blocking;
pub(crate) use tasks::{TaskIn, TaskOut};

use crate::failure::{Failure, Outcome, protocol};

/// One direction of bytes, towards the peer.
pub(crate) trait Outgoing: Send {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()>;
    /// What has been written is a unit of its own: send it now.
    fn flush(&mut self) -> Outcome<()>;
    fn finish(&mut self) -> Outcome<()>;
    fn wait_delivered(&mut self) -> Outcome<()>;
    /// The stream as one that a task polls.
    fn into_task(self) -> Box<dyn TaskOut>
    where
        Self: Sized + 'static,
    {
        Box::new(Blocking(self))
    }
}

/// One direction of bytes, from the peer.
pub(crate) trait Incoming: Send {
    /// Returns 0 only at the end of the stream.
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize>;
    /// Reads the next `len` bytes in the order in which they arrive; `sink` gets each piece with its
    /// distance from the first of them. A stream that has only one order reads in that one.
    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut at = 0;
        while at < len {
            let wanted = usize::try_from(len - at).unwrap_or(usize::MAX);
            let wanted = wanted.min(buffer.len());
            let n = self.read(&mut buffer[..wanted])?;
            if n == 0 {
                return Err(protocol("the stream ended too early"));
            }
            sink(at, &buffer[..n])?;
            at += n as u64;
        }
        Ok(())
    }
    /// The stream as one that a task polls.
    fn into_task(self) -> Box<dyn TaskIn>
    where
        Self: Sized + 'static,
    {
        Box::new(Blocking(self))
    }
}

/// Takes pieces of data, each with its offset in the stream.
pub(crate) type Sink<'a> = dyn FnMut(u64, &[u8]) -> Outcome<()> + 'a;

/// Bytes that have already arrived, in pieces of at most `piece`.
#[cfg(any(test, fuzzing))]
pub(crate) struct Arrived<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) piece: usize,
}

#[cfg(any(test, fuzzing))]
impl Incoming for Arrived<'_> {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        let n = buf.len().min(self.piece).min(self.bytes.len());
        buf[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }

    /// Gives the second half of the bytes before the first one, as pieces may come out of order.
    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.bytes.split_at_checked(len) else {
            return Err(protocol("the stream ended too early"));
        };
        self.bytes = rest;
        let middle = len / 2;
        for (start, half) in [(middle, &bytes[middle..]), (0, &bytes[..middle])] {
            for (index, piece) in half.chunks(self.piece).enumerate() {
                sink((start + index * self.piece) as u64, piece)?;
            }
        }
        Ok(())
    }
}

/// A session with a peer; clones are the same session.
pub(crate) trait Channel: Clone + Send + Sync + 'static {
    /// Whether a thread can wait for several streams at once.
    const HAS_TASKS: bool = false;
    type Out: Outgoing + 'static;
    type In: Incoming + 'static;
    fn open_uni(&self) -> Outcome<Self::Out>;
    fn accept_uni(&self) -> Outcome<Self::In>;
    fn stats(&self) -> Stats;
    fn close(&self, code: u64, reason: &str);
    /// The code that the peer closed the session with, if that is how it ended.
    fn peer_code(&self) -> Option<u64>;
    /// Sends messages; late ones are of use for `deadline`.
    fn send_messages(
        &self,
        mode: Mode,
        _deadline: Option<Duration>,
    ) -> Outcome<Box<dyn MessageOut>> {
        match mode {
            Mode::Stream => Ok(Box::new(OnStream(self.open_uni()?))),
            _ => Err(protocol("nothing but streams is carried here")),
        }
    }
    /// Receives what [`send_messages`](Self::send_messages) sends.
    fn recv_messages(&self, mode: Mode) -> Outcome<Box<dyn MessageIn>> {
        match mode {
            Mode::Stream => Ok(Box::new(OnStream(self.accept_uni()?))),
            _ => Err(protocol("nothing but streams is carried here")),
        }
    }
    /// Waits until the session ends, at most for `patience`: how it has ended. Only one whose streams can be given up needs this.
    fn wait_closed(&self, _patience: Duration) -> Option<Failure> {
        None
    }
}

/// How long a peer that gives up a stream may take to say why, which it does by ending the session.
const REASON_PATIENCE: Duration = Duration::from_secs(5);

/// What is behind a failure: a stream that the peer has given up says nothing yet.
pub(crate) fn reason<C: Channel>(channel: &C, failure: Failure) -> Failure {
    match failure.kind {
        ErrorKind::StreamReset | ErrorKind::StreamStopped => {
            channel.wait_closed(REASON_PATIENCE).unwrap_or(failure)
        }
        _ => failure,
    }
}

impl Outgoing for SendStream {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        Ok(Self::write_all(self, data)?)
    }
    fn flush(&mut self) -> Outcome<()> {
        Ok(Self::flush(self)?)
    }
    fn finish(&mut self) -> Outcome<()> {
        Ok(Self::finish(self)?)
    }
    fn wait_delivered(&mut self) -> Outcome<()> {
        Ok(Self::wait_delivered(self)?)
    }
    fn into_task(self) -> Box<dyn TaskOut> {
        Box::new(asynchronous::SendStream::from(self))
    }
}

impl<T: Incoming> Incoming for &mut T {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        T::read(self, buf)
    }
    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        T::read_unordered(self, len, sink)
    }
}

impl Incoming for RecvStream {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        Ok(Self::read(self, buf)?)
    }
    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        Self::read_unordered(self, len, sink)
    }
    fn into_task(self) -> Box<dyn TaskIn> {
        Box::new(asynchronous::RecvStream::from(self))
    }
}

impl Channel for Session {
    const HAS_TASKS: bool = true;
    type Out = SendStream;
    type In = RecvStream;
    fn open_uni(&self) -> Outcome<SendStream> {
        Ok(Self::open_uni(self)?)
    }
    fn accept_uni(&self) -> Outcome<RecvStream> {
        Ok(Self::accept_uni(self)?)
    }
    fn stats(&self) -> Stats {
        Self::stats(self)
    }
    fn close(&self, code: u64, reason: &str) {
        Self::close(self, code, reason);
    }
    fn peer_code(&self) -> Option<u64> {
        Self::peer_code(self)
    }
    fn send_messages(
        &self,
        mode: Mode,
        deadline: Option<Duration>,
    ) -> Outcome<Box<dyn MessageOut>> {
        Ok(match mode {
            Mode::Stream => Box::new(OnStream(Self::open_uni(self)?)),
            Mode::Message => Box::new(Self::open_uni(self)?.into_messages()),
            Mode::Live => Box::new(LiveOut::new(self, deadline)?),
            Mode::Datagram => Box::new(DatagramOut::new(self, deadline)),
        })
    }
    fn recv_messages(&self, mode: Mode) -> Outcome<Box<dyn MessageIn>> {
        Ok(match mode {
            Mode::Stream => Box::new(OnStream(Self::accept_uni(self)?)),
            Mode::Message => Box::new(Self::accept_uni(self)?.into_messages()),
            Mode::Live => Box::new(Self::accept_live(self)?),
            Mode::Datagram => Box::new(DatagramIn(self.clone())),
        })
    }
    fn wait_closed(&self, patience: Duration) -> Option<Failure> {
        Self::wait_closed(self, patience).map(Failure::from)
    }
}
