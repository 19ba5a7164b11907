//! A link between interfaces that exist: two virtual Ethernet pairs, with all their offloads. Skipped,
//! saying why, where that is not possible.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use sphinx_link::{
    EcnRule, LinkConfig, Loss,
    front::{FrontCounters, FrontError, LinkThread, Observer, Side, join},
};
use sphinx_netdev::{
    ethernet::Ethernet,
    netns::{Access, Namespace, probe},
};
use sphinx_testing::uninterrupted;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A namespace with a process by which `ip` finds it.
struct Host {
    namespace: Namespace,
    holder: Child,
}

impl Host {
    fn new() -> Host {
        let namespace = Namespace::new().unwrap();
        let holder = namespace
            .spawn(Command::new("sleep").arg("1000").stdin(Stdio::null()))
            .unwrap();
        Host { namespace, holder }
    }

    /// Runs `ip` with these words, or says why not.
    fn ip(&self, words: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(words.split_whitespace()).stderr(Stdio::null());
        match self.namespace.spawn(&mut command) {
            Ok(mut child) => child.wait().unwrap().success(),
            Err(_) => false,
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// left —(veth)— middle —(veth)— right, and the link in the middle.
fn start(links: [LinkConfig; 2]) -> Option<(Host, Host, Host, LinkThread)> {
    start_with(links, None)
}

fn start_with(
    links: [LinkConfig; 2],
    observer: Option<Box<dyn Observer>>,
) -> Option<(Host, Host, Host, LinkThread)> {
    match probe() {
        Ok(Access::Direct) => {}
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!(
                "needs root (user namespaces would work, but not beside threads)"
            );
            return None;
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            return None;
        }
    }
    let (left, middle, right) = (Host::new(), Host::new(), Host::new());
    // Names that `ip` does not take for the beginning of one of its words.
    for (end, own, other, address) in [(&left, "a0", "l0", 1), (&right, "b0", "r0", 2)] {
        let ready = middle.ip(&format!("link add {own} type veth peer name {other}"))
            && middle.ip(&format!("link set {other} netns {}", end.holder.id()))
            && middle.ip(&format!("link set {own} up"))
            && end.ip(&format!("addr add 10.99.0.{address}/24 dev {other}"))
            && end.ip(&format!("addr add fd99::{address}/64 dev {other} nodad"))
            && end.ip(&format!("link set {other} up"));
        if !ready {
            sphinx_testing::skipped!("no 'ip', or no veth");
            return None;
        }
    }
    let link = middle.namespace.run(|| join(["a0", "b0"], links, observer));
    let mut wires = [wire(&left, "l0"), wire(&right, "r0")];
    wait_until_frames_cross(&mut wires);
    wires.reverse();
    wait_until_frames_cross(&mut wires);
    Some((left, middle, right, link.unwrap().unwrap()))
}

/// An interface that has just been turned on drops without an error what is sent before the kernel has given it a queue.
fn wait_until_frames_cross([near, far]: &mut [Ethernet; 2]) {
    /// Local experimental EtherType 1 (IEEE 802): no packet, which the link would treat as one.
    const NO_PACKET: [u8; 2] = [0x88, 0xb5];
    let mut frame = [0; 60];
    (frame[0], frame[6]) = (2, 2);
    frame[12..14].copy_from_slice(&NO_PACKET);
    let start = Instant::now();
    let mut found = false;
    while !found {
        assert!(start.elapsed() < PATIENCE, "no frame has crossed the link");
        near.send(&frame).unwrap();
        thread::sleep(Duration::from_millis(2));
        while !found && far.receive(|arrived| found |= arrived == frame).is_ok() {}
    }
}

/// Waits until the counters are as wanted.
fn wait_for(link: &LinkThread, wanted: impl Fn(&FrontCounters) -> bool) -> FrontCounters {
    let start = Instant::now();
    loop {
        let counters = link.counters();
        if wanted(&counters) {
            return counters;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The interface of a host, for whole frames.
fn wire(host: &Host, name: &str) -> Ethernet {
    let wire = host.namespace.run(|| Ethernet::open(name));
    wire.unwrap().unwrap()
}

/// Waits until this frame has arrived.
fn arrives(wire: &mut Ethernet, frame: &[u8]) {
    let start = Instant::now();
    let mut found = false;
    while !found {
        assert!(start.elapsed() < PATIENCE, "it has not arrived");
        if wire.receive(|arrived| found |= arrived == frame).is_err() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn tcp_crosses_in_single_packets_with_right_checksums() {
    let link = |seed| LinkConfig {
        seed,
        loss: Loss::Bernoulli(0.01),
        delay: Duration::from_millis(1),
        ..LinkConfig::default()
    };
    let Some((left, _middle, right, link)) = start([link(1), link(2)]) else {
        return;
    };
    let sent: Vec<u8> = (0..500_000_u32)
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for address in ["10.99.0.2:7000", "[fd99::2]:7000"] {
        assert!(sent_and_received(&left, &right, address, &sent) == sent);
    }
    // 1448 bytes of payload are in a packet, and some were lost and sent again.
    wait_for(&link, |it| {
        let it = &it.left_to_right;
        it.sent_packets > 2 * 2_000_000 / 1448 && it.dropped_loss > 5
    });
    // ARP and neighbour discovery have passed by.
    assert!(link.counters().ignored > 0);
}

/// Waits for a connection to this address at the right end, and sends over it: what arrives.
fn sent_and_received(left: &Host, right: &Host, address: &'static str, sent: &[u8]) -> Vec<u8> {
    let listener = right.namespace.run(|| TcpListener::bind(address));
    let listener = listener.unwrap().unwrap();
    let receiver = thread::spawn(move || {
        let mut received = Vec::new();
        let mut stream = listener.accept().unwrap().0;
        stream.read_to_end(&mut received).unwrap();
        received
    });
    let stream = left.namespace.run(|| TcpStream::connect(address));
    stream.unwrap().unwrap().write_all(sent).unwrap();
    receiver.join().unwrap()
}

/// As containers of several machines have it: the kernel joins what is inside.
#[test]
fn tcp_inside_a_tunnel_crosses_in_single_packets() {
    let Some((left, _middle, right, link)) = start([LinkConfig::default(), LinkConfig::default()])
    else {
        return;
    };
    for (end, device, own, other) in [(&left, "l0", 1, 2), (&right, "r0", 2, 1)] {
        let ready = end.ip(&format!(
            "link add inner type vxlan id 7 remote 10.99.0.{other} dstport 4789 dev {device}"
        )) && end.ip(&format!("addr add 10.98.0.{own}/24 dev inner"))
            && end.ip(&format!("addr add fd98::{own}/64 dev inner nodad"))
            && end.ip("link set inner up");
        if !ready {
            return sphinx_testing::skipped!("no VXLAN");
        }
    }
    let sent: Vec<u8> = (0..500_000_u32)
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for address in ["10.98.0.2:7000", "[fd98::2]:7000"] {
        assert!(sent_and_received(&left, &right, address, &sent) == sent);
    }
    // Of 1500 bytes, 50 are the tunnel's.
    let counters = wait_for(&link, |it| {
        it.left_to_right.sent_packets > 2 * 2_000_000 / 1398
    });
    assert_eq!(counters.refused, 0, "{counters:?}");
}

#[test]
fn datagrams_cross_as_they_are() {
    let Some((left, _middle, right, link)) = start([LinkConfig::default(), LinkConfig::default()])
    else {
        return;
    };
    for (own, other) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
        let bind = |host: &Host, address: &str| {
            let socket = host.namespace.run(|| UdpSocket::bind((address, 0)));
            let socket = socket.unwrap().unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (left, right) = (bind(&left, own), bind(&right, other));
        for length in [0, 1, 999, 1452] {
            let sent = vec![7; length];
            left.send_to(&sent, right.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 2000];
            let (count, from) = uninterrupted(|| right.recv_from(&mut buffer)).unwrap();
            assert_eq!((count, from), (length, left.local_addr().unwrap()));
            assert!(buffer[..count] == sent);
        }
    }
    let counters = wait_for(&link, |it| it.left_to_right.offered_packets >= 8);
    assert_eq!(counters.left_to_right.offered_packets, 8);
}

#[test]
fn what_is_not_of_the_link_passes_whatever_the_link_does() {
    let lost = LinkConfig {
        loss: Loss::Bernoulli(1.0),
        ecn: EcnRule::Mark,
        ..LinkConfig::default()
    };
    let Some((left, _middle, right, link)) = start([lost.clone(), lost]) else {
        return;
    };
    let ignored = link.counters().ignored;
    let (near, mut far) = (wire(&left, "l0"), wire(&right, "r0"));
    // To a group that bridges do not forward to, with a length where others have their EtherType: a spanning tree's, whose first bits
    // are those of IPv4.
    let mut bpdu = vec![0; 60];
    bpdu[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    bpdu[6] = 2;
    bpdu[12..17].copy_from_slice(&[0, 38, 0x42, 0x42, 3]);
    // The same to a single host, as other users of such frames have it.
    let mut other = bpdu.clone();
    other[0] = 2;
    for frame in [bpdu, other] {
        near.send(&frame).unwrap();
        arrives(&mut far, &frame);
    }
    wait_for(&link, |it| it.ignored >= ignored + 2);

    // The neighbour answers to a single host. Once it has, the datagram goes, and is lost.
    let sender = left.namespace.run(|| UdpSocket::bind(("fd99::1", 0)));
    let sender = sender.unwrap().unwrap();
    sender.send_to(b"lost", ("fd99::2", 7000)).unwrap();
    let counters = wait_for(&link, |it| it.left_to_right.dropped_loss > 0);
    assert_eq!(counters.left_to_right.offered_packets, 1);
    assert_eq!(counters.right_to_left.offered_packets, 0);
}

#[test]
fn what_fills_up_a_frame_does_not_count() {
    let Some((left, _middle, right, link)) = start([LinkConfig::default(), LinkConfig::default()])
    else {
        return;
    };
    let (near, mut far) = (wire(&left, "l0"), wire(&right, "r0"));
    // 40 bytes of IPv4 from nobody in the shortest frame that a card sends.
    let mut frame = vec![0; 60];
    (frame[0], frame[6]) = (2, 2);
    frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 40]);
    frame[23] = 6;
    frame[26..34].copy_from_slice(&[10, 98, 0, 1, 10, 98, 0, 2]);
    near.send(&frame).unwrap();
    arrives(&mut far, &frame[..54]);
    let counters = wait_for(&link, |it| it.left_to_right.offered_packets == 1);
    assert_eq!(counters.left_to_right.offered_bytes, 40);
}

/// Sees nothing; whoever has the other end of the channel sees it go, with the link's thread.
struct Guest {
    _here: Sender<()>,
}

impl Observer for Guest {
    fn packet(&mut self, _side: Side, _at: u64, _packet: &[u8]) {}
}

#[test]
fn interfaces_may_be_turned_off_and_not_removed() {
    let (here, gone) = mpsc::channel();
    let guest = Box::new(Guest { _here: here });
    let links = [LinkConfig::default(), LinkConfig::default()];
    let Some((left, middle, right, mut link)) = start_with(links, Some(guest)) else {
        return;
    };
    let refused = link.counters().refused;
    assert!(middle.ip("link set a0 down"));
    wait_for(&link, |it| it.refused > refused);
    assert!(middle.ip("link set a0 up"));
    let (near, mut far) = (wire(&left, "l0"), wire(&right, "r0"));
    // The kernel needs a moment for what depends on it.
    let (start, frame, mut arrived) = (Instant::now(), [2; 60], false);
    while !arrived {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
        let _ = near.send(&frame);
        thread::sleep(Duration::from_millis(2));
        let _ = far.receive(|it| arrived |= it == frame);
    }

    assert!(middle.ip("link del a0"));
    assert_eq!(
        gone.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
    let error = link.halt().unwrap_err().to_string();
    assert_eq!(error, "interface a0 is gone");
}

#[test]
fn what_is_no_interface_is_an_error() {
    let links = [LinkConfig::default(), LinkConfig::default()];
    match join(["no-such-if", "lo"], links, None) {
        Err(FrontError::System(error)) => {
            // Without rights the error is another one, but names the interface as well.
            let text = error.to_string();
            assert!(text.contains("no-such-if"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
