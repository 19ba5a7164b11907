//! A model of the sender and the receiver of Linux, for one endless download: CUBIC with HyStart or BBR, RACK with
//! its window for reordering, PRR, and undoing by D-SACK and by timestamps (Eifel).
//!
//! It counts in whole segments, and numbers them from 0.

pub mod bbr;

use std::collections::{BTreeSet, VecDeque};

use sphinx_proto::Nanos as Time;

use self::bbr::{Bbr, Change, Stamp};
use crate::MS;

const RTO_MIN: Time = 200 * MS;
const DELAYED_ACK: Time = 40 * MS;
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;
/// What a Reno flow that falls to [`CUBIC_BETA`] too adds to its window in a round trip to have the same mean as one that falls to a half.
const RENO_ALPHA: f64 = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
const STEADY_WINDOW: f64 = 1000.0;
/// SACK blocks beside timestamps.
const BLOCKS: usize = 3;

/// An acknowledgement: everything before `next`, and `blocks` behind it.
#[derive(Clone, Debug, Default)]
pub struct Ack {
    /// The segment that is expected.
    pub next: u64,
    /// From, and to before which; the first one may be a D-SACK.
    pub blocks: Vec<(u64, u64)>,
    /// The timestamp that it echoes, in milliseconds.
    pub echo: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Time,
    again: bool,
    sacked: bool,
    lost: bool,
    stamp: Stamp,
}

/// What is undone if a recovery was not needed.
#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: f64,
    threshold: f64,
    /// Segments sent again that no D-SACK has called unneeded yet.
    open: u64,
    /// When the first of them was sent, in milliseconds.
    since: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    high: u64,
    delivered: f64,
    out: f64,
    prior: f64,
}

/// Who sends segments.
#[derive(Debug)]
pub struct Sender {
    /// Segments that the application has written.
    pub written: u64,
    /// Losses do not make it slower, as those of BBR at a fraction of the link's rate.
    pub steady: bool,
    /// The receiver has room for those before this one.
    pub edge: u64,
    una: u64,
    next: u64,
    flights: VecDeque<Sent>,
    pipe: u64,
    lost: u64,
    sacked: u64,
    /// Behind the last segment that was SACKed.
    front: u64,
    cwnd: f64,
    threshold: f64,
    recovery: Option<Recovery>,
    undo: Option<Undo>,
    srtt: f64,
    variation: f64,
    rtt_min: Time,
    rack_sent: Time,
    rack_rtt: Time,
    reordered: bool,
    reorder_steps: u64,
    widened_until: u64,
    reorder_at: Option<Time>,
    retransmit_at: Option<Time>,
    backoff: u32,
    // CUBIC.
    largest: f64,
    epoch: Option<(Time, f64)>,
    origin: f64,
    /// Window of a Reno flow since then, which CUBIC does not fall behind (RFC 9438, section 4.3).
    reno: f64,
    bbr: Option<Bbr>,
    // HyStart.
    round_end: u64,
    round_start: Time,
    last_ack: Time,
    round_least: Time,
    round_samples: u32,
    // For people.
    /// Losses that it has seen, several at a time, and slowed down for.
    pub recoveries: u64,
    /// Recoveries that were undone, as nothing had been lost.
    pub undone: u64,
    /// Segments that it has sent again.
    pub sent_again: u64,
    /// Timeouts: times without any answer.
    pub timeouts: u64,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            written: u64::MAX,
            steady: false,
            edge: u64::MAX,
            una: 0,
            next: 0,
            flights: VecDeque::new(),
            pipe: 0,
            lost: 0,
            sacked: 0,
            front: 0,
            cwnd: 10.0,
            threshold: f64::MAX,
            recovery: None,
            undo: None,
            srtt: 0.0,
            variation: 0.0,
            rtt_min: Time::MAX,
            rack_sent: 0,
            rack_rtt: 0,
            reordered: false,
            reorder_steps: 1,
            widened_until: 0,
            reorder_at: None,
            retransmit_at: None,
            backoff: 0,
            largest: 0.0,
            epoch: None,
            origin: 0.0,
            reno: 0.0,
            bbr: None,
            round_end: 0,
            round_start: 0,
            last_ack: 0,
            round_least: Time::MAX,
            round_samples: 0,
            recoveries: 0,
            undone: 0,
            sent_again: 0,
            timeouts: 0,
        }
    }
}

impl Sender {
    /// A sender with BBR.
    pub fn with_bbr() -> Sender {
        Sender {
            bbr: Some(Bbr::new()),
            ..Sender::default()
        }
    }

    /// The oldest segment that is not acknowledged.
    pub fn oldest(&self) -> u64 {
        self.una
    }

    /// When to call again: `now` where something may go.
    pub fn next_event(&self, now: Time) -> Option<Time> {
        let sends = self.may_send().then(|| now.max(self.paced()));
        let timers = self.reorder_at.into_iter().chain(self.retransmit_at);
        timers.chain(sends).min()
    }

    /// When the next segment may go at the pacing rate.
    fn paced(&self) -> Time {
        self.bbr.as_ref().map_or(0, Bbr::next_at)
    }

    fn may_send(&self) -> bool {
        let window = match (&self.bbr, self.steady) {
            (Some(bbr), _) => bbr.window(),
            (None, true) => STEADY_WINDOW,
            (None, false) => self.cwnd.max(1.0),
        };
        let is_lost = |it: &Sent| it.lost && !it.sacked;
        let owes = || self.recovery.is_some() && self.flights.iter().any(is_lost);
        self.pipe as f64 + 1.0 <= window && (self.next < self.written.min(self.edge) || owes())
    }

    /// The next segment that may go.
    pub fn poll(&mut self, now: Time) -> Option<u64> {
        if !self.may_send() || self.paced() > now {
            return None;
        }
        let pipe = self.pipe;
        let stamp = self.bbr.as_mut().map(|it| it.send(now, pipe));
        let stamp = stamp.unwrap_or_default();
        let lost = self.flights.iter().position(|it| it.lost && !it.sacked);
        let lost = lost.filter(|_| self.recovery.is_some());
        let number = match lost {
            Some(index) => {
                self.flights[index] = Sent {
                    at: now,
                    again: true,
                    sacked: false,
                    lost: false,
                    stamp,
                };
                self.sent_again += 1;
                if let Some(undo) = &mut self.undo {
                    undo.open += 1;
                    undo.since.get_or_insert(now / MS);
                }
                self.una + index as u64
            }
            None => {
                self.flights.push_back(Sent {
                    at: now,
                    again: false,
                    sacked: false,
                    lost: false,
                    stamp,
                });
                self.next += 1;
                self.next - 1
            }
        };
        self.pipe += 1;
        if let Some(recovery) = &mut self.recovery {
            recovery.out += 1.0;
        }
        self.retransmit_at.get_or_insert(now + self.rto());
        Some(number)
    }

    fn rto(&self) -> Time {
        let base = match self.srtt {
            0.0 => 1000 * MS,
            srtt => srtt as Time + ((4.0 * self.variation) as Time).max(RTO_MIN),
        };
        base << self.backoff.min(8)
    }

    /// The time of [`next_event`](Self::next_event) has come.
    pub fn timeout(&mut self, now: Time) {
        if self.reorder_at.is_some_and(|at| at <= now) {
            self.reorder_at = None;
            self.find_losses(now);
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.timeouts += 1;
            self.backoff += 1;
            self.reduce();
            for flight in &mut self.flights {
                flight.lost = !flight.sacked;
            }
            self.pipe = 0;
            self.cwnd = 1.0;
            if let Some(bbr) = &mut self.bbr {
                bbr.time_out();
            }
            self.retransmit_at = Some(now + self.rto());
        }
    }

    /// A recovery begins.
    fn reduce(&mut self) {
        self.recoveries += 1;
        self.undo = Some(Undo {
            cwnd: self.cwnd,
            threshold: self.threshold,
            open: 0,
            since: None,
        });
        self.largest = match self.cwnd < self.largest {
            true => self.cwnd * (1.0 + CUBIC_BETA) / 2.0,
            false => self.cwnd,
        };
        self.epoch = None;
        self.recovery = Some(Recovery {
            high: self.next,
            prior: self.cwnd,
            ..Recovery::default()
        });
        self.threshold = (self.cwnd * CUBIC_BETA).max(2.0);
    }

    /// An acknowledgement has arrived.
    pub fn acknowledge(&mut self, now: Time, ack: &Ack) {
        let (before, mut delivered, mut newest) = (self.front, 0_u64, None);
        let pipe_before = self.pipe;
        let mut blocks = &ack.blocks[..];
        if let Some((&(left, right), rest)) = blocks.split_first()
            && (right <= ack.next || rest.first().is_some_and(|it| it.0 <= left && right <= it.1))
        {
            self.see_duplicate(right - left);
            blocks = rest;
        }
        for &(left, right) in blocks {
            for number in left.max(self.una)..right.min(self.next) {
                let flight = &mut self.flights[(number - self.una) as usize];
                if flight.sacked {
                    continue;
                }
                let old = *flight;
                self.pipe -= u64::from(!flight.lost);
                (flight.sacked, flight.lost) = (true, false);
                self.sacked += 1;
                delivered += 1;
                self.see_delivered(now, old, number < before);
                newest = (!old.again).then_some(old.at).or(newest);
            }
            self.front = self.front.max(right.min(self.next));
        }
        let acked = ack.next.saturating_sub(self.una);
        for _ in 0..acked {
            let Some(flight) = self.flights.pop_front() else {
                break;
            };
            if flight.sacked {
                self.sacked -= 1;
            } else {
                self.pipe -= u64::from(!flight.lost);
                delivered += 1;
                self.see_delivered(now, flight, self.una < before);
            }
            if !flight.again && !flight.sacked {
                newest = Some(flight.at);
            }
            self.una += 1;
        }
        if let Some(at) = newest {
            self.sample(now, now - at);
        }
        if acked > 0 {
            self.backoff = 0;
            let waits = self.next > self.una;
            self.retransmit_at = waits.then(|| now + self.rto());
        }
        let lost_before = self.lost;
        self.find_losses(now);
        self.end_recovery(ack, acked > 0);
        if let Some(bbr) = &mut self.bbr {
            let change = Change {
                delivered,
                lost: self.lost - lost_before,
                before: pipe_before,
                pipe: self.pipe,
                rtt: newest.map(|at| now - at),
                recovers: self.recovery.is_some(),
            };
            bbr.acknowledge(now, &change);
        }
        match &mut self.recovery {
            Some(recovery) => {
                // PRR.
                recovery.delivered += delivered as f64;
                let room = self.threshold - self.pipe as f64;
                let mut send = match room < 0.0 {
                    true => {
                        (recovery.delivered * self.threshold / recovery.prior).ceil() - recovery.out
                    }
                    false => {
                        let owed = (recovery.delivered - recovery.out).max(delivered as f64);
                        (owed + f64::from(acked > 0)).min(room)
                    }
                };
                if recovery.out == 0.0 {
                    send = send.max(1.0);
                }
                self.cwnd = self.pipe as f64 + send.max(0.0);
            }
            None if acked > 0 => self.grow(now, acked as f64),
            None => {}
        }
    }

    fn see_duplicate(&mut self, count: u64) {
        self.reordered = true;
        // Once in a round trip (RFC 8985 §6.2 step 4).
        if self.una >= self.widened_until {
            self.reorder_steps = (self.reorder_steps + 1).min(255);
            self.widened_until = self.next;
        }
        if let Some(undo) = &mut self.undo
            && undo.open > 0
        {
            undo.open = undo.open.saturating_sub(count);
            if undo.open == 0 {
                self.take_back();
            }
        }
    }

    fn take_back(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.undone += 1;
            self.cwnd = self.cwnd.max(undo.cwnd);
            self.threshold = self.threshold.max(undo.threshold);
            self.recovery = None;
            for flight in &mut self.flights {
                self.pipe += u64::from(flight.lost && !flight.sacked);
                flight.lost = false;
            }
        }
    }

    fn end_recovery(&mut self, ack: &Ack, advanced: bool) {
        let Some(recovery) = self.recovery else {
            return;
        };
        // An answer to what was sent before anything was sent again.
        let early = |undo: &Undo| undo.since.is_none_or(|since| ack.echo < since);
        if advanced && self.undo.as_ref().is_some_and(early) {
            return self.take_back();
        }
        if self.una >= recovery.high {
            self.recovery = None;
            self.cwnd = self.threshold;
            // What was lost since then is another one.
            if self.flights.iter().any(|it| it.lost) {
                self.reduce();
            }
        }
    }

    fn see_delivered(&mut self, now: Time, flight: Sent, out_of_order: bool) {
        if let Some(bbr) = &mut self.bbr {
            bbr.deliver(now, flight.stamp, flight.at);
        }
        if out_of_order && !flight.again {
            self.reordered = true;
        }
        let rtt = now - flight.at;
        if flight.again && rtt < self.rtt_min {
            return;
        }
        if flight.at >= self.rack_sent {
            (self.rack_sent, self.rack_rtt) = (flight.at, rtt);
        }
    }

    /// RACK.
    fn find_losses(&mut self, now: Time) {
        self.reorder_at = None;
        let window = match !self.reordered && (self.recovery.is_some() || self.sacked >= 3) {
            true => 0,
            false => (self.rtt_min / 4)
                .saturating_mul(self.reorder_steps)
                .min(self.srtt as Time),
        };
        let mut any = false;
        for flight in &mut self.flights {
            if flight.sacked || flight.lost || flight.at >= self.rack_sent {
                continue;
            }
            let due = flight.at + self.rack_rtt + window;
            if due <= now {
                flight.lost = true;
                self.pipe -= 1;
                self.lost += 1;
                any = true;
            } else {
                self.reorder_at = Some(self.reorder_at.map_or(due, |at| at.min(due)));
            }
        }
        if any && self.recovery.is_none() {
            self.reduce();
        }
    }

    fn sample(&mut self, now: Time, rtt: Time) {
        self.rtt_min = self.rtt_min.min(rtt);
        let sample = rtt as f64;
        if self.srtt == 0.0 {
            (self.srtt, self.variation) = (sample, sample / 2.0);
        } else {
            self.variation = 0.75 * self.variation + 0.25 * (self.srtt - sample).abs();
            self.srtt = 0.875 * self.srtt + 0.125 * sample;
        }
        // HyStart.
        if self.cwnd >= self.threshold || self.cwnd < 16.0 {
            return;
        }
        if self.una >= self.round_end {
            (self.round_end, self.round_start) = (self.next, now);
            (self.round_least, self.round_samples) = (Time::MAX, 0);
            self.last_ack = now;
        }
        if now - self.last_ack <= 2 * MS {
            self.last_ack = now;
            if now - self.round_start > self.rtt_min / 2 {
                self.threshold = self.cwnd;
            }
        }
        self.round_samples += 1;
        if self.round_samples <= 8 {
            self.round_least = self.round_least.min(rtt);
        } else if self.round_least > self.rtt_min + (self.rtt_min / 8).clamp(4 * MS, 16 * MS) {
            self.threshold = self.cwnd;
        }
    }

    fn grow(&mut self, now: Time, acked: f64) {
        // What is not used does not grow (RFC 7661, as Linux has it).
        let flight = self.pipe as f64 + acked;
        let is_used = match self.cwnd < self.threshold {
            true => self.cwnd < 2.0 * flight,
            false => self.cwnd < flight + 1.0,
        };
        if !is_used && self.next >= self.edge {
            return;
        }
        if self.cwnd < self.threshold {
            self.cwnd += acked;
            return;
        }
        let (start, k) = *self.epoch.get_or_insert_with(|| {
            let k = match self.cwnd < self.largest {
                true => ((self.largest - self.cwnd) / CUBIC_C).cbrt(),
                false => 0.0,
            };
            self.origin = self.largest.max(self.cwnd);
            self.reno = self.cwnd;
            (now, k)
        });
        let t = (now - start + self.rtt_min) as f64 / 1e9 - k;
        let target = self.origin + CUBIC_C * t * t * t;
        let step = match target > self.cwnd {
            true => (target - self.cwnd) / self.cwnd,
            false => 0.01 / self.cwnd,
        };
        self.reno += RENO_ALPHA * acked / self.cwnd;
        let step = step.max((self.reno - self.cwnd) / self.cwnd);
        self.cwnd += acked * step.min(0.5);
    }
}

/// Who acknowledges them: each second one, and at once what is not in order.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Segments that have arrived, up to the first one that is missing.
    pub expected: u64,
    behind: BTreeSet<u64>,
    recent: VecDeque<u64>,
    waiting: u32,
    at: Option<Time>,
    echo: u64,
}

impl Receiver {
    /// When an acknowledgement is due, if nothing more arrives.
    pub fn next_event(&self) -> Option<Time> {
        self.at
    }

    /// The acknowledgement that is due.
    pub fn timeout(&mut self, now: Time) -> Option<Ack> {
        self.at
            .is_some_and(|at| at <= now)
            .then(|| self.answer(None))
    }

    /// A segment has arrived, sent at `stamp` in milliseconds: the acknowledgement that leaves at once.
    pub fn receive(&mut self, now: Time, number: u64, stamp: u64) -> Option<Ack> {
        if number < self.expected || self.behind.contains(&number) {
            return Some(self.answer(Some(number)));
        }
        if stamp + 1 < self.echo {
            // PAWS.
            return Some(self.answer(None));
        }
        if number == self.expected {
            self.echo = self.echo.max(stamp);
        }
        let whole = self.behind.is_empty() && number == self.expected;
        self.behind.insert(number);
        self.recent.push_front(number);
        while self.behind.remove(&self.expected) {
            self.expected += 1;
        }
        let expected = self.expected;
        self.recent.retain(|it| *it >= expected);
        self.recent.truncate(64);
        self.waiting += 1;
        if !whole || self.waiting >= 2 {
            return Some(self.answer(None));
        }
        self.at = Some(now + DELAYED_ACK);
        None
    }

    fn answer(&mut self, twice: Option<u64>) -> Ack {
        (self.waiting, self.at) = (0, None);
        let mut blocks: Vec<(u64, u64)> = twice.map(|n| (n, n + 1)).into_iter().collect();
        for &number in &self.recent {
            if blocks.len() == BLOCKS {
                break;
            }
            if blocks
                .iter()
                .skip(usize::from(twice.is_some()))
                .any(|it| it.0 <= number && number < it.1)
            {
                continue;
            }
            let mut block = (number, number + 1);
            while self.behind.contains(&(block.0.wrapping_sub(1))) {
                block.0 -= 1;
            }
            while self.behind.contains(&block.1) {
                block.1 += 1;
            }
            blocks.push(block);
        }
        Ack {
            next: self.expected,
            blocks,
            echo: self.echo,
        }
    }
}
