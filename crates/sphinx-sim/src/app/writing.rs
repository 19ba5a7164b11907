//! The writers of an end, one for each of its streams.

use std::collections::{BTreeMap, VecDeque};

use sphinx_driver::{BufferPool, Queues, ReadyBlock, StreamEnd};
use sphinx_proto::Nanos;

use super::{Local, LocalSlicer, Signal};
use crate::data::fill;
use crate::plan::{Plan, Write};

/// Bytes that a writer hands over at a time.
const PIECE: u64 = 32 << 10;

pub(crate) struct Writers {
    seed: u64,
    flushes: bool,
    /// What is still to be written, in the order of time.
    writes: VecDeque<Write>,
    streams: BTreeMap<u16, Writer>,
    piece: Vec<u8>,
}

struct Writer {
    slicer: LocalSlicer,
    signal: Signal,
    /// Messages not wholly written: bytes left, and whether the stream ends with them.
    messages: VecDeque<(u64, bool)>,
    /// Bytes written.
    offset: u64,
    /// A block that waits for room.
    block: Option<ReadyBlock>,
    state: State,
}

/// What a writer needs besides its own state.
struct Surroundings<'a> {
    id: u16,
    seed: u64,
    flushes: bool,
    shape: (u16, u16),
    pool: &'a BufferPool,
    piece: &'a mut Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Has what to do, or nothing to say.
    Awake,
    /// Waits for room in the queue.
    Blocked,
    /// Waits until the peer has everything.
    Finished,
    /// The peer has everything.
    Delivered,
}

impl Writers {
    pub(crate) fn new(seed: u64, plan: &Plan) -> Self {
        let mut writes = plan.writes.clone();
        writes.sort_by_key(|write| write.at);
        Self {
            seed,
            flushes: plan.flushes,
            writes: writes.into(),
            streams: BTreeMap::new(),
            piece: Vec::new(),
        }
    }

    /// When the next message is to be written.
    pub(crate) fn next_write(&self) -> Option<Nanos> {
        self.writes.front().map(|write| write.at)
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.streams.values().map(|writer| writer.offset).sum()
    }

    /// Streams written to, and the bytes of each.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.streams.iter().map(|(id, writer)| (*id, writer.offset))
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

    /// Writes what can be written now. `shape` is that of new blocks.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        queues: &mut Queues<Local>,
        shape: (u16, u16),
        pool: &BufferPool,
    ) {
        while let Some(write) = self.writes.pop_front_if(|write| write.at <= now) {
            let writer = self.streams.entry(write.stream);
            let writer = writer.or_insert_with(|| Writer {
                slicer: LocalSlicer::new(write.stream),
                signal: queues.begin_sending(write.stream),
                messages: VecDeque::new(),
                offset: 0,
                block: None,
                state: State::Awake,
            });
            writer.messages.push_back((write.len, write.end_of_stream));
        }
        for (id, writer) in &mut self.streams {
            writer.step(
                now,
                queues,
                &mut Surroundings {
                    id: *id,
                    seed: self.seed ^ u64::from(*id),
                    flushes: self.flushes,
                    shape,
                    pool,
                    piece: &mut self.piece,
                },
            );
        }
    }
}

impl Writer {
    fn step(&mut self, now: Nanos, queues: &mut Queues<Local>, around: &mut Surroundings<'_>) {
        let Surroundings {
            id,
            seed,
            flushes,
            shape,
            pool,
            ref mut piece,
        } = *around;
        if queues.has_ended() {
            return;
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
                }
                return;
            }
        }
        self.state = State::Awake;
        loop {
            if let Some(block) = self.block.take() {
                let is_last = self.slicer.with(|slicer| slicer.is_finished());
                if !queues.has_room(id) {
                    self.block = Some(block);
                    self.state = State::Blocked;
                    self.signal.take();
                    return;
                }
                queues.push(block);
                if is_last {
                    self.state = State::Finished;
                    return;
                }
            }
            let Some((left, ends)) = self.messages.front_mut() else {
                return;
            };
            if *left > 0 {
                piece.resize((*left).min(PIECE) as usize, 0);
                fill(seed, self.offset, piece);
                let written = self
                    .slicer
                    .with(|slicer| slicer.write(now, piece, shape, pool));
                self.offset += written.len as u64;
                *left -= written.len as u64;
                if written.begins {
                    queues.watch(self.slicer.clone());
                }
                self.block = written.block;
            } else {
                let ends = *ends;
                self.messages.pop_front();
                self.block = self.slicer.with(|slicer| match ends {
                    true => slicer.finish(shape, pool),
                    false if flushes => slicer.flush(pool),
                    false => None,
                });
                if ends {
                    queues.finish_sending(id);
                }
            }
        }
    }
}
