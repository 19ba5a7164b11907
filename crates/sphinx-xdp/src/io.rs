//! The back end.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};
use sphinx_ether::{Datagram, ETHERNET_BYTES, Flow, Rejected};
use sphinx_net::udp::UdpIo;
use sphinx_net::{
    Capabilities, Counters, Destination, DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx,
    PacketTx, Ready, Received, Waker,
};
use sphinx_netdev::lookup::{self, Interface};

use crate::bpf::{self, SocketMap};
use crate::config::{Attach, Queues, Transfer, XdpConfig};
use crate::error::XdpError;
use crate::flows::Flows;
use crate::program::assemble;
use crate::queue::{Queue, Sizes};

/// Packets that one receive returns, at most.
const RECV_BATCH_MAX: usize = 64;
/// The longest frame that is put together from parts.
const LINEAR_BYTES: usize = 65_536;
/// How long to wait where the kernel takes no more.
const FULL_WAIT_NS: u64 = 1_000_000;
/// The kernel's socket is looked at once in so many receives, whatever has arrived in frames.
const KERNEL_EVERY: u32 = 16;
/// How often, and how long in between, attaching is tried again: the kernel lets go of a program some time after the process that had it.
const ATTACH_ATTEMPTS: u32 = 20;
const ATTACH_PAUSE: Duration = Duration::from_millis(50);

/// An endpoint whose packets go past the kernel at one interface, and by its UDP socket everywhere else.
pub struct XdpIo {
    kernel: UdpIo,
    interface: String,
    mode: &'static str,
    /// Of all back ends at the interface. Gone before the sockets of the last one.
    _program: Arc<Program>,
    queues: Vec<Queue>,
    /// Those of the queues, and the kernel's socket, to wait for as one.
    group: OwnedFd,
    index: u32,
    frame_max: usize,
    flows: Flows,
    now: Instant,

    /// What the wall clock shows more than the monotonic one, nanoseconds.
    wall_ahead_ns: u64,
    /// The last frame said when it had arrived: not every driver has room for that.
    is_timed: bool,
    held: Vec<Held>,
    /// Packets that were put together; kept for their memory.
    linear: Vec<Vec<u8>>,
    /// The batch is of the kernel's socket.
    is_kernel_batch: bool,
    /// The kernel's socket may have something.
    is_kernel_due: bool,
    turns: Turns,

    pending: Vec<Pending>,
    /// Entries of `pending` before this one have been handed over.
    sent: usize,
    taken: usize,
    counters: Counters,
    last_error: Option<i32>,
}

/// Who is looked at first, so that nobody who always has something keeps others waiting.
#[derive(Default)]
struct Turns {
    receives: u32,
    first: usize,
}

impl Turns {
    /// Whether the next receive looks at the kernel's socket before the queues.
    fn is_kernels(&mut self) -> bool {
        self.receives = self.receives.wrapping_add(1);
        self.receives.is_multiple_of(KERNEL_EVERY)
    }

    /// The queues, of which there are so many, in the order in which a receive takes from them: each begins one further.
    fn order(&mut self, queues: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.first;
        self.first = (first + 1) % queues.max(1);
        (first..queues).chain(0..first)
    }
}

/// What leads packets to the queues of all back ends that are open at an interface.
struct Program {
    _link: OwnedFd,
    _map: SocketMap,
}

/// A packet of a batch.
#[derive(Debug)]
struct Held {
    queue: usize,
    place: Place,
    remote: SocketAddr,
    local_ip: IpAddr,
    ecn: Ecn,
    timestamp_ns: Option<u64>,
}

/// Where a datagram is.
#[derive(Debug)]
enum Place {
    /// In a frame: where that is, and which part of it.
    Frame(Range<usize>, Range<usize>),
    /// It was put together from several, in this buffer.
    Linear(usize, Range<usize>),
}

/// A frame that is to be sent.
#[derive(Debug)]
struct Pending {
    slot: u32,
    /// Bytes of the frame.
    len: usize,
    flow: Arc<Flow>,
    to: Destination,
}

impl XdpIo {
    /// Opens the interface of `config` for the port of a socket.
    ///
    /// # Errors
    ///
    /// [`XdpError`] says what is missing.
    pub fn open(config: &XdpConfig, kernel: UdpIo) -> Result<Self, XdpError> {
        let mut opened = Self::open_shards(config, vec![kernel])?;
        Ok(opened.pop().expect("one for each socket"))
    }

    /// Opens the interface for the port that all these sockets have. The queues that the card, or its driver, spreads packets over are dealt out: each
    /// back end receives from every n-th and sends by the first of its own.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`XdpError::FewQueues`] if there are less than sockets.
    ///
    /// # Panics
    ///
    /// If there is no socket.
    pub fn open_shards(config: &XdpConfig, kernels: Vec<UdpIo>) -> Result<Vec<Self>, XdpError> {
        let name = config.interface.as_str();
        let interface = lookup::interface(name).map_err(|_| XdpError::NoInterface {
            interface: name.to_owned(),
        })?;
        let mac = interface.address.ok_or_else(|| XdpError::NotEthernet {
            interface: name.to_owned(),
        })?;
        if !interface.is_up {
            return Err(XdpError::Down {
                interface: name.to_owned(),
            });
        }
        let local = kernels.first().expect("a socket").local_addr();
        let addresses = addresses(name, local)
            .map_err(|error| XdpError::of("asking for addresses", name, error))?;
        let (first, last) = match config.queues {
            Queues::All => (0, interface.queues_max - 1),
            Queues::Range(first, last) => (first, last),
        };
        let frame_max = ETHERNET_BYTES + interface.mtu;
        let map = SocketMap::new(last + 1)
            .map_err(|error| XdpError::of("making a BPF map", name, error))?;
        let (link, attach) = attach(config, &interface, &map, &addresses, local, frame_max)?;
        let transfer = match attach {
            // Generic mode works without the driver, which zero copy needs.
            Attach::Generic => Some(Transfer::Copy),
            Attach::Native => config.transfer,
        };
        let mut shards: Vec<(UdpIo, Vec<Queue>)> = kernels
            .into_iter()
            .map(|kernel| (kernel, Vec::new()))
            .collect();
        let mut has = 0;
        for queue in first..=last {
            let next = has % shards.len();
            let (_, queues) = &mut shards[next];
            let sizes = Sizes::for_frames(frame_max, queues.is_empty());
            match Queue::open((name, interface.index), queue, transfer, sizes) {
                Ok(opened) => {
                    map.set(queue, opened.as_fd())
                        .map_err(|error| XdpError::of("filling a BPF map", name, error))?;
                    queues.push(opened);
                    has += 1;
                }
                // It may have fewer than it can.
                Err(XdpError::NoQueue { .. }) if config.queues == Queues::All && queue > first => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if has < shards.len() {
            return Err(XdpError::FewQueues {
                interface: name.to_owned(),
                has,
                wanted: shards.len(),
            });
        }
        let program = Arc::new(Program {
            _link: link,
            _map: map,
        });
        let open = |(kernel, queues): (UdpIo, Vec<Queue>)| {
            let group = group(&kernel, &queues)
                .map_err(|error| XdpError::of("waiting for packets", name, error))?;
            let is_zero_copy = queues.iter().all(Queue::is_zero_copy);
            Ok(Self {
                mode: match (is_zero_copy, attach) {
                    (true, _) => "xdp:zerocopy,native",
                    (false, Attach::Native) => "xdp:copy,native",
                    (false, Attach::Generic) => "xdp:copy,generic",
                },
                interface: name.to_owned(),
                _program: Arc::clone(&program),
                queues,
                group,
                index: interface.index,
                frame_max,
                flows: Flows::new(interface.index, mac, local),
                now: Instant::now(),
                kernel,
                wall_ahead_ns: wall_ahead_ns(),
                is_timed: true,
                held: Vec::with_capacity(RECV_BATCH_MAX),
                linear: Vec::new(),
                is_kernel_batch: false,
                is_kernel_due: true,
                turns: Turns::default(),
                pending: Vec::new(),
                sent: 0,
                taken: 0,
                counters: Counters::default(),
                last_error: None,
            })
        };
        shards.into_iter().map(open).collect()
    }

    /// Something has arrived in a frame.
    fn has_frames(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| !queue.is_empty())
    }

    /// Takes what has arrived in a queue, up to the size of a batch.
    fn take_from(&mut self, number: usize) {
        while self.held.len() < RECV_BATCH_MAX {
            let queue = &mut self.queues[number];
            let Some((place, more)) = queue.take() else {
                break;
            };
            self.counters.recv_buffers += 1;
            let stamp = queue.take_stamp(&place);
            self.is_timed = stamp.is_some();
            if more {
                self.put_together(number, place, stamp);
                continue;
            }
            match Datagram::read(queue.taken(&place)) {
                Ok(datagram) if datagram.is_of_a_host() => {
                    let payload = datagram.payload.clone();
                    self.hold(number, &datagram, Place::Frame(place, payload), stamp);
                }
                _ => {
                    queue.give_back(&place);
                    self.counters.recv_errors += 1;
                }
            }
        }
        self.queues[number].release();
    }

    /// A packet of which this is the first part. The others are there: the kernel tells of all of them at once.
    fn put_together(&mut self, number: usize, first: Range<usize>, stamp: Option<u64>) {
        let index = self.held.len();
        if self.linear.len() <= index {
            self.linear.resize_with(index + 1, Vec::new);
        }
        let queue = &mut self.queues[number];
        let buffer = &mut self.linear[index];
        buffer.clear();
        let mut part = Some((first, true));
        let mut is_whole = true;
        while let Some((place, more)) = part {
            let bytes = queue.taken(&place);
            is_whole &= buffer.len() + bytes.len() <= LINEAR_BYTES;
            if is_whole {
                buffer.extend_from_slice(bytes);
            }
            queue.give_back(&place);
            part = if more { queue.take() } else { None };
            is_whole &= !more || part.is_some();
        }
        let read = if is_whole {
            Datagram::read(buffer)
        } else {
            Err(Rejected::Malformed)
        };
        match read {
            Ok(datagram) if datagram.is_of_a_host() => {
                let payload = datagram.payload.clone();
                self.hold(number, &datagram, Place::Linear(index, payload), stamp);
            }
            _ => self.counters.recv_errors += 1,
        }
    }

    fn hold(&mut self, queue: usize, datagram: &Datagram, place: Place, stamp: Option<u64>) {
        let mut remote = datagram.remote;
        if let SocketAddr::V6(remote) = &mut remote
            && remote.ip().is_unicast_link_local()
        {
            remote.set_scope_id(self.index);
        }
        self.counters.recv_datagrams += 1;
        self.counters.recv_bytes += datagram.payload.len() as u64;
        self.held.push(Held {
            queue,
            place,
            remote,
            local_ip: datagram.local.ip(),
            ecn: Ecn::from_bits(datagram.ecn),
            timestamp_ns: stamp.and_then(|stamp| stamp.checked_add(self.wall_ahead_ns)),
        });
    }

    /// A batch of the kernel's socket.
    fn recv_by_kernel(&mut self) -> io::Result<usize> {
        let held = self.kernel.rx().recv()?;
        self.is_kernel_batch = held > 0;
        // More datagrams may wait.
        self.is_kernel_due = held > 0;
        Ok(held)
    }

    /// Gives back the frames of the last batch.
    fn give_back(&mut self) {
        for held in self.held.drain(..) {
            if let Place::Frame(place, _) = held.place {
                self.queues[held.queue].give_back(&place);
            }
        }
        for queue in &mut self.queues {
            queue.release();
        }
    }

    /// The queue that packets leave by.
    fn out(&mut self) -> &mut Queue {
        // There is at least one queue.
        &mut self.queues[0]
    }

    /// Hands pending frames over, as many as there is room for.
    fn hand_over(&mut self) {
        while let Some(pending) = self.pending.get(self.sent) {
            let queue = &mut self.queues[0];
            let frame = queue.slot(pending.slot, pending.len);
            pending.flow.complete(frame, pending.to.ecn.bits());
            if !queue.send_slot(pending.slot, pending.len) {
                break;
            }
            self.counters.send_datagrams += 1;
            self.counters.send_bytes += (pending.len - pending.flow.header_bytes()) as u64;
            self.sent += 1;
        }
    }

    /// Frames that the interface cannot send any more.
    fn drop_pending(&mut self, error: &io::Error, dropped: &mut Vec<(Destination, Dropped)>) {
        self.last_error = error.raw_os_error();
        for pending in self.pending.split_off(self.sent) {
            let reason = DropReason::Unreachable;
            self.counters.send_errors.count(reason, 1);
            let drop = Dropped {
                datagrams: 1,
                segment_size: pending.len - pending.flow.header_bytes(),
                reason,
            };
            dropped.push((pending.to, drop));
            self.out().free_slot(pending.slot);
        }
    }
}

impl PacketIo for XdpIo {
    type Rx = Self;
    type Tx = Self;

    fn name(&self) -> &'static str {
        self.mode
    }

    fn rx(&mut self) -> &mut Self {
        self
    }

    fn tx(&mut self) -> &mut Self {
        self
    }

    fn capabilities(&self) -> Capabilities {
        let kernel = self.kernel.capabilities();
        Capabilities {
            timestamps: self.is_timed,
            recv_batch_max: RECV_BATCH_MAX,
            recv_buffer_bytes: self.queues.iter().map(Queue::rx_bytes).sum(),
            ..kernel
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.kernel.local_addr()
    }

    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready> {
        let timeout_ns = match interest {
            _ if self.is_kernel_due || self.has_frames() => Some(0),
            Interest::Read => timeout_ns,
            // What has become free is looked at soon.
            Interest::ReadWrite => Some(timeout_ns.unwrap_or(FULL_WAIT_NS).min(FULL_WAIT_NS)),
        };
        let waker = self.kernel.waker();
        let ready = waker.wait(Some(self.group.as_fd()), Interest::Read, timeout_ns)?;
        let has_frames = self.has_frames();
        // What is readable is the kernel's socket if it is not the frames.
        if ready.readable && !has_frames {
            let kernel = self.kernel.wait(Interest::Read, Some(0))?;
            self.is_kernel_due |= kernel.readable;
            if kernel.woken {
                waker.wake();
            }
        }
        self.now = Instant::now();
        Ok(Ready {
            readable: ready.readable || has_frames,
            writable: interest == Interest::ReadWrite,
            ..ready
        })
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn counters(&self) -> Counters {
        let kernel = self.kernel.counters();
        let mut all = self.counters.plus(&kernel);
        all.kernel_datagrams = kernel.recv_datagrams + kernel.send_datagrams;
        all
    }
}

impl PacketRx for XdpIo {
    fn recv(&mut self) -> io::Result<usize> {
        self.give_back();
        self.is_kernel_batch = false;
        self.counters.recv_calls += 1;
        if self.has_frames() {
            self.wall_ahead_ns = wall_ahead_ns();
        }
        if self.turns.is_kernels() {
            let held = self.recv_by_kernel()?;
            if held > 0 {
                return Ok(held);
            }
        }
        for number in self.turns.order(self.queues.len()) {
            self.take_from(number);
        }
        if self.held.is_empty() && self.is_kernel_due {
            return self.recv_by_kernel();
        }
        Ok(self.held.len())
    }

    fn received(&mut self, index: usize) -> Option<Received<'_>> {
        if self.is_kernel_batch {
            return self.kernel.rx().received(index);
        }
        let held = self.held.get(index)?;
        let payload = match &held.place {
            Place::Frame(place, part) => {
                self.queues[held.queue].taken(place).get_mut(part.clone())?
            }
            Place::Linear(index, part) => self.linear.get_mut(*index)?.get_mut(part.clone())?,
        };
        Some(Received {
            remote: held.remote,
            local_ip: Some(held.local_ip),
            ecn: held.ecn,
            timestamp_ns: held.timestamp_ns,
            stride: payload.len().max(1),
            payload,
        })
    }

    fn take_refused(&mut self) -> Vec<SocketAddr> {
        self.kernel.rx().take_refused()
    }
}

impl PacketTx for XdpIo {
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]> {
        if len == 0 {
            return Some(&mut []);
        }
        let flow = self.flows.headers(to, self.now);
        // The kernel says of what is too long for the interface that it is.
        let flow = flow.filter(|flow| len <= self.frame_max.saturating_sub(flow.header_bytes()));
        let Some(flow) = flow else {
            let frame = self.kernel.tx().frame(to, len)?;
            self.taken += len;
            return Some(frame);
        };
        let slot = self.out().take_slot()?;
        let headers = flow.header_bytes();
        self.taken += len;
        self.pending.push(Pending {
            slot,
            len: headers + len,
            flow,
            to: *to,
        });
        self.out().slot(slot, headers + len).get_mut(headers..)
    }

    fn taken_bytes(&self) -> usize {
        self.taken
    }

    fn flush(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        self.now = Instant::now();
        let before = dropped.len();
        let by_kernel = self.kernel.tx().flush(dropped)?;
        if dropped.len() > before {
            let error = self.kernel.tx().last_error();
            self.last_error = error.and_then(|error| error.raw_os_error());
        }
        self.hand_over();
        let (calls, sent) = self.out().kick();
        self.counters.send_calls += calls;
        self.out().reap();
        let all_sent = match sent {
            Ok(all) => all,
            Err(error) => {
                // What was handed over leaves if the interface comes back.
                self.drop_pending(&error, dropped);
                true
            }
        };
        let handed_over = self.sent == self.pending.len();
        let all = handed_over && all_sent;
        self.counters.send_blocked += u64::from(!all);
        if handed_over {
            self.pending.clear();
            self.sent = 0;
        }
        if all && by_kernel {
            self.taken = 0;
        }
        Ok(all && by_kernel)
    }

    fn last_error(&self) -> Option<io::Error> {
        self.last_error.map(io::Error::from_raw_os_error)
    }
}

impl fmt::Debug for XdpIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpIo")
            .field("interface", &self.interface)
            .field("mode", &self.mode)
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}

/// What is waited for as one.
fn group(kernel: &UdpIo, queues: &[Queue]) -> io::Result<OwnedFd> {
    let group = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&group, kernel.as_fd(), data, epoll::EventFlags::IN)?;
    for queue in queues {
        epoll::add(&group, queue.as_fd(), data, epoll::EventFlags::IN)?;
    }
    Ok(group)
}

/// What the wall clock shows more than the monotonic one, in nanoseconds.
fn wall_ahead_ns() -> u64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let ahead = ns(ClockId::Realtime) - ns(ClockId::Monotonic);
    u64::try_from(ahead).unwrap_or(0)
}

/// The addresses whose packets are taken: the socket's, or all that the interface has.
fn addresses(interface: &str, local: SocketAddr) -> io::Result<Vec<IpAddr>> {
    if !local.ip().is_unspecified() {
        return Ok(vec![local.ip()]);
    }
    let found = if_addrs::get_if_addrs()?.into_iter();
    let own = found
        .filter(|found| found.name == interface)
        .map(|found| found.ip());
    Ok(own.filter(|ip| local.is_ipv6() || ip.is_ipv4()).collect())
}

/// Loads the program and attaches it, where that is left open in the best way that the driver has.
fn attach(
    config: &XdpConfig,
    interface: &Interface,
    map: &SocketMap,
    addresses: &[IpAddr],
    local: SocketAddr,
    frame_max: usize,
) -> Result<(OwnedFd, Attach), XdpError> {
    let name = config.interface.as_str();
    let load = |knows_frags| {
        let (code, flags) = assemble(map.as_fd(), addresses, local, frame_max, knows_frags);
        bpf::load(&code, flags)
    };
    // Kernels before 5.18 know nothing of packets of several fragments.
    let program = load(true).or_else(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Err(error),
        _ => load(false),
    });
    let program = program.map_err(|error| XdpError::of("loading the XDP program", name, error))?;
    let attach = |how| attach_patiently(program.as_fd(), interface.index, how);
    let attached = match config.attach {
        Some(how) => attach(how).map(|link| (link, how)),
        None => attach(Attach::Native)
            .map(|link| (link, Attach::Native))
            .or_else(|error| {
                match error.raw_os_error() {
                    Some(libc::EPERM | libc::EBUSY | libc::EEXIST) => Err(error),
                    // Zero copy is the driver's, or none.
                    _ if config.transfer == Some(Transfer::ZeroCopy) => Err(error),
                    _ => attach(Attach::Generic).map(|link| (link, Attach::Generic)),
                }
            }),
    };
    let interface = || name.to_owned();
    attached.map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => XdpError::Busy {
            interface: interface(),
        },
        Some(libc::EPERM) => XdpError::of("attaching the XDP program", name, source),
        _ if config.attach == Some(Attach::Generic) => {
            XdpError::of("attaching the XDP program", name, source)
        }
        _ => XdpError::NoNative {
            interface: interface(),
            source,
        },
    })
}

fn attach_patiently(program: BorrowedFd<'_>, interface: u32, how: Attach) -> io::Result<OwnedFd> {
    let mut attempts = 1;
    loop {
        match bpf::attach(program, interface, how) {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && attempts < ATTACH_ATTEMPTS =>
            {
                attempts += 1;
                thread::sleep(ATTACH_PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use sphinx_net::udp::UdpConfig;
    use sphinx_netdev::ethernet::Ethernet;
    use sphinx_netdev::netns::{Access, Namespace, probe};

    use super::*;

    /// Two interfaces that are joined, `near` and `far`, in a namespace of their own; `None` where that is not to be had.
    fn cable() -> Option<Namespace> {
        if !matches!(probe(), Ok(Access::Direct)) {
            sphinx_testing::skipped!("needs root");
            return None;
        }
        let namespace = Namespace::new().unwrap();
        for line in [
            "link add near type veth peer name far",
            "addr add 10.83.0.1/24 dev near",
            "link set near up",
            "link set far up",
        ] {
            let mut ip = Command::new("ip");
            let Ok(mut ip) = namespace.spawn(ip.args(line.split(' '))) else {
                sphinx_testing::skipped!("no 'ip'");
                return None;
            };
            assert!(ip.wait().unwrap().success(), "{line}");
        }
        Some(namespace)
    }

    /// The end at `near`; `None` where the kernel has none, or the process may not use them.
    fn open_near() -> Option<XdpIo> {
        let bind = "10.83.0.1:0".parse().unwrap();
        let kernel = UdpIo::open(&UdpConfig::new(bind)).unwrap();
        let config = "near".parse().unwrap();
        match XdpIo::open(&config, kernel) {
            Err(error @ (XdpError::Denied { .. } | XdpError::System { .. })) => {
                sphinx_testing::skipped!("{error}");
                None
            }
            opened => Some(opened.unwrap()),
        }
    }

    /// A frame with a datagram of five bytes that seems to come from there.
    fn frame_from(from: &str, io: &XdpIo) -> Vec<u8> {
        let mac = |name| lookup::interface(name).unwrap().address.unwrap();
        let (macs, from) = ((mac("far"), mac("near")), from.parse().unwrap());
        let flow = Flow::new(macs, from, io.local_addr()).unwrap();
        let mut frame = vec![0; flow.header_bytes() + 5];
        flow.complete(&mut frame, 0);
        frame
    }

    fn await_frames(io: &mut XdpIo) {
        let mut waits = 10;
        while !io.has_frames() {
            assert!(waits > 0, "no frame has come");
            waits -= 1;
            io.wait(Interest::Read, Some(1_000_000_000)).unwrap();
        }
    }

    /// The kernel would have dropped it; an answer would go to programs of this machine.
    #[test]
    fn what_no_host_can_have_sent_is_not_heard() {
        let Some(namespace) = cable() else { return };
        let run = || {
            let Some(mut io) = open_near() else { return };
            let far = Ethernet::open("far").unwrap();
            for (from, is_heard) in [
                ("127.0.0.1:9", false),
                ("10.83.0.1:9", false),
                ("10.83.0.2:9", true),
            ] {
                far.send(&frame_from(from, &io)).unwrap();
                await_frames(&mut io);
                assert_eq!(io.recv().unwrap(), usize::from(is_heard), "{from}");
            }
        };
        namespace.run(run).unwrap();
    }

    /// A driver without room for the time of arrival: here what the program has written is erased.
    #[test]
    fn who_does_not_know_the_time_of_arrival_says_so() {
        let Some(namespace) = cable() else { return };
        let run = || {
            let Some(mut io) = open_near() else { return };
            let frame = frame_from("10.83.0.2:9", &io);
            let far = Ethernet::open("far").unwrap();
            assert!(io.capabilities().timestamps);
            for is_erased in [false, true, false] {
                far.send(&frame).unwrap();
                await_frames(&mut io);
                if is_erased {
                    let queue = &mut io.queues[0];
                    // Behind the 256 bytes that the kernel keeps free in each chunk.
                    for start in (256..queue.rx_bytes()).step_by(2048) {
                        queue.take_stamp(&(start..start));
                    }
                }
                assert_eq!(io.recv().unwrap(), 1);
                let received = io.received(0).unwrap();
                assert_eq!(received.timestamp_ns.is_none(), is_erased);
                assert_eq!(io.capabilities().timestamps, !is_erased);
            }
        };
        namespace.run(run).unwrap();
    }

    #[test]
    fn queues_and_the_kernels_socket_take_turns() {
        for queues in [1, 2, 3, 16] {
            let mut turns = Turns::default();
            let (mut firsts, mut kernels) = (vec![0; queues], 0);
            let receives = KERNEL_EVERY * queues as u32;
            for _ in 0..receives {
                // Always has something.
                if turns.is_kernels() {
                    kernels += 1;
                    continue;
                }
                let order: Vec<usize> = turns.order(queues).collect();
                firsts[order[0]] += 1;
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..queues), "{order:?}");
            }
            assert_eq!(kernels, receives / KERNEL_EVERY);
            assert_eq!(firsts, vec![KERNEL_EVERY - 1; queues], "{queues}");
        }
    }
}
