//! Queues of the running kernel's packet filter. Skipped, saying why, where they are not to be had.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sphinx_netdev::{
    netns::{Access, Namespace, probe},
    nfqueue::{Hook, Inbox, Own, Queue, RawSender, Rules, Selection, is_taken, read},
};

const TABLE: &str = "sphx-test";
const QUEUE: u16 = 77;
const MARK: u32 = 0x1234;

/// A namespace with rules on its loopback, or why there is none.
fn scene() -> Option<(Namespace, Rules)> {
    scene_with(&Selection::Interface("lo".to_owned()))
}

fn scene_with(selection: &Selection) -> Option<(Namespace, Rules)> {
    let reason = match probe() {
        Ok(Access::Direct) => {
            let namespace = Namespace::new().expect("a namespace");
            let rules = namespace.run(|| Rules::install(TABLE, selection, QUEUE, MARK));
            match rules.expect("a thread") {
                Ok(rules) => return Some((namespace, rules)),
                Err(error) => format!("no rules of nf_tables that lead to a queue: {error}"),
            }
        }
        Ok(Access::UserNamespace) => {
            "needs root (user namespaces would work, but not beside threads)".to_owned()
        }
        Err(error) => error.to_string(),
    };
    sphinx_testing::skipped!("{reason}");
    None
}

/// Sends bytes to itself.
fn exchange(namespace: &Namespace) {
    exchange_by(namespace, 0);
}

/// An exchange by TCP at this port; 0: at any free one.
fn exchange_by(namespace: &Namespace, port: u16) {
    let contents: Vec<u8> = (0..100_000_u32).map(|n| (n >> 3) as u8).collect();
    let run = || {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
        let sending = TcpStream::connect(listener.local_addr().unwrap()).expect("a connection");
        let (mut receiving, _) = listener.accept().expect("a connection");
        thread::scope(|scope| {
            let contents = &contents;
            scope.spawn(move || (&sending).write_all(contents).expect("a reader"));
            let mut received = vec![0; contents.len()];
            receiving.read_exact(&mut received).expect("everything");
            assert!(received == *contents);
        });
    };
    namespace.run(run).expect("a thread");
}

#[test]
fn packets_pass_a_queue_as_they_are_judged() {
    let Some((namespace, mut rules)) = scene() else {
        return;
    };
    // A second one is refused, and changes nothing.
    let again = || Rules::install(TABLE, &Selection::Interface("lo".to_owned()), QUEUE, MARK);
    let error = namespace.run(again).unwrap().expect_err("it is taken");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    // Nobody serves the queue.
    exchange(&namespace);
    let open = || Queue::open(QUEUE, 100);
    let mut queue = namespace.run(open).unwrap().expect("a queue");
    let taken = namespace.run(open).unwrap().expect_err("it is taken");
    assert_eq!(taken.kind(), io::ErrorKind::PermissionDenied);
    let done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let (queue, done) = (&mut queue, &done);
        let hooks = [Hook::Prerouting, Hook::Postrouting];
        let serving = scope.spawn(move || serve(queue, done, hooks, 65_535));
        exchange(&namespace);
        done.store(true, Ordering::Release);
        serving.join().expect("a thread")
    });
    // Each packet is seen twice on a loopback.
    assert!(seen[0] > 4 && seen[1] > 4, "{seen:?}");
    rules.remove().expect("rules");
    rules.remove().expect("nothing is left to remove");
    assert!(!namespace.run(|| is_taken(TABLE)).unwrap().unwrap());
    exchange(&namespace);
}

/// A server with one of the ports 7000 to 7009, or of user 0; users that nobody is do not count.
#[test]
fn small_packets_of_chosen_connections_are_led_to_a_queue() {
    let own = |ports: &[RangeInclusive<u16>], uids: &[u32]| Own {
        ports: ports.to_vec(),
        uids: uids.to_vec(),
        cgroups: Vec::new(),
        bytes_max: 400,
    };
    let ports = [7000..=7009, 9000..=9000];
    // So many rules that neither they nor the answers would fit into a socket as it comes.
    let many: Vec<_> = (10_000..10_200)
        .map(|port| port..=port)
        .chain([7005..=7005])
        .collect();
    for (own, port, expected) in [
        (own(&ports, &[]), 7005, true),
        (own(&ports, &[]), 7010, false),
        (own(&many, &[]), 7005, true),
        (own(&[], &[0]), 7010, true),
        (own(&[], &[54_321]), 7010, false),
    ] {
        let Some((namespace, _rules)) = scene_with(&Selection::Own(own.clone())) else {
            return;
        };
        let open = || Queue::open(QUEUE, 1000);
        let mut queue = namespace.run(open).unwrap().expect("a queue");
        let done = AtomicBool::new(false);
        let hooks = [Hook::Input, Hook::Output];
        let seen = thread::scope(|scope| {
            let (queue, done) = (&mut queue, &done);
            let serving = scope.spawn(move || serve(queue, done, hooks, 400));
            exchange_by(&namespace, port);
            done.store(true, Ordering::Release);
            serving.join().expect("a thread")
        });
        match expected {
            true => assert!(seen[0] >= 2 && seen[1] >= 2, "{own:?}: {seen:?}"),
            // A SYN has no socket where it comes in.
            false => assert!(seen[0] <= 1 && seen[1] == 0, "{own:?}: {seen:?}"),
        }
    }
}

/// Lets all packets pass, by one verdict or another, and counts them by hook.
fn serve(queue: &mut Queue, done: &AtomicBool, hooks: [Hook; 2], longest: usize) -> [u32; 2] {
    let mut inbox = Inbox::new();
    let mut seen = [0; 2];
    while !done.load(Ordering::Acquire) {
        let mut files = [PollFd::new(&*queue, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_millis(20)).unwrap();
        poll(&mut files, Some(&timeout)).expect("a socket");
        while queue.receive(&mut inbox).is_ok() {
            for message in inbox.messages() {
                read(message, |queued| {
                    assert_eq!(queued.packet[0] >> 4, 4);
                    // Segments are not joined here.
                    assert!(queued.packet.len() <= longest);
                    let hook = hooks.iter().position(|hook| *hook as u8 == queued.hook);
                    let count = &mut seen[hook.expect("one of our hooks")];
                    *count += 1;
                    match *count % 3 {
                        0 => queue.replace(queued.id, queued.packet),
                        _ => queue.accept(queued.id),
                    }
                });
            }
        }
        queue.flush().expect("verdicts");
    }
    seen
}

#[test]
fn rules_go_with_whoever_made_them() {
    let Some((namespace, rules)) = scene() else {
        return;
    };
    assert!(namespace.run(|| is_taken(TABLE)).unwrap().unwrap());
    drop(rules);
    // The kernel removes them in its own time.
    while namespace.run(|| is_taken(TABLE)).unwrap().unwrap() {
        thread::yield_now();
    }
}

/// From 192.0.2.1 to 127.0.0.1, without payload; the kernel fills in lengths and the checksum of the IP header.
fn segment(flags: u8) -> [u8; 40] {
    let mut packet = [0; 40];
    (packet[0], packet[8], packet[9]) = (0x45, 64, 6);
    packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
    packet[16..20].copy_from_slice(&[127, 0, 0, 1]);
    // The ports, the length of the header, and a window.
    packet[20..24].copy_from_slice(&[0, 80, 156, 64]);
    (packet[32], packet[33], packet[34]) = (5 << 4, flags, 1);
    packet
}

#[test]
fn what_is_no_part_of_a_tracked_connection_goes_untracked() {
    const UNTRACKED: u32 = 0x1235;
    const SYN: u8 = 2;
    let Some((namespace, mut rules)) = scene() else {
        return;
    };
    if let Err(error) = rules.tell_tracked_apart(MARK, UNTRACKED) {
        return sphinx_testing::skipped!("connections are not tracked: {error}");
    }
    let inside = || {
        let queue = Queue::open(QUEUE, 100).expect("a queue");
        let mut sender = RawSender::open(MARK).expect("sockets");
        // Nobody knows of these: a reset, an acknowledgement, and an answer to a SYN.
        let others = [4, 16, 16 | SYN].map(segment);
        for packet in &others {
            let error = sender.send(packet).expect_err("it is no part");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        sender.send(&segment(SYN)).expect("it opens a connection");
        sender.set_untracked(RawSender::open(UNTRACKED).expect("sockets"));
        for packet in &others {
            sender.send(packet).expect("it goes untracked");
        }
        // The rules leave it alone as they do with others of that mark.
        let received = queue.receive(&mut Inbox::new());
        assert_eq!(
            received.map_err(|it| it.kind()),
            Err(io::ErrorKind::WouldBlock)
        );
    };
    namespace.run(inside).expect("a thread");
}

#[test]
fn an_error_does_not_answer_what_comes_later() {
    let Some((namespace, mut rules)) = scene() else {
        return;
    };
    if let Err(error) = rules.tell_tracked_apart(MARK, 1) {
        return sphinx_testing::skipped!("connections are not tracked: {error}");
    }
    // There are two chains of the same names: each is an error.
    let error = rules.tell_tracked_apart(MARK, 1).expect_err("once more");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    for _ in 0..2 {
        rules.remove().expect("they are there, or are gone");
        assert!(!namespace.run(|| is_taken(TABLE)).unwrap().unwrap());
    }
}

#[test]
fn packets_of_others_can_be_sent() {
    let Some((namespace, _rules)) = scene() else {
        return;
    };
    let sender = namespace
        .run(|| RawSender::open(MARK))
        .unwrap()
        .expect("a socket");
    sender.send(&segment(0)).expect("a packet");
    for wrong in [&[][..], &[0x45; 10], &[0x60; 20], &[0; 40]] {
        let error = sender.send(wrong).expect_err("it is no packet");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn messages_that_are_cut_off_are_left_out() {
    // Length, kind, flags, sequence, port; the packet filter's header; number and hook; packet.
    let mut message = vec![0; 20];
    message.extend([11, 0, 1, 0, 0, 0, 0, 9, 8, 0, 4, 0]);
    message.extend([7, 0, 10, 0, 0x45, 1, 2, 0]);
    message[0] = message.len() as u8;
    message[5] = 3;
    let packets = |bytes: &[u8]| {
        let mut packets = Vec::new();
        read(bytes, |it| {
            packets.push((it.id, it.hook, it.packet.to_vec()));
        });
        packets
    };
    let one = (9, 4, vec![0x45, 1, 2]);
    assert_eq!(packets(&message), std::slice::from_ref(&one));
    let two = [&message[..], &message].concat();
    assert_eq!(packets(&two), [one.clone(), one.clone()]);
    for length in 0..message.len() {
        assert_eq!(packets(&message[..length]), []);
    }
    assert_eq!(packets(&two[..two.len() - 1]), [one]);
    // Attributes with wrong lengths.
    for at in [0, 20, 32] {
        for length in [0, 3, 255] {
            let mut wrong = message.clone();
            wrong[at] = length;
            assert!(packets(&wrong).len() <= 1);
        }
    }
}
