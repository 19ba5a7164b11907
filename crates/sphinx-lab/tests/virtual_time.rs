//! A scenario in virtual time, from its text to its results. Needs no namespaces.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use sphinx_lab::{
    contestants::Programs,
    machine::Environment,
    runner::{self, Progress, Results},
    scenario::Scenario,
};

const TEXT: &str = r#"
title = "T"
clock = "virtual"

[link]
rate = "100mbit"
rtt = "10ms"

[[workload]]
kind = "bulk"
bytes = "1MB"

[[workload]]
kind = "web"
pages = 1
objects = 1

[[contestant]]
kind = "sphinx"

[[contestant]]
name = "workers"
kind = "sphinx"
options = "--workers 2"

[[contestant]]
kind = "tcp"
congestion = "bbr"
"#;

/// A scenario of several runs that take little time.
const MANY: &str = r#"
title = "T"
clock = "virtual"
seeds = [3, 1, 2]
repetitions = 2

[link]
rate = "100mbit"
rtt = ["10ms", "20ms"]
loss = "2%"

[workload]
kind = "bulk"
bytes = "200kB"

[[contestant]]
kind = "sphinx"

[[contestant]]
name = "rs"
kind = "sphinx"
options = "--codec rs"
"#;

fn scenario(text: &str) -> Scenario {
    let programs = Programs::of_sphx("/nowhere/sphx".as_ref());
    Scenario::parse(text, Path::new(""), &programs, false).unwrap()
}

fn run(file: &Path) -> Results {
    run_of(&scenario(TEXT), file)
}

fn run_of(scenario: &Scenario, file: &Path) -> Results {
    let (environment, stop) = (Environment::detect(), AtomicBool::new(false));
    let mut progress = Progress::new(true);
    runner::run(scenario, Some(file), environment, &stop, &mut progress).unwrap()
}

#[test]
fn what_has_no_virtual_time_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.ndjson");
    let results = run(&file);
    let missing = results.missing.iter();
    let missing: Vec<String> = missing
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    assert_eq!(
        missing,
        [
            "workers: --workers 2 has no virtual time",
            "tcp-bbr: kernel TCP has no virtual time"
        ]
    );
    let [(bulk, of_bulk), (_, of_web)] = &results.cells[..] else {
        panic!("{:?}", results.cells);
    };
    assert!(bulk.description().contains("virtual time"));
    assert!(of_bulk[0].runs[0].done.complete && of_bulk[0].runs[0].cpu.is_none());
    assert_eq!(of_web[0].failures, ["missing: HTTP has no virtual time"]);
}

#[test]
fn runs_are_labelled_and_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.ndjson");
    let first = run(&file);
    assert_eq!(run(&file).cells, first.cells);
    let text = fs::read_to_string(&file).unwrap();
    let runs: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("\"event\":\"run\""))
        .collect();
    assert_eq!(runs.len(), 1, "{text}");
    assert!(runs[0].contains("\"clock\":\"virtual\""), "{}", runs[0]);
}

#[test]
fn what_was_cut_off_is_run_again_where_it_has_more_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.ndjson");
    let with_limit = |limit: &str| scenario(&format!("limit = \"{limit}\"\n{TEXT}"));
    let run = |limit: &str| {
        let results = run_of(&with_limit(limit), &file);
        let recalled = runner::recall(&with_limit(limit), &file).unwrap();
        assert_eq!(recalled.cells, results.cells, "{limit}");
        let [run] = &results.cells[0].1[0].runs[..] else {
            panic!("{:?}", results.cells);
        };
        run.clone()
    };
    // The transfer is cut off: a megabyte takes 80 ms.
    let short = run("50ms");
    assert!(!short.done.complete && short.done.bytes < 1_000_000);
    assert_eq!(run("50ms"), short);
    let long = run("60s");
    assert!(long.done.complete);
    // Where there is time for all of it, the limit changes nothing.
    assert_eq!(run("30s"), long);
    assert_eq!(run("50ms"), short);
    let text = fs::read_to_string(&file).unwrap();
    let made = text
        .lines()
        .filter(|line| line.contains("\"event\":\"run\""));
    assert_eq!(made.count(), 2, "{text}");
}

#[test]
fn runs_that_end_in_any_order_are_recalled_in_that_of_the_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.ndjson");
    let many = scenario(MANY);
    let results = run_of(&many, &file);
    let rounds = [(3, 0), (3, 1), (1, 0), (1, 1), (2, 0), (2, 1)];
    for (_, groups) in &results.cells {
        for group in groups {
            let runs = group.runs.iter();
            let made: Vec<_> = runs.map(|run| (run.seed, run.repetition)).collect();
            assert_eq!(made, rounds, "{}", group.contestant);
        }
    }
    assert_eq!(runner::recall(&many, &file).unwrap().cells, results.cells);
}

#[test]
fn links_that_look_alike_have_runs_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.ndjson");
    let marked = |above: &str| {
        let link = format!("loss = \"2%\"\nmark = \"{above}\"\n");
        scenario(&MANY.replace("loss = \"2%\"\n", &link))
    };
    let (early, late) = (marked("1ms"), marked("9ms"));
    let first = run_of(&early, &file);
    let second = run_of(&late, &file);
    let description = |results: &Results| results.cells[0].0.description();
    assert_eq!(description(&first), description(&second));
    for (scenario, results) in [(&early, &first), (&late, &second)] {
        let recalled = runner::recall(scenario, &file).unwrap();
        assert_eq!(recalled.cells, results.cells);
        assert_eq!(run_of(scenario, &file).cells, results.cells);
    }
    let text = fs::read_to_string(&file).unwrap();
    let made = |text: &str| text.matches("\"event\":\"run\"").count();
    assert_eq!(made(&text), 2 * 24);
    // Files of before tell no details: pages take their runs for what they seem to be.
    let older = text
        .replace(",\"details\":\"marks above 1000 us\"", "")
        .replace("\"details\":\"marks above 1000 us\",", "");
    assert!(!older.contains("above 1000 us"));
    fs::write(&file, older).unwrap();
    assert_eq!(runner::recall(&late, &file).unwrap().cells, second.cells);
}
