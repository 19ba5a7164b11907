//! What a session learned about its path helps the next one, where it is wanted.

use std::fs::OpenOptions;
use std::process::Command;

use sphinx_transport::{ErrorKind, Options};

use crate::support::*;

#[test]
fn the_connecting_end_remembers_its_paths() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deep/paths");
        let options = |memory: bool| Options {
            path_memory: memory.then(|| file.clone()),
            ..Options::default()
        };
        let session = |memory: bool, bytes: usize| {
            let pair = pair_with(link(0.05, 1), link(0.0, 2), &options(memory));
            let loss = pair.client.stats().plr;
            transfer(&pair.client, &pair.server, &content(4, bytes));
            pair.client.close(0, "done");
            loss
        };
        let lines = || std::fs::read_to_string(&file).map(|text| text.lines().count());
        session(false, 3_000_000);
        assert!(lines().is_err(), "nothing was to be remembered");
        session(true, 10_000);
        assert!(lines().is_err(), "too little was learned");
        session(true, 3_000_000);
        assert_eq!(lines().unwrap(), 2, "a path behind the version");
        // Another server at the same address is at the end of the same path.
        session(true, 3_000_000);
        assert_eq!(lines().unwrap(), 2);
    });
}

#[test]
fn the_next_session_begins_with_it_though_the_server_is_another() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            path_memory: Some(directory.path().join("paths")),
            ..Options::default()
        };
        let first = pair_with(link(0.1, 1), link(0.0, 2), &options);
        let cold = first.client.stats().plr;
        transfer(&first.client, &first.server, &content(4, 4_000_000));
        first.client.close(0, "done");
        let second = pair_with(link(0.1, 3), link(0.0, 4), &options);
        wait_until("counters", || second.client.stats().plr > 0.0);
        let warm = second.client.stats().plr;
        assert!(warm > 0.05 && warm > cold, "{warm} after {cold}");
    });
}

/// A file on a network that is away, for example.
#[test]
fn a_file_that_hangs_holds_up_nobody_but_who_lets_go() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("paths");
        let options = Options {
            path_memory: Some(file.clone()),
            ..Options::default()
        };
        let pair = pair_with(link(0.05, 1), link(0.0, 2), &options);
        transfer(&pair.client, &pair.server, &content(4, 3_000_000));
        // Who opens it waits until somebody writes to it.
        let made = Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        let client = pair.client.clone();
        let closing = std::thread::spawn(move || client.close(0, "done"));
        let error = pair.server.accept_uni().expect_err("it was closed");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        wait_until("closed here", || pair.client.closed().is_some());
        assert!(!closing.is_finished());
        drop(OpenOptions::new().write(true).open(&file).unwrap());
        closing.join().expect("no panic");
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
    });
}

#[test]
fn what_was_learned_is_kept_when_the_last_handle_goes() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("paths");
        let options = Options {
            path_memory: Some(file.clone()),
            ..Options::default()
        };
        let pair = pair_with(link(0.05, 1), link(0.0, 2), &options);
        transfer(&pair.client, &pair.server, &content(4, 3_000_000));
        drop(pair.client);
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
    });
}
