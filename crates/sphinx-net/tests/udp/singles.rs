//! Datagrams one by one, at the sockets of somebody else.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use sphinx_net::udp::{Singles, tell_local_ip};
use sphinx_net::{Destination, Ecn};
use sphinx_testing::uninterrupted;

use crate::support::*;

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let mut singles = Singles::new(65_507);
    for (bind, asks, asked) in [
        ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.77"),
        ("[::]:0", "127.0.0.1:0", "127.0.0.77"),
        ("[::]:0", "[::1]:0", "::1"),
    ] {
        let (Ok(any), Ok(peer)) = (UdpSocket::bind(bind), UdpSocket::bind(asks)) else {
            sphinx_testing::skipped!("no IPv6 here");
            continue;
        };
        tell_local_ip(any.as_fd());
        let empty = singles.recv(any.as_fd()).map(drop).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let asked: IpAddr = asked.parse().unwrap();
        let place = SocketAddr::new(asked, any.local_addr().unwrap().port());
        for socket in [&any, &peer] {
            let patience = Some(Duration::from_secs(5));
            socket.set_read_timeout(patience).unwrap();
        }
        let mut buffer = vec![0; 65_507];
        for len in [0, 1, 65_507] {
            let data = pattern(len);
            peer.send_to(&data, place).unwrap();
            uninterrupted(|| any.peek(&mut [0])).unwrap();
            let got = singles.recv(any.as_fd()).unwrap();
            assert_eq!(got.remote, peer.local_addr().unwrap());
            assert_eq!(got.local_ip, Some(asked));
            assert!(*got.payload == data[..]);
            let to = Destination {
                remote: got.remote,
                local_ip: got.local_ip,
                ecn: Ecn::NotEct,
            };
            let socket = (any.as_fd(), bind.starts_with('['));
            singles.send(socket, &to, &data).unwrap();
            let (length, from) = uninterrupted(|| peer.recv_from(&mut buffer)).unwrap();
            assert!(buffer[..length] == data[..]);
            assert_eq!(from, place);
        }
    }
}
