//! Transfers and measurements that begin before their handshakes are over.

use std::fs;

use crate::common::*;

/// A receiver that stays hears a sender that it knows at once; without a cache nothing is kept. How much leaves early is a matter of luck on loopback.
#[test]
fn a_receiver_seen_before_is_sent_to_at_once() {
    let scratch = Scratch::new();
    let mut recv = scratch.recv(&[]);
    for (name, more, expected) in [
        ("one", &[][..], "none"),
        ("two", &[], "accepted"),
        ("three", &[], "accepted"),
        ("four", &["--no-cache"], "none"),
        ("five", &[], "accepted"),
    ] {
        scratch.file(name, 20_000);
        let sent = scratch.send(&[more, &[name]].concat()).end().expect(0);
        for done in [sent.done(), &recv.event("done")] {
            assert_eq!(done["early_data"], expected, "{name}: {done}");
            let bytes = done["early_data_bytes"].as_u64().expect("a number");
            assert!(bytes == 0 || expected == "accepted", "{name}: {done}");
        }
        scratch.assert_same(name, &format!("in/{name}"));
    }
}

/// What the sender keeps is of no use at another receiver, whose ticket is another one.
#[test]
fn another_receiver_is_a_first_contact() {
    let scratch = Scratch::new();
    for name in ["one", "two"] {
        let _recv = scratch.recv(&[]);
        scratch.file(name, 20_000);
        let sent = scratch.send(&[name]).end().expect(0);
        assert_eq!(sent.done()["early_data"], "none");
    }
    let kept = fs::read_to_string(scratch.path("cache/sphinx/sessions")).expect("it is kept");
    assert_eq!(kept.lines().count(), 3);
}

/// A receiver that has gone is noticed as on first contact: with the same exit code, and nothing of a session.
#[test]
fn a_receiver_that_has_gone_is_unreachable() {
    let scratch = Scratch::new();
    let recv = scratch.recv(&[]);
    scratch.file("one", 20_000);
    scratch.send(&["one"]).end().expect(0);
    drop(recv);
    let ended = scratch.send(&["one"]).end().expect(3);
    ended.error("unreachable");
}

/// Both ends of a measurement begin at once.
#[test]
fn a_measurement_begins_at_once() {
    let scratch = Scratch::new();
    let arguments = [
        "perf",
        "server",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--ticket-file",
        "t",
    ];
    let mut server = Running::start(&scratch, &arguments, &[]);
    server.event("listening");
    for expected in ["none", "accepted"] {
        for more in [&[][..], &["--reverse"]] {
            let expected = if more.is_empty() {
                expected
            } else {
                "accepted"
            };
            let arguments = [&["--bytes", "100kB"][..], more].concat();
            let measured = scratch.perf_client(&arguments).end().expect(0);
            for done in [measured.done(), &server.event("done")] {
                assert_eq!(done["early_data"], expected, "{done}");
            }
        }
    }
}
