//! `sphx lab run`, `figure` and `report`, by the command. Measurements are skipped, saying so, where
//! network namespaces are not allowed.

use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

use crate::common::{PATIENCE, Running, Scratch};
use rustix::process::Signal;
use serde_json::{Value, json};

const SCENARIO: &str = r#"
title = "Test"

[link]
rate = "50mbit"
rtt = "2ms"
loss = "1%"

[[workload]]
kind = "bulk"
bytes = "200kB"

[[workload]]
kind = "video"
time = "1s"
segment = "200ms"
buffer = "1s"
quality = "2"

[[workload]]
kind = "web"
pages = 1
objects = 8

[[contestant]]
kind = "tcp"
congestion = "reno"

[[contestant]]
kind = "sphinx"

[[contestant]]
name = "nonsense"
kind = "sphinx"
options = "--codec nonsense"

[[contestant]]
kind = "tunnel"
receiver = "no-such-program"
sender = "no-such-program"
"#;

fn has_namespaces() -> bool {
    let allowed = sphinx_netdev::netns::probe();
    if let Err(error) = &allowed {
        sphinx_testing::skipped!("{error}");
    }
    allowed.is_ok()
}

#[test]
fn an_experiment_runs_and_goes_on_where_it_stopped() {
    if !has_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let results = scratch.path("r.ndjson");
    fs::write(scratch.path("s.toml"), SCENARIO).unwrap();
    let line = ["lab", "run", "s.toml", "--results", "r.ndjson", "--json"];
    let ended = Running::start(&scratch, &line, &[]).end().expect(0);
    let done = ended.done();
    let missing = &done["missing"];
    assert_eq!(
        missing["no-such-program"],
        "no-such-program is not installed"
    );
    assert!(missing["nonsense"].is_string(), "{missing}");
    let text = fs::read_to_string(&results).unwrap();
    // A machine that starves the emulator makes runs twice.
    let runs = |text: &str| {
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let runs = lines.filter(|line| line["event"] == "run");
        let names = runs.map(|run| format!("{} {}", run["cell"], run["contestant"]));
        names.collect::<BTreeSet<String>>().len()
    };
    assert_eq!(runs(&text), 6, "{text}");
    assert!(!text.contains("\"event\":\"failed\""), "{text}");
    assert!(
        text.contains("\"page_ms_mean\"") && text.contains("\"stalls\""),
        "{text}"
    );
    // Half a line, and all runs but one.
    let last = text.rfind("{\"v\":1,\"event\":\"run\"").unwrap();
    fs::write(&results, &text[..last + 30]).unwrap();
    Running::start(&scratch, &line, &[]).end().expect(0);
    let again = fs::read_to_string(&results).unwrap();
    assert_eq!(runs(&again), 6, "{again}");
}

/// Of those that ran, and of those that did not.
#[test]
fn runs_that_fail_are_in_the_exit_code() {
    let run = |scratch: &Scratch, head: &str, contestants: &[&str]| {
        let workload = "[workload]\nkind = \"bulk\"\nbytes = \"200kB\"\n";
        let table = |it: &&str| format!("[[contestant]]\n{it}\n");
        let contestants = contestants.iter().map(table).collect::<String>();
        let scenario = format!("{head}{workload}{contestants}");
        fs::write(scratch.path("s.toml"), scenario).unwrap();
        Running::start(scratch, &["lab", "run", "s.toml", "--json"], &[]).end()
    };
    let link = "title = \"T\"\n[link]\nrate = \"50mbit\"\nrtt = \"2ms\"\n";
    let reno = "kind = \"tcp\"\ncongestion = \"reno\"";
    let scratch = Scratch::new();
    let simulated = format!("clock = \"virtual\"\n{link}");
    let ended = run(&scratch, &simulated, &[reno]).expect(1);
    let message = ended.error("other")["message"].to_string();
    assert!(message.contains("no virtual time"), "{message}");
    if !has_namespaces() {
        return;
    }
    // Its options are right, and there is no such interface.
    let fails = "kind = \"sphinx\"\nname = \"fails\"\noptions = \"--path nowhere\"";
    let scratch = Scratch::new();
    run(&scratch, link, &[fails]).expect(1).error("other");
    let ended = run(&scratch, link, &[reno, fails]).expect(7);
    assert_eq!(ended.done()["failed"], 1);
    assert_eq!(ended.done()["missing"], json!({}));
}

/// A server whose client is known goes on for more of them until it is ended: nobody is left to do so.
#[test]
fn a_lab_that_is_killed_leaves_nobody_behind() {
    if !has_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let scenario = SCENARIO.split_once("[[workload]]").unwrap().0;
    let scenario = scenario.replace("50mbit", "1mbit")
        + "[[workload]]\nkind = \"bulk\"\nbytes = \"1MB\"\n\n[[contestant]]\nkind = \"sphinx\"\nknown = true\n";
    fs::write(scratch.path("s.toml"), scenario).unwrap();
    // In the command line of both ends, and of nobody else.
    let directory = scratch.path("temporary").display().to_string();
    fs::create_dir(&directory).unwrap();
    let ends = || {
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let ends = lines.filter(|line| String::from_utf8_lossy(line).contains(&directory));
        ends.count()
    };
    let until = |count: usize| {
        let deadline = Instant::now() + PATIENCE;
        while ends() != count {
            assert!(Instant::now() < deadline, "never {count} ends");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let line = ["lab", "run", "s.toml", "--json"];
    let running = Running::start(&scratch, &line, &[("TMPDIR", &directory)]);
    until(2);
    running.signal(Signal::KILL);
    until(0);
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let scratch = Scratch::new();
    fs::write(scratch.path("s.toml"), SCENARIO.replace("rtt", "rrt")).unwrap();
    let ended = Running::start(&scratch, &["lab", "run", "s.toml", "--json"], &[])
        .end()
        .expect(2);
    let message = ended.events.last().expect("an error")["message"].to_string();
    assert!(
        message.contains("line 6") && message.contains("rrt"),
        "{message}"
    );
}

#[test]
fn seeds_that_a_figure_does_not_heed_are_refused() {
    let scratch = Scratch::new();
    let line = "lab figure 8 --quick --json --output d --seeds 3";
    let words: Vec<&str> = line.split(' ').collect();
    let ended = Running::start(&scratch, &words, &[]).end().expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(message.contains("--seeds"), "{message}");
}

/// The command line is right, and a program that it names has no speed.
#[test]
fn a_program_beside_the_codes_that_fails_is_no_usage_error() {
    let scratch = Scratch::new();
    for program in ["a=/bin/false", "a=./absent"] {
        let line = format!("codes bench --json --code rlc --n 16 --time-ms 1 --peer {program}");
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(1);
        ended.error("other");
    }
}

/// Figure 8 as if it had been measured: nothing here may depend on how fast a machine is.
fn plant_coding_times(scratch: &Scratch) {
    let mut lines = vec![
        json!({"event": "environment", "kernel": "6", "cpu": "a", "cores": 2, "commit": "0123456789ab"}),
    ];
    for round in 1..=10 {
        let time = |code, repairs, us: f64| {
            let us = us + f64::from(round) / 100.0;
            json!({"code": code, "repairs": repairs, "symbol_bytes": 1000, "encode_us": us, "decode_us": us})
        };
        let times = [
            ("srlt T=0.5 (paper)", 15, 2.0),
            ("lt", 137, 15.0),
            ("rs", 13, 18.0),
            ("fft-rs", 13, 3.0),
        ];
        let times = times.map(|(code, repairs, us)| time(code, repairs, us));
        lines.push(json!({"round": round, "times": times, "commit": "0123456789ab"}));
    }
    let lines = lines.iter().map(|line| format!("{line}\n"));
    fs::write(scratch.path("d/fig8.ndjson"), lines.collect::<String>()).unwrap();
    let page = "Reproduce this: `sphx lab figure 8 --quick`\n";
    fs::write(scratch.path("d/fig8.md"), page).unwrap();
}

#[test]
fn a_report_needs_figures() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("d")).unwrap();
    let report = |options: &[&str], code| {
        let line = [&["lab", "report", "d"], options].concat();
        Running::start(&scratch, &line, &[]).end().expect(code)
    };
    report(&[], 8);
    plant_coding_times(&scratch);
    report(&["--redraw"], 0);
    report(&[], 0);
    let page = fs::read_to_string(scratch.path("d/index.html")).unwrap();
    assert!(page.matches("<svg").count() == 2 && page.contains("lab figure 8 --quick"));
    // Whoever reads it knows for which redundancy.
    let drawn = fs::read_to_string(scratch.path("d/fig8.md")).unwrap();
    let row = { drawn.lines() }.find(|line| line.starts_with("| srlt T=0.5 (paper)"));
    let cells: Vec<&str> = row.expect("a row").split('|').map(str::trim).collect();
    assert_eq!(cells[3], "15", "{drawn}");
    let data = fs::read_to_string(scratch.path("d/fig8-decode.csv")).unwrap();
    assert!(data.contains("\nlt,137,1000,1,15.010\n"), "{data}");
    // A caption that its runs do not say.
    let caption = scratch.path("d/fig8.md");
    let text = fs::read_to_string(&caption).unwrap();
    let lie = text.replace("lt` sends no source symbols", "lt` sends everything");
    assert_ne!(lie, text);
    fs::write(&caption, lie).unwrap();
    report(&[], 1);
    report(&["--redraw"], 0);
    assert_eq!(fs::read_to_string(&caption).unwrap(), text);
}

#[test]
fn results_are_no_device() {
    if !has_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.path("s.toml"), SCENARIO).unwrap();
    let line = ["lab", "run", "s.toml", "--results", "/dev/full"];
    Running::start(&scratch, &line, &[]).end().expect(8);
}
