//! Sockets beside the first one.

use std::net::{IpAddr, UdpSocket};

use sphinx_net::PacketIo;

use crate::support::*;

#[test]
fn a_socket_that_is_detached_is_closed_and_the_first_one_goes_on() {
    let [mut a, mut b] = [(); 2].map(|()| open("127.0.0.1:0"));
    let second = IpAddr::from([127, 0, 0, 2]);
    for _ in 0..3 {
        a.attach(second, None).unwrap();
        // No socket has this address: nothing is detached.
        a.detach([127, 0, 0, 3].into());
        let from_second = Transmit {
            local_ip: Some(second),
            ..transmit(b.local_addr(), 0, 10)
        };
        assert_eq!(send(&mut a, &[7; 10], &[from_second]), []);
        let place = receive(&mut b, 1)[0].remote;
        assert_eq!(place.ip(), second);
        a.detach(second);
        drop(UdpSocket::bind(place).expect("its port is free"));
        // The first socket is waited for by itself again.
        for _ in 0..2 {
            std::mem::swap(&mut a, &mut b);
            let all = transmit(b.local_addr(), 0, 20);
            assert_eq!(send(&mut a, &[8; 20], &[all]), []);
            assert_eq!(joined(&receive(&mut b, 1)), [8; 20]);
        }
    }
    // What was counted at a socket outlives it.
    let counters = a.counters();
    assert_eq!((counters.send_datagrams, counters.send_bytes), (6, 90));
    assert_eq!((counters.recv_datagrams, counters.recv_bytes), (3, 60));
}
