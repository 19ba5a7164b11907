//! The command line itself: what needs no session.

mod common;

use std::process::Stdio;

use common::{Running, Scratch, command};

#[test]
fn what_is_not_built_says_so() {
    let scratch = Scratch::new();
    for line in [
        "recv --json --io xdp:lo",
        "recv --json --workers 2",
        "perf client --json --profile live sphx1x",
        "perf client --json --profile live sphx1x",
        "send --json --cc cubic --ticket-file t a",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains("is not built yet"), "{line}: {message}");
    }
}

#[test]
fn mistakes_are_usage_errors() {
    let scratch = Scratch::new();
    for line in [
        "--json",
        "recv --json --bogus",
        "recv --json --listen nowhere",
        "recv --json --idle-timeout soon",
        "send --json",
        "send --json only-a-path",
        "perf --json",
        "perf client --json",
        "perf client --json sphx1x --bytes 1kB --time 1s",
        "perf client --json sphx1x --rate 1mbit",
        "perf client --json sphx1x --rate 1mbit --block-size 5",
        "demo --json --loss 7",
        "demo --json --rate 5MB/s",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        ended.error("usage");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let scratch = Scratch::new();
    for (line, expected) in [
        ("--help", "Examples:"),
        ("recv --help", "--ticket-file"),
        ("send --help", "SPHX_TICKET"),
        ("perf client --help", "--block-size"),
        ("demo --help", "--loss"),
        ("--version", env!("CARGO_PKG_VERSION")),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = command(&scratch.path("."), &words)
            .output()
            .expect("the binary starts");
        assert_eq!(output.status.code(), Some(0), "{line}");
        let text = String::from_utf8(output.stdout).expect("help is text");
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let scratch = Scratch::new();
    for line in ["--help", "recv --json --io xdp:lo"] {
        let words: Vec<&str> = line.split(' ').collect();
        let mut child = command(&scratch.path("."), &words)
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        drop(child.stdout.take());
        let code = child.wait().expect("it ends").code();
        assert!(matches!(code, Some(0 | 2)), "{line}: {code:?}");
    }
}

#[test]
fn sources_are_checked_before_connecting() {
    let scratch = Scratch::new();
    let ended = Running::start(
        &scratch,
        &["send", "--json", "--ticket-file", "t", "missing"],
        &[],
    );
    let ended = ended.end().expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(message.contains("missing"), "{message}");
}

#[test]
fn a_ticket_file_that_is_missing_is_named() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let ended = scratch.send(&["a"]).end().expect(8);
    let error = ended.error("local_io");
    assert!(error["message"].to_string().contains("ticket file t"));
    assert!(error["hint"].to_string().contains("--ticket-file"));
    // A directory is no ticket file either.
    let arguments = ["send", "--json", "--ticket-file", "in", "a"];
    let ended = Running::start(&scratch, &arguments, &[]).end().expect(8);
    assert!(
        ended.error("local_io")["hint"]
            .to_string()
            .contains("sphx1")
    );
}

#[test]
fn an_output_that_cannot_be_written_to_stops_recv_at_once() {
    let scratch = Scratch::new();
    scratch.file("plain", 1);
    for output in ["plain", "plain/below", "/proc/sphx"] {
        let arguments = [
            "recv",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--output",
            output,
        ];
        let ended = Running::start(&scratch, &arguments, &[]).end().expect(8);
        ended.error("local_io");
    }
}
