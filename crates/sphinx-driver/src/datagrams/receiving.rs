//! Datagrams that have arrived and wait for the application, or for others before them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use sphinx_proto::wire::{FLOWS_MAX, FlowNews};

use super::flows::{Arrived, Live, LiveEnd, Ordered, Place};
use super::numbers::ranges_max;
use super::{Datagram, DatagramCounts, Delivery, FlowKind, Nanos, Stamp, Time};
use crate::pool::PoolBuffer;

/// Flows of live messages that are kept. A sender has half as many open; the end of others may be on its way, and those that have ended are for the
/// application to take.
const LIVE_MAX: usize = 2 * FLOWS_MAX;
/// Flows of live messages that are no more and are remembered, so that what comes late begins none.
const ENDED_MAX: usize = 1024;
/// Of what may wait, this part is left free by those that wait for others before them.
const ROOM_PART: usize = 8;
/// How long the last messages of a flow are waited for, beyond their time.
const END_PATIENCE: Nanos = 1_000_000_000;

/// Datagrams of all flows.
pub(crate) struct RecvQueue<S> {
    ready: VecDeque<Arrived>,
    ordered: BTreeMap<u64, Ordered>,
    live: BTreeMap<u64, Live<S>>,
    /// The flows of both, in the order in which they make room for others: to look for the next one among all would be dear where a peer goes from one to
    /// another.
    ordered_places: BTreeSet<(Time, u64)>,
    live_places: BTreeSet<Place>,
    /// Flows of live messages that the application has not accepted, and those that are no more.
    accepting: VecDeque<u64>,
    ended: BTreeSet<u64>,
    /// Memory of what waits, and how much that may be: then the oldest make room.
    bytes: usize,
    bytes_max: usize,
    counts: DatagramCounts,
    /// Tells that there is a datagram, and that there is a flow of live messages to accept.
    pub(crate) arrived: S,
    pub(crate) accepts: S,
    /// Whose signals are to be told.
    pub(crate) changed: Vec<S>,
}

impl<S: Clone + Default> RecvQueue<S> {
    /// A queue that keeps at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            ready: VecDeque::new(),
            ordered: BTreeMap::new(),
            live: BTreeMap::new(),
            ordered_places: BTreeSet::new(),
            live_places: BTreeSet::new(),
            accepting: VecDeque::new(),
            ended: BTreeSet::new(),
            bytes: 0,
            bytes_max,
            counts: DatagramCounts::default(),
            arrived: S::default(),
            accepts: S::default(),
            changed: Vec::new(),
        }
    }

    /// At most so many bytes wait, from the next datagram on.
    pub(crate) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    pub(crate) fn counts(&self) -> DatagramCounts {
        self.counts
    }

    /// Memory of what waits here, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    // ---- what arrives -----------------------------------------------------------------------------

    /// A datagram has arrived, `way` after it left at the earliest.
    pub(crate) fn add(
        &mut self,
        now: Time,
        way: Nanos,
        datagram: &Datagram,
        (memory, data): (PoolBuffer, Range<usize>),
    ) {
        let flow = datagram.flow;
        let (number, sent) = match datagram.delivery {
            Delivery::Plain => (None, None),
            Delivery::Ordered(stamp) => {
                let sent = self.ordered(now, flow).clock.arrived(now, stamp.time);
                (Some(stamp.number), Some(sent))
            }
            Delivery::Live(stamp) => {
                let Some(live) = self.live(now, flow) else {
                    return;
                };
                (
                    Some(stamp.number),
                    Some(live.clock.arrived(now, stamp.time)),
                )
            }
        };
        let arrived = Arrived {
            flow,
            number,
            sent,
            memory,
            data,
        };
        // The fastest packet counts as one that took no time.
        let due = |stamp: Stamp| {
            let life = stamp.life.saturating_mul(1000).saturating_sub(way);
            sent.unwrap_or(now).saturating_add(life)
        };
        match datagram.delivery {
            Delivery::Plain => {
                self.counts.received += 1;
                self.give(arrived);
            }
            Delivery::Ordered(stamp) => self.add_ordered(now, due(stamp), arrived, stamp.number),
            Delivery::Live(stamp) => self.add_live(now, due(stamp), arrived, stamp.number),
        }
        self.make_room(now);
    }

    fn give(&mut self, arrived: Arrived) {
        self.bytes += arrived.cost();
        self.ready.push_back(arrived);
        self.changed.push(self.arrived.clone());
    }

    /// A flow of datagrams in order. The one that has been silent for longest makes room for a new one.
    fn ordered(&mut self, now: Time, flow: u64) -> &mut Ordered {
        if !self.ordered.contains_key(&flow)
            && self.ordered.len() >= FLOWS_MAX
            && let Some((_, oldest)) = self.ordered_places.pop_first()
        {
            let gone = self.ordered.remove(&oldest);
            let waiting = gone.map(|mut gone| gone.waiting.take_all());
            self.ready.extend(waiting.into_iter().flatten());
            self.changed.push(self.arrived.clone());
        }
        let ordered = self.ordered.entry(flow).or_default();
        self.ordered_places.remove(&(ordered.used_at, flow));
        self.ordered_places.insert((now, flow));
        ordered.used_at = now;
        ordered
    }

    fn add_ordered(&mut self, now: Time, due: Time, arrived: Arrived, number: u64) {
        let flow = arrived.flow;
        let Some(ordered) = self.ordered.get_mut(&flow) else {
            return;
        };
        if number < ordered.next {
            self.counts.late += 1;
            return;
        }
        self.counts.received += 1;
        self.bytes += arrived.cost();
        if let Some(other) = ordered.waiting.insert(number, due, arrived) {
            self.bytes -= other.cost();
        }
        self.release(now, flow);
    }

    /// Gives out what nothing is waited for any more.
    fn release(&mut self, now: Time, flow: u64) {
        let Some(ordered) = self.ordered.get_mut(&flow) else {
            return;
        };
        // What is due takes along what is before it.
        let due = ordered.waiting.last_due_number(now);
        while let Some(first) = ordered.waiting.first_number() {
            if due.is_none_or(|due| first > due)
                && !ordered.missing.contains(&(ordered.next..first))
            {
                break;
            }
            ordered.next = first.saturating_add(1);
            let arrived = ordered.waiting.pop_first();
            self.ready.extend(arrived.map(|(_, arrived)| arrived));
            self.changed.push(self.arrived.clone());
        }
    }

    /// A flow of live messages; `None` if it is no more.
    fn live(&mut self, now: Time, flow: u64) -> Option<&mut Live<S>> {
        if self.ended.contains(&flow) {
            return None;
        }
        if !self.live.contains_key(&flow) {
            if self.live.len() >= LIVE_MAX {
                self.forget_most_silent();
            }
            self.live.insert(flow, Live::default());
            self.accepting.push_back(flow);
            self.changed.push(self.accepts.clone());
        }
        let most = ranges_max(self.live.len());
        let live = self.live.get_mut(&flow)?;
        self.live_places.remove(&live.place(flow));
        live.used_at = now;
        live.ranges_max = most;
        self.live_places.insert(live.place(flow));
        Some(live)
    }

    /// The flow of live messages goes that has been silent for longest: one of those that have ended, or that the application wants no more of, if there are any.
    fn forget_most_silent(&mut self) {
        let most_silent = self.live_places.first().copied();
        let Some(mut gone) = most_silent.and_then(|(.., flow)| self.end(flow)) else {
            return;
        };
        for unread in gone.take_unread() {
            self.bytes -= unread.cost();
            self.counts.overrun += 1;
        }
        self.changed.push(gone.signal);
    }

    /// A flow of live messages is no more, whatever still comes of it.
    fn end(&mut self, flow: u64) -> Option<Live<S>> {
        let gone = self.live.remove(&flow)?;
        self.live_places.remove(&gone.place(flow));
        self.accepting.retain(|other| *other != flow);
        self.ended.insert(flow);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_first();
        }
        Some(gone)
    }

    fn add_live(&mut self, now: Time, due: Time, arrived: Arrived, number: u64) {
        let Some(live) = self.live.get_mut(&arrived.flow) else {
            return;
        };
        let (is_news, missed) = live.arrive(number);
        self.counts.missed = self.counts.missed.saturating_add(missed);
        if !is_news {
            // The message has been reported as missing already.
            self.counts.late += 1;
            return;
        }
        live.latest_due = live.latest_due.max(due);
        if now > due {
            self.counts.late += 1;
            live.miss(number..number.saturating_add(1));
        } else {
            self.counts.received += 1;
            if live.is_unwanted {
                return;
            }
            self.bytes += arrived.cost();
            match live.on_time {
                true => {
                    live.waiting.insert(number, due, arrived);
                    return;
                }
                false => live.ready.push_back(arrived),
            }
        }
        self.changed.push(live.signal.clone());
    }

    /// Where there is little room, those in order no longer wait for others before them; where there is none, the oldest of those that
    /// have too much go.
    fn make_room(&mut self, now: Time) {
        if self.ready.is_empty() && self.bytes > self.bytes_max - self.bytes_max / ROOM_PART {
            self.give_up_longest(now);
        }
        while self.bytes > self.bytes_max {
            let Some(dropped) = self.drop_ready().or_else(|| self.drop_waiting(now)) else {
                return;
            };
            self.bytes -= dropped.cost();
            self.counts.overrun += 1;
        }
    }

    /// What the longest of those in order waits for does not come.
    fn give_up_longest(&mut self, now: Time) {
        let most = ranges_max(self.ordered.len());
        let longest = { self.ordered.iter_mut() }.max_by_key(|(_, flow)| flow.waiting.len());
        if let Some((&flow, ordered)) = longest
            && let Some(first) = ordered.waiting.first_number()
        {
            let missing = ordered.next..first;
            ordered.missing.insert(missing, most);
            self.release(now, flow);
        }
    }

    /// Takes the oldest of the longest queue that the application is slow to take from.
    fn drop_ready(&mut self) -> Option<Arrived> {
        let longest = self.live.values_mut().max_by_key(|live| live.ready.len());
        if let Some(live) = longest.filter(|live| live.ready.len() > self.ready.len()) {
            let dropped = live.ready.pop_front()?;
            live.miss_one(dropped.number);
            self.changed.push(live.signal.clone());
            return Some(dropped);
        }
        self.ready.pop_front()
    }

    /// Takes the first of the longest of those that wait for their time.
    fn drop_waiting(&mut self, now: Time) -> Option<Arrived> {
        let most = ranges_max(self.ordered.len());
        let ordered = { self.ordered.iter_mut() }.max_by_key(|(_, flow)| flow.waiting.len());
        let live = self.live.values_mut().max_by_key(|live| live.waiting.len());
        let in_order = ordered.as_ref().map_or(0, |(_, flow)| flow.waiting.len());
        if let Some(live) = live.filter(|live| live.waiting.len() > in_order) {
            let (_, dropped) = live.waiting.pop_first()?;
            live.miss_one(dropped.number);
            self.changed.push(live.signal.clone());
            return Some(dropped);
        }
        let (&flow, ordered) = ordered?;
        let (number, dropped) = ordered.waiting.pop_first()?;
        // The dropped datagram counts as missing, so that no other one waits for it.
        let missing = number..number.saturating_add(1);
        ordered.missing.insert(missing, most);
        self.release(now, flow);
        Some(dropped)
    }

    /// What the peer says of a flow.
    pub(crate) fn on_news(&mut self, now: Time, news: FlowNews) {
        match news {
            FlowNews::Expired {
                kind: FlowKind::Ordered,
                flow,
                first,
                count,
            } => {
                self.ordered(now, flow);
                let most = ranges_max(self.ordered.len());
                if let Some(ordered) = self.ordered.get_mut(&flow) {
                    let missing = first..first.saturating_add(count);
                    ordered.missing.insert(missing, most);
                }
                self.release(now, flow);
            }
            FlowNews::Expired {
                flow, first, count, ..
            } => {
                let Some(live) = self.live(now, flow) else {
                    return;
                };
                let missed = live.give_up(first..first.saturating_add(count));
                let signal = live.signal.clone();
                // A peer may say anything.
                self.counts.missed = self.counts.missed.saturating_add(missed);
                self.changed.push(signal);
            }
            FlowNews::Ended { flow, total } => {
                let Some(live) = self.live(now, flow) else {
                    return;
                };
                let until = live.latest_due.max(now).saturating_add(END_PATIENCE);
                let before = live.place(flow);
                live.total = Some((total, until));
                let (place, signal) = (live.place(flow), live.signal.clone());
                self.live_places.remove(&before);
                self.live_places.insert(place);
                self.changed.push(signal);
                self.forget_unwanted(flow);
            }
            // Concerns what this end sends.
            FlowNews::Latency { .. } => {}
        }
    }

    fn forget_unwanted(&mut self, flow: u64) {
        let is_over = |live: &Live<S>| live.is_unwanted && live.is_over();
        if self.live.get(&flow).is_some_and(is_over) {
            self.end(flow);
        }
    }

    // ---- time -------------------------------------------------------------------------------------

    /// When something is to be given out, or not to be waited for any more.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let ordered = { self.ordered.values() }.filter_map(|flow| flow.waiting.first_due());
        let live = self.live.values().filter_map(|flow| {
            let end = flow.total.map(|(_, until)| until);
            let end = end.filter(|until| *until < Time::MAX);
            [flow.waiting.first_due(), end].into_iter().flatten().min()
        });
        ordered.chain(live).min()
    }

    /// Gives out what is due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.next_due().is_none_or(|at| at > now) {
            return;
        }
        let flows: Vec<u64> = self.ordered.keys().copied().collect();
        for flow in flows {
            self.release(now, flow);
        }
        let flows: Vec<u64> = self.live.keys().copied().collect();
        for flow in flows {
            let Some(live) = self.live.get_mut(&flow) else {
                continue;
            };
            let before = live.ready.len();
            while let Some(due) = live.waiting.pop_due(now) {
                live.ready.push_back(due);
            }
            let mut has_news = live.ready.len() > before;
            if let Some((total, until)) = live.total
                && until <= now
            {
                live.total = Some((total, Time::MAX));
                let missed = live.give_up(0..total);
                self.counts.missed = self.counts.missed.saturating_add(missed);
                has_news = true;
            }
            if has_news {
                self.changed.push(live.signal.clone());
            }
            self.forget_unwanted(flow);
        }
    }

    // ---- the application --------------------------------------------------------------------------

    /// The next datagram.
    pub(crate) fn next(&mut self) -> Option<Arrived> {
        let next = self.ready.pop_front()?;
        self.bytes -= next.cost();
        Some(next)
    }

    /// Bytes of the next datagram.
    pub(crate) fn next_len(&self) -> Option<usize> {
        self.ready.front().map(|next| next.data.len())
    }

    /// The next flow of live messages.
    pub(crate) fn accept(&mut self) -> Option<(u64, S)> {
        let flow = self.accepting.pop_front()?;
        let live = self.live.get_mut(&flow)?;
        Some((flow, live.signal.clone()))
    }

    /// The next live message of a flow that was accepted.
    pub(crate) fn next_live(&mut self, flow: u64) -> Option<Arrived> {
        let next = self.live.get_mut(&flow)?.ready.pop_front()?;
        self.bytes -= next.cost();
        Some(next)
    }

    /// Bytes of the next live message.
    pub(crate) fn next_live_len(&self, flow: u64) -> Option<usize> {
        let next = self.live.get(&flow)?.ready.front();
        next.map(|next| next.data.len())
    }

    /// Whether more may come of a flow.
    pub(crate) fn live_end(&self, flow: u64) -> LiveEnd {
        let live = self.live.get(&flow);
        match live.is_none_or(|live| live.ready.is_empty() && live.is_over()) {
            true => LiveEnd::Ended,
            false => LiveEnd::Open,
        }
    }

    /// Numbers that are missing, since the last call.
    pub(crate) fn take_missing(&mut self, flow: u64) -> Vec<Range<u64>> {
        let live = self.live.get_mut(&flow);
        live.map_or(Vec::new(), |live| live.missing.drain(..).collect())
    }

    /// Live messages are given out when their time has come, or as they come.
    pub(crate) fn set_on_time(&mut self, flow: u64, on_time: bool) {
        let Some(live) = self.live.get_mut(&flow) else {
            return;
        };
        live.on_time = on_time;
        if !on_time {
            live.ready.extend(live.waiting.take_all());
        }
    }

    /// The application wants no more of a flow.
    pub(crate) fn let_go(&mut self, flow: u64) {
        let Some(live) = self.live.get_mut(&flow) else {
            return;
        };
        self.live_places.remove(&live.place(flow));
        live.is_unwanted = true;
        self.live_places.insert(live.place(flow));
        self.bytes -= live.take_unread().map(|one| one.cost()).sum::<usize>();
        self.forget_unwanted(flow);
    }

    /// What tells news of all flows, for the end of the session.
    pub(crate) fn signals(&self) -> impl Iterator<Item = S> {
        let live = self.live.values().map(|live| live.signal.clone());
        live.chain([self.arrived.clone(), self.accepts.clone()])
    }
}

#[cfg(test)]
mod tests;
