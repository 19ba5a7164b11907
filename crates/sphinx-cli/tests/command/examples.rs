//! Every example that `--help`, README.md and docs print is run as it is printed, on one machine: what
//! listens does so on loopback, long ones are made short, and programs of others are replaced by ones
//! that do nothing. What cannot be run here is listed with the reason.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Scratch};
use rustix::process::{Pid, Signal, kill_process};

/// Beginnings of examples that are not run, and why.
const LISTED: [(&str, &str); 36] = [
    ("make ", "builds and measures"),
    ("cargo build ", "builds"),
    (
        "git clone ",
        "needs the place the repository is published at",
    ),
    ("sphx lab figure ", "takes minutes; make lab-quick runs it"),
    (
        "target/release/sphx lab figure ",
        "takes minutes; make lab-quick runs it",
    ),
    (
        "sphx lab report",
        "reads what lab figure has written; make lab-quick runs it",
    ),
    ("sphx recv --once | ssh ", "needs another machine"),
    (
        "sphx recv --identity ",
        "keeps keys in its user's directory; tests/standing.rs has one elsewhere",
    ),
    (
        "sphx ticket ",
        "needs what recv --identity keeps; tests/standing.rs has it",
    ),
    ("sphx join ", "needs a server; tests/joining.rs has one"),
    (
        "sphx send office: ",
        "needs a server that was joined; tests/one_port.rs has one",
    ),
    (
        "sphx perf client office",
        "needs a server that was joined; tests/one_port.rs has one",
    ),
    (
        "sphx config ",
        "reads its user's files; tests/joining.rs has others",
    ),
    (
        "sphx recv --io ",
        "needs root and an interface; tests/past_the_kernel.rs has them",
    ),
    (
        "sphx perf server --io ",
        "needs root and an interface; tests/past_the_kernel.rs has them",
    ),
    (
        "sphx perf client --io ",
        "needs root and an interface; tests/past_the_kernel.rs has them",
    ),
    (
        "sphx perf server --workers ",
        "names processors that a machine may not have; tests/workers.rs has those that are there",
    ),
    (
        "sphx send --ticket-file t --path ",
        "needs two interfaces; tests/several_paths.rs has them",
    ),
    (
        "sphx perf client --ticket-file t --rate 8mbit --path ",
        "needs two interfaces; tests/several_paths.rs has them",
    ),
    (
        "sphx ctl paths",
        "needs a sender that runs, with several paths",
    ),
    (
        "sphx ctl bond",
        "needs a sender that runs, with several paths",
    ),
    (
        "sphx cp ",
        "needs another machine with an sshd; tests/cp.rs has one",
    ),
    (
        "sphx sync ",
        "needs another machine with an sshd; tests/cp/sync.rs has one",
    ),
    (
        "sphx perf client ssh:",
        "needs another machine with an sshd; tests/cp.rs has one",
    ),
    (
        "sphx server ",
        "stays up; tests/tunnel.rs has one for each flag",
    ),
    (
        "sphx tunnel ",
        "needs a server and stays up; tests/tunnel.rs has one for each flag",
    ),
    (
        "sphx recv --stdout ",
        "needs a sender; tests/streams.rs has one",
    ),
    (
        "sphx lab link --interfaces ",
        "needs root and two Ethernet interfaces",
    ),
    (
        "sphx pep run ",
        "needs root and a router; tests/pep.rs has one",
    ),
    (
        "sphx pep exec ",
        "needs root, control groups and the program; tests/thin.rs has them",
    ),
    (
        "sphx pep handoff ",
        "needs two agents; tests/pep.rs has them",
    ),
    (
        "sphx pep key new ",
        "writes a file that may not be there yet; tests/pep.rs does so",
    ),
    (
        "sphx pep install ",
        "starts a unit of systemd; tests/pep.rs installs it elsewhere",
    ),
    (
        "sphx pep doctor ",
        "names the interfaces of a router; tests/pep.rs has one",
    ),
    (
        "sphx pep show",
        "needs an agent that runs; tests/pep.rs has one",
    ),
    (
        "sphx pep set ",
        "needs an agent that runs; tests/pep.rs has one",
    ),
];
/// Programs of others, and what they are instead.
const PROGRAMS: [&str; 5] = ["curl", "iperf3", "ping", "python3", "tcpdump"];
/// Files and directories that examples send.
const FILES: [&str; 7] = [
    "a.iso",
    "film.mkv",
    "movie.mkv",
    "FILE",
    "pics/a",
    "pictures/a",
    "holiday/a",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Codes,
    Cost,
    Demo,
    /// A link that goes on until it is told to end.
    Open,
    Lab,
    /// Something said to a link that runs.
    Live,
    Measure,
    /// A transfer over a path.
    Path,
    /// Both ends, with the ticket in a pipe between them.
    Piped,
    /// Reads a capture.
    Replay,
    Send,
    Serve,
}

fn kind(line: &str) -> Option<Kind> {
    let has = |what: &str| line.contains(what);
    Some(match () {
        () if has("sphx recv") && has("| sphx send") => Kind::Piped,
        () if has("sphx recv") || has("sphx perf server") => Kind::Serve,
        () if has("sphx send") => Kind::Send,
        () if has("sphx perf client") => Kind::Measure,
        () if has("sphx perf cost") => Kind::Cost,
        () if has("sphx demo") => Kind::Demo,
        () if has("sphx codes") => Kind::Codes,
        () if has("sphx lab path") => Kind::Path,
        () if has("sphx lab link set") || has("sphx lab link show") => Kind::Live,
        () if has("sphx lab link") && !has(" -- ") && !has("--left") => Kind::Open,
        () if has("sphx lab link") || has("sphx lab run") => Kind::Lab,
        () if has("sphx pep replay") => Kind::Replay,
        () => return None,
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Examples in the help of a command and of all below it. What they do is told behind three spaces.
fn of_help(command: &clap::Command, examples: &mut Vec<String>) {
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("sphx ") || line.starts_with("SPHX_TICKET="));
    let lines = lines.map(|line| line.split("   ").next().unwrap_or(line).trim());
    examples.extend(lines.map(str::to_owned));
    for below in command.get_subcommands() {
        of_help(below, examples);
    }
}

/// Examples in the code blocks of a page.
fn of_page(text: &str, examples: &mut Vec<String>) {
    let mut block = None;
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            block = block.is_none().then_some(language);
            continue;
        }
        let command = line.split(" #").next().unwrap_or(line).trim();
        let program = command.split(' ').next().unwrap_or_default();
        let programs = ["sphx", "make", "git", "cargo", "target/release/sphx"];
        let is_command = programs.contains(&program) || program.starts_with("scripts/");
        if matches!(block, Some("" | "sh")) && is_command {
            examples.push(command.to_owned());
        }
    }
}

/// All examples that are run.
fn examples() -> Vec<String> {
    let mut examples = Vec::new();
    of_help(&sphinx_cli::grammar(), &mut examples);
    let mut pages = vec![root().join("README.md")];
    for entry in fs::read_dir(root().join("docs")).expect("the documents") {
        pages.push(entry.expect("an entry").path());
    }
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|end| end == "md"))
    {
        of_page(&fs::read_to_string(page).expect("a page"), &mut examples);
    }
    examples.sort();
    examples.dedup();
    assert!(examples.len() > 30, "{examples:#?}");
    let (listed, run): (Vec<_>, Vec<_>) = examples
        .into_iter()
        .partition(|line| LISTED.iter().any(|(start, _)| line.starts_with(start)));
    for (start, _) in LISTED {
        assert!(
            listed.iter().any(|line| line.starts_with(start)),
            "no example begins with {start}"
        );
    }
    run
}

fn of_kind(wanted: Kind) -> Vec<String> {
    let lines = examples().into_iter();
    let lines: Vec<_> = lines.filter(|line| kind(line) == Some(wanted)).collect();
    assert!(!lines.is_empty(), "no example of {wanted:?}");
    lines
}

/// A directory with the things that examples speak of.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    for name in FILES {
        scratch.file(name, 1000);
    }
    fs::write(scratch.path("eln.key"), "5".repeat(64)).expect("a file");
    symlink(root().join("docs"), scratch.path("docs")).expect("a link");
    fs::create_dir(scratch.path("bin")).expect("a directory");
    let program = |name: &str, body: &str| {
        let path = scratch.path("bin").join(name);
        sphinx_testing::write_program(&path, body).expect("a program");
    };
    for name in PROGRAMS {
        program(name, "exit 0");
    }
    scratch
}

fn shell(scratch: &Scratch, line: &str) -> Command {
    let mut command = Command::new("sh");
    let own = Path::new(env!("CARGO_BIN_EXE_sphx"))
        .parent()
        .expect("a directory");
    let path = format!(
        "{}:{}:{}",
        scratch.path("bin").display(),
        own.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    command
        .args(["-c", line])
        .current_dir(scratch.path("."))
        .env("PATH", path)
        .env_remove("SPHX_TICKET")
        .env("XDG_CACHE_HOME", scratch.path("cache"))
        .env("XDG_RUNTIME_DIR", scratch.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Whether this machine cannot do what the example does.
fn is_barred(stderr: &str) -> bool {
    let signs = [
        "no network namespace",
        "/dev/net/tun",
        "--attach nfqueue needs",
    ];
    signs.iter().any(|sign| stderr.contains(sign))
}

/// Runs an example to its end, which is success.
fn succeed(scratch: &Scratch, example: &str, line: &str) {
    let output = shell(scratch, line).output().expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && is_barred(&stderr) {
        sphinx_testing::skipped!("{example}: {stderr}");
        return;
    }
    assert!(
        output.status.success(),
        "{example}\nrun as: {line}\n{}\n{stderr}",
        output.status
    );
}

/// Runs an example until `sign` is there, and then tells it to end.
fn interrupt(scratch: &Scratch, example: &str, line: &str, sign: &Path) {
    let mut child = shell(scratch, &format!("exec {line}"))
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell");
    let deadline = Instant::now() + PATIENCE;
    while !sign.exists() && child.try_wait().expect("our child").is_none() {
        assert!(
            Instant::now() < deadline,
            "{example}: no {}",
            sign.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // It may have ended by itself.
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    let output = child.wait_with_output().expect("its end");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if is_barred(&stderr) {
        sphinx_testing::skipped!("{example}: {stderr}");
        return;
    }
    assert_eq!(
        output.status.code(),
        Some(130),
        "{example}\nrun as: {line}\n{stderr}"
    );
}

#[test]
fn every_example_is_of_a_kind_that_is_run() {
    for line in examples() {
        assert!(
            kind(&line).is_some(),
            "{line}: say here how it is run, or why it is not"
        );
    }
}

#[test]
fn examples_that_listen() {
    for line in of_kind(Kind::Serve) {
        let scratch = stage();
        let local = format!("{line} --listen 127.0.0.1:0");
        interrupt(&scratch, &line, &local, &scratch.path("t"));
    }
}

#[test]
fn examples_with_the_ticket_in_a_pipe() {
    for line in of_kind(Kind::Piped) {
        let local = line.replace("sphx recv", "sphx recv --listen 127.0.0.1:0");
        succeed(&stage(), &line, &local);
    }
}

#[test]
fn examples_that_send() {
    for line in of_kind(Kind::Send) {
        let scratch = stage();
        let receiver = scratch.recv(&[]);
        succeed(&scratch, &line, &line);
        assert!(!scratch.arrived().is_empty(), "{line}");
        drop(receiver);
    }
}

#[test]
fn examples_that_measure() {
    let scratch = stage();
    let words = "perf server --json --listen 127.0.0.1:0 --ticket-file t";
    let words: Vec<&str> = words.split(' ').collect();
    let mut server = Running::start(&scratch, &words, &[]);
    server.event("listening");
    for line in of_kind(Kind::Measure) {
        let mut words: Vec<&str> = line.split(' ').collect();
        if let Some(at) = words.iter().position(|word| *word == "--time") {
            words[at + 1] = "300ms";
        } else if !line.contains("--bytes") {
            words.extend(["--time", "300ms"]);
        }
        succeed(&scratch, &line, &words.join(" "));
    }
}

#[test]
fn examples_of_codes() {
    let scratch = stage();
    for line in of_kind(Kind::Codes) {
        succeed(&scratch, &line, &format!("{line} --blocks 20"));
    }
}

#[test]
fn examples_of_costs() {
    let scratch = stage();
    for line in of_kind(Kind::Cost) {
        succeed(&scratch, &line, &format!("{line} --bytes 20MB"));
    }
}

#[test]
fn examples_of_the_demonstration() {
    let scratch = stage();
    for line in of_kind(Kind::Demo) {
        succeed(&scratch, &line, &format!("{line} --seconds 50ms"));
    }
}

#[test]
fn examples_of_the_lab() {
    for line in of_kind(Kind::Lab) {
        succeed(&stage(), &line, &line);
    }
    for line in of_kind(Kind::Open) {
        let scratch = stage();
        interrupt(&scratch, &line, &line, &scratch.path("caps/left.pcap"));
    }
}

#[test]
fn examples_of_paths() {
    for line in of_kind(Kind::Path) {
        let mut words: Vec<&str> = line.split(' ').collect();
        let (option, little) = match words.contains(&"--flows") {
            true => ("--time", "500ms"),
            false => ("--bytes", "20kB"),
        };
        match words.iter().position(|word| *word == option) {
            Some(at) => words[at + 1] = little,
            None => words.extend([option, little]),
        }
        succeed(&stage(), &line, &words.join(" "));
    }
}

#[test]
fn examples_that_replay_a_capture() {
    for line in of_kind(Kind::Replay) {
        let scratch = stage();
        // A capture of nothing: version 2.4, raw IP packets.
        let header = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65_535, 101];
        let bytes: Vec<u8> = header.iter().flat_map(|it| it.to_be_bytes()).collect();
        fs::write(scratch.path("in.pcap"), bytes).expect("a file");
        succeed(&scratch, &line, &line);
        assert!(scratch.path("out.pcap").exists(), "{line}");
    }
}

#[test]
fn examples_of_a_link_that_runs() {
    let scratch = stage();
    let runtime = scratch.path(".");
    let runtime = [("XDG_RUNTIME_DIR", runtime.to_str().expect("a plain name"))];
    let words = ["lab", "link", "--json", "--left", "sleep 60"];
    let mut link = Running::start(&scratch, &words, &runtime);
    let sock = scratch.path("sphx/link.sock");
    let deadline = Instant::now() + PATIENCE;
    while !sock.exists() {
        if link.has_ended() {
            let ended = link.end();
            assert!(is_barred(&ended.stderr), "{}", ended.stderr);
            sphinx_testing::skipped!("{}", ended.stderr);
            return;
        }
        assert!(Instant::now() < deadline, "no {}", sock.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    for line in of_kind(Kind::Live) {
        succeed(&scratch, &line, &line);
    }
}

/// What the pages print of a file that they name is what is in it.
#[test]
fn example_files_are_those_that_the_pages_show() {
    let page = fs::read_to_string(root().join("docs/emulator.md")).expect("the page");
    let file = fs::read_to_string(root().join("docs/examples/satellite.toml")).expect("the file");
    assert!(
        page.contains(&format!("```toml\n{file}```")),
        "docs/emulator.md differs"
    );
}
