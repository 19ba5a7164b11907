//! The back end.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sphinx_ether::{Datagram, ETHERNET_BYTES, Flow, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};
use sphinx_net::{
    Capabilities, Counters, Destination, DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx,
    PacketTx, Ready, Received, Waker,
};

use crate::config::DpdkConfig;
use crate::eal::Eal;
use crate::error::DpdkError;
use crate::link::{Link, Neighbours, Way};
use crate::port::{BURST, Packet, Port, Queue};

/// Packets that one receive returns, at most.
const RECV_BATCH_MAX: usize = 2 * BURST;
/// Packets that may wait for neighbours, and to be sent.
const WAITING_MAX: usize = 256;
const PENDING_MAX: usize = 2048;
/// How long to sleep between two looks at the card: the longer the longer nothing has come.
const NAP_MIN: Duration = Duration::from_micros(10);
const NAP_MAX: Duration = Duration::from_micros(500);
/// How long to wait for room in a card that is full, at most.
const FULL_WAIT: Duration = Duration::from_micros(50);
/// Looks without a sleep after something has come.
const EAGER_LOOKS: u32 = 20;
/// Ports that an end without one of its own takes.
const PORTS: Range<u16> = 49_152..65_535;

/// An endpoint that has a card to itself, or one of its engines that has a queue of it.
pub struct DpdkIo {
    waker: Waker,
    local: SocketAddr,
    link: Link,
    now: Instant,

    arrived: Vec<Packet>,
    held: Vec<Held>,

    /// What has been written, in order.
    written: Vec<Written>,
    /// What is to be sent, headers and all.
    ready: Vec<Packet>,
    /// What waits for a neighbour.
    waiting: Vec<(IpAddr, (SocketAddr, SocketAddr), Ecn, Packet)>,
    taken: usize,
    counters: Counters,
    last_error: Option<i32>,
    /// Last: packets are given back before it goes.
    queue: Queue,
}

/// A packet of a batch.
#[derive(Debug)]
struct Held {
    packet: Packet,
    remote: SocketAddr,
    local_ip: IpAddr,
    ecn: Ecn,
    payload: Range<usize>,
}

/// A frame that somebody has written a datagram into.
#[derive(Debug)]
enum Written {
    Packet {
        packet: Packet,
        headers: Flow,
        ecn: Ecn,
    },
    Waiting {
        packet: Packet,
        next: IpAddr,
        ends: (SocketAddr, SocketAddr),
        ecn: Ecn,
    },
    /// It cannot leave; its content goes nowhere.
    Nowhere {
        content: Vec<u8>,
        to: Destination,
        reason: DropReason,
    },
}

impl DpdkIo {
    /// Starts DPDK and its first port. `bind` names the address and port to receive on, which both may be left open.
    ///
    /// # Errors
    ///
    /// [`DpdkError`] says what is missing.
    pub fn open(config: &DpdkConfig, bind: SocketAddr) -> Result<Self, DpdkError> {
        let mut opened = Self::open_queues(config, bind, 1)?;
        opened.pop().ok_or(DpdkError::NoPort)
    }

    /// The same for several engines, each of which sends and receives by a queue of its own. The card spreads what arrives over the queues by its addresses
    /// (RSS), so that any of them may get what is another one's.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`DpdkError::Queues`].
    pub fn open_queues(
        config: &DpdkConfig,
        bind: SocketAddr,
        queues: usize,
    ) -> Result<Vec<Self>, DpdkError> {
        let mut addresses = config.addresses.clone();
        if !bind.ip().is_unspecified() {
            addresses.retain(|own| own.ip == bind.ip());
        } else if bind.is_ipv4() {
            addresses.retain(|own| own.ip.is_ipv4());
        }
        let Some(first) = addresses.first() else {
            return Err(DpdkError::Address(bind.ip()));
        };
        let number = match bind.port() {
            0 => any_port(),
            given => given,
        };
        let ip = match addresses.len() {
            1 => first.ip,
            _ => bind.ip(),
        };
        let local = SocketAddr::new(ip, number);
        let wakers: Result<Vec<_>, _> = (0..queues).map(|_| Waker::new()).collect();
        let wakers = wakers?;
        let neighbours = Neighbours::new(wakers.clone());
        let queues = Port::open(Eal::take(&config.eal)?, config.mtu, queues)?;
        let opened = std::iter::zip(queues, wakers).map(|(queue, waker)| {
            let addresses = addresses.clone();
            let link = Link::new(queue.port.mac, addresses, number, Arc::clone(&neighbours));
            Self::new(queue, waker, local, link)
        });
        let mut opened: Vec<_> = opened.collect();
        // One queue is enough to announce the addresses.
        if let Some(first) = opened.first_mut() {
            first.link.begin_to_announce(first.now);
        }
        Ok(opened)
    }

    fn new(queue: Queue, waker: Waker, local: SocketAddr, link: Link) -> Self {
        Self {
            waker,
            local,
            link,
            now: Instant::now(),
            arrived: Vec::with_capacity(RECV_BATCH_MAX),
            held: Vec::with_capacity(RECV_BATCH_MAX),
            written: Vec::new(),
            ready: Vec::new(),
            waiting: Vec::new(),
            taken: 0,
            counters: Counters::default(),
            last_error: None,
            queue,
        }
    }

    /// Looks at the card, if there is nothing that it has had before, and announces its addresses when that is due.
    fn look(&mut self) -> bool {
        if self.arrived.is_empty() {
            self.queue.receive(&mut self.arrived);
        }
        if let Some(at) = self.link.announces_at() {
            let now = Instant::now();
            if at <= now {
                self.link.announce(now);
                self.talk();
                self.queue.send(&mut self.ready);
            }
        }
        !self.arrived.is_empty()
    }

    /// Sends packets that have waited for neighbours that are known now.
    fn go_on(&mut self) {
        for (next, ends, ecn, mut packet) in std::mem::take(&mut self.waiting) {
            match self.link.headers(next, ends) {
                Some(flow) => {
                    flow.complete_for_card(packet.bytes(), ecn.bits(), self.queue.port.sends());
                    self.ready.push(packet);
                }
                None => self.waiting.push((next, ends, ecn, packet)),
            }
        }
    }

    /// Sends questions and answers about neighbours, and what has waited for one of whom this queue or another has heard.
    fn talk(&mut self) {
        if self.link.has_news() {
            self.go_on();
        }
        for frame in self.link.take_frames() {
            if let Some(mut packet) = self.queue.port.allocate(frame.len()) {
                packet.bytes().copy_from_slice(&frame);
                self.ready.push(packet);
            }
        }
    }

    fn count_drop(
        &mut self,
        to: Destination,
        len: usize,
        reason: DropReason,
        dropped: &mut Vec<(Destination, Dropped)>,
    ) {
        self.counters.send_errors.count(reason, 1);
        self.last_error = Some(match reason {
            DropReason::TooLarge => libc::EMSGSIZE,
            _ => libc::ENETUNREACH,
        });
        let drop = Dropped {
            datagrams: 1,
            segment_size: len,
            reason,
        };
        dropped.push((to, drop));
    }
}

/// A port that nobody can guess, as the kernel would choose one.
fn any_port() -> u16 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    PORTS.start + (random % u64::from(PORTS.end - PORTS.start)) as u16
}

impl PacketIo for DpdkIo {
    type Rx = Self;
    type Tx = Self;

    fn name(&self) -> &'static str {
        match (self.queue.port.sends().udp, self.queue.port.reads().udp) {
            (false, false) => "dpdk",
            (true, false) => "dpdk:tx-checksums",
            (false, true) => "dpdk:rx-checksums",
            (true, true) => "dpdk:tx-checksums,rx-checksums",
        }
    }

    fn rx(&mut self) -> &mut Self {
        self
    }

    fn tx(&mut self) -> &mut Self {
        self
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            segments_max: 1,
            gso_downgraded: false,
            gro: false,
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

    fn own_addresses(&self) -> Vec<IpAddr> {
        self.link.addresses().collect()
    }

    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready> {
        let started = Instant::now();
        let timeout = timeout_ns.map(Duration::from_nanos);
        let timeout = match interest {
            Interest::Read => timeout,
            Interest::ReadWrite => Some(timeout.map_or(FULL_WAIT, |it| it.min(FULL_WAIT))),
        };
        let mut looks = 0;
        let woken = loop {
            let readable = self.look();
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let is_over = readable || left == Some(Duration::ZERO);
            let nap = match looks {
                _ if is_over => Duration::ZERO,
                0..EAGER_LOOKS => Duration::ZERO,
                _ => (NAP_MIN * 2_u32.pow((looks - EAGER_LOOKS).min(6))).min(NAP_MAX),
            };
            let nap = left.map_or(nap, |left| nap.min(left));
            looks += 1;
            if is_over || !nap.is_zero() || looks == 1 {
                let ready = self
                    .waker
                    .wait(None, Interest::Read, Some(nap.as_nanos() as u64))?;
                if ready.woken || is_over {
                    break ready.woken;
                }
            } else {
                std::hint::spin_loop();
            }
        };
        self.now = Instant::now();
        Ok(Ready {
            errors: false,
            readable: !self.arrived.is_empty(),
            writable: interest == Interest::ReadWrite,
            woken,
        })
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl PacketRx for DpdkIo {
    fn recv(&mut self) -> io::Result<usize> {
        self.held.clear();
        self.now = Instant::now();
        self.counters.recv_calls += 1;
        self.look();
        if self.arrived.len() == BURST {
            self.queue.receive(&mut self.arrived);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        for mut packet in arrived.drain(..) {
            self.counters.recv_buffers += 1;
            let right = packet.right_sums();
            let frame = packet.bytes();
            match Datagram::read_from_card(frame, right) {
                Ok(datagram) if self.link.is_own(datagram.local) && datagram.is_of_a_host() => {
                    self.counters.recv_datagrams += 1;
                    self.counters.recv_bytes += datagram.payload.len() as u64;
                    self.held.push(Held {
                        remote: datagram.remote,
                        local_ip: datagram.local.ip(),
                        ecn: Ecn::from_bits(datagram.ecn),
                        payload: datagram.payload,
                        packet,
                    });
                }
                // The card has what the kernel would have otherwise, and most of it is not for us.
                _ => self.link.hear(frame, self.now),
            }
        }
        self.arrived = arrived;
        self.talk();
        self.queue.send(&mut self.ready);
        Ok(self.held.len())
    }

    fn received(&mut self, index: usize) -> Option<Received<'_>> {
        let held = self.held.get_mut(index)?;
        let payload = held.packet.bytes().get_mut(held.payload.clone())?;
        Some(Received {
            remote: held.remote,
            local_ip: Some(held.local_ip),
            ecn: held.ecn,
            timestamp_ns: None,
            stride: payload.len().max(1),
            payload,
        })
    }
}

impl PacketTx for DpdkIo {
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]> {
        if len == 0 {
            return Some(&mut []);
        }
        if self.written.len() + self.ready.len() >= PENDING_MAX {
            return None;
        }
        let ip = if to.remote.ip().to_canonical().is_ipv4() {
            IPV4_BYTES
        } else {
            IPV6_BYTES
        };
        let headers = ETHERNET_BYTES + ip + UDP_BYTES;
        let nowhere = |reason| Written::Nowhere {
            content: vec![0; len],
            to: *to,
            reason,
        };
        let written = if ip + UDP_BYTES + len > self.queue.port.mtu {
            nowhere(DropReason::TooLarge)
        } else {
            match self.link.way(to, self.now) {
                Way::None => nowhere(DropReason::Unreachable),
                Way::Headers(flow) => Written::Packet {
                    packet: self.queue.port.allocate_datagram(ip, len)?,
                    headers: flow,
                    ecn: to.ecn,
                },
                Way::Wait(next, ends) => Written::Waiting {
                    packet: self.queue.port.allocate_datagram(ip, len)?,
                    next,
                    ends,
                    ecn: to.ecn,
                },
            }
        };
        self.taken += len;
        self.written.push(written);
        match self.written.last_mut()? {
            Written::Packet { packet, .. } | Written::Waiting { packet, .. } => {
                packet.bytes().get_mut(headers..)
            }
            Written::Nowhere { content, .. } => Some(content),
        }
    }

    fn taken_bytes(&self) -> usize {
        self.taken
    }

    fn flush(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        for written in std::mem::take(&mut self.written) {
            match written {
                Written::Packet {
                    mut packet,
                    headers,
                    ecn,
                } => {
                    headers.complete_for_card(packet.bytes(), ecn.bits(), self.queue.port.sends());
                    self.counters.send_datagrams += 1;
                    self.counters.send_bytes += (packet.len() - headers.header_bytes()) as u64;
                    self.ready.push(packet);
                }
                Written::Waiting {
                    packet,
                    next,
                    ends,
                    ecn,
                } => {
                    // The oldest have waited in vain, and are repaired like others that are lost.
                    if self.waiting.len() >= WAITING_MAX {
                        self.waiting.remove(0);
                    }
                    self.waiting.push((next, ends, ecn, packet));
                }
                Written::Nowhere {
                    content,
                    to,
                    reason,
                } => self.count_drop(to, content.len(), reason, dropped),
            }
        }
        self.talk();
        self.counters.send_calls += u64::from(!self.ready.is_empty());
        let all = self.queue.send(&mut self.ready);
        self.counters.send_blocked += u64::from(!all);
        if all {
            self.taken = 0;
        }
        Ok(all)
    }

    fn last_error(&self) -> Option<io::Error> {
        self.last_error.map(io::Error::from_raw_os_error)
    }
}

impl fmt::Debug for DpdkIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DpdkIo")
            .field("local", &self.local)
            .field("driver", &self.queue.port.driver)
            .finish_non_exhaustive()
    }
}
