//! The sending end of a stream.

use std::fmt;
use std::sync::Arc;

use sphinx_driver::{Piece, StreamEnd};
use sphinx_proto::StreamId;

use crate::error::{Error, ErrorKind};
use crate::shared::{CODE_MAX, LockedSlicer, Shared};
use crate::sync::Condvar;

/// One direction of bytes: reliable, in order, flow-controlled.
pub struct SendStream {
    stream: StreamId,
    slicer: LockedSlicer,
    shared: Arc<Shared>,
    /// A piece of this stream has left, or its end has come further.
    changed: Arc<Condvar>,
}

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStream")
            .field("id", &self.stream.to_wire())
            .finish_non_exhaustive()
    }
}

impl SendStream {
    pub(crate) fn new(stream: StreamId, shared: Arc<Shared>, changed: Arc<Condvar>) -> Self {
        Self {
            stream,
            slicer: LockedSlicer::new(stream),
            shared,
            changed,
        }
    }

    /// Copies all of `data` into pieces for blocks; waits while window and queue are full.
    ///
    /// # Errors
    /// When the session ends, the peer has [stopped](crate::RecvStream::stop) the stream, or after [`SendStream::finish`] or
    /// [`SendStream::reset`].
    pub fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        // What would only be buffered must fail too.
        let inner = self.shared.lock();
        if let Some(code) = inner.queues.stopped(self.stream) {
            return Err(stopped(code));
        }
        if let Some(error) = &inner.closed {
            return Err(error.clone());
        }
        drop(inner);
        while !data.is_empty() {
            let mut slicer = self.slicer.lock();
            if slicer.is_finished() {
                return Err(Error::new(ErrorKind::Usage, "the stream has been finished"));
            }
            let shared = &self.shared;
            let written = slicer.write(shared.now(), data, shared.shape(), shared.pool());
            drop(slicer);
            data = &data[written.len..];
            if written.begins {
                shared.update(|inner| inner.queues.watch(self.slicer.clone()));
            }
            if let Some(piece) = written.piece {
                self.enqueue(piece)?;
            }
        }
        Ok(())
    }

    /// Ends the block here instead of up to a millisecond later: the end of a message.
    ///
    /// # Errors
    /// When the session ends.
    pub fn flush(&mut self) -> Result<(), Error> {
        let piece = self.slicer.lock().flush(self.shared.pool());
        piece.map_or(Ok(()), |piece| self.enqueue(piece))
    }

    /// Hands a piece to the engine, waiting while enough are queued.
    fn enqueue(&self, piece: Piece) -> Result<(), Error> {
        let stream = self.stream;
        let mut piece = Some(piece);
        self.shared.wait(&self.changed, |inner| {
            if let Some(code) = inner.queues.stopped(stream) {
                return Some(Err(stopped(code)));
            }
            if !inner.queues.has_room(stream) || inner.closed.is_some() {
                return None;
            }
            inner.queues.push(piece.take()?);
            Some(Ok(()))
        })?
    }

    /// Gives the stream up, finished or not: what the peer lacks of it is neither sent nor repaired any more, and its reader gets an
    /// error with `code`, a reason of the application's below 2^62. Nothing happens to a stream of which everything has been delivered.
    pub fn reset(&mut self, code: u64) {
        self.slicer.lock().abandon();
        let code = code.min(CODE_MAX);
        self.shared
            .update(|inner| inner.queues.reset(self.stream, code));
    }

    /// Waits until the peer's application wants no more of the stream, for the reason that it gives; `None` if everything of it has
    /// been delivered before, or it was [reset](Self::reset).
    ///
    /// # Errors
    /// When the session ends before.
    pub fn stopped(&mut self) -> Result<Option<u64>, Error> {
        let stream = self.stream;
        self.shared.wait(&self.changed, |inner| {
            if let Some(code) = inner.queues.stopped(stream) {
                return Some(Some(code));
            }
            let end = inner.queues.stream_end(stream);
            matches!(end, Some(StreamEnd::Delivered | StreamEnd::Reset)).then_some(None)
        })
    }

    /// Marks the end of the stream. Returns when its last piece is queued.
    ///
    /// # Errors
    /// When the session ends.
    pub fn finish(&mut self) -> Result<(), Error> {
        let shared = &self.shared;
        let Some(piece) = self.slicer.lock().finish(shared.shape(), shared.pool()) else {
            return Ok(());
        };
        shared.lock().queues.finish_sending(self.stream);
        self.enqueue(piece)
    }

    /// Waits until the peer has received all of the finished stream.
    ///
    /// # Errors
    /// When the session ends before, the peer has [stopped](crate::RecvStream::stop) the stream, or it was [reset](Self::reset).
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        let stream = self.stream;
        self.shared.wait(&self.changed, |inner| {
            let queues = &inner.queues;
            match (queues.stopped(stream), queues.stream_end(stream)) {
                (Some(code), _) => Some(Err(stopped(code))),
                (None, Some(StreamEnd::Delivered)) => Some(Ok(())),
                (None, Some(StreamEnd::Reset)) => Some(Err(Error::new(
                    ErrorKind::Usage,
                    "the stream has been reset",
                ))),
                (None, _) => None,
            }
        })?
    }
}

impl Drop for SendStream {
    /// A stream that has not been finished is [reset](Self::reset) with code 0: what has arrived of it must not look whole.
    fn drop(&mut self) {
        self.slicer.lock().abandon();
        self.shared
            .update(|inner| inner.queues.stop_sending(self.stream));
    }
}

fn stopped(code: u64) -> Error {
    let message = format!("the other end wants no more of the stream (code {code})");
    Error::new(ErrorKind::StreamStopped, message).with_code(code)
}
