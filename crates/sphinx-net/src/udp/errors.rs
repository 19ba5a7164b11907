//! What the network says about datagrams that were sent: the socket's error queue.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mmsg::RecvBatch;

/// Errors fetched at a time, and how often in one go: more can only be there if they arrive while
/// we look.
const BATCH: usize = 8;
const BATCHES_MAX: usize = 16;
/// Addresses kept until somebody asks for them.
const REFUSED_MAX: usize = 64;

/// Fetches errors. They have to be fetched, or every wait would end at once.
pub(super) struct Errors {
    batch: RecvBatch,
    /// Set when there may be errors to fetch. The half that sends and the wait set it too.
    expected: Arc<AtomicBool>,
    refused: Vec<SocketAddr>,
}

impl Errors {
    /// Fetches once `expected` is set.
    pub(super) fn new(expected: Arc<AtomicBool>) -> Self {
        Self {
            // One byte of room: the datagram that the error quotes is of no use.
            batch: RecvBatch::new(BATCH, 1),
            expected,
            refused: Vec::new(),
        }
    }

    /// Fetches those that are expected; how many there were.
    pub(super) fn fetch(&mut self, socket: BorrowedFd<'_>) -> u64 {
        let mut fetched = 0;
        if !self.expected.swap(false, Ordering::Relaxed) {
            return fetched;
        }
        for _ in 0..BATCHES_MAX {
            let Ok(count) = self.batch.recv_errors(socket) else {
                break;
            };
            for index in 0..count {
                let message = self.batch.message(index);
                if message.fields.icmp_error == Some(libc::ECONNREFUSED) {
                    self.refused_by(message.remote);
                }
            }
            fetched += count as u64;
        }
        fetched
    }

    fn refused_by(&mut self, remote: Option<SocketAddr>) {
        let new = remote.filter(|remote| !self.refused.contains(remote));
        if self.refused.len() < REFUSED_MAX {
            self.refused.extend(new);
        }
    }

    /// See [`PacketRx::take_refused`](crate::PacketRx::take_refused).
    pub(super) fn take_refused(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.refused)
    }
}
