//! A card that is away for a moment can be had later. In a file of its own, as DPDK can be started once in a process.
#![cfg(feature = "dpdk")]

use std::process::Command;

use sphinx_dpdk::{DpdkConfig, DpdkError, DpdkIo};
use sphinx_netdev::netns::{Access, Namespace, probe};

#[test]
fn a_card_that_was_away_can_be_had_again() {
    if !matches!(probe(), Ok(Access::Direct)) {
        return sphinx_testing::skipped!("needs root");
    }
    let namespace = Namespace::new().unwrap();
    let ip = |line: &str| {
        let mut ip = Command::new("ip");
        let ip = namespace.spawn(ip.args(line.split(' ')));
        ip.is_ok_and(|mut ip| ip.wait().unwrap().success())
    };
    if !ip("link add near type veth peer name far") || !ip("link set near up") {
        return sphinx_testing::skipped!("no 'ip', or it refuses to make links");
    }
    let process = std::process::id();
    let config = format!(
        "--no-huge -m 128 --no-shconf --no-pci --no-telemetry --file-prefix=sphx-away-{process} --vdev=net_af_packet0,iface=near -- 10.0.0.1/24"
    );
    let config: DpdkConfig = config.parse().unwrap();
    let open = || namespace.run(|| DpdkIo::open(&config, "0.0.0.0:0".parse().unwrap()));
    match open().unwrap() {
        Err(DpdkError::Eal(error)) => {
            return sphinx_testing::skipped!("DPDK does not start: {error}");
        }
        Err(DpdkError::NoPort) => return sphinx_testing::skipped!("no driver net_af_packet"),
        opened => drop(opened.unwrap()),
    }
    assert!(ip("link set near down") && ip("link set near name elsewhere"));
    for _ in 0..2 {
        let refused = open().unwrap().unwrap_err();
        assert!(matches!(refused, DpdkError::Port(_)), "{refused}");
    }
    assert!(ip("link set elsewhere name near") && ip("link set near up"));
    drop(open().unwrap().unwrap());
}
