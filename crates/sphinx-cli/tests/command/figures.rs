//! The figures that the command shows mean what docs/figures-of-merit.md says, at both ends.

use std::fs;
use std::time::Instant;

use crate::common::{Ended, Scratch};
use serde_json::Value;

#[track_caller]
fn number(event: &Value, field: &str) -> f64 {
    event[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {event}"))
}

/// What holds for every `done` of whatever transfer.
#[track_caller]
fn assert_consistent(done: &Value) {
    let bits = number(done, "goodput_mbit_s") * number(done, "seconds") * 1e6;
    let carried = number(done, "bytes_carried");
    assert!(carried <= number(done, "bytes"), "{done}");
    // Both factors are rounded.
    assert!((bits - carried * 8.0).abs() <= 0.01 * bits + 8.0, "{done}");
    let is_sender = done["role"] == "sender";
    if carried < 100_000.0 {
        assert!(done["overhead"].is_null(), "{done}");
    } else if is_sender {
        let parts = [
            "overhead_headers",
            "overhead_repair_ahead",
            "overhead_repair_after_loss",
        ]
        .map(|part| number(done, part));
        let overhead = number(done, "overhead");
        assert!(
            overhead > 0.0 && parts.iter().all(|part| *part >= 0.0),
            "{done}"
        );
        assert!(
            (parts.iter().sum::<f64>() - overhead).abs() < 1e-5,
            "{done}"
        );
        let wire = number(done, "wire_bytes_sent") / carried - 1.0;
        assert!((wire - overhead).abs() < 1e-5, "{done}");
    }
    assert_eq!(done["redundancy"].is_number(), is_sender, "{done}");
    for share in ["plr_mean", "plr_return_mean"] {
        assert!((0.0..=1.0).contains(&number(done, share)), "{done}");
    }
}

/// Datagrams that sockets of this machine had no room for.
fn overflows() -> u64 {
    let counters = fs::read_to_string("/proc/net/snmp").expect("a Linux machine");
    let mut lines = counters.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let pair = pairs.find(|(name, _)| *name == "RcvbufErrors");
    pair.and_then(|(_, value)| value.parse().ok())
        .expect("RcvbufErrors")
}

/// Neither `done` nor any `progress` tells of losses where there were none.
#[track_caller]
fn assert_loss_free(ended: &Ended) {
    assert_eq!(number(ended.done(), "plr_mean"), 0.0, "{}", ended.done());
    for event in &ended.events {
        if event["event"] == "progress" {
            let plr = event["plr"].as_f64();
            assert!(plr.unwrap_or(0.0) == 0.0, "{event}");
        }
    }
}

#[test]
fn loopback_loses_nothing_at_either_end() {
    // Other programs may overflow their sockets meanwhile; this machine's counter cannot tell whose.
    for _ in 0..10 {
        let before = overflows();
        let scratch = Scratch::new();
        scratch.file("a", 4_000_000);
        let recv = scratch.recv(&["--once"]);
        let sent = scratch.send(&["--cc", "fixed:16mbit", "a"]).end().expect(0);
        let received = recv.end().expect(0);
        for done in [sent.done(), received.done()] {
            assert_consistent(done);
        }
        assert!(sent.stderr.contains("loss 0.0 %"), "{}", sent.stderr);
        assert!(received.stderr.contains("loss "), "{}", received.stderr);
        if overflows() == before {
            assert_loss_free(&sent);
            assert_loss_free(&received);
            return;
        }
    }
    sphinx_testing::skipped!("sockets of this machine overflow all the time");
}

#[test]
fn figures_of_a_measurement_are_those_of_the_data_in_both_directions() {
    let scratch = Scratch::new();
    for (reverse, sender) in [(&[][..], 0), (&["--reverse"], 1)] {
        let server = scratch.perf_server(&[]);
        let line = [&["--bytes", "3MB"][..], reverse].concat();
        let client = scratch.perf_client(&line).end().expect(0);
        let server = server.end().expect(0);
        let ends = [client.done(), server.done()];
        for done in ends {
            assert_consistent(done);
        }
        let (sent, received) = (ends[sender], ends[1 - sender]);
        assert_eq!(sent["role"], "sender");
        assert_eq!(received["role"], "receiver");
        // The receiving end shows the sender's, which grows by a farewell meanwhile.
        let (there, here) = (number(sent, "overhead"), number(received, "overhead"));
        assert!(
            (0.0..0.5).contains(&here) && (there - here).abs() < 0.01,
            "{there} {here}"
        );
    }
}

#[test]
fn of_little_data_nothing_is_said_that_means_nothing() {
    for bytes in [0, 1] {
        let scratch = Scratch::new();
        scratch.file("a", bytes);
        let recv = scratch.recv(&["--once"]);
        let sent = scratch.send(&["a"]).end().expect(0);
        let received = recv.end().expect(0);
        for ended in [&sent, &received] {
            assert_consistent(ended.done());
            assert_eq!(ended.done()["bytes"], bytes);
            assert!(!ended.stderr.contains("overhead"), "{}", ended.stderr);
        }
        assert_eq!(number(sent.done(), "goodput_mbit_s") > 0.0, bytes > 0);
    }
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    let client = scratch.perf_client(&["--bytes", "1B", "--reverse"]);
    for ended in [client.end().expect(0), server.end().expect(0)] {
        assert_consistent(ended.done());
        assert!(!ended.stderr.contains("overhead"), "{}", ended.stderr);
    }
}

#[test]
fn holes_are_no_goodput() {
    let scratch = Scratch::new();
    let file = fs::File::create(scratch.path("sparse")).unwrap();
    file.set_len(1 << 36).unwrap();
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["sparse"]).end().expect(0);
    for ended in [sent, recv.end().expect(0)] {
        let done = ended.done();
        assert_consistent(done);
        assert_eq!(done["bytes"], 1_u64 << 36);
        assert!(number(done, "goodput_mbit_s") < 10_000.0, "{done}");
        assert!(!ended.stderr.contains("overhead"), "{}", ended.stderr);
    }
}

#[test]
fn the_senders_clock_runs_until_the_receiver_has_everything_in_place() {
    // The bytes arrive within the first moments; making so many files of them takes longer.
    const FILES: usize = 4000;
    let scratch = Scratch::new();
    for n in 0..FILES {
        scratch.file(&format!("many/{n}"), 1);
    }
    let recv = scratch.recv(&["--once"]);
    let begin = Instant::now();
    let sent = scratch.send(&["many"]).end().expect(0);
    let whole = begin.elapsed().as_secs_f64();
    let received = recv.end().expect(0);
    let here = number(sent.done(), "seconds");
    let there = number(received.done(), "seconds");
    // The sender's begins with its first datagram and ends when it has heard of the receiver's end.
    assert!(
        (there..=whole).contains(&here),
        "{here} s, not {there} to {whole}"
    );
}

#[test]
fn a_failed_transfer_shows_no_figures() {
    let scratch = Scratch::new();
    scratch.file("a", 500_000);
    fs::create_dir(scratch.path("in/a")).unwrap();
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["a"]).end().expect(9);
    let received = recv.end().expect(8);
    for ended in [sent, received] {
        for figure in ["bit/s", "loss", "overhead"] {
            assert!(!ended.stderr.contains(figure), "{}", ended.stderr);
        }
        assert!(ended.events.iter().all(|event| event["event"] != "done"));
    }
}
