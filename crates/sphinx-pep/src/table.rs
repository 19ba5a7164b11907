//! The flows that an agent knows: bounded in memory, forgotten in the order of last use.
//!
//! A connection that is forgotten is never helped again, as its beginning was seen once. So those that are helped stay for as long as their hosts may be silent, and
//! what is worth less goes first: flows that are not helped, and what is cached.
//!
//! Every packet takes its flow out and puts it back. So that this costs little, flows are in boxes that stay where they are, keys
//! are looked up once, and the order of use is a list through the slots, one for each kind of flow.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    ops::Range,
};

use foldhash::quality::RandomState;

use crate::{FlowKey, MS, Time, flow::Flow};

/// Memory of all flows, cached packets included.
pub(crate) const FLOWS_BYTES_MAX: usize = 64 << 20;
/// Memory that flows which are not helped may take in any case: each connection begins as one of them.
const UNHELPED_BYTES: usize = FLOWS_BYTES_MAX / 8;
/// Memory beyond which flows of which nothing is cached have to make room, or nothing could be cached of any flow.
const RESTING_BYTES: usize = FLOWS_BYTES_MAX / 2;
/// A flow that is not helped is forgotten when it has been silent for so long: a SYN is sent again within that time.
const UNHELPED_NS: Time = 60_000 * MS;
/// When a flow that is helped has been silent for so long, what is cached of it is dropped.
const REST_NS: Time = 600_000 * MS;
/// A flow that is helped is forgotten when it has been silent for so long: kernels ask after two hours whether a silent host is still there, which
/// is why a NAT remembers it for longer (RFC 5382, REQ-5).
const SILENT_NS: Time = 7_440_000 * MS;

/// With random keys, as hosts choose their addresses and ports. (The standard library's hash takes several times as long, for each packet.)
pub(crate) type Map<K, V> = HashMap<K, V, RandomState>;

/// What flows are to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Half-open, over, or left alone.
    Unhelped,
    /// Helped, and nothing of it is cached: it is silent for [`REST_NS`], or memory was short. Used less lately than all that are `Helped`.
    Resting,
    Helped,
}

/// The flows of one kind by last use.
#[derive(Clone, Copy, Debug, Default)]
struct List {
    /// The one used least lately, and the one used last.
    oldest: Option<usize>,
    newest: Option<usize>,
    /// Bytes of memory of these flows, without those that are taken out.
    bytes: usize,
}

/// Flows by key, by last use and by deadline.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Map<FlowKey, usize>,
    slots: Vec<Slot>,
    /// Numbers of free slots.
    free: Vec<usize>,
    lists: [List; 3],
    /// The slot used last, if its flow is not forgotten.
    last: Option<usize>,
    /// How often slots were used, all together.
    uses: u64,
    /// When slots are to be looked at: not later than their flows want it.
    wakes: BTreeSet<(Time, usize)>,
}

#[derive(Debug)]
struct Slot {
    key: FlowKey,
    /// `None` while the flow is taken out to be changed, or if the slot is free.
    flow: Option<Box<Flow>>,
    /// When the flow was used last, and the value of [`Table::uses`] then.
    used: Time,
    order: u64,
    kind: Kind,
    older: Option<usize>,
    newer: Option<usize>,
    /// The time of this slot's entry in `wakes`.
    wakes: Option<Time>,
}

/// Memory that the table has for a flow, at most: its slot, its key, its deadline. All of these grow to up to twice what is in them.
pub(crate) const PLACE_BYTES: usize =
    2 * (size_of::<Slot>() + size_of::<(FlowKey, usize)>() + size_of::<(Time, usize)>());

impl Table {
    pub(crate) fn bytes(&self) -> usize {
        self.lists.iter().map(|list| list.bytes).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// A flow as it is, if it is not taken out.
    pub(crate) fn get(&self, key: &FlowKey) -> Option<&Flow> {
        self.slots[*self.places.get(key)?].flow.as_deref()
    }

    /// How many slots there are; a flow stays in its own.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The flows of some slots.
    pub(crate) fn in_slots(&self, slots: Range<usize>) -> impl Iterator<Item = &Flow> {
        let slots = self.slots.iter().take(slots.end).skip(slots.start);
        slots.filter_map(|slot| slot.flow.as_deref())
    }

    /// The keys of the flows of a mobile host, the one used least lately first. Flows of others are not looked at, as packets wait meanwhile.
    pub(crate) fn of_mobile(&self, mobile: IpAddr) -> Vec<FlowKey> {
        let is_of = |slot: &&Slot| slot.flow.is_some() && slot.key.mobile.ip() == mobile;
        let mut slots: Vec<&Slot> = self.slots.iter().filter(is_of).collect();
        slots.sort_unstable_by_key(|slot| slot.order);
        slots.into_iter().map(|slot| slot.key).collect()
    }

    /// All flows, in the order of their keys.
    pub(crate) fn sorted(&self) -> Vec<(FlowKey, &Flow)> {
        let mut flows: Vec<_> = self.newest().collect();
        flows.sort_unstable_by_key(|(key, _)| *key);
        flows
    }

    /// All flows, the one used last first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (FlowKey, &Flow)> {
        let mut next = self.lists.map(|list| list.newest);
        let slots = std::iter::from_fn(move || {
            let order = |at: &&mut Option<usize>| at.map(|at| self.slots[at].order);
            let newest = next.iter_mut().max_by_key(order)?;
            let slot = &self.slots[(*newest)?];
            *newest = slot.older;
            Some(slot)
        });
        slots.filter_map(|slot| slot.flow.as_deref().map(|flow| (slot.key, flow)))
    }

    /// The keys of all flows, the one used least lately first.
    pub(crate) fn by_use(&self) -> Vec<FlowKey> {
        let mut keys: Vec<FlowKey> = self.newest().map(|(key, _)| key).collect();
        keys.reverse();
        keys
    }

    /// Takes a flow out, to be changed; [`put`](Table::put) brings it back, or [`forget`](Table::forget) lets it go.
    pub(crate) fn take(&mut self, key: &FlowKey) -> Option<Box<Flow>> {
        // Packets come in trains.
        let last = self.last.filter(|place| self.slots[*place].key == *key);
        let place = match last {
            Some(place) => place,
            None => *self.places.get(key)?,
        };
        let mut flow = self.slots[place].flow.take()?;
        flow.place = Some(place);
        self.list(self.slots[place].kind).bytes -= flow.charged;
        Some(flow)
    }

    /// Puts a flow in as the one used last.
    pub(crate) fn put(&mut self, now: Time, key: FlowKey, flow: Box<Flow>) {
        let place = flow.place.unwrap_or_else(|| self.place(key));
        let kind = match flow.is_helped() {
            true => Kind::Helped,
            false => Kind::Unhelped,
        };
        self.wake(place, flow.next_timeout(self.slots[place].wakes));
        self.uses += 1;
        self.last = Some(place);
        let slot = &mut self.slots[place];
        (slot.used, slot.order) = (now, self.uses);
        self.put_among(kind, place, flow);
    }

    /// Puts a flow back that was [`to_rest`](Table::to_rest), and of which nothing is cached any more.
    pub(crate) fn put_to_rest(&mut self, flow: Box<Flow>) {
        if let Some(place) = flow.place {
            self.put_among(Kind::Resting, place, flow);
        }
    }

    /// Puts a flow back that nobody has used. To be called for all of them, the one used least lately first: they stay in that order.
    pub(crate) fn put_back(&mut self, flow: Box<Flow>) {
        let Some(place) = flow.place else { return };
        let kind = match (flow.is_helped(), self.slots[place].kind) {
            (true, Kind::Resting) => Kind::Resting,
            (true, _) => Kind::Helped,
            (false, _) => Kind::Unhelped,
        };
        self.wake(place, flow.next_timeout(self.slots[place].wakes));
        self.put_among(kind, place, flow);
    }

    /// Puts a flow in its slot, as the last one of a kind.
    fn put_among(&mut self, kind: Kind, place: usize, mut flow: Box<Flow>) {
        flow.charged = flow.bytes();
        let charged = flow.charged;
        let is_newest = self.list(kind).newest == Some(place);
        if !is_newest {
            if flow.place.is_some() {
                self.unlink(place);
            }
            self.link(kind, place);
        }
        self.list(kind).bytes += charged;
        self.slots[place].flow = Some(flow);
    }

    fn list(&mut self, kind: Kind) -> &mut List {
        &mut self.lists[kind as usize]
    }

    /// Lets a flow go that was taken out, or never put in.
    pub(crate) fn forget(&mut self, flow: Box<Flow>) {
        let Some(place) = flow.place else { return };
        self.unlink(place);
        self.last = self.last.filter(|last| *last != place);
        let slot = &mut self.slots[place];
        self.places.remove(&slot.key);
        if let Some(at) = slot.wakes.take() {
            self.wakes.remove(&(at, place));
        }
        self.free.push(place);
    }

    /// The flow that has to go next: it has been silent for too long, or there are too many bytes, and it is worth least. To be asked when nothing is
    /// [`to_rest`](Table::to_rest).
    pub(crate) fn to_evict(&self, now: Time) -> Option<FlowKey> {
        let silent = self.silent(now, Kind::Unhelped, UNHELPED_NS);
        let silent = silent.or_else(|| self.silent(now, Kind::Resting, SILENT_NS));
        if silent.is_some() || self.bytes() <= FLOWS_BYTES_MAX {
            return silent;
        }
        let kind = match self.has_room_for_helped() {
            true => Kind::Resting,
            false => Kind::Unhelped,
        };
        self.oldest(kind).map(|slot| slot.key)
    }

    /// A flow that is helped and of which what is cached is to be dropped ([`put_to_rest`](Table::put_to_rest)): it has been silent for so long, or there are too many
    /// bytes, and it was used least lately.
    pub(crate) fn to_rest(&self, now: Time) -> Option<FlowKey> {
        let rests = self.lists[Kind::Resting as usize].bytes;
        if self.bytes() > FLOWS_BYTES_MAX && self.has_room_for_helped() && rests <= RESTING_BYTES {
            return self.oldest(Kind::Helped).map(|slot| slot.key);
        }
        self.silent(now, Kind::Helped, REST_NS)
    }

    /// Whether what is not helped takes no more than its share.
    fn has_room_for_helped(&self) -> bool {
        self.lists[Kind::Unhelped as usize].bytes <= UNHELPED_BYTES
    }

    /// The flow of a kind that was used least lately, if that was so long ago.
    fn silent(&self, now: Time, kind: Kind, time: Time) -> Option<FlowKey> {
        let slot = self.oldest(kind)?;
        (now.saturating_sub(slot.used) > time).then_some(slot.key)
    }

    fn oldest(&self, kind: Kind) -> Option<&Slot> {
        self.lists[kind as usize].oldest.map(|at| &self.slots[at])
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
            order: 0,
            kind: Kind::Unhelped,
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

    /// Makes a slot that is in no list the newest one of a kind.
    fn link(&mut self, kind: Kind, place: usize) {
        let before = self.list(kind).newest.replace(place);
        let slot = &mut self.slots[place];
        (slot.kind, slot.older, slot.newer) = (kind, before, None);
        match before {
            Some(before) => self.slots[before].newer = Some(place),
            None => self.list(kind).oldest = Some(place),
        }
    }

    fn unlink(&mut self, place: usize) {
        let slot = &self.slots[place];
        let (kind, older, newer) = (slot.kind, slot.older, slot.newer);
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.list(kind).oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.list(kind).newest = older,
        }
    }
}
