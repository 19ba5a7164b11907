//! Which program has a port.

use std::net::SocketAddr;

use procfs::net::{UdpNetEntry, udp, udp6};
use procfs::process::{FDTarget, Process, all_processes};

/// The program that listens on the UDP port of `address`, with its process id; `None` where the system
/// does not tell, as of other users' programs.
pub(super) fn of_udp_port(address: SocketAddr) -> Option<String> {
    let sockets = [udp().unwrap_or_default(), udp6().unwrap_or_default()].concat();
    let inodes: Vec<u64> = sockets
        .iter()
        .filter(|socket| in_the_way(socket, address))
        .map(|socket| socket.inode)
        .collect();
    let mut processes = all_processes().ok()?.filter_map(Result::ok);
    processes.find_map(|process| {
        holds(&process, &inodes)
            .then(|| {
                Some(format!(
                    "{} (pid {})",
                    process.stat().ok()?.comm,
                    process.pid
                ))
            })
            .flatten()
    })
}

fn in_the_way(socket: &UdpNetEntry, address: SocketAddr) -> bool {
    let theirs = socket.local_address;
    theirs.port() == address.port()
        && (theirs.ip() == address.ip()
            || theirs.ip().is_unspecified()
            || address.ip().is_unspecified())
}

fn holds(process: &Process, inodes: &[u64]) -> bool {
    let Ok(descriptors) = process.fd() else {
        return false;
    };
    descriptors.filter_map(Result::ok).any(
        |descriptor| matches!(descriptor.target, FDTarget::Socket(inode) if inodes.contains(&inode)),
    )
}
