//! Ethernet interfaces that exist: a program reads and writes whole frames.
//!
//! Frames come as they would be on a wire, one packet of at most MTU size each, with checksums: what
//! the kernel hands over joined or unfinished is taken apart and completed here, so that no offload
//! has to be turned off.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType},
};

use crate::{
    lookup::found,
    netns::context,
    offload::{ETHERNET, HEADER, finish},
    tun,
};

/// Bytes of an Ethernet header.
pub const HEADER_BYTES: usize = 14;

/// The longest frame that the kernel hands over, with the virtio header.
const FRAME_MAX: usize = HEADER + HEADER_BYTES + 65_535;
/// Frames that wait for the reader, in bytes of kernel memory.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Not in libc for every target.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// The number of an interface of the calling thread's namespace, and whether it is a port of a bridge.
///
/// # Errors
///
/// Those of the kernel: there is no such interface.
pub fn index_and_is_port(name: &str) -> io::Result<(u32, bool)> {
    let found = found(name)?;
    Ok((found.index, found.is_port))
}

/// An interface, opened for whole frames, whomever they are for. The network stack of the machine sees
/// them too: the interface should have no addresses.
#[derive(Debug)]
pub struct Ethernet {
    socket: OwnedFd,
    name: String,
    mtu: usize,
    buffer: Box<[u8]>,
    /// The interface has been turned off, and nothing has come since.
    is_off: bool,
}

impl Ethernet {
    /// Opens an interface of the calling thread's network namespace, which has to be up. Reading and
    /// writing never block. It becomes promiscuous until this is dropped.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such interface, `PermissionDenied` without `CAP_NET_RAW`,
    /// `NetworkDown` if it is not up.
    pub fn open(name: &str) -> io::Result<Ethernet> {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // Without a protocol nothing arrives before the socket belongs to the interface.
            let socket =
                rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
            let (index, mtu) = tun::index_and_mtu(name)?;
            set_option(&socket, libc::PACKET_VNET_HDR, &1_i32)?;
            set_option(&socket, PACKET_IGNORE_OUTGOING, &1_i32)?;
            // More than the system's limit needs rights that not everybody has.
            if rustix::net::sockopt::set_socket_recv_buffer_size_force(
                &socket,
                RECEIVE_BUFFER_BYTES,
            )
            .is_err()
            {
                rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
            }
            bind(&socket, index)?;
            let membership = libc::packet_mreq {
                mr_ifindex: index,
                mr_type: libc::PACKET_MR_PROMISC as _,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            set_option(&socket, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
            io::Result::Ok((socket, mtu))
        };
        let (socket, mtu) = open().map_err(|error| context(&format!("interface {name}"), error))?;
        Ok(Ethernet {
            socket,
            name: name.to_owned(),
            mtu,
            buffer: vec![0; FRAME_MAX].into(),
            is_off: false,
        })
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The MTU of the interface: its largest packet in IP bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether it has been turned off, as far as reading has told. The kernel does not wake up who waits for an interface that is
    /// removed then: [`receive`](Ethernet::receive) has to be called from time to time.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Takes what has arrived next: one frame, or several that the kernel has joined.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing, `InvalidData` if what has arrived cannot be taken apart, `NetworkDown` once if the interface has been turned off, `NotFound` if it has been removed.
    pub fn receive(&mut self, emit: impl FnMut(&[u8])) -> io::Result<()> {
        let buffer = &mut self.buffer[..];
        let length = loop {
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Ok((length, _)) => break length,
                // An interface that is removed is turned off first.
                Err(Errno::AGAIN) if self.is_off && !is_bound(&self.socket) => {
                    return Err(tun::gone(&self.name));
                }
                Err(error) => {
                    self.is_off |= error == Errno::NETDOWN;
                    return Err(error.into());
                }
            }
        };
        self.is_off = false;
        let parts = buffer[..length].split_first_chunk_mut::<HEADER>();
        match parts.is_some_and(|(header, frame)| finish(*header, frame, ETHERNET, emit)) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// Frames longer than the interface allows; a queue that is full; an interface that is off.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // An empty virtio header: no checksum to complete, nothing to cut.
        let parts = [IoSlice::new(&[0; HEADER]), IoSlice::new(frame)];
        loop {
            match rustix::io::writev(&self.socket, &parts) {
                Err(Errno::INTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }
}

impl AsFd for Ethernet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Lets frames of all protocols of the interface arrive.
fn bind(socket: &OwnedFd, index: i32) -> io::Result<()> {
    bind_for(socket, index, libc::ETH_P_ALL as u16)
}

/// Lets frames leave by the interface, and none arrive.
pub(crate) fn bind_to_send(socket: &OwnedFd, index: i32) -> io::Result<()> {
    bind_for(socket, index, 0)
}

fn bind_for(socket: &OwnedFd, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` consists of integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    // SAFETY: the address is valid for reading and of the length given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as _,
        )
    };
    check(result)
}

/// Whether a socket still belongs to an interface: it does not any more once that has been removed.
fn is_bound(socket: &OwnedFd) -> bool {
    // SAFETY: `sockaddr_ll` consists of integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is valid for writing and of the length given.
    let result = unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            std::ptr::from_mut(&mut address).cast(),
            &raw mut length,
        )
    };
    result == 0 && address.sll_ifindex > 0
}

fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is valid for reading and of the length given; the kernel checks that length
    // against the option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as _,
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
