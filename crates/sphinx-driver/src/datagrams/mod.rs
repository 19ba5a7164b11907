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
    /// Its flow, among those of its kind.
    pub flow: u64,
    /// `None`: it is given out as it comes.
    pub kind: Option<FlowKind>,
    /// Beside streams and other datagrams.
    pub urgency: Urgency,
    /// How long it is of use, from now on.
    pub life: Nanos,
    /// What becomes of its losses.
    pub repair: RepairMode,
}

/// What became of datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// That the application has sent.
    pub sent: u64,
    /// Live messages among them.
    pub live_sent: u64,
    /// Bytes of all.
    pub bytes_sent: u64,
    /// Those of them that the peer has.
    pub delivered: u64,
    /// That were out of date before they left.
    pub expired: u64,
    /// That made room for others.
    pub evicted: u64,
    /// That left, and as far as is known did not arrive in time.
    pub lost: u64,
    /// Live messages among those that expired, were evicted or lost.
    pub live_dropped: u64,
    /// That have arrived in time.
    pub received: u64,
    /// That have arrived too late.
    pub late: u64,
    /// Live messages that the peer has given up, or that had not come when their flow was over.
    pub missed: u64,
    /// That the application was too slow for.
    pub overrun: u64,
}

/// Microseconds of a time, as datagrams carry them.
fn stamp_time(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

/// All datagrams of a session.
pub(crate) struct Datagrams<S> {
    pub(crate) sending: SendQueue<S>,
    pub(crate) receiving: RecvQueue<S>,
}

impl<S: Clone + Default> Datagrams<S> {
    /// What has arrived and is not taken takes at most so many bytes.
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

    /// When something is out of date or due.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let timers = [self.sending.next_expiry(), self.receiving.next_due()];
        timers.into_iter().flatten().min()
    }
}
