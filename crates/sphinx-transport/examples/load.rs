//! Many sessions on one server, on loopback: the memory and the processor time of those at rest, and how those that send, and
//! those that it sends to, share it.
//!
//! ```text
//! make bench-sessions ARGS="[IDLE [ACTIVE [SHARDS [SECONDS [CPUS [CLIENTS]]]]]]"
//! ```
//!
//! `CPUS`, such as `0,1`, are the processors that the server is bound to, its engines one each; `CLIENTS` those that the clients are bound to while all
//! sessions are busy. Without them the clients give way to the server.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use sphinx_transport::{Options, Server, Service, Session, Ticket, connect};

/// Sessions that begin at the same time.
const BEGINNING: u64 = 16;
/// Until those at rest have nothing more to say: what a start sends late has been answered.
const REST: Duration = Duration::from_secs(10);
/// How long sessions send before the measurement, so that they have found their rates.
const WARM_UP: Duration = Duration::from_secs(3);

/// As `nice` counts; of this thread, and of those that it starts.
const LOWEST_PRIORITY: i32 = 19;

/// What a session may hold. Shards have unlike numbers of them, and as much memory each.
const SESSION_BYTES: u64 = 2 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, shards, memory, cpus] = &*arguments
        && role == "server"
    {
        return serve(shards.parse()?, memory.parse()?, processors(cpus)?);
    }
    let argument = |n: usize, default: u64| {
        let text = arguments.get(n);
        text.map_or(Ok(default), |text| text.parse())
    };
    let (idle, active) = (argument(0, 1000)?, argument(1, 200)?);
    let (shards, seconds) = (argument(2, 2)?, argument(3, 10)?);
    let cpus = arguments.get(4).map_or("", String::as_str);
    let clients = processors(arguments.get(5).map_or("", String::as_str))?;

    let mut server = Served::start(shards, idle, cpus)?;
    let before = server.number("memory")?;
    let sessions = server.connect(idle)?;
    std::thread::sleep(REST);
    let memory = server.number("memory")? - before;
    let busy = || Ok::<_, Box<dyn Error>>((cpu("self")?, cpu(&server.child.id().to_string())?));
    let (ours, theirs) = busy()?;
    std::thread::sleep(REST);
    let (ours_after, theirs_after) = busy()?;
    let percent = |time: Duration| time.as_secs_f64() / REST.as_secs_f64() * 100.0;
    println!(
        "{idle} sessions at rest: {:.1} kB each at the server, {:.2} % of a core there, {:.2} % at the clients",
        memory / 1000.0 / idle.max(1) as f64,
        percent(theirs_after.saturating_sub(theirs)),
        percent(ours_after.saturating_sub(ours)),
    );
    drop(sessions);
    drop(server);

    let ways = [Way::ToServer, Way::FromServer];
    let servers = ways.map(|way| (way, Served::start(shards, active, cpus)));
    // The clients stand for other machines.
    match &*clients {
        // On the same processors they get the time that the servers leave.
        [] => drop(rustix::process::nice(LOWEST_PRIORITY)?),
        clients => bind(clients)?,
    }
    for (way, server) in servers {
        let mut server = server?;
        let sessions = server.connect(active)?;
        let of_each = server.ask("shards")?;
        let bytes = carried(&mut server, &sessions, way, Duration::from_secs(seconds))?;
        println!(
            "{active} sessions {}, at the shards {of_each}: {}",
            match way {
                Way::ToServer => "that send",
                Way::FromServer => "that are sent to",
            },
            shares(&bytes, seconds),
        );
    }
    Ok(())
}

/// Processors as numbers with commas between them, or none.
fn processors(list: &str) -> Outcome<Vec<usize>> {
    let numbers = list.split(',').filter(|number| !number.is_empty());
    Ok(numbers.map(str::parse).collect::<Result<_, _>>()?)
}

/// Binds this thread, and those that it starts, to these processors.
fn bind(cpus: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    FromServer,
}

/// Bytes that have arrived of each session in so much time, once all have found their rates.
fn carried(
    server: &mut Served,
    sessions: &[Session],
    way: Way,
    time: Duration,
) -> Outcome<Vec<f64>> {
    let stop = AtomicBool::new(false);
    let here: Vec<AtomicU64> = sessions.iter().map(|_| AtomicU64::new(0)).collect();
    let counts = std::thread::scope(|scope| {
        for (session, count) in std::iter::zip(sessions, &here) {
            let stop = &stop;
            scope.spawn(move || match way {
                Way::ToServer => send(session, stop),
                Way::FromServer => receive(session, count),
            });
        }
        let counts = (|| {
            server.ask(match way {
                Way::ToServer => "receive",
                Way::FromServer => "send",
            })?;
            std::thread::sleep(WARM_UP);
            let mut look = || match way {
                Way::ToServer => numbers(&server.ask("count")?),
                Way::FromServer => {
                    let counts = here.iter().map(|count| count.load(Ordering::Relaxed));
                    Ok(counts.map(|bytes| bytes as f64).collect())
                }
            };
            let before = look()?;
            std::thread::sleep(time);
            Ok::<_, Box<dyn Error>>((before, look()?))
        })();
        stop.store(true, Ordering::Relaxed);
        // Those that wait for the window, or for bytes, look no more.
        sessions.iter().for_each(|session| session.close(0, ""));
        counts
    });
    let (before, after) = counts?;
    let each = std::iter::zip(after, before);
    Ok(each.map(|(after, before)| after - before).collect())
}

fn numbers(text: &str) -> Outcome<Vec<f64>> {
    Ok((text.split(' ').map(str::parse)).collect::<Result<_, _>>()?)
}

/// How what all have carried is shared.
fn shares(bytes: &[f64], seconds: u64) -> String {
    let sum: f64 = bytes.iter().sum();
    let squares: f64 = bytes.iter().map(|b| b * b).sum();
    let of_mean = |bytes: f64, all: usize| bytes / sum * all as f64;
    format!(
        "{:.2} Gbit/s, Jain's index {:.3}, the least has {:.2} and the most {:.2} of the mean",
        sum * 8.0 / 1e9 / seconds as f64,
        sum * sum / squares / bytes.len() as f64,
        of_mean(
            bytes.iter().copied().fold(f64::INFINITY, f64::min),
            bytes.len()
        ),
        of_mean(bytes.iter().copied().fold(0.0, f64::max), bytes.len()),
    )
}

/// CPU time of all engines of a process.
fn cpu(process: &str) -> Outcome<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?.path();
        // One that has ended meanwhile is not there any more.
        let of = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
        if of("comm").starts_with("sphinx-engine") {
            sum += (of("schedstat").split(' ').next())
                .and_then(|time| time.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(sum))
}

fn send(session: &Session, stop: &AtomicBool) {
    let Ok(mut stream) = session.open_uni() else {
        return;
    };
    let piece = vec![7; 1 << 16];
    while !stop.load(Ordering::Relaxed) && stream.write_all(&piece).is_ok() {}
}

/// A server in a process of its own, so that its memory is not the clients'.
struct Served {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    ticket: Ticket,
}

impl Served {
    /// One that has memory for so many sessions, and whose engines are bound to these processors.
    fn start(shards: u64, sessions: u64, cpus: &str) -> Outcome<Served> {
        let memory = (sessions + 1) * SESSION_BYTES;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["server", &shards.to_string(), &memory.to_string(), cpus])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().ok_or("no standard input")?;
        let answers = child.stdout.take().ok_or("no standard output")?;
        let mut answers = BufReader::new(answers).lines();
        let ticket = answers.next().ok_or("the server has ended")??.parse()?;
        Ok(Served {
            child,
            commands,
            answers,
            ticket,
        })
    }

    fn ask(&mut self, command: &str) -> Outcome<String> {
        writeln!(self.commands, "{command}")?;
        Ok(self.answers.next().ok_or("the server has ended")??)
    }

    fn number(&mut self, command: &str) -> Outcome<f64> {
        Ok(self.ask(command)?.parse()?)
    }

    /// So many sessions, when the server has accepted them too.
    fn connect(&mut self, sessions: u64) -> Outcome<Vec<Session>> {
        let all = Mutex::new(Vec::new());
        let left = AtomicU64::new(sessions);
        let take = |left: u64| left.checked_sub(1);
        let some = || {
            while (left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)).is_ok() {
                let session = connect(&self.ticket, Service::Application, &Options::default());
                all.lock().expect("no panic before").push(session);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..BEGINNING {
                scope.spawn(some);
            }
        });
        let all: Result<Vec<Session>, _> = all.into_inner()?.into_iter().collect();
        let all = all?;
        while self.number("sessions")? < sessions as f64 {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(all)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server: a ticket on standard output, and then a line for each command on standard input.
fn serve(shards: usize, memory: u64, cpus: Vec<usize>) -> Outcome<()> {
    if !cpus.is_empty() {
        bind(&cpus)?;
    }
    let options = Options {
        shards,
        memory,
        cpus,
        ..Options::default()
    };
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
    println!("{}", server.ticket(&["127.0.0.1".to_owned()])?);
    let accepted: Arc<Mutex<Vec<Session>>> = Arc::default();
    let into = accepted.clone();
    std::thread::spawn(move || {
        while let Ok(Some(session)) = server.accept(None) {
            into.lock().expect("no panic before").push(session);
        }
    });
    let mut counts: Vec<Arc<AtomicU64>> = Vec::new();
    for command in std::io::stdin().lines() {
        match &*command? {
            "memory" => println!("{}", own_memory()?),
            "sessions" => println!("{}", accepted.lock().expect("no panic before").len()),
            "shards" => {
                let mut of_each = vec![0; shards];
                for session in accepted.lock().expect("no panic before").iter() {
                    of_each[session.stats().load.shard] += 1;
                }
                println!("{of_each:?}");
            }
            "receive" => {
                for session in accepted.lock().expect("no panic before").drain(..) {
                    let count = Arc::new(AtomicU64::new(0));
                    counts.push(count.clone());
                    std::thread::spawn(move || receive(&session, &count));
                }
                println!("{}", counts.len());
            }
            "send" => {
                let sessions = std::mem::take(&mut *accepted.lock().expect("no panic before"));
                println!("{}", sessions.len());
                for session in sessions {
                    // The thread ends with the process.
                    std::thread::spawn(move || send(&session, &AtomicBool::new(false)));
                }
            }
            _ => {
                let counts = counts.iter().map(|c| c.load(Ordering::Relaxed).to_string());
                println!("{}", counts.collect::<Vec<_>>().join(" "));
            }
        }
    }
    Ok(())
}

fn receive(session: &Session, count: &AtomicU64) {
    let Ok(mut stream) = session.accept_uni() else {
        return;
    };
    let mut buf = vec![0; 1 << 16];
    while let Ok(bytes @ 1..) = stream.read(&mut buf) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Bytes that this process has of its own.
fn own_memory() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = (status.lines()).find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .ok_or("no RssAnon")?
        .parse()?;
    Ok(kib * 1024)
}
