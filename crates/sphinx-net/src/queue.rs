//! Frames that are taken to be sent, next to each other where the kernel can cut them up.

use std::io;

use crate::io::{DATAGRAM_BATCH_BYTES_MAX, Written};
use crate::{Destination, Dropped};

/// Fills frames before they are written, in debug builds, so that code which relies on zeros fails.
const UNWRITTEN: u8 = 0xa5;

/// Datagrams for one destination, adjacent in one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transmit {
    pub(crate) to: Destination,
    /// Length of every datagram but the last, which may be shorter, in bytes. 0 means that there
    /// is one datagram.
    pub(crate) segment_size: usize,
    /// Which memory it is: 0 is the arena, others have been taken over.
    pub(crate) memory: usize,
    /// Where the first datagram starts in it, in bytes.
    pub(crate) offset: usize,
    /// Bytes of all datagrams together. A descriptor of length 0 sends nothing.
    pub(crate) len: usize,
}

impl Transmit {
    /// How many datagrams the descriptor holds.
    pub(crate) fn datagrams(&self) -> usize {
        match self.segment_size {
            0 => usize::from(self.len > 0),
            size => self.len.div_ceil(size),
        }
    }
}

/// Where the bytes of descriptors lie.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    arena: &'a [u8],
    taken_over: &'a [Written],
}

impl<'a> Memory<'a> {
    /// Memory that is an arena alone.
    pub(crate) fn of(arena: &'a [u8]) -> Self {
        Self {
            arena,
            taken_over: &[],
        }
    }

    /// A descriptor's bytes; `None` if they are not there.
    pub(crate) fn bytes(&self, transmit: &Transmit) -> Option<&'a [u8]> {
        let memory = match transmit.memory.checked_sub(1) {
            None => self.arena,
            Some(at) => (**self.taken_over.get(at)?).as_ref(),
        };
        let end = transmit.offset.checked_add(transmit.len)?;
        memory.get(transmit.offset..end)
    }
}

/// Frames in one piece of memory, memory that was taken over, and the descriptors that cut them up: for a back end whose sends take any
/// slice.
pub(crate) struct FrameQueue {
    /// Allocated once: frames do not move.
    arena: Box<[u8]>,
    /// Bytes of `arena` that are taken.
    taken: usize,
    /// Memory that was taken over, and bytes of datagrams in it.
    taken_over: Vec<Written>,
    taken_over_bytes: usize,
    transmits: Vec<Transmit>,
    /// How many datagrams the last of them has got, and whether all have its segment size: to divide for each of them is dear.
    datagrams: usize,
    is_even: bool,
    /// Descriptors before this one are finished.
    finished: usize,
    /// Working memory of one flush.
    drops: Vec<(usize, Dropped)>,
}

impl FrameQueue {
    /// No frames, and room for `capacity` bytes of them. The system gives the memory when it is used.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            arena: vec![0; capacity].into_boxed_slice(),
            taken: 0,
            taken_over: Vec::new(),
            taken_over_bytes: 0,
            transmits: Vec::new(),
            datagrams: 0,
            is_even: false,
            finished: 0,
            drops: Vec::new(),
        }
    }

    /// See [`PacketTx::taken_bytes`](crate::PacketTx::taken_bytes).
    pub(crate) fn taken_bytes(&self) -> usize {
        self.taken + self.taken_over_bytes
    }

    /// See [`PacketTx::take_over`](crate::PacketTx::take_over). All that is taken together is at most as much as the arena.
    pub(crate) fn take_over(
        &mut self,
        to: &Destination,
        memory: Written,
        lens: &mut dyn Iterator<Item = usize>,
        segments_max: usize,
    ) {
        let room = self.arena.len().saturating_sub(self.taken_bytes());
        let room = room.min((*memory).as_ref().len());
        self.taken_over.push(memory);
        let memory = self.taken_over.len();
        let mut offset = 0;
        for len in lens {
            if len > room - offset {
                break;
            }
            self.describe(to, (memory, offset, len), segments_max);
            offset += len;
        }
        self.taken_over_bytes += offset;
    }

    /// Adds a descriptor of a datagram that lies in memory.
    #[inline]
    fn describe(
        &mut self,
        to: &Destination,
        (memory, offset, len): (usize, usize, usize),
        segments_max: usize,
    ) {
        let is_open = self.is_even && self.datagrams < segments_max;
        match self.transmits[self.finished..].last_mut() {
            Some(last) if is_open && last.memory == memory && joins(last, to, len) => {
                last.len += len;
                self.datagrams += 1;
                self.is_even = len == last.segment_size;
            }
            _ => {
                self.transmits.push(Transmit {
                    to: *to,
                    segment_size: len,
                    memory,
                    offset,
                    len,
                });
                (self.datagrams, self.is_even) = (1, len > 0);
            }
        }
    }

    /// See [`PacketTx::frame`](crate::PacketTx::frame). At most `segments_max` datagrams share a descriptor.
    pub(crate) fn frame(
        &mut self,
        to: &Destination,
        len: usize,
        segments_max: usize,
    ) -> Option<&mut [u8]> {
        let offset = self.taken;
        let end = offset.checked_add(len)?;
        if end > self.arena.len().checked_sub(self.taken_over_bytes)? {
            return None;
        }
        self.taken = end;
        self.describe(to, (0, offset, len), segments_max);
        let frame = &mut self.arena[offset..end];
        if cfg!(debug_assertions) {
            frame.fill(UNWRITTEN);
        }
        Some(frame)
    }

    /// See [`PacketTx::frames`](crate::PacketTx::frames).
    pub(crate) fn frames(
        &mut self,
        to: &Destination,
        (len, most): (usize, usize),
        segments_max: usize,
    ) -> Option<&mut [u8]> {
        let room = self.arena.len().checked_sub(self.taken_bytes())?;
        let count = room.checked_div(len).unwrap_or(1).min(most.max(1));
        if count == 0 {
            return None;
        }
        let offset = self.taken;
        self.taken += count * len;
        let mut left = count;
        while left > 0 {
            let at = self.taken - left * len;
            self.describe(to, (0, at, len), segments_max);
            left -= 1;
            if let Some(last) = self.transmits.last_mut()
                && self.is_even
                && last.segment_size == len
            {
                // Further datagrams of the same size and destination join its descriptor.
                let bytes = DATAGRAM_BATCH_BYTES_MAX.saturating_sub(last.len);
                let more = segments_max.saturating_sub(self.datagrams).min(bytes / len);
                let more = more.min(left);
                last.len += more * len;
                self.datagrams += more;
                left -= more;
            }
        }
        let frames = &mut self.arena[offset..self.taken];
        if cfg!(debug_assertions) {
            frames.fill(UNWRITTEN);
        }
        Some(frames)
    }

    /// See [`PacketTx::flush`](crate::PacketTx::flush). `send` gets the memory and the descriptors into it, and
    /// returns how many leading ones are finished: sent or dropped. It appends what it drops, with the index of the
    /// descriptor, and may shorten the first descriptor that is not finished by datagrams that went
    /// out already.
    pub(crate) fn flush(
        &mut self,
        dropped: &mut Vec<(Destination, Dropped)>,
        send: impl FnOnce(Memory<'_>, &mut [Transmit], &mut Vec<(usize, Dropped)>) -> io::Result<usize>,
    ) -> io::Result<bool> {
        if self.finished < self.transmits.len() {
            let waiting = &mut self.transmits[self.finished..];
            let memory = Memory {
                arena: &self.arena[..self.taken],
                taken_over: &self.taken_over,
            };
            let finished = send(memory, waiting, &mut self.drops)?;
            dropped.extend(
                self.drops
                    .drain(..)
                    .filter_map(|(index, drop)| Some((waiting.get(index)?.to, drop))),
            );
            self.finished += finished;
        }
        let all = self.finished == self.transmits.len();
        if all {
            self.taken = 0;
            self.taken_over.clear();
            self.taken_over_bytes = 0;
            self.transmits.clear();
            self.finished = 0;
        }
        Ok(all)
    }
}

/// Whether a datagram of `len` bytes, placed right behind `last`, can be part of it, whose datagrams are equal and not too many.
fn joins(last: &Transmit, to: &Destination, len: usize) -> bool {
    (1..=last.segment_size).contains(&len)
        && last.len + len <= DATAGRAM_BATCH_BYTES_MAX
        && last.to == *to
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::Ecn;

    fn to(port: u16) -> Destination {
        let remote = SocketAddr::from(([127, 0, 0, 1], port));
        Destination {
            remote,
            local_ip: None,
            ecn: Ecn::Ect0,
        }
    }

    fn shape(queue: &FrameQueue) -> Vec<(u16, usize, usize, usize)> {
        let shape = |t: &Transmit| (t.to.remote.port(), t.segment_size, t.offset, t.len);
        queue.transmits.iter().map(shape).collect()
    }

    #[test]
    fn transmit_counts_a_short_last_datagram() {
        let mut transmit = Transmit {
            to: to(1),
            segment_size: 100,
            memory: 0,
            offset: 0,
            len: 250,
        };
        assert_eq!(transmit.datagrams(), 3);
        transmit.segment_size = 0;
        assert_eq!(transmit.datagrams(), 1);
        transmit.len = 0;
        assert_eq!(transmit.datagrams(), 0);
    }

    #[test]
    fn equal_datagrams_share_a_descriptor_and_a_shorter_one_closes_it() {
        let mut queue = FrameQueue::new(200_000);
        for len in [100, 100, 40, 40, 100] {
            assert_eq!(queue.frame(&to(1), len, 64).unwrap().len(), len);
        }
        assert_eq!(
            shape(&queue),
            [(1, 100, 0, 240), (1, 40, 240, 40), (1, 100, 280, 100)]
        );
    }

    #[test]
    fn frames_that_are_taken_together_are_as_those_that_are_taken_alone() {
        for (before, len, most, segments) in [
            (0, 100, 5, 64),
            (100, 100, 200, 64),
            (200, 100, 70, 1),
            (40, 1000, 150, 64),
            (100, 60_000, 9, 8),
            (7, 0, 3, 8),
        ] {
            let (mut alone, mut together) = (FrameQueue::new(200_000), FrameQueue::new(200_000));
            for queue in [&mut alone, &mut together] {
                queue.frame(&to(1), before, segments);
            }
            let taken = together.frames(&to(1), (len, most), segments).unwrap();
            let count = taken.len().checked_div(len).unwrap_or(1);
            for _ in 0..count {
                assert_eq!(alone.frame(&to(1), len, segments).unwrap().len(), len);
            }
            assert_eq!(shape(&together), shape(&alone), "{before} {len}");
            assert!(count == most || len == 0 || alone.frame(&to(1), len, segments).is_none());
            together.frame(&to(1), len, segments);
            alone.frame(&to(1), len, segments);
            assert_eq!(shape(&together), shape(&alone), "{before} {len}");
            assert_eq!(together.taken_bytes(), alone.taken_bytes());
        }
        let mut full = FrameQueue::new(99);
        assert!(full.frames(&to(1), (100, 3), 64).is_none());
    }

    #[test]
    fn another_destination_or_marking_starts_a_descriptor() {
        let mut queue = FrameQueue::new(200_000);
        queue.frame(&to(1), 100, 64);
        queue.frame(&to(2), 100, 64);
        queue.frame(
            &Destination {
                ecn: Ecn::NotEct,
                ..to(2)
            },
            100,
            64,
        );
        assert_eq!(
            shape(&queue),
            [(1, 100, 0, 100), (2, 100, 100, 100), (2, 100, 200, 100)]
        );
    }

    #[test]
    fn memory_that_is_taken_over_leaves_in_its_turn_and_has_its_share_of_the_room() {
        let mut queue = FrameQueue::new(1000);
        let written = |len| -> Written { Box::new(vec![7; len]) };
        queue.frame(&to(1), 100, 64).unwrap().fill(1);
        queue.take_over(&to(1), written(300), &mut [100, 100, 50].into_iter(), 64);
        queue.frame(&to(1), 50, 64).unwrap().fill(2);
        assert_eq!(queue.taken_bytes(), 400);
        // There is room for five of these, and then for none of whatever length.
        queue.take_over(&to(2), written(2000), &mut [120; 9].into_iter(), 64);
        assert_eq!(queue.taken_bytes(), 1000);
        assert!(queue.frame(&to(1), 1, 64).is_none());
        let mut left = Vec::new();
        let mut send = |memory: Memory<'_>, transmits: &mut [Transmit], count: usize| {
            for transmit in &transmits[..count] {
                let bytes = memory.bytes(transmit).unwrap();
                left.push((transmit.to.remote.port(), bytes.len(), bytes[0]));
            }
            Ok(count)
        };
        let first = queue.flush(&mut Vec::new(), |memory, transmits, _| {
            send(memory, transmits, 2)
        });
        assert!(!first.unwrap() && queue.taken_bytes() == 1000);
        let rest = queue.flush(&mut Vec::new(), |memory, transmits, _| {
            send(memory, transmits, 2)
        });
        assert!(rest.unwrap() && queue.taken_bytes() == 0);
        assert_eq!(left, [(1, 100, 1), (1, 250, 7), (1, 50, 2), (2, 600, 7)]);
        assert!(queue.frame(&to(1), 1000, 64).is_some());
    }

    #[test]
    fn the_limits_on_segments_and_bytes_hold() {
        let mut queue = FrameQueue::new(200_000);
        for _ in 0..5 {
            queue.frame(&to(1), 10, 2);
        }
        assert_eq!(
            shape(&queue),
            [(1, 10, 0, 20), (1, 10, 20, 20), (1, 10, 40, 10)]
        );
        let mut queue = FrameQueue::new(200_000);
        for _ in 0..3 {
            queue.frame(&to(1), 30_000, 64);
        }
        assert_eq!(
            shape(&queue),
            [(1, 30_000, 0, 60_000), (1, 30_000, 60_000, 30_000)]
        );
    }
}
