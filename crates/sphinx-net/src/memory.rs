//! Packet input and output without a network, for tests of what drives [`PacketIo`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Capabilities, Counters, DropReason, Dropped, Ecn, Interest, PacketIo, Ready, Received,
    Transmit, Waker,
};

const RECV_BATCH_MAX: usize = 16;
const SEGMENTS_MAX: usize = 64;

/// One end of a link in memory: instant, ordered, with room for a fixed number of datagrams.
///
/// It behaves like a socket with segmentation offload: a descriptor arrives as one buffer. What
/// is addressed to anyone but the other end is dropped as unreachable.
pub struct MemoryIo {
    local: SocketAddr,
    remote: SocketAddr,
    incoming: Arc<Queue>,
    outgoing: Arc<Queue>,
    held: Vec<Packet>,
    counters: Counters,
}

/// Packets on their way to one end, and how to tell it.
struct Queue {
    packets: Mutex<VecDeque<Packet>>,
    capacity: usize,
    /// Rings for a packet, for the user's wake-ups, and for room in the other direction.
    waker: Waker,
}

struct Packet {
    ecn: Ecn,
    stride: usize,
    payload: Vec<u8>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Packet>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryIo {
    /// Two ends with these addresses, each of which can have `capacity` descriptors waiting for
    /// it (at least 1).
    ///
    /// # Errors
    ///
    /// When the process or the system is out of file descriptors.
    pub fn pair(a: SocketAddr, b: SocketAddr, capacity: usize) -> io::Result<(Self, Self)> {
        let queue = || -> io::Result<Arc<Queue>> {
            let packets = Mutex::new(VecDeque::new());
            Ok(Arc::new(Queue {
                packets,
                capacity: capacity.max(1),
                waker: Waker::new()?,
            }))
        };
        let (to_a, to_b) = (queue()?, queue()?);
        let end = |local, remote, incoming: &Arc<Queue>, outgoing: &Arc<Queue>| Self {
            local,
            remote,
            incoming: Arc::clone(incoming),
            outgoing: Arc::clone(outgoing),
            held: Vec::new(),
            counters: Counters::default(),
        };
        Ok((end(a, b, &to_a, &to_b), end(b, a, &to_b, &to_a)))
    }

    fn ready(&self, interest: Interest) -> (bool, bool) {
        let readable = !self.incoming.lock().is_empty();
        let writable =
            interest == Interest::ReadWrite && self.outgoing.lock().len() < self.outgoing.capacity;
        (readable, writable)
    }
}

impl PacketIo for MemoryIo {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            segments_max: SEGMENTS_MAX,
            gso_downgraded: false,
            gro: true,
            ecn_send: true,
            ecn_recv: true,
            local_ip: true,
            timestamps: false,
            dont_fragment: true,
            recv_batch_max: RECV_BATCH_MAX,
            recv_buffer_bytes: 0,
            send_buffer_bytes: 0,
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn recv(&mut self) -> io::Result<usize> {
        self.held.clear();
        let mut packets = self.incoming.lock();
        let was_full = packets.len() >= self.incoming.capacity;
        let count = packets.len().min(RECV_BATCH_MAX);
        self.held.extend(packets.drain(..count));
        drop(packets);
        if was_full {
            // The other end may be waiting for room.
            self.outgoing.waker.wake();
        }
        self.counters.recv_calls += 1;
        for packet in &self.held {
            let datagrams = packet.payload.len().div_ceil(packet.stride) as u64;
            self.counters.recv_buffers += 1;
            self.counters.recv_gro_buffers += u64::from(datagrams > 1);
            self.counters.recv_datagrams += datagrams;
            self.counters.recv_bytes += packet.payload.len() as u64;
        }
        Ok(count)
    }

    fn received(&mut self, index: usize) -> Option<Received<'_>> {
        let packet = self.held.get_mut(index)?;
        Some(Received {
            remote: self.remote,
            local_ip: Some(self.local.ip()),
            ecn: packet.ecn,
            timestamp_ns: None,
            stride: packet.stride,
            payload: &mut packet.payload,
        })
    }

    fn send(
        &mut self,
        arena: &[u8],
        transmits: &mut [Transmit],
        dropped: &mut Vec<Dropped>,
    ) -> io::Result<usize> {
        let payload = |transmit: &Transmit| {
            let end = transmit.offset.checked_add(transmit.len)?;
            arena.get(transmit.offset..end)
        };
        if !transmits.iter().all(|transmit| payload(transmit).is_some()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.counters.send_calls += 1;
        let mut packets = self.outgoing.lock();
        let mut finished = 0;
        for (index, transmit) in transmits.iter().enumerate() {
            let datagrams = transmit.datagrams();
            let stride = match transmit.segment_size {
                0 => transmit.len,
                size => size.min(transmit.len),
            };
            if transmit.remote != self.remote && datagrams > 0 {
                let reason = DropReason::Unreachable;
                self.counters.send_errors.count(reason, datagrams as u64);
                dropped.push(Dropped {
                    index,
                    datagrams,
                    segment_size: stride,
                    reason,
                });
            } else if let (1.., Some(payload)) = (datagrams, payload(transmit)) {
                if packets.len() >= self.outgoing.capacity {
                    self.counters.send_blocked += 1;
                    break;
                }
                packets.push_back(Packet {
                    ecn: transmit.ecn,
                    stride,
                    payload: payload.to_vec(),
                });
                self.counters.send_datagrams += datagrams as u64;
                self.counters.send_bytes += payload.len() as u64;
                self.counters.send_gso_batches += u64::from(datagrams > 1);
            }
            finished = index + 1;
        }
        drop(packets);
        self.outgoing.waker.wake();
        Ok(finished)
    }

    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready> {
        let (readable, writable) = self.ready(interest);
        // What happens from here on rings, so the wait cannot miss it.
        let timeout_ns = if readable || writable {
            Some(0)
        } else {
            timeout_ns
        };
        let woken = self.incoming.waker.wait(None, interest, timeout_ns)?.woken;
        let (readable, writable) = self.ready(interest);
        Ok(Ready {
            errors: false,
            readable,
            writable,
            woken,
        })
    }

    fn waker(&self) -> Waker {
        self.incoming.waker.clone()
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn last_send_error(&self) -> Option<io::Error> {
        let any = self.counters.send_errors.total() > 0;
        any.then(|| io::ErrorKind::NetworkUnreachable.into())
    }
}

impl fmt::Debug for MemoryIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryIo")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(capacity: usize) -> (MemoryIo, MemoryIo) {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        MemoryIo::pair(addr(1), addr(2), capacity).unwrap()
    }

    fn transmit(remote: SocketAddr, segment_size: usize, offset: usize, len: usize) -> Transmit {
        Transmit {
            remote,
            local_ip: None,
            ecn: Ecn::Ect0,
            segment_size,
            offset,
            len,
        }
    }

    #[test]
    fn descriptors_arrive_as_buffers_of_segments() {
        let (mut a, mut b) = pair(10);
        let arena: Vec<u8> = (0..250).collect();
        let mut transmits = [
            transmit(b.local_addr(), 100, 0, 250),
            transmit(a.local_addr(), 0, 0, 7),
            transmit(b.local_addr(), 0, 0, 0),
            transmit(b.local_addr(), 0, 50, 20),
        ];
        let mut dropped = Vec::new();
        assert_eq!(a.send(&arena, &mut transmits, &mut dropped).unwrap(), 4);
        let reason = DropReason::Unreachable;
        assert_eq!(
            dropped,
            [Dropped {
                index: 1,
                datagrams: 1,
                segment_size: 7,
                reason
            }]
        );
        assert!(b.wait(Interest::Read, None).unwrap().readable);
        assert_eq!(b.recv().unwrap(), 2);
        let mut first = b.received(0).unwrap();
        assert_eq!((first.remote, first.ecn), (a.local_addr(), Ecn::Ect0));
        assert_eq!(
            first.segments().map(|s| s.len()).collect::<Vec<_>>(),
            [100, 100, 50]
        );
        assert_eq!(b.received(1).unwrap().payload, &arena[50..70]);
        assert!(b.received(2).is_none());
        assert_eq!(
            (a.counters().send_datagrams, b.counters().recv_datagrams),
            (4, 4)
        );
    }

    #[test]
    fn a_full_queue_blocks_until_it_is_read() {
        let (mut a, mut b) = pair(2);
        let mut transmits = [transmit(b.local_addr(), 0, 0, 1); 3];
        assert_eq!(a.send(&[0], &mut transmits, &mut Vec::new()).unwrap(), 2);
        assert!(!a.wait(Interest::ReadWrite, Some(1_000)).unwrap().writable);
        let reader = std::thread::spawn(move || b.recv().unwrap());
        while !a.wait(Interest::ReadWrite, None).unwrap().writable {}
        assert_eq!(reader.join().unwrap(), 2);
        assert_eq!(
            a.send(&[0], &mut transmits[2..], &mut Vec::new()).unwrap(),
            1
        );
        assert_eq!(a.counters().send_blocked, 1);
    }
}
