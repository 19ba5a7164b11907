//! What cannot be sent or received is counted and reported, and harms nothing else.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx, PacketTx};

use crate::support::*;

#[test]
fn a_source_address_that_is_not_ours_drops_the_datagrams_and_keeps_offload() {
    let (mut a, mut b) = (open("0.0.0.0:0"), open("127.0.0.1:0"));
    let segments_max = a.capabilities().segments_max;
    let foreign = Some("192.0.2.200".parse().unwrap());
    let bad = Transmit {
        local_ip: foreign,
        ..transmit(b.local_addr(), 100, 250)
    };
    let dropped = send(
        &mut a,
        &pattern(250),
        &[bad, transmit(b.local_addr(), 100, 250)],
    );
    assert_eq!(dropped.iter().map(|drop| drop.datagrams).sum::<usize>(), 3);
    assert!(dropped.iter().all(|drop| drop.segment_size <= 100));
    assert_eq!(a.counters().send_errors.total(), 3);
    assert!(a.tx().last_error().is_some());
    assert_eq!(receive(&mut b, 3).len(), 3);
    assert_eq!(a.capabilities().segments_max, segments_max);
    assert_eq!(a.counters().gso_downgrades, 0);
}

#[test]
fn a_refused_segmentation_sends_the_same_datagrams_one_by_one() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    if a.capabilities().segments_max == 1 {
        sphinx_testing::skipped!("no segmentation offload here");
        return;
    }
    // The kernel does not segment what has no checksum.
    let socket = socket2::SockRef::from(&a);
    set_no_checksums(&socket, true);
    let arena = pattern(50 * 100 + 30);
    let before = transmit(b.local_addr(), 0, 100);
    let batch = transmit(b.local_addr(), 100, arena.len());
    assert!(send(&mut a, &arena, &[before, batch, batch]).is_empty());
    let got = receive(&mut b, 1 + 2 * 51);
    assert_eq!(joined(&got), [&arena[..100], &arena, &arena].concat());
    let capabilities = a.capabilities();
    assert_eq!(
        (capabilities.segments_max, capabilities.gso_downgraded),
        (1, true)
    );
    let counters = a.counters();
    assert_eq!((counters.gso_downgrades, counters.send_gso_batches), (1, 0));
    assert_eq!(
        (counters.send_datagrams, counters.send_errors.total()),
        (103, 0)
    );
    // ECN is not given up with it.
    let marked = Transmit {
        ecn: Ecn::Ect0,
        ..transmit(b.local_addr(), 100, 200)
    };
    assert!(send(&mut a, &arena, &[marked]).is_empty());
    assert!(
        receive(&mut b, 2)
            .iter()
            .all(|datagram| datagram.ecn == Ecn::Ect0)
    );
}

/// A route that refuses it may not stay, and one that does is not asked too often.
#[test]
fn segmentation_is_tried_again_some_thousands_of_datagrams_later() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let segments_max = a.capabilities().segments_max;
    if segments_max == 1 {
        sphinx_testing::skipped!("no segmentation offload here");
        return;
    }
    let arena = pattern(60 * 100);
    let batch = transmit(b.local_addr(), 100, arena.len());
    let mut until = |a: &mut UdpIo, done: &dyn Fn(&UdpIo) -> bool| {
        for _ in 0..400 {
            if done(a) {
                return;
            }
            assert!(send(a, &arena, &[batch]).is_empty());
            assert_eq!(receive(&mut b, 60).len(), 60);
        }
        panic!("{:?}", a.counters());
    };
    set_no_checksums(&socket2::SockRef::from(&a), true);
    until(&mut a, &|a| a.counters().gso_downgrades == 2);
    assert_eq!(a.capabilities().segments_max, 1);
    set_no_checksums(&socket2::SockRef::from(&a), false);
    until(&mut a, &|a| a.capabilities().segments_max == segments_max);
    until(&mut a, &|a| a.counters().send_gso_batches > 2);
    assert_eq!(a.counters().gso_downgrades, 2);
    assert_eq!(a.counters().send_errors.total(), 0);
}

fn set_no_checksums(socket: &socket2::SockRef<'_>, on: bool) {
    use std::os::fd::AsRawFd;
    let on = libc::c_int::from(on);
    // SAFETY: pointer and length describe `on`, which outlives the call and is only read.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

#[test]
fn a_datagram_that_is_too_large_is_reported_and_the_others_go_on() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let arena = pattern(65_520);
    let small = transmit(b.local_addr(), 0, 100);
    let dropped = send(
        &mut a,
        &arena,
        &[small, transmit(b.local_addr(), 0, 65_520), small],
    );
    let expected = Dropped {
        datagrams: 1,
        segment_size: 65_520,
        reason: DropReason::TooLarge,
    };
    assert_eq!(dropped, [expected]);
    assert_eq!(a.counters().send_errors.too_large, 1);
    assert_eq!(
        a.tx().last_error().unwrap().raw_os_error(),
        Some(libc::EMSGSIZE)
    );
    assert_eq!(receive(&mut b, 2).len(), 2);
}

#[test]
fn an_unreachable_family_is_counted_and_not_fatal() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let wrong = transmit("[::1]:9".parse().unwrap(), 0, 10);
    let dropped = send(
        &mut a,
        &pattern(10),
        &[wrong, transmit(b.local_addr(), 0, 10)],
    );
    assert_eq!(
        (dropped.len(), dropped[0].reason),
        (1, DropReason::Unreachable)
    );
    assert_eq!(a.counters().send_errors.unreachable, 1);
    assert_eq!(receive(&mut b, 1).len(), 1);
}

/// A port where nobody listens, and which no other test is given meanwhile: its socket hears nobody but itself.
fn closed(bind: &str) -> (UdpSocket, SocketAddr) {
    let taken = UdpSocket::bind(bind).unwrap();
    let address = taken.local_addr().unwrap();
    taken.connect(address).unwrap();
    (taken, address)
}

#[test]
fn a_closed_port_does_not_break_the_socket() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let (_taken, closed) = closed("127.0.0.1:0");
    for _ in 0..5 {
        send(&mut a, &[1], &[transmit(closed, 0, 1)]);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(a.rx().recv().unwrap(), 0);
    }
    assert!(send(&mut a, &[2], &[transmit(b.local_addr(), 0, 1)]).is_empty());
    assert_eq!(receive(&mut b, 1)[0].bytes, [2]);
}

#[test]
fn a_closed_port_is_told_and_costs_the_others_nothing() {
    for (bind, host) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("[::]:0", "127.0.0.1:0"),
        ("[::]:0", "[::1]:0"),
    ] {
        let (mut a, mut b) = (open(bind), open(host));
        let (_taken, closed) = closed(host);
        assert_eq!(a.rx().take_refused(), []);
        let mut refused = Vec::new();
        for n in 0..20 {
            // What is sent behind a refusal arrives.
            send(&mut a, &[n], &[transmit(closed, 0, 1)]);
            std::thread::sleep(Duration::from_millis(1));
            assert!(send(&mut a, &[n], &[transmit(b.local_addr(), 0, 1)]).is_empty());
            assert_eq!(receive(&mut b, 1)[0].bytes, [n]);
            a.wait(Interest::Read, Some(0)).unwrap();
            assert_eq!(a.rx().recv().unwrap(), 0);
            refused.extend(a.rx().take_refused());
        }
        assert!(
            refused.len() > 1 && refused.iter().all(|to| *to == closed),
            "{refused:?}"
        );
        // Nothing is left that would end every wait at once.
        let ready = a.wait(Interest::Read, Some(0)).unwrap();
        assert!(!ready.readable && !ready.errors, "{ready:?}");
        assert_eq!(a.counters().send_errors.total(), 0);
    }
}

#[test]
fn datagrams_longer_than_the_buffer_are_counted_and_left_out() {
    let bind = "127.0.0.1:0".parse().unwrap();
    let config = UdpConfig {
        gro: false,
        recv_datagram_bytes: 100,
        ..UdpConfig::new(bind)
    };
    let (mut a, mut b) = (open("127.0.0.1:0"), UdpIo::open(&config).unwrap());
    let lens = [101, 100, 5000, 99];
    let all = lens.map(|len| transmit(b.local_addr(), 0, len));
    assert!(send(&mut a, &pattern(5000), &all).is_empty());
    assert_eq!(lengths(&receive(&mut b, 2)), [100, 99]);
    assert_eq!(
        (b.counters().recv_truncated, b.counters().recv_datagrams),
        (2, 2)
    );
}

#[test]
fn datagrams_lost_in_the_receive_buffer_are_counted() {
    let bind = "127.0.0.1:0".parse().unwrap();
    let config = UdpConfig {
        recv_buffer_bytes: 8192,
        gro: false,
        ..UdpConfig::new(bind)
    };
    let (mut a, mut b) = (open("127.0.0.1:0"), UdpIo::open(&config).unwrap());
    assert!(b.capabilities().recv_buffer_bytes < 100_000);
    let arena = pattern(100 * 1200);
    assert!(
        send(
            &mut a,
            &arena,
            &[transmit(b.local_addr(), 1200, arena.len())]
        )
        .is_empty()
    );
    let mut got = 0;
    while b.rx().recv().unwrap() > 0 {
        got = b.counters().recv_datagrams;
    }
    assert!(got < 100);
    assert!(send(&mut a, &arena, &[transmit(b.local_addr(), 0, 1)]).is_empty());
    assert_eq!(receive(&mut b, 1).len(), 1);
    assert_eq!(b.counters().recv_overflows, 100 - got);
}

#[test]
fn opening_reports_what_is_wrong() {
    let first = open("127.0.0.1:0");
    let taken = UdpIo::open(&UdpConfig::new(first.local_addr())).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    assert!(
        taken.to_string().contains(&first.local_addr().to_string()),
        "{taken}"
    );
    let foreign = UdpConfig::new("192.0.2.200:0".parse().unwrap());
    assert_eq!(
        UdpIo::open(&foreign).unwrap_err().kind(),
        io::ErrorKind::AddrNotAvailable
    );
}
