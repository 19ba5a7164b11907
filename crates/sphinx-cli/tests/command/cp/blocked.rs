//! Where UDP does not get through: in a network namespace with rules of its own.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use super::server::Sshd;
use super::there;
use crate::common::{Ended, Running, Scratch, command};

/// An sshd in a namespace of its own that drops packets; `None`, with the reason on standard error, where none can be had.
fn sshd(drop: &str) -> Option<Sshd> {
    let chain = "add chain inet t in { type filter hook input priority 0; }";
    sshd_with(&format!("{chain}; add rule inet t in {drop} drop"))
}

/// The same with rules of a table `inet t`.
fn sshd_with(rules: &str) -> Option<Sshd> {
    let skipped = |why: &str| {
        sphinx_testing::skipped!("{why}");
        None
    };
    if !rustix::process::geteuid().is_root() {
        return skipped("network namespaces with an sshd inside need root");
    }
    let rules = format!("ip link set lo up && nft 'add table inet t; {rules}' && exec \"$@\"");
    let within = |program: &std::path::Path| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", &rules, "sh"]).arg(program);
        command
    };
    let tried = within("true".as_ref()).output();
    match tried {
        Ok(output) if output.status.success() => Sshd::run_by(within, true),
        Ok(output) => skipped(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => skipped(&error.to_string()),
    }
}

/// Copies inside that namespace.
fn cp(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Ended {
    run(scratch, sshd, &[&["cp"], arguments].concat())
}

fn run(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Ended {
    start(scratch, sshd, arguments).end()
}

fn start(scratch: &Scratch, sshd: &Sshd, arguments: &[&str]) -> Running {
    let ssh = sshd.ssh();
    let inner = command(&scratch.path(""), &[]);
    let mut outer = Command::new("nsenter");
    outer.args(["-t", &sshd.pid().to_string(), "-n", "--"]);
    outer
        .arg(inner.get_program())
        .args(arguments)
        .args(["--json", "-e", &ssh]);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Running::of(scratch, outer)
}

#[test]
fn without_udp_files_go_through_ssh() {
    let Some(sshd) = sshd("meta l4proto udp") else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("tree/movie", 20_000_000);
    scratch.file("tree/small", 10);
    let to = there(&scratch, "in");
    let sent = cp(
        &scratch,
        &sshd,
        &["--udp-port", "60000-60010", "-r", "tree", &to],
    )
    .expect(0);
    assert_eq!(sent.event("carrier")["carrier"], "ssh");
    assert_eq!(sent.done()["carrier"], "ssh");
    assert_eq!(sent.done()["bytes"], 20_000_010);
    let note = sent.event("note")["message"].to_string();
    assert!(
        note.contains("let UDP ports 60000-60010 in at 127.0.0.1"),
        "{note}"
    );
    let got = cp(
        &scratch,
        &sshd,
        &["-r", &there(&scratch, "in/tree"), "back"],
    )
    .expect(0);
    assert_eq!(got.done()["carrier"], "ssh");
    for name in ["movie", "small"] {
        scratch.assert_same(&format!("tree/{name}"), &format!("in/tree/{name}"));
        scratch.assert_same(&format!("tree/{name}"), &format!("back/{name}"));
    }
    // A synchronization goes through ssh as well, both ways.
    for (from, to) in both_ways(&scratch, "tree") {
        let synced = run(&scratch, &sshd, &["sync", "--delete", &from, &to]).expect(0);
        assert_eq!(synced.done()["carrier"], "ssh");
    }
    scratch.assert_same("tree/movie", "synced-back/movie");
    // Of a measurement over TCP nobody would learn anything.
    let measured = run(&scratch, &sshd, &["perf", "client", "ssh:127.0.0.1"]).expect(3);
    let hint = measured.error("unreachable")["hint"].to_string();
    assert!(
        hint.contains("let UDP ports 60000-61000 in at 127.0.0.1"),
        "{hint}"
    );
    // Where it goes on does not depend on what carries it.
    let again = cp(&scratch, &sshd, &["-r", "tree", &to]).expect(0);
    let reused = again.done()["bytes_reused"].as_u64().unwrap();
    assert!(reused > 18_000_000, "{reused}");
}

/// Nothing of the path is seen through ssh, but whether anything moves is.
#[test]
fn who_waits_for_the_other_end_says_so_without_udp() {
    let Some(sshd) = sshd("meta l4proto udp") else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("movie", 150_000_000);
    for (from, to, reason, words) in [
        (
            "movie".to_owned(),
            there(&scratch, "in"),
            "takes_nothing",
            "nothing has been taken",
        ),
        (
            there(&scratch, "in/movie"),
            "back".to_owned(),
            "sends_nothing",
            "nothing has come",
        ),
    ] {
        let arguments = ["cp", "--interval-report", "10ms", &from, &to];
        let mut copy = start(&scratch, &sshd, &arguments);
        assert_eq!(copy.event("carrier")["carrier"], "ssh");
        // More than a window: the other end has accepted it, for which one waits without calling it a stall.
        while copy.event("progress")["bytes"].as_u64() < Some(30_000_000) {}
        let ends = sshd.ends();
        for end in &ends {
            kill_process(*end, Signal::STOP).expect("it is our child's");
        }
        let told = copy.event("stall");
        assert_eq!(
            (&told["side"], &told["reason"]),
            (&"peer".into(), &reason.into())
        );
        let message = told["message"].as_str().expect("a message");
        assert!(message.starts_with(words), "{message}");
        for end in ends {
            kill_process(end, Signal::CONT).expect("it is our child's");
        }
        assert_eq!(copy.event("stall_over")["reason"], reason);
        assert_eq!(copy.end().expect(0).done()["carrier"], "ssh");
    }
    scratch.assert_same("movie", "back");
}

#[test]
fn packets_may_be_lost() {
    // The rule drops packets of the ssh connection, too.
    let Some(sshd) = sshd("numgen random mod 100 < 6") else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("movie", 10_000_000);
    for (from, to) in [
        ("movie".to_owned(), there(&scratch, "in")),
        (there(&scratch, "in/movie"), "back".to_owned()),
    ] {
        let done = cp(&scratch, &sshd, &["--connect-timeout", "20s", &from, &to]).expect(0);
        assert_eq!(done.done()["carrier"], "udp");
        assert_eq!(done.done()["bytes"], 10_000_000);
    }
    scratch.assert_same("movie", "back");
    // And a tree, of which only a part has changed the second time.
    scratch.file("tree/film", 10_000_000);
    for changed in [0, 1] {
        let film = fs::File::options()
            .write(true)
            .open(scratch.path("tree/film"));
        film.unwrap()
            .write_all_at(&[changed; 1000], 5_000_000)
            .unwrap();
        scratch.file(&format!("tree/sub/f{changed}"), 1000);
        for (from, to) in both_ways(&scratch, "tree") {
            let arguments = ["sync", "--delete", "--connect-timeout", "20s", &from, &to];
            let done = run(&scratch, &sshd, &arguments).expect(0);
            assert_eq!(done.done()["carrier"], "udp");
            let reused = done.done()["bytes_reused"].as_u64().unwrap();
            assert_eq!(reused > 9_000_000, changed == 1, "{reused}");
        }
        for name in ["film", "sub/f0"] {
            scratch.assert_same(&format!("tree/{name}"), &format!("synced-back/{name}"));
        }
    }
}

/// From here to the other end, and from there back.
fn both_ways(scratch: &Scratch, name: &str) -> [(String, String); 2] {
    let remote = format!("{}/", there(scratch, "synced"));
    [
        (format!("{name}/"), remote.clone()),
        (remote, "synced-back/".to_owned()),
    ]
}

#[test]
fn one_end_that_can_be_reached_is_enough() {
    // The end that was started listens on the first free port, the other one on the last.
    let options = ["--connect-timeout", "20s", "--udp-port", "20000-20009"];
    for drop in ["udp dport 20000-20004", "udp dport 20005-20009"] {
        let Some(sshd) = sshd(drop) else { return };
        let scratch = Scratch::new();
        scratch.file("movie", 5_000_000);
        for (from, to) in [
            ("movie".to_owned(), there(&scratch, "in")),
            (there(&scratch, "in/movie"), "back".to_owned()),
        ] {
            let done = cp(&scratch, &sshd, &[&options[..], &[&from, &to]].concat()).expect(0);
            assert_eq!(done.done()["carrier"], "udp", "{drop}");
        }
        scratch.assert_same("movie", "back");
    }
}

/// Behind a NAT nothing is heard of that does not answer, and what leaves does so from another port.
#[test]
fn either_end_may_be_behind_a_nat() {
    let options = ["--connect-timeout", "20s", "--udp-port", "20000-20009"];
    // The end that was started listens on the first free port, the other one on the last.
    for own in ["20000-20004", "20005-20009"] {
        let rules = format!(
            "add chain inet t in {{ type filter hook input priority 0; }}; \
             add rule inet t in udp dport {own} ct state new drop; \
             add chain inet t out {{ type nat hook postrouting priority 100; }}; \
             add rule inet t out udp sport {own} masquerade to :31000-31999"
        );
        let Some(sshd) = sshd_with(&rules) else {
            return;
        };
        let scratch = Scratch::new();
        scratch.file("tree/movie", 5_000_000);
        for (from, to) in both_ways(&scratch, "tree") {
            let arguments = [&["sync"], &options[..], &[&from, &to]].concat();
            let done = run(&scratch, &sshd, &arguments).expect(0);
            assert_eq!(done.done()["carrier"], "udp", "{own}");
        }
        scratch.assert_same("tree/movie", "synced-back/movie");
    }
}
