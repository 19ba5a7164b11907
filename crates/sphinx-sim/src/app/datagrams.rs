//! Applications that send datagrams, and those that take them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use sphinx_driver::{BufferPool, LiveEnd, Queues, SendAs};
use sphinx_proto::wire::FlowKind;
use sphinx_proto::{Nanos, Session, Time};

use super::Local;
use crate::data::Rng;

/// A datagram that is to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Say {
    /// When it is sent.
    pub at: Nanos,
    /// Length in bytes.
    pub len: usize,
    /// How it is sent. Flows of live messages count from 0, in the order of their first messages.
    pub send_as: SendAs,
}

/// A datagram that the application was given.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// When it was given to the application.
    pub at: Nanos,
    /// Kind of its flow, if it has one.
    pub kind: Option<FlowKind>,
    /// Flow, among those of that kind.
    pub flow: u64,
    /// Number of the datagram in its flow.
    pub number: Option<u64>,
    /// Which of all that the peer said it is; none for those too short to tell.
    pub index: Option<usize>,
    /// When it was sent, as far as this end can tell.
    pub sent: Option<Nanos>,
}

/// An application of datagrams that decides as it goes what it sends, in place of a plan.
pub trait Carried {
    /// When it wants to be asked again, if nothing arrives.
    fn next_event(&self) -> Option<Nanos>;

    /// A datagram has arrived.
    fn hear(&mut self, now: Nanos, data: &[u8]);

    /// What it sends next; it is asked until there is nothing. `waiting`: bytes of what it has sent and the session has not begun.
    fn say(&mut self, now: Nanos, session: &Session, waiting: usize) -> Option<(Vec<u8>, SendAs)>;
}

/// Lets it take what has arrived, and send.
pub(crate) fn carry(
    carried: &mut dyn Carried,
    now: Nanos,
    session: &Session,
    (queues, pool): (&mut Queues<Local>, &BufferPool),
) {
    while let Some(arrived) = queues.next_datagram() {
        carried.hear(now, arrived.data());
    }
    while let Some((data, send_as)) = carried.say(now, session, queues.datagram_bytes_waiting()) {
        let sent = queues.send_datagram(Time::from_nanos(now), &data, send_as, pool);
        assert!(sent.is_ok(), "{sent:?}");
    }
}

/// Bytes of a datagram that tell which it is.
const INDEX_LEN: usize = 4;

/// What the peer's `index`-th datagram of so many bytes holds.
fn content(seed: u64, index: u32, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ u64::from(index) << 20);
    let mut bytes: Vec<u8> = (0..len).map(|_| rng.word() as u8).collect();
    if let Some(first) = bytes.first_chunk_mut::<INDEX_LEN>() {
        *first = index.to_be_bytes();
    }
    bytes
}

/// Sends what the plan says.
pub(crate) struct Talker {
    seed: u64,
    says: VecDeque<Say>,
    said: u32,
    /// Flows of live messages that are open.
    live: u64,
}

impl Talker {
    pub(crate) fn new(seed: u64, says: &[Say]) -> Self {
        Self {
            seed,
            says: says.to_vec().into(),
            said: 0,
            live: 0,
        }
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.says.front().map(|say| say.at)
    }

    pub(crate) fn step(&mut self, now: Nanos, queues: &mut Queues<Local>, pool: &BufferPool) {
        while let Some(say) = self.says.pop_front_if(|say| say.at <= now) {
            let is_live = say.send_as.kind == Some(FlowKind::Live);
            while is_live && self.live <= say.send_as.flow {
                assert_eq!(queues.open_live(), Some(self.live));
                self.live += 1;
            }
            let data = content(self.seed, self.said, say.len);
            self.said += 1;
            let clock = Time::from_nanos(now);
            let sent = queues.send_datagram(clock, &data, say.send_as, pool);
            assert!(sent.is_ok(), "{sent:?}");
            if self.says.is_empty() {
                (0..self.live).for_each(|flow| queues.end_live(flow));
            }
        }
    }
}

/// Takes what arrives.
pub(crate) struct Listener {
    /// Of the peer's bytes, and how long its datagrams are.
    seed: u64,
    lens: Vec<usize>,
    on_time: bool,
    live: Vec<u64>,
    pub(crate) heard: Vec<Heard>,
    pub(crate) missing: BTreeMap<u64, Vec<Range<u64>>>,
    /// Flows of live messages that have ended.
    pub(crate) ended: u64,
}

impl Listener {
    pub(crate) fn new(seed: u64, peer: &[Say], on_time: bool) -> Self {
        Self {
            seed,
            lens: peer.iter().map(|say| say.len).collect(),
            on_time,
            live: Vec::new(),
            heard: Vec::new(),
            missing: BTreeMap::new(),
            ended: 0,
        }
    }

    pub(crate) fn step(&mut self, now: Nanos, queues: &mut Queues<Local>) {
        while let Some(arrived) = queues.next_datagram() {
            let kind = arrived.number().map(|_| FlowKind::Ordered);
            self.hear(now, kind, &arrived);
        }
        while let Some((flow, _)) = queues.accept_live() {
            queues.set_on_time(flow, self.on_time);
            self.live.push(flow);
        }
        let mut ended = 0;
        for flow in self.live.clone() {
            while let Some(arrived) = queues.next_live(flow) {
                self.hear(now, Some(FlowKind::Live), &arrived);
            }
            let missing = queues.take_missing(flow);
            self.missing.entry(flow).or_default().extend(missing);
            ended += u64::from(queues.live_end(flow) == LiveEnd::Ended);
        }
        self.ended = ended;
    }

    fn hear(&mut self, now: Nanos, kind: Option<FlowKind>, arrived: &sphinx_driver::Arrived) {
        let data = arrived.data();
        let index = data.first_chunk().map(|first| u32::from_be_bytes(*first));
        let expected = match index {
            Some(index) => content(self.seed, index, self.lens[index as usize]),
            None => data.to_vec(),
        };
        assert!(data == expected, "a datagram that was never sent");
        self.heard.push(Heard {
            at: now,
            kind,
            flow: arrived.flow(),
            number: arrived.number(),
            index: index.map(|index| index as usize),
            sent: arrived.sent().map(Time::as_nanos),
        });
    }
}
