//! Sockets of kernel TCP, with the congestion control that is measured.

use std::{net::SocketAddr, time::Duration};

use socket2::{Domain, Protocol, Socket, Type};

use super::{PEER_TIMEOUT, PeerError, PeerTask, tried};

/// Whether the kernel lets this process use a congestion control, over multipath TCP if `mptcp`.
///
/// # Errors
///
/// [`PeerError::Congestion`], or why there is no socket.
pub fn check_congestion(name: &str, mptcp: bool) -> Result<(), PeerError> {
    open(SocketAddr::from(([127, 0, 0, 1], 0)), name, mptcp).map(drop)
}

/// An unconnected socket for a task.
pub(super) fn socket(task: &PeerTask) -> Result<Socket, PeerError> {
    open(task.address, &task.congestion, task.mptcp)
}

fn open(address: SocketAddr, congestion: &str, mptcp: bool) -> Result<Socket, PeerError> {
    let domain = Domain::for_address(address);
    let (what, protocol) = match mptcp {
        false => ("socket", Protocol::TCP),
        true => ("multipath TCP", Protocol::MPTCP),
    };
    let socket = tried(what, Socket::new(domain, Type::STREAM, Some(protocol)))?;
    socket
        .set_tcp_congestion(congestion.as_bytes())
        .map_err(|_| PeerError::Congestion(congestion.to_owned()))?;
    Ok(socket)
}

/// A listening socket, and where it listens.
pub(super) fn listen(task: &PeerTask, backlog: i32) -> Result<(Socket, SocketAddr), PeerError> {
    let listener = socket(task)?;
    tried("bind", listener.bind(&task.address.into()))?;
    tried("listen", listener.listen(backlog))?;
    // The time limit of reading is that of accepting, too.
    let patience: Duration = task.limit + PEER_TIMEOUT;
    tried("listen", listener.set_read_timeout(Some(patience)))?;
    let address = tried("address", listener.local_addr())?;
    Ok((listener, address.as_socket().unwrap_or(task.address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_congestion_control_is_refused() {
        assert!(check_congestion("reno", false).is_ok());
        let error = check_congestion("no-such-thing", false).unwrap_err();
        assert_eq!(error.to_string(), "no congestion control 'no-such-thing'");
    }
}
