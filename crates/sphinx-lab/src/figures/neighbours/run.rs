//! Several transports at once through one bottleneck, in real time.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        atomic::Ordering,
        mpsc::{self, Receiver, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use sphinx_link::Depth;

use crate::{
    Cell, Clock, Contestant, Lateness, LinkSpec, Side, Task, Testbed, Validity, Workload,
    children::{Process, Said},
    figures::{Studio, campaign::NoRun},
    stats::median,
};

/// Where the receiver of the first flow listens; each further one has the next port.
const PORT: u16 = 5201;
/// How long receivers may take until they listen.
const READY: Duration = Duration::from_secs(10);
/// How often the queue is looked at, and what the processes have said.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long receivers are listened to after the end. Those that receive something tell of it every half second.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes that a flow has to send, as a multiple of what the link carries in the time.
const ENDLESS: u64 = 4;

/// The bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottleneck {
    pub(super) rate: u64,
    pub(super) rtt: Duration,
    /// Its queue, in bandwidth-delay products, and who manages it, if anybody does.
    pub(super) queue: f64,
    pub(super) aqm: Option<&'static str>,
}

impl Bottleneck {
    fn link(&self) -> Result<LinkSpec, String> {
        let mut link = LinkSpec {
            rate: self.rate,
            ..LinkSpec::clean(self.rtt)
        };
        let bytes = self.queue * link.bandwidth_delay_product() as f64;
        link.queue = Some(Depth::Bytes(bytes as u64));
        let Some(aqm) = self.aqm else { return Ok(link) };
        let settings = BTreeMap::from([("aqm".to_owned(), aqm.to_owned())]);
        let no_files = |_: &str| Err(std::io::Error::other("no files"));
        (link.with_settings(&settings, &no_files)).map_err(|error| error.to_string())
    }
}

/// The time that is counted, from the beginning of the first flow on. All flows end together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Duration,
    pub(super) until: Duration,
}

/// The result of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Carried {
    /// Goodput of each flow (payload).
    pub(super) goodput_mbit_s: Vec<f64>,
    /// Median of the queue over time, in bandwidth-delay products.
    pub(super) queue: f64,
    /// Share of the packets that came to the queue which it dropped.
    pub(super) dropped: f64,
    pub(super) late_p99_ms: f64,
}

/// A flow under way.
struct Flow<'a> {
    contestant: &'a dyn Contestant,
    begins: Duration,
    task: Task,
    processes: Vec<Process>,
    said: Receiver<Said>,
    sender: mpsc::Sender<Said>,
    /// Reports of the receiver: when, and payload bytes.
    arrived: Vec<(Duration, u64)>,
}

/// Lets flows begin at their times, and counts.
///
/// # Errors
///
/// Why that could not be.
pub(super) fn carry(
    studio: &Studio<'_>,
    bottleneck: &Bottleneck,
    flows: &[(&dyn Contestant, Duration)],
    window: Window,
    seed: u64,
) -> Result<Carried, NoRun> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let directory = tempfile::tempdir().map_err(|error| told(&error))?;
    let seconds = window.until.as_secs_f64();
    let cell = Cell {
        name: String::new(),
        link: bottleneck.link()?,
        paths: Vec::new(),
        receive_buffer: None,
        workload: Workload::Bulk {
            bytes: (ENDLESS as f64 * seconds * bottleneck.rate as f64 / 8.0) as u64,
        },
        clock: Clock::Real,
    };
    let (first, _) = flows.first().ok_or("no flows")?;
    let testbed = Testbed::start(&cell, seed, *first).map_err(|error| told(&error))?;
    let mut under_way = Vec::new();
    for (port, (contestant, begins)) in (PORT..).zip(flows) {
        let own = directory.path().join(port.to_string());
        std::fs::create_dir(&own).map_err(|error| told(&error))?;
        let (sender, said) = mpsc::channel();
        let mut flow = Flow {
            contestant: *contestant,
            begins: *begins,
            task: Task {
                address: SocketAddr::new(testbed.end(Side::Receiver).ipv4().into(), port),
                paths: Vec::new(),
                receive_buffer: None,
                workload: cell.workload.clone(),
                limit: window.until.saturating_sub(*begins) + READY,
                warmup: Duration::ZERO,
                seed: seed + u64::from(port),
                directory: own,
            },
            processes: Vec::new(),
            said,
            sender,
            arrived: Vec::new(),
        };
        flow.start(&testbed, Side::Receiver)?;
        under_way.push(flow);
    }
    let ready_by = Instant::now() + READY;
    for flow in &under_way {
        flow.wait_until_it_listens(ready_by)?;
    }
    let start = Instant::now();
    let mut queues = Vec::new();
    let mut begun = 0;
    let before = testbed.counters()[0].left_to_right;
    let mut at_from = before;
    loop {
        let now = start.elapsed();
        if studio.stop.load(Ordering::SeqCst) {
            return Err("interrupted".into());
        }
        while let Some(flow) = under_way.get_mut(begun).filter(|flow| flow.begins <= now) {
            flow.start(&testbed, Side::Sender)?;
            begun += 1;
        }
        for flow in &mut under_way {
            flow.listen(now)?;
        }
        let counters = &testbed.counters()[0];
        match now < window.from {
            true => at_from = counters.left_to_right,
            false => queues.push(counters.left_to_right_inside.queue_bytes as f64),
        }
        if now >= window.until {
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    let counters = testbed.counters().swap_remove(0);
    // How much a flow had carried by the end is known only from its first report after that.
    let has_told = |flow: &Flow<'_>| {
        let last = flow.arrived.last();
        last.is_some_and(|(when, _)| *when >= window.until)
    };
    while start.elapsed() < window.until + LAST_WORDS && !under_way.iter().all(has_told) {
        thread::sleep(POLL_INTERVAL);
        for flow in &mut under_way {
            flow.listen(start.elapsed())?;
        }
    }
    let late = Lateness::from(&counters.lateness);
    if late.p99_ms > Validity::LATENESS_P99_MS_MAX {
        return Err(NoRun::Starved);
    }
    let offered = counters.left_to_right.offered_packets - at_from.offered_packets;
    let dropped = counters.left_to_right.dropped() - at_from.dropped();
    let trip = cell.link.bandwidth_delay_product() as f64;
    Ok(Carried {
        goodput_mbit_s: (under_way.iter())
            .map(|flow| goodput(&flow.arrived, window))
            .collect(),
        queue: median(queues).unwrap_or(0.0) / trip,
        dropped: dropped as f64 / offered.max(1) as f64,
        late_p99_ms: late.p99_ms,
    })
}

impl Flow<'_> {
    fn start(&mut self, testbed: &Testbed, side: Side) -> Result<(), String> {
        let mut command = match side {
            Side::Sender => self.contestant.sender(&self.task),
            Side::Receiver => self.contestant.receiver(&self.task),
        };
        let process = Process::start(testbed.end(side), &mut command, side, self.sender.clone());
        self.processes
            .push(process.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn wait_until_it_listens(&self, by: Instant) -> Result<(), String> {
        loop {
            let left = by.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(Said::Event(_, event)) if event["event"] == "listening" => return Ok(()),
                Ok(Said::Event(..)) => {}
                Ok(Said::Closed(_)) | Err(_) => {
                    return Err(format!("a receiver of {} failed", self.contestant.name()));
                }
            }
        }
    }

    /// Takes what its processes have said until `now`.
    fn listen(&mut self, now: Duration) -> Result<(), String> {
        loop {
            match self.said.try_recv() {
                Ok(Said::Event(Side::Receiver, event)) if event["event"] == "progress" => {
                    let bytes = event["bytes"].as_u64();
                    self.arrived.extend(bytes.map(|bytes| (now, bytes)));
                }
                Ok(Said::Event(_, event)) if event["event"] == "error" => {
                    let name = self.contestant.name();
                    return Err(format!("{name}: {}", event["message"]));
                }
                Ok(Said::Event(..)) => {}
                Ok(Said::Closed(side)) => {
                    return Err(format!("the {side} of {} ended", self.contestant.name()));
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Payload in Mbit/s, by what a receiver has told.
fn goodput(told: &[(Duration, u64)], window: Window) -> f64 {
    let [before, after] = [window.from, window.until].map(|at| arrived_by(told, at));
    (after - before) * 8e-6 / (window.until - window.from).as_secs_f64()
}

/// Bytes that had arrived at a time, in between what was told. After the last word nothing is known to have come.
fn arrived_by(told: &[(Duration, u64)], at: Duration) -> f64 {
    let after = told.partition_point(|(when, _)| *when <= at);
    let point = |index: usize| {
        let (when, bytes) = told[index];
        (when.as_secs_f64(), bytes as f64)
    };
    let (one, two) = match (after, told.len()) {
        (_, 0) => return 0.0,
        (0, _) => ((0.0, 0.0), point(0)),
        (after, count) if after == count => return point(count - 1).1,
        (after, _) => (point(after - 1), point(after)),
    };
    let slope = (two.1 - one.1) / (two.0 - one.0).max(1e-9);
    one.1 + slope * (at.as_secs_f64() - one.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_words_bytes_arrive_evenly() {
        let at = Duration::from_millis;
        let told = [(at(1000), 100), (at(2000), 300)];
        for (when, bytes) in [(500, 50.0), (1000, 100.0), (1500, 200.0), (2500, 300.0)] {
            assert!((arrived_by(&told, at(when)) - bytes).abs() < 1e-6, "{when}");
        }
        assert_eq!(arrived_by(&[], at(5)), 0.0);
    }

    #[test]
    fn a_flow_that_stands_still_carries_nothing() {
        let window = Window {
            from: Duration::from_secs(10),
            until: Duration::from_secs(30),
        };
        let at = Duration::from_millis;
        let mut told = vec![(at(8600), 1_000_000), (at(9100), 1_100_000)];
        assert_eq!(goodput(&told, window), 0.0);
        // A word behind the end tells of the time before it.
        told.push((at(30_100), 26_350_000));
        assert!((goodput(&told, window) - 9.619).abs() < 1e-3);
    }

    #[test]
    fn bottlenecks_are_links() {
        let plain = Bottleneck {
            rate: 50_000_000,
            rtt: Duration::from_millis(40),
            queue: 2.0,
            aqm: None,
        };
        assert_eq!(plain.link().unwrap().queue, Some(Depth::Bytes(500_000)));
        let managed = Bottleneck {
            aqm: Some("codel"),
            ..plain
        };
        assert!(managed.link().unwrap().adjusted.is_some());
    }
}
