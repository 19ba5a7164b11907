//! Requests to the kernel's routing netlink, one at a time.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::nfnetlink::{Messages, outcome};

/// Length of a message header.
const HEADER: usize = 16;
/// Kind of a message that tells of success or an error.
const ERROR: u16 = 2;
const ANSWER_BYTES_MAX: usize = 512;
/// Room for the answer about one interface, in bytes.
const TOLD_BYTES_MAX: usize = 1 << 15;

/// Not in libc for every target.
const NETLINK_GET_STRICT_CHK: libc::c_int = 12;

/// Address families: IPv4 and IPv6.
pub(crate) const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
/// Bytes in front of the attributes of a route (`struct rtmsg`).
pub(crate) const ROUTE: usize = 12;
/// Bytes in front of the attributes of a rule (`struct fib_rule_hdr`).
pub(crate) const RULE: usize = 12;
/// Attributes of rules; they are not in libc.
pub(crate) const RULE_INTERFACE: u16 = 3;
pub(crate) const RULE_PRIORITY: u16 = 6;
pub(crate) const RULE_SUPPRESS_PREFIX_LENGTH: u16 = 14;
pub(crate) const RULE_TABLE: u16 = 15;
pub(crate) const RULE_PROTOCOL: u16 = 22;
/// Action of a rule: look in a table (FR_ACT_TO_TBL).
const ACTION_TABLE: u8 = 1;
/// Of routes: who has made them, how far what is reached is, and what becomes of a packet.
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
pub(crate) const UNICAST: u8 = 1;
pub(crate) const THROW: u8 = 9;

/// The fixed part of a rule of a family that has packets look in a table.
pub(crate) fn rule(kind: u16, flags: libc::c_int, family: u8, table: u32) -> Message {
    // Family, no addresses, no TOS, table below, reserved, action, then no flags.
    let fixed: [u8; RULE] = [family, 0, 0, 0, 0, 0, 0, ACTION_TABLE, 0, 0, 0, 0];
    Message::new(kind, flags, &fixed).with(RULE_TABLE, &table.to_ne_bytes())
}

/// A new route of a family to so many bits of an address: a way out by an interface (`UNICAST`), or to the next rule (`THROW`).
pub(crate) fn route(flags: libc::c_int, family: u8, bits: u8, is: u8, table: u32) -> Message {
    let scope = match (i32::from(family), is) {
        (libc::AF_INET, UNICAST) => SCOPE_LINK,
        _ => SCOPE_UNIVERSE,
    };
    let mut fixed = [0; ROUTE];
    (fixed[0], fixed[1]) = (family, bits);
    fixed[5..8].copy_from_slice(&[PROTOCOL_STATIC, scope, is]);
    let flags = libc::NLM_F_CREATE | flags;
    Message::new(libc::RTM_NEWROUTE, flags, &fixed).with(libc::RTA_TABLE, &table.to_ne_bytes())
}

/// A message under construction: a fixed part, then attributes.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A request of a kind (`RTM_…`) that is acknowledged; `flags` come on top.
    pub(crate) fn new(kind: u16, flags: libc::c_int, fixed: &[u8]) -> Message {
        let mut bytes = Vec::with_capacity(128);
        // The length follows; sequence number and port are unused.
        bytes.extend([0; 4]);
        bytes.extend(kind.to_ne_bytes());
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags;
        bytes.extend((flags as u16).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        Message(bytes)
    }

    /// Adds an attribute, aligned as all are.
    pub(crate) fn with(mut self, attribute: u16, value: &[u8]) -> Message {
        let length = 4 + value.len() as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(attribute.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Sends it as a request for a list, in the calling thread's namespace, and hands over each part of the answer, without its header.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn list(self, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.list_with(false, each)
    }

    /// As [`list`](Message::list), but of routes of one table only those, where the kernel can choose (from 4.20 on), and it is an error if it has no
    /// such family or table.
    pub(crate) fn list_strictly(self, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.list_with(true, each)
    }

    fn list_with(mut self, strictly: bool, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        if strictly {
            check_strictly(&socket);
        }
        rustix::net::send(&socket, &self.0, SendFlags::empty())?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            for message in Messages(&buffer[..length]) {
                match i32::from(message.kind) {
                    libc::NLMSG_DONE if strictly => return outcome(message.body),
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => outcome(message.body)?,
                    _ => each(message.body),
                }
            }
        }
    }

    /// Sends it in the calling thread's namespace, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn send(self) -> io::Result<()> {
        self.transact(ANSWER_BYTES_MAX).map(drop)
    }

    /// Sends it in the calling thread's namespace; what the answer has behind its header.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn ask(self) -> io::Result<Vec<u8>> {
        self.transact(TOLD_BYTES_MAX)
    }

    fn transact(mut self, most: usize) -> io::Result<Vec<u8>> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        // Protocol `None` is 0, NETLINK_ROUTE.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::send(&socket, &self.0, SendFlags::empty())?;
        // A header, and what was asked for; or an error number, negative, or 0.
        let mut answer = vec![0; most];
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let is_error = answer[..length].get(4..6) == Some(&ERROR.to_ne_bytes());
        let Some(rest) = answer[..length].get(HEADER..) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match is_error {
            true => outcome(rest).map(|()| Vec::new()),
            false => Ok(rest.to_vec()),
        }
    }
}

/// Has the kernel look at all of a request. Older ones, which cannot, list more than was asked for.
fn check_strictly(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: the value is valid for reading and of the length given; the kernel checks that length against the option.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            NETLINK_GET_STRICT_CHK,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}
