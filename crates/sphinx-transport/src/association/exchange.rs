//! What the application's threads and the engine tell each other.

use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use sphinx_proto::{Nanos, Room};

use super::{Association, STATS_INTERVAL};
use crate::blocks::TxBlock;
use crate::error::{Error, ErrorKind};
use crate::outgoing::{ReadyBlock, StreamEnd, Turn};
use crate::send_stream::{PAUSE, Watch};
use crate::shared::Inner;

impl Association {
    /// Take over what the application's threads have left, and tell them what happened.
    pub(super) fn exchange(&mut self, now: Nanos, clock: Instant) {
        let shared = Arc::clone(&self.shared);
        shared.answer();
        let mut inner = shared.lock();
        for slot in inner.released.drain(..) {
            self.core.release(now, slot);
        }
        let mut news = self.handle_events(now, &mut inner);
        if let Some(profile) = inner.profile.take() {
            self.core.set_profile(profile.core());
            self.stats_names.profile = profile.name();
            news = true;
        }
        if let Some((code, reason)) = inner.close.take()
            && inner.closed.is_none()
        {
            news = true;
            self.core.close(now, code, &reason);
            let error = Error::new(ErrorKind::Interrupted, "the session was closed at this end");
            self.end_in(&mut inner, error);
            self.farewell = (code, reason);
        }
        if inner.closed.is_some() {
            inner.outgoing.clear();
            inner.filling.clear();
        }
        news |= self.submit_ready(&mut inner);
        if self.watch_writers(&mut inner, now, clock) {
            news |= self.submit_ready(&mut inner);
        }
        self.core
            .set_backlog(!inner.outgoing.is_empty(), inner.outgoing.held_up());
        let Inner {
            outgoing, changed, ..
        } = &mut *inner;
        self.ending.retain(|id| {
            let delivered = self.core.stream_delivered(*id);
            if delivered && let Some(stream) = outgoing.streams.get_mut(id) {
                stream.end = Some(StreamEnd::Delivered);
                changed.push(Arc::clone(&stream.changed));
            }
            !delivered
        });
        self.shared.set_shape(self.core.block_shape(inner.writers));
        if self.core.is_closed_by_peer() && !inner.close_answered {
            inner.close_answered = true;
            news = true;
        }
        if now >= self.stats_at || news {
            self.stats_at = now + STATS_INTERVAL;
            inner.stats = self.stats();
        }
        let silent = Duration::from_nanos(now.saturating_sub(self.core.last_received()));
        inner.heard_at = clock.checked_sub(silent);
        if news || !inner.changed.is_empty() {
            shared.notify(inner);
        }
    }

    /// Hand queued blocks to the core while there is room, those of one stream in their order; whether any was.
    /// A stream that is not read at the other end does not hold the others up.
    fn submit_ready(&mut self, inner: &mut Inner) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut any = false;
        let news = self.core.window_news();
        if std::mem::replace(&mut self.window_news, news) != news {
            inner.outgoing.release();
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
            let Some(block) = inner.outgoing.next(shared.pool(), decide) else {
                break;
            };
            if let Some(stream) = inner.outgoing.streams.get_mut(&block.stream) {
                inner.changed.push(Arc::clone(&stream.changed));
                if block.is_last() {
                    stream.end = Some(StreamEnd::Submitted);
                    self.ending.push(block.stream);
                }
            }
            self.submit(block);
            any = true;
        }
        any
    }

    /// Cut the blocks of writers that pause; whether there were any.
    fn watch_writers(&mut self, inner: &mut Inner, now: Nanos, clock: Instant) -> bool {
        let mut again: Option<Duration> = None;
        let mut any = false;
        for slicer in std::mem::take(&mut inner.filling) {
            let watch = match slicer.try_lock() {
                Ok(mut slicer) => slicer.watch(&self.shared, clock, inner),
                Err(TryLockError::Poisoned(slicer)) => {
                    slicer.into_inner().watch(&self.shared, clock, inner)
                }
                // Being written to at this moment.
                Err(TryLockError::WouldBlock) => Watch::Again(PAUSE),
            };
            match watch {
                Watch::Cut(block) => {
                    inner.outgoing.push(block);
                    any = true;
                }
                Watch::Again(after) => {
                    again = Some(again.map_or(after, |sooner| sooner.min(after)));
                    inner.filling.push(slicer);
                }
                Watch::Full => inner.filling.push(slicer),
                Watch::Empty => {}
            }
        }
        self.pause_at = again.map(|after| now + after.as_nanos() as Nanos);
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
