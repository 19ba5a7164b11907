//! What the application's threads and the engine tell each other.

use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use sphinx_proto::Nanos;

use super::{Association, STATS_INTERVAL};
use crate::blocks::TxBlock;
use crate::error::{Error, ErrorKind};
use crate::send_stream::{PAUSE, ReadyBlock, Watch};
use crate::shared::{Inner, StreamEnd};

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
            inner.ready.clear();
            inner.filling.clear();
        }
        news |= self.submit_ready(&mut inner);
        if self.watch_writers(&mut inner, now, clock) {
            news |= self.submit_ready(&mut inner);
        }
        self.waiting.clear();
        for block in &inner.ready {
            if self
                .waiting
                .iter()
                .all(|(stream, ..)| *stream != block.stream)
            {
                let (n, symbol_len) = (block.n, block.symbol_len);
                self.waiting.push((block.stream, n, symbol_len));
            }
        }
        self.core.set_backlog(!self.waiting.is_empty());
        for (stream, end) in &mut inner.ends {
            if *end == StreamEnd::Submitted && self.core.stream_delivered(*stream) {
                *end = StreamEnd::Delivered;
                news = true;
            }
        }
        if self.core.is_closed_by_peer() && !inner.close_answered {
            inner.close_answered = true;
            news = true;
        }
        if now >= self.stats_at || news {
            self.stats_at = now + STATS_INTERVAL;
            inner.stats = self.stats();
        }
        drop(inner);
        if news {
            shared.notify();
        }
    }

    /// Hand queued blocks to the core while there is room; whether any was.
    fn submit_ready(&mut self, inner: &mut Inner) -> bool {
        let mut any = false;
        while let Some(block) = self.next_ready(inner).and_then(|at| inner.ready.remove(at)) {
            if block.last {
                inner.ends.insert(block.stream, StreamEnd::Submitted);
            }
            self.submit(block);
            any = true;
        }
        any
    }

    /// The first queued block that may be submitted. Those of one stream keep their order; a stream that is
    /// not read at the other end does not hold the others up.
    fn next_ready(&self, inner: &Inner) -> Option<usize> {
        let mut held_up = Vec::new();
        inner.ready.iter().position(|block| {
            let (stream, n, symbol_len) = (block.stream, block.n, block.symbol_len);
            if held_up.contains(&stream) {
                return false;
            }
            let can = self.core.can_submit(stream, n, symbol_len);
            if !can {
                held_up.push(stream);
            }
            can
        })
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
                    inner.ready.push_back(block);
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
        let (n, symbol_len) = (block.n, block.symbol_len);
        let slot = self.tx.insert(TxBlock {
            memory: block.memory,
            n: usize::from(n),
            symbol_len: usize::from(symbol_len),
            data_len: block.data_len,
            transformed: None,
        });
        self.core
            .submit(block.stream, slot, n, symbol_len, block.tail);
    }
}
