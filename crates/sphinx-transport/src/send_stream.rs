//! The sending end of a stream.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use sphinx_driver::{Piece, Slicer, StreamEnd};
use sphinx_proto::{StreamId, Urgency};

use crate::error::{Error, ErrorKind};
use crate::shared::{CODE_MAX, Inner, LockedSlicer, Shared};
use crate::signal::{Signal, Waiter};

/// One direction of bytes: reliable, in order, flow-controlled.
pub struct SendStream {
    end: End,
    /// A piece of this stream has left, or its end has come further.
    changed: Waiter,
}

/// What a writer does, but for waiting. The functions that look at [`Inner`] say whether there is something to wait for: they are `None`
/// then, and when the session has ended.
struct End {
    stream: StreamId,
    slicer: LockedSlicer,
    shared: Arc<Shared>,
}

impl End {
    /// Whether [`take`](Self::take) may take some of `data`.
    fn may_write(&self, inner: &Inner, data: &[u8]) -> Option<Result<(), Error>> {
        if let Some(code) = inner.queues.stopped(self.stream) {
            return Some(Err(stopped(code)));
        }
        // What would only be buffered must fail too.
        if inner.closed.is_some() {
            return None;
        }
        let slicer = self.slicer.lock();
        if slicer.is_finished() {
            let error = Error::new(ErrorKind::Usage, "the stream has been finished");
            return Some(Err(error));
        }
        // A piece that is begun may be filled, so that there may be one more than has room.
        let has_room = inner.queues.has_room(self.stream);
        (data.is_empty() || has_room || slicer.is_filling()).then_some(Ok(()))
    }

    /// Copies from the front of `data` into the open piece, and queues it if it is full: how many bytes.
    fn take(&self, data: &[u8]) -> usize {
        if data.is_empty() {
            return 0;
        }
        let shared = &self.shared;
        let mut slicer = self.slicer.lock();
        let written = slicer.write(shared.now(), data, shared.shape(), shared.pool());
        drop(slicer);
        if written.begins || written.piece.is_some() {
            shared.update(|inner| {
                if written.begins {
                    inner.queues.watch(self.slicer.clone());
                }
                push(inner, written.piece);
            });
        }
        written.len
    }

    /// Whether what the open piece holds may be queued; `Ok(false)`: there is nothing in it.
    fn may_flush(&self, inner: &Inner) -> Option<Result<bool, Error>> {
        if self.slicer.lock().is_filling() {
            self.may_queue(inner)
        } else {
            Some(Ok(false))
        }
    }

    /// Whether the last piece may be queued; `Ok(false)`: it has been.
    fn may_finish(&self, inner: &Inner) -> Option<Result<bool, Error>> {
        if self.slicer.lock().is_finished() {
            Some(Ok(false))
        } else {
            self.may_queue(inner)
        }
    }

    fn may_queue(&self, inner: &Inner) -> Option<Result<bool, Error>> {
        if let Some(code) = inner.queues.stopped(self.stream) {
            return Some(Err(stopped(code)));
        }
        let has_room = inner.closed.is_none() && inner.queues.has_room(self.stream);
        has_room.then_some(Ok(true))
    }

    fn flush(&self) {
        let piece = self.slicer.lock().flush(self.shared.pool());
        self.shared.update(|inner| push(inner, piece));
    }

    fn finish(&self) {
        let shared = &self.shared;
        let cut = |slicer: &mut Slicer| slicer.finish(shared.shape(), shared.pool());
        let last = cut(&mut self.slicer.lock());
        shared.update(|inner| {
            inner.queues.finish_sending(self.stream);
            push(inner, last);
        });
    }

    /// Whether the peer's application wants no more, and why; or will never say so.
    fn was_stopped(&self, inner: &Inner) -> Option<Option<u64>> {
        if let Some(code) = inner.queues.stopped(self.stream) {
            return Some(Some(code));
        }
        let end = inner.queues.stream_end(self.stream);
        matches!(end, Some(StreamEnd::Delivered | StreamEnd::Reset)).then_some(None)
    }

    /// Whether the peer has all of the stream, or will never have it.
    fn was_delivered(&self, inner: &Inner) -> Option<Result<(), Error>> {
        let queues = &inner.queues;
        match (queues.stopped(self.stream), queues.stream_end(self.stream)) {
            (Some(code), _) => Some(Err(stopped(code))),
            (None, Some(StreamEnd::Delivered)) => Some(Ok(())),
            (None, Some(StreamEnd::Reset)) => Some(Err(Error::new(
                ErrorKind::Usage,
                "the stream has been reset",
            ))),
            (None, _) => None,
        }
    }
}

fn push(inner: &mut Inner, piece: Option<Piece>) {
    if let Some(piece) = piece.filter(|_| inner.closed.is_none()) {
        inner.queues.push(piece);
    }
}

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStream")
            .field("id", &self.end.stream.to_wire())
            .finish_non_exhaustive()
    }
}

impl SendStream {
    pub(crate) fn new(stream: StreamId, shared: Arc<Shared>, changed: &Signal) -> Self {
        let end = End {
            stream,
            slicer: LockedSlicer::new(stream),
            shared,
        };
        let changed = Waiter::new(changed);
        Self { end, changed }
    }

    fn wait<T>(&self, ready: impl FnMut(&mut Inner) -> Option<T>) -> Result<T, Error> {
        self.end.shared.wait(self.changed.signal(), ready)
    }

    /// Copies all of `data` into pieces for blocks; waits while window and queue are full.
    ///
    /// # Errors
    /// When the session ends, the peer has [stopped](crate::RecvStream::stop) the stream, or after [`SendStream::finish`] or
    /// [`SendStream::reset`].
    pub fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        loop {
            self.wait(|inner| self.end.may_write(inner, data))??;
            data = &data[self.end.take(data)..];
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes some of `data`, once there is room: how many bytes.
    pub(crate) fn poll_write(
        &mut self,
        cx: &Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, Error>> {
        let Self { end, changed } = self;
        let may_write = |inner: &mut Inner| end.may_write(inner, data);
        ready!(end.shared.poll(changed, cx, may_write))??;
        Poll::Ready(Ok(end.take(data)))
    }

    /// Ends the block here instead of up to a millisecond later: the end of a message.
    ///
    /// # Errors
    /// When the session ends, or the peer has [stopped](crate::RecvStream::stop) the stream.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.wait(|inner| self.end.may_flush(inner))?? {
            self.end.flush();
        }
        Ok(())
    }

    pub(crate) fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let Self { end, changed } = self;
        let may_flush = |inner: &mut Inner| end.may_flush(inner);
        if ready!(end.shared.poll(changed, cx, may_flush))?? {
            end.flush();
        }
        Poll::Ready(Ok(()))
    }

    /// How urgent what is written from now on is beside the session's other streams: what is more urgent leaves first, its repair included, and
    /// equally urgent streams get as many bytes each. [`Urgency::default`] at the beginning.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        let stream = self.end.stream;
        self.end
            .shared
            .update(|inner| inner.queues.set_urgency(stream, urgency));
    }

    /// Gives the stream up, finished or not: what the peer lacks of it is neither sent nor repaired any more, and its reader gets an
    /// error with `code`, a reason of the application's below 2^62. Nothing happens to a stream of which everything has been delivered.
    pub fn reset(&mut self, code: u64) {
        let End { stream, slicer, .. } = &self.end;
        slicer.lock().abandon();
        let code = code.min(CODE_MAX);
        self.end
            .shared
            .update(|inner| inner.queues.reset(*stream, code));
    }

    /// Waits until the peer's application wants no more of the stream, for the reason that it gives; `None` if everything of it has
    /// been delivered before, or it was [reset](Self::reset).
    ///
    /// # Errors
    /// When the session ends before.
    pub fn stopped(&mut self) -> Result<Option<u64>, Error> {
        self.wait(|inner| self.end.was_stopped(inner))
    }

    pub(crate) fn poll_stopped(&mut self, cx: &Context<'_>) -> Poll<Result<Option<u64>, Error>> {
        let Self { end, changed } = self;
        let was_stopped = |inner: &mut Inner| end.was_stopped(inner);
        end.shared.poll(changed, cx, was_stopped)
    }

    /// Marks the end of the stream. Returns when its last piece is queued.
    ///
    /// # Errors
    /// When the session ends, or the peer has [stopped](crate::RecvStream::stop) the stream.
    pub fn finish(&mut self) -> Result<(), Error> {
        if self.wait(|inner| self.end.may_finish(inner))?? {
            self.end.finish();
        }
        Ok(())
    }

    pub(crate) fn poll_finish(&mut self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let Self { end, changed } = self;
        let may_finish = |inner: &mut Inner| end.may_finish(inner);
        if ready!(end.shared.poll(changed, cx, may_finish))?? {
            end.finish();
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the peer has received all of the finished stream.
    ///
    /// # Errors
    /// When the session ends before, the peer has [stopped](crate::RecvStream::stop) the stream, or it was [reset](Self::reset).
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        self.wait(|inner| self.end.was_delivered(inner))?
    }

    pub(crate) fn poll_delivered(&mut self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_finish(cx))?;
        let Self { end, changed } = self;
        let was_delivered = |inner: &mut Inner| end.was_delivered(inner);
        end.shared
            .poll(changed, cx, was_delivered)
            .map(Result::flatten)
    }
}

impl Drop for SendStream {
    /// A stream that has not been finished is [reset](Self::reset) with code 0: what has arrived of it must not look whole.
    fn drop(&mut self) {
        let End { stream, slicer, .. } = &self.end;
        slicer.lock().abandon();
        self.end
            .shared
            .update(|inner| inner.queues.stop_sending(*stream));
    }
}

fn stopped(code: u64) -> Error {
    let message = format!("the other end wants no more of the stream (code {code})");
    Error::new(ErrorKind::StreamStopped, message).with_code(code)
}
