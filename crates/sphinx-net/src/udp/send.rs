//! Sending: cutting descriptors into messages, and what to do when the kernel objects.

use std::io;
use std::os::fd::BorrowedFd;

use super::mmsg::{SEND_MESSAGES_MAX, SendBatch, SendFormat};
use crate::io::DATAGRAM_BATCH_BYTES_MAX;
use crate::queue::{Memory, Transmit};
use crate::{Counters, DropReason, Dropped};

/// How often a message is tried again that met the error of an earlier one.
const REPEATS_MAX: u32 = 2;

/// Datagrams that leave one by one before segmentation is tried again, at first and at last: a route that refuses it may not stay.
const RETRY_FIRST: u64 = 1 << 13;
const RETRY_LAST: u64 = 1 << 22;

/// The sending half of a socket.
pub(super) struct Sender {
    batch: SendBatch,
    format: SendFormat,
    /// Most datagrams in one message where nobody refuses.
    segments_possible: usize,
    /// Segmentation has been refused, and is tried again after so many datagrams.
    refused: Option<u64>,
    /// After how many datagrams it is tried again when it is refused the next time.
    retry_after: u64,
    last_errno: Option<i32>,
    /// A call ended with an error that ICMP had left at the socket.
    interrupted: bool,
    /// The messages of one system call; kept for its memory.
    messages: Vec<Transmit>,
}

impl Sender {
    pub(super) fn new(format: SendFormat, segments_max: usize) -> Self {
        Self {
            batch: SendBatch::new(),
            format,
            segments_possible: segments_max.max(1),
            refused: None,
            retry_after: RETRY_FIRST,
            last_errno: None,
            interrupted: false,
            messages: Vec::with_capacity(SEND_MESSAGES_MAX),
        }
    }

    /// Most datagrams in one message; 1 for a while once the kernel has refused segmentation.
    pub(super) fn segments_max(&self) -> usize {
        match self.refused {
            Some(_) => 1,
            None => self.segments_possible,
        }
    }

    pub(super) fn gso_downgraded(&self) -> bool {
        self.refused.is_some()
    }

    /// The kernel refuses segmentation.
    fn downgrade(&mut self) {
        self.refused = Some(self.retry_after);
        self.retry_after = (2 * self.retry_after).min(RETRY_LAST);
    }

    /// Counts datagrams that have left, after enough of which segmentation is tried again.
    fn on_sent(&mut self, datagrams: u64) {
        self.refused = match self.refused {
            Some(left) if left > datagrams => Some(left - datagrams),
            _ => None,
        };
    }

    pub(super) fn last_error(&self) -> Option<io::Error> {
        self.last_errno.map(io::Error::from_raw_os_error)
    }

    /// Whether there were errors of earlier datagrams since the last call.
    pub(super) fn take_interrupted(&mut self) -> bool {
        std::mem::take(&mut self.interrupted)
    }

    /// Sends descriptors for [`FrameQueue::flush`](crate::queue::FrameQueue::flush).
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: Memory<'_>,
        transmits: &mut [Transmit],
        dropped: &mut Vec<(usize, Dropped)>,
        counters: &mut Counters,
    ) -> io::Result<usize> {
        let mut rest = Rest::of(transmits);
        // Length of a message of several datagrams that was refused. Its first datagram is then
        // tried alone: if that gets through, it is segmentation that the kernel refuses.
        let mut suspect: Option<usize> = None;
        let mut repeats = 0;
        loop {
            match suspect {
                None => {
                    let segments_max = self.segments_max();
                    rest.plan(SEND_MESSAGES_MAX, segments_max, &mut self.messages);
                }
                Some(_) => rest.plan(1, 1, &mut self.messages),
            }
            let Some(first) = self.messages.first().copied() else {
                return Ok(rest.finished);
            };
            counters.send_calls += 1;
            let error = match self.batch.send(socket, self.format, memory, &self.messages) {
                Ok(sent) => {
                    repeats = 0;
                    let before = counters.send_datagrams;
                    for message in self.messages.iter().take(sent) {
                        counters.send_datagrams += message.datagrams() as u64;
                        counters.send_bytes += message.len as u64;
                        counters.send_gso_batches += u64::from(message.datagrams() > 1);
                        rest.advance(message.len);
                    }
                    if suspect.take().is_some() {
                        self.downgrade();
                        counters.gso_downgrades += 1;
                    } else {
                        self.on_sent(counters.send_datagrams - before);
                    }
                    continue;
                }
                Err(error) => error,
            };
            // It concerns the first message. Those behind it were not tried.
            match Objection::from(&error) {
                Objection::Interrupted => {}
                // The kernel tells what ICMP said about an earlier datagram, of whatever peer, in
                // place of sending this one. It tells that once.
                Objection::Drop(_) if repeats < REPEATS_MAX && can_be_by_icmp(&error) => {
                    repeats += 1;
                    self.interrupted = true;
                }
                Objection::Full => {
                    counters.send_blocked += 1;
                    return Ok(rest.finished);
                }
                Objection::Drop(_) if first.datagrams() > 1 && can_mean_no_gso(&error) => {
                    suspect = Some(first.len);
                }
                Objection::Drop(reason) => {
                    let len = suspect.take().unwrap_or(first.len);
                    let whole = Transmit {
                        len,
                        segment_size: rest.segment_size(),
                        ..first
                    };
                    let datagrams = whole.datagrams();
                    counters.send_errors.count(reason, datagrams as u64);
                    self.last_errno = error.raw_os_error();
                    let drop = Dropped {
                        datagrams,
                        segment_size: whole.segment_size.min(len),
                        reason,
                    };
                    dropped.push((rest.finished, drop));
                    rest.advance(len);
                    repeats = 0;
                }
                Objection::Fatal => return Err(error),
            }
        }
    }
}

/// What is left of the caller's descriptors.
struct Rest<'a> {
    transmits: &'a mut [Transmit],
    /// Descriptors before this one are finished. Unless all are, this one is not empty.
    finished: usize,
}

impl<'a> Rest<'a> {
    fn of(transmits: &'a mut [Transmit]) -> Self {
        let mut rest = Self {
            transmits,
            finished: 0,
        };
        rest.skip_empty();
        rest
    }

    fn skip_empty(&mut self) {
        while self
            .transmits
            .get(self.finished)
            .is_some_and(|transmit| transmit.len == 0)
        {
            self.finished += 1;
        }
    }

    /// Length of full datagrams of the first descriptor.
    fn segment_size(&self) -> usize {
        self.transmits.get(self.finished).map_or(0, segment_size)
    }

    /// Takes the next `bytes` off the first descriptor, which is at least as long.
    fn advance(&mut self, bytes: usize) {
        if let Some(transmit) = self.transmits.get_mut(self.finished) {
            transmit.offset += bytes.min(transmit.len);
            transmit.len -= bytes.min(transmit.len);
        }
        self.skip_empty();
    }

    /// Cuts what is next into at most `messages_max` messages of at most `segments_max` datagrams.
    fn plan(&self, messages_max: usize, segments_max: usize, messages: &mut Vec<Transmit>) {
        messages.clear();
        for transmit in &self.transmits[self.finished..] {
            let segment_size = segment_size(transmit);
            let fitting = DATAGRAM_BATCH_BYTES_MAX / segment_size.max(1);
            let step = segment_size * segments_max.min(fitting).max(1);
            let mut done = 0;
            while done < transmit.len {
                if messages.len() == messages_max {
                    return;
                }
                let len = step.min(transmit.len - done);
                let offset = transmit.offset + done;
                messages.push(Transmit {
                    segment_size,
                    offset,
                    len,
                    ..*transmit
                });
                done += len;
            }
        }
    }
}

/// Length of all datagrams of a descriptor but the last, as a number that is 0 only for an empty
/// descriptor.
fn segment_size(transmit: &Transmit) -> usize {
    match transmit.segment_size {
        0 => transmit.len,
        size => size.min(transmit.len),
    }
}

/// What an error of a send call means.
enum Objection {
    /// A signal came first.
    Interrupted,
    /// There is no room now.
    Full,
    /// This message cannot be sent.
    Drop(DropReason),
    /// The socket is unusable.
    Fatal,
}

/// Whether the error of a UDP socket may be that of an ICMP message about an earlier datagram: it says nothing of the call that told it.
pub fn can_be_by_icmp(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EMSGSIZE
                | libc::EACCES
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
        )
    )
}

impl From<&io::Error> for Objection {
    fn from(error: &io::Error) -> Self {
        // EWOULDBLOCK is EAGAIN on Linux.
        match error.raw_os_error() {
            Some(libc::EINTR) => Self::Interrupted,
            Some(libc::EAGAIN) => Self::Full,
            Some(libc::EMSGSIZE) => Self::Drop(DropReason::TooLarge),
            Some(libc::EPERM | libc::EACCES) => Self::Drop(DropReason::Denied),
            Some(libc::ECONNREFUSED) => Self::Drop(DropReason::Refused),
            Some(libc::ENOBUFS | libc::ENOMEM) => Self::Drop(DropReason::NoBuffers),
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL
                | libc::EAFNOSUPPORT,
            ) => Self::Drop(DropReason::Unreachable),
            Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::ENOSYS) | None => Self::Fatal,
            Some(_) => Self::Drop(DropReason::Other),
        }
    }
}

/// Whether the kernel says this, among other things, when it will not segment: a device or tunnel
/// without checksum offload, too many segments, or (older kernels) segments above the MTU.
fn can_mean_no_gso(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{Destination, Ecn};

    fn transmit(segment_size: usize, offset: usize, len: usize) -> Transmit {
        let remote = SocketAddr::from(([127, 0, 0, 1], 1));
        Transmit {
            to: Destination {
                remote,
                local_ip: None,
                ecn: Ecn::NotEct,
            },
            segment_size,
            memory: 0,
            offset,
            len,
        }
    }

    fn cuts(
        transmits: &mut [Transmit],
        messages_max: usize,
        segments_max: usize,
    ) -> Vec<(usize, usize)> {
        let mut messages = Vec::new();
        Rest::of(transmits).plan(messages_max, segments_max, &mut messages);
        messages
            .iter()
            .map(|message| (message.offset, message.len))
            .collect()
    }

    #[test]
    fn descriptors_are_cut_at_the_limits() {
        let mut transmits = [transmit(10, 0, 25), transmit(0, 25, 0), transmit(0, 25, 7)];
        assert_eq!(cuts(&mut transmits, 32, 64), [(0, 25), (25, 7)]);
        assert_eq!(cuts(&mut transmits, 32, 2), [(0, 20), (20, 5), (25, 7)]);
        assert_eq!(
            cuts(&mut transmits, 32, 1),
            [(0, 10), (10, 10), (20, 5), (25, 7)]
        );
        assert_eq!(cuts(&mut transmits, 1, 1), [(0, 10)]);
        let mut long = [transmit(30_000, 0, 100_000)];
        assert_eq!(cuts(&mut long, 32, 64), [(0, 60_000), (60_000, 40_000)]);
        let mut too_long = [transmit(0, 0, 100_000)];
        assert_eq!(cuts(&mut too_long, 32, 64), [(0, 100_000)]);
    }

    #[test]
    fn advancing_shortens_and_finishes_descriptors() {
        let mut transmits = [transmit(10, 0, 25), transmit(0, 25, 0), transmit(0, 25, 7)];
        let mut rest = Rest::of(&mut transmits);
        rest.advance(20);
        assert_eq!(
            (
                rest.finished,
                rest.transmits[0].offset,
                rest.transmits[0].len
            ),
            (0, 20, 5)
        );
        rest.advance(5);
        assert_eq!(rest.finished, 2);
        rest.advance(7);
        assert_eq!(rest.finished, 3);
    }
}
