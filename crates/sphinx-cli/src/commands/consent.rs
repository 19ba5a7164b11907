//! Asks the person at the terminal whether a transfer may begin.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use sphinx_transport::ErrorKind;

use crate::failure::{Outcome, fail, local_io};
use crate::files::Announced;
use crate::report::Reporter;
use crate::units::show_size;

/// Whether there is somebody to ask. Scripts are not asked.
pub(super) struct Consent {
    asks: bool,
    reporter: Reporter,
    /// One question at a time.
    terminal: Mutex<()>,
}

impl Consent {
    pub(super) fn new(yes: bool, reporter: &Reporter) -> Self {
        let person = io::stdin().is_terminal() && io::stderr().is_terminal();
        Self {
            asks: person && !yes && !reporter.json(),
            reporter: reporter.clone(),
            terminal: Mutex::new(()),
        }
    }

    /// Fails if somebody has been asked and does not want it.
    pub(super) fn ask(&self, peer: &str, announced: Announced, place: &str) -> Outcome<()> {
        if !self.asks {
            return Ok(());
        }
        let _alone = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = match announced.entries {
            1 => "1 entry".to_owned(),
            entries => format!("{entries} entries"),
        };
        let bytes = match announced.bytes {
            Some(bytes) => show_size(bytes),
            None => "nobody knows how many bytes".to_owned(),
        };
        let question = format!("Receive {entries}, {bytes}, from {peer} into {place}? [y/N] ");
        let answer = self.reporter.ask(&question);
        let answer = answer.map_err(|error| local_io("ask on", "the terminal", error))?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(fail(ErrorKind::Cancelled, "the transfer was declined")),
        }
    }
}
