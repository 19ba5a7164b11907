//! Messages of thin streams between two kernels over a link that loses packets, with and without an agent at the sender: when they arrive.
//!
//! `make bench-thin ARGS="20 60 10 3"`: flows, seconds, loss in percent, runs of each. Needs root.

use std::{
    env,
    error::Error,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sphinx_link::{Depth, IpPacket, Link, LinkConfig, Loss, Rate};
use sphinx_netdev::{
    netns::Namespace,
    tun::{Tun, TunConfig},
};
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    attach::{Attachment, Own, serve_in_time},
    rdb::{Mode, Rdb, Response},
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PORT: u16 = 7777;
const ONE_WAY: Duration = Duration::from_millis(75);
const INTERVAL: Duration = Duration::from_millis(30);
const BYTES: usize = 100;
/// What counts as in time besides the way: a message's interval, and some time for the machine.
const IN_TIME: Duration = Duration::from_millis(35);

struct Host {
    namespace: Namespace,
    tun: Tun,
}

struct Plan {
    flows: u64,
    span: Duration,
    loss: f64,
}

/// The result of a run.
struct Measured {
    /// Delays of messages, ascending.
    delays: Vec<Duration>,
    packets: u64,
    bytes: u64,
    counts: Option<Counts>,
}

fn host(number: u8) -> Outcome<Host> {
    let namespace = Namespace::new()?;
    let config = TunConfig {
        name: "link".to_owned(),
        mtu: 1500,
        queue_packets: 10_000,
        addresses: vec![(Ipv4Addr::new(10, 9, 0, number).into(), 24)],
    };
    let tun = namespace.run(|| Tun::open(&config))??;
    Ok(Host { namespace, tun })
}

/// Carries packets between the hosts; counts those of the first.
fn carry(hosts: &[Host; 2], plan: &Plan, seed: u64, done: &AtomicBool, sent: &[AtomicU64; 2]) {
    // Where that is not allowed, packets wait a little longer.
    let _ = serve_in_time();
    let config = |loss| LinkConfig {
        seed,
        rate: Rate::Constant(100_000_000),
        queue: Depth::Packets(10_000),
        delay: ONE_WAY,
        loss,
        ..LinkConfig::default()
    };
    let mut links = [Loss::Bernoulli(plan.loss), Loss::None]
        .map(|loss| Link::<IpPacket>::new(config(loss)).expect("a link"));
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut buffer = vec![0; 2000];
    while !done.load(Ordering::Acquire) {
        for (from, link) in links.iter_mut().enumerate() {
            while let Ok(length) = hosts[from].tun.receive(&mut buffer) {
                if from == 0 {
                    sent[0].fetch_add(1, Ordering::Relaxed);
                    sent[1].fetch_add(length as u64, Ordering::Relaxed);
                }
                link.enqueue(now(), IpPacket(buffer[..length].to_vec()));
            }
            while let Some(delivery) = link.poll(now()) {
                // The host may have gone.
                let _ = hosts[1 - from].tun.send(&delivery.packet.0);
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// Messages with the time at which each was written.
fn send(
    mut stream: TcpStream,
    (start, begin): (Instant, Instant),
    plan: &Plan,
    flow: u64,
) -> Outcome<()> {
    stream.set_nodelay(true)?;
    // The flows begin one after the other, spread over an interval.
    let first = begin + INTERVAL.mul_f64(flow as f64 / plan.flows as f64);
    for n in 0.. {
        let at = first + INTERVAL * n;
        if at >= begin + plan.span {
            return Ok(());
        }
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let mut message = [0; BYTES];
        let written = start.elapsed().as_nanos() as u64;
        message[..8].copy_from_slice(&written.to_be_bytes());
        stream.write_all(&message)?;
    }
    Ok(())
}

fn receive(mut stream: TcpStream, start: Instant, delays: &Mutex<Vec<Duration>>) {
    let mut message = [0; BYTES];
    while stream.read_exact(&mut message).is_ok() {
        let written = message.first_chunk::<8>().expect("it is longer");
        let written = Duration::from_nanos(u64::from_be_bytes(*written));
        let delay = start.elapsed().saturating_sub(written);
        let mut delays = delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.push(delay);
    }
}

fn exchange(hosts: &[Host; 2], plan: &Plan) -> Outcome<Vec<Duration>> {
    let address = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT));
    let listener = hosts[1].namespace.run(|| TcpListener::bind(address))??;
    let start = Instant::now();
    let delays = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let mut senders = Vec::new();
        for flow in 0..plan.flows {
            let stream = hosts[0].namespace.run(|| TcpStream::connect(address))??;
            let (accepted, _) = listener.accept()?;
            let delays = &delays;
            scope.spawn(move || receive(accepted, start, delays));
            senders.push((stream, flow));
        }
        // The time of the handshakes is not measured.
        let begin = Instant::now();
        for (stream, flow) in senders {
            scope.spawn(move || send(stream, (start, begin), plan, flow));
        }
        Outcome::Ok(())
    })?;
    let mut delays = delays.into_inner().unwrap_or_else(PoisonError::into_inner);
    delays.sort_unstable();
    Ok(delays)
}

fn run(plan: &Plan, rdb: Option<Rdb>, seed: u64) -> Outcome<Measured> {
    let hosts = [host(1)?, host(2)?];
    // Without a cache of what is known of the path.
    let own = Own {
        ports: vec![PORT..=PORT],
        bytes_max: 1280,
        ..Own::default()
    };
    let open = || Attachment::own(own);
    let mut attachment = match rdb {
        Some(_) => Some(hosts[0].namespace.run(open)??),
        None => None,
    };
    let mut agent = Agent::new(Config {
        stage: Stage::Rdb(rdb.unwrap_or_default()),
        ..Config::default()
    });
    let stopper = attachment.as_ref().map(Attachment::stopper);
    let done = AtomicBool::new(false);
    let sent = [AtomicU64::new(0), AtomicU64::new(0)];
    let delays = thread::scope(|scope| {
        let (hosts, done, sent) = (&hosts, &done, &sent);
        scope.spawn(move || carry(hosts, plan, seed, done, sent));
        if let Some(attachment) = &mut attachment {
            let agent = &mut agent;
            scope.spawn(move || {
                let serve = || attachment.run(agent, |_, _| {});
                hosts[0].namespace.run(serve)
            });
        }
        let delays = exchange(hosts, plan);
        if let Some(stopper) = stopper {
            stopper.stop();
        }
        done.store(true, Ordering::Release);
        delays
    })?;
    let [packets, bytes] = sent.map(AtomicU64::into_inner);
    let counts = rdb.map(|_| agent.counts());
    Ok(Measured {
        delays,
        packets,
        bytes,
        counts,
    })
}

fn main() -> Outcome<()> {
    let mut arguments = env::args().skip(1);
    let mut number = |usual: u64| arguments.next().map_or(Ok(usual), |text| text.parse());
    let (flows, seconds, percent, runs) = (number(20)?, number(60)?, number(10)?, number(3)?);
    let plan = Plan {
        flows,
        span: Duration::from_secs(seconds),
        loss: percent as f64 / 100.0,
    };
    let paper = Rdb {
        mode: Mode::Paper,
        extra_percent: 1000,
        ..Rdb::default()
    };
    let unlimited = Rdb {
        max_packets: 0,
        ..paper
    };
    let cases = [
        ("plain TCP", None),
        ("one packet", Some(paper)),
        ("one packet, auto", Some(Rdb::default())),
        ("as many as fit", Some(unlimited)),
        (
            "as many as fit, no response",
            Some(Rdb {
                response: Response::None,
                ..unlimited
            }),
        ),
    ];
    println!(
        "{flows} flows, {BYTES} bytes every {} ms, {} ms each way, {percent} % of the sender's packets lost, {seconds} s",
        INTERVAL.as_millis(),
        ONE_WAY.as_millis()
    );
    println!(
        "| | run | in time | p50 ms | p99 ms | longest | packets | bytes | repaired | unknown | sent again |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for seed in 1..=runs {
        for (name, rdb) in cases {
            let it = run(&plan, rdb, seed)?;
            let count = it.delays.len();
            let in_time = it
                .delays
                .partition_point(|delay| *delay <= ONE_WAY + IN_TIME);
            let at = |share: f64| {
                let index = (count as f64 * share) as usize;
                let delay = it.delays.get(index.min(count.saturating_sub(1)));
                delay.map_or(0.0, |delay| delay.as_secs_f64() * 1e3)
            };
            let [repaired, unknown, again] = match &it.counts {
                Some(counts) => [
                    counts.losses_repaired.to_string(),
                    counts.losses_unknown.to_string(),
                    counts.resent.to_string(),
                ],
                None => [const { String::new() }; 3],
            };
            println!(
                "| {name} | {seed} | {:.3} | {:.0} | {:.0} | {:.0} | {} | {} | {repaired} | {unknown} | {again} |",
                in_time as f64 / count.max(1) as f64,
                at(0.5),
                at(0.99),
                at(1.0),
                it.packets,
                it.bytes
            );
        }
    }
    Ok(())
}
