//! What a link did: counters, and a record of single events.

use std::collections::VecDeque;

use crate::{FlowKey, Time};

/// Totals of one direction since its start. Bytes are IP bytes.
///
/// Nothing gets lost in the books: `offered_packets` equals the sum of the `dropped_*` counters,
/// [`Link::packets_inside`](crate::Link::packets_inside) and `delivered_packets`, less `duplicated`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Counters {
    /// Packets handed to the link.
    pub offered_packets: u64,
    /// IP bytes of the offered packets.
    pub offered_bytes: u64,
    /// Packets larger than the MTU.
    pub dropped_mtu: u64,
    /// Packets beyond the policer's bucket, or dropped for their ECN codepoint ([`EcnRule::Drop`](crate::EcnRule::Drop)).
    pub dropped_policer: u64,
    /// Packets that found the queue full.
    pub dropped_queue: u64,
    /// Packets dropped by active queue management.
    pub dropped_aqm: u64,
    /// Packets that have used the link: what the channel then lost is included.
    pub sent_packets: u64,
    /// IP bytes of the sent packets.
    pub sent_bytes: u64,
    /// Sent packets lost by the loss process.
    pub dropped_loss: u64,
    /// Sent packets lost in a blackout (and not by the loss process as well).
    pub dropped_blackout: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets with flipped bits.
    pub corrupted: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Packets held back by [`Reorder`](crate::Reorder).
    pub held_back: u64,
    /// Packets that came out, copies included.
    pub delivered_packets: u64,
    /// IP bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// The most bytes that ever waited, the packet being sent not included.
    pub queue_bytes_max: u64,
}

impl Counters {
    /// Packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_mtu
            + self.dropped_policer
            + self.dropped_queue
            + self.dropped_aqm
            + self.dropped_loss
            + self.dropped_blackout
    }
}

/// One thing that happened to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in the link's time.
    pub at: Time,
    /// Which packet: its index among those offered to the link, from 0.
    pub offered: u64,
    /// Its index among those that have used the link, from 0, if it has: the index that losses depend
    /// on, counted as [`Flows`](crate::Flows) says.
    pub sent: Option<u64>,
    /// Its flow.
    pub flow: FlowKey,
    /// What its own protocol calls it; see [`Packet::sequence`](crate::Packet::sequence).
    pub sequence: Option<u32>,
    /// Its IP bytes.
    pub bytes: usize,
    /// What happened.
    pub event: Event,
}

/// What may happen to a packet besides plain delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Bits were flipped.
    Corrupted,
    /// Dropped by active queue management.
    DroppedAqm,
    /// Lost: sent during a blackout.
    DroppedBlackout,
    /// Lost by the loss process.
    DroppedLoss,
    /// Dropped: larger than the MTU.
    DroppedMtu,
    /// Dropped: beyond the policer's bucket, or for its ECN codepoint.
    DroppedPolicer,
    /// Dropped: the queue was full.
    DroppedQueue,
    /// Delivered twice.
    Duplicated,
    /// Held back for others to overtake it.
    HeldBack,
    /// Marked "congestion experienced".
    Marked,
}

impl Event {
    /// A short name: `loss`, `queue`, `marked`.
    pub fn name(self) -> &'static str {
        match self {
            Event::Corrupted => "corrupted",
            Event::DroppedAqm => "aqm",
            Event::DroppedBlackout => "blackout",
            Event::DroppedLoss => "loss",
            Event::DroppedMtu => "mtu",
            Event::DroppedPolicer => "policer",
            Event::DroppedQueue => "queue",
            Event::Duplicated => "duplicated",
            Event::HeldBack => "held_back",
            Event::Marked => "marked",
        }
    }

    /// Whether the packet ends here.
    pub fn is_drop(self) -> bool {
        match self {
            Event::DroppedAqm
            | Event::DroppedBlackout
            | Event::DroppedLoss
            | Event::DroppedMtu
            | Event::DroppedPolicer
            | Event::DroppedQueue => true,
            Event::Corrupted | Event::Duplicated | Event::HeldBack | Event::Marked => false,
        }
    }
}

/// A bounded list of records.
#[derive(Debug)]
pub(crate) struct Log {
    records: VecDeque<Record>,
    limit: usize,
    pub(crate) missed: u64,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Log {
        Log {
            records: VecDeque::new(),
            limit,
            missed: 0,
        }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Keeps a record, which is made only if records are wanted.
    pub(crate) fn push(&mut self, record: impl FnOnce() -> Record) {
        if self.records.len() < self.limit {
            self.records.push_back(record());
        } else if self.limit > 0 {
            self.missed += 1;
        }
    }

    pub(crate) fn take(&mut self, into: &mut Vec<Record>) {
        into.extend(self.records.drain(..));
    }
}
