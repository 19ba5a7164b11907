//! Coding threads, by the command line.

use crate::common::{Running, Scratch, assert_done_schema};

#[test]
fn files_and_measurements_are_the_same_with_workers() {
    let scratch = Scratch::new();
    scratch.file("movie.mkv", 20_000_003);
    for workers in ["0", "1", "2"] {
        let recv = scratch.recv(&["--once", "--overwrite", "--workers", workers]);
        let sent = scratch.send(&["movie.mkv", "--workers", workers]);
        let (sent, received) = (sent.end().expect(0), recv.end().expect(0));
        scratch.assert_same("movie.mkv", "in/movie.mkv");
        let server = scratch.perf_server(&["--workers", workers]);
        let client = scratch.perf_client(&["--bytes", "40MB", "--workers", workers]);
        let (client, server) = (client.end().expect(0), server.end().expect(0));
        for ended in [&sent, &received, &client, &server] {
            let done = ended.done();
            assert_done_schema(done);
            assert_eq!(done["workers"].to_string(), workers, "{done}");
            assert_eq!(done["worker_busy"].is_null(), workers == "0", "{done}");
        }
    }
}

#[test]
fn threads_run_where_they_are_told_to() {
    let scratch = Scratch::new();
    let usable = rustix::thread::sched_getaffinity(None).expect("Linux tells");
    let first = (0..1024).find(|cpu| usable.is_set(*cpu));
    let first = first.expect("this one runs").to_string();
    let server = scratch.perf_server(&["--cpus", &first]);
    let pinned = ["--bytes", "5MB", "--workers", "1", "--cpus", &first];
    scratch.perf_client(&pinned).end().expect(0);
    server.end().expect(0);
}

#[test]
fn wrong_numbers_say_what_is_expected() {
    let scratch = Scratch::new();
    for (line, expected) in [
        ("recv --json --workers 65", "at most 64"),
        ("recv --json --workers many", "expected auto or a number"),
        ("recv --json --cpus 2-1", "such as 0-2,4"),
        ("recv --json --cpus 0,0", "named twice"),
        (
            "recv --json --ticket-file t --cpus 1023",
            "no processor 1023",
        ),
        (
            "perf server --json --ticket-file t --cpus 1023",
            "no processor 1023",
        ),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains(expected), "{line}: {message}");
    }
}
