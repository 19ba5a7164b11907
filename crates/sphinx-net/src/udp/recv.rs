//! Receiving: batches of buffers and what the kernel tells about each.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use super::mmsg::{RecvBatch, RecvMessage};
use crate::{Counters, Ecn, Received};

/// How many errors that the network left at the socket are fetched in one call; more can only be
/// there if they arrive while we look.
const ERRORS_PER_CALL_MAX: usize = 8;

/// The receiving half of a socket.
pub(super) struct Receiver {
    batch: RecvBatch,
    /// The buffers of the current batch, and where they are in it.
    held: Vec<Held>,
    /// The kernel's own count of lost datagrams when it last told.
    overflows: u32,
}

struct Held {
    message: usize,
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    ecn: Ecn,
    timestamp_ns: Option<u64>,
    stride: usize,
    len: usize,
}

impl Receiver {
    /// Holds up to `messages` buffers of `buffer_size` bytes; both at least 1.
    pub(super) fn new(messages: usize, buffer_size: usize) -> Self {
        Self {
            batch: RecvBatch::new(messages, buffer_size),
            held: Vec::with_capacity(messages),
            overflows: 0,
        }
    }

    /// See [`PacketRx::recv`](crate::PacketRx::recv).
    pub(super) fn recv(
        &mut self,
        socket: BorrowedFd<'_>,
        counters: &mut Counters,
    ) -> io::Result<usize> {
        self.held.clear();
        for _ in 0..ERRORS_PER_CALL_MAX {
            counters.recv_calls += 1;
            match self.batch.recv(socket) {
                Ok(count) => {
                    for index in 0..count {
                        self.take(index, counters);
                    }
                    if !self.held.is_empty() {
                        break;
                    }
                    // All datagrams of this batch were cut off and dropped: there may be more.
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => break,
                    Some(libc::EINTR) => {}
                    Some(
                        libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL | libc::ENOSYS,
                    )
                    | None => return Err(error),
                    Some(_) => counters.recv_errors += 1,
                },
            }
        }
        Ok(self.held.len())
    }

    fn take(&mut self, index: usize, counters: &mut Counters) {
        let message = self.batch.message(index);
        if let Some(overflows) = message.fields.overflows {
            counters.recv_overflows += u64::from(overflows.wrapping_sub(self.overflows));
            self.overflows = overflows;
        }
        counters.recv_truncated += u64::from(message.truncated);
        let Some(held) = hold(index, &message) else {
            return;
        };
        let datagrams = held.len.div_ceil(held.stride).max(1);
        counters.recv_buffers += 1;
        counters.recv_gro_buffers += u64::from(datagrams > 1);
        counters.recv_datagrams += datagrams as u64;
        counters.recv_bytes += held.len as u64;
        self.held.push(held);
    }

    /// See [`PacketRx::exchange`](crate::PacketRx::exchange).
    pub(super) fn exchange(&mut self, index: usize, memory: &mut Vec<u8>) -> bool {
        let held = self.held.get(index);
        held.is_some_and(|held| self.batch.exchange(held.message, memory))
    }

    /// See [`PacketRx::received`](crate::PacketRx::received).
    pub(super) fn received(&mut self, index: usize) -> Option<Received<'_>> {
        let held = self.held.get(index)?;
        Some(Received {
            remote: held.remote,
            local_ip: held.local_ip,
            ecn: held.ecn,
            timestamp_ns: held.timestamp_ns,
            stride: held.stride,
            payload: self.batch.payload(held.message, held.len),
        })
    }
}

/// What of a message can be used: nothing if it has no address. Of one that was cut off only its
/// whole segments, and only if their size is known.
fn hold(index: usize, message: &RecvMessage) -> Option<Held> {
    let remote = message.remote?;
    let fields = &message.fields;
    let joined = fields.segment_size.filter(|size| *size > 0);
    let stride = joined.unwrap_or(message.len).min(message.len).max(1);
    let len = match (message.truncated, joined) {
        (false, _) => message.len,
        (true, Some(size)) => message.len - message.len % size,
        (true, None) => 0,
    };
    if message.truncated && len == 0 {
        return None;
    }
    let (local_ip, ecn, timestamp_ns) = (fields.local_ip, fields.ecn, fields.timestamp_ns);
    Some(Held {
        message: index,
        remote,
        local_ip,
        ecn,
        timestamp_ns,
        stride,
        len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::cmsg::RecvFields;

    fn shape(len: usize, segment_size: Option<usize>, truncated: bool) -> Option<(usize, usize)> {
        let fields = RecvFields {
            segment_size,
            ..RecvFields::default()
        };
        let remote = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        let message = RecvMessage {
            remote,
            fields,
            len,
            truncated,
        };
        hold(0, &message).map(|held| (held.stride, held.len))
    }

    #[test]
    fn the_stride_is_that_of_the_kernel_or_the_whole_buffer() {
        assert_eq!(shape(250, Some(100), false), Some((100, 250)));
        assert_eq!(shape(250, None, false), Some((250, 250)));
        assert_eq!(shape(50, Some(100), false), Some((50, 50)));
        assert_eq!(shape(250, Some(0), false), Some((250, 250)));
        assert_eq!(shape(0, None, false), Some((1, 0)));
    }

    #[test]
    fn of_a_cut_buffer_only_whole_segments_are_kept() {
        assert_eq!(shape(250, Some(100), true), Some((100, 200)));
        assert_eq!(shape(50, Some(100), true), None);
        assert_eq!(shape(250, None, true), None);
    }
}
