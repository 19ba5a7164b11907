//! Every option of every command with values from the edge: no panic anywhere, and what cannot be is
//! a usage error. The list comes from the grammar itself, so a new option is in it by being there.

use std::io::Read;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Scratch, command};
use clap::{Arg, Command};

/// Nonsense wherever something else than free text is expected.
const NONSENSE: [&str; 7] = ["", "-1", "NaN", "inf", "1e300", "1 1", "%"];
/// Values that make sense for some options only.
const EDGES: [&str; 5] = [
    "0",
    "1",
    "65536",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
];
/// What the options with these kinds of values take at most and at least.
const KINDS: [(&str, &[&str]); 4] = [
    (
        "DURATION",
        &["0ms", "1ns", "5000000h", "999999999999999999h"],
    ),
    (
        "RATE",
        &["0mbit", "1bit", "18000000tbit", "999999999999999999bit"],
    ),
    ("SIZE", &["0B", "1B", "999999999999999999B", "16000000TiB"]),
    ("SHARE", &["0%", "100%", "100.1%", "0.000000000001%"]),
];
/// Values that any text is good for.
const FREE: [&str; 9] = [
    "CMD",
    "DIR",
    "F",
    "FILE",
    "HOST[:PORT]",
    "auto | [NAME=]IFACE | ADDR[,KEY=VALUE]...",
    "NAME",
    "PATH",
    "SCENARIO.toml",
];
/// What makes a command end soon whatever else it is told, so that it can be tried. An option that is
/// tried itself is left out of it.
const ENDINGS: [(&str, &[&str]); 16] = [
    ("recv", &["--listen=192.0.2.1:9", "--output=in"]),
    ("send", &["--ticket-file=absent", "a"]),
    ("cp", &["--rsh=/absent/ssh", "absent", "h:"]),
    ("perf server", &["--listen=192.0.2.1:9"]),
    ("perf client", &["--ticket-file=absent"]),
    ("demo", &["--seconds=1ms"]),
    ("codes bench", &["--n=2", "--time-ms=1", "--code=rlc"]),
    ("codes plan", &["--plr=6%", "--n=10"]),
    ("codes simulate", &["--plr=6%", "--n=10", "--blocks=2"]),
    ("lab link", &["--", "true"]),
    ("lab link set", &["loss=1%"]),
    (
        "lab path",
        &["--hop=rtt=1ms", "--hop=rtt=1ms", "--bytes=1B"],
    ),
    ("lab run", &["absent.toml"]),
    ("lab figure", &["--quick", "7"]),
    ("pep run", &["--wireless=absent"]),
    (
        "pep replay",
        &["--mobile=10.0.0.0/8", "absent.pcap", "out.pcap"],
    ),
];
/// Options that are only understood beside others.
const COMPANIONS: [(&str, &[&str]); 5] = [
    ("block-size", &["--rate=1mbit"]),
    ("message-size", &["--interval=1ms"]),
    ("interval", &["--message-size=100B"]),
    ("deadline", &["--message-size=100B", "--interval=1ms"]),
    ("radio-queue", &["--radio-rate=1mbit"]),
];
/// A command that may take a value has had time to do so by then: it is stopped.
const ENOUGH: Duration = Duration::from_secs(5);

struct Trial {
    words: Vec<String>,
    /// Whether the value has to be refused with a usage error.
    nonsense: bool,
}

/// The trials of a command and of all below it.
fn collect(command: &Command, path: &[&str], trials: &mut Vec<Trial>) {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        if below.get_name() != "help" {
            collect(below, &[path, &[below.get_name()]].concat(), trials);
        }
    }
    let line = path.join(" ");
    for arg in command.get_arguments() {
        if arg.is_hide_set() || !arg.get_action().takes_values() {
            continue;
        }
        let kind = arg.get_value_names().map_or("", |names| names[0].as_str());
        let typed = !FREE.contains(&kind) && arg.get_long().is_some();
        let special = KINDS.iter().find(|(name, _)| *name == kind);
        let values = EDGES
            .iter()
            .chain(special.map_or(&[][..], |(_, values)| values));
        let edges = values.map(|value| (value, false));
        let all = edges.chain(NONSENSE.iter().map(|value| (value, typed)));
        // One text is like another.
        let count = if typed { usize::MAX } else { 2 };
        for (value, nonsense) in all.take(count) {
            let words = words(path, arg, value, beside(&ENDINGS, &line));
            trials.push(Trial { words, nonsense });
        }
    }
}

fn beside(table: &[(&str, &'static [&'static str])], key: &str) -> &'static [&'static str] {
    let found = table.iter().find(|(name, _)| *name == key);
    found.map_or(&[], |(_, words)| words)
}

fn words(path: &[&str], arg: &Arg, value: &str, ending: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = path.iter().map(ToString::to_string).collect();
    let option = arg.get_long().map(|long| format!("--{long}="));
    if let Some(option) = &option {
        let companions = beside(&COMPANIONS, arg.get_long().unwrap_or_default());
        words.extend(companions.iter().map(ToString::to_string));
        words.push(format!("{option}{value}"));
    }
    let own = |word: &&&str| {
        option
            .as_ref()
            .is_none_or(|option| !word.starts_with(option.as_str()))
    };
    words.extend(ending.iter().filter(own).map(ToString::to_string));
    if option.is_none() {
        words.push(value.to_owned());
    }
    words
}

/// Runs the command; `None` as status if it had to be stopped.
fn attempt(directory: &Path, words: &[String], patience: Duration) -> (Option<ExitStatus>, String) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut child = command(directory, &words)
        .env("XDG_RUNTIME_DIR", directory)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut stderr = child.stderr.take().expect("it is piped");
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let deadline = Instant::now() + patience;
    let mut status = None;
    while status.is_none() && Instant::now() < deadline {
        status = child.try_wait().expect("it is our child");
        if status.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    (status, reader.join().expect("a reading thread"))
}

#[test]
fn no_value_of_any_option_makes_a_command_panic() {
    let mut trials = Vec::new();
    collect(&sphinx_cli::grammar(), &[], &mut trials);
    assert!(trials.len() > 400, "only {} trials", trials.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let scratch = Scratch::new();
        let mut faults = Vec::new();
        while let Some(Trial { words, nonsense }) = trials.get(next.fetch_add(1, Ordering::Relaxed))
        {
            // One that must refuse a value ends by itself, however busy the machine is.
            let patience = if *nonsense { PATIENCE } else { ENOUGH };
            let (status, stderr) = attempt(&scratch.path("."), words, patience);
            let code = status.map(|status| status.code());
            let fault = match code {
                _ if stderr.contains("panicked") => "panicked",
                Some(None | Some(101..=127)) => "ended like no command",
                Some(Some(2)) => continue,
                _ if *nonsense => "accepted nonsense",
                _ => continue,
            };
            let shown: String = stderr.chars().take(300).collect();
            faults.push(format!("{words:?} {fault} ({code:?}): {shown}"));
        }
        faults
    };
    let faults = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        let faults = threads
            .into_iter()
            .map(|thread| thread.join().expect("a trial"));
        faults.flatten().collect::<Vec<String>>()
    });
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// What passes the parser still has to survive being used.
#[test]
fn extreme_values_survive_a_session() {
    let scratch = Scratch::new();
    for line in [
        "--bytes 1B",
        "--bytes 1B --streams 64",
        "--bytes 1kB --idle-timeout 5000000h --connect-timeout 5000000h",
        "--bytes 1kB --cc fixed:18000tbit --epsilon 50%",
        "--time 1ns",
        "--time 1ms --rate 1bit",
        "--time 1ms --rate 1tbit --block-size 16MiB",
        "--time 1us --message-size 32B --interval 1ns",
        "--time 1ms --message-size 32B --interval 5000000h --deadline 5000000h",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let server = scratch.perf_server(&["--idle-timeout", "5000000h"]);
        // On a machine that is very busy an end may have left before the other has heard all of it.
        for ended in [scratch.perf_client(&words).end(), server.end()] {
            assert!(matches!(ended.code, 0 | 6), "{line}: {}", ended.stderr);
            assert!(
                !ended.stderr.contains("panicked"),
                "{line}: {}",
                ended.stderr
            );
        }
    }
    // These do not come to an end, and must not come to another one either.
    for line in [
        "--time 5000000h",
        "--bytes 999999999999999999B",
        "--rate 1mbit --time 1h",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let server = scratch.perf_server(&[]);
        let mut client = scratch.perf_client(&words);
        client.event("progress");
        client.signal(rustix::process::Signal::INT);
        client.end().expect(130);
        server.end().expect(6);
    }
}

#[test]
fn mistakes_in_a_file_are_told_in_one_line() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("s.toml"), "title = 'x'\nrate = = 3\n").unwrap();
    for line in [
        "lab run s.toml --json",
        "lab link --json --config s.toml -- true",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let message = ended.error("usage")["message"].as_str().expect("text");
        assert!(message.contains("line 2, column 8: "), "{message}");
        assert!(!message.contains("\\n"), "{message}");
    }
}

#[test]
fn codes_are_planned_for_possible_numbers_only() {
    let scratch = Scratch::new();
    for line in [
        "codes bench --symbol-bytes 0",
        "codes bench --n 0",
        "codes bench --n 2 --lost 3",
        "codes bench --n 32768 --symbol-bytes 65535",
        "codes plan --plr 100%",
        "codes plan --plr 6% --burst NaN",
        "codes simulate --plr 6% --blocks 18446744073709551615",
        "codes simulate --plr 6% --code window --n 512 --blocks 10000000",
        "codes simulate --plr 6% --repairs 18446744073709551615",
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (status, stderr) = attempt(&scratch.path("."), &words, PATIENCE);
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(2), "{line}: {stderr}");
    }
}
