//! `sphx tunnel --tun --split-tcp`: connections of kernel TCP that are ended at the tunnel's ends, in namespaces that a link joins which loses packets.

use std::fs;

use crate::common::Scratch;
use crate::tunnel_ip::{NOBODY, joined, may_run, users_have_namespaces};

const TOOLS: &str = include_str!("split.py");
const LINK: [&str; 6] = ["--rate", "100mbit", "--rtt", "10ms", "--loss", "2%"];

/// A server with these rules, and with targets on its machine. As soon as there is a file `kill`, it is killed, and started again.
fn between(scratch: &Scratch, rules: &str, left: &str) {
    fs::write(scratch.path("split.py"), TOOLS).expect("a file");
    let right = format!(
        "python3 split.py serve 9000 2> served.errors & python3 split.py take 9001 taken & \
         while true; do $SPHX server --permit '{rules}' --key key --ticket-file t --tun-pool 10.9.0.0/24 --tun-pool fd09::/64 --json -v > served.events & one=$!; \
         while ! test -e kill; do sleep 0.05; done; rm kill; kill -KILL $one; wait $one; done"
    );
    let left = format!(
        "while ! test -s t -a -e listens-9000 -a -e listens-9001; do sleep 0.02; done; SPLIT='python3 split.py'; \
         is() {{ test \"$2\" = \"$1\" || {{ echo \"$2 is not $1\" >&2; exit 1; }}; }}; {left}"
    );
    joined(scratch, &LINK, &left, &right);
}

fn told(scratch: &Scratch, name: &str) -> String {
    fs::read_to_string(scratch.path(name)).expect("what it printed")
}

#[test]
fn connections_become_streams_and_everything_else_stays_packets() {
    if !may_run(&["python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    let left = "\
        ip route add 192.0.2.0/24 via 10.77.0.2; \
        $SPHX tunnel --ticket-file t --json -v --tun vpn --split-tcp --route 192.0.2.0/24 > events & one=$!; up events $one; \
        $SPLIT both 10.9.0.1 9000 8000000; $SPLIT both fd09::1 9000 3000000; $SPLIT both 10.9.0.1 9000 20000 300; \
        is ECONNREFUSED $($SPLIT asked 10.9.0.1 9); is ECONNREFUSED $($SPLIT asked fd09::1 9); is ENETUNREACH $($SPLIT asked 192.0.2.1 9); \
        $SPLIT held 10.9.0.1 9000 ready > held & two=$!; while ! test -e ready; do sleep 0.02; done; \
        kill -INT $one; wait $one || true; wait $two; is ECONNRESET $(cat held)";
    between(&scratch, "tun,tunnel", left);
    let events = told(&scratch, "events");
    let flows = |of: &str| events.lines().filter(|line| line.contains(of)).count();
    assert_eq!(flows("\"proto\":\"tcp\""), 303, "{events}");
    // No connection went as packets.
    let tun = events
        .lines()
        .find(|line| line.contains("\"proto\":\"tun\""));
    assert!(tun.expect("a flow").contains("\"bytes_up\":0,"), "{events}");
}

#[test]
fn a_server_that_is_killed_breaks_connections_and_later_ones_reach_the_next() {
    if !may_run(&["python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    let left = "\
        $SPHX tunnel --ticket-file t --json --idle-timeout 3s --tun vpn --split-tcp > events & one=$!; up events $one; \
        $SPLIT held fd09::1 9000 ready > held & two=$!; $SPLIT both 10.9.0.1 9000 200000000 1 flows > broken 2>&1 & three=$!; \
        while ! test -e ready -a -e flows; do sleep 0.02; done; touch kill; wait $two; is ECONNRESET $(cat held); if wait $three; then exit 1; fi; \
        $SPLIT both 10.9.0.1 9000 1000000; kill -INT $one; wait $one || true";
    between(&scratch, "tun,tunnel", left);
    let broken = told(&scratch, "broken");
    assert!(broken.contains("1 of 1: 10.9.0.1"), "{broken}");
}

#[test]
fn what_no_rule_of_the_server_lets_through_goes_as_packets() {
    if !may_run(&["python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    let left = "\
        $SPHX tunnel --ticket-file t --json -v --tun vpn --split-tcp > events 2> errors & one=$!; up events $one; \
        $SPLIT both 10.9.0.1 9000 1000000; $SPLIT both 10.9.0.1 9000 10000 20; $SPLIT both fd09::1 9000 1000000; is ECONNREFUSED $($SPLIT asked 10.9.0.1 9); \
        kill -INT $one; wait $one || true";
    between(&scratch, "tun,tunnel:tcp:[fd09::1]:*", left);
    let errors = told(&scratch, "errors");
    assert_eq!(errors.matches("go as packets").count(), 1, "{errors}");
    let events = told(&scratch, "events");
    let flows = events
        .lines()
        .filter(|line| line.contains("\"proto\":\"tcp\""));
    let flows: Vec<_> = flows.collect();
    assert!(
        flows.len() == 1 && flows[0].contains("[fd09::1]:9000"),
        "{events}"
    );
    // The denied destination is asked for once, not with each connection.
    let denied = told(&scratch, "served.events");
    let denied = denied
        .lines()
        .filter(|line| line.contains("\"denied\"") && line.contains(":9000"));
    assert_eq!(denied.count(), 1);
}

/// A machine whose packet filter takes connections only from its own programs.
#[test]
fn where_the_packet_filter_is_in_the_way_connections_go_as_packets() {
    if !may_run(&["python3", "ip", "nft"]) {
        return;
    }
    let scratch = Scratch::new();
    let left = "\
        nft add table inet t; nft add chain inet t in '{ type filter hook input priority 0; policy drop; }'; \
        nft add rule inet t in ct state established,related accept || exit 0; \
        nft add rule inet t in meta l4proto { udp, icmpv6 } accept; nft add rule inet t in iifname lo accept; \
        $SPHX tunnel --ticket-file t --json --tun vpn --split-tcp > events 2> errors & one=$!; up events $one; \
        $SPLIT both 10.9.0.1 9000 100000; $SPLIT both fd09::1 9000 100000; kill -INT $one; wait $one || true";
    between(&scratch, "tun,tunnel", left);
    // Without the kernel's part of it there is nothing to see.
    if let Ok(errors) = fs::read_to_string(scratch.path("errors")) {
        assert_eq!(errors.matches("packet filter").count(), 1, "{errors}");
    }
}

#[test]
fn one_program_without_rights() {
    if !may_run(&["python3", "ip", "setpriv"]) {
        return;
    }
    if !users_have_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let left = format!(
        "cp t ticket; chown 65534 ticket; mkdir own; chown 65534 own; export TMPDIR=$PWD/own; \
         {NOBODY} $SPHX tunnel --ticket-file ticket --json -v --tun --split-tcp --dns 192.0.2.53 -- \
           sh -ec \"$SPLIT both 10.9.0.1 9000 3000000; $SPLIT both fd09::1 9000 1000000; $SPLIT both 10.9.0.1 9000 20000 100; $SPLIT asked 10.9.0.1 9 >&2; \
                     $SPLIT drop 10.9.0.1 9001 3000000\" > events 2> errors || (cat errors >&2; exit 1)"
    );
    between(&scratch, "tun,tunnel", &left);
    assert!(told(&scratch, "errors").contains("ECONNREFUSED"));
    // What a program has closed is delivered after its end.
    let taken = fs::metadata(scratch.path("taken")).expect("a file").len();
    assert_eq!(taken, 3_000_000);
    let events = told(&scratch, "events");
    let flows = events
        .lines()
        .filter(|line| line.contains("\"proto\":\"tcp\""));
    assert_eq!(flows.count(), 103, "{events}");
}
