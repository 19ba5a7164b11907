//! The sending end of a stream.

use std::fmt;
use std::sync::Arc;

use sphinx_driver::{Piece, StreamEnd};
use sphinx_proto::StreamId;

use crate::error::{Error, ErrorKind};
use crate::shared::{LockedSlicer, Shared};
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
    /// When the session ends, or after [`SendStream::finish`].
    pub fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        // What would only be buffered must fail too.
        if let Some(error) = &self.shared.lock().closed {
            return Err(error.clone());
        }
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
            if !inner.queues.has_room(stream) || inner.closed.is_some() {
                return None;
            }
            inner.queues.push(piece.take()?);
            Some(())
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
    /// When the session ends before.
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        let stream = self.stream;
        self.shared.wait(&self.changed, |inner| {
            let end = inner.queues.stream_end(stream);
            (end == Some(StreamEnd::Delivered)).then_some(())
        })
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.shared.lock().queues.stop_sending(self.stream);
    }
}
