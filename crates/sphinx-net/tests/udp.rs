//! The UDP back end on the loopback interface.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{
    DATAGRAM_BATCH_BYTES_MAX, Destination, DropReason, Dropped, Ecn, Interest, PacketIo, SendQueue,
    Transmit,
};

const SECOND_NS: u64 = 1_000_000_000;

fn open(bind: &str) -> UdpIo {
    UdpIo::open(&UdpConfig::new(bind.parse().unwrap())).unwrap()
}

/// Opens a socket, or says why that family is skipped.
fn try_open(bind: &str) -> Option<UdpIo> {
    match UdpIo::open(&UdpConfig::new(bind.parse().unwrap())) {
        Ok(io) => Some(io),
        Err(error) => {
            eprintln!("skipped: no IPv6 here ({error})");
            None
        }
    }
}

fn transmit(remote: SocketAddr, segment_size: usize, len: usize) -> Transmit {
    Transmit {
        remote,
        local_ip: None,
        ecn: Ecn::NotEct,
        segment_size,
        offset: 0,
        len,
    }
}

/// Sends everything, waiting as needed, and returns what was dropped.
fn send(io: &mut UdpIo, arena: &[u8], transmits: &[Transmit]) -> Vec<Dropped> {
    let mut transmits = transmits.to_vec();
    let (mut finished, mut dropped) = (0, Vec::new());
    while finished < transmits.len() {
        finished += io
            .send(arena, &mut transmits[finished..], &mut dropped)
            .unwrap();
        if finished < transmits.len() {
            io.wait(Interest::ReadWrite, Some(SECOND_NS)).unwrap();
        }
    }
    dropped
}

/// One datagram as it was received.
#[derive(Debug)]
struct Datagram {
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    ecn: Ecn,
    timestamp_ns: Option<u64>,
    bytes: Vec<u8>,
}

/// Receives until there are `count` datagrams; fails if they do not come.
fn receive(io: &mut UdpIo, count: usize) -> Vec<Datagram> {
    let mut datagrams = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while datagrams.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {} of {count} came",
            datagrams.len()
        );
        io.wait(Interest::Read, Some(SECOND_NS)).unwrap();
        let buffers = io.recv().unwrap();
        assert!(buffers <= io.capabilities().recv_batch_max);
        for index in 0..buffers {
            let mut received = io.received(index).unwrap();
            let (remote, local_ip, ecn) = (received.remote, received.local_ip, received.ecn);
            let timestamp_ns = received.timestamp_ns;
            for segment in received.segments() {
                let bytes = segment.to_vec();
                datagrams.push(Datagram {
                    remote,
                    local_ip,
                    ecn,
                    timestamp_ns,
                    bytes,
                });
            }
        }
        assert!(io.received(buffers).is_none());
    }
    datagrams
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 31 + index / 251) as u8)
        .collect()
}

fn lengths(datagrams: &[Datagram]) -> Vec<usize> {
    datagrams
        .iter()
        .map(|datagram| datagram.bytes.len())
        .collect()
}

fn joined(datagrams: &[Datagram]) -> Vec<u8> {
    datagrams
        .iter()
        .flat_map(|datagram| datagram.bytes.iter().copied())
        .collect()
}

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
            eprintln!("skipped: no ECN here");
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
            eprintln!("skipped: no segmentation offload here");
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
        eprintln!("skipped: no packet information here");
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
    assert!(
        dropped
            .iter()
            .all(|drop| drop.index == 0 && drop.segment_size <= 100)
    );
    assert_eq!(a.counters().send_errors.total(), 3);
    assert!(a.last_send_error().is_some());
    assert_eq!(receive(&mut b, 3).len(), 3);
    assert_eq!(a.capabilities().segments_max, segments_max);
    assert_eq!(a.counters().gso_downgrades, 0);
}

#[test]
fn timestamps_are_wall_clock_nanoseconds() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    if !b.capabilities().timestamps {
        eprintln!("skipped: no receive timestamps here");
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
fn a_refused_segmentation_sends_the_same_datagrams_one_by_one() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    if a.capabilities().segments_max == 1 {
        eprintln!("skipped: no segmentation offload here");
        return;
    }
    // The kernel does not segment what has no checksum.
    let socket = socket2::SockRef::from(&a);
    disable_checksums(&socket);
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

fn disable_checksums(socket: &socket2::SockRef<'_>) {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
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
    let arena = pattern(70_000);
    let small = transmit(b.local_addr(), 0, 100);
    let dropped = send(
        &mut a,
        &arena,
        &[small, transmit(b.local_addr(), 0, 70_000), small],
    );
    let expected = Dropped {
        index: 1,
        datagrams: 1,
        segment_size: 70_000,
        reason: DropReason::TooLarge,
    };
    assert_eq!(dropped, [expected]);
    assert_eq!(a.counters().send_errors.too_large, 1);
    assert_eq!(
        a.last_send_error().unwrap().raw_os_error(),
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

#[test]
fn a_closed_port_does_not_break_the_socket() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let closed = open("127.0.0.1:0").local_addr();
    for _ in 0..5 {
        send(&mut a, &[1], &[transmit(closed, 0, 1)]);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(a.recv().unwrap(), 0);
    }
    assert!(send(&mut a, &[2], &[transmit(b.local_addr(), 0, 1)]).is_empty());
    assert_eq!(receive(&mut b, 1)[0].bytes, [2]);
}

#[test]
fn a_descriptor_outside_of_the_arena_sends_nothing() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let good = transmit(b.local_addr(), 0, 10);
    for bad in [
        Transmit { len: 11, ..good },
        Transmit {
            offset: usize::MAX,
            ..good
        },
    ] {
        let error = a
            .send(&[0; 10], &mut [good, bad], &mut Vec::new())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(b.recv().unwrap(), 0);
    assert_eq!(a.send(&[], &mut [], &mut Vec::new()).unwrap(), 0);
    assert_eq!(a.counters().send_calls, 0);
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
    assert_eq!(b.recv().unwrap(), 1);
    assert_eq!(b.received(0).unwrap().segments().count(), 0);
    assert_eq!(b.counters().recv_datagrams, 2);
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
    while b.recv().unwrap() > 0 {
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
fn a_send_queue_delivers_what_was_pushed() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let segments_max = a.capabilities().segments_max;
    let to = Destination {
        remote: b.local_addr(),
        local_ip: None,
        ecn: Ecn::Ect0,
    };
    let mut queue = SendQueue::with_capacity(1 << 16);
    for (number, len) in [700, 700, 700, 20, 20, 700].into_iter().enumerate() {
        queue.push(&to, len, segments_max).fill(number as u8);
    }
    let mut dropped = Vec::new();
    assert!(queue.flush(&mut a, &mut dropped).unwrap());
    assert!(queue.is_empty() && dropped.is_empty() && queue.len_bytes() == 0);
    let got = receive(&mut b, 6);
    assert_eq!(lengths(&got), [700, 700, 700, 20, 20, 700]);
    for (number, datagram) in got.iter().enumerate() {
        assert!(datagram.bytes.iter().all(|byte| *byte == number as u8));
    }
    assert_eq!(a.counters().send_calls, 1);
}
