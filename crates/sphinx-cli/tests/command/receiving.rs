//! Who may write what: what a receiver lets the holder of its ticket do.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, Running, Scratch};

#[test]
fn without_an_output_directory_each_transfer_gets_one_of_its_own() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    scratch.file(".git/hooks/pre-commit", 10);
    let arguments = [
        "recv",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--ticket-file",
        "../t",
    ];
    let here = scratch.path("in");
    let mut recv = Running::start_in(&here, &arguments);
    recv.event("listening");
    for number in [1, 2] {
        scratch.send(&["a"]).end().expect(0);
        assert_eq!(recv.event("done")["output"], format!("received-{number}"));
        scratch.assert_same("a", &format!("in/received-{number}/a"));
    }
    scratch.send(&[".git"]).end().expect(9).error("remote_io");
    recv.event("error");
    assert_eq!(scratch.arrived(), ["received-1", "received-2"]);
}

#[test]
fn names_that_begin_with_a_dot_are_asked_for() {
    let scratch = Scratch::new();
    scratch.file(".bashrc", 10);
    scratch.file("tree/.inside", 10);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&[".bashrc", "tree"]).end().expect(7);
    recv.end().expect(7);
    assert_eq!(sent.event("skipped")["path"], ".bashrc");
    scratch.assert_same("tree/.inside", "in/tree/.inside");
    assert_eq!(scratch.arrived(), ["tree"]);

    let recv = scratch.recv(&["--once", "--allow-dotfiles"]);
    scratch.send(&[".bashrc"]).end().expect(0);
    recv.end().expect(0);
    scratch.assert_same(".bashrc", "in/.bashrc");
}

#[test]
fn directories_that_exist_are_not_mixed_with_others_unless_asked() {
    let scratch = Scratch::new();
    scratch.file("tree/new", 10);
    scratch.file("in/tree/old", 10);
    for more in [&["--once"][..], &["--once", "--overwrite"]] {
        let recv = scratch.recv(more);
        // The directory counts as arrived; only the file in it is left out.
        let sent = scratch.send(&["tree"]).end().expect(7);
        recv.end().expect(7);
        let skipped = sent.event("skipped");
        assert_eq!(skipped["path"], "tree/new");
        assert!(
            skipped["reason"].to_string().contains("--merge"),
            "{skipped}"
        );
        assert!(!scratch.path("in/tree/new").exists());
    }
    let recv = scratch.recv(&["--once", "--merge"]);
    scratch.send(&["tree"]).end().expect(0);
    recv.end().expect(0);
    scratch.assert_same("tree/new", "in/tree/new");
    assert!(scratch.path("in/tree/old").exists());
}

#[test]
fn the_options_that_are_named_are_those_that_lack() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 10);
    scratch.file("in/tree/a", 11);
    for (more, named) in [
        (&["--once"][..], "--overwrite and --merge"),
        (&["--once", "--overwrite"], "--merge too"),
        (&["--once", "--merge"], "--overwrite to"),
    ] {
        let recv = scratch.recv(more);
        let sent = scratch.send(&["tree"]).end().expect(7);
        recv.end().expect(7);
        let skipped = sent.event("skipped")["reason"].to_string();
        assert!(skipped.contains(named), "{skipped}");
    }
    let recv = scratch.recv(&["--once", "--overwrite", "--merge"]);
    scratch.send(&["tree"]).end().expect(0);
    recv.end().expect(0);
    scratch.assert_same("tree/a", "in/tree/a");
}

#[test]
fn a_complete_directory_can_be_sent_again() {
    let scratch = Scratch::new();
    scratch.file("tree/d/f", 10);
    std::os::unix::fs::symlink("d/f", scratch.path("tree/l")).unwrap();
    for present in [0, 1, 1] {
        let recv = scratch.recv(&["--once"]);
        let sent = scratch.send(&["tree"]).end().expect(0);
        assert_eq!(sent.done()["files_present"], present);
        recv.end().expect(0);
    }
    // Nothing is added all the same, and what is there already still counts.
    scratch.file("tree/d/new", 10);
    scratch.file("tree/e/new", 10);
    let recv = scratch.recv(&["--once", "--overwrite"]);
    let sent = scratch.send(&["tree"]).end().expect(7);
    assert_eq!(sent.done()["files_present"], 1);
    let skipped = sent
        .events
        .iter()
        .filter(|event| event["event"] == "skipped");
    for event in skipped {
        assert!(event["reason"].to_string().contains("--merge"), "{event}");
    }
    recv.end().expect(7);
    assert!(!scratch.path("in/tree/d/new").exists());
    assert!(!scratch.path("in/tree/e").exists());
}

#[test]
fn the_umask_is_honoured() {
    let scratch = Scratch::new();
    let file = scratch.file("tree/f", 10);
    fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(scratch.path("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    let line = r#"umask 027; exec "$0" recv --json --once --listen 127.0.0.1:0 --output in --ticket-file t"#;
    let mut recv = Command::new("sh")
        .args(["-c", line, env!("CARGO_BIN_EXE_sphx")])
        .current_dir(scratch.path("."))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    recv.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    scratch.send(&["tree"]).end().expect(0);
    assert_eq!(recv.wait().unwrap().code(), Some(0));
    for (name, expected) in [("in/tree", 0o750), ("in/tree/f", 0o640)] {
        let mode = fs::metadata(scratch.path(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, expected, "{name}: {mode:o}");
    }
}

#[test]
fn transfers_that_are_too_large_are_refused() {
    let scratch = Scratch::new();
    scratch.file("large", 100_001);
    scratch.file("tree/a", 1);
    scratch.file("tree/b", 1);
    let mut recv = scratch.recv(&["--max-bytes", "100kB", "--max-entries", "2"]);
    for (path, option) in [("large", "--max-bytes"), ("tree", "--max-entries")] {
        let refused = scratch.send(&[path]).end().expect(9);
        let told = refused.error("remote_io");
        assert!(told["message"].to_string().contains(option), "{told}");
        assert!(
            told["hint"].to_string().contains("is refused again"),
            "{told}"
        );
        let error = recv.event("error");
        assert!(error["hint"].to_string().contains(option), "{error}");
    }
    // A stream is measured while it comes.
    let mut sender = scratch.send(&["--stdin", "stream"]);
    let mut stdin = sender.stdin();
    // The pipe breaks when the sender has been refused.
    while stdin.write_all(&[1; 10_000]).is_ok() {}
    sender.end().expect(9).error("remote_io");
    assert_eq!(scratch.arrived(), Vec::<String>::new());
    scratch.send(&["tree/a"]).end().expect(0);
}

#[test]
fn a_receiver_expires() {
    let scratch = Scratch::new();
    scratch.file("a", 10);
    for (once, code) in [(&[][..], 0), (&["--once"], 3)] {
        let recv = scratch.recv(&[&["--expires", "300ms"], once].concat());
        let ended = recv.end().expect(code);
        assert!(ended.stderr.contains("300"), "{}", ended.stderr);
    }
    // A transfer that has begun goes on beyond `--expires`.
    scratch.file("slow", 500_000);
    let mut recv = scratch.recv(&["--expires", "2s"]);
    let mut sender = scratch.send(&["--cc", "fixed:1mbit", "slow"]);
    sender.event("progress");
    sender.end().expect(0);
    recv.event("done");
    recv.end().expect(0);
    scratch.assert_same("slow", "in/slow");
}

#[test]
fn who_comes_after_the_time_is_refused_at_once() {
    let scratch = Scratch::new();
    scratch.file("a", 10);
    // Long enough for the first one to connect.
    let recv = scratch.recv(&["--expires", "2s"]);
    let mut first = scratch.send(&["--stdin", "stream"]);
    let mut stdin = first.stdin();
    stdin.write_all(&[1; 10]).unwrap();
    first.event("progress");
    // It began before: its time is over then, however slow this machine is, and the first one has not come to its end.
    thread::sleep(Duration::from_secs(2));
    let late = scratch.send(&["a"]).end().expect(6);
    let error = late.error("cancelled");
    assert!(
        error["message"].to_string().contains("--expires is over"),
        "{error}"
    );
    drop(stdin);
    first.end().expect(0);
    recv.end().expect(0);
    assert_eq!(scratch.arrived(), ["stream"]);
}

/// A receiver on a terminal that `script` makes; and what appears there. Nothing where there is no
/// `script`.
fn on_a_terminal(scratch: &Scratch, more: &str) -> Option<(Child, Receiver<Vec<u8>>)> {
    let line = format!(
        "exec {} recv --once --listen 127.0.0.1:0 --output in --ticket-file t {more}",
        env!("CARGO_BIN_EXE_sphx")
    );
    let script = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(scratch.path("."))
        .env("TERM", "dumb")
        .env("SHELL", "/bin/sh")
        .env_remove("SPHX_TICKET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut recv) = script else {
        sphinx_testing::skipped!("there is no script");
        return None;
    };
    let mut terminal = recv.stdout.take().expect("it is piped");
    let (sender, shown) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = [0; 1000];
        while let Ok(read @ 1..) = terminal.read(&mut bytes) {
            if sender.send(bytes[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    Some((recv, shown))
}

/// Waits until `text` appears.
fn expect(terminal: &Receiver<Vec<u8>>, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        match terminal.recv_timeout(PATIENCE) {
            Ok(bytes) => seen += &String::from_utf8_lossy(&bytes),
            Err(_) => panic!("no '{text}' in {seen}"),
        }
    }
}

#[test]
fn on_a_terminal_it_asks_before_the_first_byte() {
    for (answer, code, sent) in [("y\n", 0, 0), ("n\n", 6, 6)] {
        let scratch = Scratch::new();
        // More than is sent without consent.
        scratch.file("a", 3_000_000);
        let Some((mut recv, terminal)) = on_a_terminal(&scratch, "") else {
            return;
        };
        expect(&terminal, "--ticket-file");
        let mut sender = scratch.send(&["a"]);
        expect(&terminal, "Receive 1 entry, 2.86 MiB, from 127.0.0.1");
        assert_eq!(scratch.arrived(), Vec::<String>::new());
        assert_eq!(sender.event("waiting")["for"], "consent");
        let mut keyboard = recv.stdin.take().unwrap();
        keyboard.write_all(answer.as_bytes()).unwrap();
        sender.end().expect(sent);
        assert_eq!(recv.wait().unwrap().code(), Some(code));
        assert_eq!(scratch.arrived().len(), usize::from(code == 0));
    }
    let scratch = Scratch::new();
    scratch.file("a", 10);
    let Some((mut recv, terminal)) = on_a_terminal(&scratch, "--yes") else {
        return;
    };
    expect(&terminal, "--ticket-file");
    scratch.send(&["a"]).end().expect(0);
    assert_eq!(recv.wait().unwrap().code(), Some(0));
    scratch.assert_same("a", "in/a");
}

#[test]
fn a_second_sender_is_refused_at_once() {
    let scratch = Scratch::new();
    scratch.file("a", 10);
    let recv = scratch.recv(&["--once"]);
    let mut first = scratch.send(&["--stdin", "stream"]);
    let mut stdin = first.stdin();
    stdin.write_all(&[1; 10]).unwrap();
    first.event("progress");
    let second = scratch.send(&["a"]).end().expect(6);
    let error = second.error("cancelled");
    assert!(
        error["message"].to_string().contains("one session only"),
        "{error}"
    );
    drop(stdin);
    first.end().expect(0);
    recv.end().expect(0);
    assert_eq!(scratch.arrived(), ["stream"]);
}
