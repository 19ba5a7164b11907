//! Work per entry does not grow with depth.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::Scratch;
use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

/// Makes directories in one another, further down than a path may name from here.
fn chain(top: &Path, depth: usize) {
    fs::create_dir(top).expect("a directory");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = open(top, flags, Mode::empty()).expect("it was made");
    for _ in 1..depth {
        mkdirat(&here, "d", Mode::RWXU).expect("a directory");
        here = openat(&here, "d", flags, Mode::empty()).expect("it was made");
    }
}

/// CPU seconds of sender and receiver for a tree of directories in one another.
fn cost(depth: usize) -> [f64; 2] {
    let scratch = Scratch::new();
    chain(&scratch.path("tree"), depth);
    let recv = scratch.recv(&["--once"]);
    let sent = scratch.send(&["tree"]).end().expect(0);
    let received = recv.end().expect(0);
    let mut reached = 0;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = open(scratch.path("in"), flags, Mode::empty()).expect("it is there");
    while let Ok(inner) = openat(
        &here,
        if reached == 0 { "tree" } else { "d" },
        flags,
        Mode::empty(),
    ) {
        here = inner;
        reached += 1;
    }
    assert_eq!(reached, depth);
    // It is deeper than the standard library gets.
    let remove = |name: &str| {
        Command::new("rm")
            .arg("-rf")
            .arg(scratch.path(name))
            .status()
    };
    assert!(remove("in").and_then(|_| remove("tree")).is_ok());
    [sent, received].map(|ended| ended.done()["cpu_seconds"].as_f64().expect("a number"))
}

#[test]
fn work_grows_with_the_tree_and_not_with_its_depth() {
    // Where work per entry grows with depth, the second is sixteen times the first, and was.
    let (shallow, deep) = (cost(500), cost(2000));
    for (shallow, deep) in shallow.into_iter().zip(deep) {
        // The system's own time for a directory varies; four times is what it should be.
        assert!(deep < 10.0 * shallow.max(0.1), "{shallow} s, then {deep} s");
    }
}
