//! One run: a fresh link, two processes, and the accounts.

use std::{
    io,
    net::SocketAddr,
    process::Command,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use sphinx_link::front::FrontCounters;
use sphinx_netdev::usage::cpu_time;
use thiserror::Error;

use crate::{
    Cell, Clock, Contestant, Cpu, Done, Lateness, Memory, NotDone, Run, Side, Task, Testbed,
    TestbedError, Validity, Wire, Workload,
    children::{Ended, Process, Said},
    machine::{MachineTime, Made, is_replaced, output},
    virtual_time,
    watch::{self, Watch},
};

/// Where receivers listen.
const PORT: u16 = 5201;
/// Blocks of the first round trips find a connection that has just been made. `sphx perf` sets the
/// same number apart.
pub(crate) const WARMUP_ROUND_TRIPS: u32 = 10;
/// How long a receiver may take until it listens.
const READY: Duration = Duration::from_secs(10);
/// How long two ends may take to get to know each other.
const MEETING: Duration = Duration::from_secs(30);
/// How long after the limit a contestant that keeps it may say so.
const GRACE: Duration = Duration::from_secs(5);
/// How long processes may take to end after the last word.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at whether the user wants to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The conditions of runs.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// A transfer is cut off after this time (blocks: after their schedule and this time).
    pub limit: Duration,
    /// What is noted with every run.
    pub made: Made,
}

/// Why a run has no result.
#[derive(Debug, Error)]
pub enum RunError {
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// The contestant cannot run in virtual time.
    #[error("missing: {0}")]
    Missing(String),
    /// What would be started is not what the run would be noted for.
    #[error("this program has been replaced since it was started: begin again with the new one")]
    Replaced,
    /// The link could not be set up.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A process could not be started or controlled, or there is no directory for its files.
    #[error("{0}")]
    System(#[from] io::Error),
    /// A process reported a failure or ended without a result.
    #[error("the {side} failed: {reason}")]
    Failed {
        /// The side that failed.
        side: Side,
        /// The reason that it gave.
        reason: String,
    },
    /// Multipath TCP did not use all paths.
    #[error("multipath TCP did not join every path")]
    Unjoined,
    /// A process said nothing for too long.
    #[error("the {side} did not say '{event}' in time")]
    Silent {
        /// The side that said nothing.
        side: Side,
        /// Name of the event that was expected.
        event: &'static str,
    },
    /// The result cannot be read.
    #[error(transparent)]
    NotDone(#[from] NotDone),
}

impl Experiment {
    /// Whether a contestant can do what a cell asks for.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    pub fn check(cell: &Cell, contestant: &dyn Contestant) -> Result<(), String> {
        match cell.clock {
            Clock::Real => {
                // The program `ip` tells the kernel which paths multipath TCP may use.
                let has_ip = || output(Command::new("ip").arg("-V")).is_some();
                if contestant.is_mptcp() && !cell.paths.is_empty() && !has_ip() {
                    return Err("'ip' (iproute2) is not installed".to_owned());
                }
                if cell.receive_buffer.is_some() && !contestant.can_be_bounded() {
                    return Err("its receive buffer cannot be bounded".to_owned());
                }
                contestant.check_workload(&cell.workload)
            }
            Clock::Virtual => virtual_time::check_workload(&cell.workload),
        }
    }

    /// Runs one contestant once on a fresh link with the losses of `seed`, in the cell's time. Returns early when `stop`
    /// becomes true. Whatever happens, no process remains.
    ///
    /// Where other runs are under way ([`Made::at_once`]), nothing is known of the machine as a whole, and a run is judged by whether the
    /// emulator was in time.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn run(
        &self,
        cell: &Cell,
        contestant: &dyn Contestant,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Run, RunError> {
        let result = match cell.clock {
            Clock::Real => self.run_once(cell, contestant, seed, stop),
            Clock::Virtual => self.simulate(cell, contestant, seed, stop),
        };
        result.map_err(|error| {
            // Once the user has stopped the run, failures follow from that.
            match stop.load(Ordering::Relaxed) {
                true => RunError::Interrupted,
                false => error,
            }
        })
    }

    fn simulate(
        &self,
        cell: &Cell,
        contestant: &dyn Contestant,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Run, RunError> {
        let simulated = contestant.in_virtual_time().map_err(RunError::Missing)?;
        let ran = simulated.run(cell, self.limit, seed, stop);
        let (done, mut wires) = ran.ok_or(RunError::Interrupted)?;
        let wire = Wire::sum(&wires);
        if cell.paths.is_empty() {
            wires.clear();
        }
        Ok(Run {
            paths: wires,
            ..self.undisturbed(cell, contestant, seed, done, wire)
        })
    }

    fn run_once(
        &self,
        cell: &Cell,
        contestant: &dyn Contestant,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Run, RunError> {
        if is_replaced() {
            return Err(RunError::Replaced);
        }
        let directory = tempfile::tempdir()?;
        let testbed = Testbed::start(cell, seed, contestant)?;
        let first = cell.workload.listener();
        let task = Task {
            address: SocketAddr::new(testbed.end(first).ipv4().into(), PORT),
            paths: (cell.paths.iter().enumerate())
                .map(|(index, path)| path.beginning(index))
                .collect(),
            receive_buffer: cell.receive_buffer,
            workload: cell.workload.clone(),
            limit: cell.workload.schedule() + self.limit,
            warmup: cell.warmup(),
            seed,
            directory: directory.path().to_owned(),
        };
        let (sender, said) = mpsc::channel();
        let start = |side, mut command| {
            Process::start(testbed.end(side), &mut command, side, sender.clone())
        };
        let command = |side| match side {
            Side::Sender => contestant.sender(&task),
            Side::Receiver => contestant.receiver(&task),
        };
        let mut pair = Pair {
            stop,
            said,
            processes: [None, None],
            dones: [None, None],
            arrived: None,
            testbed: &testbed,
            watch: Watch::of(&testbed, &cell.workload),
            looked: Instant::now(),
        };
        pair.processes[first as usize] = Some(start(first, command(first))?);
        pair.expect_ready(first)?;
        let second = first.other();
        let meeting = contestant.meeting(&task);
        let meets = meeting.is_some();
        if let Some(mut command) = meeting {
            let (sender, _unheard) = mpsc::channel();
            let end = testbed.end(second);
            pair.meet(second, Process::start(end, &mut command, second, sender)?)?;
        }
        let begun = Accounts::now(&testbed);
        pair.processes[second as usize] = Some(start(second, command(second))?);
        let Ending {
            mut done,
            accounts,
            cpu: at_cut_off,
        } = pair.expect_done(contestant, &task)?;
        let (elapsed, machine, own) = accounts.since(&begun);
        let counters = accounts.counters;
        if contestant.is_mptcp() && testbed.mptcp_joins()? + 1 < cell.paths.len() as u64 {
            return Err(RunError::Unjoined);
        }
        let ended = pair.close(meets.then_some(first))?;
        let mut carried = None;
        if let (Workload::Bulk { .. }, true) = (&cell.workload, done.complete)
            && let Some((began, ended)) = pair.first_and_last()
        {
            done.seconds = ended - began;
            let ns = |seconds: f64| (seconds * 1e9) as u64;
            let watch = pair.watch.as_ref();
            carried = watch.map(|watch| watch.between(ns(began), ns(ended)));
        }
        let at_end = || ended.map(|end| end.map_or(Duration::ZERO, |end| end.cpu));
        let cpu = at_cut_off.unwrap_or_else(at_end);
        let [sender_cpu, receiver_cpu] = cpu.map(|cpu| cpu.as_secs_f64());
        let [sender_memory, receiver_memory] = ended.map(|end| end?.peak_rss);
        let emulator = counters.iter().map(|one| one.cpu.as_secs_f64()).sum();
        let accounted = sender_cpu + receiver_cpu + f64::max(own, emulator);
        let machine = machine.filter(|_| self.made.at_once == 1);
        let cpu = Cpu {
            sender: sender_cpu,
            receiver: receiver_cpu,
            emulator,
            machine: machine.map(|time| time.busy),
            others: machine.map(|time| ((time.busy - accounted) / elapsed).max(0.0)),
            stolen: machine.map(|time| time.stolen),
        };
        let lateness = Lateness::worst(counters.iter().map(|one| Lateness::from(&one.lateness)));
        let [sender, receiver] = pair.dones;
        let of_path = |one: &FrontCounters| {
            Wire::new(
                &one.left_to_right,
                &one.right_to_left,
                one.left_to_right_wait_p95,
            )
        };
        let mut wires: Vec<Wire> = counters.iter().map(of_path).collect();
        let wire = Wire::sum(&wires);
        if cell.paths.is_empty() {
            wires.clear();
        }
        Ok(Run {
            carried,
            cpu: Some(cpu),
            memory: Memory {
                sender: sender_memory,
                receiver: receiver_memory,
            },
            lateness,
            validity: Validity::judge(&lateness, &cpu, self.made.real_time),
            sender,
            receiver,
            paths: wires,
            ..self.undisturbed(cell, contestant, seed, done, wire)
        })
    }

    /// A run of which nothing is known but what it measured.
    fn undisturbed(
        &self,
        cell: &Cell,
        contestant: &dyn Contestant,
        seed: u64,
        done: Done,
        wire: Wire,
    ) -> Run {
        Run {
            contestant: contestant.name().to_owned(),
            cell: cell.name.clone(),
            seed,
            repetition: 0,
            settings: contestant.settings(),
            description: cell.description(),
            details: cell.details(),
            clock: cell.clock,
            limit_seconds: Some(self.limit.as_secs_f64()),
            goodput_mbit_s: done.goodput_mbit_s(),
            done,
            wire,
            carried: None,
            cpu: None,
            memory: Memory::default(),
            lateness: Lateness::default(),
            validity: Validity::Valid,
            sender: None,
            receiver: None,
            paths: Vec::new(),
            made: self.made.clone(),
        }
    }
}

/// What has been used up and carried until some moment.
struct Accounts {
    at: Instant,
    machine: Option<MachineTime>,
    /// This process's time, which contains the emulator's.
    own: Duration,
    /// What the link has counted.
    counters: Vec<FrontCounters>,
}

impl Accounts {
    fn now(testbed: &Testbed) -> Accounts {
        Accounts {
            at: Instant::now(),
            machine: MachineTime::now(),
            own: cpu_time(),
            counters: testbed.counters(),
        }
    }

    /// Seconds that have passed, the machine's time, and the seconds of CPU this process used.
    fn since(&self, before: &Accounts) -> (f64, Option<MachineTime>, f64) {
        let elapsed = (self.at - before.at).as_secs_f64().max(1e-3);
        let machine = (self.machine.zip(before.machine)).map(|(now, before)| now.since(before));
        let own = self.own.saturating_sub(before.own);
        (elapsed, machine, own.as_secs_f64())
    }
}

/// What the receiver has reported so far, and when.
struct Arrived {
    bytes: u64,
    accounts: Accounts,
    /// Processor time of the sender and the receiver.
    cpu: [Duration; 2],
}

/// What became of a transfer, and the accounts of the moment that this is about.
struct Ending {
    done: Done,
    accounts: Accounts,
    /// Processor time of the sender and the receiver until then, if they went on.
    cpu: Option<[Duration; 2]>,
}

/// The two processes and what they have said.
struct Pair<'a> {
    stop: &'a AtomicBool,
    said: Receiver<Said>,
    /// The sender and the receiver.
    processes: [Option<Process>; 2],
    /// The `done` of the sender and of the receiver.
    dones: [Option<Value>; 2],
    /// The receiver's last report.
    arrived: Option<Arrived>,
    testbed: &'a Testbed,
    watch: Option<Watch<'a>>,
    /// When it was last checked that both processes still run.
    looked: Instant,
}

impl Pair<'_> {
    /// Waits until the first process listens.
    fn expect_ready(&mut self, first: Side) -> Result<(), RunError> {
        let deadline = Instant::now() + READY;
        loop {
            match self.next(deadline)? {
                Some((side, event)) if side == first && event["event"] == "listening" => {
                    return Ok(());
                }
                Some(_) => {}
                None => {
                    return Err(RunError::Silent {
                        side: first,
                        event: "listening",
                    });
                }
            }
        }
    }

    /// Lets a first process of the side that is still missing come and go; what both have said is forgotten.
    fn meet(&mut self, side: Side, mut process: Process) -> Result<(), RunError> {
        let deadline = Instant::now() + MEETING;
        let other = side.other();
        while self.done(other).is_none() {
            if self.next(deadline)?.is_none() {
                return Err(RunError::Silent {
                    side: other,
                    event: "done",
                });
            }
        }
        let ended = process.wait(deadline)?;
        if ended.is_none_or(|ended| !ended.status.success()) {
            return Err(RunError::Failed {
                side,
                reason: "the two ends could not meet before".to_owned(),
            });
        }
        self.dones = [None, None];
        self.arrived = None;
        Ok(())
    }

    /// Waits for the result, or makes one at the limit; then both processes have ended.
    fn expect_done(
        &mut self,
        contestant: &dyn Contestant,
        task: &Task,
    ) -> Result<Ending, RunError> {
        let limit = task.limit;
        let side = contestant.reporter(&task.workload);
        let keeps_limit = contestant.keeps_limit(&task.workload);
        let grace = if keeps_limit { GRACE } else { Duration::ZERO };
        let begin = Instant::now();
        let deadline = begin + limit + grace;
        while self.done(side).is_none() {
            if self.next(deadline)?.is_some() {
                continue;
            }
            if keeps_limit {
                return Err(RunError::Silent {
                    side,
                    event: "done",
                });
            }
            for process in self.processes.iter_mut().flatten() {
                process.end()?;
            }
            // How much has come since the last report is not known, so neither that time nor its CPU time count.
            let (bytes, seconds, accounts, cpu) = match self.arrived.take() {
                Some(last) if last.accounts.at > begin => {
                    let seconds = last.accounts.at - begin;
                    (last.bytes, seconds, last.accounts, Some(last.cpu))
                }
                _ => (0, limit, Accounts::now(self.testbed), None),
            };
            return Ok(Ending {
                done: Done {
                    bytes,
                    seconds: seconds.as_secs_f64(),
                    ..Done::default()
                },
                accounts,
                cpu,
            });
        }
        Ok(Ending {
            done: Done::parse(self.done(side).unwrap_or(&Value::Null))?,
            accounts: Accounts::now(self.testbed),
            cpu: None,
        })
    }

    /// Lets both processes end, but for one that `goes_on`, which is ended; returns how the sender and the receiver did.
    fn close(&mut self, goes_on: Option<Side>) -> Result<[Option<Ended>; 2], RunError> {
        // Their last events may still be in the pipes, until both have closed these.
        let deadline = Instant::now() + END_TIMEOUT;
        let both = |dones: &[Option<Value>; 2]| dones.iter().all(Option::is_some);
        while !both(&self.dones) {
            match self.next(deadline) {
                Ok(Some(_)) => {}
                Err(RunError::Interrupted) => return Err(RunError::Interrupted),
                // A result exists; how the processes end afterwards does not change it.
                Ok(None) | Err(_) => break,
            }
        }
        let mut both = [None, None];
        for side in [Side::Sender, Side::Receiver] {
            let Some(process) = &mut self.processes[side as usize] else {
                continue;
            };
            let patience = match goes_on == Some(side) {
                true => Instant::now(),
                false => deadline,
            };
            both[side as usize] = match process.wait(patience)? {
                Some(ended) => Some(ended),
                None => Some(process.end()?),
            };
        }
        Ok(both)
    }

    /// The beginning of the sender and the last byte at the receiver, in seconds of the machine's monotonic clock, if the ends tell: both for
    /// themselves, or the receiver of both.
    /// A sender by itself only knows when the last acknowledgement came.
    fn first_and_last(&self) -> Option<(f64, f64)> {
        let (sender, receiver) = (self.done(Side::Sender)?, self.done(Side::Receiver)?);
        let at = |done: &Value| done["monotonic_seconds"].as_f64();
        let began = |done: &Value| Some(at(done)? - done["seconds"].as_f64()?);
        let began = began(sender).or_else(|| began(receiver))?;
        Some((began, at(receiver)?)).filter(|(began, ended)| ended > began)
    }

    fn done(&self, side: Side) -> Option<&Value> {
        self.dones[side as usize].as_ref()
    }

    /// The next event; none when the deadline has passed. Failures become errors, `done` and
    /// `progress` are remembered.
    fn next(&mut self, deadline: Instant) -> Result<Option<(Side, Value)>, RunError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let mut patience = left.min(STOP_POLL_INTERVAL);
            if let Some(watch) = &mut self.watch {
                watch.look();
                patience = patience.min(watch::INTERVAL);
            }
            match self.said.recv_timeout(patience) {
                Ok(Said::Event(side, event)) => {
                    self.remember(side, &event)?;
                    return Ok(Some((side, event)));
                }
                Ok(Said::Closed(side)) => self.check_end(side)?,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if self.looked.elapsed() < STOP_POLL_INTERVAL => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.looked = Instant::now();
                    for process in self.processes.iter_mut().flatten() {
                        process.look();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    fn remember(&mut self, side: Side, event: &Value) -> Result<(), RunError> {
        match event["event"].as_str() {
            Some("done") => self.dones[side as usize] = Some(event.clone()),
            Some("progress") if side == Side::Receiver => {
                if let Some(bytes) = event["bytes"].as_u64() {
                    let cpu =
                        |it: &Option<Process>| it.as_ref().map_or(Duration::ZERO, Process::cpu);
                    self.arrived = Some(Arrived {
                        bytes,
                        accounts: Accounts::now(self.testbed),
                        cpu: self.processes.each_ref().map(cpu),
                    });
                }
            }
            Some("error") => {
                let message = event["message"].as_str().unwrap_or("no message");
                return Err(RunError::Failed {
                    side,
                    reason: message.to_owned(),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// A process without more to say must have said that it is done.
    fn check_end(&mut self, side: Side) -> Result<(), RunError> {
        if self.done(side).is_some() {
            return Ok(());
        }
        let Some(process) = &mut self.processes[side as usize] else {
            return Ok(());
        };
        let ended = process.end()?;
        let errors = process.errors();
        let reason = match errors.is_empty() {
            true => format!("{}, without a result", ended.status),
            false => format!("{}: {errors}", ended.status),
        };
        Err(RunError::Failed { side, reason })
    }
}
