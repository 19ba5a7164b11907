//! What an application and the driver of its session leave for each other.
//!
//! The application's side may be many threads: whoever owns [`Queues`] puts a lock around them. Nothing here
//! waits. What the application leaves is fetched by [`Driver::exchange`](crate::Driver::exchange), which is
//! due when [`Queues::take_wanted`] says so; what the driver leaves is told by the signals of
//! [`Queues::take_changed`].

use std::collections::BTreeMap;

use sphinx_proto::Slot;

use crate::incoming::{Chunk, Incoming};
use crate::outgoing::{Outgoing, ReadyBlock, StreamEnd};
use crate::slicer::Slicer;

/// Blocks of one stream that wait for the window before its writer has to wait.
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

/// The queues of one session.
pub struct Queues<A: Application> {
    pub(crate) outgoing: Outgoing<A::Signal>,
    /// Streams that the application may still write to.
    pub(crate) writers: u16,
    /// Slicers with an open block.
    pub(crate) filling: Vec<A::Slicer>,
    pub(crate) incoming: BTreeMap<u16, Incoming<A::Signal>>,
    /// Streams that the application has accepted are below this id.
    next_accept: u16,
    /// Slots whose data has been read.
    pub(crate) released: Vec<Slot>,
    pub(crate) close: Option<(u64, String)>,
    pub(crate) ended: bool,
    /// Whose news are to be told.
    pub(crate) changed: Vec<A::Signal>,
    wanted: bool,
}

impl<A: Application> Queues<A> {
    /// Those of a new session. A client sends on even streams.
    pub fn new(is_client: bool) -> Self {
        Self {
            outgoing: Outgoing::default(),
            writers: 0,
            filling: Vec::new(),
            incoming: BTreeMap::new(),
            next_accept: u16::from(is_client),
            released: Vec::new(),
            close: None,
            ended: false,
            changed: Vec::new(),
            wanted: false,
        }
    }

    // ---- sending ------------------------------------------------------------------------------

    /// The application has opened a stream; what tells that a block of it has left, or that its end has come
    /// further.
    pub fn begin_sending(&mut self, stream: u16) -> A::Signal {
        self.writers += 1;
        self.outgoing.stream(stream).signal.clone()
    }

    /// The application has written all that it will.
    pub fn finish_sending(&mut self, stream: u16) {
        self.writers -= 1;
        self.outgoing.stream(stream).end = Some(StreamEnd::Queued);
    }

    /// The application has let go of a stream without an end.
    pub fn stop_sending(&mut self) {
        self.writers -= 1;
    }

    /// Streams that the application may still write to.
    pub fn writers(&self) -> u16 {
        self.writers
    }

    /// Whether the stream may queue another block.
    pub fn has_room(&self, stream: u16) -> bool {
        self.outgoing.queued(stream) < READY_PER_STREAM
    }

    /// Queues a block; the application asks [`has_room`](Self::has_room) first.
    pub fn push(&mut self, block: ReadyBlock) {
        self.outgoing.push(block);
        self.wanted = true;
    }

    /// The driver is to see when the writer of this slicer pauses.
    pub fn watch(&mut self, slicer: A::Slicer) {
        self.filling.push(slicer);
        self.wanted = true;
    }

    /// How far the end of a stream has come; `None` while it may be written to.
    pub fn stream_end(&self, stream: u16) -> Option<StreamEnd> {
        self.outgoing.end(stream)
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// The next stream that the peer has opened, in the order of ids.
    pub fn accept(&mut self) -> Option<u16> {
        let stream = self.next_accept;
        self.incoming.contains_key(&stream).then(|| {
            self.next_accept += 2;
            stream
        })
    }

    /// What has arrived of a stream.
    pub fn incoming(&mut self, stream: u16) -> &mut Incoming<A::Signal> {
        self.incoming.entry(stream).or_default()
    }

    /// Complete blocks that nobody has taken: stream, number within it, data.
    pub fn arrived(&self) -> impl Iterator<Item = (u16, u64, &Chunk)> {
        self.incoming.iter().flat_map(|(stream, incoming)| {
            let blocks = incoming.blocks.iter();
            blocks.map(|(block, chunk)| (*stream, *block, chunk))
        })
    }

    /// What tells that more of a stream has arrived.
    pub fn signal_of(&mut self, stream: u16) -> A::Signal {
        self.incoming(stream).signal.clone()
    }

    /// The data of a block has been read: its place in the window is free.
    pub fn release(&mut self, slot: Slot) {
        self.released.push(slot);
        self.wanted = true;
    }

    /// Nobody reads the stream any more: what has arrived, and will, must not fill the window. `last` is a
    /// block that was taken and not read.
    pub fn abandon(&mut self, stream: u16, last: Option<Chunk>) {
        self.released.extend(last.map(Chunk::into_slot));
        if let Some(incoming) = self.incoming.get_mut(&stream) {
            incoming.abandoned = true;
            let blocks = std::mem::take(&mut incoming.blocks);
            let slots = blocks.into_values().map(Chunk::into_slot);
            self.released.extend(slots);
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

    /// The session is over for the application: everybody who waits is to look again.
    pub fn end(&mut self) {
        self.ended = true;
        self.all_changed();
    }

    /// Whether it is.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn all_changed(&mut self) {
        let incoming = self.incoming.values().map(|stream| stream.signal.clone());
        self.changed.extend(self.outgoing.signals().chain(incoming));
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

    /// Whether there are any.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}
