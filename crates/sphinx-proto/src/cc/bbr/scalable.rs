//! The scalable response to marks of packets that left as ECT(1) (RFC 9331, section 4.3).
//!
//! A queue for such packets marks early and often, from a delay of a millisecond on. So a mark says little, and the share of packets that
//! carry one says how much too fast all are: a flow falls by a part of that share, at most once in a round, and grows by a constant
//! between. Its rate comes to what such flows all get, two packets in a round over the share of marks (DCTCP, RFC 8257; Prague,
//! draft-briscoe-iccrg-prague-congestion-control), whatever its round trip, as no round counts as shorter than 25 ms.
//!
//! Steps up and down are both smaller where a packet takes long: a flow that has grown beyond the link hears of it a round trip later, and what it
//! has sent too much until then must be less than another millisecond. The ratio of both, and so the share, stays what it is.
//!
//! Where a rate that met marks before meets none for long, the link has become faster, or others have gone: growth then doubles with
//! each round. That takes the place of probes, which would fill the queue that these flows keep short.
//!
//! A queue that is long where it marks is none of low latency: other flows there slow down once for many marks of ours. Marks then count as those of ECT(0) do.

use super::super::sampler::Sample;
use super::super::startup::Verdict;
use super::super::{AckSummary, MS, Nanos, PacketNumber, SEC, Time, bytes_in, rate_of, time_for};
use super::{Bbr, CE_FACTOR, LOSS_SHARED, Phase};

/// Shortest round: flows with a shorter round trip have the rate of one with this (REF_RTT of Prague).
const REFERENCE: Nanos = 25 * MS;
/// Weight of a round in the average share of marks.
const WEIGHT: f64 = 1.0 / 16.0;
/// Average share of marks that is assumed before any is known.
const INITIAL_SHARE: f64 = 0.25;
/// Steps are whole where the link sends so many packets in a millisecond, and smaller in proportion down to a part.
const WHOLE_PACKETS: f64 = 12.0;
const SMALLEST: f64 = 1.0 / 14.0;
/// Beyond that many times the rate that was marked, and so many rounds, growth doubles in each; and the most of the rate that it reaches in a round.
const BEYOND: f64 = 1.05;
const PATIENCE: u32 = 4;
const GROWTH_MOST: f64 = 1.0 / 8.0;
/// Delay at marks of a queue that is none of low latency, or so many full packets if these take longer.
const LONG_QUEUE: Nanos = 4 * MS;
const LONG_PACKETS: f64 = 4.0;
/// Slowest pace for a round after the first fall out of a queue, of the rate: what was too much has to go, too.
const EMPTYING: f64 = 15.0 / 16.0;
/// Rounds without a mark after which a queue is one that does not mark.
const SILENT: Nanos = 16;
/// Rounds with marks and such a delay, more than those without it, after which marks are classic ones.
const DOUBTS_MAX: u32 = 16;
/// So long, until it is looked at again: as one flow of several a sender of ECT(0) makes a queue of any length.
const CLASSIC_FOR: Nanos = 5 * SEC;
/// Rounds of start-up in which marks end it only if the link has been measured.
const STARTUP_ROUNDS: u64 = 3;

/// What a SACK says of marks and delay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) now: Time,
    pub(super) acked: u64,
    pub(super) marked: u64,
    /// Smoothed round trip.
    pub(super) rtt: Nanos,
    /// Queueing delay.
    pub(super) queue: Nanos,
}

/// How the rate responds to marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Response {
    Nothing,
    /// The first marks on this path: whatever was being tried ends.
    Begin,
    /// The rate falls to this, bytes per second.
    Fall(f64),
    /// As for marks of ECT(0).
    Classic,
}

/// Marks, and what follows from them.
#[derive(Debug)]
pub(super) struct Scalable {
    is_on: bool,
    /// Average share of marks, 0 to 1.
    share: f64,
    acked: u64,
    marked: u64,
    round_at: Time,
    fell_at: Time,
    grown_at: Time,
    /// The application does not fill the rate, as far as has been acknowledged.
    is_paused: bool,
    /// What has left since then while nothing else was under way: a question whether the peer is there, say, of which nobody says that it fills no rate.
    alone: Option<PacketNumber>,
    marked_at: Time,
    /// Until when the queue is being emptied, and the pace for that, of the rate.
    empties_until: Time,
    emptying: f64,
    /// Rate that met marks last; 0: none is known.
    peak: f64,
    /// Growth per round, in steps.
    speed: f64,
    /// How sure it is that the queue is a classic one, up to [`DOUBTS_MAX`], and until when it counts as one.
    doubts: u32,
    classic_until: Time,
    /// Longest queueing delay at a mark in this round.
    queue: Nanos,
}

impl Default for Scalable {
    fn default() -> Self {
        Self {
            is_on: false,
            share: INITIAL_SHARE,
            acked: 0,
            marked: 0,
            round_at: Time::ZERO,
            fell_at: Time::ZERO,
            grown_at: Time::ZERO,
            is_paused: false,
            alone: None,
            marked_at: Time::ZERO,
            empties_until: Time::ZERO,
            emptying: 1.0,
            peak: 0.0,
            speed: 1.0,
            doubts: 0,
            classic_until: Time::ZERO,
            queue: 0,
        }
    }
}

/// Length of a round.
fn round(rtt: Nanos) -> Nanos {
    rtt.max(REFERENCE)
}

/// Part of a whole step at this rate.
fn step(bw: f64, packet_bytes: f64) -> f64 {
    (bytes_in(bw, MS) / (WHOLE_PACKETS * packet_bytes)).clamp(SMALLEST, 1.0)
}

impl Scalable {
    /// Whether marks set the rate.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Another rate is being looked for, and marks tell when it is found.
    pub(super) fn end(&mut self) {
        self.is_on = false;
        self.peak = 0.0;
    }

    /// The application did not fill the rate: so it does not grow, until packets are acknowledged that left behind these.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// A packet leaves while nothing is under way.
    pub(super) fn leave_alone(&mut self, pn: PacketNumber) {
        if self.is_paused {
            self.alone = Some(pn);
        }
    }

    /// This packet was acknowledged, which left when the application filled the rate as far as is known.
    fn go_on(&mut self, now: Time, pn: PacketNumber) {
        if self.is_paused && self.alone.is_none_or(|alone| pn > alone) {
            (self.is_paused, self.alone) = (false, None);
            self.grown_at = now;
        }
    }

    pub(super) fn on_ack(&mut self, reading: &Reading, bw: f64, packet_bytes: f64) -> Response {
        let Reading { now, rtt, .. } = *reading;
        self.acked += reading.acked;
        self.marked += reading.marked;
        if reading.marked > 0 {
            self.marked_at = now;
            self.queue = self.queue.max(reading.queue);
        }
        if now.saturating_sub(self.round_at) >= round(rtt) {
            self.end_round(now, time_for(LONG_PACKETS * packet_bytes, bw));
        }
        if reading.marked == 0 {
            return Response::Nothing;
        }
        if now < self.classic_until {
            return Response::Classic;
        }
        if !self.is_on {
            self.is_on = true;
            (self.fell_at, self.grown_at) = (now, now);
            (self.peak, self.speed) = (0.0, 1.0);
            return Response::Begin;
        }
        if now.saturating_sub(self.fell_at) < round(rtt) {
            return Response::Nothing;
        }
        // What was found in one round by growing fast was too much.
        let found = self.speed * step(bw, packet_bytes) * packet_bytes;
        let overshoot = rate_of(found, round(rtt)) * time_for_notice(rtt) / round(rtt) as f64;
        let bw = match self.speed > 1.0 {
            true => (bw - overshoot).max(self.peak.min(bw)),
            false => bw,
        };
        // Marks of one queue that takes several rounds to become short are of the rate that filled it.
        let is_again = now.saturating_sub(self.fell_at) < Nanos::from(PATIENCE) * round(rtt);
        let least = if is_again { self.peak } else { 0.0 };
        (self.fell_at, self.grown_at) = (now, now);
        (self.peak, self.speed) = (bw.max(least), 1.0);
        self.empties_until = now.saturating_add(round(rtt));
        let part = reading.queue as f64 / round(rtt) as f64;
        self.emptying = (1.0 - part).max(EMPTYING);
        Response::Fall(bw * (1.0 - step(bw, packet_bytes) * self.share / 2.0))
    }

    fn end_round(&mut self, now: Time, of_packets: Nanos) {
        if self.acked > 0 {
            let share = self.marked as f64 / self.acked.max(self.marked) as f64;
            self.share += WEIGHT * (share - self.share);
        }
        if self.marked > 0 && self.is_on {
            let is_long = self.queue > LONG_QUEUE.max(of_packets);
            self.doubts = match is_long {
                true => (self.doubts + 1).min(DOUBTS_MAX),
                false => self.doubts.saturating_sub(1),
            };
            if self.doubts == DOUBTS_MAX {
                self.doubts = DOUBTS_MAX / 2;
                self.classic_until = now.saturating_add(CLASSIC_FOR);
                self.end();
            }
        }
        (self.acked, self.marked, self.queue) = (0, 0, 0);
        self.round_at = now;
    }

    /// Time has passed at the rate `bw`: the rate from now on.
    pub(super) fn grow(&mut self, now: Time, bw: f64, (packet_bytes, rtt): (f64, Nanos)) -> f64 {
        let span = now.saturating_sub(self.grown_at);
        self.grown_at = now;
        if self.is_paused || now.saturating_sub(self.fell_at) < rtt / 4 * 3 {
            return bw;
        }
        let round = round(rtt);
        let one = rate_of(step(bw, packet_bytes) * packet_bytes, round);
        let is_beyond = bw > BEYOND * self.peak + f64::from(PATIENCE) * one
            && now.saturating_sub(self.fell_at) > Nanos::from(PATIENCE) * round;
        if is_beyond {
            let rounds = span as f64 / round as f64;
            let most = (GROWTH_MOST * bw / one).max(1.0);
            self.speed = (self.speed * (1.0 + rounds)).min(most);
        }
        // Packets that are marked do not add to it.
        bw + (1.0 - self.share) * self.speed * one * span as f64 / round as f64
    }

    /// Pace, of the rate.
    pub(super) fn gain(&self, now: Time) -> f64 {
        match now < self.empties_until {
            true => self.emptying,
            false => 1.0,
        }
    }

    /// No mark for long.
    fn is_silent(&self, now: Time, rtt: Nanos) -> bool {
        now.saturating_sub(self.marked_at) > SILENT * round(rtt)
    }
}

/// Until marks are heard of: a round trip, and the queue's own delay.
fn time_for_notice(rtt: Nanos) -> f64 {
    rtt.saturating_add(MS).min(SEC) as f64
}

impl Bbr {
    /// What a SACK says of packets that left as ECT(1).
    pub(super) fn on_scalable(&mut self, ack: &AckSummary<'_>) {
        let now = ack.now;
        let reading = Reading {
            now,
            acked: ack.acked.len() as u64,
            marked: ack.ce_marked,
            rtt: self.delay.smoothed(),
            queue: self.delay.queue(),
        };
        let newest = ack.acked.iter().map(|packet| packet.pn).max();
        if let Some(pn) = newest.filter(|pn| !self.sampler.is_app_limited(*pn)) {
            self.scalable.go_on(now, pn);
        }
        if self.phase == Phase::Startup
            && self.measured_over == Nanos::MAX
            && self.rounds_in_phase() < STARTUP_ROUNDS
        {
            // The first flight leaves at once, and is marked for that; no rate is known to go on with.
            return;
        }
        let was_on = self.scalable.is_on();
        let response = self.scalable.on_ack(&reading, self.bw, self.packet_bytes);
        if self.scalable.is_on() && !was_on {
            self.sharing.end();
        }
        match response {
            Response::Nothing => {}
            Response::Begin => match self.phase {
                Phase::Startup => self.judge_startup(Verdict::Found, now),
                Phase::Up => {
                    self.bw = self.bw.min(self.up_from);
                    self.enter(Phase::Drain, now);
                }
                Phase::Cruise | Phase::Down => self.enter(Phase::Drain, now),
                Phase::Drain | Phase::ProbeRtt | Phase::Blackout => {}
            },
            Response::Fall(bw) if matches!(self.phase, Phase::Cruise | Phase::ProbeRtt) => {
                self.bw = bw;
            }
            Response::Fall(_) => {}
            Response::Classic => self.on_ce(now),
        }
    }

    /// The rate is the marks' business, unless packets are lost for other reasons than the channel's, or the link has become much slower.
    pub(super) fn on_scalable_sample(&mut self, s: &Sample, channel: f64, now: Time) {
        if s.run.phase != Phase::Cruise || self.phase != Phase::Cruise {
            return;
        }
        if s.loss() > channel + self.tolerance(s, channel).max(LOSS_SHARED) {
            self.fall(now, CE_FACTOR);
        } else if s.stretched(8) && !s.app_limited && self.has_queue() {
            let rate = s.rate_at_most(s.full_rate(), self.bw);
            self.bw = self.bw.min(rate);
            self.enter(Phase::Drain, now);
        }
    }

    /// Among flows that keep the queue short: no probes.
    pub(super) fn step_scalable(&mut self, now: Time, in_flight: f64) {
        match self.phase {
            Phase::Cruise if self.delay.is_stale(now) => self.enter(Phase::ProbeRtt, now),
            // The queue that stands is another one than the one that marks.
            Phase::Cruise
                if self.has_queue() && self.scalable.is_silent(now, self.delay.smoothed()) =>
            {
                self.scalable.end();
                self.enter(Phase::Drain, now);
            }
            Phase::Cruise => {
                let packet = (self.packet_bytes, self.delay.smoothed());
                self.bw = self.scalable.grow(now, self.bw, packet);
            }
            Phase::ProbeRtt => {
                if self.rounds_in_phase() >= 2 {
                    if let Some(rtt) = self.probe_rtt_min {
                        self.delay.replace_min_rtt(now, rtt);
                    }
                    self.enter(Phase::Cruise, now);
                }
            }
            Phase::Drain | Phase::Down | Phase::Up => {
                let in_phase = now.saturating_sub(self.phase_at);
                let is_drained = self.delay.queue() < MS && in_flight <= self.bdp() + self.slack();
                let patience = 3 * self.delay.smoothed();
                if (is_drained && in_phase > self.delay.smoothed()) || in_phase > patience {
                    self.scalable.grown_at = now;
                    self.enter(Phase::Cruise, now);
                }
            }
            Phase::Startup | Phase::Blackout => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{CcParams, PacketInfo, RateControl};
    use crate::time::time;

    const PACKET: f64 = 1500.0;
    /// 200 Mbit/s: steps are whole.
    const BW: f64 = 25e6;

    fn reading(at: Nanos, acked: u64, marked: u64) -> Reading {
        Reading {
            now: time(at),
            acked,
            marked,
            rtt: 10 * MS,
            queue: MS,
        }
    }

    /// After the first mark, at 1 s.
    fn begun() -> Scalable {
        let mut scalable = Scalable::default();
        let response = scalable.on_ack(&reading(SEC, 10, 1), BW, PACKET);
        assert_eq!(response, Response::Begin);
        scalable
    }

    /// Rounds of 25 ms with this share of marks in percent.
    fn rounds(scalable: &mut Scalable, from: Nanos, count: u64, percent: u64) -> f64 {
        let mut bw = BW;
        for n in 1..=count {
            let now = from + n * 25 * MS;
            if let Response::Fall(to) = scalable.on_ack(&reading(now, 100, percent), bw, PACKET) {
                bw = to;
            }
        }
        bw
    }

    #[test]
    fn the_average_becomes_the_share_of_marks_and_the_rate_falls_by_half_of_it() {
        for percent in [5, 20, 100] {
            let mut scalable = begun();
            rounds(&mut scalable, SEC, 100, percent);
            let share = percent as f64 / 100.0;
            assert!((scalable.share - share).abs() < 0.01, "{}", scalable.share);
            let now = SEC + 101 * 25 * MS;
            let response = scalable.on_ack(&reading(now, 100, percent), BW, PACKET);
            let Response::Fall(to) = response else {
                panic!("{response:?}")
            };
            assert!((to / BW - (1.0 - share / 2.0)).abs() < 0.01, "{to}");
        }
    }

    #[test]
    fn it_falls_once_in_a_round() {
        let mut scalable = begun();
        let early = scalable.on_ack(&reading(SEC + 24 * MS, 10, 5), BW, PACKET);
        assert_eq!(early, Response::Nothing);
        let due = scalable.on_ack(&reading(SEC + 25 * MS, 10, 5), BW, PACKET);
        assert!(matches!(due, Response::Fall(_)));
        let again = scalable.on_ack(&reading(SEC + 26 * MS, 10, 5), BW, PACKET);
        assert_eq!(again, Response::Nothing);
    }

    #[test]
    fn rates_settle_where_two_packets_a_round_are_marked() {
        // What is gained in a round and lost with this share of marks are the same there, however large steps are.
        for bw in [1e6, 25e6] {
            let packets = bytes_in(bw, REFERENCE) / PACKET;
            let gained = step(bw, PACKET) * rate_of(PACKET, REFERENCE);
            let lost = bw * step(bw, PACKET) * (2.0 / packets) / 2.0;
            assert!((gained / lost - 1.0).abs() < 1e-9, "{bw}");
        }
    }

    #[test]
    fn growth_is_constant_up_to_the_old_rate_and_fast_beyond() {
        let mut scalable = begun();
        let fallen = rounds(&mut scalable, SEC, 1, 50);
        assert!(fallen < BW);
        let from = SEC + 25 * MS;
        let after = |scalable: &mut Scalable, rounds: u64| {
            let mut bw = fallen;
            for n in 0..25 * rounds {
                bw = scalable.grow(time(from + n * MS), bw, (PACKET, 10 * MS));
            }
            bw
        };
        let one = rate_of(PACKET, REFERENCE);
        let grown = (after(&mut scalable, 11) - fallen) / one;
        assert!((7.0..9.0).contains(&grown), "{grown}");
        scalable.peak = 0.0;
        assert!(after(&mut scalable, 40) > 1.5 * BW);
    }

    /// It grew from whatever was sent before a pause until the pause was over, and by an eighth in a round at the end: a flow that sends a packet
    /// now and then knew no limit after some minutes, and one that went on after a minute sent several times what it knew of.
    #[test]
    fn who_does_not_fill_the_rate_does_not_grow() {
        let mut bbr = Bbr::new(CcParams::default());
        bbr.bw = BW;
        bbr.enter(Phase::Cruise, time(SEC));
        bbr.scalable = begun();
        let acknowledge = |bbr: &mut Bbr, packet: PacketInfo| {
            let rtt = 10 * MS;
            bbr.on_ack(&AckSummary {
                now: packet.sent_at + rtt,
                acked: &[packet],
                lost: &[],
                rtt_sample: Some(rtt),
                srtt: rtt,
                arrival: None,
                ce_marked: 0,
                is_scalable: true,
                ecn_capable: true,
                bytes_in_flight: 0,
            });
        };
        let send = |bbr: &mut Bbr, number: u64, at: Nanos, is_filled: bool| {
            let packet = PacketInfo {
                pn: PacketNumber::new(number),
                sent_at: time(at),
                ip_bytes: 1500,
            };
            bbr.on_sent(packet.sent_at, packet.pn, packet.ip_bytes, 1500);
            if !is_filled {
                bbr.on_app_limited(packet.sent_at);
            }
            acknowledge(bbr, packet);
            bbr.bw
        };
        for number in 0..1000 {
            let bw = send(&mut bbr, number, 2 * SEC + number * 40 * MS, false);
            assert_eq!(bw, BW, "{number}");
        }
        // Now and then it is asked whether the peer is there.
        for n in 0..20 {
            assert_eq!(send(&mut bbr, 1000 + n, (45 + 3 * n) * SEC, true), BW);
        }
        // A minute later it sends as much as it may.
        let packets = [1020, 1021].map(|number| PacketInfo {
            pn: PacketNumber::new(number),
            sent_at: time(110 * SEC),
            ip_bytes: 1500,
        });
        for (packet, in_flight) in packets.iter().zip([1500, 3000]) {
            bbr.on_sent(packet.sent_at, packet.pn, packet.ip_bytes, in_flight);
        }
        acknowledge(&mut bbr, packets[1]);
        assert_eq!(bbr.bw, BW);
        let grown = send(&mut bbr, 1022, 110 * SEC + 25 * MS, true) - BW;
        let one = rate_of(PACKET, REFERENCE);
        assert!((0.5 * one..3.0 * one).contains(&grown), "{grown}");
    }

    #[test]
    fn a_long_queue_makes_marks_classic_for_a_while() {
        let mut scalable = begun();
        let at = |n: u64, queue| Reading {
            queue,
            ..reading(SEC + n * 25 * MS, 100, 10)
        };
        for n in 1..=DOUBTS_MAX.into() {
            assert!(scalable.is_on(), "{n}");
            scalable.on_ack(&at(n, 15 * MS), BW, PACKET);
        }
        assert!(!scalable.is_on());
        let response = scalable.on_ack(&at(20, 15 * MS), BW, PACKET);
        assert_eq!(response, Response::Classic);
        let response = scalable.on_ack(&at(20 + 200, MS), BW, PACKET);
        assert_eq!(response, Response::Begin);
        for n in 221..300 {
            scalable.on_ack(&at(n, MS), BW, PACKET);
        }
        assert_eq!(scalable.doubts, 0);
    }
}
