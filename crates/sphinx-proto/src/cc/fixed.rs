//! The rate that the user asked for, whatever the link does.

use crate::PacketNumber;

use super::{AckSummary, CcParams, MS, Nanos, RateControl, Time, bytes_in};

/// Room in the window for feedback that comes late (SACK interval, reverse jitter).
const MARGIN: Nanos = 50 * MS;
/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;

/// Paces at a constant rate; the window only bounds what a dead path can swallow.
#[derive(Debug)]
pub struct Fixed {
    rate: u64,
    srtt: Option<Nanos>,
    min_rtt: Option<Nanos>,
    packet_bytes: u32,
    /// What the rate and the round trip give, bytes; it is asked for with every packet.
    window: u64,
}

impl Fixed {
    /// `rate` in IP bytes per second.
    pub fn new(rate: u64, params: CcParams) -> Self {
        let rate = rate.max(1);
        let srtt = params.before.map(|before| before.srtt);
        Self {
            rate,
            srtt,
            window: window(rate, srtt),
            min_rtt: params.before.map(|before| before.min_rtt),
            packet_bytes: params.packet_bytes,
        }
    }
}

fn window(rate: u64, srtt: Option<Nanos>) -> u64 {
    let rtt = srtt.unwrap_or(INITIAL_RTT).saturating_add(MARGIN);
    (2.0 * bytes_in(rate as f64, rtt)) as u64
}

impl RateControl for Fixed {
    fn on_sent(&mut self, _now: Time, _pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {}

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        if ack.srtt > 0 {
            self.srtt = Some(ack.srtt);
            self.window = window(self.rate, self.srtt);
        }
        if let Some(rtt) = ack.rtt_sample {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |m| m.min(rtt)));
        }
    }

    fn on_app_limited(&mut self, _now: Time) {}

    fn on_persistent_loss(&mut self, _now: Time) {}

    fn pacing_rate(&self) -> u64 {
        self.rate
    }

    fn cwnd(&self) -> u64 {
        self.window.max(32 * u64::from(self.packet_bytes))
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.rate
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        self.packet_bytes = ip_bytes;
    }

    fn phase_name(&self) -> &'static str {
        "fixed"
    }
}
