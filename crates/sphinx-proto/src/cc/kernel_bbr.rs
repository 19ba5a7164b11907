//! A sender like the BBR of Linux (version 1), for tests: paced at the highest rate of delivery of ten rounds, with at most twice what that and the
//! smallest round trip hold under way. Losses hold it up for a round trip only (Cardwell et al., 2016; draft-cardwell-iccrg-bbr-congestion-control-00).

use std::collections::{BTreeMap, VecDeque};

use super::{AckSummary, MS, Nanos, PacketNumber, RateControl, SEC, Time, bytes_in, rate_of};

const PACKET: f64 = 1500.0;
const HIGH_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const CWND_GAIN: f64 = 2.0;
const BW_ROUNDS: u64 = 10;
/// Three bursts of segments are allowed beyond the window.
const BURSTS: f64 = 12.0 * PACKET;
const MIN_RTT_LASTS: Nanos = 10 * SEC;
const PROBE_RTT: Nanos = 200 * MS;
const CWND_MIN: f64 = 4.0 * PACKET;
/// Of what it could send it asks for a little less.
const PACING_MARGIN: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

#[derive(Clone, Copy)]
struct Sent {
    at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
}

pub(super) struct KernelBbr {
    mode: Mode,
    sent: BTreeMap<PacketNumber, Sent>,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    next_round: u64,
    round: u64,
    /// Highest rates: round, bytes per second.
    rates: VecDeque<(u64, f64)>,
    full_bw: f64,
    full_rounds: u32,
    min_rtt: Nanos,
    min_rtt_at: Time,
    probe_rtt_until: Option<Time>,
    cycle: usize,
    cycle_at: Time,
    cwnd: f64,
    before: f64,
    /// Until so much has been delivered, only what has arrived is replaced.
    conserves_until: Option<u64>,
    in_flight: f64,
}

impl KernelBbr {
    pub(super) fn new() -> Self {
        Self {
            mode: Mode::Startup,
            sent: BTreeMap::new(),
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent_at: Time::ZERO,
            next_round: 0,
            round: 0,
            rates: VecDeque::new(),
            full_bw: 0.0,
            full_rounds: 0,
            min_rtt: 0,
            min_rtt_at: Time::ZERO,
            probe_rtt_until: None,
            cycle: 2,
            cycle_at: Time::ZERO,
            cwnd: 10.0 * PACKET,
            before: 0.0,
            conserves_until: None,
            in_flight: 0.0,
        }
    }

    fn bw(&self) -> f64 {
        self.rates.iter().map(|it| it.1).fold(0.0, f64::max)
    }

    fn bdp(&self) -> f64 {
        bytes_in(self.bw(), self.min_rtt)
    }

    fn gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBw => CYCLE[self.cycle],
            Mode::ProbeRtt => 1.0,
        }
    }

    fn note_rate(&mut self, rate: f64) {
        let round = self.round;
        self.rates
            .retain(|it| it.0 + BW_ROUNDS > round && it.1 > rate);
        self.rates.push_back((round, rate));
    }

    fn step(&mut self, now: Time, is_round: bool, has_lost: bool) {
        match self.mode {
            Mode::Startup if is_round => {
                if self.bw() >= 1.25 * self.full_bw {
                    self.full_bw = self.bw();
                    self.full_rounds = 0;
                } else {
                    self.full_rounds += 1;
                    if self.full_rounds >= 3 {
                        self.mode = Mode::Drain;
                    }
                }
            }
            Mode::Drain if self.in_flight <= self.bdp() => {
                self.mode = Mode::ProbeBw;
                self.cycle = 2;
                self.cycle_at = now;
            }
            Mode::ProbeBw => {
                let is_long = now.saturating_sub(self.cycle_at) > self.min_rtt;
                let is_over = match self.gain() {
                    gain if gain > 1.0 => {
                        is_long && (has_lost || self.in_flight >= gain * self.bdp())
                    }
                    gain if gain < 1.0 => is_long || self.in_flight <= self.bdp(),
                    _ => is_long,
                };
                if is_over {
                    self.cycle = (self.cycle + 1) % CYCLE.len();
                    self.cycle_at = now;
                }
            }
            Mode::ProbeRtt => {
                let until = self.probe_rtt_until;
                if until.is_none() && self.in_flight <= CWND_MIN {
                    self.probe_rtt_until = Some(now + PROBE_RTT);
                } else if until.is_some_and(|until| now >= until) {
                    self.min_rtt_at = now;
                    self.cwnd = self.cwnd.max(self.before);
                    self.mode = Mode::ProbeBw;
                    self.cycle = 2;
                    self.cycle_at = now;
                }
            }
            _ => {}
        }
    }
}

impl RateControl for KernelBbr {
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, in_flight: u64) {
        if in_flight <= u64::from(ip_bytes) {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let sent = Sent {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
        };
        self.sent.insert(pn, sent);
        self.in_flight = in_flight as f64;
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let now = ack.now;
        self.in_flight = ack.bytes_in_flight as f64;
        let acked = ack.acked.len() as f64 * PACKET;
        self.delivered += acked as u64;
        if acked > 0.0 {
            self.delivered_at = now;
        }
        let newest = ack.acked.iter().map(|it| it.pn).max();
        let newest = newest.and_then(|pn| self.sent.get(&pn).copied());
        for packet in ack.acked.iter().chain(ack.lost) {
            self.sent.remove(&packet.pn);
        }
        let mut is_round = false;
        if let Some(of) = newest {
            self.first_sent_at = of.at;
            is_round = of.delivered >= self.next_round;
            if is_round {
                self.next_round = self.delivered;
                self.round += 1;
            }
            let span = (of.at - of.first_sent_at).max(now - of.delivered_at);
            if span >= self.min_rtt && span > 0 {
                let rate = rate_of((self.delivered - of.delivered) as f64, span);
                self.note_rate(rate);
            }
        }
        let is_stale = self.min_rtt > 0 && now.saturating_sub(self.min_rtt_at) > MIN_RTT_LASTS;
        if let Some(rtt) = ack.rtt_sample
            && (self.min_rtt == 0 || rtt <= self.min_rtt || is_stale)
        {
            self.min_rtt = rtt;
            self.min_rtt_at = now;
        }
        if is_stale && self.mode == Mode::ProbeBw {
            self.mode = Mode::ProbeRtt;
            self.before = self.cwnd;
            self.probe_rtt_until = None;
        }
        self.step(now, is_round, !ack.lost.is_empty());

        let lost = ack.lost.len() as f64 * PACKET;
        if lost > 0.0 {
            self.cwnd = (self.cwnd - lost).max(PACKET);
            if self.conserves_until.is_none() {
                self.before = self.before.max(self.cwnd + lost);
                self.conserves_until = Some(self.delivered + self.in_flight as u64);
                self.cwnd = self.in_flight + acked;
            }
        }
        match self.conserves_until {
            Some(until) if self.delivered >= until => {
                self.conserves_until = None;
                self.cwnd = self.cwnd.max(self.before);
                self.before = 0.0;
            }
            Some(_) => self.cwnd = self.cwnd.max(self.in_flight + acked),
            None => {}
        }
        if self.conserves_until.is_none() {
            let target = match self.mode {
                Mode::Startup | Mode::Drain => HIGH_GAIN * self.bdp() + BURSTS,
                _ => CWND_GAIN * self.bdp() + BURSTS,
            };
            self.cwnd = match self.mode {
                Mode::Startup => self.cwnd + acked,
                _ => (self.cwnd + acked).min(target),
            };
        }
        self.cwnd = self.cwnd.max(CWND_MIN);
        if self.mode == Mode::ProbeRtt {
            self.cwnd = self.cwnd.min(CWND_MIN);
        }
    }

    fn on_app_limited(&mut self, _: Time) {}

    fn on_persistent_loss(&mut self, _: Time) {
        self.cwnd = CWND_MIN;
    }

    fn pacing_rate(&self) -> u64 {
        let bw = match self.min_rtt {
            0 => rate_of(10.0 * PACKET, MS),
            _ if self.rates.is_empty() => rate_of(10.0 * PACKET, self.min_rtt),
            _ => self.bw(),
        };
        (PACING_MARGIN * self.gain() * bw).max(1.0) as u64
    }

    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.bw() as u64
    }

    fn min_rtt(&self) -> Option<Nanos> {
        (self.min_rtt > 0).then_some(self.min_rtt)
    }

    fn phase_name(&self) -> &'static str {
        match self.mode {
            Mode::Startup => "startup",
            Mode::Drain => "drain",
            Mode::ProbeBw => "probe-bw",
            Mode::ProbeRtt => "probe-rtt",
        }
    }
}
