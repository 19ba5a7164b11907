//! The flows that an agent knows: bounded in memory, forgotten in the order of last use.
//!
//! Every packet takes its flow out and puts it back. So that this costs little, flows are in boxes that stay where they are, keys
//! are looked up once, and the order of use is a list through the slots.

use std::collections::{BTreeSet, HashMap};

use foldhash::quality::RandomState;

use crate::{FlowKey, Time, flow::Flow};

/// Memory of all flows, cached packets included.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// A flow that has been silent for so long is forgotten.
const IDLE_NS: Time = 600_000_000_000;

/// With random keys, as hosts choose their addresses and ports. (The standard library's hash takes several times as long, for each packet.)
pub(crate) type Map<K, V> = HashMap<K, V, RandomState>;

/// Flows by key, by last use and by deadline.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Map<FlowKey, usize>,
    slots: Vec<Slot>,
    /// Slots that no flow has.
    free: Vec<usize>,
    /// The flow used least lately, and the one used last.
    oldest: Option<usize>,
    newest: Option<usize>,
    /// When slots are to be looked at: not later than their flows want it.
    wakes: BTreeSet<(Time, usize)>,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    key: FlowKey,
    /// Away while it is changed, or if the slot is free.
    flow: Option<Box<Flow>>,
    used: Time,
    older: Option<usize>,
    newer: Option<usize>,
    /// Its entry in `wakes`.
    wakes: Option<Time>,
}

impl Table {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// All flows, in the order of their keys.
    pub(crate) fn sorted(&self) -> Vec<(FlowKey, &Flow)> {
        let mut flows: Vec<_> = self.newest().collect();
        flows.sort_unstable_by_key(|(key, _)| *key);
        flows
    }

    /// All flows, the one used last first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (FlowKey, &Flow)> {
        let slots = std::iter::successors(self.newest, |at| self.slots[*at].older);
        slots.filter_map(|at| {
            let slot = &self.slots[at];
            slot.flow.as_deref().map(|flow| (slot.key, flow))
        })
    }

    /// The keys of all flows, the one used least lately first.
    pub(crate) fn by_use(&self) -> Vec<FlowKey> {
        let slots = std::iter::successors(self.oldest, |at| self.slots[*at].newer);
        slots.map(|at| self.slots[at].key).collect()
    }

    /// Takes a flow out, to be changed; [`put`](Table::put) brings it back, or [`forget`](Table::forget) lets it go.
    pub(crate) fn take(&mut self, key: &FlowKey) -> Option<Box<Flow>> {
        // Packets come in trains.
        let newest = self.newest.filter(|place| self.slots[*place].key == *key);
        let place = match newest {
            Some(place) => place,
            None => *self.places.get(key)?,
        };
        let mut flow = self.slots[place].flow.take()?;
        flow.place = Some(place);
        self.bytes -= flow.charged;
        Some(flow)
    }

    /// Puts a flow in as the one used last.
    pub(crate) fn put(&mut self, now: Time, key: FlowKey, mut flow: Box<Flow>) {
        let place = flow.place.unwrap_or_else(|| self.place(key));
        flow.charged = flow.bytes();
        self.bytes += flow.charged;
        self.wake(place, flow.next_timeout(self.slots[place].wakes));
        if self.newest != Some(place) {
            if flow.place.is_some() {
                self.unlink(place);
            }
            self.link(place);
        }
        let slot = &mut self.slots[place];
        slot.used = now;
        slot.flow = Some(flow);
    }

    /// Lets a flow go that was taken out, or never put in.
    pub(crate) fn forget(&mut self, flow: Box<Flow>) {
        let Some(place) = flow.place else { return };
        self.unlink(place);
        let slot = &mut self.slots[place];
        self.places.remove(&slot.key);
        if let Some(at) = slot.wakes.take() {
            self.wakes.remove(&(at, place));
        }
        self.free.push(place);
    }

    /// The flow that was used least lately, if it has to go: there are too many bytes, or it is idle.
    pub(crate) fn to_evict(&self, now: Time) -> Option<FlowKey> {
        let slot = &self.slots[self.oldest?];
        let is_idle = now.saturating_sub(slot.used) > IDLE_NS;
        (is_idle || self.bytes > BYTES_MAX).then_some(slot.key)
    }

    /// When flows are to be looked at ([`due`](Table::due)): not later than one of them wants it.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// A flow whose deadline has perhaps come; it is to be taken out, and put back.
    pub(crate) fn due(&mut self, now: Time) -> Option<FlowKey> {
        let (_, place) = self.wakes.first().copied().filter(|(at, _)| *at <= now)?;
        self.wakes.pop_first();
        let slot = &mut self.slots[place];
        slot.wakes = None;
        Some(slot.key)
    }

    /// A slot for a flow that has none.
    fn place(&mut self, key: FlowKey) -> usize {
        let slot = Slot {
            key,
            flow: None,
            used: 0,
            older: None,
            newer: None,
            wakes: None,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.places.insert(key, place);
        place
    }

    /// Lets a slot be looked at by then. An earlier time stays: timers that begin anew with every packet would move it each time.
    fn wake(&mut self, place: usize, deadline: Option<Time>) {
        let Some(deadline) = deadline else { return };
        let slot = &mut self.slots[place];
        if slot.wakes.is_some_and(|at| at <= deadline) {
            return;
        }
        if let Some(at) = slot.wakes.replace(deadline) {
            self.wakes.remove(&(at, place));
        }
        self.wakes.insert((deadline, place));
    }

    /// Makes a slot that is not in the list the newest one.
    fn link(&mut self, place: usize) {
        let before = self.newest.replace(place);
        (self.slots[place].older, self.slots[place].newer) = (before, None);
        match before {
            Some(before) => self.slots[before].newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    fn unlink(&mut self, place: usize) {
        let (older, newer) = (self.slots[place].older, self.slots[place].newer);
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
    }
}
