//! Datagrams that wait for the window, and the blocks that are made of them.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_proto::wire::{DATAGRAMS_MAX, FLOWS_MAX, FlowNews, MAX_DATAGRAM};

use super::{
    Datagram, DatagramCounts, Delivery, FlowKind, Lifetime, Nanos, RepairMode, SendAs, Stamp, Time,
    Urgency, stamp_time,
};
use crate::outgoing::shape;
use crate::pool::{BufferPool, PoolBuffer};

/// Bytes of datagrams that wait.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Longest header in front of the data.
const HEADER_MAX: usize = 1 + 8 + 8 + 4 + 8 + 4;

/// One that waits. Its data begins at `HEADER_MAX` in `memory`.
struct Waiting {
    datagram: Datagram,
    memory: PoolBuffer,
    expires: Time,
    life: Nanos,
    repair: RepairMode,
}

impl Waiting {
    /// Whether it may share a block with this one. A block is of use as long as the last of what it holds: of what is repaired, one of a much shorter life
    /// would not have the repairs that it needs.
    fn goes_with(&self, other: &Self) -> bool {
        let is_alike = self.life / 2 <= other.life && other.life / 2 <= self.life;
        self.repair == other.repair && (is_alike || self.repair == RepairMode::None)
    }

    fn bytes(&self) -> usize {
        self.datagram.header_len() + self.datagram.len
    }

    fn sent(&self) -> Sent {
        let of = |kind, stamp: Stamp| Some((kind, self.datagram.flow, stamp.number));
        Sent(match self.datagram.delivery {
            Delivery::Plain => None,
            Delivery::Ordered(stamp) => of(FlowKind::Ordered, stamp),
            Delivery::Live(stamp) => of(FlowKind::Live, stamp),
        })
    }
}

/// A datagram that left: its place in a flow, if the peer is to hear what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent(Option<(FlowKind, u64, u64)>);

impl Sent {
    fn is_live(self) -> bool {
        matches!(self.0, Some((FlowKind::Live, ..)))
    }
}

/// The datagram that is next.
pub(crate) struct First {
    pub(crate) urgency: Urgency,
    /// Shape of a block that holds only this datagram.
    pub(crate) shape: (u16, u16),
    pub(crate) lifetime: Lifetime,
    /// It is of no use if it arrives later, not only if it leaves later.
    pub(crate) is_timed: bool,
}

/// A block of datagrams.
pub(crate) struct Packed {
    /// n × symbol_len bytes.
    pub(crate) memory: PoolBuffer,
    pub(crate) shape: (u16, u16),
    pub(crate) data_len: u64,
    pub(crate) lifetime: Lifetime,
    pub(crate) sent: Vec<Sent>,
}

/// A flow whose datagrams have numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    next: u64,
    dropped: u64,
    /// How long the peer's application wants live messages to be of use.
    wanted: Option<Nanos>,
    /// The peer's application wants no more of the flow.
    is_unwanted: bool,
}

/// Datagrams that wait for the window: the most urgent first, and of these the oldest.
#[derive(Default)]
pub(crate) struct SendQueue<S> {
    waiting: BTreeMap<(Urgency, u64), Waiting>,
    expiries: BTreeSet<(Time, Urgency, u64)>,
    next: u64,
    bytes: usize,
    flows: BTreeMap<(FlowKind, u64), Flow>,
    live_opened: u64,
    counts: DatagramCounts,
    /// What has been given up in flows since the peer was told.
    dropped: Vec<(FlowKind, u64, u64)>,
    /// Live messages whose sender has ended.
    ended: Vec<(u64, u64)>,
    /// Tells that there is room again, or that a flow has news.
    pub(crate) signal: S,
}

/// Why a datagram is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is longer than 65 507 bytes.
    TooLong,
    /// There are 256 flows already whose datagrams are in order.
    TooManyFlows,
    /// The peer's application wants no more of this flow.
    Unwanted,
}

impl<S: Clone + Default> SendQueue<S> {
    pub(crate) fn counts(&self) -> DatagramCounts {
        self.counts
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a datagram of so many bytes finds room without another one going.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.waiting.is_empty() || self.bytes + HEADER_MAX + len <= WAITING_BYTES_MAX
    }

    /// Bytes of the datagrams that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next flow of live messages; `None` while there are as many as there may be.
    pub(crate) fn open_live(&mut self) -> Option<u64> {
        if self.open(FlowKind::Live) >= FLOWS_MAX {
            return None;
        }
        let flow = self.live_opened;
        self.live_opened += 1;
        self.flows.insert((FlowKind::Live, flow), Flow::default());
        Some(flow)
    }

    fn open(&self, kind: FlowKind) -> usize {
        self.flows.keys().filter(|(of, _)| *of == kind).count()
    }

    /// There will be no more live messages of this flow.
    pub(crate) fn end_live(&mut self, flow: u64) {
        if let Some(ended) = self.flows.remove(&(FlowKind::Live, flow))
            && !ended.is_unwanted
        {
            self.ended.push((flow, ended.next));
        }
    }

    /// There will be no more datagrams in order of this flow: another one has room. The peer keeps as many of its own accord, and is not told.
    pub(crate) fn end_ordered(&mut self, flow: u64) {
        self.flows.remove(&(FlowKind::Ordered, flow));
    }

    /// Live messages of this flow that did not arrive in time, and how long the peer wants them to be of use.
    pub(crate) fn live(&self, flow: u64) -> Option<(u64, Option<Nanos>)> {
        let flow = self.flows.get(&(FlowKind::Live, flow))?;
        Some((flow.dropped, flow.wanted))
    }

    /// The peer's application wants live messages to be of use for so long; 0: it wants no more of them.
    pub(crate) fn on_latency(&mut self, flow: u64, life: Nanos) {
        if let Some(flow) = self.flows.get_mut(&(FlowKind::Live, flow)) {
            flow.wanted = Some(life).filter(|life| *life > 0);
            flow.is_unwanted |= life == 0;
        }
    }

    /// Takes a datagram; its number, if its flow has numbers. What is out of date goes, and where there is no room the oldest of the least urgent.
    pub(crate) fn push(
        &mut self,
        now: Time,
        data: &[u8],
        send_as: SendAs,
        pool: &BufferPool,
    ) -> Result<Option<u64>, Refusal> {
        if data.len() > MAX_DATAGRAM {
            return Err(Refusal::TooLong);
        }
        let number = match send_as.kind {
            None => None,
            Some(kind) => {
                let key = (kind, send_as.flow);
                if !self.flows.contains_key(&key) && self.open(kind) >= FLOWS_MAX {
                    return Err(Refusal::TooManyFlows);
                }
                let flow = self.flows.entry(key).or_default();
                if flow.is_unwanted {
                    return Err(Refusal::Unwanted);
                }
                flow.next += 1;
                Some((kind, flow.next - 1))
            }
        };
        let stamp = |number| Stamp {
            number,
            time: stamp_time(now),
            life: send_as.life / 1000,
        };
        let delivery = match number {
            None => Delivery::Plain,
            Some((FlowKind::Ordered, number)) => Delivery::Ordered(stamp(number)),
            Some((FlowKind::Live, number)) => Delivery::Live(stamp(number)),
        };
        self.counts.sent += 1;
        self.counts.live_sent += u64::from(send_as.kind == Some(FlowKind::Live));
        self.counts.bytes_sent += data.len() as u64;
        let mut memory = pool.take(HEADER_MAX + data.len());
        memory[HEADER_MAX..][..data.len()].copy_from_slice(data);
        let waiting = Waiting {
            datagram: Datagram {
                flow: send_as.flow,
                delivery,
                len: data.len(),
            },
            memory,
            expires: now.saturating_add(send_as.life),
            life: send_as.life,
            repair: send_as.repair,
        };
        self.expire(now);
        self.bytes += waiting.bytes();
        let key = (send_as.urgency, self.next);
        self.next += 1;
        self.expiries.insert((waiting.expires, key.0, key.1));
        self.waiting.insert(key, waiting);
        self.evict();
        Ok(number.map(|(_, number)| number))
    }

    /// The oldest of the least urgent go until the others have room.
    fn evict(&mut self) {
        while self.bytes > WAITING_BYTES_MAX && self.waiting.len() > 1 {
            let Some((&(least, _), _)) = self.waiting.last_key_value() else {
                return;
            };
            let oldest = self.waiting.range((least, 0)..).next();
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return;
            };
            if let Some(waiting) = self.remove(key) {
                self.counts.evicted += 1;
                self.drop(waiting.sent());
            }
        }
    }

    /// What is out of date goes. Whether anything did.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let before = self.counts.expired;
        while let Some(&(at, urgency, number)) =
            self.expiries.first().filter(|first| first.0 <= now)
        {
            self.expiries.remove(&(at, urgency, number));
            if let Some(waiting) = self.remove((urgency, number)) {
                self.counts.expired += 1;
                self.drop(waiting.sent());
            }
        }
        self.counts.expired > before
    }

    fn remove(&mut self, key: (Urgency, u64)) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        self.expiries.remove(&(waiting.expires, key.0, key.1));
        self.bytes -= waiting.bytes();
        Some(waiting)
    }

    fn drop(&mut self, sent: Sent) {
        self.counts.live_dropped += u64::from(sent.is_live());
        let Some((kind, flow, number)) = sent.0 else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&(kind, flow)) {
            flow.dropped += 1;
        }
        self.dropped.push((kind, flow, number));
    }

    /// When the next datagram expires.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.expiries.first().map(|(at, ..)| *at)
    }

    /// The next one, whose symbols have at most this size.
    pub(crate) fn first(&self, symbol_len_max: u16) -> Option<First> {
        let ((urgency, _), waiting) = self.waiting.first_key_value()?;
        Some(First {
            urgency: *urgency,
            shape: shape(waiting.bytes(), symbol_len_max),
            lifetime: Lifetime {
                until: waiting.expires,
                repair: waiting.repair,
            },
            is_timed: waiting.datagram.delivery != Delivery::Plain,
        })
    }

    /// Drops the next datagram, which would arrive too late.
    pub(crate) fn expire_first(&mut self) {
        let first = self.waiting.first_key_value().map(|(key, _)| *key);
        if let Some(waiting) = first.and_then(|key| self.remove(key)) {
            self.counts.expired += 1;
            self.drop(waiting.sent());
        }
    }

    /// A block of the next one, and of others that share its packet if a block of that shape `fits`.
    pub(crate) fn pack(
        &mut self,
        symbol_len_max: u16,
        pool: &BufferPool,
        fits: impl Fn((u16, u16)) -> bool,
    ) -> Option<Packed> {
        let (key, first) = self.waiting.pop_first()?;
        self.waiting.insert(key, first);
        let mut all = vec![self.remove(key)?];
        let mut bytes = all[0].bytes();
        while let Some((&next, waiting)) = self.waiting.first_key_value() {
            let sum = bytes + waiting.bytes();
            if next.0 != key.0
                || !waiting.goes_with(&all[0])
                || sum > usize::from(symbol_len_max)
                || all.len() == DATAGRAMS_MAX
                || !fits(shape(sum, symbol_len_max))
            {
                break;
            }
            bytes = sum;
            all.extend(self.remove(next));
        }
        let until = all.iter().map(|waiting| waiting.expires).max();
        let lifetime = Lifetime {
            until: until.unwrap_or_default(),
            repair: all[0].repair,
        };
        let (n, symbol_len) = shape(bytes, symbol_len_max);
        let len = usize::from(n) * usize::from(symbol_len);
        let mut memory = pool.take(len);
        let (mut at, mut header) = (0, Vec::with_capacity(HEADER_MAX));
        for waiting in &all {
            header.clear();
            waiting.datagram.encode(&mut header);
            memory[at..][..header.len()].copy_from_slice(&header);
            at += header.len();
            let data = &waiting.memory[HEADER_MAX..][..waiting.datagram.len];
            memory[at..][..data.len()].copy_from_slice(data);
            at += data.len();
        }
        memory[at..len].fill(0);
        memory.resize(len);
        Some(Packed {
            memory,
            shape: (n, symbol_len),
            data_len: all.iter().map(|waiting| waiting.datagram.len as u64).sum(),
            lifetime,
            sent: all.iter().map(Waiting::sent).collect(),
        })
    }

    /// The peer has received `count` datagrams.
    pub(crate) fn on_delivered(&mut self, count: u64) {
        self.counts.delivered += count;
    }

    /// A block of these has been given up.
    pub(crate) fn on_lost(&mut self, sent: &[Sent]) {
        self.counts.lost += sent.len() as u64;
        sent.iter().for_each(|sent| self.drop(*sent));
    }

    /// What the peer is to hear of flows.
    pub(crate) fn take_news(&mut self) -> Vec<FlowNews> {
        let mut news: Vec<FlowNews> = Vec::new();
        self.dropped.sort_unstable();
        for (kind, flow, number) in self.dropped.drain(..) {
            match news.last_mut() {
                Some(FlowNews::Expired {
                    kind: of,
                    flow: last,
                    first,
                    count,
                }) if (*of, *last) == (kind, flow) && *first + *count == number => *count += 1,
                _ => news.push(FlowNews::Expired {
                    kind,
                    flow,
                    first: number,
                    count: 1,
                }),
            }
        }
        let ended = self.ended.drain(..);
        news.extend(ended.map(|(flow, total)| FlowNews::Ended { flow, total }));
        news
    }

    /// Nothing will be sent any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.expiries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn send_as(kind: Option<FlowKind>, urgency: u8, life: Nanos) -> SendAs {
        SendAs {
            flow: 0,
            kind,
            urgency: Urgency::new(urgency),
            life,
            repair: RepairMode::None,
        }
    }

    #[test]
    fn the_most_urgent_go_first_and_small_ones_share() {
        let pool = BufferPool::new(0);
        let mut queue = SendQueue::<()>::default();
        for (urgency, byte) in [(3, 1), (0, 2), (3, 3)] {
            let send_as = send_as(None, urgency, MS);
            assert_eq!(
                queue.push(Time::ZERO, &[byte; 10], send_as, &pool),
                Ok(None)
            );
        }
        let first = queue.pack(1000, &pool, |_| true).expect("one waits");
        assert_eq!((first.sent.len(), first.data_len), (1, 10));
        let second = queue.pack(1000, &pool, |_| true).expect("two wait");
        assert_eq!(second.sent.len(), 2);
        assert_eq!(second.memory[..4], [3, 0, 0x40, 10]);
        assert_eq!(second.memory[14..18], [3, 0, 0x40, 10]);
        assert!(queue.pack(1000, &pool, |_| true).is_none() && queue.is_empty());
        // Two together would be more than there is room for.
        for byte in [4, 5] {
            let send_as = send_as(None, 3, MS);
            assert_eq!(
                queue.push(Time::ZERO, &[byte; 10], send_as, &pool),
                Ok(None)
            );
        }
        let alone = queue.pack(1000, &pool, |(_, symbol_len)| symbol_len < 20);
        assert_eq!(alone.map(|packed| packed.sent.len()), Some(1));
        assert!(!queue.is_empty());
    }

    /// The repairs of one that is of use for a second would come too late for one that is of use for 60 ms.
    #[test]
    fn lives_that_differ_much_share_no_block_that_is_repaired() {
        let pool = BufferPool::new(0);
        for (repair, lives, blocks) in [
            (RepairMode::None, [60, 1000], 1),
            (RepairMode::InTime, [60, 1000], 2),
            (RepairMode::InTime, [1000, 60], 2),
            (RepairMode::InTime, [60, 60], 1),
            (RepairMode::InTime, [60, 100], 1),
        ] {
            let mut queue = SendQueue::<()>::default();
            for life in lives {
                let send_as = SendAs {
                    repair,
                    ..send_as(None, 3, life * MS)
                };
                assert_eq!(queue.push(Time::ZERO, &[1], send_as, &pool), Ok(None));
            }
            let packed = std::iter::from_fn(|| queue.pack(1000, &pool, |_| true));
            assert_eq!(packed.count(), blocks, "{repair:?} {lives:?}");
        }
    }

    #[test]
    fn where_there_is_room_nobody_goes() {
        let pool = BufferPool::new(0);
        for len in [1, 100, 4_321, MAX_DATAGRAM] {
            let mut queue = SendQueue::<()>::default();
            let data = vec![0; len];
            while queue.has_room(len) {
                let plain = send_as(None, 3, MS);
                assert_eq!(queue.push(Time::ZERO, &data, plain, &pool), Ok(None));
                assert_eq!(queue.counts().evicted, 0, "{len}");
            }
            assert!(queue.bytes > WAITING_BYTES_MAX - len - HEADER_MAX);
        }
    }

    #[test]
    fn the_oldest_of_the_least_urgent_make_room() {
        let pool = BufferPool::new(0);
        let mut queue = SendQueue::<()>::default();
        let data = vec![0; MAX_DATAGRAM];
        assert!(queue.has_room(data.len()));
        for _ in 0..20 {
            let live = send_as(Some(FlowKind::Live), 5, MS);
            assert!(queue.push(Time::ZERO, &data, live, &pool).is_ok());
        }
        assert!(queue.bytes <= WAITING_BYTES_MAX && !queue.has_room(data.len()));
        let counts = queue.counts();
        assert_eq!((counts.evicted, counts.live_dropped), (4, 4));
        let expired = FlowNews::Expired {
            kind: FlowKind::Live,
            flow: 0,
            first: 0,
            count: 4,
        };
        assert_eq!(queue.take_news(), [expired]);
        let urgent = send_as(None, 0, MS);
        assert!(queue.push(Time::ZERO, &data, urgent, &pool).is_ok());
        assert_eq!(queue.counts().evicted, 5);
        assert_eq!(
            queue.first(1000).map(|first| first.urgency),
            Some(Urgency::MOST)
        );
        assert_eq!(
            queue.push(Time::ZERO, &[0; MAX_DATAGRAM + 1], urgent, &pool),
            Err(Refusal::TooLong)
        );
    }

    #[test]
    fn what_is_out_of_date_goes() {
        let pool = BufferPool::new(0);
        let mut queue = SendQueue::<()>::default();
        let kind = Some(FlowKind::Ordered);
        assert_eq!(
            queue.push(Time::ZERO, &[1], send_as(kind, 3, 5 * MS), &pool),
            Ok(Some(0))
        );
        assert_eq!(
            queue.push(Time::ZERO, &[2], send_as(kind, 3, 9 * MS), &pool),
            Ok(Some(1))
        );
        let due = Time::from_nanos(5 * MS);
        assert_eq!(queue.next_expiry(), Some(due));
        assert!(queue.expire(due) && !queue.expire(due));
        assert_eq!(queue.counts().expired, 1);
        assert_eq!(queue.take_news().len(), 1);
        let packed = queue.pack(100, &pool, |_| true).expect("one is left");
        assert_eq!(packed.lifetime.until, Time::from_nanos(9 * MS));
        queue.on_lost(&packed.sent);
        assert_eq!((queue.counts().lost, queue.take_news().len()), (1, 1));
    }

    #[test]
    fn flows_are_bounded_and_end() {
        let pool = BufferPool::new(0);
        let mut queue = SendQueue::<()>::default();
        for flow in 0..FLOWS_MAX as u64 {
            assert_eq!(queue.open_live(), Some(flow));
        }
        assert_eq!(queue.open_live(), None);
        queue.on_latency(7, 5 * MS);
        assert_eq!(queue.live(7), Some((0, Some(5 * MS))));
        queue.on_latency(7, 0);
        let live = SendAs {
            flow: 7,
            ..send_as(Some(FlowKind::Live), 3, MS)
        };
        assert_eq!(
            queue.push(Time::ZERO, &[1], live, &pool),
            Err(Refusal::Unwanted)
        );
        queue.end_live(7);
        assert!(queue.take_news().is_empty(), "nobody wants to hear of it");
        assert_eq!(queue.open_live(), Some(FLOWS_MAX as u64));
        queue.end_live(3);
        assert_eq!(queue.take_news(), [FlowNews::Ended { flow: 3, total: 0 }]);
    }

    #[test]
    fn flows_in_order_are_as_many_as_one_likes_one_after_the_other() {
        let pool = BufferPool::new(0);
        let mut queue = SendQueue::<()>::default();
        let of = |flow| SendAs {
            flow,
            ..send_as(Some(FlowKind::Ordered), 3, MS)
        };
        let (most, all) = (FLOWS_MAX as u64, 3 * FLOWS_MAX as u64);
        for flow in 0..all {
            assert_eq!(queue.push(Time::ZERO, &[1], of(flow), &pool), Ok(Some(0)));
            if flow >= most - 1 {
                let more = queue.push(Time::ZERO, &[1], of(all), &pool);
                assert_eq!(more, Err(Refusal::TooManyFlows));
                queue.end_ordered(flow + 1 - most);
            }
        }
        // What still waits of one that has ended goes, and is told of if it does not.
        assert!(queue.expire(Time::from_nanos(MS)));
        assert_eq!(queue.take_news().len(), all as usize);
    }
}
