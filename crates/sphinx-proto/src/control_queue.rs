//! Frames that must arrive: each is sent again until a packet with it is acknowledged.
//!
//! Another kind of reliable frame is pushed here and needs nothing else: no timer, no entry in the log of packets.

use std::collections::BTreeMap;

use crate::wire::Frame;

/// Packets whose fate is waited for; what becomes of older ones does not matter, as all their frames went again.
const PACKETS_MAX: usize = 16;

/// Frames on their way, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ControlQueue {
    /// Encoded frames by number, those that the peer may not have.
    frames: BTreeMap<u64, Vec<u8>>,
    next: u64,
    /// Which frames a packet carries: those from the first number up to the second.
    packets: BTreeMap<u64, (u64, u64)>,
    /// They are to be sent.
    due: bool,
}

impl ControlQueue {
    pub(crate) fn push(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.frames.insert(self.next, bytes);
        self.next += 1;
        self.due = true;
    }

    /// How many frames the peer may not have.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether a packet with the frames is to leave.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Writes all frames that the peer may not have into `out`, the body of this packet; whether there were any.
    /// They are few and short, and a packet leaves in any case: those on their way go again.
    pub(crate) fn write(&mut self, packet_number: u64, out: &mut Vec<u8>) -> bool {
        self.due = false;
        let Some((&first, _)) = self.frames.first_key_value() else {
            return false;
        };
        self.frames
            .values()
            .for_each(|bytes| out.extend_from_slice(bytes));
        self.packets.insert(packet_number, (first, self.next));
        if self.packets.len() > PACKETS_MAX {
            self.packets.pop_first();
        }
        true
    }

    /// Whether the peer has this frame does not matter any more.
    pub(crate) fn cancel(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.frames.retain(|_, known| *known != bytes);
        self.forget_packets();
    }

    /// Packets of whose frames none matters any more.
    fn forget_packets(&mut self) {
        let lowest = self.frames.first_key_value();
        let lowest = lowest.map_or(self.next, |(at, _)| *at);
        self.packets.retain(|_, (_, end)| *end > lowest);
    }

    /// The packet has arrived.
    pub(crate) fn arrived(&mut self, packet_number: u64) {
        let Some((first, end)) = self.packets.remove(&packet_number) else {
            return;
        };
        self.frames.retain(|at, _| !(first..end).contains(at));
        self.forget_packets();
    }

    /// The packet is lost, as far as is known; it may still arrive.
    pub(crate) fn lost(&mut self, packet_number: u64) {
        // Once all its frames have arrived in others, the packet is forgotten.
        self.due |= self.packets.contains_key(&packet_number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(queue: &mut ControlQueue, packet_number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        queue.write(packet_number, &mut out);
        out
    }

    #[test]
    fn frames_go_again_until_they_arrive() {
        let mut queue = ControlQueue::default();
        assert!(!queue.is_due() && write(&mut queue, 0).is_empty());
        queue.push(&Frame::Ping);
        assert!(queue.is_due());
        assert_eq!(write(&mut queue, 1), [1]);
        assert!(!queue.is_due());
        queue.push(&Frame::Ping);
        assert_eq!(write(&mut queue, 2), [1, 1]);
        queue.lost(2);
        assert!(queue.is_due());
        assert_eq!(write(&mut queue, 3), [1, 1]);
        queue.arrived(1);
        assert_eq!(write(&mut queue, 4), [1]);
        // Late, but it has arrived.
        queue.arrived(2);
        assert!(write(&mut queue, 5).is_empty());
        queue.lost(3);
        assert!(!queue.is_due() && queue.packets.is_empty());
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_costs_bounded_memory() {
        let mut queue = ControlQueue::default();
        queue.push(&Frame::Ping);
        for packet_number in 0..100 {
            write(&mut queue, packet_number);
            queue.lost(packet_number);
        }
        assert!(queue.is_due() && queue.packets.len() <= PACKETS_MAX);
        queue.cancel(&Frame::Ping);
        assert!(queue.packets.is_empty() && write(&mut queue, 100).is_empty());
    }
}
