//! A flow under the BBR of Linux, for tests: the model is that of [`sphinx_sim::linux`].

use std::collections::BTreeMap;

use sphinx_sim::linux::bbr::{Bbr, Change, Stamp};

use super::{AckSummary, MS, Nanos, PacketNumber, RateControl, SEC, Time, rate_of};

const PACKET: f64 = 1500.0;

pub(super) struct KernelBbr {
    bbr: Bbr,
    sent: BTreeMap<PacketNumber, (Stamp, Nanos)>,
    largest: PacketNumber,
    /// What has been sent before this one was sent before a loss was found.
    recovers_until: Option<PacketNumber>,
}

fn nanos(time: Time) -> Nanos {
    time.saturating_sub(Time::ZERO)
}

impl KernelBbr {
    pub(super) fn new() -> Self {
        Self {
            bbr: Bbr::new(),
            sent: BTreeMap::new(),
            largest: PacketNumber::ZERO,
            recovers_until: None,
        }
    }
}

impl RateControl for KernelBbr {
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, in_flight: u64) {
        let pipe = in_flight.saturating_sub(u64::from(ip_bytes)) / PACKET as u64;
        let stamp = self.bbr.send(nanos(now), pipe);
        self.sent.insert(pn, (stamp, nanos(now)));
        self.largest = pn;
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let now = nanos(ack.now);
        for packet in ack.acked {
            if let Some((stamp, at)) = self.sent.remove(&packet.pn) {
                self.bbr.deliver(now, stamp, at);
            }
            self.recovers_until = self.recovers_until.filter(|until| packet.pn < *until);
        }
        for packet in ack.lost {
            self.sent.remove(&packet.pn);
            self.recovers_until.get_or_insert(self.largest);
        }
        let (delivered, lost) = (ack.acked.len() as u64, ack.lost.len() as u64);
        let pipe = ack.bytes_in_flight / PACKET as u64;
        let change = Change {
            delivered,
            lost,
            before: pipe + delivered + lost,
            pipe,
            rtt: ack.rtt_sample,
            recovers: self.recovers_until.is_some(),
        };
        self.bbr.acknowledge(now, &change);
    }

    fn on_app_limited(&mut self, _: Time) {}

    fn on_persistent_loss(&mut self, _: Time) {
        self.bbr.time_out();
    }

    fn pacing_rate(&self) -> u64 {
        let rate = match self.bbr.pacing_rate() {
            0.0 => rate_of(10.0 * PACKET, MS),
            rate => rate * PACKET * SEC as f64,
        };
        rate.max(1.0) as u64
    }

    fn cwnd(&self) -> u64 {
        (self.bbr.window() * PACKET) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.pacing_rate()
    }

    fn min_rtt(&self) -> Option<Nanos> {
        None
    }

    fn phase_name(&self) -> &'static str {
        "kernel-bbr"
    }
}
