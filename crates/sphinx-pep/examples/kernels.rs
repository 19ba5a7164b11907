//! What the agent does for the TCP of this kernel: `make bench-pep`.
//!
//! server —(veth, wired delay)— middle with the agent —(lossy hop)— client, in namespaces. For each
//! congestion control and each profile (`sack` by either attachment), the server sends for some seconds; the
//! goodput of the last part
//! of them is printed, with the share of segments that the server sent again. Runs of one line use the
//! same seeds of the hop, one after the other.

mod common;

use std::{
    env,
    error::Error,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;
use sphinx_link::{
    Depth, LinkConfig, Loss, Rate,
    front::{Front, FrontConfig, LinkThread, join},
};
use sphinx_netdev::netns::Namespace;
use sphinx_pep::{
    Agent, Bypass, Config, Counts, Key, Place, Profile, Stage, attach::Attachment, eln::Post,
};

use common::every_stage;

type Outcome<T> = Result<T, Box<dyn Error>>;

const RATE: u64 = 50_000_000;
const UPLOAD_RATE: u64 = 20_000_000;
const WIRED_ONE_WAY: Duration = Duration::from_millis(48);
const HOP_ONE_WAY: Duration = Duration::from_millis(2);
/// UDP port for reports of losses.
const PORT: u16 = 7749;
const QUEUE: Duration = Duration::from_millis(50);

/// A namespace with a process by which `ip` finds it.
struct Host {
    namespace: Namespace,
    holder: Child,
}

impl Host {
    fn new(namespace: Namespace) -> Outcome<Host> {
        let holder = namespace.spawn(Command::new("sleep").arg("10000").stdin(Stdio::null()))?;
        Ok(Host { namespace, holder })
    }

    fn ip(&self, words: &str) -> Outcome<()> {
        let mut command = Command::new("ip");
        let status = self
            .namespace
            .spawn(command.args(words.split_whitespace()))?
            .wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("ip {words}").into()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

struct Path {
    server: Host,
    middle: Host,
    hop: Front,
    _wire: LinkThread,
    _between: Host,
}

impl Path {
    /// Losses are those towards the client, and from it.
    fn new(rate: u64, losses: [f64; 2], seed: u64) -> Outcome<Path> {
        let radio = LinkConfig {
            rate: Rate::Constant(rate),
            queue: Depth::Time(QUEUE),
            delay: HOP_ONE_WAY,
            seed,
            ..LinkConfig::default()
        };
        let hop = Front::start(FrontConfig {
            left_to_right: LinkConfig {
                loss: Loss::Bernoulli(losses[0]),
                ..radio.clone()
            },
            right_to_left: LinkConfig {
                loss: Loss::Bernoulli(losses[1]),
                ..radio
            },
            ..FrontConfig::default()
        })?;
        let middle = Host::new(hop.left().run(Namespace::current)??)?;
        let (server, between) = (Host::new(Namespace::new()?)?, Host::new(Namespace::new()?)?);
        for (own, other, end) in [("west", "uplink", &server), ("east", "wired", &middle)] {
            between.ip(&format!("link add name {own} type veth peer name {other}"))?;
            between.ip(&format!("link set {other} netns {}", end.holder.id()))?;
            between.ip(&format!("link set {own} up"))?;
            end.ip(&format!("link set {other} up"))?;
        }
        server.ip("addr add 10.78.0.2/24 dev uplink")?;
        middle.ip("addr add 10.78.0.1/24 dev wired")?;
        server.ip("route add default via 10.78.0.1")?;
        middle.namespace.sysctl("net.ipv4.ip_forward", "1")?;
        for (name, value) in sphinx_link::front::TCP_PARAMETERS {
            server.namespace.sysctl(name, value)?;
        }
        let client = Host::new(hop.right().run(Namespace::current)??)?;
        client.ip("route add default via 10.77.0.1")?;
        let wire = LinkConfig {
            delay: WIRED_ONE_WAY,
            queue: Depth::Packets(100_000),
            ..LinkConfig::default()
        };
        let wires = [wire.clone(), wire];
        let wire = between
            .namespace
            .run(|| join(["west", "east"], wires, None))??;
        Ok(Path {
            server,
            middle,
            hop,
            _wire: wire,
            _between: between,
        })
    }
}

/// Goodput in Mbit/s, and the share of segments sent again by the server.
struct Measured {
    goodput: f64,
    again: f64,
    counts: Option<Counts>,
}

/// What stands between the hop and the sender.
#[derive(Clone, Copy)]
enum Middle {
    Nobody,
    Tun(Profile),
    Queue(Profile),
}

fn measure(cc: &str, middle: Middle, loss: f64, seconds: f64) -> Outcome<Measured> {
    let path = Path::new(RATE, [loss, 0.0], 1)?;
    let open = || match middle {
        Middle::Nobody => Ok(None),
        Middle::Tun(_) => Attachment::tun(&["wired".to_owned()], "left").map(Some),
        Middle::Queue(_) => Attachment::nfqueue("left", Place::Base).map(Some),
    };
    let mut attachment = path.middle.namespace.run(open)??;
    let profile = match middle {
        Middle::Nobody => None,
        Middle::Tun(profile) | Middle::Queue(profile) => Some(profile),
    };
    let mut agent = Agent::new(Config {
        stage: Stage::Snoop(profile.unwrap_or_default()),
        ..Config::default()
    });
    let stopper = attachment.as_ref().map(Attachment::stopper);
    let result = thread::scope(|scope| {
        let namespace = &path.middle.namespace;
        let (attachment, agent) = (&mut attachment, &mut agent);
        let serving = scope.spawn(move || match attachment {
            Some(attachment) => namespace.run(|| {
                let result = attachment.run(agent, |_, _| {});
                result.map(|()| agent.counts())
            })?,
            None => Ok(Counts::default()),
        });
        let result = transfer(&path, cc, seconds);
        if let Some(stopper) = stopper {
            stopper.stop();
        }
        let counts = serving
            .join()
            .map_err(|_| io::Error::other("the agent panicked"))?;
        Outcome::Ok((result?, counts?))
    });
    // The rules are removed where they were made.
    path.middle.namespace.run(|| drop(attachment))?;
    let ((goodput, again), counts) = result?;
    Ok(Measured {
        goodput,
        again,
        counts: profile.map(|_| counts),
    })
}

fn transfer(path: &Path, cc: &str, seconds: f64) -> Outcome<(f64, f64)> {
    let address = SocketAddr::from(([10, 78, 0, 2], 0));
    let listener = path.server.namespace.run(|| TcpListener::bind(address))??;
    let target = listener.local_addr()?;
    let cc = cc.to_owned();
    let before = retransmitted(&path.server)?;
    let sending = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        SockRef::from(&stream).set_tcp_congestion(cc.as_bytes())?;
        let block = vec![7; 1 << 16];
        loop {
            // The writing ends when the client closes the connection.
            if stream.write_all(&block).is_err() {
                return Ok(());
            }
        }
    });
    let mut stream = path.hop.right().run(|| TcpStream::connect(target))??;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let goodput = receive(&mut stream, seconds)?;
    let after = retransmitted(&path.server)?;
    drop(stream);
    sending.join().map_err(|_| "the server panicked")??;
    let (again, sent) = (after.0 - before.0, after.1 - before.1);
    Ok((goodput, again as f64 / sent.max(1) as f64))
}

/// Serves an agent in a namespace while `work` goes on.
fn beside<T>(
    namespace: &Namespace,
    attachment: &mut Attachment,
    agent: &mut Agent,
    work: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let stopper = attachment.stopper();
    thread::scope(|scope| {
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {}))?);
        let result = work();
        stopper.stop();
        let served = serving.join();
        served.map_err(|_| io::Error::other("the agent panicked"))??;
        result
    })
}

/// An upload, with an agent on either side of the hop or with none: goodput, the share of segments sent again by
/// the client, and what the agents of the client and of the middle have counted.
fn measure_upload(cc: &str, helped: bool, loss: f64, seconds: f64) -> Outcome<(Measured, Counts)> {
    let path = Path::new(UPLOAD_RATE, [0.0, loss], 1)?;
    let (middle, client) = (&path.middle.namespace, path.hop.right());
    let client = client.run(Namespace::current)??;
    let work = || upload(&path, cc, seconds);
    if !helped {
        let (goodput, again) = work()?;
        let counts = None;
        let measured = Measured {
            goodput,
            again,
            counts,
        };
        return Ok((measured, Counts::default()));
    }
    let key = Key::new([7; 32]);
    let agent = |place| {
        Agent::new(Config {
            place,
            reports: true,
            ..Config::default()
        })
    };
    let open = || -> io::Result<Attachment> {
        let attachment = Attachment::tun(&["wired".to_owned()], "left")?;
        Ok(attachment.with_post(Post::tell(key.clone(), PORT)?))
    };
    let (mut base, mut base_agent) = (middle.run(open)??, agent(Place::Base));
    let open = || -> io::Result<Attachment> {
        let attachment = Attachment::nfqueue("right", Place::Mobile)?;
        Ok(attachment.with_post(Post::hear(key.clone(), PORT)?))
    };
    let (mut own, mut own_agent) = (client.run(open)??, agent(Place::Mobile));
    let result = beside(middle, &mut base, &mut base_agent, || {
        beside(&client, &mut own, &mut own_agent, work)
    });
    middle.run(|| drop(base))?;
    client.run(|| drop(own))?;
    let (goodput, again) = result?;
    let counts = Some(own_agent.counts());
    let measured = Measured {
        goodput,
        again,
        counts,
    };
    Ok((measured, base_agent.counts()))
}

fn upload(path: &Path, cc: &str, seconds: f64) -> Outcome<(f64, f64)> {
    let address = SocketAddr::from(([10, 78, 0, 2], 0));
    let listener = path.server.namespace.run(|| TcpListener::bind(address))??;
    let target = listener.local_addr()?;
    let client = Host::new(path.hop.right().run(Namespace::current)??)?;
    let before = retransmitted(&client)?;
    let mut sending = path.hop.right().run(|| TcpStream::connect(target))??;
    SockRef::from(&sending).set_tcp_congestion(cc.as_bytes())?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let writer = thread::spawn(move || {
        let block = vec![7; 1 << 16];
        // The writing ends when the server closes the connection.
        while sending.write_all(&block).is_ok() {}
    });
    let goodput = receive(&mut stream, seconds)?;
    let after = retransmitted(&client)?;
    drop(stream);
    writer.join().map_err(|_| "the client panicked")?;
    let (again, sent) = (after.0 - before.0, after.1 - before.1);
    Ok((goodput, again as f64 / sent.max(1) as f64))
}

/// Goodput of what comes for some seconds, in Mbit/s.
fn receive(stream: &mut TcpStream, seconds: f64) -> io::Result<f64> {
    let (start, mut buffer, mut bytes) = (Instant::now(), vec![0; 1 << 18], 0);
    // Slow start and the first losses are not what this is about.
    let warm = Duration::from_secs_f64(seconds / 5.0);
    let end = Duration::from_secs_f64(seconds);
    while start.elapsed() < end {
        let read = stream.read(&mut buffer)?;
        if start.elapsed() >= warm {
            bytes += read;
        }
    }
    Ok(bytes as f64 * 8.0 / (seconds * 0.8) / 1e6)
}

/// Segments that a host has sent again, and all that it has sent.
fn retransmitted(host: &Host) -> Outcome<(u64, u64)> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let text = host.namespace.run(read)??;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let value = |wanted: &str| {
        let mut fields = names.split(' ').zip(values.split(' '));
        let found = fields.find(|(name, _)| *name == wanted);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    };
    Ok((value("RetransSegs"), value("OutSegs")))
}

/// `upload` as the first word: what the mobile host's agent is worth.
fn uploads(seconds: f64, loss: f64) -> Outcome<()> {
    println!("control  agent  lost  Mbit/s  sent again  repaired  held  attributed  not  released");
    for cc in ["cubic", "bbr"] {
        for (name, helped, loss) in [
            ("none", false, 0.0),
            ("none", false, loss),
            ("eln", true, loss),
            ("eln", true, 0.0),
        ] {
            let (measured, base) = measure_upload(cc, helped, loss, seconds)?;
            let counts = measured.counts.unwrap_or_default();
            println!(
                "{cc:<7}  {name:<5}  {:>3.1}%  {:>6.1}  {:>9.2}%  {:>8}  {:>4}  {:>10}  {:>3}  {:?}",
                100.0 * loss,
                measured.goodput,
                100.0 * measured.again,
                counts.repaired,
                counts.held,
                base.attributed,
                base.unattributed,
                counts.released
            );
        }
    }
    Ok(())
}

/// What the thread has used of processors so far, in seconds.
fn used() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    Ok(ns.unwrap_or(0.0) / 1e9)
}

/// What goes through an agent as fast as it can.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Whether the agent uses the packet filter's queue instead of TUN devices.
    by_queue: bool,
    /// Whether the connection has begun before the agent, and is left alone.
    is_old: bool,
    /// All stages that go together, instead of `snoop` alone.
    all: bool,
    is_upload: bool,
}

const LOADS: [Load; 8] = {
    const HELPED: Load = Load {
        name: "helped",
        by_queue: false,
        is_old: false,
        all: false,
        is_upload: false,
    };
    const ALL: Load = Load {
        name: "all stages",
        all: true,
        ..HELPED
    };
    const UPLOAD: Load = Load {
        name: "all, upload",
        is_upload: true,
        ..ALL
    };
    const ALONE: Load = Load {
        name: "left alone",
        is_old: true,
        ..HELPED
    };
    const fn by_queue(load: Load) -> Load {
        Load {
            by_queue: true,
            ..load
        }
    }
    [
        ALONE,
        HELPED,
        ALL,
        UPLOAD,
        by_queue(ALONE),
        by_queue(HELPED),
        by_queue(ALL),
        by_queue(UPLOAD),
    ]
};

impl Load {
    fn config(self) -> Config {
        // A sender that nothing holds back makes the agent late, and what only passes is not what is asked.
        let config = Config {
            lag_ns_max: u64::MAX,
            ..Config::default()
        };
        if !self.all {
            return config;
        }
        // Nothing is to wait long in its queue.
        Config {
            lag_ns_max: config.lag_ns_max,
            ..every_stage(config.stage, 20_000_000_000, 16 << 20)
        }
    }
}

/// Between kernels as fast as it goes, without a hop that is emulated: Mbit/s, processor seconds of the agent for a gigabyte, and
/// what it has counted: packets that it was given, that it has cached, and that passed as it was late.
fn measure_cost(load: Load, seconds: f64) -> Outcome<(f64, f64, Counts)> {
    let [server, middle, client] = [(); 3].map(|()| Host::new(Namespace::new()?));
    let (server, middle, client) = (server?, middle?, client?);
    for (end, own, other, net) in [
        (&server, "wired", "uplink", 78),
        (&client, "radio", "air", 77),
    ] {
        middle.ip(&format!("link add name {own} type veth peer name {other}"))?;
        middle.ip(&format!("link set {other} netns {}", end.holder.id()))?;
        middle.ip(&format!("addr add 10.{net}.0.1/24 dev {own}"))?;
        middle.ip(&format!("link set {own} up"))?;
        end.ip(&format!("addr add 10.{net}.0.2/24 dev {other}"))?;
        end.ip(&format!("link set {other} up"))?;
        end.ip(&format!("route add default via 10.{net}.0.1"))?;
    }
    middle.namespace.sysctl("net.ipv4.ip_forward", "1")?;
    let address = SocketAddr::from(([10, 78, 0, 2], 0));
    let listener = server.namespace.run(|| TcpListener::bind(address))??;
    let target = listener.local_addr()?;
    let connect = || client.namespace.run(|| TcpStream::connect(target));
    let old = match load.is_old {
        true => Some(connect()??),
        false => None,
    };
    let open = || match load.by_queue {
        true => Attachment::nfqueue("radio", Place::Base),
        false => Attachment::tun(&["wired".to_owned()], "radio"),
    };
    let mut attachment = middle.namespace.run(open)??;
    let stopper = attachment.stopper();
    let mut agent = Agent::new(load.config());
    let namespace = &middle.namespace;
    let result = thread::scope(|scope| {
        let (attachment, agent) = (&mut attachment, &mut agent);
        let serving = scope.spawn(move || {
            namespace.run(|| -> io::Result<f64> {
                attachment.run(agent, |_, _| {})?;
                used()
            })?
        });
        let work = || -> Outcome<f64> {
            let mut stream = match old {
                Some(stream) => stream,
                None => connect()??,
            };
            let (mut sending, _) = listener.accept()?;
            if load.is_upload {
                std::mem::swap(&mut stream, &mut sending);
            }
            let writer = thread::spawn(move || {
                let block = vec![7; 1 << 18];
                while sending.write_all(&block).is_ok() {}
            });
            let (start, mut buffer, mut bytes) = (Instant::now(), vec![0; 1 << 20], 0);
            while start.elapsed().as_secs_f64() < seconds {
                bytes += stream.read(&mut buffer)?;
            }
            drop(stream);
            writer.join().map_err(|_| "the server panicked")?;
            Ok(bytes as f64)
        };
        let bytes = work();
        stopper.stop();
        let used = serving.join().map_err(|_| "the agent panicked")??;
        Outcome::Ok((bytes?, used))
    });
    namespace.run(|| drop(attachment))?;
    let (bytes, used) = result?;
    Ok((
        bytes * 8.0 / seconds / 1e6,
        used * 1e9 / bytes,
        agent.counts(),
    ))
}

/// `cost` as the first word: what an agent costs, three times each.
fn costs(seconds: f64) -> Outcome<()> {
    println!(
        "attach   flow         Mbit/s  processor s/GB  from fixed  from mobile   cached  late"
    );
    for _ in 0..3 {
        for load in LOADS {
            let (rate, cost, counts) = measure_cost(load, seconds)?;
            let attach = if load.by_queue { "nfqueue" } else { "tun" };
            println!(
                "{attach:<7}  {:<11}  {rate:>6.0}  {cost:>14.2}  {:>10}  {:>11}  {:>7}  {:>4}",
                load.name,
                counts.from_fixed,
                counts.from_mobile,
                counts.cached,
                counts.bypasses(Bypass::Overload)
            );
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    if env::args().nth(1).is_some_and(|word| word == "cost") {
        let seconds = env::args().nth(2).map_or(Ok(4.0), |text| text.parse())?;
        return costs(seconds);
    }
    let is_upload = env::args().nth(1).is_some_and(|word| word == "upload");
    let first = 1 + usize::from(is_upload);
    let number = |index: usize, default: f64| match env::args().nth(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let (seconds, loss) = (number(first, 15.0)?, number(first + 1, 0.01)?);
    println!(
        "{} Mbit/s, {} ms round trip, {} of it over the hop, {:.1} % lost there, {seconds} s each",
        if is_upload { UPLOAD_RATE } else { RATE } / 1_000_000,
        2 * (WIRED_ONE_WAY + HOP_ONE_WAY).as_millis(),
        2 * HOP_ONE_WAY.as_millis(),
        100.0 * loss
    );
    if is_upload {
        return uploads(seconds, loss);
    }
    println!(
        "control  agent    lost  Mbit/s  sent again  repaired  spurious  held ms max  released"
    );
    for cc in ["cubic", "bbr"] {
        for (name, middle, loss) in [
            ("none", Middle::Nobody, 0.0),
            ("none", Middle::Nobody, loss),
            ("ll", Middle::Tun(Profile::Ll), loss),
            ("classic", Middle::Tun(Profile::Classic), loss),
            ("sack", Middle::Tun(Profile::Sack), loss),
            ("nfqueue", Middle::Queue(Profile::Sack), loss),
        ] {
            let measured = measure(cc, middle, loss, seconds)?;
            let counts = measured.counts.unwrap_or_default();
            println!(
                "{cc:<7}  {name:<7}  {:>3.1}%  {:>6.1}  {:>9.2}%  {:>8}  {:>8}  {:>11.1}  {:?}",
                100.0 * loss,
                measured.goodput,
                100.0 * measured.again,
                counts.repaired,
                counts.spurious,
                counts.held_ns_max as f64 / 1e6,
                counts.released
            );
        }
    }
    Ok(())
}
