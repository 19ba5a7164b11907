//! Addresses and MTUs that change during a transfer, on real sockets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};

use sphinx_link::LinkConfig;
use sphinx_link::front::{Direction, Front, FrontConfig};
use sphinx_netdev::netns::{Access, probe};
use sphinx_transport::{Options, Server, Service, Session, Ticket};

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
                sphinx_testing::skipped!("no IPv6");
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

/// Two namespaces with a link between them, a server in the right one and its ticket, or why not.
fn namespaces(
    ipv6: bool,
    options: &Options,
    links: [LinkConfig; 2],
) -> Option<(Front, Server, Ticket)> {
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
    let [left_to_right, right_to_left] = links;
    let config = FrontConfig {
        left_to_right,
        right_to_left,
        ..FrontConfig::default()
    };
    let front = Front::start(config).unwrap();
    let ip: IpAddr = if ipv6 {
        front.right().ipv6()?.into()
    } else {
        front.right().ipv4().into()
    };
    let unspecified = if ipv6 { "[::]:0" } else { "0.0.0.0:0" };
    let bind: SocketAddr = unspecified.parse().unwrap();
    let listener = front
        .right()
        .run(|| Server::bind(bind, Service::Application, options))
        .unwrap()
        .unwrap();
    let address = SocketAddr::new(ip, listener.local_addr().port());
    let ticket = ticket(&listener, address);
    if !ip_command(&front, "addr show") {
        sphinx_testing::skipped!("needs the ip command");
        return None;
    }
    Some((front, listener, ticket))
}

/// A client in the left namespace.
fn client_at(front: &Front, ticket: &Ticket) -> Session {
    let mut connected = None;
    // Some kernels first ask around whether a new IPv6 address is free.
    wait_until("the address can be used", || {
        let connect = || client(ticket, &Options::default());
        connected = front.left().run(connect).unwrap().ok();
        connected.is_some()
    });
    connected.expect("just seen")
}

/// The two ends of a session over a link that loses a little, and what keeps them alive.
fn session(ipv6: bool) -> Option<(Front, Server, Session, Session)> {
    let links = [link(0.02, 1), link(0.02, 2)];
    let (front, listener, ticket) = namespaces(ipv6, &Options::default(), links)?;
    let client = client_at(&front, &ticket);
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    Some((front, listener, client, server))
}

/// The client's address in the left namespace, which is taken away, and another one in its place: the old one and the new one.
fn change_address(front: &Front, ipv6: bool) -> (IpAddr, IpAddr) {
    let (old, new, prefix, how) = if ipv6 {
        let old = front.left().ipv6().expect("just used");
        let mut segments = old.segments();
        segments[7] += 0x40;
        let new = Ipv6Addr::from(segments);
        (IpAddr::from(old), IpAddr::from(new), 64, "nodad")
    } else {
        let old = front.left().ipv4();
        let [a, b, c, d] = old.octets();
        (IpAddr::from(old), IpAddr::from([a, b, c, d + 40]), 24, "")
    };
    // For a while there is no address at all.
    assert!(ip_command(
        front,
        &format!("addr del {old}/{prefix} dev left")
    ));
    std::thread::sleep(ms(50));
    assert!(ip_command(
        front,
        &format!("addr add {new}/{prefix} dev left {how}")
    ));
    (old, new)
}

/// Runs the system's `ip` at the client; whether it could.
fn ip_command(front: &Front, arguments: &str) -> bool {
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
            let Some((front, _listener, client, server)) = session(ipv6) else {
                return;
            };
            let before = server.remote_addr();
            let mut changed = None;
            transfer_while(&client, &server, || {
                wait_for_tenths(&server, 3);
                changed = Some(change_address(&front, ipv6));
            });
            let after = server.remote_addr();
            assert_eq!(Some((before.ip(), after.ip())), changed);
            assert_eq!(after.port(), before.port());
        }
    });
}

/// As when a router before all of them gets another address.
#[test]
fn two_hundred_clients_of_two_shards_get_another_address() {
    const SESSIONS: usize = 200;
    bounded(|| {
        let options = Options {
            shards: 2,
            ..Options::default()
        };
        let links = [link(0.0, 1), link(0.0, 2)];
        let Some((front, listener, ticket)) = namespaces(false, &options, links) else {
            return;
        };
        let clients: Vec<_> = (0..SESSIONS).map(|_| client_at(&front, &ticket)).collect();
        let servers = accept_each(&listener, &clients);
        let transfer_all = |len| {
            std::thread::scope(|scope| {
                for part in 0..8 {
                    let (clients, servers) = (&clients, &servers);
                    scope.spawn(move || {
                        for number in (part..SESSIONS).step_by(8) {
                            let data = content(number as u64, len);
                            transfer(&clients[number], &servers[number], &data);
                            transfer(&servers[number], &clients[number], &data);
                        }
                    });
                }
            });
        };
        transfer_all(10_000);
        let (old, new) = change_address(&front, false);
        let addresses = || servers.iter().map(|server| server.remote_addr().ip());
        assert!(addresses().all(|address| address == old));
        // No session is lost.
        transfer_all(20_000);
        assert!(addresses().all(|address| address == new));
        for server in &servers {
            let load = server.stats().load;
            let (strays, all) = (load.handovers, load.datagrams_received);
            assert!(
                strays * 100 <= all,
                "{strays} of {all} were for the other shard"
            );
        }
    });
}

#[test]
fn the_path_becomes_narrow() {
    bounded(|| {
        for ipv6 in [false, true] {
            let Some((front, _listener, client, server)) = session(ipv6) else {
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
        let Some((front, _listener, client, server)) = session(false) else {
            return;
        };
        transfer(&client, &server, &content(9, 500_000));
        assert!(client.stats().symbol_bytes > 1400);
        transfer_while(&client, &server, || {
            wait_for_tenths(&server, 3);
            assert!(ip_command(&front, "link set dev left mtu 1280"));
        });
        assert_eq!(client.stats().symbol_bytes, 1214);
    });
}
