//! The flows that an agent knows: bounded in memory, forgotten in the order of last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{FlowKey, Time, flow::Flow};

/// Memory of all flows, cached packets included.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// A flow that has been silent for so long is forgotten.
const IDLE_NS: Time = 600_000_000_000;

/// Flows by key, by last use and by deadline.
#[derive(Debug, Default)]
pub(crate) struct Table {
    flows: HashMap<FlowKey, Flow>,
    by_use: BTreeMap<(Time, u64), FlowKey>,
    by_deadline: BTreeSet<(Time, FlowKey)>,
    bytes: usize,
    uses: u64,
}

impl Table {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// All flows, in the order of their keys.
    pub(crate) fn sorted(&self) -> Vec<(FlowKey, &Flow)> {
        let mut flows: Vec<_> = self.flows.iter().map(|(key, flow)| (*key, flow)).collect();
        flows.sort_unstable_by_key(|(key, _)| *key);
        flows
    }

    /// All flows, the one used last first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (FlowKey, &Flow)> {
        let keys = self.by_use.values().rev();
        keys.filter_map(|key| self.flows.get(key).map(|flow| (*key, flow)))
    }

    /// The keys of all flows, the one used least lately first.
    pub(crate) fn by_use(&self) -> Vec<FlowKey> {
        self.by_use.values().copied().collect()
    }

    /// Takes a flow out, to be changed; [`put`](Table::put) brings it back.
    pub(crate) fn take(&mut self, key: &FlowKey) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        self.by_use.remove(&flow.used);
        if let Some(at) = flow.deadline {
            self.by_deadline.remove(&(at, *key));
        }
        self.bytes -= flow.charged;
        Some(flow)
    }

    /// Puts a flow in as the one used last.
    pub(crate) fn put(&mut self, now: Time, key: FlowKey, mut flow: Flow) {
        self.uses += 1;
        flow.used = (now, self.uses);
        flow.charged = flow.bytes();
        flow.deadline = flow.next_timeout();
        self.bytes += flow.charged;
        self.by_use.insert(flow.used, key);
        if let Some(at) = flow.deadline {
            self.by_deadline.insert((at, key));
        }
        self.flows.insert(key, flow);
    }

    /// The flow that was used least lately, if it has to go: there are too many bytes, or it is idle.
    pub(crate) fn to_evict(&self, now: Time) -> Option<FlowKey> {
        let (&(used, _), key) = self.by_use.first_key_value()?;
        let is_idle = now.saturating_sub(used) > IDLE_NS;
        (is_idle || self.bytes > BYTES_MAX).then_some(*key)
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.by_deadline.first().map(|(at, _)| *at)
    }

    /// A flow whose deadline has come.
    pub(crate) fn due(&self, now: Time) -> Option<FlowKey> {
        let (at, key) = self.by_deadline.first()?;
        (*at <= now).then_some(*key)
    }
}
