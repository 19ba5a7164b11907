//! Delivery-rate samples from the receiver's clock.
//!
//! Packets are settled in packet-number order: once every packet up to the one whose arrival time
//! a SACK carried is known to be acknowledged or lost, that packet becomes an *anchor*. Between two
//! anchors the numbers of bytes sent, delivered and lost are exact, whatever the SACKs did on the
//! way back, and the time is the longer of the send and the receive interval, as in
//! draft-ietf-ccwg-bbr, section 4.1.2. A sample never spans an idle gap or a change of phase.
//!
//! Where the delay varies by itself ([`super::jitter`]), a receive interval is uncertain, and so is its rate:
//! raising an estimate asks for the least that it can be, lowering it for the most.

use std::collections::VecDeque;

use crate::PacketNumber;

use super::bbr::Phase;
use super::jitter::{Jitter, spread_within};
use super::path::RotatingMin;
use super::{AckSummary, Arrival, MS, Nanos, SEC, Time, rate_of, time_for};

/// Noise of one receive interval: two kernel timestamps, receive coalescing.
pub(super) const CLOCK_NOISE: Nanos = MS / 10;
/// A pause in sending longer than this (and than four packets at the pacing rate) is an idle gap.
const IDLE_GAP: Nanos = 2 * MS;
/// Arrivals of one sample that are compared with each other.
const ARRIVALS_MAX: usize = 256;
/// Part of the spread of delays that pads a receive interval. (All of it would hide capacity from probes.)
const PADDING: Nanos = 2;
/// How long the fastest packet is remembered.
const MEMORY: Nanos = 5 * SEC;
/// In this part of a sample its beginning may still change.
const START_PART: Nanos = 4;
/// Packets remembered at most; older ones are forgotten unsettled.
const RECORDS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pending,
    Acked,
    Lost,
}

/// How long a sample has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) least: Nanos,
    /// And in multiples of what jitter may make of its receive interval.
    pub(super) jitters: Nanos,
}

/// Packets sent in one phase without an idle gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) phase: Phase,
}

impl Run {
    pub(super) fn new(id: u64, phase: Phase) -> Self {
        Self { id, phase }
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    pn: PacketNumber,
    sent_at: Time,
    bytes: u32,
    run: Run,
    fate: Fate,
    /// The packet left later than `sent_at` says.
    is_late: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    pn: PacketNumber,
    received_at: Time,
    queue: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    pn: PacketNumber,
    sent_at: Time,
    received_at: Time,
    queue: Nanos,
    /// How much longer it was under way than the fastest packet of late: in a queue, or held back.
    held: Nanos,
    run: Run,
    is_late: bool,
    totals: Totals,
}

/// Settled packets, in order of packet number.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    packets: u64,
    packets_lost: u64,
    delivered: u64,
    lost: u64,
}

/// What happened between two anchors of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) run: Run,
    /// Packets settled, lost ones included.
    pub(super) packets: u64,
    pub(super) packets_lost: u64,
    pub(super) delivered_bytes: u64,
    pub(super) lost_bytes: u64,
    pub(super) send_interval: Nanos,
    pub(super) recv_interval: Nanos,
    /// By how much the receive interval may be wrong because the delay varies without a queue.
    pub(super) jitter: Nanos,
    /// The application left gaps in this run.
    pub(super) app_limited: bool,
    /// Its first or its last packet left late.
    pub(super) is_late: bool,
    /// The sample is as long as the controller asked for; the next one starts afresh.
    pub(super) window_full: bool,
}

impl Sample {
    /// The longer of both intervals. The receive interval is padded by its noise, so that noise
    /// cannot raise an estimate.
    fn interval(&self) -> Nanos {
        self.send_interval
            .max(self.recv_interval.saturating_add(self.noise()))
    }

    fn noise(&self) -> Nanos {
        CLOCK_NOISE + self.jitter / PADDING
    }

    /// Rate if every lost packet had crossed the bottleneck.
    pub(super) fn full_rate(&self) -> f64 {
        rate_of(
            (self.delivered_bytes + self.lost_bytes) as f64,
            self.interval(),
        )
    }

    /// `rate` of this sample, or what it would be if the delay had not varied, up to `most`.
    pub(super) fn rate_at_most(&self, rate: f64, most: f64) -> f64 {
        if self.jitter == 0 {
            return rate;
        }
        let received = self.recv_interval.saturating_sub(self.jitter);
        // What makes the interval shorter does not make what was lost arrive.
        let shortest = self.send_interval.max(received.saturating_add(CLOCK_NOISE));
        let highest = rate * self.interval() as f64 / shortest as f64;
        rate.max(highest.min(most))
    }

    /// Rate of what arrived.
    pub(super) fn delivered_rate(&self) -> f64 {
        rate_of(self.delivered_bytes as f64, self.interval())
    }

    /// Lost share of the packets.
    pub(super) fn loss(&self) -> f64 {
        self.packets_lost as f64 / self.packets.max(1) as f64
    }

    /// Packets left the link slower than they were sent, by more than the share `1 / part` and the
    /// noise, and the delay does not vary by as much: the link was the limit. Between packets that left late that cannot be known.
    pub(super) fn stretched(&self, part: Nanos) -> bool {
        let tolerance = (self.send_interval / part.max(1)).saturating_add(CLOCK_NOISE);
        !self.is_late
            && self.recv_interval.saturating_sub(self.jitter)
                > self.send_interval.saturating_add(tolerance)
    }
}

/// One settled anchor: packets since the previous anchor, and the sample so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    /// Run of the anchor.
    pub(super) run: Run,
    /// Packets of this run settled since the previous anchor.
    pub(super) packets: u64,
    pub(super) packets_lost: u64,
    /// Bytes delivered until the anchor, from any origin, and when it arrived.
    pub(super) delivered_until: u64,
    pub(super) received_at: Time,
    /// Larger of the queueing delays at both anchors.
    pub(super) queue: Nanos,
    /// The application did not fill the rate when the anchor left.
    pub(super) app_limited: bool,
    /// Everything since the sample began, if the anchor is in its run.
    pub(super) sample: Option<Sample>,
}

/// Turns SACKs into [`Sample`]s.
#[derive(Debug)]
pub(super) struct RateSampler {
    records: VecDeque<Record>,
    /// Anchors whose predecessors are not all settled.
    waiting: VecDeque<Waiting>,
    totals: Totals,
    /// Where the present sample began.
    start: Option<Anchor>,
    latest: Option<Anchor>,
    jitter: Jitter,
    /// Shortest time under way, by clocks that need not agree.
    fastest: RotatingMin,
    /// Of a sample of start-up, bytes delivered at each anchor and its time.
    arrivals: Vec<(u64, Time)>,
    last: Totals,
    last_run: u64,
    last_queue: Nanos,
    run: Run,
    last_sent: Option<Time>,
    last_pn: PacketNumber,
    app_limited_pn: Option<PacketNumber>,
}

impl RateSampler {
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            records: VecDeque::new(),
            waiting: VecDeque::new(),
            totals: Totals::default(),
            start: None,
            latest: None,
            jitter: Jitter::default(),
            fastest: RotatingMin::default(),
            arrivals: Vec::new(),
            last: Totals::default(),
            last_run: 0,
            last_queue: 0,
            run: Run::new(0, phase),
            last_sent: None,
            last_pn: PacketNumber::ZERO,
            app_limited_pn: None,
        }
    }

    /// Begins a new run: no sample will mix packets from before and after. Returns its number.
    pub(super) fn start_run(&mut self, phase: Phase) -> u64 {
        self.run = Run::new(self.run.id.wrapping_add(1), phase);
        self.run.id
    }

    /// Number of the latest packet sent.
    pub(super) fn last_pn(&self) -> PacketNumber {
        self.last_pn
    }

    /// A round trip has passed.
    pub(super) fn on_round(&mut self) {
        self.jitter.on_round();
    }

    /// By how much the delays of two packets may differ without a queue.
    pub(super) fn jitter(&self) -> Nanos {
        self.jitter.spread()
    }

    /// Records a packet; after an idle gap it starts a new run.
    pub(super) fn on_sent(&mut self, now: Time, pn: PacketNumber, bytes: u32, pacing_rate: f64) {
        let gap = IDLE_GAP.max(time_for(4.0 * f64::from(bytes), pacing_rate));
        let idle = self.last_sent.is_some_and(|t| now.saturating_sub(t) > gap);
        if idle {
            self.run.id = self.run.id.wrapping_add(1);
        }
        self.last_sent = Some(now);
        self.last_pn = pn;
        if self.records.len() >= RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(Record {
            pn,
            sent_at: now,
            bytes,
            run: self.run,
            fate: Fate::Pending,
            is_late: false,
        });
    }

    /// Packets sent so far were limited by the application.
    pub(super) fn on_app_limited(&mut self) {
        self.app_limited_pn = Some(self.last_pn);
    }

    /// Whether this packet was sent while the application had too little data.
    pub(super) fn is_app_limited(&self, pn: PacketNumber) -> bool {
        self.app_limited_pn.is_some_and(|last| pn <= last)
    }

    /// What was sent since `from` left later than that, nobody knows how much. A sample that begins or ends with it cannot show a link that is slower than was
    /// thought; what left late in its middle does not matter.
    pub(super) fn on_late(&mut self, from: Time) {
        let records = self.records.iter_mut().rev();
        for record in records.take_while(|record| record.sent_at >= from) {
            record.is_late = true;
        }
    }

    /// Forgets every packet in flight: nothing will be learned from them.
    pub(super) fn forget(&mut self) {
        self.records.clear();
        self.waiting.clear();
        self.start = None;
        self.latest = None;
    }

    /// Applies a SACK; `queue` is the queueing delay that its arrival shows.
    pub(super) fn on_ack(&mut self, ack: &AckSummary<'_>, queue: Nanos) {
        for packet in ack.acked {
            self.mark(packet.pn, Fate::Acked);
        }
        for packet in ack.lost {
            self.mark(packet.pn, Fate::Lost);
        }
        if let Some(arrival) = ack.arrival {
            let newest = self
                .waiting
                .back()
                .map(|w| w.pn)
                .or(self.start.map(|s| s.pn));
            if newest.is_none_or(|pn| arrival.pn > pn) {
                let Arrival { pn, received_at } = arrival;
                self.waiting.push_back(Waiting {
                    pn,
                    received_at,
                    queue,
                });
            }
        }
    }

    /// The next anchor that has been settled; call until there is none. The sample restarts at
    /// this anchor if it is long enough (`span`) and has `packets`. No link is believed to be faster than `fastest`.
    pub(super) fn next_settled(
        &mut self,
        span: Span,
        packets: u64,
        fastest: f64,
    ) -> Option<Settled> {
        loop {
            while self
                .waiting
                .front()
                .is_some_and(|w| self.records.front().is_none_or(|r| r.pn > w.pn))
            {
                // The anchor's record was forgotten.
                self.waiting.pop_front();
            }
            let record = *self.records.front()?;
            if record.fate == Fate::Pending {
                return None;
            }
            self.records.pop_front();
            if record.run.id != self.last_run {
                // What an earlier run lost between anchors says nothing about this one.
                self.last_run = record.run.id;
                self.last = self.totals;
            }
            self.totals.packets += 1;
            if record.fate == Fate::Acked {
                self.totals.delivered += u64::from(record.bytes);
            } else {
                self.totals.packets_lost += 1;
                self.totals.lost += u64::from(record.bytes);
            }
            if let Some(&waiting) = self.waiting.front()
                && waiting.pn == record.pn
            {
                self.waiting.pop_front();
                let anchor = self.anchor(record, waiting, fastest);
                return Some(self.settle(anchor, span, packets));
            }
        }
    }

    /// The next anchor; compares it with the one before.
    fn anchor(&mut self, record: Record, waiting: Waiting, fastest: f64) -> Anchor {
        // A packet that takes as long as the fastest one was not held back; the clocks of the ends need not agree.
        let under_way = waiting.received_at.wrapping_sub(record.sent_at) as i64;
        let now = waiting.received_at.as_nanos();
        let least = self.fastest.update(now, MEMORY, under_way);
        let anchor = Anchor {
            held: under_way.saturating_sub(least).max(0) as Nanos,
            pn: record.pn,
            sent_at: record.sent_at,
            received_at: waiting.received_at,
            queue: waiting.queue,
            run: record.run,
            is_late: record.is_late,
            totals: self.totals,
        };
        let is_late = |latest: &Anchor| latest.is_late || anchor.is_late;
        let before = self.latest.filter(|latest| latest.run == anchor.run);
        match before.filter(|latest| !is_late(latest)) {
            Some(latest) => {
                let bytes = anchor.totals.delivered - latest.totals.delivered;
                self.jitter.on_arrivals(
                    anchor.sent_at.saturating_sub(latest.sent_at),
                    time_for(bytes as f64, fastest),
                    anchor.received_at.saturating_sub(latest.received_at),
                );
            }
            None => self.jitter.interrupt(),
        }
        self.latest = Some(anchor);
        anchor
    }

    /// Jitter that counts for the sample up to `anchor`. In start-up little else is known than the sample itself.
    fn sample_jitter(&mut self, anchor: &Anchor) -> Nanos {
        let known = self.jitter.spread();
        if anchor.run.phase != Phase::Startup || self.arrivals.len() >= ARRIVALS_MAX {
            return known;
        }
        let arrival = (anchor.totals.delivered, anchor.received_at);
        self.arrivals.push(arrival);
        known.max(spread_within(&self.arrivals))
    }

    fn settle(&mut self, anchor: Anchor, span: Span, packets: u64) -> Settled {
        let mut start = self.start.filter(|s| s.run == anchor.run);
        if self.jitter.spread() > 0
            && anchor.run.phase != Phase::Startup
            && let Some(first) = start
            && anchor.held < first.held
            && anchor.received_at.saturating_sub(first.received_at) < span.least / START_PART
        {
            // It begins with a packet that was held back less, and tells more.
            self.start = Some(anchor);
            start = None;
        }
        let jitter = start.map_or(0, |s| {
            let known = self.sample_jitter(&anchor);
            match anchor.run.phase {
                Phase::Startup => known,
                _ => known.min(s.held.max(anchor.held)),
            }
        });
        let window = span.least.max(span.jitters.saturating_mul(jitter));
        let is_late = anchor.is_late || start.is_some_and(|s| s.is_late);
        let sample = start.map(|s| Sample {
            run: anchor.run,
            packets: anchor.totals.packets - s.totals.packets,
            packets_lost: anchor.totals.packets_lost - s.totals.packets_lost,
            delivered_bytes: anchor.totals.delivered - s.totals.delivered,
            lost_bytes: anchor.totals.lost - s.totals.lost,
            send_interval: anchor.sent_at.saturating_sub(s.sent_at),
            recv_interval: anchor.received_at.saturating_sub(s.received_at),
            jitter,
            app_limited: is_late || self.is_app_limited(s.pn),
            is_late,
            window_full: false,
        });
        let sample = sample.map(|s| Sample {
            window_full: s.packets >= packets && s.send_interval.max(s.recv_interval) >= window,
            ..s
        });
        if sample.is_none_or(|s| s.window_full) {
            self.start = Some(anchor);
            self.arrivals.clear();
            self.arrivals
                .push((anchor.totals.delivered, anchor.received_at));
        }
        let settled = Settled {
            run: anchor.run,
            packets: self.totals.packets - self.last.packets,
            packets_lost: self.totals.packets_lost - self.last.packets_lost,
            delivered_until: self.totals.delivered,
            received_at: anchor.received_at,
            queue: anchor.queue.max(self.last_queue),
            app_limited: self.is_app_limited(anchor.pn),
            sample,
        };
        self.last_queue = anchor.queue;
        self.last = self.totals;
        settled
    }

    fn mark(&mut self, pn: PacketNumber, fate: Fate) {
        let Some(front) = self.records.front() else {
            return;
        };
        // Packet numbers are dense unless another path or a probe took some.
        let guess = pn
            .checked_sub(front.pn)
            .map_or(usize::MAX, |at| usize::try_from(at).unwrap_or(usize::MAX));
        let index = match self.records.get(guess) {
            Some(r) if r.pn == pn => guess,
            _ => self.records.partition_point(|r| r.pn < pn),
        };
        if let Some(record) = self.records.get_mut(index)
            && record.pn == pn
        {
            record.fate = fate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::PacketInfo;
    use crate::numbers::pn;
    use crate::time::time;

    fn info(number: u64) -> PacketInfo {
        PacketInfo {
            pn: pn(number),
            sent_at: Time::ZERO,
            ip_bytes: 1000,
        }
    }

    fn ack<'a>(acked: &'a [PacketInfo], lost: &'a [PacketInfo], at: Nanos) -> AckSummary<'a> {
        let arrival = acked.iter().max_by_key(|p| p.pn).map(|p| Arrival {
            pn: p.pn,
            received_at: time(at),
        });
        AckSummary {
            now: Time::ZERO,
            acked,
            lost,
            rtt_sample: None,
            srtt: 0,
            arrival,
            ce_marked: 0,
            is_scalable: false,
            ecn_capable: false,
            bytes_in_flight: 0,
        }
    }

    fn drain(sampler: &mut RateSampler) -> Vec<Settled> {
        std::iter::from_fn(|| {
            sampler.next_settled(
                Span {
                    least: 5 * MS,
                    jitters: 0,
                },
                8,
                1e9,
            )
        })
        .collect()
    }

    #[test]
    fn lost_packets_count_and_order_does_not_matter() {
        let mut sampler = RateSampler::new(Phase::Cruise);
        for n in 0..11 {
            // 1000 bytes per millisecond, numbers with holes.
            sampler.on_sent(time(n * MS), pn(3 * n), 1000, 1e6);
        }
        sampler.on_ack(&ack(&[info(0)], &[], 100 * MS), 0);
        assert!(drain(&mut sampler)[0].sample.is_none());
        // The last packet arrives first in this story; nothing settles until the gaps are known.
        sampler.on_ack(&ack(&[info(30)], &[], 110 * MS), 0);
        assert!(drain(&mut sampler).is_empty());
        let acked: Vec<_> = (1..8).rev().map(|i| info(3 * i)).collect();
        sampler.on_ack(&ack(&acked, &[info(24), info(27)], 0), 0);
        let settled = drain(&mut sampler);
        let sample = settled[0].sample.unwrap();
        assert_eq!((sample.packets, sample.packets_lost), (10, 2));
        assert_eq!((sample.delivered_bytes, sample.lost_bytes), (8000, 2000));
        assert!(sample.window_full && !sample.app_limited);
        assert!((sample.full_rate() - 1e6 / 1.01).abs() < 1.0);
        assert!(!sample.stretched(8));
    }

    #[test]
    fn no_sample_spans_an_idle_gap() {
        let mut sampler = RateSampler::new(Phase::Cruise);
        for n in 0..40 {
            let block = n / 20;
            sampler.on_sent(time(block * 40 * MS + n * MS / 10), pn(n), 1000, 1e7);
        }
        for n in [0, 19, 20, 39] {
            let acked: Vec<_> = (n / 20 * 20..=n).map(info).collect();
            sampler.on_ack(&ack(&acked, &[], n / 20 * 40 * MS + n * MS), 0);
        }
        let settled = drain(&mut sampler);
        let samples: Vec<_> = settled
            .iter()
            .map(|s| s.sample.map(|s| s.packets))
            .collect();
        assert_eq!(samples, [None, Some(19), None, Some(19)]);
    }

    #[test]
    fn what_left_late_shows_no_slow_link() {
        let mut sampler = RateSampler::new(Phase::Cruise);
        for n in 0..30 {
            sampler.on_sent(time(n * MS / 10), pn(n), 1000, 1e7);
            if n == 19 {
                // It was interrupted behind the fifth of these ten, for 40 ms.
                sampler.on_late(time(MS));
            }
        }
        let arrival = |n: u64| n * MS / 10 + if n < 15 { 0 } else { 40 * MS };
        let mut first = 0;
        for last in [0, 9, 12, 17, 29] {
            let acked: Vec<_> = (first..=last).map(info).collect();
            sampler.on_ack(&ack(&acked, &[], arrival(last)), 0);
            first = last + 1;
        }
        let settled = drain(&mut sampler);
        let samples: Vec<_> = settled
            .iter()
            .map(|s| s.sample.map(|s| (s.packets, s.is_late, s.stretched(8))))
            .collect();
        // The fourth one is long enough; what comes behind it begins with what left late.
        let expected = [
            (9, false, false),
            (12, true, false),
            (17, true, false),
            (12, true, false),
        ];
        assert_eq!(samples[0], None);
        assert_eq!(samples[1..], expected.map(Some));
    }

    #[test]
    fn what_left_late_between_others_does_not_matter() {
        let mut sampler = RateSampler::new(Phase::Cruise);
        for n in 0..30 {
            // It was interrupted for 15 ms behind the tenth packet, in which less than four would have left.
            let wait = if n < 10 { 0 } else { 15 * MS };
            sampler.on_sent(time(n * 9 * MS + wait), pn(n), 9000, 1e6);
            if n == 9 {
                sampler.on_late(time(9 * 9 * MS));
            }
        }
        let acked: Vec<_> = (0..30).map(info).collect();
        sampler.on_ack(&ack(&acked[..1], &[], 100 * MS), 0);
        sampler.on_ack(&ack(&acked[1..], &[], (100 + 29 * 9 + 15) * MS), 0);
        let sample = drain(&mut sampler)[1].sample.unwrap();
        assert_eq!((sample.packets, sample.is_late), (29, false));
    }

    #[test]
    fn jitter_hides_no_losses() {
        let run = Run::new(0, Phase::Cruise);
        let sample = Sample {
            run,
            packets: 100,
            packets_lost: 60,
            delivered_bytes: 40_000,
            lost_bytes: 60_000,
            send_interval: 20 * MS,
            recv_interval: 30 * MS,
            jitter: 10 * MS,
            app_limited: false,
            is_late: false,
            window_full: true,
        };
        // What arrived, in the time in which it was sent at the shortest.
        let highest = sample.rate_at_most(sample.delivered_rate(), f64::INFINITY);
        assert!((1.9e6..2.0e6).contains(&highest), "{highest}");
    }

    /// Receive intervals come from the peer, and may be anything.
    #[test]
    fn any_interval_is_survived() {
        for (recv_interval, jitter) in [
            (Nanos::MAX, CLOCK_NOISE / 2),
            (Nanos::MAX, Nanos::MAX),
            (0, Nanos::MAX),
        ] {
            let sample = Sample {
                run: Run::new(0, Phase::Startup),
                packets: 100,
                packets_lost: 0,
                delivered_bytes: 100_000,
                lost_bytes: 0,
                send_interval: 0,
                recv_interval,
                jitter,
                app_limited: false,
                is_late: false,
                window_full: true,
            };
            let rate = sample.rate_at_most(1.0, 2.0);
            assert!((1.0..=2.0).contains(&rate), "{rate}");
            assert!(!sample.stretched(8) || jitter < Nanos::MAX);
        }
    }

    #[test]
    fn a_clock_that_steps_back_raises_nothing() {
        let mut sampler = RateSampler::new(Phase::Cruise);
        for n in 0..11 {
            sampler.on_sent(time(n * MS), pn(n), 1000, 1e6);
        }
        sampler.on_ack(&ack(&[info(0)], &[], 1_000 * MS), 0);
        let acked: Vec<_> = (1..11).map(info).collect();
        sampler.on_ack(&ack(&acked, &[], 10 * MS), 0);
        let sample = drain(&mut sampler)[1].sample.unwrap();
        assert!(sample.full_rate() <= 1e6);
    }
}
