//! How much memory a transfer takes at either end.

use crate::common::{Ended, Scratch};

/// `ARCHITECTURE.md` says where it goes; most of it is the flow-control window.
const PEAK_MAX: u64 = 64 << 20;
const BYTES: usize = 300_000_000;

#[track_caller]
fn assert_small(ended: &Ended) {
    let peak = ended.done()["peak_rss_bytes"].as_u64().expect("a number");
    assert!((1..PEAK_MAX).contains(&peak), "{peak} bytes");
}

#[test]
fn files_and_measurements_take_little_memory() {
    let scratch = Scratch::new();
    scratch.file("large", BYTES);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["large"]).end().expect(0);
    let received = recv.end().expect(0);
    assert_small(&sent);
    assert_small(&received);
    for reverse in [&[][..], &["--reverse"]] {
        let server = scratch.perf_server(&[]);
        let arguments = [&["--bytes", "300MB"], reverse].concat();
        assert_small(&scratch.perf_client(&arguments).end().expect(0));
        assert_small(&server.end().expect(0));
    }
}
