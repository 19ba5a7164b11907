//! The Data Slicer: gathers what an application writes to a stream and cuts it into blocks.

use sphinx_proto::Nanos;
use sphinx_proto::wire::{PREAMBLE_LEN, Preamble};

use crate::outgoing::{ReadyBlock, shape};
use crate::pool::{BufferPool, PoolBuffer};

/// An application that has not written for this long, in nanoseconds, is taken to pause: what it wrote is
/// sent.
pub const PAUSE: Nanos = 1_000_000;

/// The block that a stream's writer is filling.
struct OpenBlock {
    memory: PoolBuffer,
    filled: usize,
    symbol_len_max: u16,
}

impl OpenBlock {
    fn new((n, symbol_len_max): (u16, u16), pool: &BufferPool) -> Self {
        Self {
            memory: pool.take(usize::from(n) * usize::from(symbol_len_max)),
            filled: PREAMBLE_LEN,
            symbol_len_max,
        }
    }
}

/// The slicer of one stream.
pub struct Slicer {
    stream: u16,
    /// Offset in the stream of the open block's first data byte.
    offset: u64,
    open: Option<OpenBlock>,
    last_write: Nanos,
    finished: bool,
    /// Among the slicers that the driver watches for a pause.
    watched: bool,
}

/// What became of written bytes.
pub struct Written {
    /// So many bytes have been taken; the others do not fit the block.
    pub len: usize,
    /// The driver is to watch this slicer from now on ([`Queues::watch`](crate::Queues::watch)).
    pub begins: bool,
    /// The block that is full now: to be queued before more is written.
    pub block: Option<ReadyBlock>,
}

/// What a driver finds when it looks whether a writer pauses.
pub enum Watch {
    /// The writer pauses: this is to be sent.
    Cut(ReadyBlock),
    /// Look again after this time.
    Again(Nanos),
    /// The stream has enough blocks queued; look again when one has left.
    Full,
    /// Nothing is being filled; the writer will say when that changes.
    Empty,
}

impl Slicer {
    /// The slicer of a new stream.
    pub fn new(stream: u16) -> Self {
        Self {
            stream,
            offset: 0,
            open: None,
            last_write: 0,
            finished: false,
            watched: false,
        }
    }

    /// The stream that it cuts.
    pub fn stream(&self) -> u16 {
        self.stream
    }

    /// Whether the stream has been finished.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Copies from the front of `data` into the open block; a new one gets `shape`: source symbols, and
    /// bytes of each.
    pub fn write(
        &mut self,
        now: Nanos,
        data: &[u8],
        shape: (u16, u16),
        pool: &BufferPool,
    ) -> Written {
        let begins = !std::mem::replace(&mut self.watched, true);
        let open = self.open.take();
        let mut open = open.unwrap_or_else(|| OpenBlock::new(shape, pool));
        let len = data.len().min(open.memory.len() - open.filled);
        open.memory[open.filled..][..len].copy_from_slice(&data[..len]);
        open.filled += len;
        self.last_write = now;
        let block = if open.filled == open.memory.len() {
            Some(self.cut(open, false, false, pool))
        } else {
            self.open = Some(open);
            None
        };
        Written { len, begins, block }
    }

    /// Ends the block here: the end of a message. `None` if nothing has been written since the last one.
    pub fn flush(&mut self, pool: &BufferPool) -> Option<ReadyBlock> {
        let open = self.open.take_if(|open| open.filled > PREAMBLE_LEN)?;
        Some(self.cut(open, false, true, pool))
    }

    /// Ends the stream with a last block, which may be empty; `None` if it has been ended before.
    pub fn finish(&mut self, shape: (u16, u16), pool: &BufferPool) -> Option<ReadyBlock> {
        if std::mem::replace(&mut self.finished, true) {
            return None;
        }
        let open = self.open.take();
        let open = open.unwrap_or_else(|| OpenBlock::new(shape, pool));
        Some(self.cut(open, true, true, pool))
    }

    /// Looks whether the writer pauses; `has_room`: the stream may queue another block.
    pub fn watch(&mut self, now: Nanos, has_room: bool, pool: &BufferPool) -> Watch {
        let is_open = |open: &OpenBlock| open.filled > PREAMBLE_LEN;
        if !self.open.as_ref().is_some_and(is_open) {
            self.watched = false;
            return Watch::Empty;
        }
        if !has_room {
            return Watch::Full;
        }
        let idle = now.saturating_sub(self.last_write);
        if idle < PAUSE {
            return Watch::Again(PAUSE - idle);
        }
        self.watched = false;
        self.flush(pool).map_or(Watch::Empty, Watch::Cut)
    }

    fn cut(
        &mut self,
        open: OpenBlock,
        end_of_stream: bool,
        tail: bool,
        pool: &BufferPool,
    ) -> ReadyBlock {
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
            let mut small = pool.take(len);
            small[..open.filled].copy_from_slice(&memory[..open.filled]);
            memory = small;
        }
        ReadyBlock::new(self.stream, memory, preamble, (n, symbol_len), tail)
    }
}
