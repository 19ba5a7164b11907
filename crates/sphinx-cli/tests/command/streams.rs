//! What has no size beforehand: standard input, pipes, standard output.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::common::{Running, Scratch, appears, command};

#[test]
fn standard_input_arrives_as_a_file() {
    let scratch = Scratch::new();
    scratch.file("more", 10);
    let arguments = [
        (&["--stdin", "x.tar"][..], "in/x.tar"),
        (&["--", "-"], "in/stdin"),
        (&["--stdin", "with", "more"], "in/with"),
    ];
    for (more, arrived) in arguments {
        let recv = scratch.recv(&["--once"]);
        let mut sender = scratch.send(more);
        let mut stdin = sender.stdin();
        let expected: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 5) as u8).collect();
        let (first, rest) = expected.split_at(1);
        stdin.write_all(first).unwrap();
        sender.event("progress");
        stdin.write_all(rest).unwrap();
        drop(stdin);
        let sent = sender.end().expect(0);
        recv.end().expect(0);
        assert!(fs::read(scratch.path(arrived)).unwrap() == expected);
        assert!(sent.done()["bytes"].as_u64().unwrap() >= 3_000_000);
        let hash = blake3::hash(&expected).to_hex().to_string();
        assert!(
            sent.events
                .iter()
                .any(|event| event["blake3"] == hash.as_str())
        );
    }
}

#[test]
fn a_pipe_that_is_named_is_read() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 100_000);
    let recv = scratch.recv(&["--once"]);
    let made = Command::new("mkfifo").arg(scratch.path("pipe")).status();
    assert!(made.unwrap().success());
    let pipe = scratch.path("pipe");
    let writer = thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(pipe).unwrap();
        pipe.write_all(&[7; 300_000]).unwrap();
    });
    scratch.send(&["pipe", "tree"]).end().expect(0);
    recv.end().expect(0);
    writer.join().unwrap();
    assert!(fs::read(scratch.path("in/pipe")).unwrap() == [7; 300_000]);
    scratch.assert_same("tree/a", "in/tree/a");

    // As shells name them.
    let recv = scratch.recv(&["--once"]);
    let line = r#"exec "$0" send --json --ticket-file t /dev/fd/9 9<&0"#;
    let mut sender = Command::new("sh")
        .args(["-c", line, env!("CARGO_BIN_EXE_sphx")])
        .current_dir(scratch.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    sender
        .stdin
        .take()
        .unwrap()
        .write_all(b"through the pipe")
        .unwrap();
    assert_eq!(sender.wait().unwrap().code(), Some(0));
    recv.end().expect(0);
    assert_eq!(fs::read(scratch.path("in/9")).unwrap(), b"through the pipe");
}

#[test]
fn what_cannot_be_sent_is_refused_before_connecting() {
    let scratch = Scratch::new();
    let ended = scratch.send(&["/dev/zero"]).end().expect(8);
    assert!(
        ended.error("local_io")["hint"]
            .to_string()
            .contains("--stdin")
    );
    for arguments in [
        &["--stdin", "a/b"][..],
        &["--stdin", ".."],
        &["--stdin", "x", "--", "-"],
    ] {
        scratch.send(arguments).end().expect(2).error("usage");
    }
    let arguments = ["send", "--json", "-", "--stdin", "x"];
    Running::start(&scratch, &arguments, &[])
        .end()
        .expect(2)
        .error("usage");
}

#[test]
fn a_file_or_a_stream_goes_to_standard_output() {
    let scratch = Scratch::new();
    scratch.file("a", 3_000_000);
    for stdin in [false, true] {
        let arguments = [
            "recv",
            "--stdout",
            "--listen",
            "127.0.0.1:0",
            "--ticket-file",
            "t",
        ];
        let _ = fs::remove_file(scratch.path("t"));
        let mut recv = command(&scratch.path("."), &arguments).spawn().unwrap();
        appears(&scratch.path("t"), &mut recv).unwrap();
        let mut stdout = recv.stdout.take().unwrap();
        match stdin {
            false => {
                let sender = scratch.send(&["a"]);
                let mut arrived = Vec::new();
                stdout.read_to_end(&mut arrived).unwrap();
                assert!(arrived == fs::read(scratch.path("a")).unwrap());
                sender.end().expect(0);
            }
            true => {
                let mut sender = scratch.send(&["--stdin", "x"]);
                let mut stdin = sender.stdin();
                // What is there arrives although the end is not there yet.
                let mut piece = [0; 5];
                for text in [b"first", b"after"] {
                    stdin.write_all(text).unwrap();
                    stdout.read_exact(&mut piece).unwrap();
                    assert_eq!(&piece, text);
                }
                drop(stdin);
                assert_eq!(stdout.read(&mut piece).unwrap(), 0);
                sender.end().expect(0);
            }
        }
        assert_eq!(recv.wait().unwrap().code(), Some(0));
    }
    assert_eq!(scratch.arrived(), Vec::<String>::new());
}

#[test]
fn more_than_one_file_does_not_go_to_standard_output() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    scratch.file("b", 1000);
    let arguments = [
        "recv",
        "--stdout",
        "--listen",
        "127.0.0.1:0",
        "--ticket-file",
        "t",
    ];
    let mut recv = command(&scratch.path("."), &arguments).spawn().unwrap();
    appears(&scratch.path("t"), &mut recv).unwrap();
    let sent = scratch.send(&["a", "b"]).end().expect(7);
    assert_eq!(sent.event("skipped")["path"], "b");
    let output = recv.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stdout == fs::read(scratch.path("a")).unwrap());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("skipped b"), "{text}");
}
