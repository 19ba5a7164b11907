//! Kernel UDP sockets: batches of system calls, segmentation offload both ways, ECN.

mod cmsg;
mod errors;
mod group;
mod mmsg;
mod name;
mod options;
mod recv;
mod send;
mod singles;
mod steering;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use self::errors::Errors;
use self::group::Group;
use self::mmsg::SendFormat;
use self::options::{Applied, Buffer, Wanted};
use self::recv::Receiver;
use self::send::Sender;
pub use self::send::can_be_by_icmp;
pub use self::singles::{Singles, tell_local_ip};
pub use self::steering::Steering;
use crate::queue::FrameQueue;
use crate::{
    Capabilities, Counters, Destination, Dropped, Interest, PacketIo, PacketRx, PacketTx, Ready,
    Received, Waker, Written,
};

/// Room for anything that the kernel can join into one buffer.
const GRO_BUFFER_BYTES: usize = 65_536;

/// Whether other sockets of this process may have the port of one that is bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Own,
    Shared,
}

/// How long to wait where one of several sockets takes no more.
const FULL_WAIT_NS: u64 = 1_000_000;

/// How to open a [`UdpIo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Address to receive on; port 0 takes a free one. `[::]` receives IPv4 as well, unless
    /// `dual_stack` is off.
    pub bind: SocketAddr,
    /// Send and receive through this interface only (`SO_BINDTODEVICE`), whatever routing says of others.
    pub device: Option<String>,
    /// Let a socket bound to `[::]` speak IPv4 too.
    pub dual_stack: bool,
    /// Most buffers per receive call, at least 1.
    pub recv_batch: usize,
    /// Longest datagram that can be received without GRO, in bytes, at least 1. Longer ones are
    /// discarded and counted. With GRO there is always room for 64 KiB.
    pub recv_datagram_bytes: usize,
    /// Kernel memory to ask for, in bytes; the kernel may grant less and counts its bookkeeping.
    pub recv_buffer_bytes: usize,
    /// Kernel memory to ask for when sending, in bytes, likewise.
    pub send_buffer_bytes: usize,
    /// Memory for frames that are to be sent, in bytes: what can be [taken](PacketTx::frame) before it has to be
    /// flushed.
    pub send_frames_bytes: usize,
    /// Let the kernel split what is sent, if it can.
    pub gso: bool,
    /// Let the kernel join what is received, if it can.
    pub gro: bool,
    /// Ask for the time of reception.
    pub timestamps: bool,
}

impl UdpConfig {
    /// Everything on, for `bind`: batches of 16, 8 and 4 MiB of kernel memory for receiving
    /// and sending, and 1 MiB of frames.
    #[must_use]
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            device: None,
            dual_stack: true,
            recv_batch: 16,
            recv_datagram_bytes: 9_216,
            recv_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
            send_frames_bytes: 1 << 20,
            gso: true,
            gro: true,
            timestamps: true,
        }
    }
}

/// A UDP socket that sends and receives in batches, and perhaps others beside it, one for each further path.
///
/// It is not connected: one socket serves all peers. Datagrams are never fragmented; one that is
/// larger than the MTU of the outgoing interface is dropped with
/// [`DropReason::TooLarge`](crate::DropReason).
pub struct UdpIo {
    local_addr: SocketAddr,
    capabilities: Capabilities,
    rx: UdpRx,
    tx: UdpTx,
    waker: Waker,
    /// What is waited for, if there are several sockets.
    group: Option<Group>,
    /// What was counted at sockets that are detached.
    detached: Counters,
    busy_poll: Duration,
}

/// The half of a [`UdpIo`] that receives. The kernel writes into its buffers, of which one holds whatever GRO
/// can join.
pub struct UdpRx {
    socket: Arc<UdpSocket>,
    receiver: Receiver,
    errors: Errors,
    errors_expected: Arc<AtomicBool>,
    counters: Counters,
    /// The other sockets, and which one the batch is of: 0 is this one.
    others: Vec<UdpRx>,
    batch_of: usize,
}

/// The half of a [`UdpIo`] that sends. Its frames lie next to each other, so that the kernel cuts one
/// slice into datagrams (GSO) or is given one for each.
pub struct UdpTx {
    socket: Arc<UdpSocket>,
    sender: Sender,
    frames: FrameQueue,
    errors_expected: Arc<AtomicBool>,
    counters: Counters,
    /// The last flush has left something.
    is_full: bool,
    /// The other sockets, and the address that each sends from.
    others: Vec<(IpAddr, UdpTx)>,
}

impl UdpIo {
    /// Opens and binds a socket, and finds out what the kernel can do.
    ///
    /// # Errors
    ///
    /// Those of creating and binding a socket, with the address in the message. Among the
    /// [kinds](io::Error::kind), `AddrInUse` means that another socket has the port,
    /// `AddrNotAvailable` that the address is not one of this host, and `PermissionDenied` that
    /// the port needs privileges. Without IPv6 support `[::]` fails; fall back to `0.0.0.0`.
    pub fn open(config: &UdpConfig) -> io::Result<Self> {
        Self::open_in(config, Port::Own)
    }

    /// Opens several sockets of one port (`SO_REUSEPORT`), in their order, and lets the kernel [steer](Steering) datagrams to them unless
    /// `by_hash`. Whether it does: otherwise it goes by a hash of the addresses and ports.
    ///
    /// The first one is bound as any other socket is, so that a port that somebody has is refused. They have to be closed together, as the kernel
    /// counts those that are left.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_shards(
        config: &UdpConfig,
        steering: &Steering,
        by_hash: bool,
    ) -> io::Result<(Vec<Self>, bool)> {
        let first = Self::open(config)?;
        let mut config = config.clone();
        config.bind.set_port(first.local_addr.port());
        socket2::SockRef::from(&first.as_fd()).set_reuse_port(true)?;
        let mut shards = vec![first];
        while shards.len() < steering.shards() {
            shards.push(Self::open_in(&config, Port::Shared)?);
        }
        let steers = !by_hash && options::steer(shards[0].as_fd(), &mut steering.program()).is_ok();
        Ok((shards, steers))
    }

    fn open_in(config: &UdpConfig, port: Port) -> io::Result<Self> {
        let socket = bind(config, port).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot open UDP {}: {error}", config.bind),
            )
        })?;
        let local_addr = canonical(socket.local_addr()?);
        let v6_socket = config.bind.is_ipv6();
        let wanted = Wanted {
            v6_socket,
            timestamps: config.timestamps,
            gro: config.gro,
        };
        let applied = options::apply(socket.as_fd(), &wanted);
        let probe = options::probe_sending(v6_socket);
        let segments_max = if config.gso { probe.segments_max } else { 1 };
        let buffer_size = if applied.gro {
            GRO_BUFFER_BYTES
        } else {
            config.recv_datagram_bytes
        };
        let recv_batch_max = config.recv_batch.max(1);
        let format = SendFormat {
            v6_socket,
            ecn: probe.ecn_send,
        };
        let Applied {
            ecn_recv,
            local_ip,
            timestamps,
            dont_fragment,
            gro,
        } = applied;
        let capabilities = Capabilities {
            segments_max,
            gso_downgraded: false,
            gro,
            ecn_send: probe.ecn_send,
            ecn_recv,
            local_ip,
            timestamps,
            dont_fragment,
            recv_batch_max,
            recv_buffer_bytes: options::resize(&socket, Buffer::Recv, config.recv_buffer_bytes),
            send_buffer_bytes: options::resize(&socket, Buffer::Send, config.send_buffer_bytes),
        };
        let socket = Arc::new(socket);
        let errors_expected = Arc::new(AtomicBool::new(false));
        Ok(Self {
            local_addr,
            capabilities,
            rx: UdpRx {
                socket: Arc::clone(&socket),
                receiver: Receiver::new(recv_batch_max, buffer_size.max(1)),
                errors: Errors::new(Arc::clone(&errors_expected)),
                errors_expected: Arc::clone(&errors_expected),
                counters: Counters::default(),
                others: Vec::new(),
                batch_of: 0,
            },
            tx: UdpTx {
                socket,
                sender: Sender::new(format, segments_max),
                frames: FrameQueue::new(config.send_frames_bytes),
                errors_expected,
                counters: Counters::default(),
                is_full: false,
                others: Vec::new(),
            },
            waker: Waker::new()?,
            group: None,
            detached: Counters::default(),
            busy_poll: Duration::ZERO,
        })
    }

    /// A socket beside this one, bound to an address of its own: what is sent from that address leaves there.
    ///
    /// # Errors
    ///
    /// As [`UdpIo::open`], and when the system is out of file descriptors.
    pub fn attach_with(&mut self, config: &UdpConfig) -> io::Result<()> {
        let other = Self::open(config)?;
        let from = other.local_addr.ip();
        // Replaces a socket at the same address: its interface may have been removed and added again.
        self.detach(from);
        let group = match self.group.take() {
            Some(group) => group,
            None => Group::new(self.as_fd())?,
        };
        let group = self.group.insert(group);
        group.add(other.as_fd())?;
        self.rx.others.push(other.rx);
        self.tx.others.push((from, other.tx));
        Ok(())
    }

    /// The address that packets for `remote` leave from, through this interface if one is named. Nothing is sent.
    ///
    /// # Errors
    ///
    /// When there is no such interface or address, or no way from there.
    pub fn address_towards(remote: SocketAddr, device: Option<&str>) -> io::Result<IpAddr> {
        let socket = Socket::new(
            Domain::for_address(remote),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if let Some(device) = device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        socket.connect(&remote.into())?;
        let address = socket.local_addr()?.as_socket();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(canonical(address).ip())
    }
}

impl PacketIo for UdpIo {
    type Rx = UdpRx;
    type Tx = UdpTx;

    fn name(&self) -> &'static str {
        "udp"
    }

    fn rx(&mut self) -> &mut UdpRx {
        &mut self.rx
    }

    fn tx(&mut self) -> &mut UdpTx {
        &mut self.tx
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            segments_max: self.tx.sender.segments_max(),
            gso_downgraded: self.tx.sender.gso_downgraded(),
            ..self.capabilities
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready> {
        if let Some(group) = &self.group {
            // The group is polled for reading only. Sockets that were full are all tried again after a short time.
            let timeout_ns = match interest {
                Interest::Read => timeout_ns,
                Interest::ReadWrite => Some(timeout_ns.unwrap_or(FULL_WAIT_NS).min(FULL_WAIT_NS)),
            };
            let ready = self
                .waker
                .wait(Some(group.as_fd()), Interest::Read, timeout_ns)?;
            if ready.readable {
                self.rx.expect_errors();
            }
            return Ok(Ready {
                writable: interest == Interest::ReadWrite,
                ..ready
            });
        }
        let ready = self.waker.wait(Some(self.as_fd()), interest, timeout_ns)?;
        if ready.errors {
            self.rx.errors_expected.store(true, Ordering::Relaxed);
        }
        Ok(ready)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn expect_busy_polling(&mut self, time: Duration) {
        self.busy_poll = time;
        for rx in self.rx.others.iter().chain([&self.rx]) {
            options::busy_poll(rx.socket.as_fd(), time);
        }
    }

    fn attach(&mut self, local: IpAddr, device: Option<&str>) -> io::Result<()> {
        self.attach_with(&UdpConfig {
            device: device.map(str::to_owned),
            ..UdpConfig::new((local, 0).into())
        })?;
        if !self.busy_poll.is_zero() {
            self.expect_busy_polling(self.busy_poll);
        }
        Ok(())
    }

    fn detach(&mut self, local: IpAddr) {
        let mut others = self.tx.others.iter();
        let Some(at) = others.position(|(known, _)| *known == local) else {
            return;
        };
        // Dropping both halves closes the socket, which removes it from the group.
        let (_, tx) = self.tx.others.remove(at);
        let rx = self.rx.others.remove(at);
        self.detached = self.detached.plus(&rx.counters.with_sent(&tx.counters));
        self.rx.batch_of = 0;
        if self.tx.others.is_empty() {
            self.group = None;
        }
    }

    fn counters(&self) -> Counters {
        let first = self.rx.counters.with_sent(&self.tx.counters);
        let others = self.rx.others.iter().zip(&self.tx.others);
        let others = others.map(|(rx, (_, tx))| rx.counters.with_sent(&tx.counters));
        others.fold(self.detached.plus(&first), |all, one| all.plus(&one))
    }
}

impl UdpRx {
    /// Some socket may have errors to tell of.
    fn expect_errors(&self) {
        for rx in self.others.iter().chain([self]) {
            rx.errors_expected.store(true, Ordering::Relaxed);
        }
    }

    fn recv_own(&mut self) -> io::Result<usize> {
        let socket = self.socket.as_fd();
        let errors_before = self.counters.recv_errors;
        let held = self.receiver.recv(socket, &mut self.counters);
        if self.counters.recv_errors > errors_before {
            self.errors_expected.store(true, Ordering::Relaxed);
        }
        self.errors.fetch(socket);
        held
    }
}

impl PacketRx for UdpRx {
    /// A batch of one of the sockets, which take turns.
    fn recv(&mut self) -> io::Result<usize> {
        let sockets = 1 + self.others.len();
        for _ in 0..sockets {
            self.batch_of = (self.batch_of + 1) % sockets;
            let held = match self.batch_of.checked_sub(1) {
                None => self.recv_own()?,
                Some(other) => self.others[other].recv_own()?,
            };
            if held > 0 {
                return Ok(held);
            }
        }
        Ok(0)
    }

    fn received(&mut self, index: usize) -> Option<Received<'_>> {
        match self.batch_of.checked_sub(1) {
            None => self.receiver.received(index),
            Some(other) => self.others[other].receiver.received(index),
        }
    }

    fn exchange(&mut self, index: usize, memory: &mut Vec<u8>) -> bool {
        match self.batch_of.checked_sub(1) {
            None => self.receiver.exchange(index, memory),
            Some(other) => self.others[other].receiver.exchange(index, memory),
        }
    }

    fn take_refused(&mut self) -> Vec<SocketAddr> {
        let mut refused = self.errors.take_refused();
        for other in &mut self.others {
            refused.extend(other.errors.take_refused());
        }
        refused
    }
}

impl PacketTx for UdpTx {
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]> {
        let (frames, segments_max) = self.frames_to(to);
        frames.frame(to, len, segments_max)
    }

    fn frames(&mut self, to: &Destination, len: usize, most: usize) -> Option<&mut [u8]> {
        let (frames, segments_max) = self.frames_to(to);
        frames.frames(to, (len, most), segments_max)
    }

    fn take_over(
        &mut self,
        to: &Destination,
        memory: Written,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        let (frames, segments_max) = self.frames_to(to);
        frames.take_over(to, memory, lens, segments_max);
        0
    }

    fn taken_bytes(&self) -> usize {
        let all_full = self.are_all_full();
        let counted = self.all().filter(|tx| all_full || !tx.is_full);
        counted.map(|tx| tx.frames.taken_bytes()).sum()
    }

    fn is_full(&self, to: &Destination) -> bool {
        let others = || self.others.iter().map(|(place, tx)| (Some(*place), tx));
        let its = others().find(|(place, _)| *place == to.local_ip);
        its.map_or(self, |(_, tx)| tx).is_full && !self.are_all_full()
    }

    fn flush(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        let mut all = self.flush_own(dropped)?;
        for (_, other) in &mut self.others {
            all &= other.flush_own(dropped)?;
        }
        Ok(all)
    }

    fn last_error(&self) -> Option<io::Error> {
        self.sender.last_error()
    }
}

impl UdpTx {
    /// The frames of the socket that sends from the address which `to` names, and how many datagrams it sends at once.
    fn frames_to(&mut self, to: &Destination) -> (&mut FrameQueue, usize) {
        let from = |place: &IpAddr| Some(*place) == to.local_ip;
        let mut others = self.others.iter_mut();
        match others.find(|(place, _)| from(place)) {
            Some((_, tx)) => (&mut tx.frames, tx.sender.segments_max()),
            None => (&mut self.frames, self.sender.segments_max()),
        }
    }

    /// This socket, and the others.
    fn all(&self) -> impl Iterator<Item = &Self> {
        self.others.iter().map(|(_, tx)| tx).chain([self])
    }

    fn are_all_full(&self) -> bool {
        self.all().all(|tx| tx.is_full)
    }

    fn flush_own(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        let (socket, counters) = (self.socket.as_fd(), &mut self.counters);
        let sender = &mut self.sender;
        let all = self.frames.flush(dropped, |memory, transmits, drops| {
            sender.send(socket, memory, transmits, drops, counters)
        });
        if self.sender.take_interrupted() {
            self.errors_expected.store(true, Ordering::Relaxed);
        }
        self.is_full = !all?;
        Ok(!self.is_full)
    }
}

/// The socket itself, to set further options. Do not read, write or rebind it.
impl AsFd for UdpIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rx.socket.as_fd()
    }
}

impl std::fmt::Debug for UdpIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpIo")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

fn bind(config: &UdpConfig, port: Port) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(config.bind),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    if config.bind.is_ipv6() {
        socket.set_only_v6(!config.dual_stack)?;
    }
    if let Some(device) = &config.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if port == Port::Shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&config.bind.into())?;
    Ok(socket.into())
}

/// IPv4 in its IPv6 form as IPv4.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(v6.ip().to_canonical(), v6.port())
        }
        _ => addr,
    }
}
