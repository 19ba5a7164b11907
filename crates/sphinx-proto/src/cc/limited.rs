//! A cap on what any controller allows.

use super::{AckSummary, Nanos, RateControl};

/// A controller, and the rate that it is not to exceed: whoever shares the line, or pays for it, may say so.
pub(crate) struct Limited {
    inner: Box<dyn RateControl>,
    /// IP bytes per second.
    limit: Option<u64>,
}

impl Limited {
    pub(crate) fn new(inner: Box<dyn RateControl>, limit: Option<u64>) -> Self {
        Self { inner, limit }
    }

    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    fn cap(&self, rate: u64) -> u64 {
        self.limit.map_or(rate, |limit| rate.min(limit)).max(1)
    }
}

impl RateControl for Limited {
    fn on_sent(&mut self, now: Nanos, pn: u64, ip_bytes: u32, bytes_in_flight: u64) {
        self.inner.on_sent(now, pn, ip_bytes, bytes_in_flight);
        let estimate = self.inner.bandwidth_estimate();
        // What arrives of less than the path is known to carry says nothing about it.
        if self.limit.is_some_and(|limit| limit < estimate) {
            self.inner.on_app_limited(now);
        }
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        self.inner.on_ack(ack);
    }

    fn on_app_limited(&mut self, now: Nanos) {
        self.inner.on_app_limited(now);
    }

    fn on_persistent_loss(&mut self, now: Nanos) {
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
        // It may carry more than the limit.
        let is_told = |rate: &u64| self.limit.is_none_or(|limit| *rate > limit + limit / 16);
        self.inner.measured_rate().filter(is_told)
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        self.inner.set_packet_bytes(ip_bytes);
    }

    fn phase_name(&self) -> &'static str {
        self.inner.phase_name()
    }
}
