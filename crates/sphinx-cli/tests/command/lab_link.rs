//! `sphx lab link` as people use it. Skipped, saying why, where namespaces or TUN devices are not
//! allowed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Ended, PATIENCE, Running, Scratch, ground};
use rustix::process::Signal;
use serde_json::Value;

fn start(scratch: &Scratch, arguments: &[&str]) -> Running {
    // Links are found below this directory.
    let runtime = scratch.path(".").to_string_lossy().into_owned();
    let environment = [
        ("XDG_RUNTIME_DIR", runtime.as_str()),
        ("SPHX_LINK_SOCKET", ""),
    ];
    Running::start(
        scratch,
        &[&["lab", "link"], arguments].concat(),
        &environment,
    )
}

fn run(scratch: &Scratch, arguments: &[&str]) -> Ended {
    start(scratch, arguments).end()
}

/// A link that has started, with a program that stays.
fn started(scratch: &Scratch, arguments: &[&str]) -> Running {
    let mut running = start(scratch, &[&["--json"], arguments].concat());
    running.event("started");
    running
}

fn show(scratch: &Scratch, name: &str) -> Value {
    let ended = run(scratch, &["show", "--json", "--name", name]).expect(0);
    ended.events.last().expect("a state").clone()
}

/// Waits for a file that a program at an end writes.
fn wait_for(path: &Path) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => assert!(Instant::now() < deadline, "no {}", path.display()),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process with this word in its command line is there.
fn runs(word: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(word))
}

fn assert_gone(word: &str) {
    let deadline = Instant::now() + PATIENCE;
    while runs(word) {
        assert!(Instant::now() < deadline, "{word} is still there");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_exit_code_is_that_of_the_left_program() {
    let Some(scratch) = ground() else { return };
    let ended = run(&scratch, &["--json", "--", "sh", "-c", "exit 7"]).expect(7);
    assert_eq!(ended.done()["exit_code"], 7);
    run(
        &scratch,
        &["--quiet", "--right", "exit 3", "--left", "sleep 0.1"],
    )
    .expect(0);
    run(&scratch, &["--quiet", "--right", "exit 3"]).expect(3);
    run(&scratch, &["--quiet", "--left", "kill -9 $$"]).expect(137);
    let ended = run(&scratch, &["--json", "--", "no-such-command"]).expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(message.contains("no-such-command"), "{message}");
    // Nothing is left of any of them.
    let left: Vec<_> = fs::read_dir(scratch.path("sphx")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// `perf` with this ECN mode over a link with two queues, with further settings of it: `done` of the sender and of the link.
fn marked(mode: &str, further: &[&str]) -> Option<[Value; 2]> {
    let scratch = ground()?;
    let binary = env!("CARGO_BIN_EXE_sphx");
    let serve = format!("{binary} perf server --once --ticket-file t --quiet");
    let send = "while ! test -s t; do sleep 0.02; done; ".to_owned()
        + &format!(
            "{binary} perf client --ticket-file t --bytes 4MB --no-cache --ecn {mode} --json > sender"
        );
    let link = [
        "--json",
        "--rate",
        "20mbit",
        "--rtt",
        "10ms",
        "--forward",
        "aqm=dualpi2",
        "--right",
        &serve,
        "--left",
        &send,
    ];
    let ended = run(&scratch, &[&link[..], further].concat()).expect(0);
    let sender = fs::read_to_string(scratch.path("sender")).unwrap();
    let sender = serde_json::from_str(sender.lines().last()?).unwrap();
    Some([sender, ended.done().clone()])
}

#[test]
fn marks_of_low_latency_are_counted_at_both_ends() {
    let Some([sender, link]) = marked("l4s", &[]) else {
        return;
    };
    assert_eq!(sender["ecn"], "l4s", "{sender}");
    assert!(sender["packets_marked"].as_u64().unwrap() > 0, "{sender}");
    assert!(link["forward"]["marked"].as_u64().unwrap() > 0, "{link}");
    assert!(link["wait_p95_ms"].as_f64().unwrap() > 0.0, "{link}");
}

#[test]
fn a_path_that_clears_marks_is_found_out() {
    let Some([sender, link]) = marked("l4s", &["--ecn", "clear"]) else {
        return;
    };
    assert_eq!(sender["ecn"], "bleached", "{sender}");
    assert_eq!(link["forward"]["marked"], 0, "{link}");
    let Some([sender, _]) = marked("off", &[]) else {
        return;
    };
    assert_eq!(sender["ecn"], "off", "{sender}");
}

#[test]
fn programs_meet_over_the_link() {
    let Some(scratch) = ground() else { return };
    scratch.file("a", 200_000);
    let binary = env!("CARGO_BIN_EXE_sphx");
    let receive = format!("{binary} recv --once --output in --ticket-file t --quiet");
    let send = "while ! test -s t; do sleep 0.02; done; ".to_owned()
        + &format!("{binary} send --ticket-file t --quiet a");
    let arguments = [
        "--json", "--rate", "50mbit", "--rtt", "4ms", "--loss", "3%", "--log", "log", "--pcap",
        "caps", "--right", &receive, "--left", &send,
    ];
    let ended = run(&scratch, &arguments).expect(0);
    scratch.assert_same("a", "in/a");
    let done = ended.done().clone();
    let dropped = done["forward"]["dropped_loss"].as_u64().unwrap();
    assert!(dropped > 0, "{done}");

    // The log tells of every drop, and begins and ends with the link.
    let log = fs::read_to_string(scratch.path("log")).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let drops = |direction: &str| {
        let is_drop = |line: &&Value| {
            line["event"] == "drop" && line["direction"] == direction && line["what"] == "loss"
        };
        lines.iter().filter(is_drop).count() as u64
    };
    assert_eq!(drops("forward"), dropped);
    assert_eq!(Value::from(drops("return")), done["return"]["dropped_loss"]);
    assert_eq!(lines[0]["event"], "start");
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "end");
    assert_eq!(last["link"]["forward"]["dropped_loss"], dropped);

    // Each end has seen what it has sent and what has arrived there.
    let records = |name: &str| {
        let bytes = fs::read(scratch.path("caps").join(name)).unwrap();
        let (mut count, mut rest) = (0, &bytes[24..]);
        while let Some((header, data)) = rest.split_at_checked(16) {
            let length = u32::from_ne_bytes(header[8..12].try_into().unwrap());
            rest = &data[length as usize..];
            count += 1;
        }
        Value::from(count)
    };
    let total = |out: &str, back: &str| {
        let count = |direction: &str, field: &str| done[direction][field].as_u64().unwrap();
        Value::from(count(out, "offered_packets") + count(back, "delivered_packets"))
    };
    assert_eq!(records("left.pcap"), total("forward", "return"));
    assert_eq!(records("right.pcap"), total("return", "forward"));
}

#[test]
fn a_link_is_shown_and_changed_while_it_runs() {
    let Some(scratch) = ground() else { return };
    let name = ["--name", "live"];
    let running = started(
        &scratch,
        &[&name[..], &["--loss", "1%", "--left", "sleep 1000"]].concat(),
    );
    run(
        &scratch,
        &[&["set", "loss=2%", "return.rate=1mbit"], &name[..]].concat(),
    )
    .expect(0);
    let state = show(&scratch, "live");
    assert_eq!(state["forward"]["settings"]["loss"], "2%");
    assert_eq!(state["forward"]["settings"]["rate"], "unlimited");
    assert_eq!(state["return"]["settings"]["rate"], "1mbit");
    assert_eq!(state["forward"]["offered_packets"], 0);
    // If one of the settings is refused, none of them changes.
    let ended = run(
        &scratch,
        &[&["set", "--json", "delay=5ms", "loss=300%"], &name[..]].concat(),
    );
    let ended = ended.expect(2);
    assert!(
        ended.error("usage")["message"]
            .to_string()
            .contains("loss: ")
    );
    fs::write(scratch.path("bad"), "1\n0\n").unwrap();
    let bad = ["set", "--json", "rate=trace:bad"];
    let ended = run(&scratch, &[&bad, &name[..]].concat()).expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(message.contains("line 2"), "{message}");
    assert_eq!(
        show(&scratch, "live")["forward"]["settings"]["delay"],
        "0ms"
    );

    // A name belongs to one at a time; another one is free.
    let ended = run(
        &scratch,
        &[&["--json"], &name[..], &["--", "true"]].concat(),
    )
    .expect(8);
    assert!(
        ended.error("local_io")["hint"]
            .to_string()
            .contains("--name")
    );
    run(&scratch, &["--quiet", "--name", "other", "--", "true"]).expect(0);
    let ended = run(&scratch, &["show", "--json", "--name", "other"]).expect(8);
    ended.error("local_io");

    // Killed in the worst way, it leaves no processes behind, and its name is free.
    running.signal(Signal::KILL);
    running.end();
    let ended = run(
        &scratch,
        &[&["--quiet"], &name[..], &["--", "true"]].concat(),
    );
    ended.expect(0);
}

#[test]
fn a_trace_is_read_once() {
    let Some(scratch) = ground() else { return };
    // Both directions have it, and a pipe gives it once.
    let mut running = start(
        &scratch,
        &["--json", "--name", "traced", "--rate", "trace:/dev/stdin"],
    );
    running.input("12\n");
    running.event("started");
    let settings = |direction: &str| show(&scratch, "traced")[direction]["settings"].clone();
    assert_eq!(settings("return")["rate"], "trace:/dev/stdin");
    let set = |setting: &str| {
        let words = ["set", "--json", "--name", "traced", setting];
        start(&scratch, &words)
    };
    let file = scratch.path("t");
    fs::write(&file, "5\n").unwrap();
    set("rate=trace:t").end().expect(0);
    let rate = settings("forward")["rate"].clone();
    fs::remove_file(&file).unwrap();
    set("loss=5%").end().expect(0);
    assert_eq!(settings("forward")["loss"], "5%");
    set("rate=trace:t").end().expect(8).error("local_io");
    assert_eq!(settings("forward")["rate"], rate);

    // While somebody sets it to a pipe that says nothing yet, others are answered.
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    if !made.is_ok_and(|status| status.success()) {
        sphinx_testing::skipped!("no 'mkfifo'");
        return;
    }
    let waiting = set("return.rate=trace:t");
    // It can be written to as soon as somebody reads it.
    let pipe = File::options().write(true).open(&file).unwrap();
    set("delay=7ms").end().expect(0);
    assert_eq!(settings("return")["delay"], "7ms");
    (&pipe).write_all(b"7\n").unwrap();
    drop(pipe);
    waiting.end().expect(0);
    let settings = settings("return");
    assert_eq!(
        (&settings["loss"], &settings["delay"]),
        (&"5%".into(), &"7ms".into())
    );

    // Nor does its end wait for that.
    let waiting = set("rate=trace:t");
    let _pipe = File::options().write(true).open(&file).unwrap();
    running.signal(Signal::INT);
    running.end().expect(130);
    waiting.end().expect(8);
}

#[test]
fn programs_find_their_own_link() {
    let Some(scratch) = ground() else { return };
    let binary = env!("CARGO_BIN_EXE_sphx");
    let script = format!(
        "{binary} lab link set delay=7ms && {binary} lab link show >shown && \
         echo $SPHX_LEFT $SPHX_RIGHT >>shown"
    );
    run(&scratch, &["--quiet", "--name", "inner", "--left", &script]).expect(0);
    let shown = fs::read_to_string(scratch.path("shown")).unwrap();
    assert!(shown.starts_with("Link 'inner'"), "{shown}");
    assert!(
        shown.contains("7ms") && shown.contains("10.77.0.1 10.77.0.2"),
        "{shown}"
    );
}

#[test]
fn signals_end_everything() {
    let Some(scratch) = ground() else { return };
    for (signal, code) in [
        (Signal::TERM, Some(143)),
        (Signal::INT, Some(130)),
        (Signal::KILL, None),
    ] {
        // Programs that do not want to end, one of them detached.
        let word = format!("{}", 900_000_000 + u64::from(std::process::id()));
        let script = format!(
            "trap '' INT TERM; (setsid sleep {word} >/dev/null 2>&1 &); echo up >up; \
             while :; do sleep {word}; done"
        );
        let right = format!("exec sleep {word}");
        let running = started(&scratch, &["--left", &script, "--right", &right]);
        wait_for(&scratch.path("up"));
        fs::remove_file(scratch.path("up")).unwrap();
        running.signal(signal);
        let ended = running.end();
        if let Some(code) = code {
            let ended = ended.expect(code);
            assert!(ended.after < Duration::from_secs(20));
            assert_eq!(fs::read_dir(scratch.path("sphx")).unwrap().count(), 0);
        }
        assert_gone(&word);
    }
}

#[test]
fn a_link_that_is_interrupted_tells_what_it_has_done() {
    let Some(scratch) = ground() else { return };
    let running = started(&scratch, &["--log", "/dev/full"]);
    running.signal(Signal::INT);
    let ended = running.end().expect(130);
    ended.error("interrupted");
    let before: Vec<&Value> = ended.events.iter().rev().skip(1).collect();
    assert_eq!(before[0]["event"], "done", "{before:?}");
    assert_eq!(before[0]["exit_code"], 0);
    assert_eq!(before[0]["forward"]["offered_packets"], 0);
    let fault = before[0]["faults"][0].to_string();
    assert!(fault.contains("the log"), "{fault}");
}

#[test]
fn a_full_disk_is_told_and_the_program_goes_on() {
    let Some(scratch) = ground() else { return };
    let flag = scratch.path("went-on");
    let script = format!("sleep 0.3; echo yes >{}", flag.display());
    let arguments = ["--json", "--log", "/dev/full", "--left", &script];
    let ended = run(&scratch, &arguments).expect(8);
    assert_eq!(wait_for(&flag), "yes");
    let fault = ended.done()["faults"][0].to_string();
    assert!(
        fault.contains("the log") && fault.contains("space"),
        "{fault}"
    );
    let unwritable = ["--json", "--log", "/no/such/directory/log", "--", "true"];
    run(&scratch, &unwritable).expect(8).error("local_io");
}

#[test]
fn a_link_whose_interface_is_gone_ends_with_its_programs() {
    let Some(scratch) = ground() else { return };
    let mut ip = std::process::Command::new("ip");
    if ip
        .arg("-V")
        .stdout(std::process::Stdio::null())
        .status()
        .is_err()
    {
        sphinx_testing::skipped!("no 'ip'");
        return;
    }
    let word = format!("{}", 800_000_000 + u64::from(std::process::id()));
    let script = format!("ip link del left; exec sleep {word}");
    let ended = run(&scratch, &["--json", "--left", &script]).expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(message.contains("interface left is gone"), "{message}");
    assert_gone(&word);
}

#[test]
fn mistakes_are_usage_errors_wherever_they_are() {
    let scratch = Scratch::new();
    fs::write(
        scratch.path("c.toml"),
        "rate = '1mbit'\n[return]\nspeed = 3\n",
    )
    .unwrap();
    fs::write(scratch.path("d.toml"), "rate = '1mbit\n").unwrap();
    fs::write(scratch.path("t"), "5\nx\n").unwrap();
    for (line, reason) in [
        ("--json --loss 5", "5"),
        ("--json --rate trace:t", "line 2"),
        (
            "--json --config c.toml",
            "c.toml: there is no setting 'speed'",
        ),
        ("--json --config d.toml", "line 1"),
        ("--json --name a/b", "cannot be a name"),
        ("--json --return loss", "KEY=VALUE"),
        ("--json --interfaces one", "two names"),
        ("--json --interfaces a,b -- true", "cannot be used with"),
        ("--json --interface-mtu 100000 -- true", "MTU"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = run(&scratch, &words);
        if ended.code == 8 {
            sphinx_testing::skipped!("{line}");
            continue;
        }
        let ended = ended.expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains(reason), "{line}: {message}");
    }
    for (line, hint) in [
        ("--json --rate trace:nowhere", ""),
        ("--json --config nowhere.toml", ""),
        ("--json --interfaces no-such-if,lo", "have to exist"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = run(&scratch, &words).expect(8);
        let told = ended.error("local_io")["hint"].to_string();
        assert!(told.contains(hint), "{line}: {told}");
    }
}

#[test]
fn an_agent_stands_in_front_of_the_link() {
    let Some(scratch) = ground() else { return };
    if !has_python() {
        sphinx_testing::skipped!("no python3");
        return;
    }
    // 2 MB from left to right, and a byte back when they are there.
    let right = "python3 -c 'import socket
s = socket.create_server((\"0.0.0.0\", 4000)); c, _ = s.accept(); n = 0
while n < 2000000: n += len(c.recv(65536))
c.sendall(b\"y\"); c.recv(1)'";
    let left = "python3 -c 'import os, socket
c = socket.create_connection((os.environ[\"SPHX_RIGHT\"], 4000)); c.sendall(bytes(2000000)); assert c.recv(1) == b\"y\"'";
    let link = [
        "--json",
        "--rate",
        "50mbit",
        "--rtt",
        "4ms",
        "--forward",
        "loss=2%",
    ];
    let ends = ["--right", right, "--left", left];
    let agent = ["--agent", "snoop", "--agent", "ack-filter:every=10ms"];
    let ended = run(&scratch, &[&link[..], &agent, &ends].concat()).expect(0);
    let of = |kind: &str| ended.events.iter().find(|event| event["event"] == kind);
    let (totals, flow) = (of("agent").expect("totals"), of("flow").expect("a flow"));
    assert!(totals["repaired"].as_u64() > Some(5), "{totals}");
    assert_eq!(flow["cached"], totals["cached"]);
    let dropped = ended.done()["forward"]["dropped_loss"].as_u64();
    assert!(dropped > Some(5), "{}", ended.done());
    for (agent, reason) in [
        ("split", "write snoop"),
        ("ack-filter", "only acknowledgements that wait"),
    ] {
        let words = ["--json", "--agent", agent, "--", "true"];
        let message = run(&scratch, &words).expect(2).error("usage")["message"].to_string();
        assert!(message.contains(reason), "{message}");
    }
    let words = ["--json", "--agent", "snoop", "--agent", "rdb", "--", "true"];
    let message = run(&scratch, &words).expect(2).error("usage")["message"].to_string();
    assert!(message.contains("one snoop or rdb"), "{message}");
}

fn has_python() -> bool {
    let mut python = std::process::Command::new("python3");
    python.arg("--version").stdout(std::process::Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
