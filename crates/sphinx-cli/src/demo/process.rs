//! A measured end: this program once more, as a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use sphinx_transport::ErrorKind;

use super::scene::{Side, Stage};
use crate::commands::Context;
use crate::failure::{Outcome, fail, local_io};
use crate::signals::Registration;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest event that is read.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Process {
    child: Arc<Mutex<Child>>,
    /// The JSON events that the process prints.
    events: Receiver<Value>,
    /// Closed with this process: the child watches it and ends.
    _stdin: Option<ChildStdin>,
    _registration: Registration,
}

impl Process {
    pub(super) fn start(
        stage: &Stage,
        side: Side,
        arguments: &[String],
        context: &Context,
    ) -> Outcome<Self> {
        let refused = |error| local_io("start", "a measured end", error);
        let mut command = Command::new(std::env::current_exe().map_err(refused)?);
        command
            .arg("__demo")
            .args(arguments)
            .env_remove("SPHX_TICKET")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = stage.spawn(side, &mut command).map_err(refused)?;
        let stdin = child.stdin.take();
        let output = child.stdout.take();
        let (sender, events) = mpsc::channel();
        let read = move || {
            let Some(output) = output else { return };
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while (&mut output)
                .take(LINE_BYTES_MAX)
                .read_line(&mut line)
                .is_ok_and(|n| n > 0)
            {
                if let Ok(event) = serde_json::from_str(&line)
                    && sender.send(event).is_err()
                {
                    break;
                }
                line.clear();
            }
        };
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(read)
            .map_err(refused)?;
        let child = Arc::new(Mutex::new(child));
        let killed = child.clone();
        let registration = context.stop.on_stop(move || kill(&killed));
        Ok(Self {
            child,
            events,
            _stdin: stdin,
            _registration: registration,
        })
    }

    /// Waits for the event `name`; an `error` event, the end of the process, a signal or too much
    /// time is a failure. `tick` is called while waiting.
    pub(super) fn wait_for(
        &mut self,
        name: &str,
        time_max: Duration,
        context: &Context,
        mut tick: impl FnMut(Duration),
    ) -> Outcome<Value> {
        let started = Instant::now();
        loop {
            if context.stop.requested() {
                return Err(context.stop.failure());
            }
            match self.events.recv_timeout(POLL_INTERVAL) {
                Ok(event) => match event.get("event").and_then(Value::as_str) {
                    Some(found) if found == name => return Ok(event),
                    Some("error") => {
                        let message = event.get("message").and_then(Value::as_str);
                        let message = message.unwrap_or("a measured end failed");
                        return Err(fail(ErrorKind::Other, message));
                    }
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => tick(started.elapsed()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(fail(
                        ErrorKind::Other,
                        "a measured end ended without a result",
                    ));
                }
            }
            if started.elapsed() > time_max {
                return Err(fail(
                    ErrorKind::Other,
                    format!("no result within {time_max:?}"),
                ));
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(&self.child);
        // Reaped here; a killed process does not keep us waiting.
        let _ = self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wait();
    }
}

fn kill(child: &Mutex<Child>) {
    // It fails if the process has ended already.
    let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
}
