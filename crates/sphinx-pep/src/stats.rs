//! What an agent has done.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Bypass, FlowKey, Release};

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
    /// The longest that an acknowledgement was held, in nanoseconds.
    pub held_ns_max: u64,
    /// What packets have waited in the agent's own queue in all, in nanoseconds.
    pub queued_ns: u64,
    /// The longest that one has waited there.
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
        self.held_ns_max = self.held_ns_max.max(other.held_ns_max);
        self.queued_ns += other.queued_ns;
        self.queued_ns_max = self.queued_ns_max.max(other.queued_ns_max);
        self.waited_ns_max = self.waited_ns_max.max(other.waited_ns_max);
    }
}

/// A flow that an agent knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowReport {
    /// Its ends.
    #[serde(flatten)]
    pub key: FlowKey,
    /// Why it is left alone, if it is.
    pub bypass: Option<Bypass>,
    /// What was done for it.
    #[serde(flatten)]
    pub counts: Counts,
}
