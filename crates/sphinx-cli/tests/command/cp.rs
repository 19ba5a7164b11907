//! `sphx cp`: both ends, with an sshd of the test's own between them.

mod server;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::common::{Ended, Running, Scratch};
use server::Sshd;

/// Copies, and waits for the end.
fn cp(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Ended {
    start(scratch, sshd, arguments).end()
}

fn start(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Running {
    let ssh = sshd.ssh();
    let base = ["cp", "--json", "-e", &ssh];
    Running::start(scratch, &[&base[..], arguments].concat(), &[])
}

/// A path at the other end, which is this machine.
fn there(scratch: &Scratch, name: &str) -> String {
    format!("127.0.0.1:{}", scratch.path(name).display())
}

#[test]
fn a_file_is_copied_there_and_back() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    scratch.file("movie", 5_000_003);
    let sent = cp(&scratch, &sshd, &["movie", &there(&scratch, "in")]).expect(0);
    scratch.assert_same("movie", "in/movie");
    assert_eq!(scratch.arrived(), ["movie"]);
    assert_eq!(sent.event("carrier")["carrier"], "udp");
    assert_eq!(sent.done()["carrier"], "udp");
    assert_eq!(sent.done()["bytes"], 5_000_003);
    let got = cp(&scratch, &sshd, &[&there(&scratch, "in/movie"), "back"]).expect(0);
    scratch.assert_same("movie", "back");
    assert_eq!(got.done()["role"], "receiver");
    assert_eq!(got.done()["carrier"], "udp");
}
