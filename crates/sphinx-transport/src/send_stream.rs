//! The sending end of a stream, and the slicer that cuts its bytes into blocks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_driver::PoolBuffer;
use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::error::{Error, ErrorKind};
use crate::outgoing::{ReadyBlock, StreamEnd, shape};
use crate::shared::{Inner, Shared};

/// Blocks of one stream that wait for the engine before a writer has to wait.
pub(crate) const READY_PER_STREAM: usize = 2;
/// An application that has not written for this long is taken to pause: what it wrote is sent.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// The block that a stream's writer is filling.
pub(crate) struct OpenBlock {
    memory: PoolBuffer,
    filled: usize,
    symbol_len_max: u16,
}

/// The slicer of one stream.
pub(crate) struct Slicer {
    stream: u16,
    /// Offset in the stream of the open block's first data byte.
    offset: u64,
    open: Option<OpenBlock>,
    last_write: Instant,
    finished: bool,
    /// Among the slicers that the engine watches for a pause.
    watched: bool,
}

impl OpenBlock {
    fn new(shared: &Shared) -> Self {
        let (n, symbol_len_max) = shared.shape();
        let memory = shared
            .pool()
            .take(usize::from(n) * usize::from(symbol_len_max));
        Self {
            memory,
            filled: PREAMBLE_LEN,
            symbol_len_max,
        }
    }
}

/// What the engine finds when it looks whether a writer pauses.
pub(crate) enum Watch {
    /// The writer pauses: this is to be sent.
    Cut(ReadyBlock),
    /// Look again after this time.
    Again(Duration),
    /// The stream has enough blocks queued; look again when one has left.
    Full,
    /// Nothing is being filled; the writer will say when that changes.
    Empty,
}

impl Slicer {
    /// Looks whether the writer pauses.
    pub(crate) fn watch(&mut self, shared: &Shared, now: Instant, inner: &Inner) -> Watch {
        if self
            .open
            .as_ref()
            .is_none_or(|open| open.filled <= PREAMBLE_LEN)
        {
            self.watched = false;
            return Watch::Empty;
        }
        if inner.outgoing.queued(self.stream) >= READY_PER_STREAM {
            return Watch::Full;
        }
        let idle = now.saturating_duration_since(self.last_write);
        if idle < PAUSE {
            return Watch::Again(PAUSE - idle);
        }
        self.watched = false;
        self.cut(shared, false, true)
            .map_or(Watch::Empty, Watch::Cut)
    }

    /// Cut the open block, if it holds anything or the stream ends with it.
    fn cut(&mut self, shared: &Shared, end_of_stream: bool, tail: bool) -> Option<ReadyBlock> {
        let open = match self.open.take() {
            Some(open) if open.filled > PREAMBLE_LEN || end_of_stream => open,
            None if end_of_stream => OpenBlock::new(shared),
            other => {
                self.open = other;
                return None;
            }
        };
        let data_len = (open.filled - PREAMBLE_LEN) as u32;
        let preamble = Preamble {
            offset: self.offset,
            len: data_len,
            end_of_stream,
        };
        self.offset += u64::from(data_len);
        let (n, symbol_len) = shape(open.filled, open.symbol_len_max);
        let len = usize::from(n) * usize::from(symbol_len);
        // A short block must not keep the memory of a full one until the peer has it.
        let mut memory = open.memory;
        if len <= memory.capacity() / 4 {
            let mut small = shared.pool().take(len);
            small[..open.filled].copy_from_slice(&memory[..open.filled]);
            memory = small;
        }
        Some(ReadyBlock {
            stream: self.stream,
            memory,
            start: 0,
            preamble,
            n,
            symbol_len,
            tail,
        })
    }
}

/// One direction of bytes: reliable, in order, flow-controlled.
pub struct SendStream {
    stream: u16,
    slicer: Arc<Mutex<Slicer>>,
    shared: Arc<Shared>,
    /// A block of this stream has left, or its end has come further.
    changed: Arc<Condvar>,
}

impl SendStream {
    pub(crate) fn new(stream: u16, shared: Arc<Shared>) -> Self {
        let slicer = Arc::new(Mutex::new(Slicer {
            stream,
            offset: 0,
            open: None,
            last_write: shared.now(),
            finished: false,
            watched: false,
        }));
        let changed = shared.lock().begin_sending(stream);
        Self {
            stream,
            slicer,
            shared,
            changed,
        }
    }

    fn slicer(&self) -> MutexGuard<'_, Slicer> {
        self.slicer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all of `data` into blocks; waits while window and queue are full.
    ///
    /// # Errors
    /// When the session ends, or after [`SendStream::finish`].
    pub fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        // What would only be buffered must fail too.
        if let Some(error) = &self.shared.lock().closed {
            return Err(error.clone());
        }
        while !data.is_empty() {
            let mut slicer = self.slicer();
            if slicer.finished {
                return Err(Error::new(ErrorKind::Usage, "the stream has been finished"));
            }
            let begins = !std::mem::replace(&mut slicer.watched, true);
            let mut open = slicer
                .open
                .take()
                .unwrap_or_else(|| OpenBlock::new(&self.shared));
            let room = open.memory.len() - open.filled;
            let (now, later) = data.split_at(room.min(data.len()));
            open.memory[open.filled..][..now.len()].copy_from_slice(now);
            open.filled += now.len();
            data = later;
            let full = open.filled == open.memory.len();
            slicer.open = Some(open);
            slicer.last_write = self.shared.now();
            let block = if full {
                slicer.cut(&self.shared, false, false)
            } else {
                None
            };
            drop(slicer);
            if begins {
                self.watch();
            }
            if let Some(block) = block {
                self.enqueue(block)?;
            }
        }
        Ok(())
    }

    /// The engine must look whether the application pauses.
    fn watch(&self) {
        let mut inner = self.shared.lock();
        inner.filling.push(Arc::clone(&self.slicer));
        drop(inner);
        self.shared.wake();
    }

    /// Ends the block here instead of up to a millisecond later: the end of a message.
    ///
    /// # Errors
    /// When the session ends.
    pub fn flush(&mut self) -> Result<(), Error> {
        let block = {
            let mut slicer = self.slicer();
            slicer.cut(&self.shared, false, true)
        };
        block.map_or(Ok(()), |block| self.enqueue(block))
    }

    /// Hands a block to the engine, waiting while enough are queued.
    fn enqueue(&self, block: ReadyBlock) -> Result<(), Error> {
        let stream = self.stream;
        let mut block = Some(block);
        self.shared.wait(&self.changed, |inner| {
            if inner.outgoing.queued(stream) >= READY_PER_STREAM || inner.closed.is_some() {
                return None;
            }
            inner.outgoing.push(block.take()?);
            Some(())
        })?;
        self.shared.wake();
        Ok(())
    }

    /// Marks the end of the stream. Returns when its last block is queued.
    ///
    /// # Errors
    /// When the session ends.
    pub fn finish(&mut self) -> Result<(), Error> {
        let block = {
            let mut slicer = self.slicer();
            if std::mem::replace(&mut slicer.finished, true) {
                return Ok(());
            }
            slicer.cut(&self.shared, true, true)
        };
        self.shared.lock().finish_sending(self.stream);
        block.map_or(Ok(()), |block| self.enqueue(block))
    }

    /// Waits until the peer has received every block of the finished stream.
    ///
    /// # Errors
    /// When the session ends before.
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        let stream = self.stream;
        self.shared.wait(&self.changed, |inner| {
            let end = inner.outgoing.streams.get(&stream)?.end;
            (end == Some(StreamEnd::Delivered)).then_some(())
        })
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.slicer().finished {
            self.shared.lock().writers -= 1;
        }
    }
}
