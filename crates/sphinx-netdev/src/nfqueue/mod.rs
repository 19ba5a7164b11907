//! Packets on their way through the kernel, put into a queue until a program has judged them
//! (NFQUEUE), and the rules that put them there.
//!
//! Rules and queue belong to the sockets of the process that made them: when it dies, however that
//! happens, the kernel removes both, and packets pass as before.

mod frames;
mod inbox;
mod rules;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::AsRawFd,
};

pub use frames::{FrameSender, Mac, Way};
pub use inbox::Inbox;
pub use rules::{Cgroup, Hook, Own, Rules, Selection, is_taken, shows_ports};

use rustix::{
    fd::{AsFd, BorrowedFd},
    net::sockopt,
};
use socket2::{Domain, Protocol, Type};

use crate::nfnetlink::{Attributes, FILTER_HEADER, Head, Messages, Socket, Values, Writer};

/// The queue's numbers; few of them are in libc.
mod number {
    pub(super) const PACKET: u16 = 3 << 8;
    pub(super) const VERDICT: u16 = PACKET | 1;
    pub(super) const CONFIG: u16 = PACKET | 2;
    pub(super) const VERDICT_BATCH: u16 = PACKET | 3;
    pub(super) const BIND: u8 = 1;
    pub(super) const COPY_PACKET: u8 = 2;
    pub(super) const FAIL_OPEN: u32 = 1;
    pub(super) const DROP: u32 = 0;
    pub(super) const ACCEPT: u32 = 1;
    pub(super) const ATTRIBUTE_PACKET: u16 = 1;
    pub(super) const ATTRIBUTE_VERDICT: u16 = 2;
    pub(super) const ATTRIBUTE_INPUT_PORT: u16 = 7;
    pub(super) const ATTRIBUTE_OUTPUT_PORT: u16 = 8;
    pub(super) const ATTRIBUTE_LINK_ADDRESS: u16 = 9;
    pub(super) const ATTRIBUTE_PAYLOAD: u16 = 10;
}

const ACK: libc::c_int = libc::NLM_F_ACK;
/// Longest packet that is handed over.
const PACKET_BYTES_MAX: u32 = 0xffff;
/// Verdicts that are sent together.
const VERDICT_BYTES_MAX: usize = 1 << 14;
/// For what the program, or the kernel, has not read yet.
const SOCKET_BYTES: usize = 8 << 20;
/// For packets that an interface has not sent yet; the kernel allows twice this. The longest queues that are usual there, 10 000 packets of 2304 bytes of
/// kernel memory, drop before that is full.
const SEND_BYTES: usize = 16 << 20;

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued<'a> {
    /// Number of the packet in its queue.
    pub id: u32,
    /// Number of the hook: [`Hook`] has those that [`Rules`] use.
    pub hook: u8,
    /// The IP packet.
    pub packet: &'a [u8],
    /// The ports of a bridge that forwards it: their interfaces' numbers.
    pub ports: Option<[u32; 2]>,
    /// The Ethernet address that it comes from.
    pub link_source: Option<Mac>,
}

/// Reads what the kernel says of a packet.
fn queued(body: &[u8]) -> Option<Queued<'_>> {
    let (mut header, mut packet) = (None, None);
    let (mut ports, mut link_source) = ([None; 2], None);
    let number = |value: &[u8]| value.first_chunk().map(|it| u32::from_be_bytes(*it));
    for (kind, value) in Values(body.get(FILTER_HEADER..)?) {
        match kind {
            number::ATTRIBUTE_PACKET => header = value.first_chunk::<7>(),
            number::ATTRIBUTE_PAYLOAD => packet = Some(value),
            number::ATTRIBUTE_INPUT_PORT => ports[0] = number(value),
            number::ATTRIBUTE_OUTPUT_PORT => ports[1] = number(value),
            // Its length, two bytes of padding, and room for eight.
            number::ATTRIBUTE_LINK_ADDRESS if value.starts_with(&[0, 6]) => {
                link_source = value.get(4..).and_then(|rest| rest.first_chunk().copied());
            }
            _ => {}
        }
    }
    let [a, b, c, d, _, _, hook] = *header?;
    Some(Queued {
        id: u32::from_be_bytes([a, b, c, d]),
        hook,
        packet: packet.unwrap_or(&[]),
        ports: ports[0].zip(ports[1]).map(|(from, to)| [from, to]),
        link_source,
    })
}

/// Reads messages as they come from the kernel, and calls `take` for every packet.
pub fn read(messages: &[u8], mut take: impl FnMut(Queued<'_>)) {
    for message in Messages(messages) {
        if message.kind == number::PACKET
            && let Some(queued) = queued(message.body)
        {
            take(queued);
        }
    }
}

/// A queue of packets that wait for verdicts.
///
/// The kernel cuts joined segments (GSO, GRO) and completes checksums before they come. When the queue is
/// full, packets pass.
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: u16,
    verdicts: Writer,
    /// Packets up to this one pass, once that is sent.
    accepted: Option<u32>,
}

impl Queue {
    /// Takes a queue of the calling thread's namespace, in which so many packets have room.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if somebody has it, or without `CAP_NET_ADMIN`.
    pub fn open(queue: u16, packets_max: u32) -> io::Result<Queue> {
        let socket = Socket::open()?;
        // Without that right the usual size has to do.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES);
        let mut writer = Writer::default();
        let head = Head {
            kind: number::CONFIG,
            flags: ACK,
            family: 0,
            resource: queue,
        };
        // The command, and a family that is no longer looked at.
        writer.message(head, |it| it.put(1, &[number::BIND, 0, 0, 0]));
        writer.transact(&socket)?;
        writer.message(head, |it| {
            let [a, b, c, d] = PACKET_BYTES_MAX.to_be_bytes();
            it.put(2, &[a, b, c, d, number::COPY_PACKET]);
            it.number(3, packets_max);
            // Mask, then flags.
            it.number(4, number::FAIL_OPEN);
            it.number(5, number::FAIL_OPEN);
        });
        writer.transact(&socket)?;
        Ok(Queue {
            socket,
            number: queue,
            verdicts: Writer::default(),
            accepted: None,
        })
    }

    /// Takes messages that have come, for [`read`]. True if that was all.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there are none; ENOBUFS if the kernel could not tell of some packets, which have
    /// passed.
    pub fn receive(&self, inbox: &mut Inbox) -> io::Result<bool> {
        inbox.fill(self.socket.as_fd())
    }

    /// A packet passes. Verdicts are in the order of packets, and sent together.
    pub fn accept(&mut self, id: u32) {
        self.accepted = Some(id);
    }

    /// A packet passes with these bytes in the place of its own.
    pub fn replace(&mut self, id: u32, packet: &[u8]) {
        self.judge(id, number::ACCEPT, Some(packet));
    }

    /// A packet does not pass.
    pub fn drop(&mut self, id: u32) {
        self.judge(id, number::DROP, None);
    }

    /// Sends the verdicts that have been passed so far.
    ///
    /// # Errors
    ///
    /// Those of netlink.
    pub fn flush(&mut self) -> io::Result<()> {
        self.put_accepted();
        match self.verdicts.is_empty() {
            true => Ok(()),
            false => self.verdicts.flush(&self.socket),
        }
    }

    /// Whether verdicts should be sent before there are more.
    pub fn is_full(&self) -> bool {
        self.verdicts.len() >= VERDICT_BYTES_MAX
    }

    fn judge(&mut self, id: u32, verdict: u32, packet: Option<&[u8]>) {
        self.put_accepted();
        let head = self.head(number::VERDICT);
        self.verdicts.message(head, |it| {
            put_verdict(it, id, verdict);
            if let Some(packet) = packet {
                it.put(number::ATTRIBUTE_PAYLOAD, packet);
            }
        });
    }

    fn put_accepted(&mut self) {
        if let Some(id) = self.accepted.take() {
            let head = self.head(number::VERDICT_BATCH);
            self.verdicts
                .message(head, |it| put_verdict(it, id, number::ACCEPT));
        }
    }

    fn head(&self, kind: u16) -> Head {
        Head {
            kind,
            flags: 0,
            family: 0,
            resource: self.number,
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn put_verdict(it: &mut Attributes<'_>, id: u32, verdict: u32) {
    let words = [verdict.to_be_bytes(), id.to_be_bytes()];
    it.put(number::ATTRIBUTE_VERDICT, words.as_flattened());
}

/// Sends whole IP packets, whatever their source is, with a mark by which rules know them.
#[derive(Debug)]
pub struct RawSender {
    usual: RawSockets,
    /// Sockets that send once more, untracked, what `usual` is refused.
    untracked: Option<RawSockets>,
    /// The interface to addresses that each interface has.
    interface: u32,
}

impl RawSender {
    /// In the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    pub fn open(mark: u32) -> io::Result<RawSender> {
        Ok(RawSender {
            usual: RawSockets::open(mark)?,
            untracked: None,
            interface: 0,
        })
    }

    /// Link-local destinations (`fe80::/10`) are at the interface with this number from now on. Without one, the kernel takes any.
    pub fn set_interface(&mut self, index: u32) {
        self.interface = index;
    }

    /// What is refused is sent once more from now on, by this sender's sockets: those with the mark of what goes untracked
    /// ([`Rules::tell_tracked_apart`]).
    pub fn set_untracked(&mut self, untracked: RawSender) {
        self.untracked = Some(untracked.usual);
    }

    /// Sends a packet to the destination in its header.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what is no IP packet; `PermissionDenied` for what the packet filter drops; `WouldBlock` while the interface has so much to send
    /// that there is no room; ENOBUFS for what the interface's queue drops; others of sending.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let sent = self.usual.send(packet, self.interface);
        match (sent, &self.untracked) {
            (Err(error), Some(untracked)) if error.kind() == io::ErrorKind::PermissionDenied => {
                untracked.send(packet, self.interface)
            }
            (sent, _) => sent,
        }
    }
}

/// A raw socket for each family.
#[derive(Debug)]
struct RawSockets {
    v4: socket2::Socket,
    /// Absent where there is no IPv6.
    v6: Option<socket2::Socket>,
}

impl RawSockets {
    fn open(mark: u32) -> io::Result<RawSockets> {
        let open = |domain| {
            // Of this protocol, sockets send packets with their headers.
            let protocol = Protocol::from(libc::IPPROTO_RAW);
            let socket = socket2::Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_mark(mark)?;
            socket.set_nonblocking(true)?;
            tell_of_drops(&socket, domain)?;
            // Without that right the usual size has to do.
            let _ = make_room(&socket);
            io::Result::Ok(socket)
        };
        Ok(RawSockets {
            v4: open(Domain::IPV4)?,
            v6: open(Domain::IPV6).ok(),
        })
    }

    fn send(&self, packet: &[u8], interface: u32) -> io::Result<()> {
        let address = |start: usize| packet.get(start..);
        // Raw sockets have no ports: IPv6 wants 0 there.
        let (socket, destination) = match packet.first().map(|byte| byte >> 4) {
            Some(4) => {
                let address = address(16).and_then(|rest| rest.first_chunk::<4>());
                let address = Ipv4Addr::from(*address.ok_or(io::ErrorKind::InvalidInput)?);
                (&self.v4, SocketAddr::from((address, 0)))
            }
            Some(6) => {
                let address = address(24).and_then(|rest| rest.first_chunk::<16>());
                let address = Ipv6Addr::from(*address.ok_or(io::ErrorKind::InvalidInput)?);
                let interface = match address.is_unicast_link_local() {
                    true => interface,
                    false => 0,
                };
                let destination = SocketAddrV6::new(address, 0, 0, interface);
                let socket = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                (socket, destination.into())
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        socket.send_to(packet, &destination.into())?;
        Ok(())
    }
}

/// Has the kernel say what the queue of an interface drops. Of what comes from a raw socket it says nothing otherwise, and nobody would know why packets
/// are missing.
fn tell_of_drops(socket: &socket2::Socket, domain: Domain) -> io::Result<()> {
    let (level, option) = match domain == Domain::IPV6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        false => (libc::IPPROTO_IP, libc::IP_RECVERR),
    };
    let on: libc::c_int = 1;
    // SAFETY: the value is valid for reading and of the length given; the kernel checks that length against the option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a socket have as much on its way as an interface queues: what has no room is lost, and the usual room is for some 90 packets.
///
/// # Errors
///
/// `PermissionDenied` without `CAP_NET_ADMIN` in the first user namespace: containers do not have it.
fn make_room(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size_force(
        socket, SEND_BYTES,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{netns::Namespace, qdisc};

    #[test]
    fn what_a_queue_drops_is_told() {
        let Ok(namespace) = Namespace::new() else {
            return sphinx_testing::skipped!("no network namespaces here");
        };
        // Of each family: without payload, to loopback, from somebody else.
        let mut v4 = [0; 40];
        (v4[0], v4[8], v4[9], v4[32]) = (0x45, 64, 6, 5 << 4);
        v4[12..16].copy_from_slice(&[192, 0, 2, 1]);
        v4[16..20].copy_from_slice(&[127, 0, 0, 1]);
        let mut v6 = [0; 60];
        (v6[0], v6[5], v6[6], v6[7], v6[52]) = (0x60, 20, 6, 64, 5 << 4);
        (v6[8], v6[23], v6[39]) = (0xfd, 1, 1);
        let ran = namespace.run(|| {
            let sender = match RawSender::open(1) {
                Ok(sender) => sender,
                Err(error) => return sphinx_testing::skipped!("no raw sockets: {error}"),
            };
            sender.send(&v4).expect("room");
            let has_v6 = sender.send(&v6).is_ok();
            // A queue without room for any packet.
            if let Err(error) = qdisc::replace("lo", "pfifo", &0_u32.to_ne_bytes()) {
                return sphinx_testing::skipped!("this kernel has no pfifo: {error}");
            }
            for packet in [Some(&v4[..]), has_v6.then_some(&v6[..])]
                .into_iter()
                .flatten()
            {
                let error = sender.send(packet).expect_err("no room");
                assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
            }
        });
        ran.expect("a thread");
    }

    #[test]
    fn bursts_have_room() {
        let sockets = match RawSockets::open(1) {
            Ok(sockets) => sockets,
            Err(error) => return sphinx_testing::skipped!("no raw sockets: {error}"),
        };
        if let Err(error) = make_room(&sockets.v4) {
            return sphinx_testing::skipped!("no right to so much room: {error}");
        }
        for socket in [Some(sockets.v4), sockets.v6].into_iter().flatten() {
            let room = sockopt::socket_send_buffer_size(&socket).expect("a size");
            assert!(room >= SEND_BYTES, "{room}");
        }
    }
}
