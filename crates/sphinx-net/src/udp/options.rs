//! Socket options, and finding out which of them the kernel knows.

use std::io;
use std::mem::size_of_val;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::{c_int, sock_filter, sock_fprog};

use super::mmsg::{SendBatch, SendFormat};
use crate::queue::{Memory, Transmit};
use crate::{Destination, Ecn};

/// Datagrams per segmented send that newer kernels take, and all that know GSO.
const SEGMENTS_MAX_NEW: usize = 128;
const SEGMENTS_MAX_OLD: usize = 64;

/// As on every architecture but SPARC and PA-RISC (asm-generic/socket.h).
const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;

/// Sets an option whose value is an integer.
fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option's value is an integer.
    unsafe { set_value(socket, level, name, &value) }
}

/// Sets an option.
///
/// # Safety
///
/// The value has to be of the type that the option is made of, and addresses in it valid for what the kernel does there.
unsafe fn set_value<T>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives during the call and is
    // only read. The descriptor is borrowed, hence open. The rest is the caller's promise.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets a program say which socket of the group that this one is in gets a datagram.
pub(super) fn steer(socket: BorrowedFd<'_>, program: &mut [sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: program.len().try_into().map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the option takes a `sock_fprog`. The kernel reads as many instructions as there are, and copies them.
    unsafe { set_value(socket, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program) }
}

/// Lets receive calls that find nothing poll the card's driver for up to this time.
pub(super) fn busy_poll(socket: BorrowedFd<'_>, time: Duration) {
    let us = c_int::try_from(time.as_micros()).unwrap_or(c_int::MAX);
    // Best effort: more than the system's default takes CAP_NET_ADMIN.
    let _ = set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, us);
}

/// Asks which address a packet was sent to, at the level of either family: an IPv6 socket may get IPv4 too, and the other option is not known to an IPv4
/// socket.
pub(super) fn tell_local_ip(socket: BorrowedFd<'_>) {
    let _ = set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
    let _ = set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1);
}

/// What [`apply`] achieved.
pub(super) struct Applied {
    pub(super) ecn_recv: bool,
    pub(super) local_ip: bool,
    pub(super) timestamps: bool,
    pub(super) dont_fragment: bool,
    pub(super) gro: bool,
}

/// Which optional features [`apply`] asks for.
pub(super) struct Wanted {
    pub(super) v6_socket: bool,
    pub(super) timestamps: bool,
    pub(super) gro: bool,
}

/// Asks the kernel for everything it can tell about received packets, and for "don't fragment".
///
/// IPv4 packets on an IPv6 socket are governed by the options of the IPv4 level, so an IPv6
/// socket gets both kinds; they only have to succeed for its own family, as it may be limited to
/// IPv6.
pub(super) fn apply(socket: BorrowedFd<'_>, wanted: &Wanted) -> Applied {
    let on = |level, name| set(socket, level, name, 1).is_ok();
    let v4_ecn = on(libc::IPPROTO_IP, libc::IP_RECVTOS);
    let v4_local_ip = on(libc::IPPROTO_IP, libc::IP_PKTINFO);
    let v4_probe = libc::IP_PMTUDISC_PROBE;
    let v4_df = set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4_probe).is_ok();
    let (ecn_recv, local_ip, dont_fragment) = if wanted.v6_socket {
        let v6_probe = libc::IPV6_PMTUDISC_PROBE;
        (
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            set(
                socket,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                v6_probe,
            )
            .is_ok(),
        )
    } else {
        (v4_ecn, v4_local_ip, v4_df)
    };
    // Best effort: without reports of ICMP errors, a peer that is gone is noticed later.
    on(libc::IPPROTO_IP, libc::IP_RECVERR);
    if wanted.v6_socket {
        on(libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
    }
    // Only feeds a counter, so there is nothing to report if it is missing.
    on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    Applied {
        ecn_recv,
        local_ip,
        timestamps: wanted.timestamps && on(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        dont_fragment,
        gro: wanted.gro && on(libc::SOL_UDP, libc::UDP_GRO),
    }
}

/// Which of the two socket buffers.
#[derive(Clone, Copy)]
pub(super) enum Buffer {
    Recv,
    Send,
}

/// Asks for a socket buffer of `bytes`, beyond the system's limit if the process may, and returns
/// what the kernel granted.
pub(super) fn resize(socket: &UdpSocket, buffer: Buffer, bytes: usize) -> usize {
    let (plain, force) = match buffer {
        Buffer::Recv => (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
        Buffer::Send => (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
    };
    // The kernel doubles the value.
    let value = c_int::try_from(bytes)
        .unwrap_or(c_int::MAX)
        .min(c_int::MAX / 2);
    if set(socket.as_fd(), libc::SOL_SOCKET, force, value).is_err() {
        // Without privileges the kernel silently takes the limit instead; what it took is read
        // back below.
        let _ = set(socket.as_fd(), libc::SOL_SOCKET, plain, value);
    }
    let socket = socket2::SockRef::from(socket);
    match buffer {
        Buffer::Recv => socket.recv_buffer_size(),
        Buffer::Send => socket.send_buffer_size(),
    }
    .unwrap_or(0)
}

/// What can be known about sending before the first packet is sent.
pub(super) struct SendProbe {
    pub(super) segments_max: usize,
    pub(super) ecn_send: bool,
}

/// Tries sending on a socket of its own that talks to itself, on the loopback interface.
///
/// Where there is no loopback (in a bare network namespace, say) the kernel cannot be asked, and
/// the least that it can do if it knows the options at all is assumed. A wrong guess shows when
/// it refuses a packet.
pub(super) fn probe_sending(v6_socket: bool) -> SendProbe {
    let loopback: SocketAddr = if v6_socket {
        (Ipv6Addr::LOCALHOST, 0).into()
    } else {
        (Ipv4Addr::LOCALHOST, 0).into()
    };
    let unspecified: SocketAddr = if v6_socket {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    };
    let Ok(socket) = UdpSocket::bind(loopback).or_else(|_| UdpSocket::bind(unspecified)) else {
        return SendProbe {
            segments_max: 1,
            ecn_send: false,
        };
    };
    // Setting the segment size to 0, which is its default, changes nothing.
    let knows_gso = set(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    let remote = match socket.local_addr() {
        Ok(addr) => SocketAddr::new(loopback.ip(), addr.port()),
        Err(_) => {
            return SendProbe {
                segments_max: 1,
                ecn_send: false,
            };
        }
    };
    let mut batch = SendBatch::new();
    let mut accepts = |len: usize, ecn: Ecn| {
        let arena = [0; SEGMENTS_MAX_NEW];
        let message = Transmit {
            to: Destination {
                remote,
                local_ip: None,
                ecn,
            },
            segment_size: 1,
            memory: 0,
            offset: 0,
            len,
        };
        let format = SendFormat {
            v6_socket,
            ecn: true,
        };
        match batch.send(socket.as_fd(), format, Memory::of(&arena), &[message]) {
            Ok(_) => Answer::Yes,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL | libc::EIO | libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Answer::No,
                _ => Answer::Unknown,
            },
        }
    };
    let segments_max = if !knows_gso {
        1
    } else {
        match accepts(SEGMENTS_MAX_NEW, Ecn::NotEct) {
            Answer::Yes => SEGMENTS_MAX_NEW,
            Answer::Unknown => SEGMENTS_MAX_OLD,
            Answer::No => match accepts(SEGMENTS_MAX_OLD, Ecn::NotEct) {
                Answer::Yes | Answer::Unknown => SEGMENTS_MAX_OLD,
                Answer::No => 1,
            },
        }
    };
    SendProbe {
        segments_max,
        ecn_send: accepts(1, Ecn::Ect0) != Answer::No,
    }
}

/// The kernel's answer to a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Unknown,
}
