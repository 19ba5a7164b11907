//! Senders and receivers over the emulated link, for tests of rate control alone.
//!
//! The receiver sends a SACK every 16 packets or 1 ms; loss detection follows RFC 9002.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::RangeInclusive;
use std::time::Duration;

use sphinx_link::{
    Aqm, Blackout, Depth, GilbertElliott, Jitter, LinkConfig, Loss, Order, Packet, Policer, Rate,
    RateStep,
};

use crate::PacketNumber;
use crate::time::time;

use super::{
    AckSummary, Arrival, Couple, MS, Nanos, PacketInfo, RateControl, SEC, Window, time_for,
};

pub(super) const PACKET: u32 = 1500;
const SACK_PACKETS: u32 = 16;
const SACK_DELAY: Nanos = MS;
const SACK_BYTES: usize = 60;
const REORDER_PACKETS: u64 = 3;
/// Probes are never further apart.
const PROBE_INTERVAL_MAX: Nanos = SEC / 2;
/// Packets whose fate is remembered until it is asked for, every 10 ms.
const RECORDS: usize = 1 << 16;
/// ECN codepoints.
pub(super) const ECT_1: u8 = 0b01;
pub(super) const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

/// Megabits per second in bytes per second.
pub(super) fn mbit(rate: f64) -> f64 {
    rate * 125_000.0
}

/// Link under test.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// (from, bytes per second), ascending.
    pub(super) rates: Vec<(Nanos, f64)>,
    pub(super) queue_bytes: f64,
    pub(super) rtt: Nanos,
    pub(super) loss: f64,
    /// Mean length of loss bursts; 1 for independent losses.
    pub(super) burst: f64,
    pub(super) sack_loss: f64,
    /// (bytes per second, bucket bytes).
    pub(super) policer: Option<(f64, f64)>,
    pub(super) ce_threshold: Option<f64>,
    /// Instead of a threshold.
    pub(super) aqm: Aqm,
    /// Both directions are dead in between.
    pub(super) blackout: Option<(Nanos, Nanos)>,
    /// Extra forward delay, uniform, and whether packets keep their order all the same.
    pub(super) jitter: Nanos,
    pub(super) keeps_order: bool,
    /// The sender wakes up no more often than this.
    pub(super) quantum: Nanos,
    /// Time by which it wakes up later than that at most, at random, nanoseconds.
    pub(super) lateness: Nanos,
    /// The sender sleeps for the second time after each of the first.
    pub(super) stalls: Option<(Nanos, Nanos)>,
    /// Noise of the receiver's clock, uniform.
    pub(super) clock_noise: Nanos,
    /// (from, new round trip).
    pub(super) rtt_step: Option<(Nanos, Nanos)>,
    pub(super) seed: u64,
}

impl Link {
    /// A link with a queue of one BDP and independent losses.
    pub(super) fn new(rate_mbit: f64, rtt_ms: u64, loss: f64) -> Self {
        let rate = mbit(rate_mbit);
        Self {
            rates: vec![(0, rate)],
            queue_bytes: (rate * rtt_ms as f64 / 1000.0).max(10.0 * f64::from(PACKET)),
            rtt: rtt_ms * MS,
            loss,
            burst: 1.0,
            sack_loss: 0.0,
            policer: None,
            ce_threshold: None,
            aqm: Aqm::None,
            blackout: None,
            jitter: 0,
            keeps_order: false,
            quantum: MS / 4,
            lateness: 0,
            stalls: None,
            clock_noise: MS / 20,
            rtt_step: None,
            seed: 7,
        }
    }

    /// What both directions have in common.
    fn either_way(&self) -> LinkConfig {
        let blackout = self.blackout.map(|(start, end)| Blackout {
            start: Duration::from_nanos(start),
            end: Duration::from_nanos(end),
        });
        LinkConfig {
            delay: Duration::from_nanos(self.rtt / 2),
            blackouts: blackout.into_iter().collect(),
            ..LinkConfig::default()
        }
    }

    fn forward(&self) -> LinkConfig {
        let steps = self.rates.iter().map(|(at, rate)| RateStep {
            at: Duration::from_nanos(*at),
            bits_per_second: (8.0 * rate) as u64,
        });
        // The packet in transmission does not count as waiting.
        let waiting = |bytes: f64| Depth::Bytes(bytes as u64 - u64::from(PACKET));
        LinkConfig {
            seed: self.seed,
            policer: self.policer.map(|(rate, bucket)| Policer {
                bits_per_second: (8.0 * rate) as u64,
                burst_bytes: bucket as usize,
            }),
            rate: Rate::Steps {
                steps: steps.collect(),
                repeat: None,
            },
            queue: waiting(self.queue_bytes),
            aqm: self
                .ce_threshold
                .map_or(self.aqm, |bytes| Aqm::mark_above(waiting(bytes))),
            loss: if self.burst > 1.0 {
                Loss::GilbertElliott(GilbertElliott::bursts(self.loss, self.burst))
            } else {
                Loss::Bernoulli(self.loss)
            },
            jitter: Jitter {
                max: Duration::from_nanos(self.jitter),
                order: if self.keeps_order {
                    Order::Kept
                } else {
                    Order::Free
                },
            },
            records: RECORDS,
            ..self.either_way()
        }
    }

    /// What SACKs pass.
    fn backward(&self) -> LinkConfig {
        LinkConfig {
            seed: self.seed ^ 1,
            loss: Loss::Bernoulli(self.sack_loss),
            ..self.either_way()
        }
    }
}

/// What the application offers.
#[derive(Clone, Copy, Debug)]
pub(super) enum App {
    /// Always more.
    Saturating,
    /// `bytes` (as whole packets) every `every`.
    Blocks { bytes: u64, every: Nanos },
}

/// What became of one flow, totals and per 10 ms.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) sent: u64,
    pub(super) dropped: u64,
    /// Bytes that left the limiter, per 10 ms.
    pub(super) carried: Vec<u64>,
    /// Bytes sent per 10 ms.
    pub(super) offered: Vec<u64>,
    pub(super) dropped_at: Vec<u64>,
    /// Queue bytes found by each packet, summed, and count, per 10 ms.
    pub(super) queue: Vec<(f64, u64)>,
    /// When each packet that arrived left the link, and how long after its release.
    pub(super) inside: Vec<(Nanos, Nanos)>,
    /// Estimate of the controller every 10 ms.
    pub(super) estimate: Vec<f64>,
    pub(super) phases: BTreeMap<&'static str, u64>,
}

fn bump(v: &mut Vec<u64>, now: Nanos, by: u64) {
    let i = (now / (10 * MS)) as usize;
    if v.len() <= i {
        v.resize(i + 1, 0);
    }
    v[i] += by;
}

impl Report {
    /// Bytes per second that left the limiter between two times.
    pub(super) fn rate(&self, from: Nanos, to: Nanos) -> f64 {
        let sum: u64 = slice(&self.carried, from, to).iter().sum();
        sum as f64 * SEC as f64 / (to - from) as f64
    }

    /// Share of the packets sent between two times that the queue or the policer dropped.
    pub(super) fn drops(&self, from: Nanos, to: Nanos) -> f64 {
        let sent: u64 = slice(&self.offered, from, to).iter().sum();
        let dropped: u64 = slice(&self.dropped_at, from, to).iter().sum();
        dropped as f64 / (sent as f64).max(1.0)
    }

    /// Mean queue in bytes between two times.
    pub(super) fn mean_queue(&self, from: Nanos, to: Nanos) -> f64 {
        let (sum, n) = slice(&self.queue, from, to)
            .iter()
            .fold((0.0, 0), |a, q| (a.0 + q.0, a.1 + q.1));
        sum / f64::from(u32::try_from(n).unwrap_or(u32::MAX)).max(1.0)
    }
}

fn slice<T>(v: &[T], from: Nanos, to: Nanos) -> &[T] {
    let i = ((from / (10 * MS)) as usize).min(v.len());
    let j = ((to / (10 * MS)) as usize).min(v.len());
    &v[i..j.max(i)]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(usize),
    Block(usize),
    SackDue(usize),
    Timer(usize),
    Tick,
    /// A SACK of everything in the receive log up to a length has come the rest of its way.
    SackArrives(usize, usize),
    /// The path gets longer.
    Longer,
}

/// What a link carries.
#[derive(Clone, Copy, Debug)]
enum Carried {
    Data {
        flow: usize,
        pn: PacketNumber,
        ecn: u8,
    },
    /// Everything in the receive log up to `len`.
    Sack { flow: usize, len: usize },
}

impl Packet for Carried {
    fn ip_len(&self) -> usize {
        match self {
            Self::Data { .. } => PACKET as usize,
            Self::Sack { .. } => SACK_BYTES,
        }
    }

    fn ecn(&self) -> u8 {
        match self {
            Self::Data { ecn, .. } => *ecn,
            Self::Sack { .. } => 0,
        }
    }

    fn set_ecn(&mut self, codepoint: u8) {
        if let Self::Data { ecn, .. } = self {
            *ecn = codepoint;
        }
    }

    fn corruptible_bits(&self) -> u64 {
        0
    }

    fn flip_bit(&mut self, _bit: u64) {}

    fn duplicate(&self) -> Self {
        *self
    }

    /// Its flow, to find it among the packets that the channel has lost.
    fn sequence(&self) -> Option<u32> {
        match self {
            Self::Data { flow, .. } | Self::Sack { flow, .. } => Some(*flow as u32),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    info: PacketInfo,
    acked: bool,
}

struct Flow {
    cc: Box<dyn RateControl>,
    app: App,
    starts: Nanos,
    /// How much longer its round trip is than the link's.
    farther: Nanos,
    /// The codepoint that its packets leave with.
    ecn: u8,
    backlog: u64,
    next_pn: PacketNumber,
    release_at: Nanos,
    late: Nanos,
    wake_at: Option<Nanos>,
    in_flight: BTreeMap<PacketNumber, InFlight>,
    bytes_in_flight: u64,
    largest_acked: Option<PacketNumber>,
    srtt: Nanos,
    last_progress: Nanos,
    probed_at: Nanos,
    probes: u32,
    // receiver
    log: Vec<(PacketNumber, Nanos, bool)>,
    log_seen: usize,
    unsacked: u32,
    sack_due: bool,
    report: Report,
}

/// Virtual-time run of some flows over one link.
pub(super) struct World {
    link: Link,
    now: Nanos,
    seq: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    flows: Vec<Flow>,
    forward: sphinx_link::Link<Carried>,
    backward: sphinx_link::Link<Carried>,
    coupled: Option<(RangeInclusive<usize>, Couple)>,
    rng: u64,
}

impl World {
    pub(super) fn new(link: Link) -> Self {
        let made = |config| sphinx_link::Link::new(config).expect("a valid link");
        let rng = link.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut world = Self {
            forward: made(link.forward()),
            backward: made(link.backward()),
            link,
            now: 0,
            seq: 0,
            events: BinaryHeap::new(),
            flows: Vec::new(),
            coupled: None,
            rng,
        };
        world.at(0, Event::Tick);
        if let Some((at, _)) = world.link.rtt_step {
            world.at(at, Event::Longer);
        }
        world
    }

    pub(super) fn add(mut self, cc: Box<dyn RateControl>, app: App, starts: Nanos) -> Self {
        let flow = self.flows.len();
        self.flows.push(Flow {
            cc,
            app,
            starts,
            farther: 0,
            ecn: ECT_0,
            backlog: 0,
            next_pn: PacketNumber::ZERO,
            release_at: starts,
            late: 0,
            wake_at: None,
            in_flight: BTreeMap::new(),
            bytes_in_flight: 0,
            largest_acked: None,
            srtt: 0,
            last_progress: starts,
            probed_at: 0,
            probes: 0,
            log: Vec::new(),
            log_seen: 0,
            unsacked: 0,
            sack_due: false,
            report: Report::default(),
        });
        match app {
            App::Saturating => self.wake(flow, starts),
            App::Blocks { .. } => self.at(starts, Event::Block(flow)),
        }
        self.at(starts + 10 * MS, Event::Timer(flow));
        self
    }

    /// These flows are paths of one session.
    pub(super) fn couple(mut self, flows: RangeInclusive<usize>, couple: Couple) -> Self {
        self.coupled = Some((flows, couple));
        self
    }

    /// The latest flow has a round trip that is so much longer.
    pub(super) fn farther(mut self, by: Nanos) -> Self {
        let flow = self.flows.last_mut().expect("added before");
        flow.farther = by;
        self
    }

    /// The latest flow's packets leave with this codepoint.
    pub(super) fn leaving_as(mut self, ecn: u8) -> Self {
        let flow = self.flows.last_mut().expect("added before");
        flow.ecn = ecn;
        self
    }

    /// Runs until `end` and returns one report per flow.
    pub(super) fn run(mut self, end: Nanos) -> Vec<Report> {
        while let Some(Reverse((at, ..))) = self.events.peek() {
            let links = [self.forward.next_event(), self.backward.next_event()];
            let arrival = links.into_iter().flatten().min();
            let (at, arrives) = match arrival {
                Some(arrival) if arrival <= *at => (arrival, true),
                _ => (*at, false),
            };
            if at > end {
                break;
            }
            self.now = at;
            if arrives {
                self.deliver();
                continue;
            }
            let Some(Reverse((now, _, event))) = self.events.pop() else {
                break;
            };
            match event {
                // This wake-up was replaced by an earlier one.
                Event::Wake(f) if self.link.lateness > 0 && self.flows[f].wake_at != Some(now) => {}
                Event::Wake(f) => {
                    self.flows[f].wake_at = None;
                    self.transmit(f);
                }
                Event::Block(f) => self.block(f),
                Event::SackDue(f) => {
                    if self.flows[f].sack_due {
                        self.sack(f);
                    }
                }
                Event::Timer(f) => self.timer(f),
                Event::SackArrives(f, len) => self.on_sack(f, len),
                Event::Longer => self.lengthen(),
                Event::Tick => {
                    self.note_lost();
                    for f in &mut self.flows {
                        f.report.estimate.push(f.cc.bandwidth_estimate() as f64);
                        *f.report.phases.entry(f.cc.phase_name()).or_default() += 1;
                    }
                    self.at(now + 10 * MS, Event::Tick);
                }
            }
        }
        // What has left the link until then is still on its way.
        let last = end + self.link.rtt + self.link.jitter;
        while let Some(delivery) = self.forward.poll(last) {
            self.note_carried(delivery.at, &delivery.packet);
        }
        self.note_lost();
        self.flows.into_iter().map(|f| f.report).collect()
    }

    /// Coupled flows grow together.
    fn share(&mut self) {
        let Some((flows, couple)) = &self.coupled else {
            return;
        };
        let flows = &mut self.flows[flows.clone()];
        let windows: Vec<Window> = (flows.iter())
            .map(|f| Window::new(f.cc.cwnd(), f.srtt, f.cc.between_losses().unwrap_or(0)))
            .collect();
        for (flow, gain) in flows.iter_mut().zip(couple.gains(&windows)) {
            flow.cc.set_gain(gain);
        }
    }

    fn at(&mut self, time: Nanos, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((time, self.seq, event)));
    }

    fn wake(&mut self, f: usize, time: Nanos) {
        if self.flows[f].wake_at.is_none_or(|t| t > time) {
            self.flows[f].wake_at = Some(time);
            self.at(time, Event::Wake(f));
        }
    }

    fn random(&mut self) -> f64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Takes what has arrived by now.
    fn deliver(&mut self) {
        while let Some(delivery) = self.forward.poll(self.now) {
            self.note_carried(delivery.at, &delivery.packet);
            if let Carried::Data { flow, pn, ecn } = delivery.packet {
                self.arrive(flow, pn, ecn == CE);
            }
        }
        while let Some(delivery) = self.backward.poll(self.now) {
            if let Carried::Sack { flow, len } = delivery.packet {
                match self.flows[flow].farther {
                    0 => self.on_sack(flow, len),
                    farther => self.at(self.now + farther, Event::SackArrives(flow, len)),
                }
            }
        }
    }

    fn lengthen(&mut self) {
        if let Some((_, rtt)) = self.link.rtt_step {
            self.link.rtt = rtt;
            let configs = (self.link.forward(), self.link.backward());
            let forward = self.forward.reconfigure(self.now, configs.0);
            let backward = self.backward.reconfigure(self.now, configs.1);
            forward.and(backward).expect("a valid link");
        }
    }

    /// A packet that arrives has left the limiter.
    fn note_carried(&mut self, at: Nanos, packet: &Carried) {
        if let Carried::Data { flow, pn, .. } = *packet {
            let left = at.saturating_sub(self.link.rtt / 2);
            let flow_of = &mut self.flows[flow];
            if let Some(packet) = flow_of.in_flight.get(&pn) {
                let inside = left.saturating_sub(packet.info.sent_at.as_nanos());
                flow_of.report.inside.push((left, inside));
            }
            bump(
                &mut self.flows[flow].report.carried,
                left,
                u64::from(PACKET),
            );
        }
    }

    /// Counts packets that the channel has lost as carried, as they too have left the limiter.
    fn note_lost(&mut self) {
        let mut records = Vec::new();
        self.forward.take_records(&mut records);
        assert_eq!(self.forward.records_missed(), 0);
        for record in records {
            use sphinx_link::Event::{DroppedBlackout, DroppedLoss};
            if let (DroppedLoss | DroppedBlackout, Some(flow)) = (record.event, record.sequence) {
                let report = &mut self.flows[flow as usize].report;
                bump(&mut report.carried, record.at, u64::from(PACKET));
            }
        }
    }

    fn block(&mut self, f: usize) {
        if let App::Blocks { bytes, every } = self.flows[f].app {
            self.flows[f].backlog += bytes.div_ceil(1250);
            self.at(self.now + every, Event::Block(f));
            self.transmit(f);
        }
    }

    fn transmit(&mut self, f: usize) {
        let now = self.now;
        if now < self.flows[f].starts {
            return;
        }
        if let Some((every, pause)) = self.link.stalls
            && now % every < pause
        {
            let awake = now - now % every + pause;
            self.wake(f, awake);
            return;
        }
        loop {
            let flow = &mut self.flows[f];
            let empty = matches!(flow.app, App::Blocks { .. }) && flow.backlog == 0;
            if flow.bytes_in_flight + u64::from(PACKET) > flow.cc.cwnd() {
                return;
            }
            if flow.release_at > now {
                let at = flow.release_at.max(now + self.link.quantum / 2);
                if !empty {
                    let at = at + flow.late;
                    self.wake(f, at);
                }
                return;
            }
            if empty {
                flow.cc.on_app_limited(time(now));
                return;
            }
            self.send(f);
        }
    }

    fn send(&mut self, f: usize) {
        let now = self.now;
        let late = match self.link.lateness {
            0 => 0,
            most => (self.random() * most as f64) as Nanos,
        };
        self.flows[f].late = late;
        let flow = &mut self.flows[f];
        let pn = flow.next_pn;
        flow.next_pn += 1;
        flow.backlog = flow.backlog.saturating_sub(1);
        flow.bytes_in_flight += u64::from(PACKET);
        let info = PacketInfo {
            pn,
            sent_at: time(now),
            ip_bytes: PACKET,
        };
        flow.in_flight.insert(pn, InFlight { info, acked: false });
        let span = time_for(f64::from(PACKET), flow.cc.pacing_rate() as f64);
        flow.release_at = flow.release_at.max(now.saturating_sub(self.link.quantum)) + span;
        flow.cc.on_sent(time(now), pn, PACKET, flow.bytes_in_flight);
        flow.report.sent += 1;
        bump(&mut flow.report.offered, now, 1);

        let drops = |link: &sphinx_link::Link<Carried>| {
            let counters = link.counters();
            counters.dropped_queue + counters.dropped_policer
        };
        let before = drops(&self.forward);
        let (flow, ecn) = (f, flow.ecn);
        self.forward.enqueue(now, Carried::Data { flow, pn, ecn });
        let is_dropped = drops(&self.forward) > before;
        // It waits behind the one being sent, which counts as waiting here.
        let report = &mut self.flows[f].report;
        let i = (now / (10 * MS)) as usize;
        if report.queue.len() <= i {
            report.queue.resize(i + 1, (0.0, 0));
        }
        report.queue[i].0 += self.forward.queue_bytes() as f64;
        report.queue[i].1 += 1;
        if is_dropped {
            report.dropped += 1;
            bump(&mut report.dropped_at, now, 1);
        }
    }

    fn arrive(&mut self, f: usize, pn: PacketNumber, ce: bool) {
        // Another clock: an arbitrary origin, coarse and noisy.
        let noise = (self.random() * self.link.clock_noise as f64) as Nanos;
        let stamp = self.now + 1_234_567 * MS + noise;
        let flow = &mut self.flows[f];
        flow.log.push((pn, stamp, ce));
        flow.unsacked += 1;
        if flow.unsacked >= SACK_PACKETS {
            self.sack(f);
        } else if !flow.sack_due {
            flow.sack_due = true;
            let due = self.now + SACK_DELAY;
            self.at(due, Event::SackDue(f));
        }
    }

    fn sack(&mut self, f: usize) {
        let len = self.flows[f].log.len();
        self.flows[f].unsacked = 0;
        self.flows[f].sack_due = false;
        self.backward
            .enqueue(self.now, Carried::Sack { flow: f, len });
    }

    fn on_sack(&mut self, f: usize, len: usize) {
        let now = self.now;
        let flow = &mut self.flows[f];
        let news = flow.log[flow.log_seen.min(len)..len].to_vec();
        flow.log_seen = flow.log_seen.max(len);
        let mut acked = Vec::new();
        let mut ce_marked = 0;
        for &(pn, _, ce) in &news {
            ce_marked += u64::from(ce);
            if let Some(p) = flow.in_flight.get_mut(&pn)
                && !p.acked
            {
                p.acked = true;
                acked.push(p.info);
                flow.bytes_in_flight -= u64::from(PACKET);
            }
        }
        let largest = news.iter().max_by_key(|n| n.0).copied();
        let mut rtt_sample = None;
        let mut arrival = None;
        if let Some((pn, stamp, _)) = largest
            && flow.largest_acked.is_none_or(|l| pn > l)
        {
            flow.largest_acked = Some(pn);
            if let Some(p) = flow.in_flight.get(&pn) {
                let rtt = time(now) - p.info.sent_at;
                rtt_sample = Some(rtt);
                flow.srtt = if flow.srtt == 0 {
                    rtt
                } else {
                    (7 * flow.srtt + rtt) / 8
                };
                arrival = Some(Arrival {
                    pn,
                    received_at: time(stamp),
                });
            }
        }
        if !acked.is_empty() {
            flow.last_progress = now;
            flow.probes = 0;
        }
        self.finish_ack(f, &acked, rtt_sample, arrival, ce_marked);
    }

    fn finish_ack(
        &mut self,
        f: usize,
        acked: &[PacketInfo],
        rtt_sample: Option<Nanos>,
        arrival: Option<Arrival>,
        ce_marked: u64,
    ) {
        let now = self.now;
        let flow = &mut self.flows[f];
        let mut lost = Vec::new();
        let largest = flow.largest_acked.unwrap_or_default();
        let old = flow.srtt + flow.srtt / 8 + MS;
        while let Some((&pn, p)) = flow
            .in_flight
            .iter()
            .find(|p| !p.1.acked)
            .map(|p| (p.0, *p.1))
        {
            let late =
                pn + REORDER_PACKETS <= largest && (self.link.jitter == 0 || self.link.keeps_order);
            let timed_out = pn < largest && time(now) > p.info.sent_at + old;
            if !late && !timed_out {
                break;
            }
            flow.in_flight.remove(&pn);
            flow.bytes_in_flight -= u64::from(PACKET);
            lost.push(p.info);
        }
        let first_open = flow
            .in_flight
            .iter()
            .find(|p| !p.1.acked)
            .map_or(flow.next_pn, |p| *p.0);
        flow.in_flight = flow.in_flight.split_off(&first_open);
        flow.cc.on_ack(&AckSummary {
            now: time(now),
            acked,
            lost: &lost,
            rtt_sample,
            srtt: flow.srtt,
            arrival,
            ce_marked,
            is_scalable: flow.ecn == ECT_1,
            ecn_capable: self.link.ce_threshold.is_some() || self.link.aqm != Aqm::None,
            bytes_in_flight: flow.bytes_in_flight,
        });
        self.share();
        self.transmit(f);
    }

    /// Time-threshold losses, probes and blackouts, checked every 5 ms.
    fn timer(&mut self, f: usize) {
        let now = self.now;
        let flow = &mut self.flows[f];
        let pto = 2 * flow.srtt.max(50 * MS);
        let waited = now.saturating_sub(flow.last_progress.max(flow.probed_at));
        let wait = (pto * (1 << flow.probes.min(5))).min(PROBE_INTERVAL_MAX);
        if flow.bytes_in_flight > 0 && waited > wait {
            flow.probes += 1;
            flow.probed_at = now;
            if flow.probes >= 3 {
                flow.cc.on_persistent_loss(time(now));
            }
            // Probes are not paced, and nothing is held back for them.
            let release_at = flow.release_at;
            self.send(f);
            self.flows[f].release_at = release_at;
        } else {
            self.finish_ack(f, &[], None, None, 0);
        }
        self.at(now + 5 * MS, Event::Timer(f));
    }
}
