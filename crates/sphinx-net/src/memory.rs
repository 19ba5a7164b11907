//! Packet input and output without a network, for tests of what drives [`PacketIo`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::queue::{FrameQueue, Memory, Transmit};
use crate::{
    Capabilities, Counters, Destination, DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx,
    PacketTx, Ready, Received, Waker, Written,
};

const RECV_BATCH_MAX: usize = 16;
const SEGMENTS_MAX: usize = 64;
/// Room for frames that are to be sent.
const FRAMES_BYTES: usize = 1 << 20;

/// One end of a link in memory: instant, ordered, with room for a fixed number of datagrams.
///
/// It behaves like a socket with segmentation offload: datagrams that leave as one arrive as one buffer. What
/// is addressed to anyone but the other end is dropped as unreachable.
pub struct MemoryIo {
    local: SocketAddr,
    rx: MemoryRx,
    tx: MemoryTx,
}

/// The half of a [`MemoryIo`] that receives.
pub struct MemoryRx {
    local: SocketAddr,
    remote: SocketAddr,
    incoming: Arc<Queue>,
    /// Its waker is rung when there is room again.
    outgoing: Arc<Queue>,
    held: Vec<Packet>,
    counters: Counters,
}

/// The half of a [`MemoryIo`] that sends.
pub struct MemoryTx {
    remote: SocketAddr,
    outgoing: Arc<Queue>,
    frames: FrameQueue,
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

    /// Sends to the end with this queue and this address; how many descriptors are finished.
    fn put(
        &self,
        end: SocketAddr,
        memory: Memory<'_>,
        transmits: &[Transmit],
        drops: &mut Vec<(usize, Dropped)>,
        counters: &mut Counters,
    ) -> usize {
        counters.send_calls += 1;
        let mut packets = self.lock();
        let mut finished = 0;
        for (index, transmit) in transmits.iter().enumerate() {
            let datagrams = transmit.datagrams();
            let stride = transmit.segment_size.min(transmit.len);
            if transmit.to.remote != end && datagrams > 0 {
                let reason = DropReason::Unreachable;
                counters.send_errors.count(reason, datagrams as u64);
                let drop = Dropped {
                    datagrams,
                    segment_size: stride,
                    reason,
                };
                drops.push((index, drop));
            } else if datagrams > 0 {
                if packets.len() >= self.capacity {
                    counters.send_blocked += 1;
                    break;
                }
                packets.push_back(Packet {
                    ecn: transmit.to.ecn,
                    stride,
                    // The only copy, in place of a network.
                    payload: memory.bytes(transmit).unwrap_or_default().to_vec(),
                });
                counters.send_datagrams += datagrams as u64;
                counters.send_bytes += transmit.len as u64;
                counters.send_gso_batches += u64::from(datagrams > 1);
            }
            finished = index + 1;
        }
        drop(packets);
        self.waker.wake();
        finished
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
            rx: MemoryRx {
                local,
                remote,
                incoming: Arc::clone(incoming),
                outgoing: Arc::clone(outgoing),
                held: Vec::new(),
                counters: Counters::default(),
            },
            tx: MemoryTx {
                remote,
                outgoing: Arc::clone(outgoing),
                frames: FrameQueue::new(FRAMES_BYTES),
                counters: Counters::default(),
            },
        };
        Ok((end(a, b, &to_a, &to_b), end(b, a, &to_b, &to_a)))
    }

    fn ready(&self, interest: Interest) -> (bool, bool) {
        let outgoing = &self.tx.outgoing;
        let readable = !self.rx.incoming.lock().is_empty();
        let writable = interest == Interest::ReadWrite && outgoing.lock().len() < outgoing.capacity;
        (readable, writable)
    }
}

impl PacketIo for MemoryIo {
    type Rx = MemoryRx;
    type Tx = MemoryTx;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn rx(&mut self) -> &mut MemoryRx {
        &mut self.rx
    }

    fn tx(&mut self) -> &mut MemoryTx {
        &mut self.tx
    }

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

    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready> {
        let (readable, writable) = self.ready(interest);
        // Whatever changes after this look rings the waker, so that the wait below does not miss it.
        let timeout_ns = if readable || writable {
            Some(0)
        } else {
            timeout_ns
        };
        let woken = self
            .rx
            .incoming
            .waker
            .wait(None, interest, timeout_ns)?
            .woken;
        let (readable, writable) = self.ready(interest);
        Ok(Ready {
            errors: false,
            readable,
            writable,
            woken,
        })
    }

    fn waker(&self) -> Waker {
        self.rx.incoming.waker.clone()
    }

    fn counters(&self) -> Counters {
        self.rx.counters.with_sent(&self.tx.counters)
    }
}

impl PacketRx for MemoryRx {
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

    fn exchange(&mut self, index: usize, memory: &mut Vec<u8>) -> bool {
        let Some(packet) = self.held.get_mut(index) else {
            return false;
        };
        std::mem::swap(&mut packet.payload, memory);
        true
    }
}

impl PacketTx for MemoryTx {
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]> {
        self.frames.frame(to, len, SEGMENTS_MAX)
    }

    fn frames(&mut self, to: &Destination, len: usize, most: usize) -> Option<&mut [u8]> {
        self.frames.frames(to, (len, most), SEGMENTS_MAX)
    }

    fn take_over(
        &mut self,
        to: &Destination,
        memory: Written,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        self.frames.take_over(to, memory, lens, SEGMENTS_MAX);
        0
    }

    fn taken_bytes(&self) -> usize {
        self.frames.taken_bytes()
    }

    fn flush(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        let (outgoing, remote) = (&self.outgoing, self.remote);
        let counters = &mut self.counters;
        self.frames.flush(dropped, |memory, transmits, drops| {
            Ok(outgoing.put(remote, memory, transmits, drops, counters))
        })
    }

    fn last_error(&self) -> Option<io::Error> {
        let any = self.counters.send_errors.total() > 0;
        any.then(|| io::ErrorKind::NetworkUnreachable.into())
    }
}

impl fmt::Debug for MemoryIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryIo")
            .field("local", &self.local)
            .field("remote", &self.tx.remote)
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

    /// Takes frames of these lengths and fills each with its number.
    fn fill(io: &mut MemoryIo, remote: SocketAddr, lens: &[usize]) {
        let to = Destination {
            remote,
            local_ip: None,
            ecn: Ecn::Ect0,
        };
        for (number, len) in lens.iter().enumerate() {
            io.tx().frame(&to, *len).unwrap().fill(number as u8);
        }
    }

    #[test]
    fn frames_arrive_as_buffers_of_segments() {
        let (mut a, mut b) = pair(10);
        let (own, peer) = (a.local_addr(), b.local_addr());
        fill(&mut a, peer, &[100, 100, 50]);
        fill(&mut a, own, &[7]);
        fill(&mut a, peer, &[0, 20]);
        let mut dropped = Vec::new();
        assert_eq!(a.tx().taken_bytes(), 277);
        assert!(a.tx().flush(&mut dropped).unwrap());
        assert_eq!(a.tx().taken_bytes(), 0);
        let (to, drop) = dropped[0];
        assert_eq!((dropped.len(), to.remote), (1, own));
        let reason = DropReason::Unreachable;
        let expected = Dropped {
            datagrams: 1,
            segment_size: 7,
            reason,
        };
        assert_eq!(drop, expected);
        assert!(b.wait(Interest::Read, None).unwrap().readable);
        assert_eq!(b.rx().recv().unwrap(), 2);
        let mut first = b.rx().received(0).unwrap();
        assert_eq!((first.remote, first.ecn), (own, Ecn::Ect0));
        let segments: Vec<(usize, u8)> = first.segments().map(|s| (s.len(), s[0])).collect();
        assert_eq!(segments, [(100, 0), (100, 1), (50, 2)]);
        assert_eq!(b.rx().received(1).unwrap().payload, &[1; 20]);
        assert!(b.rx().received(2).is_none());
        assert_eq!(
            (a.counters().send_datagrams, b.counters().recv_datagrams),
            (4, 4)
        );
    }

    #[test]
    fn a_full_queue_blocks_until_it_is_read() {
        let (mut a, mut b) = pair(2);
        let peer = b.local_addr();
        // Each longer than the one before it: three pieces of work.
        fill(&mut a, peer, &[1, 2, 3]);
        assert!(!a.tx().flush(&mut Vec::new()).unwrap());
        assert!(!a.wait(Interest::ReadWrite, Some(1_000)).unwrap().writable);
        let reader = std::thread::spawn(move || {
            assert_eq!(b.rx().recv().unwrap(), 2);
            b
        });
        while !a.wait(Interest::ReadWrite, None).unwrap().writable {}
        let mut b = reader.join().unwrap();
        assert!(a.tx().flush(&mut Vec::new()).unwrap());
        assert_eq!(a.counters().send_blocked, 1);
        assert_eq!(b.rx().recv().unwrap(), 1);
        assert_eq!(b.rx().received(0).unwrap().payload, &[2; 3]);
    }

    #[test]
    fn frames_run_out_and_come_back() {
        let (mut a, b) = pair(100);
        let to = Destination {
            remote: b.local_addr(),
            local_ip: None,
            ecn: Ecn::NotEct,
        };
        let len = FRAMES_BYTES / 2;
        assert!(a.tx().frame(&to, FRAMES_BYTES + 1).is_none());
        assert!(a.tx().frame(&to, usize::MAX).is_none());
        assert!(a.tx().frame(&to, len).is_some() && a.tx().frame(&to, len).is_some());
        assert!(a.tx().frame(&to, 1).is_none());
        assert!(a.tx().flush(&mut Vec::new()).unwrap());
        assert!(a.tx().frame(&to, 1).is_some());
    }
}
