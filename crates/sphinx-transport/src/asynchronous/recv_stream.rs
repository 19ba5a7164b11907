//! The receiving end of a stream for tasks.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::error::Error;

/// The receiving end of a peer's stream: [`crate::RecvStream`] for tasks. Dropping it before its end has arrived
/// [stops](Self::stop) the sender with code 0.
#[derive(Debug)]
pub struct RecvStream(crate::RecvStream);

impl From<crate::RecvStream> for RecvStream {
    fn from(stream: crate::RecvStream) -> Self {
        Self(stream)
    }
}

impl From<RecvStream> for crate::RecvStream {
    fn from(stream: RecvStream) -> Self {
        stream.0
    }
}

impl RecvStream {
    /// Waits for data and copies some of it into `buf`; 0 at the end of the stream.
    ///
    /// Data that has arrived is given out even after the session has ended.
    ///
    /// *Cancelling* takes nothing: the bytes are the next call's.
    ///
    /// # Errors
    /// When the session ends before the stream, the peer has [reset](crate::SendStream::reset) the stream, which it does too when it
    /// drops one that it has not finished, or after [`read_unordered`](Self::read_unordered) has failed or was not gone on with.
    pub async fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// [`read`](Self::read), polled.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<usize, Error>> {
        self.poll_read_into(cx, buf.len(), |data| {
            buf[..data.len()].copy_from_slice(data);
        })
    }

    /// The same, with what takes the bytes instead of a buffer.
    pub(super) fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        sink: impl FnOnce(&[u8]),
    ) -> Poll<Result<usize, Error>> {
        self.0.poll_read(cx, most, sink)
    }

    /// Reads the next `len` bytes in the order in which they arrive: a block that waits for repair
    /// holds up neither the others nor the sender. `sink` gets each piece once, with its distance from
    /// the first of these bytes; the stream is then `len` bytes further.
    ///
    /// *Cancelling* keeps what is left for a next call with the same `len`, whose `sink` gets the pieces that this one has not got, with
    /// the same distances. Until then nothing else can be read.
    ///
    /// # Errors
    /// When the session or the stream ends before, or what `sink` returned. The stream cannot be read
    /// any further then.
    pub async fn read_unordered<E: From<Error>>(
        &mut self,
        len: u64,
        mut sink: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        poll_fn(|cx| self.poll_read_unordered(cx, len, &mut sink)).await
    }

    /// [`read_unordered`](Self::read_unordered), polled, with the same `len` until it is ready.
    ///
    /// # Errors
    /// Those of [`read_unordered`](Self::read_unordered).
    pub fn poll_read_unordered<E: From<Error>>(
        &mut self,
        cx: &mut Context<'_>,
        len: u64,
        sink: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        self.0.poll_read_unordered(cx, len, sink)
    }

    /// Wants no more of the stream, as [`crate::RecvStream::stop`] says; that takes no time.
    pub fn stop(self, code: u64) {
        self.0.stop(code);
    }
}
