//! What the kernel knows of a TCP connection, and listeners for those that come by one interface.

use std::{
    io,
    mem::{MaybeUninit, offset_of},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that wait to be accepted; the system's own limit (`net.core.somaxconn`) holds as well.
const BACKLOG: i32 = 4096;

/// Listens, on any free port of all addresses of both families, for connections that come by this interface of the calling thread's namespace, or from
/// the machine itself to the interface's address, and by no other. What has been accepted leaves by it too. Accepting does not block.
///
/// # Errors
///
/// Those of the system calls: there is no such interface.
pub fn listen_on(device: &str) -> io::Result<TcpListener> {
    let listen = |domain: Domain, any: SocketAddr| {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        socket.bind_device(Some(device.as_bytes()))?;
        socket.bind(&any.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let both = listen(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, 0).into());
    // A machine may have no IPv6.
    both.or_else(|_: io::Error| listen(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, 0).into()))
}

/// What bounds how much a sender has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow {
    /// The congestion window, in segments.
    pub congestion: u32,
    /// The slow-start threshold, in segments; none before the first loss.
    pub threshold: Option<u32>,
}

/// A threshold that has not been set (`TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// The window of a connection (`TCP_INFO`). It costs the same however many connections there are, unlike `/proc/net/tcp`, for which
/// the kernel walks its whole table.
///
/// # Errors
///
/// Those of `getsockopt`; `InvalidData` if the kernel does not tell windows.
pub fn send_window(connection: impl AsFd) -> io::Result<SendWindow> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `connection` is borrowed; the kernel writes at most `length` bytes to `info`,
    // which has as many, and the length that it wrote to `length`.
    let result = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let needed = offset_of!(libc::tcp_info, tcpi_snd_cwnd) + size_of::<u32>();
    if (length as usize) < needed {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: it consists of integers, for which zero is valid, and is zero where the kernel has not written.
    let info = unsafe { info.assume_init() };
    Ok(SendWindow {
        congestion: info.tcpi_snd_cwnd,
        threshold: (info.tcpi_snd_ssthresh < NO_THRESHOLD).then_some(info.tcpi_snd_ssthresh),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_connection_begins_with_a_window_and_without_a_threshold() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let window = send_window(&stream).unwrap();
        assert!(window.congestion > 0);
        // The kernel may remember an earlier connection's.
        assert!(window.threshold.is_none_or(|threshold| threshold > 0));
        send_window(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap_err();
    }
}
