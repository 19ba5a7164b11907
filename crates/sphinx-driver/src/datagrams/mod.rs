//! Datagrams and live messages that wait: for the window at their sender, for the application at their receiver.
//!
//! None of them waits for long: what is out of date goes, at both ends, and so does the oldest where there is no room.

mod clock;
mod flows;
mod numbers;
mod receiving;
mod sending;
mod waiting;

use sphinx_proto::wire::{Datagram, Delivery, FlowKind, Stamp};
use sphinx_proto::{Lifetime, Nanos, RepairMode, Time, Urgency};

pub use flows::{Arrived, LiveEnd};
pub(crate) use receiving::RecvQueue;
pub use sending::Refusal;
pub(crate) use sending::{First, SendQueue, Sent};

/// What an application wants of a datagram that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendAs {
    /// Flow of the datagram, among those of the same kind.
    pub flow: u64,
    /// Kind of the flow; `None`: the datagram is given out as it comes.
    pub kind: Option<FlowKind>,
    /// Urgency beside streams and other datagrams.
    pub urgency: Urgency,
    /// How long the datagram is of use, from now on, nanoseconds.
    pub life: Nanos,
    /// Whether losses are repaired.
    pub repair: RepairMode,
}

/// Counters of a session's datagrams, live messages among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Datagrams that the application has sent.
    pub sent: u64,
    /// Live messages among `sent`.
    pub live_sent: u64,
    /// Bytes of `sent`.
    pub bytes_sent: u64,
    /// Datagrams of `sent` that the peer has received.
    pub delivered: u64,
    /// Datagrams of `sent` whose time was over before they left.
    pub expired: u64,
    /// Datagrams of `sent` that were dropped from the full queue to make room for others.
    pub evicted: u64,
    /// Datagrams of `sent` that left and, as far as is known, did not arrive in time.
    pub lost: u64,
    /// Live messages among `expired`, `evicted` and `lost`.
    pub live_dropped: u64,
    /// Datagrams that have arrived in time.
    pub received: u64,
    /// Datagrams that have arrived too late.
    pub late: u64,
    /// Live messages that the peer has given up, or that had not arrived when their flow was over.
    pub missed: u64,
    /// Datagrams that were dropped on arrival because the application did not take earlier ones in time.
    pub overrun: u64,
}

/// The low 32 bits of a time in microseconds, which datagrams carry.
fn stamp_time(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

/// All datagrams of a session.
pub(crate) struct Datagrams<S> {
    pub(crate) sending: SendQueue<S>,
    pub(crate) receiving: RecvQueue<S>,
}

impl<S: Clone + Default> Datagrams<S> {
    /// Keeps at most `received_max` bytes of datagrams that have arrived and that the application has not taken.
    pub(crate) fn new(received_max: usize) -> Self {
        Self {
            sending: SendQueue::default(),
            receiving: RecvQueue::new(received_max),
        }
    }

    pub(crate) fn counts(&self) -> DatagramCounts {
        let (sent, received) = (self.sending.counts(), self.receiving.counts());
        DatagramCounts {
            received: received.received,
            late: received.late,
            missed: received.missed,
            overrun: received.overrun,
            ..sent
        }
    }

    /// When the next datagram expires or is due to be given out.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let timers = [self.sending.next_expiry(), self.receiving.next_due()];
        timers.into_iter().flatten().min()
    }
}
