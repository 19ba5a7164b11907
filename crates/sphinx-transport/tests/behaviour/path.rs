//! Path MTUs, over TUN devices in namespaces; skipped, saying why, where they are not allowed.

use sphinx_link::LinkConfig;
use sphinx_link::front::{Front, FrontConfig};
use sphinx_netdev::netns::{Access, probe};
use sphinx_transport::{Options, Server, Service};

use crate::support::*;

/// Moves data between two namespaces over a link with these MTUs of the interfaces and of a hop
/// between them; the size of the symbols at the end.
fn symbol_bytes(interface: usize, hop: Option<usize>, ipv6: bool) -> Option<u32> {
    match probe() {
        Ok(Access::Direct) => {}
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!(
                "needs root (user namespaces would work, but not beside threads)"
            );
            return None;
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            return None;
        }
    }
    let config = |seed| LinkConfig {
        mtu: hop,
        ..link(0.02, seed)
    };
    let front = Front::start(FrontConfig {
        left_to_right: config(1),
        right_to_left: config(2),
        mtu: interface,
        ..FrontConfig::default()
    });
    let front = front.unwrap();
    let ip: std::net::IpAddr = if ipv6 {
        front.right().ipv6()?.into()
    } else {
        front.right().ipv4().into()
    };
    let options = Options::default();
    let bind = || Server::bind((ip, 0).into(), Service::Application, &options);
    let mut bound = None;
    // Some kernels first ask around whether a new IPv6 address is free.
    wait_until("the address can be used", || {
        bound = front.right().run(bind).unwrap().ok();
        bound.is_some()
    });
    let listener = bound.expect("just seen");
    let ticket = ticket(&listener, listener.local_addr());
    let client = front
        .left()
        .run(|| client(&ticket, &options))
        .unwrap()
        .unwrap();
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    // The second one uses what was found out during the first.
    for seed in 0..2 {
        transfer(&client, &server, &content(seed, 1_000_000));
    }
    Some(client.stats().symbol_bytes)
}

#[test]
fn symbols_follow_the_path_mtu() {
    bounded(|| {
        for (interface, hop, ipv6, expected) in [
            (1500, Some(1279), false, 1162),
            (1500, Some(1280), false, 1214),
            (1280, None, true, 1194),
            (1500, Some(1420), false, 1354),
            (1500, None, false, 1434),
            (1500, None, true, 1414),
            (9000, Some(1500), false, 1434),
            (9000, Some(9000), false, 8934),
        ] {
            if let Some(found) = symbol_bytes(interface, hop, ipv6) {
                assert_eq!(found, expected, "MTU {interface}, hop {hop:?}, IPv6 {ipv6}");
            }
        }
    });
}
