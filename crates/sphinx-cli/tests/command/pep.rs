//! `sphx pep`: over captures, and in the traffic of kernels that know nothing of it. The latter is
//! skipped, saying why, where namespaces are not allowed.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{slice, thread};

use crate::common::{
    Ended, PATIENCE, Running, Scratch, command, may_make_namespaces, until, worker_of,
};
use etherparse::{PacketBuilder, TcpOptionElement};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use rustix::net::sockopt::{set_socket_linger, set_tcp_congestion};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use sphinx_link::front::{Front, FrontConfig};
use sphinx_link::{LinkConfig, Loss, Rate};
use sphinx_netdev::netns::Namespace;
use sphinx_netdev::nfqueue::{Rules, Selection};
use sphinx_testing::uninterrupted;

const FIXED: [u8; 4] = [192, 0, 2, 1];
const MOBILE: [u8; 4] = [10, 0, 0, 9];
const ETHERNET: [u8; 14] = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0];

/// One packet of a capture: milliseconds, whether it comes from the mobile host, sequence and
/// acknowledgement relative to the first, payload, SACK block, SYN.
type Line = (u64, bool, u32, u32, usize, Option<(u32, u32)>, bool);

/// A short connection whose second data segment the hop loses.
const LINES: [Line; 9] = [
    (0, true, 0, 0, 0, None, true),
    (20, false, 0, 1, 0, None, true),
    (24, true, 1, 1, 0, None, false),
    (44, false, 1, 1, 1000, None, false),
    (45, false, 1001, 1, 1000, None, false),
    (46, false, 2001, 1, 1000, None, false),
    (48, true, 1, 1001, 0, None, false),
    (50, true, 1, 1001, 0, Some((2001, 3001)), false),
    (54, true, 1, 3001, 0, None, false),
];

fn packet(line: Line, base: u32) -> Vec<u8> {
    let (_, from_mobile, sequence, ack, payload, sack, syn) = line;
    let (from, to, ports) = match from_mobile {
        true => (MOBILE, FIXED, (40_000, 443)),
        false => (FIXED, MOBILE, (443, 40_000)),
    };
    let sequence = base.wrapping_add(sequence);
    let mut builder = PacketBuilder::ipv4(from, to, 64).tcp(ports.0, ports.1, sequence, 1000);
    if !(syn && from_mobile) {
        builder = builder.ack(base.wrapping_add(ack));
    }
    let mut options = Vec::new();
    if syn {
        builder = builder.syn();
        options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
    }
    if let Some((left, right)) = sack {
        let block = (base.wrapping_add(left), base.wrapping_add(right));
        options.push(TcpOptionElement::SelectiveAcknowledgement(block, [None; 3]));
    }
    let builder = builder.options(&options).expect("room for options");
    let mut bytes = Vec::new();
    builder
        .write(&mut bytes, &vec![7; payload])
        .expect("a packet");
    bytes
}

fn capture(scratch: &Scratch, name: &str, datalink: DataLink, base: u32) -> Vec<Vec<u8>> {
    let header = PcapHeader {
        datalink,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let file = File::create(scratch.path(name)).expect("a writable directory");
    let mut writer = PcapWriter::with_header(file, header).expect("a header");
    let mut frames = Vec::new();
    for line in LINES {
        let mut frame = match datalink {
            DataLink::ETHERNET => ETHERNET.to_vec(),
            _ => Vec::new(),
        };
        frame.extend(packet(line, base));
        let captured = PcapPacket {
            timestamp: Duration::from_millis(1_700_000_000_000 + line.0),
            orig_len: frame.len() as u32,
            data: Cow::Borrowed(&frame),
        };
        writer.write_packet(&captured).expect("a packet");
        frames.push(frame);
    }
    frames
}

fn read(scratch: &Scratch, name: &str) -> Vec<(Duration, Vec<u8>)> {
    let mut reader = PcapReader::new(File::open(scratch.path(name)).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        packets.push((packet.timestamp, packet.data.into_owned()));
    }
    packets
}

fn replay(scratch: &Scratch, more: &[&str]) -> Ended {
    let base = ["pep", "replay", "--json", "--mobile", "10.0.0.0/8"];
    Running::start(scratch, &[&base[..], more].concat(), &[]).end()
}

#[test]
fn a_replay_repairs_and_conceals_what_the_hop_lost() {
    let scratch = Scratch::new();
    for (datalink, base) in [(DataLink::RAW, 5000), (DataLink::ETHERNET, u32::MAX - 1500)] {
        let frames = capture(&scratch, "in.pcap", datalink, base);
        let ended = replay(&scratch, &["in.pcap", "out.pcap"]).expect(0);
        let done = ended.done();
        assert_eq!(
            (&done["repaired"], &done["held"]),
            (&1.into(), &1.into()),
            "{done}"
        );
        let out = read(&scratch, "out.pcap");
        let packets: Vec<&Vec<u8>> = out.iter().map(|(_, packet)| packet).collect();
        // The duplicate acknowledgement is gone, and the second segment is there in its place.
        let mut expected: Vec<&Vec<u8>> = frames.iter().collect();
        expected[7] = &frames[4];
        assert!(packets == expected, "{datalink:?}");
        let offset = out[7].0 - out[0].0;
        assert_eq!(offset, Duration::from_millis(50));
        let flow = ended.events.iter().find(|event| event["event"] == "flow");
        let flow = flow.expect("a flow");
        assert_eq!(flow["mobile"], "10.0.0.9:40000");
        assert_eq!(flow["repaired"], 1);
        // The same replay gives the same file.
        replay(&scratch, &["in.pcap", "again.pcap"]).expect(0);
        assert_eq!(out, read(&scratch, "again.pcap"));
        // A dry run counts, and copies.
        let ended = replay(&scratch, &["--dry-run", "in.pcap", "dry.pcap"]).expect(0);
        assert_eq!(ended.done()["repaired"], 1);
        let dry: Vec<Vec<u8>> = read(&scratch, "dry.pcap")
            .into_iter()
            .map(|it| it.1)
            .collect();
        assert!(dry == frames);
    }
    // Other profiles: repaired and told; told once before it is repaired.
    for (agent, held) in [("snoop:profile=ll", 0), ("snoop:profile=classic", 0)] {
        let ended = replay(&scratch, &["--agent", agent, "in.pcap", "out.pcap"]).expect(0);
        assert_eq!(ended.done()["held"], held);
    }
}

#[test]
fn captures_that_cannot_be_read_are_named() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("kept")).unwrap();
    capture(&scratch, "wifi.pcap", DataLink::IEEE802_11, 1);
    fs::write(
        scratch.path("text.pcap"),
        "this is no capture at all, not in the least\n",
    )
    .unwrap();
    capture(&scratch, "cut.pcap", DataLink::RAW, 1);
    let bytes = fs::read(scratch.path("cut.pcap")).unwrap();
    fs::write(scratch.path("cut.pcap"), &bytes[..bytes.len() - 5]).unwrap();
    for name in ["wifi.pcap", "text.pcap", "cut.pcap", "nowhere.pcap"] {
        let ended = replay(&scratch, &[name, "out.pcap"]).expect(8);
        let message = ended.error("local_io")["message"].to_string();
        assert!(message.contains(name), "{message}");
        assert!(!scratch.path("out.pcap").exists(), "{name}");
        // What was there before is there still, and nothing besides.
        fs::write(scratch.path("kept/out.pcap"), "of yesterday").unwrap();
        replay(&scratch, &[name, "kept/out.pcap"]).expect(8);
        let kept = fs::read_to_string(scratch.path("kept/out.pcap")).unwrap();
        assert_eq!(kept, "of yesterday", "{name}");
        assert_eq!(fs::read_dir(scratch.path("kept")).unwrap().count(), 1);
    }
    capture(&scratch, "in.pcap", DataLink::RAW, 1);
    let ended = replay(&scratch, &["in.pcap", "./in.pcap"]).expect(2);
    ended.error("usage");
    assert_eq!(read(&scratch, "in.pcap").len(), LINES.len());
}

#[test]
fn a_replay_goes_to_what_is_no_file_as_well() {
    let scratch = Scratch::new();
    capture(&scratch, "in.pcap", DataLink::RAW, 1);
    let line = |output| {
        let base = ["pep", "replay", "--quiet", "--mobile", "10.0.0.0/8"];
        command(
            &scratch.path("."),
            &[&base[..], &["in.pcap", output]].concat(),
        )
    };
    // A file that was there is replaced, and who may read it still may.
    fs::write(scratch.path("out.pcap"), "of yesterday").unwrap();
    let mode = fs::Permissions::from_mode(0o604);
    fs::set_permissions(scratch.path("out.pcap"), mode.clone()).unwrap();
    assert!(line("out.pcap").status().expect("it starts").success());
    assert_eq!(read(&scratch, "out.pcap").len(), LINES.len());
    let after = fs::metadata(scratch.path("out.pcap")).unwrap();
    assert_eq!(after.permissions().mode() & 0o777, mode.mode());
    let expected = fs::read(scratch.path("out.pcap")).unwrap();
    let piped = line("/dev/stdout").output().expect("it starts");
    assert!(piped.status.success() && piped.stdout == expected);
    // Whoever has given its standard output a file reads that.
    let mut file = File::create_new(scratch.path("stdout")).unwrap();
    fs::remove_file(scratch.path("stdout")).unwrap();
    let mut to_file = line("/dev/stdout");
    to_file.stdout(file.try_clone().unwrap());
    assert!(to_file.status().expect("it starts").success());
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == expected);
    assert!(line("/dev/null").status().expect("it starts").success());
}

/// A server in a network behind a machine that routes to a client over a lossy hop.
pub(super) struct Scene {
    pub(super) fixed: Namespace,
    pub(super) middle: Namespace,
    pub(super) mobile: Namespace,
    holder: Child,
    _hop: Front,
}

impl Scene {
    /// Says why if there can be none.
    pub(super) fn new(loss: f64) -> Option<Scene> {
        Scene::with([loss, 0.0])
    }

    /// Losses are those towards the mobile host, and from it.
    fn with(losses: [f64; 2]) -> Option<Scene> {
        if !may_make_namespaces() {
            return None;
        }
        let link = LinkConfig {
            rate: Rate::Constant(100_000_000),
            delay: Duration::from_millis(2),
            seed: 5,
            ..LinkConfig::default()
        };
        let front = FrontConfig {
            left_to_right: LinkConfig {
                loss: Loss::Bernoulli(losses[0]),
                ..link.clone()
            },
            right_to_left: LinkConfig {
                loss: Loss::Bernoulli(losses[1]),
                ..link
            },
            ..FrontConfig::default()
        };
        let hop = Front::start(front).expect("a link");
        let fixed = Namespace::new().expect("a namespace");
        let mut holder = Command::new("sleep");
        let holder = fixed.spawn(holder.arg("1000").stdin(Stdio::null()));
        let scene = Scene {
            fixed,
            middle: hop.left().run(Namespace::current).unwrap().unwrap(),
            mobile: hop.right().run(Namespace::current).unwrap().unwrap(),
            holder: holder.expect("a process"),
            _hop: hop,
        };
        let (middle, mobile) = (&scene.middle, &scene.mobile);
        for forwarding in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            middle.sysctl(forwarding, "1").expect("forwarding");
        }
        let holder = scene.holder.id();
        let steps = [
            (
                middle,
                "link add name wired type veth peer name uplink".to_owned(),
            ),
            (middle, format!("link set uplink netns {holder}")),
            (middle, "addr add 10.78.0.1/24 dev wired".to_owned()),
            (middle, "addr add fd78::1/64 dev wired nodad".to_owned()),
            (middle, "link set wired up".to_owned()),
            (&scene.fixed, "addr add 10.78.0.2/24 dev uplink".to_owned()),
            (
                &scene.fixed,
                "addr add fd78::2/64 dev uplink nodad".to_owned(),
            ),
            (&scene.fixed, "link set uplink up".to_owned()),
            (&scene.fixed, "route add default via 10.78.0.1".to_owned()),
            (&scene.fixed, "route add default via fd78::1".to_owned()),
            (mobile, "route add default via 10.77.0.1".to_owned()),
            (mobile, "route add default via fd77::1".to_owned()),
        ];
        for (namespace, words) in steps {
            if ip(namespace, &words).is_none() {
                sphinx_testing::skipped!("no 'ip', or it refuses: {words}");
                return None;
            }
        }
        Some(scene)
    }

    /// Starts the agent in the middle, and waits until it serves.
    pub(super) fn agent(&self, scratch: &Scratch, more: &[&str]) -> Running {
        self.agent_and_worker(scratch, more).0
    }

    /// As [`Scene::agent`], with the process id of its worker.
    fn agent_and_worker(&self, scratch: &Scratch, more: &[&str]) -> (Running, Pid) {
        // How late the agent is on a machine that does other things is not what is tested.
        let base = ["pep", "run", "--json", "--wireless", "left"];
        let punctual = match more.contains(&"--lag-max") {
            true => &[][..],
            false => &["--lag-max", "10s"],
        };
        let arguments = [&base[..], punctual, more].concat();
        let start = || Running::start(scratch, &arguments, &[]);
        let mut running = self.middle.run(start).expect("a thread");
        let worker = worker_of(&running.event("started"));
        (running, worker)
    }

    /// Starts a command in the middle that cannot do what it shall.
    pub(super) fn refused(&self, scratch: &Scratch, arguments: &[&str]) -> Ended {
        let start = || Running::start(scratch, arguments, &[]);
        self.middle.run(start).expect("a thread").end().expect(8)
    }

    /// See [`transfer`], from the host behind the machine in the middle.
    pub(super) fn transfer(&self, address: IpAddr, bytes: usize, half: impl FnOnce()) {
        transfer(&self.fixed, &self.mobile, address, bytes, half);
    }

    /// So many bytes from the mobile host to the other one.
    pub(super) fn upload(&self, address: IpAddr, bytes: usize) {
        let listen = || TcpListener::bind((address, 0)).expect("a port");
        let listener = self.fixed.run(listen).expect("a thread");
        let target = listener.local_addr().expect("an address");
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        let mut client = self.mobile.run(connect).expect("a thread");
        let (mut server, _) = listener.accept().expect("a client");
        server.set_read_timeout(Some(PATIENCE)).expect("a time");
        let contents: Vec<u8> = (0..bytes).map(|n| (n ^ (n >> 9)) as u8).collect();
        thread::scope(|scope| {
            let contents = &contents;
            scope.spawn(move || {
                client.write_all(contents).expect("a reader");
                // The stream is dropped here, which closes the connection.
            });
            let mut received = Vec::new();
            server.read_to_end(&mut received).expect("all of it");
            assert!(received == *contents);
        });
    }

    pub(super) fn rules(&self) -> String {
        ["rule", "-6 rule"]
            .map(|words| ip(&self.middle, words).expect("rules"))
            .concat()
    }

    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        ["10.78.0.2", "fd78::2"].map(|text| text.parse().expect("an address"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Moves so many bytes from an address of the fixed host to the mobile one, and as many back at the same
/// time; calls `half` when half of them have arrived. The client does not read until that returns, so that of
/// many bytes most of the rest comes later.
pub(super) fn transfer(
    fixed: &Namespace,
    mobile: &Namespace,
    address: IpAddr,
    bytes: usize,
    half: impl FnOnce(),
) {
    let contents: Vec<u8> = (0..bytes)
        .map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8)
        .collect();
    let listen = || TcpListener::bind((address, 0)).expect("a port");
    let listener = fixed.run(listen).expect("a thread");
    let target = listener.local_addr().expect("an address");
    thread::scope(|scope| {
        let contents = &contents;
        scope.spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            exchange(stream, contents, || ());
        });
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        let stream = mobile.run(connect).expect("a thread");
        exchange(stream, contents, half);
    });
}

/// Sends everything and receives the same.
fn exchange(mut stream: TcpStream, contents: &[u8], half: impl FnOnce()) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut sending = stream.try_clone().expect("a descriptor");
    // Nobody may close before `half` has come to its end: a repair that comes then is answered by a reset.
    let (is_over, waits) = mpsc::channel::<()>();
    let (last, most) = contents.split_last().expect("something to send");
    thread::scope(|scope| {
        scope.spawn(move || {
            sending.write_all(most).expect("a reader");
            let _ = waits.recv();
            sending.write_all(slice::from_ref(last)).expect("a reader");
            sending
                .shutdown(std::net::Shutdown::Write)
                .expect("an open connection");
        });
        let mut received = vec![0; contents.len() / 2];
        stream.read_exact(&mut received).expect("the first half");
        half();
        drop(is_over);
        stream.read_to_end(&mut received).expect("the rest");
        assert!(received == contents);
    });
}

/// What `ip` says in a namespace, or `None` if it fails or is not there.
pub(super) fn ip(namespace: &Namespace, words: &str) -> Option<String> {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = namespace
        .spawn(&mut command)
        .ok()?
        .wait_with_output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// The ways to attach an agent that this machine has, with the path to it.
pub(super) fn ways() -> Vec<&'static str> {
    let queue = || Rules::install("sphx-test", &Selection::Interface("lo".to_owned()), 77, 1);
    let queue = Namespace::new().and_then(|namespace| namespace.run(queue));
    match queue.and_then(|rules| rules) {
        Ok(_) => vec!["tun", "nfqueue"],
        Err(error) => {
            sphinx_testing::skipped!("for nfqueue: {error}");
            vec!["tun"]
        }
    }
}

/// The totals in the last event but that of the end.
pub(super) fn totals(ended: &Ended) -> &Value {
    let done = ended.events.iter().find(|event| event["event"] == "done");
    done.expect("totals")
}

#[test]
fn kernels_are_helped_and_everything_is_removed_afterwards() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        let agent = scene.agent(&scratch, &["--attach", way]);
        assert_eq!(scene.rules().contains("7749"), way == "tun");
        for address in scene.addresses() {
            scene.transfer(address, 2_000_000, || ());
        }
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        let done = totals(&ended);
        let number = |field: &str| done[field].as_u64().expect("a number");
        let hidden = number("held") + number("concealed");
        assert!(number("repaired") > 0 && hidden > 0, "{way}: {done}");
        // What comes behind a reset counts as a flow of its own.
        assert!(
            number("flows") >= 2 && number("packets_refused") == 0,
            "{way}: {done}"
        );
        // The kernel of the sender joins segments up to 64 KB, and leaves checksums to others.
        for whole in ["joined", "checksum"] {
            assert!(done["bypassed"][whole].is_null(), "{way}: {done}");
        }
        let flows = ended.events.iter().filter(|event| event["event"] == "flow");
        let fixed: Vec<SocketAddr> = flows
            .map(|flow| flow["fixed"].as_str().unwrap().parse().unwrap())
            .collect();
        assert!(
            scene
                .addresses()
                .iter()
                .all(|address| fixed.iter().any(|it| it.ip() == *address))
        );
        assert!(!scene.rules().contains("7749"), "{}", scene.rules());
        // Without the agent, packets take their direct way again.
        scene.transfer(scene.addresses()[0], 100_000, || ());
    }
}

#[test]
fn the_machine_beside_the_hop_helps_its_own_connections() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    if ways().contains(&"nfqueue") {
        let agent = scene.agent(&scratch, &["--attach", "nfqueue"]);
        for address in ["10.77.0.1", "fd77::1"] {
            let address = address.parse().expect("an address");
            transfer(&scene.middle, &scene.mobile, address, 2_000_000, || ());
        }
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        let done = totals(&ended);
        let number = |field: &str| done[field].as_u64().expect("a number");
        let hidden = number("held") + number("concealed");
        assert!(number("repaired") > 0 && hidden > 0, "{done}");
        assert_eq!(number("packets_refused"), 0, "{done}");
        // An end host forwards nothing: that is how it is found by itself.
        let start = || {
            let arguments = ["pep", "run", "--json", "--wireless", "uplink"];
            Running::start(&scratch, &arguments, &[])
        };
        let mut agent = scene.fixed.run(start).expect("a thread");
        assert_eq!(agent.event("started")["attach"], "nfqueue");
        scene.transfer(scene.addresses()[1], 200_000, || ());
        agent.signal(Signal::INT);
        agent.end().expect(130);
    }
}

/// What a namespace has counted of TCP (`/proc/net/snmp`).
pub(super) fn tcp_count(namespace: &Namespace, name: &str) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let text = namespace.run(read).expect("a thread");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next(), lines.next());
    let both = names
        .expect("names")
        .split(' ')
        .zip(values.expect("values").split(' '));
    let value = both.into_iter().find(|it| it.0 == name);
    value.expect("such a counter").1.parse().expect("a number")
}

/// Each interface has addresses of the same network, and the machine another interface besides.
#[test]
fn link_local_connections_of_the_machine_beside_the_hop_go_over_it() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    for (namespace, words) in [
        (&scene.middle, "addr add fe80::77:1/64 dev left nodad"),
        (&scene.mobile, "addr add fe80::77:2/64 dev right nodad"),
    ] {
        ip(namespace, words).expect("an address");
    }
    let scratch = Scratch::new();
    // All of it waits in the agent's queue, and is sent from there.
    let more = ["--attach", "nfqueue", "--radio-rate", "20mbit"];
    let agent = scene.agent(&scratch, &more);
    const BYTES: usize = 200_000;
    let index = ip(&scene.mobile, "link show dev right").expect("an interface");
    let index = index.split(':').next().and_then(|it| it.parse().ok());
    let scope = index.expect("a number");
    let listen = || TcpListener::bind("[::]:0").expect("a port");
    let listener = scene.middle.run(listen).expect("a thread");
    let port = listener.local_addr().expect("an address").port();
    let address = "fe80::77:1".parse().expect("an address");
    let target = SocketAddr::V6(SocketAddrV6::new(address, port, 0, scope));
    let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
    let mut client = scene.mobile.run(connect).expect("a thread");
    let (mut server, _) = listener.accept().expect("a client");
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    let sending = thread::spawn(move || {
        server.write_all(&[7; BYTES]).expect("a reader");
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).expect("all of it");
    sending.join().expect("a thread");
    assert_eq!(received.len(), BYTES);
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    assert!(done["queued_ns"].as_u64() > Some(0), "{done}");
    // By another interface nothing arrives, and each segment that has waited comes once more.
    let again = tcp_count(&scene.middle, "RetransSegs");
    assert!(again < 10, "{again} segments were sent again");
}

#[test]
fn uploads_are_helped_by_agents_on_both_sides_of_the_hop() {
    let Some(scene) = Scene::with([0.0, 0.02]) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    let scratch = Scratch::new();
    let new_key = || Running::start(&scratch, &["pep", "key", "new", "eln.key"], &[]).end();
    new_key().expect(0);
    let mode = fs::metadata(scratch.path("eln.key"))
        .expect("a file")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    // A key file that exists is not replaced.
    let text = fs::read_to_string(scratch.path("eln.key")).expect("a file");
    new_key().expect(8);
    assert_eq!(
        fs::read_to_string(scratch.path("eln.key")).expect("a file"),
        text
    );
    let base = scene.agent(
        &scratch,
        &["--attach", "tun", "--eln", "base", "--eln-key", "eln.key"],
    );
    let start = || {
        let run = [
            "pep",
            "run",
            "--json",
            "--wireless",
            "right",
            "--lag-max",
            "10s",
        ];
        let eln = ["--eln", "mobile", "--eln-key", "eln.key"];
        Running::start(&scratch, &[&run[..], &eln].concat(), &[])
    };
    let mut own = scene.mobile.run(start).expect("a thread");
    assert_eq!(own.event("started")["attach"], "nfqueue");
    for address in scene.addresses() {
        scene.transfer(address, 2_000_000, || ());
    }
    own.signal(Signal::INT);
    let own = own.end().expect(130);
    base.signal(Signal::INT);
    let base = base.end().expect(130);
    let (own, base) = (totals(&own), totals(&base));
    let number = |of: &Value, field: &str| of[field].as_u64().expect("a number");
    let hidden = number(own, "held") + number(own, "concealed");
    assert!(number(own, "repaired") > 0 && hidden > 0, "{own}");
    assert!(number(base, "attributed") > 0, "{base}");
    for done in [own, base] {
        assert_eq!(number(done, "packets_refused"), 0, "{done}");
        assert_eq!(number(done, "reports_refused"), 0, "{done}");
    }
}

/// So many bytes from the fixed host to the mobile one, over a connection that is made before or after `between`.
fn download(scene: &Scene, address: IpAddr, bytes: usize, is_old: bool, between: impl FnOnce()) {
    let contents: Vec<u8> = (0..bytes).map(|n| (n ^ (n >> 9)) as u8).collect();
    let listen = || TcpListener::bind((address, 0)).expect("a port");
    let listener = scene.fixed.run(listen).expect("a thread");
    let target = listener.local_addr().expect("an address");
    let connect = || {
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        scene.mobile.run(connect).expect("a thread")
    };
    let old = is_old.then(connect);
    between();
    let mut client = old.unwrap_or_else(connect);
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    let (mut server, _) = listener.accept().expect("a client");
    thread::scope(|scope| {
        scope.spawn(|| {
            server.write_all(&contents).expect("a reader");
            server
                .shutdown(std::net::Shutdown::Write)
                .expect("an open connection");
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("all of it");
        assert!(received == contents);
    });
}

#[test]
fn what_the_kernel_has_joined_passes_whole_or_in_segments() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    const BYTES: usize = 8_000_000;
    for address in scene.addresses() {
        for is_old in [true, false] {
            let mut agent = None;
            download(&scene, address, BYTES, is_old, || {
                agent = Some(scene.agent(&scratch, &["--attach", "tun"]));
            });
            let agent = agent.expect("an agent");
            agent.signal(Signal::INT);
            let ended = agent.end().expect(130);
            let done = totals(&ended);
            let number = |field: &str| done[field].as_u64().expect("a number") as usize;
            assert_eq!(number("packets_refused"), 0, "{done}");
            assert!(done["bypassed"].get("joined").is_none(), "{done}");
            // With timestamps, a segment of an MTU of 1500 has up to 1448 bytes.
            let segments = BYTES / 1448;
            match is_old {
                // A connection that began before the agent is left alone, whole.
                true => assert!(number("from_fixed") < segments / 2, "{done}"),
                // The other one is cached segment by segment.
                false => assert!(number("cached") >= segments, "{done}"),
            }
        }
    }
}

#[test]
fn a_flow_goes_to_the_agent_of_another_hop() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    printed(&scratch, &["pep", "key", "new", "handoff.key"]);
    let key = ["--handoff-key", "handoff.key"];
    let first = scene.agent(&scratch, &[&["--attach", "tun"][..], &key].concat());
    // The next agent starts while no packet passes it.
    let start = || {
        let run = ["pep", "run", "--json", "--wireless", "uplink"];
        let more = ["--attach", "tun", "--lag-max", "10s"];
        Running::start(&scratch, &[&run[..], &more, &key].concat(), &[])
    };
    let mut next = scene.fixed.run(start).expect("a thread");
    next.event("started");
    let inside = |namespace: &Namespace, words: &[&str]| {
        let start = || Running::start(&scratch, words, &[]);
        namespace.run(start).expect("a thread").end()
    };
    let known = || {
        let ended = inside(&scene.fixed, &["pep", "show", "--json", "--flows"]).expect(0);
        ended.events[0].clone()
    };
    for (address, mobile, peer) in [
        ("10.78.0.2", "10.77.0.2", "10.78.0.2:7750"),
        ("fd78::2", "fd77::2", "[fd78::2]:7750"),
    ] {
        let before = known()["flows_taken_over"].as_u64().expect("a number");
        let address = address.parse().expect("an address");
        scene.transfer(address, 2_000_000, || {
            let words = ["pep", "handoff", "--json", mobile, "--to", peer];
            let ended = inside(&scene.middle, &words).expect(0);
            assert_eq!(ended.events[0]["flows"], 1, "{:?}", ended.events);
            // The hand-over goes to the other agent over the network.
            let told = |_: &i32| known()["flows_taken_over"] == before + 1;
            let tries = (0..100).find(|n| {
                thread::sleep(Duration::from_millis(50 * u64::from(*n > 0)));
                told(n)
            });
            assert!(tries.is_some(), "{}", known());
            let flow = known()["newest_flows"][0].clone();
            let end: SocketAddr = flow["mobile"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("an address");
            assert_eq!(end.ip().to_string(), mobile, "{flow}");
            assert!(flow["bypass"].is_null(), "{flow}");
        });
    }
    let words = ["pep", "handoff", "--json", "10.77.0.2", "--arrived"];
    let ended = inside(&scene.fixed, &words).expect(0);
    assert_eq!(ended.events[0]["flows"], 0);
    for agent in [first, next] {
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        assert_eq!(totals(&ended)["handovers_refused"], 0);
    }
    // An agent without a key tells no other agent.
    let agent = scene.agent(&scratch, &["--attach", "tun"]);
    let words = [
        "pep",
        "handoff",
        "--json",
        "10.77.0.2",
        "--to",
        "10.78.0.2:7750",
    ];
    let refused = inside(&scene.middle, &words).expect(2);
    let message = refused.error("usage")["message"].to_string();
    assert!(message.contains("--handoff-key"), "{message}");
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

#[test]
fn a_doctor_finds_what_spoils_help() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let ask = |name: &str| {
        let run = ["pep", "doctor", "--json", "--wireless", name];
        let start = || Running::start(&scratch, &run, &[]);
        let ended = scene.middle.run(start).expect("a thread").end().expect(0);
        let found = ended.events.iter().filter(|it| it["event"] == "finding");
        let found: Vec<String> = found.map(|it| it["name"].to_string()).collect();
        assert_eq!(ended.done()["findings"], found.len());
        found
    };
    let before = ask("left");
    let has = |found: &[String], name: &str| found.contains(&format!("\"{name}\""));
    assert!(
        !has(&before, "interface") && !has(&before, "forwarding"),
        "{before:?}"
    );
    assert!(has(&ask("nowhere"), "interface"));
    let agent = scene.agent(&scratch, &["--attach", "tun"]);
    assert_eq!(ask("left"), before);
    for (name, value) in [("pep-mobile", "1"), ("pep-fixed", "1")] {
        let parameter = format!("net.ipv4.conf.{name}.rp_filter");
        scene.middle.sysctl(&parameter, value).expect("a parameter");
    }
    let found = ask("left");
    assert_eq!(found.iter().filter(|it| *it == "\"rp_filter\"").count(), 2);
    let forwarding = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    for name in forwarding {
        scene.middle.sysctl(name, "0").expect("a parameter");
    }
    assert!(has(&ask("left"), "forwarding"));
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

/// The files below a directory, with what is in them or where they lead.
fn tree(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(tree(&path));
            continue;
        }
        let contents = match fs::read_link(&path) {
            Ok(target) => target.display().to_string(),
            Err(_) => fs::read_to_string(&path).expect("a file"),
        };
        found.push((path.display().to_string(), contents));
    }
    found.sort();
    found
}

/// Runs a command to its end; what it printed.
fn printed(scratch: &Scratch, arguments: &[&str]) -> (i32, String, String) {
    let directory = scratch.path("");
    let output = command(&directory, arguments).output();
    let output = output.expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_unit_is_installed_whole_twice_and_removed_without_a_trace() {
    let scratch = Scratch::new();
    printed(&scratch, &["pep", "key", "new", "my key"]);
    let options = [
        "--wireless",
        "wlan0",
        "--eln",
        "base",
        "--eln-key",
        "my key",
        "--handoff-key=my key",
    ];
    let base = ["pep", "install", "--root", "tree"];
    let (code, unit, _) = printed(&scratch, &[&base[..], &["--print"], &options].concat());
    assert_eq!(code, 0);
    assert!(!scratch.path("tree").exists());
    let key = scratch.path("my key").canonicalize().expect("a file");
    for line in [
        &format!("LoadCredential=eln.key:{}", key.display()),
        &format!("LoadCredential=handoff.key:{}", key.display()),
        "Type=notify",
        "DynamicUser=yes",
        "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_NICE",
    ] {
        assert!(unit.lines().any(|it| it == line), "{line}: {unit}");
    }
    let run = " pep run --wireless wlan0 --eln base --eln-key ${CREDENTIALS_DIRECTORY}/eln.key \
               --handoff-key ${CREDENTIALS_DIRECTORY}/handoff.key\n";
    assert!(unit.contains(run), "{unit}");
    // A crash in the middle of another time has left this.
    let units = scratch.path("tree/etc/systemd/system");
    fs::create_dir_all(&units).expect("a directory");
    fs::write(units.join(".sphx-pep.service.new"), "[Unit").expect("a file");
    fs::write(units.join("other.service"), "of others").expect("a file");
    for _ in 0..2 {
        let (code, _, errors) = printed(&scratch, &[&base[..], &options].concat());
        assert_eq!(code, 0, "{errors}");
        let files = tree(&scratch.path("tree"));
        assert_eq!(files.len(), 3, "{files:?}");
        let wanted = files
            .iter()
            .find(|it| it.0.contains("multi-user.target.wants"));
        assert_eq!(
            wanted.expect("a link").1,
            "/etc/systemd/system/sphx-pep.service"
        );
        assert!(
            files
                .iter()
                .any(|it| it.0.ends_with("system/sphx-pep.service") && it.1 == unit)
        );
    }
    let uninstall = ["pep", "uninstall", "--root", "tree"];
    let (_, named, _) = printed(&scratch, &[&uninstall[..], &["--print"]].concat());
    assert_eq!(named.lines().count(), 2, "{named}");
    for _ in 0..2 {
        assert_eq!(printed(&scratch, &uninstall).0, 0);
        let files = tree(&scratch.path("tree"));
        assert_eq!(files.len(), 1, "{files:?}");
    }
    // What systemd itself thinks of it, where it can be asked.
    fs::write(scratch.path("sphx-pep.service"), &unit).expect("a file");
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(scratch.path("sphx-pep.service"))
        .output();
    match verify {
        Err(error) => sphinx_testing::skipped!("no systemd-analyze: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let about = said
                .lines()
                .filter(|line| line.contains("sphx-pep.service"));
            assert_eq!(about.collect::<Vec<_>>(), Vec::<&str>::new());
        }
    }
}

#[test]
fn a_unit_has_the_file_of_its_agent_and_the_keys_that_the_file_names() {
    let scratch = Scratch::new();
    printed(&scratch, &["pep", "key", "new", "key"]);
    let text = "wireless = \"wlan0\"\neln = \"base\"\neln-key = \"key\"\n";
    fs::write(scratch.path("pep.toml"), text).expect("a file");
    let line = ["pep", "install", "--print", "--config", "pep.toml", "-q"];
    let (code, unit, errors) = printed(&scratch, &line);
    assert_eq!(code, 0, "{errors}");
    let run = " pep run --config ${CREDENTIALS_DIRECTORY}/pep.toml -q --eln-key ${CREDENTIALS_DIRECTORY}/eln.key\n";
    assert!(unit.contains(run), "{unit}");
    for (name, file) in [("pep.toml", "pep.toml"), ("eln.key", "key")] {
        let path = scratch.path(file).canonicalize().expect("a file");
        let line = format!("LoadCredential={name}:{}", path.display());
        assert!(unit.lines().any(|it| it == line), "{line}: {unit}");
    }
    assert!(
        unit.contains("Description=Help for TCP over wlan0"),
        "{unit}"
    );
}

#[test]
fn an_agent_does_what_its_file_says() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    let start = |text: &str| {
        fs::write(scratch.path("pep.toml"), text).expect("a file");
        let arguments = ["pep", "run", "--json", "--config", "pep.toml"];
        let start = || Running::start(&scratch, &arguments, &[]);
        scene.middle.run(start).expect("a thread")
    };
    let text = "wireless = \"left\"\nlag-max = \"10s\"\nmatch = \"port 1\"\n";
    let mut agent = start(text);
    assert_eq!(agent.event("started")["wireless"], "left");
    scene.transfer(scene.addresses()[0], 200_000, || ());
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    assert!(done["bypassed"]["not_wanted"].as_u64() > Some(10), "{done}");
    assert_eq!(done["cached"], 0);
    for (text, reason) in [
        (
            "wireless = \"left\"\ncolor = \"red\"",
            "pep.toml:2: there is no setting 'color'",
        ),
        ("lag-max = \"10s\"", "--wireless"),
        (
            "wireless = \"left\"\nradio-rate = \"5\"",
            "pep.toml:2: invalid value '5'",
        ),
    ] {
        let ended = start(text).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn a_unit_of_an_agent_that_cannot_run_is_not_installed() {
    let scratch = Scratch::new();
    let nowhere = ["pep", "install", "--root", "nowhere", "--wireless", "w"];
    let (code, _, errors) = printed(&scratch, &nowhere);
    assert_eq!(code, 8);
    assert!(errors.contains("no directory nowhere"), "{errors}");
    for (options, reason) in [
        (&["--eln", "base"][..], "--wireless"),
        (&["--wireless", "w", "--colour", "red"], "--colour"),
        (
            &["--wireless", "w", "--eln", "base", "--eln-key", "nowhere"],
            "nowhere",
        ),
        (&["--wireless", "a\nb"], "one line"),
    ] {
        let base = ["pep", "install", "--root", "tree"];
        let (code, _, errors) = printed(&scratch, &[&base[..], options].concat());
        assert!(code != 0 && errors.contains(reason), "{code} {errors}");
        assert!(!scratch.path("tree").exists());
    }
}

/// Where systemd seems to run, and what it is told is written down. It cannot start an agent for an interface `broken`.
const SYSTEMD: &str = r#"
mount -t tmpfs none /run && mkdir -p /run/systemd/system
mount -t tmpfs none /etc && mkdir -p /etc/systemd/system
# Where all users may go, and where only root may.
mkdir -m 700 /run/closed
for sphx in /run/closed/sphx /run/sphx; do touch $sphx && mount --bind "$SPHX" $sphx; done
cat > systemctl <<'END'
#!/bin/sh
echo "$@" >> told
! { [ "$1" = restart ] && grep -q broken /etc/systemd/system/sphx-pep.service; }
END
chmod +x systemctl
PATH=$PWD:$PATH
step() {
    : > told
    $sphx pep "$@" > said 2>&1
    echo "$* = $? | $(tr '\n' ' ' < told)| $(find /etc -type f -o -type l | wc -l) $(grep -sh ExecStart /etc/systemd/system/*) | $(tr '\n' ' ' < said)"
}
step install --wireless broken
step install --wireless wlan0
step install --wireless broken
step uninstall
sphx=/run/closed/sphx
step install --wireless wlan0
"#;

#[test]
fn an_installation_that_fails_leaves_what_was_there() {
    let scratch = Scratch::new();
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net"]).args(words);
        command.current_dir(scratch.path("")).output()
    };
    if !unshare(&["true"]).is_ok_and(|it| it.status.success()) {
        sphinx_testing::skipped!("no 'unshare', or it refuses");
        return;
    }
    let script = SYSTEMD.replace("$SPHX", env!("CARGO_BIN_EXE_sphx"));
    let output = unshare(&["sh", "-c", &script]).expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let [first, second, third, fourth, last] = lines[..] else {
        panic!("{text}");
    };
    // Nothing is there, and systemd does not try for ever what it was told first.
    let told = "= 8 | daemon-reload restart sphx-pep.service stop sphx-pep.service daemon-reload reset-failed sphx-pep.service | 0 ";
    assert!(first.contains(told), "{first}");
    assert!(first.contains("nothing was installed"), "{first}");
    assert!(second.contains("= 0 | daemon-reload restart"), "{second}");
    assert!(second.contains("| 2 ExecStart="), "{second}");
    // The unit from before is restored, and runs.
    let told =
        "= 8 | daemon-reload restart sphx-pep.service daemon-reload restart sphx-pep.service | 2 ";
    assert!(third.contains(told), "{third}");
    assert!(third.contains("--wireless wlan0"), "{third}");
    assert!(third.contains("runs again"), "{third}");
    assert!(fourth.contains("= 0 | stop sphx-pep.service"), "{fourth}");
    assert!(fourth.contains("| 0  |"), "{fourth}");
    // The unit's user could not run it.
    assert!(last.contains("= 8 | | 0 "), "{last}");
    assert!(last.contains("below /run/closed"), "{last}");
    assert!(last.contains("/usr/local/bin/sphx"), "{last}");
}

#[test]
fn keys_that_are_none_and_ways_that_do_not_fit_are_named() {
    let scratch = Scratch::new();
    fs::write(scratch.path("eln.key"), "0123\n").expect("a writable directory");
    let run = [
        "pep",
        "run",
        "--json",
        "--wireless",
        "lo",
        "--eln",
        "mobile",
    ];
    for (more, code, kind, reason) in [
        (&["--eln-key", "eln.key"][..], 2, "usage", "holds no key"),
        (&["--eln-key", "nowhere.key"], 8, "local_io", "nowhere.key"),
        (
            &["--eln-key", "eln.key", "--attach", "tun"],
            2,
            "usage",
            "--attach nfqueue",
        ),
    ] {
        let ended = Running::start(&scratch, &[&run[..], more].concat(), &[]).end();
        let message = ended.expect(code).error(kind)["message"].to_string();
        assert!(message.contains(reason), "{message}");
    }
}

/// The capabilities of every thread of a process, as masks.
fn rights(process: Pid) -> Vec<u64> {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let tasks = fs::read_dir(tasks).expect("a process that lives");
    let status = tasks.map(|task| {
        let path = task.expect("a thread").path().join("status");
        fs::read_to_string(path).expect("a thread that lives")
    });
    let masks = status.flat_map(|text| {
        let line = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.expect("a line").trim().to_owned()
        };
        assert_eq!(line("NoNewPrivs:"), "1");
        ["CapPrm:", "CapEff:", "CapInh:"]
            .map(|name| u64::from_str_radix(&line(name), 16).expect("a mask"))
    });
    masks.collect()
}

#[test]
fn the_worker_keeps_the_rights_that_packets_need_and_no_others() {
    let Some(scene) = Scene::new(0.01) else {
        return;
    };
    const NET: u64 = (1 << 12) | (1 << 13);
    let scratch = Scratch::new();
    for way in ways() {
        let more = ["--attach", way, "--metrics", "127.0.0.1:0"];
        let (agent, worker) = scene.agent_and_worker(&scratch, &more);
        let rights = rights(worker);
        // Packets, signals, questions, numbers: a thread for each at least.
        assert!(rights.len() >= 4 * 3, "{}", rights.len());
        for masks in rights.chunks(3) {
            assert_eq!(masks, [NET, NET, 0]);
        }
        if way == "tun" {
            // What it has done with those that remain: a stricter check would drop all that it sends.
            let read = || fs::read_to_string("/proc/sys/net/ipv4/conf/pep-fixed/rp_filter");
            let check = scene
                .middle
                .run(read)
                .expect("a thread")
                .expect("a parameter");
            assert_eq!(check.trim(), "2");
        }
        scene.transfer(scene.addresses()[0], 100_000, || ());
        agent.signal(Signal::INT);
        agent.end().expect(130);
    }
}

#[test]
fn a_user_of_its_own_needs_no_more_than_three_rights() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    if !ways().contains(&"nfqueue") {
        return;
    }
    if let Err(error) = Command::new("setpriv").arg("--version").output() {
        return sphinx_testing::skipped!("no setpriv: {error}");
    }
    let scratch = Scratch::new();
    // The unit's user has to be able to read the program.
    let program = scratch.path("sphx");
    // By a process of its own: a program that is open for writing does not
    // start ("Text file busy"), and every process that another test starts
    // while this one writes would hold the file open for a moment.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_sphx"))
        .arg(&program)
        .status();
    assert!(copied.expect("cp runs").success(), "a copy");
    for path in [scratch.path(""), program.clone()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let rights = "+net_admin,+net_raw,+sys_nice";
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--no-new-privs",
        ])
        .arg(format!("--inh-caps={rights}"))
        .arg(format!("--ambient-caps={rights}"))
        .arg(format!("--bounding-set=-all,{rights}"))
        .arg(program)
        .args([
            "pep",
            "run",
            "--json",
            "--wireless",
            "left",
            "--attach",
            "nfqueue",
        ])
        .args(["--lag-max", "10s"]);
    let start = || Running::of(&scratch, command);
    let mut agent = scene.middle.run(start).expect("a thread");
    let worker = worker_of(&agent.event("started"));
    let path = format!("/proc/{}/status", worker.as_raw_nonzero());
    let status = fs::read_to_string(path).expect("a process that lives");
    assert!(
        status.contains("Uid:\t65534\t65534\t65534\t65534"),
        "{status}"
    );
    for address in scene.addresses() {
        scene.transfer(address, 500_000, || ());
    }
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    assert!(totals(&ended)["repaired"].as_u64() > Some(0));
}

#[test]
fn a_service_manager_hears_of_beginning_life_and_end() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    let wait = |wanted: &str| {
        let mut buffer = [0; 256];
        loop {
            let length = uninterrupted(|| socket.recv(&mut buffer)).expect(wanted);
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    let run = ["pep", "run", "--json", "--wireless", "left"];
    let path = path.to_string_lossy();
    let environment = [("NOTIFY_SOCKET", &*path), ("WATCHDOG_USEC", "200000")];
    let start = || Running::start(&scratch, &run, &environment);
    let agent = scene.middle.run(start).expect("a thread");
    wait("READY=1");
    wait("WATCHDOG=1");
    agent.signal(Signal::INT);
    wait("STOPPING=1");
    agent.end().expect(130);
}

#[test]
fn a_connection_survives_the_death_of_the_agent_and_its_return() {
    let Some(scene) = Scene::new(0.01) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        for address in scene.addresses() {
            let agent = scene.agent(&scratch, &["--attach", way]);
            scene.transfer(address, 4_000_000, || {
                agent.signal(Signal::KILL);
            });
            // The worker dies with its guard: its output is at its end then.
            agent.end().expect(-1);
            // Rules of routing have stayed, and lead nowhere; the next agent takes them over, or nobody does.
            assert_eq!(scene.rules().contains("7749"), way == "tun");
            scene.transfer(address, 100_000, || ());
            // Where systemd runs, an agent may be installed on this machine.
            if address.is_ipv6() && !Path::new("/run/systemd/system").exists() {
                let uninstall = || printed(&scratch, &["pep", "uninstall"]);
                let (code, _, errors) = scene.middle.run(uninstall).expect("a thread");
                assert_eq!(code, 0, "{errors}");
                assert!(!scene.rules().contains("7749"), "{}", scene.rules());
            }
        }
        // It comes in the middle of a connection, which it then leaves alone.
        let mut late = None;
        scene.transfer(scene.addresses()[0], 16_000_000, || {
            late = Some(scene.agent(&scratch, &["--attach", way]));
        });
        let late = late.expect("an agent");
        late.signal(Signal::TERM);
        let ended = late.end().expect(143);
        let bypassed = &totals(&ended)["bypassed"];
        assert!(bypassed["mid_stream"].as_u64() > Some(10), "{bypassed}");
        assert!(!scene.rules().contains("7749"));
    }
}

#[test]
fn a_worker_that_dies_or_stops_is_replaced() {
    let Some(scene) = Scene::new(0.01) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        let (mut agent, mut worker) = scene.agent_and_worker(&scratch, &["--attach", way]);
        for (signal, reason) in [(Signal::KILL, "signal: 9"), (Signal::STOP, "stopped")] {
            scene.transfer(scene.addresses()[0], 4_000_000, || {
                kill_process(worker, signal).expect("a worker");
                let ended = agent.event("worker_ended");
                let said = ended["reason"].as_str().unwrap_or("");
                assert!(said.contains(reason), "{ended}");
                let next = worker_of(&agent.event("started"));
                assert_ne!(next, worker);
                worker = next;
            });
        }
        // The restarted worker helps new connections.
        scene.transfer(scene.addresses()[1], 2_000_000, || ());
        // One that is stopped when it is asked to end holds up nothing.
        kill_process(worker, Signal::STOP).expect("a worker");
        agent.signal(Signal::INT);
        agent.end().expect(130);
        assert!(!scene.rules().contains("7749"), "{}", scene.rules());
        // A guard that dies takes a stopped worker along.
        let (agent, worker) = scene.agent_and_worker(&scratch, &["--attach", way]);
        scene.transfer(scene.addresses()[0], 4_000_000, || {
            kill_process(worker, Signal::STOP).expect("a worker");
            agent.signal(Signal::KILL);
        });
        agent.end().expect(-1);
        scene.transfer(scene.addresses()[0], 100_000, || ());
    }
}

/// For want of descriptors here, as it may be for want of memory or of processes.
#[test]
fn a_worker_that_cannot_be_started_is_tried_again() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let (mut agent, worker) = scene.agent_and_worker(&scratch, &[]);
    // It serves; where the first one cannot, the command ends.
    scene.transfer(scene.addresses()[0], 100_000, || ());
    let guard = Pid::from_raw(agent.pid().cast_signed());
    let limit = |files| {
        let limit = Rlimit {
            current: Some(files),
            maximum: Some(1000),
        };
        prlimit(guard, Resource::Nofile, limit).expect("a limit");
    };
    limit(3);
    kill_process(worker, Signal::KILL).expect("a worker");
    agent.event("worker_ended");
    let again = agent.event("worker_ended");
    let reason = again["reason"].as_str().unwrap_or("");
    assert!(reason.contains("could not be started"), "{again}");
    limit(1000);
    assert_ne!(worker_of(&agent.event("started")), worker);
    scene.transfer(scene.addresses()[0], 100_000, || ());
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

/// What waits in the agent's own queue when it is told to end, which takes longer than the end.
#[test]
fn what_waits_at_an_ordered_end_arrives() {
    const BYTES: usize = 1_500_000;
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        let more = [
            "--attach",
            way,
            "--radio-rate",
            "8mbit",
            "--radio-queue",
            "64MiB",
        ];
        let agent = scene.agent(&scratch, &more);
        let address = scene.addresses()[0];
        let listen = || TcpListener::bind((address, 0)).expect("a port");
        let listener = scene.fixed.run(listen).expect("a thread");
        // Others slow down where their packets wait, and not only where they are lost. Connections that are accepted have it from there.
        set_tcp_congestion(&listener, "reno").expect("the kernel's own");
        let target = listener.local_addr().expect("an address");
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
        let mut client = scene.mobile.run(connect).expect("a thread");
        client.set_read_timeout(Some(PATIENCE)).expect("a time");
        let (mut server, _) = listener.accept().expect("a client");
        let before = tcp_count(&scene.fixed, "RetransSegs");
        let sending = thread::spawn(move || {
            server.write_all(&[7; BYTES]).expect("a reader");
        });
        let mut received = vec![0; BYTES / 3];
        client.read_exact(&mut received).expect("a third of it");
        agent.signal(Signal::TERM);
        let ended = agent.end().expect(143);
        client.read_to_end(&mut received).expect("the rest");
        sending.join().expect("a thread");
        assert_eq!(received.len(), BYTES);
        let done = totals(&ended);
        assert_eq!(done["dropped_queue"], 0, "{done}");
        // More than 250 ms of the rate waited, which is 170 packets.
        assert!(done["queued_ns_max"].as_u64() > Some(250_000_000), "{done}");
        let again = tcp_count(&scene.fixed, "RetransSegs") - before;
        assert!(again < 50, "{way}: {again} segments were sent again");
    }
}

/// A pager, a terminal that was stopped, a collector that starts anew: packets pass, and the worker lives.
#[test]
fn a_reader_that_pauses_holds_up_no_packet() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    for way in ways() {
        let run = ["pep", "run", "--json", "--wireless", "left"];
        let more = ["--lag-max", "10s", "--attach", way];
        let mut command = command(&scratch.path("."), &[&run[..], &more].concat());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let start = || command.spawn().expect("it starts");
        let mut child = scene.middle.run(start).expect("a thread");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert!(line.contains("\"started\""), "{line}");
        let address = scene.addresses()[0];
        let listen = || TcpListener::bind((address, 0)).expect("a port");
        let listener = scene.fixed.run(listen).expect("a thread");
        let target = listener.local_addr().expect("an address");
        // More than the pipe has room for.
        for _ in 0..200 {
            let connect = || TcpStream::connect_timeout(&target, PATIENCE).expect("a connection");
            let client = scene.mobile.run(connect).expect("a thread");
            let (server, _) = listener.accept().expect("a client");
            // Closing the connection resets it.
            set_socket_linger(&server, Some(Duration::ZERO)).expect("an option");
            drop((server, client));
        }
        scene.transfer(address, 2_000_000, || ());
        kill_process(Pid::from_child(&child), Signal::INT).expect("it is our child");
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("the rest");
        assert_eq!(child.wait().expect("its end").code(), Some(130));
        let events: Vec<Value> = rest
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let are = |name: &str| events.iter().filter(|it| it["event"] == name).count();
        assert!(are("flow") > 200, "{way}: {} flows", are("flow"));
        assert_eq!((are("worker_ended"), are("done")), (0, 1), "{way}");
    }
}

#[test]
fn interfaces_may_go_and_come_under_way() {
    let Some(scene) = Scene::new(0.01) else {
        return;
    };
    let scratch = Scratch::new();
    let address = scene.addresses()[0];
    for way in ways() {
        let (mut agent, worker) = scene.agent_and_worker(&scratch, &["--attach", way]);
        scene.transfer(address, 4_000_000, || {
            for state in ["down", "up"] {
                let line = format!("link set wired {state}");
                ip(&scene.middle, &line).expect("an interface");
            }
        });
        if way == "tun" {
            // Somebody removes one of the agent's own: the worker cannot go on, and another one comes.
            scene.transfer(address, 4_000_000, || {
                ip(&scene.middle, "link del pep-fixed").expect("an interface");
                agent.event("worker_ended");
                assert_ne!(worker_of(&agent.event("started")), worker);
            });
        }
        scene.transfer(address, 500_000, || ());
        agent.signal(Signal::INT);
        let ended = agent.end().expect(130);
        assert!(ended.events.iter().any(|event| event["event"] == "done"));
    }
}

#[test]
fn rules_that_somebody_removes_are_added_again() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    // Those of an agent of before, which had another priority, go.
    ip(
        &scene.middle,
        "rule add iif left priority 7749 table 7749001",
    )
    .expect("a rule");
    // A tunnel's stay, and its numbers are not ours.
    let tunnel = "rule add priority 7749 table 785338";
    ip(&scene.middle, tunnel).expect("a rule");
    let scratch = Scratch::new();
    let mut agent = scene.agent(&scratch, &["--attach", "tun"]);
    let sorted = || {
        let rules = scene.rules();
        let mut rules: Vec<String> = rules.lines().map(str::to_owned).collect();
        rules.sort();
        rules
    };
    let with_agent = sorted();
    let of_7749 = with_agent.iter().filter(|it| it.starts_with("7749:"));
    assert_eq!(of_7749.count(), 1, "{with_agent:?}");
    for line in [
        "rule del table 7749001",
        "-6 rule del table 7749002",
        "route flush table 7749001",
    ] {
        ip(&scene.middle, line).expect("it is there");
        agent.event("restored");
        assert_eq!(sorted(), with_agent, "{line}");
        let routes = ip(&scene.middle, "route show table 7749001").expect("a table");
        assert!(routes.contains("pep-fixed"), "{line}: {routes}");
    }
    scene.transfer(scene.addresses()[0], 2_000_000, || ());
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    assert!(done["repaired"].as_u64() > Some(0), "{done}");
    let after = scene.rules();
    assert!(
        after.contains("785338") && !after.contains("77490"),
        "{after}"
    );
}

#[test]
fn who_forwards_nothing_is_told_that_nothing_comes() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let run = "pep run --json --wireless uplink --attach tun";
    let run: Vec<&str> = run.split(' ').collect();
    let start = || Running::start(&scratch, &run, &[]);
    let mut agent = scene.fixed.run(start).expect("a thread");
    agent.event("started");
    agent.says("does not forward");
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

#[test]
fn whoever_asks_for_no_numbers_keeps_nobody_waiting() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let run = "pep run --json --wireless left --attach tun --lag-max 10s --metrics 127.0.0.1:0";
    let run: Vec<&str> = run.split(' ').collect();
    let start = || Running::start(&scratch, &run, &[]);
    let mut agent = scene.middle.run(start).expect("a thread");
    let address = agent.event("started")["metrics"].clone();
    let address: SocketAddr = address.as_str().expect("an address").parse().unwrap();
    let connect = || {
        let connect = || TcpStream::connect(address).expect("a connection");
        scene.middle.run(connect).expect("a thread")
    };
    let ask = || {
        let mut stream = connect();
        let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        asked.expect("a reader");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    };
    // Whether none of those that wait had to end for that; a machine that does other things may take so long that they do.
    let keeps_none_waiting = || {
        let idle: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        ask();
        idle.iter().all(|mut stream| {
            stream.set_nonblocking(true).expect("a socket");
            let read = stream.read(&mut [0]);
            read.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock)
        })
    };
    assert!((0..5).any(|_| keeps_none_waiting()));
    // Of many, the oldest makes room.
    let idle: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    ask();
    let mut oldest = &idle[0];
    oldest.set_read_timeout(Some(PATIENCE)).expect("a time");
    assert!(!matches!(oldest.read(&mut [0]), Ok(1..)));
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

#[test]
fn an_agent_that_is_late_says_so_and_passes_everything() {
    let Some(scene) = Scene::new(0.01) else {
        return;
    };
    let scratch = Scratch::new();
    // No machine is quick enough for this limit, so the agent always counts as late.
    let mut agent = scene.agent(&scratch, &["--lag-max", "0ms"]);
    agent.event("overload");
    scene.transfer(scene.addresses()[0], 500_000, || ());
    agent.signal(Signal::INT);
    let ended = agent.end().expect(130);
    let done = totals(&ended);
    assert!(done["overloads"].as_u64() >= Some(1), "{done}");
    assert!(done["bypassed"]["overload"].as_u64() > Some(100), "{done}");
}

#[test]
fn an_agent_that_runs_tells_what_it_does() {
    let Some(scene) = Scene::new(0.02) else {
        return;
    };
    let scratch = Scratch::new();
    let show = |more: &[&str]| {
        let arguments = [&["pep", "show"][..], more].concat();
        let start = || Running::start(&scratch, &arguments, &[]);
        scene.middle.run(start).expect("a thread")
    };
    let ended = show(&["--json"]).end().expect(8);
    let message = ended.error("local_io")["message"].to_string();
    assert!(message.contains("no agent"), "{message}");

    let base = ["pep", "run", "--json", "--wireless", "left"];
    let arguments = [&base[..], &["--lag-max", "10s", "--metrics", "127.0.0.1:0"]].concat();
    let start = || Running::start(&scratch, &arguments, &[]);
    let mut agent = scene.middle.run(start).expect("a thread");
    let address = agent.event("started")["metrics"].clone();
    let address: SocketAddr = address.as_str().expect("an address").parse().unwrap();
    let status = || {
        let ended = show(&["--json", "--flows"]).end().expect(0);
        let status = ended.events.iter().find(|it| it["event"] == "status");
        status.expect("an answer").clone()
    };
    scene.transfer(scene.addresses()[0], 2_000_000, || {
        // Later it may have been reset: by a host that has closed it, and gets a repair that it does not need.
        let status = status();
        let end = status["newest_flows"][0]["fixed"].as_str();
        assert_eq!(end.map(|it| &it[..9]), Some("10.78.0.2"), "{status}");
    });
    let status = status();
    assert!(status["repaired"].as_u64() > Some(5), "{status}");
    let ask = |request: &str| {
        let connect = || TcpStream::connect(address).expect("a connection");
        let mut stream = scene.middle.run(connect).expect("a thread");
        stream.write_all(request.as_bytes()).expect("a reader");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let answer = ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let repaired = answer
        .lines()
        .find_map(|it| it.strip_prefix("sphx_pep_repaired_total "));
    assert!(
        repaired.and_then(|it| it.parse::<u64>().ok()) > Some(5),
        "{answer}"
    );
    assert!(ask("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
    // Settings change all or not at all.
    let set = |settings: &[&str]| {
        let arguments = [&["pep", "set", "--json"][..], settings].concat();
        let start = || Running::start(&scratch, &arguments, &[]);
        scene.middle.run(start).expect("a thread").end()
    };
    let ended = set(&["dry-run=true", "agent=magic"]).expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(message.contains("agent=magic"), "{message}");
    // As at the start: only snoop repairs.
    let ended = set(&["repair-dscp=46", "agent=rdb"]).expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(
        message.contains("--repair-dscp is for --agent snoop"),
        "{message}"
    );
    let ended = set(&["lag-max=9s", "match=tcp port 80", "repair-dscp=46"]).expect(0);
    let settings = &ended.events[0];
    assert_eq!(settings["matches"][0], "port 80");
    assert_eq!(settings["repair_dscp"], 46);
    assert_eq!(
        (&settings["lag_ms_max"], &settings["dry_run"]),
        (&9000.0.into(), &false.into())
    );
    let watch = show(&["--watch", "--json"]);
    agent.signal(Signal::INT);
    agent.end().expect(130);
    // The agent that it watches has ended.
    watch.end().expect(8);
}

/// Anybody may take a name of a socket that is not on the disk.
#[test]
fn an_agent_whose_name_another_program_has_serves_and_gets_it_later() {
    let Some(scene) = Scene::new(0.0) else {
        return;
    };
    let scratch = Scratch::new();
    let take = || {
        let name = UnixAddr::from_abstract_name("sphx-pep").expect("a name");
        UnixListener::bind_addr(&name).expect("nobody has it")
    };
    let other = scene.middle.run(take).expect("a thread");
    let mut agent = scene.agent(&scratch, &[]);
    // Other notes may come before this one.
    let is_named = |note: &Value| note["message"].to_string().contains("@sphx-pep");
    while !is_named(&agent.event("note")) {}
    scene.transfer(scene.addresses()[0], 100_000, || ());
    drop(other);
    let show = || {
        let start = || Running::start(&scratch, &["pep", "show", "--json"], &[]);
        scene.middle.run(start).expect("a thread").end()
    };
    until(0, show);
    agent.signal(Signal::INT);
    agent.end().expect(130);
}

#[test]
fn one_agent_at_a_time_and_only_where_there_are_interfaces() {
    let Some(scene) = Scene::new(0.0) else { return };
    let scratch = Scratch::new();
    let ways = ways();
    for way in &ways {
        // A machine that forwards has TUN devices unless told otherwise.
        let dry = match *way {
            "tun" => scene.agent(&scratch, &["--wired", "wired", "--dry-run"]),
            way => scene.agent(&scratch, &["--attach", way, "--dry-run"]),
        };
        for second in &ways {
            let base = ["pep", "run", "--json", "--wireless", "left", "--attach"];
            let ended = scene.refused(&scratch, &[&base[..], &[second]].concat());
            let hint = ended.error("local_io")["hint"].to_string();
            assert!(hint.contains("already"), "{way}, {second}: {hint}");
        }
        scene.transfer(scene.addresses()[0], 500_000, || ());
        dry.signal(Signal::INT);
        let ended = dry.end().expect(130);
        assert!(totals(&ended)["cached"].as_u64() > Some(100));
    }
    let base = ["pep", "run", "--json", "--wireless", "nowhere", "--attach"];
    for way in &ways {
        let ended = scene.refused(&scratch, &[&base[..], &[way]].concat());
        let message = ended.error("local_io")["message"].to_string();
        assert!(message.contains("nowhere"), "{message}");
    }
    assert!(!scene.rules().contains("7749"));
    // Nor may both sides be the same one.
    let base = ["pep", "run", "--json", "--wireless", "left"];
    let arguments = [&base[..], &["--attach", "tun", "--wired", "left"]].concat();
    let start = || Running::start(&scratch, &arguments, &[]);
    let ended = scene.middle.run(start).expect("a thread").end().expect(2);
    let message = ended.error("usage")["message"].to_string();
    assert!(message.contains("--wired left"), "{message}");
}

#[test]
fn the_right_that_is_missing_is_named() {
    let Some(scene) = Scene::new(0.0) else { return };
    if !ways().contains(&"nfqueue") {
        return;
    }
    if let Err(error) = Command::new("setpriv").arg("--version").output() {
        return sphinx_testing::skipped!("no setpriv: {error}");
    }
    let scratch = Scratch::new();
    for (right, name) in [("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN")] {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--bounding-set=-{right}"))
            .arg(format!("--inh-caps=-{right}"))
            .arg(env!("CARGO_BIN_EXE_sphx"))
            .args(["pep", "run", "--json", "--wireless", "left"])
            .args(["--attach", "nfqueue"]);
        let start = || Running::of(&scratch, command);
        let ended = scene.middle.run(start).expect("a thread").end().expect(8);
        let hint = ended.error("local_io")["hint"].to_string();
        assert!(hint.ends_with(&format!(" {name}\"")), "{hint}");
    }
}
