//! A sender like Prague (draft-briscoe-iccrg-prague-congestion-control), for tests: a paced window that falls by half the average share
//! of marks once in a round, and grows by a packet between; rounds are no shorter than 25 ms.

use super::{AckSummary, MS, Nanos, PacketNumber, RateControl, SEC, Time, rate_of};

const PACKET: f64 = 1500.0;
const REFERENCE: Nanos = 25 * MS;
const WEIGHT: f64 = 1.0 / 16.0;

pub(super) struct Prague {
    cwnd: f64,
    srtt: Nanos,
    share: f64,
    acked: u64,
    marked: u64,
    round_at: Time,
    fell_at: Time,
    is_starting: bool,
}

impl Prague {
    pub(super) fn new() -> Self {
        Self {
            cwnd: 10.0 * PACKET,
            srtt: 100 * MS,
            share: 1.0,
            acked: 0,
            marked: 0,
            round_at: Time::ZERO,
            fell_at: Time::ZERO,
            is_starting: true,
        }
    }

    fn fall(&mut self, now: Time, part: f64) {
        if now.saturating_sub(self.fell_at) >= self.srtt.max(REFERENCE) {
            self.fell_at = now;
            self.is_starting = false;
            self.cwnd = (self.cwnd * (1.0 - part)).max(2.0 * PACKET);
        }
    }
}

impl RateControl for Prague {
    fn on_sent(&mut self, _: Time, _: PacketNumber, _: u32, _: u64) {}

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let now = ack.now;
        if ack.srtt > 0 {
            self.srtt = ack.srtt;
        }
        let acked = ack.acked.len() as u64;
        self.acked += acked;
        self.marked += ack.ce_marked;
        if now.saturating_sub(self.round_at) >= self.srtt.max(REFERENCE) && self.acked > 0 {
            let share = self.marked as f64 / self.acked as f64;
            self.share += WEIGHT * (share - self.share);
            (self.acked, self.marked, self.round_at) = (0, 0, now);
        }
        if !ack.lost.is_empty() {
            self.fall(now, 0.5);
        } else if ack.ce_marked > 0 {
            self.fall(now, self.share / 2.0);
        }
        let unmarked = acked.saturating_sub(ack.ce_marked) as f64;
        self.cwnd += match self.is_starting {
            true => unmarked * PACKET,
            false => {
                let part = self.srtt as f64 / self.srtt.max(REFERENCE) as f64;
                unmarked * PACKET * PACKET / self.cwnd * part * part
            }
        };
    }

    fn on_app_limited(&mut self, _: Time) {}

    fn on_persistent_loss(&mut self, _: Time) {
        self.cwnd = 2.0 * PACKET;
    }

    fn pacing_rate(&self) -> u64 {
        let gain = if self.is_starting { 2.0 } else { 1.0 };
        (gain * rate_of(self.cwnd, self.srtt.min(SEC))).max(1.0) as u64
    }

    fn cwnd(&self) -> u64 {
        // Pacing has no whole packets.
        (self.cwnd + PACKET) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        rate_of(self.cwnd, self.srtt) as u64
    }

    fn min_rtt(&self) -> Option<Nanos> {
        None
    }

    fn phase_name(&self) -> &'static str {
        "prague"
    }
}
