//! What an agent for thin streams costs: many flows of small messages over a path that loses nothing, with and without it, in turn.
//!
//! `make bench-thin-cost ARGS="2000 10 3"`: flows, seconds, runs of each. Needs root and iproute2.
//!
//! Two namespaces are joined by a veth pair, so that nothing but the kernel is on the way. One thread writes the messages, one reads them, and
//! one is the agent; the times that they had of the processors are their own. The agent's has what the kernel does for a packet that it
//! lets go on, which the writer's has otherwise.

use std::{
    env,
    error::Error,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    time::{ClockId, clock_gettime},
};
use sphinx_netdev::netns::Namespace;
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    attach::{Attachment, Own, serve_in_time},
    rdb::{Mode, Rdb, Thin},
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PORT: u16 = 7777;
const INTERVAL: Duration = Duration::from_millis(30);
const BYTES: usize = 100;
/// How long messages are sent before measuring begins.
const WARM_UP: Duration = Duration::from_secs(1);

/// A namespace, with a process by which `ip` finds it.
struct Host {
    namespace: Namespace,
    holder: Child,
}

impl Host {
    fn new() -> Outcome<Host> {
        let namespace = Namespace::new()?;
        let holder = namespace.spawn(Command::new("sleep").arg("infinity"))?;
        Ok(Host { namespace, holder })
    }

    fn ip(&self, words: &str) -> Outcome<()> {
        let mut command = Command::new("ip");
        let status = self
            .namespace
            .spawn(command.args(words.split(' ')))?
            .wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("ip {words}: {status}").into()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It fails if the process has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn hosts() -> Outcome<[Host; 2]> {
    let hosts = [Host::new()?, Host::new()?];
    let holder = hosts[1].holder.id();
    hosts[0].ip(&format!(
        "link add left type veth peer name right netns {holder}"
    ))?;
    for (host, (device, number)) in hosts.iter().zip([("left", 1), ("right", 2)]) {
        host.ip(&format!("addr add 10.9.0.{number}/24 dev {device}"))?;
        host.ip(&format!("link set {device} up"))?;
    }
    Ok(hosts)
}

/// Time that the calling thread had of a processor.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The result of a run.
struct Measured {
    /// Delays of messages, ascending.
    delays: Vec<Duration>,
    /// Time of processors in a second: writer, reader, agent.
    shares: [f64; 3],
    agent: Option<(Counts, u64)>,
}

/// Writes the messages of all flows, each with the time, until the end: so many at once, so that the first ones are in flight when the last
/// one goes.
fn write(streams: &mut [TcpStream], start: Instant, span: Duration, at_once: u32) -> Outcome<()> {
    // As the agent does, since other programs are not what is measured.
    let _ = serve_in_time();
    let interval = INTERVAL * at_once;
    let apart = interval / streams.len() as u32;
    let begin = Instant::now();
    for n in 0.. {
        for (flow, stream) in streams.iter_mut().enumerate() {
            let at = interval * n + apart * flow as u32;
            if at >= span {
                return Ok(());
            }
            thread::sleep((begin + at).saturating_duration_since(Instant::now()));
            for _ in 0..at_once {
                let mut message = [0; BYTES];
                let written = start.elapsed().as_nanos() as u64;
                message[..8].copy_from_slice(&written.to_be_bytes());
                stream.write_all(&message)?;
            }
        }
    }
    Ok(())
}

/// Reads all messages; returns how long each took.
fn read(streams: &mut [TcpStream], start: Instant, done: &AtomicBool) -> Outcome<Vec<Duration>> {
    let _ = serve_in_time();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (flow, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(flow as u64);
        epoll::add(&poll, stream, data, epoll::EventFlags::IN)?;
    }
    let mut rests = vec![Vec::new(); streams.len()];
    let mut events = Vec::with_capacity(256);
    let (mut delays, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    while !done.load(Ordering::Acquire) {
        events.clear();
        epoll::wait(
            &poll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        )?;
        for event in &events {
            let flow = event.data.u64() as usize;
            let length = match streams[flow].read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            let now = start.elapsed();
            let rest: &mut Vec<u8> = &mut rests[flow];
            rest.extend(&buffer[..length]);
            let whole = rest.len() / BYTES * BYTES;
            for message in rest[..whole].chunks(BYTES) {
                let written = message.first_chunk::<8>().expect("it is longer");
                let written = Duration::from_nanos(u64::from_be_bytes(*written));
                // The warm-up is not measured.
                if written > WARM_UP {
                    delays.push(now.saturating_sub(written));
                }
            }
            rest.drain(..whole);
        }
    }
    Ok(delays)
}

fn run(flows: usize, span: Duration, at_once: u32, rdb: Option<Rdb>) -> Outcome<Measured> {
    let hosts = hosts()?;
    let own = Own {
        ports: vec![PORT..=PORT],
        bytes_max: 1280,
        ..Own::default()
    };
    let mut attachment = match rdb {
        Some(_) => Some(hosts[0].namespace.run(|| Attachment::own(own))??),
        None => None,
    };
    let mut agent = Agent::new(Config {
        stage: Stage::Rdb(rdb.unwrap_or_default()),
        ..Config::default()
    });
    let stopper = attachment.as_ref().map(Attachment::stopper);
    let done = AtomicBool::new(false);
    let (mut delays, shares) = thread::scope(|scope| {
        let (hosts, done) = (&hosts, &done);
        let serving = attachment.as_mut().map(|attachment| {
            let agent = &mut agent;
            scope.spawn(move || {
                let serve = || -> io::Result<Duration> {
                    attachment.run(agent, |_, _| {})?;
                    Ok(own_time())
                };
                hosts[0].namespace.run(serve)?
            })
        });
        let exchange = || -> Outcome<(Vec<Duration>, [f64; 3])> {
            let address = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT));
            let listener = hosts[1].namespace.run(|| TcpListener::bind(address))??;
            let connect = || -> io::Result<Vec<(TcpStream, TcpStream)>> {
                let pair = |_| {
                    let stream = TcpStream::connect(address)?;
                    stream.set_nodelay(true)?;
                    Ok((stream, listener.accept()?.0))
                };
                (0..flows).map(pair).collect()
            };
            let pairs = hosts[0].namespace.run(connect)??;
            let (mut senders, mut receivers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let start = Instant::now();
            thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let delays = read(&mut receivers, start, done)?;
                    Outcome::Ok((delays, own_time()))
                });
                let writing = scope.spawn(|| {
                    write(&mut senders, start, span, at_once)?;
                    Outcome::Ok(own_time())
                });
                let written = writing.join().expect("a thread");
                // Packets that are still on their way arrive.
                thread::sleep(Duration::from_millis(500));
                done.store(true, Ordering::Release);
                let (delays, read) = reading.join().expect("a thread")?;
                let share = |time: Duration| time.as_secs_f64() / span.as_secs_f64();
                Ok((delays, [share(written?), share(read), 0.0]))
            })
        };
        let exchanged = exchange();
        done.store(true, Ordering::Release);
        if let Some(stopper) = stopper {
            stopper.stop();
        }
        let served = serving.map(|serving| serving.join().expect("a thread"));
        let (delays, mut shares) = exchanged?;
        if let Some(served) = served {
            shares[2] = served?.as_secs_f64() / span.as_secs_f64();
        }
        Outcome::Ok((delays, shares))
    })?;
    delays.sort_unstable();
    Ok(Measured {
        delays,
        shares,
        agent: rdb.map(|_| (agent.counts(), agent.overloads())),
    })
}

fn main() -> Outcome<()> {
    let mut arguments = env::args().skip(1);
    let mut number = |usual: u64| arguments.next().map_or(Ok(usual), |text| text.parse());
    let (flows, seconds, runs) = (number(2000)?, number(10)?, number(3)?);
    let span = Duration::from_secs(seconds);
    let every = Rdb {
        mode: Mode::Paper,
        thin: Thin::Always,
        ..Rdb::default()
    };
    let cases = [
        ("no agent", 1, None),
        ("rdb", 1, Some(Rdb::default())),
        ("two at once, no agent", 2, None),
        ("two at once, rdb, always", 2, Some(every)),
    ];
    println!(
        "{flows} flows, {BYTES} bytes every {} ms, {seconds} s, nothing is lost; shares of a processor",
        INTERVAL.as_millis()
    );
    println!(
        "| | run | messages/s | p50 ms | p99 ms | p99.9 ms | writer | reader | agent | packets | with copies | too late |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for run_number in 1..=runs {
        for (name, at_once, rdb) in cases {
            let it = run(flows as usize, span, at_once, rdb)?;
            let at = |share: f64| {
                let index = (it.delays.len() as f64 * share) as usize;
                let delay = it.delays.get(index);
                delay.map_or(0.0, |delay| delay.as_secs_f64() * 1e3)
            };
            let [writer, reader, agent] = it.shares;
            let done = match &it.agent {
                Some((counts, overloads)) => format!(
                    "{agent:.2} | {} | {} | {overloads}",
                    counts.from_fixed + counts.from_mobile,
                    counts.bundled
                ),
                None => "| | | ".to_owned(),
            };
            println!(
                "| {name} | {run_number} | {:.0} | {:.3} | {:.3} | {:.3} | {writer:.2} | {reader:.2} | {done} |",
                it.delays.len() as f64 / (span - WARM_UP).as_secs_f64(),
                at(0.5),
                at(0.99),
                at(0.999)
            );
        }
    }
    Ok(())
}
