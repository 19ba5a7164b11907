//! Measurements over loopback.

#[cfg(all(feature = "lab", feature = "pep"))]
use crate::common::may_make_namespaces;
use crate::common::{Running, Scratch, assert_done_schema};

#[test]
fn bulk_by_bytes() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    let client = scratch.perf_client(&["--bytes", "20MB"]).end().expect(0);
    let server = server.end().expect(0);
    for done in [client.done(), server.done()] {
        assert_done_schema(done);
        assert_eq!(done["bytes"], 20_000_000);
        assert_eq!(done["peer_done"]["bytes"], 20_000_000);
        assert!(done["block_ms_mean"].is_null() && done["clock"].is_null());
    }
    assert_eq!(client.done()["role"], "sender");
    assert!(client.done()["wire_bytes_sent"].as_u64() > Some(20_000_000));
    assert!(
        client.done()["overhead"]
            .as_f64()
            .is_some_and(|share| share > 0.0 && share < 0.5)
    );
}

#[test]
fn bulk_by_time_in_reverse_on_several_streams() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    let client = scratch.perf_client(&["--time", "1s", "--reverse", "--streams", "3"]);
    let client = client.end().expect(0);
    let server = server.end().expect(0);
    assert_eq!(client.done()["role"], "receiver");
    assert_eq!(server.done()["role"], "sender");
    assert_eq!(client.done()["bytes"], server.done()["bytes"]);
    assert!(client.done()["bytes"].as_u64() > Some(0));
    assert_eq!(server.done()["profile"], "bulk");
}

#[test]
fn as_many_streams_as_one_likes() {
    let scratch = Scratch::new();
    for (streams, reverse) in [(32, false), (64, true), (256, false), (256, true)] {
        let server = scratch.perf_server(&[]);
        let streams = streams.to_string();
        let mut arguments = vec!["--bytes", "40MB", "--streams", &streams];
        arguments.extend(reverse.then_some("--reverse"));
        let client = scratch.perf_client(&arguments).end().expect(0);
        let server = server.end().expect(0);
        for done in [client.done(), server.done()] {
            assert_eq!(done["bytes"], 40_000_000, "{streams} {reverse}");
        }
    }
}

#[test]
fn a_rate_alone_is_offered_in_blocks() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    // 40 ms of 2 Mbit/s are 10 kB; the first ten round trips of loopback are none of the blocks.
    let client = scratch.perf_client(&["--rate", "2mbit", "--time", "2s"]);
    let client = client.end().expect(0);
    let done = client.done();
    // A machine that is very busy may not come to send them all.
    let count = |field: &str| done[field].as_u64().expect(field);
    assert_eq!(
        count("bytes") + 10_000 * count("blocks_unsent"),
        500_000,
        "{done}"
    );
    server.end().expect(0).done();
}

#[test]
fn paced_blocks() {
    let scratch = Scratch::new();
    for reverse in [&[][..], &["--reverse"]] {
        let server = scratch.perf_server(&[]);
        let paced = ["--rate", "20mbit", "--block-size", "100kB", "--time", "2s"];
        let client = scratch
            .perf_client(&[&paced[..], reverse].concat())
            .end()
            .expect(0);
        let server = server.end().expect(0);
        for done in [client.done(), server.done()] {
            assert_done_schema(done);
            assert_eq!(done["bytes"], 5_000_000);
            assert_eq!(done["clock"], "shared");
            assert_eq!(done["profile"], "latency");
            let count = |field: &str| done[field].as_u64().expect(field);
            assert_eq!(count("blocks_measured") + count("warmup_blocks"), 50);
            let ms = |field: &str| done[field].as_f64().expect(field);
            assert!(ms("block_ms_p50") <= ms("block_ms_p99"));
            assert!(ms("block_ms_p99") <= ms("block_ms_max"));
        }
        assert_eq!(
            client.done()["block_ms_mean"],
            server.done()["block_ms_mean"]
        );
    }
}

#[test]
fn paced_messages() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    let paced = [
        "--message-size",
        "100B",
        "--interval",
        "10ms",
        "--time",
        "1s",
    ];
    let client = scratch.perf_client(&[&paced[..], &["--deadline", "1ms"]].concat());
    let client = client.end().expect(0);
    let server = server.end().expect(0);
    for done in [client.done(), server.done()] {
        assert_done_schema(done);
        assert_eq!(done["messages_sent"], 100);
        assert_eq!(done["messages_delivered"], 100);
        assert_eq!(done["profile"], "latency");
        assert!(done["block_ms_mean"].is_null());
        let count = |field: &str| done[field].as_u64().expect(field);
        // How many a busy machine has in time nobody knows.
        assert!(count("messages_late") + count("warmup_messages") <= 100);
        let ms = |field: &str| done[field].as_f64().expect(field);
        assert!(ms("message_ms_p50") <= ms("message_ms_p90"));
        assert!(ms("message_ms_p90") <= ms("message_ms_p99"));
        assert!(ms("message_ms_p99") <= ms("message_ms_max"));
    }
}

/// Each carrier of messages, in both directions. What may be missing is counted by both ends alike.
#[test]
fn modes_of_messages() {
    for (flag, mode, reverse) in [
        ("--mode", "message", false),
        ("--profile", "live", false),
        ("--mode", "live", true),
        ("--mode", "datagram", false),
        ("--mode", "datagram", true),
    ] {
        let scratch = Scratch::new();
        let server = scratch.perf_server(&[]);
        let paced = [
            "--message-size",
            "3000B",
            "--interval",
            "10ms",
            "--time",
            "1s",
            flag,
            mode,
        ];
        // Live messages have a deadline in any case.
        let is_told = mode != "live" || !reverse;
        let deadline = if is_told {
            &["--deadline", "1s"][..]
        } else {
            &[]
        };
        let way = if reverse { &["--reverse"][..] } else { &[] };
        let client = scratch.perf_client(&[&paced[..], deadline, way].concat());
        let (client, server) = (client.end().expect(0), server.end().expect(0));
        for done in [client.done(), server.done()] {
            assert_done_schema(done);
            let count = |field: &str| done[field].as_u64().expect(field);
            let fates = count("messages_delivered") + count("messages_dropped");
            assert_eq!(count("messages_sent"), fates, "{done}");
            assert!(
                count("messages_sent") + count("messages_unsent") >= 90,
                "{done}"
            );
            let measured = count("messages_delivered");
            assert!(measured >= count("warmup_messages"), "{done}");
            assert!(count("messages_late") <= measured, "{done}");
        }
        assert_eq!(
            client.done()["messages_dropped"],
            server.done()["messages_dropped"]
        );
        let sender = if reverse {
            server.done()
        } else {
            client.done()
        };
        assert!(
            sender["packets_per_message"].as_f64() > Some(0.0),
            "{sender}"
        );
        assert!(sender["messages_recovered"].is_u64(), "{sender}");
        let datagrams = sender["datagrams_sent"].as_u64();
        assert_eq!(datagrams > Some(0), mode != "message", "{sender}");
    }
}

#[test]
fn progress_comes_about_once_a_second() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&[]);
    let client = scratch
        .perf_client(&["--time", "3s", "--cc", "fixed:10mbit"])
        .end()
        .expect(0);
    server.end().expect(0);
    let progress = client
        .events
        .iter()
        .filter(|event| event["event"] == "progress");
    let bytes: Vec<u64> = progress
        .map(|event| event["bytes"].as_u64().expect("bytes"))
        .collect();
    assert!((2..=5).contains(&bytes.len()), "{bytes:?}");
    assert!(bytes.is_sorted());
}

#[test]
fn what_was_asked_for_is_what_is_used() {
    let scratch = Scratch::new();
    let server = scratch.perf_server(&["--codec", "none", "--profile", "latency"]);
    let flags = [
        "--bytes",
        "1MB",
        "--codec",
        "srlt",
        "--cc",
        "fixed:50mbit",
        "--profile",
        "latency",
    ];
    let client = scratch.perf_client(&flags).end().expect(0);
    assert_eq!(server.end().expect(0).done()["profile"], "latency");
    let done = client.done();
    assert_eq!(
        (&done["codec"], &done["profile"]),
        (&"srlt".into(), &"latency".into())
    );
    assert!(
        done["cc"]
            .as_str()
            .is_some_and(|cc| cc.starts_with("fixed")),
        "{done}"
    );
    assert_eq!(done["io"], "udp");
}

#[test]
fn what_a_packet_costs() {
    let scratch = Scratch::new();
    let cost = |more: &[&str]| {
        let arguments = [&["perf", "cost"], more].concat();
        Running::start_in(&scratch.path("."), &arguments).end()
    };
    let small = ["--bytes", "20MB", "--loss", "2%", "--mtu", "1500", "--json"];
    let measured = cost(&small).expect(0);
    let event = measured.event("cost");
    assert!(event["packets"].as_u64() > Some(10_000), "{event}");
    for (end, stage) in [
        ("sender_ns", "seal"),
        ("sender_ns", "engine"),
        ("sender_ns", "kernel"),
        ("receiver_ns", "open"),
        ("receiver_ns", "place"),
    ] {
        assert!(
            event[end][stage].as_f64() > Some(0.0),
            "{end} {stage}: {event}"
        );
    }
    assert_eq!(
        (&event["io"], &event["workers"]),
        (&"udp".into(), &false.into())
    );
    assert_eq!(event["paper"], false);
    let paper = ["--bytes", "20MB", "--loss", "6%", "--paper", "--json"];
    // Measured once only: packets of the paper's mode do not depend on the MTU.
    let of_paper = cost(&paper).expect(0);
    let of_paper = of_paper.event("cost");
    assert_eq!(of_paper["paper"], true);
    let bytes = of_paper["packet_bytes"].as_f64();
    assert!(bytes < Some(1100.0), "{of_paper}");
    // Instructions are counted, or absent where they cannot be; they are never 0.
    for (end, stage) in [("sender", "seal"), ("receiver", "open")] {
        let counted = &event[format!("{end}_instructions")];
        assert!(
            counted.is_null() || counted[stage].as_f64() > Some(0.0),
            "{event}"
        );
    }
    let apart = cost(&[&small[..], &["--workers", "--io", "memory"]].concat()).expect(0);
    let event = apart.event("cost");
    for end in ["sender", "receiver"] {
        let work = event[format!("{end}_ns")]["work"].as_f64();
        assert!(work > Some(0.0), "{event}");
        for link in 0..3 {
            let model = &event["model"][link][end];
            assert!(model["cores"].as_u64() > Some(1), "{event}");
            assert!(model["workers"].as_f64() > Some(0.0), "{event}");
        }
    }
    cost(&["--loss", "60%"]).expect(2);
    cost(&["--io", "xdp:eth0"]).expect(2);
    cost(&["--mtu", "1000"]).expect(2);
    cost(&["--bytes", "1MB"]).expect(2);
}

/// Over interfaces that the command makes itself, and takes away.
#[cfg(all(feature = "lab", feature = "pep"))]
#[test]
fn what_a_packet_costs_past_the_kernel() {
    if !may_make_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    for (mtu, most) in [("1500", 1500.0), ("9000", 9000.0)] {
        let line = [
            "perf", "cost", "--io", "xdp", "--bytes", "20MB", "--mtu", mtu, "--json",
        ];
        let ended = Running::start_in(&scratch.path("."), &line).end();
        if ended.code == 8 {
            let message = ended.error("local_io")["message"].to_string();
            let is_missing = ["not permitted", "not implemented", "not supported", "ip "]
                .iter()
                .any(|why| message.contains(why));
            assert!(is_missing, "{message}");
            sphinx_testing::skipped!("{message}");
            return;
        }
        let ended = ended.expect(0);
        let event = ended.event("cost");
        assert_eq!(event["io"], "xdp");
        let bytes = event["packet_bytes"].as_f64().expect("a number");
        assert!((0.8 * most..=most).contains(&bytes), "{event}");
        // Nearly all bytes of the packets are payload: nothing was lost between the ends.
        let payload = event["payload_bytes"].as_f64().expect("a number");
        assert!(payload > 0.8 * bytes, "{event}");
        for (end, stage) in [
            ("sender_ns", "send"),
            ("sender_ns", "seal"),
            ("receiver_ns", "receive"),
            ("receiver_ns", "open"),
        ] {
            assert!(
                event[end][stage].as_f64() > Some(0.0),
                "{end} {stage}: {event}"
            );
        }
    }
}
