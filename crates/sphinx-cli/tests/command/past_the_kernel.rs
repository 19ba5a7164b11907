//! `--io xdp:IF`: whole transfers between namespaces joined by Ethernet interfaces, with AF_XDP at one end or both. Skipped, saying why,
//! where namespaces, `ip` or XDP programs are not to be had.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use super::pep::ip;
use super::pep_between::Host;
use crate::common::{Ended, Running, Scratch, may_make_namespaces};

/// The interface of either end.
pub(super) const INTERFACE: &str = "eth0";
pub(super) const BYTES: u64 = 3_000_000;
/// Packets that may go by the kernel: those of the handshake, those before the neighbour is known, and one a second.
const BY_KERNEL_MAX: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    /// The address of an end, in a network of its own where there is a router.
    pub(super) fn of(self, network: u8, host: u8) -> String {
        match self {
            Family::V4 => format!("10.82.{network}.{host}"),
            Family::V6 => format!("fd82:{network}::{host}"),
        }
    }

    pub(super) fn add(self, address: &str, interface: &str) -> String {
        match self {
            Family::V4 => format!("addr add {address}/24 dev {interface}"),
            Family::V6 => format!("addr add {address}/64 dev {interface} nodad"),
        }
    }

    pub(super) fn listen(self, address: &str) -> String {
        match self {
            Family::V4 => format!("{address}:0"),
            Family::V6 => format!("[{address}]:0"),
        }
    }
}

/// A client and a server, next to each other or with a router in between.
pub(super) struct Net {
    pub(super) client: Host,
    pub(super) server: Host,
    /// The router, which forwards as long as it is kept here.
    pub(super) router: Option<Host>,
}

impl Net {
    /// Next to each other, with packets of this size.
    pub(super) fn direct(mtu: u32) -> Option<Net> {
        Net::linked(mtu, 1)
    }

    /// The same with so many queues at either interface.
    fn linked(mtu: u32, queues: u32) -> Option<Net> {
        let net = Net::new(false)?;
        let there = net.server.holder.id();
        let end = format!("{INTERFACE} mtu {mtu} numtxqueues {queues} numrxqueues {queues}");
        let line = format!("link add {end} type veth peer name {end} netns {there}");
        ip(&net.client.namespace, &line)
            .or_else(|| skip("no 'ip', or it refuses to make links"))?;
        for family in FAMILIES {
            ip(
                &net.server.namespace,
                &family.add(&family.of(1, 1), INTERFACE),
            )?;
            ip(
                &net.client.namespace,
                &family.add(&family.of(1, 2), INTERFACE),
            )?;
        }
        net.turn_on()
    }

    /// With a router, which loses this share of the packets both ways, if one is given.
    pub(super) fn routed(loss: Option<&str>) -> Option<Net> {
        let net = Net::new(true)?;
        let router = net.router.as_ref().expect("there is one");
        for (network, host) in [(1, &net.server), (2, &net.client)] {
            let (there, inside) = (host.holder.id(), format!("r{network}"));
            let line = format!("link add {inside} type veth peer name {INTERFACE} netns {there}");
            ip(&router.namespace, &line)
                .or_else(|| skip("no 'ip', or it refuses to make links"))?;
            ip(&router.namespace, &format!("link set {inside} up"))?;
            for family in FAMILIES {
                ip(
                    &router.namespace,
                    &family.add(&family.of(network, 254), &inside),
                )?;
                ip(
                    &host.namespace,
                    &family.add(&family.of(network, 1), INTERFACE),
                )?;
            }
            if let Some(loss) = loss {
                let tc = format!("qdisc add dev {inside} root netem limit 10000 loss {loss}");
                run(router, "tc", &tc).or_else(|| skip("no 'tc', or no netem"))?;
            }
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.namespace.sysctl(key, "1").ok()?;
        }
        let net = net.turn_on()?;
        for (network, host) in [(1, &net.server), (2, &net.client)] {
            for family in FAMILIES {
                let via = family.of(network, 254);
                ip(
                    &host.namespace,
                    &format!("route add default via {via} dev {INTERFACE}"),
                )?;
            }
        }
        Some(net)
    }

    fn new(routed: bool) -> Option<Net> {
        may_make_namespaces().then(|| Net {
            client: Host::new(),
            server: Host::new(),
            router: routed.then(Host::new),
        })
    }

    fn turn_on(self) -> Option<Net> {
        for host in [&self.client, &self.server] {
            ip(&host.namespace, &format!("link set {INTERFACE} up"))?;
        }
        Some(self)
    }

    /// `sphx perf` between the ends; what the server and the client say of it. `None` where XDP or DPDK's driver is not to be had.
    pub(super) fn perf(
        &self,
        family: Family,
        ios: (&str, &str),
        bytes: u64,
        more: &[&str],
    ) -> Option<[Ended; 2]> {
        let scratch = Scratch::new();
        let listen = family.listen(&family.of(1, 1));
        let line = [
            "perf",
            "server",
            "--json",
            "--once",
            "--ticket-file",
            "t",
            "--listen",
            &listen,
            "--io",
            ios.0,
        ];
        let mut server = Running::start_in_namespace(&self.server.namespace, &scratch, &line);
        if !server.listens() {
            let ended = server.end();
            return refused(&ended);
        }
        let bytes = bytes.to_string() + "B";
        let line = [
            "perf",
            "client",
            "--json",
            "--no-cache",
            "--ticket-file",
            "t",
            "--bytes",
            &bytes,
            "--io",
            ios.1,
        ];
        let line = [&line[..], more].concat();
        let client = Running::start_in_namespace(&self.client.namespace, &scratch, &line);
        Some([server.end().expect(0), client.end().expect(0)])
    }
}

fn run(host: &Host, program: &str, words: &str) -> Option<()> {
    let mut command = std::process::Command::new(program);
    command
        .args(words.split_whitespace())
        .stderr(std::process::Stdio::null());
    let status = host.namespace.spawn(&mut command).ok()?.wait().ok()?;
    status.success().then_some(())
}

pub(super) fn skip<T>(why: &str) -> Option<T> {
    sphinx_testing::skipped!("{why}");
    None
}

/// The machine has no XDP programs, its DPDK not that driver, or the process may not use them: nothing else is an excuse.
pub(super) fn refused<T>(ended: &Ended) -> Option<T> {
    let message = ended.error("local_io")["message"].to_string();
    assert!(
        [
            "not permitted",
            "not implemented",
            "not supported",
            "has found no port"
        ]
        .iter()
        .any(|why| message.contains(why)),
        "{message}"
    );
    skip(&message)
}

/// `sphx perf server`, once it listens.
pub(super) fn serve(
    host: &Host,
    scratch: &Scratch,
    family: Family,
    io: &str,
    more: &[&str],
) -> Option<Running> {
    let listen = family.listen(&family.of(1, 1));
    let line = ["perf", "server", "--json", "--ticket-file", "t"];
    let line = [&line[..], &["--listen", &listen, "--io", io], more].concat();
    let mut server = Running::start_in_namespace(&host.namespace, scratch, &line);
    match server.listens() {
        true => Some(server),
        false => refused(&server.end()),
    }
}

/// A client of it, by the kernel's UDP.
pub(super) fn client(host: &Host, scratch: &Scratch) -> Running {
    let bytes = format!("{BYTES}B");
    let line = ["perf", "client", "--json", "--no-cache", "--ticket-file"];
    let line = [&line[..], &["t", "--bytes", &bytes]].concat();
    Running::start_in_namespace(&host.namespace, scratch, &line)
}

/// Sessions at once; each is one shard's, at whichever queue its packets arrive. How many had to be handed over.
pub(super) fn sessions_of_two_shards(host: &Host, scratch: &Scratch, mut server: Running) -> u64 {
    const SESSIONS: usize = 16;
    let clients: Vec<_> = (0..SESSIONS).map(|_| client(host, scratch)).collect();
    for client in clients {
        client.end().expect(0);
    }
    let mut handovers = 0;
    for _ in 0..SESSIONS {
        let done = server.event("done");
        assert_eq!(done["bytes"], BYTES, "{done}");
        assert_eq!(done["shards"], 2, "{done}");
        assert_eq!(done["steering"], "rss", "{done}");
        handovers += done["handovers"].as_u64().expect("a number");
    }
    server.signal(Signal::TERM);
    server.end().expect(143);
    handovers
}

/// What an end that was to use AF_XDP says that it did.
#[track_caller]
fn assert_past_the_kernel(done: &Value, io: &str) {
    assert!(
        done["io"]
            .as_str()
            .expect("a name")
            .starts_with("xdp:copy,"),
        "{done}"
    );
    if let Some(mode) = io.split_once(",").map(|it| it.1) {
        assert!(
            done["io"].as_str().expect("a name").contains(mode),
            "{done}"
        );
    }
    let by_kernel = done["kernel_datagrams"].as_u64().expect("a number");
    assert!(
        by_kernel <= BY_KERNEL_MAX,
        "{by_kernel} packets by the kernel: {done}"
    );
}

fn client_io(done: &Value) -> &str {
    done["io"].as_str().expect("a name")
}

/// In every pairing, with either family, and data in either direction.
#[test]
fn transfers_go_past_the_kernel_at_either_end() {
    let Some(net) = Net::direct(1500) else { return };
    for family in FAMILIES {
        for (server, client) in [
            ("xdp:eth0", "udp"),
            ("udp", "xdp:eth0"),
            ("xdp:eth0", "xdp:eth0,native"),
        ] {
            for more in [&[][..], &["--reverse"]] {
                let ends = net.perf(family, (server, client), BYTES, more);
                let Some(ended) = ends else { return };
                for (io, ended) in [server, client].into_iter().zip(&ended) {
                    match io {
                        "udp" => assert_eq!(ended.done()["io"], "udp"),
                        io => assert_past_the_kernel(ended.done(), io),
                    }
                }
            }
        }
    }
}

#[test]
fn the_program_runs_before_any_driver_too() {
    let Some(net) = Net::direct(1500) else { return };
    let io = "xdp:eth0:0,generic";
    for family in FAMILIES {
        let Some(ended) = net.perf(family, (io, io), BYTES, &[]) else {
            return;
        };
        for ended in &ended {
            assert_past_the_kernel(ended.done(), io);
        }
    }
}

/// The kernel sends by a queue that it chooses by addresses and ports, which know nothing of who has the session.
#[test]
fn shards_have_queues_of_their_own() {
    let Some(net) = Net::linked(1500, 2) else {
        return;
    };
    for family in FAMILIES {
        let scratch = Scratch::new();
        let more = ["--shards", "2"];
        let server = serve(&net.server, &scratch, family, "xdp:eth0", &more);
        let Some(server) = server else { return };
        let handovers = sessions_of_two_shards(&net.client, &scratch, server);
        assert!(handovers > 0);
    }
}

/// Frames of several parts.
#[test]
fn large_packets_are_carried() {
    let Some(net) = Net::direct(9000) else { return };
    for (server, client) in [
        ("xdp:eth0", "xdp:eth0"),
        ("udp", "xdp:eth0"),
        ("xdp:eth0", "udp"),
    ] {
        let ends = net.perf(Family::V4, (server, client), 8 * BYTES, &[]);
        let Some([_, client]) = ends else { return };
        let done = client.done();
        let bytes = done["wire_bytes_sent"].as_u64().expect("a number");
        let packets = done["wire_packets_sent"].as_u64().expect("a number");
        // Until the path is known to carry them, packets are small.
        assert!(bytes / packets > 3000, "{done}");
        if client_io(done).starts_with("xdp") {
            assert_past_the_kernel(done, "xdp");
        }
    }
}

/// Through a router, which is what the frames are addressed to, and with losses to repair.
#[test]
fn losses_are_repaired_and_routes_followed() {
    let Some(net) = Net::routed(Some("3%")) else {
        return;
    };
    for family in FAMILIES {
        let ends = net.perf(family, ("xdp:eth0", "xdp:eth0"), BYTES, &[]);
        let Some(ended) = ends else { return };
        for ended in &ended {
            assert_past_the_kernel(ended.done(), "xdp:eth0");
        }
        assert!(ended[1].done()["plr_mean"].as_f64().expect("a share") > 0.005);
    }
}

#[test]
fn files_arrive_whole() {
    let Some(net) = Net::direct(1500) else { return };
    let scratch = Scratch::new();
    scratch.file("movie", BYTES as usize);
    let listen = Family::V6.listen(&Family::V6.of(1, 1));
    let line = [
        "recv",
        "--json",
        "--once",
        "--output",
        "in",
        "--ticket-file",
        "t",
        "--listen",
        &listen,
        "--io",
        "xdp:eth0",
    ];
    let mut receiver = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
    if !receiver.listens() {
        let _: Option<()> = refused(&receiver.end());
        return;
    }
    let line = [
        "send",
        "--json",
        "--ticket-file",
        "t",
        "movie",
        "--io",
        "xdp:eth0",
    ];
    let sender = Running::start_in_namespace(&net.client.namespace, &scratch, &line);
    sender.end().expect(0);
    receiver.end().expect(0);
    scratch.assert_same("movie", "in/movie");
}

/// The client's only address changes on the way: the program does not know the new one, and the socket carries on.
#[test]
fn a_new_address_is_carried_by_the_socket() {
    let Some(net) = Net::direct(1500) else { return };
    let scratch = Scratch::new();
    let line = "perf server --json --once --ticket-file t --listen 10.82.1.1:0 --io xdp:eth0";
    let line: Vec<&str> = line.split(' ').collect();
    let mut server = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
    if !server.listens() {
        let _: Option<()> = refused(&server.end());
        return;
    }
    let line = "perf client --json --no-cache --ticket-file t --bytes 8MB --cc fixed:40mbit --interval-report 10ms --io xdp:eth0";
    let line: Vec<&str> = line.split(' ').collect();
    let mut client = Running::start_in_namespace(&net.client.namespace, &scratch, &line);
    while client.event("progress")["bytes"].as_u64().unwrap_or(0) < 1_000_000 {}
    for change in ["addr del 10.82.1.2/24", "addr add 10.82.1.3/24"] {
        let change = format!("{change} dev {INTERFACE}");
        assert!(ip(&net.client.namespace, &change).is_some(), "{change}");
    }
    let [client, server] = [client.end().expect(0), server.end().expect(0)];
    assert_eq!(server.done()["bytes"], 8_000_000);
    // Packets to the client's new address come through the kernel's socket.
    let by_kernel = client.done()["kernel_datagrams"].as_u64();
    assert!(
        by_kernel.is_some_and(|datagrams| datagrams > 20),
        "{by_kernel:?}"
    );
}

/// However the process ends, the interface is as it was; and it can be had again at once.
#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let Some(net) = Net::direct(1500) else { return };
    let scratch = Scratch::new();
    let has_program = || {
        ip(&net.server.namespace, "-details link show dev eth0")
            .is_some_and(|text| text.contains("prog/xdp"))
    };
    let line = [
        "perf",
        "server",
        "--json",
        "--ticket-file",
        "t",
        "--listen",
        "10.82.1.1:4433",
        "--io",
        "xdp:eth0",
    ];
    for _ in 0..2 {
        let mut server = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
        if !server.listens() {
            let _: Option<()> = refused(&server.end());
            return;
        }
        assert!(has_program());
        // An interface has room for one XDP program only.
        let second = [
            "perf",
            "server",
            "--json",
            "--ticket-file",
            "t2",
            "--listen",
            "10.82.1.1:0",
            "--io",
            "xdp:eth0",
        ];
        let second = Running::start_in_namespace(&net.server.namespace, &scratch, &second)
            .end()
            .expect(8);
        let error = second.error("local_io");
        assert!(
            error["message"].to_string().contains("another XDP program"),
            "{error}"
        );
        server.signal(Signal::KILL);
        server.end();
        // The kernel takes it off after the process has gone.
        let removed = (0..200).any(|_| {
            let is_gone = !has_program();
            if !is_gone {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            is_gone
        });
        assert!(removed);
    }
}

#[test]
fn what_cannot_be_had_is_named_with_what_helps() {
    let Some(net) = Net::direct(1500) else { return };
    let scratch = Scratch::new();
    fs::write(scratch.path("a"), "a").expect("a writable directory");
    for (io, message, hint) in [
        ("xdp:nosuch", "no interface nosuch", "ip link"),
        ("xdp:lo", "not an Ethernet interface", "--io udp"),
        ("xdp:eth0:7", "no queue 7", "ethtool -l"),
        ("xdp:eth0,zerocopy", "no zero copy", "--io xdp:eth0,copy"),
    ] {
        let line = [
            "perf",
            "server",
            "--json",
            "--ticket-file",
            "t",
            "--listen",
            "10.82.1.1:0",
            "--io",
            io,
        ];
        let ended = Running::start_in_namespace(&net.server.namespace, &scratch, &line)
            .end()
            .expect(8);
        let error = ended.error("local_io");
        if error["message"].to_string().contains("not permitted") {
            return;
        }
        assert!(
            error["message"].to_string().contains(message),
            "{io}: {error}"
        );
        assert!(error["hint"].to_string().contains(hint), "{io}: {error}");
    }
    // Fewer queues than engines.
    let line = ["recv", "--json", "--ticket-file", "t", "--shards", "2"];
    let line = [&line[..], &["--io", "xdp:eth0:0"]].concat();
    let ended = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
    let ended = ended.end().expect(8);
    let error = ended.error("local_io").to_string();
    for part in ["queues for 1 engines, not for 2", "ethtool -L eth0"] {
        assert!(error.contains(part), "{error}");
    }
    #[cfg(not(feature = "dpdk"))]
    {
        let line = [
            "recv",
            "--json",
            "--ticket-file",
            "t",
            "--io",
            "dpdk:-l 0 -- 10.0.0.1/24",
        ];
        let ended = Running::start(&scratch, &line, &[]).end().expect(2);
        assert!(
            ended.error("usage")["message"]
                .to_string()
                .contains("not part of this build")
        );
    }
    // Either end might be the one that listens, and an interface has room for one endpoint.
    let line = ["cp", "--json", "--io", "xdp:eth0", "a", "nowhere.invalid:b"];
    Running::start(&scratch, &line, &[]).end().expect(2);
    for io in [
        "xdp",
        "xdp:",
        "xdp:eth0,fast",
        "xdp:eth0:a",
        "xdp:eth0,zerocopy,generic",
        "tcp",
    ] {
        let line = ["perf", "server", "--json", "--ticket-file", "t", "--io", io];
        Running::start(&scratch, &line, &[]).end().expect(2);
    }
}
