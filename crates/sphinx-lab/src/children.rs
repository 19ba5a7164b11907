//! The two processes of a contestant: started, listened to, accounted, and never left behind.

use std::{
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{time::clock_getcpuclockid, unistd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;
use sphinx_link::front::End;
use sphinx_netdev::usage::peak_rss_bytes_of;

use crate::{Side, machine::children_of};

/// Longest line of output that is read as one.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How much of what a process writes to standard error is kept.
const ERROR_BYTES_MAX: u64 = 1 << 14;
/// Between two looks at whether a process has ended.
const POLL: Duration = Duration::from_millis(2);

/// What a process has to say.
#[derive(Debug)]
pub(crate) enum Said {
    /// A JSON object.
    Event(Side, Value),
    /// Nothing more: standard output is closed.
    Closed(Side),
}

/// A running process. Its standard input stays open as long as this lives, so that programs can
/// notice that nobody is interested any more. It leads a process group, so that what it starts ends with
/// it, whether it is killed or ends by itself. Dropping this kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    errors: Option<JoinHandle<String>>,
    /// The most memory it was seen to have resident, in bytes.
    peak_rss: Option<u64>,
    ended: Option<Ended>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// User and system time.
    pub(crate) cpu: Duration,
    /// The most memory it was seen to have resident, in bytes.
    pub(crate) peak_rss: Option<u64>,
}

impl Process {
    /// Starts a command at an end of the link; what it says goes to `said`.
    pub(crate) fn start(
        end: &End,
        command: &mut Command,
        side: Side,
        said: Sender<Said>,
    ) -> io::Result<Process> {
        Process::start_by(|command| end.spawn(command), command, side, said)
    }

    /// The same wherever `spawn` starts it.
    fn start_by(
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
        command: &mut Command,
        side: Side,
        said: Sender<Said>,
    ) -> io::Result<Process> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = spawn(command)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        // From here on, dropping `process` ends the child whatever fails.
        let mut process = Process {
            child,
            errors: None,
            peak_rss: None,
            ended: None,
        };
        let stdout = stdout.ok_or_else(|| io::Error::other("no pipe for standard output"))?;
        let stderr = stderr.ok_or_else(|| io::Error::other("no pipe for standard error"))?;
        // The threads end with the process, which closes the pipes.
        thread::Builder::new()
            .name(format!("{side}-output"))
            .spawn(move || listen(stdout, side, &said))?;
        let errors = thread::Builder::new()
            .name(format!("{side}-errors"))
            .spawn(move || keep_beginning(stderr))?;
        process.errors = Some(errors);
        Ok(process)
    }

    /// Looks at its memory. To be called now and then: nothing is left of it when it has ended.
    pub(crate) fn look(&mut self) {
        self.peak_rss = self.peak_rss.max(peak_rss_bytes_of(self.child.id()));
    }

    /// Waits until the process has ended, at most until `deadline`.
    pub(crate) fn wait(&mut self, deadline: Instant) -> io::Result<Option<Ended>> {
        loop {
            self.look();
            // Nothing can be asked of a process any more once it has been waited for.
            if self.ended.is_none() && self.has_ended()? {
                let cpu = self.cpu();
                // It may have left something behind, which would use the processors of later runs. Until it
                // has been waited for, its number is that of its group.
                self.kill_group();
                if let Some(status) = self.child.try_wait()? {
                    self.ended = Some(Ended {
                        status,
                        cpu,
                        peak_rss: self.peak_rss,
                    });
                }
            }
            if self.ended.is_some() || Instant::now() >= deadline {
                return Ok(self.ended);
            }
            thread::sleep(POLL);
        }
    }

    /// Whether it has ended; it is still there to be waited for.
    fn has_ended(&self) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) else {
            return Ok(false);
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(pid), options)?.is_some())
    }

    /// User and system time of it so far, and of what it has started and waited for.
    pub(crate) fn cpu(&self) -> Duration {
        let pid = self.child.id();
        let clock = clock_getcpuclockid(unistd::Pid::from_raw(pid.cast_signed()));
        let own = clock.and_then(|clock| clock.now()).map(Duration::from);
        own.unwrap_or_default() + children_of(pid)
    }

    /// Kills the process if it has not ended, and accounts for it.
    pub(crate) fn end(&mut self) -> io::Result<Ended> {
        if self.ended.is_none() {
            self.kill_group();
        }
        let patience = Instant::now() + Duration::from_secs(10);
        self.wait(patience)?
            .ok_or_else(|| io::Error::other("a process cannot be killed"))
    }

    /// Kills it with everything that it has started. To be called only before it has been waited for.
    fn kill_group(&self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // Fails only if no process of the group is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The beginning of what an ended process wrote to standard error.
    pub(crate) fn errors(&mut self) -> String {
        let thread = self.errors.take().filter(|_| self.ended.is_some());
        let text = thread.and_then(|thread| thread.join().ok());
        text.unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // Best effort: there is no one to report a process that cannot be killed to.
            let _ = self.end();
        }
    }
}

fn listen(stdout: impl Read, side: Side, said: &Sender<Said>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if let Ok(event @ Value::Object(_)) = serde_json::from_slice(&line)
            && said.send(Said::Event(side, event)).is_err()
        {
            break;
        }
    }
    // Fails if nobody listens any more, which is no error.
    let _ = said.send(Said::Closed(side));
}

fn keep_beginning(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    // Best effort: what cannot be read is left out of the text.
    let _ = stderr.by_ref().take(ERROR_BYTES_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut stderr, &mut io::sink());
    String::from_utf8_lossy(&kept).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Whatever a test waits for takes less.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// `cat` has the output of the process as long as it lives, and lives until the process's input is closed.
    #[test]
    fn what_a_process_leaves_behind_ends_with_it() {
        let (sender, said) = mpsc::channel();
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 3<&0; cat <&3 & exit 0"]);
        let started = Process::start_by(Command::spawn, &mut shell, Side::Receiver, sender);
        let mut process = started.unwrap();
        let ended = process.wait(Instant::now() + PATIENCE).unwrap().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let closed = said.recv_timeout(PATIENCE);
        assert!(
            matches!(closed, Ok(Said::Closed(Side::Receiver))),
            "{closed:?}"
        );
    }
}
