//! The receiving end of a stream.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use sphinx_driver::{Chunk, Taken};
use sphinx_proto::StreamId;

use crate::error::{Error, ErrorKind};
use crate::shared::{CODE_MAX, Inner, Shared};
use crate::signal::Waiter;

/// The receiving end of a peer's stream.
pub struct RecvStream {
    stream: StreamId,
    shared: Arc<Shared>,
    /// Where the next byte to be read lies in the stream.
    position: u64,
    /// Data being read; not empty.
    chunk: Option<Chunk>,
    ended: bool,
    partly: Partly,
    /// Waits until more has arrived.
    changed: Waiter,
    /// Why no more is wanted, once the stream is dropped.
    stop_code: u64,
}

/// What [`RecvStream::read_unordered`] has begun and not done.
enum Partly {
    Nothing,
    /// In a box: streams that wait for nothing of the kind hold no memory for it.
    Begun(Box<Part>),
    /// An error has come in between: nobody knows what became of the rest.
    Torn,
}

/// A part of the stream that is read in the order in which it arrives.
struct Part {
    start: u64,
    end: u64,
    left: u64,
    /// The rest of the block in which it ends.
    beyond: Option<Chunk>,
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
            changed: Waiter::new(&changed),
            stream,
            shared,
            position: 0,
            chunk: None,
            ended: false,
            partly: Partly::Nothing,
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
        while self.wants_more() {
            let stream = self.stream;
            let chunk = self
                .shared
                .wait(self.changed.signal(), |inner| next_chunk(inner, stream))??;
            self.keep(chunk);
        }
        Ok(self.give(buf.len(), |data| {
            buf[..data.len()].copy_from_slice(data);
        }))
    }

    /// The same for at most `most` bytes, of which `sink` gets those that there are, once, unless the stream has ended.
    pub(crate) fn poll_read(
        &mut self,
        cx: &Context<'_>,
        most: usize,
        sink: impl FnOnce(&[u8]),
    ) -> Poll<Result<usize, Error>> {
        self.whole()?;
        while self.wants_more() {
            let stream = self.stream;
            let next = |inner: &mut Inner| next_chunk(inner, stream);
            let chunk = ready!(self.shared.poll(&mut self.changed, cx, next))??;
            self.keep(chunk);
        }
        Poll::Ready(Ok(self.give(most, sink)))
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
        let mut part = self.part(len)?;
        while part.left > 0 {
            let chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => {
                    let (stream, end) = (self.stream, part.end);
                    let before = |inner: &mut Inner| chunk_before(inner, stream, end);
                    match self.shared.wait(self.changed.signal(), before).flatten() {
                        Ok(chunk) => chunk,
                        Err(error) => return Err(self.tear(*part, error.into())),
                    }
                }
            };
            if let Err(error) = self.give_part(&mut part, chunk, &mut sink) {
                return Err(self.tear(*part, error));
            }
        }
        self.end_part(*part);
        Ok(())
    }

    /// The same. Until it is ready it is to be called again with the same `len`.
    pub(crate) fn poll_read_unordered<E: From<Error>>(
        &mut self,
        cx: &Context<'_>,
        len: u64,
        sink: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        let mut part = self.part(len)?;
        while part.left > 0 {
            let chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => {
                    let (stream, end) = (self.stream, part.end);
                    let before = |inner: &mut Inner| chunk_before(inner, stream, end);
                    let polled = self.shared.poll(&mut self.changed, cx, before);
                    match polled.map(Result::flatten) {
                        Poll::Ready(Ok(chunk)) => chunk,
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Err(self.tear(*part, error.into())));
                        }
                        Poll::Pending => {
                            self.partly = Partly::Begun(part);
                            return Poll::Pending;
                        }
                    }
                }
            };
            if let Err(error) = self.give_part(&mut part, chunk, sink) {
                return Poll::Ready(Err(self.tear(*part, error)));
            }
        }
        self.end_part(*part);
        Poll::Ready(Ok(()))
    }

    fn whole(&self) -> Result<(), Error> {
        match self.partly {
            Partly::Nothing => Ok(()),
            Partly::Begun(_) | Partly::Torn => Err(partly_read()),
        }
    }

    /// Nothing can be given before another chunk has come.
    fn wants_more(&self) -> bool {
        self.chunk.is_none() && !self.ended
    }

    /// Gives at most `most` bytes of the chunk: how many.
    fn give(&mut self, most: usize, sink: impl FnOnce(&[u8])) -> usize {
        let Some(mut chunk) = self.chunk.take() else {
            return 0;
        };
        let len = chunk.data().len().min(most);
        sink(&chunk.data()[..len]);
        self.position += len as u64;
        chunk.advance(len);
        self.keep(chunk);
        len
    }

    /// What is unread of the chunk comes next; one that is read frees its place in the window.
    fn keep(&mut self, chunk: Chunk) {
        if !chunk.data().is_empty() {
            self.chunk = Some(chunk);
            return;
        }
        self.ended |= chunk.end_of_stream();
        let taken = chunk.into_taken();
        self.shared.update(|inner| inner.queues.release(taken));
    }

    /// The part that has been begun, or a new one. Until it is ended or put back, the stream counts as torn.
    fn part(&mut self, len: u64) -> Result<Box<Part>, Error> {
        let (start, end) = (self.position, self.position.saturating_add(len));
        match std::mem::replace(&mut self.partly, Partly::Torn) {
            Partly::Nothing => Ok(Box::new(Part {
                start,
                end,
                left: len,
                beyond: None,
            })),
            Partly::Begun(part) if part.end == end => Ok(part),
            other => {
                self.partly = other;
                Err(partly_read())
            }
        }
    }

    /// Gives what of the chunk belongs to the part.
    fn give_part<E>(
        &mut self,
        part: &mut Part,
        mut chunk: Chunk,
        sink: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = usize::try_from(part.end - chunk.offset()).unwrap_or(usize::MAX);
        let len = wanted.min(chunk.data().len());
        let given = match len {
            0 => Ok(()),
            len => sink(chunk.offset() - part.start, &chunk.data()[..len]),
        };
        part.left -= len as u64;
        chunk.advance(len);
        self.keep(chunk);
        part.beyond = part.beyond.take().or(self.chunk.take());
        given
    }

    fn end_part(&mut self, part: Part) {
        self.chunk = part.beyond.or(self.chunk.take());
        self.position = part.end;
        self.partly = Partly::Nothing;
    }

    /// The stream cannot be read any further: it stays torn.
    fn tear<E>(&mut self, part: Part, error: E) -> E {
        if let Some(beyond) = part.beyond {
            let taken = beyond.into_taken();
            self.shared.update(|inner| inner.queues.release(taken));
        }
        error
    }
}

/// The next chunk in the order of the stream.
fn next_chunk(inner: &mut Inner, stream: StreamId) -> Option<Result<Chunk, Error>> {
    let incoming = inner.queues.incoming(stream);
    match (incoming.take_in_order(), incoming.reset()) {
        (Some(chunk), _) => Some(Ok(chunk)),
        (None, reset) => reset.map(|code| Err(was_reset(code))),
    }
}

/// A chunk that begins before the stream's byte `end`.
fn chunk_before(inner: &mut Inner, stream: StreamId, end: u64) -> Option<Result<Chunk, Error>> {
    let incoming = inner.queues.incoming(stream);
    match (incoming.take_before(end), incoming.reset()) {
        (Some(chunk), _) => Some(Ok(chunk)),
        (None, Some(code)) => Some(Err(was_reset(code))),
        (None, None) => incoming.has_ended().then(|| {
            let error = "the stream ended too early";
            Err(Error::new(ErrorKind::Protocol, error))
        }),
    }
}

impl Drop for RecvStream {
    /// What the application does not want must not fill the window.
    fn drop(&mut self) {
        let beyond = match std::mem::replace(&mut self.partly, Partly::Torn) {
            Partly::Begun(part) => part.beyond,
            Partly::Nothing | Partly::Torn => None,
        };
        let unread = [self.chunk.take(), beyond].into_iter().flatten();
        let unread: Vec<Taken> = unread.map(Chunk::into_taken).collect();
        self.shared.update(|inner| {
            for taken in unread {
                inner.queues.release(taken);
            }
            inner.queues.abandon(self.stream, None, self.stop_code);
        });
    }
}

fn partly_read() -> Error {
    let message = "only a part of the stream's data has been read";
    Error::new(ErrorKind::Usage, message)
}

fn was_reset(code: u64) -> Error {
    let message = format!("the other end gave the stream up before its end (code {code})");
    Error::new(ErrorKind::StreamReset, message).with_code(code)
}
