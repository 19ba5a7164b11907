//! `sphx pep run` on machines that do more than to route: bridges, and translation of addresses. Skipped, saying why, where
//! namespaces, or the programs that set these up, are not there.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use sphinx_link::{
    LinkConfig, Loss, Rate,
    front::{LinkThread, join},
};
use sphinx_netdev::netns::Namespace;

use super::pep::{Scene, ip, tcp_count, totals, transfer, ways};
use crate::common::{PATIENCE, Running, Scratch, may_make_namespaces};

/// A namespace, with a process by which `ip` finds it.
pub(super) struct Host {
    pub(super) namespace: Namespace,
    pub(super) holder: Child,
}

impl Host {
    pub(super) fn new() -> Host {
        let namespace = Namespace::new().expect("a namespace");
        let mut holder = Command::new("sleep");
        let holder = namespace.spawn(holder.arg("1000").stdin(Stdio::null()));
        Host {
            namespace,
            holder: holder.expect("a process"),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A fixed and a mobile host in one network, between them a bridge without an address, and behind that a hop that loses packets:
/// fixed (`host`) – (`wired`) bridge (`air`) – (`left`) hop (`right`) – (`host`) mobile.
struct Bridged {
    fixed: Host,
    bridge: Host,
    mobile: Host,
    hop: Host,
    loss: f64,
    link: Option<LinkThread>,
}

/// Connects two hosts; whether `ip` can.
fn veth(from: &Host, name: &str, to: &Host, peer: &str) -> Option<String> {
    let id = to.holder.id();
    let line = format!("link add {name} type veth peer name {peer} netns {id}");
    ip(&from.namespace, &line)?;
    ip(&from.namespace, &format!("link set {name} up"))?;
    ip(&to.namespace, &format!("link set {peer} up"))
}

impl Bridged {
    fn new(loss: f64) -> Option<Bridged> {
        if !may_make_namespaces() {
            return None;
        }
        let [fixed, bridge, hop, mobile] = std::array::from_fn(|_| Host::new());
        let steps = || {
            veth(&bridge, "wired", &fixed, "host")?;
            veth(&bridge, "air", &hop, "left")?;
            veth(&hop, "right", &mobile, "host")?;
            ip(&bridge.namespace, "link add br0 type bridge")?;
            for line in [
                "link set wired master br0",
                "link set air master br0",
                "link set br0 up",
            ] {
                ip(&bridge.namespace, line)?;
            }
            for (host, number) in [(&fixed, 2), (&mobile, 3)] {
                let namespace = &host.namespace;
                ip(namespace, &format!("addr add 10.79.0.{number}/24 dev host"))?;
                ip(
                    namespace,
                    &format!("addr add fd79::{number}/64 dev host nodad"),
                )?;
            }
            Some(())
        };
        if steps().is_none() {
            sphinx_testing::skipped!("no 'ip', or it refuses to make a bridge");
            return None;
        }
        let mut scene = Bridged {
            fixed,
            bridge,
            mobile,
            hop,
            loss,
            link: None,
        };
        scene.connect();
        Some(scene)
    }

    /// Starts the emulated hop.
    fn connect(&mut self) {
        let link = |loss| LinkConfig {
            rate: Rate::Constant(100_000_000),
            delay: Duration::from_millis(2),
            loss: Loss::Bernoulli(loss),
            seed: 5,
            ..LinkConfig::default()
        };
        let links = [link(self.loss), link(0.0)];
        let start = || join(["left", "right"], links, None);
        let link = self.hop.namespace.run(start).expect("a thread");
        self.link = Some(link.expect("a link"));
    }

    /// The port to the hop is removed, and another one gets its name.
    fn renew_port(&mut self) {
        self.link = None;
        let bridge = &self.bridge.namespace;
        ip(bridge, "link del air").expect("a port");
        // For longer than until the agent looks again.
        thread::sleep(Duration::from_millis(1500));
        veth(&self.bridge, "air", &self.hop, "left").expect("another one");
        ip(bridge, "link set air master br0").expect("a bridge");
        self.connect();
    }

    fn agent(&self, scratch: &Scratch) -> Running {
        let run = "pep run --json --wireless air --attach nfqueue --lag-max 10s";
        let run: Vec<&str> = run.split(' ').collect();
        let start = || Running::start(scratch, &run, &[]);
        let mut running = self.bridge.namespace.run(start).expect("a thread");
        running.event("started");
        running
    }

    fn transfer(&self, bytes: usize, half: impl Fn()) {
        for address in ["10.79.0.2", "fd79::2"] {
            let address: IpAddr = address.parse().expect("an address");
            let (fixed, mobile) = (&self.fixed.namespace, &self.mobile.namespace);
            transfer(fixed, mobile, address, bytes, &half);
        }
    }
}

#[test]
fn what_a_bridge_forwards_is_helped() {
    if !ways().contains(&"nfqueue") {
        return;
    }
    let Some(scene) = Bridged::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    let agent = scene.agent(&scratch);
    scene.transfer(2_000_000, || ());
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    let number = |field: &str| done[field].as_u64().expect("a number");
    let hidden = number("held") + number("concealed");
    assert!(number("repaired") > 0 && hidden > 0, "{done}");
    assert_eq!(number("packets_refused"), 0, "{done}");
    // Frames go on without the agent, and without its rules.
    scene.transfer(100_000, || ());
    let agent = scene.agent(&scratch);
    scene.transfer(1_000_000, || agent.signal(Signal::KILL));
    agent.end().expect(-1);
    scene.transfer(100_000, || ());
}

/// Wireless interfaces of access points are made anew, and have other numbers then.
#[test]
fn a_port_that_is_made_anew_is_the_hop_again() {
    if !ways().contains(&"nfqueue") {
        return;
    }
    let Some(mut scene) = Bridged::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    let mut agent = scene.agent(&scratch);
    scene.transfer(1_000_000, || ());
    let show = |scene: &Bridged| {
        let start = || Running::start(&scratch, &["pep", "show", "--json"], &[]);
        let shown = scene.bridge.namespace.run(start).expect("a thread");
        shown.end().expect(0).events[0].clone()
    };
    let before = show(&scene);
    scene.renew_port();
    agent.event("restored");
    scene.transfer(1_000_000, || ());
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    for count in ["cached", "repaired", "from_mobile"] {
        let number = |of: &Value| of[count].as_u64().expect("a number");
        assert!(number(done) > number(&before), "{count}: {before} {done}");
    }
    assert_eq!(done["packets_refused"], 0, "{done}");
}

/// Runs `nft` in a namespace; whether it is there, and content.
fn nft(namespace: &Namespace, rules: &str) -> bool {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = namespace.spawn(&mut command) else {
        return false;
    };
    let written = child
        .stdin
        .take()
        .map(|mut it| it.write_all(rules.as_bytes()));
    written.is_some_and(|it| it.is_ok()) && child.wait().is_ok_and(|it| it.success())
}

/// Puts mobile hosts behind one address of the machine with the agent; says why if that cannot be.
pub(super) fn translate(scene: &Scene) -> bool {
    translate_at(scene, "wired")
}

/// Puts those who are not behind this interface behind the machine's address there. Its packet filter is strict besides: what connection tracking takes for
/// wrong goes nowhere.
fn translate_at(scene: &Scene, interface: &str) -> bool {
    let nat = |family: &str| {
        format!(
            "table {family} nat {{ chain out {{ type nat hook postrouting priority 100; oifname \"{interface}\" masquerade; }}\n}}\n"
        )
    };
    let strict = ["output", "forward", "postrouting"].map(|hook| {
        format!("chain {hook} {{ type filter hook {hook} priority 0; ct state invalid drop; }}\n")
    });
    let strict = format!("table inet strict {{ {} }}\n", strict.concat());
    let can = nft(&scene.middle, &(nat("ip") + &nat("ip6") + &strict));
    if !can {
        sphinx_testing::skipped!("no 'nft', or the kernel translates no addresses");
    }
    can
}

/// The fixed host has no way to the mobile host's own addresses.
fn cut_off(scene: &Scene) {
    for network in ["10.77.0.0/24", "fd77::/64"] {
        let line = format!("route add blackhole {network}");
        ip(&scene.fixed, &line).expect("a route");
    }
}

/// Both hosts in the scene have been helped, and by packets of their connection: of others they would know nothing.
fn are_helped(scene: &Scene, done: &Value) {
    let number = |field: &str| done[field].as_u64().expect("a number");
    let hidden = number("held") + number("concealed");
    assert!(number("repaired") > 0 && hidden > 0, "{done}");
    assert_eq!(number("packets_refused"), 0, "{done}");
    let resets: u64 = [&scene.fixed, &scene.mobile]
        .map(|host| tcp_count(host, "OutRsts"))
        .iter()
        .sum();
    // A repair may come when its connection is over.
    assert!(resets < number("repaired") / 4, "{resets} resets: {done}");
}

#[test]
fn connections_whose_addresses_are_translated_are_helped() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    if !ways().contains(&"nfqueue") || !translate(&scene) {
        return;
    }
    cut_off(&scene);
    let scratch = Scratch::new();
    for more in [&["--attach", "nfqueue"][..], &[]] {
        let agent = scene.agent(&scratch, more);
        for address in scene.addresses() {
            scene.transfer(address, 2_000_000, || ());
        }
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        are_helped(&scene, totals(&ended));
    }
    // Packets that are led to devices would keep their addresses, also where nothing is changed.
    let base = ["pep", "run", "--json", "--wireless", "left"];
    for more in [&["--attach", "tun"][..], &["--attach", "tun", "--dry-run"]] {
        let ended = scene.refused(&scratch, &[&base[..], more].concat());
        let error = ended.error("local_io");
        let message = error["message"].to_string();
        assert!(message.contains("NAT"), "{message}");
        let hint = error["hint"].to_string();
        assert!(hint.contains("nfqueue"), "{hint}");
        assert!(!scene.rules().contains("7749"), "{}", scene.rules());
    }
}

/// The uplink of a home: what is behind the machine has its address there.
#[test]
fn connections_that_are_translated_at_the_hop_are_helped() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    if !ways().contains(&"nfqueue") || !translate_at(&scene, "left") {
        return;
    }
    for network in ["10.78.0.0/24", "fd78::/64"] {
        let line = format!("route add blackhole {network}");
        ip(&scene.mobile, &line).expect("a route");
    }
    let scratch = Scratch::new();
    let addresses = ["10.77.0.2", "fd77::2"].map(|text| text.parse().expect("an address"));
    // From the start, also where packets wait here and all of them are sent anew.
    for more in [
        &[][..],
        &["--radio-rate", "80mbit", "--radio-queue", "64MiB"],
    ] {
        let agent = scene.agent(&scratch, more);
        for address in addresses {
            transfer(&scene.mobile, &scene.fixed, address, 2_000_000, || ());
        }
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        are_helped(&scene, totals(&ended));
    }
    // Downloads of hosts behind the router are helped.
    let agent = scene.agent(&scratch, &["--preset", "lte-router"]);
    for address in addresses {
        let listen = || TcpListener::bind((address, 0)).expect("a port");
        let listener = scene.mobile.run(listen).expect("a thread");
        let target = listener.local_addr().expect("an address");
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        let mut client = scene.fixed.run(connect).expect("a thread");
        client.set_read_timeout(Some(PATIENCE)).expect("a time");
        let (mut server, _) = listener.accept().expect("a client");
        let sending = thread::spawn(move || server.write_all(&[7; 2_000_000]));
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("all of it");
        sending.join().expect("a thread").expect("a reader");
        assert_eq!(received.len(), 2_000_000);
    }
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    let dropped = done["acks_dropped"].as_object().expect("reasons");
    let dropped: u64 = dropped.values().filter_map(Value::as_u64).sum();
    assert!(dropped > 0, "{done}");
    assert_eq!(done["packets_refused"], 0, "{done}");
}

/// A port of the machine that leads to a host behind a hop that is busy.
#[test]
fn connections_that_are_forwarded_open_where_packets_wait() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    let addresses = [
        ("ip", "10.78.0.1", "10.77.0.2"),
        ("ip6", "fd78::1", "fd77::2"),
    ];
    let listen = |address: &str| {
        let listen = || TcpListener::bind((address, 0)).expect("a port");
        scene.mobile.run(listen).expect("a thread")
    };
    let connect = |target: (&str, u16)| {
        let target = (target.0.parse::<IpAddr>().expect("an address"), target.1).into();
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        scene.fixed.run(connect).expect("a thread")
    };
    let listeners = addresses.map(|it| listen(it.2));
    let ports = listeners
        .each_ref()
        .map(|it| it.local_addr().expect("an address").port());
    let rules: String = addresses
        .iter()
        .zip(ports)
        .map(|((family, _, inner), port)| {
            format!(
                "table {family} nat {{ chain in {{ type nat hook prerouting priority -100; \
                 iifname \"wired\" tcp dport {port} dnat to {inner}; }}\n}}\n"
            )
        })
        .collect();
    if !nft(&scene.middle, &rules) {
        return sphinx_testing::skipped!("no 'nft', or the kernel translates no addresses");
    }
    let scratch = Scratch::new();
    let more = ["--attach", "nfqueue", "--radio-rate", "4mbit"];
    let agent = scene.agent(&scratch, &more);
    let busy = listen("10.77.0.2");
    let mut sender = connect(("10.77.0.2", busy.local_addr().expect("an address").port()));
    let (mut receiver, _) = busy.accept().expect("a client");
    thread::scope(|scope| {
        // Writes until the receiver has gone.
        scope.spawn(move || while sender.write_all(&[7; 10_000]).is_ok() {});
        // The first flight has arrived, and what is behind it waits.
        receiver
            .read_exact(&mut [0; 200_000])
            .expect("the beginning");
        for (((_, outer, _), port), listener) in addresses.iter().zip(ports).zip(&listeners) {
            let mut client = connect((outer, port));
            client.write_all(b"ask").expect("a reader");
            let (mut server, _) = listener.accept().expect("a client");
            let mut asked = [0; 3];
            server.set_read_timeout(Some(PATIENCE)).expect("a time");
            server.read_exact(&mut asked).expect("a question");
            assert_eq!(&asked, b"ask");
        }
        drop(receiver);
    });
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    assert!(done["queued_ns"].as_u64().expect("a number") > 0, "{done}");
}

/// The agent comes first, and the packet filter's rules afterwards.
#[test]
fn an_agent_makes_way_for_addresses_that_are_translated_later() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    let scratch = Scratch::new();
    let mut agent = scene.agent(&scratch, &[]);
    assert!(scene.rules().contains("7749"), "{}", scene.rules());
    if !translate(&scene) {
        return;
    }
    cut_off(&scene);
    agent.event("worker_ended");
    assert_eq!(agent.event("started")["attach"], "nfqueue");
    assert!(!scene.rules().contains("7749"), "{}", scene.rules());
    for address in scene.addresses() {
        scene.transfer(address, 200_000, || ());
    }
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

/// A firewall that lets connections pass by the names of the interfaces that they come from and go to.
#[test]
fn where_a_packet_filter_knows_interfaces_connections_pass() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    let zones = "\
        table inet zones { chain forward { type filter hook forward priority 0; policy drop; \
        meta l4proto != tcp accept; ct state established,related accept; iifname \"left\" oifname \"wired\" accept; }\n}\n";
    if !nft(&scene.middle, zones) {
        sphinx_testing::skipped!("no 'nft', or the kernel tracks no connections");
        return;
    }
    let scratch = Scratch::new();
    for more in [&["--dry-run"][..], &[]] {
        let agent = scene.agent(&scratch, more);
        for address in scene.addresses() {
            scene.transfer(address, 200_000, || ());
        }
        agent.signal(Signal::INT);
        agent.end().expect(130);
    }
    // Who wants devices all the same is told.
    let agent = scene.agent(&scratch, &["--attach", "tun"]);
    agent.says("pep-fixed and pep-mobile");
    let doctor = ["pep", "doctor", "--json", "--wireless", "left"];
    let start = || Running::start(&scratch, &doctor, &[]);
    let found = scene.middle.run(start).expect("a thread").end().expect(0);
    let mut found = found.events.iter();
    assert!(found.any(|it| it["name"] == "firewall"));
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

#[test]
fn what_is_routed_does_not_come_by_the_port_of_a_bridge() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    for line in [
        "link add br0 type bridge",
        "link add air type veth peer name beyond",
        "link set air master br0",
        "link set air up",
        "link set br0 up",
    ] {
        if ip(&scene.middle, line).is_none() {
            return sphinx_testing::skipped!("no 'ip', or it refuses: {line}");
        }
    }
    let scratch = Scratch::new();
    let base = ["pep", "run", "--json", "--wireless"];
    for more in [&["air"][..], &["left", "--wired", "air"]] {
        let arguments = [&base[..], more, &["--attach", "tun"]].concat();
        let ended = scene.refused(&scratch, &arguments);
        let message = ended.error("local_io")["message"].to_string();
        assert!(message.contains("air is a port of a bridge"), "{message}");
    }
    // Those that are meant by themselves are the others.
    let agent = scene.agent(&scratch, &["--attach", "tun"]);
    assert!(!scene.rules().contains("iif air"), "{}", scene.rules());
    assert!(scene.rules().contains("iif br0"), "{}", scene.rules());
    agent.signal(Signal::INT);
    agent.end().expect(130);
    let doctor = ["pep", "doctor", "--json", "--wireless", "air"];
    let start = || Running::start(&scratch, &doctor, &[]);
    let found = scene.middle.run(start).expect("a thread").end().expect(0);
    let mut found = found.events.iter();
    assert!(found.any(|it| it["name"] == "bridge"));
}
