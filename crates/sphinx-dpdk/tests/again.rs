//! A port that has been given back can be had again, in the same process. What is asked of one besides is here too, as DPDK can be started once.
#![cfg(feature = "dpdk")]

use std::time::{Duration, Instant};

use sphinx_dpdk::{DpdkConfig, DpdkError, DpdkIo};
use sphinx_net::{Interest, PacketIo};

#[test]
fn a_port_can_be_had_again() {
    let process = std::process::id();
    let config = format!(
        "--no-huge -m 128 --no-shconf --no-pci --no-telemetry --file-prefix=sphx-again-{process} --vdev=net_null0,no-rx=1 -- 10.0.0.1/24"
    );
    let config: DpdkConfig = config.parse().unwrap();
    let open = || DpdkIo::open(&config, "0.0.0.0:0".parse().unwrap());
    let mut first = match open() {
        Err(DpdkError::Eal(error)) => {
            return sphinx_testing::skipped!("DPDK does not start: {error}");
        }
        Err(DpdkError::NoPort) => {
            return sphinx_testing::skipped!("DPDK's driver net_null is not here");
        }
        opened => opened.unwrap(),
    };
    assert!(matches!(open(), Err(DpdkError::Busy)));
    waiting_for_room_lets_others_run(&mut first);
    drop(first);
    for _ in 0..2 {
        drop(open().unwrap());
    }
}

/// However little a card takes, its engine does not run all the time. Here nothing arrives, either.
fn waiting_for_room_lets_others_run(io: &mut DpdkIo) {
    for timeout_ns in [Some(1_000_000_000), None] {
        let start = Instant::now();
        let ready = io.wait(Interest::ReadWrite, timeout_ns).unwrap();
        assert!(start.elapsed() >= Duration::from_micros(50));
        assert!(ready.writable && !ready.readable);
    }
}
