//! Several sockets of one port.

use std::io::ErrorKind;
use std::net::UdpSocket;

use sphinx_net::udp::{Steering, UdpConfig, UdpIo};
use sphinx_net::{PacketIo, PacketRx};

use crate::support::*;

const SHARDS: usize = 3;
const SENT: usize = 600;

fn shards(bind: &str, by_hash: bool) -> (Steering, Vec<UdpIo>, bool) {
    let steering = Steering::new(*b"a secret", SHARDS);
    let config = UdpConfig::new(bind.parse().unwrap());
    let (shards, steers) = UdpIo::open_shards(&config, &steering, by_hash).unwrap();
    (steering, shards, steers)
}

/// Datagrams of both planes, and of neither: number `n` begins with a byte of its own and has an id of its own.
fn datagram(n: u32) -> Vec<u8> {
    let id = u64::from(n)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes();
    let mut datagram = match n % 4 {
        0 => vec![0x80],
        1 => vec![0x45],
        2 => vec![0x00],
        _ => vec![0xc7, 0, 0, 0, 1, 20],
    };
    datagram.extend_from_slice(&id);
    datagram.extend_from_slice(&n.to_be_bytes());
    // Some datagrams are too short to hold an id.
    datagram.truncate(if n % 40 < 4 { 7 } else { 40 });
    datagram
}

/// Where the kernel has put each datagram that was sent; on loopback all are there.
fn places(shards: &mut [UdpIo], sent: usize) -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    for (place, io) in shards.iter_mut().enumerate() {
        loop {
            let buffers = io.rx().recv().unwrap();
            for index in 0..buffers {
                let mut received = io.rx().received(index).unwrap();
                let segments = received.segments();
                found.extend(segments.map(|segment| (place, segment.to_vec())));
            }
            if buffers == 0 {
                break;
            }
        }
    }
    assert_eq!(found.len(), sent);
    found
}

#[test]
fn the_kernel_steers_as_we_do() {
    for bind in ["127.0.0.1:0", "[::]:0"] {
        if try_open(bind).is_none() {
            continue;
        }
        let (steering, mut shards, steers) = shards(bind, false);
        assert!(steers, "the classic packet filter needs no privilege");
        let to = ("127.0.0.1", shards[0].local_addr().port());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for n in 0..SENT as u32 {
            sender.send_to(&datagram(n), to).unwrap();
        }
        let found = places(&mut shards, SENT);
        let mut shares = [0; SHARDS];
        for (place, datagram) in found {
            assert_eq!(place, steering.of_datagram(&datagram), "{datagram:?}");
            shares[place] += 1;
        }
        assert!(shares.iter().all(|share| *share > SENT / 6), "{shares:?}");
    }
}

#[test]
fn without_the_program_addresses_decide() {
    let (_, mut shards, steers) = shards("127.0.0.1:0", true);
    assert!(!steers);
    let to = shards[0].local_addr();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..100 {
        sender.send_to(&datagram(n), to).unwrap();
    }
    let found = places(&mut shards, 100);
    assert!(found.iter().all(|(place, _)| *place == found[0].0));
}

#[test]
fn nobody_else_gets_the_port() {
    let (steering, shards, _) = shards("127.0.0.1:0", false);
    let port = shards[0].local_addr();
    assert!(shards.iter().all(|shard| shard.local_addr() == port));
    let config = UdpConfig::new(port);
    let refused = [
        UdpIo::open(&config).err(),
        UdpIo::open_shards(&config, &steering, false).err(),
    ];
    for error in refused {
        assert_eq!(error.expect("refused").kind(), ErrorKind::AddrInUse);
    }
    drop(shards);
    UdpIo::open(&config).expect("the port is free again");
}
