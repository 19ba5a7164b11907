//! The sending end of a stream for tasks.

use std::future::poll_fn;
use std::task::{Context, Poll};

use sphinx_proto::Urgency;

use crate::error::Error;

/// One direction of bytes: [`crate::SendStream`] for tasks.
///
/// What is written leaves when it fills a block, when it is flushed, or when nothing more is written for a millisecond, whether anybody polls
/// the stream or not. Dropping a stream that has not been finished [resets](Self::reset) it with code 0.
#[derive(Debug)]
pub struct SendStream(crate::SendStream);

impl From<crate::SendStream> for SendStream {
    fn from(stream: crate::SendStream) -> Self {
        Self(stream)
    }
}

impl From<SendStream> for crate::SendStream {
    fn from(stream: SendStream) -> Self {
        stream.0
    }
}

impl SendStream {
    /// Takes some of `data`, as soon as there is room for any: how many bytes.
    ///
    /// *Cancelling* takes nothing. Bytes that were taken are the stream's, and reported.
    ///
    /// # Errors
    /// When the session ends, the peer has [stopped](crate::RecvStream::stop) the stream, or after [`finish`](Self::finish) or
    /// [`reset`](Self::reset).
    pub async fn write(&mut self, data: &[u8]) -> Result<usize, Error> {
        poll_fn(|cx| self.poll_write(cx, data)).await
    }

    /// [`write`](Self::write), polled.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, Error>> {
        self.0.poll_write(cx, data)
    }

    /// Takes all of `data`; waits while window and queue are full.
    ///
    /// *Cancelling* leaves the stream with some of `data`, from its beginning, and does not tell how much: who wants to go on
    /// uses [`write`](Self::write).
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub async fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        loop {
            data = &data[self.write(data).await?..];
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends the block here instead of up to a millisecond later: the end of a message.
    ///
    /// *Cancelling* loses nothing: what was written leaves a little later.
    ///
    /// # Errors
    /// When the session ends, or the peer has [stopped](crate::RecvStream::stop) the stream.
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// [`flush`](Self::flush), polled.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_flush(cx)
    }

    /// Marks the end of the stream. Ready when its last piece is queued, which is not yet [delivered](Self::wait_delivered).
    ///
    /// *Cancelling* leaves the stream as it was, or finished. It is not finished, and would be reset if it were dropped, until a call of this
    /// has been ready.
    ///
    /// # Errors
    /// When the session ends, or the peer has [stopped](crate::RecvStream::stop) the stream.
    pub async fn finish(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_finish(cx)).await
    }

    /// [`finish`](Self::finish), polled.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_finish(cx)
    }

    /// [Finishes](Self::finish) the stream, and waits until the peer has received all of it.
    ///
    /// *Cancelling* may leave the stream finished, and changes nothing else: the next call goes on waiting.
    ///
    /// # Errors
    /// When the session ends before, the peer has [stopped](crate::RecvStream::stop) the stream, or it was [reset](Self::reset).
    pub async fn wait_delivered(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_delivered(cx)).await
    }

    /// [`wait_delivered`](Self::wait_delivered), polled.
    ///
    /// # Errors
    /// Those of [`wait_delivered`](Self::wait_delivered).
    pub fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_delivered(cx)
    }

    /// Waits until the peer's application wants no more of the stream, for the reason that it gives; `None` if everything of it has
    /// been delivered before, or it was [reset](Self::reset).
    ///
    /// *Cancelling* changes nothing.
    ///
    /// # Errors
    /// When the session ends before.
    pub async fn stopped(&mut self) -> Result<Option<u64>, Error> {
        poll_fn(|cx| self.poll_stopped(cx)).await
    }

    /// [`stopped`](Self::stopped), polled.
    ///
    /// # Errors
    /// When the session ends before.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u64>, Error>> {
        self.0.poll_stopped(cx)
    }

    /// How urgent what is written from now on is, as [`crate::SendStream::set_urgency`] says.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        self.0.set_urgency(urgency);
    }

    /// Gives the stream up, as [`crate::SendStream::reset`] does; that takes no time.
    pub fn reset(&mut self, code: u64) {
        self.0.reset(code);
    }
}
