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

/// How long it is tried again, and since when there has been no session.
pub(super) struct Retry {
    time: Option<Duration>,
    lost: Option<Instant>,
    /// Whether there has been a session.
    begun: bool,
}

impl Retry {
    /// Without a `time`, a failure is final.
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
            // An interface of --path, too, may be down, or gone, for as long as the network is.
            (
                Some(since),
                ErrorKind::PeerLost
                | ErrorKind::Stalled
                | ErrorKind::Unreachable
                | ErrorKind::LocalIo,
            ) => since,
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

/// What a command does, in the words of its hints.
#[derive(Clone, Copy)]
pub(super) enum Deed {
    /// To an end that somebody else has started, whose ticket is another one when it is started again.
    Sends,
    Copies,
    Synchronizes,
}

/// Says how to go on, if the same command can.
pub(super) fn tell_how(
    outcome: Outcome<u8>,
    deed: Deed,
    can_go_on: bool,
    context: &Context,
) -> Outcome<u8> {
    let line = own_command_line();
    let failure = match outcome {
        Ok(PARTIAL) => {
            context.reporter.note(&what_is_missing(deed, &line));
            return Ok(PARTIAL);
        }
        Ok(code) => return Ok(code),
        Err(failure) if !can_go_on => return Err(failure),
        Err(failure) => failure,
    };
    if context.stop.requested() && !failure.is_refusal {
        context.reporter.note(&goes_on(deed, failure.kind, &line));
        return Err(failure);
    }
    Err(explained(failure, deed, &line))
}

/// The failure with a hint on how to go on.
fn explained(failure: Failure, deed: Deed, line: &str) -> Failure {
    if failure.is_refusal {
        return match failure.hint.is_empty() {
            true => failure.with_hint(
                "the same command is refused again, until whoever runs the other end allows more",
            ),
            // The refusal came from this end, whose hint says what to allow.
            false => failure,
        };
    }
    if !is_interruption(&failure) {
        return failure;
    }
    let again = goes_on(deed, failure.kind, line);
    let hint = match failure.hint.is_empty() {
        true => again,
        false => format!("{}; {again}", failure.hint),
    };
    failure.with_hint(hint)
}

/// The hint where entries were left out and all others arrived.
fn what_is_missing(deed: Deed, line: &str) -> String {
    let done = match deed {
        Deed::Sends => "sent",
        Deed::Copies => "copied",
        Deed::Synchronizes => "synchronized",
    };
    format!("once that is put right, what is missing is {done} by the same command: {line}")
}

/// The hint where a transfer broke off and the same command goes on with it.
fn goes_on(deed: Deed, kind: ErrorKind, line: &str) -> String {
    let when = match kind {
        ErrorKind::RemoteIo => "once that is put right, ",
        ErrorKind::Cancelled => "if it is wanted there, ",
        _ => "",
    };
    let with = match deed {
        Deed::Sends => " (with the ticket that the other end prints, if it is started again)",
        Deed::Copies | Deed::Synchronizes => "",
    };
    format!("{when}the same command goes on{with}: {line}")
}

/// Whether the same command can do better another time.
fn is_interruption(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        ErrorKind::PeerLost | ErrorKind::Stalled | ErrorKind::RemoteIo | ErrorKind::Cancelled
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{fail, fail_hint};

    const LINE: &str = "sphx it";

    fn hint(failure: Failure, deed: Deed) -> String {
        explained(failure, deed, LINE).hint
    }

    #[test]
    fn what_is_left_out_is_done_by_the_same_command() {
        for (deed, done) in [
            (Deed::Sends, "sent"),
            (Deed::Copies, "copied"),
            (Deed::Synchronizes, "synchronized"),
        ] {
            assert_eq!(
                what_is_missing(deed, LINE),
                format!(
                    "once that is put right, what is missing is {done} by the same command: sphx it"
                )
            );
        }
    }

    #[test]
    fn what_goes_on_is_said_where_it_does() {
        let ticket = "(with the ticket that the other end prints, if it is started again)";
        for (kind, when) in [
            (ErrorKind::PeerLost, ""),
            (ErrorKind::Stalled, ""),
            (ErrorKind::RemoteIo, "once that is put right, "),
            (ErrorKind::Cancelled, "if it is wanted there, "),
        ] {
            assert_eq!(
                hint(fail(kind, "it ended"), Deed::Copies),
                format!("{when}the same command goes on: sphx it")
            );
            // A hint that the failure has already comes first.
            assert_eq!(
                hint(fail_hint(kind, "it ended", "look there"), Deed::Sends),
                format!("look there; {when}the same command goes on {ticket}: sphx it")
            );
        }
        // After these failures the same command would fail in the same way: no hint to repeat it.
        for kind in [
            ErrorKind::LocalIo,
            ErrorKind::Protocol,
            ErrorKind::Integrity,
        ] {
            let failure = fail_hint(kind, "it ended", "look here");
            assert_eq!(hint(failure, Deed::Synchronizes), "look here");
        }
        let refused = fail(ErrorKind::RemoteIo, "too much").refused();
        assert!(hint(refused, Deed::Sends).contains("is refused again"));
    }
}
