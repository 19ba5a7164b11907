//! A program on one of the hosts.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixDatagram},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sphinx_netdev::{netns::Namespace, pidns::PidNamespace};
use tempfile::TempDir;

use super::bed::local;
use crate::emulator::LinkError;

/// How long it gets to say that it is ready. Most programs never do.
const READY: Duration = Duration::from_secs(2);
/// How long it gets to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where all is to end: both programs together get much less than the time after which the command
/// leaves in any case, so that it completes its log and removes its files on a busy machine too.
const SHORT_STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two looks at whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A program, and everything that it starts. When this is dropped, all of it is killed.
pub(super) struct Program {
    /// Name of the host on which it runs.
    name: &'static str,
    processes: PidNamespace,
    child: Child,
    /// Where it says that it is ready, as to a service manager (sd_notify).
    ready: UnixDatagram,
    _directory: TempDir,
}

/// Where the standard output of a program goes.
#[derive(Debug)]
pub enum Output {
    /// To that of this process.
    Inherited,
    /// To the standard error of this process.
    Errors,
    /// To a file.
    File(std::fs::File),
}

impl Program {
    /// `init` is the command of this program that calls
    /// [`serve_as_init`](sphinx_netdev::pidns::serve_as_init).
    pub(super) fn start(
        script: &str,
        (name, host): (&'static str, &Namespace),
        init: &mut Command,
        output: Output,
    ) -> Result<Program, LinkError> {
        Program::try_start(script, (name, host), init, output)
            .map_err(|error| local(&format!("run the {name} command"), &error))
    }

    fn try_start(
        script: &str,
        (name, host): (&'static str, &Namespace),
        init: &mut Command,
        output: Output,
    ) -> io::Result<Program> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("ready");
        let ready = UnixDatagram::bind(&socket)?;
        ready.set_read_timeout(Some(POLL_INTERVAL))?;
        let processes = PidNamespace::start(init)?;
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(script)
            .env("NOTIFY_SOCKET", &socket)
            .stdin(Stdio::null());
        match output {
            Output::Inherited => {}
            Output::Errors => {
                command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
            }
            Output::File(file) => {
                command.stdout(file);
            }
        }
        let child = processes.spawn(host, &mut command)?;
        Ok(Program {
            name,
            processes,
            child,
            ready,
            _directory: directory,
        })
    }

    /// Name of the host on which it runs.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Waits until it is ready, has ended, or has said nothing for some time, or until `stop`; true if it is ready.
    pub(super) fn wait_ready(&mut self, stop: &AtomicBool) -> io::Result<bool> {
        let deadline = Instant::now() + READY;
        let mut buffer = [0; 1024];
        while !stop.load(Ordering::Relaxed)
            && Instant::now() < deadline
            && self.child.try_wait()?.is_none()
        {
            if let Ok(length) = self.ready.recv(&mut buffer)
                && says_ready(&buffer[..length])
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The program's exit status; `None` while it runs.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks it to end, and kills it if it does not: soon, once all is to `stop`.
    pub(super) fn end(mut self, stop: &AtomicBool) -> io::Result<ExitStatus> {
        let asked = Instant::now();
        if self.child.try_wait()?.is_none() {
            // Fails if the program has just ended.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let patience = || match stop.load(Ordering::Relaxed) {
            true => SHORT_STOP_TIMEOUT,
            false => STOP_TIMEOUT,
        };
        while asked.elapsed() < patience() {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.processes.kill();
        self.child.wait()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.processes.kill();
        // Best effort: everything has been killed.
        let _ = self.child.wait();
        let _ = self.processes.wait();
    }
}

fn says_ready(message: &[u8]) -> bool {
    message
        .split(|byte| *byte == b'\n')
        .any(|line| line == b"READY=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_a_line_of_its_own() {
        assert!(says_ready(b"READY=1"));
        assert!(says_ready(b"STATUS=well\nREADY=1\n"));
        assert!(!says_ready(b"READY=10\nSTATUS=READY=1"));
        assert!(!says_ready(b""));
    }
}
