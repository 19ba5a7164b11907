//! The receiving end of a stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar};

use sphinx_driver::PoolBuffer;
use sphinx_proto::Slot;

use crate::error::{Error, ErrorKind};
use crate::shared::Shared;

/// Data of one block.
pub(crate) struct Chunk {
    pub(crate) memory: PoolBuffer,
    pub(crate) slot: Slot,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Place in the stream of the byte at `from`.
    pub(crate) offset: u64,
    pub(crate) end_of_stream: bool,
}

/// What of a stream has arrived and has not been read.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Complete blocks by number.
    pub(crate) blocks: BTreeMap<u64, Chunk>,
    /// Every block below has arrived.
    pub(crate) next_block: u64,
    /// The stream's last block is one of them.
    pub(crate) ended: bool,
    /// Nobody reads the stream any more.
    pub(crate) abandoned: bool,
    /// More has arrived.
    pub(crate) changed: Arc<Condvar>,
}

impl Incoming {
    /// The next block in stream order.
    fn pop_in_order(&mut self) -> Option<Chunk> {
        let first = self.blocks.first_entry()?;
        (*first.key() < self.next_block).then(|| first.remove())
    }

    /// A block that begins before `end`.
    fn pop_before(&mut self, end: u64) -> Option<Chunk> {
        let first = self.blocks.first_entry()?;
        (first.get().offset < end).then(|| first.remove())
    }
}

/// The receiving end of a peer's stream.
pub struct RecvStream {
    stream: u16,
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
}

impl RecvStream {
    pub(crate) fn new(stream: u16, shared: Arc<Shared>) -> Self {
        let mut inner = shared.lock();
        let changed = Arc::clone(&inner.incoming.entry(stream).or_default().changed);
        drop(inner);
        Self {
            changed,
            stream,
            shared,
            position: 0,
            chunk: None,
            ended: false,
            torn: false,
        }
    }

    /// Waits for data and copies some of it into `buf`; 0 at the end of the stream.
    ///
    /// Data that has arrived is given out even after the session has ended.
    ///
    /// # Errors
    /// When the session ends before the stream, or after [`read_unordered`](Self::read_unordered)
    /// has failed.
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
                        inner.incoming.get_mut(&stream)?.pop_in_order()
                    })?
                }
            };
            let len = (chunk.to - chunk.from).min(buf.len());
            buf[..len].copy_from_slice(&chunk.memory[chunk.from..][..len]);
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
            let wanted = usize::try_from(end - chunk.offset).unwrap_or(usize::MAX);
            let piece = wanted.min(chunk.to - chunk.from);
            if piece > 0 {
                sink(chunk.offset - start, &chunk.memory[chunk.from..][..piece])?;
            }
            left -= piece as u64;
            self.put_back(chunk, piece);
            beyond = beyond.or(self.chunk.take());
        }
        self.chunk = beyond;
        self.position = end;
        self.torn = false;
        Ok(())
    }

    /// Whether [`RecvStream::read`] has not to wait.
    #[cfg(test)]
    pub(crate) fn is_ready(&self) -> bool {
        let mut inner = self.shared.lock();
        let incoming = inner.incoming.entry(self.stream).or_default();
        let first = incoming.blocks.first_key_value();
        self.ended || self.chunk.is_some() || first.is_some_and(|(id, _)| *id < incoming.next_block)
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
            let incoming = inner.incoming.get_mut(&stream)?;
            match incoming.pop_before(end) {
                None if incoming.ended => Some(None),
                chunk => chunk.map(Some),
            }
        })?;
        chunk.ok_or_else(|| Error::new(ErrorKind::Protocol, "the stream ended too early"))
    }

    /// `len` more bytes of the chunk have been read.
    fn put_back(&mut self, mut chunk: Chunk, len: usize) {
        chunk.from += len;
        chunk.offset += len as u64;
        if chunk.from < chunk.to {
            self.chunk = Some(chunk);
        } else {
            self.ended |= chunk.end_of_stream;
            self.release(chunk);
        }
    }

    fn release(&self, chunk: Chunk) {
        let slot = chunk.slot;
        drop(chunk);
        self.shared.lock().released.push(slot);
        self.shared.wake();
    }
}

impl Drop for RecvStream {
    /// What the application does not want must not fill the window.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner
            .released
            .extend(self.chunk.take().map(|chunk| chunk.slot));
        if let Some(incoming) = inner.incoming.get_mut(&self.stream) {
            incoming.abandoned = true;
            let blocks = std::mem::take(&mut incoming.blocks);
            inner
                .released
                .extend(blocks.into_values().map(|chunk| chunk.slot));
        }
        self.shared.wake();
    }
}
