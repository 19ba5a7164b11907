//! Messages to and from the kernel's packet filter.

use std::io;

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink},
};

/// Length of a netlink header.
const HEADER: usize = 16;
/// Length of what the packet filter puts behind it.
pub(crate) const FILTER_HEADER: usize = 4;
/// Kind of an answer that tells of success or an error.
const ANSWER: u16 = 2;
const NESTED: u16 = 0x8000;

/// Messages that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    answers: usize,
}

/// What the header of each message says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Subsystem and kind.
    pub(crate) kind: u16,
    /// `NLM_F_…`; one with `NLM_F_ACK` is answered.
    pub(crate) flags: libc::c_int,
    pub(crate) family: u8,
    pub(crate) resource: u16,
}

impl Writer {
    pub(crate) fn message(&mut self, head: Head, body: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        let flags = libc::NLM_F_REQUEST | head.flags;
        self.answers += usize::from(flags & libc::NLM_F_ACK != 0);
        // The length follows; sequence number and port are unused.
        self.bytes.extend([0; 4]);
        self.bytes.extend(head.kind.to_ne_bytes());
        self.bytes.extend((flags as u16).to_ne_bytes());
        self.bytes.extend([0; 8]);
        self.bytes.extend([head.family, 0]);
        self.bytes.extend(head.resource.to_be_bytes());
        body(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends everything without waiting for answers, and begins anew.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        let sent = rustix::net::send(&socket.0, &self.bytes, SendFlags::empty());
        self.bytes.clear();
        sent.map(drop).map_err(io::Error::from)
    }

    /// Sends everything and waits for the answers.
    ///
    /// # Errors
    ///
    /// The kernel's first one. Later answers may be left in the socket then, until the next call.
    pub(crate) fn transact(&mut self, socket: &Socket) -> io::Result<()> {
        let mut left = std::mem::take(&mut self.answers);
        let mut buffer = vec![0; 1 << 16];
        // Answers that an earlier error has left in the socket are not to be taken for those to what is sent now.
        let read = |buffer: &mut [u8]| rustix::net::recv(&socket.0, buffer, RecvFlags::DONTWAIT);
        while matches!(read(&mut buffer), Ok(_) | Err(Errno::NOBUFS)) {}
        self.flush(socket)?;
        while left > 0 {
            let (length, _) = rustix::net::recv(&socket.0, &mut buffer[..], RecvFlags::empty())?;
            for message in Messages(&buffer[..length]) {
                if message.kind != ANSWER {
                    continue;
                }
                outcome(message.body)?;
                left = left.saturating_sub(1);
            }
        }
        Ok(())
    }
}

/// What an answer says, which has an error number, negative, or 0.
pub(crate) fn outcome(body: &[u8]) -> io::Result<()> {
    let error = body.first_chunk::<4>();
    match error.map_or(-libc::EBADMSG, |error| i32::from_ne_bytes(*error)) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
    }
}

/// Where attributes are added.
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        let length = 4 + value.len() as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// A text, which ends with a zero.
    pub(crate) fn name(&mut self, kind: u16, name: &str) {
        let mut name = name.as_bytes().to_vec();
        name.push(0);
        self.put(kind, &name);
    }

    pub(crate) fn number(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_be_bytes());
    }

    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        body(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

/// A connection to the packet filter of the calling thread's namespace.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn open() -> io::Result<Socket> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::NETFILTER),
        )?;
        Ok(Socket(socket))
    }

    /// Waits for the next messages.
    ///
    /// # Errors
    ///
    /// ENOBUFS if some were lost.
    pub(crate) fn wait(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (length, _) = rustix::net::recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(length)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A message that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    /// Everything behind the header.
    pub(crate) body: &'a [u8],
}

/// The messages in a buffer, up to the first one that is cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32::from_ne_bytes(*self.0.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*self.0.get(4..)?.first_chunk()?);
        let body = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Message { kind, body })
    }
}

/// The attributes in a buffer, up to the first one that is cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Values<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16::from_ne_bytes(*self.0.first_chunk()?));
        let kind = u16::from_ne_bytes(*self.0.get(2..)?.first_chunk()?) & !NESTED;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}
