//! The reader of an end: one thread of an application that takes what has arrived, and compares every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use sphinx_driver::{Chunk, Gatherer, MessageError, MessageReader, Queues};
use sphinx_proto::{Nanos, StreamId};

use super::{Local, Signal};
use crate::data::{Rng, fill};
use crate::plan::{Messages, Plan, RESET_CODE, ReadOrder, Reader, STOP_CODE, Ways};

pub(crate) struct Readers {
    plan: Plan,
    /// Of the peer's bytes.
    seed: u64,
    rng: Rng,
    /// Streams that the peer will open.
    streams_expected: usize,
    /// What it sends on them; the lengths of framed messages, by stream.
    messages: Messages,
    lens: BTreeMap<u64, Vec<u64>>,
    /// Messages that are streams, by their numbers, which are also their places in `streams`; which of them have news.
    gatherer: Gatherer<Arriving>,
    news: BTreeSet<u64>,
    /// In the order of being accepted.
    streams: Vec<Stream>,
    /// There may be new streams: nobody has looked since the session had news.
    is_news: bool,
    /// The next one to look at, where all are read at once.
    turn: usize,
    /// Data being read, and until when that takes.
    reading: Option<(Chunk, Nanos)>,
    free_at: Nanos,
    expected: Vec<u8>,
}

/// A message that is a stream.
struct Arriving {
    id: StreamId,
    /// Its end has been taken.
    has_ended: bool,
}

struct Stream {
    id: StreamId,
    signal: Signal,
    /// Something may be there: it has not been looked at since the signal was raised.
    is_awake: bool,
    /// Bytes read.
    read: u64,
    /// Length of the stream, once its end has been read.
    end: Option<u64>,
    /// Of framed messages: the one that arrives, how many have, and the bytes of these.
    framed: MessageReader,
    number: usize,
    content: u64,
    /// It was given up before its end, by either side, or by this one.
    is_given_up: bool,
    is_stopped: bool,
}

impl Stream {
    fn has_ended(&self) -> bool {
        self.is_given_up || self.end == Some(self.read)
    }
}

impl Readers {
    pub(crate) fn new(plan: &Plan, seed: u64, peer: &Plan) -> Self {
        let mut lens: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut writes = peer.writes.clone();
        writes.sort_by_key(|write| write.at);
        for write in writes {
            lens.entry(write.stream).or_default().push(write.len);
        }
        let kept_max = Rng::new(seed ^ 0x6b65_7074).pick(&[1 << 10, 20 << 10, 32 << 20]);
        Self {
            plan: plan.clone(),
            seed,
            rng: Rng::new(seed ^ 0x7265_6164),
            streams_expected: peer.streams(),
            messages: peer.messages,
            lens,
            gatherer: Gatherer::new(kept_max),
            news: BTreeSet::new(),
            streams: Vec::new(),
            is_news: false,
            turn: 0,
            reading: None,
            free_at: 0,
            expected: Vec::new(),
        }
    }

    /// When a slow reader is done with what it reads.
    pub(crate) fn next_read(&self) -> Option<Nanos> {
        self.reading.as_ref().map(|(_, until)| *until)
    }

    /// Bytes of the stream that have been read, if that was all of it.
    pub(crate) fn whole(&self, index: u64) -> Option<u64> {
        let mut streams = self.streams.iter();
        let stream = streams.find(|stream| stream.id.index() == index)?;
        let is_whole = stream.end == Some(stream.read) && !stream.is_given_up;
        stream.end.filter(|_| is_whole && self.reading.is_none())
    }

    /// Whether the stream was given up before its end had been read.
    pub(crate) fn was_given_up(&self, index: u64) -> bool {
        let mut streams = self.streams.iter();
        streams.any(|stream| stream.id.index() == index && stream.is_given_up)
    }

    /// Whether the stream was stopped before its end had been read.
    pub(crate) fn was_stopped(&self, index: u64) -> bool {
        let mut streams = self.streams.iter();
        streams.any(|stream| stream.id.index() == index && stream.is_stopped)
    }

    /// Whether the stream is not to be read.
    pub(crate) fn leaves_unread(&self, index: u64) -> bool {
        self.plan.unread.contains(&index)
    }

    /// Prints how far the streams have been read.
    pub(crate) fn explain(&self) {
        for stream in &self.streams {
            let (read, end, is_awake) = (stream.read, stream.end, stream.is_awake);
            println!("reader {}: {read} of {end:?}, awake: {is_awake}", stream.id);
        }
    }

    /// Streams that have been accepted, in this order.
    pub(crate) fn accepted(&self) -> Vec<StreamId> {
        self.streams.iter().map(|stream| stream.id).collect()
    }

    /// Reads what can be read now. `is_news`: the session has news, new streams perhaps; `asked` are those that this end has opened.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        queues: &mut Queues<Local>,
        asked: &[StreamId],
        is_news: bool,
    ) {
        self.is_news |= is_news || asked.len() > self.streams.len();
        loop {
            if let Some((chunk, until)) = self.reading.take() {
                if until > now {
                    self.reading = Some((chunk, until));
                    return;
                }
                queues.release(chunk.into_taken());
            }
            while self.is_news && self.may_accept() {
                let next = match self.plan.ways {
                    Ways::One => queues.accept_uni(),
                    Ways::Asks => asked.get(self.streams.len()).copied(),
                    Ways::Answers => queues.accept_bi(),
                };
                let Some(id) = next else {
                    self.is_news = false;
                    break;
                };
                if self.messages == Messages::Streams {
                    let arriving = |_| Arriving {
                        id,
                        has_ended: false,
                    };
                    self.news.insert(self.gatherer.begin(arriving));
                }
                self.streams.push(Stream {
                    id,
                    signal: queues.signal_of(id),
                    is_awake: true,
                    read: 0,
                    end: None,
                    framed: MessageReader::default(),
                    number: 0,
                    content: 0,
                    is_given_up: false,
                    is_stopped: false,
                });
            }
            if self.messages == Messages::Streams {
                return self.gather(queues);
            }
            let Some(at) = self.choose() else { return };
            self.take(at, now, queues);
        }
    }

    /// Takes the messages that are whole, each of which is a stream.
    fn gather(&mut self, queues: &mut Queues<Local>) {
        let streams = (0..).zip(&self.streams);
        let have_news = streams.filter(|(_, stream)| stream.signal.take());
        self.news.extend(have_news.map(|(number, _)| number));
        loop {
            let Some(number) = self.gatherer.next_to_read(self.news.pop_first()) else {
                return;
            };
            let stream = &mut self.streams[number as usize];
            let piece = |arriving: &mut Arriving, message: &mut Vec<u8>| {
                let incoming = queues.incoming(arriving.id);
                let Some(chunk) = incoming.take_in_order() else {
                    let is_reset = incoming.reset().is_some();
                    stream.is_given_up |= is_reset;
                    return match is_reset || arriving.has_ended {
                        true => Poll::Ready((!is_reset).then_some(0)),
                        false => Poll::Pending,
                    };
                };
                let len = chunk.data().len();
                message.extend_from_slice(chunk.data());
                arriving.has_ended |= chunk.end_of_stream();
                queues.release(chunk.into_taken());
                Poll::Ready(Some(len))
            };
            let message = self.gatherer.read(number, piece);
            if stream.is_given_up {
                queues.abandon(stream.id, None, 0);
            }
            let Some(message) = message.expect("none is too long") else {
                continue;
            };
            let len = message.len() as u64;
            assert_eq!(stream.end.replace(len), None, "twice");
            stream.read = len;
            self.expected.resize(message.len(), 0);
            fill(self.seed ^ stream.id.to_wire(), 0, &mut self.expected);
            assert!(message == self.expected, "message {} of {len}", stream.id);
        }
    }

    fn may_accept(&self) -> bool {
        let is_read = |stream: &&Stream| !self.plan.unread.contains(&stream.id.index());
        let mut reading = self.streams.iter().filter(is_read);
        self.plan.order != ReadOrder::OneByOne || reading.all(Stream::has_ended)
    }

    /// The stream that is read next.
    fn choose(&mut self) -> Option<usize> {
        for stream in &mut self.streams {
            stream.is_awake |= stream.signal.take();
        }
        let order = self.plan.order;
        let waits_for_all = matches!(order, ReadOrder::AllAtOnce | ReadOrder::LastFirst);
        if waits_for_all && self.streams.len() < self.streams_expected {
            return None;
        }
        let (plan, count) = (&self.plan, self.streams.len());
        let is_open =
            |stream: &Stream| !stream.has_ended() && !plan.unread.contains(&stream.id.index());
        let wanted = |stream: &Stream| stream.is_awake && is_open(stream);
        let mut streams = self.streams.iter();
        match order {
            ReadOrder::AsItComes => streams.position(wanted),
            ReadOrder::OneByOne => streams.position(is_open),
            ReadOrder::LastFirst => streams.rposition(is_open),
            ReadOrder::AllAtOnce | ReadOrder::Random => {
                let first = match order {
                    ReadOrder::Random => self.rng.below(count as u64) as usize,
                    _ => self.turn,
                };
                let mut turns = (0..count).map(|i| (i + first) % count);
                turns.find(|at| wanted(&self.streams[*at]))
            }
        }
        .filter(|at| self.streams[*at].is_awake)
    }

    /// Takes a block of this stream, if there is one.
    fn take(&mut self, at: usize, now: Nanos, queues: &mut Queues<Local>) {
        self.turn = at + 1;
        let stream = &mut self.streams[at];
        let index = stream.id.index();
        let stop = self.plan.stops.get(&index);
        if stop.is_some_and(|bytes| stream.read >= *bytes) {
            (stream.is_given_up, stream.is_stopped) = (true, true);
            return queues.abandon(stream.id, None, STOP_CODE + index);
        }
        let incoming = queues.incoming(stream.id);
        let is_framed = self.messages == Messages::Framed;
        let in_order = is_framed || self.plan.reader != Reader::AnyOrder;
        let chunk = match in_order {
            true => incoming.take_in_order(),
            false => incoming.take_before(u64::MAX),
        };
        let Some(chunk) = chunk else {
            stream.is_awake = false;
            if let Some(code) = incoming.reset() {
                // Those that are dropped have no reason.
                assert!(code == RESET_CODE + index || code == 0, "{code}");
                stream.is_given_up = true;
                queues.abandon(stream.id, None, 0);
            }
            return;
        };
        let (offset, len) = (chunk.offset(), chunk.data().len());
        if in_order {
            assert_eq!(offset, stream.read, "a gap in stream {}", stream.id);
        }
        if is_framed {
            self.take_messages(at, &chunk);
        } else {
            self.expected.resize(len, 0);
            fill(self.seed ^ stream.id.to_wire(), offset, &mut self.expected);
            let differs = chunk.data().iter().zip(&self.expected);
            let differs = differs.clone().position(|(got, expected)| got != expected);
            assert_eq!(
                differs, None,
                "stream {}, from {offset} of {len}",
                stream.id
            );
        }
        let stream = &mut self.streams[at];
        stream.read += len as u64;
        if chunk.end_of_stream() {
            let before = stream.end.replace(offset + len as u64);
            assert_eq!(before, None, "stream {} ends twice", stream.id);
        }
        let rate = match self.plan.reader {
            Reader::Slow(rate) => rate,
            Reader::AnyOrder | Reader::InOrder => return queues.release(chunk.into_taken()),
        };
        let time = u128::from(crate::SEC) * len as u128 / u128::from(rate);
        self.free_at = self.free_at.max(now) + time as Nanos;
        self.reading = Some((chunk, self.free_at));
    }
    /// Takes the framed messages that are whole with this chunk, which is the next one of this stream.
    fn take_messages(&mut self, at: usize, chunk: &Chunk) {
        let stream = &mut self.streams[at];
        let mut rest = chunk.data();
        loop {
            let wanted = stream.framed.wants().expect("none is too long");
            if wanted == 0 {
                let len = stream.framed.next_len().expect("it is whole");
                let mut message = vec![0; len];
                if len > 0 && self.rng.chance(0.3) {
                    let room = self.rng.below(len as u64) as usize;
                    let copied = stream.framed.copy(&mut message[..room]);
                    assert_eq!(copied, Err(MessageError::TooSmall { room, len }));
                    assert_eq!(stream.framed.next_len(), Some(len), "it stays");
                }
                assert_eq!(stream.framed.copy(&mut message), Ok(len));
                let planned = self.lens.get(&stream.id.index());
                let planned = planned.and_then(|lens| lens.get(stream.number));
                // What is written besides the plan has any length.
                assert!(planned.is_none_or(|planned| *planned == len as u64));
                self.expected.resize(len, 0);
                let seed = self.seed ^ stream.id.to_wire();
                fill(seed, stream.content, &mut self.expected);
                let number = stream.number;
                assert!(message == self.expected, "{number} of {}", stream.id);
                stream.number += 1;
                stream.content += len as u64;
                continue;
            }
            if rest.is_empty() {
                break;
            }
            let (part, behind) = rest.split_at(wanted.min(rest.len()));
            stream.framed.push(part);
            rest = behind;
        }
        if chunk.end_of_stream() {
            assert_eq!(stream.framed.ended(), Ok(()));
        }
    }
}
