//! Tickets are secrets: they are found in whatever form they are given, and shown to nobody.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

use crate::common::{Running, Scratch, command};
use rustix::process::Signal;

/// The ticket of a receiver that runs.
fn ticket(scratch: &Scratch) -> String {
    let text = fs::read_to_string(scratch.path("t")).expect("a ticket file");
    text.trim().to_owned()
}

/// No stretch of the ticket that is more than its beginning, in any case.
#[track_caller]
fn assert_hidden(ticket: &str, output: &str, what: &str) {
    let (output, ticket) = (output.to_lowercase(), ticket.to_lowercase());
    for at in 5..ticket.len() - 8 {
        let part = &ticket[at..at + 8];
        assert!(!output.contains(part), "{what}: {output}");
    }
}

#[test]
fn a_ticket_works_in_capitals_and_with_what_was_copied_around_it() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let receiver = scratch.recv(&["--overwrite"]);
    let ticket = ticket(&scratch);
    for text in [
        ticket.to_uppercase(),
        format!("  {ticket}\r\n"),
        format!("\"{ticket}\","),
        format!("'{ticket}'"),
        format!("\u{feff}{ticket}"),
    ] {
        // The ticket is given as an argument, in the environment, and in a file.
        Running::start(&scratch, &["send", "--json", &text, "a"], &[])
            .end()
            .expect(0);
        Running::start(
            &scratch,
            &["send", "--json", "a"],
            &[("SPHX_TICKET", &text)],
        )
        .end()
        .expect(0);
        fs::write(scratch.path("copy"), &text).unwrap();
        Running::start(
            &scratch,
            &["send", "--json", "--ticket-file", "copy", "a"],
            &[],
        )
        .end()
        .expect(0);
    }
    scratch.assert_same("a", "in/a");
    receiver.signal(Signal::INT);
    let ended = receiver.end().expect(130);
    let output = format!("{:?}{}", ended.events, ended.stderr);
    assert_hidden(&ticket, &output, "the receiver");
}

#[test]
fn no_mistake_with_a_ticket_prints_it() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let receiver = scratch.recv(&[]);
    let ticket = ticket(&scratch);
    let upper = ticket.to_uppercase();
    let damaged = ticket.replace(&ticket[40..44], "");
    let headless = &ticket[2..];
    for words in [
        vec!["recv", &ticket],
        vec!["send", &ticket],
        vec!["send", headless, "a"],
        vec!["send", &damaged, "a"],
        vec!["send", "--ticket-file", "t", &upper],
        vec!["send", "--ticket-file", &ticket, "a"],
        vec!["perf", "client", headless],
        vec!["perf", "client", &upper, &ticket],
        vec!["perf", "client", "--ticket-file", "t", &ticket],
        vec!["perf", "client", "--bytes", &ticket],
        vec!["recv", "--listen", &ticket],
        vec![
            "recv",
            "--advertise",
            &ticket,
            "--listen",
            "127.0.0.1:0",
            "--ticket-file",
            "no/t",
        ],
        vec!["lab", "link", "set", &ticket],
        vec![&ticket],
    ] {
        for json in [&[][..], &["--json"]] {
            let words = [&words[..], json].concat();
            let output = command(&scratch.path("."), &words)
                .output()
                .expect("the binary starts");
            assert!(!output.status.success(), "{words:?}");
            let text = [output.stdout, output.stderr].concat();
            assert_hidden(&ticket, &String::from_utf8_lossy(&text), &words.join(" "));
        }
    }
    drop(receiver);
}

#[test]
fn a_ticket_as_an_argument_is_said_to_be_visible() {
    let scratch = Scratch::new();
    scratch.file("a", 1);
    let receiver = scratch.recv(&[]);
    let ticket = ticket(&scratch);
    for (words, said) in [
        (vec!["send", &ticket, "a"], true),
        (vec!["send", "--ticket-file", "t", "a"], false),
    ] {
        let output = command(&scratch.path("."), &words)
            .stdout(Stdio::null())
            .output()
            .expect("the binary starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.contains("can see the ticket"), said, "{text}");
    }
    drop(receiver);
}

#[test]
fn a_ticket_file_replaces_nothing_but_a_ticket() {
    let scratch = Scratch::new();
    let start = |name: &str| {
        let words = [
            "recv",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--output",
            "in",
            "--ticket-file",
        ];
        Running::start(&scratch, &[&words[..], &[name]].concat(), &[])
    };
    fs::write(scratch.path("precious"), "the only copy\n").unwrap();
    symlink("precious", scratch.path("link")).unwrap();
    symlink("absent", scratch.path("dangling")).unwrap();
    for name in ["precious", "link", "dangling", "in"] {
        let ended = start(name).end().expect(8);
        let message = ended.error("local_io")["message"].to_string();
        assert!(message.contains(name), "{message}");
    }
    let precious = fs::read_to_string(scratch.path("precious")).unwrap();
    assert_eq!(precious, "the only copy\n");
    assert!(scratch.path("link").is_symlink() && !scratch.path("absent").exists());

    // A place that is free, one that was made with mktemp, and the ticket of an earlier run are fine.
    fs::write(scratch.path("empty"), "").unwrap();
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(scratch.path("empty"), mode).unwrap();
    for name in ["t", "t", "empty", "empty"] {
        let before = fs::read_to_string(scratch.path(name)).unwrap_or_default();
        let mut receiver = start(name);
        receiver.event("listening");
        let after = fs::read_to_string(scratch.path(name)).unwrap();
        assert!(after.starts_with("sphx1") && after != before, "{name}");
        let mode = fs::metadata(scratch.path(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // A link to a ticket is a link all the same.
    symlink("t", scratch.path("to-ticket")).unwrap();
    start("to-ticket").end().expect(8);
}

/// Events end up in logs: neither end's hold the ticket, and a listening end does not begin without another
/// place for it.
#[test]
fn events_hold_no_ticket() {
    let scratch = Scratch::new();
    for words in [&["recv"][..], &["perf", "server"]] {
        let options = ["--json", "--listen", "127.0.0.1:0"];
        let ended = Running::start(&scratch, &[words, &options].concat(), &[])
            .end()
            .expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains("--ticket-file"), "{message}");
    }
    scratch.file("a", 1000);
    let receiver = scratch.recv(&["--once"]);
    let ticket = ticket(&scratch);
    let sender = scratch.send(&["a"]).end().expect(0);
    for ended in [sender, receiver.end().expect(0)] {
        let events: Vec<String> = ended.events.iter().map(ToString::to_string).collect();
        assert_hidden(&ticket, &events.concat(), "events");
        assert_hidden(&ticket, &ended.stderr, "standard error");
    }
}
