//! Receivers that stay the same between their starts, and the tickets that they give out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Ended, Running, Scratch, until};

/// A standing receiver into `in`, with its state in `s`, and where it listens.
fn standing(scratch: &Scratch, listen: &str, more: &[&str]) -> (Running, String) {
    let base = [
        "recv",
        "--json",
        "--identity",
        "--state",
        "s",
        "--listen",
        listen,
    ];
    let rest = ["--output", "in", "--ticket-file", "t"];
    let mut recv = Running::start(scratch, &[&base[..], &rest, more].concat(), &[]);
    let listening = recv.event("listening");
    let at = listening["listen"].as_str().expect("an address").to_owned();
    (recv, at)
}

fn ticket(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let base = ["ticket", arguments[0], "--json", "--state", "s"];
    Running::start(scratch, &[&base, &arguments[1..]].concat(), &[]).end()
}

fn send(scratch: &Scratch, ticket: &str, path: &str) -> Ended {
    let arguments = ["send", "--json", "--ticket-file", ticket, path];
    Running::start(scratch, &arguments, &[]).end()
}

fn names(ended: &Ended) -> Vec<&str> {
    let tickets = ended
        .events
        .iter()
        .filter(|event| event["event"] == "ticket");
    tickets
        .map(|event| event["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn the_same_ticket_works_after_the_next_start() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    scratch.file("b", 1000);
    let (recv, at) = standing(&scratch, "127.0.0.1:0", &[]);
    send(&scratch, "t", "a").expect(0);
    for name in ["s/key", "s/tickets"] {
        let mode = fs::metadata(scratch.path(name))
            .expect("it is kept")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    recv.signal(Signal::TERM);
    recv.end().expect(143);
    let before = fs::read(scratch.path("t")).expect("a ticket");
    let (_recv, again) = standing(&scratch, &at, &[]);
    assert_eq!(again, at);
    assert_eq!(fs::read(scratch.path("t")).expect("a ticket"), before);
    send(&scratch, "t", "b").expect(0);
    scratch.assert_same("b", "in/b");
}

/// The arguments of `unshare` for a network namespace, where there is no network; nothing, with a reason, if it makes none.
fn without_network() -> Option<&'static [&'static str]> {
    let words: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--net"],
        false => &["--map-root-user", "--net"],
    };
    let tried = Command::new("unshare").args(words).arg("true").output();
    let is_made = tried.is_ok_and(|ended| ended.status.success());
    if !is_made {
        sphinx_testing::skipped!("unshare makes no network namespace here");
    }
    is_made.then_some(words)
}

#[test]
fn a_start_without_network_forgets_no_address() {
    let Some(words) = without_network() else {
        return;
    };
    let scratch = Scratch::new();
    let (recv, at) = standing(&scratch, "127.0.0.1:0", &["--advertise", "192.0.2.7"]);
    recv.signal(Signal::TERM);
    recv.end().expect(143);
    let kept = |name: &str| fs::read_to_string(scratch.path(name)).expect("it is kept");
    let before = (kept("t"), kept("s/addresses"));
    let (_, port) = at.rsplit_once(':').expect("a port");
    let address = format!("192.0.2.7:{port}");
    assert_eq!(before.1, format!("{address}\n"));
    // On the same port, and on another one, where tickets of before lead nowhere.
    for (listen, is_kept) in [(format!(":{port}"), true), (":0".to_owned(), false)] {
        let mut command = Command::new("unshare");
        command.args(words).arg(env!("CARGO_BIN_EXE_sphx"));
        command.args(["recv", "--json", "--identity", "--state", "s"]);
        command.args(["--listen", &listen, "--output", "in", "--ticket-file", "t"]);
        let mut recv = Running::of(&scratch, command);
        let listening = recv.event("listening");
        recv.signal(Signal::TERM);
        recv.end().expect(143);
        if is_kept {
            assert_eq!(listening["addresses"], serde_json::json!([address]));
            assert_eq!((kept("t"), kept("s/addresses")), before);
        } else {
            assert!(kept("s/addresses").starts_with("127.0.0.1:"));
        }
    }
}

#[test]
fn tickets_come_and_go_while_the_receiver_runs() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    scratch.file("b", 1000);
    let (mut recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    ticket(
        &scratch,
        &[
            "new",
            "anna",
            "--ticket-file",
            "anna",
            "--directory",
            "of/anna",
        ],
    )
    .expect(0);
    ticket(&scratch, &["new", "anna", "--ticket-file", "x"]).expect(2);
    until(0, || send(&scratch, "anna", "a"));
    scratch.assert_same("a", "in/of/anna/a");
    let listed = ticket(&scratch, &["list"]).expect(0);
    assert_eq!(names(&listed), ["first", "anna"]);
    assert!(
        !listed
            .events
            .iter()
            .any(|event| event.to_string().contains("secret"))
    );

    ticket(&scratch, &["revoke", "first"]).expect(0);
    ticket(&scratch, &["revoke", "first"]).expect(2);
    until(4, || send(&scratch, "t", "b")).error("authentication");
    send(&scratch, "anna", "b").expect(0);
    assert!(!recv.has_ended());
}

#[test]
fn a_ticket_works_as_soon_as_it_is_made() {
    let scratch = Scratch::new();
    let (_recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    for name in ["a", "b", "c", "d", "e"] {
        scratch.file(name, 10);
        let file = format!("{name}.ticket");
        ticket(&scratch, &["new", name, "--ticket-file", &file]).expect(0);
        send(&scratch, &file, name).expect(0);
    }
    // One that nobody has made is refused all the same.
    ticket(&scratch, &["revoke", "a"]).expect(0);
    until(4, || send(&scratch, "a.ticket", "b"));
}

#[test]
fn who_is_revoked_in_the_middle_of_a_transfer_is_cut_off_and_nobody_else() {
    let scratch = Scratch::new();
    scratch.file("large", 20_000_000);
    scratch.file("other", 5_000_000);
    let (_recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    ticket(
        &scratch,
        &["new", "b", "--ticket-file", "b", "--directory", "b"],
    )
    .expect(0);
    let slow = |ticket, path| {
        let base = [
            "send",
            "--json",
            "--cc",
            "fixed:20mbit",
            "--interval-report",
            "100ms",
        ];
        let rest = ["--ticket-file", ticket, path];
        let mut send = Running::start(&scratch, &[&base[..], &rest].concat(), &[]);
        send.event("progress");
        send
    };
    until(0, || send(&scratch, "b", "t"));
    let (cut, other) = (slow("t", "large"), slow("b", "other"));
    ticket(&scratch, &["revoke", "first"]).expect(0);
    let error = cut.end().expect(4);
    assert!(
        error.error("authentication")["message"]
            .to_string()
            .contains("revoked")
    );
    other.end().expect(0);
}

#[test]
fn a_ticket_is_good_for_what_it_says() {
    let scratch = Scratch::new();
    scratch.file("a", 6000);
    scratch.file("b", 6000);
    scratch.file("c", 10);
    let (recv, at) = standing(&scratch, "127.0.0.1:0", &[]);
    ticket(
        &scratch,
        &["new", "once", "--ticket-file", "once", "--uses", "1"],
    )
    .expect(0);
    ticket(
        &scratch,
        &["new", "some", "--ticket-file", "some", "--quota", "10kB"],
    )
    .expect(0);
    ticket(
        &scratch,
        &["new", "short", "--ticket-file", "short", "--expires", "1s"],
    )
    .expect(0);
    recv.signal(Signal::TERM);
    recv.end().expect(143);
    // Another start, so that all of them are known.
    let (_recv, _) = standing(&scratch, &at, &[]);
    send(&scratch, "some", "a").expect(0);
    let refused = send(&scratch, "some", "b").expect(9);
    let error = refused.error("remote_io");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("more than 4000 bytes"), "{message}");
    assert!(
        message.contains("with a ticket of a larger --quota"),
        "{message}"
    );
    // The same again would be refused again.
    let hint = error["hint"].as_str().expect("a hint");
    assert!(hint.contains("is refused again"), "{hint}");
    send(&scratch, "some", "c").expect(0);
    send(&scratch, "once", "c").expect(0);
    let used = until(4, || send(&scratch, "once", "b"));
    let hint = used.error("authentication")["hint"].to_string();
    assert!(hint.contains("ask there for another"), "{hint}");
    until(4, || send(&scratch, "short", "c"));
    let listed = ticket(&scratch, &["list"]).expect(0);
    let of = |name: &str| -> &Value {
        let mut found = listed.events.iter().filter(|event| event["name"] == name);
        found.next().expect("it is listed")
    };
    assert_eq!(
        (&of("once")["works"], &of("once")["used"]),
        (&false.into(), &1.into())
    );
    assert_eq!(of("some")["taken"], 6010);
    assert_eq!(of("short")["works"], false);
}

#[test]
fn state_that_cannot_be_trusted_is_refused() {
    let scratch = Scratch::new();
    let (recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    let another = |code| {
        let base = [
            "recv",
            "--json",
            "--identity",
            "--state",
            "s",
            "--listen",
            "127.0.0.1:0",
        ];
        let recv = Running::start(
            &scratch,
            &[&base[..], &["--ticket-file", "u"]].concat(),
            &[],
        );
        let ended = recv.end().expect(code);
        ended.events.last().expect("an error")["message"].to_string()
    };
    assert!(another(8).contains("another receiver or server"));
    recv.signal(Signal::TERM);
    recv.end().expect(143);
    let set = |name: &str, mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(scratch.path(name), permissions).expect("it is ours");
    };
    for name in ["s/key", "s/tickets"] {
        set(name, 0o644);
        assert!(another(8).contains("others can read"), "{name}");
        set(name, 0o600);
    }
    set("s", 0o777);
    assert!(another(8).contains("others can write"));
    set("s", 0o700);
    // Torn in the middle of a line, and of the key.
    let text = fs::read(scratch.path("s/tickets")).expect("it is kept");
    fs::write(scratch.path("s/tickets"), &text[..text.len() - 5]).expect("it is ours");
    assert!(another(2).contains("tickets:2"));
    fs::write(scratch.path("s/tickets"), &text).expect("it is ours");
    let key = fs::read(scratch.path("s/key")).expect("it is kept");
    fs::write(scratch.path("s/key"), &key[..key.len() / 2]).expect("it is ours");
    assert!(another(8).contains("damaged"));
}

/// An edit that makes no sense while the receiver runs changes nothing, and it says so.
#[test]
fn an_edit_that_makes_no_sense_changes_nothing() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let (recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    fs::write(scratch.path("s/tickets"), "first secre").expect("it is ours");
    recv.says("nothing changes");
    // Who has a ticket that was good is let in; what it is good for, nobody knows.
    send(&scratch, "t", "a").expect(9);
    recv.signal(Signal::TERM);
    recv.end().expect(143);
}

/// How much of the ticket was taken.
fn taken(scratch: &Scratch, name: &str) -> u64 {
    let listed = ticket(scratch, &["list"]).expect(0);
    let mut found = listed.events.iter().filter(|event| event["name"] == name);
    let taken = &found.next().expect("it is listed")["taken"];
    taken.as_u64().expect("a number")
}

/// A sender that was lost, and is not known to be.
#[test]
fn what_was_interrupted_goes_on_with_a_quota() {
    let scratch = Scratch::new();
    scratch.file("movie", 30_000_000);
    let often = ["--interval-report", "10ms"];
    let (mut recv, _) = standing(&scratch, "127.0.0.1:0", &often);
    let quota = ["new", "some", "--ticket-file", "some", "--quota", "50MB"];
    ticket(&scratch, &quota).expect(0);
    let slow = ["send", "--json", "--cc", "fixed:60mbit"];
    let rest = ["--ticket-file", "some", "movie"];
    let lost = Running::start(&scratch, &[&slow[..], &rest].concat(), &[]);
    // At this end: what the other one has begun to send may wait there.
    while recv.event("progress")["bytes"].as_u64().expect("a number") < 22_000_000 {}
    lost.signal(Signal::KILL);
    lost.end();
    // All of it is taken still, and then what came of it: either way less is left than all of it once more.
    let sent = send(&scratch, "some", "movie").expect(0);
    let reused = sent.done()["bytes_reused"].as_u64().expect("a number");
    assert!(reused > 3_000_000, "{reused}");
    recv.event("done");
    scratch.assert_same("movie", "in/movie");
    let taken = taken(&scratch, "some");
    assert!((30_000_000..=50_000_000).contains(&taken), "{taken}");
}

#[test]
fn what_is_there_already_takes_nothing_from_a_quota() {
    let scratch = Scratch::new();
    scratch.file("movie", 10_000_000);
    let (mut recv, _) = standing(&scratch, "127.0.0.1:0", &[]);
    let quota = ["new", "some", "--ticket-file", "some", "--quota", "21MB"];
    ticket(&scratch, &quota).expect(0);
    send(&scratch, "some", "movie").expect(0);
    recv.event("done");
    assert_eq!(taken(&scratch, "some"), 10_000_000);
    send(&scratch, "some", "movie").expect(0);
    recv.event("done");
    // As much as leaves before that is known.
    assert!(taken(&scratch, "some") <= 11_600_000);
}
