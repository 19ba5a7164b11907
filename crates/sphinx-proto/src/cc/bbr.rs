//! The default controller: a model of the link in the manner of BBR, made for lossy links.
//!
//! BBR paces at the highest *delivered* rate; behind a link of rate C that loses a share p it then
//! sends C(1−p) and gets C(1−p)². Here the estimate is the rate of the **link**: delivered bytes
//! plus those that the channel lost after the link had carried them.
//!
//! - *Samples* ([`super::sampler`]) use the receiver's clock over one phase of sending. If packets
//!   came out slower than they went in, the link was the limit and the sample *is* its rate: it is
//!   averaged in. Otherwise it is a lower bound: it can only raise the estimate. So neither an
//!   application that sends little nor noise moves the estimate.
//! - *Losses* ([`super::loss`]) count as channel loss unless they come with a queue, exceed what is
//!   known of the channel, or vanish when the rate is lowered.
//!
//! | phase | pace, of the estimate | window, BDPs | until |
//! | --- | --- | --- | --- |
//! | start-up | a train at 2, the rest of the round at 1 | grows | packets come out slower than they go in, or nothing new arrives for two rounds, or a queue stands where the delay varies, or a policer shows |
//! | drain | 0.75 | 1 | the queue is gone |
//! | cruise | 1 (0.98 after probes that lost) | 2 | 4 to 64 rounds: the more, the more probes in a row lost packets; 1 where delay and rate have varied of late |
//! | sharing | 1; the estimate grows with time | 2 | a mark, or a queue where nothing marks ([`crowd`]): then down, at 0.85 of the estimate, or less where more is lost ([`sharing`]); beside somebody who does not yield ([`rival`]), losses |
//! | scalable | 1; the estimate grows by a packet in a round | 2 | a new start-up: marks of ECT(1) lower the estimate by their share ([`scalable`]) |
//! | up | 1.25 (for a train of a quarter round where a policer is suspected) | 2 | its first sample: more than 1.12 of the estimate leads back to start-up; or a queue, where the delay varies |
//! | down | 0.75 (0.5 in doubt) | 1.25 | the queue is gone and enough has left below the estimate to know what the channel loses by itself |
//! | probe-rtt | 1 | 0.5 | two rounds; rare, since down empties the queue in every cycle |
//! | blackout | probes only | 2 packets | anything is acknowledged: then start-up from half the rate |
//!
//! [`super::startup`] has the first phase, [`super::resume`] its shortcut on a remembered path, `cycle` the
//! others, and how policers are told from lossy channels. The measurements behind the constants are in
//! `docs/decisions/0007-rate-control.md`.

mod crowd;
mod cycle;
mod listener;
mod meter;
mod rival;
mod scalable;
mod sharing;
mod span;

use crate::PacketNumber;

use super::loss::{ChannelLoss, Pace};
use super::path::PathDelay;
use super::resume::{CarefulResume, Jump};
use super::sampler::{RateSampler, Sample, Settled};
use super::startup::{INITIAL_PACKETS, Round, Startup, Verdict};
use super::{AckSummary, CcParams, MS, Nanos, RateControl, Time, bytes_in, rate_of, time_for};
use crowd::Crowd;
use scalable::Scalable;
use sharing::{Evidence, Sharing};

/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;
/// The window never falls below this many packets.
const MIN_PACKETS: f64 = 10.0;
/// Window while nothing comes back, packets.
const PROBE_PACKETS: f64 = 2.0;
const UP_GAIN: f64 = 1.25;
const DOWN_GAIN: f64 = 0.75;
/// Probe down where the estimate is in doubt.
const DOUBT_GAIN: f64 = 0.5;
/// Cruise where probes lose packets: a little below the estimate the channel's own loss shows, so
/// that the estimate cannot feed on the losses that it causes.
const WARY_GAIN: f64 = 0.98;
/// Congestion window in bandwidth-delay products.
const CWND_GAIN: f64 = 2.0;
const DOWN_CWND_GAIN: f64 = 1.25;
/// Rate after CE in cruise, once per round.
const CE_FACTOR: f64 = 0.85;
/// A policer that start-up has met is as if so many probes had found losses.
const POLICED_CAUTION: u32 = 2;
/// Part of an old rate that is resumed at once (after a blackout, or from an earlier session).
const RESUME_FACTOR: f64 = 0.5;
/// Shortest round: SACKs come about once a millisecond, however short the path.
const MIN_ROUND: Nanos = 2 * MS;
/// Fewest packets of a round on a slow link.
const ROUND_PACKETS: f64 = 16.0;

/// A delay varies by itself if it does so by more than so many packets take. (A flow among others sees some of its packets come earlier than its
/// own rate has them: the queue between two of them was now longer, now shorter.)
const VARIES_PACKETS: f64 = 16.0;
/// Loss in start-up that is believed to lie behind the link at most. Beside others in a full queue, whose packets hide it, a flow that takes
/// all its losses for the channel's sends more the more it loses.
const LOSS_BELIEVED: f64 = 0.6;
/// Channel loss at which marks may be those of a queue that has been full since before the flow began.
const LOSS_OF_ONE: f64 = 0.1;
/// Loss beyond the channel's that counts like marks among several flows.
const LOSS_SHARED: f64 = 0.1;
/// Queueing delay that a probe leaves behind at most, on a link that is not slow.
const LEFT_BY_PROBES: Nanos = 2 * MS;
/// Loss of a train that stretched, believed to lie behind the link while the channel is unknown: beyond that
/// the train may have been more than the link's queue holds.
const LOSS_UNPROVEN: f64 = 0.3;

/// Where the controller is in its cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Looking for the link's rate.
    Startup,
    /// Emptying a queue.
    Drain,
    /// At the estimated rate.
    Cruise,
    /// Above the estimate, to find out whether the link carries more.
    Up,
    /// Below it, to empty the queue and to see what the channel loses by itself.
    Down,
    /// Half a BDP in flight, to see the round trip without a queue of ours.
    ProbeRtt,
    /// Nothing comes back: probes only.
    Blackout,
}

/// Rate control by a model of the link.
#[derive(Debug)]
pub struct Bbr {
    packet_bytes: f64,
    sampler: RateSampler,
    delay: PathDelay,
    loss: ChannelLoss,
    /// Estimate of the link, bytes per second.
    bw: f64,
    phase: Phase,
    phase_at: Time,
    phase_round: u64,
    /// First run of the phase (see [`RateSampler::start_run`]).
    phase_run: u64,
    /// Round trips, counted by packets (draft-ietf-ccwg-bbr, section 5.5.1).
    round: u64,
    round_at: Time,
    round_end_pn: PacketNumber,
    startup: Startup,
    /// Estimate when probe up began.
    up_from: f64,
    /// Bytes sent in this probe up.
    up_sent: f64,
    /// Estimate before the first of several probes in a row.
    probe_from: f64,
    /// Probes in a row that found capacity.
    growths: u32,
    /// This cycle's probe lost more than the channel does.
    up_lost_too_much: bool,
    /// Probes in a row that found losses instead of capacity.
    lossy_probes: u32,
    /// Start-up has met a policer.
    is_policed: bool,
    /// The estimate carried more loss than a lower rate did, or has not been compared yet.
    in_doubt: bool,
    /// Samples in a row far below the estimate, and with too much loss.
    slow_samples: u32,
    slow_since: Time,
    lossy_samples: u32,
    /// Round of the last reaction to CE.
    ce_round: Option<u64>,
    /// What an earlier session knew.
    resume: CarefulResume,
    /// A start-up has come to an end.
    found: bool,
    /// Length of the latest sample by which start-up took the link's rate as known; without one, as long as can be.
    measured_over: Nanos,
    /// Estimate that a lower one is being compared with.
    before_trial: f64,
    /// First run at the present estimate.
    trial_run: u64,
    /// Smallest round trip seen in this ProbeRTT.
    probe_rtt_min: Option<Nanos>,
    /// Cycles in a row in which no round trip came near the minimum.
    cycles_without_min: u32,
    sharing: Sharing,
    scalable: Scalable,
    /// Sender's clock at the latest call.
    latest: Time,
    /// When a packet left while nothing was under way.
    flight_at: Time,
    /// When the link was last found to have become faster, or much slower.
    varied_at: Option<Time>,
    crowd: Crowd,
}

impl Bbr {
    /// A controller for a path; with [`CcParams::memory`] a careful resume
    /// (draft-ietf-tsvwg-careful-resume): half the remembered rate once the round trip agrees. With
    /// [`CcParams::before`] start-up begins at the rate that another controller had found.
    pub fn new(params: CcParams) -> Self {
        let mut bbr = Self::at_rest(params);
        if let Some(before) = params.before {
            let least = INITIAL_PACKETS * bbr.packet_bytes;
            bbr.delay = PathDelay::known(before.min_rtt, before.srtt);
            bbr.flight_at = before.now;
            bbr.bw = rate_of(before.window(), before.min_rtt).max(1.0);
            bbr.startup = Startup::resumed((bbr.bdp() + bbr.slack()).max(least), None);
        }
        bbr
    }

    fn at_rest(params: CcParams) -> Self {
        let packet_bytes = f64::from(params.packet_bytes.max(64));
        let remembered = params.memory.filter(|memory| {
            let seen = params.rtt.unwrap_or(0);
            (memory.rtt / 2..=memory.rtt.saturating_mul(2)).contains(&seen)
        });
        let rate = remembered.map(|memory| memory.rate as f64);
        let startup = Startup::new(packet_bytes, params.rtt, rate);
        Self {
            packet_bytes,
            sampler: RateSampler::new(Phase::Startup),
            delay: PathDelay::default(),
            loss: ChannelLoss::default(),
            bw: startup.initial_rate(),
            phase: Phase::Startup,
            phase_at: Time::ZERO,
            phase_round: 0,
            phase_run: 0,
            round: 0,
            round_at: Time::ZERO,
            round_end_pn: PacketNumber::ZERO,
            startup,
            up_from: 0.0,
            up_sent: 0.0,
            probe_from: f64::INFINITY,
            growths: 0,
            up_lost_too_much: false,
            lossy_probes: 0,
            is_policed: false,
            in_doubt: false,
            slow_samples: 0,
            slow_since: Time::ZERO,
            lossy_samples: 0,
            ce_round: None,
            resume: CarefulResume::new(params.memory),
            found: false,
            measured_over: Nanos::MAX,
            before_trial: 0.0,
            trial_run: 0,
            probe_rtt_min: None,
            cycles_without_min: 0,
            sharing: Sharing::default(),
            scalable: Scalable::default(),
            latest: Time::ZERO,
            flight_at: Time::ZERO,
            varied_at: None,
            crowd: Crowd::default(),
        }
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn rtt(&self) -> Nanos {
        self.delay.base_rtt().unwrap_or(INITIAL_RTT)
    }

    fn bdp(&self) -> f64 {
        bytes_in(self.bw, self.rtt())
    }

    /// Bytes in flight beyond the BDP that are no queue: SACK interval and pacing quantum.
    fn slack(&self) -> f64 {
        bytes_in(self.bw, MS) + 2.0 * self.packet_bytes
    }

    /// The delay varies by itself, whether or not others are there.
    fn does_delay_vary(&self) -> bool {
        self.sampler.jitter() > time_for(VARIES_PACKETS * self.packet_bytes, self.bw)
    }

    /// Samples are short beside a delay that varies by itself, and no mark has ever told of a queue: to know the link takes time.
    fn is_delay_vague(&self) -> bool {
        self.ce_round.is_none() && self.does_delay_vary()
    }

    /// Queueing delay that is worth noticing.
    fn queue_threshold(&self) -> Nanos {
        (self.rtt() / 10)
            .max(MS)
            .saturating_add(self.sampler.jitter())
            .saturating_add(time_for(2.0 * self.packet_bytes, self.bw))
    }

    /// No queue and no jitter has been seen, and a round trip has room for more than a few packets: what is lost is lost by the channel or by
    /// a policer.
    fn is_without_queue(&self) -> bool {
        let group = time_for(ROUND_PACKETS * self.packet_bytes, self.bw);
        !self.has_seen_queue() && self.sampler.jitter() == 0 && 2 * group < self.rtt()
    }

    fn has_queue(&self) -> bool {
        self.delay.queue() > self.queue_threshold()
    }

    fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = phase;
        self.phase_at = now;
        self.phase_round = self.round;
        self.phase_run = self.sampler.start_run(phase);
        self.slow_samples = 0;
        self.lossy_samples = 0;
        if matches!(phase, Phase::Startup | Phase::Blackout) {
            self.sharing.end();
            self.scalable.end();
        }
        match phase {
            Phase::Startup => {
                self.is_policed = false;
                self.loss.end_trial();
                self.startup = Startup::with_cwnd(self.startup_window(), self.loss.known());
                self.up_from = self.bw;
            }
            Phase::Up => {
                self.up_from = self.bw;
                self.up_sent = 0.0;
            }
            Phase::Cruise => self.crowd.meter.begin(),
            Phase::ProbeRtt => self.probe_rtt_min = None,
            Phase::Down => self.begin_low_rate(now),
            Phase::Drain | Phase::Blackout => {}
        }
    }

    /// Window of a start-up that begins now.
    fn startup_window(&self) -> f64 {
        CWND_GAIN * self.bdp() + self.slack() + MIN_PACKETS * self.packet_bytes
    }

    fn rounds_in_phase(&self) -> u64 {
        self.round - self.phase_round
    }

    /// Shortest round: enough SACKs and packets to judge by.
    fn min_round(&self) -> Nanos {
        MIN_ROUND.max(time_for(ROUND_PACKETS * self.packet_bytes, self.bw))
    }

    fn on_round(&mut self, now: Time) {
        self.round += 1;
        // In a pause nothing could arrive.
        let lasted = now.saturating_sub(self.round_at.max(self.flight_at));
        self.round_at = now;
        self.sampler.on_round();
        let usual = !matches!(self.phase, Phase::ProbeRtt | Phase::Blackout);
        self.delay.on_round(usual);
        self.round_end_pn = self.sampler.last_pn().saturating_add(1);
        if self.phase == Phase::Startup {
            // Samples begin with the train.
            self.phase_run = self.sampler.start_run(Phase::Startup);
            let round = Round {
                lasted,
                rtt: self.rtt(),
                has_queue: self.has_queue(),
                is_marked: self.ce_round.is_some(),
                train: self.startup_train(),
                packet_bytes: self.packet_bytes,
            };
            let (bw, verdict) = self.startup.on_round(self.bw, &round);
            self.bw = bw;
            self.judge_startup(verdict, now);
        }
    }

    fn judge_startup(&mut self, verdict: Verdict, now: Time) {
        self.found |= verdict != Verdict::Grow;
        match verdict {
            Verdict::Grow => {}
            Verdict::Found => self.enter(Phase::Drain, now),
            Verdict::Policed => {
                self.up_lost_too_much = true;
                self.lossy_probes = self.lossy_probes.max(POLICED_CAUTION);
                self.in_doubt = true;
                self.enter(Phase::Down, now);
            }
        }
    }

    /// Packets of start-up were settled: a policer may show, or a queue that stands. (Where the delay varies by itself, samples are too short to
    /// show that the link is the limit.)
    fn on_startup_settled(&mut self, settled: &Settled, now: Time) {
        let is_sharp = self.is_without_queue();
        if let Some(rate) = self.startup.on_settled(settled, is_sharp) {
            self.bw = self.bw.min(rate);
            self.is_policed = true;
            self.judge_startup(Verdict::Policed, now);
            return;
        }
        let has_queue = self.has_queue() && self.is_delay_vague();
        let least = self.standing_span();
        if let Some(arrives) = self.startup.on_queue(settled, has_queue, least) {
            let known = self.startup.loss().unwrap_or(0.0).min(LOSS_BELIEVED);
            self.bw = self.bw.min(arrives / (1.0 - known)).max(1.0);
            self.judge_startup(Verdict::Found, now);
        }
    }

    fn on_sample(&mut self, s: Sample, now: Time) {
        if self.sharing.is_by_queue() {
            self.on_crowd_sample(&s, now);
            return;
        }
        let channel = self.loss.channel();
        if self.scalable.is_on() {
            self.on_scalable_sample(&s, channel, now);
            return;
        }
        if self.sharing.is_on() {
            // A queue that is full although it marks, or another one.
            if s.loss() > channel + self.tolerance(&s, channel).max(LOSS_SHARED) {
                self.on_shared(now, CE_FACTOR);
            }
            return;
        }
        if self.meets_others(&s, now) {
            return;
        }
        let lossy = s.loss() > channel + self.tolerance(&s, channel);
        let strict = (s.delivered_rate() / (1.0 - channel)).min(s.full_rate());
        if s.run.phase == Phase::Startup && self.phase == Phase::Startup {
            // A queue that grows is not full: what is missing was lost behind it. Otherwise growth
            // must show in what arrives.
            let stretched = s.stretched(8) && !self.is_brief(&s);
            let known = self.startup.loss().unwrap_or(channel).min(LOSS_BELIEVED);
            let strict = (s.delivered_rate() / (1.0 - known)).min(s.full_rate());
            let bearable = self.loss.known().unwrap_or(0.0).max(LOSS_UNPROVEN);
            let rate = if stretched {
                s.full_rate().min(s.delivered_rate() / (1.0 - bearable))
            } else {
                strict
            };
            if stretched {
                self.measured_over = s.recv_interval;
            }
            let rtt = self.rtt();
            let bw = self.startup.on_sample(&s, (rate, stretched), self.bw, rtt);
            self.bw = if s.app_limited {
                bw.max(self.up_from)
            } else {
                bw
            };
            let verdict = self.startup.grow(CWND_GAIN, self.bdp(), self.slack());
            self.judge_startup(verdict, now);
        } else {
            let wary = lossy || (s.run.phase == Phase::Up && self.caution() > 0);
            let rate = if wary { strict } else { s.full_rate() };
            self.on_cycle_sample(s, rate, lossy, now);
        }
    }

    fn on_ce(&mut self, now: Time) {
        if self.sharing.is_by_queue() {
            // ECN marks tell of sharing more exactly than the queue.
            self.sharing.end();
        }
        if self.sharing.is_on() {
            self.on_shared(now, CE_FACTOR);
            return;
        }
        if self.ce_round == Some(self.round) {
            return;
        }
        self.ce_round = Some(self.round);
        match self.phase {
            Phase::Up => self.enter(Phase::Down, now),
            Phase::Startup => self.judge_startup(Verdict::Found, now),
            // Marks of the first round belong to what was sent before.
            Phase::Cruise | Phase::Down | Phase::Drain if self.rounds_in_phase() < 2 => {}
            Phase::Cruise => self.on_shared(now, CE_FACTOR),
            Phase::Down | Phase::Drain => self.fall(now, CE_FACTOR),
            Phase::ProbeRtt | Phase::Blackout => {}
        }
    }

    /// Sends less for good, by the factor `by`, and still less until the queue is gone.
    fn fall(&mut self, now: Time, by: f64) {
        self.bw *= by;
        // Nothing that this flow does empties the queue of one who does not yield.
        let phase = match self.does_queue_stand() {
            true => Phase::Cruise,
            false => Phase::Down,
        };
        self.enter(phase, now);
    }

    /// The queue asks all that share it to send less, by the factor `by`.
    fn on_shared(&mut self, now: Time, by: f64) {
        let times = (self.delay.smoothed(), self.min_round());
        let number = self.sampler.last_pn().get();
        let evidence = self.evidence();
        if self.sharing.on_marks(now, times, number, evidence) {
            self.fall(now, by);
        }
    }

    /// Whether a mark in a cruise is due to others.
    fn evidence(&self) -> Evidence {
        if self.has_queue() || self.loss.channel() > LOSS_OF_ONE {
            Evidence::Others
        } else if self.delay.above_smallest() > LEFT_BY_PROBES {
            Evidence::Queue
        } else {
            Evidence::Nothing
        }
    }

    /// First feedback after a blackout, or first round trip of a resumed path.
    fn resume(&mut self, rate: f64, loss: Option<f64>, now: Time) {
        self.bw = rate.max(1.0);
        self.enter(Phase::Startup, now);
        let least = INITIAL_PACKETS * self.packet_bytes;
        self.startup = Startup::resumed((self.bdp() + self.slack()).max(least), loss);
    }

    /// The first packets have arrived: may the rest of start-up be skipped?
    fn try_resume(&mut self, sample: &Sample, now: Time) {
        let jump = self.resume.judge(&Jump {
            rtt: self.rtt(),
            has_queue: self.has_queue(),
            loss: (sample.packets, sample.packets_lost),
            link: sample.stretched(8).then(|| sample.full_rate()),
        });
        if let Some((rate, loss)) = jump
            && rate > self.bw
        {
            self.resume(rate, Some(loss), now);
        }
    }
}

impl RateControl for Bbr {
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, bytes_in_flight: u64) {
        self.latest = now;
        if bytes_in_flight <= u64::from(ip_bytes) {
            self.flight_at = now;
            self.scalable.leave_alone(pn);
        }
        self.sampler.on_sent(now, pn, ip_bytes, self.bw);
        match self.phase {
            Phase::Startup => {
                let ends_train = self.startup.on_sent(ip_bytes);
                if ends_train {
                    self.phase_run = self.sampler.start_run(Phase::Startup);
                }
            }
            Phase::Up => self.up_sent += f64::from(ip_bytes),
            _ => {}
        }
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let now = ack.now;
        self.latest = now;
        self.delay.on_ack(ack, self.sampler.jitter());
        if self.delay.take_fall() && self.found {
            // Losses so far, which showed no queue, were those of one that stood all the time.
            self.loss = ChannelLoss::default();
        }
        if !ack.acked.is_empty() && self.phase == Phase::Blackout {
            self.sampler.forget();
            let known = self.loss.known();
            self.resume(RESUME_FACTOR * self.bw, known, now);
        }
        if self.phase == Phase::ProbeRtt
            && self.rounds_in_phase() >= 1
            && let Some(rtt) = ack.rtt_sample
        {
            self.probe_rtt_min = Some(self.probe_rtt_min.map_or(rtt, |m| m.min(rtt)));
        }
        if self.phase == Phase::Startup {
            self.startup.on_ack(ack.acked.len(), ack.lost.len());
        }
        let round_done = ack.acked.iter().any(|p| p.pn >= self.round_end_pn);

        self.sampler.on_ack(ack, self.delay.latest_queue());
        while let Some(settled) =
            self.sampler
                .next_settled(self.sample_span(), self.sample_packets(), self.fastest())
        {
            let pace = match settled.run.phase {
                Phase::Cruise if settled.run.id < self.trial_run => None,
                Phase::Cruise => Some(Pace::Cruise),
                Phase::Down | Phase::Drain => Some(Pace::Low),
                Phase::Startup | Phase::Up | Phase::ProbeRtt | Phase::Blackout => None,
            };
            if let Some(sample) = settled.sample.filter(|s| self.is_usable(s)) {
                self.on_sample(sample, now);
                if self.resume.is_waiting() && self.phase == Phase::Startup {
                    self.try_resume(&sample, now);
                }
            }
            if settled.run.phase == Phase::Startup && self.phase == Phase::Startup {
                self.on_startup_settled(&settled, now);
            }
            if let Some(pace) = pace {
                let (packets, lost) = (settled.packets, settled.packets_lost);
                if pace == Pace::Low {
                    self.crowd.on_low(packets, lost);
                }
                // With a queue, losses may be those that it causes.
                if settled.queue <= self.queue_threshold() {
                    self.loss
                        .on_settled(pace, packets, lost, self.caution() > 0);
                }
            }
        }
        if ack.is_scalable {
            self.on_scalable(ack);
        } else if self.scalable.is_on() && self.phase != Phase::Blackout {
            // The path does not carry ECT(1), it has turned out: what its marks have made of the rate is worth nothing.
            self.enter(Phase::Startup, now);
        } else if ack.ce_marked > 0 {
            self.on_ce(now);
        }
        let round_done = round_done && now.saturating_sub(self.round_at) >= self.min_round();
        if round_done {
            self.on_round(now);
        }
        self.step(now, ack.bytes_in_flight as f64, round_done);
    }

    fn on_app_limited(&mut self, _now: Time) {
        self.sampler.on_app_limited();
        self.scalable.pause();
        // What does not fill its rate learns nothing of it.
        self.sharing.end();
        self.startup.on_app_limited();
    }

    fn on_late(&mut self, from: Time) {
        self.sampler.on_late(from);
    }

    fn on_persistent_loss(&mut self, now: Time) {
        // Before the first round trip the timer is a guess and the first flight bounds the harm.
        if self.phase != Phase::Blackout && self.delay.min_rtt().is_some() {
            self.enter(Phase::Blackout, now);
        }
    }

    fn pacing_rate(&self) -> u64 {
        let gain = match self.phase {
            Phase::Startup => self.startup.gain(self.bw),
            Phase::Up if self.caution() > 0 && self.up_sent > self.train() => 1.0,
            // The rate does not rise with the capacity that this probe has found.
            Phase::Up => UP_GAIN * self.up_from / self.bw.max(1.0),
            Phase::Down if self.crowd.listener.is_on() => listener::GAIN,
            Phase::Down if self.in_doubt => DOUBT_GAIN,
            Phase::Drain | Phase::Down => DOWN_GAIN,
            Phase::Cruise if self.scalable.is_on() => self.scalable.gain(self.latest),
            Phase::Cruise if self.lossy_probes >= 2 => WARY_GAIN,
            Phase::Cruise | Phase::ProbeRtt | Phase::Blackout => 1.0,
        };
        // However little is believed in, the smallest window leaves within a second: with less there
        // would be no samples to believe in more.
        (gain * self.bw).max(MIN_PACKETS * self.packet_bytes) as u64
    }

    fn cwnd(&self) -> u64 {
        let jitter = self.delay.deviation().saturating_mul(4).min(self.rtt());
        let window = match self.phase {
            Phase::Startup => self.startup.cwnd(),
            Phase::Drain => self.bdp() + self.slack(),
            Phase::ProbeRtt => self.bdp() / 2.0,
            Phase::Blackout => return (PROBE_PACKETS * self.packet_bytes) as u64,
            Phase::Cruise | Phase::Up | Phase::Down => {
                // Below the estimate less is under way, and a path that has died is noticed later.
                let gain = match self.phase {
                    Phase::Down => DOWN_CWND_GAIN,
                    _ => CWND_GAIN,
                };
                gain * self.bdp() + self.slack() + bytes_in(self.bw, jitter)
            }
        };
        window.max(MIN_PACKETS * self.packet_bytes) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.bw as u64
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.delay.min_rtt()
    }

    fn measured_rate(&self) -> Option<u64> {
        self.found.then_some(self.bw as u64)
    }

    fn is_starting(&self) -> bool {
        !self.found
    }

    fn can_scale(&self) -> bool {
        true
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        self.packet_bytes = f64::from(ip_bytes.max(64));
    }

    fn phase_name(&self) -> &'static str {
        match self.phase {
            Phase::Startup => "startup",
            Phase::Drain => "drain",
            Phase::Cruise if self.scalable.is_on() => "scalable",
            Phase::Cruise if self.sharing.is_on() => "sharing",
            Phase::Cruise => "cruise",
            Phase::Up => "up",
            Phase::Down => "down",
            Phase::ProbeRtt => "probe-rtt",
            Phase::Blackout => "blackout",
        }
    }
}
