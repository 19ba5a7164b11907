//! Thousands of streams need no thread each.

use crate::common::Scratch;

#[test]
fn ten_thousand_streams_carry_bytes_side_by_side() {
    let scratch = Scratch::new();
    for reverse in [false, true] {
        let server = scratch.perf_server(&[]);
        let mut arguments = vec!["--bytes", "10MB", "--streams", "10000"];
        arguments.extend(reverse.then_some("--reverse"));
        let client = scratch.perf_client(&arguments).end().expect(0);
        let server = server.end().expect(0);
        for done in [client.done(), server.done()] {
            assert_eq!(done["bytes"], 10_000_000, "{reverse}");
            // The streams of the data, and one of control messages.
            assert_eq!(done["streams_peak"], 10_001, "{reverse}: {done}");
        }
    }
}

#[test]
fn blocks_at_fixed_times_go_over_fewer() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("t"), "nothing").unwrap();
    let arguments = ["--rate", "1mbit", "--streams", "257"];
    let refused = scratch.perf_client(&arguments).end().expect(2);
    let message = refused.error("usage")["message"].to_string();
    assert!(message.contains("256"), "{message}");
}
