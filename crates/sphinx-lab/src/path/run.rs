//! One transfer, or groups of flows, over one path.

use std::{
    io,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    Flowed, Output, Plan, Transferred,
    bed::{Bed, local},
    flows::{self, Watch},
    program::Program,
    transfer,
};
use crate::emulator::{LinkError, LinkErrorKind, Log, State, describe};

/// Between two looks at what the hops have done.
const HOPS_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// After the transfer, counters and records are complete once this has passed.
const SETTLE: Duration = Duration::from_millis(5);

/// The results of a run over a path.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The results of the transfer or of the flows.
    #[serde(flatten)]
    pub carried: Carried,
    /// Whether the right host was the sender.
    pub upload: bool,
    /// Congestion control of the sender.
    pub congestion: String,
    /// Whether SACK was negotiated.
    pub sack: bool,
    /// The longest time for which a thread like those that send and receive had no processor when it wanted one. Hops have more rights, and go on meanwhile.
    pub still_ms_max: f64,
    /// The hop from left to middle, and the hop from middle to right, at the end.
    pub hops: [State; 2],
}

/// The results of what was carried over a path.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Carried {
    /// One transfer.
    Transfer(Transferred),
    /// Groups of flows.
    Flows(Flowed),
}

impl Carried {
    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        match self {
            Carried::Transfer(transfer) => transfer.complete,
            Carried::Flows(flows) => flows.is_complete(),
        }
    }
}

/// Where the standard output of the programs goes.
#[derive(Debug)]
pub struct Outputs {
    /// Output of the program on the host in the middle.
    pub middle: Output,
    /// Output of the program on the right host.
    pub right: Output,
}

/// Transfers over a new path, and removes the path. `init` is the command of this program that calls
/// [`serve_as_init`](sphinx_netdev::pidns::serve_as_init). `notice` gets what happens meanwhile, in words. None if `stop` became true before the
/// end.
///
/// # Errors
///
/// No rights to namespaces or TUN devices; a command that cannot run or ends before the transfer begins; a
/// log that cannot be written; a connection that breaks.
pub fn run(
    plan: &Plan,
    mut init: Command,
    outputs: Outputs,
    stop: &AtomicBool,
    notice: &mut dyn FnMut(&str),
) -> Result<Option<Report>, LinkError> {
    let log = plan.log.as_deref().map(Log::create).transpose()?;
    let watched = !plan.groups.is_empty();
    let watch = Arc::new(Mutex::new(Watch::new(&plan.groups, plan.transfer.upload)));
    let mut bed = Bed::start(plan, watched.then_some(&watch))?;
    let commands = [
        (&plan.middle, ("middle", &bed.middle), outputs.middle),
        (&plan.right, ("right", &bed.right), outputs.right),
    ];
    let mut programs = Vec::new();
    for (script, host, output) in commands {
        if let Some(script) = script
            && !stop.load(Ordering::Relaxed)
        {
            let mut program = Program::start(script, host, &mut init, output)?;
            await_ready(&mut program, stop, notice)?;
            programs.push(program);
        }
    }
    let (carried, log, still) = carry_logged(&bed, plan, log, &watch, stop);
    // The program on the right is ended first: while it ends it may still need the one in the middle.
    let ended = programs
        .into_iter()
        .rev()
        .try_for_each(|program| end(program, stop, notice));
    thread::sleep(SETTLE);
    bed.halt()
        .map_err(|error| local("keep the hops running", &error))?;
    let hops = bed.states();
    if let Some(log) = log {
        finish_log(log, &bed, &hops)?;
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    ended?;
    let carried = carried.map_err(|error| {
        let message = format!("the transfer ended: {error}");
        LinkError::new(LinkErrorKind::Other, message, "")
    })?;
    Ok(Some(Report {
        carried,
        upload: plan.transfer.upload,
        congestion: plan.transfer.congestion.clone(),
        sack: plan.transfer.sack,
        still_ms_max: still.as_secs_f64() * 1e3,
        hops,
    }))
}

fn await_ready(
    program: &mut Program,
    stop: &AtomicBool,
    notice: &mut dyn FnMut(&str),
) -> Result<(), LinkError> {
    let name = program.name();
    let look = |error| local(&format!("wait for the {name} command"), &error);
    // After Ctrl-C, which the program has got too, it does not matter how it has ended.
    if program.wait_ready(stop).map_err(look)? || stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    match program.ended().map_err(look)? {
        // A command that succeeds at once may have set up something that stays.
        Some(status) if status.success() => {
            notice(&format!("the {name} command has ended"));
            Ok(())
        }
        Some(status) => Err(LinkError::new(
            LinkErrorKind::Local,
            format!("the {name} command has ended: {}", describe(status)),
            "what it has said is above",
        )),
        None => {
            notice(&format!(
                "the {name} command has not said that it is ready (sd_notify); going on"
            ));
            Ok(())
        }
    }
}

/// The log that comes back has everything so far, or there is none as it could not be written; and how long the machine has let threads wait at most.
fn carry_logged(
    bed: &Bed,
    plan: &Plan,
    log: Option<Log>,
    watch: &Mutex<Watch>,
    stop: &AtomicBool,
) -> (
    io::Result<Carried>,
    Option<Result<Log, io::Error>>,
    Duration,
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        let end = End(done);
        let logging = log.map(|log| scope.spawn(move || keep(log, bed, done)));
        let waiting = scope.spawn(move || stood_still(done));
        let transfer = &plan.transfer;
        let carried = match &plan.groups[..] {
            [] => transfer::run(bed, transfer, stop).map(Carried::Transfer),
            groups => flows::run(bed, (groups, transfer.upload), transfer.limit, watch, stop)
                .map(Carried::Flows),
        };
        drop(end);
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        let log = logging.map(|thread| thread.join().unwrap_or_else(panicked));
        (carried, log, waiting.join().unwrap_or_default())
    })
}

/// Says when dropped that all is carried, also if carrying it panicked: the threads beside it are waited for.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The longest time for which the calling thread had no processor when it wanted one.
fn stood_still(done: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !done.load(Ordering::Relaxed) {
        let asleep = Instant::now();
        thread::sleep(HOPS_POLL_INTERVAL);
        longest = longest.max(asleep.elapsed().saturating_sub(HOPS_POLL_INTERVAL));
    }
    longest
}

fn keep(mut log: Log, bed: &Bed, done: &AtomicBool) -> io::Result<Log> {
    for hop in &bed.hops {
        log.start(hop.started(), &hop.state())?;
    }
    while !done.load(Ordering::Relaxed) {
        thread::sleep(HOPS_POLL_INTERVAL);
        bed.hops.iter().try_for_each(|hop| hop.log(&mut log))?;
    }
    Ok(log)
}

fn finish_log(log: io::Result<Log>, bed: &Bed, hops: &[State; 2]) -> Result<(), LinkError> {
    let write = || -> io::Result<()> {
        let mut log = log?;
        let missed: u64 = bed.hops.iter().map(super::bed::Hop::missed).sum();
        for hop in &bed.hops {
            hop.log(&mut log)?;
        }
        if missed > 0 {
            log.missed(missed)?;
        }
        hops.iter().try_for_each(|hop| log.end(hop))?;
        log.flush()
    };
    write().map_err(|error| LinkError::io("write", "the log", &error))
}

fn end(
    mut program: Program,
    stop: &AtomicBool,
    notice: &mut dyn FnMut(&str),
) -> Result<(), LinkError> {
    let name = program.name();
    let look = |error| local(&format!("wait for the {name} command"), &error);
    let early = program.ended().map_err(look)?;
    program.end(stop).map_err(look)?;
    if let Some(status) = early.filter(|status| !status.success())
        && !stop.load(Ordering::Relaxed)
    {
        let status = describe(status);
        notice(&format!(
            "the {name} command has ended before the transfer: {status}"
        ));
    }
    Ok(())
}
