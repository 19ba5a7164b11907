//! `sphx cp`: both ends, with an sshd of the test's own between them.

mod blocked;
mod crash;
pub(crate) mod server;
mod sync;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Ended, PATIENCE, Running, Scratch};
use rustix::process::{Signal, kill_process};
use server::Sshd;

const BIG: usize = 60_000_000;
/// So that there is time to stop it.
const SLOW: [&str; 4] = ["--cc", "fixed:200mbit", "--interval-report", "10ms"];

/// Copies, and waits for the end.
fn cp(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Ended {
    start(scratch, sshd, arguments).end()
}

fn start(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Running {
    let ssh = sshd.ssh();
    // UDP gets through: also on a machine that is busy.
    let base = ["cp", "--json", "--connect-timeout", "20s", "-e", &ssh];
    Running::start(scratch, &[&base[..], arguments].concat(), &[])
}

/// A path at the other end, which is this machine.
fn there(scratch: &Scratch, name: &str) -> String {
    format!("127.0.0.1:{}", scratch.path(name).display())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn a_file_is_copied_there_and_back() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("movie", 5_000_003);
    let sent = cp(&scratch, &sshd, &["movie", &there(&scratch, "in")]).expect(0);
    scratch.assert_same("movie", "in/movie");
    assert_eq!(scratch.arrived(), ["movie"]);
    assert_eq!(sent.event("carrier")["carrier"], "udp");
    assert_eq!(sent.done()["carrier"], "udp");
    assert_eq!(sent.done()["bytes"], 5_000_003);
    let got = cp(&scratch, &sshd, &[&there(&scratch, "in/movie"), "back"]).expect(0);
    scratch.assert_same("movie", "back");
    assert_eq!(got.done()["role"], "receiver");
    assert_eq!(got.done()["carrier"], "udp");
}

#[test]
fn trees_are_copied_as_they_are_and_only_what_has_changed_again() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    for n in 0..30 {
        scratch.file(&format!("tree/sub{}/f{n}", n % 3), n * 1000);
    }
    scratch.file("tree/movie", 6_000_000);
    let open = scratch.file("tree/open", 10);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(&open).unwrap().set_modified(then).unwrap();
    symlink("sub1/f1", scratch.path("tree/link")).unwrap();
    let (to, from) = (there(&scratch, "in"), there(&scratch, "in/tree"));
    cp(&scratch, &sshd, &["-r", "-p", "tree", &to]).expect(0);
    cp(&scratch, &sshd, &["-rp", &from, "back"]).expect(0);
    for copy in ["in/tree", "back"] {
        for n in 0..30 {
            let name = format!("sub{}/f{n}", n % 3);
            scratch.assert_same(&format!("tree/{name}"), &format!("{copy}/{name}"));
        }
        let open = scratch.path(copy).join("open");
        assert_eq!(
            mode(&open),
            0o666,
            "-p keeps what the umask would take away"
        );
        assert_eq!(fs::metadata(&open).unwrap().modified().unwrap(), then);
        let link = fs::read_link(scratch.path(copy).join("link")).unwrap();
        assert_eq!(link, Path::new("sub1/f1"));
    }
    // The states of the files, as their events tell them.
    let states = |ended: &Ended| -> Vec<String> {
        let files = ended.events.iter().filter(|event| event["event"] == "file");
        files
            .map(|file| file["state"].as_str().expect("a state").to_owned())
            .collect()
    };
    // What is there is not sent, but for what leaves before that is known; what has changed is replaced, what else is there stays.
    scratch.file("in/tree/other", 5);
    fs::write(scratch.path("tree/sub0/f0"), b"changed").unwrap();
    let again = cp(&scratch, &sshd, &["-r", "tree", &to]).expect(0);
    let done = again.done();
    let [bytes, reused] = ["bytes", "bytes_reused"].map(|field| done[field].as_u64().unwrap());
    assert!(bytes - reused < 1_600_000, "{done}");
    let states = states(&again);
    assert!(
        states.iter().any(|state| state == "unchanged"),
        "{states:?}"
    );
    assert!(states.iter().any(|state| state == "sent"), "{states:?}");
    scratch.assert_same("tree/sub0/f0", "in/tree/sub0/f0");
    assert!(scratch.path("in/tree/other").exists());
}

#[test]
fn the_destination_means_what_it_means_to_cp() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("a", 10);
    scratch.file("b", 20);
    scratch.file("in/old", 30);
    cp(&scratch, &sshd, &["a", &there(&scratch, "in/new")]).expect(0);
    scratch.assert_same("a", "in/new");
    cp(&scratch, &sshd, &["a", &there(&scratch, "in/old")]).expect(0);
    scratch.assert_same("a", "in/old");
    cp(&scratch, &sshd, &["a", "b", &there(&scratch, "in/")]).expect(0);
    scratch.assert_same("b", "in/b");
    // From the home directory of the other end, below it, and with nothing but a host.
    fs::write(sshd.home().join("x"), b"x").unwrap();
    cp(&scratch, &sshd, &["127.0.0.1:~/x", "."]).expect(0);
    assert_eq!(fs::read(scratch.path("x")).unwrap(), b"x");
    for (arguments, code) in [
        (vec!["a", "b", "in/new"], 2),
        (vec!["a", "in/none/"], 9),
        (vec!["a", "in/none/x"], 9),
        (vec!["a", "/proc/x"], 9),
    ] {
        let (last, sources) = arguments.split_last().unwrap();
        let to = match last.starts_with('/') {
            true => format!("127.0.0.1:{last}"),
            false => there(&scratch, last),
        };
        let arguments = [sources, &[to.as_str()]].concat();
        let ended = cp(&scratch, &sshd, &arguments).expect(code);
        let error = ended.events.last().unwrap();
        let message = error["message"].to_string();
        assert!(message.contains("at the other end"), "{message}");
        // No transfer has begun, so the hint does not say that one goes on.
        assert!(!error["hint"].to_string().contains("goes on"), "{error}");
    }
    // What is neither file nor link stays what it is.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        scratch.path("in/pipe"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let ended = cp(&scratch, &sshd, &["a", &there(&scratch, "in/pipe")]).expect(9);
    let reason = ended.event("skipped")["reason"].to_string();
    assert!(reason.contains("neither file nor link"), "{reason}");
    fs::remove_file(scratch.path("in/pipe")).unwrap();
    for (arguments, code) in [
        ([there(&scratch, "none"), "in".to_owned()], 9),
        ([there(&scratch, "a"), "in/none/x".to_owned()], 8),
    ] {
        let arguments = arguments.each_ref().map(String::as_str);
        cp(&scratch, &sshd, &arguments).expect(code);
    }
    assert_eq!(scratch.arrived(), ["a", "b", "new", "old"]);
}

#[test]
fn what_only_seems_to_be_there_is_replaced_by_the_same_command_again() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("movie", 5_000_000);
    fs::write(scratch.path("in/movie"), vec![7; 5_000_000]).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in ["movie", "in/movie"] {
        let file = fs::File::open(scratch.path(name)).unwrap();
        file.set_modified(then).unwrap();
    }
    let to = there(&scratch, "in");
    let ended = cp(&scratch, &sshd, &["movie", &to]).expect(9);
    let reason = ended.event("skipped")["reason"].to_string();
    assert!(reason.contains("other contents"), "{reason}");
    assert_eq!(
        fs::read(scratch.path("in/movie")).unwrap(),
        vec![7; 5_000_000]
    );
    let ended = cp(&scratch, &sshd, &["movie", &to]).expect(0);
    assert_eq!(ended.event("file")["state"], "sent");
    scratch.assert_same("movie", "in/movie");
    assert_eq!(scratch.arrived(), ["movie"]);
}

#[test]
fn names_reach_no_shell() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    let odd = OsStr::from_bytes(b"it's $(touch owned) `id`; \"x\" caf\xe9\x1b[2J\n*");
    fs::write(scratch.path("odd"), b"odd").unwrap();
    let ssh = sshd.ssh();
    let there = scratch.path("in").join(odd);
    let mut remote = OsStr::new("127.0.0.1:").to_owned();
    remote.push(&there);
    for (from, to) in [
        (OsStr::new("odd"), remote.as_os_str()),
        (remote.as_os_str(), OsStr::new("back")),
    ] {
        let mut command = crate::common::command(&scratch.path(""), &["cp", "-v", "-e", &ssh]);
        let output = command.arg(from).arg(to).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(!output.stderr.contains(&b'\x1b'), "{said}");
    }
    assert_eq!(fs::read(&there).unwrap(), b"odd");
    assert_eq!(fs::read(scratch.path("back")).unwrap(), b"odd");
    assert_eq!(fs::read_dir(scratch.path("in")).unwrap().count(), 1);
}

#[test]
fn a_login_shell_that_prints_noise_does_no_harm() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    let noise = "printf 'Welcome\\033[2J\\n\\000\\377sphx over'; echo 'you have mail' >&2\n";
    for name in [".bashrc", ".profile", ".zshenv"] {
        fs::write(sshd.home().join(name), noise).unwrap();
    }
    scratch.file("a", 100_000);
    cp(&scratch, &sshd, &["a", &there(&scratch, "in")]).expect(0);
    scratch.assert_same("a", "in/a");
    cp(&scratch, &sshd, &[&there(&scratch, "in/a"), "back"]).expect(0);
    scratch.assert_same("a", "back");
}

#[test]
fn a_machine_without_sphx_says_what_to_do() {
    let Some(sshd) = Sshd::without_sphx() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let to = there(&scratch, "in");
    let ended = cp(&scratch, &sshd, &["a", &to]).expect(3);
    let error = ended.error("unreachable");
    assert!(
        error["message"]
            .to_string()
            .contains("no sphx at 127.0.0.1"),
        "{error}"
    );
    let hint = error["hint"].to_string();
    assert!(
        hint.contains("sphx cp --push --json") && hint.contains("--remote-sphx"),
        "{hint}"
    );
    let ended = cp(&scratch, &sshd, &["--remote-sphx", "/none/sphx", "a", &to]).expect(3);
    ended.error("unreachable");
    let sphx = env!("CARGO_BIN_EXE_sphx");
    cp(&scratch, &sshd, &["--remote-sphx", sphx, "a", &to]).expect(0);
    // A name that a shell would split.
    let odd = sshd.home().join("a b's");
    symlink(sphx, &odd).unwrap();
    cp(&scratch, &sshd, &["--remote-sphx", "~/a b's", "a", &to]).expect(0);
    scratch.assert_same("a", "in/a");
}

/// Where --push puts this program.
fn pushed(sshd: &Sshd) -> PathBuf {
    let program = fs::read(env!("CARGO_BIN_EXE_sphx")).expect("the program");
    let hash = blake3::hash(&program).to_hex();
    sshd.home()
        .with_file_name(format!("cache/sphx/sphx-{}", &hash[..16]))
}

#[test]
fn this_program_is_put_where_there_is_none() {
    let Some(sshd) = Sshd::without_sphx() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let to = there(&scratch, "in");
    fs::write(sshd.home().join(".bashrc"), "echo noise\n").unwrap();
    cp(&scratch, &sshd, &["--push", "a", &to]).expect(0);
    scratch.assert_same("a", "in/a");
    let put = pushed(&sshd);
    assert_eq!(mode(&put), 0o700);
    assert_eq!(fs::read_dir(put.parent().unwrap()).unwrap().count(), 1);
    // The pushed program is found the next time without `--push`.
    let again = cp(&scratch, &sshd, &["a", &to]).expect(0);
    assert_eq!(again.done()["bytes"], 1000);
    // A machine of another kind.
    let script = "for last; do :; done; case $last in uname*) echo Plan9 mips;; *) exit 127;; esac";
    let ended = fake_with(&scratch, script, &["--push"]).expect(3);
    let message = ended.error("unreachable")["message"].to_string();
    assert!(message.contains("h is Plan9 mips"), "{message}");
}

#[test]
fn a_broken_program_is_replaced() {
    let Some(sshd) = Sshd::without_sphx() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let to = there(&scratch, "in");
    let put = pushed(&sshd);
    fs::create_dir_all(put.parent().unwrap()).unwrap();
    // ssh says the same of what a signal ends as of a way that there is not, but for a line. The last one greets as another version does.
    let other = "printf '\\000\\377sphx over ssh\\n\\002'; exec cat >/dev/null";
    for (broken, code) in [("exit 0", 5), ("kill -SEGV $$", 3), (other, 5)] {
        let _ = fs::remove_file(&put);
        sphinx_testing::write_program(&put, broken).unwrap();
        let ended = cp(&scratch, &sshd, &["a", &to]).expect(code);
        let error = ended.events.last().expect("an error");
        let hint = error["hint"].to_string();
        assert!(hint.contains("sphx cp --push --json"), "{error}");
        cp(&scratch, &sshd, &["--push", "a", &to]).expect(0);
        cp(&scratch, &sshd, &["a", &to]).expect(0);
    }
    scratch.assert_same("a", "in/a");
}

#[test]
fn what_to_try_is_what_was_run() {
    let scratch = Scratch::new();
    let ssh = format!("sh {} h true", scratch.path("fake").display());
    let ssh = ssh.as_str();
    let (none, named) = (&[][..], &["--remote-sphx", "/none/sphx"][..]);
    let push = "sphx cp --push --json";
    let other = ["name another with --remote-sphx", "without it, --push"];
    for (script, options, code, hints) in [
        ("echo no >&2; exit 255", none, 3, [ssh, ""]),
        ("exit 255", none, 3, [ssh, push]),
        ("exit 0", none, 5, [push, ""]),
        ("exit 127", named, 3, other),
        ("exit 2", named, 5, other),
    ] {
        let ended = fake_with(&scratch, script, options).expect(code);
        let hint = ended.events.last().expect("an error")["hint"].to_string();
        assert!(hints.iter().all(|it| hint.contains(it)), "{script}: {hint}");
    }
}

#[test]
fn a_part_of_this_program_is_put_nowhere() {
    let scratch = Scratch::new();
    let script = r#"for last; do :; done
export XDG_CACHE_HOME="$PWD/there"
case $last in
uname*) exec uname -sm;;
*"cat >"*) head -c 100000 | sh -c "$last";;
*) exit 127;;
esac"#;
    let ended = fake_with(&scratch, script, &["--push"]).expect(9);
    ended.error("remote_io");
    assert!(
        ended.stderr.contains("only a part of it has come"),
        "{}",
        ended.stderr
    );
    let left = fs::read_dir(scratch.path("there/sphx")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_path_is_measured_with_no_server_to_start() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    let ssh = sshd.ssh();
    for more in [&["--bytes", "5MB"][..], &["--bytes", "5MB", "--reverse"]] {
        let base = ["perf", "client", "--json", "-e", &ssh, "ssh:127.0.0.1"];
        let base = [&base[..], &["--connect-timeout", "20s"]].concat();
        let ended = Running::start(&scratch, &[&base[..], more].concat(), &[]).end();
        let ended = ended.expect(0);
        assert_eq!(ended.done()["bytes"], 5_000_000);
        assert!(ended.done()["peer_done"].is_object());
    }
}

#[test]
fn mistakes_come_with_the_right_line() {
    let scratch = Scratch::new();
    scratch.file("tree/f", 1);
    scratch.file("a", 1);
    let here = scratch.path("").canonicalize().unwrap();
    let named = format!("sphx cp -r -e /none/ssh {} HOST:", here.display());
    for (arguments, line) in [
        (vec!["h:a", "g:b"], "ssh h 'sphx cp a g:b'"),
        (vec!["-r", "h:a", "h:b"], "ssh h 'cp -r a b'"),
        (vec!["-r", "me@h:x y", "g:b"], "ssh me@h"),
        (vec!["a", "b"], "cp a b"),
        (vec!["tree", "h:"], "sphx cp -r --json"),
        (vec!["a"], "sphx cp FILE HOST:"),
        (vec!["a", "tree/../a", "h:"], "another name"),
        (vec!["a", "h:b", "."], "of its own"),
        (vec!["g:a", "h:b", "."], "of its own"),
        (vec!["-r", "h:.", "in"], "in/NAME"),
        (vec!["-r", "h:.", "in"], "sphx sync -e /none/ssh h:. in/"),
        (vec!["-r", "me@h:", "in"], "-e /none/ssh me@h: in/"),
        (
            vec!["-r", "--remote-sphx", "s", "h:", "in"],
            "--remote-sphx s h: in/",
        ),
        (vec!["-r", "tree/..", "h:"], named.as_str()),
        (vec!["-r", "tree/.", "h:"], "/tree HOST:; or "),
        (vec!["-r", ".", "h:"], "-e /none/ssh . HOST:DIRECTORY/"),
        (
            vec!["-r", "tree/..", "h:"],
            "-e /none/ssh tree/.. HOST:DIRECTORY/",
        ),
        (vec!["-r", "/", "h:"], "sync -e /none/ssh / HOST:DIRECTORY/"),
        (vec!["h:a", "h:b", "a"], "another place"),
        (vec!["h:a", "h:b", "new"], "mkdir -p new"),
        (vec!["-oProxyCommand=x:a", "in"], ""),
        (vec!["--udp-port", "9-8", "a", "h:"], ""),
        (vec!["-e", "ssh 'x", "a", "h:"], ""),
    ] {
        // The error comes before ssh would be started: there is no such program.
        let base = ["cp", "--json", "-e", "/none/ssh"];
        let base = if arguments[0] == "-e" {
            &base[..2]
        } else {
            &base[..]
        };
        let arguments = [base, &arguments].concat();
        let ended = Running::start(&scratch, &arguments, &[]).end().expect(2);
        let hint = ended.error("usage")["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains(line), "{arguments:?}: {hint}");
    }
    let ended = Running::start(
        &scratch,
        &["cp", "--json", "-e", "/none/ssh", "a", "h:"],
        &[],
    );
    ended.end().expect(8).error("local_io");
}

#[test]
fn a_directory_there_needs_to_be_asked_for() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("in/tree/f", 1);
    let ended = cp(&scratch, &sshd, &[&there(&scratch, "in/tree"), "."]).expect(2);
    let error = ended.error("usage");
    assert!(
        error["hint"].to_string().contains("sphx cp -r --json"),
        "{error}"
    );
    assert!(
        error["message"]
            .to_string()
            .contains("in/tree is a directory"),
        "{error}"
    );
}

#[test]
fn a_jump_host_is_on_the_way() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("a", 100_000);
    let ssh = format!("{} -J 127.0.0.1", sshd.ssh());
    let arguments = ["cp", "--json", "-e", &ssh, "a", &there(&scratch, "in")];
    let ended = Running::start(&scratch, &arguments, &[]).end().expect(0);
    assert_eq!(ended.done()["bytes"], 100_000);
    scratch.assert_same("a", "in/a");
    // A tree is synchronized through the jump host, there and back.
    scratch.file("tree/b", 200_000);
    let remote = format!("{}/", there(&scratch, "synced"));
    for (from, to) in [("tree/", remote.as_str()), (&remote, "back/")] {
        let arguments = ["sync", "--json", "-e", &ssh, from, to];
        let ended = Running::start(&scratch, &arguments, &[]).end().expect(0);
        assert_eq!(ended.done()["bytes"], 200_000);
    }
    scratch.assert_same("tree/b", "back/b");
}

#[test]
fn an_end_that_dies_is_noticed_at_once() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("movie", BIG);
    let to = there(&scratch, "in");
    let mut running = start(&scratch, &sshd, &[&SLOW[..], &["movie", &to]].concat());
    wait_for_bytes(&mut running, 10_000_000);
    for process in sshd.ends() {
        kill_process(process, Signal::KILL).expect("it is our child's");
    }
    let started = Instant::now();
    let ended = running.end().expect(6);
    let error = ended.error("peer_lost");
    // Long before the idle timeout, which is 15 s.
    assert!(started.elapsed() < Duration::from_secs(12), "{error}");
    assert!(
        error["hint"]
            .to_string()
            .contains("the same command goes on"),
        "{error}"
    );
}

#[test]
fn what_is_left_out_is_told_and_the_rest_arrives() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("tree/f", 1000);
    symlink("/etc/passwd", scratch.path("tree/out")).unwrap();
    let there_is = there(&scratch, "tree");
    for arguments in [
        ["-r", "tree", &there(&scratch, "in")],
        ["-r", &there_is, "back"],
    ] {
        let ended = cp(&scratch, &sshd, &arguments).expect(7);
        assert_eq!(ended.done()["entries_skipped"], 1);
        let path = &ended.event("skipped")["path"];
        assert!(path.to_string().ends_with("/out\""));
        let state = |event: &&serde_json::Value| event["event"] == "file" && event["path"] == *path;
        let file = ended.events.iter().find(state).expect("a file");
        assert_eq!(file["state"], "skipped");
    }
    scratch.assert_same("tree/f", "in/tree/f");
    scratch.assert_same("tree/f", "back/f");
}

#[test]
fn what_is_missing_among_several_does_not_stop_the_others() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("f", 1000);
    for (name, to) in [("in", there(&scratch, "in")), ("back", "back".to_owned())] {
        fs::create_dir_all(scratch.path(name)).unwrap();
        let from = |path: &str| match name {
            "in" => path.to_owned(),
            _ => there(&scratch, path),
        };
        let ended = cp(&scratch, &sshd, &[&from("gone"), &from("f"), &to]).expect(7);
        let skipped = ended.event("skipped");
        assert_eq!(skipped["path"], "gone", "{skipped}");
        scratch.assert_same("f", &format!("{name}/f"));
    }
}

/// Waits until so much has been copied.
fn wait_for_bytes(running: &mut Running, bytes: u64) {
    while running.event("progress")["bytes"]
        .as_u64()
        .expect("a number")
        < bytes
    {}
}

/// Waits until the other end has let go of its files.
fn wait_until_let_go(directory: &Path) {
    let deadline = Instant::now() + PATIENCE;
    let is_lock = |name: String| name.starts_with(".sphx-") && name.ends_with(".lock");
    loop {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut names = entries.map(|entry| entry.unwrap().file_name());
        if !names.any(|name| is_lock(name.to_string_lossy().into_owned())) {
            return;
        }
        assert!(Instant::now() < deadline, "the other end does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_same_command_goes_on_after_anything() {
    let Some(sshd) = Sshd::start() else { return };
    for (signal, code, uploads) in [
        (Signal::KILL, -1, true),
        (Signal::INT, 130, true),
        (Signal::TERM, 143, false),
    ] {
        let scratch = Scratch::new();
        scratch.file("movie", BIG);
        let to = there(&scratch, "in");
        let from = there(&scratch, "movie");
        let arguments = match uploads {
            true => ["movie", to.as_str()],
            false => [from.as_str(), "in"],
        };
        let mut running = start(&scratch, &sshd, &[&SLOW[..], &arguments].concat());
        wait_for_bytes(&mut running, 40_000_000);
        running.signal(signal);
        running.end().expect(code);
        wait_until_let_go(&scratch.path("in"));
        let kept = scratch.arrived();
        assert_eq!(kept.len(), 2, "a part and its journal: {kept:?}");
        let done = cp(&scratch, &sshd, &arguments).expect(0);
        let reused = done.done()["bytes_reused"].as_u64().unwrap();
        assert!(reused > 5_000_000, "{reused}");
        scratch.assert_same("movie", "in/movie");
        assert_eq!(scratch.arrived(), ["movie"]);
    }
}

#[test]
fn a_tree_under_another_name_goes_on_there() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("tree/movie", BIG);
    let to = there(&scratch, "in/new");
    let arguments = ["-r", "tree", &to];
    let mut running = start(&scratch, &sshd, &[&SLOW[..], &arguments].concat());
    wait_for_bytes(&mut running, 30_000_000);
    running.signal(Signal::KILL);
    running.end();
    wait_until_let_go(&scratch.path("in"));
    let done = cp(&scratch, &sshd, &arguments).expect(0);
    assert!(done.done()["bytes_reused"].as_u64().unwrap() > 5_000_000);
    scratch.assert_same("tree/movie", "in/new/movie");
    let entries = fs::read_dir(scratch.path("in/new")).unwrap().count();
    assert_eq!(entries, 1);
}

#[test]
fn a_copy_connects_again_by_itself() {
    let Some(sshd) = Sshd::start() else { return };
    for uploads in [true, false] {
        let scratch = Scratch::new();
        scratch.file("movie", BIG);
        let (to, from) = (there(&scratch, "in"), there(&scratch, "movie"));
        let arguments = match uploads {
            true => ["movie", to.as_str()],
            false => [from.as_str(), "in"],
        };
        let retry = [&SLOW[..], &["--retry", "20s"], &arguments].concat();
        let mut running = start(&scratch, &sshd, &retry);
        wait_for_bytes(&mut running, 40_000_000);
        for process in sshd.ends() {
            kill_process(process, Signal::KILL).expect("it is our child's");
        }
        let ended = running.end().expect(0);
        let note = ended.event("note")["message"].to_string();
        assert!(note.contains("connecting again, for 20"), "{note}");
        let reused = ended.done()["bytes_reused"].as_u64().unwrap();
        assert!(reused > 5_000_000, "{reused}");
        scratch.assert_same("movie", "in/movie");
    }
}

/// Once all of a tree has come, nothing there says any more what has made it; and who has sent it may not have heard of that.
#[test]
fn a_tree_under_another_name_comes_there_again_by_itself() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("tree/movie", BIG);
    let to = there(&scratch, "in/new");
    let arguments = ["--retry", "20s", "-r", "tree", &to];
    let mut running = start(&scratch, &sshd, &[&SLOW[..], &arguments].concat());
    wait_for_bytes(&mut running, 30_000_000);
    fs::remove_file(scratch.path("in/new/.sphx-unfinished")).expect("its mark");
    for process in sshd.ends() {
        kill_process(process, Signal::KILL).expect("it is our child's");
    }
    running.end().expect(0);
    scratch.assert_same("tree/movie", "in/new/movie");
    let entries = fs::read_dir(scratch.path("in/new")).unwrap().count();
    assert_eq!(entries, 1);
}

/// What `ssh` is, in a test: a script.
fn fake(scratch: &Scratch, script: &str) -> Ended {
    fake_with(scratch, script, &[])
}

fn fake_with(scratch: &Scratch, script: &str, options: &[&str]) -> Ended {
    let path = scratch.path("fake");
    fs::write(&path, script).unwrap();
    scratch.file("a", 10);
    let rsh = format!("sh {}", path.display());
    let arguments = [&["cp", "--json", "-e", &rsh], options, &["a", "h:"]].concat();
    Running::start(scratch, &arguments, &[]).end()
}

#[test]
fn whatever_ssh_says_is_bounded_and_shown_safely() {
    let scratch = Scratch::new();
    for (script, code, kind) in [
        ("exit 255", 3, "unreachable"),
        (
            "echo 'me@h: Permission denied (publickey).' >&2; exit 255",
            4,
            "authentication",
        ),
        ("printf '\\033[2Jboo\\n' >&2; exit 255", 3, "unreachable"),
        ("exit 127", 3, "unreachable"),
        ("exit 2", 5, "protocol"),
        ("exec yes", 5, "protocol"),
        (
            "printf '\\000\\377sphx over ssh\\n\\011'; sleep 1",
            5,
            "protocol",
        ),
        (
            "printf '\\000\\377sphx over ssh\\n\\003\\177aaaaaaa'; sleep 1",
            5,
            "protocol",
        ),
        ("printf '\\000\\377sphx over ssh\\n\\003'", 6, "peer_lost"),
    ] {
        let ended = fake(&scratch, script).expect(code);
        let error = ended.error(kind);
        assert!(!ended.stderr.contains('\x1b'), "{script}: {}", ended.stderr);
        assert!(!error.to_string().contains('\x1b'), "{script}: {error}");
    }
    let failed = br#"{"why":"io","message":"boo\u001b[2J","hint":""}"#;
    let length = u32::try_from(failed.len()).unwrap().to_be_bytes();
    let said = [b"\x00\xffsphx over ssh\n\x03\x03", &length[..], failed].concat();
    fs::write(scratch.path("said"), said).unwrap();
    let ended = fake(&scratch, "cat said; sleep 1").expect(9);
    let message = ended.error("remote_io")["message"].to_string();
    assert!(message.contains("at the other end: boo"), "{message}");
    assert!(!ended.stderr.contains('\x1b'), "{}", ended.stderr);
}
