//! What the application and the driver tell each other.

use sphinx_proto::wire::Preamble;
use sphinx_proto::{Event, Nanos, Room, Slot};

use super::{Driver, EndReason};
use crate::blocks::TxBlock;
use crate::executor::Executor;
use crate::incoming::Chunk;
use crate::outgoing::{ReadyBlock, StreamEnd, Turn};
use crate::pool::BufferPool;
use crate::protection::PacketProtection;
use crate::queues::{Application, Queues, SharedSlicer};
use crate::slicer::{PAUSE, Watch};

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Takes over what the application has left, and leaves what has happened; whether there was any of
    /// either.
    pub fn exchange<A: Application>(
        &mut self,
        now: Nanos,
        queues: &mut Queues<A>,
        pool: &BufferPool,
    ) -> bool {
        for slot in queues.released.drain(..) {
            self.release(now, slot);
        }
        let mut news = self.handle_events(now, queues);
        if let Some((code, reason)) = queues.close.take()
            && !queues.ended
        {
            news = true;
            self.core.close(now, code, &reason);
            self.end(EndReason::Closed { code, reason });
        }
        if self.has_ended && !queues.ended {
            news = true;
            queues.end();
        }
        if queues.ended {
            queues.outgoing.clear();
            queues.filling.clear();
        }
        news |= self.submit_ready(queues, pool);
        if self.watch_writers(queues, now, pool) {
            news |= self.submit_ready(queues, pool);
        }
        let outgoing = &mut queues.outgoing;
        self.core
            .set_backlog(!outgoing.is_empty(), outgoing.held_up());
        let changed = &mut queues.changed;
        self.ending.retain(|id| {
            let delivered = self.core.stream_delivered(*id);
            if delivered {
                let stream = outgoing.stream(*id);
                stream.end = Some(StreamEnd::Delivered);
                changed.push(stream.signal.clone());
            }
            !delivered
        });
        news
    }

    fn release(&mut self, now: Nanos, slot: Slot) {
        self.rx.release(slot);
        self.core.release(now, slot);
    }

    /// Whether there were any.
    fn handle_events<A: Application>(&mut self, now: Nanos, queues: &mut Queues<A>) -> bool {
        let mut any = false;
        while let Some(event) = self.core.poll_event() {
            any = true;
            match event {
                Event::BlockComplete {
                    stream,
                    block,
                    slot,
                } => self.assemble(now, (stream, block), slot, queues),
                Event::BlockDelivered { slot, .. } => {
                    let block = self.tx.remove(slot);
                    self.counters.bytes_delivered +=
                        block.map_or(0, |block| u64::from(block.data_len));
                }
                Event::Closed { code, reason } => {
                    self.end(EndReason::ClosedByPeer { code, reason });
                }
                Event::PathChanged(tuple) => {
                    self.source.on_path_changed();
                    self.path_changes.push(tuple);
                }
                Event::ConnectionIdRetired(cid) => self.retired.push(cid),
                Event::PeerLost => self.end(EndReason::PeerLost),
                Event::PeerGone => self.end(EndReason::PeerGone),
                Event::Stalled { held_up } => self.end(EndReason::Stalled { held_up }),
                Event::Violation(what) => self.violation(now, what),
            }
        }
        any
    }

    fn violation(&mut self, now: Nanos, what: &'static str) {
        self.core.close(now, 5, what);
        self.end(EndReason::Violation(what));
    }

    /// Give a complete block to its stream.
    fn assemble<A: Application>(
        &mut self,
        now: Nanos,
        (stream, block): (u16, u64),
        slot: Slot,
        queues: &mut Queues<A>,
    ) {
        self.windows.leaves(stream, block, slot, &self.rx);
        let Some(memory) = self.rx.remove(slot) else {
            return self.violation(now, "block without symbols");
        };
        let Ok(preamble) = Preamble::decode(&memory) else {
            return self.violation(now, "malformed block");
        };
        let incoming = queues.incoming.entry(stream).or_default();
        let assembler = self.assemblers.entry(stream).or_default();
        if !assembler.add(block, preamble, incoming) {
            return self.violation(now, "block out of place");
        }
        self.counters.bytes_received += u64::from(preamble.len);
        if incoming.abandoned {
            return self.release(now, slot);
        }
        let chunk = Chunk::new(memory, slot, preamble);
        incoming.blocks.insert(block, chunk);
        queues.changed.push(incoming.signal.clone());
    }

    /// Hand queued blocks to the core while there is room, those of one stream in their order; whether any was.
    /// A stream that is not read at the other end does not hold the others up.
    fn submit_ready<A: Application>(&mut self, queues: &mut Queues<A>, pool: &BufferPool) -> bool {
        let mut any = false;
        let news = self.core.window_news();
        if std::mem::replace(&mut self.window_news, news) != news {
            queues.outgoing.release();
        }
        self.waiting = None;
        loop {
            let (core, waiting) = (&self.core, &mut self.waiting);
            let decide = |block: &ReadyBlock| {
                let shape = (block.n, block.symbol_len);
                match core.room_for(block.stream, shape.0, shape.1) {
                    Room::Whole => Turn::Take,
                    Room::Part(n, symbol_len) => Turn::TakePart(n, symbol_len),
                    Room::HeldUp => Turn::HeldUp,
                    Room::Later => {
                        *waiting = Some((block.stream, shape.0, shape.1));
                        Turn::Stop
                    }
                }
            };
            let Some(block) = queues.outgoing.next(pool, decide) else {
                break;
            };
            let stream = queues.outgoing.stream(block.stream);
            queues.changed.push(stream.signal.clone());
            if block.is_last() {
                stream.end = Some(StreamEnd::Submitted);
                self.ending.push(block.stream);
            }
            self.submit(block);
            any = true;
        }
        any
    }

    /// Cut the blocks of writers that pause; whether there were any.
    fn watch_writers<A: Application>(
        &mut self,
        queues: &mut Queues<A>,
        now: Nanos,
        pool: &BufferPool,
    ) -> bool {
        let mut again: Option<Nanos> = None;
        let mut any = false;
        for slicer in std::mem::take(&mut queues.filling) {
            let watch = slicer
                .try_with(|slicer| slicer.watch(now, queues.has_room(slicer.stream()), pool))
                // Being written to at this moment.
                .unwrap_or(Watch::Again(PAUSE));
            match watch {
                Watch::Cut(block) => {
                    queues.outgoing.push(block);
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

    fn submit(&mut self, block: ReadyBlock) {
        let (stream, n, symbol_len, tail) = (block.stream, block.n, block.symbol_len, block.tail);
        let slot = self.tx.insert(TxBlock {
            n: usize::from(n),
            symbol_len: usize::from(symbol_len),
            data_len: block.preamble.len,
            memory: block.into_memory(),
            transformed: None,
        });
        self.core.submit(stream, slot, n, symbol_len, tail);
    }
}
