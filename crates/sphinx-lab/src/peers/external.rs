//! Ends that are other people's programs: started, watched and translated.
//!
//! Commands are templates; `{address}`, `{host}`, `{port}`, `{local}`, `{bytes}`, `{file}` and `{directory}`
//! stand for what their names say.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{PATIENCE, Pattern, PeerError, PeerTask, Received, tcp, tried};
use crate::{Workload, machine::monotonic_ns};

/// Where the ends behind a tunnel or a relay listen: the receiver's, and the sender's entrance.
pub(super) const INNER_PORT: u16 = 5299;
pub(super) const ENTRANCE_PORT: u16 = 5298;
/// How long a program gets until it listens.
pub(super) const START: Duration = Duration::from_millis(500);
/// Between two looks.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// A running program; dropping it ends it.
pub(super) struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    pub(super) fn start(task: &PeerTask, keeps_output: bool) -> Result<Program, PeerError> {
        let directory = directory(task)?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, ENTRANCE_PORT));
        let fill = |word: &String| {
            word.replace("{address}", &task.address.to_string())
                .replace("{host}", &task.address.ip().to_string())
                .replace("{port}", &task.address.port().to_string())
                .replace("{local}", &local.to_string())
                .replace("{inner}", &format!("127.0.0.1:{INNER_PORT}"))
                .replace("{bytes}", &task.workload.bytes().to_string())
                .replace("{file}", &directory.join("file").display().to_string())
                .replace("{directory}", &directory.display().to_string())
        };
        let mut words = task.options.iter().map(fill);
        let program = words.next().ok_or(PeerError::Cannot("start nothing"))?;
        let stdout = if keeps_output {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn();
        tried("program", child).map(Program)
    }

    /// Waits for the end and returns what it printed; kills it at the deadline.
    fn output(mut self, deadline: Instant) -> Result<Vec<u8>, PeerError> {
        let mut stdout = self.0.stdout.take();
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(stdout) = &mut stdout {
                // What cannot be read is not there.
                let _ = stdout.read_to_end(&mut text);
            }
            text
        });
        while tried("program", self.0.try_wait())?.is_none() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        drop(self);
        Ok(reader.join().unwrap_or_default())
    }
}

pub(super) fn directory(task: &PeerTask) -> Result<&Path, PeerError> {
    task.directory
        .as_deref()
        .ok_or(PeerError::Cannot("do without a directory"))
}

fn bulk(task: &PeerTask) -> Result<u64, PeerError> {
    match task.workload {
        Workload::Bulk { bytes } => Ok(bytes),
        _ => Err(PeerError::Cannot("do anything but bulk transfers")),
    }
}

/// The task of a TCP end that is behind a tunnel.
fn behind(task: &PeerTask, port: u16) -> PeerTask {
    PeerTask {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        ..task.clone()
    }
}

/// TCP through a tunnel whose server is the task's command.
pub(super) fn tunnel_receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let _server = Program::start(task, false)?;
    tcp::receive(&behind(task, INNER_PORT), &|_| {
        thread::sleep(START);
        listening(task.address);
    })
}

/// TCP through a tunnel whose client is the task's command.
pub(super) fn tunnel_send(task: &PeerTask) -> Result<u64, PeerError> {
    let _client = Program::start(task, false)?;
    let entrance = behind(task, ENTRANCE_PORT);
    // The tunnel's own set-up is not what is measured.
    let deadline = Instant::now() + PATIENCE;
    while !is_listening(ENTRANCE_PORT) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    tcp::send(&entrance)
}

/// Whether something listens at a local TCP port, without connecting to it.
fn is_listening(port: u16) -> bool {
    let table = |path| fs::read_to_string(path).unwrap_or_default();
    let all = table("/proc/self/net/tcp") + &table("/proc/self/net/tcp6");
    let wanted = format!(":{port:04X}");
    all.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        local.ends_with(&wanted) && fields.nth(1) == Some("0A")
    })
}

/// A program that receives one file.
pub(super) fn file_receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let (bytes, directory) = (bulk(task)?, directory(task)?);
    let inbox = directory.join("inbox");
    tried("inbox", fs::create_dir_all(&inbox))?;
    let _program = Program::start(task, false)?;
    thread::sleep(START);
    listening(task.address);
    let patience = Instant::now() + task.limit + PATIENCE;
    let mut start_ns = None;
    loop {
        thread::sleep(POLL);
        if start_ns.is_none() {
            let start = fs::read_to_string(directory.join("start")).unwrap_or_default();
            start_ns = start.trim().parse::<u64>().ok();
        }
        let have = received_bytes(&inbox);
        let now_ns = monotonic_ns();
        let seconds = start_ns.map_or(0.0, |start| now_ns.saturating_sub(start) as f64 * 1e-9);
        let complete = have >= bytes;
        if complete || seconds > task.limit.as_secs_f64() || Instant::now() > patience {
            return Ok(Received {
                bytes: have.min(bytes),
                seconds,
                end_ns: start_ns.map(|_| now_ns),
                complete,
                blocks: 0,
                late: 0,
                dropped: None,
                block_ms: None,
            });
        }
    }
}

fn received_bytes(inbox: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(inbox) else {
        return 0;
    };
    let sizes = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    sizes.sum()
}

/// A program that sends one file.
pub(super) fn file_send(task: &PeerTask) -> Result<u64, PeerError> {
    let (bytes, directory) = (bulk(task)?, directory(task)?);
    let pattern = Pattern::new(task.seed);
    let mut file = tried("file", fs::File::create(directory.join("file")))?;
    let mut at = 0;
    while at < bytes {
        let piece = pattern.piece(at, bytes - at);
        tried("file", file.write_all(piece))?;
        at += piece.len() as u64;
    }
    drop(file);
    let start = monotonic_ns().to_string();
    tried("start", fs::write(directory.join("start"), start))?;
    Program::start(task, false)?.output(Instant::now() + task.limit)?;
    Ok(bytes)
}

/// iperf3's server.
pub(super) fn iperf_receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let bytes = bulk(task)?;
    let program = Program::start(task, true)?;
    let deadline = Instant::now() + PATIENCE;
    while !is_listening(task.address.port()) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    listening(task.address);
    let text = program.output(Instant::now() + task.limit + PATIENCE)?;
    let report: Value =
        serde_json::from_slice(&text).map_err(|_| PeerError::Impossible("report of iperf3"))?;
    let sum = |part: &Value| Some((part["bytes"].as_u64()?, part["seconds"].as_f64()?));
    // A client that was cut off leaves only the intervals.
    let intervals = report["intervals"].as_array().into_iter().flatten();
    let so_far = intervals
        .filter_map(|interval| sum(&interval["sum"]))
        .fold((0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
    let (have, seconds) = sum(&report["end"]["sum_received"])
        .filter(|whole| whole.0 > 0)
        .unwrap_or(so_far);
    Ok(Received {
        bytes: have.min(bytes),
        seconds,
        end_ns: None,
        // The client's count decides when the test is over, so that the last bytes may be missing.
        complete: report["error"].is_null() && have > 0,
        blocks: 0,
        late: 0,
        dropped: None,
        block_ms: None,
    })
}

/// iperf3's client.
pub(super) fn iperf_send(task: &PeerTask) -> Result<u64, PeerError> {
    let bytes = bulk(task)?;
    Program::start(task, false)?.output(Instant::now() + task.limit)?;
    // The server tells how much has arrived; an idle connection keeps nobody waiting.
    drop(TcpStream::connect_timeout(&task.address, POLL));
    Ok(bytes)
}
