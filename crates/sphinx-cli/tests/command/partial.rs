//! Nothing is left out in silence, and nothing that can arrive stays behind because of something else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Running, Scratch, appears, receive_where};
use rustix::process::Signal;

#[test]
fn links_inside_a_tree_arrive_as_they_are() {
    let scratch = Scratch::new();
    scratch.file("tree/f", 10);
    scratch.file("tree/z/g", 10);
    scratch.file("tree/z/deep/h", 10);
    let links = [
        ("tree/a", "./f"),
        ("tree/b", "z/"),
        // Its directory comes later.
        ("tree/c", "z/../f"),
        ("tree/d", "z/deep/../g"),
        ("tree/z/deep/e", ".././../f"),
        ("tree/z/up", "../z//deep/../../f"),
        ("tree/dangling", "z/nothing"),
    ];
    for (link, target) in links {
        symlink(target, scratch.path(link)).unwrap();
    }
    fs::set_permissions(scratch.path("tree/z"), fs::Permissions::from_mode(0o750)).unwrap();
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["tree"]).end().expect(0);
    recv.end().expect(0);
    assert_eq!(sent.done()["entries_skipped"], 0);
    for (link, target) in links {
        let there = fs::read_link(scratch.path("in").join(link)).unwrap();
        assert_eq!(there, Path::new(target), "{link}");
    }
    scratch.assert_same("tree/f", "in/tree/c");
    scratch.assert_same("tree/z/g", "in/tree/d");
    scratch.assert_same("tree/f", "in/tree/z/up");
    assert_eq!(mode(&scratch.path("in/tree/z")), 0o750);
}

#[test]
fn links_that_lead_out_are_told_also_when_quiet() {
    let scratch = Scratch::new();
    scratch.file("tree/f", 10);
    scratch.file("outside/secret", 10);
    fs::create_dir_all(scratch.path("tree/d/e")).unwrap();
    let links = [
        ("tree/absolute", "/etc/passwd"),
        ("tree/beside", "../outside/secret"),
        // By its text it leads to the tree itself; in fact to what lies beside it.
        ("tree/d/e/through", "short/../../outside/secret"),
        // It leads on through a link that is not sent.
        ("tree/indirect", "beside"),
    ];
    symlink("..", scratch.path("tree/d/e/short")).unwrap();
    for (link, target) in links {
        symlink(target, scratch.path(link)).unwrap();
    }
    let recv = scratch.recv(&["--once", "--quiet"]);
    let sent = scratch.send(&["--quiet", "tree"]).end().expect(7);
    let received = recv.end().expect(7);
    for ended in [&sent, &received] {
        assert_eq!(ended.done()["entries_skipped"], links.len());
        for (link, _) in links {
            assert!(ended.stderr.contains(link), "{}", ended.stderr);
            let told = |event: &serde_json::Value| {
                event["event"] == "skipped" && event["path"] == link && event["reason"].is_string()
            };
            assert!(ended.events.iter().any(told), "{link}: {:#?}", ended.events);
        }
    }
    scratch.assert_same("tree/f", "in/tree/f");
    for (link, _) in links {
        assert!(scratch.path("in").join(link).symlink_metadata().is_err());
    }
}

#[test]
fn what_cannot_be_sent_does_not_stop_the_rest() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 1000);
    scratch.file("tree/c", 1000);
    // Also to root, who may read everything, it is no file.
    let pipe = scratch.path("tree/b");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["tree"]).end().expect(7);
    let received = recv.end().expect(7);
    for ended in [&sent, &received] {
        assert_eq!(ended.event("skipped")["path"], "tree/b");
        assert_eq!(ended.done()["files"], 2);
        assert_eq!(ended.done()["entries_skipped"], 1);
    }
    for name in ["a", "c"] {
        scratch.assert_same(&format!("tree/{name}"), &format!("in/tree/{name}"));
    }
    // When that has been seen to, the same commands complete the tree.
    fs::remove_file(&pipe).unwrap();
    scratch.file("tree/b", 500);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["tree"]).end().expect(0);
    recv.end().expect(0);
    assert_eq!(sent.done()["files"], 3);
    assert_eq!(sent.done()["files_present"], 2);
    scratch.assert_same("tree/b", "in/tree/b");
    assert_eq!(names(&scratch.path("in/tree")), ["a", "b", "c"]);
}

#[test]
fn what_changes_does_not_stop_the_rest() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 1000);
    let log = scratch.file("tree/b", 8_000_000);
    scratch.file("tree/c", 1000);
    let recv = scratch.recv(&["--once"]);
    // It takes four seconds, and has only begun when it becomes shorter.
    let slow = ["--cc", "fixed:16mbit", "--interval-report", "50ms"];
    let mut sender = scratch.send(&[&slow[..], &["tree"]].concat());
    sender.event("progress");
    fs::OpenOptions::new()
        .write(true)
        .open(log)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let sent = sender.end().expect(7);
    let received = recv.end().expect(7);
    for ended in [&sent, &received] {
        let skipped = ended.event("skipped");
        assert_eq!(skipped["path"], "tree/b");
        assert!(skipped["reason"].to_string().contains("changed"));
    }
    scratch.assert_same("tree/c", "in/tree/c");
    assert!(!scratch.path("in/tree/b").exists());
}

#[test]
fn what_exists_does_not_stop_the_rest() {
    let scratch = Scratch::new();
    for name in ["a", "b", "c"] {
        scratch.file(name, 1000);
    }
    fs::write(scratch.path("in/b"), "mine").unwrap();
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["a", "b", "c"]).end().expect(7);
    let received = recv.end().expect(7);
    assert_eq!(sent.event("skipped")["path"], "b");
    assert_eq!(sent.event("skipped")["kind"], "remote_io");
    assert_eq!(received.event("skipped")["kind"], "local_io");
    // What was refused was not transferred, although it was too small to be stopped.
    for ended in [&sent, &received] {
        assert_eq!(ended.done()["bytes"], 2000);
    }
    scratch.assert_same("a", "in/a");
    scratch.assert_same("c", "in/c");
    assert_eq!(fs::read(scratch.path("in/b")).unwrap(), b"mine");
    assert_eq!(scratch.arrived(), ["a", "b", "c"]);
}

#[test]
fn files_that_are_there_already_count_as_sent() {
    let scratch = Scratch::new();
    scratch.file("large", 3_000_000);
    scratch.file("other", 2000);
    let round = |files_present: usize, code: i32| {
        let recv = scratch.recv(&["--once"]);
        let sent = scratch.send(&["large", "other"]).end().expect(code);
        let received = recv.end().expect(code);
        for ended in [&sent, &received] {
            assert_eq!(ended.done()["files_present"], files_present);
        }
        let present = |event: &&serde_json::Value| event["status"] == "present";
        let told = received.events.iter().filter(present).count();
        assert_eq!(told, files_present);
    };
    round(0, 0);
    round(2, 0);
    // Of the same size, with other contents.
    let mut other = fs::read(scratch.path("in/other")).unwrap();
    other[1000] ^= 1;
    fs::write(scratch.path("in/other"), &other).unwrap();
    round(1, 7);
    assert_eq!(fs::read(scratch.path("in/other")).unwrap(), other);
}

#[test]
fn directories_keep_their_modes_whatever_failed_before() {
    for (signal, merge) in [
        (Signal::KILL, &[][..]),
        (Signal::INT, &["--overwrite"]),
        (Signal::KILL, &["--overwrite", "--merge"]),
    ] {
        let scratch = Scratch::new();
        scratch.file("tree/d/a", 10);
        scratch.file("tree/d/b", 20_000_000);
        for (name, mode) in [("tree", 0o755), ("tree/d", 0o750)] {
            fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut recv = scratch.recv(&["--once"]);
        let mut sender = scratch.send(&["--cc", "fixed:2mbit", "--idle-timeout", "2s", "tree"]);
        sender.event("progress");
        while !scratch.path("in/tree/d").exists() {
            recv.event("progress");
        }
        recv.signal(signal);
        recv.end();
        assert_eq!(sender.end().code, 6);
        // A transfer that fails does not shut anybody out either.
        assert_eq!(mode(&scratch.path("in/tree/d")), 0o750);

        let recv = scratch.recv(&[&["--once"][..], merge].concat());
        scratch.send(&["tree"]).end().expect(0);
        recv.end().expect(0);
        assert_eq!(mode(&scratch.path("in/tree")), 0o755);
        assert_eq!(mode(&scratch.path("in/tree/d")), 0o750);
        scratch.assert_same("tree/d/b", "in/tree/d/b");
        assert_eq!(scratch.arrived(), ["tree"]);
        assert_eq!(names(&scratch.path("in/tree")), ["d"]);

        // The other way round: what is there keeps what its owner gave it, also if a transfer fails.
        let other = fs::Permissions::from_mode(0o711);
        fs::set_permissions(scratch.path("in/tree/d"), other).unwrap();
        fs::remove_file(scratch.path("in/tree/d/b")).unwrap();
        let mut recv = scratch.recv(&["--once", "--merge"]);
        let mut sender = scratch.send(&["--cc", "fixed:2mbit", "tree"]);
        sender.event("progress");
        recv.event("progress");
        sender.signal(Signal::INT);
        sender.end().expect(130);
        recv.end().expect(6);
        assert_eq!(mode(&scratch.path("in/tree/d")), 0o711);
    }
}

#[test]
fn leftovers_of_a_killed_receiver_are_removed_and_those_of_a_living_one_are_not() {
    let scratch = Scratch::new();
    scratch.file("tree/d/a", 20_000_000);
    scratch.file("top", 20_000_000);
    let slow = ["--cc", "fixed:2mbit", "--idle-timeout", "2s"];
    let parts = |directory: &str| {
        let mut names = names(&scratch.path(directory));
        names.retain(|name| name.ends_with(".part"));
        names.len()
    };
    let mut recv = scratch.recv(&[]);
    let mut senders = ["tree", "top"].map(|path| scratch.send(&[&slow[..], &[path]].concat()));
    senders
        .iter_mut()
        .for_each(|sender| drop(sender.event("progress")));
    while (parts("in"), parts("in/tree/d")) != (1, 1) {
        recv.event("progress");
    }
    // Somebody else starts in the same directory: what is in use stays.
    let arguments = [
        "recv",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--output",
        "in",
        "--ticket-file",
        "u",
    ];
    Running::start(&scratch, &arguments, &[]).event("listening");
    assert_eq!((parts("in"), parts("in/tree/d")), (1, 1));
    recv.signal(Signal::KILL);
    recv.end();
    assert_eq!((parts("in"), parts("in/tree/d")), (1, 1));
    // What is somebody's own is no leftover, whatever it is called.
    fs::write(scratch.path("in/.mine.sphx-00000000.part"), "mine").unwrap();
    drop(scratch.recv(&[]));
    assert_eq!((parts("in"), parts("in/tree/d")), (1, 0));
    assert_eq!(scratch.arrived(), [".mine.sphx-00000000.part", "tree"]);
    drop(senders);
}

/// As on a file system with a limit of its own, FAT for example.
#[test]
fn a_file_that_is_too_large_there_does_not_stop_the_others() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 5_000_000);
    scratch.file("tree/b", 1000);
    let hole = fs::File::create(scratch.path("tree/hole")).unwrap();
    hole.set_len(50_000_000).unwrap();
    scratch.file("tree/z", 1000);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 2000; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_sphx"))
        .args(["recv", "--json", "--once", "--listen", "127.0.0.1:0"])
        .args(["--output", "in", "--ticket-file", "t"]);
    let mut recv = Running::of(&scratch, limited);
    recv.event("listening");
    let sent = scratch.send(&["tree"]).end().expect(7);
    let received = recv.end().expect(7);
    assert_eq!(received.done()["entries_skipped"], 2);
    for path in ["tree/a", "tree/hole"] {
        let is_it = |event: &&serde_json::Value| event["path"] == path;
        let skipped = |event: &&serde_json::Value| event["event"] == "skipped";
        for ended in [&sent, &received] {
            let mut events = ended.events.iter().filter(skipped);
            let reason = events.find(is_it).expect(path)["reason"].to_string();
            assert!(reason.contains("file too large"), "{reason}");
        }
    }
    for name in ["tree/b", "tree/z"] {
        scratch.assert_same(name, &format!("in/{name}"));
    }
    assert_eq!(
        names(&scratch.path("in/tree")),
        [".sphx-unfinished", "b", "z"]
    );
}

/// Mounts a small file system on `in`, in a mount namespace of its own, and receives into it; then
/// enlarges it and receives again, with the same command.
const FREE_SOME_SPACE: &str = r#"mount -t tmpfs -o size=4m tmpfs in || exit 77
receive() { "$0" recv --json --once --listen 127.0.0.1:0 --output in --ticket-file "$1"; }
receive t; first=$?
mount -o remount,size=30m in || exit 78
receive t2; second=$?
(cd in && find . | sort) >arrived; cp in/tree/b b.arrived
[ "$first" = 8 ] && exit "$second""#;

#[test]
fn after_a_full_disk_the_same_command_succeeds_once_there_is_space() {
    let scratch = Scratch::new();
    scratch.file("tree/a", 1_000_000);
    scratch.file("tree/b", 5_000_000);
    let Some(mut recv) = receive_where(&scratch, FREE_SOME_SPACE) else {
        return;
    };
    let sent = scratch.send(&["tree"]).end().expect(9);
    assert!(
        sent.error("remote_io")["message"]
            .to_string()
            .contains("no space left")
    );
    appears(&scratch.path("t2"), &mut recv).unwrap();
    let arguments = ["send", "--json", "--ticket-file", "t2", "tree"];
    let sent = Running::start(&scratch, &arguments, &[]).end().expect(0);
    assert_eq!(sent.done()["files_present"], 1);
    // Half of the file was there.
    let reused = sent.done()["bytes_reused"].as_u64().unwrap();
    assert!(reused > 1_000_000, "{reused}");
    let Output { status, stdout, .. } = recv.wait_with_output().unwrap();
    assert_eq!(
        status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&stdout)
    );
    scratch.assert_same("tree/b", "b.arrived");
    let arrived = fs::read_to_string(scratch.path("arrived")).unwrap();
    assert_eq!(arrived, ".\n./tree\n./tree/a\n./tree/b\n");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
