//! Real packets through the link. Skipped, saying why, where namespaces or TUN devices are not
//! allowed. No test depends on being scheduled in time.

use std::{
    collections::VecDeque,
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use sphinx_link::{
    Corruption, Depth, Event, IpPacket, Jitter, Link, LinkConfig, Loss, Order, Rate,
    front::{Direction, End, Front, FrontConfig, FrontCounters, FrontError, Observer, Side, Stage},
};
use sphinx_netdev::netns::{Access, Namespace, probe};
use sphinx_testing::uninterrupted;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether fronts can be started; says why not.
fn is_allowed() -> bool {
    match probe() {
        Ok(Access::Direct) => return true,
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!(
                "needs root (user namespaces would work, but not beside threads)"
            );
        }
        Err(error) => sphinx_testing::skipped!("{error}"),
    }
    false
}

/// Starts a front, or says why not.
fn start(left_to_right: LinkConfig, right_to_left: LinkConfig) -> Option<Front> {
    if !is_allowed() {
        return None;
    }
    let config = FrontConfig {
        left_to_right,
        right_to_left,
        ..FrontConfig::default()
    };
    Some(Front::start(config).unwrap())
}

fn addresses(end: &End) -> [IpAddr; 2] {
    [end.ipv4().into(), end.ipv6().unwrap().into()]
}

/// A UDP socket at an end, patient.
fn udp(end: &End, address: IpAddr) -> UdpSocket {
    let socket = end.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Waits until the counters are as wanted.
fn wait_for(front: &Front, wanted: impl Fn(&FrontCounters) -> bool) -> FrontCounters {
    let start = Instant::now();
    loop {
        let counters = front.counters();
        if wanted(&counters) {
            return counters;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Keeps what goes into the link for a while, lets what comes out of it pass twice, and every third packet of UDP never goes.
struct Holding {
    held: VecDeque<(u64, Vec<u8>)>,
    out: Vec<(Side, Vec<u8>)>,
    seen: usize,
}

const HELD: Duration = Duration::from_millis(5);

impl Stage for Holding {
    fn packet(&mut self, from: Side, now: u64, packet: &[u8]) {
        let packet = packet.to_vec();
        match from {
            Side::Left => {
                self.seen += 1;
                if !self.seen.is_multiple_of(3) {
                    let until = now + HELD.as_nanos() as u64;
                    self.held.push_back((until, packet));
                }
            }
            Side::Right => {
                let twice = [(Side::Left, packet.clone()), (Side::Left, packet)];
                self.out.extend(twice);
            }
        }
    }

    fn timeout(&mut self, now: u64) {
        while let Some((_, packet)) = self.held.pop_front_if(|(until, _)| *until <= now) {
            self.out.push((Side::Right, packet));
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        self.held.front().map(|(until, _)| *until)
    }

    fn drain(&mut self, send: &mut dyn FnMut(Side, &[u8])) {
        self.out
            .drain(..)
            .for_each(|(to, packet)| send(to, &packet));
    }
}

#[test]
fn a_stage_says_what_goes_into_the_link_and_out_of_it() {
    if !is_allowed() {
        return;
    }
    let stage = Holding {
        held: VecDeque::new(),
        out: Vec::new(),
        seen: 0,
    };
    let front = Front::start_with(FrontConfig::default(), None, Some(Box::new(stage))).unwrap();
    let left = udp(front.left(), addresses(front.left())[0]);
    let right = udp(front.right(), addresses(front.right())[0]);
    left.connect(right.local_addr().unwrap()).unwrap();
    right.connect(left.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 16];
    for number in 0..6 {
        let sent = Instant::now();
        left.send(&[number]).unwrap();
        if number % 3 == 2 {
            continue;
        }
        assert_eq!(uninterrupted(|| right.recv(&mut buffer)).unwrap(), 1);
        assert!(buffer[0] == number && sent.elapsed() >= HELD);
        right.send(&[number + 100]).unwrap();
        for _ in 0..2 {
            assert_eq!(uninterrupted(|| left.recv(&mut buffer)).unwrap(), 1);
            assert_eq!(buffer[0], number + 100);
        }
    }
    let counters = front.stop().unwrap();
    assert_eq!(counters.left_to_right.offered_packets, 4);
    assert_eq!(counters.right_to_left.delivered_packets, 4);
    assert_eq!(counters.refused, 0);
}

#[test]
fn packets_take_at_least_the_delay() {
    let delay = Duration::from_millis(5);
    let link = LinkConfig {
        delay,
        ..LinkConfig::default()
    };
    let Some(front) = start(link.clone(), link) else {
        return;
    };
    assert_eq!(front.warnings(), [] as [&str; 0]);
    for (left, right) in addresses(front.left())
        .into_iter()
        .zip(addresses(front.right()))
    {
        let (left, right) = (udp(front.left(), left), udp(front.right(), right));
        left.connect(right.local_addr().unwrap()).unwrap();
        right.connect(left.local_addr().unwrap()).unwrap();
        let mut least = PATIENCE;
        for _ in 0..20 {
            let sent = Instant::now();
            left.send(b"ping").unwrap();
            uninterrupted(|| right.recv(&mut [0; 16])).unwrap();
            let there = sent.elapsed();
            assert!(there >= delay, "{there:?}");
            right.send(b"pong").unwrap();
            uninterrupted(|| left.recv(&mut [0; 16])).unwrap();
            let back = sent.elapsed();
            assert!(back >= 2 * delay, "{back:?}");
            least = least.min(back);
        }
        assert!(least < Duration::from_secs(1), "{least:?}");
    }
    let counters = front.stop().unwrap();
    assert_eq!(counters.left_to_right.delivered_packets, 40);
    assert_eq!(counters.right_to_left.delivered_packets, 40);
    assert_eq!((counters.lateness.packets(), counters.refused), (80, 0));
    assert!(counters.cpu > Duration::ZERO);
}

#[test]
fn the_same_packets_are_lost_as_in_a_simulation() {
    let config = LinkConfig {
        seed: 7,
        rate: Rate::Constant(50_000_000),
        loss: Loss::Bernoulli(0.06),
        records: 10_000,
        ..LinkConfig::default()
    };
    let mut simulated = Link::new(LinkConfig {
        rate: Rate::Unlimited,
        ..config.clone()
    })
    .unwrap();
    for _ in 0..2000 {
        simulated.enqueue(0, IpPacket(vec![0; 1000]));
    }
    let expected: Vec<u64> = std::iter::from_fn(|| simulated.poll(0))
        .map(|delivery| delivery.index)
        .collect();

    let Some(front) = start(config, LinkConfig::default()) else {
        return;
    };
    let left = udp(front.left(), front.left().ipv4().into());
    let right = udp(front.right(), front.right().ipv4().into());
    left.connect(right.local_addr().unwrap()).unwrap();
    let received = Arc::new(AtomicUsize::new(0));
    let receiver = thread::spawn({
        let (count, received) = (expected.len(), Arc::clone(&received));
        move || {
            let number = |socket: &UdpSocket| {
                let mut buffer = [0; 2000];
                assert_eq!(uninterrupted(|| socket.recv(&mut buffer)).unwrap(), 972);
                received.fetch_add(1, Ordering::Relaxed);
                u64::from_be_bytes(buffer[..8].try_into().unwrap())
            };
            (0..count).map(|_| number(&right)).collect::<Vec<u64>>()
        }
    });
    for number in 0..2000_u64 {
        let mut payload = [0; 972];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        left.send(&payload).unwrap();
        // Not more at once than the link's queue holds, or the receiver's socket, however slow its thread is.
        if number % 100 == 99 {
            let arrive = expected.partition_point(|index| *index <= number);
            wait_for(&front, |counters| {
                counters.left_to_right.sent_packets > number
                    && received.load(Ordering::Relaxed) >= arrive
            });
        }
    }
    assert_eq!(receiver.join().unwrap(), expected);

    let counters = wait_for(&front, |counters| {
        counters.lateness.packets() == expected.len() as u64
    });
    let totals = counters.left_to_right;
    assert_eq!(
        (totals.offered_packets, totals.offered_bytes),
        (2000, 2_000_000)
    );
    assert_eq!(totals.dropped(), totals.dropped_loss);
    assert_eq!(totals.delivered_packets + totals.dropped_loss, 2000);
    let mut records = Vec::new();
    front.take_records(Direction::LeftToRight, &mut records);
    assert!(
        records
            .iter()
            .all(|record| record.event == Event::DroppedLoss)
    );
    let lost: Vec<u64> = records.iter().map(|record| record.offered).collect();
    let mut all = [lost, expected].concat();
    all.sort_unstable();
    assert_eq!(all, (0..2000).collect::<Vec<u64>>());
}

#[test]
fn a_small_mtu_inside_the_path_drops_silently() {
    let Some(front) = start(
        LinkConfig {
            mtu: Some(1280),
            ..LinkConfig::default()
        },
        LinkConfig::default(),
    ) else {
        return;
    };
    let left = udp(front.left(), front.left().ipv4().into());
    let right = udp(front.right(), front.right().ipv4().into());
    left.connect(right.local_addr().unwrap()).unwrap();
    for payload in [1253, 1252, 1472] {
        left.send(&vec![0; payload]).unwrap();
    }
    assert_eq!(uninterrupted(|| right.recv(&mut [0; 2000])).unwrap(), 1252);
    let counters = wait_for(&front, |counters| {
        counters.left_to_right.offered_packets == 3
    });
    assert_eq!(counters.left_to_right.dropped_mtu, 2);
}

#[test]
fn a_link_changes_under_way() {
    let Some(front) = start(LinkConfig::default(), LinkConfig::default()) else {
        return;
    };
    let left = udp(front.left(), front.left().ipv4().into());
    let right = udp(front.right(), front.right().ipv4().into());
    left.connect(right.local_addr().unwrap()).unwrap();
    left.send(b"before").unwrap();
    assert_eq!(uninterrupted(|| right.recv(&mut [0; 16])).unwrap(), 6);

    let dead = LinkConfig {
        loss: Loss::Bernoulli(1.0),
        ..LinkConfig::default()
    };
    front.reconfigure(Direction::LeftToRight, dead).unwrap();
    // The change takes effect at some moment; from then on nothing passes.
    let start = Instant::now();
    while front.counters().left_to_right.dropped_loss == 0 {
        left.send(b"between").unwrap();
        thread::sleep(Duration::from_millis(5));
        assert!(start.elapsed() < PATIENCE);
    }
    let passed = front.counters().left_to_right.delivered_packets;
    left.send(b"lost").unwrap();
    let counters = wait_for(&front, |counters| counters.left_to_right.dropped_loss >= 2);
    assert_eq!(counters.left_to_right.delivered_packets, passed);

    let bad = LinkConfig {
        loss: Loss::Bernoulli(2.0),
        ..LinkConfig::default()
    };
    assert!(front.reconfigure(Direction::LeftToRight, bad).is_err());
}

#[test]
fn tcp_is_exact_over_a_bad_link() {
    let bad = LinkConfig {
        seed: 3,
        rate: Rate::Constant(100_000_000),
        queue: Depth::Bytes(50_000),
        loss: Loss::Bernoulli(0.005),
        corruption: Corruption {
            probability: 0.005,
            bits: 1,
        },
        duplication: 0.01,
        delay: Duration::from_millis(1),
        jitter: Jitter {
            max: Duration::from_micros(500),
            order: Order::Free,
        },
        ..LinkConfig::default()
    };
    let Some(front) = start(bad.clone(), LinkConfig { seed: 4, ..bad }) else {
        return;
    };
    let sent: Vec<u8> = (0..400_000_u32)
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for (left, right) in addresses(front.left())
        .into_iter()
        .zip(addresses(front.right()))
    {
        let listener = front
            .right()
            .run(|| TcpListener::bind((right, 0)))
            .unwrap()
            .unwrap();
        let target = listener.local_addr().unwrap();
        let receiver = thread::spawn(move || {
            let mut received = Vec::new();
            listener
                .accept()
                .unwrap()
                .0
                .read_to_end(&mut received)
                .unwrap();
            received
        });
        let mut stream = front
            .left()
            .run(|| TcpStream::connect(target))
            .unwrap()
            .unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), left);
        stream.write_all(&sent).unwrap();
        drop(stream);
        assert!(receiver.join().unwrap() == sent);
    }
    let counters = front.stop().unwrap();
    let totals = counters.left_to_right;
    assert!(totals.dropped_loss > 0 && totals.duplicated > 0 && totals.corrupted > 0);
    assert_eq!(counters.refused, 0);
}

#[test]
fn commands_run_at_their_end_and_interfaces_disappear() {
    let Some(front) = start(LinkConfig::default(), LinkConfig::default()) else {
        return;
    };
    for (end, name) in [(front.left(), "left"), (front.right(), "right")] {
        let command = &mut Command::new("cat");
        let output = end
            .spawn(command.arg("/proc/self/net/dev").stdout(Stdio::piped()))
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains(&format!("{name}:"))
        );
    }
    let left = front.left().run(Namespace::current).unwrap().unwrap();
    drop(front);
    // A command that another test is starting holds the interface until it is executed.
    let deadline = Instant::now() + Duration::from_secs(10);
    while left
        .run(|| fs::read_to_string("/proc/thread-self/net/dev"))
        .unwrap()
        .unwrap()
        .contains("left")
    {
        assert!(Instant::now() < deadline, "an interface was left behind");
        thread::sleep(Duration::from_millis(1));
    }
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    assert!(
        !devices.contains("left") && !devices.contains("right"),
        "{devices}"
    );
}

#[test]
fn a_small_mtu_of_the_interfaces_is_one_without_ipv6() {
    if !is_allowed() {
        return;
    }
    let config = FrontConfig {
        mtu: 576,
        ..FrontConfig::default()
    };
    let front = Front::start(config).unwrap();
    let words = "no IPv6, which needs an MTU of 1280";
    assert_eq!(
        front.warnings(),
        ["left", "right"].map(|end| format!("{end}: {words}"))
    );
    assert_eq!((front.left().ipv6(), front.right().ipv6()), (None, None));
    let left = udp(front.left(), front.left().ipv4().into());
    let right = udp(front.right(), front.right().ipv4().into());
    // The datagram goes there in two fragments, and comes back as one packet.
    left.send_to(&[7; 1000], right.local_addr().unwrap())
        .unwrap();
    assert_eq!(uninterrupted(|| right.recv(&mut [0; 2000])).unwrap(), 1000);
    right.send_to(b"back", left.local_addr().unwrap()).unwrap();
    assert_eq!(uninterrupted(|| left.recv(&mut [0; 16])).unwrap(), 4);
    assert_eq!(front.stop().unwrap().left_to_right.delivered_packets, 2);
}

/// Sees nothing; whoever has the other end of the channel sees it go, with the link's thread.
struct Guest {
    _here: Sender<()>,
}

impl Observer for Guest {
    fn packet(&mut self, _side: Side, _at: u64, _packet: &[u8]) {}
}

#[test]
fn a_link_ends_when_an_interface_is_removed() {
    if !is_allowed() {
        return;
    }
    let (here, gone) = mpsc::channel();
    let guest = Box::new(Guest { _here: here });
    let front = Front::start_with(FrontConfig::default(), Some(guest), None).unwrap();
    let command = &mut Command::new("ip");
    let removed = front.left().spawn(command.args(["link", "del", "left"]));
    if !removed.is_ok_and(|mut child| child.wait().unwrap().success()) {
        sphinx_testing::skipped!("no 'ip'");
        return;
    }
    assert_eq!(
        gone.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
    let error = front.stop().unwrap_err().to_string();
    assert_eq!(error, "interface left is gone");
}

#[test]
fn impossible_settings_are_refused_before_anything_is_created() {
    let broken = LinkConfig {
        duplication: -1.0,
        ..LinkConfig::default()
    };
    let config = FrontConfig {
        right_to_left: broken,
        ..FrontConfig::default()
    };
    assert!(matches!(Front::start(config), Err(FrontError::Config(_))));
    let config = FrontConfig {
        mtu: 65_536,
        ..FrontConfig::default()
    };
    assert!(matches!(Front::start(config), Err(FrontError::Mtu(65_536))));
}
