//! What the application's threads and the engine share about one session, and the public handles.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_net::{BufferPool, PoolBuffer, Waker};
use sphinx_proto::Slot;
use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::error::{Error, ErrorKind};
use crate::stats::Stats;

/// Blocks of one stream that wait for the engine before a writer has to wait.
const READY_PER_STREAM: usize = 2;
/// Streams that one end may open.
const STREAMS_MAX: u16 = 256;
/// An application that has not written for this long is taken to pause: what it wrote is sent.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
/// How long [`Session::close`] waits for the peer's answer.
const CLOSE_WAIT: Duration = Duration::from_millis(350);

/// A sliced block, ready to be sent.
pub(crate) struct ReadyBlock {
    pub(crate) stream: u16,
    /// Preamble, data, padding: `n × symbol_len` bytes.
    pub(crate) memory: PoolBuffer,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) data_len: u32,
    pub(crate) tail: bool,
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
}

/// Data of one block, in stream order.
pub(crate) struct Chunk {
    pub(crate) memory: PoolBuffer,
    pub(crate) slot: Slot,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) end_of_stream: bool,
}

#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) chunks: VecDeque<Chunk>,
    /// Nobody reads the stream any more.
    pub(crate) abandoned: bool,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) ready: VecDeque<ReadyBlock>,
    pub(crate) slicers: Vec<Arc<Mutex<Slicer>>>,
    /// Streams whose end has been handed over, and whether the peer has all of it.
    pub(crate) finished: BTreeMap<u16, bool>,
    pub(crate) incoming: BTreeMap<u16, Incoming>,
    /// Streams that the application has accepted are below this id.
    next_accept: u16,
    /// Slots whose data has been read.
    pub(crate) released: Vec<Slot>,
    pub(crate) close: Option<(u64, String)>,
    pub(crate) closed: Option<Error>,
    /// The peer has answered CLOSE, or it makes no sense to wait.
    pub(crate) close_answered: bool,
    pub(crate) stats: Stats,
}

/// State behind every handle of a session.
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
    changed: Condvar,
    waker: Waker,
    pool: BufferPool,
    remote: Mutex<SocketAddr>,
    /// Block shape: n in the high half, symbol size in the low half.
    shape: AtomicU32,
    next_stream: Mutex<u16>,
}

impl Shared {
    pub(crate) fn new(
        waker: Waker,
        pool: BufferPool,
        remote: SocketAddr,
        is_client: bool,
        shape: (u16, u16),
    ) -> Self {
        let shared = Self {
            inner: Mutex::default(),
            changed: Condvar::new(),
            waker,
            pool,
            remote: Mutex::new(remote),
            shape: AtomicU32::new(0),
            next_stream: Mutex::new(u16::from(!is_client)),
        };
        shared.set_shape(shape);
        shared.lock().next_accept = u16::from(is_client);
        shared
    }

    pub(crate) fn set_shape(&self, (n, symbol_len): (u16, u16)) {
        self.shape.store(u32::from(n) << 16 | u32::from(symbol_len), Ordering::Relaxed);
    }

    fn shape(&self) -> (u16, u16) {
        let shape = self.shape.load(Ordering::Relaxed);
        ((shape >> 16) as u16, shape as u16)
    }

    /// A thread that panics cannot leave the queues half changed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer is elsewhere now.
    pub(crate) fn set_remote(&self, remote: SocketAddr) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = remote;
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Wait until `ready` gives a value, or the session ends.
    fn wait<T>(&self, mut ready: impl FnMut(&mut Inner) -> Option<T>) -> Result<T, Error> {
        let mut inner = self.lock();
        loop {
            if let Some(value) = ready(&mut inner) {
                return Ok(value);
            }
            if let Some(error) = &inner.closed {
                return Err(error.clone());
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Cut the slicer's open block, if it holds anything or the stream ends with it.
    pub(crate) fn cut(&self, slicer: &mut Slicer, end_of_stream: bool, tail: bool) -> Option<ReadyBlock> {
        let mut open = match slicer.open.take() {
            Some(open) if open.filled > PREAMBLE_LEN || end_of_stream => open,
            None if end_of_stream => self.open_block(),
            other => {
                slicer.open = other;
                return None;
            }
        };
        let data_len = (open.filled - PREAMBLE_LEN) as u32;
        let preamble = Preamble { offset: slicer.offset, len: data_len, end_of_stream };
        open.memory[..PREAMBLE_LEN].copy_from_slice(&preamble.encode());
        slicer.offset += u64::from(data_len);
        let n = open.filled.div_ceil(usize::from(open.symbol_len_max));
        let symbol_len = open.filled.div_ceil(n);
        open.memory[open.filled..n * symbol_len].fill(0);
        open.memory.resize(n * symbol_len);
        Some(ReadyBlock {
            stream: slicer.stream,
            memory: open.memory,
            n: n as u16,
            symbol_len: symbol_len as u16,
            data_len,
            tail,
        })
    }

    fn open_block(&self) -> OpenBlock {
        let (n, symbol_len_max) = self.shape();
        let memory = self.pool.take(usize::from(n) * usize::from(symbol_len_max));
        OpenBlock { memory, filled: PREAMBLE_LEN, symbol_len_max }
    }

    /// Hand a block to the engine, waiting while enough are queued.
    fn enqueue(&self, block: ReadyBlock) -> Result<(), Error> {
        let stream = block.stream;
        let mut block = Some(block);
        self.wait(|inner| {
            let queued = inner.ready.iter().filter(|b| b.stream == stream).count();
            if queued >= READY_PER_STREAM || inner.closed.is_some() {
                return None;
            }
            inner.ready.extend(block.take());
            Some(())
        })?;
        self.waker.wake();
        Ok(())
    }
}

impl Slicer {
    /// A block whose writer pauses, if any; else when to look again.
    pub(crate) fn poll_pause(&mut self, shared: &Shared, now: Instant) -> Result<ReadyBlock, Option<Duration>> {
        if self.open.as_ref().is_none_or(|open| open.filled <= PREAMBLE_LEN) {
            return Err(None);
        }
        let idle = now.saturating_duration_since(self.last_write);
        if idle < PAUSE {
            return Err(Some(PAUSE - idle));
        }
        shared.cut(self, false, true).ok_or(None)
    }
}

/// An authenticated association with a peer. Cheap to clone, safe to use from several threads.
///
/// When the last clone goes, the session is closed with code 6.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    _guard: Arc<CloseOnDrop>,
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if inner.close.is_none() {
            inner.close = Some((6, "the application let go of the session".to_owned()));
            self.0.waker.wake();
        }
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let guard = CloseOnDrop(Arc::clone(&shared));
        Self { shared, _guard: Arc::new(guard) }
    }

    /// The peer's present address.
    pub fn remote_addr(&self) -> SocketAddr {
        *self.shared.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the next stream towards the peer.
    ///
    /// # Errors
    /// When the session has ended, or 256 streams have been opened.
    pub fn open_stream(&self) -> Result<SendStream, Error> {
        let mut next = self.shared.next_stream.lock().unwrap_or_else(PoisonError::into_inner);
        if *next / 2 >= STREAMS_MAX {
            return Err(Error::new(ErrorKind::Usage, "a session has at most 256 streams"));
        }
        let stream = *next;
        *next += 2;
        let slicer = Arc::new(Mutex::new(Slicer {
            stream,
            offset: 0,
            open: None,
            last_write: Instant::now(),
            finished: false,
        }));
        let mut inner = self.shared.lock();
        if let Some(error) = &inner.closed {
            return Err(error.clone());
        }
        inner.slicers.push(Arc::clone(&slicer));
        Ok(SendStream { stream, slicer, shared: Arc::clone(&self.shared) })
    }

    /// Waits for the next stream that the peer opens, in the order of ids.
    ///
    /// # Errors
    /// When the session ends.
    pub fn accept_stream(&self) -> Result<RecvStream, Error> {
        let stream = self.shared.wait(|inner| {
            let stream = inner.next_accept;
            inner.incoming.contains_key(&stream).then(|| {
                inner.next_accept += 2;
                stream
            })
        })?;
        Ok(RecvStream { stream, shared: Arc::clone(&self.shared), chunk: None, ended: false })
    }

    /// Counters and estimates, at most some milliseconds old.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// Ends the session: CLOSE is sent, sealed and repeated. Returns when the peer has answered, or
    /// after a third of a second. Blocked calls of other threads return with an error.
    ///
    /// The codes are those of the command line; the peer reports 0 and 6 as
    /// [`ErrorKind::Cancelled`], 9 as [`ErrorKind::RemoteIo`], and so on.
    pub fn close(&self, code: u64, reason: &str) {
        let mut inner = self.shared.lock();
        if inner.closed.is_none() && inner.close.is_none() {
            inner.close = Some((code, reason.to_owned()));
            self.shared.waker.wake();
        }
        let deadline = Instant::now() + CLOSE_WAIT;
        while !inner.close_answered {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Why the session has ended, if it has.
    pub fn closed(&self) -> Option<Error> {
        self.shared.lock().closed.clone()
    }
}

/// One direction of bytes: reliable, in order, flow-controlled.
pub struct SendStream {
    stream: u16,
    slicer: Arc<Mutex<Slicer>>,
    shared: Arc<Shared>,
}

impl SendStream {
    fn slicer(&self) -> MutexGuard<'_, Slicer> {
        self.slicer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all of `data` into blocks; waits while window and queue are full.
    ///
    /// # Errors
    /// When the session ends, or after [`SendStream::finish`].
    pub fn write_all(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let mut slicer = self.slicer();
            if slicer.finished {
                return Err(Error::new(ErrorKind::Usage, "the stream has been finished"));
            }
            let begins = slicer.open.is_none();
            let mut open = slicer.open.take().unwrap_or_else(|| self.shared.open_block());
            let room = open.memory.len() - open.filled;
            let (now, later) = data.split_at(room.min(data.len()));
            open.memory[open.filled..][..now.len()].copy_from_slice(now);
            open.filled += now.len();
            data = later;
            let full = open.filled == open.memory.len();
            slicer.open = Some(open);
            slicer.last_write = Instant::now();
            let block = if full { self.shared.cut(&mut slicer, false, false) } else { None };
            drop(slicer);
            match block {
                Some(block) => self.shared.enqueue(block)?,
                // The engine must look whether the application pauses.
                None if begins => {
                    self.shared.waker.wake();
                    self.check_open()?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), Error> {
        match &self.shared.lock().closed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Ends the block here instead of up to a millisecond later: the end of a message.
    ///
    /// # Errors
    /// When the session ends.
    pub fn flush(&mut self) -> Result<(), Error> {
        let block = {
            let mut slicer = self.slicer();
            self.shared.cut(&mut slicer, false, true)
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
            self.shared.cut(&mut slicer, true, true)
        };
        if let Some(block) = block {
            self.shared.enqueue(block)?;
        }
        self.shared.lock().finished.insert(self.stream, false);
        self.shared.waker.wake();
        Ok(())
    }

    /// Waits until the peer has received every block of the finished stream.
    ///
    /// # Errors
    /// When the session ends before.
    pub fn wait_delivered(&mut self) -> Result<(), Error> {
        self.finish()?;
        let stream = self.stream;
        self.shared.wait(|inner| inner.finished.get(&stream).copied().unwrap_or(true).then_some(()))
    }
}

/// The receiving end of a peer's stream.
pub struct RecvStream {
    stream: u16,
    shared: Arc<Shared>,
    /// Data being read, from `from` up.
    chunk: Option<Chunk>,
    ended: bool,
}

impl RecvStream {
    /// Waits for data and copies some of it into `buf`; 0 at the end of the stream.
    ///
    /// Data that has arrived is given out even after the session has ended.
    ///
    /// # Errors
    /// When the session ends before the stream.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        loop {
            if self.ended {
                return Ok(0);
            }
            let mut chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => {
                    let stream = self.stream;
                    self.shared.wait(|inner| inner.incoming.get_mut(&stream)?.chunks.pop_front())?
                }
            };
            let len = (chunk.to - chunk.from).min(buf.len());
            buf[..len].copy_from_slice(&chunk.memory[chunk.from..][..len]);
            chunk.from += len;
            if chunk.from < chunk.to {
                self.chunk = Some(chunk);
                return Ok(len);
            }
            self.ended = chunk.end_of_stream;
            self.release(chunk);
            if len > 0 || buf.is_empty() {
                return Ok(len);
            }
        }
    }

    fn release(&self, chunk: Chunk) {
        let slot = chunk.slot;
        drop(chunk);
        self.shared.lock().released.push(slot);
        self.shared.waker.wake();
    }
}

impl Drop for RecvStream {
    /// What the application does not want must not fill the window.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.released.extend(self.chunk.take().map(|chunk| chunk.slot));
        if let Some(incoming) = inner.incoming.get_mut(&self.stream) {
            incoming.abandoned = true;
            let chunks: Vec<Slot> = incoming.chunks.drain(..).map(|chunk| chunk.slot).collect();
            inner.released.extend(chunks);
        }
        self.shared.waker.wake();
    }
}
