//! Trying again after a session was lost.

use std::thread;
use std::time::{Duration, Instant};

use sphinx_transport::ErrorKind;

use super::Context;
use crate::failure::{Failure, Outcome};
use crate::units::show_duration;

/// Between a lost session and the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// For how long, and since when there has been no session.
pub(super) struct Retry {
    time: Option<Duration>,
    lost: Option<Instant>,
}

impl Retry {
    /// Without a time nothing is tried again.
    pub(super) fn new(time: Option<Duration>) -> Self {
        Self { time, lost: None }
    }

    /// Once there is a session nothing counts as lost.
    pub(super) fn connected(&mut self) {
        self.lost = None;
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
