//! Ends that are other people's programs: started, watched and translated.
//!
//! Commands are templates; `{address}`, `{host}`, `{port}`, `{local}`, `{bytes}`, `{file}` and `{directory}`
//! stand for what their names say.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sphinx_netdev::usage::monotonic_ns;

use super::{PEER_TIMEOUT, Pattern, PeerError, PeerTask, Received, tcp, tried};
use crate::Workload;

/// Where the ends behind a tunnel or a relay listen: the receiver's, and the sender's entrance.
pub(super) const INNER_PORT: u16 = 5299;
pub(super) const ENTRANCE_PORT: u16 = 5298;
/// How long a program gets until it listens.
pub(super) const START: Duration = Duration::from_millis(500);
/// Time between two looks at what a program has done.
pub(super) const POLL: Duration = Duration::from_millis(5);
/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// What is there of a file with holes is counted in parts of this size: much less than a packet.
const PART_BYTES: usize = 64;

/// A running program; dropping it ends it.
pub(super) struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has ended by itself.
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
                // Best effort: what cannot be read is left out.
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
    let deadline = Instant::now() + PEER_TIMEOUT;
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
    let mut inbox = Inbox {
        directory: inbox,
        bytes,
        pattern: Pattern::new(task.seed),
        compared: 0,
    };
    let patience = Instant::now() + task.limit + PEER_TIMEOUT;
    let mut start_ns = None;
    loop {
        thread::sleep(POLL);
        if start_ns.is_none() {
            let start = fs::read_to_string(directory.join("start")).unwrap_or_default();
            start_ns = start.trim().parse::<u64>().ok();
        }
        // Taken before the contents are compared, which is not part of the transfer.
        let now_ns = monotonic_ns();
        let complete = inbox.is_complete();
        let seconds = start_ns.map_or(0.0, |start| now_ns.saturating_sub(start) as f64 * 1e-9);
        if complete || seconds > task.limit.as_secs_f64() || Instant::now() > patience {
            return Ok(Received {
                bytes: inbox.arrived(),
                seconds,
                end_ns: start_ns.map(|_| now_ns),
                complete,
                blocks: 0,
                late: 0,
                dropped: None,
                block_ms: None,
                socket_bytes: None,
            });
        }
    }
}

/// Where a program leaves the file that is sent. Its size says little: some set it first, and leave holes where something was lost.
struct Inbox {
    directory: PathBuf,
    bytes: u64,
    pattern: Pattern,
    /// So many of its first bytes are as they were sent.
    compared: u64,
}

impl Inbox {
    /// Whether the file is there, every byte of it as it was sent. What has been compared once is not looked at again.
    fn is_complete(&mut self) -> bool {
        let Some((mut file, _)) = self.files().find(|(_, size)| *size == self.bytes) else {
            return false;
        };
        // Best effort: what cannot be read counts as not having arrived yet.
        let _ = each_piece(&mut file, self.compared, |at, piece| {
            let is_right = self.pattern.matches(at, piece);
            if is_right {
                self.compared = at + piece.len() as u64;
            }
            is_right
        });
        self.compared == self.bytes
    }

    /// Bytes that are as they were sent, wherever in the file; of several files, in that with the most of them.
    fn arrived(&self) -> u64 {
        let right = |(mut file, _): (fs::File, u64)| {
            let mut right = 0;
            // The file counts as far as it can be read.
            let _ = each_piece(&mut file, 0, |at, piece| {
                let parts = piece.chunks(PART_BYTES);
                for (part, at) in parts.zip((at..self.bytes).step_by(PART_BYTES)) {
                    if self.pattern.matches(at, part) {
                        right += part.len() as u64;
                    }
                }
                true
            });
            right.min(self.bytes)
        };
        self.files().map(right).max().unwrap_or(0)
    }

    /// The received files that exist, with their sizes.
    fn files(&self) -> impl Iterator<Item = (fs::File, u64)> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let size = path.metadata().ok().filter(|it| it.is_file())?.len();
            Some((fs::File::open(path).ok()?, size))
        })
    }
}

/// Gives a file's bytes from `at` on to `take`, with where they are, until it wants no more.
fn each_piece(
    file: &mut fs::File,
    mut at: u64,
    mut take: impl FnMut(u64, &[u8]) -> bool,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 || !take(at, &buffer[..length]) {
            return Ok(());
        }
        at += length as u64;
    }
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
    let deadline = Instant::now() + PEER_TIMEOUT;
    while !is_listening(task.address.port()) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    listening(task.address);
    let text = program.output(Instant::now() + task.limit + PEER_TIMEOUT)?;
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
        socket_bytes: None,
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

#[cfg(test)]
mod tests {
    use super::{super::tests::task, *};

    const BYTES: u64 = 100_000;

    /// Receives what a script leaves in the inbox, where there is what `before` makes of the file that is sent.
    fn received(limit: Duration, before: impl Fn(&mut Vec<u8>), script: &str) -> Received {
        let directory = tempfile::tempdir().unwrap();
        let task = |script: &str| PeerTask {
            directory: Some(directory.path().to_owned()),
            limit,
            options: ["sh", "-c", script].map(str::to_owned).to_vec(),
            ..task(Workload::Bulk { bytes: BYTES })
        };
        file_send(&task("true")).unwrap();
        let mut file = fs::read(directory.path().join("file")).unwrap();
        assert_eq!(file.len() as u64, BYTES);
        before(&mut file);
        let inbox = directory.path().join("inbox");
        fs::create_dir(&inbox).unwrap();
        fs::write(inbox.join("file"), &file).unwrap();
        file_receive(&task(script), &|_| ()).unwrap()
    }

    #[test]
    fn a_size_is_no_file() {
        let received = received(Duration::ZERO, |file| file.fill(0), "true");
        assert_eq!((received.bytes, received.complete), (0, false));
    }

    #[test]
    fn holes_have_not_arrived() {
        let with_hole = |file: &mut Vec<u8>| file[10_000..60_000].fill(0);
        let received = received(Duration::ZERO, with_hole, "true");
        let is_right = (49_800..=50_000).contains(&received.bytes);
        assert!(is_right && !received.complete, "{received:?}");
    }

    #[test]
    fn what_is_of_its_size_is_waited_for() {
        let script = "sleep 1; dd if={file} of={directory}/inbox/file conv=notrunc";
        let received = received(Duration::from_secs(20), |file| file.fill(0), script);
        assert_eq!((received.bytes, received.complete), (BYTES, true));
        assert!(received.seconds >= 1.0, "{received:?}");
    }
}
