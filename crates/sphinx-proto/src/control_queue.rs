//! Frames that must arrive: each is sent again until a packet with it is acknowledged.
//!
//! Another kind of reliable frame is pushed here and needs nothing else: no timer, no entry in the log of packets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::wire::Frame;
use crate::{PacketNumber, PathId};

/// Lost packets that may still turn out to be late. What becomes of those that were lost before does not matter: their frames went again.
const LOST_MAX: usize = 64;
/// Frames that an honest peer leaves unacknowledged: those of streams that are given up all at once, and of thousands of live messages a second that
/// are out of date while the path is cut for a minute. One that acknowledges none of them, and goes on asking for more, would have all memory.
const FRAMES_MAX: usize = 1 << 17;

/// A packet: its path, and its number, which counts the packets of that path alone.
pub(crate) type Packet = (PathId, PacketNumber);

#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    /// The packet that it left in last.
    packet: Option<Packet>,
}

/// Frames that the peer may not have.
#[derive(Debug, Default)]
pub(crate) struct ControlQueue {
    /// By number, oldest first.
    frames: BTreeMap<u64, Waiting>,
    next: u64,
    /// Types and numbers of the frames in `frames`.
    kinds: BTreeSet<(u8, u64)>,
    /// Numbers of the frames that are to be sent, and the bytes of these frames.
    due: BTreeSet<u64>,
    due_bytes: usize,
    /// The frames of packets whose arrival is waited for: those under way, each with a frame that left in it last, and some that are lost.
    packets: BTreeMap<Packet, Vec<u64>>,
    /// Those that are lost, in the order in which that was heard.
    lost: VecDeque<Packet>,
}

impl ControlQueue {
    pub(crate) fn push(&mut self, frame: &Frame<'_>) {
        self.push_with(frame, None);
    }

    /// As [`push`](Self::push), and what belongs to the frame is always right behind it.
    pub(crate) fn push_with(&mut self, frame: &Frame<'_>, more: Option<&Frame<'_>>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        if let Some(more) = more {
            more.encode(&mut bytes);
        }
        self.due_bytes += bytes.len();
        self.kinds.insert((bytes[0], self.next));
        let waiting = Waiting {
            bytes,
            packet: None,
        };
        self.frames.insert(self.next, waiting);
        self.due.insert(self.next);
        self.next += 1;
    }

    /// As [`push`](Self::push), and frames of the same type that the peer may not have are of no use to it any more.
    pub(crate) fn push_newest(&mut self, frame: &Frame<'_>) {
        self.push(frame);
        let newest = self.next - 1;
        let kind = self.frames[&newest].bytes[0];
        let older: Vec<u64> = self.of_kind(kind).filter(|it| *it < newest).collect();
        older.into_iter().for_each(|number| self.forget(number));
    }

    /// Frames of this type.
    fn of_kind(&self, kind: u8) -> impl Iterator<Item = u64> {
        let range = self.kinds.range((kind, 0)..=(kind, u64::MAX));
        range.map(|(_, number)| *number)
    }

    /// How many frames the peer may not have.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether these are more than an honest peer leaves unacknowledged.
    pub(crate) fn is_overfull(&self) -> bool {
        self.len() > FRAMES_MAX
    }

    /// Whether a packet with frames is to leave.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Bytes of the frames that are to be sent.
    pub(crate) fn due_bytes(&self) -> usize {
        self.due_bytes
    }

    /// Writes frames that are to be sent behind `out`, the body of this packet, until that has `limit` bytes. Whether the packet
    /// carries some.
    pub(crate) fn write(&mut self, packet: Packet, limit: usize, out: &mut Vec<u8>) -> bool {
        let mut carried = Vec::new();
        while let Some(&number) = self.due.first() {
            let Some(waiting) = self.frames.get_mut(&number) else {
                self.due.remove(&number);
                continue;
            };
            if out.len() + waiting.bytes.len() > limit {
                break;
            }
            out.extend_from_slice(&waiting.bytes);
            waiting.packet = Some(packet);
            self.due_bytes -= waiting.bytes.len();
            self.due.remove(&number);
            carried.push(number);
        }
        if carried.is_empty() {
            return false;
        }
        self.packets.insert(packet, carried);
        true
    }

    /// Whether the peer has this frame, and what belongs to it, does not matter any more.
    pub(crate) fn cancel(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let same = self.of_kind(bytes[0]);
        let same: Vec<u64> = same
            // No frame begins as another of its type does that is shorter.
            .filter(|number| self.frames[number].bytes.starts_with(&bytes))
            .collect();
        same.into_iter().for_each(|number| self.forget(number));
    }

    fn forget(&mut self, number: u64) {
        let Some(frame) = self.frames.remove(&number) else {
            return;
        };
        self.kinds.remove(&(frame.bytes[0], number));
        if self.due.remove(&number) {
            self.due_bytes -= frame.bytes.len();
        }
        // If it was the last one of its packet, nobody waits for that any more.
        let Some(packet) = frame.packet else {
            return;
        };
        let is_known = |number: &u64| self.frames.contains_key(number);
        let carried = self.packets.get(&packet);
        if carried.is_some_and(|carried| !carried.iter().any(is_known)) {
            self.packets.remove(&packet);
        }
    }

    /// The packet has arrived.
    pub(crate) fn arrived(&mut self, packet: Packet) {
        let frames = self.packets.remove(&packet);
        let frames = frames.into_iter().flatten();
        frames.for_each(|number| self.forget(number));
        if self.frames.is_empty() {
            self.packets.clear();
            self.lost.clear();
        }
    }

    /// The packet is lost, as far as is known; it may still arrive.
    pub(crate) fn lost(&mut self, packet: Packet) {
        let Some(carried) = self.packets.get(&packet) else {
            return;
        };
        for number in carried {
            // Those that went again since are under way; others have arrived.
            let waiting = self.frames.get(number);
            if let Some(waiting) = waiting.filter(|waiting| waiting.packet == Some(packet))
                && self.due.insert(*number)
            {
                self.due_bytes += waiting.bytes.len();
            }
        }
        self.lost.push_back(packet);
        if self.lost.len() > LOST_MAX
            && let Some(oldest) = self.lost.pop_front()
        {
            self.packets.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WindowNumber;
    use crate::numbers::pn;

    fn at(number: u64) -> Packet {
        (PathId::FIRST, pn(number))
    }

    fn write(queue: &mut ControlQueue, packet: Packet) -> Vec<u8> {
        let mut out = Vec::new();
        queue.write(packet, 1000, &mut out);
        out
    }

    fn challenge(byte: u8) -> Frame<'static> {
        Frame::PathChallenge([byte; 8])
    }

    #[test]
    fn frames_go_again_until_they_arrive() {
        let mut queue = ControlQueue::default();
        assert!(!queue.is_due() && write(&mut queue, at(0)).is_empty());
        queue.push(&Frame::Ping);
        assert!(queue.is_due());
        assert_eq!(write(&mut queue, at(1)), [1]);
        assert!(!queue.is_due());
        queue.push(&Frame::Ping);
        assert_eq!(write(&mut queue, at(2)), [1]);
        queue.lost(at(1));
        queue.lost(at(2));
        assert!(queue.is_due());
        assert_eq!(write(&mut queue, at(3)), [1, 1]);
        // The first packet counted as lost, but arrives late.
        queue.arrived(at(2));
        queue.lost(at(3));
        assert_eq!(write(&mut queue, at(4)), [1]);
        // The frame left again in packet 4: the loss of packet 3 changes nothing.
        queue.lost(at(3));
        assert!(!queue.is_due());
        queue.arrived(at(4));
        assert!(queue.len() == 0 && queue.packets.is_empty());
    }

    /// Of a packet with the first frame and the last one, the one between has left in another.
    #[test]
    fn a_packet_brings_its_own_frames_only() {
        let mut queue = ControlQueue::default();
        queue.push(&challenge(0));
        queue.push(&challenge(1));
        write(&mut queue, at(1));
        queue.arrived(at(0));
        queue.lost(at(1));
        let mut out = Vec::new();
        assert!(queue.write(at(2), 9, &mut out));
        assert_eq!(out.len(), 9);
        queue.push(&challenge(2));
        write(&mut queue, at(3));
        queue.lost(at(3));
        write(&mut queue, at(4));
        queue.arrived(at(2));
        assert_eq!(queue.len(), 2);
        queue.arrived(at(3));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn what_does_not_fit_one_packet_goes_in_the_next() {
        let mut queue = ControlQueue::default();
        (0..10).for_each(|byte| queue.push(&challenge(byte)));
        assert_eq!(queue.due_bytes(), 90);
        let mut all = Vec::new();
        for packet_number in 0..4 {
            // Something else is in the packet already.
            let mut out = vec![0; 20];
            assert!(queue.write(at(packet_number), 20 + 3 * 9 + 8, &mut out));
            all.extend_from_slice(&out[20..]);
        }
        assert!(!queue.is_due() && queue.due_bytes() == 0);
        let bytes: Vec<u8> = (0..10)
            .flat_map(|byte| [[5].as_slice(), &[byte; 8]].concat())
            .collect();
        assert_eq!(all, bytes);
        assert!(!queue.write(at(4), 0, &mut all), "there is nothing more");
        queue.lost(at(1));
        assert_eq!(queue.due_bytes(), 27);
        queue.cancel(&challenge(4));
        assert_eq!(
            write(&mut queue, at(5)),
            [[5, 3, 3, 3, 3, 3, 3, 3, 3], [5; 9]].concat()
        );
    }

    #[test]
    fn what_belongs_to_a_frame_goes_and_is_cancelled_with_it() {
        let mut queue = ControlQueue::default();
        queue.push_with(&challenge(1), Some(&Frame::Ping));
        queue.push(&challenge(2));
        assert_eq!(queue.due_bytes(), 19);
        let mut out = Vec::new();
        assert!(!queue.write(at(1), 9, &mut out), "they do not part");
        assert!(queue.write(at(1), 10, &mut out));
        assert_eq!(out, [5, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        queue.lost(at(1));
        queue.cancel(&challenge(1));
        assert_eq!((queue.len(), queue.due_bytes()), (1, 9));
    }

    #[test]
    fn the_newest_of_a_type_takes_the_place_of_others() {
        let mut queue = ControlQueue::default();
        let held = |number| Frame::Held {
            number: WindowNumber::new(number),
        };
        queue.push(&challenge(0));
        queue.push_newest(&held(1));
        write(&mut queue, at(1));
        queue.push_newest(&held(2));
        queue.push_newest(&held(3));
        queue.lost(at(1));
        assert_eq!((queue.len(), queue.due_bytes()), (2, 11));
        let left = write(&mut queue, at(2));
        assert_eq!(left, [5, 0, 0, 0, 0, 0, 0, 0, 0, 13, 3]);
        queue.arrived(at(2));
        assert_eq!(queue.len(), 0);
    }

    /// The bookkeeping of packets under way outlives that of any number that are lost, on whichever path these were.
    #[test]
    fn what_is_under_way_is_waited_for_whatever_is_lost() {
        let mut queue = ControlQueue::default();
        let on = |path, number| (PathId::new(path), pn(number));
        (0..10).for_each(|byte| queue.push(&challenge(byte)));
        for number in 0..30 {
            write(&mut queue, on(1, number));
            queue.lost(on(1, number));
        }
        // Each in a packet of its own, which arrive but for the last one.
        for number in 30..40 {
            assert!(queue.write(on(1, number), 9, &mut Vec::new()));
        }
        (30..39).for_each(|number| queue.arrived(on(1, number)));
        assert_eq!(queue.len(), 1);
        queue.lost(on(1, 39));
        write(&mut queue, on(0, 0));
        queue.arrived(on(0, 0));
        assert_eq!(queue.len(), 0);
        // As long as one is under way, another is lost again and again.
        queue.push(&challenge(10));
        write(&mut queue, on(0, 1));
        queue.push(&challenge(11));
        for number in 40..140 {
            write(&mut queue, on(1, number));
            queue.lost(on(1, number));
        }
        queue.arrived(on(0, 1));
        assert_eq!(queue.len(), 1);
    }

    /// Each frame takes the place of the one before, which is under way and neither arrives nor is lost.
    #[test]
    fn packets_that_nobody_waits_for_are_forgotten() {
        let mut queue = ControlQueue::default();
        for number in 0..100 {
            queue.push_newest(&Frame::Held {
                number: WindowNumber::new(number),
            });
            write(&mut queue, at(number));
        }
        assert_eq!((queue.len(), queue.packets.len()), (1, 1));
        queue.arrived(at(99));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_costs_bounded_memory() {
        let mut queue = ControlQueue::default();
        queue.push(&Frame::Ping);
        for packet_number in 0..100 {
            write(&mut queue, at(packet_number));
            queue.lost(at(packet_number));
        }
        assert!(queue.is_due() && queue.packets.len() <= LOST_MAX + 1);
        queue.cancel(&Frame::Ping);
        assert!(!queue.is_due() && write(&mut queue, at(100)).is_empty());
    }
}
