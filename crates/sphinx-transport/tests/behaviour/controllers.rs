//! An application brings its own rate control, or changes it while a session runs.

use std::thread;

use sphinx_transport::cc::{
    AckSummary, CcParams, Nanos, OwnController, PacketNumber, RateControl, Time,
};
use sphinx_transport::{Cc, Options};

use crate::support::*;

/// Ten packets in flight, whatever happens.
struct TenPackets(CcParams);

impl RateControl for TenPackets {
    fn on_sent(&mut self, _now: Time, _pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {}

    fn on_ack(&mut self, _ack: &AckSummary<'_>) {}

    fn on_app_limited(&mut self, _now: Time) {}

    fn on_persistent_loss(&mut self, _now: Time) {}

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

/// From any thread, and more than once; also by tasks, whose session is the same one.
#[test]
fn the_controller_changes_while_running() {
    bounded(|| {
        let pair = pair_with(link(0.02, 1), link(0.02, 2), &Options::default());
        assert_eq!(pair.client.stats().cc, "bbr");
        let session = sphinx_transport::asynchronous::Session::from(pair.client.clone());
        let changes = [Cc::Cubic, Cc::Scavenger, Cc::Fixed(2_000_000), Cc::Bbr];
        for (n, cc) in (1..).zip(changes) {
            let session = session.as_blocking().clone();
            thread::spawn(move || {
                session.set_cc(cc);
                session.set_limit(Some(20_000_000));
            });
            transfer(&pair.client, &pair.server, &content(n, 200_000));
            while pair.client.stats().cc != cc.name() {
                thread::yield_now();
            }
        }
    });
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
