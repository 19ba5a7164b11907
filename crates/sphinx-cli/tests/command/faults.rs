//! Peers that are absent, wrong, in the way, interrupted or killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Scratch, appears};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

/// A transfer that takes long enough to be disturbed.
const SLOW: [&str; 2] = ["--cc", "fixed:2mbit"];

fn slow_transfer(scratch: &Scratch, recv: &[&str], send: &[&str]) -> (Running, Running) {
    scratch.file("a", 20_000_000);
    let mut recv = scratch.recv(&[&["--once"], recv].concat());
    let mut sender = scratch.send(&[&SLOW, send, &["a"]].concat());
    sender.event("progress");
    recv.event("progress");
    (recv, sender)
}

#[test]
fn an_absent_peer_is_unreachable() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    drop(scratch.recv(&[]));
    let ended = scratch
        .send(&["--connect-timeout", "1s", "a"])
        .end()
        .expect(3);
    ended.error("unreachable");
}

#[test]
fn a_wrong_ticket_does_not_get_in() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let mut first = scratch.start_recv(&[]);
    let address = first.event("listening")["listen"]
        .as_str()
        .expect("an address")
        .to_owned();
    let old = fs::read_to_string(scratch.path("t")).unwrap();
    drop(first);
    // Another identity at the same address.
    let ticket = ["--ticket-file", "second"];
    let arguments = ["recv", "--json", "--listen", &address, "--output", "in"];
    let arguments = [&arguments[..], &ticket].concat();
    let mut second = Running::start(&scratch, &arguments, &[]);
    second.event("listening");
    fs::write(scratch.path("t"), old).unwrap();
    scratch.send(&["a"]).end().expect(4).error("authentication");
    assert_eq!(scratch.arrived(), Vec::<String>::new());
}

/// `ulimit -f` of who receives.
#[test]
fn a_file_that_is_too_large_for_its_owner_is_left_out() {
    let scratch = Scratch::new();
    scratch.file("a", 3_000_000);
    scratch.file("b", 1000);
    let recv = scratch.recv(&["--once"]);
    let limit = Rlimit {
        current: Some(1 << 20),
        maximum: None,
    };
    prlimit(
        Pid::from_raw(recv.pid().cast_signed()),
        Resource::Fsize,
        limit,
    )
    .expect("a limit");
    let sent = scratch.send(&["a", "b"]).end().expect(7);
    let skipped = recv.end().expect(7).event("skipped").clone();
    assert_eq!(skipped["path"], "a");
    assert!(
        skipped["reason"].to_string().contains("too large"),
        "{skipped}"
    );
    assert_eq!(sent.event("skipped")["path"], "a");
    scratch.assert_same("b", "in/b");
    assert!(!scratch.path("in/a").exists());
}

#[test]
fn an_address_in_use_is_an_io_error() {
    let scratch = Scratch::new();
    let mut first = scratch.start_recv(&[]);
    let address = first.event("listening")["listen"]
        .as_str()
        .expect("an address")
        .to_owned();
    for command in [&["recv"][..], &["perf", "server"]] {
        let options = ["--json", "--ticket-file", "u", "--listen", &address];
        let arguments = [command, &options].concat();
        Running::start(&scratch, &arguments, &[])
            .end()
            .expect(8)
            .error("local_io");
    }
}

#[test]
fn a_busy_port_names_its_holder_and_another_way() {
    let scratch = Scratch::new();
    let start = |listen: &str| {
        // Every one that listens has a ticket of its own.
        let ticket = scratch.path(&format!("t{}", listen.replace(['[', ']', ':', '.'], "-")));
        let ticket = ticket.to_str().expect("it is text");
        let arguments = ["recv", "--json", "--output", "in", "--ticket-file", ticket];
        Running::start(
            &scratch,
            &[&arguments[..], &["--listen", listen]].concat(),
            &[],
        )
    };
    let port = |running: &mut Running| {
        let listen = running.event("listening")["listen"].to_string();
        let port = listen.trim_matches('"').rsplit(':').next();
        port.expect("a port").to_owned()
    };
    let mut first = start(":0");
    let busy = port(&mut first);
    for listen in [format!(":{busy}"), format!("127.0.0.1:{busy}"), busy] {
        let ended = start(&listen).end().expect(8);
        let hint = ended.error("local_io")["hint"].to_string();
        let holder = format!("sphx (pid {}) listens there", first.pid());
        assert!(
            hint.contains(&holder) && hint.contains("--listen :0"),
            "{hint}"
        );
    }
    for free in ["0", "[::]:0", "0.0.0.0:0"] {
        assert_ne!(port(&mut start(free)), "0");
    }
}

#[test]
fn an_interrupted_sender_is_noticed() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let scratch = Scratch::new();
        let (recv, sender) = slow_transfer(&scratch, &[], &[]);
        sender.signal(signal);
        sender.end().expect(code).error("interrupted");
        recv.end().expect(6).error("cancelled");
        assert_eq!(scratch.arrived(), Vec::<String>::new());
    }
}

#[test]
fn an_interrupted_receiver_is_noticed() {
    let scratch = Scratch::new();
    let (recv, sender) = slow_transfer(&scratch, &[], &[]);
    recv.signal(Signal::INT);
    let ended = recv.end().expect(130);
    ended.error("interrupted");
    let says = &ended.stderr;
    assert!(
        says.contains("the same commands at both ends go on"),
        "{says}"
    );
    let hint = sender.end().expect(6).error("cancelled")["hint"].to_string();
    assert!(
        hint.contains("the same command goes on (with the ticket that the other end prints, if it is started again): sphx send"),
        "{hint}"
    );
    assert_eq!(scratch.arrived(), Vec::<String>::new());
}

#[test]
fn a_killed_receiver_is_lost() {
    let scratch = Scratch::new();
    let (recv, sender) = slow_transfer(&scratch, &[], &["--idle-timeout", "2s"]);
    recv.signal(Signal::KILL);
    sender.end().expect(6).error("peer_lost");
}

#[test]
fn a_killed_receiver_is_noticed_by_what_the_network_says() {
    let scratch = Scratch::new();
    // The idle timeout is longer than this test waits for anything.
    let (recv, sender) = slow_transfer(&scratch, &[], &["--idle-timeout", "300s"]);
    recv.signal(Signal::KILL);
    let ended = sender.end().expect(6);
    let error = ended.error("peer_lost");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("the peer is gone"), "{message}");
}

#[test]
fn a_port_where_nobody_listens_is_refused_at_once() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let mut recv = scratch.start_recv(&[]);
    recv.event("listening");
    drop(recv);
    let commands = [
        scratch.send(&["--connect-timeout", "300s", "a"]),
        scratch.perf_client(&["--connect-timeout", "300s", "--bytes", "1kB"]),
    ];
    for command in commands {
        let ended = command.end().expect(3);
        let error = ended.error("unreachable");
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains("nobody listens at 127.0.0.1:"),
            "{message}"
        );
    }
}

#[test]
fn a_silent_peer_is_reported_long_before_it_is_lost() {
    let scratch = Scratch::new();
    let (recv, mut sender) = slow_transfer(&scratch, &[], &["--idle-timeout", "300s"]);
    // It is there and says nothing, and the network says nothing either.
    recv.signal(Signal::STOP);
    let told = sender.event("stall");
    assert_eq!(
        (&told["side"], &told["reason"]),
        (&"path".into(), &"silence".into())
    );
    assert!(told["seconds"].as_f64() >= Some(2.0), "{told}");
    assert!(
        told["message"]
            .as_str()
            .is_some_and(|text| text.contains("nothing heard"))
    );
    recv.signal(Signal::CONT);
    // The stall ends, and the session goes on.
    assert_eq!(sender.event("stall_over")["side"], "path");
    let before = sender.event("progress")["bytes"].as_u64().expect("bytes");
    while sender.event("progress")["bytes"].as_u64().expect("bytes") == before {}
}

#[test]
fn a_killed_sender_is_lost_and_leaves_nothing() {
    let scratch = Scratch::new();
    let (recv, sender) = slow_transfer(&scratch, &["--idle-timeout", "2s"], &[]);
    sender.signal(Signal::KILL);
    let hint = recv.end().expect(6).error("peer_lost")["hint"].to_string();
    assert!(
        hint.contains("the same commands at both ends go on"),
        "{hint}"
    );
    assert_eq!(scratch.arrived(), Vec::<String>::new());
}

/// Until the process has a say in what SIGINT does to it.
fn wait_for_handler(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    let has_handler = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a mask");
        // That of SIGINT is there as a whole once there is the next one.
        mask & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    while !has_handler() {
        assert!(Instant::now() < deadline, "no handler");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn waiting_and_connecting_can_be_interrupted() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let recv = scratch.recv(&[]);
    recv.signal(Signal::INT);
    recv.end().expect(130).error("interrupted");
    // One that says nothing: the sender is still connecting.
    fs::remove_file(scratch.path("t")).unwrap();
    let silent = scratch.recv(&[]);
    silent.signal(Signal::STOP);
    // Whatever it is doing at that moment: one in fifty was once aborted by a library that had tidied up under it.
    for _ in 0..20 {
        let sender = scratch.send(&["a"]);
        wait_for_handler(sender.pid());
        sender.signal(Signal::INT);
        sender.end().expect(130).error("interrupted");
    }
}

#[test]
fn files_and_perf_do_not_mix() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let _server = scratch.perf_server(&[]);
    let ended = scratch.send(&["a"]).end();
    assert!(matches!(ended.code, 4 | 5), "exit code {}", ended.code);
}

/// A slow disk at the receiving end: a pipe that nobody reads stands for it. Each end names what holds it up.
#[test]
fn a_receiver_that_takes_nothing_is_named_by_both_ends() {
    // What the receiver's window holds, and more.
    for (bytes, reason) in [(300_000, "confirms_nothing"), (40_000_000, "takes_nothing")] {
        let scratch = Scratch::new();
        scratch.file("movie", bytes);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut recv = std::process::Command::new(env!("CARGO_BIN_EXE_sphx"));
        recv.args([
            "recv",
            "--stdout",
            "--listen",
            "127.0.0.1:0",
            "--ticket-file",
            "t",
        ])
        .current_dir(scratch.path("."))
        .stdin(std::process::Stdio::null())
        .stdout(writer)
        .stderr(std::process::Stdio::piped());
        let mut child = recv.spawn().expect("it starts");
        // Its end of the pipe is in there.
        drop(recv);
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // Whoever waits for one line may have gone.
                let _ = sender.send(line);
            }
        });
        appears(&scratch.path("t"), &mut child).expect("the ticket");
        let mut send = scratch.send(&["movie"]);
        let told = send.event("stall");
        assert_eq!(
            (&told["side"], &told["reason"]),
            (&"peer".into(), &reason.into())
        );
        let mut told = false;
        while !told {
            let line = lines.recv_timeout(PATIENCE).expect("a stall is told");
            assert!(!line.contains("has sent nothing"), "{line}");
            told = line.contains("a read or write of this end has taken");
        }
        let read = std::thread::spawn(move || std::io::copy(&mut &reader, &mut std::io::sink()));
        send.end().expect(0);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        let read = read.join().expect("no panic").expect("read");
        assert_eq!(read, bytes as u64);
    }
}
