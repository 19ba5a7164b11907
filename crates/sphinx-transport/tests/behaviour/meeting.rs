//! How two ends find each other, or do not.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use sphinx_transport::{ErrorKind, Options, Route, RoutingKey, Server, Service, Ticket, connect};

use crate::proxy::{Proxy, Way};
use crate::support::*;

fn impatient() -> Options {
    Options {
        connect_timeout: ms(500),
        ..Options::default()
    }
}

#[test]
fn an_absent_peer_is_unreachable() {
    bounded(|| {
        let listener = server();
        // Nobody reads from the one, which takes the whole timeout; of the other the host says that nobody has it.
        let deaf = UdpSocket::bind(LOCALHOST).unwrap();
        // Its socket hears nobody but itself, and no other test is given its port.
        let closed = UdpSocket::bind(LOCALHOST).unwrap();
        closed.connect(closed.local_addr().unwrap()).unwrap();
        for (address, at_least) in [
            (deaf.local_addr().unwrap(), ms(500)),
            (closed.local_addr().unwrap(), Duration::ZERO),
        ] {
            let begin = Instant::now();
            let error = client(&ticket(&listener, address), &impatient()).expect_err("nobody");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(begin.elapsed() >= at_least, "{:?}", begin.elapsed());
        }
    });
}

#[test]
fn a_name_that_does_not_resolve_is_unreachable() {
    let listener = server();
    let ticket = listener.ticket(&["sphinx.invalid:1".to_owned()]).unwrap();
    let error = client(&ticket, &impatient()).expect_err("no such name");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[test]
fn the_second_address_of_a_ticket_is_tried() {
    bounded(|| {
        let listener = server();
        let deaf = UdpSocket::bind(LOCALHOST).unwrap();
        let addresses = [deaf.local_addr().unwrap(), listener.local_addr()];
        let ticket = listener
            .ticket(&addresses.map(|address| address.to_string()))
            .unwrap();
        let session = client(&ticket, &Options::default()).unwrap();
        assert_eq!(session.remote_addr(), listener.local_addr());
        // The handshake has measured the round trip from the beginning.
        assert!(session.stats().rtt > Duration::ZERO);
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        transfer(&session, &server, &content(1, 10_000));
    });
}

#[test]
fn a_wrong_server_is_an_authentication_failure() {
    bounded(|| {
        let (listener, other) = (server(), server());
        let error = client(&ticket(&other, listener.local_addr()), &Options::default());
        let error = error.expect_err("another server's ticket");
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert!(listener.accept(Some(ms(300))).unwrap().is_none());
    });
}

/// The ticket with another secret: its first 32 bytes (`docs/protocol.md` §2.2).
fn with_other_secret(ticket: &Ticket) -> Ticket {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let text = ticket.to_string();
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.strip_prefix("sphx1").expect("a ticket").bytes() {
        let value = ALPHABET
            .iter()
            .position(|known| *known == letter)
            .expect("base32");
        (held, bits) = (held << 5 | value as u32, bits + 5);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes[0] ^= 1;
    bytes.truncate(bytes.len() - 4);
    let checked = [b"sphx1".as_slice(), &bytes].concat();
    bytes.extend_from_slice(&digest::digest(&digest::SHA256, &checked).as_ref()[..4]);
    let mut text = String::from("sphx1");
    let (mut held, mut bits) = (0_u32, 0);
    for byte in bytes {
        (held, bits) = (held << 8 | u32::from(byte), bits + 8);
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(held >> bits) as usize & 31]));
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(held << (5 - bits)) as usize & 31]));
    }
    text.parse().expect("still well formed")
}

#[test]
fn a_wrong_secret_is_an_authentication_failure_and_nobody_is_accepted() {
    bounded(|| {
        let listener = server();
        for loss in [0.0, 0.2] {
            let proxy = Proxy::start(listener.local_addr(), link(loss, 1), link(loss, 2));
            let ticket = with_other_secret(&ticket(&listener, proxy.address()));
            let result = client(&ticket, &Options::default());
            let error = result.expect_err("another secret");
            assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        }
        assert!(listener.accept(Some(ms(300))).unwrap().is_none());
    });
}

#[test]
fn another_service_is_a_protocol_error() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        let error =
            connect(&ticket, Service::Perf, &Options::default()).expect_err("other service");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(listener.accept(Some(ms(300))).unwrap().is_none());
    });
}

#[test]
fn an_address_in_use_is_a_local_error() {
    let listener = server();
    let again = Server::bind(
        listener.local_addr(),
        Service::Application,
        &Options::default(),
    );
    let error = again.expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::LocalIo, "{error}");
}

#[test]
fn the_handshake_gets_through_30_percent_of_loss() {
    bounded(|| {
        let listener = server();
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let listener = &listener;
                scope.spawn(move || {
                    let (there, back) = (link(0.3, 2 * seed), link(0.3, 2 * seed + 1));
                    let proxy = Proxy::start(listener.local_addr(), there, back);
                    let session = client(&ticket(listener, proxy.address()), &Options::default());
                    send_all(&session.unwrap(), &content(seed, 3000)).unwrap();
                });
            }
            for _ in 0..8 {
                let session = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
                read_all(&mut session.accept_uni().unwrap()).unwrap();
                scope.spawn(move || {
                    // The client lets go when it has heard that all is there.
                    while session.closed().is_none() {
                        std::thread::sleep(ms(5));
                    }
                });
            }
        });
    });
}

#[test]
fn ipv6_works() {
    bounded(|| {
        let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        let Ok(listener) = Server::bind(address, Service::Application, &Options::default()) else {
            sphinx_testing::skipped!("no IPv6 here");
            return;
        };
        let proxy = Proxy::start(listener.local_addr(), link(0.05, 1), link(0.05, 2));
        let client = client(&ticket(&listener, proxy.address()), &Options::default()).unwrap();
        assert!(client.remote_addr().is_ipv6());
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        transfer(&client, &server, &content(1, 500_000));
        transfer(&server, &client, &content(2, 50_000));
    });
}

/// Whoever stands in front of a server and has its routing key sees from every data packet where it belongs, also from those with
/// spare connection ids.
#[test]
fn packets_tell_a_load_balancer_where_they_belong() {
    bounded(|| {
        let key = RoutingKey::new([7; 16]);
        let options = Options {
            server_id: 0x1234,
            routing_key: Some(key.clone()),
            ..Options::default()
        };
        let pair = pair_with(link(0.0, 1), link(0.0, 2), &options);
        for seed in 0..2 {
            transfer(&pair.client, &pair.server, &content(seed, 200_000));
            pair.proxy.rebind();
        }
        let expected = Some(Route {
            server_id: 0x1234,
            worker: 0,
        });
        for way in [Way::ToServer, Way::ToClient] {
            let mut datagrams = pair.proxy.latest(way);
            datagrams.retain(|datagram| datagram[0] & 0xc0 == 0x80);
            assert!(datagrams.len() > 5);
            assert!(
                datagrams
                    .iter()
                    .all(|datagram| key.route(datagram) == expected)
            );
        }
    });
}

#[test]
fn one_server_takes_both_address_families() {
    bounded(|| {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let Ok(listener) = Server::bind(any, Service::Application, &Options::default()) else {
            sphinx_testing::skipped!("no IPv6 here");
            return;
        };
        let port = listener.local_addr().port();
        for host in ["127.0.0.1", "[::1]"] {
            let ticket = listener.ticket(&[format!("{host}:{port}")]).unwrap();
            let client = client(&ticket, &Options::default()).unwrap();
            let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
            assert_eq!(server.remote_addr().is_ipv4(), host == "127.0.0.1");
            transfer(&client, &server, &content(1, 100_000));
            transfer(&server, &client, &content(2, 100_000));
        }
    });
}

#[test]
fn twenty_sessions_at_once_do_not_mix() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        std::thread::scope(|scope| {
            for n in 0..20 {
                let ticket = &ticket;
                scope.spawn(move || {
                    let session = client(ticket, &Options::default()).unwrap();
                    let data = content(n, 200_000 + n as usize);
                    send_all(&session, &data).unwrap();
                    // The echo.
                    assert!(read_all(&mut session.accept_uni().unwrap()).unwrap() == data);
                });
            }
            for _ in 0..20 {
                let session = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
                scope.spawn(move || {
                    let data = read_all(&mut session.accept_uni().unwrap()).unwrap();
                    send_all(&session, &data).unwrap();
                });
            }
        });
    });
}

#[test]
fn two_servers_on_one_machine_stay_apart() {
    bounded(|| {
        let (one, two) = (server(), server());
        for listener in [&one, &two] {
            let ticket = ticket(listener, listener.local_addr());
            let client = client(&ticket, &Options::default()).unwrap();
            let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
            transfer(&client, &server, &content(1, 100_000));
        }
        assert!(one.accept(Some(ms(50))).unwrap().is_none());
        assert!(two.accept(Some(ms(50))).unwrap().is_none());
    });
}

#[test]
fn clients_that_never_prove_anything_do_not_keep_others_out() {
    bounded(|| {
        let listener = server();
        // Each of them says hello and is never heard again.
        let halves: Vec<_> = (0..80)
            .map(|_| {
                let proxy = Proxy::start(listener.local_addr(), link(0.0, 1), link(0.0, 2));
                let ticket = ticket(&listener, proxy.address());
                let options = Options {
                    connect_timeout: ms(2000),
                    ..Options::default()
                };
                let half = std::thread::spawn(move || client(&ticket, &options).map(drop));
                wait_until("it said hello", || proxy.delivered(Way::ToServer) > 0);
                proxy.set_silent(true);
                half
            })
            .collect();
        while listener.accept(Some(ms(100))).unwrap().is_some() {
            // One or the other was quicker than its proxy fell silent.
        }
        let proxy = Proxy::start(listener.local_addr(), link(0.0, 1), link(0.0, 2));
        let client = client(&ticket(&listener, proxy.address()), &Options::default()).unwrap();
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        transfer(&client, &server, &content(1, 100_000));
        for half in halves {
            if let Err(error) = half.join().expect("no panic") {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            }
        }
    });
}
