//! Namespaces and TUN devices of the running kernel. Skipped, saying why, where they are not allowed.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, UdpSocket},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::{
    netns::{Access, Namespace, probe},
    tun::{Tun, TunConfig},
};
use sphinx_testing::uninterrupted;

/// Whether this process may do these tests; says so if not.
fn permitted() -> bool {
    match probe() {
        Ok(Access::Direct) => true,
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!(
                "needs root (user namespaces would work, but not beside threads)"
            );
            false
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            false
        }
    }
}

fn interfaces() -> BTreeSet<String> {
    fs::read_to_string("/proc/thread-self/net/dev")
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim().to_owned()))
        .collect()
}

/// Waits until only loopback is left. A command that another test is starting holds every descriptor until it is executed, and
/// with it an interface whose name is not free before that.
fn no_interface_stays(namespace: &Namespace) {
    let only_loopback = BTreeSet::from(["lo".to_owned()]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while namespace.run(interfaces).unwrap() != only_loopback {
        assert!(Instant::now() < deadline, "an interface was left behind");
        thread::sleep(Duration::from_millis(1));
    }
}

fn config(name: &str) -> TunConfig {
    TunConfig {
        name: name.into(),
        mtu: 1400,
        queue_packets: 1234,
        addresses: vec![
            ("10.77.0.1".parse().unwrap(), 24),
            ("fd77::1".parse().unwrap(), 64),
        ],
    }
}

#[test]
fn a_namespace_has_only_loopback_and_commands_run_inside() {
    if !permitted() {
        return;
    }
    let before = interfaces();
    let namespace = Namespace::new().unwrap();
    assert_eq!(
        namespace.run(interfaces).unwrap(),
        BTreeSet::from(["lo".to_owned()])
    );
    let listed = namespace
        .spawn(
            Command::new("cat")
                .arg("/proc/self/net/dev")
                .stdout(Stdio::piped()),
        )
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(
        String::from_utf8(listed.stdout)
            .unwrap()
            .matches(": ")
            .count(),
        1
    );
    assert_eq!(interfaces(), before);

    // Loopback is up, and sockets stay in the namespace.
    let socket = namespace
        .run(|| UdpSocket::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    let own = socket.local_addr().unwrap();
    socket.send_to(b"hello", own).unwrap();
    assert_eq!(uninterrupted(|| socket.recv(&mut [0; 16])).unwrap(), 5);
}

#[test]
fn a_tun_device_has_its_settings_and_carries_packets_both_ways() {
    if !permitted() {
        return;
    }
    let before = interfaces();
    let namespace = Namespace::new().unwrap();
    let tun = namespace
        .run(|| Tun::open(&config("left")))
        .unwrap()
        .unwrap();
    assert_eq!(tun.name(), "left");
    assert!(namespace.run(interfaces).unwrap().contains("left"));
    assert_eq!(interfaces(), before);
    let error = namespace
        .run(|| Tun::open(&config("left")))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");

    for (own, other, header) in [("10.77.0.1", "10.77.0.2", 28), ("fd77::1", "fd77::2", 48)] {
        let (own, other): (IpAddr, IpAddr) = (own.parse().unwrap(), other.parse().unwrap());
        let socket = namespace
            .run(|| UdpSocket::bind((own, 0)))
            .unwrap()
            .unwrap();
        socket.connect((other, 4000)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket.send(&[7; 100]).unwrap();
        let mut buffer = [0; 2000];
        // Multicast reports of the kernel may come first.
        let length = std::iter::repeat_with(|| tun.receive(&mut buffer).unwrap())
            .find(|&length| length == header + 100)
            .unwrap();
        // Sent back with the addresses exchanged, the checksums stay right.
        let packet = &mut buffer[..length];
        let (source, address) = if own.is_ipv4() { (12, 4) } else { (8, 16) };
        let (left, right) = packet[source..].split_at_mut(address);
        left.swap_with_slice(&mut right[..address]);
        let (left, right) = packet[header - 8..].split_at_mut(2);
        left.swap_with_slice(&mut right[..2]);
        tun.send(packet).unwrap();
        assert_eq!(uninterrupted(|| socket.recv(&mut [0; 200])).unwrap(), 100);
    }
    let error = tun.send(&[0; 40]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);

    drop(tun);
    no_interface_stays(&namespace);
}

#[test]
fn the_queue_holds_as_many_packets_as_asked_and_none_exceeds_the_mtu() {
    if !permitted() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let tun = namespace
        .run(|| Tun::open(&config("left")))
        .unwrap()
        .unwrap();
    let socket = namespace
        .run(|| UdpSocket::bind("10.77.0.1:0"))
        .unwrap()
        .unwrap();
    socket.connect("10.77.0.2:4000").unwrap();
    // Three fragments of each.
    for _ in 0..1000 {
        socket.send(&[0; 3000]).unwrap();
    }
    let mut lengths = Vec::new();
    let mut buffer = [0; 5000];
    while let Ok(length) = tun.receive(&mut buffer) {
        lengths.push(length);
    }
    assert_eq!(lengths.len(), 1234);
    assert!(*lengths.iter().max().unwrap() <= 1400, "{lengths:?}");
}

#[test]
fn bad_settings_are_errors() {
    if !permitted() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let open = |config: TunConfig| namespace.run(|| Tun::open(&config)).unwrap().unwrap_err();
    for name in ["", "a-name-too-long-for-it"] {
        assert_eq!(open(config(name)).kind(), io::ErrorKind::InvalidInput);
    }
    let addresses = vec![("10.77.0.1".parse().unwrap(), 33)];
    assert_eq!(
        open(TunConfig {
            addresses,
            ..config("prefix")
        })
        .kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        open(TunConfig {
            mtu: 1 << 40,
            ..config("mtu")
        })
        .kind(),
        io::ErrorKind::InvalidInput
    );
    no_interface_stays(&namespace);
}

#[test]
fn kernel_parameters_are_those_of_the_namespace() {
    if !permitted() {
        return;
    }
    let path = "/proc/sys/net/ipv4/tcp_rmem";
    let outside = fs::read_to_string(path).unwrap();
    let namespace = Namespace::new().unwrap();
    namespace
        .sysctl("net.ipv4.tcp_rmem", "4096 87380 12345678")
        .unwrap();
    let inside = namespace.run(|| fs::read_to_string(path)).unwrap().unwrap();
    assert!(inside.trim_end().ends_with("12345678"), "{inside}");
    assert_eq!(fs::read_to_string(path).unwrap(), outside);
    let error = namespace.sysctl("net.ipv4.no_such", "1").unwrap_err();
    assert!(error.to_string().contains("no_such"), "{error}");
}

#[test]
fn a_panic_inside_goes_on_in_the_caller() {
    if !permitted() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let result = std::panic::catch_unwind(|| namespace.run(|| panic!("inside")));
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&"inside"));
}
