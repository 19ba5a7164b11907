//! What a back end has done, in numbers.

use crate::DropReason;

/// A snapshot of everything a back end counted since it was opened.
///
/// Bytes are UDP payload bytes: IP and UDP headers are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Receive system calls (or ring visits), also those that found nothing.
    pub recv_calls: u64,
    /// Buffers received.
    pub recv_buffers: u64,
    /// Buffers among them that held more than one datagram (GRO).
    pub recv_gro_buffers: u64,
    /// Datagrams received.
    pub recv_datagrams: u64,
    /// Bytes received.
    pub recv_bytes: u64,
    /// Buffers that did not hold everything that had arrived. What was cut is discarded.
    pub recv_truncated: u64,
    /// Datagrams that the kernel discarded because they were not received in time. The kernel
    /// tells with the next datagram that it does deliver.
    pub recv_overflows: u64,
    /// Receive errors that the network caused.
    pub recv_errors: u64,
    /// Send system calls (or ring visits), also those that sent nothing.
    pub send_calls: u64,
    /// Datagrams handed to the network.
    pub send_datagrams: u64,
    /// Bytes handed to the network.
    pub send_bytes: u64,
    /// Messages of more than one datagram, split by the kernel or the network card (GSO).
    pub send_gso_batches: u64,
    /// Times that the back end was full and the caller had to wait.
    pub send_blocked: u64,
    /// Datagrams dropped, by reason.
    pub send_errors: SendErrors,
    /// Times that segmentation offload was given up for a while because the kernel refused it. The datagrams
    /// concerned were sent one by one.
    pub gso_downgrades: u64,
    /// Datagrams, received and sent, that went by the kernel's socket although the back end bypasses it. 0 where there is nothing but that socket.
    pub kernel_datagrams: u64,
}

impl Counters {
    /// What two back ends have done together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let errors = (&self.send_errors, &other.send_errors);
        Self {
            recv_calls: self.recv_calls + other.recv_calls,
            recv_buffers: self.recv_buffers + other.recv_buffers,
            recv_gro_buffers: self.recv_gro_buffers + other.recv_gro_buffers,
            recv_datagrams: self.recv_datagrams + other.recv_datagrams,
            recv_bytes: self.recv_bytes + other.recv_bytes,
            recv_truncated: self.recv_truncated + other.recv_truncated,
            recv_overflows: self.recv_overflows + other.recv_overflows,
            recv_errors: self.recv_errors + other.recv_errors,
            send_calls: self.send_calls + other.send_calls,
            send_datagrams: self.send_datagrams + other.send_datagrams,
            send_bytes: self.send_bytes + other.send_bytes,
            send_gso_batches: self.send_gso_batches + other.send_gso_batches,
            send_blocked: self.send_blocked + other.send_blocked,
            send_errors: SendErrors {
                denied: errors.0.denied + errors.1.denied,
                no_buffers: errors.0.no_buffers + errors.1.no_buffers,
                other: errors.0.other + errors.1.other,
                refused: errors.0.refused + errors.1.refused,
                too_large: errors.0.too_large + errors.1.too_large,
                unreachable: errors.0.unreachable + errors.1.unreachable,
            },
            gso_downgrades: self.gso_downgrades + other.gso_downgrades,
            kernel_datagrams: self.kernel_datagrams + other.kernel_datagrams,
        }
    }

    /// What one half has received, and the other has sent.
    pub(crate) fn with_sent(&self, sent: &Self) -> Self {
        Self {
            recv_calls: self.recv_calls,
            recv_buffers: self.recv_buffers,
            recv_gro_buffers: self.recv_gro_buffers,
            recv_datagrams: self.recv_datagrams,
            recv_bytes: self.recv_bytes,
            recv_truncated: self.recv_truncated,
            recv_overflows: self.recv_overflows,
            recv_errors: self.recv_errors,
            ..*sent
        }
    }
}

/// Datagrams that could not be sent, by [`DropReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendErrors {
    /// [`DropReason::Denied`].
    pub denied: u64,
    /// [`DropReason::NoBuffers`].
    pub no_buffers: u64,
    /// Datagrams that were given up for [`DropReason::Other`].
    pub other: u64,
    /// [`DropReason::Refused`].
    pub refused: u64,
    /// [`DropReason::TooLarge`].
    pub too_large: u64,
    /// [`DropReason::Unreachable`].
    pub unreachable: u64,
}

impl SendErrors {
    /// Datagrams that were given up for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.denied
            + self.no_buffers
            + self.other
            + self.refused
            + self.too_large
            + self.unreachable
    }

    /// Counts `datagrams` dropped for `reason`.
    pub fn count(&mut self, reason: DropReason, datagrams: u64) {
        let counter = match reason {
            DropReason::Denied => &mut self.denied,
            DropReason::NoBuffers => &mut self.no_buffers,
            DropReason::Other => &mut self.other,
            DropReason::Refused => &mut self.refused,
            DropReason::TooLarge => &mut self.too_large,
            DropReason::Unreachable => &mut self.unreachable,
        };
        *counter += datagrams;
    }
}
