//! What the user and their scripts get to see: JSON events on standard output, everything for
//! people on standard error.

mod done;
mod progress;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use serde_json::{Map, Value, json};

pub(crate) use done::{BlockMs, BlockNumbers, Done, Punctuality, Role};
pub(crate) use progress::{Progress, Ticker};

use crate::failure::{Failure, exit_code, kind_name};
use crate::text::{hex, printable};

/// Version of the JSON events.
const EVENTS_VERSION: u32 = 1;

/// One JSON object under construction.
pub(crate) struct Event(Map<String, Value>);

impl Event {
    pub(crate) fn new(name: &str) -> Self {
        let mut fields = Map::new();
        fields.insert("v".to_owned(), json!(EVENTS_VERSION));
        fields.insert("event".to_owned(), json!(name));
        Self(fields)
    }

    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// A path: as text for people; the exact bytes too when it is not UTF-8.
    pub(crate) fn with_path(self, path: &[u8]) -> Self {
        let event = self.with("path", String::from_utf8_lossy(path));
        match std::str::from_utf8(path) {
            Ok(_) => event,
            Err(_) => event.with("path_hex", hex(path)),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    #[cfg(test)]
    pub(crate) fn get(&self, field: &str) -> &Value {
        self.0
            .get(field)
            .unwrap_or_else(|| panic!("no field {field}"))
    }
}

/// Where output goes. Clones write to the same place.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<Inner>);

struct Inner {
    json: bool,
    quiet: bool,
    verbose: u8,
    /// Bars on a terminal; hidden otherwise.
    bars: MultiProgress,
    /// A line that ends the run has been printed.
    ended: AtomicBool,
}

impl Reporter {
    pub(crate) fn new(json: bool, quiet: bool, verbose: u8) -> Self {
        let terminal = io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let target = match terminal && !json && !quiet {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        Self(Arc::new(Inner {
            json,
            quiet,
            verbose,
            bars: MultiProgress::with_draw_target(target),
            ended: AtomicBool::new(false),
        }))
    }

    pub(crate) fn json(&self) -> bool {
        self.0.json
    }

    pub(crate) fn verbose(&self) -> bool {
        self.0.verbose > 0
    }

    /// A new progress bar, hidden where there is no terminal.
    pub(crate) fn bar(&self, length: u64) -> ProgressBar {
        self.0.bars.add(ProgressBar::new(length))
    }

    /// One line for scripts; nothing without `--json`.
    pub(crate) fn event(&self, event: Event) {
        if self.0.json {
            self.data(&Value::Object(event.0).to_string());
        }
    }

    /// A line of data on standard output. A reader that has gone away is its own business: what
    /// this process does goes on.
    pub(crate) fn data(&self, line: &str) {
        self.0.bars.suspend(|| {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        });
    }

    /// A line for people; nothing with `--quiet`.
    pub(crate) fn note(&self, line: &str) {
        if !self.0.quiet {
            self.0.bars.suspend(|| print(line));
        }
    }

    /// Something the user should know although it is no failure: in both forms.
    pub(crate) fn warn(&self, line: &str) {
        self.event(Event::new("note").with("message", line));
        self.note(&format!("sphx: {line}"));
    }

    /// Reports how one transfer or the whole command failed; returns the exit code.
    pub(crate) fn error(&self, failure: &Failure, signal: Option<i32>, peer: Option<&str>) -> u8 {
        let code = exit_code(failure.kind, signal);
        let (message, hint) = (
            printable(failure.message.as_bytes()),
            printable(failure.hint.as_bytes()),
        );
        let event = error_event(failure, code);
        self.event(match peer {
            Some(peer) => event.with("peer", peer),
            None => event,
        });
        self.0.bars.suspend(|| {
            match peer {
                Some(peer) => print_error(&format!("{peer}: {message}")),
                None => print_error(&message),
            }
            if !hint.is_empty() {
                print(&format!("  hint: {hint}"));
            }
        });
        code
    }

    /// Like [`error`](Self::error), for the failure that ends the command; only the first such line
    /// is printed, so that a forced exit and an orderly one do not both speak.
    pub(crate) fn end_with_error(&self, failure: &Failure, signal: Option<i32>) -> u8 {
        if self.0.ended.swap(true, Ordering::SeqCst) {
            return exit_code(failure.kind, signal);
        }
        self.error(failure, signal, None)
    }

    /// Only the event of a failure that people have been told of already.
    pub(crate) fn error_event(&self, failure: &Failure) {
        self.event(error_event(failure, exit_code(failure.kind, None)));
    }

    /// The command has said its last word.
    pub(crate) fn ended(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
    }
}

fn error_event(failure: &Failure, code: u8) -> Event {
    Event::new("error")
        .with("code", code)
        .with("kind", kind_name(failure.kind))
        .with("message", printable(failure.message.as_bytes()))
        .with("hint", printable(failure.hint.as_bytes()))
}

/// A line on standard error, wherever that goes.
fn print(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// An error line on standard error.
pub(crate) fn print_error(line: &str) {
    print(&format!("sphx: {line}"));
}
