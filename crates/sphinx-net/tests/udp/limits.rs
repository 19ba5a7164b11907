//! The UDP back end on an interface that is small and slow.
//!
//! The interface is the loopback of a network namespace that one thread makes for itself, so it
//! takes privileges and the `ip` and `tc` tools; without them the tests say so and pass.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Destination, DropReason, Dropped, Ecn, Interest, PacketIo, PacketRx, PacketTx};

use crate::support::*;

/// Runs `test` on a thread of its own in a fresh network namespace, after `commands`.
fn in_namespace(commands: &'static [&'static str], test: fn()) {
    let thread = std::thread::spawn(move || {
        // SAFETY: only the network namespace is detached, and no file descriptor or memory
        // mapping of the process depends on it.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
            sphinx_testing::skipped!("no network namespace ({error})");
            return;
        }
        for command in commands {
            let mut words = command.split(' ');
            let program = words.next().unwrap();
            match Command::new(program).args(words).output() {
                Ok(output) if output.status.success() => {}
                other => {
                    sphinx_testing::skipped!("\"{command}\" failed ({other:?})");
                    return;
                }
            }
        }
        test();
    });
    thread.join().unwrap();
}

fn pair() -> (UdpIo, UdpIo) {
    (open("127.0.0.1:0"), open("127.0.0.1:0"))
}

fn transmit_at(to: &UdpIo, segment_size: usize, offset: usize, len: usize) -> Transmit {
    Transmit {
        offset,
        ..transmit(to.local_addr(), segment_size, len)
    }
}

/// All bytes received until there are `count`.
fn receive_bytes(io: &mut UdpIo, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while bytes.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {} of {count} came",
            bytes.len()
        );
        io.wait(Interest::Read, Some(100_000_000)).unwrap();
        for index in 0..io.rx().recv().unwrap() {
            bytes.extend_from_slice(io.rx().received(index).unwrap().payload);
        }
    }
    bytes
}

#[test]
fn segments_above_the_mtu_are_dropped_and_offload_stays_on() {
    in_namespace(&["ip link set lo mtu 1500 up"], || {
        let (mut a, mut b) = pair();
        let segments_max = a.capabilities().segments_max;
        let arena: Vec<u8> = (0..9000).map(|index| (index % 251) as u8).collect();
        let sizes = [
            transmit_at(&b, 1472, 0, 3 * 1472),
            transmit_at(&b, 1473, 0, 2 * 1473 + 100),
            transmit_at(&b, 0, 0, 1473),
            transmit_at(&b, 1000, 0, 2500),
        ];
        // One after the other, so that they do not leave as one.
        let dropped = sizes.map(|transmit| send(&mut a, &arena, &[transmit]));
        for drop in dropped.iter().flatten() {
            assert_eq!(
                (drop.segment_size, drop.reason),
                (1473, DropReason::TooLarge)
            );
        }
        // Whether the short end of a segmented descriptor is dropped with the rest depends on
        // the kernel having segmentation; the sizes that fit must arrive in any case.
        let of_segmented: usize = dropped[1].iter().map(|drop| drop.datagrams).sum();
        assert_eq!(of_segmented, if segments_max > 1 { 3 } else { 2 });
        let single = Dropped {
            datagrams: 1,
            segment_size: 1473,
            reason: DropReason::TooLarge,
        };
        assert_eq!((&dropped[0], &dropped[3]), (&vec![], &vec![]));
        assert_eq!(dropped[2], [single]);
        let tail = if segments_max > 1 { 0 } else { 100 };
        let got = receive_bytes(&mut b, 3 * 1472 + tail + 2500);
        assert_eq!(got[..3 * 1472], arena[..3 * 1472]);
        assert_eq!(got[3 * 1472 + tail..], arena[..2500]);
        assert_eq!(a.capabilities().segments_max, segments_max);
        assert_eq!(a.counters().gso_downgrades, 0);
    });
}

#[test]
fn a_full_socket_loses_nothing_and_sends_nothing_twice() {
    let commands = &[
        "ip link set lo mtu 1500 up",
        "tc qdisc add dev lo root tbf rate 40mbit burst 16k latency 10s",
    ];
    in_namespace(commands, || {
        for gso in [true, false] {
            let (_, mut b) = pair();
            let bind = "127.0.0.1:0".parse().unwrap();
            let config = UdpConfig {
                gso,
                send_buffer_bytes: 30_000,
                ..UdpConfig::new(bind)
            };
            let mut a = UdpIo::open(&config).unwrap();
            // Every datagram carries its number: twenty descriptors of ten.
            let arena: Vec<u8> = (0..200u32)
                .flat_map(|number| number.to_be_bytes().repeat(300))
                .collect();
            // Marked differently, they do not leave as one.
            let transmits: Vec<Transmit> = (0..20)
                .map(|index| Transmit {
                    ecn: [Ecn::NotEct, Ecn::Ect0][index % 2],
                    ..transmit_at(&b, 1200, index * 12_000, 12_000)
                })
                .collect();
            fill(&mut a, &arena, &transmits);
            let mut dropped = Vec::new();
            while !a.tx().flush(&mut dropped).unwrap() {
                let ready = a.wait(Interest::ReadWrite, Some(1_000_000_000)).unwrap();
                assert!(ready.writable);
            }
            assert!(dropped.is_empty());
            assert!(a.counters().send_blocked > 0, "{:?}", a.counters());
            assert_eq!(a.counters().send_datagrams, 200);
            assert_eq!(receive_bytes(&mut b, arena.len()), arena);
            assert_eq!(b.counters().recv_datagrams, 200);
        }
    });
}

#[test]
fn a_full_socket_does_not_hold_up_another() {
    let commands = &[
        "ip link set lo mtu 1500 up",
        "tc qdisc add dev lo root tbf rate 8mbit burst 16k latency 10s",
    ];
    in_namespace(commands, || {
        let mut b = open("127.0.0.1:0");
        let config = |bind: &str| UdpConfig {
            send_buffer_bytes: 30_000,
            ..UdpConfig::new(bind.parse().unwrap())
        };
        let mut a = UdpIo::open(&config("127.0.0.1:0")).unwrap();
        a.attach_with(&config("127.0.0.2:0")).unwrap();
        let arena = vec![7; 240_000];
        let [first, second] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|from: [u8; 4]| Transmit {
            local_ip: Some(from.into()),
            ..transmit_at(&b, 1200, 0, arena.len())
        });
        let is_full = |a: &mut UdpIo, transmit: &Transmit| {
            a.tx().is_full(&Destination {
                remote: transmit.remote,
                local_ip: transmit.local_ip,
                ecn: transmit.ecn,
            })
        };
        let mut dropped = Vec::new();
        fill(&mut a, &arena, &[second]);
        assert_eq!(a.tx().taken_bytes(), arena.len());
        assert!(!a.tx().flush(&mut dropped).unwrap());
        assert_eq!(a.tx().taken_bytes(), 0);
        assert!(is_full(&mut a, &second) && !is_full(&mut a, &first));
        // The other one sends what it is given.
        let little = Transmit { len: 1200, ..first };
        fill(&mut a, &arena, &[little]);
        assert_eq!(a.tx().taken_bytes(), 1200);
        assert!(!a.tx().flush(&mut dropped).unwrap());
        assert_eq!(a.tx().taken_bytes(), 0);
        // Where none takes more, all that waits counts, as with one socket.
        fill(&mut a, &arena, &[first]);
        assert!(!a.tx().flush(&mut dropped).unwrap());
        assert_eq!(a.tx().taken_bytes(), 2 * arena.len());
        assert!(!is_full(&mut a, &second) && !is_full(&mut a, &first));
        let sent = std::thread::spawn(move || {
            while !a.tx().flush(&mut dropped).unwrap() {
                a.wait(Interest::ReadWrite, Some(1_000_000_000)).unwrap();
            }
            assert_eq!((dropped.len(), a.tx().taken_bytes()), (0, 0));
        });
        receive_bytes(&mut b, 2 * arena.len() + 1200);
        sent.join().unwrap();
    });
}

#[test]
fn an_interface_that_is_down_drops_and_recovers() {
    in_namespace(&[], || {
        let (mut a, mut b) = pair();
        let all = transmit_at(&b, 100, 0, 250);
        let dropped = send(&mut a, &[7; 250], &[all]);
        assert_eq!(
            (dropped[0].datagrams, dropped[0].reason),
            (3, DropReason::Unreachable)
        );
        if Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .is_err()
        {
            sphinx_testing::skipped!("no \"ip\" tool");
            return;
        }
        assert_eq!(send(&mut a, &[7; 250], &[all]), []);
        assert_eq!(receive_bytes(&mut b, 250), [7; 250]);
    });
}
