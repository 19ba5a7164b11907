//! What an agent has done.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Bypass, FlowKey, Release, acks, rdb, rsfc};

/// Totals of a flow, or of all. With `dry_run` they say what would have been done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that came from fixed hosts.
    pub from_fixed: u64,
    /// Packets that came from mobile hosts.
    pub from_mobile: u64,
    /// Data packets kept until they are acknowledged.
    pub cached: u64,
    /// Packets sent again over the lossy hop.
    pub repaired: u64,
    /// Packets of another agent's cache, or that went before the mobile host had come, sent over the hop.
    pub resumed: u64,
    /// Repairs that the mobile host had already, by its D-SACKs.
    pub spurious: u64,
    /// Acknowledgements held back.
    pub held: u64,
    /// Acknowledgements that passed without all or some of their SACK blocks.
    pub concealed: u64,
    /// Times at which the sender was left to repair, and why.
    pub released: BTreeMap<Release, u64>,
    /// Packets that passed untouched because of what they or their flow are.
    pub bypassed: BTreeMap<Bypass, u64>,
    /// Packets dropped by the agent's own queue.
    pub dropped_queue: u64,
    /// Holes in uploads that were reported as losses of the hop.
    pub attributed: u64,
    /// Holes in uploads that were left to the sender, as signs of congestion.
    pub unattributed: u64,
    /// Bytes of payload that senders of helped flows sent for the first time; with [`Stage::Rdb`](crate::Stage::Rdb), as all up to `acked_ns_max`.
    pub data_bytes: u64,
    /// New segments of streams that were thin then.
    pub thin: u64,
    /// New segments that went with earlier ones in front.
    pub bundled: u64,
    /// Payload bytes of the earlier segments that went in front of new ones.
    pub copied_bytes: u64,
    /// New segments that went without copies, by the reason.
    pub alone: BTreeMap<rdb::Alone, u64>,
    /// Segments that the sender has sent again.
    pub resent: u64,
    /// Segments that were lost and came as copies. In a dry run, those that the sender had to send again and would not have.
    pub losses_repaired: u64,
    /// Segments of which nobody can say whether they came only as copies.
    pub losses_unknown: u64,
    /// Segments that were taken for lost and had been overtaken.
    pub overtaken: u64,
    /// Acknowledgements that passed without the report of a copy.
    pub dsacks_stripped: u64,
    /// Times at which the sender was slowed down for losses that it did not see, and how.
    pub slowed: BTreeMap<rdb::Slowed, u64>,
    /// Segments of which the acknowledgement was seen.
    pub acked: u64,
    /// The sum of the times from a segment to its acknowledgement, in nanoseconds.
    pub acked_ns: u64,
    /// The longest time from a segment to its acknowledgement, in nanoseconds.
    pub acked_ns_max: u64,
    /// Acknowledgements without data towards the hop, of flows for which they are filtered ([`Config::ack_filter`](crate::Config::ack_filter)).
    pub acks_seen: u64,
    /// Acknowledgements that were dropped, and why.
    pub acks_dropped: BTreeMap<acks::Dropped, u64>,
    /// Acknowledgements that were kept although another one came while they waited, and why.
    pub acks_kept: BTreeMap<acks::Kept, u64>,
    /// Times at which acknowledgements waited too long for the hop, and fewer went on ([`Config::ack_cc`](crate::Config::ack_cc)).
    pub acks_marked: u64,
    /// The most acknowledgements for which one went on.
    pub ack_ratio_max: u64,
    /// Acknowledgements that went between those from the hop ([`Returning::Reconstruct`](crate::returning::Returning::Reconstruct)).
    pub acks_synthesised: u64,
    /// Synthesised acknowledgements that were not needed, as another one had come from the hop.
    pub acks_superseded: u64,
    /// Repetitions that waited for the third one ([`Returning::NoLimitedTransmit`](crate::returning::Returning::NoLimitedTransmit)).
    pub duplicates_held: u64,
    /// Packets that waited so that no burst went ([`Config::pace`](crate::Config::pace)).
    pub paced: u64,
    /// The longest that a packet has waited so that no burst went, in nanoseconds.
    pub paced_ns_max: u64,
    /// Flows that have brought 64 KiB over the hop, of those whose windows may be lowered ([`Config::rsfc`](crate::Config::rsfc)).
    pub uploads: u64,
    /// Uploads of which nothing can be measured, or that may not be touched, and why.
    pub unclamped: BTreeMap<rsfc::Unclamped, u64>,
    /// How often uploads have come into each state.
    pub upload_states: BTreeMap<rsfc::State, u64>,
    /// Acknowledgements that went on with a smaller window.
    pub windows_lowered: u64,
    /// The longest that an acknowledgement was held, in nanoseconds.
    pub held_ns_max: u64,
    /// What packets have waited in the agent's own queue in all, in nanoseconds.
    pub queued_ns: u64,
    /// The longest that a packet has waited in the agent's own queue, in nanoseconds.
    pub queued_ns_max: u64,
    /// The longest that a packet had waited for the agent, at most, in nanoseconds.
    pub waited_ns_max: u64,
}

impl Counts {
    pub(crate) fn release(&mut self, why: Release) {
        *self.released.entry(why).or_default() += 1;
    }

    pub(crate) fn bypass(&mut self, why: Bypass) {
        *self.bypassed.entry(why).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.from_fixed += other.from_fixed;
        self.from_mobile += other.from_mobile;
        self.cached += other.cached;
        self.repaired += other.repaired;
        self.resumed += other.resumed;
        self.spurious += other.spurious;
        self.held += other.held;
        self.concealed += other.concealed;
        for (why, count) in &other.released {
            *self.released.entry(*why).or_default() += count;
        }
        for (why, count) in &other.bypassed {
            *self.bypassed.entry(*why).or_default() += count;
        }
        self.dropped_queue += other.dropped_queue;
        self.attributed += other.attributed;
        self.unattributed += other.unattributed;
        self.data_bytes += other.data_bytes;
        self.thin += other.thin;
        self.bundled += other.bundled;
        self.copied_bytes += other.copied_bytes;
        for (why, count) in &other.alone {
            *self.alone.entry(*why).or_default() += count;
        }
        self.resent += other.resent;
        self.losses_repaired += other.losses_repaired;
        self.losses_unknown += other.losses_unknown;
        self.overtaken += other.overtaken;
        self.dsacks_stripped += other.dsacks_stripped;
        for (how, count) in &other.slowed {
            *self.slowed.entry(*how).or_default() += count;
        }
        self.acked += other.acked;
        self.acked_ns += other.acked_ns;
        self.acked_ns_max = self.acked_ns_max.max(other.acked_ns_max);
        self.uploads += other.uploads;
        for (why, count) in &other.unclamped {
            *self.unclamped.entry(*why).or_default() += count;
        }
        for (state, count) in &other.upload_states {
            *self.upload_states.entry(*state).or_default() += count;
        }
        self.windows_lowered += other.windows_lowered;
        self.acks_seen += other.acks_seen;
        for (why, count) in &other.acks_dropped {
            *self.acks_dropped.entry(*why).or_default() += count;
        }
        for (why, count) in &other.acks_kept {
            *self.acks_kept.entry(*why).or_default() += count;
        }
        self.acks_marked += other.acks_marked;
        self.ack_ratio_max = self.ack_ratio_max.max(other.ack_ratio_max);
        self.acks_synthesised += other.acks_synthesised;
        self.acks_superseded += other.acks_superseded;
        self.duplicates_held += other.duplicates_held;
        self.paced += other.paced;
        self.paced_ns_max = self.paced_ns_max.max(other.paced_ns_max);
        self.held_ns_max = self.held_ns_max.max(other.held_ns_max);
        self.queued_ns += other.queued_ns;
        self.queued_ns_max = self.queued_ns_max.max(other.queued_ns_max);
        self.waited_ns_max = self.waited_ns_max.max(other.waited_ns_max);
    }
}

/// A flow that an agent knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowReport {
    /// The two ends of the flow.
    #[serde(flatten)]
    pub key: FlowKey,
    /// Why the flow is left alone; `None` if it is helped.
    pub bypass: Option<Bypass>,
    /// What is known of its upload, if that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<rsfc::Report>,
    /// What was done for the flow.
    #[serde(flatten)]
    pub counts: Counts,
}
