//! What a sender has sent and its receiver has not acknowledged.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::Time;

/// Most segments that are remembered one by one; older ones are counted together.
const SEGMENTS_MAX: usize = 1024;
/// Longest payload of a segment, in bytes.
const PAYLOAD_MAX: u64 = 65_535;
/// Memory of a segment besides its payload, in bytes.
const OVERHEAD_BYTES: usize = 128;

/// A new segment of the sender, or a part of its stream that did not come by here.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) start: u64,
    /// Position behind its last byte, or behind its FIN.
    pub(super) end: u64,
    /// The payload; `None` once it may not be repeated any more.
    pub(super) data: Option<Bytes>,
    /// Where it began, also when a part of it is acknowledged.
    pub(super) first: u64,
    /// Where the packet begins that carried it: before `first` if it was a bundle.
    pub(super) wire_start: u64,
    pub(super) at: Time,
    /// Whether the sender has sent the segment again.
    pub(super) resent: bool,
    /// Whether the receiver has reported the segment.
    pub(super) arrived: bool,
    /// It is one segment that came by here: neither a gap, nor several that were merged.
    pub(super) seen: bool,
}

impl Sent {
    pub(super) fn is_bundle(&self) -> bool {
        self.wire_start < self.first
    }

    /// Bytes of payload in its packet.
    pub(super) fn wire_bytes(&self) -> usize {
        usize::try_from(self.end - self.wire_start).unwrap_or(usize::MAX)
    }
}

/// Segments in the order of the stream, without gaps from what is acknowledged to what was sent last.
#[derive(Debug)]
pub(super) struct Unacked {
    segments: VecDeque<Sent>,
    acknowledged: u64,
    highest: u64,
    bytes: usize,
}

impl Unacked {
    /// No segments yet, of a stream that begins at this position.
    pub(super) fn new(first: u64) -> Unacked {
        Unacked {
            segments: VecDeque::new(),
            acknowledged: first,
            highest: first,
            bytes: 0,
        }
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// Memory of the segments, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.segments.len() * OVERHEAD_BYTES
    }

    /// Segments that the receiver has not reported.
    pub(super) fn in_flight(&self) -> usize {
        let missing = |sent: &&Sent| !sent.arrived;
        self.segments.iter().filter(missing).count()
    }

    /// Bytes that are not acknowledged yet.
    pub(super) fn flight_bytes(&self) -> u64 {
        self.highest - self.acknowledged
    }

    /// The segments, oldest first; the last one was sent last.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.segments.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.segments.iter_mut()
    }

    /// A segment that goes on where the last one ended.
    pub(super) fn push(&mut self, sent: Sent) {
        self.highest = sent.end;
        self.bytes += sent.data.as_ref().map_or(0, Bytes::len);
        self.segments.push_back(sent);
        if self.segments.len() > SEGMENTS_MAX {
            // The two oldest entries become one.
            self.drop_data(0);
            self.drop_data(1);
            if let Some(oldest) = self.segments.pop_front() {
                let merged = &mut self.segments[0];
                (merged.start, merged.first) = (oldest.start, oldest.first);
                (merged.wire_start, merged.seen) = (oldest.first, false);
            }
        }
        // What is further back than a packet is long cannot be repeated.
        let limit = self.highest.saturating_sub(PAYLOAD_MAX);
        let old = self.segments.partition_point(|it| it.start < limit);
        (0..old).for_each(|index| self.drop_data(index));
    }

    fn drop_data(&mut self, index: usize) {
        let data = self.segments[index].data.take();
        self.bytes -= data.map_or(0, |data| data.len());
    }

    /// The sender has gone on to a position by segments that did not come by here.
    pub(super) fn skip_to(&mut self, now: Time, end: u64) {
        if end > self.highest {
            let start = self.highest;
            self.push(Sent {
                start,
                end,
                data: None,
                first: start,
                wire_start: start,
                at: now,
                // So that nothing is learned from its acknowledgement.
                resent: true,
                arrived: false,
                seen: false,
            });
        }
    }

    /// The receiver has everything before a position.
    pub(super) fn acknowledge(&mut self, position: u64) {
        self.acknowledged = self.acknowledged.max(position);
        self.highest = self.highest.max(position);
        while let Some(oldest) = self.segments.front_mut() {
            if oldest.end <= self.acknowledged {
                self.drop_data(0);
                self.segments.pop_front();
                continue;
            }
            if let Some(done) = self.acknowledged.checked_sub(oldest.start) {
                // A part of the segment is acknowledged.
                let done = usize::try_from(done).unwrap_or(usize::MAX);
                if let Some(data) = &mut oldest.data {
                    self.bytes -= done.min(data.len());
                    *data = data.slice(done.min(data.len())..);
                }
                oldest.start = self.acknowledged;
            }
            break;
        }
    }
}
