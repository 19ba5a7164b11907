//! A cable of the kernel's: two Ethernet interfaces that are joined (veth), each in a network namespace of its own. At one end packets go past
//! the kernel, at the other the kernel's sockets have them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use sphinx_net::PacketIo;
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_netdev::netns::Namespace;

use crate::{Costs, Load, between, counted};

/// The interface at either end.
pub(crate) const INTERFACE: &str = "eth0";
/// The ends' addresses, and bits that both have in common.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 2);
const PREFIX: u8 = 24;

/// What the kernel's socket has room for in packets that come one by one: the ends are in one thread, and take turns.
const TURN_BYTES: usize = 64 << 10;

/// Who has the address of the near end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Kernel,
    /// What the kernel knows nothing of it does not answer.
    #[cfg(feature = "dpdk")]
    BackEnd,
}

/// Measures what `open` makes of the near end, with each packet going one way and then the other.
///
/// # Errors
/// Without the right to make namespaces (`PermissionDenied`), without the program `ip`, those of `open`, and those of the transfer.
pub(crate) fn measure<Io: PacketIo>(
    load: &Load,
    owner: Owner,
    open: impl FnOnce(SocketAddr) -> io::Result<Io> + Send,
) -> io::Result<Costs> {
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    join(&near, &far, load.mtu)?;
    if owner == Owner::Kernel {
        ip(&near, &format!("addr add {NEAR}/{PREFIX} dev {INTERFACE}"))?;
    } else {
        near.sysctl(&format!("net.ipv6.conf.{INTERFACE}.disable_ipv6"), "1")?;
        // One datagram at a time, as a cable would carry them.
        ip(&far, &format!("link set {INTERFACE} gso_max_segs 1"))?;
    }
    ip(&far, &format!("addr add {FAR}/{PREFIX} dev {INTERFACE}"))?;
    for end in [&near, &far] {
        ip(end, &format!("link set {INTERFACE} up"))?;
    }
    let socket = far.run(|| UdpIo::open(&UdpConfig::new((FAR, 0).into())))??;
    // A back end asks for routes and neighbours wherever it is used.
    near.run(|| {
        let mut ends = (open((NEAR, 0).into())?, socket);
        counted(|gauge| {
            let (near, far) = &mut ends;
            let sends = between(load, (&mut *near, &mut *far), TURN_BYTES, gauge)?;
            let receives = between(load, (far, near), TURN_BYTES, gauge)?;
            Ok(Costs {
                receiver: receives.receiver,
                ..sends
            })
        })
    })?
}

fn join(near: &Namespace, far: &Namespace, mtu: u16) -> io::Result<()> {
    let link = |thread: &str| {
        format!(
            "link add {INTERFACE} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {thread}"
        )
    };
    // `ip` takes a thread that is in a namespace for its name.
    far.run(|| {
        let own = std::fs::read_link("/proc/thread-self")?;
        let thread = own.file_name().and_then(|name| name.to_str());
        ip(near, &link(thread.unwrap_or_default()))
    })?
}

fn ip(end: &Namespace, words: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    let ended = end.spawn(command.args(words.split(' ')))?.wait()?;
    match ended.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {words}: {ended}"))),
    }
}
