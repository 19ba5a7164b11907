//! Files from one process to another over loopback.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::common::{Running, Scratch, assert_done_schema, receive_where};
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
    let sent = scratch.send(&["tree/", "single"]).end().expect(7);
    let received = recv.end().expect(7);
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
    for ended in [&sent, &received] {
        let skipped = ended.event("skipped");
        assert_eq!(skipped["path"], "tree/outside");
        assert_eq!(ended.done()["entries_skipped"], 1);
        assert_eq!(ended.done()["files"], 202);
        let stderr = &ended.stderr;
        assert!(stderr.contains("skipped tree/outside"), "{stderr}");
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

    let environment = [("SPHX_TICKET", ticket.trim())];
    Running::start(&scratch, &["send", "--json", "a"], &environment)
        .end()
        .expect(0);
    recv.event("done");

    Running::start(&scratch, &["send", "--json", ticket.trim(), "a"], &[])
        .end()
        .expect(0);
    recv.event("done");
    recv.signal(Signal::TERM);
    recv.end().expect(143).error("interrupted");
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
fn two_senders_of_one_name_do_not_mix() {
    for overwrite in [&[][..], &["--overwrite"]] {
        let scratch = Scratch::new();
        for (directory, byte) in [("one", 1), ("two", 2)] {
            fs::create_dir(scratch.path(directory)).unwrap();
            fs::write(scratch.path(directory).join("a"), vec![byte; 3_000_000]).unwrap();
        }
        let recv = scratch.recv(overwrite);
        // Slow enough to be under way at the same time.
        let senders = ["one/a", "two/a"].map(|name| scratch.send(&["--cc", "fixed:30mbit", name]));
        let ended = senders.map(Running::end);
        let winners = ended.iter().filter(|ended| ended.code == 0).count();
        if overwrite.is_empty() {
            assert_eq!(winners, 1);
            let [one, two] = ended;
            let loser = if one.code == 0 { two } else { one };
            let message = loser.expect(9).error("remote_io")["message"].to_string();
            let late = ["a exists already", "a has come from elsewhere meanwhile"];
            assert!(late.iter().any(|text| message.contains(text)), "{message}");
        } else {
            assert_eq!(winners, 2);
        }
        drop(recv);
        let arrived = fs::read(scratch.path("in/a")).unwrap();
        assert_eq!(arrived.len(), 3_000_000);
        assert!(arrived.iter().all(|byte| *byte == arrived[0]));
        assert_eq!(scratch.arrived(), ["a"]);
    }
}

/// Mounts a small file system on `in`, in a mount namespace of the receiver's own, and ends with what
/// is left there when it is over.
const ON_A_SMALL_DISK: &str = r#"mount -t tmpfs -o size=1m tmpfs in || exit 77
"$0" recv --json --once --listen 127.0.0.1:0 --output in --ticket-file t
code=$?
ls -A in >left
exit $code"#;

#[test]
fn a_full_disk_is_io_at_both_ends() {
    let scratch = Scratch::new();
    scratch.file("a", 5_000_000);
    let Some(recv) = receive_where(&scratch, ON_A_SMALL_DISK) else {
        return;
    };
    let sent = scratch.send(&["a"]).end().expect(9);
    let told = sent.error("remote_io")["message"].to_string();
    assert!(told.contains("no space left"), "{told}");
    let output = recv.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("free some space"), "{text}");
    assert_eq!(fs::read_to_string(scratch.path("left")).unwrap(), "");
}

/// For a file and for a directory, at a receiver that ends then and at one that stays.
#[test]
fn an_output_that_vanishes_is_io_at_both_ends() {
    let removed = "the directory in was removed meanwhile";
    let again = "start the receiving end again";
    for (what, stays) in [("a", false), ("d", false), ("a", true), ("d", true)] {
        let scratch = Scratch::new();
        scratch.file("a", 1000);
        scratch.file("d/b", 1000);
        let mut recv = scratch.recv(if stays { &[] } else { &["--once"] });
        fs::remove_dir(scratch.path("in")).unwrap();
        let sent = scratch.send(&[what]).end().expect(9);
        let error = sent.error("remote_io");
        assert_eq!(
            error["message"],
            format!("at the other end: {removed} ({again})")
        );
        let hint = error["hint"].to_string();
        let goes_on = "once that is put right, the same command goes on (with the ticket that the other end prints, if it is started again): sphx send";
        assert!(hint.contains(goes_on), "{hint}");
        let event = match stays {
            true => recv.event("error"),
            false => recv.end().expect(8).error("local_io").clone(),
        };
        assert_eq!(event["kind"], "local_io", "{what} {stays}");
        assert_eq!(event["message"], removed, "{what} {stays}");
        assert_eq!(event["hint"], again, "{what} {stays}");
    }
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

/// It ends as soon as everything has arrived; what it has learned about the path is not lost with it.
#[test]
fn what_send_learned_about_its_path_is_remembered() {
    let scratch = Scratch::new();
    // Where the disk or the processor is the limit there is nothing to learn about the path: then once more, beside other tests often.
    let paths = (0..200).find_map(|round| {
        let name = format!("movie{round}.mkv");
        scratch.file(&name, 20_000_000);
        let recv = scratch.recv(&["--once"]);
        scratch.send(&[&name]).end().expect(0);
        recv.end().expect(0);
        fs::remove_file(scratch.path(&name)).expect("it was sent");
        fs::remove_dir_all(scratch.path("in")).expect("it has arrived");
        fs::read_to_string(scratch.path("cache/sphinx/paths")).ok()
    });
    let paths = paths.expect("a path is remembered");
    assert_eq!(paths.lines().count(), 2, "{paths}");
}
