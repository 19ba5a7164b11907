//! The guard of `sphx pep run`: starts this program once more as the worker, which serves the agent, and
//! another one whenever that dies or is silent. `sphinx_pep::guard` decides.
//!
//! Both are connected by a socket, which is the worker's standard input: it sends a byte as its sign of
//! life, and either end sees when the other one has died. The worker's output is the guard's.

use std::io::{ErrorKind as Io, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, set_parent_process_death_signal,
    waitid,
};
use sd_notify::NotifyState;
use sphinx_pep::attach;
use sphinx_pep::guard::{Action, Guard};
use sphinx_transport::ErrorKind;

use super::Context;
use super::args::RunArgs;
use crate::failure::{Outcome, fail, local_io};
use crate::report::Event;

/// Guards workers until told to stop. Returns the exit code of the first one, if it could not begin.
pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome<u8> {
    if let Some(pid) = args.ends_with {
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        // The process that started this one may have died before that.
        if getppid().map(Pid::as_raw_pid) != Some(pid) {
            return Ok(0);
        }
    }
    let failed = |error| local_io("guard", "the agent", error);
    let start = Instant::now();
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    let _registration = context.stop.on_stop(move || {
        // The first byte wakes the loop; whether others can be written does not matter.
        let _ = (&wake).write(&[0]);
    });
    let mut guard = Guard::new(now());
    let mut worker: Option<Worker> = None;
    let (mut served, mut asked) = (false, false);
    let mut watchdog = Watchdog::new();
    loop {
        if watchdog.as_mut().is_some_and(|it| it.is_due(now())) {
            tell_manager(&[NotifyState::Watchdog]);
        }
        if worker.as_mut().is_some_and(Worker::is_stopped) {
            guard.stopped();
        }
        match guard.poll(now()) {
            Some(Action::Start) => match Worker::start() {
                Ok(started) => {
                    worker = Some(started);
                    guard.started(now());
                }
                // For want of memory or of processes, say, which may be over the next time.
                Err(error) if served => {
                    let pause = Duration::from_nanos(guard.ended(now()));
                    tell(&format!("it could not be started: {error}"), pause, context);
                }
                Err(error) => return Err(failed(error)),
            },
            Some(Action::Kill) => worker.iter_mut().for_each(Worker::kill),
            None => {}
        }
        if context.stop.requested() && !asked {
            asked = true;
            tell_manager(&[NotifyState::Stopping]);
            worker.iter().for_each(Worker::ask);
        }
        let Some(present) = &mut worker else {
            if asked {
                break;
            }
            wait(&[&woken], guard.next_timeout().saturating_sub(now())).map_err(failed)?;
            continue;
        };
        let stopping = (!asked).then_some(&woken);
        let files: Vec<&UnixStream> = stopping.into_iter().chain([&present.socket]).collect();
        wait(&files, guard.next_timeout().saturating_sub(now())).map_err(failed)?;
        match present.listen() {
            Heard::Nothing => {}
            Heard::Life => {
                if !std::mem::replace(&mut served, true) {
                    tell_manager(&[NotifyState::Ready]);
                }
                guard.heard(now());
            }
            Heard::End => {
                let status = present.child.wait().map_err(failed)?;
                let reason = match (present.killed, present.stopped) {
                    (true, true) => "it was stopped".to_owned(),
                    (true, false) => "it was silent".to_owned(),
                    (false, _) => status.to_string(),
                };
                worker = None;
                if asked {
                    break;
                }
                if !served {
                    // The worker has said why on standard error.
                    return match status.code().and_then(|code| u8::try_from(code).ok()) {
                        Some(code) => Ok(code),
                        None => Err(fail(ErrorKind::Other, format!("the worker died: {status}"))),
                    };
                }
                let pause = Duration::from_nanos(guard.ended(now()));
                tell(&reason, pause, context);
            }
        }
    }
    // A worker that was killed has left its rules.
    attach::clean().map_err(|error| local_io("remove", "the rules", error))?;
    match args.ends_with {
        Some(_) => Ok(0),
        None => Err(context.stop.failure()),
    }
}

/// Tells the service manager, if one has started this (`Type=notify`).
fn tell_manager(state: &[NotifyState<'_>]) {
    // A service manager that cannot be told goes on without.
    let _ = sd_notify::notify(state);
}

/// The service manager's patience (`WatchdogSec`), if it has an end.
struct Watchdog {
    every: u64,
    next: u64,
}

impl Watchdog {
    fn new() -> Option<Watchdog> {
        let patience = sd_notify::watchdog_enabled()?.as_nanos();
        let every = u64::try_from(patience / 2).ok()?;
        Some(Watchdog { every, next: 0 })
    }

    /// Whether it should be told that the guard lives, which looks every 50 ms.
    fn is_due(&mut self, now: u64) -> bool {
        let due = self.next <= now;
        if due {
            self.next = now + self.every;
        }
        due
    }
}

fn tell(reason: &str, pause: Duration, context: &Context) {
    let event = Event::new("worker_ended")
        .with("reason", reason)
        .with("restart_ms", pause.as_millis() as u64);
    context.reporter.event(event);
    context.reporter.note(&format!(
        "sphx: the worker has ended ({reason}): traffic takes its usual way; another worker comes in {pause:?}"
    ));
}

/// Waits until there is something to read, or so many nanoseconds.
fn wait(files: &[&UnixStream], timeout: u64) -> std::io::Result<()> {
    let timeout = Timespec::try_from(Duration::from_nanos(timeout)).ok();
    let mut files: Vec<PollFd<'_>> = files
        .iter()
        .map(|file| PollFd::new(*file, PollFlags::IN))
        .collect();
    match poll(&mut files, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

enum Heard {
    Nothing,
    Life,
    End,
}

struct Worker {
    child: Child,
    socket: UnixStream,
    killed: bool,
    stopped: bool,
}

impl Worker {
    fn start() -> std::io::Result<Worker> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        // The same program, also if its file has been replaced.
        let child = Command::new("/proc/self/exe")
            .arg0("sphx")
            .args(std::env::args_os().skip(1))
            .arg("--worker")
            // The guard is the one that the service manager hears.
            .env_remove("NOTIFY_SOCKET")
            .stdin(OwnedFd::from(other))
            // Ctrl-C at a terminal is for the guard, which asks the worker to end.
            .process_group(0)
            .spawn()?;
        Ok(Worker {
            child,
            socket,
            killed: false,
            stopped: false,
        })
    }

    /// Whether somebody has stopped it (SIGSTOP) and not let it go on.
    fn is_stopped(&mut self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        // The kernel reports each stop once, so it is remembered.
        let told = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        self.stopped |= matches!(told, Ok(Some(_)));
        self.stopped
    }

    fn listen(&mut self) -> Heard {
        match self.socket.read(&mut [0; 64]) {
            Ok(0) => Heard::End,
            Ok(_) => Heard::Life,
            Err(error) if matches!(error.kind(), Io::WouldBlock | Io::Interrupted) => {
                Heard::Nothing
            }
            Err(_) => Heard::End,
        }
    }

    /// Asks the worker to end in order (SIGTERM).
    fn ask(&self) {
        // The worker may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    fn kill(&mut self) {
        self.killed = true;
        // The worker may have ended already.
        let _ = self.child.kill();
    }
}

/// The worker dies with its guard, also while it is stopped.
pub(super) fn follow() {
    // If the guard has died before this, the first sign of life fails.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// The worker's sign of life.
///
/// # Errors
///
/// There is no guard.
pub(super) fn tell_alive() -> rustix::io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(rustix::stdio::stdin(), &[0], flags) {
        // A guard that does not read now has enough to read.
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
