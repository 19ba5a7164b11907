//! What an application and the driver of its session leave for each other.
//!
//! The application's side may be many threads: whoever owns [`Queues`] puts a lock around them. Nothing here
//! waits. What the application leaves is fetched by [`Driver::exchange`](crate::Driver::exchange), which is
//! due when [`Queues::take_wanted`] says so; what the driver leaves is told by the signals of
//! [`Queues::take_changed`].

mod datagrams;

use std::collections::BTreeMap;

use sphinx_proto::{Nanos, Role, StreamId, Urgency};

use crate::datagrams::Datagrams;
use crate::incoming::{Chunk, Incoming, Taken};
use crate::outgoing::{Outgoing, Piece, StreamEnd};
use crate::slicer::Slicer;

/// Bytes that datagrams may hold which have arrived and were not taken, unless there is a [lower
/// limit](Queues::limit_datagrams).
pub const DATAGRAM_BYTES: usize = 5 << 20;
/// Pieces of one stream that wait for the window before its writer has to wait.
pub const READY_PER_STREAM: usize = 2;

/// How a driver reaches the application.
pub trait Application {
    /// Wakes whoever waits for news of one stream.
    type Signal: Clone + Default;
    /// A stream's slicer, which its writer and the driver share.
    type Slicer: SharedSlicer;
}

/// A slicer that its writer and a driver share.
pub trait SharedSlicer {
    /// Lets `look` see the slicer; `None` if it is being written to at this moment.
    fn try_with<R>(&self, look: impl FnOnce(&mut Slicer) -> R) -> Option<R>;
}

/// Streams with one direction, or with two.
#[derive(Debug, Default)]
struct Opening {
    /// Streams that the application has opened, and those of them that have ended.
    opened: u64,
    ended: u64,
    /// Streams of the peer that the application has accepted.
    accepted: u64,
}

impl Opening {
    fn can_open(&self, open_max: u64) -> bool {
        self.opened - self.ended < open_max
    }

    /// Index of the next stream to open, if there may be another one.
    fn open(&mut self, open_max: u64) -> Option<u64> {
        let index = self.opened;
        self.can_open(open_max).then(|| {
            self.opened += 1;
            index
        })
    }
}

/// The queues of one session.
pub struct Queues<A: Application> {
    pub(crate) outgoing: Outgoing<A::Signal>,
    /// Slicers with an open piece.
    pub(crate) filling: Vec<A::Slicer>,
    role: Role,
    /// Streams of each kind that the peer lets this end have open at a time.
    open_max: u64,
    uni: Opening,
    bi: Opening,
    /// Boxed, since nodes of the map reserve memory for entries that are not there: nearly half of
    /// them, where streams are opened one after the other.
    pub(crate) incoming: BTreeMap<StreamId, Box<Incoming<A::Signal>>>,
    /// Parts that the application has read, whose places in the window are free.
    pub(crate) released: Vec<Taken>,
    /// Streams that the application has given up, and those that it has stopped reading, each with its reason.
    pub(crate) resets: Vec<(StreamId, u64)>,
    pub(crate) stops: Vec<(StreamId, u64)>,
    pub(crate) datagrams: Datagrams<A::Signal>,
    /// Flows of live messages, and how long their messages are to be of use, which the peer is to
    /// be told.
    pub(crate) latencies: Vec<(u64, Nanos)>,
    pub(crate) close: Option<(u64, String)>,
    pub(crate) ended: bool,
    /// Signals to notify.
    pub(crate) changed: Vec<A::Signal>,
    wanted: bool,
}

impl<A: Application> Queues<A> {
    /// The queues of a new session, in which the peer allows this end `open_max` open streams of
    /// each kind at a time.
    pub fn new(role: Role, open_max: u64) -> Self {
        Self {
            outgoing: Outgoing::default(),
            filling: Vec::new(),
            role,
            open_max,
            uni: Opening::default(),
            bi: Opening::default(),
            incoming: BTreeMap::new(),
            released: Vec::new(),
            resets: Vec::new(),
            stops: Vec::new(),
            datagrams: Datagrams::new(DATAGRAM_BYTES),
            latencies: Vec::new(),
            close: None,
            ended: false,
            changed: Vec::new(),
            wanted: false,
        }
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Streams of each kind that may be open at a time.
    pub fn open_max(&self) -> u64 {
        self.open_max
    }

    /// The peer has said how many streams of each kind it allows; a smaller number was assumed
    /// before.
    pub fn set_open_max(&mut self, open_max: u64) {
        self.open_max = open_max;
    }

    /// The application opens the next stream with one direction; `None` while as many are open as there may be.
    pub fn open_uni(&mut self) -> Option<StreamId> {
        let index = self.uni.open(self.open_max)?;
        let stream = StreamId::new(self.role, index);
        self.outgoing.stream(stream);
        Some(stream)
    }

    /// The application opens the next stream with two directions; `None` while as many are open as there may be.
    pub fn open_bi(&mut self) -> Option<StreamId> {
        let index = self.bi.open(self.open_max)?;
        let stream = StreamId::bi(self.role, index);
        self.outgoing.stream(stream);
        self.incoming(stream);
        Some(stream)
    }

    /// Notified when a piece of the stream has left, or when its end changes.
    pub fn sending_signal(&mut self, stream: StreamId) -> A::Signal {
        self.outgoing.stream(stream).signal.clone()
    }

    /// How urgent the stream is from now on. What has been handed over before stays as urgent as it was.
    pub fn set_urgency(&mut self, stream: StreamId, urgency: Urgency) {
        self.outgoing.set_urgency(stream, urgency);
    }

    /// Whether another stream with one direction may be opened.
    pub fn can_open_uni(&self) -> bool {
        self.uni.can_open(self.open_max)
    }

    /// Whether another stream with two directions may be opened.
    pub fn can_open_bi(&self) -> bool {
        self.bi.can_open(self.open_max)
    }

    /// The application has written all that it will; nothing happens to a stream that was given up.
    pub fn finish_sending(&mut self, stream: StreamId) {
        let outgoing = self.outgoing.stream(stream);
        if outgoing.end.is_none() {
            outgoing.end = Some(StreamEnd::Queued);
        }
    }

    /// The application gives up a stream, whether it is finished or not; `code` is its reason,
    /// below 2^62. Nothing happens to a stream that is delivered.
    pub fn reset(&mut self, stream: StreamId, code: u64) {
        let Some(outgoing) = self.outgoing.get_mut(stream) else {
            return;
        };
        if !outgoing.is_resettable() {
            return;
        }
        self.outgoing.reset(stream);
        self.resets.push((stream, code));
        self.wanted = true;
    }

    /// Why the peer's application wants no more of a stream, if that is so.
    pub fn stopped(&self, stream: StreamId) -> Option<u64> {
        self.outgoing.stopped(stream)
    }

    /// The application has let go of a stream. If it is not finished it is given up, so that what
    /// has arrived of it cannot be taken for the whole.
    pub fn stop_sending(&mut self, stream: StreamId) {
        if self.outgoing.end(stream).is_none() {
            self.reset(stream, 0);
        }
        self.outgoing.let_go(stream);
    }

    /// The peer's application has taken all of a stream: another one may be opened, if this end has opened it.
    pub(crate) fn on_ended(&mut self, stream: StreamId) {
        if stream.opener() == self.role {
            match stream.is_bi() {
                true => self.bi.ended += 1,
                false => self.uni.ended += 1,
            }
        }
        self.outgoing.on_ended(stream);
    }

    /// The peer's application wants no more of a stream.
    pub(crate) fn on_stopped(&mut self, stream: StreamId, code: u64) {
        if stream.opener() != self.role && !self.outgoing.knows(stream) {
            // A stream with two directions that the peer has opened, and of which nothing else may
            // have arrived yet.
            self.incoming(stream);
            self.outgoing.stream(stream);
        }
        let outgoing = self.outgoing.get_mut(stream);
        if let Some(outgoing) = outgoing.filter(|outgoing| outgoing.is_resettable()) {
            outgoing.stopped = Some(code);
            self.changed.push(outgoing.signal.clone());
            self.reset(stream, code);
        }
    }

    /// Streams with something to send, or to which something is being written.
    pub fn writers(&self) -> u64 {
        (self.outgoing.waiting() + self.filling.len()) as u64
    }

    /// Whether the stream may queue another piece.
    pub fn has_room(&self, stream: StreamId) -> bool {
        self.outgoing.queued(stream) < READY_PER_STREAM
    }

    /// Queues a piece; the application asks [`has_room`](Self::has_room) first.
    pub fn push(&mut self, piece: Piece) {
        self.outgoing.push(piece);
        self.wanted = true;
    }

    /// The driver is to check whether the writer of this slicer pauses, so that what it has begun
    /// leaves.
    pub fn watch(&mut self, slicer: A::Slicer) {
        self.filling.push(slicer);
        self.wanted = true;
    }

    /// How far the end of a stream has come; `None` while it may be written to.
    pub fn stream_end(&self, stream: StreamId) -> Option<StreamEnd> {
        self.outgoing.end(stream)
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// The next stream with one direction that the peer has opened, in the order of ids.
    pub fn accept_uni(&mut self) -> Option<StreamId> {
        let stream = self.next_uni();
        self.can_accept_uni().then(|| {
            self.uni.accepted += 1;
            stream
        })
    }

    /// The next stream with two directions that the peer has opened, in the order of ids.
    pub fn accept_bi(&mut self) -> Option<StreamId> {
        let stream = self.next_bi();
        self.can_accept_bi().then(|| {
            self.bi.accepted += 1;
            self.outgoing.stream(stream);
            stream
        })
    }

    /// Whether the peer has opened a stream with one direction that the application has not accepted.
    pub fn can_accept_uni(&self) -> bool {
        self.incoming.contains_key(&self.next_uni())
    }

    /// Whether the peer has opened a stream with two directions that the application has not accepted.
    pub fn can_accept_bi(&self) -> bool {
        self.incoming.contains_key(&self.next_bi())
    }

    fn next_uni(&self) -> StreamId {
        StreamId::new(self.role.other(), self.uni.accepted)
    }

    fn next_bi(&self) -> StreamId {
        StreamId::bi(self.role.other(), self.bi.accepted)
    }

    /// What has arrived of a stream.
    pub fn incoming(&mut self, stream: StreamId) -> &mut Incoming<A::Signal> {
        self.incoming.entry(stream).or_default()
    }

    /// Pieces of streams that nobody has taken.
    pub fn arrived(&self) -> impl Iterator<Item = (StreamId, &Chunk)> {
        self.incoming.iter().flat_map(|(stream, incoming)| {
            let chunks = incoming.chunks.values();
            chunks.map(|chunk| (*stream, chunk))
        })
    }

    /// Notified when more of the stream has arrived.
    pub fn signal_of(&mut self, stream: StreamId) -> A::Signal {
        self.incoming(stream).signal.clone()
    }

    /// A piece has been read: its place in the window is free.
    pub fn release(&mut self, taken: Taken) {
        self.released.push(taken);
        self.wanted = true;
    }

    /// Nobody reads the stream any more: what has arrived of it, and will arrive, must not fill the
    /// window. `last` is a piece that was taken and not read; `code`, below 2^62, tells the peer
    /// why, if it has more to send.
    pub fn abandon(&mut self, stream: StreamId, last: Option<Chunk>, code: u64) {
        self.stops.push((stream, code));
        self.released.extend(last.map(Chunk::into_taken));
        if let Some(incoming) = self.incoming.get_mut(&stream) {
            incoming.abandoned = true;
            let chunks = std::mem::take(&mut incoming.chunks);
            self.released
                .extend(chunks.into_values().map(Chunk::into_taken));
            if incoming.has_ended() {
                self.incoming.remove(&stream);
            }
        }
        self.wanted = true;
    }

    // ---- the end ------------------------------------------------------------------------------

    /// The application ends the session; the first time counts. `code` is below 2^62.
    pub fn close(&mut self, code: u64, reason: &str) {
        if !self.ended && self.close.is_none() {
            self.close = Some((code, reason.to_owned()));
            self.wanted = true;
        }
    }

    /// The session is over for the application: everybody who waits is notified.
    pub fn end(&mut self) {
        self.ended = true;
        self.all_changed();
    }

    /// Whether the session is over for the application.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn all_changed(&mut self) {
        let incoming = self.incoming.values().map(|stream| stream.signal.clone());
        self.changed.extend(self.outgoing.signals().chain(incoming));
        let datagrams = &self.datagrams;
        let signals = datagrams.receiving.signals();
        self.changed
            .extend(signals.chain([datagrams.sending.signal.clone()]));
    }

    // ---- news ---------------------------------------------------------------------------------

    /// Whether the application has left something for the driver since the last call.
    pub fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted)
    }

    /// Signals of the streams with news for the application since the last call.
    pub fn take_changed(&mut self) -> Vec<A::Signal> {
        std::mem::take(&mut self.changed)
    }

    /// Whether [`take_changed`](Self::take_changed) would return any.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}
