//! Telling that the other end has fallen silent, long before its silence ends the session.

use std::time::Duration;

use super::{Event, Reporter};

/// An end that lives is heard every three seconds, whatever it has to say.
const NOTABLE: Duration = Duration::from_secs(4);

/// Tells of each silence once.
#[derive(Default)]
pub(super) struct SilenceWatch {
    told: bool,
}

impl SilenceWatch {
    /// `silence`: since anything was heard from the other end.
    pub(super) fn look(&mut self, silence: Duration, peer: Option<&str>, reporter: &Reporter) {
        let is_silent = silence >= NOTABLE;
        if is_silent && !self.told {
            let seconds = silence.as_secs();
            let from = peer.map_or(String::new(), |peer| format!(" ({peer})"));
            let message = format!(
                "nothing heard from the other end{from} for {seconds} s; \
                 waiting for it as long as --idle-timeout allows"
            );
            let event = Event::new("silent")
                .with("silent_seconds", silence.as_secs_f64())
                .with("message", message.as_str());
            reporter.event(match peer {
                Some(peer) => event.with("peer", peer),
                None => event,
            });
            reporter.note(&format!("sphx: {message}"));
        }
        self.told = is_silent;
    }
}
