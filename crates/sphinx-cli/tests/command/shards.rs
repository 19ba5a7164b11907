//! Servers with several engines behind one port, by the command line.

use crate::common::{Running, Scratch, assert_done_schema};

#[test]
fn files_and_measurements_are_the_same_with_shards() {
    let scratch = Scratch::new();
    scratch.file("movie.mkv", 5_000_003);
    let recv = scratch.recv(&["--once", "--shards", "3", "--workers", "1"]);
    let (sent, received) = (
        scratch.send(&["movie.mkv"]).end().expect(0),
        recv.end().expect(0),
    );
    scratch.assert_same("movie.mkv", "in/movie.mkv");
    let server = scratch.perf_server(&["--shards", "2"]);
    let client = scratch.perf_client(&["--bytes", "5MB"]);
    let (client, server) = (client.end().expect(0), server.end().expect(0));
    let of = |done: &serde_json::Value| {
        assert_done_schema(done);
        ["shards", "steering", "handovers"].map(|field| done[field].to_string())
    };
    for (ended, shards, steering) in [
        (&sent, "1", "null"),
        (&received, "3", "\"bpf\""),
        (&client, "1", "null"),
        (&server, "2", "\"bpf\""),
    ] {
        assert_eq!(of(ended.done()), [shards, steering, "0"]);
    }
    assert_eq!(received.done()["workers"], 1);
}

#[test]
fn auto_is_one_shard_for_one_session() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&["--shards", "auto"]);
    scratch.perf_client(&["--bytes", "1MB"]).end().expect(0);
    assert_eq!(server.end().expect(0).done()["shards"], 1);
}

#[test]
fn a_port_with_shards_is_in_use() {
    let scratch = Scratch::new();
    let mut first = scratch.start_recv(&["--shards", "2"]);
    let listen = first.event("listening")["listen"].clone();
    let listen = listen.as_str().expect("an address");
    for shards in ["1", "2"] {
        let line = ["perf", "server", "--json", "--ticket-file", "u"];
        let line = [&line[..], &["--listen", listen, "--shards", shards]].concat();
        Running::start(&scratch, &line, &[]).end().expect(8);
    }
}

#[test]
fn shards_are_of_those_who_listen_at_sockets_or_queues_of_their_own() {
    let scratch = Scratch::new();
    for line in [
        "send --json --ticket-file t --shards 2 a",
        "perf client --json --ticket-file t --shards 2",
        "recv --json --ticket-file t --shards 0",
        "recv --json --ticket-file t --shards 65",
        "perf server --json --ticket-file t --shards many",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = Running::start(&scratch, &words, &[]).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains("--shards"), "{line}: {message}");
    }
}
