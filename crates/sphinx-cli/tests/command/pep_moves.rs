//! A mobile host that goes from one base station to another in the middle of a download, by routes of real kernels. Skipped, saying
//! why, where namespaces are not there.
//!
//! `make bench-pep-moves` makes twenty moves and tells how often the sender has timed out.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use sphinx_link::{
    Depth, LinkConfig, Rate,
    front::{Interface, LinkThread, between},
};
use sphinx_netdev::netns::Namespace;

use super::pep::{ip, totals};
use super::pep_between::Host;
use crate::common::{PATIENCE, Running, Scratch, may_make_namespaces};

const MOBILE: &str = "10.82.0.1";
const BASES: [&str; 2] = ["10.83.0.1:7750", "10.83.0.2:7750"];

/// fixed – (48 ms) – base 1 or 2 – (2 ms, 20 Mbit/s) – mobile, which has one address on both hops; the bases know each other by a wire.
struct Moving {
    fixed: Host,
    bases: [Host; 2],
    mobile: Host,
    _links: Vec<LinkThread>,
}

/// The routes by which packets go.
fn routes(base: usize) -> [(bool, String); 2] {
    let n = base + 1;
    [
        (true, format!("route replace {MOBILE}/32 via 10.80.{n}.2")),
        (
            false,
            format!("route replace default via 10.81.{n}.1 src {MOBILE}"),
        ),
    ]
}

impl Moving {
    fn new() -> Option<Moving> {
        if !may_make_namespaces() {
            return None;
        }
        let [fixed, one, two, mobile] = std::array::from_fn(|_| Host::new());
        let bases = [one, two];
        let wire = |seed| LinkConfig {
            delay: Duration::from_millis(48),
            queue: Depth::Packets(100_000),
            seed,
            ..LinkConfig::default()
        };
        let air = |seed| LinkConfig {
            rate: Rate::Constant(20_000_000),
            delay: Duration::from_millis(2),
            queue: Depth::Time(Duration::from_millis(100)),
            seed,
            ..LinkConfig::default()
        };
        let mut links = Vec::new();
        for (base, n) in bases.iter().zip(1..) {
            let seed = u64::from(n);
            links.push(join(
                [&fixed, base],
                [&format!("wire{n}"), "wired"],
                [10, 80, n],
                wire(seed),
            ));
            links.push(join(
                [base, &mobile],
                ["air", &format!("air{n}")],
                [10, 81, n],
                air(seed),
            ));
        }
        let [one, two] = &bases;
        let id = two.holder.id();
        let mut lines = vec![
            (
                one,
                format!("link add wire type veth peer name wire netns {id}"),
            ),
            (one, "addr add 10.83.0.1/24 dev wire".to_owned()),
            (one, "link set wire up".to_owned()),
            (two, "addr add 10.83.0.2/24 dev wire".to_owned()),
            (two, "link set wire up".to_owned()),
            (&mobile, "link set lo up".to_owned()),
            (&mobile, format!("addr add {MOBILE}/32 dev lo")),
        ];
        for (base, n) in bases.iter().zip(1..) {
            lines.push((base, format!("route add default via 10.80.{n}.1")));
            lines.push((base, format!("route add {MOBILE}/32 via 10.81.{n}.2")));
            base.namespace
                .sysctl("net.ipv4.ip_forward", "1")
                .expect("forwarding");
        }
        for host in [&fixed, one, two, &mobile] {
            for name in [
                "all", "default", "wired", "air", "wire1", "wire2", "air1", "air2",
            ] {
                // Not every host has all of them.
                let _ = host
                    .namespace
                    .sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "0");
            }
        }
        for (host, line) in lines {
            if ip(&host.namespace, &line).is_none() {
                sphinx_testing::skipped!("no 'ip', or it refuses: {line}");
                return None;
            }
        }
        let moving = Moving {
            fixed,
            bases,
            mobile,
            _links: links,
        };
        moving.go(0);
        Some(moving)
    }

    /// The mobile host is at this base station from now on.
    fn go(&self, base: usize) {
        for (is_fixed, line) in routes(base) {
            let host = if is_fixed { &self.fixed } else { &self.mobile };
            assert!(ip(&host.namespace, &line).is_some(), "{line}");
        }
    }

    /// How often the fixed host's kernel has sent again by time.
    fn timeouts(&self) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/netstat").expect("counters");
        let text = self.fixed.namespace.run(read).expect("a thread");
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let found = pairs.find(|(name, _)| *name == "TCPTimeouts");
        found.expect("a counter").1.parse().expect("a number")
    }
}

fn join(
    [left, right]: [&Host; 2],
    names: [&str; 2],
    [a, b, c]: [u8; 3],
    link: LinkConfig,
) -> LinkThread {
    let interface = |host, name, last| Interface {
        namespace: host,
        name,
        ipv4: (Ipv4Addr::new(a, b, c, last), 24),
        ipv6: None,
        mtu: 1500,
        queue_packets: 10_000,
    };
    let left = interface(&left.namespace, names[0], 1);
    let right = interface(&right.namespace, names[1], 2);
    let other = LinkConfig {
        seed: link.seed + 10,
        ..link.clone()
    };
    between([&left, &right], [link, other], None).expect("a link")
}

#[test]
fn a_mobile_host_moves_between_base_stations() {
    let Some(scene) = Moving::new() else {
        return;
    };
    let moves: usize = std::env::var("SPHINX_MOVES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    let scratch = Scratch::new();
    let inside = |namespace: &Namespace, words: &[&str]| {
        let start = || Running::start(&scratch, words, &[]);
        namespace.run(start).expect("a thread")
    };
    inside(
        &scene.fixed.namespace,
        &["pep", "key", "new", "handoff.key"],
    )
    .end()
    .expect(0);
    let agents = scene.bases.each_ref().map(|base| {
        let run = "pep run --json --wireless air --wired wired --attach tun --lag-max 10s --handoff-key handoff.key";
        let run: Vec<&str> = run.split(' ').collect();
        let mut running = inside(&base.namespace, &run);
        running.event("started");
        running
    });
    let told = |base: usize, words: &[&str]| {
        let words = [&["pep", "handoff", "--json", MOBILE], words].concat();
        let ended = inside(&scene.bases[base].namespace, &words).end().expect(0);
        ended.events[0]["flows"].as_u64().expect("a number")
    };
    let listen = || TcpListener::bind("10.80.1.1:0").expect("a port");
    let listener = scene.fixed.namespace.run(listen).expect("a thread");
    let target = listener.local_addr().expect("an address");
    let done = AtomicBool::new(false);
    let (mut total, mut pauses) = (0, Vec::new());
    let before = scene.timeouts();
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut at: u8 = 0;
            // Bytes that tell their place.
            while !done.load(Ordering::Relaxed) {
                let block: Vec<u8> = (0..1000).map(|n| at.wrapping_add((n / 4) as u8)).collect();
                stream.write_all(&block).expect("a reader");
                at = at.wrapping_add(250);
            }
        });
        // Its own address is that of its route.
        let connect = || TcpStream::connect_timeout(&target, PATIENCE);
        let connected = scene.mobile.namespace.run(connect).expect("a thread");
        let mut stream = connected.expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut buffer = vec![0; 1 << 16];
        let mut read_until = |until: Instant| {
            let mut longest = Duration::ZERO;
            let mut last = Instant::now();
            loop {
                let read = stream.read(&mut buffer).expect("data");
                assert!(read > 0, "the connection has ended");
                for (index, byte) in buffer[..read].iter().enumerate() {
                    let place = (total + index) % 1000 / 4 + (total + index) / 1000 * 250;
                    assert_eq!(*byte, place as u8, "at {}", total + index);
                }
                total += read;
                longest = longest.max(last.elapsed());
                last = Instant::now();
                if last >= until {
                    return longest;
                }
            }
        };
        read_until(Instant::now() + Duration::from_millis(700));
        for number in 0..moves {
            let (from, to) = (number % 2, (number + 1) % 2);
            assert_eq!(told(from, &["--prefill", BASES[to]]), 1);
            read_until(Instant::now() + Duration::from_millis(300));
            assert_eq!(told(from, &["--to", BASES[to]]), 1);
            scene.go(to);
            told(to, &["--arrived"]);
            pauses.push(read_until(Instant::now() + Duration::from_millis(400)));
        }
        done.store(true, Ordering::Relaxed);
        // What waits in the sender ends with the connection.
        let rest = std::iter::repeat_with(|| stream.read(&mut buffer));
        rest.take_while(|read| matches!(read, Ok(1..)))
            .for_each(drop);
    });
    let timeouts = scene.timeouts() - before;
    eprintln!("{moves} moves, {timeouts} time-outs of the sender; longest pauses {pauses:?}");
    let mut taken_over = 0;
    for agent in agents {
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        let done = totals(&ended);
        assert_eq!(done["handovers_refused"], 0, "{done}");
        taken_over += done["flows_taken_over"].as_u64().expect("a number");
    }
    assert!(taken_over >= 1, "nothing was taken over");
}
