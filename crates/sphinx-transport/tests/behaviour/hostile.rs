//! Datagrams that are not the peer's change nothing, and are counted.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::proxy::Way;
use crate::support::*;

/// Attacks at least, however soon a transfer is over and however seldom the attacker gets a processor.
const ROUNDS_MIN: u64 = 300;

/// Runs `attack` again and again while bytes cross the link in both directions.
fn transfer_under(pair: &Pair, attack: impl Fn(u64) + Sync) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                if over.load(Ordering::Relaxed) && round > ROUNDS_MIN {
                    break;
                }
                attack(round);
                std::thread::sleep(ms(1));
            }
        });
        transfer(&pair.client, &pair.server, &content(1, 2_000_000));
        transfer(&pair.server, &pair.client, &content(2, 1_000_000));
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn garbage_is_ignored_and_counted() {
    bounded(|| {
        let pair = pair(link(0.01, 1), link(0.01, 2));
        transfer_under(&pair, |round| {
            let mut garbage = content(round, (round % 1400) as usize);
            // First bytes of either plane: QUIC's long and short headers, ours.
            let firsts = [0xc3, 0x43, 0x81, 0x9f, 0x00, 0xff, 0xb0];
            if let Some(first) = garbage.first_mut() {
                *first = firsts[(round % 7) as usize];
            }
            for way in [Way::ToServer, Way::ToClient] {
                pair.proxy.inject(way, &garbage);
            }
        });
        for stats in [pair.client.stats(), pair.server.stats()] {
            assert!(stats.invalid_datagrams > 50, "{stats:?}");
        }
    });
}

#[test]
fn forged_packets_of_the_session_are_ignored_and_counted() {
    bounded(|| {
        let pair = pair(link(0.01, 1), link(0.01, 2));
        transfer_under(&pair, |round| {
            for way in [Way::ToServer, Way::ToClient] {
                let Some(mut packet) = pair.proxy.latest(way).pop() else {
                    continue;
                };
                match round % 4 {
                    // Cut short, anywhere.
                    0 => packet.truncate((round * 7919) as usize % packet.len()),
                    1 => packet.push(0),
                    // The connection id is right; nothing else is.
                    2 => packet = [&packet[..9.min(packet.len())], &content(round, 1200)].concat(),
                    _ => {
                        let bit = (round * 104_729) as usize % (packet.len() * 8);
                        packet[bit / 8] ^= 1 << (bit % 8);
                    }
                }
                pair.proxy.inject(way, &packet);
            }
        });
        for stats in [pair.client.stats(), pair.server.stats()] {
            assert!(stats.invalid_datagrams > 50, "{stats:?}");
        }
    });
}

#[test]
fn replayed_packets_are_ignored_and_counted() {
    bounded(|| {
        let pair = pair(link(0.01, 1), link(0.01, 2));
        transfer_under(&pair, |round| {
            for way in [Way::ToServer, Way::ToClient] {
                let latest = pair.proxy.latest(way);
                for packet in latest.iter().skip((round % 50) as usize).step_by(50) {
                    pair.proxy.inject(way, packet);
                }
            }
        });
        let (client, server) = (pair.client.stats(), pair.server.stats());
        assert!(client.replayed_datagrams > 50, "{client:?}");
        assert!(server.replayed_datagrams > 50, "{server:?}");
        // Nothing was counted twice as data.
        assert_eq!(server.bytes_received, 2_000_000);
        assert_eq!(client.bytes_received, 1_000_000);
    });
}

#[test]
fn packets_from_another_address_do_not_redirect_a_session() {
    bounded(|| {
        let pair = pair(link(0.01, 1), link(0.01, 2));
        let thief = UdpSocket::bind(LOCALHOST).unwrap();
        thief.set_nonblocking(true).unwrap();
        let server = pair.listener.local_addr();
        transfer_under(&pair, |round| {
            let latest = pair.proxy.latest(Way::ToServer);
            // Not those of the control plane: QUIC answers some of them where they came from.
            let ours = |packet: &&Vec<u8>| packet.first().is_some_and(|byte| byte >> 6 == 0b10);
            for packet in latest
                .iter()
                .filter(ours)
                .skip((round % 20) as usize)
                .step_by(20)
            {
                // Loopback may be full for a moment.
                let _ = thief.send_to(packet, server);
            }
        });
        assert!(
            thief.recv(&mut [0; 2000]).is_err(),
            "the server sent something to the thief"
        );
        assert!(pair.server.stats().replayed_datagrams > 0);
    });
}

#[test]
fn a_session_goes_on_from_a_new_source_address() {
    bounded(|| {
        let pair = pair(link(0.02, 1), link(0.02, 2));
        transfer_under(&pair, |round| {
            if round % 150 == 0 {
                pair.proxy.rebind();
            }
        });
    });
}

#[test]
fn a_flood_of_greetings_stops_neither_sessions_nor_new_ones() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        let server = pair.listener.local_addr();
        let flood = UdpSocket::bind(LOCALHOST).unwrap();
        // Well formed up to the encryption: version 1, lengths of ids, token and packet.
        let mut hello = content(1, 1200);
        hello[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        hello[14..18].copy_from_slice(&[0, 0, 0x44, 0x9e]);
        transfer_under(&pair, |round| {
            let mut hello = hello.clone();
            for n in 0..20 {
                hello[6..14].copy_from_slice(&(20 * round + n).to_be_bytes());
                // Loopback may be full for a moment.
                let _ = flood.send_to(&hello, server);
            }
            if round == 50 {
                let ticket = ticket(&pair.listener, server);
                let other = client(&ticket, &sphinx_transport::Options::default()).unwrap();
                let accepted = pair.listener.accept(Some(PATIENCE)).unwrap();
                transfer(&other, &accepted.expect("in time"), &content(2, 10_000));
            }
        });
        assert!(pair.server.stats().invalid_datagrams > 1000);
    });
}
