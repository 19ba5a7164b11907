//! `sphx pep run` with the stages for acknowledgements, windows and bursts, between kernels that know nothing of it: what they carry and what is told
//! of it. Skipped, saying why, where namespaces, or the programs that set these up, are not there.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
};

use rustix::process::Signal;
use serde_json::Value;

use super::pep::{Scene, ip, totals, ways};
use super::pep_between::translate;
use crate::common::{Running, Scratch};

/// Several that may be there together; each of them has something to do when both hosts send.
const TOGETHER: [&[&str]; 3] = [
    &["--agent", "ack-filter:every=5ms", "--agent", "rsfc"],
    &["--agent", "ack-filter:rate=30mbit,acks-first,aggressive"],
    &[
        "--agent",
        "ack-cc:rate=30mbit,mark=1ms",
        "--agent",
        "ack-reconstruct",
        "--agent",
        "pace",
        "--agent",
        "rsfc:mode=rledbat",
    ],
];
const BYTES: usize = 1_500_000;

/// An upload, and a connection on which both hosts send.
fn load(scene: &Scene, address: IpAddr, half: impl FnOnce()) {
    thread::scope(|scope| {
        scope.spawn(|| scene.upload(address, BYTES));
        scene.transfer(address, BYTES, half);
    });
}

/// The sum of a number, or of those of all reasons.
fn sum(of: &Value, name: &str) -> u64 {
    match &of[name] {
        Value::Object(reasons) => reasons.values().filter_map(Value::as_u64).sum(),
        value => value.as_u64().unwrap_or_else(|| panic!("{name}: {of}")),
    }
}

/// Segments that the sender's kernel joins come joined, or one by one; addresses are those of the hosts, or translated.
#[test]
fn stages_carry_the_same_where_segments_are_joined_and_addresses_translated() {
    for (joined, translated) in [(true, false), (false, true)] {
        let Some(scene) = Scene::new(0.001) else {
            return;
        };
        if !joined && ip(&scene.fixed, "link set uplink gso_max_segs 1").is_none() {
            sphinx_testing::skipped!("'ip' does not bound what is joined");
            continue;
        }
        if translated && !translate(&scene) {
            continue;
        }
        let scratch = Scratch::new();
        // Where addresses are translated, no devices can be.
        for way in ways().into_iter().filter(|it| !translated || *it != "tun") {
            for stages in TOGETHER {
                let agent = scene.agent(&scratch, &[&["--attach", way], stages].concat());
                for address in scene.addresses() {
                    load(&scene, address, || ());
                }
                agent.signal(Signal::INT);
                let ended = agent.end().expect(130);
                let done = totals(&ended);
                let about = format!("{way}, joined {joined}, {stages:?}: {done}");
                assert!(
                    sum(done, "acks_seen") > 100 && sum(done, "acks_dropped") > 10,
                    "{about}"
                );
                assert_eq!(sum(done, "packets_refused"), 0, "{about}");
                if stages.iter().any(|it| it.starts_with("rsfc")) {
                    // Of two families, and of two connections each that carry so much.
                    assert_eq!(sum(done, "uploads"), 4, "{about}");
                }
                if stages.contains(&"pace") {
                    assert!(sum(done, "paced") > 0, "{about}");
                }
            }
        }
    }
}

#[test]
fn connections_outlive_stages_that_are_killed_under_load() {
    let Some(scene) = Scene::new(0.001) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        for stages in TOGETHER {
            let agent = scene.agent(&scratch, &[&["--attach", way], stages].concat());
            load(&scene, scene.addresses()[0], || agent.signal(Signal::KILL));
            agent.end().expect(-1);
        }
    }
}

/// What every page of a preset names is told: to people, to programs, and to Prometheus.
#[test]
fn presets_tell_what_they_do() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let start = || Running::start(&scratch, arguments, &[]);
        scene.middle.run(start).expect("a thread")
    };
    for (preset, agent, numbers, metric) in [
        (
            "satellite-modem",
            "ack-filter:every=40000us",
            ["acks_seen", "acks_dropped"],
            "acks_dropped_total{reason=\"acked\"}",
        ),
        (
            "lte-router",
            "ack-filter:every=10000us",
            ["acks_seen", "acks_dropped"],
            "acks_seen_total",
        ),
        (
            "upload-server",
            "rsfc",
            ["uploads", "windows_lowered"],
            "uploads_total",
        ),
    ] {
        let base = ["pep", "run", "--json", "--wireless", "left"];
        let more = [
            "--preset",
            preset,
            "--lag-max",
            "10s",
            "--metrics",
            "127.0.0.1:0",
        ];
        let mut running = run(&[&base[..], &more].concat());
        let started = running.event("started");
        let metrics: SocketAddr = (started["metrics"].as_str())
            .and_then(|it| it.parse().ok())
            .expect("an address");
        scene.upload(scene.addresses()[0], BYTES);
        let shown = run(&["pep", "show", "--json", "--flows"]).end().expect(0);
        let status = shown.event("status");
        assert_eq!(status["settings"]["agent"], agent);
        for name in numbers {
            assert!(sum(status, name) > 0, "{preset}: {name}: {status}");
        }
        if preset == "upload-server" {
            let uploads = status["newest_flows"].as_array().expect("flows");
            let upload = uploads.iter().find(|it| it["upload"].is_object());
            let upload = &upload.expect("an upload")["upload"];
            for name in [
                "state",
                "waited_ns",
                "bytes_per_second",
                "rtt_ns_min",
                "window_received",
                "window_written",
            ] {
                assert!(!upload[name].is_null(), "{name}: {upload}");
            }
        }
        let ask = || {
            let mut stream = TcpStream::connect(metrics).expect("a connection");
            let request = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
            stream.write_all(request.as_bytes()).expect("a reader");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        let answer = scene.middle.run(ask).expect("a thread");
        let metric = format!("sphx_pep_{metric} ");
        let number = answer.lines().find_map(|it| it.strip_prefix(&metric));
        let number = number.and_then(|it| it.parse::<u64>().ok());
        assert!(number > Some(0), "{metric}: {answer}");
        running.signal(Signal::INT);
        running.end().expect(130);
    }
}

/// One error names the stage and the key, and nothing is changed.
#[test]
fn what_cannot_be_together_changes_nothing() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let start = || Running::start(&scratch, arguments, &[]);
        scene.middle.run(start).expect("a thread")
    };
    let base = ["pep", "run", "--json", "--wireless", "left"];
    for (more, reason) in [
        ("ack-filter", "only acknowledgements that wait"),
        ("ack-filter:rate=1mbit,colour=red", "colour=red"),
        ("ack-cc", "ack-cc: rate"),
        ("rsfc:target=1ms", "rsfc: target=1ms"),
        ("pace:rate=1mbit", "pace: it has no keys"),
    ] {
        let ended = run(&[&base[..], &["--agent", more]].concat()).end();
        let message = ended.expect(2).error("usage")["message"].to_string();
        assert!(message.contains(reason), "{more}: {message}");
    }
    assert!(!scene.rules().contains("7749"));
    let agent = scene.agent(&scratch, &["--agent", "ack-filter:every=20ms"]);
    let settings = || {
        let ended = run(&["pep", "show", "--json"]).end().expect(0);
        ended.event("status")["settings"].clone()
    };
    let before = settings();
    for (words, reason) in [
        (
            &["agent=ack-filter:every=20ms", "agent=ack-cc:rate=1mbit"][..],
            "ack-cc: every",
        ),
        (
            &["agent=ack-filter:rate=1mbit", "agent=ack-cc:rate=1mbit"],
            "ack-cc: rate",
        ),
        (
            &["agent=ack-filter:rate=1mbit", "radio-rate=1mbit"],
            "ack-filter: rate",
        ),
        (&["agent=rsfc", "agent=rsfc"], "one rsfc"),
        (
            &["agent=ack-reconstruct", "agent=no-limited-transmit"],
            "one ack-reconstruct or no-limited-transmit",
        ),
        (&["lag-max=7ms", "agent=rsfc:target=1ms"], "target=1ms"),
    ] {
        let ended = run(&[&["pep", "set", "--json"], words].concat()).end();
        let message = ended.expect(2).error("usage")["message"].to_string();
        assert!(message.contains(reason), "{words:?}: {message}");
        assert_eq!(settings(), before, "{words:?}");
    }
    agent.signal(Signal::INT);
    agent.end().expect(130);
}
