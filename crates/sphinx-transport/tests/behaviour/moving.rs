//! Addresses and MTUs that change during a transfer, on real sockets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};

use sphinx_link::front::{Direction, Front, FrontConfig};
use sphinx_netdev::netns::{Access, probe};
use sphinx_transport::{Options, Server, Service, Session};

use crate::proxy::Proxy;
use crate::support::*;

const LEN: usize = 12_000_000;

/// Waits until the first so many tenths of `LEN` bytes that are sent to `session` have arrived.
fn wait_for_tenths(session: &Session, tenths: u64) {
    wait_until("data arrives", || {
        session.stats().bytes_received >= tenths * LEN as u64 / 10
    });
}

/// Moves data both ways while `disturb` does its work.
fn transfer_while(client: &Session, server: &Session, disturb: impl FnOnce() + Send) {
    let (up, down) = (content(1, LEN), content(2, LEN / 4));
    std::thread::scope(|scope| {
        scope.spawn(|| transfer(client, server, &up));
        scope.spawn(|| transfer(server, client, &down));
        scope.spawn(disturb);
    });
}

#[test]
fn a_nat_changes_its_mapping_in_both_families() {
    bounded(|| {
        for listen in [LOCALHOST, (Ipv6Addr::LOCALHOST, 0).into()] {
            let options = Options::default();
            let Ok(listener) = Server::bind(listen, Service::Application, &options) else {
                eprintln!("skipped: no IPv6");
                continue;
            };
            let proxy = Proxy::start(listener.local_addr(), link(0.03, 1), link(0.03, 2));
            let client = client(&ticket(&listener, proxy.address()), &options).unwrap();
            let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
            let before = server.remote_addr();
            transfer_while(&client, &server, || {
                for moved in 1..=3 {
                    wait_for_tenths(&server, 2 * moved);
                    proxy.rebind();
                }
            });
            assert_ne!(server.remote_addr(), before);
            assert_eq!(server.remote_addr().ip(), before.ip());
            assert_eq!(client.remote_addr(), proxy.address());
        }
    });
}

/// Nothing leaves the receiver but what it sends when it wonders about the silence.
#[test]
fn a_nat_changes_its_mapping_under_a_receiver() {
    bounded(|| {
        let pair = pair(link(0.03, 3), link(0.03, 4));
        let data = content(3, LEN);
        std::thread::scope(|scope| {
            scope.spawn(|| transfer(&pair.server, &pair.client, &data));
            wait_for_tenths(&pair.client, 3);
            pair.proxy.rebind();
        });
    });
}

/// Two namespaces with a link between them, or why not.
fn namespaces(ipv6: bool) -> Option<(Front, Server, Session, Session)> {
    match probe() {
        Ok(Access::Direct) => {}
        Ok(Access::UserNamespace) => {
            eprintln!("skipped: needs root (user namespaces would work, but not beside threads)");
            return None;
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    }
    let config = FrontConfig {
        left_to_right: link(0.02, 1),
        right_to_left: link(0.02, 2),
        ..FrontConfig::default()
    };
    let front = Front::start(config).unwrap();
    let ip: IpAddr = if ipv6 {
        front.right().ipv6()?.into()
    } else {
        front.right().ipv4().into()
    };
    let options = Options::default();
    let unspecified = if ipv6 { "[::]:0" } else { "0.0.0.0:0" };
    let bind: SocketAddr = unspecified.parse().unwrap();
    let listener = front
        .right()
        .run(|| Server::bind(bind, Service::Application, &options))
        .unwrap()
        .unwrap();
    let address = SocketAddr::new(ip, listener.local_addr().port());
    let ticket = ticket(&listener, address);
    let mut connected = None;
    // Some kernels first ask around whether a new IPv6 address is free.
    wait_until("the address can be used", || {
        connected = front.left().run(|| client(&ticket, &options)).unwrap().ok();
        connected.is_some()
    });
    let client = connected.expect("just seen");
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    Some((front, listener, client, server))
}

/// Runs the system's `ip` at the client; whether it could.
fn ip(front: &Front, arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = front.left().spawn(&mut command);
    child.is_ok_and(|mut child| child.wait().is_ok_and(|status| status.success()))
}

#[test]
fn the_client_gets_another_address_in_both_families() {
    bounded(|| {
        for ipv6 in [false, true] {
            let Some((front, _listener, client, server)) = namespaces(ipv6) else {
                return;
            };
            if !ip(&front, "addr show") {
                eprintln!("skipped: needs the ip command");
                return;
            }
            let before = server.remote_addr();
            let (old, new, prefix) = if ipv6 {
                let old = front.left().ipv6().expect("just used");
                let mut segments = old.segments();
                segments[7] += 0x40;
                (
                    IpAddr::from(old),
                    IpAddr::from(Ipv6Addr::from(segments)),
                    64,
                )
            } else {
                let old = front.left().ipv4();
                let [a, b, c, d] = old.octets();
                (IpAddr::from(old), IpAddr::from([a, b, c, d + 40]), 24)
            };
            transfer_while(&client, &server, || {
                wait_for_tenths(&server, 3);
                // For a while there is no address at all.
                assert!(ip(&front, &format!("addr del {old}/{prefix} dev left")));
                std::thread::sleep(ms(50));
                assert!(ip(
                    &front,
                    &format!(
                        "addr add {new}/{prefix} dev left {}",
                        if ipv6 { "nodad" } else { "" }
                    )
                ));
            });
            assert_eq!((before.ip(), server.remote_addr().ip()), (old, new));
            assert_eq!(server.remote_addr().port(), before.port());
        }
    });
}

#[test]
fn the_path_becomes_narrow() {
    bounded(|| {
        for ipv6 in [false, true] {
            let Some((front, _listener, client, server)) = namespaces(ipv6) else {
                return;
            };
            transfer(&client, &server, &content(9, 500_000));
            assert!(client.stats().symbol_bytes > 1400);
            transfer_while(&client, &server, || {
                wait_for_tenths(&server, 3);
                for (direction, seed) in [(Direction::LeftToRight, 1), (Direction::RightToLeft, 2)]
                {
                    let mut narrow = link(0.02, seed);
                    narrow.mtu = Some(1280);
                    front.reconfigure(direction, narrow).unwrap();
                }
            });
            assert_eq!(client.stats().symbol_bytes, if ipv6 { 1194 } else { 1214 });
        }
    });
}

#[test]
fn the_interface_becomes_narrow() {
    bounded(|| {
        let Some((front, _listener, client, server)) = namespaces(false) else {
            return;
        };
        if !ip(&front, "addr show") {
            eprintln!("skipped: needs the ip command");
            return;
        }
        transfer(&client, &server, &content(9, 500_000));
        assert!(client.stats().symbol_bytes > 1400);
        transfer_while(&client, &server, || {
            wait_for_tenths(&server, 3);
            assert!(ip(&front, "link set dev left mtu 1280"));
        });
        assert_eq!(client.stats().symbol_bytes, 1214);
    });
}
