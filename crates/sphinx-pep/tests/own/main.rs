//! RDB for connections of this machine, between two kernels over a link that loses packets. Skipped, saying why, where namespaces or queues
//! are not to be had.
//!
//! Whatever the kernels are told to do, the stream is the one that was sent, and the sender's kernel hears of no copy that it did not make.

mod link;

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use link::{Host, Link, TO, carry, hosts, statistic};
use socket2::{Domain, SockRef, Socket, Type};
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    attach::{Attachment, Own},
    rdb::{Mode, Rdb, Response, Slowed, Thin},
};

const PORT: u16 = 7777;
const MESSAGES: usize = 150;
/// More are sent where something has to happen first, up to so many times as many.
const PATIENCE: usize = 10;
const BYTES: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

const PAPER: Rdb = Rdb {
    mode: Mode::Paper,
    ..DEFAULT
};
/// [`Rdb::default`], of which constants can be made.
const DEFAULT: Rdb = Rdb {
    mode: Mode::Auto,
    thin: Thin::Dpifl,
    dpifl_itt_ns: sphinx_pep::rdb::ITT_NS_MIN,
    max_packets: 1,
    max_bytes: 0,
    response: Response::Auto,
    extra_percent: 300,
    max_extra: None,
};

/// What two kernels do, over which link.
struct Case {
    name: &'static str,
    to: IpAddr,
    rdb: Rdb,
    congestion: &'static str,
    /// Kernel parameters of both hosts.
    parameters: &'static [(&'static str, &'static str)],
    /// What the receiver has room for, instead of the usual.
    room: Option<usize>,
    /// The longest segment of the sender, instead of the usual.
    segment: Option<u32>,
    dry_run: bool,
    link: Link,
    send: fn(&mut Stream<'_>),
}

impl Default for Case {
    fn default() -> Case {
        Case {
            name: "",
            to: TO[0],
            rdb: PAPER,
            congestion: "cubic",
            parameters: &[],
            room: None,
            segment: None,
            dry_run: false,
            link: Link::default(),
            send: |stream| stream.messages(|_| true),
        }
    }
}

/// The sender's end.
struct Stream<'a> {
    tcp: TcpStream,
    sent: usize,
    link: &'a Link,
    /// The receiver does not read.
    pause: &'a AtomicBool,
}

/// The stream's byte at a position.
fn byte(position: usize) -> u8 {
    ((position * 7919) >> 5) as u8
}

impl Stream<'_> {
    fn write(&mut self, length: usize) {
        let bytes: Vec<u8> = (self.sent..self.sent + length).map(byte).collect();
        self.tcp.write_all(&bytes).expect("a stream");
        self.sent += length;
    }

    /// Messages, and more of them until something has happened.
    fn messages(&mut self, happened: impl Fn(&Link) -> bool) {
        for n in 0..MESSAGES * PATIENCE {
            if n >= MESSAGES && happened(self.link) {
                return;
            }
            self.write(BYTES);
            thread::sleep(PAUSE);
        }
    }

    /// Writes what is taken of a message at once.
    fn offer(&mut self) {
        self.tcp.set_nonblocking(true).expect("an option");
        let bytes: Vec<u8> = (self.sent..self.sent + BYTES).map(byte).collect();
        match self.tcp.write(&bytes) {
            Ok(length) => self.sent += length,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        self.tcp.set_nonblocking(false).expect("an option");
    }
}

/// What was sent arrives, whatever the kernels' settings are. Returns how much it was.
fn exchange(hosts: &[Host; 2], case: &Case) -> usize {
    let address = SocketAddr::new(case.to, PORT);
    let (domain, tcp) = (Domain::for_address(address), Some(socket2::Protocol::TCP));
    let socket = |host: &Host| {
        let socket = host
            .namespace
            .run(|| Socket::new(domain, Type::STREAM, tcp));
        socket.expect("a thread").expect("a socket")
    };
    let listening = socket(&hosts[1]);
    if let Some(room) = case.room {
        listening.set_recv_buffer_size(room).expect("an option");
    }
    // Of another attempt, something may be left there.
    listening.set_reuse_address(true).expect("an option");
    listening.bind(&address.into()).expect("a port");
    listening.listen(1).expect("a port");
    let listener = TcpListener::from(listening);
    let pause = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let (mut received, mut buffer) = (0, [0; 4096]);
            loop {
                while pause.load(Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                match stream.read(&mut buffer).expect("a stream") {
                    0 => return received,
                    length => {
                        let expected = (received..received + length).map(byte);
                        assert!(buffer[..length].iter().copied().eq(expected));
                        received += length;
                    }
                }
            }
        });
        let sending = socket(&hosts[0]);
        sending
            .set_tcp_congestion(case.congestion.as_bytes())
            .expect("a way to send");
        if let Some(bytes) = case.segment {
            sending.set_tcp_mss(bytes).expect("an option");
        }
        sending.connect(&address.into()).expect("a connection");
        sending.set_tcp_nodelay(true).expect("an option");
        let mut stream = Stream {
            tcp: TcpStream::from(sending),
            sent: 0,
            link: &case.link,
            pause: &pause,
        };
        (case.send)(&mut stream);
        let sent = stream.sent;
        drop(stream);
        assert_eq!(receiving.join().expect("a thread"), sent, "{}", case.name);
        sent
    })
}

/// Lets an agent serve the first host's connections until the stopper is used.
fn open(hosts: &[Host; 2]) -> Option<Attachment> {
    let own = Own {
        ports: vec![PORT..=PORT],
        bytes_max: 1280,
        ..Own::default()
    };
    let opened = hosts[0].namespace.run(|| Attachment::own(own));
    match opened.expect("a thread") {
        Ok(attachment) => Some(attachment),
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            None
        }
    }
}

fn agent(rdb: Rdb, dry_run: bool) -> Agent {
    Agent::new(Config {
        stage: Stage::Rdb(rdb),
        dry_run,
        // A busy machine is no reason not to help here.
        lag_ns_max: 10_000_000_000,
        ..Config::default()
    })
}

/// What the agent did; nothing where it cannot be.
fn helped(case: &Case) -> Option<Counts> {
    let hosts = &hosts()?;
    for host in hosts {
        for (name, value) in case.parameters {
            host.namespace.sysctl(name, value).expect("a parameter");
        }
    }
    let mut attachment = open(hosts)?;
    let mut agent = agent(case.rdb, case.dry_run);
    let stopper = attachment.stopper();
    let link = &case.link;
    thread::scope(|scope| {
        let (attachment, agent) = (&mut attachment, &mut agent);
        let namespace = &hosts[0].namespace;
        let carrying = scope.spawn(move || carry(hosts, link));
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {})));
        let exchanged = || exchange(hosts, case);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(exchanged));
        // The last acknowledgements, which nobody waits for, would come to a sender without an agent.
        link.done.store(true, Relaxed);
        carrying.join().expect("a thread");
        stopper.stop();
        let served = serving.join().expect("a thread").expect("a thread");
        served.expect("service");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    let counts = agent.counts();
    let about = format!("{}: {link:?} {counts:?}", case.name);
    heard_of_no_copies(&hosts[0], &about);
    Some(counts)
}

/// The sender's kernel was told of no copies but those that it has made.
fn heard_of_no_copies(host: &Host, about: &str) {
    let numbers = || {
        [
            "TCPDSACKIgnoredDubious",
            "TCPDSACKRecv",
            "TCPDSACKOfoRecv",
            "RetransSegs",
        ]
        .map(statistic)
    };
    let [dubious, copies, others, resent] = host.namespace.run(numbers).expect("a thread");
    assert_eq!(dubious, 0, "{about}");
    assert!(
        copies + others <= resent,
        "{copies} + {others} of {resent}: {about}"
    );
}

/// Runs all cases at the same time, as each of them mostly waits.
fn together(cases: Vec<Case>, check: fn(&Case, &Counts)) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || {
                if let Some(counts) = helped(&case) {
                    check(&case, &counts);
                }
            });
        }
    });
}

/// Copies went along, and have repaired losses.
fn has_helped(case: &Case, counts: &Counts) {
    let about = format!("{}: {:?} {counts:?}", case.name, case.link);
    assert!(counts.bundled > 30, "{about}");
    assert!(
        counts.losses_repaired + counts.losses_unknown > 3,
        "{about}"
    );
    assert!(counts.dsacks_stripped > 10, "{about}");
    assert!(case.link.bundles.load(Relaxed) > 30, "{about}");
}

#[test]
fn thin_streams_of_this_machine_do_not_wait_for_retransmissions() {
    let cases = TO.map(|to| Case {
        name: "paper",
        to,
        ..Case::default()
    });
    together(cases.into(), has_helped);
}

#[test]
fn copies_begin_with_the_first_loss() {
    let case = Case {
        name: "auto",
        rdb: DEFAULT,
        ..Case::default()
    };
    together(vec![case], |case, counts| {
        assert!(counts.alone.len() > 1, "{counts:?}");
        has_helped(case, counts);
    });
}

/// Where ECN was negotiated, a loss that the sender did not see makes it slow down, and say so. For what it has sent again itself, it does so by
/// itself.
#[test]
fn senders_of_all_kinds_slow_down_with_ecn_and_only_then() {
    const ECN: &[(&str, &str)] = &[("net.ipv4.tcp_ecn", "1")];
    const NO_ECN: &[(&str, &str)] = &[("net.ipv4.tcp_ecn", "0")];
    let none = Rdb {
        response: Response::None,
        ..PAPER
    };
    let of = |congestion| {
        let case = |parameters, rdb| Case {
            name: congestion,
            congestion,
            parameters,
            rdb,
            ..Case::default()
        };
        let slowed = Case {
            send: |stream| stream.messages(|link| link.answers.load(Relaxed) > 4),
            ..case(ECN, PAPER)
        };
        [slowed, case(ECN, none), case(NO_ECN, PAPER)]
    };
    let cases = ["cubic", "reno", "bbr"].map(of);
    together(cases.into_iter().flatten().collect(), |case, counts| {
        has_helped(case, counts);
        let answers = case.link.answers.load(Relaxed);
        let slowed = counts.slowed.get(&Slowed::Ecn).copied().unwrap_or(0);
        let about = format!("{answers}: {} {:?}: {counts:?}", case.name, case.parameters);
        if case.parameters == ECN && case.rdb.response == Response::Auto {
            assert!(answers > counts.resent && slowed > 0, "{about}");
        } else {
            assert!(answers <= counts.resent && slowed == 0, "{about}");
        }
    });
}

#[test]
fn without_timestamps() {
    let cases = TO.map(|to| Case {
        name: "no timestamps",
        to,
        parameters: &[("net.ipv4.tcp_timestamps", "0")],
        ..Case::default()
    });
    together(cases.into(), has_helped);
}

/// What was lost was sent again by the kernel; most of it would have come with the next message.
#[test]
fn a_dry_run_changes_nothing() {
    let case = Case {
        name: "dry run",
        dry_run: true,
        ..Case::default()
    };
    together(vec![case], |case, counts| {
        let about = format!("{:?} {counts:?}", case.link);
        assert_eq!(case.link.bundles.load(Relaxed), 0, "{about}");
        assert!(counts.bundled > 30 && counts.resent > 3, "{about}");
        let saved = 1..=counts.resent;
        assert!(saved.contains(&counts.losses_repaired), "{about}");
    });
}

/// Such a receiver tells of no copies: nothing is known of what they did.
#[test]
fn without_sack() {
    let cases = TO.map(|to| Case {
        name: "no SACK",
        to,
        parameters: &[("net.ipv4.tcp_sack", "0")],
        ..Case::default()
    });
    together(cases.into(), |case, counts| {
        let about = format!("{}: {:?} {counts:?}", case.name, case.link);
        assert!(case.link.bundles.load(Relaxed) > 30, "{about}");
        assert!(counts.losses_unknown > 3, "{about}");
        assert_eq!(
            (counts.losses_repaired, counts.dsacks_stripped),
            (0, 0),
            "{about}"
        );
    });
}

/// The receiver uses SACK and does not report copies.
#[test]
fn without_reports_of_copies() {
    let case = Case {
        name: "no D-SACK",
        parameters: &[("net.ipv4.tcp_dsack", "0")],
        ..Case::default()
    };
    together(vec![case], |case, counts| {
        let about = format!("{}: {:?} {counts:?}", case.name, case.link);
        assert!(case.link.bundles.load(Relaxed) > 30, "{about}");
        assert_eq!(counts.losses_repaired, 0, "{about}");
    });
}

/// Several messages at once, the kernel's own way of putting them together (Nagle), and the application's (TCP_CORK).
#[test]
fn however_messages_are_written() {
    let always = Rdb {
        thin: Thin::Always,
        max_packets: 0,
        ..PAPER
    };
    let cases = vec![
        Case {
            name: "bursts",
            rdb: always,
            send: |stream| {
                for _ in 0..MESSAGES / 3 {
                    (0..6).for_each(|_| stream.write(BYTES));
                    thread::sleep(PAUSE * 4);
                }
            },
            ..Case::default()
        },
        Case {
            name: "bursts of other lengths",
            rdb: always,
            send: |stream| {
                for n in 0..MESSAGES / 3 {
                    (0..n % 5).for_each(|it| stream.write(1 + (n * 37 + it * 401) % 1700));
                    thread::sleep(PAUSE * 4);
                }
            },
            ..Case::default()
        },
        Case {
            name: "Nagle",
            rdb: always,
            send: |stream| {
                stream.tcp.set_nodelay(false).expect("an option");
                for _ in 0..MESSAGES * 4 {
                    stream.write(BYTES / 2);
                    thread::sleep(PAUSE / 4);
                }
            },
            ..Case::default()
        },
        Case {
            name: "TCP_CORK",
            rdb: always,
            send: |stream| {
                for _ in 0..MESSAGES {
                    let cork = |tcp: &TcpStream, on| SockRef::from(tcp).set_tcp_cork(on);
                    cork(&stream.tcp, true).expect("an option");
                    (0..3).for_each(|_| stream.write(BYTES / 2));
                    cork(&stream.tcp, false).expect("an option");
                    thread::sleep(PAUSE);
                }
            },
            ..Case::default()
        },
    ];
    together(cases, |case, _| {
        let link = &case.link;
        // With Nagle, nothing is in flight before the next segment.
        if case.name != "Nagle" {
            assert!(link.bundles.load(Relaxed) > 3, "{}: {link:?}", case.name);
        }
    });
}

/// A receiver that does not read, again and again.
#[test]
fn a_window_that_closes_and_opens() {
    let cases = TO.map(|to| Case {
        name: "window",
        to,
        rdb: Rdb {
            thin: Thin::Always,
            max_packets: 0,
            ..PAPER
        },
        room: Some(4096),
        send: |stream| {
            for _ in 0..3 {
                let closed = stream.link.closed.load(Relaxed);
                stream.pause.store(true, Relaxed);
                while stream.link.closed.load(Relaxed) == closed {
                    stream.offer();
                    thread::sleep(PAUSE / 10);
                }
                stream.pause.store(false, Relaxed);
                (0..20).for_each(|_| {
                    stream.write(BYTES);
                    thread::sleep(PAUSE);
                });
            }
        },
        ..Case::default()
    });
    together(cases.into(), |case, counts| {
        let about = format!("{}: {:?} {counts:?}", case.name, case.link);
        assert!(case.link.bundles.load(Relaxed) > 3, "{about}");
    });
}

/// Bundles become too long for the path in mid-stream, whether somebody says so or not.
#[test]
fn a_path_that_becomes_narrower() {
    let of = |name, tells_mtu, segment| Case {
        name,
        rdb: Rdb {
            thin: Thin::Always,
            max_packets: 0,
            extra_percent: 10_000,
            ..PAPER
        },
        segment,
        link: Link {
            loses: AtomicU64::new(0),
            tells_mtu,
            ..Link::default()
        },
        send: |stream| {
            let link = stream.link;
            for _ in 0..40 {
                stream.write(2 * BYTES);
                thread::sleep(PAUSE);
            }
            link.mtu.store(700, Relaxed);
            // Until bundles that fit follow each other.
            let (mut fit, mut of) = (0, (0, 0));
            for _ in 0..MESSAGES * PATIENCE {
                stream.write(2 * BYTES);
                thread::sleep(PAUSE);
                let now = (link.too_long.load(Relaxed), link.bundles.load(Relaxed));
                match (now.0 == of.0, now.1 == of.1) {
                    (false, _) => fit = 0,
                    (true, false) => fit += 1,
                    (true, true) => {}
                }
                of = now;
                if fit > 30 {
                    return link.fits.store(true, Relaxed);
                }
            }
        },
        ..Case::default()
    };
    // Without a word of the router, the sender's own segments have to fit.
    let cases = vec![of("told", true, None), of("not told", false, Some(600))];
    together(cases, |case, counts| {
        let about = format!("{}: {:?} {counts:?}", case.name, case.link);
        assert!(case.link.too_long.load(Relaxed) > 0, "{about}");
        assert!(case.link.fits.load(Relaxed), "{about}");
    });
}

/// The variable by which this program is an agent that can be killed.
const IS_AGENT: &str = "SPHINX_TEST_AGENT";

/// No test of its own: the agent of the next one, in a process that is killed.
#[test]
fn the_agent_of_another_process() {
    if std::env::var_os(IS_AGENT).is_none() {
        return;
    }
    let own = Own {
        ports: vec![PORT..=PORT],
        bytes_max: 1280,
        ..Own::default()
    };
    let mut attachment = Attachment::own(own).expect("an attachment");
    println!("serving");
    // As many as there are in flight on a busy machine.
    let rdb = Rdb {
        thin: Thin::Always,
        ..PAPER
    };
    attachment
        .run(&mut agent(rdb, false), |_, _| {})
        .expect("service");
}

/// Rules and queue go with the process, and the stream goes on without them.
#[test]
fn an_agent_that_is_killed() {
    let Some(hosts) = hosts() else { return };
    if open(&hosts).is_none() {
        return;
    }
    for (to, after) in [(TO[0], 1), (TO[1], 20), (TO[0], 45)] {
        // An agent that gets no processor for too long lets its connections go, and bundles nothing of them any more.
        let mut attempts = (0..PATIENCE).map(|_| kill(&hosts, to, after));
        let killed = attempts.find(|(before, _)| *before >= after);
        let (before, bundles) = killed.expect("so many bundles before the end of the stream");
        // A few bundles were still on their way.
        assert!(bundles < before + 20, "{before}, {bundles}");
    }
}

/// Kills an agent after so many bundles, in the middle of a stream that has to arrive; bundles before and altogether.
fn kill(hosts: &[Host; 2], to: IpAddr, after: u64) -> (u64, u64) {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args(["--exact", "the_agent_of_another_process", "--nocapture"])
        .env(IS_AGENT, "1")
        .stdout(Stdio::piped());
    let mut child = hosts[0].namespace.spawn(&mut command).expect("a process");
    let output = child.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let serves = lines.any(|line| line.is_ok_and(|it| it.contains("serving")));
    assert!(serves, "an agent");
    let case = Case {
        name: "killed",
        to,
        send: |stream| {
            stream.messages(|link| link.alone.load(Relaxed));
            stream.messages(|_| true);
        },
        ..Case::default()
    };
    let link = &case.link;
    let before = AtomicU64::new(0);
    thread::scope(|scope| {
        let before = &before;
        scope.spawn(move || carry(hosts, link));
        scope.spawn(move || {
            while link.bundles.load(Relaxed) < after && !link.done.load(Relaxed) {
                thread::sleep(Duration::from_micros(100));
            }
            child.kill().expect("a process");
            child.wait().expect("a process");
            before.store(link.bundles.load(Relaxed), Relaxed);
            link.alone.store(true, Relaxed);
        });
        let exchanged = || exchange(hosts, &case);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(exchanged));
        link.done.store(true, Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    (before.into_inner(), link.bundles.load(Relaxed))
}
