//! Messages of the kernel, several with one system call.

use std::{io, ptr};

use libc::{c_uint, iovec, mmsghdr};
use rustix::fd::{AsRawFd, BorrowedFd};

/// Messages that are taken with one call.
const MESSAGES: usize = 16;
/// A message with the largest packet.
const MESSAGE_BYTES_MAX: usize = (1 << 16) + 4096;

/// Room for messages.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Inbox {
    /// Without messages.
    pub fn new() -> Inbox {
        Inbox {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES_MAX],
            lengths: Vec::with_capacity(MESSAGES),
        }
    }

    /// The messages that were taken last, in the order in which they came.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let places = self.bytes.chunks(MESSAGE_BYTES_MAX);
        let messages = places.zip(&self.lengths);
        messages.map(|(place, length)| &place[..*length])
    }

    /// Takes what has come, without waiting. True if that was all.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.lengths.clear();
        let mut places = [iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; MESSAGES];
        let mut count = 0;
        for (place, bytes) in places
            .iter_mut()
            .zip(self.bytes.chunks_mut(MESSAGE_BYTES_MAX))
        {
            place.iov_base = bytes.as_mut_ptr().cast();
            place.iov_len = bytes.len();
            count += 1;
        }
        // SAFETY: headers of messages consist of integers and raw pointers, for which zero is a valid value.
        let mut headers: [mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        for (header, place) in headers.iter_mut().zip(&mut places) {
            header.msg_hdr.msg_iov = place;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers have neither name nor control messages, and one iovec each, which lies in `places` and describes
        // a part of its own of `bytes`, which takes any bytes. All of it is borrowed exclusively, outlives the call and is not touched in
        // between. There is no timeout. The descriptor is borrowed, hence open.
        let taken = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        let lengths = headers.iter().take(taken);
        let lengths = lengths.map(|it| (it.msg_len as usize).min(MESSAGE_BYTES_MAX));
        self.lengths.extend(lengths);
        Ok(taken < MESSAGES)
    }
}
