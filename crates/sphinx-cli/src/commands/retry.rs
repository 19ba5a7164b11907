//! What is done after a transfer has ended early: trying again, or saying how to go on.

use std::thread;
use std::time::{Duration, Instant};

use sphinx_transport::ErrorKind;

use super::Context;
use crate::failure::{Failure, Outcome, PARTIAL};
use crate::text::own_command_line;
use crate::units::show_duration;

/// Between a lost session and the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// For how long, and since when there has been no session.
pub(super) struct Retry {
    time: Option<Duration>,
    lost: Option<Instant>,
    /// There has been a session.
    begun: bool,
}

impl Retry {
    /// Without a time nothing is tried again.
    pub(super) fn new(time: Option<Duration>) -> Self {
        Self {
            time,
            lost: None,
            begun: false,
        }
    }

    /// Once there is a session nothing counts as lost.
    pub(super) fn connected(&mut self) {
        self.lost = None;
        self.begun = true;
    }

    /// Whether there is anything that the same command can go on with: what the other end says before is true the next time too.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Waits until it makes sense to try again.
    ///
    /// # Errors
    /// It does not, or for too long already.
    pub(super) fn wait(&mut self, failure: Failure, context: &Context) -> Outcome<()> {
        let Some(time) = self.time.filter(|_| !context.stop.requested()) else {
            return Err(failure);
        };
        let since = match (self.lost, failure.kind) {
            (None, ErrorKind::PeerLost | ErrorKind::Stalled) => Instant::now(),
            (Some(since), ErrorKind::PeerLost | ErrorKind::Stalled | ErrorKind::Unreachable) => {
                since
            }
            _ => return Err(failure),
        };
        if since.elapsed() >= time {
            return Err(failure);
        }
        if self.lost.is_none() {
            let time = show_duration(time);
            let line = format!("{failure}; connecting again, for {time} at most");
            context.reporter.warn(&line);
        }
        self.lost = Some(since);
        thread::sleep(PAUSE);
        Ok(())
    }
}

/// Says how to go on, if the same command can: what is missing is `done` (sent, copied) by it.
pub(super) fn tell_how(
    outcome: Outcome<u8>,
    done: &str,
    can_go_on: bool,
    context: &Context,
) -> Outcome<u8> {
    let failure = match outcome {
        Ok(PARTIAL) => {
            let line = own_command_line();
            let note = format!(
                "once that is put right, what is missing is {done} by the same command: {line}"
            );
            context.reporter.note(&note);
            return Ok(PARTIAL);
        }
        Ok(code) => return Ok(code),
        Err(failure) if !can_go_on => return Err(failure),
        Err(failure) => failure,
    };
    if failure.is_refusal {
        return Err(failure.with_hint(
            "the same command is refused again, until whoever runs the other end allows more",
        ));
    }
    let again = match failure.kind {
        ErrorKind::RemoteIo => "once that is put right, the same command goes on",
        ErrorKind::Cancelled => "if it is wanted there, the same command goes on",
        _ => "the same command goes on",
    };
    let again = format!("{again}: {}", own_command_line());
    if context.stop.requested() {
        context.reporter.note(&again);
        return Err(failure);
    }
    if !is_interruption(&failure) {
        return Err(failure);
    }
    let hint = match failure.hint.is_empty() {
        true => again,
        false => format!("{}; {again}", failure.hint),
    };
    Err(failure.with_hint(hint))
}

/// Whether the same command can do better another time.
fn is_interruption(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        ErrorKind::PeerLost | ErrorKind::Stalled | ErrorKind::RemoteIo | ErrorKind::Cancelled
    )
}
