//! Uploads between two kernels over a link with a deep queue, and an agent on the receiver's machine that lowers their windows. Skipped, saying why, where namespaces or
//! queues are not to be had.

#[path = "own/link.rs"]
mod link;
#[path = "own/streams.rs"]
mod streams;

use std::{net::IpAddr, sync::atomic::AtomicU64, thread};

use link::{Link, TO, hosts};
use sphinx_pep::{
    Agent, Config, Counts, Stage,
    rsfc::{Rsfc, Unclamped},
};
use streams::{Streams, attach, be_agent, exchange_abandoned, exchange_helped};

#[derive(Clone, Copy)]
struct Case {
    streams: Streams,
    parameters: &'static [(&'static str, &'static str)],
}

const CASE: Case = Case {
    streams: Streams {
        to: TO[0],
        congestion: "cubic",
        bytes: 2_000_000,
        back: 0,
    },
    parameters: &[],
};

fn with(to: IpAddr, congestion: &'static str) -> Case {
    let streams = Streams {
        to,
        congestion,
        ..CASE.streams
    };
    Case { streams, ..CASE }
}

/// 8 Mbit/s, and a queue without end.
fn deep() -> Link {
    Link {
        loses: AtomicU64::new(0),
        bytes_per_second: 1_000_000,
        ..Link::default()
    }
}

fn agent() -> Agent {
    Agent::new(Config {
        stage: Stage::Pass,
        rsfc: Some(Rsfc::default()),
        // A busy machine is no reason not to help here.
        lag_ns_max: 10_000_000_000,
        ..Config::default()
    })
}

/// What the agent did while the streams arrived whole; nothing where it cannot be.
fn helped(case: &Case) -> Option<Counts> {
    let hosts = &hosts()?;
    for host in hosts {
        for (name, value) in case.parameters {
            host.namespace.sysctl(name, value).expect("a parameter");
        }
    }
    let mut attachment = attach(hosts)?;
    let mut agent = agent();
    let helping = (&mut attachment, &mut agent);
    exchange_helped(hosts, &deep(), helping, &case.streams);
    Some(agent.counts())
}

/// Runs all cases at the same time, as each of them mostly waits.
fn together(cases: &[Case], check: impl Fn(&Counts) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || {
                let Some(counts) = helped(case) else { return };
                println!(
                    "{} to {}: {counts:?}",
                    case.streams.congestion, case.streams.to
                );
                check(&counts);
            });
        }
    });
}

#[test]
fn uploads_of_all_kinds_are_whole_and_have_smaller_windows() {
    let of = |to| ["reno", "cubic", "bbr"].map(|congestion| with(to, congestion));
    together(&TO.map(of).concat(), |counts| {
        assert_eq!(
            (counts.uploads, counts.unclamped.len()),
            (1, 0),
            "{counts:?}"
        );
        assert!(counts.windows_lowered > 0, "{counts:?}");
    });
}

#[test]
fn uploads_without_timestamps_pass_and_are_counted() {
    let case = Case {
        parameters: &[("net.ipv4.tcp_timestamps", "0")],
        ..CASE
    };
    together(&[case], |counts| {
        assert_eq!(counts.unclamped.get(&Unclamped::NoTimestamps), Some(&1));
        assert_eq!(
            (counts.uploads, counts.windows_lowered),
            (0, 0),
            "{counts:?}"
        );
    });
}

#[test]
fn uploads_beside_downloads_are_whole() {
    let cases = ["cubic", "bbr"].map(|congestion| {
        let streams = Streams {
            back: 2_000_000,
            ..with(TO[0], congestion).streams
        };
        Case { streams, ..CASE }
    });
    together(&cases, |counts| {
        assert_eq!(counts.uploads, 1, "{counts:?}");
        assert!(counts.windows_lowered > 0, "{counts:?}");
    });
}

/// No test of its own: the agent of the next one, in a process that is killed.
#[test]
fn the_agent_of_uploads_in_another_process() {
    be_agent(agent);
}

/// The upload goes on with the receiver's own windows.
#[test]
fn an_upload_outlives_its_agent() {
    let Some(hosts) = &hosts() else { return };
    if attach(hosts).is_none() {
        return;
    }
    // The agent is killed in the middle, when windows are small.
    let killed = ("the_agent_of_uploads_in_another_process", 700);
    exchange_abandoned(hosts, &deep(), killed, &CASE.streams);
}
