//! What the emulator sees of flows: when data was first sent, when it first arrived, when it was acknowledged.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use etherparse::{SlicedPacket, TcpSlice, TransportSlice};
use sphinx_link::{
    Time,
    front::{Observer, Side},
};

use super::{Delays, Group, Work};

/// Both edges of a path tell it what passes.
#[derive(Debug)]
pub(crate) struct Watch {
    /// What each group sends, by its port.
    groups: HashMap<u16, Sending>,
    /// Flows by the port of their group and the port at the other end.
    flows: HashMap<(u16, u16), Flow>,
}

/// One of the two places where the path ends.
pub(crate) struct Edge {
    watch: Arc<Mutex<Watch>>,
    /// The side of the hop that is the end of the path.
    side: Side,
    /// Whether this is the left end.
    is_left: bool,
}

/// What a group sends.
#[derive(Clone, Copy, Debug)]
struct Sending {
    /// Bytes of one message; 0 if the group sends no messages.
    message_bytes: u64,
    /// Whether the right host sends.
    upload: bool,
    /// Whoever sends has listened; else it has connected.
    by_listener: bool,
}

#[derive(Debug, Default)]
struct Flow {
    /// The sequence number of the first byte.
    first: Option<u32>,
    message_bytes: u64,
    messages: Vec<Message>,
    /// Messages that are acknowledged.
    acknowledged: usize,
    /// Packets on their way, by the offset of their end; none if that was sent more than once.
    on_their_way: HashMap<u64, Option<Instant>>,
    transits: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Message {
    sent: Option<Instant>,
    arrived: Option<Instant>,
    acknowledged: Option<Instant>,
}

/// What was seen of a group.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) one_way: Delays,
    pub(super) ack: Delays,
    pub(super) transit: Delays,
}

impl Watch {
    pub(crate) fn new(groups: &[Group], upload: bool) -> Watch {
        let bytes = |group: &Group| match group.work {
            // Greedy flows have no messages, and each object has a connection of its own.
            Work::Greedy | Work::Fetches { .. } => 0,
            Work::Messages { bytes, .. } => bytes,
        };
        Watch {
            groups: groups
                .iter()
                .map(|it| {
                    let sending = Sending {
                        message_bytes: bytes(it),
                        upload: it.is_upload(upload),
                        by_listener: it.sender_listens(upload),
                    };
                    (it.port, sending)
                })
                .collect(),
            flows: HashMap::new(),
        }
    }

    pub(super) fn seen(&self, port: u16) -> Seen {
        let flows = || self.flows.iter().filter(|(key, _)| key.0 == port);
        let messages = || flows().flat_map(|(_, flow)| &flow.messages);
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to)
                .map(|(from, to)| to.saturating_duration_since(from))
        };
        Seen {
            one_way: messages()
                .filter_map(|it| between(it.sent, it.arrived))
                .collect(),
            ack: messages()
                .filter_map(|it| between(it.sent, it.acknowledged))
                .collect(),
            transit: flows()
                .flat_map(|(_, flow)| flow.transits.iter().copied())
                .collect(),
        }
    }

    fn packet(&mut self, is_left: bool, packet: &[u8], now: Instant) {
        let Ok(SlicedPacket {
            transport: Some(TransportSlice::Tcp(tcp)),
            ..
        }) = SlicedPacket::from_ip(packet)
        else {
            return;
        };
        let (source, destination) = (tcp.source_port(), tcp.destination_port());
        let (key, to_listener) = match self.groups.contains_key(&destination) {
            true => ((destination, source), true),
            false => ((source, destination), false),
        };
        let Some(&sending) = self.groups.get(&key.0) else {
            return;
        };
        let flow = self.flows.entry(key).or_default();
        flow.message_bytes = sending.message_bytes;
        match (
            to_listener != sending.by_listener,
            is_left != sending.upload,
        ) {
            (true, true) => flow.sent(&tcp, now),
            (true, false) => flow.arrived(&tcp, now),
            (false, true) => flow.acknowledged(&tcp, now),
            (false, false) => {}
        }
    }
}

impl Flow {
    /// Where the data of a packet ends, from the first byte of the flow; none without data.
    fn end(&self, tcp: &TcpSlice<'_>) -> Option<u64> {
        let first = self
            .first
            .filter(|_| !tcp.payload().is_empty() && !tcp.syn())?;
        let from = u64::from(tcp.sequence_number().wrapping_sub(first));
        Some(from + tcp.payload().len() as u64)
    }

    /// The messages that a packet ends or holds whole.
    fn covered(&self, tcp: &TcpSlice<'_>, end: u64) -> std::ops::Range<usize> {
        let bytes = self.message_bytes.max(1);
        let start = end.saturating_sub(tcp.payload().len() as u64);
        ((start / bytes) as usize)..((end / bytes) as usize)
    }

    fn message(&mut self, index: usize) -> &mut Message {
        if self.messages.len() <= index {
            self.messages.resize(index + 1, Message::default());
        }
        &mut self.messages[index]
    }

    fn sent(&mut self, tcp: &TcpSlice<'_>, now: Instant) {
        if tcp.syn() {
            self.first = Some(tcp.sequence_number().wrapping_add(1));
        }
        let Some(end) = self.end(tcp) else { return };
        let again = self.on_their_way.contains_key(&end);
        self.on_their_way.insert(end, (!again).then_some(now));
        if self.message_bytes > 0 {
            for index in self.covered(tcp, end) {
                self.message(index).sent.get_or_insert(now);
            }
        }
    }

    fn arrived(&mut self, tcp: &TcpSlice<'_>, now: Instant) {
        let Some(end) = self.end(tcp) else { return };
        if let Some(Some(sent)) = self.on_their_way.remove(&end) {
            self.transits.push(now.saturating_duration_since(sent));
        }
        if self.message_bytes > 0 {
            for index in self.covered(tcp, end) {
                self.message(index).arrived.get_or_insert(now);
            }
        }
    }

    fn acknowledged(&mut self, tcp: &TcpSlice<'_>, now: Instant) {
        let Some(first) = self.first.filter(|_| tcp.ack() && !tcp.syn()) else {
            return;
        };
        if self.message_bytes == 0 {
            return;
        }
        let until = tcp.acknowledgment_number().wrapping_sub(first);
        // What is older than the first byte is not of this connection.
        let whole = (u64::from(until) / self.message_bytes) as usize;
        let whole = whole.min(self.messages.len());
        for index in self.acknowledged..whole {
            self.message(index).acknowledged = Some(now);
        }
        self.acknowledged = self.acknowledged.max(whole);
    }
}

impl Edge {
    /// The edge at `side` of its hop.
    pub(crate) fn new(watch: &Arc<Mutex<Watch>>, side: Side, is_left: bool) -> Edge {
        Edge {
            watch: watch.clone(),
            side,
            is_left,
        }
    }
}

impl Observer for Edge {
    fn packet(&mut self, side: Side, _at: Time, packet: &[u8]) {
        if side == self.side {
            // The time of the call is that of one link. Both ends of the path need one clock.
            let now = Instant::now();
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            watch.packet(self.is_left, packet, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const GROUP: u16 = 7001;
    const OTHER: u16 = 40_000;

    /// Bits of a packet's header.
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Syn,
        Plain,
    }

    fn packet(
        (from, to): (u16, u16),
        kind: Kind,
        (sequence, ack): (u32, u32),
        payload: &[u8],
    ) -> Vec<u8> {
        let builder =
            PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(from, to, sequence, 1000);
        let builder = match kind {
            Kind::Syn => builder.syn(),
            Kind::Plain => builder.ack(ack),
        };
        let mut bytes = Vec::new();
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    /// Messages of ten bytes from the right host, the second one lost once and repaired by a copy in the third packet.
    #[test]
    fn delays_are_those_of_the_first_packet_that_carries_a_message() {
        let group = Group::parse("bytes=10B interval=30ms", 0, "cubic").unwrap();
        for wrapped in [100, u32::MAX - 14] {
            let mut watch = Watch::new(std::slice::from_ref(&group), true);
            let start = Instant::now();
            let at = |ms| start + Duration::from_millis(ms);
            let up = (OTHER, GROUP);
            let data = |from: u32, count| {
                let payload = vec![7; count];
                packet(
                    up,
                    Kind::Plain,
                    (wrapped.wrapping_add(1 + from), 1),
                    &payload,
                )
            };
            watch.packet(false, &packet(up, Kind::Syn, (wrapped, 0), &[]), at(0));
            watch.packet(false, &data(0, 10), at(10));
            watch.packet(false, &data(10, 10), at(40));
            watch.packet(true, &data(0, 10), at(50));
            watch.packet(false, &data(10, 20), at(70));
            let ack = |until: u32| {
                packet(
                    (GROUP, OTHER),
                    Kind::Plain,
                    (1, wrapped.wrapping_add(1 + until)),
                    &[],
                )
            };
            watch.packet(false, &ack(10), at(90));
            watch.packet(true, &data(10, 20), at(110));
            watch.packet(false, &ack(30), at(150));
            // A packet of no group, and one that is no IP packet, are ignored.
            watch.packet(false, &packet((5, 6), Kind::Plain, (1, 1), b"x"), at(160));
            watch.packet(false, b"no packet", at(160));
            let seen = watch.seen(GROUP);
            let ms = |list: &[u64]| {
                list.iter()
                    .map(|it| Duration::from_millis(*it))
                    .collect::<Delays>()
            };
            assert_eq!(seen.one_way, ms(&[40, 70, 40]));
            assert_eq!(seen.ack, ms(&[80, 110, 80]));
            assert_eq!(seen.transit, ms(&[40, 40]));
        }
    }

    #[test]
    fn what_is_sent_twice_tells_nothing_of_the_queue() {
        let group = Group::parse("greedy", 0, "cubic").unwrap();
        let mut watch = Watch::new(&[group], false);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let down = (GROUP, OTHER);
        watch.packet(true, &packet(down, Kind::Syn, (0, 0), &[]), at(0));
        let data = packet(down, Kind::Plain, (1, 1), &[7; 100]);
        watch.packet(true, &data, at(10));
        watch.packet(true, &data, at(200));
        watch.packet(false, &data, at(250));
        let next = packet(down, Kind::Plain, (101, 1), &[7; 100]);
        watch.packet(true, &next, at(300));
        watch.packet(false, &next, at(325));
        let seen = watch.seen(GROUP);
        assert_eq!(
            seen.transit,
            [Duration::from_millis(25)].into_iter().collect()
        );
        assert_eq!((seen.one_way.count(), seen.ack.count()), (0, 0));
    }
}
