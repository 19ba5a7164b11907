//! Standard output and standard error that nobody reads, or no longer, and the ticket in a pipe.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeWriter, Read, Write, pipe};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Scratch, command};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Their reports are some 300 kB: several pipes of 64 KiB.
const FILES: usize = 2000;

/// A child that is killed when dropped. Its outputs are where the test has put them.
struct Plain(Child);

impl Plain {
    /// `sphx` with these outputs; the test's own copies of their ends are closed.
    fn start(scratch: &Scratch, arguments: &[&str], stdout: Stdio, stderr: Stdio) -> Self {
        let mut command = command(&scratch.path("."), arguments);
        Self(
            command
                .stdout(stdout)
                .stderr(stderr)
                .spawn()
                .expect("the binary starts"),
        )
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it is our child");
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `sphx recv` into `in` with the ticket in `t`; returns when it listens.
fn recv(scratch: &Scratch, more: &[&str], stdout: Stdio, stderr: Stdio) -> Plain {
    let base = [
        "recv",
        "--listen",
        "127.0.0.1:0",
        "--output",
        "in",
        "--ticket-file",
        "t",
    ];
    let mut running = Plain::start(scratch, &[&base[..], more].concat(), stdout, stderr);
    let deadline = Instant::now() + PATIENCE;
    while !ticket_is_there(&scratch.path("t")) {
        assert_eq!(running.0.try_wait().expect("it is our child"), None);
        assert!(Instant::now() < deadline, "no ticket");
        thread::sleep(Duration::from_millis(5));
    }
    running
}

fn ticket_is_there(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|ticket| ticket.ends_with('\n'))
}

fn many_files(scratch: &Scratch, name: &str) {
    for n in 0..FILES {
        scratch.file(&format!("{name}/a-file-with-a-name-of-some-length-{n}"), 3);
    }
}

fn arrived(scratch: &Scratch, name: &str) -> usize {
    fs::read_dir(scratch.path("in").join(name)).map_or(0, Iterator::count)
}

#[test]
fn transfers_beside_unread_reports_complete() {
    for (flag, events) in [("--json", true), ("-v", false)] {
        let scratch = Scratch::new();
        many_files(&scratch, "tree");
        scratch.file("single", 100_000);
        let (unread, end) = pipe().expect("a pipe");
        let (stdout, stderr) = match events {
            true => (end.into(), Stdio::null()),
            false => (Stdio::null(), end.into()),
        };
        let mut receiver = recv(&scratch, &[flag], stdout, stderr);
        let one = scratch.send(&["tree"]);
        scratch.send(&["single"]).end().expect(0);
        one.end().expect(0);
        assert_eq!(arrived(&scratch, "tree"), FILES, "{flag}");
        scratch.assert_same("single", "in/single");
        // An unread pipe does not keep it from ending either.
        receiver.signal(Signal::INT);
        assert_eq!(receiver.end().code(), Some(130));
        drop(unread);
    }
}

/// Names so long, and no text either, that few files make many bytes of reports.
#[test]
fn too_many_unread_reports_fail_their_own_transfer_only() {
    let scratch = Scratch::new();
    let mut directory = scratch.path("tree");
    for _ in 0..2 {
        directory.push(OsStr::from_bytes(&[0xff; 250]));
    }
    fs::create_dir_all(&directory).expect("a directory");
    for n in 0..2500 {
        let name = [&[0xff; 245][..], n.to_string().as_bytes()].concat();
        fs::write(directory.join(OsStr::from_bytes(&name)), b"").expect("a file");
    }
    scratch.file("single", 100_000);
    let (unread, end) = pipe().expect("a pipe");
    let waits = ["--json", "--idle-timeout", "2s"];
    let _receiver = recv(&scratch, &waits, end.into(), Stdio::null());
    let one = scratch.send(&["tree"]);
    scratch.send(&["single"]).end().expect(0);
    let message = one.end().expect(9).error("remote_io")["message"].to_string();
    assert!(
        message.contains("nobody reads standard output"),
        "{message}"
    );
    drop(unread);
}

#[test]
fn reports_that_are_read_late_are_whole() {
    let scratch = Scratch::new();
    many_files(&scratch, "tree");
    let (read, end) = pipe().expect("a pipe");
    let mut receiver = recv(&scratch, &["--json", "--once"], end.into(), Stdio::null());
    scratch.send(&["tree"]).end().expect(0);
    let lines = BufReader::new(read).lines();
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line.expect("it is text")).expect("whole lines"))
        .collect();
    assert_eq!(receiver.end().code(), Some(0));
    let files = events.iter().filter(|event| event["event"] == "file");
    assert_eq!(files.count(), FILES);
    assert_eq!(events.last().expect("events")["event"], "done");
}

#[test]
fn progress_that_is_not_read_is_dropped_and_counted() {
    let scratch = Scratch::new();
    let mut server = scratch.perf_server(&[]);
    let (mut read, end) = pipe().expect("a pipe");
    fill(&end);
    let arguments = [
        "perf",
        "client",
        "--json",
        "--ticket-file",
        "t",
        "--time",
        "2s",
    ];
    let arguments = [&arguments[..], &["--interval-report", "10ms"]].concat();
    let mut client = Plain::start(&scratch, &arguments, end.into(), Stdio::null());
    server.event("done");
    server.end().expect(0);
    let mut text = String::new();
    read.read_to_string(&mut text).expect("it is text");
    assert_eq!(client.end().code(), Some(0));
    let last: Value = serde_json::from_str(text.lines().last().expect("lines")).expect("JSON");
    assert_eq!(last["event"], "done");
    let dropped = last["progress_dropped"].as_u64().expect("a number");
    let reported = text
        .lines()
        .filter(|line| line.contains("\"progress\""))
        .count();
    assert!(
        dropped > 0 && reported > 0,
        "{dropped} dropped, {reported} not"
    );
}

#[test]
fn interrupted_beside_unread_reports_it_ends() {
    let scratch = Scratch::new();
    scratch.file("a", 20_000_000);
    let mut receiver = scratch.recv(&["--once"]);
    let (unread, end) = pipe().expect("a pipe");
    // The pipe is full before the first report is written.
    fill(&end);
    let arguments = [
        "send",
        "--json",
        "--ticket-file",
        "t",
        "--cc",
        "fixed:2mbit",
        "a",
    ];
    let mut sender = Plain::start(&scratch, &arguments, end.into(), Stdio::null());
    receiver.event("progress");
    sender.signal(Signal::INT);
    assert_eq!(sender.end().code(), Some(130));
    receiver.end().expect(6);
    drop(unread);
}

/// Writes until the pipe takes no more.
fn fill(pipe: &PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(pipe).expect("flags");
    rustix::fs::fcntl_setfl(pipe, flags | rustix::fs::OFlags::NONBLOCK).expect("flags");
    loop {
        match rustix::io::write(pipe, &[b'\n'; 4096]) {
            Ok(_) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    rustix::fs::fcntl_setfl(pipe, flags).expect("flags");
}

#[test]
fn without_a_reader_of_reports_transfers_go_on() {
    let scratch = Scratch::new();
    many_files(&scratch, "tree");
    scratch.file("single", 100_000);
    let (read, end) = pipe().expect("a pipe");
    let mut receiver = recv(&scratch, &["--json"], end.into(), Stdio::piped());
    let mut first = String::new();
    let mut head = BufReader::new(read);
    head.read_line(&mut first).expect("a line");
    assert!(first.contains("listening"), "{first}");
    drop(head);
    scratch.send(&["tree"]).end().expect(0);
    scratch.send(&["single"]).end().expect(0);
    assert_eq!(arrived(&scratch, "tree"), FILES);
    scratch.assert_same("single", "in/single");
    receiver.signal(Signal::INT);
    assert_eq!(receiver.end().code(), Some(130));
    let mut told = String::new();
    let mut stderr = receiver.0.stderr.take().expect("it is piped");
    stderr.read_to_string(&mut told).expect("it is text");
    assert!(told.contains("standard output is closed"), "{told}");
}

#[test]
fn a_ticket_that_cannot_be_written_is_an_io_error() {
    let scratch = Scratch::new();
    for listener in [&["recv"][..], &["perf", "server"]] {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = command(&scratch.path("."), listener)
            .args(["--listen", "127.0.0.1:0"])
            .stdout(full)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(8), "{stderr}");
        assert!(stderr.contains("the ticket"), "{stderr}");
    }
}

#[test]
fn what_is_only_shown_may_be_left_unread_but_not_be_lost() {
    let scratch = Scratch::new();
    let new = [
        "ticket",
        "new",
        "a",
        "--json",
        "--state",
        "s",
        "--ticket-file",
        "t",
    ];
    let new = [&new[..], &["--advertise", "a.example:1"]].concat();
    Running::start(&scratch, &new, &[]).end().expect(0);
    for words in [
        &["--help"][..],
        &["config", "show"],
        &["ticket", "list", "--state", "s"],
    ] {
        let (read, unread) = pipe().expect("a pipe");
        drop(read);
        let full = File::options().write(true).open("/dev/full");
        let full = full.expect("it is there");
        for (output, code) in [(Stdio::from(unread), 0), (full.into(), 8)] {
            let mut shown = Plain::start(&scratch, words, output, Stdio::null());
            assert_eq!(shown.end().code(), Some(code), "{words:?}");
        }
    }
}

#[test]
fn reports_that_cannot_be_written_are_an_io_error() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let receiver = scratch.recv(&["--once"]);
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there")
    };
    let arguments = ["send", "--json", "--ticket-file", "t", "a"];
    let mut sender = Plain::start(&scratch, &arguments, full().into(), Stdio::null());
    assert_eq!(sender.end().code(), Some(8));
    // The file has arrived all the same.
    receiver.end().expect(0);
    scratch.assert_same("a", "in/a");
}

/// The line of `sphx recv --help`, literally.
const DOCUMENTED: &str = "sphx recv --once -o in --listen 127.0.0.1:0 | sphx send - a";

#[test]
fn the_documented_pipe_carries_the_ticket() {
    let scratch = Scratch::new();
    scratch.file("a", 100_000);
    let binary = Path::new(env!("CARGO_BIN_EXE_sphx"));
    let path = std::env::var("PATH").unwrap_or_default();
    let directory = binary.parent().expect("a directory").display();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", DOCUMENTED])
        .current_dir(scratch.path("."))
        .env("PATH", format!("{directory}:{path}"))
        .env("XDG_CACHE_HOME", scratch.path("cache"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut shell = Plain(shell.spawn().expect("a shell"));
    assert_eq!(shell.end().code(), Some(0));
    scratch.assert_same("a", "in/a");
}

#[test]
fn who_reads_the_ticket_to_the_end_of_the_pipe_gets_it() {
    let scratch = Scratch::new();
    scratch.file("a", 100_000);
    let (mut read, end) = pipe().expect("a pipe");
    let arguments = ["recv", "--listen", "127.0.0.1:0", "--output", "in"];
    let mut receiver = Plain::start(&scratch, &arguments, end.into(), Stdio::null());
    let (sender, line) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        sender.send(read.read_to_string(&mut text).map(|_| text))
    });
    let ticket = line.recv_timeout(PATIENCE).expect("the pipe ends");
    let ticket = ticket.expect("it is text");
    assert!(ticket.starts_with("sphx1") && ticket.ends_with('\n'));
    assert_eq!(ticket.lines().count(), 1);
    // The receiver still serves, although nobody reads its output.
    let environment = [("SPHX_TICKET", ticket.trim())];
    let sender = Running::start(&scratch, &["send", "--json", "a"], &environment);
    sender.end().expect(0);
    scratch.assert_same("a", "in/a");
    receiver.signal(Signal::INT);
    assert_eq!(receiver.end().code(), Some(130));
}

#[test]
fn a_ticket_is_one_line_of_an_input_that_stays_open() {
    let scratch = Scratch::new();
    scratch.file("a", 100_000);
    let receiver = scratch.recv(&["--once"]);
    let ticket = fs::read_to_string(scratch.path("t")).expect("a ticket");
    let mut command = command(&scratch.path("."), &["send", "-", "a"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut sender = Plain(command.spawn().expect("the binary starts"));
    let mut stdin = sender.0.stdin.take().expect("it is piped");
    stdin.write_all(ticket.as_bytes()).expect("it reads");
    assert_eq!(sender.end().code(), Some(0));
    receiver.end().expect(0);
    scratch.assert_same("a", "in/a");
    drop(stdin);
}

#[test]
fn an_input_without_a_ticket_is_a_usage_error() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let endless = "x".repeat(5000);
    for (input, reason) in [
        ("", "is empty"),
        ("\nsphx1abc\n", "is empty"),
        ("hello\n", "no ticket"),
        (&endless, "longer than any ticket"),
    ] {
        let mut sender = Running::start(&scratch, &["send", "--json", "-", "a"], &[]);
        sender.input(input);
        let ended = sender.end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn progress_is_a_line_now_and_then() {
    let scratch = Scratch::new();
    scratch.file("a", 2_000_000);
    let receiver = scratch.recv(&["--once"]);
    let slow = ["--cc", "fixed:10mbit", "--interval-report", "100ms"];
    let arguments = [&["send", "--ticket-file", "t"], &slow[..], &["a"]].concat();
    let sent = Running::start(&scratch, &arguments, &[]).end().expect(0);
    receiver.end().expect(0);
    let lines: Vec<&str> = sent.stderr.lines().collect();
    let shown = |line: &&&str| line.contains(" %, ") && line.contains("of 1.91 MiB");
    assert!(lines.iter().filter(shown).count() >= 3, "{}", sent.stderr);
    assert!(sent.stderr.contains(" left"), "{}", sent.stderr);

    let receiver = scratch.recv(&["--once", "--overwrite"]);
    let arguments = [&arguments[..], &["-q"]].concat();
    let sent = Running::start(&scratch, &arguments, &[]).end().expect(0);
    receiver.end().expect(0);
    assert_eq!(sent.stderr, "");
}
