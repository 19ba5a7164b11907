//! Tunnels, files and measurements on one port: who may do what, and what becomes of the others.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Ended, Running, Scratch, admin, until, user};

/// A server with its state in `s` that receives files in `in`, and where it listens.
fn server(scratch: &Scratch, more: &[&str]) -> Running {
    let base = ["server", "--json", "-v", "--listen", "127.0.0.1:0"];
    let mut server = Running::start(scratch, &[&base, more].concat(), &[]);
    server.event("listening");
    server
}

fn kept(scratch: &Scratch) -> Running {
    server(scratch, &["--state", "s", "--output", "in"])
}

/// Somebody who may do this, and calls the server "office".
fn invited(scratch: &Scratch, name: &str, more: &[&str]) {
    let ticket = format!("{name}.invitation");
    let invite = ["invite", name, "--ticket-file", &ticket, "--permit"];
    admin(scratch, &[&invite[..], more].concat()).expect(0);
    let join = ["join", "--json", "--ticket-file", &ticket, "--as", "office"];
    until(0, || user(scratch, name, &join).end());
}

/// Somebody who says what it was told, once to each.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            let _ = stream.write_all(&bytes);
        }
    });
    address
}

/// Says something through a tunnel, and hears it again if it gets through.
fn through(mut tunnel: Running) -> Ended {
    tunnel.input("hello");
    tunnel.end()
}

const SMALL: [&str; 2] = ["--bytes", "100kB"];

#[test]
fn one_ticket_is_good_for_whatever_it_permits() {
    let scratch = Scratch::new();
    scratch.file("a", 100_000);
    let target = echo();
    let rules = format!("files,perf,tunnel:tcp:{target}");
    let more = ["--permit", &rules, "--output", "in", "--ticket-file", "t"];
    let mut server = server(&scratch, &more);
    scratch.send(&["a"]).end().expect(0);
    scratch.assert_same("a", "in/a");
    let done = server.event("done");
    assert_eq!(done["role"], "receiver");
    scratch.perf_client(&SMALL).end().expect(0);
    scratch
        .perf_client(&[&SMALL[..], &["--reverse"]].concat())
        .end()
        .expect(0);
    let live = [
        "--message-size",
        "200B",
        "--interval",
        "10ms",
        "--time",
        "300ms",
        "--profile",
        "live",
    ];
    scratch.perf_client(&live).end().expect(0);
    let stdio = ["tunnel", "--ticket-file", "t", "-W", &target];
    through(Running::start(&scratch, &stdio, &[])).expect(0);
    // The same file again is there already.
    let again = scratch.send(&["a"]).end().expect(0);
    assert_eq!(again.done()["files_present"], 1);
    server.signal(Signal::TERM);
    server.end().expect(143);
}

/// Each client, what its line says, and what it gets for sending files, measuring and tunnelling.
#[test]
fn who_may_do_what() {
    let scratch = Scratch::new();
    let target = echo();
    scratch.file("a", 1000);
    let mut server = kept(&scratch);
    let tunnel = format!("tunnel:tcp:{target}");
    // Who may have some tunnel is refused this target, the others any.
    for (client, rules, codes, refused) in [
        ("files", "files:inbox", [0, 4, 4], "tunnel"),
        ("perf", "perf", [4, 0, 4], "tunnel"),
        ("tunnel", tunnel.as_str(), [4, 4, 0], ""),
        ("listener", "listen:2222", [4, 4, 4], target.as_str()),
        ("both", "files:own/place,perf", [0, 0, 4], "tunnel"),
        ("tun", "tun", [4, 4, 4], target.as_str()),
    ] {
        invited(&scratch, client, &[rules]);
        let send = ["send", "--json", "office:", "a"];
        let perf = ["perf", "client", "--json", "office", "--bytes", "10kB"];
        let stdio = ["tunnel", "office", "-W", &target];
        user(&scratch, client, &send).end().expect(codes[0]);
        user(&scratch, client, &perf).end().expect(codes[1]);
        through(user(&scratch, client, &stdio)).expect(codes[2]);
        for (code, what) in codes.into_iter().zip(["files", "perf", refused]) {
            if code != 0 {
                let denied = server.event("denied");
                assert_eq!(
                    (&denied["client"], &denied["target"]),
                    (&client.into(), &what.into())
                );
            }
        }
    }
    // A client whose permit is removed is refused.
    let authorized = scratch.path("s/authorized");
    let text = fs::read_to_string(&authorized).expect("clients");
    fs::write(&authorized, text.replace("permit=perf", "")).expect("a file");
    let perf = ["perf", "client", "--json", "office", "--bytes", "10kB"];
    until(4, || user(&scratch, "perf", &perf).end());
    scratch.assert_same("a", "in/inbox/a");
    scratch.assert_same("a", "in/own/place/a");
    assert_eq!(scratch.arrived(), ["inbox", "own"]);
}

#[test]
fn who_was_invited_joins_whatever_it_is_for() {
    let scratch = Scratch::new();
    let _server = kept(&scratch);
    invited(&scratch, "a", &["files"]);
    // The answer may have been lost.
    let join = ["join", "--json", "--ticket-file", "a.invitation"];
    let again = [&join[..], &["--as", "office"]].concat();
    user(&scratch, "a", &again).end().expect(0);
    // An invitation is for joining alone.
    let ticket = ["invite", "b", "--permit", "files", "--ticket-file", "t"];
    admin(&scratch, &ticket).expect(0);
    scratch.file("movie", 10);
    until(4, || scratch.send(&["movie"]).end());
    scratch.perf_client(&SMALL).end().expect(4);
}

#[test]
fn what_is_not_served_is_refused_in_the_handshake() {
    let scratch = Scratch::new();
    scratch.file("a", 1000);
    let more = ["--permit", "tunnel,perf", "--ticket-file", "t"];
    let _server = server(&scratch, &more);
    scratch.send(&["a"]).end().expect(5).error("protocol");
    scratch.perf_client(&SMALL).end().expect(0);
}

#[test]
fn who_is_revoked_sends_no_more_and_the_others_go_on() {
    let scratch = Scratch::new();
    scratch.file("a", 400_000);
    let mut server = kept(&scratch);
    for name in ["one", "two"] {
        invited(&scratch, name, &[&format!("files:{name}")]);
    }
    let slowly = ["send", "--json", "--limit", "1mbit", "office:", "a"];
    let mut sends = ["one", "two"].map(|name| user(&scratch, name, &slowly));
    for send in &mut sends {
        send.event("progress");
    }
    admin(&scratch, &["revoke", "one"]).expect(0);
    let [one, two] = sends;
    one.end().expect(4).error("authentication");
    two.end().expect(0);
    let failed = server.event("error");
    assert_eq!(failed["kind"], "authentication");
    scratch.assert_same("a", "in/two/a");
    assert!(!scratch.path("in/one/a").exists());
}

#[test]
fn a_transfer_that_was_interrupted_goes_on() {
    let scratch = Scratch::new();
    // Of less than four megabytes nothing is kept.
    scratch.file("a", 30_000_000);
    let server = kept(&scratch);
    invited(&scratch, "one", &["files"]);
    let slowly = ["send", "--json", "--limit", "60mbit", "office:", "a"];
    let mut first = user(&scratch, "one", &slowly);
    while first.event("progress")["bytes"].as_u64() < Some(6_000_000) {}
    first.signal(Signal::KILL);
    first.end();
    let send = ["send", "--json", "office:", "a"];
    let second = user(&scratch, "one", &send).end().expect(0);
    assert!(second.event("file")["reused"].as_u64() > Some(0));
    scratch.assert_same("a", "in/a");
    server.signal(Signal::TERM);
    server.end().expect(143);
}

#[test]
fn a_rate_holds_for_files_and_measurements() {
    let scratch = Scratch::new();
    scratch.file("a", 1_000_000);
    let _server = kept(&scratch);
    invited(&scratch, "slow", &["files,perf", "--rate", "8mbit"]);
    let send = ["send", "--json", "office:", "a"];
    let up = ["perf", "client", "--json", "office", "--bytes", "1MB"];
    let down = [&up[..], &["--reverse"]].concat();
    for line in [&send[..], &up, &down] {
        let began = Instant::now();
        user(&scratch, "slow", line).end().expect(0);
        // A second's worth, but for what may come at once.
        assert!(began.elapsed() > Duration::from_millis(800), "{line:?}");
    }
}

#[test]
fn names_of_servers_and_of_files() {
    let scratch = Scratch::new();
    scratch.file("office:", 1000);
    let _server = kept(&scratch);
    invited(&scratch, "one", &["files"]);
    let send = ["send", "--json", "office:", "./office:"];
    user(&scratch, "one", &send).end().expect(0);
    scratch.assert_same("office:", "in/office:");
    for line in [
        &["send", "--json", "offcie:", "./office:"][..],
        &["perf", "client", "--json", "offcie"],
        &["tunnel", "--json", "offcie", "-D", "0"],
    ] {
        let ended = user(&scratch, "one", line).end().expect(2);
        let error = ended.error("usage");
        assert_eq!(error["hint"], "did you mean office?", "{line:?}");
    }
}

#[test]
fn what_cannot_be_served_is_told_at_the_start() {
    let scratch = Scratch::new();
    scratch.file("no", 1);
    for (more, code, words) in [
        (
            &["--permit", "files", "--ticket-file", "t"][..],
            2,
            "no place",
        ),
        (
            &["--permit", "files:../a", "--output", "in"],
            2,
            "below the server's",
        ),
        (
            &["--permit", "files", "--output", "no", "--ticket-file", "t"],
            8,
            "output directory",
        ),
    ] {
        let line = [&["server", "--json"], more].concat();
        let ended = Running::start(&scratch, &line, &[]).end().expect(code);
        let error = ended.event("error");
        let message = error["message"].as_str().expect("words");
        assert!(message.contains(words), "{message}");
    }
    let quota = ["ticket", "new", "a", "--permit", "files", "--quota", "1GB"];
    Running::start(&scratch, &quota, &[]).end().expect(2);
}
