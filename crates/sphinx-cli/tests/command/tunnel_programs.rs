//! Programs that people have, through a tunnel over a link that loses packets, changes its addresses and goes dark.

use std::fs;
use std::process::Command;

use sphinx_netdev::netns;

use crate::common::{Running, Scratch};

const TOOLS: &str = include_str!("programs.py");

/// Runs `right` and then a server at the right end of a link, and `left` at the left one, where the ticket is there and `up FILE WORD` waits for
/// an event: scripts for the shell, of which the left one ends with 0. What is not installed is said and left out.
fn between(scratch: &Scratch, link: &[&str], (left, right): (&str, &str)) {
    fs::write(scratch.path("programs.py"), TOOLS).expect("a file");
    let binary = env!("CARGO_BIN_EXE_sphx");
    let both = format!(
        "set -e; exec 1>&2; SPHX={binary}; TOOLS='python3 programs.py'; ip link set lo up; \
         has() {{ command -v $1 >/dev/null 2>&1 && return; echo \"skipped: there is no $1\" >&2; return 1; }}; \
         up() {{ while ! grep -qs -e $2 $1; do sleep 0.02; done; }}; "
    );
    let right = format!(
        "{both}{right} exec $SPHX server --permit tunnel --key key --ticket-file t --quiet"
    );
    let left = format!("{both}while ! test -s t; do sleep 0.02; done; {left}");
    let ends = ["lab", "link", "--quiet", "--left", &left, "--right", &right];
    let runtime = scratch.path(".").to_string_lossy().into_owned();
    let environment = [
        ("XDG_RUNTIME_DIR", runtime.as_str()),
        ("SPHX_LINK_SOCKET", ""),
    ];
    Running::start(scratch, &[&ends, link].concat(), &environment)
        .end()
        .tell_skipped()
        .expect(0);
}

fn may_run() -> bool {
    if let Err(error) = netns::probe() {
        sphinx_testing::skipped!("{error}");
        return false;
    }
    for program in ["curl", "python3", "ip"] {
        if Command::new(program).arg("-V").output().is_err() {
            sphinx_testing::skipped!("there is no {program}");
            return false;
        }
    }
    true
}

const SERVES: &str = "(mkdir served; cp page served; cd served; exec python3 -m http.server --bind 127.0.0.1 8080 >/dev/null 2>&1) & \
    while ! curl -s http://127.0.0.1:8080/ >/dev/null; do sleep 0.05; done;";

#[test]
fn a_download_outlives_a_change_of_address_and_a_blackout() {
    if !may_run() {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("page", 15_000_000);
    // Three seconds of data; at the end there is one connection, and one session.
    let left = "\
        $SPHX tunnel -4 --ticket-file t --json -v -L 8081:localhost:8080 > events & one=$!; up events forward; \
        curl -sSf --max-time 60 http://127.0.0.1:8081/page > down & load=$!; sleep 1; \
        echo 1 > /proc/sys/net/ipv4/conf/left/promote_secondaries; \
        ip address add 10.77.0.77/24 dev left; ip address del 10.77.0.1/24 dev left; \
        wait $load; kill -INT $one; wait $one || true; \
        test $(grep -c connected events) = 1; if grep reconnecting events; then exit 1; fi";
    let link = [
        "--rate",
        "50mbit",
        "--rtt",
        "20ms",
        "--loss",
        "2%",
        "--blackout",
        "2s-3500ms",
    ];
    between(&scratch, &link, (left, SERVES));
    scratch.assert_same("page", "down");
}

#[test]
fn programs_that_know_nothing_of_it() {
    if !may_run() {
        return;
    }
    let scratch = Scratch::new();
    // iperf3's server has one client at a time, and may still be busy with the one before.
    let right = "\
        $TOOLS dns 5353 & \
        if has iperf3; then iperf3 -s -B 127.0.0.1 >/dev/null & fi; \
        if has nginx && has wrk; then mkdir web; nginx -p $PWD/web -e err -g 'daemon off;' -c $PWD/nginx.conf & fi; \
        if has srt-live-transmit; then (timeout 60 srt-live-transmit -q 'srt://127.0.0.1:9000?mode=listener' file://con > srt.got) & fi; ";
    fs::write(
        scratch.path("nginx.conf"),
        "pid pid; worker_rlimit_nofile 4096; events { worker_connections 2048; }\n\
         http { access_log off; client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n\
         server { listen 127.0.0.1:8082 backlog=2048; location / { return 200 hello; } } }\n",
    )
    .expect("a file");
    // SRT itself decides what it lets go: most of it is asked for.
    let left = "\
        $SPHX tunnel --ticket-file t --json -L 5201:localhost:5201 -L 5201:localhost:5201/udp -L 8082:localhost:8082 \
          -L 9001:127.0.0.1:9000/udp -L 5354:127.0.0.1:5353/udp -D 1080 > events & one=$!; up events -D; \
        $TOOLS ask 127.0.0.1 5354; \
        $TOOLS socks 5355 1080 5353 & relay=$!; $TOOLS ask 127.0.0.1 5355; \
        if has dig; then dig +time=5 +tries=3 @127.0.0.1 -p 5355 a.example | grep 192.0.2.7; fi; kill $relay; \
        if has iperf3; then for way in '' -R '-u -b 5M' '-u -b 5M -R'; do for try in 1 2 3; do \
          iperf3 -c 127.0.0.1 -t 1 $way && break; test $try != 3; sleep 0.5; done; done; fi; \
        if has nginx && has wrk; then (ulimit -n 4096; wrk -t 1 -c 1000 -d 2s --timeout 20s http://127.0.0.1:8082/ > wrk.out); \
          cat wrk.out; if grep 'Socket errors' wrk.out; then exit 1; fi; fi; \
        if has srt-live-transmit; then $TOOLS paced 1315 500 | timeout 10 srt-live-transmit -q -chunk:1315 file://con 'srt://127.0.0.1:9001?mode=caller' || true; \
          test $(stat -c %s srt.got) -gt 600000; fi; \
        kill -INT $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "20ms", "--loss", "3%"];
    between(&scratch, &link, (left, right));
}

/// A page whose script fetches thirty objects and tells how many bytes have come. Names are resolved at the far end.
#[test]
fn browsers_load_a_page_by_socks() {
    if !may_run() {
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("profile")).expect("a directory");
    let settings = [
        ("network.proxy.type", "1"),
        ("network.proxy.socks", "\"127.0.0.1\""),
        ("network.proxy.socks_port", "1080"),
        ("network.proxy.socks_version", "5"),
        ("network.proxy.socks_remote_dns", "true"),
        ("network.proxy.allow_hijacking_localhost", "true"),
    ];
    let settings = settings.map(|(name, value)| format!("user_pref(\"{name}\", {value});\n"));
    fs::write(scratch.path("profile/user.js"), settings.concat()).expect("a file");
    let right = "$TOOLS page 8080 30 20000 > seen & ";
    let left = "\
        export HOME=$PWD; $SPHX tunnel --ticket-file t --json -D 1080 > events & one=$!; up events -D; \
        loads() { timeout 60 \"$@\" http://localhost:8080/?$1 2>$1.err & browser=$!; \
          while kill -0 $browser && ! grep -qs $1 seen; do sleep 0.1; done; \
          if ! grep $1=600000 seen; then cat $1.err; exit 1; fi; kill $browser; wait $browser || true; }; \
        if has chromium; then loads chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/chromium \
          --proxy-server=socks5://127.0.0.1:1080 '--proxy-bypass-list=<-loopback>'; fi; \
        if has firefox; then loads firefox --headless --no-remote --profile $PWD/profile; fi; \
        kill -INT $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "50ms", "--loss", "6%"];
    between(&scratch, &link, (left, right));
}

/// A millisecond apart and repaired after twenty, they would come in another one.
#[test]
fn datagrams_keep_the_order_that_was_asked_for() {
    if !may_run() {
        return;
    }
    let scratch = Scratch::new();
    let right = "$TOOLS rising 9001 2000 > there & ";
    let left = "\
        $SPHX tunnel --ticket-file t --json -L 9000:127.0.0.1:9001/udp,in-order,deadline=2s > events & one=$!; \
        up events forward; $TOOLS count 9000 2000 & here=$!; up there order; cat there; grep ' 0 out' there; kill $here; kill -INT $one; wait $one || true";
    let link = ["--rate", "50mbit", "--rtt", "20ms", "--loss", "5%"];
    between(&scratch, &link, (left, right));
}
