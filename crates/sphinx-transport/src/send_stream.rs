//! The sending end of a stream, and the slicer that cuts its bytes into blocks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_net::PoolBuffer;
use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::error::{Error, ErrorKind};
use crate::shared::{Inner, Shared, StreamEnd};

/// Blocks of one stream that wait for the engine before a writer has to wait.
pub(crate) const READY_PER_STREAM: usize = 2;
/// An application that has not written for this long is taken to pause: what it wrote is sent.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
/// A sliced block, ready to be sent.
pub(crate) struct ReadyBlock {
    pub(crate) stream: u16,
    /// Preamble, data, padding: `n × symbol_len` bytes.
    pub(crate) memory: PoolBuffer,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) data_len: u32,
    /// The application ends a message or the stream here.
    pub(crate) tail: bool,
    /// The stream's last block.
    pub(crate) last: bool,
}

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
        if inner.queued(self.stream) >= READY_PER_STREAM {
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
        let mut open = match self.open.take() {
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
        open.memory[..PREAMBLE_LEN].copy_from_slice(&preamble.encode());
        self.offset += u64::from(data_len);
        let n = open.filled.div_ceil(usize::from(open.symbol_len_max));
        // Some codes need an even size; the largest one is even.
        let symbol_len = open.filled.div_ceil(n).next_multiple_of(2);
        let symbol_len = symbol_len.min(usize::from(open.symbol_len_max));
        let len = n * symbol_len;
        // A short block must not keep the memory of a full one until the peer has it.
        let mut memory = open.memory;
        if len <= memory.capacity() / 4 {
            let mut small = shared.pool().take(len);
            small[..open.filled].copy_from_slice(&memory[..open.filled]);
            memory = small;
        }
        memory[open.filled..len].fill(0);
        memory.resize(len);
        Some(ReadyBlock {
            stream: self.stream,
            memory,
            n: n as u16,
            symbol_len: symbol_len as u16,
            data_len,
            tail,
            last: end_of_stream,
        })
    }
}

/// One direction of bytes: reliable, in order, flow-controlled.
pub struct SendStream {
    stream: u16,
    slicer: Arc<Mutex<Slicer>>,
    shared: Arc<Shared>,
}

impl SendStream {
    pub(crate) fn new(stream: u16, shared: Arc<Shared>) -> Self {
        let slicer = Arc::new(Mutex::new(Slicer {
            stream,
            offset: 0,
            open: None,
            last_write: Instant::now(),
            finished: false,
            watched: false,
        }));
        Self {
            stream,
            slicer,
            shared,
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
            slicer.last_write = Instant::now();
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
                self.shared.enqueue(block)?;
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
        block.map_or(Ok(()), |block| self.shared.enqueue(block))
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
        self.shared
            .lock()
            .ends
            .insert(self.stream, StreamEnd::Queued);
        block.map_or(Ok(()), |block| self.shared.enqueue(block))
    }

    /// Waits until the peer has received every block of the finished stream.
    ///
    /// # Errors
    /// When the session ends before.
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        let stream = self.stream;
        let delivered = |inner: &mut Inner| inner.ends.get(&stream) == Some(&StreamEnd::Delivered);
        self.shared.wait(|inner| delivered(inner).then_some(()))
    }
}
