//! Streams of which one thread can have any number.

use std::task::{Context, Poll};

use sphinx_transport::asynchronous;

use super::{Incoming, Outgoing};
use crate::failure::{Failure, Outcome};

/// One direction of bytes, towards the peer.
pub(crate) trait TaskOut: Send {
    /// Takes some of `data`, as soon as there is room for any: how many bytes.
    fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Outcome<usize>>;
    /// Finishes the stream; ready when all of it has been delivered.
    fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<()>>;
}

/// One direction of bytes, from the peer.
pub(crate) trait TaskIn: Send {
    /// Ready with 0 only at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Outcome<usize>>;
}

impl TaskOut for asynchronous::SendStream {
    fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Outcome<usize>> {
        Self::poll_write(self, cx, data).map_err(Failure::from)
    }

    fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<()>> {
        Self::poll_delivered(self, cx).map_err(Failure::from)
    }
}

impl TaskIn for asynchronous::RecvStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Outcome<usize>> {
        Self::poll_read(self, cx, buf).map_err(Failure::from)
    }
}

/// A stream that blocks: its thread can wait for no other.
pub(crate) struct Blocking<S>(pub(crate) S);

impl<S: Outgoing> TaskOut for Blocking<S> {
    fn poll_write(&mut self, _cx: &mut Context<'_>, data: &[u8]) -> Poll<Outcome<usize>> {
        Poll::Ready(self.0.write_all(data).map(|()| data.len()))
    }

    fn poll_delivered(&mut self, _cx: &mut Context<'_>) -> Poll<Outcome<()>> {
        let finished = self.0.finish();
        Poll::Ready(finished.and_then(|()| self.0.wait_delivered()))
    }
}

impl<S: Incoming> TaskIn for Blocking<S> {
    fn poll_read(&mut self, _cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Outcome<usize>> {
        Poll::Ready(self.0.read(buf))
    }
}
