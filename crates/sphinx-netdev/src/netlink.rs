//! Requests to the kernel's routing netlink, one at a time.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::nfnetlink::Messages;

/// Length of a message header.
const HEADER: usize = 16;
/// Kind of a message that tells of success or an error.
const ERROR: u16 = 2;
const ANSWER_BYTES_MAX: usize = 512;
/// What is told of an interface.
const TOLD_BYTES_MAX: usize = 1 << 15;

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
    pub(crate) fn list(mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::send(&socket, &self.0, SendFlags::empty())?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            for message in Messages(&buffer[..length]) {
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let error = message.body.first_chunk::<4>();
                        let error = error.map_or(-libc::EBADMSG, |it| i32::from_ne_bytes(*it));
                        return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
                    }
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
        match rest.first_chunk::<4>() {
            Some([0, 0, 0, 0]) if is_error => Ok(Vec::new()),
            Some(error) if is_error => Err(io::Error::from_raw_os_error(
                i32::from_ne_bytes(*error).wrapping_neg(),
            )),
            _ => Ok(rest.to_vec()),
        }
    }
}
