//! A queue in front of a session: flow-queued CoDel, RFC 8290, with ECN.
//!
//! Flows have turns of a quantum of bytes. One that comes anew and sends little is served before those that keep the queue busy. In each, packets that
//! have waited for more than 5 ms over 100 ms, or more where round trips are long, are marked, or dropped where they cannot be marked. Where there is no room, the flow that takes most of
//! it loses its oldest packets.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use sphinx_link::{CoDel, CoDelState, FlowKey, Time, Verdict, mark_ce};

/// Flows that are kept apart, as far as their hashes differ.
pub(crate) const QUEUES: usize = 1024;
/// Bytes that a flow may send in a turn, the quantum (section 5.2).
const QUANTUM: i64 = 1514;
/// A packet behind which no more bytes than these wait in its queue is no sign of congestion.
const PACKET_MAX: usize = 1514;
/// Bytes that a packet counts for besides its own.
const PACKET_OVERHEAD: usize = 64;
/// Most packets that one overload drops at a time (section 4.1).
const DROPS_MAX: usize = 64;
/// A flow whose packets took turns with others counts as one that sends little only so long after the last of these: until then they may
/// wait where urgent ones overtake them.
const SPARSE_AFTER: Time = 100_000_000;
/// Queues that are kept for their memory of congestion while all are empty.
const KEPT_MAX: usize = 64;

/// One flow.
#[derive(Debug)]
struct Queue {
    packets: VecDeque<(Time, Vec<u8>)>,
    /// Bytes of its packets, with their overhead.
    bytes: usize,
    deficit: i64,
    is_listed: bool,
    codel: CoDelState,
    /// When its last packet left that shared its turns with packets of others; see [`SPARSE_AFTER`].
    dense_at: Option<Time>,
}

/// What became of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) marked: u64,
    pub(crate) dropped: u64,
    /// Packets that were dropped for want of room.
    pub(crate) overflowed: u64,
}

/// A packet that leaves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) packet: Vec<u8>,
    /// The number of its queue.
    pub(crate) queue: usize,
    /// Its flow sends little, so that it may overtake those of others. None overtakes one of its own flow.
    pub(crate) is_sparse: bool,
}

/// The queue of all flows.
#[derive(Debug)]
pub(crate) struct FqCodel {
    queues: Vec<Option<Box<Queue>>>,
    kept: usize,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    /// Bytes of all packets, with their overhead.
    bytes: usize,
    bytes_max: usize,
    seed: u64,
    settings: CoDel,
    counts: Counts,
}

impl FqCodel {
    /// A queue of at most so many bytes. Who knows the seed can have flows share a queue.
    pub(crate) fn new(bytes_max: usize, seed: u64) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(QUEUES, || None);
        Self {
            queues,
            kept: 0,
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            bytes_max,
            seed,
            settings: CoDel::default(),
            counts: Counts::default(),
        }
    }

    /// Whoever is told of congestion takes such a round trip, or longer, to answer (section 5.2): a queue may last for two of them, 100 ms at least, and a
    /// twentieth of that is none.
    pub(crate) fn suit(&mut self, rtt: Duration) {
        let interval = CoDel::default().interval.max(2 * rtt);
        self.settings.interval = interval;
        self.settings.target = interval / 20;
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn number(&self, packet: &[u8]) -> usize {
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        FlowKey::of(packet).hash(&mut hasher);
        (hasher.finish() % QUEUES as u64) as usize
    }

    /// Takes an IP packet.
    pub(crate) fn push(&mut self, now: Time, packet: Vec<u8>) {
        let number = self.number(&packet);
        let (kept, settings) = (&mut self.kept, &self.settings);
        let queue = self.queues[number].get_or_insert_with(|| {
            *kept += 1;
            Box::new(Queue {
                packets: VecDeque::new(),
                bytes: 0,
                deficit: 0,
                is_listed: false,
                codel: CoDelState::new(settings),
                dense_at: None,
            })
        });
        if queue.packets.is_empty() {
            queue.codel.idle();
        }
        self.bytes += packet.len() + PACKET_OVERHEAD;
        queue.bytes += packet.len() + PACKET_OVERHEAD;
        queue.packets.push_back((now, packet));
        if !queue.is_listed {
            queue.is_listed = true;
            queue.deficit = QUANTUM;
            self.new.push_back(number);
        }
        while self.bytes > self.bytes_max {
            self.make_room();
        }
    }

    /// Drops the oldest packets of the fattest flow: half of them by bytes, but not very many.
    fn make_room(&mut self) {
        let queues = self.queues.iter_mut().flatten();
        let Some(fattest) = queues.max_by_key(|queue| queue.bytes) else {
            return;
        };
        let half = fattest.bytes / 2;
        for _ in 0..DROPS_MAX {
            let Some((_, packet)) = fattest.packets.pop_front() else {
                return;
            };
            fattest.bytes -= packet.len() + PACKET_OVERHEAD;
            self.bytes -= packet.len() + PACKET_OVERHEAD;
            self.counts.overflowed += 1;
            if fattest.bytes <= half {
                return;
            }
        }
    }

    /// The next packet, which leaves now.
    pub(crate) fn pop(&mut self, now: Time) -> Option<Departure> {
        loop {
            let is_new = !self.new.is_empty();
            let list = match is_new {
                true => &mut self.new,
                false => &mut self.old,
            };
            let Some(number) = list.pop_front() else {
                self.forget();
                return None;
            };
            let Some(queue) = self.queues[number].as_deref_mut() else {
                continue;
            };
            if queue.deficit <= 0 {
                queue.deficit += QUANTUM;
                self.old.push_back(number);
                continue;
            }
            queue.codel.set(&self.settings);
            match queue.leave(now, (&mut self.bytes, &mut self.counts)) {
                Some(packet) => {
                    queue.deficit -= packet.len() as i64;
                    // It stays first until its turn is over.
                    match is_new {
                        true => self.new.push_front(number),
                        false => self.old.push_front(number),
                    }
                    self.counts.sent += 1;
                    let is_sparse =
                        is_new && queue.dense_at.is_none_or(|at| at + SPARSE_AFTER <= now);
                    if !is_sparse {
                        queue.dense_at = Some(now);
                    }
                    return Some(Departure {
                        packet,
                        queue: number,
                        is_sparse,
                    });
                }
                // It may not come back as a new one at once, or it would be served before the others for ever.
                None if is_new && !self.old.is_empty() => self.old.push_back(number),
                None => queue.is_listed = false,
            }
        }
    }

    /// Queues of flows that are over go, while nothing waits.
    fn forget(&mut self) {
        if self.kept > KEPT_MAX {
            self.queues.fill_with(|| None);
            self.kept = 0;
        }
    }
}

impl Queue {
    /// Takes the next packet that is not dropped.
    fn leave(&mut self, now: Time, (bytes, counts): (&mut usize, &mut Counts)) -> Option<Vec<u8>> {
        loop {
            let (came, mut packet) = self.packets.pop_front()?;
            self.bytes -= packet.len() + PACKET_OVERHEAD;
            *bytes -= packet.len() + PACKET_OVERHEAD;
            let is_last = self.bytes <= PACKET_MAX;
            let sojourn = now.saturating_sub(came);
            match self.codel.leaving(now, sojourn, is_last) {
                Verdict::Pass => return Some(packet),
                Verdict::Signal if mark_ce(&mut packet) => {
                    counts.marked += 1;
                    return Some(packet);
                }
                Verdict::Signal => counts.dropped += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = 1_000_000;
    const SECOND: Time = 1000 * MS;

    /// A UDP packet of IPv4 from this port, with these ECN bits.
    fn packet(port: u16, len: usize, ecn: u8) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[1] = ecn;
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[10, 9, 0, 2, 10, 9, 0, 1]);
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet
    }

    fn port(packet: &[u8]) -> u16 {
        u16::from_be_bytes([packet[20], packet[21]])
    }

    /// Two ports whose flows have queues of their own.
    fn two(queue: &FqCodel) -> [u16; 2] {
        let number = |port| queue.number(&packet(port, 100, 0));
        let other = (2..).find(|port| number(*port) != number(1));
        [1, other.expect("one of them")]
    }

    /// Offers flows at rates in packets of 1000 bytes per second, and drains `rate` of them: the packets that came out, with their sojourn.
    fn run(
        queue: &mut FqCodel,
        flows: &[(u16, u64, u8)],
        rate: u64,
        seconds: u64,
    ) -> Vec<(u16, Time, u8)> {
        let mut left = Vec::new();
        let mut came = std::collections::HashMap::<u16, VecDeque<Time>>::new();
        let mut next: Vec<Time> = vec![0; flows.len()];
        let mut departs = 0;
        while departs < seconds * SECOND {
            for (at, (port, per_second, ecn)) in next.iter_mut().zip(flows) {
                while *at <= departs {
                    let mut packet = packet(*port, 1000, *ecn);
                    packet[22..30].copy_from_slice(&at.to_be_bytes());
                    queue.push(*at, packet);
                    came.entry(*port).or_default().push_back(*at);
                    *at += SECOND / per_second;
                }
            }
            if let Some(departure) = queue.pop(departs) {
                let packet = departure.packet;
                let at = u64::from_be_bytes(packet[22..30].try_into().expect("eight bytes"));
                left.push((port(&packet), departs - at, packet[1] & 3));
            }
            departs += SECOND / rate;
        }
        left
    }

    /// One that has just taken turns with others is not urgent again as soon as its queue has been empty.
    #[test]
    fn no_packet_overtakes_one_of_its_flow() {
        let mut queue = FqCodel::new(1 << 20, 7);
        let mut sparse = |at: Time, packets: usize| -> Vec<bool> {
            for _ in 0..packets {
                queue.push(at, packet(1, 1000, 0));
            }
            let left = std::iter::from_fn(|| queue.pop(at));
            left.map(|departure| departure.is_sparse).collect()
        };
        assert_eq!(sparse(0, 1), [true]);
        assert_eq!(sparse(MS, 4), [true, true, false, false]);
        assert_eq!(sparse(2 * MS, 1), [false]);
        assert_eq!(sparse(101 * MS, 1), [false]);
        assert_eq!(sparse(201 * MS, 1), [true]);
    }

    #[test]
    fn order_within_a_flow_and_turns_between_flows() {
        let mut queue = FqCodel::new(1 << 20, 7);
        let [a, b] = two(&queue);
        for n in 0..6 {
            for port in [a, b] {
                let mut packet = packet(port, 1514, 0);
                packet[30] = n;
                queue.push(0, packet);
            }
        }
        let left: Vec<_> = std::iter::from_fn(|| queue.pop(1))
            .map(|departure| (port(&departure.packet), departure.packet[30]))
            .collect();
        let expected: Vec<_> = (0..6).flat_map(|n| [(a, n), (b, n)]).collect();
        assert_eq!(left, expected);
        assert!(queue.is_empty());
    }

    /// A flow that fills the queue is held to its share; one that sends little hardly waits.
    #[test]
    fn the_sparse_go_first() {
        let mut queue = FqCodel::new(4 << 20, 7);
        let [bulk, sparse] = two(&queue);
        let left = run(&mut queue, &[(bulk, 2000, 0), (sparse, 50, 0)], 1000, 5);
        let waits: Vec<_> = left.iter().filter(|of| of.0 == sparse).collect();
        assert!(waits.len() >= 248, "{}", waits.len());
        let longest = waits.iter().map(|of| of.1).max();
        assert!(longest <= Some(3 * MS), "{longest:?}");
    }

    /// Twice what leaves is offered by a flow that does not react: CoDel holds the wait of one that can be marked by marking, of others by dropping.
    #[test]
    fn congestion_is_marked_where_it_can_be_and_dropped_elsewhere() {
        for ecn in [0, 2] {
            let mut queue = FqCodel::new(4 << 20, 7);
            let left = run(&mut queue, &[(1, 1010, ecn)], 1000, 20);
            let counts = queue.counts();
            match ecn {
                0 => assert!(counts.dropped > 10 && counts.marked == 0, "{counts:?}"),
                _ => assert!(counts.marked > 10 && counts.dropped == 0, "{counts:?}"),
            }
            assert_eq!(
                left.iter().filter(|of| of.2 == 3).count() as u64,
                counts.marked
            );
            // One that drops catches up.
            let last: Vec<_> = left[left.len() - 1000..].iter().map(|of| of.1).collect();
            let longest = last.iter().max().expect("they left");
            assert!(ecn == 2 || *longest < 50 * MS, "{longest}");
        }
    }

    #[test]
    fn a_short_burst_is_left_alone() {
        let mut queue = FqCodel::new(4 << 20, 7);
        for n in 0..90 {
            queue.push(n, packet(1, 1000, 2));
        }
        let mut left = 0;
        while queue.pop(left * MS).is_some() {
            left += 1;
        }
        assert_eq!((left, queue.counts().marked), (90, 0));
    }

    #[test]
    fn without_room_the_fattest_flow_pays() {
        let mut queue = FqCodel::new(100_000, 7);
        let [fat, thin] = two(&queue);
        for n in 0..1000 {
            queue.push(n, packet(fat, 1000, 0));
            if n % 100 == 0 {
                queue.push(n, packet(thin, 1000, 0));
            }
            assert!(queue.bytes <= 100_000);
        }
        assert!(queue.counts().overflowed > 800);
        let left = std::iter::from_fn(|| queue.pop(1000));
        let thin = left.filter(|departure| port(&departure.packet) == thin);
        assert_eq!(thin.count(), 10);
    }

    #[test]
    fn one_packet_that_is_too_large_for_all_room_leaves_none() {
        let mut queue = FqCodel::new(1000, 7);
        queue.push(0, packet(1, 2000, 0));
        assert!(queue.is_empty() && queue.pop(0).is_none());
        queue.push(0, packet(1, 500, 0));
        assert!(queue.pop(0).is_some());
    }

    #[test]
    fn memory_of_flows_that_are_over_is_given_back() {
        let mut queue = FqCodel::new(1 << 20, 7);
        for port in 0..2000 {
            queue.push(0, packet(port, 100, 0));
        }
        while queue.pop(0).is_some() {}
        assert_eq!(queue.kept, 0);
        assert!(queue.queues.iter().all(Option::is_none));
    }
}
