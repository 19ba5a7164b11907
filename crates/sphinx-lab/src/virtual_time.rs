//! Runs in virtual time: two sessions under the driver that ships and the elements of the link, joined by
//! `sphinx-sim`. There is no handshake, no seal, no socket and no limit of the CPU.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sphinx_fec::CodeId;
use sphinx_link::{Counters, Datagram, Link, LinkConfig};
use sphinx_proto::{
    Bond, EPSILON, EcnMode, Icm, Nanos, Paper, PathPolicy, Profile, Sc, cc::CcKind,
    wire::BUNDLE_MAX,
};
use sphinx_sim::{Held, Pair, Processor, Reader, Scenario};
use sphinx_units as units;

use crate::{BlockNumbers, BufferNumbers, Cell, Done, LinkSpec, Wire, Workload, several};

/// What a session of `sphinx-transport` receives ahead of its reader, and has under way.
const WINDOW: u64 = 24 << 20;

/// The settings of both sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Without one, that of `sphx perf`: `latency` for whole blocks, otherwise `bulk`.
    profile: Option<Profile>,
    code: Option<CodeId>,
    icm: Icm,
    bundle: u8,
    epsilon: f64,
    cc: CcKind,
    paper: Option<Paper>,
    bond: Bond,
    sc: Option<Sc>,
    /// Of several paths the one that is used; all, if none is named.
    only: Option<String>,
}

impl Simulated {
    /// Takes those options of `sphx perf client` that concern the protocol.
    ///
    /// # Errors
    ///
    /// The first option that does not, in words.
    pub fn parse(options: &[String]) -> Result<Simulated, String> {
        let mut settings = Simulated {
            profile: None,
            code: Some(CodeId::Rlc),
            icm: Icm::Default,
            bundle: 1,
            epsilon: EPSILON,
            cc: CcKind::Bbr,
            paper: None,
            bond: Bond::Aggregate,
            sc: None,
            only: None,
        };
        let (paper, others): (Vec<_>, Vec<_>) = options
            .iter()
            .partition(|option| *option == "--paper" || option.starts_with("--paper="));
        for option in paper {
            let keys = option.strip_prefix("--paper=").unwrap_or_default();
            settings.paper = Some(paper_of(keys)?);
        }
        let mut words = others
            .iter()
            .flat_map(|option| option.splitn(2, '='))
            .fuse();
        while let Some(name) = words.next() {
            let value = words.next().unwrap_or_default();
            let is_known = match name {
                "--codec" => codec(value).map(|code| settings.code = code),
                "--icm" => icm(value).map(|icm| settings.icm = icm),
                "--bundle" => bundle(value).map(|bundle| settings.bundle = bundle),
                "--epsilon" => epsilon(value).map(|epsilon| settings.epsilon = epsilon),
                "--cc" => cc(value).map(|cc| settings.cc = cc),
                "--bond" => settings.bond(value),
                "--profile" => profile(value).map(|profile| settings.profile = profile),
                _ => None,
            };
            is_known.ok_or_else(|| format!("{name} {value} has no virtual time"))?;
        }
        Ok(settings)
    }

    /// How several paths are used.
    fn bond(&mut self, name: &str) -> Option<()> {
        let modes = [
            Bond::Aggregate,
            Bond::Redundant { copies: 0 },
            Bond::Backup,
            Bond::Cheapest,
        ];
        match modes.into_iter().find(|mode| mode.name() == name) {
            Some(mode) => self.bond = mode,
            None => self.sc = Some(Sc::by_name(name)?),
        }
        Some(())
    }

    /// Of several paths, it uses only the one of this name.
    pub(crate) fn over_path(self, only: Option<String>) -> Simulated {
        Simulated { only, ..self }
    }

    /// Runs a cell once with the losses of `seed`; bytes that arrive after the limit do not count. None
    /// when `stop` became true.
    pub(crate) fn run(
        &self,
        cell: &Cell,
        limit: Duration,
        seed: u64,
        stop: &AtomicBool,
    ) -> Option<(Done, Vec<Wire>)> {
        let unlimited = [Processor::default(); 2];
        let (done, wires, _) = self.run_charged(cell, limit, seed, stop, unlimited)?;
        Some((done, wires))
    }

    /// The same with processors that have a limit, the sender's first; and the share of the time that each had something to do.
    pub(crate) fn run_charged(
        &self,
        cell: &Cell,
        limit: Duration,
        seed: u64,
        stop: &AtomicBool,
        processors: [Processor; 2],
    ) -> Option<(Done, Vec<Wire>, [f64; 2])> {
        let scenario = Scenario {
            processors,
            ..self.scenario(cell, seed)
        };
        let mut pair = scenario.build();
        let is_bounded = cell.receive_buffer.is_some();
        let mut held = Held::default();
        let deadline = nanos(cell.workload.schedule() + limit);
        let bytes = cell.workload.bytes();
        let complete = pair.run_until(deadline, |pair| {
            if is_bounded {
                held.note(pair);
            }
            pair.server().bytes_received >= bytes || stop.load(Ordering::Relaxed)
        });
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let mut done = done(&pair, cell);
        if !complete {
            done.complete = false;
            done.seconds = deadline as f64 / 1e9;
        }
        if is_bounded {
            done.buffer = Some(buffer(&pair, &held));
        }
        let busy = [0, 1].map(|side| pair.worked(side).0 as f64 / 1e9 / done.seconds.max(1e-9));
        let further = pair.further.iter();
        let wires = [&pair.links].into_iter().chain(further).map(wire);
        Some((done, wires.collect(), busy))
    }

    fn scenario(&self, cell: &Cell, seed: u64) -> Scenario {
        let is_used = |name: &str| self.only.as_ref().is_none_or(|only| only == name);
        let paths = cell.paths.iter().enumerate();
        let used = paths.filter(|(_, path)| is_used(&path.name));
        let mut policies = Vec::new();
        let mut links: Vec<_> = used
            .map(|(index, path)| {
                policies.push(PathPolicy {
                    cost: path.cost,
                    ..PathPolicy::default()
                });
                directions(&path.link, several::seed_of(index, seed))
            })
            .collect();
        if links.is_empty() {
            links.push(directions(&cell.link, seed));
        }
        let mut links = links.into_iter();
        // There is at least one link.
        let first = links.next().unwrap_or_default();
        let plain = links.fold(Scenario::new(first), |scenario, way| scenario.path(0, way));
        let mut scenario = match cell.workload {
            Workload::Blocks {
                count,
                bytes,
                interval,
            }
            | Workload::Live {
                count,
                bytes,
                interval,
                ..
            } => plain.blocks(bytes, nanos(interval), count),
            Workload::Bulk { .. } | Workload::Video(_) | Workload::Web(_) => {
                plain.bulk(cell.workload.bytes())
            }
        };
        for plan in [&mut scenario.client, &mut scenario.server] {
            plan.ecn = EcnMode::Classic;
        }
        if cell.receive_buffer.is_some() {
            scenario.server.reader = Reader::InOrder;
        }
        Scenario {
            profile: self.profile.unwrap_or(scenario.profile),
            code: self.code,
            icm: self.icm,
            bundle: self.bundle,
            epsilon: self.epsilon,
            cc: self.cc,
            paper: self.paper,
            bond: self.bond,
            sc: self.sc,
            policies,
            recv_window: cell.receive_buffer.unwrap_or(WINDOW),
            send_window: WINDOW,
            ..scenario
        }
    }
}

/// Both directions of a link.
fn directions(link: &LinkSpec, seed: u64) -> (LinkConfig, LinkConfig) {
    let front = link.front(seed);
    let [forward, backward] = [front.left_to_right, front.right_to_left].map(|link| LinkConfig {
        mtu: link.mtu.or(Some(front.mtu)),
        ..link
    });
    (forward, backward)
}

/// What the links of a path counted.
fn wire(links: &[Link<Datagram>; 2]) -> Wire {
    let [forward, back]: [&Counters; 2] = links.each_ref().map(|link| link.counters());
    Wire::new(forward, back, links[0].waits().quantile(0.95))
}

/// What the receiver's buffer was like.
fn buffer(pair: &Pair, held: &Held) -> BufferNumbers {
    let ends = [pair.client(), pair.server()];
    let operations: u64 = ends.map(|end| end.counters().field_operations).iter().sum();
    let waits = held.waits();
    BufferNumbers {
        mean_ms: waits.mean_ms,
        p99_ms: waits.p99_ms,
        field_operations: operations as f64 / pair.server().bytes_received.max(1) as f64,
        warnings: pair.server().session().stats().warnings_sent,
    }
}

/// Whether there are applications for a workload in virtual time.
pub(crate) fn check_workload(workload: &Workload) -> Result<(), String> {
    match workload {
        Workload::Bulk { .. } | Workload::Blocks { .. } | Workload::Live { .. } => Ok(()),
        Workload::Video(_) | Workload::Web(_) => Err("HTTP has no virtual time".to_owned()),
    }
}

/// The result: what arrived, and when.
fn done(pair: &Pair, cell: &Cell) -> Done {
    let received = pair.server().pieces_received();
    let last = received
        .iter()
        .map(|block| block.0)
        .max()
        .unwrap_or(pair.now);
    let mut done = Done {
        bytes: received.iter().map(|block| u64::from(block.3)).sum(),
        seconds: last as f64 / 1e9,
        complete: true,
        ..Done::default()
    };
    let (Workload::Blocks {
        count,
        bytes,
        interval,
    }
    | Workload::Live {
        count,
        bytes,
        interval,
        ..
    }) = cell.workload
    else {
        return done;
    };
    let scheduled = |index: usize| index as Nanos * nanos(interval);
    let arrivals = pair.server().message_arrivals(bytes, count);
    let warmup = nanos(cell.warmup());
    let measured: Vec<Option<Nanos>> = arrivals
        .iter()
        .enumerate()
        .map(|(index, at)| (scheduled(index), *at))
        .filter(|(due, _)| *due >= warmup)
        .map(|(due, at)| Some(at? - due))
        .collect();
    let latencies: Vec<f64> = measured
        .iter()
        .flatten()
        .map(|latency| *latency as f64 / 1e6)
        .collect();
    // Messages that did not arrive are counted as dropped; all other numbers are about those that came.
    let due = match cell.workload {
        Workload::Live { .. } => latencies.len(),
        _ => measured.len(),
    };
    done.blocks = BlockNumbers::of(&latencies, due as u64);
    if let Workload::Live { deadline, .. } = cell.workload {
        let is_late = |latency: &&Option<Nanos>| latency.is_none_or(|time| time > nanos(deadline));
        done.late = Some(measured.iter().filter(is_late).count() as u64);
        done.dropped = Some(measured.iter().filter(|latency| latency.is_none()).count() as u64);
    }
    done
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

fn codec(name: &str) -> Option<Option<CodeId>> {
    match name {
        "auto" => Some(Some(CodeId::Rlc)),
        "none" => Some(None),
        _ => CodeId::by_name(name).map(Some),
    }
}

fn paper_of(keys: &str) -> Result<Paper, String> {
    // As on the command line of `sphx`: the keys of --paper write "all" as 1.
    let share = |text: &str| match text {
        "1" => Ok(1.0),
        _ => units::fraction(text),
    };
    Paper::parse(keys, share, units::duration_positive)
}

fn bundle(count: &str) -> Option<u8> {
    count.parse().ok().filter(|most| *most <= BUNDLE_MAX)
}

fn icm(name: &str) -> Option<Icm> {
    match name {
        "default" => Some(Icm::Default),
        "paper" => Some(Icm::Paper),
        "off" => Some(Icm::Off),
        _ => None,
    }
}

fn cc(name: &str) -> Option<CcKind> {
    CcKind::parse(name, units::rate).ok().flatten()
}

fn epsilon(share: &str) -> Option<f64> {
    units::failure_share(share).ok()
}

fn profile(name: &str) -> Option<Option<Profile>> {
    match name {
        "auto" => Some(None),
        "bulk" => Some(Some(Profile::Bulk)),
        "latency" => Some(Some(Profile::Latency)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sphinx_link::Loss;

    use super::*;
    use crate::{Clock, PathSpec};

    const SECOND: Duration = Duration::from_secs(1);

    fn parse(options: &str) -> Result<Simulated, String> {
        let options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        Simulated::parse(&options)
    }

    /// RTT 10 ms, 6 % loss.
    fn cell(rate: u64, workload: Workload) -> Cell {
        Cell {
            name: "test".into(),
            paths: Vec::new(),
            receive_buffer: None,
            link: LinkSpec {
                rate,
                forward: Loss::Bernoulli(0.06),
                ..LinkSpec::clean(Duration::from_millis(10))
            },
            workload,
            clock: Clock::Virtual,
        }
    }

    fn run(cell: &Cell, seed: u64) -> (Done, Wire) {
        let (done, wires) = run_with("", cell, seed);
        (done, wires[0])
    }

    fn run_with(options: &str, cell: &Cell, seed: u64) -> (Done, Vec<Wire>) {
        let stop = AtomicBool::new(false);
        let ran = parse(options).unwrap().run(cell, SECOND, seed, &stop);
        ran.expect("nobody stopped it")
    }

    /// Both paths carry a part, a bounded buffer shows in numbers, and one path alone is one path.
    #[test]
    fn several_paths_and_a_bounded_buffer() {
        let mut cell = cell(20_000_000, Workload::Bulk { bytes: 2_000_000 });
        let path = |name: &str, rtt| PathSpec {
            name: name.to_owned(),
            link: LinkSpec {
                rate: 10_000_000,
                ..LinkSpec::clean(Duration::from_millis(rtt))
            },
            cost: 0,
        };
        cell.paths = vec![path("fast", 20), path("slow", 50)];
        cell.receive_buffer = Some(256 << 10);
        for options in ["", "--bond sc", "--bond min-rtt"] {
            let (done, wires) = run_with(options, &cell, 1);
            assert!(done.complete, "{options}");
            assert!(wires.iter().all(|wire| wire.forward_bytes > 200_000));
            let buffer = done.buffer.expect("it is bounded");
            assert!(buffer.mean_ms > 0.1 && buffer.mean_ms < buffer.p99_ms);
            assert!(buffer.p99_ms < 500.0, "{options}: {buffer:?}");
            assert_eq!(buffer.field_operations > 0.0, options == "--bond sc");
        }
        let alone = parse("").unwrap().over_path(Some("slow".to_owned()));
        let stop = AtomicBool::new(false);
        let (done, wires) = alone.run(&cell, 4 * SECOND, 1, &stop).unwrap();
        assert!(done.complete && wires.len() == 1);
        assert!(done.goodput_mbit_s() < 10.0);
    }

    #[test]
    fn options_of_the_protocol_are_taken() {
        let paper = parse(
            "--codec srlt --icm=paper --cc fixed:190mbit --profile bulk --epsilon 1% --bundle 8",
        )
        .unwrap();
        let expected = Simulated {
            profile: Some(Profile::Bulk),
            code: Some(CodeId::Srlt),
            icm: Icm::Paper,
            bundle: 8,
            epsilon: 0.01,
            cc: CcKind::Fixed(23_750_000),
            paper: None,
            bond: Bond::Aggregate,
            sc: None,
            only: None,
        };
        assert_eq!(paper, expected);
        assert_eq!(parse("--codec none --cc auto").unwrap().code, None);
        assert_eq!(parse("--codec=auto --profile auto"), parse(""));
        assert_eq!(parse("--bond backup").unwrap().bond, Bond::Backup);
        assert_eq!(parse("--bond ecf").unwrap().sc, Some(Sc::Ecf));
    }

    #[test]
    fn others_are_named() {
        for (options, named) in [
            ("--codec srlt --workers 2", "--workers 2"),
            ("--io xdp:eth0", "--io xdp:eth0"),
            ("--cc vegas", "--cc vegas"),
            ("--epsilon 0%", "--epsilon 0%"),
            ("--bundle 9", "--bundle 9"),
            ("--icm", "--icm"),
        ] {
            let refusal = parse(options).unwrap_err();
            assert!(refusal.starts_with(named), "{refusal}");
        }
    }

    #[test]
    fn a_seed_is_a_run() {
        let bulk = cell(1_000_000_000, Workload::Bulk { bytes: 20_000_000 });
        assert_eq!(run(&bulk, 1), run(&bulk, 1));
        assert_ne!(run(&bulk, 1), run(&bulk, 2));
    }

    /// As `bulk::fills_a_lossy_link` of the simulator's own tests asks for.
    #[test]
    fn bulk_fills_the_link() {
        for rate in [200_000_000, 1_000_000_000] {
            let bytes = rate / 8 * 4 / 10;
            let (done, wire) = run(&cell(rate, Workload::Bulk { bytes }), 1);
            assert!(done.complete && done.bytes == bytes, "{done:?}");
            let share = done.goodput_mbit_s() * 1e6 / rate as f64 / 0.94;
            assert!((0.85..0.96).contains(&share), "{rate}: {share}");
            let losses = wire.losses as f64 / wire.forward_packets as f64;
            assert!((0.05..0.07).contains(&losses), "{wire:?}");
        }
    }

    /// 5 ms of delay and 4.2 ms on the wire.
    #[test]
    fn blocks_are_timed() {
        let schedule = |deadline| Workload::Live {
            count: 100,
            bytes: 100_000,
            interval: Duration::from_millis(40),
            deadline: Duration::from_millis(deadline),
        };
        let (done, _) = run(&cell(200_000_000, schedule(20)), 1);
        let blocks = done.blocks.expect("blocks");
        // Those of the first ten round trips are not measured.
        assert_eq!(blocks.count, 97);
        assert!(done.late <= Some(2), "{done:?}");
        assert!((9.2..10.5).contains(&blocks.mean_ms), "{blocks:?}");
        let (done, _) = run(&cell(200_000_000, schedule(9)), 1);
        assert_eq!(done.late, Some(97));
    }

    #[test]
    fn a_transfer_is_cut_off() {
        let (done, _) = run(&cell(1_000_000, Workload::Bulk { bytes: 1_000_000 }), 1);
        assert!(!done.complete && done.bytes < 125_000, "{done:?}");
        assert_eq!(done.seconds, 1.0);
        let stop = AtomicBool::new(true);
        let stopped = cell(1_000_000, Workload::Bulk { bytes: 1 });
        assert_eq!(parse("").unwrap().run(&stopped, SECOND, 1, &stop), None);
    }
}
