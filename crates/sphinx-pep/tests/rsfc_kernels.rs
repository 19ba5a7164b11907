//! Uploads between two kernels over a link with a deep queue, and an agent on the receiver's machine that lowers their windows. Skipped, saying why, where namespaces or
//! queues are not to be had.

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
    attach::Attachment,
    rsfc::{Rsfc, Unclamped},
};
use streams::{Streams, exchange};

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
    let mut attachment = open(hosts)?;
    let mut agent = agent();
    let stopper = attachment.stopper();
    let link = &deep();
    thread::scope(|scope| {
        let (attachment, agent) = (&mut attachment, &mut agent);
        let namespace = &hosts[1].namespace;
        scope.spawn(move || carry(hosts, link));
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {})));
        let exchanged = || exchange(hosts, &case.streams);
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

/// The variable by which this program is an agent that can be killed.
const IS_AGENT: &str = "SPHINX_TEST_AGENT";

/// No test of its own: the agent of the next one, in a process that is killed.
#[test]
fn the_agent_of_uploads_in_another_process() {
    if std::env::var_os(IS_AGENT).is_none() {
        return;
    }
    let mut attachment = Attachment::nfqueue("link", Place::Base).expect("an attachment");
    println!("serving");
    attachment.run(&mut agent(), |_, _| {}).expect("service");
}

/// The upload goes on with the receiver's own windows.
#[test]
fn an_upload_outlives_its_agent() {
    let Some(hosts) = &hosts() else { return };
    if open(hosts).is_none() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args([
            "--exact",
            "the_agent_of_uploads_in_another_process",
            "--nocapture",
        ])
        .env(IS_AGENT, "1")
        .stdout(Stdio::piped());
    let mut child = hosts[1].namespace.spawn(&mut command).expect("a process");
    let output = child.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let serves = lines.any(|line| line.is_ok_and(|it| it.contains("serving")));
    assert!(serves, "an agent");
    let link = &deep();
    thread::scope(|scope| {
        scope.spawn(move || carry(hosts, link));
        // In the middle: so many segments with data have come by, and windows are small.
        scope.spawn(move || {
            while link.segments.load(Relaxed) < 700 && !link.done.load(Relaxed) {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            child.kill().expect("a process");
            child.wait().expect("a process");
        });
        let exchanged = || exchange(hosts, &CASE.streams);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(exchanged));
        link.done.store(true, Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}
