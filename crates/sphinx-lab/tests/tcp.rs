//! The whole way with kernel TCP, and with scripts. Skipped, saying why, where namespaces or TUN devices are not
//! allowed. No test depends on being scheduled in time.

use std::{process::Command, sync::atomic::AtomicBool, time::Duration};

use sphinx_lab::{
    Cell, Clock, Contestant, Experiment, LinkSpec, PathSpec, Run, RunError, Side, Task, Workload,
    contestants::{Program, Tcp, TcpSettings},
    machine::Made,
};
use sphinx_link::Loss;
use sphinx_netdev::netns::{Access, probe};

fn program() -> Program {
    Program::new(env!("CARGO_BIN_EXE_bench-link").as_ref(), &["peer"])
}

fn cell(workload: Workload) -> Cell {
    Cell {
        name: "test".into(),
        link: LinkSpec {
            forward: Loss::Packets(vec![30, 31]),
            ..LinkSpec::clean(Duration::from_millis(2))
        },
        paths: Vec::new(),
        receive_buffer: None,
        workload,
        clock: Clock::Real,
    }
}

/// Runs reno over the link, or says why not.
fn run(workload: Workload, stop: bool) -> Option<Result<Run, RunError>> {
    run_over(&cell(workload), &Tcp::new(&program(), "reno"), 30, stop)
}

/// As [`run`], with a limit in seconds.
fn run_over(
    cell: &Cell,
    contestant: &dyn Contestant,
    limit: u64,
    stop: bool,
) -> Option<Result<Run, RunError>> {
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
    let experiment = Experiment {
        limit: Duration::from_secs(limit),
        made: Made::default(),
    };
    Some(experiment.run(cell, contestant, 1, &AtomicBool::new(stop)))
}

#[test]
fn a_megabyte_arrives_and_is_accounted() {
    let bytes = 1_000_000;
    let Some(run) = run(Workload::Bulk { bytes }, false) else {
        return;
    };
    let run = run.unwrap();
    assert!(run.done.complete, "{run:?}");
    assert_eq!((run.done.bytes, run.wire.losses), (bytes, 2));
    assert!(
        run.goodput_mbit_s > 0.0 && run.goodput_mbit_s < 200.0,
        "{run:?}"
    );
    assert!(run.wire_ratio() > 1500.0 / 1448.0 - 0.01, "{run:?}");
    let cpu = run.cpu.unwrap();
    assert!(run.wire.back_packets > 0 && cpu.sender > 0.0 && cpu.receiver > 0.0);
    assert_eq!(run.sender.unwrap()["bytes"], bytes);
    assert_eq!(run.receiver.unwrap()["cc"], "reno");
}

#[test]
fn blocks_are_timed() {
    let workload = Workload::Blocks {
        count: 30,
        bytes: 20_000,
        interval: Duration::from_millis(10),
    };
    let Some(run) = run(workload, false) else {
        return;
    };
    let run = run.unwrap();
    let blocks = run.done.blocks.unwrap();
    // Two are scheduled during the first ten round trips; one-way delay and serialisation are a lower bound.
    assert_eq!((blocks.count, run.done.bytes), (28, 600_000));
    assert!(
        blocks.p50_ms > Some(1.8) && blocks.mean_ms <= blocks.max_ms,
        "{blocks:?}"
    );
}

#[test]
fn multipath_tcp_uses_both_paths() {
    let settings = TcpSettings {
        mptcp: true,
        ..TcpSettings::new("reno")
    };
    let mptcp = Tcp::with_settings(&program(), "mptcp", settings);
    let path = |name: &str| PathSpec {
        name: name.into(),
        link: LinkSpec {
            rate: 20_000_000,
            ..LinkSpec::clean(Duration::from_millis(4))
        },
        cost: 0,
    };
    let cell = Cell {
        paths: vec![path("one"), path("two")],
        receive_buffer: Some(1 << 20),
        ..cell(Workload::Bulk { bytes: 3_000_000 })
    };
    let able = mptcp.check().and(Experiment::check(&cell, &mptcp));
    if let Err(missing) = able {
        sphinx_testing::skipped!("{missing}");
        return;
    }
    let Some(run) = run_over(&cell, &mptcp, 30, false) else {
        return;
    };
    let run = run.unwrap();
    assert!(run.done.complete, "{run:?}");
    let carried: Vec<u64> = run.paths.iter().map(|path| path.forward_bytes).collect();
    assert!(carried.len() == 2 && carried[1] > 100_000, "{carried:?}");
    assert_eq!(carried.iter().sum::<u64>(), run.wire.forward_bytes);
}

#[test]
fn an_interruption_ends_the_run() {
    let Some(run) = run(Workload::Bulk { bytes: 1_000_000 }, true) else {
        return;
    };
    assert!(matches!(run, Err(RunError::Interrupted)), "{run:?}");
}

/// Two scripts that never end by themselves and keep the processors busy. The receiver reports once, when the sender has begun.
#[derive(Debug)]
struct Endless;

fn script(text: &str, task: &Task) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(text).current_dir(&task.directory);
    command
}

impl Contestant for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn settings(&self) -> String {
        String::new()
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn receiver(&self, task: &Task) -> Command {
        let text = r#"echo '{"event": "listening"}'; until [ -e begun ]; do sleep 0.01; done
            echo '{"event": "progress", "bytes": 1000}'; while :; do :; done"#;
        script(text, task)
    }

    fn sender(&self, task: &Task) -> Command {
        script("touch begun; while :; do :; done", task)
    }

    fn reporter(&self, _workload: &Workload) -> Side {
        Side::Sender
    }

    fn keeps_limit(&self, _workload: &Workload) -> bool {
        false
    }
}

#[test]
fn what_is_cut_off_is_accounted_until_its_last_report() {
    let cell = cell(Workload::Bulk { bytes: 1_000_000 });
    let Some(run) = run_over(&cell, &Endless, 2, false) else {
        return;
    };
    let run = run.unwrap();
    assert_eq!((run.done.bytes, run.done.complete), (1000, false));
    // The sender had no other time to be busy in; to start it takes a moment.
    let cpu = run.cpu.unwrap();
    assert!(cpu.sender < run.done.seconds + 0.5, "{run:?}");
}
