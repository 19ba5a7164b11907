//! Ctrl-C and its kin: tell the peer, remove temporaries, exit with 128 + n; the second one exits
//! at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Outcome, fail, local_io};
use crate::report::print_error;
use sphinx_transport::ErrorKind;

/// How long the commands get to wind down after the first signal.
const GRACE: Duration = Duration::from_secs(3);

type Action = Box<dyn Fn() + Send>;

/// The wish to stop, and what to do when it comes.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    signal: AtomicI32,
    next_id: AtomicU64,
    actions: Mutex<BTreeMap<u64, Action>>,
}

/// Keeps an action registered.
pub(crate) struct Registration {
    stop: Stop,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.stop.actions().remove(&self.id);
    }
}

impl Stop {
    /// Starts listening for signals; for SIGHUP only if that means to stop. `leave` is called with the signal when the process has to end
    /// whether or not its threads have wound down.
    pub(crate) fn listen(
        &self,
        hangup_stops: bool,
        leave: impl Fn(i32) + Send + 'static,
    ) -> Outcome<()> {
        // Under nohup a hang-up stays ignored.
        let hangup = (hangup_stops && !is_ignored(SIGHUP)).then_some(SIGHUP);
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))
            .map_err(|error| local_io("listen for", "signals", error))?;
        let stop = self.clone();
        let leave = Arc::new(Mutex::new(leave));
        spawn("signals", move || {
            for signal in signals.forever() {
                let first = stop.request(signal);
                if !first {
                    crate::leave(u8::try_from(128 + signal).unwrap_or(1));
                }
                let (stop, leave) = (stop.clone(), leave.clone());
                spawn("stopping", move || {
                    let waited_for = stop.act();
                    thread::sleep(if waited_for { GRACE } else { Duration::ZERO });
                    leave.lock().unwrap_or_else(PoisonError::into_inner)(signal);
                });
            }
        });
        Ok(())
    }

    /// The signal that came, if any.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.0.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    pub(crate) fn requested(&self) -> bool {
        self.signal().is_some()
    }

    /// What a command returns that has been asked to stop.
    pub(crate) fn failure(&self) -> Failure {
        fail(ErrorKind::Interrupted, "interrupted")
    }

    /// Runs `action` when a signal comes, from another thread; at once if it has come already.
    pub(crate) fn on_stop(&self, action: impl Fn() + Send + 'static) -> Registration {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        if self.requested() {
            action();
        }
        self.actions().insert(id, Box::new(action));
        Registration {
            stop: self.clone(),
            id,
        }
    }

    /// Records the signal; false if there was one before.
    fn request(&self, signal: i32) -> bool {
        self.0
            .signal
            .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Runs the actions side by side; false if there were none, so that nobody is winding down.
    fn act(&self) -> bool {
        let actions = std::mem::take(&mut *self.actions());
        let any = !actions.is_empty();
        for action in actions.into_values() {
            spawn("stopping", action);
        }
        any
    }

    fn actions(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Action>> {
        self.0
            .actions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that may fail to start only when the process is past helping.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    if let Err(error) = started {
        print_error(&format!("cannot start a thread: {error}"));
    }
}

/// Has a write beyond the largest file that this process may make (`ulimit -f`) fail, as on a full disk. The signal that comes with it would end the process
/// without a word.
pub(crate) fn outlive_file_size_limit() {
    // Nobody looks at the flag: the error of the write says it.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Whether this process was started with a signal ignored, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn actions_run_once_and_can_be_withdrawn() {
        let stop = Stop::default();
        let (sender, ran) = mpsc::channel();
        let kept = sender.clone();
        let _kept = stop.on_stop(move || kept.send("kept").unwrap());
        drop(stop.on_stop(move || sender.send("withdrawn").unwrap()));
        assert!(!stop.requested());
        assert!(stop.request(15));
        assert!(!stop.request(2));
        assert_eq!(stop.signal(), Some(15));
        assert!(stop.act());
        assert_eq!(ran.recv_timeout(Duration::from_secs(5)), Ok("kept"));
        assert!(ran.recv_timeout(Duration::from_millis(20)).is_err());
        assert!(!stop.act());
    }

    #[test]
    fn late_registration_acts_at_once() {
        let stop = Stop::default();
        stop.request(2);
        let (sender, ran) = mpsc::channel();
        let _registration = stop.on_stop(move || sender.send(()).unwrap());
        assert!(ran.try_recv().is_ok());
    }
}
