//! `sphx tunnel --tun` in namespaces that a link joins which loses packets: kernel TCP, ping, what is too big, what is left out, what stays behind.

use std::fs;
use std::process::Command;

use sphinx_netdev::netns::{self, Access, Namespace};
use sphinx_netdev::tun::{Tun, TunConfig};

use crate::common::{Running, Scratch};

const TOOLS: &str = include_str!("tun.py");
/// A user without rights.
pub(crate) const NOBODY: &str =
    "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";

/// Whether the machine gives what these tests need; says why they are skipped if not.
pub(crate) fn may_run(programs: &[&str]) -> bool {
    match netns::probe() {
        Ok(Access::Direct) => {}
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!("needs root");
            return false;
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            return false;
        }
    }
    for program in programs {
        if Command::new(program).arg("-V").output().is_err() {
            sphinx_testing::skipped!("there is no {program}");
            return false;
        }
    }
    true
}

/// Runs a server with pools, and with a ticket for all, at the right end of a link, and `left` at the left one: a script for the shell that ends with 0.
/// `SPHX` is the command, `TOOLS` what [`TOOLS`] does.
fn between(scratch: &Scratch, link: &[&str], left: &str) {
    between_as(
        scratch,
        link,
        "--permit tun --key key --ticket-file t",
        &format!("while ! test -s t; do sleep 0.02; done; {left}"),
    );
}

/// The same with a server that knows who may come in another way.
fn between_as(scratch: &Scratch, link: &[&str], server: &str, left: &str) {
    fs::write(scratch.path("tun.py"), TOOLS).expect("a file");
    let binary = env!("CARGO_BIN_EXE_sphx");
    // Served once it listens: before, there is no ticket to begin with.
    let right = format!(
        "mkdir -p served; cp page served; (cd served; exec python3 ../tun.py serve 8080) & \
         while ! curl -sf http://127.0.0.1:8080/ >/dev/null; do sleep 0.05; done; \
         exec {binary} server {server} --tun-pool 10.9.0.0/24 --tun-pool fd09::/64 --json > served.events"
    );
    let left = format!(
        "TOOLS='python3 tun.py'; has() {{ command -v $1 >/dev/null 2>&1 && return; echo \"skipped: there is no $1\" >&2; return 1; }}; \
         not() {{ if \"$@\"; then echo is so: $* >&2; exit 1; fi; }}; {left}"
    );
    joined(scratch, link, &left, &right);
}

/// Runs both scripts at the ends of a link, until the left one has ended, with 0.
pub(crate) fn joined(scratch: &Scratch, link: &[&str], left: &str, right: &str) {
    let binary = env!("CARGO_BIN_EXE_sphx");
    let right = format!("SPHX={binary}; ip link set lo up; {right}");
    let left = format!(
        "set -e; SPHX={binary}; ip link set lo up; \
         up() {{ while ! grep -q '\"tun\"' $1; do kill -0 $2; sleep 0.02; done; }}; {left}"
    );
    let mut arguments = vec!["lab", "link", "--quiet", "--left", &left, "--right", &right];
    arguments.extend(link);
    let runtime = scratch.path(".").to_string_lossy().into_owned();
    let environment = [
        ("XDG_RUNTIME_DIR", runtime.as_str()),
        ("SPHX_LINK_SOCKET", ""),
    ];
    Running::start(scratch, &arguments, &environment)
        .end()
        .tell_skipped()
        .expect(0);
}

#[test]
fn both_families_cross_a_link_that_loses_and_nothing_stays() {
    if !may_run(&["curl", "python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 3_000_000);
    scratch.file("sent", 1_000_000);
    let left = "\
        $SPHX tunnel --ticket-file t --json -v --tun vpn --address 10.9.0.2/24 --address fd09::2/64 \
          --route 0.0.0.0/0 ::/0 --exclude 192.0.2.0/24 > events & one=$!; up events $one; \
        $TOOLS ping 10.9.0.1 5; $TOOLS ping fd09::1 5; \
        if has ping; then ping -c 3 -i 0.3 10.9.0.1 >&2; fi; if has traceroute; then traceroute -n 10.9.0.1 | grep -q '^ *1  10.9.0.1'; fi; \
        curl -sSf --max-time 60 http://10.9.0.1:8080/page > down; \
        curl -sSf --max-time 60 'http://[fd09::1]:8080/page' > down6; \
        curl -sSf --max-time 60 -T sent http://10.9.0.1:8080/put; \
        ip route get 198.51.100.1 | grep -q 'dev vpn'; ip -6 route get 2001:db8::1 | grep -q 'dev vpn'; \
        ip route get 192.0.2.1 > left_out 2>&1 || true; not grep 'dev vpn' left_out; \
        server=$(sed -n 's/.*\"server\":\"\\[*\\([0-9a-f.:]*[0-9a-f]\\)\\]*:[0-9]*\".*/\\1/p' events); \
        ip route get $server > own; not grep 'dev vpn' own; \
        kill -9 $one; wait $one || true; not ip link show vpn; ip route get 198.51.100.1 > killed 2>&1 || true; not grep vpn killed; \
        $SPHX tunnel --ticket-file t --json --tun vpn --route 0.0.0.0/0 > again & two=$!; up again $two; \
        $TOOLS ping 10.9.0.1 1; kill -INT $two; wait $two || true; \
        ip rule > rules; ip -6 rule >> rules; not grep -e '^77' rules; ip route show table all > routes; not grep -e throw -e vpn routes";
    let link = [
        "--rate", "50mbit", "--rtt", "20ms", "--loss", "6%", "--queue", "100ms",
    ];
    between(&scratch, &link, left);
    scratch.assert_same("page", "down");
    scratch.assert_same("page", "down6");
    scratch.assert_same("sent", "served/put");
    let events = fs::read_to_string(scratch.path("served.events")).expect("events");
    assert!(events.contains("masquerade"), "{events}");
}

/// On a path that carries less than the interface does, senders that want no cutting are told, and connections keep to what fits.
#[test]
fn what_is_too_big_is_answered() {
    if !may_run(&["curl", "python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 300_000);
    // An IPv4 packet of 1358 bytes that may not be cut, until its sender knows better.
    let left = "\
        $SPHX tunnel --ticket-file t --json --tun vpn > events & one=$!; up events $one; \
        for n in $(seq 100); do ip route flush cache; python3 -c 'import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(0, 10, 2)
udp.connect((\"10.9.0.1\", 9))
try: udp.send(bytes(1330))
except OSError: pass'; sleep 0.1; if ip route get 10.9.0.1 | grep -q mtu; then break; fi; done; \
        ip route get 10.9.0.1 > learned; grep -q 'mtu 1[23]' learned; \
        curl -sSf --max-time 60 http://10.9.0.1:8080/page > down; kill $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "10ms", "--mtu", "1400"];
    between(&scratch, &link, left);
    scratch.assert_same("page", "down");
}

/// Whether users without rights may make namespaces and TUN devices; says so if not.
pub(crate) fn users_have_namespaces() -> bool {
    let script = format!("{NOBODY} unshare -Un true && {NOBODY} sh -c ': <>/dev/net/tun'");
    let status = Command::new("sh").args(["-c", &script]).status();
    let have = status.is_ok_and(|status| status.success());
    if !have {
        sphinx_testing::skipped!("users have no namespaces, or no TUN devices, here");
    }
    have
}

#[test]
fn one_program_without_rights_and_what_is_missing_is_told() {
    if !may_run(&["curl", "python3", "ip", "setpriv"]) {
        return;
    }
    if !users_have_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 500_000);
    let left = format!(
        "cp t ticket; chown 65534 ticket; mkdir own; chown 65534 own; export TMPDIR=$PWD/own; \
         {NOBODY} $SPHX tunnel --ticket-file ticket --json --tun --dns 192.0.2.53 -- curl -sSf --max-time 60 http://10.9.0.1:8080/page > down 2> errors || (cat errors; exit 1); \
         {NOBODY} $SPHX tunnel --ticket-file ticket --quiet --tun --dns 192.0.2.53 -- sh -c 'exit 42' || code=$?; test $code = 42; \
         {NOBODY} $SPHX tunnel --ticket-file ticket --quiet --tun --dns 192.0.2.53 -- sh -c 'cat /etc/resolv.conf; id -u; ip -o -4 address show tun0' > told; \
         {NOBODY} $SPHX tunnel --ticket-file ticket --quiet --tun --route 0.0.0.0/0 2> denied || code=$?; test $code = 8"
    );
    let link = ["--rate", "50mbit", "--rtt", "10ms", "--loss", "2%"];
    between(&scratch, &link, &left);
    let told = fs::read_to_string(scratch.path("told")).expect("what it printed");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[..2], ["nameserver 192.0.2.53", "65534"], "{told}");
    assert!(lines[2].contains("inet 10.9.0."), "{told}");
    let denied = fs::read_to_string(scratch.path("denied")).expect("what it printed");
    assert!(denied.contains("CAP_NET_ADMIN"), "{denied}");
}

#[test]
fn what_a_program_prints_is_not_among_the_events() {
    if !may_run(&["python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        $SPHX tunnel --ticket-file t --json --tun --dns 192.0.2.53 -- echo hello > events 2> errors; \
        $SPHX tunnel --ticket-file t --tun --dns 192.0.2.53 -- echo hello > plain";
    between(&scratch, &["--rate", "50mbit", "--rtt", "10ms"], left);
    let told = |name: &str| fs::read_to_string(scratch.path(name)).expect("what it printed");
    let events = told("events");
    assert!(events.contains("\"tun\""), "{events}");
    for line in events.lines() {
        let event: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(event.is_ok(), "{line}");
    }
    assert!(told("errors").lines().any(|line| line == "hello"));
    assert_eq!(told("plain"), "hello\n");
}

#[test]
fn an_address_of_a_client_is_given_to_it_and_to_nobody_else() {
    if !may_run(&["ip", "python3"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    // A server hears of an invitation within a second. The first one asks for nothing, the second one for what belongs to the first, which has gone, and then for anything.
    let left = "\
        while ! grep -qs listening served.events; do sleep 0.02; done; export XDG_STATE_HOME=$PWD/home; \
        join() { until $SPHX join --quiet --ticket-file $1 --as $2; do sleep 0.1; done; }; \
        $SPHX server invite one --state s --permit tun --address 10.9.0.2 --ticket-file i1; join i1 mine; \
        $SPHX server invite two --state s --permit tun --ticket-file i2; join i2 other; \
        $SPHX tunnel mine --json --tun vpn > first & one=$!; up first $one; $TOOLS ping 10.9.0.1 1; kill -INT $one; wait $one || true; \
        $SPHX tunnel other --json --tun vpn --address 10.9.0.2/24 > refused || code=$?; test $code = 4; \
        $SPHX tunnel other --json --tun vpn > second & two=$!; up second $two; $TOOLS ping 10.9.0.1 1; kill -INT $two; wait $two || true";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    between_as(&scratch, &link, "--state s", left);
    let told = |name: &str| fs::read_to_string(scratch.path(name)).expect("what it printed");
    assert!(told("first").contains("10.9.0.2/24"), "{}", told("first"));
    assert!(told("second").contains("10.9.0.3/24"), "{}", told("second"));
    let refused = told("refused");
    assert!(refused.contains("belongs to another client"), "{refused}");
}

/// Two programs with one key ask for the client's address: the later one has it, the earlier one hears of that, and gets it back.
#[test]
fn who_loses_its_address_to_another_session_asks_again() {
    if !may_run(&["ip", "python3"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        while ! grep -qs listening served.events; do sleep 0.02; done; export XDG_STATE_HOME=$PWD/home; \
        $SPHX server invite one --state s --permit tun --address 10.9.0.2 --ticket-file i1; \
        until $SPHX join --quiet --ticket-file i1 --as mine; do sleep 0.1; done; \
        $SPHX tunnel mine --json --tun vpn > first 2> told & one=$!; up first $one; $TOOLS ping 10.9.0.1 1; \
        $SPHX tunnel mine --json --tun later > second & two=$!; up second $two; \
        while ! grep -q 'another session has 10.9.0.2' told; do kill -0 $one; sleep 0.02; done; \
        kill -INT $two; wait $two || true; $TOOLS ping 10.9.0.1 1; kill -INT $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    between_as(&scratch, &link, "--state s", left);
    let told = |name: &str| fs::read_to_string(scratch.path(name)).expect("what it printed");
    assert!(told("second").contains("10.9.0.2/24"), "{}", told("second"));
    assert!(told("told").contains("carries no more"), "{}", told("told"));
}

/// Everything goes into the tunnel, and the server's name is all that is known of it. When it comes again, that has another address.
#[test]
fn a_server_that_has_moved_is_found_by_its_name() {
    if !may_run(&["ip", "python3", "unshare", "mount"]) {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.path("tun.py"), TOOLS).expect("a file");
    // The next one begins as soon as there is a file `moves`. Neither address is of a network that the client is in.
    let right = "\
        for address in 198.51.100.1 198.51.100.2; do ip address add $address/32 dev lo; \
        $SPHX server --permit tun --key key --ticket-file t --advertise there.test --tun-pool 10.9.0.0/24 --quiet & one=$!; \
        while ! test -e moves; do sleep 0.05; done; kill -KILL $one; wait $one; ip address del $address/32 dev lo; rm moves; done";
    let left = "\
        while ! test -s t; do sleep 0.02; done; ip route add default via 10.77.0.2; \
        echo 198.51.100.1 there.test > hosts; echo hosts: files > order; \
        unshare -m sh -ec \"mount --bind hosts /etc/hosts; ! test -e /etc/nsswitch.conf || mount --bind order /etc/nsswitch.conf; \
          exec $SPHX tunnel --ticket-file t --json --idle-timeout 3s --tun vpn --route 0.0.0.0/0\" > events & one=$!; up events $one; \
        python3 tun.py ping 10.9.0.1 1; echo 198.51.100.2 there.test > hosts; touch moves; while test -e moves; do sleep 0.02; done; \
        python3 tun.py ping 10.9.0.1 1; grep '\"server\":\".*198.51.100.2' events; ip route get 198.51.100.2 > own; if grep 'dev vpn' own; then exit 1; fi; \
        ip route get 203.0.113.1 | grep -q 'dev vpn'; kill -INT $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    joined(&scratch, &link, left, right);
}

/// Other programs remove rules that they do not know, the kernel removes routes of what somebody turns off, and somebody removes the interface itself.
#[test]
fn what_others_remove_is_there_again_or_the_tunnel_ends() {
    if !may_run(&["python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        ip route add default via 10.77.0.2; ip -6 route add default via fd77::2; \
        $SPHX tunnel --ticket-file t --json --tun vpn --address 10.9.0.2/24 --address fd09::2/64 --route 0.0.0.0/0 ::/0 198.51.100.0/24 \
          --exclude 192.0.2.0/24 > events & one=$!; up events $one; \
        goes() { while ! ip route get 198.51.100.1 | grep -q 'dev vpn' || ! ip route get 203.0.113.1 | grep -q 'dev vpn' || \
          ! ip -6 route get 2001:db8::1 | grep -q 'dev vpn'; do kill -0 $one; sleep 0.02; done; \
          $TOOLS ping 10.9.0.1 1; $TOOLS ping fd09::1 1; ip route get 192.0.2.1 > excluded; not grep 'dev vpn' excluded; }; goes; \
        for priority in 7749 7750 7751; do ip rule del priority $priority; goes; ip -6 rule del priority $priority; goes; done; \
        ip link set vpn down; ip link set vpn up; goes; ip link set vpn down; goes; ip addr flush dev vpn; goes; \
        table=$(ip rule | sed -n 's/^7749:.*lookup //p'); ip route flush table $table; goes; \
        grep -q 'had removed' events; touch cut; \
        while ! grep -q 'another one in its place' served.events; do kill -0 $one; sleep 0.02; done; goes; \
        ip link del vpn; wait $one || code=$?; test $code = 8; grep -q 'nothing goes into the tunnel' events; \
        ip rule > rules; ip -6 rule >> rules; not grep -e '^77' rules";
    fs::write(scratch.path("tun.py"), TOOLS).expect("a file");
    // The server's interface is removed as soon as there is a file `cut`.
    let right = "\
        $SPHX server --permit tun --key key --ticket-file t --tun-pool 10.9.0.0/24 --tun-pool fd09::/64 --json > served.events & one=$!; \
        while ! test -e cut; do kill -0 $one; sleep 0.05; done; ip link del sphx0; wait $one";
    let left = format!(
        "while ! test -s t; do sleep 0.02; done; TOOLS='python3 tun.py'; not() {{ if \"$@\"; then echo is so: $* >&2; exit 1; fi; }}; {left}"
    );
    joined(
        &scratch,
        &["--rate", "50mbit", "--rtt", "10ms"],
        &left,
        right,
    );
}

/// What is for the network of its addresses leads into the tunnel also where nothing else does.
#[test]
fn an_interface_without_routes_is_kept_as_well() {
    if !may_run(&["curl", "python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        $SPHX tunnel --ticket-file t --json --tun vpn --address 10.9.0.2/24 --address fd09::2/64 > events & one=$!; up events $one; \
        goes() { while ! ip route get 10.9.0.1 2>&1 | grep -q 'dev vpn' || ! ip -6 route get fd09::1 2>&1 | grep -q 'dev vpn'; do \
          kill -0 $one; sleep 0.02; done; $TOOLS ping 10.9.0.1 1; $TOOLS ping fd09::1 1; }; goes; \
        ip addr flush dev vpn; goes; ip link set vpn down; goes; ip link set vpn down; ip link set vpn up; goes; \
        grep -q 'had removed' events; ip link del vpn; wait $one || code=$?; test $code = 8; \
        grep -q 'nothing goes into the tunnel' events";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    between(&scratch, &link, left);
}

/// The kernel leads an interface's network there, the server's packets too.
#[test]
fn a_network_that_the_server_is_in_is_refused() {
    if !may_run(&["curl", "python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        $SPHX tunnel --ticket-file t --tun vpn --address 10.9.0.2/8 --address fd09::2/8 2> told || code=$?; test $code = 8; \
        grep -q 'the server is in that network' told; not ip link show vpn";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    between(&scratch, &link, left);
}

#[test]
fn a_pool_of_a_network_that_the_machine_is_in_is_refused() {
    if !may_run(&[]) {
        return;
    }
    let scratch = Scratch::new();
    let namespace = Namespace::new().expect("a namespace");
    let config = TunConfig {
        name: "lan".to_owned(),
        mtu: 1500,
        queue_packets: 100,
        addresses: vec![([10, 9, 7, 1].into(), 16)],
    };
    let tun = namespace.run(|| Tun::open(&config));
    let _tun = tun.and_then(|opened| opened).expect("a device");
    let words = ["server", "--permit", "tun", "--tun-pool", "10.9.0.0/24"];
    let ended = namespace.run(|| Running::start(&scratch, &words, &[]).end());
    let told = ended.expect("a thread").expect(8).stderr;
    for part in ["10.9.0.0/16", "lan", "like 10.213.0.0/24"] {
        assert!(told.contains(part), "{told}");
    }
}

/// A machine without IPv6 goes on with IPv4; one where only new interfaces have none would send the rest past the tunnel, and is told so.
#[test]
fn without_ipv6_the_rest_goes_into_the_tunnel() {
    if !may_run(&["curl", "python3", "ip"]) {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 10);
    let left = "\
        echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; \
        start='tunnel --ticket-file t --json --tun vpn --route 0.0.0.0/0 ::/0'; \
        $SPHX $start > first 2> told || code=$?; test $code = 8; grep -q disable_ipv6 told; \
        echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
        $SPHX $start > events & one=$!; up events $one; \
        $TOOLS ping 10.9.0.1 1; grep -q 'IPv4 only' events; ip route get 198.51.100.1 | grep -q 'dev vpn'; \
        kill -INT $one; wait $one || true; code=0; \
        $SPHX $start --address 10.9.0.2/24 --address fd09::2/64 > third 2> told || code=$?; test $code = 8; grep -q disable_ipv6 told";
    let link = ["--rate", "50mbit", "--rtt", "10ms"];
    between(&scratch, &link, left);
}
