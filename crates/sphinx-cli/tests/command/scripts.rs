//! The scripts: what they do when something fails, when they are told to end, and when they are asked for what they do not know. Where it is not
//! the command that matters, another one is in its place.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::common::{PATIENCE, Scratch, may_make_namespaces};

/// What is in the place of `sphx` says that it listens, and waits.
const WAITS: &str = "exec sleep 1000";
const FAILS: &str = "exit 1";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether these programs are there; says why the test is skipped if not.
fn has(programs: &[&str]) -> bool {
    let missing = programs
        .iter()
        .find(|program| Command::new(program).arg("-V").output().is_err());
    if let Some(program) = missing {
        sphinx_testing::skipped!("there is no {program}");
    }
    missing.is_none()
}

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
    sphinx_testing::write_program(path, text).expect("a program");
}

/// Something in the place of `sphx`: ends that listen do so, and wait for ever; all others do as is said.
fn instead(scratch: &Scratch, others: &str) -> PathBuf {
    let (path, started) = (scratch.path("bin/sphx"), scratch.path("started"));
    let text = format!(
        "echo $$ >> {}\ncase \"$*\" in\nlab*) {others} ;;\n*'perf server'*|*recv*|*'pep run'*|server*)\n\
         echo '{{\"event\": \"listening\", \"listen\": \"127.0.0.1:1\", \"worker\": '$$'}}'\n{WAITS} ;;\n*) {others} ;;\nesac",
        started.display()
    );
    program(&path, &text);
    path
}

/// A script that runs.
struct Script {
    line: String,
    child: Child,
    said: PathBuf,
}

impl Script {
    fn start(scratch: &Scratch, line: &str, sphx: &Path) -> Script {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        let said = scratch.path("said");
        let output = || {
            Stdio::from(
                fs::File::options()
                    .create(true)
                    .append(true)
                    .open(&said)
                    .expect("a file"),
            )
        };
        fs::create_dir_all(scratch.path("tmp")).expect("a directory");
        let child = Command::new(root().join("scripts").join(name))
            .args(words)
            .current_dir(scratch.path("."))
            .env("SPHX", sphx)
            .env("RUNS", "1")
            .env("CARGO_TARGET_DIR", scratch.path("target"))
            .env("TMPDIR", scratch.path("tmp"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .spawn()
            .expect("a script");
        let line = line.to_owned();
        Script { line, child, said }
    }

    /// Waits for something that it does.
    fn until(&mut self, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none(), "{}: {ended:?}: {}", self.line, self.said());
            assert!(Instant::now() < deadline, "{}: {}", self.line, self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} does not end: {}",
                self.line,
                self.said()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Namespaces have the number of the script's process in their names.
    fn assert_nothing_left(&self, scratch: &Scratch) {
        let names = |directory: &Path| -> Vec<String> {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let own = format!("-{}-", self.child.id());
        let namespaces = names(Path::new("/run/netns"));
        assert!(
            !namespaces.iter().any(|name| name.contains(&own)),
            "{}: {namespaces:?}",
            self.line
        );
        let files = names(&scratch.path("tmp"));
        assert!(files.is_empty(), "{}: {files:?}", self.line);
        let started = fs::read_to_string(scratch.path("started")).unwrap_or_default();
        for pid in started.lines() {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(command != b"sleep\x001000\x00", "{}: {pid} runs", self.line);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // Those that have ended are waited for already.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Scripts that start ends, with as little as they can do.
fn benches() -> Vec<&'static str> {
    let mut benches = vec![
        "bench-resume --bytes 1kB",
        "bench-streams 1kB",
        "bench-flood none",
        "bench-tun --seeds 1",
    ];
    if has(&["iperf3"]) {
        benches.push("bench-fairness 8");
    }
    // Their sshd is root's.
    if !geteuid().is_root() {
        sphinx_testing::skipped!("bench-cp and bench-sync need root");
    } else if has(&["ssh", "ssh-keygen"]) {
        benches.push("bench-cp --bytes 1kB");
        benches.push("bench-sync --only changed --big 2kB --changed 1kB");
    }
    if has(&["ip"]) && may_make_namespaces() {
        benches.push("bench-xdp 1 1000");
        benches.push("bench-pep-gaps 1");
        benches.push("bench-tunnel --only veth --contestants sphx");
        if has(&["tc", "ethtool", "iperf3"]) {
            benches.push("bench-veth --rounds 1 --bytes 1000 --conditions whole");
        }
    }
    benches
}

#[test]
fn a_bench_with_an_end_that_fails_fails_and_leaves_nothing() {
    if !has(&["python3"]) {
        return;
    }
    // The agents of this one do not connect to anything: what arrives between kernels does not depend on them.
    for line in benches()
        .into_iter()
        .filter(|line| !line.starts_with("bench-pep-gaps") && !line.starts_with("bench-tunnel"))
    {
        let scratch = Scratch::new();
        let mut script = Script::start(&scratch, line, &instead(&scratch, FAILS));
        let status = script.end();
        assert!(!status.success(), "{line}: {}", script.said());
        script.assert_nothing_left(&scratch);
    }
}

#[test]
fn a_bench_that_is_told_to_end_leaves_nothing() {
    if !has(&["python3"]) {
        return;
    }
    for line in benches() {
        let scratch = Scratch::new();
        let mut script = Script::start(&scratch, line, &instead(&scratch, WAITS));
        script.until(|| scratch.path("started").exists());
        let _ = kill_process(Pid::from_child(&script.child), Signal::TERM);
        assert_eq!(script.end().code(), Some(143), "{line}: {}", script.said());
        script.assert_nothing_left(&scratch);
    }
}

#[test]
fn scripts_refuse_what_they_do_not_know() {
    if !has(&["python3"]) {
        return;
    }
    let cases = [
        ("soak --only lossy-link", "there are files,"),
        (
            "mutants-pep no-such-fault",
            "no fault is chosen by 'no-such-fault'",
        ),
        ("mutants-pep 9000-9001", "no fault is chosen by '9000-9001'"),
        (
            "bench-tunnel --only forward,tnu",
            "no such experiment: 'tnu'",
        ),
        (
            "bench-tunnel --contestants spxh",
            "no such contestant: 'spxh'",
        ),
        (
            "bench-sync --only chnaged",
            "there are many, unchanged, changed",
        ),
        ("bench-fairness soon", "SECONDS are 8 at least"),
        ("bench-fairness 2", "SECONDS are 8 at least"),
        ("bench-resume --at 100%", "invalid part value"),
        ("bench-resume --bytes 2TX", "invalid size value"),
        ("bench-pep-gaps often", "usage:"),
    ];
    for (line, words) in cases {
        let scratch = Scratch::new();
        let mut script = Script::start(&scratch, line, &instead(&scratch, FAILS));
        let status = script.end();
        assert!(!status.success(), "{line}: {}", script.said());
        assert!(script.said().contains(words), "{line}: {}", script.said());
        assert!(!scratch.path("started").exists(), "{line} began");
    }
}

#[test]
fn a_soak_that_is_told_to_end_leaves_nothing() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new();
    let sphx = Path::new(env!("CARGO_BIN_EXE_sphx"));
    let mut script = Script::start(&scratch, "soak --only killed,stopped --seconds 600", sphx);
    let tmp = scratch.path("tmp");
    let running = || -> bool {
        let soaks = fs::read_dir(&tmp).into_iter().flatten().flatten();
        let mut scenes = soaks.flat_map(|soak| fs::read_dir(soak.path()).into_iter().flatten());
        scenes.any(|scene| {
            scene.is_ok_and(|it| it.file_name().to_string_lossy().starts_with("00002-"))
        })
    };
    script.until(running);
    let _ = kill_process(Pid::from_child(&script.child), Signal::TERM);
    assert_eq!(script.end().code(), Some(143), "{}", script.said());
    assert!(!script.said().contains("FOUND"), "{}", script.said());
    script.assert_nothing_left(&scratch);
    for process in fs::read_dir("/proc").expect("processes").flatten() {
        let place = fs::read_link(process.path().join("cwd")).unwrap_or_default();
        assert!(
            !place.starts_with(&tmp),
            "{} runs",
            process.path().display()
        );
    }
}

#[test]
fn a_soak_without_a_scene_has_not_passed() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new();
    let sphx = Path::new(env!("CARGO_BIN_EXE_sphx"));
    let mut script = Script::start(&scratch, "soak --only files --seconds 0", sphx);
    assert_eq!(script.end().code(), Some(1), "{}", script.said());
    assert!(
        script.said().contains("no scene has been through"),
        "{}",
        script.said()
    );
}

#[test]
fn faults_are_looked_for_by_the_tests_that_there_are() {
    if !has(&["python3", "git"]) {
        return;
    }
    let scratch = Scratch::new();
    let repository = scratch.path("repository");
    let files = [
        "scripts/mutants-pep",
        "scripts/common.py",
        "docs/pep-evidence.md",
        "crates/sphinx-pep/src/lib.rs",
        "crates/sphinx-pep/src/sequence.rs",
    ];
    for name in files {
        let target = repository.join(name);
        fs::create_dir_all(target.parent().expect("below the root")).expect("a directory");
        fs::copy(root().join(name), target).expect("a copy");
    }
    let test = "crates/sphinx-pep/tests/goes.rs";
    fs::create_dir_all(repository.join("crates/sphinx-pep/tests")).expect("a directory");
    fs::write(repository.join(test), "").expect("a file");
    let git = |line: &str| {
        let done = Command::new("git")
            .current_dir(&repository)
            .args(line.split(' '))
            .output();
        assert!(done.expect("git").status.success(), "git {line}");
    };
    git("init --quiet");
    git("add --all");
    // Nothing is built: it is the copy that matters.
    program(&scratch.path("bin/cargo"), FAILS);
    let path = format!(
        "{}:{}",
        scratch.path("bin").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let copied = || -> bool {
        let run = Command::new(repository.join("scripts/mutants-pep"))
            .arg("sequence numbers do not wrap")
            .env("PATH", &path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("a script");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(said.contains("does not build"), "{said}");
        assert!(
            repository
                .join("target/mutants/crates/sphinx-pep/src/sequence.rs")
                .exists()
        );
        repository.join("target/mutants").join(test).exists()
    };
    assert!(copied());
    git(&format!("rm --quiet --force {test}"));
    assert!(!copied());
}

/// What `sphx lab figure all --quick` says, and what the figures' gate makes of that.
fn figures(said: &str) -> (Option<i32>, String) {
    let scratch = Scratch::new();
    let lines = scratch.path("lines");
    fs::write(&lines, said).expect("a file");
    let sphx = scratch.path("bin/sphx");
    program(&sphx, &format!("cat {}\nexit 1", lines.display()));
    let mut script = Script::start(&scratch, "lab-quick", &sphx);
    (script.end().code(), script.said())
}

#[test]
fn one_fault_among_many_excuses_is_found() {
    let excuse = ", as the emulator was starved: sphinx in r10-l6\n";
    let mut said = "falls short: sphinx in r10-l0\n".to_owned();
    // More than a pipe holds.
    for number in 0..2000 {
        let _ = write!(said, "falls short of {number}: falls short{excuse}");
        let _ = write!(said, "falls short: figure {number}{excuse}");
    }
    let (code, told) = figures(&said);
    assert_eq!(code, Some(1), "{}", &told[told.len().saturating_sub(500)..]);
    // Without it the machine is to blame.
    let excused = said.split_once('\n').expect("lines").1;
    let (code, told) = figures(excused);
    assert_eq!(code, Some(0), "{}", &told[told.len().saturating_sub(500)..]);
    assert!(
        told.contains("NOT DECIDED here"),
        "{}",
        &told[..500.min(told.len())]
    );
}

#[test]
fn figures_that_are_told_to_end_do_so() {
    let scratch = Scratch::new();
    let mut script = Script::start(&scratch, "lab-quick", &instead(&scratch, WAITS));
    script.until(|| scratch.path("started").exists());
    let _ = kill_process(Pid::from_child(&script.child), Signal::TERM);
    assert_eq!(script.end().code(), Some(143), "{}", script.said());
    script.assert_nothing_left(&scratch);
}

#[test]
fn the_gate_names_what_was_skipped_and_closes_with_the_summary() {
    let gate = fs::read_to_string(root().join(".ci/run")).expect("the gate");
    let function = gate.split_once("\nwith_skips() {").expect("the function").1;
    let function = function.split_once("\n}\n").expect("its end").0;
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("with_skips() {{{function}\n}}\nwith_skips")]);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().expect("bash");
    let said = "     Running one\ntest a ... ok\nskipped: b: no ip\ntest b ... ok\n\ntest result: ok. 2 passed\n\n   \
                Doc-tests two\n\nskipped: c: no sshd\n\ntest result: ok. 3 passed\n\nall doctests ran\n";
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(said.as_bytes()).expect("a reader");
    drop(input);
    let output = child.wait_with_output().expect("its end");
    let (before, last) = said.split_once("test result: ok. 3").expect("a summary");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!(
            "{before}skipped here, 2 in all:\nb: no ip\nc: no sshd\n\ntest result: ok. 3{last}"
        )
    );
}

#[test]
fn the_gate_ends_what_its_jobs_have_started() {
    let gate = fs::read_to_string(root().join(".ci/run")).expect("the gate");
    let function = gate.split_once("\nend() {").expect("the function").1;
    let function = function.split_once("\n}\n").expect("its end").0;
    // As make does, it ends what it has started when it is told to, which leaves alone what that has, as cargo does.
    let cargo = "sh -c 'sleep 1000 & echo $!; wait' & trap \"kill $!; exit 1\" TERM; wait";
    let mut job = Command::new("sh")
        .args(["-c", cargo])
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut started = String::new();
    let said = job.stdout.take().expect("a pipe");
    BufReader::new(said)
        .read_line(&mut started)
        .expect("a number");
    let text = format!("figures=\nend() {{{function}\n}}\nend {}", job.id());
    let status = Command::new("bash").args(["-euc", &text]).status();
    assert!(status.expect("bash").success());
    assert!(!job.wait().expect("our child").success());
    let place = format!("/proc/{}/cmdline", started.trim());
    let deadline = Instant::now() + PATIENCE;
    // Also of one that nobody has waited for yet there is nothing to read.
    while fs::read(&place).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < deadline, "{started} runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn results_are_rendered_though_claims_do_not_hold() {
    if !has(&["make"]) {
        return;
    }
    let scratch = Scratch::new();
    // Neither is the page looked at: there is no browser that runs.
    for name in ["sphx", "chromium"] {
        let said = scratch.path("said");
        let text = format!("echo {name} \"$1 $2\" >> {}\nexit 1", said.display());
        program(&scratch.path("bin").join(name), &text);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let run = Command::new("make")
        .args(["--old-file=build", "CARGO=true", "results"])
        .current_dir(root())
        .env("SPHX", scratch.path("bin/sphx"))
        .env("PATH", format!("{}:{path}", scratch.path("bin").display()))
        .output()
        .expect("make");
    assert!(!run.status.success());
    let said = fs::read_to_string(scratch.path("said")).unwrap_or_default();
    assert!(
        said.starts_with("sphx lab figure\nsphx lab report\n"),
        "{said}"
    );
}

/// Sources of tests, as one text.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Words of a recipe's line that choose tests: `cargo test` is content with none.
fn filters(line: &str) -> Vec<&str> {
    let Some((_, arguments)) = line.split_once(" test ") else {
        return Vec::new();
    };
    let with_values = [
        "--package",
        "--test",
        "--features",
        "--target",
        "--target-dir",
    ];
    let mut words = arguments.split_whitespace();
    let mut filters = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "|" | "\\" | "2>/dev/null" => break,
            _ if with_values.contains(&word) => drop(words.next()),
            _ if word.starts_with('-') || word.starts_with('$') => {}
            _ => filters.push(word),
        }
    }
    filters
}

#[test]
fn every_filter_of_the_makefile_chooses_tests() {
    let recipes = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let mut text = String::new();
    sources(&root().join("crates"), &mut text);
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
            line.strip_prefix("fn ")
                .or_else(|| line.strip_prefix("mod "))
        })
        .map(|rest| {
            rest.split(|it: char| !it.is_alphanumeric() && it != '_')
                .next()
                .unwrap_or(rest)
        })
        .collect();
    let chosen: Vec<&str> = recipes
        .lines()
        .filter(|line| line.starts_with('\t'))
        .flat_map(filters)
        .collect();
    assert!(chosen.len() > 12, "{chosen:?}");
    for filter in chosen {
        for part in filter.split("::") {
            assert!(
                names.iter().any(|name| name.contains(part)),
                "no test is called {filter}"
            );
        }
    }
}
