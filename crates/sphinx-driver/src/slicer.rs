//! The Data Slicer: gathers what an application writes to a stream and cuts it into pieces, of which blocks are made.

use sphinx_proto::wire::Segment;
use sphinx_proto::{Nanos, StreamId, Time};

use crate::outgoing::{Piece, shape};
use crate::pool::{BufferPool, PoolBuffer};

/// An application that has not written for this long, in nanoseconds, is taken to pause: what it wrote is
/// sent.
pub const PAUSE: Nanos = 1_000_000;

/// The piece that a stream's writer is filling: as much as fits a block of its own.
struct OpenPiece {
    memory: PoolBuffer,
    /// Where its data begins, behind room for the segment's header, and how far the memory is filled.
    data_at: usize,
    filled: usize,
    symbol_len_max: u16,
}

impl OpenPiece {
    fn new(data_at: usize, (n, symbol_len_max): (u16, u16), pool: &BufferPool) -> Self {
        Self {
            memory: pool.take(usize::from(n) * usize::from(symbol_len_max)),
            data_at,
            filled: data_at,
            symbol_len_max,
        }
    }

    fn is_empty(&self) -> bool {
        self.filled == self.data_at
    }
}

/// The slicer of one stream.
pub struct Slicer {
    stream: StreamId,
    /// Offset in the stream of the open piece's first byte.
    offset: u64,
    open: Option<OpenPiece>,
    last_write: Time,
    finished: bool,
    /// Among the slicers that the driver watches for a pause.
    watched: bool,
}

/// What became of written bytes.
pub struct Written {
    /// So many bytes have been taken; the others do not fit the piece.
    pub len: usize,
    /// The driver is to watch this slicer from now on ([`Queues::watch`](crate::Queues::watch)).
    pub begins: bool,
    /// The piece that is full now: to be queued before more is written.
    pub piece: Option<Piece>,
}

/// What a driver finds when it looks whether a writer pauses.
pub enum Watch {
    /// The writer pauses: this is to be sent.
    Cut(Piece),
    /// Look again after this time.
    Again(Nanos),
    /// The stream has enough queued; look again when some has left.
    Full,
    /// Nothing is being filled; the writer will say when that changes.
    Empty,
}

impl Slicer {
    /// The slicer of a new stream.
    pub fn new(stream: StreamId) -> Self {
        Self {
            stream,
            offset: 0,
            open: None,
            last_write: Time::ZERO,
            finished: false,
            watched: false,
        }
    }

    /// The stream that it cuts.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Whether the stream has been finished.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether there are bytes in the open piece, which has room for more then.
    pub fn is_filling(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.is_empty())
    }

    /// Copies from the front of `data` into the open piece; a new one fills a block of `shape`: source symbols, and
    /// bytes of each.
    pub fn write(
        &mut self,
        now: Time,
        data: &[u8],
        shape: (u16, u16),
        pool: &BufferPool,
    ) -> Written {
        let begins = !std::mem::replace(&mut self.watched, true);
        let mut open = self.take_open(shape, pool);
        let len = data.len().min(open.memory.len() - open.filled);
        open.memory[open.filled..][..len].copy_from_slice(&data[..len]);
        open.filled += len;
        self.last_write = now;
        let piece = if open.filled == open.memory.len() {
            Some(self.cut(open, false, false, pool))
        } else {
            self.open = Some(open);
            None
        };
        Written { len, begins, piece }
    }

    fn take_open(&mut self, shape: (u16, u16), pool: &BufferPool) -> OpenPiece {
        let header_len = Segment::header_len(self.stream, self.offset);
        let open = self.open.take();
        open.unwrap_or_else(|| OpenPiece::new(header_len, shape, pool))
    }

    /// The stream is given up: nothing more is cut.
    pub fn abandon(&mut self) {
        self.finished = true;
        self.open = None;
    }

    /// Ends the piece here: the end of a message. `None` if nothing has been written since the last one.
    pub fn flush(&mut self, pool: &BufferPool) -> Option<Piece> {
        let open = self.open.take_if(|open| !open.is_empty())?;
        Some(self.cut(open, false, true, pool))
    }

    /// Ends the stream with a last piece, which may be empty; `None` if it has been ended before.
    pub fn finish(&mut self, shape: (u16, u16), pool: &BufferPool) -> Option<Piece> {
        if std::mem::replace(&mut self.finished, true) {
            return None;
        }
        let open = self.take_open(shape, pool);
        Some(self.cut(open, true, true, pool))
    }

    /// Looks whether the writer has paused for so long; `has_room`: the stream may queue another piece.
    pub fn watch(
        &mut self,
        (now, pause): (Time, Nanos),
        has_room: bool,
        pool: &BufferPool,
    ) -> Watch {
        if !self.is_filling() {
            self.watched = false;
            return Watch::Empty;
        }
        if !has_room {
            return Watch::Full;
        }
        let idle = now.saturating_sub(self.last_write);
        if idle < pause {
            return Watch::Again(pause - idle);
        }
        self.watched = false;
        self.flush(pool).map_or(Watch::Empty, Watch::Cut)
    }

    fn cut(
        &mut self,
        open: OpenPiece,
        end_of_stream: bool,
        tail: bool,
        pool: &BufferPool,
    ) -> Piece {
        let segment = Segment {
            stream: self.stream,
            offset: self.offset,
            len: (open.filled - open.data_at) as u32,
            end_of_stream,
        };
        self.offset = segment.end();
        let (n, symbol_len) = shape(open.filled, open.symbol_len_max);
        let len = usize::from(n) * usize::from(symbol_len);
        // A short piece must not keep the memory of a full one until the peer has it.
        let mut memory = open.memory;
        if len <= memory.capacity() / 4 {
            let mut small = pool.take(len);
            small[..open.filled].copy_from_slice(&memory[..open.filled]);
            memory = small;
        }
        Piece::new(segment, memory, open.data_at, open.symbol_len_max, tail)
    }
}
