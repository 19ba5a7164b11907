//! A neighbour for tests: BBR as Linux has had it since 4.9 (draft-cardwell-iccrg-bbr-congestion-control-00), which does not ask what was lost.

use std::collections::{BTreeMap, VecDeque};

use crate::PacketNumber;

use super::{AckSummary, MS, Nanos, RateControl, SEC, Time, bytes_in, rate_of};

const PACKET: f64 = super::testflows::PACKET as f64;
const HIGH_GAIN: f64 = 2.885;
const CWND_GAIN: f64 = 2.0;
/// Paces of the cycle, a round trip each.
const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Rounds over which the highest rate counts, and time over which the smallest round trip does.
const RATE_ROUNDS: u64 = 10;
const RTT_TIME: Nanos = 10 * SEC;
const PROBE_RTT_TIME: Nanos = 200 * MS;
const PROBE_RTT_PACKETS: f64 = 4.0;
const INITIAL_PACKETS: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Startup,
    Drain,
    Cycle(usize),
    ProbeRtt(Option<Time>),
}

/// What was known when a packet left (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Time,
    first_at: Time,
    delivered: f64,
    delivered_at: Time,
}

#[derive(Debug)]
pub(super) struct TestBbr {
    mode: Mode,
    mode_at: Time,
    sent: BTreeMap<PacketNumber, Sent>,
    first_sent_at: Time,
    delivered: f64,
    delivered_at: Time,
    /// Highest rates of the latest rounds.
    rates: VecDeque<(u64, f64)>,
    round: u64,
    round_end: f64,
    min_rtt: Nanos,
    min_rtt_at: Time,
    full_rate: f64,
    flat_rounds: u32,
    in_flight: f64,
}

impl TestBbr {
    pub(super) fn new() -> Self {
        Self {
            mode: Mode::Startup,
            mode_at: Time::ZERO,
            sent: BTreeMap::new(),
            first_sent_at: Time::ZERO,
            delivered: 0.0,
            delivered_at: Time::ZERO,
            rates: VecDeque::new(),
            round: 0,
            round_end: 0.0,
            min_rtt: Nanos::MAX,
            min_rtt_at: Time::ZERO,
            full_rate: 0.0,
            flat_rounds: 0,
            in_flight: 0.0,
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    fn bdp(&self) -> f64 {
        if self.min_rtt == Nanos::MAX {
            return INITIAL_PACKETS * PACKET;
        }
        bytes_in(self.rate(), self.min_rtt)
    }

    fn enter(&mut self, mode: Mode, now: Time) {
        self.mode = mode;
        self.mode_at = now;
    }

    fn on_acked(&mut self, now: Time, sent: Sent, bytes: f64) -> bool {
        self.delivered += bytes;
        self.delivered_at = now;
        self.first_sent_at = sent.at;
        let is_round = sent.delivered >= self.round_end;
        if is_round {
            self.round += 1;
            self.round_end = self.delivered;
        }
        let interval = (sent.at - sent.first_at).max(now - sent.delivered_at);
        if interval >= self.min_rtt.min(SEC) {
            let rate = rate_of(self.delivered - sent.delivered, interval);
            let oldest = self.round.saturating_sub(RATE_ROUNDS);
            self.rates
                .retain(|(round, old)| *round >= oldest && *old > rate);
            self.rates.push_back((self.round, rate));
        }
        is_round
    }

    fn step(&mut self, now: Time, is_round: bool, has_lost: bool) {
        let bdp = self.bdp();
        match self.mode {
            Mode::Startup => {
                if is_round {
                    if self.rate() >= 1.25 * self.full_rate {
                        (self.full_rate, self.flat_rounds) = (self.rate(), 0);
                    } else {
                        self.flat_rounds += 1;
                    }
                }
                if self.flat_rounds >= 3 {
                    self.enter(Mode::Drain, now);
                }
            }
            Mode::Drain if self.in_flight <= bdp => self.enter(Mode::Cycle(2), now),
            Mode::Cycle(n) => {
                let is_long = now - self.mode_at > self.min_rtt;
                let is_over = match n {
                    0 => is_long && (has_lost || self.in_flight >= GAINS[0] * bdp),
                    1 => is_long || self.in_flight <= bdp,
                    _ => is_long,
                };
                if is_over {
                    self.enter(Mode::Cycle((n + 1) % GAINS.len()), now);
                }
            }
            Mode::ProbeRtt(None) if self.in_flight <= PROBE_RTT_PACKETS * PACKET => {
                self.mode = Mode::ProbeRtt(Some(now + PROBE_RTT_TIME));
            }
            Mode::ProbeRtt(Some(until)) if now > until => {
                self.min_rtt_at = now;
                let is_full = self.flat_rounds >= 3;
                self.enter(
                    if is_full {
                        Mode::Cycle(2)
                    } else {
                        Mode::Startup
                    },
                    now,
                );
            }
            Mode::Drain | Mode::ProbeRtt(_) => {}
        }
    }
}

impl RateControl for TestBbr {
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, in_flight: u64) {
        if in_flight <= u64::from(ip_bytes) {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        let sent = Sent {
            at: now,
            first_at: self.first_sent_at,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
        };
        self.sent.insert(pn, sent);
        self.in_flight = in_flight as f64;
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let now = ack.now;
        self.in_flight = ack.bytes_in_flight as f64;
        for lost in ack.lost {
            self.sent.remove(&lost.pn);
        }
        let mut is_round = false;
        for acked in ack.acked {
            if let Some(sent) = self.sent.remove(&acked.pn) {
                is_round |= self.on_acked(now, sent, f64::from(acked.ip_bytes));
            }
        }
        let is_old = now - self.min_rtt_at > RTT_TIME;
        if let Some(rtt) = ack.rtt_sample
            && (rtt <= self.min_rtt || is_old)
        {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        if is_old && !matches!(self.mode, Mode::ProbeRtt(_)) && now > Time::ZERO + RTT_TIME {
            self.enter(Mode::ProbeRtt(None), now);
        }
        self.step(now, is_round, !ack.lost.is_empty());
    }

    fn on_app_limited(&mut self, _now: Time) {}

    fn on_persistent_loss(&mut self, _now: Time) {}

    fn pacing_rate(&self) -> u64 {
        let gain = match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::Cycle(n) => GAINS[n],
            Mode::ProbeRtt(_) => 1.0,
        };
        let rate = match self.rate() {
            0.0 => rate_of(INITIAL_PACKETS * PACKET, MS),
            rate => rate,
        };
        (gain * rate).max(PACKET) as u64
    }

    fn cwnd(&self) -> u64 {
        let packets = match self.mode {
            Mode::Startup if self.rate() == 0.0 => INITIAL_PACKETS * PACKET,
            Mode::Startup | Mode::Drain => HIGH_GAIN * self.bdp() + 3.0 * PACKET,
            Mode::Cycle(_) => CWND_GAIN * self.bdp() + 3.0 * PACKET,
            Mode::ProbeRtt(_) => PROBE_RTT_PACKETS * PACKET,
        };
        packets.max(PROBE_RTT_PACKETS * PACKET) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.rate() as u64
    }

    fn min_rtt(&self) -> Option<Nanos> {
        (self.min_rtt != Nanos::MAX).then_some(self.min_rtt)
    }

    fn phase_name(&self) -> &'static str {
        "neighbour"
    }
}
