//! A port that has been given back can be had again, in the same process.
#![cfg(feature = "dpdk")]

use sphinx_dpdk::{DpdkConfig, DpdkError, DpdkIo};

#[test]
fn a_port_can_be_had_again() {
    let process = std::process::id();
    let config = format!(
        "--no-huge -m 128 --no-shconf --no-pci --no-telemetry --file-prefix=sphx-again-{process} --vdev=net_null0 -- 10.0.0.1/24"
    );
    let config: DpdkConfig = config.parse().unwrap();
    let open = || DpdkIo::open(&config, "0.0.0.0:0".parse().unwrap());
    let first = match open() {
        Err(DpdkError::Eal(error)) => {
            return sphinx_testing::skipped!("DPDK does not start: {error}");
        }
        Err(DpdkError::NoPort) => {
            return sphinx_testing::skipped!("DPDK's driver net_null is not here");
        }
        opened => opened.unwrap(),
    };
    assert!(matches!(open(), Err(DpdkError::Busy)));
    drop(first);
    for _ in 0..2 {
        drop(open().unwrap());
    }
}
