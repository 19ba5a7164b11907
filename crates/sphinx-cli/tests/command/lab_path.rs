//! `sphx lab path`: kernel TCP over two emulated hops, with programs between and behind them. Skipped, saying why, where
//! namespaces or TUN devices are not allowed.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Scratch, ground};
use rustix::process::Signal;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_sphx");

fn start(scratch: &Scratch, hops: [&str; 2], more: &[&str]) -> Running {
    let base = ["lab", "path", "--json", "--hop", hops[0], "--hop", hops[1]];
    Running::start(scratch, &[&base[..], more].concat(), &[])
}

/// The lines of a file of JSON objects.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let read = |line| serde_json::from_str(line).unwrap();
    text.lines().map(read).collect()
}

#[test]
fn a_download_crosses_both_hops_and_the_log_tells_of_both() {
    let Some(scratch) = ground() else { return };
    let hops = [
        "rate=50mbit rtt=10ms forward.loss=packets:20",
        "rate=20mbit rtt=2ms loss=bytes:64KiB",
    ];
    let more = ["--bytes", "1MB", "--cc", "reno", "--log", "log"];
    let ended = start(&scratch, hops, &more).end().expect(0);
    let done = ended.done();
    assert_eq!(
        (&done["bytes"], &done["complete"]),
        (&1_000_000.into(), &true.into())
    );
    assert_eq!(
        (&done["congestion"], &done["sack"]),
        (&"reno".into(), &true.into())
    );
    assert!(done["segments_again"].as_u64() >= Some(1), "{done}");
    let log = lines(&scratch.path("log"));
    for (hop, name) in done["hops"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["wired", "wireless"])
    {
        assert_eq!(hop["name"], name);
        for direction in ["forward", "return"] {
            let is_drop = |line: &&Value| {
                line["event"] == "drop" && line["link"] == name && line["direction"] == direction
            };
            let drops = log.iter().filter(is_drop).count();
            assert_eq!(hop[direction]["dropped_loss"], drops, "{name} {direction}");
        }
        let end = |line: &&Value| line["event"] == "end" && line["link"]["name"] == name;
        assert_eq!(log.iter().filter(end).count(), 1);
    }
    assert_eq!(done["hops"][0]["forward"]["dropped_loss"], 1);
    assert!(
        done["hops"][1]["forward"]["dropped_loss"].as_u64() > Some(0),
        "{done}"
    );
}

#[test]
fn a_path_may_have_a_small_mtu() {
    let Some(scratch) = ground() else { return };
    let more = ["--bytes", "50kB", "--interface-mtu", "576"];
    let ended = start(&scratch, ["rtt=2ms", "rtt=2ms"], &more)
        .end()
        .expect(0);
    let hop = &ended.done()["hops"][0];
    let sent = |field: &str| hop["forward"][field].as_u64().unwrap();
    assert!(sent("sent_packets") >= 50_000 / 576, "{hop}");
    assert_eq!(hop["left"], serde_json::json!(["10.77.1.1"]));
}

#[test]
fn an_agent_in_the_middle_repairs_what_the_wireless_hop_loses() {
    let Some(scratch) = ground() else { return };
    let hops = ["rtt=40ms", "rate=20mbit rtt=4ms forward.loss=2%"];
    let middle = format!("exec {BINARY} pep run --json --wireless wireless > pep");
    let more = ["--bytes", "2MB", "--middle", &middle];
    let ended = start(&scratch, hops, &more).end().expect(0);
    let done = ended.done();
    assert_eq!(done["complete"], true);
    let pep = lines(&scratch.path("pep"));
    let agent = pep.iter().find(|event| event["event"] == "done").unwrap();
    assert!(agent["repaired"].as_u64() > Some(0), "{agent}");
    // It has not begun before the agent was ready.
    assert!(agent["bypassed"]["mid_stream"].is_null(), "{agent}");
}

#[test]
fn an_upload_goes_the_other_way_over_one_connection_or_two() {
    let Some(scratch) = ground() else { return };
    // What is lost is lost of what the right host sends.
    let hops = [
        "rate=20mbit rtt=10ms",
        "rate=20mbit rtt=2ms return.loss=packets:20",
    ];
    for split in [false, true] {
        let more = ["--upload", "--bytes", "500kB", "--cc", "reno", "--split"];
        let more = &more[..more.len() - usize::from(!split)];
        let ended = start(&scratch, hops, more).end().expect(0);
        let done = ended.done();
        assert_eq!(
            (&done["bytes"], &done["complete"], &done["upload"]),
            (&500_000.into(), &true.into(), &true.into())
        );
        assert_eq!(done["hops"][1]["return"]["dropped_loss"], 1, "{done}");
        assert!(done["segments_again"].as_u64() >= Some(1), "{done}");
        for hop in done["hops"].as_array().unwrap() {
            let sent = |way: &str| hop[way]["sent_bytes"].as_u64().unwrap();
            assert!(sent("return") > 500_000, "{done}");
            assert!(sent("forward") < 100_000, "{done}");
        }
    }
}

#[test]
fn agents_on_both_sides_repair_an_upload_and_report_what_the_log_says() {
    let Some(scratch) = ground() else { return };
    fs::write(scratch.path("eln.key"), "5".repeat(64)).unwrap();
    let agent = |interface: &str, place: &str| {
        format!(
            "exec {BINARY} pep run --json --lag-max 10s --wireless {interface} --eln {place} --eln-key eln.key > {place}"
        )
    };
    let (base, mobile) = (agent("wireless", "base"), agent("right", "mobile"));
    let hops = ["rtt=20ms", "rate=20mbit rtt=4ms return.loss=3%"];
    let more = ["--upload", "--bytes", "1MB", "--log", "log"];
    let commands = ["--middle", &base, "--right", &mobile];
    let ended = start(&scratch, hops, &[&more[..], &commands].concat()).end();
    if ended.stderr.contains("--attach nfqueue needs") {
        sphinx_testing::skipped!("{}", ended.stderr);
        return;
    }
    let ended = ended.expect(0);
    assert_eq!(ended.done()["complete"], true);
    let (base, mobile) = (lines(&scratch.path("base")), lines(&scratch.path("mobile")));
    let totals = |events: &[Value]| {
        let done = events.iter().find(|event| event["event"] == "done");
        done.unwrap().clone()
    };
    let (heard, told) = (totals(&mobile), totals(&base));
    assert!(heard["repaired"].as_u64() >= Some(5), "{heard}");
    assert_eq!(heard["reports_refused"], 0, "{heard}");
    assert!(told["attributed"].as_u64() >= Some(5), "{told}");
    // What was reported begins with a packet that the log has too.
    let log = lines(&scratch.path("log"));
    let is_lost = |line: &&Value| {
        line["what"] == "loss" && line["link"] == "wireless" && line["direction"] == "return"
    };
    let lost: Vec<&Value> = log
        .iter()
        .filter(is_lost)
        .map(|it| &it["sequence"])
        .collect();
    let reports = base.iter().filter(|event| event["event"] == "reported");
    let ranges = reports.flat_map(|event| event["ranges"].as_array().unwrap());
    let starts: Vec<&Value> = ranges.map(|range| &range[0]).collect();
    assert!(starts.len() >= 5, "{base:?}");
    for start in starts {
        assert!(lost.contains(&start), "{start} of {lost:?}");
    }
}

/// The machine in front of the thin way back has the queue; the receiver lets fewer acknowledgements go when that one says so, and nobody else.
#[test]
fn marks_of_a_queue_are_heard_by_the_receivers_agent_and_forged_ones_are_not() {
    let Some(scratch) = ground() else { return };
    fs::write(scratch.path("0.key"), "5".repeat(64)).unwrap();
    fs::write(scratch.path("1.key"), "6".repeat(64)).unwrap();
    let agent = |interface: &str, stage: &str, key: usize, file: &str| {
        format!(
            "exec {BINARY} pep run --json --lag-max 10s --wireless {interface} --agent ack-cc:{stage} --marks-key {key}.key > {file}"
        )
    };
    let hops = [
        "rtt=20ms forward.rate=10mbit return.rate=28.8kbit return.queue=4kB",
        "rate=100mbit",
    ];
    for forged in [false, true] {
        let queue = agent(
            "wired",
            "rate=27.5kbit,marks=tell",
            usize::from(forged),
            "queue",
        );
        let receiver = agent("right", "marks=hear", 0, "receiver");
        let more = ["--bytes", "1MB", "--middle", &queue, "--right", &receiver];
        let ended = start(&scratch, hops, &more).end();
        if ended.stderr.contains("--attach nfqueue needs") {
            sphinx_testing::skipped!("{}", ended.stderr);
            return;
        }
        assert_eq!(ended.expect(0).done()["complete"], true);
        let [told, heard] = ["queue", "receiver"].map(|file| {
            let events = lines(&scratch.path(file));
            let done = events.iter().find(|event| event["event"] == "done");
            done.unwrap().clone()
        });
        let marked = told["acks_marked"].as_u64().unwrap();
        assert!(marked >= 3, "{told}");
        assert_eq!(told["acks_dropped"], serde_json::json!({}), "{told}");
        if forged {
            assert_eq!(heard["marks_refused"], marked, "{heard}");
            assert_eq!(heard["acks_marked"], 0, "{heard}");
            assert_eq!(heard["acks_dropped"], serde_json::json!({}), "{heard}");
        } else {
            assert_eq!(heard["marks_refused"], 0, "{heard}");
            assert!(heard["acks_marked"].as_u64() >= Some(2), "{heard}");
            assert!(
                heard["acks_dropped"]["thinned"].as_u64() >= Some(10),
                "{heard}"
            );
        }
    }
}

#[test]
fn a_split_path_is_two_connections() {
    let Some(scratch) = ground() else { return };
    let hops = ["rtt=10ms", "rate=20mbit rtt=2ms forward.loss=packets:10"];
    let more = ["--bytes", "500kB", "--split", "--no-sack"];
    let ended = start(&scratch, hops, &more).end().expect(0);
    let done = ended.done();
    assert_eq!(
        (&done["complete"], &done["sack"]),
        (&true.into(), &false.into())
    );
    // What the wireless hop has lost is not the left host's to send again.
    assert_eq!(done["segments_again"], 0, "{done}");
    assert_eq!(done["hops"][1]["forward"]["dropped_loss"], 1);
}

#[test]
fn what_does_not_arrive_in_time_is_told() {
    let Some(scratch) = ground() else { return };
    let more = ["--bytes", "10MB", "--time", "300ms"];
    let ended = start(&scratch, ["rate=1mbit", ""], &more).end().expect(7);
    let done = ended.done();
    assert_eq!(done["complete"], false);
    assert!(done["bytes"].as_u64() < Some(10_000_000), "{done}");
}

#[test]
fn a_command_that_cannot_run_is_told() {
    let Some(scratch) = ground() else { return };
    let ended = start(&scratch, ["", ""], &["--middle", "exit 3"])
        .end()
        .expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(
        message.contains("the middle command has ended: exit code 3"),
        "{message}"
    );
    let both = ["--middle", "true", "--right", "exit 4"];
    let ended = start(&scratch, ["", ""], &both).end().expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(
        message.contains("the right command has ended: exit code 4"),
        "{message}"
    );
    let ended = start(&scratch, ["loss=5", ""], &[]).end().expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(message.contains("the first hop: loss"), "{message}");
}

#[test]
fn an_interrupt_ends_everything() {
    let Some(scratch) = ground() else { return };
    // A number that no other process has in its command line.
    let sleep = format!("sleep {}.{}", 1_000_000, std::process::id());
    let middle = format!("echo x > ready; {sleep}; true");
    let hops = ["rate=1mbit", ""];
    let more = ["--bytes", "1GB", "--middle", &middle];
    let running = start(&scratch, hops, &more);
    let deadline = Instant::now() + PATIENCE;
    while !fs::read(scratch.path("ready")).is_ok_and(|text| text == b"x\n") {
        assert!(
            Instant::now() < deadline,
            "the middle command has not begun"
        );
        thread::sleep(Duration::from_millis(5));
    }
    running.signal(Signal::INT);
    running.end().expect(130);
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let sleeps = entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).replace('\0', " ").trim() == sleep);
    assert_eq!(sleeps.count(), 0);
}

/// While nobody is ready yet, and with commands that do not want to end.
#[test]
fn what_is_told_to_stop_removes_its_files_and_ends_its_log() {
    let sleep = "exec sleep 1000000";
    for (prefix, last) in [("", "middle"), ("trap '' TERM; ", "right")] {
        let Some(scratch) = ground() else { return };
        let temporary = scratch.path("temporary");
        fs::create_dir(&temporary).unwrap();
        let command = |name: &str| format!("{prefix}echo x > {name}; {sleep}");
        let (middle, right) = (command("middle"), command("right"));
        let line = [
            "lab", "path", "--json", "--hop", "", "--hop", "", "--middle", &middle, "--right",
            &right, "--log", "log",
        ];
        let directory = temporary.display().to_string();
        let running = Running::start(&scratch, &line, &[("TMPDIR", &directory)]);
        let deadline = Instant::now() + PATIENCE;
        while !fs::read(scratch.path(last)).is_ok_and(|text| text == b"x\n") {
            assert!(Instant::now() < deadline, "no {last} command");
            thread::sleep(Duration::from_millis(5));
        }
        running.signal(Signal::TERM);
        running.end().expect(143);
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{last}");
        let log = lines(&scratch.path("log"));
        let ends = log.iter().filter(|line| line["event"] == "end");
        assert_eq!(ends.count(), 2, "{last}");
    }
}

/// Those who wait for the time of their next message or object, an hour away, are told too.
#[test]
fn flows_that_wait_for_their_time_end_when_told_to() {
    let Some(scratch) = ground() else { return };
    // What it leaves behind tells when the first object has passed.
    let middle = "carried() { sed -n 's/^ *wireless: *//p' /proc/self/net/dev | awk '{ print $9 }'; }; \
                  { while [ $(carried) -lt 50000 ]; do sleep 0.05; done; echo x > ready; } &";
    let more = [
        "--time",
        "2h",
        "--flows",
        "name=messages bytes=100B interval=1h",
        "--flows",
        "name=objects fetch bytes=100kB interval=1h",
        "--middle",
        middle,
    ];
    let running = start(&scratch, ["", "rate=20mbit rtt=2ms"], &more);
    let deadline = Instant::now() + PATIENCE;
    while !fs::read(scratch.path("ready")).is_ok_and(|text| text == b"x\n") {
        assert!(Instant::now() < deadline, "no object has passed");
        thread::sleep(Duration::from_millis(5));
    }
    running.signal(Signal::TERM);
    running.end().expect(143);
}

#[test]
fn groups_of_flows_send_their_messages() {
    let Some(scratch) = ground() else { return };
    let hops = ["", "rate=20mbit rtt=20ms return.loss=packets:30"];
    let more = [
        "--upload",
        "--time",
        "1s",
        "--flows",
        "name=thin flows=3 bytes=100B interval=30ms",
        "--flows",
        "app=vnc",
        "--flows",
        "greedy flows=2 cc=reno",
        "--sysctl",
        "net.ipv4.tcp_ecn=1",
    ];
    let ended = start(&scratch, hops, &more).end().expect(0);
    let done = ended.done();
    let groups = done["groups"].as_array().expect("groups");
    let names: Vec<_> = groups.iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["thin", "vnc", "greedy"]);
    for group in &groups[..2] {
        assert_eq!(group["messages"], group["delivered"], "{group}");
        for delays in ["delivery_ms", "one_way_ms", "ack_ms", "transit_ms"] {
            assert!(group[delays]["count"].as_u64() > Some(0), "{group}");
        }
        // Half a round trip, and a whole one.
        assert!(group["one_way_ms"]["p50"].as_f64() >= Some(10.0), "{group}");
        assert!(group["ack_ms"]["p50"].as_f64() >= Some(20.0), "{group}");
    }
    assert_eq!(
        (&groups[0]["messages"], &groups[1]["messages"]),
        (&101.into(), &29.into())
    );
    assert_eq!(
        (&groups[2]["messages"], &groups[2]["congestion"]),
        (&0.into(), &"reno".into())
    );
    assert!(groups[2]["goodput_mbit_s"].as_f64() > Some(0.1), "{done}");
    assert!(done["segments_sent"].as_u64() > Some(130), "{done}");
}
