//! Gathering datagrams into transmit descriptors.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::{DATAGRAM_BATCH_BYTES_MAX, Dropped, Ecn, PacketIo, Transmit};

/// Where datagrams go and how they are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where to send.
    pub remote: SocketAddr,
    /// Source address, or `None` to let routing choose.
    pub local_ip: Option<IpAddr>,
    /// ECN codepoint.
    pub ecn: Ecn,
}

/// Datagrams waiting to be sent: an arena of bytes and the descriptors that cut it up.
///
/// Datagrams that follow each other to the same destination share a descriptor while their sizes
/// allow it (all equal, the last may be shorter), so that they leave in one piece of work.
#[derive(Debug, Default)]
pub struct SendQueue {
    arena: Vec<u8>,
    transmits: Vec<Transmit>,
    /// Descriptors before this one are finished.
    finished: usize,
    /// Working memory of one flush.
    drops: Vec<Dropped>,
}

impl SendQueue {
    /// An empty queue with room for `capacity` bytes; it grows as needed.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            arena: Vec::with_capacity(capacity),
            ..Self::default()
        }
    }

    /// Whether nothing is left to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.finished == self.transmits.len()
    }

    /// Bytes held, sent ones included until the queue runs empty.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Queues one datagram of `len` bytes, all zero, and returns it to be filled in. The bytes
    /// keep their place until the queue has been [flushed](Self::flush). A datagram of length 0 is
    /// not sent.
    ///
    /// `segments_max` is the current [`Capabilities::segments_max`](crate::Capabilities).
    pub fn push(&mut self, to: &Destination, len: usize, segments_max: usize) -> &mut [u8] {
        let offset = self.arena.len();
        self.arena.resize(offset + len, 0);
        let open = self.transmits[self.finished..].last_mut();
        match open {
            Some(last) if joins(last, to, len, segments_max) => last.len += len,
            _ => self.transmits.push(Transmit {
                remote: to.remote,
                local_ip: to.local_ip,
                ecn: to.ecn,
                segment_size: len,
                offset,
                len,
            }),
        }
        &mut self.arena[offset..]
    }

    /// Sends what is queued and says whether all of it is gone. `false` means that the back end
    /// is full: flush again when it is writable. Drops are appended to `dropped`, with where the datagrams
    /// would have gone; their index counts the descriptors that were waiting when this call began.
    ///
    /// # Errors
    ///
    /// Those of [`PacketIo::send`].
    pub fn flush(
        &mut self,
        io: &mut dyn PacketIo,
        dropped: &mut Vec<(Destination, Dropped)>,
    ) -> io::Result<bool> {
        if !self.is_empty() {
            let waiting = &mut self.transmits[self.finished..];
            let finished = io.send(&self.arena, waiting, &mut self.drops)?;
            dropped.extend(self.drops.drain(..).filter_map(|drop| {
                let Transmit {
                    remote,
                    local_ip,
                    ecn,
                    ..
                } = *waiting.get(drop.index)?;
                let to = Destination {
                    remote,
                    local_ip,
                    ecn,
                };
                Some((to, drop))
            }));
            self.finished += finished;
        }
        let empty = self.is_empty();
        if empty {
            self.clear();
        }
        Ok(empty)
    }

    /// Forgets everything that was not sent, and keeps the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.transmits.clear();
        self.finished = 0;
    }
}

/// Whether a datagram of `len` bytes, placed right behind `last`, can be part of it.
fn joins(last: &Transmit, to: &Destination, len: usize, segments_max: usize) -> bool {
    let same_destination =
        last.remote == to.remote && last.local_ip == to.local_ip && last.ecn == to.ecn;
    let open = last.segment_size > 0 && last.len.is_multiple_of(last.segment_size);
    same_destination
        && open
        && len > 0
        && len <= last.segment_size
        && last.datagrams() < segments_max
        && last.len + len <= DATAGRAM_BATCH_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(port: u16) -> Destination {
        let remote = SocketAddr::from(([127, 0, 0, 1], port));
        Destination {
            remote,
            local_ip: None,
            ecn: Ecn::Ect0,
        }
    }

    fn shape(queue: &SendQueue) -> Vec<(u16, usize, usize, usize)> {
        let shape = |t: &Transmit| (t.remote.port(), t.segment_size, t.offset, t.len);
        queue.transmits.iter().map(shape).collect()
    }

    #[test]
    fn equal_datagrams_share_a_descriptor_and_a_shorter_one_closes_it() {
        let mut queue = SendQueue::default();
        for len in [100, 100, 40, 40, 100] {
            assert_eq!(queue.push(&to(1), len, 64).len(), len);
        }
        assert_eq!(
            shape(&queue),
            [(1, 100, 0, 240), (1, 40, 240, 40), (1, 100, 280, 100)]
        );
    }

    #[test]
    fn another_destination_or_marking_starts_a_descriptor() {
        let mut queue = SendQueue::default();
        queue.push(&to(1), 100, 64);
        queue.push(&to(2), 100, 64);
        queue.push(
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
    fn the_limits_on_segments_and_bytes_hold() {
        let mut queue = SendQueue::default();
        for _ in 0..5 {
            queue.push(&to(1), 10, 2);
        }
        assert_eq!(
            shape(&queue),
            [(1, 10, 0, 20), (1, 10, 20, 20), (1, 10, 40, 10)]
        );
        queue.clear();
        for _ in 0..3 {
            queue.push(&to(1), 30_000, 64);
        }
        assert_eq!(
            shape(&queue),
            [(1, 30_000, 0, 60_000), (1, 30_000, 60_000, 30_000)]
        );
    }
}
