//! What packets take of an end's processor, where that is to have a limit.

use std::collections::VecDeque;

use sphinx_link::Datagram;
use sphinx_proto::Nanos;

/// Bytes that a socket holds for a program that is not ready for them; what else arrives is dropped. As `sphinx-net` asks for.
const SOCKET_BYTES: usize = 8 << 20;

/// What an end's one processor takes for each datagram; nothing: it has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Processor {
    /// Time for a datagram that it sends, nanoseconds.
    pub send: Nanos,
    /// Time for a datagram that it receives, nanoseconds.
    pub receive: Nanos,
}

/// A processor at work: one thing after the other, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    takes: Processor,
    /// When it has done everything that it has begun.
    free_at: Nanos,
    /// Datagrams that nobody has looked at, and their bytes.
    waiting: VecDeque<Datagram>,
    waiting_bytes: usize,
    /// Datagrams that leave once they are done.
    leaving: VecDeque<(Nanos, Datagram)>,
    /// How long it has worked.
    pub(crate) worked: Nanos,
    /// Datagrams for which the socket had no room.
    pub(crate) dropped: u64,
}

impl Busy {
    pub(crate) fn new(takes: Processor) -> Self {
        Self {
            takes,
            ..Self::default()
        }
    }

    /// Whether anything takes time.
    pub(crate) fn is_limited(&self) -> bool {
        self.takes != Processor::default()
    }

    pub(crate) fn is_free(&self, now: Nanos) -> bool {
        self.free_at <= now
    }

    fn work(&mut self, now: Nanos, time: Nanos) -> Nanos {
        self.worked += time;
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }

    /// A datagram has arrived at the socket.
    pub(crate) fn arrive(&mut self, datagram: Datagram) {
        let bytes = datagram.payload.len();
        if self.waiting_bytes + bytes > SOCKET_BYTES {
            self.dropped += 1;
            return;
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(datagram);
    }

    /// The next one that it has time for, which it takes.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Datagram> {
        if !self.is_free(now) {
            return None;
        }
        let datagram = self.waiting.pop_front()?;
        self.waiting_bytes -= datagram.payload.len();
        self.work(now, self.takes.receive);
        Some(datagram)
    }

    /// A datagram is to leave.
    pub(crate) fn send(&mut self, now: Nanos, datagram: Datagram) {
        let at = self.work(now, self.takes.send);
        self.leaving.push_back((at, datagram));
    }

    /// The next datagram that leaves now.
    pub(crate) fn left(&mut self, now: Nanos) -> Option<Datagram> {
        let is_due = self.leaving.front().is_some_and(|(at, _)| *at <= now);
        let (_, datagram) = is_due.then(|| self.leaving.pop_front())??;
        Some(datagram)
    }

    /// When something happens here; `wanted` is when the end has something to do.
    pub(crate) fn next_event(&self, wanted: Option<Nanos>) -> Option<Nanos> {
        let leaves = self.leaving.front().map(|(at, _)| *at);
        let waits = (!self.waiting.is_empty()).then_some(self.free_at);
        let works = wanted.map(|at| at.max(self.free_at));
        [leaves, waits, works].into_iter().flatten().min()
    }
}
