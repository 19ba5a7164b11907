//! What is sent arrives, as it was sent.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Destination, Ecn, Interest, PacketIo, PacketRx, PacketTx};

use crate::support::*;

/// The largest UDP payload over IPv4.
const DATAGRAM_BATCH_BYTES_MAX: usize = 65_507;

#[test]
fn datagrams_arrive_in_both_families() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut a) = try_open(bind) else {
            continue;
        };
        let mut b = open(bind);
        let arena = pattern(1200);
        assert!(send(&mut a, &arena, &[transmit(b.local_addr(), 0, 1200)]).is_empty());
        let got = receive(&mut b, 1);
        assert_eq!(got[0].bytes, arena);
        assert_eq!(got[0].remote, a.local_addr());
        if b.capabilities().local_ip {
            assert_eq!(got[0].local_ip, Some(b.local_addr().ip()));
        }
        let (sent, received) = (a.counters(), b.counters());
        assert_eq!(
            (sent.send_datagrams, sent.send_bytes, sent.send_gso_batches),
            (1, 1200, 0)
        );
        assert_eq!((received.recv_datagrams, received.recv_bytes), (1, 1200));
    }
}

#[test]
fn a_dual_stack_socket_speaks_both_families_and_shows_plain_ipv4() {
    let Some(mut listener) = try_open("[::]:0") else {
        return;
    };
    let port = listener.local_addr().port();
    for (bind, target) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let mut peer = open(bind);
        let target: IpAddr = target.parse().unwrap();
        let arena = pattern(3000);
        let there = Transmit {
            ecn: Ecn::Ect0,
            ..transmit(SocketAddr::new(target, port), 1000, arena.len())
        };
        assert!(send(&mut peer, &arena, &[there]).is_empty());
        let got = receive(&mut listener, 3);
        assert_eq!(joined(&got), arena);
        assert_eq!(
            (got[0].remote, got[0].local_ip),
            (peer.local_addr(), Some(target))
        );
        assert_eq!(got[0].ecn, Ecn::Ect0);
        let back = Transmit {
            local_ip: Some(target),
            ecn: Ecn::Ect1,
            ..transmit(got[0].remote, 1000, arena.len())
        };
        assert!(send(&mut listener, &arena, &[back]).is_empty());
        let got = receive(&mut peer, 3);
        assert_eq!((joined(&got), got[0].ecn), (arena, Ecn::Ect1));
        assert_eq!(got[0].remote, SocketAddr::new(target, port));
    }
}

#[test]
fn ecn_codepoints_arrive_in_both_families() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut a) = try_open(bind) else {
            continue;
        };
        let mut b = open(bind);
        if !(a.capabilities().ecn_send && b.capabilities().ecn_recv) {
            sphinx_testing::skipped!("no ECN here");
            continue;
        }
        let codepoints = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
        let all = codepoints.map(|ecn| Transmit {
            ecn,
            ..transmit(b.local_addr(), 0, 10)
        });
        assert!(send(&mut a, &pattern(10), &all).is_empty());
        let got = receive(&mut b, 4);
        assert_eq!(
            got.iter().map(|datagram| datagram.ecn).collect::<Vec<_>>(),
            codepoints
        );
    }
}

#[test]
fn segmented_sends_arrive_whole_and_joined() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut a) = try_open(bind) else {
            continue;
        };
        let mut b = open(bind);
        if a.capabilities().segments_max == 1 || !b.capabilities().gro {
            sphinx_testing::skipped!("no segmentation offload here");
            continue;
        }
        // 10 equal datagrams and a shorter last one; then two of another size.
        let arena = pattern(10 * 1200 + 700 + 2 * 300);
        let second = Transmit {
            offset: 12_700,
            ..transmit(b.local_addr(), 300, 600)
        };
        assert!(
            send(
                &mut a,
                &arena,
                &[transmit(b.local_addr(), 1200, 12_700), second]
            )
            .is_empty()
        );
        let got = receive(&mut b, 13);
        let mut expected = vec![1200; 10];
        expected.extend([700, 300, 300]);
        assert_eq!(lengths(&got), expected);
        assert_eq!(joined(&got), arena);
        let sent = a.counters();
        assert_eq!(
            (sent.send_calls, sent.send_datagrams, sent.send_gso_batches),
            (1, 13, 2)
        );
        assert!(b.counters().recv_gro_buffers > 0);
        assert_eq!(b.counters().recv_datagrams, 13);
    }
}

#[test]
fn the_largest_batches_fit_and_longer_descriptors_are_split() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut a) = try_open(bind) else {
            continue;
        };
        let mut b = open(bind);
        let arena = pattern(200_000);
        // As many bytes as one message takes, in two segments.
        let half = DATAGRAM_BATCH_BYTES_MAX.div_ceil(2);
        let full = transmit(b.local_addr(), half, DATAGRAM_BATCH_BYTES_MAX);
        assert!(send(&mut a, &arena, &[full]).is_empty());
        assert_eq!(
            joined(&receive(&mut b, 2)),
            arena[..DATAGRAM_BATCH_BYTES_MAX]
        );
        // More bytes, and more segments, than one message takes.
        let calls_before = a.counters().send_calls;
        assert!(send(&mut a, &arena, &[transmit(b.local_addr(), 1000, 200_000)]).is_empty());
        assert_eq!(joined(&receive(&mut b, 200)), arena);
        if a.capabilities().segments_max > 1 {
            assert_eq!(a.counters().send_calls, calls_before + 1);
        }
        assert!(send(&mut a, &arena, &[transmit(b.local_addr(), 10, 3_000)]).is_empty());
        assert_eq!(lengths(&receive(&mut b, 300)), vec![10; 300]);
    }
}

#[test]
fn without_offload_the_same_datagrams_arrive() {
    let bind = "127.0.0.1:0".parse().unwrap();
    let config = UdpConfig {
        gso: false,
        gro: false,
        ..UdpConfig::new(bind)
    };
    let (mut a, mut b) = (UdpIo::open(&config).unwrap(), UdpIo::open(&config).unwrap());
    assert_eq!(
        (a.capabilities().segments_max, b.capabilities().gro),
        (1, false)
    );
    assert!(!a.capabilities().gso_downgraded);
    let arena = pattern(100 * 500 + 1);
    assert!(
        send(
            &mut a,
            &arena,
            &[transmit(b.local_addr(), 500, arena.len())]
        )
        .is_empty()
    );
    let got = receive(&mut b, 101);
    assert_eq!(joined(&got), arena);
    assert_eq!(got[100].bytes.len(), 1);
    // 101 messages are four calls of at most 32.
    assert_eq!(
        (a.counters().send_calls, a.counters().send_gso_batches),
        (4, 0)
    );
    assert_eq!(b.counters().recv_gro_buffers, 0);
}

#[test]
fn packet_information_names_the_address_and_chooses_the_source() {
    let (mut any, mut peer) = (open("0.0.0.0:0"), open("127.0.0.1:0"));
    if !any.capabilities().local_ip {
        sphinx_testing::skipped!("no packet information here");
        return;
    }
    let port = any.local_addr().port();
    let alias: IpAddr = "127.0.0.77".parse().unwrap();
    assert!(
        send(
            &mut peer,
            &[1],
            &[transmit(SocketAddr::new(alias, port), 0, 1)]
        )
        .is_empty()
    );
    let got = receive(&mut any, 1);
    assert_eq!(got[0].local_ip, Some(alias));
    let back = Transmit {
        local_ip: got[0].local_ip,
        ..transmit(got[0].remote, 0, 1)
    };
    assert!(send(&mut any, &[2], &[back]).is_empty());
    assert_eq!(
        receive(&mut peer, 1)[0].remote,
        SocketAddr::new(alias, port)
    );
}

#[test]
fn timestamps_are_wall_clock_nanoseconds() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    if !b.capabilities().timestamps {
        sphinx_testing::skipped!("no receive timestamps here");
        return;
    }
    assert!(send(&mut a, &[1], &[transmit(b.local_addr(), 0, 1)]).is_empty());
    let stamp = receive(&mut b, 1)[0].timestamp_ns.unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.saturating_sub(Duration::from_nanos(stamp));
    assert!(age < Duration::from_secs(5), "{age:?}");
}

#[test]
fn empty_descriptors_and_empty_datagrams_do_no_harm() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let (some, none) = (
        transmit(b.local_addr(), 5, 5),
        transmit(b.local_addr(), 5, 0),
    );
    assert!(send(&mut a, &[9; 5], &[none, some, none]).is_empty());
    assert_eq!(receive(&mut b, 1)[0].bytes, [9; 5]);
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    plain.send_to(&[], b.local_addr()).unwrap();
    b.wait(Interest::Read, Some(SECOND_NS)).unwrap();
    assert_eq!(b.rx().recv().unwrap(), 1);
    assert_eq!(b.rx().received(0).unwrap().segments().count(), 0);
    assert_eq!(b.counters().recv_datagrams, 2);
}

#[test]
fn socket_buffers_are_reported_as_granted() {
    let io = open("127.0.0.1:0");
    let capabilities = io.capabilities();
    assert!(capabilities.recv_buffer_bytes > 0 && capabilities.send_buffer_bytes > 0);
    assert!(capabilities.dont_fragment);
}

#[test]
fn a_wait_ends_by_packet_by_waker_and_by_time() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let ready = b.wait(Interest::Read, Some(1_000_000)).unwrap();
    assert!(!(ready.readable || ready.writable || ready.woken));
    let ready = b.wait(Interest::ReadWrite, None).unwrap();
    assert!(ready.writable && !ready.readable && !ready.woken);
    let waker = b.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    let ready = b.wait(Interest::Read, None).unwrap();
    assert!(ready.woken && !ready.readable);
    thread.join().unwrap();
    assert!(send(&mut a, &[1], &[transmit(b.local_addr(), 0, 1)]).is_empty());
    let ready = b.wait(Interest::Read, None).unwrap();
    assert!(ready.readable && !ready.woken);
}

#[test]
fn frames_leave_in_order_and_are_free_again() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let to = Destination {
        remote: b.local_addr(),
        local_ip: None,
        ecn: Ecn::Ect0,
    };
    for (number, len) in [700, 700, 700, 20, 20, 700].into_iter().enumerate() {
        a.tx().frame(&to, len).unwrap().fill(number as u8);
    }
    assert_eq!(a.tx().taken_bytes(), 2840);
    let mut dropped = Vec::new();
    assert!(a.tx().flush(&mut dropped).unwrap());
    assert!(dropped.is_empty() && a.tx().taken_bytes() == 0);
    let got = receive(&mut b, 6);
    assert_eq!(lengths(&got), [700, 700, 700, 20, 20, 700]);
    for (number, datagram) in got.iter().enumerate() {
        assert!(datagram.bytes.iter().all(|byte| *byte == number as u8));
    }
    assert_eq!(a.counters().send_calls, 1);
}

#[test]
fn frames_run_out() {
    let config = UdpConfig {
        send_frames_bytes: 1000,
        ..UdpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let (mut a, mut b) = (UdpIo::open(&config).unwrap(), open("127.0.0.1:0"));
    let to = Destination {
        remote: b.local_addr(),
        local_ip: None,
        ecn: Ecn::NotEct,
    };
    assert!(a.tx().frame(&to, 1001).is_none());
    a.tx().frame(&to, 600).unwrap().fill(1);
    assert!(a.tx().frame(&to, 600).is_none());
    assert!(a.tx().flush(&mut Vec::new()).unwrap());
    a.tx().frame(&to, 600).unwrap().fill(2);
    assert!(a.tx().flush(&mut Vec::new()).unwrap());
    let got = receive(&mut b, 2);
    assert_eq!((got[0].bytes[599], got[1].bytes[599]), (1, 2));
}
