//! A cap on what any controller allows, and the change from one to another.

use crate::PacketNumber;

use super::{AckSummary, Nanos, PacketInfo, RateControl, Time};

/// A controller, and the rate that it is not to exceed: whoever shares the line, or pays for it, may say so.
pub(crate) struct Limited {
    inner: Box<dyn RateControl>,
    /// IP bytes per second.
    limit: Option<u64>,
    /// Packets with lower numbers left under another controller.
    first_pn: PacketNumber,
    /// What a SACK says of the others, kept for its memory.
    acked: Vec<PacketInfo>,
    lost: Vec<PacketInfo>,
}

impl Limited {
    pub(crate) fn new(inner: Box<dyn RateControl>, limit: Option<u64>) -> Self {
        Self {
            inner,
            limit,
            first_pn: PacketNumber::ZERO,
            acked: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// From packet `first_pn` on, `inner` is the controller.
    pub(crate) fn replace(&mut self, inner: Box<dyn RateControl>, first_pn: PacketNumber) {
        self.inner = inner;
        self.first_pn = first_pn;
    }

    /// The controller without the limit.
    pub(crate) fn unlimited(&self) -> &dyn RateControl {
        &*self.inner
    }

    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    fn cap(&self, rate: u64) -> u64 {
        self.limit.map_or(rate, |limit| rate.min(limit)).max(1)
    }
}

impl RateControl for Limited {
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, bytes_in_flight: u64) {
        self.inner.on_sent(now, pn, ip_bytes, bytes_in_flight);
        // What arrives of less than the path is known to carry says nothing about it.
        let is_less = |limit| limit < self.inner.bandwidth_estimate();
        if self.limit.is_some_and(is_less) {
            self.inner.on_app_limited(now);
        }
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let first_pn = self.first_pn;
        let is_own = |packet: &PacketInfo| packet.pn >= first_pn;
        if ack.acked.iter().chain(ack.lost).all(is_own) {
            return self.inner.on_ack(ack);
        }
        let keep = |own: &mut Vec<PacketInfo>, all: &[PacketInfo]| {
            own.clear();
            own.extend(all.iter().copied().filter(is_own));
        };
        keep(&mut self.acked, ack.acked);
        keep(&mut self.lost, ack.lost);
        self.inner.on_ack(&AckSummary {
            acked: &self.acked,
            lost: &self.lost,
            arrival: ack.arrival.filter(|arrival| arrival.pn >= first_pn),
            // Which packets were marked is not known: at most all of these.
            ce_marked: ack.ce_marked.min(self.acked.len() as u64),
            ..*ack
        });
    }

    fn on_app_limited(&mut self, now: Time) {
        self.inner.on_app_limited(now);
    }

    fn on_late(&mut self, from: Time) {
        self.inner.on_late(from);
    }

    fn on_persistent_loss(&mut self, now: Time) {
        self.inner.on_persistent_loss(now);
    }

    fn pacing_rate(&self) -> u64 {
        self.cap(self.inner.pacing_rate())
    }

    fn cwnd(&self) -> u64 {
        self.inner.cwnd()
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.cap(self.inner.bandwidth_estimate())
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.inner.min_rtt()
    }

    fn measured_rate(&self) -> Option<u64> {
        // A rate close to the limit says nothing of the path, which may carry more.
        let is_told = |rate: &u64| {
            self.limit
                .is_none_or(|limit| *rate > limit.saturating_add(limit / 16))
        };
        self.inner.measured_rate().filter(is_told)
    }

    fn is_starting(&self) -> bool {
        self.inner.is_starting()
    }

    fn can_scale(&self) -> bool {
        self.inner.can_scale()
    }

    fn between_losses(&self) -> Option<u64> {
        self.inner.between_losses()
    }

    fn set_gain(&mut self, gain: f64) {
        self.inner.set_gain(gain);
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        self.inner.set_packet_bytes(ip_bytes);
    }

    fn phase_name(&self) -> &'static str {
        self.inner.phase_name()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CcParams, Fixed};
    use super::*;

    #[test]
    fn a_limit_that_is_none_is_no_trouble() {
        let fixed = Fixed::new(1_000_000, CcParams::default());
        let mut limited = Limited::new(Box::new(Measured(fixed)), Some(u64::MAX));
        assert_eq!(limited.pacing_rate(), 1_000_000);
        assert_eq!(limited.measured_rate(), None);
        limited.set_limit(Some(0));
        assert_eq!(limited.pacing_rate(), 1);
        assert_eq!(limited.measured_rate(), Some(1_000_000));
    }

    /// A controller that has measured what it sends at.
    struct Measured(Fixed);

    impl RateControl for Measured {
        fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, bytes_in_flight: u64) {
            self.0.on_sent(now, pn, ip_bytes, bytes_in_flight);
        }

        fn on_ack(&mut self, ack: &AckSummary<'_>) {
            self.0.on_ack(ack);
        }

        fn on_app_limited(&mut self, now: Time) {
            self.0.on_app_limited(now);
        }

        fn on_persistent_loss(&mut self, now: Time) {
            self.0.on_persistent_loss(now);
        }

        fn pacing_rate(&self) -> u64 {
            self.0.pacing_rate()
        }

        fn cwnd(&self) -> u64 {
            self.0.cwnd()
        }

        fn bandwidth_estimate(&self) -> u64 {
            self.0.bandwidth_estimate()
        }

        fn min_rtt(&self) -> Option<Nanos> {
            self.0.min_rtt()
        }

        fn measured_rate(&self) -> Option<u64> {
            Some(self.0.pacing_rate())
        }

        fn phase_name(&self) -> &'static str {
            self.0.phase_name()
        }
    }
}
