//! What the application and the driver tell each other.

use std::ops::Range;

use sphinx_proto::wire::{DATAGRAMS_MAX, DatagramIter, Segment, SegmentIter};
use sphinx_proto::{Event, Nanos, PathNews, Room, Slot, StreamId, StreamPart, Time, Urgency};

use super::{Driver, EndReason};
use crate::blocks::TxBlock;
use crate::executor::Executor;
use crate::incoming::{Chunk, Incoming, Taken};
use crate::outgoing::{Block, Piece, StreamEnd, Turn, shape};
use crate::pool::{BufferPool, PoolBuffer};
use crate::protection::PacketProtection;
use crate::queues::{Application, Queues, SharedSlicer};
use crate::slicer::{PAUSE, Watch};

/// Pieces of a block have so many bytes on the average, all but one: each costs memory besides its data
/// (`docs/protocol.md` §5.1).
const SEGMENT_BYTES_MIN: usize = 256;
/// Pieces of all streams for which earlier ones are missing, besides those that two windows have room for: who reads as it comes, or wants no more of a stream, frees the
/// window of them, and their places are kept all the same. Twice the blocks that may be ahead of the first incomplete one (§11), behind which a sender's are.
const AHEAD_MAX: usize = 1 << 15;

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Takes over what the application has left in the queues, and leaves there what has happened. Returns whether anything passed in either direction.
    pub fn exchange<A: Application>(
        &mut self,
        now: Time,
        queues: &mut Queues<A>,
        pool: &BufferPool,
    ) -> bool {
        for taken in queues.released.drain(..) {
            self.release(now, taken);
        }
        for (stream, code) in queues.stops.drain(..) {
            self.core.stop_stream(stream, code);
        }
        self.reset_streams(queues);
        self.handle_datagrams(now, queues);
        let mut news = self.handle_events(now, queues, pool);
        news |= self.count_delivered(queues);
        news |= self.give_in_order(now, (queues, pool));
        self.reset_streams(queues);
        if let Some((code, reason)) = queues.close.take()
            && !queues.ended
        {
            news = true;
            self.closing = Some((code, reason.clone()));
            self.end(EndReason::Closed { code, reason });
        }
        if !self.is_provisional
            && let Some((code, reason)) = self.closing.take()
        {
            self.core.close(now, code, &reason);
        }
        if self.has_ended && !queues.ended {
            news = true;
            queues.end();
        }
        if queues.ended {
            queues.outgoing.clear();
            queues.datagrams.sending.clear();
            queues.filling.clear();
        }
        news |= self.submit_ready(now, queues, pool);
        if self.watch_writers(queues, now, pool) {
            news |= self.submit_ready(now, queues, pool);
        }
        self.tell_flows(queues);
        let has_more = !queues.outgoing.is_empty() || !queues.datagrams.sending.is_empty();
        let outgoing = &mut queues.outgoing;
        self.core.set_backlog(has_more, outgoing.held_up());
        self.delivered.append(&mut self.core.take_delivered());
        if !self.is_provisional {
            for id in self.delivered.drain(..) {
                if self.ending.remove(&id)
                    && let Some(stream) = outgoing.get_mut(id)
                {
                    stream.end = Some(StreamEnd::Delivered);
                    queues.changed.push(stream.signal.clone());
                }
            }
        }
        news
    }

    pub(super) fn release(&mut self, now: Time, taken: Taken) {
        self.rx.release(taken.cost);
        self.core.taken(now, taken.stream, taken.cost);
    }

    /// Handles the core's events. Returns whether there were any.
    fn handle_events<A: Application>(
        &mut self,
        now: Time,
        queues: &mut Queues<A>,
        pool: &BufferPool,
    ) -> bool {
        let mut any = false;
        while let Some(event) = self.core.poll_event() {
            any = true;
            match event {
                Event::BlockComplete { slot, .. } => {
                    self.assemble(now, slot, (queues, pool));
                }
                Event::BlockDelivered { slot } => {
                    let block = self.tx.remove(slot);
                    if let Some(block) = block {
                        self.confirmed.0 += block.data_len;
                        self.confirmed.1 += block.datagrams.len() as u64;
                    }
                }
                Event::BlockAbandoned { slot } => {
                    if let Some(block) = self.tx.remove(slot) {
                        queues.datagrams.sending.on_lost(&block.datagrams);
                    }
                }
                Event::Flow(news) => self.hear_of_flow(now, news, queues),
                Event::StreamEnded(stream) => queues.on_ended(stream),
                Event::StreamReset { stream, code } => self.drop_unread(now, stream, code, queues),
                Event::StreamOver(stream) => {
                    let over = queues.incoming.remove(&stream);
                    self.ahead -= over.map_or(0, |over| over.ahead());
                }
                Event::StreamStopped { stream, code } => queues.on_stopped(stream, code),
                Event::Closed { code, reason } => {
                    self.end(EndReason::ClosedByPeer { code, reason });
                }
                Event::PathChanged(tuple) => {
                    self.source.on_path_changed();
                    self.path_changes.push(tuple);
                }
                Event::Path(path, news) => {
                    if matches!(news, PathNews::Abandoned | PathNews::Spent) {
                        self.lanes.forget(path);
                    }
                    self.path_news.push((path, news));
                }
                Event::ConnectionIdRetired(cid) => self.retired.push(cid),
                Event::PeerLost => self.end(EndReason::PeerLost),
                Event::OutOfBudget => self.end(EndReason::OutOfBudget),
                Event::PeerGone => self.end(EndReason::PeerGone),
                Event::Stalled { held_up } => self.end(EndReason::Stalled { held_up }),
                Event::Violation(what) => self.violation(now, what),
            }
        }
        any
    }

    /// Counts what the peer has confirmed as delivered, once the peer is certain. Returns whether there was anything to count.
    fn count_delivered<A: Application>(&mut self, queues: &mut Queues<A>) -> bool {
        if self.is_provisional || self.confirmed == (0, 0) {
            return false;
        }
        let (bytes, datagrams) = std::mem::take(&mut self.confirmed);
        self.counters.bytes_delivered += bytes;
        queues.datagrams.sending.on_delivered(datagrams);
        true
    }

    /// Resets the streams that the application has given up, or that the peer's application wants no more of.
    fn reset_streams<A: Application>(&mut self, queues: &mut Queues<A>) {
        for (stream, code) in queues.resets.drain(..) {
            self.ending.remove(&stream);
            self.core.reset_stream(stream, code);
        }
    }

    /// The peer gives a stream up: what has arrived and was not read is not wanted either.
    fn drop_unread<A: Application>(
        &mut self,
        now: Time,
        stream: StreamId,
        code: u64,
        queues: &mut Queues<A>,
    ) {
        let incoming = queues.incoming.entry(stream).or_default();
        incoming.reset = Some(code);
        self.ahead -= incoming.forget_ahead();
        queues.changed.push(incoming.signal.clone());
        let unread = std::mem::take(&mut incoming.chunks);
        for chunk in unread.into_values() {
            self.release(now, chunk.into_taken());
        }
    }

    pub(super) fn violation(&mut self, now: Time, what: &'static str) {
        self.core.close(now, 5, what);
        self.end(EndReason::Violation(what));
    }

    /// Give what a complete block holds to its streams.
    fn assemble<A: Application>(
        &mut self,
        now: Time,
        slot: Slot,
        (queues, pool): (&mut Queues<A>, &BufferPool),
    ) {
        let Some((memory, cost)) = self.rx.remove(slot) else {
            return self.violation(now, "block without symbols");
        };
        if let Some(datagrams) = DatagramIter::new(&memory) {
            let datagrams = datagrams.take(1 + DATAGRAMS_MAX).collect();
            self.core.block_unpacked(now, slot, &mut []);
            self.rx.release(cost);
            return self.give_datagrams(now, memory, datagrams, (queues, pool));
        }
        let (segments, mut parts) = match unpack(&memory) {
            Ok(unpacked) => unpacked,
            Err(what) => return self.violation(now, what),
        };
        if !self.core.block_unpacked(now, slot, &mut parts) {
            return;
        }
        if parts.is_empty() {
            self.rx.release(cost);
        }
        self.give_segments(now, memory, (segments, &parts), (queues, pool));
    }

    /// Gives these segments to their streams; they lie in `memory`.
    pub(super) fn give_segments<A: Application>(
        &mut self,
        now: Time,
        memory: PoolBuffer,
        (segments, parts): (Vec<(Segment, Range<usize>)>, &[StreamPart]),
        (queues, pool): (&mut Queues<A>, &BufferPool),
    ) {
        let mut whole = Some(memory);
        let mut over = Vec::new();
        for ((segment, data), part) in segments.into_iter().zip(parts) {
            let incoming = queues.incoming.entry(segment.stream).or_default();
            let has_ended = match self.put_in_order(incoming, &segment) {
                Ok(has_ended) => has_ended,
                Err(what) => return self.violation(now, what),
            };
            if incoming.abandoned || incoming.reset.is_some() {
                if has_ended && incoming.abandoned {
                    over.push(segment.stream);
                }
                let (stream, cost) = (segment.stream, part.cost);
                self.release(now, Taken { stream, cost });
                continue;
            }
            let chunk = match whole.take_if(|_| parts.len() == 1) {
                Some(memory) => Chunk::new(memory, data.start, &segment, part.cost),
                // One that is not read must not keep the memory of the others.
                None => {
                    self.counters.copied_bytes += data.len() as u64;
                    let mut own = pool.take(data.len());
                    own.copy_from_slice(whole.as_ref().map_or(&[], |block| &block[data]));
                    Chunk::new(own, 0, &segment, part.cost)
                }
            };
            incoming.chunks.insert(segment.offset, chunk);
            queues.changed.push(incoming.signal.clone());
        }
        // Only now: the block must not hold more of them.
        for stream in over {
            queues.incoming.remove(&stream);
        }
    }

    /// A piece of this stream has arrived: whether all of the stream has, to its end.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn put_in_order<S>(
        &mut self,
        incoming: &mut Incoming<S>,
        piece: &Segment,
    ) -> Result<bool, &'static str> {
        self.counters.bytes_received += u64::from(piece.len);
        if incoming.reset.is_some() {
            // What still arrives of a reset stream is dropped, in any order.
            return Ok(false);
        }
        let before = incoming.ahead();
        if !incoming.add(piece) {
            return Err("data out of place");
        }
        self.ahead = self.ahead + incoming.ahead() - before;
        let in_window = self.core.recv_window_cost() as usize / SEGMENT_BYTES_MIN;
        if self.ahead > AHEAD_MAX + 2 * in_window {
            return Err("too many gaps in streams");
        }
        let has_ended = incoming.has_ended();
        if has_ended {
            self.core.stream_whole(piece.stream);
        }
        Ok(has_ended)
    }

    /// Hand queued pieces to the core while there is room, those of one stream in their order; whether any was.
    /// A stream that is not read at the other end does not hold the others up.
    fn submit_ready<A: Application>(
        &mut self,
        now: Time,
        queues: &mut Queues<A>,
        pool: &BufferPool,
    ) -> bool {
        let mut any = false;
        let news = self.core.window_news();
        if std::mem::replace(&mut self.window_news, news) != news {
            queues.outgoing.release();
        }
        self.waiting = None;
        loop {
            if self.submit_datagrams(now, queues, pool) {
                any = true;
                continue;
            }
            let (core, waiting) = (&self.core, &mut self.waiting);
            let mut is_whole = false;
            let mut of = Urgency::default();
            let decide = |piece: &Piece, urgency| {
                of = urgency;
                match core.room_for(piece.stream(), urgency, piece.shape()) {
                    Room::Whole => {
                        is_whole = true;
                        Turn::Take
                    }
                    Room::Part(n, symbol_len) => Turn::TakePart(n, symbol_len),
                    Room::HeldUp => Turn::HeldUp,
                    Room::Later => {
                        *waiting = Some((piece.stream(), urgency, piece.shape()));
                        Turn::Stop
                    }
                }
            };
            let Some(first) = queues.outgoing.next(pool, decide) else {
                break;
            };
            let mut pieces = vec![first];
            if is_whole {
                self.join(&mut pieces, of, queues);
            }
            for piece in &pieces {
                let stream = queues.outgoing.stream(piece.stream());
                if stream.is_drained() {
                    queues.changed.push(stream.signal.clone());
                }
                if piece.is_last() {
                    stream.end = Some(StreamEnd::Submitted);
                    self.ending.insert(piece.stream());
                }
            }
            let block = Block::new(pieces, pool);
            // The part that leaves was copied when it was cut off its piece.
            let cut = if is_whole { 0 } else { block.data_len };
            self.counters.copied_bytes += block.copied + cut;
            self.datagrams_lead -= block.data_len as i64;
            self.submit(block, of);
            any = true;
        }
        any
    }

    /// Takes the next pieces too if they share a packet with the first one: ends of messages of different streams that are equally
    /// urgent. Larger pieces gain nothing by sharing a block, and would have to be copied.
    fn join<A: Application>(&self, pieces: &mut Vec<Piece>, of: Urgency, queues: &mut Queues<A>) {
        let Some(first) = pieces.first().filter(|first| first.is_tail()) else {
            return;
        };
        let symbol_len_max = first.symbol_len_max();
        let mut bytes = first.bytes();
        let mut parts = vec![first.part()];
        loop {
            let shares = |piece: &Piece, urgency| {
                let sum = bytes + piece.bytes();
                if urgency != of
                    || !piece.is_tail()
                    || sum > usize::from(symbol_len_max)
                    || parts.len() > sum / SEGMENT_BYTES_MIN
                    || parts.iter().any(|part| part.stream == piece.stream())
                {
                    return false;
                }
                parts.push(piece.part());
                let shape = shape(sum, symbol_len_max);
                let fits = self.core.can_submit(shape, of, &mut parts);
                if fits {
                    bytes = sum;
                } else {
                    parts.pop();
                }
                fits
            };
            match queues.outgoing.next_if(shares) {
                Some(piece) => pieces.push(piece),
                None => return,
            }
        }
    }

    /// Queues what applications that pause in writing have written so far. Returns whether there was any.
    fn watch_writers<A: Application>(
        &mut self,
        queues: &mut Queues<A>,
        now: Time,
        pool: &BufferPool,
    ) -> bool {
        let mut again: Option<Nanos> = None;
        let mut any = false;
        let pause = self.core.pause().unwrap_or(PAUSE);
        for slicer in std::mem::take(&mut queues.filling) {
            let watch = slicer
                .try_with(|slicer| {
                    slicer.watch((now, pause), queues.has_room(slicer.stream()), pool)
                })
                // Its writer has the lock at this moment: it does not pause.
                .unwrap_or(Watch::Again(PAUSE));
            match watch {
                Watch::Cut(piece) => {
                    queues.outgoing.push(piece);
                    any = true;
                }
                Watch::Again(after) => {
                    again = Some(again.map_or(after, |sooner| sooner.min(after)));
                    queues.filling.push(slicer);
                }
                Watch::Full => queues.filling.push(slicer),
                Watch::Empty => {}
            }
        }
        self.pause_at = again.map(|after| now + after);
        any
    }

    fn submit(&mut self, block: Block, urgency: Urgency) {
        let (shape, tail, mut parts) = ((block.n, block.symbol_len), block.tail, block.parts);
        let (memory, data_len) = (block.memory, block.data_len);
        let sent = match self.core.sc() {
            Some(_) => TxBlock::generation(memory, shape, data_len),
            None => TxBlock::new(memory, shape, data_len, Vec::new()),
        };
        let slot = self.tx.insert(sent);
        self.core.submit(slot, shape, (tail, urgency), &mut parts);
    }
}

/// The segments of a block, each with the range of its data in the block, and the parts of streams that they are to the core.
pub(super) type Unpacked = (Vec<(Segment, Range<usize>)>, Vec<StreamPart>);

/// Reads the segments of a block.
///
/// # Errors
/// What is wrong with it, in words for the peer: such a block breaks the protocol.
pub(super) fn unpack(block: &[u8]) -> Result<Unpacked, &'static str> {
    let most = 1 + block.len() / SEGMENT_BYTES_MIN;
    let segments: Result<Vec<_>, _> = SegmentIter::new(block).take(most + 1).collect();
    let segments = segments.map_err(|_| "malformed block")?;
    if segments.len() > most {
        return Err("block of too many pieces");
    }
    let mut begin = 0;
    let part = |(segment, data): &(Segment, Range<usize>)| {
        let bytes = (data.end - begin) as u32;
        begin = data.end;
        StreamPart {
            stream: segment.stream,
            bytes,
            end_of_stream: segment.end_of_stream,
            cost: 0,
        }
    };
    let parts = segments.iter().map(part).collect();
    Ok((segments, parts))
}
