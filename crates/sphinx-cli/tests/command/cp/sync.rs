//! `sphx sync`, judged by rsync where that is installed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::server::{Process, Sshd, descendants};
use super::there;
use crate::common::{Ended, Running, Scratch};
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{Signal, geteuid, kill_process};

fn sync(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Ended {
    let ssh = sshd.ssh();
    let base = ["sync", "--json", "--connect-timeout", "20s", "-e", &ssh];
    Running::start(scratch, &[&base[..], arguments].concat(), &[]).end()
}

/// Numbers that a seed decides.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn at_time(number: usize) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + number as u64, 123_456_700)
}

/// What a file of this size and time has in it: versions have most of it in common.
fn contents(size: usize, time: usize) -> Vec<u8> {
    let mut random = Random(size as u64);
    let mut bytes: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
    let from = size / 3;
    for byte in bytes.iter_mut().skip(from).take(size / 50 + 1) {
        *byte ^= time as u8;
    }
    bytes
}

/// A tree of few names, so that two of them meet in every way.
fn grow(directory: &Path, random: &mut Random, depth: usize) {
    grow_with(directory, random, depth, &mut Vec::new());
}

/// The same; `known` are the files that there are.
fn grow_with(directory: &Path, random: &mut Random, depth: usize, known: &mut Vec<PathBuf>) {
    fs::create_dir_all(directory).unwrap();
    for _ in 0..3 + random.below(6) {
        let path = directory.join(random.one(&["a", "b", "c", ".d", "e f", "g*", "h.o"]));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match random.below(9) {
            8 if !known.is_empty() => {
                let first = &known[random.below(known.len())];
                fs::hard_link(first, &path).unwrap();
            }
            0..3 if depth > 0 => grow_with(&path, random, depth - 1, known),
            3 => symlink(random.one(&["a", "../a/b", "/nowhere", "../../.."]), &path).unwrap(),
            _ => {
                let time = random.below(3);
                fs::write(
                    &path,
                    contents(random.one(&[0, 1, 1000, 5000, 300_000]), time),
                )
                .unwrap();
                let mode = random.one(&[0o644, 0o600, 0o755, 0o444]);
                fs::File::open(&path)
                    .unwrap()
                    .set_modified(at_time(time))
                    .unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                describe(&path, random);
                known.push(path);
            }
        }
    }
    describe(directory, random);
    let mode = random.one(&[0o755, 0o700, 0o775]);
    fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    let time = at_time(random.below(3));
    fs::File::open(directory)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// Extended attributes, and for root an owner, now and then.
fn describe(path: &Path, random: &mut Random) {
    let names = [&[][..], &["user.a"], &["user.a", "user.b"]];
    for name in random.one(&names) {
        let value = vec![b'x'; random.one(&[0, 1, 500])];
        // Not every file system has room for them.
        let _ = setxattr(path, *name, &value, XattrFlags::empty());
    }
    if geteuid().is_root() {
        let (uid, gid) = random.one(&[(0, 0), (1, 2), (54_321, 0)]);
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// What a run has done or would do, without what is as it was.
fn lines(ended: &Ended) -> BTreeSet<(String, String)> {
    let files = ended.events.iter().filter(|event| event["event"] == "file");
    let line = |event: &serde_json::Value| {
        let state = match event["state"].as_str().unwrap() {
            "resumed" => "sent",
            state => state,
        };
        (event["path"].as_str().unwrap().to_owned(), state.to_owned())
    };
    files
        .map(line)
        .filter(|(_, state)| state != "unchanged")
        .collect()
}

/// What rsync would still have to do.
pub(super) fn left_for_rsync(
    scratch: &Scratch,
    more: &[&str],
    from: &str,
    to: &str,
) -> Option<String> {
    let run = Command::new("rsync")
        .args(["-n", "-aicHX", "--delete"])
        .args(more)
        .arg(scratch.path(from).join(""))
        .arg(scratch.path(to).join(""))
        .output();
    match run {
        Ok(run) => {
            assert!(
                run.status.success(),
                "{}",
                String::from_utf8_lossy(&run.stderr)
            );
            // What it deletes comes between the other lines as it happens.
            let text = String::from_utf8(run.stdout).unwrap();
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            Some(lines.join("\n"))
        }
        Err(_) => {
            sphinx_testing::skipped!("there is no rsync to judge by");
            None
        }
    }
}

#[test]
fn random_trees_become_what_rsync_would_make_of_them() {
    let Some(sshd) = Sshd::start() else { return };
    for seed in 0..8 {
        let scratch = Scratch::new();
        let mut random = Random(seed);
        grow(&scratch.path("src"), &mut random, 3);
        grow(&scratch.path("in"), &mut random, 3);
        let remote = |name: &str| format!("{}/", there(&scratch, name));
        let (from, to) = match seed % 2 {
            0 => ("src/".to_owned(), remote("in")),
            _ => (remote("src"), "in".to_owned()),
        };
        let judge = || left_for_rsync(&scratch, &[], "src", "in");
        let before = judge();
        let trial = sync(&scratch, &sshd, &["-n", "--delete", &from, &to]).expect(0);
        assert_eq!(judge(), before, "seed {seed}: a trial changes nothing");
        let run = sync(&scratch, &sshd, &["--delete", &from, &to]).expect(0);
        assert_eq!(lines(&trial), lines(&run), "seed {seed}");
        assert!(
            lines(&run).len() > 5,
            "seed {seed}: too little has happened"
        );
        assert_eq!(judge().unwrap_or_default(), "", "seed {seed}");
        let again = sync(&scratch, &sshd, &["--delete", &from, &to]).expect(0);
        assert_eq!(lines(&again), BTreeSet::new(), "seed {seed}");
    }
}

#[test]
fn a_directory_goes_into_another_one_and_what_else_is_there_stays() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("src/deep/f", 2000);
    scratch.file("in/src/own", 10);
    scratch.file("in/other", 10);
    let to = there(&scratch, "in");
    sync(&scratch, &sshd, &["src", &to]).expect(0);
    scratch.assert_same("src/deep/f", "in/src/deep/f");
    assert!(scratch.path("in/src/own").exists());
    sync(&scratch, &sshd, &["--delete", "src", &to]).expect(0);
    assert!(!scratch.path("in/src/own").exists());
    assert!(scratch.path("in/other").exists(), "only what SRC is about");
    // A destination that does not exist: a dry run leaves it so, a run makes it.
    let new = format!("{}/", there(&scratch, "new"));
    let trial = sync(&scratch, &sshd, &["-n", "src/", &new]).expect(0);
    assert!(!scratch.path("new").exists());
    let run = sync(&scratch, &sshd, &["src/", &new]).expect(0);
    assert_eq!(lines(&trial), lines(&run));
    scratch.assert_same("src/deep/f", "new/deep/f");
    // What it would send is said, and nothing of going on.
    let _socket = UnixListener::bind(scratch.path("src/socket")).unwrap();
    let again = sync(&scratch, &sshd, &["-n", "src/", &new]).expect(7);
    for (ended, said) in [
        (&trial, "1 of 1 files would be sent"),
        (&again, "0 of 1 files"),
    ] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    assert!(!again.stderr.contains("same command"), "{}", again.stderr);
}

#[test]
fn what_is_excluded_is_neither_sent_nor_deleted() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    for name in [
        "src/a.o",
        "src/b/keep.o",
        "src/b/c.o",
        "src/build/x",
        "src/b/build/x",
    ] {
        scratch.file(name, 100);
    }
    scratch.file("in/old.o", 7);
    scratch.file("in/gone", 7);
    scratch.file("in/half/old.o", 7);
    scratch.file("in/half/gone", 7);
    fs::write(scratch.path("rules"), "# what is made\n+ keep.o\n- *.o\n").unwrap();
    let to = there(&scratch, "in");
    let rules = ["--exclude", "/build/", "--filter-from", "rules", "--delete"];
    let arguments = [&rules[..], &["src/", &to]].concat();
    let trial = sync(&scratch, &sshd, &[&["-n"], &arguments[..]].concat()).expect(0);
    let run = sync(&scratch, &sshd, &arguments).expect(0);
    assert_eq!(lines(&trial), lines(&run));
    for (name, there) in [
        ("a.o", false),
        ("b/keep.o", true),
        ("b/c.o", false),
        ("build", false),
        ("b/build/x", true),
        ("old.o", true),
        ("gone", false),
        ("half/old.o", true),
        ("half/gone", false),
    ] {
        assert_eq!(scratch.path("in").join(name).exists(), there, "{name}");
    }
    let rules = [
        "--exclude",
        "/build/",
        "--filter",
        "+ keep.o",
        "--exclude",
        "*.o",
    ];
    if let Some(left) = left_for_rsync(&scratch, &rules, "src", "in") {
        // Rsync says so too where something excluded keeps a directory.
        assert_eq!(left, "cannot delete non-empty directory: half");
    }
}

#[test]
fn of_a_file_that_has_changed_only_the_change_is_sent() {
    const SIZE: usize = 32 << 20;
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    let mut random = Random(1);
    let mut bytes: Vec<u8> = (0..SIZE).map(|_| random.below(256) as u8).collect();
    fs::create_dir(scratch.path("src")).unwrap();
    fs::write(scratch.path("in/big"), &bytes).unwrap();
    // One part is another one, and everything behind it has moved.
    bytes.splice(
        SIZE / 2..SIZE / 2 + 1_000_000,
        (0..1_000_100).map(|n| n as u8),
    );
    fs::write(scratch.path("src/big"), &bytes).unwrap();
    let to = there(&scratch, "in");
    let run = sync(&scratch, &sshd, &["src/", &to]).expect(0);
    scratch.assert_same("src/big", "in/big");
    let reused = run.done()["bytes_reused"].as_u64().unwrap();
    let sent = bytes.len() as u64 - reused;
    assert!(sent < 1_600_000, "{sent} bytes were sent for 1 MB");
    assert_eq!(run.event("file")["state"], "resumed");
    // With `-W`, the file is sent as a whole.
    fs::write(scratch.path("in/big"), b"old").unwrap();
    let run = sync(&scratch, &sshd, &["-W", "src/", &to]).expect(0);
    assert_eq!(run.done()["bytes_reused"], 0);
    scratch.assert_same("src/big", "in/big");
}

#[test]
fn contents_are_compared_where_that_is_asked_for() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    for (name, byte) in [("src/f", 1), ("in/f", 2)] {
        let path = scratch.file(name, 10_000);
        fs::write(&path, vec![byte; 10_000]).unwrap();
        fs::File::open(&path)
            .unwrap()
            .set_modified(at_time(1))
            .unwrap();
    }
    let same = scratch.file("src/same", 10_000);
    fs::File::open(same)
        .unwrap()
        .set_modified(at_time(1))
        .unwrap();
    scratch.file("in/same", 10_000);
    let to = there(&scratch, "in");
    // A file is no directory, at either end.
    let (from, onto) = (there(&scratch, "src/f"), there(&scratch, "in/f"));
    for (arguments, hint) in [
        (["src/f", &to], "src/f 127"),
        ([&from, "in"], "sphx cp -e"),
        (["src/", &onto], "name the directory"),
        ([&to, "src/f"], "name the directory"),
    ] {
        let refused = sync(&scratch, &sshd, &[&["--delete"], &arguments[..]].concat()).expect(2);
        let said = &refused.error("usage")["hint"];
        assert!(said.to_string().contains(hint), "{said}");
        sync(&scratch, &sshd, &[&["-n"], &arguments[..]].concat()).expect(2);
    }
    let run = sync(&scratch, &sshd, &["-c", "src/", &to]).expect(0);
    scratch.assert_same("src/f", "in/f");
    assert_eq!(
        lines(&run),
        BTreeSet::from([("f".to_owned(), "sent".to_owned())])
    );
    let modified = fs::metadata(scratch.path("in/same")).unwrap().modified();
    assert_eq!(modified.unwrap(), at_time(1));
}

#[test]
fn more_than_was_allowed_is_not_deleted() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("src/new", 10);
    for name in ["in/a", "in/b/c"] {
        scratch.file(name, 10);
    }
    let to = there(&scratch, "in");
    let run = sync(
        &scratch,
        &sshd,
        &["--delete", "--max-delete", "2", "src/", &to],
    )
    .expect(7);
    assert!(
        run.stderr
            .contains("nothing is deleted: it would be 3 things"),
        "{}",
        run.stderr
    );
    assert_eq!(scratch.arrived(), ["a", "b", "new"]);
    // Also where nothing else comes: that is no failure of all.
    fs::create_dir(scratch.path("empty")).unwrap();
    let run = sync(
        &scratch,
        &sshd,
        &["--delete", "--max-delete", "3", "empty/", &to],
    )
    .expect(7);
    assert_eq!(run.done()["entries_skipped"], 0);
    let reason = run.event("skipped")["reason"].to_string();
    assert!(reason.contains("nothing is deleted"), "{reason}");
    assert_eq!(scratch.arrived(), ["a", "b", "new"]);
    sync(
        &scratch,
        &sshd,
        &["--delete", "--max-delete", "3", "src/", &to],
    )
    .expect(0);
    assert_eq!(scratch.arrived(), ["new"]);
}

/// Mounts a file system on `in` that folds names, in a mount namespace of its own, and synchronizes with it, twice.
const WHERE_NAMES_ARE_FOLDED: &str = r#"truncate -s 40M disk
vfat() { mkfs.vfat disk && mount -o loop disk in; }
ntfs() { mkntfs -F -q disk && lowntfs-3g -o ignore_case disk in; }
{ vfat || ntfs; } >&2 || exit 77
echo old >in/Foo.jpg; echo old >in/gone
for run in first second; do
    "$0" sync --json --delete -e "sh fake" --remote-sphx "$0" src/ "127.0.0.1:$PWD/in"; code=$?
    { echo $code; ls -1 in in/sub | tr A-Z a-z; cat in/foo.jpg in/sub/a; } >$run
done
umount in
exit $code"#;

#[test]
fn of_names_that_are_one_there_nothing_is_lost() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("src/sub")).unwrap();
    for (name, contents) in [("FOO.jpg", "new\n"), ("sub/A", "A\n"), ("sub/a", "other\n")] {
        let path = scratch.path("src").join(name);
        fs::write(&path, contents).unwrap();
        // Even seconds are kept everywhere.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
    }
    fs::write(
        scratch.path("fake"),
        "for last; do :; done; exec sh -c \"$last\"",
    )
    .unwrap();
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "sh", "-c", WHERE_NAMES_ARE_FOLDED])
        .arg(env!("CARGO_BIN_EXE_sphx"))
        .env("XDG_CACHE_HOME", scratch.path("cache"))
        .env("XDG_STATE_HOME", scratch.path("state"));
    if let Err(error) = Command::new("unshare").arg("--version").output() {
        sphinx_testing::skipped!("no unshare: {error}");
        return;
    }
    let run = Running::of(&scratch, unshare).end();
    if matches!(run.code, 1 | 77) {
        sphinx_testing::skipped!("no file system that folds names: {}", run.stderr);
        return;
    }
    let run = run.expect(7);
    for which in ["first", "second"] {
        assert_eq!(
            fs::read_to_string(scratch.path(which)).unwrap(),
            "7\nin:\nfoo.jpg\nsub\n\nin/sub:\na\nnew\nA\n",
            "{which}"
        );
    }
    let skipped = run
        .events
        .iter()
        .filter(|event| event["event"] == "skipped");
    let paths: Vec<&str> = skipped
        .map(|event| event["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["sub/a", "sub/a"]);
}

#[test]
fn what_cannot_have_been_meant_is_said() {
    let scratch = Scratch::new();
    scratch.file("src/f", 10);
    fs::write(scratch.path("rules"), "- a\r\n- b\rc\n").unwrap();
    for (arguments, reason) in [
        (&["src/", "dst/"][..], "rsync -a"),
        (&["a:x/", "b:y/"], "run it at one of them: ssh a 'sphx sync"),
        (&["h:x/", "h:y/"], "ssh h 'rsync -a x/ y/'"),
        (&["--delete", "src/f", "a:x/"], "sphx cp src/f a:x/"),
        (
            &["-e", "ssh -p 1", "src/f", "a:x/"],
            "sphx cp -e 'ssh -p 1' src/f a:x/",
        ),
        (&["a:x/", "src/f"], "src/f is no directory"),
        (&["--exclude", "[", "src/", "a:x/"], "without its ]"),
        (
            &["--filter-from", "src/f", "src/", "a:x/"],
            "no filter rule",
        ),
        (
            &["--filter-from", "rules", "src/", "a:x/"],
            "'c' is no filter rule",
        ),
    ] {
        let run = Running::start(&scratch, &[&["sync"], arguments].concat(), &[])
            .end()
            .expect(2);
        assert!(run.stderr.contains(reason), "{arguments:?}: {}", run.stderr);
    }
}

/// Bytes of files that this end has read in the run that came to its end, beyond what it had to: what the other end had
/// already, verified, of the file that was gone on with.
fn read_again(ended: &Ended, sends: bool) -> u64 {
    let number = |event: &serde_json::Value, name: &str| event[name].as_u64().expect("a number");
    let files = ended.events.iter().filter(|event| {
        event["event"] == "file" && (event["state"] == "sent" || event["state"] == "resumed")
    });
    let had_to = files.map(|file| {
        let (bytes, reused) = (number(file, "bytes"), number(file, "reused"));
        match file["path"].as_str().expect("a path") {
            "film" => bytes - reused,
            // Cut into chunks, and at the receiving end what was there before as well, which is as large at most.
            _ if sends => bytes,
            _ => bytes + 300_000,
        }
    });
    number(ended.done(), "bytes_read").saturating_sub(had_to.sum())
}

/// `make kills`: 50 times one end or the other is killed at a random moment, and each time the same command goes on.
#[test]
#[ignore = "minutes: make kills"]
fn fifty_random_kills_of_either_end() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let wanted = number("SPHINX_KILLS", 50);
    let Some(sshd) = Sshd::start() else { return };
    let mut random = Random(number("SPHINX_KILLS_SEED", 1));
    let (mut here, mut elsewhere, mut too_late) = (0, 0, 0);
    let mut verified = 0;
    for round in 0.. {
        let scratch = Scratch::new();
        grow(&scratch.path("src"), &mut random, 3);
        grow(&scratch.path("in"), &mut random, 3);
        scratch.file("src/film", 20_000_000);
        let remote = |name: &str| format!("{}/", there(&scratch, name));
        let (from, to) = match round % 2 {
            0 => ("src/".to_owned(), remote("in")),
            _ => (remote("src"), "in".to_owned()),
        };
        let arguments = ["--delete", "--cc", "fixed:100mbit", &from, &to];
        let ssh = sshd.ssh();
        let base = ["sync", "--json", "--connect-timeout", "20s", "-e", &ssh];
        // Each interrupted round may bring some files; the run after them completes the rest.
        for _ in 0..5 {
            let running = Running::start(&scratch, &[&base[..], &arguments].concat(), &[]);
            std::thread::sleep(Duration::from_millis(random.below(2500) as u64));
            // An ssh outlives the end that has started it, until the other one has ended.
            let ssh: Vec<Process> = descendants(running.pid())
                .into_iter()
                .filter_map(Process::of)
                .collect();
            let kills_this = random.below(2) == 0;
            match kills_this {
                true => running.signal(Signal::KILL),
                false => {
                    for process in sshd.ends_if_any() {
                        // It may just have ended.
                        let _ = kill_process(process, Signal::KILL);
                    }
                }
            }
            match (running.end().code, kills_this) {
                (0, _) => too_late += 1,
                (_, true) => here += 1,
                (_, false) => elsewhere += 1,
            }
            ssh.into_iter().for_each(Process::wait);
            sshd.wait_until_alone();
        }
        let ended = sync(&scratch, &sshd, &arguments).expect(0);
        sshd.wait_until_alone();
        let reused = (ended.events.iter())
            .find(|event| event["event"] == "file" && event["path"] == "film")
            .and_then(|film| film["reused"].as_u64());
        verified += reused.expect("the film is told");
        assert_eq!(read_again(&ended, round % 2 == 0), 0, "round {round}");
        assert_eq!(
            left_for_rsync(&scratch, &[], "src", "in").unwrap_or_default(),
            "",
            "round {round}"
        );
        scratch.assert_same("src/film", "in/film");
        scratch.remove();
        if here + elsewhere >= wanted {
            eprintln!(
                "{here} kills of this end, {elsewhere} of the other, {too_late} after the end, in {} rounds; of {verified} \
                 verified bytes none was read again",
                round + 1
            );
            return;
        }
    }
}
