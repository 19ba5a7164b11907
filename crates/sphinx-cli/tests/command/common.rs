//! Runs the real binary in fresh directories.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Nothing a test waits for takes longer, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of a test's own with the usual places in it.
pub(crate) struct Scratch {
    root: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(root.path().join("in")).expect("a writable temporary directory");
        Self { root }
    }

    /// Removes the directory, into which no process may write any more.
    pub(crate) fn remove(self) {
        self.root.close().expect("nobody writes to it");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file with contents that depend on every position.
    pub(crate) fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        let contents: Vec<u8> = (0..bytes)
            .map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8)
            .collect();
        fs::write(&path, contents).expect("a writable temporary directory");
        path
    }

    /// `sphx recv` into `in`, on loopback, with the ticket in `t`; returns when it listens.
    pub(crate) fn recv(&self, more: &[&str]) -> Running {
        let mut running = self.start_recv(more);
        running.event("listening");
        running
    }

    /// As `recv`, without waiting until it listens.
    pub(crate) fn start_recv(&self, more: &[&str]) -> Running {
        let base = [
            "recv",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--output",
            "in",
            "--ticket-file",
        ];
        Running::start(self, &[&base[..], &["t"], more].concat(), &[])
    }

    /// `sphx send` with the ticket in `t`.
    pub(crate) fn send(&self, arguments: &[&str]) -> Running {
        let base = ["send", "--json", "--ticket-file", "t"];
        Running::start(self, &[&base[..], arguments].concat(), &[])
    }

    /// `sphx perf server --once` with the ticket in `t`; returns when it listens.
    pub(crate) fn perf_server(&self, more: &[&str]) -> Running {
        let base = [
            "perf",
            "server",
            "--json",
            "--once",
            "--listen",
            "127.0.0.1:0",
        ];
        let arguments = [&base[..], &["--ticket-file", "t"], more].concat();
        let mut running = Running::start(self, &arguments, &[]);
        running.event("listening");
        running
    }

    pub(crate) fn perf_client(&self, arguments: &[&str]) -> Running {
        let base = ["perf", "client", "--json", "--ticket-file", "t"];
        Running::start(self, &[&base[..], arguments].concat(), &[])
    }

    /// What has arrived, temporaries included, sorted.
    pub(crate) fn arrived(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path("in"))
            .expect("the output directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    pub(crate) fn assert_same(&self, sent: &str, arrived: &str) {
        let read = |name: &str| {
            let path = self.path(name);
            fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        assert!(read(sent) == read(arrived), "{arrived} is not {sent}");
    }
}

/// The binary, running; killed when dropped.
pub(crate) struct Running {
    child: Child,
    started: Instant,
    events: Receiver<Value>,
    seen: Vec<Value>,
    errors: Arc<Errors>,
    reader: Option<JoinHandle<()>>,
    line: String,
}

/// What has come on standard error so far.
#[derive(Default)]
struct Errors {
    bytes: Mutex<Vec<u8>>,
    more: Condvar,
}

impl Errors {
    fn read_all(&self, mut stderr: impl Read) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut buffer) {
            self.lock().extend_from_slice(&buffer[..count]);
            self.more.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().expect("nobody panics with it")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }
}

/// Tries until it ends with this code: what has changed takes effect after a moment.
#[track_caller]
pub(crate) fn until(code: i32, mut run: impl FnMut() -> Ended) -> Ended {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = run();
        if ended.code == code {
            return ended;
        }
        assert!(Instant::now() < deadline, "exit code {code} never comes");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How a process ended, and what it printed.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) events: Vec<Value>,
    pub(crate) stderr: String,
    pub(crate) after: Duration,
    line: String,
}

impl Running {
    pub(crate) fn start(
        scratch: &Scratch,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = command(scratch.root.path(), arguments);
        command.envs(environment.iter().copied());
        Self::spawn(command, arguments)
    }

    /// Starts the binary in a network namespace.
    #[cfg(all(feature = "lab", feature = "pep"))]
    pub(crate) fn start_in_namespace(
        namespace: &sphinx_netdev::netns::Namespace,
        scratch: &Scratch,
        arguments: &[&str],
    ) -> Self {
        let start = || Self::start(scratch, arguments, &[]);
        namespace.run(start).expect("a thread")
    }

    /// Waits until it listens; whether it does, or has ended.
    #[cfg(all(feature = "lab", feature = "pep"))]
    pub(crate) fn listens(&mut self) -> bool {
        let event = self.events.recv_timeout(PATIENCE);
        let listens = event
            .as_ref()
            .is_ok_and(|event| event["event"] == "listening");
        self.seen.extend(event);
        listens
    }

    /// A command that runs it.
    pub(crate) fn of(scratch: &Scratch, mut command: Command) -> Self {
        command.current_dir(scratch.root.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command, &["by another command"])
    }

    /// Starts the binary in a directory.
    pub(crate) fn start_in(directory: &Path, arguments: &[&str]) -> Self {
        Self::spawn(command(directory, arguments), arguments)
    }

    fn spawn(mut command: Command, arguments: &[&str]) -> Self {
        let mut child = (command.stdin(Stdio::piped()).spawn()).expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("not JSON ({error}): {line}"));
                if sender.send(event).is_err() {
                    break;
                }
            }
        });
        let stderr = child.stderr.take().expect("it is piped");
        let errors = Arc::new(Errors::default());
        let reader = thread::spawn({
            let errors = Arc::clone(&errors);
            move || errors.read_all(stderr)
        });
        Self {
            child,
            started: Instant::now(),
            events,
            seen: Vec::new(),
            errors,
            reader: Some(reader),
            line: arguments.join(" "),
        }
    }

    /// Writes to its standard input and ends that.
    pub(crate) fn input(&mut self, text: &str) {
        let mut stdin = self.stdin();
        stdin.write_all(text.as_bytes()).expect("it reads");
    }

    /// Its standard input, to be written to piece by piece.
    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("it is piped")
    }

    /// Waits for the next event of this name.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| {
                let _ = self.child.kill();
                let _ = self.reader.take().map(JoinHandle::join);
                panic!(
                    "no event {name} from sphx {}; stderr: {:?}",
                    self.line,
                    self.errors.text()
                )
            });
            self.seen.push(event.clone());
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Waits for these words on its standard error.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) {
        let is_missing = |bytes: &mut Vec<u8>| !String::from_utf8_lossy(bytes).contains(words);
        let (bytes, waited) = (self.errors.more)
            .wait_timeout_while(self.errors.lock(), PATIENCE, is_missing)
            .expect("nobody panics with it");
        let text = String::from_utf8_lossy(&bytes);
        assert!(!waited.timed_out(), "no '{words}' in {text}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is our child");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "sphx {} does not end", self.line);
            thread::sleep(Duration::from_millis(5));
        };
        let after = self.started.elapsed();
        // The reading threads end with the process's output.
        let reader = self.reader.take().expect("taken once");
        reader.join().expect("a reading thread");
        let stderr = self.errors.text();
        let mut events = std::mem::take(&mut self.seen);
        events.extend(self.events.iter());
        Ended {
            code: status.code().unwrap_or(-1),
            events,
            stderr,
            after,
            line: std::mem::take(&mut self.line),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Passes on what scripts have said to be skipped.
    #[cfg(all(feature = "lab", feature = "tunnel"))]
    pub(crate) fn tell_skipped(self) -> Self {
        for line in self.stderr.lines() {
            if let Some((_, why)) = line.split_once("skipped: ") {
                sphinx_testing::skipped!("{why}");
            }
        }
        self
    }

    /// Checks the exit code; shows everything if it is another.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "sphx {} after {:?}\nevents: {:#?}\nstderr: {}",
            self.line, self.after, self.events, self.stderr
        );
        self
    }

    /// The last event, which is `done`.
    #[track_caller]
    pub(crate) fn done(&self) -> &Value {
        self.last("done")
    }

    /// The last event, which is `error` and has this exit code and kind.
    #[track_caller]
    pub(crate) fn error(&self, kind: &str) -> &Value {
        let error = self.last("error");
        assert_eq!(error["code"], self.code, "{error}");
        assert_eq!(error["kind"], kind, "{error}");
        for field in ["message", "hint"] {
            assert!(error[field].is_string(), "{error}");
        }
        assert!(!self.stderr.is_empty(), "an error is told to people too");
        error
    }

    /// The only event of this name.
    #[track_caller]
    pub(crate) fn event(&self, name: &str) -> &Value {
        let mut found = self.events.iter().filter(|event| event["event"] == name);
        match (found.next(), found.next()) {
            (Some(event), None) => event,
            _ => panic!("not one event {name}: {:#?}\n{}", self.events, self.stderr),
        }
    }

    #[track_caller]
    fn last(&self, name: &str) -> &Value {
        let last = self
            .events
            .last()
            .unwrap_or_else(|| panic!("no events: {}", self.stderr));
        assert_eq!(last["event"], name, "{last}\n{}", self.stderr);
        assert_eq!(last["v"], 1);
        last
    }
}

/// The process of a packet agent that has begun.
#[cfg(all(feature = "lab", feature = "pep"))]
pub(crate) fn worker_of(started: &Value) -> Pid {
    let worker = started["worker"].as_i64().expect("a process");
    Pid::from_raw(worker as i32).expect("a process")
}

/// The binary with piped outputs.
pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sphx"));
    command
        .args(arguments)
        .current_dir(directory)
        .env_remove("SPHX_TICKET")
        .env("XDG_CACHE_HOME", directory.join("cache"))
        .env("XDG_STATE_HOME", directory.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for a file that a process writes; how that has ended if it ends before.
pub(crate) fn appears(path: &Path, process: &mut Child) -> Result<(), ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        if let Some(status) = process.try_wait().expect("it is our child") {
            return Err(status);
        }
        assert!(
            Instant::now() < deadline,
            "{} does not appear",
            path.display()
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Has a shell script mount something in a namespace of its own, and receive; its `$0` is the command. Once there is the ticket `t`, it is returned. None, with a
/// reason, where it ends before with 77, as it could not mount that, or `unshare` with 1.
pub(crate) fn receive_where(scratch: &Scratch, script: &str) -> Option<Child> {
    let receiver = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_sphx"))
        .current_dir(scratch.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut receiver) = receiver else {
        sphinx_testing::skipped!("there is no unshare");
        return None;
    };
    if let Err(status) = appears(&scratch.path("t"), &mut receiver) {
        assert!(matches!(status.code(), Some(1 | 77)), "{status}");
        sphinx_testing::skipped!("such a file system cannot be mounted here");
        return None;
    }
    Some(receiver)
}

/// The fields that `done` has at either end (`docs/figures-of-merit.md`).
#[track_caller]
pub(crate) fn assert_done_schema(done: &Value) {
    const NUMBERS: &str = "bytes seconds goodput_mbit_s wire_bytes_sent wire_packets_sent \
        wire_bytes_received repair_proactive repair_reactive plr_mean rtt_ms blocks \
        blocks_second_round invalid_datagrams replayed_datagrams cpu_seconds peak_rss_bytes wakeups syscalls gso_downgrades \
        bundled_bytes streams_peak window_bytes datagrams_sent datagrams_delivered datagrams_expired datagrams_evicted";
    const TEXTS: &str = "cc codec profile io";
    const MAYBE: &str = "overhead block_ms_mean block_ms_p50 block_ms_p99 block_ms_max clock \
        packets_per_send packets_per_receive window_limited_ms";
    for field in NUMBERS.split_whitespace() {
        assert!(done[field].is_number(), "{field} in {done}");
        assert!(
            done[field].as_f64().is_some_and(|number| number >= 0.0),
            "{field} in {done}"
        );
    }
    for field in TEXTS.split_whitespace() {
        assert!(
            done[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field} in {done}"
        );
    }
    for field in MAYBE.split_whitespace() {
        assert!(done.get(field).is_some(), "{field} in {done}");
    }
}

/// What becomes of `sphx server ARGUMENTS` (`invite`, `revoke`, …) for the server whose state is in `s`.
pub(crate) fn admin(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let base = ["server", arguments[0], "--json", "--state", "s"];
    Running::start(scratch, &[&base, &arguments[1..]].concat(), &[]).end()
}

/// `sphx ARGUMENTS` of the user whose state is in `home`.
pub(crate) fn user(scratch: &Scratch, home: &str, arguments: &[&str]) -> Running {
    let home = scratch.path(home);
    fs::create_dir_all(&home).expect("a directory");
    let home = home.to_str().expect("a path");
    Running::start(
        scratch,
        arguments,
        &[("XDG_STATE_HOME", home), ("STATE_DIRECTORY", "")],
    )
}

/// A directory for a test of emulated links; `None`, saying why the test is skipped, where namespaces or TUN devices are not allowed.
#[cfg(feature = "lab")]
pub(crate) fn ground() -> Option<Scratch> {
    match sphinx_netdev::netns::probe() {
        Ok(_) => Some(Scratch::new()),
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            None
        }
    }
}

/// Whether this test may make network namespaces beside its threads; says why it is skipped if not.
#[cfg(all(feature = "lab", feature = "pep"))]
pub(crate) fn may_make_namespaces() -> bool {
    use sphinx_netdev::netns::{Access, probe};
    match probe() {
        Ok(Access::Direct) => return true,
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!(
                "needs root (user namespaces would work, but not beside threads)"
            );
        }
        Err(error) => sphinx_testing::skipped!("{error}"),
    }
    false
}
