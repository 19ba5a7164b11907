//! `sphx pep exec`: a program in a control group of its own, and an agent for its connections while it runs.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use sphinx_pep::Stage;
use sphinx_pep::attach::OwnGroup;
use sphinx_transport::ErrorKind;

use super::args::ExecArgs;
use super::stage::Stages;
use super::{Context, Thin};
use crate::failure::{Outcome, fail, fail_hint, local_io, usage};
use crate::signals::is_ignored;

/// Runs the program and returns its exit code.
pub(super) fn run(args: &ExecArgs, context: &Context) -> Outcome<u8> {
    let stages = args.preset.stages(&[args.agent])?;
    if !matches!(stages.data, Stage::Rdb(_)) {
        return Err(usage("a program's own connections are for --agent rdb"));
    }
    let [program, words @ ..] = &args.command[..] else {
        return Err(usage("there is no program to run"));
    };
    let group = OwnGroup::new("sphx-pep").map_err(|error| {
        let message = format!("cannot make a control group for the program: {error}");
        let hint = "run it as root; control groups of version 2 have to be mounted";
        fail_hint(ErrorKind::LocalIo, message, hint)
    })?;
    // What a terminal sends on Ctrl-C goes to the program too, which knows what to do about it. What is ignored, as by nohup, stays so: otherwise the
    // program would begin without that.
    let heard = [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter();
    let mut signals = Signals::new(heard.filter(|signal| !is_ignored(*signal)))
        .map_err(|error| local_io("listen for", "signals", error))?;
    let mut agent = Agent::start(args, stages, &group)?;
    if let Some(code) = agent.begin()? {
        return Ok(code);
    }
    let name = program.to_string_lossy().into_owned();
    let started = group
        .enter()
        .and_then(|()| Command::new(program).args(words).spawn());
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = group.leave();
            agent.end();
            return Err(local_io("start", &name, error));
        }
    };
    let pid = Pid::from_child(&child);
    let handle = signals.handle();
    let forwarding = thread::spawn(move || {
        for signal in signals.forever() {
            if let Some(signal @ (Signal::TERM | Signal::HUP)) = Signal::from_named_raw(signal) {
                // The program may have ended already.
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child
        .wait()
        .map_err(|error| local_io("wait for", &name, error));
    handle.close();
    // That thread only forwards signals: that it panicked would be no reason to fail.
    let _ = forwarding.join();
    let summary = agent.end();
    if let Err(error) = group.leave() {
        let path = group.path().display();
        context.reporter.note(&format!(
            "sphx: control group {path} is left: {error}; it has processes that {name} has started"
        ));
    }
    if let Some(summary) = summary.filter(|_| !args.json) {
        context.reporter.note(&summary);
    }
    status.map(code)
}

/// As shells give it: 128 and the signal's number, if a signal has ended the program.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// `sphx pep run` for the group.
struct Agent {
    child: Child,
    /// Gets a message once the agent has started and packets pass it.
    started: Receiver<()>,
    /// Reads what it tells to the end, and returns its totals.
    listening: JoinHandle<Option<Value>>,
    dry_run: bool,
}

impl Agent {
    fn start(args: &ExecArgs, stages: Stages, group: &OwnGroup) -> Outcome<Agent> {
        let failed = |error| local_io("start", "the agent", error);
        let mut words: Vec<OsString> = ["pep", "run", "--json", "--quiet"].map(Into::into).to_vec();
        words.extend(["--agent".into(), stages.to_string().into()]);
        words.extend(["--cgroup".into(), group.path().into()]);
        words.extend(["--ends-with".into(), std::process::id().to_string().into()]);
        if args.dry_run {
            words.push("--dry-run".into());
        }
        // The same program, also if its file has been replaced.
        let mut child = Command::new("/proc/self/exe")
            .arg0("sphx")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal is for the program.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| fail(ErrorKind::Other, "the agent has no output"))?;
        let (tell_started, started) = mpsc::channel();
        let shows = args.json;
        let listening = thread::spawn(move || listen(output, &tell_started, shows));
        Ok(Agent {
            child,
            started,
            listening,
            dry_run: args.dry_run,
        })
    }

    /// Waits until packets pass it; the exit code if it cannot begin.
    fn begin(&mut self) -> Outcome<Option<u8>> {
        if self.started.recv().is_ok() {
            return Ok(None);
        }
        // The agent has said why on standard error.
        let status = self.child.wait();
        status
            .map(|status| Some(code(status)))
            .map_err(|error| local_io("wait for", "the agent", error))
    }

    /// Lets it end, and tells in a line what it has done.
    fn end(mut self) -> Option<String> {
        // The agent may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let done = self.listening.join().ok().flatten();
        let _ = self.child.wait();
        let done = done?;
        let number = |name: &str| done[name].as_u64().unwrap_or(0);
        let thin = Thin {
            flows: number("flows"),
            data_bytes: number("data_bytes"),
            bundled: number("bundled"),
            copied_bytes: number("copied_bytes"),
            losses_repaired: number("losses_repaired"),
            resent: number("resent"),
        };
        Some(thin.summary(self.dry_run))
    }
}

/// Reads an agent's events to the end, whatever becomes of them. The agent waits for nobody who reads them, and neither does the program's traffic.
fn listen(output: ChildStdout, started: &Sender<()>, shows: bool) -> Option<Value> {
    let mut totals = None;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if shows {
            show(&line);
        }
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        match event["event"].as_str() {
            Some("started") => {
                // Only the first start is waited for; a restarted worker reports it again.
                let _ = started.send(());
            }
            Some("worker_ended") if !shows => {
                let reason = event["reason"].as_str().unwrap_or("");
                show(&format!(
                    "sphx: the agent's worker has ended ({reason}): connections go on without it; another one comes"
                ));
            }
            Some("done") => totals = Some(event),
            _ => {}
        }
    }
    totals
}

/// Standard output is the program's.
fn show(line: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "{line}");
}
