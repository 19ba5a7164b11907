//! `--io dpdk:…`: whole transfers over DPDK's virtual cards, at one end or both, each also beside the kernel's UDP. Only in builds with the feature `dpdk`; skipped,
//! saying why, where namespaces or a driver are not to be had. Memory is ordinary (`--no-huge`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use rustix::process::Signal;
use sphinx_netdev::lookup::{interface, neighbour};

use super::past_the_kernel::{
    BYTES, FAMILIES, Family, INTERFACE, Net, client, refused, serve, sessions_of_two_shards, skip,
};
use super::pep::ip;
use super::pep_between::Host;
use crate::common::{PATIENCE, Running, Scratch, may_make_namespaces};

/// What DPDK's environment is told, but for the card.
const ENVIRONMENT: &str = "--no-huge -m 128 --no-shconf --no-pci --no-telemetry";

/// An end that drives its interface by DPDK: network and host of its addresses.
#[derive(Clone, Copy)]
struct Card {
    driver: &'static str,
    end: (u8, u8),
    is_routed: bool,
    mtu: u32,
}

/// MTU of an Ethernet link, in bytes.
const MTU: u32 = 1500;
/// The router's link-local address, the same on either side.
const LINK_LOCAL: &str = "fe80::254";

impl Card {
    /// The value of `--io`.
    fn io(self) -> String {
        // Processes beside each other have files of their own.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (driver, (network, host)) = (self.driver, self.end);
        let [v4, v6] = [(Family::V4, 24), (Family::V6, 64)].map(|(family, prefix)| {
            let address = format!("{}/{prefix}", family.of(network, host));
            match self.is_routed {
                true => format!("{address},gw={}", family.gateway(network)),
                false => address,
            }
        });
        let mtu = match self.mtu {
            MTU => String::new(),
            mtu => format!(" mtu={mtu}"),
        };
        format!(
            "dpdk:{ENVIRONMENT} --file-prefix=sphx{}-{number} --vdev={driver}0,iface={INTERFACE} -- {v4} {v6}{mtu}",
            process::id()
        )
    }
}

impl Family {
    /// The router in a network: by its link-local address for IPv6, as routers announce themselves.
    fn gateway(self, network: u8) -> String {
        match self {
            Family::V4 => self.of(network, 254),
            Family::V6 => LINK_LOCAL.to_owned(),
        }
    }
}

/// What the kernel does not know it does not answer for.
fn take_addresses(host: &Host) {
    let key = format!("net.ipv6.conf.{INTERFACE}.disable_ipv6");
    let _ = host.namespace.sysctl(&key, "1");
    let flushed = ip(&host.namespace, &format!("addr flush dev {INTERFACE}"));
    flushed.expect("its own namespace");
}

/// The kernel's end sends one datagram at a time, as a cable would carry them: DPDK's drivers have no room for joined ones.
fn send_singly(host: &Host) {
    let line = format!("link set {INTERFACE} gso_max_segs 1");
    ip(&host.namespace, &line).expect("its own namespace");
}

/// Ends next to each other, by DPDK or not; and their `--io`.
fn direct(driver: &'static str, mtu: u32, by_dpdk: [bool; 2]) -> Option<(Net, [String; 2])> {
    let net = Net::direct(mtu)?;
    let ios = [(&net.server, 1), (&net.client, 2)];
    let ios = [0, 1].map(|end| {
        let (host, number) = ios[end];
        if !by_dpdk[end] {
            send_singly(host);
            return "udp".to_owned();
        }
        take_addresses(host);
        let card = Card {
            driver,
            end: (1, number),
            is_routed: false,
            mtu,
        };
        card.io()
    });
    Some((net, ios))
}

/// In every pairing and with either family, in one direction each.
#[track_caller]
fn transfers_go_over(driver: &'static str) {
    for by_dpdk in [[true, false], [false, true], [true, true]] {
        let Some((net, [server, client])) = direct(driver, MTU, by_dpdk) else {
            return;
        };
        for (family, more) in FAMILIES.into_iter().zip([&[][..], &["--reverse"]]) {
            let ends = net.perf(family, (&server, &client), BYTES, more);
            let Some(ended) = ends else { return };
            for (ended, is_dpdk) in ended.iter().zip(by_dpdk) {
                let io = if is_dpdk { "dpdk" } else { "udp" };
                assert_eq!(ended.done()["io"], io, "{driver}");
            }
        }
    }
}

#[test]
fn transfers_go_over_packet_sockets() {
    transfers_go_over("net_af_packet");
}

#[test]
fn transfers_go_over_af_xdp() {
    transfers_go_over("net_af_xdp");
}

/// A server at a TAP device, whose other end is the kernel's, in the same namespace.
fn at_a_tap_device(family: Family, more: &[&str]) -> Option<(Host, Scratch, Running)> {
    if !may_make_namespaces() {
        return None;
    }
    let host = Host::new();
    let scratch = Scratch::new();
    let card = Card {
        driver: "net_tap",
        end: (1, 1),
        is_routed: false,
        mtu: MTU,
    };
    let server = serve(&host, &scratch, family, &card.io(), more)?;
    send_singly(&host);
    let address = family.add(&family.of(1, 2), INTERFACE);
    for line in [address, format!("link set {INTERFACE} up")] {
        if ip(&host.namespace, &line).is_none() {
            return skip(&format!("'ip {line}' fails"));
        }
    }
    Some((host, scratch, server))
}

#[test]
fn transfers_go_over_a_tap_device() {
    for family in FAMILIES {
        let Some((host, scratch, server)) = at_a_tap_device(family, &["--once"]) else {
            return;
        };
        client(&host, &scratch).end().expect(0);
        // Its driver computes and verifies checksums. The kernel takes no packet whose checksum is not complete.
        let io = "dpdk:tx-checksums,rx-checksums";
        assert_eq!(server.end().expect(0).done()["io"], io);
    }
}

/// Queues of a TAP device: the kernel sends by that which has sent to it, so that few have to be handed over.
#[test]
fn shards_have_a_queue_each() {
    for family in FAMILIES {
        let Some((host, scratch, server)) = at_a_tap_device(family, &["--shards", "2"]) else {
            return;
        };
        sessions_of_two_shards(&host, &scratch, server);
    }
}

/// Packet sockets go by addresses, which know nothing of who has the session: of sixteen some are elsewhere. Neighbours are heard of at either queue.
#[test]
fn packets_get_to_the_shard_that_has_their_session() {
    for family in FAMILIES {
        let Some((net, [io, _])) = direct("net_af_packet", MTU, [true, false]) else {
            return;
        };
        let io = io.replace(INTERFACE, &format!("{INTERFACE},qpairs=2"));
        let scratch = Scratch::new();
        let more = ["--shards", "2"];
        let Some(server) = serve(&net.server, &scratch, family, &io, &more) else {
            return;
        };
        let handovers = sessions_of_two_shards(&net.client, &scratch, server);
        assert!(handovers > 0);
    }
}

/// Ends on either side of a router, by DPDK both; and their `--io`.
fn routed(loss: Option<&str>) -> Option<(Net, [String; 2])> {
    let net = Net::routed(loss)?;
    let router = net.router.as_ref().expect("there is one");
    for inside in ["r1", "r2"] {
        let line = Family::V6.add(LINK_LOCAL, inside);
        ip(&router.namespace, &line).expect("its own namespace");
    }
    let ios = [(&net.server, 1), (&net.client, 2)].map(|(host, network)| {
        take_addresses(host);
        let card = Card {
            driver: "net_af_packet",
            end: (network, 1),
            is_routed: true,
            mtu: MTU,
        };
        card.io()
    });
    Some((net, ios))
}

/// What is for other networks is the gateway's, which has to be asked for by its address.
#[test]
fn gateways_are_asked() {
    let Some((net, [server, client])) = routed(None) else {
        return;
    };
    for family in FAMILIES {
        let ends = net.perf(family, (&server, &client), BYTES, &[]);
        let Some([server, _]) = ends else { return };
        assert_eq!(server.done()["bytes"], BYTES);
    }
}

#[test]
fn losses_are_repaired() {
    let Some((net, ios)) = routed(Some("3%")) else {
        return;
    };
    for family in FAMILIES {
        let ends = net.perf(family, (&ios[0], &ios[1]), BYTES, &[]);
        let Some([_, client]) = ends else { return };
        let done = client.done();
        assert_eq!(done["io"], "dpdk");
        assert!(
            done["plr_mean"].as_f64().expect("a share") > 0.005,
            "{done}"
        );
    }
}

/// A server that is told no address listens on all of the card's, and its ticket names them: a client without IPv4 finds it.
#[test]
fn the_ticket_names_all_addresses() {
    let Some((net, [server, _])) = direct("net_af_packet", MTU, [true, false]) else {
        return;
    };
    let scratch = Scratch::new();
    let line = "perf server --json --once --ticket-file t --io";
    let line: Vec<&str> = line.split(' ').chain([server.as_str()]).collect();
    let mut server = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
    if !server.listens() {
        let _: Option<()> = refused(&server.end());
        return;
    }
    let [v4, v6] = FAMILIES.map(|family| family.of(1, 1));
    let flushed = ip(
        &net.client.namespace,
        &format!("-4 addr flush dev {INTERFACE}"),
    );
    flushed.expect("its own namespace");
    client(&net.client, &scratch).end().expect(0);
    let ended = server.end().expect(0);
    let listening = ended.event("listening");
    for address in [v4, format!("[{v6}]")] {
        let names = |it: &serde_json::Value| it.as_str().is_some_and(|it| it.starts_with(&address));
        let addresses = listening["addresses"].as_array().expect("a list");
        assert!(addresses.iter().any(names), "{listening}");
    }
}

/// Who knows an address at the card that had it before is told that it is here, before anything else is sent.
#[test]
fn addresses_are_announced_to_who_knew_another_card() {
    let Some((net, [io, _])) = direct("net_af_packet", MTU, [true, false]) else {
        return;
    };
    let found = || interface(INTERFACE).expect("it is there");
    let here = net.server.namespace.run(found).expect("a thread");
    let there = net.client.namespace.run(found).expect("a thread");
    for family in FAMILIES {
        let own = family.of(1, 1);
        let line =
            format!("neigh replace {own} lladdr 02:00:00:00:00:99 dev {INTERFACE} nud reachable");
        assert!(ip(&net.client.namespace, &line).is_some(), "{line}");
        let scratch = Scratch::new();
        let server = serve(&net.server, &scratch, family, &io, &["--once"]);
        let Some(server) = server else { return };
        let own = own.parse().expect("an address");
        let known = || neighbour(there.index, own).expect("the kernel answers");
        let deadline = Instant::now() + PATIENCE;
        while net.client.namespace.run(known).expect("a thread") != here.address {
            assert!(Instant::now() < deadline, "{own} is not announced");
            thread::sleep(Duration::from_millis(5));
        }
        client(&net.client, &scratch).end().expect(0);
        server.end().expect(0);
    }
}

/// Behind a switch that passes on what is for a group only to those who listen to it (MLD snooping), as questions for IPv6 addresses are.
#[test]
fn a_switch_that_knows_groups_passes_questions_on() {
    if !may_make_namespaces() {
        return;
    }
    let [switch, server_host, client_host] = [(); 3].map(|()| Host::new());
    let [one, two] = [&server_host, &client_host].map(|host| host.holder.id());
    let set_up = [
        "link add br0 type bridge mcast_snooping 1".to_owned(),
        "link set br0 up".to_owned(),
        format!("link add p1 type veth peer name {INTERFACE} netns {one}"),
        format!("link add p2 type veth peer name {INTERFACE} netns {two}"),
        "link set p1 master br0 up".to_owned(),
        "link set p2 master br0 up".to_owned(),
        // It begins to ask at once, for which it needs an address, and relies on what it knows 10 ms later.
        format!("addr add {LINK_LOCAL}/64 dev br0 nodad"),
        "link set br0 type bridge mcast_query_response_interval 1".to_owned(),
        "link set br0 type bridge mcast_querier 1".to_owned(),
    ];
    for line in set_up {
        if ip(&switch.namespace, &line).is_none() {
            let _: Option<()> = skip(&format!("'ip {line}' fails"));
            return;
        }
    }
    take_addresses(&server_host);
    send_singly(&client_host);
    let address = Family::V6.add(&Family::V6.of(1, 2), INTERFACE);
    for (host, line) in [
        (&client_host, address),
        (&client_host, format!("link set {INTERFACE} up")),
        (&server_host, format!("link set {INTERFACE} up")),
    ] {
        ip(&host.namespace, &line).expect("its own namespace");
    }
    let card = Card {
        driver: "net_af_packet",
        end: (1, 1),
        is_routed: false,
        mtu: MTU,
    };
    let scratch = Scratch::new();
    let server = serve(&server_host, &scratch, Family::V6, &card.io(), &["--once"]);
    let Some(server) = server else { return };
    client(&client_host, &scratch).end().expect(0);
    server.end().expect(0);
}

/// Packets are as large as the port is told, if its driver can have them: those of virtual cards, which these are, have no more than Ethernet's 1500 bytes.
#[test]
fn the_size_of_packets_is_that_of_the_port() {
    let Some((net, [server, client])) = direct("net_af_packet", 1400, [true, true]) else {
        return;
    };
    let ends = net.perf(Family::V4, (&server, &client), BYTES, &[]);
    let Some([_, client]) = ends else { return };
    let done = client.done();
    let bytes = done["wire_bytes_sent"].as_u64().expect("a number");
    let packets = done["wire_packets_sent"].as_u64().expect("a number");
    assert!((1200..1400).contains(&(bytes / packets)), "{done}");

    let card = Card {
        driver: "net_af_packet",
        end: (1, 1),
        is_routed: false,
        mtu: 9000,
    };
    let scratch = Scratch::new();
    let line = ["recv", "--json", "--ticket-file", "t", "--io", &card.io()];
    let ended = Running::start_in_namespace(&net.server.namespace, &scratch, &line)
        .end()
        .expect(8);
    assert!(
        ended.stderr.contains("max frame size"),
        "the driver says why: {}",
        ended.stderr
    );
}

#[test]
fn files_arrive_whole() {
    let Some((net, [server, client])) = direct("net_af_packet", MTU, [true, true]) else {
        return;
    };
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
        &server,
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
        &client,
    ];
    let sender = Running::start_in_namespace(&net.client.namespace, &scratch, &line);
    sender.end().expect(0);
    receiver.end().expect(0);
    scratch.assert_same("movie", "in/movie");
}

/// The client's only address changes on the way.
#[test]
fn a_session_follows_its_client_to_a_new_address() {
    let Some((net, [server, _])) = direct("net_af_packet", MTU, [true, false]) else {
        return;
    };
    let scratch = Scratch::new();
    let line = "perf server --json --once --ticket-file t --listen 10.82.1.1:0 --io";
    let line: Vec<&str> = line.split(' ').chain([server.as_str()]).collect();
    let mut server = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
    if !server.listens() {
        let _: Option<()> = refused(&server.end());
        return;
    }
    let line = "perf client --json --no-cache --ticket-file t --bytes 8MB --cc fixed:40mbit --interval-report 10ms";
    let line: Vec<&str> = line.split(' ').collect();
    let mut client = Running::start_in_namespace(&net.client.namespace, &scratch, &line);
    while client.event("progress")["bytes"].as_u64().unwrap_or(0) < 1_000_000 {}
    for change in ["addr del 10.82.1.2/24", "addr add 10.82.1.3/24"] {
        let change = format!("{change} dev {INTERFACE}");
        assert!(ip(&net.client.namespace, &change).is_some(), "{change}");
    }
    client.end().expect(0);
    assert_eq!(server.end().expect(0).done()["bytes"], 8_000_000);
}

/// However the process ends, the next one has the interface at once.
#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let Some((net, [server, client])) = direct("net_af_packet", MTU, [true, true]) else {
        return;
    };
    let scratch = Scratch::new();
    for _ in 0..2 {
        let line = "perf server --json --ticket-file t --listen 10.82.1.1:4433 --io";
        let line: Vec<&str> = line.split(' ').chain([server.as_str()]).collect();
        let mut killed = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
        if !killed.listens() {
            let _: Option<()> = refused(&killed.end());
            return;
        }
        killed.signal(Signal::KILL);
        killed.end();
    }
    let ends = net.perf(Family::V4, (&server, &client), BYTES, &[]);
    let [server, _] = ends.expect("it has listened before");
    assert_eq!(server.done()["bytes"], BYTES);
}

#[test]
fn what_cannot_be_had_is_named_with_what_helps() {
    let scratch = Scratch::new();
    let none = format!("dpdk:{ENVIRONMENT} -- 10.0.0.1/24");
    let line = ["recv", "--json", "--ticket-file", "t", "--io", &none];
    let ended = Running::start(&scratch, &line, &[]).end().expect(8);
    let error = ended.error("local_io");
    assert!(error["message"].to_string().contains("no port"), "{error}");
    assert!(error["hint"].to_string().contains("--vdev"), "{error}");
    // Fewer queues than engines.
    if let Some((net, [io, _])) = direct("net_af_packet", MTU, [true, false]) {
        let line = ["recv", "--json", "--ticket-file", "t", "--io", &io];
        let line = [&line[..], &["--shards", "2"]].concat();
        let ended = Running::start_in_namespace(&net.server.namespace, &scratch, &line);
        let ended = ended.end().expect(8);
        let error = ended.error("local_io");
        let message = error["message"].to_string();
        let expected = "net_af_packet has 1 queues each way here, fewer than 2";
        assert!(
            message.contains(expected) || message.contains("no port"),
            "{error}"
        );
    }
    // A mistake in what is for the environment, or in what is for us.
    let io = "dpdk:--nosuch -- 10.0.0.1/24";
    let line = ["recv", "--json", "--ticket-file", "t", "--io", io];
    Running::start(&scratch, &line, &[]).end().expect(8);
    for io in ["dpdk:", "dpdk:-l 0", "dpdk:-l 0 -- 10.0.0.1"] {
        let line = ["recv", "--json", "--ticket-file", "t", "--io", io];
        Running::start(&scratch, &line, &[]).end().expect(2);
    }
}
