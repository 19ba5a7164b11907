//! Files from one process to another over loopback.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use common::{Running, Scratch, assert_done_schema};
use rustix::process::Signal;

#[test]
fn a_file_arrives() {
    let scratch = Scratch::new();
    scratch.file("movie.mkv", 5_000_003);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["movie.mkv"]).end().expect(0);
    let received = recv.end().expect(0);
    scratch.assert_same("movie.mkv", "in/movie.mkv");
    assert_eq!(scratch.arrived(), ["movie.mkv"]);
    for done in [sent.done(), received.done()] {
        assert_done_schema(done);
        assert_eq!(done["bytes"], 5_000_003);
    }
    assert_eq!(
        (&sent.done()["role"], &received.done()["role"]),
        (&"sender".into(), &"receiver".into())
    );
    let hash = blake3::hash(&fs::read(scratch.path("movie.mkv")).unwrap())
        .to_hex()
        .to_string();
    for ended in [&sent, &received] {
        let file = ended
            .events
            .iter()
            .find(|event| event["event"] == "file")
            .expect("an event");
        assert_eq!(
            (&file["path"], &file["bytes"]),
            (&"movie.mkv".into(), &5_000_003.into())
        );
        assert_eq!(file["blake3"], hash.as_str());
    }
}

#[test]
fn a_file_of_no_bytes_arrives() {
    let scratch = Scratch::new();
    scratch.file("nothing", 0);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["nothing"]).end().expect(0);
    assert_eq!(sent.done()["bytes"], 0);
    assert!(sent.done()["overhead"].is_null());
    recv.end().expect(0);
    scratch.assert_same("nothing", "in/nothing");
}

#[test]
fn a_tree_arrives() {
    let scratch = Scratch::new();
    for n in 0..200 {
        scratch.file(&format!("tree/sub{}/f{n}", n % 7), n * 37);
    }
    fs::create_dir(scratch.path("tree/empty")).unwrap();
    let odd = scratch
        .path("tree")
        .join(OsStr::from_bytes(b"caf\xe9\x1b[2J"));
    fs::write(&odd, b"odd").unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("empty", scratch.path("tree/inside")).unwrap();
    symlink("/etc/passwd", scratch.path("tree/outside")).unwrap();
    scratch.file("single", 10);

    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["tree/", "single"]).end().expect(0);
    let received = recv.end().expect(0);
    assert_eq!(scratch.arrived(), ["single", "tree"]);
    for n in 0..200 {
        let name = format!("tree/sub{}/f{n}", n % 7);
        scratch.assert_same(&name, &format!("in/{name}"));
    }
    assert!(scratch.path("in/tree/empty").is_dir());
    let odd = scratch
        .path("in/tree")
        .join(OsStr::from_bytes(b"caf\xe9\x1b[2J"));
    assert_eq!(
        fs::metadata(odd).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert_eq!(
        fs::read_link(scratch.path("in/tree/inside")).unwrap(),
        OsStr::new("empty")
    );
    assert!(fs::symlink_metadata(scratch.path("in/tree/outside")).is_err());
    assert!(
        sent.stderr.contains("skipped tree/outside"),
        "{}",
        sent.stderr
    );
    assert!(sent.events.iter().any(|event| event["event"] == "note"));
    for stderr in [&sent.stderr, &received.stderr] {
        assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn the_ticket_travels_in_other_ways() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let mut recv = scratch.recv(&[]);
    let ticket = fs::read_to_string(scratch.path("t")).unwrap();
    let mode = fs::metadata(scratch.path("t"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let mut piped = Running::start(&scratch, &["send", "--json", "-", "a"], &[]);
    piped.input(&ticket);
    piped.end().expect(0);
    recv.event("done");
    fs::remove_file(scratch.path("in/a")).unwrap();

    let environment = [("SPHX_TICKET", ticket.trim())];
    Running::start(&scratch, &["send", "--json", "a"], &environment)
        .end()
        .expect(0);
    recv.event("done");
    fs::remove_file(scratch.path("in/a")).unwrap();

    Running::start(&scratch, &["send", "--json", ticket.trim(), "a"], &[])
        .end()
        .expect(0);
    recv.event("done");
    recv.signal(Signal::TERM);
    recv.end().expect(143).error("interrupted");
}

#[test]
fn without_a_ticket_file_the_ticket_is_in_the_event() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let arguments = [
        "recv",
        "--json",
        "--once",
        "--listen",
        "127.0.0.1:0",
        "--output",
        "in",
    ];
    let mut recv = Running::start(&scratch, &arguments, &[]);
    let listening = recv.event("listening");
    assert!(listening["ticket_file"].is_null());
    assert!(
        listening["addresses"][0]
            .as_str()
            .is_some_and(|a| a.starts_with("127.0.0.1:"))
    );
    let ticket = listening["ticket"].as_str().expect("a ticket").to_owned();
    Running::start(
        &scratch,
        &["send", "--json", "a"],
        &[("SPHX_TICKET", &ticket)],
    )
    .end()
    .expect(0);
    recv.end().expect(0);
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let scratch = Scratch::new();
    scratch.file("a", 2_000_000);
    fs::write(scratch.path("in/a"), b"old").unwrap();
    let recv = scratch.recv(&["--once"]);
    scratch.send(&["a"]).end().expect(9).error("remote_io");
    let received = recv.end().expect(8);
    assert!(
        received.error("local_io")["hint"]
            .to_string()
            .contains("--overwrite")
    );
    assert_eq!(fs::read(scratch.path("in/a")).unwrap(), b"old");
    assert_eq!(scratch.arrived(), ["a"]);

    let recv = scratch.recv(&["--once", "--overwrite"]);
    scratch.send(&["a"]).end().expect(0);
    recv.end().expect(0);
    scratch.assert_same("a", "in/a");
}

#[test]
fn recv_stays_up_after_a_failed_transfer() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    scratch.file("b", 1000);
    fs::write(scratch.path("in/a"), b"old").unwrap();
    let mut recv = scratch.recv(&[]);
    scratch.send(&["a"]).end().expect(9);
    assert_eq!(recv.event("error")["code"], 8);
    scratch.send(&["b"]).end().expect(0);
    let done = recv.event("done");
    assert!(done["peer"].is_string());
    scratch.assert_same("b", "in/b");
    recv.signal(Signal::INT);
    recv.end().expect(130);
}

#[test]
fn several_senders_at_once() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..4).map(|n| format!("f{n}")).collect();
    names
        .iter()
        .for_each(|name| drop(scratch.file(name, 1_000_000)));
    let mut recv = scratch.recv(&[]);
    let senders: Vec<Running> = names.iter().map(|name| scratch.send(&[name])).collect();
    for sender in senders {
        sender.end().expect(0);
    }
    for name in &names {
        recv.event("done");
        scratch.assert_same(name, &format!("in/{name}"));
    }
}

#[test]
fn an_output_that_vanishes_is_io_at_both_ends() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let recv = scratch.recv(&["--once"]);
    fs::remove_dir(scratch.path("in")).unwrap();
    scratch.send(&["a"]).end().expect(9).error("remote_io");
    recv.end().expect(8).error("local_io");
}

#[test]
fn a_source_that_changes_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.file("a", 20_000_000);
    let recv = scratch.recv(&["--once"]);
    let mut sender = scratch.send(&["--cc", "fixed:20mbit", "a"]);
    sender.event("progress");
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let sent = sender.end().expect(8);
    assert!(
        sent.error("local_io")["message"]
            .to_string()
            .contains("changed")
    );
    recv.end().expect(9).error("remote_io");
    assert_eq!(scratch.arrived(), Vec::<String>::new());
}
