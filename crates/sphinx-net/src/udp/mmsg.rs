//! `sendmmsg` and `recvmmsg` over arrays that are allocated once.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_uint, iovec, mmsghdr, msghdr};

use super::cmsg::{Control, RecvFields, SendFields};
use super::name::Name;
use crate::queue::{Memory, Transmit};

/// Most messages in one `sendmmsg`.
pub(super) const SEND_MESSAGES_MAX: usize = 32;

/// The arrays behind a batch of messages. Index i of each belongs to message i.
struct Arrays {
    names: Vec<Name>,
    controls: Vec<Control>,
    iovecs: Vec<iovec>,
    headers: Vec<mmsghdr>,
}

// SAFETY: the raw pointers in `iovecs` and `headers` are the only parts that are not `Send` by
// themselves. They are written right before each system call and are not followed at
// any other time, so it does not matter on which thread they were written.
unsafe impl Send for Arrays {}

impl Arrays {
    fn new(messages: usize) -> Self {
        let iovec = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let header = mmsghdr {
            // SAFETY: `msghdr` consists of integers and raw pointers (and padding on some
            // targets), for which zero is a valid value.
            msg_hdr: unsafe { std::mem::zeroed::<msghdr>() },
            msg_len: 0,
        };
        Self {
            names: vec![Name::new(); messages],
            controls: vec![Control::new(); messages],
            iovecs: vec![iovec; messages],
            headers: vec![header; messages],
        }
    }

    /// Sets what message `index` is about: the lengths of its name and control messages, and its
    /// payload.
    fn describe(&mut self, index: usize, name_len: usize, control_len: usize, payload: iovec) {
        self.iovecs[index] = payload;
        let header = &mut self.headers[index].msg_hdr;
        header.msg_namelen = name_len as libc::socklen_t;
        header.msg_controllen = control_len as _;
        header.msg_flags = 0;
    }

    /// Points all headers at their names, control buffers and payloads, and returns them. They
    /// may be used until any of the arrays is touched.
    fn headers(&mut self) -> *mut mmsghdr {
        let names = self.names.as_mut_ptr();
        let controls = self.controls.as_mut_ptr();
        let iovecs = self.iovecs.as_mut_ptr();
        for (index, header) in self.headers.iter_mut().enumerate() {
            let header = &mut header.msg_hdr;
            header.msg_name = names.wrapping_add(index).cast();
            header.msg_iov = iovecs.wrapping_add(index);
            header.msg_iovlen = 1;
            header.msg_control = match header.msg_controllen {
                0 => ptr::null_mut(),
                _ => controls.wrapping_add(index).cast(),
            };
        }
        self.headers.as_mut_ptr()
    }
}

/// Sends batches of messages.
pub(super) struct SendBatch {
    arrays: Arrays,
}

/// How messages are written for a socket.
#[derive(Clone, Copy)]
pub(super) struct SendFormat {
    /// The socket is IPv6, so that IPv4 destinations take their IPv6 form.
    pub(super) v6_socket: bool,
    /// ECN codepoints can be written.
    pub(super) ecn: bool,
}

impl SendBatch {
    pub(super) fn new() -> Self {
        Self {
            arrays: Arrays::new(SEND_MESSAGES_MAX),
        }
    }

    /// Hands the first [`SEND_MESSAGES_MAX`] of `messages` to the kernel and returns how many it
    /// took. Each is one message, split by the kernel if it holds more than one datagram. An error
    /// concerns the first message.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        format: SendFormat,
        memory: Memory<'_>,
        messages: &[Transmit],
    ) -> io::Result<usize> {
        let mut count = 0;
        for (index, message) in messages.iter().take(SEND_MESSAGES_MAX).enumerate() {
            let payload = memory.bytes(message);
            let payload = payload.ok_or(io::ErrorKind::InvalidInput)?;
            let name_len = self.arrays.names[index].encode(&message.to.remote, format.v6_socket);
            let fields = SendFields {
                ecn: (format.ecn && message.to.ecn.bits() != 0).then_some(message.to.ecn),
                local_ip: message.to.local_ip.map(|ip| ip.to_canonical()),
                segment_size: match message.datagrams() {
                    0 | 1 => None,
                    _ => u16::try_from(message.segment_size).ok(),
                },
            };
            let v4 = message.to.remote.ip().to_canonical().is_ipv4();
            let control_len = self.arrays.controls[index].encode(v4, &fields);
            // The kernel only reads from it, in spite of the type.
            let base = payload.as_ptr().cast_mut().cast();
            let payload = iovec {
                iov_base: base,
                iov_len: payload.len(),
            };
            self.arrays.describe(index, name_len, control_len, payload);
            count = index + 1;
        }
        if count == 0 {
            return Ok(0);
        }
        let headers = self.arrays.headers();
        // SAFETY: at least `count` headers have just been set up. Their names and control buffers
        // lie in `arrays`, which is borrowed exclusively and not touched in between, and their
        // lengths were returned by the encoders of these very buffers. Each has one iovec over a
        // slice of `memory`, which is borrowed for the call and only read. The descriptor is
        // borrowed, hence open.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers,
                count as c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Receives batches of messages into buffers of its own.
pub(super) struct RecvBatch {
    arrays: Arrays,
    /// A buffer for each message, all of the same size.
    buffers: Vec<Vec<u8>>,
    buffer_size: usize,
}

/// One received message.
pub(super) struct RecvMessage {
    /// `None` if the kernel gave no IP address.
    pub(super) remote: Option<SocketAddr>,
    pub(super) fields: RecvFields,
    /// Bytes in the buffer.
    pub(super) len: usize,
    /// The payload or the control messages did not fit.
    pub(super) truncated: bool,
}

impl RecvBatch {
    /// Room for `messages` messages of `buffer_size` bytes each; both at least 1.
    pub(super) fn new(messages: usize, buffer_size: usize) -> Self {
        Self {
            arrays: Arrays::new(messages),
            buffers: (0..messages).map(|_| vec![0; buffer_size]).collect(),
            buffer_size,
        }
    }

    /// Receives what is waiting and returns how many messages that is.
    pub(super) fn recv(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.recv_with(socket, libc::MSG_DONTWAIT)
    }

    /// Takes the errors that the network has reported: the name of a message is where the datagram
    /// went that was answered so.
    pub(super) fn recv_errors(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.recv_with(socket, libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE)
    }

    fn recv_with(&mut self, socket: BorrowedFd<'_>, flags: c_int) -> io::Result<usize> {
        let count = self.arrays.headers.len();
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            let payload = iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            self.arrays
                .describe(index, size_of::<Name>(), size_of::<Control>(), payload);
        }
        let headers = self.arrays.headers();
        // SAFETY: all `count` headers have just been set up, as there are as many buffers. Their names
        // and control buffers lie in `arrays`, with their full lengths, and each has one iovec over
        // one of `buffers`, with its length. All of it is borrowed exclusively and not touched in
        // between, and takes any bytes. There is no timeout. The descriptor is borrowed, hence open.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers,
                count as c_uint,
                flags as _,
                ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// What the last [`recv`](Self::recv) put into message `index`, which is below its result.
    pub(super) fn message(&self, index: usize) -> RecvMessage {
        let header = &self.arrays.headers[index];
        #[allow(
            clippy::unnecessary_cast,
            reason = "the type differs between C libraries"
        )]
        let control_len = header.msg_hdr.msg_controllen as usize;
        let flags = header.msg_hdr.msg_flags;
        RecvMessage {
            remote: self.arrays.names[index].decode(header.msg_hdr.msg_namelen as usize),
            fields: self.arrays.controls[index].parse(control_len),
            len: (header.msg_len as usize).min(self.buffer_size),
            truncated: flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }

    /// The first `len` bytes of the payload of message `index`; less if there are not as many.
    pub(super) fn payload(&mut self, index: usize, len: usize) -> &mut [u8] {
        let buffer = &mut self.buffers[index];
        let len = len.min(buffer.len());
        &mut buffer[..len]
    }

    /// Swaps the buffer of message `index` for memory that is as large; whether it is.
    pub(super) fn exchange(&mut self, index: usize, memory: &mut Vec<u8>) -> bool {
        let fits = memory.len() == self.buffer_size;
        if fits {
            std::mem::swap(&mut self.buffers[index], memory);
        }
        fits
    }
}
