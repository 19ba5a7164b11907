//! The receiving end of a stream.

use std::fmt;
use std::sync::Arc;

use sphinx_driver::Chunk;
use sphinx_proto::StreamId;

use crate::error::{Error, ErrorKind};
use crate::shared::{CODE_MAX, Shared};
use crate::sync::Condvar;

/// The receiving end of a peer's stream.
pub struct RecvStream {
    stream: StreamId,
    shared: Arc<Shared>,
    /// Where the next byte to be read lies in the stream.
    position: u64,
    /// Data being read, from `from` up.
    chunk: Option<Chunk>,
    ended: bool,
    /// [`RecvStream::read_unordered`] failed half-way.
    torn: bool,
    /// More has arrived.
    changed: Arc<Condvar>,
    /// Why no more is wanted, once the stream is dropped.
    stop_code: u64,
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream")
            .field("id", &self.stream.to_wire())
            .field("position", &self.position)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl RecvStream {
    pub(crate) fn new(stream: StreamId, shared: Arc<Shared>) -> Self {
        let changed = shared.lock().queues.signal_of(stream);
        Self {
            changed,
            stream,
            shared,
            position: 0,
            chunk: None,
            ended: false,
            torn: false,
            stop_code: 0,
        }
    }

    /// Wants no more of the stream, for a reason of the application's below 2^62: what has not been read is dropped, and the peer's
    /// sender stops and gets an error with `code`. Dropping a stream before its end has arrived is the same with code 0.
    pub fn stop(mut self, code: u64) {
        self.stop_code = code.min(CODE_MAX);
    }

    /// Waits for data and copies some of it into `buf`; 0 at the end of the stream.
    ///
    /// Data that has arrived is given out even after the session has ended.
    ///
    /// # Errors
    /// When the session ends before the stream, the peer has [reset](crate::SendStream::reset) the stream, which it does too when it
    /// drops one that it has not finished, or after [`read_unordered`](Self::read_unordered) has failed.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        self.whole()?;
        loop {
            if self.ended {
                return Ok(0);
            }
            let chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => {
                    let stream = self.stream;
                    self.shared.wait(&self.changed, |inner| {
                        let incoming = inner.queues.incoming(stream);
                        match (incoming.take_in_order(), incoming.reset()) {
                            (Some(chunk), _) => Some(Ok(chunk)),
                            (None, reset) => reset.map(|code| Err(was_reset(code))),
                        }
                    })??
                }
            };
            let len = chunk.data().len().min(buf.len());
            buf[..len].copy_from_slice(&chunk.data()[..len]);
            self.position += len as u64;
            self.put_back(chunk, len);
            if len > 0 || buf.is_empty() {
                return Ok(len);
            }
        }
    }

    /// Reads the next `len` bytes in the order in which they arrive: a block that waits for repair
    /// holds up neither the others nor the sender. `sink` gets each piece once, with its distance from
    /// the first of these bytes; the stream is then `len` bytes further.
    ///
    /// # Errors
    /// When the session or the stream ends before, or what `sink` returned. The stream cannot be read
    /// any further then.
    pub fn read_unordered<E: From<Error>>(
        &mut self,
        len: u64,
        mut sink: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.whole()?;
        self.torn = true;
        let start = self.position;
        let end = start.saturating_add(len);
        let mut left = len;
        // The rest of the block in which these bytes end.
        let mut beyond = None;
        while left > 0 {
            let chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => self.arrived_before(end)?,
            };
            let wanted = usize::try_from(end - chunk.offset()).unwrap_or(usize::MAX);
            let piece = wanted.min(chunk.data().len());
            let given = match piece {
                0 => Ok(()),
                piece => sink(chunk.offset() - start, &chunk.data()[..piece]),
            };
            left -= piece as u64;
            self.put_back(chunk, piece);
            let unread = self.chunk.take();
            if let Err(error) = given {
                // Nobody will read it, and it must not fill the window.
                let unread = [beyond, unread].into_iter().flatten();
                let unread: Vec<_> = unread.map(Chunk::into_taken).collect();
                self.shared.update(|inner| {
                    unread
                        .into_iter()
                        .for_each(|taken| inner.queues.release(taken))
                });
                return Err(error);
            }
            beyond = beyond.or(unread);
        }
        self.chunk = beyond.or(self.chunk.take());
        self.position = end;
        self.torn = false;
        Ok(())
    }

    fn whole(&self) -> Result<(), Error> {
        match self.torn {
            true => Err(Error::new(
                ErrorKind::Usage,
                "only a part of the stream's data has been read",
            )),
            false => Ok(()),
        }
    }

    fn arrived_before(&self, end: u64) -> Result<Chunk, Error> {
        let stream = self.stream;
        let chunk = self.shared.wait(&self.changed, |inner| {
            let incoming = inner.queues.incoming(stream);
            match (incoming.take_before(end), incoming.reset()) {
                (Some(chunk), _) => Some(Ok(Some(chunk))),
                (None, Some(code)) => Some(Err(was_reset(code))),
                (None, None) => incoming.has_ended().then_some(Ok(None)),
            }
        })??;
        chunk.ok_or_else(|| Error::new(ErrorKind::Protocol, "the stream ended too early"))
    }

    /// `len` more bytes of the chunk have been read.
    fn put_back(&mut self, mut chunk: Chunk, len: usize) {
        chunk.advance(len);
        if !chunk.data().is_empty() {
            self.chunk = Some(chunk);
            return;
        }
        self.ended |= chunk.end_of_stream();
        let taken = chunk.into_taken();
        self.shared.update(|inner| inner.queues.release(taken));
    }
}

impl Drop for RecvStream {
    /// What the application does not want must not fill the window.
    fn drop(&mut self) {
        let last = self.chunk.take();
        self.shared
            .update(|inner| inner.queues.abandon(self.stream, last, self.stop_code));
    }
}

fn was_reset(code: u64) -> Error {
    let message = format!("the other end gave the stream up before its end (code {code})");
    Error::new(ErrorKind::StreamReset, message).with_code(code)
}
