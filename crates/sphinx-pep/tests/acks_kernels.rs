//! The filter of acknowledgements between two kernels, of which the one that sends loses packets on the way. Skipped, saying why, where
//! namespaces or queues are not to be had.
//!
//! The receiver's machine has the agent. Whatever the kernels are told to do, the streams are those that were sent.

#[path = "own/link.rs"]
mod link;
#[path = "own/streams.rs"]
mod streams;

use std::{net::IpAddr, sync::atomic::AtomicU64, thread};

use link::{Link, TO, hosts};
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    acks::{AckCc, AckFilter, Mode, ReturnQueue},
    returning::Returning,
    rsfc::{self, Rsfc},
};
use streams::{Streams, attach, be_agent, exchange_abandoned, exchange_helped};

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
    /// Bytes that go the other way, too, on the same connection.
    back: usize,
    /// Changes the agent's configuration, to add other stages.
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
    let mut attachment = attach(hosts)?;
    let mut agent = Agent::new((case.with)(config(case.filter)));
    let helping = (&mut attachment, &mut agent);
    exchange_helped(hosts, &lossy(), helping, &streams(case));
    Some(agent.counts())
}

/// Runs all cases at the same time, as each of them mostly waits.
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

/// No test of its own: the agent of the next one, in a process that is killed.
#[test]
fn the_agent_of_another_process() {
    be_agent(|| Agent::new(config(queue(Mode::Conservative))));
}

/// What waited in it is lost once, rules and queue go with the process, and the stream goes on.
#[test]
fn an_agent_that_is_killed() {
    let Some(hosts) = &hosts() else { return };
    if attach(hosts).is_none() {
        return;
    }
    // The agent is killed in the middle of the transfer.
    let killed = ("the_agent_of_another_process", 500);
    exchange_abandoned(hosts, &lossy(), killed, &streams(&CASE));
}
