//! The filter of acknowledgements between two kernels, of which the one that sends loses packets on the way. Skipped, saying why, where
//! namespaces or queues are not to be had.
//!
//! The receiver's machine has the agent. Whatever the kernels are told to do, the streams are those that were sent.

#[path = "own/link.rs"]
mod link;
#[path = "own/streams.rs"]
mod streams;

use std::{
    io::{BufRead, BufReader},
    net::IpAddr,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use link::{Host, Link, TO, carry, hosts};
use sphinx_pep::{
    Agent, Config, Counts, Place, Stage,
    acks::{AckCc, AckFilter, Mode, ReturnQueue},
    attach::Attachment,
    returning::Returning,
    rsfc::{self, Rsfc},
};
use streams::{Streams, exchange};

const BYTES: usize = 3_000_000;
/// Every so manieth segment with data is lost.
const LOSES: u64 = 200;

const fn queue(mode: Mode) -> AckFilter {
    AckFilter {
        queue: Some(ReturnQueue {
            bits_per_second: 100_000,
            bytes: 50_000,
            acks_first: false,
            mode,
        }),
        every_ns: None,
    }
}

const EVERY: AckFilter = AckFilter {
    queue: None,
    every_ns: Some(20_000_000),
};

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    to: IpAddr,
    filter: AckFilter,
    congestion: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    /// So much goes the other way, too, on the same connection.
    back: usize,
    /// Other stages.
    with: fn(Config) -> Config,
}

const CASE: Case = Case {
    name: "",
    to: TO[0],
    filter: queue(Mode::Conservative),
    congestion: "cubic",
    parameters: &[],
    back: 0,
    with: |config| config,
};

/// What is exchanged in a case.
fn streams(case: &Case) -> Streams {
    Streams {
        to: case.to,
        congestion: case.congestion,
        bytes: BYTES,
        back: case.back,
    }
}

fn open(hosts: &[Host; 2]) -> Option<Attachment> {
    let open = || Attachment::nfqueue("link", Place::Base);
    match hosts[1].namespace.run(open).expect("a thread") {
        Ok(attachment) => Some(attachment),
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            None
        }
    }
}

fn config(filter: AckFilter) -> Config {
    Config {
        stage: Stage::Pass,
        ack_filter: Some(filter),
        // A busy machine is no reason not to help here.
        lag_ns_max: 10_000_000_000,
        ..Config::default()
    }
}

fn lossy() -> Link {
    Link {
        loses: AtomicU64::new(LOSES),
        ..Link::default()
    }
}

/// What the agent did; nothing where it cannot be.
fn filtered(case: &Case) -> Option<Counts> {
    let hosts = &hosts()?;
    for host in hosts {
        for (name, value) in case.parameters {
            host.namespace.sysctl(name, value).expect("a parameter");
        }
    }
    let mut attachment = open(hosts)?;
    let mut agent = Agent::new((case.with)(config(case.filter)));
    let stopper = attachment.stopper();
    let link = &lossy();
    thread::scope(|scope| {
        let (attachment, agent) = (&mut attachment, &mut agent);
        let namespace = &hosts[1].namespace;
        scope.spawn(move || carry(hosts, link));
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {})));
        let exchanged = || exchange(hosts, &streams(case));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(exchanged));
        stopper.stop();
        link.done.store(true, Relaxed);
        let served = serving.join().expect("a thread").expect("a thread");
        served.expect("service");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    Some(agent.counts())
}

/// All at once, as each of them mostly waits.
fn together(cases: &[Case]) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || {
                let Some(counts) = filtered(case) else { return };
                let dropped: u64 = counts.acks_dropped.values().sum();
                let about = format!("{} {:?}: {counts:?}", case.name, case.filter);
                println!(
                    "{} {:?}: {dropped} of {}",
                    case.name, case.filter, counts.acks_seen
                );
                assert!(dropped > 10 && dropped < counts.acks_seen, "{about}");
            });
        }
    });
}

#[test]
fn streams_are_whole_however_acknowledgements_are_filtered() {
    let filters = [queue(Mode::Conservative), queue(Mode::Aggressive), EVERY];
    let cases = TO.map(|to| filters.map(|filter| Case { to, filter, ..CASE }));
    together(&cases.concat());
}

#[test]
fn senders_of_all_kinds() {
    let of = |congestion| {
        [queue(Mode::Aggressive), EVERY].map(|filter| Case {
            name: congestion,
            congestion,
            filter,
            ..CASE
        })
    };
    together(&["reno", "bbr"].map(of).concat());
}

#[test]
fn without_options_and_with_ecn() {
    let of = |parameters| {
        [queue(Mode::Aggressive), EVERY].map(|filter| Case {
            name: "parameters",
            parameters,
            filter,
            ..CASE
        })
    };
    let parameters: [&[(&str, &str)]; 3] = [
        &[("net.ipv4.tcp_sack", "0")],
        &[("net.ipv4.tcp_timestamps", "0")],
        &[("net.ipv4.tcp_ecn", "1")],
    ];
    together(&parameters.map(of).concat());
}

#[test]
fn both_ways_at_once() {
    let cases = [queue(Mode::Conservative), EVERY].map(|filter| Case {
        name: "both ways",
        filter,
        back: 100_000,
        ..CASE
    });
    together(&cases);
}

/// Reconstruction, pacing and congestion control of acknowledgements, and windows of uploads: both hosts send, so that each has something to do.
fn all_others(config: Config) -> Config {
    let queue = config.ack_filter.and_then(|filter| filter.queue);
    Config {
        ack_filter: None,
        ack_cc: Some(AckCc {
            queue,
            mark_ns: 5_000_000,
            ..AckCc::default()
        }),
        returning: Returning::Reconstruct,
        pace: true,
        rsfc: Some(Rsfc::default()),
        ..config
    }
}

fn without_limited_transmit(config: Config) -> Config {
    Config {
        returning: Returning::NoLimitedTransmit,
        pace: true,
        rsfc: Some(Rsfc::default()),
        ..config
    }
}

fn yielding(config: Config) -> Config {
    Config {
        rsfc: Some(Rsfc {
            mode: rsfc::Mode::Rledbat,
            ..Rsfc::default()
        }),
        ..all_others(config)
    }
}

#[test]
fn other_stages_carry_the_same_streams() {
    let of = |(to, congestion, parameters): (IpAddr, _, _)| {
        let all = [
            all_others as fn(Config) -> Config,
            without_limited_transmit,
            yielding,
        ];
        all.map(|with| Case {
            to,
            congestion,
            parameters,
            back: 60_000,
            with,
            ..CASE
        })
    };
    let none: &[(&str, &str)] = &[];
    let cases = [
        (TO[0], "cubic", none),
        (TO[1], "reno", &[("net.ipv4.tcp_ecn", "1")]),
        (TO[0], "bbr", &[("net.ipv4.tcp_sack", "0")]),
    ]
    .map(of)
    .concat();
    thread::scope(|scope| {
        for case in &cases {
            scope.spawn(move || {
                let begun = std::time::Instant::now();
                let Some(counts) = filtered(case) else { return };
                println!("{} {:?}: {counts:?}", case.congestion, begun.elapsed());
                assert!(counts.paced > 0 && counts.uploads == 1, "{counts:?}");
            });
        }
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
    let mut attachment = Attachment::nfqueue("link", Place::Base).expect("an attachment");
    println!("serving");
    let mut agent = Agent::new(config(queue(Mode::Conservative)));
    attachment.run(&mut agent, |_, _| {}).expect("service");
}

/// What waited in it is lost once, rules and queue go with the process, and the stream goes on.
#[test]
fn an_agent_that_is_killed() {
    let Some(hosts) = &hosts() else { return };
    if open(hosts).is_none() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args(["--exact", "the_agent_of_another_process", "--nocapture"])
        .env(IS_AGENT, "1")
        .stdout(Stdio::piped());
    let mut child = hosts[1].namespace.spawn(&mut command).expect("a process");
    let output = child.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let serves = lines.any(|line| line.is_ok_and(|it| it.contains("serving")));
    assert!(serves, "an agent");
    let link = &lossy();
    thread::scope(|scope| {
        scope.spawn(move || carry(hosts, link));
        // In the middle: so many segments with data have come by.
        scope.spawn(move || {
            while link.segments.load(Relaxed) < 500 && !link.done.load(Relaxed) {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            child.kill().expect("a process");
            child.wait().expect("a process");
        });
        let exchanged = || exchange(hosts, &streams(&CASE));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(exchanged));
        link.done.store(true, Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}
