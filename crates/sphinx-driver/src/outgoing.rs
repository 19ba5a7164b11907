//! Pieces of streams that wait for room in the peer's window, and the blocks that are made of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sphinx_proto::wire::Segment;
use sphinx_proto::{StreamId, StreamPart, Urgency};

use crate::pool::{BufferPool, PoolBuffer};

/// A piece of a stream, ready to be sent: as much as fits a block of its own.
pub struct Piece {
    segment: Segment,
    /// The data begins at `data_at`. Before it is room for the segment's header.
    memory: PoolBuffer,
    data_at: usize,
    symbol_len_max: u16,
    /// The application ends a message or the stream here.
    tail: bool,
}

/// The shape of a block of so many bytes, with symbols of at most this size.
pub(crate) fn shape(bytes: usize, symbol_len_max: u16) -> (u16, u16) {
    let n = bytes.div_ceil(usize::from(symbol_len_max));
    // Some codes need an even size; the largest one is even.
    let symbol_len = bytes.div_ceil(n).next_multiple_of(2);
    (n as u16, symbol_len.min(usize::from(symbol_len_max)) as u16)
}

impl Piece {
    /// Its data begins at `data_at` in `memory`, which is large enough for a block of it.
    pub(crate) fn new(
        segment: Segment,
        memory: PoolBuffer,
        data_at: usize,
        symbol_len_max: u16,
        tail: bool,
    ) -> Self {
        Self {
            segment,
            memory,
            data_at,
            symbol_len_max,
            tail,
        }
    }

    /// The stream that the piece is of.
    pub(crate) fn stream(&self) -> StreamId {
        self.segment.stream
    }

    /// Whether the stream ends with it.
    pub(crate) fn is_last(&self) -> bool {
        self.segment.end_of_stream
    }

    /// Whether the application ends a message or the stream here.
    pub(crate) fn is_tail(&self) -> bool {
        self.tail
    }

    /// Largest symbol that it was cut for, bytes.
    pub(crate) fn symbol_len_max(&self) -> u16 {
        self.symbol_len_max
    }

    fn header_len(&self) -> usize {
        Segment::header_len(self.segment.stream, self.segment.offset)
    }

    fn data_len(&self) -> usize {
        self.segment.len as usize
    }

    /// Bytes of header and data.
    pub(crate) fn bytes(&self) -> usize {
        self.header_len() + self.data_len()
    }

    /// Shape of a block that holds only this piece: source symbols, and bytes of each.
    pub(crate) fn shape(&self) -> (u16, u16) {
        shape(self.bytes(), self.symbol_len_max)
    }

    /// The part of a block that it becomes.
    pub(crate) fn part(&self) -> StreamPart {
        StreamPart {
            stream: self.segment.stream,
            bytes: self.bytes() as u32,
            end_of_stream: self.segment.end_of_stream,
            cost: 0,
        }
    }

    /// Splits off the first data, as much as a block of this shape holds; there must be more than
    /// that.
    fn split(&mut self, (n, symbol_len): (u16, u16), pool: &BufferPool) -> Self {
        let len = usize::from(n) * usize::from(symbol_len);
        let data_at = self.header_len();
        let data_len = len - data_at;
        debug_assert!(data_len < self.data_len());
        let mut memory = pool.take(len);
        memory[data_at..].copy_from_slice(&self.memory[self.data_at..][..data_len]);
        let first = Self {
            segment: Segment {
                len: data_len as u32,
                end_of_stream: false,
                ..self.segment
            },
            memory,
            data_at,
            symbol_len_max: symbol_len,
            tail: false,
        };
        // The header of the rest may overwrite the data that was split off.
        self.data_at += data_len;
        self.segment.offset += data_len as u64;
        self.segment.len -= data_len as u32;
        first
    }
}

/// A block that is going to be sent.
pub(crate) struct Block {
    /// n × symbol_len bytes: segments, padding.
    pub(crate) memory: PoolBuffer,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    /// The application ends a message or a stream here.
    pub(crate) tail: bool,
    /// Bytes of data.
    pub(crate) data_len: u64,
    /// Bytes that were copied to make it.
    pub(crate) copied: u64,
    pub(crate) parts: Vec<StreamPart>,
}

impl Block {
    /// Makes a block of pieces, at least one, which fit it together.
    pub(crate) fn new(pieces: Vec<Piece>, pool: &BufferPool) -> Self {
        let parts: Vec<StreamPart> = pieces.iter().map(Piece::part).collect();
        let filled = pieces.iter().map(Piece::bytes).sum();
        let symbol_len_max = pieces.first().map_or(1, Piece::symbol_len_max);
        let (n, symbol_len) = shape(filled, symbol_len_max);
        let len = usize::from(n) * usize::from(symbol_len);
        let tail = pieces.iter().any(Piece::is_tail);
        let data_len = pieces.iter().map(|piece| piece.data_len() as u64).sum();
        let mut copied = 0;
        let mut header = Vec::with_capacity(24);
        let mut memory = match <[Piece; 1]>::try_from(pieces) {
            // A single piece becomes the block in its own memory.
            Ok([piece]) => {
                piece.segment.encode(&mut header);
                let mut memory = piece.memory;
                let start = piece.data_at - header.len();
                if start > 0 {
                    memory.copy_within(start..start + filled, 0);
                    copied = filled as u64;
                }
                memory[..header.len()].copy_from_slice(&header);
                memory
            }
            Err(pieces) => {
                copied = data_len;
                let mut memory = pool.take(len);
                let mut at = 0;
                for piece in pieces {
                    header.clear();
                    piece.segment.encode(&mut header);
                    let data = &piece.memory[piece.data_at..][..piece.data_len()];
                    memory[at..][..header.len()].copy_from_slice(&header);
                    at += header.len();
                    memory[at..][..data.len()].copy_from_slice(data);
                    at += data.len();
                }
                memory
            }
        };
        memory[filled..len].fill(0);
        memory.resize(len);
        Self {
            memory,
            n,
            symbol_len,
            tail,
            data_len,
            copied,
            parts,
        }
    }
}

/// How far a finished stream has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The application has finished the stream; its last piece is queued.
    Queued,
    /// The core has the last piece.
    Submitted,
    /// The peer has all of it.
    Delivered,
    /// The stream has been given up.
    Reset,
}

/// One stream.
#[derive(Default)]
pub(crate) struct OutgoingStream<S> {
    pieces: VecDeque<Piece>,
    urgency: Urgency,
    /// Bytes that it has sent, as fairness counts them. A stream that had nothing to send is raised
    /// to what the others have reached meanwhile, so that it cannot catch up at their expense.
    served: u64,
    pub(crate) end: Option<StreamEnd>,
    /// The peer's application wants no more of it, for this reason.
    pub(crate) stopped: Option<u64>,
    /// The peer's application has taken all of it.
    has_ended: bool,
    /// The application has let go of it.
    has_no_writer: bool,
    /// Wakes the writer: a piece has left, or `end` has changed.
    pub(crate) signal: S,
}

impl<S> OutgoingStream<S> {
    /// Key by which streams with pieces are served in turn.
    fn turn(&self, id: StreamId) -> (Urgency, u64, StreamId) {
        (self.urgency, self.served, id)
    }

    /// Whether it may still be given up.
    pub(crate) fn is_resettable(&self) -> bool {
        !self.has_ended && !matches!(self.end, Some(StreamEnd::Delivered | StreamEnd::Reset))
    }

    /// Whether its writer is to be woken: only when no piece is left, and not for each one.
    pub(crate) fn is_drained(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// Pieces that wait for the window. The most urgent streams go first; equally urgent ones take turns, so that each gets as many bytes
/// as the others.
#[derive(Default)]
pub(crate) struct Outgoing<S> {
    /// Boxed, since nodes of the map reserve memory for entries that are not there.
    streams: BTreeMap<StreamId, Box<OutgoingStream<S>>>,
    /// Streams with pieces, the next one first: ordered by urgency, then by bytes sent (`served`).
    turns: BTreeSet<(Urgency, u64, StreamId)>,
    /// The `served` of the stream that had the last turn, by urgency.
    reached: [u64; Urgency::LEVELS],
    /// Streams with pieces that have no turn until [`Outgoing::release`].
    held_up: VecDeque<StreamId>,
}

/// What becomes of a stream's turn.
pub(crate) enum Turn {
    /// The piece leaves.
    Take,
    /// As much of it leaves as fits a block of this shape.
    TakePart(u16, u16),
    /// The stream has no turn before [`Outgoing::release`]; the next one has.
    HeldUp,
    /// Nobody has a turn now.
    Stop,
}

impl<S: Clone + Default> Outgoing<S> {
    /// The stream, which is added if it is new.
    pub(crate) fn stream(&mut self, stream: StreamId) -> &mut OutgoingStream<S> {
        self.streams.entry(stream).or_default()
    }

    /// The stream, if it is not over.
    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut OutgoingStream<S>> {
        self.streams.get_mut(&stream).map(Box::as_mut)
    }

    /// Whether there is such a stream.
    pub(crate) fn knows(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Streams with pieces.
    pub(crate) fn waiting(&self) -> usize {
        self.turns.len() + self.held_up.len()
    }

    /// How far the stream's end has come.
    pub(crate) fn end(&self, stream: StreamId) -> Option<StreamEnd> {
        self.streams.get(&stream)?.end
    }

    /// Why the peer's application wants no more of the stream.
    pub(crate) fn stopped(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream)?.stopped
    }

    /// The signals of all streams.
    pub(crate) fn signals(&self) -> impl Iterator<Item = S> {
        self.streams.values().map(|stream| stream.signal.clone())
    }

    /// How many pieces of the stream wait.
    pub(crate) fn queued(&self, stream: StreamId) -> usize {
        self.streams
            .get(&stream)
            .map_or(0, |stream| stream.pieces.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.held_up.is_empty()
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        let id = piece.stream();
        let open = self.streams.get_mut(&id);
        // A writer may still have cut a piece of a stream that was given up meanwhile: it is
        // dropped.
        let Some(stream) = open.filter(|stream| stream.end != Some(StreamEnd::Reset)) else {
            return;
        };
        if stream.pieces.is_empty() {
            stream.served = stream.served.max(self.reached[stream.urgency.at()]);
            self.turns.insert(stream.turn(id));
        }
        stream.pieces.push_back(piece);
    }

    /// How urgent the pieces of the stream are from now on.
    pub(crate) fn set_urgency(&mut self, id: StreamId, urgency: Urgency) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.urgency == urgency {
            // Setting it again would reset `served`, and so give the stream more than its share.
            return;
        }
        let has_turn = self.turns.remove(&stream.turn(id));
        stream.urgency = urgency;
        stream.served = self.reached[urgency.at()];
        if has_turn {
            self.turns.insert(stream.turn(id));
        }
    }

    /// The stream is given up: nothing of what waits leaves.
    pub(crate) fn reset(&mut self, id: StreamId) {
        self.held_up.retain(|other| *other != id);
        if let Some(stream) = self.streams.get_mut(&id) {
            self.turns.remove(&stream.turn(id));
            stream.pieces = VecDeque::new();
            stream.end = Some(StreamEnd::Reset);
        }
    }

    /// The peer's application has taken all of the stream.
    pub(crate) fn on_ended(&mut self, stream: StreamId) {
        if let Some(stream) = self.get_mut(stream) {
            stream.has_ended = true;
        }
        self.forget_ended(stream);
    }

    /// The application has let go of the stream.
    pub(crate) fn let_go(&mut self, stream: StreamId) {
        if let Some(stream) = self.get_mut(stream) {
            stream.has_no_writer = true;
        }
        self.forget_ended(stream);
    }

    fn forget_ended(&mut self, stream: StreamId) {
        let known = self.streams.get(&stream);
        if known.is_some_and(|stream| stream.has_ended && stream.has_no_writer) {
            self.streams.remove(&stream);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.held_up.clear();
        for stream in self.streams.values_mut() {
            stream.pieces = VecDeque::new();
        }
    }

    /// The next piece for which `decide` says so.
    pub(crate) fn next(
        &mut self,
        pool: &BufferPool,
        mut decide: impl FnMut(&Piece, Urgency) -> Turn,
    ) -> Option<Piece> {
        while let Some(&(urgency, _, id)) = self.turns.first() {
            let stream = self.streams.get_mut(&id)?;
            let first = stream.pieces.front_mut()?;
            match decide(first, urgency) {
                Turn::Take => return self.take_first(),
                Turn::TakePart(n, symbol_len) => {
                    let part = first.split((n, symbol_len), pool);
                    self.turns.pop_first();
                    self.served(id, &part);
                    return Some(part);
                }
                Turn::HeldUp => {
                    self.turns.pop_first();
                    self.held_up.push_back(id);
                }
                Turn::Stop => return None,
            }
        }
        None
    }

    /// The next piece in turn, whole, if it is wanted.
    pub(crate) fn next_if(
        &mut self,
        wanted: impl FnOnce(&Piece, Urgency) -> bool,
    ) -> Option<Piece> {
        let (urgency, _, id) = self.turns.first()?;
        let first = self.streams.get(id)?.pieces.front()?;
        if wanted(first, *urgency) {
            self.take_first()
        } else {
            None
        }
    }

    /// The first piece of the stream whose turn it is.
    fn take_first(&mut self) -> Option<Piece> {
        let (.., id) = self.turns.pop_first()?;
        let piece = self.streams.get_mut(&id)?.pieces.pop_front()?;
        self.served(id, &piece);
        Some(piece)
    }

    /// The stream has had a turn; it has another one if it has more pieces.
    fn served(&mut self, id: StreamId, piece: &Piece) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        self.reached[stream.urgency.at()] = stream.served;
        stream.served += piece.bytes() as u64;
        if stream.pieces.is_empty() {
            // The memory of the empty queue is freed: there may be ten thousand idle streams.
            stream.pieces = VecDeque::new();
        } else {
            self.turns.insert(stream.turn(id));
        }
    }

    /// Urgency of the next piece that has a turn.
    pub(crate) fn next_urgency(&self) -> Option<Urgency> {
        self.turns.first().map(|(urgency, ..)| *urgency)
    }

    /// The stream that has been held up for longest.
    pub(crate) fn held_up(&self) -> Option<StreamId> {
        self.held_up.front().copied()
    }

    /// Streams that were held up have turns again. As for idle ones, `served` is raised, so that
    /// they cannot catch up.
    pub(crate) fn release(&mut self) {
        for id in self.held_up.drain(..) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.served = stream.served.max(self.reached[stream.urgency.at()]);
                self.turns.insert(stream.turn(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sphinx_proto::Role;
    use sphinx_proto::wire::SegmentIter;

    use super::*;

    fn stream(index: u64) -> StreamId {
        StreamId::new(Role::Client, index)
    }

    fn piece(
        stream: StreamId,
        offset: u64,
        data: &[u8],
        symbol_len: u16,
        pool: &BufferPool,
    ) -> Piece {
        let data_at = Segment::header_len(stream, offset);
        let (n, symbol_len) = shape(data_at + data.len(), symbol_len);
        let mut memory = pool.take(usize::from(n) * usize::from(symbol_len));
        // What an earlier user of the buffer left in it, which must not leave as padding.
        memory.fill(0xff);
        memory[data_at..][..data.len()].copy_from_slice(data);
        let segment = Segment {
            stream,
            offset,
            len: data.len() as u32,
            end_of_stream: true,
        };
        Piece::new(segment, memory, data_at, symbol_len, true)
    }

    fn segments(block: &Block) -> Vec<(Segment, &[u8])> {
        let segments = SegmentIter::new(&block.memory).map(|s| s.expect("a segment"));
        let segments = segments.map(|(segment, data)| (segment, &block.memory[data]));
        segments.collect()
    }

    /// Whatever parts a piece leaves in, their segments and data are those of the whole.
    #[test]
    fn a_piece_leaves_in_parts() {
        let pool = BufferPool::new(0);
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        // The offset's encoding becomes longer on the way.
        let start = 16_000;
        let mut rest = piece(stream(3), start, &data, 100, &pool);
        let mut parts = vec![
            rest.split((3, 100), &pool),
            rest.split((1, 64), &pool),
            rest.split((1, 98), &pool),
        ];
        assert!(parts.iter().all(|part| !part.is_tail() && !part.is_last()));
        assert!(rest.is_tail() && rest.is_last());
        parts.push(rest);
        let mut got = Vec::new();
        for part in parts {
            let block = Block::new(vec![part], &pool);
            let len = usize::from(block.n) * usize::from(block.symbol_len);
            assert_eq!(block.memory.len(), len);
            let [(segment, bytes)] = segments(&block)[..] else {
                panic!("one segment");
            };
            assert_eq!(segment.offset, start + got.len() as u64);
            got.extend_from_slice(bytes);
        }
        assert_eq!(got, data);
    }

    #[test]
    fn pieces_of_several_streams_share_a_block() {
        let pool = BufferPool::new(0);
        let all: Vec<Vec<u8>> = (0..5).map(|i| vec![i; 90 + usize::from(i)]).collect();
        let pieces = (0..).zip(&all);
        let pieces = pieces.map(|(i, data)| piece(stream(i), 7 * i, data, 1000, &pool));
        let block = Block::new(pieces.collect(), &pool);
        assert_eq!(block.data_len, (90..95).sum());
        let got = segments(&block);
        assert_eq!(got.len(), 5);
        for (i, (segment, data)) in (0..).zip(got) {
            assert_eq!((segment.stream, segment.offset), (stream(i), 7 * i));
            assert_eq!(data, all[i as usize]);
            let part = block.parts[i as usize];
            assert_eq!(part.stream, stream(i));
            assert_eq!(part.bytes as usize, data.len() + 7);
        }
        let filled: u32 = block.parts.iter().map(|part| part.bytes).sum();
        assert!(
            block.memory[filled as usize..]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}
