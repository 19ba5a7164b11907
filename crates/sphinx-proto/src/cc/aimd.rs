//! The paper's rate control (section 3.3): a window of blocks that grows by one block per round
//! trip and is halved on congestion. CE means congestion and loss means channel; a path without
//! ECN leaves loss as the only sign of congestion.

use crate::PacketNumber;

use super::{AckSummary, CcParams, MS, Nanos, RateControl, Time, rate_of};

/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;
/// Packets leave a little faster than the window turns over, so that the window is the limit.
const PACING_GAIN: f64 = 1.25;

/// Additive increase by one block, multiplicative decrease by half.
#[derive(Debug)]
pub struct AimdEcn {
    block_packets: f64,
    block_bytes: f64,
    min_cwnd: f64,
    cwnd: f64,
    srtt: Option<Nanos>,
    min_rtt: Option<Nanos>,
    /// Packets sent before this one were sent before the last halving; signs of congestion among
    /// them belong to it (RFC 9002, section 7.3.2).
    recovery_until_pn: PacketNumber,
    next_pn: PacketNumber,
    app_limited_until_pn: PacketNumber,
    /// What has been acknowledged since the last halving, and between the two before, bytes.
    since_halving: u64,
    between_halvings: u64,
    /// Factor of the increase: 1 is that of a path of its own.
    gain: f64,
}

impl AimdEcn {
    /// Starts with a window of one block, or with what the controller before it had under way without a queue.
    pub fn new(params: CcParams) -> Self {
        let packet = f64::from(params.packet_bytes.max(1));
        let block_packets = f64::from(params.block_packets.max(1));
        let block_bytes = packet * block_packets;
        let first = params.before.map_or(block_bytes, |before| before.window());
        Self {
            block_packets,
            block_bytes,
            min_cwnd: 2.0 * packet,
            cwnd: first.max(2.0 * packet),
            srtt: params.before.map(|before| before.srtt),
            min_rtt: params.before.map(|before| before.min_rtt),
            recovery_until_pn: PacketNumber::ZERO,
            next_pn: PacketNumber::ZERO,
            app_limited_until_pn: PacketNumber::ZERO,
            since_halving: 0,
            between_halvings: 0,
            gain: 1.0,
        }
    }
}

impl RateControl for AimdEcn {
    fn on_sent(&mut self, _now: Time, pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {
        self.next_pn = pn.saturating_add(1);
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        if ack.srtt > 0 {
            self.srtt = Some(ack.srtt);
        }
        if let Some(rtt) = ack.rtt_sample {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |m| m.min(rtt)));
        }

        let since_halving = |p: &super::PacketInfo| p.pn >= self.recovery_until_pn;
        let marked = ack.ce_marked > 0 && ack.acked.iter().any(since_halving);
        let dropped = !ack.ecn_capable && ack.lost.iter().any(since_halving);
        if marked || dropped {
            self.cwnd = (self.cwnd / 2.0).max(self.min_cwnd);
            self.recovery_until_pn = self.next_pn;
            self.between_halvings = std::mem::take(&mut self.since_halving);
            return;
        }
        let acked = ack.acked.iter().map(|p| u64::from(p.ip_bytes)).sum();
        self.since_halving = self.since_halving.saturating_add(acked);
        let useful: u64 = ack
            .acked
            .iter()
            .filter(|p| since_halving(p) && p.pn >= self.app_limited_until_pn)
            .map(|p| u64::from(p.ip_bytes))
            .sum();
        let more = self.block_bytes * useful as f64 / self.cwnd;
        self.cwnd = (self.cwnd + self.gain * more).max(self.min_cwnd);
    }

    fn on_app_limited(&mut self, _now: Time) {
        self.app_limited_until_pn = self.next_pn;
    }

    fn on_persistent_loss(&mut self, _now: Time) {
        self.cwnd = self.min_cwnd;
        self.recovery_until_pn = self.next_pn;
    }

    fn pacing_rate(&self) -> u64 {
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        ((PACING_GAIN * rate_of(self.cwnd, rtt)) as u64).max(1)
    }

    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        rate_of(self.cwnd, self.srtt.unwrap_or(INITIAL_RTT)) as u64
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt
    }

    fn between_losses(&self) -> Option<u64> {
        Some(self.since_halving.max(self.between_halvings))
    }

    fn set_gain(&mut self, gain: f64) {
        self.gain = gain;
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        let packet = f64::from(ip_bytes.max(1));
        self.block_bytes = packet * self.block_packets;
        self.min_cwnd = 2.0 * packet;
    }

    fn phase_name(&self) -> &'static str {
        "aimd"
    }
}
