//! RDB for connections of this machine, between two kernels over a link that loses packets. Skipped, saying why, where namespaces or queues
//! are not to be had.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::{
    netns::{Access, Namespace, probe},
    tun::{Tun, TunConfig},
};
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    attach::{Attachment, Own},
    rdb::{Mode, Rdb},
};

const PORT: u16 = 7777;
const DELAY: Duration = Duration::from_millis(15);
const MESSAGES: usize = 150;
const BYTES: usize = 100;

struct Host {
    namespace: Namespace,
    tun: Tun,
}

/// Two hosts with a device each, or why there are none.
fn hosts() -> Option<[Host; 2]> {
    match probe() {
        Ok(Access::Direct) => {}
        other => {
            eprintln!("skipped: no namespaces: {other:?}");
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

/// Carries packets between the hosts; every seventh one with data from the first is lost, as far as it has room for another.
fn carry(hosts: &[Host; 2], done: &AtomicBool) {
    let mut ways = [VecDeque::new(), VecDeque::new()];
    let mut buffer = vec![0; 2000];
    let mut count = 0;
    while !done.load(Ordering::Acquire) {
        for (from, way) in ways.iter_mut().enumerate() {
            while let Ok(length) = hosts[from].tun.receive(&mut buffer) {
                let has_data = length > 120;
                count += u32::from(from == 0 && has_data);
                if from == 0 && has_data && count % 7 == 0 {
                    continue;
                }
                way.push_back((Instant::now() + DELAY, buffer[..length].to_vec()));
            }
            while way.front().is_some_and(|(at, _)| *at <= Instant::now()) {
                if let Some((_, packet)) = way.pop_front() {
                    // The host may have gone.
                    let _ = hosts[1 - from].tun.send(&packet);
                }
            }
        }
        thread::sleep(Duration::from_micros(300));
    }
}

/// A number of `/proc/net/netstat` in the calling thread's namespace.
fn statistic(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("statistics");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let found = lines.as_chunks::<2>().0.iter().find_map(|[names, values]| {
        let at = names.iter().position(|it| *it == name)?;
        values.get(at)?.parse().ok()
    });
    found.expect("a number of that name")
}

/// Sends messages to the second host, one every 10 ms.
fn exchange(hosts: &[Host; 2], to: IpAddr) {
    let data: Vec<u8> = (0..MESSAGES * BYTES)
        .map(|n| ((n * 7919) >> 5) as u8)
        .collect();
    let address = SocketAddr::new(to, PORT);
    let listener = hosts[1].namespace.run(|| TcpListener::bind(address));
    let listener = listener.expect("a thread").expect("a port");
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("a stream");
            received
        });
        let connect = || TcpStream::connect(address);
        let mut stream = hosts[0]
            .namespace
            .run(connect)
            .expect("a thread")
            .expect("a connection");
        stream.set_nodelay(true).expect("an option");
        for message in data.chunks(BYTES) {
            stream.write_all(message).expect("a stream");
            thread::sleep(Duration::from_millis(10));
        }
        drop(stream);
        assert!(receiving.join().expect("a thread") == data);
    });
}

/// What the agent did, and copies that the sender was told of.
fn helped(hosts: &[Host; 2], to: IpAddr, rdb: Rdb) -> Option<(Counts, u64)> {
    let own = Own {
        ports: vec![PORT..=PORT],
        bytes_max: 1280,
        ..Own::default()
    };
    let opened = hosts[0]
        .namespace
        .run(|| Attachment::own(own))
        .expect("a thread");
    let mut attachment = match opened {
        Ok(attachment) => attachment,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let mut agent = Agent::new(Config {
        stage: Stage::Rdb(rdb),
        // A busy machine is no reason not to help here.
        lag_ns_max: 1_000_000_000,
        ..Config::default()
    });
    let stopper = attachment.stopper();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (attachment, agent, done) = (&mut attachment, &mut agent, &done);
        let namespace = &hosts[0].namespace;
        scope.spawn(move || carry(hosts, done));
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {})));
        let result = std::panic::catch_unwind(|| exchange(hosts, to));
        stopper.stop();
        done.store(true, Ordering::Release);
        serving
            .join()
            .expect("a thread")
            .expect("a thread")
            .expect("service");
        result.expect("an exchange");
    });
    let told = hosts[0]
        .namespace
        .run(|| statistic("TCPDSACKIgnoredDubious"));
    Some((agent.counts(), told.expect("a thread")))
}

#[test]
fn thin_streams_of_this_machine_do_not_wait_for_retransmissions() {
    let rdb = Rdb {
        mode: Mode::Paper,
        ..Rdb::default()
    };
    for to in ["10.9.0.2", "fd09::2"] {
        let Some(hosts) = hosts() else { return };
        let Some((counts, told)) = helped(&hosts, to.parse().expect("an address"), rdb) else {
            return;
        };
        assert!(counts.bundled > 30, "{to}: {counts:?}");
        assert!(
            counts.losses_repaired + counts.losses_unknown > 3,
            "{to}: {counts:?}"
        );
        assert!(counts.dsacks_stripped > 10, "{to}: {counts:?}");
        // Of all those copies, the sender has heard of none.
        assert_eq!(told, 0, "{to}: {counts:?}");
    }
}

#[test]
fn copies_begin_with_the_first_loss() {
    let Some(hosts) = hosts() else { return };
    let to = "10.9.0.2".parse().expect("an address");
    let Some((counts, told)) = helped(&hosts, to, Rdb::default()) else {
        return;
    };
    assert!(counts.bundled > 30 && counts.alone.len() > 1, "{counts:?}");
    assert_eq!(told, 0, "{counts:?}");
}
