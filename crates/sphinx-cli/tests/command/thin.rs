//! `sphx pep` for thin streams of this machine. Skipped, saying why, where namespaces, queues or control groups are not to be had.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Ended, PATIENCE, Running, Scratch, command, worker_of};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use sphinx_netdev::cgroup::OwnGroup;
use sphinx_netdev::netns::{Access, Namespace, probe};
use sphinx_netdev::nfqueue::is_taken;
use sphinx_pep::attach::{Attachment, Own};

/// A namespace in which agents for the machine's own connections work, and control groups.
fn place() -> Option<Namespace> {
    let namespace = || Namespace::new().expect("a namespace");
    let probed = match probe() {
        Ok(Access::Direct) => namespace(),
        other => {
            sphinx_testing::skipped!("no namespaces: {other:?}");
            return None;
        }
    };
    let own = Own {
        uids: vec![0],
        bytes_max: 1280,
        ..Own::default()
    };
    let attached = probed.run(|| Attachment::own(own).map(drop));
    let name = format!("sphx-probe-{:?}", thread::current().id());
    let grouped = OwnGroup::new(&name.replace(['(', ')'], ""));
    for result in [attached.expect("a thread"), grouped.map(drop)] {
        if let Err(error) = result {
            sphinx_testing::skipped!("{error}");
            return None;
        }
    }
    // Another one: processes that other tests start hold the queue there until they are another program.
    Some(namespace())
}

fn lines(ended: &Ended) -> Vec<Value> {
    let lines = ended.stderr.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Waits until no rules of an agent are left.
fn is_clean(namespace: &Namespace) {
    // The kernel removes rules in its own time.
    while namespace
        .run(|| is_taken("sphx-pep"))
        .expect("a thread")
        .expect("an answer")
    {
        thread::yield_now();
    }
}

#[test]
fn a_program_runs_with_an_agent_of_its_own() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a thread").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let program = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; for n in 1 2 3; do echo $n >&3; read -r answer <&3; done; exit 7"
    );
    let arguments = [
        "pep",
        "exec",
        "--json",
        "--agent",
        "rdb:mode=paper,thin=always",
        "--",
        "bash",
        "-c",
        &program,
    ];
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().expect("a connection");
            let mut lines = BufReader::new(&stream).lines();
            while let Some(Ok(line)) = lines.next() {
                (&stream)
                    .write_all(format!("{line}\n").as_bytes())
                    .expect("a stream");
            }
        });
        let start = || Running::start(&scratch, &arguments, &[]);
        namespace.run(start).expect("a thread").end().expect(7)
    });
    let lines = lines(&ended);
    let of = |name: &str| lines.iter().find(|line| line["event"] == name).expect(name);
    assert_eq!(of("started")["attach"], "own");
    let done = of("done");
    assert_eq!(done["data_bytes"], 6, "{done}");
    assert!(done["from_mobile"].as_u64() > Some(3), "{done}");
    is_clean(&namespace);
}

/// The variable by which this program is a server.
const IS_SERVER: &str = "SPHINX_TEST_SERVER";
/// Where it listens, in a namespace of its own.
const SERVER: &str = "127.0.0.1:8080";
/// Lines that the server writes to its client.
const LINES: usize = 20;

/// No test of its own: the program of the next one.
#[test]
fn a_server_that_writes_small_messages() {
    if std::env::var_os(IS_SERVER).is_none() {
        return;
    }
    let listener = TcpListener::bind(SERVER).expect("a port");
    let (mut client, _) = listener.accept().expect("a client");
    client.set_nodelay(true).expect("an option");
    for n in 0..LINES {
        let line = format!("{n:4}\n");
        client.write_all(line.as_bytes()).expect("a client");
    }
}

/// The answer to a SYN has no socket of the server's group yet, and comes by the agent all the same.
#[test]
fn a_server_runs_with_an_agent_of_its_own() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let program = std::env::current_exe().expect("a program");
    let arguments = [
        "pep",
        "exec",
        "--json",
        "--agent",
        "rdb:mode=paper",
        "--",
        "bash",
        "-c",
        // The test runner's words are not for standard output.
        "exec \"$0\" --exact thin::a_server_that_writes_small_messages --nocapture >&2",
        program.to_str().expect("text"),
    ];
    let start = || Running::start(&scratch, &arguments, &[(IS_SERVER, "1")]);
    let running = namespace.run(start).expect("a thread");
    let deadline = Instant::now() + PATIENCE;
    let connect = || {
        let mut attempts = std::iter::from_fn(|| {
            // The server may not listen yet.
            thread::sleep(Duration::from_millis(10));
            (Instant::now() < deadline).then(|| TcpStream::connect(SERVER))
        });
        attempts.find_map(Result::ok)
    };
    let Some(client) = namespace.run(connect).expect("a thread") else {
        running.signal(Signal::TERM);
        panic!("no server: {}", running.end().stderr);
    };
    let received = BufReader::new(client).lines();
    assert_eq!(received.map_while(Result::ok).count(), LINES);
    let ended = running.end().expect(0);
    let lines = lines(&ended);
    let done = lines.iter().find(|line| line["event"] == "done");
    let done = done.expect("totals");
    assert_eq!(done["data_bytes"], 5 * LINES, "{done}");
    assert!(done["from_mobile"].as_u64() > Some(2), "{done}");
    is_clean(&namespace);
}

/// Signals that are ignored, as under nohup, stay ignored for the program.
#[test]
fn what_is_ignored_stays_so_for_the_program() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let mut shell = Command::new("bash");
    shell.args(["-c", "trap '' HUP INT; exec \"$@\"", "bash"]);
    shell.arg(env!("CARGO_BIN_EXE_sphx"));
    shell.args(["pep", "exec", "--", "bash", "-c"]);
    shell.arg("kill -HUP $$; kill -INT $$; exit 7");
    let start = || Running::of(&scratch, shell);
    namespace.run(start).expect("a thread").end().expect(7);
    is_clean(&namespace);
}

#[test]
fn a_signal_is_for_the_program() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    // It says when it can be told to end, and ends with its standard input too.
    let program = "trap 'exit 9' TERM; echo '{\"event\":\"ready\"}'; \
                   while read -r -t 1 line || [ $? -gt 128 ]; do :; done";
    let arguments = ["pep", "exec", "--", "bash", "-c", program];
    let start = || Running::start(&scratch, &arguments, &[]);
    let mut running = namespace.run(start).expect("a thread");
    running.event("ready");
    running.signal(Signal::INT);
    running.signal(Signal::TERM);
    let ended = running.end().expect(9);
    // Standard error has this line and nothing else.
    let summary =
        "0 flows: 0 packets with copies, +0 % bytes; 0 losses repaired, 0 segments sent again\n";
    assert_eq!(ended.stderr, summary);
    is_clean(&namespace);
    // Killed, it takes the agent along, and the program goes on.
    let mut running = namespace.run(start).expect("a thread");
    running.event("ready");
    running.signal(Signal::KILL);
    is_clean(&namespace);
}

#[test]
fn what_cannot_be_is_told_and_nothing_is_left() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    for (arguments, code, reason) in [
        (&["run", "--port", "7000"][..], 2, "--agent rdb"),
        (
            &[
                "run",
                "--agent",
                "rdb",
                "--wireless",
                "lo",
                "--radio-rate",
                "1mbit",
            ],
            2,
            "--radio-rate is for --agent snoop",
        ),
        (
            &["run", "--agent", "rdb:itt=1", "--port", "7000"],
            2,
            "the keys are mode",
        ),
        (
            &["run", "--agent", "rdb", "--port", "7-6"],
            2,
            "write a port",
        ),
        (
            &["run", "--agent", "rdb", "--uid", "no-such-user"],
            2,
            "no such user",
        ),
        (
            &["run", "--agent", "rdb", "--port", "1", "--wireless", "lo"],
            2,
            "cannot be used with",
        ),
        (
            &["run", "--agent", "rdb", "--cgroup", "/no/such"],
            8,
            "control group",
        ),
        (
            &["exec", "--agent", "snoop", "--", "true"],
            2,
            "--agent rdb",
        ),
        (&["exec", "--", "/no/such/program"], 8, "/no/such/program"),
    ] {
        let arguments = [&["pep"], arguments].concat();
        let start = || Running::start(&scratch, &arguments, &[]);
        let ended = namespace.run(start).expect("a thread").end().expect(code);
        assert!(
            ended.stderr.contains(reason),
            "{arguments:?}: {}",
            ended.stderr
        );
        is_clean(&namespace);
    }
}

/// One agent runs in a namespace: a second one for the same port, or another, changes nothing.
#[test]
fn ports_of_another_agent_are_refused() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let start = |arguments: &[&str]| {
        let start = || Running::start(&scratch, arguments, &[]);
        namespace.run(start).expect("a thread")
    };
    let one = ["pep", "run", "--json", "--agent", "rdb", "--port", "7000"];
    let mut first = start(&one);
    first.event("started");
    for more in [
        &["--port", "7000"][..],
        &["--port", "7001"],
        &["--uid", "0"],
    ] {
        let arguments = [&["pep", "run", "--json", "--agent", "rdb"], more].concat();
        let ended = start(&arguments).end().expect(8);
        assert!(ended.stderr.contains("one is enough"), "{}", ended.stderr);
        assert!(!ended.events.iter().any(|it| it["event"] == "started"));
    }
    let program = ["pep", "exec", "--", "echo", "{\"event\":\"never\"}"];
    assert_eq!(start(&program).end().expect(8).events, Vec::<Value>::new());
    // The first one goes on, with its rules.
    assert!(is_taken_in(&namespace));
    first.signal(Signal::INT);
    first.end().expect(130);
    is_clean(&namespace);
}

fn is_taken_in(namespace: &Namespace) -> bool {
    let taken = namespace.run(|| is_taken("sphx-pep"));
    taken.expect("a thread").expect("an answer")
}

/// Agent and guard may die at any time: streams go on, a dead worker is replaced, and with the guard the rules go.
#[test]
fn streams_go_on_when_the_agent_is_killed() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a thread").expect("a port");
    let target = listener.local_addr().expect("an address");
    let port = target.port().to_string();
    let run = [
        "pep",
        "run",
        "--json",
        "--agent",
        "rdb:mode=paper,thin=always",
    ];
    let run = [&run[..], &["--port", &port]].concat();
    let mut agent = namespace
        .run(|| Running::start(&scratch, &run, &[]))
        .expect("a thread");
    let worker = worker_of(&agent.event("started"));
    let client = namespace.run(|| TcpStream::connect(target));
    let client = client.expect("a thread").expect("a connection");
    let (server, _) = listener.accept().expect("a client");
    let mut position = 0_u32;
    let mut talk = || {
        for _ in 0..50 {
            for (mut from, mut to) in [(&client, &server), (&server, &client)] {
                from.write_all(&position.to_be_bytes()).expect("a stream");
                let mut bytes = [0; 4];
                to.read_exact(&mut bytes).expect("a stream");
                assert_eq!(u32::from_be_bytes(bytes), position);
                position += 1;
            }
        }
    };
    talk();
    kill_process(worker, Signal::KILL).expect("a worker");
    talk();
    let reason = agent.event("worker_ended")["reason"].to_string();
    assert!(reason.contains("signal: 9"), "{reason}");
    assert_ne!(worker_of(&agent.event("started")), worker);
    talk();
    agent.signal(Signal::KILL);
    talk();
    agent.end().expect(-1);
    is_clean(&namespace);
    talk();
}

/// The sequences of the published patch's own tests, with this kernel and the agent: scripts of packetdrill, which plays the receiver. The first
/// line of each names the agent.
#[test]
fn the_published_sequences_under_packetdrill() {
    let scripts = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sphinx-pep/tests/packetdrill"
    );
    let scripts = fs::read_dir(scripts).expect("scripts");
    let mut scripts: Vec<_> = scripts.map(|it| it.expect("a script").path()).collect();
    scripts.sort();
    for program in ["packetdrill", "python3"] {
        // Its exit code does not matter: the program exists if it can be run.
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null());
        if let Err(error) = command.output() {
            let names = scripts.iter().filter_map(|it| it.file_stem());
            let names: Vec<_> = names.map(|it| it.to_string_lossy()).collect();
            sphinx_testing::skipped!("{}: {program}: {error}", names.join(", "));
            return;
        }
    }
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    for script in scripts {
        let text = fs::read_to_string(&script).expect("a script");
        let agent = text.lines().next().expect("a line");
        let agent = agent.strip_prefix("// ").expect("an agent");
        let run = ["pep", "run", "--json", "--agent", agent, "--port", "8080"];
        let start = || Running::start(&scratch, &run, &[]);
        let mut running = namespace.run(start).expect("a thread");
        running.event("started");
        let mut drill = Command::new("packetdrill");
        drill.arg("--tolerance_usecs=200000").arg(&script);
        // When it fails it signals all of its process group.
        drill.process_group(0);
        let mut drill = namespace.spawn(&mut drill).expect("a process");
        let status = drill.wait().expect("a process");
        running.signal(Signal::INT);
        let ended = running.end().expect(130);
        assert!(
            status.success(),
            "{}: {}",
            script.display(),
            ended.event("done")
        );
    }
}

#[test]
fn a_dry_run_tells_in_words_what_it_would_have_done() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let arguments = ["pep", "exec", "--dry-run", "--", "true"];
    let start = || Running::start(&scratch, &arguments, &[]);
    let ended = namespace.run(start).expect("a thread").end().expect(0);
    let words = "0 flows: would have repaired 0 of 0 losses, +0 % bytes";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    is_clean(&namespace);
}

#[test]
fn a_doctor_finds_what_spoils_help_for_thin_streams() {
    let Some(namespace) = place() else { return };
    let scratch = Scratch::new();
    let ask = |more: &[&str]| {
        let arguments = [&["pep", "doctor", "--json", "--agent", "rdb"], more].concat();
        let start = || Running::start(&scratch, &arguments, &[]);
        let ended = namespace.run(start).expect("a thread").end().expect(0);
        let found = ended.events.iter().filter(|it| it["event"] == "finding");
        let found: Vec<String> = found.map(|it| it["name"].to_string()).collect();
        assert_eq!(ended.done()["findings"], found.len());
        is_clean(&namespace);
        found
    };
    let port = ["--port", "25565"];
    // The machine may have QUIC.
    let of_rdb = |found: Vec<String>| -> Vec<String> {
        found.into_iter().filter(|it| it != "\"quic\"").collect()
    };
    assert_eq!(of_rdb(ask(&port)), Vec::<String>::new());
    for (parameter, name) in [("tcp_sack", "\"sack\""), ("tcp_dsack", "\"dsack\"")] {
        let parameter = format!("net.ipv4.{parameter}");
        namespace.sysctl(&parameter, "0").expect("a parameter");
        assert_eq!(of_rdb(ask(&port)), [name]);
        namespace.sysctl(&parameter, "1").expect("a parameter");
    }
    for (arguments, code, reason) in [
        (&["--cgroup", "/no/such"][..], 8, "control group"),
        (&["--agent", "snoop", "--port", "1"], 2, "--agent rdb"),
        (&["--agent", "rdb:itt=1"], 2, "the keys are mode"),
    ] {
        let agent: &[&str] = match arguments[0] {
            "--agent" => &[],
            _ => &["--agent", "rdb"],
        };
        let arguments = [&["pep", "doctor"], agent, arguments].concat();
        let start = || Running::start(&scratch, &arguments, &[]);
        let ended = namespace.run(start).expect("a thread").end().expect(code);
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
        is_clean(&namespace);
    }
}

#[test]
fn a_preset_for_game_servers() {
    let scratch = Scratch::new();
    let arguments = [
        "pep",
        "install",
        "--print",
        "--preset",
        "game-server",
        "--port",
        "25565",
    ];
    let output = command(&scratch.path(""), &arguments).output();
    let output = output.expect("the binary starts");
    let unit = String::from_utf8(output.stdout).expect("text");
    assert!(
        unit.contains(" pep run --preset game-server --port 25565\n"),
        "{unit}"
    );
    let description = "Description=Help for thin TCP streams of this machine (sphx pep)\n";
    assert!(unit.contains(description), "{unit}");

    let Some(namespace) = place() else { return };
    let run = [&["pep", "run", "--json"], &arguments[3..]].concat();
    let start = || Running::start(&scratch, &run, &[]);
    let mut running = namespace.run(start).expect("a thread");
    let agent = running.event("started")["agent"].to_string();
    assert!(agent.contains("max_packets=0"), "{agent}");
    running.signal(Signal::INT);
    running.end().expect(130);
    let exec = [
        "pep",
        "exec",
        "--json",
        "--preset",
        "game-server",
        "--",
        "true",
    ];
    let start = || Running::start(&scratch, &exec, &[]);
    let ended = namespace.run(start).expect("a thread").end().expect(0);
    let started = lines(&ended).swap_remove(0);
    assert!(
        started["agent"].to_string().contains("max_packets=0"),
        "{started}"
    );
    is_clean(&namespace);
}
