//! The command line itself: what needs no session.

use std::process::Stdio;

use crate::common::{Running, Scratch, command};

/// Whether this build is without a command.
fn is_omitted(name: &str) -> bool {
    cfg!(not(feature = "lab")) && ["codes", "demo", "lab"].contains(&name)
}

/// A small build lists only what it has, and says of the rest how to get it.
#[cfg(not(any(feature = "lab", feature = "pep")))]
#[test]
fn what_is_omitted_says_so() {
    let scratch = Scratch::new();
    for line in [
        "codes plan --json --plr 6%",
        "demo --json",
        "lab --json",
        "lab link --help --json",
        "pep run --json",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let error = ended.error("usage");
        let message = error["message"].to_string();
        assert!(message.contains("not part of this build"), "{message}");
        assert!(error["hint"].to_string().contains("cargo build"));
    }
    let help = command(&scratch.path("in"), &["--help"])
        .output()
        .expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    for name in ["codes", "demo", "lab", "pep"] {
        assert!(!help.contains(&format!("\n  {name} ")), "{help}");
        assert!(!help.contains(&format!("sphx {name}")), "{help}");
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
        "perf client --json sphx1x --block-size 1kB",
        "perf client --json sphx1x --rate 1mbit --block-size 5",
        "perf client --json sphx1x --message-size 200B --interval 20ms --bundle 9",
        "perf client --json sphx1x --message-size 200B --interval 20ms --bundle 1 --profile bulk",
        "perf client --json sphx1x --bytes 1MB --bundle 1",
        "perf client --json sphx1x --message-size 66kB --interval 20ms --mode live",
        "perf client --json sphx1x --message-size 1kB --interval 20ms --mode datagram --streams 2",
        "perf client --json sphx1x --message-size 1kB --interval 20ms --deadline 900us",
        "perf client --json sphx1x --message-size 17MB --interval 20ms --mode message",
        "perf client --json sphx1x --mode live",
        "demo --json --loss 7",
        "demo --json --loss 96%",
        "demo --json --rate 5MB/s",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        ended.error("usage");
    }
}

#[test]
fn limits_are_told_in_words() {
    let scratch = Scratch::new();
    let messages = "perf client --json sphx1x --message-size 1kB --interval 20ms";
    let large = "perf client --json sphx1x --interval 20ms --message-size";
    for (line, limit) in [
        (format!("{messages} --mode live --deadline 900us"), "1ms"),
        (format!("{messages} --mode live --deadline 0ms"), "1ms"),
        (format!("{large} 17MB --mode message"), "16777216"),
        (format!("{large} 66kB --mode live"), "65507"),
        (format!("{large} 66kB --mode datagram"), "65507"),
        (format!("{messages} --bundle 9"), "at most 8"),
        (
            format!("{messages} --bundle 1 --profile bulk"),
            "small messages",
        ),
        (
            "perf client --json sphx1x --bytes 1MB --bundle 1".into(),
            "small messages",
        ),
        (
            "perf client --json sphx1x --mode live".into(),
            "--message-size",
        ),
        (
            "perf client --json sphx1x --memory 3MiB".into(),
            "at least 4MiB",
        ),
        ("recv --json --memory 3MiB".into(), "at least 4MiB"),
        ("perf client --json sphx1x --streams 10001".into(), "10000"),
        (format!("{messages} --streams 257"), "256"),
        (
            "perf client --json sphx1x --profile live".into(),
            "--message-size",
        ),
        (
            format!("{messages} --profile live --mode message"),
            "--mode live",
        ),
        ("send --json --profile live t a".into(), "with a deadline"),
        (
            "perf server --json --profile live".into(),
            "with a deadline",
        ),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains(limit), "{line}: {message}");
    }
}

#[test]
fn a_bare_number_is_refused_with_the_unit_that_was_probably_meant() {
    let scratch = Scratch::new();
    for (line, probable) in [
        (
            "perf client sphx1x --message-size 100B --interval 20",
            "20ms?",
        ),
        (
            "perf client sphx1x --message-size 100B --interval 20ms --deadline 50",
            "50ms?",
        ),
        (
            "perf client sphx1x --message-size 100 --interval 20ms",
            "100B?",
        ),
        ("perf client sphx1x --bytes 1000", "1000B?"),
        ("perf client sphx1x --time 10", "10s?"),
        ("perf client sphx1x --rate 20 --block-size 100kB", "20mbit?"),
        (
            "perf client sphx1x --rate 20M --block-size 100kB",
            "20Mbit?",
        ),
        (
            "perf client sphx1x --rate 20mbit --block-size 100k",
            "100kB?",
        ),
        ("perf client sphx1x --epsilon 1", "1%?"),
        ("perf client sphx1x --cc fixed:190", "190mbit?"),
        ("recv --idle-timeout 5", "5s?"),
        ("send --connect-timeout 5 --ticket-file t a", "5s?"),
        ("demo --rtt 10", "10ms?"),
        ("demo --rate 200", "200mbit?"),
        ("demo --loss 6", "6%?"),
        ("demo --seconds 8", "8s?"),
        ("codes plan --plr 6", "6%?"),
        ("codes simulate --plr 1", "1%?"),
        ("lab link --rtt 100 -- true", "100ms?"),
        ("lab link --rate 20 -- true", "20mbit?"),
        ("lab link --jitter 2 -- true", "2ms?"),
        ("lab link --loss 5 -- true", "5%?"),
        ("lab link --policer 1mbit,3000 -- true", "3000B?"),
        ("lab link --blackout 10-12 -- true", "10s?"),
        ("lab link --return delay=5 -- true", "5ms?"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        if is_omitted(words[0]) {
            continue;
        }
        let output = command(&scratch.path("."), &words)
            .output()
            .expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        let hint = format!("did you mean {probable}");
        assert!(error.contains(&hint), "{line}: {error}");
    }
}

/// Of keys, of their ranges, and of what does not go with the mode.
#[test]
fn the_papers_mode_takes_its_keys_only() {
    let scratch = Scratch::new();
    for (options, words) in [
        ("--paper=key=1", "key: expected code, n, symbol"),
        ("--paper=n", "expected KEY=VALUE"),
        ("--paper=n=9,n=9", "n is given twice"),
        ("--paper=code=raptorq", "expected srlt, lt, rs or fft-rs"),
        ("--paper=n=1", "n: from 2 to"),
        ("--paper=symbol=1163", "symbol: from 16 to 1162"),
        ("--paper=threshold=0.2", "threshold: from 0.3 to 0.99"),
        ("--paper=delta=60%", "delta: at most 50%"),
        ("--paper=period=49", "period: from 50"),
        ("--paper=part=0%", "part: above 0"),
        ("--paper=timer=61s", "timer: from 1ms to 60s"),
        ("--paper=window=0", "window: from 1 to 4096"),
        ("--paper=code=rs,redundancy=100%,n=200", "code=rs"),
        ("--paper=icm=on", "expected both, block, symbol or off"),
        ("--paper --codec rlc", "cannot be used with"),
        ("--paper --profile bulk", "cannot be used with"),
        ("--paper --icm off", "cannot be used with"),
        ("--paper --epsilon 1%", "cannot be used with"),
        ("--paper --cc cubic", "a window of its own"),
        ("--paper --ecn l4s", "not with --ecn l4s"),
        ("--ecn l4s --cc cubic", "--ecn l4s is for --cc bbr"),
    ] {
        let line = format!("perf client --ticket-file t {options}");
        let line: Vec<&str> = line.split(' ').collect();
        let output = command(&scratch.path("."), &line)
            .output()
            .expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {error}");
        assert!(error.contains(words), "{options}: {error}");
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
        ("perf client --help", "  scavenger   what nobody else wants"),
        ("demo --help", "--loss"),
        ("--version", concat!("sphx ", env!("CARGO_PKG_VERSION"))),
        ("-V", concat!("sphx ", env!("CARGO_PKG_VERSION"))),
        (
            "perf client -V",
            concat!("sphx ", env!("CARGO_PKG_VERSION")),
        ),
        ("lab link -V", concat!("sphx ", env!("CARGO_PKG_VERSION"))),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        if is_omitted(words[0]) {
            continue;
        }
        let output = command(&scratch.path("."), &words)
            .output()
            .expect("the binary starts");
        assert_eq!(output.status.code(), Some(0), "{line}");
        let text = String::from_utf8(output.stdout).expect("help is text");
        assert!(text.contains(expected), "{line}: {text}");
        assert!(
            !expected.starts_with("sphx ") || text.starts_with(expected),
            "{line}: {text}"
        );
        let engine = text.split("Engine:").nth(1).unwrap_or_default();
        assert!(!engine.contains("not built"), "{line}: {engine}");
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
