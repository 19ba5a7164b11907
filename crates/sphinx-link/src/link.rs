//! One direction of a link: the pipeline of elements.

use std::collections::VecDeque;

use crate::{
    Time,
    aqm::{AqmState, Band, Heads, Leaving as Dequeued, Verdict},
    config::{Aqm, ConfigError, Depth, EcnRule, LinkConfig, Order, Rate, Retries, Signal},
    flow::FlowTable,
    ip,
    loss::{Leaving, LossProcess},
    nanos,
    packet::Packet,
    policer::Bucket,
    random::{Draws, Element},
    rate::{Limiter, work},
    record::{Counters, Event, Log, Record},
    waits::Waits,
};

/// A small packet: RED counts how many of these an idle link could have sent.
const SMALL_PACKET_BYTES: usize = 500;

/// One direction of a link, without a clock.
///
/// Packets pass the elements in this order:
///
/// ```text
/// MTU → policer → queue (drop-tail, AQM) → rate → loss, blackout → corruption → duplication → delay, retries
/// ```
///
/// So a packet lost by the channel has used the link, as on a radio.
///
/// # Driving it
///
/// - **Input**: [`enqueue`](Link::enqueue) hands over a packet; [`reconfigure`](Link::reconfigure)
///   changes the link under way.
/// - **Output**: call [`poll`](Link::poll) until it returns `None`; then call again at
///   [`next_event`](Link::next_event), or after further input.
/// - **Time** is nanoseconds from any origin that suits the caller, and should never go backwards;
///   an earlier time counts as the latest one seen. What happens inside depends on the times given
///   to `enqueue` alone: polling late delivers late but changes nothing else.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    now: Time,
    limiter: Limiter,
    /// The rate that turned depths in time into bytes before the last change: it goes on to do so while the new rate is 0.
    rate_before: Option<u64>,
    policer: Option<Bucket>,
    aqm: AqmState,
    loss: LossProcess,
    flows: FlowTable,
    queue: VecDeque<Waiting<P>>,
    /// Packets in the queue of low latency, if there are two queues.
    low: VecDeque<Waiting<P>>,
    /// How many packets at the front of the queue have priority.
    urgent: usize,
    queue_bytes: u64,
    /// The largest packet so far, in bytes.
    largest: usize,
    /// Since when nothing has been sent, unless something is.
    idle_since: Time,
    sending: Option<Sending<P>>,
    /// The packet to be sent has to wait for its turn on a channel that is shared ([`Pair`](crate::Pair)), and since when it does.
    shared: bool,
    waits_since: Option<Time>,
    /// Ascending by due time.
    in_flight: VecDeque<Delivery<P>>,
    /// Due time of the last packet that keeps its place.
    due_latest: Time,
    counters: Counters,
    waits: Waits,
    log: Log,
}

/// A packet that comes out of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<P> {
    /// When it arrives; not later than the time of the poll that returned it.
    pub at: Time,
    /// Its index among the packets offered to the link, from 0. A copy has that of its original.
    pub index: u64,
    /// The packet, perhaps marked or corrupted.
    pub packet: P,
}

#[derive(Debug)]
struct Waiting<P> {
    index: u64,
    bytes: usize,
    /// When the packet arrived.
    since: Time,
    /// Whether it found another one waiting in its queue.
    is_behind: bool,
    packet: P,
}

/// The packet that the rate limiter is sending.
#[derive(Debug)]
struct Sending<P> {
    waiting: Waiting<P>,
    /// Work that was left to be done at `start`.
    work: u128,
    start: Time,
    end: Time,
    /// Work that the nanosecond before `end` has to spare for the next packet.
    spare: u128,
}

impl<P: Packet> Link<P> {
    /// An empty link.
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`]; and a radio, for which it takes a [`Pair`](crate::Pair).
    pub fn new(config: LinkConfig) -> Result<Link<P>, ConfigError> {
        validate(&config)?;
        Ok(Link {
            now: 0,
            limiter: Limiter::new(&config.rate, config.seed),
            rate_before: Some(0),
            policer: config
                .policer
                .as_ref()
                .map(|policer| Bucket::new(policer, 0)),
            aqm: AqmState::new(&config.aqm, config.seed),
            loss: LossProcess::new(&config.loss, config.seed),
            flows: FlowTable::new(config.flows, config.seed),
            queue: VecDeque::new(),
            low: VecDeque::new(),
            urgent: 0,
            queue_bytes: 0,
            largest: 0,
            idle_since: 0,
            sending: None,
            shared: false,
            waits_since: None,
            in_flight: VecDeque::new(),
            due_latest: 0,
            counters: Counters::default(),
            waits: Waits::default(),
            log: Log::new(config.records),
            config,
        })
    }

    /// Changes the link under way. Packets inside stay; the one being sent goes on at the new rate;
    /// those already in flight keep their arrival times. Elements whose settings are the same keep
    /// their state, and packet indexes go on.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Link::new); the link is then unchanged.
    pub fn reconfigure(&mut self, now: Time, config: LinkConfig) -> Result<(), ConfigError> {
        validate(&config)?;
        self.advance(now);
        let reseeded = config.seed != self.config.seed;
        let varies = matches!(config.rate, Rate::Varying(_));
        if config.rate != self.config.rate || (reseeded && varies) {
            let limiter = Limiter::new(&config.rate, config.seed);
            self.rate_before = self.reference();
            if let Some(sending) = self.sending.as_mut().filter(|_| self.waits_since.is_none()) {
                // If it begins later, because the link is waking up or the channel is not free, nothing of it has been sent.
                if sending.start < self.now {
                    let served = self.limiter.served(sending.start, self.now);
                    sending.work = sending.work.saturating_sub(served);
                    sending.start = self.now;
                }
                (sending.end, sending.spare) = limiter.finish(sending.start, sending.work, 0);
            }
            if self.limiter.end_of_pause(self.now) > self.now {
                // During a pause of the old rate no turn was possible, so the wait for the channel begins now.
                self.waits_since = self.waits_since.map(|_| self.now);
            }
            self.limiter = limiter;
        }
        if config.policer != self.config.policer {
            let now = self.now;
            self.policer = config
                .policer
                .as_ref()
                .map(|policer| Bucket::new(policer, now));
        }
        if config.aqm != self.config.aqm || reseeded {
            self.aqm = AqmState::new(&config.aqm, config.seed);
        }
        let other_loss = config.loss != self.config.loss;
        if other_loss || reseeded {
            self.loss = LossProcess::new(&config.loss, config.seed);
        }
        self.flows
            .reconfigure(config.flows, config.seed, other_loss || reseeded);
        self.log.set_limit(config.records);
        self.config = config;
        Ok(())
    }

    /// The settings in force.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Hands a packet to the link at time `now`.
    pub fn enqueue(&mut self, now: Time, mut packet: P) {
        self.advance(now);
        let bytes = packet.ip_len();
        let index = self.counters.offered_packets;
        self.counters.offered_packets += 1;
        self.counters.offered_bytes += bytes as u64;

        let now = self.now;
        self.largest = self.largest.max(bytes);
        if self.config.mtu.is_some_and(|mtu| bytes > mtu) {
            self.counters.dropped_mtu += 1;
            return self.record(now, index, None, &packet, Event::DroppedMtu);
        }
        if self
            .policer
            .as_mut()
            .is_some_and(|bucket| !bucket.admit(now, bytes))
        {
            self.counters.dropped_policer += 1;
            return self.record(now, index, None, &packet, Event::DroppedPolicer);
        }
        if !apply(self.config.ecn, &mut packet) {
            self.counters.dropped_policer += 1;
            return self.record(now, index, None, &packet, Event::DroppedPolicer);
        }
        let compressed = self.config.compressed_ack.filter(|_| packet.is_pure_ack());
        let bytes = compressed.unwrap_or(bytes);
        let waits = self.sending.is_some();
        self.average();
        if waits && self.exceeds(self.config.queue, 1, bytes as u64) {
            self.counters.dropped_queue += 1;
            return self.record(now, index, None, &packet, Event::DroppedQueue);
        }
        if let Some(signal) = self.signal_on_arrival(index)
            && self.drops(now, index, &mut packet, signal)
        {
            return;
        }
        let band = self.band(&packet);
        let waiting = Waiting {
            index,
            bytes,
            since: now,
            is_behind: match band {
                Band::Low => !self.low.is_empty(),
                Band::Classic => !self.queue.is_empty(),
            },
            packet,
        };
        self.advance_queues(now);
        if waits {
            self.queue_bytes += bytes as u64;
            self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(self.queue_bytes);
            if band == Band::Low {
                self.low.push_back(waiting);
            } else if self.config.priority == Some(waiting.packet.dscp()) {
                self.queue.insert(self.urgent, waiting);
                self.urgent += 1;
            } else {
                self.queue.push_back(waiting);
            }
        } else {
            if let AqmState::CoDel(codel, _) = &mut self.aqm {
                codel.idle();
            }
            let mut waiting = waiting;
            if self.is_dropped_by_dual(now, band, &mut waiting) {
                return;
            }
            let start = now.saturating_add(self.time_to_wake(now));
            self.start_sending(waiting, start, 0);
            self.advance(now);
        }
    }

    /// Until when the link has been in use, if it is one that sleeps.
    pub(crate) fn awake_until(&self) -> Option<Time> {
        self.config.wake?;
        Some(match self.sending {
            Some(_) => self.now,
            None => self.idle_since,
        })
    }

    /// The other direction, which sleeps and wakes together with this one, was in use until then.
    pub(crate) fn keep_awake(&mut self, until: Time) {
        if self.config.wake.is_some() {
            self.idle_since = self.idle_since.max(until);
        }
    }

    /// How long the link sleeps on that nothing uses.
    fn time_to_wake(&self, now: Time) -> Time {
        let wake = self.config.wake;
        let sleeps = wake.filter(|wake| now - self.idle_since >= nanos(wake.idle));
        sleeps.map_or(0, |wake| nanos(wake.delay))
    }

    /// The next packet that has arrived by `now`, earliest first.
    pub fn poll(&mut self, now: Time) -> Option<Delivery<P>> {
        self.advance(now);
        self.in_flight
            .front()
            .filter(|delivery| delivery.at <= self.now)?;
        let delivery = self.in_flight.pop_front()?;
        self.counters.delivered_packets += 1;
        self.counters.delivered_bytes += delivery.packet.ip_len() as u64;
        Some(delivery)
    }

    /// The earliest time at which [`poll`](Link::poll) may return a packet; `None` while that
    /// needs further input. The packet under way may turn out to be lost or delayed: polling at this
    /// time may return nothing, and the next event is then later.
    pub fn next_event(&self) -> Option<Time> {
        let arrival = self.in_flight.front().map(|delivery| delivery.at);
        let sent = self
            .sending
            .as_ref()
            .filter(|sending| sending.end != Time::MAX);
        let sent = sent.map(|sending| sending.end.saturating_add(nanos(self.config.delay)));
        arrival.into_iter().chain(sent).min()
    }

    /// Totals so far. What is due but has not been polled counts as inside the link.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long the packets waited that have used the link.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// IP bytes waiting in the queue at the last time seen, the packet being sent not included.
    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// Packets waiting, being sent, or in flight.
    pub fn packets_inside(&self) -> usize {
        self.waiting_packets() + usize::from(self.sending.is_some()) + self.in_flight.len()
    }

    /// Moves the records kept so far to the end of `into`, oldest first.
    pub fn take_records(&mut self, into: &mut Vec<Record>) {
        self.log.take(into);
    }

    /// How many records did not fit in [`LinkConfig::records`].
    pub fn records_missed(&self) -> u64 {
        self.log.missed
    }

    /// Whether what waits now, and this much more, exceeds `depth`.
    fn exceeds(&self, depth: Depth, more_packets: u64, more_bytes: u64) -> bool {
        let bytes = self.queue_bytes + more_bytes;
        match depth {
            Depth::Bytes(limit) => bytes > limit,
            Depth::Packets(limit) => self.waiting_packets() as u64 + more_packets > limit,
            Depth::Time(limit) => self.reference().is_some_and(|rate| {
                work(bytes as usize) > u128::from(rate) * u128::from(nanos(limit))
            }),
        }
    }

    /// The rate that turns time into bytes; while the link pauses, the one before.
    fn reference(&self) -> Option<u64> {
        match self.limiter.reference(self.now) {
            Some(0) => self.rate_before,
            rate => rate,
        }
    }

    /// Tells RED what a packet finds that comes now.
    fn average(&mut self) {
        let rate = self.reference().unwrap_or(u64::MAX);
        let (AqmState::Red(red, _), Aqm::Red(settings)) = (&mut self.aqm, &self.config.aqm) else {
            return;
        };
        if self.sending.is_none() {
            let silence = u128::from(self.now - self.idle_since);
            let packets = silence * u128::from(rate) / work(SMALL_PACKET_BYTES);
            red.arrival_after_silence(Time::try_from(packets).unwrap_or(Time::MAX));
            return;
        }
        red.arrival(match settings.min {
            Depth::Bytes(_) => self.queue_bytes as f64,
            Depth::Packets(_) => self.queue.len() as f64,
            Depth::Time(_) => work(self.queue_bytes as usize) as f64 / rate.max(1) as f64,
        });
    }

    /// How congestion is to be signalled with the packet that comes now, if it is.
    fn signal_on_arrival(&mut self, index: u64) -> Option<Signal> {
        match &mut self.aqm {
            AqmState::None | AqmState::CoDel(..) | AqmState::DualPi2(_) => None,
            AqmState::Red(red, signal) => red.signals(index).then_some(*signal),
            &mut AqmState::Step(threshold, signal) => {
                let found = self.sending.is_some() && self.exceeds(threshold, 0, 0);
                found.then_some(signal)
            }
        }
    }

    /// Signals congestion with a packet; true if it has been dropped for that.
    fn drops(&mut self, now: Time, index: u64, packet: &mut P, signal: Signal) -> bool {
        if signal != Signal::Drop && packet.mark_ce() {
            self.counters.marked += 1;
            self.record(now, index, None, packet, Event::Marked);
            return false;
        }
        if signal == Signal::MarkOnly {
            return false;
        }
        self.counters.dropped_aqm += 1;
        self.record(now, index, None, packet, Event::DroppedAqm);
        true
    }

    /// Whether packets wait for their turn from now on, as the channel is shared.
    pub(crate) fn share(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// From when on, `free` or later, a packet that waits for its turn could use it; none while the rate is 0 for good.
    pub(crate) fn could_begin(&self, free: Time) -> Option<Time> {
        let begin = self.limiter.end_of_pause(self.waits_since?.max(free));
        (begin != Time::MAX).then_some(begin)
    }

    /// When the packet will have been sent that is being sent.
    pub(crate) fn sending_until(&self) -> Option<Time> {
        let sending = self.sending.as_ref().filter(|_| self.waits_since.is_none());
        sending.map(|sending| sending.end)
    }

    /// The packet that waits for its turn is sent from `start` on, so many times.
    pub(crate) fn take_turn(&mut self, start: Time, times: u32) {
        self.waits_since = None;
        if let Some(sending) = &mut self.sending {
            sending.work *= u128::from(times);
            sending.start = start;
            (sending.end, sending.spare) = self.limiter.finish(start, sending.work, 0);
        }
    }

    /// Lets everything happen that happens inside up to `now`.
    pub(crate) fn advance(&mut self, now: Time) {
        while let Some(sending) = self.sending.take_if(|sending| sending.end <= now) {
            self.now = self.now.max(sending.end);
            self.leave(sending.waiting, sending.end);
            self.send_next(sending.end, sending.spare);
        }
        self.now = self.now.max(now);
    }

    /// Sends what waits, if anything does, after another packet.
    fn send_next(&mut self, now: Time, spare: u128) {
        self.advance_queues(now);
        while let Some((band, mut next)) = self.take_next() {
            self.queue_bytes -= next.bytes as u64;
            if self.is_dropped_by_dual(now, band, &mut next) {
                continue;
            }
            if let AqmState::CoDel(codel, signal) = &mut self.aqm {
                let is_last = self.queue_bytes <= self.largest as u64;
                let signal = *signal;
                if codel.leaving(now, now - next.since, is_last) == Verdict::Signal
                    && self.drops(now, next.index, &mut next.packet, signal)
                {
                    continue;
                }
            }
            return self.start_sending(next, now, spare);
        }
        self.idle_since = now;
    }

    fn waiting_packets(&self) -> usize {
        self.queue.len() + self.low.len()
    }

    /// The queue that a packet waits in.
    fn band(&self, packet: &P) -> Band {
        match &self.aqm {
            AqmState::DualPi2(_) => Band::of(packet.ecn()),
            _ => Band::Classic,
        }
    }

    fn heads(&self) -> Heads {
        Heads {
            low: self.low.front().map(|first| first.since),
            classic: self.queue.front().map(|first| first.since),
        }
    }

    /// Tells the management of two queues what has waited, before that changes.
    fn advance_queues(&mut self, now: Time) {
        let heads = self.heads();
        if let AqmState::DualPi2(dual) = &mut self.aqm {
            dual.advance(now, heads);
        }
    }

    /// The next packet to send, out of its queue.
    fn take_next(&mut self) -> Option<(Band, Waiting<P>)> {
        let heads = self.heads();
        let band = match &self.aqm {
            AqmState::DualPi2(dual) => dual.turn(heads)?,
            // Packets left in the second queue from the time before DualPI2 was turned off.
            _ if heads.low.is_some() => Band::Low,
            _ => Band::Classic,
        };
        let next = match band {
            Band::Low => self.low.pop_front()?,
            Band::Classic => {
                self.urgent = self.urgent.saturating_sub(1);
                self.queue.pop_front()?
            }
        };
        if let AqmState::DualPi2(dual) = &mut self.aqm {
            let both_wait = heads.low.is_some() && heads.classic.is_some();
            dual.sends(band, next.bytes, both_wait);
        }
        Some((band, next))
    }

    /// Signals congestion as two queues do with a packet that leaves one; true if it has been dropped for that.
    fn is_dropped_by_dual(&mut self, now: Time, band: Band, next: &mut Waiting<P>) -> bool {
        let AqmState::DualPi2(dual) = &self.aqm else {
            return false;
        };
        let signal = dual.signal(Dequeued {
            band,
            index: next.index,
            sojourn: now.saturating_sub(next.since),
            is_behind: next.is_behind,
        });
        signal.is_some_and(|signal| self.drops(now, next.index, &mut next.packet, signal))
    }

    fn start_sending(&mut self, waiting: Waiting<P>, start: Time, spare: u128) {
        let work = work(waiting.bytes);
        if self.shared {
            self.waits_since = Some(start);
            self.sending = Some(Sending {
                waiting,
                work,
                start,
                end: Time::MAX,
                spare: 0,
            });
            return;
        }
        let (end, left) = self.limiter.finish(start, work, spare);
        self.sending = Some(Sending {
            waiting,
            work: work.saturating_sub(spare),
            start,
            end,
            spare: left,
        });
    }

    /// What the channel does to a packet whose last bit has left the sender at `at`.
    fn leave(&mut self, waiting: Waiting<P>, at: Time) {
        let Waiting {
            index,
            bytes,
            mut packet,
            since,
            ..
        } = waiting;
        self.waits.note(at.saturating_sub(since));
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += bytes as u64;
        let flow = self.flows.of(|| packet.flow());
        let (seed, sent) = (flow.seed, flow.sent);
        flow.sent += 1;

        let leaving = Leaving {
            seed,
            index: sent,
            at,
            bytes,
        };
        let draws = |element| Draws::new(seed, element);
        let retries = self.config.retries;
        let failed = match retries.probability > 0.0 {
            true => failed_tries(&retries, draws(Element::Retry).within(sent)),
            false => 0,
        };
        let is_given_up = failed > u64::from(retries.limit);
        if self.loss.loses(&mut flow.channel, leaving) || is_given_up {
            self.counters.dropped_loss += 1;
            return self.record(at, index, Some(sent), &packet, Event::DroppedLoss);
        }
        if self.is_black(at) {
            self.counters.dropped_blackout += 1;
            return self.record(at, index, Some(sent), &packet, Event::DroppedBlackout);
        }
        if self.corrupt(draws(Element::Corruption), sent, &mut packet) {
            self.counters.corrupted += 1;
            self.record(at, index, Some(sent), &packet, Event::Corrupted);
        }
        let held_back = draws(Element::Reorder).chance(sent, self.config.reorder.probability);
        if held_back {
            self.counters.held_back += 1;
            self.record(at, index, Some(sent), &packet, Event::HeldBack);
        }
        let again = nanos(retries.interval).saturating_mul(failed);
        let shift = self.shift(at);
        let due = |element, link: &mut Self| {
            let jitter = draws(element).up_to(sent, nanos(link.config.jitter.max));
            let extra = jitter.saturating_add(again).saturating_add(shift);
            link.due(at, extra, held_back)
        };
        let arrival = due(Element::Jitter, self);
        if draws(Element::Duplication).chance(sent, self.config.duplication) {
            let copy = packet.duplicate();
            self.counters.duplicated += 1;
            self.record(at, index, Some(sent), &packet, Event::Duplicated);
            self.fly(index, packet, arrival);
            let arrival = due(Element::DuplicateJitter, self);
            self.fly(index, copy, arrival);
        } else {
            self.fly(index, packet, arrival);
        }
    }

    /// What the route of this time adds to the delay.
    fn shift(&self, at: Time) -> Time {
        self.config.shift.map_or(0, |shift| {
            let draws = Draws::new(self.config.seed, Element::Shift);
            draws.up_to(at / nanos(shift.every).max(1), nanos(shift.max))
        })
    }

    /// Whether there is a blackout at this time.
    fn is_black(&self, at: Time) -> bool {
        let blackouts = &self.config.blackouts;
        let at = match self.config.blackouts_repeat.map(nanos) {
            Some(repeat) => at % repeat,
            None => at,
        };
        blackouts
            .iter()
            .any(|blackout| (nanos(blackout.start)..nanos(blackout.end)).contains(&at))
    }

    fn corrupt(&self, draws: Draws, sent: u64, packet: &mut P) -> bool {
        let bits = packet.corruptible_bits();
        if bits == 0 || !draws.chance(sent, self.config.corruption.probability) {
            return false;
        }
        let places = draws.within(sent);
        // Neighbouring places are spread over the packet, so that no flip undoes another unless
        // there are more flips than bits.
        let first = places.up_to(0, bits - 1);
        let flips = u64::from(self.config.corruption.bits.max(1)).min(bits);
        let stride = bits / flips;
        for flip in 0..flips {
            let offset = flip * stride + places.up_to(flip + 1, stride - 1);
            packet.flip_bit((first + offset) % bits);
        }
        true
    }

    /// When a packet arrives that is sent at `at` and delayed by `extra` at random.
    fn due(&mut self, at: Time, extra: Time, hold: bool) -> Time {
        let mut due = at
            .saturating_add(nanos(self.config.delay))
            .saturating_add(extra);
        if self.config.jitter.order == Order::Kept {
            due = due.max(self.due_latest);
            self.due_latest = due;
        }
        if hold {
            due = due.saturating_add(nanos(self.config.reorder.hold));
        }
        due
    }

    /// Puts a packet on its way.
    fn fly(&mut self, index: u64, packet: P, due: Time) {
        let delivery = Delivery {
            at: due,
            index,
            packet,
        };
        if self.in_flight.back().is_none_or(|last| last.at <= due) {
            self.in_flight.push_back(delivery);
        } else {
            let place = self.in_flight.partition_point(|other| other.at <= due);
            self.in_flight.insert(place, delivery);
        }
    }

    fn record(&mut self, at: Time, offered: u64, sent: Option<u64>, packet: &P, event: Event) {
        self.log.push(|| Record {
            at,
            offered,
            sent,
            flow: packet.flow(),
            sequence: packet.sequence(),
            bytes: packet.ip_len(),
            event,
        });
    }
}

/// Whether one direction can have these settings by itself.
fn validate(config: &LinkConfig) -> Result<(), ConfigError> {
    match config.radio {
        Some(_) => Err(ConfigError::RadioOfOne),
        None => config.validate(),
    }
}

/// What a path does to the ECN codepoint of a packet; whether the packet passes.
fn apply(rule: EcnRule, packet: &mut impl Packet) -> bool {
    match (rule, packet.ecn()) {
        (EcnRule::Drop, ecn) => return ecn == ip::NOT_ECT,
        (EcnRule::Clear, ecn) if ecn != ip::NOT_ECT => packet.set_ecn(ip::NOT_ECT),
        (EcnRule::Classic, ip::ECT_1) => packet.set_ecn(ip::ECT_0),
        (EcnRule::Mark, _) => _ = packet.mark_ce(),
        (EcnRule::Keep | EcnRule::Clear | EcnRule::Classic, _) => {}
    }
    true
}

/// How many tries of a packet fail, of those that there may be.
fn failed_tries(retries: &Retries, draws: Draws) -> u64 {
    let tries = 0..=u64::from(retries.limit);
    let failed = tries.take_while(|&n| draws.chance(n, retries.probability));
    failed.count() as u64
}
