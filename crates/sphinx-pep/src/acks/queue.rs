//! The queue in front of a thin link: fair to each flow (deficit round robin, as in RFC 8290), so that acknowledgements do not wait behind an
//! upload, and without those of which a later one says everything.

use std::collections::VecDeque;

use super::{Ack, Beyond, Dropped, Kept, Mode, ReturnQueue};
use crate::{FlowKey, MS, Output, Time, radio::wire_time, stats::Counts, table::Map};

/// Bytes that a flow may send in each round (the quantum of deficit round robin): less than a full packet, as the link is thin.
const QUANTUM: i64 = 300;
/// Bytes that a flow may always have in the queue: one full packet.
const PACKET_BYTES: usize = 1514;
/// By this factor the queue may be longer than its limit, by packets of flows that have less than their share.
const OVERSIZE: usize = 2;

/// Lists of flows: those of `AHEAD` have their turn before those of `BEHIND`.
const AHEAD: usize = 0;
const BEHIND: usize = 1;

/// `None` for packets that cannot be read: all of them count as one flow.
type Key = Option<FlowKey>;

#[derive(Debug)]
struct Entry {
    output: Output,
    ack: Option<Ack>,
    /// Why the acknowledgement behind this one makes it needless, if it does.
    redundant: Option<Dropped>,
    since: Time,
}

impl Entry {
    fn is_pure_ack(&self) -> bool {
        self.ack.as_ref().is_some_and(Ack::is_pure)
    }
}

/// A flow with packets that wait, or that had some in this round.
#[derive(Debug)]
struct Waiting {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Packets among them that are no pure acknowledgements.
    others: usize,
    deficit: i64,
    list: usize,
    /// Position of the last acknowledgement that has left, if one has.
    passed: Option<u64>,
}

impl Waiting {
    /// Whether `ack`, at a place, says all that the pure acknowledgement directly before it does; `None` if there are no two.
    fn says(&self, at: usize, ack: Option<&Ack>) -> Option<Result<Dropped, Kept>> {
        let position = |at: usize| self.entries[at].ack.as_ref().map(Ack::position);
        let old = self.entries.get(at.checked_sub(1)?)?;
        let old = old.ack.as_ref().filter(|old| old.is_pure())?;
        let before = match at {
            1 => self.passed,
            _ => position(at - 2),
        };
        Some(ack?.says(old, before))
    }

    /// The last one has come behind others. Drops of those for which the one behind them does, and the one behind that, and so on,
    /// `spare` times, the one nearest to the head: its place in the queue is that of the next one.
    fn drop_redundant(&mut self, spare: usize, counts: &mut Counts) {
        // The last acknowledgement before the new one.
        let mut at = self.entries.len().saturating_sub(2);
        while at + 1 < self.entries.len() {
            let said = self.says(at + 1, self.entries[at + 1].ack.as_ref());
            self.entries[at].redundant = said.and_then(Result::ok);
            let mut all = at.saturating_sub(spare)..self.entries.len();
            let goes = |at: &usize| {
                let run = self.entries.range(*at..).take(spare + 1);
                run.filter(|it| it.redundant.is_some()).count() > spare
            };
            let Some(goes) = all.find(goes) else {
                return;
            };
            self.drop(goes, counts);
            at = goes.saturating_sub(1);
        }
    }

    fn drop(&mut self, at: usize, counts: &mut Counts) {
        let Some(entry) = self.entries.remove(at) else {
            return;
        };
        self.bytes -= entry.output.packet.len();
        entry
            .redundant
            .into_iter()
            .for_each(|why| counts.drop_ack(why));
    }

    /// Drops all that have a lower number than the last one.
    fn drop_lower(&mut self, counts: &mut Counts) {
        let last = self.entries.back().and_then(|entry| entry.ack.clone());
        let Some(last) = last else { return };
        self.entries.retain(|it| {
            let goes = it.ack.as_ref().is_some_and(|old| last.is_higher(old));
            if goes {
                self.bytes -= it.output.packet.len();
                counts.drop_ack(Dropped::Ns2);
            }
            !goes
        });
    }
}

/// Packets that wait for the link.
#[derive(Debug)]
pub(crate) struct Queue {
    settings: ReturnQueue,
    flows: Map<Key, Waiting>,
    lists: [VecDeque<Key>; 2],
    bytes: usize,
    /// When the link has taken the packet that left last.
    busy: Time,
    beyond: Beyond,
    /// Packets that had no room and wait for [`poll_dropped`](Queue::poll_dropped).
    dropped: VecDeque<Output>,
}

impl Queue {
    pub(crate) fn new(settings: ReturnQueue) -> Queue {
        Queue {
            settings,
            flows: Map::default(),
            lists: [VecDeque::new(), VecDeque::new()],
            bytes: 0,
            busy: 0,
            beyond: Beyond::default(),
            dropped: VecDeque::new(),
        }
    }

    /// Goes on as that of another link; what waits may be more than it has room for.
    pub(crate) fn set(&mut self, settings: ReturnQueue) {
        self.settings = settings;
    }

    /// Everything that waits, in the order in which it would go.
    pub(crate) fn into_outputs(mut self) -> impl Iterator<Item = Output> {
        std::iter::from_fn(move || self.take().map(|(_, entry)| entry.output))
    }

    /// When a packet that comes now would have left, at the latest unless others come; `None` if there is no room for it.
    pub(crate) fn admits(&self, now: Time, key: Key, bytes: usize) -> Option<Time> {
        let waits = self.time(self.bytes);
        self.has_room(key, bytes)
            .then(|| self.busy.max(now) + waits)
    }

    fn has_room(&self, key: Key, bytes: usize) -> bool {
        let limit = self.settings.bytes;
        let total = self.bytes + bytes;
        if total <= limit || self.bytes == 0 {
            return true;
        }
        let own = self.flows.get(&key);
        let flows = self.flows.len() + usize::from(own.is_none());
        let share = (limit / flows).max(PACKET_BYTES);
        let own = own.map_or(0, |flow| flow.bytes);
        own + bytes <= share && total <= limit.max(PACKET_BYTES).saturating_mul(OVERSIZE)
    }

    /// How long the first packet of a flow has waited.
    pub(crate) fn waited(&self, now: Time, key: Key) -> Time {
        let first = self.flows.get(&key).and_then(|flow| flow.entries.front());
        first.map_or(0, |entry| now.saturating_sub(entry.since))
    }

    /// A packet comes: it waits, unless there is no room for it. Those go that it, or the one before it, makes needless.
    pub(crate) fn push(
        &mut self,
        now: Time,
        key: Key,
        (output, ack): (Output, Option<Ack>),
        counts: &mut Counts,
    ) {
        let flow = self.flows.get(&key);
        let said = flow
            .filter(|_| self.settings.mode != Mode::Keep)
            .and_then(|flow| flow.says(flow.entries.len(), ack.as_ref()));
        let bytes = output.packet.len();
        // One that does for another one has its room.
        if !matches!(said, Some(Ok(_))) && !self.has_room(key, bytes) {
            return self.dropped.push_back(output);
        }
        let acks_first = self.settings.acks_first;
        let entry = Entry {
            output,
            ack,
            redundant: None,
            since: now,
        };
        let is_pure = entry.is_pure_ack();
        // Whoever begins a connection with each packet, to look for open ports say, would keep all others waiting for good if these went first.
        let is_known = entry.ack.is_some();
        let list = match is_known && (is_pure || !acks_first) {
            true => AHEAD,
            false => BEHIND,
        };
        let flow = self.flows.entry(key).or_insert_with(|| {
            self.lists[list].push_back(key);
            Waiting {
                entries: VecDeque::new(),
                bytes: 0,
                others: 0,
                deficit: QUANTUM,
                list,
                passed: None,
            }
        });
        if acks_first && flow.list < list {
            // Its acknowledgements go no more before other flows, as they would overtake its own data.
            self.lists[flow.list].retain(|it| *it != key);
            self.lists[list].push_back(key);
            flow.list = list;
        }
        flow.others += usize::from(!is_pure);
        flow.bytes += bytes;
        self.bytes += bytes;
        flow.entries.push_back(entry);
        let before = flow.bytes;
        match (self.settings.mode, said) {
            (Mode::Ns2, _) => flow.drop_lower(counts),
            (Mode::Keep, _) | (_, None) => {}
            (_, Some(Err(why))) => counts.keep_ack(why),
            (Mode::Conservative, Some(Ok(_))) => flow.drop_redundant(1, counts),
            (Mode::Aggressive, Some(Ok(_))) => flow.drop_redundant(0, counts),
        }
        self.bytes -= before - flow.bytes;
    }

    /// The next packet that had no room. Those that another one made needless are none.
    pub(crate) fn poll_dropped(&mut self) -> Option<Output> {
        self.dropped.pop_front()
    }

    /// The next packet that may go, and how long it has waited.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Output, Time)> {
        if now < self.busy {
            return None;
        }
        let (key, entry) = self.take()?;
        // A caller that is a little late does not lower the rate.
        let start = self.busy.max(now.saturating_sub(MS));
        let bytes = entry.output.packet.len();
        self.busy = start + self.time(bytes);
        let sent = entry.ack.as_ref().and_then(Ack::sent);
        if let (Some(key), Some(sent)) = (key, sent) {
            self.beyond.left(now, key, sent);
        }
        Some((entry.output, now.saturating_sub(entry.since)))
    }

    /// A packet with these timestamps has come from the link. True if packets have waited behind this queue for a while.
    pub(crate) fn echoed(&mut self, now: Time, key: &FlowKey, timestamps: (u32, u32)) -> bool {
        self.beyond.echoed(now, key, timestamps);
        self.beyond.is_doubtful(now)
    }

    /// When the next one may go.
    pub(crate) fn next_event(&self) -> Option<Time> {
        (self.bytes > 0).then_some(self.busy)
    }

    /// Takes the packet out whose turn it is.
    fn take(&mut self) -> Option<(Key, Entry)> {
        loop {
            let list = usize::from(self.lists[AHEAD].is_empty());
            let key = *self.lists[list].front()?;
            let Some(flow) = self.flows.get_mut(&key) else {
                self.lists[list].pop_front();
                continue;
            };
            if flow.deficit > 0
                && let Some(entry) = flow.entries.pop_front()
            {
                let bytes = entry.output.packet.len();
                flow.deficit -= bytes as i64;
                flow.bytes -= bytes;
                flow.others -= usize::from(!entry.is_pure_ack());
                flow.passed = entry.ack.as_ref().map(Ack::position).or(flow.passed);
                self.bytes -= bytes;
                return Some((key, entry));
            }
            self.lists[list].pop_front();
            let is_empty = flow.entries.is_empty();
            let acks_first = self.settings.acks_first;
            // Who has nothing left loses its place, but not by that the round in which it had its turn: otherwise it would be new, and first, again
            // with its next packet.
            if is_empty && (list == BEHIND || acks_first) {
                self.flows.remove(&key);
                continue;
            }
            if !is_empty {
                // Whoever is alone has all rounds until its turn.
                let others = self.lists.iter().any(|list| !list.is_empty());
                let rounds = if others {
                    1
                } else {
                    1 - flow.deficit / QUANTUM
                };
                flow.deficit += rounds * QUANTUM;
            }
            flow.list = match acks_first && flow.others == 0 {
                true => AHEAD,
                false => BEHIND,
            };
            self.lists[flow.list].push_back(key);
        }
    }

    pub(crate) fn time(&self, bytes: usize) -> Time {
        wire_time(bytes, self.settings.bits_per_second)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Cause, Side};

    /// Somebody looks for open ports: nothing else waits, and what is known of each is no longer needed once it has gone.
    #[test]
    fn connections_of_one_packet_are_forgotten() {
        let mut queue = Queue::new(ReturnQueue {
            bits_per_second: 1_000_000,
            bytes: 20_000,
            acks_first: false,
            mode: Mode::Conservative,
        });
        let (mut counts, mut now) = (Counts::default(), 0);
        for n in 0..20_000_u32 {
            let key = FlowKey {
                fixed: ([10, 0, 0, 1], 50_000).into(),
                mobile: (n.to_be_bytes(), 80).into(),
            };
            let output = Output {
                to: Side::Mobile,
                packet: Bytes::from_static(&[0; 60]),
                cause: Cause::Passed,
            };
            queue.push(now, Some(key), (output, None), &mut counts);
            // One takes 0.48 ms. At first they come more slowly, and then faster: then twice 20 000 bytes wait.
            now += if n < 10_000 { MS } else { MS / 4 };
            while queue.pop(now).is_some() {}
            while queue.poll_dropped().is_some() {}
            assert!(queue.flows.len() < 1000, "{n}: {}", queue.flows.len());
        }
    }
}
