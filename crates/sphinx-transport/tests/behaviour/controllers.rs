//! An application brings its own rate control.

use sphinx_transport::cc::{AckSummary, CcParams, Nanos, OwnController, RateControl};
use sphinx_transport::{Cc, Options};

use crate::support::*;

/// Ten packets in flight, whatever happens.
struct TenPackets(CcParams);

impl RateControl for TenPackets {
    fn on_sent(&mut self, _now: Nanos, _pn: u64, _ip_bytes: u32, _bytes_in_flight: u64) {}

    fn on_ack(&mut self, _ack: &AckSummary<'_>) {}

    fn on_app_limited(&mut self, _now: Nanos) {}

    fn on_persistent_loss(&mut self, _now: Nanos) {}

    fn pacing_rate(&self) -> u64 {
        1_000_000_000
    }

    fn cwnd(&self) -> u64 {
        10 * u64::from(self.0.packet_bytes)
    }

    fn bandwidth_estimate(&self) -> u64 {
        10_000_000
    }

    fn min_rtt(&self) -> Option<Nanos> {
        None
    }

    fn phase_name(&self) -> &'static str {
        "ten packets"
    }
}

#[test]
fn an_application_brings_a_controller() {
    bounded(|| {
        let options = Options {
            cc: Cc::Own(OwnController {
                name: "ten",
                build: |params| Box::new(TenPackets(params)),
            }),
            ..Options::default()
        };
        let pair = pair_with(link(0.02, 1), link(0.02, 2), &options);
        transfer(&pair.client, &pair.server, &content(1, 500_000));
        let stats = pair.client.stats();
        assert_eq!(stats.cc, "ten");
        assert!(stats.cwnd <= 10 * 1500, "{}", stats.cwnd);
    });
}
