//! `sphx send --path`: a client with two interfaces, of which one goes down on the way. Skipped, saying why, where namespaces,
//! or `ip`, are not there.

use std::{fs, io::Write, sync::mpsc, thread, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use super::pep::ip;
use super::pep_between::Host;
use crate::common::{Ended, Running, Scratch, command, may_make_namespaces};

const BYTES: usize = 5_000_000;
/// What is sent before anything happens to a path.
const FIRST_BYTES: usize = 3_000_000;
/// What each path must have carried: its share is far more, but for a machine that hardly lets it begin.
const SHARE_MIN: u64 = 100_000;
/// Of each path, so that the other one is needed.
const RATE: &str = "fixed:40mbit";
/// The interfaces, of the same name at both ends.
const INTERFACES: [&str; 2] = ["wifi", "lte"];

#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    /// Where the server is reached, whatever the path.
    fn server(self) -> &'static str {
        match self {
            Family::V4 => "10.81.9.1",
            Family::V6 => "fd81:9::1",
        }
    }

    /// The address of an end, 1 the server's, on this path.
    fn of(self, path: usize, end: u8) -> String {
        let network = path + 1;
        match self {
            Family::V4 => format!("10.81.{network}.{end}"),
            Family::V6 => format!("fd81:{network}::{end}"),
        }
    }

    /// How `ip` gives an interface this address, at once.
    fn add(self, address: &str, interface: &str) -> String {
        let (length, how) = match (self, interface) {
            (Family::V4, "lo") => (32, ""),
            (Family::V4, _) => (24, ""),
            (Family::V6, "lo") => (128, "nodad"),
            (Family::V6, _) => (64, "nodad"),
        };
        format!("addr add {address}/{length} dev {interface} {how}")
    }
}

/// A client and a server with two links between them. The server's address is that of neither.
struct Pair {
    client: Host,
    server: Host,
    family: Family,
}

impl Pair {
    fn new(family: Family) -> Option<Pair> {
        if !may_make_namespaces() {
            return None;
        }
        let pair = Pair {
            client: Host::new(),
            server: Host::new(),
            family,
        };
        if pair.connect().is_none() {
            sphinx_testing::skipped!("no 'ip', or it refuses to make links");
            return None;
        }
        Some(pair)
    }

    fn connect(&self) -> Option<()> {
        let (client, server) = (&self.client.namespace, &self.server.namespace);
        let (there, family) = (self.server.holder.id(), self.family);
        ip(server, &family.add(family.server(), "lo"))?;
        for (path, name) in INTERFACES.into_iter().enumerate() {
            let line = format!("link add {name} type veth peer name {name} netns {there}");
            ip(client, &line)?;
            for (namespace, end) in [(server, 1), (client, 2)] {
                ip(namespace, &family.add(&family.of(path, end), name))?;
                ip(namespace, &format!("link set {name} up"))?;
                // What comes by the second path comes back by it, though the first one is preferred.
                let key = format!("net.ipv4.conf.{name}.rp_filter");
                namespace.sysctl(&key, "2").ok()?;
            }
            self.add_route(path)?;
        }
        Some(())
    }

    /// Gives the client a default route by this path; routing prefers the first one.
    fn add_route(&self, path: usize) -> Option<()> {
        let (name, via) = (INTERFACES[path], self.family.of(path, 1));
        let metric = 100 * (path + 1);
        let line = format!("route add default via {via} dev {name} metric {metric}");
        ip(&self.client.namespace, &line).map(drop)
    }

    /// Sends a file over both paths, and does something when a good part of it has arrived; what both ends say of it. The rest
    /// is handed over only then, however slow this machine is.
    fn transfer(&self, bond: &str, meanwhile: impl FnOnce(&Value)) -> [Ended; 2] {
        let [first, second] = INTERFACES;
        let paths = format!("--path {first} --path {second} --bond {bond}");
        self.transfer_over(&paths, |_, up| meanwhile(up))
    }

    /// The same, over what these flags say; what is done may wait for events of the sender.
    fn transfer_over(
        &self,
        paths: &str,
        meanwhile: impl FnOnce(&mut Running, &Value),
    ) -> [Ended; 2] {
        let scratch = Scratch::new();
        let movie = fs::read(scratch.file("movie", BYTES)).expect("it was written");
        let listen = match self.family {
            Family::V4 => format!("{}:0", self.family.server()),
            Family::V6 => format!("[{}]:0", self.family.server()),
        };
        let recv = "recv --json --once --output in --ticket-file t --listen";
        let recv: Vec<&str> = recv.split(' ').chain([listen.as_str()]).collect();
        let start = || Running::start(&scratch, &recv, &[]);
        let mut receiver = self.server.namespace.run(start).expect("a thread");
        receiver.event("listening");
        // What a busy machine does to both links looks like one bottleneck.
        let flags = "--couple off --interval-report 10ms --stdin movie";
        let send = format!("--cc {RATE} {paths} {flags}");
        let send: Vec<&str> = send.split(' ').collect();
        let start = || scratch.send(&send);
        let mut sender = self.client.namespace.run(start).expect("a thread");
        let mut stdin = sender.stdin();
        let (go_on, may_go_on) = mpsc::channel();
        // The thread is not joined: it ends when the process does.
        thread::spawn(move || {
            let (now, later) = movie.split_at(FIRST_BYTES);
            let written = stdin.write_all(now);
            if written.is_ok() && may_go_on.recv().is_ok() {
                let _ = stdin.write_all(later);
            }
        });
        let up = sender.event("path");
        let arrived = |event: &Value| event["bytes"].as_u64().expect("a number");
        while arrived(&sender.event("progress")) < FIRST_BYTES as u64 / 2 {}
        meanwhile(&mut sender, &up);
        go_on.send(()).expect("it waits");
        let ended = [sender.end().expect(0), receiver.end().expect(0)];
        scratch.assert_same("movie", "in/movie");
        assert_eq!(scratch.arrived(), ["movie"]);
        ended
    }
}

/// What `done` says of the two paths.
#[track_caller]
fn paths(ended: &Ended) -> [&Value; 2] {
    let done = ended.done();
    let paths = done["paths"].as_array().map_or(&[][..], Vec::as_slice);
    let [first, second] = paths else {
        panic!("not two paths: {done}");
    };
    [first, second]
}

fn number(path: &Value, field: &str) -> u64 {
    path[field].as_u64().expect("a number")
}

/// A path that nobody cut is in use. It may be suspect for a moment, as to its ends a machine that stands still for some
/// milliseconds looks like a path that does.
#[track_caller]
fn assert_in_use(path: &Value) {
    let state = path["state"].as_str().expect("a name");
    assert!(["working", "resting", "suspect"].contains(&state), "{path}");
}

#[test]
fn both_paths_carry_a_file() {
    for family in [Family::V4, Family::V6] {
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let [sent, received] = pair.transfer("aggregate", |up| {
            assert_eq!(
                (&up["state"], &up["name"]),
                (&"up".into(), &"lte".into()),
                "{up}"
            );
        });
        for (ended, end, field) in [
            (&sent, 2, "wire_bytes_sent"),
            (&received, 1, "wire_bytes_received"),
        ] {
            for (at, path) in paths(ended).into_iter().enumerate() {
                assert_eq!(path["path"], at, "{path}");
                // At the end of the data the slower one rests.
                assert_in_use(path);
                assert!(number(path, field) > SHARE_MIN, "{}", ended.done());
                if end == 2 {
                    assert_eq!(path["local"], family.of(at, 2).as_str(), "{path}");
                }
            }
        }
    }
}

/// Waits until something has become of a path.
fn becomes(sender: &mut Running, name: &str, state: &str) {
    loop {
        let event = sender.event("path");
        if (&event["name"], &event["state"]) == (&name.into(), &state.into()) {
            return;
        }
    }
}

#[test]
fn paths_follow_the_uplinks() {
    for family in [Family::V4, Family::V6] {
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let [first, second] = INTERFACES;
        let client = &pair.client.namespace;
        let change = |line: &str| drop(ip(client, line).expect(line));
        let [sent, _] = pair.transfer_over("--path auto", |sender, up| {
            assert_eq!(
                (&up["state"], &up["name"]),
                (&"up".into(), &second.into()),
                "{up}"
            );
            // The interface of the handshake goes, and comes again; then the other one has no way out any more.
            change(&format!("link set {first} down"));
            becomes(sender, first, "down");
            change(&format!("link set {first} up"));
            if let Family::V6 = family {
                // Unlike the other family's, its addresses go with the interface.
                change(&family.add(&family.of(0, 2), first));
            }
            pair.add_route(0).expect("a route");
            becomes(sender, first, "up");
            let via = family.of(1, 1);
            change(&format!("route del default via {via} dev {second}"));
            becomes(sender, second, "down");
        });
        // Paths are told of only while there are several.
        assert!(sent.done()["paths"].is_null(), "{}", sent.done());
    }
}

/// A path that goes down is replaced by the other one, whichever it is, and at whichever end.
fn goes_down(path: usize, at_client: bool) {
    for family in [Family::V4, Family::V6] {
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let host = if at_client {
            &pair.client
        } else {
            &pair.server
        };
        let line = format!("link set {} down", INTERFACES[path]);
        let cut = |_: &Value| drop(ip(&host.namespace, &line).expect("it goes down"));
        let [sent, received] = pair.transfer("aggregate", cut);
        let (dead, alive) = (path, 1 - path);
        let of_sender = paths(&sent);
        assert_eq!(of_sender[dead]["state"], "suspect", "{}", sent.done());
        assert_in_use(of_sender[alive]);
        let received = received.done();
        let of_receiver = &received["paths"];
        assert_in_use(&of_receiver[alive]);
        for path in [dead, alive] {
            let carried = number(&of_receiver[path], "wire_bytes_received");
            assert!(carried > SHARE_MIN, "{received}");
        }
    }
}

#[test]
fn the_first_interface_of_the_client_goes_down() {
    goes_down(0, true);
}

#[test]
fn the_second_interface_of_the_client_goes_down() {
    goes_down(1, true);
}

#[test]
fn the_first_interface_of_the_server_goes_down() {
    goes_down(0, false);
}

#[test]
fn the_second_interface_of_the_server_goes_down() {
    goes_down(1, false);
}

/// A modem that is pulled out and plugged in again: its interface is not there while the sender tries to connect again.
#[test]
fn a_sender_with_retry_waits_for_its_interface() {
    let Some(pair) = Pair::new(Family::V4) else {
        return;
    };
    let scratch = Scratch::new();
    scratch.file("movie", BYTES);
    let (first, listen) = (INTERFACES[0], format!("{}:0", pair.family.server()));
    let recv = "recv --json --output in --ticket-file t --listen";
    let recv: Vec<&str> = recv.split(' ').chain([listen.as_str()]).collect();
    let start = || Running::start(&scratch, &recv, &[]);
    let mut receiver = pair.server.namespace.run(start).expect("a thread");
    receiver.event("listening");
    let send = format!(
        "--cc fixed:10mbit --path {first} --retry 1m --idle-timeout 1s --connect-timeout 1s --interval-report 10ms movie"
    );
    let send: Vec<&str> = send.split(' ').collect();
    let start = || scratch.send(&send);
    let mut sender = pair.client.namespace.run(start).expect("a thread");
    sender.event("progress");
    let change = |line: &str| drop(ip(&pair.client.namespace, line).expect(line));
    change(&format!("link set {first} down"));
    let is_told = |event: Value| event["message"].to_string().contains("connecting again");
    while !is_told(sender.event("note")) {}
    // The sender tries to connect again once a second.
    thread::sleep(Duration::from_secs(3));
    assert!(!sender.has_ended());
    change(&format!("link set {first} up"));
    pair.add_route(0).expect("a route");
    sender.end().expect(0);
    scratch.assert_same("movie", "in/movie");
    receiver.signal(Signal::INT);
    receiver.end().expect(130);
}

#[test]
fn a_budget_that_is_spent_has_to_be_larger() {
    let scratch = Scratch::new();
    scratch.file("movie", BYTES);
    let _recv = scratch.recv(&[]);
    let sent = scratch.send(&["--path", "127.0.0.1,budget=1MB", "movie"]);
    let ended = sent.end().expect(6);
    let hint = ended.error("cancelled")["hint"].to_string();
    assert!(hint.contains("larger budget="), "{hint}");
    assert!(!hint.contains("the same command"), "{hint}");
}

#[test]
fn a_path_that_was_removed_may_come_again() {
    let Some(pair) = Pair::new(Family::V4) else {
        return;
    };
    let second = INTERFACES[1];
    let ask = |verb: &str| {
        let scratch = Scratch::new();
        let words = ["ctl", "paths", verb, second];
        let run = || command(&scratch.path("in"), &words).output();
        let output = pair.client.namespace.run(run).expect("a thread");
        output.expect("the binary starts").status.code()
    };
    pair.transfer("aggregate", |_| {
        assert_eq!(ask("add"), Some(2), "it is there");
        for _ in 0..2 {
            assert_eq!(ask("remove"), Some(0));
            assert_eq!(ask("remove"), Some(2), "it has gone");
            assert_eq!(ask("add"), Some(0));
        }
    });
}

/// IP bytes that a standby may have: challenges and their answers, MTU probes, and a PING now and then.
const STANDBY_MAX: u64 = 200_000;

/// Both ways, what the ends sent over the path.
fn sent_on(ends: &[Ended; 2], path: usize) -> u64 {
    let sent = ends
        .each_ref()
        .map(|end| number(paths(end)[path], "wire_bytes_sent"));
    sent.iter().sum()
}

#[test]
fn a_backup_carries_nothing_until_the_first_path_is_down() {
    for family in [Family::V4, Family::V6] {
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let ends = pair.transfer("backup", |_| {});
        let is_suspect = |event: &Value| event["event"] == "path" && event["state"] == "suspect";
        let was_suspect = ends.iter().flat_map(|end| &end.events).any(is_suspect);
        // The one that became so last is told of by nothing but the end.
        let ends_suspect = ends.iter().any(|end| paths(end)[0]["state"] == "suspect");
        let stood_still = was_suspect || ends_suspect;
        for (end, role) in ends.iter().zip(["the sender", "the receiver"]) {
            let [first, second] = paths(end);
            assert_in_use(first);
            if !stood_still {
                assert_eq!(second["state"], "standby", "{role}: {}", end.done());
                assert!(second["reason"].is_string(), "{second}");
            }
        }
        let most = if stood_still {
            BYTES as u64 / 2
        } else {
            STANDBY_MAX
        };
        assert!(sent_on(&ends, 1) < most, "{}", ends[0].done());
        let rest = BYTES as u64 - most;
        assert!(sent_on(&ends, 0) > rest, "{}", ends[0].done());
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let line = format!("link set {} down", INTERFACES[0]);
        let cut = |_: &Value| drop(ip(&pair.client.namespace, &line).expect("it goes down"));
        let ends = pair.transfer("backup", cut);
        let [first, second] = paths(&ends[0]);
        assert_eq!(first["state"], "suspect", "{}", ends[0].done());
        assert_in_use(second);
        let rest = (BYTES - FIRST_BYTES) as u64;
        assert!(sent_on(&ends, 1) > rest, "{}", ends[0].done());
    }
}

#[test]
fn redundant_paths_carry_the_same() {
    for family in [Family::V4, Family::V6] {
        let Some(pair) = Pair::new(family) else {
            return;
        };
        let line = format!("link set {} down", INTERFACES[0]);
        let cut = |_: &Value| drop(ip(&pair.client.namespace, &line).expect("it goes down"));
        let ends = pair.transfer("redundant", cut);
        assert_in_use(paths(&ends[0])[1]);
        // Nearly all that was sent before the cut, though a path that is late may leave some out.
        let half = (FIRST_BYTES / 4) as u64;
        for path in 0..2 {
            assert!(sent_on(&ends, path) > half, "{}", ends[0].done());
        }
    }
}
