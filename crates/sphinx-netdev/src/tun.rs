//! TUN devices: network interfaces whose packets a program reads and writes.
//!
//! A [`Tun`] is opened without a virtio header and without offloads, so every packet that arrives is a
//! single one of at most MTU size, with complete checksums. A [`JoiningTun`] takes what the kernel has joined.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU64,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    os::unix::fs::OpenOptionsExt,
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    join::Run,
    netlink::Message,
    netns::{context, write_sysctl},
    offload::{HEADER, NEEDS_CHECKSUM, finish},
};

/// The largest IP packet a device can carry.
pub const MTU_MAX: usize = 65_535;

/// The highest real-time priority.
const REAL_TIME_MAX: i32 = 99;

/// Precedence ("nice" value) of a thread that serves a device without real-time priority.
const PRIORITY: i32 = -15;

/// Its time slice. Threads with short slices are preferred when they wake up; the usual slice of
/// some milliseconds is as long as the delays of a link.
const SLICE_NS: u64 = 100_000;

/// How long the kernel may take to deliver packets to an IPv6 address it has been given; usually it is far below 10 ms.
const LOCAL_ROUTE_WAIT: Duration = Duration::from_secs(10);

/// Flag of a route whose packets are for this machine. Not in libc for every target.
const RTF_LOCAL: u32 = 0x8000_0000;

/// The settings of a TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the interface, 1 to 15 bytes; it must not exist in the namespace yet.
    pub name: String,
    /// Largest packet in IP bytes; IPv6 needs at least 1280.
    pub mtu: usize,
    /// Packets the kernel keeps while the reader is slow; it drops more.
    pub queue_packets: u32,
    /// Addresses with the length of their prefix, to which a route is added. Packets to them are delivered from the start.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// An open TUN device. The interface disappears when this is dropped.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

impl Tun {
    /// Creates an interface in the calling thread's network namespace, sets it up and turns it on.
    /// It stays there wherever the device is then used. Reading and writing never block.
    ///
    /// The kernel's own IPv6 chatter (link-local address, router solicitations) is turned off where
    /// possible; multicast membership reports remain.
    ///
    /// # Errors
    ///
    /// `NotFound` or `PermissionDenied` where TUN devices are not available, `AlreadyExists` or
    /// `ResourceBusy` if the name is taken, `InvalidInput` for settings that the kernel refuses,
    /// `TimedOut` if it does not get round to an IPv6 address.
    pub fn open(config: &TunConfig) -> io::Result<Tun> {
        Tun::open_with(config, 0)
    }

    /// Opens the device with further flags (`IFF_…`).
    fn open_with(config: &TunConfig, flags: libc::c_int) -> io::Result<Tun> {
        let name = config.name.as_str();
        let file =
            open_device(name, flags).map_err(|error| context("opening a TUN device", error))?;
        let control = control_socket(libc::AF_INET)?;
        let mut request = interface_request(name)?;
        request.ifr_ifru.ifru_mtu = libc::c_int::try_from(config.mtu).map_err(invalid)?;
        ioctl(&control, libc::SIOCSIFMTU, &mut request)
            .map_err(|e| context("setting the MTU", e))?;
        ioctl(&control, libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX has just filled in this field of the union.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        set_queue_length(index, config.queue_packets)
            .map_err(|error| context("setting the queue length", error))?;
        for (parameter, value) in [("addr_gen_mode", "1"), ("router_solicitations", "0")] {
            // Without IPv6 there is nothing to turn off.
            let _ = write_sysctl(&format!("net/ipv6/conf/{name}/{parameter}"), value);
        }
        bring_up(name)?;
        for &(address, prefix) in &config.addresses {
            add_address(name, address, prefix)
                .map_err(|error| context(&format!("address {address}/{prefix}"), error))?;
        }
        Ok(Tun {
            file,
            name: name.to_owned(),
        })
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next packet that the namespace sends, and returns its length; a longer packet is
    /// cut to the buffer.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, `NotFound` if the interface has been removed.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| rustix::io::read(&self.file, &mut *buffer)).map_err(|error| self.unread(error))
    }

    /// Why nothing was read.
    fn unread(&self, error: io::Error) -> io::Error {
        match error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) {
            true => gone(&self.name),
            false => error,
        }
    }

    /// Delivers an IP packet to the namespace.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what is not an IP packet; others if the interface has been turned off.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        retry(|| rustix::io::write(&self.file, packet)).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What the kernel has left to be done about a packet: a checksum, or to cut it into segments.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished([u8; HEADER]);

impl Unfinished {
    /// Whether the packet stands for several TCP segments.
    pub fn is_joined(&self) -> bool {
        self.0[1] != 0
    }

    /// Whether the checksum covers everything. Otherwise it covers addresses, protocol and length so far.
    pub fn has_checksum(&self) -> bool {
        self.0[0] & NEEDS_CHECKSUM == 0
    }

    /// Gives every packet that this one stands for to `emit`, complete: itself, or its segments. Returns false if it is of a kind
    /// that cannot be taken apart.
    pub fn finish(self, packet: &mut [u8], emit: impl FnMut(&[u8])) -> bool {
        finish(self.0, packet, 0, emit)
    }
}

/// A TUN device that takes TCP segments joined by the kernel, up to 64 KiB, and packets without checksums: it has the offloads of a
/// network card. The interface disappears when this is dropped.
#[derive(Debug)]
pub struct JoiningTun(Tun);

impl JoiningTun {
    /// As [`Tun::open`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open(config: &TunConfig) -> io::Result<JoiningTun> {
        let tun = JoiningTun(Tun::open_with(config, libc::IFF_VNET_HDR)?);
        tun.offload()?;
        Ok(tun)
    }

    /// As [`open`](JoiningTun::open), but without offloads where the kernel has none.
    ///
    /// # Errors
    ///
    /// As [`Tun::open`].
    pub fn open_any(config: &TunConfig) -> io::Result<JoiningTun> {
        let tun = JoiningTun(Tun::open_with(config, libc::IFF_VNET_HDR)?);
        let _ = tun.offload();
        Ok(tun)
    }

    /// A device that another process has opened as one of this kind, and given away.
    ///
    /// # Errors
    ///
    /// Those of setting the file not to block.
    pub fn adopt(file: OwnedFd, name: String) -> io::Result<JoiningTun> {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
        let file = File::from(file);
        Ok(JoiningTun(Tun { file, name }))
    }

    fn offload(&self) -> io::Result<()> {
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let fd = self.0.file.as_raw_fd();
        // SAFETY: the argument of this request is a number.
        if unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) } < 0 {
            return Err(context(
                "offloads of a TUN device",
                io::Error::last_os_error(),
            ));
        }
        Ok(())
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Takes the next packet that the namespace sends: its length, and what is left to be done about it.
    ///
    /// # Errors
    ///
    /// As [`Tun::receive`].
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<(Unfinished, usize)> {
        let mut header = [0; HEADER];
        let length = retry(|| {
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut *buffer)];
            rustix::io::readv(&self.0.file, &mut parts)
        })
        .map_err(|error| self.0.unread(error))?;
        Ok((Unfinished(header), length.saturating_sub(HEADER)))
    }

    /// Delivers a complete IP packet to the namespace.
    ///
    /// # Errors
    ///
    /// As [`Tun::send`].
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        self.send_unfinished(Unfinished([0; HEADER]), packet)
    }

    /// Delivers complete IP packets to the namespace, in this order. TCP segments that follow each other go as one packet, which the kernel cuts into
    /// them again where it has to. How many were not taken is returned.
    pub fn send_all<T: AsRef<[u8]>>(&self, packets: &[T]) -> u64 {
        let mut refused = 0;
        let mut rest = packets;
        while let [first, ..] = rest {
            let run = Run::first(rest);
            let count = run.as_ref().map_or(1, |run| run.segments);
            let sent = match &run {
                None => self.send(first.as_ref()),
                Some(run) => {
                    let payloads = rest[..count].iter().map(|it| &it.as_ref()[run.payload..]);
                    let parts = [&run.headers[..]].into_iter().chain(payloads);
                    let parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
                    retry(|| rustix::io::writev(&self.0.file, &parts)).map(drop)
                }
            };
            refused += if sent.is_err() { count as u64 } else { 0 };
            rest = &rest[count..];
        }
        refused
    }

    /// Gives a packet that has been received back to the namespace, with as much left to be done about it.
    ///
    /// # Errors
    ///
    /// As [`Tun::send`].
    pub fn send_unfinished(&self, rest: Unfinished, packet: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(&rest.0), IoSlice::new(packet)];
        retry(|| rustix::io::writev(&self.0.file, &parts)).map(drop)
    }
}

impl AsFd for JoiningTun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets the calling thread, which serves a device, run as soon as it has something to do: exact
/// timers; real-time priority, above its own if it has some, where that is allowed and there is a second processor for
/// everything else; otherwise short time slices, which need no rights, and precedence where allowed.
///
/// # Errors
///
/// Those of the system calls; what had been set before stays.
pub fn serve_in_time() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    if thread::available_parallelism()?.get() > 1 {
        // SAFETY: `sched_param` consists of integers, for which zero is valid.
        let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: 0 is the calling thread, and `parameters` is valid for writing.
        unsafe { libc::sched_getparam(0, &raw mut parameters) };
        // Threads without have 0. Who may not have more may keep what he has.
        let own = parameters.sched_priority;
        for priority in [(own + 1).min(REAL_TIME_MAX), own.max(1)] {
            parameters.sched_priority = priority;
            // Threads that this one starts are scheduled as usual.
            let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
            // SAFETY: 0 is the calling thread, and `parameters` is valid for reading.
            if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0 {
                return Ok(());
            }
        }
    }
    for nice in [PRIORITY, 0] {
        // SAFETY: `sched_attr` consists of integers, for which zero is valid.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        attributes.size = size_of::<libc::sched_attr>() as u32;
        attributes.sched_policy = libc::SCHED_OTHER as u32;
        attributes.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
        attributes.sched_nice = nice;
        attributes.sched_runtime = SLICE_NS;
        let attributes = &raw const attributes;
        // SAFETY: 0 is the calling thread, and `attributes` is valid for reading and has its size in
        // it.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes, 0) } == 0 {
            return Ok(());
        }
    }
    Err(io::Error::last_os_error())
}

/// What reading from an interface is that has been removed.
pub(crate) fn gone(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("interface {name} is gone"))
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

/// Opens a TUN device and creates its interface, which is down and has no address. Allocates
/// nothing, so that a forked child may call it.
pub(crate) fn open_device(name: &str, flags: libc::c_int) -> io::Result<File> {
    let mut request = interface_request(name)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL | flags;
    request.ifr_ifru.ifru_flags = flags as i16;
    ioctl(&file, libc::TUNSETIFF, &mut request)?;
    Ok(file)
}

/// Turns on an interface of the calling thread's namespace.
///
/// # Errors
///
/// Those of the system calls.
pub fn bring_up(name: &str) -> io::Result<()> {
    let control = control_socket(libc::AF_INET)?;
    let mut request = interface_request(name)?;
    ioctl(&control, libc::SIOCGIFFLAGS, &mut request)
        .and_then(|()| {
            // SAFETY: SIOCGIFFLAGS has just filled in this field of the union.
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
            ioctl(&control, libc::SIOCSIFFLAGS, &mut request)
        })
        .map_err(|error| context(&format!("turning on {name}"), error))
}

/// The number and the MTU of an interface of the calling thread's namespace.
pub(crate) fn index_and_mtu(name: &str) -> io::Result<(i32, usize)> {
    let control = control_socket(libc::AF_INET)?;
    let mut request = interface_request(name)?;
    ioctl(&control, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: SIOCGIFMTU has just filled in this field of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    ioctl(&control, libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: SIOCGIFINDEX has just filled in this field of the union.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    Ok((index, usize::try_from(mtu).map_err(invalid)?))
}

/// Sets the length of an interface's transmit queue, by netlink: the ioctl for it is refused inside
/// user namespaces.
fn set_queue_length(index: i32, packets: u32) -> io::Result<()> {
    // Any family and type, the interface's index, no change of flags.
    let mut fixed = [0; 16];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    Message::new(libc::RTM_SETLINK, 0, &fixed)
        .with(libc::IFLA_TXQLEN, &packets.to_ne_bytes())
        .send()
}

/// Gives an interface of the calling thread's namespace an address, and the route to its prefix.
///
/// # Errors
///
/// Those of the system calls: `PermissionDenied` without `CAP_NET_ADMIN`, `AlreadyExists` if it has it, `Unsupported` where the kernel has no IPv6, or the
/// interface is to have none.
pub fn add_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    let mut request = interface_request(name)?;
    match address {
        IpAddr::V4(address) if prefix <= 32 => {
            let control = control_socket(libc::AF_INET)?;
            request.ifr_ifru.ifru_addr = ipv4_sockaddr(address);
            ioctl(&control, libc::SIOCSIFADDR, &mut request)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            request.ifr_ifru.ifru_netmask = ipv4_sockaddr(Ipv4Addr::from_bits(mask));
            ioctl(&control, libc::SIOCSIFNETMASK, &mut request)
        }
        IpAddr::V6(address) if prefix <= 128 => {
            let control = control_socket(libc::AF_INET6).map_err(without_ipv6)?;
            ioctl(&control, libc::SIOCGIFINDEX, &mut request)?;
            // SAFETY: SIOCGIFINDEX has just filled in this field of the union.
            let index = unsafe { request.ifr_ifru.ifru_ifindex };
            // Nobody else is on the link, and finding that out would take a second.
            let mut fixed = [
                libc::AF_INET6 as u8,
                prefix,
                libc::IFA_F_NODAD as u8,
                0,
                0,
                0,
                0,
                0,
            ];
            fixed[4..].copy_from_slice(&index.to_ne_bytes());
            let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
            Message::new(libc::RTM_NEWADDR, flags, &fixed)
                .with(libc::IFA_LOCAL, &address.octets())
                .with(libc::IFA_ADDRESS, &address.octets())
                .send()
                .map_err(without_ipv6)?;
            await_local_route(address)
        }
        _ => Err(invalid("prefix too long")),
    }
}

/// What the kernel says where there is no IPv6, in one word; whatever else it says stays.
fn without_ipv6(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {
            io::Error::new(io::ErrorKind::Unsupported, "the kernel has no IPv6")
        }
        // A caller without the right is told so by another error.
        Some(libc::EACCES) => io::Error::new(
            io::ErrorKind::Unsupported,
            "IPv6 is turned off there (net.ipv6.conf.*.disable_ipv6)",
        ),
        _ => error,
    }
}

/// Whether any interface of the calling thread's namespace has an IPv6 address, loopback included.
pub fn has_ipv6() -> bool {
    let known = fs::read_to_string("/proc/thread-self/net/if_inet6");
    known.is_ok_and(|lines| !lines.is_empty())
}

/// Waits until packets to an IPv6 address of the calling thread's namespace are delivered. The kernel adds the route for
/// them later, from a queue of its own, and drops what arrives before.
fn await_local_route(address: Ipv6Addr) -> io::Result<()> {
    // Lines start with the destination and the length of its prefix, both in hexadecimal; flags are the second to last field.
    let start = format!("{:032x} 80 ", address.to_bits());
    let is_local = |line: &str| {
        let flags = line.split_ascii_whitespace().nth_back(1);
        line.starts_with(&start)
            && flags
                .and_then(|flags| u32::from_str_radix(flags, 16).ok())
                .is_some_and(|flags| flags & RTF_LOCAL != 0)
    };
    let deadline = Instant::now() + LOCAL_ROUTE_WAIT;
    while !fs::read_to_string("/proc/thread-self/net/ipv6_route")?
        .lines()
        .any(is_local)
    {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn ipv4_sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut sockaddr = libc::sockaddr {
        sa_family: libc::AF_INET as _,
        sa_data: [0; 14],
    };
    // In a sockaddr_in the address follows the family (not counted here) and a port of two bytes.
    for (byte, octet) in sockaddr.sa_data[2..6].iter_mut().zip(address.octets()) {
        *byte = octet as libc::c_char;
    }
    sockaddr
}

/// A request about an interface, with nothing but its name filled in.
fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` consists of integers and of a union of integers and pointers, for which zero
    // bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(Errno::INVAL.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

/// A socket to configure interfaces of the calling thread's namespace.
fn control_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` has just returned this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One of the requests that take an `ifreq`.
fn ioctl(fd: &impl AsFd, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `request` is valid for reading and writing, and every request of this module that is
    // made through this function takes an `ifreq`.
    let result = unsafe { libc::ioctl(fd, number, std::ptr::from_mut(request)) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
