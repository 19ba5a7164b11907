//! The writers of an end, one for each of its streams.

use std::collections::{BTreeMap, VecDeque};

use sphinx_driver::{BufferPool, Piece, Queues, StreamEnd, prefix_of};
use sphinx_proto::{Nanos, StreamId, Time, Urgency};

use super::{Local, LocalSlicer, Signal};
use crate::data::fill;
use crate::plan::{Messages, Plan, RESET_CODE, STOP_CODE, Ways, Write};

/// Bytes that a writer hands over at a time.
const BYTES: u64 = 32 << 10;

pub(crate) struct Writers {
    seed: u64,
    flushes: bool,
    /// What is still to be written, and which streams are to be given up or dropped, in the order of time.
    writes: VecDeque<Write>,
    resets: VecDeque<(Nanos, u64)>,
    drops: VecDeque<(Nanos, u64)>,
    urgencies: BTreeMap<u64, Urgency>,
    ways: Ways,
    /// Whether the length of each message stands in front of it.
    is_framed: bool,
    /// Streams of the peer that may be answered.
    asked: u64,
    /// As many streams are open as there may be.
    waits_to_open: bool,
    /// Writers of streams by index.
    streams: BTreeMap<u64, Writer>,
    bytes: Vec<u8>,
}

struct Writer {
    id: StreamId,
    slicer: LocalSlicer,
    signal: Signal,
    /// Messages not wholly written.
    messages: VecDeque<Message>,
    /// Bytes written, with those in front of messages and without.
    offset: u64,
    content: u64,
    /// A piece that waits for room.
    piece: Option<Piece>,
    state: State,
    /// It has ended the stream.
    has_finished: bool,
    /// When the stream was given up, by itself or because the peer wants no more of it.
    given_up: Option<Nanos>,
}

/// What is to be written of a message.
struct Message {
    /// The length that stands in front of the message, until it is written.
    prefix: Vec<u8>,
    /// Bytes of the message that are left to write.
    left: u64,
    /// Whether the stream ends with it.
    ends: bool,
}

/// What a writer needs besides its own state.
struct Surroundings<'a> {
    seed: u64,
    flushes: bool,
    shape: (u16, u16),
    pool: &'a BufferPool,
    bytes: &'a mut Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Has what to do, or nothing to say.
    Awake,
    /// Waits for room in the queue.
    Blocked,
    /// Waits until the peer has everything.
    Finished,
    /// The peer has everything, or the stream was given up.
    Delivered,
}

impl Writers {
    pub(crate) fn new(seed: u64, plan: &Plan) -> Self {
        let mut writes = plan.writes.clone();
        writes.sort_by_key(|write| write.at);
        let mut resets = plan.resets.clone();
        resets.sort_unstable();
        let mut drops = plan.drops.clone();
        drops.sort_unstable();
        Self {
            seed,
            flushes: plan.flushes,
            writes: writes.into(),
            resets: resets.into(),
            drops: drops.into(),
            urgencies: plan.urgencies.clone(),
            ways: plan.ways,
            is_framed: plan.messages == Messages::Framed,
            asked: 0,
            waits_to_open: false,
            streams: BTreeMap::new(),
            bytes: Vec::new(),
        }
    }

    /// One more message, after all that are due before it.
    pub(crate) fn add(&mut self, write: Write) {
        let at = self.writes.partition_point(|other| other.at <= write.at);
        self.writes.insert(at, write);
    }

    /// When the next message is to be written.
    pub(crate) fn next_write(&self) -> Option<Nanos> {
        let may_write = |write: &&Write| self.is_asked(write) && !self.waits_to_open;
        let write = self.writes.front().filter(may_write);
        let write = write.map(|write| write.at);
        let ends = [&self.resets, &self.drops].map(|ends| ends.front().map(|(at, _)| *at));
        write.into_iter().chain(ends.into_iter().flatten()).min()
    }

    /// Whether the stream may be written to: answers wait until they are asked for.
    fn is_asked(&self, write: &Write) -> bool {
        self.ways != Ways::Answers || write.stream < self.asked
    }

    fn next_due(&mut self, now: Nanos) -> Option<Write> {
        let next = self.writes.front()?;
        let is_due = next.at <= now && self.is_asked(next);
        is_due.then(|| self.writes.pop_front())?
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.streams.values().map(|writer| writer.offset).sum()
    }

    /// Streams opened, and the bytes written to each.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, u64)> + '_ {
        let writers = self.streams.values();
        writers.map(|writer| (writer.id, writer.offset))
    }

    /// Streams that were given up, and when.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = (StreamId, Nanos)> + '_ {
        let writers = self.streams.values();
        writers.filter_map(|writer| Some((writer.id, writer.given_up?)))
    }

    /// Whether the stream was ended.
    pub(crate) fn has_finished(&self, index: u64) -> bool {
        let writer = self.streams.get(&index);
        writer.is_some_and(|writer| writer.has_finished)
    }

    /// Whether everything has been handed over, and what has ended has arrived.
    pub(crate) fn are_done(&self) -> bool {
        let is_done = |writer: &Writer| match writer.state {
            State::Awake => writer.messages.is_empty(),
            State::Blocked | State::Finished => false,
            State::Delivered => true,
        };
        self.writes.is_empty() && self.streams.values().all(is_done)
    }

    /// Prints what the writers wait for.
    pub(crate) fn explain(&self) {
        for (id, writer) in &self.streams {
            let (state, messages) = (writer.state, writer.messages.len());
            println!("writer {id}: {state:?}, {messages} messages");
        }
    }

    /// Opens all streams up to this one; whether there may be so many at once.
    fn open_to(&mut self, stream: u64, queues: &mut Queues<Local>, known: &[StreamId]) -> bool {
        while self.streams.len() as u64 <= stream {
            let index = self.streams.len() as u64;
            let id = match self.ways {
                Ways::One => queues.open_uni(),
                Ways::Asks => queues.open_bi(),
                Ways::Answers => known.get(index as usize).copied(),
            };
            let Some(id) = id else { return false };
            if let Some(urgency) = self.urgencies.get(&index) {
                queues.set_urgency(id, *urgency);
            }
            self.streams.insert(index, Writer::new(id, queues));
        }
        true
    }

    /// Writes what can be written now. `shape` is that of new blocks; `known` are the streams that the peer has opened.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        queues: &mut Queues<Local>,
        known: &[StreamId],
        shape: (u16, u16),
        pool: &BufferPool,
    ) {
        self.asked = known.len() as u64;
        self.waits_to_open = false;
        while let Some(write) = self.next_due(now) {
            if !self.open_to(write.stream, queues, known) {
                self.writes.push_front(write);
                self.waits_to_open = true;
                break;
            }
            if let Some(writer) = self.streams.get_mut(&write.stream) {
                writer.messages.push_back(Message {
                    prefix: match self.is_framed {
                        true => prefix_of(write.len as usize),
                        false => Vec::new(),
                    },
                    left: write.len,
                    ends: write.end_of_stream,
                });
            }
        }
        while let Some((_, index)) = self.resets.pop_front_if(|(at, _)| *at <= now) {
            if let Some(writer) = self.streams.get_mut(&index) {
                queues.reset(writer.id, RESET_CODE + index);
                writer.let_go(now, queues);
            }
        }
        while let Some((_, index)) = self.drops.pop_front_if(|(at, _)| *at <= now) {
            if let Some(writer) = self.streams.get_mut(&index) {
                writer.drop(now, queues);
            }
        }
        for writer in self.streams.values_mut() {
            writer.step(
                now,
                queues,
                &mut Surroundings {
                    seed: self.seed ^ writer.id.to_wire(),
                    flushes: self.flushes,
                    shape,
                    pool,
                    bytes: &mut self.bytes,
                },
            );
        }
    }
}

impl Writer {
    fn new(id: StreamId, queues: &mut Queues<Local>) -> Self {
        Self {
            id,
            slicer: LocalSlicer::new(id),
            signal: queues.sending_signal(id),
            messages: VecDeque::new(),
            offset: 0,
            content: 0,
            piece: None,
            state: State::Awake,
            has_finished: false,
            given_up: None,
        }
    }

    /// Nothing more is written.
    fn let_go(&mut self, now: Nanos, queues: &mut Queues<Local>) {
        if self.state != State::Delivered {
            self.given_up = Some(now);
        }
        self.slicer.with(|slicer| slicer.abandon());
        (self.piece, self.state) = (None, State::Delivered);
        queues.stop_sending(self.id);
    }

    /// The application drops it.
    fn drop(&mut self, now: Nanos, queues: &mut Queues<Local>) {
        match self.state {
            State::Finished => {
                queues.stop_sending(self.id);
                self.state = State::Delivered;
            }
            // It is still ending it.
            State::Awake | State::Blocked if self.has_finished => {}
            State::Awake | State::Blocked => self.let_go(now, queues),
            State::Delivered => {}
        }
    }

    fn step(&mut self, now: Nanos, queues: &mut Queues<Local>, around: &mut Surroundings<'_>) {
        let Surroundings {
            seed,
            flushes,
            shape,
            pool,
            ref mut bytes,
        } = *around;
        let clock = Time::from_nanos(now);
        let id = self.id;
        if queues.has_ended() {
            return;
        }
        if let Some(code) = queues.stopped(id) {
            assert_eq!(code, STOP_CODE + id.index());
            self.given_up.get_or_insert(now);
            return self.let_go(now, queues);
        }
        match self.state {
            State::Awake => {}
            State::Delivered => return,
            // Asleep.
            State::Blocked | State::Finished if !self.signal.take() => return,
            State::Blocked => {}
            State::Finished => {
                if queues.stream_end(id) == Some(StreamEnd::Delivered) {
                    self.state = State::Delivered;
                    queues.stop_sending(id);
                }
                return;
            }
        }
        self.state = State::Awake;
        loop {
            if let Some(piece) = self.piece.take() {
                let is_last = self.slicer.with(|slicer| slicer.is_finished());
                if !queues.has_room(id) {
                    self.piece = Some(piece);
                    self.state = State::Blocked;
                    self.signal.take();
                    return;
                }
                queues.push(piece);
                if is_last {
                    self.state = State::Finished;
                    return;
                }
            }
            let Some(message) = self.messages.front_mut() else {
                return;
            };
            if !message.prefix.is_empty() || message.left > 0 {
                let is_content = message.prefix.is_empty();
                if is_content {
                    bytes.resize(message.left.min(BYTES) as usize, 0);
                    fill(seed, self.content, bytes);
                } else {
                    bytes.clone_from(&message.prefix);
                }
                let written = self
                    .slicer
                    .with(|slicer| slicer.write(clock, bytes, shape, pool));
                self.offset += written.len as u64;
                match is_content {
                    true => {
                        self.content += written.len as u64;
                        message.left -= written.len as u64;
                    }
                    false => drop(message.prefix.drain(..written.len)),
                }
                if written.begins {
                    queues.watch(self.slicer.clone());
                }
                self.piece = written.piece;
            } else {
                let ends = message.ends;
                self.messages.pop_front();
                self.piece = self.slicer.with(|slicer| match ends {
                    true => slicer.finish(shape, pool),
                    false if flushes => slicer.flush(pool),
                    false => None,
                });
                if ends {
                    queues.finish_sending(id);
                    self.has_finished = true;
                }
            }
        }
    }
}
