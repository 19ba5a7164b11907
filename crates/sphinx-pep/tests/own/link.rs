//! Two hosts, and a link between them that loses, refuses and counts packets.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::{
    netns::{Access, Namespace, probe},
    tun::{Tun, TunConfig},
};

const DELAY: Duration = Duration::from_millis(15);

pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    tun: Tun,
}

/// Two hosts with a device each, or why there are none.
pub(crate) fn hosts() -> Option<[Host; 2]> {
    match probe() {
        Ok(Access::Direct) => {}
        other => {
            sphinx_testing::skipped!("no namespaces: {other:?}");
            return None;
        }
    }
    Some([1, 2].map(|host| {
        let namespace = Namespace::new().expect("a namespace");
        let addresses = [format!("10.9.0.{host}"), format!("fd09::{host}")];
        let config = TunConfig {
            name: "link".to_owned(),
            mtu: 1500,
            queue_packets: 1000,
            addresses: vec![
                (addresses[0].parse().expect("an address"), 24),
                (addresses[1].parse().expect("an address"), 64),
            ],
        };
        let tun = namespace.run(|| Tun::open(&config));
        let tun = tun.expect("a thread").expect("a device");
        Host { namespace, tun }
    }))
}

/// What the link does, and what it has seen of a connection that the first host has opened.
#[derive(Debug)]
pub(crate) struct Link {
    /// Every so manieth segment with data of the first host is lost; 0 for none.
    pub(crate) loses: AtomicU64,
    /// Bytes in a second of what the first host sends, with a queue without end; 0 for no bound.
    pub(crate) bytes_per_second: u64,
    /// Longest IP packet.
    pub(crate) mtu: AtomicUsize,
    /// Whether ICMP tells a sender that a packet is longer than the MTU.
    pub(crate) tells_mtu: bool,
    /// Segments with data of the first host.
    pub(crate) segments: AtomicU64,
    /// Segments that carry data sent before and new data.
    pub(crate) bundles: AtomicU64,
    /// Segments longer than the MTU.
    pub(crate) too_long: AtomicU64,
    /// Segments with data that say that the first host has slowed down for the echo of congestion.
    pub(crate) answers: AtomicU64,
    /// Segments of the second host that say it takes nothing.
    pub(crate) closed: AtomicU64,
    /// Set when bundles fit the path again.
    pub(crate) fits: AtomicBool,
    /// Set when the agent has ended.
    pub(crate) alone: AtomicBool,
    pub(crate) done: AtomicBool,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            loses: AtomicU64::new(7),
            bytes_per_second: 0,
            mtu: AtomicUsize::new(1500),
            tells_mtu: false,
            segments: AtomicU64::new(0),
            bundles: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            fits: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            done: AtomicBool::new(false),
        }
    }
}

/// What the link looks at in a TCP segment.
struct Seen {
    sequence: u32,
    length: u32,
    flags: u8,
    window: u16,
}

const SYN: u8 = 2;
const RST: u8 = 4;
const CWR: u8 = 128;

fn seen(packet: &[u8]) -> Option<Seen> {
    let (protocol, header) = match packet.first()? >> 4 {
        4 => (packet.get(9)?, usize::from(packet[0] & 15) * 4),
        _ => (packet.get(6)?, 40),
    };
    let tcp = packet.get(header..)?;
    let options = usize::from(tcp.get(12)? >> 4) * 4;
    let word = |at: usize| tcp.get(at..)?.first_chunk::<4>().copied();
    (*protocol == 6).then_some(Seen {
        sequence: u32::from_be_bytes(word(4)?),
        length: tcp.len().saturating_sub(options) as u32,
        flags: tcp[13],
        window: u16::from_be_bytes([*tcp.get(14)?, *tcp.get(15)?]),
    })
}

/// "Fragmentation needed", of a router between the hosts (RFC 1191).
fn refusal(packet: &[u8], mtu: usize) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.as_chunks::<2>().0.iter();
        let sum: u32 = words.map(|it| u32::from(u16::from_be_bytes(*it))).sum();
        !(((sum & 0xffff) + (sum >> 16)) as u16)
    };
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend((mtu as u16).to_be_bytes());
    message.extend(&packet[..28]);
    let checksum = sum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    let mut ip = vec![
        0x45,
        0,
        0,
        20 + message.len() as u8,
        0,
        0,
        0,
        0,
        64,
        1,
        0,
        0,
    ];
    ip.extend([10, 9, 0, 254]);
    ip.extend(&packet[12..16]);
    let checksum = sum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&checksum);
    [ip, message].concat()
}

/// Carries packets between the hosts.
pub(crate) fn carry(hosts: &[Host; 2], link: &Link) {
    let mut ways = [VecDeque::new(), VecDeque::new()];
    let mut buffer = vec![0; 2000];
    let (mut count, mut highest) = (0, None);
    let mut busy = Instant::now();
    while !link.done.load(Relaxed) {
        for (from, way) in ways.iter_mut().enumerate() {
            while let Ok(length) = hosts[from].tun.receive(&mut buffer) {
                let packet = &buffer[..length];
                let Some(it) = seen(packet) else { continue };
                if from == 0 && it.length > 0 {
                    let end = it.sequence.wrapping_add(it.length);
                    let before = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() < 0;
                    let highest = highest.get_or_insert(it.sequence);
                    let is_bundle = before(it.sequence, *highest) && before(*highest, end);
                    link.bundles.fetch_add(u64::from(is_bundle), Relaxed);
                    if before(*highest, end) {
                        *highest = end;
                    }
                    let answers = it.flags & (CWR | SYN) == CWR;
                    link.answers.fetch_add(u64::from(answers), Relaxed);
                    count += 1;
                    link.segments.store(count, Relaxed);
                    let loses = link.loses.load(Relaxed);
                    if loses > 0 && count % loses == 0 {
                        continue;
                    }
                }
                let closes = from == 1 && it.window == 0 && it.flags & RST == 0;
                link.closed.fetch_add(u64::from(closes), Relaxed);
                let mtu = link.mtu.load(Relaxed);
                if length > mtu {
                    link.too_long.fetch_add(1, Relaxed);
                    if link.tells_mtu {
                        // It fails if the host has gone.
                        let _ = hosts[from].tun.send(&refusal(packet, mtu));
                    }
                    continue;
                }
                let mut sent = Instant::now();
                if from == 0 && link.bytes_per_second > 0 {
                    let takes = length as f64 / link.bytes_per_second as f64;
                    busy = busy.max(sent) + Duration::from_secs_f64(takes);
                    sent = busy;
                }
                way.push_back((sent + DELAY, packet.to_vec()));
            }
            while way.front().is_some_and(|(at, _)| *at <= Instant::now()) {
                if let Some((_, packet)) = way.pop_front() {
                    // It fails if the host has gone.
                    let _ = hosts[1 - from].tun.send(&packet);
                }
            }
        }
        thread::sleep(Duration::from_micros(300));
    }
}

/// The addresses of the second host.
pub(crate) const TO: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)),
];

/// A number of the calling thread's namespace: of `/proc/net/netstat`, or of `/proc/net/snmp`.
pub(crate) fn statistic(name: &str) -> u64 {
    let text = ["netstat", "snmp"].map(|file| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("statistics")
    });
    let text = text.concat();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let found = lines.as_chunks::<2>().0.iter().find_map(|[names, values]| {
        let at = names.iter().position(|it| *it == name)?;
        values.get(at)?.parse().ok()
    });
    found.expect("a number of that name")
}
